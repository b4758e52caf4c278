"""Are batches what the accountant assumes? Their sizes, how often examples come, and which come together."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.check import findings, loaders
from audit.check.accounting import (
    FIXED,
    POISSON,
    SHUFFLED,
    count_batches,
    count_most_batches,
    read_noise_multiplier,
    require_least_rate,
)
from audit.check.findings import CheckFinding
from audit.check.loaders import Draw
from audit.check.noise import compute_fit_p_value, compute_two_sided_p_value
from audit.check.order import OrderTest, examine_order
from audit.check.report import (
    LEVEL,
    CheckOutcome,
    CheckReport,
    find_rejected_tests,
    make_report,
)
from audit.claims import accounting
from audit.claims.brackets import compute_shuffled_epsilon
from audit.errors import number, require, shown
from audit.written import at_least, at_most, counted

BALLS_IN_BINS = "balls_in_bins"
_TITLES = {
    POISSON: "Poisson",
    FIXED: "fixed-size",
    SHUFFLED: "shuffled",
    BALLS_IN_BINS: "balls-in-bins",
}
_ONCE_A_PASS = (SHUFFLED, BALLS_IN_BINS)
_LEAST_PASSES = 8
_LEAST_BATCHES = 320
_LEAST_DRAWN = 40_000  # examples over all batches, over 1 - rate: then a rate 2.5% off is seen
_MOST_BATCHES = 2000
_MOST_EXAMPLES = 1500  # at most so many are observed: the batches that hold them are recorded
_CERTAIN = 1e-9  # batches as unlikely under Poisson sampling as this, or more, are of another kind
_FEW_EXAMPLES = 200  # for at most so many the null distributions are simulated
_SIMULATIONS = (1000, 40_000)  # the second number is used where the first leaves a small p-value
_SUSPECT = 0.02  # a p-value up to which the second number of simulations is used
_AT_ONCE = 20_000_000  # simulated bits in memory at once
_SEEN = 0.9  # the power at which the report states the smallest visible error of the rate
_TESTS = 7  # statistical tests in a report
_ODDITIES = {  # by row, the name of what batches do that fail the row's test
    "batch size": findings.ANOTHER_RATE.name,
    "spread of sizes": "sizes that vary otherwise",
    "largest batch": findings.CUT_BATCHES.name,
    "empty batches": "no empty batch, or too many",
    "every example": "examples that come unequally often",
    "order": "neighbours come together",
    "together": findings.TOGETHER.name,
}


class BatchPass(NamedTuple):
    """The batches of a single pass over the data set.

    Attributes:
      sizes: (batches,) how many examples each batch holds.
      members: (batches, observed) whether a batch holds each of the observed examples, which are those of
        `_choose_observed`: pairs of neighbours in the data's order.
      repeated: how many batches hold exactly the examples of another batch of the pass.
      is_whole: whether these are all batches of the pass.
    """

    sizes: NDArray[np.int64]
    members: NDArray[np.bool_]
    repeated: int = 0
    is_whole: bool = True


class BatchSample(NamedTuple):
    """The batches that were drawn, and what the accountant assumes of them.

    Attributes:
      passes: the batches by pass; those of a loader that yields a single batch at a time are a single pass.
      repeating: how many batches hold an example twice.
      examples: the number of examples of the data set.
      sampling_rate: the probability, assumed by the accountant, with which a batch takes an example.
      assumed: the kind of batches that the accountant assumes: "poisson", "fixed", "shuffled" or
        "balls_in_bins".
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
        """Whether each of all batches holds each observed example, (batches, observed)."""
        return _merge_passes(self.passes).members

    @property
    def expected_size(self) -> float:
        """The mean size of a batch at the assumed sampling rate."""
        return self.examples * self.sampling_rate

    @property
    def actual_rate(self) -> float:
        """The measured sampling rate: the mean size of the batches over the number of examples.

        It is kept between 1e-12 and 1 - 1e-12, so that the logs of it and of 1 less it are finite.
        """
        return float(np.clip(self.sizes.mean() / self.examples, 1e-12, 1 - 1e-12))


def check_batches(
    draw: Any,
    examples: int | None = None,
    sampling_rate: float | None = None,
    *,
    assumed: str = POISSON,
    noise_multiplier: float | None = None,
    epochs: int = 1,
    delta: float = 1e-5,
) -> CheckReport:
    """Checks whether a loader's batches are those that the accountant assumes.

    Args:
      draw: a function from a seed to the batches of one pass over the loader, or to a single batch; a batch
        is the indices, from 0, of its examples. Passes are drawn with seeds 0, 1, ...; a loader that goes on
        where it stopped may ignore them. Or a loader of torch or Opacus, whose batch sampler gives the
        indices; a batch sampler; or whatever yields batches of indices when iterated. `audit.Indices` makes
        loaders yield indices.
      examples: the number of examples of the data set; by default that of the loader's own data set.
      sampling_rate: the probability, assumed by the accountant, with which a batch takes an example.
      assumed: the kind of batches that the accountant assumes: "poisson", "fixed" (always the same number of
        examples, without replacement), "shuffled" (a permutation of the data in each pass, cut into batches),
        or "balls_in_bins" (every example in a single batch of each pass, drawn independently).
      noise_multiplier, epochs, delta: sigma, the epochs of training and delta. Where sigma is given, the
        report compares what Poisson accounting claims with what shuffled batches leak at least.

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
    draw_pass = loaders.make_draw(draw)
    examples = loaders.count_examples(draw, examples)
    rate = read_sampling_rate(sampling_rate)
    require_kind(assumed)
    leak = None  # no comparison of Poisson and shuffled batches
    if noise_multiplier is not None:
        leak = _compute_leaks(noise_multiplier, rate, epochs, delta)

    passes, repeating = _draw_passes(draw_pass, examples)
    sample = BatchSample(passes, repeating, examples, rate, assumed)
    kind = _recognise_kind(sample)
    order = None
    if kind in _ONCE_A_PASS:
        batches = _count_batches_of_pass(sample)
        order = examine_order(draw_pass, examples, batches, kind == BALLS_IN_BINS)
        if not order.is_once:  # an example that was not observed before comes twice in a pass
            kind = ""
    report = _check_sample(sample, kind, order, leak)
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return report.add_provenance(draw, stated)


def read_sampling_rate(sampling_rate: Any) -> float:
    """Returns a caller's sampling rate; raises InputError where it is missing or out of range."""
    message = "`sampling_rate` is missing: give the rate that the accountant is told"
    require(sampling_rate is not None, message)
    rate = number("sampling_rate", sampling_rate, float)
    require(0 < rate < 1, f"`sampling_rate={rate:g}`: give a number between 0 and 1")
    require_least_rate(rate)
    return rate


def require_kind(assumed: Any) -> None:
    """Raises InputError unless `assumed` names a kind of batches."""
    is_kind = isinstance(assumed, str) and assumed in _TITLES
    require(is_kind, f"`assumed={shown(assumed)}`: give {', '.join(_TITLES)}")


def read_epochs(epochs: Any) -> int:
    """Returns a caller's number of epochs; raises InputError unless it is a whole number, 1 to 10,000."""
    count = number("epochs", epochs, int)
    # The bound for shuffled batches composes epochs: a million would take minutes.
    require(1 <= count <= 10_000, f"`epochs={count}`: give 1 to 10,000")
    return count


class _Leaks(NamedTuple):
    """Epsilon two ways: as Poisson accounting claims it, and a lower bound for shuffled batches."""

    claimed: float
    shuffled: float


def _count_batches_of_pass(sample: BatchSample) -> int:
    """Returns the number of batches of a pass: as drawn, or else the expected one; at least 2."""
    are_whole = all(drawn.is_whole for drawn in sample.passes)
    if len(sample.passes) > 1 and are_whole:
        return max(2, *(len(drawn.sizes) for drawn in sample.passes))
    return max(2, count_batches(sample.sampling_rate))


def _check_sample(
    sample: BatchSample, kind: str, order: OrderTest | None, leak: _Leaks | None
) -> CheckReport:
    """Runs every check of batches; returns the report.

    Args:
      sample: the batches.
      kind: the kind of batches that they are recognised as; empty if none.
      order: the tests of a uniform order, of batches that take every example once a pass; else None.
      leak: epsilon for Poisson and for shuffled batches, for the report's last row; None for no such row.
    """
    sizes = sample.sizes
    p_values = _test_poisson(sample)
    # Batches count as Poisson if they are clearly of no other kind, and no test rejects Poisson sampling.
    if not kind and not find_rejected_tests(p_values):
        kind = POISSON
    # A loader that yields a batch at a time may show no whole pass. Then nothing tells whether examples come
    # once a pass, and batches of one size may be shuffled ones.
    takes_once = sample.assumed in _ONCE_A_PASS
    shows_no_pass = kind not in _ONCE_A_PASS and not _split_into_passes(sample)
    is_untold = takes_once and shows_no_pass
    if is_untold:
        kind = ""
    # Where other batches than Poisson are assumed, 1 takes the place of a row's p-value if the batches are as
    # assumed, and 0 if they are not. Only for fixed-size batches, "every example" is tested as for Poisson.
    if sample.assumed != POISSON:
        p_values |= _judge_sizes(sample)
    if takes_once:
        p_values["every example"] = float(is_untold or kind == sample.assumed)
    if order is not None:
        p_values |= order.p_values

    # By row, what the report shows even if the row passes; a row that shows nothing says "as expected".
    measured = dict.fromkeys(_ODDITIES, "")
    measured["batch size"] = _describe_rate(sample)
    measured["spread of sizes"] = f"deviation {sizes.std():.3g}"
    measured["largest batch"] = f"{sizes.min()} to {counted(sizes.max(), 'example')}"
    measured["together"] = f"of all pairs of {counted(sample.members.shape[1], 'example')}"
    if order is not None:
        measured["order"] = f"tested over {order.passes} passes"
        measured["together"] = measured["order"]
    outcomes = {"indices": _check_indices(sample, kind)}
    for row, p_value in p_values.items():
        text = "" if measured[row] else "as expected"
        # `p_values` holds a p-value by the name of what is tested: here that batches are as assumed.
        outcomes[row] = CheckOutcome(
            text, p_values={sample.assumed: p_value}, measured=measured[row]
        )
    if sample.assumed != POISSON and _is_rounding_open(sample):
        text = (
            f"{measured['batch size'].split(';')[0]}: no whole size has this rate; state the size "
            f"over {sample.examples:,}"
        )
        outcomes["batch size"] = CheckOutcome(text, tried=False)
    if is_untold:
        text = "batches that come one by one show no whole pass: draw all batches of a pass at once"
        outcomes["every example"] = CheckOutcome(text, tried=False)
    if leak is not None:
        outcomes["leak"] = _check_leak(leak, kind, sample.assumed)

    if order is not None:
        figures = {"order": order.to_dict()}
        outcomes["order"] = outcomes["order"]._replace(figures=figures)

    # The rows that must be tried for the report to pass.
    needed = ("indices", "batch size", "spread of sizes", "every example")
    name_findings = partial(_name_findings, sample, kind, order)
    pictures = {"sizes": sizes, "expected": sample.expected_size}
    return make_report("batches", outcomes, needed, name_findings, **pictures)


def _describe_rate(sample: BatchSample) -> str:
    """Returns in words the batches' mean size, and the smallest error of the rate that the test would show.

    The number of examples drawn over all batches is binomial: its relative standard deviation is
    sqrt((1 - rate) / mean). A two-sided normal test shows a difference with probability _SEEN if it is
    z(level / 2) + z(1 - _SEEN) standard deviations, where z(q) is the upper q-quantile.
    """
    drawn = sample.examples * len(sample.sizes) * sample.sampling_rate  # expected, over all batches
    level = LEVEL / _TESTS  # of a single test of the report, by Bonferroni
    deviations = scipy.stats.norm.isf(level / 2) + scipy.stats.norm.ppf(_SEEN)
    visible = 100 * deviations * math.sqrt((1 - sample.sampling_rate) / drawn)
    rate = f"{_describe_mean(sample)}, {sample.expected_size:.4g} expected"
    return f"{rate}; a rate {visible:.2g}% off would be seen with probability {_SEEN}"


def _describe_mean(sample: BatchSample) -> str:
    """Returns the batches' mean size in words: "31.96 examples on average"."""
    mean = f"{sample.sizes.mean():.4g}"
    noun = "example" if mean == "1" else "examples"
    return f"{mean} {noun} on average"


def _check_indices(sample: BatchSample, kind: str) -> CheckOutcome:
    """Checks that no batch holds an example twice, and that batches do not come again.

    If the kind takes every example once a pass, the second pass must not have the first pass's batches. No
    pass may repeat a batch where Poisson batches would almost never repeat.

    Args:
      sample: the batches.
      kind: the kind of batches that they are recognised as; empty if none.
    """
    passes = sample.passes
    bugs = []
    if sample.repeating:
        bugs.append(
            findings.EXAMPLE_TWICE.fill(
                count=counted(sample.repeating, "batch holds", "batches hold")
            )
        )
    repeated = sum(batch_pass.repeated for batch_pass in passes)
    if kind in _ONCE_A_PASS and _repeats_its_batches(sample):
        bugs.append(findings.SAME_BATCHES)
    elif repeated and _log_probability_of_repeats(sample) < math.log(_CERTAIN):
        bugs.append(
            findings.REPEATED_BATCH.fill(count=counted(repeated, "batch holds", "batches hold"))
        )
    batches = len(sample.sizes)
    drawn = f"{counted(batches, 'batch', 'batches')} in {counted(len(passes), 'pass', 'passes')}"
    text = f"{drawn}; none holds an example twice"
    if not all(batch_pass.is_whole for batch_pass in passes):
        text = f"{text}; a pass is read up to {_MOST_BATCHES:,} batches"
    return CheckOutcome(text, findings=bugs, figures={"kind": kind, "batches": batches})


def _log_probability_of_repeats(sample: BatchSample) -> float:
    """Returns the log of an upper bound on the probability that any two of the batches are the same.

    It is a union bound over all pairs of batches, if they were Poisson batches of the measured rate.
    """
    rate = sample.actual_rate
    # Two batches agree on an example if both take it or neither does.
    log_same_choice = math.log(rate**2 + (1 - rate) ** 2)
    pairs = len(sample.sizes) ** 2 / 2
    return sample.examples * log_same_choice + math.log(pairs)


def _name_findings(
    sample: BatchSample,
    kind: str,
    order: OrderTest | None,
    certain: list[CheckFinding],
    rejected: dict[str, list[str]],
) -> list[CheckFinding]:
    """Returns the findings that are certain and those that explain rejected tests.

    Args:
      sample: the batches.
      kind: the kind of batches that they are recognised as; empty if none.
      order: the tests of a uniform order; None where batches have none.
      certain: the findings that need no test.
      rejected: by row of the report, the names of its rejected tests.
    """
    result = list(certain)
    odd_rows = [row for row in _ODDITIES if rejected.get(row)]  # those that no finding explains yet
    if "batch size" in odd_rows:
        result.append(_name_other_rate(sample))
        odd_rows.remove("batch size")

    # An order that is not uniform. Batches that never change are named by another finding.
    if order is not None:
        for row in order.p_values:
            if row in odd_rows:
                odd_rows.remove(row)
                if not _repeats_its_batches(sample):
                    result.append(findings.NOT_UNIFORM.fill(check=row, seen=order.seen[row]))

    # Batches of another kind are a bug even where no row sees it, and explain every other row. Kinds other
    # than Poisson are recognised only with certainty; batches count as Poisson if no row contradicts that.
    is_other_kind = kind not in ("", sample.assumed)
    if is_other_kind and (kind != POISSON or any(rejected.values())):
        result.append(_name_other_kind(sample, kind))
        return result

    if "together" in odd_rows:
        result.append(_name_pair(sample))
        odd_rows.remove("together")
    if "largest batch" in odd_rows:
        result.append(_name_cut(sample))
        odd_rows.remove("largest batch")
        # Sizes that are cut also spread less.
        odd_rows = [row for row in odd_rows if row != "spread of sizes"]
    # A recognised kind is the assumed kind here: with another, a rejected row has led to the return above.
    # The findings so far then count as the explanation of the rows that are left. For example, sizes that are
    # all wrong fail the rows of their mean and of their spread.
    if result and kind:
        return result

    # No known bug explains the rows that are left: each gets a finding that names the row.
    for row in odd_rows:
        finding = findings.ODD_BATCHES.fill(
            check=row,
            name=_ODDITIES[row],
            assumed=_TITLES[sample.assumed],
        )
        result.append(finding)
    return result


def _name_other_rate(sample: BatchSample) -> CheckFinding:
    """Returns the finding of batches that are drawn at another rate, with the rate that fits."""
    rate = sample.actual_rate
    return findings.ANOTHER_RATE.fill(
        mean=_describe_mean(sample),
        expected=sample.expected_size,
        rate=rate,
        stated=sample.sampling_rate,
        why=_explain_rate(sample, rate),
    )


def _explain_rate(sample: BatchSample, rate: float) -> str:
    """Returns a sentence on the mistake that gives a measured rate; empty where nothing simple fits.

    Tries one over the loader's length, and the stated rate divided or multiplied by a whole number up to 64.
    """
    # A mistake's rate fits up to four standard deviations of the measured rate and a thousandth of it.
    deviation = math.sqrt(rate * (1 - rate) / (sample.examples * len(sample.sizes)))
    close = 4 * deviation + 1e-3 * rate
    # A pass that was read to its end shows the loader's length. A single pass does not: it is merged from
    # calls that gave a batch each.
    batches = len(sample.passes[0].sizes)
    if len(sample.passes) > 1 and sample.passes[0].is_whole and abs(1 / batches - rate) < close:
        return f"It is 1 / {batches} = {1 / batches:.4g}, one over the loader's length."
    for parts in range(2, 65):
        if abs(sample.sampling_rate / parts - rate) < close:
            return f"It is the stated rate over {parts}, of one of {parts} workers or parts of a batch."
        if abs(sample.sampling_rate * parts - rate) < close:
            return f"It is {parts} times the stated rate."
    return ""


def _name_pair(sample: BatchSample) -> CheckFinding:
    """Returns the finding of the two observed examples that come together most often."""
    together, expected = _count_together(sample)
    first, second = np.unravel_index(int(together.argmax()), together.shape)
    observed = _choose_observed(sample.examples)
    return findings.TOGETHER.fill(
        first=int(observed[first]),
        second=int(observed[second]),
        count=counted(int(together.max()), "batch", "batches"),
        expected=expected,
    )


def _name_cut(sample: BatchSample) -> CheckFinding:
    """Returns the finding of batch sizes that are cut at a maximum or a minimum."""
    sizes = sample.sizes
    distribution = scipy.stats.binom(sample.examples, sample.actual_rate)
    # The test of both edges was rejected: if not for the largest size, then for the smallest.
    largest_p_value, _ = _compute_edge_p_values(sizes, distribution)
    is_cut_above = largest_p_value < LEVEL
    edge = sizes.max() if is_cut_above else sizes.min()
    return findings.CUT_BATCHES.fill(
        side="more" if is_cut_above else "fewer",
        edge=int(edge),
        count=counted(int(np.sum(sizes == edge)), "holds", "hold"),
    )


def _name_other_kind(sample: BatchSample, kind: str) -> CheckFinding:
    """Returns the finding of batches that are of another kind than assumed.

    Batches that are the same in every pass are called so, whatever their kind: nobody shuffled them.
    """
    dropped = ""
    if kind == SHUFFLED and _drops_last_batch(sample):
        dropped = "The last, smaller batch of a pass is dropped (drop_last)."
    remedy = ""
    if sample.assumed == POISSON:
        remedy = "sample Poisson batches, a coin for every example, or "
    assumed = _TITLES[sample.assumed]
    if kind in _ONCE_A_PASS and _repeats_its_batches(sample):
        return findings.UNCHANGING.fill(assumed=assumed, dropped=dropped, remedy=remedy)
    return findings.ANOTHER_KIND.fill(
        kind=_TITLES[kind],
        assumed=assumed,
        dropped=dropped,
        remedy=remedy,
    )


def _drops_last_batch(sample: BatchSample) -> bool:
    """Returns whether every pass ends for want of examples for one more batch.

    It does if all its batches were drawn (`is_whole`), have the same size, and leave out some examples, but
    fewer than a batch. False for fewer than two passes: batches that came one by one are joined to a single
    pass, whose end is not known to be the end of a pass over the data.
    """
    if len(sample.passes) < 2:
        return False
    for batch_pass in sample.passes:
        size = int(batch_pass.sizes[0])
        left_out = sample.examples - int(batch_pass.sizes.sum())
        is_even = np.ptp(batch_pass.sizes) == 0
        if not (batch_pass.is_whole and is_even and 0 < left_out < size):
            return False
    return True


def _draw_passes(draw: Draw, examples: int) -> tuple[list[BatchPass], int]:
    """Draws passes of batches until there are enough for the tests.

    Args:
      draw: a function from a seed to the batches of a pass.
      examples: the number of examples of the data set.

    Returns:
      The passes, merged into a single pass where each has a single batch; and how many batches hold an
      example twice.
    """
    observed = _choose_observed(examples)
    passes: list[BatchPass] = []
    all_contents: list[bytes] = []  # of each batch, its examples
    repeating = 0
    total = 0  # batches
    drawn = 0  # examples in all batches, an example in two of them twice
    absent = 0  # examples out of all batches, an example out of two of them twice
    while _needs_more(len(passes), total, drawn, absent):
        batches, is_whole = loaders.draw_pass(draw, len(passes), examples, _MOST_BATCHES)
        sizes = []
        members = []
        contents = []
        for batch in batches:
            unique = np.unique(batch)
            sizes.append(len(batch))
            members.append(np.isin(observed, unique))
            contents.append(unique.tobytes())
            if len(unique) < len(batch):
                repeating += 1
        passes.append(
            BatchPass(np.array(sizes), np.array(members), _count_repeated(contents), is_whole)
        )
        all_contents += contents
        total += len(batches)
        drawn += sum(sizes)
        absent += examples * len(batches) - sum(sizes)

    come_batch_by_batch = len(passes) == total
    if come_batch_by_batch:
        # A batch repeats another that came from another call.
        merged = _merge_passes(passes)
        passes = [merged._replace(repeated=_count_repeated(all_contents))]
    return passes, repeating


def _count_repeated(contents: list[bytes]) -> int:
    """Returns how many batches, each given by its examples, repeat one that comes before them."""
    return len(contents) - len(set(contents))


def _choose_observed(examples: int) -> NDArray[np.int64]:
    """Returns the indices of the examples to observe, at most _MOST_EXAMPLES.

    They are pairs of neighbours (2 k, 2 k + 1), with k spread evenly over the data set, and so also show
    whether neighbours come together.

    Args:
      examples: the number of examples of the data set.
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
    repeated = 0
    for batch_pass in passes:
        sizes.append(batch_pass.sizes)
        members.append(batch_pass.members)
        repeated += batch_pass.repeated
    return BatchPass(np.concatenate(sizes), np.concatenate(members), repeated)


def _needs_more(passes: int, batches: int, drawn: int, absent: int) -> bool:
    """Returns whether to draw another pass, since the tests need more passes, batches or examples.

    Two passes are always drawn, so that they can be compared. No more are drawn after _MOST_BATCHES batches.

    Args:
      passes, batches: how many were drawn so far.
      drawn: the sizes of all batches, summed.
      absent: the numbers of examples that are not in a batch, summed over all batches.
    """
    if passes < 2:
        return True
    # drawn / (1 - rate) >= _LEAST_DRAWN decides how precisely the rate is measured, and 1 - rate is
    # absent / (drawn + absent).
    is_precise = drawn * (drawn + absent) >= _LEAST_DRAWN * absent
    is_enough = passes >= _LEAST_PASSES and batches >= _LEAST_BATCHES and is_precise
    return not is_enough and batches < _MOST_BATCHES


def _test_poisson(sample: BatchSample) -> dict[str, float]:
    """Returns, by row of the report, the p-value of the null hypothesis of Poisson batches.

    The rows test the sizes, how often each example comes, and whether examples come together. Where the data
    set has few examples, the null distributions of the variances are simulated, since their approximations
    are poor there.
    """
    sizes = sample.sizes
    members = sample.members
    examples = sample.examples
    batches = len(sizes)
    # The total and the empty batches are compared with the stated rate. All else is compared with the
    # measured rate, so that a wrong rate alone does not fail these tests.
    rate = sample.actual_rate
    size_law = scipy.stats.binom(examples, rate)
    total = int(sizes.sum())
    empty = int(np.sum(sizes == 0))
    empty_probability = (1 - sample.sampling_rate) ** examples

    p_values = {}  # in the order of the report's rows
    total_test = scipy.stats.binomtest(total, examples * batches, sample.sampling_rate)
    p_values["batch size"] = float(total_test.pvalue)
    # Simulations need all examples of a batch to be observed.
    if examples <= _FEW_EXAMPLES and examples == members.shape[1]:
        spread_p_values = _simulate_p_values(members, rate)
    else:
        spread_p_values = _approximate_p_values(sample, size_law)
    p_values["spread of sizes"] = spread_p_values["spread of sizes"]
    # Times 2, by Bonferroni, for the tests of the largest and of the smallest size.
    p_values["largest batch"] = min(2 * min(_compute_edge_p_values(sizes, size_law)), 1.0)
    empty_test = scipy.stats.binomtest(empty, batches, empty_probability)
    p_values["empty batches"] = float(empty_test.pvalue)
    p_values["every example"] = spread_p_values["every example"]
    p_values["order"] = spread_p_values["order"]
    p_values["together"] = _compute_together_p_value(sample)
    return p_values


def _approximate_p_values(sample: BatchSample, size_law: Any) -> dict[str, float]:
    """Returns the p-values of three rows of the report under Poisson sampling, by row.

    "spread of sizes" compares the batches' sizes with their whole distribution. The other two rows test a
    variance alone. "every example" tests that of how many batches hold each example, which is larger where
    some examples come more often. "order" tests that of how many examples of a pair of neighbours a batch
    holds: binomial(2, rate) for Poisson batches, while blocks of neighbours make 0 and 2 more frequent.

    Args:
      sample: the batches.
      size_law: the binomial distribution of a Poisson batch's size, of scipy.stats.
    """
    members = sample.members
    rate = sample.actual_rate
    counts = members.sum(axis=0)
    every_example = _compute_spread_p_value(counts, scipy.stats.binom(len(members), rate))
    order = _compute_spread_p_value(_count_neighbours(members).ravel(), scipy.stats.binom(2, rate))
    return {
        "spread of sizes": compute_fit_p_value(sample.sizes, size_law),
        "every example": every_example,
        "order": order,
    }


def _count_neighbours(members: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns how many examples of each pair of neighbours a batch holds: 0, 1 or 2, (..., batches, pairs).

    Args:
      members: (..., batches, observed) whether a batch holds an example; neighbours are next to each other.
    """
    return np.asarray(members[..., ::2].astype(np.int64) + members[..., 1::2])


def _simulate_p_values(members: NDArray[np.bool_], rate: float) -> dict[str, float]:
    """Returns the p-values of `_approximate_p_values`, two-sided, by simulations of Poisson batches.

    Args:
      members: (batches, examples) whether a batch holds an example, of all examples.
      rate: the measured sampling rate, at which Poisson batches are simulated.
    """
    observed = _measure_spreads(members[None])  # a single sample, so that each variance is (1,)
    rng = np.random.default_rng(0)
    p_values: dict[str, float] = {}
    for simulations in _SIMULATIONS:  # few at first, and many if a p-value is small
        chunk = max(1, _AT_ONCE // members.size)  # as many as fit into memory together
        measured = []
        for start in range(0, simulations, chunk):
            shape = (min(chunk, simulations - start), *members.shape)
            measured.append(_measure_spreads(rng.random(shape, np.float32) < rate))
        for row, value in observed.items():
            simulated = np.concatenate([spreads[row] for spreads in measured])
            # The observed variance counts as a simulated one, so that no p-value is 0.
            above = 1 + int(np.sum(simulated >= value[0]))
            below = 1 + int(np.sum(simulated <= value[0]))
            p_values[row] = min(1.0, 2 * min(above, below) / (1 + simulations))
        if min(p_values.values()) > _SUSPECT:
            break
    return p_values


def _measure_spreads(members: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    """Returns the variances that three rows of the report test, each (samples,).

    They are of the batches' sizes, of how many batches hold each example, and of how many examples of a pair
    of neighbours a batch holds.

    Args:
      members: (samples, batches, examples) whether a batch holds an example.
    """
    neighbours = _count_neighbours(members)
    return {
        "spread of sizes": members.sum(axis=2).var(axis=1),
        "every example": members.sum(axis=1).var(axis=1),
        "order": neighbours.reshape(len(members), -1).var(axis=1),
    }


def _compute_edge_p_values(sizes: NDArray[np.int64], size_law: Any) -> tuple[float, float]:
    """Returns two one-sided p-values, for batch sizes that may be cut at a maximum and at a minimum.

    They are the probabilities that no Poisson batch would exceed the largest size, and that none would be
    below the smallest.

    Args:
      sizes: (batches,) the sizes.
      size_law: the binomial distribution of a Poisson batch's size, of scipy.stats.
    """
    batches = len(sizes)
    none_larger = np.exp(batches * size_law.logcdf(sizes.max()))
    none_smaller = np.exp(batches * size_law.logsf(sizes.min() - 1))
    return float(none_larger), float(none_smaller)


def _count_together(sample: BatchSample) -> tuple[NDArray[np.int64], float]:
    """Returns how many batches hold both examples of each pair, and how many are expected to.

    The counts, of pairs of observed examples, are (observed, observed), with 0 on the diagonal and below. The
    expected number is that of Poisson batches, the same for every pair.
    """
    members = sample.members.astype(np.float32)  # since products of floats are much faster
    together = np.rint(members.T @ members).astype(np.int64)
    return np.triu(together, 1), len(members) * sample.actual_rate**2


def _compute_together_p_value(sample: BatchSample) -> float:
    """Returns the p-value of the pair that comes together most often, with Bonferroni's correction."""
    together, _ = _count_together(sample)
    pairs = math.comb(len(together), 2)
    law = scipy.stats.binom(len(sample.sizes), sample.actual_rate**2)
    return float(min(1.0, pairs * law.sf(together.max() - 1)))


def _judge_sizes(sample: BatchSample) -> dict[str, float]:
    """Returns, by row of the report, 1 where batches that should not be Poisson are as assumed, else 0.

    These numbers take the place of p-values. Only sizes are judged: those of shuffled and fixed-size batches
    are the same, but for a smaller last batch of a shuffled pass. Rows that only concern Poisson batches get
    1. The mean size of balls-in-bins batches is random where passes are cut: no number takes the place of the
    p-value of Poisson batches, whose mean varies at least as much.
    """
    largest_difference = np.ptp(_find_usual_sizes(sample))
    # Shuffled examples may also be cut into batches that are as even as possible.
    most = 1 if sample.assumed == SHUFFLED else 0
    may_vary = sample.assumed == BALLS_IN_BINS
    judged = {
        "spread of sizes": float(largest_difference <= most or may_vary),
        "largest batch": 1.0,
        "empty batches": 1.0,
        "order": 1.0,
        "together": 1.0,
    }
    is_close = _has_stated_mean(sample)
    are_whole = len(sample.passes) > 1 and all(drawn.is_whole for drawn in sample.passes)
    if is_close or are_whole or not may_vary:
        judged["batch size"] = float(is_close or _is_rounding_open(sample))
    return judged


def _find_usual_sizes(sample: BatchSample) -> NDArray[np.int64]:
    """Returns the sizes of all batches but the last, smaller ones of shuffled passes.

    A last batch holds the examples that the largest batches leave over. It comes once in a pass: where
    batches of its size come more often, they count as usual ones.
    """
    sizes = sample.sizes
    largest = int(sizes.max())
    if sample.assumed != SHUFFLED or largest == 0:
        return sizes
    left_over = sample.examples % largest
    is_last = (sizes == left_over) & (left_over > 0)
    batches_per_pass = math.ceil(sample.examples / largest)
    most_last = math.ceil(len(sizes) / batches_per_pass)
    return sizes if is_last.sum() > most_last else sizes[~is_last]


def _has_stated_mean(sample: BatchSample) -> bool:
    """Returns whether the mean size is the expected one, up to 1%, with or without smaller last batches."""
    expected = sample.expected_size
    means = np.array([sample.sizes.mean(), _find_usual_sizes(sample).mean()])
    return bool(np.min(np.abs(means - expected)) <= 0.01 * expected)


def _is_rounding_open(sample: BatchSample) -> bool:
    """Returns whether sizes differ from the expected size by no more than whole numbers may have to.

    That is so where batches should all be of one size, no whole size is within 1% of the expected one, and
    the batches' size is the next above or below. Then the sizes can't tell whether the rate is as stated.
    """
    expected = sample.expected_size
    is_whole = abs(round(expected) - expected) <= 0.01 * expected
    difference = abs(_find_usual_sizes(sample).mean() - expected)
    has_one_size = sample.assumed in (FIXED, SHUFFLED)
    return bool(has_one_size and not is_whole and difference < 1 and not _has_stated_mean(sample))


def _compute_spread_p_value(values: NDArray[np.int64], distribution: Any) -> float:
    """Returns the two-sided p-value of the null hypothesis that values spread as a distribution does.

    The statistic is the sum of squared distances from the distribution's mean. It is scaled to a chi-square
    variable, with as many degrees of freedom as give it about the statistic's relative variance,
    (2 + excess kurtosis) / n for n independent values.

    Args:
      values: (n,) the values.
      distribution: a distribution of scipy.stats.
    """
    mean, variance, excess_kurtosis = distribution.stats("mvk")
    freedom = 2 * (len(values) - 1) / (2 + excess_kurtosis)
    squares = np.sum((values - mean) ** 2)
    ratio = squares / (len(values) - 1) / variance  # about 1 under the null hypothesis
    return float(compute_two_sided_p_value(scipy.stats.chi2(freedom), ratio * freedom))


def _recognise_kind(sample: BatchSample) -> str:
    """Returns the kind of batches, if they clearly are not Poisson; else an empty string.

    If no observed example comes twice in a pass, batches are shuffled, or balls in bins where their sizes
    vary. If all sizes are equal, batches are fixed. Either answer is given only if Poisson batches would look
    so with a probability below _CERTAIN. For a loader that yields one batch at a time, as many consecutive
    batches as a pass should have count as a pass.
    """
    sizes = sample.sizes
    rate = sample.actual_rate
    windows = _split_into_passes(sample)
    most_often = 0  # how often an example comes in a pass, at most
    log_at_most_once = 0.0  # log of the probability that no example comes twice in Poisson batches
    for window in windows:
        batches, observed = window.shape
        counts = window.sum(axis=0)
        most_often = max(most_often, int(counts.max(initial=0)))
        # The logs of the probabilities that an example is in none, or in just one, of the Poisson batches.
        log_never = batches * math.log1p(-rate)
        log_once = math.log(batches * rate) + (batches - 1) * math.log1p(-rate)
        log_at_most_once += observed * np.logaddexp(log_never, log_once)
    if windows and most_often <= 1 and log_at_most_once < math.log(_CERTAIN):
        # Shuffled batches are of equal size except for the last of a pass, or differ in size by 1. Empty
        # batches do not count.
        varies = np.ptp(sizes[sizes > 0]) > 1 and len(np.unique(sizes)) > 2
        return BALLS_IN_BINS if varies else SHUFFLED

    # The probability that all Poisson batches are as large as the first is the probability of this size, to
    # the power of the number of batches.
    size_law = scipy.stats.binom(sample.examples, rate)
    log_same_size = float(size_law.logpmf(int(sizes[0])))
    if np.ptp(sizes) == 0 and len(sizes) * log_same_size < math.log(_CERTAIN):
        return FIXED
    return ""


def _split_into_passes(sample: BatchSample) -> list[NDArray[np.bool_]]:
    """Returns each pass's members, (batches, observed): whether a batch holds an observed example.

    The batches of a loader that yields one at a time are cut into passes of as many batches as a pass should
    have. Where their sizes vary, passes may have other numbers of batches, and none is returned.
    """
    batches_per_pass = count_batches(sample.sampling_rate)
    if len(sample.passes) > 1:
        # A pass as drawn may have more batches than a pass should have.
        return [batch_pass.members[:batches_per_pass] for batch_pass in sample.passes]
    merged = sample.passes[0]
    do_sizes_vary = np.ptp(merged.sizes[:-1]) > 0  # the last batch may be smaller
    if do_sizes_vary:
        return []
    ends = range(batches_per_pass, len(merged.sizes), batches_per_pass)
    return np.split(merged.members, ends)[:-1]  # without the last pass, which may be cut short


def _repeats_its_batches(sample: BatchSample) -> bool:
    """Returns whether all passes have the same batches; False for fewer than two passes."""
    first, *others = [drawn.members for drawn in sample.passes]
    return bool(others) and all(_are_same_batches(first, other) for other in others)


def _are_same_batches(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> bool:
    """Returns whether every batch of a single pass comes again in another.

    Args:
      first, second: (batches, observed) whether each pass's batches hold each observed example.
    """
    sizes = first.sum(axis=1)
    overlaps = first.astype(np.float32) @ second.T  # (batches, batches)
    # A batch comes again if all its observed examples are together in a batch of the other pass.
    comes_again = np.max(overlaps, axis=1) == sizes
    # Batches with a single observed example at most would come again by chance.
    return bool(sizes.max() > 1 and np.all(comes_again))


def _compute_leaks(noise_multiplier: Any, sampling_rate: float, epochs: Any, delta: Any) -> _Leaks:
    """Returns epsilon as Poisson accounting claims it, and a lower bound for shuffled batches.

    Raises InputError for a number out of range.
    """
    noise_multiplier = read_noise_multiplier(noise_multiplier)
    epochs = read_epochs(epochs)
    delta = number("delta", delta, float)
    batches = count_most_batches(sampling_rate)
    composition = accounting.Composition(noise_multiplier, batches * epochs, sampling_rate)
    claimed = accounting.participant_upper_bound(composition, delta)
    least = compute_shuffled_epsilon(noise_multiplier, batches, epochs, delta)
    least = min(least, accounting.epsilon_upper_bound(noise_multiplier, epochs, delta))
    return _Leaks(claimed, least)


def _check_leak(leak: _Leaks, kind: str, assumed: str) -> CheckOutcome:
    """Checks that what shuffled batches leak at least is no more than Poisson accounting claims.

    The check does not apply to batches of another kind. It only informs where the accountant does not assume
    Poisson batches, so that nobody claims their epsilon.

    Args:
      leak: epsilon as Poisson accounting claims it, and its lower bound for shuffled batches.
      kind: the kind of batches that they are recognised as; empty if none.
      assumed: the kind of batches that the accountant assumes.
    """
    compared = (
        f"Poisson accounting: epsilon {at_most(leak.claimed)}; shuffled batches: at least "
        f"{at_least(leak.shuffled)}"
    )
    figures = {
        "poisson epsilon": leak.claimed,
        "shuffled epsilon at least": leak.shuffled,
    }
    if kind != SHUFFLED:
        what = _TITLES.get(kind, "of no kind that is recognised")
        text = f"these batches are {what}; were they shuffled: {compared}"
        return CheckOutcome(text, applies=False, figures=figures)
    bugs = []
    if assumed == POISSON and leak.shuffled > leak.claimed:
        finding = findings.LEAKS_MORE.fill(
            claimed=at_most(leak.claimed), least=at_least(leak.shuffled)
        )
        bugs.append(finding)
    return CheckOutcome(compared, findings=bugs, figures=figures)
