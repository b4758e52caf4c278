"""The distribution of the cosine between a fixed direction and a uniformly random direction in R^d.

The cosine has mean 0 and variance 1 / d. As d grows, sqrt(d) times the cosine converges to N(0, 1).
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.laws.intervals import Array

LEVELS = (0.15, 0.10, 0.05, 0.025, 0.01)  # significance levels of the normality test


def log_sf(cosine: ArrayLike, dimension: int) -> Array:
    """Returns log P(T > t) for the cosine T between a fixed and a uniformly random direction in R^d.

    The relative error is at most 1e-9 for probabilities down to 1e-280. For smaller probabilities, the result
    is an upper bound that exceeds the true value by at most 0.001 or float64's rounding error, whichever is
    larger.

    Args:
      cosine: t in [-1, 1], any shape.
      dimension: d >= 2.
    """
    t = np.asarray(cosine, float)
    require(
        dimension >= 2,
        f"`dimension={dimension}`: give the number of trained parameters, at least 2",
    )
    # P(T > |t|): T^2 follows Beta(1/2, (d - 1) / 2), and both signs of T are equally likely.
    tail = special.betaincc(0.5, (dimension - 1) / 2, t * t) / 2
    least = 1e-280  # smaller values of the incomplete beta function may underflow
    log_near_tail = np.log(np.maximum(tail, least))
    log_tail = np.where(tail > least, log_near_tail, _limit_far_tail(np.abs(t), dimension))
    return np.where(t >= 0, log_tail, np.log1p(-tail))


def log_density(cosine: Array, dimension: int) -> Array:
    """Returns the log density at t of the cosine between a fixed and a uniformly random direction in R^d.

    For t in (-1, 1), the density is (1 - t^2)^((d - 3) / 2) / B(1/2, (d - 1) / 2).
    """
    log_kernel = special.xlog1py((dimension - 3) / 2, -cosine * cosine)
    return log_kernel - special.betaln(0.5, (dimension - 1) / 2)


def quantile(probability: Array, dimension: int) -> Array:
    """Returns a quantile of the cosine between a fixed and a uniformly random direction in R^d."""
    tail = np.minimum(probability, 1 - probability)
    squares = special.betainccinv(0.5, (dimension - 1) / 2, 2 * tail)
    return np.copysign(np.sqrt(squares), probability - 0.5)


def limit_squares(canaries: int, dimension: int, error: float) -> float:
    """Returns an upper bound on the sum of squared cosines between K uniform directions and any vector.

    The vector may depend on the directions. Let s be the largest singular value of the K x d matrix V of
    directions. The largest possible sum is s^2, which we bound in four steps:

    1. Multiply each row of V by the length of an independent normal vector in R^d. The product has
       independent normal entries.
    2. So the largest singular value S of the product is at most sqrt(K) + sqrt(d) + g for a random g with
       E[exp(x g)] <= exp(x^2 / 2) (Davidson and Szarek, 2001, Theorem II.13).
    3. Given V, S is a convex function of the lengths. If all lengths equal their mean m, S = m s. By Jensen's
       inequality, E[exp(x m s)] <= E[exp(x S)].
    4. By Markov's inequality with the optimal x,

        P(m s > sqrt(K) + sqrt(d) + sqrt(-2 log(error))) <= error.

       The mean length m is at least sqrt(d - 1/2) (Watson, 1959).

    Args:
      canaries: K.
      dimension: d >= 2.
      error: The probability that the bound fails for some vector.
    """
    limit = np.sqrt(canaries) + np.sqrt(dimension) + np.sqrt(-2 * np.log(error))  # bound on m s
    return float(min(limit**2 / (dimension - 0.5), canaries))  # a squared cosine is at most 1


def limit_left_out_squares(canaries: int, dimension: int, error: float) -> float:
    """Returns an upper bound on the sum of squared leave-one-out cosines of K uniform directions.

    A leave-one-out cosine is the cosine between a direction and a vector orthogonal to the other K - 1. Its
    square is at most the squared length of the direction's component orthogonal to the others, which follows
    Beta((d - K + 1) / 2, (K - 1) / 2). All K cosines may reach their limits at once, so the bound is K times
    the upper quantile at level error / K (union bound). `limit_squares` describes the arguments; K must be
    between 2 and d.
    """
    outside = (dimension - canaries + 1) / 2
    inside = (canaries - 1) / 2
    return float(canaries * special.betainccinv(outside, inside, error / canaries))


class AndersonDarling(NamedTuple):
    """The result of the normality test.

    Attributes:
      statistic: A^2.
      rejected_at: The smallest level in LEVELS at which the test rejects; None if it does not reject.
    """

    statistic: float
    rejected_at: float | None


def anderson_darling(values: ArrayLike) -> AndersonDarling:
    """Tests whether n values are normal with unknown mean and variance (Anderson-Darling test).

    The statistic is A^2 = -n - sum_i (2 i - 1) / n (log Phi(z_i) + log Phi(-z_(n + 1 - i))) for the
    standardised values z_1 <= ... <= z_n. The critical values are those of Stephens (1974; Errata O10 of
    experiments/one_shot/README.md). The values must not all be equal. At least 8 values are required, because
    the correction for n is inaccurate for fewer.
    """
    x = np.sort(np.asarray(values, float))
    n = len(x)
    z = (x - x.mean()) / x.std(ddof=1)
    weights = (2 * np.arange(1, n + 1) - 1) / n
    log_below = special.log_ndtr(z)
    log_above = special.log_ndtr(-z[::-1])
    statistic = float(-n - weights @ (log_below + log_above))
    asymptotic = np.array([0.576, 0.656, 0.787, 0.918, 1.092])  # critical values at LEVELS
    critical = asymptotic / (1 + 4 / n - 25 / n**2)
    rejecting = np.flatnonzero(statistic > critical)
    rejected_at = LEVELS[rejecting[-1]] if len(rejecting) else None
    return AndersonDarling(statistic, rejected_at)


def simulate(rng: Generator, canaries: int, dimension: int, sigma: float) -> Array:
    """Draws the cosines between k uniform canaries and their noisy sum: a simulated audit without data.

    The simulation is equivalent to Algorithm 1 of Andrew et al. (ICLR 2024), but takes only O(k^2) time. The
    canaries are k = `canaries` unit vectors in R^d, with d = `dimension` > k. `sigma` is the standard
    deviation of the noise in each coordinate.
    """
    canaries_in_span = draw_canaries(rng, canaries, dimension)
    return draw_cosines(rng, canaries_in_span, dimension, sigma)


def draw_canaries(rng: Generator, canaries: int, dimension: int) -> Array:
    """Draws k < d uniform unit vectors in R^d; returns their coordinates (k, k) in a basis of their span.

    In the Gram-Schmidt basis, a normal vector has i normal coordinates in the span of the i vectors before
    it. The length of its component orthogonal to this span follows a chi distribution with d - i degrees of
    freedom (Bartlett's decomposition).
    """
    rows = np.zeros((canaries, canaries))
    for i in range(canaries):
        row = rows[i, : i + 1]  # a view; later coordinates stay 0
        row[:i] = rng.standard_normal(i)
        row[i] = np.sqrt(rng.chisquare(dimension - i))
        row /= np.linalg.norm(row)
    return rows


def draw_cosines(rng: Generator, canaries: Array, dimension: int, sigma: float) -> Array:
    """Draws the cosines between k canaries and a release: their sum plus noise sigma N(0, I_d).

    `canaries` are (k, k) unit vectors from `draw_canaries`. Outside the span of the canaries, we only need
    the squared length of the noise, which follows a chi-squared distribution.
    """
    size = len(canaries)
    release = canaries.sum(0) + sigma * rng.standard_normal(size)
    square_outside = sigma**2 * rng.chisquare(dimension - size)
    length = np.sqrt(release @ release + square_outside)
    return canaries @ release / length


def _limit_far_tail(t: Array, dimension: int) -> Array:
    """Returns an upper bound on log P(T > t) for any array t in [0, 1], tight for tiny P(T > t).

    The density of the cosine T at u is (1 - u^2)^k / B(1/2, (d - 1) / 2) with k = (d - 3) / 2. We multiply
    the density by u / t, which is above 1 for u > t. The integral of the product over u > t is

        (1 - t^2)^(k + 1) / (2 (k + 1) t B(1/2, (d - 1) / 2)).

    Integration by parts shows that this integral is at most (1 + 1 / (d t^2)) P(T > t) if d t^2 > 1.
    """
    half = (dimension - 1) / 2  # k + 1
    with np.errstate(divide="ignore"):
        # `near_0` is accurate for small t, and `near_1` is accurate for t near 1.
        near_0 = np.log1p(-t * t)
        near_1 = np.log((1 - t) * (1 + t))
        log_kernel = np.where(t < 0.5, near_0, near_1)
        log_constant = np.log(2 * half * t) + special.betaln(0.5, half)
        return half * log_kernel - log_constant
