"""Tests a step's noise over many seeds.

Noise is in units of its stated standard deviation, eta sigma C / B (learning rate, noise multiplier, clipping
norm, batch size). Subtracting the mean over n seeds leaves n - 1 degrees of freedom per parameter.
"""

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import examples, trees
from audit.check.probe import RefusedError, StepProbe
from audit.check.trees import Columns, Integers, Mask, Vector

# The batches to compare with the given batch.
EMPTY = "an empty batch"
FOURFOLD = "four times the batch"
QUARTER = "a quarter of the batch"
FEATURES = "features times 1000"
SMALL_FEATURES = "features times 0.001"
ALL_LAYERS = "all layers together"
LAGS = "different seeds"
# Results of `find_ties`.
NO_TIES = ""
AT_ENDS = "at ends"
AT_ONE = "at one value"
GRID = "on a grid"
CLAMPED_SUM = "at ends of the sum"

# Rows of the report after "noise".
OTHER_ROWS = ("independence", "shape", "noise and data", "empty batch")
_MIN_DEVIATION = 0.01  # smaller fractions of the stated deviation count as no noise
_MIN_TIES = 30  # this many ties beyond chance indicate repeated values
# The noisy sum counts as rounded if more than this fraction of the ties that another batch adds are ties with
# the given batch.
_MAX_SHARED = 0.15


class StepNoise(NamedTuple):
    """The noise on one batch for n seeds, stored for k of the parameters.

    Attributes:
      draws: (n, k) how far each step moves these parameters, in units of the stated deviation.
      deviations: (layers,) the noise's standard deviation in each layer, divided by the stated one.
      freedom: (layers,) the degrees of freedom of these deviations; 0 in layers that are not trained.
      silent: (layers,) the number of parameters that depend on the batch but not on the seed, though they
        are rounded finely enough to show noise.
      still: (layers,) the number of finely rounded parameters that depend on neither the batch nor the seed.
      not_finite: the number of seeds for which a parameter is NaN or infinite.
      reference: (k,) these parameters after a step with seed 0.
    """

    draws: Vector
    deviations: Vector
    freedom: Vector
    silent: Vector
    still: Vector
    not_finite: int
    reference: Vector

    @property
    def deviation(self) -> Any:
        """The noise's standard deviation over all trained layers; NaN if rounding hides all noise."""
        return np.sqrt(np.sum(self.freedom * self.deviations**2) / self.freedom.sum())

    @property
    def values(self) -> Vector:
        """The draws (n, k) minus their mean over seeds."""
        noise = self.draws - self.draws[0]  # makes equal draws exactly 0
        return noise - noise.mean(axis=0)


class DrawnNoise(NamedTuple):
    """The noise in k parameters, on the given batch and on other batches.

    Attributes:
      probe: the step.
      layer: (k,) the layer index of each parameter.
      rounding: (k,) the spacing of floating-point numbers at the largest plausible values, divided by the
        stated deviation.
      given: the noise on the given batch.
      others: the noise on other batches, keyed by name.
      refused: the step's error for each batch that it rejects, keyed by name.
    """

    probe: StepProbe
    layer: Integers
    rounding: Vector
    given: StepNoise
    others: dict[str, StepNoise]
    refused: dict[str, str]

    @property
    def tolerance(self) -> float:
        """The largest relative rounding error of a deviation.

        Four machine epsilons (`spacings`) allow for rounding of the noise's factors, such as sigma C, eta and
        1 / B.
        """
        return 4 * float(self.probe.spacings.max())

    @property
    def has_noise(self) -> Mask:
        """(k,) True for parameters that receive noise on the given batch."""
        return self.given.values.std(axis=0) > _MIN_DEVIATION

    def group_noise(self) -> dict[str, Vector]:
        """Returns the given batch's noise (n, p) in each group of p parameters, scaled to deviation 1.

        One group is all noisy parameters; each layer with at least two is another.
        """
        values = self.given.values[:, self.has_noise]
        layer = self.layer[self.has_noise]
        variances = np.bincount(layer, values.var(axis=0)) / np.maximum(np.bincount(layer), 1)
        values = values / np.sqrt(variances)[layer]
        groups = {ALL_LAYERS: values}
        for i in np.flatnonzero(np.bincount(layer) > 1):
            groups[self.probe.layer_names[i]] = values[:, layer == i]
        return groups

    def is_sign_step(self) -> bool:
        """Returns True if all moving parameters move equally far on every batch, as in Adam's first step.

        Ignores the smallest and largest 5%, because Adam moves parameters less if gradients are near 0.
        """
        quantiles = []
        for noise in (self.given, *self.others.values()):
            distances = abs(noise.draws[noise.draws != 0])
            if distances.size:
                quantiles += np.nanquantile(distances, [0.05, 0.95]).tolist()
        # The two quantiles of a single batch are not enough evidence. Differences of up to 15% are allowed.
        return len(quantiles) > 2 and np.max(quantiles) < 1.15 * np.min(quantiles)


def make_batches(rows: Columns) -> dict[str, Columns]:
    """Returns batches, keyed by name, that must have the same noise deviation as `rows`.

    They reveal noise that depends on sizes or features.
    """
    return {
        QUARTER: examples.take(rows, slice(0, max(1, len(rows[0]) // 4))),
        FOURFOLD: examples.join(rows, rows, rows, rows),
        FEATURES: examples.scale_features(rows, 1e3, batch=rows),
        SMALL_FEATURES: examples.scale_features(rows, 1e-3, batch=rows),
        EMPTY: examples.take(rows, slice(0, 0)),
    }


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws the noise of a step with many seeds, on the given batch and on other batches.

    `seeds` is the number of seeds for the given batch; by default, as many as the tests need, up to 20
    seconds' worth at `seconds` per step. Raises RefusedError if the step fails on the given batch.
    """
    # Each seed adds one degree of freedom per parameter. The goal is 320 in each layer and 20,000 in total,
    # with 64 to 2,000 seeds, or as few as 12 to save time.
    needed = max(320 / min(probe.sizes), 20_000 / probe.start.size, 64)
    count = seeds or int(max(min(needed, 2000, 20 / seconds), 12))
    # The seeds are consecutive, like step numbers. If the first seed did not depend on the step, a
    # chance correlation in a generator would make every step fail.
    first_seed = zlib.crc32(repr(probe.settings).encode() + probe.start.tobytes()) % 2**30
    end = first_seed + count

    # Parameters are omitted if the noise's deviation is below 32 floating-point spacings, since the tests
    # would detect the rounding. The spacing is measured six standard deviations beyond `base`, because
    # selecting parameters by their draws would cut off the noise's tails. If noise is much larger than
    # stated, coarser rounding is fine: a tenth of the largest difference between two draws is at most about
    # one deviation.
    deviation = probe.settings.deviation
    difference = probe.run(probe.rows, seed=1) - probe.base
    larger_deviation = max(deviation, 0.1 * abs(difference).max())
    spacing = trees.compute_ulp(abs(probe.base) + 6 * larger_deviation, probe.spacings)
    is_fine = spacing <= larger_deviation / 32
    # To limit memory, each layer stores only its first parameters, about 60,000 in total.
    num_stored = max(60_000 // len(probe.layer_names), 256)
    first_in_layer = np.searchsorted(probe.layer, probe.layer)  # `layer` is sorted
    is_stored = np.arange(probe.start.size) - first_in_layer < num_stored
    is_kept = is_fine & probe.is_trained & is_stored
    given = _draw_at(probe, probe.rows, range(first_seed, end), is_fine, is_kept)

    # Fewer draws suffice for other batches. Different seeds make them independent.
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
    """Takes steps on the batch `rows` with these seeds, and measures their noise.

    `is_fine` (p,) marks parameters rounded finely enough to show noise for every seed, and `is_kept` (p,)
    marks those to store.
    """
    reference = probe.run(rows)
    differs = np.zeros(probe.start.size, bool)
    not_finite = 0
    after_steps = []
    for seed in seeds:
        after = probe.run(rows, seed)
        differs |= after != reference
        not_finite += not np.isfinite(after).all()
        after_steps.append(after[is_kept])

    draws = (np.array(after_steps) - probe.start[is_kept]) / probe.settings.deviation
    squares = np.zeros(probe.start.size)
    squares[is_kept] = len(seeds) * draws.var(axis=0)
    freedom = probe.sum_layers(is_kept) * (len(seeds) - 1) * probe.is_layer_trained
    deviations = np.sqrt(probe.sum_layers(squares) / np.maximum(freedom, 1))
    # Constant parameters count as silent if a batch changes them. Untrained layers need no noise.
    is_constant = is_fine & ~differs
    return StepNoise(
        draws,
        deviations,
        freedom,
        silent=probe.sum_layers(is_constant & probe.is_trained),
        still=probe.sum_layers(is_constant & ~probe.is_trained) * probe.is_layer_trained,
        not_finite=not_finite,
        reference=reference[is_kept],
    )


def row_of(batch: str) -> str:
    """Returns the report row for the noise on a named batch from `make_batches`."""
    return "empty batch" if batch == EMPTY else "noise and data"


def run_tests(drawn: DrawnNoise) -> dict[str, dict[str, float]]:
    """Returns the p-values of all noise tests, by report row and test.

    If fewer than two parameters have noise, only the deviations are tested.
    """
    p_values = {"noise": _test_deviations(drawn)}
    for row in OTHER_ROWS:
        p_values[row] = {}
    if drawn.has_noise.sum() >= 2:
        groups = drawn.group_noise()
        for name, values in groups.items():
            p_values["independence"] |= _test_independence(name, values)
            p_values["shape"] |= _test_shape(name, values)
        # The other groups are single layers.
        p_values["independence"]["similar parameters"] = _test_copies(groups.pop(ALL_LAYERS))
        p_values["independence"][LAGS] = _test_lags(list(groups.values()))
        for batch, noise in drawn.others.items():
            if not noise.not_finite:  # NaN and infinity are findings even without a test
                p_values[row_of(batch)][batch] = _test_batch(drawn, noise)
    return p_values


def _test_shape(name: str, values: Vector) -> dict[str, float]:
    """Tests whether a group's noise (n, p) is normal, and whether its norm varies like that of normal noise.

    For p independent normal numbers with squared norm s, the cube root of s / E[s] is approximately normal
    with variance 2 / (9 p) (Wilson and Hilferty, 1931).
    """
    p_values = {}
    seeds, size = values.shape
    if name == ALL_LAYERS and values.size >= 1000:  # the test needs at least this many numbers
        p_values["distribution"] = stats.normaltest(values, axis=None).pvalue
    if size >= 8:  # with fewer parameters, the cube root is not normal enough
        squares = np.sum(values**2, axis=1)
        roots = np.cbrt(squares / squares.mean())
        ratio = np.var(roots, ddof=1) * 9 * size / 2
        p_values[f"the length of {name}"] = _test_variance(ratio, seeds)
    return p_values


def _test_variance(ratio: Any, seeds: int) -> float:
    """Returns the p-value of `ratio`, a variance over seeds divided by its expected value."""
    freedom = seeds - 2  # the noise was centered, and scaled by its own deviation
    return float(compute_two_sided_p_value(stats.chi2(freedom), freedom * ratio))


def _test_deviations(drawn: DrawnNoise) -> dict[str, float]:
    """Tests whether the noise has the stated deviation in each trained layer and in all of them together.

    The sum of squares has a chi-square distribution. Returns the largest p-values possible if rounding
    changes deviations by up to the tolerance.
    """
    given = drawn.given
    trained = given.freedom > 0
    names = np.array(drawn.probe.layer_names)[trained].tolist()
    freedom = np.append(given.freedom[trained], given.freedom.sum())
    sums = np.append(given.deviations[trained], given.deviation) ** 2 * freedom
    smallest = sums / (1 + drawn.tolerance) ** 2
    largest = sums / (1 - drawn.tolerance) ** 2
    p_values = compute_two_sided_p_value(stats.chi2(freedom), above=smallest, below=largest)
    return dict(zip([*names, ALL_LAYERS], p_values, strict=True))


def _test_batch(drawn: DrawnNoise, other: StepNoise) -> float:
    """Tests whether noise on another batch is equally large, with a Bonferroni-corrected F-test per layer."""
    is_noisy = drawn.given.deviations > _MIN_DEVIATION
    variance_ratio = (drawn.given.deviations / other.deviations)[is_noisy] ** 2
    # Rounding may change the ratio of the two deviations by twice the tolerance.
    slack = (1 + 2 * drawn.tolerance) ** 2
    law = stats.f(drawn.given.freedom[is_noisy], other.freedom[is_noisy])
    p_values = compute_two_sided_p_value(
        law, above=variance_ratio / slack, below=variance_ratio * slack
    )
    return float(np.min(p_values * len(p_values), initial=1.0))


def _test_independence(name: str, values: Vector) -> dict[str, float]:
    """Tests whether a group's noise (n, p) is correlated across parameters."""
    noise = stats.zscore(values)
    seeds, size = noise.shape
    # The sum of p independent numbers with variance 1 has variance p.
    ratio = np.mean(noise.sum(axis=1) ** 2) / size
    return {
        f"the covariance of {name}": _compute_covariance_p_value(noise),
        f"the sum of {name}": _test_variance(ratio, seeds),
    }


def _test_copies(noise: Vector) -> float:
    """Tests whether any two parameters have correlated `noise` (n, p), such as copies of one draw.

    Copies, scaled to deviation 1, have the same absolute value for the first seed. Sorts parameters by this
    value, and tests the largest correlation between neighbours over the other seeds, with a Bonferroni
    correction.
    """
    order = np.argsort(abs(stats.zscore(noise)[0]))
    others = stats.zscore(noise[1:, order])
    correlations = abs(np.mean(others[:, 1:] * others[:, :-1], axis=0))
    largest = min(correlations.max(), 1 - 1e-9)  # avoids division by 0
    freedom = len(others) - 2
    p_value = 2 * stats.t.sf(largest * np.sqrt(freedom / (1 - largest**2)), freedom)
    return float(min(1, p_value * len(correlations)))


def _test_lags(layers: list[Vector]) -> float:
    """Tests whether a layer's noise is correlated with any layer's noise for a later seed.

    `layers` contains the noise (n, p) of each layer with at least two parameters. A generator seeded with the
    sum of the seed and the layer's index causes such correlations. Compares up to 500 numbers per layer, in
    layers up to eight places apart, for nearly all pairs of seeds. The inner product of a fixed vector and
    independent standard normal numbers is normal, and its variance is the vector's squared norm.
    """
    deviates = [0.0]  # in case there are no layers
    noise = [stats.zscore(layer[:, :500]) for layer in layers]
    for i, first in enumerate(noise):
        for second in noise[max(i - 8, 0) : i + 9]:
            size = min(first.shape[1], second.shape[1])
            products = first[:, :size] @ second[:, :size].T
            squares = np.cumsum(np.sum(first[:, :size] ** 2, axis=1))
            seeds = len(first)
            for lag in range(1, max(seeds // 2, seeds - 8)):
                total = np.trace(products, lag)
                # Subtracting the mean makes the correlation between two seeds -1 / (seeds - 1).
                if first is second:
                    total += size * (seeds - lag) / (seeds - 1)
                deviates.append(total / np.sqrt(squares[seeds - lag - 1]))
    p_value = 2 * stats.norm.sf(np.max(np.abs(deviates)))
    return float(min(1, p_value * len(deviates)))


def _compute_covariance_p_value(noise: Vector) -> float:
    """Returns the p-value of a test for covariance between the parameters.

    The statistic is tr(S1 S2) for the covariance matrices S1 and S2 of two halves of the seeds. It estimates
    tr(S^2) for the true covariance matrix S. Shared draws increase tr(S^2), regardless of their positions and
    signs. `noise` (n, p) has variance 1 in every parameter.
    """
    half = min(len(noise) // 2, 500)  # at most 500, to limit the time
    first = noise[:half] - noise[:half].mean(axis=0)
    second = noise[half : 2 * half] - noise[half : 2 * half].mean(axis=0)
    # Without its mean, `second` has variance (half - 1) / half.
    statistic = np.sum((first @ second.T) ** 2) / np.mean(second**2) * (half - 1) / half
    # Given the first half, the statistic is a sum of chi-square variables with half - 1 degrees of freedom
    # each, weighted by the eigenvalues of first @ first.T. Satterthwaite's approximation is one scaled
    # chi-square variable with the same mean and variance.
    sum_of_weights = np.sum(first**2)
    scale = np.sum((first @ first.T) ** 2) / sum_of_weights
    freedom = (half - 1) * sum_of_weights / scale
    return float(stats.chi2.sf(statistic / scale, freedom))


def compute_two_sided_p_value(distribution: Any, above: Any, below: Any = None) -> Any:
    """Returns two-sided p-values: twice the smaller tail probability, at most 1.

    Args:
      distribution: the null distribution, from scipy.stats.
      above: the statistics for the upper tail; with rounding, their smallest possible values.
      below: the statistics for the lower tail, or their largest possible values; None if equal to `above`.
    """
    if below is None:
        below = above
    return np.minimum(1, 2 * np.minimum(distribution.sf(above), distribution.cdf(below)))


def find_ties(drawn: DrawnNoise) -> str:
    """Finds ties (equal noise for different seeds) that chance and rounding cannot explain.

    Ties are rare in continuous noise, but not in clamped noise or on a grid. If the step rounds or clamps the
    noisy sum, draws on another batch have the same values, and the noise may be correct.

    Returns:
      AT_ENDS if most ties are at a parameter's smallest and largest values, as in clamped noise; AT_ONE if
      each parameter has about one tied value, as happens if noise is sometimes missing; GRID if it has more;
      CLAMPED_SUM if the noisy sum is clamped or set to a constant, such as 0; otherwise NO_TIES.
    """
    columns = drawn.has_noise
    draws = drawn.given.draws[:, columns]
    # Two draws tie if they differ by at most one floating-point spacing; 1e-9 covers float64 errors.
    tolerances = 1.5 * drawn.rounding[columns] + 1e-9
    # Two normal draws tie by chance with probability 2 tolerance / sqrt(4 pi) / deviation, computed from the
    # density of their difference at 0. A float32 generator repeats a number with probability 2^-22.
    rates = 2 * tolerances / np.sqrt(4 * np.pi) / draws.std(axis=0) + 2.0**-22
    kind = _classify_ties(draws, tolerances, rates)
    if kind == NO_TIES:
        return kind
    # Larger features are left out, because they may not change the sum of clipped gradients. Parameters with
    # the same sum on both batches, such as unused embedding rows, are used only if there are no others.
    batches = [noise for name, noise in drawn.others.items() if name != FEATURES]
    is_tied = np.any(_mark_ties(draws, tolerances), axis=0)
    for other in batches or [drawn.given]:  # without another batch, all ties are shared
        is_used = is_tied & (other.reference != drawn.given.reference)[columns]
        if not is_used.any():
            is_used = is_tied
        other_draws = other.draws[:, columns][:, is_used]
        if _are_ties_shared(
            draws[:, is_used], other_draws, tolerances[is_used], rates[is_used], kind
        ):
            # Rounding the noisy sum does not weaken privacy.
            return NO_TIES if kind == GRID else CLAMPED_SUM
    return kind


def _classify_ties(draws: Vector, tolerances: Vector, rates: Vector) -> str:
    """Returns whether most ties are AT_ENDS, AT_ONE value or on a GRID; NO_TIES if they may be due to chance.

    For p noisy parameters with `draws` (n, p), `tolerances` (p,) are the largest differences between tied
    draws, and `rates` (p,) are the probabilities that two draws tie by chance.
    """
    seeds, size = draws.shape
    num_ties = np.count_nonzero(_mark_ties(draws, tolerances))
    at_ends = draws - draws.min(axis=0) <= tolerances, draws.max(axis=0) - draws <= tolerances
    ties_at_ends = np.sum(at_ends) - 2 * size  # k equal draws count as k - 1 ties
    by_chance = rates.sum() * math.comb(seeds, 2)
    # The probability that a Poisson variable exceeds 3 * mean + 4 is below 1e-4. Clamped noise has most
    # ties, but few draws, at the ends; two-valued noise has all draws there.
    are_many_at_ends = ties_at_ends > max(3 * by_chance + 4, 0.5 * num_ties)
    if are_many_at_ends and ties_at_ends < 0.5 * draws.size:
        return AT_ENDS
    if num_ties < 3 * by_chance + _MIN_TIES:
        return NO_TIES
    # AT_ONE requires about one tied value per parameter, sometimes shared by three or more seeds. A grid has
    # more values.
    num_values = _count_tied_values(draws, tolerances)
    return AT_ONE if num_values < min(1.5 * size, 0.9 * num_ties) else GRID


def _are_ties_shared(
    draws: Vector, others: Vector, tolerances: Vector, rates: Vector, kind: str
) -> bool:
    """Returns True if draws on another batch, `others` (m, p), tie with `draws` (n, p) too often for chance.

    If so, the noisy sum is rounded or clamped. `kind` classifies the ties within `draws`. `tolerances` (p,)
    are the largest differences between tied draws, and `rates` (p,) the probabilities of chance ties.
    """
    both = np.concatenate([draws, others])
    # The other batch adds ties within `others`, and between `others` and `draws`.
    added = np.count_nonzero(_mark_ties(both, tolerances))
    added -= np.count_nonzero(_mark_ties(draws, tolerances))
    shared = added - np.count_nonzero(_mark_ties(others, tolerances))
    # k equal draws count as k - 1 ties, so a value in both batches adds one shared tie. On a grid, each value
    # has few draws, so many added ties are shared. Otherwise, each value has many draws but only one shared
    # tie, so sharing half of the tied values suffices.
    limit = _MAX_SHARED * added
    if kind != GRID:
        limit = np.minimum(limit, 0.5 * _count_tied_values(draws, tolerances))
    by_chance = rates.sum() * len(draws) * len(others)
    return bool(shared > max(limit, stats.poisson.isf(1e-3, by_chance)))


def _count_tied_values(draws: Vector, tolerances: Vector) -> int:
    """Returns the number of distinct tied values, summed over columns."""
    is_tie = _mark_ties(draws, tolerances)
    return np.sum(is_tie, dtype=int) - np.sum(is_tie[1:] & is_tie[:-1], dtype=int)


def _mark_ties(draws: Vector, tolerances: Vector) -> Mask:
    """Sorts each column of draws (n, p), and returns a mask (n - 1, p) of tied neighbours."""
    return np.diff(np.sort(draws, axis=0), axis=0) <= tolerances


def count_repeats(drawn: DrawnNoise) -> int:
    """Returns how many seeds exactly repeat another seed's noise; 0 if this may be due to chance."""
    values = drawn.given.values
    num_changing = values.any(axis=0).sum()
    # In fewer than eight 16-bit floats, seeds may agree by chance. If no parameter changes, all seeds agree.
    if 0 < num_changing < 8:
        return 0
    return len(values) - len(np.unique(values, axis=0))
