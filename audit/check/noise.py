"""Statistical tests of the noise of a step over many seeds.

Noise is in units of the stated standard deviation eta sigma C / B. We subtract its mean over n seeds, which
leaves n - 1 degrees of freedom per parameter.
"""

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import examples, trees
from audit.check.probe import RefusedError, StepProbe
from audit.check.trees import Columns, Integers, Mask, Vector

EMPTY = "an empty batch"
FOURFOLD = "four times the batch"
QUARTER = "a quarter of the batch"
FEATURES = "features times 1000"
ALL_LAYERS = "all layers together"
CONSECUTIVE = "consecutive seeds"
AT_ENDS = "at ends"
AT_ONE = "at one value"
GRID = "on a grid"
CLAMPED_SUM = "at ends of the sum"

OTHER_ROWS = (
    "independence",
    "shape",
    "noise and data",
    "empty batch",
)  # of the report, after "noise"
_MIN_DEVIATION = 0.01  # times the stated one: a parameter with less has no noise


class StepNoise(NamedTuple):
    """The steps of n seeds at one batch, in k of the parameters.

    Attributes:
      draws: (n, k) the change of the parameters by the step, in stated deviations.
      deviations: (layers,) the standard deviation of the noise in each layer, in stated deviations.
      freedom: (layers,) the degrees of freedom of these deviations; 0 in layers that are not trained.
      silent: (layers,) the number of parameters that do not depend on the seed.
      not_finite: the number of draws with NaN or infinity in any parameter.
    """

    draws: Vector
    deviations: Vector
    freedom: Vector
    silent: Vector
    not_finite: int

    @property
    def deviation(self) -> Any:
        """The standard deviation over all trained layers; NaN if rounding hides all parameters."""
        return np.sqrt(np.sum(self.freedom * self.deviations**2) / np.sum(self.freedom))

    @property
    def values(self) -> Vector:
        """(n, k) The draws less their mean over seeds, exactly 0 if all draws are equal."""
        noise = self.draws - self.draws[0]
        return np.asarray(noise - noise.mean(axis=0))


class DrawnNoise(NamedTuple):
    """The noise at the given batch and at other batches, in the same k parameters.

    Attributes:
      probe: the step.
      layer: (k,) the layer index of each parameter.
      rounding: (k,) the largest distance between neighbouring floating-point numbers that a draw may reach,
        in stated deviations.
      given: the noise at the given batch.
      others: the noise at other batches, by name.
      refused: the errors of the step, by name of the rejected batch.
    """

    probe: StepProbe
    layer: Integers
    rounding: Vector
    given: StepNoise
    others: dict[str, StepNoise]
    refused: dict[str, str]

    @property
    def tolerance(self) -> float:
        """The relative error of a deviation that rounding may cause.

        Four spacings leave room for rounding each factor of the noise, such as sigma C, eta and 1 / B.
        """
        return 4 * float(np.max(self.probe.spacings))

    @property
    def has_noise(self) -> Mask:
        """(k,) True for parameters with noise at the given batch."""
        return np.asarray(self.given.values.std(axis=0) > _MIN_DEVIATION)

    def group_noise(self) -> dict[str, Vector]:
        """Returns the noise at the given batch, of shape (n, numbers) for n seeds, by group of parameters.

        The groups are all noisy parameters, and those of each layer with several.
        """
        values = self.given.values[:, self.has_noise]
        layer = self.layer[self.has_noise]
        groups = {ALL_LAYERS: values}
        for i in np.flatnonzero(np.bincount(layer) > 1):
            groups[self.probe.layer_names[i]] = values[:, layer == i]
        return groups

    def is_sign_step(self) -> bool:
        """Returns True if a step moves all parameters equally far on every batch, like Adam at first."""
        edges = []
        for noise in (self.given, *self.others.values()):
            distances = np.abs(noise.draws[noise.draws != 0])
            if distances.size:
                # Without the extremes, since Adam moves a parameter less if its gradient is near 0.
                edges += np.nanquantile(distances, [0.05, 0.95]).tolist()
        # Two edges are those of a single batch.
        return len(edges) > 2 and bool(np.max(edges) < 1.15 * np.min(edges))


def make_batches(rows: Columns) -> dict[str, Columns]:
    """Returns other batches at which the noise must have the same deviation, by name."""
    return {
        QUARTER: examples.take(rows, slice(0, max(1, len(rows[0]) // 4))),
        FOURFOLD: examples.join(rows, rows, rows, rows),
        FEATURES: examples.scale_features(rows, 1e3, rows),
        EMPTY: examples.take(rows, slice(0, 0)),
    }


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws the noise of a step with many seeds, on the given batch and on other batches.

    Args:
      probe: the step.
      seeds: the number of draws at the given batch; None for as many as the tests need, in 20 seconds.
      seconds: the time of a draw.

    Raises:
      RefusedError: the step fails on the given batch.
    """
    # By default a layer gets 320 degrees of freedom, one for each seed and parameter, and all layers 20,000.
    needed = max(320 / min(probe.sizes), 20_000 / probe.start.size, 64)
    count = seeds or int(max(min(needed, 2000, 20 / seconds), 12))

    # We leave out parameters with coarse rounding, which the tests would detect. We select them by the
    # rounding at the farthest value that noise may reach, because selecting by drawn values would remove the
    # tails of the noise. Noise that is much larger than stated allows coarser rounding.
    deviation = probe.settings.deviation
    difference = probe.run(probe.rows, 1) - probe.base
    larger_deviation = max(deviation, 0.1 * np.max(np.abs(difference)))
    spacing = trees.compute_ulp(np.abs(probe.base) + 6 * larger_deviation, probe.spacings)
    is_fine = spacing <= larger_deviation / 32
    # To bound the memory, only the first parameters of each layer are stored, about 60,000 in all.
    num_stored = max(60_000 // len(probe.layer_names), 256)
    place_in_layer = np.arange(probe.start.size) - np.searchsorted(probe.layer, probe.layer)
    is_kept = is_fine & (place_in_layer < num_stored)

    # The seeds are consecutive, as if training counted its steps. They depend on the step, because fixed
    # seeds would report a chance correlation of a generator for every step.
    numbers = repr(probe.settings).encode() + probe.start.tobytes()
    first_seed = zlib.crc32(numbers) % 2**30
    end = first_seed + count
    given = _draw_at(probe, probe.rows, range(first_seed, end), is_fine, is_kept)

    # Noise at other batches is only compared with the given one, so fewer draws suffice. Their seeds differ,
    # since the comparison assumes independent draws.
    other_seeds = range(end, end + int(np.clip(count // 4, 12, 80)))
    others = {}
    refused = {}
    for name, batch in make_batches(probe.rows).items():
        try:
            others[name] = _draw_at(probe, batch, other_seeds, is_fine, is_kept)
        except RefusedError as error:
            refused[name] = str(error)
    rounding = spacing[is_kept] / deviation
    return DrawnNoise(probe, probe.layer[is_kept], rounding, given, others, refused)


def _draw_at(
    probe: StepProbe, rows: Columns, seeds: range, is_fine: Mask, is_kept: Mask
) -> StepNoise:
    """Takes steps at a batch with different seeds, and measures how their noise differs.

    Args:
      probe: the step.
      rows: the batch.
      seeds: the seeds.
      is_fine: (p,) True for parameters with rounding so fine that noise changes them at every seed.
      is_kept: (p,) True for parameters whose draws are stored.
    """
    reference = probe.run(rows, 0)
    differs = np.zeros(probe.start.size, bool)
    not_finite = 0
    after_steps = []
    for seed in seeds:
        after = probe.run(rows, seed)
        differs |= after != reference
        not_finite += not np.all(np.isfinite(after))
        after_steps.append(after[is_kept])

    draws = (np.array(after_steps) - probe.start[is_kept]) / probe.settings.deviation
    squares = np.zeros(probe.start.size)
    squares[is_kept] = len(seeds) * np.var(draws, axis=0)
    freedom = probe.sum_layers(is_kept) * (len(seeds) - 1) * probe.is_layer_trained
    deviations = np.sqrt(probe.sum_layers(squares) / np.maximum(freedom, 1))
    silent = probe.sum_layers(is_fine & ~differs)
    return StepNoise(draws, deviations, freedom, silent, not_finite)


def row_of(batch: str) -> str:
    """Returns the row of the report that tests the noise at another batch."""
    return "empty batch" if batch == EMPTY else "noise and data"


def run_tests(drawn: DrawnNoise) -> dict[str, dict[str, float]]:
    """Returns the p-values of all noise tests, by row of the report and test.

    If fewer than two parameters have noise, only the deviations are tested.
    """
    p_values = {"noise": _test_deviations(drawn)}
    for row in OTHER_ROWS:
        p_values[row] = {}
    if np.sum(drawn.has_noise) >= 2:
        for name, values in drawn.group_noise().items():
            p_values["independence"] |= _test_independence(name, values)
            p_values["shape"] |= _test_shape(name, values)
        for batch, noise in drawn.others.items():
            if not noise.not_finite:  # otherwise that is a finding, which needs no test
                p_values[row_of(batch)][batch] = _test_batch(drawn, noise)
    return p_values


def _test_shape(name: str, values: Vector) -> dict[str, float]:
    """Tests that the noise of a group of parameters, (n, p), is normal, and that its norm varies accordingly.

    For p independent normal numbers, the square of the norm over its mean, to the power 1/3, has variance
    2 / 9p (Wilson and Hilferty, 1931).
    """
    p_values = {}
    seeds, size = values.shape
    if name == ALL_LAYERS and values.size >= 1000:  # fewer numbers do not suffice for the test
        p_values["distribution"] = stats.normaltest(values, axis=None).pvalue
    if size >= 8:  # the power 1/3 of fewer numbers is not normal
        squares = np.sum(values**2, axis=1)
        roots = np.cbrt(squares / np.mean(squares))
        ratio = np.var(roots, ddof=1) * 9 * size / 2
        p_values[f"the length of {name}"] = _test_variance(ratio, seeds)
    return p_values


def _test_variance(ratio: Any, seeds: int) -> float:
    """Returns the p-value of a variance over seeds, divided by its value under the null hypothesis."""
    freedom = seeds - 2  # without the mean, and the deviation by which numbers are divided
    return float(compute_two_sided_p_value(stats.chi2(freedom), freedom * ratio))


def _test_deviations(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that the noise has the stated deviation, in each trained layer and in total."""
    freedom = drawn.given.freedom
    squares = drawn.given.deviations**2 * freedom
    trained = np.flatnonzero(freedom)
    groups: dict[str, Any] = {drawn.probe.layer_names[i]: i for i in trained}
    groups[ALL_LAYERS] = trained
    p_values = {}
    for name, layers in groups.items():
        law = stats.chi2(np.sum(freedom[layers]))
        total = np.sum(squares[layers])
        least = total / (1 + drawn.tolerance) ** 2
        most = total / (1 - drawn.tolerance) ** 2
        p_values[name] = compute_two_sided_p_value(law, least, most)
    return p_values


def _test_batch(drawn: DrawnNoise, other: StepNoise) -> float:
    """Tests that the noise is as large at another batch, with an F-test in each noisy layer (Bonferroni)."""
    is_noisy = drawn.given.deviations > _MIN_DEVIATION
    quotient = (drawn.given.deviations / other.deviations)[is_noisy] ** 2
    # Rounding may change both deviations by the tolerance. Each tail gets the quotient farther from it.
    slack = (1 + 2 * drawn.tolerance) ** 2
    law = stats.f(drawn.given.freedom[is_noisy], other.freedom[is_noisy])
    p_values = compute_two_sided_p_value(law, quotient / slack, quotient * slack)
    return float(np.min(p_values * len(p_values), initial=1.0))


def _test_independence(name: str, values: Vector) -> dict[str, float]:
    """Tests that the noise of a group, (n, p), is uncorrelated between consecutive seeds and parameters."""
    p_values = {}
    noise = stats.zscore(values)
    seeds, size = noise.shape
    if name == ALL_LAYERS:
        # The mean over seeds was subtracted, which correlates two seeds by -1 / (seeds - 1). The normal
        # distribution of a correlation makes its test conservative.
        correlation = np.mean(noise[:-1] * noise[1:]) + 1 / (seeds - 1)
        deviations = np.abs(correlation) * np.sqrt((seeds - 2) * size)
        p_values[CONSECUTIVE] = 2 * stats.norm.sf(deviations)
    p_values[f"the covariance of {name}"] = _compute_covariance_p_value(noise)
    # The variance of the sum of independent numbers is the sum of their variances.
    ratio = np.mean(np.sum(noise, axis=1) ** 2) / size
    p_values[f"the sum of {name}"] = _test_variance(ratio, seeds)
    return p_values


def _compute_covariance_p_value(noise: Vector) -> float:
    """Returns the p-value of the null hypothesis that numbers are independent, by their covariances.

    The statistic is tr(S1 S2) for the covariance matrices S1 and S2 of two halves of the seeds. It estimates
    tr(S^2), which is smallest for independent numbers. Shared draws increase it, whatever their positions and
    signs.

    Args:
      noise: (n, numbers) the noise, with variance 1 in every number.
    """
    half = min(len(noise) // 2, 500)  # bounds the time
    first = noise[:half] - noise[:half].mean(axis=0)
    second = noise[half : 2 * half] - noise[half : 2 * half].mean(axis=0)
    statistic = np.sum((first @ second.T) ** 2) / np.mean(second**2)
    # Given the first half, the statistic is a sum of chi-squares with half - 1 degrees of freedom each,
    # weighted by the eigenvalues of the first half's matrix of products. Satterthwaite's approximation is a
    # single scaled chi-square with the same mean and variance.
    sum_of_weights = np.sum(first**2)
    scale = np.sum((first @ first.T) ** 2) / sum_of_weights
    freedom = (half - 1) * sum_of_weights / scale
    return float(stats.chi2.sf(statistic * (half - 1) / half / scale, freedom))


def compute_two_sided_p_value(distribution: Any, above: Any, below: Any = None) -> Any:
    """Returns two-sided p-values: twice the smaller tail probability, at most 1.

    Args:
      distribution: the null distribution of the statistics, from scipy.stats.
      above: the statistics to compare with the upper tail; if rounding makes them uncertain, their smallest
        values.
      below: the statistics to compare with the lower tail, or their largest values; None if they equal
        `above`.
    """
    if below is None:
        below = above
    return np.minimum(1, 2 * np.minimum(distribution.sf(above), distribution.cdf(below)))


def find_ties(drawn: DrawnNoise) -> str:
    """Finds numbers of the noise that agree between seeds more often than chance and rounding explain.

    Continuous noise rarely agrees, unlike noise on a grid or clamped noise. If the noisy sum is rounded or
    clamped instead, draws at another batch also agree with these values, and the noise may be correct.

    Returns:
      AT_ENDS if most agree at the largest and smallest values, like clamped noise; AT_ONE if they agree at
      one value of each parameter, as if noise is sometimes missing; GRID if they agree elsewhere;
      CLAMPED_SUM if the noisy sum is clamped; otherwise "".
    """
    columns = drawn.has_noise
    draws = np.sort(drawn.given.draws[:, columns], axis=0)
    seeds, numbers = draws.shape
    # Two draws agree if they are neighbours in the floating-point type of the parameter, or closer than
    # errors of float64 arithmetic.
    tolerances = 1.5 * drawn.rounding[columns] + 1e-9
    is_tie = _mark_ties(draws, tolerances)
    count = np.count_nonzero(is_tie)
    num_at_ends = np.sum(draws - draws[0] <= tolerances) + np.sum(draws[-1] - draws <= tolerances)
    num_at_ends -= 2 * numbers  # the ends themselves
    # Two draws agree by chance if their difference is within the tolerance: its density at 0 is
    # 1 / sqrt(4 pi) over the deviation. A generator of float32 repeats a number with probability 2^-22.
    rates = 2 * tolerances / np.sqrt(4 * np.pi) / np.std(draws, axis=0) + 2.0**-22
    expected = np.sum(rates) * math.comb(seeds, 2)
    # The number of values at which draws agree, over all parameters.
    num_values = count - np.count_nonzero(is_tie[1:] & is_tie[:-1])
    kind = GRID
    # Noise with two values has most draws at an end, and clamped noise has few.
    if 3 * expected + 4 < num_at_ends < 0.5 * draws.size and num_at_ends > 0.5 * count:
        kind = AT_ENDS
    elif count < 3 * expected + 30:
        return ""
    elif num_values < 1.5 * numbers:
        kind = AT_ONE

    # With only one batch, we assume that the sum is rounded or clamped, since the noise may be correct.
    other = next(iter(drawn.others.values()), drawn.given).draws[:, columns]
    added = np.count_nonzero(_mark_ties(np.concatenate([draws, other]), tolerances)) - count
    shared = added - np.count_nonzero(_mark_ties(other, tolerances))
    if shared <= 0.15 * added:
        return kind
    return CLAMPED_SUM if kind == AT_ENDS else ""


def _mark_ties(draws: Vector, tolerances: Vector) -> Mask:
    """Returns whether sorted draws (n, numbers) agree with the next smaller one, shape (n - 1, numbers)."""
    return np.asarray(np.diff(np.sort(draws, axis=0), axis=0) <= tolerances)


def count_repeats(drawn: DrawnNoise) -> int:
    """Returns how many seeds repeat the noise of another seed exactly; 0 if chance may explain them."""
    values = drawn.given.values
    # A few numbers may repeat by chance in a type of 16 bits.
    if 0 < np.sum(np.any(values, axis=0)) < 8:
        return 0
    return len(values) - len(np.unique(values, axis=0))
