"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import findings
from audit.check.findings import CheckFinding
from audit.check.report import CheckOutcome, CheckReport, make_report
from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.brackets import (
    LEAST_GRID,
    ZERO_OUT,
    compute_least_epsilon,
    compute_shuffled_epsilon,
)
from audit.errors import InputError, number, require, shown
from audit.laws import conversions
from audit.written import at_least_digits, at_most_digits, counted

POISSON = "poisson"
SHUFFLED = "shuffled"
FIXED = "fixed"
_CLOSE = 2e-3  # the relative difference that another accountant may make
_LOOSE = 1.02  # a claim above so many times the accounted epsilon is looser than needed
_SUM_BUCKETS = 1000  # edges of the buckets into which a step's sum is sorted
_NOMINAL_EXAMPLES = 10**9  # a data set's assumed size; only the share that a batch takes matters
_FITS = 0.02  # the relative difference up to which a mistake's epsilon fits the claim
# The spacings of the grids of privacy losses that are tried before a claim is refuted, over epsilon.
_GRIDS = (4e-4, 1e-4, 2.5e-5, 6e-6)
_MOST_LOSSES = 10**6  # of a step on a grid


class _Bracket(NamedTuple):
    """What steps leak, to judge a claimed epsilon by.

    Attributes:
      least: a claim below it is refuted.
      most: a claim of it holds.
      text: both in words.
      undecided: why a claim between them cannot be judged, in words.
      finding: the bug of a claim below `least`.
      mistakes: by their names, functions that compute the epsilon which common mistakes would give.
    """

    least: float
    most: float
    text: str
    undecided: str
    finding: CheckFinding
    mistakes: Mapping[str, Callable[[], float]] = {}


def check_accounting(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int,
    sampling_rate: float = 1.0,
    batches: str = POISSON,
    examples: int | None = None,
) -> CheckReport:
    """Checks whether DP-SGD of these steps is (epsilon, delta)-private, by dp-accounting.

    Neighbouring data sets differ by one example that is added or removed. For fixed-size batches they differ
    by a single example that is replaced, which moves a clipped sum by up to 2 C, C being the clipping norm.

    Args:
      epsilon, delta: the claimed privacy.
      noise_multiplier: sigma, the noise's standard deviation over the clipping norm.
      steps: the number of all steps of training.
      sampling_rate: the probability with which each step takes each example.
      batches: the kind of batches. "poisson"; "fixed", always the same number of examples, drawn without
        replacement, for which RDP gives an upper bound and the worst known pair of data sets a lower bound;
        or "shuffled" once an epoch of 1 / sampling_rate steps, for which the composition of epochs gives an
        upper bound and a bad case a lower bound, with neighbours of another kind: the example is replaced by
        one whose gradient is zero.
      examples: the number of examples of the data set, to judge delta; None if unknown.

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: a number is out of range.

    >>> training = dict(noise_multiplier=1.1, steps=1000, sampling_rate=0.01)
    >>> audit.check_accounting(1.8, 1e-5, **training).passed
    True
    >>> audit.check_accounting(0.3, 1e-5, **training).findings[0].name
    'a claim that is too low'
    >>> audit.check_accounting(1.8, 1e-5, batches="shuffled", **training).findings[0].name
    'shuffled batches leak more than is claimed'
    """
    epsilon = number("epsilon", epsilon, float)
    delta = number("delta", delta, float)
    require(0 <= epsilon < np.inf, f"`epsilon={epsilon:g}`: give a finite number, at least 0")
    conversions.require_delta(delta)
    steps = number("steps", steps, int)
    most_steps = accounting.MOST_SAMPLED
    require(1 <= steps <= most_steps, f"`steps={steps}`: give 1 to {most_steps:,}")
    sampling_rate = number("sampling_rate", sampling_rate, float)
    noise_multiplier = read_noise_multiplier(noise_multiplier)
    require(
        0 < sampling_rate <= 1, f"`sampling_rate={sampling_rate:g}`: give more than 0, at most 1"
    )
    require_least_rate(sampling_rate)
    # Where batches are drawn, epsilon follows from sums of probabilities, and a smaller delta would be near
    # their rounding.
    least_delta = accounting.LEAST_SAMPLED_DELTA
    require(
        sampling_rate == 1 or delta >= least_delta,
        f"`delta={delta:g}`: with `sampling_rate`, give at least {least_delta:g}",
    )
    is_kind = isinstance(batches, str) and batches in (POISSON, FIXED, SHUFFLED)
    require(is_kind, f"`batches={shown(batches)}`: give poisson, fixed or shuffled")
    if examples is not None:
        examples = number("examples", examples, int)
        require(examples >= 1, f"`examples={examples}`: give at least 1")

    composition = Composition(noise_multiplier, steps, sampling_rate)
    if batches == SHUFFLED:
        bracket = _bracket_shuffled(composition, delta)
    elif batches == FIXED:
        bracket = _bracket_fixed(composition, delta)
    else:
        bracket = _bracket_poisson(epsilon, composition, delta)
    outcomes = {"epsilon": _judge_claim(epsilon, delta, bracket)}
    if examples is not None:
        outcomes["delta"] = _check_delta(delta, examples)
    # The report passes only if the check of epsilon counts as tried: if a bound decides the claim.
    report = make_report("accounting", outcomes, needed=("epsilon",))
    stated = {"epsilon": epsilon, "delta": delta, **composition._asdict(), "batches": batches}
    return report.add_provenance(None, stated)  # None: no code of the caller was run


def read_noise_multiplier(noise_multiplier: Any) -> float:
    """Returns a caller's noise multiplier; raises InputError unless it is a number from 0.05 to 10,000."""
    sigma = number("noise_multiplier", noise_multiplier, float)
    require(0.05 <= sigma <= 1e4, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    return sigma


def require_least_rate(sampling_rate: float) -> None:
    """Raises InputError for a sampling rate below that of one example of the largest data set."""
    least = 1 / _NOMINAL_EXAMPLES
    require(sampling_rate >= least, f"`sampling_rate={sampling_rate:g}`: give at least {least:g}")


def count_batches(sampling_rate: float) -> int:
    """Returns the number of batches of an epoch, 1 / sampling_rate rounded, at least 1."""
    return max(round(1 / sampling_rate), 1)


def _judge_claim(claimed: float, delta: float, bracket: _Bracket) -> CheckOutcome:
    """Returns the outcome of a claimed epsilon: it holds, is refuted (with a finding), or is neither."""
    most = bracket.most
    text = f"{bracket.text} (tolerance {100 * _CLOSE:g}%)"
    figures = {"claimed": claimed, "accounted": most, "at least": bracket.least}
    if claimed >= most * (1 - _CLOSE):  # another accountant may differ by so much
        if claimed > _LOOSE * most:  # private as claimed, but a smaller claim would do
            text = f"{text}; {claimed:.4g} is well above"
        return CheckOutcome(text, figures=figures)
    if claimed >= bracket.least:
        text = f"{text}; {claimed:.4g} {bracket.undecided}"
        return CheckOutcome(text, tried=False, figures=figures)

    # A mistake fits if its epsilon lies within 2% of the claim, and at most half as far from the claim as the
    # right epsilon does.
    close = min(_FITS, (1 - claimed / most) / 2)
    fitting = []
    for name, compute in bracket.mistakes.items():
        if abs(claimed - compute()) < close * claimed:
            fitting.append(name)
    finding = bracket.finding.fill(
        claimed=claimed,
        least=at_least_digits(bracket.least),
        epsilon=at_most_digits(most),
        delta=delta,
        why=f"It fits if {', or if '.join(fitting)}." if fitting else "",
    )
    return CheckOutcome(text, findings=[finding], figures=figures)


def _bracket_poisson(claimed: float, composition: Composition, delta: float) -> _Bracket:
    """Returns dp-accounting's epsilon for Poisson batches; the grid of losses is refined if a claim is below.

    A grid that is coarse beside the losses of a step makes epsilon too large. Where its spacing is small
    beside them, what it adds falls with the square of the spacing. Where its spacing is large, what it adds
    falls with the square root. In both cases a grid finer by the factor 4 takes away at least half of what
    was added. What remains is then at most the difference of the last two grids.
    """
    sigma, steps, rate = composition
    most = accounting.participant_upper_bound(composition, delta)
    least = most  # exact, without a grid
    if claimed < most * (1 - _CLOSE) and accounting.counts_sampling(composition):
        least = 0.0
        coarse = np.inf
        largest_loss = (1 + 20 * sigma) / (
            2 * sigma**2
        )  # of a step, ten deviations beyond the sum's mean
        for share in _GRIDS:
            grid = min(share * most, accounting.COARSEST_GRID)
            if grid < largest_loss / _MOST_LOSSES:
                break
            fine = float(accounting.account_sampled(composition, grid).get_epsilon(delta))
            most = min(most, fine)
            if np.isfinite(coarse):
                least = min(most, fine - abs(coarse - fine))
            if not least * (1 - _CLOSE) <= claimed < most * (1 - _CLOSE):
                break
            coarse = fine
    # Which accountant gave the bound: the exact epsilon without sampling, or the smaller one with it.
    accountant = "exact, without sampling"
    if rate < 1 and most < accounting.epsilon_upper_bound(sigma, steps, delta):
        accountant = "PLD"
    return _Bracket(
        least=least * (1 - _CLOSE),
        most=most,
        text=f"dp-accounting ({accountant}) gives {at_most_digits(most)} at delta {delta:g}",
        undecided="cannot be told from it: no finer grid of losses fits",
        finding=findings.CLAIM_TOO_LOW,
        mistakes=_list_mistakes(composition, claimed, delta),
    )


def _list_mistakes(
    composition: Composition, claimed: float, delta: float
) -> dict[str, Callable[[], float]]:
    """Returns common mistakes in accounting for steps, in words, each with what computes its epsilon."""
    sigma, steps, rate = composition
    batches = count_batches(rate)
    length = math.ceil(1 / rate - 1e-6)
    mistakes = {
        "epochs are counted as steps": Composition(sigma, max(round(steps / batches), 1), rate),
        "only one epoch is counted": Composition(sigma, batches, rate),
        "half the steps are counted": Composition(sigma, max(steps // 2, 1), rate),
        # The noise's deviation sigma * C at C = 2, taken for sigma.
        "sigma is counted with C = 2": Composition(2 * sigma, steps, rate),
        "sigma is squared": Composition(sigma**2, steps, rate),
        f"the rate is 1 / len(loader) = 1 / {length} = {1 / length:.4g}": Composition(
            sigma, steps, 1 / length
        ),
    }
    for workers in (2, 4, 8):
        name = f"the rate is of one of {workers} workers, {rate / workers:.4g}"
        mistakes[name] = Composition(sigma, steps, rate / workers)
    for parts in (2, 4):
        name = f"each of {parts} parts of a batch is counted as a step, at rate {rate / parts:.4g}"
        mistakes[name] = Composition(sigma, steps * parts, rate / parts)

    def compute(mistaken: Composition) -> float:
        """Returns an upper bound on epsilon, tight near the claim; infinite if none."""
        if np.allclose(mistaken, composition, rtol=1e-9, atol=0):
            return np.inf
        try:
            accounting.require_sampled(mistaken, delta)
            unsampled = accounting.epsilon_upper_bound(*mistaken[:2], delta)
        except InputError:
            return np.inf
        # The grid is coarse enough that losses of any size fit into memory.
        grid = min(max(1e-3 * claimed, 1e-5 * unsampled), accounting.COARSEST_GRID)
        epsilon = float(accounting.account_sampled(mistaken, grid).get_epsilon(delta))
        if claimed * (1 - _FITS) < epsilon < 3 * claimed:
            epsilon = accounting.participant_upper_bound(mistaken, delta)
        return min(epsilon, unsampled)

    return {name: partial(compute, mistaken) for name, mistaken in mistakes.items()}


def _bracket_fixed(composition: Composition, delta: float) -> _Bracket:
    """Returns bounds on epsilon for fixed-size batches, for a single example that is replaced."""
    sigma, steps, rate = composition
    # The upper bound is the smaller of two: by RDP with sampling, and exact without. Replacing an example
    # moves the sum by up to 2 C: the noise multiplier relative to it is sigma / 2.
    rdp = _compute_fixed_rdp_epsilon(composition, delta)
    whole = accounting.epsilon_upper_bound(sigma / 2, steps, delta)
    most = min(rdp, whole)
    accountant = "RDP" if rdp < whole else "exact, without sampling"

    # The lower bound is the larger of two, each for a pair of data sets. In the first pair, the replacement
    # has gradient zero: sums then have the laws that they have in Poisson batches with and without an
    # example. In the second pair, the two gradients are opposite.
    # Rounding lowers each step's loss by up to the grid's spacing, which should be small beside epsilon over
    # the steps, but coarse enough to fit into memory.
    fine_grid = max(1e-6, 1e-2 / steps) * most
    grid = max(1e-8 * most, min(LEAST_GRID, fine_grid))
    replaced = [_compute_replaced_epsilon(composition, delta, grid, g) for g in (0.0, -1.0)]
    least = min(max(replaced), most)  # computed bounds may cross by rounding

    def account_moved_by_c() -> float:
        """Returns the upper bound of steps that a replaced example moves by C: as if sigma were doubled."""
        doubled = composition._replace(noise_multiplier=2 * sigma)
        exact = accounting.epsilon_upper_bound(sigma, steps, delta)
        return min(exact, _compute_fixed_rdp_epsilon(doubled, delta))

    return _Bracket(
        least=least,
        most=most,
        text=f"dp-accounting ({accountant}, one example replaced) gives {at_most_digits(most)} at delta "
        f"{delta:g}; at least {at_least_digits(least)} leaks",
        undecided=f"is neither proven nor refuted: claim {at_most_digits(most)}",
        finding=findings.FIXED_CLAIM_TOO_LOW,
        mistakes={
            "batches are accounted for as Poisson": partial(
                accounting.participant_upper_bound, composition, delta
            ),
            "replacing an example is taken to move the sum by C, not 2 C": account_moved_by_c,
        },
    )


def _compute_fixed_rdp_epsilon(composition: Composition, delta: float) -> float:
    """Returns dp-accounting's epsilon of a replaced example, by RDP (Wang et al., 2019, Theorem 27)."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    sigma, steps, sampling_rate = composition
    accountant = RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        source_dataset_size=_NOMINAL_EXAMPLES,
        sample_size=max(round(sampling_rate * _NOMINAL_EXAMPLES), 1),
        event=dp_accounting.GaussianDpEvent(sigma / 2),
    )
    return float(accountant.compose(event, steps).get_epsilon(delta))


def _compute_replaced_epsilon(
    composition: Composition, delta: float, grid: float, replacement: float
) -> float:
    """Returns a lower bound on epsilon for batches drawn without replacement, where an example is replaced.

    It is the epsilon of a single pair of data sets: the example's gradient is C, its replacement's r C, and
    all others are zero. In units of C, each step then shows N(0, sigma^2) with probability 1 - sampling_rate,
    and else N(1, sigma^2) or N(r, sigma^2). Sorting the sums into buckets can only lower epsilon.

    Args:
      composition: the steps.
      delta: the delta at which epsilon is bounded.
      grid: the distance between neighbouring privacy losses.
      replacement: r, the replacement's gradient along the example's, in units of C.
    """
    sigma, steps, sampling_rate = composition
    # Nine deviations beyond the means; the two outermost buckets hold all that lies farther out.
    highest = 1 + 9 * sigma
    ends = np.r_[-np.inf, np.linspace(-highest, highest, _SUM_BUCKETS), np.inf]

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns the log probability that the sum lies in each bucket, if the example shifts it."""
        absent = conversions.mass_between(ends / sigma)
        present = conversions.mass_between((ends - shift) / sigma)
        with np.errstate(divide="ignore"):  # log(0) = -inf for buckets of no probability
            return np.log((1 - sampling_rate) * absent + sampling_rate * present)

    example = compute_log_masses(1.0)
    return compute_least_epsilon(example, compute_log_masses(replacement), steps, delta, grid)


def _bracket_shuffled(composition: Composition, delta: float) -> _Bracket:
    """Returns bounds on epsilon for shuffled batches; raises InputError for less than an epoch.

    The lower bound is that of the whole epochs that the steps contain. More batches hide an example better,
    so it counts the last, smaller batch of an epoch. The upper bound composes all epochs, an unfinished one
    included, as if the adversary knew the order of examples. Epochs without their last batch are shorter, so
    that the same steps are more epochs.
    """
    sigma, steps, sampling_rate = composition
    batches = math.ceil(
        1 / sampling_rate - 1e-6
    )  # a whole number may have been rounded up by as much
    needed = counted(batches, "step")
    require(steps >= batches, f"`steps={steps}`: shuffled batches take at least an epoch, {needed}")
    epochs = steps // batches
    exact = accounting.epsilon_upper_bound(sigma, epochs, delta)  # the bounds cross by rounding
    least = min(compute_shuffled_epsilon(sigma, batches, epochs, delta), exact)
    most_epochs = math.ceil(steps / max(math.floor(1 / sampling_rate + 1e-6), 1))
    most = accounting.epsilon_upper_bound(sigma, most_epochs, delta)
    return _Bracket(
        least=least,
        most=most,
        text=f"shuffled batches leak at least {at_least_digits(least)}, and at most {at_most_digits(most)} "
        f"by composition of {counted(most_epochs, 'epoch')}, {ZERO_OUT}",
        undecided=f"is neither proven nor refuted: claim {at_most_digits(most)}; where only the last model "
        "is released, the command claim (audit.sampler_claims) may prove less",
        finding=findings.SHUFFLED_LEAK,
    )


def _check_delta(delta: float, examples: int) -> CheckOutcome:
    """Checks that delta is below 1 / n for n examples, so that releasing an example whole is excluded.

    A delta above 0.1 / n is no bug, but the report advises a smaller one.
    """
    # The worst mechanism of this delta releases each example whole with probability delta.
    released = delta * examples
    # Well below 1 / n, at which an example may be released whole.
    advised = at_least_digits(0.1 / examples, digits=1)
    text = f"delta {delta:g} is {released:.2g} / n of {counted(examples, 'example')}"
    bugs = []
    if released >= 1 - 1e-9:  # 1 up to rounding
        finding = findings.DELTA_TOO_LARGE.fill(
            delta=delta,
            examples=counted(examples, "example"),
            released=released,
            advised=advised,
        )
        bugs.append(finding)
    elif released > 0.1:
        text += (
            f": it allows to release {released:.2g} examples whole on average; claim at {advised}"
        )
    return CheckOutcome(text, findings=bugs, figures={"delta times examples": released})
