"""Estimators from packages, called as their documentation describes."""

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
from experiments.benchmark.published import FAIR_AND_GAUSSIAN, FIXED_FRACTION, count_right_guesses

_STRATEGY_ARGUMENTS: dict[str, dict[str, Any]] = {
    "Bonferroni": {},
    "Explicit": {"threshold": 0.5},  # chosen in advance
    "Split": {"seed": 0},
    "MultiSplit": {"seed": 0},
}


def jax_privacy(
    method: str, strategy: str | None, coins: Coins, delta: float, confidence: float
) -> float:
    """Returns jax-privacy's epsilon from the pooled scores of all runs and canaries.

    `method` names a method of `CanaryScoreAuditor`. `strategy` names the class that chooses the threshold, or
    is None if the method does not need one.
    """
    from jax_privacy import auditing

    arguments: dict[str, Any] = {"delta": delta}
    if method != "epsilon_raw_counts":  # this estimate has no confidence level
        arguments["significance"] = 1 - confidence
    if strategy:
        make_strategy = getattr(auditing, strategy)
        arguments["threshold_strategy"] = make_strategy(**_STRATEGY_ARGUMENTS[strategy])
    auditor = auditing.CanaryScoreAuditor(*coins.pooled())
    return float(getattr(auditor, method)(**arguments))


def opake(method: str, coins: Coins, delta: float, confidence: float, **arguments: int) -> float:
    """Returns opake-auditing's lower bound on epsilon from the fair coins of a single run.

    `method` names a method of opake's audit, with keyword `arguments`.
    """
    from opake import auditing
    from opake.auditing.types import CoinFlip

    scores = coins.scores[0]
    presence = coins.presence[0]
    indices = np.arange(len(scores))
    # The number of canaries, their indices and presence, the indices of inserted and left-out canaries, and
    # the size of the data set, which contains only canaries.
    coin_flip = CoinFlip(
        len(scores),
        indices,
        presence,
        indices[presence],
        indices[~presence],
        len(scores),
    )
    canary_scores = auditing.canary_scores(scores, canary_indices=indices)
    audit = auditing.one_run(canary_scores, coin_flip=coin_flip)
    bound = getattr(audit, method)(**arguments)
    return float(bound.epsilon_at(delta=delta, significance=1 - confidence))


def privacyguard_fdp(coins: Coins, delta: float, confidence: float) -> float:
    """Returns privacyguard-platform's epsilon from guesses about a fifth of a single run's coins."""
    from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

    guesses, right = count_right_guesses(coins, FIXED_FRACTION)
    # c of c_cap guesses about m coins are correct. `threshold` is the error probability.
    node = FDPAnalysisNode(
        m=coins.scores.size, c=right, c_cap=guesses, threshold=1 - confidence, delta=delta
    )
    return float(node.run_analysis().eps)


_SCORES = "scores of held-in and held-out canaries"
_CLOPPER_PEARSON = "epsilon_clopper_pearson"
_jax = partial(Estimator, kind=PEER, package="jax-privacy")
_opake = partial(Estimator, kind=PEER, design=ONE_RUN, package="opake-auditing")

ESTIMATORS = (
    _jax(
        "jax-privacy: epsilon_from_gdp",
        design=ONE_CANARY,
        assumption=f"{_SCORES}; GDP",
        epsilon=partial(jax_privacy, "epsilon_from_gdp", None),
        assumes=[GAUSSIAN_CURVE],
    ),
    _jax(
        "jax-privacy: epsilon_raw_counts",
        design=ONE_CANARY,
        assumption=f"{_SCORES}; an estimate",
        epsilon=partial(jax_privacy, "epsilon_raw_counts", None),
        claims_level=False,
    ),
    *(
        _jax(
            f"jax-privacy: clopper_pearson, {strategy}",
            design=ONE_CANARY,
            assumption=_SCORES,
            epsilon=partial(jax_privacy, _CLOPPER_PEARSON, strategy),
            cost=cost,
        )
        for strategy, cost in (("Bonferroni", 1), ("Split", 1), ("MultiSplit", 4), ("Explicit", 1))
    ),
    _jax(
        "jax-privacy: clopper_pearson, pooled",
        design=SEVERAL,
        assumption=f"{_SCORES}, of all runs; independence is not mentioned",
        epsilon=partial(jax_privacy, _CLOPPER_PEARSON, "Bonferroni"),
        assumes=[INDEPENDENT],
    ),
    *(
        _jax(
            f"jax-privacy: {name}, {strategy}",
            design=ONE_RUN,
            assumption=f"{_SCORES} of a single run{curve}",
            epsilon=partial(jax_privacy, f"epsilon_{name}", strategy),
            assumes=assumes,
            cost=cost,
        )
        for name, curve, assumes, cost in (
            ("one_run", "", (FAIR,), 1),
            ("one_run_fdp", "; its source: a Gaussian curve", FAIR_AND_GAUSSIAN, 10),
        )
        for strategy in ("Bonferroni", "Split")
    ),
    _opake(
        "opake: gdp",  # the default method, on the coarsest documented grid
        assumption="fair coins; mu-GDP, its default",
        epsilon=partial(opake, "gdp", grid_size=1000),
        assumes=FAIR_AND_GAUSSIAN,
        cost=20,
    ),
    _opake(
        "opake: eps_delta",
        assumption="fair coins; mechanism-agnostic",
        epsilon=partial(opake, "eps_delta"),
        assumes=[FAIR],
    ),
    Estimator(
        "privacyguard: FDPAnalysisNode",
        kind=PEER,
        design=ONE_RUN,
        assumption='"Auditing f-DP in one run", at a probability threshold; its curves are Gaussian',
        epsilon=privacyguard_fdp,
        assumes=FAIR_AND_GAUSSIAN,
        package="privacyguard-platform",
        cost=100,
    ),
)
