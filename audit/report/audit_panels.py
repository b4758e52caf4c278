"""One audit's figure: its scores, trade-off curve, bounds and privacy profile."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from audit.conclusions.conclusion import Conclusion, method_of
from audit.laws import conversions
from audit.methods.curves import auc
from audit.methods.estimate import Estimate, Finding
from audit.methods.method import COINS, NO_BOUND, NOTHING
from audit.report import curves, style
from audit.report.curves import mark, standing
from audit.report.style import BOUND, FADED, IN, OUT, STYLE, UPPER
from audit.report.table import at_least, at_most

_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
_HEADROOM = 1.35  # of the scores' panel, for its legend
_APART = 0.4  # between the bounds and what is none, in bars
_LIGHT = 0.3  # opacity of what assumes something
_WIDE, _TALL = 0.16, 0.06  # a number's share of an axis, at most
_CLOSE = 0.2  # between two upper bounds, of the smaller: less than a name is wide
_MOST_UPRIGHT = 5  # bars beside each other; more lie, one above the other


def audit_figure(
    conclusion: Conclusion, audited: str = "", encode: Callable[[Figure], bytes] = style.png
) -> bytes:
    """All panels of one audit in one of `style.FORMATS`, below a line that says what was audited."""
    with plt.rc_context(STYLE):
        return encode(audit_drawing(conclusion, audited))


def audit_drawing(conclusion: Conclusion, audited: str = "") -> Figure:
    """All panels of one audit as a figure that pyplot has let go of."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(9, 6.6))
        for axis, draw in zip(axes.flat, _panels(conclusion).values(), strict=True):
            draw(axis, conclusion)
        if audited:
            figure.suptitle(textwrap.fill(audited, 120), fontsize=9)
        style.set_symbols(figure)
        plt.close(figure)
        return figure


def audit_panels(conclusion: Conclusion) -> dict[str, bytes]:
    """Each panel of one audit apart, as SVG bytes: "scores", "trade_off", "bounds", and "profile", or "path"
    where directions are fresh."""
    drawn = {}
    with plt.rc_context(STYLE):
        for name, draw in _panels(conclusion).items():
            figure, axis = plt.subplots(figsize=(4.2, 3.4))
            draw(axis, conclusion)
            drawn[name] = style.svg(figure)
    return drawn


def _draw_scores(axis: Axes, conclusion: Conclusion) -> None:
    scores_in, scores_out = conclusion.scores_in, conclusion.scores_out
    gaussian, what = conclusion.gaussian, "runs" if conclusion.design is None else "scores"
    both = np.concatenate([scores_in, scores_out])
    bins = np.histogram_bin_edges(both, min(math.isqrt(len(both)) + 1, 60)).tolist()
    out = f"out ({len(scores_out)} {what})" if conclusion.fresh is None else "out (the known law)"
    axis.hist(scores_out, bins, color=OUT, alpha=0.6, label=out)
    axis.hist(scores_in, bins, color=IN, alpha=0.6, hatch="///", label=f"in ({len(scores_in)} {what})")
    state = standing(conclusion)
    label = f"threshold, {method_of(gaussian).label} {state.mark if state.faded else ''}".strip()
    color = FADED if state.faded else BOUND
    if gaussian.threshold is not None:
        axis.axvline(gaussian.threshold, ymax=1 / _HEADROOM, color=color, ls="--", label=label)
    axis.set(xlabel="score of the final model", ylabel=what, title="Scores")
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(top=axis.get_ylim()[1] * _HEADROOM)
    axis.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_trade_off(axis: Axes, conclusion: Conclusion) -> None:
    curves.draw_on_deviates(axis, conclusion)
    axis.set_title("Trade-off curve", pad=16)
    turned = auc(conclusion.scores_in, conclusion.scores_out).value < 0.5
    axis.legend(loc="lower left" if turned else "upper right", fontsize=8, frameon=True, edgecolor="none")


def _draw_bounds(axis: Axes, conclusion: Conclusion) -> None:
    """A bar a lower bound, light where it assumes something, faded where that is refuted, hatched for an
    estimate, and a line at each upper bound."""
    rows: tuple[Finding, ...] = (*conclusion.ranked(), *conclusion.estimates)  # as in the printed table
    labels = []
    for row in rows:
        word = NO_BOUND if isinstance(row, Estimate) else mark(row, conclusion)
        labels.append(f"{method_of(row).label} {word}".strip())
    draw = _draw_lying if len(rows) > _MOST_UPRIGHT else _draw_upright
    bars = draw(axis, conclusion, labels, [row.epsilon for row in rows])
    for bar, row in zip(bars, rows, strict=True):
        if isinstance(row, Estimate):
            bar.set(facecolor="white", edgecolor=BOUND, hatch="///")
        elif not row.holds:
            bar.set(facecolor="white", edgecolor=FADED, hatch="xxx")
        elif row.assumes.text not in (NOTHING.text, COINS.text):
            bar.set(alpha=None, facecolor=(BOUND, _LIGHT), edgecolor=BOUND, linewidth=1.2)
    axis.set_title("Lower bounds on epsilon", pad=16)
    many = " or many runs" if conclusion.design is not None else ""
    if not conclusion.refutes_gaussian:
        said = f"light: assumes a Gaussian curve{many}"
        axis.text(0.5, 1.02, said, transform=axis.transAxes, ha="center", va="bottom", fontsize=8)


def _draw_lying(axis: Axes, conclusion: Conclusion, labels: list[str], epsilons: list[float]) -> BarContainer:
    bars, limits = axis.barh(labels, epsilons, color=BOUND, alpha=0.8, height=0.7), _limits(conclusion)
    right = 1.15 * max(*epsilons, *(limits or [0.1]))
    for place, value in enumerate(epsilons):
        inside = any(value <= line < value + _WIDE * right for line in limits)  # it would lie on the line
        how: dict[str, Any] = {
            "ha": "right" if inside else "left",
            "va": "center",
            "fontsize": 8,
            "bbox": _BOX,
        }
        offset = (-4 if inside else 4, 0)
        axis.annotate(at_least(value, 2), (value, place), offset, textcoords="offset points", **how)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlim(right=right)
    axis.set_xlabel(f"epsilon at delta {conclusion.delta:g}")
    beside: dict[str, Any] = {"va": "center", "rotation": 90, "fontsize": 8, "bbox": _BOX}
    for line, (name, dashes, before) in limits.items():
        axis.axvline(line, color=UPPER, ls=dashes)
        how = {**beside, "ha": "right" if before else "left"}
        offset, places = (-5 if before else 5, 0), ("data", "axes fraction")
        axis.annotate(name, (line, 0.5), offset, xycoords=places, textcoords="offset points", **how)
    return bars


def _limits(conclusion: Conclusion) -> dict[float, tuple[str, str, bool]]:
    """The finite upper bounds on epsilon: the name of a line there, its dashes, and whether the name has to
    stand before the line, since another follows too soon."""
    uppers = [upper for upper in conclusion.upper_bounds if math.isfinite(upper.epsilon)]
    close = len(uppers) == 2 and uppers[1].epsilon < (1 + _CLOSE) * uppers[0].epsilon
    named = [(f"{upper.name} {at_most(upper.epsilon, 2)}", "-." if upper.hidden else ":") for upper in uppers]
    ends = (close, False)
    return {upper.epsilon: (*name, before) for upper, name, before in zip(uppers, named, ends, strict=False)}


def _draw_upright(
    axis: Axes, conclusion: Conclusion, labels: list[str], epsilons: list[float]
) -> BarContainer:
    limits = _limits(conclusion)
    places = [i + _APART * (i >= len(conclusion.bounds)) for i in range(len(labels))]
    bars = axis.bar(places, epsilons, color=BOUND, alpha=0.8, width=0.6)
    axis.set_xticks(places, [textwrap.fill(label, 11) for label in labels])
    top = 1.15 * max(*epsilons, *(limits or [0.1]))
    for place, value in zip(places, epsilons, strict=True):
        shares = [value / 2, value / 4, value * 3 / 4]
        free = [one for one in shares if all(abs(one - line) > _TALL * top for line in limits)]
        height = free[0] if free else shares[1]
        axis.text(place, height, at_least(value, 2), ha="center", va="center", bbox=_BOX)
    above: dict[str, Any] = {"ha": "right", "va": "bottom", "bbox": _BOX}
    for line, (name, dashes, before) in limits.items():
        axis.axhline(line, color=UPPER, ls=dashes)
        how = {**above, "va": "top" if before else "bottom"}
        offset, coords = (0, -4 if before else 4), ("axes fraction", "data")
        axis.annotate(name, (1, line), offset, xycoords=coords, textcoords="offset points", **how)
    axis.set(ylabel=f"epsilon at delta {conclusion.delta:g}", ylim=(0, top))
    return bars


def _draw_profile(axis: Axes, conclusion: Conclusion) -> None:
    mu, uppers = conclusion.gaussian.mu or 0.0, conclusion.upper_bounds
    known = [(one, one.mu) for one in uppers if one.mu is not None and np.isfinite(one.mu)]
    largest = max(mu, 0.05, *(upper for _, upper in known))
    grid = np.linspace(0, conversions.epsilon_from_mu(largest, 1e-10), 400)
    state = standing(conclusion)
    with np.errstate(over="ignore"):
        if mu:
            delta = conversions.delta_from_mu(mu, grid)
            label = f"lower bound, if Gaussian {state.mark}".strip()
            axis.plot(grid, delta, color=FADED if state.faded else BOUND, ls="--", label=label)
        for one, upper in known:
            dashes = "-." if one.hidden else ":"
            axis.plot(grid, conversions.delta_from_mu(upper, grid), color=UPPER, ls=dashes, label=one.name)
    axis.axhline(conclusion.delta, color="0.7", lw=0.8)
    how: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 8, "color": "0.4"}
    place, name = ("axes fraction", "data"), f"delta {conclusion.delta:g}"
    axis.annotate(name, (1, conclusion.delta), (0, 1), xycoords=place, textcoords="offset points", **how)
    axis.set(xlabel="epsilon", ylabel="delta", title="Privacy profile", yscale="log", ylim=(1e-10, 1e3))
    axis.set_yticks([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1])
    if mu or known:
        axis.legend(loc="upper right", fontsize=8)


def _draw_path(axis: Axes, conclusion: Conclusion) -> None:
    """Draws what was proven after each run, or after all of them where their order is not known, and the
    upper bounds."""
    path = conclusion.path or (conclusion.epsilon,)
    last = len(conclusion.fresh.cosines) if conclusion.fresh is not None else len(path)
    runs = range(last + 1 - len(path), last + 1)
    axis.step(runs, path, where="post", color=BOUND, marker="o" if len(path) < 4 else "", label="proven")
    for line, (name, dashes, _) in _limits(conclusion).items():
        axis.axhline(line, color=UPPER, ls=dashes, label=name)
    axis.set(xlabel="trainings", ylabel=f"epsilon at delta {conclusion.delta:g}")
    axis.set_title("Proven, whatever the curve")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.legend(loc="lower right", fontsize=8)


def _panels(conclusion: Conclusion) -> "dict[str, Callable[[Axes, Conclusion], None]]":
    """The panels by name: a Gaussian curve's profile is none of fresh directions, which assume no curve."""
    if conclusion.fresh is None:
        return _PANELS
    return {**{name: draw for name, draw in _PANELS.items() if name != "profile"}, "path": _draw_path}


_PANELS: dict[str, Callable[[Axes, Conclusion], None]] = {
    "scores": _draw_scores,
    "trade_off": _draw_trade_off,
    "bounds": _draw_bounds,
    "profile": _draw_profile,
}
