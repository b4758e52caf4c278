"""One step of anyone's DP-SGD, replayed on neighbouring batches with one seed, and on one with many.

f(batch, seed) is what the step gives; a unit is eta C / B, as far as one example may move it. Related:
Re:cord-play (Cebere et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import time
from typing import Any

import numpy as np
from scipy import stats

from audit.check import findings, noise, trees
from audit.check.findings import CheckFinding
from audit.check.probe import Moved, RefusedError, Step, StepProbe
from audit.check.report import CheckOutcome, CheckReport, concluded
from audit.check.trees import Columns
from audit.errors import InputError, require
from audit.values import number

_COARSE = 0.05  # a tolerance beyond which a movement is not told


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
            probe = StepProbe(step, params, batch, stated)
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
    began, stated, drawn = time.perf_counter(), probe.stated, None
    replay = _replay(probe)
    seconds = time.perf_counter() - began
    moved, refusal = _movements(probe, tried)
    movements = {name: one.units for name, one in moved.items()}
    laws = dict.fromkeys(noise.ROWS, CheckOutcome("noise_multiplier=0: no noise is expected", False))
    if stated.noise_multiplier:
        drawn = noise.draw(probe, count, seconds)
        laws = noise.law(drawn)
    rms = [one.units / one.numbers.size**0.5 for one in moved.values() if one.numbers.size >= 8]
    moving = drawn and rms and min(rms) > 0.9 * stated.noise_multiplier  # as two draws of the noise
    sensitive = apart = CheckOutcome("other noise at every call, or in every batch, hides it", False)
    if moving and not replay.findings:
        sensitive = sensitive._replace(findings=[findings.MOVING_NOISE])
    elif not replay.findings:
        sensitive = apart = CheckOutcome(refusal, False)
        apart = apart if refusal else _separation(probe, tried)
        by_size = drawn and abs(4 * drawn.ratio(noise.FOURFOLD) / drawn.ratio() - 1) < 0.15
        sensitive = _sensitivity(probe, moved, by_size, apart.findings) if moved else sensitive

    def named(certain: list[CheckFinding], odd: dict[str, list[str]]) -> list[CheckFinding]:
        return noise.named(stated, drawn, _plateau(moved), certain, odd) if drawn else certain

    seen = {"replay": replay, "sensitivity": sensitive, "separation": apart, **laws}
    pictures = {"movements": movements, **(noise.pictures(drawn) if drawn else {})}
    return concluded("step", seen, ("replay", "sensitivity", "noise"), named, **pictures)


def _replay(probe: StepProbe) -> CheckOutcome:
    base, stated = probe.base, probe.stated
    if not np.all(np.isfinite(base)):
        finding = findings.NOT_FINITE.of(check="replay", where="the batch as given")
        return CheckOutcome("", findings=[finding])
    far = float(np.linalg.norm(probe(probe.rows, 0) - base)) / stated.unit
    figures = {"replay": far}
    if far <= 2 * np.linalg.norm(probe.grid(base, len(probe.rows[0]))):
        how = "equal to the bit" if far == 0 else "equal up to rounding"
        return CheckOutcome(f"same seed, same step: {how}", figures=figures)
    scale = max(stated.noise_multiplier, 1e-300) * 2**0.5
    of_noise = 1e-3 < stats.chi2.cdf((far / scale) ** 2, base.size) < 0.999
    finding = findings.UNSEEDED if of_noise else findings.STATEFUL.of(far=far)
    return CheckOutcome("", findings=[finding], figures=figures)


def _movements(probe: StepProbe, tried: dict[str, Columns]) -> tuple[dict[str, Moved], str]:
    """How far each example more moves the step; where one more is refused, or never moves it, half of how far
    one does in place of the first; and why none more could be tried."""
    refusal = "the step ignores an example more"
    for scale, least, how in ((1.0, 0, ""), (0.5, 1, ", in place of the first")):
        moved = {}
        for name, one in tried.items():
            batch = trees.joined(trees.taken(probe.rows, slice(least, None)), one)
            try:
                difference = scale * (probe(batch, 0) - probe.base)
                moved[name + how] = probe.measured(difference, probe.base, len(batch[0]))
            except RefusedError as error:
                refusal = f"the step refused a batch with one example more: {error}"
        if any(one.units > 1e-3 for one in moved.values()):
            return moved, refusal if how else ""
    return moved, refusal


def _separation(probe: StepProbe, tried: dict[str, Columns]) -> CheckOutcome:
    """Whether two parts of a batch, of extreme examples, move the step by the sum of what each does."""
    every, half = list(tried.values()), len(tried) // 2 | 1  # odd: pairs that are clipped as one show
    one, other = trees.joined(*every[:half]), trees.joined(*every[half:])
    try:
        both, first, second = (
            probe(trees.joined(probe.rows, *parts), 0) for parts in ((one, other), (one,), (other,))
        )
    except RefusedError as error:
        return CheckOutcome(f"the step refused a larger batch: {error}", False)
    worst = probe.measured(
        both - first - second + probe.base, first, len(one[0]) + len(probe.rows[0]), steps=4
    )
    if not np.isfinite(worst.units):
        return CheckOutcome("the step is not finite", False)
    found = [findings.MIXED.of(far=worst.units)] if worst.units > worst.tolerance else []
    said = "two parts of a batch move it by the sum of what each does"
    return _unless_hidden(
        worst, said, found, {"separation": worst.units, "separation tolerance": worst.tolerance}
    )


def _unless_hidden(
    worst: Moved, said: str, found: list[CheckFinding], figures: dict[str, Any]
) -> CheckOutcome:
    hidden = worst.tolerance > _COARSE and not found
    how = f"rounding hides it (tolerance {worst.tolerance:.2g} C): use float64 or a larger learning rate"
    return CheckOutcome(how if hidden else said, not hidden, found, {}, figures)


def _sensitivity(probe: StepProbe, moved: dict[str, Moved], by_size: Any, mixes: Any) -> CheckOutcome:
    """Whether no example moves the step by more than C; `by_size`: whether noise shrinks as the batch grows,
    `mixes`: whether examples change what others do."""
    example, worst = max(moved.items(), key=lambda one: one[1].units)
    figures = {"movements": {name: m.units for name, m in moved.items()}, "tolerance": worst.tolerance}
    said = f"one example moves it by at most {worst.units:.4g} eta C / B (tolerance {worst.tolerance:.2g})"
    found = []
    if np.isinf(worst.units):
        found = [findings.NOT_FINITE.of(check="sensitivity", where=example)]
    elif cause := _cause(probe, moved, worst, by_size, mixes):
        found = [findings.TOO_FAR.of(units=worst.units, example=example, name=cause[0], why=cause[1])]
    return _unless_hidden(worst, said, found, figures)


def _plateau(moved: dict[str, Moved]) -> float:
    """The movement at which the most extreme examples stop, 0 where they don't."""
    sizes = sorted((m.units for m in moved.values() if np.isfinite(m.units)), reverse=True)[:4]
    return sizes[0] if len(sizes) == 4 and sizes[0] <= sizes[-1] * 1.003 else 0.0


def _cause(
    probe: StepProbe, moved: dict[str, Moved], worst: Moved, by_size: Any, mixes: Any
) -> tuple[str, str] | None:
    """The name of the bug that movements amount to, and what shows it; None where there is none."""
    level, examples, size = _plateau(moved), len(probe.rows[0]), probe.stated.batch_size
    most = 1 + worst.tolerance
    if worst.units <= most:
        exact = size > 1 and worst.tolerance < 5e-3 / size + 1e-3
        twice = exact and min(abs(level * size - 1), abs(level * examples - 1)) < 5e-3
        return ("divided by the batch size twice", f"It should be 1, not {level:.4g}.") if twice else None
    layers, numbers = (sizes[sizes > 1e-3] for sizes in (worst.layers, worst.numbers))
    own = {"every layer clipped by itself": len(layers) ** 0.5, "an example that counts twice": 2.0}
    own |= {"divided by another batch size": size / examples}
    factor = "".join(noise.mistakes(probe.stated, level, 5e-3, own)[:1])
    by_number = numbers.size > 3 and np.max(numbers) < 1.02 and np.mean(numbers > 0.98) > 0.5
    left = ", ".join(probe.names[i] for i in _left_out(moved, most))
    large = max((m.units for name, m in moved.items() if "1000" in name), default=0)
    plain = max((m.units for name, m in moved.items() if "times" not in name), default=0)
    causes = [
        (by_size, findings.ACTUAL_SIZE.name, "Noise shrinks as the batch grows."),
        (by_number, "clipped number by number", "No number moves by more than C."),
        (factor, factor, f"All extreme examples move it by {level:.4g}."),
        (left, f"{left} left out of clipping", "The other layers move by at most C."),
        (max(layers) <= most, "layers clipped by themselves", "No layer moves by more than C."),
        (worst.units > 3 and large > 5 * plain, "no clipping of single examples", ""),
        (worst.units > 3 and mixes, "the batch is clipped, not its examples", "It changes what others do."),
        (True, "an example that moves the step by more than C", ""),
    ]
    return next((name, why) for fits, name, why in causes if fits)


def _left_out(moved: dict[str, Moved], allowed: float) -> list[int]:
    """The fewest layers, the loudest by more than C, without which examples move the step by C at most."""
    squares, left = np.array([one.layers for one in moved.values()]) ** 2, []
    loud = np.max(squares) > max(allowed, 1.01) ** 2
    while loud and np.max(np.sum(squares, axis=1)) > allowed**2:
        left.append(int(np.argmax(np.max(squares, axis=0))))
        squares[:, left] = 0
    return left if abs(np.max(np.sum(squares, axis=1)) - 1) < 0.04 else []
