"""Checks whether batches are those that the accountant assumes: sizes, and which examples they have."""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.check import findings, loaders
from audit.check.accounting import POISSON, SHUFFLED, count_batches, read_sampling_rate
from audit.check.findings import CheckFinding
from audit.check.loaders import Draw, DrawnPass
from audit.check.noise import compute_fit_p_value, compute_two_sided_p_value
from audit.check.order import OrderTest, choose_neighbours, examine_order
from audit.check.report import (
    LEVEL,
    CheckOutcome,
    CheckReport,
    find_rejected_tests,
    make_report,
)
from audit.errors import require, shown
from audit.written import counted

FIXED = "fixed"
BALLS_IN_BINS = "balls_in_bins"
_TITLES = {
    POISSON: "Poisson",
    FIXED: "fixed-size",
    SHUFFLED: "shuffled",
    BALLS_IN_BINS: "balls-in-bins",
}
_ONCE_A_PASS = (SHUFFLED, BALLS_IN_BINS)  # the kinds that take every example once a pass
_MIN_PASSES = 8
_MIN_BATCHES = 320
_MIN_DRAWN = 40_000  # examples over all batches, over 1 - rate: then a rate 2.5% off is seen
_MAX_BATCHES = 2000
_MAX_EXAMPLES = 1500  # examples that are observed: their batches are recorded
_CERTAIN = 1e-9  # batches with at most this probability under Poisson sampling are of another kind
_SEEN = 0.9  # the power of the test, for the smallest visible error of the rate
_TESTS = 6  # statistical tests in a report
_CLOSE = 0.01  # the largest relative error of a rate if sizes do not vary


@dataclass(frozen=True)
class _Sample:
    """The batches that were drawn, and the accountant's assumptions.

    Attributes:
      passes: the batches by pass.
      examples: the number of examples of the data set.
      sampling_rate: the assumed probability that a batch takes an example.
      assumed: the assumed kind of batches.
    """

    passes: list[DrawnPass]
    examples: int
    sampling_rate: float
    assumed: str

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The sizes of all batches, (batches,)."""
        return np.concatenate([drawn.sizes for drawn in self.passes])

    @cached_property
    def observed(self) -> NDArray[np.int64]:
        """The indices of the observed examples."""
        return choose_neighbours(self.examples, _MAX_EXAMPLES)

    @cached_property
    def members(self) -> NDArray[np.float32]:
        """(batches, observed) 1 if a batch has an observed example; products of floats are fast."""
        rows = []
        for drawn in self.passes:
            rows += [np.isin(self.observed, batch) for batch in drawn.batches]
        return np.array(rows, np.float32)

    @property
    def is_whole(self) -> bool:
        """Whether all batches of every pass were drawn, and in passes, not one by one."""
        return all(drawn.is_whole and not drawn.is_joined for drawn in self.passes)

    @property
    def expected_size(self) -> float:
        """The mean size of a batch at the assumed sampling rate."""
        return self.examples * self.sampling_rate

    @property
    def rate(self) -> float:
        """The measured sampling rate, between 1e-12 and 1 - 1e-12: logs of it and of 1 less it are finite."""
        return float(np.clip(self.sizes.mean() / self.examples, 1e-12, 1 - 1e-12))


class _Row(NamedTuple):
    """A row of the report that tests a statistic.

    Attributes:
      p_value: the p-value of the null hypothesis.
      finding: the bug that a small p-value shows.
      measured: the measurement in words.
    """

    p_value: float
    finding: CheckFinding
    measured: str


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
    require(rate < 1, f"`sampling_rate={rate:g}`: give a number below 1")
    sample = _Sample(_draw_passes(draw_pass, examples, rate), examples, rate, assumed)
    kind = _recognise_kind(sample)
    order = None
    if kind in _ONCE_A_PASS:
        batches = max(2, count_batches(rate))
        if sample.is_whole:
            batches = max(len(drawn.batches) for drawn in sample.passes)
        order = examine_order(draw_pass, examples, batches, kind == BALLS_IN_BINS)
        if not order.is_once:
            kind = ""
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _check_sample(sample, kind, order).add_provenance(draw, stated)


def _draw_passes(draw: Draw, examples: int, rate: float) -> list[DrawnPass]:
    """Draws two passes of batches, and more until there are enough for the tests, or _MAX_BATCHES."""
    passes = []
    for drawn in loaders.draw_passes(draw, examples, count_batches(rate), _MAX_BATCHES):
        passes.append(drawn)
        sizes = np.concatenate([one.sizes for one in passes])
        # The total size over (1 - rate) decides how precisely the rate is measured.
        is_precise = sizes.sum() >= _MIN_DRAWN * (1 - sizes.mean() / examples)
        is_enough = len(passes) >= _MIN_PASSES and len(sizes) >= _MIN_BATCHES and is_precise
        if len(passes) > 1 and (is_enough or len(sizes) >= _MAX_BATCHES):
            break
    return passes


def _recognise_kind(sample: _Sample) -> str:
    """Returns the kind of batches if they clearly are not Poisson; otherwise an empty string.

    If no example comes twice in a pass, batches are shuffled, or balls in bins if their sizes vary. If all
    sizes are equal, batches are fixed. Poisson batches must look like this with a probability below _CERTAIN.
    """
    sizes = sample.sizes
    is_once = True
    log_once = 0.0  # log of the probability that no example comes twice in Poisson batches
    for drawn in sample.passes:
        batches = drawn.batches[: count_batches(sample.sampling_rate)]  # a pass may have more
        indices = np.concatenate(batches)
        is_once &= len(np.unique(indices)) == len(indices)
        log_once += sample.examples * stats.binom.logcdf(1, len(batches), sample.rate)
    if is_once and log_once < math.log(_CERTAIN):
        # Shuffled batches are of equal size except for the last of a pass, or differ in size by 1. Empty
        # batches do not count.
        if np.ptp(sizes[sizes > 0]) > 1 and len(np.unique(sizes)) > 2:
            return BALLS_IN_BINS
        return SHUFFLED

    # The probability that all Poisson batches have the size of the first.
    log_same_size = len(sizes) * stats.binom.logpmf(sizes[0], sample.examples, sample.rate)
    if np.ptp(sizes) == 0 and log_same_size < math.log(_CERTAIN):
        return FIXED
    return ""


def _check_sample(sample: _Sample, kind: str, order: OrderTest | None) -> CheckReport:
    """Runs every check of batches; returns the report.

    Args:
      sample: the batches.
      kind: the kind of batches that was recognised, or empty.
      order: the tests of a uniform order, for batches that take every example once a pass; otherwise None.
    """
    rows = {
        "batch size": _test_rate(sample),
        "spread of sizes": _test_spread(sample),
        "largest batch": _test_extremes(sample),
        "every example": _test_examples(sample),
        "together": _test_pairs(sample),
    }
    # Batches count as Poisson if they are clearly of no other kind, and no test rejects Poisson sampling.
    if not kind and not find_rejected_tests({row: test.p_value for row, test in rows.items()}):
        kind = POISSON
    if sample.assumed != POISSON:
        judged = _judge(sample, kind, rows)
        rows = {row: rows[row]._replace(p_value=float(p_value)) for row, p_value in judged.items()}
    if order is not None:
        for row, p_value in order.p_values.items():
            finding = findings.NOT_UNIFORM.fill(check=row, seen=order.seen[row])
            rows[row] = _Row(p_value, finding, f"tested over {order.passes} passes")

    outcomes = {"indices": _check_indices(sample, kind, order)}
    for row, (p_value, _, measured) in rows.items():
        outcomes[row] = CheckOutcome("", p_values={sample.assumed: p_value}, measured=measured)
    needed = ("indices", "batch size", "spread of sizes", "every example")
    text = "batches that come one by one show no whole pass: draw a pass at once"
    for row in needed:
        outcomes.setdefault(row, CheckOutcome(text, tried=False))
    return make_report("batches", outcomes, needed, partial(_name_findings, sample, kind, rows))


def _judge(sample: _Sample, kind: str, rows: dict[str, _Row]) -> dict[str, float]:
    """Returns, by row, the p-value 1 if batches of a kind other than Poisson are as assumed, otherwise 0.

    Only sizes and the kind are judged. Batches that come one by one may not show a whole pass. Then only
    their spread is judged.
    """
    sizes = sample.sizes
    largest = sizes.max()
    takes_once = sample.assumed in _ONCE_A_PASS
    ends_with_pass = np.ptp(sizes) == 0 and sample.examples % max(largest, 1) == 0
    is_joined = sample.passes[0].is_joined
    if is_joined and takes_once and kind not in _ONCE_A_PASS and not ends_with_pass:
        return {"spread of sizes": 1}
    every_example = rows["every example"].p_value
    if takes_once:
        every_example = kind == sample.assumed
    if sample.assumed == BALLS_IN_BINS:  # the total size varies like that of Poisson batches
        total = rows["batch size"].p_value
        return {"batch size": total, "spread of sizes": 1, "every example": every_example}

    # All batches have the largest size. The last of a shuffled pass may be smaller, or all may be as even as
    # possible: then the rate belongs to the mean size.
    has_spread = sizes.min() == largest
    if sample.assumed == SHUFFLED:
        usual = np.concatenate([drawn.sizes[:-1] for drawn in sample.passes])
        has_spread = sizes.min() > 0 and usual.min(initial=largest) >= largest - 1
    errors = np.abs(np.array([largest, sizes.mean()]) / sample.expected_size - 1)
    is_close = errors.min() <= _CLOSE
    return {"batch size": is_close, "spread of sizes": has_spread, "every example": every_example}


def _test_rate(sample: _Sample) -> _Row:
    """Tests the total size of all batches at the stated rate, and describes the test's power.

    The total is binomial: its relative standard deviation is sqrt((1 - rate) / mean). A two-sided normal test
    shows a difference with probability _SEEN if it is z(level / 2) + z(1 - _SEEN) standard deviations; z(q)
    is the upper q-quantile.
    """
    stated = sample.sampling_rate
    rate = sample.rate
    trials = sample.examples * len(sample.sizes)
    total = stats.binomtest(int(sample.sizes.sum()), trials, stated)
    level = LEVEL / _TESTS  # of a single test of the report, by Bonferroni
    deviations = stats.norm.isf(level / 2) + stats.norm.ppf(_SEEN)
    visible = 100 * deviations * math.sqrt((1 - stated) / (trials * stated))
    mean = f"{sample.sizes.mean():.4g} examples on average"
    power = f"a rate {visible:.2g}% off would be seen with probability {_SEEN}"

    length = len(sample.passes[0].sizes)
    parts = round(stated / rate)
    times = round(rate / stated)
    mistakes = {
        f"It is 1 / {length} = {1 / length:.4g}, one over the loader's length.": 1 / length,
        f"It is the stated rate over {parts}, of one of {parts} workers or parts of a batch.": stated
        / max(parts, 1),
        f"It is {times} times the stated rate.": times * stated,
    }
    # A mistake's rate fits up to four standard deviations of the measured rate and a thousandth of it.
    close = 4 * math.sqrt(rate * (1 - rate) / trials) + 1e-3 * rate
    why = ""
    for text, mistaken in mistakes.items():
        if not why and mistaken != stated and abs(mistaken - rate) < close:
            why = text
    finding = findings.ANOTHER_RATE.fill(
        mean=mean, expected=sample.expected_size, rate=rate, stated=stated, why=why
    )
    return _Row(total.pvalue, finding, f"{mean}, {sample.expected_size:.4g} expected; {power}")


def _test_spread(sample: _Sample) -> _Row:
    """Tests whether sizes are binomial at the measured rate: a wrong rate does not fail the test."""
    p_value = compute_fit_p_value(sample.sizes, stats.binom(sample.examples, sample.rate))
    finding = findings.ODD_SIZES.fill(assumed=_TITLES[sample.assumed])
    return _Row(p_value, finding, f"deviation {sample.sizes.std():.3g}")


def _test_extremes(sample: _Sample) -> _Row:
    """Tests whether sizes are cut or filled: whether all Poisson batches would be within the extremes."""
    sizes = sample.sizes
    law = stats.binom(sample.examples, sample.rate)
    none_larger = np.exp(len(sizes) * law.logcdf(sizes.max()))
    none_smaller = np.exp(len(sizes) * law.logsf(sizes.min() - 1))
    side = "fewer"
    edge = sizes.min()
    if none_larger < none_smaller:
        side = "more"
        edge = sizes.max()
    count = counted(np.sum(sizes == edge), "has", "have")
    finding = findings.CUT_BATCHES.fill(side=side, edge=edge, count=count)
    measured = f"{sizes.min()} to {counted(sizes.max(), 'example')}"
    return _Row(min(2 * none_larger, 2 * none_smaller, 1.0), finding, measured)


def _test_examples(sample: _Sample) -> _Row:
    """Tests whether examples come equally often: the sum of squares, scaled to a chi-square variable."""
    counts = sample.members.sum(axis=0)
    mean, variance, excess_kurtosis = stats.binom.stats(
        len(sample.sizes), sample.rate, moments="mvk"
    )
    freedom = 2 / (2 + excess_kurtosis)
    statistic = freedom * np.sum((counts - mean) ** 2) / variance
    p_value = compute_two_sided_p_value(stats.chi2(freedom * (len(counts) - 1)), statistic)
    finding = findings.UNEQUALLY_OFTEN.fill(assumed=_TITLES[sample.assumed])
    return _Row(p_value, finding, f"in {counts.min():.0f} to {counts.max():.0f} batches")


def _test_pairs(sample: _Sample) -> _Row:
    """Tests the pair of examples that comes together most often, by a union bound over all pairs."""
    together = np.triu(sample.members.T @ sample.members, 1)
    most = int(together.max())
    places = np.unravel_index(together.argmax(), together.shape)
    first, second = sample.observed[list(places)]
    law = stats.binom(len(sample.sizes), sample.rate**2)
    observed = len(together)
    p_value = min(1.0, math.comb(observed, 2) * law.sf(most - 1))
    count = counted(most, "batch", "batches")
    finding = findings.TOGETHER.fill(first=first, second=second, count=count, expected=law.mean())
    return _Row(p_value, finding, f"of all pairs of {counted(observed, 'example')}")


def _check_indices(sample: _Sample, kind: str, order: OrderTest | None) -> CheckOutcome:
    """Checks that batches do not have an example twice, and do not repeat.

    If the kind takes every example once a pass, passes must not be cut into the same batches. A batch must
    not repeat if Poisson batches would almost never do so.
    """
    batches = len(sample.sizes)
    repeating = 0
    repeated = batches - np.sum(sample.sizes == 0)
    contents: list[set[bytes]] = []  # by pass, the examples of each batch that is not empty
    for drawn in sample.passes:
        repeating += sum(len(np.unique(batch)) < len(batch) for batch in drawn.batches)
        contents.append({np.sort(batch).tobytes() for batch in drawn.batches if len(batch)})
    different = set.union(*contents)
    repeated -= len(different)
    bugs = []
    if repeating:
        count = counted(repeating, "batch has", "batches have")
        bugs.append(findings.EXAMPLE_TWICE.fill(count=count))
    # Two batches agree on an example if both take it or neither does; a union bound over pairs of batches.
    log_same_choice = math.log(sample.rate**2 + (1 - sample.rate) ** 2)
    log_repeats = sample.examples * log_same_choice + math.log(batches**2 / 2)
    # Batches of a single example are the same in every pass that takes every example.
    is_unchanging = sample.sizes.max() > 1 and all(of_pass == different for of_pass in contents)
    if kind in _ONCE_A_PASS and is_unchanging:
        bugs.append(findings.SAME_BATCHES)
    elif repeated and log_repeats < math.log(_CERTAIN):
        count = counted(repeated, "batch has", "batches have")
        bugs.append(findings.REPEATED_BATCH.fill(count=count))
    passes = counted(len(sample.passes), "pass", "passes")
    text = f"{counted(batches, 'batch', 'batches')} in {passes}; no batch has an example twice"
    if not all(drawn.is_whole for drawn in sample.passes):
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
    result = list(certain)
    explained = set()
    if findings.SAME_BATCHES in certain:
        explained |= {"order", "together"}
    if "largest batch" in odd:  # sizes that are cut also spread less
        explained.add("spread of sizes")
    # Batches of another kind are a bug even if no row shows it. Kinds other than Poisson are recognised only
    # with certainty; batches count as Poisson if no test contradicts that.
    if kind not in ("", sample.assumed) and (kind != POISSON or odd):
        explained |= {"spread of sizes", "largest batch", "every example"}
        finding = findings.ANOTHER_KIND
        if findings.SAME_BATCHES in certain:
            finding = findings.UNCHANGING
        result.append(_fill_kind(finding, sample, kind))
    return result + [finding for row, finding in odd.items() if row not in explained]


def _fill_kind(finding: CheckFinding, sample: _Sample, kind: str) -> CheckFinding:
    """Fills in the finding of batches of another kind than assumed."""
    size = sample.sizes.max()
    dropped = ""
    left_out = sample.examples - sample.passes[0].sizes.sum()
    if kind == SHUFFLED and sample.is_whole and sample.sizes.min() == size > left_out > 0:
        dropped = "The last, smaller batch of a pass is dropped (drop_last)."
    remedy = ""
    if sample.assumed == POISSON:
        remedy = "sample Poisson batches, every example independently, or "
    assumed = _TITLES[sample.assumed]
    return finding.fill(kind=_TITLES[kind], assumed=assumed, dropped=dropped, remedy=remedy)
