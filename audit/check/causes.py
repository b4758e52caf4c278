"""The bugs that movements of a step amount to, by name, and what shows that clipping was reached.

Movements are in units of eta C / B, as far as a single example may move a step: a norm of 1 is called C.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np

from audit.check import factors, findings, noise, trees
from audit.check.findings import CheckFinding
from audit.check.movements import TriedExamples, compute_enclosing_radius, replace_rows
from audit.check.noise import DrawnNoise
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Vector
from audit.written import counted

_REACHED = 0.985  # of C: an added example that moves the step as far counts as stopped by clipping
_REACHED_BY_REPLACING = 0.9  # of C: the same for examples in place of a row, or their ball's radius
_MOST_PAIRS = 28  # of examples that replace a row, whose features are scaled together
_COARSE = 0.05  # a larger tolerance tells no movement of C from a smaller one
_PLATEAU = 3e-3  # the relative difference up to which norms count as the same
_FIT = 3e-3  # the relative difference up to which a plateau fits a mistake's factor
_SAME_DIRECTION = 0.99  # the absolute cosine from which two movements count as one direction
_EQUALLY_FAR = 0.02  # the relative difference up to which two distances count as equal
_SIGN_SPREAD = 1.15  # largest over smallest movement of a number by Adam's first step, at most


class BugCause(NamedTuple):
    """Why examples move a step too far.

    Attributes:
      name: the name of the bug, as engineers call it.
      why: a sentence on what shows it; empty where the name says all.
    """

    name: str
    why: str


def find_plateau(tried: TriedExamples) -> float:
    """Returns the norm at which the four largest movements of added examples stop; 0 if their norms differ.

    It is also 0 for examples in place of a row. Their movements are differences from that row's own gradient,
    and so do not stop at the same norm even if examples are clipped.
    """
    if not tried.were_added:
        return 0.0
    norms = sorted(list_finite_norms(tried.movements), reverse=True)
    if len(norms) < 4 or norms[0] > norms[3] * (1 + _PLATEAU):
        return 0.0
    return norms[0]


def list_finite_norms(movements: Mapping[str, Movement]) -> list[float]:
    """Returns the finite ones among the norms of movements."""
    return [movement.norm for movement in movements.values() if np.isfinite(movement.norm)]


def is_violation(movement: Movement) -> bool:
    """Returns whether a movement exceeds C by more than rounding explains; True for NaN."""
    return not movement.norm <= 1 + movement.tolerance


def find_violations(tried: TriedExamples) -> dict[str, Movement]:
    """Returns all movements that exceed C, by a description of what was done, the largest first."""
    violations = {}
    for name, movement in tried.list_all().items():
        if is_violation(movement):
            violations[name] = movement
    ranked = sorted(violations.items(), key=lambda item: -item[1].norm)
    return dict(ranked)


def stay_below_clipping(tried: TriedExamples) -> bool:
    """Returns whether no example moves the step by nearly C, so that clipping was not seen."""
    least = _REACHED if tried.were_added else _REACHED_BY_REPLACING
    return max(list_finite_norms(tried.list_all()), default=0.0) < least


def compute_reach(tried: TriedExamples) -> float:
    """Returns how far, in units of eta C / B, some example is measured to move the step.

    Where examples replaced a row, it is the radius of the ball that holds their contributions if that is
    more.
    """
    largest = max(list_finite_norms(tried.list_all()), default=0.0)
    if tried.were_added:
        return largest
    return max(largest, compute_enclosing_radius(tried))


def is_clipping_seen_at_c(probe: StepProbe, tried: TriedExamples, plateau: float) -> bool:
    """Returns whether clipping is seen to stop examples, and to stop them at C and no farther.

    A movement of C alone does not show that, as it does for `is_clipping_reached`: unclipped gradients of
    half of C move a step that is twice as large as stated by C, too.

    Examples without floating-point features cannot be followed until they stop. Of these, four have to stop
    at C, in several directions, while another moves the step by less.

    Args:
      probe: the step.
      tried: how far examples move the step.
      plateau: the norm at which several examples stop; 0 if there is none.
    """
    tolerance = max([movement.tolerance for movement in tried.movements.values()], default=0.0)
    if tolerance > _COARSE or find_violations(tried):
        return False
    if not tried.were_added:
        return is_clipping_reached(probe, tried, plateau) and stops_by_clipping(probe, tried)
    if abs(plateau - 1) > _PLATEAU + tolerance:
        return False
    if _list_scaled_differences(probe, tried):
        return stops_by_clipping(probe, tried)
    is_any_shorter = any(tolerance < norm < 0.9 for norm in list_finite_norms(tried.movements))
    return is_any_shorter and _stop_in_several_directions(tried, plateau)


def is_clipping_reached(probe: StepProbe, tried: TriedExamples, plateau: float) -> bool:
    """Returns whether clipping, rather than the gradients' own size, stops the examples tried.

    Clipping stops added examples if one of them moves the step by C. It also does if a movement grows with an
    example's features and then stops suddenly: the whole movement, or that of a layer that is clipped to a
    share of C.

    Examples in place of a row are judged by size alone: by the largest movement, or by the radius of the
    smallest ball that holds their contributions. For clipped examples that radius is C at most. It is less
    if contributions do not lie in all directions, so that 0.9 C is enough.

    Args:
      probe: the step.
      tried: how far examples move the step.
      plateau: the norm at which several examples stop; 0 if there is none. Then the whole movement does not
        stop, and only single layers are tested for a sudden stop.
    """
    reach = compute_reach(tried)
    if not tried.were_added:
        return reach >= _REACHED_BY_REPLACING
    if reach >= _REACHED:
        return True
    if plateau > 0 and _stops_suddenly(probe, tried, None):
        return True
    return any(_stops_suddenly(probe, tried, layer) for layer in _find_stopped_layers(tried))


def _find_stopped_layers(tried: TriedExamples) -> list[int]:
    """Returns at most three layers in which the four largest norms are the same, the largest first.

    The norms are the same where each layer is clipped to a share of C. Three layers are enough to show that,
    and each takes many steps to test.
    """
    norms = np.sort([movement.layer_norms for movement in tried.movements.values()], axis=0)
    if len(norms) < 4 or not np.all(np.isfinite(norms)):
        return []
    # norms[-1] is each layer's largest norm, norms[-4] its fourth largest. Layers that move by less than
    # 0.05 C are left out.
    stops = (norms[-4] * (1 + _PLATEAU) > norms[-1]) & (norms[-1] > 0.05)
    layers = np.flatnonzero(stops)
    loudest_first = layers[np.argsort(-norms[-1][layers])]
    return [int(layer) for layer in loudest_first[:3]]


def stops_by_clipping(probe: StepProbe, tried: TriedExamples) -> bool:
    """Returns whether some example's whole movement is seen to stop by clipping, at whatever norm.

    False where the step refuses the scaled examples that would show it.
    """
    try:
        return _stops_suddenly(probe, tried, None)
    except RefusedError:
        return False


def _stops_suddenly(probe: StepProbe, tried: TriedExamples, layer: int | None) -> bool:
    """Returns whether some example's movement grows with its features and then stops suddenly, by clipping.

    A clipped movement grows in proportion to the features until it stops. A movement that is bounded for
    another reason, such as features that the model squashes, slows down long before; one of features that the
    model divides by their norm does not grow at all. A movement of features that the model clamps to a norm
    stops as suddenly as by clipping, but at other norms for other parameters. That is tried with added
    examples alone: those in place of a row show differences, which change with the parameters either way.

    Args:
      probe: the step.
      tried: the examples; those with floating-point features that are not scaled are used.
      layer: the index of the layer whose norm is measured; None for the norm over all layers.
    """
    for take_difference in _list_scaled_differences(probe, tried):
        measure = partial(_measure_difference, probe, layer, take_difference)
        least = measure(0)
        most = measure(trees.LARGEST_SCALE)
        if most < least * 1.02:
            continue  # its features hardly move the step, so that there is no growth to look at
        # The scales of features that give half of the movement's growth, and nearly all of it.
        half = _find_scale(measure, least + 0.5 * (most - least))
        full = _find_scale(measure, least + 0.998 * (most - least))
        is_growth_seen = half > 2 * trees.LEAST_SCALE  # else it is as large at the least scale
        # In proportion, it takes twice the scale from half of the movement to nearly all of it; features that
        # are squashed, as by tanh, take six times. The limit lies between.
        if is_growth_seen and full < 3.5 * half:
            return not (tried.were_added and _moves_farther_elsewhere(probe, tried, layer))
    return False


def _moves_farther_elsewhere(probe: StepProbe, tried: TriedExamples, layer: int | None) -> bool:
    """Returns whether at other parameters an added example moves the step farther, by 2%, than any here.

    None does where clipping stops those tried here: it stops all at the same norm, whatever the parameters.
    False where the step refuses other parameters.

    Args:
      probe: the step.
      tried: the examples.
      layer: the index of the layer whose norm is measured; None for the norm over all layers.
    """
    here = max(_get_norm(movement, layer) for movement in tried.movements.values())
    try:
        moved = probe.begin_elsewhere()
        for take_difference in _list_scaled_differences(moved, tried):
            difference = take_difference(trees.LARGEST_SCALE)
            movement = moved.measure(difference, moved.base, len(moved.rows[0]) + 1)
            if not np.isfinite(movement.norm):
                continue
            # Other parameters may be rounded more coarsely. A layer's norm has what rounding adds to it,
            # which is at most what it adds to all layers.
            added = 0.0
            if layer is not None:
                added = max(np.sum(movement.vector**2) - movement.norm**2, 0.0)
            square = max(_get_norm(movement, layer) ** 2 - added, 0.0)
            if square**0.5 - movement.tolerance > 1.02 * here:
                return True
    except RefusedError:
        return False
    return False


def _get_norm(movement: Movement, layer: int | None) -> float:
    """Returns the norm of a movement within a layer; over all layers for None."""
    return movement.norm if layer is None else float(movement.layer_norms[layer])


def _measure_difference(
    probe: StepProbe,
    layer: int | None,
    take_difference: Callable[[float], Vector],
    scale: float,
) -> float:
    """Returns the norm of a difference of steps at a scale of features, within a layer or over all (None)."""
    movement = probe.measure(take_difference(scale), probe.base, len(probe.rows[0]) + 1)
    return _get_norm(movement, layer)


def _list_scaled_differences(
    probe: StepProbe, tried: TriedExamples
) -> list[Callable[[float], Vector]]:
    """Returns functions from a scale of features to what an example with such features does to the step.

    Where examples are added, a function's result is the step with the example less that without it. Where
    they replace the first row, the contribution of that row is unknown. A result then is the step with one
    example in its place less that with another, both with features of this scale.
    """
    unscaled = []
    for example in tried.examples.values():
        if not example.is_scaled and example.columns[0].dtype.kind == "f":
            unscaled.append(example.columns)

    def add(columns: trees.Columns, scale: float) -> Vector:
        """Returns what the example does to the step, added to the batch as given, at seed 0 as `base`."""
        scaled = trees.scale_features(columns, scale, probe.rows)
        return probe.run(trees.join(probe.rows, scaled), 0) - probe.base

    def exchange(first: trees.Columns, second: trees.Columns, scale: float) -> Vector:
        """Returns the step with the first example in the first row less that with the second, at seed 0."""
        after = []
        for columns in (first, second):
            scaled = trees.scale_features(columns, scale, probe.rows)
            after.append(probe.run(replace_rows(probe.rows, {0: scaled}), 0))
        return after[0] - after[1]

    if tried.were_added:
        return [partial(add, columns) for columns in unscaled]
    # Each pair takes dozens of steps: of many examples a few are enough.
    pairs = islice(combinations(unscaled, 2), _MOST_PAIRS)
    return [partial(exchange, first, second) for first, second in pairs]


def _find_scale(measure: Callable[[float], float], level: float) -> float:
    """Returns the scale of features at which a movement's norm reaches a level, by bisection of its log.

    Args:
      measure: the function from a scale to a norm, taken to be increasing.
      level: the norm to reach.
    """
    low = float(np.log10(trees.LEAST_SCALE))
    high = float(np.log10(trees.LARGEST_SCALE))
    for _ in range(13):  # leaves an interval of 0.0011, or 0.3% of the scale
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
    """Returns whether movements and noise are rescaled parameter by parameter, as by Adam's running means.

    The noise's deviation then differs between parameters. A movement is in units of eta C / B and the
    deviation in units of eta sigma C / B. If each parameter's movement is divided by the parameter's own
    deviation, examples that are clipped to C stop at the norm 1. The four largest norms must be from 0.8 to
    1.1, which leaves room for the sampling error of the deviations.
    """
    if not drawn.varies_by_number():
        return False
    deviations = drawn.given.values.std(axis=0)
    is_seen = deviations > 0
    norms = []
    for movement in tried.list_all().values():
        if movement.vector.size != deviations.size:  # not all numbers of the noise were kept
            return False
        if np.any(movement.vector[~is_seen]):  # a parameter that moves without noise
            return False
        norms.append(np.linalg.norm(movement.vector[is_seen] / deviations[is_seen]))
    norms.sort(reverse=True)
    return len(norms) > 3 and bool(0.8 < norms[3] <= norms[0] < 1.1)


def find_lost_signal(
    probe: StepProbe,
    tried: TriedExamples,
    plateau: float,
) -> CheckFinding | None:
    """Returns the finding that examples stop at a fraction of C, if a mistake explains this; else None.

    Such a mistake shrinks the examples' sum but not the noise. None, too, where movements stop gradually,
    where rounding is too coarse to tell, and where a layer stops at C / sqrt(layers): each layer is then
    clipped to its share of C.

    Args:
      probe: the step.
      tried: how far examples move the step.
      plateau: the norm at which several examples stop; 0 if there is none.
    """
    tolerance = _FIT + max(movement.tolerance for movement in tried.movements.values())
    if not 0 < plateau < 1 - 2 * tolerance:  # no plateau, or one that may be C itself
        return None
    rows = len(probe.rows[0])
    mistakes = factors.find_lost_signal(plateau, probe.settings, rows, tolerance)
    is_exact = tolerance < 0.1 * plateau + _FIT  # rounding changes the plateau by less than a tenth

    # Each layer's largest norm in units of its share C / sqrt(layers). It is 1 where clipping stops the layer
    # at its share.
    layer_norms = np.array([movement.layer_norms for movement in tried.movements.values()])
    trained_layers = np.unique(probe.layer[probe.is_trained]).size
    shares = np.max(layer_norms, axis=0) * trained_layers**0.5
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
    """Returns the most likely bug behind movements of more than C.

    The bugs are tried one after the other, and the first that fits is returned. Where none fits, the cause
    says what was seen.

    Args:
      probe: the step.
      tried: how far examples move the step, at least one of them by more than C.
      drawn: the noise, where there is any.
      examples_interact: whether examples change how far others move the step.
    """
    violations = find_violations(tried)
    largest = next(iter(violations.values()))  # they come by falling norm
    movements = tried.movements

    if drawn and _shrinks_with_batch(drawn):
        return BugCause(findings.ACTUAL_SIZE.name, "Noise shrinks as the batch grows.")
    rows = [row for row, movement in tried.places.items() if is_violation(movement)]
    if len(violations) == len(rows):  # only examples in certain rows exceed C
        return _describe_places(tried, rows)

    # Every number of a gradient is clipped by itself, if most of the parameters that move at all in the
    # largest movement do so by C, and none by more.
    sizes = largest.sizes[largest.sizes > 1e-3]  # less than 0.001 C counts as no movement
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

    # Mistakes in a factor: clipped examples stop at a norm other than C.
    plateau = find_plateau(tried)
    if not _stop_in_several_directions(tried, plateau):
        plateau = 0.0  # the same gradient several times: its norm does not come from clipping
    # Mistakes to consider beside those that `find_mistakes` has, with the factor that each gives.
    special = {
        "an example that counts twice": 2.0,
        "divided by another batch size": probe.settings.batch_size / len(probe.rows[0]),
    }
    mistakes = factors.find_mistakes(probe.settings, plateau, 5e-3, special)  # fitting to 0.5%
    if mistakes:
        stops = f"All extreme examples move it by {plateau:.4g}"
        return BugCause(
            mistakes[0], f"{stops}, as with {plateau:.4g} times the stated clipping norm."
        )

    # Without clipping, movements are as large as gradients, which grow with features. The largest is then far
    # above C, here taken to be 3 C; a wrong factor or norm may give a little more than C.
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
    """Returns whether the examples whose movements stop at a norm move the step in more than one direction.

    If they do not, clipping need not be what stops them: examples with saturated features have equal
    gradients, and so equal norms.

    Args:
      tried: how far examples move the step.
      plateau: the norm; 0 if there is none.
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
    """Returns a sentence that narrows down why movements exceed C, where no known bug explains it.

    Args:
      probe: the step.
      movements: the movements by example.
      largest: the largest of them.
    """
    layer_norms = np.array([movement.layer_norms for movement in movements.values()])
    # Whether all examples stay within C once the few layers that move most are left out.
    if np.all(np.isfinite(layer_norms)) and len(probe.layer_names) > 1:
        loudest_first = np.argsort(-np.max(layer_norms, axis=0))
        for count in range(1, len(probe.layer_names) // 2 + 1):  # half of all layers at most
            left_out = loudest_first[:count]
            other_norms = np.delete(layer_norms, left_out, axis=1)
            if np.max(np.linalg.norm(other_norms, axis=1)) <= 1 + largest.tolerance:
                names = ", ".join(probe.layer_names[i] for i in left_out[:6])  # at most six
                return f"All but {names} stay within C: is their gradient clipped too?"
    if largest.norm < 1.1:  # nearly C, so that clipping is nearly right
        return "Is a number added to the norm or the factor, or are numbers left out of the norm?"
    return "They do not stop at any norm: is there any clipping?"


def _describe_places(tried: TriedExamples, rows: list[int]) -> BugCause:
    """Returns the cause that some rows of the batch are not clipped, with their indices.

    Args:
      tried: the rows that were tried.
      rows: the indices of those in which examples move the step by more than C.
    """
    listed = ", ".join(str(row) for row in sorted(rows)[:8])
    if len(rows) > 8:
        listed += " ..."
    why = f"It does so in {len(rows)} of {counted(len(tried.places), 'row')} tried: {listed}."
    return BugCause("rows of the batch that are not clipped", why)


def _find_layer_cause(probe: StepProbe, tried: TriedExamples) -> BugCause | None:
    """Returns the bug of layers that are clipped one by one or left out of clipping; None if neither fits."""
    movements = tried.movements
    layer_norms = np.array([movement.layer_norms for movement in movements.values()])
    if not np.all(np.isfinite(layer_norms)):
        return None
    peaks = np.max(layer_norms, axis=0)  # each layer's largest norm
    allowed = 1 + max(movement.tolerance for movement in movements.values())  # C, and rounding

    # Layers are clipped one by one if none exceeds C, to 0.5% or to rounding, and the example that moves the
    # step most moves several layers by C.
    loudest = layer_norms[np.argmax(np.linalg.norm(layer_norms, axis=1))]
    at_c = np.sum(np.abs(loudest - 1) < max(0.01, allowed - 1))  # how many, to 1% or to rounding
    if np.max(peaks) <= max(allowed, 1.005) and at_c > 1:
        moved = np.sum(peaks > 1e-3)  # layers that examples move at all: by 0.001 C
        name = "every layer clipped by itself" if at_c == moved else "layers clipped by themselves"
        return BugCause(name, f"{at_c} of {moved} layers stop at C at once.")

    unclipped = _find_unclipped_layers(layer_norms, np.array(probe.dimensions), allowed)
    if not unclipped:
        return _find_layers_clipped_apart(probe, layer_norms)
    names = ", ".join(probe.layer_names[i] for i in unclipped[:6])  # at most six in a message
    is_largest = [tried.examples[name].is_largest for name in movements]
    peak_of_largest = np.max(layer_norms[is_largest][:, unclipped], initial=0.0)
    # A layer that is left out of the norm alone is still multiplied by the clipping factor, which is tiny for
    # examples with the largest features. If it moves far with these, by a tenth of its largest movement or
    # more, it is not clipped at all.
    if peak_of_largest > 0.1 * np.max(peaks[unclipped]):
        return BugCause(f"{names} left out of clipping", "The others stop at C.")
    return BugCause(f"{names} left out of the clipping norm", "The others stop at C.")


def _are_scaled_up(tried: TriedExamples) -> bool:
    """Returns whether short gradients are scaled up to C: several movements are just C, and none is less.

    At least four must be C, in more than one direction, and more than four must exceed it. Examples that do
    not move the step are left out.
    """
    norms = np.array([norm for norm in list_finite_norms(tried.movements) if norm > 0])
    is_at_c = np.abs(norms - 1) < _PLATEAU
    at_c = int(np.count_nonzero(is_at_c))
    is_least = bool(np.all(norms > 1 - _PLATEAU))
    return is_least and 4 <= at_c < len(norms) - 4 and _stop_in_several_directions(tried, 1.0)


def _find_layers_clipped_apart(probe: StepProbe, layer_norms: Vector) -> BugCause | None:
    """Returns the cause that some layers alone stop at C while the whole movement exceeds C; None otherwise.

    Whether the other layers are clipped by themselves, or not at all, remains open.

    Args:
      probe: the step.
      layer_norms: (examples, layers) the movements' norms within each layer.
    """
    # A layer stops at C if its three largest norms are C to 0.5%, and it moves by C in an example whose whole
    # movement clearly exceeds C, by 5%.
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

    Tries each layer, all vectors (biases), and the 2, 3, ... layers that move most, up to half of all.

    Args:
      layer_norms: (examples, layers) the movements' norms within each layer.
      dimensions: (layers,) the number of axes of each layer's array.
      allowed: C and the tolerance: as far as examples may move the step.

    Returns:
      The indices of the first layers tried that fit: if they are left out of the norms, no example exceeds
      `allowed`, and two at least come near C. Empty if none fit.
    """
    layers = layer_norms.shape[1]
    candidates = [[layer] for layer in range(layers)]
    vectors = np.flatnonzero(dimensions <= 1).tolist()
    if 1 < len(vectors) < layers:
        candidates.append(vectors)
    loudest = np.argsort(-np.max(layer_norms, axis=0)).tolist()
    candidates += [loudest[:count] for count in range(2, layers // 2 + 1)]
    for left_out in candidates:
        other_norms = np.delete(layer_norms, left_out, axis=1)
        norms = np.sort(np.linalg.norm(other_norms, axis=1))[::-1]  # the largest first
        stops_at_c = norms[0] <= allowed and norms[0] > 0.96  # near C
        if stops_at_c and len(norms) > 1 and norms[1] > 0.96:
            return list(left_out)
    return []


def _shrinks_with_batch(drawn: DrawnNoise) -> bool:
    """Returns whether the noise is a quarter as large on a batch four times as large."""
    ratio = drawn.compute_deviation(noise.FOURFOLD) / drawn.compute_deviation()
    return bool(abs(4 * ratio - 1) < 0.15)


def _grows_with_features(tried: TriedExamples) -> bool:
    """Returns whether scaling features or labels by 1000 makes movements more than 5 times as large.

    Compares the largest movement of examples at the largest scale, 1000, with that of unscaled examples.
    """
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

    If so, a batch four times as long and a batch with features 1000 times as large both have a sum of norm C,
    and move the parameters equally far from where an empty batch leaves them. False where the step refuses
    any of the three batches.
    """
    seed = 0  # the same for all three batches, so that they have the same noise
    try:
        empty = probe.run(trees.take(probe.rows, slice(0, 0)), seed)
        fourfold = probe.run(trees.join(*[probe.rows] * 4), seed)
        scaled = probe.run(trees.scale_features(probe.rows, 1e3, probe.rows), seed)
    except RefusedError:
        return False
    distance = np.linalg.norm(fourfold - empty)
    scaled_distance = np.linalg.norm(scaled - empty)
    return bool(scaled_distance > 0 and abs(distance / scaled_distance - 1) < _EQUALLY_FAR)
