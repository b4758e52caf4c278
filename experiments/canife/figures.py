"""A training under measurement, in the shape of the paper's figures: the training's epsilon (1), histograms
of scores and their deviation by cohort (3), a round's epsilon (4), the design's steps and the attack's
accuracy against the model's (5), and by cohort (8)."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from audit.report import style
from experiments.canife import curves, table
from experiments.canife.attacked import Attacked
from experiments.canife.curves import Global, RoundValues

_HEADROOM = 1.35  # of a panel, for its legend
_MANY = 30  # clients in a bar, from which on its axis is logarithmic


def training_figure(attacked: Attacked, rows: Sequence[RoundValues], found: Global) -> Figure:
    """Epsilon a round and of the training, health and accuracies, and of the last round scores, canary, its
    design and what other cohorts would make of it."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(3, 3, figsize=(9.5, 8.6))
        _per_round(axes[0, 0], attacked, rows)
        _global(axes[0, 1], attacked, found)
        _scores(axes[0, 2], rows[-1])
        _health(axes[1, 0], rows)
        _dots(axes[1, 1], rows[-1])
        _canary(axes[1, 2], rows[-1])
        _descent(axes[2, 0], rows)
        _accuracies(axes[2, 1], rows)
        _cohorts(axes[2, 2], attacked, rows[-1])
        figure.suptitle(_summary(attacked), fontsize=9)
    return figure


def _summary(attacked: Attacked) -> str:
    """What is measured, in a line."""
    return (
        f"{attacked.model}: cohorts of {attacked.cohort:,}, noise multiplier {attacked.noise_multiplier:g}, "
        f"clipping norm {attacked.clipping_norm:g}, seed {attacked.seed}"
    )


def _legend_above(axes: Axes, columns: int = 2) -> None:
    """A legend over nothing that is drawn."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, low + _HEADROOM * (high - low))
    axes.legend(fontsize=7, ncols=columns, loc="upper center")


def _per_round(axes: Axes, attacked: Attacked, rows: Sequence[RoundValues]) -> None:
    numbers = [one.measured.number for one in rows]
    values = np.array([one.published.estimate.epsilon for one in rows])
    ends = np.array([[one.published.lower, one.published.upper] for one in rows])
    shown = np.where(np.isfinite(values), values, np.nan)
    top = 1.15 * max([v for one in rows for v in (one.truth, one.published.lower) if np.isfinite(v)])
    low, high = shown - ends[:, 0], np.minimum(ends[:, 1], top) - shown
    axes.errorbar(
        numbers,
        shown,
        np.nan_to_num(np.clip(np.array([low, high]), 0, None)),
        fmt="o",
        color=style.IN,
        ms=4,
        lw=1,
        label="published, at 1/n",
    )
    axes.plot(
        numbers,
        [one.measured.exact_then for one in rows],
        "s-",
        ms=3,
        color=style.ORANGE,
        label="law, at 1/n",
    )
    axes.plot(numbers, [one.measured.exact for one in rows], "^-", ms=4, color=style.BLUE, label="law")
    axes.plot(numbers, [one.measured.proven for one in rows], "v:", ms=4, color=style.BOUND, label="proven")
    axes.axhline(min(rows[0].truth, 2 * top), color=style.UPPER, ls="--", lw=1, label="perfect canary")
    axes.set(title="one round", xlabel="round", ylabel="epsilon", ylim=(0, top))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_above(axes)


def _global(axes: Axes, attacked: Attacked, found: Global) -> None:
    axes.plot(found.rounds, found.accountant, "--", color=style.UPPER, lw=1, label="accountant")
    axes.plot(found.rounds, found.canaries, "^-", ms=4, color=style.BLUE, label="canaries' laws")
    axes.plot(found.rounds, found.published, "o-", ms=4, color=style.IN, label="as published")
    upper = np.minimum(found.upper, 1.5 * max(found.published[-1], found.accountant[-1]))
    if np.isfinite(upper).all():
        axes.fill_between(found.rounds, found.lower, upper, color=style.IN, alpha=0.15, lw=0)
    title = rf"the training, $\delta$ = {attacked.delta:g}"
    axes.set(title=title, xlabel="round", ylabel="epsilon", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_above(axes)


def _scores(axes: Axes, one: RoundValues) -> None:
    kept = one.measured
    both = np.concatenate([kept.scores_in, kept.scores_out])
    bins = np.linspace(both.min(), both.max(), 24).tolist()
    for scores, colour, name in ((kept.scores_out, style.OUT, "without"), (kept.scores_in, style.IN, "with")):
        axes.hist(scores, bins, color=colour, alpha=0.6, label=f"{name}, deviation {np.std(scores):.3g}")
    axes.set(title=f"scores of round {kept.number}", xlabel="score / C", ylabel="mock rounds")
    _legend_above(axes, 1)


def _health(axes: Axes, rows: Sequence[RoundValues]) -> None:
    numbers = [one.measured.number for one in rows]
    axes.plot(
        numbers, [one.measured.health for one in rows], "o-", ms=4, color=style.BLUE, label="canary health"
    )
    axes.plot(numbers, [one.accuracy for one in rows], "s-", ms=4, color=style.IN, label="attack accuracy")
    axes.plot(
        numbers, [one.measured.accuracy for one in rows], "^-", ms=4, color=style.BOUND, label="test accuracy"
    )
    axes.set(title="health and accuracy", xlabel="round", ylim=(0, 1.05))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_above(axes)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _dots(axes: Axes, one: RoundValues) -> None:
    counts, _, _ = axes.hist(one.measured.known, 60, color=style.OUT)
    title = f"clients' dot products\n(the canary's: {one.measured.own:.3f})"
    axes.set(title=title, xlabel="dot product / C", ylabel="clients")
    axes.locator_params(axis="x", nbins=5)
    if np.max(counts) >= _MANY:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def _descent(axes: Axes, rows: Sequence[RoundValues]) -> None:
    for i, one in enumerate(rows):
        losses = one.measured.descent
        share = i / max(len(rows) - 1, 1)
        steps = np.linspace(0, 1, len(losses))
        shown = f"round {one.measured.number}" if i in (0, len(rows) - 1) else None
        axes.plot(steps, losses / losses[0], color=plt.get_cmap("viridis")(0.9 * share), lw=1, label=shown)
    axes.set(title="penalty on minibatches", xlabel="share of the design's steps", yscale="log")
    axes.set(ylabel="penalty / the first")
    axes.legend(fontsize=7, loc="upper right", frameon=True, edgecolor="none")


def _accuracies(axes: Axes, rows: Sequence[RoundValues]) -> None:
    models, attacks = [one.measured.accuracy for one in rows], [one.accuracy for one in rows]
    numbers = [one.measured.number for one in rows]
    points = axes.scatter(models, attacks, c=numbers, cmap="viridis", s=24)
    plt.colorbar(points, ax=axes, label="round", ticks=MaxNLocator(5, integer=True))
    axes.set(title="accuracies of attack and model", xlabel="test accuracy", ylabel="attack accuracy")
    axes.set(ylim=(0.45, 1.05))


def _cohorts(axes: Axes, attacked: Attacked, one: RoundValues) -> None:
    found = curves.by_cohort(attacked, one.measured)
    axes.plot(found.sizes, found.deviations, "-", color=style.BLUE, label="scores' deviation")
    axes.plot(found.sizes, found.accuracies, "--", color=style.IN, label="attack accuracy, if normal")
    axes.axhline(attacked.noise_multiplier, color=style.UPPER, lw=1, ls=":", label=r"noise alone, $\sigma$")
    axes.axvline(attacked.cohort, ymax=1 / _HEADROOM, color=style.FADED, lw=1, label="this training")
    axes.set(title=f"other cohorts, round {one.measured.number}", xlabel="clients a round", xscale="log")
    axes.set_xticks([size for size in (2, 5, 10, 20, 50, 100, 200, 500, 1000) if size <= found.sizes[-1]])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(0, 1.1 * max(1.0, *found.deviations))
    _legend_above(axes, 1)


def _canary(axes: Axes, one: RoundValues) -> None:
    kept = one.measured
    title = f"canary of round {kept.number}"
    if isinstance(kept.canary, str):
        text = "\n".join(table.broken(kept.canary, 27)).replace("$", r"\$")
        axes.text(0.5, 0.5, text, family="monospace", fontsize=9, ha="center", va="center")
    else:
        low, high = kept.canary.min(), kept.canary.max()
        axes.imshow((kept.canary - low) / max(high - low, 1e-12), cmap="gray")
    axes.set(title=f"{title}, label {int(kept.label.argmax())}" if kept.label.size else title)
    axes.axis("off")
