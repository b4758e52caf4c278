"""A step's noise: how large it is, independent of what, how shaped, and whether the batch changes it.

The noise is drawn with many seeds at the batch as given and at others. It is in stated deviations
eta sigma C / B. Its mean over n seeds is removed, which leaves n - 1 degrees of freedom a number.
"""

import itertools
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import fft

from audit.check import findings, trees
from audit.check.probe import RefusedError, StepProbe
from audit.check.report import LEVEL, CheckOutcome
from audit.check.trees import Columns, Vector
from audit.written import counted

EMPTY = "an empty batch"
FOURFOLD = "four times the batch"
QUARTER = "a quarter of the batch"
FEATURES = "features times 1000"
ROWS = ("noise", "independence", "shape", "noise and data", "empty batch")
ALL_LAYERS = "all layers together"
CONSECUTIVE = "consecutive seeds"
SUM_OF = "the sum of"  # and the name of a layer: a test
LENGTH_OF = "the length of"

_UNEQUAL = 2.5  # variances of numbers differ if they spread so many times as much as by chance
_REACH = 6  # deviations from the mean, within which practically all draws lie
_EXACT = 32  # a deviation so many times as large as the rounding, or more, hides it in the shape
_TAILS = (3.0, 3.5, 4.0)  # deviations beyond which draws are counted
_BODY = 2.5  # deviations from the mean, up to which tests of all draws show the shape
_LEAST_FREEDOM = 10  # degrees of a deviation from which draws over it are hardly dependent
_FEW_FREEDOM = 1000  # degrees of a deviation below which dividing by it shows in the shape
_NUM_PROJECTIONS = 3  # random ones, of each layer's noise
_SIGNS_SEED = 7
_MIN_NUMBERS = 8  # of a layer, for the test of its noise's length
_MIN_PAIRS = 6  # of seeds, for the same
_LEAST_IN_TAIL = 16.0  # draws that must be expected there for a test

_FREEDOM = 320  # degrees of freedom to reach in the smallest layer, in at most _MOST_SECONDS
_NUMBERS = 20_000  # to draw over all layers and seeds, in at most _FEW_SECONDS
_MOST_NUMBERS = 60_000  # that are kept of a draw, about
_FEW_SECONDS = 3.0
_MOST_SECONDS = 20.0
_SLOW_SECONDS = 40.0  # a batch as given that takes longer leaves four draws for other batches


class StepNoise(NamedTuple):
    """The noise of n seeds at a single batch, in k of the parameters, in units of the stated deviation.

    Attributes:
      draws: (n, k) the parameters after the step, less those before it.
      rounding: (k,) the largest spacing of floating-point numbers at any of the n draws.
      values: (n, k) the noise, less its mean over seeds; 0 where rounding hides it.
      mean: (k,) the mean over seeds, less the parameters before the step.
      layer: (k,) the index of each parameter's layer.
      exact: (k,) whether rounding is too fine to show in the shape of the noise.
      deviations: (layers,) the noise's standard deviation in each layer, without what rounding adds.
      freedom: (layers,) the degrees of freedom of these deviations.
      tolerance: (layers,) by how much deviations may be wrong, relative.
      silent: (layers,) how many of all the layer's parameters are the same for every seed.
      not_finite: how many of the draws have NaN or infinity in any of all the parameters.
      pairs: of the differences of consecutive seeds over all the layer's parameters.
    """

    draws: Vector
    rounding: Vector
    values: Vector
    mean: Vector
    layer: NDArray[np.int64]
    exact: NDArray[np.bool_]
    deviations: Vector
    freedom: NDArray[Any]
    tolerance: Vector
    silent: NDArray[Any]
    not_finite: int
    pairs: "SeedPairs"


class SeedPairs(NamedTuple):
    """Differences of the noise of two consecutive seeds, over sqrt(2), summarised over whole layers.

    They have no mean, and those of different pairs are independent. Units are squared parameters.

    Attributes:
      squares: (pairs, layers) the squared norm of each difference.
      projections: (pairs, 1 + _NUM_PROJECTIONS, layers) the squared scalar product of each difference with
        the unit vector whose numbers are all equal, and with unit vectors of random signs.
      counts: (layers,) how many numbers of the layer have noise.
    """

    squares: Vector
    projections: Vector
    counts: NDArray[np.int64]


class DrawnNoise(NamedTuple):
    """The noise at the batch as given and at others.

    Attributes:
      layer_names: (layers,) the layers' names, as in the probe.
      layer_sizes: (layers,) how many parameters each layer has.
      hidden: the indices of the trained layers whose noise lies below their rounding.
      given: the noise at the batch as given; layers that are not trained have 0 degrees of freedom.
      others: by the name of another batch, the noise there, or the step's error if it refused the batch.
    """

    layer_names: list[str]
    layer_sizes: NDArray[np.int64]
    hidden: NDArray[np.int64]
    given: StepNoise
    others: dict[str, StepNoise | str]

    def list_accepted(self) -> dict[str, StepNoise]:
        """Returns the noise at each other batch that the step did not refuse, by the batch's name."""
        accepted = {}
        for batch, noise in self.others.items():
            if not isinstance(noise, str):
                accepted[batch] = noise
        return accepted

    def list_names(self, layers: Sequence[int] | NDArray[np.int64]) -> str:
        """Returns the names of layers as text: the first four, and how many more there are.

        Args:
          layers: the indices of the layers.
        """
        names = ", ".join(self.layer_names[i] for i in layers[:4])
        if len(layers) > 4:
            names += f" and {len(layers) - 4} more"
        return names

    def compute_deviation(self, batch: str = "") -> Any:
        """Returns the noise's standard deviation over all trained layers, in units of the stated deviation.

        It is the root of the layers' mean variance, weighted by their degrees of freedom. NaN where the step
        refused the batch, where the batch was not tried, or where noise can be seen in no layer. Other
        results are NumPy numbers, so that dividing by a deviation of 0 raises no error.

        Args:
          batch: a name in `others`; empty for the batch as given.
        """
        noise: StepNoise | str = self.given
        if batch:
            noise = self.others.get(batch, "")
        if isinstance(noise, str):  # the error of a step that refused the batch, or no such batch
            return np.nan
        # Layers without freedom at the batch as given are not trained, or have no visible noise. They are
        # left out at other batches too, so that deviations at all batches are of the same layers.
        freedom = np.where(self.given.freedom > 0, noise.freedom, 0)
        return np.sqrt(np.sum(freedom * noise.deviations**2) / np.sum(freedom))

    def varies_by_number(self) -> bool:
        """Returns whether the noise's deviation differs between parameters of the same layer.

        It does if the parameters' variances, each over that of its layer, spread much more than by chance:
        _UNEQUAL times as much. False if fewer than 8 parameters have noise, too few to tell.
        """
        given = self.given
        seeds = len(given.values)
        is_seen = given.values.std(axis=0) > 0
        if np.count_nonzero(is_seen) < 8:
            return False
        # The mean over seeds is removed from the values, which leaves seeds - 1 degrees of freedom.
        variances = np.sum(given.values[:, is_seen] ** 2, axis=0) / (seeds - 1)
        ratios = variances / given.deviations[given.layer[is_seen]] ** 2
        # The standard deviation of the variance of n normal numbers, over the true variance.
        spread_by_chance = (2 / (seeds - 1)) ** 0.5
        return bool(np.std(ratios) > _UNEQUAL * spread_by_chance)

    def is_constant(self) -> bool:
        """Returns whether all seeds give the same noise, of about the stated deviation.

        An empty batch shows it. If the step refuses that, a batch with every example four times does: with
        gradients' part g and noise z the step moves by g + z at the batch as given, and there by 4 g + z.
        """
        if np.any(self.given.values):  # noise less its mean over seeds: it differs between seeds
            return False
        empty = self.others[EMPTY]
        fourfold = self.others[FOURFOLD]
        if not isinstance(empty, str):
            constant = empty.mean
        elif not isinstance(fourfold, str):
            constant = (4 * self.given.mean - fourfold.mean) / 3
        else:
            return False
        # A parameter of exactly 0 has no noise. False for NaN, if all are 0.
        return bool(0.3 < np.sqrt(np.mean(constant[constant != 0] ** 2)) < 3)


class NoiseTest(NamedTuple):
    """A statistical test of the noise.

    Attributes:
      row: the row of the report that shows it, one of ROWS.
      what: what was tested, in words: a layer, a batch or a kind of correlation.
      p_value: the probability that noise as stated looks at least so wrong.
    """

    row: str
    what: str
    p_value: float


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws a step's noise with many seeds, at the batch as given and at others.

    Args:
      probe: the step.
      seeds: the number of draws at the batch as given; None for as many as layers need and time allows.
      seconds: how long a draw takes.

    Raises:
      RefusedError: the step fails at the batch as given.
    """
    began = time.perf_counter()
    probe.run(probe.rows, 1)  # beside the first step it shows which parameters are trained
    count = seeds or _choose_count(probe, seconds)
    given = _draw_at(probe, probe.rows, stream=0, count=count)
    if isinstance(given, str):
        raise RefusedError(given)

    # Other batches get a quarter of the draws, at least 12 and at most _FREEDOM / 4, to save time: noise at
    # them is only compared with that at the batch as given. If that took long, they get only four.
    fewer = max(12, min(count, _FREEDOM) // 4)
    if time.perf_counter() - began >= _SLOW_SECONDS:
        fewer = 4
    others = {}
    for name, batch in _make_other_batches(probe.rows).items():
        others[name] = _draw_at(probe, batch, stream=1, count=fewer)

    # By now `probe.is_trained` marks each parameter that some step changed differently from the first step. A
    # layer is trained if any of its parameters is. Trained layers whose noise lies below their rounding are
    # `hidden`; the others get no degrees of freedom, so that no test looks at them.
    layer_is_trained = np.bincount(probe.layer, probe.is_trained) > 0
    hidden = np.flatnonzero(layer_is_trained & (given.freedom == 0))
    given = given._replace(freedom=given.freedom * layer_is_trained)
    layer_sizes = np.bincount(probe.layer)
    return DrawnNoise(probe.layer_names, layer_sizes, hidden, given, others)


def _choose_count(probe: StepProbe, seconds: float) -> int:
    """Returns how many seeds to draw: as many as the trained layers need and time allows, at least 12.

    Args:
      probe: the step.
      seconds: how long a draw takes.
    """
    # A layer of p parameters gets about p degrees of freedom from each seed. `needed` seeds, 64 or more, give
    # the smallest layer _FREEDOM of them, and may take up to _MOST_SECONDS. `better`, from `needed` to 2,000,
    # draw _NUMBERS over all layers, but may take only _FEW_SECONDS.
    trained_layers = np.unique(probe.layer[probe.is_trained])
    sizes = np.bincount(probe.layer)[trained_layers].tolist()
    sizes = sizes or [_FREEDOM]  # no layer is trained: the fewest seeds are enough
    needed = int(np.clip(_FREEDOM / min(sizes), 64, _FREEDOM))
    better = int(np.clip(_NUMBERS / sum(sizes), needed, 2000))
    in_few_seconds = min(better, int(_FEW_SECONDS / seconds))
    in_most_seconds = min(needed, int(_MOST_SECONDS / seconds))
    return max(in_few_seconds, in_most_seconds, 12)


def _make_other_batches(rows: Columns) -> dict[str, Columns]:
    """Returns batches of other sizes, and one with larger features, by their names in the report.

    A correct step adds noise of the same deviation at each of them as at the batch as given.

    Args:
      rows: the columns of the batch as given.
    """
    batches = {}
    examples = len(rows[0])
    quarter = max(1, examples // 4)
    if quarter < examples:  # a single row has no quarter
        batches[QUARTER] = trees.take(rows, slice(0, quarter))
    batches[FOURFOLD] = trees.join(rows, rows, rows, rows)
    batches[FEATURES] = trees.scale_features(rows, scale=1e3, batch=rows)
    batches[EMPTY] = trees.take(rows, slice(0, 0))
    return batches


def _draw_at(
    probe: StepProbe,
    rows: Columns,
    stream: int,
    count: int,
) -> StepNoise | str:
    """Takes `count` steps at a batch with different seeds, and measures the noise by which they differ.

    Only the first parameters of each layer are stored for every seed, which bounds the memory: an equal share
    of _MOST_NUMBERS, or 256 if that is more.

    Args:
      probe: the step.
      rows: the batch's columns.
      stream: 0 for the batch as given, 1 for all others; they have different seeds.
      count: the number of steps.

    Returns:
      The noise; or, if the step refuses the batch, its error as text.
    """
    # For each parameter, the index of its layer's first parameter.
    first_of_layer = np.searchsorted(probe.layer, probe.layer)
    place_in_layer = np.arange(probe.start.size) - first_of_layer
    is_sampled = place_in_layer < max(_MOST_NUMBERS // len(probe.layer_names), 256)
    rng = np.random.default_rng(_SIGNS_SEED)
    draws: list[Vector] = []
    first = np.zeros(0)  # all parameters after the first step
    even = np.zeros(0)  # those after the last step with an even seed
    differs = np.zeros(probe.start.size, bool)  # whether a parameter differs between seeds
    not_finite = 0
    # Signs of the directions along which the noise is projected: all equal, and random ones.
    signs = [np.ones(probe.start.size, np.int8)]
    for _ in range(_NUM_PROJECTIONS):
        signs.append(rng.choice(np.array([-1, 1], np.int8), probe.start.size))
    squares = []
    projections = []
    try:
        for seed in _choose_seeds(probe, stream, count):
            after = probe.run(rows, int(seed))
            if not draws:
                first = after
            differs |= after != first
            not_finite += not np.all(np.isfinite(after))
            draws.append(after[is_sampled])
            if seed % 2 == 0:
                even = after
                continue
            difference = (after - even) / 2**0.5
            squares.append(np.bincount(probe.layer, difference**2))
            sums = [np.bincount(probe.layer, sign * difference) for sign in signs]
            projections.append(np.square(sums))
    except RefusedError as error:
        return str(error)
    counts = np.maximum(np.bincount(probe.layer, differs), 1)
    pairs = SeedPairs(np.array(squares), np.array(projections) / counts, counts)

    # By how much a layer's deviation may be wrong, relative, if the step computes in the layer's type. Four
    # spacings leave room for rounding each of the noise's factors, such as sigma C, eta and 1 / B. A spacing
    # is the distance from 1 to the next number of the type. All parameters of a layer have the type of its
    # first, and so the spacing of that.
    tolerance = 4 * probe.spacings[np.flatnonzero(place_in_layer == 0)]
    deviation = probe.settings.unit * probe.settings.noise_multiplier
    # Where rounding is coarser than a quarter of the noise's deviation, a parameter may be the same for every
    # seed in spite of noise. It does not count as silent.
    is_fine = trees.compute_ulp(first, probe.spacings) <= 0.25 * deviation
    silent = np.bincount(probe.layer, is_fine & ~differs)
    return _measure_noise(probe, np.array(draws), is_sampled, tolerance, silent, not_finite, pairs)


def _choose_seeds(probe: StepProbe, stream: int, count: int) -> NDArray[np.int64]:
    """Returns `count` seeds, in pairs of consecutive numbers, that depend on the step.

    Seeds in pairs let `_test_independence` see noise that is correlated between consecutive seeds. If all
    steps had the same seeds, chance correlations of a generator at these seeds would be reported for every
    step. The two streams have different seeds, so that the noise at two batches is independent, as the F-test
    of `_test_batch` assumes.

    Args:
      probe: the step.
      stream: 0 for the batch as given, 1 for all others.
      count: the number of seeds.
    """
    # The seeds follow from the stated numbers and the parameters. In the text a fixed word takes the place of
    # the class's name, so that the seeds, and with them all reports, stay the same if the class is renamed.
    text = repr(probe.settings).replace("StepSettings", "Stated")
    step_seed = zlib.crc32(text.encode() + probe.start.tobytes())
    pairs = -(-count // 2)  # rounded up
    rng = np.random.default_rng([step_seed, stream])
    first = 2 * rng.integers(1, 2**30, pairs)  # even: no two pairs overlap in part
    return np.column_stack([first, first + 1]).ravel()[:count]


def _measure_noise(
    probe: StepProbe,
    draws: Vector,
    is_sampled: NDArray[np.bool_],
    tolerance: Vector,
    silent: NDArray[Any],
    not_finite: int,
    pairs: SeedPairs,
) -> StepNoise:
    """Returns the noise of n steps at a single batch with different seeds.

    Parameters whose rounding is coarser than their noise are left out of the deviations; the variance that
    rounding adds to the others is subtracted. The result is in units of the stated deviation eta sigma C / B.

    Args:
      probe: the step.
      draws: (n, k) the parameters after each step, of those that are sampled.
      is_sampled: (p,) whether a parameter is among these k.
      tolerance: (layers,) by how much deviations may be wrong, relative.
      silent: (layers,) how many of all the layer's parameters are the same for every seed.
      not_finite: how many of the draws have NaN or infinity in any of all the parameters.
      pairs: the differences of consecutive seeds over whole layers.
    """
    deviation = probe.settings.unit * probe.settings.noise_multiplier
    freedom_of_number = len(draws) - 1  # the mean over n seeds is subtracted
    layer = probe.layer[is_sampled]
    # The first draw is subtracted, so that a parameter that never changes is exactly 0 below.
    noise = (draws - draws[0]) / deviation
    noise = noise - noise.mean(axis=0)
    mean = (draws.mean(axis=0) - probe.start[is_sampled]) / deviation

    # How coarsely each draw is rounded, and whether that hides a parameter's noise.
    spacing = trees.compute_ulp(draws, probe.spacings[is_sampled]) / deviation  # (n, k)
    # Larger values round more coarsely. Parameters are kept or left out by the rounding at the farthest value
    # that they can draw, not at the values that they drew: else those that drew far values would be left out,
    # and the tails of the noise with them.
    farthest = np.abs(draws.mean(axis=0)) + _REACH * deviation
    farthest_spacing = trees.compute_ulp(farthest, probe.spacings[is_sampled]) / deviation
    # Rounding hides noise if it is coarser than both the stated deviation, 1, and the measured deviation.
    is_visible = farthest_spacing <= max(1.0, float(np.median(noise.std(axis=0))))

    # The sums of squares: of each parameter (k,), then over each layer's visible parameters (layers,).
    # Sheppard's correction: rounding to a spacing h adds a variance of h^2 / 12, which is subtracted.
    rounding_squares = freedom_of_number / 12 * np.mean(spacing**2, axis=0)
    squares = np.sum(noise**2, axis=0) - rounding_squares
    layer_squares = np.bincount(layer, np.where(is_visible, squares, 0))
    layer_freedom = freedom_of_number * np.bincount(layer, is_visible)
    # The subtraction may leave less than 0, and a layer without visible parameters has no freedom: its
    # deviation is 0.
    layer_deviations = np.sqrt(np.maximum(layer_squares, 0) / np.maximum(layer_freedom, 1))
    # Whether the stated deviation is so many times the rounding that rounding does not show in the shape.
    is_exact = _EXACT * farthest_spacing <= 1
    return StepNoise(
        draws=(draws - probe.start[is_sampled]) / deviation,
        rounding=np.max(spacing, axis=0),
        values=np.where(is_visible, noise, 0),
        mean=mean,
        layer=layer,
        exact=is_exact,
        deviations=layer_deviations,
        freedom=layer_freedom,
        tolerance=tolerance,
        silent=silent,
        not_finite=not_finite,
        pairs=pairs,
    )


def check_noise(drawn: DrawnNoise) -> dict[str, CheckOutcome]:
    """Runs every statistical test of the noise; returns the outcome of each row of the report on the noise.

    The tests are not judged here: an outcome has their p-values, which are judged together with those of all
    other checks.

    Args:
      drawn: the noise.

    Returns:
      The outcomes by row, for each row of ROWS. That of "noise" also has figures for the report's JSON. Where
      the step is not finite at some seeds, that is the only finding, and nothing is tested.
    """
    if drawn.given.not_finite:
        return _report_not_finite(drawn.given)

    p_values: dict[str, dict[str, float]] = {row: {} for row in ROWS}
    for test in _run_tests(drawn):
        p_values[test.row][test.what] = test.p_value
    measured = _describe_rows(drawn, p_values)

    # What a row says if it passes, before what was measured; and, for a row without tests, why it could not
    # be tried.
    texts = dict.fromkeys(ROWS, "as usual")
    texts["noise"] = ""
    texts["independence"] = "nothing against it"
    texts["shape"] = "normal"
    reasons = dict.fromkeys(ROWS, "there is no noise to look at")
    where = drawn.list_names(drawn.hidden) or "the parameters"
    reasons["noise"] = (
        f"the noise lies below the rounding of {where}: use float64 or a larger learning rate"
    )
    for batch, noise in drawn.others.items():
        if isinstance(noise, str):
            reasons[row_of(batch)] = f"the step refused {batch}: {noise}"

    outcomes = {}
    for row, tested in p_values.items():
        if tested:
            outcomes[row] = CheckOutcome(texts[row], p_values=tested, measured=measured[row])
        else:
            outcomes[row] = CheckOutcome(reasons[row], tried=False)
    if len(drawn.hidden):  # the tests of other layers do not speak for these
        outcomes["noise"] = outcomes["noise"]._replace(text=reasons["noise"], tried=False)

    # The deviations of tested layers; and how likely noise of 0.99 times the stated deviation would fail, at
    # Bonferroni's level for all tests of the noise.
    deviations = {}
    for name, deviation in zip(drawn.layer_names, drawn.given.deviations, strict=True):
        if name in p_values["noise"]:
            deviations[name] = float(deviation)
    tests = sum(len(tested) for tested in p_values.values())
    figures = {
        "noise": deviations,
        "seeds": len(drawn.given.values),
        "power at 0.99": compute_power(drawn, 0.99, LEVEL / max(tests, 1)),
    }
    outcomes["noise"] = outcomes["noise"]._replace(figures=figures)
    return outcomes


def _report_not_finite(given: StepNoise) -> dict[str, CheckOutcome]:
    """Returns the outcomes of a step that is not finite at some seeds, for each row of ROWS."""
    seeds = len(given.draws)
    untried = CheckOutcome("the step is not finite at some seeds", tried=False)
    bug = findings.NOISE_NOT_FINITE.fill(count=given.not_finite, seeds=seeds)
    outcomes = dict.fromkeys(ROWS, untried)
    outcomes["noise"] = CheckOutcome("", findings=[bug], figures={"noise": {}, "seeds": seeds})
    return outcomes


def _describe_rows(
    drawn: DrawnNoise, p_values: Mapping[str, Mapping[str, float]]
) -> dict[str, str]:
    """Returns, by row of ROWS, what was measured, in words.

    Args:
      drawn: the noise.
      p_values: by row, the p-values of its tests by what was tested; a row without tests has none.
    """
    seeds = len(drawn.given.values)
    layers = int(np.count_nonzero(drawn.given.freedom))
    # The power of the test of the deviation at Bonferroni's level for all tests of the noise.
    tests = sum(len(tested) for tested in p_values.values())
    power = compute_power(drawn, 0.99, LEVEL / max(tests, 1))
    texts = {
        "noise": f"deviation {drawn.compute_deviation():.4g} times eta sigma C / B, "
        f"{counted(layers, 'layer')}, {counted(seeds, 'seed')}; 0.99 times "
        f"would be seen with probability {power:.2g}"
    }
    for row in ("independence", "shape"):
        least = min(p_values[row].values(), default=1.0)
        texts[row] = f"{counted(len(p_values[row]), 'test')}, smallest p-value {least:.2g}"
    texts["shape"] += f", seen up to {_find_reach(drawn):g} deviations"
    for row in ("noise and data", "empty batch"):  # of these rows, a test is called by its batch
        ratios = []
        for batch in p_values[row]:
            ratio = drawn.compute_deviation(batch) / drawn.compute_deviation()
            ratios.append(f"{ratio:.3g} times at {batch}")
        texts[row] = ", ".join(ratios)
    return texts


def compute_power(drawn: DrawnNoise, ratio: float, level: float) -> float:
    """Returns the probability with which noise of another deviation than stated is rejected.

    The test is that of the deviation over all layers together.

    Args:
      drawn: the noise, whose degrees of freedom and tolerance decide the power.
      ratio: the true deviation over the stated deviation.
      level: the level of the test, the probability with which it rejects right noise at most.
    """
    freedom = float(np.sum(drawn.given.freedom))
    if freedom == 0:  # no noise is seen
        return 0.0
    tolerance = float(np.max(drawn.given.tolerance))
    # The test rejects if the sum of squares, in stated deviations, lies below `low` or above `high`. These
    # lie farther apart by the tolerance, by which the measured deviation may be wrong. The sum is chi-square
    # times ratio^2.
    chi2 = scipy.stats.chi2(freedom)
    low = chi2.ppf(level / 2) * (1 - tolerance) ** 2
    high = chi2.isf(level / 2) * (1 + tolerance) ** 2
    return float(chi2.cdf(low / ratio**2) + chi2.sf(high / ratio**2))


def row_of(batch: str) -> str:
    """Returns the name of the report's row for the noise at another batch."""
    return "empty batch" if batch == EMPTY else "noise and data"


def _run_tests(drawn: DrawnNoise) -> Iterator[NoiseTest]:
    """Yields every statistical test of the noise; if there is no noise, only those of its deviations."""
    yield from _test_deviations(drawn)

    given = drawn.given
    is_noisy = given.values.std(axis=0) > _compute_least_deviation(drawn)
    if not np.any(is_noisy):
        return
    # Correlations are of numbers with variance 1, so that each parameter is divided by its own deviation.
    noisy = given.values[:, is_noisy]
    standardised = noisy / noisy.std(axis=0)
    yield from _test_independence(standardised, given.layer[is_noisy])
    yield from _test_pairs(drawn)
    # That would change the shape, as the deviation is measured by the same few draws. So the shape is that of
    # numbers divided by their layer's deviation.
    yield from _test_shape(standardise(drawn))
    for batch, noise in drawn.list_accepted().items():
        if not noise.not_finite:  # else that is a finding, which needs no test
            yield from _test_batch(drawn, batch)


def _compute_least_deviation(drawn: DrawnNoise) -> float:
    """Returns the deviation up to which a parameter or a layer counts as without noise.

    It is 1% of the measured deviation or of the stated deviation, whichever is less, in units of the stated
    deviation. It is NaN if no noise can be seen, so that no deviation exceeds it.
    """
    # NaN if no noise can be seen; `min` returns a NaN that is its first argument.
    measured = drawn.compute_deviation()
    stated = 1
    return float(0.01 * min(measured, stated))


def _test_deviations(drawn: DrawnNoise) -> Iterator[NoiseTest]:
    """Yields tests that the noise is as large as stated, in each trained layer and in all together."""
    given = drawn.given
    squares = given.deviations**2 * given.freedom  # (layers,) sums of squares of the noise
    p_values = _compute_deviation_p_values(given.freedom, squares, given.tolerance)
    trained = np.flatnonzero(given.freedom)
    for layer in trained:
        yield NoiseTest("noise", drawn.layer_names[layer], float(p_values[layer]))
    if len(trained) > 1:
        tolerance = np.max(given.tolerance[trained])
        p_value = _compute_deviation_p_values(np.sum(given.freedom), np.sum(squares), tolerance)
        yield NoiseTest("noise", ALL_LAYERS, float(p_value))


def _test_batch(drawn: DrawnNoise, batch: str) -> Iterator[NoiseTest]:
    """Yields a test that the noise is as large at another batch as at the batch as given.

    An F-test compares each layer. The smallest of their p-values counts, with Bonferroni's correction. Yields
    nothing if there is no layer to compare.

    Args:
      drawn: the noise.
      batch: the name of a batch that the step accepted.
    """
    given = drawn.given
    other = drawn.list_accepted()[batch]
    is_noisy = (given.freedom > 0) & (given.deviations > _compute_least_deviation(drawn))
    is_comparable = is_noisy & (other.freedom > 0)
    quotient = (given.deviations / other.deviations) ** 2
    slack = (1 + given.tolerance + other.tolerance) ** 2  # how far rounding may change the quotient
    # Layers that are not comparable may get NaN here, and are left out below.
    fisher = scipy.stats.f(given.freedom, other.freedom)
    p_values = compute_two_sided_p_value(fisher, quotient / slack, quotient * slack)
    compared = p_values[is_comparable]
    if compared.size:
        corrected = np.minimum(1, np.min(compared) * compared.size)
        yield NoiseTest(row_of(batch), batch, float(corrected))


def _compute_deviation_p_values(freedom: Any, squares: Any, tolerance: Any) -> Any:
    """Returns two-sided p-values of the null hypothesis that the noise's deviation is 1, as stated.

    A deviation that is too large is first made smaller by the tolerance, and one that is too small larger.

    Args:
      freedom: the degrees of freedom of each sum of squares.
      squares: the sums of squares, chi-square with this freedom under the null hypothesis.
      tolerance: by how much the measured deviations may be wrong, relative.

    Returns:
      The p-values, in the shape of the arguments: numbers, or arrays (layers,).
    """
    above = squares / (1 + tolerance) ** 2
    below = squares / (1 - tolerance) ** 2
    return compute_two_sided_p_value(scipy.stats.chi2(freedom), above, below)


def _test_pairs(drawn: DrawnNoise) -> Iterator[NoiseTest]:
    """Yields tests of each whole layer's noise along fixed directions, and of its length.

    The direction tests compare the noise's square along a direction with that along all of the layer's
    directions. For normal numbers of one variance, their quotient over m pairs of seeds and p numbers has the
    law Beta(m / 2, m (p - 1) / 2). The squared length over its mean, to the power 1/3, has variance 2 / 9p
    (Wilson and Hilferty, 1931).
    """
    pairs = drawn.given.pairs
    totals = pairs.squares.sum(axis=0)
    count = len(pairs.squares)
    is_tested = (drawn.given.freedom > 0) & (totals > 0) & (pairs.counts > 1) & (count > 1)
    for layer in np.flatnonzero(is_tested):
        numbers = int(pairs.counts[layer])
        name = drawn.layer_names[layer]
        law = scipy.stats.beta(count / 2, count * (numbers - 1) / 2)
        shares = pairs.projections[:, :, layer].sum(axis=0) / totals[layer]
        p_values = compute_two_sided_p_value(law, shares)
        yield NoiseTest("independence", f"{SUM_OF} {name}", float(p_values[0]))
        random_ones = min(1.0, _NUM_PROJECTIONS * float(np.min(p_values[1:])))
        yield NoiseTest("independence", f"random projections of {name}", random_ones)
        if numbers >= _MIN_NUMBERS and count >= _MIN_PAIRS:
            roots = np.cbrt(pairs.squares[:, layer] * count / totals[layer])
            statistic = np.sum((roots - roots.mean()) ** 2) * 9 * numbers / 2
            p_value = compute_two_sided_p_value(scipy.stats.chi2(count - 1), statistic)
            yield NoiseTest("shape", f"{LENGTH_OF} {name}", float(p_value))


def standardise(drawn: DrawnNoise) -> Vector:
    """Returns the noise that rounding does not distort, made standard normal layer by layer, as one vector.

    Noise that is normal, whatever its deviation, becomes standard normal: it is divided by its layer's
    measured deviation, and where that rests on few draws, corrected for them. Left out are parameters without
    noise, and layers with so few draws that each of them nearly follows from the others.
    """
    given = drawn.given
    seeds = len(given.values)
    is_noisy = given.values.std(axis=0) > _compute_least_deviation(drawn)
    is_usable = is_noisy & given.exact & (given.freedom[given.layer] >= _LEAST_FREEDOM)
    layer = given.layer[is_usable]
    values = given.values[:, is_usable] / given.deviations[layer]
    # Subtracting the mean over seeds has shrunk the values.
    values = values * np.sqrt(seeds / (seeds - 1))
    freedom = given.freedom[layer]
    is_small = freedom < _FEW_FREEDOM
    values[:, is_small] = _make_normal(values[:, is_small], freedom[is_small])
    return np.asarray(values.ravel())


def _make_normal(values: Vector, freedom: NDArray[Any]) -> Vector:
    """Returns standard normal draws for normal ones over a deviation that they themselves measured.

    A draw has a part in the deviation that it is divided by, so that its square is at most `freedom`. The
    quotient r becomes Student's t = r sqrt((freedom - 1) / (freedom - r^2)) with freedom - 1 degrees, which
    the normal quantile of its probability makes normal.

    Args:
      values: (n, k) draws of k parameters, over their layers' measured deviations.
      freedom: (k,) the degrees of freedom of these deviations, _LEAST_FREEDOM or more.
    """
    # Rounding may bring a square to `freedom` or above it: the floor keeps the root real.
    rest = np.maximum(freedom - values**2, 1e-9)
    student = values * np.sqrt((freedom - 1) / rest)
    # Of absolute values, since a probability near 1 would lose its digits.
    tail = scipy.special.stdtr(freedom - 1, -np.abs(student))
    return np.asarray(-np.sign(values) * scipy.special.ndtri(tail))


def _test_shape(values: Vector) -> Iterator[NoiseTest]:
    """Yields tests that standardised noise is normal: by a chi-square fit, and by counts in the tails.

    Yields nothing for fewer than 200 values. A tail is tested where enough draws are expected there.
    """
    if values.size < 200:  # too few to show a shape
        return
    yield NoiseTest("shape", "distribution", compute_fit_p_value(values, scipy.stats.norm()))
    tails = 2 * scipy.stats.norm.sf(_TAILS)
    for cut, tail in zip(_TAILS, tails, strict=True):
        if values.size * tail >= _LEAST_IN_TAIL:
            beyond = np.count_nonzero(np.abs(values) > cut)
            law = scipy.stats.binom(values.size, tail)
            p_value = 2 * min(law.cdf(beyond), law.sf(beyond - 1))
            yield NoiseTest("shape", f"beyond {cut:g} deviations", min(1.0, float(p_value)))


def _find_reach(drawn: DrawnNoise) -> float:
    """Returns up to how many deviations from the mean the shape of the noise is tested.

    That is the farthest tail for which there are enough draws. If there are too few for any, it is _BODY, as
    far as the chi-square test of all draws sees the shape.
    """
    size = standardise(drawn).size
    reached = [_BODY]
    for cut in _TAILS:
        expected_beyond = size * 2 * scipy.stats.norm.sf(cut)  # draws, on both sides
        if expected_beyond >= _LEAST_IN_TAIL:
            reached.append(cut)
    return max(reached)


def compute_two_sided_p_value(
    distribution: Any,
    above: Any,
    below: Any = None,
) -> Any:
    """Returns two-sided p-values: twice the smaller tail probability, at most 1.

    Args:
      distribution: the statistics' distribution under the null hypothesis, of scipy.stats.
      above: the statistics that are compared with the upper tail.
      below: the statistics that are compared with the lower tail, by default the same. Uncertain statistics
        are given at their smallest in `above` and at their largest in `below`.
    """
    if below is None:
        below = above
    one_sided = np.minimum(distribution.sf(above), distribution.cdf(below))
    return np.minimum(1, 2 * one_sided)


def compute_fit_p_value(values: NDArray[Any], distribution: Any) -> float:
    """Returns the p-value of a chi-square test that values come from a distribution.

    Values are counted in intervals that are as likely as those of a normal law between multiples of half a
    deviation, from -3 to 3; edges beyond which 10 values or fewer are expected are left out. The test is
    conservative where few values are expected in an interval: fewer than 5 count as 5 in the divisor.

    Args:
      values: (n,) the values, independent of each other; more than 20, or no edge remains.
      distribution: a continuous or discrete distribution of scipy.stats.
    """
    # Probabilities below an edge, and the edges at these quantiles of the distribution.
    levels = scipy.stats.norm.cdf(np.arange(-3, 3.1, 0.5))
    levels = levels[len(values) * np.minimum(levels, 1 - levels) > 10]
    edges = np.unique(distribution.ppf(levels))  # a discrete distribution may repeat an edge
    expected = np.diff([0.0, *distribution.cdf(edges), 1.0]) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(expected))
    statistic = np.sum((counts - expected) ** 2 / np.maximum(expected, 5))
    # There are len(edges) + 1 intervals. The last count follows from the others, which leaves len(edges)
    # degrees of freedom.
    return float(scipy.stats.chi2.sf(statistic, len(edges)))


def _test_independence(noise: Vector, layer: NDArray[np.int64]) -> Iterator[NoiseTest]:
    """Yields tests that noise is uncorrelated between consecutive seeds, parameters and layers.

    A correlation is a mean of products of two numbers of the noise, which have mean 0 and variance 1.

    Args:
      noise: (n, k) standardised noise of n seeds in k parameters.
      layer: (k,) the index of each parameter's layer.
    """
    seeds, numbers = noise.shape

    # Consecutive seeds: those of rows 0 and 1, 2 and 3, ...; a last row without a partner is left out.
    correlation = np.mean(noise[: seeds - 1 : 2] * noise[1::2])
    # The mean over seeds was subtracted, which alone correlates two seeds by -1 / (seeds - 1).
    correlation += 1 / (seeds - 1)
    # Subtracting the mean makes the products a little dependent. Counting a pair of seeds too few is on the
    # safe side: it makes p-values larger.
    terms = (seeds // 2 - 1) * numbers
    yield NoiseTest(
        "independence", CONSECUTIVE, _compute_correlation_p_value(abs(correlation), terms)
    )

    # Parameters, at every distance among all of them and within small layers.
    # Of more than 40 layers the first 40, since every pair of layers is compared below.
    layers = [noise[:, layer == index] for index in np.unique(layer)[:40]]
    yield from _test_distances(noise)
    for layer_noise in layers:
        # In a layer that has an eighth of all parameters or less, repetitions may be too few to show in the
        # test above, of all parameters. A larger layer has a good part of its products.
        is_small = layer_noise.shape[1] <= numbers / 8
        if is_small:
            yield from _test_distances(layer_noise)

    # Pairs of layers. As many first parameters of both are compared as the smaller layer has.
    p_values = []
    for first, second in itertools.combinations(layers, 2):
        size = min(first.shape[1], second.shape[1])
        correlation = np.mean(first[:, :size] * second[:, :size])
        p_values.append(_compute_correlation_p_value(abs(correlation), (seeds - 1) * size))
    if p_values:
        # Layers are correlated where they draw from the same key. The smallest p-value counts, with
        # Bonferroni's correction.
        yield NoiseTest("independence", "layers", min(1.0, len(p_values) * min(p_values)))


def _test_distances(noise: Vector) -> Iterator[NoiseTest]:
    """Yields a test that parameters' noise is uncorrelated at every distance in the flat vector.

    The correlation at a distance is the mean product of two numbers so far apart in the vector, over all
    seeds. Rows of a matrix that share a draw, or workers that share a generator, repeat numbers at some
    distance. The largest correlation over all distances is tested, with Bonferroni's correction. Yields
    nothing for a single parameter.

    Args:
      noise: (n, k) standardised noise of n seeds in k parameters.
    """
    seeds, numbers = noise.shape
    if numbers < 2:
        return
    # The sums of products at all distances are the inverse Fourier transform of the power spectrum. It closes
    # the vector to a circle. The circle's size is made odd, by a 0 at the end if need be: on a circle of even
    # size, pairs half of it apart would count twice.
    size = numbers | 1
    spectrum = np.zeros(size // 2 + 1)
    for draw in noise:
        spectrum += np.abs(fft.rfft(draw, size)) ** 2
    # The sums at distances 1, 2, ... up to half of the circle.
    products = fft.irfft(spectrum, size)[1 : size // 2 + 1]
    correlations = np.abs(products) / noise.size
    largest = np.max(correlations)
    distance = np.argmax(correlations) + 1
    terms = (seeds - 1) * numbers  # a seed less, for the mean that was subtracted
    p_value = _compute_correlation_p_value(largest, terms)
    corrected = min(1.0, len(correlations) * p_value)
    yield NoiseTest("independence", f"{numbers:,} numbers at a distance of {distance}", corrected)


def _compute_correlation_p_value(correlation: Any, terms: int) -> float:
    """Returns the two-sided p-value of the null hypothesis of no correlation, by Student's t.

    The statistic is r sqrt(n / (1 - r^2)), as usual for a correlation r of n pairs. But the t has n / 2
    degrees of freedom in place of n. At a distance in the vector, each number is in two products, which are
    then dependent. If numbers are few, t with n degrees would therefore reject correct noise too often. Where
    each number is in a single product, n / 2 is cautious: correct noise is rejected more rarely.

    Args:
      correlation: r, the absolute value of a mean of products of two numbers of mean 0 and variance 1.
      terms: n, the number of these products.
    """
    # The floor is for a correlation of 1 or more, whose root would not be real.
    student = correlation * np.sqrt(terms / max(1 - correlation**2, 1e-12))
    return float(2 * scipy.stats.t.sf(student, df=terms / 2))
