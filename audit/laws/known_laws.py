"""Pairs of score distributions of exact epsilon, most of them with no Gaussian trade-off curve.

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
_REACH = 60.0  # the grid spans -60 to 60, in units of the scores
_LARGEST_EPSILON = 512.0  # where doubling stops: an epsilon above half of it counts as infinite
_SUBSAMPLED_RATE = 0.1
_BIT = 5.0  # a noisy bit's two values are -5 and 5, with normal noise


class Sampler(Protocol):
    """Draws n scores of the world with the canary (inserted) or without it, under a law's parameter."""

    def __call__(
        self, rng: np.random.Generator, parameter: float, inserted: bool, n: int, /
    ) -> Array: ...


class Kernel(NamedTuple):
    """A standard distribution: its density and its distribution function, both maps of x (n,)."""

    density: Callable[[Array], Array]
    distribution: Callable[[Array], Array]


class MixturePart(NamedTuple):
    """A part of a mixture: a kernel with a weight, a centre and a spread.

    Attributes:
      weight: The probability of the part.
      centre: What is added to the kernel's values.
      spread: What the kernel's values are multiplied by.
    """

    weight: float
    centre: float
    spread: float = 1.0


class ScoreFamily(NamedTuple):
    """A family of pairs of distributions of scores, with and without the canary.

    Attributes:
      name: The family's name.
      parameters: The parameters at which methods are calibrated.
      sample: Draws the scores of a world.
      kernel: The distribution of which all parts of a world's mixture are shifted and scaled copies.
      parts: Maps (parameter, inserted) to the mixture of a world.
      known_epsilon: Maps (parameter, delta) to epsilon; None where only quadrature gives it.
    """

    name: str
    parameters: tuple[float, ...]
    sample: Sampler
    kernel: Kernel
    parts: Callable[[float, bool], list[MixturePart]]
    known_epsilon: Callable[[float, float], float] | None = None

    def density(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the density (n,), at x (n,), of scores with the canary if `inserted`, else without it.

        The scores' law is a mixture: each part is the kernel, a standard distribution, times a spread, plus a
        centre.
        """
        densities = []
        for part in self.parts(parameter, inserted):
            density = self.kernel.density((x - part.centre) / part.spread)
            densities.append(part.weight * density / part.spread)
        return np.asarray(sum(densities))

    def distribution(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the probability below x (n,) of scores with the canary if `inserted`, else without it.

        The scores' law is a mixture: each part is the kernel, a standard distribution, times a spread, plus a
        centre.
        """
        probabilities = []
        for part in self.parts(parameter, inserted):
            below = self.kernel.distribution((x - part.centre) / part.spread)
            probabilities.append(part.weight * below)
        return np.asarray(sum(probabilities))


class KnownLaw(NamedTuple):
    """A pair of distributions of scores: a family at a single parameter."""

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
        """Returns the least epsilon >= 0 at which both worlds are (epsilon, delta)-indistinguishable.

        The family's formula gives it or, where there is none, a quadrature. The quadrature is right to 1e-6
        for the family's `parameters` and delta from 1e-9 to 0.5.

        Raises:
          InputError: Unless 0 < delta < 1.
        """
        conversions.require_delta(delta)
        if self.law.known_epsilon is not None:
            return self.law.known_epsilon(self.parameter, delta)
        return quadrature(self, delta)

    def quantiles(self, levels: Array) -> Array:
        """Returns quantiles (n,) of the even mixture of scores with and scores without the canary.

        They are interpolated linearly between the points of a grid, scores 0.03 apart.

        Args:
          levels: (n,) the probabilities below the quantiles.
        """
        x = np.linspace(-_REACH, _REACH, _COARSE)
        below_in = self.law.distribution(x, self.parameter, inserted=True)
        below_out = self.law.distribution(x, self.parameter, inserted=False)
        return np.interp(levels, (below_in + below_out) / 2, x)


@functools.lru_cache(maxsize=64)
def quadrature(known_law: KnownLaw, delta: float) -> float:
    """Returns the least epsilon >= 0 at which both worlds of a law are (epsilon, delta)-indistinguishable.

    It solves delta(epsilon) = delta, where delta(epsilon) is the privacy profile. The profile's integrals are
    trapezoid sums over a fine grid of scores.

    Args:
      known_law: The laws of scores with and without the canary.
      delta: In (0, 1).

    Returns:
      Epsilon, or infinity where it exceeds 256.
    """
    x = np.linspace(-_REACH, _REACH, _GRID)
    density_in = known_law.law.density(x, known_law.parameter, inserted=True)
    density_out = known_law.law.density(x, known_law.parameter, inserted=False)

    def excess(epsilon: float) -> float:
        """Returns the privacy profile at an epsilon, the larger of both directions, less the given delta."""
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
    # Doubling gives an interval that holds the root. It ends at 512, before exp overflows; 256 was too small
    # then.
    high = 1.0
    while excess(high) > 0 and high < _LARGEST_EPSILON:
        high *= 2
    if high >= _LARGEST_EPSILON:
        return np.inf
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _normal_density(z: Array) -> Array:
    """Returns the density of N(0, 1) at z."""
    return np.asarray(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))


def _laplace_density(z: Array) -> Array:
    """Returns the density at z of the Laplace law of scale 1."""
    return np.asarray(np.exp(-np.abs(z)) / 2)


def _laplace_distribution(z: Array) -> Array:
    """Returns the probability below z under the Laplace law of scale 1."""
    far = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, far, 1 - far)


def _t3_density(z: Array) -> Array:
    """Returns the density at z of Student's t law with 3 degrees of freedom."""
    return np.asarray(2 / (np.pi * np.sqrt(3) * (1 + z**2 / 3) ** 2))


def _t3_distribution(z: Array) -> Array:
    """Returns the probability below z under Student's t law with 3 degrees of freedom."""
    return np.asarray(special.stdtr(3, z))


def _logistic_density(z: Array) -> Array:
    """Returns the density at z of the logistic law of scale 1."""
    return np.asarray(special.expit(z) * special.expit(-z))


def _shifted(shift: float, inserted: bool) -> list[MixturePart]:
    """Returns a mixture of a single part: the kernel, shifted by `shift` in the world with the canary."""
    return [MixturePart(1.0, shift * inserted)]


def _gaussian(rng: np.random.Generator, mu: float, inserted: bool, n: int) -> Array:
    """Draws n scores of N(0, 1), shifted by mu in the world with the canary."""
    return rng.normal(mu * inserted, 1, n)


def _laplace(rng: np.random.Generator, epsilon: float, inserted: bool, n: int) -> Array:
    """Draws n scores of the Laplace law of scale 1, shifted by epsilon in the world with the canary."""
    return rng.laplace(epsilon * inserted, 1, n)


def _t3(rng: np.random.Generator, shift: float, inserted: bool, n: int) -> Array:
    """Draws n scores of Student's t law with 3 degrees of freedom, shifted in the world with the canary."""
    return rng.standard_t(3, n) + shift * inserted


def _logistic(rng: np.random.Generator, shift: float, inserted: bool, n: int) -> Array:
    """Draws n scores of the logistic law of scale 1, shifted in the world with the canary."""
    return rng.logistic(shift * inserted, 1, n)


def _response_rate(epsilon: float, inserted: bool) -> float:
    """Returns the probability that randomised response answers with the higher of its two values.

    The log odds of that answer are epsilon in the world with the canary (`inserted`), and -epsilon in the
    other world.
    """
    log_odds = epsilon if inserted else -epsilon
    return float(special.expit(log_odds))


def _response(rng: np.random.Generator, epsilon: float, inserted: bool, n: int) -> Array:
    """Draws n bits of randomised response, -_BIT or _BIT, each with unit normal noise."""
    rate = _response_rate(epsilon, inserted)
    bits = np.where(rng.random(n) < rate, _BIT, -_BIT)
    return bits + rng.normal(0, 1, n)


def _response_parts(epsilon: float, inserted: bool) -> list[MixturePart]:
    """Returns the mixture of randomised response's noisy bit: a normal law about each of its two values."""
    rate = _response_rate(epsilon, inserted)
    return [MixturePart(rate, _BIT), MixturePart(1 - rate, -_BIT)]


def _subsampled(rng: np.random.Generator, spread: float, inserted: bool, n: int) -> Array:
    """Draws n scores of a subsampled Gaussian: 1 if the canary is sampled, else 0, plus normal noise.

    In the world with the canary, it is sampled with probability _SUBSAMPLED_RATE, anew for each score; in the
    other world it never is. The noise has the standard deviation `spread`.
    """
    present = (rng.random(n) < _SUBSAMPLED_RATE) & inserted
    return rng.normal(present.astype(float), spread)


def _subsampled_parts(spread: float, inserted: bool) -> list[MixturePart]:
    """Returns the mixture of noisy sums: with the canary (at the sampling rate, if at all) and without it."""
    rate = _SUBSAMPLED_RATE * inserted
    return [MixturePart(rate, 1.0, spread), MixturePart(1 - rate, 0.0, spread)]


def _unequal(rng: np.random.Generator, spread: float, inserted: bool, n: int) -> Array:
    """Draws n scores of N(1, spread^2) in the world with the canary, or of N(0, 1) in the other."""
    (part,) = _unequal_parts(spread, inserted)
    return rng.normal(part.centre, part.spread, n)


def _unequal_parts(spread: float, inserted: bool) -> list[MixturePart]:
    """Returns a mixture of a single part: N(1, spread^2) with the canary, N(0, 1) without it."""
    if inserted:
        return [MixturePart(1.0, 1.0, spread)]
    return [MixturePart(1.0, 0.0)]


NORMAL = Kernel(_normal_density, special.ndtr)
GAUSSIAN = ScoreFamily(
    "gaussian",
    (0.0, 0.25, 1.0, 1.77, 3.95),
    _gaussian,
    NORMAL,
    _shifted,
    conversions.epsilon_from_mu,
)
_LAPLACE = Kernel(_laplace_density, _laplace_distribution)
_T3 = Kernel(_t3_density, _t3_distribution)  # Student's t with 3 degrees of freedom
_LOGISTIC = Kernel(_logistic_density, special.expit)
_FAMILIES = (
    GAUSSIAN,
    # epsilon: the shift over the scale
    ScoreFamily("laplace", (0.5, 1.0, 3.0, 6.0), _laplace, _LAPLACE, _shifted),
    # epsilon of the noisy bit
    ScoreFamily("randomized_response", (1.0, 3.0, 6.0), _response, NORMAL, _response_parts),
    ScoreFamily("t3", (2.0,), _t3, _T3, _shifted),
    ScoreFamily("logistic", (2.0,), _logistic, _LOGISTIC, _shifted),
    # spread; rate 0.1, sensitivity 1
    ScoreFamily("subsampled", (0.3, 0.5, 1.0), _subsampled, NORMAL, _subsampled_parts),
    # in N(1, spread^2), out N(0, 1)
    ScoreFamily("unequal_spread", (0.7, 1.5), _unequal, NORMAL, _unequal_parts),
)
LAWS = {family.name: family for family in _FAMILIES}
