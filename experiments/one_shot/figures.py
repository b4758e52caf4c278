"""Creates the paper's Figures 1 to 4 and Tables 1, 2, 4 and 5.

Table 1 comes from simulations, and all others come from stored cosines. For an observer of all iterates, we
use each canary's largest cosine over all rounds. The estimate fits normal distributions to these maxima
(Errata O13).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.accounting import epsilon_upper_bound
from audit.evidence import one_run as one_run_evidence
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, gaussians
from audit.laws.gaussians import Gaussian
from audit.laws.intervals import Array
from audit.methods import one_shot
from audit.methods.one_shot import (
    FITTED,
    ONE_SHOT_EQUAL_VARIANCE,
    ONE_SHOT_FITTED,
    ONE_SHOT_JEFFREYS,
)
from audit.report import style
from audit.report.table import Column
from audit.settings.federated import FederatedSetting
from audit.storage.index import Holdings
from audit.storage.store import Scores
from audit.written import Level, counted, show_level
from experiments.cells import federated
from experiments.cells.cell import DataSets
from experiments.one_shot.sweep import DELTA, PlannedSweep, Simulations, SplitPlan, TrainingPlan
from experiments.sweeps.panels import draw_panels_of, plot_lines, take
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, Records, field, mean_fields, own_table, select
from experiments.sweeps.sweep import Drawn, OwnTable

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
# The distribution of the final model's cosine with a canary that is not inserted, in units of 1/sqrt(d).
_FINAL_MODEL_NULL = Gaussian(0.0, 1.0)

_SIMULATED_NOTE = """\
mean (standard deviation) over simulations; estimates are not bounds
fitted: the estimate as printed in the paper"""
_ESTIMATES_NOTE = """\
estimate (standard error): as printed in the paper, from fits to the cosines of
both worlds. in-sample: the paper's lower value at the best of all thresholds.
Neither is a bound. *: exceeds the accounted epsilon by more than its error"""
_DENSITIES_NOTE = """\
cosines with the final model, in units of 1/sqrt(d)
normal: Anderson-Darling test (A^2) of the inserted canaries"""
_RULE = "-" * 80
# The rows of the paper's tables, keyed by data set.
_PRINTED = {
    "StackOverflow": """\
the paper, StackOverflow    all iterates             final model
noise analytical       estimate in-sample      estimate in-sample
0            inf         45,800      6.24           4.6      2.88
0.0496       300            382     6.238          1.97      1.11
0.0986       100           89.4      5.05          1.18     0.688
0.2317        30          2.693     0.407         0.569     0.311""",
    "EMNIST": """\
the paper, EMNIST           all iterates             final model
noise analytical       estimate in-sample      estimate in-sample
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
_NULL_REACH = 4.0  # the range of the null density, in standard deviations
# The observer for each value of a setting's `observe` field.
_OBSERVERS = {"all": "all iterates", "final": "final model"}
_SPLITS = {  # the label, color, and marker and line format of each line in Figure 4
    "one run": ("one run", style.BLUE, "o-"),
    "several runs": ("several runs", style.VERMILION, "s--"),
}
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


def simulate(plan: Simulations) -> list[Record]:
    """Simulates the paper's Table 1 and returns a record for each sigma and dimension.

    A record has the number of `canaries` and the `exact` epsilon at DELTA. For each method of FITTED, it has
    the mean estimate (`<method>`) and the standard deviation over simulations (`<method>_deviation`).
    """
    records = []
    for dimension in plan.dimensions:
        cosines = _simulate_cosines(plan, dimension)  # (simulations, sigmas, canaries)
        for index, sigma in enumerate(plan.sigmas):
            record: Record = {
                "sigma": sigma,
                "dimension": dimension,
                "canaries": cosines.shape[-1],
                # Canaries are unit vectors, so the mechanism satisfies Gaussian DP with mu = 1 / sigma.
                "exact": conversions.epsilon_from_mu(1 / sigma, DELTA),
            }
            # One normal distribution per simulation.
            observed = one_shot.fit(cosines[:, index], dimension)
            for method, estimate in FITTED.items():
                # The first argument is N(0, 1), the law without the canary.
                epsilons = estimate(_FINAL_MODEL_NULL, observed, DELTA)
                record[method] = epsilons.mean()
                record[f"{method}_deviation"] = epsilons.std()
            records.append(record)
    return sorted(records, key=itemgetter("sigma"))


def _simulate_cosines(plan: Simulations, dimension: int) -> Array:
    """Returns the cosines between each canary and a release (the sum of all canaries plus noise).

    The cosines have shape (simulations, sigmas, canaries). Each simulation draws uniform unit vectors as
    canaries, and reuses them for every standard deviation sigma of the noise.
    """
    canaries = int(np.sqrt(dimension))  # as in the paper's Table 1
    simulations = []
    for index in range(plan.simulations):
        rng = np.random.default_rng([0, dimension, index])
        # Coordinates in the canaries' span save memory in large dimensions.
        coordinates = cosine_law.draw_canaries(rng, canaries, dimension)
        cosines = []
        for sigma in plan.sigmas:
            cosines.append(cosine_law.draw_cosines(rng, coordinates, dimension, sigma))
        simulations.append(cosines)
    return np.array(simulations)


def read_runs(held: Holdings, plan: TrainingPlan, levels: Level) -> Iterator[Record]:
    """Yields the paper's estimates for a plan: one record for each stored training run and observer.

    `levels` gives delta and confidence.

    Yields:
      Records with these fields:

          plan              the plan
          noise             the noise multiplier
          repetitions       the number of rounds that a canary takes part in
          analytical        the epsilon of one of these rounds
          accounted         the epsilon of all of them
          accuracy          the model's accuracy with canaries
          plain_accuracy    the accuracy without canaries; None if not stored
          observer          one of _OBSERVERS
          cosines           the cosines of inserted canaries ("observed") and of others ("unobserved")
          estimate          the estimate of epsilon from normal distributions fitted to the cosines
          error             its standard error
          floor             the mean and 95% quantile of estimates without leakage
          in_sample         eps_lo, the paper's lower value, which is not a bound (Errata O7)
    """
    for setting, observe in itertools.product(plan.audit_settings(), _OBSERVERS):
        noise = setting.noise_multiplier
        stored = federated.read(held, dataclasses.replace(setting, observe=observe), runs=1)
        if stored is None:
            continue
        plain = federated.read(held, plan.without_canaries(noise), runs=1)
        plain_accuracies = plain.accuracies if plain else []
        values = stored.scores.scores[0]  # (canaries,)
        is_inserted = stored.scores.presence[0]
        not_inserted = None  # for the final model, the distribution without leakage is known
        if observe == "all":
            # Left-out canaries estimate the unknown distribution of the largest cosine.
            not_inserted = values[~is_inserted]
        cosines = one_run_evidence.make_cosines(values[is_inserted], not_inserted, plan.dimension)
        by_method = {found.method: found for found in one_shot.estimates(cosines, *levels)}
        fitted = by_method[ONE_SHOT_FITTED]
        yield {
            "plan": plan,
            "noise": noise,
            "repetitions": setting.repetitions,
            "analytical": epsilon_upper_bound(noise, 1, levels.delta),
            "accounted": epsilon_upper_bound(noise, setting.repetitions, levels.delta),
            "accuracy": next(iter(stored.accuracies), None),
            "plain_accuracy": next(iter(plain_accuracies), None),
            "observer": _OBSERVERS[observe],
            "cosines": cosines,
            "estimate": fitted.epsilon,
            "error": fitted.standard_error,
            "floor": fitted.noise_floor,
            "in_sample": by_method[ONE_SHOT_JEFFREYS].epsilon,
        }


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[Record]:
    """Yields the records for the one-shot paper's Figure 4: one per quantile for each panel with stored runs.

    An experiment estimates epsilon from one run with many canaries, or from several runs with fewer canaries
    each. The figure compares the quantiles of the two kinds of estimates over many experiments.

    In a record, `noise` (the noise multiplier) and `observer` (one of _OBSERVERS) identify the panel. `x` is
    the level of the quantiles `one run` and `several runs`. `analytical` is the epsilon if a canary takes
    part once.
    """
    for noise, observe in itertools.product(plan.training.noises, _OBSERVERS):
        settings = {  # for each field: (runs per experiment, setting of a run)
            "one run": (1, plan.training.with_noise(noise)),
            "several runs": (plan.runs, plan.several_runs(noise)),
        }
        quantiles = {}
        for name, (runs, setting) in settings.items():
            observed = dataclasses.replace(setting, observe=observe)
            stored = federated.read(held, observed, plan.experiments * runs)
            if stored is not None:
                dimension = plan.training.dimension
                epsilons = _estimate_experiments(observed, stored.scores, runs, dimension, delta)
                quantiles[name] = np.quantile(epsilons, QUANTILES)
        if len(quantiles) == len(settings):  # both are stored
            columns = {
                "noise": noise,
                "observer": _OBSERVERS[observe],
                "analytical": epsilon_upper_bound(noise, 1, delta),
                "x": QUANTILES,
                **quantiles,
            }
            # One row per quantile; pandas repeats scalars.
            yield from pd.DataFrame(columns).to_dict("records")


def _estimate_experiments(
    setting: FederatedSetting, scores: Scores, runs: int, dimension: int, delta: float
) -> list[Array]:
    """Returns each experiment's fitted estimate of epsilon. An experiment pools `runs` consecutive runs.

    `dimension` d is the model's number of parameters. `one_shot.fit` multiplies cosines by sqrt(d). For the
    final model and large d, scaled cosines of left-out canaries are approximately N(0, 1).
    """
    epsilons = []
    for first in range(0, len(scores.scores), runs):
        of_experiment = slice(first, first + runs)
        values = scores.scores[of_experiment]
        is_inserted = scores.presence[of_experiment]
        null = _FINAL_MODEL_NULL
        if setting.observe == "all":  # the distribution of a maximum over iterates is unknown
            null = one_shot.fit(values[~is_inserted], dimension)
        inserted = one_shot.fit(values[is_inserted], dimension)
        epsilons.append(gaussians.epsilon(null, inserted, delta))
    return epsilons


def draw(sweep: PlannedSweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table from stored runs, or only simulates Table 1."""
    plan = sweep.plan
    if isinstance(plan, Simulations):  # Table 1
        return Drawn(None, missing=0, table=make_simulated_table(simulate(plan)))
    no_data = DataSets({})  # federated cells ignore the data in `is_done`
    missing = sum(not cell.is_done(evidence.held, no_data) for cell in sweep.cells)
    delta = evidence.levels.delta
    records: list[Record] = []
    if isinstance(plan, SplitPlan):  # Figure 4
        records += read_splits(evidence.held, plan, delta)
    else:
        for training_plan in plan:
            records += read_runs(evidence.held, training_plan, evidence.levels)
    if not records:
        return Drawn(None, missing)
    draw_figure, make_table = _DRAWINGS[sweep.name]
    table = make_table(f"{sweep.name}, delta {delta:.3g}: {sweep.title}", records)
    return Drawn(draw_figure(sweep.title, records), missing, table=table)


def draw_grid(
    title: str,
    runs: Records,
    draw_panel: Callable[..., None],
    ylabel: str,
    final_first: bool = False,
) -> Figure:
    """Draws records of `read_runs`, with a row of panels per observer and a column per noise multiplier."""
    # In alphabetical order, "all iterates" comes before "final model".
    records = sorted(map(_add_panel, runs), key=itemgetter("observer"), reverse=final_first)
    columns = len({run["noise"] for run in runs})
    return draw_panels_of(records, title, draw_panel, _PANEL_SIZE, across=columns, ylabel=ylabel)


def draw_densities(title: str, runs: Records) -> Figure:
    """Draws Figure 1 from records of `read_runs`: densities of cosines by data set and noise multiplier."""
    records = [
        {**run, "panel": f"{run['plan'].label}\n{_describe(run)}"}
        for run in select(runs, observer=_OBSERVERS["final"])
    ]
    return draw_panels_of(records, title, _draw_densities, _PANEL_SIZE, across=4, ylabel="density")


def draw_quantiles(title: str, splits: Records) -> Figure:
    """Draws Figure 4 from records of `read_splits`: quantiles of the experiments' estimates of epsilon."""
    draw_panel = partial(
        plot_lines, looks=_SPLITS, xticks=QUANTILES, xlabel="quantile", ylim=(0, None)
    )
    records = list(map(_add_panel, splits))
    return draw_panels_of(
        records, title, draw_panel, _PANEL_SIZE, across=4, ylabel="estimate of epsilon"
    )


def _add_panel(record: Record) -> Record:
    """Returns the record with its panel's title, which shows the observer and the noise."""
    return {**record, "panel": f"{record['observer']}\n{_describe(record)}"}


def _draw_histogram(axis: Axes, records: Records) -> None:
    """Draws a histogram of the inserted canaries' cosines over the distribution without leakage.

    A histogram of the left-out canaries (`unobserved`) estimates this distribution. For the final model,
    which has no `unobserved` cosines, we draw the exact density.
    """
    [run] = records
    cosines: Cosines = run["cosines"]
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


def _draw_densities(axis: Axes, records: Records) -> None:
    """Plots kernel density estimates of the final model's cosines over the density without leakage.

    `records` holds at most five runs (the length of _COLORS), with different numbers of repetitions.
    """
    dimension = records[0]["plan"].dimension
    cosines = [run["cosines"].observed * np.sqrt(dimension) for run in records]
    pooled = np.concatenate(cosines)
    # A margin of 1 leaves room for the kernels' tails.
    low = min(-_NULL_REACH, pooled.min() - 1)
    high = max(_NULL_REACH, pooled.max() + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _NUM_CURVE_POINTS)
    for run, values, color in zip(records, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run["repetitions"], "repetition"))
    axis.set_xlabel(_X_LABEL)


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines without leakage, from `low` to `high` in units of 1/sqrt(dimension)."""
    scale = np.sqrt(dimension)
    x = np.linspace(low, high, _NUM_CURVE_POINTS)
    density = np.exp(cosine_law.log_density(x / scale, dimension)) / scale
    axis.plot(x, density, color=style.BLACK, lw=1, label="no leakage")


def _draw_bars(axis: Axes, records: Records) -> None:
    """Draws one observer's estimates of epsilon as bars, with standard errors.

    Dashes mark the paper's lower values and, for the observer of all iterates, the accounted epsilons.
    `records` are runs with different numbers of repetitions.
    """
    places = range(len(records))
    axis.bar(
        places,
        take(records, "estimate"),
        width=0.6,
        color=style.BLUE,
        alpha=0.5,
        ecolor=style.BLACK,
        capsize=3,
        yerr=take(records, "error"),
        label="estimate, standard error",
    )
    dash: dict[str, Any] = {"marker": "_", "ls": "none", "ms": 14}
    in_sample = take(records, "in_sample")
    axis.plot(in_sample, color=style.VERMILION, label="in-sample lower value", **dash)
    # The floor depends on the number of inserted canaries, which hardly varies between runs.
    floor = records[0]["floor"].quantile_95
    axis.axhline(
        floor, color=style.FADED, ls=":", label="95% quantile of estimates without leakage"
    )
    accounted = take(records, "accounted")
    if records[0]["observer"] == _OBSERVERS["all"] and np.isfinite(accounted).all():
        axis.plot(accounted, color=style.BLACK, label="accounted", **dash)
    axis.set_xticks(places, [run["repetitions"] for run in records])
    axis.set_xlabel("repetitions")


def _describe(record: Record) -> str:
    """Returns two lines for a panel's title: the noise multiplier and its analytical epsilon."""
    analytical = record["analytical"]
    epsilon = f"{analytical:.3g}" if np.isfinite(analytical) else r"$\infty$"
    return f"$\\sigma$ = {record['noise']:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


def make_simulated_table(cells: Records) -> OwnTable:
    """Returns Table 1 with a row for each of `cells`, the records of `simulate`."""
    columns = [  # field, heading, format, width
        field("sigma", "sigma", "g", 5),
        field("dimension", "d", ",.0e", 9),
        field("canaries", "k", width=6),
        field("exact", "exact", ".3f", 7),
        *mean_fields(ONE_SHOT_EQUAL_VARIANCE, "equal variance", width=15),
        *mean_fields(ONE_SHOT_FITTED, "fitted", width=15),
    ]
    title = f"Table 1: estimates of epsilon at delta {show_level(DELTA)}"
    return own_table(title, columns, cells, [_SIMULATED_NOTE])


def make_runs_table(title: str, runs: Records, shows_accuracy: bool) -> OwnTable:
    """Returns the table of one plan's training runs, with a section for each observer.

    A section's heading shows which models the observer sees, and the noise floor: the mean and 95% quantile
    of estimates without leakage.

    Args:
      runs: At least one record of `read_runs`.
      shows_accuracy: If True, the table shows accuracies with and without canaries, and the paper's rows
        (Tables 2 and 5). If False, it shows the numbers of repetitions (Figures 2 and 3).
    """
    first = runs[0]
    plan = first["plan"]
    printed = ""
    last_columns = [field("repetitions", "times", width=7)]
    if shows_accuracy:
        # The paper's rows for the corresponding data set.
        printed = f"{_PRINTED[plan.counterpart]}\n{_RULE}\n"
        last_columns = [  # field, heading, format, width
            field("accuracy", "with", ".3f", 7, none="-"),
            field("plain_accuracy", "without", ".3f", 8, none="-"),
        ]

    columns = [  # field, heading, format, width; without a heading, only in the CSV
        field("noise", "noise", ".3g", 6, left=True),
        field("accounted", "accounted", ".4g", 10),
        field("observer"),
        Column(value=_show_estimate, head="estimate", width=15),  # text only, with the error
        field("estimate"),
        field("error"),
        field("in_sample", "in-sample", ".3f", 10),  # the paper's lower value, not a bound
    ]

    # The noise floors and the numbers of canaries hardly differ between runs, so we show the first run's.
    cosines = first["cosines"]
    canaries = f"{len(cosines.observed):,} + {len(cosines.unobserved):,} canaries"
    clients = f"{plan.setting.rounds:,} x {plan.setting.cohort} clients"
    before = f"{title}\n{canaries}, {clients}"

    headings: dict[str, str] = {}  # of each observer's section, from its first run
    records = []
    for run in sorted(runs, key=itemgetter("observer")):
        floor = _show_pair(run["floor"].mean, run["floor"].quantile_95)
        heading = f"{run['observer']}; without leakage, mean (95%): {floor}"
        records.append({**run, "heading": headings.setdefault(run["observer"], heading)})
    notes = f"{_RULE}\n{printed}{_ESTIMATES_NOTE}"
    return own_table(before, columns + last_columns, records, [notes], section="heading")


def make_densities_table(title: str, runs: Records) -> OwnTable:
    """Returns Table 4: normality tests of the final model's cosines, for records of `read_runs`."""
    records = []
    for run in select(runs, observer=_OBSERVERS["final"]):
        # Without leakage, these scaled cosines are approximately N(0, 1).
        cosines = run["cosines"].observed * run["plan"].dimension ** 0.5
        normality = cosine_law.anderson_darling(cosines)
        records.append(
            {
                **run,
                "clients": run["plan"].label,
                "mean": cosines.mean(),
                "deviation": cosines.std(),
                "a_squared": normality.statistic,
                "rejected_at": normality.rejected_at,
            }
        )
    columns = [  # field, heading, format, width
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
    """Returns the table of the one-shot paper's Figure 4: quantiles of the estimates of epsilon.

    An experiment inserts all canaries in one training run, or splits them across several. `splits` are
    records of `read_splits`.
    """
    columns = [  # field, heading, format, width
        field("noise", "noise", ".3g", 7, left=True),
        field("observer", "observed", width=14, left=True),
        field("x", "quantile", width=8)._replace(key="quantile"),  # its CSV name
        *(field(name, name, ".4g", 14) for name in _SPLITS),
        field("analytical", "analytical", ".4g", 12),
    ]
    note = "quantiles of the estimate over experiments, not a bound"
    return own_table(title, columns, splits, [_RULE, note])


def _show_estimate(run: Record) -> str:
    """Formats an observer's estimate and its standard error.

    A "*" marks an estimate from all iterates that exceeds the accounted epsilon by more than this error.
    Estimates have two decimals below 10, one below 1,000, and no decimals from 1,000 on.
    """
    epsilon = run["estimate"]
    error = run["error"]
    star = ""
    if run["observer"] == _OBSERVERS["all"] and epsilon - error > run["accounted"]:
        star = "*"
    decimals = 2
    if epsilon >= 10:
        decimals = 1
    if epsilon >= 1000:
        decimals = 0
    return star + _show_pair(epsilon, error, decimals)


def _show_pair(value: float, other: float, decimals: int = 2) -> str:
    """Formats two numbers as in "1.23 (0.45)"."""
    return f"{value:,.{decimals}f} ({other:,.{decimals}f})"


# Pairs of functions: the first draws the figure, and the second makes the table.
_TABLE = (
    partial(draw_grid, draw_panel=_draw_histogram, ylabel="density"),
    partial(make_runs_table, shows_accuracy=True),
)
_FIGURE = (
    partial(draw_grid, draw_panel=_draw_bars, ylabel="estimate of epsilon", final_first=True),
    partial(make_runs_table, shows_accuracy=False),
)
_DRAWINGS: dict[str, tuple[Any, Any]] = {
    "one_shot_table_2": _TABLE,
    "one_shot_table_5": _TABLE,
    "one_shot_figure_1": (draw_densities, make_densities_table),
    "one_shot_figure_2": _FIGURE,
    "one_shot_figure_3": _FIGURE,
    "one_shot_figure_4": (draw_quantiles, make_splits_table),
}
