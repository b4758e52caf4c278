"""Checks whether batches have the sizes and contain the examples that the accountant assumes."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from audit.check import loaders
from audit.check.accounting import count_batches, read_sampling_rate
from audit.check.loaders import Draw, DrawnPass
from audit.check.noise import compute_two_sided_p_value
from audit.check.order import OrderTest, choose_neighbours, examine_order, examine_pairs
from audit.check.report import LEVEL, CheckFinding, CheckOutcome, CheckReport, make_report
from audit.check.trees import Integers
from audit.claims.sampler_claims import SAMPLERS
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
UNRECOGNISED = ""  # Poisson or unknown
ANOTHER_RATE = "a different sampling rate than stated"
_DRAW_EACH = "sample every example independently in every batch: do not cut, pad or skip batches"
_MAX_BATCHES = 2000
_LOG_CERTAIN = math.log(1e-9)  # less likely batches are not Poisson


class _DrawnBatches(NamedTuple):
    """The drawn batches and the assumed sampling rate.

    Attributes:
      passes: the batches by pass.
      batches: the example indices of each batch, in all passes.
      examples: the size of the data set.
      sampling_rate: the assumed probability that a batch includes an example.
    """

    passes: list[DrawnPass]
    batches: list[Integers]
    examples: int
    sampling_rate: float

    @property
    def sizes(self) -> Integers:
        """The sizes of the batches (batches,)."""
        return np.array(list(map(len, self.batches)))

    @property
    def measured_rate(self) -> float:
        """The measured sampling rate, clipped to [1e-12, 1 - 1e-12] to keep logarithms finite."""
        return float(np.clip(self.sizes.mean() / self.examples, 1e-12, 1 - 1e-12))


def check_batches(
    draw: Any,
    examples: int | None = None,
    sampling_rate: float | None = None,
    *,
    assumed: str = POISSON,
) -> CheckReport:
    """Checks whether a loader draws batches with the sampler and rate that the accountant assumes.

    Args:
      draw: a torch or Opacus loader, read through its batch sampler; a batch sampler; an iterable over
        batches of indices, such as a loader over `range(examples)`; or a function that maps a seed to a pass
        over the loader or to a single batch. A batch is an array of example indices, starting at 0. The seeds
        are 0, 1, ...; a stateful loader may ignore them.
      examples: the size of the data set; by default, that of the loader.
      sampling_rate: the assumed probability that a batch includes an example; required.
      assumed: the assumed sampler: "poisson", "fixed" (a fixed number of examples without replacement),
        "shuffled" (a new permutation of the data in each pass, cut into batches), "balls_in_bins" (each pass
        puts each example into a random batch), or "cyclic" (the same batches in every pass).

    Raises:
      InputError: `draw` does not return batches, or a number is out of range.

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
    draw_pass = loaders.join_batches(loaders.make_draw(draw), count_batches(rate))
    draw_pass = loaders.split_epochs(draw_pass, examples, _MAX_BATCHES)
    drawn = _draw_batches(draw_pass, examples, rate)
    kind = _recognise_kind(drawn)
    order = None
    if kind in (SHUFFLED, BALLS_IN_BINS):
        epochs = [loaders.count_epoch(drawn_pass, examples) for drawn_pass in drawn.passes]
        batches = max(2, *epochs)  # `examine_order` needs at least 2
        if batches == _MAX_BATCHES:  # the passes may be longer
            batches = max(batches, count_batches(rate))
        order = examine_order(draw_pass, examples, batches, sizes_vary=kind == BALLS_IN_BINS)
        if order.repeats:
            kind = CYCLIC
        if not order.is_once:  # examples repeat in further passes
            kind = UNRECOGNISED
    stated = {"examples": examples, "sampling_rate": rate, "assumed": assumed}
    return _report(drawn, kind, order, assumed).add_provenance(draw, stated)


def _draw_batches(draw: Draw, examples: int, rate: float) -> _DrawnBatches:
    """Draws at least 8 passes with enough batches for the tests, or at least 2 with _MAX_BATCHES in total.

    The tests need 320 batches, and 8 passes reveal repeats even with few examples. With 40,000 (1 - rate)
    examples in total, the relative standard error of the measured rate is 0.5%.
    """
    needed = max(320, 40_000 * (1 - rate) / (examples * rate))
    passes: list[DrawnPass] = []
    batches: list[Integers] = []
    while len(passes) < 2 or len(batches) < _MAX_BATCHES:
        passes.append(loaders.draw_pass(draw, len(passes), examples, most=_MAX_BATCHES))
        batches += passes[-1].batches
        if len(passes) >= 8 and len(batches) >= needed:
            break
    return _DrawnBatches(passes, batches, examples, sampling_rate=rate)


def _recognise_kind(drawn: _DrawnBatches) -> str:
    """Returns the kind of batches if they are clearly not Poisson; otherwise UNRECOGNISED.

    If no example occurs twice in an epoch, returns SHUFFLED, or BALLS_IN_BINS if batch sizes vary. Poisson
    batches are mistaken for another kind with probability below 1e-9.
    """
    sizes = drawn.sizes
    if _is_once_in_epochs(drawn):
        # In a shuffled pass, the sizes of nonempty batches differ by at most 1, or only the last batch is
        # smaller.
        are_equal_parts = np.ptp(sizes[sizes > 0]) <= 1
        have_two_sizes = len(np.unique(sizes)) <= 2
        return SHUFFLED if are_equal_parts or have_two_sizes else BALLS_IN_BINS

    # The probability that all Poisson batches are the same size as the first.
    log_same_size = len(sizes) * stats.binom.logpmf(sizes[0], drawn.examples, drawn.measured_rate)
    return FIXED if np.ptp(sizes) == 0 and log_same_size < _LOG_CERTAIN else UNRECOGNISED


def _is_once_in_epochs(drawn: _DrawnBatches) -> bool:
    """Returns True if no epoch repeats an example, and Poisson batches almost certainly would.

    At the measured sampling rate, the probability of this must be above 1 - 1e-9.
    """
    log_once = 0.0  # the log probability for Poisson batches
    for drawn_pass in drawn.passes:
        epoch = drawn_pass.batches[: loaders.count_epoch(drawn_pass, drawn.examples)]
        if loaders.has_repeats(np.concatenate(epoch)):
            return False
        log_once += drawn.examples * stats.binom.logcdf(1, len(epoch), drawn.measured_rate)
    return log_once < _LOG_CERTAIN


def _report(drawn: _DrawnBatches, kind: str, order: OrderTest | None, assumed: str) -> CheckReport:
    """Returns the report; `kind` is the observed sampler, and `assumed` is the accountant's."""
    distinct = drawn.batches if kind == CYCLIC else _drop_repeats(drawn)
    indices = _check_indices(drawn, repeated=len(drawn.batches) - len(distinct))
    # Repeated batches would make the other tests reject.
    drawn = drawn._replace(batches=distinct)
    rows = {
        "indices": indices,
        "batch size": _test_rate(drawn),
        "spread of sizes": _test_sizes(drawn),
        **_test_members(drawn),
    }
    # Unrecognised batches that pass all tests count as Poisson.
    if kind == UNRECOGNISED and make_report("batches", rows).passed:
        kind = POISSON
    figures: dict[str, Any] = {"kind": kind}
    if order is not None:
        figures["order"] = order._asdict()
        if not order.repeats:  # otherwise cyclic
            not_uniform = CheckFinding(
                "order",
                "an order that is not uniform",
                f"{order.seen} This order reveals more than a uniform order to an attacker who guesses an "
                "example's step.",
                "draw a new uniform permutation of all examples in every pass (no buffer, shards or groups "
                "by length), or account for any order: see any_order in claim (audit.sampler_claims)",
            )
            rows["order"] = _describe_test(
                f"tested over {order.passes} passes", order.p_value, not_uniform
            )
    if assumed != POISSON:
        _drop_poisson_tests(drawn, rows, kind, assumed)
    findings = []
    # If the kind is unrecognised, the failed Poisson tests already report bugs.
    is_reported = kind == UNRECOGNISED and assumed == POISSON
    if kind != assumed and not is_reported:
        title = _TITLES.get(kind, "other")
        why = ""
        if kind == CYCLIC:
            why = " They are the same in every pass."
            rows.pop("together", None)  # cyclic batches always draw the same examples together
        fix = f"sample {_TITLES[assumed]} batches"
        if kind in SAMPLERS:
            fix += f", or account for {title} batches: claim (audit.sampler_claims) prints their epsilon"
        findings = [
            CheckFinding(
                "every example",
                f"{title} batches, not {_TITLES[assumed]}",
                f"The accountant assumes {_TITLES[assumed]} batches, but these are {title}.{why}",
                fix,
            )
        ]
        # The kind already explains any rejections in these rows.
        for row in ("spread of sizes", "every example"):
            rows[row] = rows[row]._replace(findings=())
    return make_report("batches", rows, findings)._replace(figures=figures)


def _drop_poisson_tests(
    drawn: _DrawnBatches, rows: dict[str, CheckOutcome], kind: str, assumed: str
) -> None:
    """Removes Poisson tests from `rows` if the accountant assumes a different sampler.

    `kind` is the observed sampler. Keeps the texts of all rows except "together". Accepts a rate within 1% of
    the stated rate.
    """
    full_sizes = [drawn.sizes.mean()]
    if assumed != BALLS_IN_BINS:  # a smaller last batch lowers the mean
        full_sizes.append(drawn.sizes.max())
    rates = np.array(full_sizes) / drawn.examples
    is_close = abs(rates / drawn.sampling_rate - 1).min() <= 0.01
    # Findings of rows without p-values are always reported.
    rows["batch size"] = rows["batch size"]._replace(p_values={})
    dropped = ["spread of sizes"]
    if is_close:
        dropped.append("batch size")
    # A fixed-size sampler must also draw all examples equally often.
    if kind != FIXED or assumed != FIXED:
        dropped.append("every example")
    for row in dropped:
        rows[row] = rows[row]._replace(p_values={}, findings=())
    del rows["together"]  # for Poisson batches only


def _drop_repeats(drawn: _DrawnBatches) -> list[Integers]:
    """Returns the batches without repeats, but keeps very small or large batches, which chance may repeat.

    A batch of k of n examples is equally likely to be any of the C(n, k) subsets, where 1 / C(n, k) = (n + 1)
    B(k + 1, n - k + 1). A union bound covers all pairs of batches.
    """
    sizes = np.minimum(drawn.sizes, drawn.examples)  # in case of copies
    log_beta = special.betaln(sizes + 1, drawn.examples - sizes + 1)
    log_pairs = math.log(len(sizes) ** 2 / 2)
    is_unlikely = math.log(drawn.examples + 1) + log_beta + log_pairs < _LOG_CERTAIN
    distinct = {}
    for i, batch in enumerate(drawn.batches):
        distinct[np.sort(batch).tobytes() if is_unlikely[i] else i] = batch
    return list(distinct.values())


def _describe_test(text: str, p_value: float, finding: CheckFinding) -> CheckOutcome:
    """Returns the outcome of a statistical test, with the bug to report if the test rejects."""
    return CheckOutcome(text, findings=[finding], p_values={POISSON: p_value})


def _test_rate(drawn: _DrawnBatches) -> CheckOutcome:
    """Tests whether the total size is consistent with the stated rate, and describes the test's power.

    The total is binomial, with relative standard deviation sqrt((1 - rate) / mean). For upper normal
    quantiles z, a two-sided test detects a difference of z(level / 2) + z(0.1) standard deviations with
    probability 0.9.
    """
    stated = drawn.sampling_rate
    rate = drawn.measured_rate
    trials = drawn.examples * len(drawn.sizes)
    total = stats.binomtest(int(drawn.sizes.sum()), trials, stated)
    level = LEVEL / 4  # Bonferroni correction for the four tests of Poisson batches
    deviations = stats.norm.isf(level / 2) + stats.norm.isf(0.1)
    visible = 100 * deviations * math.sqrt((1 - stated) / (trials * stated))
    expected = drawn.examples * stated
    mean = f"{drawn.sizes.mean():.4g} examples on average"

    length = len(drawn.passes[0].batches)
    parts = round(stated / rate)
    # A mistake fits if its rate differs from the measured rate by less than four standard errors plus 0.1%.
    close = 4 * math.sqrt(rate * (1 - rate) / trials) + 1e-3 * rate
    why = ""
    if 1 < parts < 100 and abs(stated / parts - rate) < close:
        why = f" It is the stated rate divided by {parts}, as for one of {parts} workers or microbatches."
    elif abs(1 / length - rate) < close:
        why = f" It is 1 / {length} = {1 / length:.4g}, one over the loader's length."
    finding = CheckFinding(
        "batch size",
        ANOTHER_RATE,
        f"Batches have {mean} instead of {expected:.4g}: a rate of {rate:.4g}, not {stated:.4g}."
        f"{why}",
        f"give the accountant the rate {rate:.4g}, or draw batches at the stated rate",
    )
    power = f"a rate {visible:.2g}% off would be detected with probability 0.9"
    return _describe_test(f"{mean}, {expected:.4g} expected; {power}", total.pvalue, finding)


def _test_sizes(drawn: _DrawnBatches) -> CheckOutcome:
    """Tests whether sizes have a binomial variance, and whether batches are cut or padded to one size.

    Both tests use the measured rate, so a wrong rate does not cause a rejection. The factors of 2 are
    Bonferroni corrections.
    """
    sizes = drawn.sizes
    law = stats.binom(drawn.examples, drawn.measured_rate)
    # The probabilities that no Poisson batch exceeds the largest batch, and that none is below the smallest.
    none_larger = law.cdf(sizes.max()) ** len(sizes)
    none_smaller = law.sf(sizes.min() - 1) ** len(sizes)
    cut_p_value = 2 * min(none_larger, none_smaller)
    name = "sizes that do not vary like Poisson batches"
    meaning = "The accountant assumes Poisson batches."
    fix = _DRAW_EACH
    if cut_p_value < LEVEL:
        side = "fewer"
        edge = sizes.min()
        if none_larger < none_smaller:
            side = "more"
            edge = sizes.max()
        name = "batches cut or filled to a size"
        meaning = (
            f"No batch has {side} than {edge} examples, and {np.sum(sizes == edge)} of {len(sizes)} batches "
            f"have exactly {edge}. Some Poisson batches would have {side} than that."
        )
        fix = "do not cut, fill or skip batches, or account for truncated Poisson batches"
    finding = CheckFinding("spread of sizes", name, meaning, fix)
    p_value = min(1.0, 2 * min(cut_p_value, _test_spread(sizes, law)))
    text = f"{sizes.min()} to {sizes.max()} examples, deviation {sizes.std():.3g}"
    return _describe_test(text, p_value, finding)


def _test_spread(counts: Any, law: Any) -> float:
    """Tests whether counts have the variance of `law`, a scipy.stats distribution; returns the p-value.

    Approximates the scaled sum of squares by a chi-square variable with the same variance, which depends on
    the kurtosis. Estimating the rate of `law` costs one degree of freedom.
    """
    mean, variance, excess_kurtosis = law.stats("mvk")
    freedom_per_count = 2 / (2 + excess_kurtosis)
    statistic = freedom_per_count * np.sum((counts - mean) ** 2) / variance
    return float(
        compute_two_sided_p_value(stats.chi2(freedom_per_count * (len(counts) - 1)), statistic)
    )


def _test_counts(counts: Any, law: Any) -> float:
    """Tests whether the spread and the extremes of counts are consistent with `law`; returns the p-value."""
    extreme = len(counts) * min(law.cdf(counts.min()), law.sf(counts.max() - 1))
    # Bonferroni corrections, which add up to 1.
    return min(1.0, 4 * extreme, 2 * _test_spread(counts, law))


def _test_members(drawn: _DrawnBatches) -> dict[str, CheckOutcome]:
    """Tests whether up to 1,500 examples are drawn equally often and independently of each other.

    Uses neighbouring examples, which loaders often draw together.
    """
    observed = choose_neighbours(drawn.examples)
    # (batches, observed) 1 if the batch contains the example; floats, for fast matrix products.
    members = np.array([np.isin(observed, batch) for batch in drawn.batches], np.float32)
    counts = members.sum(axis=0)
    batches = len(members)
    unequal = CheckFinding(
        "every example",
        "examples that are drawn unequally often",
        "The accountant assumes Poisson batches.",
        _DRAW_EACH,
    )
    rate = drawn.measured_rate
    # A Poisson batch contains a given pair with probability rate^2.
    pairs = examine_pairs(members.T @ members, observed, rate**2, groups="batches", count=batches)
    together = CheckFinding(
        "together",
        "examples that are drawn together",
        pairs.sentence,
        "sample every example independently: look for groups, buckets or blocks that are drawn as a unit",
    )
    return {
        "every example": _describe_test(
            f"in {counts.min():.0f} to {counts.max():.0f} batches",
            _test_counts(counts, stats.binom(batches, rate)),
            unequal,
        ),
        "together": _describe_test(
            f"of all pairs of {len(observed):,} examples", pairs.p_value, together
        ),
    }


def _check_indices(drawn: _DrawnBatches, repeated: int) -> CheckOutcome:
    """Checks that no batch contains an example twice, and that no batch repeats another.

    `repeated` is the number of batches that repeat others, except if chance or a cyclic sampler explains it.
    """
    batches = len(drawn.batches)
    text = f"{batches:,} batches in {len(drawn.passes)} passes"
    if not all(drawn_pass.is_whole for drawn_pass in drawn.passes):
        text += f"; at most {_MAX_BATCHES:,} batches are read per pass"
    bugs = []
    with_copies = sum(map(loaders.has_repeats, drawn.batches))
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
    if repeated:
        bugs.append(
            CheckFinding(
                "indices",
                "a repeated batch",
                f"{repeated} of {batches} batches contain exactly the same examples as another batch.",
                "draw every batch anew: look for padding, a cache, or a repeated final batch",
            )
        )
    return CheckOutcome(text, findings=bugs)
