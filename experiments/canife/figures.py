"""Figures in the shape of the paper's: a training run under measurement, and a sweep's curves.

The former has its epsilon (1), histograms of scores (3) and a round's epsilon (4). Curves are those of 5a,
5b, 8a and 8c.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from audit.report import style
from experiments.canife import curves, measured
from experiments.canife.attacked import PENALTIES, Attacked
from experiments.canife.curves import (
    AveragedPoint,
    Curves,
    Global,
    RoundValues,
)
from experiments.canife.sweep import ROUND, AblationSweep, Value
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

_HEADROOM = 1.35  # a panel's height with room for its legend, over the height of its data
_LOGARITHMIC_RATIO = 8  # ratio of the largest x to the smallest from which on x is logarithmic
# The curves' colors; those of a sweep with more curves come again.
_COLORS = (style.BLUE, style.VERMILION, style.GREEN)
_TITLES = {
    "deviation": "scores' deviation with noise\n(dashed: clients alone)",
    "attack": "attack accuracy",
    "health": "canary health",
    "published": "one round, as published\n(dashed: exact law)",
    "test": "test accuracy",
    "training": "the training, as published\n(dashed: accountant)",
}


class _CurvePoints(NamedTuple):
    """A curve: the value of its field, its color, and its points, sorted by x."""

    value: Value
    color: str
    points: list[AveragedPoint]


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's curves from what the store holds, and makes their table.

    A cell counts as missing unless all its rounds are stored. Where all cells are missing, nothing is drawn.

    Args:
      sweep: An AblationSweep, whose cells each measure rounds of a setting.
      evidence: What the store holds.

    Returns:
      The figure, if any; the number of missing cells; and the sweep's own table. There are no rows for the
        common table of sweeps.
    """
    assert isinstance(sweep, AblationSweep)  # all sweeps of CANIFE are
    stored: list[tuple[Attacked, list[RoundValues]]] = []
    missing = 0
    for cell in sweep.cells:
        setting = cell.request
        assert isinstance(setting, Attacked)
        # A cell measures the last `runs` of its setting's measured rounds: all of them, or the last alone.
        rounds = measured.read(evidence.held, setting, setting.measured()[-cell.runs :])
        if len(rounds) < cell.runs:
            missing += 1
        else:
            rows = [curves.summarize_round(setting, measured_round) for measured_round in rounds]
            stored.append((setting, rows))
    if not stored:
        return Drawn(figures=[], missing=missing, rows=[])
    averaged = curves.average_over_seeds(sweep.curve, sweep.x, stored)
    table = curves.make_curves_table(f"{sweep.name}: {sweep.title}", averaged)
    own_table = OwnTable(table.text(), table.csv())
    figures = [(sweep.name, ablation_figure(averaged))]
    return Drawn(figures, missing, rows=[], table=own_table)


def training_figure(setting: Attacked, rows: Sequence[RoundValues], composed: Global) -> Figure:
    """Draws a training run under measurement, in four panels.

    The panels show epsilon of the training run and of each round, the last round's scores, and
    over the rounds the canaries' health and the accuracies of attack and model.

    Args:
      setting: The setting.
      rows: What the setting's measured rounds show.
      composed: Epsilon of the training run up to each measured round.
    """
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(7.6, 6.2))
        _draw_totals(axes[0, 0], setting, composed)
        _draw_rounds(axes[0, 1], rows)
        _draw_scores(axes[1, 0], rows[-1])
        _draw_health(axes[1, 1], rows)
        for over_rounds in (axes[0, 0], axes[0, 1], axes[1, 1]):
            over_rounds.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(
            f"{setting.model}: cohorts of {setting.cohort:,}, noise multiplier "
            f"{setting.noise_multiplier:g}, clipping norm {setting.clipping_norm:g}, seed {setting.seed}",
            fontsize=9,
        )
    return figure


def _draw_legend_above(axes: Axes, columns: int = 2) -> None:
    """Draws a legend above the data, for which the vertical axis is lengthened by the factor _HEADROOM."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, low + _HEADROOM * (high - low))
    axes.legend(fontsize=7, ncols=columns, loc="upper center")


def _draw_rounds(axes: Axes, rows: Sequence[RoundValues]) -> None:
    """Draws each round's epsilon: as published with its interval, by the exact law, and as proven.

    The published estimate is at delta = 1/n, n its number of scores. The law is the distribution of a score;
    its exact epsilon is drawn at 1/n, and at the training run's delta. What is proven is a lower bound, at
    the training run's delta. A dashed line shows a perfect canary's epsilon, which is all that the noise
    allows at that delta.

    Infinite estimates are left out, and intervals are cut off at the top of the panel. That is 1.15 times the
    largest finite value among a perfect canary's epsilons and the intervals' lower ends.
    """
    numbers = [row.measured.number for row in rows]
    published = np.array([row.published.estimate.epsilon for row in rows])
    finite = np.where(np.isfinite(published), published, np.nan)
    lower = np.array([row.published.lower for row in rows])
    upper = np.array([row.published.upper for row in rows])

    heights = []
    for row in rows:
        for value in (row.perfect, row.published.lower):  # lower ends are always finite
            if np.isfinite(value):
                heights.append(value)
    top = 1.15 * max(heights)
    # Matplotlib takes the lengths of the bars below and above each point. A length would be NaN where the
    # estimate is infinite, and negative where it lies above the panel's top. There it is 0.
    bars = np.array([finite - lower, np.minimum(upper, top) - finite])
    bars = np.nan_to_num(np.clip(bars, 0, None))
    axes.errorbar(
        numbers,
        finite,
        bars,
        fmt="o",
        color=style.IN,
        ms=4,
        lw=1,
        label="published, at 1/n",
    )

    law_at_estimate = [row.measured.exact_then for row in rows]  # at the published estimate's delta
    axes.plot(numbers, law_at_estimate, "s-", ms=3, color=style.ORANGE, label="law, at 1/n")
    law = [row.measured.exact for row in rows]
    axes.plot(numbers, law, "^-", ms=4, color=style.BLUE, label="law")
    proven = [row.measured.proven for row in rows]
    axes.plot(numbers, proven, "v:", ms=4, color=style.BOUND, label="proven")
    # A perfect canary's epsilon depends on the noise alone, and so is the same in all rounds. Where it is
    # infinite, the line is drawn above the panel, out of sight.
    perfect = min(rows[0].perfect, 2 * top)
    axes.axhline(perfect, color=style.UPPER, ls="--", lw=1, label="perfect canary")
    axes.set(title="one round", xlabel="round", ylabel="epsilon", ylim=(0, top))
    _draw_legend_above(axes)


def _draw_totals(axes: Axes, setting: Attacked, composed: Global) -> None:
    """Draws the training run's epsilon over the rounds: the accountant's, the exact laws', and as published.

    The published epsilon has an interval, drawn as a band. The band is cut off at 1.5 times the larger of the
    published and the accountant's last value. Where that is infinite, nothing is cut off. If an upper end is
    then infinite too, there is no band.
    """
    last_rounds = composed.rounds
    axes.plot(
        last_rounds,
        composed.accountant,
        "--",
        color=style.UPPER,
        lw=1,
        label="accountant",
    )
    axes.plot(
        last_rounds,
        composed.canaries,
        "^-",
        ms=4,
        color=style.BLUE,
        label="canaries' laws",
    )
    axes.plot(
        last_rounds,
        composed.published,
        "o-",
        ms=4,
        color=style.IN,
        label="as published",
    )
    most = 1.5 * max(composed.published[-1], composed.accountant[-1])
    upper = np.minimum(composed.upper, most)
    if np.isfinite(upper).all():
        axes.fill_between(last_rounds, composed.lower, upper, color=style.IN, alpha=0.15, lw=0)
    title = rf"the training, $\delta$ = {setting.delta:g}"
    axes.set(title=title, xlabel="round", ylabel="epsilon", ylim=(0, None))
    _draw_legend_above(axes)


def _draw_scores(axes: Axes, row: RoundValues) -> None:
    """Draws histograms of a round's scores in both worlds: with the canary, and without it."""
    scores_in = row.measured.scores_in
    scores_out = row.measured.scores_out
    all_scores = np.concatenate([scores_in, scores_out])
    # Both histograms have the same bins, so that their bars can be compared.
    bins = np.linspace(all_scores.min(), all_scores.max(), 24).tolist()
    label = f"without, deviation {np.std(scores_out):.3g}"
    axes.hist(scores_out, bins, color=style.OUT, alpha=0.6, label=label)
    label = f"with, deviation {np.std(scores_in):.3g}"
    axes.hist(scores_in, bins, color=style.IN, alpha=0.6, label=label)
    title = f"scores of round {row.measured.number}"
    axes.set(title=title, xlabel="score / C", ylabel="mock rounds")
    _draw_legend_above(axes, columns=1)


def _draw_health(axes: Axes, rows: Sequence[RoundValues]) -> None:
    """Draws the canary's health and the accuracies of attack and model, over the rounds.

    The health is the share of the first sample's penalty that the canary's design removed. It is negative,
    and out of sight, where the design made the penalty larger.
    """
    numbers = [row.measured.number for row in rows]
    health = [row.measured.health for row in rows]
    axes.plot(numbers, health, "o-", ms=4, color=style.BLUE, label="canary health")
    attack = [row.accuracy for row in rows]
    axes.plot(numbers, attack, "s-", ms=4, color=style.IN, label="attack accuracy")
    test = [row.measured.accuracy for row in rows]
    axes.plot(numbers, test, "^-", ms=4, color=style.BOUND, label="test accuracy")
    axes.set(title="health and accuracy", xlabel="round", ylim=(0, 1.05))
    _draw_legend_above(axes)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def ablation_figure(drawn: Curves) -> Figure:
    """Draws a sweep's curves over x; bars are standard deviations over training runs.

    Panels show the scores' deviation, the attack's accuracy, the canary's health and a round's epsilon, as
    published. Where x is the round, two more show the model's accuracy and the training run's epsilon.

    Args:
      drawn: The curves, with averages of all quantities at each x.
    """
    panels = ["deviation", "attack", "health", "published"]
    if drawn.x == ROUND:
        panels = ["deviation", "attack", "published", "health", "test", "training"]
    columns = len(panels) // 2  # in two rows
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(2, columns, figsize=(3.8 * columns, 5.6), sharex=True)
        for name, panel_axes in zip(panels, axes.flat, strict=True):
            _draw_panel(panel_axes, drawn, name)
            _set_x_axis(panel_axes, drawn)
        for panel_axes in axes[-1]:
            panel_axes.set_xlabel(drawn.x.replace("_", " "))
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, title=drawn.curve, loc="outside upper center", ncols=6)
    return figure


def _draw_panel(axes: Axes, drawn: Curves, name: str) -> None:
    """Draws a quantity's curves with marks and bars, and dashed lines to compare them with.

    Marks are means over training runs, and bars are standard deviations. Three quantities have dashed lines:

      deviation: the scores' deviation by the clients alone, without noise.
      published: the exact law's epsilon, at the estimate's delta 1/n for n scores ("law_then").
      training: the accountant's epsilon.

    Infinite estimates are marked where the lines are exact values.

    Args:
      axes: The panel.
      drawn: The curves.
      name: The quantity, a key of _TITLES.
    """
    for curve in _split_by_curve(drawn):
        deviations = [point.averages[name].deviation for point in curve.points]
        look: dict[str, Any] = {"color": curve.color, "ms": 4, "lw": 1, "capsize": 2}
        x, means = _find_means(curve, name)
        # A penalty has words for the legend; any other value of a curve is shown as it is.
        label = PENALTIES.get(str(curve.value), curve.value)
        bars = np.nan_to_num(deviations)  # no bar where a deviation is NaN, as that of a single run
        axes.errorbar(x, means, bars, fmt="o-", label=label, **look)
    if name == "deviation":
        _draw_dashed(axes, drawn, "clients")
        axes.set(ylabel="deviation / C", ylim=(0, None))
    elif name == "published":
        axes.set(ylabel=r"$\varepsilon$ at $\delta$ = 1/n")
        _draw_exact(axes, drawn, name, "law_then")
    elif name == "training":
        axes.set(ylabel=r"$\varepsilon$")
        _draw_exact(axes, drawn, name, "accountant")
    axes.set(title=_TITLES[name])


def _draw_exact(axes: Axes, drawn: Curves, estimate: str, exact: str) -> None:
    """Draws a quantity's exact values as dashed lines, and marks infinite estimates at the upper edge.

    Where all estimates and all exact values are infinite, the panel says so in words.

    Args:
      axes: The panel.
      drawn: The curves.
      estimate: The name of the quantity whose infinite means are marked.
      exact: The name of the quantity that is drawn.
    """
    _draw_dashed(axes, drawn, exact)
    means = []
    for point in drawn.points:
        means += [point.averages[estimate].mean, point.averages[exact].mean]
    if not np.isfinite(means).any():
        # A mean is infinite if the value of a single training run is.
        message = "infinite at every point,\nin one training at least"
        axes.text(0.5, 0.5, message, ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return

    axes.set_ylim(0, None)
    x_and_share = axes.get_xaxis_transform()  # x as on the axis, y as a share of the panel's height
    for curve in _split_by_curve(drawn):
        x = [point.x for point in curve.points if np.isinf(point.averages[estimate].mean)]
        if x:  # without points, the line would upset the figure's layout
            look: dict[str, Any] = {"color": curve.color, "ms": 5, "clip_on": False}
            axes.plot(x, [1] * len(x), "^", transform=x_and_share, **look)


def _draw_dashed(axes: Axes, drawn: Curves, name: str) -> None:
    """Draws a quantity's means as a dashed line for each curve."""
    for curve in _split_by_curve(drawn):
        axes.plot(*_find_means(curve, name), "--", color=curve.color, lw=1)


def _find_means(curve: _CurvePoints, name: str) -> tuple[list[int], np.ndarray]:
    """Returns a curve's values of x, and a quantity's means there; NaN stands for infinite means."""
    means = np.array([point.averages[name].mean for point in curve.points])
    return [point.x for point in curve.points], np.where(np.isfinite(means), means, np.nan)


def _split_by_curve(drawn: Curves) -> list[_CurvePoints]:
    """Returns each curve's points, sorted by x, with its color.

    A curve has the points with the same value of `curve`. Curves are in the order of their first points. A
    fourth curve has the color of the first.
    """
    values = list(dict.fromkeys(point.curve for point in drawn.points))  # each value once
    split = []
    for value, color in zip(values, itertools.cycle(_COLORS), strict=False):  # colors never end
        points = [point for point in drawn.points if point.curve == value]
        points.sort(key=lambda point: point.x)
        split.append(_CurvePoints(value, color, points))
    return split


def _set_x_axis(axes: Axes, drawn: Curves) -> None:
    """Sets the ticks and the scale of x, which is the round or a field of the setting.

    A field has a tick at each of its values. Its scale is logarithmic where the largest value is at least
    _LOGARITHMIC_RATIO times the smallest.
    """
    if drawn.x == ROUND:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    values = sorted({point.x for point in drawn.points})
    if values[-1] >= _LOGARITHMIC_RATIO * values[0]:
        axes.set_xscale("log")
    axes.set_xticks(values, [str(value) for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
