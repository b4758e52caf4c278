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


class GcSVariant(NamedTuple):
    """How GC-S finds the coordinate that moves least.

    Attributes:
      noisy: whether its simulations have the noise of the training run, or neither noise nor clipping.
      per_step: whether it adds up the movement of each step, or looks at the final model alone.
    """

    noisy: bool
    per_step: bool


GC_S_VARIANTS = {
    "noiseless_per_step": GcSVariant(noisy=False, per_step=True),
    "noisy_per_step": GcSVariant(noisy=True, per_step=True),
    "noiseless_final_model": GcSVariant(noisy=False, per_step=False),
    "noisy_final_model": GcSVariant(noisy=True, per_step=False),
}
_LINEAR_RESPONSE = "linear_response"  # a variant beyond the paper's, which simulates nothing

# Random directions are only nearly orthogonal: where the other canaries add more than this share to a score's
# variance, they are left out of the score.
_MOST_INTERFERENCE = 0.01


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """GC-S's fields."""

    name: ClassVar[str] = "gc_s"
    gc_s: str = described(
        "GC-S: {noiseless,noisy}_{per_step,final_model}, or linear_response.",
        default="noiseless_per_step",
        choices=(*GC_S_VARIANTS, _LINEAR_RESPONSE),
    )
    simulations: int = described(
        "GC-S: how many noisy simulations.", default=4, least=1, most=10_000
    )

    def deciding(self) -> dict[str, Any]:
        """Returns the fields that decide scores, without the number of simulations where one is enough.

        Noiseless simulations are all the same, and linear response takes none.
        """
        identity = super().deciding()
        is_noisy = self.gc_s != _LINEAR_RESPONSE and GC_S_VARIANTS[self.gc_s].noisy
        if not is_noisy:
            identity.pop("simulations", None)
        return identity


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
class _LossFields(AdversaryFields):
    """The fields of adversaries whose score is a loss."""

    loss_score: str = described(
        "loss, poisoned, of several canaries: minus the loss, or its excess over what is expected.",
        default="loss",
        choices=("loss", "excess"),
    )

    def expect(self, knowledge: Knowledge) -> "Expect":
        """Returns the model whose losses the final model's losses are compared with."""
        from audit.adversaries import examples

        if self.loss_score == "excess":
            return knowledge.expect
        return examples.plain


@dataclasses.dataclass(frozen=True)
class Loss(_LossFields):
    """L's fields."""

    name: ClassVar[str] = "loss"


@dataclasses.dataclass(frozen=True)
class Poisoned(_LossFields):
    """Data poisoning's fields."""

    name: ClassVar[str] = "poisoned"
    first_direction: int = described(
        "poisoned: principal directions from this one on.", default=600, least=0
    )
    end_direction: int = described(
        "poisoned: principal directions before this one.", default=784, least=1
    )
    poison_scale: float = described(
        "poisoned: distance of a canary from the data's mean.", default=1.0, above=0
    )
    poison_label: int = described("poisoned: every canary's label.", default=5, least=0)
    poison_mean: bool = described("poisoned: add the data's mean to a canary.", default=True)

    def __post_init__(self) -> None:
        require_fields(self)
        ends = f"`first_direction={self.first_direction}` and `end_direction={self.end_direction}`"
        is_range = self.first_direction < self.end_direction
        require(is_range, f"{ends}: give a range of directions, counted from 0")


class ClipBkd(AdversaryFields):
    """ClipBKD has no fields."""

    name = "clip_bkd"


@dataclasses.dataclass(frozen=True)
class OwnAdversary(AdversaryFields):
    """An adversary of the caller's own.

    Attributes:
      label: the name of its function.
      computes: the SHA-256 of what it computes.
    """

    name: ClassVar[str] = "own"
    label: str
    computes: str


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    Attributes:
      fields: the type of its own fields.
      label: its name on figures.
      canary: what it inserts, for --help.
      description: a sentence or two for a report.
      functions: equal for adversaries whose craft and score are the same functions, which then share
        compiled programs.
      make: its fields and what it knows -> the adversary.
      biased: whether it inserts a gradient along one coordinate, whose law is known where genuine gradients
        do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    canary: str
    description: str
    functions: str
    make: "Callable[[Any, Knowledge], Adversary]"
    biased: bool = False


def _make_gc_s(fields: GcS, knowledge: Knowledge) -> "Adversary":
    """Makes GC-S: a gradient along the coordinate that moves least, or leaks most by linear response."""
    from audit.adversaries import biased
    from audit.mechanism import dpsgd

    is_alone = knowledge.canaries == 1
    if not is_alone:
        knowledge.require_coordinates()

    if fields.gc_s == _LINEAR_RESPONSE:
        reason = knowledge.unresponsive
        require(not reason, f"`gc_s={_LINEAR_RESPONSE}`: {reason}; choose another")
        if is_alone:
            return biased.responsive_biased_dimension(knowledge.respond)
        return biased.responsive_biased_dimensions(
            knowledge.respond, knowledge.canaries, knowledge.expect
        )

    variant = GC_S_VARIANTS[fields.gc_s]
    if variant.noisy:
        hyper = knowledge.hyper
        simulations = fields.simulations
    else:
        hyper = dpsgd.without_privacy(knowledge.hyper)
        simulations = 1  # all are the same
    simulate = partial(knowledge.simulate, hyper)
    if is_alone:
        return biased.simulated_biased_dimension(simulate, simulations, variant.per_step)
    return biased.simulated_biased_dimensions(
        simulate, simulations, variant.per_step, knowledge.canaries, knowledge.expect
    )


def _make_gc_r(fields: GcR, knowledge: Knowledge) -> "Adversary":
    """Makes GC-R: a gradient along a random coordinate."""
    from audit.adversaries import biased

    if knowledge.canaries == 1:
        return biased.random_biased_dimension()
    knowledge.require_coordinates()
    return biased.random_biased_dimensions(knowledge.canaries, knowledge.expect)


def _make_gc_fixed(fields: GcFixed, knowledge: Knowledge) -> "Adversary":
    """Makes the adversary that inserts a gradient along a given coordinate."""
    from audit.adversaries import biased

    canaries = knowledge.canaries
    require(canaries == 1, f"`canaries={canaries}`: one coordinate has one canary; choose gc_r")
    most = knowledge.model.n_parameters - 1
    require(0 <= fields.dimension <= most, f"`dimension={fields.dimension}`: give 0 to {most}")
    return biased.fixed_biased_dimension(fields.dimension)


def _make_cots(fields: CotS, knowledge: Knowledge) -> "Adversary":
    """Makes CotS: a gradient along a random direction, scored by a cosine."""
    from audit.adversaries import directions

    by_displacement = fields.cots_score == "displacement"
    if knowledge.canaries == 1:
        origin = directions.itself if by_displacement else directions.nothing
        return directions.random_direction(origin)
    expect = knowledge.expect if by_displacement else directions.weights
    return directions.random_directions(knowledge.canaries, expect)


def _make_sphere(fields: SphereFields, knowledge: Knowledge) -> "Adversary":
    """Makes the adversary whose directions every run draws afresh."""
    from audit.adversaries import sphere

    canaries = knowledge.canaries
    parameters = knowledge.model.n_parameters
    most = parameters // 2
    require(
        2 * canaries <= parameters,
        f"`canaries={canaries}`: give at most {most}, half the parameters",
    )
    is_several = canaries > 1
    require(is_several or not fields.coins, "`coins` are for several canaries: raise `canaries`")

    # In units of C, and with a learning rate of 1: along a direction, the other canaries have the variance
    # canaries * insertions^2 / parameters, and the noise has that of its steps.
    sigma = float(knowledge.hyper.noise_multiplier)
    interference = canaries * knowledge.insertions**2
    interferes = interference > _MOST_INTERFERENCE * parameters * knowledge.steps * sigma**2
    return sphere.fresh_directions(
        canaries, knowledge.rehearsal(), is_several and interferes, not fields.coins
    )


def _make_one_shot(fields: OneShotCanaries, knowledge: Knowledge) -> "Adversary":
    """Makes the one-shot paper's canaries: gradients along random directions."""
    from audit.adversaries import directions

    canaries = knowledge.canaries
    require(
        canaries > 1, f"`canaries={canaries}`: one_shot compares canaries of a run; give several"
    )
    if fields.observe == "all":
        return directions.largest_cosines(canaries)
    origin = directions.itself if fields.observe == "final" else directions.nothing
    return directions.final_cosines(canaries, origin)


def _make_loss(fields: Loss, knowledge: Knowledge) -> "Adversary":
    """Makes L: a training example with a wrong label."""
    from audit.adversaries import examples

    features, labels = knowledge.data[:2]
    task = (knowledge.model.loss, features, labels, knowledge.labels())
    canaries = knowledge.canaries
    if canaries == 1:
        return examples.flipped_label(*task)
    most = len(labels)
    require(canaries <= most, f"`canaries={canaries}`: there are {most} examples; give fewer")
    return examples.flipped_labels(*task, canaries, fields.expect(knowledge))


def _make_poisoned(fields: Poisoned, knowledge: Knowledge) -> "Adversary":
    """Makes data poisoning: examples along directions in which the data hardly vary (ClipBKD, lifted).

    Each of the K canaries is mean + poison_scale * direction, all with the label poison_label. Its direction
    is drawn from the data's principal directions first_direction, ..., end_direction - 1, counted from 0 by
    falling singular value; without poison_mean, the mean is left out.

    Raises:
      InputError: the data have fewer directions than end_direction, or no such label.
    """
    from audit.adversaries import examples

    most = math.prod(knowledge.inputs().shape)
    data_have = f"`end_direction={fields.end_direction}`: the data have {most} directions"
    require(fields.end_direction <= most, f"{data_have}; give at most {most}")
    label = fields.poison_label
    labels_are = f"`poison_label={label}`: the labels are 0 to {knowledge.classes - 1}"
    require(0 <= label < knowledge.labels(), labels_are)

    tail = examples.Tail(
        fields.first_direction, fields.end_direction, fields.poison_scale, label, fields.poison_mean
    )
    return examples.poisoned_examples(
        knowledge.model.loss,
        knowledge.principal,
        tail,
        knowledge.canaries,
        fields.expect(knowledge),
    )


def _make_clip_bkd(fields: ClipBkd, knowledge: Knowledge) -> "Adversary":
    """Makes ClipBKD: an example along the direction in which the data vary least."""
    from audit.adversaries import examples

    canaries = knowledge.canaries
    require(
        canaries == 1, f"`canaries={canaries}`: ClipBKD has one canary; choose `adversary=poisoned`"
    )
    knowledge.inputs()  # raises InputError where they are no floats
    noiseless = knowledge.hyper._replace(noise_multiplier=0.0)

    def train(key: "Array", theta_0: "Array") -> "Array":
        return knowledge.simulate(noiseless, key, theta_0).theta

    return examples.least_direction(
        knowledge.model.loss, knowledge.principal, train, knowledge.labels()
    )


_ROWS = (
    AdversaryRow(
        GcS,
        "GC-S",
        "a gradient along the coordinate that moves least",
        "GC-S: simulates training, picks the coordinate of the model that moves least, or leaks most by "
        "linear response, and inserts a gradient of norm C along it. Its score is how far the final model "
        "moved along that coordinate.",
        "biased",
        _make_gc_s,
        biased=True,
    ),
    AdversaryRow(
        GcR,
        "GC-R",
        "along a random coordinate",
        "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
        "score is how far the final model moved along that coordinate.",
        "biased",
        _make_gc_r,
        biased=True,
    ),
    AdversaryRow(
        GcFixed,
        "fixed coordinate",
        "along the coordinate --dimension",
        "Fixed coordinate: inserts a gradient of norm C along a given coordinate of the model. Its "
        "score is how far the final model moved along it.",
        "biased",
        _make_gc_fixed,
        biased=True,
    ),
    AdversaryRow(
        CotS,
        "CotS",
        "along a random direction",
        "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
        "cosine of that direction and the model's displacement, or its weights where that is chosen.",
        "sphere",
        _make_cots,
    ),
    AdversaryRow(
        SphereFields,
        "sphere",
        "directions that every run draws anew",
        "Fresh directions: every run draws directions on the sphere of its own and inserts a gradient of "
        "norm C along each. A score is the cosine of a direction and how far the model ended from where a "
        "training run without noise and canaries ends, off the other directions where canaries are many.",
        "fresh_directions",
        _make_sphere,
    ),
    AdversaryRow(
        OneShotCanaries,
        "one-shot",
        "the one-shot paper's random directions",
        "One-shot: inserts gradients of norm C along random directions. A score is the cosine of a direction "
        "and the model's displacement, its weights, or the largest with any step's move, as chosen.",
        "one_shot",
        _make_one_shot,
    ),
    AdversaryRow(
        Loss,
        "L",
        "an example with a wrong label",
        "L: inserts the gradient of a training example with a wrong label. Its score is minus the final "
        "model's loss on that example.",
        "flipped_label",
        _make_loss,
    ),
    AdversaryRow(
        Poisoned,
        "poisoned data",
        "examples along directions in which the data hardly vary",
        "Poisoned data: inserts the gradients of examples that lie along directions in which the data hardly "
        "vary, all of one label. A score is minus the final model's loss on such an example.",
        "poisoned",
        _make_poisoned,
    ),
    AdversaryRow(
        ClipBkd,
        "ClipBKD",
        "an example along the least of these",
        "ClipBKD: inserts the gradient of an example along the direction in which the data vary least, with "
        "the label that a model trained without it finds least likely. Its score is minus the final model's "
        "loss on that example.",
        "poisoned",
        _make_clip_bkd,
    ),
)
ADVERSARIES: dict[str, AdversaryRow] = {row.fields.name: row for row in _ROWS}


def _refuse_own(fields: OwnAdversary, knowledge: Knowledge) -> "Adversary":
    """Raises InputError: a caller's own functions are in no store."""
    raise InputError(
        f"`adversary={fields.label}` is a caller's own: give it to audit.audit_loss again"
    )


_OWN = AdversaryRow(
    OwnAdversary,
    "own adversary",
    "",
    "An adversary of the caller's own, which is not described here: what it inserts is clipped like anything "
    "else, and its score sees what its own functions see.",
    "own",
    _refuse_own,
)


def adversary_row(name: str) -> AdversaryRow:
    """Returns the row of an adversary by its name in a store, a caller's own among them.

    Raises:
      KeyError: there is no such adversary.
    """
    if name == OwnAdversary.name:
        return _OWN
    return ADVERSARIES[name]
