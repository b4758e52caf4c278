"""Figures in the shape of the paper's: a training run under measurement, and a sweep's curves.

The former has its epsilon (1), histograms of scores (3) and a round's epsilon (4). Curves are those of 5a,
5b, 8a and 8c.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from audit.report import style
from experiments.canife import curves, measured
from experiments.canife.attacked import PENALTIES, Attacked
from experiments.canife.measured import Measured
from experiments.canife.sweep import ROUND, AblationSweep
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

_HEADROOM = 1.35  # a panel's height with room for its legend, over the height of its data


class _Line(NamedTuple):
    """A line over rounds: a column of the frame, its marks, its color and its words."""

    column: str
    marks: str
    color: str
    label: str


_TOTALS = (
    _Line(column="accountant", marks="--", color=style.UPPER, label="accountant"),
    _Line(column="training_law", marks="^-", color=style.BLUE, label="canaries' laws"),
    _Line(column="training", marks="o-", color=style.IN, label="as published"),
)
_EPSILONS = (
    _Line(column="published", marks="o", color=style.IN, label="published, at 1/n"),
    _Line(column="law_then", marks="s-", color=style.ORANGE, label="law, at 1/n"),
    _Line(column="law", marks="^-", color=style.BLUE, label="law"),
    _Line(column="proven", marks="v:", color=style.BOUND, label="proven"),
    _Line(column="perfect", marks="--", color=style.UPPER, label="perfect canary"),
)
_HEALTH = (
    _Line(column="health", marks="o-", color=style.BLUE, label="canary health"),
    _Line(column="attack", marks="s-", color=style.IN, label="attack accuracy"),
    _Line(column="test", marks="^-", color=style.BOUND, label="test accuracy"),
)


# Titles of the curves' panels by quantity, and the quantity of their dashed lines. Over a field there is no
# noise, and no epsilon.
_PANELS = {
    "deviation": ("deviation of scores\n(dashed: clients alone)", "clients"),
    "attack": ("attack accuracy", "attack"),
    "health": ("canary health", "health"),
    "test": ("test accuracy", "test"),
    "published": ("epsilon of a round, as published\n(dashed: exact law)", "law_then"),
    "training": ("epsilon of the training\n(dashed: accountant)", "accountant"),
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's curves from what the store holds, and makes their table.

    A cell counts as missing unless all its rounds are stored. Where all cells are missing, nothing is drawn.

    Args:
      sweep: An AblationSweep, whose cells each measure rounds of a setting.
      evidence: What the store holds.
    """
    assert isinstance(sweep, AblationSweep)  # all sweeps of CANIFE are
    stored = []
    for cell in sweep.cells:
        setting = cell.request
        assert isinstance(setting, Attacked)
        # A cell measures the last `runs` of its setting's measured rounds: all of them, or only the last.
        rounds = measured.read(evidence.held, setting, setting.measured()[-cell.runs :])
        if len(rounds) == cell.runs:
            stored.append((setting, curves.summarize(setting, rounds)))
    missing = len(sweep.cells) - len(stored)
    if not stored:
        return Drawn(figures=[], missing=missing, rows=[])
    averages = curves.average_over_seeds(sweep, stored)
    table = OwnTable(curves.show_curves(sweep, averages), averages.to_csv(index=False).encode())
    figures = [(sweep.name, ablation_figure(sweep, averages))]
    return Drawn(figures, missing, rows=[], table=table)


def training_figure(setting: Attacked, last: Measured, frame: pd.DataFrame) -> Figure:
    """Draws a training run under measurement, in four panels.

    The panels show epsilon of the training run and of each round, the last round's scores, and over the
    rounds the canaries' health and the accuracies of attack and model.

    Args:
      setting: The setting.
      last: What is stored of the last measured round.
      frame: The frame of all measured rounds, composed.
    """
    with plt.rc_context(style.STYLE):
        figure, ((totals, epsilons), (scores, health)) = plt.subplots(2, 2, figsize=(7.6, 6.2))
        title = rf"epsilon of the training, $\delta$ = {setting.delta:g}"
        totals.set(title=title, xlabel="round")
        _draw_epsilons(totals, frame, "charged_to", _TOTALS, ("training_lower", "training_upper"))
        epsilons.set(title="epsilon of one round", xlabel="round")
        _draw_epsilons(epsilons, frame, ROUND, _EPSILONS, ("lower", "upper"))
        scores.set(title=f"scores of round {last.number}", xlabel="score / C", ylabel="mock rounds")
        _draw_scores(scores, last)
        health.set(title="health and accuracy", xlabel="round", ylim=(0, 1.05 * _HEADROOM))
        _draw_lines(health, frame, ROUND, _HEALTH)
        for axes in figure.axes:
            axes.legend(fontsize=7, ncols=2, loc="upper center")
        figure.suptitle(
            f"{setting.model}: cohorts of {setting.cohort:,}, noise multiplier "
            f"{setting.noise_multiplier:g}, clipping norm {setting.clipping_norm:g}, seed {setting.seed}",
            fontsize=9,
        )
    return figure


def _draw_lines(axes: Axes, frame: pd.DataFrame, x: str, lines: Sequence[_Line]) -> None:
    """Draws lines over rounds; infinite values are left out."""
    finite = frame.replace(np.inf, np.nan)
    for line in lines:
        axes.plot(
            frame[x], finite[line.column], line.marks, ms=4, color=line.color, label=line.label
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_epsilons(
    axes: Axes, frame: pd.DataFrame, x: str, lines: Sequence[_Line], ends: tuple[str, str]
) -> None:
    """Draws epsilons over rounds, with the intervals of the published estimates as vertical lines.

    Intervals are cut off at 1.2 times the largest finite value of the lines.
    """
    _draw_lines(axes, frame, x, lines)
    values = frame[[line.column for line in lines]].to_numpy(float)
    top = 1.2 * np.max(values, where=np.isfinite(values), initial=1.0)
    lower, upper = ends
    axes.vlines(frame[x], frame[lower], frame[upper].clip(upper=top), color=style.IN, alpha=0.3)
    axes.set_ylim(0, _HEADROOM * top)


def _draw_scores(axes: Axes, row: Measured) -> None:
    """Draws histograms of a round's scores in both worlds, with the same bins."""
    bins = np.histogram_bin_edges(np.concatenate([row.scores_in, row.scores_out]), 24).tolist()
    worlds = (
        ("without", row.scores_out, style.OUT),
        ("with", row.scores_in, style.IN),
    )
    for name, scores, color in worlds:
        label = f"{name}, deviation {np.std(scores):.3g}"
        axes.hist(scores, bins, color=color, alpha=0.6, label=label)
    axes.set_ylim(0, _HEADROOM * axes.get_ylim()[1])


def ablation_figure(sweep: AblationSweep, averages: pd.DataFrame) -> Figure:
    """Draws a sweep's curves over x; bars are standard deviations over training runs.

    Panels show the scores' deviation, the attack's accuracy and the canary's health. Where x is the round,
    three more show the model's accuracy, and epsilon of a round and of the training run.

    Args:
      sweep: The sweep.
      averages: The points of its curves; see `curves.average_over_seeds`.
    """
    over_rounds = sweep.x == ROUND
    rows = 2 if over_rounds else 1
    colors = itertools.cycle((style.BLUE, style.VERMILION, style.GREEN))
    with plt.rc_context(style.STYLE):
        size = (10.5, 1 + 2.7 * rows)
        figure, axes = plt.subplots(rows, 3, figsize=size, sharex=True, squeeze=False)
        by_curve = averages.sort_values("x").groupby("curve", sort=False)
        for (value, points), color in zip(by_curve, colors, strict=False):
            label = PENALTIES.get(str(value), value)
            for panel, quantity in zip(axes.flat, _PANELS, strict=False):
                _, dashed = _PANELS[quantity]
                bars = points[f"{quantity}_deviation"].fillna(0)
                panel.errorbar(
                    *(points["x"], points[quantity], bars), fmt="o-", ms=4, color=color, label=label
                )
                panel.plot(points["x"], points[dashed], "--", lw=1, color=color)
        for panel, (title, _) in zip(axes.flat, _PANELS.values(), strict=False):
            panel.set(title=title, xlabel=sweep.x.replace("_", " "))
            panel.set_ylim(0, None)
        if over_rounds:
            axes[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            values = sorted(set(averages["x"]))
            axes[0, 0].set_xscale("log")
            axes[0, 0].set_xticks(values, [str(value) for value in values])
            axes[0, 0].xaxis.set_minor_locator(NullLocator())
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, title=sweep.curve, loc="outside upper center", ncols=6)
    return figure
