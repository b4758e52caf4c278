"""The adversaries that an audit can choose: a row each. Importing it starts no JAX."""

import dataclasses
from typing import ClassVar

from audit.adversaries import biased, directions, examples, ranked, sphere
from audit.adversaries.base import Adversary, AdversaryFields, AdversaryRow, Knowledge
from audit.errors import InputError

_ROWS = (
    biased.GC_S,
    biased.GC_R,
    directions.COTS,
    sphere.SPHERE,
    directions.ONE_SHOT,
    ranked.EXAMPLES,
    examples.LOSS,
    examples.POISONED,
    examples.CLIP_BKD,
)
ADVERSARIES: dict[str, AdversaryRow] = {row.fields.name: row for row in _ROWS}


@dataclasses.dataclass(frozen=True)
class OwnAdversary(AdversaryFields):
    """The fields of an adversary that the caller has written.

    Attributes:
      label: the name of the caller's function.
      computes: the SHA-256 of what the adversary computes, by which the store tells it from others.
    """

    name: ClassVar[str] = "own"
    label: str
    computes: str

    @property
    def view(self) -> str:
        # Of its functions the setting has a hash alone, which does not tell whether one is an observer. An
        # audit records it beside its conclusion.
        return (
            "The adversary sees the final model, and the model after every step if its author gave it an "
            "observer; this page does not know."
        )


def _refuse_own(fields: OwnAdversary, knowledge: Knowledge) -> Adversary:
    """Raises InputError: a caller's own adversary can't be made from its fields, which lack its functions."""
    raise InputError(
        f"`adversary={fields.label}` is a caller's own: give it to audit.audit_loss again"
    )


_OWN = AdversaryRow(
    OwnAdversary,
    "own adversary",
    "",
    "An adversary of the caller's own, which is not described here: what it inserts is clipped like anything "
    "else, and its score sees what its own functions see.",
    _refuse_own,
)


def adversary_row(name: str) -> AdversaryRow:
    """Returns the row of an adversary by its name; "own" is the name of all adversaries of callers.

    Raises:
      KeyError: there is no such adversary.
    """
    if name == OwnAdversary.name:
        return _OWN
    return ADVERSARIES[name]
