"""How far examples move a step: added to its batch, in place of its rows, and several of them together.

Movements are in units of eta C / B. An example in place of a row counts half of the difference, since one
example leaves and another comes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from audit.check import trees
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Example, Vector

Parts = tuple[dict[int, Columns], dict[int, Columns]]  # of a batch, each the examples in some rows
_MAX_PLACES = 64  # rows of the batch in which examples are tried
_PLACES_SECONDS = 6.0  # for trying these rows
_FIRST_ROWS = 16  # rows tried first: a bug at every m-th row, m <= 16, meets one of them
_SEED = 20_240_101  # of the random choice of rows
_PARALLEL = 0.98  # the cosine from which two vectors have the same direction


class TriedExamples(NamedTuple):
    """How far examples move a step.

    Attributes:
      examples: the examples by name.
      movements: by the example's name, how far it moves the step: added to the batch, or in place of its
        first row (then halved).
      places: by row, half of how far the step moves when the two most different examples are exchanged there.
      refusal: why examples replaced the first row; empty if they were added.
      redraws_noise: whether a batch with an added example gets another draw of the noise.
    """

    examples: dict[str, Example]
    movements: dict[str, Movement]
    places: dict[int, Movement]
    refusal: str = ""
    redraws_noise: bool = False

    @property
    def were_added(self) -> bool:
        """Whether examples were added to the batch; if not, they replaced its first row."""
        return not self.refusal

    @property
    def tolerance(self) -> float:
        """The largest tolerance of a movement; 0 if no example could be tried."""
        return max((movement.tolerance for movement in self.movements.values()), default=0.0)

    def list_all(self) -> dict[str, Movement]:
        """Returns `movements` and `places` as one mapping, by a description of what was done."""
        suffix = "" if self.were_added else ", in place of the first"
        described = {f"{name}{suffix}": movement for name, movement in self.movements.items()}
        for row, movement in self.places.items():
            described[f"two examples in place of row {row}"] = movement
        return described

    def list_norms(self) -> Vector:
        """Returns the finite norms of the examples' movements, the largest first."""
        norms = np.array([movement.norm for movement in self.movements.values()])
        return np.sort(norms[np.isfinite(norms)])[::-1]

    def list_layer_norms(self) -> Vector:
        """Returns the norms within each layer, (examples, layers)."""
        return np.array([movement.layer_norms for movement in self.movements.values()])

    def is_any_moved(self) -> bool:
        """Returns whether some example changes some parameter."""
        return any(np.any(movement.vector != 0) for movement in self.list_all().values())


class SeedEffect(NamedTuple):
    """How another seed changes what the exchange of two examples does to the step.

    Attributes:
      movement: the change, 0 in a correct step up to rounding.
      scales_noise: whether the change is a multiple of the noise in every layer, as if the examples decide
        how large the noise is.
    """

    movement: Movement
    scales_noise: bool


def try_examples(probe: StepProbe, examples: dict[str, Example], seconds: float) -> TriedExamples:
    """Returns how far examples move the step when they are added to its batch.

    If the step refuses a larger batch, ignores one more example, or draws other noise for a larger batch,
    each example replaces the batch's first row instead. Two examples are also tried in several other rows.

    Args:
      probe: the step.
      examples: the examples by name.
      seconds: how long a call of the step takes, which limits the number of rows.
    """
    added = _measure_each(probe, examples, is_added=True)
    if added.refusal:
        refusal = f"the step refused a batch with one more example: {added.refusal}"
    elif not added.is_any_moved():
        refusal = "the step ignores one more example"
    elif _is_noise_redrawn(added, probe.settings.noise_multiplier):
        refusal = "another size of batch changes its noise"
        return replace_examples(probe, examples, refusal, seconds)._replace(redraws_noise=True)
    else:
        return _try_places(probe, added, seconds)
    return replace_examples(probe, examples, refusal, seconds)


def replace_examples(
    probe: StepProbe, examples: dict[str, Example], refusal: str, seconds: float
) -> TriedExamples:
    """Returns how far the step moves when examples replace the batch's first row, and two of them other rows.

    Args:
      probe: the step.
      examples: the examples by name.
      refusal: why examples are not added; if they cannot replace a row either, that reason takes its place.
      seconds: how long a call of the step takes.
    """
    replaced = _measure_each(probe, examples, is_added=False)
    if replaced.refusal:
        refusal = f"the step refused a batch with another example: {replaced.refusal}"
    return _try_places(probe, replaced._replace(refusal=refusal), seconds)


def _measure_each(probe: StepProbe, examples: dict[str, Example], is_added: bool) -> TriedExamples:
    """Returns the examples' movements, without places; `refusal` is the last error of a refused batch."""
    movements = {}
    last_error = ""
    for name, example in examples.items():
        if is_added:
            batch = trees.join(probe.rows, example.columns)
        else:
            batch = replace_rows(probe.rows, {0: example.columns})
        try:
            # Seed 0 is that of `base`: the noise of both steps is the same and cancels.
            difference = probe.run(batch, 0) - probe.base
        except RefusedError as error:
            last_error = str(error)
            continue
        share = 1.0 if is_added else 0.5
        movements[name] = probe.measure(share * difference, probe.base, len(batch[0]))
    return TriedExamples(examples, movements, {}, last_error)


def _try_places(probe: StepProbe, tried: TriedExamples, seconds: float) -> TriedExamples:
    """Returns `tried` with the movements of its two most different examples in several rows of the batch."""
    if not tried.is_any_moved() or not tried.list_norms().size:
        return tried
    rows = len(probe.rows[0])
    # As many rows as time allows, but four at least: both ends, the middle and the second row.
    count = int(np.clip(_PLACES_SECONDS / (2 * seconds), 4, _MAX_PLACES))
    random_rows = np.random.default_rng(_SEED).permutation(rows).tolist()
    ranked = dict.fromkeys([0, rows - 1, rows // 2, *range(1, _FIRST_ROWS), *random_rows])
    pair = find_opposites(tried)
    places = {}
    for row in [row for row in ranked if row < rows][:count]:
        try:
            with_first, with_second = [
                probe.run(replace_rows(probe.rows, {row: tried.examples[name].columns}), 0)
                for name in pair
            ]
        except RefusedError:
            break
        places[row] = probe.measure((with_first - with_second) / 2, with_first, rows)
    return tried._replace(places=places)


def _is_noise_redrawn(tried: TriedExamples, noise_multiplier: float) -> bool:
    """Returns whether added examples share a movement that looks like the difference of two draws of noise.

    Some steps draw other noise for a larger batch, though the seed is the same. All movements then share the
    difference of two draws, whose numbers have variance 2 sigma^2. At least four numbers are needed to tell.
    """
    vectors = [one.vector for one in tried.movements.values() if np.isfinite(one.norm)]
    if len(vectors) < 2:
        return False
    shared = np.mean(vectors, axis=0)
    # The median of squares, since examples may move a few numbers far; 0.455 is that of a standard normal.
    square = float(np.median(shared**2) / 0.455)
    is_like_noise = shared.size >= 4 and 0.3 < square / max(2 * noise_multiplier**2, 1e-300) < 3
    shortest = min(np.linalg.norm(vector) for vector in vectors)
    spread = max(np.linalg.norm(vector - shared) for vector in vectors)
    return bool(is_like_noise and shortest > 1.05 and np.linalg.norm(shared) > 1.05 * spread)


def find_opposites(tried: TriedExamples) -> tuple[str, str]:
    """Returns the names of the two examples whose finite movements are farthest apart."""
    names = [name for name, movement in tried.movements.items() if np.isfinite(movement.norm)]
    vectors = np.array([tried.movements[name].vector for name in names])
    products = vectors @ vectors.T
    squares = np.diag(products)
    distances = squares[:, None] + squares - 2 * products
    first, second = np.unravel_index(int(np.argmax(distances)), distances.shape)
    return names[first], names[second]


def compute_reach(tried: TriedExamples) -> float:
    """Returns how far some example is measured to move the step, in eta C / B.

    Examples in place of a row show differences of contributions only. Clipped contributions lie in a ball of
    radius C, so the radius of the smallest ball around them counts. The result is a lower bound on it, by
    Frank-Wolfe steps on the dual problem (Yildirim, 2008).
    """
    norms = [movement.norm for movement in tried.list_all().values()]
    largest = max((norm for norm in norms if np.isfinite(norm)), default=0.0)
    finite = [one.vector for one in tried.movements.values() if np.isfinite(one.norm)]
    if tried.were_added or not finite:
        return largest
    # Contributions less that of the first row. A stored movement is half of such a difference.
    points = 2 * np.array([np.zeros_like(finite[0]), *finite])
    points = points - points.mean(axis=0)
    products = points @ points.T
    squares = np.diag(products)
    weights = np.full(len(points), 1 / len(points))
    for i in range(1, 1000):
        farthest = np.argmax(squares - 2 * products @ weights)
        weights = weights * (1 - 1 / (i + 1))
        weights[farthest] += 1 / (i + 1)
    variance = squares @ weights - weights @ products @ weights
    return max(largest, float(np.sqrt(max(variance, 0))))


def replace_rows(rows: Columns, examples: Mapping[int, Columns]) -> Columns:
    """Returns a copy of a batch with examples, each the columns of one row, in place of some rows."""
    replaced = [column.copy() for column in rows]
    for row, example in examples.items():
        for column, values in zip(replaced, example, strict=True):
            column[row] = values[0]
    return replaced


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> list[Movement] | str:
    """Returns how far two parts of a batch move the step together, less the sum of what each does by itself.

    A pair of parts is added to the batch, if the step takes larger batches. Others replace rows. The noise
    cancels. A correct step has interactions of 0 up to rounding. Returns the reason if the step refuses every
    pair.
    """
    rows = probe.rows
    triples = []  # batches with both parts, with the first and with the second
    if tried.were_added:
        examples = [example.columns for example in tried.examples.values()]
        # An odd number: if a step clips examples two by two, it clips the last of the first part together
        # with the first of the second.
        half = (len(examples) // 2) | 1
        first_part = trees.join(*examples[:half])
        second_part = trees.join(*examples[half:])
        both = trees.join(rows, first_part, second_part)
        triples.append((both, trees.join(rows, first_part), trees.join(rows, second_part)))
    for first_rows, second_rows in choose_parts(tried, len(rows[0])):
        both = replace_rows(rows, first_rows | second_rows)
        triples.append((both, replace_rows(rows, first_rows), replace_rows(rows, second_rows)))
    measured = []
    error = tried.refusal
    for triple in triples:
        try:
            after_both, after_first, after_second = [probe.run(batch, 0) for batch in triple]
        except RefusedError as refused:
            error = f"the step refused a changed batch: {refused}"
            continue
        difference = after_both - after_first - after_second + probe.base
        size = len(triple[1][0])
        measured.append(probe.measure(difference, after_first, size, steps=4))
    return measured or error


def choose_parts(tried: TriedExamples, rows: int) -> list[Parts]:
    """Returns pairs of parts of a batch, each a dict from a row to the example that takes its place.

    Two random halves show what joins all rows, such as a norm of the whole batch. The first two rows show
    what joins neighbours. Two quarters filled with short labels show a mean over all tokens of the batch.
    """
    if rows < 2:
        return []
    examples = [example.columns for example in tried.examples.values()]
    short = [example.columns for example in tried.examples.values() if example.is_short]
    order = np.random.default_rng(_SEED).permutation(rows).tolist()

    def assign(chosen: list[int], replacements: list[Columns]) -> dict[int, Columns]:
        # Not replacements[row]: the first of all examples is row 0 itself, which would stay as it is.
        return {row: replacements[(row + 1) % len(replacements)] for row in chosen}

    pairs = [(order[: rows // 2], order[rows // 2 :]), ([0], [1])]
    parts = []
    for first, second in pairs:
        parts.append((assign(first, examples), assign(second, examples)))
    if short:
        quarter = max(rows // 4, 1)
        quarters = order[:quarter], order[quarter : 2 * quarter]
        parts.append((assign(quarters[0], short), assign(quarters[1], short)))
    return parts


def measure_seed_effect(probe: StepProbe, tried: TriedExamples) -> SeedEffect | None:
    """Returns how the seed changes what the exchange of two examples in the first row does to the step.

    The noise is the same for both examples and cancels. What does not cancel: dropout, augmentation, noise
    whose size depends on the examples, and whatever happens after the noise, such as rounding or clamping.

    Returns:
      The change between seeds 0 and 1. Two pairs of examples are tried, and the larger excess over the
      tolerance counts. None if it cannot be measured.
    """
    if 0 not in tried.places:
        return None
    ranked = sorted(tried.movements, key=lambda name: tried.movements[name].norm)
    # The second pair moves the step less, so clipping is less likely to hide what the seed changes.
    quiet = (ranked[len(ranked) // 2], ranked[0])
    effects = []
    for pair in (find_opposites(tried), quiet):
        batches = [replace_rows(probe.rows, {0: tried.examples[name].columns}) for name in pair]
        try:
            first, second = [[probe.run(rows, seed) for seed in (0, 1)] for rows in batches]
        except RefusedError:
            return None
        noise = second[0] - second[1]
        difference = first[0] - first[1] - noise
        movement = probe.measure(difference, first[0], len(probe.rows[0]), steps=4)
        effects.append(SeedEffect(movement, _is_parallel(probe, difference, noise)))
    return max(effects, key=lambda effect: effect.movement.norm - effect.movement.tolerance)


def _is_parallel(probe: StepProbe, difference: Vector, noise: Vector) -> bool:
    """Returns whether two vectors are parallel in each layer in which neither is 0."""
    products = np.bincount(probe.layer, difference * noise)
    squares = np.bincount(probe.layer, difference**2) * np.bincount(probe.layer, noise**2)
    is_seen = squares > 0
    cosines = np.abs(products[is_seen]) / np.sqrt(squares[is_seen])
    return bool(cosines.size and np.min(cosines) > _PARALLEL)
