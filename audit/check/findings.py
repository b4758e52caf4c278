"""What a check's figures mean, by the names that engineers give to these bugs, and how to mend each."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from audit.check.report import CheckFinding
from audit.check.trees import Vector
from audit.errors import require
from audit.values import number

SHARED, REPEATED = "noise shared by several numbers", "one noise for several seeds"
_ALIKE = 0.02  # how near a figure must be to a cause's


class Stated(NamedTuple):
    """What the caller says of the step."""

    clipping_norm: float
    noise_multiplier: float
    learning_rate: float
    batch_size: float

    @property
    def unit(self) -> float:
        """eta C / B, as far as one example may move the parameters."""
        return self.learning_rate * self.clipping_norm / self.batch_size


class Moved(NamedTuple):
    """How far an example moves the step, in units, with its tolerance; by layer; each number's (p,)."""

    units: float
    tolerance: float
    layers: dict[str, float]
    difference: Vector


def stated(clipping_norm: Any, noise_multiplier: Any, learning_rate: Any, batch_size: Any) -> Stated:
    """The numbers; raises InputError for what they cannot be."""
    given = {"clipping_norm": clipping_norm, "noise_multiplier": noise_multiplier}
    given |= {"learning_rate": learning_rate, "batch_size": batch_size}
    found = Stated(*(number(name, value, float) for name, value in given.items()))
    for name, value in found._asdict().items():
        least = 0 if name == "noise_multiplier" else 1e-30
        above = "0 or more" if name == "noise_multiplier" else "more than 0"
        require(least <= value < 1e30, f"`{name}={value:g}`: give a finite number, {above}")
    return found


def coarse(tolerance: float) -> str:
    """What is said where rounding hides a movement."""
    return f"rounding hides it (tolerance {tolerance:.2g} C): use float64 or a larger learning rate"


def unresolved() -> str:
    """What is said where rounding hides the noise."""
    return "the noise lies below the parameters' rounding: use float64 or a larger learning rate"


def not_finite(check: str, where: str) -> CheckFinding:
    """Of NaN or infinity."""
    meaning = (
        f"The step gives NaN or infinity with {where}: an example, or its absence, is seen in the model."
    )
    return CheckFinding(check, "NaN or infinity", meaning, _FINITE)


_FINITE = "clip with C / max(C, norm), replace gradients that are not finite by 0, and never divide by a size"


def unseeded(far: float, size: int, given: Stated) -> CheckFinding:
    """Of a step that is another one with the same seed."""
    sigma = max(given.noise_multiplier, 1e-300)
    if 1e-3 < stats.chi2.cdf((far / sigma) ** 2 / 2, size) < 0.999:
        meaning = (
            "Two calls with one seed are as far apart as two draws of the noise: the seed does not fix it."
        )
        mend = "draw the noise from a generator made of `seed`; only statistical checks were run"
        return CheckFinding("replay", "noise that does not follow the seed", meaning, mend)
    meaning = (
        f"Two calls with one seed and one batch are {far:.3g} eta C / B apart, which is not the noise alone."
    )
    mend = "restore parameters, optimizer and generators before each call, and leave out dropout"
    return CheckFinding("replay", "a step that keeps state between calls", meaning, mend)


def moving_noise() -> CheckFinding:
    """Of noise that is another with one example more."""
    meaning = (
        "With one example more and the same seed all numbers change by sqrt(2) sigma: it is another noise."
    )
    mend = (
        "draw the noise from a generator of its own, that dropout or a batch's size do not move; "
        "until then one example's effect can only be estimated"
    )
    return CheckFinding("sensitivity", "noise that depends on the batch's size", meaning, mend)


def moves_the_mean(name: str) -> CheckFinding:
    """Of a movement that only the mean over seeds shows."""
    meaning = f"The mean over many seeds moves by more than C with {name}."
    return CheckFinding("sensitivity", "an example that is not clipped", meaning, _CLIP)


_CLIP = "clip every example's whole gradient, all layers together, to norm C before summing"


def too_sensitive(
    name: str, moved: Mapping[str, Moved], given: Stated, shrinks: bool, examples: int
) -> list[CheckFinding]:
    """Of the example that moves the step most, or of all that move it too little; `shrinks`: whether noise
    does so as the batch grows."""
    one = moved[name]
    if np.isinf(one.units):
        return [not_finite("sensitivity", name)]
    level = plateau(moved)
    if one.units <= 1 + one.tolerance:
        small = {given.batch_size: "the batch size", examples: "the number of examples"}
        for size, said in small.items():
            if size > 1 and level and abs(level * size - 1) < 5e-3 and one.tolerance < 5e-3 / size + 1e-3:
                meaning = f"Clipped examples move the step by {level:.4g} C instead of C: 1 / {said}."
                mend = "divide once: a loss that is a mean and a sum of gradients divided by B divide twice"
                return [CheckFinding("sensitivity", "divided by the batch size twice", meaning, mend)]
        return []
    figure = f"{one.units:.4g} times eta C / B, with {name}"
    if shrinks:
        meaning = f"One example changes how much all the others count; most {figure}."
        mend = "divide by the stated batch size, a constant, not by the number of examples that are there"
        return [CheckFinding("sensitivity", "normalised by the batch's actual size", meaning, mend)]
    title, why, mend = _cause(one, moved, level, given, examples)
    return [
        CheckFinding("sensitivity", title, f"One example moves the step by {figure}. {why}".strip(), mend)
    ]


def plateau(moved: Mapping[str, Moved]) -> float:
    """The movement at which the most extreme examples stop, 0 where they don't."""
    sizes = sorted((m.units for m in moved.values() if np.isfinite(m.units)), reverse=True)[:4]
    return sizes[0] if len(sizes) == 4 and sizes[0] <= sizes[-1] * 1.003 else 0.0


def _cause(
    one: Moved, moved: Mapping[str, Moved], level: float, given: Stated, examples: int
) -> tuple[str, str, str]:
    """The bug's name, what shows it, and its mend."""
    layers = {name: units for name, units in one.layers.items() if units > 1e-3}
    loud = {
        n for m in moved.values() for n, units in m.layers.items() if units > 1 + max(one.tolerance, 0.01)
    }
    quiet = [sum(u**2 for n, u in m.layers.items() if n not in loud) ** 0.5 for m in moved.values()]
    count = len(layers)
    numbers = np.abs(one.difference)[np.abs(one.difference) > 1e-3]
    if numbers.size > 3 and np.max(numbers) < 1.02 and np.mean(numbers > 0.98) > 0.5:
        return "clipped number by number", "No number moves by more than C, together they do.", _CLIP
    if level:
        known = [
            (
                given.batch_size,
                "not divided by the batch size",
                "divide the sum of gradients by the batch size",
            ),
            (
                count**0.5,
                "every layer clipped by itself",
                f"clip each of {count} layers to C / sqrt({count})",
            ),
            (
                2.0,
                "an example that counts twice",
                "count it once: clip the sum of its copies, not each of them",
            ),
            (given.batch_size / examples, "divided by another batch size", "divide by the stated batch size"),
            (1 / given.clipping_norm, "clipped to 1 in place of C", "clip to the stated clipping norm"),
            (given.clipping_norm, "C enters twice", "multiply by min(1, C / norm), which is already in C"),
            (1 / given.learning_rate, "learning rate left out", "state the learning rate that the step has"),
        ]
        for figure, title, mend in known:
            if abs(figure - 1) > _ALIKE and abs(level / figure - 1) < 5e-3:
                return title, f"All extreme examples move it by {level:.4g}.", mend
    if loud and abs(max(quiet) - 1) < 0.02:
        named = ", ".join(sorted(loud)[:3])
        why = f"It does so in {named}; the other layers together move by at most C."
        return f"{named} left out of clipping", why, "count every trained layer in an example's norm"
    if count > 1 and all(units <= 1 + one.tolerance for units in layers.values()):
        why = f"No layer alone moves by more than C, {count} layers together do."
        mend = f"clip the whole gradient with one norm, or every layer to C / sqrt({count})"
        return "layers clipped by themselves, or one left out", why, mend
    scaled = [m.units for n, m in moved.items() if "times 1000" in n or "times -1000" in n]
    plain = [m.units for n, m in moved.items() if "times" not in n]
    if one.units > 3 and scaled and plain and max(scaled) > 5 * max(max(plain), 1e-9):
        why = "The larger its features or label, the farther it moves it."
        return "no clipping of single examples", why, _CLIP
    if one.units > 3:
        return "the batch is clipped, not its examples", "It changes what the others do.", _CLIP
    return "an example that moves the step by more than C", "", _CLIP


def not_separate(far: float, pair: str) -> CheckFinding:
    """Of examples that are not added up."""
    meaning = f"Two parts together move the step by {far:.3g} C more than each alone does ({pair})."
    mend = (
        "look for what mixes examples: batch norm, division by the actual size, a clipping norm taken "
        "from the batch, microbatches clipped as one, a loss over pairs"
    )
    return CheckFinding("separation", "examples change each other's gradients", meaning, mend)


def wrong_noise(
    bad: Mapping[str, float],
    ratios: Mapping[str, float],
    freedom: Mapping[str, int],
    given: Stated,
    constant: bool,
) -> list[CheckFinding]:
    """Of layers whose noise has another deviation, together where it is one."""
    if constant:
        meaning = (
            "The noise is there, but the same with every seed, so that steps that are compared reveal all."
        )
        mend = "make the generator once, before training, or from the step's seed"
        return [CheckFinding("independence", "one noise for every seed", meaning, mend)]
    silent = sorted(name for name, ratio in bad.items() if ratio < 1e-3)
    found = []
    if silent:
        named = "anywhere" if len(silent) == len(ratios) else f"in {', '.join(silent[:4])}"
        meaning = f"{len(silent)} of {len(ratios)} trained layers have no noise."
        mend = "add noise of deviation sigma C to the sum of gradients of every trained layer"
        found.append(CheckFinding("noise", f"no noise {named}", meaning, mend))
    loud = {name: ratio for name, ratio in bad.items() if name not in silent}
    if loud:
        low, high = min(loud.values()), max(loud.values())
        wide = 4 / (2 * min(freedom[name] for name in loud)) ** 0.5
        one = high / low < 1 + 2 * wide or high / low < 1.1
        weights = np.array([freedom[name] for name in loud], float)
        ratio = float(np.sqrt(np.average(np.square(list(loud.values())), weights=weights)))
        figure = f"{ratio:.3g}" if one else f"{low:.3g} to {high:.3g}"
        where = "" if len(loud) == len(ratios) else f" in {', '.join(sorted(loud)[:4])}"
        exact = 4 / float(2 * np.sum(weights)) ** 0.5
        why = _of_ratio(ratio, given, len(ratios), exact) if one else "It differs by layer."
        meaning = f"It is {figure} times eta sigma C / B{where}. {why}".strip()
        mend = "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B"
        found.append(CheckFinding("noise", f"noise of {figure} times the stated deviation", meaning, mend))
    return found


def _of_ratio(ratio: float, given: Stated, layers: int, wide: float) -> str:
    clip, sigma, rate, size = given
    causes = [
        (1 / clip, "C is left out of the noise"),
        (clip, "C is in the noise twice"),
        (1 / size, "the noise is divided by the batch size twice"),
        (size, "the noise is not divided by the batch size"),
        (size**-0.5, "the noise is divided by sqrt(B) too much"),
        (size**0.5, "the noise is divided by sqrt(B), or drawn for every example"),
        (sigma, "sigma is squared: a variance taken for a deviation"),
        (1 / max(sigma, 1e-300), "sigma is left out"),
        (max(sigma, 1e-300) ** -0.5, "the root of sigma: a deviation taken for a variance"),
        (rate, "the learning rate is in the noise twice"),
        (1 / rate, "the learning rate is left out of the noise"),
        (layers**-0.5, "the noise is shared out among layers"),
        (2.0, "sensitivity 2 C (one replaced), or noise added twice by one generator"),
        (0.5, "halved, as for two workers that average"),
        (2**0.5, "noise added twice"),
    ]
    causes += [(k**0.5, f"noise added {k} times, by accumulated batches or workers") for k in range(3, 17)]
    causes += [(k**-0.5, f"the noise of one of {k} accumulated batches or workers") for k in range(2, 17)]
    causes += [(1 / k, f"divided by {k} accumulated batches or workers") for k in range(3, 17)]
    near = min(_ALIKE / 2 + wide, 0.05)
    fits = [said for figure, said in causes if abs(figure - 1) > _ALIKE and abs(ratio / figure - 1) < near]
    return f"So large if {' or if '.join(fits[:2])}." if fits else ""


def missing_in_part(name: str, missing: int, size: int) -> CheckFinding:
    """Of numbers in a layer that never move."""
    meaning = f"{missing:,} of {size:,} numbers of {name} are the same for every seed; a row that an example "
    mend = "add noise to all numbers, also to rows of an embedding that no example of the batch uses"
    return CheckFinding(
        "noise", f"no noise in a part of {name}", meaning + "uses shows that it was there.", mend
    )


def repeated(again: int, seeds: int) -> CheckFinding:
    """Of seeds that give one noise."""
    meaning = f"{again} of {seeds} seeds give exactly the noise of another: their difference has none."
    mend = "make the generator once, or from the whole of the step's seed"
    return CheckFinding("independence", REPEATED, meaning, mend)


def dependent(tests: Sequence[str]) -> CheckFinding:
    """Of noise that is correlated."""
    if "consecutive seeds" in tests and not any("apart" in test for test in tests):
        title, mend = (
            "noise of consecutive steps is related",
            "a generator made once, or a key folded for a step",
        )
    elif tests == ["layers"]:
        title, mend = "layers that share their noise", "draw every layer's noise from a key of its own"
    else:
        title, mend = SHARED, "draw a number for every parameter, in each layer's own shape"
    meaning = (
        f"Differences or sums are known better than the accountant assumes; seen in: {'; '.join(tests[:3])}."
    )
    return CheckFinding("independence", title, meaning, mend)


def not_normal(tests: Sequence[str], p_values: Mapping[str, float]) -> CheckFinding:
    """Of noise of another law."""
    said = ", ".join(f"{test.partition(': ')[2]} (p = {p_values[test]:.1g})" for test in sorted(tests))
    meaning = f"Its law is not the Gaussian that the accountant assumes: {said}."
    mend = "draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it"
    return CheckFinding("shape", "noise that is not normal", meaning, mend)


def changes(check: str, batch: str, ratio: float, given: Stated) -> CheckFinding:
    """Of noise that depends on the batch."""
    if not np.isfinite(ratio):
        return not_finite(check, batch)
    if check == "empty batch":
        if ratio < 1e-3:
            meaning = (
                "With an empty batch nothing moves: whoever sees the step knows that the batch was empty."
            )
            mend = "add the noise to a sum of zero too"
            return CheckFinding(check, "steps with an empty batch are skipped", meaning, mend)
        meaning = f"With an empty batch it is {ratio:.3g} times as large as usual."
        return CheckFinding(check, "other noise with an empty batch", meaning, "treat it as any other batch")
    meaning = f"At {batch} it is {ratio:.3g} times as large as at the batch as given."
    larger = {"a quarter of the batch": 4.0, "four times the batch": 0.25}.get(batch, 0)
    if larger and abs(ratio / larger - 1) < 0.15:
        mend = "divide by the stated batch size, a constant, not by the number of examples that are there"
        return CheckFinding(check, "normalised by the batch's actual size", meaning, mend)
    mend = (
        "take the noise's deviation from sigma, C and B alone, and add it once a step, not once a batch part"
    )
    return CheckFinding(check, "noise that depends on the batch", meaning, mend)


def merged(
    found: Sequence[CheckFinding], given: Stated, ratio: float, moved: Mapping[str, Moved]
) -> list[CheckFinding]:
    """The findings, each name of a check once; movement and noise that err by one factor are one finding."""
    once = list({(finding.check, finding.name): finding for finding in found}.values())
    names = {finding.name for finding in once}
    if names & {SHARED, REPEATED}:  # the squares and shape of fewer numbers than were counted
        small = ("shape", "noise and data", "empty batch", *["noise"] * (0.5 < ratio < 2))
        once = [finding for finding in once if finding.check not in small]
    if REPEATED in names:
        once = [f for f in once if f.check != "independence" or f.name == REPEATED]
    level = plateau(moved)
    kinds = {finding.check for finding in once}
    both = {"sensitivity", "noise"} <= kinds and "noise and data" not in kinds
    if level and both and abs(level / ratio - 1) < 0.05 and abs(ratio - 1) > _ALIKE:
        meaning = (
            f"Movements and noise are both {ratio:.3g} times what eta C / B says: no privacy is lost by it."
        )
        why = _of_ratio(ratio, given, 1, 0.0).replace("the noise is", "the step is").replace(" the noise", "")
        mend = "state the learning rate and the batch size that the step has, or divide by the stated one"
        whole = CheckFinding(
            "sensitivity", "a step of another size than stated", f"{meaning} {why}".strip(), mend
        )
        return [whole, *(f for f in once if f.check not in ("sensitivity", "noise"))]
    return once
