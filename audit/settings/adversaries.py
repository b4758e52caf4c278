"""The catalogue of adversaries, importable without JAX."""

import dataclasses
from typing import ClassVar

from audit.adversaries.base import Adversary, AdversaryFields, Knowledge
from audit.adversaries.biased import GcR, GcS
from audit.adversaries.directions import CotS, OneShotCanaries
from audit.adversaries.examples import ClipBkd, Loss, Poisoned
from audit.adversaries.ranked import RandomExamples
from audit.adversaries.sphere import SphereFields
from audit.errors import InputError

ADVERSARIES: dict[str, type[AdversaryFields]] = {}
for _kind in (
    GcS,
    GcR,
    CotS,
    SphereFields,
    OneShotCanaries,
    RandomExamples,
    Loss,
    Poisoned,
    ClipBkd,
):
    ADVERSARIES[_kind.name] = _kind


@dataclasses.dataclass(frozen=True)
class OwnAdversary(AdversaryFields):
    """The fields of a custom adversary.

    Attributes:
      label: the name of the function that made it.
      computes: the SHA-256 of its compiled functions, which identifies it in the store.
    """

    name: ClassVar[str] = "own"
    description: ClassVar[str] = (
        "A custom adversary, which is not described here. Its canaries are clipped like all other gradients. "
        "Its scores depend only on the models that its functions receive."
    )
    label: str
    computes: str

    @property
    def view(self) -> str:
        return (
            "The adversary sees the final model. If it has an observer (not recorded here), it also sees "
            "the model after every step."
        )

    def make(self, knowledge: Knowledge) -> Adversary:
        raise InputError(
            f"`adversary={self.label}` is a custom adversary: pass it to audit.audit_loss again"
        )
