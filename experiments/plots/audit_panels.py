"""Figures, from scores and bounds alone."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from audit.statistics import conversions, curves  # noqa: E402
from audit.statistics.estimate import Bound  # noqa: E402

# Okabe and Ito's colours: told apart by colour-blind readers; hatches and dashes tell them in grey.
OUT, IN, BOUND, UPPER = "#0072B2", "#D55E00", "#009E73", "#000000"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
_LABELS = {
    "in_sample": "in-sample\n(no bound)",
    "held_out": "held-out",
    "certified": "certified",
    "assumption_free": "assumption-\nfree",
}


def audit_figure(
    scores_in: NDArray[np.float64],
    scores_out: NDArray[np.float64],
    bounds: Sequence[Bound],
    upper_bound: float | None,
    mu_upper_bound: float | None,
) -> bytes:
    """Scores, trade-off curve, bounds and privacy profile of one audit, as PNG bytes."""
    panels = _audit_panels(scores_in, scores_out, bounds, upper_bound, mu_upper_bound)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(9, 6.6))
        for axis, draw in zip(axes.flat, panels.values(), strict=True):
            draw(axis)
        return png(figure)


def audit_panels(
    scores_in: NDArray[np.float64],
    scores_out: NDArray[np.float64],
    bounds: Sequence[Bound],
    upper_bound: float | None,
    mu_upper_bound: float | None,
) -> dict[str, bytes]:
    """The same panels apart, as SVG bytes: "scores", "trade_off", "bounds", "profile"."""
    drawn = {}
    panels = _audit_panels(scores_in, scores_out, bounds, upper_bound, mu_upper_bound)
    with plt.rc_context({**STYLE, "svg.hashsalt": "audit"}):
        for name, draw in panels.items():
            figure, axis = plt.subplots(figsize=(4.2, 3.4))
            draw(axis)
            drawn[name] = svg(figure)
    return drawn


def norms_figure(norms: dict[str, NDArray[np.float64]], clipping_norm: float) -> bytes:
    """`draw_norms` as PNG bytes."""
    return png(draw_norms(norms, clipping_norm))


def draw_norms(norms: dict[str, NDArray[np.float64]], clipping_norm: float) -> Figure:
    """Mean +- 2 standard deviations of norms (runs, steps) by model (hidden-state paper, Figure 8)."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 3.6))
        styles = zip((IN, OUT, BOUND, "#CC79A7", "#E69F00"), ("-", "--", "-.", (0, (5, 1)), ":"), strict=True)
        for (model, values), (color, dash) in zip(norms.items(), styles, strict=False):
            mean, spread = values.mean(0), 2 * values.std(0, ddof=1)
            steps = np.arange(values.shape[1])
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(values)} runs)")
            low, high = np.maximum(mean - spread, 0), mean + spread
            axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axis.axhline(clipping_norm, color=UPPER, ls=":", lw=1)
        axis.annotate("C", (0, clipping_norm), xycoords=("axes fraction", "data"), ha="left", va="bottom")
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
        axis.set_title("L's canary before clipping: mean and 2 standard deviations")
        axis.legend()
        return figure


def png(figure: Figure) -> bytes:
    """The figure's PNG; closes it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure's SVG, the same bits for the same figure; closes it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return buffer.getvalue()


def _audit_panels(
    scores_in: NDArray[np.float64],
    scores_out: NDArray[np.float64],
    bounds: Sequence[Bound],
    upper_bound: float | None,
    mu_upper: float | None,
) -> dict[str, Callable[[Axes], None]]:
    """What draws each panel of an audit, by name."""
    certified = next(bound for bound in bounds if bound.method == "certified")
    return {
        "scores": lambda axis: _draw_scores(axis, scores_in, scores_out, certified),
        "trade_off": lambda axis: _draw_trade_off(axis, scores_in, scores_out, certified, mu_upper),
        "bounds": lambda axis: _draw_bounds(axis, bounds, upper_bound),
        "profile": lambda axis: _draw_profile(axis, certified, mu_upper),
    }


def _draw_scores(axis: Axes, scores_in: NDArray, scores_out: NDArray, bound: Bound) -> None:
    """Both worlds' histograms and the certified bound's threshold."""
    bins = np.histogram_bin_edges(np.concatenate([scores_in, scores_out]), 60).tolist()
    axis.hist(scores_out, bins, color=OUT, alpha=0.6, label=f"out ({len(scores_out)} runs)")
    axis.hist(scores_in, bins, color=IN, alpha=0.6, hatch="///", label=f"in ({len(scores_in)} runs)")
    axis.axvline(bound.threshold, color=BOUND, ls="--", label="certified's threshold")
    axis.set(xlabel="score of the final model", ylabel="runs", title="Scores")
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(top=axis.get_ylim()[1] * 1.35)
    axis.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_trade_off(
    axis: Axes, scores_in: NDArray, scores_out: NDArray, bound: Bound, mu_upper: float | None
) -> None:
    """The empirical curve in its band, and Gaussian curves at the bound on mu and at the upper bound."""
    curve = curves.trade_off_curve(scores_in, scores_out, bound.confidence)
    least = 0.5 / max(len(scores_in), len(scores_out))
    grid = np.geomspace(least, 1, 401)
    (low_x, low_y), (high_x, high_y) = curve.lower(), curve.upper()
    low = np.interp(grid, low_x[::-1], low_y[::-1])
    high = np.interp(grid, high_x[::-1], high_y[::-1], left=1.0)
    axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=f"{curve.confidence:.0%} band")
    axis.plot(curve.false_positive_rate, curve.false_negative_rate, color=OUT, label="empirical")
    gaussian = conversions.gaussian_trade_off(bound.mu or 0.0, grid)
    axis.plot(grid, gaussian, color=BOUND, ls="--", label=f"Gaussian, certified mu = {bound.mu:.2f}")
    if mu_upper is not None and np.isfinite(mu_upper):
        limit = conversions.gaussian_trade_off(mu_upper, grid)
        axis.plot(grid, limit, color=UPPER, ls=":", label=f"Gaussian, upper bound mu = {mu_upper:.2f}")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate", title="Trade-off curve")
    axis.set(xscale="log", yscale="log", xlim=(least, 1.2), ylim=(least, 1.2))
    axis.legend(loc="lower left", fontsize=8)


def _draw_bounds(axis: Axes, bounds: Sequence[Bound], upper_bound: float | None) -> None:
    """A bar a lower bound; the one that is no confidence bound is hatched."""
    names = [_LABELS.get(bound.method, bound.method) for bound in bounds]
    bars = axis.bar(names, [bound.epsilon for bound in bounds], color=BOUND, alpha=0.8, width=0.6)
    for bar, bound in zip(bars, bounds, strict=True):
        if bound.method == "in_sample":
            bar.set(facecolor="white", edgecolor=BOUND, hatch="///")
    axis.bar_label(bars, [f"{bound.epsilon:.2f}" for bound in bounds], label_type="center", bbox=_BOX)
    if upper_bound is not None and np.isfinite(upper_bound):
        axis.axhline(upper_bound, color=UPPER, ls=":")
        axis.annotate(
            f"upper bound {upper_bound:.2f}",
            (1, upper_bound),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
        )
    axis.set(ylabel=f"epsilon at delta {bounds[0].delta:g}", title="Lower bounds on epsilon")
    axis.set_ylim(top=axis.get_ylim()[1] * 1.08)


def _draw_profile(axis: Axes, bound: Bound, mu_upper: float | None) -> None:
    """delta(epsilon) of Gaussian mechanisms at the bound on mu and at the upper bound."""
    largest = max(bound.mu or 0.0, mu_upper if mu_upper and np.isfinite(mu_upper) else 0.0, 0.05)
    grid = np.linspace(0, conversions.epsilon_from_mu(largest, 1e-10), 400)
    with np.errstate(over="ignore"):
        if bound.mu:
            delta = conversions.delta_from_mu(bound.mu, grid)
            axis.semilogy(grid, delta, color=BOUND, ls="--", label="certified (Gaussian curve assumed)")
        if mu_upper is not None and np.isfinite(mu_upper):
            delta = conversions.delta_from_mu(mu_upper, grid)
            axis.semilogy(grid, delta, color=UPPER, ls=":", label="upper bound")
    axis.axhline(bound.delta, color="0.7", lw=0.8)
    axis.set(xlabel="epsilon", ylabel="delta", title="Privacy profile", ylim=(1e-10, 1.5))
    axis.legend(loc="lower left", fontsize=8)
