"""Runs all methods and shows their bounds and estimates in a table and a figure.

CANIFE's estimates do not use amplification by sampling, because the adversary knows the mini-batches.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.strategies import INDEPENDENT
from audit.conclusions.concluded import conclude_each_run
from audit.laws import conversions
from audit.methods.estimate import Bound
from audit.report.style import BLACK, BLUE, FADED, ORANGE, VERMILION
from audit.report.table import Column, Table, at_least, at_most
from audit.training import build, driver
from audit.written import Level, counted, show_level
from experiments.canife import measured as canife_measured
from experiments.canife import rounds
from experiments.canife import training as canife_training
from experiments.canife.attacked import Attacked
from experiments.canife.measured import Measured
from experiments.canife.rounds import Charge
from experiments.cells.work import Workplace
from experiments.compare.compared import (
    ALL,
    FINAL,
    ONE_SHOT,
    Compared,
    TrainedMethod,
    list_methods,
    make_attacked,
)
from experiments.sweeps.panels import draw_dot, draw_panels, take
from experiments.sweeps.records import Record, field, select

ESTIMATE = "(no bound)"
REJECTED = "REJECTED"
_VIEWS = {FINAL: "sees the final model", ALL: "sees every iterate"}
# The displayed assumptions of bounds that hold for any trade-off curve.
_ANY_CURVE = ("nothing", "fair coins", "fresh directions")
_NOTES = """\
estimator: bounds have confidence {confidence} under their assumptions.
(no bound): an estimate or a measurement. s: seconds; kept: already stored.
All rows share the mechanism, neighbouring relation (add a canary) and delta:
{steps:,} steps of DP-SGD with the canary in each step, {noise} noise,
sigma = {sigma:g}."""
_REJECTED = "REJECTED: not valid, because the scores contradict a Gaussian curve."


def find_rows(compared: Compared, place: Workplace) -> list[Record]:
    """Trains all missing runs and returns a record for each bound and estimate of each method.

    Returns:
      Records, starting with those for methods that see only the final model. Their fields are `method`, a
      name; `sees`, FINAL or ALL; `runs`, the number of models; `seconds`, the training time, or None if all
      runs were stored; `value`, the name of a bound or an estimate; its `epsilon`; and `assumes`: a bound's
      assumption, REJECTED if the scores refute it, or ESTIMATE for an estimate.
    """
    # CANIFE can only compose independent noise. We prepare it first, since it may reject the setting.
    includes_canife = compared.noise == INDEPENDENT
    if includes_canife:
        canife_training.prepare(make_attacked(compared), place.out, place.data)
    rows: list[Record] = []
    for method in list_methods(compared):
        print(f"{method.name} ...", file=sys.stderr)
        rows += find_values(compared, method, place)
    if includes_canife:
        print("CANIFE ...", file=sys.stderr)
        rows += _find_canife(compared, place)
    return sorted(rows, key=lambda row: row["sees"] != FINAL)  # False sorts before True


def find_values(compared: Compared, method: TrainedMethod, place: Workplace) -> list[Record]:
    """Trains a method's missing runs and returns its records (see `find_rows`), with rejected bounds last."""
    level = Level(compared.delta, compared.confidence)
    dataset = place.data.load(compared.model)
    request = driver.make_request(method.setting, dataset, method.runs, level)
    begin = time.perf_counter()
    finished = driver.audit(request, place.out)
    seconds = None  # if stored
    if finished.trained is not None:
        seconds = time.perf_counter() - begin
    conclusion = finished.conclusion
    if method.setting.adversary.name == ONE_SHOT:
        # The usual conclusion ignores that scores are cosines with random directions. For the final model,
        # the cosines of left-out canaries have a known distribution.
        dimension = build.trainee(compared.model, dataset).model.n_parameters
        (conclusion,) = conclude_each_run(
            finished.scores, dimension, law_holds=method.sees == FINAL, level=level
        )
    rows = []
    for name in method.shown:
        finding = conclusion.finding(name)
        assumes = ESTIMATE
        if isinstance(finding, Bound):
            assumes = finding.assumes.word if finding.holds else REJECTED
        rows.append(
            {
                "method": method.name,
                "sees": method.sees,
                "runs": method.runs,
                "seconds": seconds,
                "value": finding.method,  # a bound's or estimate's name
                "epsilon": finding.epsilon,
                "assumes": assumes,
            }
        )
    return sorted(rows, key=lambda row: row["assumes"] == REJECTED)


def _find_canife(compared: Compared, place: Workplace) -> list[Record]:
    """Measures CANIFE's missing rounds and returns two records (see `find_rows`), one for each composition.

    Each measured round represents itself and the rounds before the next measured one.
    """
    begin = time.perf_counter()
    attacked, store = canife_training.prepare(make_attacked(compared), place.out, place.data)
    numbers = attacked.measured()
    new_rounds = list(canife_training.measure_missing(attacked, place.data, store, numbers))
    seconds = time.perf_counter() - begin if new_rounds else None
    counts = rounds.count_rounds(numbers, attacked.rounds)
    measured = canife_measured.read_rounds(store, numbers)
    counted_rounds = list(zip(measured, counts, strict=True))
    published = _compose_estimates(attacked, counted_rounds)
    exact = _compose_exact(counted_rounds, attacked.delta)
    common = {"method": "CANIFE", "sees": ALL, "runs": 1, "seconds": seconds, "assumes": ESTIMATE}
    return [
        {**common, "value": "as published", "epsilon": published},
        {**common, "value": "exact laws", "epsilon": exact},
    ]


def _compose_estimates(attacked: Attacked, counted_rounds: Sequence[tuple[Measured, int]]) -> float:
    """Returns the training run's epsilon, composed from the paper's estimates for the measured rounds.

    Like the paper's code, we convert each estimate to the noise multiplier of a Gaussian release with this
    epsilon, and compose the releases using Renyi DP. The sampling rate is 1, because the adversary knows the
    mini-batches. `counted_rounds` pairs each measured round with the number of rounds that it represents.
    """
    estimate_delta = 1 / attacked.scores  # the paper's choice; `scores` is the number per round
    charges = []
    for measured, represented in counted_rounds:
        estimate = rounds.best_epsilon(measured.scores_in, measured.scores_out, estimate_delta)
        # If the estimate is infinite, this returns `true_noise`.
        noise = rounds.find_renyi_noise(
            estimate.epsilon, estimate_delta, true_noise=attacked.noise_multiplier
        )
        charges.append(Charge(noise, sampling_rate=1.0, rounds=represented))
    return rounds.composed(charges, attacked.delta)


def _compose_exact(counted_rounds: Sequence[tuple[Measured, int]], delta: float) -> float:
    """Returns the training run's epsilon at delta, composed from the exact epsilons of the measured rounds.

    We convert each epsilon to the mu of a Gaussian curve with this epsilon. The squares of mu add up.
    """
    sum_of_squares = 0.0  # of mu
    for measured, represented in counted_rounds:
        sum_of_squares += represented * conversions.mu_from_epsilon(measured.exact, delta) ** 2
    return conversions.epsilon_from_mu(float(np.sqrt(sum_of_squares)), delta)


def make_table(compared: Compared, rows: Sequence[Record], upper: float) -> Table[Record]:
    """Returns a table of the records of `find_rows`.

    `upper` is the accountant's epsilon. Columns without a heading are only in the CSV.
    """
    columns = [
        field("method", "method", width=20, left=True),
        field("value", "estimator", width=23, left=True),
        field("sees"),
        field("runs", "runs", ",", width=5),
        field("seconds", "s", ".0f", width=4, none="kept"),  # already stored
        Column(value=_show_epsilon, head="epsilon", width=7),  # rounded
        field("epsilon"),
        field("assumes", "assumes", left=True),
        Column(key="upper_bound", value=lambda row: upper),
    ]
    # A line below the table, with its column widths (10 for `runs` and `s`).
    upper_bound = f"{'upper bound':<20} {'accounting':<23} {'':>10} {at_most(upper):>7}"
    notes = _NOTES.format(
        confidence=show_level(compared.confidence),
        steps=compared.steps,
        sigma=compared.noise_multiplier,
        noise=compared.noise,
    )
    after = ["-" * 80, upper_bound, notes]
    if any(row["assumes"] == REJECTED for row in rows):
        after.append(_REJECTED)
    return Table(
        columns,
        rows,
        section=lambda row: _VIEWS[row["sees"]],
        before=[
            f"epsilon at delta {show_level(compared.delta)}: {compared.model} on Fashion-MNIST"
        ],
        after=after,
        gap=" ",
        rule=80,
    )


def _show_epsilon(row: Record) -> str:
    """Returns a record's epsilon as text, rounded down for a bound and to the nearest value otherwise."""
    epsilon = row["epsilon"]
    return f"{epsilon:.3f}" if row["assumes"] == ESTIMATE else at_least(epsilon)


def draw(rows: Sequence[Record], upper: float, delta: float) -> Figure:
    """Plots each record's epsilon as a dot, from top to bottom, and the accountant's epsilon as a line.

    Values above 1.68 times `upper`, the accountant's epsilon, are drawn as arrows at the edge of the axis, so
    they do not squeeze the other dots together.
    """
    largest = max(upper, take(rows, "epsilon").max())
    edge = 1.05 * min(1.6 * upper, largest)  # 5% beyond the last dot

    def draw_rows(axis: Axes) -> None:
        """Draws all records on one axis, which ends at `edge`."""
        names = []
        for place, row in enumerate(rows):
            color, label = _find_look(row)
            is_bound = row["assumes"] not in (ESTIMATE, REJECTED)
            draw_dot(axis, place, row["epsilon"], edge, color, is_bound, label)
            if row["epsilon"] > edge:  # an arrow, with its value to the left
                axis.text(
                    0.98 * edge, place, _show_epsilon(row), ha="right", va="center", fontsize=8
                )
            estimator = row["value"].replace("_", " ")
            names.append(f"{row['method']}: {estimator}, {counted(row['runs'], 'model')}")
        label = "upper bound (accounting)"
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label=label)
        axis.set_yticks(range(len(rows)), names, fontsize=8)
        axis.set(xlim=(0, edge), xlabel=f"epsilon at delta {show_level(delta)}")
        axis.invert_yaxis()
        # Records for the final model come first. The line separates these records from the others.
        split = len(select(rows, sees=FINAL)) - 0.5
        label = "below: methods that see every iterate"
        axis.axhline(split, color="0.7", lw=0.8, label=label)

    title = "One mechanism: fresh directions, and the methods of four papers"
    return draw_panels(title, {"": draw_rows}, (7, 0.24 * len(rows)))


def _find_look(row: Record) -> tuple[str, str]:
    """Returns the color of a record's dot and its label in the legend."""
    if row["assumes"] == REJECTED:
        return FADED, "rejected: the curve is not Gaussian"
    if row["assumes"] == ESTIMATE:
        return VERMILION, "estimate, not a bound"
    if row["assumes"] in _ANY_CURVE:  # none of these limits the shape of the trade-off curve
        return ORANGE, "bound for any curve"
    return BLUE, "bound under an assumption"
