"""A table of mistakes that explain wrong measurements of a step, with their signatures and fixes.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size. Movements
are in units of eta C / B, noise in eta sigma C / B.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from audit.check import noise
from audit.check.measured import Measured
from audit.check.movements import COARSE, SAME, TriedExamples
from audit.check.noise import AT_ENDS, AT_ONE, FOURFOLD, GRID, LAGS, OTHER_ROWS, QUARTER, StepNoise
from audit.check.report import CheckFinding

_NORM_TOLERANCE = 5e-3  # norms count as equal up to this relative difference
_ALL_NOISE = {"noise", "deviation", *OTHER_ROWS}  # symptoms
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
      symptom: the row of the report that shows the mistake, or a key of `_ROW_OF_SYMPTOM`, which names the
        row.
      name: its name.
      signature: a function of the measurements m that returns a falsy value if the mistake does not fit.
        Otherwise, it returns True, or the value or values for {0}, {1}, ... in the texts. {m} is m.
      meaning: the observation, and its effect on privacy.
      fix: an instruction.
      explains: other symptoms that this mistake causes.
    """

    symptom: str
    name: str
    signature: Callable[[Measured], Any]
    meaning: str
    fix: str
    explains: Iterable[str] = ()


def explain(m: Measured) -> Iterator[CheckFinding]:
    """Yields the bugs: for each symptom that no other bug explains, the first cause that fits.

    Most symptoms are names of report rows. If movements or noise cannot be judged (an obstacle), we skip
    their rows.
    """
    done = set()  # symptoms that need no cause, as they are absent, hidden or explained
    if m.movement_obstacle:
        done |= {"sensitivity", "excess"}
    if not m.tried.violations:  # no example moves the step by more than C
        done.add("excess")
    if m.noise_obstacle:
        done |= _ALL_NOISE
    for cause in CAUSES:  # the most specific causes of a symptom come first
        fit = cause.symptom not in done and cause.signature(m)
        if fit:
            values = fit if isinstance(fit, tuple) else (fit,)  # for {0}, {1}, ... in the texts
            filled = [text.format(*values, m=m) for text in (cause.name, cause.meaning, cause.fix)]
            yield CheckFinding(_ROW_OF_SYMPTOM.get(cause.symptom, cause.symptom), *filled)
            done |= {cause.symptom, *cause.explains}


# Mistakes that multiply a size by a power of a quantity, as {name: (quantity, power)}. In names, {k} is the
# value of the quantity.
_Factors = dict[str, tuple[str, float]]
_SIZE_MISTAKES: _Factors = {
    "C is left out": ("clipping_norm", -1),
    "divided by the batch size twice": ("batch_size", -1),
    "not divided by the batch size": ("batch_size", 1),
    "the learning rate is left out": ("learning_rate", -1),
    "C sqrt({k}) of {k} layers, each clipped to C": ("layers", 0.5),
    "divided by {k} accumulated batches or workers": ("k", -1),
    "a loss scale of {k:,} that is not divided out": ("scale", 1),
}
_CLIPPING_MISTAKES: _Factors = {
    "clipping in {k} pieces or more, or an example that counts {k} times": ("k", 1),
    "clipping in {k} pieces (layers, subspaces, views of an example, tied uses)": ("k", 0.5),
}
_NOISE_MISTAKES: _Factors = {
    "divided by an extra sqrt(B)": ("batch_size", -0.5),
    "divided by sqrt(B), or drawn for every example": ("batch_size", 0.5),
    "sigma is squared: a variance mistaken for a deviation": ("noise_multiplier", 1),
    "sigma is left out": ("noise_multiplier", -1),
    "the root of sigma C: a deviation mistaken for a variance": ("sigma C", -0.5),
    "noise added {k} times, by accumulated batches or workers": ("k", 0.5),
    "one draw added {k} times, by workers with one generator, or for {k} C": ("k", 1),
}


def _find_factors(m: Measured, factors: _Factors, factor: float, tolerance: float) -> list[str]:
    """Returns the names of the mistakes that explain a wrong factor, best fit first.

    `factors` are the candidates, such as `_SIZE_MISTAKES`. `factor` is the measured size divided by the
    stated size, and `tolerance` is the largest relative error of a fit.
    """
    stated = m.probe.settings
    quantities = stated._asdict() | {
        "sigma C": stated.noise_multiplier * stated.clipping_norm,
        "layers": np.sum(m.probe.is_layer_trained),
        "k": range(2, 17),  # numbers of pieces, copies or workers
        "scale": 2 ** np.arange(5, 25),  # loss scales of mixed-precision training
    }
    errors = {}
    for name, (quantity, power) in factors.items():
        for k in np.atleast_1d(quantities[quantity]).tolist():
            predicted = k**power
            # Mistakes that fit equally well, up to rounding, stay in the order of the table.
            error = round(abs(factor / predicted - 1), 3)
            # A predicted factor near 1 changes nothing, such as "C is left out" if C is 1.
            if abs(predicted - 1) > 0.02 and error < tolerance:
                errors[name.format(k=k)] = error
    return sorted(errors, key=errors.__getitem__)


def _fit_size(m: Measured) -> tuple[float, str] | tuple[()]:
    """Returns a wrong factor of the whole step, and the mistakes that fit; () if there is none.

    A wrong learning rate or batch size multiplies both movements and noise by such a factor.
    """
    tried = m.tried
    factor = tried.common_norm  # of the largest movements; 1 if clipped to C
    # If examples change each other's gradients (`interacts`), movements do not reveal a factor.
    is_unknown = m.movement_obstacle or m.noise_obstacle or m.interacts or tried.tolerance > COARSE
    if is_unknown or not factor or not _is_scaled(tried, m.drawn.given, factor):
        return ()
    stated = m.probe.settings
    fits = [
        f"B = {stated.batch_size / factor:.4g} instead of the stated {stated.batch_size:g}",
        f"a learning rate of {stated.learning_rate * factor:.4g} instead of {stated.learning_rate:g}",
        *_find_factors(m, _SIZE_MISTAKES, factor, tolerance=_NORM_TOLERANCE),
    ]
    return factor, "; or ".join(fits)


def _is_scaled(tried: TriedExamples, given: StepNoise, factor: float) -> Any:
    """Returns True if both the movements and the noise are `factor` times their stated size, and not 1."""
    # Four standard errors of the deviation, and 0.5%.
    error = 4 / (2 * np.sum(given.freedom)) ** 0.5 + 0.005
    # Movements below C may be due to short gradients, so a factor below 1 needs proof of clipping.
    is_larger = factor > 1 + SAME + 2 * tried.tolerance
    is_smaller = factor < 1 - error and tried.is_clipped
    is_not_one = is_larger or is_smaller
    # The noise must fit the factor, and better than it fits 1.
    fits_noise = abs(factor / given.deviation - 1) < min(error, abs(given.deviation - 1))
    # `reach` is the largest movement.
    return is_not_one and fits_noise and tried.reach < 1.01 * factor


def _fit_clipping_norm(m: Measured) -> tuple[str, ...]:
    """Returns the best explanation of the observed clipping norm, and a list of all; otherwise ().

    The largest movements share this norm. If no mistake in our tables explains it, we report it only if
    movements exceed C, because a smaller norm loses no privacy.
    """
    tried = m.tried
    fits = _find_factors(
        m,
        _CLIPPING_MISTAKES | _SIZE_MISTAKES,
        tried.common_norm,
        tolerance=_NORM_TOLERANCE + tried.tolerance,
    )
    if tried.violations and not fits:
        fits = [f"clipped to {tried.common_norm:.4g} times the stated C"]
    if not fits or not tried.is_clipped:
        return ()
    return fits[0], "; or ".join(fits)


def _find_rows(m: Measured) -> str:
    """Names the rows in which examples exceed C, if other rows and added examples do not; otherwise ""."""
    by_row = m.tried.by_row
    rows = [row for row in by_row if by_row[row].excess > 1]  # over C, even without the tolerance
    # `violations` also has added examples that exceed C.
    is_only_in_rows = len(m.tried.violations) == len(rows) < len(by_row)
    return f"{len(rows)} of {len(by_row)} rows tried: {sorted(rows)}" if is_only_in_rows else ""


def _is_clipped_in_part(m: Measured) -> bool:
    """Returns True if some examples exceed C by over 2%, but at least four of the others are clipped to C."""
    norms = m.tried.collect("norm")
    is_at_c = (norms > 1 - _NORM_TOLERANCE) & (norms <= 1 + m.tried.tolerance)
    return bool(np.sum(is_at_c) >= 4 and norms[0] > 1.02)


def _find_separate_layers(m: Measured) -> str:
    """Returns the names of the layers that an example moves by C while it moves the step by more than C.

    Returns "" if any example moves a layer by more than C.
    """
    norms = m.tried.collect("layer_norms")
    error = _NORM_TOLERANCE + m.tried.tolerance
    exceeds = m.tried.collect("norm") > 1 + error
    is_at_c = np.any(np.abs(norms[exceeds] - 1) < error, axis=0)
    return m.name_layers(np.flatnonzero(is_at_c)) if np.max(norms) < 1 + error else ""


def _find_left_out(m: Measured) -> str:
    """Returns the names of the layers that make examples exceed C, if all others stay within C; otherwise "".

    We try each layer, and all vectors (biases). In the other layers, two of these examples must move the step
    by nearly C (0.96), which is unlikely without clipping.
    """
    # If examples replaced a row, differences do not show which layers are clipped. If whole gradients are
    # clipped to slightly more than C (`common_norm`), they may be within C without some small layer.
    if m.tried.why_not_added or (m.tried.is_clipped and m.tried.common_norm < 1.1):
        return ""
    norms = m.tried.collect("layer_norms")
    exceeds = m.tried.collect("norm") > 1 + m.tried.tolerance
    layers = np.arange(norms.shape[1])
    vectors = layers[m.probe.dimensions <= 1]
    for left_out in [*layers[:, np.newaxis], vectors]:
        others = np.linalg.norm(np.delete(norms, left_out, axis=1), axis=1)
        is_within_c = np.max(others) <= 1 + m.tried.tolerance
        if is_within_c and np.sum(others[exceeds] >= 0.96) >= 2:
            return m.name_layers(left_out)
    return ""


def _find_missing(m: Measured) -> str:
    """Returns where noise is sometimes missing: "steps" or "parameters in some steps"; "" if it never is."""
    if m.ties != AT_ONE:  # parameters with one value for several seeds, as without noise
        return ""
    return "steps" if noise.count_repeats(m.drawn) else "parameters in some steps"


def _find_repeats(m: Measured) -> tuple[Any, ...]:
    """Returns "several seeds" or "every seed", how many seeds repeat noise, and the number of seeds.

    Returns () if noise does not repeat. If all seeds give the same step, the noise z is constant or 0. We
    find z by using each example four times: this moves the step by 4 g + z instead of g + z.
    """
    given = m.drawn.given
    repeats = noise.count_repeats(m.drawn)
    seeds = "several seeds"
    if not np.any(given.values):  # all seeds give the same step
        seeds = "every seed"
        if FOURFOLD not in m.drawn.others:
            return ()
        z = (4 * given.draws[0] - m.drawn.others[FOURFOLD].draws[0]) / 3
        # In stated deviations, the largest of several normal numbers is rarely below 0.3.
        if not np.max(np.abs(z), initial=0) > 0.3:
            return ()
    return (seeds, repeats, len(given.draws)) if repeats else ()


def _find_silent(m: Measured) -> Any:
    """Returns the layers with trained parameters that do not depend on the seed, and how many there are."""
    silent = m.drawn.given.silent
    layers = m.name_layers(np.flatnonzero(silent))
    return layers and (layers, np.sum(silent))


def _fit_deviation(m: Measured) -> tuple[Any, ...]:
    """Returns the noise's wrong deviation, a text that explains it, and the sigma that all layers reach.

    The deviation is over the layers whose tests reject or, if only the test of all layers rejects, all layers
    with measured noise. Returns () if no test rejects.
    """
    if not m.rejected["noise"]:
        return ()
    given = m.drawn.given
    measured = np.flatnonzero(given.freedom)
    layers = [i for i in measured if m.probe.layer_names[i] in m.rejected["noise"]] or measured
    freedom = given.freedom[layers]
    deviation = np.average(given.deviations[layers] ** 2, weights=freedom) ** 0.5
    # 1% plus four standard errors, each 1 / sqrt(2 freedom); at most 5%.
    error = min(0.01 + 4 / (2 * np.sum(freedom)) ** 0.5, 0.05)
    fits = _find_factors(m, _NOISE_MISTAKES | _SIZE_MISTAKES, deviation, tolerance=error)
    low = np.min(given.deviations[measured])
    text = (
        f"{low:.3g} to {np.max(given.deviations[measured]):.3g} times eta sigma C / B, and wrong in "
        f"{m.name_layers(layers)}. Possible explanation: {'; or '.join(fits) or 'none known'}."
    )
    if low > 1:
        text += " Excess noise does not weaken privacy."
    return deviation, text, low * m.probe.settings.noise_multiplier


def _find_change(m: Measured, row: str) -> tuple[Any, ...]:
    """Returns (bug, batch, ratio of deviations, fix) for the first batch in a row with different noise.

    Returns () if the report row `row` has no such batch.
    """
    for batch, other in m.drawn.others.items():
        if noise.row_of(batch) != row or not (other.not_finite or batch in m.rejected[row]):
            continue
        ratio = other.deviation / m.drawn.given.deviation
        if other.not_finite:
            return NOT_FINITE, batch, ratio, KEEP_FINITE
        if ratio == 0:
            fix = "add noise even if the batch is empty and the sum is zero: a step must not reveal that"
            return "steps with an empty batch are skipped", batch, ratio, fix
        # Relative to the given batch; 0 for other batches, since their size does not explain the ratio.
        size = {QUARTER: 0.25, FOURFOLD: 4.0}.get(batch, 0)
        if abs(ratio * size - 1) < 0.15:  # the noise is proportional to 1 / size
            return _BY_SIZE, batch, ratio, _DIVIDE
        fix = "compute the noise's deviation from only sigma, C and B, and add the noise once per step"
        return "noise that depends on the batch", batch, ratio, fix
    return ()


# The report row of each symptom that is not itself a row name.
_ROW_OF_SYMPTOM = {
    "excess": "sensitivity",
    "noise that is not finite": "noise",
    "deviation": "noise",
    "buffers": "noise",
}
# Mistakes in clipping: name, signature, and a text to append to the description of the largest movement.
_CLIPPING: list[tuple[str, Callable[[Measured], Any], str]] = [
    ("rows of the batch that are not clipped", _find_rows, "This happens in {0}."),
    (
        _EXCESS,
        lambda m: m.interacts or (not m.noise_obstacle and _find_change(m, "noise and data")),
        "First look for an operation that mixes examples, or that depends on the batch.",
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
        _find_separate_layers,
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
        lambda m: m.tried.reach > 16,  # the largest k that `find_factors` tries
        "",
    ),
    (
        _EXCESS,
        lambda m: True,  # if no earlier cause fits
        "Movements are not limited to C: is there any clipping, are min and max swapped, and does the norm "
        "include all parameters?",
    ),
]
CAUSES = [
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
        "Movements and noise are both {0:.4g} times their stated size, which loses no privacy. Possible "
        "explanation: {1}.",
        "state the learning rate, clipping norm and batch size that the step uses, or divide by the stated "
        "batch size",
        explains=("excess", "deviation"),
    ),
    Cause(
        "sensitivity",
        "{0}",
        lambda m: not m.tried.violations and _fit_clipping_norm(m),
        "Movements are limited to {m.tried.common_norm:.4g} times eta C / B, but the stated noise assumes 1. "
        "This loses no privacy, but noise hides more of the gradient. Possible explanation: {1}.",
        "divide the clipped sum once, by the stated B",
    ),
    Cause(
        "excess",
        NOT_FINITE,
        lambda m: m.tried.largest[1].norm == np.inf,
        "{m.largest} The model then reveals whether the batch contains this example.",
        KEEP_FINITE,
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
        explains=_ALL_NOISE,
    ),
    Cause(
        "independence",
        "the same noise for {0}",
        _find_repeats,
        "{1} of {2} seeds produce exactly the same noise as another seed: two steps reveal the gradients.",
        "create the generator once, before training, or seed it with the step's full seed: "
        "{m.phrases.generator}",
        explains=_ALL_NOISE,
    ),
    Cause(
        "independence",
        "noise shared by several parameters",
        # The test LAGS compares steps, not parameters.
        lambda m: "; ".join(test for test in m.rejected["independence"] if test != LAGS),
        "Some sums or differences of parameters have less noise than the accountant assumes: see {0}.",
        "draw a number for every parameter, with a different key in every layer and a different generator on "
        "every worker; do not subtract their mean. If the step smooths or projects the noisy sum, return it",
        explains=_ALL_NOISE,  # whose tests assume independent numbers
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
        "{1:g} of these parameters are the same for every seed.",
        "add noise of deviation sigma C to all entries of the sum, including embedding rows that no example "
        "uses; leave parameters that are not trained out of `params`",
        explains=("deviation", "noise and data", "empty batch"),
    ),
    Cause(
        "deviation",
        "noise of {0:.3g} times the stated deviation",
        _fit_deviation,
        "It is {1}",
        "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B; or "
        "state the noise multiplier that all layers reach, about {2:.3g}",
    ),
    *(
        Cause(
            row,
            "{0}",
            functools.partial(_find_change, row=row),
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
