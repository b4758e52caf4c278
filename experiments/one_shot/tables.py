"""The paper's tables as printed, and what figures rest on beside them: in 80 columns, as CSV, as a page."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.report.one_run_table import floor_words
from audit.report.table import Column, Show, Table, number
from audit.statistics import one_shot
from audit.statistics.accounting import epsilon_upper_bound
from audit.statistics.estimate import Estimate
from audit.statistics.one_shot import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from experiments.one_shot import estimates
from experiments.one_shot.estimates import FederatedRun, Floors, Observation, SplitQuantiles, TableCell
from experiments.one_shot.sweep import Trainings
from experiments.sweeps.sweep import OwnTable

Audits = tuple[Trainings, Sequence[FederatedRun]]
_METHODS = (ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, one_shot.ONE_SHOT_THRESHOLD)
_ERRORS, _DEVIATIONS = 3.0, 0.3  # standard errors of a mean, and the share of a deviation
_SIMULATED = """\
mean (deviation) over simulations; neither is a bound. fitted: the estimate as
the paper prints it. *: the equal variance's mean is beyond three standard
errors and the rounding of the paper's, or its deviation is 30% off"""
_FLOORS = "mean (95% quantile) where nothing leaks, the null known"
_ESTIMATES = """\
estimate (its error) as the paper prints it, from fits to both worlds' cosines:
no bound. in-sample: the paper's lower value, the best of all thresholds: no
bound either. *: above the accounted epsilon by more than its error"""
_HEADS = ("estimate", "in-sample") * 2
_WIDTHS = (6, 10, 15, 10, 14, 10, 7, 8)
_RULE = "-" * 80


class Printed(NamedTuple):
    """A cell of Table 1: its row's exact epsilon, sigma, dimension, mean and deviation over 50."""

    epsilon: float
    sigma: float
    dimension: int
    mean: float
    deviation: float


class PrintedRun(NamedTuple):
    """A row of Table 2 or 5: noise multiplier, analytical epsilon, and by observation eps_lo and eps_est."""

    noise: float
    analytical: float
    lower_all: float
    all: float
    lower_final: float
    final: float


_DIMENSIONS = (10**4, 10**5, 10**6, 10**7)
_ROWS = (
    (10.0, 0.541, ((9.89, 0.71), (10.1, 0.41), (10.0, 0.23), (10.0, 0.10))),
    (3.0, 1.54, ((3.00, 0.46), (3.00, 0.31), (2.96, 0.15), (3.00, 0.08))),
    (1.0, 4.22, ((0.98, 0.41), (1.05, 0.23), (0.99, 0.14), (1.00, 0.07))),
)
TABLE_1 = tuple(
    Printed(epsilon, sigma, dimension, *cell)
    for epsilon, sigma, cells in _ROWS
    for dimension, cell in zip(_DIMENSIONS, cells, strict=True)
)
DELTA, SIMULATIONS = 1e-6, 50

TABLE_2 = (
    PrintedRun(0.0, math.inf, 6.240, 45800, 2.88, 4.60),
    PrintedRun(0.0496, 300, 6.238, 382, 1.11, 1.97),
    PrintedRun(0.0986, 100, 5.05, 89.4, 0.688, 1.18),
    PrintedRun(0.2317, 30, 0.407, 2.693, 0.311, 0.569),
)
TABLE_5 = (
    PrintedRun(0.0, math.inf, 6.25, 48300, 3.86, 5.72),
    PrintedRun(0.16, 33.8, 2.87, 17.9, 1.01, 1.20),
    PrintedRun(0.18, 28.1, 2.32, 12.0, 0.788, 1.15),
    PrintedRun(0.195, 24.8, 2.02, 8.88, 0.723, 1.08),
    PrintedRun(0.25, 16.9, 0.896, 3.86, 0.550, 0.818),
    PrintedRun(0.315, 12.0, 0.315, 1.50, 0.216, 0.737),
)
PRINTED = {"StackOverflow": TABLE_2, "EMNIST": TABLE_5}


class _Line(NamedTuple):
    """Cells of a table of several kinds of rows, and the heading above them."""

    cells: tuple[str, ...]
    section: str = ""


class _Seen(NamedTuple):
    """One of a training's observations."""

    run: FederatedRun
    observed: str
    view: Observation


def printed(cell: TableCell, delta: float) -> Printed | None:
    """The paper's cell of the same sigma and dimension, where its delta is ours."""
    of = {(row.sigma, row.dimension): row for row in TABLE_1}
    return of.get((cell.sigma, cell.dimension)) if delta == DELTA else None


def agrees(cell: TableCell, paper: Printed, simulations: int) -> bool:
    """Whether the equal-variance estimate is the paper's within what simulations of both tell."""
    values = cell.epsilons[ONE_SHOT_EQUAL_VARIANCE]
    allowed = _ERRORS * paper.deviation / np.sqrt(simulations) + (0.05 if paper.mean >= 10 else 0.005)
    near = abs(values.mean() - paper.mean) <= allowed
    return bool(near and abs(values.std() / paper.deviation - 1) <= _DEVIATIONS)


def of_cells(cells: Sequence[TableCell], delta: float, simulations: int) -> Table[TableCell]:
    """A row a cell of Table 1."""

    def fitted(cell: TableCell) -> str:
        paper = printed(cell, delta)
        mark = " " if paper is None or agrees(cell, paper, simulations) else "*"
        return f"{mark}{_spread(cell.epsilons[ONE_SHOT_FITTED]):>14}"

    columns = (
        Column("sigma", lambda cell: cell.sigma, "sigma", number("g"), 5),
        Column("dimension", lambda cell: cell.dimension, "d", number(",.0e"), 9),
        Column("canaries", lambda cell: cell.canaries, "k", width=6),
        Column("exact", lambda cell: cell.exact, "exact", number(".3f"), 7),
        Column(None, lambda cell: _printed(cell, delta), "paper", width=15),
        Column(
            None, lambda cell: _spread(cell.epsilons[ONE_SHOT_EQUAL_VARIANCE]), "equal variance", width=15
        ),
        Column(None, fitted, "fitted", width=15),
    )
    title = f"Table 1: estimates of epsilon at delta {delta:g}, {simulations} simulations a cell"
    return Table(columns, cells, before=(title,), after=(_SIMULATED,), gap="", rule=72)


def cells_csv(cells: Sequence[TableCell]) -> bytes:
    """A line a cell and estimate."""
    columns = (
        Column("sigma", lambda row: row[0].sigma),
        Column("dimension", lambda row: row[0].dimension),
        Column("canaries", lambda row: row[0].canaries),
        Column("exact", lambda row: row[0].exact),
        Column("method", lambda row: row[1]),
        Column("mean", lambda row: row[2].mean()),
        Column("deviation", lambda row: row[2].std()),
        Column("simulations", lambda row: len(row[2])),
    )
    return Table(columns, [(cell, *found) for cell in cells for found in cell.epsilons.items()]).csv()


def cells_page(cells: Sequence[TableCell], delta: float) -> Table[TableCell]:
    """Table 1 with every estimate, for a page."""
    columns = (
        Column(None, lambda cell: cell.sigma, "sigma", number("g")),
        Column(None, lambda cell: cell.dimension, "dimension", number(",")),
        Column(None, lambda cell: cell.canaries, "canaries", number(",")),
        Column(None, lambda cell: cell.exact, "exact", number(".3f")),
        Column(None, lambda cell: _printed(cell, delta), "paper"),
        *(_of(name, lambda cell: cell.epsilons, _spread) for name in _METHODS),
    )
    return Table(columns, cells)


def of_floors(floors: Sequence[Floors], delta: float) -> Table[Floors]:
    """A row a number of canaries."""
    canaries = Column(None, lambda row: row.canaries, "canaries", number(","), 8)
    before = (f"Noise floors of epsilon at delta {delta:g}",)
    fitted = (_of(name, lambda row: row.by_method, floor_words, 18) for name in _METHODS)
    return Table((canaries, *fitted), floors, before=before, after=(_FLOORS,), gap="")


def of_observations(name: str, audits: Audits, delta: float) -> OwnTable:
    """A row a noise multiplier, in the shape of Tables 2, 3 and 5, and the paper's rows."""
    asked, found = audits
    lines = [
        _audit_line(one, f"{one.analytical:.4g}", _share(one.accuracy), _share(one.plain_accuracy))
        for one in found
    ]
    lines.append(_floors(found[0]))
    for row in PRINTED[asked.counterpart]:
        numbers = (f"{row.all:,g}", f"{row.lower_all:g}", f"{row.final:g}", f"{row.lower_final:g}")
        cells = (f"{row.noise:g}", f"{row.analytical:g}", *numbers)
        lines.append(_Line(cells, f"the paper, {asked.counterpart}:"))
    heads = ("noise", "analytical", *_HEADS, "with", "without")
    return _of_audits(name, audits, delta, f"{'accuracy':>16}", heads, lines)


def of_repetitions(name: str, audits: Audits, delta: float) -> OwnTable:
    """A row a noise multiplier and number of repetitions, as Figures 2 and 3 show them."""
    _, found = audits
    lines = [_audit_line(one, f"{one.accounted:.4g}", f"{one.repetitions}") for one in found]
    heads = ("noise", "accounted", *_HEADS, "times")
    return _of_audits(name, audits, delta, "", heads, [*lines, _floors(found[0])])


def of_densities(name: str, every: Sequence[Audits]) -> OwnTable:
    """The final model's cosines and whether they are normal, in the shape of Table 4."""

    def says(level: float | None) -> str:
        return "  not rejected" if level is None else f"  rejected at {level:g}"

    columns = (
        Column("clients", lambda row: row[0].label, "", width=16, left=True),
        Column("noise", lambda row: row[1].noise, "noise", number(".3g"), 9),
        Column("repetitions", lambda row: row[1].repetitions, "times", width=7),
        Column("mean", lambda row: row[2].mean(), "mean", number(".2f"), 9),
        Column("deviation", lambda row: row[2].std(), "deviation", number(".3f"), 11),
        Column("a_squared", lambda row: row[1].final.normality.statistic, "A^2", number(".3f"), 8),
        Column(None, lambda row: says(row[1].final.normality.rejected_at), "  normal", left=True),
    )
    rows = [
        (asked, one, one.final.cosines.observed * asked.dimension**0.5)
        for asked, audits in every
        for one in audits
    ]
    title = f"{name}: cosines with the final model, in units of 1/sqrt(d)"
    note = "normal: Anderson and Darling's test (A^2) of the canaries that are in"
    table = Table(columns, rows, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), table.csv())


def of_splits(name: str, found: Sequence[SplitQuantiles], words: str, delta: float) -> OwnTable:
    """Quantiles of estimates, all canaries in one run or over several."""
    columns = (
        Column("noise", lambda row: row[0].noise, "noise", number(".3g"), 7, left=True),
        Column("observed", lambda row: row[0].observe, "observed", width=9, left=True),
        Column("canaries", lambda row: row[1], "canaries in", width=13, left=True),
        *(
            Column(f"{quantile}", itemgetter(place), f"{quantile:g}", number(".4g"), 8)
            for place, quantile in enumerate(estimates.QUANTILES, 2)
        ),
        Column(
            None, lambda row: epsilon_upper_bound(row[0].noise, 1, delta), "analytical", number(".4g"), 11
        ),
    )
    rows = [
        (one, place, *values)
        for one in found
        for place, values in (("one run", one.one), ("several runs", one.several))
    ]
    title = f"{name}: {words}, delta {delta:.3g}"
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    table = Table(columns, rows, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), table.csv())


def _of_audits(
    name: str, audits: Audits, delta: float, more: str, heads: Sequence[str], lines: Sequence[_Line]
) -> OwnTable:
    """The table of one kind of clients, and its CSV. more: what stands above the last columns."""
    asked, found = audits
    observed, unobserved, _ = found[0].every.cosines
    rounds = f"{asked.setting.rounds:,} x {asked.setting.cohort} clients, delta {delta:.3g}"
    about = f"{len(observed):,} + {len(unobserved):,} canaries, {rounds}"
    above = f"{'':<16}{'all iterates':>24}{'final model':>24}{more}"
    columns = [
        Column(None, partial(_cell, i), head, width=_WIDTHS[i], left=i == 0) for i, head in enumerate(heads)
    ]
    text = Table(
        columns,
        lines,
        section=lambda line: line.section,
        before=(f"{name}: {asked.label}", about, above),
        after=(_RULE, _ESTIMATES),
        gap="",
        rule=80,
    ).text()
    return OwnTable(text, _audits_csv(asked, found))


def _audits_csv(asked: Trainings, found: Sequence[FederatedRun]) -> bytes:
    columns = (
        Column("clients", lambda row: asked.label),
        *(Column(name, attrgetter(f"run.{name}")) for name in FederatedRun._fields[:4]),
        Column("observed", lambda row: row.observed),
        Column("fitted", lambda row: row.view.fitted.epsilon),
        Column("error", lambda row: row.view.fitted.standard_error),
        Column("floor", lambda row: row.view.fitted.noise_floor.mean),
        Column("floor_95", lambda row: row.view.fitted.noise_floor.quantile_95),
        Column("equal_variance", lambda row: row.view.equal_variance.epsilon),
        Column("in_sample", lambda row: row.view.in_sample),
        Column("a_squared", lambda row: row.view.normality.statistic),
        Column("accuracy", lambda row: row.run.accuracy),
        Column("accuracy_without", lambda row: row.run.plain_accuracy),
    )
    rows = [_Seen(one, *seen) for one in found for seen in (("all", one.every), ("final", one.final))]
    return Table(columns, rows).csv()


def _audit_line(one: FederatedRun, upper: str, *rest: str) -> _Line:
    mark = "*" if one.exceeds else ""
    every = f"{mark}{_estimate(one.every.fitted)}", f"{one.every.in_sample:.3f}"
    final = _estimate(one.final.fitted), f"{one.final.in_sample:.3f}"
    return _Line((f"{one.noise:.3g}", upper, *every, *final, *rest))


def _floors(one: FederatedRun) -> _Line:
    floors = (view.fitted.noise_floor for view in (one.every, one.final))
    every, final = (f"{floor.mean:.2f} ({floor.quantile_95:.2f})" for floor in floors)
    return _Line(("floor", "mean (95%)", every, "", final))


def _estimate(row: Estimate) -> str:
    digits = 0 if row.epsilon >= 1000 else 1 if row.epsilon >= 10 else 2
    return f"{row.epsilon:,.{digits}f} ({row.standard_error:,.{digits}f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cell(place: int, line: _Line) -> str:
    return "".join(line.cells[place : place + 1])


def _of(method: str, values: Callable[[Any], Mapping[str, object]], show: Show, width: int = 0) -> Column:
    head = method.removeprefix("one_shot_").replace("_", " ")
    return Column(None, lambda row: values(row)[method], head, show, width)


def _printed(cell: TableCell, delta: float) -> str | None:
    paper = printed(cell, delta)
    return None if paper is None else f"{paper.mean:.2f} ({paper.deviation:.2f})"


def _spread(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.2f} ({values.std():.2f})"
