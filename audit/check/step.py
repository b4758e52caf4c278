"""One step of anyone's DP-SGD, replayed with the same seed on neighbouring batches, and with many seeds.

Movements are in units of eta C / B, as far as one example may move the step. Related: Re:cord-play (Cebere
et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.check import causes, factors, findings, grids, movements, noise, trees
from audit.check.findings import CheckFinding
from audit.check.movements import SeedEffect, TriedExamples
from audit.check.noise import DrawnNoise
from audit.check.noise_bugs import NoiseBugs, count_repeats
from audit.check.noise_pictures import make_noise_pictures
from audit.check.probe import RefusedError, Step, StepProbe
from audit.check.report import CheckOutcome, CheckReport, make_report
from audit.check.trees import Columns, Example
from audit.errors import InputError, number, require
from audit.written import counted

NEEDED = ("replay", "signal", "sensitivity", "separation", "noise")
_COARSE = 0.05  # a larger tolerance hides the movement of one example
_COARSE_SUM = 0.1  # a larger tolerance hides the interaction of two parts, which four steps measure
_FAINT = 1e-3  # C: a tensor that moves by less is hardly trained
_SECONDS = 5.0  # for further examples if none reaches C
_LARGER = 100.0  # times C, to see unclipped examples
_NOTHING_MOVES = "no example changes anything: does the step use its batch?"
_NOT_FINITE = "the step is not finite"
_HIDDEN = "other noise at every call hides it"
_PRECISE = (
    "use float64, a larger learning rate, or return the private gradient in float32, at rate 1"
)


class StepOptions(NamedTuple):
    """The options of `check_step`.

    Attributes:
      extreme_examples: a batch of further examples to try, beside those that are made of the batch's.
      seeds: the number of draws of the noise; None for as many as layers need and 20 seconds allow.
      tell: called with a line on the time that the check takes, and a line for each part that is done.
    """

    extreme_examples: Any = None
    seeds: int | None = None
    tell: Callable[[str], object] = str


class StepTrial(NamedTuple):
    """What was measured of a step.

    Attributes:
      tried: how far each example moves the step.
      drawn: draws of the step's noise; None if the caller states that there is none.
      seed_effect: how another seed changes what an example does; None if it could not be measured.
      plateau: the norm, in units of eta C / B, at which the four largest movements stop together; 0 if they
        do not.
      size: how many times as large as stated the step is. All else is measured at the size that it has.
    """

    tried: TriedExamples
    drawn: DrawnNoise | None
    seed_effect: SeedEffect | None
    plateau: float
    size: float = 1.0

    @property
    def depends_on_seed(self) -> bool:
        """Whether the seed changes what an example does."""
        effect = self.seed_effect
        return effect is not None and effect.movement.norm > effect.movement.tolerance


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
        momentum. All its randomness follows from the whole number `seed`. For another optimizer let it return
        the private gradient in place of the parameters, with learning_rate=1.
      params: the parameters at which the step begins: arrays or tensors in dicts, lists or tuples. The step
        gets copies.
      batch: arrays or tensors in dicts, lists or tuples, one row an example; labels last.
      clipping_norm, noise_multiplier, learning_rate: C, sigma and eta as stated; the noise on the sum of
        clipped gradients has deviation sigma C.
      batch_size: B, the number by which the sum is divided: the expected size of a Poisson batch, a constant.
      **options: `extreme_examples`, a batch of further examples to try, next to those that are made of the
        batch's; `seeds`, the number of draws of the noise, by default as many as layers need and 20 seconds
        allow; `tell`, a function that is called with lines on the progress.

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: `step` is no step, or fails on the batch as given.
      TypeError: an option has another name.

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
    seeds = chosen.seeds
    if seeds is not None:
        seeds = read_seeds(seeds)
    stated = {
        "clipping_norm": clipping_norm,
        "noise_multiplier": noise_multiplier,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
    }
    try:
        # Where a step gives NaN or infinity, the checks report it.
        with np.errstate(all="ignore"):
            probe = StepProbe(step, params, batch, stated)
            examples = trees.make_extreme_examples(probe.rows)
            if chosen.extreme_examples is not None:
                examples |= _read_extreme_examples(chosen.extreme_examples, probe.rows)
            report = _check_probe(probe, examples, seeds, chosen.tell)
        buffers = sorted(getattr(step, "changed_buffers", ()))
        released = [findings.RELEASED_BUFFER.fill(name=name) for name in buffers]
        report = report.add_findings(released)
    except RefusedError as error:  # its cause is the step's own error, which the caller should see
        raise InputError(f"`step` failed on the batch as given: {error}") from error.__cause__
    return report.add_provenance(step, stated)


def read_seeds(seeds: Any) -> int:
    """Returns a caller's number of seeds; raises InputError unless it is a whole number, 4 to 100,000."""
    count = number("seeds", seeds, int)
    require(4 <= count <= 10**5, f"`seeds={count}`: give 4 to 100,000")
    return count


def _read_extreme_examples(examples: Any, rows: Columns) -> dict[str, Example]:
    """Returns each of the caller's own extreme examples, by its name in the report.

    Args:
      examples: the caller's arrays or tensors in dicts, lists or tuples; each row is an example.
      rows: the arrays of the batch as given, each (examples, ...). Rows of the examples must have the same
        shapes.

    Raises:
      InputError: the number of arrays or the shape of a row differs from the batch's.
    """
    columns = trees.read_columns("extreme_examples", examples)
    is_alike = len(columns) == len(rows)
    # Not strict: another number of columns is refused by the line above, with a message of ours.
    for column, batch_column in zip(columns, rows, strict=False):
        if column.shape[1:] != batch_column.shape[1:]:
            is_alike = False
    require(is_alike, "`extreme_examples`: give arrays like the batch's, rows of the same shapes")

    result = {}
    for i in range(len(columns[0])):
        result[f"your example {i}"] = Example(trees.take(columns, [i]))
    return result


def _check_probe(
    probe: StepProbe, examples: dict[str, Example], seeds: int | None, tell: Callable[[str], object]
) -> CheckReport:
    """Runs all checks on a step and returns the report.

    An optimizer that rescales each number of the gradient, as Adam does, gets no check but the replay. If
    movements and noise both differ from their stated sizes by one factor, the step is tried again with the
    stated learning rate times this factor, and the report names the factor.

    Args:
      probe: the step. If there is a common factor, its settings are rescaled in place.
      examples: the examples to add to the batch, by name.
      seeds: how many draws of the noise to take; None for as many as the estimate needs.
      tell: called with lines on the progress.
    """
    # The replay calls the step once. The probe has called it before, so no compilation is timed.
    began = time.perf_counter()
    replay = _check_replay(probe)
    seconds = time.perf_counter() - began
    tell(_describe_time(seconds, len(examples)))
    if not np.all(np.isfinite(probe.base)):
        return _report_nothing_tried(replay, _NOT_FINITE)
    if not replay.findings and causes.is_sign_step(probe):
        return _report_nothing_tried(replay, findings.ADAM)

    trial = _try_step(probe, examples, seeds, seconds, tell)
    factor = 1.0
    if not replay.findings:  # movements mean nothing if two calls with the same seed differ
        drawn = trial.drawn
        if drawn and not count_repeats(drawn) and causes.is_preconditioned(trial.tried, drawn):
            return _report_nothing_tried(replay, findings.PRECONDITIONED)
        factor = _find_common_factor(trial)

    size_finding = None
    # Gradients that are as small as the noise by chance, unclipped, do not excuse too little noise.
    if factor > 1 or (factor < 1 and causes.stops_by_clipping(probe, trial.tried, factor)):
        trained_layers = len(np.unique(probe.layer[probe.is_trained]))
        why = factors.explain_step_size(factor, probe.settings, trained_layers)
        unless = findings.UNLESS_UNCLIPPED if factor < 1 else ""
        size_finding = findings.ANOTHER_SIZE.fill(ratio=factor, unless=unless, why=why)
        probe.settings = probe.settings.rescale(factor)
        trial = _try_step(probe, examples, seeds, seconds, tell)._replace(size=factor)
    return _judge(probe, trial, replay, size_finding)


def _describe_time(seconds: float, examples: int) -> str:
    """Returns a line on how long the check takes, from the seconds of a call and the number of examples."""
    calls = 2 * examples + 300
    advice = ": compile it, or check a smaller model" if seconds > 0.2 else ""
    shown = f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
    return f"a step takes {shown}{advice}; about {max(1, calls * seconds):.0f} s for all checks"


def _report_nothing_tried(replay: CheckOutcome, reason: str) -> CheckReport:
    """Returns the report of a step of which only the replay could be tried, for the reason given."""
    rows = ["signal", "sensitivity", "separation", *noise.ROWS]
    outcomes = {"replay": replay, **dict.fromkeys(rows, _untried(reason))}
    return make_report("step", outcomes, NEEDED)


def _try_step(
    probe: StepProbe,
    examples: dict[str, Example],
    seeds: int | None,
    seconds: float,
    tell: Callable[[str], object],
) -> StepTrial:
    """Returns how far examples move a step, how large its noise is, and what the seed changes.

    If no example moves the step by nearly C, and time allows, further examples are tried.

    Args:
      probe: the step.
      examples: the examples to add to the batch, by name.
      seeds: how many draws of the noise to take; None for as many as the estimate needs.
      seconds: how long a call of the step takes.
      tell: called with a line for each part that is done.
    """
    tried = movements.try_examples(probe, examples, seconds)
    affordable_calls = int(_SECONDS / seconds)
    if causes.stay_below_clipping(tried) and affordable_calls > len(examples):
        further = trees.make_further_examples(probe.rows, affordable_calls)
        tried = movements.try_examples(probe, examples | further, seconds)
    tell(f"{len(tried.movements)} examples tried, in {counted(len(tried.places), 'row')}")
    effect = movements.measure_seed_effect(probe, tried)
    drawn = None
    if probe.settings.noise_multiplier:  # with a stated 0 there is no noise to compare with
        drawn = noise.draw_noise(probe, seeds, seconds)
        tell(f"noise drawn with {counted(len(drawn.given.draws), 'seed')}")
    return StepTrial(tried, drawn, effect, causes.find_plateau(tried))


def _find_common_factor(trial: StepTrial) -> float:
    """Returns the factor by which both movements and noise differ from their stated sizes, 1 if none is seen.

    In a correct step the largest movement and the noise's deviation are both 1, in stated units. The factor
    is the plateau of added examples, with which the noise has to agree. For examples in place of a row it is
    the radius of the ball around their contributions, which may be measured a tenth too small.
    """
    drawn = trial.drawn
    tried = trial.tried
    if drawn is None or not tried.movements or tried.tolerance > _COARSE or trial.depends_on_seed:
        return 1.0
    deviation = float(drawn.compute_deviation())
    freedom = float(np.sum(drawn.given.freedom))
    if not deviation > 0 or not freedom:
        return 1.0
    error = (
        4 / (2 * freedom) ** 0.5 + 0.005
    )  # four standard errors of the deviation and a half percent

    if not tried.were_added:
        reach = movements.compute_reach(tried)
        agrees = 0.9 * deviation < reach < deviation * (1 + error)
        is_shown = reach > 1 + tried.tolerance or deviation < 1 - error
        return max(reach, deviation * (1 - error)) if agrees and is_shown else 1.0

    plateau = trial.plateau
    if plateau == 0:
        return 1.0
    # A plateau below C does not show a factor if the noise is right: layers may be clipped one by one.
    is_shown = plateau > 1 or deviation < 1 - error
    is_nearer = abs(np.log(plateau / deviation)) < abs(np.log(deviation))
    differs = abs(plateau - 1) > 0.003 + 2 * tried.tolerance
    agrees = abs(plateau / deviation - 1) < error
    return plateau if is_shown and is_nearer and differs and agrees else 1.0


def _judge(
    probe: StepProbe, trial: StepTrial, replay: CheckOutcome, size_finding: CheckFinding | None
) -> CheckReport:
    """Returns the report on a step: the outcomes of all checks, from what was measured.

    Args:
      probe: the step.
      trial: what was measured.
      replay: the outcome of the replay.
      size_finding: the finding that movements and noise are both of another size than stated, or None. With
        it, the settings of `probe` are already rescaled to the measured size.
    """
    tried = trial.tried
    drawn = trial.drawn
    grid = _find_grid(drawn) if drawn else None
    effect = trial.seed_effect
    is_changed_after = trial.depends_on_seed and effect is not None and not effect.scales_noise
    is_changed_after |= bool(grid and grid.is_clamped and grid.is_shared)
    if replay.findings:  # movements mean nothing if two calls with the same seed differ
        signal = sensitivity = separation = _untried(_HIDDEN)
    else:
        signal = _check_signal(probe, tried)
        if (
            is_changed_after or trial.depends_on_seed
        ):  # or the examples decide how large the noise is
            sensitivity = separation = _untried(findings.SEED_CHANGES_EXAMPLES)
        else:
            separation = _check_separation(probe, tried)
            sensitivity = _check_sensitivity(probe, trial, bool(separation.findings))
    if size_finding:
        sensitivity = sensitivity._replace(findings=[size_finding, *sensitivity.findings])

    reason = "noise_multiplier=0: no noise is expected"
    # A step that keeps state may be an optimizer with running means, which also rescale the noise.
    is_stateful = findings.STATEFUL.name in {finding.name for finding in replay.findings}
    if drawn and is_stateful and drawn.varies_by_number():
        reason = findings.PRECONDITIONED
        drawn = None
    elif drawn and is_changed_after and not drawn.given.not_finite:
        reason = findings.SEED_CHANGES_EXAMPLES
        drawn = None
    norms = {name: movement.norm for name, movement in tried.list_all().items()}
    pictures: dict[str, Any] = {"movements": norms, "size": trial.size}
    noise_outcomes = dict.fromkeys(noise.ROWS, _untried(reason))
    if drawn:
        noise_outcomes = noise.check_noise(drawn)
    outcomes = {
        "replay": replay,
        "signal": signal,
        "sensitivity": sensitivity,
        "separation": separation,
        **noise_outcomes,
    }
    if drawn is None or drawn.given.not_finite:
        return make_report("step", outcomes, NEEDED, **pictures)
    bugs = NoiseBugs(
        settings=probe.settings,
        drawn=drawn,
        grid=grid,
        max_size=_find_max_size(trial, replay),
        is_clipping_seen=partial(_is_clipping_seen, probe, trial, replay),
    )
    return make_report(
        "step", outcomes, NEEDED, bugs.name, **pictures, **make_noise_pictures(drawn)
    )


def _is_clipping_seen(probe: StepProbe, trial: StepTrial, replay: CheckOutcome) -> bool:
    """Returns whether clipping is seen to stop examples at C; False if movements mean nothing."""
    if replay.findings or trial.depends_on_seed or causes.find_violations(trial.tried):
        return False
    return causes.stops_by_clipping(probe, trial.tried, 1.0)


def _find_max_size(trial: StepTrial, replay: CheckOutcome) -> float:
    """Returns the smallest size, over the stated one, that a step may have in which no example exceeds C.

    It is infinite if the report names the size already, or if a movement is not finite, and 0 if movements
    mean nothing.
    """
    if replay.findings or trial.depends_on_seed:
        return 0.0
    norms = [movement.norm for movement in trial.tried.list_all().values()]
    if trial.size != 1 or not np.all(np.isfinite(norms)):
        return np.inf
    return movements.compute_reach(trial.tried) - trial.tried.tolerance


def _find_grid(drawn: DrawnNoise) -> grids.NoiseGrid | None:
    """Returns the grid or range of the noise, compared with another batch's noise; None without one."""
    accepted = drawn.list_accepted()
    other = accepted.get(noise.QUARTER, accepted.get(noise.FEATURES))
    return grids.find_grid(drawn.given, other)


def _untried(reason: str) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried."""
    return CheckOutcome(reason, tried=False)


def _check_replay(probe: StepProbe) -> CheckOutcome:
    """Checks that two calls of the step with the same batch and seed give the same, up to rounding."""
    base = probe.base
    if not np.all(np.isfinite(base)):
        bug = findings.NOT_FINITE.fill(check="replay", where="the batch as given")
        return CheckOutcome("", findings=[bug])
    again = probe.run(probe.rows, 0)
    distance = float(np.linalg.norm(again - base)) / probe.settings.unit
    figures = {"replay": distance}
    rounding = probe.compute_rounding(base, len(probe.rows[0]))
    if distance <= 2 * np.linalg.norm(rounding):  # each of the two calls may be off by its rounding
        how = "equal to the bit" if distance == 0 else "equal up to rounding"
        return CheckOutcome(f"same seed, same step: {how}", figures=figures)

    # Either the step keeps state, or its noise ignores the seed. The difference of two draws of the noise has
    # sqrt(2) times its deviation in every number, so its squared length is chi-squared.
    bug = findings.STATEFUL.fill(distance=distance)
    deviation = probe.settings.noise_multiplier * 2**0.5
    if deviation > 0:
        with np.errstate(over="ignore"):  # an infinite square has the quantile 1
            square = np.square(np.float64(distance) / deviation)
        if 1e-3 < scipy.stats.chi2.cdf(square, base.size) < 0.999:
            bug = findings.UNSEEDED
    return CheckOutcome("", findings=[bug], figures=figures)


def _check_signal(probe: StepProbe, tried: TriedExamples) -> CheckOutcome:
    """Checks that some example moves each trained tensor, here called a layer, by 0.001 C at least.

    The figure `signal` has the largest norm of a movement in each layer. A layer that nothing moves leaves
    the check undecided: it may be right.
    """
    peaks = np.zeros(len(probe.layer_names))
    is_moved = np.zeros(probe.start.size, bool)
    for movement in tried.list_all().values():
        is_moved |= movement.vector != 0
        peaks = np.fmax(peaks, movement.layer_norms)  # unlike np.maximum, it passes over NaN
    is_trained = np.bincount(probe.layer, probe.is_trained) > 0
    is_alive = np.bincount(probe.layer, is_moved) > 0
    figures = {"signal": dict(zip(probe.layer_names, peaks.tolist(), strict=True))}
    if not np.any(is_moved):
        return _untried(_NOTHING_MOVES)

    dead = [probe.layer_names[i] for i in np.flatnonzero(is_trained & ~is_alive)]
    if dead:
        text = (
            f"no example moves {', '.join(dead[:6])}, only noise does: begin at trained parameters (an "
            "adapter's factor next to zeros has no gradient), look for a detached layer, or freeze what "
            "never has a gradient, such as the bias of keys in attention"
        )
        return CheckOutcome(text, tried=False, figures=figures)

    alive = np.flatnonzero(is_trained & is_alive)
    quietest = alive[np.argmin(peaks[alive])]
    measured = f"smallest: {probe.layer_names[quietest]}, {peaks[quietest]:.2g} C"
    if peaks[quietest] < _FAINT:
        measured += ", almost 0: is its gradient scaled down or detached?"
    frozen = len(probe.layer_names) - len(alive)
    if frozen:
        measured += f"; {counted(frozen, 'is not trained', 'are not trained')}"
    text = "every trainable tensor responds to an example"
    return CheckOutcome(text, figures=figures, measured=measured)


def _check_separation(probe: StepProbe, tried: TriedExamples) -> CheckOutcome:
    """Checks that two parts of a batch together move the step by the sum of what each does by itself."""
    if not tried.is_any_moved():
        return _untried(_NOTHING_MOVES)
    if _takes_single_rows_only(probe):
        return CheckOutcome("the step takes batches of one row only", applies=False)
    is_all_clipped = tried.were_added and min(tried.list_norms(), default=0.0) > 1 - _COARSE
    larger = probe.with_clipping_norm(_LARGER) if is_all_clipped else None
    measured = movements.measure_interactions(larger or probe, tried)
    if isinstance(measured, str):  # why the step refused every pair of parts
        return _untried(measured)

    # The pair of parts whose sum is most surely wrong.
    worst = max(measured, key=lambda movement: movement.norm - movement.tolerance)
    if not np.isfinite(worst.norm):
        return _untried(_NOT_FINITE)
    numbers = f"apart by {worst.norm:.2g} C (tolerance {worst.tolerance:.2g})"
    figures = {"separation": worst.norm, "separation tolerance": worst.tolerance}
    text = "two parts of a batch move it by the sum of what each does"
    if worst.norm > worst.tolerance:
        bug = findings.EXAMPLES_INTERACT.fill(distance=worst.norm)
        return CheckOutcome(text, findings=[bug], figures=figures, measured=numbers)
    if worst.tolerance > _COARSE_SUM:
        return _hide(worst.tolerance, figures)
    if is_all_clipped and larger is None:
        text = (
            "every example that was tried is clipped, which hides whether others change its gradient: check "
            "again with a larger clipping norm, or let the step take clipping_norm="
        )
        return CheckOutcome(text, tried=False, figures=figures)
    if tried.refusal:
        numbers += f"; rows were replaced, since {tried.refusal}"
    labels = probe.rows[-1]
    if trees.are_tokens(labels) and trees.find_padding(labels) is None:
        numbers += (
            "; all labels are equally long, and then a mean over all tokens of the batch looks like a mean "
            "of each example's own mean: pad some labels"
        )
    return CheckOutcome(text, figures=figures, measured=numbers)


def _takes_single_rows_only(probe: StepProbe) -> bool:
    """Returns whether the batch has a single row and the step refuses it with a second row."""
    if len(probe.rows[0]) > 1:
        return False
    try:
        probe.run(trees.join(probe.rows, probe.rows), 0)
    except RefusedError:
        return True
    return False


def _hide(tolerance: float, figures: Mapping[str, Any]) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried, since rounding hides the movements."""
    text = f"rounding hides it (tolerance {tolerance:.2g} C): {_PRECISE}"
    return CheckOutcome(text, tried=False, figures=figures)


def _check_sensitivity(probe: StepProbe, trial: StepTrial, examples_interact: bool) -> CheckOutcome:
    """Checks that no example moves the step by more than C, and that clipping is what stops them.

    Two further bugs that movements show are reported here: examples that stop at a fraction of C, and noise
    that changes with the batch's size.

    Args:
      probe: the step.
      trial: what was measured.
      examples_interact: whether examples change how far others move the step.
    """
    tried = trial.tried
    if not tried.is_any_moved():
        return _untried(_NOTHING_MOVES)
    # The example to report is the worst violation; without violations, the largest movement.
    violations = causes.find_violations(tried)
    candidates = violations or tried.movements
    example = max(candidates, key=lambda name: candidates[name].norm)
    largest = candidates[example]
    norms = {name: movement.norm for name, movement in tried.list_all().items()}
    figures: dict[str, Any] = {"movements": norms, "tolerance": largest.tolerance}
    measured = f"largest observed change {largest.norm:.4g} eta C / B"
    if trial.size != 1:
        figures["size"] = trial.size
        measured = (
            f"largest observed change {trial.size * largest.norm:.4g} eta C / B as stated, "
            f"{largest.norm:.4g} at the size that the step has"
        )
    if tried.places:
        measured += f", also when replacing each of {counted(len(tried.places), 'row')}"
    measured += f" (tolerance {largest.tolerance:.2g})"

    bugs = []
    lost = causes.find_lost_signal(probe, tried, trial.plateau)
    if np.isinf(largest.norm):
        bugs.append(findings.NOT_FINITE.fill(check="sensitivity", where=example))
    elif violations:
        evidence = causes.Excess(probe, tried, trial.drawn, examples_interact, violations)
        cause = causes.find_cause(evidence)
        bug = findings.TOO_FAR.fill(
            norm=largest.norm, example=example, name=cause.name, why=cause.why
        )
        bugs.append(bug)
    elif lost:
        bugs.append(lost)
    if tried.redraws_noise:
        bugs.append(findings.MOVING_NOISE)
    if bugs:
        return CheckOutcome("", findings=bugs, figures=figures, measured=measured)

    # Without a bug the check passes only if it would have shown one.
    if tried.tolerance > _COARSE:
        return _hide(tried.tolerance, figures)
    if not causes.is_clipping_reached(probe, tried, trial.plateau):
        text = (
            f"the largest movement was {largest.norm:.2g} C, so that clipping was not seen: state a "
            "smaller clipping norm, or give trained parameters or extreme_examples"
        )
        return CheckOutcome(text, tried=False, figures=figures)
    return CheckOutcome("", figures=figures, measured=measured)
