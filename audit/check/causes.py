"""The bugs that movements of a step amount to, by name, and what shows that clipping was reached.

Movements are in units of eta C / B, as far as one example may move a step: a norm of 1 is called C.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from audit.check import factors, findings, noise, trees
from audit.check.findings import CheckFinding
from audit.check.movements import TriedExamples, compute_enclosing_radius
from audit.check.noise import DrawnNoise
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Vector

_REACHED = 0.985  # of C, from which clipping is taken to be what stops an example
_REACHED_BY_REPLACING = 0.9  # the same of the ball that holds what examples do in place of a row
_PLATEAU = 3e-3  # relative, within which examples stop at the same norm
_FIT = 3e-3  # relative, of a plateau to a mistake's factor
_SAME_DIRECTION = 0.99  # absolute cosine, from which two movements count as one
_EQUALLY_FAR = 0.02  # relative, within which two distances count as equal
_SIGN_SPREAD = 1.15  # of the numbers' movements by Adam's first step, weight decay included


class BugCause(NamedTuple):
    """The name of a bug that movements amount to, and a sentence on what shows it."""

    name: str
    why: str


def find_plateau(tried: TriedExamples) -> float:
    """Returns the norm at which the four loudest added examples stop, 0 where they do not stop together."""
    if not tried.were_added:
        return 0.0
    norms = sorted(list_finite_norms(tried.movements), reverse=True)
    if len(norms) < 4 or norms[0] > norms[3] * (1 + _PLATEAU):
        return 0.0
    return norms[0]


def list_finite_norms(movements: Mapping[str, Movement]) -> list[float]:
    """Returns the norms of movements that are finite."""
    return [movement.norm for movement in movements.values() if np.isfinite(movement.norm)]


def is_violation(movement: Movement) -> bool:
    """Returns whether a movement is by more than C, whatever rounding did."""
    return not movement.norm <= 1 + movement.tolerance  # of NaN too


def find_violations(tried: TriedExamples) -> dict[str, Movement]:
    """Returns the movements by more than C, the largest first."""
    violations = {}
    for name, movement in tried.list_all().items():
        if is_violation(movement):
            violations[name] = movement
    ranked = sorted(violations.items(), key=lambda item: -item[1].norm)
    return dict(ranked)


def stay_below_clipping(tried: TriedExamples) -> bool:
    """Returns whether no example moves the step by about C."""
    least = _REACHED if tried.were_added else _REACHED_BY_REPLACING
    return max(list_finite_norms(tried.list_all()), default=0.0) < least


def is_clipping_reached(probe: StepProbe, tried: TriedExamples, plateau: float) -> bool:
    """Returns whether clipping, rather than the gradients' own size, stops the examples tried.

    It does where they come to C, or where they stop suddenly as their features grow. The ball around what
    examples do in place of a row has the radius C only where they point to all sides, so that nine tenths
    are enough there.
    """
    largest = max(list_finite_norms(tried.list_all()), default=0.0)
    if not tried.were_added:
        return max(largest, compute_enclosing_radius(tried)) >= _REACHED_BY_REPLACING
    if largest >= _REACHED:
        return True
    if plateau > 0 and _stops_suddenly(probe, tried, None):
        return True
    return any(_stops_suddenly(probe, tried, layer) for layer in _find_stopped_layers(tried))


def _find_stopped_layers(tried: TriedExamples) -> list[int]:
    """Returns layers in which several examples have the same norm, as where each is clipped to its share."""
    norms = np.sort([movement.layer_norms for movement in tried.movements.values()], axis=0)
    if len(norms) < 4 or not np.all(np.isfinite(norms)):
        return []
    stops = (norms[-4] * (1 + _PLATEAU) > norms[-1]) & (norms[-1] > 0.05)
    layers = np.flatnonzero(stops)
    loudest_first = layers[np.argsort(-norms[-1][layers])]
    return [int(layer) for layer in loudest_first[:3]]


def _stops_suddenly(probe: StepProbe, tried: TriedExamples, layer: int | None) -> bool:
    """Returns whether an example's movement, in a layer or all, stops growing with its features at once.

    A clipped movement grows in proportion to the features until it stops. Where features are squashed it
    slows down long before.
    """
    for example in tried.examples.values():
        columns = example.columns
        if example.is_scaled or columns[0].dtype.kind != "f":
            continue

        def measure(scale: float, columns: trees.Columns = columns) -> float:
            batch = trees.join(probe.rows, trees.scale_features(columns, scale, probe.rows))
            difference = probe.run(batch, 0) - probe.base
            movement = probe.measure(difference, probe.base, len(batch[0]))
            return movement.norm if layer is None else float(movement.layer_norms[layer])

        least = measure(0)
        most = measure(trees.LARGEST_SCALE)
        if most < least * 1.02:
            continue
        half = _find_scale(measure, least + 0.5 * (most - least))
        full = _find_scale(measure, least + 0.998 * (most - least))
        if full < 3.5 * half:  # growth in proportion takes twice the scale from half to full
            return True
    return False


def _find_scale(measure: Callable[[float], float], level: float) -> float:
    """Returns the scale of features at which a movement comes to a level, by bisection."""
    low = -3.0
    high = float(np.log10(trees.LARGEST_SCALE))
    for _ in range(12):
        middle = (low + high) / 2
        if measure(10**middle) < level:
            low = middle
        else:
            high = middle
    return float(10**high)


def is_sign_step(probe: StepProbe) -> bool:
    """Returns whether a step moves every number equally far, whatever the batch, as Adam's first does."""
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
    is_exact = distances > 50 * trees.compute_ulp(after, probe.spacings[probe.is_trained])
    distances = distances[np.isfinite(distances) & is_exact]
    if len(results) < 4 or distances.size < 16:
        return False
    low, high = np.quantile(distances, [0.05, 0.95])
    return bool(high < _SIGN_SPREAD * low)


def is_preconditioned(tried: TriedExamples, drawn: DrawnNoise) -> bool:
    """Returns whether movements and noise are scaled alike, number by number, as by Adam's running means.

    Divided by each number's own noise, extreme examples then stop at C, and two opposite examples in place of
    a row come near it.
    """
    if not drawn.varies_by_number():
        return False
    deviations = drawn.given.values.std(axis=0)
    is_seen = deviations > 0
    norms = []
    for movement in tried.list_all().values():
        if movement.vector.size != deviations.size:  # not all numbers of the noise were kept
            return False
        if np.any(movement.vector[~is_seen]):
            return False
        norms.append(np.linalg.norm(movement.vector[is_seen] / deviations[is_seen]))
    norms.sort(reverse=True)
    return len(norms) > 3 and bool(0.8 < norms[3] <= norms[0] < 1.1)


def find_lost_signal(
    probe: StepProbe,
    tried: TriedExamples,
    plateau: float,
) -> CheckFinding | None:
    """Returns the finding of examples that stop at a telling fraction of C; None where they do not.

    It is None too where a layer stops at its share of C, as where each is clipped to C / sqrt(layers).
    """
    tolerance = _FIT + max(movement.tolerance for movement in tried.movements.values())
    if not 0 < plateau < 1 - 2 * tolerance:
        return None
    rows = len(probe.rows[0])
    mistakes = factors.find_lost_signal(plateau, probe.settings, rows, tolerance)
    is_exact = tolerance < 0.1 * plateau + _FIT
    layer_norms = np.array([movement.layer_norms for movement in tried.movements.values()])
    shares = np.max(layer_norms, axis=0) * np.unique(probe.layer[probe.is_trained]).size ** 0.5
    has_share = shares.size > 1 and bool(np.any(np.abs(shares - 1) < 0.005))
    if not mistakes or not is_exact or has_share or not _stops_suddenly(probe, tried, None):
        return None
    why = f"It fits: {'; or '.join(mistakes)}."
    return findings.LOST_SIGNAL.fill(name=mistakes[0], plateau=plateau, why=why)


def find_cause(
    probe: StepProbe,
    tried: TriedExamples,
    drawn: DrawnNoise | None,
    examples_interact: bool,
) -> BugCause:
    """Returns the bug that movements by more than C amount to.

    The cause names a bug if no other bug fits; otherwise it says what was seen.

    Args:
      probe: the step.
      tried: what examples did, at least one of them too much.
      drawn: the noise, where there is any.
      examples_interact: whether examples change what others do.
    """
    violations = find_violations(tried)
    largest = next(iter(violations.values()))
    movements = tried.movements
    if drawn and _shrinks_with_batch(drawn):
        return BugCause(findings.ACTUAL_SIZE.name, "Noise shrinks as the batch grows.")
    rows = [row for row, movement in tried.places.items() if is_violation(movement)]
    if len(violations) == len(rows):
        return _describe_places(tried, rows)

    sizes = largest.sizes[largest.sizes > 1e-3]
    if sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5:
        return BugCause("clipped number by number", "No number moves by more than C.")
    if _are_scaled_up(tried):
        return BugCause(
            "gradients scaled up to C, not down",
            "Short ones come to C, longer ones are left as they are: min where max is meant, or max for min?",
        )
    layer_cause = _find_layer_cause(probe, tried)
    if layer_cause:
        return layer_cause

    plateau = find_plateau(tried)
    if not _stop_in_several_directions(tried, plateau):
        plateau = 0.0  # one gradient that came several times; its norm is by no clipping
    special = {
        "an example that counts twice": 2.0,
        "divided by another batch size": probe.settings.batch_size / len(probe.rows[0]),
    }
    mistakes = factors.find_mistakes(probe.settings, plateau, 5e-3, special)
    if mistakes:
        return BugCause(mistakes[0], f"All extreme examples move it by {plateau:.4g}.")
    if largest.norm > 3 and _grows_with_features(tried):
        return BugCause("no clipping of single examples", "")
    if examples_interact and _clips_whole_batch(probe):
        return BugCause("the batch is clipped, not its examples", "All batches come to one norm.")
    if plateau > 0:
        return BugCause(
            f"clipped to {plateau:.4g} times the stated C", "Extreme examples stop there."
        )
    return BugCause(
        "an example that moves the step by more than C", _describe_excess(probe, movements, largest)
    )


def _stop_in_several_directions(tried: TriedExamples, plateau: float) -> bool:
    """Returns whether examples that stop at a plateau move the step in more than one direction.

    Saturated features make examples of equal gradients, which are as loud as each other without any clipping.
    """
    if plateau == 0:
        return False
    vectors = []
    for movement in tried.movements.values():
        if abs(movement.norm - plateau) < 1e-3 * plateau + movement.tolerance:
            vectors.append(movement.vector / np.linalg.norm(movement.vector))
    if len(vectors) < 2:
        return False
    cosines = np.abs(np.array(vectors) @ vectors[0])
    return bool(np.min(cosines) < _SAME_DIRECTION)


def _describe_excess(
    probe: StepProbe,
    movements: Mapping[str, Movement],
    largest: Movement,
) -> str:
    """Returns a sentence on movements by more than C that no bug explains alone."""
    layer_norms = np.array([movement.layer_norms for movement in movements.values()])
    if np.all(np.isfinite(layer_norms)) and len(probe.layer_names) > 1:
        loudest = np.argsort(-np.max(layer_norms, axis=0))[: len(probe.layer_names) // 2]
        for count in range(1, len(loudest) + 1):
            rest = np.delete(layer_norms, loudest[:count], axis=1)
            if np.max(np.linalg.norm(rest, axis=1)) <= 1 + largest.tolerance:
                names = ", ".join(probe.layer_names[i] for i in loudest[:count][:6])
                return f"All but {names} stay within C: is their gradient clipped too?"
    if largest.norm < 1.1:
        return "Is a number added to the norm or the factor, or are numbers left out of the norm?"
    return "They do not stop at any norm: is there any clipping?"


def _describe_places(tried: TriedExamples, rows: list[int]) -> BugCause:
    """Returns the cause of rows of the batch in which examples move the step too far."""
    listed = ", ".join(str(row) for row in sorted(rows)[:8])
    if len(rows) > 8:
        listed += " ..."
    why = f"It does so in {len(rows)} of {len(tried.places)} rows tried: {listed}."
    return BugCause("rows of the batch that are not clipped", why)


def _find_layer_cause(probe: StepProbe, tried: TriedExamples) -> BugCause | None:
    """Returns the bug of layers that are clipped by themselves or left out; None where neither fits."""
    movements = tried.movements
    layer_norms = np.array([movement.layer_norms for movement in movements.values()])
    if not np.all(np.isfinite(layer_norms)):
        return None
    peaks = np.max(layer_norms, axis=0)
    allowed = 1 + max(movement.tolerance for movement in movements.values())
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
    is_largest = [tried.examples[name].is_largest for name in movements]
    peak_of_largest = np.max(layer_norms[is_largest][:, unclipped], initial=0.0)
    # Layers that only the norm leaves out are still multiplied by the clipping factor, which is tiny for an
    # example with features this large. So where they move far, clipping leaves them out altogether.
    if peak_of_largest > 0.1 * np.max(peaks[unclipped]):
        return BugCause(f"{names} left out of clipping", "The others stop at C.")
    return BugCause(f"{names} left out of the clipping norm", "The others stop at C.")


def _are_scaled_up(tried: TriedExamples) -> bool:
    """Returns whether many examples move the step by just C, in several directions, and none by less."""
    norms = np.array([norm for norm in list_finite_norms(tried.movements) if norm > 0])
    is_at_c = np.abs(norms - 1) < _PLATEAU
    at_c = int(np.count_nonzero(is_at_c))
    is_least = bool(np.all(norms > 1 - _PLATEAU))
    return is_least and 4 <= at_c < len(norms) - 4 and _stop_in_several_directions(tried, 1.0)


def _find_layers_clipped_apart(probe: StepProbe, layer_norms: Vector) -> BugCause | None:
    """Returns the cause of layers that stop at C while others move too; None where there are none.

    Whether the others are clipped by themselves, or not at all, remains open.
    """
    loudest = np.sort(layer_norms, axis=0)[-3:]
    exceeds = np.linalg.norm(layer_norms, axis=1) > 1.05
    at_c = np.abs(layer_norms - 1) < 0.005
    stops = np.all(np.abs(loudest - 1) < 0.005, axis=0) & np.any(at_c[exceeds], axis=0)
    if len(loudest) < 3 or not np.any(stops):
        return None
    names = ", ".join(probe.layer_names[i] for i in np.flatnonzero(stops)[:6])
    return BugCause(f"{names} clipped apart from other layers", "Are layers clipped one by one?")


def _find_unclipped_layers(layer_norms: Vector, dimensions: Vector, allowed: float) -> list[int]:
    """Finds the layers that clipping, or its norm, leaves out.

    Tries each layer, all vectors (biases), and the layers that move most, up to half of all.

    Args:
      layer_norms: (examples, layers) movements within each layer.
      dimensions: (layers,) axes of each layer's array.
      allowed: as far as examples may move the step.

    Returns:
      Indices of the fewest layers without which several examples stop at C; empty where there are none.
    """
    layers = layer_norms.shape[1]
    candidates = [[layer] for layer in range(layers)]
    vectors = np.flatnonzero(dimensions <= 1).tolist()
    if 1 < len(vectors) < layers:
        candidates.append(vectors)
    loudest = np.argsort(-np.max(layer_norms, axis=0)).tolist()
    candidates += [loudest[:count] for count in range(2, layers // 2 + 1)]
    for left_out in candidates:
        rest = np.delete(layer_norms, left_out, axis=1)
        norms = np.sort(np.linalg.norm(rest, axis=1))[::-1]
        stops_at_c = norms[0] <= allowed and norms[0] > 0.96
        if stops_at_c and len(norms) > 1 and norms[1] > 0.96:
            return list(left_out)
    return []


def _shrinks_with_batch(drawn: DrawnNoise) -> bool:
    """Returns whether the noise is a quarter as large on a batch four times as large."""
    ratio = drawn.compute_deviation(noise.FOURFOLD) / drawn.compute_deviation()
    return bool(abs(4 * ratio - 1) < 0.15)


def _grows_with_features(tried: TriedExamples) -> bool:
    """Returns whether examples with numbers 1000 times as large move the step much further than others."""
    largest_scaled = 0.0
    largest_unscaled = 0.0
    for name, movement in tried.movements.items():
        example = tried.examples[name]
        if example.is_largest:
            largest_scaled = max(largest_scaled, movement.norm)
        if not example.is_scaled:
            largest_unscaled = max(largest_unscaled, movement.norm)
    return largest_scaled > 5 * largest_unscaled


def _clips_whole_batch(probe: StepProbe) -> bool:
    """Returns whether the batch's sum of gradients seems to be clipped, in place of each example's gradient.

    Then a batch four times as long and one with features 1000 times as large move the parameters equally far
    from where an empty batch leaves them.
    """
    seed = 0  # of all three, so that they have the same noise
    try:
        empty = probe.run(trees.take(probe.rows, slice(0, 0)), seed)
        fourfold = probe.run(trees.join(*[probe.rows] * 4), seed)
        scaled = probe.run(trees.scale_features(probe.rows, 1e3, probe.rows), seed)
    except RefusedError:
        return False
    distance = np.linalg.norm(fourfold - empty)
    scaled_distance = np.linalg.norm(scaled - empty)
    return bool(scaled_distance > 0 and abs(distance / scaled_distance - 1) < _EQUALLY_FAR)
