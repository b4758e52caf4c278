"""The bugs that movements of a step amount to, by name, and what shows that clipping was reached.

Movements are in units of eta C / B: a norm of 1 is called C.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from audit.check import factors, findings, noise, trees
from audit.check.findings import CheckFinding
from audit.check.movements import TriedExamples, compute_reach
from audit.check.noise import DrawnNoise
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Vector
from audit.written import counted

_REACHED = 0.985  # of C: an added example that moves the step as far counts as stopped by clipping
_REACHED_BY_REPLACING = 0.9  # of C: the same for examples in place of a row
_PLATEAU = 3e-3  # the relative difference up to which norms count as the same
_FIT = 3e-3  # the relative difference up to which a plateau fits a mistake's factor
_SAME_DIRECTION = 0.99  # the absolute cosine from which two movements count as one direction
_COARSE = 0.05  # a larger tolerance tells no movement of C from a smaller one
_EQUALLY_FAR = 0.02  # the relative difference up to which two distances count as equal
_SIGN_SPREAD = 1.15  # largest over smallest movement of a number by Adam's first step, at most
_MAX_PIECES = 16  # of a gradient that are clipped by themselves


class BugCause(NamedTuple):
    """Why examples move a step too far: the bug's name, and a sentence on what shows it (may be empty)."""

    name: str
    why: str = ""


class Excess(NamedTuple):
    """What the causes of too large movements are judged by.

    Attributes:
      probe: the step.
      tried: how far examples move the step, at least one of them by more than C.
      drawn: the noise, if there is any.
      examples_interact: whether examples change how far others move the step.
      violations: the movements of more than C by a description, the largest first.
    """

    probe: StepProbe
    tried: TriedExamples
    drawn: DrawnNoise | None
    examples_interact: bool
    violations: dict[str, Movement]

    @property
    def largest(self) -> Movement:
        """The largest movement."""
        return next(iter(self.violations.values()))


def find_plateau(tried: TriedExamples) -> float:
    """Returns the norm at which the four largest movements of added examples stop; 0 if their norms differ.

    It is 0 for examples in place of a row: differences do not stop at one norm even if examples are clipped.
    """
    norms = tried.list_norms()
    if not tried.were_added or len(norms) < 4 or norms[0] > norms[3] * (1 + _PLATEAU):
        return 0.0
    return float(norms[0])


def is_violation(movement: Movement) -> bool:
    """Returns whether a movement exceeds C by more than rounding explains; True for NaN."""
    return not movement.norm <= 1 + movement.tolerance


def find_violations(tried: TriedExamples) -> dict[str, Movement]:
    """Returns all movements that exceed C, by a description of what was done, the largest first."""
    violations = {name: one for name, one in tried.list_all().items() if is_violation(one)}
    return dict(sorted(violations.items(), key=lambda item: -item[1].norm))


def stay_below_clipping(tried: TriedExamples) -> bool:
    """Returns whether no example moves the step by nearly C, so that clipping was not seen."""
    return compute_reach(tried) < (_REACHED if tried.were_added else _REACHED_BY_REPLACING)


def is_clipping_reached(probe: StepProbe, tried: TriedExamples, plateau: float) -> bool:
    """Returns whether clipping, rather than the gradients' own size, stops the examples tried.

    It is if an example moves the step by C, or 0.9 C in place of a row. It also is if an added example's
    movement, or that of a layer which is clipped to a share of C, grows with its features and stops suddenly.
    """
    if not stay_below_clipping(tried):
        return True
    if not tried.were_added:
        return False
    layers: list[int | None] = [None] if plateau > 0 else []
    return any(
        _stops_suddenly(probe, tried, layer) for layer in layers + _find_stopped_layers(tried)
    )


def stops_by_clipping(probe: StepProbe, tried: TriedExamples, norm: float) -> bool:
    """Returns whether clipping is seen to stop added examples at a norm, in eta C / B, and no farther.

    Examples without floating-point features cannot be followed until they stop. Of these, four have to stop
    at the norm, in several directions, while another moves the step by less.
    """
    plateau = find_plateau(tried)
    if tried.tolerance > _COARSE or abs(plateau - norm) > _PLATEAU * norm + tried.tolerance:
        return False
    columns = [example.columns[0] for example in tried.examples.values()]
    if any(column.dtype.kind == "f" for column in columns):
        return _stops_suddenly(probe, tried, None)
    norms = tried.list_norms()
    is_any_shorter = bool(np.any((norms > tried.tolerance) & (norms < 0.9 * norm)))
    return is_any_shorter and _stop_in_several_directions(tried, plateau)


def _find_stopped_layers(tried: TriedExamples) -> list[int | None]:
    """Returns at most three layers, the largest first, in which the four largest norms are the same."""
    norms = np.sort(tried.list_layer_norms(), axis=0)
    if len(norms) < 4 or not np.all(np.isfinite(norms)):
        return []
    stops = (norms[-4] * (1 + _PLATEAU) > norms[-1]) & (norms[-1] > 0.05)
    layers = np.flatnonzero(stops)
    return [int(layer) for layer in layers[np.argsort(-norms[-1][layers])][:3]]


def _stops_suddenly(probe: StepProbe, tried: TriedExamples, layer: int | None) -> bool:
    """Returns whether an added example's movement grows with its features, then stops at once by clipping.

    A clipped movement grows in proportion to the features until it stops. Features that the model squashes
    slow it down long before, and features that the model normalises do not let it grow. Features that the
    model clamps stop it as suddenly, but at other norms for other parameters.

    Args:
      probe: the step.
      tried: the examples.
      layer: the index of the layer whose norm is measured; None for the norm over all layers.
    """
    for example in tried.examples.values():
        if example.is_scaled or example.columns[0].dtype.kind != "f":
            continue
        measure_at = partial(_measure_scaled, probe, example.columns, layer)
        smallest = measure_at(0)
        growth = measure_at(trees.LARGEST_SCALE) - smallest
        if growth < 0.02 * smallest:
            continue
        half = _find_scale(measure_at, smallest + 0.5 * growth)
        full = _find_scale(measure_at, smallest + 0.998 * growth)
        # In proportion it takes twice the scale from half of the growth to nearly all of it; tanh takes six
        # times. At the least scale no growth is seen.
        if half > 2 * trees.LEAST_SCALE and full < 3.5 * half:
            return not _moves_farther_elsewhere(probe, tried, layer)
    return False


def _measure_scaled(
    probe: StepProbe, columns: trees.Columns, layer: int | None, scale: float
) -> float:
    """Returns how far an added example with scaled features moves the step, in a layer or over all (None)."""
    scaled = trees.scale_features(columns, scale, probe.rows)
    difference = probe.run(trees.join(probe.rows, scaled), 0) - probe.base
    movement = probe.measure(difference, probe.base, len(probe.rows[0]) + 1)
    return movement.norm if layer is None else float(movement.layer_norms[layer])


def _moves_farther_elsewhere(probe: StepProbe, tried: TriedExamples, layer: int | None) -> bool:
    """Returns whether an added example moves the step farther, by 2%, at other parameters than any here.

    None does if clipping stops those tried here. False if the step refuses other parameters.
    """
    norms = tried.list_norms() if layer is None else tried.list_layer_norms()[:, layer]
    allowed = 1.02 * np.max(norms) + tried.tolerance
    try:
        moved = probe.begin_elsewhere()
        for example in tried.examples.values():
            is_usable = not example.is_scaled and example.columns[0].dtype.kind == "f"
            if (
                is_usable
                and allowed
                < _measure_scaled(moved, example.columns, layer, trees.LARGEST_SCALE)
                < np.inf
            ):
                return True
    except RefusedError:
        return False
    return False


def _find_scale(measure: Callable[[float], float], level: float) -> float:
    """Returns, to 0.3%, the scale of features at which an increasing norm reaches a level."""
    low, high = np.log10([trees.LEAST_SCALE, trees.LARGEST_SCALE])
    for _ in range(13):
        middle = (low + high) / 2
        if measure(10**middle) < level:
            low = middle
        else:
            high = middle
    return float(10**high)


def is_sign_step(probe: StepProbe) -> bool:
    """Returns whether a step moves every parameter equally far on any batch, as Adam's first step does.

    It is judged on the batch as given, on a part of it, and on larger and smaller features, at several seeds.
    False where the step refuses more than one of these, or moves too few parameters by more than rounding.
    """
    # Each with its seed. The base is the batch as given at seed 0.
    batches = [
        (probe.rows, 1),
        (trees.take(probe.rows, slice(0, max(1, len(probe.rows[0]) // 4))), 0),
        (trees.scale_features(probe.rows, 10, probe.rows), 0),
        (trees.scale_features(probe.rows, 0.1, probe.rows), 2),
    ]
    results = [probe.base]
    for rows, seed in batches:
        try:
            results.append(probe.run(rows, seed))
        except RefusedError:
            continue
    after = np.array(results)[:, probe.is_trained]
    distances = np.abs(after - probe.start[probe.is_trained])
    # Distances that rounding may have changed by more than 2% are left out.
    is_exact = distances > 50 * trees.compute_ulp(after, probe.spacings[probe.is_trained])
    distances = distances[np.isfinite(distances) & is_exact]
    if len(results) < 4 or distances.size < 16:
        return False
    # Without the extremes, since a gradient near 0 moves its parameter less.
    low, high = np.quantile(distances, [0.05, 0.95])
    return bool(high < _SIGN_SPREAD * low)


def is_preconditioned(tried: TriedExamples, drawn: DrawnNoise) -> bool:
    """Returns whether movements and noise are rescaled number by number, as by Adam's running means.

    The noise's deviation then differs between numbers, which are independent. If each number's movement is
    divided by its own deviation, examples that are clipped to C stop at the norm 1. The four largest norms
    must be from 0.8 to 1.1, which leaves room for the sampling error of the deviations.
    """
    if not drawn.varies_by_number():
        return False
    deviations = drawn.given.values.std(axis=0)
    is_seen = deviations > 0
    # The squared lengths of k independent normal numbers have variance 2 k, with a relative error over n
    # seeds of sqrt(2 / n).
    lengths = np.sum((drawn.given.values[:, is_seen] / deviations[is_seen]) ** 2, axis=1)
    spread = np.var(lengths, ddof=1) / (2 * np.count_nonzero(is_seen))
    if spread > 1 + 6 * (2 / len(lengths)) ** 0.5:
        return False
    norms = []
    for movement in tried.list_all().values():
        # Not all numbers of the noise were kept, or a number moves without noise.
        if movement.vector.size != deviations.size or np.any(movement.vector[~is_seen]):
            return False
        norms.append(np.linalg.norm(movement.vector[is_seen] / deviations[is_seen]))
    norms.sort(reverse=True)
    return len(norms) > 3 and bool(0.8 < norms[3] <= norms[0] < 1.1)


def find_lost_signal(probe: StepProbe, tried: TriedExamples, plateau: float) -> CheckFinding | None:
    """Returns the finding that examples stop at a fraction of C, if a mistake explains this; else None.

    Such a mistake shrinks the examples' sum but not the noise. None, too, if movements stop gradually, if
    rounding is too coarse to tell, or if a layer stops at C / sqrt(layers), its share of C.
    """
    tolerance = _FIT + tried.tolerance
    is_exact = tolerance < 0.1 * plateau + _FIT
    if not is_exact or not 0 < plateau < 1 - 2 * tolerance:
        return None
    rows = len(probe.rows[0])
    mistakes = factors.find_lost_signal(plateau, probe.settings, rows, tolerance)
    trained_layers = np.unique(probe.layer[probe.is_trained]).size
    shares = np.max(tried.list_layer_norms(), axis=0) * trained_layers**0.5
    has_share = shares.size > 1 and bool(np.any(np.abs(shares - 1) < 0.005))
    if not mistakes or has_share or not _stops_suddenly(probe, tried, None):
        return None
    why = f"It fits: {'; or '.join(mistakes)}."
    return findings.LOST_SIGNAL.fill(name=mistakes[0], plateau=plateau, why=why)


def find_cause(evidence: Excess) -> BugCause:
    """Returns the first of CAUSES that fits movements of more than C, or what was seen if none fits."""
    for find in CAUSES:
        cause = find(evidence)
        if cause is not None:
            return cause
    return BugCause("an example that moves the step by more than C", _describe_excess(evidence))


def _find_actual_size(evidence: Excess) -> BugCause | None:
    """Finds noise that is a quarter as large on a batch four times as large."""
    if evidence.drawn is None:
        return None
    drawn = evidence.drawn
    ratio = drawn.compute_deviation(noise.FOURFOLD) / drawn.compute_deviation()
    if not abs(4 * ratio - 1) < 0.15:
        return None
    return BugCause(findings.ACTUAL_SIZE.name, "Noise shrinks as the batch grows.")


def _find_unclipped_rows(evidence: Excess) -> BugCause | None:
    """Finds examples that exceed C in some rows of the batch only."""
    places = evidence.tried.places
    rows = sorted(row for row, movement in places.items() if is_violation(movement))
    if len(evidence.violations) != len(rows):
        return None
    listed = ", ".join(map(str, rows[:8])) + (" ..." if len(rows) > 8 else "")
    why = f"It does so in {len(rows)} of {counted(len(places), 'row')} tried: {listed}."
    return BugCause("rows of the batch that are not clipped", why)


def _find_mixed_examples(evidence: Excess) -> BugCause | None:
    """Finds examples that change each other's gradients, which leaves the size of a movement unexplained."""
    if not evidence.examples_interact:
        return None
    if _clips_whole_batch(evidence.probe):
        return BugCause("the batch is clipped, not its examples", "All batches come to one norm.")
    return None


def _find_clipped_numbers(evidence: Excess) -> BugCause | None:
    """Finds gradients whose numbers are clipped one by one: most move by C, and none by more."""
    sizes = np.abs(evidence.largest.vector)
    sizes = sizes[sizes > 1e-3]
    if sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5:
        return BugCause("clipped number by number", "No number moves by more than C.")
    return None


def _find_scaling_up(evidence: Excess) -> BugCause | None:
    """Finds short gradients that are scaled up to C: several movements are just C, and none is less."""
    norms = evidence.tried.list_norms()
    norms = norms[norms > 0]
    at_c = int(np.count_nonzero(np.abs(norms - 1) < _PLATEAU))
    is_smallest = bool(np.all(norms > 1 - _PLATEAU))
    if (
        is_smallest
        and 4 <= at_c < len(norms) - 4
        and _stop_in_several_directions(evidence.tried, 1)
    ):
        return BugCause(
            "gradients scaled up to C, not down",
            "Short ones come to C, longer ones are left as they are: min where max is meant, or max for min?",
        )
    return None


def _find_wrong_factor(evidence: Excess) -> BugCause | None:
    """Finds mistakes in a factor, by the norm other than C at which examples stop."""
    plateau = find_plateau(evidence.tried)
    # The same gradient several times has one norm without clipping.
    if not _stop_in_several_directions(evidence.tried, plateau):
        return None
    settings = evidence.probe.settings
    special = {
        "an example that counts twice": 2.0,
        "divided by another batch size": settings.batch_size / len(evidence.probe.rows[0]),
    }
    for k in range(2, _MAX_PIECES + 1):
        special[f"clipping in {k} pieces (subspaces, views of an example, tied uses)"] = k**0.5
        special.setdefault(f"an example that counts {k} times", k)
    mistakes = factors.find_mistakes(settings, plateau, 5e-3, special)
    if not mistakes:
        return None
    stops = f"All extreme examples move it by {plateau:.4g}"
    why = f"{stops}, as with {plateau:.4g} times the stated clipping norm."
    if len(mistakes) > 1:
        why += f" Or: {'; or '.join(mistakes[1:3])}."
    return BugCause(mistakes[0], why)


def _find_no_clipping(evidence: Excess) -> BugCause | None:
    """Finds movements far above C that grow with the features, as gradients without clipping do."""
    tried = evidence.tried
    scaled = [one.norm for name, one in tried.movements.items() if tried.examples[name].is_largest]
    plain = [
        one.norm for name, one in tried.movements.items() if not tried.examples[name].is_scaled
    ]
    if evidence.largest.norm > 3 and max(scaled, default=0) > 5 * max(plain, default=0):
        return BugCause("no clipping of single examples")
    return None


def _find_pieces(evidence: Excess) -> BugCause | None:
    """Finds movements above C that stop growing with the features: each of several pieces is clipped."""
    norms = {name: one.norm for name, one in evidence.tried.movements.items()}
    largest = f"features times {trees.LARGEST_SCALE:g}"
    pairs = []
    for name, norm in norms.items():
        smaller = norms.get(name.replace(largest, "features times 100"), 0.0)
        if largest in name and smaller > 1.05:
            pairs.append(abs(norm / smaller - 1) < 0.01)
    pieces = int(np.ceil(evidence.largest.norm - 0.01))
    if len(pairs) < 2 or not all(pairs) or not 2 <= pieces <= _MAX_PIECES:
        return None
    why = "Larger features do not move it farther: are uses of a shared tensor clipped one by one?"
    return BugCause(f"clipping in {pieces} pieces or more", why)


def _find_other_norm(evidence: Excess) -> BugCause | None:
    """Finds examples that stop at another norm than C."""
    plateau = find_plateau(evidence.tried)
    if not _stop_in_several_directions(evidence.tried, plateau):
        return None
    return BugCause(f"clipped to {plateau:.4g} times the stated C", "Extreme examples stop there.")


def _stop_in_several_directions(tried: TriedExamples, plateau: float) -> bool:
    """Returns whether examples that stop at a norm move the step in more than one direction.

    Examples with saturated features may have equal gradients, and so equal norms without clipping.
    """
    if plateau == 0:
        return False
    vectors = []
    for movement in tried.movements.values():
        if abs(movement.norm - plateau) < 1e-3 * plateau + movement.tolerance:
            vectors.append(movement.vector / np.linalg.norm(movement.vector))
    if len(vectors) < 2:
        return False
    return bool(np.min(np.abs(np.array(vectors) @ vectors[0])) < _SAME_DIRECTION)


def _describe_excess(evidence: Excess) -> str:
    """Returns a sentence that narrows down why movements exceed C, if no known bug explains it."""
    layer_norms = evidence.tried.list_layer_norms()
    names = evidence.probe.layer_names
    largest = evidence.largest
    if np.all(np.isfinite(layer_norms)):
        loudest_first = np.argsort(-np.max(layer_norms, axis=0))
        for count in range(1, len(names) // 2 + 1):
            other_norms = np.delete(layer_norms, loudest_first[:count], axis=1)
            if np.max(np.linalg.norm(other_norms, axis=1)) <= 1 + largest.tolerance:
                listed = ", ".join(names[i] for i in loudest_first[:count][:6])
                return f"All but {listed} stay within C: is their gradient clipped too?"
    if largest.norm < 1.1:
        return "Is a number added to the norm or the factor, or are numbers left out of the norm?"
    return "They do not stop at any norm: is there any clipping?"


def _find_layers(evidence: Excess) -> BugCause | None:
    """Finds layers that are clipped one by one, or left out of clipping or of its norm."""
    probe = evidence.probe
    tried = evidence.tried
    layer_norms = tried.list_layer_norms()
    if evidence.examples_interact or not np.all(np.isfinite(layer_norms)):
        return None
    peaks = np.max(layer_norms, axis=0)
    allowed = 1 + tried.tolerance

    # Layers are clipped one by one if none exceeds C, and the loudest example moves several layers by C.
    loudest = layer_norms[np.argmax(np.linalg.norm(layer_norms, axis=1))]
    at_c = np.sum(np.abs(loudest - 1) < max(0.01, allowed - 1))
    if np.max(peaks) <= max(allowed, 1.005) and at_c > 1:
        moved = np.sum(peaks > 1e-3)
        name = "every layer clipped by itself" if at_c == moved else "layers clipped by themselves"
        return BugCause(name, f"{at_c} of {moved} layers stop at C at once.")

    unclipped = _find_unclipped_layers(layer_norms, np.array(probe.dimensions), allowed)
    if not unclipped:
        return _find_layers_clipped_apart(probe, layer_norms)
    names = ", ".join(probe.layer_names[i] for i in unclipped[:6])
    is_largest = [tried.examples[name].is_largest for name in tried.movements]
    # A layer that only the norm leaves out is still multiplied by the clipping factor, which is tiny for the
    # largest features.
    is_out = np.max(layer_norms[is_largest][:, unclipped], initial=0.0) > 0.1 * np.max(
        peaks[unclipped]
    )
    what = "clipping" if is_out else "the clipping norm"
    return BugCause(f"{names} left out of {what}", "The others stop at C.")


def _find_layers_clipped_apart(probe: StepProbe, layer_norms: Vector) -> BugCause | None:
    """Finds some layers that stop at C while the whole movement exceeds C by 5%."""
    loudest = np.sort(layer_norms, axis=0)[-3:]
    exceeds = np.linalg.norm(layer_norms, axis=1) > 1.05
    at_c = np.abs(layer_norms - 1) < 0.005
    stops = np.all(np.abs(loudest - 1) < 0.005, axis=0) & np.any(at_c[exceeds], axis=0)
    if len(loudest) < 3 or not np.any(stops):
        return None
    names = ", ".join(probe.layer_names[i] for i in np.flatnonzero(stops)[:6])
    return BugCause(f"{names} clipped apart from other layers", "Are layers clipped one by one?")


def _find_unclipped_layers(layer_norms: Vector, dimensions: Vector, allowed: float) -> list[int]:
    """Returns the first layers without which no example exceeds C, and two at least come near it; [] if none.

    Tries each layer, all vectors (biases), and the 2, 3, ... layers that move most, up to half of all.

    Args:
      layer_norms: (examples, layers) the movements' norms within each layer.
      dimensions: (layers,) the number of axes of each layer's array.
      allowed: C and the tolerance.
    """
    layers = layer_norms.shape[1]
    candidates = [[layer] for layer in range(layers)]
    vectors = np.flatnonzero(dimensions <= 1).tolist()
    if 1 < len(vectors) < layers:
        candidates.append(vectors)
    loudest = np.argsort(-np.max(layer_norms, axis=0)).tolist()
    candidates += [loudest[:count] for count in range(2, layers // 2 + 1)]
    for left_out in candidates:
        norms = np.sort(np.linalg.norm(np.delete(layer_norms, left_out, axis=1), axis=1))[::-1]
        if norms[0] <= allowed and len(norms) > 1 and norms[1] > 0.96:
            return list(left_out)
    return []


def _clips_whole_batch(probe: StepProbe) -> bool:
    """Returns whether the batch's sum is clipped: longer batches and larger features move it equally far."""
    batches = (
        trees.take(probe.rows, slice(0, 0)),
        trees.join(*[probe.rows] * 4),
        trees.scale_features(probe.rows, 1e3, probe.rows),
    )
    try:
        empty, fourfold, scaled = [probe.run(rows, 0) for rows in batches]
    except RefusedError:
        return False
    distance = np.linalg.norm(fourfold - empty)
    scaled_distance = np.linalg.norm(scaled - empty)
    return bool(scaled_distance > 0 and abs(distance / scaled_distance - 1) < _EQUALLY_FAR)


# The causes of movements of more than C, the most specific first.
CAUSES: tuple[Callable[[Excess], BugCause | None], ...] = (
    _find_actual_size,
    _find_unclipped_rows,
    _find_mixed_examples,
    _find_clipped_numbers,
    _find_scaling_up,
    _find_layers,
    _find_wrong_factor,
    _find_no_clipping,
    _find_pieces,
    _find_other_norm,
)
