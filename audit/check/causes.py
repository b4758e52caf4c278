"""A table of mistakes that explain wrong measurements of a step, with their signatures and fixes.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size. Movements
are in units of eta C / B, noise in units of eta sigma C / B.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from audit.check import noise
from audit.check.measured import Measured
from audit.check.movements import COARSE, SAME
from audit.check.noise import AT_ENDS, AT_ONE, EMPTY, FOURFOLD, GRID, OTHER_ROWS, QUARTER
from audit.check.report import CheckFinding

_AT_C = 5e-3  # a norm this close to C counts as C
_EXCESS = "an example that moves the step by more than C"
_NOT_FINITE = "NaN or infinity"
_CLIP = (
    "clip the whole gradient of every example to norm C, {m.phrases.clip}; divide the sum by the stated "
    "B once"
)
_KEEP_FINITE = (
    "clip with C / max(C, norm), replace non-finite gradients with 0, never divide by a size"
)


class Cause(NamedTuple):
    """A mistake in a step.

    Attributes:
      symptom: the row of the report that shows the mistake, or a key of `_ROWS`.
      name: the name of the mistake.
      signature: a function of the measurements m. It returns a false value if the mistake does not fit.
        Otherwise it returns True, a word or a tuple of words for {0}, {1}, ... in texts; {m} stands for m.
      meaning: the observation, and its effect on privacy.
      fix: an instruction.
      explains: other symptoms that this mistake causes.
    """

    symptom: str
    name: str
    signature: Callable[[Measured], Any]
    meaning: str
    fix: str
    explains: tuple[str, ...] = ()


def explain(m: Measured) -> Iterator[CheckFinding]:
    """Yields the bugs: for each symptom that no other bug explains, the first cause that fits."""
    explained = set()
    if m.hides_movements:
        explained |= {"sensitivity", "excess"}
    if not m.tried.violations:
        explained.add("excess")
    if m.hides_noise:
        explained |= {"noise", *OTHER_ROWS}
    for cause in CAUSES:
        fit = cause.symptom not in explained and cause.signature(m)
        if fit:
            words = fit if isinstance(fit, tuple) else (fit,)
            texts = (cause.name, cause.meaning, cause.fix)
            filled = [text.format(*words, m=m) for text in texts]
            yield CheckFinding(_ROWS.get(cause.symptom, cause.symptom), *filled)
            explained |= {cause.symptom, *cause.explains}


# Mistakes that multiply a size by a power of a quantity: for each size, keyed by mistake name, the
# quantity and the power.
_ANY_SIZE = {
    "C is left out": ("clipping_norm", -1),
    "C enters twice": ("clipping_norm", 1),
    "divided by the batch size twice": ("batch_size", -1),
    "not divided by the batch size": ("batch_size", 1),
    "the learning rate is left out": ("learning_rate", -1),
    "the learning rate enters twice": ("learning_rate", 1),
}
FACTORS: dict[str, dict[str, tuple[str, float]]] = {
    "movements": {
        "clipping in {k} pieces or more, or an example that counts {k} times": ("k", 1),
        **_ANY_SIZE,
        "clipping in {k} pieces (subspaces, views of an example, tied uses)": ("k", 0.5),
        "divided by {k} accumulated batches or workers": ("k", -1),
        "a loss scale of {k:,} divided out after clipping": ("scale", -1),
    },
    "movements and noise": {
        **_ANY_SIZE,
        "C sqrt({k}) of {k} layers, each clipped to C": ("layers", 0.5),
        "divided by {k} accumulated batches or workers again": ("k", -1),
        "a loss scale of {k:,} that is not divided out": ("scale", 1),
    },
    "noise": {
        **_ANY_SIZE,
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
    },
}


def find_factors(m: Measured, size: str, factor: float, tolerance: float) -> list[str]:
    """Returns the names of the mistakes in `FACTORS` that explain a wrong factor, the best fit first.

    Args:
      m: the measurements.
      size: the key in `FACTORS` of the size that is wrong.
      factor: the measured size divided by the stated one.
      tolerance: the largest relative error of a fit.
    """
    stated = m.probe.settings
    quantities = stated._asdict() | {
        "sigma C": stated.noise_multiplier * stated.clipping_norm,
        "layers": np.sum(m.probe.is_layer_trained),
        "k": range(2, 17),
        "scale": 2 ** np.arange(5, 25),
    }
    errors = {}
    for name, (quantity, power) in FACTORS[size].items():
        for k in np.atleast_1d(quantities[quantity]).tolist():
            predicted = k**power
            # Rounding keeps mistakes that fit equally well in the order of the table.
            error = round(abs(factor / predicted - 1), 3)
            # A factor of about 1 explains nothing, such as "C is left out" if C is 1.
            if abs(predicted - 1) > 0.02 and error < tolerance:
                errors[name.format(k=k)] = error
    return sorted(errors, key=errors.__getitem__)


# Signatures of wrong movements


def _fit_size(m: Measured) -> tuple[Any, ...]:
    """Returns the wrong factor common to movements and noise, and the mistakes that fit; () if none.

    The factor is the plateau of added examples, or the reach of examples that replace a row, which may be up
    to a tenth too small.
    """
    if m.hides_movements or m.hides_noise or m.interacts or m.tried.tolerance > COARSE:
        return ()
    tried = m.tried
    deviation = m.drawn.given.deviation
    error = 4 / (2 * np.sum(m.drawn.given.freedom)) ** 0.5 + 0.005  # four standard errors
    factor = tried.plateau
    if tried.refusal:
        factor = max(tried.reach, deviation * (1 - error))
    is_another_size = factor > 1.003 + 2 * tried.tolerance or (
        tried.is_clipped and factor < 1 - error
    )
    agrees_with_noise = 0.9 * deviation < tried.reach < 1.01 * factor
    # The factor describes the noise better than the stated size does.
    is_nearer = abs(factor / deviation - 1) < min(error, abs(deviation - 1))
    if not (is_another_size and agrees_with_noise and is_nearer):
        return ()
    stated = m.probe.settings
    fits = [
        f"B = {stated.batch_size / factor:.4g} where {stated.batch_size:g} is stated",
        f"a learning rate of {stated.learning_rate * factor:.4g} where {stated.learning_rate:g} is stated",
        *find_factors(m, "movements and noise", factor, _AT_C),
    ]
    return factor, "; or ".join(fits)


def _fit_plateau(m: Measured) -> Any:
    """Returns the best and all explanations of the size to which examples are clipped, or a false value."""
    tried = m.tried
    fits = find_factors(m, "movements", tried.plateau, _AT_C + tried.tolerance)
    if tried.violations and not fits:
        fits = [f"clipped to {tried.plateau:.4g} times the stated C"]
    return fits and tried.is_clipped and (fits[0], "; or ".join(fits))


def _find_rows(m: Measured) -> str:
    """Returns the batch rows in which an example exceeds C, if other rows bound it.

    If an added example also exceeds C, the row does not matter.
    """
    places = m.tried.places
    rows = [row for row in sorted(places) if not places[row].excess <= 1]
    listed = ", ".join(map(str, rows[:8]))
    text = f"{len(rows)} of {len(places)} rows tried: {listed}"
    return text if len(m.tried.violations) <= len(rows) < len(places) else ""


def _is_clipped_by_number(m: Measured) -> bool:
    """Returns True if the largest example moves most parameters by C, and none by more."""
    sizes = np.abs(m.tried.collect("vector")[0])
    sizes = sizes[sizes > 1e-3]
    return bool(sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5)


def _find_separate_layers(m: Measured, least: int) -> str:
    """Returns the names of layers that one example moves by C, if no example moves a layer by more.

    We choose the example with the most layers at C. With fewer than `least` such layers, the result is empty.
    """
    norms = m.tried.collect("layer_norms")
    error = _AT_C + m.tried.tolerance
    is_at_c = np.abs(norms - 1) < error
    layers = np.flatnonzero(is_at_c[np.argmax(np.sum(is_at_c, axis=1))])
    if len(layers) < least or np.max(norms) >= 1 + error:
        return ""
    return m.name_layers(layers)


def _find_left_out(m: Measured, least: float) -> str:
    """Returns the names of layers without which no example exceeds C, or "".

    Candidates are each layer, all vectors (biases), and the 2, 3, ... layers that move most, up to half of
    the layers.

    Args:
      m: the measurements.
      least: the least movement of the other layers by the second largest example.
    """
    norms = m.tried.collect("layer_norms")
    count = norms.shape[1]
    ranked = np.argsort(-np.max(norms, axis=0)).tolist()
    candidates = [[layer] for layer in ranked]
    candidates.append(np.flatnonzero(m.probe.dimensions <= 1).tolist())
    candidates += [ranked[:size] for size in range(2, count // 2 + 1)]
    for layers in candidates:
        others = np.sort(np.linalg.norm(np.delete(norms, layers, axis=1), axis=1))
        is_bounded = others[-1] <= 1 + m.tried.tolerance and others[-2:][0] >= least
        if 0 < len(layers) < count and is_bounded:
            return m.name_layers(layers)
    return ""


def _is_scaled_up(m: Measured) -> bool:
    """Returns True if several examples move the step by C, and no other by less."""
    norms = m.tried.collect("norm")
    return bool(np.min(norms[norms > 0]) > 1 - SAME and np.sum(norms < 1 + SAME) > 3)


# Signatures of wrong noise


def _find_missing(m: Measured) -> str:
    """Returns where noise is sometimes missing: "steps" or "numbers of some steps"; otherwise ""."""
    if m.ties != AT_ONE:
        return ""
    return "steps" if noise.count_repeats(m.drawn) else "numbers of some steps"


def _find_repeats(m: Measured) -> Any:
    """Returns which seeds have the same noise, how many seeds repeat it, and the number of seeds.

    The result is false if the noise does not repeat. If all seeds give the same step, it may have no noise,
    which an empty batch shows. If the step rejects an empty batch, we use the batch with every example four
    times: for the sum of gradients g and noise z, the step moves by g + z and 4 g + z.
    """
    others = m.drawn.others
    draws = m.drawn.given.draws
    repeats = noise.count_repeats(m.drawn)
    if np.any(m.drawn.given.values):
        return repeats and ("several seeds", repeats, len(draws))
    constant = np.zeros(1)
    if EMPTY in others:
        constant = others[EMPTY].draws[0]
    elif FOURFOLD in others:
        constant = (4 * draws[0] - others[FOURFOLD].draws[0]) / 3
    is_noise = 0.3 < np.max(np.abs(constant), initial=0) < 10
    return is_noise and ("every seed", repeats, len(draws))


def _find_silent(m: Measured) -> str:
    """Returns the names of trained layers with parameters that do not depend on the seed."""
    given = m.drawn.given
    layers = np.flatnonzero((given.freedom > 0) & (given.silent > 0))
    is_part = np.any(given.silent[layers] < np.array(m.probe.sizes)[layers])
    return f"{'a part of ' if is_part else ''}{m.name_layers(layers)}"


def _fit_deviation(m: Measured) -> tuple[Any, ...]:
    """Returns the wrong deviation of the noise, its range and layers, the mistakes that fit, and sigma.

    The wrong layers are those with a rejected test, or else all trained layers. Sigma is the smallest of all
    layers.
    """
    given = m.drawn.given
    # Shared noise leaves fewer independent numbers than the test of the deviation assumes.
    is_shared = m.related and 0.5 < given.deviation < 2
    if not m.rejected["noise"] or is_shared or _fit_size(m):
        return ()
    trained = np.flatnonzero(given.freedom)
    wrong = [i for i in trained if m.probe.layer_names[i] in m.rejected["noise"]]
    layers = wrong or trained
    deviations = given.deviations[layers]
    freedom = given.freedom[layers]
    deviation = np.average(deviations**2, weights=freedom) ** 0.5
    # 1% and four standard errors, each 1 / sqrt(2 freedom); at most 5%.
    error = min(0.01 + 4 / (2 * np.sum(freedom)) ** 0.5, 0.05)
    fits = find_factors(m, "noise", deviation, error)
    if not m.tried.is_clipping_seen:
        fits.append("the whole step has another size than stated: clipping was not seen")
    low = np.min(deviations)
    text = (
        f"{low:.3g} to {np.max(deviations):.3g} times eta sigma C / B in {m.name_layers(layers)}. It fits: "
        f"{'; or '.join(fits) or 'no known mistake'}."
    )
    if low > 1:
        text += " More noise than stated loses no privacy."
    multiplier = np.min(given.deviations[trained]) * m.probe.settings.noise_multiplier
    return deviation, text, multiplier


def _find_change(m: Measured, row: str) -> tuple[Any, ...]:
    """Returns the bug, the batch, the ratio of deviations and the fix for the first batch with other noise.

    Only batches of one row of the report are compared. Returns () if nothing changed.
    """
    for batch, other in m.drawn.others.items():
        if noise.row_of(batch) != row or not (other.not_finite or batch in m.rejected[row]):
            continue
        ratio = other.deviation / m.drawn.given.deviation
        name = "noise that depends on the batch"
        size = {QUARTER: 0.25, FOURFOLD: 4.0}.get(batch, 0)  # in batches as given
        if other.not_finite:
            name = _NOT_FINITE
        elif ratio == 0:
            name = "steps with an empty batch are skipped"
        elif abs(ratio * size - 1) < 0.15:
            name = "normalised by the batch's actual size"
        return name, batch, ratio, _FIXES_OF_CHANGES[name]
    return ()


_FIXES_OF_CHANGES = {
    _NOT_FINITE: _KEEP_FINITE,
    "steps with an empty batch are skipped": "add noise even when the batch is empty and the sum is "
    "zero: no step may show that the batch was empty",
    "normalised by the batch's actual size": "divide by the stated batch size, a constant, not by the number "
    "of examples",
    "noise that depends on the batch": "take the noise's deviation only from sigma, C and B, and add it once "
    "a step",
}


# The row of the report for each symptom that is not the name of a row.
_ROWS = {"excess": "sensitivity", "noise that is not finite": "noise", "buffers": "noise"}
# Mistakes in clipping: the name, the signature and its description, after the largest movement.
_CLIPPING: list[tuple[str, Callable[[Measured], Any], str]] = [
    (
        "rows of the batch that are not clipped",
        _find_rows,
        "It does so in {0}.",
    ),
    (
        _EXCESS,
        lambda m: m.interacts,
        "First look for an operation that mixes examples.",
    ),
    (
        "clipped number by number",
        _is_clipped_by_number,
        "No number moves by more than C.",
    ),
    (
        "layers clipped by themselves",
        functools.partial(_find_separate_layers, least=2),
        "Several layers stop at C with one example: {0}.",
    ),
    (
        "{0} left out of the clipping norm, or of clipping",
        functools.partial(_find_left_out, least=0.96),
        "The other layers stop at C.",
    ),
    (
        "{0}",
        _fit_plateau,
        "Extreme examples stop at {m.tried.plateau:.4g} times the stated clipping norm. It fits: "
        "{1}.",
    ),
    (
        "gradients scaled up to C, not down",
        _is_scaled_up,
        "Short gradients come to C, longer ones are left: min where max is meant, or max for min?",
    ),
    (
        "no clipping of single examples",
        lambda m: m.tried.reach > 16,
        "",
    ),
    (
        "{0} clipped apart from other layers",
        functools.partial(_find_separate_layers, least=1),
        "It stops at C while other layers move too.",
    ),
    (
        _EXCESS,
        functools.partial(_find_left_out, least=0),
        "All layers except {0} stay within C: is their gradient clipped too?",
    ),
    (
        _EXCESS,
        lambda m: True,  # if no earlier cause fits
        "Examples do not stop at C: is there any clipping, and are all numbers in the norm?",
    ),
]
# For each symptom, the most specific causes come first.
CAUSES = [
    Cause(
        "replay",
        "noise that does not follow the seed",
        lambda m: not m.replays and m.replays_like_noise,
        "Two calls with the same seed differ as much as two draws of the noise: the seed does not determine "
        "it.",
        "draw the noise from {m.phrases.generator}; until then only the noise can be checked",
    ),
    Cause(
        "replay",
        "a step that keeps state between calls",
        lambda m: not m.replays,
        "Two calls with the same seed and batch differ by {m.replay.norm:.3g} eta C / B, which the noise "
        "does not explain.",
        "restore parameters, optimizer and generators before each call; with Adam "
        "{m.phrases.gradient}",
    ),
    Cause(
        "separation",
        "examples change each other's gradients",
        lambda m: m.interacts,
        "Two parts of a batch together do not move the step by the sum of their separate movements: the "
        "difference is {m.interaction.norm:.3g} eta C / B.",
        "look for an operation that mixes examples: the batch's gradient clipped as one (such as by "
        "clip_grad_norm_), batch norm, division by the actual size, a clipping norm or weights taken from "
        "the batch, microbatches clipped as one, a loss over pairs",
    ),
    Cause(
        "sensitivity",
        "a step of another size than stated",
        _fit_size,
        "Movements and noise are both {0:.4g} times the stated eta C / B, which loses no privacy. It fits: "
        "{1}.",
        "state the learning rate, clipping norm and batch size of the step, or divide by the stated one",
        explains=("excess",),
    ),
    Cause(
        "sensitivity",
        "{0}",
        lambda m: not m.tried.violations and not m.tried.clips_by_layer and _fit_plateau(m),
        "Extreme examples stop at {m.tried.plateau:.4g} times eta C / B, while the stated noise is for 1. "
        "This loses no privacy, but noise hides the gradient. It fits: {1}.",
        "divide the clipped sum once, by the stated B",
    ),
    Cause(
        "excess",
        _NOT_FINITE,
        lambda m: m.tried.largest[1].norm == np.inf,
        "{m.largest} The model then shows whether the batch has this example.",
        _KEEP_FINITE,
    ),
    *(
        Cause("excess", name, signature, f"{{m.largest}} {text}", _CLIP)
        for name, signature, text in _CLIPPING
    ),
    Cause(
        "noise that is not finite",
        _NOT_FINITE,
        lambda m: m.drawn and m.drawn.given.not_finite,
        "The step gives NaN or infinity at {0:,} of {m.drawn.given.draws.shape[0]:,} seeds with the "
        "batch as given, which hides other bugs of the noise.",
        "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
        "gradients that are not finite at some seeds",
    ),
    Cause(
        "noise",
        "no noise in some {0}",
        _find_missing,
        "These {0} are often the same for two seeds: they show the sum of gradients.",
        "add noise to all numbers at every step: look for a condition, a mask or a skipped call",
        explains=OTHER_ROWS,
    ),
    Cause(
        "independence",
        "the same noise for {0}",
        _find_repeats,
        "{1} of {2} seeds give exactly the noise of another: two steps reveal the gradients.",
        "make the generator once, before training, or seed it with the whole seed of the step: "
        "{m.phrases.generator}",
        explains=("noise", *OTHER_ROWS),
    ),
    Cause(
        "independence",
        "noise shared by several numbers",
        lambda m: "; ".join(m.related),
        "Sums or differences of numbers carry less noise than the accountant assumes; seen in {0}.",
        "draw a number for every parameter, with another key in every layer and another generator on every "
        "worker; do not subtract the mean of the numbers",
        explains=OTHER_ROWS,  # whose tests assume independent numbers
    ),
    Cause(
        "independence",
        "noise of consecutive steps is related",
        lambda m: m.rejected["independence"],
        "Sums or differences of steps carry less noise than the accountant assumes.",
        "make the generator once, or fold the number of the step into the key",
    ),
    Cause(
        "noise",
        "no noise in {0}",
        _find_silent,
        "These numbers are the same for every seed.",
        "add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without "
        "examples; leave numbers that are not trained out of `params`",
        explains=("noise and data", "empty batch"),
    ),
    Cause(
        "noise",
        "noise of {0:.3g} times the stated deviation",
        _fit_deviation,
        "It is {1}",
        "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B; or "
        "state the noise multiplier that all layers have, about {2:.3g}",
    ),
    *(
        Cause(
            row,
            "{0}",
            functools.partial(_find_change, row=row),
            "The batch changes the noise: at {1} it is {2:.3g} times as large.",
            "{3}",
        )
        for row in ("noise and data", "empty batch")
    ),
    Cause(
        "shape",
        "noise that is clamped",
        lambda m: m.ties == AT_ENDS,
        "Several draws agree at the largest and smallest values.",
        "draw it with normal() and do not clamp it",
    ),
    Cause(
        "shape",
        "noise on a grid that the sum is not on",
        lambda m: m.ties == GRID,
        "Draws have few values. Steps with different gradients have different values, so one step shows "
        "which gradients it has.",
        "draw the noise in float32 or float64, and round the sum after adding it",
    ),
    Cause(
        "shape",
        "noise that is not normal",
        lambda m: m.rejected["shape"],
        "The numbers or the norms of the draws are not distributed like those of Gaussian noise.",
        "draw it with normal(), not uniform() or laplace(), not truncated; do not normalise it, and do not "
        "clip after adding it",
    ),
    Cause(
        "buffers",
        "{0} is released with the model and has no noise",
        lambda m: ", ".join(sorted(getattr(m.probe.step, "changed_buffers", ()))),
        "The data change this buffer, and it is neither clipped nor noised.",
        "switch it off (track_running_stats=False in batch norm), or compute it from public data",
    ),
]
