"""The leak of the last model with linear losses: an expectation for sampled canaries, not a bound.

With linear losses gradients do not depend on the model, and the last model shows only the sum of all steps'
gradients and noise. A canary of norm C along its own direction adds Binomial(n, q) insertions to noise with
variance T sigma^2, in units of C. Other losses may leak more or less.

Source: Steinke et al., "The Last Iterate Advantage" (2024, arXiv 2410.06186), with T = n; here only some of
the T steps may take the canary.
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

EXPECTED = Assumption(
    "linear losses: expected, not a bound",
    "(expected)",
    "not a bound: the leak of the last model if losses were linear (Steinke et al., 2024)",
    "the leak under linear losses (Steinke et al., 2024), not a bound",
)
_DROPPED = 1e-6  # the share of delta of the insertion counts that each end leaves out
_FAR = 40.0  # standard deviations of the noise, the limit of the search


def expected_epsilon(composition: Composition, steps: int, delta: float) -> float:
    """Returns the epsilon at delta of a canary for the last model if losses were linear.

    It is the larger epsilon of both directions between N(0, T sigma^2) and this noise plus Binomial(n, q)
    (Steinke et al., 2024). It is infinite without noise.

    Args:
      composition: sigma, n and q: noise multiplier, number of insertions and sampling rate.
      steps: T, at least n.
      delta: The delta of epsilon.
    """
    sigma, n, rate = composition
    mu = accounting.mu_upper_bound(sigma, n)
    if mu == 0 or math.isinf(mu):
        return mu

    # Without negligible tails, but with a number above 0.
    law = scipy.stats.binom(n, rate)
    fewest = law.ppf(_DROPPED * delta)
    most = max(law.isf(_DROPPED * delta), 1.0)
    counts = np.arange(fewest, most + 1)
    log_law = law.logpmf(counts)
    deviation = sigma * math.sqrt(steps)
    return max(
        _compute_epsilon(counts, log_law, deviation, delta, sign=1),
        _compute_epsilon(counts, log_law, deviation, delta, sign=-1),
    )


def _compute_epsilon(
    counts: Array, log_law: Array, deviation: float, delta: float, sign: int
) -> float:
    """Returns epsilon at delta of adding the canary (sign 1), or of removing it (sign -1).

    The adversary sees x: only noise (law Q), or noise plus a random number of insertions (law P), one of
    `counts` (n,). The ratio of densities P / Q rises in x. So the most powerful event is x above a threshold
    (sign 1, more likely under P) or below it (sign -1, more likely under Q). At the right threshold the
    ratio of the more likely law's density to the other is e^epsilon, and the event's probability under the
    more likely law is e^epsilon times that under the other, plus delta.
    """

    def compute_log_ratio(x: float) -> float:
        """Returns the log ratio at x of the densities with and without insertions."""
        return float(special.logsumexp(log_law + counts * (x - counts / 2) / deviation**2))

    def compute_difference(x: float) -> float:
        """Returns the log of the excess less log delta, which is 0 at the right threshold x.

        With r the ratio of densities P / Q at x, the excess is P(above x) - r Q(above x) for sign 1, and
        Q(below x) - P(below x) / r for sign -1. Its log is at least -1e6 here: a search needs finite values.
        """
        log_ratio = compute_log_ratio(x)
        log_inserted = float(
            special.logsumexp(log_law + special.log_ndtr(sign * (counts - x) / deviation))
        )
        log_plain = float(special.log_ndtr(-sign * x / deviation))
        minuend = log_inserted
        subtrahend = log_plain + log_ratio
        if sign == -1:
            minuend = log_plain
            subtrahend = log_inserted - log_ratio
        log_excess = float(conversions.log_difference(minuend, subtrahend))
        return max(log_excess, -1e6) - math.log(delta)

    # Epsilon is 0 at the x with equal densities. Each term of the ratio, exp(c (x - c / 2) / deviation^2) of
    # a count c, is at most 1 at the first end of the search and at least 1 at the last.
    equal = scipy.optimize.brentq(
        compute_log_ratio, counts[0] / 2 - deviation, counts[-1] / 2 + deviation
    )
    if compute_difference(equal) <= 0:
        return 0.0

    # From there outwards (up for sign 1, down for -1) the excess falls below delta.
    end = -_FAR * deviation
    if sign == 1:
        end = counts[-1] + _FAR * deviation
    threshold = scipy.optimize.brentq(compute_difference, equal, end, rtol=1e-13)
    return sign * compute_log_ratio(threshold)
