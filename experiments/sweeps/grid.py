"""Audits of a grid of settings, every combination of several fields' values: cells, table and heat map."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.errors import require
from audit.report.table import Table, at_least, at_most
from audit.settings.setting import Setting
from audit.storage.store import hash_of
from audit.written import Level, finite, show_level
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.cells.work import Workplace
from experiments.sweeps.panels import draw_heat_map, draw_panels
from experiments.sweeps.records import Record, field

MAX_AUDITS = 1000


class GridAudit(NamedTuple):
    """One audit of a grid.

    Attributes:
      values: The values of the varied fields, by the fields' flags, in the order of the grid's axes.
      setting: The setting with these values.
      runs: The number of models to train.
    """

    values: Mapping[str, Any]
    setting: Setting
    runs: int

    def cell(self) -> Cell:
        """Returns the audit as a cell of a sweep; its series and panel only give the cell a name."""
        return audit_cell(Audited(describe(self.values), "audit", 0.0, self.setting, self.runs))


def combine(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every combination {name: value} of the axes' values, the last axis changing fastest.

    Raises InputError if there are more than MAX_AUDITS combinations.
    """
    combined = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    number = len(combined)
    require(number <= MAX_AUDITS, f"`vary`: {number:,} audits are more than {MAX_AUDITS:,}")
    return combined


def describe(values: Mapping[str, Any]) -> str:
    """Formats values of fields for people: "k=5, noise_multiplier=2"."""
    return ", ".join(f"{name}={show_value(value)}" for name, value in values.items())


def show_value(value: Any) -> str:
    """Formats a field's value for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def conclude(audit: GridAudit, place: Workplace, level: Level) -> Record:
    """Draws the conclusion from the stored scores of an audit whose cell is done, as a record."""
    store = audit.cell().open(place.out, place.data)
    steps = lipschitz.find_current(store)
    conclusion = conclude_setting(store.load(audit.runs), audit.setting, level, steps=steps)
    tightest = conclusion.tightest
    return {
        **audit.values,
        "runs": conclusion.runs,
        "epsilon": conclusion.epsilon,
        "upper_bound": None if tightest is None else finite(tightest.epsilon),
        "delta": conclusion.delta,
        "confidence": conclusion.confidence,
        "setting": hash_of(store.path),
        "folder": str(store.path),
    }


def make_table(results: Sequence[Record], varied: Sequence[str], level: Level) -> Table[Record]:
    """Returns a table with a row for each audit: the varied fields, and both bounds on epsilon."""
    columns = [
        *(field(name, name, show_value) for name in varied),
        field("runs", "runs"),
        field("epsilon", "proven", at_least),
        field("upper_bound", "at most", at_most, none="-"),
        field("delta"),
        field("confidence"),
        field("setting", "setting", lambda name: name[:8]),
        field("folder"),
    ]
    return Table(columns, results, before=[f"epsilon at {level}"])


def draw_grid(results: Sequence[Record], down: str, across: str) -> Figure:
    """Draws a heat map of the epsilon that each audit proves, over the values of the two varied fields.

    Args:
      results: The records of a grid's audits, the field `across` changing fastest.
      down: The flag of the field whose values are rows.
      across: The flag of the field whose values are columns.
    """
    rows = list(dict.fromkeys(show_value(result[down]) for result in results))
    columns = list(dict.fromkeys(show_value(result[across]) for result in results))
    proven = np.reshape([result["epsilon"] for result in results], (len(rows), len(columns)))

    def draw(axis: Axes) -> None:
        """Draws the heat map; the colours need a scale even if nothing is proven."""
        most = max(float(proven.max()), 1e-3)
        draw_heat_map(axis, proven, rows, columns, most, partial(at_least, decimals=2))
        axis.set_xlabel(across)

    title = f"epsilon proven at delta {show_level(results[0]['delta'])}"
    size = (0.62 * len(columns) + 1.1, 0.42 * len(rows) + 1.0)  # inches
    return draw_panels(title, {"": draw}, size, ylabel=down)
