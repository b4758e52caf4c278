"""HTML pages about audits: verdict, training, threat model, bounds, figures and provenance."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from audit.conclusions.conclusion import Conclusion
from audit.report import audit_panels, bounds_table, card, page
from audit.report.subjects import Subject

_MAX_DRAWN = 12  # a page with more audits omits figures (250 kB per audit)


def make_audits_page(audits: Sequence[Subject]) -> bytes:
    """Returns an HTML page about audits, in UTF-8.

    For several audits, it has an index, unless each audit is of a single training run.
    """
    title = f"{len(audits)} audits"
    if len(audits) == 1:
        title = f"Audit: {audits[0].title}"
    has_figures = len(audits) <= _MAX_DRAWN
    sections = [_make_section(subject, has_figures) for subject in audits]
    return page.document(title, page.macros.audits(title, sections))


def summary(subject: Subject) -> Markup:
    """Returns the verdict and the table of bounds of an audit as HTML, for notebooks."""
    return Markup(page.macros.summary(_make_section(subject, has_figures=False)))


def _make_section(subject: Subject, has_figures: bool) -> dict[str, Any]:
    """Returns an audit's subject, bounds, remarks and figures for the template."""
    conclusion = subject.conclusion
    too_few_runs = bounds_table.explain_too_few_runs(conclusion)
    return {
        "subject": subject,
        "rows": bounds_table.list_rows(conclusion),
        "curve_test": bounds_table.explain_curve_test(conclusion),
        "claims": bounds_table.make_statements_on_claim(conclusion),
        "remarks": [too_few_runs, *bounds_table.remarks(conclusion)],
        "figures": _draw_figures(conclusion) if has_figures else None,
        "cite": card.cite(subject),
    }


def _draw_figures(conclusion: Conclusion) -> list[Markup]:
    """Returns the panels of an audit as HTML figures with captions."""
    figures = []
    mark = audit_panels.mark_gaussian(conclusion)
    message = audit_panels.describe_curve(conclusion)
    for name, image in audit_panels.audit_panels(conclusion).items():
        caption = page.macros.caption(name, conclusion, mark, message)
        # Plain text on a single line, since `figure` escapes it.
        caption = " ".join(Markup(caption).unescape().split())
        figures.append(page.figure(image, caption))
    return figures
