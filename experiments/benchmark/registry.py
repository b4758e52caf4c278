"""The estimators of the benchmark, by name; each is a record in the file of its kind."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from audit.errors import require
from audit.version import __version__
from experiments.benchmark import ours, peers, published
from experiments.benchmark.contract import Estimator

_RECORDS = (*ours.ESTIMATORS, *peers.ESTIMATORS, *published.ESTIMATORS)
ESTIMATORS = {record.name: record for record in _RECORDS}
assert len(ESTIMATORS) == len(_RECORDS), "two estimators have the same name"


def is_installed(estimator: Estimator) -> bool:
    """Returns whether the estimator needs no package, or Python finds it; imports nothing."""
    if not estimator.module:
        return True
    return importlib.util.find_spec(estimator.module) is not None


def find_version(estimator: Estimator) -> str:
    """Returns the version of the estimator's package, or of this project where it needs no package."""
    if not estimator.package:
        return __version__
    return importlib.metadata.version(estimator.package)


def choose_names(flag: str, parts: list[str] | None, choices: Iterable[str]) -> list[str]:
    """Returns the names that a flag's value chooses, in the order of `choices`.

    Args:
      flag: The flag's name, for messages.
      parts: The flag's value: a whole name chooses that name alone, any other text all names that contain it.
        None chooses all names.
      choices: All names.

    Raises:
      InputError: There are no parts, or a part is in no name.
    """
    names = list(choices)
    if parts is None:
        return names
    require(parts, f"--{flag} is empty: give parts of names, comma-separated")

    chosen = set()
    for part in parts:
        matches = _match(part, names)
        require(matches, f"--{flag}={part!r} is in no name: {', '.join(names[:4])}, ...")
        chosen.update(matches)
    return [name for name in names if name in chosen]


def _match(part: str, names: list[str]) -> list[str]:
    """Returns [part] where the part is a name, else all names that contain it; none where it is empty."""
    if not part:
        return []
    if part in names:
        return [part]
    return [name for name in names if part in name]
