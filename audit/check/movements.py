"""How far examples move a step: added to its batch, in place of its rows, and several of them together.

Movements are in units of eta C / B. A replaced row counts by half of what two examples differ in its place,
since an example leaves while another comes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from audit.check import trees
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Example

_REDRAWN = "another size of batch changes its noise"
_LOUDEST = 3  # examples, those with the largest movements, that are measured again over seeds
_MOST_PLACES = 64  # rows of the batch in which examples are tried
_SECONDS = 6.0  # for trying all these rows
_FIRST_ROWS = 16  # first rows that are tried: a bug at every m-th row, m <= 16, meets one of them
_SEED = 20_240_101  # of the random choice of rows


class ExamplePair(NamedTuple):
    """The names of the two examples whose movements differ most."""

    first: str
    second: str


class TriedExamples(NamedTuple):
    """How far examples move a step.

    Attributes:
      examples: the examples by name.
      movements: by the example's name, how far it moves the step: added to the batch, or in place of its
        first row (then halved).
      places: by row of the batch, half of how far the step moves when one of the two most different examples
        in this row's place is exchanged for the other.
      refusal: why examples replaced the first row; empty where they were added.
      redraws_noise: whether a batch with an added example gets another draw of the noise.
    """

    examples: dict[str, Example]
    movements: dict[str, Movement]
    places: dict[int, Movement]
    refusal: str
    redraws_noise: bool

    @property
    def were_added(self) -> bool:
        """Whether examples were added to the batch; if not, they replaced its first row."""
        return not self.refusal

    def list_all(self) -> dict[str, Movement]:
        """Returns `movements` and `places` as a single mapping, by a description of what was done."""
        result = {}
        for name, movement in self.movements.items():
            description = name if self.were_added else f"{name}, in place of the first"
            result[description] = movement
        for row, movement in self.places.items():
            result[f"two examples in place of row {row}"] = movement
        return result


def try_examples(probe: StepProbe, examples: dict[str, Example], seconds: float) -> TriedExamples:
    """Measures how far examples move the step when they are added to its batch.

    Where the step refuses a larger batch, ignores one more example, or draws its noise anew for a larger
    batch, each example replaces the batch's first row instead. In both cases, two of the examples are also
    tried in several rows of the batch.

    Args:
      probe: the step.
      examples: the examples by name.
      seconds: how long a call of the step takes, which limits the number of rows.
    """
    movements, error = _add_each(probe, examples)
    if error:
        refusal = f"the step refused a batch with one more example: {error}"
    elif not is_any_moved(movements):
        refusal = "the step ignores one more example"
    elif _is_noise_redrawn(movements, probe.settings.noise_multiplier):
        tried = replace_examples(probe, examples, _REDRAWN, seconds)
        return tried._replace(redraws_noise=True)
    else:
        tried = TriedExamples(examples, movements, {}, "", redraws_noise=False)
        return _try_places(probe, tried, seconds)
    return replace_examples(probe, examples, refusal, seconds)


def replace_examples(
    probe: StepProbe,
    examples: dict[str, Example],
    refusal: str,
    seconds: float,
) -> TriedExamples:
    """Tries examples in place of the batch's first row, and then two of them in other rows.

    It is for a step that refuses a batch with an example added. Half of each movement counts: one example
    leaves and another comes, so that together they may move the step twice as far as one.

    Args:
      probe: the step.
      examples: the examples by name.
      refusal: why examples are not added; if replacing fails too, the reason for that takes its place.
      seconds: how long a call of the step takes.
    """
    half_movements, error = _replace_first(probe, examples)
    if error:
        refusal = f"the step refused a batch with another example: {error}"
    tried = TriedExamples(examples, half_movements, {}, refusal, redraws_noise=False)
    return _try_places(probe, tried, seconds)


def _try_places(probe: StepProbe, tried: TriedExamples, seconds: float) -> TriedExamples:
    """Tries the two most different examples in several rows; returns `tried` with these `places`.

    Stops at the first row where the step refuses the batch.

    Args:
      probe: the step.
      tried: the movements of single examples.
      seconds: how long a call of the step takes.
    """
    if not is_any_moved(tried.movements) or not is_any_finite(tried.movements):
        return tried  # without movements to compare, no two examples are the most different
    places: dict[int, Movement] = {}
    pair = find_opposites(tried)
    seconds_a_row = 2 * seconds  # a call for each of the two examples
    # As many rows as time allows, but four in any case: both ends, the middle and the second row.
    most = int(np.clip(_SECONDS / seconds_a_row, 4, _MOST_PLACES))
    for row in _choose_places(len(probe.rows[0]), most):
        try:
            places[row] = measure_place(probe, tried, pair, row)
        except RefusedError:
            break
    return tried._replace(places=places)


def _add_each(probe: StepProbe, examples: Mapping[str, Example]) -> tuple[dict[str, Movement], str]:
    """Adds each example at the end of the batch, and measures how far that moves the step.

    Returns:
      The movements by the examples' names, without those whose batch the step refused; and the last of these
      refusals' messages, empty where there was none.
    """
    movements = {}
    last_error = ""
    for name, example in examples.items():
        batch = trees.join(probe.rows, example.columns)
        try:
            # Seed 0, that of `base`: the noise of both steps is the same and cancels.
            difference = probe.run(batch, 0) - probe.base
            movements[name] = probe.measure(difference, after=probe.base, examples=len(batch[0]))
        except RefusedError as error:
            last_error = str(error)
    return movements, last_error


def _replace_first(
    probe: StepProbe, examples: Mapping[str, Example]
) -> tuple[dict[str, Movement], str]:
    """Puts each example in place of the batch's first row, and measures half of how far that moves the step.

    Half, since one example leaves and another comes: together they may move the step twice as far as one.

    Returns:
      The movements by the examples' names, without those whose batch the step refused; and the last of these
      refusals' messages, empty where there was none.
    """
    movements = {}
    last_error = ""
    for name, example in examples.items():
        batch = replace_rows(probe.rows, {0: example.columns})
        try:
            # Seed 0, that of `base`: the noise of both steps is the same and cancels.
            difference = (probe.run(batch, 0) - probe.base) / 2
            movements[name] = probe.measure(difference, after=probe.base, examples=len(batch[0]))
        except RefusedError as error:
            last_error = str(error)
    return movements, last_error


def is_any_finite(movements: Mapping[str, Movement]) -> bool:
    """Returns whether some movement is finite, so that it can be compared with others."""
    return any(np.isfinite(movement.norm) for movement in movements.values())


def is_any_moved(movements: Mapping[str, Movement]) -> bool:
    """Returns whether any example changes any parameter, by however little."""
    return any(np.any(movement.vector != 0) for movement in movements.values())


def _is_noise_redrawn(movements: Mapping[str, Movement], noise_multiplier: float) -> bool:
    """Returns whether added examples share a movement that looks like the difference of two draws of noise.

    Some steps draw other noise for a batch of another size, though the seed is the same. The noise is then
    the same for every batch with one added example. So the movements lie far from zero, but near each other:
    they share the difference of both draws, a vector with normal entries of variance 2 sigma^2. This shows
    only with at least four parameters, as fewer entries tell little of their variance. With little noise it
    does not show, as the movements are then not longer than those of a correct step.

    Args:
      movements: the movements of added examples, by name, in units of eta C / B.
      noise_multiplier: sigma, in these units the deviation of the noise in each parameter.
    """
    vectors = [movement.vector for movement in movements.values() if np.isfinite(movement.norm)]
    if len(vectors) < 2:  # nothing is shared
        return False
    shared = np.mean(vectors, axis=0)

    # The entries' variance, estimated by the median, on which a few parameters that examples move have little
    # influence. 0.455 is the median of a squared standard normal variable.
    typical_square = float(np.median(shared**2) / 0.455)
    variance = 2 * noise_multiplier**2
    # Within half to twice the deviation of such noise.
    is_like_noise = shared.size >= 4 and 0.25 * variance < typical_square < 4 * variance

    # An example alone moves a correct step by at most 1. So every movement must be longer than that, and the
    # shared part longer than what distinguishes an example from the others; both by a margin of 5%.
    least = min(np.linalg.norm(vector) for vector in vectors)
    spread = max(np.linalg.norm(vector - shared) for vector in vectors)
    return bool(is_like_noise and least > 1.05 and np.linalg.norm(shared) > 1.05 * spread)


def find_opposites(tried: TriedExamples) -> ExamplePair:
    """Returns the names of the two examples whose movements differ most, in Euclidean distance.

    Movements that are not finite are left out; at least one has to be finite.
    """
    names = []
    vectors = []
    for name, movement in tried.movements.items():
        if np.isfinite(movement.norm):
            names.append(name)
            vectors.append(movement.vector)
    matrix = np.array(vectors)
    products = matrix @ matrix.T
    squares = np.diag(products)
    # |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b>, for each pair of movements.
    squared_distances = squares[:, None] + squares - 2 * products
    first, second = np.unravel_index(int(np.argmax(squared_distances)), squared_distances.shape)
    return ExamplePair(names[first], names[second])


def compute_enclosing_radius(tried: TriedExamples) -> float:
    """Returns the radius of the smallest ball that holds what the examples tried contribute to the step.

    Clipped gradients lie in a ball of radius C around zero. An example in place of the first row moves the
    step by the difference of both gradients, and that of the first row is unknown. So only the radius of the
    ball can be measured, not its centre. Half of the largest distance between two contributions would say
    less: it is 0.87 C for three gradients of norm C at angles of 120 degrees, whose ball has radius C.

    The method is Frank-Wolfe on the dual problem (Yildirim, 2008, "Two algorithms for the minimum enclosing
    ball problem"). The points x_i get weights w_i of at least 0 that sum to 1. The dual objective is the
    weighted variance sum_i w_i |x_i|^2 - |sum_i w_i x_i|^2, whose maximum is the squared radius.

    Args:
      tried: the movements of examples in place of the first row.

    Returns:
      The radius in units of eta C / B, or a little less: every value of the dual objective is a lower bound
      on the squared radius. 0 where no movement is finite.
    """
    finite = [
        movement.vector for movement in tried.movements.values() if np.isfinite(movement.norm)
    ]
    if not finite:
        return 0.0
    # The contributions, less that of the first row. A stored movement is half of such a difference.
    first_row = np.zeros_like(finite[0])
    points = 2 * np.array([first_row, *finite])
    points -= points.mean(axis=0)  # leaves the radius as it is, and loses fewer digits below
    products = points @ points.T
    squares = np.diag(products)
    weights = np.full(len(points), 1 / len(points))
    # At most 2,000 steps, to bound the time: stopping early gives a smaller radius, never one too large.
    for _ in range(2000):
        # The squared distances of the points from their weighted mean, the ball's centre, up to a constant.
        # They are also the gradient of the dual objective, so that weight moves to the farthest point.
        squared_distances = squares - 2 * products @ weights
        direction = -weights
        direction[np.argmax(squared_distances)] += 1
        # Along the direction, the objective after a step t changes by slope t - curvature t^2.
        slope = squared_distances @ direction
        curvature = direction @ products @ direction
        if slope <= 1e-9 or curvature <= 0:  # the maximum is reached, up to rounding
            break
        # The step that maximises the change; at most 1, where all weight is on the farthest point.
        weights = weights + min(1, slope / (2 * curvature)) * direction
    return float(np.sqrt(max(squares @ weights - weights @ products @ weights, 0)))


def _choose_places(rows: int, most: int) -> list[int]:
    """Returns the indices of at most `most` rows of a batch to try examples in, the most telling first.

    They are the batch's ends, its middle, its first rows (a bug at every m-th row, m <= 16, meets one of
    them), and others at random.

    Args:
      rows: the number of rows of the batch.
      most: the largest number of rows to return.
    """
    first = [0, rows - 1, rows // 2, *range(1, _FIRST_ROWS)]
    others = np.random.default_rng(_SEED).permutation(rows).tolist()
    places = dict.fromkeys([*first, *others])  # each once, in this order
    # A batch of fewer than _FIRST_ROWS rows lacks some of the first.
    return [row for row in places if row < rows][:most]


def measure_place(
    probe: StepProbe,
    tried: TriedExamples,
    pair: ExamplePair,
    row: int,
    seed: int = 0,
) -> Movement:
    """Returns half of how far the step moves when a single example in a row's place is exchanged for another.

    Half, since one example leaves and another comes: together they may move the step twice as far as one.

    Args:
      probe: the step.
      tried: holds the examples by name.
      pair: the names of the two examples.
      row: the index of the row of the batch that they take in turn.
      seed: the seed of both calls of the step.

    Raises:
      RefusedError: the step fails.
    """
    with_first = probe.run(
        replace_rows(probe.rows, {row: tried.examples[pair.first].columns}), seed
    )
    with_second = probe.run(
        replace_rows(probe.rows, {row: tried.examples[pair.second].columns}), seed
    )
    return probe.measure((with_first - with_second) / 2, with_first, len(probe.rows[0]))


def replace_rows(rows: Columns, examples: Mapping[int, Columns]) -> Columns:
    """Returns a copy of a batch with other examples in some of its rows.

    Args:
      rows: the batch's columns.
      examples: by the index of the row to replace, the columns of a single example.
    """
    result = []
    for i, column in enumerate(rows):
        replaced = column.copy()
        for row, example in examples.items():
            replaced[row] = example[i][0]
        result.append(replaced)
    return result


def refine_movements(probe: StepProbe, tried: TriedExamples, seeds: range) -> TriedExamples:
    """Measures the examples with the largest movements again, as means over seeds; returns these alone.

    The mean over seeds has a smaller rounding error than a single difference: where the noise is larger than
    the spacing of floating-point numbers, the errors of different seeds are independent.

    Args:
      probe: the step.
      tried: the movements at a single seed.
      seeds: the seeds to average over.
    """
    loudest = sorted(tried.movements, key=lambda name: -tried.movements[name].norm)[:_LOUDEST]
    base = probe.run_mean(probe.rows, seeds)
    movements = {}
    for name in loudest:
        example = tried.examples[name].columns
        if tried.were_added:
            batch = trees.join(probe.rows, example)
            scale = 1.0
        else:
            batch = replace_rows(probe.rows, {0: example})
            scale = 0.5  # an example leaves and another comes: up to twice the movement of one
        difference = scale * (probe.run_mean(batch, seeds) - base)
        movements[name] = probe.measure(difference, base, len(batch[0]), seeds=len(seeds))
    return tried._replace(movements=movements)


def measure_interactions(
    probe: StepProbe,
    tried: TriedExamples,
    seeds: range,
) -> list[Movement] | str:
    """Measures whether two parts of a batch interact.

    The interaction is how far both parts together move the step, less the sum of how far each moves it alone.
    A pair of parts is added to the batch, if the step takes larger batches. Further pairs replace rows of the
    batch. All steps are taken with the same seeds, so that their noise cancels.

    Args:
      probe: the step.
      tried: the examples that the parts are made of, and whether the step takes larger batches.
      seeds: the seeds to average over.

    Returns:
      The interaction of each pair of parts that the step does not refuse, of norm 0 in a correct step up to
      rounding. If there is none, the reason as text: that of the last refusal.
    """
    examples = [example.columns for example in tried.examples.values()]
    results = []
    error = tried.refusal

    # The examples, cut in two parts that are both added to the batch.
    if tried.were_added:
        # Made odd: if the step clips examples two by two, the last of the first part and the first of the
        # second are then clipped together, in a batch of even size.
        half = (len(examples) // 2) | 1
        first = trees.join(*examples[:half])
        second = trees.join(*examples[half:])
        with_both = trees.join(probe.rows, first, second)
        with_first = trees.join(probe.rows, first)
        with_second = trees.join(probe.rows, second)
        try:
            results.append(_measure_interaction(probe, with_both, with_first, with_second, seeds))
        except RefusedError as refused:
            error = f"the step refused a larger batch: {refused}"

    # Pairs of parts that replace rows of the batch.
    try:
        for first_rows, second_rows in _choose_parts(tried, len(probe.rows[0])):
            with_both = replace_rows(probe.rows, first_rows | second_rows)
            with_first = replace_rows(probe.rows, first_rows)
            with_second = replace_rows(probe.rows, second_rows)
            results.append(_measure_interaction(probe, with_both, with_first, with_second, seeds))
    except RefusedError as refused:
        error = f"the step refused a batch with other rows: {refused}"
    return results or error  # the error only where every pair was refused


def _choose_parts(tried: TriedExamples, rows: int) -> list[tuple[dict[int, Columns], ...]]:
    """Chooses pairs of parts of a batch, and the examples that replace their rows.

    There are up to three pairs. Two random halves of the rows show what joins all rows, such as a norm of the
    whole batch. The first two rows show what joins neighbours, such as clipping two by two. Two random
    quarters of the rows, filled with examples of short labels where there are any, show whether the loss is a
    mean over all tokens of the batch. All tokens of a short label but the first are padding. So the other
    rows' tokens count more in such a mean.

    Args:
      tried: the examples.
      rows: the number of rows of the batch.

    Returns:
      For each pair, its two parts: dicts from the index of a row to the columns of its example. Empty for a
      batch of a single row.
    """
    if rows < 2:
        return []
    examples = [example.columns for example in tried.examples.values()]
    short = [example.columns for example in tried.examples.values() if example.is_short]
    order = np.random.default_rng(_SEED).permutation(rows).tolist()

    def assign(chosen: list[int], replacements: list[Columns]) -> dict[int, Columns]:
        """Returns, for each chosen row i, the example that takes its place: replacements[i + 1], cyclically.

        It is not replacements[i]: the first of all examples is row 0 itself, which would then stay as it is.
        """
        return {row: replacements[(row + 1) % len(replacements)] for row in chosen}

    # Two halves, and two neighbouring rows.
    halves = assign(order[: rows // 2], examples), assign(order[rows // 2 :], examples)
    neighbours = assign([0], examples), assign([1], examples)
    parts: list[tuple[dict[int, Columns], ...]] = [halves, neighbours]
    # Two quarters of short labels.
    if short:
        quarter = max(rows // 4, 1)
        first = assign(order[:quarter], short)
        second = assign(order[quarter : 2 * quarter], short)
        parts.append((first, second))
    return parts


def _measure_interaction(
    probe: StepProbe,
    with_both: Columns,
    with_first: Columns,
    with_second: Columns,
    seeds: range,
) -> Movement:
    """Measures how far two parts together move the step, less the sum of how far each moves it alone.

    Args:
      probe: the step.
      with_both: the batch with both parts.
      with_first, with_second: the batch with a single part each.
      seeds: the seeds to average over, the same for all four steps.
    """
    after_first = probe.run_mean(with_first, seeds)
    after_neither = probe.run_mean(probe.rows, seeds)
    # (both - neither) - (first - neither) - (second - neither) = both - first - second + neither
    difference = (
        probe.run_mean(with_both, seeds)
        - after_first
        - probe.run_mean(with_second, seeds)
        + after_neither
    )
    # The measurement needs the parameters after one of the four steps, and the size of its batch, to know how
    # coarsely steps are rounded.
    examples = len(with_first[0])
    return probe.measure(difference, after_first, examples, steps=4, seeds=len(seeds))


def measure_seed_effect(probe: StepProbe, tried: TriedExamples) -> Movement | None:
    """Measures how far the seed changes what exchanging two examples in the first row does to the step.

    The seed draws the noise, but that is the same for both examples and cancels in their difference. Dropout,
    augmentation and noise before the gradient do not cancel.

    Args:
      probe: the step.
      tried: how far each example moves the step, by which two pairs of examples are chosen.

    Returns:
      The change between seeds 0 and 1, 0 in a correct step: of two pairs of examples, that which exceeds its
      tolerance more. None where it cannot be measured.
    """
    # The first row was not tried: no example moves the step, or it refuses other examples there.
    if 0 not in tried.places:
        return None
    movements = tried.movements
    ranked = sorted(movements, key=lambda name: movements[name].norm)
    # The second pair are the examples of median and of least movement. Clipping is least likely to change
    # these, and so to hide what the seed changes.
    quiet = ExamplePair(ranked[len(ranked) // 2], ranked[0])
    results = []
    for pair in (find_opposites(tried), quiet):
        with_first, with_second = [
            replace_rows(probe.rows, {0: tried.examples[name].columns}) for name in pair
        ]
        try:
            first_at_0 = probe.run(with_first, seed=0)
            first_at_1 = probe.run(with_first, seed=1)
            second_at_0 = probe.run(with_second, seed=0)
            second_at_1 = probe.run(with_second, seed=1)
        except RefusedError:
            return None
        # (first - second) at seed 0, less (first - second) at seed 1
        difference = first_at_0 - first_at_1 - second_at_0 + second_at_1
        size = len(probe.rows[0])
        results.append(probe.measure(difference, first_at_0, size, steps=4))
    return max(results, key=lambda movement: movement.norm - movement.tolerance)
