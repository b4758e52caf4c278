"""The conclusion from one run's canaries: estimates, bounds, and whether the cosines are normal."""

from typing import NamedTuple

import numpy as np

from audit.evidence.canaries import Coins
from audit.evidence.one_run import Cosines
from audit.laws import cosine_law
from audit.laws.cosine_law import AndersonDarling
from audit.methods import one_run_bounds, one_shot
from audit.methods.estimate import Bound, Estimate


class OneRunConclusion(NamedTuple):
    """What one run says.

    Attributes:
      canaries: how many there are, in or out.
      cosines: None where the scores are no cosines.
      coins: whether each canary was in by a coin.
      delta, confidence: of the bounds.
      estimates: none where the scores are no cosines.
      bounds: the lower bounds; none where canaries that were out are too few.
      normality: the test of normal cosines; None where the scores are none.
    """

    canaries: int
    cosines: Cosines | None
    coins: bool
    delta: float
    confidence: float
    estimates: list[Estimate]
    bounds: list[Bound]
    normality: AndersonDarling | None

    @property
    def deviations(self) -> float:
        """The observed mean above the null's, in standard errors; 0 where the scores are no cosines."""
        if self.cosines is None:
            return 0.0
        observed, unobserved, dimension = self.cosines
        if not len(unobserved):
            return float(observed.mean() * np.sqrt(dimension * len(observed)))
        error_out = unobserved.std() / np.sqrt(len(unobserved))
        error_in = observed.std() / np.sqrt(len(observed))
        return float((observed.mean() - unobserved.mean()) / np.hypot(error_out, error_in))


def conclude_cosines(cosines: Cosines, delta: float, confidence: float) -> OneRunConclusion:
    """Returns the conclusion from observed cosines, and unobserved ones where there are any."""
    bounds = one_run_bounds.bounds(cosines, delta, confidence)
    return _conclude(cosines, None, bounds, delta, confidence)


def conclude_coins(
    design: Coins, cosines: Cosines | None, delta: float, confidence: float
) -> OneRunConclusion:
    """Returns the conclusion from one run's coins, and from its cosines where its scores are such."""
    evidence = one_run_bounds.weigh_coins(design)
    bounds = one_run_bounds.guessed(evidence, delta, confidence)
    return _conclude(cosines, design, bounds, delta, confidence)


def _conclude(
    cosines: Cosines | None,
    design: Coins | None,
    bounds: list[Bound],
    delta: float,
    confidence: float,
) -> OneRunConclusion:
    estimates: list[Estimate] = []
    normality = None
    canaries = design.scores.size if design else 0
    if cosines is not None:
        estimates = one_shot.estimates(cosines, delta, confidence)
        normality = cosine_law.anderson_darling(cosines.observed)
        canaries = len(cosines.observed) + len(cosines.unobserved)
    return OneRunConclusion(
        canaries, cosines, bool(design), delta, confidence, estimates, bounds, normality
    )
