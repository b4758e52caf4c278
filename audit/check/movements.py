"""Measures how far examples move the result of a step, and whether clipping bounds these movements.

Movements are in units of eta C / B. If an example replaces a row of the batch, its movement is half of the
difference, because this removes one example and adds another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from audit.check import examples
from audit.check.examples import replace_rows
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Vector

COARSE = 0.05  # with a larger tolerance, movements of C look like smaller ones
SAME = 3e-3  # the largest relative difference of norms that count as the same
_PARALLEL = 0.98  # the absolute cosine above which two vectors count as parallel
_SEED = 20_240_101  # of the random choice of rows


@dataclass(frozen=True)
class TriedExamples:
    """How far examples move a step.

    Attributes:
      probe: the step.
      examples: the examples by name, each as a batch of one row.
      movements: how far each example moves the step, by name.
      places: by row, half of the movement if two very different examples are exchanged in this row.
      refusal: why examples replaced the first row; empty if they were added to the batch.
    """

    probe: StepProbe
    examples: dict[str, Columns]
    movements: dict[str, Movement]
    places: dict[int, Movement]
    refusal: str = ""

    @cached_property
    def tolerance(self) -> float:
        """The largest tolerance of the movements."""
        return max((movement.tolerance for movement in self.movements.values()), default=0.0)

    @cached_property
    def described(self) -> dict[str, Movement]:
        """All movements, including exchanges, keyed by a description of the change."""
        places = {f"two examples in place of row {row}": self.places[row] for row in self.places}
        return self.movements | places

    @cached_property
    def finite(self) -> dict[str, Movement]:
        """The finite movements by name of the example, the largest first."""
        finite = [item for item in self.movements.items() if item[1].norm < np.inf]
        return dict(sorted(finite, key=lambda item: -item[1].norm))

    def collect(self, attribute: str) -> Vector:
        """Returns an attribute of all movements in `finite`, such as "norm", as an array (examples, ...)."""
        return np.array([getattr(movement, attribute) for movement in self.finite.values()])

    @cached_property
    def is_any_moved(self) -> bool:
        """True if any example changes any parameter."""
        return any(np.any(movement.vector) for movement in self.movements.values())

    @cached_property
    def largest(self) -> tuple[str, Movement]:
        """The largest movement, with a description of the change of the batch."""
        return max(self.described.items(), key=lambda item: item[1].norm)

    @cached_property
    def violations(self) -> list[str]:
        """Descriptions of the changes that move the step by more than C plus tolerance."""
        return [name for name in self.described if not self.described[name].excess <= 1]

    @cached_property
    def plateau(self) -> float:
        """The common norm of the four largest movements; 0 if they differ, or if examples replaced a row.

        Clipping gives all large gradients the same norm, but differences of clipped gradients vary.
        """
        norms = self.collect("norm")
        if self.refusal or len(norms) < 4 or norms[0] > norms[3] * (1 + SAME):
            return 0.0
        return float(norms[0])

    @cached_property
    def reach(self) -> float:
        """The farthest that an example moves the step.

        If examples replace a row, movements are differences of contributions. Clipped contributions are in a
        ball of radius C, so we compute the radius of their smallest enclosing ball. The algorithm of Badoiu
        and Clarkson (2003) moves the center towards the farthest point in decreasing steps; 1,000 steps give
        the radius to about 0.1%.
        """
        norms = [movement.norm for movement in self.described.values()]
        largest = max((norm for norm in norms if norm < np.inf), default=0.0)
        if not self.refusal or not self.finite:
            return largest
        # The contribution of the replaced row is 0, the others are twice the movements. The triangular factor
        # of these vectors has the same distances in fewer coordinates.
        factor = np.linalg.qr(2 * self.collect("vector").T, mode="r")
        points = np.insert(factor, 0, 0, axis=1).T
        center = np.mean(points, axis=0)
        for i in range(2, 1000):
            distances = np.linalg.norm(points - center, axis=1)
            center += (points[np.argmax(distances)] - center) / i
        return max(largest, float(np.max(distances)))

    @cached_property
    def is_clipped(self) -> bool:
        """True if clipping causes the plateau, which is then the same at other parameters.

        Without clipping, a bound of gradients depends on the parameters.
        """
        if not self.plateau or self.tolerance > COARSE:
            return False
        # Frozen parameters do not change, since they may have to be positive.
        moves = self.probe.is_trained * np.random.default_rng(0).normal(size=self.probe.start.size)
        try:
            elsewhere = self.probe.change(start=self.probe.start + moves)
        except RefusedError:
            return False
        plateau = _measure_each(elsewhere, self.examples, is_added=True).plateau
        return abs(plateau / self.plateau - 1) < SAME + self.tolerance

    @property
    def clips_by_layer(self) -> bool:
        """True if each layer seems to be clipped to C / sqrt(layers), which bounds the whole gradient by C.

        Four examples must reach this norm in some trained layer, and none may exceed it in any.
        """
        is_trained = self.probe.is_layer_trained
        num_layers = np.sum(is_trained)
        if self.refusal or num_layers < 2 or len(self.finite) < 4:
            return False
        # Each layer's norms in ascending order, in units of C / sqrt(layers).
        norms = np.sort(self.collect("layer_norms")[:, is_trained] * np.sqrt(num_layers), axis=0)
        error = SAME + self.tolerance
        return bool(np.max(norms) < 1 + error and np.max(norms[-4]) > 1 - error)

    @property
    def is_clipping_seen(self) -> bool:
        """True if an example moves the step by nearly C, so clipping bounds the movements.

        The reach of examples that replace a row (`refusal`) may be 10% too small, because we try few
        directions. Otherwise we allow errors of 1.5%. Equal movements of several examples also show
        clipping.
        """
        least = 0.9 if self.refusal else 0.985
        return self.reach >= least or self.clips_by_layer or self.is_clipped

    @cached_property
    def opposites(self) -> tuple[str, str]:
        """The names of the example that moves the step most and of the example farthest from it."""
        names = list(self.finite)
        vectors = self.collect("vector")
        farthest = np.argmax(np.linalg.norm(vectors - vectors[0], axis=1))
        return names[0], names[farthest]

    def run_in_place(
        self, names: Iterable[str], rows: Columns, row: int, seed: int
    ) -> list[Vector]:
        """Returns the parameters (p,) after each step in which one of these examples replaces a row."""
        batches = [replace_rows(rows, {row: self.examples[name]}) for name in names]
        return [self.probe.run(batch, seed) for batch in batches]


class SeedEffect(NamedTuple):
    """How another seed changes the effect of exchanging two examples.

    Attributes:
      excess: the norm of the change minus its tolerance; positive if the change is significant.
      scales_noise: True if the change is a multiple of the noise in every layer, as if an example scaled the
        noise.
    """

    excess: float
    scales_noise: bool


def try_examples(probe: StepProbe, seconds: float) -> TriedExamples:
    """Measures how far extreme examples move a step if added to its batch or replacing rows.

    If the step rejects or ignores an additional row, each example replaces the first row.

    Args:
      probe: the step.
      seconds: the time of a call of the step, which bounds the number of rows.
    """
    tried_examples = examples.make_extreme_examples(probe.rows)
    tried = _measure_each(probe, tried_examples, is_added=True)
    if tried.refusal or not tried.is_any_moved:
        refusal = tried.refusal or "the step ignores one more example"
        tried = replace(_measure_each(probe, tried_examples, is_added=False), refusal=refusal)
    if not tried.is_any_moved or not tried.finite:
        return tried

    num_rows = len(probe.rows[0])
    order = np.random.default_rng(_SEED).permutation(num_rows).tolist()
    # Both ends; 16 rows, to detect a bug in every m-th row for m up to 16; and random rows.
    ranked = dict.fromkeys([0, num_rows - 1, *range(min(16, num_rows)), *order])
    count = int(np.clip(3 / seconds, 4, 64))  # each row takes two steps: about six seconds
    places = {}
    for row in list(ranked)[:count]:
        try:
            first, second = tried.run_in_place(tried.opposites, probe.rows, row, seed=0)
        except RefusedError:
            break
        # An exchange removes one example and adds another, so it moves the sum by up to 2 C.
        places[row] = probe.measure([second], [first], probe.rows, factor=0.5)
    return replace(tried, places=places)


def _measure_each(
    probe: StepProbe, tried_examples: dict[str, Columns], is_added: bool
) -> TriedExamples:
    """Measures how far each example moves the step if added to the batch or replacing its first row.

    An added example moves the sum of clipped gradients by at most C, but a replaced one by up to 2 C, so we
    halve the latter movement. `refusal` of the result is the last error for a rejected batch.
    """
    movements = {}
    refusal = ""
    for name, example in tried_examples.items():
        batch = replace_rows(probe.rows, {0: example})
        factor = 0.5
        if is_added:
            batch = examples.join(probe.rows, example)
            factor = 1.0
        try:
            # Seed 0 is that of `base`, so the noise of both steps is the same and cancels.
            after = probe.run(batch, 0)
        except RefusedError as error:
            refusal = f"the step refused a changed batch: {error}"
            continue
        movements[name] = probe.measure([after], [probe.base], batch, factor)
    return TriedExamples(probe, tried_examples, movements, places={}, refusal=refusal)


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> Movement | str:
    """Returns how far two parts of a batch move the step together, minus the sum of their separate movements.

    The noise cancels. In a correct step, the result is 0 up to rounding.

    Returns:
      The result for the parts that exceed their tolerance most, or the error if the step rejects all parts.
    """
    measured = []
    reason = tried.refusal
    for batches in _list_parts(tried, probe.rows):
        try:
            after_both, *separately = [probe.run(batch, 0) for batch in batches]
        except RefusedError as error:
            reason = f"the step refused a changed batch: {error}"
            continue
        measured.append(probe.measure([after_both, probe.base], separately, batches[1]))
    return max(measured, key=lambda movement: movement.excess, default=reason)


def _list_parts(tried: TriedExamples, rows: Columns) -> Iterator[list[Columns]]:
    """Yields batches with two changed parts, with only the first and with only the second.

    Examples are added to the batch if the step accepts larger batches. They also replace rows: two random
    halves show operations on all rows, such as a norm of the whole batch or a mean over all tokens; the first
    two rows show operations on neighbours.
    """
    columns = list(tried.examples.values())
    if not tried.refusal:
        # An odd number: a step that clips pairs of examples then clips the last example of the first part
        # together with the first example of the second part.
        half = (len(columns) // 2) | 1
        parts = columns, columns[:half], columns[half:]
        yield [examples.join(rows, *part) for part in parts]
    size = len(rows[0])
    if size == 1:
        return
    order = np.random.default_rng(_SEED).permutation(size).tolist()
    half = size // 2
    for first, second in [(order[:half], order[half:]), ([0], [1])]:
        # Row i gets example i + 1, because the first of all examples is row 0 itself.
        filled = {row: columns[(row + 1) % len(columns)] for row in first + second}
        yield [
            replace_rows(rows, {row: filled[row] for row in part})
            for part in (first + second, first, second)
        ]


def measure_seed_effect(tried: TriedExamples, rows: Columns, seeds: int = 2) -> SeedEffect:
    """Measures how the seed changes the effect of exchanging two examples in the first row of a batch.

    Noise with a fixed scale cancels. Dropout, augmentation, noise with a scale that depends on the examples,
    and operations after the noise, such as rounding or clamping, do not.

    Args:
      tried: the movements of the examples.
      rows: the batch.
      seeds: the number of seeds; seed 0 is compared with each of the others.

    Returns:
      The change that exceeds its tolerance most. Its excess is NaN if the step rejects these batches.
    """
    unknown = SeedEffect(np.nan, scales_noise=False)
    if not tried.places:
        return unknown
    probe = tried.probe
    names = list(tried.finite)
    effects = []
    # The second pair moves the step less, so clipping is less likely to hide the effect.
    for pair in (tried.opposites, (names[len(names) // 2], names[-1])):
        try:
            steps = [tried.run_in_place(pair, rows, 0, seed) for seed in range(seeds)]
        except RefusedError:
            return unknown
        first, second = steps[0]
        for other_first, other_second in steps[1:]:
            movement = probe.measure([second, other_first], [first, other_second], rows)
            noise = second - other_second
            products = np.abs(probe.sum_layers(movement.vector * noise))
            lengths = movement.layer_norms * np.sqrt(probe.sum_layers(noise**2))
            # Layers that do not change have product and length 0.
            is_parallel = np.any(lengths) and np.all(products >= _PARALLEL * lengths)
            effects.append(SeedEffect(movement.excess, bool(is_parallel)))
    return max(effects)  # by the excess
