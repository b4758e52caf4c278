"""A step's noise over seeds, and the statistical tests of it.

The noise is drawn with many seeds, at the batch as given and at others. It is in units of the stated
deviation eta sigma C / B. Its mean over n seeds is removed, which leaves n - 1 degrees of freedom a number.
"""

import itertools
import time
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, stats

from audit.check import examples, trees
from audit.check.probe import RefusedError, StepProbe
from audit.check.trees import Columns, Vector

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
_EXACT = 32  # rounding does not show in the shape of noise this many times as large
_TAILS = (3.0, 3.5, 4.0)  # deviations beyond which draws are counted
_MIN_SHAPE_FREEDOM = 1000  # degrees of freedom over all layers, for a test of the shape
_MIN_IN_TAIL = 16.0  # expected draws in a tail, for a test
_NUM_PROJECTIONS = 3  # random projections of each layer's noise
_SIGNS_SEED = 7
_MIN_NUMBERS = 8  # of a layer, for the test of its noise's length
_MIN_PAIRS = 6  # of seeds, for the same

_FREEDOM = 320  # degrees of freedom to reach in the smallest layer, in at most _MAX_SECONDS
_NUMBERS = 20_000  # to draw over all layers and seeds, in at most _FEW_SECONDS
_MAX_NUMBERS = 60_000  # stored of a draw, about
_FEW_SECONDS = 3.0
_MAX_SECONDS = 20.0
_SLOW_SECONDS = 40.0  # if the batch as given takes longer, other batches get only four draws


class StepNoise(NamedTuple):
    """The noise of n seeds at a single batch, in k of the parameters, in units of the stated deviation.

    Attributes:
      draws: (n, k) the parameters after the step, less those before it.
      rounding: (k,) the largest spacing of floating-point numbers at any of the n draws.
      values: (n, k) the noise, less its mean over seeds; 0 if rounding hides it.
      layer: (k,) the index of each parameter's layer.
      exact: (k,) whether rounding is too fine to show in the shape of the noise.
      deviations: (layers,) the noise's standard deviation in each layer, without what rounding adds.
      freedom: (layers,) the degrees of freedom of these deviations.
      tolerance: (layers,) the relative error that rounding may cause in deviations.
      silent: (layers,) how many of all the layer's parameters are the same for every seed.
      counts: (layers,) how many of them are not; 0 in layers whose rounding shows.
      not_finite: how many of the draws have NaN or infinity in any of all the parameters.
      lengths: (pairs, layers) the squared norm of the difference of two consecutive seeds over sqrt(2), which
        has mean 0, over the whole layer, in squared parameters.
      sums: (1 + _NUM_PROJECTIONS, pairs, layers) the sum of this difference, and sums with random signs.
    """

    draws: Vector
    rounding: Vector
    values: Vector
    layer: NDArray[np.int64]
    exact: NDArray[np.bool_]
    deviations: Vector
    freedom: NDArray[Any]
    tolerance: Vector
    silent: NDArray[Any]
    counts: NDArray[Any]
    not_finite: int
    lengths: Vector
    sums: Vector


class DrawnNoise(NamedTuple):
    """The noise at the batch as given and at others.

    Attributes:
      layer_names: (layers,) the layers' names.
      layer_sizes: (layers,) the number of parameters of each layer.
      hidden: the indices of the trained layers whose noise is smaller than their rounding.
      given: the noise at the batch as given; layers that are not trained have 0 degrees of freedom.
      others: the noise at each other batch, by its name.
      refused: by the name of another batch, the error of the step that refused it.
    """

    layer_names: list[str]
    layer_sizes: NDArray[np.int64]
    hidden: NDArray[np.int64]
    given: StepNoise
    others: dict[str, StepNoise]
    refused: dict[str, str]

    def compute_deviation(self, batch: str = "") -> Any:
        """Returns the noise's standard deviation over all trained layers, in units of the stated deviation.

        It is the root of the layers' mean variance, weighted by their degrees of freedom; NaN if the batch
        shows no noise.

        Args:
          batch: a name in `others`; empty for the batch as given.
        """
        noise = self.others.get(batch, self.given)
        # Layers without freedom at the batch as given are not trained, or have no visible noise.
        freedom = np.where(self.given.freedom > 0, noise.freedom, 0)
        return np.sqrt(np.sum(freedom * noise.deviations**2) / np.sum(freedom))

    @property
    def least_deviation(self) -> float:
        """The deviation above which noise counts: 1% of the measured or the stated one; may be NaN."""
        # `min` returns the first argument if it is NaN.
        return 0.01 * float(min(self.compute_deviation(), 1))

    @property
    def has_noise(self) -> NDArray[np.bool_]:
        """(k,) Whether a parameter has noise; False for all if no noise is visible."""
        return np.asarray(self.given.values.std(axis=0) > self.least_deviation)

    def is_sign_step(self) -> bool:
        """Returns whether a step moves all parameters equally far on any batch, as Adam's first does."""
        edges = []
        for noise in (self.given, *self.others.values()):
            draws = np.abs(noise.draws)
            # Distances that rounding may have changed by more than 2% are left out.
            draws = draws[np.isfinite(draws) & (draws > 50 * noise.rounding)]
            if draws.size >= 16:
                # Without the extremes, since a gradient near 0 moves its parameter less.
                edges.append(np.quantile(draws, [0.05, 0.95]))
        if len(edges) < 2:
            return False
        low, high = np.transpose(edges)
        return bool(np.max(high) < _MAX_SIGN_SPREAD * np.min(low))


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws a step's noise with many seeds, at the batch as given and at others.

    Args:
      probe: the step.
      seeds: the number of draws at the batch as given; by default up to what layers need and time allows.
      seconds: the time of a draw.

    Raises:
      RefusedError: the step fails at the batch as given.
    """
    began = time.perf_counter()
    probe.run(probe.rows, 1)  # together with the first step it shows which parameters are trained
    count = seeds or _choose_count(probe, seconds)
    given = _draw_at(probe, probe.rows, stream=0, count=count)

    # Noise at other batches is only compared with that at the batch as given, so fewer draws are enough.
    fewer = max(12, min(count, _FREEDOM) // 4)
    if time.perf_counter() - began >= _SLOW_SECONDS:
        fewer = 4
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
            others[name] = _draw_at(probe, batch, stream=1, count=fewer)
        except RefusedError as error:
            refused[name] = str(error)

    # Now `probe.is_trained` marks each parameter that some step changed differently from the first step. A
    # layer is trained if any of its parameters is. Other layers get no degrees of freedom: tests skip them.
    is_trained = probe.sum_layers(probe.is_trained) > 0
    hidden = np.flatnonzero(is_trained & (given.freedom == 0))
    given = given._replace(freedom=given.freedom * is_trained)
    sizes = np.bincount(probe.layer)
    return DrawnNoise(probe.layer_names, sizes, hidden, given, others, refused)


def _choose_count(probe: StepProbe, seconds: float) -> int:
    """Returns the number of seeds to draw: what the trained layers need and time allows, at least 12."""
    # A layer of p parameters gets about p degrees of freedom from each seed. `needed` seeds, at least 64,
    # give the smallest layer _FREEDOM of them, and may take up to _MAX_SECONDS. `better`, from `needed` to
    # 2,000, draw _NUMBERS over all layers, but may take only _FEW_SECONDS.
    is_trained = probe.sum_layers(probe.is_trained) > 0
    sizes = np.bincount(probe.layer)[is_trained].tolist() or [_FREEDOM]
    needed = int(np.clip(_FREEDOM / min(sizes), 64, _FREEDOM))
    better = int(np.clip(_NUMBERS / sum(sizes), needed, 2000))
    in_few_seconds = min(better, int(_FEW_SECONDS / seconds))
    return max(in_few_seconds, min(needed, int(_MAX_SECONDS / seconds)), 12)


def _draw_at(probe: StepProbe, rows: Columns, stream: int, count: int) -> StepNoise:
    """Takes `count` steps at a batch with different seeds, and measures the noise by which they differ.

    Only the first parameters of each layer are stored for every seed, which bounds the memory: an equal share
    of _MAX_NUMBERS, at least 256. Parameters whose rounding is coarser than their noise are left out of the
    deviations; the variance that rounding adds to the others is subtracted.

    Args:
      probe: the step.
      rows: the batch's columns.
      stream: 0 for the batch as given, 1 for all others; they have different seeds.
      count: the number of steps.

    Raises:
      RefusedError: the step refuses the batch.
    """
    # The seeds, in pairs of consecutive numbers, follow from the stated numbers and the parameters: with the
    # same seeds for all steps, a chance correlation of a generator would be reported for all of them.
    text = repr(probe.settings).replace("StepSettings", "Stated")
    step_seed = zlib.crc32(text.encode() + probe.start.tobytes())
    rng = np.random.default_rng([step_seed, stream])
    firsts = 2 * rng.integers(1, 2**30, (count + 1) // 2)
    seeds = np.column_stack([firsts, firsts + 1]).ravel()[:count].tolist()

    place_in_layer = np.arange(probe.start.size) - np.searchsorted(probe.layer, probe.layer)
    is_kept = place_in_layer < max(_MAX_NUMBERS // len(probe.layer_names), 256)
    rng = np.random.default_rng(_SIGNS_SEED)
    shape = (1 + _NUM_PROJECTIONS, probe.start.size)
    signs = rng.choice(np.array([-1, 1], np.int8), shape)
    signs[0] = 1
    kept = []
    lengths = []
    sums = []
    differs = np.zeros(probe.start.size, bool)  # whether a parameter differs between seeds
    not_finite = 0
    first = even = np.zeros(0)  # all parameters after the first step, and after the last even seed
    for i, seed in enumerate(seeds):
        after = probe.run(rows, seed)
        if i == 0:
            first = after
        differs |= after != first
        not_finite += not np.all(np.isfinite(after))
        kept.append(after[is_kept])
        if i % 2 == 0:
            even = after
            continue
        difference = (after - even) / 2**0.5
        lengths.append(probe.sum_layers(difference**2))
        sums.append([probe.sum_layers(sign * difference) for sign in signs])

    deviation = probe.settings.unit * probe.settings.noise_multiplier
    spacings = probe.spacings[is_kept]
    layer = probe.layer[is_kept]
    draws = np.array(kept)
    # The first draw is subtracted, so a parameter that never changes is exactly 0 below.
    noise = (draws - draws[0]) / deviation
    noise = noise - noise.mean(axis=0)
    rounding = trees.compute_ulp(draws, spacings) / deviation
    # Parameters are selected by the rounding at the farthest value that they can draw, not at the values that
    # they drew: otherwise those that drew far values would be left out, and the noise's tails with them.
    farthest = np.abs(draws.mean(axis=0)) + _REACH * deviation
    farthest_rounding = trees.compute_ulp(farthest, spacings) / deviation
    is_visible = farthest_rounding <= max(1.0, float(np.median(noise.std(axis=0))))
    is_exact = _EXACT * farthest_rounding <= 1
    # Sheppard's correction: rounding to a spacing h adds a variance of h^2 / 12.
    freedom = count - 1
    squares = np.sum(noise**2, axis=0) - freedom / 12 * np.mean(rounding**2, axis=0)
    layer_freedom = freedom * np.bincount(layer, is_visible)
    layer_squares = np.bincount(layer, np.where(is_visible, squares, 0))
    # If rounding is coarser than a quarter of the deviation, a noisy parameter may be the same for every
    # seed, and does not count as silent.
    is_fine = trees.compute_ulp(first, probe.spacings) <= 0.25 * deviation
    return StepNoise(
        draws=(draws - probe.start[is_kept]) / deviation,
        rounding=np.max(rounding, axis=0),
        values=np.where(is_visible, noise, 0),
        layer=layer,
        exact=is_exact,
        deviations=np.sqrt(np.maximum(layer_squares, 0) / np.maximum(layer_freedom, 1)),
        freedom=layer_freedom,
        # Four spacings leave room for rounding each of the noise's factors, such as sigma C, eta and 1 / B.
        tolerance=4 * probe.spacings[place_in_layer == 0],
        silent=probe.sum_layers(is_fine & ~differs),
        counts=probe.sum_layers(differs) * (np.bincount(layer, ~is_exact) == 0),
        not_finite=not_finite,
        lengths=np.array(lengths),
        sums=np.array(sums).swapaxes(0, 1),
    )


def row_of(batch: str) -> str:
    """Returns the name of the report's row for the noise at another batch."""
    return "empty batch" if batch == EMPTY else "noise and data"


def run_tests(drawn: DrawnNoise) -> dict[str, dict[str, float]]:
    """Returns the p-values of all tests of the noise, by row of the report and by test.

    If there is no noise, only its deviations are tested.
    """
    given = drawn.given
    is_noisy = drawn.has_noise
    p_values: dict[str, dict[str, float]] = {
        "noise": _test_deviations(drawn),
        "independence": {},
        "shape": {},
        "noise and data": {},
        "empty batch": {},
    }
    if not np.any(is_noisy):
        return p_values
    # Correlations are of numbers with variance 1: each parameter is divided by its own deviation.
    noisy = given.values[:, is_noisy]
    correlations = _test_independence(noisy / noisy.std(axis=0), given.layer[is_noisy])
    p_values["independence"] = correlations | _test_sums(drawn)
    p_values["shape"] = _test_shape(standardise(drawn)) | _test_lengths(drawn)
    for batch, noise in drawn.others.items():
        if not noise.not_finite:  # otherwise that is a finding, which needs no test
            p_values[row_of(batch)] |= _test_batch(drawn, batch)
    return p_values


def _test_deviations(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that the noise is as large as stated, in each trained layer and in all together."""
    given = drawn.given
    trained = np.flatnonzero(given.freedom)
    names = np.array(drawn.layer_names)[trained].tolist()
    freedom = given.freedom[trained]
    squares = given.deviations[trained] ** 2 * freedom
    tolerance = given.tolerance[trained]
    if len(trained) > 1:
        names.append(ALL_LAYERS)
        freedom = np.append(freedom, np.sum(freedom))
        squares = np.append(squares, np.sum(squares))
        tolerance = np.append(tolerance, np.max(tolerance))
    least = squares / (1 + tolerance) ** 2
    most = squares / (1 - tolerance) ** 2
    p_values = compute_two_sided_p_value(stats.chi2(freedom), least, most)
    return dict(zip(names, p_values.tolist(), strict=True))


def _test_batch(drawn: DrawnNoise, batch: str) -> dict[str, float]:
    """Tests that the noise is as large at another batch: by an F-test in each layer (Bonferroni)."""
    given = drawn.given
    other = drawn.others[batch]
    quotient = (given.deviations / other.deviations) ** 2
    slack = (1 + given.tolerance + other.tolerance) ** 2  # how far rounding may change the quotient
    law = stats.f(given.freedom, other.freedom)
    p_values = compute_two_sided_p_value(law, quotient / slack, quotient * slack)
    is_noisy = given.deviations > drawn.least_deviation
    compared = p_values[(given.freedom > 0) & (other.freedom > 0) & is_noisy]
    if not compared.size:
        return {}
    return {batch: min(1.0, float(np.min(compared)) * compared.size)}


def compute_shares(drawn: DrawnNoise) -> dict[str, Vector]:
    """Returns, by layer and for all layers, the noise's square along its sum and along random signs.

    Each is over the square along a mean direction: it is 1 for independent numbers of one variance.
    """
    given = drawn.given
    tested = np.flatnonzero((given.freedom > 0) & (given.counts > 1)).tolist()
    groups = {drawn.layer_names[i]: [i] for i in tested}
    if len(tested) > 1:
        groups[ALL_LAYERS] = tested
    shares = {}
    for name, layers in groups.items():
        squares = np.sum(given.sums[:, :, layers], axis=2) ** 2
        shares[name] = np.sum(squares, axis=1) / np.sum(given.lengths[:, layers])
    return shares


def _test_sums(drawn: DrawnNoise) -> dict[str, float]:
    """Tests each layer's noise along fixed directions: its sum, and sums with random signs.

    A share over m pairs of seeds, over p numbers, has the law Beta(m / 2, m (p - 1) / 2) in right noise.
    """
    p_values = {}
    counts = dict(zip(drawn.layer_names, drawn.given.counts, strict=True))
    counts[ALL_LAYERS] = np.sum(drawn.given.counts * (drawn.given.freedom > 0))
    pairs = len(drawn.given.lengths)
    for name, shares in compute_shares(drawn).items():
        law = stats.beta(pairs / 2, pairs * (counts[name] - 1) / 2)
        p_sum, *others = compute_two_sided_p_value(law, shares / counts[name])
        p_values[f"{SUM_OF} {name}"] = float(p_sum)
        p_values[f"random projections of {name}"] = min(1.0, len(others) * float(min(others)))
    return p_values


def _test_lengths(drawn: DrawnNoise) -> dict[str, float]:
    """Tests that the norm of each layer's noise varies as much as that of p independent normal numbers.

    Its square over the mean, to the power 1/3, has variance 2 / 9p (Wilson and Hilferty, 1931).
    """
    given = drawn.given
    pairs = len(given.lengths)
    is_tested = (given.freedom > 0) & (given.counts >= _MIN_NUMBERS)
    p_values = {}
    for i in np.flatnonzero(is_tested & (pairs >= _MIN_PAIRS)):
        roots = np.cbrt(given.lengths[:, i] / np.mean(given.lengths[:, i]))
        statistic = pairs * np.var(roots) * 9 * given.counts[i] / 2
        p_value = compute_two_sided_p_value(stats.chi2(pairs - 1), statistic)
        p_values[f"{LENGTH_OF} {drawn.layer_names[i]}"] = float(p_value)
    return p_values


def standardise(drawn: DrawnNoise) -> Vector:
    """Returns the noise that rounding does not distort as a vector, over its deviation in all layers.

    Right noise becomes standard normal, whatever its deviation. Noise that differs by layer does not, which
    is another bug.
    """
    given = drawn.given
    is_usable = drawn.has_noise & given.exact
    freedom = len(given.values) - 1
    if freedom * np.count_nonzero(is_usable) < _MIN_SHAPE_FREEDOM:
        return np.zeros(0)
    values = given.values[:, is_usable]
    # The root of the mean variance; subtracting the mean over seeds has shrunk the values.
    return np.asarray(values / np.sqrt(np.mean(values**2))).ravel()


def _test_shape(values: Vector) -> dict[str, float]:
    """Tests that standardised noise is normal: by a chi-square fit, and by counts in the tails."""
    if not values.size:
        return {}
    p_values = {"distribution": compute_fit_p_value(values, stats.norm())}
    for cut in _TAILS:
        law = stats.binom(values.size, 2 * stats.norm.sf(cut))
        if law.mean() >= _MIN_IN_TAIL:
            beyond = np.count_nonzero(np.abs(values) > cut)
            p_value = compute_two_sided_p_value(law, beyond - 1, beyond)
            p_values[f"beyond {cut:g} deviations"] = float(p_value)
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


def compute_fit_p_value(values: NDArray[Any], distribution: Any) -> float:
    """Returns the p-value of a chi-square test that values come from a distribution.

    Values are counted in intervals that are as likely as those of a normal law between multiples of half a
    deviation, from -3 to 3; edges beyond which 10 values or fewer are expected are left out. Fewer than 5
    expected values in an interval count as 5 in the divisor, which makes the test conservative.

    Args:
      values: (n,) the values, independent of each other; more than 20, or no edge remains.
      distribution: a continuous or discrete distribution of scipy.stats.
    """
    levels = stats.norm.cdf(np.arange(-3, 3.1, 0.5))
    levels = levels[len(values) * np.minimum(levels, 1 - levels) > 10]
    edges = np.unique(distribution.ppf(levels))  # a discrete distribution may repeat an edge
    expected = np.diff([0.0, *distribution.cdf(edges), 1.0]) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(expected))
    statistic = np.sum((counts - expected) ** 2 / np.maximum(expected, 5))
    return float(stats.chi2.sf(statistic, len(edges)))


def _test_independence(noise: Vector, layer: NDArray[np.int64]) -> dict[str, float]:
    """Tests that noise is uncorrelated between consecutive seeds, parameters and layers.

    A correlation is a mean of products of two numbers of the noise, which have mean 0 and variance 1.

    Args:
      noise: (n, k) standardised noise of n seeds in k parameters.
      layer: (k,) the index of each parameter's layer.
    """
    seeds, numbers = noise.shape
    # Seeds of rows 0 and 1, 2 and 3, ... The mean over seeds was subtracted, which correlates two seeds by
    # -1 / (seeds - 1). Counting a pair of seeds too few makes p-values larger.
    correlation = np.mean(noise[: seeds - 1 : 2] * noise[1::2]) + 1 / (seeds - 1)
    terms = (seeds // 2 - 1) * numbers
    p_values = {CONSECUTIVE: _compute_correlation_p_value(correlation, terms)}

    # Of more than 40 layers the first 40, since every pair of layers is compared.
    layers = [noise[:, layer == index] for index in np.unique(layer)[:40]]
    p_values |= _test_distances(noise)
    for part in layers:
        # In a layer with at most an eighth of all parameters, repetitions may be too few to show among all.
        if part.shape[1] <= numbers / 8:
            p_values |= _test_distances(part)
    pairs = []
    for first, second in itertools.combinations(layers, 2):
        size = min(first.shape[1], second.shape[1])
        correlation = np.mean(first[:, :size] * second[:, :size])
        pairs.append(_compute_correlation_p_value(correlation, (seeds - 1) * size))
    if pairs:
        p_values["layers"] = min(1.0, len(pairs) * min(pairs))
    return p_values


def _test_distances(noise: Vector) -> dict[str, float]:
    """Tests that parameters' noise is uncorrelated at every distance in the flat vector.

    The correlation at a distance is the mean product of two numbers at this distance in the vector, over all
    seeds. Rows of a matrix that share a draw, or workers that share a generator, repeat numbers at some
    distance. The largest correlation over all distances is tested, with Bonferroni's correction.
    """
    seeds, numbers = noise.shape
    if numbers < 2:
        return {}
    # The sums of products at all distances are the inverse Fourier transform of the power spectrum, which
    # closes the vector to a circle. Its size is odd: on a circle of even size, opposite pairs would count
    # twice.
    size = numbers | 1
    spectrum = np.zeros(size // 2 + 1)
    for draw in noise:
        spectrum += np.abs(fft.rfft(draw, size)) ** 2
    correlations = np.abs(fft.irfft(spectrum, size)[1 : size // 2 + 1]) / noise.size
    p_value = _compute_correlation_p_value(np.max(correlations), (seeds - 1) * numbers)
    what = f"{numbers:,} numbers at a distance of {np.argmax(correlations) + 1}"
    return {what: min(1.0, len(correlations) * p_value)}


def _compute_correlation_p_value(correlation: Any, terms: int) -> float:
    """Returns the two-sided p-value of the null hypothesis of no correlation, by Student's t.

    The statistic is r sqrt(n / (1 - r^2)) for a correlation r of n pairs, as usual. But the t has n / 2
    degrees of freedom instead of n. At a distance in the vector, each number is in two products, which are
    dependent. For few numbers, t with n degrees would reject correct noise too often. If each number is in a
    single product, n / 2 is conservative.
    """
    # The floor is for a correlation of 1 or more, whose root would not be real.
    student = np.abs(correlation) * np.sqrt(terms / max(1 - correlation**2, 1e-12))
    return float(2 * stats.t.sf(student, df=terms / 2))
