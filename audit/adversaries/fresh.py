"""Fresh directions: their fields, words and factory. Importing it starts no JAX."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from audit.adversaries.knowledge import Knowledge
from audit.adversaries.row import AdversaryRow, FreshFields
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary


# Random directions are only nearly orthogonal: where the other canaries add more than this share to a score's
# variance, they are left out of the score.
_MOST_INTERFERENCE = 0.01


@dataclasses.dataclass(frozen=True)
class SphereFields(FreshFields):
    """The fields of fresh directions."""

    name: ClassVar[str] = "sphere"
    coins: bool = described(
        "sphere: each canary in by a coin, which checks the law of those that are out; else all are in.",
        default=False,
    )

    @property
    def inserts_all(self) -> bool:
        return not self.coins

    @property
    def usual_runs(self) -> int:
        return 60


def _make_sphere(fields: SphereFields, knowledge: Knowledge) -> "Adversary":
    """Makes the adversary of gradients of norm C along random directions, which every run draws afresh.

    A score leaves out the other canaries' directions where these would add noticeably to its variance.

    Raises InputError for coins (each canary in or out at random) of a single canary, and for more canaries
    than half the parameters: too few dimensions would remain without the other canaries' directions.
    """
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

    # Along a direction, in units of the learning rate times C, the noise has the variance steps * sigma^2.
    # The other canaries are only nearly orthogonal to it, and add canaries * insertions^2 / parameters. They
    # interfere if that is more than a share of the noise; both sides below are multiplied by `parameters`.
    sigma = float(knowledge.hyper.noise_multiplier)
    added = canaries * knowledge.insertions**2
    interferes = added > _MOST_INTERFERENCE * parameters * knowledge.steps * sigma**2
    return sphere.fresh_directions(
        canaries,
        knowledge.rehearsal(),  # the final model without noise, from which scores measure the movement
        leave_one_out=is_several and interferes,
        all_in=not fields.coins,
    )


SPHERE = AdversaryRow(
    SphereFields,
    "sphere",
    "directions that every run draws anew",
    "Fresh directions: every run draws directions on the sphere of its own and inserts a gradient of "
    "norm C along each. A score is the cosine of a direction and how far the model ended from where a "
    "training run without noise and canaries ends, off the other directions where canaries are many.",
    _make_sphere,
)
