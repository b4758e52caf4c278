"""Draws the paper's Figures 1 to 4 and makes its Tables 1, 2, 4 and 5.

Table 1 is simulated. Everything else is computed from stored cosines. An estimate from all iterates fits
normal distributions to maxima over rounds, although maxima are not normal (Errata O13).
"""

import dataclasses
import io
import itertools
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.evidence import one_run as one_run_evidence
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, gaussians
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.method import NoiseFloor
from audit.methods.one_shot import FITTED, LIMITS, ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED
from audit.report import style
from audit.settings.federated import FederatedSetting
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
from experiments.sweeps.panels import draw_panels, plot_lines, take
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, Records, field, own_table, text_field
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

Array = NDArray[np.float64]
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # the quantiles of estimates in Figure 4
# The distribution of a cosine with the final model for a canary that is not inserted, in units of 1/sqrt(d).
_FINAL_MODEL_NULL = Gaussian(0.0, 1.0)
# An estimate agrees with the paper's Table 1 up to these differences.
_MAX_ERRORS = 3.0  # between the means, in standard errors
_MAX_DEVIATION = 0.3  # between the standard deviations, relative to the paper's
_SIMULATED_NOTE = """\
mean (standard deviation) over simulations; estimates are not bounds
fitted: the estimate as printed in the paper
*: the equal-variance mean differs from the paper's by more than 3 standard
errors and rounding, or its standard deviation by more than 30%"""
_FLOORS_NOTE = "mean (95% quantile) without leakage, for a known null"
_ESTIMATES_NOTE = """\
estimate (standard error): as printed in the paper, from fits to the cosines of
both worlds. in-sample: the paper's lower value, the best of all thresholds.
Neither is a bound. *: above the accounted epsilon by more than its error"""
_DENSITIES_NOTE = """\
cosines with the final model, in units of 1/sqrt(d)
normal: Anderson-Darling test (A^2) of the inserted canaries"""
_RULE = "-" * 80
# The paper's mean and standard deviation of the equal-variance estimate over 50 simulations.
_PRINTED_TABLE_1 = """\
sigma,dimension,mean,deviation
0.541,10000,9.89,0.71
0.541,100000,10.1,0.41
0.541,1000000,10.0,0.23
0.541,10000000,10.0,0.10
1.54,10000,3.00,0.46
1.54,100000,3.00,0.31
1.54,1000000,2.96,0.15
1.54,10000000,3.00,0.08
4.22,10000,0.98,0.41
4.22,100000,1.05,0.23
4.22,1000000,0.99,0.14
4.22,10000000,1.00,0.07"""
TABLE_1 = pd.read_csv(io.StringIO(_PRINTED_TABLE_1), index_col=["sigma", "dimension"])

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
_NUM_BINS = 40
_NUM_CURVE_POINTS = 600
_COLORS = (style.BLUE, style.GREEN, style.ORANGE, style.VERMILION, style.PURPLE)
_PANEL_SIZE = (2.6, 2.4)  # in inches
_NULL_REACH = 4.0  # the null density is drawn up to this many standard deviations from 0
# What the observer sees, by the prefix of its fields in a record.
_OBSERVED = {"all": "all iterates", "final": "final model"}
_SPLITS = {  # the lines of Figure 4 by field: label, color, and format of marker and line
    "one run": ("one run", style.BLUE, "o-"),
    "several runs": ("several runs", style.VERMILION, "s--"),
}
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


def simulate(plan: Simulations) -> list[Record]:
    """Simulates the paper's Table 1 and returns a record for each sigma and dimension.

    A record has the `exact` epsilon at DELTA. For each method of
    `one_shot.FITTED` it has the mean estimate (`<method>`), its standard deviation over simulations
    (`<method>_deviation`), and both as text (`<method>_shown`). If the paper has this cell, the record also
    has the paper's values (`paper`) and a `star` if our equal-variance estimate disagrees with them.
    """
    records = []
    for dimension in plan.dimensions:
        cosines = _simulate_cosines(plan, dimension)
        for index, sigma in enumerate(plan.sigmas):
            record: Record = {
                "sigma": sigma,
                "dimension": dimension,
                "canaries": cosines.shape[-1],
                # Canaries are unit vectors, so the mechanism has Gaussian DP with mu = 1 / sigma.
                "exact": conversions.epsilon_from_mu(1 / sigma, DELTA),
            }
            observed = one_shot.fit(cosines[:, index], dimension)
            for name, estimate in FITTED.items():
                epsilons = estimate(_FINAL_MODEL_NULL, observed, DELTA)
                record[name] = epsilons.mean()
                record[f"{name}_deviation"] = epsilons.std()
                record[f"{name}_shown"] = _show_pair(epsilons.mean(), epsilons.std())
            if (sigma, dimension) in TABLE_1.index:
                record["paper"] = _show_pair(*TABLE_1.loc[sigma, dimension])
                record["star"] = "" if agrees(record, plan.simulations) else "*"
            records.append(record)
    return sorted(records, key=itemgetter("sigma"))


def _simulate_cosines(plan: Simulations, dimension: int) -> Array:
    """Returns the canaries' cosines (simulations, sigmas, canaries) with their noisy sum.

    A simulation draws sqrt(dimension) uniform unit vectors and uses them for every sigma.
    """
    canaries = int(np.sqrt(dimension))
    cosines = []
    for index in range(plan.simulations):
        rng = np.random.default_rng([0, dimension, index])
        # Coordinates in the canaries' span need little memory in large dimensions.
        rows = cosine_law.draw_canaries(rng, canaries, dimension)
        for sigma in plan.sigmas:
            cosines.append(cosine_law.draw_cosines(rng, rows, dimension, sigma))
    return np.reshape(cosines, (plan.simulations, len(plan.sigmas), canaries))


def read_runs(held: Holdings, plan: TrainingPlan, levels: Level) -> Iterator[Record]:
    """Yields a record for each training run of a plan with stored scores of all iterates and the final model.

    A record has the `plan`, the `noise` multiplier, the number of `repetitions`, the `analytical` epsilon of
    one repetition, the `accounted` epsilon of all, the model's `accuracy` with canaries and its
    `plain_accuracy` without (None if not stored), and the fields of `_observe`.
    """
    for setting in plan.audit_settings():
        noise = setting.noise_multiplier
        all_iterates = federated.read(held, setting, runs=1)
        final_model = federated.read(held, federated.final(setting), runs=1)
        if all_iterates is None or final_model is None:
            continue
        plain = federated.read(held, plan.without_canaries(noise), runs=1)
        plain_accuracies = plain.accuracies if plain else []
        yield {
            "plan": plan,
            "noise": noise,
            "repetitions": setting.repetitions,
            "analytical": epsilon_upper_bound(noise, 1, levels.delta),
            "accounted": epsilon_upper_bound(noise, setting.repetitions, levels.delta),
            "accuracy": next(iter(all_iterates.accuracies), None),
            "plain_accuracy": next(iter(plain_accuracies), None),
            **_observe("all", all_iterates.scores, plan, levels),
            **_observe("final", final_model.scores, plan, levels),
        }


def _observe(name: str, scores: Scores, plan: TrainingPlan, levels: Level) -> Record:
    """Returns what the paper's method concludes from the first run's cosines.

    `name` is a key of _OBSERVED, and the beginning of the record's fields: the fitted estimate (`all`), its
    standard error (`all_error`), its distribution without leakage (`all_floor`), the paper's lower value,
    which is not a bound (`all_in_sample`), and the `all_cosines`.

    The distribution of a maximum over iterates is unknown, so it is fitted to canaries that are not inserted.
    """
    values = scores.scores[0]  # (canaries,)
    presence = scores.presence[0]
    unobserved = None if name == "final" else values[~presence]
    cosines = one_run_evidence.check_own_cosines(values[presence], unobserved, plan.dimension)
    fitted = one_shot.estimate_from_fit(ONE_SHOT_FITTED, cosines, levels.delta)
    error = 1 - levels.confidence  # the probability that the limit of an error rate fails
    prior = LIMITS[one_shot.ONE_SHOT_JEFFREYS]
    return {
        name: fitted.epsilon,
        f"{name}_error": fitted.standard_error,
        f"{name}_floor": fitted.noise_floor,
        f"{name}_in_sample": one_shot.in_sample(cosines, levels.delta, error, prior),
        f"{name}_cosines": cosines,
    }


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[Record]:
    """Yields a record for each panel of Figure 4 with stored runs.

    A record has the `noise` multiplier, what the observer sees (`observe`, a key of _OBSERVED), the
    `analytical` epsilon of a canary that takes part once, and the QUANTILES over experiments of estimates
    from `one run` and from `several runs`.
    """
    for noise, observed in itertools.product(plan.training.noises, _OBSERVED):
        record: Record = {
            "noise": noise,
            "observe": observed,
            "analytical": epsilon_upper_bound(noise, 1, delta),
        }
        settings = (
            ("one run", 1, plan.training.with_noise(noise)),
            ("several runs", plan.runs, plan.several_runs(noise)),
        )
        for name, runs, setting in settings:
            observing = dataclasses.replace(setting, observe=observed)
            stored = federated.read(held, observing, plan.experiments * runs)
            if stored is not None:
                epsilons = _estimate_experiments(observing, stored.scores, runs, plan, delta)
                record[name] = np.quantile(epsilons, QUANTILES)
        if record.keys() >= _SPLITS.keys():
            yield record


def _estimate_experiments(
    setting: FederatedSetting, scores: Scores, runs: int, plan: SplitPlan, delta: float
) -> list[Array]:
    """Returns the fitted estimate of each experiment, which pools `runs` consecutive training runs."""
    dimension = plan.training.dimension
    epsilons = []
    for first in range(0, len(scores.scores), runs):
        values = scores.scores[first : first + runs]
        presence = scores.presence[first : first + runs]
        null = _FINAL_MODEL_NULL
        if setting.observe == "all":
            null = one_shot.fit(values[~presence], dimension)
        observed = one_shot.fit(values[presence], dimension)
        epsilons.append(gaussians.epsilon(null, observed, delta))
    return epsilons


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table from the stored runs.

    Table 1 has no figure and no stored runs.
    """
    assert isinstance(sweep, PlannedSweep)  # all sweeps of this paper are
    plan = sweep.plan
    if isinstance(plan, Simulations):
        table = make_simulated_table(plan, simulate(plan))
        return Drawn(None, missing=0, table=table)
    # A federated cell finds its scores without its data, so no data sets are needed here.
    missing = sum(not cell.is_done(evidence.held, DataSets({})) for cell in sweep.cells)
    delta = evidence.levels.delta
    records: list[Record] = []
    if isinstance(plan, SplitPlan):
        records += read_splits(evidence.held, plan, delta)
    else:
        for training_plan in plan:
            records += read_runs(evidence.held, training_plan, evidence.levels)
    if not records:
        return Drawn(None, missing)
    draw_figure, make_table = _DRAWINGS[sweep.name]
    table = make_table(f"{sweep.name}, delta {delta:.3g}: {sweep.title}", records)
    return Drawn(draw_figure(sweep.title, records), missing, table=table)


def draw_histograms(title: str, runs: Records) -> Figure:
    """Draws the histograms of Tables 2 and 5: a row for each observer, a column for each run."""
    panels = {}
    for name, words in _OBSERVED.items():
        for run in runs:
            heading = f"{words}\n{_describe(run)}"
            panels[heading] = partial(_draw_histogram, cosines=run[f"{name}_cosines"])
    return draw_panels(title, panels, _PANEL_SIZE, across=len(runs), ylabel="density")


def draw_densities(title: str, runs: Records) -> Figure:
    """Draws Figure 1: densities of cosines with the final model, one panel per kind of clients and noise."""
    panels = {}
    for group in _group_by_noise(runs):
        heading = f"{group[0]['plan'].label}\n{_describe(group[0])}"
        panels[heading] = partial(_draw_densities, runs=group)
    return draw_panels(title, panels, _PANEL_SIZE, across=4, ylabel="density")


def draw_repetitions(title: str, runs: Records) -> Figure:
    """Draws Figure 2 or 3: a row for each observer, a column for each noise multiplier."""
    groups = _group_by_noise(runs)
    panels = {}
    for name, words in reversed(_OBSERVED.items()):
        for group in groups:
            heading = f"{words}\n{_describe(group[0])}"
            panels[heading] = partial(_draw_bars, runs=group, observed=name)
    title = f"{title}; estimates are not bounds"
    return draw_panels(title, panels, _PANEL_SIZE, across=len(groups), ylabel="epsilon")


def draw_quantiles(title: str, splits: Records) -> Figure:
    """Draws Figure 4: the quantiles of estimates over experiments, with a panel for each record."""
    panels = {}
    for split in splits:
        heading = f"{_OBSERVED[split['observe']]}\n{_describe(split)}"
        panels[heading] = partial(
            plot_lines,
            records={**split, "x": QUANTILES},
            looks=_SPLITS,
            xticks=QUANTILES,
            xlabel="quantile",
            ylim=(0, None),
        )
    return draw_panels(title, panels, _PANEL_SIZE, across=4, ylabel="estimate of epsilon")


def _draw_histogram(axis: Axes, cosines: Cosines) -> None:
    """Draws a histogram of the inserted canaries' cosines in front of the null.

    The null is the other canaries' histogram or, without any, the exact density.
    """
    scale = np.sqrt(cosines.dimension)
    worlds = {"inserted": cosines.observed * scale}
    if len(cosines.unobserved):
        worlds["not inserted"] = cosines.unobserved * scale
    else:
        _draw_null(axis, -_NULL_REACH, _NULL_REACH, cosines.dimension)
    axis.hist(
        list(worlds.values()),
        _NUM_BINS,
        density=True,
        histtype="stepfilled",  # overlapping histograms with the same bins
        color=[style.IN, style.OUT][: len(worlds)],
        alpha=0.45,
        label=list(worlds),
    )
    axis.set_xlabel(_X_LABEL)


def _draw_densities(axis: Axes, runs: Records) -> None:
    """Draws kernel density estimates of the final model's cosines in front of the null density.

    `runs` are at most five records of `read_runs` that differ in their numbers of repetitions.
    """
    dimension = runs[0]["plan"].dimension
    cosines = [run["final_cosines"].observed * np.sqrt(dimension) for run in runs]
    pooled = np.concatenate(cosines)
    # The margin of 1 shows the tails of the kernel estimates.
    low = min(-_NULL_REACH, pooled.min() - 1)
    high = max(_NULL_REACH, pooled.max() + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _NUM_CURVE_POINTS)
    for run, values, color in zip(runs, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run["repetitions"], "repetition"))
    axis.set_xlabel(_X_LABEL)


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines without leakage, from `low` to `high` in units of 1/sqrt(dimension)."""
    scale = np.sqrt(dimension)
    x = np.linspace(low, high, _NUM_CURVE_POINTS)
    # The log density is infinite at cosines of -1 and 1.
    cosines = np.clip(x / scale, -1 + 1e-12, 1 - 1e-12)
    density = np.exp(cosine_law.log_density(cosines, dimension)) / scale
    axis.plot(x, density, color=style.BLACK, lw=1, label="no leakage")


def _draw_bars(axis: Axes, runs: Records, observed: str) -> None:
    """Draws estimates as bars with standard errors, the paper's lower values and the noise floor.

    `runs` are records of `read_runs` that differ in their numbers of repetitions. `observed` is a key of
    _OBSERVED.
    """
    places = range(len(runs))
    axis.bar(
        places,
        take(runs, observed),
        0.6,
        color=style.BLUE,
        alpha=0.5,
        ecolor=style.BLACK,
        capsize=3,
        yerr=take(runs, f"{observed}_error"),
        label="estimate, standard error",
    )
    in_sample = take(runs, f"{observed}_in_sample")
    look: dict[str, Any] = {"marker": "_", "ls": "none", "ms": 14}
    axis.plot(in_sample, color=style.VERMILION, label="in-sample lower value", **look)
    # The floor depends on the number of inserted canaries, which hardly differs between runs.
    floor = runs[0][f"{observed}_floor"].quantile_95
    axis.axhline(
        floor, color=style.FADED, ls=":", label="95% quantile of estimates without leakage"
    )
    accounted = take(runs, "accounted")
    if observed == "all" and np.isfinite(accounted).all():
        axis.plot(accounted, color=style.BLACK, label="accounted", **look)
    axis.set_xticks(places, [run["repetitions"] for run in runs])
    axis.set_xlabel("repetitions")


def _group_by_noise(runs: Records) -> list[list[Record]]:
    """Groups consecutive runs with the same clients and noise multiplier."""
    by_noise = itertools.groupby(runs, lambda run: (run["plan"].label, run["noise"]))
    return [list(group) for _, group in by_noise]


def _describe(record: Record) -> str:
    """Returns two lines for a panel's title: the noise multiplier and its analytical epsilon."""
    analytical = record["analytical"]
    epsilon = f"{analytical:.3g}" if np.isfinite(analytical) else r"$\infty$"
    return f"$\\sigma$ = {record['noise']:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


def agrees(record: Record, simulations: int) -> bool:
    """Returns True if our equal-variance estimate agrees with the paper's Table 1.

    Args:
      record: A record of `simulate`.
      simulations: The number of our simulations; the paper has 50.
    """
    mean, deviation = TABLE_1.loc[record["sigma"], record["dimension"]]
    # The paper prints means from 10 with one decimal and smaller ones with two.
    rounding = 0.05 if mean >= 10 else 0.005
    standard_error = deviation * np.sqrt(1 / SIMULATIONS + 1 / simulations)
    difference = abs(record[ONE_SHOT_EQUAL_VARIANCE] - mean)
    ratio = record[f"{ONE_SHOT_EQUAL_VARIANCE}_deviation"] / deviation
    mean_agrees = difference <= _MAX_ERRORS * standard_error + rounding
    return bool(mean_agrees and abs(ratio - 1) <= _MAX_DEVIATION)


def make_simulated_table(plan: Simulations, cells: Records) -> OwnTable:
    """Returns Table 1 with a row for each record of `simulate`, and a table of noise floors below it."""
    columns = [
        field("sigma", "sigma", "g", 5),
        field("dimension", "d", ",.0e", 9),
        field("canaries", "k", width=6),
        field("exact", "exact", ".3f", 7),
        text_field("paper", "paper", 15),
        text_field(f"{ONE_SHOT_EQUAL_VARIANCE}_shown", "equal variance", 15),
        text_field("star", "", 1),
        text_field(f"{ONE_SHOT_FITTED}_shown", "fitted", 14),
    ]
    floor_columns = [field("canaries", "canaries", ",", 8)]
    for method in one_shot.FITTED:
        columns += [field(method), field(f"{method}_deviation")]
        head = method.removeprefix("one_shot_").replace("_", " ")
        floor_columns.append(field(method, head, width=18))
    floors = []
    for canaries in plan.floors:
        record: Record = {"canaries": canaries}
        for method in one_shot.FITTED:
            floor = one_shot.noise_floor(method, canaries, 0, DELTA)
            record[method] = _show_floor(floor, 3)
        floors.append(record)
    at_delta = f"epsilon at delta {show_level(DELTA)}"
    below = own_table(f"Noise floors of {at_delta}", floor_columns, floors, [_FLOORS_NOTE])
    title = f"Table 1: estimates of {at_delta}"
    return own_table(title, columns, cells, [_SIMULATED_NOTE, "", below.text])


def make_runs_table(title: str, runs: Records, shows_accuracy: bool) -> OwnTable:
    """Returns the table of training runs of one kind of clients, with noise floors and notes below it.

    Args:
      title: The table's title.
      runs: At least one record of `read_runs`.
      shows_accuracy: True for Tables 2 and 5, with accuracies and the paper's rows. False for Figures 2 and
        3, with the numbers of repetitions.
    """
    first = runs[0]
    plan = first["plan"]
    printed = ""
    last_columns = [field("repetitions", "times", width=7)]
    if shows_accuracy:
        printed = f"{_PRINTED[plan.counterpart]}\n{_RULE}\n"
        last_columns = [
            field("accuracy", "with", ".3f", 7, none="-"),
            field("plain_accuracy", "without", ".3f", 8, none="-"),
        ]
    columns = [
        field("noise", "noise", ".3g", 6, left=True),
        field("accounted", "accounted", ".4g", 10),
    ]
    for observed, width in (("all", 15), ("final", 14)):
        columns += [
            text_field(f"{observed}_shown", "estimate", width),
            field(observed),
            field(f"{observed}_error"),
            field(f"{observed}_in_sample", "in-sample", ".3f", 10),
        ]
    records = []
    for run in runs:
        star = ""
        if run["all"] - run["all_error"] > run["accounted"]:
            star = "*"
        shown = star + _show_estimate(run["all"], run["all_error"])
        final = _show_estimate(run["final"], run["final_error"])
        records.append({**run, "all_shown": shown, "final_shown": final})
    # The numbers of canaries hardly differ between runs.
    observed_cosines, unobserved, _ = first["all_cosines"]
    canaries = f"{len(observed_cosines):,} + {len(unobserved):,} canaries"
    clients = f"{plan.setting.rounds:,} x {plan.setting.cohort} clients"
    # Headings above the columns of each observer.
    heads = "                            all iterates             final model"
    floor_of_all = _show_floor(first["all_floor"], 2)
    floor_of_final = _show_floor(first["final_floor"], 2)
    below = f"floor mean (95%){floor_of_all:>15}{floor_of_final:>24}\n{_RULE}\n"
    before = f"{title}\n{canaries}, {clients}\n{heads}"
    return own_table(
        before, [*columns, *last_columns], records, [below + printed + _ESTIMATES_NOTE]
    )


def make_densities_table(title: str, runs: Records) -> OwnTable:
    """Returns Table 4: tests of normality of the final model's cosines, for records of `read_runs`."""
    records = []
    for run in runs:
        cosines = run["final_cosines"].observed * run["plan"].dimension ** 0.5
        normality = cosine_law.anderson_darling(cosines)
        record = {
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
        field("noise", "noise", ".3g", 9),
        field("repetitions", "times", width=7),
        field("mean", "mean", ".2f", 9),
        field("deviation", "deviation", ".3f", 11),
        field("a_squared", "A^2", ".3f", 8),
        field("rejected_at", "normal", "rejected at {:g}".format, 18, none="not rejected"),
    ]
    return own_table(title, columns, records, [_RULE, _DENSITIES_NOTE])


def make_splits_table(title: str, splits: Records) -> OwnTable:
    """Returns the table of Figure 4: quantiles of estimates, for records of `read_splits`."""
    names = list(map(str, QUANTILES))
    records = []
    for split in splits:
        for name in _SPLITS:
            quantiles = dict(zip(names, split[name], strict=True))
            records.append({**split, "canaries": name, **quantiles})
    columns = [
        field("noise", "noise", ".3g", 7, left=True),
        field("observe", "observed", width=9, left=True),
        field("canaries", "canaries in", width=13, left=True),
    ]
    for name in names:
        columns.append(field(name, name, ".4g", 8))
    columns.append(field("analytical", "analytical", ".4g", 11))
    note = "columns: quantiles of the estimate over experiments, not a bound"
    return own_table(title, columns, records, [_RULE, note])


def _show_floor(floor: NoiseFloor, decimals: int) -> str:
    """Formats a noise floor: the mean and, in parentheses, the 95% quantile."""
    return _show_pair(floor.mean, floor.quantile_95, decimals)


def _show_estimate(epsilon: float, error: float) -> str:
    """Formats an estimate and its standard error with 2 decimals, 1 from 10 on, and 0 from 1,000 on."""
    decimals = 2 - int(np.searchsorted([10, 1000], epsilon, side="right"))
    return _show_pair(epsilon, error, decimals)


def _show_pair(value: float, other: float, decimals: int = 2) -> str:
    """Formats two numbers as in "1.23 (0.45)"."""
    return f"{value:,.{decimals}f} ({other:,.{decimals}f})"


# Each pair is (draw the figure, make the table).
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
