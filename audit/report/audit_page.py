"""A page on audits: of each the verdict, the training, the threat model, bounds, figures and provenance."""

import math
from collections.abc import Sequence

from audit.claims.linear_losses import EXPECTED
from audit.conclusions.conclusion import Conclusion, assumption_of, method_of
from audit.methods.estimate import Bound, Finding
from audit.methods.exact_null import ExactBound
from audit.report import audit_panels, page, verdicts
from audit.report.bounds_table import curve_means, curve_tested, remarks
from audit.report.curves import mark, standing
from audit.report.page import Html
from audit.report.subjects import OneRunSubject, Subject
from audit.report.verdicts import Verdict
from audit.runtime import started

_UNTESTED = " (not tested: scores of one run may depend on each other)"
_NO_LINE = " Where no such line fits into the band, the bounds that assume a Gaussian curve do not apply."
_MOST_DRAWN = 12  # audits in a page that each have a quarter of a megabyte of panels
_NOT_DRAWN = f"A page of more than {_MOST_DRAWN} audits leaves panels out; {{}} --setting=HASH has them."
_CAUTION = (
    "Each verdict has its own confidence. Of {} audits up to {} by a method may exceed the truth by chance: "
    "look at what stands alone among many again, with another seed. Audits of one seed share their noise and "
    "err together, so that the number of those that exceed is not binomial."
)
_MEANINGS = (
    "A lower bound on epsilon at delta says: the training is not (epsilon', delta)-differentially private "
    "for any smaller epsilon'. It comes from an attack that was run; another may find more.",
    "An upper bound says: the training is (epsilon, delta)-differentially private, if it is implemented as "
    "it is described.",
    "A confidence of 95% says: the method exceeds the truth in at most 5% of audits. Each bound has its own "
    "confidence; together they have less. The method is to be chosen before the audit, not after.",
    "So is the number of runs: who adds runs and keeps the best of five looks exceeds the truth in 12% of "
    "audits where 5% is said. Looks that are declared before the first one share the error out (--looks).",
    "The test of the Gaussian curve is necessary, not sufficient: what is seen at rates above one in the "
    "number of runs says nothing of the curve at delta. A curve that passes is not proven Gaussian.",
    "The in-sample row is what most audits print; it is no confidence bound and enters no verdict.",
    "Lower bounds are rounded down, upper bounds up.",
)


def report(title: str, about: Sequence[Subject], *before: Html) -> bytes:
    """The page: what else comes before, an index where there are several subjects, a section each."""
    index = [_index(about)] if len(about) > 1 else []
    articles = [_article(subject, len(about)) for subject in about]
    heading = page.element("h2", "How to read this")
    footer = page.element("footer", heading, page.points(_MEANINGS), class_="note")
    return page.document(title, page.element("h1", title), *before, *index, *articles, footer)


def of_audits(about: Sequence[Subject]) -> bytes:
    """The page of audits, under a title of theirs."""
    return report(f"Audit: {about[0].title}" if len(about) == 1 else f"{len(about)} audits", about)


def summary(subject: Subject) -> Html:
    """An audit's verdict and bounds, for a notebook."""
    return page.element("div", _verdict(_found(subject)), _bounds(subject.conclusion))


def _index(about: Sequence[Subject]) -> Html:
    rows = []
    for subject in about:
        found = _found(subject)
        link = page.element("a", subject.title, href=f"#{subject.anchor}")
        gaussian, free = subject.conclusion.gaussian, subject.conclusion.assumption_free
        word = page.join([page.element("strong", found.word, class_=found.kind)])
        epsilons = verdicts.at_least(gaussian.epsilon), verdicts.at_least(free.epsilon)
        rows.append((link, word, *epsilons, _upper(subject.conclusion)))
    header = ("audit", "verdict", "epsilon, Gaussian curve", "epsilon, any curve", "upper bound")
    table = page.table("Audits in this report", header, rows)
    error = 1 - min(subject.conclusion.confidence for subject in about)
    caution = page.element("p", _CAUTION.format(len(about), f"{error * len(about):.2g}"), class_="note")
    return page.element("nav", table, caution, aria_label="Audits")


def _article(subject: Subject, count: int) -> Html:
    panels = page.element("p", _NOT_DRAWN.format(started.command("report")), class_="note")
    if count <= _MOST_DRAWN:
        panels = page.element("div", *_figures(subject.conclusion), class_="figures")
    said = [f"{text[0].upper()}{text[1:]}" for text in remarks(subject.conclusion)]
    notes = [page.element("p", text, class_="note") for text in said]
    return article(subject, _found(subject), count > 1, _bounds(subject.conclusion), *notes, panels=panels)


def article(
    about: Subject | OneRunSubject, found: Verdict, titled: bool, bounds: Html, *more: Html, panels: Html
) -> Html:
    """An audit's section: verdict, what was audited, bounds, panels and where it comes from."""
    return page.element(
        "article",
        *([page.element("h2", about.title)] if titled else []),
        _verdict(found),
        page.element("h3", "What was audited"),
        page.terms(about.facts),
        page.element("h3", "Threat model"),
        page.points(about.threats),
        page.element("h3", "Bounds, and what each assumes"),
        bounds,
        *more,
        page.element("h3", "Figures"),
        panels,
        page.element("h3", "Provenance"),
        page.terms(about.provenance),
        *([page.element("pre", about.config)] if about.config else []),
        id=about.anchor,
    )


def _found(subject: Subject) -> Verdict:
    return verdicts.verdict(subject.conclusion) if subject.proves else verdicts.SMOKE


def _verdict(found: Verdict) -> Html:
    text = page.join([page.element("strong", found.headline), " ", found.sentence])
    return page.element("p", text, class_=f"verdict {found.kind}")


def _bounds(conclusion: Conclusion) -> Html:
    """A row a bound, then the upper bound, then what is no bound, as in the printed table."""
    rows = [(*_cells(row), _assumes(row, conclusion)) for row in conclusion.ranked()]
    for upper in conclusion.upper_bounds:
        mu = verdicts.limit(upper.mu) if upper.mu is not None and math.isfinite(upper.mu) else ""
        rows.append((upper.name, verdicts.limit(upper.epsilon), mu, "", "", "", upper.assumes.sentence))
    rows += [(*_cells(row), _assumes(row, conclusion)) for row in conclusion.estimates]
    if conclusion.expected is not None:
        said = verdicts.at_most(conclusion.expected)
        rows.append(("linear losses", said, "", "", "", "", EXPECTED.sentence))
    level = verdicts.percent(conclusion.confidence)
    caption = f"Epsilon at delta = {conclusion.delta:g}; lower bounds at {level} confidence"
    header = ("method", "epsilon", "mu", "threshold", "false positives", "false negatives", "assumes")
    return page.table(caption, header, rows)


def _cells(finding: Finding) -> tuple[str, ...]:
    """A finding's cells but for what it assumes; an estimate gets no inequality sign."""
    show = verdicts.proven if isinstance(finding, Bound) else verdicts.at_least
    return (
        method_of(finding).label,
        show(finding.epsilon),
        "" if finding.mu is None else show(finding.mu),
        f"{finding.threshold:.4g}",
        _false_positives(finding),
        f"{finding.false_negatives:,} of {finding.n_in:,}",
    )


def _false_positives(finding: Finding) -> str:
    if isinstance(finding, ExactBound):
        return f"{finding.false_positive_rate:.1e}, known"
    return f"{finding.false_positives:,} of {finding.n_out:,}"


def _assumes(finding: Finding, conclusion: Conclusion) -> str:
    """A bound's assumption, and whether the scores refute it; an estimate's caveat and noise floor."""
    method, p_value = method_of(finding), conclusion.p_value()
    assumed = assumption_of(finding)
    words = assumed.sentence
    if method.noise_floor is not None:
        floor = method.noise_floor(finding.n_in, finding.n_out, finding.delta, finding.confidence)
        return (
            f"{words}. Where nothing leaks it exceeds 0 in {floor.exceeding:.1%} of audits; epsilon's mean "
            f"is then {floor.mean:.2g}, its 95% quantile {floor.quantile_95:.2g}"
        )
    if not assumed.gaussian:
        return words
    if conclusion.curve is None:
        return words if conclusion.design is None else words + _UNTESTED
    if conclusion.refutes_gaussian:
        return f"{words}, which these scores refute ({p_value}): it does not hold"
    return f"{words}: {curve_tested(conclusion)}, {curve_means(conclusion)}"


def _upper(conclusion: Conclusion) -> str:
    upper = conclusion.tightest
    return "not given" if upper is None else verdicts.at_most(upper.epsilon)


def _figures(conclusion: Conclusion) -> list[Html]:
    panels, gaussian = audit_panels.audit_panels(conclusion), conclusion.gaussian
    mu = verdicts.at_least(gaussian.mu or 0.0)
    scores = zip(("in", "out"), (conclusion.scores_in, conclusion.scores_out), strict=True)
    means = "; ".join(f"{name}: mean {x.mean():.4g}, deviation {x.std():.3g}" for name, x in scores)
    cells = [(*_cells(row)[:2], mark(row, conclusion)) for row in conclusion.rows()]
    bars = ", ".join(" ".join(part for part in row if part) for row in cells)
    state = standing(conclusion)
    marked = f" Marked {state.mark}: what assumes a Gaussian curve." if state.mark else ""
    tested = f" {state.found[0].upper()}{state.found[1:]}." if state.found else ""
    above = "".join(f"; {one.name} {verdicts.at_most(one.epsilon)}" for one in conclusion.upper_bounds)
    band, without = "", ""
    if conclusion.design is None:
        band, without = f" in its {verdicts.percent(gaussian.confidence)} band", _NO_LINE
    when = f"after each of {len(conclusion.path):,} training runs"
    stops = " It holds whenever one stops."
    if not conclusion.path:
        when = "by all training runs, in whatever order they stand"
        stops = ""
    gaussians = "" if gaussian.mu is None else f", and the Gaussian curve of mu = {mu}"
    texts = {
        "path": (
            f"Epsilon proven {when}{above}.",
            f"What was proven {when}.{stops}",
        ),
        "scores": (
            f"Histograms of the scores in both worlds. {means}.",
            "Scores of the final models with (in) and without (out) the canary."
            if conclusion.fresh is None
            else "Cosines of the canaries' directions, and their known law where the canary is out.",
        ),
        "trade_off": (
            f"Empirical trade-off curve{band}{gaussians}, on axes of normal deviates.{tested}",
            "False-negative rate against false-positive rate, on axes where a Gaussian curve is a straight "
            f"line of slope -1.{without}{tested}",
        ),
        "bounds": (
            f"Bars of epsilon: {bars}{above}.",
            f"Lower bounds by method, and the upper bound.{marked}",
        ),
        "profile": (
            f"delta against epsilon of Gaussian mechanisms at mu = {mu}, and at the upper bound.{marked}",
            "Privacy profiles of Gaussian mechanisms at the lower bound on mu and at the upper bound."
            f"{marked}",
        ),
    }
    return [page.figure(image, *texts[name]) for name, image in panels.items()]
