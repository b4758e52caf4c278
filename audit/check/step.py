"""One step of anyone's DP-SGD, replayed with the same seed on neighbouring batches, and with many seeds.

Movements are in units of eta C / B, as far as one example may move the step. Related: Re:cord-play (Cebere
et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check import findings, noise, trees
from audit.check.findings import CheckFinding
from audit.check.noise import DrawnNoise
from audit.check.probe import Movement, RefusedError, Step, StepProbe
from audit.check.report import CheckOutcome, CheckReport, make_report
from audit.check.trees import Columns
from audit.errors import InputError, require
from audit.values import number

_COARSE = 0.05  # a larger tolerance hides the movement
_UNMOVED = 1e-3  # what is smaller counts as no movement


class BugCause(NamedTuple):
    """The name of a bug that movements amount to, and a sentence on what shows it."""

    name: str
    why: str


def check_step(
    step: Step,
    params: Any,
    batch: Any,
    *,
    clipping_norm: float,
    noise_multiplier: float,
    learning_rate: float,
    batch_size: float,
    extreme_examples: Any = None,
    seeds: int | None = None,
) -> CheckReport:
    """Checks whether one step of DP-SGD clips, adds noise and averages as it should.

    Nothing is trained, and JAX is not needed.

    Args:
      step: (params, batch, seed) -> params, one step of plain SGD, or the first of one with momentum; all its
        randomness follows from the whole number `seed`. For another optimizer let it return the private
        gradient in place of parameters, with learning_rate=1.
      params: arrays or tensors in dicts, lists or tuples, at which the step begins. Copies are handed over.
      batch: such arrays, their rows examples; labels last.
      clipping_norm, noise_multiplier, learning_rate: C, sigma, eta; noise on the sum has deviation sigma C.
      batch_size: B, by which the sum is divided: the expected size of a Poisson batch, the same for any data.
      extreme_examples: a batch of further examples to try, beside those that are made of the batch's.
      seeds: how many draws of the noise, by default as many as layers need and 20 seconds allow.

    Returns:
      The report: a table of checks, and the bugs by name.

    Raises:
      InputError: `step` is no step, or fails on the batch as given.

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
    if seeds is not None:
        seeds = number("seeds", seeds, int)
        require(4 <= seeds <= 10**5, f"`seeds={seeds}`: give 4 to 100,000")
    stated = {
        "clipping_norm": clipping_norm,
        "noise_multiplier": noise_multiplier,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
    }
    try:
        with np.errstate(all="ignore"):
            probe = StepProbe(step, params, batch, stated)
            examples = trees.make_extreme_examples(probe.rows)
            if extreme_examples is not None:
                examples |= _read_extreme_examples(extreme_examples, probe.rows)
            return _check_probe(probe, examples, seeds)
    except RefusedError as error:
        raise InputError(f"`step` failed on the batch as given: {error}") from error.__cause__


def _read_extreme_examples(examples: Any, rows: Columns) -> dict[str, Columns]:
    """Returns the caller's own examples, each by its number.

    Raises:
      InputError: they are not like the rows of the batch.
    """
    columns = trees.read_columns("extreme_examples", examples)
    is_alike = len(columns) == len(rows)
    for column, batch_column in zip(columns, rows, strict=False):
        if column.shape[1:] != batch_column.shape[1:]:
            is_alike = False
    require(is_alike, "`extreme_examples`: give arrays like the batch's, rows of the same shapes")

    result = {}
    for i in range(len(columns[0])):
        result[f"your example {i}"] = trees.take(columns, [i])
    return result


def _check_probe(
    probe: StepProbe,
    examples: dict[str, Columns],
    seeds: int | None,
) -> CheckReport:
    """Runs every check of a step.

    Args:
      probe: the step.
      examples: that are tried beside the batch, by name.
      seeds: how many draws of the noise; by default as many as it needs.
    """
    began = time.perf_counter()
    replay = _check_replay(probe)
    seconds = time.perf_counter() - began
    movements, refusal = _measure_movements(probe, examples)

    drawn = None
    noise_outcomes = dict.fromkeys(noise.ROWS, _untried("noise_multiplier=0: no noise is expected"))
    if probe.settings.noise_multiplier:
        drawn = noise.draw_noise(probe, seeds, seconds)
        noise_outcomes = noise.check_noise(drawn)

    hidden = _untried("other noise at every call, or in every batch, hides it")
    if replay.findings:
        sensitivity = separation = hidden
    elif drawn and _moves_like_noise(movements, probe.settings.noise_multiplier):
        sensitivity = hidden._replace(findings=[findings.MOVING_NOISE])
        separation = hidden
    else:
        sensitivity = separation = _untried(refusal)
        if not refusal:
            separation = _check_separation(probe, examples)
        if movements:
            examples_interact = bool(separation.findings)
            sensitivity = _check_sensitivity(probe, movements, drawn, examples_interact)

    outcomes = {
        "replay": replay,
        "sensitivity": sensitivity,
        "separation": separation,
        **noise_outcomes,
    }
    needed = ("replay", "sensitivity", "noise")
    pictures: dict[str, Any] = {"movements": _collect_norms(movements)}
    if drawn is None:
        return make_report("step", outcomes, needed, **pictures)
    pictures |= noise.make_noise_pictures(drawn)
    name_findings = partial(noise.name_noise_bugs, probe.settings, drawn, _find_plateau(movements))
    return make_report("step", outcomes, needed, name_findings, **pictures)


def _collect_norms(movements: Mapping[str, Movement]) -> dict[str, float]:
    """Returns the norms of movements by example."""
    return {name: movement.norm for name, movement in movements.items()}


def _untried(reason: str) -> CheckOutcome:
    """Returns the outcome of a check that could not be tried."""
    return CheckOutcome(reason, tried=False)


def _check_replay(probe: StepProbe) -> CheckOutcome:
    """Checks that the step gives the same twice with the same seed."""
    base = probe.base
    if not np.all(np.isfinite(base)):
        bug = findings.NOT_FINITE.fill(check="replay", where="the batch as given")
        return CheckOutcome("", findings=[bug])

    again = probe.run(probe.rows, 0)
    distance = float(np.linalg.norm(again - base)) / probe.settings.unit
    figures = {"replay": distance}
    rounding = probe.compute_rounding(base, len(probe.rows[0]))
    if distance <= 2 * np.linalg.norm(rounding):
        how = "equal to the bit" if distance == 0 else "equal up to rounding"
        return CheckOutcome(f"same seed, same step: {how}", figures=figures)

    # Two draws of the noise differ by sqrt(2) deviations in every number.
    deviation = max(probe.settings.noise_multiplier, 1e-300) * 2**0.5
    quantile = stats.chi2.cdf((distance / deviation) ** 2, base.size)
    bug = findings.STATEFUL.fill(distance=distance)
    if 1e-3 < quantile < 0.999:
        bug = findings.UNSEEDED
    return CheckOutcome("", findings=[bug], figures=figures)


def _measure_movements(
    probe: StepProbe, examples: dict[str, Columns]
) -> tuple[dict[str, Movement], str]:
    """Measures how far each example moves the step when it is added to the batch.

    Where the step refuses a larger batch, or ignores one more example, examples take the place of the first
    one, and half of what they move the step counts: an example leaves while another comes.

    Returns:
      Movements by example, and why examples could not be added, empty where they could.
    """
    movements, error = _try_examples(probe, examples, probe.rows, "", 1.0)
    if _is_moved(movements):
        return movements, ""
    if error:
        refusal = f"the step refused a batch with one more example: {error}"
    else:
        refusal = "the step ignores one more example"

    without_first = trees.take(probe.rows, slice(1, None))
    movements, error = _try_examples(probe, examples, without_first, ", in place of the first", 0.5)
    if error:
        refusal = f"the step refused a batch with one more example: {error}"
    return movements, refusal


def _try_examples(
    probe: StepProbe,
    examples: dict[str, Columns],
    rows: Columns,
    suffix: str,
    scale: float,
) -> tuple[dict[str, Movement], str]:
    """Measures how far each example beside these rows moves the step from the batch as given.

    Args:
      probe: the step.
      examples: by name.
      rows: the others of the batch.
      suffix: of the names that movements get.
      scale: by which movements are multiplied.

    Returns:
      Movements by name, and the last error of examples that the step refused.
    """
    movements = {}
    last_error = ""
    for name, example in examples.items():
        batch = trees.join(rows, example)
        try:
            difference = scale * (probe.run(batch, 0) - probe.base)
            movements[name + suffix] = probe.measure(difference, probe.base, len(batch[0]))
        except RefusedError as error:
            last_error = str(error)
    return movements, last_error


def _is_moved(movements: Mapping[str, Movement]) -> bool:
    return any(movement.norm > _UNMOVED for movement in movements.values())


def _moves_like_noise(movements: Mapping[str, Movement], noise_multiplier: float) -> bool:
    """Returns whether every example moves all numbers as far as another draw of the noise does."""
    typical_sizes = []
    for movement in movements.values():
        count = movement.sizes.size
        if count >= 8:  # with fewer numbers a movement of C is as large
            typical_sizes.append(movement.norm / count**0.5)
    return bool(typical_sizes) and min(typical_sizes) > 0.9 * noise_multiplier


def _check_separation(probe: StepProbe, examples: dict[str, Columns]) -> CheckOutcome:
    """Checks that two parts of a batch, of extreme examples, move the step by the sum of what each does."""
    columns = list(examples.values())
    half = len(columns) // 2 | 1  # odd, so that examples that are clipped in pairs show
    first = trees.join(*columns[:half])
    second = trees.join(*columns[half:])
    try:
        after_both = probe.run(trees.join(probe.rows, first, second), 0)
        after_first = probe.run(trees.join(probe.rows, first), 0)
        after_second = probe.run(trees.join(probe.rows, second), 0)
    except RefusedError as error:
        return _untried(f"the step refused a larger batch: {error}")

    difference = after_both - after_first - after_second + probe.base
    batch_size = len(first[0]) + len(probe.rows[0])
    movement = probe.measure(difference, after_first, batch_size, steps=4)
    if not np.isfinite(movement.norm):
        return _untried("the step is not finite")
    bugs = []
    if movement.norm > movement.tolerance:
        bugs.append(findings.EXAMPLES_INTERACT.fill(distance=movement.norm))
    text = "two parts of a batch move it by the sum of what each does"
    figures = {"separation": movement.norm, "separation tolerance": movement.tolerance}
    return _judge_movement(movement, text, bugs, figures)


def _judge_movement(
    movement: Movement,
    text: str,
    bugs: list[CheckFinding],
    figures: dict[str, Any],
) -> CheckOutcome:
    """Returns the outcome of a movement; without a bug it could not be tried where rounding hides it."""
    if movement.tolerance > _COARSE and not bugs:
        hidden = f"rounding hides it (tolerance {movement.tolerance:.2g} C)"
        text = f"{hidden}: use float64 or a larger learning rate"
        return CheckOutcome(text, tried=False, figures=figures)
    return CheckOutcome(text, findings=bugs, figures=figures)


def _check_sensitivity(
    probe: StepProbe,
    movements: dict[str, Movement],
    drawn: DrawnNoise | None,
    examples_interact: bool,
) -> CheckOutcome:
    """Checks that no example moves the step by more than C.

    Args:
      probe: the step.
      movements: by example.
      drawn: the noise, where there is any.
      examples_interact: whether examples change what others do.
    """
    example = max(movements, key=lambda name: movements[name].norm)
    largest = movements[example]
    bugs = []
    if np.isinf(largest.norm):
        bugs.append(findings.NOT_FINITE.fill(check="sensitivity", where=example))
    else:
        cause = _find_cause(probe, movements, drawn, examples_interact)
        if cause:
            finding = findings.TOO_FAR.fill(
                norm=largest.norm, example=example, name=cause.name, why=cause.why
            )
            bugs.append(finding)
    most = f"the examples tried move it by at most {largest.norm:.4g} eta C / B"
    text = f"{most} (tolerance {largest.tolerance:.2g})"
    figures = {
        "movements": _collect_norms(movements),
        "tolerance": largest.tolerance,
    }
    return _judge_movement(largest, text, bugs, figures)


def _find_plateau(movements: Mapping[str, Movement]) -> float:
    """Returns the norm at which the most extreme examples stop, 0 where they don't."""
    finite = filter(np.isfinite, _collect_norms(movements).values())
    norms = sorted(finite, reverse=True)
    if len(norms) < 4 or norms[0] > norms[3] * 1.003:
        return 0.0
    return norms[0]


def _find_cause(
    probe: StepProbe,
    movements: dict[str, Movement],
    drawn: DrawnNoise | None,
    examples_interact: bool,
) -> BugCause | None:
    """Returns the bug that the movements amount to; None where there is none."""
    largest = max(movements.values(), key=lambda movement: movement.norm)
    allowed = 1 + largest.tolerance
    plateau = _find_plateau(movements)
    if largest.norm <= allowed:
        if _is_divided_twice(probe, largest, plateau):
            return BugCause(
                "divided by the batch size twice", f"It should be 1, not {plateau:.4g}."
            )
        return None

    if drawn and _shrinks_with_batch(drawn):
        return BugCause(findings.ACTUAL_SIZE.name, "Noise shrinks as the batch grows.")

    sizes = largest.sizes[largest.sizes > _UNMOVED]
    if sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5:
        return BugCause("clipped number by number", "No number moves by more than C.")

    layer_norms = largest.layer_norms[largest.layer_norms > _UNMOVED]
    factors = {
        "every layer clipped by itself": len(layer_norms) ** 0.5,
        "an example that counts twice": 2.0,
        "divided by another batch size": probe.settings.batch_size / len(probe.rows[0]),
    }
    mistakes = noise.find_mistakes(probe.settings, plateau, 5e-3, factors)
    if mistakes:
        return BugCause(mistakes[0], f"All extreme examples move it by {plateau:.4g}.")

    unclipped = _find_unclipped_layers(movements, allowed)
    if unclipped:
        names = ", ".join(probe.layer_names[i] for i in unclipped)
        return BugCause(f"{names} left out of clipping", "The other layers move by at most C.")
    if max(layer_norms) <= allowed:
        return BugCause("layers clipped by themselves", "No layer moves by more than C.")

    if largest.norm > 3 and _grows_with_features(movements):
        return BugCause("no clipping of single examples", "")
    if largest.norm > 3 and examples_interact:
        return BugCause("the batch is clipped, not its examples", "It changes what others do.")
    return BugCause("an example that moves the step by more than C", "")


def _is_divided_twice(probe: StepProbe, largest: Movement, plateau: float) -> bool:
    """Returns whether extreme examples stop at C / B, by the stated or the actual batch size."""
    size = probe.settings.batch_size
    actual_size = len(probe.rows[0])
    is_exact = size > 1 and largest.tolerance < 5e-3 / size + 1e-3
    stated_error = abs(plateau * size - 1)
    actual_error = abs(plateau * actual_size - 1)
    return is_exact and min(stated_error, actual_error) < 5e-3


def _shrinks_with_batch(drawn: DrawnNoise) -> bool:
    """Returns whether the noise at four times the batch is a quarter."""
    ratio = drawn.compute_deviation(noise.FOURFOLD) / drawn.compute_deviation()
    return bool(abs(4 * ratio - 1) < 0.15)


def _grows_with_features(movements: Mapping[str, Movement]) -> bool:
    """Returns whether examples with large features move the step much further than those as they are."""
    large = 0.0
    plain = 0.0
    for name, movement in movements.items():
        if "1000" in name:
            large = max(large, movement.norm)
        if "times" not in name:
            plain = max(plain, movement.norm)
    return large > 5 * plain


def _find_unclipped_layers(movements: Mapping[str, Movement], allowed: float) -> list[int]:
    """Finds the layers that clipping leaves out.

    Takes away the layer that moves most until no example moves the rest by more than `allowed`.

    Returns:
      Indices of those layers; empty where no layer alone exceeds C, or where the rest does not stop at C,
      so that leaving layers out is not what happened.
    """
    layer_norms = np.array([movement.layer_norms for movement in movements.values()])
    squares = layer_norms**2  # (examples, layers)
    if np.max(squares) <= max(allowed, 1.01) ** 2:
        return []

    unclipped: list[int] = []
    while np.max(np.sum(squares, axis=1)) > allowed**2:
        largest = int(np.argmax(np.max(squares, axis=0)))
        unclipped.append(largest)
        squares[:, largest] = 0
    rest = np.max(np.sum(squares, axis=1))
    rest_stops_at_c = abs(rest - 1) < 0.04
    if not rest_stops_at_c:
        return []
    return unclipped
