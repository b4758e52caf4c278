"""The adversaries that an audit can choose: a row each. Importing it starts no JAX."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from audit.errors import require
from experiments.settings.setting import AdversaryFields, described

if TYPE_CHECKING:
    from jax import Array

    from audit.adversaries.base import Adversary, Expect
    from audit.mechanism.base import Data, Hyperparameters, Trajectory
    from models.base import Model

MOST_SIMULATIONS = 10_000  # each is a whole training
GC_S_VARIANTS = {  # (noisy simulations, movement accumulated per step)
    "noiseless_per_step": (False, True),
    "noisy_per_step": (True, True),
    "noiseless_final_model": (False, False),
    "noisy_final_model": (True, False),
}


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """GC-S's fields."""

    name: ClassVar[str] = "gc_s"
    gc_s: str = described("GC-S: {noiseless,noisy}_{per_step,final_model}.", default="noiseless_per_step")
    simulations: int = described("GC-S: how many noisy simulations.", default=4)

    def __post_init__(self) -> None:
        known = f"choose one of {', '.join(GC_S_VARIANTS)}"
        require(self.gc_s in GC_S_VARIANTS, f"`gc_s={self.gc_s}` is unknown: {known}")
        message = f"`simulations={self.simulations}`: give 1 to {MOST_SIMULATIONS:,}"
        require(1 <= self.simulations <= MOST_SIMULATIONS, message)

    @property
    def noisy(self) -> bool:
        """Whether simulations draw noise; noiseless ones are all the same, so that one is run."""
        return GC_S_VARIANTS[self.gc_s][0]

    @property
    def per_step(self) -> bool:
        """Whether movement is accumulated step by step."""
        return GC_S_VARIANTS[self.gc_s][1]

    def deciding(self) -> dict[str, Any]:
        """Without the number of simulations where only one is run."""
        found = super().deciding()
        return found if self.noisy else {n: value for n, value in found.items() if n != "simulations"}


@dataclasses.dataclass(frozen=True)
class GcFixed(AdversaryFields):
    """The fixed coordinate's fields."""

    name: ClassVar[str] = "gc_fixed"
    dimension: int = described("gc_fixed: the biased coordinate.", default=0)


class GcR(AdversaryFields):
    """GC-R has no fields."""

    name = "gc_r"


class CotS(AdversaryFields):
    """CotS has no fields."""

    name = "cots"


class Loss(AdversaryFields):
    """L has no fields."""

    name = "loss"


class Knowledge(NamedTuple):
    """The training as an adversary knows it: everything but the noise.

    simulate(hyper, key, theta_0) trains once without canaries. classes: how many labels there are. canaries:
    how many are to be made. expect: what an adversary with several canaries expects of the final model.
    """

    model: "Model"
    classes: int
    hyper: "Hyperparameters"
    data: "Data"
    simulate: "Callable[[Hyperparameters, Array, Array], Trajectory]"
    canaries: int
    expect: "Expect"


F = TypeVar("F", bound=AdversaryFields)


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    label: on figures. description: for a report, a sentence or two. functions: equal for adversaries whose
    craft and score are the same functions, which then share compiled programs. biased: whether it inserts a
    gradient along one coordinate, whose law is known where genuine gradients do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    description: str
    functions: str
    make: "Callable[[Any, Knowledge], Adversary]"
    biased: bool = False


def _gc_s(fields: GcS, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased
    from audit.mechanism import dpsgd

    hyper = known.hyper if fields.noisy else dpsgd.without_privacy(known.hyper)
    simulations = fields.simulations if fields.noisy else 1
    choice = partial(known.simulate, hyper), simulations, fields.per_step
    if known.canaries == 1:
        return biased.simulated_biased_dimension(*choice)
    _require_coordinates(known)
    return biased.simulated_biased_dimensions(*choice, known.canaries, known.expect)


def _gc_r(fields: GcR, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased

    if known.canaries == 1:
        return biased.random_biased_dimension()
    _require_coordinates(known)
    return biased.random_biased_dimensions(known.canaries, known.expect)


def _require_coordinates(known: Knowledge) -> None:
    """Refuses more canaries than the model has coordinates."""
    most = known.model.n_parameters
    require(
        known.canaries <= most, f"`canaries={known.canaries}`: the model has {most} coordinates; give fewer"
    )


def _gc_fixed(fields: GcFixed, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased

    require(known.canaries == 1, f"`canaries={known.canaries}`: one coordinate has one canary; choose gc_r")
    most = known.model.n_parameters - 1
    require(0 <= fields.dimension <= most, f"`dimension={fields.dimension}`: give 0 to {most}")
    return biased.fixed_biased_dimension(fields.dimension)


def _cots(fields: CotS, known: Knowledge) -> "Adversary":
    from audit.adversaries import sphere

    if known.canaries == 1:
        return sphere.random_direction()
    return sphere.random_directions(known.canaries, known.expect)


def _loss(fields: Loss, known: Knowledge) -> "Adversary":
    from audit.adversaries import flipped

    task = known.model.loss, *known.data, known.classes
    if known.canaries == 1:
        return flipped.flipped_label(*task)
    most = len(known.data[1])
    require(known.canaries <= most, f"`canaries={known.canaries}`: there are {most} examples; give fewer")
    return flipped.flipped_labels(*task, known.canaries)


_ROWS = (
    AdversaryRow(
        GcS,
        "GC-S",
        "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
        "gradient of norm C along it. Its score is how far the final model moved along that coordinate.",
        "biased",
        _gc_s,
        biased=True,
    ),
    AdversaryRow(
        GcR,
        "GC-R",
        "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
        "score is how far the final model moved along that coordinate.",
        "biased",
        _gc_r,
        biased=True,
    ),
    AdversaryRow(
        GcFixed,
        "fixed coordinate",
        "Fixed coordinate: inserts a gradient of norm C along a given coordinate of the model. Its "
        "score is how far the final model moved along it.",
        "biased",
        _gc_fixed,
        biased=True,
    ),
    AdversaryRow(
        CotS,
        "CotS",
        "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
        "cosine of that direction and the model's displacement.",
        "sphere",
        _cots,
    ),
    AdversaryRow(
        Loss,
        "L",
        "L: inserts the gradient of a training example with a wrong label. Its score is minus the final "
        "model's loss on that example.",
        "flipped_label",
        _loss,
    ),
)
ADVERSARIES: dict[str, AdversaryRow] = {row.fields.name: row for row in _ROWS}
