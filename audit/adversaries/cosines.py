"""CotS and the one-shot canaries: their fields, words and factories. Importing it starts no JAX."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from audit.adversaries.knowledge import Knowledge
from audit.adversaries.row import AdversaryFields, AdversaryRow
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary


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
class OneShotCanaries(AdversaryFields):
    """The one-shot canaries' fields."""

    name: ClassVar[str] = "one_shot"
    observe: str = described(
        "one_shot: cosines with the final displacement (final) or weights, or the largest over steps (all).",
        default="final",
        choices=("final", "weights", "all"),
    )
    all_in: bool = described(
        "one_shot: insert all canaries of a single run, without coins, as the paper does.",
        default=False,
    )

    def __post_init__(self) -> None:
        is_law_known = not self.all_in or self.observe != "all"
        require(
            is_law_known, "`all_in` needs cosines whose law is known: drop `all_in`, or `observe`"
        )

    @property
    def inserts_all(self) -> bool:
        return self.all_in

    @property
    def sees_every_model(self) -> bool:
        return self.observe == "all"

    @property
    def usual_runs(self) -> int:
        return 1 if self.all_in else super().usual_runs


def _make_cots(fields: CotS, knowledge: Knowledge) -> "Adversary":
    """Makes CotS: gradients along random directions, each scored by its direction's cosine with a vector.

    If the field `cots_score` is "weights", the vector is -theta_T, minus the final weights. Else it is the
    displacement theta_0 - theta_T for a single canary, and expected - theta_T for several. The expected model
    is trained without noise and with half of every canary, since a fair coin decides whether a canary is in.
    """
    from audit.adversaries import directions

    by_displacement = fields.cots_score == "displacement"
    if knowledge.canaries == 1:
        origin = directions.initial_model if by_displacement else directions.zero_model
        return directions.random_direction(origin)
    expect = knowledge.expect if by_displacement else directions.weights  # `weights` expects zeros
    return directions.random_directions(knowledge.canaries, expect)


def _make_one_shot(fields: OneShotCanaries, knowledge: Knowledge) -> "Adversary":
    """Makes the one-shot paper's canaries: gradients along random directions, scored by cosines.

    The field `observe` chooses the cosine: with the final displacement ("final"), with minus the final
    weights ("weights"), or the largest over all steps of those with a step's move ("all").

    Raises InputError for a single canary: the method compares the canaries of a run.
    """
    from audit.adversaries import directions

    canaries = knowledge.canaries
    require(
        canaries > 1, f"`canaries={canaries}`: one_shot compares canaries of a run; give several"
    )
    if fields.observe == "all":
        # The law of a largest cosine is not known. So coins decide which canaries are in.
        return directions.largest_cosines(canaries)

    origin = directions.initial_model
    if fields.observe == "weights":
        origin = directions.zero_model
    adversary = directions.final_cosines(canaries, origin)
    # `final_cosines` calls the law known only for directions that every run draws afresh. An audit of a
    # single run knows it for directions that runs share, too. An audit of several such runs does not use it.
    return adversary._replace(all_in=fields.all_in, law_is_known=True)


COTS = AdversaryRow(
    CotS,
    "CotS",
    "along a random direction",
    "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
    "cosine of that direction and the model's displacement, or its weights where that is chosen.",
    _make_cots,
)
ONE_SHOT = AdversaryRow(
    OneShotCanaries,
    "one-shot",
    "the one-shot paper's random directions",
    "One-shot: inserts gradients of norm C along random directions. A score is the cosine of a direction "
    "and the model's displacement, its weights, or the largest with any step's move, as chosen.",
    _make_one_shot,
)
