"""Are batches what the accountant assumes? Their sizes, how often examples come, and who comes together."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.check import findings
from audit.check.accounting import (
    POISSON,
    SHUFFLED,
    compute_shuffled_epsilon,
    count_batches,
    read_noise_multiplier,
)
from audit.check.findings import CheckFinding
from audit.check.noise import compute_fit_p_value, compute_two_sided_p_value
from audit.check.report import (
    CheckOutcome,
    CheckReport,
    describe_error,
    find_rejected_tests,
    make_report,
)
from audit.claims import accounting
from audit.errors import InputError, require
from audit.values import number, shown

FIXED = "fixed"
_TITLES = {POISSON: "Poisson", FIXED: "fixed-size", SHUFFLED: "shuffled"}
_LEAST_PASSES = 8
_LEAST_BATCHES = 320
_MOST_BATCHES = 400
_MOST_EXAMPLES = 1500  # whose batches are looked at
_ODDITIES = {  # by row, what batches have that fail its test
    "batch size": findings.ANOTHER_RATE.name,
    "spread of sizes": "sizes that vary otherwise",
    "empty batches": "no empty batch, or too many",
    "every example": "examples that come unequally often",
    "order": "neighbours come together",
}


class BatchPass(NamedTuple):
    """The batches of one pass over the data set.

    Attributes:
      sizes: (batches,) how many examples each holds.
      members: (batches, some examples) whether it holds each of those that are looked at.
    """

    sizes: NDArray[np.int64]
    members: NDArray[np.bool_]


class BatchSample(NamedTuple):
    """The batches that were drawn, and what they should be.

    Attributes:
      passes: the batches; batches that come one by one are a single pass.
      repeating: how many batches hold an example twice.
      examples: of the data set.
      sampling_rate: with which the accountant lets each batch take each example.
      assumed: "poisson", "fixed" or "shuffled".
    """

    passes: list[BatchPass]
    repeating: int
    examples: int
    sampling_rate: float
    assumed: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The sizes of all batches, (batches,)."""
        return _merge_passes(self.passes).sizes

    @property
    def members(self) -> NDArray[np.bool_]:
        """The members of all batches, (batches, some examples)."""
        return _merge_passes(self.passes).members

    @property
    def expected_size(self) -> float:
        """The size of a batch on average."""
        return self.examples * self.sampling_rate


def check_batches(
    draw: Callable[[int], Any],
    examples: int,
    sampling_rate: float,
    *,
    assumed: str = POISSON,
    noise_multiplier: float | None = None,
    epochs: int = 1,
    delta: float = 1e-5,
) -> CheckReport:
    """Checks whether a loader's batches are those that the accountant assumes.

    Args:
      draw: seed -> the batches of one pass over the loader, each the indices, from 0, of its examples;
        or one batch. Passes are drawn with seeds 0, 1, ...: ignore the seed where yours follow each other.
      examples: how many the data set has.
      sampling_rate: with which the accountant lets each batch take each example.
      assumed: "poisson", "fixed" (as many of all each time, without replacement) or "shuffled" (a permutation
        a pass).
      noise_multiplier, epochs, delta: with these, what shuffled batches leak at least beside what Poisson
        accounting claims.

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: `draw` draws no batches, or a number is out of range.

    >>> import numpy as np
    >>> def poisson(seed):
    ...     rng = np.random.default_rng(seed)
    ...     return [np.flatnonzero(rng.random(500) < 0.05) for _ in range(20)]
    >>> audit.check_batches(poisson, 500, 0.05).passed
    True
    >>> def shuffled(seed):
    ...     return np.random.default_rng(seed).permutation(500).reshape(20, 25)
    >>> audit.check_batches(shuffled, 500, 0.05).verdict
    'FAILED: shuffled batches, not Poisson'
    """
    require(callable(draw), f"`draw={shown(draw)}` is no function: give seed -> batches of indices")
    examples = number("examples", examples, int)
    sampling_rate = number("sampling_rate", sampling_rate, float)
    require(2 <= examples <= 10**9, f"`examples={examples}`: give 2 to 1,000,000,000")
    require(
        0 < sampling_rate < 1, f"`sampling_rate={sampling_rate:g}`: give a number between 0 and 1"
    )
    is_kind = isinstance(assumed, str) and assumed in _TITLES
    require(is_kind, f"`assumed={shown(assumed)}`: give poisson, fixed or shuffled")

    leak_outcomes = {}
    if noise_multiplier is not None:
        leak_outcomes["leak"] = _compare_leaks(noise_multiplier, sampling_rate, epochs, delta)
    passes, repeating = _draw_passes(draw, examples)
    sample = BatchSample(passes, repeating, examples, sampling_rate, assumed)
    return _check_sample(sample, leak_outcomes)


def _check_sample(sample: BatchSample, leak_outcomes: dict[str, CheckOutcome]) -> CheckReport:
    """Runs every check of batches; `leak_outcomes` become the last rows."""
    sizes = sample.sizes
    p_values = _test_poisson(sample)
    kind = _recognise_kind(sample)
    if not kind and not find_rejected_tests(p_values):
        kind = POISSON
    if sample.assumed != POISSON:
        p_values |= _judge_sizes(sample)
    if sample.assumed == SHUFFLED:
        p_values["every example"] = float(kind == SHUFFLED)

    texts = dict.fromkeys(_ODDITIES, "as expected")
    texts["batch size"] = (
        f"{sizes.mean():.4g} examples on average, {sample.expected_size:.4g} expected"
    )
    texts["spread of sizes"] = f"deviation {sizes.std():.3g}"
    outcomes = {"indices": _check_indices(sample, kind)}
    for row, p_value in p_values.items():
        outcomes[row] = CheckOutcome(texts[row], p_values={sample.assumed: p_value})

    needed = ("indices", "batch size", "spread of sizes", "every example")
    name_findings = partial(_name_findings, sample, kind)
    pictures = {"sizes": sizes, "expected": sample.expected_size}
    return make_report("batches", outcomes | leak_outcomes, needed, name_findings, **pictures)


def _check_indices(sample: BatchSample, kind: str) -> CheckOutcome:
    """Checks that no batch holds an example twice, and that passes are not cut into the same batches."""
    passes = sample.passes
    bugs = []
    if sample.repeating:
        bugs.append(findings.EXAMPLE_TWICE.fill(count=sample.repeating))
    if kind == SHUFFLED and len(passes) > 1:
        first, second = passes[:2]
        if _are_same_batches(first.members, second.members):
            bugs.append(findings.SAME_BATCHES)
    batches = len(sample.sizes)
    text = f"{batches} batches in {len(passes)} passes; none holds an example twice"
    return CheckOutcome(text, findings=bugs, figures={"kind": kind, "batches": batches})


def _name_findings(
    sample: BatchSample,
    kind: str,
    certain: list[CheckFinding],
    rejected: dict[str, list[str]],
) -> list[CheckFinding]:
    """Returns the findings that are certain and those that explain rejected tests.

    Args:
      sample: the batches.
      kind: that they are recognised as, or nothing.
      certain: findings without a test.
      rejected: what the rejected tests of each row are of.
    """
    result = list(certain)
    odd_rows = [row for row in _ODDITIES if rejected[row]]
    mean_size = sample.sizes.mean()
    size_error = abs(mean_size / sample.expected_size - 1)
    if "batch size" in odd_rows and size_error > 0.005:
        finding = findings.ANOTHER_RATE.fill(mean=mean_size, expected=sample.expected_size)
        result.append(finding)
    if odd_rows and kind and kind != sample.assumed:
        result.append(_name_other_kind(sample, kind))
    if result and kind:
        return result

    for row in odd_rows:
        finding = findings.ODD_BATCHES.fill(
            check=row,
            name=_ODDITIES[row],
            assumed=_TITLES[sample.assumed],
        )
        result.append(finding)
    return result


def _name_other_kind(sample: BatchSample, kind: str) -> CheckFinding:
    """Returns the finding of batches that are of another kind than assumed."""
    dropped = ""
    if kind == SHUFFLED and _drops_last_batch(sample):
        dropped = "The last, smaller batch of a pass is dropped (drop_last)."
    remedy = ""
    if sample.assumed == POISSON:
        remedy = "sample Poisson batches, a coin for every example, or "
    return findings.ANOTHER_KIND.fill(
        kind=_TITLES[kind],
        assumed=_TITLES[sample.assumed],
        dropped=dropped,
        remedy=remedy,
    )


def _drops_last_batch(sample: BatchSample) -> bool:
    """Returns whether passes of equal batches each leave out some example."""
    if len(sample.passes) < 2 or np.ptp(sample.sizes) > 0:
        return False
    for batch_pass in sample.passes:
        is_seen = np.any(batch_pass.members, axis=0)
        if np.all(is_seen):
            return False
    return True


def _draw_passes(draw: Callable[[int], Any], examples: int) -> tuple[list[BatchPass], int]:
    """Draws passes of batches.

    Args:
      draw: the caller's function.
      examples: of the data set, of which some pairs of neighbours are looked at.

    Returns:
      The passes, and how many batches hold an example twice.
    """
    observed = _choose_observed(examples)
    passes: list[BatchPass] = []
    repeating = 0
    total = 0
    while _needs_more(len(passes), total):
        batches = _draw_batches(draw, len(passes), examples)
        sizes = []
        members = []
        for batch in batches:
            sizes.append(len(batch))
            members.append(np.isin(observed, batch))
            if len(np.unique(batch)) < len(batch):
                repeating += 1
        passes.append(BatchPass(np.array(sizes), np.array(members)))
        total += len(batches)

    come_batch_by_batch = len(passes) == total
    if come_batch_by_batch:
        passes = [_merge_passes(passes)]
    return passes, repeating


def _choose_observed(examples: int) -> NDArray[np.int64]:
    """Returns the indices of the examples whose batches are looked at, at most _MOST_EXAMPLES.

    They are pairs of neighbours (2 k, 2 k + 1), with k spread evenly over the data set, and so also show
    whether neighbours come together.

    Args:
      examples: how many the data set has.
    """
    most_pairs = min(examples, _MOST_EXAMPLES) // 2
    last_pair = examples // 2 - 1
    pairs = np.unique(np.linspace(0, last_pair, most_pairs).astype(int))
    first = 2 * pairs
    second = first + 1
    return np.column_stack([first, second]).ravel()


def _merge_passes(passes: list[BatchPass]) -> BatchPass:
    """Returns the batches of all passes as a single pass."""
    sizes = []
    members = []
    for batch_pass in passes:
        sizes.append(batch_pass.sizes)
        members.append(batch_pass.members)
    return BatchPass(np.concatenate(sizes), np.concatenate(members))


def _needs_more(passes: int, batches: int) -> bool:
    """Returns whether to draw another pass."""
    if passes < 2:
        return True
    is_enough = passes >= _LEAST_PASSES and batches >= _LEAST_BATCHES
    return not is_enough and batches < _MOST_BATCHES


def _draw_batches(
    draw: Callable[[int], Any],
    seed: int,
    examples: int,
) -> list[NDArray[np.int64]]:
    """Returns the batches of a pass.

    Raises:
      InputError: `draw` fails, or gives something else than indices of the data set.
    """
    try:
        batches = _read_batches(draw(seed))
    except InputError:
        raise
    except Exception as error:  # of the caller's code
        raise InputError(f"`draw` failed with seed {seed}: {describe_error(error)}") from error
    require(batches, f"`draw` gave no batch with seed {seed}: return batches of indices")
    indices = np.concatenate(batches)
    is_inside = (indices >= 0) & (indices < examples)
    require(
        np.all(is_inside), f"`draw` gave indices outside the data set: give 0 to {examples - 1}"
    )
    return batches


def _read_batches(given: Any) -> list[NDArray[np.int64]]:
    """Returns the batches that the caller's function gave: several, or a single one.

    Raises:
      InputError: they are no whole numbers.
    """
    require(isinstance(given, Iterable), f"`draw` gave {shown(given)}: return batches of indices")
    batches = []
    for batch in given:
        if hasattr(batch, "detach"):  # a tensor of torch
            batch = batch.detach().cpu()
        batches.append(np.asarray(batch))
        if len(batches) >= _MOST_BATCHES and batches[0].ndim:  # enough of them
            break
    if batches and all(batch.ndim == 0 for batch in batches):  # the indices of a single batch
        batches = [np.array(batches)]
    elif not batches and hasattr(given, "dtype"):  # an empty array is a batch without examples
        batches = [np.zeros(0, int)]

    indices = []
    for batch in batches:
        is_whole = batch.dtype.kind in "iu" or not batch.size
        is_index = batch.ndim == 1 and is_whole
        require(is_index, "`draw` gave no indices: return batches, each whole numbers from 0")
        indices.append(batch.astype(np.int64))
    return indices


def _test_poisson(sample: BatchSample) -> dict[str, float]:
    """Returns p-values of Poisson batches.

    Tests their sizes, how often each example comes, and whether neighbours come together.
    """
    sizes = sample.sizes
    members = sample.members
    examples = sample.examples
    batches = len(sizes)
    actual_rate = float(np.clip(sizes.mean() / examples, 1e-12, 1 - 1e-12))
    total = int(sizes.sum())
    empty = int(np.sum(sizes == 0))
    empty_probability = (1 - sample.sampling_rate) ** examples
    in_pair = (
        members[:, ::2].astype(int) + members[:, 1::2]
    )  # how many of two neighbours a batch holds

    p_values = {}
    total_test = stats.binomtest(total, examples * batches, sample.sampling_rate)
    p_values["batch size"] = float(total_test.pvalue)
    p_values["spread of sizes"] = compute_fit_p_value(sizes, stats.binom(examples, actual_rate))
    empty_test = stats.binomtest(empty, batches, empty_probability)
    p_values["empty batches"] = float(empty_test.pvalue)
    p_values["every example"] = 1.0
    if examples >= 10:
        counts = members.sum(axis=0)
        distribution = stats.binom(batches, actual_rate)
        p_values["every example"] = _compute_spread_p_value(counts, distribution)
    p_values["order"] = _compute_spread_p_value(in_pair.ravel(), stats.binom(2, actual_rate))
    return p_values


def _judge_sizes(sample: BatchSample) -> dict[str, float]:
    """Returns 1 or 0 in place of p-values, by whether the sizes of fixed or shuffled batches are right."""
    sizes = sample.sizes
    usual = round(sample.expected_size)
    last = usual  # the size of the last batch of a pass
    if sample.assumed == SHUFFLED:
        last = sample.examples % max(usual, 1)
    are_exact = np.all((sizes == usual) | (sizes == last))
    are_close = are_exact or abs(sizes.mean() - usual) < 0.01 * usual
    return {
        "batch size": float(are_close),
        "spread of sizes": float(are_exact),
        "empty batches": 1.0,
    }


def _compute_spread_p_value(values: NDArray[np.int64], distribution: Any) -> float:
    """Returns the p-value of the spread of numbers of a distribution around its mean.

    The statistic is chi-square, with degrees of freedom by the distribution's kurtosis.
    """
    mean, variance, excess_kurtosis = distribution.stats("mvk")
    freedom = 2 * (len(values) - 1) / (2 + excess_kurtosis)
    squares = np.sum((values - mean) ** 2)
    ratio = squares / (len(values) - 1) / variance
    return float(compute_two_sided_p_value(stats.chi2(freedom), ratio * freedom))


def _recognise_kind(sample: BatchSample) -> str:
    """Returns the kind of batches that these are if it is seen at once, else nothing.

    They are shuffled where no example comes twice in a pass, or in as many consecutive batches as a pass has,
    and fixed where all sizes are equal.
    """
    passes = sample.passes
    sizes = sample.sizes
    batches_per_pass = count_batches(sample.sampling_rate)
    if len(passes) == 1:
        ends = range(batches_per_pass, len(sizes), batches_per_pass)
        windows = np.split(passes[0].members, ends)
        sizes_can_be_shuffled = np.ptp(sizes[:-1]) == 0
    else:
        windows = [batch_pass.members[:batches_per_pass] for batch_pass in passes]
        sizes_can_be_shuffled = True

    if sizes_can_be_shuffled and len(windows) > 1:
        most_often = 0
        for window in windows[:-1]:  # the last may be cut short
            counts = window.sum(axis=0)
            most_often = max(most_often, counts.max())
        if most_often <= 1:
            return SHUFFLED
    if np.ptp(sizes) == 0:
        return FIXED
    return ""


def _are_same_batches(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> bool:
    """Returns whether all batches of a pass come again in another, by their (batches, examples) members."""
    sizes = first.sum(axis=1)
    overlaps = first.astype(int) @ second.T  # (batches, batches)
    comes_again = np.max(overlaps, axis=1) == sizes
    return bool(sizes.max() > 1 and np.all(comes_again))


def _compare_leaks(
    noise_multiplier: Any,
    sampling_rate: float,
    epochs: Any,
    delta: Any,
) -> CheckOutcome:
    """Returns what Poisson accounting claims, and what shuffled batches leak at least."""
    noise_multiplier = read_noise_multiplier(noise_multiplier)
    epochs = number("epochs", epochs, int)
    delta = number("delta", delta, float)
    require(1 <= epochs <= 10_000, f"`epochs={epochs}`: give 1 to 10,000")
    batches = count_batches(sampling_rate)
    composition = accounting.Composition(noise_multiplier, batches * epochs, sampling_rate)
    claimed = accounting.participant_upper_bound(composition, delta)
    least = compute_shuffled_epsilon(noise_multiplier, batches, epochs, delta)
    text = f"Poisson accounting: epsilon {claimed:.3f}; shuffled batches: at least {least:.3f}"
    figures = {
        "poisson epsilon": claimed,
        "shuffled epsilon at least": least,
    }
    return CheckOutcome(text, figures=figures)
