"""Audits of a grid of settings: all combinations of several fields' values, as a table and a heat map."""

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
    """Returns all combinations of the values of several fields; the last field changes fastest.

    `axes` maps the name of each field to its values, and a combination maps it to one value. Raises
    InputError if there are more than MAX_AUDITS combinations.
    """
    combined = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    message = f"`vary` must give at most {MAX_AUDITS:,} audits, got {len(combined):,}"
    require(len(combined) <= MAX_AUDITS, message)
    return combined


def describe(values: Mapping[str, Any]) -> str:
    """Returns the values of fields as text, such as "k=5, noise_multiplier=2"."""
    return ", ".join(f"{name}={show_value(value)}" for name, value in values.items())


def show_value(value: Any) -> str:
    """Returns a field's value as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def conclude(values: Mapping[str, Any], audit: Audited, place: Workplace, level: Level) -> Record:
    """Returns a record of one audit's results, from its stored scores.

    Args:
      values: The varied fields' values, by name.
      audit: The audit, whose runs are all stored.
      place: The data sets, and the folder of the store.
      level: The delta and confidence of the bounds.

    Returns:
      A record with the varied fields, the lower bound `epsilon`, the smallest `upper_bound` (None if there is
      none), and the other fields of `make_table`.
    """
    dataset = place.data.load(audit.setting.model)
    request = driver.make_request(audit.setting, dataset, audit.runs, level)
    finished = driver.audit(request, place.out)  # trains nothing
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
    """Returns a table with a row for each audit: the varied fields, and both bounds on epsilon.

    `results` are records of `conclude`, and `varied` are the names of the varied fields.
    """
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
    """Draws a heat map of the lower bound on epsilon for all values of two varied fields.

    Args:
      results: The records of the grid's audits, by `conclude`.
      down: The field with a row for each value.
      across: The field with a column for each value.
    """
    # sort=False keeps the order of the user's values.
    frame = pd.DataFrame(results).pivot_table("epsilon", down, across, sort=False)
    rows = list(map(show_value, frame.index))
    columns = list(map(show_value, frame.columns))
    proven = frame.to_numpy()

    def draw(axis: Axes) -> None:
        """Draws the heat map, with bounds rounded down."""
        brightest = max(proven.max(), 1e-3)  # above 0, also if all bounds are 0
        draw_heat_map(axis, proven, rows, columns, brightest, partial(at_least, decimals=2))
        axis.set_xlabel(across)

    title = f"lower bound on epsilon at delta {show_level(results[0]['delta'])}"
    size = (0.62 * len(columns) + 1.1, 0.42 * len(rows) + 1.0)  # inches
    return draw_panels(title, {"": draw}, size, ylabel=down)
