"""What the last model leaks where losses are linear: an expectation for sampled canaries, and no bound.

With linear losses gradients do not depend on the model, so that the last model shows the sum of all steps'
gradients and noise. A canary of norm C along a direction of its own adds Binomial(n, q), of n steps that take
it with probability q each, to noise of variance T sigma^2, in units of C. Other losses may leak more or less.

Source: Steinke et al., "The Last Iterate Advantage" (2024, arXiv 2410.06186), where T = n; here only some of
the T steps may take the canary.
"""

import math

import numpy as np
import scipy
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.errors import require
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import Assumption

EXPECTED = Assumption(
    "linear losses: expected, no bound",
    "(expected)",
    "no bound: what the last model would leak if losses were linear (Steinke et al., 2024)",
    "what linear losses would leak (Steinke et al., 2024), no bound",
)
# The probability of the numbers of insertions that are left out at each end, as a share of delta.
_DROPPED = 1e-6
_FAR = 40.0  # standard deviations of the noise, beyond which no threshold is searched for


def expected_epsilon(composition: Composition, steps: int, delta: float) -> float:
    """Returns the epsilon at delta that the last model would leak of a canary if losses were linear.

    Training has T steps, of which n take the canary with probability q each. Of these, the last model shows
    only the sum: the noise N(0, T sigma^2), plus Binomial(n, q) insertions in the world with the canary.
    Epsilon is that between these two laws, in the direction in which it is larger (Steinke et al., 2024). It
    is infinite without noise.

    Args:
      composition: sigma, n and q: noise multiplier, number of insertions and sampling rate.
      steps: T, at least n.
      delta: The delta of epsilon.

    Raises:
      InputError: Values out of range.
    """
    sigma, n, rate = composition
    mu = accounting.mu_upper_bound(sigma, n)
    require(0 < rate <= 1, f"`sampling_rate={rate}`: give a number above 0, at most 1")
    require(steps >= n, f"`steps={steps}`: give at least the {n:,} insertions")
    conversions.require_delta(delta)
    if mu == 0 or math.isinf(mu):
        return mu  # epsilon is 0, or infinite, as well

    # The law of the number of insertions, without numbers at both ends that are too unlikely to matter. A
    # number above 0 stays, since with 0 alone both worlds would be the same.
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

    The adversary sees x: noise alone (law Q), or noise plus a random number of insertions (law P). The ratio
    of densities P / Q rises in x. So the event that tells the worlds apart best is x above a threshold (sign
    1, where P is the likelier law) or x below it (sign -1, where Q is). Two conditions determine threshold
    and epsilon. At the threshold the likelier law's density is e^epsilon times the other's. And the event's
    probability in the likelier law is e^epsilon times that in the other, plus delta. A search moves the
    threshold until both hold.

    Args:
      counts: (n,) numbers of insertions.
      log_law: (n,) their log probabilities.
      deviation: The standard deviation of the noise.
      delta: The delta of epsilon.
      sign: 1 or -1.
    """

    def compute_log_ratio(x: float) -> float:
        """Returns the log ratio at x of the density with insertions to the density without."""
        return float(special.logsumexp(log_law + counts * (x - counts / 2) / deviation**2))

    def compute_log_excess(x: float) -> float:
        """Returns the log of the excess that equals delta at the right threshold, for the threshold x.

        P is the law of the noise plus a random number of insertions (`counts`, with log probabilities
        `log_law`), Q that of the noise alone, and r the ratio of densities P / Q at x. The result is
        log(P(above x) - r Q(above x)) for sign 1, and log(Q(below x) - P(below x) / r) for sign -1. It is
        -inf where there is no excess.
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
        if subtrahend >= minuend:
            return -math.inf
        # The log of a difference of exponentials, log(e^a - e^b) = a + log(1 - e^(b - a)).
        return minuend + math.log(-math.expm1(subtrahend - minuend))

    def compute_difference(x: float) -> float:
        """Returns the log of the excess at x less log delta, never -inf: a search needs finite values."""
        # -1e6 is below the log of any delta, so that the difference keeps its sign.
        return max(compute_log_excess(x), -1e6) - math.log(delta)

    # Where both densities are equal, epsilon is 0. Each term of the ratio, exp(c (x - c / 2) / deviation^2)
    # of a count c, is at most 1 at the first end of the search and at least 1 at the last.
    equal = scipy.optimize.brentq(
        compute_log_ratio, counts[0] / 2 - deviation, counts[-1] / 2 + deviation
    )
    if compute_difference(equal) <= 0:
        return 0.0

    # From there outwards (up for sign 1, down for -1) the ratio moves away from 1, and the excess falls to
    # delta. At the end of the search, far beyond all the mass of the likelier law, it is below delta.
    end = -_FAR * deviation
    if sign == 1:
        end = counts[-1] + _FAR * deviation
    # The tolerance is as fine as floats allow, nearly, since epsilon is read off at the threshold.
    threshold = scipy.optimize.brentq(compute_difference, equal, end, rtol=1e-13)
    return sign * compute_log_ratio(threshold)
