"""A step's noise over many seeds: at the batch as given, and at batches that should not change it."""

import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.check import findings, noise, trees
from audit.check.noise import Draws, Layer
from audit.check.probe import PartSeen, RefusedError, StepProbe
from audit.check.report import CheckFinding
from audit.check.trees import Columns, Vector

_USUAL, _LEAST, _MOST = 64, 12, 2000  # draws
_FREEDOM, _NUMBERS = 320, 20_000  # wanted in the smallest layer, and in all, where a few seconds allow
_SECONDS, _MORE_SECONDS, _KEPT = 20.0, 3.0, 60_000  # of draws; numbers kept of each
EMPTY, _FOURFOLD = "an empty batch", "four times the batch"


class DrawnNoise(NamedTuple):
    """Draws at the batch as given, and by name at others or why there are none; where the kept numbers stand,
    trained layers among them, and which numbers (p,) the noise moves."""

    base: Draws
    others: dict[str, Draws | str]
    layers: dict[str, Layer]
    noisy: NDArray[np.bool_]
    extremes: dict[str, Draws]


def draw(probe: StepProbe, seeds: int | None, seconds: float, tried: Mapping[str, Columns]) -> DrawnNoise:
    """The draws that time allows; with `tried`, at batches with some of these examples too."""
    where, layers = _kept(probe)
    rows, unit = probe.batch.columns, probe.stated.unit * max(probe.stated.noise_multiplier, 1e-300)
    base = probe.base
    assert base is not None
    values, noisy, began = [base[where]], np.zeros(base.size, bool), time.perf_counter()
    count = seeds or _USUAL
    seeds_of_base = _seeds(probe, 0)
    next(seeds_of_base)  # the base's
    while len(values) < count:
        after = probe(rows, next(seeds_of_base))
        noisy |= after != base
        values.append(after[where])
        if seeds is None and len(values) == 2:
            trained = [at.stop - at.start for at in probe.layers.values() if np.any(probe.depends[at])]
            wanted = int(np.clip(_FREEDOM / min(trained, default=_FREEDOM), _USUAL, _FREEDOM))
            more = int(np.clip(_NUMBERS / max(sum(trained), 1), wanted, _MOST))
            count = max(min(more, int(_MORE_SECONDS / seconds)), min(wanted, int(_SECONDS / seconds)), _LEAST)
    fewer = max(_LEAST, min(count, _FREEDOM) // 4) if time.perf_counter() - began < 2 * _SECONDS else 4
    others = {name: _at(probe, rows, fewer, where, unit) for name, rows in _batches(probe).items()}
    names = list(tried)
    some = [names[i] for i in np.unique(np.linspace(0, len(names) - 1, 6).astype(int))] if names else []
    extreme = {n: _at(probe, trees.joined(rows, tried[n]), min(count, 128), where, unit) for n in some}
    trained_layers = {n: layers[n] for n, at in probe.layers.items() if np.any(probe.depends[at])}
    found = {name: draws for name, draws in extreme.items() if isinstance(draws, Draws)}
    return DrawnNoise(Draws(np.array(values), unit), others, trained_layers, noisy, found)


def _seeds(probe: StepProbe, stream: int) -> Iterator[int]:
    """Seeds 0 and 1, then pairs of consecutive ones, of this step's own: chance correlations of a generator's
    first seeds would be found in every step else."""
    own = zlib.crc32(repr(probe.stated).encode(), zlib.crc32(probe.start.tobytes()))
    rng = np.random.default_rng([own, stream])
    yield from (0, 1) if stream == 0 else ()
    while True:
        first = 2 * int(rng.integers(1, 2**30))
        yield from (first, first + 1)


def _kept(probe: StepProbe) -> tuple[Vector, dict[str, Layer]]:
    """Which numbers are kept, the first ones of every layer, and where they stand."""
    given, most = trees.leaves("params", probe.params), max(_KEPT // len(probe.layers), 256)
    where, found, start = [], {}, 0
    for name, at in probe.layers.items():
        size, shape = min(at.stop - at.start, most), tuple(given[name].shape)
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        found[name] = Layer(slice(start, start + size), size, strides, float(probe.spacings[at.start]))
        where.append(np.arange(at.start, at.start + size))
        start += size
    return np.concatenate(where), found


def quarter(rows: Columns) -> int:
    """How many examples are a quarter of a batch, 1 at least."""
    return max(1, len(rows[0]) // 4)


def _batches(probe: StepProbe) -> dict[str, Columns]:
    """Batches at which the noise has to be as at the batch as given."""
    rows = probe.batch.columns
    few, last = quarter(rows), len(rows) - 1
    floats = [c.dtype.kind == "f" and (i < last or not last) for i, c in enumerate(rows)]
    scaled = [1e3 * c if kind else c for c, kind in zip(rows, floats, strict=True)]
    found = {"a quarter of the batch": trees.taken(rows, slice(0, few))} if few < len(rows[0]) else {}
    found[_FOURFOLD] = trees.joined(*[rows] * 4)
    if any(floats):
        found["features times 1000"] = scaled
    return found | {EMPTY: trees.taken(rows, slice(0, 0))}


def _at(probe: StepProbe, rows: Columns, count: int, where: Vector, unit: float) -> Draws | str:
    values = []
    for _, seed in zip(range(count), _seeds(probe, 1), strict=False):
        try:
            after = probe(rows, seed)
        except RefusedError as error:
            return str(error)
        values.append(after[where])
    return Draws(np.array(values), unit)


def law(probe: StepProbe, drawn: DrawnNoise) -> PartSeen:
    """Every statistical test of the noise, and what the report says of each where nothing is wrong."""
    if probe.stated.noise_multiplier == 0:
        none = {name: ("noise_multiplier=0: no noise is expected", False) for name in _ROWS}
        return PartSeen(none)
    said: dict[str, tuple[str, bool]] = {}
    p_values, ratios, found = {}, {}, []
    for name, layer in drawn.layers.items():
        spread = drawn.base.spread(layer)
        if spread.freedom:
            p_values[f"noise: {name}"] = noise.is_one(spread)
            ratios[name] = spread.ratio
    n, whole = len(drawn.base.values), overall(probe, drawn)
    said["noise"] = (
        (f"deviation {whole:.4g} times eta sigma C / B, {len(ratios)} layers, {n} seeds", True)
        if ratios
        else (findings.unresolved(), False)
    )
    if ratios and whole > 0.01:
        tests = noise.independence(drawn.base, drawn.layers)
        p_values |= {f"independence: {name}": p for name, p in tests.items()}
        seen = "between numbers, layers and seeds: nothing against it"
        said["independence"] = (seen, bool(tests))
        again = noise.repeated_seeds(drawn.base, drawn.layers)
        coarse = max(layer.spacing for layer in drawn.layers.values()) > 1e-6
        if again and sum(layer.prefix for layer in drawn.layers.values()) >= (16 if coarse else 4):
            found.append(findings.repeated(again, n))
        shapes = noise.shape(drawn.base, drawn.layers)
        p_values |= {f"shape: {name}": p for name, p in shapes.items()}
        said["shape"] = ("normal", True) if shapes else ("too few numbers, or too coarse ones", False)
    else:
        for name in ("independence", "shape"):
            said[name] = ("there is no noise to look at", False)
    seen_others, others = _beside(drawn, ratios)
    return PartSeen({**said, **seen_others}, found, p_values | others, {"noise": ratios, "seeds": n})


_ROWS = ("noise", "independence", "shape", "noise and data", "empty batch")


def _beside(
    drawn: DrawnNoise, ratios: Mapping[str, float]
) -> tuple[dict[str, tuple[str, bool]], dict[str, float]]:
    """What is said of noise at other batches, and p-values of its being as at the batch as given."""
    said: dict[str, tuple[str, bool]] = {}
    p_values, tried = {}, []
    for batch, draws in drawn.others.items():
        check = "empty batch" if batch == EMPTY else "noise and data"
        if isinstance(draws, str):
            said.setdefault(check, (f"the step refused {batch}: {draws}", False))
            continue
        tests = []
        for name in ratios:
            layer = drawn.layers[name]
            one, other = draws.spread(layer), drawn.base.spread(layer)
            if one.freedom and other.squares > 0 and other.ratio > 0.01 and np.isfinite(one.squares):
                tests.append(noise.is_as(one, other))
        if tests:
            p_values[f"{check}: {batch}"] = min(1.0, min(tests) * len(tests))
            tried.append(batch)
            of = ", ".join(name for name in tried if name != EMPTY)
            said[check] = ("noise as usual" if batch == EMPTY else f"the same at {of}", True)
    for check in ("noise and data", "empty batch"):
        said.setdefault(check, ("there is no noise to compare", False))
    return said, p_values


def overall(probe: StepProbe, drawn: DrawnNoise, batch: str | None = None) -> float:
    """The deviation over all layers, in stated ones; NaN where none can be told."""
    draws = drawn.base if batch is None else drawn.others[batch]
    if isinstance(draws, str) or probe.stated.noise_multiplier == 0:
        return float("nan")
    spreads = [draws.spread(layer) for layer in drawn.layers.values()]
    return noise.NoiseSpread(sum(s.squares for s in spreads), sum(s.freedom for s in spreads), 0).ratio


def sensitivity(probe: StepProbe, drawn: DrawnNoise, replayed: bool) -> PartSeen:
    """How far examples move the mean over seeds, where noise differs between neighbours: p-values of
    a movement of at most C, noncentral chi-square."""
    why = "noise differs between a batch and its neighbours" if replayed else "noise does not follow the seed"
    scale = {name: drawn.base.spread(layer).ratio for name, layer in drawn.layers.items()}
    p_values, most, sigma = {}, 0.0, probe.stated.noise_multiplier
    for name, draws in drawn.extremes.items():
        squares, freedom = 0.0, 0
        counts = 1 / len(draws.values) + 1 / len(drawn.base.values)
        for layer_name, layer in drawn.layers.items():
            resolved, _ = drawn.base.fine(layer)
            if scale[layer_name] > 0 and np.any(resolved):
                apart = draws.values[:, layer.where].mean(0) - drawn.base.values[:, layer.where].mean(0)
                squares += float(np.sum((apart[resolved] / draws.unit / scale[layer_name]) ** 2)) / counts
                freedom += int(np.sum(resolved))
        if freedom and sigma and np.isfinite(squares):
            least = min(value for value in scale.values() if value > 0)
            p_values[f"sensitivity: {name}"] = float(
                stats.ncx2.sf(squares, freedom, 1.02 / (sigma * least) ** 2 / counts)
            )
            most = max(most, (max(squares - freedom, 0.0) * counts) ** 0.5 * sigma)
    said = {"sensitivity": (f"{why}: in the mean of seeds up to {most:.3g} C", False)}
    found = [findings.moving_noise()] if replayed else []
    return PartSeen(said, found, p_values, {"statistical movement": most})


def named(
    probe: StepProbe, drawn: DrawnNoise, rejected: set[str], p_values: Mapping[str, float]
) -> list[CheckFinding]:
    """The findings that follow from rejected tests, and from numbers without noise."""
    found: list[CheckFinding] = []
    if probe.stated.noise_multiplier == 0:
        return found
    ratios = {n: drawn.base.spread(layer).ratio for n, layer in drawn.layers.items()}
    bad = {n: ratios[n] for n in ratios if f"noise: {n}" in rejected}
    if bad:
        freedom = {n: drawn.base.spread(drawn.layers[n]).freedom for n in ratios}
        found += findings.wrong_noise(bad, ratios, freedom, probe.stated, _constant(probe, drawn))
    found += _silent(probe, drawn, bad)
    apart = [name.partition(": ")[2] for name in rejected if name.startswith("independence: ")]
    if apart:
        found.append(findings.dependent(sorted(apart)))
    if any(name.startswith("shape: ") for name in rejected):
        found.append(findings.not_normal([n for n in rejected if n.startswith("shape: ")], p_values))
    usual = overall(probe, drawn)
    for batch, draws in drawn.others.items():
        check = "empty batch" if batch == EMPTY else "noise and data"
        if f"{check}: {batch}" in rejected:
            found.append(findings.changes(check, batch, overall(probe, drawn, batch) / usual, probe.stated))
        elif isinstance(draws, Draws) and not np.all(np.isfinite(draws.values)):
            found.append(findings.not_finite(check, batch))
    tried = [name.partition(": ")[2] for name in rejected if name.startswith("sensitivity: ")]
    if tried:
        found.append(findings.moves_the_mean(tried[0]))
    return found


def _constant(probe: StepProbe, drawn: DrawnNoise) -> bool:
    """Whether there is noise of about the right size, the same for all seeds: what four times the batch does
    not move four times as far."""
    more = drawn.others.get(_FOURFOLD)
    if not isinstance(more, Draws) or np.any(drawn.noisy):
        return False
    where, _ = _kept(probe)
    moved = ((4 * drawn.base.values[0] - more.values[0]) / 3 - probe.start[where]) / more.unit
    return bool(np.all(np.isfinite(moved)) and 0.3 < np.sqrt(np.mean(moved**2)) < 3)


def _silent(probe: StepProbe, drawn: DrawnNoise, bad: Mapping[str, float]) -> list[CheckFinding]:
    """Findings of layers some of whose numbers get no noise, others some."""
    found = []
    for name, at in probe.layers.items():
        noisy = drawn.noisy[at]
        if name in drawn.layers and np.any(noisy) and not np.all(noisy):
            fine = trees.ulp(probe.start[at], probe.spacings[at]) <= drawn.base.unit / 4
            missing = int(np.sum(fine & ~noisy))
            if missing:
                found.append(findings.missing_in_part(name, missing, noisy.size))
    return found


def pictures(probe: StepProbe, drawn: DrawnNoise) -> dict[str, Any]:
    """What the page draws of the noise: a sample, and its deviations by layer and batch."""
    if probe.stated.noise_multiplier == 0:
        return {}
    parts = [drawn.base.centred(layer).ravel() for layer in drawn.layers.values()]
    pooled = np.concatenate(parts) if parts else np.zeros(0)
    sample = np.random.default_rng(0).choice(pooled, min(5000, pooled.size), replace=False)
    by_batch = {"the batch as given": overall(probe, drawn)}
    by_batch |= {batch: overall(probe, drawn, batch) for batch in drawn.others}
    ratios = {name: drawn.base.spread(layer).ratio for name, layer in drawn.layers.items()}
    return {"sample": sample, "layers": ratios, "batches": by_batch}
