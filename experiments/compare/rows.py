"""The values of each method as records, table and figure. Bounds are those of the method's command.

CANIFE's values are composed without amplification by sampling, since the mini-batches are known.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.conclusions.concluded import conclude_each_run
from audit.laws import conversions
from audit.methods import one_shot
from audit.methods.estimate import Finding
from audit.report.style import BLACK, FADED, FREE, IN, OUT
from audit.report.table import Column, Table, at_least, at_most
from audit.training import build, driver
from audit.written import Level, counted, show_level
from experiments.canife import measured as canife_measured
from experiments.canife import rounds
from experiments.canife import training as canife_training
from experiments.canife.rounds import Charge
from experiments.cells.work import Workplace
from experiments.compare.compared import (
    ALL,
    FINAL,
    Compared,
    TrainedMethod,
    list_methods,
    make_attacked,
)
from experiments.sweeps.panels import draw_dot, draw_panels, take
from experiments.sweeps.records import Record, field, select

_PUBLISHED = (one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE)  # the paper's estimates
ESTIMATE = "(no bound)"
REJECTED = "REJECTED"
_VIEWS = {FINAL: "sees the final model", ALL: "sees every iterate"}
_FREE = ("nothing", "fair coins", "fresh directions")  # assumptions of bounds for every curve
_NOTES = """\
estimator: bounds have confidence {confidence} under their assumptions.
(no bound): an estimate or a measurement. s: seconds; kept: already stored.
All rows have the same mechanism, neighbours (add a canary) and delta:
{steps:,} steps of DP-SGD with the canary in each step, sigma = {sigma:g}."""
_REJECTED = "REJECTED: not valid, since these scores reject a Gaussian curve."


def find_rows(compared: Compared, place: Workplace) -> list[Record]:
    """Trains missing runs, and returns a record for each value of each method, of the final model first.

    A record has the `method`, the models that it `sees`, its `runs`, the `seconds` of training (None if all
    runs were stored), the name of the `value`, its `epsilon`, and in `assumes` a bound's assumption,
    REJECTED, or ESTIMATE. Each method's name is printed on stderr when it starts.
    """
    # First, since CANIFE may reject the setting.
    canife_training.prepare(make_attacked(compared), place.out, place.data)
    rows: list[Record] = []
    for method in list_methods(compared):
        print(f"{method.name} ...", file=sys.stderr)
        rows += find_values(compared, method, place)
    print("CANIFE ...", file=sys.stderr)
    rows += _find_canife(compared, place)
    return sorted(rows, key=lambda row: row["sees"] != FINAL)  # False sorts before True


def find_values(compared: Compared, method: TrainedMethod, place: Workplace) -> list[Record]:
    """Trains a method's missing runs, and returns its records with refuted bounds last."""
    level = Level(compared.delta, compared.confidence)
    dataset = place.data.load(compared.model)
    request = driver.make_request(method.setting, dataset, method.runs, level)
    begin = time.perf_counter()
    finished = driver.audit(request, place.out)
    seconds = None
    if finished.trained is not None:
        seconds = time.perf_counter() - begin
    conclusion = finished.conclusion
    bounds = [conclusion.bound(name) for name in method.shown]
    found: list[tuple[Finding, str]] = []
    if not bounds:
        dimension = build.trainee(compared.model, dataset).model.n_parameters
        (conclusion,) = conclude_each_run(finished.scores, dimension, method.sees == FINAL, level)
        bounds = list(conclusion.bounds)
        for estimate in conclusion.estimates:
            if estimate.method in _PUBLISHED:
                found.append((estimate, ESTIMATE))
    for bound in bounds:
        refuted = bound.assumes.gaussian and conclusion.refutes_gaussian
        found.append((bound, REJECTED if refuted else bound.assumes.word))
    found.sort(key=lambda value: value[1] == REJECTED)
    rows = []
    for finding, assumes in found:
        row = {
            "method": method.name,
            "sees": method.sees,
            "runs": method.runs,
            "seconds": seconds,
            "value": finding.method,
            "epsilon": finding.epsilon,
            "assumes": assumes,
        }
        rows.append(row)
    return rows


def _find_canife(compared: Compared, place: Workplace) -> list[Record]:
    """Returns CANIFE's two records: epsilon by its published estimates, and by its canaries' exact laws.

    Each measured round represents the rounds up to the next. As in the paper's code, a published estimate
    becomes the noise multiplier of a Gaussian release with the same leakage, and Renyi DP composes these at
    sampling rate 1. An exact epsilon becomes the mu of a Gaussian curve with this epsilon, and the squares of
    mu add up.
    """
    begin = time.perf_counter()
    attacked, split, store = canife_training.prepare(make_attacked(compared), place.out, place.data)
    numbers = attacked.measured()
    seconds = None
    # Making the list measures missing rounds. It is empty if all are stored.
    if list(canife_training.measure_missing(attacked, split, store, numbers)):
        seconds = time.perf_counter() - begin
    charges = []
    sum_of_squares = 0.0
    counts = rounds.forward(numbers, attacked.rounds)  # rounds that each measured one represents
    measured_rounds = canife_measured.read_rounds(store, numbers)
    # The paper's estimates have the delta 1 / n, for n scores.
    estimate_delta = 1 / attacked.scores
    for one, count in zip(measured_rounds, counts, strict=True):
        epsilon = rounds.best_epsilon(one.scores_in, one.scores_out, estimate_delta).epsilon
        noise = rounds.renyi_charge(epsilon, estimate_delta, attacked.noise_multiplier)
        charges.append(Charge(noise, sampling_rate=1.0, rounds=count))
        sum_of_squares += count * conversions.mu_from_epsilon(one.exact, attacked.delta) ** 2
    values = {
        "as published": rounds.composed(charges, attacked.delta),
        "exact laws": conversions.epsilon_from_mu(float(np.sqrt(sum_of_squares)), attacked.delta),
    }
    rows = []
    for value, epsilon in values.items():
        row = {
            "method": "CANIFE",
            "sees": ALL,
            "runs": 1,
            "seconds": seconds,
            "value": value,
            "epsilon": epsilon,
            "assumes": ESTIMATE,
        }
        rows.append(row)
    return rows


def make_table(compared: Compared, rows: Sequence[Record], upper: float) -> Table[Record]:
    """Returns the comparison's table: a row for each value, and below the accountant's epsilon `upper`."""
    columns = [
        field("method", "method", width=20, left=True),
        field("value", "estimator", width=23, left=True),
        field("sees"),
        field("runs", "runs", ",", 5),
        field("seconds", "s", ".0f", 4, none="kept"),
        Column(None, _show_epsilon, "epsilon", width=7),
        field("epsilon"),
        field("assumes", "assumes", left=True),
        Column("upper_bound", lambda row: upper),
    ]
    upper_bound = f"{'upper bound':<20} {'accounting':<23} {'':>10} {at_most(upper):>7}"
    notes = _NOTES.format(
        confidence=show_level(compared.confidence),
        steps=compared.steps,
        sigma=compared.noise_multiplier,
    )
    after = ["-" * 80, upper_bound, notes]
    if any(row["assumes"] == REJECTED for row in rows):
        after.append(_REJECTED)
    before = [f"epsilon at delta {show_level(compared.delta)}: {compared.model} on Fashion-MNIST"]
    return Table(
        columns,
        rows,
        section=lambda row: _VIEWS[row["sees"]],
        before=before,
        after=after,
        gap=" ",
        rule=80,
    )


def _show_epsilon(row: Record) -> str:
    """Formats epsilon, with bounds rounded down."""
    epsilon = row["epsilon"]
    return f"{epsilon:.3f}" if row["assumes"] == ESTIMATE else at_least(epsilon)


def draw(rows: Sequence[Record], upper: float, delta: float) -> Figure:
    """Draws each value as a dot, from top to bottom, and the accountant's epsilon `upper` as a line.

    The horizontal axis ends 5% above the largest epsilon, or 1.6 times the accountant's if this is less.
    Estimates beyond it are arrows with their value.
    """
    largest = max(upper, take(rows, "epsilon").max())
    edge = 1.05 * min(1.6 * upper, largest)

    def draw_rows(axis: Axes) -> None:
        names = []
        for place, row in enumerate(rows):
            color, label = _find_look(row)
            is_bound = row["assumes"] not in (ESTIMATE, REJECTED)
            draw_dot(axis, place, row["epsilon"], edge, color, is_bound, label)
            if row["epsilon"] > edge:
                text = _show_epsilon(row)
                axis.text(0.98 * edge, place, text, ha="right", va="center", fontsize=8)
            value = row["value"].replace("_", " ")
            names.append(f"{row['method']}: {value}, {counted(row['runs'], 'model')}")
        label = "upper bound (accounting)"
        axis.axvline(
            upper,
            color=BLACK,
            ls=(0, (1, 1)),
            lw=1.6,
            label=label,
        )
        axis.set_yticks(range(len(rows)), names, fontsize=8)
        axis.set(xlim=(0, edge), xlabel=f"epsilon at delta {show_level(delta)}")
        axis.invert_yaxis()
        split = len(select(rows, sees=FINAL)) - 0.5
        label = "below: methods that see every iterate"
        axis.axhline(split, color="0.7", lw=0.8, label=label)

    title = "One mechanism: fresh directions, and the methods of four papers"
    return draw_panels(title, {"": draw_rows}, (7, 0.24 * len(rows)))


def _find_look(row: Record) -> tuple[str, str]:
    """Returns a value's color, and its label in the legend."""
    if row["assumes"] == REJECTED:
        return FADED, "rejected: the curve is not Gaussian"
    if row["assumes"] == ESTIMATE:
        return IN, "estimate, not a bound"
    if row["assumes"] in _FREE:
        return FREE, "bound for any curve"
    return OUT, "bound under an assumption"
