"""Checks whether batches have the sizes and contain the examples that the accountant assumes."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import loaders
from audit.check.accounting import count_batches, read_sampling_rate
from audit.check.loaders import Draw
from audit.check.noise import compute_two_sided_p_value
from audit.check.order import OrderTest, choose_neighbours, examine_order, examine_pairs
from audit.check.report import CheckFinding, CheckOutcome, CheckReport, make_report
from audit.check.trees import Integers
from audit.errors import require, shown

POISSON = "poisson"
FIXED = "fixed"
SHUFFLED = "shuffled"
BALLS_IN_BINS = "balls_in_bins"
CYCLIC = "cyclic"  # the same batches in every pass
_TITLES = {
    POISSON: "Poisson",
    FIXED: "fixed-size",
    SHUFFLED: "shuffled",
    BALLS_IN_BINS: "balls-in-bins",
    CYCLIC: "cyclic",
}
UNRECOGNISED = ""  # Poisson batches, or none of the other kinds
ANOTHER_RATE = "a different sampling rate than stated"  # the name of a finding
_SAMPLE = "sample every example independently in every batch: do not cut, pad or skip batches"
_MAX_BATCHES = 2000
_LOG_CERTAIN = math.log(1e-9)  # batches less likely than this are not Poisson


class _DrawnBatches(NamedTuple):
    """The drawn batches and the assumed sampling rate.

    Attributes:
      passes: the batches of each pass, as sorted indices of examples.
      batches: the batches of all passes.
      sizes: (batches,) their sizes.
      examples: the size of the data set.
      sampling_rate: the assumed probability that a batch includes an example.
      measured_rate: the measured probability, clipped to [1e-12, 1 - 1e-12] so its logarithms are finite.
      epoch_length: the largest number of batches in a pass; if a pass was not read to the end, 1 /
        sampling_rate.
    """

    passes: list[list[Integers]]
    batches: list[Integers]
    sizes: Integers
    examples: int
    sampling_rate: float
    measured_rate: float
    epoch_length: int


def check_batches(
    draw: Any,
    examples: int | None = None,
    sampling_rate: float | None = None,
    *,
    assumed: str = POISSON,
) -> CheckReport:
    """Checks whether a loader draws batches with the sampler and rate that the accountant assumes.

    Args:
      draw: a torch or Opacus loader whose batch sampler yields the indices; a batch sampler; an iterable over
        batches of indices, such as a loader on `range(examples)`; or a function from a seed to the batches of
        one pass over the loader, such as a list of one batch. A batch is an array of example indices, which
        start at 0. The seeds are 0, 1, ...; a stateful loader may ignore them.
      examples: the size of the data set; by default, that of the loader.
      sampling_rate: the assumed probability that a batch includes an example.
      assumed: the assumed sampler: "poisson", "fixed" (a fixed number of examples without replacement),
        "shuffled" (a new permutation of the data in each pass, cut into batches), "balls_in_bins" (each
        example is put into a random batch of each pass), or "cyclic" (the same batches in every pass).

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
    require(
        isinstance(assumed, str) and assumed in _TITLES,
        f"`assumed={shown(assumed)}`: give {', '.join(_TITLES)}",
    )
    examples = loaders.count_examples(draw, examples)
    rate = read_sampling_rate(sampling_rate)
    require(rate < 1, f"`sampling_rate={rate:g}`: give a number below 1")
    draw_pass = loaders.make_draw(draw)
    drawn = _draw_batches(draw_pass, examples, rate)
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _report(draw_pass, drawn, assumed).add_provenance(draw, stated)


def _draw_batches(draw: Draw, examples: int, rate: float) -> _DrawnBatches:
    """Draws at least 8 passes and 320 batches, and enough to measure the rate to 0.5%.

    The rate has this relative standard error if the total size, which is binomial, is 40,000 (1 - rate).
    """
    needed = min(max(320, 40_000 * (1 - rate) / (examples * rate)), _MAX_BATCHES)
    passes: list[list[Integers]] = []
    batches: list[Integers] = []
    epoch_length = 0
    while len(passes) < 8 or len(batches) < needed:
        drawn = loaders.draw_pass(draw, len(passes), examples, most=_MAX_BATCHES // 4)
        passes.append(drawn.batches)
        batches += drawn.batches
        # If we did not read the whole pass, the rate gives its length.
        length = len(drawn.batches) if drawn.is_whole else count_batches(rate)
        epoch_length = max(epoch_length, length)
    sizes = np.array(list(map(len, batches)))
    measured = float(np.clip(sizes.mean() / examples, 1e-12, 1 - 1e-12))
    return _DrawnBatches(passes, batches, sizes, examples, rate, measured, epoch_length)


def _recognise_kind(drawn: _DrawnBatches) -> str:
    """Returns the kind of batches if they are clearly not Poisson; otherwise UNRECOGNISED.

    If no example occurs twice in an epoch, the batches are shuffled, or balls in bins if their sizes change
    between passes. If all sizes are equal, the batches have a fixed size. The probability that Poisson
    batches look like this is below 1e-9.
    """
    epochs = [batches[: drawn.epoch_length] for batches in drawn.passes]
    is_once = not any(_is_repeated(np.concatenate(epoch)) for epoch in epochs)
    # log of the probability that Poisson batches use no example twice in an epoch
    log_of_epochs = stats.binom.logcdf(1, list(map(len, epochs)), drawn.measured_rate)
    if is_once and drawn.examples * np.sum(log_of_epochs) < _LOG_CERTAIN:
        sizes_of_passes = {tuple(map(len, batches)) for batches in drawn.passes}
        return SHUFFLED if len(sizes_of_passes) == 1 else BALLS_IN_BINS

    sizes = drawn.sizes
    # The probability that all Poisson batches are the same size as the first.
    log_same_size = len(sizes) * stats.binom.logpmf(sizes[0], drawn.examples, drawn.measured_rate)
    return FIXED if np.ptp(sizes) == 0 and log_same_size < _LOG_CERTAIN else UNRECOGNISED


def _is_repeated(indices: Integers) -> bool:
    """Returns True if any index occurs twice."""
    return len(np.unique(indices)) < len(indices)


def _report(draw: Draw, drawn: _DrawnBatches, assumed: str) -> CheckReport:
    """Checks the batches `drawn` by `draw` for an accountant that assumes batches of the kind `assumed`."""
    kind = _recognise_kind(drawn)
    rows = {
        "indices": _check_indices(drawn),
        "batch size": _test_rate(drawn),
        "spread of sizes": _test_sizes(drawn),
        **_test_members(drawn),
    }
    # Batches count as Poisson if no other kind was recognised and no test rejects Poisson sampling.
    if kind == UNRECOGNISED and make_report("batches", rows).passed:
        kind = POISSON
    figures: dict[str, Any] = {}
    if kind in (SHUFFLED, BALLS_IN_BINS):
        order = examine_order(draw, drawn.examples, drawn.epoch_length, kind == BALLS_IN_BINS)
        figures["order"] = order._asdict()
        if order.repeats:
            kind = CYCLIC
            rows["indices"] = rows["indices"]._replace(findings=())  # batches must repeat
        else:
            rows["order"] = _describe_order(order)
    if assumed != POISSON or kind not in (POISSON, UNRECOGNISED):
        _drop_poisson_tests(drawn, rows, kind, assumed)
    findings = []
    # If the kind is unrecognised, the rejected tests of Poisson sampling are the findings.
    if kind != assumed and (kind != UNRECOGNISED or assumed != POISSON):
        findings = [_describe_kind(kind, assumed)]
    return make_report("batches", rows, findings)._replace(figures=figures | {"kind": kind})


def _describe_kind(kind: str, assumed: str) -> CheckFinding:
    """Returns the bug that batches are of a different kind than the accountant assumes."""
    title = _TITLES.get(kind, "other")
    return CheckFinding(
        "every example",
        f"{title} batches, not {_TITLES[assumed]}",
        f"The accountant assumes {_TITLES[assumed]} batches, but these are {title}.",
        f"sample {_TITLES[assumed]} batches, or account for {title} batches: claim "
        "(audit.sampler_claims) prints their epsilon",
    )


def _describe_order(order: OrderTest) -> CheckOutcome:
    """Returns the outcome of the tests of a uniform order."""
    finding = CheckFinding(
        "order",
        "an order that is not uniform",
        f"{order.seen} This order reveals more than a uniform order to an attacker who guesses an example's "
        "step.",
        "draw a new uniform permutation of all examples in every pass (no buffer, shards or groups by "
        "length), or account for any order: see any_order in claim (audit.sampler_claims)",
    )
    return _describe_test(f"tested over {order.passes} passes", order.p_value, finding)


def _drop_poisson_tests(
    drawn: _DrawnBatches, rows: dict[str, CheckOutcome], kind: str, assumed: str
) -> None:
    """Removes the tests of Poisson sampling from `rows`, if batches are not or need not be Poisson.

    A row `CheckOutcome(text)` passes: it has only measurements, without tests or findings.
    """
    # If only the last batch of a pass is smaller, the largest size gives the rate; otherwise, the mean does.
    rates = np.array([drawn.sizes.max(), drawn.sizes.mean()]) / drawn.examples
    if np.min(np.abs(rates / drawn.sampling_rate - 1)) <= 0.01:
        rows["batch size"] = CheckOutcome(rows["batch size"].text)
    elif kind != BALLS_IN_BINS:
        # Sizes are not random (the test remains for balls in bins). Without p-values, the wrong rate is a
        # certain finding.
        rows["batch size"] = rows["batch size"]._replace(p_values={})
    rows["spread of sizes"] = CheckOutcome(rows["spread of sizes"].text)
    if not kind == assumed == FIXED:  # fixed-size batches must use all examples equally often
        rows["every example"] = CheckOutcome(rows["every example"].text)
    del rows["together"]


def _describe_test(text: str, p_value: float, finding: CheckFinding) -> CheckOutcome:
    """Returns the outcome of a statistical test, with the bug to report if the test rejects."""
    return CheckOutcome(text, findings=[finding], p_values={POISSON: p_value})


def _test_rate(drawn: _DrawnBatches) -> CheckOutcome:
    """Tests whether the total size is consistent with the stated rate, and describes the test's power.

    The total is binomial, with relative standard deviation sqrt((1 - rate) / (trials * rate)). The test at
    level LEVEL / 4, for four tests of Poisson batches, detects a difference of 5 standard deviations with
    probability 0.9.
    """
    stated = drawn.sampling_rate
    rate = drawn.measured_rate
    trials = drawn.examples * len(drawn.sizes)
    p_value = stats.binomtest(int(drawn.sizes.sum()), trials, stated).pvalue
    visible = 100 * 5 * math.sqrt((1 - stated) / (trials * stated))
    mean = f"{drawn.sizes.mean():.4g} examples on average"
    expected = f"{drawn.examples * stated:.4g}"

    finding = CheckFinding(
        "batch size",
        ANOTHER_RATE,
        f"Batches have {mean} instead of the stated {expected}: a rate of {rate:.4g}, not {stated:.4g}.",
        f"give the accountant the rate {rate:.4g}, or draw batches at the stated rate. Is the rate one over "
        "the loader's length, or that of one worker?",
    )
    power = f"a rate {visible:.2g}% off would be detected with probability 0.9"
    return _describe_test(f"{mean}, {expected} expected; {power}", p_value, finding)


def _test_sizes(drawn: _DrawnBatches) -> CheckOutcome:
    """Tests whether sizes vary like binomial numbers, and whether batches are cut or padded to one size.

    The tests use the measured rate, so a wrong rate does not make them fail.
    """
    sizes = drawn.sizes
    smallest = sizes.min()
    largest = sizes.max()
    law = stats.binom(drawn.examples, drawn.measured_rate)
    # The probabilities that no Poisson batch is larger than the largest, or smaller than the smallest.
    none_larger = law.cdf(largest) ** len(sizes)
    none_smaller = law.sf(smallest - 1) ** len(sizes)
    finding = CheckFinding(
        "spread of sizes",
        "sizes that do not vary like Poisson batches",
        f"{np.sum(sizes == smallest)} batches have exactly {smallest} examples and none has fewer, "
        f"{np.sum(sizes == largest)} have exactly {largest} and none has more.",
        "do not cut, fill or skip batches, or account for truncated Poisson batches",
    )
    # The factor is for three tests.
    p_value = min(1.0, 3 * min(none_larger, none_smaller, _test_spread(sizes, law)))
    text = f"{smallest} to {largest} examples, deviation {sizes.std():.3g}"
    return _describe_test(text, p_value, finding)


def _test_spread(counts: Any, law: Any) -> float:
    """Returns the p-value of a test whether counts vary like draws from `law`, a scipy.stats distribution.

    The law's mean must be estimated from the counts, which costs one degree of freedom.
    """
    mean, variance, excess_kurtosis = law.stats("mvk")
    # The square of a standardized count has mean 1 and variance 2 + excess_kurtosis. Multiplied by `freedom`,
    # it has the mean and variance of a chi-square variable with `freedom` degrees of freedom.
    freedom = 2 / (2 + excess_kurtosis)
    statistic = freedom * np.sum((counts - mean) ** 2) / variance
    return float(compute_two_sided_p_value(stats.chi2(freedom * (len(counts) - 1)), statistic))


def _test_members(drawn: _DrawnBatches) -> dict[str, CheckOutcome]:
    """Tests whether about 1,500 examples are drawn equally often and independently of each other."""
    observed = choose_neighbours(drawn.examples)
    # (batches, observed) 1 if a batch contains the observed example; floats, because their matrix products
    # are fast.
    members = np.array([np.isin(observed, batch) for batch in drawn.batches], np.float32)
    counts = members.sum(axis=0)
    batches = len(members)
    unequal = CheckFinding(
        "every example",
        "examples that are drawn unequally often",
        "The accountant assumes Poisson batches.",
        _SAMPLE,
    )
    pairs = examine_pairs(members.T @ members, observed, drawn.measured_rate**2, batches)
    together = CheckFinding(
        "together",
        "examples that are drawn together",
        pairs.sentence,
        "sample every example independently: look for groups, buckets or blocks that are drawn as one",
    )
    return {
        "every example": _describe_test(
            f"in {counts.min():.0f} to {counts.max():.0f} batches",
            _test_spread(counts, stats.binom(batches, drawn.measured_rate)),
            unequal,
        ),
        "together": _describe_test(
            f"of all pairs of {len(observed):,} examples", pairs.p_value, together
        ),
    }


def _check_indices(drawn: _DrawnBatches) -> CheckOutcome:
    """Checks that no batch contains an example twice, and that no batch repeats another.

    A repeated batch is a bug only if it is very unlikely for Poisson batches.
    """
    batches = len(drawn.batches)
    text = f"{batches:,} batches in {len(drawn.passes)} passes, at most {_MAX_BATCHES // 4} of each"
    bugs = []
    with_copies = sum(map(_is_repeated, drawn.batches))
    if with_copies:
        bugs.append(
            CheckFinding(
                "indices",
                "an example twice in a batch",
                f"{with_copies} of {batches} batches contain an example twice. It then counts twice, so "
                "the sensitivity is 2 C or more.",
                "draw without replacement, or clip the sum of an example's copies",
            )
        )
    contents = [batch.tobytes() for batch in drawn.batches if len(batch)]
    repeated = len(contents) - len(set(contents))
    # The probability p^2 + (1 - p)^2 that both or neither of two batches contain an example is at most
    # exp(-2 p (1 - p)). A union bound covers all pairs.
    rate = drawn.measured_rate
    log_repeats = 2 * (math.log(batches) - drawn.examples * rate * (1 - rate))
    if repeated and log_repeats < _LOG_CERTAIN:
        bugs.append(
            CheckFinding(
                "indices",
                "a repeated batch",
                f"{repeated} of {batches} batches have exactly the same examples as another batch.",
                "draw every batch anew: look for padding, a cache, or a repeated final batch",
            )
        )
    return CheckOutcome(text, findings=bugs)
