"""An adversary as people and programs know it: fields, words, factory. Importing it starts no JAX."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from audit.settings import fields
from audit.settings.fields import deciding

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary
    from audit.adversaries.knowledge import Knowledge


def describe_view(sees_every_model: bool) -> str:
    """Returns a sentence on whether an adversary sees all models of a training run or the last alone."""
    if sees_every_model:
        return "No hidden state: the adversary sees the model after every step."
    return "Hidden state: the adversary sees the final model only, no model in between."


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary's own fields.

    Attributes:
      name: a key of `audit.settings.adversaries.ADVERSARIES`.
      group: the group of its flags in --help.
      version: what stored scores of it are; raised where they have to be trained again.
    """

    name: ClassVar[str]
    group: ClassVar[str] = fields.ADVERSARY
    version: ClassVar[int] = 1

    @property
    def any_time(self) -> bool:
        """Returns whether every run draws its own canaries, so that bounds hold wherever the audit stops."""
        return False

    @property
    def inserts_all(self) -> bool:
        """Returns whether every canary is in in every run, without coins."""
        return self.any_time

    @property
    def least_runs(self) -> int:
        """Returns the fewest runs of an audit: 2, so that there is a run with the canary and one without.

        It is 1 if every run draws its own canaries (`any_time`), or if all canaries are in (`inserts_all`):
        bounds then need no run of the world without canaries.
        """
        return 1 if self.any_time or self.inserts_all else 2

    @property
    def sees_every_model(self) -> bool:
        """Returns whether the adversary sees the model after every step, not only after the last."""
        return False

    @property
    def view(self) -> str:
        """Returns a sentence on what the adversary sees of the training, for a report."""
        return describe_view(self.sees_every_model)

    @property
    def usual_runs(self) -> int:
        """Returns the number of runs where none is given."""
        return 5000

    def deciding(self) -> dict[str, Any]:
        """Returns the fields that decide scores, without those at their defaults, and a version above 1."""
        decisive = deciding(self)
        if self.version > 1:
            decisive["version"] = self.version
        return decisive


class FreshFields(AdversaryFields):
    """The fields of an adversary whose canaries every run draws afresh."""

    @property
    def any_time(self) -> bool:
        return True


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    Attributes:
      fields: the type of its own fields.
      label: its name on figures.
      canary: what it inserts, for --help.
      description: a sentence or two for a report.
      make: (its fields, what it knows) -> the adversary.
      biased: whether it inserts a gradient along a single coordinate; the law of its scores is then known if
        genuine gradients do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    canary: str
    description: str
    make: "Callable[[Any, Knowledge], Adversary]"
    biased: bool = False
