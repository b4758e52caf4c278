"""Pages on audits: of each its verdict, training, threat model, bounds, figures and provenance."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from audit.claims.linear_losses import EXPECTED
from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, Verdict, assumption_of, method_of
from audit.methods.estimate import IN_SAMPLE, Bound, Finding
from audit.report import audit_panels, one_run_section, page
from audit.report.bounds_table import (
    describe_claim_in_sentences,
    describe_curve_test,
    explain_curve_test,
    explain_too_few_runs,
    remarks,
)
from audit.report.curves import describe_curve, is_claim_drawn
from audit.report.page import PageTable
from audit.report.subjects import Subject

_UNTESTED = " (not tested: scores of one run may depend on each other)"
_NO_LINE = (
    " Where no such line fits into the band, the bounds that assume a Gaussian curve do not apply."
)
_MOST_DRAWN = 12  # audits in a page that each have a quarter of a megabyte of panels
_NOT_DRAWN = f"A page of more than {_MOST_DRAWN} audits leaves panels out; --setting=HASH has them."


class _Section(NamedTuple):
    """What the template shows of an audit.

    Attributes:
      subject: the audit and its facts.
      has_heading: whether the section has a heading. In a page of one audit the title names the audit.
      verdict: the verdict.
      bounds: the table of bounds.
      claims: sentences on the test of the claim.
      estimates: the table of a single run's estimates; None for other audits.
      remarks: sentences below the tables.
      over_runs: the table of means over runs that are each concluded by themselves; None for other audits.
      figures: the panels, as markup; empty in a page of too many audits.
      not_drawn: what a page of too many audits has in place of figures.
    """

    subject: Subject
    has_heading: bool
    verdict: Verdict
    bounds: PageTable
    claims: Sequence[str]
    estimates: PageTable | None
    remarks: Sequence[str]
    over_runs: PageTable | None
    figures: Sequence[Markup]
    not_drawn: str


def report(title: str, about: Sequence[Subject], *before: str) -> bytes:
    """Returns an HTML page on audits, in UTF-8.

    Args:
      title: the title of the page.
      about: the audits, each of which gets a section. Several audits also get an index, unless all of them
        are audits of a single run.
      before: markup or text that comes before the index.
    """
    shows = _list_shown(about)
    index = Markup()
    if len(about) > 1 and not shows["only_one_run"]:
        index = _make_index(about)
    sections = [_make_section(subject, len(about)) for subject in about]
    return page.document(title, page.macros.audits(title, before, index, sections, shows))


def make_audits_page(about: Sequence[Subject]) -> bytes:
    """Returns the HTML page of audits, whose title is the name of the only audit or the number of audits."""
    if len(about) == 1:
        return report(f"Audit: {about[0].title}", about)
    # Only federated audits conclude on each run by itself, in `runs`.
    kind = "federated audits" if all(subject.runs for subject in about) else "audits"
    return report(f"{len(about)} {kind}", about)


def summary(subject: Subject) -> Markup:
    """Returns an audit's verdict and table of bounds as HTML, for a notebook."""
    section = {"verdict": _judge(subject), "bounds": _make_bounds_table(subject)}
    return Markup(page.macros.summary(section))


def _list_shown(audits: Sequence[Subject]) -> dict[str, bool]:
    """Returns which of the things that a page may have to explain are there in one of its audits."""
    conclusions = [subject.conclusion for subject in audits]
    estimates = [estimate.method for each in conclusions for estimate in each.estimates]
    return {
        "only_one_run": all(each.is_one_run for each in conclusions),
        "upper_bounds": any(each.upper_bounds for each in conclusions),
        # A bound after each run, as fresh directions in order have it, holds whenever one stops.
        "fixed_runs": any(not each.is_one_run and not each.path for each in conclusions),
        "curve": any(each.curve is not None for each in conclusions),
        "in_sample": IN_SAMPLE in estimates,
        "estimates": bool(estimates),
        "single_run": any(len(subject.runs) <= 1 for subject in audits),
        "federated": any(subject.runs for subject in audits),
    }


def _make_index(audits: Sequence[Subject]) -> Markup:
    """Returns the table of all audits in a page, with links to their sections."""
    rows = []
    for subject, difference in zip(audits, _find_differences(audits), strict=True):
        conclusion = subject.conclusion
        verdict = _judge(subject)
        name = page.macros.link(subject, difference)
        word = page.macros.word(verdict)
        gaussian = verdicts.at_least(_find_epsilon_if_gaussian(conclusion))
        free = verdicts.at_least(conclusion.epsilon)
        rows.append((name, word, gaussian, free, _show_tightest(conclusion)))
    header = ("audit", "verdict", "epsilon, Gaussian curve", "epsilon, any curve", "upper bound")
    table = PageTable("Audits in this report", header, rows)
    # Each audit's bound exceeds the truth by chance with at most this probability. So the expected number of
    # audits in which it does is at most `expected_errors`.
    most_error = 1 - min(subject.conclusion.confidence for subject in audits)
    expected_errors = f"{most_error * len(audits):.2g}"
    return Markup(page.macros.index(table, expected_errors))


def _find_epsilon_if_gaussian(conclusion: Conclusion) -> float:
    """Returns the epsilon that is proven if the curve is Gaussian; for one run, of its largest bound."""
    if not conclusion.is_one_run:
        return conclusion.gaussian.epsilon
    return max((bound.epsilon for bound in conclusion.bounds), default=0.0)


def _find_differences(audits: Sequence[Subject]) -> list[str]:
    """Returns, for each audit, text on the facts in which it differs from other audits of the same title.

    The text begins with a space, since it follows the title. It is empty where there is no such fact.
    """
    differences = []
    for subject in audits:
        namesakes = [namesake for namesake in audits if namesake.title == subject.title]
        differing_facts = []
        for name, fact in subject.facts.items():
            if any(namesake.facts.get(name) != fact for namesake in namesakes):
                differing_facts.append(f"{name.lower()}: {fact}")
        text = "; ".join(differing_facts)
        differences.append(f" {text}" if text else "")
    return differences


def _make_section(subject: Subject, count: int) -> _Section:
    """Returns an audit's section in a page of so many audits; with more than 12, figures are left out."""
    conclusion = subject.conclusion
    figures = []
    # With too many audits, the page would have too many megabytes of figures.
    if count <= _MOST_DRAWN:
        figures = _draw_figures(conclusion)
    tested = conclusion if subject.together is None else subject.together
    estimates = None
    over_runs = None
    if conclusion.is_one_run:
        notes = [f"{remark}." for remark in remarks(conclusion)]
        if conclusion.estimates:
            estimates = one_run_section.make_estimates_table(conclusion)
        if len(subject.runs) > 1:
            over_runs = one_run_section.make_runs_table(subject.runs)
    else:
        too_few_runs = explain_too_few_runs(conclusion)
        notes = [note for note in (too_few_runs, *remarks(conclusion)) if note]
    return _Section(
        subject,
        has_heading=count > 1,
        verdict=_judge(subject),
        bounds=_make_bounds_table(subject),
        claims=describe_claim_in_sentences(tested),
        estimates=estimates,
        remarks=notes,
        over_runs=over_runs,
        figures=figures,
        not_drawn=_NOT_DRAWN,
    )


def _judge(subject: Subject) -> Verdict:
    """Returns an audit's verdict, or `verdicts.SMOKE` for an audit too small to prove anything.

    For several federated runs it is the verdict on all of them together, or else on the first run. Its
    sentence then says so, unless nothing is proven: there is then nothing to limit to a run.
    """
    if not subject.proves:
        return verdicts.SMOKE
    judged = subject.conclusion
    of_which = "Of the first run"
    if subject.together is not None:
        judged = subject.together
        of_which = "Of all runs together"
    verdict = judged.verdict
    if len(subject.runs) > 1 and verdict.kind != verdicts.NOTHING:
        return verdict._replace(sentence=f"{of_which}: {verdict.sentence}")
    return verdict


def _make_bounds_table(subject: Subject) -> PageTable:
    """Returns the page's table of bounds, with the same rows and order as the table for a terminal.

    These are the lower bounds, the upper bounds, and two kinds of values that are no bounds: the
    estimates, and what the last model would leak if losses were linear.
    """
    conclusion = subject.conclusion
    if conclusion.is_one_run:
        return one_run_section.make_bounds_table(subject)
    rows = []
    for bound in conclusion.ranked():
        rows.append((*_make_cells(bound), _describe_assumption(bound, conclusion)))
    no_errors = ("", "", "")  # no threshold, no false positives and no false negatives
    for upper in conclusion.upper_bounds:
        mu = ""
        if upper.mu is not None and math.isfinite(upper.mu):
            mu = verdicts.show_upper_bound(upper.mu)
        epsilon = verdicts.show_upper_bound(upper.epsilon)
        rows.append((upper.label, epsilon, mu, *no_errors, upper.assumes.sentence))
    for estimate in conclusion.estimates:
        rows.append((*_make_cells(estimate), _describe_assumption(estimate, conclusion)))
    if conclusion.expected is not None:
        epsilon = verdicts.at_most(conclusion.expected)
        rows.append(("linear losses", epsilon, "", *no_errors, EXPECTED.sentence))
    header = (
        "method",
        "epsilon",
        "mu",
        "threshold",
        "false positives",
        "false negatives",
        "assumes",
    )
    return PageTable(verdicts.describe_level(conclusion), header, rows)


def _make_cells(finding: Finding) -> tuple[str, ...]:
    """Returns the cells of a bound or estimate: label, epsilon, mu, threshold, and the errors of both kinds.

    A bound's epsilon and mu have an inequality sign, an estimate's have none.
    """
    show = verdicts.show_lower_bound if isinstance(finding, Bound) else _round_down
    # The exact rate, where a known law of the scores gives it and nothing is counted.
    if finding.false_positive_rate is not None:
        false_positives = f"{finding.false_positive_rate:.1e}, known"
    else:
        false_positives = f"{finding.false_positives:,} of {finding.n_out:,}"
    mu = ""
    if finding.mu is not None:
        mu = show(finding.mu)
    return (
        method_of(finding).label,
        show(finding.epsilon),
        mu,
        f"{finding.threshold:.4g}",
        false_positives,
        f"{finding.false_negatives:,} of {finding.n_in:,}",
    )


def _round_down(value: float) -> str:
    """Returns an estimate as text.

    It is rounded down as lower bounds have to be, so that an estimate and a bound of equal values look equal.
    """
    return verdicts.at_least(value)


def _describe_assumption(finding: Finding, conclusion: Conclusion) -> str:
    """Returns the last cell of a row: what a bound assumes, or why an estimate is no bound.

    If a bound assumes a Gaussian curve, what the test of that curve shows follows, or that the scores cannot
    be tested.
    """
    assumption = assumption_of(finding)
    # Where the law of scores is known, the curve is not tested, and the sentence is all there is to say.
    if not assumption.gaussian or conclusion.law_is_known:
        return assumption.sentence
    # A conclusion may have been made without a test.
    curve = conclusion.curve
    if curve is None and conclusion.has_one_canary:
        return assumption.sentence
    if curve is None:  # several canaries a run, whose scores the test cannot take
        return assumption.sentence + _UNTESTED
    if curve.is_refuted:
        return f"{assumption.sentence}, which these scores refute ({curve.show_p_value()}): it does not hold"
    test = f"{describe_curve_test(curve)}, {explain_curve_test(curve, conclusion)}"
    return f"{assumption.sentence}: {test}"


def _show_tightest(conclusion: Conclusion) -> str:
    """Returns the smallest upper bound on epsilon, rounded up, or "not given"."""
    upper = conclusion.tightest
    if upper is None:
        return "not given"
    return verdicts.at_most(upper.epsilon)


def _draw_figures(conclusion: Conclusion) -> list[Markup]:
    """Returns the panels of an audit as HTML figures, with captions that are their alternative texts too."""
    describe = {
        "path": _describe_path,
        "scores": _describe_scores,
        "trade_off": _describe_trade_off,
        "bounds": _describe_bounds,
        "profile": _describe_profile,
        "expansion": _describe_expansion,
        "cosines": one_run_section.describe_cosines,
        "epsilons": one_run_section.describe_epsilons,
    }
    figures = []
    for name, image in audit_panels.audit_panels(conclusion).items():
        caption = describe[name](conclusion)
        figures.append(page.figure(image, caption, caption))
    return figures


def _describe_path(conclusion: Conclusion) -> str:
    """Returns the caption of the panel that shows epsilon proven after each run."""
    if conclusion.path:  # it is known only if the runs are in order
        runs = f"{len(conclusion.path):,} training runs"
        return f"What was proven after each of {runs}. It holds whenever one stops."
    return "What was proven by all training runs, in whatever order they stand."


def _describe_scores(conclusion: Conclusion) -> str:
    """Returns the caption of the panel with both worlds' scores."""
    if not conclusion.law_is_known:
        return "Scores of the final models with (in) and without (out) the canary."
    shown = "Cosines of the canaries' directions"
    if conclusion.fresh.draws:
        shown = "Ranks of the canaries among fresh draws, as normal deviates"
    return f"{shown}, and their known law where the canary is out."


def _describe_trade_off(conclusion: Conclusion) -> str:
    """Returns the caption of the trade-off curve's panel."""
    caption = (
        "False-negative rate against false-positive rate, on axes where a Gaussian curve is a straight "
        "line of slope -1."
    )
    if conclusion.has_one_canary:  # a band needs independent scores
        caption += _NO_LINE
    if is_claim_drawn(conclusion):
        caption += " The dotted curve is the lowest that the claim allows."
    message = describe_curve(conclusion).message  # the result of the curve's test
    if message:
        # As a sentence; `capitalize` would make the rest lower case.
        caption += f" {message[0].upper()}{message[1:]}."
    return caption


def _describe_bounds(conclusion: Conclusion) -> str:
    """Returns the caption of the panel of bounds."""
    lines = "".join(f", and the {upper.name}" for upper in conclusion.upper_bounds)
    return f"Lower bounds by method{lines}.{_explain_mark(conclusion)}"


def _describe_profile(conclusion: Conclusion) -> str:
    """Returns the caption of the privacy profile's panel."""
    mu = conclusion.gaussian.mu
    mark = ""
    places = []
    if mu:
        mark = _explain_mark(conclusion)
        places.append(f"the lower bound on mu ({verdicts.at_least(mu)})")
    for upper in conclusion.upper_bounds:
        if upper.mu is not None and math.isfinite(upper.mu):
            places.append(f"the {upper.name} (mu = {verdicts.at_most(upper.mu)})")
    if not places:
        return "No bound on mu is above 0: there is no privacy profile to draw."
    return f"Privacy profiles of Gaussian mechanisms at {' and at '.join(places)}.{mark}"


def _describe_expansion(conclusion: Conclusion) -> str:
    """Returns the caption of the panel that shows how much the measured steps stretch distances."""
    state = conclusion.hidden_state
    assert state is not None
    return (
        "How much a step moves two models apart at most, along rehearsed runs of both worlds: of each step "
        f"the largest over {state.runs} runs, and between measured steps that of the larger neighbour "
        f"({state.reason}). It is what the measured bound on the last model stands on."
    )


def _explain_mark(conclusion: Conclusion) -> str:
    """Returns a sentence, with a space before it, that explains how figures mark Gaussian bounds.

    These are the bounds that assume a Gaussian curve. Empty where nothing speaks against the curve.
    """
    mark = describe_curve(conclusion).mark
    if not mark:
        return ""
    return f" Marked {mark}: what assumes a Gaussian curve."
