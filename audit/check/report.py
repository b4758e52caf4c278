"""Reports the results of a check as a text table, JSON and an HTML page."""

import platform
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.version import __version__
from audit.written import printable, write_json

PASSED = "passed"
FAILED = "failed"
UNTRIED = "could not be tried"
LEVEL = 0.001  # the family-wise error rate of all statistical tests in a report
_WIDTH = 80  # characters per line
_INDENT = 35  # the combined width of the columns "check" and "result"
_LIBRARIES = ("numpy", "jax", "jax_privacy", "torch", "opacus", "tensorflow", "dp_accounting")


class Check(NamedTuple):
    """A row of the report.

    Attributes:
      name: its name.
      result: PASSED, FAILED or UNTRIED.
      seen: the names of the bugs and the measurements, or why the check could not run.
    """

    name: str
    result: str
    seen: str


class CheckFinding(NamedTuple):
    """A description of a bug.

    Attributes:
      check: the name of its report row.
      name: its name.
      meaning: the observation, and its effect on privacy.
      fix: an instruction.
    """

    check: str
    name: str
    meaning: str
    fix: str


class CheckOutcome(NamedTuple):
    """The observations of a check, before all tests are judged together.

    Attributes:
      text: the measurements, or why the check could not run.
      tried: True if the check could run.
      findings: the bugs. If the check has statistical tests, bugs are reported only if a test rejects.
      p_values: the p-values of the statistical tests, keyed by name.
      figures: the measurements for JSON and pictures.
    """

    text: str
    tried: bool = True
    findings: Sequence[CheckFinding] = ()
    p_values: Mapping[str, float] = {}
    figures: Mapping[str, Any] = {}


class FindingsError(AssertionError):
    """Raised by `CheckReport.raise_for_findings` for a report that did not pass."""


class CheckReport(NamedTuple):
    """A report on a step, batches, the noise of many steps or a claimed epsilon.

    Attributes:
      subject: "step", "batches", "noise" or "accounting".
      checks: the rows of the table.
      findings: the bugs.
      needed: the names of the rows that must run for the subject to pass.
      p_values: the p-values of the statistical tests, before Holm's correction, keyed by "row: test".
      figures: the measurements for JSON and pictures.
      provenance: the date, code location, stated numbers and library versions.
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
        """True if there are no findings and all needed checks could run."""
        return self.verdict.startswith("PASSED")

    @property
    def verdict(self) -> str:
        """A line that starts with PASSED, FAILED or INCOMPLETE."""
        if self.findings:
            bugs = dict.fromkeys(finding.name for finding in self.findings)
            return f"FAILED: {'; '.join(bugs)}"
        missing = [row for row in self.checks if row.name in self.needed and row.result != PASSED]
        if missing:
            names = ", ".join(row.name for row in missing)
            return f"INCOMPLETE: {names} could not be tried: {missing[0].seen}"
        return "PASSED: no bug was found"

    def add_provenance(self, code: Any, stated: Mapping[str, Any]) -> "CheckReport":
        """Returns the report with provenance, such as the location of `code` and the stated numbers."""
        facts = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        if hasattr(code, "__code__"):
            line = f"line {code.__code__.co_firstlineno}"
            facts["code"] = f"{code.__qualname__} in {code.__code__.co_filename}, {line}"
        facts |= {name: str(value) for name, value in stated.items()}
        facts |= {"audit": __version__, "python": platform.python_version()}
        for library in _LIBRARIES:
            if library in sys.modules:
                facts[library] = str(getattr(sys.modules[library], "__version__", "unknown"))
        return self._replace(provenance=facts)

    def raise_for_findings(self) -> None:
        """Raises FindingsError, with the report as its message, unless the subject passed."""
        if not self.passed:
            raise FindingsError(f"\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as nested dicts and lists."""
        return self._asdict() | {
            "verdict": self.verdict,
            "passed": self.passed,
            "checks": list(map(Check._asdict, self.checks)),
            "findings": list(map(CheckFinding._asdict, self.findings)),
            "level": LEVEL,
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON, with null for infinity and NaN."""
        return write_json(self.to_dict(), indent=2)

    def page(self, path: str | Path) -> Path:
        """Writes the report as an HTML page with figures for failed checks, and returns its path."""
        # Only the page needs Matplotlib.
        from audit import errors
        from audit.report import check_page
        from audit.storage import files

        content = check_page.check_page(self.to_dict())
        return files.write_whole(errors.path("path", path), content, fix="name another file")

    def __str__(self) -> str:
        """Returns the table and the bugs, in lines of at most 80 characters."""
        rule = "-" * _WIDTH
        lines = [f"{'check':<16}{'result':<19}what was seen", rule]
        for name, result, seen in self.checks:
            row = f"{name:<16}{result.replace(FAILED, 'FAILED'):<19}{seen}"
            lines += textwrap.wrap(row, _WIDTH, subsequent_indent=" " * _INDENT)
        lines.append(rule)
        lines += textwrap.wrap(self.verdict, _WIDTH)
        for finding in self.findings:
            lines.append("")
            lines += textwrap.wrap(f"{finding.check}: {finding.name}", _WIDTH)
            for text in (finding.meaning, f"Fix: {finding.fix}"):
                lines += textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        # Layer names and error messages may contain control characters, which a terminal would interpret.
        return printable("\n".join(lines))


def make_report(
    subject: str,
    outcomes: Mapping[str, CheckOutcome],
    findings: Iterable[CheckFinding] = (),
    needed: tuple[str, ...] = (),
) -> CheckReport:
    """Applies Holm's method to all statistical tests of a report, and returns the report.

    Args:
      subject, needed: see `CheckReport`; by default, all rows are needed.
      outcomes: the outcome of each check, keyed by its row name, in the order of the table.
      findings: bugs to report in addition to those in `outcomes`, regardless of the tests.
    """
    rejected = find_rejected_tests({row: outcomes[row].p_values for row in outcomes})
    given = list(findings)
    bugs: list[CheckFinding] = []
    checks = []
    p_values: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for row, outcome in outcomes.items():
        figures |= outcome.figures
        tests = outcome.p_values
        p_values |= {f"{row}: {test}": tests[test] for test in tests}
        bugs_of_row = [bug for bug in given if bug.check == row]
        if rejected[row] or not tests:
            bugs_of_row += outcome.findings
        bugs += bugs_of_row
        result = PASSED
        # A bug is reported in only one row, but may cause rejections in others.
        if bugs_of_row or rejected[row]:
            result = FAILED
        # A p-value is NaN if its test could not run.
        elif not outcome.tried or any(map(np.isnan, tests.values())):
            result = UNTRIED
        names = dict.fromkeys(bug.name for bug in bugs_of_row)
        checks.append(Check(row, result, "; ".join([*names, outcome.text])))
    return CheckReport(
        subject, tuple(checks), tuple(bugs), needed or tuple(outcomes), p_values, figures
    )


def find_rejected_tests(p_values: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Returns, by row, the names of the tests that Holm's method rejects at the family-wise error rate LEVEL.

    A test with a p-value of NaN never rejects, but still counts as a test.
    """
    # Sorting puts NaN last.
    values = np.sort([value for tests in p_values.values() for value in tests.values()])
    # Holm's method divides the level by the number of tests not rejected so far.
    is_small = values <= LEVEL / np.arange(len(values), 0, -1)
    num_rejected = np.argmin([*is_small, False])  # the number of tests before the first False
    return {
        row: [test for test in tests if tests[test] in values[:num_rejected]]
        for row, tests in p_values.items()
    }
