"""A step's noise, drawn with many seeds at the batch as given and at others.

Noise is in stated deviations eta sigma C / B; its mean over n seeds is removed, which leaves n - 1 degrees of
freedom a number.
"""

import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import findings, trees
from audit.check.findings import CheckFinding
from audit.check.probe import RefusedError, StepProbe
from audit.check.trees import Columns, Vector

_USUAL, _LEAST, _MOST = 64, 12, 2000  # draws
_FREEDOM, _NUMBERS = 320, 20_000  # wanted in the smallest layer, and in all, where a few seconds allow
_SECONDS, _MORE_SECONDS, _KEPT = 20.0, 3.0, 60_000  # of draws; numbers kept of each
_ROUGH = 32  # a deviation of fewer distances between numbers shows the grid in the shape
EMPTY, FOURFOLD, QUARTER = "an empty batch", "four times the batch", "a quarter of the batch"


class LayerNoise(NamedTuple):
    """A layer's noise: (n, k) numbers, 0 where rounding hides it; their mean (k,), in stated deviations; the
    deviation, what rounding adds taken off, how far it may be wrong, its degrees of freedom; which numbers
    (k,) are so fine that rounding does not show in the shape."""

    noise: Vector
    mean: Vector
    ratio: float
    tolerance: float
    freedom: int
    exact: NDArray[np.bool_]


Layers = dict[str, LayerNoise]


class DrawnNoise(NamedTuple):
    """The trained layers' noise at the batch as given, by name of other batches, or why there is none, and of
    batches with an extreme example; findings of numbers that get none, and of one noise for all seeds."""

    base: Layers
    others: dict[str, Layers | str]
    extremes: dict[str, Layers]
    partly_silent: list[CheckFinding]
    constant: bool

    def ratio(self, batch: str | None = None) -> np.float64:
        """The deviation over all layers, NaN where none can be told."""
        layers = self.base if batch is None else self.others.get(batch, "")
        known = [one for one in layers.values() if one.freedom] if isinstance(layers, dict) else []
        squares = sum(one.ratio**2 * one.freedom for one in known)
        freedom = sum(one.freedom for one in known)
        return np.sqrt(np.float64(squares) / freedom) if known else np.float64(np.nan)

    def by_size(self) -> bool:
        """Whether noise shrinks as the batch grows, as division by the actual size makes it."""
        return bool(abs(4 * self.ratio(FOURFOLD) / self.ratio() - 1) < 0.15)


def quarter(rows: Columns) -> int:
    """How many examples are a quarter of a batch, 1 at least."""
    return max(1, len(rows[0]) // 4)


def draw(probe: StepProbe, seeds: int | None, seconds: float, tried: Mapping[str, Columns]) -> DrawnNoise:
    """The draws that time allows, `seconds` each; with `tried`, with some of these examples added too."""
    if probe.stated.noise_multiplier == 0:
        return DrawnNoise({}, {}, {}, [], False)
    began, rows, few = time.perf_counter(), probe.rows, quarter(probe.rows)
    probe(rows, 1)  # shows what is trained
    count, moved = seeds or _count(probe, seconds), probe.depends.copy()
    probe.depends[:] = False
    base = _at(probe, rows, [0, 1, *_seeds(probe, 0, count - 2)])
    noisy = probe.depends.copy()
    probe.depends |= moved
    fewer = max(_LEAST, min(count, _FREEDOM) // 4) if time.perf_counter() - began < 2 * _SECONDS else 4
    batches = {QUARTER: trees.taken(rows, slice(0, few))} if few < len(rows[0]) else {}
    batches |= {FOURFOLD: trees.joined(*[rows] * 4), "features times 1000": trees.scaled(rows, 1e3, rows)}
    batches |= {EMPTY: trees.taken(rows, slice(0, 0))}
    others = {name: _or_why(probe, batch, _seeds(probe, 1, fewer)) for name, batch in batches.items()}
    some = list(tried)[:: max(1, -(-len(tried) // 6))]
    seen = {n: _or_why(probe, trees.joined(rows, tried[n]), _seeds(probe, 1, min(count, 128))) for n in some}
    trained = probe.trained()
    base = {name: base[name] for name in trained}
    extremes = {name: layers for name, layers in seen.items() if isinstance(layers, dict)}
    return DrawnNoise(base, others, extremes, _partly_silent(probe, noisy), _constant(probe, noisy))


def _count(probe: StepProbe, seconds: float) -> int:
    sizes = [probe.layers[name].stop - probe.layers[name].start for name in probe.trained()]
    wanted = int(np.clip(_FREEDOM / min(sizes, default=_FREEDOM), _USUAL, _FREEDOM))
    more = int(np.clip(_NUMBERS / max(sum(sizes), 1), wanted, _MOST))
    return max(min(more, int(_MORE_SECONDS / seconds)), min(wanted, int(_SECONDS / seconds)), _LEAST)


def _seeds(probe: StepProbe, stream: int, count: int) -> list[int]:
    """Pairs of consecutive seeds of this step's own: chance correlations of a generator's first seeds would
    be found in every step else."""
    own = zlib.crc32(repr(probe.stated).encode(), zlib.crc32(probe.start.tobytes()))
    first = 2 * np.random.default_rng([own, stream]).integers(1, 2**30, -(-count // 2))
    return [int(seed) for seed in np.column_stack([first, first + 1]).ravel()[:count]]


def _or_why(probe: StepProbe, rows: Columns, seeds: Iterable[int]) -> Layers | str:
    try:
        return _at(probe, rows, seeds)
    except RefusedError as error:
        return str(error)


def _at(probe: StepProbe, rows: Columns, seeds: Iterable[int]) -> Layers:
    """The layers' noise, from the first numbers of each."""
    most = max(_KEPT // len(probe.layers), 256)
    values: dict[str, list[Vector]] = {name: [] for name in probe.layers}
    for seed in seeds:
        after = probe(rows, seed)
        for name, at in probe.layers.items():
            values[name].append(after[at][:most].copy())
    unit = probe.stated.unit * probe.stated.noise_multiplier
    spacing = {name: float(probe.spacings[at.start]) for name, at in probe.layers.items()}
    return {name: _layer(np.array(drawn), unit, spacing[name]) for name, drawn in values.items()}


def _layer(values: Vector, unit: float, spacing: float) -> LayerNoise:
    n, steps, mean = len(values), trees.ulp(values, spacing) / unit, values.mean(axis=0)
    noise = (values - mean) / unit
    fine = np.max(steps, axis=0) <= np.maximum(1, np.std(noise, axis=0))
    noise, freedom = np.where(fine, noise, 0.0), (n - 1) * int(np.sum(fine))
    rounding = (n - 1) / 12 * np.sum(np.mean(steps**2, axis=0)[fine])  # Sheppard's correction
    squares = float(np.sum(noise**2) - rounding)
    ratio = (max(squares, 0.0) / freedom) ** 0.5 if freedom else float("nan")
    exact = np.max(steps, axis=0) * _ROUGH <= 1
    return LayerNoise(noise, mean / unit, ratio, 4 * spacing, freedom, exact)


def _partly_silent(probe: StepProbe, noisy: NDArray[np.bool_]) -> list[CheckFinding]:
    found, unit = [], probe.stated.unit * probe.stated.noise_multiplier
    for name, at in probe.layers.items():
        fine = trees.ulp(probe.start[at], probe.spacings[at]) <= unit / 4
        missing, size = int(np.sum(fine & ~noisy[at])), at.stop - at.start
        if missing and np.any(noisy[at]):
            found.append(findings.SILENT_IN_PART.of(layer=name, missing=missing, size=size))
    return found


def _constant(probe: StepProbe, noisy: NDArray[np.bool_]) -> bool:
    """Whether there is noise of about the right size, the same for all seeds: what four times the batch does
    not move four times as far."""
    if np.any(noisy):
        return False
    try:
        more = probe(trees.joined(*[probe.rows] * 4), 0)
    except RefusedError:
        return False
    still = ((4 * probe.base - more) / 3 - probe.start)[probe.depends]
    size = np.sqrt(np.mean(still**2)) / probe.stated.unit / probe.stated.noise_multiplier
    return bool(0.3 < size < 3)


def pictures(drawn: DrawnNoise) -> dict[str, Any]:
    """What the page draws of the noise: a sample, and its deviations by layer and batch."""
    pooled = np.concatenate([np.zeros(0), *(one.noise.ravel() for one in drawn.base.values())])
    sample = np.random.default_rng(0).choice(pooled, min(5000, pooled.size), replace=False)
    batches = {"the batch as given": drawn.ratio()} | {batch: drawn.ratio(batch) for batch in drawn.others}
    layers = {name: one.ratio for name, one in drawn.base.items()}
    return {"sample": sample, "layers": layers, "batches": batches}
