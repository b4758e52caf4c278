"""An audit's figure: its scores, trade-off curve, bounds and privacy profile."""

import math
import textwrap
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray
from scipy import special

from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions, cosine_law
from audit.methods import curves
from audit.methods.estimate import Bound
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.method import COINS, GIVEN, NO_BOUND, NOTHING, OTHERS_IN
from audit.report import style
from audit.report.bounds_table import BoundRow, list_rows
from audit.report.style import (
    BLACK,
    BOUND,
    FADED,
    FREE,
    IN,
    OUT,
    PREDICTED,
    STYLE,
    UPPER,
    VERMILION,
)
from audit.report.table import at_least, at_most
from audit.written import show_level, show_percent

_BINS = 40  # of a histogram of cosines
_FAR = 4.0  # the cosines' axis reaches at least so far, in units of 1/sqrt(d)
_LIGHT = 0.3  # opacity of the bar of a bound that assumes something
_LABEL_WIDTH = 26  # characters of a line of a bar's name

_Draw = Callable[[Axes, Conclusion], None]


def audit_figure(
    conclusion: Conclusion, audited: str = "", encode: Callable[[Figure], bytes] = style.png
) -> bytes:
    """Returns an image file with all panels of an audit.

    Args:
      conclusion: the conclusion of the audit.
      audited: what was audited, for a line above the panels; empty for no line.
      encode: the function that writes the file, one of `style.FORMATS`.
    """
    with plt.rc_context(STYLE):
        return encode(audit_drawing(conclusion, audited))


def audit_drawing(conclusion: Conclusion, audited: str = "") -> Figure:
    """Returns a figure with all panels of an audit.

    pyplot does not keep the figure, so that a notebook shows it only once.

    Args:
      conclusion: the conclusion of the audit.
      audited: what was audited, for a line above the panels; empty for no line.
    """
    draws = choose_panels(conclusion).values()
    columns = min(len(draws), 2)
    rows = math.ceil(len(draws) / 2)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(4.5 * columns, 3.7 * rows))
        # A legend above a panel needs a subfigure of the panel's own. There are 1, 2 or 4 panels.
        subfigures = figure.subfigures(rows, columns, squeeze=False)
        for subfigure, draw in zip(subfigures.flat, draws, strict=True):
            _draw_panel(subfigure.subplots(), draw, conclusion)
        if audited:
            # A caller's name may have dollars, between which Matplotlib would read formulas.
            title = textwrap.fill(audited, 120).replace("$", r"\$")
            figure.suptitle(title, fontsize=9)
        style.set_symbols(figure)
        plt.close(figure)
        return figure


def audit_panels(conclusion: Conclusion) -> dict[str, bytes]:
    """Returns an SVG file for each panel of an audit, by the panel's name (`choose_panels`)."""
    panels = {}
    with plt.rc_context(STYLE):
        for name, draw in choose_panels(conclusion).items():
            figure, axis = plt.subplots(figsize=(4.2, 3.8))
            _draw_panel(axis, draw, conclusion)
            panels[name] = style.svg(figure)
    return panels


def choose_panels(conclusion: Conclusion) -> dict[str, _Draw]:
    """Returns the functions that draw an audit's panels, by the panels' names, in order.

    For fresh directions no Gaussian curve is assumed: the path of what was proven after each run takes the
    place of the Gaussian privacy profile.
    """
    if conclusion.is_one_run:
        cosines = {"cosines": _draw_cosines} if conclusion.one_run.cosines else {}
        return {**cosines, "epsilons": _draw_epsilons}
    panels = {"scores": _draw_scores, "trade_off": _draw_trade_off, "bounds": _draw_bounds}
    if conclusion.law_is_known:
        return {**panels, "path": _draw_path}
    return {**panels, "profile": _draw_profile}


def _draw_panel(axis: Axes, draw: _Draw, conclusion: Conclusion) -> None:
    """Draws a panel that is alone in its figure or subfigure, with its legend above it."""
    draw(axis, conclusion)
    if axis.get_legend_handles_labels()[1]:
        axis.figure.legend(loc="outside upper center", ncols=2, fontsize=8)


def _set_title(axis: Axes, title: str, subtitle: str = "") -> None:
    """Sets a panel's title, and below it a subtitle in small print."""
    axis.set_title(title, pad=16)
    axis.text(0.5, 1.02, subtitle, transform=axis.transAxes, ha="center", va="bottom", fontsize=8)


def _draw_uppers(draw_line: Callable[..., Any], conclusion: Conclusion) -> None:
    """Draws a line at each finite upper bound on epsilon, by a function such as `axis.axvline`."""
    for upper in conclusion.upper_bounds:
        if math.isfinite(upper.epsilon):
            label = f"{upper.name} {at_most(upper.epsilon, 2)}"
            draw_line(upper.epsilon, color=UPPER, ls="-." if upper.hidden else ":", label=label)


def _draw_scores(axis: Axes, conclusion: Conclusion) -> None:
    """Draws histograms of both worlds' scores, and the thresholds of the bounds that verdicts rest on."""
    scores_in, scores_out = conclusion.worlds
    unit = "scores"
    if conclusion.has_one_canary:
        unit = "runs"
    all_scores = np.concatenate(conclusion.worlds)
    low = all_scores.min()
    high = all_scores.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # too close for bins between them
        low -= max(0.5, 1e-6 * abs(low))
        high += max(0.5, 1e-6 * abs(high))
    # About the root of the number of scores; more than 60 bars would be too thin.
    bins = np.linspace(low, high, min(math.isqrt(len(all_scores)) + 2, 61)).tolist()
    out = "the known law"
    if not conclusion.law_is_known:
        out = f"{len(scores_out)} {unit}"
    axis.hist(scores_out, bins, color=OUT, alpha=0.6, label=f"out ({out})")
    in_label = f"in ({len(scores_in)} {unit})"
    axis.hist(scores_in, bins, color=IN, alpha=0.6, hatch="///", label=in_label)
    thresholds = {conclusion.gaussian.method: "--", conclusion.assumption_free.method: "-"}
    for row in list_rows(conclusion):
        bound = row.finding
        if isinstance(bound, Bound) and bound.method in thresholds and bound.threshold is not None:
            color = FADED
            if bound.holds:
                color = BOUND
            label = f"threshold, {_name(row, conclusion)}"
            axis.axvline(bound.threshold, color=color, ls=thresholds[bound.method], label=label)
    axis.set(xlabel="score of the final model", ylabel=f"number of {unit}")
    axis.locator_params(axis="x", nbins=6)
    _set_title(axis, "Scores")


def _name(row: BoundRow, conclusion: Conclusion) -> str:
    """Returns a row's name, with a mark if it is no bound or the scores do not support what it assumes."""
    mark = NO_BOUND
    if row.sign:
        mark = ""
    if row.assumes.gaussian:
        mark = describe_curve(conclusion).mark
    return f"{row.label} {mark}".strip()


def _draw_trade_off(axis: Axes, conclusion: Conclusion) -> None:
    """Draws trade-off curves on axes where Gaussian curves are straight lines."""
    draw_on_deviates(axis, conclusion)
    axis.set_title("Trade-off curve", pad=16)  # above the line on the Gaussian curve's test


def _draw_bounds(axis: Axes, conclusion: Conclusion) -> None:
    """Draws a bar with its value for each lower bound and estimate, and a line at each upper bound.

    The bar of a bound with assumptions is light, that of a refuted bound is grey and crossed out, and that of
    an estimate is hatched.
    """
    labels: list[str] = []
    assumed = {}  # what the light bars assume
    for row in list_rows(conclusion):
        if row.finding is None:
            continue
        # A bound that assumes more than the audit itself ensures is light. All others are solid.
        look: dict[str, Any] = {"color": BOUND, "alpha": 0.8}
        if not isinstance(row.finding, Bound):
            look = {"facecolor": "white", "edgecolor": BOUND, "hatch": "///"}
        elif not row.finding.holds:
            look = {"facecolor": "white", "edgecolor": FADED, "hatch": "xxx"}
        elif row.assumes.text not in (NOTHING.text, COINS.text, OTHERS_IN.text):
            look = {"facecolor": (BOUND, _LIGHT), "edgecolor": BOUND, "linewidth": 1.2}
            assumed[row.assumes.word] = True
        axis.barh(len(labels), row.epsilon, height=0.7, **look)
        label = f"{_name(row, conclusion)} {at_least(row.epsilon, 2)}"
        labels.append(textwrap.fill(label, _LABEL_WIDTH))
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.invert_yaxis()  # the first bar on top
    _draw_uppers(axis.axvline, conclusion)
    axis.set_xlim(0, max(axis.get_xlim()[1], 0.1))
    axis.set_xlabel(f"epsilon at delta {show_level(conclusion.delta)}")
    subtitle = ""
    if assumed:
        subtitle = f"light bars assume: {'; '.join(assumed)}"
    _set_title(axis, "Lower bounds on epsilon", subtitle)


def _draw_profile(axis: Axes, conclusion: Conclusion) -> None:
    """Draws privacy profiles, delta against epsilon, at the lower bound on mu and at the upper bounds."""
    status = describe_curve(conclusion)
    profiles: list[tuple[float, dict[str, Any]]] = []
    if conclusion.gaussian.mu:
        look: dict[str, Any] = {"color": FADED if status.faded else BOUND, "ls": "--"}
        look["label"] = f"lower bound, if Gaussian {status.mark}".strip()
        profiles.append((conclusion.gaussian.mu, look))
    for upper in conclusion.upper_bounds:
        if upper.mu is not None and math.isfinite(upper.mu):
            dashes = ":"
            if upper.hidden:
                dashes = "-."
            profiles.append((upper.mu, {"color": UPPER, "ls": dashes, "label": upper.name}))
    # The epsilons reach to where the widest profile leaves the panel, at delta = 1e-10. A mu of at least
    # 0.05 keeps the axis from having no length.
    largest = max([0.05, *map(itemgetter(0), profiles)])
    grid = np.linspace(0, conversions.epsilon_from_mu(largest, 1e-10), 400)
    with np.errstate(over="ignore"):  # e^epsilon of a large epsilon
        for mu, look in profiles:
            axis.plot(grid, conversions.delta_from_mu(mu, grid), **look)
    label = f"delta {show_level(conclusion.delta)}"
    axis.axhline(conclusion.delta, color="0.7", lw=0.8, label=label)
    axis.set(xlabel="epsilon", ylabel="delta", yscale="log", ylim=(1e-10, 1))
    _set_title(axis, "Privacy profile")


def _draw_path(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the epsilon that was proven after each run, or by all runs if their order is unknown.

    The solid line is proven for any mechanism. A dashed line, if any, shows the least epsilon that a GDP
    guarantee may state without being refuted. Horizontal lines show the upper bounds. A vertical line shows
    after how many runs the claim was refuted.
    """
    path = conclusion.path or (conclusion.epsilon,)  # without an order only the last value exists
    last = conclusion.count_runs()
    runs = range(last + 1 - len(path), last + 1)  # 1 to `last`, or only `last`
    # a path of a few runs is hard to see as a line alone
    marker = ""
    if len(path) < 4:
        marker = "o"
    axis.step(runs, path, where="post", color=BOUND, marker=marker, label="proven")
    path_of_gdp = conclusion.bound(EXACT_NULL_GDP).path
    if path_of_gdp:
        axis.step(runs, path_of_gdp, where="post", color=FREE, ls="--", label="any GDP guarantee")
    test = conclusion.claim_test
    if test is not None and test.refuted:
        label = f"claim refuted: {test.runs}"
        axis.axvline(test.runs, color=BOUND, lw=0.8, ls=":", label=label)
    _draw_uppers(axis.axhline, conclusion)
    axis.set(xlabel="training runs", ylabel=f"epsilon at delta {show_level(conclusion.delta)}")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(bottom=0)
    _set_title(axis, "Proven, whatever the curve")


def _draw_cosines(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the histogram of a single run's observed cosines in units of 1/sqrt(d), d being the dimension.

    Beside it is the histogram of the unobserved cosines; without any, the exact law where nothing leaks.
    """
    cosines = conclusion.one_run.cosines
    assert cosines is not None
    root = math.sqrt(cosines.dimension)
    observed = cosines.observed * root
    unobserved = cosines.unobserved * root
    # The axis shows all cosines, and nearly all of the law where nothing leaks, which is about N(0, 1).
    low = min([-_FAR, *observed, *unobserved])
    high = max([_FAR, *observed, *unobserved])
    bins = np.linspace(low, high, _BINS + 1).tolist()
    look = {"bins": bins, "density": True, "alpha": 0.5}
    axis.hist(observed, color=IN, label=f"observed ({len(observed):,})", **look)
    if len(unobserved):
        label = f"unobserved ({len(unobserved):,})"
        axis.hist(unobserved, color=OUT, hatch="///", label=label, **look)
    else:
        grid = np.linspace(low, high, 10 * _BINS)
        within = np.clip(grid / root, -1 + 1e-12, 1 - 1e-12)  # the density is finite there
        density = np.exp(cosine_law.log_density(within, cosines.dimension)) / root
        axis.plot(grid, density, color=OUT, label="no leak")
    axis.set(xlabel=r"cosine, in units of $1/\sqrt{d}$", ylabel="density")


def _draw_epsilons(axis: Axes, conclusion: Conclusion) -> None:
    """Draws a single run's epsilons by method, and the upper bounds.

    Lower bounds are bars; estimates are points with two standard errors, over grey bars up to the 95%
    quantile of what they show where nothing leaks.
    """
    names = [finding.method.removeprefix("one_shot_") for finding in conclusion.rows()]
    estimates = conclusion.estimates
    if estimates:
        places = range(len(estimates))
        floors = [estimate.noise_floor.quantile_95 for estimate in estimates]
        axis.barh(places, floors, color=FADED, alpha=0.4, label="no leak: up to 95%")
        epsilons = [estimate.epsilon for estimate in estimates]
        errors = [2 * estimate.standard_error for estimate in estimates]
        look: dict[str, Any] = {
            "fmt": "o",
            "ms": 4,
            "color": IN,
            "mfc": "white",
            "label": "estimate, 2 errors",
        }
        axis.errorbar(epsilons, places, xerr=errors, **look)
    if conclusion.bounds:
        bounds = [bound.epsilon for bound in conclusion.bounds]
        places = range(len(estimates), len(names))
        axis.barh(places, bounds, color=BOUND, height=0.6, label="lower bound")
    _draw_uppers(axis.axvline, conclusion)
    axis.set_yticks(range(len(names)), names)
    # The first name on top, as in the tables.
    axis.set(xlabel=r"$\varepsilon$", ylim=(len(names) - 0.4, -0.6))
    axis.set_xlim(left=0)


Array = NDArray[np.float64]

_POINTS = 801  # false-positive rates at which a curve is drawn
_MAX_DECADES = 4  # with more decades, only every second one has a tick


class CurveStatus(NamedTuple):
    """How figures show the result of the test of a Gaussian curve.

    Attributes:
      message: the result in words; empty where no test was made.
      mark: the words added to bounds that assume a Gaussian curve; empty where nothing speaks against it.
      faded: whether such bounds and curves are drawn in grey.
    """

    message: str
    mark: str
    faded: bool = False


def describe_curve(conclusion: Conclusion) -> CurveStatus:
    """Returns how figures show what the test of whether the trade-off curve is Gaussian has shown."""
    curve = conclusion.curve
    if curve is None:
        return CurveStatus(message="", mark="")
    p_value = curve.show_p_value()
    if curve.is_refuted:
        return CurveStatus(f"Gaussian curve refuted, {p_value}", mark="(refuted)", faded=True)
    result = f"{p_value}, power {curve.power:.0%}"
    if curve.is_doubted:  # the test has too little power
        # No mark is needed where the mechanism itself is a reason for a Gaussian curve.
        mark = "(not confirmed)"
        if conclusion.reason:
            mark = ""
        return CurveStatus(f"Gaussian curve not confirmed, {result}", mark)
    return CurveStatus(f"no evidence against Gaussian, {result}", mark="")


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None = None
) -> None:
    """Draws the empirical trade-off curve with its band, up to three Gaussian curves, and the claim's.

    The Gaussian curves have the lower bound on mu, the predicted mu and the smallest upper bound on mu, as
    far as these are known. A claim of epsilon and delta, which gives no mu, has a curve of its own.

    Args:
      axis: the panel to draw into.
      conclusion: the conclusion with the scores and the bounds on mu.
      grid: (n,), ascending false-positive rates at which curves are drawn.
      predicted_mu: mu as theory predicts it; None without a prediction.
    """
    _draw_empirical(axis, conclusion, grid)
    status = describe_curve(conclusion)
    gaussian = []  # mu of each Gaussian curve, and its look
    mu = conclusion.gaussian.mu
    if mu is not None:
        label = f"mu ≥ {at_least(mu, 2)} {status.mark}".strip()
        look: dict[str, Any] = {"color": FADED if status.faded else BOUND, "ls": "--"}
        gaussian.append((mu, label, look))
    if predicted_mu is not None:
        look = {"color": PREDICTED, "ls": "-", "lw": 4, "alpha": 0.55}
        gaussian.append((predicted_mu, f"predicted mu = {predicted_mu:.2f}", look))
    upper = conclusion.tightest_mu
    if upper is not None and np.isfinite(upper):
        gaussian.append((upper, f"mu ≤ {at_most(upper, 2)}", {"color": UPPER, "ls": ":"}))
    for mu, label, look in gaussian:
        power = conversions.gaussian_trade_off(mu, grid)
        axis.plot(grid, power, label=f"Gaussian, {label}", **look)
    if is_claim_drawn(conclusion):
        assert conclusion.claim is not None
        # The least false-negative rates that the claim allows. Axes of normal deviates cannot show 0.
        allowed = np.clip(1 - conclusion.claim.power(grid), grid[0] / 2, None)
        axis.plot(grid, allowed, color=UPPER, ls=":", label="claim")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def is_claim_drawn(conclusion: Conclusion) -> bool:
    """Returns whether the claim has a trade-off curve of its own among the curves that are drawn.

    It does for a claim of epsilon and delta whose curve axes of normal deviates show; that of a large epsilon
    lies below them. Where mu is bounded, the Gaussian curve of mu takes its place.
    """
    claim = conclusion.claim
    if claim is None or claim.assumes != GIVEN or conclusion.tightest_mu is not None:
        return False
    least = _find_least_rate(conclusion)
    highest = 1 - float(claim.power(least))  # of the curve within the panel, since curves descend
    return highest > least


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """Draws trade-off curves on axes of normal deviates, where Gaussian curves are lines of slope -1.

    The axes reach from the rate of half an error (at most 0.1) to 1 minus that. The result of the Gaussian
    curve's test is written above the panel.

    Args:
      axis: the panel to draw into.
      conclusion: the conclusion with the scores and the bounds on mu.
      predicted_mu: mu as theory predicts it; None without a prediction.
    """
    least = _find_least_rate(conclusion)
    end = special.ndtri(least)
    # Rates that are evenly spaced as normal deviates, as they are on the axes.
    grid = special.ndtr(np.linspace(end, -end, _POINTS))
    draw_trade_off(axis, conclusion, grid, predicted_mu)

    count = int(-np.log10(least))  # powers of 10 below 1 that are not below `least`
    step = 2
    if count <= _MAX_DECADES:
        step = 1
    low = 0.1 ** np.arange(1, count + 1, step)
    ticks = np.concatenate([low[::-1], [0.5], 1 - low])
    labels = [*map("{:g}".format, ticks)]
    deviates = {"functions": (special.ndtri, special.ndtr)}
    axis.set_xscale("function", **deviates)
    axis.set_yscale("function", **deviates)
    axis.set(xlim=(least, 1 - least), ylim=(least, 1 - least))
    axis.set_xticks(ticks, labels, fontsize=8)
    axis.set_yticks(ticks, labels, fontsize=8)

    status = describe_curve(conclusion)
    look = {"fontsize": 8, "ha": "center", "va": "bottom"}
    look["color"] = BLACK
    if status.faded:
        look["color"] = VERMILION
    axis.text(0.5, 1.01, status.message, look, transform=axis.transAxes)


def _find_least_rate(conclusion: Conclusion) -> float:
    """Returns the rate at which axes of normal deviates begin: that of half an error, and at most 0.1."""
    return min(0.5 / max(map(len, conclusion.worlds)), 0.1)


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Draws the scores' empirical trade-off curve, with a band if runs have a single canary.

    Axes of normal deviates cannot show 0 and 1. So the curve's rates keep at least half an error from them,
    and the band at least half of the grid's first rate.
    """
    curve = curves.trade_off_curve(*conclusion.worlds, conclusion.confidence)
    if conclusion.has_one_canary:  # the band is for independent scores
        band = curve.band(grid)
        low, high = np.clip([band.lower, band.upper], grid[0] / 2, 1 - grid[0] / 2)
        label = f"{show_percent(curve.confidence)} band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    rates = []
    worlds = (curve.false_negative_rate, curve.false_positive_rate)
    for world, scores in zip(worlds, conclusion.worlds, strict=True):
        half_an_error = 0.5 / len(scores)
        # Reversed, so that false-positive rates ascend.
        rates.append(np.clip(world, half_an_error, 1 - half_an_error)[::-1])
    false_negatives, false_positives = rates
    axis.step(false_positives, false_negatives, where="post", color=OUT, label="empirical")
