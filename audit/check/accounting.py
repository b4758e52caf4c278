"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

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
_MOST_COMPOSITIONS = 4  # mistakes that are accounted for on a fine grid
# The spacings of the grids of privacy losses that are tried before a claim is refuted, over epsilon.
_FIRST_GRID = 4e-4
_FINEST_GRID = 1e-5
_REFINEMENT = 4  # a grid's spacing over that of the next
_MOST_LOSSES = 10**6  # of a step on a grid


class _Bracket(NamedTuple):
    """What steps leak, to judge a claimed epsilon by.

    Attributes:
      least: a claim below it is refuted.
      most: a claim of it holds.
      text: both in words.
      undecided: why a claim between them cannot be judged, in words.
    """

    least: float
    most: float
    text: str
    undecided: str


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
        outcome = _check_shuffled(epsilon, delta, composition)
    elif batches == FIXED:
        outcome = _check_fixed(epsilon, delta, composition)
    else:
        outcome = _check_poisson(epsilon, delta, composition)
    outcomes = {"epsilon": outcome}
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


def count_most_batches(sampling_rate: float) -> int:
    """Returns the number of batches of an epoch with its last, smaller batch: 1 / sampling_rate rounded up.

    Lower bounds on what shuffled batches leak take it, since more batches hide an example better.
    """
    return math.ceil(1 / sampling_rate - 1e-6)  # a whole number may have been rounded up by as much


def _judge_claim(
    claimed: float, bracket: _Bracket, name_finding: Callable[[], CheckFinding]
) -> CheckOutcome:
    """Returns the outcome of a claimed epsilon: it holds, is refuted (with a finding), or is neither."""
    text = f"{bracket.text} (tolerance {100 * _CLOSE:g}%)"
    figures = {"claimed": claimed, "accounted": bracket.most}
    if claimed >= bracket.most * (1 - _CLOSE):  # another accountant may differ by so much
        if claimed > _LOOSE * bracket.most:  # private as claimed, but a smaller claim would do
            text = f"{text}; {claimed:.4g} is well above"
        return CheckOutcome(text, figures=figures)
    if claimed >= bracket.least:
        return CheckOutcome(f"{text}; {bracket.undecided}", tried=False, figures=figures)
    return CheckOutcome(text, findings=[name_finding()], figures=figures)


def _check_poisson(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    """Checks a claimed epsilon for Poisson batches: whether it is at least that of dp-accounting.

    A claim below it is a bug only if refining the grid of privacy losses cannot lower epsilon to the claim.
    """
    epsilon = accounting.participant_upper_bound(composition, delta)
    least = epsilon
    if claimed < epsilon * (1 - _CLOSE):
        epsilon, least = _refine_epsilon(claimed, delta, composition, epsilon)
    # Which accountant gave the bound: the exact epsilon without sampling, or the smaller one with it.
    sigma, steps, sampling_rate = composition
    accountant = "exact, without sampling"
    if sampling_rate < 1 and epsilon < accounting.epsilon_upper_bound(sigma, steps, delta):
        accountant = "PLD"
    bracket = _Bracket(
        least=least * (1 - _CLOSE),
        most=epsilon,
        text=f"dp-accounting ({accountant}) gives {at_most_digits(epsilon)} at delta {delta:g}",
        undecided=f"whether {claimed:.4g} holds cannot be told: no finer grid of losses fits",
    )

    def name_finding() -> CheckFinding:
        """Returns the finding of a claim that is too low, with the mistakes that give it."""
        return findings.CLAIM_TOO_LOW.fill(
            claimed=claimed,
            epsilon=at_most_digits(epsilon),
            delta=delta,
            why=_explain_claim(claimed, delta, composition, epsilon),
        )

    return _judge_claim(claimed, bracket, name_finding)


def _refine_epsilon(
    claimed: float, delta: float, composition: Composition, epsilon: float
) -> tuple[float, float]:
    """Refines the grid of privacy losses of Poisson batches until it shows whether epsilon exceeds a claim.

    A grid that is coarse beside the losses of a step makes epsilon too large. Where its spacing is small
    beside them, what it adds falls with the square of the spacing. Where its spacing is large, what it adds
    falls with the square root. In both cases a grid finer by the factor _REFINEMENT = 4 takes away at least
    half of what was added, so that what remains is at most the difference of the last two grids.

    Args:
      claimed: the claimed epsilon.
      delta: the claimed delta.
      composition: the steps.
      epsilon: an upper bound on epsilon, which is above the claim.

    Returns:
      The smallest upper bound on epsilon, and what epsilon is at least, judged by the last two grids. The
      claim is reached by the first, or is below the second, or lies between them if no grid decides.
    """
    sigma, _, sampling_rate = composition
    if not accounting.counts_sampling(composition):
        return epsilon, epsilon  # exact, without a grid
    # The largest loss of a step, ten deviations beyond the sum's mean.
    largest_exponent = (1 + 20 * sigma) / (2 * sigma**2)
    largest_loss = np.logaddexp(
        math.log1p(-sampling_rate), math.log(sampling_rate) + largest_exponent
    )
    grid = min(_FIRST_GRID * epsilon, accounting.COARSEST_GRID)
    finest = min(_FINEST_GRID * epsilon, grid / _REFINEMENT)  # two grids are always compared
    coarse = np.inf
    least = 0.0
    while grid >= max(finest, largest_loss / _MOST_LOSSES):
        fine = float(accounting.account_sampled(composition, grid).get_epsilon(delta))
        epsilon = min(epsilon, fine)
        if np.isfinite(coarse):
            least = min(epsilon, fine - abs(coarse - fine))
        is_undecided = least * (1 - _CLOSE) <= claimed < epsilon * (1 - _CLOSE)
        if not is_undecided:
            break
        coarse = fine
        grid /= _REFINEMENT
        finest = min(finest, _FINEST_GRID * epsilon)
    return epsilon, least


def _check_fixed(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    """Checks a claimed epsilon for fixed-size batches, for a single example that is replaced."""
    # The upper bound is the smaller of two: by RDP with sampling, and exact without.
    rdp = _compute_fixed_rdp_epsilon(composition, delta)
    whole = _compute_whole_epsilon(composition, delta)
    epsilon = min(rdp, whole)
    accountant = "RDP" if rdp < whole else "exact, without sampling"

    # The lower bound is the larger of two, each for a pair of data sets. In the first pair, the replacement
    # has gradient zero: sums then have the laws that they have in Poisson batches with and without an
    # example. In the second pair, the two gradients are opposite.
    # Rounding lowers each step's loss by up to the grid's spacing, which should be small beside epsilon over
    # the steps, but coarse enough to fit into memory.
    fine_grid = max(1e-6, 1e-2 / composition.insertions) * epsilon
    grid = max(1e-8 * epsilon, min(LEAST_GRID, fine_grid))
    replaced = [
        _compute_replaced_epsilon(composition, delta, grid, gradient) for gradient in (0.0, -1.0)
    ]
    least = min(max(replaced), epsilon)  # computed bounds may cross by rounding
    bracket = _Bracket(
        least=least,
        most=epsilon,
        text=f"dp-accounting ({accountant}, one example replaced) gives {at_most_digits(epsilon)} at delta "
        f"{delta:g}; at least {at_least_digits(least)} leaks",
        undecided=f"{claimed:.4g} is neither proven nor refuted: claim {at_most_digits(epsilon)}",
    )

    def name_finding() -> CheckFinding:
        """Returns the finding of a claim that is too low, with the mistakes that give it."""
        # The functions of the upper bound assume that a replaced example moves the sum by 2 C. With a doubled
        # sigma, they give the epsilon of a movement of C.
        doubled = composition._replace(noise_multiplier=2 * composition.noise_multiplier)
        moved_by_c = _compute_whole_epsilon(doubled, delta)
        mistakes = {
            "batches are accounted for as Poisson": accounting.participant_upper_bound(
                composition, delta
            ),
            "replacing an example is taken to move the sum by C, not 2 C": min(
                moved_by_c, _compute_fixed_rdp_epsilon(doubled, delta)
            ),
        }
        fitting = [name for name, value in mistakes.items() if abs(claimed / value - 1) < _FITS]
        return findings.FIXED_CLAIM_TOO_LOW.fill(
            claimed=claimed,
            least=at_least_digits(least),
            epsilon=at_most_digits(epsilon),
            delta=delta,
            why=_say_fitting(fitting),
        )

    outcome = _judge_claim(claimed, bracket, name_finding)
    return outcome._replace(figures={**outcome.figures, "at least": least})


def _compute_whole_epsilon(composition: Composition, delta: float) -> float:
    """Returns epsilon without amplification: one replaced example moves every step's sum by 2 C."""
    sigma, steps, _ = composition
    return accounting.epsilon_upper_bound(sigma / 2, steps, delta)


def _compute_fixed_rdp_epsilon(composition: Composition, delta: float) -> float:
    """Returns an upper bound on epsilon for batches drawn without replacement, where an example is replaced.

    It is dp-accounting's RDP by Wang et al. (2019, Theorem 27). Replacing an example moves the sum by up to
    2 C, so that the noise multiplier relative to it is sigma / 2. The size of the data set is nominal: only
    the share of it that a batch takes matters.
    """
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
    edges = np.linspace(-highest, highest, _SUM_BUCKETS)

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns the log probability that a step's noisy sum lies in each bucket.

        Args:
          shift: by how much the example moves the sum, in units of C, if it is in the batch. It is in the
            batch with probability `sampling_rate`.
        """
        absent = _compute_normal_masses(edges / sigma)
        present = _compute_normal_masses((edges - shift) / sigma)
        with np.errstate(divide="ignore"):  # log(0) = -inf for buckets of no probability
            return np.log((1 - sampling_rate) * absent + sampling_rate * present)

    log_masses_of_example = compute_log_masses(1.0)
    log_masses_of_replacement = compute_log_masses(replacement)
    return compute_least_epsilon(
        log_masses_of_example, log_masses_of_replacement, steps, delta, grid
    )


def _compute_normal_masses(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the probabilities (n + 1,) with which a standard normal variable lies in each bucket.

    The first and the last bucket are the tails below and above all edges.

    Args:
      edges: (n,) the edges between buckets, increasing.
    """
    below = np.concatenate([[0.0], special.ndtr(edges), [1.0]])
    above = np.concatenate([[1.0], special.ndtr(-edges), [0.0]])
    # Differences of probabilities near 1 would lose digits: each is taken from the nearer tail.
    is_low = np.concatenate([edges, [np.inf]]) <= 0
    return np.where(is_low, np.diff(below), -np.diff(above))


def _check_shuffled(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    """Checks a claimed epsilon for shuffled batches against a lower and an upper bound.

    The lower bound is that of the whole epochs that the steps contain. The upper bound composes all epochs,
    an unfinished one included, as if the adversary knew the order of examples. Raises InputError for less
    than an epoch.
    """
    sigma, steps, sampling_rate = composition
    batches = count_most_batches(sampling_rate)
    require(
        steps >= batches,
        f"`steps={steps}`: shuffled batches take at least an epoch, {counted(batches, 'step')}",
    )
    epochs = steps // batches
    exact = accounting.epsilon_upper_bound(sigma, epochs, delta)  # the bounds cross by rounding
    least = min(compute_shuffled_epsilon(sigma, batches, epochs, delta), exact)
    # Epochs without their last, smaller batch are shorter, so that the same steps are more epochs. By
    # rounding, 1 / rate may lie just below a whole number.
    least_batches = max(math.floor(1 / sampling_rate + 1e-6), 1)
    most_epochs = math.ceil(steps / least_batches)
    most = accounting.epsilon_upper_bound(sigma, most_epochs, delta)
    bracket = _Bracket(
        least=least,
        most=most,
        text=f"shuffled batches leak at least {at_least_digits(least)}, and at most {at_most_digits(most)} "
        f"by composition of {counted(most_epochs, 'epoch')}, {ZERO_OUT}",
        undecided=f"{claimed:.4g} is neither proven nor refuted: claim {at_most_digits(most)}; where only "
        "the last model is released, the command claim (audit.sampler_claims) may prove less",
    )

    def name_finding() -> CheckFinding:
        """Returns the finding of a claim below what shuffled batches leak."""
        return findings.SHUFFLED_LEAK.fill(
            claimed=claimed, least=at_least_digits(least), epsilon=at_most_digits(most)
        )

    outcome = _judge_claim(claimed, bracket, name_finding)
    return outcome._replace(figures={**outcome.figures, "at least": least})


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


def _explain_claim(claimed: float, delta: float, composition: Composition, accounted: float) -> str:
    """Returns a sentence on the mistakes that would give the claim; empty where there is none.

    A coarse grid of privacy losses gives a quick upper bound on a mistake's epsilon. Those nearest to the
    claim are accounted for on a fine grid.

    Args:
      claimed: the claimed epsilon.
      delta: the claimed delta.
      composition: the steps as they are.
      accounted: the epsilon that accounting gives for these steps, above the claim.
    """
    if claimed == 0:  # the differences below are relative to the claim
        return ""
    candidates = []
    for name, mistaken in _list_mistakes(composition).items():
        is_in_range = 1 <= mistaken.insertions <= accounting.MOST_SAMPLED
        if is_in_range and not np.allclose(mistaken, composition, rtol=1e-9, atol=0):
            coarse = _compute_coarse_epsilon(mistaken, delta, claimed)
            if coarse >= claimed * (1 - _FITS):
                candidates.append((coarse, name, mistaken))

    # A mistake fits if its epsilon lies within 2% of the claim, and at most half as far from the claim as the
    # right epsilon does.
    close = min(_FITS, abs(claimed / accounted - 1) / 2)
    fitting = []
    for _, name, mistaken in sorted(candidates)[:_MOST_COMPOSITIONS]:
        try:
            epsilon = accounting.participant_upper_bound(mistaken, delta)
        except InputError:  # the mistake is out of the accountant's range
            continue
        if abs(claimed / max(epsilon, 1e-12) - 1) < close:  # a mistake's epsilon may be 0
            fitting.append(name)
    return _say_fitting(fitting)


def _compute_coarse_epsilon(composition: Composition, delta: float, claimed: float) -> float:
    """Returns an upper bound on epsilon for Poisson batches, on a coarse grid of privacy losses.

    The grid is a thousandth of the claim, but coarse enough that losses of any size fit into memory.
    """
    sigma, steps, _ = composition
    unsampled = accounting.epsilon_upper_bound(sigma, steps, delta)
    grid = min(max(1e-3 * claimed, 1e-5 * unsampled), accounting.COARSEST_GRID)
    epsilon = float(accounting.account_sampled(composition, grid).get_epsilon(delta))
    return min(epsilon, unsampled)


def _say_fitting(names: list[str]) -> str:
    """Returns a sentence on the mistakes that fit a claim; empty where there is none."""
    if not names:
        return ""
    return f"It fits if {', or if '.join(names)}."


def _list_mistakes(composition: Composition) -> dict[str, Composition]:
    """Returns common mistakes in accounting for these steps, in words, each with what it accounts for."""
    sigma, steps, rate = composition
    batches = count_batches(rate)
    length = count_most_batches(rate)
    mistakes = {
        "epochs are counted as steps": Composition(sigma, max(round(steps / batches), 1), rate),
        "only one epoch is counted": Composition(sigma, batches, rate),
        "half the steps are counted": Composition(sigma, steps // 2, rate),
        # The noise's deviation sigma * C at C = 2, taken for sigma.
        "sigma is counted with C = 2": Composition(2 * sigma, steps, rate),
        "sigma is squared": Composition(sigma**2, steps, rate),
        f"the rate is 1 / len(loader) = 1 / {length} = {1 / length:.4g}": Composition(
            sigma, steps, 1 / length
        ),
    }
    for workers in (2, 4, 8):
        part = rate / workers
        name = f"the rate is of one of {workers} workers, {part:.4g}"
        mistakes[name] = Composition(sigma, steps, part)
    for parts in (2, 4):
        part = rate / parts
        name = f"each of {parts} parts of a batch is counted as a step, at rate {part:.4g}"
        mistakes[name] = Composition(sigma, steps * parts, part)
    return mistakes
