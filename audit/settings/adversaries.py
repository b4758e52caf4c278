"""The adversaries that an audit can choose: one line each. Importing it starts no JAX."""

import dataclasses
from typing import ClassVar

from audit.adversaries.base import Adversary, AdversaryFields, Knowledge
from audit.adversaries.biased import GcR, GcS
from audit.adversaries.directions import CotS, OneShotCanaries
from audit.adversaries.examples import ClipBkd, Loss, Poisoned
from audit.adversaries.ranked import RandomExamples
from audit.adversaries.sphere import SphereFields
from audit.errors import InputError

ADVERSARIES: dict[str, type[AdversaryFields]] = {
    GcS.name: GcS,
    GcR.name: GcR,
    CotS.name: CotS,
    SphereFields.name: SphereFields,
    OneShotCanaries.name: OneShotCanaries,
    RandomExamples.name: RandomExamples,
    Loss.name: Loss,
    Poisoned.name: Poisoned,
    ClipBkd.name: ClipBkd,
}


@dataclasses.dataclass(frozen=True)
class OwnAdversary(AdversaryFields):
    """The fields of an adversary that the caller has written.

    Attributes:
      label: the name of the caller's function.
      computes: the SHA-256 of what the adversary computes, by which the store tells it from others.
    """

    name: ClassVar[str] = "own"
    description: ClassVar[str] = (
        "An adversary of the caller's own, which is not described here: what it inserts is clipped like "
        "anything else, and its score sees what its own functions see."
    )
    label: str
    computes: str

    @property
    def view(self) -> str:
        # The setting has only a hash of its functions, which does not tell whether one is an observer. An
        # audit records it beside its conclusion.
        return (
            "The adversary sees the final model, and the model after every step if its author gave it an "
            "observer; this page does not know."
        )

    def make(self, knowledge: Knowledge) -> Adversary:
        raise InputError(
            f"`adversary={self.label}` is a caller's own: give it to audit.audit_loss again"
        )
