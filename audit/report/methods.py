"""The words for each method of `estimate.ESTIMATORS` and `lifted.METHODS`, and for its assumption."""

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
from audit.statistics.lifted import GAUSSIAN_AND_MANY_RUNS, MANY_RUNS
from audit.statistics.names import CLUSTERED, LIFTED, LIFTED_GAUSSIAN


class Method(NamedTuple):
    """A method's name, and its name in legends with what it assumes."""

    label: str
    legend: str


METHODS = {
    IN_SAMPLE: Method("in-sample", "in-sample, as the paper (no bound)"),
    HELD_OUT: Method("held-out", "if the curve is Gaussian: held-out threshold"),
    IF_GAUSSIAN: Method("if Gaussian", "if the curve is Gaussian: one exact test"),
    ASSUMPTION_FREE: Method("assumption-free", "assumption-free"),
    LIFTED_GAUSSIAN: Method("lifted, if Gaussian", "if the curve is Gaussian: betting on runs' averages"),
    CLUSTERED: Method("clustered", "if the curve is Gaussian and runs are many: standard error over runs"),
    LIFTED: Method("lifted", "assumption-free: betting on runs' averages"),
    **{
        f"lidp_{name.lower()}_{order}": Method(
            f"LiDP {name} {order}", f"LiDP, {name} of order {order}{proviso}"
        )
        for name, proviso in (("Wilson", ", if runs are many"), ("Bernstein", ""))
        for order in (1, 2, 4)
    },
}
NO_BOUND = "(no bound)"
ASSUMES = {
    GAUSSIAN_CURVE: "Gaussian",
    NOTHING: "nothing",
    MANY_RUNS: "many runs",
    GAUSSIAN_AND_MANY_RUNS: "Gaussian, runs",
}


def assumes(finding: Finding) -> str:
    """A word for what a bound assumes; for an estimate, that it is none."""
    return NO_BOUND if isinstance(finding, Estimate) else ASSUMES[finding.assumes]
