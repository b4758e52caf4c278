"""A step's noise over seeds, and the statistical tests of it.

The noise is drawn with many seeds, at the batch as given and at others. It is in units of the stated
deviation eta sigma C / B. Its mean over n seeds is removed, which leaves n - 1 degrees of freedom a number.
"""

import zlib
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import examples, trees
from audit.check.probe import RefusedError, StepProbe
from audit.check.trees import Array, Columns, Integers, Mask, Vector

EMPTY = "an empty batch"
FOURFOLD = "four times the batch"
QUARTER = "a quarter of the batch"
FEATURES = "features times 1000"
ALL_LAYERS = "all layers together"
CONSECUTIVE = "consecutive seeds"
SUM_OF = "the sum of"  # and the name of a layer: a test
LENGTH_OF = "the length of"

_MAX_SIGN_SPREAD = 1.15  # largest over smallest movement of a number by Adam's first step
_REACH = 6  # deviations from the mean, beyond which draws are practically impossible
_MAX_ROUNDING = 1 / 32  # deviations: finer rounding does not show in the noise's tests
_MIN_DEVIATION = 0.01  # times the stated one: a number with less has no noise
_MIN_SHAPE_FREEDOM = 1000  # degrees of freedom over all layers, for a test of the shape
_MIN_NUMBERS = 8  # of a layer, for the test of its noise's length
_MAX_HALF = 500  # seeds in each half of the test of covariance, which bounds its time

_FREEDOM = 320  # degrees of freedom to reach in the smallest layer
_NUMBERS = 20_000  # to draw over all layers and seeds
_MAX_SECONDS = 20.0  # for these draws
_MAX_NUMBERS = 60_000  # stored of a draw, about


class StepNoise(NamedTuple):
    """The steps of n seeds at a single batch, in k of the parameters.

    Attributes:
      draws: (n, k) the parameters after the step, less those before it, in units of the stated deviation.
      deviations: (layers,) the noise's standard deviation in each layer, in the same units.
      freedom: (layers,) the degrees of freedom of these deviations; 0 in layers that are not trained.
      silent: (layers,) how many of all the layer's parameters are the same for every seed.
      not_finite: how many of the draws have NaN or infinity in any of all the parameters.
    """

    draws: Vector
    deviations: Vector
    freedom: Integers
    silent: Integers
    not_finite: int

    @property
    def deviation(self) -> Any:
        """The standard deviation over all trained layers, in the same units.

        It is the root of the layers' mean variance, weighted by their degrees of freedom; NaN if all
        parameters are hidden by rounding.
        """
        return np.sqrt(np.sum(self.freedom * self.deviations**2) / np.sum(self.freedom))

    @property
    def values(self) -> Vector:
        """(n, k) The draws less their mean over seeds, exactly 0 where all draws are equal."""
        noise = self.draws - self.draws[0]
        return np.asarray(noise - noise.mean(axis=0))


class DrawnNoise(NamedTuple):
    """The noise at the batch as given and at others.

    All batches have the same k parameters: of each layer the first, without those whose rounding is coarse.

    Attributes:
      layer_names: (layers,) the layers' names.
      layer: (k,) the index of each parameter's layer.
      rounding: (k,) the largest spacing of floating-point numbers that a draw may reach at the batch as
        given, in units of the stated deviation.
      tolerance: the relative error that rounding may cause in a deviation.
      given: the noise at the batch as given.
      others: the noise at each other batch, by its name.
      refused: by the name of another batch, the error of the step that refused it.
    """

    layer_names: list[str]
    layer: Integers
    rounding: Vector
    tolerance: float
    given: StepNoise
    others: dict[str, StepNoise]
    refused: dict[str, str]

    @property
    def has_noise(self) -> Mask:
        """(k,) Whether a parameter has noise at the batch as given."""
        return np.asarray(self.given.values.std(axis=0) > _MIN_DEVIATION)

    def group_noise(self) -> dict[str, Vector]:
        """Returns the noise of all layers together, and of each layer with two or more noisy parameters.

        Each is (n, numbers): the noise of n seeds in the noisy parameters, at the batch as given.
        """
        values = self.given.values[:, self.has_noise]
        layer = self.layer[self.has_noise]
        groups = {ALL_LAYERS: values}
        for i in np.flatnonzero(np.bincount(layer) > 1):
            groups[self.layer_names[i]] = values[:, layer == i]
        return groups

    def is_sign_step(self) -> bool:
        """Returns whether a step moves all parameters equally far on any batch, as Adam's first does."""
        edges = []
        for noise in (self.given, *self.others.values()):
            distances = np.abs(noise.draws[noise.draws != 0])
            if distances.size:
                # Without the extremes, since a gradient near 0 moves its parameter less.
                edges.append(np.nanquantile(distances, [0.05, 0.95]))
        low, high = np.transpose(edges).reshape(2, -1)
        return len(edges) > 1 and bool(np.max(high) < _MAX_SIGN_SPREAD * np.min(low))


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws a step's noise with many seeds, at the batch as given and at others.

    Args:
      probe: the step.
      seeds: the number of draws at the batch as given; by default up to what layers need and time allows.
      seconds: the time of a draw.

    Raises:
      RefusedError: the step fails at the batch as given.
    """
    count = seeds or _choose_count(probe, seconds)

    # Coarse rounding would show in tests of the noise. Parameters are selected by the rounding at the
    # farthest value that they can draw, not at the values that they drew: otherwise those that drew far
    # values would be left out, and the noise's tails with them. Noise that is much larger than stated, as
    # without clipping, allows coarser rounding. Two draws of right noise differ by less than 10 deviations.
    deviation = probe.settings.unit * probe.settings.noise_multiplier
    difference = probe.run(probe.rows, 1) - probe.base
    larger_deviation = max(deviation, 0.1 * np.max(np.abs(difference)))
    farthest = np.abs(probe.base) + _REACH * larger_deviation
    spacing = trees.compute_ulp(farthest, probe.spacings)
    is_fine = spacing <= _MAX_ROUNDING * larger_deviation
    # Only the first parameters of each layer are stored for every seed, which bounds the memory.
    share = max(_MAX_NUMBERS // len(probe.layer_names), 256)
    place_in_layer = np.arange(probe.start.size) - np.searchsorted(probe.layer, probe.layer)
    is_kept = is_fine & (place_in_layer < share)

    # The seeds are consecutive, as in a training that counts its steps. They follow from the stated numbers
    # and the parameters: with the same seeds for all steps, a chance correlation of a generator would be
    # reported for all of them.
    numbers = repr(probe.settings).encode() + probe.start.tobytes()
    first_seed = zlib.crc32(numbers) % 2**30
    given_seeds = range(first_seed, first_seed + count)
    given = _draw_at(probe, probe.rows, given_seeds, is_fine, is_kept)

    # Noise at other batches is only compared with that at the batch as given, so fewer draws are enough. They
    # have other seeds, since the tests that compare them assume independent draws.
    fewer = int(np.clip(count // 4, 12, 80))
    other_seeds = range(given_seeds.stop, given_seeds.stop + fewer)
    rows = probe.rows
    batches = {
        QUARTER: examples.take(rows, slice(0, max(1, len(rows[0]) // 4))),
        FOURFOLD: examples.join(rows, rows, rows, rows),
        FEATURES: examples.scale_features(rows, 1e3, rows),
        EMPTY: examples.take(rows, slice(0, 0)),
    }
    others = {}
    refused = {}
    for name, batch in batches.items():
        try:
            others[name] = _draw_at(probe, batch, other_seeds, is_fine, is_kept)
        except RefusedError as error:
            refused[name] = str(error)
    return DrawnNoise(
        layer_names=probe.layer_names,
        layer=probe.layer[is_kept],
        rounding=spacing[is_kept] / deviation,
        # Four spacings leave room for rounding each of the noise's factors, such as sigma C, eta and 1 / B.
        tolerance=4 * float(np.max(probe.spacings)),
        given=given,
        others=others,
        refused=refused,
    )


def _choose_count(probe: StepProbe, seconds: float) -> int:
    """Returns the number of seeds to draw: what layers need and time allows, at least 12."""
    # A layer of p parameters gets p degrees of freedom from each seed.
    needed = max(_FREEDOM / min(probe.sizes), _NUMBERS / probe.start.size, 64)
    return int(max(min(needed, 2000, _MAX_SECONDS / seconds), 12))


def _draw_at(
    probe: StepProbe,
    rows: Columns,
    seeds: range,
    is_fine: Mask,
    is_kept: Mask,
) -> StepNoise:
    """Takes steps at a batch with different seeds, and measures the noise by which they differ.

    Args:
      probe: the step.
      rows: the batch's columns.
      seeds: the seeds.
      is_fine: (p,) whether a parameter's rounding is fine enough that noise changes it at every seed.
      is_kept: (p,) whether a parameter's draws are stored.

    Raises:
      RefusedError: the step refuses the batch.
    """
    reference = probe.run(rows, 0)
    differs = np.zeros(probe.start.size, bool)  # whether a parameter differs between seeds
    not_finite = 0
    kept = []
    for seed in seeds:
        after = probe.run(rows, seed)
        differs |= after != reference
        not_finite += not np.all(np.isfinite(after))
        kept.append(after[is_kept])

    deviation = probe.settings.unit * probe.settings.noise_multiplier
    draws = (np.array(kept) - probe.start[is_kept]) / deviation
    squares = np.sum((draws - draws.mean(axis=0)) ** 2, axis=0)
    layer = probe.layer[is_kept]
    num_layers = len(probe.layer_names)
    # Layers that are not trained get no degrees of freedom: tests skip them.
    freedom = np.bincount(layer, minlength=num_layers) * (len(seeds) - 1) * probe.is_layer_trained
    layer_squares = np.bincount(layer, squares, num_layers)
    return StepNoise(
        draws=draws,
        deviations=np.sqrt(layer_squares / np.maximum(freedom, 1)),
        freedom=freedom,
        silent=probe.sum_layers(is_fine & ~differs),
        not_finite=not_finite,
    )


def row_of(batch: str) -> str:
    """Returns the name of the report's row for the noise at another batch."""
    return "empty batch" if batch == EMPTY else "noise and data"


def run_tests(drawn: DrawnNoise) -> dict[str, dict[str, float]]:
    """Returns the p-values of all tests of the noise, by row of the report and by test.

    If fewer than two numbers have noise, only its deviations are tested.
    """
    p_values: dict[str, dict[str, float]] = {
        "noise": _test_deviations(drawn),
        "independence": {},
        "shape": {},
        "noise and data": {},
        "empty batch": {},
    }
    if np.sum(drawn.has_noise) < 2:
        return p_values
    p_values["independence"] = _test_independence(drawn)
    p_values["shape"] = _test_distribution(drawn)
    for batch, noise in drawn.others.items():
        if not noise.not_finite:  # otherwise that is a finding, which needs no test
            p_values[row_of(batch)][batch] = _test_batch(drawn, noise)
    return p_values


def _test_deviations(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that the noise is as large as stated, in each trained layer and in all together."""
    given = drawn.given
    trained = np.flatnonzero(given.freedom)
    names = np.array(drawn.layer_names)[trained].tolist()
    freedom = given.freedom[trained]
    squares = given.deviations[trained] ** 2 * freedom
    if len(trained) > 1:
        names.append(ALL_LAYERS)
        freedom = np.append(freedom, np.sum(freedom))
        squares = np.append(squares, np.sum(squares))
    least = squares / (1 + drawn.tolerance) ** 2
    most = squares / (1 - drawn.tolerance) ** 2
    p_values = compute_two_sided_p_value(stats.chi2(freedom), least, most)
    return dict(zip(names, p_values.tolist(), strict=True))


def _test_batch(drawn: DrawnNoise, other: StepNoise) -> float:
    """Tests that the noise is as large at another batch: by an F-test in each noisy layer (Bonferroni)."""
    given = drawn.given
    is_noisy = given.deviations > _MIN_DEVIATION
    quotient = (given.deviations[is_noisy] / other.deviations[is_noisy]) ** 2
    slack = (1 + 2 * drawn.tolerance) ** 2  # how far rounding may change the quotient
    law = stats.f(given.freedom[is_noisy], other.freedom[is_noisy])
    p_values = compute_two_sided_p_value(law, quotient / slack, quotient * slack)
    return float(np.min(p_values * len(p_values), initial=1.0))


def _test_independence(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that noise is uncorrelated between consecutive seeds, layers and numbers."""
    groups = drawn.group_noise()
    noise = stats.zscore(groups[ALL_LAYERS])
    seeds, numbers = noise.shape
    # The mean over seeds was subtracted, which correlates two seeds by -1 / (seeds - 1).
    correlation = np.mean(noise[:-1] * noise[1:]) + 1 / (seeds - 1)
    p_values = {CONSECUTIVE: _compute_correlation_p_value(correlation, (seeds - 2) * numbers)}

    # Layers are compared by their first numbers, which are equal if each layer's generator has the same seed.
    _, firsts = np.unique(drawn.layer[drawn.has_noise], return_index=True)
    if len(firsts) > 1:
        correlations = np.triu(np.corrcoef(noise[:, firsts].T), 1)
        p_value = _compute_correlation_p_value(np.max(np.abs(correlations)), seeds - 2)
        pairs = len(firsts) * (len(firsts) - 1) / 2
        p_values["layers"] = min(1.0, pairs * p_value)

    for name, values in groups.items():
        p_values[f"the covariance of {name}"] = _compute_covariance_p_value(stats.zscore(values))
    return p_values | _test_ratios(drawn, SUM_OF, compute_shares(drawn))


def _compute_correlation_p_value(correlation: Any, freedom: int) -> float:
    """Returns the two-sided p-value of the null hypothesis of no correlation, by Student's t."""
    # The floor is for a correlation of 1 or more, whose root would not be real.
    student = np.abs(correlation) * np.sqrt(freedom / max(1 - correlation**2, 1e-12))
    return float(2 * stats.t.sf(student, freedom))


def _compute_covariance_p_value(noise: Vector) -> float:
    """Returns the p-value of the null hypothesis that numbers are independent, by their covariances.

    The statistic is tr(S1 S2), where S1 and S2 are the covariance matrices of two halves of the seeds. It
    estimates tr(S^2), which is smallest for independent numbers: numbers that share draws increase it,
    wherever they are and whatever their signs.

    Args:
      noise: (n, numbers) the noise, with variance 1 in every number.
    """
    half = min(len(noise) // 2, _MAX_HALF)
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


def compute_shares(drawn: DrawnNoise) -> dict[str, float]:
    """Returns, by layer and for all layers, the variance of the noise's sum over the sum of variances.

    It is 1 for independent numbers.
    """
    shares = {}
    for name, values in drawn.group_noise().items():
        noise = stats.zscore(values)
        shares[name] = float(np.mean(np.sum(noise, axis=1) ** 2) / noise.shape[1])
    return shares


def compute_length_spreads(drawn: DrawnNoise) -> dict[str, float]:
    """Returns, by layer and for all layers, how much the norm of the noise varies over seeds.

    It is 1 for p independent normal numbers: the square of their norm over its mean, to the power 1/3, has
    variance 2 / 9p (Wilson and Hilferty, 1931).
    """
    spreads = {}
    for name, values in drawn.group_noise().items():
        squares = np.sum(values**2, axis=1)
        numbers = values.shape[1]
        if numbers >= _MIN_NUMBERS:
            roots = np.cbrt(squares / np.mean(squares))
            spreads[name] = float(np.var(roots, ddof=1) * 9 * numbers / 2)
    return spreads


def _test_ratios(drawn: DrawnNoise, test: str, ratios: dict[str, float]) -> dict[str, float]:
    """Tests that variances over seeds, each divided by its value for independent normal numbers, are 1."""
    # Without the mean, and the deviation by which numbers are divided.
    freedom = len(drawn.given.draws) - 2
    law = stats.chi2(freedom)
    p_values = {}
    for name, ratio in ratios.items():
        p_values[f"{test} {name}"] = float(compute_two_sided_p_value(law, freedom * ratio))
    return p_values


def _test_distribution(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that the noise over its deviation in all layers is normal, and the spread of its norms.

    Noise that differs by layer is not normal, which is another bug.
    """
    p_values = _test_ratios(drawn, LENGTH_OF, compute_length_spreads(drawn))
    values = drawn.group_noise()[ALL_LAYERS]
    if values.size >= _MIN_SHAPE_FREEDOM:
        # The root of the mean variance; subtracting the mean over seeds has shrunk the values.
        values = values / np.sqrt(np.mean(values**2))
        p_values["distribution"] = compute_fit_p_value(values.ravel(), stats.norm())
    return p_values


def compute_two_sided_p_value(distribution: Any, above: Any, below: Any = None) -> Any:
    """Returns two-sided p-values: twice the smaller tail probability, at most 1.

    Args:
      distribution: the statistics' distribution under the null hypothesis, of scipy.stats.
      above: the statistics that are compared with the upper tail.
      below: the statistics that are compared with the lower tail, by default the same. Uncertain statistics
        are given at their smallest in `above` and at their largest in `below`.
    """
    if below is None:
        below = above
    return np.minimum(1, 2 * np.minimum(distribution.sf(above), distribution.cdf(below)))


def compute_fit_p_value(values: Array, distribution: Any) -> float:
    """Returns the p-value of a chi-square test that values come from a distribution.

    Values are counted in intervals that are as likely as those of a normal law between multiples of half a
    deviation, from -4 to 4; edges beyond which 10 values or fewer are expected are left out. Fewer than 5
    expected values in an interval count as 5 in the divisor, which makes the test conservative.

    Args:
      values: (n,) the values, independent of each other; more than 20, or no edge remains.
      distribution: a continuous or discrete distribution of scipy.stats.
    """
    levels = stats.norm.cdf(np.arange(-4, 4.1, 0.5))
    levels = levels[len(values) * np.minimum(levels, 1 - levels) > 10]
    edges = np.unique(distribution.ppf(levels))  # a discrete distribution may repeat an edge
    expected = np.diff([0.0, *distribution.cdf(edges), 1.0]) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(expected))
    statistic = np.sum((counts - expected) ** 2 / np.maximum(expected, 5))
    return float(stats.chi2.sf(statistic, len(edges)))
