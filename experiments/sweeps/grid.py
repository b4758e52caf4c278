"""Audits of a grid of settings, every combination of several fields' values: their cells and their table."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.errors import require
from audit.json_text import finite
from audit.methods.level import Level
from audit.report import table
from audit.report.table import Column, Table
from audit.settings.setting import Setting
from audit.storage.store import hash_of
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.cells.work import Workplace

MOST_AUDITS = 1000


class GridAudit(NamedTuple):
    """One audit of a grid.

    Attributes:
      values: the values of the varied fields, by the fields' flags, in the order of the grid's axes.
      setting: the setting with these values.
      runs: the number of models to train.
    """

    values: Mapping[str, Any]
    setting: Setting
    runs: int

    def cell(self) -> Cell:
        """Returns the audit as a cell of a sweep.

        The audit has no place in a figure: its series and panel only give the cell a name.
        """
        return audit_cell(Audited(describe(self.values), "audit", 0.0, self.setting, self.runs))


class GridResult(NamedTuple):
    """The result of a single audit of a grid.

    Attributes:
      values: the values of the varied fields, by the fields' flags.
      setting: the setting with these values.
      conclusion: the audit's conclusion.
      folder: the folder of the audit's store.
    """

    values: Mapping[str, Any]
    setting: Setting
    conclusion: Conclusion
    folder: Path


def combine(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every combination of the axes' values, the last axis changing fastest.

    Args:
      axes: the values of each axis, by its name.

    Returns:
      Combinations as {name: value}.

    Raises:
      InputError: There are more than MOST_AUDITS combinations.
    """
    combinations = [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    number = len(combinations)
    require(number <= MOST_AUDITS, f"`vary`: {number:,} audits are more than {MOST_AUDITS:,}")
    return combinations


def describe(values: Mapping[str, Any]) -> str:
    """Formats values of fields for people: "k=5, noise_multiplier=2"."""
    return ", ".join(f"{name}={show_value(value)}" for name, value in values.items())


def show_value(value: Any) -> str:
    """Formats a field's value for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def conclude(audit: GridAudit, place: Workplace, level: Level) -> GridResult:
    """Draws the conclusion from an audit's stored scores.

    Args:
      audit: an audit whose cell is done.
      place: the store's root, and the audit's data.
      level: the delta and the confidence of the bounds.
    """
    store = audit.cell().open(place.out, place.data)
    setting = audit.setting
    steps = lipschitz.find_current(store)
    conclusion = conclude_setting(store.load(audit.runs), setting, level, steps=steps)
    return GridResult(audit.values, audit.setting, conclusion, store.path)


def make_table(results: Sequence[GridResult]) -> Table[GridResult]:
    """Returns a table with a row for each audit: the varied fields, and both bounds on epsilon.

    The table is shown as text and as CSV. Some columns are in one of the two alone: a first argument of None
    leaves a column out of CSV, and no third argument, the heading, leaves it out of text.
    """
    names = list(results[0].values)  # all audits of a grid vary the same fields
    columns = [Column(name, partial(_find_value, name), name, show_value) for name in names]
    columns += [
        Column("runs", lambda result: result.conclusion.count_runs(), "runs"),
        Column("epsilon", lambda result: result.conclusion.epsilon, "proven", table.at_least),
        Column("upper_bound", lambda result: finite(find_upper_bound(result))),
        Column(None, find_upper_bound, "at most", table.at_most, none="-"),
        Column("delta", lambda result: result.conclusion.delta),
        Column("confidence", lambda result: result.conclusion.confidence),
        Column("setting", lambda result: hash_of(result.folder), "setting", lambda name: name[:8]),
        Column("folder", lambda result: str(result.folder)),
    ]
    level = results[0].conclusion  # all audits have the same delta and confidence
    title = f"epsilon at {Level(level.delta, level.confidence)}"
    return Table(columns, results, before=[title])


def _find_value(name: str, result: GridResult) -> Any:
    """Returns the value of a varied field."""
    return result.values[name]


def find_upper_bound(result: GridResult) -> float | None:
    """Returns the smallest upper bound on epsilon; None where there is none."""
    tightest = result.conclusion.tightest
    return None if tightest is None else tightest.epsilon
