"""How far examples move a step, and what stops them: measured once, for the table of causes.

Movements are in units of eta C / B. An example in place of a row counts half of the difference, since one
example leaves and another comes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from audit.check import examples
from audit.check.examples import Example, replace_rows
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Vector

COARSE = 0.05  # a larger tolerance tells no movement of C from a smaller one
_SAME = 3e-3  # the relative difference up to which norms count as the same
_SAME_DIRECTION = 0.99  # the absolute cosine from which two movements count as one direction
_PARALLEL = 0.98  # the absolute cosine from which the noise and what a seed changes are parallel
_MAX_PLACES = 64  # rows of the batch in which examples are tried
_PLACES_SECONDS = 6.0  # for trying these rows
_FIRST_ROWS = 16  # rows tried first: a bug at every m-th row, m <= 16, meets one of them
_SEED = 20_240_101  # of the random choice of rows


@dataclass(frozen=True)
class TriedExamples:
    """How far examples move a step.

    Attributes:
      probe: the step.
      examples: the examples by name.
      movements: by the example's name, how far it moves the step: added to the batch, or in place of its
        first row (then halved).
      places: by row, half of how far the step moves when the two most different examples are exchanged there.
      refusal: why examples replaced the first row; empty if they were added.
    """

    probe: StepProbe
    examples: dict[str, Example]
    movements: dict[str, Movement]
    places: dict[int, Movement]
    refusal: str = ""

    @cached_property
    def tolerance(self) -> float:
        """The largest tolerance of a movement; 0 if no example could be tried."""
        return max((movement.tolerance for movement in self.movements.values()), default=0.0)

    @cached_property
    def described(self) -> dict[str, Movement]:
        """All movements as one mapping, by a description of what was done."""
        suffix = ", in place of the first" if self.refusal else ""
        described = {f"{name}{suffix}": movement for name, movement in self.movements.items()}
        for row, movement in self.places.items():
            described[f"two examples in place of row {row}"] = movement
        return described

    @cached_property
    def norms(self) -> Vector:
        """The finite norms of the examples' movements, the largest first."""
        norms = np.array([movement.norm for movement in self.movements.values()])
        return np.sort(norms[np.isfinite(norms)])[::-1]

    @cached_property
    def vectors(self) -> Vector:
        """The examples' finite movements, (examples, p)."""
        finite = [one.vector for one in self.movements.values() if np.isfinite(one.norm)]
        return np.array(finite).reshape(len(finite), self.probe.start.size)

    @cached_property
    def layer_norms(self) -> Vector:
        """The norms within each layer, (examples, layers)."""
        return np.array([movement.layer_norms for movement in self.movements.values()])

    @cached_property
    def is_any_moved(self) -> bool:
        """Whether some example changes some parameter."""
        return any(np.any(movement.vector != 0) for movement in self.described.values())

    @cached_property
    def violations(self) -> dict[str, Movement]:
        """The movements that exceed C by more than rounding explains, the largest first; NaN does too."""
        violations = {name: one for name, one in self.described.items() if not one.excess <= 1}
        return dict(sorted(violations.items(), key=lambda item: -item[1].norm))

    @cached_property
    def plateau(self) -> float:
        """The norm at which the four largest movements of added examples stop; 0 if their norms differ.

        It is 0 for examples in place of a row: differences do not stop at one norm even if examples are
        clipped.
        """
        norms = self.norms
        if self.refusal or len(norms) < 4 or norms[0] > norms[3] * (1 + _SAME):
            return 0.0
        return float(norms[0])

    @cached_property
    def reach(self) -> float:
        """How far some example is measured to move the step.

        Examples in place of a row show differences of contributions only. Clipped contributions lie in a ball
        of radius C, so the radius of the smallest ball around them counts (Badoiu and Clarkson, 2003).
        """
        norms = [one.norm for one in self.described.values() if np.isfinite(one.norm)]
        largest = max(norms, default=0.0)
        if not self.refusal or not len(self.vectors):
            return largest
        # Contributions less that of the first row, of which a movement is half, in as few coordinates.
        points = 2 * np.vstack([np.zeros_like(self.vectors[0]), self.vectors])
        points = np.transpose(np.linalg.qr(points.T, mode="r"))
        center = np.mean(points, axis=0)
        for i in range(2, 1000):
            farthest = np.argmax(np.linalg.norm(points - center, axis=1))
            center = center + (points[farthest] - center) / i
        return max(largest, float(np.max(np.linalg.norm(points - center, axis=1))))

    @cached_property
    def stops_in_several_directions(self) -> bool:
        """Whether examples that stop at the plateau move the step in more than one direction.

        Examples with saturated features may have equal gradients, and so equal norms without clipping.
        """
        if not self.plateau:
            return False
        norms = np.linalg.norm(self.vectors, axis=1)
        stops = np.abs(norms - self.plateau) < 1e-3 * self.plateau + self.tolerance
        directions = self.vectors[stops] / norms[stops, None]
        return bool(np.min(np.abs(directions @ directions[0]), initial=1) < _SAME_DIRECTION)

    @cached_property
    def is_stopped(self) -> bool:
        """Whether the plateau of added examples is seen to be the work of clipping.

        Clipping stops them there at other parameters too, where gradients have other sizes of their own.
        """
        if not self.plateau or self.tolerance > COARSE:
            return False
        moves = np.random.default_rng(0).normal(size=self.probe.start.size)
        moves = moves * self.probe.is_trained  # frozen ones may have to be positive
        try:
            elsewhere = self.probe.begin_at(self.probe.start + moves)
        except RefusedError:
            return False
        plateau = _measure_each(elsewhere, self.examples, is_added=True).plateau
        return abs(plateau / self.plateau - 1) < _SAME + self.tolerance

    @property
    def is_clipping_seen(self) -> bool:
        """Whether clipping, rather than the gradients' own size, stops the examples.

        It does if one moves the step by nearly C: 0.985 C added, 0.9 C in place of a row.
        """
        least = 0.9 if self.refusal else 0.985
        return self.reach >= least or self.is_stopped


class SeedEffect(NamedTuple):
    """How another seed changes what the exchange of two examples does to the step.

    Attributes:
      movement: the change, 0 in a correct step up to rounding.
      scales_noise: whether the change is a multiple of the noise in every layer, as if the examples decide
        how large the noise is.
    """

    movement: Movement
    scales_noise: bool


def try_examples(
    probe: StepProbe, tried_examples: dict[str, Example], seconds: float
) -> TriedExamples:
    """Returns how far examples move the step when they are added to its batch.

    If the step refuses a larger batch, ignores one more example,
    each example replaces the batch's first row instead. Two examples are also tried in several other rows.

    Args:
      probe: the step.
      tried_examples: the examples by name.
      seconds: how long a call of the step takes, which limits the number of rows.
    """
    tried = _measure_each(probe, tried_examples, is_added=True)
    if tried.refusal or not tried.is_any_moved:
        refusal = "the step ignores one more example"
        if tried.refusal:
            refusal = f"the step refused a batch with one more example: {tried.refusal}"
        tried = _measure_each(probe, tried_examples, is_added=False)
        if tried.refusal:
            refusal = f"the step refused a batch with another example: {tried.refusal}"
        tried = replace(tried, refusal=refusal)
    if not tried.is_any_moved or not tried.norms.size:
        return tried

    # As many rows as time allows, but four at least: both ends, the middle and the second row.
    rows = len(probe.rows[0])
    count = int(np.clip(_PLACES_SECONDS / (2 * seconds), 4, _MAX_PLACES))
    random_rows = np.random.default_rng(_SEED).permutation(rows).tolist()
    ranked = dict.fromkeys([0, rows - 1, rows // 2, *range(1, _FIRST_ROWS), *random_rows])
    places = {}
    for row in [row for row in ranked if row < rows][:count]:
        try:
            first, second = [run_in_place(tried, name, row, 0) for name in find_opposites(tried)]
        except RefusedError:
            break
        places[row] = probe.measure((first - second) / 2, first, probe.rows)
    return replace(tried, places=places)


def _measure_each(
    probe: StepProbe, tried_examples: dict[str, Example], is_added: bool
) -> TriedExamples:
    """Returns the examples' movements, without places; `refusal` is the last error of a refused batch."""
    movements = {}
    refusal = ""
    for name, example in tried_examples.items():
        batch = replace_rows(probe.rows, {0: example.columns})
        share = 0.5
        if is_added:
            batch = examples.join(probe.rows, example.columns)
            share = 1.0
        try:
            # Seed 0 is that of `base`: the noise of both steps is the same and cancels.
            difference = probe.run(batch, 0) - probe.base
        except RefusedError as error:
            refusal = str(error)
            continue
        movements[name] = probe.measure(share * difference, probe.base, batch)
    return TriedExamples(probe, tried_examples, movements, {}, refusal)


def run_in_place(tried: TriedExamples, name: str, row: int, seed: int) -> Vector:
    """Returns the parameters (p,) after a step with an example, by its name, in place of a row."""
    rows = replace_rows(tried.probe.rows, {row: tried.examples[name].columns})
    return tried.probe.run(rows, seed)


def find_opposites(tried: TriedExamples) -> tuple[str, str]:
    """Returns the names of the example that moves the step farthest, and of one far from it."""
    names = [name for name, movement in tried.movements.items() if np.isfinite(movement.norm)]
    first = np.argmax(np.linalg.norm(tried.vectors, axis=1))
    second = np.argmax(np.linalg.norm(tried.vectors - tried.vectors[first], axis=1))
    return names[first], names[second]


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> Movement | str:
    """Returns how far two parts of a batch move the step together, less the sum of what each does by itself.

    A pair of parts is added to the batch, if the step takes larger batches. Others replace rows. The noise
    cancels. A correct step has interactions of 0 up to rounding; the pair that exceeds its tolerance most
    counts. Returns the reason if the step refuses every pair.
    """
    rows = probe.rows
    columns = [example.columns for example in tried.examples.values()]
    triples = []  # batches with both parts, with the first and with the second
    if not tried.refusal:
        # An odd number: if a step clips examples two by two, it clips the last of the first part together
        # with the first of the second.
        half = (len(columns) // 2) | 1
        pair = examples.join(*columns[:half]), examples.join(*columns[half:])
        triples.append([examples.join(rows, *parts) for parts in (pair, pair[:1], pair[1:])])
    for first, second in choose_parts(tried.examples, len(rows[0])):
        triples.append([replace_rows(rows, part) for part in (first | second, first, second)])
    measured = []
    error = tried.refusal
    for triple in triples:
        try:
            both, first_only, second_only = [probe.run(batch, 0) for batch in triple]
        except RefusedError as refused:
            error = f"the step refused a changed batch: {refused}"
            continue
        difference = both - first_only - second_only + probe.base
        measured.append(probe.measure(difference, first_only, triple[1], steps=4))
    return max(measured, key=lambda movement: movement.excess) if measured else error


Part = dict[int, Columns]  # of a batch: the example that takes the place of a row


def choose_parts(tried_examples: dict[str, Example], rows: int) -> Iterator[tuple[Part, Part]]:
    """Yields pairs of parts of a batch.

    Two random halves show what joins all rows, such as a norm of the whole batch. The first two rows show
    what joins neighbours. Two quarters filled with short labels show a mean over all tokens of the batch.
    """
    order = np.random.default_rng(_SEED).permutation(rows).tolist()
    columns = [example.columns for example in tried_examples.values()]
    short = [example.columns for example in tried_examples.values() if example.is_short]
    half = rows // 2
    quarter = max(rows // 4, 1)
    pairs = [
        (order[:half], order[half:], columns),
        ([0], [1], columns),
        (order[:quarter], order[quarter : 2 * quarter], short),
    ]
    for first, second, choice in pairs:
        if rows > 1 and choice:
            # Not choice[row]: the first of all examples is row 0 itself, which would stay as it is.
            parts = {row: choice[(row + 1) % len(choice)] for row in first + second}
            yield {row: parts[row] for row in first}, {row: parts[row] for row in second}


def measure_seed_effect(tried: TriedExamples) -> SeedEffect | None:
    """Returns how the seed changes what the exchange of two examples in the first row does to the step.

    The noise is the same for both examples and cancels. What does not cancel: dropout, augmentation, noise
    whose size depends on the examples, and whatever happens after the noise, such as rounding or clamping.

    Returns:
      The change between seeds 0 and 1. Two pairs of examples are tried, and the larger excess over the
      tolerance counts. None if it cannot be measured.
    """
    if 0 not in tried.places:
        return None
    probe = tried.probe
    ranked = sorted(tried.movements, key=lambda name: tried.movements[name].norm)
    # The second pair moves the step less, so clipping is less likely to hide what the seed changes.
    pairs = find_opposites(tried), (ranked[len(ranked) // 2], ranked[0])
    effects = []
    for pair in pairs:
        try:
            first, second = [[run_in_place(tried, one, 0, seed) for seed in (0, 1)] for one in pair]
        except RefusedError:
            return None
        noise = second[0] - second[1]
        difference = first[0] - first[1] - noise
        movement = probe.measure(difference, first[0], probe.rows, steps=4)
        products = np.abs(probe.sum_layers(difference * noise))
        lengths = np.sqrt(probe.sum_layers(difference**2) * probe.sum_layers(noise**2))
        is_seen = lengths > 0
        is_parallel = np.all(products[is_seen] > _PARALLEL * lengths[is_seen])
        effects.append(SeedEffect(movement, bool(np.any(is_seen) and is_parallel)))
    return max(effects, key=lambda effect: effect.movement.excess)
