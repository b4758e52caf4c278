"""An adversary as people and programs know it: fields, words, factory. Importing it starts no JAX."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from audit.settings import fields
from audit.settings.fields import deciding

if TYPE_CHECKING:
    from audit.adversaries.base import Adversary
    from audit.adversaries.knowledge import Knowledge


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary's own fields.

    Attributes:
      name: a key of `audit.settings.adversaries.ADVERSARIES`.
      group: the group of its flags in --help.
      least_runs: the fewest runs that it can be audited with.
      usual_runs: the number of runs where none is given.
      any_time: whether what is proven holds whenever one stops adding runs.
    """

    name: ClassVar[str]
    group: ClassVar[str] = fields.ADVERSARY
    least_runs: ClassVar[int] = 2  # a run in each world
    usual_runs: ClassVar[int] = 5000
    any_time: ClassVar[bool] = False

    @property
    def inserts_all(self) -> bool:
        """Returns whether every canary is in in every run, without coins."""
        return False

    def deciding(self) -> dict[str, Any]:
        """Returns the fields that decide scores, without those at their defaults."""
        return deciding(self)


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    Attributes:
      fields: the type of its own fields.
      label: its name on figures.
      canary: what it inserts, for --help.
      description: a sentence or two for a report.
      functions: equal for adversaries whose craft and score are the same functions, which then share
        compiled programs.
      make: its fields and what it knows -> the adversary.
      biased: whether it inserts a gradient along one coordinate, whose law is known where genuine gradients
        do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    canary: str
    description: str
    functions: str
    make: "Callable[[Any, Knowledge], Adversary]"
    biased: bool = False
