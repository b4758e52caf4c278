"""Is a claimed epsilon what accounting gives for these steps, and if not, what mistake would give it?"""

from typing import Any

import numpy as np

from audit.check.batches import POISSON, SHUFFLED, shuffled_epsilon
from audit.check.report import CheckFinding, CheckReport, row
from audit.errors import InputError, require
from audit.statistics import accounting, conversions
from audit.statistics.accounting import Composition
from audit.values import number, shown

_CLOSE, _LOOSE = 2e-3, 1.02  # relative: what another accountant may differ by, and what is looser than needed
ROWS = ("epsilon", "delta")


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
    composition = Composition(sigma, count, rate)
    found = _of_shuffled if batches == SHUFFLED else _of_poisson
    finding, seen, figures, tried = found(claimed, level, composition)
    findings = [finding] if finding else []
    said = {"epsilon": (seen, tried), "delta": (f"delta {level:g}", size is not None)}
    if size is not None and level * size > 1:
        meaning = f"delta {level:g} times {size:,} examples is above 1: releasing one example whole would do."
        findings.append(
            CheckFinding("delta", "a delta that allows anything", meaning, f"claim at {0.1 / size:.1g}")
        )
    checks = tuple(row(name, findings, *said[name]) for name in ROWS if size is not None or name != "delta")
    return CheckReport("accounting", checks, tuple(findings), ("epsilon",), {}, figures)


def _of_poisson(
    claimed: float, delta: float, composition: Composition
) -> tuple[CheckFinding | None, str, dict[str, Any], bool]:
    epsilon = accounting.participant_upper_bound(composition, delta)
    figures = {"claimed": claimed, "accounted": epsilon}
    if claimed >= epsilon * (1 - _CLOSE):
        loose = f", which {claimed:.4g} is well above" if claimed > _LOOSE * epsilon else ""
        return None, f"dp-accounting (PLD) gives {epsilon:.4g} at delta {delta:g}{loose}", figures, True
    why = _mistake(claimed, delta, composition)
    meaning = f"{claimed:.4g} is claimed, accounting gives {epsilon:.4g} at delta {delta:g}. {why}".strip()
    mend = f"claim {epsilon:.4g}, or train with more noise or fewer steps"
    return CheckFinding("epsilon", "a claim that is too low", meaning, mend), "", figures, True


def _of_shuffled(
    claimed: float, delta: float, composition: Composition
) -> tuple[CheckFinding | None, str, dict[str, Any], bool]:
    sigma, steps, rate = composition
    per = max(round(1 / rate), 1)
    epochs = steps // per
    require(epochs >= 1, f"`steps={steps}`: shuffled batches take at least an epoch, {per} steps")
    least = shuffled_epsilon(sigma, per, epochs, delta)
    figures = {"claimed": claimed, "at least": least}
    if claimed >= least:
        said = f"shuffled batches leak at least {least:.4g}; how much at most is not known"
        return None, said, figures, False
    meaning = f"{claimed:.4g} is claimed; at least {least:.4g} leaks from some data (Chua et al., 2024)."
    mend = "draw Poisson batches, or account for every epoch without amplification by sampling"
    return (
        CheckFinding("epsilon", "shuffled batches leak more than is claimed", meaning, mend),
        "",
        figures,
        True,
    )


def _mistake(claimed: float, delta: float, composition: Composition) -> str:
    """The mistakes that would give the claim."""
    sigma, steps, rate = composition
    per = max(round(1 / rate), 1)
    causes = {
        "epochs are counted as steps": composition._replace(insertions=max(round(steps / per), 1)),
        "only one step is counted": composition._replace(insertions=1),
        "only one epoch is counted": composition._replace(insertions=min(per, steps)),
        "sigma is counted with C = 2": composition._replace(noise_multiplier=2 * sigma),
        "half the steps are counted": composition._replace(insertions=max(steps // 2, 1)),
        "the sampling rate is squared": composition._replace(sampling_rate=rate**2),
        "half the sampling rate is used": composition._replace(sampling_rate=rate / 2),
        "sigma is squared": composition._replace(noise_multiplier=sigma**2),
    }
    fits = []
    for said, other in causes.items():
        try:
            epsilon = accounting.participant_upper_bound(other, delta)
        except InputError:
            continue
        if other != composition and abs(claimed / max(epsilon, 1e-12) - 1) < 0.02:
            fits.append(said)
    if steps and sigma > 0 and not fits:
        tenfold = accounting.participant_upper_bound(composition, min(10 * delta, 0.5))
        fits += ["delta is ten times as large"] if abs(claimed / tenfold - 1) < 0.02 else []
    return f"It fits if {' or if '.join(fits[:2])}." if fits else ""
