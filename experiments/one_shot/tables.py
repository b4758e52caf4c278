"""The paper's tables as printed, and the numbers of the figures: in 80 columns, as CSV, as a page."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.methods import one_shot
from audit.methods.estimate import Estimate
from audit.methods.level import show_level
from audit.methods.one_shot import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from audit.report.bounds_table import show_floor
from audit.report.table import Column, Show, Table, number
from experiments.one_shot import estimates
from experiments.one_shot.estimates import (
    FederatedRun,
    Floors,
    Observation,
    SplitQuantiles,
    TableCell,
)
from experiments.one_shot.sweep import TrainingPlan
from experiments.sweeps.sweep import OwnTable

_METHODS = (ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, one_shot.ONE_SHOT_THRESHOLD)
_ALLOWED_ERRORS = 3.0  # standard errors between our mean and the paper's
_ALLOWED_DEVIATION = 0.3  # between our deviation and the paper's, as a share of the latter
_SIMULATED_NOTE = """\
mean (deviation) over simulations; neither is a bound. fitted: the estimate as
the paper prints it. *: the equal variance's mean is beyond three standard
errors and the rounding of the paper's, or its deviation is 30% off"""
_FLOORS_NOTE = "mean (95% quantile) where nothing leaks, the null known"
_ESTIMATES_NOTE = """\
estimate (its error) as the paper prints it, from fits to both worlds' cosines:
no bound. in-sample: the paper's lower value, the best of all thresholds: no
bound either. *: above the accounted epsilon by more than its error"""
_HEADS = ("estimate", "in-sample", "estimate", "in-sample")
_WIDTHS = (6, 10, 15, 10, 14, 10, 7, 8)
_RULE = "-" * 80


class PrintedCell(NamedTuple):
    """A cell of the paper's Table 1.

    Attributes:
      mean: The estimate's mean over 50 simulations.
      deviation: The estimate's standard deviation over them.
    """

    mean: float
    deviation: float


class PrintedRun(NamedTuple):
    """A row of the paper's Table 2 or 5.

    Attributes:
      noise: The noise multiplier.
      analytical: The analytical epsilon.
      lower_all: eps_lo, the in-sample lower value, from all iterates.
      all: eps_est, the estimate from fitted normal laws, from all iterates.
      lower_final: eps_lo from the final model.
      final: eps_est from the final model.
    """

    noise: float
    analytical: float
    lower_all: float
    all: float
    lower_final: float
    final: float


DELTA = 1e-6  # of the epsilons in the paper's Table 1
SIMULATIONS = 50  # of each cell of that table
TABLE_1 = {  # by (sigma, dimension)
    (0.541, 10**4): PrintedCell(9.89, 0.71),
    (0.541, 10**5): PrintedCell(10.1, 0.41),
    (0.541, 10**6): PrintedCell(10.0, 0.23),
    (0.541, 10**7): PrintedCell(10.0, 0.10),
    (1.54, 10**4): PrintedCell(3.00, 0.46),
    (1.54, 10**5): PrintedCell(3.00, 0.31),
    (1.54, 10**6): PrintedCell(2.96, 0.15),
    (1.54, 10**7): PrintedCell(3.00, 0.08),
    (4.22, 10**4): PrintedCell(0.98, 0.41),
    (4.22, 10**5): PrintedCell(1.05, 0.23),
    (4.22, 10**6): PrintedCell(0.99, 0.14),
    (4.22, 10**7): PrintedCell(1.00, 0.07),
}

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


class PlannedRuns(NamedTuple):
    """A plan of training runs for one kind of clients, and the runs that are stored."""

    plan: TrainingPlan
    runs: Sequence[FederatedRun]


class _Line(NamedTuple):
    """A row as text: its cells, and the section of the table to which it belongs (empty for the first)."""

    cells: tuple[str, ...]
    section: str = ""


class _EstimateRow(NamedTuple):
    """A row of Table 1's CSV: a cell, and the epsilons (simulations,) of one method in it."""

    cell: TableCell
    method: str
    epsilons: NDArray[np.float64]


class _DensityRow(NamedTuple):
    """A row of the densities' table: a run, and the final model's cosines in units of 1/sqrt(d)."""

    clients: str
    run: FederatedRun
    cosines: NDArray[np.float64]


class _SplitRow(NamedTuple):
    """A row of the splits' table: where the canaries are ("one run" or "several runs"), and the quantiles."""

    split: SplitQuantiles
    place: str
    quantiles: NDArray[np.float64]


class _ObservedRun(NamedTuple):
    """A training run and one observation of it: "all" for all iterates, or "final" for the final model."""

    run: FederatedRun
    observed: str
    observation: Observation


def find_printed_cell(cell: TableCell, delta: float) -> PrintedCell | None:
    """Returns the cell of the paper's Table 1 at the same sigma, dimension and delta; None where none is."""
    if delta != DELTA:
        return None
    return TABLE_1.get((cell.sigma, cell.dimension))


def agrees(cell: TableCell, printed: PrintedCell, simulations: int) -> bool:
    """Returns whether our equal-variance estimate agrees with the paper's cell within simulation error.

    Our mean may differ from the paper's by three standard errors of the difference of two means, one over
    our `simulations` simulations and one over the paper's 50, plus the rounding of the printed mean. Our
    deviation may differ by 30% of the paper's.
    """
    epsilons = cell.epsilons[ONE_SHOT_EQUAL_VARIANCE]
    # The paper prints means with a single decimal from 10 on, else with two: half a unit of the last.
    rounding = 0.05 if printed.mean >= 10 else 0.005
    standard_error = printed.deviation * np.sqrt(1 / SIMULATIONS + 1 / simulations)
    allowed = _ALLOWED_ERRORS * standard_error + rounding
    mean_agrees = abs(epsilons.mean() - printed.mean) <= allowed
    deviation_agrees = abs(epsilons.std() / printed.deviation - 1) <= _ALLOWED_DEVIATION
    return bool(mean_agrees and deviation_agrees)


def make_cells_table(
    cells: Sequence[TableCell], delta: float, simulations: int
) -> Table[TableCell]:
    """Makes Table 1 with a row for each cell: the exact epsilon, the paper's estimate, and ours.

    A star after the equal-variance estimate says that it disagrees with the paper's.

    Args:
      cells: The simulated cells.
      delta: The delta of every epsilon; at another delta than the paper's, the paper's column is empty.
      simulations: The number of simulations of each cell.
    """

    def format_equal_variance(cell: TableCell) -> str:
        """Formats the mean and deviation of the equal-variance estimate."""
        return _format_spread(cell.epsilons[ONE_SHOT_EQUAL_VARIANCE])

    def format_fitted(cell: TableCell) -> str:
        """Formats the fitted estimate, after the star of the equal-variance estimate, if it has one.

        Columns have no gap, so that a star at the left end of this one follows the estimate that it marks.
        """
        printed = find_printed_cell(cell, delta)
        mark = " "
        if printed is not None and not agrees(cell, printed, simulations):
            mark = "*"
        return f"{mark}{_format_spread(cell.epsilons[ONE_SHOT_FITTED]):>14}"

    columns = (
        Column("sigma", lambda cell: cell.sigma, "sigma", number("g"), 5),
        Column("dimension", lambda cell: cell.dimension, "d", number(",.0e"), 9),
        Column("canaries", lambda cell: cell.canaries, "k", width=6),
        Column("exact", lambda cell: cell.exact, "exact", number(".3f"), 7),
        Column(None, lambda cell: _format_printed(cell, delta), "paper", width=15),
        Column(None, format_equal_variance, "equal variance", width=15),
        Column(None, format_fitted, "fitted", width=15),
    )
    title = f"Table 1: estimates of epsilon at delta {show_level(delta)}, {simulations} simulations a cell"
    return Table(columns, cells, before=(title,), after=(_SIMULATED_NOTE,), gap="", rule=72)


def make_cells_csv(cells: Sequence[TableCell]) -> bytes:
    """Makes Table 1's CSV: for each cell and estimate, the mean and deviation over simulations."""
    columns = (
        Column("sigma", lambda row: row.cell.sigma),
        Column("dimension", lambda row: row.cell.dimension),
        Column("canaries", lambda row: row.cell.canaries),
        Column("exact", lambda row: row.cell.exact),
        Column("method", lambda row: row.method),
        Column("mean", lambda row: row.epsilons.mean()),
        Column("deviation", lambda row: row.epsilons.std()),
        Column("simulations", lambda row: len(row.epsilons)),
    )
    rows = []
    for cell in cells:
        for method, epsilons in cell.epsilons.items():
            rows.append(_EstimateRow(cell, method, epsilons))
    return Table(columns, rows).csv()


def make_page_table(cells: Sequence[TableCell], delta: float) -> Table[TableCell]:
    """Makes Table 1 with every estimate, mean and deviation over simulations, for an HTML page."""
    columns = [
        Column(None, lambda cell: cell.sigma, "sigma", number("g")),
        Column(None, lambda cell: cell.dimension, "dimension", number(",")),
        Column(None, lambda cell: cell.canaries, "canaries", number(",")),
        Column(None, lambda cell: cell.exact, "exact", number(".3f")),
        Column(None, lambda cell: _format_printed(cell, delta), "paper"),
    ]
    for method in _METHODS:
        columns.append(_method_column(method, lambda cell: cell.epsilons, _format_spread))
    return Table(columns, cells)


def make_floors_table(floors: Sequence[Floors], delta: float) -> Table[Floors]:
    """Makes a table of noise floors: what each estimate shows where nothing leaks, by number of canaries."""
    columns = [Column(None, lambda row: row.canaries, "canaries", number(","), 8)]
    for method in _METHODS:
        columns.append(_method_column(method, lambda row: row.by_method, show_floor, 18))
    before = (f"Noise floors of epsilon at delta {show_level(delta)}",)
    return Table(columns, floors, before=before, after=(_FLOORS_NOTE,), gap="")


def make_observations_table(name: str, planned: PlannedRuns, delta: float) -> OwnTable:
    """Makes a table in the shape of Tables 2, 3 and 5: our runs, the noise floor, and the paper's rows.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
    """
    lines = []
    for run in planned.runs:
        accuracy = _format_accuracy(run.accuracy)
        plain_accuracy = _format_accuracy(run.plain_accuracy)
        lines.append(_make_run_line(run, f"{run.analytical:.4g}", accuracy, plain_accuracy))
    lines.append(_make_floor_line(planned.runs[0]))

    # Below our runs, the paper's rows for the data that these clients stand for.
    counterpart = planned.plan.counterpart
    for row in PRINTED[counterpart]:
        cells = (
            f"{row.noise:g}",
            f"{row.analytical:g}",
            f"{row.all:,g}",
            f"{row.lower_all:g}",
            f"{row.final:g}",
            f"{row.lower_final:g}",
        )
        lines.append(_Line(cells, f"the paper, {counterpart}:"))
    # The accuracy of training with canaries and without.
    last_heading = f"{'accuracy':>16}"
    heads = ("noise", "analytical", *_HEADS, "with", "without")
    return _make_runs_table(name, planned, delta, last_heading, heads, lines)


def make_repetitions_table(name: str, planned: PlannedRuns, delta: float) -> OwnTable:
    """Makes a table with a row for each noise multiplier and number of repetitions (Figures 2 and 3).

    A repetition is a round in which a canary takes part. The upper bound on epsilon is that of all of a
    canary's repetitions.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
    """
    lines = []
    for run in planned.runs:
        lines.append(_make_run_line(run, f"{run.accounted:.4g}", f"{run.repetitions}"))
    lines.append(_make_floor_line(planned.runs[0]))
    heads = ("noise", "accounted", *_HEADS, "times")
    last_heading = ""  # above "times", the number of repetitions
    return _make_runs_table(name, planned, delta, last_heading, heads, lines)


def make_densities_table(name: str, every: Sequence[PlannedRuns]) -> OwnTable:
    """Makes a table in the shape of Table 4: the final model's cosines and whether they are normal.

    Args:
      name: The sweep's name.
      every: For each kind of clients, its plan and stored runs.
    """

    def format_normality(row: _DensityRow) -> str:
        """Says at which level the test rejects that the cosines are normal, or that it does not."""
        level = row.run.final_model.normality.rejected_at
        return "  not rejected" if level is None else f"  rejected at {level:g}"

    columns = (
        Column("clients", lambda row: row.clients, "", width=16, left=True),
        Column("noise", lambda row: row.run.noise, "noise", number(".3g"), 9),
        Column("repetitions", lambda row: row.run.repetitions, "times", width=7),
        Column("mean", lambda row: row.cosines.mean(), "mean", number(".2f"), 9),
        Column("deviation", lambda row: row.cosines.std(), "deviation", number(".3f"), 11),
        Column(
            "a_squared",
            lambda row: row.run.final_model.normality.statistic,
            "A^2",
            number(".3f"),
            8,
        ),
        Column(None, format_normality, "  normal", left=True),
    )
    rows = []
    for plan, runs in every:
        for run in runs:
            cosines = run.final_model.cosines.observed * plan.dimension**0.5
            rows.append(_DensityRow(plan.label, run, cosines))
    title = f"{name}: cosines with the final model, in units of 1/sqrt(d)"
    note = "normal: Anderson and Darling's test (A^2) of the canaries that are in"
    table = Table(columns, rows, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), table.csv())


def make_splits_table(
    name: str, splits: Sequence[SplitQuantiles], words: str, delta: float
) -> OwnTable:
    """Makes a table of quantiles of the estimates, with all canaries in a single run or spread over several.

    Args:
      name: The sweep's name.
      splits: The quantiles, for each noise multiplier and observation.
      words: A description of the comparison, for the title.
      delta: The delta of every epsilon.
    """

    def analytical(row: _SplitRow) -> float:
        """Returns the epsilon that accounting allows for a canary that takes part once."""
        return epsilon_upper_bound(row.split.noise, 1, delta)

    columns = [
        Column("noise", lambda row: row.split.noise, "noise", number(".3g"), 7, left=True),
        Column("observed", lambda row: row.split.observe, "observed", width=9, left=True),
        Column("canaries", lambda row: row.place, "canaries in", width=13, left=True),
    ]
    for place, quantile in enumerate(estimates.QUANTILES):
        value = partial(_get_quantile, place)
        columns.append(Column(f"{quantile}", value, f"{quantile:g}", number(".4g"), 8))
    columns.append(Column(None, analytical, "analytical", number(".4g"), 11))

    rows = []
    for split in splits:
        rows.append(_SplitRow(split, "one run", split.one_run))
        rows.append(_SplitRow(split, "several runs", split.several_runs))
    title = f"{name}: {words}, delta {delta:.3g}"
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    table = Table(columns, rows, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), table.csv())


def _get_quantile(place: int, row: _SplitRow) -> float:
    """Returns a row's quantile at index `place` of QUANTILES."""
    return float(row.quantiles[place])


def _make_runs_table(
    name: str,
    planned: PlannedRuns,
    delta: float,
    last_heading: str,
    heads: Sequence[str],
    lines: Sequence[_Line],
) -> OwnTable:
    """Makes the table, and the CSV, of the training runs of a single kind of clients.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
      last_heading: A heading above the names of the last columns, those after the estimates; may be empty.
      heads: The columns' names.
      lines: The table's rows.
    """
    setting = planned.plan.setting
    # How many canaries are in and out hardly differs between runs: the first run's numbers stand for all.
    observed, unobserved, _ = planned.runs[0].all_iterates.cosines
    canaries = f"{len(observed):,} + {len(unobserved):,} canaries"
    rounds = f"{setting.rounds:,} x {setting.cohort} clients"
    conditions = f"{canaries}, {rounds}, delta {delta:.3g}"
    # The observations' headings begin after the 16 characters of the columns noise and upper bound.
    headings = f"{'':<16}{'all iterates':>24}{'final model':>24}{last_heading}"
    columns = []
    for place, head in enumerate(heads):
        value = partial(_get_cell, place)
        columns.append(Column(None, value, head, width=_WIDTHS[place], left=place == 0))
    table = Table(
        columns,
        lines,
        section=lambda line: line.section,
        before=(f"{name}: {planned.plan.label}", conditions, headings),
        after=(_RULE, _ESTIMATES_NOTE),
        gap="",
        rule=80,
    )
    return OwnTable(table.text(), _make_runs_csv(planned))


def _get_cell(place: int, line: _Line) -> str:
    """Returns the cell at index `place` of a line; empty if the line has fewer cells."""
    return line.cells[place] if place < len(line.cells) else ""


def _make_runs_csv(planned: PlannedRuns) -> bytes:
    """Makes a CSV with two rows for each run: observed by all iterates, and by the final model."""
    columns = (
        Column("clients", lambda row: planned.plan.label),
        Column("noise", lambda row: row.run.noise),
        Column("repetitions", lambda row: row.run.repetitions),
        Column("analytical", lambda row: row.run.analytical),
        Column("accounted", lambda row: row.run.accounted),
        Column("observed", lambda row: row.observed),
        Column("fitted", lambda row: row.observation.fitted.epsilon),
        Column("error", lambda row: row.observation.fitted.standard_error),
        Column("floor", lambda row: row.observation.fitted.noise_floor.mean),
        Column("floor_95", lambda row: row.observation.fitted.noise_floor.quantile_95),
        Column("equal_variance", lambda row: row.observation.equal_variance.epsilon),
        Column("in_sample", lambda row: row.observation.in_sample),
        Column("a_squared", lambda row: row.observation.normality.statistic),
        Column("accuracy", lambda row: row.run.accuracy),
        Column("accuracy_without", lambda row: row.run.plain_accuracy),
    )
    rows = []
    for run in planned.runs:
        rows.append(_ObservedRun(run, "all", run.all_iterates))
        rows.append(_ObservedRun(run, "final", run.final_model))
    return Table(columns, rows).csv()


def _make_run_line(run: FederatedRun, upper: str, *further_cells: str) -> _Line:
    """Makes the line of a run: noise, upper bound, both observations' estimates, and the further cells.

    Each observation, of all iterates and of the final model, has two cells: the fitted estimate with its
    standard error, and the paper's lower value (`in_sample`). A star marks an estimate from all iterates
    that exceeds the accounted epsilon by more than its error.

    Args:
      run: The training run.
      upper: The text of the run's upper bound on epsilon.
      *further_cells: The texts of the columns after the estimates.
    """
    mark = "*" if run.exceeds else ""
    cells = (
        f"{run.noise:.3g}",
        upper,
        f"{mark}{_format_estimate(run.all_iterates.fitted)}",
        f"{run.all_iterates.in_sample:.3f}",
        _format_estimate(run.final_model.fitted),
        f"{run.final_model.in_sample:.3f}",
        *further_cells,
    )
    return _Line(cells)


def _make_floor_line(run: FederatedRun) -> _Line:
    """Makes the line of noise floors: what a run's two fitted estimates would show if nothing leaked.

    Each floor is the mean of such estimates, with their 95% quantile in brackets.
    """
    all_iterates = run.all_iterates.fitted.noise_floor
    final_model = run.final_model.fitted.noise_floor
    cells = (
        "floor",
        "mean (95%)",
        f"{all_iterates.mean:.2f} ({all_iterates.quantile_95:.2f})",
        "",  # the paper's lower value has no floor
        f"{final_model.mean:.2f} ({final_model.quantile_95:.2f})",
    )
    return _Line(cells)


def _format_estimate(estimate: Estimate) -> str:
    """Formats an estimate with its standard error in brackets; larger estimates have fewer decimals."""
    decimals = 2
    if estimate.epsilon >= 1000:
        decimals = 0
    elif estimate.epsilon >= 10:
        decimals = 1
    return f"{estimate.epsilon:,.{decimals}f} ({estimate.standard_error:,.{decimals}f})"


def _format_accuracy(value: float | None) -> str:
    """Formats an accuracy; returns "-" for None."""
    return "-" if value is None else f"{value:.3f}"


def _method_column(
    method: str,
    values: Callable[[Any], Mapping[str, object]],
    show: Show,
    width: int = 0,
) -> Column:
    """Returns the column of an estimate.

    Args:
      method: The estimate's name, "one_shot_..."; the part after that prefix becomes the column's head.
      values: A function from a row to its values by method.
      show: A function that formats a value.
      width: The column's width in characters.
    """
    head = method.removeprefix("one_shot_").replace("_", " ")
    return Column(None, lambda row: values(row)[method], head, show, width)


def _format_printed(cell: TableCell, delta: float) -> str | None:
    """Formats what the paper prints in a cell of Table 1; returns None where it has no such cell."""
    printed = find_printed_cell(cell, delta)
    if printed is None:
        return None
    return f"{printed.mean:.2f} ({printed.deviation:.2f})"


def _format_spread(values: NDArray[np.float64]) -> str:
    """Formats the mean and the standard deviation of values."""
    return f"{values.mean():.2f} ({values.std():.2f})"
