"""The law of the cosine between a fixed direction and a uniformly random one in R^d.

Its density is proportional to (1 - t^2)^((d - 3) / 2) on [-1, 1]: its square is Beta(1/2, (d - 1) / 2), its
variance 1 / d, and sqrt(d) t tends to N(0, 1). A canary that a model was trained without is independent of
it, so that its cosine with whatever the model is has this law exactly, whatever the model.

`anderson_darling` tests that cosines are normal, with fitted mean and variance. Critical values are Stephens'
(1974) with his factor for the number of values. Libraries have changed theirs: at 1,000 values his for 15% is
0.574, a later table's 0.561, and the paper's texts quote the former (Errata O10).

`simulate` is Algorithm 1 of the one-shot paper, exact: the cosines of k uniform canaries with their noisy sum
rho = sum of k unit vectors + sigma N(0, I_d). Only the span of the canaries matters: a rotation makes them a
lower-triangular k x k matrix with chi-distributed diagonal, rows normalised (Bartlett's decomposition), and
what lies outside of the span has a chi-squared length. That is O(k^2) for any d.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require

Array = NDArray[np.float64]
LEVELS = (0.15, 0.10, 0.05, 0.025, 0.01)
_STEPHENS = np.array([0.576, 0.656, 0.787, 0.918, 1.092])
_LEAST = 1e-280  # below it the incomplete beta function may underflow
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(48)


def log_sf(cosine: ArrayLike, dimension: int) -> Array:
    """log P(T > t), for d >= 2 and t in [-1, 1]; right to 1e-9 relative, also far below 1e-300."""
    t = np.asarray(cosine, np.float64)
    require_dimension(dimension)
    upper = special.betaincc(0.5, (dimension - 1) / 2, t * t) / 2  # of |t|
    with np.errstate(divide="ignore"):
        log_upper = np.where(upper > _LEAST, np.log(upper), _log_far(np.abs(t), dimension))
        return np.where(t >= 0, log_upper, np.log1p(-upper))


def log_cdf(cosine: ArrayLike, dimension: int) -> Array:
    """log P(T <= t), by symmetry."""
    return log_sf(-np.asarray(cosine, np.float64), dimension)


def log_density(cosine: ArrayLike, dimension: int) -> Array:
    """log of the density at t in (-1, 1)."""
    t = np.asarray(cosine, np.float64)
    require_dimension(dimension)
    found: Array = special.xlog1py((dimension - 3) / 2, -t * t) - special.betaln(0.5, (dimension - 1) / 2)
    return found


def quantile(probability: ArrayLike, dimension: int) -> Array:
    """t with P(T <= t) = probability."""
    p = np.asarray(probability, np.float64)
    require_dimension(dimension)
    squares = special.betainccinv(0.5, (dimension - 1) / 2, 2 * np.minimum(p, 1 - p))
    cosines: Array = np.copysign(np.sqrt(squares), p - 0.5)
    return cosines


def draw(rng: np.random.Generator, shape: tuple[int, ...], dimension: int) -> Array:
    """Independent cosines."""
    require_dimension(dimension)
    along, across = rng.standard_normal(shape), rng.chisquare(dimension - 1, shape)
    return np.asarray(along / np.sqrt(along**2 + across))


def require_dimension(dimension: int) -> None:
    """Raises InputError unless d >= 2."""
    require(dimension >= 2, f"`dimension={dimension}`: give the number of trained parameters, at least 2")


class AndersonDarling(NamedTuple):
    """The statistic A^2, its critical values at LEVELS, and the least level that rejects, or None."""

    statistic: float
    critical: tuple[float, ...]
    rejected_at: float | None


def critical_values(n: int) -> Array:
    """Stephens' values at LEVELS for n values."""
    return np.asarray(_STEPHENS / (1 + 4 / n - 25 / n**2))


def anderson_darling(values: ArrayLike) -> AndersonDarling:
    """A^2 of (n,) values against a normal law; raises InputError for fewer than 8, or equal ones."""
    x = np.sort(np.asarray(values, np.float64))
    n = len(x)
    require(n >= 8, f"there are {n} values: the test of normality needs at least 8")
    deviation = x.std(ddof=1)
    require(deviation > 0, f"all {n} values equal {x[0]:g}: they have no spread")
    z, weights = (x - x.mean()) / deviation, (2 * np.arange(1, n + 1) - 1) / n
    statistic = float(-n - (weights * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))).sum())
    critical = critical_values(n)
    rejecting = [level for level, value in zip(LEVELS, critical, strict=True) if statistic > value]
    return AndersonDarling(statistic, tuple(map(float, critical)), min(rejecting, default=None))


def simulate(rng: np.random.Generator, canaries: int, dimension: int, sigma: float) -> Array:
    """The cosines (k,) of one audit without data; raises InputError unless 1 <= k < d and sigma >= 0."""
    return released(rng, rotated(rng, canaries, dimension), dimension, sigma)


def rotated(rng: np.random.Generator, canaries: int, dimension: int) -> Array:
    """k uniform canaries (k, k) in coordinates of their span; raises InputError unless 1 <= k < d."""
    fits = 1 <= canaries < dimension
    require(fits, f"`canaries={canaries}`: give at least 1, and fewer than the dimension, {dimension}")
    rows = np.zeros((canaries, canaries))
    for i in range(canaries):
        rows[i, :i] = rng.standard_normal(i)
        rows[i, i] = np.sqrt(rng.chisquare(dimension - i))
        rows[i, : i + 1] /= np.linalg.norm(rows[i, : i + 1])
    return rows


def released(rng: np.random.Generator, canaries: Array, dimension: int, sigma: float) -> Array:
    """The cosines (k,) of `rotated` canaries with one release; raises InputError for a negative sigma."""
    require(0 <= sigma < np.inf, f"sigma is {sigma}: give a finite number, at least 0")
    inside = canaries.sum(0) + sigma * rng.standard_normal(len(canaries))
    outside = sigma**2 * rng.chisquare(dimension - len(canaries))
    return np.asarray(canaries @ inside / np.sqrt(inside @ inside + outside))


def _log_far(t: Array, dimension: int) -> Array:
    """log P(T > t) by Gauss-Laguerre quadrature in w = -k log((1 - u^2) / (1 - t^2)), k = (d - 3) / 2: where
    the tail is tiny, the integrand is nearly exp(-w)."""
    k, rest = max((dimension - 3) / 2, 0.5), ((1 - t) * (1 + t))[..., None]
    with np.errstate(divide="ignore"):
        lengths = np.sqrt(np.maximum(-np.expm1(np.log(rest) - _NODES / k), 1e-300))
        integral = (_WEIGHTS * np.exp(-_NODES / k) / lengths).sum(-1) / (2 * k)
        log_scale = special.betaln(0.5, (dimension - 1) / 2)
        return np.asarray((k + 1) * np.log(rest[..., 0]) + np.log(integral) - log_scale)
