"""One step of anyone's DP-SGD, replayed on neighbouring batches with one seed, and on one with many.

f(batch, seed) is what the step gives; a unit is eta C / B, as far as one example may move it. Related:
Re:cord-play (Cebere et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import itertools
import time
from typing import Any

import numpy as np
from scipy import stats

from audit.check import draws, findings, noise, trees
from audit.check.draws import DrawnNoise
from audit.check.findings import CheckFinding
from audit.check.probe import Moved, RefusedError, Stated, Step, StepProbe, probe_of
from audit.check.report import CheckOutcome, CheckReport, concluded
from audit.check.trees import Columns
from audit.errors import InputError, require
from audit.values import number

_COARSE = 0.05  # a tolerance beyond which a movement is not told
_ALIKE = 0.02  # how near a figure must be to a cause's


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
    """Whether one step of DP-SGD clips, adds noise and averages as it should; no training, no JAX of its own.

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

    Raises InputError for what is no step, or one that fails on the batch as given.

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
    count = None if seeds is None else number("seeds", seeds, int)
    require(count is None or 4 <= count <= 10**5, f"`seeds={count}`: give 4 to 100,000")
    stated = {"clipping_norm": clipping_norm, "noise_multiplier": noise_multiplier}
    stated |= {"learning_rate": learning_rate, "batch_size": batch_size}
    try:
        with np.errstate(all="ignore"):
            probe = probe_of(step, params, batch, stated)
            return _checked(probe, trees.extremes(probe.rows) | _own(probe.rows, extreme_examples), count)
    except RefusedError as error:
        raise InputError(f"`step` failed on the batch as given: {error}") from error.__cause__


def _own(rows: Columns, examples: Any) -> dict[str, Columns]:
    if examples is None:
        return {}
    more = trees.columns_of("extreme_examples", examples)
    same = [column.shape[1:] for column in more] == [column.shape[1:] for column in rows]
    require(same, "`extreme_examples`: give arrays like the batch's, rows of the same shapes")
    return {f"your example {i}": trees.taken(more, [i]) for i in range(len(more[0]))}


def _checked(probe: StepProbe, tried: dict[str, Columns], count: int | None) -> CheckReport:
    began = time.perf_counter()
    replay = _replay(probe)
    seconds = time.perf_counter() - began
    moved, refusal = _movements(probe, tried)
    moving = not replay.findings and _noise_differs(moved, probe.stated)
    fixed = not replay.findings and not moving
    apart = CheckOutcome("noise that the seed does not fix hides it", False)
    if fixed:
        apart = _separation(probe, tried) if not refusal else apart._replace(text=_refused(refusal))
    drawn = draws.draw(probe, count, seconds, {} if fixed else tried)
    sensitive = noise.sensitivity(probe.stated.noise_multiplier, drawn, moving)
    if fixed:
        sensitive = _sensitivity(probe, moved, refusal, drawn, bool(apart.findings))
    seen = {"replay": replay, "sensitivity": sensitive, "separation": apart, **noise.law(probe.stated, drawn)}

    def named(certain: list[CheckFinding], rejected: set[str]) -> list[CheckFinding]:
        found = noise.named(probe.stated, drawn, certain, rejected)
        return _one_of_both(found, probe.stated, drawn.ratio(), moved)

    pictures = draws.pictures(drawn) | {"movements": {name: one.units for name, one in moved.items()}}
    return concluded("step", seen, ("replay", "sensitivity", "noise"), named, **pictures)


def _replay(probe: StepProbe) -> CheckOutcome:
    base, size = probe.base, probe.base.size
    again = probe(probe.rows, 0)
    if not np.all(np.isfinite(base)):
        finding = findings.NOT_FINITE.of(check="replay", where="the batch as given")
        return CheckOutcome("the step gives NaN or infinity", findings=[finding])
    far = float(np.linalg.norm(again - base)) / probe.stated.unit
    figures = {"replay": far}
    if far <= 2 * np.linalg.norm(probe.grid(base, len(probe.rows[0]))):
        how = "equal to the bit" if far == 0 else "equal up to rounding"
        return CheckOutcome(f"same seed, same step: {how}", figures=figures)
    sigma = max(probe.stated.noise_multiplier, 1e-300)
    of_noise = 1e-3 < stats.chi2.cdf((far / sigma) ** 2 / 2, size) < 0.999
    finding = findings.UNSEEDED if of_noise else findings.STATEFUL.of(far=far)
    return CheckOutcome("same seed, another step", findings=[finding], figures=figures)


def _refused(refusal: str) -> str:
    return f"the step refused a batch with one example more: {refusal}"


def _movements(probe: StepProbe, tried: dict[str, Columns]) -> tuple[dict[str, Moved], str]:
    """How far each example more moves the step; where one more is refused, or never moves it, half of how far
    one does in place of the first; and why none could be tried."""
    rows, others = probe.rows, trees.taken(probe.rows, slice(1, None))
    more = {name: trees.joined(rows, one) for name, one in tried.items()}
    instead = {f"{name}, in place of the first": trees.joined(one, others) for name, one in tried.items()}
    moved: dict[str, Moved] = {}
    refusal = ""
    for scale, batches in ((1.0, more), (0.5, instead)):
        moved = {}
        for name, batch in batches.items():
            try:
                difference = scale * (probe(batch, 0) - probe.base)
                moved[name] = probe.measured(difference, probe.base, len(batch[0]))
            except RefusedError as error:
                refusal = refusal or str(error)
        if any(one.units > 1e-3 for one in moved.values()):
            break
    return moved, "" if moved else refusal


def _noise_differs(moved: dict[str, Moved], stated: Stated) -> bool:
    """Whether every example moves all numbers by as much as two draws of the noise are apart."""
    rms = [m.units / m.difference.size**0.5 for m in moved.values() if np.isfinite(m.units)]
    wide = all(m.difference.size >= 8 for m in moved.values())
    return wide and bool(rms) and stated.noise_multiplier > 0 and min(rms) > 0.9 * stated.noise_multiplier


def _separation(probe: StepProbe, tried: dict[str, Columns]) -> CheckOutcome:
    """Whether two examples, or two parts of a batch, move the step by the sum of what each does."""
    rows, examples = probe.rows, list(tried.items())
    parts: dict[str, tuple[Columns, ...]] = {}
    for (a, one), (b, other) in ((examples[0], examples[-1]), (examples[1], examples[len(examples) // 2])):
        parts[f"{a}; {b}"] = rows, one, other
    quarter = draws.quarter(rows)
    part = (len(rows[0]) - quarter) // 2
    if part:  # two of a size that is compiled once, and a quarter that is drawn from anyway
        cuts = [slice(0, quarter), slice(quarter, quarter + part), slice(quarter + part, quarter + 2 * part)]
        parts["the parts of the batch"] = tuple(trees.taken(rows, cut) for cut in cuts)
    found = {}
    for name, (least, one, other) in parts.items():
        batches = trees.joined(least, one, other), trees.joined(least, one), trees.joined(least, other), least
        try:
            both, first, second, neither = (probe(batch, 0) for batch in batches)
        except RefusedError as error:
            return CheckOutcome(f"the step refused another batch: {error}", False)
        residual = both - first - second + neither
        if np.all(np.isfinite(residual)):
            found[name] = probe.measured(residual, first, len(rows[0]), steps=4)
    if not found:
        return CheckOutcome("the step is not finite", False)
    name, worst = max(found.items(), key=lambda one: one[1].units / one[1].tolerance)
    figures = {"separation": worst.units, "separation tolerance": worst.tolerance}
    if worst.units > worst.tolerance:
        return CheckOutcome("", findings=[findings.MIXED.of(far=worst.units, parts=name)], figures=figures)
    if worst.tolerance > _COARSE:
        return CheckOutcome(_hidden(worst.tolerance), False, figures=figures)
    said = "two examples, and parts of the batch, move it by the sum of what each does"
    return CheckOutcome(said, figures=figures)


def _hidden(tolerance: float) -> str:
    return f"rounding hides it (tolerance {tolerance:.2g} C): use float64 or a larger learning rate"


def _sensitivity(
    probe: StepProbe, moved: dict[str, Moved], refusal: str, drawn: DrawnNoise, mixes: bool
) -> CheckOutcome:
    """Whether no example moves the step by more than C."""
    if refusal:
        return CheckOutcome(_refused(refusal), False)
    worst = max(moved.values(), key=lambda one: one.units)
    found = _named(moved, probe.stated, len(probe.rows[0]), drawn.by_size(), mixes)
    figures = {"movements": {name: m.units for name, m in moved.items()}, "tolerance": worst.tolerance}
    if not found and worst.tolerance > _COARSE:
        return CheckOutcome(_hidden(worst.tolerance), False, figures=figures)
    said = f"one example moves it by at most {worst.units:.4g} eta C / B (tolerance {worst.tolerance:.2g})"
    return CheckOutcome(said, True, [found] if found else [], figures=figures)


def _named(
    moved: dict[str, Moved], stated: Stated, examples: int, by_size: bool, mixes: bool
) -> CheckFinding | None:
    """The bug that movements amount to, if any; `by_size`: whether noise shrinks as the batch grows, `mixes`:
    whether examples change what others do."""
    example, one = max(moved.items(), key=lambda named: named[1].units)
    level, allowed = _plateau(moved), 1 + one.tolerance
    if np.isinf(one.units):
        return findings.NOT_FINITE.of(check="sensitivity", where=example)
    if one.units <= allowed:
        for size, divisor in ((stated.batch_size, "the batch size"), (examples, "the number of examples")):
            exact = level and size > 1 and one.tolerance < 5e-3 / size + 1e-3
            if exact and abs(level * size - 1) < 5e-3:
                return findings.DIVIDED_TWICE.of(units=level, divisor=divisor)
        return None
    said: dict[str, Any] = {"units": one.units, "example": example}
    if by_size:
        figure = f"{one.units:.4g} times eta C / B, with {example}"
        return findings.ACTUAL_SIZE.of(check="sensitivity", figure=figure)
    numbers = np.abs(one.difference)[np.abs(one.difference) > 1e-3]
    if numbers.size > 3 and np.max(numbers) < 1 + _ALIKE and np.mean(numbers > 0.98) > 0.5:
        return findings.BY_NUMBER.of(**said)
    layers = {name: units for name, units in one.layers.items() if units > 1e-3}
    for times, factor, mend in _factors(stated, len(layers), examples) if level else ():
        if abs(times - 1) > _ALIKE and abs(level / times - 1) < 5e-3:
            return findings.BY_A_FACTOR.of(**said, factor=factor, level=level, mend=mend)
    if left := _left_out(moved, allowed):
        return findings.LEFT_OUT.of(**said, layers=", ".join(sorted(left)))
    if len(layers) > 1 and max(layers.values()) <= allowed:
        return findings.BY_LAYER.of(**said, count=len(layers))
    large = [m.units for name, m in moved.items() if "times 1000" in name or "times -1000" in name]
    plain = [m.units for name, m in moved.items() if "times" not in name]
    if one.units > 3 and large and plain and max(large) > 5 * max(*plain, 1e-9):
        return findings.UNCLIPPED.of(**said)
    return (findings.WHOLE_BATCH if mixes and one.units > 3 else findings.TOO_FAR).of(**said)


def _plateau(moved: dict[str, Moved]) -> float:
    """The movement at which the most extreme examples stop, 0 where they don't."""
    sizes = sorted((m.units for m in moved.values() if np.isfinite(m.units)), reverse=True)[:4]
    return sizes[0] if len(sizes) == 4 and sizes[0] <= sizes[-1] * 1.003 else 0.0


def _factors(stated: Stated, layers: int, examples: int) -> list[tuple[float, str, str]]:
    """By what a mistake multiplies the movement of every clipped example, its name and its mend."""
    clip, _, rate, size = stated
    once = "count it once: clip the sum of its copies, not each of them"
    return [
        (size, "not divided by the batch size", "divide the sum of gradients by the batch size"),
        (layers**0.5, "every layer clipped by itself", f"clip each of {layers} layers to C / sqrt({layers})"),
        (2.0, "an example that counts twice", once),
        (size / examples, "divided by another batch size", "divide by the stated batch size"),
        (1 / clip, "clipped to 1 in place of C", "clip to the stated clipping norm"),
        (clip, "C enters twice", "multiply by min(1, C / norm), which is already in C"),
        (1 / rate, "learning rate left out", "state the learning rate that the step has"),
    ]


def _left_out(moved: dict[str, Moved], allowed: float) -> tuple[str, ...]:
    """The fewest layers, some moved by more than C, without which examples move the step by C at most, and
    one by C."""
    squares = np.array([list(one.layers.values()) for one in moved.values()]) ** 2
    names = list(next(iter(moved.values())).layers)
    loud = np.max(squares, axis=0) > max(allowed, 1.01) ** 2
    for several in (1, 2, 3):
        for left in itertools.combinations(range(len(names))[:24], several):
            rest = np.max(np.sum(np.delete(squares, left, axis=1), axis=1)) ** 0.5
            if np.any(loud[list(left)]) and abs(rest - 1) < _ALIKE:
                return tuple(names[i] for i in left)
    return ()


def _one_of_both(
    found: list[CheckFinding], stated: Stated, ratio: float, moved: dict[str, Moved]
) -> list[CheckFinding]:
    """The findings; movement and noise that err by one factor are one of them."""
    kinds, level = {one.check for one in found}, _plateau(moved)
    both = "noise" in kinds and "noise and data" not in kinds
    far = min(abs(ratio - 1), abs(level - 1)) > _ALIKE
    if not (both and far and abs(level / ratio - 1) < 0.05):
        return found
    why = noise.why(ratio, stated, 1, 0.0).replace("the noise is", "the step is").replace(" the noise", "")
    rest = [one for one in found if one.check not in ("sensitivity", "noise")]
    return [findings.ANOTHER_SIZE.of(ratio=ratio, why=why), *rest]
