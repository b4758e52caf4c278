"""Our own estimators, from the records of `audit.statistics`: a bound added there is measured here."""

from collections.abc import Callable

from audit.errors import InputError
from audit.statistics import canaries, estimate, exact_null, gaussian_curve, lifted, one_run_bounds
from audit.statistics.estimate import ScoreMethod
from audit.statistics.exact_null import DirectionsMethod
from audit.statistics.gaussian_curve import CURVE_LEVEL
from audit.statistics.lifted import CanaryMethod
from audit.statistics.method import NO_BOUND, Method
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
    Estimator,
)

Function = Callable[[AuditScores, float, float], float]
_BY_MU = (estimate.IN_SAMPLE,)  # estimates whose epsilon follows from a Gaussian curve
_SLOW = {"lifted": 5, "lifted_gaussian": 10}  # audits that take seconds


def _of_scores(method: ScoreMethod) -> Function:
    """A method of one canary a run; what a page marks as refuted is a refusal."""

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        worlds = evidence.worlds()
        if method.assumes.gaussian and gaussian_curve.examine(*worlds).p_value < CURVE_LEVEL:
            raise InputError("the scores refute a Gaussian curve")
        return method.compute(*worlds, delta, confidence).epsilon

    return epsilon


def _of_canaries(method: CanaryMethod) -> Function:
    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        design = canaries.coins(evidence.scores, evidence.presence)
        return method.bound(design, delta, confidence).epsilon

    return epsilon


def _of_coins(method: one_run_bounds.OneRunMethod[one_run_bounds.CoinEvidence]) -> Function:
    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        presence = evidence.presence.reshape(1, -1).astype(bool)
        coins = canaries.Coins(evidence.scores.reshape(1, -1), presence, True)
        return method.compute(one_run_bounds.of_coins(coins), delta, confidence).epsilon

    return epsilon


def _of_directions(method: DirectionsMethod) -> Function:
    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        design = canaries.Fresh(evidence.scores, evidence.presence, evidence.dimension, True, True)
        return method.compute(design, delta, confidence).epsilon

    return epsilon


def _estimator(method: Method, design: str, epsilon: Function, *more: str) -> Estimator:
    assumed = method.assumes
    words = {GAUSSIAN: assumed.gaussian or method.name in _BY_MU, ENOUGH_RUNS: "many runs" in assumed.text}
    assumes = frozenset([*more, *(word for word, holds in words.items() if holds)])
    level, cost = assumed.word != NO_BOUND, _SLOW.get(method.name, 1)
    name, source = f"ours: {method.name}", f"audit.statistics, {method.name}"
    says = assumed.sentence or assumed.text
    return Estimator(name, OURS, source, design, says, assumes, epsilon, level, cost=cost)


def _of_one_run(method: one_run_bounds.OneRunMethod[one_run_bounds.CoinEvidence]) -> Estimator:
    curve = frozenset([GAUSSIAN]) if method.name == one_run_bounds.ONE_RUN_GAUSSIAN else frozenset()
    says = one_run_bounds.FAIR_COINS.sentence + ("; a Gaussian trade-off curve" if curve else "")
    name, source = f"ours: {method.name}", f"audit.statistics, {method.name}"
    return Estimator(name, OURS, source, ONE_RUN, says, curve | {FAIR}, _of_coins(method))


ESTIMATORS = (
    *(_estimator(one, ONE_CANARY, _of_scores(one)) for one in estimate.METHODS.values()),
    *(_estimator(one, SEVERAL, _of_canaries(one), FAIR) for one in lifted.METHODS.values()),
    *map(_of_one_run, one_run_bounds.OF_COINS.values()),
    *(_estimator(one, DIRECTIONS, _of_directions(one)) for one in exact_null.METHODS.values()),
)
