"""What the scores say of a Gaussian trade-off curve, in the words and colours of figures."""

from typing import NamedTuple

from audit.statistics.conclusion import Conclusion
from audit.statistics.estimate import GAUSSIAN_CURVE, Bound, Finding
from experiments.plots.style import BLACK, VERMILION


class Standing(NamedTuple):
    """What the test found, its colour, and a mark for what assumes a Gaussian curve.

    What has a mark is drawn in grey; the mark is empty where nothing speaks against the assumption.
    """

    found: str
    color: str
    mark: str


def standing(conclusion: Conclusion) -> Standing:
    """How a Gaussian curve stands after its test; nothing is said where it was not made."""
    if conclusion.curve is None:
        return Standing("", BLACK, "")
    if conclusion.refutes_gaussian:
        return Standing(f"Gaussian curve refuted, {conclusion.p_value()}", VERMILION, "(refuted)")
    return Standing(f"no evidence against Gaussian, {conclusion.p_value()}", BLACK, "")


def mark(finding: Finding, conclusion: Conclusion) -> str:
    """The mark of a bound that assumes a Gaussian curve; empty for others."""
    assumes = isinstance(finding, Bound) and finding.assumes == GAUSSIAN_CURVE
    return standing(conclusion).mark if assumes else ""
