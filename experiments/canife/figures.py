"""Draws a measured training run (Figures 1, 3 and 4) and the sweeps (Figures 5a, 5b, 8a and 8c)."""

import itertools
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from audit.report import style
from experiments.canife import curves, measured
from experiments.canife.attacked import PENALTIES, Attacked, identity
from experiments.canife.measured import Measured
from experiments.canife.sweep import ROUND, AblationSweep
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn

# Each panel's title, and the columns of a frame of rounds (`curves`) that it plots against the round.
_OVER_ROUNDS = {
    "epsilon of the training run": [
        "accountant",
        "training_law",
        "training",
        "training_lower",
        "training_upper",
    ],
    "epsilon of a single round": [
        "perfect",
        "law",
        "proven",
        "law_then",
        "published",
        "lower",
        "upper",
    ],
    "health and accuracy": ["health", "attack", "test"],
}
# Maps the column of a panel's solid curves to the panel's title and the column of its dashed curves, if any.
_PANELS = {
    "deviation": ("deviation of scores\n(dashed: clients only)", "clients"),
    "attack": ("attack accuracy", ""),
    "health": ("canary health", ""),
    "test": ("test accuracy", ""),
    "published": ("epsilon of a round, as published, if finite\n(dashed: exact law)", "law_then"),
    "training": ("epsilon of the training run\n(dashed: accountant)", "accountant"),
}


def draw(sweep: AblationSweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's curves and makes their table from the cells that have all rounds stored."""
    stored = []
    for cell in sweep.cells:
        setting, numbers = cell.request
        rounds = measured.read_rounds(evidence.held.open(identity(setting)), numbers)
        if len(rounds) == cell.runs:  # each round counts as a run
            stored.append((setting, curves.summarize(setting, rounds)))
    missing = len(sweep.cells) - len(stored)
    if not stored:
        return Drawn(None, missing)
    averages = curves.average_over_seeds(sweep, stored)
    table = curves.make_curves_table(sweep, averages)
    return Drawn(ablation_figure(sweep, averages), missing, table=table)


def training_figure(setting: Attacked, last: Measured, frame: pd.DataFrame) -> Figure:
    """Draws four panels: a training run's epsilon, its rounds' epsilons, fractions, and scores.

    The fractions are the accuracies and the canaries' health (`Measured`). The scores are from round `last`.
    `frame` has all measured rounds (`curves.compose`).
    """
    finite = frame.replace(np.inf, np.nan).set_index(ROUND)
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(7.6, 6.2))
        for panel, (title, columns) in zip(axes.flat, _OVER_ROUNDS.items(), strict=False):
            finite[columns].plot(ax=panel, title=title, marker="o")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        *_, fractions, histogram = axes.flat
        fractions.set_ylim(0, 1.05)
        histogram.set_title(f"scores / C of round {last.number}")
        histogram.hist(
            [last.scores_in, last.scores_out],
            bins=24,
            color=[style.IN, style.OUT],
            label=["with the canary", "without"],
        )
        for panel in axes.flat:
            panel.legend(fontsize=7)
        figure.suptitle(
            f"{setting.model}: cohorts of {setting.cohort:,}, noise multiplier "
            f"{setting.noise_multiplier:g}, clipping norm {setting.clipping_norm:g}, seed {setting.seed}",
            fontsize=9,
        )
    return figure


def ablation_figure(sweep: AblationSweep, averages: pd.DataFrame) -> Figure:
    """Draws a sweep's curves (`curves.average_over_seeds`) with standard deviations as error bars.

    Three panels show the scores' standard deviation, the attack's accuracy and the canary's health
    (`Measured`). If x is the round, three more panels show the model's accuracy, the round's epsilon and the
    training run's epsilon. Titles explain dashed curves.
    """
    curve = averages["curve"].replace(PENALTIES)  # a penalty's displayed name
    frame = averages.assign(curve=curve).replace(np.inf, np.nan)  # panels omit infinite epsilons
    by_curve = frame.pivot(index="x", columns="curve")
    number = len(_PANELS) if sweep.x == ROUND else 3
    panels = {}
    for solid, (title, dashed) in itertools.islice(_PANELS.items(), number):
        panels[title] = partial(_draw_panel, x=sweep.x, frame=by_curve, solid=solid, dashed=dashed)
    return draw_panels(f"{sweep.title}, by {sweep.curve}", panels, (3.5, 2.7), legend_columns=6)


def _draw_panel(axis: Axes, x: str, frame: pd.DataFrame, solid: str, dashed: str) -> None:
    """Draws a panel with solid curves of one quantity and, unless `dashed` is "", dashed curves of another.

    The frame has a row for each x and a column for each (quantity, curve). `<solid>_deviation` has the
    error bars.
    """
    looks = {"ax": axis, "color": [style.BLUE, style.VERMILION, style.GREEN], "legend": False}
    frame[solid].plot(yerr=frame[f"{solid}_deviation"], marker="o", ms=4, **looks)
    if dashed:
        # Matplotlib's legend omits names that begin with an underscore.
        frame[dashed].add_prefix("_").plot(style="--", **looks)
        axis.set_ylim(0, None)  # to compare the two quantities
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel(x.replace("_", " "))
    if x != ROUND:  # other fields grow by factors
        axis.set(xscale="log", xticks=frame.index, xticklabels=frame.index)
        axis.minorticks_off()
