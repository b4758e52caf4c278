"""The law of the cosine between a fixed direction and a uniformly random one in R^d.

Its density is proportional to (1 - t^2)^((d - 3) / 2) on [-1, 1]: its square is Beta(1/2, (d - 1) / 2), its
variance 1 / d, and sqrt(d) t tends to N(0, 1). A canary that a model was trained without is independent of
it, so that its cosine with whatever the model is has this law exactly, whatever the model.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require

Array = NDArray[np.float64]
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
    scale = special.betaln(0.5, (dimension - 1) / 2)
    found: Array = special.xlog1py((dimension - 3) / 2, -t * t) - scale
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
    cosines: Array = along / np.sqrt(along**2 + across)
    return cosines


def require_dimension(dimension: int) -> None:
    """Raises InputError unless d >= 2."""
    require(dimension >= 2, f"`dimension={dimension}`: give the number of trained parameters, at least 2")


def _log_far(t: Array, dimension: int) -> Array:
    """log P(T > t) by Gauss-Laguerre quadrature in w = -k log((1 - u^2) / (1 - t^2)), k = (d - 3) / 2: where
    the tail is tiny, the integrand is nearly exp(-w)."""
    k = max((dimension - 3) / 2, 0.5)
    rest = ((1 - t) * (1 + t))[..., None]
    with np.errstate(divide="ignore"):
        lengths = np.sqrt(np.maximum(-np.expm1(np.log(rest) - _NODES / k), 1e-300))
        integral = (_WEIGHTS * np.exp(-_NODES / k) / lengths).sum(-1) / (2 * k)
        log_scale = special.betaln(0.5, (dimension - 1) / 2)
        found: Array = (k + 1) * np.log(rest[..., 0]) + np.log(integral) - log_scale
    return found
