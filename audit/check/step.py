"""One step of anyone's DP-SGD, replayed with the same seed on neighbouring batches, and with many seeds.

Movements are in units of eta C / B, as far as one example may move the step. Related: Re:cord-play (Cebere
et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.check import causes, factors, findings, grids, movements, noise, trees
from audit.check.findings import CheckFinding
from audit.check.movements import TriedExamples
from audit.check.noise import DrawnNoise, StepNoise
from audit.check.noise_bugs import NoiseBugs
from audit.check.noise_pictures import make_noise_pictures
from audit.check.probe import Movement, RefusedError, Step, StepProbe
from audit.check.report import CheckOutcome, CheckReport, make_report
from audit.check.trees import Columns, Example
from audit.errors import InputError, number, require
from audit.written import counted

NEEDED = ("replay", "signal", "sensitivity", "separation", "noise")
_COARSE = 0.05  # a larger tolerance hides the movement of one example
_COARSE_SUM = 0.1  # a larger tolerance hides the interaction of two parts, which four steps measure
_MOST_SEEDS = 400  # over which movements are averaged where rounding hides one
_SECONDS = 5.0  # for averaging over seeds, and for further examples where none reaches C
_NOTHING_MOVES = "no example changes anything: does the step use its batch?"
_NOT_FINITE = "the step is not finite"
_SEEDED = "the seed changes what examples do"
_HIDDEN = "other noise at every call hides it"
_PRECISE = (
    "use float64, a larger learning rate, or return the private gradient in float32, at rate 1"
)


class StepOptions(NamedTuple):
    """The options of `check_step`.

    Attributes:
      extreme_examples: a batch of further examples to try, beside those that are made of the batch's.
      seeds: the number of draws of the noise; None for as many as layers need and 20 seconds allow.
    """

    extreme_examples: Any = None
    seeds: int | None = None


class StepTrial(NamedTuple):
    """What was measured of a step.

    Attributes:
      tried: how far each example moves the step.
      drawn: draws of the step's noise; None if the caller states that there is none.
      seed_effect: how far another seed changes what an example does; None if it could not be measured.
      plateau: the norm, in units of eta C / B, at which the four largest movements stop together; 0 if they
        do not.
      size: how many times as large as stated the step is. All else is measured at the size that it has.
    """

    tried: TriedExamples
    drawn: DrawnNoise | None
    seed_effect: Movement | None
    plateau: float
    size: float = 1.0

    @property
    def depends_on_seed(self) -> bool:
        """Whether the seed changes what an example does."""
        effect = self.seed_effect
        return effect is not None and effect.norm > effect.tolerance


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
      **options: `extreme_examples`, a batch of further examples to try, beside those that are made of the
        batch's; `seeds`, the number of draws of the noise, by default as many as layers need and 20 seconds
        allow.

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
            report = _check_probe(probe, examples, seeds)
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
    probe: StepProbe,
    examples: dict[str, Example],
    seeds: int | None,
) -> CheckReport:
    """Runs all checks on a step and returns the report.

    An optimizer that rescales each number of the gradient separately, as Adam does, gets no other check than
    the replay. Movements and noise may both differ from their stated sizes by a common factor. The step is
    then tried again with the stated learning rate times this factor, and the report names the factor. A
    factor below 1 counts only where clipping is seen to stop examples: they may be as small as the noise by
    chance, and too little noise is a bug.

    Args:
      probe: the step. Where there is a common factor, its settings are rescaled in place.
      examples: the examples to add to the batch, by name.
      seeds: how many draws of the noise to take; if None, as many as the estimate needs.
    """
    # The replay calls the step once: its time tells how many further calls there is time for. The probe has
    # called the step before, so that no compilation is timed.
    began = time.perf_counter()
    replay = _check_replay(probe)
    seconds = time.perf_counter() - began
    if not np.all(np.isfinite(probe.base)):
        return _report_nothing_tried(replay, _NOT_FINITE)
    if not replay.findings and causes.is_sign_step(probe):
        return _report_nothing_tried(replay, findings.ADAM)

    trial = _try_step(probe, examples, seeds, seconds)
    factor = 1.0
    # Movements mean nothing where two calls with the same seed differ.
    if not replay.findings:
        if trial.drawn and causes.is_preconditioned(trial.tried, trial.drawn):
            return _report_nothing_tried(replay, findings.PRECONDITIONED)
        factor = _find_common_factor(trial)

    size_finding = None
    # Gradients that are as small as the noise by chance, unclipped, do not excuse too little noise.
    if factor > 1 or (factor < 1 and causes.stops_by_clipping(probe, trial.tried)):
        trained_layers = len(np.unique(probe.layer[probe.is_trained]))
        why = factors.explain_step_size(factor, probe.settings, trained_layers)
        # Clamped features are told from clipped gradients only where examples are added.
        is_doubted = factor < 1 and not trial.tried.were_added
        unless = findings.UNLESS_CLAMPED if is_doubted else ""
        size_finding = findings.ANOTHER_SIZE.fill(ratio=factor, unless=unless, why=why)
        probe.settings = probe.settings.rescale(factor)
        trial = _try_step(probe, examples, seeds, seconds)._replace(size=factor)
    return _judge(probe, trial, replay, size_finding, seconds)


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
) -> StepTrial:
    """Measures how far examples move a step, how large its noise is, and what the seed changes.

    If no example moves the step by nearly the clipping norm C, and time allows, further examples are tried.
    The trial also holds the plateau: the norm at which the largest movements stop together, 0 if they do not.

    Args:
      probe: the step.
      examples: the examples to add to the batch, by name.
      seeds: how many draws of the noise to take; if None, as many as the estimate needs.
      seconds: how long a call of the step takes.
    """
    tried = movements.try_examples(probe, examples, seconds)
    affordable_calls = int(_SECONDS / seconds)
    # The first examples are tried again beside the further ones.
    if causes.stay_below_clipping(tried) and affordable_calls > len(examples):
        further = trees.make_further_examples(probe.rows, affordable_calls)
        tried = movements.try_examples(probe, examples | further, seconds)

    drawn = None
    if probe.settings.noise_multiplier:  # with a stated 0 there is no noise to compare with
        drawn = noise.draw_noise(probe, seeds, seconds)
    seed_effect = movements.measure_seed_effect(probe, tried)
    trial = StepTrial(tried, drawn, seed_effect, causes.find_plateau(tried))
    if trial.depends_on_seed and tried.were_added:
        # The step draws dropout masks or the like. In a batch with one more example every example
        # gets another mask, so that adding an example also changes what the others contribute.
        # Replacing an example leaves the batch's size, and with it the masks, as they are.
        replaced = movements.replace_examples(probe, examples, _SEEDED, seconds)
        return trial._replace(tried=replaced, plateau=0.0)  # only added examples have a plateau
    return trial


def _find_common_factor(trial: StepTrial) -> float:
    """Returns the factor by which both movements and noise differ from their stated sizes, 1 if none is seen.

    Movements are in units of eta C / B, and the noise's deviation in stated deviations. In a correct step the
    largest movement and the deviation are both 1.

    Where examples were added to the batch, the factor is the plateau: the norm at which the largest movements
    stop together. The noise has to agree with it. Where examples replaced a row, the factor is the radius of
    the ball that holds their contributions. That radius is measured too small where the examples point in few
    directions. Then the noise's deviation, less its error, is the factor.
    """
    drawn = trial.drawn
    tolerances = [movement.tolerance for movement in trial.tried.movements.values()]
    if drawn is None or not tolerances or max(tolerances) > _COARSE:
        return 1.0

    drawn_noise: StepNoise | None = drawn.given
    deviation = float(drawn.compute_deviation())
    if trial.depends_on_seed:
        # Dropout makes gradients random, which adds to the noise: only an empty batch shows noise alone.
        drawn_noise = drawn.list_accepted().get(noise.EMPTY)
        deviation = float(drawn.compute_deviation(noise.EMPTY))
    # The deviation is NaN, which is not above 0 either, where no noise can be seen.
    if drawn_noise is None or not deviation > 0 or not np.sum(drawn_noise.freedom):
        return 1.0
    # Four standard errors of a measured deviation, which are 1 / sqrt(2 freedom) each, and a half percent.
    error = 4 / (2 * float(np.sum(drawn_noise.freedom))) ** 0.5 + 0.005

    if not trial.tried.were_added:
        radius = movements.compute_enclosing_radius(trial.tried)
        largest = max([radius, *causes.list_finite_norms(trial.tried.list_all())])
        # The radius may be measured up to a tenth too small. Above the noise's deviation it can lie only by
        # the error of that deviation.
        agrees = 0.9 * deviation < largest < deviation * (1 + error)
        # A factor above 1 shows in movements beyond C. Movements below C may be those of unclipped examples,
        # so that only the noise shows a factor below 1.
        is_shown = largest > 1 + max(tolerances) or deviation < 1 - error
        factor = max(largest, deviation * (1 - error))
        return factor if agrees and is_shown else 1.0

    plateau = trial.plateau  # 0 if the largest movements do not stop together
    # A plateau below C alone shows no factor: layers that are clipped one by one stop below C too.
    is_shown = plateau > 1 or deviation < 1 - error
    # Whether the noise is nearer to the plateau than to 1, the stated deviation.
    is_nearer = abs(np.log(plateau / deviation)) < abs(np.log(deviation)) if plateau else False
    # A plateau counts as 1 within 0.003, up to which norms on a plateau may differ, and the tolerance.
    differs = abs(plateau - 1) > 0.003 + 2 * max(tolerances)
    agrees = abs(plateau / deviation - 1) < error
    return plateau if is_shown and is_nearer and differs and agrees else 1.0


def _judge(
    probe: StepProbe,
    trial: StepTrial,
    replay: CheckOutcome,
    size_finding: CheckFinding | None,
    seconds: float,
) -> CheckReport:
    """Returns the report on a step: the outcomes of all checks, from what was measured.

    Args:
      probe: the step.
      trial: what was measured.
      replay: the outcome of the replay.
      size_finding: the finding that movements and noise are both of another size than stated; None if they
        are not. Where it is given, the settings of `probe` are already rescaled to the measured size.
      seconds: how long a call of the step takes.
    """
    # The checks of what examples do.
    tried = trial.tried
    drawn = trial.drawn
    if replay.findings:  # movements mean nothing where two calls with the same seed differ
        signal = sensitivity = separation = _untried(_HIDDEN)
    else:
        signal = _check_signal(probe, tried)
        separation = _check_separation(probe, tried, seconds)
        sensitivity = _check_sensitivity(probe, trial, bool(separation.findings), seconds)
    # Decided before the wrong size is added: measured by the rescaled settings, examples may still be right.
    examples_are_right = not separation.findings and not sensitivity.findings
    if size_finding:
        sensitivity = sensitivity._replace(findings=[size_finding, *sensitivity.findings])

    # The checks of the noise, one for each of the report's rows `noise.ROWS`.
    noise_outcomes = dict.fromkeys(noise.ROWS, _untried("noise_multiplier=0: no noise is expected"))
    pictures: dict[str, Any] = {"movements": _collect_norms(tried.list_all()), "size": trial.size}
    grid = None
    # A step that keeps state may be an optimizer with running means, which also rescale the noise.
    is_stateful = findings.STATEFUL.name in {finding.name for finding in replay.findings}
    if drawn and is_stateful and drawn.varies_by_number():
        noise_outcomes = dict.fromkeys(noise.ROWS, _untried(findings.PRECONDITIONED))
        drawn = None
    if drawn:
        noise_outcomes = noise.check_noise(drawn)
        if drawn.given.not_finite:  # there is neither a picture nor a further bug to name
            drawn = None
    if drawn:
        # Where gradients are random too, tests reject noise that is right, and so decide nothing.
        if trial.depends_on_seed and examples_are_right and _is_noise_right_without_data(drawn):
            noise_outcomes |= dict.fromkeys(noise.ROWS, _untried(findings.RANDOM_GRADIENTS))
        grid = _find_grid(drawn)
        pictures |= make_noise_pictures(drawn)

    outcomes = {
        "replay": replay,
        "signal": signal,
        "sensitivity": sensitivity,
        "separation": separation,
        **noise_outcomes,
    }
    if drawn is None:
        return make_report("step", outcomes, NEEDED, **pictures)
    bugs = NoiseBugs(
        settings=probe.settings,
        drawn=drawn,
        grid=grid,
        depends_on_example=trial.depends_on_seed,
        least_size=_find_least_size(trial, replay),
        is_clipping_seen=partial(_is_clipping_seen_at_c, probe, trial, replay),
    )
    return make_report("step", outcomes, NEEDED, bugs.name, **pictures)


def _is_clipping_seen_at_c(probe: StepProbe, trial: StepTrial, replay: CheckOutcome) -> bool:
    """Returns whether clipping is seen to stop examples at C; False where movements mean nothing."""
    if replay.findings:  # two calls with the same seed differ
        return False
    return causes.is_clipping_seen_at_c(probe, trial.tried, trial.plateau)


def _find_least_size(trial: StepTrial, replay: CheckOutcome) -> float:
    """Returns the least size, over the stated one, of a step that no example tried moves by more than C.

    It is 0 where movements mean nothing, and infinite where the report names the size of the step already, or
    where a movement is not finite.
    """
    norms = [movement.norm for movement in trial.tried.list_all().values()]
    if trial.size != 1 or not np.all(np.isfinite(norms)):
        return np.inf
    if replay.findings:  # two calls with the same seed differ
        return 0.0
    tolerances = [movement.tolerance for movement in trial.tried.movements.values()]
    return causes.compute_reach(trial.tried) - max(tolerances, default=0.0)


def _is_noise_right_without_data(drawn: DrawnNoise) -> bool:
    """Returns whether the noise may be as stated, and only looks too large since gradients are random too.

    Gradients vary with the seed by dropout or augmentation. That adds to the noise, except at an empty batch,
    which has no gradients. So the noise must be as stated there, and no smaller at the batch as given. Where
    the step refuses an empty batch, the noise at the batch as given must be from 0.98 to 1.5 stated
    deviations: about as stated, with room above for what gradients add.
    """
    empty = drawn.list_accepted().get(noise.EMPTY)
    if empty is None:
        return bool(0.98 < drawn.compute_deviation() < 1.5)
    # Four standard errors of a measured deviation, which are 1 / sqrt(2 freedom) each, and 1%. Without any
    # freedom the deviation is NaN, and the result False.
    error = 4 / (2 * max(float(np.sum(empty.freedom)), 1)) ** 0.5 + 0.01
    at_empty = abs(drawn.compute_deviation(noise.EMPTY) - 1) < error
    return bool(at_empty and drawn.compute_deviation() > 1 - error)


def _find_grid(drawn: DrawnNoise) -> grids.NoiseGrid | None:
    """Returns the grid on which the noise lies, compared with another batch's noise; None without one."""
    accepted = drawn.list_accepted()
    other = accepted.get(noise.QUARTER, accepted.get(noise.FEATURES))
    return grids.find_grid(drawn.given, other)


def _collect_norms(tried: Mapping[str, Movement]) -> dict[str, float]:
    """Returns the norms of movements by example."""
    return {name: movement.norm for name, movement in tried.items()}


def _untried(reason: str) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried."""
    return CheckOutcome(reason, tried=False)


def _check_replay(probe: StepProbe) -> CheckOutcome:
    """Checks that two calls of the step with the same batch and seed give the same, up to rounding.

    Distances are Euclidean, in units of eta C / B. In these units the noise of a parameter has the deviation
    sigma, the noise multiplier. The first call is `probe.base`, with seed 0.
    """
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
    # sqrt(2) times its deviation in every number, so that its squared length is chi-squared.
    bug = findings.STATEFUL.fill(distance=distance)
    deviation = probe.settings.noise_multiplier * 2**0.5
    if deviation > 0:
        with np.errstate(over="ignore"):  # an infinite square has the quantile 1
            square = np.square(np.float64(distance) / deviation)
        quantile = scipy.stats.chi2.cdf(square, base.size)
        if 1e-3 < quantile < 0.999:  # as far apart as two draws of the noise
            bug = findings.UNSEEDED
    return CheckOutcome("", findings=[bug], figures=figures)


def _check_signal(probe: StepProbe, tried: TriedExamples) -> CheckOutcome:
    """Checks that some example moves each trained tensor, here called a layer.

    The outcome's figure `signal` has the largest norm of a movement in each layer, by the layer's name. It is
    in units of eta C / B. A layer that nothing moves leaves the check undecided: it may be right.
    """
    all_movements = tried.list_all().values()
    is_moved = np.zeros(probe.start.size, bool)
    peaks = np.zeros(len(probe.layer_names))
    for movement in all_movements:
        is_moved |= movement.vector != 0
        peaks = np.fmax(peaks, movement.layer_norms)  # unlike np.maximum, it passes over NaN
    # A layer is trained, or alive, where any of its numbers is trained, or moved by an example.
    is_trained = np.bincount(probe.layer, probe.is_trained) > 0
    is_alive = np.bincount(probe.layer, is_moved) > 0
    figures = {"signal": dict(zip(probe.layer_names, peaks.tolist(), strict=True))}
    if not np.any(is_moved):
        return _untried(_NOTHING_MOVES)

    dead = [probe.layer_names[i] for i in np.flatnonzero(is_trained & ~is_alive)]
    if dead:
        listed = ", ".join(dead[:6])
        text = (
            f"no example moves {listed}, only noise does: begin at trained parameters (an adapter's "
            "factor beside zeros has no gradient), look for a detached layer, or freeze what never has a "
            "gradient, such as the bias of keys in attention"
        )
        return CheckOutcome(text, tried=False, figures=figures)

    alive = np.flatnonzero(is_trained & is_alive)
    quietest = alive[np.argmin(peaks[alive])]
    text = "every trained tensor is moved by an example"
    measured = f"the least, {probe.layer_names[quietest]}, by up to {peaks[quietest]:.2g} C"
    frozen = len(probe.layer_names) - len(alive)
    if frozen:
        measured += f"; {counted(frozen, 'is not trained', 'are not trained')}"
    return CheckOutcome(text, figures=figures, measured=measured)


def _check_separation(probe: StepProbe, tried: TriedExamples, seconds: float) -> CheckOutcome:
    """Checks that two parts of a batch together move the step by the sum of what each does alone.

    The parts are extreme examples. If the sum differs, examples change each other's gradients. Distances are
    in units of eta C / B, so that a length of 1 is called C.

    Args:
      probe: the step.
      tried: the examples, and how far they move the step.
      seconds: how long a call of the step takes.
    """
    if not movements.is_any_moved(tried.list_all()):
        return _untried(_NOTHING_MOVES)
    if _takes_single_rows_only(probe):
        return CheckOutcome("the step takes batches of one row only", applies=False)
    measured = movements.measure_interactions(probe, tried, range(1))  # with seed 0 alone
    if isinstance(measured, str):  # why the step refused every pair of parts
        return _untried(measured)

    # Averaging over seeds makes rounding errors smaller, which otherwise hide interactions.
    tolerance = max(movement.tolerance for movement in measured)
    if tolerance > _COARSE_SUM:
        # A seed takes 12 calls: mostly three interactions are measured, by four calls each.
        seeds = _choose_seeds(probe, tolerance, _COARSE_SUM, 12 * seconds)
        if len(seeds) > 1:
            averaged = movements.measure_interactions(probe, tried, seeds)
            if not isinstance(averaged, str):
                measured = averaged

    # The pair of parts whose sum is most surely wrong: the largest excess over its tolerance.
    worst = max(measured, key=lambda movement: movement.norm - movement.tolerance)
    if not np.isfinite(worst.norm):
        return _untried(_NOT_FINITE)

    numbers = f"apart by {worst.norm:.2g} C (tolerance {worst.tolerance:.2g})"
    figures = {"separation": worst.norm, "separation tolerance": worst.tolerance}
    text = "two parts of a batch move it by the sum of what each does"
    if worst.norm > worst.tolerance:
        bug = findings.EXAMPLES_INTERACT.fill(distance=worst.norm)
        return CheckOutcome(text, findings=[bug], figures=figures, measured=numbers)
    if worst.tolerance > _COARSE_SUM:  # too imprecise to pass
        return _hide(worst.tolerance, figures)
    if tried.refusal:
        numbers += f"; rows were replaced, since {tried.refusal}"
    numbers += _describe_blind_spots(probe, tried)
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


def _describe_blind_spots(probe: StepProbe, tried: TriedExamples) -> str:
    """Returns a text on how examples may change each other unseen with this batch; empty if none is known.

    The text is added to the row of the check of separation. It says what to change in order to see more.
    """
    text = ""
    labels = probe.rows[-1]
    if trees.are_tokens(labels) and trees.find_padding(labels) is None:
        text += (
            "; all labels are equally long, and then a mean over all tokens of the batch looks like a mean "
            "of each example's own mean: pad some labels"
        )
    # An added example that is clipped moves the step by 1, in units of C. An example in another's place moves
    # it by the difference of both contributions, which does not show whether it was clipped.
    least_norm = min(causes.list_finite_norms(tried.movements), default=0.0)
    if tried.were_added and least_norm > 1 - _COARSE:
        text += (
            "; every example that was tried is clipped, so that it does not show whether others change the "
            "length of its gradient before: check once more with a larger clipping norm"
        )
    return text


def _choose_seeds(
    probe: StepProbe,
    tolerance: float,
    enough: float,
    seconds: float,
) -> range:
    """Returns the seeds to average over for a small enough tolerance; seed 0 alone if averaging cannot help.

    Averaging cannot help where it would take too many seeds, or where the noise is too small to vary the
    rounding errors.

    Args:
      probe: the step.
      tolerance: the tolerance with a single seed.
      enough: the largest tolerance that is small enough.
      seconds: how long all calls with a single seed take.
    """
    deviation = probe.settings.unit * probe.settings.noise_multiplier
    spacings = trees.compute_ulp(probe.base, probe.spacings)
    least = probe.get_least_tolerance()
    most = min(_MOST_SEEDS, 1 + _SECONDS / seconds)
    # The part of the tolerance above `least` falls with the root of the number of seeds. The factor 1.5 is a
    # margin. 1e-9 avoids a division by 0 where even the least tolerance is not below `enough`.
    needed = 1.5 * ((tolerance - least) / max(enough - least, 1e-9)) ** 2
    # Rounding errors of different seeds are independent only where the noise exceeds the spacing of numbers.
    if np.median(spacings) > deviation or needed > most:
        return range(1)
    return range(int(np.ceil(needed)))


def _hide(tolerance: float, figures: Mapping[str, Any]) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried, since rounding hides the movements."""
    text = f"rounding hides it (tolerance {tolerance:.2g} C): {_PRECISE}"
    return CheckOutcome(text, tried=False, figures=figures)


def _check_sensitivity(
    probe: StepProbe,
    trial: StepTrial,
    examples_interact: bool,
    seconds: float,
) -> CheckOutcome:
    """Checks that no example moves the step by more than C, and that clipping is what stops them.

    Movements are in units of eta C / B, so that a norm of 1 is called C. The plateau of a trial is the norm
    at which the largest movements stop together, C in a correct step; it is 0 if they do not. Two further
    bugs that movements show are reported here: examples that stop at a fraction of C, and noise that changes
    with the batch's size.

    Args:
      probe: the step.
      trial: what was measured.
      examples_interact: whether examples change how far others move the step.
      seconds: how long a call of the step takes.
    """
    tried = trial.tried
    plateau = trial.plateau
    if not movements.is_any_moved(tried.list_all()):
        return _untried(_NOTHING_MOVES)

    # Averaging over seeds makes rounding errors smaller, which otherwise hide movements.
    tolerance = max(movement.tolerance for movement in tried.movements.values())
    if tolerance > _COARSE:
        # A seed takes 4 calls: the batch as given, and with each of the three loudest examples.
        seeds = _choose_seeds(probe, tolerance, _COARSE, 4 * seconds)
        if len(seeds) > 1:
            tried = movements.refine_movements(probe, tried, seeds)
            # A plateau takes four examples, and only the largest three are left. Without a plateau no lost
            # signal is reported below, and whether clipping is reached is judged by size alone.
            plateau = 0.0

    # The example to report is the worst violation; without violations, the largest movement.
    violations = causes.find_violations(tried)
    candidates = violations or tried.movements
    example = max(candidates, key=lambda name: candidates[name].norm)
    largest = candidates[example]
    figures: dict[str, Any] = {
        # Of all examples, not only those measured again.
        "movements": _collect_norms(trial.tried.list_all()),
        "tolerance": largest.tolerance,
    }
    norm = f"{largest.norm:.4g} eta C / B"
    if trial.size != 1:
        figures["size"] = trial.size
        as_stated = f"{trial.size * largest.norm:.4g} eta C / B as stated"
        norm = f"{as_stated}, {largest.norm:.4g} at the size that the step has"
    places = f", also in the place of {len(tried.places)} of its rows" if tried.places else ""
    measured = (
        f"the examples tried move it by at most {norm}{places} (tolerance {largest.tolerance:.2g})"
    )

    bugs = []
    if np.isinf(largest.norm):
        bugs.append(findings.NOT_FINITE.fill(check="sensitivity", where=example))
    elif violations:
        cause = causes.find_cause(probe, tried, trial.drawn, examples_interact)
        bug = findings.TOO_FAR.fill(
            norm=largest.norm, example=example, name=cause.name, why=cause.why
        )
        bugs.append(bug)
    # Signal is lost where examples stop at a fraction of C. That counts only if no example moves the step too
    # far.
    lost = causes.find_lost_signal(probe, tried, plateau)
    if lost and not bugs:
        bugs.append(lost)
    # All added examples may share a movement that looks like a second draw of the noise. Where the seed also
    # changes what an example does, as with dropout, the cause may be other dropout masks in a larger batch.
    # So the noise is blamed only where it does not.
    if tried.redraws_noise and not trial.depends_on_seed:
        bugs.append(findings.MOVING_NOISE)
    if bugs:
        return CheckOutcome("", findings=bugs, figures=figures, measured=measured)

    # Without a bug the check passes only if it would have shown one: movements are precise, and some
    # example is large enough to be clipped.
    if largest.tolerance > _COARSE:
        return _hide(largest.tolerance, figures)
    if not causes.is_clipping_reached(probe, tried, plateau):
        text = (
            f"the largest movement was {largest.norm:.2g} C, so that clipping was not seen: state a "
            "smaller clipping norm, or give trained parameters or extreme_examples"
        )
        return CheckOutcome(text, tried=False, figures=figures)
    return CheckOutcome("", figures=figures, measured=measured)
