"""Makes records of this project's estimators from the methods in `audit.methods`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from audit.calibration.calibration import ENOUGH_RUNS, FAIR, GAUSSIAN_CURVE
from audit.errors import require
from audit.evidence import canaries, fair_coins
from audit.evidence.canaries import Coins, Fresh
from audit.methods import estimate, exact_null, gaussian_curve, lifted, one_run_bounds
from audit.methods.estimate import ScoreMethod
from audit.methods.gaussian_curve import CURVE_LEVEL
from audit.methods.lifted import CanaryMethod
from audit.methods.method import NO_BOUND, Assumption
from experiments.benchmark.contract import DIRECTIONS, ONE_CANARY, ONE_RUN, OURS, SEVERAL, Estimator

_COSTS = {"lifted": 5, "lifted_gaussian": 10}  # the costs of slow methods (`Estimator.cost`)
_ASSUMPTIONS = {
    one_run_bounds.ONE_RUN_GUESSES: one_run_bounds.FAIR_COINS,
    one_run_bounds.ONE_RUN_GAUSSIAN: one_run_bounds.FAIR_COINS_GAUSSIAN,
}


def from_scores(method: ScoreMethod, coins: Coins, delta: float, confidence: float) -> float:
    """Returns a method's lower bound on epsilon from runs with one canary each.

    Raises InputError if the method assumes a Gaussian trade-off curve and a test of the scores rejects this
    curve.
    """
    worlds = coins.pooled()
    if method.assumes.gaussian:
        p_value = gaussian_curve.examine(*worlds)
        require(p_value >= CURVE_LEVEL, "the scores refute a Gaussian curve")
    return method.compute(*worlds, delta, confidence).epsilon


def from_canaries(method: CanaryMethod, coins: Coins, delta: float, confidence: float) -> float:
    """Returns a method's lower bound on epsilon from runs with several canaries each.

    Raises InputError if fair independent coins are very unlikely to produce these presence bits. Slightly
    biased coins pass this test, so the bound replaces the coin probability 1/2 with confidence limits
    (`from_user=True`).
    """
    fair_coins.require_fair(coins.presence)
    checked = canaries.make_coins(coins.scores, coins.presence)
    return method.bound(checked._replace(from_user=True), delta, confidence).epsilon


def from_coins(
    compute: one_run_bounds.CoinMethod, coins: Coins, delta: float, confidence: float
) -> float:
    """Returns a method's lower bound on epsilon from the coins of a single run."""
    return compute(coins, delta, confidence).epsilon


def from_directions(
    method: ScoreMethod, directions: Fresh, delta: float, confidence: float
) -> float:
    """Returns a method's lower bound on epsilon from cosines with new directions in every run."""
    # `audit.cosines` marks a user's cosines in the same way: a cosine does not depend on other canaries'
    # directions, and the user drew the directions.
    marked = directions._replace(separate=True, from_user=True)
    return method.compute(marked, delta, confidence).epsilon


def _make_estimator(
    name: str, design: str, documented: Assumption, epsilon: Callable[..., float]
) -> Estimator:
    """Returns the benchmark record for a method.

    Args:
      documented: The method's documented assumptions.
      epsilon: A function (evidence, delta, confidence) -> the method's lower bound on epsilon.
    """
    assumes = []
    if design in (SEVERAL, ONE_RUN):  # coins insert the canaries
        assumes.append(FAIR)
    # The documentation of the in-sample estimate does not mention that it assumes a Gaussian curve.
    if documented.gaussian or name == estimate.IN_SAMPLE:
        assumes.append(GAUSSIAN_CURVE)
    if documented == lifted.MANY_RUNS:  # all asymptotic bounds
        assumes.append(ENOUGH_RUNS)
    return Estimator(
        name=f"ours: {name}",
        kind=OURS,
        design=design,
        assumption=documented.sentence,
        epsilon=epsilon,
        assumes=assumes,
        claims_level=documented.word != NO_BOUND,
        cost=_COSTS.get(name, 1),
    )


def _make_estimators() -> Iterator[Estimator]:
    """Yields the records of all methods, grouped by design."""
    # Rows: a design, its methods by name, and the function that calls a method.
    designs: Any = (
        (ONE_CANARY, estimate.METHODS, from_scores),
        (SEVERAL, lifted.METHODS, from_canaries),
        (ONE_RUN, one_run_bounds.OF_COINS, from_coins),
        (DIRECTIONS, exact_null.METHODS, from_directions),
    )
    for design, methods, call in designs:
        for name, method in methods.items():
            # Methods for a single run's coins have no `assumes` attribute.
            documented = _ASSUMPTIONS.get(name) or method.assumes
            yield _make_estimator(name, design, documented, partial(call, method))


ESTIMATORS = tuple(_make_estimators())
