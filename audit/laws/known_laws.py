"""Pairs of score distributions with a known epsilon, most of them without a Gaussian trade-off curve.

Converting mu to epsilon by a Gaussian curve claims too much if far scores reveal less than under it (Laplace,
randomised response, logistic, Student t), and too little if they reveal more (subsampled Gaussian).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.laws import conversions, densities
from audit.laws.densities import DensityPair

Array = NDArray[np.float64]
Generator = np.random.Generator
# (generator, a law's parameter, whether the canary is in, n) -> n scores
Sampler = Callable[[Generator, float, bool, int], Array]
_GRID = 400_001  # points of the quadrature
_COARSE = 4_001  # points between which quantiles are interpolated
_REACH = 60.0  # the grid spans -60 to 60, in units of the scores
_SUBSAMPLED_RATE = 0.1
_BIT = 5.0  # a noisy bit's two values are -5 and 5, with normal noise


class Kernel(NamedTuple):
    """A standard distribution.

    Attributes:
      name: Its name in `scipy.stats`, which is slow to load and loaded only if needed.
      distribution: Its distribution function, of x (n,).
      shape: Its shape parameters.
    """

    name: str
    distribution: Callable[[Array], Array]
    shape: tuple[float, ...] = ()

    @property
    def law(self) -> Any:
        return getattr(scipy.stats, self.name)(*self.shape)


class MixturePart(NamedTuple):
    """A part of a mixture: a kernel times a spread, plus a centre, with a probability as weight."""

    weight: float
    centre: float
    spread: float = 1.0


class ScoreFamily(NamedTuple):
    """A family of pairs of distributions of scores, with and without the canary.

    Attributes:
      name: The family's name.
      parameters: The parameters for the calibration of methods.
      kernel: The distribution that all parts of a world's mixture shift and scale.
      parts: Maps (parameter, inserted) to the mixture of a world.
      known_epsilon: Maps (parameter, delta) to epsilon; None if it needs quadrature.
    """

    name: str
    parameters: tuple[float, ...]
    kernel: Kernel
    parts: Callable[[float, bool], list[MixturePart]]
    known_epsilon: Callable[[float, float], float] | None = None

    def sample(self, rng: Generator, parameter: float, inserted: bool, n: int) -> Array:
        """Draws n scores with the canary if `inserted`, else without it."""
        weights, centres, spreads = np.transpose(self.parts(parameter, inserted))
        chosen = np.zeros(n, int)
        if len(weights) > 1:
            ends = np.cumsum(weights)[:-1]
            chosen = np.searchsorted(ends, rng.random(n), side="right")
        drawn = self.kernel.law.rvs(size=n, random_state=rng)
        return np.asarray(centres[chosen] + spreads[chosen] * drawn)

    def density(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the density (n,), at x (n,), of scores with the canary if `inserted`, else without it."""
        total = np.zeros_like(x)
        for weight, centre, spread in self.parts(parameter, inserted):
            z = (x - centre) / spread
            total += weight / spread * self.kernel.law.pdf(z)
        return total

    def distribution(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the probability below x (n,) of scores with the canary if `inserted`, else without it."""
        total = np.zeros_like(x)
        for weight, centre, spread in self.parts(parameter, inserted):
            z = (x - centre) / spread
            total += weight * self.kernel.distribution(z)
        return total


class KnownLaw(NamedTuple):
    """A pair of distributions of scores: a family at a single parameter."""

    law: ScoreFamily
    parameter: float

    def scores(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """Draws scores (in, out), n each."""
        scores_in = self.law.sample(rng, self.parameter, True, n)
        return scores_in, self.law.sample(rng, self.parameter, False, n)

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 such that both worlds are (epsilon, delta)-indistinguishable.

        Without a formula it comes from quadrature, accurate to 1e-6 for the family's `parameters` and delta
        from 1e-9 to 0.5.

        Raises:
          InputError: Unless 0 < delta < 1.
        """
        if self.law.known_epsilon is not None:
            return self.law.known_epsilon(self.parameter, delta)
        return quadrature(self, delta)

    def quantiles(self, levels: Array) -> Array:
        """Returns quantiles (n,) at levels (n,) of the even mixture of scores with and without the canary.

        They are interpolated linearly on a grid with step 0.03.
        """
        x = np.linspace(-_REACH, _REACH, _COARSE)
        below_in = self.law.distribution(x, self.parameter, inserted=True)
        below_out = self.law.distribution(x, self.parameter, inserted=False)
        below = (below_in + below_out) / 2
        return np.interp(levels, below, x)


@functools.lru_cache(maxsize=64)
def quadrature(known_law: KnownLaw, delta: float) -> float:
    """Returns the least epsilon >= 0 by sums over a fine grid of scores; see `densities.epsilon_at`."""
    x = np.linspace(-_REACH, _REACH, _GRID)
    density_in = known_law.law.density(x, known_law.parameter, inserted=True)
    density_out = known_law.law.density(x, known_law.parameter, inserted=False)
    pair = DensityPair(x, density_out, density_in, error=0.0)
    return densities.epsilon_at(pair, delta)


def _laplace_distribution(z: Array) -> Array:
    """Returns the probability below z under the Laplace law of scale 1."""
    far = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, far, 1 - far)


# The mixtures of families' worlds, by parameter.


def _shifted(shift: float, inserted: bool) -> list[MixturePart]:
    """Returns the kernel, shifted by `shift` in the world with the canary."""
    return [MixturePart(1.0, shift * inserted)]


def _response_parts(epsilon: float, inserted: bool) -> list[MixturePart]:
    """Returns a normal law about each value of randomised response's bit, with log odds +-epsilon."""
    rate = float(special.expit(epsilon if inserted else -epsilon))
    return [MixturePart(rate, _BIT), MixturePart(1 - rate, -_BIT)]


def _subsampled_parts(spread: float, inserted: bool) -> list[MixturePart]:
    """Returns noisy sums: with the canary (at the sampling rate, if at all) and without it."""
    rate = _SUBSAMPLED_RATE * inserted
    return [MixturePart(rate, 1.0, spread), MixturePart(1 - rate, 0.0, spread)]


def _unequal_parts(spread: float, inserted: bool) -> list[MixturePart]:
    """Returns N(1, spread^2) with the canary, N(0, 1) without it."""
    return [MixturePart(1.0, 1.0, spread) if inserted else MixturePart(1.0, 0.0)]


NORMAL = Kernel("norm", special.ndtr)
_LAPLACE = Kernel("laplace", _laplace_distribution)
_T3 = Kernel("t", functools.partial(special.stdtr, 3), (3,))
_LOGISTIC = Kernel("logistic", special.expit)
GAUSSIAN = ScoreFamily(
    "gaussian", (0.0, 0.25, 1.0, 1.77, 3.95), NORMAL, _shifted, conversions.epsilon_from_mu
)
LAWS: dict[str, ScoreFamily] = {}
for _family in (
    GAUSSIAN,
    ScoreFamily("laplace", (0.5, 1.0, 3.0, 6.0), _LAPLACE, _shifted),  # epsilon: shift over scale
    ScoreFamily("randomized_response", (1.0, 3.0, 6.0), NORMAL, _response_parts),  # epsilon
    ScoreFamily("t3", (2.0,), _T3, _shifted),
    ScoreFamily("logistic", (2.0,), _LOGISTIC, _shifted),
    ScoreFamily("subsampled", (0.3, 0.5, 1.0), NORMAL, _subsampled_parts),  # spread; rate 0.1
    ScoreFamily("unequal_spread", (0.7, 1.5), NORMAL, _unequal_parts),
):
    LAWS[_family.name] = _family
