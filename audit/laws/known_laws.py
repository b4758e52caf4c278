"""Pairs of score distributions whose true epsilon is known, most of them with no Gaussian trade-off curve.

Whoever converts mu to epsilon by a Gaussian curve claims too much where far scores say less than under it
(Laplace, randomised response, logistic, Student t) and too little where they say more (subsampled Gaussian).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.laws import conversions

Array = NDArray[np.float64]
_GRID = 400_001  # points of the quadrature
_COARSE = 4_001  # points between which quantiles are interpolated
_REACH = 60.0  # of the grid, in units of the scores
_SUBSAMPLED_RATE = 0.1
_BIT = 5.0  # a noisy bit's two values are -5 and 5, with normal noise


class Sampler(Protocol):
    """n scores of a world under a law's parameter."""

    def __call__(self, rng: np.random.Generator, parameter: float, inserted: bool, n: int, /) -> Array: ...


class Density(Protocol):
    """The density of a world's scores at x under a law's parameter, or the probability below x."""

    def __call__(self, x: Array, parameter: float, inserted: bool, /) -> Array: ...


class Law(NamedTuple):
    """A family of pairs of distributions: the parameters that are looked at, how to sample, the density and
    the distribution function of a world's scores, and the function (parameter, delta) -> epsilon where there
    is one that needs no quadrature."""

    name: str
    parameters: tuple[float, ...]
    sample: Sampler
    density: Density
    distribution: Density
    epsilon: Callable[[float, float], float] | None = None


class KnownLaw(NamedTuple):
    """A law at one parameter."""

    law: Law
    parameter: float

    def __str__(self) -> str:
        return f"{self.law.name} {self.parameter:.3g}"

    def scores(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """(in, out), n each."""
        return self.law.sample(rng, self.parameter, True, n), self.law.sample(rng, self.parameter, False, n)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at which both worlds are (epsilon, delta)-close, in either direction.

        The quadrature is right to 1e-6 for the parameters listed and delta from 1e-9 to 0.5. Raises
        InputError unless 0 < delta < 1.
        """
        conversions.require_delta(delta)
        if self.law.epsilon is not None:
            return self.law.epsilon(self.parameter, delta)
        return quadrature(self, delta)

    def quantiles(self, levels: Array) -> Array:
        """Scores below which both worlds' even mixture has these probabilities (n,), in steps of 0.03."""
        x = np.linspace(-_REACH, _REACH, _COARSE)
        below = [self.law.distribution(x, self.parameter, inserted) for inserted in (True, False)]
        return np.interp(levels, (below[0] + below[1]) / 2, x)


@functools.lru_cache(maxsize=64)
def quadrature(known: KnownLaw, delta: float) -> float:
    """epsilon at delta as the root of the privacy profile, integrated over a fine grid of scores."""
    x = np.linspace(-_REACH, _REACH, _GRID)
    into, out = (known.law.density(x, known.parameter, inserted) for inserted in (True, False))

    def excess(epsilon: float) -> float:
        odds = np.exp(epsilon)
        worlds = (np.maximum(one - odds * other, 0.0) for one, other in ((into, out), (out, into)))
        return max(float(scipy.integrate.trapezoid(world, x)) for world in worlds) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0 and high < 512:
        high *= 2
    return np.inf if high >= 512 else float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _normal_density(x: Array, centre: float, spread: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((x - centre) / spread) ** 2) / (spread * np.sqrt(2 * np.pi)))


def _gaussian(rng: np.random.Generator, mu: float, inserted: bool, n: int) -> Array:
    return rng.normal(mu if inserted else 0, 1, n)


def _gaussian_density(x: Array, mu: float, inserted: bool) -> Array:
    return _normal_density(x, mu * inserted, 1.0)


def _gaussian_distribution(x: Array, mu: float, inserted: bool) -> Array:
    return np.asarray(special.ndtr(x - mu * inserted))


def _laplace(rng: np.random.Generator, epsilon: float, inserted: bool, n: int) -> Array:
    return rng.laplace(epsilon * inserted, 1, n)


def _laplace_density(x: Array, epsilon: float, inserted: bool) -> Array:
    return np.asarray(np.exp(-np.abs(x - epsilon * inserted)) / 2)


def _laplace_distribution(x: Array, epsilon: float, inserted: bool) -> Array:
    z = x - epsilon * inserted
    far = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, far, 1 - far)


def _response(rng: np.random.Generator, epsilon: float, inserted: bool, n: int) -> Array:
    rate = special.expit(epsilon if inserted else -epsilon)
    return np.where(rng.random(n) < rate, _BIT, -_BIT) + rng.normal(0, 1, n)


def _response_density(x: Array, epsilon: float, inserted: bool) -> Array:
    rate = float(special.expit(epsilon if inserted else -epsilon))
    return rate * _normal_density(x, _BIT, 1.0) + (1 - rate) * _normal_density(x, -_BIT, 1.0)


def _response_distribution(x: Array, epsilon: float, inserted: bool) -> Array:
    rate = float(special.expit(epsilon if inserted else -epsilon))
    return np.asarray(rate * special.ndtr(x - _BIT) + (1 - rate) * special.ndtr(x + _BIT))


def _t3(rng: np.random.Generator, shift: float, inserted: bool, n: int) -> Array:
    return rng.standard_t(3, n) + shift * inserted


def _t3_density(x: Array, shift: float, inserted: bool) -> Array:
    return np.asarray(2 / (np.pi * np.sqrt(3) * (1 + (x - shift * inserted) ** 2 / 3) ** 2))


def _t3_distribution(x: Array, shift: float, inserted: bool) -> Array:
    return np.asarray(special.stdtr(3, x - shift * inserted))


def _logistic(rng: np.random.Generator, shift: float, inserted: bool, n: int) -> Array:
    return rng.logistic(shift * inserted, 1, n)


def _logistic_density(x: Array, shift: float, inserted: bool) -> Array:
    z = x - shift * inserted
    return np.asarray(special.expit(z) * special.expit(-z))


def _logistic_distribution(x: Array, shift: float, inserted: bool) -> Array:
    return np.asarray(special.expit(x - shift * inserted))


def _subsampled(rng: np.random.Generator, spread: float, inserted: bool, n: int) -> Array:
    present = (rng.random(n) < _SUBSAMPLED_RATE) & inserted
    return rng.normal(present.astype(float), spread)


def _subsampled_density(x: Array, spread: float, inserted: bool) -> Array:
    rate = _SUBSAMPLED_RATE * inserted
    return rate * _normal_density(x, 1.0, spread) + (1 - rate) * _normal_density(x, 0.0, spread)


def _subsampled_distribution(x: Array, spread: float, inserted: bool) -> Array:
    rate = _SUBSAMPLED_RATE * inserted
    return np.asarray(rate * special.ndtr((x - 1) / spread) + (1 - rate) * special.ndtr(x / spread))


def _unequal(rng: np.random.Generator, spread: float, inserted: bool, n: int) -> Array:
    return rng.normal(1.0, spread, n) if inserted else rng.normal(0.0, 1.0, n)


def _unequal_density(x: Array, spread: float, inserted: bool) -> Array:
    return _normal_density(x, 1.0, spread) if inserted else _normal_density(x, 0.0, 1.0)


def _unequal_distribution(x: Array, spread: float, inserted: bool) -> Array:
    return np.asarray(special.ndtr((x - 1) / spread) if inserted else special.ndtr(x))


GAUSSIAN = Law(
    "gaussian",
    (0.0, 0.25, 1.0, 1.77, 3.95),
    _gaussian,
    _gaussian_density,
    _gaussian_distribution,
    conversions.epsilon_from_mu,
)
_LAPLACE = Law(  # epsilon: the shift over the scale
    "laplace", (0.5, 1.0, 3.0, 6.0), _laplace, _laplace_density, _laplace_distribution
)
_RESPONSE = Law(  # epsilon of the noisy bit
    "randomized_response", (1.0, 3.0, 6.0), _response, _response_density, _response_distribution
)
_T3 = Law("t3", (2.0,), _t3, _t3_density, _t3_distribution)  # Student's t with 3 degrees of freedom, shifted
_LOGISTIC = Law("logistic", (2.0,), _logistic, _logistic_density, _logistic_distribution)  # the shift
_SUBSAMPLED = Law(  # spread; rate 0.1, sensitivity 1
    "subsampled", (0.3, 0.5, 1.0), _subsampled, _subsampled_density, _subsampled_distribution
)
_UNEQUAL = Law(  # in N(1, spread^2), out N(0, 1)
    "unequal_spread", (0.7, 1.5), _unequal, _unequal_density, _unequal_distribution
)
LAWS = {law.name: law for law in (GAUSSIAN, _LAPLACE, _RESPONSE, _T3, _LOGISTIC, _SUBSAMPLED, _UNEQUAL)}
