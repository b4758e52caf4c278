"""What a check reports: a table for a terminal, findings with their fixes, JSON, a page."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.check import provenance
from audit.check.findings import CheckFinding
from audit.json_text import write_json

PASSED = "passed"
FAILED = "failed"
UNTRIED = "could not be tried"
NOT_APPLICABLE = "does not apply"
LEVEL = 0.001  # the level of all statistical tests of a report together, by Holm's method
_COLUMNS = 80
_INDENT = 35  # width of the columns before "what was seen"


class Check(NamedTuple):
    """A row of the report.

    Attributes:
      name: the check's name.
      result: PASSED, FAILED, UNTRIED or NOT_APPLICABLE.
      seen: what was seen, in words.
    """

    name: str
    result: str
    seen: str


class CheckOutcome(NamedTuple):
    """What a check saw, before all checks are judged together.

    Attributes:
      text: what was seen, in words, for a check that passes; or why it could not be tried or does not apply.
      tried: whether the check could be tried.
      applies: whether the check concerns what was given at all.
      findings: the bugs that need no statistical test.
      p_values: the p-values of its statistical tests, by what was tested.
      figures: what was measured, for the report's JSON.
      measured: the row's own numbers in words, shown in the table whenever the check applies.
    """

    text: str
    tried: bool = True
    applies: bool = True
    findings: Sequence[CheckFinding] = ()
    p_values: Mapping[str, float] = {}
    figures: Mapping[str, Any] = {}
    measured: str = ""


NameFindings = Callable[[list[CheckFinding], dict[str, list[str]]], Sequence[CheckFinding]]


class FindingsError(AssertionError):
    """Raised by `raise_for_findings` for a report that did not pass."""


@dataclass(frozen=True)
class CheckReport:
    """The checks of a step, of batches or of a claimed epsilon.

    Printed, it is a table of the checks and the findings below it.

    Attributes:
      subject: "step", "batches" or "accounting".
      checks: the rows of the table.
      findings: the bugs.
      needed: the names of the checks that must be tried for the subject to pass.
      p_values: by row and test, the p-value of every statistical test, before Holm's correction.
      figures: what was measured.
      pictures: the numbers and arrays that the page draws, by name.
      provenance: the date, the code, versions and stated numbers, in words, by name.
    """

    subject: str
    checks: tuple[Check, ...]
    findings: tuple[CheckFinding, ...]
    needed: tuple[str, ...] = ()
    p_values: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict, repr=False)
    provenance: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def passed(self) -> bool:
        """Whether there is no finding, and every needed check that applies was tried and passed."""
        return self.verdict.startswith("PASSED")

    @property
    def verdict(self) -> str:
        """The conclusion in a single line, which begins with PASSED, FAILED or INCOMPLETE."""
        if self.findings:
            bugs = dict.fromkeys(finding.name for finding in self.findings)  # each once, in order
            return f"FAILED: {'; '.join(bugs)}"
        missing = [check for check in self.checks if self._is_missing(check)]
        if missing:
            names = ", ".join(check.name for check in missing)
            return f"INCOMPLETE: {names} could not be tried: {missing[0].seen}"
        if not self.checks:
            return "INCOMPLETE: nothing was checked"
        return "PASSED: no bug was found"

    def _is_missing(self, check: Check) -> bool:
        """Returns whether a check is needed and applies, but did not pass."""
        return check.name in self.needed and check.result not in (PASSED, NOT_APPLICABLE)

    def add_provenance(self, code: Any, stated: Mapping[str, Any]) -> "CheckReport":
        """Returns the report with its provenance: the date, the code, versions and stated numbers.

        Args:
          code: the caller's step, or what draws the batches; None for a check of numbers alone.
          stated: the numbers that the caller states, by name.
        """
        return replace(self, provenance=provenance.collect(code, stated))

    def add_findings(self, more: Sequence[CheckFinding]) -> "CheckReport":
        """Returns the report with further findings, whose rows then have failed."""
        checks = []
        for check in self.checks:
            names = [finding.name for finding in more if finding.check == check.name]
            if names:
                check = Check(check.name, FAILED, "; ".join([*names, check.seen]))
            checks.append(check)
        return replace(self, checks=tuple(checks), findings=(*self.findings, *more))

    def raise_for_findings(self) -> None:
        """Raises FindingsError, with the report as its message, unless the subject passed."""
        if not self.passed:
            raise FindingsError(f"\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report without its pictures as nested dicts and lists."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "passed": self.passed,
            "checks": _to_dicts(self.checks),
            "findings": _to_dicts(self.findings),
            "level": LEVEL,
            "p_values": dict(self.p_values),
            "figures": dict(self.figures),
            "provenance": dict(self.provenance),
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON text, in which null stands for infinity and NaN: JSON has neither."""
        return write_json(self.to_dict(), indent=2)

    def page(self, path: str | Path) -> Path:
        """Writes the report, with its pictures, as an HTML page to a path; returns the path."""
        # Here, not above: the page draws with matplotlib, which a report as text or JSON does not need.
        from audit import values
        from audit.report import check_page
        from audit.storage import files

        content = check_page.check_page(self.to_dict(), self.pictures)
        return files.write_whole(values.path("path", path), content, "name another file")

    def __str__(self) -> str:
        """Returns the table and the findings, at most 80 columns wide."""
        rule = "-" * _COLUMNS
        lines = [f"{'check':<16}{'result':<19}what was seen", rule]
        for name, result, seen in self.checks:
            if result == FAILED:
                result = result.upper()
            row = f"{name:<16}{result:<19}{seen}"
            lines += textwrap.wrap(row, _COLUMNS, subsequent_indent=" " * _INDENT)
        lines.append(rule)
        lines += textwrap.wrap(self.verdict, _COLUMNS)
        for finding in self.findings:
            lines.append("")
            lines += textwrap.wrap(f"{finding.check}: {finding.name}", _COLUMNS)
            lines += _indent(finding.meaning)
            lines += _indent(f"Fix: {finding.fix}")
        return "\n".join(_drop_controls(line) for line in lines)


def _drop_controls(line: str) -> str:
    """Returns a line with "?" for control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in line)


def _to_dicts(records: Sequence[Check] | Sequence[CheckFinding]) -> list[dict[str, Any]]:
    """Returns checks or findings as dicts, ready for JSON."""
    return [record._asdict() for record in records]


def _indent(text: str) -> list[str]:
    """Returns a text as lines of at most 80 columns, indented by two."""
    return textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")


def keep_certain_findings(
    certain: list[CheckFinding], rejected: dict[str, list[str]]
) -> Sequence[CheckFinding]:
    """Returns the certain findings alone: the `name_findings` of a report whose rejected tests add none."""
    return certain


def make_report(
    subject: str,
    outcomes: Mapping[str, CheckOutcome],
    needed: tuple[str, ...],
    name_findings: NameFindings = keep_certain_findings,
    **pictures: Any,
) -> CheckReport:
    """Judges what the checks saw, all statistical tests together; returns the report.

    Args:
      subject: "step", "batches" or "accounting".
      outcomes: what each check saw, by its row, in the order of the table.
      needed: the rows that must be tried for the subject to pass.
      name_findings: a function that explains rejected tests by bugs. It takes the findings that need no test,
        and by row the names of the rejected tests; it returns all findings.
      **pictures: the numbers and arrays that the page draws, by name.
    """
    # All tests of the report are judged together, to keep its level: the probability with which any of them
    # rejects if nothing is wrong.
    p_values = {}
    for row, outcome in outcomes.items():
        for what, p_value in outcome.p_values.items():
            p_values[_label(row, what)] = p_value
    all_rejected = find_rejected_tests(p_values)

    # The findings that need no test, the rejected tests by row, and the figures of all rows together.
    certain: list[CheckFinding] = []
    rejected: dict[str, list[str]] = {}
    figures: dict[str, Any] = {}
    for row, outcome in outcomes.items():
        certain += outcome.findings
        rejected[row] = []
        for what in outcome.p_values:
            if _label(row, what) in all_rejected:
                rejected[row].append(what)
        figures |= outcome.figures

    # The result of each row, and what its last column says.
    findings = _sort_findings(name_findings(certain, rejected), list(outcomes))
    checks = []
    for row, outcome in outcomes.items():
        # The names of the row's findings, each once, in order.
        names = dict.fromkeys(finding.name for finding in findings if finding.check == row)
        if names:
            result = FAILED
            parts = [*names, outcome.measured]
        elif rejected[row]:  # without a finding of its own
            result = FAILED
            parts = ["not as expected: see what is found below", outcome.measured]
        elif np.any(np.isnan(list(outcome.p_values.values()))):
            result = UNTRIED
            parts = ["a test of it gave no p-value", outcome.measured]
        elif not outcome.applies:
            result = NOT_APPLICABLE
            parts = [outcome.text]
        else:
            result = PASSED if outcome.tried else UNTRIED
            parts = [outcome.text, outcome.measured]
        check = Check(row, result, "; ".join(part for part in parts if part))
        checks.append(check)
    return CheckReport(subject, tuple(checks), tuple(findings), needed, p_values, figures, pictures)


def _label(row: str, what: str) -> str:
    """Returns the key of a row's test in the report's p-values."""
    return f"{row}: {what}"


def _sort_findings(findings: Sequence[CheckFinding], rows: list[str]) -> list[CheckFinding]:
    """Returns findings in the order of the table's rows, without repetitions."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda finding: rows.index(finding.check))


def find_rejected_tests(p_values: Mapping[str, float]) -> set[str]:
    """Returns the names of the tests that Holm's method rejects, at LEVEL for all of them together.

    A test whose p-value is NaN decides nothing, but counts among all tests.
    """
    rejected = set()
    decided = [item for item in p_values.items() if not np.isnan(item[1])]
    ranked = sorted(decided, key=lambda item: item[1])
    for rank, (name, p_value) in enumerate(ranked):
        # The level is shared out among the tests that are not rejected yet.
        is_rejected = p_value <= LEVEL / (len(p_values) - rank)
        if not is_rejected:
            break
        rejected.add(name)
    return rejected


def describe_error(error: Exception) -> str:
    """Returns an error's type and message on a single line, the message cut after 120 characters."""
    kind = type(error).__name__
    text = " ".join(str(error).split())
    if not text:
        return kind
    return f"{kind}: {text[:120]}"
