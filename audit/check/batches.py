"""Checks whether batches are those that the accountant assumes: sizes, and which examples they have."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import findings, loaders
from audit.check.accounting import count_batches, read_sampling_rate
from audit.check.findings import CheckFinding
from audit.check.loaders import Draw, DrawnPass
from audit.check.noise import compute_fit_p_value, compute_two_sided_p_value
from audit.check.order import OrderTest, choose_neighbours, examine_order, examine_pairs
from audit.check.report import (
    LEVEL,
    CheckOutcome,
    CheckReport,
    find_rejected_tests,
    make_report,
)
from audit.check.trees import Integers
from audit.errors import require, shown

POISSON = "poisson"
FIXED = "fixed"
SHUFFLED = "shuffled"
BALLS_IN_BINS = "balls_in_bins"
CYCLIC = "cyclic"
_TITLES = {
    POISSON: "Poisson",
    FIXED: "fixed-size",
    SHUFFLED: "shuffled",
    BALLS_IN_BINS: "balls-in-bins",
    CYCLIC: "cyclic",
}
UNRECOGNISED = ""  # batches of no kind above
_ONCE_A_PASS = (SHUFFLED, BALLS_IN_BINS, CYCLIC)  # the kinds that take every example once a pass
_MIN_PASSES = 8
_MIN_BATCHES = 320
_MIN_DRAWN = 40_000  # examples over all batches, over 1 - rate: then a rate 2.5% off is seen
_MAX_BATCHES = 2000
_CERTAIN = 1e-9  # batches with at most this probability under Poisson sampling are of another kind
_SEEN = 0.9  # the power of the test, for the smallest visible error of the rate
_TESTS = 4  # statistical tests of Poisson batches
_CLOSE = 0.01  # the largest relative error of a rate if sizes do not vary


class _Sample(NamedTuple):
    """The batches that were drawn, and the accountant's assumptions.

    Attributes:
      passes: the batches by pass.
      batches: the indices of each batch's examples, over all passes.
      sizes: (batches,) their sizes.
      examples: the number of examples of the data set.
      sampling_rate: the assumed probability that a batch takes an example.
      rate: the measured sampling rate, between 1e-12 and 1 - 1e-12: logs of it and of 1 less it are finite.
      assumed: the assumed kind of batches.
    """

    passes: list[DrawnPass]
    batches: list[Integers]
    sizes: Integers
    examples: int
    sampling_rate: float
    rate: float
    assumed: str


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
        sampler; or an iterable over batches of indices. A loader on `range(examples)` yields indices.
      examples: the number of examples of the data set; by default that of the loader's data set.
      sampling_rate: the probability that a batch takes an example, as the accountant assumes.
      assumed: the kind of batches that the accountant assumes: "poisson", "fixed" (always the same number of
        examples, without replacement), "shuffled" (a permutation of the data in each pass, cut into batches),
        "balls_in_bins" (every example in a single batch of each pass, drawn independently), or "cyclic" (the
        same batches in every pass).

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
    examples = loaders.count_examples(draw, examples)
    rate = read_sampling_rate(sampling_rate)
    require(rate < 1, f"`sampling_rate={rate:g}`: give a number below 1")
    draw_pass = loaders.join_batches(loaders.make_draw(draw), count_batches(rate))
    sample = _draw_sample(draw_pass, examples, rate, assumed)
    kind = _recognise_kind(sample)
    order = None
    if kind in _ONCE_A_PASS:
        batches = max(2, count_batches(rate))
        if all(drawn.is_whole for drawn in sample.passes):
            batches = max(len(drawn.batches) for drawn in sample.passes)
        order = examine_order(draw_pass, examples, batches, kind == BALLS_IN_BINS)
        if order.repeats:
            kind = CYCLIC
        if not order.is_once:
            kind = UNRECOGNISED
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _check_sample(sample, kind, order).add_provenance(draw, stated)


def _draw_sample(draw: Draw, examples: int, rate: float, assumed: str) -> _Sample:
    """Draws two passes of batches, and more until there are enough for the tests, or _MAX_BATCHES."""
    # The total size over (1 - rate) decides how precisely the rate is measured.
    needed = max(_MIN_BATCHES, _MIN_DRAWN * (1 - rate) / (examples * rate))
    passes: list[DrawnPass] = []
    batches: list[Integers] = []
    while len(passes) < 2 or len(batches) < _MAX_BATCHES:
        drawn = loaders.draw_pass(draw, len(passes), examples, _MAX_BATCHES)
        passes.append(drawn)
        batches += drawn.batches
        if len(passes) >= _MIN_PASSES and len(batches) >= needed:
            break
    sizes = np.array(list(map(len, batches)))
    measured = float(np.clip(sizes.mean() / examples, 1e-12, 1 - 1e-12))
    return _Sample(passes, batches, sizes, examples, rate, measured, assumed)


def _recognise_kind(sample: _Sample) -> str:
    """Returns the kind of batches if they clearly are not Poisson, otherwise UNRECOGNISED.

    If no example comes twice in a pass, batches are shuffled, or balls in bins if their sizes vary. If all
    sizes are equal, batches are fixed. Poisson batches must look like this with a probability below _CERTAIN.
    """
    sizes = sample.sizes
    is_once = True
    log_once = (
        0.0  # log of the probability that no example comes twice in a pass of Poisson batches
    )
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
    return UNRECOGNISED


def _check_sample(sample: _Sample, kind: str, order: OrderTest | None) -> CheckReport:
    """Runs every check of batches; returns the report.

    Args:
      sample: the batches.
      kind: the kind of batches that was recognised.
      order: the tests of a uniform order, for batches that take every example once a pass; otherwise None.
    """
    assumed = sample.assumed
    rows = {
        "batch size": _test_rate(sample),
        "spread of sizes": _test_sizes(sample),
        **_test_members(sample),
    }
    # Batches count as Poisson if they are clearly of no other kind, and no test rejects Poisson sampling.
    p_values = {row: test.p_value for row, test in rows.items()}
    if kind == UNRECOGNISED and not find_rejected_tests(p_values):
        kind = POISSON
    if assumed != POISSON:
        p_values = _judge(sample, kind, rows["every example"].p_value)
    elif kind == CYCLIC:  # which explains it
        del p_values["together"]
    figures: dict[str, Any] = {"kind": kind, "batches": len(sample.batches)}
    if order is not None:
        figures["order"] = order._asdict() | {"p_value": order.p_value}
        if not order.repeats:
            for row, p_value in order.p_values.items():
                finding = findings.NOT_UNIFORM.fill(check=row, seen=order.seen[row])
                rows[row] = _Row(p_value, finding, f"tested over {order.passes} passes")
            p_values |= order.p_values

    def explain(rejected: dict[str, list[str]]) -> Iterable[CheckFinding]:
        """Returns the findings that explain rejected tests."""
        odd = {row: rows[row].finding for row in p_values if rejected[row]}
        # Batches of another kind are a bug even if no row shows it. Kinds other than Poisson are recognised
        # only with certainty; batches count as Poisson if no test contradicts that.
        if kind not in (UNRECOGNISED, assumed) and (kind != POISSON or odd):
            why = "They are the same in every pass." if kind == CYCLIC else ""
            finding = findings.ANOTHER_KIND.fill(
                kind=_TITLES[kind], assumed=_TITLES[assumed], why=why
            )
            odd.pop("spread of sizes", None)
            odd["every example"] = finding
        return odd.values()

    outcomes = {"indices": _check_indices(sample, kind, figures)}
    for row, p_value in p_values.items():
        measured = rows[row].measured
        outcomes[row] = CheckOutcome("", p_values={assumed: p_value}, measured=measured)
    return make_report("batches", outcomes, explain)


def _judge(sample: _Sample, kind: str, equally_often: float) -> dict[str, float]:
    """Returns, by row, the p-value 1 if batches of a kind other than Poisson are as assumed, otherwise 0.

    Only sizes and the kind are judged; of fixed-size batches also the p-value that examples come equally
    often.
    """
    sizes = sample.sizes
    judged = {"spread of sizes": 1.0, "every example": float(kind == sample.assumed)}
    if sample.assumed == FIXED:
        has_spread = float(np.ptp(sizes) == 0)
        judged = {"spread of sizes": has_spread, "every example": equally_often}
    # The largest size is that of all batches but the last of a pass. Or all are as even as possible, or vary:
    # then the rate belongs to the mean size.
    full_size = sizes.mean() if sample.assumed == BALLS_IN_BINS else sizes.max()
    rates = np.array([full_size, sizes.mean()]) / sample.examples
    is_close = np.min(np.abs(rates / sample.sampling_rate - 1)) <= _CLOSE
    return {"batch size": float(is_close)} | judged


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
    expected = sample.examples * stated
    mean = f"{sample.sizes.mean():.4g} examples on average"
    power = f"a rate {visible:.2g}% off would be seen with probability {_SEEN}"

    length = len(sample.passes[0].batches)
    parts = max(round(stated / rate), 1)
    # A mistake's rate fits up to four standard deviations of the measured rate and a thousandth of it.
    close = 4 * math.sqrt(rate * (1 - rate) / trials) + 1e-3 * rate
    why = ""
    if abs(1 / length - rate) < close:
        why = f"It is 1 / {length} = {1 / length:.4g}, one over the loader's length."
    elif parts > 1 and abs(stated / parts - rate) < close:
        why = f"It is the stated rate over {parts}, of one of {parts} workers or parts of a batch."
    finding = findings.ANOTHER_RATE.fill(
        mean=mean, expected=expected, rate=rate, stated=stated, why=why
    )
    return _Row(total.pvalue, finding, f"{mean}, {expected:.4g} expected; {power}")


def _test_sizes(sample: _Sample) -> _Row:
    """Tests whether sizes are binomial at the measured rate, and not cut or filled at the extremes.

    A wrong rate does not fail the test. The p-value of an extreme is the probability that all Poisson batches
    are within it.
    """
    sizes = sample.sizes
    law = stats.binom(sample.examples, sample.rate)
    none_larger = law.cdf(sizes.max()) ** len(sizes)
    none_smaller = law.sf(sizes.min() - 1) ** len(sizes)
    cut = 2 * min(none_larger, none_smaller)
    finding = findings.ODD_SIZES.fill(assumed=_TITLES[sample.assumed])
    if cut < LEVEL:
        side = "fewer"
        edge = sizes.min()
        if none_larger < none_smaller:
            side = "more"
            edge = sizes.max()
        count = f"{np.sum(sizes == edge)} of {len(sizes)} batches have"
        finding = findings.CUT_BATCHES.fill(side=side, edge=edge, count=count)
    p_value = min(1.0, 2 * min(cut, compute_fit_p_value(sizes, law)))
    extremes = f"{sizes.min()} to {sizes.max()} examples"
    return _Row(p_value, finding, f"{extremes}, deviation {sizes.std():.3g}")


def _test_members(sample: _Sample) -> dict[str, _Row]:
    """Tests whether examples come equally often and independently, by the batches of some examples.

    How often they come is tested by the sum of squares, scaled to a chi-square variable. The pair that comes
    together most often is tested by a union bound over all pairs.
    """
    observed = choose_neighbours(sample.examples)
    # (batches, observed) 1 if a batch has an observed example; products of floats are fast.
    members = np.array([np.isin(observed, batch) for batch in sample.batches], np.float32)
    counts = members.sum(axis=0)
    batches = len(members)
    mean, variance, excess_kurtosis = stats.binom.stats(batches, sample.rate, moments="mvk")
    freedom = 2 / (2 + excess_kurtosis)
    statistic = freedom * np.sum((counts - mean) ** 2) / variance
    p_value = compute_two_sided_p_value(stats.chi2(freedom * (len(counts) - 1)), statistic)
    unequal = findings.UNEQUALLY_OFTEN.fill(assumed=_TITLES[sample.assumed])
    seen = f"in {counts.min():.0f} to {counts.max():.0f} batches"

    pairs = examine_pairs(members.T @ members, observed, sample.rate**2, "batches", batches)
    together = findings.TOGETHER.fill(seen=pairs.sentence)
    all_pairs = f"of all pairs of {len(observed):,} examples"
    return {
        "every example": _Row(p_value, unequal, seen),
        "together": _Row(pairs.p_value, together, all_pairs),
    }


def _check_indices(sample: _Sample, kind: str, figures: dict[str, Any]) -> CheckOutcome:
    """Checks that batches do not have an example twice, and do not repeat.

    A batch must not repeat if Poisson batches would almost never do so.
    """
    batches = len(sample.batches)
    repeating = sum(len(np.unique(batch)) < len(batch) for batch in sample.batches)
    contents = [np.sort(batch).tobytes() for batch in sample.batches if len(batch)]
    repeated = len(contents) - len(set(contents))
    bugs = []
    if repeating:
        count = f"{repeating} of {batches} batches have"
        bugs.append(findings.EXAMPLE_TWICE.fill(count=count))
    # Two batches agree on an example if both take it or neither does; a union bound over pairs of batches.
    log_same_choice = math.log(sample.rate**2 + (1 - sample.rate) ** 2)
    log_repeats = sample.examples * log_same_choice + math.log(batches**2 / 2)
    if repeated and kind != CYCLIC and log_repeats < math.log(_CERTAIN):
        bugs.append(findings.REPEATED_BATCH.fill(count=f"{repeated} of {batches} batches have"))
    text = f"{batches:,} batches in {len(sample.passes)} passes; no batch has an example twice"
    if not all(drawn.is_whole for drawn in sample.passes):
        text = f"{text}; a pass is read up to {_MAX_BATCHES:,} batches"
    return CheckOutcome(text, findings=bugs, figures=figures)
