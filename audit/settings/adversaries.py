"""The adversaries that an audit can choose: a row each. Importing it starts no JAX."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from audit.errors import InputError, require
from audit.settings.fields import described, require_fields
from audit.settings.knowledge import Knowledge
from audit.settings.setting import AdversaryFields

if TYPE_CHECKING:
    from jax import Array

    from audit.adversaries.base import Adversary, Expect

GC_S_VARIANTS = {  # (noisy simulations, movement accumulated per step)
    "noiseless_per_step": (False, True),
    "noisy_per_step": (True, True),
    "noiseless_final_model": (False, False),
    "noisy_final_model": (True, False),
}
_RESPONSE = "linear_response"  # a variant beyond the paper's


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """GC-S's fields."""

    name: ClassVar[str] = "gc_s"
    gc_s: str = described(
        "GC-S: {noiseless,noisy}_{per_step,final_model}, or linear_response.",
        default="noiseless_per_step",
        choices=(*GC_S_VARIANTS, _RESPONSE),
    )
    simulations: int = described("GC-S: how many noisy simulations.", default=4, least=1, most=10_000)

    def deciding(self) -> dict[str, Any]:
        """Without the number of simulations where only one is run, as noiseless ones are all the same."""
        found = super().deciding()
        if self.gc_s == _RESPONSE or not GC_S_VARIANTS[self.gc_s][0]:
            found.pop("simulations", None)
        return found


@dataclasses.dataclass(frozen=True)
class GcFixed(AdversaryFields):
    """The fixed coordinate's fields."""

    name: ClassVar[str] = "gc_fixed"
    dimension: int = described("gc_fixed: the biased coordinate.", default=0, least=0)


class GcR(AdversaryFields):
    """GC-R has no fields."""

    name = "gc_r"


@dataclasses.dataclass(frozen=True)
class CotS(AdversaryFields):
    """CotS's fields."""

    name: ClassVar[str] = "cots"
    cots_score: str = described(
        "CotS: cosine with the model's displacement or its final weights.",
        default="displacement",
        choices=("displacement", "weights"),
    )


@dataclasses.dataclass(frozen=True)
class SphereFields(AdversaryFields):
    """The fresh directions' fields."""

    name: ClassVar[str] = "sphere"
    least_runs: ClassVar[int] = 1
    usual_runs: ClassVar[int] = 60
    any_time: ClassVar[bool] = True
    coins: bool = described(
        "sphere: each canary in by a coin, which checks the law of those that are out; else all are in.",
        default=False,
    )


@dataclasses.dataclass(frozen=True)
class OneShotCanaries(AdversaryFields):
    """The one-shot canaries' fields."""

    name: ClassVar[str] = "one_shot"
    observe: str = described(
        "one_shot: cosines with the final displacement (final) or weights, or the largest over steps (all).",
        default="final",
        choices=("final", "weights", "all"),
    )


@dataclasses.dataclass(frozen=True)
class _ByLoss(AdversaryFields):
    loss_score: str = described(
        "loss, poisoned, of several canaries: minus the loss, or its excess over what is expected.",
        default="loss",
        choices=("loss", "excess"),
    )

    def expect(self, known: "Knowledge") -> "Expect":
        """What the losses are compared with."""
        from audit.adversaries import examples

        return known.expect if self.loss_score == "excess" else examples.plain


@dataclasses.dataclass(frozen=True)
class Loss(_ByLoss):
    """L's fields."""

    name: ClassVar[str] = "loss"


@dataclasses.dataclass(frozen=True)
class Poisoned(_ByLoss):
    """Data poisoning's fields."""

    name: ClassVar[str] = "poisoned"
    first_direction: int = described("poisoned: principal directions from this one on.", default=600, least=0)
    end_direction: int = described("poisoned: principal directions before this one.", default=784, least=1)
    poison_scale: float = described(
        "poisoned: distance of a canary from the data's mean.", default=1.0, above=0
    )
    poison_label: int = described("poisoned: every canary's label.", default=5, least=0)
    poison_mean: bool = described("poisoned: add the data's mean to a canary.", default=True)

    def __post_init__(self) -> None:
        require_fields(self)
        known = f"`first_direction={self.first_direction}` and `end_direction={self.end_direction}`"
        fits = self.first_direction < self.end_direction
        require(fits, f"{known}: give a range of directions, counted from 0")


class ClipBkd(AdversaryFields):
    """ClipBKD has no fields."""

    name = "clip_bkd"


@dataclasses.dataclass(frozen=True)
class OwnAdversary(AdversaryFields):
    """An adversary of the caller's own: its function's name, and SHA-256 of what it computes."""

    name: ClassVar[str] = "own"
    label: str
    computes: str


_BLUR = 0.01  # of a score's variance, from the other canaries; beyond it they are left out


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    label: on figures. canary: what is inserted, for --help. description: for a report, a sentence or two.
    functions: equal for adversaries whose craft and score are the same functions, which then share compiled
    programs. biased: whether it inserts a gradient along one coordinate, whose law is known where genuine
    gradients do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    canary: str
    description: str
    functions: str
    make: "Callable[[Any, Knowledge], Adversary]"
    biased: bool = False


def _gc_s(fields: GcS, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased
    from audit.mechanism import dpsgd

    if known.canaries > 1:
        known.require_coordinates()
    if fields.gc_s == _RESPONSE:
        why = known.unresponsive
        require(not why, f"`gc_s={_RESPONSE}`: {why}; choose another")
        if known.canaries == 1:
            return biased.responsive_biased_dimension(known.respond)
        return biased.responsive_biased_dimensions(known.respond, known.canaries, known.expect)
    noisy, per_step = GC_S_VARIANTS[fields.gc_s]
    hyper = known.hyper if noisy else dpsgd.without_privacy(known.hyper)
    choice = partial(known.simulate, hyper), fields.simulations if noisy else 1, per_step
    if known.canaries == 1:
        return biased.simulated_biased_dimension(*choice)
    return biased.simulated_biased_dimensions(*choice, known.canaries, known.expect)


def _gc_r(fields: GcR, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased

    if known.canaries == 1:
        return biased.random_biased_dimension()
    known.require_coordinates()
    return biased.random_biased_dimensions(known.canaries, known.expect)


def _gc_fixed(fields: GcFixed, known: Knowledge) -> "Adversary":
    from audit.adversaries import biased

    require(known.canaries == 1, f"`canaries={known.canaries}`: one coordinate has one canary; choose gc_r")
    most = known.model.n_parameters - 1
    require(0 <= fields.dimension <= most, f"`dimension={fields.dimension}`: give 0 to {most}")
    return biased.fixed_biased_dimension(fields.dimension)


def _cots(fields: CotS, known: Knowledge) -> "Adversary":
    from audit.adversaries import directions

    displacement = fields.cots_score == "displacement"
    if known.canaries == 1:
        return directions.random_direction(directions.itself if displacement else directions.nothing)
    return directions.random_directions(known.canaries, known.expect if displacement else directions.weights)


def _sphere(fields: SphereFields, known: Knowledge) -> "Adversary":
    from audit.adversaries import sphere

    asked, parameters = known.canaries, known.model.n_parameters
    require(
        2 * asked <= parameters, f"`canaries={asked}`: give at most {parameters // 2}, half the parameters"
    )
    sigma = float(known.hyper.noise_multiplier)
    blurred = asked * known.insertions**2 > _BLUR * parameters * known.steps * sigma**2
    require(asked > 1 or not fields.coins, "`coins` are for several canaries: raise `canaries`")
    return sphere.fresh_directions(asked, known.rehearsal(), asked > 1 and blurred, not fields.coins)


def _one_shot(fields: OneShotCanaries, known: Knowledge) -> "Adversary":
    from audit.adversaries import directions

    asked = known.canaries
    require(asked > 1, f"`canaries={asked}`: one_shot compares canaries of a run; give several")
    if fields.observe == "all":
        return directions.largest_cosines(asked)
    origin = directions.itself if fields.observe == "final" else directions.nothing
    return directions.final_cosines(asked, origin)


def _loss(fields: Loss, known: Knowledge) -> "Adversary":
    from audit.adversaries import examples

    task = known.model.loss, known.data[0], known.data[1], known.labels()
    if known.canaries == 1:
        return examples.flipped_label(*task)
    most = len(known.data[1])
    require(known.canaries <= most, f"`canaries={known.canaries}`: there are {most} examples; give fewer")
    return examples.flipped_labels(*task, known.canaries, fields.expect(known))


def _poisoned(fields: Poisoned, known: Knowledge) -> "Adversary":
    from audit.adversaries import examples

    most, label = math.prod(known.inputs().shape), fields.poison_label
    said = f"`end_direction={fields.end_direction}`: the data have {most} directions"
    require(fields.end_direction <= most, f"{said}; give at most {most}")
    require(0 <= label < known.labels(), f"`poison_label={label}`: the labels are 0 to {known.classes - 1}")
    ends = fields.first_direction, fields.end_direction
    tail = examples.Tail(*ends, fields.poison_scale, label, fields.poison_mean)
    task = known.model.loss, known.principal
    return examples.poisoned_examples(*task, tail, known.canaries, fields.expect(known))


def _clip_bkd(fields: ClipBkd, known: Knowledge) -> "Adversary":
    from audit.adversaries import examples

    many = f"`canaries={known.canaries}`: ClipBKD has one canary; choose `adversary=poisoned`"
    require(known.canaries == 1, many)
    known.inputs()
    noiseless = known.hyper._replace(noise_multiplier=0.0)

    def train(key: "Array", theta_0: "Array") -> "Array":
        return known.simulate(noiseless, key, theta_0).theta

    return examples.least_direction(known.model.loss, known.principal, train, known.labels())


_ROWS = (
    AdversaryRow(
        GcS,
        "GC-S",
        "a gradient along the coordinate that moves least",
        "GC-S: simulates training, picks the coordinate of the model that moves least, or leaks most by "
        "linear response, and inserts a gradient of norm C along it. Its score is how far the final model "
        "moved along that coordinate.",
        "biased",
        _gc_s,
        biased=True,
    ),
    AdversaryRow(
        GcR,
        "GC-R",
        "along a random coordinate",
        "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
        "score is how far the final model moved along that coordinate.",
        "biased",
        _gc_r,
        biased=True,
    ),
    AdversaryRow(
        GcFixed,
        "fixed coordinate",
        "along the coordinate --dimension",
        "Fixed coordinate: inserts a gradient of norm C along a given coordinate of the model. Its "
        "score is how far the final model moved along it.",
        "biased",
        _gc_fixed,
        biased=True,
    ),
    AdversaryRow(
        CotS,
        "CotS",
        "along a random direction",
        "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
        "cosine of that direction and the model's displacement, or its weights where that is chosen.",
        "sphere",
        _cots,
    ),
    AdversaryRow(
        SphereFields,
        "sphere",
        "directions that every run draws anew",
        "Fresh directions: every run draws directions on the sphere of its own and inserts a gradient of "
        "norm C along each. A score is the cosine of a direction and how far the model ended from where a "
        "training without noise and canaries ends, off the other directions where canaries are many.",
        "fresh_directions",
        _sphere,
    ),
    AdversaryRow(
        OneShotCanaries,
        "one-shot",
        "the one-shot paper's random directions",
        "One-shot: inserts gradients of norm C along random directions. A score is the cosine of a direction "
        "and the model's displacement, its weights, or the largest with any step's move, as chosen.",
        "one_shot",
        _one_shot,
    ),
    AdversaryRow(
        Loss,
        "L",
        "an example with a wrong label",
        "L: inserts the gradient of a training example with a wrong label. Its score is minus the final "
        "model's loss on that example.",
        "flipped_label",
        _loss,
    ),
    AdversaryRow(
        Poisoned,
        "poisoned data",
        "examples along directions in which the data hardly vary",
        "Poisoned data: inserts the gradients of examples that lie along directions in which the data hardly "
        "vary, all of one label. A score is minus the final model's loss on such an example.",
        "poisoned",
        _poisoned,
    ),
    AdversaryRow(
        ClipBkd,
        "ClipBKD",
        "an example along the least of these",
        "ClipBKD: inserts the gradient of an example along the direction in which the data vary least, with "
        "the label that a model trained without it finds least likely. Its score is minus the final model's "
        "loss on that example.",
        "poisoned",
        _clip_bkd,
    ),
)
ADVERSARIES: dict[str, AdversaryRow] = {row.fields.name: row for row in _ROWS}


def _own(fields: OwnAdversary, known: Knowledge) -> "Adversary":
    raise InputError(f"`adversary={fields.label}` is a caller's own: give it to audit.audit_loss again")


_OWN = AdversaryRow(
    OwnAdversary,
    "own adversary",
    "",
    "An adversary of the caller's own, which is not described here: what it inserts is clipped like anything "
    "else, and its score sees what its own functions see.",
    "own",
    _own,
)


def adversary_row(name: str) -> AdversaryRow:
    """The row of an adversary by its name in a store, a caller's own among them; KeyError for any other."""
    return _OWN if name == OwnAdversary.name else ADVERSARIES[name]
