"""A page on one-run audits: of each the verdict, bounds, estimates beside what they show without a leak, the
cosines, and where they come from."""

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from audit.conclusions.one_run_conclusion import OneRunConclusion
from audit.laws import cosine_law
from audit.methods.estimate import Bound
from audit.report import audit_page, one_run_table, page, style, verdicts
from audit.report.page import Html
from audit.report.style import BOUND, FADED, IN, OUT, STYLE, UPPER
from audit.report.subjects import OneRunSubject
from audit.report.verdicts import Verdict

_BINS, _POINTS, _FAR = 40, 401, 4.0  # of a histogram; of a curve; in units of 1/sqrt(d)
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
    """The page, a section an audit."""
    articles = [_article(subject, len(about) > 1) for subject in about]
    heading = page.element("h2", "How to read this")
    footer = page.element("footer", heading, page.points(_MEANINGS), class_="note")
    return page.document(title, page.element("h1", title), *articles, footer)


def one_run_verdict(subject: OneRunSubject) -> Verdict:
    """The verdict on the first run's bounds, beside the upper bound where it is known."""
    first = subject.runs[0]
    upper = subject.upper[0].epsilon if subject.upper else None
    above = [row for row in first.bounds if upper is not None and row.epsilon > upper]
    proven = [row for row in first.bounds if verdicts.at_least(row.epsilon) != "0"]
    which = "" if len(subject.runs) == 1 else " Of the first run:"
    claims = " ".join(f"{_claim(row)}." for row in (above or proven))
    if above:
        word = "violated" if any(not row.assumes.gaussian for row in above) else "or not Gaussian"
        headline = "The guarantee is violated"
        headline += "." if word == "violated" else ", or the trade-off curve is not Gaussian."
        most = verdicts.at_most(upper or 0.0)
        end = f" Accounting guarantees at most {most}: there is a bug, or that is for another training."
        return Verdict(verdicts.VIOLATED, word, headline, f"{which} {claims}{end}".strip())
    nothing = verdicts.NOTHING, "nothing proven", "No leakage is proven."
    if not first.bounds:
        words = "There are estimates alone, which are no bounds: save coins, or more canaries."
        return Verdict(*nothing, words + verdicts.guaranteed(upper))
    if not proven:
        level = verdicts.percent(first.confidence)
        words = f"At {level} confidence this run proves no leakage at delta = {first.delta:g}: the lower "
        words += "bounds are 0. That is no proof of privacy."
        return Verdict(*nothing, words + verdicts.guaranteed(upper))
    headline = "This training leaks."
    if all(row.assumes.gaussian for row in proven):
        headline = "This training leaks, if its trade-off curve is Gaussian."
    return Verdict(verdicts.LEAKS, "leaks", headline, f"{which} {claims}{verdicts.guaranteed(upper)}".strip())


def _claim(row: Bound) -> str:
    return (
        f"With {verdicts.percent(row.confidence)} confidence, {row.assumes.proviso}, it leaks at "
        f"least epsilon = {verdicts.at_least(row.epsilon)} at delta = {row.delta:g}"
    )


def _article(subject: OneRunSubject, titled: bool) -> Html:
    first, runs = subject.runs[0], subject.runs
    several = [page.element("h3", "Over all runs"), _over_runs(runs)] if len(runs) > 1 else []
    remarks = one_run_table.remarks(first)
    estimates = []
    if first.estimates:
        estimates = [page.element("h3", "Estimates, which are no bounds"), _estimates(first)]
    more = [
        *estimates,
        *(page.element("p", f"{one[0].upper()}{one[1:]}.", class_="note") for one in remarks),
        *several,
    ]
    found, panels = one_run_verdict(subject), page.element("div", *_figures(subject), class_="figures")
    return audit_page.article(subject, found, titled, _bounds(subject), *more, panels=panels)


def _bounds(subject: OneRunSubject) -> Html:
    first = subject.runs[0]
    rows = [
        (
            row.method,
            verdicts.proven(row.epsilon),
            "" if row.mu is None else verdicts.proven(row.mu),
            row.counted,
            row.assumes.sentence,
        )
        for row in first.bounds
    ]
    for upper in subject.upper:
        shown = verdicts.limit(upper.epsilon) if upper.is_bound else verdicts.at_most(upper.epsilon)
        rows.append((upper.name, shown, "", "", upper.reason))
    level = verdicts.percent(first.confidence)
    caption = f"Epsilon at delta = {first.delta:g}; lower bounds at {level} confidence"
    return page.table(caption, ("bound", "epsilon", "mu", "counts", "assumes"), rows)


def _estimates(first: OneRunConclusion) -> Html:
    header = ("estimate", "epsilon", "standard error", "mean without a leak", "95% without a leak", "caveat")
    caption = f"Estimates of epsilon at delta = {first.delta:g}; a leak shows where they exceed the 95%"
    rows = []
    for row in first.estimates:
        floor = row.noise_floor
        numbers = (row.epsilon, row.standard_error, floor.mean, floor.quantile_95)
        within = "; within its floor" if row.epsilon <= floor.quantile_95 else ""
        rows.append((row.method, *(f"{value:.3f}" for value in numbers), row.caveat + within))
    return page.table(caption, header, rows)


def _over_runs(runs: Sequence[OneRunConclusion]) -> Html:
    rows = []
    for kind in ("estimates", "bounds"):
        for same in zip(*(getattr(run, kind) for run in runs), strict=True):
            values = [row.epsilon for row in same]
            rows.append((same[0].method, f"{np.mean(values):.3f}", f"{np.std(values):.3f}", kind[:-1]))
    caption = f"{len(runs):,} runs, each with bounds of its own"
    return page.table(caption, ("method", "mean epsilon", "deviation", "each is a"), rows)


def _figures(subject: OneRunSubject) -> list[Html]:
    first = subject.runs[0]
    drawn = one_run_panels(first, subject.upper[0].epsilon if subject.upper else None)
    if first.cosines is None:
        return [_epsilons_figure(drawn["epsilons"], first)]
    observed, unobserved, dimension = first.cosines
    units = observed * np.sqrt(dimension)
    null = f"{len(unobserved):,} unobserved ones" if len(unobserved) else "the exact law where nothing leaks"
    said = f"mean {units.mean():.3f}, deviation {units.std():.3f}"
    return [
        page.figure(
            drawn["cosines"],
            f"Density of {len(observed):,} observed cosines ({said}, in units of 1/sqrt(d)) beside {null}.",
            "Cosines of the canaries with what was released. A leak moves the observed ones to the right.",
        ),
        _epsilons_figure(drawn["epsilons"], first),
    ]


def _epsilons_figure(image: bytes, first: OneRunConclusion) -> Html:
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
    """Each panel of one run apart, as SVG bytes: "cosines", "epsilons"."""
    drawn = {}
    panels: dict[str, Callable[[Axes, OneRunConclusion], None]] = {
        "epsilons": partial(_draw_epsilons, upper_bound=upper_bound)
    }
    if conclusion.cosines is not None:
        panels = {"cosines": _draw_cosines, **panels}
    with plt.rc_context(STYLE):
        for name, draw in panels.items():
            figure, axis = plt.subplots(figsize=(4.2, 3.4))
            draw(axis, conclusion)
            figure.legend(loc="outside upper center", ncols=2, fontsize=8)
            drawn[name] = style.svg(figure)
    return drawn


def _draw_cosines(axis: Axes, conclusion: OneRunConclusion) -> None:
    assert conclusion.cosines is not None
    observed, unobserved, dimension = conclusion.cosines
    root = np.sqrt(dimension)
    seen = np.concatenate([observed, unobserved]) * root
    ends = min(-_FAR, seen.min()), max(_FAR, seen.max())
    bins = np.linspace(*ends, _BINS + 1).tolist()
    axis.hist(observed * root, bins, density=True, color=IN, alpha=0.5, label=f"observed ({len(observed):,})")
    if len(unobserved):
        label = f"unobserved ({len(unobserved):,})"
        axis.hist(unobserved * root, bins, density=True, color=OUT, alpha=0.5, hatch="///", label=label)
    else:
        x = np.linspace(*ends, _POINTS)
        inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
        axis.plot(x, np.exp(cosine_law.log_density(inside, dimension)) / root, color=OUT, label="no leak")
    axis.set(xlabel=r"cosine, in units of $1/\sqrt{d}$", ylabel="density")


def _draw_epsilons(axis: Axes, conclusion: OneRunConclusion, upper_bound: float | None) -> None:
    """Bars for bounds; points with two errors over their floors for estimates; the upper bound."""
    names = [*(row.method for row in conclusion.estimates), *(row.method for row in conclusion.bounds)]
    for place, row in enumerate(conclusion.estimates):
        floor = "no leak: up to 95%" if place == 0 else None
        axis.barh(place, row.noise_floor.quantile_95, color=FADED, alpha=0.4, label=floor)
        error = 2 * row.standard_error
        label = "estimate, 2 errors" if place == 0 else None
        axis.errorbar(row.epsilon, place, xerr=error, fmt="o", ms=4, color=IN, mfc="white", label=label)
    for place, bound in enumerate(conclusion.bounds, len(conclusion.estimates)):
        label = "lower bound" if place == len(conclusion.estimates) else None
        axis.barh(place, bound.epsilon, color=BOUND, height=0.6, label=label)
    if upper_bound is not None and np.isfinite(upper_bound):
        axis.axvline(upper_bound, color=UPPER, ls=":", label="upper bound")
    axis.set_yticks(range(len(names)), [name.removeprefix("one_shot_") for name in names])
    axis.set(xlabel=r"$\varepsilon$", ylim=(len(names) - 0.4, -0.6))
    axis.set_xlim(left=0)
