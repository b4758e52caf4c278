"""The HTML page about an audit: verdict, training, threat model, bounds, figures and provenance."""

from audit.report import audit_panels, bounds_table, card, page
from audit.report.subjects import Subject


def make_page(subject: Subject) -> bytes:
    """Returns the HTML page about an audit, in UTF-8."""
    conclusion = subject.conclusion
    section = {
        "subject": subject,
        "rows": bounds_table.list_rows(conclusion),
        "curve_test": bounds_table.explain_curve_test(conclusion),
        "claims": bounds_table.make_statements_on_claim(conclusion),
        "remarks": bounds_table.remarks(conclusion),
        "panels": audit_panels.audit_panels(conclusion),
        "mark": audit_panels.mark_gaussian(conclusion),
        "curve": audit_panels.describe_curve(conclusion),
        "cite": card.cite(subject),
    }
    title = f"Audit: {subject.title}"
    return page.document(title, page.macros.audit(title, section))
