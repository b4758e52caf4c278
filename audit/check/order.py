"""Is the order of examples uniform and drawn anew in every pass?

The null hypothesis: every pass is a uniform random permutation of the data, independent of other passes, and
cut into batches of the sizes that are seen. Only the batch of an example counts, not its place within it.
Examples that a pass leaves out count as a last batch. Bounds over many examples or pairs are union bounds.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.check import loaders
from audit.check.loaders import Draw
from audit.check.noise import compute_two_sided_p_value
from audit.written import counted

Array = NDArray[np.float64]

_MOST_PASSES = 64
_LEAST_PASSES = 8
_MOST_PLACES = 4_000_000  # of examples in all passes, unless the fewest passes have more
_MOST_BATCHES = 20_000  # in all passes, unless the fewest have more
_RARE = 1e-6  # the p-value that the fewest passes give a single example that is always in one batch
_MOST_BLOCKS = 10  # into which the data and a pass are cut to be compared
_LEAST_EXPECTED = 10  # examples of a pair of such blocks
_LEAST_FREEDOM = 16  # of chi-square, from which on its lower tail is looked at
_MOST_RATE = 0.6  # at which two examples come together, up to which this is looked at
_AT_ONCE = 10_000  # examples whose blocks are counted at once
_OBSERVED = 800  # examples, at most, all of whose pairs are looked at
_LEAST_TOGETHER = 1000  # expected pairs that come together twice, from which on their sum is tested
_TILTS = np.geomspace(1e-3, 8, 40)  # at which Chernoff bounds are computed


class OrderTest(NamedTuple):
    """What passes of a loader show of the order of examples.

    Attributes:
      passes: the number of passes that were drawn.
      batches: the least number of batches of a pass.
      is_once: whether no pass holds an example twice.
      is_whole: whether every pass ended by itself, after at most as many batches as a pass should have.
      repeats: whether all passes are the same.
      is_even: whether no batch holds more than its equal share of the examples.
      p_values: by row of the report of batches, "order" and "together", the p-value of a uniform order.
      seen: by row, the sentence that describes what the row's most telling test saw.
    """

    passes: int
    batches: int
    is_once: bool
    is_whole: bool
    repeats: bool
    is_even: bool
    p_values: Mapping[str, float]
    seen: Mapping[str, str]

    @property
    def p_value(self) -> float:
        """The p-value of a uniform order, of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by name, and the p-value of all tests together."""
        return self._asdict() | {"p_value": self.p_value}


class _Passes(NamedTuple):
    """The batch of each example in each pass.

    Attributes:
      steps: (passes, examples) the index of the batch; the largest index is that of examples left out.
      sizes: (passes, indices) the number of examples that each index has.
      is_once, is_whole: as in OrderTest.
    """

    steps: NDArray[np.int32]
    sizes: NDArray[np.int64]
    is_once: bool
    is_whole: bool

    @property
    def passes(self) -> int:
        """The number of passes."""
        return len(self.steps)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self.steps[0])

    @property
    def shares(self) -> Array:
        """The share of the examples that each index has, (passes, indices)."""
        return self.sizes / self.examples

    @property
    def middles(self) -> Array:
        """The middle of each batch in its pass, from 0 to 1, (passes, indices)."""
        return np.asarray(np.cumsum(self.shares, axis=1) - self.shares / 2)

    @property
    def scores(self) -> Array:
        """Each batch's place in its pass, standardized over examples, (passes, indices)."""
        centred = self.middles - 0.5
        deviations = np.sqrt(np.sum(self.shares * centred**2, axis=1, keepdims=True))
        return np.asarray(centred / np.maximum(deviations, 1e-12))

    @property
    def rates_together(self) -> Array:
        """The probability, of each pass, that two examples are in the same batch, (passes,)."""
        pairs = np.sum(self.sizes * (self.sizes - 1), axis=1)
        return np.asarray(pairs / (self.examples * (self.examples - 1)))


class _Sight(NamedTuple):
    """A test's p-value, which may exceed 1 by a union bound, and the sentence on what it saw."""

    p_value: float
    sentence: str


def examine_order(draw: Draw, examples: int, batches: int, sizes_vary: bool) -> OrderTest:
    """Tests whether examples come in a uniform order, drawn anew in every pass.

    Args:
      draw: the function from a seed to the batches of a pass, or to a single batch. Then `batches` calls in a
        row make a pass.
      examples: the number of examples of the data set.
      batches: the number of batches of a pass, at least 2; what a loader yields beyond them is not read.
      sizes_vary: whether every example should draw its batch by itself, so that sizes vary (balls in bins).

    Raises:
      InputError: `draw` fails, or gives something else than indices of the data set.
    """
    drawn = _draw_passes(draw, examples, batches)
    places = np.take_along_axis(drawn.scores, drawn.steps, axis=1)  # (passes, examples)
    sights = {
        "order": [
            _test_single_batch(drawn),
            _test_mean_place(drawn, places),
            *_test_blocks(drawn),
            _test_neighbours(places),
        ],
        "together": [_test_same_batches(drawn), *_test_pairs(drawn)],
    }
    if sizes_vary:
        sights["order"].append(_test_sizes(drawn))
    p_values = {}
    seen = {}
    for row, tests in sights.items():
        strongest = min(tests, key=lambda sight: sight.p_value)
        p_values[row] = min(1.0, len(tests) * strongest.p_value)
        seen[row] = strongest.sentence
    return OrderTest(
        passes=drawn.passes,
        batches=int((drawn.sizes[:, :-1] > 0).sum(axis=1).min()),
        is_once=drawn.is_once,
        is_whole=drawn.is_whole,
        repeats=bool(np.all(drawn.steps == drawn.steps[0])),
        is_even=bool(drawn.sizes[:, :-1].max() * batches <= examples),
        p_values=p_values,
        seen=seen,
    )


def _count_passes(examples: int, batches: int) -> int:
    """Returns the number of passes to draw: many where that is cheap, and enough to see a single example."""
    affordable = min(_MOST_PLACES // examples, _MOST_BATCHES // batches, _MOST_PASSES)
    least = 1 + math.ceil(math.log(examples / _RARE) / math.log(batches))
    return max(affordable, least, _LEAST_PASSES)


def _draw_passes(draw: Draw, examples: int, batches: int) -> _Passes:
    """Draws passes with seeds 0, 1, ...; returns the batch of each example in each pass."""
    passes = _count_passes(examples, batches)
    steps = np.full((passes, examples), batches, np.int32)
    sizes = np.empty((passes, batches + 1), np.int64)
    is_once = True
    is_whole = True
    seed = 0
    for i in range(passes):
        drawn = loaders.draw_pass(draw, seed, examples, batches)
        seed += 1
        contents = drawn.batches
        is_whole = is_whole and drawn.is_whole
        if len(contents) == 1:  # a single batch from a call: more calls make a pass
            for _ in range(batches - 1):
                contents += loaders.draw_pass(draw, seed, examples, 1).batches
                seed += 1
        indices = np.concatenate(contents)
        steps[i, indices] = np.repeat(np.arange(len(contents)), [len(batch) for batch in contents])
        sizes[i] = np.bincount(steps[i], minlength=batches + 1)
        is_once = is_once and len(indices) == examples - sizes[i, batches]
    return _Passes(steps, sizes, bool(is_once), is_whole)


def _test_single_batch(drawn: _Passes) -> _Sight:
    """Tests how often an example is in one and the same batch. An example left out is in none."""
    passes = drawn.passes
    left_out = drawn.sizes.shape[1] - 1
    never_equal = -1 - np.arange(passes, dtype=np.int32)[:, None]
    ordered = np.sort(np.where(drawn.steps == left_out, never_equal, drawn.steps), axis=0)
    most = 1
    example = 0
    for others in range(passes - 1, 0, -1):
        is_same = np.any(ordered[others:] == ordered[:-others], axis=0)
        if is_same.any():
            most = others + 1
            example = int(is_same.argmax())
            break
    tail = float(scipy.stats.binom.sf(most - 1, passes, drawn.shares[:, :-1].max()))
    sentence = f"Example {example} is in the same batch in {most} of {passes} passes."
    return _Sight(drawn.examples * left_out * tail, sentence)


def _test_mean_place(drawn: _Passes, places: Array) -> _Sight:
    """Tests the mean place of each example over passes, by a Chernoff bound."""
    sums = places.sum(axis=0)
    example = int(np.abs(sums).argmax())
    extreme = float(np.abs(sums[example]))
    sign = float(np.sign(sums[example]))
    log_tails = []
    for tilt in _TILTS:
        moments = np.sum(drawn.shares * np.exp(sign * tilt * drawn.scores), axis=1)
        log_tails.append(np.log(moments).sum() - tilt * extreme)
    when = "late" if sign > 0 else "early"
    sentence = f"Example {example} comes {when} on average over {drawn.passes} passes."
    return _Sight(2 * drawn.examples * math.exp(min(log_tails)), sentence)


def _test_blocks(drawn: _Passes) -> list[_Sight]:
    """Compares blocks of the data with blocks of a pass, over all passes; and each two of these orders."""
    passes = drawn.passes
    examples = drawn.examples
    for blocks in range(_MOST_BLOCKS, 1, -1):
        blocks_of_steps = np.minimum((blocks * drawn.middles).astype(np.int64), blocks - 1)
        shares = np.zeros((passes, blocks))
        np.add.at(shares, (np.arange(passes)[:, None], blocks_of_steps), drawn.shares)
        if examples * shares.min() ** 2 >= _LEAST_EXPECTED:
            break
    else:  # too few examples
        return []
    orders = [np.arange(examples) * blocks // examples]
    orders += [blocks_of_steps[i][drawn.steps[i]] for i in range(passes)]

    tables = _count_in_blocks(np.array(orders), blocks)
    expected = tables.sum(axis=3, keepdims=True) * tables.sum(axis=2, keepdims=True) / examples
    of_data = _compare_tables(tables[0, 1:].sum(axis=0), expected[0, 1:].sum(axis=0), examples)
    of_pairs = _compare_tables(tables, expected, examples)
    of_pairs[np.tril_indices(passes + 1)] = 1.0  # each pair once, and no order with itself
    first, second = np.unravel_index(int(of_pairs.argmin()), of_pairs.shape)
    other = "that of the data" if first == 0 else f"that of pass {first}"
    p_value = math.comb(passes + 1, 2) * float(of_pairs.min())
    return [
        _Sight(float(of_data), "When an example comes depends on its place in the data."),
        _Sight(p_value, f"The order of pass {second} depends on {other}."),
    ]


def _count_in_blocks(orders: NDArray[np.int64], blocks: int) -> Array:
    """Returns how many examples are in block a of an order and in block b of another, of each two orders.

    Args:
      orders: (orders, examples) the block of each example.
      blocks: the number of blocks of an order.

    Returns:
      The counts (orders, orders, blocks, blocks).
    """
    size = len(orders)
    counts = np.zeros((size * blocks, size * blocks))
    for start in range(0, orders.shape[1], _AT_ONCE):
        part = orders[:, None, start : start + _AT_ONCE]
        is_in_block = (part == np.arange(blocks)[:, None]).astype(np.float32)
        flat = is_in_block.reshape(size * blocks, -1)
        counts += flat @ flat.T
    return counts.reshape(size, blocks, size, blocks).swapaxes(1, 2)


def _compare_tables(tables: Array, expected: Array, examples: int) -> Array:
    """Returns the p-values (...) of tables (..., blocks, blocks) with fixed margins, by chi-square.

    They are two-sided but for tables of few blocks, since too even an order is not random either.
    """
    squares = (tables - expected) ** 2 / expected
    statistics = squares.sum(axis=(-2, -1)) * (examples - 1) / examples
    freedom = (tables.shape[-1] - 1) ** 2
    tails = special.chdtrc(freedom, statistics)
    if freedom >= _LEAST_FREEDOM:  # counts of fewer blocks are too often as expected exactly
        tails = 2 * np.minimum(tails, special.chdtr(freedom, statistics))
    return np.asarray(np.minimum(tails, 1.0))


def _test_neighbours(places: Array) -> _Sight:
    """Tests whether examples at any distance in the data come at related places, by autocorrelation.

    Args:
      places: (passes, examples) the standardized place of each example in its pass.
    """
    passes, examples = places.shape
    power = np.sum(np.abs(np.fft.rfft(places, axis=1)) ** 2, axis=0)
    # By distance, the sum over passes and examples of products of two scores, which is negative on average.
    products = np.fft.irfft(power, examples)[1 : examples // 2 + 1]
    deviations = np.full(len(products), math.sqrt(passes * examples))
    if examples % 2 == 0:
        deviations[-1] *= math.sqrt(2)  # at half of the data every pair counts twice
    z_scores = np.abs(products + passes * examples / (examples - 1)) / deviations
    distance = int(z_scores.argmax()) + 1
    p_value = 2 * len(products) * float(scipy.stats.norm.sf(z_scores.max()))
    return _Sight(p_value, f"Examples {distance} apart in the data come at related times.")


def _test_sizes(drawn: _Passes) -> _Sight:
    """Tests whether sizes vary as they do where every example draws its batch by itself."""
    sizes = drawn.sizes[:, :-1]
    expected = drawn.examples / sizes.shape[1]
    law = scipy.stats.chi2(drawn.passes * (sizes.shape[1] - 1))
    statistic = float(np.sum((sizes - expected) ** 2)) / expected
    p_value = compute_two_sided_p_value(law, statistic)
    return _Sight(float(p_value), "Sizes vary more or less than those of balls in bins.")


def _test_same_batches(drawn: _Passes) -> _Sight:
    """Tests whether any two examples of the data are together in every pass."""
    # Of other steps, sums with random weights (modulo 2^64) are next to never the same.
    weights = np.random.default_rng(0).integers(1, 2**62, (drawn.passes, 1))
    signatures = np.sum(weights * drawn.steps, axis=0)
    order = np.argsort(signatures, kind="stable")
    equal = np.flatnonzero(np.diff(signatures[order]) == 0)
    if not equal.size:
        return _Sight(1.0, "")
    first, second = order[equal[0] : equal[0] + 2]
    log_pairs = math.log(math.comb(drawn.examples, 2))
    log_p_value = log_pairs + float(np.log(drawn.rates_together).sum())
    sentence = f"Examples {first} and {second} are together in all {drawn.passes} passes."
    return _Sight(math.exp(min(log_p_value, 0.0)), sentence)


def _test_pairs(drawn: _Passes) -> list[_Sight]:
    """Tests how often pairs of some examples come together: the most frequent pair, and all of them."""
    passes = drawn.passes
    first_of_pairs = np.linspace(0, drawn.examples - 2, _OBSERVED // 2).astype(int)
    observed = np.unique([first_of_pairs, first_of_pairs + 1])  # neighbours in the data
    counts = np.zeros((len(observed), len(observed)), np.int16)
    for steps in drawn.steps[:, observed]:
        counts += np.equal.outer(steps, steps)
    first, second = np.triu_indices(len(observed), 1)
    together = counts[first, second].astype(np.int64)
    pairs = len(together)
    rates = drawn.rates_together
    most = int(together.max())
    pair = int(together.argmax())
    names = f"{observed[first[pair]]} and {observed[second[pair]]}"
    tail = float(scipy.stats.binom.sf(most - 1, passes, rates.max()))
    sentence = f"Examples {names} are together in {counted(most, 'pass', 'passes')} of {passes}."
    sights = [_Sight(pairs * tail, sentence)]

    # Over pairs of examples and pairs of passes, the sum of products of (together or not, less its mean).
    rate = float(rates.mean())
    pairs_of_passes = math.comb(passes, 2)
    if rate < _MOST_RATE and pairs * pairs_of_passes * rate**2 >= _LEAST_TOGETHER:
        squares = (together - passes * rate) ** 2
        of_single_passes = together * (1 - 2 * rate) + passes * rate**2
        products = float(np.sum(squares - of_single_passes)) / 2
        deviation = math.sqrt(pairs * pairs_of_passes) * rate * (1 - rate)
        freedom = pairs_of_passes * (1 / rate - 1) ** 2
        statistic = freedom + math.sqrt(2 * freedom) * products / deviation
        p_value = float(scipy.stats.chi2.sf(statistic, freedom))
        sights.append(_Sight(p_value, "Some examples come together more often than others."))
    return sights
