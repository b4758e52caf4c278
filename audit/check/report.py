"""What a check found: a table for a terminal, findings with their mend, JSON, a page."""

import itertools
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from audit.check.findings import CheckFinding

PASSED, FAILED, UNTRIED = "passed", "failed", "could not be tried"
LEVEL = 0.001  # of all statistical tests of a report together, by Holm's method
_COLUMNS, _INDENT = 80, 35


class Check(NamedTuple):
    """A row of the report: passed, failed or could not be tried, and what was seen."""

    name: str
    result: str
    seen: str


class CheckOutcome(NamedTuple):
    """What a check saw where nothing is wrong, whether it could be tried, what is wrong for certain, the
    p-values of its tests by what was tested, and figures."""

    text: str
    tried: bool = True
    findings: Sequence[CheckFinding] = ()
    p_values: Mapping[str, float] = {}
    figures: Mapping[str, Any] = {}


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
        return self.verdict.startswith("PASSED")

    @property
    def verdict(self) -> str:
        """One line."""
        if self.findings:
            return f"FAILED: {'; '.join(dict.fromkeys(finding.name for finding in self.findings))}"
        missing = [c.name for c in self.checks if c.name in self.needed and c.result != PASSED]
        untried = f"INCOMPLETE: {', '.join(missing)} could not be tried"
        return untried if missing else "PASSED: no bug was found"

    def raise_for_findings(self) -> None:
        """Raises FindingsError, with the report as its message, where something was found."""
        if self.findings:
            raise FindingsError(f"\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """All but the pictures, for json.dumps."""
        found = {name: getattr(self, name) for name in ("subject", "verdict", "passed")}
        found |= {name: [one._asdict() for one in getattr(self, name)] for name in ("checks", "findings")}
        return found | {"level": LEVEL, "p_values": dict(self.p_values), "figures": dict(self.figures)}

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
        for name, result, seen in self.checks:
            first = f"{name:<16}{result.upper() if result == FAILED else result:<19}"
            lines += textwrap.wrap(first + seen, _COLUMNS, subsequent_indent=" " * _INDENT)
        lines += ["-" * _COLUMNS, *textwrap.wrap(self.verdict, _COLUMNS)]
        for check, name, meaning, mend in self.findings:
            lines += ["", *textwrap.wrap(f"{check}: {name}", _COLUMNS)]
            for text in (meaning, f"Mend: {mend}"):
                lines += textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)


def concluded(
    subject: str,
    seen: Mapping[str, CheckOutcome],
    needed: tuple[str, ...],
    named: Callable[[list[CheckFinding], dict[str, list[str]]], Sequence[CheckFinding]] = lambda found, _: (
        found
    ),
    **pictures: Any,
) -> CheckReport:
    """The report of what the checks saw, by their rows in order; `named` gives the findings, of those that
    are certain and, by row, what the rejected tests are of."""
    p_values = {f"{row}: {what}": p for row, one in seen.items() for what, p in one.p_values.items()}
    rejected, order = refused(p_values), list(seen)
    odd = {row: [what for what in one.p_values if f"{row}: {what}" in rejected] for row, one in seen.items()}
    found = named([finding for one in seen.values() for finding in one.findings], odd)
    each = {(one.check, one.name): one for one in found}.values()
    unique, checks = sorted(each, key=lambda one: order.index(one.check)), []
    for row, one in seen.items():
        wrong = "; ".join(finding.name for finding in unique if finding.check == row)
        wrong = wrong or ("otherwise than expected, by what is found below" if odd[row] else "")
        result = FAILED if wrong else PASSED if one.tried else UNTRIED
        checks.append(Check(row, result, wrong or one.text))
    figures = {key: value for one in seen.values() for key, value in one.figures.items()}
    return CheckReport(subject, tuple(checks), tuple(unique), needed, p_values, figures, pictures)


def refused(p_values: Mapping[str, float]) -> set[str]:
    """The tests that Holm's method rejects at the level of all together."""
    ranked = enumerate(sorted(p_values.items(), key=lambda one: one[1]))
    kept = itertools.takewhile(lambda one: one[1][1] <= LEVEL / (len(p_values) - one[0]), ranked)
    return {name for _, (name, _) in kept}


def one_line(error: Exception) -> str:
    """An error of the caller's code, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__
