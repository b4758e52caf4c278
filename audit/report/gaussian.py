"""What the scores say of a Gaussian trade-off curve, in the words and colours of figures."""

from typing import NamedTuple

from audit.report.style import BLACK, VERMILION
from audit.statistics.conclusion import Conclusion, method_of
from audit.statistics.estimate import Finding


class Standing(NamedTuple):
    """What the test found and the colour of that; a mark for what assumes a Gaussian curve, empty where
    nothing speaks against the assumption, and whether such is faded."""

    found: str
    color: str
    mark: str
    faded: bool = False


def standing(conclusion: Conclusion) -> Standing:
    """How a Gaussian curve stands after its test; nothing is said where it was not made."""
    if conclusion.curve is None:
        return Standing("", BLACK, "")
    if conclusion.refutes_gaussian:
        return Standing(f"Gaussian curve refuted, {conclusion.p_value()}", VERMILION, "(refuted)", True)
    tested = f"{conclusion.p_value()}, power {conclusion.curve_power:.0%}"
    if conclusion.doubts_gaussian:
        return Standing(f"too few runs to tell, {tested}", BLACK, "" if conclusion.reason else "(doubtful)")
    return Standing(f"no evidence against Gaussian, {tested}", BLACK, "")


def mark(finding: Finding, conclusion: Conclusion) -> str:
    """The mark of a bound that assumes a Gaussian curve; empty for other findings."""
    return standing(conclusion).mark if method_of(finding).assumes.gaussian else ""
