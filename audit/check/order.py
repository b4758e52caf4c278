"""Tests whether the order of examples is uniform and redrawn in every pass.

Under the null hypothesis, every pass is an independent, uniform permutation of the data, cut into batches of
the observed sizes. The tests ignore the order within batches, and treat omitted examples as an additional
batch.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.stats import contingency

from audit.check import loaders
from audit.check.loaders import Draw
from audit.check.noise import compute_two_sided_p_value
from audit.check.trees import Array, Integers


class OrderTest(NamedTuple):
    """The order of examples in passes over a loader.

    Attributes:
      passes: the number of drawn passes.
      batches: the smallest number of batches in a pass.
      is_once: True if no pass uses an example more than once.
      is_whole: True if no pass has more batches than were read.
      repeats: True if all passes are identical.
      is_even: True if no batch is larger than the number of examples divided by the number of batches.
      is_decreasing: True if no batch is larger than the one before it in its pass.
      p_value: the combined p-value of all tests of a uniform order (Bonferroni).
      seen: the observation of the test with the smallest p-value.
    """

    passes: int
    batches: int
    is_once: bool
    is_whole: bool
    repeats: bool
    is_even: bool
    is_decreasing: bool
    p_value: float
    seen: str


class Observation(NamedTuple):
    """The p-value of a test (above 1 if a union bound is loose), and the observation as a sentence."""

    p_value: float
    sentence: str


def examine_order(draw: Draw, examples: int, batches: int, sizes_vary: bool) -> OrderTest:
    """Tests the order of examples in several passes over a loader.

    Reads up to `batches` batches per pass (at least 2) of a data set with `examples` examples. If
    `sizes_vary`, also tests whether each example's batch is random and independent (balls in bins). Raises
    InputError if `draw` fails or does not return indices of the data set.
    """
    # With `least` passes, an example that is always in the same batch has the p-value examples /
    # batches^(least - 1), at most 1e-6.
    least = 1 + math.ceil(math.log(1e6 * examples) / math.log(batches))
    # To limit memory and time, read at most 4 million indices and 20,000 batches, unless more are needed.
    affordable = min(4_000_000 // examples, 20_000 // batches, 64)
    count = max(affordable, least, 8)
    passes = [loaders.draw_pass(draw, seed, examples, batches) for seed in range(count)]
    # (passes, examples) the batch index of each example, or `batches` for omitted examples.
    steps = np.full((count, examples), batches, np.int32)
    sizes = np.zeros((count, batches), int)
    for i, drawn in enumerate(passes):
        for k, batch in enumerate(drawn.batches):
            sizes[i, k] = len(batch)
            steps[i, batch] = k

    tests = [_test_single_batch(steps, sizes), _test_places(steps), *_test_pairs(steps)]
    if sizes_vary:
        tests.append(_test_sizes(sizes, examples))
    strongest = min(tests)  # by p-value
    return OrderTest(
        passes=count,
        batches=int((sizes > 0).sum(axis=1).min()),
        is_once=bool(sizes.sum() == np.sum(steps < batches)),  # `steps` counts each example once
        is_whole=all(drawn.is_whole for drawn in passes),
        repeats=bool(np.all(steps == steps[0])),
        is_even=bool(sizes.max() * batches <= examples),
        is_decreasing=bool(np.all(np.diff(sizes, axis=1) <= 0)),
        p_value=min(1.0, len(tests) * strongest.p_value),
        seen=strongest.sentence,
    )


def choose_neighbours(examples: int) -> Integers:
    """Returns the indices of about 1,500 examples in neighbouring pairs, or of all if there are fewer.

    Loaders that draw examples in groups often group neighbours.
    """
    first = np.linspace(0, examples - 2, 750).astype(int)
    return np.unique([first, first + 1])


def examine_pairs(
    together: Array, examples: Integers, rate: float, groups: str, count: int
) -> Observation:
    """Tests whether two examples occur together too often, with a union bound over all pairs.

    Args:
      together: (n, n) how often two examples occur together in a group.
      examples: (n,) the indices of the examples.
      rate: the probability that a group contains both examples, under the null hypothesis.
      groups: the kind of groups, "batches" or "passes".
      count: the number of groups.
    """
    pairs = np.triu(together, 1)
    most = int(pairs.max())
    first, second = examples[list(np.unravel_index(pairs.argmax(), pairs.shape))]
    seen = f"in {most} of {count} {groups}, but {count * rate:.3g} are expected."
    p_value = min(1.0, math.comb(len(examples), 2) * stats.binom.sf(most - 1, count, rate))
    return Observation(p_value, f"Examples {first} and {second} are drawn together {seen}")


def _test_single_batch(steps: Integers, sizes: Integers) -> Observation:
    """Tests whether an example falls into the same batch too often.

    Uses a union bound over examples and batches. `steps` (passes, examples) are batch indices, or the number
    of batches for omitted examples. `sizes` (passes, batches) are batch sizes.
    """
    passes, examples = steps.shape
    batches = sizes.shape[1]
    # One number for each batch and example.
    pairs = steps.astype(np.int64) * examples + np.arange(examples)
    values, counts = np.unique(pairs[steps < batches], return_counts=True)
    most = counts.max()
    example = values[counts.argmax()] % examples
    # The probability for the largest batch is an upper bound for all batches.
    p_value = stats.binom.sf(most - 1, passes, sizes.max() / examples)
    sentence = f"Example {example} is in the same batch in {most} of {passes} passes."
    return Observation(examples * batches * p_value, sentence)


def _test_places(steps: Integers) -> Observation:
    """Runs a chi-square test of whether an example's batch depends on its position in the data."""
    passes, examples = steps.shape
    tenth_of_example = np.arange(examples) * 10 // examples
    table = contingency.crosstab(np.tile(tenth_of_example, passes), steps.ravel())
    result = stats.chi2_contingency(table.count, correction=False)
    # Fixing the margins of each pass scales the statistic's mean by examples / (examples - 1).
    statistic = result.statistic * (examples - 1) / examples
    p_value = stats.chi2.sf(statistic, max(result.dof, 1))  # dof is 0 for a single batch
    return Observation(p_value, "An example's batch depends on its position in the data.")


def _test_sizes(sizes: Integers, examples: int) -> Observation:
    """Tests whether batch sizes (passes, batches) vary as in balls-in-bins sampling."""
    expected = examples / sizes.shape[1]
    law = stats.chi2(sizes.size - len(sizes))  # each pass has a fixed total
    p_value = compute_two_sided_p_value(law, np.sum((sizes - expected) ** 2) / expected)
    return Observation(p_value, "Batch sizes do not vary like those of balls-in-bins batches.")


def _test_pairs(steps: Integers) -> list[Observation]:
    """Tests how often two examples share a batch, for the most frequent pair and for all pairs.

    Uses the pairs among about 1,500 examples; `steps` (passes, examples) are batch indices.
    """
    passes, examples = steps.shape
    pairs = sum(np.sum(sizes * (sizes - 1)) for sizes in map(np.bincount, steps))
    rate = pairs / (passes * examples * (examples - 1))
    observed = choose_neighbours(examples)
    counts = sum(np.equal.outer(of_pass, of_pass) for of_pass in steps[:, observed])
    tests = [examine_pairs(counts, observed, rate, groups="passes", count=passes)]
    together = counts[np.triu_indices(len(observed), 1)]
    num_twice = len(together) * math.comb(passes, 2) * rate**2
    # The approximation in `_test_all_pairs` needs many pairs, and groups of similar size.
    if rate < min(0.6, 1.5 / steps.max()) and num_twice >= 1000:
        tests.append(_test_all_pairs(together, rate, passes))
    return tests


def _test_all_pairs(together: Integers, rate: float, passes: int) -> Observation:
    """Tests whether some pairs of examples are in the same batch more often than others.

    `together` counts the passes in which each pair shares a batch; the probability is `rate`. Let x_i be 1 if
    a pair does so in pass i, otherwise 0. The statistic sums (x_i - rate) (x_j - rate) over all pairs of
    passes i, j and all pairs of examples, scaled to the mean and standard deviation of a chi-square
    distribution.
    """
    pairs_of_passes = math.comb(passes, 2)
    # For each pair of examples, twice the statistic is the squared sum over passes minus each pass's square,
    # rate^2 or (1 - rate)^2.
    squares = np.sum((together - passes * rate) ** 2)
    of_single_passes = np.sum(together * (1 - 2 * rate) + passes * rate**2)
    deviation = 2 * math.sqrt(len(together) * pairs_of_passes) * rate * (1 - rate)
    # The chi-square distribution matches the statistic's skewness, sqrt(8 / freedom). Most of it comes from
    # triples of examples that are together in two passes: sqrt(8 / pairs_of_passes) rate / (1 - rate).
    freedom = pairs_of_passes * (1 / rate - 1) ** 2
    statistic = freedom + math.sqrt(2 * freedom) * (squares - of_single_passes) / deviation
    p_value = stats.chi2.sf(statistic, freedom)
    return Observation(p_value, "Some examples are drawn together more often than others.")
