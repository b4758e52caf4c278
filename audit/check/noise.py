"""A step's noise, drawn with many seeds at the batch as given and at others: how large it is, independent of
what, how shaped, whatever the batch; and the bugs that it amounts to where it is otherwise.

Noise is in stated deviations eta sigma C / B; its mean over n seeds is removed, which leaves n - 1 degrees of
freedom a number.
"""

import itertools
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, stats

from audit.check import findings, trees
from audit.check.findings import CheckFinding
from audit.check.probe import RefusedError, Stated, StepProbe
from audit.check.report import CheckOutcome
from audit.check.trees import Columns, Vector

EMPTY, FOURFOLD, QUARTER = "an empty batch", "four times the batch", "a quarter of the batch"
FEATURES = "features times 1000"
ROWS = ("noise", "independence", "shape", "noise and data", "empty batch")
_FREEDOM, _NUMBERS = 320, 20_000  # wanted in the smallest layer, and in all, where a few seconds allow
_KEPT = 60_000  # numbers of a draw


class StepNoise(NamedTuple):
    """Noise of n seeds: (n, k) numbers, 0 where rounding hides them; (k,) how far their mean is from the
    start, their layers, where no rounding shows in their shape; (l,) the layers' deviations, what rounding
    adds taken off, degrees of freedom, how far deviations may be wrong, how many numbers have no noise."""

    values: Vector
    mean: Vector
    layer: NDArray[np.int64]
    exact: NDArray[np.bool_]
    ratios: Vector
    freedom: NDArray[Any]
    tolerance: Vector
    silent: NDArray[Any]


class DrawnNoise(NamedTuple):
    """Noise of these layers at the batch as given, and by name of others, or why there is none."""

    names: list[str]
    given: StepNoise
    others: dict[str, StepNoise | str]

    def ratio(self, batch: str = "") -> Any:
        """The deviation over all layers, NaN where none can be told."""
        noise = self.others.get(batch, "") if batch else self.given
        freedom = (
            np.zeros(1) if isinstance(noise, str) else np.where(self.given.freedom > 0, noise.freedom, 0)
        )
        return np.sqrt(np.sum(freedom * (0 if isinstance(noise, str) else noise.ratios**2)) / np.sum(freedom))

    def constant(self) -> bool:
        """Whether all seeds give one noise: what four times the batch does not move four times as far."""
        more = self.others[FOURFOLD]
        if isinstance(more, str) or np.any(self.given.values):
            return False
        still = (4 * self.given.mean - more.mean) / 3
        return bool(0.3 < np.sqrt(np.mean(still[still != 0] ** 2)) < 3)


def draw(probe: StepProbe, seeds: int | None, seconds: float) -> DrawnNoise:
    """As many draws as layers need and time allows, where one takes `seconds`."""
    rows, few, began = probe.rows, max(1, len(probe.rows[0]) // 4), time.perf_counter()
    probe(rows, 1)  # shows what is trained
    sizes = np.bincount(probe.layer)[np.unique(probe.layer[probe.depends])].tolist() or [_FREEDOM]
    wanted = int(np.clip(_FREEDOM / min(sizes), 64, _FREEDOM))
    more = int(np.clip(_NUMBERS / sum(sizes), wanted, 2000))
    count = seeds or max(min(more, int(3 / seconds)), min(wanted, int(20 / seconds)), 12)
    given = _at(probe, rows, 0, count)
    if isinstance(given, str):
        raise RefusedError(given)
    fewer = max(12, min(count, _FREEDOM) // 4) if time.perf_counter() - began < 40 else 4
    batches = {QUARTER: trees.taken(rows, slice(0, few))} if few < len(rows[0]) else {}
    batches |= {FOURFOLD: trees.joined(*[rows] * 4), FEATURES: trees.scaled(rows, 1e3, rows)}
    batches |= {EMPTY: trees.taken(rows, slice(0, 0))}
    others = {name: _at(probe, batch, 1, fewer) for name, batch in batches.items()}
    trained = np.bincount(probe.layer, probe.depends) > 0
    return DrawnNoise(probe.names, given._replace(freedom=given.freedom * trained), others)


def _at(probe: StepProbe, rows: Columns, stream: int, count: int) -> StepNoise | str:
    """Noise of pairs of consecutive seeds, this step's own: chance correlations of a generator's first seeds
    would be found in every step else."""
    own = zlib.crc32(repr(probe.stated).encode() + probe.start.tobytes())
    first = 2 * np.random.default_rng([own, stream]).integers(1, 2**30, -(-count // 2))
    seeds = np.column_stack([first, first + 1]).ravel()[:count]
    place = np.arange(probe.start.size) - np.searchsorted(probe.layer, probe.layer)  # in its layer
    kept = place < max(_KEPT // len(probe.names), 256)
    try:
        values = np.array([probe(rows, int(seed))[kept] for seed in seeds])
    except RefusedError as error:
        return str(error)
    unit, n, layer = probe.stated.unit * probe.stated.noise_multiplier, count, probe.layer[kept]
    steps, noise = trees.ulp(values, probe.spacings[kept]) / unit, (values - values[0]) / unit
    noise, mean = noise - noise.mean(axis=0), (values.mean(axis=0) - probe.start[kept]) / unit
    coarse = np.max(steps, axis=0)
    fine = coarse <= np.maximum(1, noise.std(axis=0))
    squares = np.sum(noise**2, axis=0) - (n - 1) / 12 * np.mean(steps**2, axis=0)  # Sheppard's correction
    freedom = (n - 1) * np.bincount(layer, fine)
    ratios = np.sqrt(np.maximum(np.bincount(layer, np.where(fine, squares, 0)), 0) / np.maximum(freedom, 1))
    silent = np.bincount(layer, (coarse <= 0.25) & (np.ptp(values, axis=0) == 0))
    tolerance = 4 * probe.spacings[np.flatnonzero(place == 0)]
    return StepNoise(
        np.where(fine, noise, 0), mean, layer, 32 * coarse <= 1, ratios, freedom, tolerance, silent
    )


def law(drawn: DrawnNoise) -> dict[str, CheckOutcome]:
    """The rows of the noise, with every statistical test of it."""
    p_values: dict[str, dict[str, float]] = {row: {} for row in ROWS}
    for row, what, p in _tests(drawn):
        p_values[row][what] = p
    ratios = dict(zip(drawn.names, drawn.given.ratios.tolist(), strict=True))
    figures = {"noise": {name: ratios[name] for name in p_values["noise"]}, "seeds": len(drawn.given.values)}
    text = {row: f"as usual at {', '.join(p)}" for row, p in p_values.items()}
    text["noise"] = f"deviation {drawn.ratio():.4g} times eta sigma C / B, "
    text["noise"] += f"{len(p_values['noise'])} layers, {figures['seeds']} seeds"
    text |= {"independence": "between numbers, layers and seeds: nothing against it", "shape": "normal"}
    why = dict.fromkeys(ROWS, "there is no noise to look at")
    why["noise"] = "the noise lies below the parameters' rounding: use float64 or a larger learning rate"
    for batch, noise in drawn.others.items():
        why |= {_row(batch): f"the step refused {batch}: {noise}"} if isinstance(noise, str) else {}
    seen = {}
    for row, tests in p_values.items():
        own = figures if row == "noise" else {}
        seen[row] = CheckOutcome((text if tests else why)[row], bool(tests), (), tests, own)
    return seen


def _row(batch: str) -> str:
    return "empty batch" if batch == EMPTY else "noise and data"


def _tests(drawn: DrawnNoise) -> Iterator[tuple[str, str, float]]:
    """Row, object and p-value of each test of the noise."""
    given, n, least = drawn.given, len(drawn.given.values), 0.01 * max(drawn.ratio(), 1)
    law, squares, wide = stats.chi2(given.freedom), given.ratios**2 * given.freedom, 1 + given.tolerance
    p = two_sided(law, squares / wide**2, squares / (2 - wide) ** 2)
    yield from (("noise", drawn.names[i], float(p[i])) for i in np.flatnonzero(given.freedom))
    loud = given.values.std(axis=0) > least
    if not np.any(loud):
        return
    yield from _relations(given.values[:, loud] / given.values[:, loud].std(axis=0), given.layer[loud])
    normal = (given.values / given.ratios[given.layer])[:, loud & given.exact] * np.sqrt(n / (n - 1))
    if normal.size >= 200:
        yield "shape", "distribution", fits(normal.ravel(), stats.norm())
    for batch, noise in drawn.others.items():
        if not isinstance(noise, str):
            both = (given.freedom > 0) & (given.ratios > least) & (noise.freedom > 0)
            quotient, wide = (given.ratios / noise.ratios) ** 2, (1 + given.tolerance + noise.tolerance) ** 2
            p = two_sided(stats.f(given.freedom, noise.freedom), quotient / wide, quotient * wide)[both]
            if p.size:
                yield _row(batch), batch, float(min(1, np.min(p) * p.size))


def two_sided(law: Any, most: Any, least: Any = None) -> Any:
    """p-values of statistics of a law; of the nearest one where they lie between `most` and `least`."""
    return np.minimum(1, 2 * np.minimum(law.sf(most), law.cdf(most if least is None else least)))


def fits(values: NDArray[Any], law: Any) -> float:
    """p-value of numbers of a law, chi-square by half deviations; conservative where few are expected."""
    below = stats.norm.cdf(np.arange(-3, 3.1, 0.5))
    edges = np.unique(law.ppf(below[len(values) * np.minimum(below, 1 - below) > 10]))
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * len(values)
    seen = np.bincount(np.searchsorted(edges, values), minlength=len(expected))
    return float(stats.chi2.sf(np.sum((seen - expected) ** 2 / np.maximum(expected, 5)), len(edges)))


def _relations(noise: Vector, layer: NDArray[np.int64]) -> Iterator[tuple[str, str, float]]:
    """Student's t of no correlation between consecutive seeds, numbers at every distance (rows with one draw,
    shares of workers with one generator), and layers (with one key)."""
    n, numbers = noise.shape

    def unrelated(r: Any, terms: int) -> float:
        student = r * np.sqrt(terms / max(1 - r**2, 1e-12))
        return float(2 * stats.t.sf(student, terms / 2))  # a number is in two pairs

    pairs = np.mean(noise[: n - 1 : 2] * noise[1::2]) + 1 / (n - 1)  # which the mean's removal takes off
    yield "independence", "consecutive seeds", unrelated(abs(pairs), (n // 2 - 1) * numbers)
    parts = [noise[:, layer == one] for one in np.unique(layer)[:40]]
    small = [part for part in parts if 8 * part.shape[1] <= numbers]  # what it shares drowns in all
    for part in (noise, *small):
        size = part.shape[1] | 1  # odd, so that no distance is its own opposite
        power = sum(np.abs(fft.rfft(one, size)) ** 2 for one in part)
        r = np.abs(fft.irfft(power, size)[1 : size // 2 + 1]) / part.size
        if part.shape[1] > 1:
            at = f"{part.shape[1]:,} numbers at a distance of {np.argmax(r) + 1}"
            yield "independence", at, min(1.0, len(r) * unrelated(np.max(r), (n - 1) * part.shape[1]))
    tests = []
    for one, other in itertools.combinations(parts, 2):
        size = min(one.shape[1], other.shape[1])
        tests.append(unrelated(abs(np.mean(one[:, :size] * other[:, :size])), (n - 1) * size))
    if tests:
        yield "independence", "layers", min(1.0, len(tests) * min(tests))


def named(
    stated: Stated, drawn: DrawnNoise, level: float, certain: list[CheckFinding], odd: Mapping[str, list[str]]
) -> list[CheckFinding]:
    """The findings that are certain, and those that numbers without noise and rejected tests amount to;
    movement by `level` and noise that err by one factor are one."""
    found, given, whole, seeds = list(certain), drawn.given, drawn.ratio(), len(drawn.given.values)
    again, fewer = seeds - len({one.tobytes() for one in given.values[:, given.exact]}), False
    least = 16 if np.max(given.tolerance) > 1e-6 else 4  # numbers, which are coarse, that repeat by no chance
    if again and np.sum(given.exact) >= least and (whole or drawn.constant()):
        which, fewer = "several seeds" if whole else "every seed", True  # numbers than were counted
        found.append(findings.REPEATED.of(which=which, again=again, seeds=seeds))
    elif odd["independence"]:
        shared = "; ".join(what for what in odd["independence"] if what != "consecutive seeds")
        found.append(findings.SHARED.of(tests=shared) if shared else findings.RELATED_STEPS)
        fewer = bool(shared)
    for i in np.flatnonzero(given.silent * given.ratios * given.freedom):
        said = {"where": f"in a part of {drawn.names[i]}", "what": f"numbers of {drawn.names[i]}"}
        found.append(findings.SILENT.of(**said, count=given.silent[i], all=np.sum(given.layer == i)))
    scaled = odd["noise"] and not odd["noise and data"] and abs(level / whole - 1) < 0.05
    if scaled and min(abs(whole - 1), abs(level - 1)) > 0.02:
        found = [one for one in found if one.check != "sensitivity"]
        found.append(findings.ANOTHER_SIZE.of(ratio=whole, why=why(whole, stated, 1, 0.01)))
    elif odd["noise"] and not (fewer and (not whole or 0.5 < whole < 2)):
        found += _wrong(odd["noise"], drawn, stated)
    for batch, noise in drawn.others.items():
        row = _row(batch)
        if not isinstance(noise, str) and not np.all(np.isfinite(noise.mean)):
            found.append(findings.NOT_FINITE.of(check=row, where=batch))
        elif batch in odd[row] and not fewer:
            found.append(_changes(row, batch, drawn.ratio(batch) / whole))
    return found + [findings.NOT_NORMAL] * bool(odd["shape"] and not fewer)


def _changes(row: str, batch: str, ratio: float) -> CheckFinding:
    """The finding of noise that is so many times as large at another batch."""
    if batch == EMPTY and ratio < 1e-3:
        return findings.SKIPPED
    if abs(ratio / {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf) - 1) < 0.15:
        return findings.ACTUAL_SIZE.of(check=row, figure=f"noise {ratio:.3g} times as large at {batch}")
    return findings.CHANGES.of(check=row, batch=batch, ratio=ratio)


def _wrong(bad: list[str], drawn: DrawnNoise, stated: Stated) -> list[CheckFinding]:
    """The findings of layers whose noise has another deviation, together where it is one."""
    layers = zip(drawn.names, drawn.given.ratios, drawn.given.freedom, strict=True)
    of, found = {name: (ratio, count) for name, ratio, count in layers if count}, []
    silent = [name for name in bad if of[name][0] < 1e-3]
    loud = [name for name in bad if name not in silent]
    if silent:
        where = "anywhere" if len(silent) == len(of) else f"in {', '.join(silent[:4])}"
        found.append(findings.SILENT.of(where=where, count=len(silent), all=len(of), what="trained layers"))
    if loud:
        ratios, freedom = np.transpose([of[name] for name in loud])
        low, high, ratio = min(ratios), max(ratios), np.average(ratios**2, weights=freedom) ** 0.5
        alike = high / low < max(1.1, 1 + 8 / (2 * min(freedom)) ** 0.5)
        near = min(0.01 + 4 / (2 * sum(freedom)) ** 0.5, 0.05)
        figure = f"{ratio:.3g}" if alike else f"{low:.3g} to {high:.3g}"
        where = "" if len(loud) == len(of) else f" in {', '.join(loud[:4])}"
        cause = why(ratio, stated, len(of), near) if alike else "It differs by layer."
        found.append(findings.WRONG_NOISE.of(figure=figure, where=where, why=cause))
    return found


def mistakes(stated: Stated, factor: float, near: float, own: dict[str, float]) -> list[str]:
    """The mistakes, `own` or of both, that multiply a movement or the noise by a factor, give or take `near`;
    the likeliest first."""
    clip, _, rate, size = stated
    every = {
        "C is left out": 1 / clip,
        "C enters twice": clip,
        "divided by the batch size twice": 1 / size,
        "not divided by the batch size": size,
        "the learning rate is left out": 1 / rate,
    }
    far = {said: round(abs(factor / of - 1), 3) for said, of in (own | every).items() if abs(of - 1) > 0.02}
    return sorted((said for said in far if far[said] < near), key=lambda said: far[said])


def why(ratio: float, stated: Stated, layers: int, near: float) -> str:
    """The mistakes that make noise so many times too large."""
    _, sigma, rate, size = stated
    own = {
        "divided by sqrt(B) too much": size**-0.5,
        "divided by sqrt(B), or drawn for every example": size**0.5,
        "sigma is squared: a variance taken for a deviation": sigma,
        "sigma is left out": 1 / sigma,
        "the root of sigma: a deviation taken for a variance": sigma**-0.5,
        "the learning rate enters twice": rate,
        "shared out among layers": layers**-0.5,
        "sensitivity 2 C (one replaced)": 2.0,
    }
    for k in range(2, 17):
        own |= {
            f"noise added {k} times, by accumulated batches or workers": k**0.5,
            f"one draw added {k} times, by workers with one generator": k,
            f"the noise of one of {k} accumulated batches or workers": k**-0.5,
            f"divided by {k} accumulated batches or workers": 1 / k,
        }
    said = mistakes(stated, ratio, near, own)[:3]
    return f"It fits: {'; or '.join(said)}." if said else ""


def pictures(drawn: DrawnNoise) -> dict[str, Any]:
    """What the page draws of the noise: a sample, and its deviations by layer and batch."""
    pooled, trained = drawn.given.values.ravel(), drawn.given.freedom > 0
    sample = np.random.default_rng(0).choice(pooled, min(5000, pooled.size), replace=False)
    batches = {"the batch as given": drawn.ratio()} | {batch: drawn.ratio(batch) for batch in drawn.others}
    layers = {drawn.names[i]: float(drawn.given.ratios[i]) for i in np.flatnonzero(trained)}
    return {"sample": sample, "layers": layers, "batches": batches}
