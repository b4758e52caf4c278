"""The paper's tables as printed, and the numbers of the figures: in 80 columns and as CSV."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.methods import one_shot
from audit.methods.estimate import Estimate
from audit.methods.level import show_level
from audit.methods.one_shot import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from audit.report.bounds_table import show_floor
from audit.report.table import Column, Table, number
from experiments.one_shot import estimates
from experiments.one_shot.estimates import (
    FederatedRun,
    Floors,
    SplitQuantiles,
    TableCell,
)
from experiments.one_shot.sweep import DELTA, SIMULATIONS, TrainingPlan
from experiments.sweeps.records import Record, field, make_csv
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
_RULE = "-" * 80
_ESTIMATES = (
    field("all", "estimate", width=15),
    field("all_in_sample", "in-sample", width=10),
    field("final", "estimate", width=14),
    field("final_in_sample", "in-sample", width=10),
)


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


def find_printed_cell(cell: TableCell) -> PrintedCell | None:
    """Returns the cell of the paper's Table 1 at the same sigma and dimension; None if it has none."""
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


def make_simulated_table(
    cells: Sequence[TableCell], floors: Sequence[Floors], simulations: int
) -> OwnTable:
    """Makes Table 1 with a row for each cell, and below it the noise floors.

    A star after the equal-variance estimate marks a disagreement with the paper's.

    Args:
      cells: The simulated cells.
      floors: What each estimate shows if nothing leaks, by number of canaries.
      simulations: The number of simulations of each cell.
    """
    shown = []
    kept = []
    for cell in cells:
        record: Record = {
            "sigma": cell.sigma,
            "dimension": cell.dimension,
            "canaries": cell.canaries,
            "exact": cell.exact,
        }
        for method, epsilons in cell.epsilons.items():
            spread = {"method": method, "mean": epsilons.mean(), "deviation": epsilons.std()}
            kept.append(record | spread | {"simulations": len(epsilons)})
        shown.append(record | _show_estimates(cell, simulations))
    columns = (
        field("sigma", "sigma", number("g"), 5),
        field("dimension", "d", number(",.0e"), 9),
        field("canaries", "k", width=6),
        field("exact", "exact", number(".3f"), 7),
        field("paper", "paper", width=15),
        field("equal variance", "equal variance", width=15),
        # Columns have no gap: the star at the left end of this one follows the estimate that it marks.
        field("fitted", "fitted", width=15),
    )
    title = f"Table 1: estimates of epsilon at delta {show_level(DELTA)}, {simulations} simulations a cell"
    table = Table(columns, shown, before=(title,), after=(_SIMULATED_NOTE, ""), gap="", rule=72)
    return OwnTable(f"{table.text()}\n{_make_floors_table(floors).text()}", make_csv(kept))


def _show_estimates(cell: TableCell, simulations: int) -> Record:
    """Returns the texts of a cell's estimates, the paper's and ours."""
    printed = find_printed_cell(cell)
    mark = " "
    paper = ""
    if printed is not None:
        paper = f"{printed.mean:.2f} ({printed.deviation:.2f})"
        if not agrees(cell, printed, simulations):
            mark = "*"
    return {
        "paper": paper,
        "equal variance": _format_spread(cell.epsilons[ONE_SHOT_EQUAL_VARIANCE]),
        "fitted": f"{mark}{_format_spread(cell.epsilons[ONE_SHOT_FITTED]):>14}",
    }


def _make_floors_table(floors: Sequence[Floors]) -> Table[Record]:
    """Makes a table of noise floors: what each estimate shows if nothing leaks, by number of canaries."""
    columns = [field("canaries", "canaries", number(","), 8)]
    for method in _METHODS:
        head = method.removeprefix("one_shot_").replace("_", " ")
        columns.append(field(method, head, show_floor, 18))
    records = [{"canaries": row.canaries, **row.by_method} for row in floors]
    before = (f"Noise floors of epsilon at delta {show_level(DELTA)}",)
    return Table(columns, records, before=before, after=(_FLOORS_NOTE,), gap="")


def make_observations_table(name: str, planned: PlannedRuns, delta: float) -> OwnTable:
    """Makes a table in the shape of Tables 2, 3 and 5: our runs, the noise floor, and the paper's rows.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
    """
    records = []
    for run in planned.runs:
        record = _show_run(run, run.analytical)
        record["with"] = _format_accuracy(run.accuracy)
        record["without"] = _format_accuracy(run.plain_accuracy)
        records.append(record)
    records.append(_show_floor(planned.runs[0]))
    # Below our runs, the paper's rows for the data that these clients stand for.
    counterpart = planned.plan.counterpart
    for row in PRINTED[counterpart]:
        record = {
            "section": f"the paper, {counterpart}:",
            "noise": f"{row.noise:g}",
            "upper": f"{row.analytical:g}",
            "all": f"{row.all:,g}",
            "all_in_sample": f"{row.lower_all:g}",
            "final": f"{row.final:g}",
            "final_in_sample": f"{row.lower_final:g}",
        }
        records.append(record)
    columns = (
        field("noise", "noise", width=6, left=True),
        field("upper", "analytical", width=10),
        *_ESTIMATES,
        field("with", "with", width=7),
        field("without", "without", width=8),
    )
    # The accuracy of training with canaries and without.
    return _make_runs_table(name, planned, delta, f"{'accuracy':>16}", columns, records)


def make_repetitions_table(name: str, planned: PlannedRuns, delta: float) -> OwnTable:
    """Makes a table with a row for each noise multiplier and number of repetitions (Figures 2 and 3).

    A repetition is a round in which a canary takes part. The upper bound on epsilon is that of all of a
    canary's repetitions.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
    """
    records = []
    for run in planned.runs:
        records.append(_show_run(run, run.accounted) | {"times": run.repetitions})
    records.append(_show_floor(planned.runs[0]))
    columns = (
        field("noise", "noise", width=6, left=True),
        field("upper", "accounted", width=10),
        *_ESTIMATES,
        field("times", "times", width=7),
    )
    return _make_runs_table(name, planned, delta, "", columns, records)


def make_densities_table(name: str, every: Sequence[PlannedRuns]) -> OwnTable:
    """Makes a table in the shape of Table 4: the final model's cosines and whether they are normal.

    Args:
      name: The sweep's name.
      every: For each kind of clients, its plan and stored runs.
    """
    kept: list[Record] = []
    shown = []
    for plan, runs in every:
        for run in runs:
            cosines = run.final_model.cosines.observed * plan.dimension**0.5
            normality = run.final_model.normality
            record: Record = {
                "clients": plan.label,
                "noise": run.noise,
                "repetitions": run.repetitions,
                "mean": cosines.mean(),
                "deviation": cosines.std(),
                "a_squared": normality.statistic,
            }
            kept.append(record)
            shown.append(record | {"level": normality.rejected_at})
    columns = (
        field("clients", "", width=16, left=True),
        field("noise", "noise", number(".3g"), 9),
        field("repetitions", "times", width=7),
        field("mean", "mean", number(".2f"), 9),
        field("deviation", "deviation", number(".3f"), 11),
        field("a_squared", "A^2", number(".3f"), 8),
        field("level", "  normal", "  rejected at {:g}".format, left=True, none="  not rejected"),
    )
    title = f"{name}: cosines with the final model, in units of 1/sqrt(d)"
    note = "normal: Anderson and Darling's test (A^2) of the canaries that are in"
    table = Table(columns, shown, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), make_csv(kept))


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
    kept: list[Record] = []
    shown = []
    for split in splits:
        # The epsilon that accounting allows for a canary that takes part once.
        analytical = {"analytical": epsilon_upper_bound(split.noise, 1, delta)}
        for place, values in (("one run", split.one_run), ("several runs", split.several_runs)):
            record: Record = {"noise": split.noise, "observed": split.observe, "canaries": place}
            for quantile, value in zip(estimates.QUANTILES, values, strict=True):
                record[f"{quantile:g}"] = value
            kept.append(record)
            shown.append(record | analytical)
    columns = [
        field("noise", "noise", number(".3g"), 7, left=True),
        field("observed", "observed", width=9, left=True),
        field("canaries", "canaries in", width=13, left=True),
    ]
    for quantile in estimates.QUANTILES:
        columns.append(field(f"{quantile:g}", f"{quantile:g}", number(".4g"), 8))
    columns.append(field("analytical", "analytical", number(".4g"), 11))
    title = f"{name}: {words}, delta {delta:.3g}"
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    table = Table(columns, shown, before=(title,), after=(_RULE, note), gap="", rule=80)
    return OwnTable(table.text(), make_csv(kept))


def _make_runs_table(
    name: str,
    planned: PlannedRuns,
    delta: float,
    last_heading: str,
    columns: Sequence[Column],
    records: Sequence[Record],
) -> OwnTable:
    """Makes the table, and the CSV, of the training runs of a single kind of clients.

    Args:
      name: The sweep's name.
      planned: The clients and their stored runs, at least one.
      delta: The delta of every epsilon.
      last_heading: A heading above the names of the last columns, those after the estimates; may be empty.
      columns: The table's columns.
      records: The table's rows.
    """
    setting = planned.plan.setting
    # How many canaries are in and out hardly differs between runs: the first run's numbers stand for all.
    observed, unobserved, _ = planned.runs[0].all_iterates.cosines
    canaries = f"{len(observed):,} + {len(unobserved):,} canaries"
    rounds = f"{setting.rounds:,} x {setting.cohort} clients"
    conditions = f"{canaries}, {rounds}, delta {delta:.3g}"
    # The observations' headings begin after the 16 characters of the columns noise and upper bound.
    headings = f"{'':<16}{'all iterates':>24}{'final model':>24}{last_heading}"
    table = Table(
        columns,
        records,
        section=lambda record: record.get("section", ""),
        before=(f"{name}: {planned.plan.label}", conditions, headings),
        after=(_RULE, _ESTIMATES_NOTE),
        gap="",
        rule=80,
    )
    return OwnTable(table.text(), _make_runs_csv(planned))


def _make_runs_csv(planned: PlannedRuns) -> bytes:
    """Makes a CSV with two rows for each run: observed by all iterates, and by the final model."""
    records = []
    for run in planned.runs:
        for observed, observation in (("all", run.all_iterates), ("final", run.final_model)):
            fitted = observation.fitted
            record = {
                "clients": planned.plan.label,
                "noise": run.noise,
                "repetitions": run.repetitions,
                "analytical": run.analytical,
                "accounted": run.accounted,
                "observed": observed,
                "fitted": fitted.epsilon,
                "error": fitted.standard_error,
                "floor": fitted.noise_floor.mean,
                "floor_95": fitted.noise_floor.quantile_95,
                "equal_variance": observation.equal_variance.epsilon,
                "in_sample": observation.in_sample,
                "a_squared": observation.normality.statistic,
                "accuracy": run.accuracy,
                "accuracy_without": run.plain_accuracy,
            }
            records.append(record)
    return make_csv(records)


def _show_run(run: FederatedRun, upper: float) -> Record:
    """Returns the texts of a run: noise, upper bound on epsilon, and the estimates of both observations.

    A star marks an estimate from all iterates that exceeds the accounted epsilon by more than its error.
    """
    mark = "*" if run.exceeds else ""
    return {
        "noise": f"{run.noise:.3g}",
        "upper": f"{upper:.4g}",
        "all": f"{mark}{_format_estimate(run.all_iterates.fitted)}",
        "all_in_sample": f"{run.all_iterates.in_sample:.3f}",
        "final": _format_estimate(run.final_model.fitted),
        "final_in_sample": f"{run.final_model.in_sample:.3f}",
    }


def _show_floor(run: FederatedRun) -> Record:
    """Returns the texts of the noise floors: the mean (95% quantile) of estimates if nothing leaks."""
    all_iterates = run.all_iterates.fitted.noise_floor
    final_model = run.final_model.fitted.noise_floor
    return {
        "noise": "floor",
        "upper": "mean (95%)",
        "all": f"{all_iterates.mean:.2f} ({all_iterates.quantile_95:.2f})",
        "final": f"{final_model.mean:.2f} ({final_model.quantile_95:.2f})",
    }


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


def _format_spread(values: NDArray[np.float64]) -> str:
    """Formats the mean and the standard deviation of values."""
    return f"{values.mean():.2f} ({values.std():.2f})"
