"""The paper's tables, printed and computed, and the numbers of the figures: in 80 columns and as CSV."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.laws import cosine_law
from audit.methods import one_shot
from audit.methods.estimate import Estimate
from audit.methods.method import NoiseFloor
from audit.methods.one_shot import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from audit.report.table import Column, Table, number
from audit.written import show_level
from experiments.one_shot import estimates
from experiments.one_shot.estimates import FederatedRun, SplitQuantiles, TableCell
from experiments.one_shot.sweep import DELTA, SIMULATIONS
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import OwnTable

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
_DENSITIES_NOTE = """\
cosines with the final model, in units of 1/sqrt(d)
normal: Anderson and Darling's test (A^2) of the canaries that are in"""
_RULE = "-" * 80


class PrintedCell(NamedTuple):
    """A cell of the paper's Table 1.

    Attributes:
      mean: The estimate's mean over 50 simulations.
      deviation: The estimate's standard deviation over them.
    """

    mean: float
    deviation: float


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

# The paper's rows of Tables 2 and 5, by the data, as they stand below ours.
_PRINTED = {
    "StackOverflow": """\
the paper, StackOverflow:
0            inf         45,800      6.24           4.6      2.88
0.0496       300            382     6.238          1.97      1.11
0.0986       100           89.4      5.05          1.18     0.688
0.2317        30          2.693     0.407         0.569     0.311""",
    "EMNIST": """\
the paper, EMNIST:
0            inf         48,300      6.25          5.72      3.86
0.16        33.8           17.9      2.87           1.2      1.01
0.18        28.1             12      2.32          1.15     0.788
0.195       24.8           8.88      2.02          1.08     0.723
0.25        16.9           3.86     0.896         0.818      0.55
0.315         12            1.5     0.315         0.737     0.216""",
}


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


def make_simulated_table(cells: Sequence[TableCell], floors: Sequence[int]) -> OwnTable:
    """Makes Table 1 with a row for each cell, and below it the noise floors.

    A star after the equal-variance estimate marks a disagreement with the paper's.

    Args:
      cells: The simulated cells.
      floors: The numbers of canaries of which noise floors are shown.
    """
    records = []
    for cell in cells:
        record: Record = cell._asdict()
        for method, epsilons in cell.epsilons.items():
            record[method] = epsilons.mean()
            record[f"{method}_deviation"] = epsilons.std()
            record[f"{method}_shown"] = _format_spread(epsilons)
        printed = find_printed_cell(cell)
        if printed is not None:
            record["paper"] = f"{printed.mean:.2f} ({printed.deviation:.2f})"
            simulations = len(cell.epsilons[ONE_SHOT_EQUAL_VARIANCE])
            record["star"] = "" if agrees(cell, printed, simulations) else "*"
        records.append(record)
    columns = [
        field("sigma", "sigma", number("g"), 5),
        field("dimension", "d", number(",.0e"), 9),
        field("canaries", "k", width=6),
        field("exact", "exact", number(".3f"), 7),
        _show("paper", "paper", 15),
        _show(f"{ONE_SHOT_EQUAL_VARIANCE}_shown", "equal variance", 15),
        _show("star", "", 1),
        _show(f"{ONE_SHOT_FITTED}_shown", "fitted", 14),
    ]
    for method in one_shot.FITTED:
        columns += [field(method), field(f"{method}_deviation")]
    at_delta = f"epsilon at delta {show_level(DELTA)}"
    table = _make_table(f"Table 1: estimates of {at_delta}", columns, records, _SIMULATED_NOTE)

    floor_columns = [field("canaries", "canaries", number(","), 8)]
    for method in one_shot.FITTED:
        head = method.removeprefix("one_shot_").replace("_", " ")
        floor_columns.append(field(method, head, width=18))
    floor_records = []
    for canaries in floors:
        record = {"canaries": canaries}
        for method in one_shot.FITTED:
            record[method] = _format_floor(one_shot.noise_floor(method, canaries, 0, DELTA), 3)
        floor_records.append(record)
    below = _make_table(f"Noise floors of {at_delta}", floor_columns, floor_records, _FLOORS_NOTE)
    return OwnTable(f"{table.text}\n\n{below.text}", table.csv)


def make_observations_table(title: str, runs: Sequence[FederatedRun]) -> OwnTable:
    """Makes Table 2 or 5: our runs with accuracies, and below them the paper's rows."""
    columns = [
        field("accuracy", "with", number(".3f"), 7, none="-"),
        field("plain_accuracy", "without", number(".3f"), 8, none="-"),
    ]
    return _make_runs_table(
        title, runs, columns, f"{_PRINTED[runs[0].plan.counterpart]}\n{_RULE}\n"
    )


def make_repetitions_table(title: str, runs: Sequence[FederatedRun]) -> OwnTable:
    """Makes the table of Figure 2 or 3: a row for each noise multiplier and number of repetitions."""
    return _make_runs_table(title, runs, [field("repetitions", "times", width=7)], "")


def make_densities_table(title: str, runs: Sequence[FederatedRun]) -> OwnTable:
    """Makes Table 4: the final model's cosines and whether they are normal."""
    records = []
    for run in runs:
        cosines = run.final_model.cosines.observed * run.plan.dimension**0.5
        normality = cosine_law.anderson_darling(cosines)
        record: Record = {
            "clients": run.plan.label,
            "noise": run.noise,
            "repetitions": run.repetitions,
            "mean": cosines.mean(),
            "deviation": cosines.std(),
            "a_squared": normality.statistic,
            "rejected_at": normality.rejected_at,
        }
        records.append(record)
    columns = [
        field("clients", "", width=16, left=True),
        field("noise", "noise", number(".3g"), 9),
        field("repetitions", "times", width=7),
        field("mean", "mean", number(".2f"), 9),
        field("deviation", "deviation", number(".3f"), 11),
        field("a_squared", "A^2", number(".3f"), 8),
        field("rejected_at", "normal", "rejected at {:g}".format, 18, none="not rejected"),
    ]
    return _make_table(title, columns, records, f"{_RULE}\n{_DENSITIES_NOTE}")


def make_splits_table(title: str, splits: Sequence[SplitQuantiles]) -> OwnTable:
    """Makes the table of Figure 4: quantiles of the estimates, from a single run and from several."""
    records = []
    for split in splits:
        for place, values in (("one run", split.one_run), ("several runs", split.several_runs)):
            quantiles = zip(map(str, estimates.QUANTILES), values, strict=True)
            records.append({**split._asdict(), "canaries": place, **dict(quantiles)})
    columns = [
        field("noise", "noise", number(".3g"), 7, left=True),
        field("observe", "observed", width=9, left=True),
        field("canaries", "canaries in", width=13, left=True),
        *(
            field(f"{quantile}", f"{quantile}", number(".4g"), 8)
            for quantile in estimates.QUANTILES
        ),
        field("analytical", "analytical", number(".4g"), 11),
    ]
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    return _make_table(title, columns, records, f"{_RULE}\n{note}")


def _make_runs_table(
    title: str, runs: Sequence[FederatedRun], last: list[Column], printed: str
) -> OwnTable:
    """Makes the table of training runs of one kind of clients, with a line of noise floors below the runs.

    Args:
      title: The line above the table.
      runs: The runs, at least one.
      last: The table's columns after the estimates.
      printed: The paper's rows, if any.
    """
    first = runs[0]
    columns = [
        field("noise", "noise", number(".3g"), 6, left=True),
        field("accounted", "accounted", number(".4g"), 10),
        *_make_observation_columns("all", 15),
        *_make_observation_columns("final", 14),
        *last,
    ]
    records = [_describe(run) for run in runs]
    # The numbers of canaries in and out hardly differ between runs: the first run's stand for all.
    observed, unobserved, _ = first.all_iterates.cosines
    setting = first.plan.setting
    before = (
        f"{title}\n"
        f"{len(observed):,} + {len(unobserved):,} canaries, "
        f"{setting.rounds:,} x {setting.cohort} clients\n"
        f"{'':<16}{'all iterates':>24}{'final model':>24}"
    )
    all_floor = _format_floor(first.all_iterates.fitted.noise_floor, 2)
    final_floor = _format_floor(first.final_model.fitted.noise_floor, 2)
    floors = f"floor mean (95%){all_floor:>15}{final_floor:>24}"
    note = f"{floors}\n{_RULE}\n{printed}{_ESTIMATES_NOTE}"
    return _make_table(before, columns, records, note)


def _make_observation_columns(observed: str, width: int) -> list[Column]:
    """Returns the columns of an observation, "all" or "final"; CSV has the numbers of the estimate."""
    return [
        _show(f"{observed}_shown", "estimate", width),
        field(observed),
        field(f"{observed}_error"),
        field(f"{observed}_in_sample", "in-sample", number(".3f"), 10),
    ]


def _describe(run: FederatedRun) -> Record:
    """Returns a run as a record. A star marks an estimate that exceeds the accounted epsilon."""
    record: Record = run._asdict()
    for observed, observation in (("all", run.all_iterates), ("final", run.final_model)):
        record[observed] = observation.fitted.epsilon
        record[f"{observed}_error"] = observation.fitted.standard_error
        record[f"{observed}_shown"] = _format_estimate(observation.fitted)
        record[f"{observed}_in_sample"] = observation.in_sample
    if run.exceeds:
        record["all_shown"] = f"*{record['all_shown']}"
    return record


def _make_table(
    title: str, columns: Sequence[Column], records: Sequence[Record], note: str
) -> OwnTable:
    """Makes a table, 80 columns wide, with a title above and a note below."""
    table = Table(columns, records, before=[title], after=[note], gap="", rule=80)
    return OwnTable(table.text(), table.csv())


def _show(name: str, head: str, width: int) -> Column:
    """Returns the column of a text, which CSV lacks."""
    return field(name, head, width=width)._replace(key=None)


def _format_floor(floor: NoiseFloor, decimals: int) -> str:
    """Formats the mean (95% quantile) of an estimate if nothing leaks."""
    return f"{floor.mean:.{decimals}f} ({floor.quantile_95:.{decimals}f})"


def _format_estimate(estimate: Estimate) -> str:
    """Formats an estimate with its standard error in brackets; larger estimates have fewer decimals."""
    decimals = 2
    if estimate.epsilon >= 1000:
        decimals = 0
    elif estimate.epsilon >= 10:
        decimals = 1
    return f"{estimate.epsilon:,.{decimals}f} ({estimate.standard_error:,.{decimals}f})"


def _format_spread(values: NDArray[np.float64]) -> str:
    """Formats the mean and the standard deviation of values."""
    return f"{values.mean():.2f} ({values.std():.2f})"
