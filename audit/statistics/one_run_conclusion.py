"""All that one run's canaries say: estimates, bounds, and whether the cosines are normal."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require
from audit.statistics import cosine_law, fair_coins, one_run_bounds, one_shot
from audit.statistics.arrays import floats
from audit.statistics.canaries import Coins
from audit.statistics.cosine_law import AndersonDarling
from audit.statistics.estimate import Bound
from audit.statistics.one_shot import Cosines, OneShotEstimate


class OneRunConclusion(NamedTuple):
    """Estimates, bounds if any, the test of normal cosines; `coins`: each canary was in by a coin."""

    cosines: Cosines
    coins: bool
    delta: float
    confidence: float
    estimates: list[OneShotEstimate]
    bounds: list[Bound]
    normality: AndersonDarling

    @property
    def deviations(self) -> float:
        """The observed mean above the null's, in standard errors."""
        observed, unobserved, dimension = self.cosines
        error = 1 / np.sqrt(dimension * len(observed))
        if not len(unobserved):
            return float(observed.mean() / error)
        error = np.hypot(unobserved.std() / np.sqrt(len(unobserved)), observed.std() / np.sqrt(len(observed)))
        return float((observed.mean() - unobserved.mean()) / error)


def of_cosines(found: Cosines, delta: float, confidence: float) -> OneRunConclusion:
    """The conclusion from observed cosines, and unobserved ones where there are any."""
    return _concluded(found, False, one_run_bounds.bounds(found, delta, confidence), delta, confidence)


def of_coins(design: Coins, dimension: int, delta: float, confidence: float) -> OneRunConclusion:
    """The conclusion from cosines of one run (1, K), each in by a coin; raises InputError for others."""
    evidence = one_run_bounds.of_coins(design)
    found = one_shot.of_own_game(*design.pooled(), dimension)
    return _concluded(found, True, one_run_bounds.guessed(evidence, delta, confidence), delta, confidence)


def of_one_run(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """The design of a caller's scores and bits of one run, (K,) or (1, K) each; values are not checked yet.
    Raises InputError for what is no design, and for bits that fair independent coins do not give."""
    values, bits = floats("scores", scores), floats("the bits of presence", presence)
    fits = values.shape == bits.shape and (values.ndim == 1 or (values.ndim == 2 and len(values) == 1))
    shapes = f"scores {values.shape} and presence {bits.shape}"
    require(fits, f"{shapes} must both be (canaries,) or (1, canaries)")
    require(np.isin(bits, (0, 1)).all(), "presence must be 1 (in) or 0 (out) everywhere")
    present = bits.reshape(1, -1).astype(bool)
    fair_coins.require_fair(present)
    return Coins(values.reshape(1, -1), present, given=True)


def _concluded(
    found: Cosines, coins: bool, bounds: list[Bound], delta: float, confidence: float
) -> OneRunConclusion:
    estimates = one_shot.estimates(found, delta, confidence)
    tested = cosine_law.anderson_darling(found.observed)
    return OneRunConclusion(found, coins, delta, confidence, estimates, bounds, tested)
