"""The causes of a wrong step: the signature of each in the measurements, and the fix.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size.
Movements are in units of eta C / B, noise in units of eta sigma C / B.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from audit.check import noise
from audit.check.measured import Measured, is_replay_like_noise
from audit.check.movements import COARSE, SAME, TriedExamples
from audit.check.noise import (
    AT_ENDS,
    AT_ONE,
    EMPTY,
    FOURFOLD,
    GRID,
    QUARTER,
)
from audit.check.probe import StepProbe
from audit.check.report import CheckFinding

_AT_C = 5e-3  # a norm this close to C stops there
_EXCESS = "an example that moves the step by more than C"
_NOT_FINITE = "NaN or infinity"
_FINITE = (
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size"
)

# Mistakes that multiply a size by a power of a quantity: by the name of the mistake, the quantity and
# the power.
_ANYWHERE = {
    "C is left out": ("clipping_norm", -1),
    "C enters twice": ("clipping_norm", 1),
    "divided by the batch size twice": ("batch_size", -1),
    "not divided by the batch size": ("batch_size", 1),
    "the learning rate is left out": ("learning_rate", -1),
    "the learning rate enters twice": ("learning_rate", 1),
}
_OF_EXAMPLES = {
    "clipping in {k} pieces or more, or an example that counts {k} times": ("k", 1),
    **_ANYWHERE,
    "clipping in {k} pieces (subspaces, views of an example, tied uses)": ("k", 0.5),
    "divided by {k} accumulated batches or workers": ("k", -1),
    "a loss scale of {k:,} divided out after clipping": ("scale", -1),
}
_OF_BOTH = {
    **_ANYWHERE,
    "C sqrt({k}) of {k} layers, each clipped to C": ("layers", 0.5),
    "divided by {k} accumulated batches or workers again": ("k", -1),
    "a loss scale of {k:,} that is not divided out": ("scale", 1),
}
_OF_NOISE = {
    **_ANYWHERE,
    "divided by sqrt(B) too much": ("batch_size", -0.5),
    "divided by sqrt(B), or drawn for every example": ("batch_size", 0.5),
    "sigma is squared: a variance taken for a deviation": ("noise_multiplier", 1),
    "sigma is left out": ("noise_multiplier", -1),
    "the root of sigma: a deviation taken for a variance": ("noise_multiplier", -0.5),
    "the root of sigma C: a deviation taken for a variance": ("sigma C", -0.5),
    "made for C sqrt({k}), of {k} layers each clipped to C": ("layers", 0.5),
    "noise added {k} times, by accumulated batches or workers": ("k", 0.5),
    "one draw added {k} times, by workers with one generator, or for {k} C": ("k", 1),
    "the noise of one of {k} accumulated batches or workers": ("k", -0.5),
    "divided by {k} accumulated batches or workers": ("k", -1),
}


def explain(m: Measured) -> Iterator[CheckFinding]:
    """Yields the bugs: for each symptom, the first cause that fits."""
    if not m.replays:
        yield _explain_replay(m)
    if m.interacts:
        yield CheckFinding(
            "separation",
            "examples change each other's gradients",
            "Two parts of a batch together do not move the step by the sum of their separate movements: it "
            f"differs by {m.interaction.norm:.3g} eta C / B.",
            "look for what mixes examples: the batch's gradient clipped as one (such as by clip_grad_norm_), "
            "batch norm, division by the actual size, a clipping norm or weights taken from the batch, "
            "microbatches clipped as one, a loss over pairs",
        )
    size = _find_size(m)
    if size:
        yield size
    elif not m.hides_movements:
        if m.tried.violations:
            yield _explain_far_movement(m)
        else:
            yield from _explain_short_movements(m)
    if m.drawn and m.drawn.given.not_finite:
        yield CheckFinding(
            "noise",
            _NOT_FINITE,
            f"The step gives NaN or infinity at {m.drawn.given.not_finite:,} of {len(m.drawn.given.draws):,} "
            "seeds with the batch as given, which hides other bugs of the noise.",
            "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
            "gradients that are not finite at some seeds",
        )
    elif not m.hides_noise:
        yield from _explain_noise(m, size is not None)


def _explain_replay(m: Measured) -> CheckFinding:
    """Explains two calls with the same seed that differ."""
    if is_replay_like_noise(m):
        return CheckFinding(
            "replay",
            "noise that does not follow the seed",
            "Two calls with the same seed differ as much as two draws of the noise: the seed does not "
            "determine it.",
            f"draw the noise from {m.phrases.generator}; until then only the noise can be checked",
        )
    return CheckFinding(
        "replay",
        "a step that keeps state between calls",
        f"Two calls with the same seed and batch differ by {m.replay.norm:.3g} eta C / B, which the noise "
        "does not explain.",
        "restore parameters, optimizer and generators before each call; with Adam "
        f"{m.phrases.gradient}",
    )


def _find_mistakes(
    probe: StepProbe, mistakes: Mapping[str, tuple[str, float]], factor: float, tolerance: float
) -> list[str]:
    """Returns the names of the mistakes that explain a wrong factor, the best fit first.

    Args:
      probe: the step.
      mistakes: by name of the mistake, the quantity and the power of it that the mistake multiplies by.
      factor: the measured size over the stated one.
      tolerance: the largest relative error of a fit.
    """
    stated = probe.settings
    quantities: dict[str, Any] = {
        "k": range(2, 17),
        "scale": 2 ** np.arange(5, 25),
        "layers": [np.sum(probe.is_layer_trained)],
        "sigma C": [stated.noise_multiplier * stated.clipping_norm],
    }
    quantities |= {name: [value] for name, value in stated._asdict().items()}
    errors: dict[str, float] = {}
    for name, (quantity, power) in mistakes.items():
        for k in quantities[quantity]:
            predicted = float(k) ** power
            # Rounded, so that mistakes that fit equally well stay in the order of the table.
            error = round(abs(factor / predicted - 1), 3)
            # A factor of about 1 explains nothing, such as "C is left out" if C is 1.
            if abs(predicted - 1) > 0.02 and error < tolerance:
                errors.setdefault(name.format(k=k), error)
    return sorted(errors, key=lambda name: errors[name])


# Causes of wrong movements


def _find_size(m: Measured) -> CheckFinding | None:
    """Returns the finding of a factor that multiplies both movements and noise; None if there is none.

    The factor is the plateau of added examples. For examples that replace a row, it is the reach, which may
    be a tenth too small.
    """
    tried = m.tried
    if m.hides_movements or m.hides_noise or m.interacts or tried.tolerance > COARSE:
        return None
    deviation = m.drawn.given.deviation
    error = 4 / (2 * np.sum(m.drawn.given.freedom)) ** 0.5 + 0.005  # four standard errors
    factor = tried.plateau
    if tried.refusal:
        factor = max(tried.reach, deviation * (1 - error))
    is_other = factor > 1.003 + 2 * tried.tolerance or (tried.is_stopped and factor < 1 - error)
    agrees = 0.9 * deviation < tried.reach < 1.01 * factor
    is_nearer = abs(factor / deviation - 1) < min(error, abs(deviation - 1))
    if not (is_other and agrees and is_nearer):
        return None
    _, _, rate, size = m.probe.settings
    why = [
        f"B = {size / factor:.4g} where {size:g} is stated",
        f"a learning rate of {rate * factor:.4g} where {rate:g} is stated",
        *_find_mistakes(m.probe, _OF_BOTH, factor, _AT_C),
    ]
    return CheckFinding(
        "sensitivity",
        "a step of another size than stated",
        f"Movements and noise are both {factor:.4g} times the stated eta C / B, which loses no privacy. It "
        f"fits: {'; or '.join(why)}.",
        "state the learning rate, clipping norm and batch size of the step, or divide by the stated one",
    )


def _explain_far_movement(m: Measured) -> CheckFinding:
    """Explains an example that moves the step by more than C."""
    tried = m.tried
    example, largest = next(iter(tried.violations.items()))
    names = m.probe.layer_names
    layers = [f"{names[i]} {largest.layer_norms[i]:.3g}" for i in range(len(names))]

    def make_finding(name: str, why: str) -> CheckFinding:
        """Returns a finding whose meaning begins with the largest movement, in all and in each layer."""
        return CheckFinding(
            "sensitivity",
            name,
            f"One example moves the step by {largest.norm:.4g} times eta C / B, with {example}; by layer: "
            f"{', '.join(layers[:8])}. {why}",
            f"clip the whole gradient of every example to norm C, {m.phrases.clip}; divide the sum by the "
            "stated B once",
        )

    if not np.isfinite(largest.norm):
        return CheckFinding(
            "sensitivity",
            _NOT_FINITE,
            f"The step gives NaN or infinity with {example}: the model shows whether the batch has it.",
            _FINITE,
        )
    places = tried.places
    rows = [row for row in sorted(places) if not places[row].excess <= 1]
    # If an added example exceeds C as well, or all rows do, the row does not matter.
    if len(tried.violations) <= len(rows) < len(places):
        listed = ", ".join(map(str, rows[:8]))
        return make_finding(
            "rows of the batch that are not clipped",
            f"It does so in {len(rows)} of {len(places)} rows tried: {listed}.",
        )
    if m.interacts:
        return make_finding(_EXCESS, "First look for what mixes examples.")
    return make_finding(*_find_clipping_mistake(m))


def _find_clipping_mistake(m: Measured) -> tuple[str, str]:
    """Returns the name of the mistake in clipping that fits first, and what shows it."""
    tried = m.tried
    if _is_clipped_by_number(tried):
        return ("clipped number by number", "No number moves by more than C.")
    separate = _find_separate_layers(m)
    if len(separate) > 1:
        why = f"{len(separate)} layers stop at C with one example: {m.name_layers(separate)}."
        return ("layers clipped by themselves", why)
    left_out, others_stop = _find_left_out(m)
    if left_out and others_stop:
        name = f"{left_out} left out of the clipping norm, or of clipping"
        return (name, "The other layers stop at C.")

    mistakes = _find_mistakes(m.probe, _OF_EXAMPLES, tried.plateau, _AT_C + tried.tolerance)
    if tried.is_stopped:
        mistakes = mistakes or [f"clipped to {tried.plateau:.4g} times the stated C"]
        return (
            mistakes[0],
            f"Extreme examples stop at {tried.plateau:.4g} times the stated clipping norm. It fits: "
            f"{'; or '.join(mistakes)}.",
        )
    norms = tried.collect("norm")
    if np.min(norms[norms > 0]) > 1 - SAME and np.sum(norms < 1 + SAME) > 3:
        why = "Short ones come to C, longer ones are left: min where max is meant, or max for min?"
        return ("gradients scaled up to C, not down", why)
    if tried.reach > 16:
        return ("no clipping of single examples", "")
    if len(separate):
        name = f"{m.name_layers(separate)} clipped apart from other layers"
        return (name, "It stops at C while other layers move too.")
    if left_out:
        why = f"All layers except {left_out} stay within C: is their gradient clipped too?"
        return (_EXCESS, why)
    return (
        _EXCESS,
        "Examples do not stop at C: is there any clipping, and are all numbers in the norm?",
    )


def _is_clipped_by_number(tried: TriedExamples) -> bool:
    """Returns True if most numbers that the largest example moves do so by C, and none by more."""
    sizes = np.abs(tried.collect("vector")[0])
    sizes = sizes[sizes > 1e-3]
    return bool(sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5)


def _find_separate_layers(m: Measured) -> Any:
    """Returns the indices of the layers that one example moves by C, if no example moves a layer by more.

    Of all examples, it is the one for which most layers stop at C. Together they move by more than C.
    """
    norms = m.tried.collect("layer_norms")
    error = _AT_C + m.tried.tolerance
    is_at_c = np.abs(norms - 1) < error
    layers = np.flatnonzero(is_at_c[np.argmax(np.sum(is_at_c, axis=1))])
    return layers[: len(layers) * (np.max(norms) < 1 + error)]


def _find_left_out(m: Measured) -> tuple[str, bool]:
    """Returns the names of layers without which no example exceeds C, and True if the others stop at C.

    The names are empty if there are no such layers. Candidates are each layer, all vectors (biases), and the
    2, 3, ... layers that move most, up to half of all layers.
    """
    norms = m.tried.collect("layer_norms")
    count = norms.shape[1]
    ranked = np.argsort(-np.max(norms, axis=0)).tolist()
    candidates = [[layer] for layer in ranked]
    candidates.append(np.flatnonzero(m.probe.dimensions <= 1).tolist())
    candidates += [ranked[:size] for size in range(2, count // 2 + 1)]
    found = ""
    for layers in candidates:
        others = np.sort(np.linalg.norm(np.delete(norms, layers, axis=1), axis=1))
        if 0 < len(layers) < count and others[-1] <= 1 + m.tried.tolerance:
            if others[-2:][0] > 0.96:
                return m.name_layers(layers), True
            found = found or m.name_layers(layers)
    return found, False


def _explain_short_movements(m: Measured) -> Iterator[CheckFinding]:
    """Yields the mistake that explains why clipping stops examples below C.

    Each layer may be clipped to its part of C, which is right.
    """
    tried = m.tried
    mistakes = _find_mistakes(m.probe, _OF_EXAMPLES, tried.plateau, _AT_C + tried.tolerance)
    if mistakes and tried.is_stopped and not tried.stops_by_layer:
        yield CheckFinding(
            "sensitivity",
            mistakes[0],
            f"Extreme examples stop at {tried.plateau:.4g} times eta C / B, while the stated noise is for 1. "
            f"This loses no privacy, but noise hides the gradient. It fits: {'; or '.join(mistakes)}.",
            "divide the clipped sum once, by the stated B",
        )


# Causes of wrong noise


def _explain_noise(m: Measured, is_other_size: bool) -> Iterator[CheckFinding]:
    """Yields the bugs of the noise; a step of another size explains a wrong deviation."""
    missing = _find_repeated_noise(m)
    if missing:
        yield missing
        return
    related = [name for name in m.rejected["independence"] if name != noise.CONSECUTIVE]
    if related:
        yield CheckFinding(
            "independence",
            "noise shared by several numbers",
            "Sums or differences of numbers carry less noise than the accountant assumes; seen in "
            f"{'; '.join(related)}.",
            "draw a number for every parameter, with another key in every layer and another generator on "
            "every worker; do not subtract the mean of the numbers",
        )
    elif m.rejected["independence"]:
        yield CheckFinding(
            "independence",
            "noise of consecutive steps is related",
            "Sums or differences of steps carry less noise than the accountant assumes.",
            "make the generator once, or fold the number of the step into the key",
        )

    given = m.drawn.given
    silent = np.flatnonzero((given.freedom > 0) & (given.silent > 0))
    if len(silent):
        is_part = np.any(given.silent[silent] < np.array(m.probe.sizes)[silent])
        yield CheckFinding(
            "noise",
            f"no noise in {'a part of ' if is_part else ''}{m.name_layers(silent)}",
            "These numbers are the same for every seed.",
            "add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without "
            "examples; leave numbers that are not trained out of `params`",
        )
    # Shared noise leaves fewer independent numbers than the test of the deviation assumes.
    elif not is_other_size and not (related and 0.5 < given.deviation < 2):
        yield from _explain_deviation(m)
    if related:  # tests of the other rows assume independent numbers
        return
    if not len(silent):
        yield from _explain_changes(m)
    yield from _explain_shape(m)


def _find_repeated_noise(m: Measured) -> CheckFinding | None:
    """Returns the finding of noise that is sometimes missing or the same for several seeds, if there is any.

    If all seeds give the same step, it may have no noise at all. Its noise shows in an empty batch. If the
    step refuses that, the batch with every example four times shows it: with the sum of gradients g and noise
    z, the step moves by g + z at the batch as given, and by 4 g + z at the larger batch.
    """
    repeats = noise.count_repeats(m.drawn)
    if m.ties == AT_ONE:
        parts = "steps" if repeats else "numbers of some steps"
        return CheckFinding(
            "noise",
            f"no noise in some {parts}",
            f"{parts} are often the same for two seeds: there the step shows the sum of gradients.",
            "add noise to all numbers at every step: look for a condition, a mask or a skipped call",
        )
    which = "several seeds" if repeats else ""
    if not np.any(m.drawn.given.values):
        others = m.drawn.others
        constant: Any = 0
        if EMPTY in others:
            constant = others[EMPTY].draws[0]
        elif FOURFOLD in others:
            constant = (4 * m.drawn.given.draws[0] - others[FOURFOLD].draws[0]) / 3
        has_noise = 0.3 < np.max(np.abs(constant), initial=0) < 10
        which = "every seed" if has_noise else ""
    if not which:
        return None
    return CheckFinding(
        "independence",
        f"the same noise for {which}",
        f"{repeats} of {len(m.drawn.given.draws)} seeds give exactly the noise of another: two steps reveal "
        "the gradients.",
        "make the generator once, before training, or seed it with the whole seed of the step: "
        f"{m.phrases.generator}",
    )


def _explain_deviation(m: Measured) -> Iterator[CheckFinding]:
    """Yields a wrong deviation and the mistakes that explain it.

    The wrong layers are those whose own test rejects, or all trained layers if there is none.
    """
    given = m.drawn.given
    wrong = m.rejected["noise"]
    if not wrong:
        return
    trained = np.flatnonzero(given.freedom)
    named = [i for i in trained if m.probe.layer_names[i] in wrong]
    layers = named or trained
    deviations = given.deviations[layers]
    freedom = given.freedom[layers]
    deviation = float(np.average(deviations**2, weights=freedom) ** 0.5)
    # 1% and four standard errors, each 1 / sqrt(2 freedom); at most 5%.
    error = min(0.01 + 4 / (2 * np.sum(freedom)) ** 0.5, 0.05)
    fits = _find_mistakes(m.probe, _OF_NOISE, deviation, error)
    if not m.tried.is_clipping_seen:
        fits.append("the whole step has another size than stated: clipping was not seen")
    multiplier = np.min(given.deviations[trained]) * m.probe.settings.noise_multiplier
    harmless = " More noise than stated loses no privacy." if np.min(deviations) > 1 else ""
    yield CheckFinding(
        "noise",
        f"noise of {deviation:.3g} times the stated deviation",
        f"It is {np.min(deviations):.3g} to {np.max(deviations):.3g} times eta sigma C / B in "
        f"{m.name_layers(layers)}. It fits: {'; or '.join(fits) or 'no known mistake'}.{harmless}",
        "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B; or "
        f"state the noise multiplier that all layers have, about {multiplier:.3g}",
    )


def _explain_changes(m: Measured) -> Iterator[CheckFinding]:
    """Yields noise that is not finite, missing, or of another size at another batch, once a row."""
    rows = set()
    for batch, other in m.drawn.others.items():
        row = noise.row_of(batch)
        if row in rows or not (other.not_finite or batch in m.rejected[row]):
            continue
        rows.add(row)
        ratio = other.deviation / m.drawn.given.deviation
        name = "noise that depends on the batch"
        advice = "take the noise's deviation only from sigma, C and B, and add it once a step"
        size = {QUARTER: 0.25, FOURFOLD: 4.0}.get(batch, 0)  # in batches as given
        if other.not_finite:
            name = _NOT_FINITE
            advice = _FINITE
        elif ratio == 0:
            name = "steps with an empty batch are skipped"
            advice = "add noise to a sum of zero too: no step may show that the batch was empty"
        elif abs(ratio * size - 1) < 0.15:
            name = "normalised by the batch's actual size"
            advice = "divide by the stated batch size, a constant, not by the number of examples"
        meaning = f"The batch changes the noise: at {batch} it is {ratio:.3g} times as large."
        yield CheckFinding(row, name, meaning, advice)


def _explain_shape(m: Measured) -> Iterator[CheckFinding]:
    """Yields noise whose distribution is not normal, which ties may show even if no test does."""
    if m.ties == AT_ENDS:
        yield CheckFinding(
            "shape",
            "noise that is clamped",
            "Several draws agree at the largest and smallest values.",
            "draw it with normal() and do not clamp it",
        )
    elif m.ties == GRID:
        yield CheckFinding(
            "shape",
            "noise on a grid that the sum is not on",
            "Draws have few values. Steps with different gradients have different values, so one step tells "
            "which gradients it has.",
            "draw the noise in float32 or float64, and round the sum after adding it",
        )
    elif m.rejected["shape"]:
        yield CheckFinding(
            "shape",
            "noise that is not normal",
            "The numbers, or the norms of the draws, do not have the distribution of the Gaussian that the "
            "accountant assumes.",
            "draw it with normal(), not uniform() or laplace(), not truncated; do not normalise it, and do "
            "not clip after adding it",
        )
