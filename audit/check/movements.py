"""How far examples move a step, and whether clipping stops them.

Movements are in units of eta C / B. An example that replaces a row counts half of the difference, since one
example leaves and another comes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import numpy as np

from audit.check import examples
from audit.check.examples import Example, replace_rows
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Vector

COARSE = (
    0.05  # a larger tolerance hides the difference between a movement of C and a smaller movement
)
_SAME = 3e-3  # the relative difference up to which norms count as the same
_PARALLEL = 0.98  # the absolute cosine above which a seed's effect is parallel to the noise
_MAX_PLACES = 64  # rows of the batch in which examples are tried
_PLACES_SECONDS = 6.0  # for trying these rows
_FIRST_ROWS = 16  # rows tried first: a bug at every m-th row, m <= 16, affects one of them
_SEED = 20_240_101  # of the random choice of rows
_BALL_STEPS = 1000


@dataclass(frozen=True)
class TriedExamples:
    """How far examples move a step.

    Attributes:
      probe: the step.
      examples: the examples by name.
      movements: by the example's name, how far it moves the step: added to the batch, or replacing its first
        row (then halved).
      places: by row, half of how far the step moves if the two most different examples are exchanged there.
      refusal: the reason why examples replaced the first row; empty if they were added.
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
        """All movements, by a description of the change."""
        described = dict(self.movements)
        for row, movement in self.places.items():
            described[f"two examples in place of row {row}"] = movement
        return described

    @cached_property
    def finite(self) -> dict[str, Movement]:
        """The examples' movements that are finite, the largest first."""
        finite = [item for item in self.movements.items() if item[1].norm < np.inf]
        return dict(sorted(finite, key=lambda item: -item[1].norm))

    @cached_property
    def norms(self) -> Vector:
        """The finite norms of the examples' movements, the largest first."""
        return np.array([movement.norm for movement in self.finite.values()])

    @cached_property
    def vectors(self) -> Vector:
        """The examples' finite movements, (examples, p)."""
        return np.array([movement.vector for movement in self.finite.values()])

    @cached_property
    def layer_norms(self) -> Vector:
        """The norms within each layer, (examples, layers)."""
        return np.array([movement.layer_norms for movement in self.finite.values()])

    @cached_property
    def is_any_moved(self) -> bool:
        """Whether some example changes some parameter."""
        return any(np.any(movement.vector) for movement in self.movements.values())

    @cached_property
    def violations(self) -> dict[str, Movement]:
        """The movements that exceed C by more than rounding explains, or are NaN; the largest first."""
        ranked = sorted(self.described.items(), key=lambda item: -item[1].norm)
        return {name: movement for name, movement in ranked if not movement.excess <= 1}

    @cached_property
    def plateau(self) -> float:
        """The norm at which the four largest movements of added examples stop; 0 if their norms differ.

        It is 0 for examples that replace a row: differences of clipped examples do not stop at one norm.
        """
        norms = self.norms
        if self.refusal or len(norms) < 4 or norms[0] > norms[3] * (1 + _SAME):
            return 0.0
        return float(norms[0])

    @cached_property
    def reach(self) -> float:
        """The farthest that some example moves the step.

        Examples that replace a row only show differences of contributions. Clipped contributions are in a
        ball of radius C, so this is the radius of the smallest ball around them (Badoiu and Clarkson, 2003).
        """
        norms = [movement.norm for movement in self.described.values()]
        largest = max((norm for norm in norms if norm < np.inf), default=0.0)
        if not self.refusal or not self.finite:
            return largest
        # A movement is half of a contribution less that of the first row, at 0. The triangular factor has
        # the same distances in fewer coordinates.
        factor = np.linalg.qr(self.vectors.T, mode="r")
        points = 2 * np.transpose(np.pad(factor, ((0, 0), (1, 0))))
        center = np.mean(points, axis=0)
        for i in range(2, _BALL_STEPS):
            distances = np.linalg.norm(points - center, axis=1)
            center = center + (points[np.argmax(distances)] - center) / i
        return max(largest, float(np.max(distances)))

    @cached_property
    def is_stopped(self) -> bool:
        """Whether clipping causes the plateau of added examples.

        Clipping stops them there at other parameters too, at which unclipped gradients have other sizes.
        """
        if not self.plateau or self.tolerance > COARSE:
            return False
        # Frozen parameters may have to be positive.
        moves = self.probe.is_trained * np.random.default_rng(0).normal(size=self.probe.start.size)
        try:
            elsewhere = self.probe.change(start=self.probe.start + moves)
        except RefusedError:
            return False
        plateau = _measure_each(elsewhere, self.examples, is_added=True).plateau
        return abs(plateau / self.plateau - 1) < _SAME + self.tolerance

    @property
    def stops_by_layer(self) -> bool:
        """Whether some trained layer stops at C / sqrt(layers), and none exceeds it."""
        is_trained = self.probe.is_layer_trained
        if self.refusal or np.sum(is_trained) < 2 or len(self.finite) < 4:
            return False
        shares = self.layer_norms[:, is_trained] * np.sqrt(np.sum(is_trained))
        shares = np.sort(shares, axis=0)
        error = _SAME + self.tolerance
        return bool(np.max(shares) < 1 + error and np.max(shares[-4]) > 1 - error)

    @property
    def is_clipping_seen(self) -> bool:
        """Whether clipping stops the examples, and not only the size of their gradients.

        It does if one moves the step by nearly C: 0.985 C if added, 0.9 C if it replaces a row.
        """
        least = 0.9 if self.refusal else 0.985
        return self.reach >= least or self.stops_by_layer or self.is_stopped


class SeedEffect(NamedTuple):
    """How another seed changes the effect of exchanging two examples.

    Attributes:
      excess: how far the change exceeds the tolerance of rounding; above 0 it is seen.
      scales_noise: whether the change is a multiple of the noise in every layer, as if examples scale noise.
    """

    excess: float
    scales_noise: bool


def try_examples(
    probe: StepProbe, tried_examples: dict[str, Example], seconds: float
) -> TriedExamples:
    """Returns how far examples move the step when they are added to its batch.

    If the step refuses a larger batch or ignores an additional example, each example replaces the batch's
    first row instead. Two examples are also tried in several other rows.

    Args:
      probe: the step.
      tried_examples: the examples by name.
      seconds: the time of a call of the step, which limits the number of rows.
    """
    tried = _measure_each(probe, tried_examples, is_added=True)
    if tried.refusal or not tried.is_any_moved:
        refusal = tried.refusal or "the step ignores one more example"
        tried = _measure_each(probe, tried_examples, is_added=False)
        tried = replace(tried, refusal=tried.refusal or refusal)
    if not tried.is_any_moved or not tried.finite:
        return tried

    # At least four rows: both ends and the first ones.
    num_rows = len(probe.rows[0])
    count = int(np.clip(_PLACES_SECONDS / (2 * seconds), 4, _MAX_PLACES))
    order = np.random.default_rng(_SEED).permutation(num_rows).tolist()
    ranked = dict.fromkeys([0, num_rows - 1, *range(min(_FIRST_ROWS, num_rows)), *order])
    opposites = _find_opposites(tried)
    places = {}
    for row in list(ranked)[:count]:
        try:
            first, second = _run_in_place(tried, opposites, probe.rows, row, seed=0)
        except RefusedError:
            break
        places[row] = probe.measure((first - second) / 2, first, probe.rows)
    return replace(tried, places=places)


def _measure_each(
    probe: StepProbe, tried_examples: dict[str, Example], is_added: bool
) -> TriedExamples:
    """Returns the examples' movements; `refusal` is the last error of a refused batch."""
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
            refusal = f"the step refused a changed batch: {error}"
            continue
        movements[name] = probe.measure(share * difference, probe.base, batch)
    return TriedExamples(probe, tried_examples, movements, {}, refusal)


def _run_in_place(
    tried: TriedExamples, names: Sequence[str], rows: Columns, row: int, seed: int
) -> list[Vector]:
    """Returns the parameters (p,) after steps in which each of the named examples replaces a row."""
    after = []
    for name in names:
        batch = replace_rows(rows, {row: tried.examples[name].columns})
        after.append(tried.probe.run(batch, seed))
    return after


def _find_opposites(tried: TriedExamples) -> tuple[str, str]:
    """Returns the names of the example that moves the step farthest, and of the example farthest from it."""
    names = list(tried.finite)
    second = np.argmax(np.linalg.norm(tried.vectors - tried.vectors[0], axis=1))
    return names[0], names[second]


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> Movement | str:
    """Returns how far two parts of a batch move the step together, less the sum of their separate movements.

    The noise cancels. A correct step has interactions of 0 up to rounding; the pair of parts that exceeds its
    tolerance by the largest margin counts. Returns the reason if the step refuses every pair.
    """
    measured = []
    error = tried.refusal
    for both, first, second in _list_parts(tried, probe.rows):
        try:
            after_both, after_first, after_second = [
                probe.run(batch, 0) for batch in (both, first, second)
            ]
        except RefusedError as refused:
            error = f"the step refused a changed batch: {refused}"
            continue
        difference = after_both - after_first - after_second + probe.base
        measured.append(probe.measure(difference, after_first, first, steps=4))
    return max(measured, key=lambda movement: movement.excess, default=error)


def _list_parts(tried: TriedExamples, rows: Columns) -> Iterator[list[Columns]]:
    """Yields batches with two changed parts, with only the first of them and with only the second.

    Two parts are added to the batch, if the step takes larger batches. Others replace rows: two random halves
    show operations on all rows, such as a norm of the whole batch; the first two rows show operations on
    neighbours; two quarters filled with short labels show a mean over all tokens of the batch.
    """
    columns, is_short = zip(*tried.examples.values(), strict=True)
    if not tried.refusal:
        # An odd number: a step that clips pairs of examples then clips the last example of the first part
        # together with the first example of the second part.
        half = (len(columns) // 2) | 1
        parts = [columns, columns[:half], columns[half:]]
        yield [examples.join(rows, *part) for part in parts]
    size = len(rows[0])
    order = np.random.default_rng(_SEED).permutation(size).tolist()
    half = size // 2
    quarter = max(size // 4, 1)
    pairs = [
        (order[:half], order[half:], columns),
        ([0], [1], columns),
        (order[:quarter], order[quarter : 2 * quarter], tuple(compress(columns, is_short))),
    ]
    for first, second, choice in pairs:
        if size > 1 and choice:
            # The first of all examples is row 0 itself, so row 0 gets the second.
            filled = {row: choice[(row + 1) % len(choice)] for row in first + second}
            yield [
                replace_rows(rows, {row: filled[row] for row in part})
                for part in (first + second, first, second)
            ]


def measure_seed_effect(tried: TriedExamples, rows: Columns, seeds: int = 2) -> SeedEffect | None:
    """Returns how the seed changes the effect of exchanging two examples in the first row of a batch.

    The noise is the same for both examples and cancels. Dropout, augmentation, noise whose size depends on
    the examples, and operations after the noise, such as rounding or clamping, do not cancel.

    Returns:
      The change between seed 0 and the others, for the pair that exceeds its tolerance most. None if no
      example could be tried in place of a row, or the step refuses these batches.
    """
    if not tried.places:
        return None
    probe = tried.probe
    names = list(tried.finite)
    # The second pair moves the step less, so clipping is less likely to hide the effect.
    pairs = _find_opposites(tried), (names[len(names) // 2], names[-1])
    effects = []
    for pair, seed in itertools.product(pairs, range(1, seeds)):
        try:
            after, of_second = _run_in_place(tried, pair, rows, 0, seed=0)
            other, other_of_second = _run_in_place(tried, pair, rows, 0, seed)
        except RefusedError:
            return None
        noise = of_second - other_of_second
        difference = after - other - noise
        excess = probe.measure(difference, after, rows, steps=4).excess
        products = np.abs(probe.sum_layers(difference * noise))
        lengths = np.sqrt(probe.sum_layers(difference**2) * probe.sum_layers(noise**2))
        # Layers that do not change have product and length 0.
        scales_noise = bool(np.any(lengths) and np.all(products >= _PARALLEL * lengths))
        effects.append(SeedEffect(excess, scales_noise))
    return max(effects)
