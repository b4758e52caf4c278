"""Explains wrong measurements of a step with a table of mistakes, their signatures and fixes.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size. Movements
are in units of eta C / B, and noise is in units of eta sigma C / B.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from audit.check import noise
from audit.check.measured import Measured
from audit.check.movements import MAX_TOLERANCE, NORM_ERROR
from audit.check.noise import AT_ENDS, AT_ONE, EMPTY, FOURFOLD, GRID, OTHER_ROWS, QUARTER
from audit.check.report import CheckFinding

_C_ERROR = 5e-3  # the relative difference below which a norm counts as equal to C
_EXCESS = "an example that moves the step by more than C"
_BY_SIZE = "normalised by the batch's actual size"
_DIVIDE = "divide by the stated batch size, a constant, not by the number of examples"
NOT_FINITE = "NaN or infinity"
_CLIP = (
    "clip the whole gradient of every example to norm C, {m.phrases.clip}; divide the sum by the stated "
    "B once"
)
KEEP_FINITE = (
    "clip with C / max(C, norm), replace non-finite gradients with 0, never divide by actual sizes"
)


class Cause(NamedTuple):
    """A mistake in a step.

    Attributes:
      symptom: the name of the report row, or a key of `_ROW_OF_SYMPTOM`.
      name: its name.
      signature: a function of the measurements ({m} in the texts). It returns a falsy value if the mistake
        does not explain them; otherwise True, or the values of {0}, {1}, ... in the texts.
      meaning: the observation, and its effect on privacy.
      fix: an instruction.
      explains: other symptoms of this mistake.
    """

    symptom: str
    name: str
    signature: Callable[[Measured], Any]
    meaning: str
    fix: str
    explains: tuple[str, ...] = ()


def explain(m: Measured) -> Iterator[CheckFinding]:
    """Yields a bug for each unexplained symptom: the first cause that fits.

    Skips movements or noise that cannot be measured.
    """
    done = set()  # symptoms that are absent, hidden or explained
    if m.movement_obstacle:
        done |= {"sensitivity", "excess"}
    if not m.tried.violations:
        done.add("excess")
    if m.noise_obstacle:
        done |= {"noise", *OTHER_ROWS}
    for cause in CAUSES:
        # True, or values for the texts.
        fit = cause.symptom not in done and cause.signature(m)
        if fit:
            values = fit if isinstance(fit, tuple) else (fit,)
            filled = [text.format(*values, m=m) for text in (cause.name, cause.meaning, cause.fix)]
            yield CheckFinding(_ROW_OF_SYMPTOM.get(cause.symptom, cause.symptom), *filled)
            done |= {cause.symptom, *cause.explains}


# Mistakes that multiply a size by a power of a quantity k, as {name: (quantity, power)}.
_ANY_SIZE = {
    "C is left out": ("clipping_norm", -1),
    "divided by the batch size twice": ("batch_size", -1),
    "not divided by the batch size": ("batch_size", 1),
    "the learning rate is left out": ("learning_rate", -1),
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
        "divided by an extra sqrt(B)": ("batch_size", -0.5),
        "divided by sqrt(B), or drawn for every example": ("batch_size", 0.5),
        "sigma is squared: a variance mistaken for a deviation": ("noise_multiplier", 1),
        "sigma is left out": ("noise_multiplier", -1),
        "the root of sigma C: a deviation mistaken for a variance": ("sigma C", -0.5),
        "made for C sqrt({k}), of {k} layers each clipped to C": ("layers", 0.5),
        "noise added {k} times, by accumulated batches or workers": ("k", 0.5),
        "C is applied twice": ("clipping_norm", 1),
        "the learning rate is applied twice": ("learning_rate", 1),
        "sigma C is squared": ("sigma C", 1),
        "one draw added {k} times, by workers with one generator, or for {k} C": ("k", 1),
        "the noise of one of {k} accumulated batches or workers": ("k", -0.5),
        "divided by {k} accumulated batches or workers": ("k", -1),
    },
}


def find_factors(m: Measured, size: str, factor: float, tolerance: float) -> list[str]:
    """Returns the names of the mistakes in `FACTORS` that explain a wrong factor, best fit first.

    `size` is "movements", "noise" or, if both have the same wrong size, "movements and noise". `factor` is
    the measured size divided by the stated size, and `tolerance` is the largest accepted relative error.
    """
    stated = m.probe.settings
    quantities = stated._asdict() | {
        "sigma C": stated.noise_multiplier * stated.clipping_norm,
        "layers": m.probe.is_layer_trained.sum(),
        "k": range(2, 17),  # numbers of pieces, copies or workers
        "scale": 2 ** np.arange(5, 25),  # loss scales of mixed-precision training
    }
    errors = {}
    for name, (quantity, power) in FACTORS[size].items():
        for value in np.atleast_1d(quantities[quantity]).tolist():
            predicted = value**power
            # After rounding, mistakes that fit equally well keep the table's order.
            error = round(abs(factor / predicted - 1), 3)
            # A mistake with a factor near 1, such as "C is left out" if C is 1, has no effect.
            if abs(predicted - 1) > 0.02 and error < tolerance:
                errors[name.format(k=value)] = error
    return sorted(errors, key=errors.__getitem__)


def _fit_size(m: Measured) -> tuple[float, str] | None:
    """Returns the factor by which movements and noise are both wrong, and explanations; otherwise None."""
    # If examples affect each other's gradients, movements do not reveal a factor.
    if m.movement_obstacle or m.noise_obstacle or m.interacts or m.tried.tolerance > MAX_TOLERANCE:
        return None
    factor = _measure_factor(m)
    if factor is None:
        return None
    stated = m.probe.settings
    fits = [
        f"B = {stated.batch_size / factor:.4g} instead of the stated {stated.batch_size:g}",
        f"a learning rate of {stated.learning_rate * factor:.4g} instead of {stated.learning_rate:g}",
        *find_factors(m, "movements and noise", factor, tolerance=_C_ERROR),
    ]
    return factor, "; or ".join(fits)


def _measure_factor(m: Measured) -> float | None:
    """Returns the factor by which movements and noise both differ from their stated sizes; otherwise None.

    The factor is the common norm of the largest movements. If examples replace rows, it is the largest norm.
    Because this may be 10% too small, the factor is at least the noise's deviation minus its error.
    """
    tried = m.tried
    deviation = m.drawn.given.deviation
    # Four standard errors of the deviation, plus 0.5%.
    error = 4 / (2 * m.drawn.given.freedom.sum()) ** 0.5 + 0.005
    factor = tried.common_norm  # NaN, which fails all comparisons, if there is none
    if tried.replaces_rows:
        factor = max(tried.max_norm, deviation * (1 - error))
    # Small gradients also explain movements below C, so a factor below 1 requires evidence of clipping.
    is_larger = factor > 1 + NORM_ERROR + 2 * tried.tolerance
    is_smaller = factor < 1 - error and tried.is_clipped
    # The largest movement may be 10% below the noise's deviation, or 1% above the factor.
    is_bound = 0.9 * deviation < tried.max_norm < 1.01 * factor
    # The noise must be close to the factor, and closer than to 1, the stated size.
    fits_noise = abs(factor / deviation - 1) < min(error, abs(deviation - 1))
    return factor if (is_larger or is_smaller) and is_bound and fits_noise else None


def _fit_clipping_norm(m: Measured) -> tuple[str, str] | None:
    """Returns the best explanation of a wrong clipping norm, and all explanations; None without clipping.

    A norm that no known mistake explains is reported only if movements exceed C, because smaller norms do not
    weaken privacy.
    """
    tried = m.tried
    fits = find_factors(m, "movements", tried.common_norm, _C_ERROR + tried.tolerance)
    if tried.violations and not fits:
        fits = [f"clipped to {tried.common_norm:.4g} times the stated C"]
    if not fits or not tried.is_clipped:  # `is_clipped` comes last, because it takes training steps
        return None
    return fits[0], "; or ".join(fits)


def _find_rows(m: Measured) -> str:
    """Lists the rows in which examples exceed C; returns "" if all rows or added examples do.

    If examples change each other's gradients, clipped rows may also exceed C. The result is then also "" if
    at least half of the rows do.
    """
    by_row = m.tried.by_row
    rows = [row for row in sorted(by_row) if by_row[row].excess > 1]
    text = f"{len(rows)} of {len(by_row)} rows tried: {', '.join(map(str, rows[:8]))}"
    is_only_in_rows = len(m.tried.violations) == len(rows)
    limit = len(by_row) / 2 if m.interacts else len(by_row)
    return text if is_only_in_rows and len(rows) < limit else ""


def _is_clipped_in_part(m: Measured) -> bool:
    """Returns True if an example exceeds C by more than 2%, and at least four others are clipped to C."""
    norms = m.tried.collect("norm")
    is_at_c = (norms > 1 - _C_ERROR) & (norms <= 1 + m.tried.tolerance)
    return bool(is_at_c.sum() >= 4 and norms[0] > 1.02)


def _find_separate_layers(m: Measured, least: int) -> str:
    """Returns the names of the layers that a single example moves by C.

    Of the examples that exceed C, uses the one with the most layers at C. Returns "" if it has fewer than
    `least`, or if any example moves a layer by more than C.
    """
    norms = m.tried.collect("layer_norms")
    error = _C_ERROR + m.tried.tolerance
    exceeds_c = m.tried.collect("norm") > 1 + error
    is_at_c = (abs(norms - 1) < error) & exceeds_c[:, None]
    layers = np.flatnonzero(is_at_c[np.argmax(is_at_c.sum(axis=1))])
    if len(layers) < least or norms.max() >= 1 + error:
        return ""
    return m.name_layers(layers)


def _find_left_out(m: Measured) -> str:
    """Returns the names of layers without which all examples stay within C; "" if none are found.

    Tries each layer, all vectors (biases), and the 2, 3, ... layers that move most, up to half of all layers.
    As evidence of clipping, two examples that exceed C must move the other layers by at least 0.96 C.
    """
    tried = m.tried
    # Differences from a replaced row do not show which layers are clipped. If all examples are clipped to a
    # common norm slightly above C, omitting any small layer may bring the rest within C.
    if tried.replaces_rows or (tried.is_clipped and tried.common_norm < 1.1):
        return ""
    norms = tried.collect("layer_norms")
    exceeds_c = tried.collect("norm") > 1 + tried.tolerance
    count = norms.shape[1]
    ranked = np.argsort(-norms.max(axis=0)).tolist()
    candidates = [[layer] for layer in ranked]
    candidates.append(np.flatnonzero(m.probe.dimensions <= 1).tolist())
    candidates += [ranked[:size] for size in range(2, count // 2 + 1)]
    for layers in candidates:
        other_norms = np.linalg.norm(np.delete(norms, layers, axis=1), axis=1)
        is_within_c = other_norms.max() <= 1 + tried.tolerance
        are_clipped = np.sum(other_norms[exceeds_c] >= 0.96) >= 2
        if 0 < len(layers) < count and is_within_c and are_clipped:
            return m.name_layers(layers)
    return ""


def _find_missing(m: Measured) -> str:
    """Returns what sometimes lacks noise: "steps" or "parameters in some steps"; "" if nothing does."""
    if m.ties != AT_ONE:  # AT_ONE: several seeds share a value, as without noise
        return ""
    return "steps" if noise.count_repeats(m.drawn) else "parameters in some steps"


def _find_repeats(m: Measured) -> tuple[str, int, int] | None:
    """Returns "several seeds" or "every seed", the number of seeds that repeat noise, and the total number.

    Returns None if noise does not repeat. If all seeds give the same step, an empty batch shows whether the
    step has noise. If the step rejects an empty batch, each example is used four times instead. With a sum of
    gradients g and noise z, the movements are a = g + z and b = 4 g + z, so z = (4 a - b) / 3.
    """
    drawn = m.drawn
    others = drawn.others
    draws = drawn.given.draws
    repeats = noise.count_repeats(drawn)
    if not repeats:
        return None
    seeds_differ = drawn.given.values.any()  # draws minus their mean
    if seeds_differ:
        return "several seeds", repeats, len(draws)
    constant_noise = np.zeros(1)  # if unknown
    if EMPTY in others:
        constant_noise = others[EMPTY].draws[0]
    elif FOURFOLD in others:
        constant_noise = (4 * draws[0] - others[FOURFOLD].draws[0]) / 3
    # The plausible range of the largest draw, in units of the stated deviation.
    if 0.3 < np.max(abs(constant_noise), initial=0) < 10:
        return "every seed", repeats, len(draws)
    return None


def _find_silent(m: Measured) -> str:
    """Returns the names of trained layers in which some parameters do not depend on the seed."""
    given = m.drawn.given
    layers = np.flatnonzero((given.freedom > 0) & (given.silent > 0))
    is_part = np.any(given.silent[layers] < np.array(m.probe.sizes)[layers])
    return f"{'a part of ' if is_part else ''}{m.name_layers(layers)}"


def _fit_deviation(m: Measured) -> tuple[Any, str, Any] | None:
    """Returns the ratio of the noise's deviation to the stated one, an explanation, and sigma.

    Averages over the layers whose test rejects or, if there are none, over all trained layers; if these
    differ, the ratio is the smallest. Sigma is measured in the layer with the least noise. Returns None if
    the deviation is right, or if shared noise or a step of a different size explains the error.
    """
    given = m.drawn.given
    # The test assumes independent numbers, so shared noise can explain a rejection, but not a twofold error.
    is_shared = m.related and 0.5 < given.deviation < 2
    if not m.rejected["noise"] or is_shared or _fit_size(m):
        return None
    trained = np.flatnonzero(given.freedom)
    wrong = [i for i in trained if m.probe.layer_names[i] in m.rejected["noise"]]
    layers = wrong or trained
    deviations = given.deviations[layers]
    freedom = given.freedom[layers]
    deviation = np.average(deviations**2, weights=freedom) ** 0.5
    # 1% plus four standard errors, each 1 / sqrt(2 freedom); at most 5%.
    error = min(0.01 + 4 / (2 * freedom.sum()) ** 0.5, 0.05)
    low = deviations.min()
    fits = []
    # Each layer may differ by 2% plus four standard errors.
    if np.all(abs(deviations / deviation - 1) < 0.02 + 4 / (2 * freedom) ** 0.5):
        fits = find_factors(m, "noise", deviation, error)
    else:  # layers differ, so no common factor explains them
        deviation = low
    if not m.tried.is_clipping_seen:
        fits.append("the whole step has a different size than stated: clipping was not seen")
    text = (
        f"{low:.3g} to {deviations.max():.3g} times eta sigma C / B in {m.name_layers(layers)}. Possible "
        f"explanation: {'; or '.join(fits) or 'none known'}."
    )
    if low > 1:
        text += " Excess noise does not weaken privacy."
    multiplier = np.min(given.deviations[trained]) * m.probe.settings.noise_multiplier
    return deviation, text, multiplier


def _find_change(m: Measured, row: str) -> tuple[str, str, float, str] | None:
    """Finds the first batch with different noise; returns the bug, batch, ratio of deviations and fix.

    Compares only batches in the report row `row`. Returns None if their noise does not differ.
    """
    # Sizes relative to the given batch. A step may divide by 1 instead of 0 on an empty batch.
    sizes = {QUARTER: 0.25, FOURFOLD: 4.0, EMPTY: 1 / len(m.probe.rows[0])}
    for batch, other in m.drawn.others.items():
        if noise.row_of(batch) != row or not (other.not_finite or batch in m.rejected[row]):
            continue
        ratio = other.deviation / m.drawn.given.deviation
        name = "noise that depends on the batch"
        fix = "compute the noise's deviation only from sigma, C and B, and add the noise once per step"
        if other.not_finite:
            name = NOT_FINITE
            fix = KEEP_FINITE
        elif ratio == 0:
            name = "steps with an empty batch are skipped"
            fix = "add noise even if the batch is empty and the sum is zero: a step must not reveal that"
        # The noise is proportional to 1 / size, up to errors in the deviations.
        elif batch in sizes and abs(ratio * sizes[batch] - 1) < 0.15:
            name = _BY_SIZE
            fix = _DIVIDE
        return name, batch, ratio, fix
    return None


def _find_noise_change(m: Measured) -> tuple[str, str] | None:
    """Returns the name of batch-dependent noise and its fix if it explains movements above C; otherwise None.

    Replacing an example does not change the size of a batch, and must move the step by at most C. If the step
    divides by the actual size, adding an example to B clipped examples moves it by less than 2 C.
    """
    tried = m.tried
    change = None if m.noise_obstacle else _find_change(m, "noise and data")
    # Unlike `movements`, `violations` also names replaced rows.
    only_added_exceed = not tried.replaces_rows and tried.movements.keys() >= set(tried.violations)
    if not change or not only_added_exceed:
        return None
    name, _, _, fix = change
    _, largest = tried.largest
    return (name, fix) if name != _BY_SIZE or largest.norm < 2 else None


_ROW_OF_SYMPTOM = {"excess": "sensitivity", "noise that is not finite": "noise", "buffers": "noise"}
# Mistakes in clipping: name, signature, and text to append to the description of the largest movement.
_CLIPPING: list[tuple[str, Callable[[Measured], Any], str]] = [
    ("rows of the batch that are not clipped", _find_rows, "This happens in {0}."),
    (_EXCESS, lambda m: m.interacts, "First look for an operation that mixes examples."),
    (
        "layers clipped separately",
        partial(_find_separate_layers, least=2),
        "Several layers reach exactly C with one example: {0}.",
    ),
    (
        "{0} left out of the clipping norm, or of clipping",
        _find_left_out,
        "The norm of the other layers never exceeds C.",
    ),
    (
        "{0}",
        _fit_clipping_norm,
        "Movements are limited to {m.tried.common_norm:.4g} times the stated clipping norm. Possible "
        "explanation: {1}.",
    ),
    (
        "{0} clipped separately from other layers",
        partial(_find_separate_layers, least=1),
        "Its norm is at most C while other layers move too.",
    ),
    (
        "clipping that misses some examples",
        _is_clipped_in_part,
        "Others are clipped to exactly C: does clipping start above C, does it depend on a label or a value, "
        "or are min and max swapped?",
    ),
    (
        "no clipping of individual examples",
        lambda m: m.tried.max_norm > 16,  # the largest k that `find_factors` tries
        "",
    ),
    (
        _EXCESS,
        lambda m: True,
        "Movements are not limited to C: is there any clipping, are min and max swapped, and does the norm "
        "include all parameters?",
    ),
]
# For each symptom, the most specific causes come first.
CAUSES = [
    Cause(
        "replay",
        "noise that does not follow the seed",
        lambda m: not m.replays and m.replays_like_noise,
        "Two calls with the same seed differ by as much as two draws of the noise.",
        "draw the noise from {m.phrases.generator}; until then, only the noise can be checked",
    ),
    Cause(
        "replay",
        "a step that keeps state between calls",
        lambda m: not m.replays,
        "Two calls with the same seed and batch differ by {m.replay.norm:.3g} eta C / B. The noise does not "
        "explain this.",
        "restore parameters, optimizer and generators before each call; with Adam "
        "{m.phrases.gradient}",
    ),
    Cause(
        "separation",
        "examples change each other's gradients",
        lambda m: m.interacts,
        "The movement due to two parts of a batch together is not the sum of their separate movements: the "
        "difference is {m.interaction.norm:.3g} eta C / B.",
        "look for an operation that mixes examples: clipping the batch's gradient as a whole (such as with "
        "clip_grad_norm_), batch norm, division by the actual size, a clipping norm or weights computed from "
        "the batch, microbatches clipped as one, a loss over pairs, a mean over a batch's tokens",
    ),
    Cause(
        "sensitivity",
        "a step of a different size than stated",
        _fit_size,
        "Movements and noise are both {0:.4g} times their stated size. This does not weaken privacy. "
        "Possible explanation: {1}.",
        "state the learning rate, clipping norm and batch size that the step uses, or divide by the stated "
        "batch size; with Nesterov momentum or averages of gradients, return the private gradient",
        explains=("excess",),
    ),
    Cause(
        "sensitivity",
        "{0}",
        lambda m: not m.tried.violations and not m.tried.clips_by_layer and _fit_clipping_norm(m),
        "Movements are limited to {m.tried.common_norm:.4g} times eta C / B, but the stated noise assumes 1. "
        "This does not weaken privacy, but noise hides more of the gradient. Possible explanation: {1}.",
        "divide the clipped sum once, by the stated B",
    ),
    Cause(
        "excess",
        NOT_FINITE,
        lambda m: m.tried.largest[1].norm == np.inf,
        "{m.largest} The model then reveals whether the batch contains this example.",
        KEEP_FINITE,
    ),
    Cause(
        "excess",
        "{0}",
        _find_noise_change,
        "{m.largest} No example does so if it replaces another.",
        "{1}",
    ),
    *(
        Cause("excess", name, signature, f"{{m.largest}} {text}", _CLIP)
        for name, signature, text in _CLIPPING
    ),
    Cause(
        "noise that is not finite",
        NOT_FINITE,
        lambda m: m.drawn and m.drawn.given.not_finite,
        "With the given batch, the step gives NaN or infinity for {0:,} of "
        "{m.drawn.given.draws.shape[0]:,} seeds. This hides other bugs in the noise.",
        "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
        "gradients that are not finite for some seeds",
    ),
    Cause(
        "noise",
        "no noise in some {0}",
        _find_missing,
        "These {0} are often identical for two seeds, so they reveal the sum of gradients.",
        "add noise to all parameters at every step: look for a condition, a mask or a skipped call",
        explains=OTHER_ROWS,
    ),
    Cause(
        "independence",
        "the same noise for {0}",
        _find_repeats,
        "{1} of {2} seeds produce exactly the same noise as another seed: two steps reveal the gradients.",
        "create the generator once, before training, or seed it with the step's full seed: "
        "{m.phrases.generator}",
        explains=("noise", *OTHER_ROWS),
    ),
    Cause(
        "independence",
        "noise shared by several parameters",
        lambda m: "; ".join(m.related),
        "Some sums or differences of parameters have less noise than the accountant assumes: see {0}.",
        "draw a number for every parameter, with a different key in every layer and a different generator on "
        "every worker; do not subtract their mean. Return the noisy sum before any smoothing or projection",
        explains=OTHER_ROWS,  # these tests assume independent numbers
    ),
    Cause(
        "independence",
        "noise of consecutive steps is related",
        lambda m: m.rejected["independence"],
        "Some sums or differences of steps have less noise than the accountant assumes.",
        "create the generator once, or fold the step number into the key",
    ),
    Cause(
        "noise",
        "no noise in {0}",
        _find_silent,
        "These parameters are the same for every seed.",
        "add noise with standard deviation sigma C to the whole sum, including embedding rows that no "
        "example uses; leave untrained parameters out of `params`",
        explains=("noise and data", "empty batch"),
    ),
    Cause(
        "noise",
        "noise of {0:.3g} times the stated deviation",
        _fit_deviation,
        "It is {1}",
        "add noise with standard deviation sigma C once, to the sum of clipped gradients, before dividing by "
        "B; or state the noise multiplier that all layers reach, about {2:.3g}",
    ),
    *(
        Cause(
            row,
            "{0}",
            partial(_find_change, row=row),
            "The batch changes the noise: with {1}, it is {2:.3g} times as large.",
            "{3}",
        )
        for row in ("noise and data", "empty batch")
    ),
    Cause(
        "shape",
        "noise that is clamped",
        lambda m: m.ties == AT_ENDS,
        "Several draws equal the largest or the smallest value.",
        "draw it with normal() and do not clamp it",
    ),
    Cause(
        "shape",
        "noise on a grid, added to a sum that is not",
        lambda m: m.ties == GRID,
        "The noise has only a few values. Different gradients shift them differently, so a single step "
        "reveals its gradients.",
        "draw the noise in float32 or float64, and round the sum after adding it",
    ),
    Cause(
        "shape",
        "noise that is not normal",
        lambda m: m.rejected["shape"],
        "The draws or their norms are not distributed like those of Gaussian noise.",
        "draw it with normal(), not uniform() or laplace(), not truncated; do not normalise it, and do not "
        "clip after adding it",
    ),
    Cause(
        "buffers",
        "{0} is released with the model and has no noise",
        lambda m: ", ".join(sorted(getattr(m.probe.step, "changed_buffers", ()))),
        "This buffer depends on the data, and it is neither clipped nor noised.",
        "turn it off (track_running_stats=False in batch norm), or compute it from public data",
    ),
]
