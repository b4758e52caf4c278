"""Measures how far examples move the result of a step, and whether clipping bounds these movements.

Movements are in units of eta C / B (learning rate, clipping norm, batch size). If an example replaces a row,
its movement is half of the difference.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from audit.check import examples
from audit.check.examples import replace_rows
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Vector

COARSE = 0.05  # above this tolerance, a movement of C cannot be distinguished from a smaller one
SAME = 3e-3  # the largest relative difference between norms that count as equal
# Results of `find_seed_effect`.
CHANGED = "changed"
SCALED = "scaled"
_PARALLEL = 0.98  # the absolute cosine above which two vectors count as parallel
_SEED = 20_240_101  # for the random choice of rows


@dataclass(frozen=True)
class TriedExamples:
    """How far examples move a step.

    Attributes:
      probe: the step.
      examples: the examples by name, each as a batch of one row.
      movements: how far each example moves the step, by name.
      by_row: how far the step moves if a row's example is swapped for a very different one, keyed by row
        index.
      why_not_added: why examples were not added to the batch, but replaced the first row; "" if they were
        added.
    """

    probe: StepProbe
    examples: dict[str, Columns]
    movements: dict[str, Movement]
    by_row: dict[int, Movement]
    why_not_added: str = ""

    @cached_property
    def tolerance(self) -> float:
        """The largest tolerance of the movements."""
        return max((movement.tolerance for movement in self.movements.values()), default=0.0)

    @cached_property
    def all_movements(self) -> dict[str, Movement]:
        """`movements` and `by_row` together, keyed by a description of the change."""
        rows = {f"two examples in place of row {row}": self.by_row[row] for row in self.by_row}
        return self.movements | rows

    @cached_property
    def finite(self) -> dict[str, Movement]:
        """The finite movements, keyed by the name of the example, largest first."""
        # Rounded, so that equal norms stay in order: extreme examples before others.
        ranked = sorted(self.movements.items(), key=lambda item: -round(item[1].norm, 3))
        return {name: movement for name, movement in ranked if movement.norm < np.inf}

    def collect(self, attribute: str) -> Vector:
        """Returns an attribute of the movements in `finite`, such as "norm", as an array (examples, ...)."""
        return np.array([getattr(movement, attribute) for movement in self.finite.values()])

    @cached_property
    def is_any_moved(self) -> bool:
        """True if any example changes any parameter."""
        return any(np.any(movement.vector) for movement in self.movements.values())

    @cached_property
    def largest(self) -> tuple[str, Movement]:
        """The change that moves the step most, as a description and a movement."""
        return max(self.all_movements.items(), key=lambda item: item[1].norm)

    @cached_property
    def violations(self) -> list[str]:
        """Descriptions of the changes that move the step by more than C plus the movement's tolerance."""
        return [name for name, item in self.all_movements.items() if item.excess > 1]

    @cached_property
    def common_norm(self) -> float:
        """The norm that the four largest movements share; 0 if they differ, or if examples replaced a row.

        Clipping gives all large gradients the same norm, but differences between clipped gradients vary.
        """
        norms = self.collect("norm")
        if self.why_not_added or len(norms) < 4 or norms[0] > norms[3] * (1 + SAME):
            return 0.0
        return norms[0]

    @cached_property
    def reach(self) -> float:
        """The largest finite distance by which adding an example moves the step.

        If examples replace a row, we only observe differences between their contributions to the sum. Clipped
        contributions lie in a ball of radius C, so we return the radius of their smallest enclosing ball. The
        algorithm of Badoiu and Clarkson (2003) moves the center towards the farthest point; 1,000 steps give
        the radius to about 0.1%.
        """
        norms = [item.norm for item in self.all_movements.values()]
        largest = max(filter(np.isfinite, norms), default=0.0)
        if not self.why_not_added or not self.finite:
            return largest
        # A movement is half of an example's contribution minus the replaced row's, which we take as the
        # origin. The factor R of a QR decomposition preserves distances in fewer coordinates.
        factor = np.linalg.qr(2 * self.collect("vector").T, mode="r")
        points = np.insert(factor, 0, 0, axis=1).T
        center = np.mean(points, axis=0)
        for i in range(2, 1000):
            distances = np.linalg.norm(points - center, axis=1)
            center += (points[np.argmax(distances)] - center) / i
        return max(largest, np.max(distances))

    @cached_property
    def is_clipped(self) -> bool:
        """True if the largest movements share a norm, which is the same at random parameters.

        It is then due to clipping, because other bounds on gradient norms depend on the parameters.
        """
        if not self.common_norm or self.tolerance > COARSE:
            return False
        # Frozen parameters stay as they are, since some, such as variances, must be positive.
        shift = self.probe.is_trained * np.random.default_rng(0).normal(size=self.probe.start.size)
        try:
            elsewhere = self.probe.change(start=self.probe.start + shift)
        except RefusedError:
            return False
        norm_elsewhere = _measure_each(elsewhere, self.examples).common_norm
        return abs(norm_elsewhere / self.common_norm - 1) < SAME + self.tolerance

    @property
    def is_clipping_seen(self) -> bool:
        """True if an example moves the step by nearly C, or if clipping explains equal movements."""
        # If examples replace a row, a reach of C requires opposite gradients, so we accept less.
        least = 0.9 if self.why_not_added else 0.985
        return self.reach >= least or self.is_clipped

    @cached_property
    def largest_and_opposite(self) -> tuple[str, str]:
        """The names of the examples with the largest movement and with the movement farthest from it."""
        # `finite` begins with the largest movement.
        names = list(self.finite)
        vectors = self.collect("vector")
        distances = np.linalg.norm(vectors - vectors[0], axis=1)
        farthest = np.argmax(np.round(distances, 3))  # the first of equals, as in `finite`
        return names[0], names[farthest]

    def add(self, other: "TriedExamples") -> "TriedExamples":
        """Returns these examples and those of `other`."""
        return replace(
            self,
            examples=self.examples | other.examples,
            movements=self.movements | other.movements,
        )


def try_examples(probe: StepProbe, seconds: float) -> TriedExamples:
    """Measures how far extreme examples move a step if they join its batch or replace rows.

    If the step rejects or ignores an additional row, each example replaces the first row instead. Finally,
    two examples with opposite movements replace other rows, for about six seconds; a step takes `seconds`.
    """
    tried_examples = examples.make_extreme_examples(probe.rows)
    tried = _measure_each(probe, tried_examples)
    is_one_ignored = not tried.why_not_added and not tried.is_any_moved
    if tried.why_not_added or is_one_ignored:
        reason = tried.why_not_added or "the step ignores an additional example"
        tried = replace(_measure_each(probe, tried_examples, copies=0), why_not_added=reason)
    if not tried.is_any_moved or not tried.finite:
        return tried
    if is_one_ignored:  # perhaps only because a group of examples is incomplete
        tried = _add_until_moved(tried)
    elif not tried.why_not_added and not tried.violations:
        tried = _search_threshold(tried)
    return replace(tried, by_row=_try_rows(tried, seconds))


def _try_rows(tried: TriedExamples, seconds: float) -> dict[int, Movement]:
    """Returns how far the step moves, by row, if one example in a row is exchanged for another.

    These are `tried.largest_and_opposite`. Stops if the step rejects a batch. A step takes `seconds`.
    """
    probe = tried.probe
    num_rows = len(probe.rows[0])
    order = np.random.default_rng(_SEED).permutation(num_rows).tolist()
    # We try both ends, then 16 rows to detect a bug in every m-th row for m up to 16, then random rows.
    ranked = dict.fromkeys([0, num_rows - 1, *range(min(16, num_rows)), *order])
    # Each row takes two steps, so this takes about six seconds.
    count = int(np.clip(3 / seconds, 4, 64))
    by_row = {}
    for row in list(ranked)[:count]:
        try:
            first, second = [
                probe.run(replace_rows(probe.rows, {row: tried.examples[name]}), seed=0)
                for name in tried.largest_and_opposite
            ]
        except RefusedError:
            break
        # Exchanging one clipped example for another moves the sum by up to 2 C.
        by_row[row] = probe.measure([second], [first], probe.rows, factor=0.5)
    return by_row


def _measure_each(
    probe: StepProbe, tried_examples: dict[str, Columns], copies: int = 1
) -> TriedExamples:
    """Measures how far each example moves the step if copies of it are added to the batch.

    With no copies, the example replaces the first row. The result's `why_not_added` is the error for the last
    batch that the step rejects.
    """
    movements = {}
    reason = ""
    for name, example in tried_examples.items():
        batch = examples.join(probe.rows, *[example] * copies)
        factor = 1.0
        if not copies:
            batch = replace_rows(probe.rows, {0: example})
            factor = 0.5  # since a replacement removes one example and adds another
        try:
            after = probe.run(batch, seed=0)  # with the seed of `base`, whose noise then cancels
        except RefusedError as error:
            reason = f"the step refused a changed batch: {error}"
            continue
        movements[name] = probe.measure([after], [probe.base], batch, factor)
    return TriedExamples(probe, tried_examples, movements, by_row={}, why_not_added=reason)


def _search_threshold(tried: TriedExamples) -> TriedExamples:
    """Searches for an example that moves the step by more than C, in case clipping starts above C.

    Gradients just below the clipping threshold are the largest that are not clipped. To find one, we bisect a
    scale of the features of the example with the largest movement. Returns `tried`, with this example if it
    exists.
    """
    most = tried.largest_and_opposite[0]
    low = 1e-6
    high = 1.0
    for _ in range(10):
        scale = math.sqrt(low * high)
        scaled = examples.scale_features(tried.examples[most], scale, tried.probe.rows)
        name = f"{most}, features times {scale:.2g}"
        measured = _measure_each(tried.probe, {name: scaled})
        if measured.violations:
            return tried.add(measured)
        if measured.reach < 1 - SAME:  # below C, so not clipped
            low = scale
        else:
            high = scale
    return tried


def _add_until_moved(tried: TriedExamples) -> TriedExamples:
    """Adds an example up to 64 times, in case a step drops incomplete groups of examples.

    The copy that first changes the step must move it by at most C. Returns `tried`, with this movement if it
    is larger.
    """
    name = tried.largest_and_opposite[0]
    for copies in range(2, 65):
        change = f"{name}, added {copies} times (fewer copies have no effect)"
        measured = _measure_each(tried.probe, {change: tried.examples[name]}, copies)
        if measured.is_any_moved or measured.why_not_added:
            break
    return tried.add(measured) if measured.violations else tried


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> Movement | str:
    """Measures the joint movement of two parts of a batch minus the sum of their separate movements.

    In a correct step, the difference is 0 up to rounding.

    Returns:
      The difference that exceeds its tolerance most, among several choices of the parts; or the last error of
      the step if it rejects all parts.
    """
    measured = []
    reason = tried.why_not_added
    for joint, first, second in _list_parts(tried, probe.rows):
        try:
            both, *separately = [probe.run(rows, seed=0) for rows in (joint, first, second)]
        except RefusedError as error:
            reason = f"the step refused a changed batch: {error}"
            continue
        movement = probe.measure([both, probe.base], separately, first)
        # If a step has no space for all rows of `joint`, it ignores some, which is not an interaction.
        if tried.why_not_added or movement.excess <= 0 or not _ignores_added(probe, joint, both):
            measured.append(movement)
    return max(measured, key=lambda movement: movement.excess, default=reason)


def _ignores_added(probe: StepProbe, rows: Columns, after: Vector) -> bool:
    """Returns True if a step ignores more rows: with them, it still gives `after`, the result of `rows`."""
    try:
        return np.array_equal(probe.run(examples.join(rows, probe.rows), seed=0), after)
    except RefusedError:
        return False


def _list_parts(tried: TriedExamples, rows: Columns) -> Iterator[list[Columns]]:
    """Yields triples of batches: with two changed parts, with only the first, and with only the second.

    If the step accepts larger batches, parts are added to the batch: only six examples, because steps may
    ignore more rows than they have space for. Parts also replace rows: two random halves detect operations
    on all rows, such as a mean over all tokens; the first two rows detect operations on neighbours.
    """
    columns = list(tried.examples.values())
    if not tried.why_not_added:
        # Each part has an odd length, so a step that clips pairs of examples forms a pair across the parts.
        first = columns[:3]
        second = columns[3:6]
        yield [examples.join(rows, *part) for part in (first + second, first, second)]
    size = len(rows[0])
    if size == 1:
        return
    order = np.random.default_rng(_SEED).permutation(size).tolist()
    half = size // 2
    for first, second in [(order[:half], order[half:]), ([0], [1])]:
        # Row i gets example i + 1, because example 0 is row 0 itself.
        filled = {row: columns[(row + 1) % len(columns)] for row in first + second}
        yield [
            replace_rows(rows, {row: filled[row] for row in part})
            for part in (first + second, first, second)
        ]


def find_seed_effect(probe: StepProbe, rows: Columns, seeds: Iterable[int]) -> str:
    """Returns how a seed changes the effect of scaling a batch's features by 0.001: SCALED, CHANGED or "".

    Compares each of `seeds` with seed 0. Returns "" if the effect does not change, because noise with a fixed
    scale cancels, or if the step rejects the scaled batch. SCALED means that the effect changes by a multiple
    of the noise in every layer, as if examples scaled the noise. CHANGED means any other change, due to
    dropout, augmentation, or an operation after the noise, such as rounding.
    """
    kind = ""
    scaled_rows = examples.scale_features(rows, 1e-3, rows)
    try:
        given = probe.run(rows, seed=0)
        scaled = probe.run(scaled_rows, seed=0)
        for seed in seeds:
            other = probe.run(rows, seed)
            movement = probe.measure([scaled, other], [given, probe.run(scaled_rows, seed)], rows)
            if movement.excess > 0:
                noise = given - other
                # In each layer, product / length is the absolute cosine of the change and the noise. A layer
                # that does not change has product and length 0, and counts as parallel.
                products = np.abs(probe.sum_layers(movement.vector * noise))
                lengths = movement.layer_norms * np.sqrt(probe.sum_layers(noise**2))
                is_not_parallel = products < _PARALLEL * lengths
                if not np.any(lengths) or np.any(is_not_parallel):
                    return CHANGED
                kind = SCALED
    except RefusedError:
        return ""
    return kind
