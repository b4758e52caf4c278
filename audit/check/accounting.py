"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

from typing import Any

import numpy as np
from scipy import special

from audit.check import findings
from audit.check.report import CheckOutcome, CheckReport, make_report
from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.errors import InputError, require
from audit.laws import conversions
from audit.values import number, shown

POISSON = "poisson"
SHUFFLED = "shuffled"
_CLOSE = 2e-3  # relative: by how much another accountant may differ
_LOOSE = 1.02  # times the accounted epsilon: a claim above it is looser than needed
_BUCKETS = 400  # of the largest sum of an epoch


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

    Neighbouring data sets differ by an example that is added or removed.

    Args:
      epsilon, delta: what is claimed.
      noise_multiplier: sigma.
      steps: all steps of training.
      sampling_rate: the probability with which each step takes each example.
      batches: "poisson", or "shuffled" once an epoch of 1 / sampling_rate steps, for which only a lower bound
        on epsilon is known.
      examples: how many there are, to judge delta.

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
    is_kind = isinstance(batches, str) and batches in (POISSON, SHUFFLED)
    require(is_kind, f"`batches={shown(batches)}`: give poisson or shuffled")
    if examples is not None:
        examples = number("examples", examples, int)

    composition = Composition(noise_multiplier, steps, sampling_rate)
    outcomes = {}
    if batches == SHUFFLED:
        outcomes["epsilon"] = _check_shuffled(epsilon, delta, composition)
    else:
        outcomes["epsilon"] = _check_poisson(epsilon, delta, composition)
    if examples is not None:
        outcomes["delta"] = _check_delta(delta, examples)
    return make_report("accounting", outcomes, needed=("epsilon",))


def read_noise_multiplier(noise_multiplier: Any) -> float:
    """Returns sigma; raises InputError for what is no number, or out of range."""
    sigma = number("noise_multiplier", noise_multiplier, float)
    require(0.05 <= sigma <= 1e4, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    return sigma


def count_batches(sampling_rate: float) -> int:
    """Returns how many batches an epoch has."""
    return max(round(1 / sampling_rate), 1)


def _check_poisson(
    claimed: float,
    delta: float,
    composition: Composition,
) -> CheckOutcome:
    """Checks a claimed epsilon of Poisson batches against the accountant's."""
    epsilon = accounting.participant_upper_bound(composition, delta)
    bugs = []
    if claimed < epsilon * (1 - _CLOSE):
        finding = findings.CLAIM_TOO_LOW.fill(
            claimed=claimed,
            epsilon=epsilon,
            delta=delta,
            why=_explain_claim(claimed, delta, composition),
        )
        bugs.append(finding)
    text = f"dp-accounting (PLD) gives {epsilon:.4g} at delta {delta:g}"
    if claimed > _LOOSE * epsilon:
        text += f", which {claimed:.4g} is well above"
    return CheckOutcome(text, findings=bugs, figures={"claimed": claimed, "accounted": epsilon})


def _check_shuffled(
    claimed: float,
    delta: float,
    composition: Composition,
) -> CheckOutcome:
    """Checks a claimed epsilon of shuffled batches against what they leak at least."""
    sigma, steps, sampling_rate = composition
    batches = count_batches(sampling_rate)
    require(
        steps >= batches,
        f"`steps={steps}`: shuffled batches take at least an epoch, {batches} steps",
    )
    least = compute_shuffled_epsilon(sigma, batches, steps // batches, delta)
    bugs = []
    if claimed < least:
        bugs.append(findings.SHUFFLED_LEAK.fill(claimed=claimed, least=least))
    text = f"shuffled batches leak at least {least:.4g}; no upper bound is known"
    figures = {"claimed": claimed, "at least": least}
    return CheckOutcome(text, tried=False, findings=bugs, figures=figures)


def _check_delta(delta: float, examples: int) -> CheckOutcome:
    """Checks that delta is too small to release an example whole."""
    bugs = []
    if delta * examples > 1:
        finding = findings.DELTA_TOO_LARGE.fill(
            delta=delta,
            examples=examples,
            least=0.1 / examples,
        )
        bugs.append(finding)
    return CheckOutcome(f"delta {delta:g}", findings=bugs)


def _explain_claim(claimed: float, delta: float, composition: Composition) -> str:
    """Returns a sentence on the mistakes that would give the claim; empty where there is none."""
    sigma, steps, sampling_rate = composition
    batches = count_batches(sampling_rate)
    epochs = max(round(steps / batches), 1)
    mistakes = {
        "epochs are counted as steps": Composition(sigma, epochs, sampling_rate),
        "only one step is counted": Composition(sigma, 1, sampling_rate),
        "only one epoch is counted": Composition(sigma, min(batches, steps), sampling_rate),
        "half the steps are counted": Composition(sigma, max(steps // 2, 1), sampling_rate),
        "sigma is counted with C = 2": Composition(2 * sigma, steps, sampling_rate),
        "sigma is squared": Composition(sigma**2, steps, sampling_rate),
        "the sampling rate is squared": Composition(sigma, steps, sampling_rate**2),
        "half the sampling rate is used": Composition(sigma, steps, sampling_rate / 2),
    }
    fitting = []
    for mistake, mistaken in mistakes.items():
        try:
            epsilon = accounting.participant_upper_bound(mistaken, delta)
        except InputError:  # out of the accountant's range
            continue
        error = abs(claimed / max(epsilon, 1e-12) - 1)
        if mistaken != composition and error < 0.02:
            fitting.append(mistake)
    if not fitting:
        return ""
    return f"It fits if {' or if '.join(fitting[:2])}."


def compute_shuffled_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
) -> float:
    """Returns a lower bound on epsilon where the examples are shuffled once an epoch and cut into batches.

    Chua et al. (2024, "How private are DP-SGD implementations?", Section 4): all others' gradients are -C and
    the example's is C, so that the sum of its batch lies 2 C above the rest, or 1 C where it is zeroed out;
    the adversary looks at the largest sum. Epochs compose, since each is shuffled afresh (Chua et al., 2024,
    arXiv 2411.04205). The largest sum is sorted into buckets, and an optimistic grid keeps it a lower bound.

    Args:
      noise_multiplier: sigma.
      batches: of an epoch.
      epochs: of training.
      delta: at which epsilon is bounded.
    """
    from dp_accounting.pld import privacy_loss_distribution

    sigma = noise_multiplier
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _BUCKETS)

    def compute_log_masses(shift: float) -> dict[int, float]:
        """Returns the log probability of each bucket that is not empty, where one sum is shifted."""
        log_cdf = special.log_ndtr((edges - shift) / sigma)
        log_cdf += (batches - 1) * special.log_ndtr(edges / sigma)
        cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
        log_masses = {}
        for bucket, mass in enumerate(np.diff(cdf)):
            if mass > 0:
                log_masses[bucket] = float(np.log(mass))
        return log_masses

    inside = compute_log_masses(2.0)
    outside = compute_log_masses(1.0)
    common = sorted(inside.keys() & outside.keys())
    common_outside = {}
    common_inside = {}
    for bucket in common:
        common_outside[bucket] = outside[bucket]
        common_inside[bucket] = inside[bucket]
    privacy_loss = privacy_loss_distribution.from_two_probability_mass_functions(
        common_outside,
        common_inside,
        pessimistic_estimate=False,
    )
    with np.errstate(over="ignore"):
        epsilon = privacy_loss.self_compose(epochs).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))
