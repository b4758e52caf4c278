"""The catalogue of adversaries. Importing it starts no JAX."""

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
    """The fields of a custom adversary.

    Attributes:
      label: the name of its function.
      computes: the SHA-256 of its computations, which identifies it in the store.
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
        # The hash does not show whether there is an observer.
        return (
            "The adversary sees the final model, and the model after every step if its author gave it an "
            "observer; this page does not know."
        )

    def make(self, knowledge: Knowledge) -> Adversary:
        raise InputError(
            f"`adversary={self.label}` is a caller's own: give it to audit.audit_loss again"
        )
