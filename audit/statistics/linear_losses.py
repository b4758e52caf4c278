"""What the last model leaks where losses are linear: what to expect of sampled canaries, and no bound.

With linear losses gradients do not depend on the model, so that the last one shows the sum of all steps'
gradients and noise. A canary of norm C along a direction of its own adds Binomial(n, q), of n steps that take
it with probability q each, to noise of variance T sigma^2, in units of C. Other losses may leak more or less.

Source: Steinke et al., "The Last Iterate Advantage" (2024, arXiv 2410.06186), where T = n; here a step in
every k takes the canary, T = k n.
"""

import math

import numpy as np
import scipy
from scipy import special, stats

from audit.errors import require
from audit.statistics import accounting, conversions
from audit.statistics.accounting import Composition
from audit.statistics.arrays import Array
from audit.statistics.method import Assumption

EXPECTED = Assumption(
    "linear losses: expected, no bound",
    "(expected)",
    "no bound: what the last model would leak if losses were linear (Steinke et al., 2024)",
    "what linear losses would leak (Steinke et al., 2024), no bound",
)
_DROPPED = 1e-6  # of delta, the probability of numbers of insertions that are left out
_FAR = 40.0  # deviations


def expected_epsilon(composition: Composition, k: int, delta: float) -> float:
    """epsilon at delta of telling N(0, k n sigma^2) from the same plus Binomial(n, q), in both directions;
    infinite without noise. Raises InputError for values out of range."""
    sigma, n, rate = composition
    mu = accounting.mu_upper_bound(sigma, n)
    require(0 < rate <= 1, f"`sampling_rate={rate}`: give a number above 0, at most 1")
    require(k >= 1, f"`k={k}`: give at least 1")
    conversions.require_delta(delta)
    if mu == 0 or math.isinf(mu):
        return mu
    law = stats.binom(n, rate)
    counts = np.arange(law.ppf(_DROPPED * delta), max(law.isf(_DROPPED * delta), 1.0) + 1)
    return max(
        _epsilon(counts, law.logpmf(counts), sigma * math.sqrt(k * n), delta, sign) for sign in (1, -1)
    )


def _epsilon(counts: Array, log_law: Array, deviation: float, delta: float, sign: int) -> float:
    """epsilon of a direction: sign is 1 for inserted against not, -1 for the reverse. Their densities' ratio
    rises in x, so that the best event is x on one side of a threshold, where the ratio is e^epsilon."""

    def log_ratio(x: float) -> float:
        return float(special.logsumexp(log_law + counts * (x - counts / 2) / deviation**2))

    def log_excess(x: float) -> float:
        inserted = float(special.logsumexp(log_law + special.log_ndtr(sign * (counts - x) / deviation)))
        plain = float(special.log_ndtr(-sign * x / deviation)) + log_ratio(x)
        more, less = (inserted, plain) if sign == 1 else (plain - log_ratio(x), inserted - log_ratio(x))
        return more + math.log(-math.expm1(less - more)) if less < more else -math.inf

    def short(x: float) -> float:
        return max(log_excess(x), -1e6) - math.log(delta)

    even = scipy.optimize.brentq(log_ratio, counts[0] / 2 - deviation, counts[-1] / 2 + deviation)
    if short(even) <= 0:
        return 0.0
    end = counts[-1] + _FAR * deviation if sign == 1 else counts[0] - _FAR * deviation
    return sign * log_ratio(scipy.optimize.brentq(short, even, end, rtol=1e-13))
