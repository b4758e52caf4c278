"""Pairs of score distributions whose true epsilon is known, most of them with no Gaussian trade-off curve.

Converting mu to epsilon by a Gaussian curve claims too much where far scores reveal less than under it
(Laplace, randomised response, logistic, Student t), and too little where they reveal more (subsampled
Gaussian).
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
_LARGEST_EPSILON = 512.0  # where the search stops: a larger epsilon counts as infinite
_SUBSAMPLED_RATE = 0.1
_BIT = 5.0  # a noisy bit's two values are -5 and 5, with normal noise


class Sampler(Protocol):
    """n scores of a world under a law's parameter."""

    def __call__(
        self, rng: np.random.Generator, parameter: float, inserted: bool, n: int, /
    ) -> Array: ...


class Density(Protocol):
    """The density of a world's scores at x under a law's parameter, or the probability below x."""

    def __call__(self, x: Array, parameter: float, inserted: bool, /) -> Array: ...


class ScoreFamily(NamedTuple):
    """A family of pairs of distributions.

    Attributes:
      name: its name.
      parameters: those at which methods are calibrated.
      sample: draws the scores of a world.
      density, distribution: of the scores of a world.
      epsilon: (parameter, delta) -> epsilon, where a function gives it without quadrature.
    """

    name: str
    parameters: tuple[float, ...]
    sample: Sampler
    density: Density
    distribution: Density
    epsilon: Callable[[float, float], float] | None = None


class KnownLaw(NamedTuple):
    """A law at one parameter."""

    law: ScoreFamily
    parameter: float

    def __str__(self) -> str:
        return f"{self.law.name} {self.parameter:.3g}"

    def scores(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """Draws scores (in, out), n each."""
        scores_in = self.law.sample(rng, self.parameter, True, n)
        scores_out = self.law.sample(rng, self.parameter, False, n)
        return scores_in, scores_out

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon >= 0 at which both worlds are (epsilon, delta)-close, either way round.

        The quadrature is right to 1e-6 for the parameters listed and delta from 1e-9 to 0.5.

        Raises:
          InputError: unless 0 < delta < 1.
        """
        conversions.require_delta(delta)
        if self.law.epsilon is not None:
            return self.law.epsilon(self.parameter, delta)
        return quadrature(self, delta)

    def quantiles(self, levels: Array) -> Array:
        """Returns scores below which both worlds' even mixture has these probabilities (n,).

        They are interpolated between scores in steps of 0.03.
        """
        x = np.linspace(-_REACH, _REACH, _COARSE)
        below_in = self.law.distribution(x, self.parameter, True)
        below_out = self.law.distribution(x, self.parameter, False)
        return np.interp(levels, (below_in + below_out) / 2, x)


@functools.lru_cache(maxsize=64)
def quadrature(known_law: KnownLaw, delta: float) -> float:
    """Returns epsilon at delta as the root of the privacy profile, integrated over a fine grid of scores."""
    x = np.linspace(-_REACH, _REACH, _GRID)
    density_in = known_law.law.density(x, known_law.parameter, True)
    density_out = known_law.law.density(x, known_law.parameter, False)

    def excess(epsilon: float) -> float:
        """Returns by how much the least delta at an epsilon exceeds the given one."""
        odds = np.exp(epsilon)
        delta_add = float(
            scipy.integrate.trapezoid(np.maximum(density_in - odds * density_out, 0.0), x)
        )
        delta_remove = float(
            scipy.integrate.trapezoid(np.maximum(density_out - odds * density_in, 0.0), x)
        )
        return max(delta_add, delta_remove) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0 and high < _LARGEST_EPSILON:
        high *= 2
    if high >= _LARGEST_EPSILON:
        return np.inf
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _normal_density(x: Array, centre: float, spread: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((x - centre) / spread) ** 2) / (spread * np.sqrt(2 * np.pi)))


def _gaussian(rng: np.random.Generator, mu: float, inserted: bool, n: int) -> Array:
    centre = mu if inserted else 0
    return rng.normal(centre, 1, n)


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


def _response_rate(epsilon: float, inserted: bool) -> float:
    """Returns the probability of the upper value of randomised response's bit."""
    log_odds = epsilon if inserted else -epsilon
    return float(special.expit(log_odds))


def _response(rng: np.random.Generator, epsilon: float, inserted: bool, n: int) -> Array:
    rate = _response_rate(epsilon, inserted)
    bits = np.where(rng.random(n) < rate, _BIT, -_BIT)
    return bits + rng.normal(0, 1, n)


def _response_density(x: Array, epsilon: float, inserted: bool) -> Array:
    rate = _response_rate(epsilon, inserted)
    return rate * _normal_density(x, _BIT, 1.0) + (1 - rate) * _normal_density(x, -_BIT, 1.0)


def _response_distribution(x: Array, epsilon: float, inserted: bool) -> Array:
    rate = _response_rate(epsilon, inserted)
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
    if inserted:
        return rng.normal(1.0, spread, n)
    return rng.normal(0.0, 1.0, n)


def _unequal_density(x: Array, spread: float, inserted: bool) -> Array:
    if inserted:
        return _normal_density(x, 1.0, spread)
    return _normal_density(x, 0.0, 1.0)


def _unequal_distribution(x: Array, spread: float, inserted: bool) -> Array:
    if inserted:
        return np.asarray(special.ndtr((x - 1) / spread))
    return np.asarray(special.ndtr(x))


GAUSSIAN = ScoreFamily(
    "gaussian",
    (0.0, 0.25, 1.0, 1.77, 3.95),
    _gaussian,
    _gaussian_density,
    _gaussian_distribution,
    conversions.epsilon_from_mu,
)
_LAPLACE = ScoreFamily(  # epsilon: the shift over the scale
    "laplace", (0.5, 1.0, 3.0, 6.0), _laplace, _laplace_density, _laplace_distribution
)
_RESPONSE = ScoreFamily(  # epsilon of the noisy bit
    "randomized_response", (1.0, 3.0, 6.0), _response, _response_density, _response_distribution
)
_T3 = ScoreFamily(
    "t3", (2.0,), _t3, _t3_density, _t3_distribution
)  # Student's t with 3 degrees of freedom, shifted
_LOGISTIC = ScoreFamily(
    "logistic", (2.0,), _logistic, _logistic_density, _logistic_distribution
)  # the shift
_SUBSAMPLED = ScoreFamily(  # spread; rate 0.1, sensitivity 1
    "subsampled", (0.3, 0.5, 1.0), _subsampled, _subsampled_density, _subsampled_distribution
)
_UNEQUAL = ScoreFamily(  # in N(1, spread^2), out N(0, 1)
    "unequal_spread", (0.7, 1.5), _unequal, _unequal_density, _unequal_distribution
)
LAWS = {
    law.name: law for law in (GAUSSIAN, _LAPLACE, _RESPONSE, _T3, _LOGISTIC, _SUBSAMPLED, _UNEQUAL)
}
