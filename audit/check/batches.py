"""Checks whether batches are those that the accountant assumes: sizes, and which examples they have."""

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
_MIN_PASSES = 8
_MIN_BATCHES = 320
_MIN_DRAWN = 40_000  # examples over all batches, over 1 - rate: then a rate 2.5% off is seen
_MAX_BATCHES = 2000
_MAX_EXAMPLES = 1500  # examples that are observed: their batches are recorded
_CERTAIN = 1e-9  # batches with at most this probability under Poisson sampling are of another kind
_SEEN = 0.9  # the power of the test, for the smallest visible error of the rate
_TESTS = 6  # statistical tests in a report


@dataclass(frozen=True)
class _Sample:
    """The batches that were drawn, and the accountant's assumptions.

    Attributes:
      sizes: by pass, the number of examples in each batch.
      members: by pass, (batches, observed) whether a batch has each observed example.
      observed: the indices of the observed examples: pairs of neighbours in the data's order.
      is_whole: whether all batches of every pass were drawn.
      is_joined: whether batches came one by one, and were joined to passes.
      repeating: the number of batches that have an example twice.
      repeated: the number of batches with exactly the examples of another batch.
      is_unchanging: whether all passes are cut into the same batches.
      examples: the number of examples of the data set.
      sampling_rate: the assumed probability that a batch takes an example.
      assumed: the assumed kind of batches.
    """

    sizes: list[NDArray[np.int64]]
    members: list[NDArray[np.bool_]]
    observed: NDArray[np.int64]
    is_whole: bool
    is_joined: bool
    repeating: int
    repeated: int
    is_unchanging: bool
    examples: int
    sampling_rate: float
    assumed: str

    @cached_property
    def all_sizes(self) -> NDArray[np.int64]:
        """The sizes of all batches, (batches,)."""
        return np.concatenate(self.sizes)

    @property
    def expected_size(self) -> float:
        """The mean size of a batch at the assumed sampling rate."""
        return self.examples * self.sampling_rate

    @property
    def rate(self) -> float:
        """The measured sampling rate, between 1e-12 and 1 - 1e-12: logs of it and of 1 less it are finite."""
        return float(np.clip(self.all_sizes.mean() / self.examples, 1e-12, 1 - 1e-12))


class _Row(NamedTuple):
    """A row of the report that tests a statistic.

    Attributes:
      p_value: the p-value of the null hypothesis.
      finding: the bug that a small p-value shows.
      measured: the measurement in words, or empty.
    """

    p_value: float
    finding: CheckFinding
    measured: str = ""


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
        is the indices, from 0, of its examples. Passes are drawn with seeds 0, 1, ...; a loader with a state
        may ignore them. Or a loader of torch or Opacus, with a batch sampler that gives the indices; a batch
        sampler; or an iterable over batches of indices. `audit.Indices` makes loaders yield indices.
      examples: the number of examples of the data set; by default that of the loader's data set.
      sampling_rate: the probability that a batch takes an example, as the accountant assumes.
      assumed: the kind of batches that the accountant assumes: "poisson", "fixed" (always the same number of
        examples, without replacement), "shuffled" (a permutation of the data in each pass, cut into batches),
        or "balls_in_bins" (every example in a single batch of each pass, drawn independently).

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: `draw` does not give batches, or a number is out of range.

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
    is_kind = isinstance(assumed, str) and assumed in _TITLES
    require(is_kind, f"`assumed={shown(assumed)}`: give {', '.join(_TITLES)}")
    draw_pass = loaders.make_draw(draw)
    examples = loaders.count_examples(draw, examples)
    rate = read_sampling_rate(sampling_rate)
    sample = _draw_sample(draw_pass, examples, rate, assumed)
    kind = _recognise_kind(sample)
    order = None
    if kind in _ONCE_A_PASS:
        batches = count_batches(rate)
        if sample.is_whole and not sample.is_joined:
            batches = max(map(len, sample.sizes))
        order = examine_order(draw_pass, examples, max(2, batches), kind == BALLS_IN_BINS)
        if not order.is_once:  # an example that was not observed before comes twice in a pass
            kind = ""
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _check_sample(sample, kind, order).add_provenance(draw, stated)


def read_sampling_rate(sampling_rate: Any) -> float:
    """Returns a sampling rate as a number; raises InputError if it is missing or out of range."""
    message = "`sampling_rate` is missing: give the rate that the accountant is told"
    require(sampling_rate is not None, message)
    rate = number("sampling_rate", sampling_rate, float)
    require(0 < rate < 1, f"`sampling_rate={rate:g}`: give a number between 0 and 1")
    require_least_rate(rate)
    return rate


def _draw_sample(draw: Draw, examples: int, rate: float, assumed: str) -> _Sample:
    """Draws two passes of batches, and more until there are enough for the tests, or _MAX_BATCHES."""
    pairs = np.linspace(0, examples // 2 - 1, min(examples, _MAX_EXAMPLES) // 2).astype(int)
    observed = np.add.outer(2 * np.unique(pairs), [0, 1]).ravel()
    sizes: list[NDArray[np.int64]] = []
    members = []
    contents: list[list[bytes]] = []  # by pass, the examples of each batch that is not empty
    is_whole = True
    repeating = 0
    batches = 0
    drawn = 0  # the total size of all batches
    for given in loaders.draw_passes(draw, examples, count_batches(rate), _MAX_BATCHES):
        unique = list(map(np.unique, given.batches))
        sizes.append(np.array(list(map(len, given.batches))))
        members.append(np.array([np.isin(observed, batch) for batch in unique]))
        contents.append([batch.tobytes() for batch in unique if len(batch)])
        repeating += int(np.sum(sizes[-1] > list(map(len, unique))))
        is_whole &= given.is_whole
        batches += len(unique)
        drawn += int(sizes[-1].sum())
        # drawn / (1 - rate) decides how precisely the rate is measured.
        is_precise = drawn >= _MIN_DRAWN * (1 - drawn / (examples * batches))
        is_enough = len(sizes) >= _MIN_PASSES and batches >= _MIN_BATCHES and is_precise
        if len(sizes) > 1 and (is_enough or batches >= _MAX_BATCHES):
            break
    different = {content for of_pass in contents for content in of_pass}
    # Batches of a single example are the same in every pass that takes every example.
    is_unchanging = max(map(max, sizes)) > 1 and all(
        set(of_pass) == different for of_pass in contents
    )
    return _Sample(
        sizes=sizes,
        members=members,
        observed=observed,
        is_whole=is_whole,
        is_joined=given.is_joined,
        repeating=repeating,
        repeated=sum(map(len, contents)) - len(different),
        is_unchanging=is_unchanging,
        examples=examples,
        sampling_rate=rate,
        assumed=assumed,
    )


def _check_sample(sample: _Sample, kind: str, order: OrderTest | None) -> CheckReport:
    """Runs every check of batches; returns the report.

    Args:
      sample: the batches.
      kind: the kind of batches that was recognised, or empty.
      order: the tests of a uniform order, for batches that take every example once a pass; otherwise None.
    """
    rows = _test_poisson(sample)
    # Batches count as Poisson if they are clearly of no other kind, and no test rejects Poisson sampling.
    if not kind and not find_rejected_tests({row: test.p_value for row, test in rows.items()}):
        kind = POISSON
    if sample.assumed != POISSON:
        rows = {row: rows[row]._replace(p_value=p) for row, p in _judge(sample, kind, rows).items()}
    if order is not None:
        for row, p_value in order.p_values.items():
            finding = findings.NOT_UNIFORM.fill(check=row, seen=order.seen[row])
            rows[row] = _Row(p_value, finding, f"tested over {order.passes} passes")

    outcomes = {"indices": _check_indices(sample, kind, order)}
    for row, (p_value, _, measured) in rows.items():
        text = "" if measured else "as expected"
        outcomes[row] = CheckOutcome(text, p_values={sample.assumed: p_value}, measured=measured)
    text = "no whole size has this rate: state the size over the number of examples"
    if "every example" not in rows:
        text = "batches that come one by one show no whole pass: draw a pass at once"
    for row in ("batch size", "every example"):
        if row not in rows:
            outcomes[row] = CheckOutcome(text, tried=False)
    needed = ("indices", "batch size", "spread of sizes", "every example")
    name_findings = partial(_name_findings, sample, kind, rows)
    return make_report("batches", outcomes, needed, name_findings)


def _judge(sample: _Sample, kind: str, rows: dict[str, _Row]) -> dict[str, float]:
    """Returns, by row, the p-value 1 if batches of a kind other than Poisson are as assumed, otherwise 0.

    Only sizes and the kind are judged. Undecided rows are left out: batches that come one by one may not show
    a whole pass, and the stated rate may not have an integer size.
    """
    sizes = sample.all_sizes
    expected = sample.expected_size
    takes_once = sample.assumed in _ONCE_A_PASS
    ends_with_pass = np.ptp(sizes) == 0 and sample.examples % max(sizes[0], 1) == 0
    if sample.is_joined and takes_once and kind not in _ONCE_A_PASS and not ends_with_pass:
        return {"spread of sizes": 1.0}
    # The last batch of a shuffled pass may be smaller, or all may be as even as possible.
    usual = sizes
    most_spread = 0
    is_last_right = True
    if sample.assumed == SHUFFLED:
        usual = np.concatenate([of_pass[:-1] for of_pass in sample.sizes])
        most_spread = 1
        is_last_right = all(0 < of_pass[-1] <= max(of_pass) for of_pass in sample.sizes)
    means = np.array([sizes.mean(), usual.mean()])
    is_close = np.min(np.abs(means - expected)) <= 0.01 * expected
    has_spread = is_last_right and np.ptp(usual) <= most_spread
    judged = {
        "batch size": float(is_close),
        "spread of sizes": float(has_spread),
        "every example": rows["every example"].p_value,
    }
    if takes_once:
        judged["every example"] = float(kind == sample.assumed)
    if sample.assumed == BALLS_IN_BINS:
        # Sizes vary, and their mean is random if passes are cut, like that of Poisson batches.
        judged["spread of sizes"] = 1.0
        judged["batch size"] = max(float(is_close), rows["batch size"].p_value)
        return judged
    is_whole = abs(round(expected) - expected) <= 0.01 * expected
    if not (is_close or is_whole) and abs(usual.mean() - expected) < 1:
        del judged["batch size"]
    return judged


def _test_poisson(sample: _Sample) -> dict[str, _Row]:
    """Returns, by row of the report, the tests of Poisson batches.

    The total and the empty batches are compared with the stated rate. Other statistics are compared with the
    measured rate: a wrong rate does not fail their tests.
    """
    sizes = sample.all_sizes
    members = np.concatenate(sample.members)
    batches = len(sizes)
    size_law = scipy.stats.binom(sample.examples, sample.rate)
    odd = partial(findings.ODD_BATCHES.fill, assumed=_TITLES[sample.assumed])

    total = scipy.stats.binomtest(int(sizes.sum()), sample.examples * batches, sample.sampling_rate)
    # Sizes may be cut at a maximum or a minimum: the probabilities that all Poisson batches are within it.
    none_larger = float(np.exp(batches * size_law.logcdf(sizes.max())))
    none_smaller = float(np.exp(batches * size_law.logsf(sizes.min() - 1)))
    side = "fewer"
    edge = sizes.min()
    if none_larger < LEVEL:
        side = "more"
        edge = sizes.max()
    count = counted(int(np.sum(sizes == edge)), "has", "have")
    no_example = (1 - sample.sampling_rate) ** sample.examples
    empty = scipy.stats.binomtest(int(np.sum(sizes == 0)), batches, no_example)

    # How often each example comes: the sum of squares, scaled to a chi-square variable.
    count_law = scipy.stats.binom(batches, sample.rate)
    mean, variance, excess_kurtosis = count_law.stats("mvk")
    ratio = np.sum((members.sum(axis=0) - mean) ** 2) / variance
    freedom = 2 / (2 + excess_kurtosis)
    often_law = scipy.stats.chi2(freedom * (members.shape[1] - 1))
    # The pair of examples that comes together most often (Bonferroni).
    observed = len(sample.observed)
    floats = members.astype(np.float32)  # since products of floats are much faster
    together = np.triu(np.rint(floats.T @ floats).astype(np.int64), 1)
    most = int(together.max())
    pair = sample.observed[list(np.unravel_index(int(together.argmax()), together.shape))]
    together_law = scipy.stats.binom(batches, sample.rate**2)
    finding = findings.TOGETHER.fill(
        first=pair[0],
        second=pair[1],
        count=counted(most, "batch", "batches"),
        expected=together_law.mean(),
    )
    return {
        "batch size": _Row(total.pvalue, _name_other_rate(sample), _describe_rate(sample)),
        "spread of sizes": _Row(
            compute_fit_p_value(sizes, size_law),
            odd(check="spread of sizes", name="sizes that vary otherwise"),
            f"deviation {sizes.std():.3g}",
        ),
        "largest batch": _Row(
            min(2 * none_larger, 2 * none_smaller, 1.0),
            findings.CUT_BATCHES.fill(side=side, edge=edge, count=count),
            f"{sizes.min()} to {counted(sizes.max(), 'example')}",
        ),
        "empty batches": _Row(
            empty.pvalue, odd(check="empty batches", name="no empty batch, or too many")
        ),
        "every example": _Row(
            compute_two_sided_p_value(often_law, ratio * freedom),
            odd(check="every example", name="examples that come unequally often"),
        ),
        "together": _Row(
            min(1.0, math.comb(observed, 2) * together_law.sf(most - 1)),
            finding,
            f"of all pairs of {counted(observed, 'example')}",
        ),
    }


def _describe_mean(sample: _Sample) -> str:
    """Returns the batches' mean size in words: "31.96 examples on average"."""
    mean = f"{sample.all_sizes.mean():.4g}"
    noun = "examples"
    if mean == "1":
        noun = "example"
    return f"{mean} {noun} on average"


def _describe_rate(sample: _Sample) -> str:
    """Returns in words the batches' mean size, and the smallest error of the rate that the test shows.

    The total size of all batches is binomial: its relative standard deviation is sqrt((1 - rate) / mean). A
    two-sided normal test shows a difference with probability _SEEN if it is z(level / 2) + z(1 - _SEEN)
    standard deviations; z(q) is the upper q-quantile.
    """
    drawn = sample.expected_size * len(sample.all_sizes)
    level = LEVEL / _TESTS  # of a single test of the report, by Bonferroni
    deviations = scipy.stats.norm.isf(level / 2) + scipy.stats.norm.ppf(_SEEN)
    visible = 100 * deviations * math.sqrt((1 - sample.sampling_rate) / drawn)
    rate = f"{_describe_mean(sample)}, {sample.expected_size:.4g} expected"
    return f"{rate}; a rate {visible:.2g}% off would be seen with probability {_SEEN}"


def _name_other_rate(sample: _Sample) -> CheckFinding:
    """Returns the finding of batches at another rate, with a mistake that explains the rate.

    The mistakes are one over the loader's length, and the stated rate divided or multiplied by up to 64.
    """
    rate = sample.rate
    stated = sample.sampling_rate
    length = len(sample.sizes[0])
    mistakes = {f"It is 1 / {length} = {1 / length:.4g}, one over the loader's length.": 1 / length}
    for parts in range(2, 65):
        text = f"It is the stated rate over {parts}, of one of {parts} workers or parts of a batch."
        mistakes[text] = stated / parts
        mistakes[f"It is {parts} times the stated rate."] = parts * stated
    # A mistake's rate fits up to four standard deviations of the measured rate and a thousandth of it.
    close = (
        4 * math.sqrt(rate * (1 - rate) / (sample.examples * len(sample.all_sizes))) + 1e-3 * rate
    )
    fitting = [text for text, mistaken in mistakes.items() if abs(mistaken - rate) < close]
    return findings.ANOTHER_RATE.fill(
        mean=_describe_mean(sample),
        expected=sample.expected_size,
        rate=rate,
        stated=stated,
        why=next(iter(fitting), ""),
    )


def _check_indices(sample: _Sample, kind: str, order: OrderTest | None) -> CheckOutcome:
    """Checks that batches do not have an example twice, and do not repeat.

    If the kind takes every example once a pass, passes must not be cut into the same batches. A batch must
    not repeat if Poisson batches would almost never do so.
    """
    bugs = []
    if sample.repeating:
        count = counted(sample.repeating, "batch has", "batches have")
        bugs.append(findings.EXAMPLE_TWICE.fill(count=count))
    # Two batches agree on an example if both take it or neither does; a union bound over pairs of batches.
    batches = len(sample.all_sizes)
    log_same_choice = math.log(sample.rate**2 + (1 - sample.rate) ** 2)
    log_repeats = sample.examples * log_same_choice + math.log(batches**2 / 2)
    if kind in _ONCE_A_PASS and sample.is_unchanging:
        bugs.append(findings.SAME_BATCHES)
    elif sample.repeated and log_repeats < math.log(_CERTAIN):
        count = counted(sample.repeated, "batch has", "batches have")
        bugs.append(findings.REPEATED_BATCH.fill(count=count))
    passes = counted(len(sample.sizes), "pass", "passes")
    text = f"{counted(batches, 'batch', 'batches')} in {passes}; no batch has an example twice"
    if not sample.is_whole:
        text = f"{text}; a pass is read up to {_MAX_BATCHES:,} batches"
    figures: dict[str, Any] = {"kind": kind, "batches": batches}
    if order is not None:
        figures["order"] = order.to_dict()
    return CheckOutcome(text, findings=bugs, figures=figures)


def _name_findings(
    sample: _Sample,
    kind: str,
    rows: dict[str, _Row],
    certain: list[CheckFinding],
    rejected: dict[str, list[str]],
) -> list[CheckFinding]:
    """Returns the findings that are certain and those that explain rejected tests.

    Args:
      sample: the batches.
      kind: the kind of batches that was recognised, or empty.
      rows: the tests, by row of the report.
      certain: the findings that need no test.
      rejected: by row of the report, the names of its rejected tests.
    """
    odd = {row: test.finding for row, test in rows.items() if rejected[row]}
    if findings.SAME_BATCHES in certain:  # it explains an order that is not uniform
        odd.pop("order", None)
        odd.pop("together", None)
    explaining = ["batch size"]
    if kind in _ONCE_A_PASS:
        explaining += ["order", "together"]
    result = certain + [odd[row] for row in explaining if row in odd]

    # Batches of another kind are a bug even if no row shows it, and explain every other row. Kinds other than
    # Poisson are recognised only with certainty; batches count as Poisson if no row contradicts that.
    is_other_kind = kind not in ("", sample.assumed)
    if is_other_kind and (kind != POISSON or any(rejected.values())):
        return [*result, _name_other_kind(sample, kind)]

    result += [odd[row] for row in ("together", "largest batch") if row in odd]
    # With the kind that is assumed, the findings so far explain all other rows: sizes that are all wrong fail
    # the rows of their mean and of their spread.
    if result and kind:
        return result
    if "largest batch" in odd:  # sizes that are cut also spread less
        odd.pop("spread of sizes", None)
    return [*result, *odd.values()]


def _name_other_kind(sample: _Sample, kind: str) -> CheckFinding:
    """Returns the finding of batches of another kind than assumed, or the same in every pass."""
    dropped = ""
    size = sample.all_sizes[0]
    is_even = np.ptp(sample.all_sizes) == 0 and sample.is_whole and not sample.is_joined
    if kind == SHUFFLED and is_even and 0 < sample.examples - size * len(sample.sizes[0]) < size:
        dropped = "The last, smaller batch of a pass is dropped (drop_last)."
    remedy = ""
    if sample.assumed == POISSON:
        remedy = "sample Poisson batches, every example independently, or "
    finding = findings.ANOTHER_KIND
    if kind in _ONCE_A_PASS and sample.is_unchanging:
        finding = findings.UNCHANGING
    assumed = _TITLES[sample.assumed]
    return finding.fill(kind=_TITLES[kind], assumed=assumed, dropped=dropped, remedy=remedy)


def _recognise_kind(sample: _Sample) -> str:
    """Returns the kind of batches if they clearly are not Poisson; otherwise an empty string.

    If no observed example comes twice in a pass, batches are shuffled, or balls in bins if their sizes vary.
    If all sizes are equal, batches are fixed. Poisson batches must look like this with a probability below
    _CERTAIN.
    """
    sizes = sample.all_sizes
    batches_per_pass = count_batches(sample.sampling_rate)
    most_often = 0  # how often an example comes in a pass, at most
    log_at_most_once = 0.0  # log of the probability that no example comes twice in Poisson batches
    for of_pass in sample.members:
        members = of_pass[:batches_per_pass]  # a pass as drawn may have more batches
        most_often = max(most_often, int(members.sum(axis=0).max()))
        law = scipy.stats.binom(len(members), sample.rate)
        log_at_most_once += len(sample.observed) * float(law.logcdf(1))
    if most_often <= 1 and log_at_most_once < math.log(_CERTAIN):
        # Shuffled batches are of equal size except for the last of a pass, or differ in size by 1. Empty
        # batches do not count.
        if np.ptp(sizes[sizes > 0]) > 1 and len(np.unique(sizes)) > 2:
            return BALLS_IN_BINS
        return SHUFFLED

    # The probability that a Poisson batch has the size of the first.
    log_same_size = float(scipy.stats.binom.logpmf(sizes[0], sample.examples, sample.rate))
    if np.ptp(sizes) == 0 and len(sizes) * log_same_size < math.log(_CERTAIN):
        return FIXED
    return ""
