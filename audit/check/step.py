"""Checks a DP-SGD step by running it with the same seed on neighbouring batches, and with many seeds.

The related Re:cord-play (Cebere et al., 2026, arXiv 2602.17454) records the inputs of the noise functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import causes, noise
from audit.check.measured import Measured, measure_step
from audit.check.movements import MAX_TOLERANCE, TriedExamples
from audit.check.probe import RefusedError, Step, StepProbe, StepSettings
from audit.check.report import LEVEL, CheckFinding, CheckOutcome, CheckReport, make_report
from audit.errors import InputError, whole_number
from audit.written import counted

# The checks that must run for a step to pass.
NEEDED = ("replay", "signal", "sensitivity", "separation", "noise")
ROWS = (*NEEDED, *noise.OTHER_ROWS)


class StepOptions(NamedTuple):
    """The options of `check_step`."""

    seeds: int | None = None
    tell: Callable[[str], object] = str  # by default, shows no progress


def check_step(
    step: Step,
    params: Any,
    batch: Any,
    *,
    clipping_norm: float,
    noise_multiplier: float,
    learning_rate: float,
    batch_size: float,
    **options: Any,
) -> CheckReport:
    """Checks, without training a model, whether a DP-SGD step clips, adds noise and averages correctly.

    Args:
      step: a function (params, batch, seed) -> params that takes a step of plain SGD, or the first step of
        SGD with momentum. The integer `seed` determines all randomness. For other optimizers, return the
        private gradient, and set learning_rate=1.
      params: the parameters before the step, as arrays or tensors in dicts, lists or tuples. The step
        receives copies.
      batch: arrays or tensors in the same form as `params`, with one row per example and labels last. The
        check adds copies of the first 16 examples, and versions of the first and the last example with scaled
        features.
      clipping_norm, noise_multiplier, learning_rate: the stated C, sigma and eta; the noise on the sum of
        clipped gradients has standard deviation sigma C.
      batch_size: B, the constant by which the sum is divided; for Poisson sampling, the expected batch size.
      **options: `seeds`, the number of noise draws, by default as many as the tests need, up to 20 seconds'
        worth; and `tell`, a function that receives progress lines.

    Raises:
      InputError: an argument has the wrong form or is out of range, or `step` fails on the given batch.
      TypeError: an option is unknown.

    >>> import numpy as np
    >>> def step(w, batch, seed):  # the loss x @ w of an example x has gradient x
    ...     clipped = batch / np.maximum(1, np.linalg.norm(batch, axis=1, keepdims=True))
    ...     noise = 1.1 * np.random.default_rng(seed).normal(size=8)
    ...     return w - 0.5 * (clipped.sum(axis=0) + noise) / 32
    >>> batch = np.random.default_rng(0).normal(size=(32, 8))
    >>> stated = dict(clipping_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, batch_size=32)
    >>> audit.check_step(step, np.zeros(8), batch, **stated).passed
    True
    >>> audit.check_step(step, np.zeros(8), batch, **stated | {"noise_multiplier": 2.2}).findings[0].check
    'noise'
    """
    seeds, tell = StepOptions(**options)
    if seeds is not None:
        seeds = whole_number("seeds", seeds, 4, 10**5)
    stated = StepSettings(clipping_norm, noise_multiplier, learning_rate, batch_size).read()
    try:
        with np.errstate(all="ignore"):  # the checks report NaN and infinity
            report = _check_probe(StepProbe(step, params, batch, stated), seeds, tell)
    except RefusedError as error:  # caused by the step's own error
        raise InputError(f"`step` failed on the given batch: {error}") from error.__cause__
    return report.add_provenance(step, stated._asdict())


def _check_probe(probe: StepProbe, seeds: int | None, tell: Callable[[str], object]) -> CheckReport:
    """Measures a step, describes and explains the measurements, and returns the report."""
    outcomes = dict.fromkeys(ROWS, _untried("the step is not finite"))
    if not np.isfinite(probe.base).all():
        outcomes["replay"] = CheckOutcome("not finite")
        finding = CheckFinding(
            "replay",
            causes.NOT_FINITE,
            "The step gives NaN or infinity with the given batch.",
            causes.KEEP_FINITE,
        )
        return make_report("step", outcomes, [finding], NEEDED)
    m = measure_step(probe, seeds, tell)
    # These outcomes remain for checks that cannot run.
    outcomes = dict.fromkeys(ROWS, _untried(m.noise_obstacle))
    replayed = "same seed, same step"
    if not m.replays:
        replayed = f"two calls with the same seed differ by {m.replay.norm:.3g} eta C / B"
    outcomes["replay"] = CheckOutcome(replayed)
    for row in ("signal", "sensitivity", "separation"):
        outcomes[row] = _untried(m.movement_obstacle)
    # Even with an obstacle, movements show which layers respond to examples.
    if m.replays and m.tried.is_any_moved:
        outcomes["signal"] = _describe_signal(m.tried)
    if not m.movement_obstacle:
        outcomes["sensitivity"] = _describe_sensitivity(m.tried)
        outcomes["separation"] = _describe_separation(m)
    if not m.noise_obstacle:
        outcomes |= _describe_noise(m)
    return make_report("step", outcomes, causes.explain(m), NEEDED)


def _untried(reason: str, **figures: Any) -> CheckOutcome:
    """Returns the outcome of a check that could not run."""
    return CheckOutcome(reason, tried=False, figures=figures)


def _describe_signal(tried: TriedExamples) -> CheckOutcome:
    """Reports whether every trained layer is moved by at least one example.

    An unmoved layer is not necessarily a bug, so it is not a finding.
    """
    names = np.array(tried.probe.layer_names)
    is_trained = tried.probe.is_layer_trained
    # Layer norms may be NaN if a step returns NaN or infinity. `fmax` ignores NaN unless all norms are NaN.
    peaks = np.fmax.reduce([movement.layer_norms for movement in tried.described.values()])
    dead = names[is_trained & ~(peaks > 0)]  # includes NaN
    if len(dead):
        return _untried(
            f"no example moves {', '.join(dead[:6])}, only noise does: start from trained parameters (an "
            "adapter's factor has no gradient if the other factor is zero), look for a detached layer, or "
            "freeze layers that never have a gradient, such as the attention key bias"
        )
    smallest = np.argmin(np.where(is_trained, peaks, np.inf))
    return CheckOutcome(
        f"every trainable tensor responds to an example (smallest: {names[smallest]}, "
        f"{peaks[smallest]:.2g} C); trained: {is_trained.sum()} of {len(names)}"
    )


def _describe_sensitivity(tried: TriedExamples) -> CheckOutcome:
    """Describes how far examples move the result, in units of eta C / B, and whether clipping limits this."""
    norms = {name: movement.norm for name, movement in tried.described.items()}
    if not tried.violations:  # without a finding, the row passes only if clipping was observed
        if tried.tolerance > MAX_TOLERANCE:
            return _describe_rounding(tried.tolerance)
        if not tried.is_clipping_seen:
            return _untried(
                f"the largest movement was {tried.max_norm:.2g} C, so clipping was not seen: state a "
                "smaller clipping norm, use trained parameters, leave frozen layers out of the norm, or put "
                "an extreme example first in the batch",
                movements=norms,
            )
    text = f"largest observed change {max(norms.values()):.4g} eta C / B (tolerance {tried.tolerance:.2g})"
    if tried.by_row:
        text += f", also when replacing each of {len(tried.by_row)} rows"
    return CheckOutcome(text, figures={"movements": norms})


def _describe_rounding(tolerance: float) -> CheckOutcome:
    """Returns the outcome of a check that rounding makes impossible."""
    return _untried(
        f"rounding hides the effect (tolerance {tolerance:.2g} C): use float64 or a larger learning rate, or "
        "return the private gradient in float32 with learning_rate=1"
    )


def _describe_separation(m: Measured) -> CheckOutcome:
    """Reports whether the joint movement of two parts of a batch is the sum of their separate movements."""
    measured = m.interaction
    if isinstance(measured, str):  # why it was not measured
        if len(m.probe.rows[0]) == 1 and m.tried.replaces_rows:  # cannot mix examples
            return CheckOutcome("the step accepts only batches of one row")
        return _untried(measured)
    if not np.isfinite(measured.norm):
        return _untried("the step is not finite")
    # MAX_TOLERANCE applies to two steps, but an interaction combines four: with both parts, each part and no
    # part. A difference above its tolerance is always a bug.
    if measured.tolerance > 2 * MAX_TOLERANCE and not m.interacts:
        return _describe_rounding(measured.tolerance)
    text = (
        "the joint effect of two parts of a batch differs from the sum of their effects by "
        f"{measured.norm:.2g} C (tolerance {measured.tolerance:.2g})"
    )
    if m.tried.replaces_rows:
        text += f"; rows were replaced, since {m.tried.refusal}"
    return CheckOutcome(text)


def _describe_noise(m: Measured) -> dict[str, CheckOutcome]:
    """Describes the noise tests, by report row."""
    outcomes = dict.fromkeys(
        m.p_values,
        _untried(
            "no noise was observed, or it is rounded, clamped or projected: return the noisy sum"
        ),
    )
    for batch, error in m.drawn.refused.items():
        outcomes[noise.row_of(batch)] = _untried(f"the step refused {batch}: {error}")
    for row, tested in m.p_values.items():
        if tested:
            text = f"{counted(len(tested), 'test')}, smallest p-value {min(tested.values()):.2g}"
            outcomes[row] = CheckOutcome(text, p_values=tested)
    outcomes["noise"] = _describe_deviations(m)
    return outcomes


def _describe_deviations(m: Measured) -> CheckOutcome:
    """Describes the noise's standard deviations on the given batch, in units of eta sigma C / B."""
    given = m.drawn.given
    # Deviations in this range (NaN if `freedom` is 0) pass the Bonferroni-corrected joint test of all layers.
    freedom = given.freedom.sum()  # 0 if no layer's noise was measured
    num_tests = sum(map(len, m.p_values.values()))
    level = LEVEL / num_tests
    low, high = np.sqrt(stats.chi2.ppf([level / 2, 1 - level / 2], freedom) / freedom)
    text = (
        f"deviation {given.deviation:.4g} times eta sigma C / B with {len(given.draws):,} seeds; "
        f"{low:.3g} to {high:.3g} would pass"
    )
    # Rounding may hide missing noise in these layers, so the row cannot pass.
    hidden = np.flatnonzero(m.probe.is_layer_trained & (given.freedom == 0))
    # Nor can it pass if some parameters depend on neither the batch nor the seed.
    still = np.flatnonzero(given.still)
    is_hidden = not freedom or len(hidden) > 0
    if is_hidden:
        where = m.name_layers(hidden) or "the parameters"
        text = f"the noise is below the rounding of {where}: use float64 or a larger learning rate; {text}"
    elif len(still):
        text = (
            f"a part of {m.name_layers(still)} never moves: add noise to all its entries, leave it out of "
            f"`params` if it is frozen, or give a batch that uses it; {text}"
        )
    layers = np.flatnonzero(given.freedom)
    deviations = {m.probe.layer_names[i]: float(given.deviations[i]) for i in layers}
    return CheckOutcome(
        text,
        tried=not (is_hidden or len(still)),
        p_values=m.p_values["noise"],
        figures={"noise": deviations},
    )
