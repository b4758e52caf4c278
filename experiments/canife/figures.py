"""In the shape of the paper's figures: a training under measurement, with its epsilon (1), histograms of
scores and their deviation by cohort (3), a round's epsilon (4), the design's steps and the attack's accuracy
against the model's (5), and by cohort (8); and a grid's curves (5a, 5b, 8a, 8c)."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from audit.report import style
from experiments.canife.attacked import ROUND, Attacked, Value
from experiments.canife.curves import Averaged, Curves, Global, RoundValues, broken, by_cohort, flag_text

_HEADROOM = 1.35  # of a panel, for its legend
_MANY = 30  # clients in a bar, from which on its axis is logarithmic
_LOGARITHMIC = 8  # the largest x over the smallest
_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.BLACK)
_MARKS = "os^vDP"
_TITLES = {
    "deviation": "scores' deviation with noise\n(dashed: clients alone)",
    "attack": "attack accuracy",
    "health": "canary health",
    "published": "one round, as published\n(dashed: exact law)",
    "test": "test accuracy",
    "training": "the training, as published\n(dashed: accountant)",
}


def training_figure(attacked: Attacked, rows: Sequence[RoundValues], composed: Global) -> Figure:
    """Epsilon a round and of the training, health and accuracies, and of the last round scores, canary, its
    design and what other cohorts would make of it."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(3, 3, figsize=(9.5, 8.6))
        _per_round(axes[0, 0], attacked, rows)
        _global(axes[0, 1], attacked, composed)
        _scores(axes[0, 2], rows[-1])
        _health(axes[1, 0], rows)
        _dots(axes[1, 1], rows[-1])
        _canary(axes[1, 2], rows[-1])
        _descent(axes[2, 0], rows)
        _accuracies(axes[2, 1], rows)
        _cohorts(axes[2, 2], attacked, rows[-1])
        for one in (axes[0, 0], axes[0, 1], axes[1, 0]):  # over rounds
            one.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(
            f"{attacked.model}: cohorts of {attacked.cohort:,}, noise multiplier "
            f"{attacked.noise_multiplier:g}, clipping norm {attacked.clipping_norm:g}, seed {attacked.seed}",
            fontsize=9,
        )
    return figure


def _legend_above(axes: Axes, columns: int = 2) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, low + _HEADROOM * (high - low))
    axes.legend(fontsize=7, ncols=columns, loc="upper center")


def _per_round(axes: Axes, attacked: Attacked, rows: Sequence[RoundValues]) -> None:
    kept = [one.measured for one in rows]
    numbers = [one.number for one in kept]
    values = np.array([one.published.estimate.epsilon for one in rows])
    ends = np.array([[one.published.lower, one.published.upper] for one in rows])
    shown = np.where(np.isfinite(values), values, np.nan)
    top = 1.15 * max([v for one in rows for v in (one.truth, one.published.lower) if np.isfinite(v)])
    bars = np.array([shown - ends[:, 0], np.minimum(ends[:, 1], top) - shown])
    bars = np.nan_to_num(np.clip(bars, 0, None))
    axes.errorbar(numbers, shown, bars, fmt="o", color=style.IN, ms=4, lw=1, label="published, at 1/n")
    then = [one.exact_then for one in kept]
    axes.plot(numbers, then, "s-", ms=3, color=style.ORANGE, label="law, at 1/n")
    axes.plot(numbers, [one.exact for one in kept], "^-", ms=4, color=style.BLUE, label="law")
    axes.plot(numbers, [one.proven for one in kept], "v:", ms=4, color=style.BOUND, label="proven")
    axes.axhline(min(rows[0].truth, 2 * top), color=style.UPPER, ls="--", lw=1, label="perfect canary")
    axes.set(title="one round", xlabel="round", ylabel="epsilon", ylim=(0, top))
    _legend_above(axes)


def _global(axes: Axes, attacked: Attacked, composed: Global) -> None:
    axes.plot(composed.rounds, composed.accountant, "--", color=style.UPPER, lw=1, label="accountant")
    axes.plot(composed.rounds, composed.canaries, "^-", ms=4, color=style.BLUE, label="canaries' laws")
    axes.plot(composed.rounds, composed.published, "o-", ms=4, color=style.IN, label="as published")
    upper = np.minimum(composed.upper, 1.5 * max(composed.published[-1], composed.accountant[-1]))
    if np.isfinite(upper).all():
        axes.fill_between(composed.rounds, composed.lower, upper, color=style.IN, alpha=0.15, lw=0)
    title = rf"the training, $\delta$ = {attacked.delta:g}"
    axes.set(title=title, xlabel="round", ylabel="epsilon", ylim=(0, None))
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
    kept = [one.measured for one in rows]
    numbers = [one.number for one in kept]
    axes.plot(numbers, [one.health for one in kept], "o-", ms=4, color=style.BLUE, label="canary health")
    axes.plot(numbers, [one.accuracy for one in rows], "s-", ms=4, color=style.IN, label="attack accuracy")
    axes.plot(numbers, [one.accuracy for one in kept], "^-", ms=4, color=style.BOUND, label="test accuracy")
    axes.set(title="health and accuracy", xlabel="round", ylim=(0, 1.05))
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
    sizes, deviations, accuracies = by_cohort(attacked, one.measured)
    axes.plot(sizes, deviations, "-", color=style.BLUE, label="scores' deviation")
    axes.plot(sizes, accuracies, "--", color=style.IN, label="attack accuracy, if normal")
    axes.axhline(attacked.noise_multiplier, color=style.UPPER, lw=1, ls=":", label=r"noise alone, $\sigma$")
    axes.axvline(attacked.cohort, ymax=1 / _HEADROOM, color=style.FADED, lw=1, label="this training")
    axes.set(title=f"other cohorts, round {one.measured.number}", xlabel="clients a round", xscale="log")
    axes.set_xticks([size for size in (2, 5, 10, 20, 50, 100, 200, 500, 1000) if size <= sizes[-1]])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(0, 1.1 * max(1.0, *deviations))
    _legend_above(axes, 1)


def _canary(axes: Axes, one: RoundValues) -> None:
    kept = one.measured
    title = f"canary of round {kept.number}"
    if isinstance(kept.canary, str):
        text = "\n".join(broken(kept.canary, 27)).replace("$", r"\$")
        axes.text(0.5, 0.5, text, family="monospace", fontsize=9, ha="center", va="center")
    else:
        low, high = kept.canary.min(), kept.canary.max()
        axes.imshow((kept.canary - low) / max(high - low, 1e-12), cmap="gray")
    axes.set(title=f"{title}, label {int(kept.label.argmax())}" if kept.label.size else title)
    axes.axis("off")


def varied_figure(curves: Curves) -> Figure:
    """Deviation, attack accuracy, canary health and a round's epsilon by x, and over rounds accuracy and the
    training's epsilon, a colour a curve; bars are deviations over trainings."""
    panels = ["deviation", "attack", "health", "published"]
    if curves.x == ROUND:
        panels = ["deviation", "attack", "published", "health", "test", "training"]
    with plt.rc_context(style.STYLE):
        columns = len(panels) // 2
        figure, axes = plt.subplots(2, columns, figsize=(3.8 * columns, 5.6), sharex=True)
        for name, one in zip(panels, axes.flat, strict=True):
            _panel(one, curves, name)
            _x_axis(one, curves)
        for one in axes[-1]:
            one.set_xlabel(curves.x.replace("_", " "))
        if curves.curve:
            handles, labels = axes[0, 0].get_legend_handles_labels()
            title = curves.curve.replace("_", " ")
            figure.legend(handles, labels, title=title, loc="outside upper center", ncols=6)
    return figure


def _panel(axes: Axes, curves: Curves, name: str) -> None:
    _lines(axes, curves, name)
    if name == "deviation":
        _lines(axes, curves, "clients", dashed=True)
        axes.set(ylabel="deviation / C", ylim=(0, None))
    elif name == "published":
        axes.set(ylabel=r"$\varepsilon$ at $\delta$ = 1/n")
        _exact(axes, curves, name, "law_then")
    elif name == "training":
        axes.set(ylabel=r"$\varepsilon$")
        _exact(axes, curves, name, "accountant")
    axes.set(title=_TITLES[name])


def _exact(axes: Axes, curves: Curves, estimate: str, exact: str) -> None:
    """Exact values, dashed; what is infinite of the estimates is marked at the upper edge, or said."""
    _lines(axes, curves, exact, dashed=True)
    means = [one.averages[name].mean for one in curves.points for name in (estimate, exact)]
    if not np.isfinite(means).any():
        said = "infinite at every point,\nin one training at least"
        axes.text(0.5, 0.5, said, ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return
    axes.set_ylim(0, None)
    places = _places(curves)
    for _, colour, _, points in _by_curve(curves):
        x = [places[one.x] for one in points if np.isinf(one.averages[estimate].mean)]
        if x:  # an empty line there upsets the layout
            edge = axes.get_xaxis_transform()
            axes.plot(x, [1] * len(x), "^", color=colour, ms=5, clip_on=False, transform=edge)


def _by_curve(curves: Curves) -> Iterator[tuple[Value, str, str, list[Averaged]]]:
    places = _places(curves)
    for i, value in enumerate(dict.fromkeys(one.curve for one in curves.points)):
        own = sorted((one for one in curves.points if one.curve == value), key=lambda one: places[one.x])
        yield value, _COLOURS[i % len(_COLOURS)], _MARKS[i // len(_COLOURS) % len(_MARKS)], own


def _places(curves: Curves) -> dict[Value, float]:
    """Where each x is: numbers are where they are, words one after another."""
    return {
        x: float(i if isinstance(x, (str, bool)) else x)
        for i, x in enumerate(dict.fromkeys(one.x for one in curves.points))
    }


def _lines(axes: Axes, curves: Curves, name: str, dashed: bool = False) -> None:
    places = _places(curves)
    for value, colour, mark, points in _by_curve(curves):
        averages = np.array([one.averages[name] for one in points])
        x, means = [places[one.x] for one in points], averages[:, 0]
        means = np.where(np.isfinite(means), means, np.nan)
        if dashed:
            axes.plot(x, means, "--", color=colour, lw=1)
        else:
            bars, label = np.nan_to_num(averages[:, 1]), flag_text(value)
            axes.errorbar(x, means, bars, fmt=f"{mark}-", color=colour, ms=4, lw=1, capsize=2, label=label)


def _x_axis(axes: Axes, curves: Curves) -> None:
    places = _places(curves)
    values = list(places.values())
    if curves.x == ROUND:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    if min(values) > 0 and max(values) >= _LOGARITHMIC * min(values):
        axes.set_xscale("log")
    axes.set_xticks(values, [flag_text(x) for x in places])
    axes.xaxis.set_minor_locator(NullLocator())
