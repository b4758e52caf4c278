"""What a check found: a table for a terminal, findings with their mend, JSON, a page."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PASSED, FAILED, UNTRIED = "passed", "failed", "could not be tried"
LEVEL = 0.001  # of all statistical tests of a report together, by Holm's method
_COLUMNS, _INDENT = 80, 35


class Check(NamedTuple):
    """A row of the report: passed, failed or could not be tried, and what was seen."""

    name: str
    result: str
    seen: str


class CheckFinding(NamedTuple):
    """A bug by its name, the check that found it, what it means and how to mend it."""

    check: str
    name: str
    meaning: str
    mend: str


class FindingsError(AssertionError):
    """Raised by `raise_for_findings`."""


@dataclass(frozen=True)
class CheckReport:
    """The checks of a step, of batches or of a claimed epsilon; printed it is their table and the findings.

    subject: "step", "batches" or "accounting". needed: checks without which it has not passed.
    p_values: of every statistical test, before Holm's correction. figures: what was measured.
    pictures: arrays of numbers that the page draws, by what they are.
    """

    subject: str
    checks: tuple[Check, ...]
    findings: tuple[CheckFinding, ...]
    needed: tuple[str, ...] = ()
    p_values: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing was found and every check that is needed could be tried."""
        return not self.findings and all(c.result == PASSED for c in self.checks if c.name in self.needed)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.findings:
            names = "; ".join(dict.fromkeys(finding.name for finding in self.findings))
            return f"FAILED: {names}"
        missing = [c.name for c in self.checks if c.name in self.needed and c.result != PASSED]
        return (
            f"INCOMPLETE: {', '.join(missing)} could not be tried" if missing else "PASSED: no bug was found"
        )

    def raise_for_findings(self) -> None:
        """Raises FindingsError, with the report as its message, where something was found."""
        if self.findings:
            raise FindingsError(f"\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """All but the pictures, for json.dumps."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "findings": [finding._asdict() for finding in self.findings],
            "level": LEVEL,
            "p_values": dict(self.p_values),
            "figures": dict(self.figures),
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, default=float)

    def page(self, path: str | Path) -> Path:
        """Writes the report with pictures, an HTML page; returns its path."""
        from audit import values
        from audit.report import check_page
        from audit.storage import files

        content = check_page.check_page(self.to_dict(), self.pictures)
        return files.write_whole(values.path("path", path), content)

    def __str__(self) -> str:
        lines = [f"{'check':<16}{'result':<19}what was seen", "-" * _COLUMNS]
        for check in self.checks:
            result = check.result.upper() if check.result == FAILED else check.result
            first = f"{check.name:<16}{result:<19}"
            lines += textwrap.wrap(first + check.seen, _COLUMNS, subsequent_indent=" " * _INDENT)
        lines += ["-" * _COLUMNS, *textwrap.wrap(self.verdict, _COLUMNS)]
        for finding in self.findings:
            lines += ["", *textwrap.wrap(f"{finding.check}: {finding.name}", _COLUMNS)]
            for text in (finding.meaning, f"Mend: {finding.mend}"):
                lines += textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)


def refused(p_values: Mapping[str, float], level: float = LEVEL) -> set[str]:
    """The tests that Holm's method rejects at the level of all together."""
    found: set[str] = set()
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda one: one[1])):
        if p > level / (len(p_values) - rank):
            break
        found.add(name)
    return found


def row(name: str, findings: Sequence[CheckFinding], seen: str, tried: bool = True) -> Check:
    """A check's row: failed where a finding is its own."""
    names = [finding.name for finding in findings if finding.check == name]
    return Check(name, FAILED, "; ".join(names)) if names else Check(name, PASSED if tried else UNTRIED, seen)


def one_line(error: Exception) -> str:
    """An error of the caller's code, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__
