"""The last model's epsilon with linear losses: an expectation for sampled canaries, not a bound.

If losses are linear, gradients do not depend on the model, and the last model reveals only the sum of all
gradients and noise. Let n of T steps each insert a canary of norm C with probability q. Along the canary's
direction, in units of C, insertions add Binomial(n, q) to noise of variance T sigma^2.

Source: Steinke et al. (2024, arXiv 2410.06186), for T = n.
"""

import math
from typing import NamedTuple

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


class _Observation(NamedTuple):
    """The distributions P and Q of the number x that the adversary sees, with and without the canary.

    Under Q, x is noise from N(0, deviation^2). Under P, x also includes the number of insertions.

    Attributes:
      counts: (m,) the possible counts, ascending.
      log_probabilities: (m,) their log probabilities.
      deviation: The standard deviation of the noise.
    """

    counts: Array
    log_probabilities: Array
    deviation: float

    def compute_log_ratio(self, x: float) -> float:
        """Returns log r(x). The density ratio r = P / Q increases with x."""
        counts, log_probabilities, deviation = self
        # For each count c, r has a term exp(c (x - c / 2) / deviation^2).
        return float(
            special.logsumexp(log_probabilities + counts * (x - counts / 2) / deviation**2)
        )

    def compute_log_delta(self, threshold: float, sign: int) -> float:
        """Returns the log of the delta at epsilon = sign * log r(threshold).

        The most powerful event for this epsilon is x > threshold (sign 1) or x < threshold (sign -1).
        """
        log_r = self.compute_log_ratio(threshold)
        log_p_given_count = special.log_ndtr(sign * (self.counts - threshold) / self.deviation)
        log_p = special.logsumexp(self.log_probabilities + log_p_given_count)  # log P(event)
        log_q = special.log_ndtr(-sign * threshold / self.deviation)  # log Q(event)
        if sign == 1:  # delta = P(event) - r Q(event)
            return float(conversions.log_difference(log_p, log_q + log_r))
        return float(conversions.log_difference(log_q, log_p - log_r))  # Q(event) - P(event) / r

    def compute_epsilon(self, delta: float, sign: int) -> float:
        """Returns the epsilon at delta for adding the canary (sign 1) or for removing it (sign -1).

        Each threshold t determines epsilon = sign * log r(t) and its delta (`compute_log_delta`). We search
        for the threshold that gives `delta`.
        """

        def compute_difference(threshold: float) -> float:
            # `brentq` rejects -inf.
            return max(self.compute_log_delta(threshold, sign), -1e6) - math.log(delta)

        # Epsilon is 0 at the threshold with r = 1. r(t) is the mean of exp(c (t - c / 2) / deviation^2) over
        # the counts c. So r(t) <= 1 for t <= fewest / 2, and r(t) >= 1 for t >= most / 2.
        fewest = self.counts[0]
        most = self.counts[-1]
        equal = scipy.optimize.brentq(
            self.compute_log_ratio, fewest / 2 - self.deviation, most / 2 + self.deviation
        )
        if compute_difference(equal) <= 0:
            return 0.0

        # Delta falls as the threshold moves up (sign 1) or down (sign -1) from `equal`. Delta is nearly 0 at
        # `end`, 40 deviations beyond all means.
        end = -_FAR * self.deviation
        if sign == 1:
            end = most + _FAR * self.deviation
        threshold = scipy.optimize.brentq(compute_difference, equal, end, rtol=1e-13)
        return sign * self.compute_log_ratio(threshold)


def expected_epsilon(composition: Composition, steps: int, delta: float) -> float:
    """Returns the epsilon at delta that the last model would leak about a canary if losses were linear.

    The result is the larger of the epsilons for adding and removing the canary.

    Args:
      composition: The noise multiplier sigma, the number of insertions n and the sampling rate q.
      steps: T, at least n.
    """
    sigma, n, rate = composition
    mu = accounting.mu_upper_bound(sigma, n)
    if mu == 0 or math.isinf(mu):
        return mu  # epsilon is also 0 or infinite

    # We drop insertion counts in negligible tails. The largest is at least 1, so the canary has an effect.
    insertions = scipy.stats.binom(n, rate)
    fewest = insertions.ppf(_DROPPED * delta)
    most = max(insertions.isf(_DROPPED * delta), 1.0)
    counts = np.arange(fewest, most + 1)
    observation = _Observation(counts, insertions.logpmf(counts), sigma * math.sqrt(steps))
    return max(
        observation.compute_epsilon(delta, sign)
        for sign in (1, -1)  # adding and removing
    )
