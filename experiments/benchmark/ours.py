"""The benchmark's records of our own estimators, made from those of `audit.methods`.

A method that is added there is measured here too.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from audit.calibration.calibration import ENOUGH_RUNS, FAIR, GAUSSIAN_CURVE
from audit.errors import InputError
from audit.evidence import canaries, fair_coins
from audit.evidence.canaries import Coins, Fresh
from audit.methods import (
    claimed_curve,
    estimate,
    exact_null,
    gaussian_curve,
    lifted,
    one_run_bounds,
)
from audit.methods.estimate import ScoreMethod
from audit.methods.exact_null import DirectionsMethod
from audit.methods.gaussian_curve import CURVE_LEVEL
from audit.methods.lifted import CanaryMethod
from audit.methods.method import NO_BOUND, Assumption
from experiments.benchmark.contract import (
    DIRECTIONS,
    ONE_CANARY,
    ONE_RUN,
    OURS,
    SEVERAL,
    Estimator,
)

_COSTS = {"lifted": 5, "lifted_gaussian": 10}  # of methods whose audits take seconds
# What methods of a single run's coins assume beyond fair coins, which their records do not say.
_COINS_ASSUMED = {
    one_run_bounds.ONE_RUN_GAUSSIAN: Assumption(
        "", "", f"{one_run_bounds.FAIR_COINS.sentence}; a Gaussian trade-off curve", gaussian=True
    )
}


def from_scores(method: ScoreMethod, coins: Coins, delta: float, confidence: float) -> float:
    """Returns a method's lower bound on epsilon from runs with a single canary each.

    Raises:
      InputError: The method assumes a Gaussian trade-off curve, and the scores refute it. An audit's page
        marks such a bound as refuted; here it counts as a refusal.
    """
    scores_in, scores_out = coins.pooled()
    if method.assumes.gaussian and gaussian_curve.examine(scores_in, scores_out) < CURVE_LEVEL:
        raise InputError("the scores refute a Gaussian curve")
    return method.compute(scores_in, scores_out, delta, confidence).epsilon


def from_canaries(method: CanaryMethod, coins: Coins, delta: float, confidence: float) -> float:
    """Returns a method's lower bound on epsilon from runs with several canaries each.

    The coins are treated as a caller's (`given`), which this library did not toss. They are refused only
    where fair coins would very rarely fall like them. Slightly unfair coins pass, so that the bound also pays
    for confidence limits of the probability with which a canary is in.

    Raises:
      InputError: Fair independent coins would very rarely fall like these.
    """
    fair_coins.require_fair(coins.presence)
    checked = canaries.make_coins(coins.scores, coins.presence)
    return method.bound(checked._replace(given=True), delta, confidence).epsilon


def from_coins(
    compute: one_run_bounds.CoinMethod, coins: Coins, delta: float, confidence: float
) -> float:
    """Returns epsilon by a method for the coins of a single run."""
    return compute(one_run_bounds.weigh_coins(coins), delta, confidence).epsilon


def from_directions(
    method: DirectionsMethod, directions: Fresh, delta: float, confidence: float
) -> float:
    """Returns a method's lower bound on epsilon from fresh directions.

    Args:
      method: The method.
      directions: The cosines of canaries whose directions each run drew afresh.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    # `plain`: a canary's cosine depends on no other canary's direction. `given`: the cosines are a caller's,
    # not from this library's own training runs.
    marked = directions._replace(plain=True, given=True)
    return method.compute(marked, delta, confidence).epsilon


def examine_directions(directions: Fresh, mu: float, confidence: float) -> bool:
    """Returns whether a betting test refutes the claim of mu-GDP, Gaussian differential privacy.

    The test compares the share of canaries whose cosine exceeds a threshold with the largest share that the
    claim allows (`claimed_curve.examine_claim`).

    Args:
      directions: The cosines of the canaries' directions.
      mu: The claimed mu.
      confidence: 1 minus the probability with which the test may refute a true claim.
    """
    counted = exact_null.count_exceedances(directions)
    allowed_power = claimed_curve.gaussian_power(mu)  # by false-positive rate
    return claimed_curve.examine_claim(counted, allowed_power, confidence).refuted


def _make_estimator(
    name: str, design: str, documented: Assumption, epsilon: Callable[[Any, float, float], float]
) -> Estimator:
    """Returns the benchmark's record of a method of `audit.methods`, from what its own record assumes."""
    needs = {
        FAIR: design in (SEVERAL, ONE_RUN),  # where each canary is in or out by a coin
        # `in_sample` computes epsilon by a Gaussian curve, though its record does not say so.
        GAUSSIAN_CURVE: documented.gaussian or name == estimate.IN_SAMPLE,
        ENOUGH_RUNS: "many runs" in documented.text,  # the record says so only in words
    }
    return Estimator(
        name=f"ours: {name}",
        kind=OURS,
        design=design,
        # The words for a page; where there are none, those of the JSON.
        assumption=documented.sentence or documented.text,
        epsilon=epsilon,
        assumes=frozenset(assumption for assumption, is_needed in needs.items() if is_needed),
        claims_level=documented.word != NO_BOUND,
        cost=_COSTS.get(name, 1),
        examine=examine_directions if design == DIRECTIONS else None,
    )


def _make_estimators() -> Iterator[Estimator]:
    """Yields the records of all our estimators, one design after the other."""
    for name, of_scores in estimate.METHODS.items():
        epsilon: Callable[[Any, float, float], float] = partial(from_scores, of_scores)
        yield _make_estimator(name, ONE_CANARY, of_scores.assumes, epsilon)
    for name, of_canaries in lifted.METHODS.items():
        epsilon = partial(from_canaries, of_canaries)
        yield _make_estimator(name, SEVERAL, of_canaries.assumes, epsilon)
    for name, compute in one_run_bounds.OF_COINS.items():
        # These methods are plain functions, without a record of what they assume.
        assumed = _COINS_ASSUMED.get(name, one_run_bounds.FAIR_COINS)
        yield _make_estimator(name, ONE_RUN, assumed, partial(from_coins, compute))
    for name, of_directions in exact_null.METHODS.items():
        epsilon = partial(from_directions, of_directions)
        yield _make_estimator(name, DIRECTIONS, of_directions.assumes, epsilon)


ESTIMATORS = tuple(_make_estimators())
