"""All estimators and mechanisms of the benchmark, by name. A new one is a record in the file of its kind."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from audit.errors import require
from audit.version import __version__
from experiments.benchmark import ours, peers, published
from experiments.benchmark.contract import Estimator
from experiments.benchmark.mechanisms import MECHANISMS

_RECORDS = (*ours.ESTIMATORS, *peers.ESTIMATORS, *published.ESTIMATORS)
ESTIMATORS = {record.name: record for record in _RECORDS}


def installed(estimator: Estimator) -> bool:
    """Whether Python finds its package, which this does not import."""
    return not estimator.module or importlib.util.find_spec(estimator.module) is not None


def version(estimator: Estimator) -> str:
    """The version of its package; of papers' formulas, this project's."""
    return importlib.metadata.version(estimator.package) if estimator.package else __version__


def chosen(flag: str, names: list[str] | None, known: Iterable[str]) -> list[str]:
    """The names that are one of these, or contain it where it is none; by default all. Raises InputError for
    what is in no name."""
    require(names is None or names, f"--{flag} is empty: give parts of names, comma-separated")
    for part in names or []:
        there = part and any(part in name for name in known)
        require(there, f"--{flag}={part!r} is in no name: {', '.join(list(known)[:4])}, ...")
    whole = set(known)
    return [
        name
        for name in known
        if names is None or any(part == name if part in whole else part in name for part in names)
    ]


assert len(ESTIMATORS) == len(_RECORDS) and MECHANISMS
