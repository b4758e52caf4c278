"""Table 1 simulated: the Gaussian mechanism's estimates over seeds, and floors where nothing leaks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.statistics import conversions, cosine_law, one_shot
from audit.statistics.gaussians import Gaussian
from audit.statistics.one_shot import FITTED, EstimateFloor

Array = NDArray[np.float64]
_KNOWN = Gaussian(0.0, 1.0)  # the null, in units of 1/sqrt(d)


class TableCell(NamedTuple):
    """sqrt(d) canaries in R^d, noise sigma: by estimate epsilon (simulations,), and the exact epsilon."""

    sigma: float
    dimension: int
    canaries: int
    epsilons: dict[str, Array]
    exact: float


class Floors(NamedTuple):
    """Every estimate's values without any leak, for so many canaries."""

    canaries: int
    by_method: dict[str, EstimateFloor]


def canaries_of(dimension: int) -> int:
    """k = sqrt(d), whole."""
    return int(np.sqrt(dimension))


def cells(
    sigmas: Sequence[float],
    dimension: int,
    simulations: int,
    delta: float,
    seed: int,
    done: Callable[[int], object] = lambda simulations: None,
) -> list[TableCell]:
    """A cell a sigma at one dimension; `done` hears of each simulation. Simulations of the same number share
    their canaries between sigmas, and depend on seed, dimension and number alone."""
    require(simulations >= 2, f"`simulations={simulations}`: give at least 2")
    canaries = canaries_of(dimension)
    drawn = []
    for index in range(simulations):
        rng = np.random.default_rng([seed, dimension, index])
        rows = cosine_law.rotated(rng, canaries, dimension)
        drawn.append([cosine_law.released(rng, rows, dimension, sigma) for sigma in sigmas])
        done(1)
    cosines = np.array(drawn)  # (simulations, sigmas, canaries)
    return [
        TableCell(
            sigma,
            dimension,
            canaries,
            estimated(cosines[:, i], dimension, delta),
            conversions.epsilon_from_mu(1 / sigma, delta),
        )
        for i, sigma in enumerate(sigmas)
    ]


def estimated(cosines: Array, dimension: int, delta: float) -> dict[str, Array]:
    """Every fitted estimate (simulations,) of cosines (simulations, k)."""
    seen = one_shot.fit(cosines, dimension)
    return {name: method(_KNOWN, seen, delta) for name, method in FITTED.items()}


def floors(numbers: Sequence[int], delta: float) -> list[Floors]:
    """Floors for each number of canaries, the null known."""
    return [Floors(k, {name: one_shot.noise_floor(name, k, 0, delta) for name in FITTED}) for k in numbers]
