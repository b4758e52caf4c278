"""The law of a step's noise, from its draws with many seeds: how large, independent of what, how shaped.

Draws are (seeds, coordinates) in units of eta sigma C / B with their mean over the seeds removed, which is
n - 1 degrees of freedom a coordinate.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from audit.check.trees import Vector, ulp

_ROUGH = 32  # a deviation of fewer distances between numbers shows the grid in the shape
_MOST_PAIRS, _SAMPLE = 40, 20_000


class Layer(NamedTuple):
    """A layer's kept coordinates: where they stand among the kept, how many of these are its first in order,
    its strides, and the spacing of its numbers from 1 to 2."""

    where: slice
    prefix: int
    strides: tuple[int, ...]
    spacing: float


class NoiseSpread(NamedTuple):
    """A sum of squares of so many degrees of freedom, and how far rounding may move its root."""

    squares: float
    freedom: int
    tolerance: float

    @property
    def ratio(self) -> float:
        """The deviation, in units."""
        return float(np.sqrt(max(self.squares, 0) / self.freedom)) if self.freedom else float("nan")


class Draws(NamedTuple):
    """What a step gave for n seeds at one batch: values (n, kept), and one unit of noise."""

    values: Vector
    unit: float

    def centred(self, layer: Layer) -> Vector:
        """(n, kept of the layer), in units."""
        values = self.values[:, layer.where]
        return np.asarray((values - values.mean(axis=0)) / self.unit)

    def fine(self, layer: Layer) -> "tuple[Vector, Vector]":
        """Which coordinates resolve the noise, and each one's variance from rounding, in units."""
        values = self.values[:, layer.where]
        steps = ulp(values, np.full(values.shape, layer.spacing)) / self.unit
        spread = np.maximum(1, np.std(values, axis=0) / self.unit)
        return np.max(steps, axis=0) <= spread, np.mean(steps**2, axis=0) / 12  # Sheppard's correction

    def spread(self, layer: Layer) -> NoiseSpread:
        """How large a layer's noise is, without what rounding of the parameters adds."""
        resolved, rounding = self.fine(layer)
        part, n = self.centred(layer)[:, resolved], len(self.values)
        squares = float(np.sum(part**2) - (n - 1) * np.sum(rounding[resolved]))
        return NoiseSpread(squares, (n - 1) * part.shape[1], 4 * layer.spacing)

    def silent(self, layer: Layer) -> int:
        """How many coordinates that resolve a unit are the same for all seeds."""
        resolved, _ = self.fine(layer)
        return int(np.sum(resolved & (np.ptp(self.values[:, layer.where], axis=0) == 0)))


def is_one(spread: NoiseSpread) -> float:
    """p-value of a deviation of one unit, give or take its tolerance, two-sided chi-square."""
    most, least = (spread.squares / (1 + sign * spread.tolerance) ** 2 for sign in (1, -1))
    tails = stats.chi2.sf(most, spread.freedom), stats.chi2.cdf(least, spread.freedom)
    return float(min(1.0, 2 * min(tails)))


def is_as(one: NoiseSpread, other: NoiseSpread) -> float:
    """p-value of two equal deviations, give or take their tolerances, two-sided F."""
    quotient = (one.squares / one.freedom) / (other.squares / other.freedom)
    wide = (1 + one.tolerance) * (1 + other.tolerance)
    most, least = quotient / wide**2, quotient * wide**2
    freedoms = one.freedom, other.freedom
    return float(min(1.0, 2 * min(stats.f.sf(most, *freedoms), stats.f.cdf(least, *freedoms))))


def standardised(draws: Draws, layers: Mapping[str, Layer]) -> dict[str, Vector]:
    """Every layer's noise at deviation 1, (n, kept), of layers that have some."""
    found = {}
    spreads = {name: draws.spread(layer) for name, layer in layers.items()}
    most = max((s.ratio for s in spreads.values() if s.freedom), default=0.0)
    for name, layer in layers.items():
        spread = spreads[name]
        if spread.freedom and spread.ratio > most / 100:
            resolved, _ = draws.fine(layer)
            found[name] = np.where(resolved, draws.centred(layer), 0.0) / spread.ratio
    return found


def independence(draws: Draws, layers: Mapping[str, Layer]) -> dict[str, float]:
    """p-values of noise that is independent over coordinates, layers and seeds, by what was tried."""
    noise = standardised(draws, layers)
    if not noise:
        return {}
    tests: dict[str, float] = {}
    rng = np.random.default_rng(0)
    signed = np.concatenate(list(noise.values()), axis=1)
    tests["random signs"] = _projection(signed, rng.choice([-1.0, 1.0], signed.shape[1]))
    for name, part in noise.items():
        tests[f"{name}: sum"] = _projection(part, np.ones(part.shape[1]))
        first = part[:, : layers[name].prefix]
        for stride in sorted({s for s in layers[name].strides if s < first.shape[1]}):
            place = np.flatnonzero(np.arange(first.shape[1] - stride) // stride % 2 == 0)  # no number twice
            tests[f"{name}: numbers {stride} apart"] = _correlation(first[:, place], first[:, place + stride])
    tests["consecutive seeds"] = _pairs_of_seeds(signed)
    pairs = list(itertools.combinations(list(noise)[:_MOST_PAIRS], 2))
    alike = [_of_two(noise[a], noise[b], min(layers[a].prefix, layers[b].prefix)) for a, b in pairs]
    if pairs:
        tests["layers"] = min(1.0, min(alike) * len(pairs))
    return tests


def repeated_seeds(draws: Draws, layers: Mapping[str, Layer]) -> int:
    """How many seeds gave exactly what an earlier one gave."""
    return len(draws.values) - len(np.unique(draws.values, axis=0)) if layers else 0


def shape(draws: Draws, layers: Mapping[str, Layer]) -> dict[str, float]:
    """p-values of normal noise: Kolmogorov and Smirnov's test, and how much lies beyond 3 deviations."""
    parts = []
    for name, part in standardised(draws, layers).items():
        values = draws.values[:, layers[name].where]
        steps = ulp(values, np.full(values.shape, layers[name].spacing)) / draws.unit
        parts.append(part[:, np.max(steps, axis=0) * _ROUGH <= 1].ravel())
    pooled = np.concatenate(parts) if parts else np.zeros(0)
    if pooled.size < 200:
        return {}
    n = len(draws.values)
    whole = pooled * np.sqrt(n / (n - 1))
    some = np.random.default_rng(0).choice(whole, min(_SAMPLE, whole.size), replace=False)
    beyond = int(np.sum(np.abs(whole) > 3))
    tails = stats.binomtest(beyond, whole.size, float(2 * stats.norm.sf(3))).pvalue
    return {"distribution": float(stats.kstest(some, "norm").pvalue), "beyond 3 deviations": float(tails)}


def _projection(noise: Vector, signs: Vector) -> float:
    """p-value of a sum of signed coordinates that varies as of independent ones: a Beta share."""
    size = int(np.sum(np.any(noise != 0, axis=0)))
    if size < 2:
        return 1.0
    share, n = np.sum((noise @ signs) ** 2) / size / np.sum(noise**2), len(noise)
    law = stats.beta((n - 1) / 2, (n - 1) * (size - 1) / 2)
    return float(min(1.0, 2 * min(law.sf(share), law.cdf(share))))


def _of_two(one: Vector, other: Vector, size: int) -> float:
    return _correlation(one[:, :size], other[:, :size])


def _correlation(one: Vector, other: Vector) -> float:
    """p-value of no correlation between centred draws, of whose n rows one degree is spent."""
    x, y = one.ravel(), other.ravel()
    size = np.sqrt(np.sum(x**2) * np.sum(y**2))
    freedom = x.size * (len(one) - 1) / len(one) - 1
    if size == 0 or freedom < 3:
        return 1.0
    r = min(float(abs(np.sum(x * y))) / size, 1 - 1e-12)
    return float(2 * stats.t.sf(r * np.sqrt(freedom / (1 - r**2)), freedom))


def _pairs_of_seeds(noise: Vector) -> float:
    """p-value of seeds 2i and 2i + 1 that are as different as others: analysis of variance, by F."""
    n = len(noise) // 2 * 2
    first, second = noise[:n:2], noise[1:n:2]
    within = np.sum((first - second) ** 2) / 2
    means = (first + second) / 2
    between = 2 * np.sum((means - means.mean(axis=0)) ** 2)
    size, pairs = np.sum(np.any(noise != 0, axis=0)), n // 2
    if size == 0 or pairs < 2:
        return 1.0
    d_between, d_within = size * (pairs - 1), size * pairs
    quotient = (between / d_between) / (within / d_within) if within else np.inf
    tails = stats.f.sf(quotient, d_between, d_within), stats.f.cdf(quotient, d_between, d_within)
    return float(min(1.0, 2 * min(tails)))
