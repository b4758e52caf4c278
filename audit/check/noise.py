"""A step's noise: how large it is, independent of what, how shaped, and whether the batch changes it.

The noise is drawn with many seeds at the batch as given and at others. It is in stated deviations
eta sigma C / B. Its mean over n seeds is removed, which leaves n - 1 degrees of freedom a number. Where a
test is rejected, the bugs that explain it are named.
"""

import itertools
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, stats

from audit.check import findings, trees
from audit.check.findings import CheckFinding
from audit.check.probe import RefusedError, StepProbe, StepSettings
from audit.check.report import CheckOutcome
from audit.check.trees import Columns, Vector

EMPTY = "an empty batch"
FOURFOLD = "four times the batch"
QUARTER = "a quarter of the batch"
FEATURES = "features times 1000"
ROWS = ("noise", "independence", "shape", "noise and data", "empty batch")
_CONSECUTIVE = "consecutive seeds"

_FREEDOM = 320  # degrees of freedom to reach in the smallest layer, where a few seconds allow
_NUMBERS = 20_000  # to draw over all layers and seeds, where a few seconds allow
_MOST_NUMBERS = 60_000  # of a draw that are looked at
_FEW_SECONDS = 3.0
_MOST_SECONDS = 20.0  # for _FREEDOM
_SLOW_SECONDS = 40.0  # after which other batches are drawn four times only


class StepNoise(NamedTuple):
    """The noise of n seeds at one batch, of k numbers in some layers, in stated deviations.

    Attributes:
      values: (n, k) the noise, less its mean over seeds; 0 where rounding hides it.
      mean: (k,) how far the mean over seeds is from the start.
      layer: (k,) index of each number's layer.
      exact: (k,) where rounding is too fine to show in the shape of the noise.
      deviations: (layers,) each layer's deviation, without what rounding adds.
      freedom: (layers,) degrees of freedom of the deviations.
      tolerance: (layers,) how far deviations may be wrong, relative.
      silent: (layers,) how many numbers are the same for every seed.
    """

    values: Vector
    mean: Vector
    layer: NDArray[np.int64]
    exact: NDArray[np.bool_]
    deviations: Vector
    freedom: NDArray[Any]
    tolerance: Vector
    silent: NDArray[Any]


class DrawnNoise(NamedTuple):
    """The noise at the batch as given and at others.

    Attributes:
      layer_names: (layers,) as in the probe.
      given: the noise at the batch as given, with no freedom in layers that are not trained.
      others: by the batch's name the noise there, or why there is none.
    """

    layer_names: list[str]
    given: StepNoise
    others: dict[str, StepNoise | str]

    def compute_deviation(self, batch: str = "") -> Any:
        """Returns the deviation over all trained layers; NaN where it cannot be seen.

        Args:
          batch: a name in `others`, or nothing for the batch as given.
        """
        noise: StepNoise | str = self.given
        if batch:
            noise = self.others.get(batch, "")
        if isinstance(noise, str):
            return np.nan
        freedom = np.where(self.given.freedom > 0, noise.freedom, 0)
        return np.sqrt(np.sum(freedom * noise.deviations**2) / np.sum(freedom))

    def is_constant(self) -> bool:
        """Returns whether all seeds give the same noise.

        A gradient moves a step four times as far at four times the batch; the same noise does not.
        """
        fourfold = self.others[FOURFOLD]
        if isinstance(fourfold, str) or np.any(self.given.values):
            return False
        constant = (4 * self.given.mean - fourfold.mean) / 3
        deviation = np.sqrt(np.mean(constant[constant != 0] ** 2))
        return bool(0.3 < deviation < 3)


class NoiseTest(NamedTuple):
    """A statistical test of the noise: its row in the report, what it is of, and its p-value."""

    row: str
    what: str
    p_value: float


def draw_noise(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """Draws the noise at the batch as given and at others.

    Args:
      probe: the step.
      seeds: how many to draw, by default as many as layers need and time allows.
      seconds: that one draw takes.

    Raises:
      RefusedError: the step fails at the batch as given.
    """
    began = time.perf_counter()
    probe.run(probe.rows, 1)  # shows which numbers are trained
    count = seeds or _choose_count(probe, seconds)
    given = _draw_at(probe, probe.rows, 0, count)
    if isinstance(given, str):
        raise RefusedError(given)

    fewer = max(12, min(count, _FREEDOM) // 4)
    if time.perf_counter() - began >= _SLOW_SECONDS:
        fewer = 4
    others = {}
    for name, batch in _make_other_batches(probe.rows).items():
        others[name] = _draw_at(probe, batch, 1, fewer)

    is_trained = np.bincount(probe.layer, probe.is_trained) > 0
    given = given._replace(freedom=given.freedom * is_trained)
    return DrawnNoise(probe.layer_names, given, others)


def _choose_count(probe: StepProbe, seconds: float) -> int:
    """Returns how many seeds the trained layers need, as far as time allows, at least 12."""
    trained_layers = np.unique(probe.layer[probe.is_trained])
    sizes = np.bincount(probe.layer)[trained_layers].tolist() or [_FREEDOM]
    needed = int(np.clip(_FREEDOM / min(sizes), 64, _FREEDOM))
    better = int(np.clip(_NUMBERS / sum(sizes), needed, 2000))
    in_few_seconds = min(better, int(_FEW_SECONDS / seconds))
    in_most_seconds = min(needed, int(_MOST_SECONDS / seconds))
    return max(in_few_seconds, in_most_seconds, 12)


def _make_other_batches(rows: Columns) -> dict[str, Columns]:
    """Makes batches of other sizes and features, by name."""
    batches = {}
    examples = len(rows[0])
    quarter = max(1, examples // 4)
    if quarter < examples:
        batches[QUARTER] = trees.take(rows, slice(0, quarter))
    batches[FOURFOLD] = trees.join(rows, rows, rows, rows)
    batches[FEATURES] = trees.scale_features(rows, 1e3, rows)
    batches[EMPTY] = trees.take(rows, slice(0, 0))
    return batches


def _draw_at(
    probe: StepProbe,
    rows: Columns,
    stream: int,
    count: int,
) -> StepNoise | str:
    """Draws `count` steps at a batch and measures their noise; returns why not, where the step fails.

    Looks at the first numbers of each layer, as many as memory allows.
    """
    place_in_layer = np.arange(probe.start.size) - np.searchsorted(probe.layer, probe.layer)
    is_sampled = place_in_layer < max(_MOST_NUMBERS // len(probe.layer_names), 256)
    draws = []
    try:
        for seed in _choose_seeds(probe, stream, count):
            draws.append(probe.run(rows, int(seed))[is_sampled])
    except RefusedError as error:
        return str(error)
    tolerance = 4 * probe.spacings[np.flatnonzero(place_in_layer == 0)]
    return _measure_noise(probe, np.array(draws), is_sampled, tolerance)


def _choose_seeds(probe: StepProbe, stream: int, count: int) -> NDArray[np.int64]:
    """Returns pairs of consecutive seeds that are this step's own.

    With the same seeds for all steps, chance correlations of a generator's first seeds would be found in
    every step.
    """
    text = repr(probe.settings).replace(
        "StepSettings", "Stated"
    )  # another word would change all seeds
    step_seed = zlib.crc32(text.encode() + probe.start.tobytes())
    pairs = -(-count // 2)
    rng = np.random.default_rng([step_seed, stream])
    first = 2 * rng.integers(1, 2**30, pairs)
    return np.column_stack([first, first + 1]).ravel()[:count]


def _measure_noise(
    probe: StepProbe,
    draws: Vector,
    is_sampled: NDArray[np.bool_],
    tolerance: Vector,
) -> StepNoise:
    """Measures the noise of draws.

    Args:
      probe: the step.
      draws: (n, k) numbers after the step.
      is_sampled: (p,) which k of all numbers these are.
      tolerance: (layers,) how far deviations may be wrong.
    """
    deviation = probe.settings.unit * probe.settings.noise_multiplier
    freedom_each = len(draws) - 1
    layer = probe.layer[is_sampled]
    noise = (draws - draws[0]) / deviation
    noise = noise - noise.mean(axis=0)
    mean = (draws.mean(axis=0) - probe.start[is_sampled]) / deviation

    rounding = trees.compute_ulp(draws, probe.spacings[is_sampled]) / deviation
    coarsest = np.max(rounding, axis=0)
    is_visible = coarsest <= np.maximum(1, noise.std(axis=0))
    rounding_squares = freedom_each / 12 * np.mean(rounding**2, axis=0)  # Sheppard's correction
    squares = np.sum(noise**2, axis=0) - rounding_squares
    layer_squares = np.bincount(layer, np.where(is_visible, squares, 0))
    freedom = freedom_each * np.bincount(layer, is_visible)
    is_silent = (coarsest <= 0.25) & (np.ptp(draws, axis=0) == 0)
    return StepNoise(
        values=np.where(is_visible, noise, 0),
        mean=mean,
        layer=layer,
        exact=32 * coarsest <= 1,
        deviations=np.sqrt(np.maximum(layer_squares, 0) / np.maximum(freedom, 1)),
        freedom=freedom,
        tolerance=tolerance,
        silent=np.bincount(layer, is_silent),
    )


def check_noise(drawn: DrawnNoise) -> dict[str, CheckOutcome]:
    """Returns the outcomes of the noise's rows, with every statistical test of it."""
    p_values: dict[str, dict[str, float]] = {row: {} for row in ROWS}
    for test in _run_tests(drawn):
        p_values[test.row][test.what] = test.p_value

    seeds = len(drawn.given.values)
    texts = {}
    for row, tested in p_values.items():
        texts[row] = f"as usual at {', '.join(tested)}"
    texts["noise"] = (
        f"deviation {drawn.compute_deviation():.4g} times eta sigma C / B, "
        f"{len(p_values['noise'])} layers, {seeds} seeds"
    )
    texts["independence"] = "between numbers, layers and seeds: nothing against it"
    texts["shape"] = "normal"

    reasons = dict.fromkeys(ROWS, "there is no noise to look at")  # why a row could not be tried
    reasons["noise"] = (
        "the noise lies below the parameters' rounding: use float64 or a larger learning rate"
    )
    for batch, noise in drawn.others.items():
        if isinstance(noise, str):
            reasons[_row_of(batch)] = f"the step refused {batch}: {noise}"

    outcomes = {}
    for row, tested in p_values.items():
        if tested:
            outcomes[row] = CheckOutcome(texts[row], p_values=tested)
        else:
            outcomes[row] = CheckOutcome(reasons[row], tried=False)

    deviations = {}
    for name, deviation in zip(drawn.layer_names, drawn.given.deviations, strict=True):
        if name in p_values["noise"]:
            deviations[name] = float(deviation)
    figures = {"noise": deviations, "seeds": seeds}
    outcomes["noise"] = outcomes["noise"]._replace(figures=figures)
    return outcomes


def _row_of(batch: str) -> str:
    """Returns the row in which the noise at another batch is reported."""
    return "empty batch" if batch == EMPTY else "noise and data"


def _run_tests(drawn: DrawnNoise) -> Iterator[NoiseTest]:
    """Yields each statistical test of the noise."""
    given = drawn.given
    seeds = len(given.values)
    squares = given.deviations**2 * given.freedom
    p_values = compute_two_sided_p_value(
        stats.chi2(given.freedom),
        squares / (1 + given.tolerance) ** 2,
        squares / (1 - given.tolerance) ** 2,
    )
    for i in np.flatnonzero(given.freedom):
        yield NoiseTest("noise", drawn.layer_names[i], float(p_values[i]))

    least = 0.01 * max(drawn.compute_deviation(), 1)  # less is no noise
    is_noisy = given.values.std(axis=0) > least
    if not np.any(is_noisy):
        return
    noisy = given.values[:, is_noisy]
    yield from _test_independence(noisy / noisy.std(axis=0), given.layer[is_noisy])

    standardised = (given.values / given.deviations[given.layer])[:, is_noisy & given.exact]
    standardised = standardised * np.sqrt(
        seeds / (seeds - 1)
    )  # which the mean's removal takes away
    if standardised.size >= 200:
        yield NoiseTest(
            "shape", "distribution", compute_fit_p_value(standardised.ravel(), stats.norm())
        )

    for batch, noise in drawn.others.items():
        if isinstance(noise, str):
            continue
        is_comparable = (given.freedom > 0) & (given.deviations > least) & (noise.freedom > 0)
        quotient = (given.deviations / noise.deviations) ** 2
        slack = (1 + given.tolerance + noise.tolerance) ** 2
        fisher = stats.f(given.freedom, noise.freedom)
        p_values = compute_two_sided_p_value(fisher, quotient / slack, quotient * slack)[
            is_comparable
        ]
        if p_values.size:
            p_value = min(1, np.min(p_values) * p_values.size)  # Bonferroni's correction
            yield NoiseTest(_row_of(batch), batch, float(p_value))


def compute_two_sided_p_value(
    distribution: Any,
    above: Any,
    below: Any = None,
) -> Any:
    """Returns two-sided p-values of statistics of a distribution of SciPy.

    Args:
      distribution: of the statistics where nothing is wrong.
      above: the statistics, as they are held against the upper tail.
      below: the same as they are held against the lower tail, larger where they are uncertain.
    """
    if below is None:
        below = above
    one_sided = np.minimum(distribution.sf(above), distribution.cdf(below))
    return np.minimum(1, 2 * one_sided)


def compute_fit_p_value(values: NDArray[Any], distribution: Any) -> float:
    """Returns the p-value of numbers of a distribution, by a chi-square test.

    Numbers are counted in intervals as likely as half deviations of a normal law. It is conservative where
    few numbers are expected.
    """
    levels = stats.norm.cdf(np.arange(-3, 3.1, 0.5))
    levels = levels[len(values) * np.minimum(levels, 1 - levels) > 10]
    edges = np.unique(distribution.ppf(levels))
    expected = np.diff([0.0, *distribution.cdf(edges), 1.0]) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(expected))
    statistic = np.sum((counts - expected) ** 2 / np.maximum(expected, 5))
    return float(stats.chi2.sf(statistic, len(edges)))


def _test_independence(noise: Vector, layer: NDArray[np.int64]) -> Iterator[NoiseTest]:
    """Yields tests of no correlation between seeds, between numbers and between layers.

    Args:
      noise: (n, k) standardised noise of n seeds.
      layer: (k,) index of each number's layer.
    """
    seeds, numbers = noise.shape
    correlation = np.mean(noise[: seeds - 1 : 2] * noise[1::2])
    correlation += 1 / (seeds - 1)  # which the mean's removal takes away
    terms = (seeds // 2 - 1) * numbers
    yield NoiseTest(
        "independence", _CONSECUTIVE, _compute_correlation_p_value(abs(correlation), terms)
    )

    layers = [noise[:, layer == index] for index in np.unique(layer)[:40]]
    yield from _test_distances(noise)
    for part in layers:
        is_small = 8 * part.shape[1] <= numbers  # what it shares is lost among all numbers
        if is_small:
            yield from _test_distances(part)

    p_values = []
    for first, second in itertools.combinations(layers, 2):
        size = min(first.shape[1], second.shape[1])
        correlation = np.mean(first[:, :size] * second[:, :size])
        p_values.append(_compute_correlation_p_value(abs(correlation), (seeds - 1) * size))
    if p_values:
        # layers are related where they draw from the same key
        yield NoiseTest("independence", "layers", min(1.0, len(p_values) * min(p_values)))


def _test_distances(noise: Vector) -> Iterator[NoiseTest]:
    """Yields a test of no correlation between numbers at any distance, if there is more than one number.

    Rows that share a draw, or workers that share a generator, repeat numbers at some distance.
    """
    seeds, numbers = noise.shape
    if numbers < 2:
        return
    size = numbers | 1  # odd, so that no distance is its own opposite
    power = np.zeros(size // 2 + 1)
    for draw in noise:
        power += np.abs(fft.rfft(draw, size)) ** 2
    products = fft.irfft(power, size)[1 : size // 2 + 1]  # summed over pairs at each distance
    correlations = np.abs(products) / noise.size
    largest = np.max(correlations)
    p_value = _compute_correlation_p_value(largest, (seeds - 1) * numbers)
    what = f"{numbers:,} numbers at a distance of {np.argmax(correlations) + 1}"
    yield NoiseTest("independence", what, min(1.0, len(correlations) * p_value))


def _compute_correlation_p_value(correlation: Any, terms: int) -> float:
    """Returns Student's p-value of no correlation, of an absolute correlation over so many products."""
    student = correlation * np.sqrt(terms / max(1 - correlation**2, 1e-12))
    return float(2 * stats.t.sf(student, terms / 2))  # a number is in two pairs


def name_noise_bugs(
    settings: StepSettings,
    drawn: DrawnNoise,
    plateau: float,
    certain: list[CheckFinding],
    rejected: Mapping[str, list[str]],
) -> list[CheckFinding]:
    """Returns the findings that are certain and those that explain the noise.

    Args:
      settings: what the caller states.
      drawn: the noise.
      plateau: the movement at which extreme examples stop. Where it and the noise are wrong by the same
        factor, that is a single bug.
      certain: findings without a test.
      rejected: what the rejected tests of each row are of.
    """
    deviation = drawn.compute_deviation()
    has_noise = deviation != 0
    repeats = _count_repeats(drawn)
    shares_numbers = False  # so that fewer numbers are independent than tests assume
    result = list(certain)

    if repeats and (has_noise or drawn.is_constant()):
        finding = findings.REPEATED_NOISE.fill(
            which="several seeds" if has_noise else "every seed",
            repeats=repeats,
            seeds=len(drawn.given.values),
        )
        result.append(finding)
        shares_numbers = True
    elif rejected["independence"]:
        between_numbers = [what for what in rejected["independence"] if what != _CONSECUTIVE]
        if between_numbers:
            result.append(findings.SHARED_NOISE.fill(tests="; ".join(between_numbers)))
            shares_numbers = True
        else:
            result.append(findings.RELATED_STEPS)

    result += _find_silent_numbers(drawn)

    is_scaled_step = (
        rejected["noise"]
        and not rejected["noise and data"]
        and abs(plateau / deviation - 1) < 0.05
        and min(abs(deviation - 1), abs(plateau - 1)) > 0.02
    )
    sharing_explains = shares_numbers and (not has_noise or 0.5 < deviation < 2)
    if is_scaled_step:
        result = [finding for finding in result if finding.check != "sensitivity"]
        why = explain_noise(deviation, settings, 1, 0.01)
        result.append(findings.ANOTHER_SIZE.fill(ratio=deviation, why=why))
    elif rejected["noise"] and not sharing_explains:
        result += _explain_wrong_layers(rejected["noise"], drawn, settings)

    for batch, noise in drawn.others.items():
        row = _row_of(batch)
        if not isinstance(noise, str) and not np.all(np.isfinite(noise.mean)):
            result.append(findings.NOT_FINITE.fill(check=row, where=batch))
        elif batch in rejected[row] and not shares_numbers:
            ratio = drawn.compute_deviation(batch) / deviation
            result.append(_explain_other_batch(row, batch, ratio))
    if rejected["shape"] and not shares_numbers:
        result.append(findings.NOT_NORMAL)
    return result


def _count_repeats(drawn: DrawnNoise) -> int:
    """Returns how many seeds give exactly the noise of another; 0 where that can be chance."""
    given = drawn.given
    exact_values = given.values[:, given.exact]
    is_coarse = np.max(given.tolerance) > 1e-6
    least = 16 if is_coarse else 4  # numbers that do not repeat by chance
    if np.sum(given.exact) < least:
        return 0
    distinct = {draw.tobytes() for draw in exact_values}
    return len(given.values) - len(distinct)


def _find_silent_numbers(drawn: DrawnNoise) -> list[CheckFinding]:
    """Returns findings of layers with noise in which some numbers have none."""
    given = drawn.given
    result = []
    for i in np.flatnonzero(given.silent * given.deviations * given.freedom):
        name = drawn.layer_names[i]
        finding = findings.SILENT.fill(
            where=f"in a part of {name}",
            what=f"numbers of {name}",
            count=given.silent[i],
            all=np.sum(given.layer == i),
        )
        result.append(finding)
    return result


def _explain_other_batch(row: str, batch: str, ratio: float) -> CheckFinding:
    """Returns the finding of noise that is `ratio` times as large at another batch.

    Args:
      row: the check that the noise failed.
      batch: the other batch: QUARTER, FOURFOLD, EMPTY or another.
      ratio: the noise's deviation there over that at the batch as given.
    """
    # No noise at an empty batch: the step is skipped.
    if batch == EMPTY and ratio < 1e-3:
        return findings.SKIPPED

    # Noise / size, with the number of examples that are there for the size, is 4 times as large at a quarter
    # of them, and a quarter as large at four times as many.
    ratio_of_actual_size = {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf)
    if abs(ratio / ratio_of_actual_size - 1) < 0.15:
        figure = f"noise {ratio:.3g} times as large at {batch}"
        return findings.ACTUAL_SIZE.fill(check=row, figure=figure)

    # Any other ratio: the batch changes the noise in some way that is not recognised.
    return findings.NOISE_DEPENDS_ON_BATCH.fill(check=row, batch=batch, ratio=ratio)


def _explain_wrong_layers(
    wrong: list[str],
    drawn: DrawnNoise,
    settings: StepSettings,
) -> list[CheckFinding]:
    """Returns the findings of layers whose noise has another deviation than stated.

    Args:
      wrong: names of those layers.
      drawn: the noise.
      settings: what the caller states.
    """
    given = drawn.given
    layers = int(np.count_nonzero(given.freedom))
    index = {name: i for i, name in enumerate(drawn.layer_names)}
    silent = []
    noisy = []
    for name in wrong:
        if given.deviations[index[name]] < 1e-3:
            silent.append(name)
        else:
            noisy.append(name)

    result = []
    if silent:
        where = "anywhere"
        if len(silent) < layers:
            where = f"in {', '.join(silent[:4])}"
        finding = findings.SILENT.fill(
            where=where,
            count=len(silent),
            all=layers,
            what="trained layers",
        )
        result.append(finding)
    if noisy:
        where = ""
        if len(noisy) < layers:
            where = f" in {', '.join(noisy[:4])}"
        indices = [index[name] for name in noisy]
        finding = _explain_deviations(
            given.deviations[indices],
            given.freedom[indices],
            where,
            layers,
            settings,
        )
        result.append(finding)
    return result


def _explain_deviations(
    deviations: Vector,
    freedom: NDArray[Any],
    where: str,
    layers: int,
    settings: StepSettings,
) -> CheckFinding:
    """Returns the finding of wrong deviations, with the mistakes that explain them where they are equal.

    Args:
      deviations: (m,) of the wrong layers.
      freedom: (m,) their degrees of freedom.
      where: which layers these are, in the words of the finding.
      layers: how many layers are trained.
      settings: what the caller states.
    """
    low = min(deviations)
    high = max(deviations)
    are_equal = high / low < max(1.1, 1 + 8 / (2 * min(freedom)) ** 0.5)
    if not are_equal:
        figure = f"{low:.3g} to {high:.3g}"
        return findings.WRONG_NOISE.fill(figure=figure, where=where, why="It differs by layer.")
    deviation = np.average(deviations**2, weights=freedom) ** 0.5
    tolerance = min(0.01 + 4 / (2 * sum(freedom)) ** 0.5, 0.05)
    why = explain_noise(deviation, settings, layers, tolerance)
    return findings.WRONG_NOISE.fill(figure=f"{deviation:.3g}", where=where, why=why)


def find_mistakes(
    settings: StepSettings,
    factor: float,
    tolerance: float,
    special: Mapping[str, float],
) -> list[str]:
    """Returns the mistakes that multiply a movement or the noise by a factor, the likeliest first.

    Args:
      settings: what the caller states.
      factor: the movement or the noise over what it should be.
      tolerance: relative, of the factor.
      special: factors of mistakes that only a movement, or only the noise, can have.
    """
    factors = {
        **special,
        "C is left out": 1 / settings.clipping_norm,
        "C enters twice": settings.clipping_norm,
        "divided by the batch size twice": 1 / settings.batch_size,
        "not divided by the batch size": settings.batch_size,
        "the learning rate is left out": 1 / settings.learning_rate,
    }
    errors = {}
    for mistake, mistaken_factor in factors.items():
        has_effect = abs(mistaken_factor - 1) > 0.02
        error = round(abs(factor / mistaken_factor - 1), 3)
        if has_effect and error < tolerance:
            errors[mistake] = error
    return sorted(errors, key=lambda mistake: errors[mistake])


def explain_noise(
    ratio: float,
    settings: StepSettings,
    layers: int,
    tolerance: float,
) -> str:
    """Returns a sentence on the mistakes that multiply the noise by a ratio; empty where there is none.

    Args:
      ratio: the noise over what is stated.
      settings: what the caller states.
      layers: how many are trained.
      tolerance: relative, of the ratio.
    """
    sigma = settings.noise_multiplier
    size = settings.batch_size
    factors: dict[str, float] = {
        "divided by sqrt(B) too much": size**-0.5,
        "divided by sqrt(B), or drawn for every example": size**0.5,
        "sigma is squared: a variance taken for a deviation": sigma,
        "sigma is left out": 1 / sigma,
        "the root of sigma: a deviation taken for a variance": sigma**-0.5,
        "the learning rate enters twice": settings.learning_rate,
        "shared out among layers": layers**-0.5,
        "sensitivity 2 C (one replaced)": 2.0,
    }
    for k in range(2, 17):
        factors[f"noise added {k} times, by accumulated batches or workers"] = k**0.5
        factors[f"one draw added {k} times, by workers with one generator"] = k
        factors[f"the noise of one of {k} accumulated batches or workers"] = k**-0.5
        factors[f"divided by {k} accumulated batches or workers"] = 1 / k
    mistakes = find_mistakes(settings, ratio, tolerance, factors)
    if not mistakes:
        return ""
    return f"It fits: {'; or '.join(mistakes[:3])}."


def make_noise_pictures(drawn: DrawnNoise) -> dict[str, Any]:
    """Returns what the page draws of the noise: a sample, and its deviations by layer and by batch."""
    values = drawn.given.values.ravel()
    rng = np.random.default_rng(0)
    sample = rng.choice(values, min(5000, values.size), replace=False)
    layers = {}
    for i in np.flatnonzero(drawn.given.freedom > 0):
        layers[drawn.layer_names[i]] = float(drawn.given.deviations[i])
    batches = {"the batch as given": drawn.compute_deviation()}
    for batch in drawn.others:
        batches[batch] = drawn.compute_deviation(batch)
    return {"sample": sample, "layers": layers, "batches": batches}
