"""Our own estimators, from the records of `audit.methods`: a bound added there is measured here."""

from audit.errors import InputError
from audit.evidence import canaries
from audit.methods import estimate, exact_null, gaussian_curve, lifted, one_run_bounds
from audit.methods.estimate import ScoreMethod
from audit.methods.exact_null import DirectionsMethod
from audit.methods.gaussian_curve import CURVE_LEVEL
from audit.methods.lifted import CanaryMethod
from audit.methods.method import NO_BOUND, Method
from experiments.benchmark.contract import (
    DIRECTIONS,
    ENOUGH_RUNS,
    FAIR,
    GAUSSIAN,
    ONE_CANARY,
    ONE_RUN,
    OURS,
    SEVERAL,
    AuditScores,
    EpsilonFunction,
    Estimator,
)

_BY_MU = (estimate.IN_SAMPLE,)  # estimates whose epsilon follows from a Gaussian curve
_COSTS = {"lifted": 5, "lifted_gaussian": 10}  # an audit takes seconds


def _estimate_from_scores(method: ScoreMethod) -> EpsilonFunction:
    """Returns a method of one canary a run.

    What a page marks as refuted, scores that have no Gaussian trade-off curve, is a refusal here.
    """

    def epsilon(audit: AuditScores, delta: float, confidence: float) -> float:
        scores_in, scores_out = audit.worlds()
        if method.assumes.gaussian:
            curve = gaussian_curve.examine(scores_in, scores_out)
            if curve.p_value < CURVE_LEVEL:
                raise InputError("the scores refute a Gaussian curve")
        return method.compute(scores_in, scores_out, delta, confidence).epsilon

    return epsilon


def _estimate_from_canaries(method: CanaryMethod) -> EpsilonFunction:
    """Returns a method of several canaries a run."""

    def epsilon(audit: AuditScores, delta: float, confidence: float) -> float:
        design = canaries.coins(audit.scores, audit.presence)
        return method.bound(design, delta, confidence).epsilon

    return epsilon


def _estimate_from_coins(name: str) -> EpsilonFunction:
    """Returns a method of the coins of one run."""

    def epsilon(audit: AuditScores, delta: float, confidence: float) -> float:
        presence = audit.presence.reshape(1, -1).astype(bool)
        coins = canaries.Coins(audit.scores.reshape(1, -1), presence, True)
        evidence = one_run_bounds.weigh_coins(coins)
        return one_run_bounds.OF_COINS[name](evidence, delta, confidence).epsilon

    return epsilon


def _estimate_from_directions(method: DirectionsMethod) -> EpsilonFunction:
    """Returns a method of fresh directions."""

    def epsilon(audit: AuditScores, delta: float, confidence: float) -> float:
        design = canaries.Fresh(audit.scores, audit.presence, audit.dimension, True, True)
        return method.compute(design, delta, confidence).epsilon

    return epsilon


def _make_estimator(method: Method, design: str, epsilon: EpsilonFunction) -> Estimator:
    """Returns the record of a method of `audit.methods`."""
    documented = method.assumes
    assumes = set()
    if design == SEVERAL:
        assumes.add(FAIR)
    if documented.gaussian or method.name in _BY_MU:
        assumes.add(GAUSSIAN)
    if "many runs" in documented.text:
        assumes.add(ENOUGH_RUNS)
    return Estimator(
        name=f"ours: {method.name}",
        kind=OURS,
        source=f"audit.methods, {method.name}",
        design=design,
        assumption=documented.sentence or documented.text,
        assumes=frozenset(assumes),
        epsilon=epsilon,
        level=documented.word != NO_BOUND,
        cost=_COSTS.get(method.name, 1),
    )


def _make_coin_estimator(name: str) -> Estimator:
    """Returns the record of a method of one run's coins."""
    assumption = one_run_bounds.FAIR_COINS.sentence
    assumes = {FAIR}
    if name == one_run_bounds.ONE_RUN_GAUSSIAN:
        assumption += "; a Gaussian trade-off curve"
        assumes.add(GAUSSIAN)
    return Estimator(
        name=f"ours: {name}",
        kind=OURS,
        source=f"audit.methods, {name}",
        design=ONE_RUN,
        assumption=assumption,
        assumes=frozenset(assumes),
        epsilon=_estimate_from_coins(name),
    )


def _make_estimators() -> list[Estimator]:
    """Returns a record for each of our estimators, by design."""
    estimators = []
    for score_method in estimate.METHODS.values():
        epsilon = _estimate_from_scores(score_method)
        estimators.append(_make_estimator(score_method, ONE_CANARY, epsilon))
    for canary_method in lifted.METHODS.values():
        epsilon = _estimate_from_canaries(canary_method)
        estimators.append(_make_estimator(canary_method, SEVERAL, epsilon))
    for name in one_run_bounds.OF_COINS:
        estimators.append(_make_coin_estimator(name))
    for directions_method in exact_null.METHODS.values():
        epsilon = _estimate_from_directions(directions_method)
        estimators.append(_make_estimator(directions_method, DIRECTIONS, epsilon))
    return estimators


ESTIMATORS = tuple(_make_estimators())
