"""The last model's epsilon with linear losses: an expectation for sampled canaries, not a bound.

If losses are linear, gradients do not depend on the model, and the last model reveals only the sum of all
gradients and noise. Let n of T steps each insert a canary of norm C with probability q. Along the canary's
direction, in units of C, this adds Binomial(n, q) to noise of variance T sigma^2.

Source: Steinke et al. (2024, arXiv 2410.06186), for T = n.
"""

import math

import numpy as np
import scipy
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import Assumption

IF_LINEAR = Assumption(
    text="linear losses: expected, not a bound",
    word="(expected)",
    sentence="not a bound: the last model's leakage if losses were linear (Steinke et al., 2024)",
    note="the leakage with linear losses (Steinke et al., 2024), not a bound",
)
_DROPPED = 1e-6  # the probability of the counts dropped at each end, as a fraction of delta
_FAR = 40.0  # how far to search beyond the means, in standard deviations of the noise


def expected_epsilon(composition: Composition, steps: int, delta: float) -> float:
    """Returns the epsilon at delta that the last model would leak about a canary if losses were linear.

    Such a model reveals only Binomial(n, q) insertions plus noise N(0, T sigma^2) (see the module docstring).
    We return the larger of the epsilons for adding and removing the canary.

    Args:
      composition: The noise multiplier sigma, the number of insertions n and the sampling rate q.
      steps: T, at least n.
    """
    sigma, n, rate = composition
    mu = accounting.mu_upper_bound(sigma, n)
    if mu == 0 or math.isinf(mu):
        return mu  # epsilon is also 0 or infinite

    # We drop insertion counts in negligible tails. We keep at least one count above 0, so the canary has an
    # effect.
    insertions = scipy.stats.binom(n, rate)
    fewest = insertions.ppf(_DROPPED * delta)
    most = max(insertions.isf(_DROPPED * delta), 1.0)
    counts = np.arange(fewest, most + 1)
    log_probabilities = insertions.logpmf(counts)
    deviation = sigma * math.sqrt(steps)
    return max(
        _compute_epsilon(counts, log_probabilities, deviation, delta, sign)
        for sign in (1, -1)  # adding and removing
    )


def _compute_epsilon(
    counts: Array, log_probabilities: Array, deviation: float, delta: float, sign: int
) -> float:
    """Returns the epsilon at delta for adding the canary (sign 1) or for removing it (sign -1).

    The adversary sees a number x. Under Q, it is noise from N(0, deviation^2). Under P, it is this noise plus
    a count, drawn from `counts` (m,) with `log_probabilities` (m,). The density ratio r(x) = P / Q increases
    with x. So the most powerful events are x > t (sign 1) or x < t (sign -1), for a threshold t:

        sign 1     epsilon = log r(t),    delta = P(x > t) - r(t) Q(x > t)
        sign -1    epsilon = -log r(t),   delta = Q(x < t) - P(x < t) / r(t)

    We search for the threshold with the given delta.
    """

    def compute_log_ratio(x: float) -> float:
        """Returns log r(x). For each count c, r has a term exp(c (x - c / 2) / deviation^2)."""
        return float(
            special.logsumexp(log_probabilities + counts * (x - counts / 2) / deviation**2)
        )

    def compute_difference(threshold: float) -> float:
        """Returns the log of a threshold's delta, minus the log of the given `delta`.

        The event is x > threshold (sign 1) or x < threshold (sign -1). The log of a delta of 0 counts as
        -1e6.
        """
        log_r = compute_log_ratio(threshold)
        log_given_count = special.log_ndtr(sign * (counts - threshold) / deviation)
        log_p = special.logsumexp(log_probabilities + log_given_count)  # log P(event), with a count
        log_q = special.log_ndtr(-sign * threshold / deviation)  # log Q(event), without one
        if sign == 1:  # delta = P(event) - r Q(event)
            log_delta = conversions.log_difference(log_p, log_q + log_r)
        else:  # delta = Q(event) - P(event) / r
            log_delta = conversions.log_difference(log_q, log_p - log_r)
        return max(float(log_delta), -1e6) - math.log(delta)

    # The threshold with r = 1 gives epsilon 0. We search between two points: at the lower one, all terms of r
    # are at most 1, and at the upper one at least 1.
    equal = scipy.optimize.brentq(
        compute_log_ratio, counts[0] / 2 - deviation, counts[-1] / 2 + deviation
    )
    if compute_difference(equal) <= 0:
        return 0.0

    # From there, delta falls as the threshold increases (sign 1) or decreases (sign -1). At `end`, 40
    # deviations beyond all means, it is nearly 0.
    end = -_FAR * deviation
    if sign == 1:
        end = counts[-1] + _FAR * deviation
    threshold = scipy.optimize.brentq(compute_difference, equal, end, rtol=1e-13)
    return sign * compute_log_ratio(threshold)
