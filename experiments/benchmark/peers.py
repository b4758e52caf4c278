"""Estimators of installable packages, each called as its documentation says.

No package is imported before it is called. Strategies that split at random get a seed, so that a row of the
benchmark can be repeated.
"""

from functools import partial
from typing import Any

import numpy as np

from audit.calibration.calibration import FAIR, GAUSSIAN_CURVE, INDEPENDENT
from audit.evidence.canaries import Coins
from experiments.benchmark.contract import (
    ONE_CANARY,
    ONE_RUN,
    PEER,
    SEVERAL,
    Estimator,
)
from experiments.benchmark.published import count_right_guesses, judge_guesses

_GRID_SIZE = 1_000
_FIXED_THRESHOLD = 0.5  # chosen without looking at the scores


def _make_jax_auditor(coins: Coins) -> Any:
    """Returns jax-privacy's auditor for scores, those of all runs and canaries pooled."""
    from jax_privacy import auditing

    scores_in, scores_out = coins.pooled()
    return auditing.CanaryScoreAuditor(scores_in, scores_out)


def _make_jax_strategy(name: str) -> Any:
    """Returns jax-privacy's strategy of choosing a threshold: the class with this name in its `auditing`."""
    from jax_privacy import auditing

    if name == "Bonferroni":
        return auditing.Bonferroni()
    if name == "Explicit":
        return auditing.Explicit(_FIXED_THRESHOLD)
    return getattr(auditing, name)(seed=0)  # a class that splits the scores at random


def jax_bound(method: str, strategy: str, coins: Coins, delta: float, confidence: float) -> float:
    """Returns jax-privacy's lower bound on epsilon by a method that takes a threshold strategy.

    Args:
      method: The name of a method of `CanaryScoreAuditor`.
      strategy: The strategy's name, as `_make_jax_strategy` takes it.
      coins: The scores.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    bound = getattr(_make_jax_auditor(coins), method)
    # jax-privacy takes the significance, 1 - confidence.
    return float(bound(1 - confidence, delta, threshold_strategy=_make_jax_strategy(strategy)))


def jax_gdp(coins: Coins, delta: float, confidence: float) -> float:
    """Returns jax-privacy's lower bound on epsilon by a Gaussian trade-off curve (`epsilon_from_gdp`)."""
    auditor = _make_jax_auditor(coins)
    return float(auditor.epsilon_from_gdp(1 - confidence, delta))


def jax_counts(coins: Coins, delta: float, confidence: float) -> float:
    """Returns jax-privacy's estimate of epsilon from counts, which claims no confidence level."""
    auditor = _make_jax_auditor(coins)
    return float(auditor.epsilon_raw_counts(delta=delta))


def _make_opake_audit(coins: Coins) -> Any:
    """Returns opake-auditing's audit of a single run, whose canaries are all in or out by a fair coin."""
    from opake import auditing
    from opake.auditing.types import CoinFlip

    scores = coins.scores[0]
    presence = coins.presence[0]
    indices = np.arange(len(scores))
    indices_in = indices[presence]
    indices_out = indices[~presence]
    # In order: the number of canaries, their indices, which are in, the indices of those in and of those out,
    # and the size of the data set, which has canaries alone.
    coin_flip = CoinFlip(len(scores), indices, presence, indices_in, indices_out, len(scores))
    canary_scores = auditing.canary_scores(scores, canary_indices=indices)
    return auditing.one_run(canary_scores, coin_flip=coin_flip)


def opake_gdp(coins: Coins, delta: float, confidence: float) -> float:
    """Returns the lower bound on epsilon by opake-auditing's default method, a Gaussian trade-off curve.

    It runs on the coarsest grid that its documentation allows; the default grid takes ten times as long.
    """
    bound = _make_opake_audit(coins).gdp(grid_size=_GRID_SIZE)
    return float(bound.epsilon_at(delta=delta, significance=1 - confidence))


def opake_eps_delta(coins: Coins, delta: float, confidence: float) -> float:
    """Returns the lower bound on epsilon by opake-auditing's method for any mechanism."""
    bound = _make_opake_audit(coins).eps_delta()
    return float(bound.epsilon_at(delta=delta, significance=1 - confidence))


def privacyguard_fdp(coins: Coins, delta: float, confidence: float) -> float:
    """Returns epsilon by privacyguard-platform's analysis of one run, with a fifth of the coins guessed.

    The analysis assumes a Gaussian trade-off curve.
    """
    from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

    is_right = judge_guesses(coins)
    [(guesses, right)] = count_right_guesses(is_right, best=False)
    # The package's names: m coins, c of c_cap guesses right; `threshold` is the probability with which the
    # result may be too large.
    node = FDPAnalysisNode(
        m=len(is_right), c=right, c_cap=guesses, threshold=1 - confidence, delta=delta
    )
    return float(node.run_analysis().eps)


def privacyguard_counts(coins: Coins, delta: float, confidence: float) -> float:
    """Returns privacyguard-platform's epsilon by Clopper-Pearson limits.

    The limits are at 95%, whatever `confidence` is.
    """
    import torch
    from privacy_guard.analysis.mia.mia_results import MIAResults

    scores_in, scores_out = coins.pooled()
    results = MIAResults(torch.from_numpy(scores_in), torch.from_numpy(scores_out))
    _, _, epsilon = results.compute_acc_auc_ci_epsilon(delta)
    return float(epsilon)


_jax = partial(
    Estimator,
    kind=PEER,
    package="jax-privacy",
    module="jax_privacy",
)
_opake = partial(
    Estimator,
    kind=PEER,
    design=ONE_RUN,
    package="opake-auditing",
    module="opake",
)
_privacyguard = partial(
    Estimator, kind=PEER, package="privacyguard-platform", module="privacy_guard"
)
_SCORES_OF_BOTH_WORLDS = "scores of held-in and held-out canaries"
_SCORES_OF_ONE_RUN = f"{_SCORES_OF_BOTH_WORLDS} of a single run"


def _clopper_pearson(strategy: str, cost: int = 1) -> Estimator:
    """Returns the record of jax-privacy's Clopper-Pearson bound for a single canary a run.

    Args:
      strategy: The name of a threshold strategy, as `_make_jax_strategy` takes it.
      cost: The number by which the number of audits is divided; above 1 for a slow strategy.
    """
    return _jax(
        f"jax-privacy: clopper_pearson, {strategy}",
        design=ONE_CANARY,
        assumption=_SCORES_OF_BOTH_WORLDS,
        epsilon=partial(jax_bound, "epsilon_clopper_pearson", strategy),
        cost=cost,
    )


def _one_run(strategy: str) -> Estimator:
    """Returns the record of jax-privacy's bound for a single run of any mechanism."""
    return _jax(
        f"jax-privacy: one_run, {strategy}",
        design=ONE_RUN,
        assumption=_SCORES_OF_ONE_RUN,
        epsilon=partial(jax_bound, "epsilon_one_run", strategy),
        assumes=frozenset([FAIR]),
    )


def _one_run_fdp(strategy: str) -> Estimator:
    """Returns the record of jax-privacy's bound for a single run, by a Gaussian trade-off curve."""
    return _jax(
        f"jax-privacy: one_run_fdp, {strategy}",
        design=ONE_RUN,
        assumption=f"{_SCORES_OF_ONE_RUN}; its source: a Gaussian curve",
        epsilon=partial(jax_bound, "epsilon_one_run_fdp", strategy),
        assumes=frozenset([FAIR, GAUSSIAN_CURVE]),
        cost=10,
    )


ESTIMATORS = (
    _jax(
        "jax-privacy: epsilon_from_gdp",
        design=ONE_CANARY,
        assumption=f"{_SCORES_OF_BOTH_WORLDS}; GDP",
        epsilon=jax_gdp,
        assumes=frozenset([GAUSSIAN_CURVE]),
    ),
    _jax(
        "jax-privacy: epsilon_raw_counts",
        design=ONE_CANARY,
        assumption=f"{_SCORES_OF_BOTH_WORLDS}; an estimate",
        epsilon=jax_counts,
        claims_level=False,
    ),
    _clopper_pearson("Bonferroni"),
    _clopper_pearson("Split"),
    _clopper_pearson("MultiSplit", cost=4),
    _clopper_pearson("Explicit"),
    _jax(
        "jax-privacy: clopper_pearson, pooled",
        design=SEVERAL,
        assumption=f"{_SCORES_OF_BOTH_WORLDS}, of all runs; their independence is not said to matter",
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
        assumes=frozenset([FAIR, GAUSSIAN_CURVE]),
        cost=20,
    ),
    _opake(
        "opake: eps_delta",
        assumption="fair coins; mechanism-agnostic",
        epsilon=opake_eps_delta,
        assumes=frozenset([FAIR]),
    ),
    _privacyguard(
        "privacyguard: FDPAnalysisNode",
        design=ONE_RUN,
        assumption='"Auditing f-DP in one run", at a probability threshold; its curves are Gaussian',
        epsilon=privacyguard_fdp,
        assumes=frozenset([FAIR, GAUSSIAN_CURVE]),
        cost=100,
    ),
    _privacyguard(
        "privacyguard: eps_cp",
        design=ONE_CANARY,
        assumption='an "empirical epsilon" by Clopper-Pearson limits',
        epsilon=privacyguard_counts,
        claims_level=False,
        cost=50,
    ),
)
