"""Pages on audits of one run.

Of each audit a page has the verdict, bounds, estimates beside what they show where nothing leaks, the
cosines, and where they come from.
"""

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from audit.conclusions.one_run_conclusion import OneRunConclusion
from audit.evidence.one_run import Cosines
from audit.laws import cosine_law
from audit.methods.estimate import Bound
from audit.report import audit_page, one_run_table, page, style, verdicts
from audit.report.page import Html
from audit.report.style import BOUND, FADED, IN, OUT, STYLE, UPPER
from audit.report.subjects import OneRunSubject
from audit.report.verdicts import Verdict

_BINS = 40  # of a histogram
_POINTS = 401  # of a curve
_FAR = 4.0  # the least end of the cosines' axis, in units of 1/sqrt(d)
_MEANINGS = (
    "A bound holds at its confidence: the method exceeds the truth in at most that share of audits. Each has "
    "its own confidence; together they have less. The method is to be chosen before the audit.",
    "An estimate takes a normal law fitted to the cosines for the truth. It is no bound: it may lie above "
    "epsilon, and what it shows where nothing leaks, its floor, is not 0. Its standard error counts canaries "
    "as independent.",
    "An estimate below its floor's 95% quantile is no evidence of a leak.",
    "One run proves little: a bound of 0 is no proof of privacy, and many runs would show more.",
    "The upper bound of a canary counts the rounds that a canary takes part in; a client may take part in "
    "others.",
    "Lower bounds are rounded down, upper bounds up.",
)


def one_run_report(title: str, about: Sequence[OneRunSubject]) -> bytes:
    """Returns the page of audits, a section each."""
    articles = [_make_section(subject, len(about) > 1) for subject in about]
    heading = page.element("h2", "How to read this")
    footer = page.element("footer", heading, page.points(_MEANINGS), class_="note")
    return page.document(title, page.element("h1", title), *articles, footer)


def one_run_verdict(subject: OneRunSubject) -> Verdict:
    """Returns the verdict on the first run's bounds, beside the upper bound where it is known."""
    bounds = subject.runs[0].bounds
    upper = subject.upper[0].epsilon if subject.upper else None
    if upper is not None:
        exceeding = [bound for bound in bounds if bound.epsilon > upper]
        if exceeding:
            return _judge_violation(subject, exceeding, upper)

    proven = [bound for bound in bounds if verdicts.at_least(bound.epsilon) != "0"]
    guarantee = verdicts.describe_guarantee(upper)
    if not proven:
        return _judge_nothing_proven(subject.runs[0], guarantee)
    headline = "This training leaks."
    if all(bound.assumes.gaussian for bound in proven):
        headline = "This training leaks, if its trade-off curve is Gaussian."
    sentence = f"{_claim_all(subject, proven)}{guarantee}"
    return Verdict(verdicts.LEAKS, "leaks", headline, sentence)


def _judge_violation(subject: OneRunSubject, exceeding: Sequence[Bound], upper: float) -> Verdict:
    """Returns the verdict where bounds exceed the upper bound."""
    word = "or not Gaussian"
    headline = "The guarantee is violated, or the trade-off curve is not Gaussian."
    if any(not bound.assumes.gaussian for bound in exceeding):
        word = "violated"
        headline = "The guarantee is violated."
    most = verdicts.at_most(upper)
    end = f" Accounting guarantees at most {most}: there is a bug, or that is for another training."
    return Verdict(verdicts.VIOLATED, word, headline, f"{_claim_all(subject, exceeding)}{end}")


def _judge_nothing_proven(run: OneRunConclusion, guarantee: str) -> Verdict:
    """Returns the verdict where there is no bound, or all are 0."""
    sentence = "There are estimates alone, which are no bounds: save coins, or more canaries."
    if run.bounds:
        level = verdicts.show_percent(run.confidence)
        sentence = (
            f"At {level} confidence this run proves no leakage at delta = {run.delta:g}: the lower bounds "
            "are 0. That is no proof of privacy."
        )
    return Verdict(
        verdicts.NOTHING, "nothing proven", "No leakage is proven.", sentence + guarantee
    )


def _claim_all(subject: OneRunSubject, bounds: Sequence[Bound]) -> str:
    """Returns a sentence for each bound."""
    claims = " ".join(f"{_claim(bound)}." for bound in bounds)
    if len(subject.runs) > 1:
        return f"Of the first run: {claims}"
    return claims


def _claim(bound: Bound) -> str:
    return (
        f"With {verdicts.show_percent(bound.confidence)} confidence, {bound.assumes.proviso}, it leaks at "
        f"least epsilon = {verdicts.at_least(bound.epsilon)} at delta = {bound.delta:g}"
    )


def _make_section(subject: OneRunSubject, titled: bool) -> Html:
    """Returns an audit's section."""
    first = subject.runs[0]
    more = []
    if first.estimates:
        more.append(page.element("h3", "Estimates, which are no bounds"))
        more.append(_make_estimates_table(first))
    for remark in one_run_table.remarks(first):
        more.append(page.element("p", f"{remark[0].upper()}{remark[1:]}.", class_="note"))
    if len(subject.runs) > 1:
        more.append(page.element("h3", "Over all runs"))
        more.append(_make_runs_table(subject.runs))
    verdict = one_run_verdict(subject)
    panels = page.element("div", *_draw_figures(subject), class_="figures")
    bounds = _make_bounds_table(subject)
    return audit_page.make_article(subject, verdict, titled, bounds, *more, panels=panels)


def _make_bounds_table(subject: OneRunSubject) -> Html:
    """Returns the table of the first run's lower bounds and of the upper bounds."""
    first = subject.runs[0]
    rows = []
    for bound in first.bounds:
        epsilon = verdicts.show_lower_bound(bound.epsilon)
        mu = "" if bound.mu is None else verdicts.show_lower_bound(bound.mu)
        rows.append((bound.method, epsilon, mu, bound.counted, bound.assumes.sentence))
    for upper in subject.upper:
        show = verdicts.show_upper_bound if upper.is_bound else verdicts.at_most
        rows.append((upper.name, show(upper.epsilon), "", "", upper.reason))
    level = verdicts.show_percent(first.confidence)
    caption = f"Epsilon at delta = {first.delta:g}; lower bounds at {level} confidence"
    return page.table(caption, ("bound", "epsilon", "mu", "counts", "assumes"), rows)


def _make_estimates_table(first: OneRunConclusion) -> Html:
    """Returns the table of a run's estimates beside what they show where nothing leaks."""
    header = (
        "estimate",
        "epsilon",
        "standard error",
        "mean without a leak",
        "95% without a leak",
        "caveat",
    )
    caption = (
        f"Estimates of epsilon at delta = {first.delta:g}; a leak shows where they exceed the 95%"
    )
    rows = []
    for row in first.estimates:
        floor = row.noise_floor
        numbers = (row.epsilon, row.standard_error, floor.mean, floor.quantile_95)
        cells = [f"{value:.3f}" for value in numbers]
        caveat = row.caveat
        if row.epsilon <= floor.quantile_95:
            caveat += "; within its floor"
        rows.append((row.method, *cells, caveat))
    return page.table(caption, header, rows)


def _make_runs_table(runs: Sequence[OneRunConclusion]) -> Html:
    """Returns the table of the mean and deviation over runs of each estimate and bound."""
    rows = []
    for place, estimate in enumerate(runs[0].estimates):
        epsilons = [run.estimates[place].epsilon for run in runs]
        rows.append(
            (estimate.method, f"{np.mean(epsilons):.3f}", f"{np.std(epsilons):.3f}", "estimate")
        )
    for place, bound in enumerate(runs[0].bounds):
        epsilons = [run.bounds[place].epsilon for run in runs]
        rows.append((bound.method, f"{np.mean(epsilons):.3f}", f"{np.std(epsilons):.3f}", "bound"))
    caption = f"{len(runs):,} runs, each with bounds of its own"
    return page.table(caption, ("method", "mean epsilon", "deviation", "each is a"), rows)


def _draw_figures(subject: OneRunSubject) -> list[Html]:
    """Returns the first run's panels with their captions."""
    first = subject.runs[0]
    upper = subject.upper[0].epsilon if subject.upper else None
    panels = one_run_panels(first, upper)
    figures = []
    if first.cosines is not None:
        figures.append(_make_cosines_figure(panels["cosines"], first.cosines))
    figures.append(_make_epsilons_figure(panels["epsilons"], first))
    return figures


def _make_cosines_figure(image: bytes, cosines: Cosines) -> Html:
    """Returns the figure of the cosines."""
    observed, unobserved, dimension = cosines
    units = observed * np.sqrt(dimension)
    moments = f"mean {units.mean():.3f}, deviation {units.std():.3f}"
    null = "the exact law where nothing leaks"
    if len(unobserved):
        null = f"{len(unobserved):,} unobserved ones"
    return page.figure(
        image,
        f"Density of {len(observed):,} observed cosines ({moments}, in units of 1/sqrt(d)) beside {null}.",
        "Cosines of the canaries with what was released. A leak moves the observed ones to the right.",
    )


def _make_epsilons_figure(image: bytes, first: OneRunConclusion) -> Html:
    """Returns the figure of epsilon by method."""
    estimates = [f"{row.method} {row.epsilon:.3f}" for row in first.estimates]
    bounds = [f"{row.method} at least {verdicts.at_least(row.epsilon)}" for row in first.bounds]
    values = ", ".join([*estimates, *bounds])
    caption = (
        "Estimates (circles, with two standard errors) over the range that they show in 95% of audits "
        "where nothing leaks (grey), and lower bounds (bars)."
    )
    if not estimates:
        caption = "Lower bounds on epsilon."
    return page.figure(image, f"Epsilon by method: {values}.", caption)


def one_run_panels(conclusion: OneRunConclusion, upper_bound: float | None) -> dict[str, bytes]:
    """Returns an SVG file for each panel of a run: "cosines", where it has any, and "epsilons"."""
    panels: dict[str, Callable[[Axes, OneRunConclusion], None]] = {}
    if conclusion.cosines is not None:
        panels["cosines"] = _draw_cosines
    panels["epsilons"] = partial(_draw_epsilons, upper_bound=upper_bound)
    files = {}
    with plt.rc_context(STYLE):
        for name, draw in panels.items():
            figure, axis = plt.subplots(figsize=(4.2, 3.4))
            draw(axis, conclusion)
            figure.legend(loc="outside upper center", ncols=2, fontsize=8)
            files[name] = style.svg(figure)
    return files


def _draw_cosines(axis: Axes, conclusion: OneRunConclusion) -> None:
    """Draws histograms of the cosines, or the exact law where no canary is unobserved."""
    assert conclusion.cosines is not None
    observed, unobserved, dimension = conclusion.cosines
    root = np.sqrt(dimension)
    units = np.concatenate([observed, unobserved]) * root
    low = min(-_FAR, units.min())
    high = max(_FAR, units.max())
    bins = np.linspace(low, high, _BINS + 1).tolist()
    axis.hist(
        observed * root,
        bins,
        density=True,
        color=IN,
        alpha=0.5,
        label=f"observed ({len(observed):,})",
    )
    if len(unobserved):
        label = f"unobserved ({len(unobserved):,})"
        axis.hist(
            unobserved * root, bins, density=True, color=OUT, alpha=0.5, hatch="///", label=label
        )
    else:
        grid = np.linspace(low, high, _POINTS)
        cosines = np.clip(grid / root, -1 + 1e-12, 1 - 1e-12)
        density = np.exp(cosine_law.log_density(cosines, dimension)) / root
        axis.plot(grid, density, color=OUT, label="no leak")
    axis.set(xlabel=r"cosine, in units of $1/\sqrt{d}$", ylabel="density")


def _draw_epsilons(axis: Axes, conclusion: OneRunConclusion, upper_bound: float | None) -> None:
    """Draws bars for bounds, points with two errors over their floors for estimates, and the upper bound."""
    names = []
    floor_label: str | None = (
        "no leak: up to 95%"  # of the first alone, so that the legend has it once
    )
    estimate_label: str | None = "estimate, 2 errors"
    for place, estimate in enumerate(conclusion.estimates):
        axis.barh(
            place, estimate.noise_floor.quantile_95, color=FADED, alpha=0.4, label=floor_label
        )
        axis.errorbar(
            estimate.epsilon,
            place,
            xerr=2 * estimate.standard_error,
            fmt="o",
            ms=4,
            color=IN,
            mfc="white",
            label=estimate_label,
        )
        names.append(estimate.method)
        floor_label = None
        estimate_label = None
    bound_label: str | None = "lower bound"
    for place, bound in enumerate(conclusion.bounds, start=len(conclusion.estimates)):
        axis.barh(place, bound.epsilon, color=BOUND, height=0.6, label=bound_label)
        names.append(bound.method)
        bound_label = None
    if upper_bound is not None and np.isfinite(upper_bound):
        axis.axvline(upper_bound, color=UPPER, ls=":", label="upper bound")
    axis.set_yticks(range(len(names)), [name.removeprefix("one_shot_") for name in names])
    axis.set(xlabel=r"$\varepsilon$", ylim=(len(names) - 0.4, -0.6))
    axis.set_xlim(left=0)
