"""Pages on audits: of each its verdict, training, threat model, bounds, figures and provenance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, Verdict, method_of
from audit.report import audit_panels, bounds_table, page
from audit.report.bounds_table import Row
from audit.report.curves import describe_curve, is_claim_drawn
from audit.report.federated_table import OverRuns, collect_over_runs
from audit.report.subjects import Subject
from audit.report.table import Column, Table, number

_MAX_DRAWN = 12  # audits in a page that each have a quarter of a megabyte of panels
_ESTIMATE_COLUMNS = (
    Column(head="estimate", value=lambda row: row.method),
    Column(head="epsilon", value=lambda row: row.epsilon, show=number(".3f")),
    Column(head="standard error", value=lambda row: row.standard_error, show=number(".3f")),
    Column(head="mean without a leak", value=lambda row: row.noise_floor.mean, show=number(".3f")),
    Column(
        head="95% without a leak", value=lambda row: row.noise_floor.quantile_95, show=number(".3f")
    ),
    Column(
        head="caveat",
        value=lambda row: (
            row.caveat + "; within its floor" * (row.epsilon <= row.noise_floor.quantile_95)
        ),
    ),
)
_RUNS_COLUMNS = (
    Column(head="method", value=lambda row: row.method),
    Column(head="mean epsilon", value=OverRuns.show_mean),
    Column(head="deviation", value=lambda row: np.std(row.epsilons), show=number(".3f")),
    # Only estimates have a floor.
    Column(head="each is a", value=lambda row: "estimate" if row.floor else "bound"),
)


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
    kind = "federated audits" if all(subject.runs for subject in audits) else "audits"
    return report(f"{len(audits)} {kind}", audits)


def summary(subject: Subject) -> Markup:
    """Returns an audit's verdict and table of bounds as HTML, for a notebook."""
    verdict = _judge(subject)
    section = {"subject": subject, "verdict": verdict, "bounds": _make_bounds_table(subject)}
    return Markup(page.macros.summary(section))


def _make_section(subject: Subject, audits: Sequence[Subject]) -> dict[str, Any]:
    """Returns what the template shows of an audit, in a page of these audits."""
    conclusion = subject.conclusion
    notes = bounds_table.remarks(conclusion)
    if conclusion.is_one_run:
        notes = [f"{remark}." for remark in notes]
    else:
        notes.insert(0, bounds_table.explain_too_few_runs(conclusion))
    return {
        "subject": subject,
        "difference": _find_difference(subject, audits),
        "verdict": _judge(subject),
        "bounds": _make_bounds_table(subject),
        "claims": bounds_table.make_statements_on_claim(subject.together or conclusion),
        "estimates": Table(_ESTIMATE_COLUMNS, conclusion.estimates),
        "remarks": [note for note in notes if note],
        "over_runs": Table(_RUNS_COLUMNS, collect_over_runs(subject.runs)),
        "figures": _draw_figures(conclusion) if len(audits) <= _MAX_DRAWN else None,
    }


def _find_difference(subject: Subject, audits: Sequence[Subject]) -> str:
    """Returns, after a space, the facts in which an audit differs from others of the same title."""
    namesakes = [other for other in audits if other.title == subject.title]
    differing = []
    for name, fact in subject.facts.items():
        if any(namesake.facts.get(name) != fact for namesake in namesakes):
            differing.append(f"{name.lower()}: {fact}")
    return f" {'; '.join(differing)}" if differing else ""


def _judge(subject: Subject) -> Verdict:
    """Returns an audit's verdict.

    For several federated runs it is the verdict on all of them together, or else on the first run. Its
    sentence then says so, unless nothing is proven: there is then nothing to limit to a run.
    """
    judged = subject.together or subject.conclusion
    verdict = judged.verdict
    if len(subject.runs) < 2 or verdict.kind == verdicts.NOTHING:
        return verdict
    of_which = "Of the first run" if subject.together is None else "Of all runs together"
    return verdict._replace(sentence=f"{of_which}: {verdict.sentence}")


def _make_bounds_table(subject: Subject) -> Table[Row]:
    """Returns the page's table of bounds, with the same rows and order as the table for a terminal."""
    conclusion = subject.conclusion
    columns: tuple[Column, ...]
    if conclusion.is_one_run:
        columns = (
            Column(head="bound", value=lambda row: row.label),
            Column(head="epsilon", value=lambda row: _show(row, row.epsilon)),
            Column(head="mu", value=lambda row: _show(row, row.mu if row.finding else None)),
            Column(head="counts", value=lambda row: row.finding and row.finding.counted),
            Column(head="assumes", value=lambda row: row.assumes.sentence),
        )
        rows = bounds_table.list_rows(conclusion)
        if subject.uppers:  # in place of the upper bounds of a single run
            rows = [*rows[: len(conclusion.bounds)], *subject.uppers]
        return Table(columns, rows)
    columns = (
        Column(head="method", value=lambda row: row.label),
        Column(head="epsilon", value=lambda row: _show(row, row.epsilon)),
        Column(head="mu", value=lambda row: _show(row, row.mu)),
        Column(head="threshold", value=lambda row: row.finding and f"{row.finding.threshold:.4g}"),
        Column(head="false positives", value=_show_false_positives),
        Column(
            head="false negatives",
            value=lambda row: (
                row.finding and f"{row.finding.false_negatives:,} of {row.finding.n_in:,}"
            ),
        ),
        Column(head="assumes", value=lambda row: _describe_assumption(row, conclusion)),
    )
    return Table(columns, bounds_table.list_rows(conclusion))


def _show(row: Row, value: float | None) -> str | None:
    """Returns an epsilon or mu of a row with its inequality sign, if it has one; None if it is unknown."""
    if value is None:
        return None
    text = verdicts.at_most(value) if row.finding is None else verdicts.at_least(value)
    return f"{row.sign}\N{NO-BREAK SPACE}{text}" if row.sign else text


def _show_false_positives(row: Row) -> str | None:
    """Returns the errors of scores out, or their rate by a known law; None for upper bounds."""
    finding = row.finding
    if finding is None:
        return None
    if finding.false_positive_rate is not None:
        return f"{finding.false_positive_rate:.1e}, known"
    return f"{finding.false_positives:,} of {finding.n_out:,}"


def _describe_assumption(row: Row, conclusion: Conclusion) -> str:
    """Returns what a row assumes, with an estimate's noise floor or the result of the curve's test."""
    sentence = row.assumes.sentence
    finding = row.finding
    if finding is None:
        return sentence
    noise_floor = method_of(finding).noise_floor
    if noise_floor is not None:  # only estimates have a noise floor
        floor = noise_floor(finding.n_in, finding.n_out, finding.delta, finding.confidence)
        return str(page.macros.assumption_of_estimate(sentence, floor))
    curve = conclusion.curve
    if not row.assumes.gaussian or (curve is None and not conclusion.has_tied_scores):
        return sentence
    if curve is None:
        return f"{sentence} (not tested: scores of one run may depend on each other)"
    if curve.is_refuted:
        return f"{sentence}, which these scores refute ({curve.show_p_value()}): it does not hold"
    result = bounds_table.describe_curve_test(curve)
    return f"{sentence}: {result}, {bounds_table.explain_curve_test(curve, conclusion)}"


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
