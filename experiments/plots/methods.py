"""The words for each method of `estimate.ESTIMATORS`, and for its assumption."""

from typing import NamedTuple

from audit.statistics.estimate import (
    ASSUMPTION_FREE,
    GAUSSIAN_CURVE,
    HELD_OUT,
    IF_GAUSSIAN,
    IN_SAMPLE,
    NOTHING,
    Estimate,
    Finding,
)


class Method(NamedTuple):
    """A method's name, and its name in legends with what it assumes."""

    label: str
    legend: str


METHODS = {
    IN_SAMPLE: Method("in-sample", "in-sample, as the paper (no bound)"),
    HELD_OUT: Method("held-out", "if the curve is Gaussian: held-out threshold"),
    IF_GAUSSIAN: Method("if Gaussian", "if the curve is Gaussian: one exact test"),
    ASSUMPTION_FREE: Method("assumption-free", "assumption-free"),
}
NO_BOUND = "(no bound)"
ASSUMES = {GAUSSIAN_CURVE: "Gaussian", NOTHING: "nothing"}


def assumes(finding: Finding) -> str:
    """A word for what a bound assumes; for an estimate, that it is none."""
    return NO_BOUND if isinstance(finding, Estimate) else ASSUMES[finding.assumes]
