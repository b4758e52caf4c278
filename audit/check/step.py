"""One step of anyone's DP-SGD, replayed on neighbouring batches with one seed, and on one with many.

f(batch, seed) is what the step gives; a unit is eta C / B, as far as one example may move it. Related:
Re:cord-play (Cebere et al., 2026, arXiv 2602.17454), which records the noise primitives' inputs.
"""

import time
from typing import Any

import numpy as np

from audit.check import findings, trees, worlds
from audit.check.findings import Moved, Stated
from audit.check.probe import PartSeen, RefusedError, Step, StepProbe, probe_of
from audit.check.report import CheckReport, refused, row
from audit.check.trees import Columns
from audit.errors import InputError, require
from audit.values import number, shown

_COARSE = 0.05  # a tolerance beyond which a movement is not told
ROWS = (
    "replay",
    "sensitivity",
    "separation",
    "noise",
    "independence",
    "shape",
    "noise and data",
    "empty batch",
)


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
    stated = findings.stated(clipping_norm, noise_multiplier, learning_rate, batch_size)
    require(callable(step), f"`step={shown(step)}` is no function: give (params, batch, seed) -> params")
    count = None if seeds is None else number("seeds", seeds, int)
    require(count is None or 4 <= count <= 10**5, f"`seeds={count}`: give 4 to 100,000")
    with np.errstate(all="ignore"):
        return _checked(probe_of(step, params, batch, stated), extreme_examples, count)


def _checked(probe: StepProbe, extreme_examples: Any, seeds: int | None) -> CheckReport:
    tried = trees.extremes(probe.batch.columns) | _own(probe, extreme_examples)
    replay, seconds = _replay(probe)
    moved, refusal = _movements(probe, tried)
    fixed = not replay.found and not _noise_differs(moved, probe.stated)
    apart = _separation(probe, tried) if fixed and not refusal else PartSeen()
    drawn = worlds.draw(probe, seeds, seconds, {} if fixed else tried)
    if fixed:
        sensitive = _sensitivity(probe, moved, refusal)
    else:
        sensitive = worlds.sensitivity(probe, drawn, replayed=not replay.found)
    return _reported(probe, [replay, apart, worlds.law(probe, drawn), sensitive], moved, drawn)


def _own(probe: StepProbe, examples: Any) -> dict[str, Columns]:
    if examples is None:
        return {}
    more = trees.examples_of("extreme_examples", examples).columns
    same = [column.shape[1:] for column in more] == [column.shape[1:] for column in probe.batch.columns]
    require(same, "`extreme_examples`: give arrays like the batch's, rows of the same shapes")
    return {f"your example {i}": trees.taken(more, [i]) for i in range(len(more[0]))}


def _replay(probe: StepProbe) -> tuple[PartSeen, float]:
    """The first check, and the seconds that a step takes."""
    columns = probe.batch.columns
    try:
        base, began = probe(columns, 0), time.perf_counter()
        again = probe(columns, 0)
    except RefusedError as error:
        raise InputError(f"`step` failed on the batch as given: {error}") from error.__cause__
    seconds = time.perf_counter() - began
    if not np.all(np.isfinite(base)):
        finding = findings.not_finite("replay", "the batch as given")
        return PartSeen({"replay": ("the step gives NaN or infinity", True)}, [finding]), seconds
    far = float(np.linalg.norm(again - base)) / probe.stated.unit
    if far <= 2 * np.linalg.norm(probe.grid(base, len(columns[0]))):
        how = "equal to the bit" if far == 0 else "equal up to rounding"
        return PartSeen({"replay": (f"same seed, same step: {how}", True)}, [], {}, {"replay": far}), seconds
    finding = findings.unseeded(far, base.size, probe.stated)
    said = f"same seed, another step: {far:.3g} eta C / B apart"
    return PartSeen({"replay": (said, True)}, [finding], {}, {"replay": far}), seconds


def _movements(probe: StepProbe, tried: dict[str, Columns]) -> tuple[dict[str, Moved], str]:
    """How far each example more moves the step; where one more is refused, or never moves it, half of how far
    one does in place of the first, and why."""
    rows = probe.batch.columns
    moved, refusal = _against_base(probe, {n: trees.joined(rows, one) for n, one in tried.items()})
    if any(one.units > 1e-3 for one in moved.values()):
        return moved, refusal if not moved else ""
    others = trees.taken(rows, slice(1, None))
    halved, again = _against_base(probe, {n: trees.joined(one, others) for n, one in tried.items()}, 0.5)
    why = refusal or "one example more does not move it"
    return {f"{n}, in place of the first": one for n, one in halved.items()}, "" if halved else again or why


def _against_base(
    probe: StepProbe, batches: dict[str, Columns], scale: float = 1.0
) -> tuple[dict[str, Moved], str]:
    base, moved, refusal = probe.base, {}, ""
    assert base is not None
    for name, batch in batches.items():
        try:
            found = probe.moved(probe(batch, 0), base, len(batch[0]))
        except RefusedError as error:
            refusal = refusal or str(error)
            continue
        layers = {layer: scale * units for layer, units in found.layers.items()}
        moved[name] = Moved(scale * found.units, found.tolerance, layers, scale * found.difference)
    return moved, refusal


def _noise_differs(moved: dict[str, Moved], stated: Stated) -> bool:
    """Whether every example moves all numbers by as much as two draws of the noise are apart."""
    rms = [m.units / max(m.difference.size, 1) ** 0.5 for m in moved.values() if np.isfinite(m.units)]
    wide = all(m.difference.size >= 8 for m in moved.values())
    return wide and bool(rms) and stated.noise_multiplier > 0 and min(rms) > 0.9 * stated.noise_multiplier


def _quartets(probe: StepProbe, tried: dict[str, Columns]) -> dict[str, tuple[Columns, Columns, Columns]]:
    """What two parts are added to, and these, by what they are."""
    rows, examples = probe.batch.columns, list(tried.items())
    found = {}
    for (a, one), (b, other) in ((examples[0], examples[-1]), (examples[1], examples[len(examples) // 2])):
        found[f"{a}; {b}"] = rows, one, other
    size, quarter = len(rows[0]), worlds.quarter(rows)
    part = (size - quarter) // 2
    if part:  # two of a size that is compiled once, and a quarter that is drawn from anyway
        places = slice(0, quarter), slice(quarter, quarter + part), slice(quarter + part, quarter + 2 * part)
        least, one, other = (trees.taken(rows, place) for place in places)
        found["the parts of the batch"] = least, one, other
    return found


def _separation(probe: StepProbe, tried: dict[str, Columns]) -> PartSeen:
    """Whether two examples, or two parts of a batch, move the step by the sum of what each does."""
    worst, limit, pair = 0.0, 0.0, ""
    for name, (rows, one, other) in _quartets(probe, tried).items():
        batches = trees.joined(rows, one, other), trees.joined(rows, one), trees.joined(rows, other), rows
        try:
            both, first, second, neither = (probe(batch, 0) for batch in batches)
        except RefusedError as error:
            return PartSeen({"separation": (f"the step refused another batch: {error}", False)})
        residual = (both - first - second + neither) / probe.stated.unit
        grid = probe.grid(first, len(probe.batch.columns[0]))
        squares = float(np.sum(residual**2)) - float(np.sum(grid**2)) / 3
        allowed = 2e-3 + 12 * float(np.max(probe.spacings)) + float(6 * 0.12 * np.sum(grid**4)) ** 0.25
        allowed += float(np.max(grid, initial=0))
        far = float(np.sqrt(max(squares, 0))) if np.isfinite(squares) else 0.0
        if not pair or far / allowed > worst / limit:
            worst, limit, pair = far, allowed, name
    figures = {"separation": worst, "separation tolerance": limit}
    if worst > limit:
        said = f"two parts together move it by {worst:.3g} C more than one by one"
        return PartSeen({"separation": (said, True)}, [findings.not_separate(worst, pair)], figures=figures)
    if limit > _COARSE:
        return PartSeen({"separation": (findings.coarse(limit), False)}, figures=figures)
    said = "two examples, and parts of the batch, move it by the sum of what each does"
    return PartSeen({"separation": (said, True)}, figures=figures)


def _sensitivity(probe: StepProbe, moved: dict[str, Moved], refusal: str) -> PartSeen:
    """Whether no example moves the step by more than C."""
    if refusal:
        return PartSeen(
            {"sensitivity": (f"the step refused a batch with one example more: {refusal}", False)}
        )
    name, worst = max(moved.items(), key=lambda one: one[1].units)
    found = findings.too_sensitive(name, moved, probe.stated, _shrinks(probe), len(probe.batch.columns[0]))
    figures = {"movements": {name: m.units for name, m in moved.items()}, "tolerance": worst.tolerance}
    if not found and worst.tolerance > _COARSE:
        return PartSeen({"sensitivity": (findings.coarse(worst.tolerance), False)}, figures=figures)
    said = f"one example moves it by at most {worst.units:.4g} eta C / B (tolerance {worst.tolerance:.2g})"
    return PartSeen({"sensitivity": (said, True)}, found, figures=figures)


def _shrinks(probe: StepProbe) -> bool:
    """Whether one more example takes 1 / (n + 1) off the noise, as division by the actual size does."""
    rows, base = probe.batch.columns, probe.base
    assert base is not None
    try:
        more = trees.joined(rows, trees.taken(rows, slice(0, 1)))
        before, after = probe(rows, 1) - base, probe(more, 1) - probe(more, 0)
    except RefusedError:
        return False
    size, n = float(before @ before), len(rows[0])
    return size > 0 and abs((1 - float(before @ after) / size) * (n + 1) - 1) < 0.1


def _reported(
    probe: StepProbe, parts: list[PartSeen], moved: dict[str, Moved], drawn: worlds.DrawnNoise
) -> CheckReport:
    p_values = {name: p for part in parts for name, p in part.p_values.items()}
    rejected = refused(p_values)
    found = [finding for part in parts for finding in part.found]
    found += worlds.named(probe, drawn, rejected, p_values)
    found = findings.merged(found, probe.stated, worlds.overall(probe, drawn), moved)
    said = {name: seen for part in parts for name, seen in part.said.items()}
    unseeded = "noise that the seed does not fix hides it"
    checks = tuple(row(name, found, *said.get(name, (unseeded, False))) for name in ROWS)
    figures = {key: value for part in parts for key, value in part.figures.items()}
    order = sorted(found, key=lambda finding: ROWS.index(finding.check))
    pictures = worlds.pictures(probe, drawn) | {"movements": {n: m.units for n, m in moved.items()}}
    needed = ("replay", "sensitivity", "noise")
    return CheckReport("step", checks, tuple(order), needed, p_values, figures, pictures)
