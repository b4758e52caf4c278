"""Estimators of installable packages, each called as its documentation says.

No package is imported before it is called. Strategies that split at random get a seed, so that a row of the
benchmark can be repeated.
"""

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

_GRID_SIZE = 1_000
_FIXED_THRESHOLD = 0.5  # chosen without looking at the scores


def _make_jax_auditor(audit: AuditScores) -> Any:
    """Returns jax-privacy's auditor of the scores."""
    from jax_privacy import auditing

    scores_in, scores_out = audit.worlds()
    return auditing.CanaryScoreAuditor(scores_in, scores_out)


def _make_jax_strategy(name: str) -> Any:
    """Returns jax-privacy's threshold strategy of that name."""
    from jax_privacy import auditing

    if name == "Bonferroni":
        return auditing.Bonferroni()
    if name == "Explicit":
        return auditing.Explicit(_FIXED_THRESHOLD)
    return getattr(auditing, name)(seed=0)


def jax_bound(
    method: str, strategy: str, audit: AuditScores, delta: float, confidence: float
) -> float:
    """Returns a bound of jax-privacy, by a method that takes a threshold strategy."""
    bound = getattr(_make_jax_auditor(audit), method)
    return float(bound(1 - confidence, delta, threshold_strategy=_make_jax_strategy(strategy)))


def jax_gdp(audit: AuditScores, delta: float, confidence: float) -> float:
    """Returns jax-privacy's bound by a Gaussian trade-off curve."""
    auditor = _make_jax_auditor(audit)
    return float(auditor.epsilon_from_gdp(1 - confidence, delta))


def jax_counts(audit: AuditScores, delta: float, confidence: float) -> float:
    """Returns jax-privacy's estimate from counts, which has no level."""
    auditor = _make_jax_auditor(audit)
    return float(auditor.epsilon_raw_counts(delta=delta))


def _make_opake_audit(audit: AuditScores) -> Any:
    """Returns opake-auditing's audit of one run."""
    from opake import auditing
    from opake.auditing.types import CoinFlip

    scores = audit.scores[0]
    presence = audit.presence[0]
    indices = np.arange(len(scores))
    coin_flip = CoinFlip(
        len(scores), indices, presence, indices[presence], indices[~presence], len(scores)
    )
    canary_scores = auditing.canary_scores(scores, canary_indices=indices)
    return auditing.one_run(canary_scores, coin_flip=coin_flip)


def opake_gdp(audit: AuditScores, delta: float, confidence: float) -> float:
    """Returns the bound of opake-auditing's default method.

    It runs on the coarsest grid that its documentation allows: the default grid takes ten times as long.
    """
    bound = _make_opake_audit(audit).gdp(grid_size=_GRID_SIZE)
    return float(bound.epsilon_at(delta=delta, significance=1 - confidence))


def opake_eps_delta(audit: AuditScores, delta: float, confidence: float) -> float:
    """Returns the bound of opake-auditing's method for any mechanism."""
    bound = _make_opake_audit(audit).eps_delta()
    return float(bound.epsilon_at(delta=delta, significance=1 - confidence))


_jax = partial(
    Estimator,
    kind=PEER,
    source="jax-privacy, CanaryScoreAuditor",
    package="jax-privacy",
    module="jax_privacy",
)
_opake = partial(
    Estimator,
    kind=PEER,
    source="opake-auditing, one_run",
    design=ONE_RUN,
    package="opake-auditing",
    module="opake",
)
_HELD = "scores of held-in and held-out canaries"
_HELD_IN_ONE_RUN = f"{_HELD} of a single run"


def _clopper_pearson(strategy: str, cost: int = 1) -> Estimator:
    """Returns jax-privacy's Clopper-Pearson bound of one canary a run."""
    return _jax(
        f"jax-privacy: clopper_pearson, {strategy}",
        design=ONE_CANARY,
        assumption=_HELD,
        epsilon=partial(jax_bound, "epsilon_clopper_pearson", strategy),
        cost=cost,
    )


def _one_run(strategy: str) -> Estimator:
    """Returns jax-privacy's bound of one run for any mechanism."""
    return _jax(
        f"jax-privacy: one_run, {strategy}",
        design=ONE_RUN,
        assumption=_HELD_IN_ONE_RUN,
        epsilon=partial(jax_bound, "epsilon_one_run", strategy),
        assumes=frozenset([FAIR]),
    )


def _one_run_fdp(strategy: str) -> Estimator:
    """Returns jax-privacy's bound of one run by a trade-off curve."""
    return _jax(
        f"jax-privacy: one_run_fdp, {strategy}",
        design=ONE_RUN,
        assumption=f"{_HELD_IN_ONE_RUN}; its source: a Gaussian curve",
        epsilon=partial(jax_bound, "epsilon_one_run_fdp", strategy),
        assumes=frozenset([FAIR, GAUSSIAN]),
        cost=10,
    )


ESTIMATORS = (
    _jax(
        "jax-privacy: epsilon_from_gdp",
        design=ONE_CANARY,
        assumption=f"{_HELD}; GDP",
        epsilon=jax_gdp,
        assumes=frozenset([GAUSSIAN]),
    ),
    _jax(
        "jax-privacy: epsilon_raw_counts",
        design=ONE_CANARY,
        assumption=f"{_HELD}; an estimate",
        epsilon=jax_counts,
        level=False,
    ),
    _clopper_pearson("Bonferroni"),
    _clopper_pearson("Split"),
    _clopper_pearson("MultiSplit", cost=4),
    _clopper_pearson("Explicit"),
    _jax(
        "jax-privacy: clopper_pearson, pooled",
        design=SEVERAL,
        assumption=f"{_HELD}, of all runs; their independence is not said to matter",
        epsilon=partial(jax_bound, "epsilon_clopper_pearson", "Bonferroni"),
        assumes=frozenset([INDEPENDENT]),
    ),
    _one_run("Bonferroni"),
    _one_run("Split"),
    _one_run_fdp("Bonferroni"),
    _one_run_fdp("Split"),
    _opake(
        "opake: gdp",
        assumption="fair coins; mu-GDP, its default",
        epsilon=opake_gdp,
        assumes=frozenset([FAIR, GAUSSIAN]),
        cost=20,
    ),
    _opake(
        "opake: eps_delta",
        assumption="fair coins; mechanism-agnostic",
        epsilon=opake_eps_delta,
        assumes=frozenset([FAIR]),
    ),
)
