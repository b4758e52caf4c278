"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

import contextlib

import numpy as np

from audit.check import findings
from audit.check.batches import POISSON, SHUFFLED, shuffled_epsilon
from audit.check.report import CheckOutcome, CheckReport, concluded
from audit.errors import InputError, require
from audit.statistics import accounting, conversions
from audit.statistics.accounting import Composition
from audit.values import number, shown

_CLOSE, _LOOSE = 2e-3, 1.02  # relative: what another accountant may differ by, and what is looser than needed


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
    count = number("steps", steps, int)
    require(1 <= count <= accounting.MOST_SAMPLED, f"`steps={count}`: give 1 to {accounting.MOST_SAMPLED:,}")
    rate, sigma = (
        number("sampling_rate", sampling_rate, float),
        number("noise_multiplier", noise_multiplier, float),
    )
    require(0 < rate <= 1, f"`sampling_rate={rate:g}`: give more than 0, at most 1")
    require(0.05 <= sigma <= 1e4, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    known = isinstance(batches, str) and batches in (POISSON, SHUFFLED)
    require(known, f"`batches={shown(batches)}`: give poisson or shuffled")
    size = None if examples is None else number("examples", examples, int)
    judged = _of_shuffled if batches == SHUFFLED else _of_poisson
    seen = {"epsilon": judged(claimed, level, Composition(sigma, count, rate))}
    if size is not None:
        idle = [findings.IDLE_DELTA.of(delta=level, size=size, least=0.1 / size)] if level * size > 1 else []
        seen["delta"] = CheckOutcome(f"delta {level:g}", findings=idle)
    return concluded("accounting", seen, ("epsilon",))


def _of_poisson(claimed: float, delta: float, composition: Composition) -> CheckOutcome:
    epsilon = accounting.participant_upper_bound(composition, delta)
    figures, found = {"claimed": claimed, "accounted": epsilon}, []
    if claimed < epsilon * (1 - _CLOSE):
        why = _mistake(claimed, delta, composition)
        found = [findings.TOO_LOW.of(claimed=claimed, epsilon=epsilon, delta=delta, why=why)]
    loose = f", which {claimed:.4g} is well above" if claimed > _LOOSE * epsilon else ""
    return CheckOutcome(
        f"dp-accounting (PLD) gives {epsilon:.4g} at delta {delta:g}{loose}", True, found, {}, figures
    )


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
        "epochs are counted as steps": (Composition(sigma, max(round(steps / per), 1), rate), delta),
        "only one step is counted": (Composition(sigma, 1, rate), delta),
        "only one epoch is counted": (Composition(sigma, min(per, steps), rate), delta),
        "sigma is counted with C = 2": (Composition(2 * sigma, steps, rate), delta),
        "half the steps are counted": (Composition(sigma, max(steps // 2, 1), rate), delta),
        "the sampling rate is squared": (Composition(sigma, steps, rate**2), delta),
        "half the sampling rate is used": (Composition(sigma, steps, rate / 2), delta),
        "sigma is squared": (Composition(sigma**2, steps, rate), delta),
        "delta is ten times as large": (composition, min(10 * delta, 0.5)),
    }
    fits = []
    for said, (other, level) in causes.items():
        with contextlib.suppress(InputError):
            epsilon = accounting.participant_upper_bound(other, level)
            if (other, level) != (composition, delta) and abs(claimed / max(epsilon, 1e-12) - 1) < 0.02:
                fits.append(said)
    return f"It fits if {' or if '.join(fits[:2])}." if fits else ""
