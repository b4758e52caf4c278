"""L, poisoned data and ClipBKD: their fields, words and factories. Importing it starts no JAX."""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

from audit.adversaries.knowledge import Knowledge
from audit.adversaries.row import AdversaryFields, AdversaryRow
from audit.errors import require
from audit.settings.fields import described, require_fields

if TYPE_CHECKING:
    from jax import Array

    from audit.adversaries.base import Adversary, Expect


@dataclasses.dataclass(frozen=True)
class _LossFields(AdversaryFields):
    """The fields of adversaries whose score is a loss."""

    loss_score: str = described(
        "loss, poisoned, of several canaries: minus the loss, or its excess over what is expected.",
        default="loss",
        choices=("loss", "excess"),
    )

    def expect(self, knowledge: Knowledge) -> "Expect":
        """Returns the function that gives the expected final model, for the field `loss_score`.

        For "excess", a score is an example's loss on the expected model minus its loss on the final model.
        Else a score is minus the final loss, for which no model is expected. The function `plain` then stands
        for that: adversaries recognise it, and never call it.
        """
        from audit.adversaries import examples

        if self.loss_score == "excess":
            return knowledge.expect
        return examples.plain


@dataclasses.dataclass(frozen=True)
class Loss(_LossFields):
    """The fields of L, the loss baseline (hidden-state paper, Section 5.1)."""

    name: ClassVar[str] = "loss"


@dataclasses.dataclass(frozen=True)
class Poisoned(_LossFields):
    """Data poisoning's fields, by default those of the LiDP paper's code, for 784 pixels (Errata L10)."""

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


def _make_loss(fields: Loss, knowledge: Knowledge) -> "Adversary":
    """Makes L: training examples with wrong labels, whose gradients are inserted.

    The score of a single canary is minus its final loss, whatever `loss_score` is.

    Raises InputError for labels that are not classes, and for more canaries than examples.
    """
    from audit.adversaries import examples

    features, labels = knowledge.data[:2]
    classes = knowledge.labels()  # their number; refuses labels that are not classes
    arguments = (knowledge.model.loss, features, labels, classes)
    canaries = knowledge.canaries
    if canaries == 1:
        return examples.flipped_label(*arguments)
    most = len(labels)
    require(canaries <= most, f"`canaries={canaries}`: there are {most} examples; give fewer")
    return examples.flipped_labels(*arguments, canaries, fields.expect(knowledge))


def _make_poisoned(fields: Poisoned, knowledge: Knowledge) -> "Adversary":
    """Makes data poisoning: K examples along directions in which the data hardly vary, as in ClipBKD.

    Each of these canaries is mean + poison_scale * direction, and has the label poison_label. Its direction
    is drawn from the data's principal directions first_direction, ..., end_direction - 1, counted from 0 by
    falling singular value. Without poison_mean, the mean is left out.

    Raises:
      InputError: the data have fewer directions than end_direction, labels that are not classes, or no such
        label; or features are not floats.
    """
    from audit.adversaries import examples

    most = math.prod(knowledge.inputs().shape)  # as many directions as an example has entries
    data_have = f"`end_direction={fields.end_direction}`: the data have {most} directions"
    require(fields.end_direction <= most, f"{data_have}; give at most {most}")
    label = fields.poison_label
    labels_are = f"`poison_label={label}`: the labels are 0 to {knowledge.classes - 1}"
    # `labels` returns the number of classes, and raises where labels are not classes.
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
    """Makes ClipBKD: a single example along the direction in which the data vary least.

    Its label is that with the highest loss on a model trained without noise and without the canary.

    Raises InputError for several canaries, for features that are not floats, and for labels that are not
    classes.
    """
    from audit.adversaries import examples

    canaries = knowledge.canaries
    require(
        canaries == 1, f"`canaries={canaries}`: ClipBKD has one canary; choose `adversary=poisoned`"
    )
    knowledge.inputs()  # called to raise InputError if features are not floats
    noiseless = knowledge.hyper._replace(noise_multiplier=0.0)

    def train(key: "Array", theta_0: "Array") -> "Array":
        return knowledge.simulate(noiseless, key, theta_0).theta

    classes = knowledge.labels()  # their number; refuses labels that are not classes
    return examples.least_direction(knowledge.model.loss, knowledge.principal, train, classes)


LOSS = AdversaryRow(
    Loss,
    "L",
    "an example with a wrong label",
    "L: inserts the gradient of a training example with a wrong label. Its score is minus the final "
    "model's loss on that example.",
    _make_loss,
)
POISONED = AdversaryRow(
    Poisoned,
    "poisoned data",
    "examples along directions in which the data hardly vary",
    "Poisoned data: inserts the gradients of examples that lie along directions in which the data hardly "
    "vary, all of one label. A score is minus the final model's loss on such an example.",
    _make_poisoned,
)
CLIP_BKD = AdversaryRow(
    ClipBkd,
    "ClipBKD",
    "an example along the least of these",
    "ClipBKD: inserts the gradient of an example along the direction in which the data vary least, with "
    "the label that a model trained without it finds least likely. Its score is minus the final model's "
    "loss on that example.",
    _make_clip_bkd,
)
