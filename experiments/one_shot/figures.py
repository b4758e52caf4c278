"""The paper's Figures 1 to 4 and Tables 1, 2, 4 and 5 as records, from stored cosines; nothing here trains.

Table 1's Gaussian mechanism is simulated. With all iterates the estimate fits normal laws to maxima over
rounds, which are not normal (Errata O13).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.errors import require
from audit.evidence import one_run as one_run_evidence
from audit.laws import conversions, cosine_law
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.method import NoiseFloor
from audit.methods.one_shot import FITTED, ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from audit.report.style import (
    BLACK,
    BLUE,
    FADED,
    GREEN,
    IN,
    ORANGE,
    OUT,
    PURPLE,
    VERMILION,
)
from audit.report.table import Table, number
from audit.storage.index import Holdings
from audit.storage.store import Scores
from audit.written import Level, counted, show_level
from experiments.cells import federated
from experiments.cells.cell import DataSets
from experiments.one_shot.sweep import (
    DELTA,
    SIMULATIONS,
    PlannedSweep,
    Simulations,
    SplitPlan,
    TrainingPlan,
)
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, field, own_table, text_field
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
Array = NDArray[np.float64]
_JEFFREYS_PRIOR = 0.5
_FINAL_MODEL_NULL = Gaussian(0.0, 1.0)  # in units of 1/sqrt(d)
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
TABLE_1 = {  # the paper's mean and deviation over 50 simulations, by (sigma, dimension)
    (0.541, 10**4): (9.89, 0.71),
    (0.541, 10**5): (10.1, 0.41),
    (0.541, 10**6): (10.0, 0.23),
    (0.541, 10**7): (10.0, 0.10),
    (1.54, 10**4): (3.00, 0.46),
    (1.54, 10**5): (3.00, 0.31),
    (1.54, 10**6): (2.96, 0.15),
    (1.54, 10**7): (3.00, 0.08),
    (4.22, 10**4): (0.98, 0.41),
    (4.22, 10**5): (1.05, 0.23),
    (4.22, 10**6): (0.99, 0.14),
    (4.22, 10**7): (1.00, 0.07),
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
_BINS = 40
_CURVE_POINTS = 600
_COLORS = (BLUE, GREEN, ORANGE, VERMILION, PURPLE)
_OBSERVED = {"all": "all iterates", "final": "final model"}
_SIZE = (2.6, 2.4)  # of a panel, in inches
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


def simulate(plan: Simulations, seed: int = 0) -> list[Record]:
    """Simulates the paper's Table 1 and returns a record for each sigma and dimension.

    A simulation draws sqrt(d) canaries (unit vectors), their sum plus noise, which is released, and each
    canary's cosine with the release. Estimates of epsilon follow from the mean and deviation of the cosines.
    The i-th simulation's canaries depend on the seed, the dimension and i only.

    Returns:
      Records of sigma, the dimension, the number of `canaries`, the `exact` epsilon, and the mean of the
        estimates by each method's name, with their deviation (`_deviation`). Simulations are at least 2,
        since tables show their deviation.
    """
    require(plan.simulations >= 2, f"`simulations={plan.simulations}`: give at least 2")
    records = []
    for dimension in plan.dimensions:
        canaries = int(np.sqrt(dimension))
        drawn = []
        for index in range(plan.simulations):
            rng = np.random.default_rng([seed, dimension, index])
            # The canaries are uniform directions, in coordinates of their own span to need little memory.
            rows = cosine_law.draw_canaries(rng, canaries, dimension)
            noises = plan.sigmas
            drawn.append([cosine_law.draw_cosines(rng, rows, dimension, each) for each in noises])
        cosines = np.array(drawn)  # (simulations, sigmas, canaries)
        for place, sigma in enumerate(plan.sigmas):
            # A canary has length 1: the mechanism is Gaussian-DP with mu = 1 / sigma.
            exact = conversions.epsilon_from_mu(1 / sigma, DELTA)
            record: Record = {"sigma": sigma, "dimension": dimension, "canaries": canaries}
            record["exact"] = exact
            observed = one_shot.fit(cosines[:, place], dimension)
            for name, estimate in FITTED.items():
                epsilons = estimate(_FINAL_MODEL_NULL, observed, DELTA)
                record[name] = epsilons.mean()
                record[f"{name}_deviation"] = epsilons.std()
            records.append(record)
    return sorted(records, key=lambda record: record["sigma"])


def read_runs(held: Holdings, plan: TrainingPlan, levels: Level) -> Iterator[Record]:
    """Yields a plan's training runs whose scores are stored, both with all iterates and the final model.

    A record has the `plan`, the `noise` multiplier, the `repetitions` of each canary, the `analytical`
    epsilon of one repetition, as the paper has it, the `accounted` one of all repetitions, the `accuracy`
    with canaries and the `plain_accuracy` without, None if not measured, and what `_observe` finds.
    """
    for setting in plan.audit_settings():
        noise = setting.noise_multiplier
        all_iterates = federated.read(held, setting, runs=1)
        final_model = federated.read(held, federated.final(setting), runs=1)
        if all_iterates is None or final_model is None:
            continue
        plain = federated.read(held, plan.without_canaries(noise), runs=1)
        plain_accuracies = plain.accuracies if plain else []
        record: Record = {
            "plan": plan,
            "noise": noise,
            "repetitions": setting.repetitions,
            "analytical": epsilon_upper_bound(noise, 1, levels.delta),
            "accounted": epsilon_upper_bound(noise, setting.repetitions, levels.delta),
            "accuracy": next(iter(all_iterates.accuracies), None),
            "plain_accuracy": next(iter(plain_accuracies), None),
        }
        record |= _observe("all", all_iterates.scores, plan, levels)
        yield record | _observe("final", final_model.scores, plan, levels)


def _observe(name: str, scores: Scores, plan: TrainingPlan, levels: Level) -> Record:
    """Returns the numbers of a setting's first run, seen with "all" iterates or the "final" model.

    With the final model the null is known: the law of uniform directions. If not, a normal law is fitted to
    the cosines of canaries that are out.

    Returns:
      The paper's estimate by `name` and with its error and noise floor (`_error`, `_floor`), its lower value,
        which takes the best of all thresholds and is no bound (`_in_sample`), and the `_cosines`.
    """
    values = scores.scores[0]  # (canaries,)
    presence = scores.presence[0]
    unobserved = None if name == "final" else values[~presence]
    cosines = one_run_evidence.check_own_cosines(values[presence], unobserved, plan.dimension)
    fitted = one_shot.estimate_from_fit(one_shot.ONE_SHOT_FITTED, cosines, levels.delta)
    error = 1 - levels.confidence  # of each error rate's limit
    return {
        name: fitted.epsilon,
        f"{name}_error": fitted.standard_error,
        f"{name}_floor": fitted.noise_floor,
        f"{name}_in_sample": one_shot.in_sample(cosines, levels.delta, error, _JEFFREYS_PRIOR),
        f"{name}_cosines": cosines,
    }


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[Record]:
    """Yields the quantiles of estimates over experiments, for each panel of Figure 4 that is stored.

    A record has the `noise` multiplier, whether "all" iterates or the "final" model are `observed`, the
    `analytical` epsilon of a canary that takes part once, and the QUANTILES of estimates with all canaries in
    `one run` and with the canaries spread over `several runs`.
    """
    for noise in plan.training.noises:
        for observed in ("all", "final"):
            settings = [plan.one_run(noise), plan.several_runs(noise)]
            if observed == "final":  # the same training runs, observed by their final models
                settings = [federated.final(setting) for setting in settings]
            record: Record = {"noise": noise, "observe": observed}
            record["analytical"] = epsilon_upper_bound(noise, 1, delta)
            places = (("one run", 1), ("several runs", plan.runs))
            for setting, (name, runs) in zip(settings, places, strict=True):
                stored = federated.read(held, setting, plan.experiments * runs)
                if stored is not None:
                    dimension = plan.training.dimension
                    null = _FINAL_MODEL_NULL if observed == "final" else None
                    record[name] = _compute_quantiles(stored.scores, runs, dimension, null, delta)
            if "one run" in record and "several runs" in record:
                yield record


def _compute_quantiles(
    scores: Scores, runs: int, dimension: int, known_null: Gaussian | None, delta: float
) -> Array:
    """Returns the quantiles of the fitted estimate over experiments of `runs` consecutive runs each.

    If the null is not known, it is fitted to the canaries that are out.
    """
    epsilons = []
    for first in range(0, len(scores.scores), runs):
        values = scores.scores[first : first + runs]
        presence = scores.presence[first : first + runs]
        null = known_null or one_shot.fit(values[~presence], dimension)
        observed = one_shot.fit(values[presence], dimension)
        epsilons.append(float(one_shot.fitted(null, observed, delta)))
    return np.quantile(epsilons, QUANTILES)


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table, from those of its runs that are stored."""
    assert isinstance(sweep, PlannedSweep)
    plan = sweep.plan
    if isinstance(plan, Simulations):
        table = make_simulated_table(plan, simulate(plan))
        return Drawn([], missing=0, table=table)
    # `is_done` takes the user's data sets. A federated cell does not look at them.
    missing = sum(not cell.is_done(evidence.held, DataSets({})) for cell in sweep.cells)
    delta = evidence.levels.delta
    stored: list[Record] = []
    if isinstance(plan, SplitPlan):
        stored += read_splits(evidence.held, plan, delta)
    else:
        for one in plan:
            stored += read_runs(evidence.held, one, evidence.levels)
    if not stored:
        return Drawn([], missing)
    draw_figure, make_table = _DRAWINGS[sweep.name]
    figures = [(sweep.name, draw_figure(sweep.title, stored))]
    title = f"{sweep.name}, delta {delta:.3g}: {sweep.title}"
    return Drawn(figures, missing, table=make_table(title, stored))


def draw_histograms(title: str, runs: Sequence[Record]) -> Figure:
    """Draws histograms of the canaries' cosines (Tables 2 and 5), a column for each run."""
    panels = {}
    for name, words in _OBSERVED.items():
        for run in runs:
            heading = f"{words}\n{_describe(run)}"
            panels[heading] = partial(_draw_histogram, cosines=run[f"{name}_cosines"])
    return draw_panels(title, panels, _SIZE, len(runs), "density")


def draw_densities(title: str, runs: Sequence[Record]) -> Figure:
    """Draws Figure 1, densities of cosines with the final model: a panel for clients and noise multiplier."""
    panels = {}
    for group in _group_by_noise(runs):
        heading = f"{group[0]['plan'].label}\n{_describe(group[0])}"
        panels[heading] = partial(_draw_densities, runs=group)
    return draw_panels(title, panels, _SIZE, 4, "density")


def draw_repetitions(title: str, runs: Sequence[Record]) -> Figure:
    """Draws Figure 2 or 3: estimates of epsilon over the number of repetitions, and accounted epsilons."""
    groups = _group_by_noise(runs)
    panels = {}
    for name, words in reversed(_OBSERVED.items()):
        for group in groups:
            heading = f"{words}\n{_describe(group[0])}"
            panels[heading] = partial(_draw_bars, runs=group, observed=name)
    return draw_panels(f"{title}; estimates are no bounds", panels, _SIZE, len(groups), "epsilon")


def draw_quantiles(title: str, splits: Sequence[Record]) -> Figure:
    """Draws Figure 4: the estimates' quantiles over experiments, of a single run next to several runs."""

    def draw_split(axis: Axes, split: Record) -> None:
        """Draws the quantiles of an observer's estimates."""
        for name, color, line in (("one run", BLUE, "o-"), ("several runs", VERMILION, "s--")):
            axis.plot(QUANTILES, split[name], line, color=color, ms=4, label=name)
        highest = max(*split["one run"], *split["several runs"])
        axis.set(xticks=QUANTILES, ylim=(0, 1.1 * highest), xlabel="quantile")

    panels = {}
    for split in splits:
        heading = f"{_OBSERVED[split['observe']]}\n{_describe(split)}"
        panels[heading] = partial(draw_split, split=split)
    return draw_panels(title, panels, _SIZE, 4, "estimate of epsilon")


def _draw_histogram(axis: Axes, cosines: Any) -> None:
    """Draws a histogram of the cosines of canaries that are in, next to the null.

    The null is a histogram of the canaries that are out or, without any, the law of uniform directions.
    """
    root = np.sqrt(cosines.dimension)
    observed = cosines.observed * root
    unobserved = cosines.unobserved * root
    ends = np.concatenate([observed, unobserved])
    if not len(unobserved):
        ends = np.append(ends, [-4.0, 4.0])  # deviations of that law
    bins = np.linspace(ends.min(), ends.max(), _BINS).tolist()
    if len(unobserved):
        axis.hist(unobserved, bins, density=True, color=OUT, alpha=0.45, label="out")
    else:
        _draw_null(axis, bins[0], bins[-1], cosines.dimension)
    axis.hist(observed, bins, density=True, color=IN, alpha=0.45, label="in")
    axis.set_xlabel(_X_LABEL)


def _draw_densities(axis: Axes, runs: Sequence[Record]) -> None:
    """Draws a kernel estimate of the density of the final model's cosines, for each of at most five runs."""
    dimension = runs[0]["plan"].dimension
    cosines = [run["final_cosines"].observed * np.sqrt(dimension) for run in runs]
    # Four deviations of the law without a leak, and a margin of 1 for the tails of the kernel estimates.
    low = min(-4.0, min(map(np.min, cosines)) - 1)
    high = max(4.0, max(map(np.max, cosines)) + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    for run, values, color in zip(runs, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run["repetitions"], "repetition"))
    axis.set_xlabel(_X_LABEL)


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines without a leak, from `low` to `high` in units of 1/sqrt(d)."""
    root = np.sqrt(dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
    density = np.exp(cosine_law.log_density(inside, dimension)) / root
    axis.plot(x, density, color=BLACK, lw=1, label="nothing leaks")


def _draw_bars(axis: Axes, runs: Sequence[Record], observed: str) -> None:
    """Draws fitted estimates as bars with standard errors, the paper's lower values and the noise floor.

    Args:
      axis: The panel.
      runs: Runs that differ in their numbers of repetitions, which label the bars.
      observed: "all" iterates, with the accounted epsilons if they are finite, or the "final" model.
    """
    places = list(range(len(runs)))

    def take(name: str) -> list[float]:
        """Returns a field of each run."""
        return [run[name] for run in runs]

    look: dict[str, Any] = {"color": BLUE, "alpha": 0.5, "ecolor": BLACK, "capsize": 3}
    look |= {"yerr": take(f"{observed}_error"), "label": "estimate, standard error"}
    axis.bar(places, take(observed), 0.6, **look)
    look = {"color": VERMILION, "ms": 14, "mew": 2, "label": "in-sample lower value"}
    axis.plot(places, take(f"{observed}_in_sample"), "_", **look)
    # The floor depends on the numbers of canaries, which hardly differ: the first run's stands for all.
    floor = runs[0][f"{observed}_floor"].quantile_95
    axis.axhline(floor, color=FADED, ls=":", label="95% of estimates without a leak")
    if observed == "all" and np.isfinite(take("accounted")).all():
        axis.plot(places, take("accounted"), "_", color=BLACK, ms=14, label="accounted")
    axis.set_xticks(places, [f"{number}" for number in take("repetitions")])
    axis.set_xlabel("repetitions")


def _group_by_noise(runs: Sequence[Record]) -> list[list[Record]]:
    """Groups runs by clients and noise multiplier, in the order in which these first come."""
    groups: dict[tuple[str, float], list[Record]] = {}
    for run in runs:
        groups.setdefault((run["plan"].label, run["noise"]), []).append(run)
    return list(groups.values())


def _describe(record: Record) -> str:
    """Returns a panel's title: the noise multiplier, and its analytical epsilon."""
    analytical = record["analytical"]
    epsilon = f"{analytical:.3g}" if np.isfinite(analytical) else r"$\infty$"
    return f"$\\sigma$ = {record['noise']:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


def agrees(record: Record, simulations: int) -> bool:
    """Returns whether our equal-variance estimate agrees with the paper's cell within simulation error.

    Our mean may differ from the paper's by three standard errors of the difference of two means, one over
    our `simulations` simulations and one over the paper's 50, plus the rounding of the printed mean. Our
    deviation may differ by 30% of the paper's.
    """
    mean, deviation = TABLE_1[record["sigma"], record["dimension"]]
    # The paper prints means with a single decimal from 10 on, else with two: half a unit of the last.
    rounding = 0.05 if mean >= 10 else 0.005
    standard_error = deviation * np.sqrt(1 / SIMULATIONS + 1 / simulations)
    difference = abs(record[ONE_SHOT_EQUAL_VARIANCE] - mean)
    ratio = record[f"{ONE_SHOT_EQUAL_VARIANCE}_deviation"] / deviation
    mean_agrees = difference <= _ALLOWED_ERRORS * standard_error + rounding
    return bool(mean_agrees and abs(ratio - 1) <= _ALLOWED_DEVIATION)


def make_simulated_table(plan: Simulations, cells: Sequence[Record]) -> OwnTable:
    """Makes Table 1 with a row for each simulated cell, and below it the noise floors.

    A star after the equal-variance estimate marks a disagreement with the paper's.
    """
    records = []
    for cell in cells:
        record = dict(cell)
        for method in one_shot.FITTED:
            record[f"{method}_shown"] = _spread(cell[method], cell[f"{method}_deviation"])
        place = (cell["sigma"], cell["dimension"])
        if place in TABLE_1:
            record["paper"] = _spread(*TABLE_1[place])
            record["star"] = "" if agrees(cell, plan.simulations) else "*"
        records.append(record)
    columns = [
        field("sigma", "sigma", number("g"), 5),
        field("dimension", "d", number(",.0e"), 9),
        field("canaries", "k", width=6),
        field("exact", "exact", number(".3f"), 7),
        text_field("paper", "paper", 15),
        text_field(f"{ONE_SHOT_EQUAL_VARIANCE}_shown", "equal variance", 15),
        text_field("star", "", 1),
        text_field(f"{ONE_SHOT_FITTED}_shown", "fitted", 14),
    ]
    floor_columns = [field("canaries", "canaries", number(","), 8)]
    for method in one_shot.FITTED:
        columns += [field(method), field(f"{method}_deviation")]
        head = method.removeprefix("one_shot_").replace("_", " ")
        floor_columns.append(field(method, head, width=18))
    floors = []
    for canaries in plan.floors:
        record = {"canaries": canaries}
        for method in one_shot.FITTED:
            floor = one_shot.noise_floor(method, canaries, 0, DELTA)
            record[method] = _floor(floor, 3)
        floors.append(record)
    at_delta = f"epsilon at delta {show_level(DELTA)}"
    before = [f"Noise floors of {at_delta}"]
    layout: dict[str, Any] = {"after": [_FLOORS_NOTE], "gap": "", "rule": 80}
    below = Table(floor_columns, floors, before=before, **layout).text()
    title = f"Table 1: estimates of {at_delta}"
    return _make_table(title, columns, records, f"{_SIMULATED_NOTE}\n\n{below}")


def make_runs_table(title: str, runs: Sequence[Record], shows_accuracy: bool) -> OwnTable:
    """Makes the table of training runs of one kind of clients, with a line of noise floors below the runs.

    Args:
      title: The line above the table.
      runs: The runs, at least one.
      shows_accuracy: Whether to show accuracies, and the paper's rows (Tables 2 and 5), rather than the
        numbers of repetitions (Figures 2 and 3).
    """
    first = runs[0]
    plan = first["plan"]
    printed = ""
    last = [field("repetitions", "times", width=7)]
    if shows_accuracy:
        printed = f"{_PRINTED[plan.counterpart]}\n{_RULE}\n"
        last = [
            field("accuracy", "with", number(".3f"), 7, none="-"),
            field("plain_accuracy", "without", number(".3f"), 8, none="-"),
        ]
    columns = [
        field("noise", "noise", number(".3g"), 6, left=True),
        field("accounted", "accounted", number(".4g"), 10),
    ]
    for observed, width in (("all", 15), ("final", 14)):
        columns += [
            text_field(f"{observed}_shown", "estimate", width),
            field(observed),
            field(f"{observed}_error"),
            field(f"{observed}_in_sample", "in-sample", number(".3f"), 10),
        ]
    records = []
    for run in runs:
        # A star marks an estimate that is above the accounted epsilon by more than its error.
        star = "*" if run["all"] - run["all_error"] > run["accounted"] else ""
        shown = star + _estimate(run["all"], run["all_error"])
        final = _estimate(run["final"], run["final_error"])
        records.append({**run, "all_shown": shown, "final_shown": final})
    # The numbers of canaries in and out hardly differ between runs: the first run's stand for all.
    observed_cosines, unobserved, _ = first["all_cosines"]
    canaries = f"{len(observed_cosines):,} + {len(unobserved):,} canaries"
    clients = f"{plan.setting.rounds:,} x {plan.setting.cohort} clients"
    heads = f"{'':<16}{'all iterates':>24}{'final model':>24}"
    floors = [_floor(first[f"{observed}_floor"], 2) for observed in ("all", "final")]
    below = f"floor mean (95%){floors[0]:>15}{floors[1]:>24}\n{_RULE}\n"
    before = f"{title}\n{canaries}, {clients}\n{heads}"
    return _make_table(before, [*columns, *last], records, below + printed + _ESTIMATES_NOTE)


def make_densities_table(title: str, runs: Sequence[Record]) -> OwnTable:
    """Makes Table 4: the final model's cosines and whether they are normal."""
    records = []
    for run in runs:
        cosines = run["final_cosines"].observed * run["plan"].dimension ** 0.5
        normality = cosine_law.anderson_darling(cosines)
        record: Record = {
            **run,
            "clients": run["plan"].label,
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


def make_splits_table(title: str, splits: Sequence[Record]) -> OwnTable:
    """Makes the table of Figure 4: quantiles of the estimates, from a single run and from several."""
    names = [f"{quantile}" for quantile in QUANTILES]
    records = []
    for split in splits:
        for place in ("one run", "several runs"):
            quantiles = dict(zip(names, split[place], strict=True))
            records.append({**split, "canaries": place, **quantiles})
    columns = [
        field("noise", "noise", number(".3g"), 7, left=True),
        field("observe", "observed", width=9, left=True),
        field("canaries", "canaries in", width=13, left=True),
        *(field(name, name, number(".4g"), 8) for name in names),
        field("analytical", "analytical", number(".4g"), 11),
    ]
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    return _make_table(title, columns, records, f"{_RULE}\n{note}")


def _make_table(title: str, columns: Any, records: Sequence[Record], note: str) -> OwnTable:
    """Makes a table with a title above and a note below."""
    return own_table(columns, records, before=[title], after=[note], gap="")


def _floor(floor: NoiseFloor, decimals: int) -> str:
    """Formats the mean (95% quantile) of an estimate if nothing leaks."""
    return f"{floor.mean:.{decimals}f} ({floor.quantile_95:.{decimals}f})"


def _estimate(epsilon: float, error: float) -> str:
    """Formats an estimate with its standard error in brackets; larger estimates have fewer decimals."""
    decimals = 2
    if epsilon >= 1000:
        decimals = 0
    elif epsilon >= 10:
        decimals = 1
    return f"{epsilon:,.{decimals}f} ({error:,.{decimals}f})"


def _spread(mean: float, deviation: float) -> str:
    """Formats a mean and a standard deviation."""
    return f"{mean:.2f} ({deviation:.2f})"


# The functions that draw what is stored of a sweep, and that make its table.
_TABLE = (draw_histograms, partial(make_runs_table, shows_accuracy=True))
_FIGURE = (draw_repetitions, partial(make_runs_table, shows_accuracy=False))
_DRAWINGS: dict[str, tuple[Any, Any]] = {
    "one_shot_table_2": _TABLE,
    "one_shot_table_5": _TABLE,
    "one_shot_figure_1": (draw_densities, make_densities_table),
    "one_shot_figure_2": _FIGURE,
    "one_shot_figure_3": _FIGURE,
    "one_shot_figure_4": (draw_quantiles, make_splits_table),
}
