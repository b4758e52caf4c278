"""Pairs of score distributions with a known epsilon. Most of their trade-off curves are not Gaussian.

Assuming a Gaussian curve makes epsilon too large for Laplace, randomised response, logistic and Student t
pairs, and too small for subsampled Gaussian pairs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.random import Generator
from scipy import special

from audit.laws import densities
from audit.laws.densities import DensityPair
from audit.laws.intervals import Array

# (generator, a family's parameter, whether the canary is inserted, n) -> n scores
Sampler = Callable[[Generator, float, bool, int], Array]
_REACH = 60.0  # grids of scores span -60 to 60


class Kernel(NamedTuple):
    """A standard distribution.

    Attributes:
      name: The name in `scipy.stats`, which is slow and therefore imported only when needed.
      distribution: The cumulative distribution function, for arrays of any shape.
      shape: The shape parameters in SciPy.
    """

    name: str
    distribution: Callable[[Array], Array]
    shape: tuple[float, ...] = ()

    @property
    def law(self) -> Any:
        """Returns SciPy's frozen distribution."""
        return getattr(scipy.stats, self.name)(*self.shape)


class MixturePart(NamedTuple):
    """A part of a mixture: the kernel times `spread`, plus `centre`, with probability `weight`."""

    weight: float
    centre: float
    spread: float = 1.0


class ScoreFamily(NamedTuple):
    """A family of pairs of score distributions, with and without the canary.

    Attributes:
      kernel: The distribution that is shifted and scaled for each part of a mixture.
      parts: Maps (parameter, inserted) to the parts of the mixture with or without the canary.
    """

    kernel: Kernel
    parts: Callable[[float, bool], list[MixturePart]]

    def sample(self, rng: Generator, parameter: float, inserted: bool, n: int) -> Array:
        """Draws n scores with the canary if `inserted`, else without it."""
        weights, centres, spreads = np.transpose(self.parts(parameter, inserted))
        chosen = np.zeros(n, int)  # each score's part of the mixture
        if len(weights) > 1:
            chosen = np.searchsorted(np.cumsum(weights)[:-1], rng.random(n), side="right")
        drawn = self.kernel.law.rvs(size=n, random_state=rng)
        return centres[chosen] + spreads[chosen] * drawn

    def density(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the scores' density at x (n,), with the canary if `inserted`, else without it."""
        total = np.zeros_like(x)
        for weight, centre, spread in self.parts(parameter, inserted):
            z = (x - centre) / spread
            total += weight / spread * self.kernel.law.pdf(z)
        return total

    def distribution(self, x: Array, parameter: float, inserted: bool) -> Array:
        """Returns the probability of scores below x (n,), with the canary if `inserted`, else without it."""
        total = np.zeros_like(x)
        for weight, centre, spread in self.parts(parameter, inserted):
            z = (x - centre) / spread
            total += weight * self.kernel.distribution(z)
        return total

    def quantiles(self, levels: Array, parameter: float) -> Array:
        """Returns quantiles (n,) at `levels` (n,) of a 50:50 mixture of scores with and without the canary.

        The quantiles are interpolated linearly on a grid.
        """
        x = np.linspace(-_REACH, _REACH, 4_001)
        below_in = self.distribution(x, parameter, inserted=True)
        below_out = self.distribution(x, parameter, inserted=False)
        return np.interp(levels, (below_in + below_out) / 2, x)


@functools.lru_cache(maxsize=64)
def compute_epsilon(family: ScoreFamily, parameter: float, delta: float) -> float:
    """Returns the smallest epsilon >= 0 such that both worlds are (epsilon, delta)-indistinguishable.

    The result is accurate to 1e-6 for moderate parameters and delta from 1e-9 to 0.5.
    """
    x = np.linspace(-_REACH, _REACH, 400_001)
    density_in = family.density(x, parameter, inserted=True)
    density_out = family.density(x, parameter, inserted=False)
    return densities.epsilon_at(DensityPair(x, density_out, density_in, error=0.0), delta)


def _laplace_distribution(z: Array) -> Array:
    """Returns the probability that a Laplace variable with scale 1 is below z."""
    far = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, far, 1 - far)


def _shifted(shift: float, inserted: bool) -> list[MixturePart]:
    """Returns a mixture with a single part, centred at `shift` if the canary is inserted, else at 0."""
    return [MixturePart(weight=1.0, centre=shift * inserted)]


def _response_parts(epsilon: float, inserted: bool) -> list[MixturePart]:
    """Returns the mixture of N(5, 1) and N(-5, 1): a noisy bit, with log odds of epsilon or -epsilon."""
    rate = special.expit(epsilon if inserted else -epsilon)
    return [MixturePart(rate, centre=5.0), MixturePart(1 - rate, centre=-5.0)]


def _subsampled_parts(spread: float, inserted: bool) -> list[MixturePart]:
    """Returns N(0, spread^2), mixed with 10% of N(1, spread^2) if the canary is inserted."""
    rate = 0.1 * inserted
    return [MixturePart(rate, 1.0, spread), MixturePart(1 - rate, 0.0, spread)]


NORMAL = Kernel("norm", special.ndtr)
GAUSSIAN = ScoreFamily(NORMAL, _shifted)
LAWS = {
    # For Laplace noise and randomised response, the parameter is epsilon.
    "laplace": ScoreFamily(Kernel("laplace", _laplace_distribution), _shifted),
    "randomized_response": ScoreFamily(NORMAL, _response_parts),
    "t3": ScoreFamily(Kernel("t", functools.partial(special.stdtr, 3), (3,)), _shifted),
    "logistic": ScoreFamily(Kernel("logistic", special.expit), _shifted),
    "subsampled": ScoreFamily(NORMAL, _subsampled_parts),  # the parameter is the spread
}
