"""The report of a check: a table for a terminal, findings with their fixes, JSON, a page."""

import platform
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.check.findings import CheckFinding
from audit.version import __version__
from audit.written import write_json

PASSED = "passed"
FAILED = "failed"
UNTRIED = "could not be tried"
LEVEL = 0.001  # the level of all statistical tests of a report together, by Holm's method
_COLUMNS = 80
_INDENT = 35  # width of the columns before the last
_LIBRARIES = ("numpy", "jax", "jax_privacy", "torch", "opacus", "tensorflow", "dp_accounting")


class Check(NamedTuple):
    """A row of the report: its name, its result (PASSED, FAILED, ...) and the observation in words."""

    name: str
    result: str
    seen: str


class CheckOutcome(NamedTuple):
    """The observations of a check, before all checks are judged together.

    Attributes:
      text: the observation in words, if the check passes; or why it could not be tried.
      tried: whether the check could be tried.
      findings: the bugs that need no statistical test.
      p_values: the p-values of its statistical tests, by test.
      figures: the measurements for the report's JSON.
      measured: the measurements in words, for the table.
    """

    text: str
    tried: bool = True
    findings: Sequence[CheckFinding] = ()
    p_values: Mapping[str, float] = {}
    figures: Mapping[str, Any] = {}
    measured: str = ""


class FindingsError(AssertionError):
    """Raised by `raise_for_findings` for a report that did not pass."""


class CheckReport(NamedTuple):
    """The checks of a step, of batches or of a claimed epsilon.

    Printed, it is a table of the checks and the findings below it.

    Attributes:
      subject: "step", "batches" or "accounting".
      checks: the rows of the table.
      findings: the bugs.
      needed: the names of the checks that must be tried for the subject to pass.
      p_values: by row and test, the p-value of every statistical test, before Holm's correction.
      figures: the measurements.
      provenance: the date, the code, versions and stated numbers, in words, by name.
    """

    subject: str
    checks: tuple[Check, ...]
    findings: tuple[CheckFinding, ...]
    needed: tuple[str, ...]
    p_values: Mapping[str, float]
    figures: Mapping[str, Any]
    provenance: Mapping[str, str] = {}

    @property
    def passed(self) -> bool:
        """Whether there are no findings, and every needed check was tried and passed."""
        return self.verdict.startswith("PASSED")

    @property
    def verdict(self) -> str:
        """The conclusion in a single line, which begins with PASSED, FAILED or INCOMPLETE."""
        if self.findings:
            bugs = dict.fromkeys(finding.name for finding in self.findings)  # each once, in order
            return f"FAILED: {'; '.join(bugs)}"
        missing = {}
        for name, result, seen in self.checks:
            if name in self.needed and result != PASSED:
                missing[name] = seen
        if missing:
            reason = next(iter(missing.values()))
            return f"INCOMPLETE: {', '.join(missing)} could not be tried: {reason}"
        return "PASSED: no bug was found"

    def add_provenance(self, code: Any, stated: Mapping[str, Any]) -> "CheckReport":
        """Returns the report with its provenance: the date, the code, versions and stated numbers.

        Args:
          code: the caller's step or loader; None for a check of numbers.
          stated: the stated numbers, by name.
        """
        facts = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        if hasattr(code, "__code__"):
            line = f"line {code.__code__.co_firstlineno}"
            facts["code"] = f"{code.__qualname__} in {code.__code__.co_filename}, {line}"
        elif code is not None:
            facts["code"] = f"{type(code).__module__}.{type(code).__qualname__}"
        facts |= {name: str(value) for name, value in stated.items()}
        facts |= {"audit": __version__, "python": platform.python_version()}
        for library in _LIBRARIES:  # only those that are loaded have a version
            version = getattr(sys.modules.get(library), "__version__", "")
            if version:
                facts[library] = str(version)
        return self._replace(provenance=facts)

    def raise_for_findings(self) -> None:
        """Raises FindingsError, with the report as its message, unless the subject passed."""
        if not self.passed:
            raise FindingsError(f"\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as nested dicts and lists."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "passed": self.passed,
            "checks": list(map(Check._asdict, self.checks)),
            "findings": list(map(CheckFinding._asdict, self.findings)),
            "level": LEVEL,
            "p_values": self.p_values,
            "figures": self.figures,
            "provenance": self.provenance,
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON text, with null for infinity and NaN."""
        return write_json(self.to_dict(), indent=2)

    def page(self, path: str | Path) -> Path:
        """Writes the report as an HTML page, with pictures of violations; returns its path."""
        # Here, not above: the page draws with matplotlib, which a report as text or JSON does not need.
        from audit import errors
        from audit.report import check_page
        from audit.storage import files

        content = check_page.check_page(self.to_dict())
        return files.write_whole(errors.path("path", path), content, "name another file")

    def __str__(self) -> str:
        """Returns the table and the findings, at most 80 columns wide."""
        rule = "-" * _COLUMNS
        lines = [f"{'check':<16}{'result':<19}what was seen", rule]
        for name, result, seen in self.checks:
            row = f"{name:<16}{result.replace(FAILED, 'FAILED'):<19}{seen}"
            lines += textwrap.wrap(row, _COLUMNS, subsequent_indent=" " * _INDENT)
        lines.append(rule)
        lines += textwrap.wrap(self.verdict, _COLUMNS)
        for finding in self.findings:
            lines.append("")
            lines += textwrap.wrap(f"{finding.check}: {finding.name}", _COLUMNS)
            for text in (finding.meaning, f"Fix: {finding.fix}"):
                lines += textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        # "?" for control characters, which a terminal would obey.
        characters = (c if c.isprintable() or c == "\n" else "?" for c in "\n".join(lines))
        return "".join(characters)


def make_report(
    subject: str,
    outcomes: Mapping[str, CheckOutcome],
    explain: Callable[[dict[str, list[str]]], Iterable[CheckFinding]] = lambda _: (),
    needed: tuple[str, ...] = (),
) -> CheckReport:
    """Judges all checks and statistical tests together; returns the report.

    Args:
      subject: "step", "batches" or "accounting".
      outcomes: the observations of each check, by its row, in the order of the table.
      explain: a function from the names of the rejected tests by row to the bugs that explain them.
      needed: the rows that must be tried for the subject to pass; all by default.
    """
    p_values = {}
    found: list[CheckFinding] = []
    figures: dict[str, Any] = {}
    for row, outcome in outcomes.items():
        found += outcome.findings
        figures |= outcome.figures
        for test, p_value in outcome.p_values.items():
            p_values[f"{row}: {test}"] = p_value
    all_rejected = find_rejected_tests(p_values)
    rejected = {}
    for row, outcome in outcomes.items():
        rejected[row] = [test for test in outcome.p_values if f"{row}: {test}" in all_rejected]
    rows = tuple(outcomes)
    unique = dict.fromkeys([*found, *explain(rejected)])
    findings = sorted(unique, key=lambda finding: rows.index(finding.check))

    checks = []
    for row, outcome in outcomes.items():
        names = dict.fromkeys(finding.name for finding in findings if finding.check == row)
        result = PASSED
        text = outcome.text
        if names or rejected[row]:
            result = FAILED
            # Without a name, a finding of another row explains the test.
            text = "; ".join(names) or "not as expected: see the findings below"
        elif np.any(np.isnan(list(outcome.p_values.values()))):
            result = UNTRIED
            text = "a test of it gave no p-value"
        elif not outcome.tried:
            result = UNTRIED
        parts = filter(None, [text, outcome.measured])
        checks.append(Check(row, result, "; ".join(parts)))
    return CheckReport(subject, tuple(checks), tuple(findings), needed or rows, p_values, figures)


def find_rejected_tests(p_values: Mapping[str, float]) -> set[str]:
    """Returns the names of the tests that Holm's method rejects at the family-wise error rate LEVEL.

    A test with the p-value NaN is never rejected, but it counts towards the number of tests.
    """
    rejected: set[str] = set()
    for name in sorted(p_values, key=lambda name: np.nan_to_num(p_values[name], nan=1.0)):
        # The level is divided among the tests that are not rejected yet.
        if not p_values[name] <= LEVEL / (len(p_values) - len(rejected)):
            break
        rejected.add(name)
    return rejected


def describe_error(error: BaseException) -> str:
    """Returns an error's type and message on a single line, the message cut after 120 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}".removesuffix(": ")
