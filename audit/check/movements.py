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
_LOUDEST = 3
_MOST_PLACES = 64
_SECONDS = 6.0  # for all places
_FIRST_ROWS = 16  # that are tried: a bug at every m-th row, m <= 16, meets one of them
_SEED = 20_240_101  # of the rows that are replaced together


class ExamplePair(NamedTuple):
    """Two examples, by name, that move the step as differently as any two do."""

    first: str
    second: str


class TriedExamples(NamedTuple):
    """What examples do to a step.

    Attributes:
      examples: the examples by name.
      movements: how far each moves the step, by its name.
      places: by row of the batch, how far two opposite examples in its place differ, halved.
      refusal: why no example was added, empty where examples were.
      redraws_noise: whether every added example changes all numbers as another draw of the noise does.
    """

    examples: dict[str, Example]
    movements: dict[str, Movement]
    places: dict[int, Movement]
    refusal: str
    redraws_noise: bool

    @property
    def were_added(self) -> bool:
        """Whether movements are those of added examples."""
        return not self.refusal

    def list_all(self) -> dict[str, Movement]:
        """Returns the movements of examples and of places, by what was done."""
        result = {}
        for name, movement in self.movements.items():
            result[name if self.were_added else f"{name}, in place of the first"] = movement
        for row, movement in self.places.items():
            result[f"two examples in place of row {row}"] = movement
        return result


def try_examples(probe: StepProbe, examples: dict[str, Example], seconds: float) -> TriedExamples:
    """Measures how far examples move the step.

    Where the step refuses a larger batch, ignores one more example, or draws another noise then, examples
    take the place of the first row.

    Args:
      probe: the step.
      examples: by name.
      seconds: that a call of the step takes.
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
    """Measures half of how far examples move the step that take the place of its first row.

    Args:
      probe: the step.
      examples: by name.
      refusal: why examples are not added.
      seconds: that a call of the step takes.
    """
    movements, error = _replace_first(probe, examples)
    if error:
        refusal = f"the step refused a batch with another example: {error}"
    tried = TriedExamples(examples, movements, {}, refusal, redraws_noise=False)
    return _try_places(probe, tried, seconds)


def _try_places(probe: StepProbe, tried: TriedExamples, seconds: float) -> TriedExamples:
    """Returns what examples do, with what the most different two of them do in place of several rows."""
    if not is_any_moved(tried.movements):
        return tried
    places: dict[int, Movement] = {}
    pair = find_opposites(tried)
    most = int(np.clip(_SECONDS / (2 * seconds), 4, _MOST_PLACES))
    for row in _choose_places(len(probe.rows[0]), most):
        try:
            places[row] = measure_place(probe, tried, pair, row)
        except RefusedError:
            break
    return tried._replace(places=places)


def _add_each(probe: StepProbe, examples: Mapping[str, Example]) -> tuple[dict[str, Movement], str]:
    """Measures how far each example moves the step that is added at the end of the batch.

    Returns:
      Movements by name, and the last error of a batch that the step refused, empty where it refused none.
    """
    movements = {}
    last_error = ""
    for name, example in examples.items():
        batch = trees.join(probe.rows, example.columns)
        try:
            difference = probe.run(batch, 0) - probe.base
            movements[name] = probe.measure(difference, probe.base, len(batch[0]))
        except RefusedError as error:
            last_error = str(error)
    return movements, last_error


def _replace_first(
    probe: StepProbe, examples: Mapping[str, Example]
) -> tuple[dict[str, Movement], str]:
    """Measures half of how far each example moves the step that takes the place of the batch's first row.

    Returns:
      As `_add_each` does.
    """
    movements = {}
    last_error = ""
    for name, example in examples.items():
        batch = replace_rows(probe.rows, {0: example.columns})
        try:
            difference = (probe.run(batch, 0) - probe.base) / 2
            movements[name] = probe.measure(difference, probe.base, len(batch[0]))
        except RefusedError as error:
            last_error = str(error)
    return movements, last_error


def is_any_moved(movements: Mapping[str, Movement]) -> bool:
    """Returns whether an example changes any number, by however little."""
    return any(np.any(movement.vector != 0) for movement in movements.values())


def _is_noise_redrawn(movements: Mapping[str, Movement], noise_multiplier: float) -> bool:
    """Returns whether added examples share a movement that is the difference of two draws of the noise.

    All batches with an added example then share a draw, so that movements are far from zero but near each
    other, as they would not be for a single parameter and little noise.
    """
    vectors = [movement.vector for movement in movements.values() if np.isfinite(movement.norm)]
    if len(vectors) < 2:
        return False
    shared = np.mean(vectors, axis=0)
    typical_square = float(np.median(shared**2) / 0.455)  # a normal law's median square
    variance = 2 * noise_multiplier**2
    least = min(np.linalg.norm(vector) for vector in vectors)
    spread = max(np.linalg.norm(vector - shared) for vector in vectors)
    is_like_noise = shared.size >= 4 and 0.25 * variance < typical_square < 4 * variance
    # an example of a correct step moves it by 1 at most, so that a shared movement has at most that length
    return bool(is_like_noise and least > 1.05 and np.linalg.norm(shared) > 1.05 * spread)


def find_opposites(tried: TriedExamples) -> ExamplePair:
    """Returns the two examples whose movements differ most."""
    names = []
    vectors = []
    for name, movement in tried.movements.items():
        if np.isfinite(movement.norm):
            names.append(name)
            vectors.append(movement.vector)
    matrix = np.array(vectors)
    products = matrix @ matrix.T
    squares = np.diag(products)
    distances = squares[:, None] + squares - 2 * products
    first, second = np.unravel_index(int(np.argmax(distances)), distances.shape)
    return ExamplePair(names[first], names[second])


def compute_enclosing_radius(tried: TriedExamples) -> float:
    """Returns the radius of the smallest ball that holds what the examples do in place of the first row.

    Clipped gradients lie in a ball of radius C around zero. The first row's own gradient, and so the ball's
    centre among the movements, may be unknown; its radius is not. Half of the largest distance says less:
    of three gradients at angles of 120 degrees it is 0.87 C.

    Returns:
      The radius in units of eta C / B, or a little less: the largest value of the dual problem that 2,000
      Frank-Wolfe steps come to.
    """
    finite = [
        movement.vector for movement in tried.movements.values() if np.isfinite(movement.norm)
    ]
    if not finite:
        return 0.0
    first_row = np.zeros_like(finite[0])
    points = 2 * np.array([first_row, *finite])  # movements count by half
    points -= points.mean(axis=0)
    products = points @ points.T
    squares = np.diag(products)
    weights = np.full(len(points), 1 / len(points))
    for _ in range(2000):
        distances = (
            squares - 2 * products @ weights
        )  # squared, from the ball's centre, up to a constant
        direction = -weights
        direction[np.argmax(distances)] += 1
        slope = distances @ direction
        curvature = direction @ products @ direction
        if slope <= 1e-9 or curvature <= 0:
            break
        weights = weights + min(1, slope / (2 * curvature)) * direction
    return float(np.sqrt(max(squares @ weights - weights @ products @ weights, 0)))


def _choose_places(rows: int, most: int) -> list[int]:
    """Returns rows of a batch to be replaced, at most `most`, the most telling first.

    They are the batch's ends, its middle, its first rows (a bug at every m-th row, m <= 16, meets one of
    them), and others at random.
    """
    first = [0, rows - 1, rows // 2, *range(1, _FIRST_ROWS)]
    others = np.random.default_rng(_SEED).permutation(rows).tolist()
    places = dict.fromkeys([*first, *others])
    return [row for row in places if row < rows][:most]


def measure_place(
    probe: StepProbe,
    tried: TriedExamples,
    pair: ExamplePair,
    row: int,
    seed: int = 0,
) -> Movement:
    """Returns half of what two examples differ in place of a row of the batch.

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
    """Returns a batch with examples, of a single row each, in place of some of its rows."""
    result = []
    for i, column in enumerate(rows):
        replaced = column.copy()
        for row, example in examples.items():
            replaced[row] = example[i][0]
        result.append(replaced)
    return result


def refine_movements(probe: StepProbe, tried: TriedExamples, seeds: range) -> TriedExamples:
    """Returns the movements of the loudest examples alone, as means over seeds.

    Beside noise that exceeds the distance of two numbers, rounding errors of different seeds are independent,
    so that their mean is smaller than each.
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
            scale = 0.5
        difference = scale * (probe.run_mean(batch, seeds) - base)
        movements[name] = probe.measure(difference, base, len(batch[0]), seeds=len(seeds))
    return tried._replace(movements=movements)


def measure_interactions(
    probe: StepProbe,
    tried: TriedExamples,
    seeds: range,
) -> list[Movement] | str:
    """Measures whether two parts of a batch interact: what both do, less the sum of what each does alone.

    One pair of parts is added to the batch, if the step takes larger batches; others replace rows of it.

    Args:
      probe: the step.
      tried: what examples did.
      seeds: whose steps are averaged.

    Returns:
      A movement for each pair of parts, 0 in a correct step; or, if the step refuses every pair, why.
    """
    examples = [example.columns for example in tried.examples.values()]
    results = []
    error = tried.refusal
    if tried.were_added:
        half = len(examples) // 2 | 1  # odd, so that examples that are clipped in pairs show
        first = trees.join(*examples[:half])
        second = trees.join(*examples[half:])
        both = trees.join(probe.rows, first, second)
        parts = trees.join(probe.rows, first), trees.join(probe.rows, second)
        try:
            results.append(_measure_interaction(probe, both, *parts, seeds))
        except RefusedError as refused:
            error = f"the step refused a larger batch: {refused}"

    try:
        for first_rows, second_rows in _choose_parts(tried, len(probe.rows[0])):
            both = replace_rows(probe.rows, first_rows | second_rows)
            first = replace_rows(probe.rows, first_rows)
            second = replace_rows(probe.rows, second_rows)
            results.append(_measure_interaction(probe, both, first, second, seeds))
    except RefusedError as refused:
        error = f"the step refused a batch with other rows: {refused}"
    return results or error


def _choose_parts(tried: TriedExamples, rows: int) -> list[tuple[dict[int, Columns], ...]]:
    """Chooses pairs of parts of a batch, and the examples that replace their rows.

    Args:
      tried: what examples did.
      rows: of the batch.

    Returns:
      For each pair, two dicts from rows to examples: every row at random in one of two, two neighbours, and
      where there are short examples, these in two quarters of the rows, as what they do to a mean over all
      tokens of a batch is seen in the other half.
    """
    if rows < 2:
        return []
    examples = [example.columns for example in tried.examples.values()]
    short = [example.columns for example in tried.examples.values() if example.is_short]
    order = np.random.default_rng(_SEED).permutation(rows).tolist()

    def assign(chosen: list[int], replacements: list[Columns], shift: int) -> dict[int, Columns]:
        """Returns an example for each chosen row."""
        return {row: replacements[(row + shift) % len(replacements)] for row in chosen}

    halves = assign(order[: rows // 2], examples, 0), assign(order[rows // 2 :], examples, 1)
    neighbours = assign([0], examples, 0), assign([1], examples, 1)
    parts: list[tuple[dict[int, Columns], ...]] = [halves, neighbours]
    if short:
        quarter = max(rows // 4, 1)
        first = assign(order[:quarter], short, 0)
        second = assign(order[quarter : 2 * quarter], short, 0)
        parts.append((first, second))
    return parts


def _measure_interaction(
    probe: StepProbe,
    both: Columns,
    first: Columns,
    second: Columns,
    seeds: range,
) -> Movement:
    """Measures what two parts together do beyond the sum of what each does alone.

    Args:
      probe: the step.
      both, first, second: the batch with both parts and with each.
      seeds: over which steps are averaged.
    """
    after_first = probe.run_mean(first, seeds)
    neither = probe.run_mean(probe.rows, seeds)
    difference = probe.run_mean(both, seeds) - after_first - probe.run_mean(second, seeds) + neither
    return probe.measure(difference, after_first, len(first[0]), steps=4, seeds=len(seeds))


def measure_seed_effect(probe: StepProbe, tried: TriedExamples) -> Movement | None:
    """Measures how far the seed changes what examples in place of the first row do.

    Noise alone does not change it; dropout, augmentation and noise before the gradient do.

    Returns:
      The largest difference between two seeds, 0 in a correct step; None where it cannot be measured.
    """
    if 0 not in tried.places:
        return None
    movements = tried.movements
    ranked = sorted(movements, key=lambda name: movements[name].norm)
    quiet = ExamplePair(ranked[len(ranked) // 2], ranked[0])  # unclipped, where any is
    results = []
    for pair in (find_opposites(tried), quiet):
        rows = [replace_rows(probe.rows, {0: tried.examples[name].columns}) for name in pair]
        try:
            outcomes = [probe.run(batch, seed) for batch in rows for seed in (0, 1)]
        except RefusedError:
            return None
        difference = outcomes[0] - outcomes[1] - outcomes[2] + outcomes[3]
        size = len(probe.rows[0])
        results.append(probe.measure(difference, outcomes[0], size, steps=4))
    return max(results, key=lambda movement: movement.norm - movement.tolerance)
