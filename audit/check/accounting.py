"""Compares a claimed epsilon with an accountant's, and names mistakes that would explain a difference."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from audit.check.report import CheckFinding, CheckOutcome, CheckReport, make_report
from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.sampler_claims import read_noise_multiplier
from audit.errors import InputError, number, require, whole_number
from audit.laws import conversions
from audit.written import at_least_digits, at_most_digits, counted

_RELATIVE_TOLERANCE = 2e-3  # differences expected between accountants
_TOLERANCE = 1e-3
_LEAST_RATE = 1e-9  # one example per batch, in the largest allowed data set
_GRID = 5e-6  # the relative spacing of a fine grid of privacy losses


def check_accounting(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int,
    sampling_rate: float = 1.0,
    examples: int | None = None,
) -> CheckReport:
    """Compares a claimed epsilon of DP-SGD on Poisson batches with dp-accounting's.

    Neighbouring data sets differ by adding or removing one example. Accepts claims that are too low by up to
    0.2% plus 0.001, a typical difference between accountants. For batches that are not Poisson, see
    `audit.sampler_claims`.

    Args:
      epsilon, delta: the claimed privacy.
      noise_multiplier: sigma, the standard deviation of the noise divided by the clipping norm.
      steps: the number of training steps.
      sampling_rate: the probability that a step uses an example.
      examples: the size of the data set; if given, delta is also checked.

    Raises:
      InputError: a number is out of range.

    >>> training = dict(noise_multiplier=1.1, steps=1000, sampling_rate=0.01)
    >>> audit.check_accounting(1.8, 1e-5, **training).passed
    True
    >>> audit.check_accounting(0.3, 1e-5, **training).findings[0].name
    'a claim that is too low'
    """
    epsilon = number("epsilon", epsilon, float)
    delta = number("delta", delta, float)
    require(0 <= epsilon < np.inf, f"`epsilon={epsilon:g}`: give a finite number, at least 0")
    conversions.require_delta(delta)
    steps = whole_number("steps", steps, 1, accounting.MOST_SAMPLED)
    sigma = read_noise_multiplier(noise_multiplier)
    composition = Composition(sigma, steps, read_sampling_rate(sampling_rate))
    accounting.require_sampled(composition, delta)
    outcomes = {"epsilon": _check_epsilon(epsilon, composition, delta)}
    if examples is not None:
        examples = number("examples", examples, int)
        require(examples >= 1, f"`examples={examples}`: give at least 1")
        outcomes["delta"] = _check_delta(delta, examples)
    stated = {"epsilon": epsilon, "delta": delta, **composition._asdict()}
    # None, because the check does not run the caller's code.
    return make_report("accounting", outcomes).add_provenance(None, stated)


def read_sampling_rate(sampling_rate: Any) -> float:
    """Returns a sampling rate; raises InputError unless it is a number from 1e-9 to 1."""
    rate = number("sampling_rate", sampling_rate, float)
    require(_LEAST_RATE <= rate <= 1, f"`sampling_rate={rate:g}`: give {_LEAST_RATE:g} to 1")
    return rate


def count_batches(sampling_rate: float) -> int:
    """Returns the number of batches per epoch: 1 / sampling_rate, rounded."""
    return round(1 / sampling_rate)


def _check_epsilon(claimed: float, composition: Composition, delta: float) -> CheckOutcome:
    """Checks that a claimed epsilon is not below dp-accounting's by more than the tolerance."""
    accounted = accounting.participant_upper_bound(composition, delta)
    # Only sampling needs a grid of privacy losses.
    if _is_too_low(claimed, accounted) and accounting.counts_sampling(composition):
        accounted = min(accounted, _account_finely(composition, accounted, delta))
    epsilon = at_most_digits(accounted)
    tolerance = f"{100 * _RELATIVE_TOLERANCE:g}% plus {_TOLERANCE:g}"
    outcome = CheckOutcome(
        f"dp-accounting gives {epsilon} at delta {delta:g} (tolerance {tolerance})",
        figures={"accounted": accounted},
    )
    if not _is_too_low(claimed, accounted):
        return outcome
    # A mistake explains the claim if the two epsilons differ by less than 0.5% or rounding, and by less than
    # half of the claim's relative shortfall.
    close = min(0.005 * max(claimed, 1), (1 - claimed / accounted) / 2 * claimed)
    fitting = [
        name
        for name, mistaken in _account_mistakes(composition, delta)
        if abs(claimed - mistaken) < close
    ]
    why = f" It fits if {', or if '.join(fitting)}." if fitting else ""
    finding = CheckFinding(
        "epsilon",
        "a claim that is too low",
        f"The claim is {claimed:.4g}, but accounting gives {epsilon} at delta {delta:g}.{why}",
        f"claim {epsilon}, or train with more noise or fewer steps",
    )
    return outcome._replace(findings=[finding])


def _is_too_low(claimed: float, accounted: float) -> bool:
    """Returns True if a claimed epsilon is lower than an accountant's by more than the tolerance."""
    return claimed < accounted * (1 - _RELATIVE_TOLERANCE) - _TOLERANCE


def _account_finely(composition: Composition, coarse: float, delta: float) -> float:
    """Recomputes `coarse`, an epsilon from dp-accounting, on a finer grid of privacy losses.

    Rounding privacy losses up to a coarse grid makes epsilon too large.
    """
    # The spacing is small relative to epsilon, but at least 5e-6 / sigma. The largest privacy losses of a
    # step are about 10 / sigma, so the grid has at most about 2 million values.
    grid = _GRID * max(coarse, 1 / composition.noise_multiplier)
    accountant = accounting.account_sampled(composition, min(grid, accounting.COARSEST_GRID))
    return float(accountant.get_epsilon(delta))


def _account_mistakes(composition: Composition, delta: float) -> Iterator[tuple[str, float]]:
    """Yields descriptions of common accounting mistakes, each with its epsilon."""
    sigma, steps, rate = composition
    batches = count_batches(rate)
    # len(loader), which includes an incomplete last batch; 1e-6 allows for rounding
    length = math.ceil(1 / rate - 1e-6)
    mistakes = {
        "epochs are counted as steps": (sigma, max(round(steps / batches), 1), rate),
        "only one epoch is counted": (sigma, batches, rate),
        # The noise's standard deviation, sigma C, is mistaken for sigma.
        "sigma is computed with C = 2": (2 * sigma, steps, rate),
        "sigma is squared": (sigma**2, steps, rate),
        f"the rate is 1 / len(loader) = {1 / length:.4g}": (sigma, steps, 1 / length),
    }
    for count in (2, 4, 8):
        part = rate / count
        mistakes[f"the rate is that of one of {count} workers, {part:.4g}"] = (sigma, steps, part)
        pieces = f"each of {count} parts of a batch is counted as a step, at rate {part:.4g}"
        mistakes[pieces] = (sigma, steps * count, part)
    for name, numbers in mistakes.items():
        with contextlib.suppress(InputError):  # a mistaken number may be out of range
            yield name, accounting.participant_upper_bound(Composition(*numbers), delta)


def _check_delta(delta: float, examples: int) -> CheckOutcome:
    """Checks that delta is below 1 / n for n examples, and recommends 0.1 / n.

    An (epsilon, delta)-private mechanism may release each example with probability delta.
    """
    advised = at_least_digits(0.1 / examples, digits=1)
    seen = f"delta {delta:g} is {delta * examples:.3g} / n for {counted(examples, 'example')}"
    finding = CheckFinding(
        "delta",
        "a delta that allows anything",
        f"{seen}: publishing one whole example would satisfy it.",
        f"claim at {advised}",
    )
    is_too_large = delta * examples >= 1 - 1e-9  # at least 1, up to rounding
    text = f"{seen}; {advised} or less is advised"
    return CheckOutcome(text, findings=[finding] if is_too_large else [])
