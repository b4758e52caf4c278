"""GC-S, GC-R and the fixed coordinate: their fields, words and factories. Importing it starts no JAX."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from audit.adversaries.knowledge import Knowledge
from audit.adversaries.row import AdversaryFields, AdversaryRow
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary


class GcSVariant(NamedTuple):
    """How GC-S finds the coordinate that moves least.

    Attributes:
      noisy: if True, simulations have the training run's noise and clipping; if False, neither.
      per_step: if True, it adds up the movement of each step; if False, it looks at the final model alone.
    """

    noisy: bool
    per_step: bool


GC_S_VARIANTS = {
    "noiseless_per_step": GcSVariant(noisy=False, per_step=True),
    "noisy_per_step": GcSVariant(noisy=True, per_step=True),
    "noiseless_final_model": GcSVariant(noisy=False, per_step=False),
    "noisy_final_model": GcSVariant(noisy=True, per_step=False),
}
_MOST_RANKED = 2**24  # float32, in which ranks are counted, is exact up to here


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """The fields of GC-S, the simulated biased dimension (hidden-state paper, Algorithm 3)."""

    name: ClassVar[str] = "gc_s"
    gc_s: str = described(
        "GC-S: {noiseless,noisy}_{per_step,final_model}.",
        default="noiseless_per_step",
        choices=tuple(GC_S_VARIANTS),
    )
    simulations: int = described(
        "GC-S: how many noisy simulations.", default=4, least=1, most=10_000
    )

    def deciding(self) -> dict[str, Any]:
        """Returns the fields on which scores depend, by name, without those at their defaults.

        `simulations`, the number of simulated runs, is left out unless they are noisy. Noiseless runs are all
        the same, so that there is a single one whatever the field says.
        """
        identity = super().deciding()
        if not GC_S_VARIANTS[self.gc_s].noisy:
            identity.pop("simulations", None)
        return identity


@dataclasses.dataclass(frozen=True)
class GcFixed(AdversaryFields):
    """The fixed coordinate's fields."""

    name: ClassVar[str] = "gc_fixed"
    dimension: int = described("gc_fixed: the biased coordinate.", default=0, least=0)


@dataclasses.dataclass(frozen=True)
class GcR(AdversaryFields):
    """The fields of GC-R, the random biased dimension (hidden-state paper, Algorithm 2)."""

    name: ClassVar[str] = "gc_r"
    afresh: bool = described(
        "gc_r: every run draws coordinates of its own, all in, and ranks them among all others.",
        default=False,
    )

    @property
    def any_time(self) -> bool:
        """Whether the audit may stop at any run: the bound of coordinates drawn afresh holds then."""
        return self.afresh

    @property
    def usual_runs(self) -> int:
        """Returns the number of runs where none is given; for fresh coordinates, as for fresh directions."""
        return 60 if self.afresh else super().usual_runs


def _make_gc_s(fields: GcS, knowledge: Knowledge) -> "Adversary":
    """Makes GC-S: gradients of norm C along the coordinates that simulated training moves least.

    Simulated runs are trained without canaries: with the noise and clipping of the real training, or with
    neither. Raises InputError for more canaries than coordinates.
    """
    from audit.adversaries import biased
    from audit.mechanism import dpsgd

    knowledge.require_coordinates()
    variant = GC_S_VARIANTS[fields.gc_s]
    if variant.noisy:
        hyper = knowledge.hyper
        simulations = fields.simulations
    else:
        hyper = dpsgd.without_privacy(knowledge.hyper)
        simulations = 1  # without noise, all are the same
    simulate = partial(knowledge.simulate, hyper)
    return biased.simulated_biased_dimension(
        simulate,
        simulations,
        per_step=variant.per_step,
        canaries=knowledge.canaries,
        expect=knowledge.expect_of_several(),
    )


def _make_gc_r(fields: GcR, knowledge: Knowledge) -> "Adversary":
    """Makes GC-R: gradients of norm C along random coordinates, the same in all runs or drawn afresh in each.

    Raises InputError for more canaries than coordinates.
    """
    knowledge.require_coordinates()
    if fields.afresh:
        return _make_fresh_coordinates(knowledge)
    from audit.adversaries import biased

    return biased.random_biased_dimension(knowledge.canaries, knowledge.expect_of_several())


def _make_fresh_coordinates(knowledge: Knowledge) -> "Adversary":
    """Makes the GC-R in which every run draws its own coordinates, each ranked among those without a canary.

    Raises InputError for canaries at more than half of the coordinates, so that too few are left to rank them
    among, and for more coordinates than ranks can count.
    """
    from audit.adversaries import ranked

    canaries = knowledge.canaries
    parameters = knowledge.model.n_parameters
    most = parameters // 2
    require(
        2 * canaries <= parameters,
        f"`canaries={canaries}`: give at most {most}, half the parameters, to be ranked among others",
    )
    others = parameters - canaries
    require(
        others <= _MOST_RANKED,
        f"`afresh` ranks among at most {_MOST_RANKED:,} other coordinates, not {others:,}: drop it",
    )
    # Movements are measured from the final model of training without noise and canaries.
    return ranked.fresh_coordinates(canaries, parameters, knowledge.rehearsal())


def _make_gc_fixed(fields: GcFixed, knowledge: Knowledge) -> "Adversary":
    """Makes the adversary that inserts a gradient of norm C along the coordinate `fields.dimension`.

    Raises InputError for several canaries, and for a coordinate that the model does not have.
    """
    from audit.adversaries import biased

    canaries = knowledge.canaries
    require(canaries == 1, f"`canaries={canaries}`: one coordinate has one canary; choose gc_r")
    most = knowledge.model.n_parameters - 1
    require(0 <= fields.dimension <= most, f"`dimension={fields.dimension}`: give 0 to {most}")
    return biased.fixed_biased_dimension(fields.dimension)


GC_S = AdversaryRow(
    GcS,
    "GC-S",
    "a gradient along the coordinate that moves least",
    "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
    "gradient of norm C along it. Its score is how far the final model moved along that coordinate.",
    _make_gc_s,
    biased=True,
)
GC_R = AdversaryRow(
    GcR,
    "GC-R",
    "along a random coordinate",
    "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
    "score is how far the final model moved along that coordinate; where every run draws its own, the rank "
    "of that among all other coordinates.",
    _make_gc_r,
    biased=True,
)
GC_FIXED = AdversaryRow(
    GcFixed,
    "fixed coordinate",
    "along the coordinate --dimension",
    "Fixed coordinate: inserts a gradient of norm C along a given coordinate of the model. Its "
    "score is how far the final model moved along it.",
    _make_gc_fixed,
    biased=True,
)
