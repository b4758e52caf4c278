"""Audits of a grid of settings: the cells, table and heat map of all combinations of fields' values."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.errors import require
from audit.report.table import Table, at_least, at_most
from audit.storage.store import hash_of
from audit.training import driver
from audit.written import Level, finite, show_level
from experiments.cells.cell import Audited
from experiments.cells.work import Workplace
from experiments.sweeps.panels import draw_heat_map, draw_panels
from experiments.sweeps.records import Record, Records, field

MAX_AUDITS = 1000


def combine(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns all combinations {name: value} of the axes' values; the last axis changes fastest.

    Raises InputError if there are more than MAX_AUDITS combinations.
    """
    combined = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    num_audits = len(combined)
    require(
        num_audits <= MAX_AUDITS,
        f"`vary` must give at most {MAX_AUDITS:,} audits, got {num_audits:,}",
    )
    return combined


def describe(values: Mapping[str, Any]) -> str:
    """Formats values of fields, such as "k=5, noise_multiplier=2"."""
    return ", ".join(f"{name}={show_value(value)}" for name, value in values.items())


def show_value(value: Any) -> str:
    """Formats a field's value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def conclude(values: Mapping[str, Any], audit: Audited, place: Workplace, level: Level) -> Record:
    """Returns the conclusion from an audit's stored scores as a record, with the varied fields' values."""
    dataset = place.data.load(audit.setting.model)
    request = driver.make_request(audit.setting, dataset, audit.runs, level)
    finished = driver.audit(request, place.out)  # all runs are stored
    conclusion = finished.conclusion
    folder = finished.store.path
    tightest = conclusion.tightest
    return {
        **values,
        "runs": conclusion.runs,
        "epsilon": conclusion.epsilon,
        "upper_bound": None if tightest is None else finite(tightest.epsilon),
        "delta": conclusion.delta,
        "confidence": conclusion.confidence,
        "setting": hash_of(folder),
        "folder": str(folder),
    }


def make_table(results: Records, varied: Sequence[str], level: Level) -> Table[Record]:
    """Returns a table with a row for each audit: the varied fields, and both bounds on epsilon."""
    columns = [field(name, name, show_value) for name in varied]
    columns += [
        field("runs", "runs"),
        field("epsilon", "proven", at_least),
        field("upper_bound", "at most", at_most, none="-"),
        field("delta"),
        field("confidence"),
        field("setting", "setting", lambda name: name[:8]),
        field("folder"),
    ]
    return Table(columns, results, before=[f"epsilon at {level}"])


def draw_grid(results: Records, down: str, across: str) -> Figure:
    """Draws a heat map of the lower bound on epsilon over the values of two varied fields.

    `results` are the records of a grid's audits. `down` and `across` are the flags of rows and columns;
    `across` changes fastest.
    """
    # Rows and columns are in order of first occurrence.
    frame = pd.DataFrame(results).pivot_table("epsilon", down, across, sort=False)
    rows = list(map(show_value, frame.index))
    columns = list(map(show_value, frame.columns))
    proven = frame.to_numpy()

    def draw(axis: Axes) -> None:
        most = max(proven.max(), 1e-3)
        draw_heat_map(axis, proven, rows, columns, most, partial(at_least, decimals=2))
        axis.set_xlabel(across)

    title = f"lower bound on epsilon at delta {show_level(results[0]['delta'])}"
    size = (0.62 * len(columns) + 1.1, 0.42 * len(rows) + 1.0)  # inches
    return draw_panels(title, {"": draw}, size, ylabel=down)
