"""Are batches what the accountant assumes? Their sizes, how often examples come, and which come together."""

import math
from dataclasses import dataclass
from functools import cached_property, partial
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
from audit.errors import number, require, shown
from audit.written import counted

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
_SEEN = 0.9  # the power at which the report states the smallest visible error of the rate
_TESTS = 7  # statistical tests in a report


class _Pass(NamedTuple):
    """The batches of a single pass over the data set.

    Attributes:
      sizes: (batches,) how many examples each batch holds.
      members: (batches, observed) whether a batch holds each observed example.
      is_whole: whether these are all batches of the pass.
    """

    sizes: NDArray[np.int64]
    members: NDArray[np.bool_]
    is_whole: bool


@dataclass(frozen=True)
class _Sample:
    """The batches that were drawn, and what the accountant assumes of them.

    Attributes:
      passes: the batches by pass; those of a loader that yields a single batch at a time are a single pass.
      repeating: how many batches hold an example twice.
      repeated: how many batches hold exactly the examples of another batch of their pass.
      observed: the indices of the observed examples: pairs of neighbours in the data's order.
      examples: the number of examples of the data set.
      sampling_rate: the probability, assumed by the accountant, with which a batch takes an example.
      assumed: the kind of batches that the accountant assumes.
    """

    passes: list[_Pass]
    repeating: int
    repeated: int
    observed: NDArray[np.int64]
    examples: int
    sampling_rate: float
    assumed: str

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The sizes of all batches, (batches,)."""
        return np.concatenate([drawn.sizes for drawn in self.passes])

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Whether each of all batches holds each observed example, (batches, observed)."""
        return np.concatenate([drawn.members for drawn in self.passes])

    @property
    def are_whole(self) -> bool:
        """Whether all batches of every pass were drawn."""
        return all(drawn.is_whole for drawn in self.passes)

    @property
    def expected_size(self) -> float:
        """The mean size of a batch at the assumed sampling rate."""
        return self.examples * self.sampling_rate

    @property
    def rate(self) -> float:
        """The measured sampling rate, between 1e-12 and 1 - 1e-12: logs of it and of 1 less it are finite."""
        return float(np.clip(self.sizes.mean() / self.examples, 1e-12, 1 - 1e-12))

    @cached_property
    def is_unchanging(self) -> bool:
        """Whether every batch of the first pass comes again in all others; False for a single pass."""
        first, *others = [drawn.members for drawn in self.passes]
        sizes = first.sum(axis=1)
        # Batches with a single observed example at most would come again by chance.
        if not others or sizes.max() <= 1:
            return False
        for other in others:
            overlaps = first.astype(np.float32) @ other.T  # (batches, batches)
            if not np.array_equal(overlaps.max(axis=1), sizes):
                return False
        return True


class _Test(NamedTuple):
    """A row of the report that tests a statistic.

    Attributes:
      p_value: the p-value of the null hypothesis of Poisson batches.
      measured: what was measured, in words; empty for nothing.
      finding: the bug that a small p-value shows.
    """

    p_value: float
    measured: str
    finding: CheckFinding


def check_batches(
    draw: Any,
    examples: int | None = None,
    sampling_rate: float | None = None,
    *,
    assumed: str = POISSON,
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
    sample = _draw_sample(draw_pass, examples, rate, assumed)
    kind = _recognise_kind(sample)
    order = None
    if kind in _ONCE_A_PASS:
        batches = count_batches(rate)
        if len(sample.passes) > 1 and sample.are_whole:
            batches = max(len(drawn.sizes) for drawn in sample.passes)
        order = examine_order(draw_pass, examples, max(2, batches), kind == BALLS_IN_BINS)
        if not order.is_once:  # an example that was not observed before comes twice in a pass
            kind = ""
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _check_sample(sample, kind, order).add_provenance(draw, stated)


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


def _draw_sample(draw: Draw, examples: int, rate: float, assumed: str) -> _Sample:
    """Draws passes of batches until there are enough for the tests.

    Two passes are always drawn, so that they can be compared. No more are drawn after _MOST_BATCHES batches.
    """
    last_pair = examples // 2 - 1
    most_pairs = min(examples, _MOST_EXAMPLES) // 2
    first_of_pairs = 2 * np.unique(np.linspace(0, last_pair, most_pairs).astype(int))
    observed = np.column_stack([first_of_pairs, first_of_pairs + 1]).ravel()

    passes: list[_Pass] = []
    contents: list[list[bytes]] = []  # by pass, the examples of each batch
    repeating = 0
    batches = 0
    drawn = 0  # examples in all batches, an example in two of them twice
    is_enough = False
    while len(passes) < 2 or (not is_enough and batches < _MOST_BATCHES):
        given = loaders.draw_pass(draw, len(passes), examples, _MOST_BATCHES)
        unique = [np.unique(batch) for batch in given.batches]
        sizes = np.array([len(batch) for batch in given.batches])
        members = np.array([np.isin(observed, batch) for batch in unique])
        passes.append(_Pass(sizes, members, given.is_whole))
        contents.append([batch.tobytes() for batch in unique])
        repeating += int(np.sum(sizes > [len(batch) for batch in unique]))
        batches += len(sizes)
        drawn += int(sizes.sum())
        # drawn / (1 - rate) decides how precisely the rate is measured.
        absent = examples * batches - drawn
        is_precise = drawn * (drawn + absent) >= _LEAST_DRAWN * absent
        is_enough = len(passes) >= _LEAST_PASSES and batches >= _LEAST_BATCHES and is_precise

    if len(passes) == batches:  # a batch from each call: a batch repeats one from another call
        sizes = np.concatenate([batch.sizes for batch in passes])
        members = np.concatenate([batch.members for batch in passes])
        passes = [_Pass(sizes, members, is_whole=True)]
        contents = [sum(contents, [])]
    repeated = sum(len(batch_pass) - len(set(batch_pass)) for batch_pass in contents)
    return _Sample(passes, repeating, repeated, observed, examples, rate, assumed)


def _check_sample(sample: _Sample, kind: str, order: OrderTest | None) -> CheckReport:
    """Runs every check of batches; returns the report.

    Args:
      sample: the batches.
      kind: the kind of batches that they are recognised as; empty if none.
      order: the tests of a uniform order, of batches that take every example once a pass; else None.
    """
    tests = _test_poisson(sample)
    p_values = {row: test.p_value for row, test in tests.items()}
    # Batches count as Poisson if they are clearly of no other kind, and no test rejects Poisson sampling.
    if not kind and not find_rejected_tests(p_values):
        kind = POISSON
    # A loader that yields a batch at a time may show no whole pass. Then nothing tells whether examples come
    # once a pass, and batches of one size may be shuffled ones.
    takes_once = sample.assumed in _ONCE_A_PASS
    is_untold = takes_once and kind not in _ONCE_A_PASS and not _split_into_passes(sample)
    if is_untold:
        kind = ""
    if sample.assumed != POISSON:
        p_values |= _judge_sizes(sample)
    if takes_once:
        p_values["every example"] = float(is_untold or kind == sample.assumed)
    if order is not None:
        for row, p_value in order.p_values.items():
            finding = findings.NOT_UNIFORM.fill(check=row, seen=order.seen[row])
            tests[row] = _Test(p_value, f"tested over {order.passes} passes", finding)
            p_values[row] = p_value

    outcomes = {"indices": _check_indices(sample, kind)}
    for row, test in tests.items():
        text = "" if test.measured else "as expected"
        outcomes[row] = CheckOutcome(
            text, p_values={sample.assumed: p_values[row]}, measured=test.measured
        )
    if sample.assumed != POISSON and _is_rounding_open(sample):
        size = tests["batch size"].measured.split(";")[0]
        text = f"{size}: no whole size has this rate; state the size over {sample.examples:,}"
        outcomes["batch size"] = CheckOutcome(text, tried=False)
    if is_untold:
        text = "batches that come one by one show no whole pass: draw all batches of a pass at once"
        outcomes["every example"] = CheckOutcome(text, tried=False)
    if order is not None:
        outcomes["order"] = outcomes["order"]._replace(figures={"order": order.to_dict()})

    # The rows that must be tried for the report to pass.
    needed = ("indices", "batch size", "spread of sizes", "every example")
    rows_of_order = () if order is None else tuple(order.p_values)
    name_findings = partial(_name_findings, sample, kind, tests, rows_of_order)
    return make_report("batches", outcomes, needed, name_findings)


def _test_poisson(sample: _Sample) -> dict[str, _Test]:
    """Returns, by row of the report, the tests of Poisson batches.

    The total and the empty batches are compared with the stated rate. All else is compared with the measured
    rate, so that a wrong rate alone does not fail these tests.
    """
    sizes = sample.sizes
    examples = sample.examples
    batches = len(sizes)
    rate = sample.rate
    size_law = scipy.stats.binom(examples, rate)

    total = scipy.stats.binomtest(int(sizes.sum()), examples * batches, sample.sampling_rate)
    # Sizes may be cut at a maximum or a minimum: the probabilities that no Poisson batch would lie beyond.
    none_larger = float(np.exp(batches * size_law.logcdf(sizes.max())))
    none_smaller = float(np.exp(batches * size_law.logsf(sizes.min() - 1)))
    is_cut_above = none_larger < LEVEL
    edge = int(sizes.max() if is_cut_above else sizes.min())
    cut = findings.CUT_BATCHES.fill(
        side="more" if is_cut_above else "fewer",
        edge=edge,
        count=counted(int(np.sum(sizes == edge)), "holds", "hold"),
    )
    empty_probability = (1 - sample.sampling_rate) ** examples
    empty = scipy.stats.binomtest(int(np.sum(sizes == 0)), batches, empty_probability)
    counts = sample.members.sum(axis=0)
    odd = partial(findings.ODD_BATCHES.fill, assumed=_TITLES[sample.assumed])
    return {
        "batch size": _Test(
            p_value=float(total.pvalue),
            measured=_describe_rate(sample),
            finding=_name_other_rate(sample),
        ),
        "spread of sizes": _Test(
            p_value=compute_fit_p_value(sizes, size_law),
            measured=f"deviation {sizes.std():.3g}",
            finding=odd(check="spread of sizes", name="sizes that vary otherwise"),
        ),
        "largest batch": _Test(
            p_value=min(2 * min(none_larger, none_smaller), 1.0),
            measured=f"{sizes.min()} to {counted(sizes.max(), 'example')}",
            finding=cut,
        ),
        "empty batches": _Test(
            p_value=float(empty.pvalue),
            measured="",
            finding=odd(check="empty batches", name="no empty batch, or too many"),
        ),
        "every example": _Test(
            p_value=_compute_spread_p_value(counts, scipy.stats.binom(batches, rate)),
            measured="",
            finding=odd(check="every example", name="examples that come unequally often"),
        ),
        "order": _Test(
            p_value=_compute_neighbours_p_value(sample.members),
            measured="",
            finding=odd(check="order", name="neighbours come together"),
        ),
        "together": _test_together(sample),
    }


def _describe_mean(sample: _Sample) -> str:
    """Returns the batches' mean size in words: "31.96 examples on average"."""
    mean = f"{sample.sizes.mean():.4g}"
    return f"{mean} {'example' if mean == '1' else 'examples'} on average"


def _describe_rate(sample: _Sample) -> str:
    """Returns in words the batches' mean size, and the smallest error of the rate that the test would show.

    The number of examples drawn over all batches is binomial: its relative standard deviation is
    sqrt((1 - rate) / mean). A two-sided normal test shows a difference with probability _SEEN if it is
    z(level / 2) + z(1 - _SEEN) standard deviations, where z(q) is the upper q-quantile.
    """
    drawn = sample.expected_size * len(sample.sizes)
    level = LEVEL / _TESTS  # of a single test of the report, by Bonferroni
    deviations = scipy.stats.norm.isf(level / 2) + scipy.stats.norm.ppf(_SEEN)
    visible = 100 * deviations * math.sqrt((1 - sample.sampling_rate) / drawn)
    rate = f"{_describe_mean(sample)}, {sample.expected_size:.4g} expected"
    return f"{rate}; a rate {visible:.2g}% off would be seen with probability {_SEEN}"


def _name_other_rate(sample: _Sample) -> CheckFinding:
    """Returns the finding of batches that are drawn at another rate, with a mistake that gives the rate.

    It tries one over the loader's length, and the stated rate divided or multiplied by up to 64.
    """
    rate = sample.rate
    stated = sample.sampling_rate
    # A mistake's rate fits up to four standard deviations of the measured rate and a thousandth of it.
    close = 4 * math.sqrt(rate * (1 - rate) / (sample.examples * len(sample.sizes))) + 1e-3 * rate
    mistakes = {}
    if len(sample.passes) > 1 and sample.passes[0].is_whole:
        length = len(sample.passes[0].sizes)
        text = f"It is 1 / {length} = {1 / length:.4g}, one over the loader's length."
        mistakes[text] = 1 / length
    for parts in range(2, 65):
        text = f"It is the stated rate over {parts}, of one of {parts} workers or parts of a batch."
        mistakes[text] = stated / parts
        mistakes[f"It is {parts} times the stated rate."] = parts * stated
    fitting = [text for text, mistaken in mistakes.items() if abs(mistaken - rate) < close]
    return findings.ANOTHER_RATE.fill(
        mean=_describe_mean(sample),
        expected=sample.expected_size,
        rate=rate,
        stated=stated,
        why=next(iter(fitting), ""),
    )


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


def _compute_neighbours_p_value(members: NDArray[np.bool_]) -> float:
    """Returns the two-sided p-value of how often a batch holds both of two neighbours (Fisher's exact test).

    Args:
      members: (batches, observed) whether a batch holds an example; neighbours are next to each other.
    """
    first = members[:, ::2]
    second = members[:, 1::2]
    law = scipy.stats.hypergeom(first.size, int(first.sum()), int(second.sum()))
    both = int(np.sum(first & second))
    return float(min(1.0, 2 * min(law.cdf(both), law.sf(both - 1))))


def _test_together(sample: _Sample) -> _Test:
    """Tests how often the two observed examples come together that do so most often (Bonferroni)."""
    members = sample.members.astype(np.float32)  # since products of floats are much faster
    together = np.triu(np.rint(members.T @ members).astype(np.int64), 1)
    first, second = np.unravel_index(int(together.argmax()), together.shape)
    most = int(together.max())
    law = scipy.stats.binom(len(members), sample.rate**2)
    finding = findings.TOGETHER.fill(
        first=int(sample.observed[first]),
        second=int(sample.observed[second]),
        count=counted(most, "batch", "batches"),
        expected=law.mean(),
    )
    p_value = min(1.0, math.comb(len(together), 2) * float(law.sf(most - 1)))
    return _Test(p_value, f"of all pairs of {counted(len(together), 'example')}", finding)


def _check_indices(sample: _Sample, kind: str) -> CheckOutcome:
    """Checks that no batch holds an example twice, and that batches do not come again.

    If the kind takes every example once a pass, the second pass must not have the first pass's batches. No
    pass may repeat a batch where Poisson batches would almost never repeat.
    """
    bugs = []
    if sample.repeating:
        count = counted(sample.repeating, "batch holds", "batches hold")
        bugs.append(findings.EXAMPLE_TWICE.fill(count=count))
    # Two batches agree on an example if both take it or neither does; a union bound over pairs of batches.
    batches = len(sample.sizes)
    log_same_choice = math.log(sample.rate**2 + (1 - sample.rate) ** 2)
    log_repeats = sample.examples * log_same_choice + math.log(batches**2 / 2)
    if kind in _ONCE_A_PASS and sample.is_unchanging:
        bugs.append(findings.SAME_BATCHES)
    elif sample.repeated and log_repeats < math.log(_CERTAIN):
        count = counted(sample.repeated, "batch holds", "batches hold")
        bugs.append(findings.REPEATED_BATCH.fill(count=count))
    passes = counted(len(sample.passes), "pass", "passes")
    text = f"{counted(batches, 'batch', 'batches')} in {passes}; none holds an example twice"
    if not sample.are_whole:
        text = f"{text}; a pass is read up to {_MOST_BATCHES:,} batches"
    return CheckOutcome(text, findings=bugs, figures={"kind": kind, "batches": batches})


def _name_findings(
    sample: _Sample,
    kind: str,
    tests: dict[str, _Test],
    rows_of_order: tuple[str, ...],
    certain: list[CheckFinding],
    rejected: dict[str, list[str]],
) -> list[CheckFinding]:
    """Returns the findings that are certain and those that explain rejected tests.

    Args:
      sample: the batches.
      kind: the kind of batches that they are recognised as; empty if none.
      tests: the tests, by row of the report.
      rows_of_order: the rows that test a uniform order.
      certain: the findings that need no test.
      rejected: by row of the report, the names of its rejected tests.
    """
    odd = [row for row in tests if rejected[row]]
    if findings.SAME_BATCHES in certain:  # explains what the order shows
        odd = [row for row in odd if row not in rows_of_order]
    first = ("batch size", *rows_of_order)
    result = certain + [tests[row].finding for row in odd if row in first]

    # Batches of another kind are a bug even where no row sees it, and explain every other row. Kinds other
    # than Poisson are recognised only with certainty; batches count as Poisson if no row contradicts that.
    is_other_kind = kind not in ("", sample.assumed)
    if is_other_kind and (kind != POISSON or any(rejected.values())):
        return [*result, _name_other_kind(sample, kind)]

    result += [tests[row].finding for row in odd if row in ("together", "largest batch")]
    # With the kind that is assumed, the findings so far explain all other rows: sizes that are all wrong fail
    # the rows of their mean and of their spread.
    if result and kind:
        return result
    if "largest batch" in odd:  # sizes that are cut also spread less
        odd = [row for row in odd if row != "spread of sizes"]
    return result + [tests[row].finding for row in odd]


def _name_other_kind(sample: _Sample, kind: str) -> CheckFinding:
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
    if kind in _ONCE_A_PASS and sample.is_unchanging:
        return findings.UNCHANGING.fill(assumed=assumed, dropped=dropped, remedy=remedy)
    return findings.ANOTHER_KIND.fill(
        kind=_TITLES[kind], assumed=assumed, dropped=dropped, remedy=remedy
    )


def _drops_last_batch(sample: _Sample) -> bool:
    """Returns whether every pass, of equal batches, leaves out some examples, but fewer than a batch."""
    left_out = [sample.examples - drawn.sizes.sum() for drawn in sample.passes]
    is_even = np.ptp(sample.sizes) == 0
    is_short = 0 < min(left_out) <= max(left_out) < sample.sizes[0]
    # Batches that came one by one are a single pass, whose end may not be that of a pass over the data.
    return bool(len(sample.passes) > 1 and sample.are_whole and is_even and is_short)


def _judge_sizes(sample: _Sample) -> dict[str, float]:
    """Returns, by row of the report, 1 where batches that should not be Poisson are as assumed, else 0.

    These numbers take the place of p-values. Only sizes are judged; rows that only concern Poisson batches
    get 1. The mean size of balls-in-bins batches is random where passes are cut: no number takes the place of
    the p-value of Poisson batches, whose mean varies at least as much.
    """
    # Shuffled examples may also be cut into batches that are as even as possible.
    most = 1 if sample.assumed == SHUFFLED else 0
    may_vary = sample.assumed == BALLS_IN_BINS
    judged = dict.fromkeys(("largest batch", "empty batches", "order", "together"), 1.0)
    judged["spread of sizes"] = float(np.ptp(_find_usual_sizes(sample)) <= most or may_vary)
    is_close = _has_stated_mean(sample)
    if is_close or not may_vary or (len(sample.passes) > 1 and sample.are_whole):
        judged["batch size"] = float(is_close or _is_rounding_open(sample))
    return judged


def _find_usual_sizes(sample: _Sample) -> NDArray[np.int64]:
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


def _has_stated_mean(sample: _Sample) -> bool:
    """Returns whether the mean size is the expected one, up to 1%, with or without smaller last batches."""
    expected = sample.expected_size
    means = np.array([sample.sizes.mean(), _find_usual_sizes(sample).mean()])
    return bool(np.min(np.abs(means - expected)) <= 0.01 * expected)


def _is_rounding_open(sample: _Sample) -> bool:
    """Returns whether sizes differ from the expected size by no more than whole numbers may have to.

    That is so where batches should all be of one size, no whole size is within 1% of the expected one, and
    the batches' size is the next above or below. Then the sizes can't tell whether the rate is as stated.
    """
    expected = sample.expected_size
    is_whole = abs(round(expected) - expected) <= 0.01 * expected
    difference = abs(_find_usual_sizes(sample).mean() - expected)
    has_one_size = sample.assumed in (FIXED, SHUFFLED)
    return bool(has_one_size and not is_whole and difference < 1 and not _has_stated_mean(sample))


def _recognise_kind(sample: _Sample) -> str:
    """Returns the kind of batches, if they clearly are not Poisson; else an empty string.

    If no observed example comes twice in a pass, batches are shuffled, or balls in bins where their sizes
    vary. If all sizes are equal, batches are fixed. Either answer is given only if Poisson batches would look
    so with a probability below _CERTAIN. For a loader that yields one batch at a time, as many consecutive
    batches as a pass should have count as a pass.
    """
    sizes = sample.sizes
    rate = sample.rate
    passes = _split_into_passes(sample)
    most_often = 0  # how often an example comes in a pass, at most
    log_at_most_once = 0.0  # log of the probability that no example comes twice in Poisson batches
    for members in passes:
        batches, observed = members.shape
        most_often = max(most_often, int(members.sum(axis=0).max(initial=0)))
        # The logs of the probabilities that an example is in none, or in just one, of the Poisson batches.
        log_never = batches * math.log1p(-rate)
        log_once = math.log(batches * rate) + (batches - 1) * math.log1p(-rate)
        log_at_most_once += observed * np.logaddexp(log_never, log_once)
    if passes and most_often <= 1 and log_at_most_once < math.log(_CERTAIN):
        # Shuffled batches are of equal size except for the last of a pass, or differ in size by 1. Empty
        # batches do not count.
        varies = np.ptp(sizes[sizes > 0]) > 1 and len(np.unique(sizes)) > 2
        return BALLS_IN_BINS if varies else SHUFFLED

    # The probability that all Poisson batches are as large as the first.
    log_same_size = float(scipy.stats.binom.logpmf(int(sizes[0]), sample.examples, rate))
    if np.ptp(sizes) == 0 and len(sizes) * log_same_size < math.log(_CERTAIN):
        return FIXED
    return ""


def _split_into_passes(sample: _Sample) -> list[NDArray[np.bool_]]:
    """Returns each pass's members, (batches, observed): whether a batch holds an observed example.

    The batches of a loader that yields one at a time are cut into passes of as many batches as a pass should
    have. Where their sizes vary, passes may have other numbers of batches, and none is returned.
    """
    batches_per_pass = count_batches(sample.sampling_rate)
    if len(sample.passes) > 1:
        # A pass as drawn may have more batches than a pass should have.
        return [drawn.members[:batches_per_pass] for drawn in sample.passes]
    if np.ptp(sample.sizes[:-1]) > 0:  # the last batch may be smaller
        return []
    ends = range(batches_per_pass, len(sample.sizes), batches_per_pass)
    return np.split(sample.members, ends)[:-1]  # without the last pass, which may be cut short
