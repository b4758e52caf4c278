"""What a step's noise has to be: how large, independent of what, how shaped, whatever the batch; and the bugs
that it amounts to where it is not."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import fft, stats

from audit.check import findings
from audit.check.draws import EMPTY, FOURFOLD, QUARTER, DrawnNoise, LayerNoise, Layers
from audit.check.findings import CheckFinding
from audit.check.probe import Stated
from audit.check.report import CheckOutcome
from audit.check.trees import Vector

_MOST_LAYERS, _SAMPLE = 40, 20_000
_SILENT = 0.01  # a deviation below which noise is none


def law(stated: Stated, drawn: DrawnNoise) -> dict[str, CheckOutcome]:
    """The rows of the noise, with every statistical test of it."""
    if stated.noise_multiplier == 0:
        none = CheckOutcome("noise_multiplier=0: no noise is expected", False)
        return dict.fromkeys(("noise", "independence", "shape", "noise and data", "empty batch"), none)
    known, whole = {name: one for name, one in drawn.base.items() if one.freedom}, drawn.ratio()
    n = max((len(one.noise) for one in known.values()), default=0)
    said = f"deviation {whole:.4g} times eta sigma C / B, {len(known)} layers, {n} seeds"
    hidden = "the noise lies below the parameters' rounding: use float64 or a larger learning rate"
    p_values = {name: _is_one(one) for name, one in known.items()}
    figures = {"noise": {name: one.ratio for name, one in known.items()}, "seeds": n}
    seen = {"noise": CheckOutcome(said if known else hidden, bool(known), (), p_values, figures)}
    seen["independence"] = seen["shape"] = CheckOutcome("there is no noise to look at", False)
    loud = {name: one for name, one in known.items() if one.ratio > max(whole, 1) * _SILENT}
    if loud:
        between = "between numbers, layers and seeds: nothing against it"
        seen["independence"] = CheckOutcome(between, True, _repeated(loud), _independence(loud))
        shapes = _shape(loud)
        text = "normal" if shapes else "too few numbers, or too coarse ones"
        seen["shape"] = CheckOutcome(text, bool(shapes), (), shapes)
    others = {name: one for name, one in drawn.others.items() if name != EMPTY}
    seen["noise and data"] = _elsewhere("noise and data", loud, others)
    seen["empty batch"] = _elsewhere("empty batch", loud, {EMPTY: drawn.others[EMPTY]})
    return seen


def _elsewhere(check: str, usual: Layers, others: Mapping[str, Layers | str]) -> CheckOutcome:
    """Whether noise is at other batches what it is at the batch as given."""
    p_values, found, why = {}, [], "there is no noise to compare"
    for batch, layers in others.items():
        if isinstance(layers, str):
            why = f"the step refused {batch}: {layers}"
        elif not all(np.all(np.isfinite(one.mean)) for one in layers.values()):
            found.append(findings.NOT_FINITE.of(check=check, where=batch))
        elif tests := [_is_as(layers[name], one) for name, one in usual.items() if layers[name].freedom]:
            p_values[batch] = min(1.0, min(tests) * len(tests))
    said = f"as usual at {', '.join(p_values)}"
    return CheckOutcome(said if p_values else why, bool(p_values), found, p_values)


def _two_sided(law: Any, most: float, least: float | None = None) -> float:
    """p-value of a statistic of a law; of the nearest one where it lies between `most` and `least`."""
    return float(min(1.0, 2 * min(law.sf(most), law.cdf(most if least is None else least))))


def _is_one(layer: LayerNoise) -> float:
    """p-value of a deviation of 1, give or take its tolerance."""
    squares, wide = layer.ratio**2 * layer.freedom, layer.tolerance
    return _two_sided(stats.chi2(layer.freedom), squares / (1 + wide) ** 2, squares / (1 - wide) ** 2)


def _is_as(one: LayerNoise, other: LayerNoise) -> float:
    """p-value of two equal deviations, give or take their tolerances."""
    quotient, wide = (one.ratio / other.ratio) ** 2, ((1 + one.tolerance) * (1 + other.tolerance)) ** 2
    return _two_sided(stats.f(one.freedom, other.freedom), quotient / wide, quotient * wide)


def _repeated(known: Layers) -> list[CheckFinding]:
    """The finding of seeds that gave exactly what an earlier one gave."""
    whole = np.concatenate([one.noise for one in known.values()], axis=1)
    again = len(whole) - len(np.unique(whole, axis=0))
    by_chance = 16 if any(one.tolerance > 1e-6 for one in known.values()) else 4  # of numbers so coarse
    found = again and np.sum(np.any(whole, axis=0)) >= by_chance
    return [findings.REPEATED.of(again=again, seeds=len(whole))] if found else []


def _independence(known: Layers) -> dict[str, float]:
    """p-values of noise that is independent over numbers, layers and seeds, by what was tried."""
    noise = {name: one.noise / one.ratio for name, one in known.items()}
    tests = {"consecutive seeds": _pairs_of_seeds(np.concatenate(list(noise.values()), axis=1))}
    tests |= {f"{name}: numbers at a distance": _at_distances(one, one) for name, one in noise.items()}
    pairs = list(itertools.combinations(list(noise.values())[:_MOST_LAYERS], 2))
    if pairs:
        tests["layers"] = min(1.0, len(pairs) * min(_at_distances(one, other) for one, other in pairs))
    return tests


def _at_distances(one: Vector, other: Vector) -> float:
    """p-value of no correlation, Student's t, between numbers of two layers, or of one, at whatever distance:
    what shares of workers with one generator have, rows with one draw, and antithetic halves."""
    n, same, most = len(one), one is other, one.shape[1] + other.shape[1] - 1
    length = fft.next_fast_len(most, real=True)

    def products(a: Vector, b: Vector) -> Vector:
        spectrum = sum(np.conj(fft.rfft(x, length)) * fft.rfft(y, length) for x, y in zip(a, b, strict=True))
        found = fft.irfft(spectrum, length)  # of b's numbers 0, 1, ... later than a's, then of earlier ones
        return np.asarray(found[1 : one.shape[1]] if same else found)

    masks = [np.any(x, axis=0)[None].astype(float) for x in (one, other)]
    squares = [np.sum(x**2, axis=0)[None] for x in (one, other)]
    pairs = np.round((n - 1) * products(*masks))
    energy = np.sqrt(products(squares[0], masks[1]) * products(masks[0], squares[1]))
    tried = pairs >= 8
    if not np.any(tried):
        return 1.0
    r = np.minimum(np.abs(products(one, other)[tried] / energy[tried]), 1 - 1e-12)
    freedom = pairs[tried] / 2 - 1  # a number is in two pairs
    p = 2 * stats.t.sf(r * np.sqrt(freedom / (1 - r**2)), freedom)
    return float(min(1.0, np.min(p) * len(p)))


def _pairs_of_seeds(noise: Vector) -> float:
    """p-value of seeds 2i and 2i + 1 that are as different as others: analysis of variance."""
    pairs, size = len(noise) // 2, int(np.sum(np.any(noise, axis=0)))
    first, second = noise[: 2 * pairs : 2], noise[1 : 2 * pairs : 2]
    means = (first + second) / 2
    between = 2 * np.sum((means - means.mean(axis=0)) ** 2) / (pairs - 1)
    within = np.sum((first - second) ** 2) / 2 / pairs
    return _two_sided(stats.f(size * (pairs - 1), size * pairs), between / within if within else np.inf)


def _shape(known: Layers) -> dict[str, float]:
    """p-values of normal noise: Kolmogorov and Smirnov's test, and how much lies beyond 3 deviations."""
    pooled = np.concatenate([(one.noise[:, one.exact] / one.ratio).ravel() for one in known.values()])
    if pooled.size < 200:
        return {}
    n = max(len(one.noise) for one in known.values())
    whole = pooled * np.sqrt(n / (n - 1))
    some = np.random.default_rng(0).choice(whole, min(_SAMPLE, whole.size), replace=False)
    tails = stats.binomtest(int(np.sum(np.abs(whole) > 3)), whole.size, float(2 * stats.norm.sf(3)))
    tests = {"distribution": stats.kstest(some, "norm"), "beyond 3 deviations": tails}
    return {name: float(test.pvalue) for name, test in tests.items()}


def sensitivity(sigma: float, drawn: DrawnNoise, moving: bool) -> CheckOutcome:
    """How far examples move the mean over seeds, where the noise of neighbours differs (`moving`) or does not
    follow the seed: p-values of a movement of at most C, noncentral chi-square."""
    why = "noise differs between a batch and its neighbours" if moving else "noise does not follow the seed"
    loud = {name: one for name, one in drawn.base.items() if one.ratio > 0}
    p_values, most = {}, 0.0
    for example, layers in drawn.extremes.items():
        known = {name: np.any(one.noise, axis=0) for name, one in loud.items()}
        apart = [((layers[n].mean - o.mean) / o.ratio)[known[n]] for n, o in loud.items()]
        far, freedom = sum(float(np.sum(one**2)) for one in apart), sum(one.size for one in apart)
        if freedom and np.isfinite(far):
            counts = sum(1 / len(next(iter(of.values())).noise) for of in (layers, loud))
            allowed = 1.02 / (sigma * min(one.ratio for one in loud.values())) ** 2
            p_values[example] = float(stats.ncx2.sf(far / counts, freedom, allowed / counts))
            most = max(most, sigma * max(far - freedom * counts, 0.0) ** 0.5)
    found = [findings.MOVING_NOISE] if moving else []
    text = f"{why}: in the mean of seeds up to {most:.3g} C"
    return CheckOutcome(text, False, found, p_values, {"statistical movement": most})


def named(
    stated: Stated, drawn: DrawnNoise, certain: list[CheckFinding], rejected: set[str]
) -> list[CheckFinding]:
    """The findings that are certain, and those that rejected tests amount to."""
    tests: dict[str, list[str]] = {}
    for row, _, what in sorted(test.partition(": ") for test in rejected):
        tests.setdefault(row, []).append(what)
    found = certain + drawn.partly_silent
    if "noise" in tests:
        found += [findings.ONE_NOISE] if drawn.constant else _wrong(tests["noise"], drawn.base, stated)
    found += [findings.MOVES_THE_MEAN.of(example=example) for example in tests.get("sensitivity", [])[:1]]
    if "shape" in tests:
        found.append(findings.NOT_NORMAL.of(tests=", ".join(tests["shape"])))
    for batch in tests.get("noise and data", []) + tests.get("empty batch", []):
        found.append(_changes(batch, drawn.ratio(batch) / drawn.ratio()))
    repeated = any(one.name == findings.REPEATED.name for one in found)
    related = tests.get("independence", [])
    if related and not repeated:
        found.append(_dependent(related))
    if repeated or (found and found[-1].name == findings.SHARED.name):
        # squares and shape are of fewer numbers than were counted
        follow = {"shape", "noise and data", "empty batch", "noise" if 0.5 < drawn.ratio() < 2 else ""}
        found = [one for one in found if one.check not in follow]
    return found


def _dependent(tests: Sequence[str]) -> CheckFinding:
    if "consecutive seeds" in tests and not any("distance" in test for test in tests):
        return findings.RELATED_STEPS
    if tests == ["layers"]:
        return findings.SHARED_BY_LAYERS
    return findings.SHARED.of(tests="; ".join(tests[:3]))


def _changes(batch: str, ratio: float) -> CheckFinding:
    """The finding of noise that is so many times as large at another batch."""
    if batch == EMPTY:
        return findings.SKIPPED if ratio < 1e-3 else findings.OTHER_WHEN_EMPTY.of(ratio=ratio)
    larger = {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf)
    if abs(ratio / larger - 1) < 0.15:
        return findings.ACTUAL_SIZE.of(
            check="noise and data", figure=f"noise {ratio:.3g} times as large at {batch}"
        )
    return findings.CHANGES.of(batch=batch, ratio=ratio)


def _wrong(bad: Sequence[str], layers: Layers, stated: Stated) -> list[CheckFinding]:
    """The findings of layers whose noise has another deviation, together where it is one."""
    silent = [name for name in bad if layers[name].ratio < 1e-3]
    loud = {name: layers[name] for name in bad if name not in silent}
    known, found = sum(one.freedom > 0 for one in layers.values()), []
    if silent:
        where = "anywhere" if len(silent) == known else f"in {', '.join(silent[:4])}"
        found.append(findings.SILENT.of(where=where, count=len(silent), all=known))
    if loud:
        ratios = [one.ratio for one in loud.values()]
        low, high, freedom = min(ratios), max(ratios), [one.freedom for one in loud.values()]
        alike = high / low < max(1.1, 1 + 8 / (2 * min(freedom)) ** 0.5)
        ratio = float(np.average(np.square(ratios), weights=freedom) ** 0.5)
        figure = f"{ratio:.3g}" if alike else f"{low:.3g} to {high:.3g}"
        where = "" if len(loud) == known else f" in {', '.join(list(loud)[:4])}"
        cause = why(ratio, stated, known, 4 / (2 * sum(freedom)) ** 0.5) if alike else "It differs by layer."
        found.append(findings.WRONG_NOISE.of(figure=figure, where=where, why=cause))
    return found


def why(ratio: float, stated: Stated, layers: int, wide: float) -> str:
    """The mistakes that make noise so many times too large, give or take `wide`."""
    clip, sigma, rate, size = stated
    causes = [
        (1 / clip, "C is left out of the noise"),
        (clip, "C is in the noise twice"),
        (1 / size, "the noise is divided by the batch size twice"),
        (size, "the noise is not divided by the batch size"),
        (size**-0.5, "the noise is divided by sqrt(B) too much"),
        (size**0.5, "the noise is divided by sqrt(B), or drawn for every example"),
        (sigma, "sigma is squared: a variance taken for a deviation"),
        (1 / sigma, "sigma is left out"),
        (sigma**-0.5, "the root of sigma: a deviation taken for a variance"),
        (rate, "the learning rate is in the noise twice"),
        (1 / rate, "the learning rate is left out of the noise"),
        (layers**-0.5, "the noise is shared out among layers"),
        (2.0, "sensitivity 2 C (one replaced), or noise added twice by one generator"),
        (0.5, "halved, as for two workers that average"),
        (2**0.5, "noise added twice"),
    ]
    workers = "accumulated batches or workers"
    causes += [(k**0.5, f"noise added {k} times, by {workers}") for k in range(3, 17)]
    causes += [(float(k), f"one draw added {k} times, by workers with one generator") for k in range(3, 17)]
    causes += [(k**-0.5, f"the noise of one of {k} {workers}") for k in range(2, 17)]
    causes += [(1 / k, f"divided by {k} {workers}") for k in range(3, 17)]
    near = min(0.01 + wide, 0.05)
    fits = [(abs(ratio / figure - 1), said) for figure, said in causes if abs(figure - 1) > 0.02]
    said = [said for far, said in sorted(fits, key=lambda one: round(one[0], 3)) if far < near]
    return f"So large if {' or if '.join(said[:3])}." if said else ""
