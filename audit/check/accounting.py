"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

import contextlib
from typing import Any

import numpy as np
from scipy import special

from audit.check import findings
from audit.check.report import CheckOutcome, CheckReport, concluded
from audit.errors import InputError, require
from audit.statistics import accounting, conversions
from audit.statistics.accounting import Composition
from audit.values import number, shown

POISSON, SHUFFLED = "poisson", "shuffled"
_CLOSE, _LOOSE = 2e-3, 1.02  # relative: what another accountant may differ by, and what is looser than needed
_BUCKETS = 400  # of the largest number of an epoch


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
    """Whether DP-SGD of these steps is (epsilon, delta)-private, by dp-accounting (add or remove one).

    Args:
      epsilon, delta: what is claimed.
      noise_multiplier, steps, sampling_rate: sigma; all steps; with which each takes an example.
      batches: "poisson", or "shuffled" once an epoch of 1 / sampling_rate steps, for which only a lower bound
        on epsilon is known.
      examples: how many there are, to judge delta.

    Raises InputError for numbers out of range.

    >>> training = dict(noise_multiplier=1.1, steps=1000, sampling_rate=0.01)
    >>> audit.check_accounting(1.8, 1e-5, **training).passed
    True
    >>> audit.check_accounting(0.3, 1e-5, **training).findings[0].name
    'a claim that is too low'
    >>> audit.check_accounting(1.8, 1e-5, batches="shuffled", **training).findings[0].name
    'shuffled batches leak more than is claimed'
    """
    claimed, level = number("epsilon", epsilon, float), number("delta", delta, float)
    require(0 <= claimed < np.inf, f"`epsilon={claimed:g}`: give a finite number, at least 0")
    conversions.require_delta(level)
    count, most = number("steps", steps, int), accounting.MOST_SAMPLED
    require(1 <= count <= most, f"`steps={count}`: give 1 to {most:,}")
    rate, sigma = number("sampling_rate", sampling_rate, float), noise_of(noise_multiplier)
    require(0 < rate <= 1, f"`sampling_rate={rate:g}`: give more than 0, at most 1")
    known = isinstance(batches, str) and batches in (POISSON, SHUFFLED)
    require(known, f"`batches={shown(batches)}`: give poisson or shuffled")
    size = None if examples is None else number("examples", examples, int)
    judged = _of_shuffled if batches == SHUFFLED else _of_poisson
    seen = {"epsilon": judged(claimed, level, Composition(sigma, count, rate))}
    if size is not None:
        idle = [findings.IDLE_DELTA.of(delta=level, size=size, least=0.1 / size)] if level * size > 1 else []
        seen["delta"] = CheckOutcome(f"delta {level:g}", findings=idle)
    return concluded("accounting", seen, ("epsilon",))


def noise_of(noise_multiplier: Any) -> float:
    """sigma; raises InputError for what is none, or out of range."""
    sigma = number("noise_multiplier", noise_multiplier, float)
    require(0.05 <= sigma <= 1e4, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    return sigma


def _of_poisson(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    epsilon, found = accounting.participant_upper_bound(composition, delta), []
    if claimed < epsilon * (1 - _CLOSE):
        why = _mistake(claimed, delta, composition)
        found = [findings.TOO_LOW.of(claimed=claimed, epsilon=epsilon, delta=delta, why=why)]
    loose = f", which {claimed:.4g} is well above" if claimed > _LOOSE * epsilon else ""
    said = f"dp-accounting (PLD) gives {epsilon:.4g} at delta {delta:g}{loose}"
    return CheckOutcome(said, findings=found, figures={"claimed": claimed, "accounted": epsilon})


def _of_shuffled(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    sigma, steps, rate = composition
    per = max(round(1 / rate), 1)
    require(steps >= per, f"`steps={steps}`: shuffled batches take at least an epoch, {per} steps")
    least = shuffled_epsilon(sigma, per, steps // per, delta)
    found = [findings.SHUFFLED_LEAK.of(claimed=claimed, least=least)] if claimed < least else []
    said = f"shuffled batches leak at least {least:.4g}; how much at most is not known"
    return CheckOutcome(said, False, found, {}, {"claimed": claimed, "at least": least})


def _mistake(claimed: float, delta: float, composition: Composition) -> str:
    """The mistakes that would give the claim."""
    sigma, steps, rate = composition
    per = max(round(1 / rate), 1)
    causes = {
        "epochs are counted as steps": Composition(sigma, max(round(steps / per), 1), rate),
        "only one step is counted": Composition(sigma, 1, rate),
        "only one epoch is counted": Composition(sigma, min(per, steps), rate),
        "half the steps are counted": Composition(sigma, max(steps // 2, 1), rate),
        "sigma is counted with C = 2": Composition(2 * sigma, steps, rate),
        "sigma is squared": Composition(sigma**2, steps, rate),
        "the sampling rate is squared": Composition(sigma, steps, rate**2),
        "half the sampling rate is used": Composition(sigma, steps, rate / 2),
    }
    fits = []
    for said, other in causes.items():
        with contextlib.suppress(InputError):
            epsilon = accounting.participant_upper_bound(other, delta)
            if other != composition and abs(claimed / max(epsilon, 1e-12) - 1) < 0.02:
                fits.append(said)
    return f"It fits if {' or if '.join(fits[:2])}." if fits else ""


def shuffled_epsilon(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """A lower bound on epsilon at delta where the examples are shuffled once an epoch and cut into `batches`.

    Chua et al. (2024, "How private are DP-SGD implementations?", Section 4): all others' gradients are -C and
    the example's is C, so that the batch with it is 2 C, or 1 C where it is zeroed out, above the rest; the
    adversary looks at the largest sum. Epochs compose, since each is shuffled afresh (Chua et al., 2024,
    arXiv 2411.04205); the largest sum is sorted into buckets and an optimistic grid keeps it a lower bound.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    sigma = noise_multiplier
    ends = np.linspace(-2 * sigma, 2 + sigma * (6 + np.sqrt(2 * np.log(batches))), _BUCKETS)

    def masses(shift: float) -> dict[int, float]:
        below = special.log_ndtr((ends - shift) / sigma) + (batches - 1) * special.log_ndtr(ends / sigma)
        cdf = np.concatenate([[0.0], np.exp(below), [1.0]])
        return {i: float(np.log(m)) for i, m in enumerate(np.diff(cdf)) if m > 0}

    inside, outside = masses(2.0), masses(1.0)
    common = inside.keys() & outside.keys()
    kept = [{i: world[i] for i in sorted(common)} for world in (outside, inside)]
    law = pld.from_two_probability_mass_functions(*kept, pessimistic_estimate=False)
    with np.errstate(over="ignore"):
        return float(max(0.0, law.self_compose(epochs).get_epsilon_for_delta(delta)))
