"""Random examples ranked among fresh draws: their fields, words and factory. Importing it starts no JAX."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from audit.adversaries.knowledge import Knowledge
from audit.adversaries.row import AdversaryRow, FreshFields
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary

LOSS = "loss"
GRADIENT = "gradient"
MOST_DRAWS = 10_000_000  # float32 counts them exactly


@dataclasses.dataclass(frozen=True)
class RandomExamples(FreshFields):
    """The random examples' fields."""

    name: ClassVar[str] = "examples"
    # Version 1 scored canaries in a batch of their own, which a compiled program may round otherwise than
    # fresh examples.
    version: ClassVar[int] = 2
    fresh: int = described(
        "examples: fresh ones, among which every run's canaries are ranked.",
        default=50_000,
        least=1,
        most=MOST_DRAWS,
    )
    examples_score: str = described(
        "examples: how far the loss fell (black box), or the movement along the gradients (white box).",
        default=LOSS,
        choices=(LOSS, GRADIENT),
    )

    @property
    def usual_runs(self) -> int:
        return 20


def _make_random_examples(fields: RandomExamples, knowledge: Knowledge) -> "Adversary":
    """Makes the adversary whose canaries are random examples, drawn afresh in every run.

    Each canary is ranked among `fields.fresh` further examples that the run draws from the same generator.
    """
    from audit.adversaries import ranked

    scores: dict[str, type[Any]] = {LOSS: ranked.LossDrops, GRADIENT: ranked.GradientProducts}
    features, labels = knowledge.data[:2]
    return ranked.fresh_examples(
        ranked.random_examples(features, labels, knowledge.classes),
        scores[fields.examples_score](knowledge.model.loss),
        knowledge.rehearsal(),
        knowledge.canaries,
        fields.fresh,
    )


EXAMPLES = AdversaryRow(
    RandomExamples,
    "random examples",
    "random examples that every run draws anew",
    "Random examples: every run draws examples of random features and labels of its own, and inserts their "
    "gradients. After the run it draws many more from the same generator. A score is an example's rank among "
    "these: by how far training lowered its loss, or by the model's movement along its gradients.",
    _make_random_examples,
)
