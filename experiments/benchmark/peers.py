"""Estimators of installable packages, each called as its documentation says; none is imported before it
is called. Strategies that split at random get a seed, so that a row of the benchmark can be repeated."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.benchmark.contract import (
    FAIR,
    GAUSSIAN,
    INDEPENDENT,
    ONE_CANARY,
    ONE_RUN,
    PEER,
    SEVERAL,
    AuditScores,
    Estimator,
)

_GRID = 1_000
_FIXED = 0.5  # a threshold that is chosen without looking


def _auditor(evidence: AuditScores) -> Any:
    from jax_privacy import auditing

    return auditing.CanaryScoreAuditor(*evidence.worlds())


def _strategy(name: str) -> Any:
    from jax_privacy import auditing

    if name == "Bonferroni":
        return auditing.Bonferroni()
    if name == "Explicit":
        return auditing.Explicit(_FIXED)
    return getattr(auditing, name)(seed=0)


def jax_bound(method: str, strategy: str, evidence: AuditScores, delta: float, confidence: float) -> float:
    """A bound of jax-privacy that takes a threshold strategy."""
    found = getattr(_auditor(evidence), method)
    return float(found(1 - confidence, delta, threshold_strategy=_strategy(strategy)))


def jax_gdp(evidence: AuditScores, delta: float, confidence: float) -> float:
    """jax-privacy's bound by a Gaussian trade-off curve."""
    return float(_auditor(evidence).epsilon_from_gdp(1 - confidence, delta))


def jax_counts(evidence: AuditScores, delta: float, confidence: float) -> float:
    """jax-privacy's estimate from counts, which has no level."""
    return float(_auditor(evidence).epsilon_raw_counts(delta=delta))


def _opake(evidence: AuditScores) -> Any:
    from opake import auditing
    from opake.auditing.types import CoinFlip

    scores, bits = evidence.scores[0], evidence.presence[0]
    places = np.arange(len(scores))
    flip = CoinFlip(len(scores), places, bits, places[bits], places[~bits], len(scores))
    return auditing.one_run(auditing.canary_scores(scores, canary_indices=places), coin_flip=flip)


def opake_gdp(evidence: AuditScores, delta: float, confidence: float) -> float:
    """opake-auditing's default method, on the coarsest grid that its documentation allows: the usual one
    takes ten times as long."""
    found = _opake(evidence).gdp(grid_size=_GRID)
    return float(found.epsilon_at(delta=delta, significance=1 - confidence))


def opake_eps_delta(evidence: AuditScores, delta: float, confidence: float) -> float:
    """opake-auditing's method for any mechanism."""
    return float(_opake(evidence).eps_delta().epsilon_at(delta=delta, significance=1 - confidence))


def _of_jax(
    name: str,
    design: str,
    says: str,
    epsilon: Callable[[AuditScores, float, float], float],
    *assumes: str,
    level: bool = True,
    cost: int = 1,
) -> Estimator:
    source = "jax-privacy, CanaryScoreAuditor"
    called = f"jax-privacy: {name}"
    return Estimator(
        *(called, PEER, source, design, says, frozenset(assumes), epsilon, level),
        *("jax-privacy", "jax_privacy", cost),
    )


def _of_opake(
    name: str, says: str, epsilon: Callable[[AuditScores, float, float], float], *assumes: str, cost: int
) -> Estimator:
    packages = "opake-auditing", "opake"
    return Estimator(
        *(f"opake: {name}", PEER, "opake-auditing, one_run", ONE_RUN, says, frozenset(assumes), epsilon),
        *(True, *packages, cost),
    )


_HELD = "scores of held-in and held-out canaries"
_CP, _RUN, _F_DP = "epsilon_clopper_pearson", "epsilon_one_run", "epsilon_one_run_fdp"
ESTIMATORS = (
    _of_jax("epsilon_from_gdp", ONE_CANARY, f"{_HELD}; GDP", jax_gdp, GAUSSIAN),
    _of_jax("epsilon_raw_counts", ONE_CANARY, f"{_HELD}; an estimate", jax_counts, level=False),
    *(
        _of_jax(f"clopper_pearson, {way}", ONE_CANARY, _HELD, partial(jax_bound, _CP, way), cost=cost)
        for way, cost in (("Bonferroni", 1), ("Split", 1), ("MultiSplit", 4), ("Explicit", 1))
    ),
    _of_jax(
        *(
            "clopper_pearson, pooled",
            SEVERAL,
            f"{_HELD}, of all runs; their independence is not said to matter",
        ),
        partial(jax_bound, _CP, "Bonferroni"),
        INDEPENDENT,
    ),
    *(
        _of_jax(f"one_run, {way}", ONE_RUN, f"{_HELD} of a single run", partial(jax_bound, _RUN, way), FAIR)
        for way in ("Bonferroni", "Split")
    ),
    *(
        _of_jax(
            *(f"one_run_fdp, {way}", ONE_RUN, f"{_HELD} of a single run; its source: a Gaussian curve"),
            partial(jax_bound, _F_DP, way),
            *(FAIR, GAUSSIAN),
            cost=10,
        )
        for way in ("Bonferroni", "Split")
    ),
    _of_opake("gdp", "fair coins; mu-GDP, its default", opake_gdp, FAIR, GAUSSIAN, cost=20),
    _of_opake("eps_delta", "fair coins; mechanism-agnostic", opake_eps_delta, FAIR, cost=1),
)
