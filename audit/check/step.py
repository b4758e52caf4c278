"""Checks a step of DP-SGD: it is replayed with the same seed on neighbouring batches, and with many seeds.

Movements are in units of eta C / B, the farthest that one example may move the step. Related: Re:cord-play
(Cebere et al., 2026, arXiv 2602.17454), which records the inputs of the noise primitives.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import causes, examples, movements, noise, ties
from audit.check.causes import Measured
from audit.check.findings import CheckFinding
from audit.check.movements import COARSE, TriedExamples
from audit.check.probe import RefusedError, Step, StepProbe, StepSettings
from audit.check.report import LEVEL, CheckOutcome, CheckReport, make_report
from audit.errors import InputError, number, require
from audit.written import counted

NEEDED = ("replay", "signal", "sensitivity", "separation", "noise")
ROWS = (*NEEDED, "independence", "shape", "noise and data", "empty batch")
_COARSE_SUM = 0.1  # a larger tolerance hides the interaction of two parts, which four steps measure
_MIN_SIGNAL = 1e-3  # C: a tensor that moves by less is hardly trained
_SEEDS_ALONE = 8  # to see dropout in a batch of one row
_PRECISE = (
    "use float64, a larger learning rate, or return the private gradient in float32, at rate 1"
)
_CHANGED_AFTER = (
    "what an example does depends on the seed: is dropout on? Set `m.p = 0.0` in every Dropout (model.eval() "
    "would take away Opacus's hooks); augmentation or sampling before the gradient do it too. Or something "
    "happens after the noise, such as rounding, clamping, projection or top-k: return the noisy sum; with "
    "Adam return the private gradient, with learning_rate=1"
)
_HIDDEN_NOISE = "no noise is seen, or it is rounded, clamped or projected: return the noisy sum"
_ALL_CLIPPED = (
    "every example that was tried is clipped, which hides whether others change its gradient: check again "
    "with a larger clipping norm, or let the step take clipping_norm="
)
_ADAM = "this looks like Adam, or the sign of the gradient (every number moves equally far)"
_NOT_FINITE = CheckFinding(
    check="replay",
    name="NaN or infinity",
    meaning="The step gives NaN or infinity with the batch as given.",
    fix="clip with C / max(C, norm), and never divide by a size",
)
_RELEASED = CheckFinding(
    check="noise",
    name="{name} is released with the model and has no noise",
    meaning="The data change this buffer, and it is neither clipped nor noised.",
    fix="switch it off (track_running_stats=False in batch norm), or compute it from public data",
)


class StepOptions(NamedTuple):
    """The options of `check_step`.

    Attributes:
      extreme_examples: a batch of additional examples to try.
      seeds: the number of draws of the noise; by default up to what layers need and 20 seconds allow.
      tell: a function that is called with a line on the time of the check, and a line after each part.
    """

    extreme_examples: Any = None
    seeds: int | None = None
    tell: Callable[[str], object] = str


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
    """Checks whether a single step of DP-SGD clips, adds noise and averages as it should.

    Nothing is trained, and JAX is not needed.

    Args:
      step: a function (params, batch, seed) -> params that takes a step of plain SGD, or the first step with
        momentum. The integer `seed` determines all its randomness. For another optimizer it returns the
        private gradient instead of the parameters, with learning_rate=1.
      params: the parameters before the step: arrays or tensors in dicts, lists or tuples. The step gets
        copies.
      batch: arrays or tensors in dicts, lists or tuples, with one row per example; labels last.
      clipping_norm, noise_multiplier, learning_rate: the stated C, sigma and eta; the noise on the sum of
        clipped gradients has deviation sigma C.
      batch_size: B, by which the sum is divided: the expected size of a Poisson batch, a constant.
      **options: the fields of `StepOptions`. `extreme_examples` is a batch of additional examples to try;
        `seeds` is the number of draws of the noise, by default up to what layers need and 20 seconds allow;
        `tell` is a function that is called with lines on the progress.

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: `step` is not such a function, or fails on the batch as given.
      TypeError: an option is unknown.

    >>> import numpy as np
    >>> def step(w, batch, seed):
    ...     x, y = batch
    ...     gradients = (1 / (1 + np.exp(-x @ w)) - y)[:, None] * x
    ...     norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    ...     clipped = gradients / np.maximum(1, norms)
    ...     noise = 1.1 * np.random.default_rng(seed).normal(size=w.shape)
    ...     return w - 0.5 * (clipped.sum(axis=0) + noise) / 32
    >>> rng = np.random.default_rng(0)
    >>> batch = rng.normal(size=(32, 8)), rng.integers(0, 2, 32)
    >>> stated = dict(clipping_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, batch_size=32)
    >>> audit.check_step(step, np.zeros(8), batch, **stated).passed
    True
    >>> audit.check_step(step, np.zeros(8), batch, **stated | {"noise_multiplier": 2.2}).findings[0].check
    'noise'
    """
    chosen = StepOptions(**options)
    if chosen.seeds is not None:
        seeds = number("seeds", chosen.seeds, int)
        require(4 <= seeds <= 10**5, f"`seeds={seeds}`: give 4 to 100,000")
        chosen = chosen._replace(seeds=seeds)
    stated = StepSettings(clipping_norm, noise_multiplier, learning_rate, batch_size)
    try:
        with np.errstate(all="ignore"):  # the checks report NaN and infinity
            report = _check_probe(StepProbe(step, params, batch, stated), chosen)
    except RefusedError as error:  # its cause is the step's own error, which the caller should see
        raise InputError(f"`step` failed on the batch as given: {error}") from error.__cause__
    return report.add_provenance(step, stated._asdict())


def _check_probe(probe: StepProbe, options: StepOptions) -> CheckReport:
    """Measures the step, explains the measurements and returns the report."""
    if not np.all(np.isfinite(probe.base)):
        return _report(
            {"replay": CheckOutcome("", findings=[_NOT_FINITE])}, "the step is not finite"
        )
    # The probe has called the step before, so this time is without compilation.
    began = time.perf_counter()
    replay = probe.measure(probe.run(probe.rows, 0) - probe.base, probe.base, probe.rows)
    seconds = time.perf_counter() - began
    tried_examples = examples.make_extreme_examples(probe.rows)
    if options.extreme_examples is not None:
        tried_examples |= examples.read_extreme_examples(options.extreme_examples, probe.rows)
    total = (2 * len(tried_examples) + 300) * seconds
    options.tell(
        f"a step takes {1000 * seconds:.0f} ms; about {total:.0f} s for all checks (less if it is compiled)"
    )

    tried = movements.try_examples(probe, tried_examples, seconds)
    options.tell(f"{len(tried.movements)} examples tried, and {len(tried.places)} rows")
    m = Measured(probe, replay, tried, movements.measure_seed_effect(tried, probe.rows))
    if m.depends_on_seed:
        first_row = examples.take(probe.rows, [0])
        alone = movements.measure_seed_effect(tried, first_row, _SEEDS_ALONE)
        m = m._replace(effect_alone=alone)
    if not probe.settings.noise_multiplier:
        return _judge(m, "noise_multiplier=0: no noise is expected")
    drawn = noise.draw_noise(probe, options.seeds, seconds)
    options.tell(f"noise drawn with {len(drawn.given.draws)} seeds")
    m = m._replace(drawn=drawn, repeats=ties.count_repeats(drawn), ties=ties.find_ties(drawn))
    if m.replays and drawn.is_sign_step():
        reason = f"{_ADAM}: {causes.get_phrases(probe)['gradient']}"
        return _report({"replay": _describe_replay(m)}, reason)
    if drawn.given.not_finite:
        return _judge(m, "the step is not finite at some seeds")
    # A step that keeps state may be an optimizer with running means, which also rescale the noise.
    if not m.replays and not causes.is_like_noise(m):
        return _judge(m._replace(drawn=None), "the step keeps state, which hides it")
    if m.is_changed_after_noise:
        return _judge(m._replace(drawn=None), _CHANGED_AFTER)
    p_values = noise.run_tests(drawn)
    tests = p_values["noise and data"]
    if min(tests.values(), default=1.0) < LEVEL and _is_changed_in_large_batch(m):
        tests.clear()
    return _judge(m, "", p_values)


def _is_changed_in_large_batch(m: Measured) -> bool:
    """Returns whether something happens after the noise only if the sum of gradients is larger."""
    rows = m.probe.rows
    for batch in (examples.scale_features(rows, 1e3, rows), examples.join(*[rows] * 4)):
        effect = movements.measure_seed_effect(m.tried, batch)
        if m._replace(effect=effect).is_changed_after_noise:
            return not m.depends_on_seed
    return False


def _untried(reason: str, **figures: Any) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried."""
    return CheckOutcome(reason, tried=False, figures=figures)


def _report(tried: dict[str, CheckOutcome], reason: str, **options: Any) -> CheckReport:
    """Returns the report on the rows that were tried, and the reason why the other rows were not."""
    outcomes = dict.fromkeys(ROWS, _untried(reason)) | tried
    return make_report("step", outcomes, needed=NEEDED, **options)


def _judge(m: Measured, reason: str, p_values: Mapping[str, Any] | None = None) -> CheckReport:
    """Returns the report on a step: the outcomes of all rows, and the causes.

    Args:
      m: the measurements.
      reason: why the noise could not be tested.
      p_values: by row, the p-values of the tests of the noise, if it could be tested.
    """
    m, outcomes = _describe_movements(m)
    outcomes["replay"] = _describe_replay(m)
    if p_values is not None:
        outcomes |= _describe_noise(m, p_values)

    def explain(rejected: dict[str, list[str]]) -> list[CheckFinding]:
        """Returns the findings: those of the table of causes, and buffers that the step changed."""
        found = causes.explain(m._replace(rejected=rejected))
        for name in sorted(getattr(m.probe.step, "changed_buffers", ())):
            found.append(_RELEASED.fill(name=name))
        return found

    return _report(outcomes, reason, explain=explain)


def _describe_movements(m: Measured) -> tuple[Measured, dict[str, CheckOutcome]]:
    """Measures interactions, if movements can be judged; returns them, and the outcomes of these rows."""
    tried = m.tried
    reason = "other noise, at every call or by the batch, hides it"
    if m.is_changed_after_noise:
        reason = _CHANGED_AFTER
    if m.replays and not tried.is_any_moved:
        reason = "no example changes anything: does the step use its batch?"
    outcomes = dict.fromkeys(("signal", "sensitivity", "separation"), _untried(reason))
    if m.replays and tried.is_any_moved:
        outcomes["signal"] = _describe_signal(tried)
    if m.judges_movements:
        is_all_clipped = not tried.refusal and np.min(tried.norms, initial=np.inf) > 1 - COARSE
        larger = m.probe.with_larger_norm() if is_all_clipped else None
        interaction = movements.measure_interactions(larger or m.probe, tried)
        m = m._replace(interaction=interaction)
        if is_all_clipped and larger is None and not m.interacts:
            m = m._replace(interaction=_ALL_CLIPPED)
        outcomes["sensitivity"] = _describe_sensitivity(m)
        outcomes["separation"] = _describe_separation(m)
    return m, outcomes


def _describe_replay(m: Measured) -> CheckOutcome:
    """Describes whether two calls with the same batch and seed give the same."""
    return CheckOutcome("same seed, same step", figures={"replay": m.replay.norm})


def _describe_signal(tried: TriedExamples) -> CheckOutcome:
    """Describes whether some example moves each trained tensor, here called a layer.

    A layer that does not move leaves the check undecided: it may be right.
    """
    names = np.array(tried.probe.layer_names)
    is_trained = tried.probe.is_layer_trained
    peaks = np.fmax.reduce([movement.layer_norms for movement in tried.described.values()])
    figures = {"signal": dict(zip(names.tolist(), peaks.tolist(), strict=True))}
    dead = names[is_trained & ~(peaks > 0)]
    if len(dead):
        text = (
            f"no example moves {', '.join(dead[:6])}, only noise does: begin at trained parameters (an "
            "adapter's factor next to zeros has no gradient), look for a detached layer, or freeze what "
            "never has a gradient, such as the bias of keys in attention"
        )
        return _untried(text, **figures)
    quietest = np.argmin(np.where(is_trained, peaks, np.inf))
    measured = f"smallest: {names[quietest]}, {peaks[quietest]:.2g} C"
    if peaks[quietest] < _MIN_SIGNAL:
        measured += ", almost 0: is its gradient scaled down or detached?"
    measured += f"; trained: {np.sum(is_trained)} of {len(names)}"
    text = "every trainable tensor responds to an example"
    return CheckOutcome(text, figures=figures, measured=measured)


def _describe_sensitivity(m: Measured) -> CheckOutcome:
    """Describes how far examples move the step, and whether clipping stops them."""
    tried = m.tried
    norms = {name: movement.norm for name, movement in tried.described.items()}
    tolerance = f"(tolerance {tried.tolerance:.2g})"
    measured = f"largest observed change {max(norms.values()):.4g} eta C / B {tolerance}"
    if tried.places:
        measured += f", also when replacing each of {len(tried.places)} rows"
    figures = {"movements": norms, "tolerance": tried.tolerance}
    if not tried.violations and tried.tolerance > COARSE:
        return _hide(tried.tolerance)
    if not tried.violations and not tried.is_clipping_seen:
        text = (
            f"the largest movement was {tried.reach:.2g} C, so clipping was not seen: state a smaller "
            "clipping norm, or give trained parameters or extreme_examples"
        )
        return _untried(text, **figures)
    return CheckOutcome("", figures=figures, measured=measured)


def _hide(tolerance: float) -> CheckOutcome:
    """Returns the outcome of a check whose movements are smaller than rounding."""
    return _untried(f"rounding hides it (tolerance {tolerance:.2g} C): {_PRECISE}")


def _describe_separation(m: Measured) -> CheckOutcome:
    """Describes whether two parts of a batch together move the step by the sum of their movements."""
    measured = m.interaction
    labels = m.probe.rows[-1]
    if isinstance(measured, str):  # the reason why it was not measured
        if len(labels) == 1 and m.tried.refusal:
            return CheckOutcome("the step takes batches of one row only")
        return _untried(measured)
    if not np.isfinite(measured.norm):
        return _untried("the step is not finite")
    if measured.tolerance > _COARSE_SUM and not m.interacts:
        return _hide(measured.tolerance)
    numbers = f"difference {measured.norm:.2g} C (tolerance {measured.tolerance:.2g})"
    if m.tried.refusal:
        numbers += f"; rows were replaced, since {m.tried.refusal}"
    if examples.are_tokens(labels) and examples.find_padding(labels) is None:
        numbers += "; pad some labels to see a mean over all tokens of the batch"
    text = "two parts of a batch move it by the sum of their effects"
    figures = {"separation": measured.norm, "separation tolerance": measured.tolerance}
    return CheckOutcome(text, figures=figures, measured=numbers)


def _describe_noise(m: Measured, p_values: Mapping[str, Any]) -> dict[str, CheckOutcome]:
    """Describes the tests of the noise, by row."""
    drawn = m.drawn
    outcomes = dict.fromkeys(p_values, _untried(_HIDDEN_NOISE))
    for batch, error in drawn.refused.items():
        outcomes[noise.row_of(batch)] = _untried(f"the step refused {batch}: {error}")
    for row, tested in p_values.items():
        if tested:
            seen = f"{counted(len(tested), 'test')}, smallest p-value {min(tested.values()):.2g}"
            outcomes[row] = CheckOutcome("as stated", p_values=tested, measured=seen)

    # The deviations that pass the test of all layers together, at Bonferroni's level for all tests.
    freedom = np.sum(drawn.given.freedom)
    level = LEVEL / max(sum(map(len, p_values.values())), 1)
    low, high = np.sqrt(stats.chi2.ppf([level / 2, 1 - level / 2], freedom) / freedom)
    seeds = len(drawn.given.draws)
    measured = (
        f"deviation {drawn.given.deviation:.4g} times eta sigma C / B with {seeds:,} seeds; from "
        f"{low:.3g} to {high:.3g} passes"
    )
    deviations = zip(drawn.layer_names, drawn.given.deviations.tolist(), strict=True)
    figures = {name: value for name, value in deviations if name in p_values["noise"]}
    text = ""
    hidden = np.flatnonzero(m.probe.is_layer_trained & (drawn.given.freedom == 0))
    if not freedom or len(hidden):  # other layers do not speak for these
        where = m.name_layers(hidden) or "the parameters"
        text = (
            f"the noise lies below the rounding of {where}: use float64 or a larger learning rate"
        )
    outcomes["noise"] = CheckOutcome(
        text,
        tried=not text,
        p_values=p_values["noise"],
        figures={"seeds": seeds, "noise": figures},
        measured=measured,
    )
    return outcomes
