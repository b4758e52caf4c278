"""A report as a page: for every audit its verdict, what was audited, the threat model, bounds, figures and
provenance."""

import math
from collections.abc import Sequence

from audit.statistics.estimate import GAUSSIAN_CURVE, IN_SAMPLE, NOTHING, Bound
from experiments.conclusions import Conclusion
from experiments.pages import page, verdicts
from experiments.pages.page import Html
from experiments.pages.subjects import Subject
from experiments.plots import audit_panels

_ASSUMES = {
    IN_SAMPLE: "no confidence bound: the best of all thresholds on the scores that it then bounds",
    GAUSSIAN_CURVE: "independent runs; for epsilon, a Gaussian trade-off curve",
    NOTHING: "independent runs",
}
_METHODS = {"in_sample": "in-sample", "held_out": "held-out", "assumption_free": "assumption-free"}
_MOST_DRAWN = 12  # audits in a page that each have a quarter of a megabyte of panels
_NOT_DRAWN = (
    f"A page of more than {_MOST_DRAWN} audits leaves panels out; ./run.sh report --setting=HASH has them."
)
_CAUTION = (
    "Each verdict has its own confidence. Of {} audits up to {} by a method may exceed the truth by chance: "
    "look at what stands alone among many again, with another seed."
)
_MEANINGS = (
    "A lower bound on epsilon at delta says: the training is not (epsilon', delta)-differentially private "
    "for any smaller epsilon'. It comes from an attack that was run; another may find more.",
    "An upper bound says: the training is (epsilon, delta)-differentially private, if it is implemented as "
    "it is described.",
    "A confidence of 95% says: the method exceeds the truth in at most 5% of audits. Each bound has its own "
    "confidence; together they have less. The method is to be chosen before the audit, not after.",
    "The in-sample row is what most audits print; it is no confidence bound and enters no verdict.",
    "Lower bounds are rounded down, upper bounds up.",
)


def report(title: str, subjects: Sequence[Subject], *before: Html) -> bytes:
    """The page: an index where there are several subjects, what else comes before, a section each."""
    index = [_index(subjects)] if len(subjects) > 1 else []
    articles = [_article(subject, len(subjects)) for subject in subjects]
    return page.document(title, page.element("h1", title), *before, *index, *articles, _meanings())


def _index(subjects: Sequence[Subject]) -> Html:
    """A row a subject, with a link to its section."""
    rows = []
    for subject in subjects:
        found = verdicts.verdict(subject.conclusion)
        link = page.element("a", subject.title, href=f"#{subject.anchor}")
        gaussian, free = (subject.conclusion.bound(name) for name in ("certified", "assumption_free"))
        word = page.join([page.element("strong", found.word, class_=found.kind)])
        epsilons = verdicts.at_least(gaussian.epsilon), verdicts.at_least(free.epsilon)
        rows.append((link, word, *epsilons, _upper(subject.conclusion.upper_bound)))
    header = ("audit", "verdict", "epsilon, Gaussian curve", "epsilon, any curve", "upper bound")
    table = page.table("Audits in this report", header, rows)
    error = 1 - min(subject.conclusion.bounds[0].confidence for subject in subjects)
    expected = f"{error * len(subjects):.2g}"
    caution = page.element("p", _CAUTION.format(len(subjects), expected), class_="note")
    return page.element("nav", table, caution, aria_label="Audits")


def _article(subject: Subject, count: int) -> Html:
    """The section of one audit of so many."""
    heading = [page.element("h2", subject.title)] if count > 1 else []
    panels = page.element("p", _NOT_DRAWN, class_="note")
    if count <= _MOST_DRAWN:
        panels = page.element("div", *_figures(subject.conclusion), class_="figures")
    config = [page.element("pre", subject.config)] if subject.config else []
    return page.element(
        "article",
        *heading,
        _verdict(subject.conclusion),
        page.element("h3", "What was audited"),
        page.terms(subject.facts),
        page.element("h3", "Threat model"),
        page.points(subject.threats),
        page.element("h3", "Bounds, and what each assumes"),
        _bounds(subject.conclusion),
        page.element("h3", "Figures"),
        panels,
        page.element("h3", "Provenance"),
        page.terms(subject.provenance),
        *config,
        id=subject.anchor,
    )


def _verdict(conclusion: Conclusion) -> Html:
    """The verdict's box."""
    found = verdicts.verdict(conclusion)
    text = page.join([page.element("strong", found.headline), " ", found.sentence])
    return page.element("p", text, class_=f"verdict {found.kind}")


def _bounds(conclusion: Conclusion) -> Html:
    """A row a bound, the upper bound last."""
    rows = [_row(bound) for bound in conclusion.bounds]
    upper, mu = conclusion.upper_bound, conclusion.mu_upper_bound
    if upper is not None:
        limit = f"≤\N{NO-BREAK SPACE}{verdicts.at_most(mu)}" if mu is not None and math.isfinite(mu) else ""
        assumed = "sensitivity C, Gaussian noise of deviation sigma C"
        rows.append(("upper bound", f"≤\N{NO-BREAK SPACE}{_upper(upper)}", limit, "", "", "", assumed))
    first = conclusion.bounds[0]
    level = verdicts.percent(first.confidence)
    caption = f"Epsilon at delta = {first.delta:g}; lower bounds at {level} confidence"
    header = ("method", "epsilon", "mu", "threshold", "false positives", "false negatives", "assumes")
    return page.table(caption, header, rows)


def _row(bound: Bound) -> tuple[str, ...]:
    """A bound's cells; what is no bound gets no inequality sign."""
    sign = "" if bound.assumes == IN_SAMPLE else "≥\N{NO-BREAK SPACE}"
    return (
        _METHODS.get(bound.method, bound.method),
        sign + verdicts.at_least(bound.epsilon),
        "" if bound.mu is None else sign + verdicts.at_least(bound.mu),
        f"{bound.threshold:.4g}",
        f"{bound.false_positives:,} of {bound.n_out:,}",
        f"{bound.false_negatives:,} of {bound.n_in:,}",
        _ASSUMES[bound.assumes],
    )


def _upper(upper: float | None) -> str:
    """An upper bound's number."""
    if upper is None:
        return "not given"
    return verdicts.at_most(upper) if math.isfinite(upper) else "∞"


def _figures(conclusion: Conclusion) -> list[Html]:
    """The panels, each with what a reader who can't see it needs to know."""
    panels = audit_panels.audit_panels(*conclusion)
    certified = conclusion.bound("certified")
    mu = f"{certified.mu:.3f}"
    scores = zip(("in", "out"), (conclusion.scores_in, conclusion.scores_out), strict=True)
    means = "; ".join(f"{name}: mean {x.mean():.4g}, deviation {x.std():.3g}" for name, x in scores)
    lower = ", ".join(f"{row[0]} {row[1]}" for row in map(_row, conclusion.bounds))
    above = f"; upper bound {_upper(conclusion.upper_bound)}"
    level = verdicts.percent(certified.confidence)
    texts = {
        "scores": (
            f"Histograms of the scores in both worlds. {means}.",
            "Scores of the final models with (in) and without (out) the canary.",
        ),
        "trade_off": (
            f"Empirical trade-off curve in its {level} band, and the Gaussian curve of mu = {mu}.",
            "False-negative rate against false-positive rate. Where the empirical curve has another shape "
            "than the Gaussian ones, the bounds that assume a Gaussian curve do not apply.",
        ),
        "bounds": (f"Bars of epsilon: {lower}{above}.", "Lower bounds by method, and the upper bound."),
        "profile": (
            f"delta against epsilon of Gaussian mechanisms at mu = {mu} and at the upper bound.",
            "Privacy profiles of Gaussian mechanisms at the certified mu and at the upper bound.",
        ),
    }
    return [page.figure(image, *texts[name]) for name, image in panels.items()]


def _meanings() -> Html:
    """What readers need to know to read the rest."""
    heading = page.element("h2", "How to read this")
    return page.element("footer", heading, page.points(_MEANINGS), class_="note")
