"""Pages on audits: of each its verdict, training, threat model, bounds, figures and provenance."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, Verdict
from audit.report import audit_panels, bounds_table, page
from audit.report.audit_panels import describe_curve, is_claim_drawn
from audit.report.federated_table import collect_over_runs
from audit.report.subjects import Subject

_MAX_DRAWN = 12  # audits in a page that each have a quarter of a megabyte of panels


def report(title: str, audits: Sequence[Subject]) -> bytes:
    """Returns an HTML page on audits, in UTF-8.

    Several audits also get an index, unless all of them are audits of a single run.
    """
    sections = [_make_section(subject, audits) for subject in audits]
    return page.document(title, page.macros.audits(title, sections))


def make_audits_page(audits: Sequence[Subject]) -> bytes:
    """Returns the HTML page of audits, whose title is the name of the only audit or the number of audits."""
    if len(audits) == 1:
        return report(f"Audit: {audits[0].title}", audits)
    # Only federated audits conclude on each run by itself, in `runs`.
    kind = "audits"
    if all(subject.runs for subject in audits):
        kind = "federated audits"
    return report(f"{len(audits)} {kind}", audits)


def summary(subject: Subject) -> Markup:
    """Returns an audit's verdict and table of bounds as HTML, for a notebook."""
    return Markup(page.macros.summary(make_bounds(subject)))


def make_bounds(subject: Subject) -> dict[str, Any]:
    """Returns what the template shows of an audit's bounds: verdict, rows, curve test."""
    conclusion = subject.conclusion
    rows = bounds_table.list_rows(conclusion)
    if subject.uppers:  # in place of the upper bounds of a single run
        rows = [*rows[: len(conclusion.bounds)], *subject.uppers]
    curve_test = ""
    if conclusion.curve is not None:
        result = bounds_table.describe_curve_test(conclusion.curve)
        curve_test = f"{result}, {bounds_table.explain_curve_test(conclusion.curve, conclusion)}"
    return {
        "subject": subject,
        "verdict": _judge(subject),
        "rows": rows,
        "curve_test": curve_test,
    }


def _make_section(subject: Subject, audits: Sequence[Subject]) -> dict[str, Any]:
    """Returns what the template shows of an audit, in a page of these audits."""
    conclusion = subject.conclusion
    notes = bounds_table.remarks(conclusion)
    if conclusion.is_one_run:
        notes = [f"{remark}." for remark in notes]
    else:
        notes.insert(0, bounds_table.explain_too_few_runs(conclusion))
    return {
        **make_bounds(subject),
        "difference": _find_difference(subject, audits),
        "claims": bounds_table.make_statements_on_claim(subject.together or conclusion),
        "remarks": [note for note in notes if note],
        "over_runs": collect_over_runs(subject.runs),
        "figures": _draw_figures(conclusion) if len(audits) <= _MAX_DRAWN else None,
    }


def _find_difference(subject: Subject, audits: Sequence[Subject]) -> str:
    """Returns, after a space, the facts in which an audit differs from others of the same title."""
    namesakes = [other for other in audits if other.title == subject.title]
    differing = []
    for name, fact in subject.facts.items():
        if any(namesake.facts.get(name) != fact for namesake in namesakes):
            differing.append(f"{name.lower()}: {fact}")
    if differing:
        return f" {'; '.join(differing)}"
    return ""


def _judge(subject: Subject) -> Verdict:
    """Returns an audit's verdict.

    For several federated runs it is the verdict on all of them together, or else on the first run. Its
    sentence then says so, unless nothing is proven: there is then nothing to limit to a run.
    """
    judged = subject.together or subject.conclusion
    verdict = judged.verdict
    if len(subject.runs) < 2 or verdict.kind == verdicts.NOTHING:
        return verdict
    of_which = "Of all runs together"
    if subject.together is None:
        of_which = "Of the first run"
    return verdict._replace(sentence=f"{of_which}: {verdict.sentence}")


def _draw_figures(conclusion: Conclusion) -> list[Markup]:
    """Returns the panels of an audit as HTML figures, with captions that are their alternative texts too."""
    figures = []
    curve = describe_curve(conclusion)
    claim_drawn = not conclusion.is_one_run and is_claim_drawn(conclusion)
    for name, image in audit_panels.audit_panels(conclusion).items():
        caption = page.macros.caption(name, conclusion, curve, claim_drawn)
        caption = " ".join(Markup(caption).unescape().split())
        figures.append(page.figure(image, caption))
    return figures
