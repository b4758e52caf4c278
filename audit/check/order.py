"""Tests whether the order of examples is uniform and redrawn in every pass.

Under the null hypothesis, every pass is an independent, uniform permutation of the data, cut into batches of
the observed sizes. We ignore the order within batches, and treat omitted examples as an additional batch.
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
      repeats: True if all passes are identical.
      p_value: the combined p-value of all tests of a uniform order (Bonferroni).
      seen: the observation of the test with the smallest p-value.
    """

    passes: int
    batches: int
    repeats: bool
    p_value: float
    seen: str


class Observation(NamedTuple):
    """The p-value of a test (above 1 if a union bound is loose), and the observation as a sentence."""

    p_value: float
    sentence: str


def examine_order(draw: Draw, examples: int, batches: int, sizes_vary: bool) -> OrderTest:
    """Tests whether examples come in a uniform order, redrawn in every pass.

    Reads at most `batches` batches per pass, at least 2, of a data set with `examples` examples. If
    `sizes_vary`, also tests whether each example is in an independent, random batch (balls in bins). Raises
    InputError if `draw` fails or does not return indices of the data set.
    """
    # This limits memory and time.
    count = max(min(4_000_000 // examples, 20_000 // batches, 64), 8)
    passes = [loaders.draw_pass(draw, seed, examples, batches).batches for seed in range(count)]
    # (passes, examples) the batch index of each example; for omitted examples, it is `batches`.
    steps = np.full((count, examples), batches, np.int32)
    for steps_of_pass, drawn in zip(steps, passes, strict=True):
        for k, batch in enumerate(drawn):
            steps_of_pass[batch] = k

    tests = [_test_single_batch(steps, batches), _test_places(steps), *_test_pairs(steps)]
    if sizes_vary:
        tests.append(_test_sizes(steps, batches))
    return OrderTest(
        passes=count,
        batches=min(map(len, passes)),
        repeats=bool(np.all(steps == steps[0])),
        p_value=min(1.0, len(tests) * min(tests).p_value),
        seen=min(tests).sentence,
    )


def _test_sizes(steps: Integers, batches: int) -> Observation:
    """Tests whether sizes vary as if each of `steps` (passes, examples) were an independent, random batch."""
    sizes = np.array([np.bincount(batch, minlength=batches)[:batches] for batch in steps])
    expected = sizes.mean()
    law = stats.chi2(sizes.size - len(sizes))  # each pass has a fixed total
    p_value = compute_two_sided_p_value(law, np.sum((sizes - expected) ** 2) / expected)
    return Observation(p_value, "Batch sizes vary more or less than for balls-in-bins batches.")


def choose_neighbours(examples: int) -> Integers:
    """Returns the indices of about 1,500 examples in pairs of neighbours, or of all if there are fewer.

    Loaders that draw examples in groups often group neighbours.
    """
    first = np.linspace(0, examples - 2, 750).astype(int)
    return np.unique([first, first + 1])


def examine_pairs(together: Array, examples: Integers, rate: float, count: int) -> Observation:
    """Tests the two examples that are drawn together most often, with a union bound over all pairs.

    Args:
      together: (n, n) how often two examples are in the same group, a batch or a batch of a pass.
      examples: (n,) the indices of the examples.
      rate: the probability that they are in a group together, under the null hypothesis.
      count: the number of groups.
    """
    pairs = np.triu(together, 1)
    most = int(pairs.max())
    first, second = examples[list(np.unravel_index(pairs.argmax(), pairs.shape))]
    seen = f"{most} times, but {count * rate:.3g} are expected."
    p_value = min(1.0, math.comb(len(examples), 2) * stats.binom.sf(most - 1, count, rate))
    return Observation(p_value, f"Examples {first} and {second} are drawn together {seen}")


def _test_single_batch(steps: Integers, batches: int) -> Observation:
    """Tests the example that is most often in the same batch, with a union bound over examples and batches.

    `steps` (passes, examples) has the batch index of each example, or `batches` if a pass omits the example.
    """
    passes, examples = steps.shape
    # One number per pair of a batch and an example.
    pairs = steps.astype(np.int64) * examples + np.arange(examples)
    values, counts = np.unique(pairs[steps < batches], return_counts=True)
    most = counts.max()
    example = values[counts.argmax()] % examples
    # The probability for the largest batch is an upper bound for the others.
    largest = np.bincount(steps[steps < batches]).max() / steps.size
    p_value = stats.binom.sf(most - 1, passes, largest)
    sentence = f"Example {example} is in the same batch in {most} of {passes} passes."
    return Observation(examples * batches * p_value, sentence)


def _test_places(steps: Integers) -> Observation:
    """Tests whether an example's batch depends on its position in the data, with a chi-square test."""
    passes, examples = steps.shape
    tenth_of_example = np.arange(examples) * 10 // examples
    table = contingency.crosstab(np.tile(tenth_of_example, passes), steps.ravel())
    result = stats.chi2_contingency(table.count, correction=False)
    # Each pass has fixed margins, which multiplies the statistic's mean by examples / (examples - 1).
    statistic = result.statistic * (examples - 1) / examples
    p_value = stats.chi2.sf(statistic, max(result.dof, 1))  # dof is 0 for a single batch
    return Observation(p_value, "An example's batch depends on its position in the data.")


def _test_pairs(steps: Integers) -> list[Observation]:
    """Tests how often examples are in the same batch, for the most frequent pair and for all pairs.

    We use about 1,500 examples. `steps` (passes, examples) has the batch index of each example.
    """
    passes, examples = steps.shape
    observed = choose_neighbours(examples)
    # How often each pair is in the same batch.
    counts = sum(np.equal.outer(of_pass, of_pass) for of_pass in steps[:, observed])
    together = counts[np.triu_indices(len(observed), 1)]
    rate = together.mean() / passes
    closest = examine_pairs(counts, observed, rate, passes)

    num_together_twice = len(together) * math.comb(passes, 2) * rate**2
    # The approximation needs about 1,000 of them, and batches smaller than a pass.
    if rate >= 0.6 or num_together_twice < 1000:
        return [closest]
    return [closest, _test_variance(together, passes, rate)]


def _test_variance(together: Integers, passes: int, rate: float) -> Observation:
    """Tests the variance of how often two examples are together in `passes` passes.

    Under the null hypothesis, the numbers `together` (pairs,) are nearly binomial with probability `rate`.
    """
    pairs_of_passes = math.comb(passes, 2)
    # Let Y be 1 for a pair that is together in a pass, with variance V = rate (1 - rate). The excess is 2 /
    # (passes V len(together)) times the sum of (Y - rate) (Y' - rate) over pairs of passes and pairs of
    # examples: uncorrelated products of variance V^2.
    excess = together.var() / (passes * rate * (1 - rate)) - 1
    deviation = 2 * math.sqrt(pairs_of_passes / len(together)) / passes
    # We use the chi-square distribution with the same skewness, sqrt(8 / freedom), which is mainly due to
    # triples of examples that are together in two passes.
    freedom = pairs_of_passes * (1 / rate - 1) ** 2
    p_value = stats.chi2.sf(freedom + math.sqrt(2 * freedom) * excess / deviation, freedom)
    sentence = "Some examples are drawn together more often than others."
    return Observation(p_value, sentence)
