"""Measures how far examples move the result of a step, and whether clipping bounds these movements.

Movements are in units of eta C / B (learning rate, clipping norm, batch size). If an example replaces a row,
its movement is half of the difference, because a replacement removes one example and adds another.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from audit.check import examples
from audit.check.examples import replace_rows
from audit.check.probe import Movement, RefusedError, StepProbe
from audit.check.trees import Columns, Vector

MAX_TOLERANCE = 0.05  # larger tolerances hide whether a movement reaches C
NORM_ERROR = 3e-3  # the relative difference below which norms count as equal
_PARALLEL = 0.98  # the absolute cosine above which two vectors count as parallel
_SEED = 20_240_101  # for the random choice of rows


@dataclass(frozen=True)
class TriedExamples:
    """How far examples move a step's result.

    Attributes:
      probe: the step.
      examples: the examples by name, each as a batch of one row.
      movements: the movement due to each example, by name.
      by_row: the movement due to replacing one example with a very different one, keyed by row index.
      refusal: why examples replaced the first row; "" if they were added to the batch.
    """

    probe: StepProbe
    examples: dict[str, Columns]
    movements: dict[str, Movement]
    by_row: dict[int, Movement]
    refusal: str = ""

    @property
    def replaces_rows(self) -> bool:
        """True if examples replaced the first row because the step rejects or ignores added rows."""
        return bool(self.refusal)

    @cached_property
    def tolerance(self) -> float:
        """The largest tolerance of any movement."""
        return max((movement.tolerance for movement in self.movements.values()), default=0.0)

    @cached_property
    def described(self) -> dict[str, Movement]:
        """`movements` and `by_row` together, keyed by a description of the change."""
        return self.movements | {
            f"two examples in place of row {row}": self.by_row[row] for row in self.by_row
        }

    @cached_property
    def finite(self) -> dict[str, Movement]:
        """The finite movements, keyed by the name of the example, largest first."""
        # With rounded norms, extreme examples stay ahead of others that are nearly equal.
        ranked = sorted(self.movements.items(), key=lambda item: -round(item[1].norm, 3))
        return {name: movement for name, movement in ranked if movement.norm < np.inf}

    def collect(self, attribute: str) -> Vector:
        """Returns an attribute of the movements in `finite`, such as "norm", as an array (examples, ...)."""
        return np.array([getattr(movement, attribute) for movement in self.finite.values()])

    @cached_property
    def is_any_moved(self) -> bool:
        """True if any example changes any parameter."""
        return any(movement.vector.any() for movement in self.movements.values())

    @cached_property
    def largest(self) -> tuple[str, Movement]:
        """The change that moves the result most, as a description and a movement."""
        return max(self.described.items(), key=lambda item: item[1].norm)

    @cached_property
    def violations(self) -> list[str]:
        """Descriptions of the changes that move the result by more than C plus the movement's tolerance."""
        return [name for name in self.described if self.described[name].excess > 1]

    @cached_property
    def common_norm(self) -> float:
        """The norm to which the step seems to clip, shared by the four largest movements; NaN if they differ.

        Also NaN if examples replace a row: clipped gradients share a norm, but their differences do not.
        """
        norms = self.collect("norm")  # largest first
        if self.replaces_rows or len(norms) < 4 or norms[0] > norms[3] * (1 + NORM_ERROR):
            return np.nan
        return norms[0]

    @cached_property
    def max_norm(self) -> float:
        """The largest finite movement, or the enclosing radius if larger.

        If examples replace a row, only differences between their contributions to the sum are observed.
        Clipped contributions lie in a ball of radius C, so their smallest enclosing ball has radius at most
        C.
        """
        norms = [item.norm for item in self.described.values() if item.norm < np.inf]
        largest = max(norms, default=0.0)
        if not self.replaces_rows or not self.finite:
            return largest
        # Twice the movement is an example's contribution minus that of the replaced row, which the inserted
        # 0 represents. The factor R of a QR decomposition preserves distances in fewer coordinates.
        factor = np.linalg.qr(2 * self.collect("vector").T, mode="r")
        return max(largest, _compute_enclosing_radius(np.insert(factor, 0, 0, axis=1).T))

    @cached_property
    def is_clipped(self) -> bool:
        """True if the common norm of the largest movements is the same at random parameters.

        It is then due to clipping, because other bounds on gradient norms depend on the parameters.
        """
        if not self.common_norm > 0 or self.tolerance > MAX_TOLERANCE:
            return False
        # Frozen parameters are not shifted, since some, such as variances, must be positive.
        shift = self.probe.is_trained * np.random.default_rng(0).normal(size=self.probe.start.size)
        try:
            elsewhere = self.probe.change(start=self.probe.start + shift)
        except RefusedError:
            return False
        norm = _measure_each(elsewhere, self.examples).common_norm
        return abs(norm / self.common_norm - 1) < NORM_ERROR + self.tolerance

    @property
    def clips_by_layer(self) -> bool:
        """True if each trained layer seems to be clipped to its share of C, C / sqrt(trained layers).

        Four examples must reach this norm in the same layer, and no example may exceed it in any layer.
        """
        is_trained = self.probe.is_layer_trained
        num_layers = is_trained.sum()
        if self.replaces_rows or num_layers < 2 or len(self.finite) < 4:
            return False
        # (examples, trained layers) the norms divided by each layer's share of C, sorted within each layer.
        norms = np.sort(self.collect("layer_norms")[:, is_trained] * np.sqrt(num_layers), axis=0)
        fourth_largest = norms[-4]
        error = NORM_ERROR + self.tolerance
        return norms.max() < 1 + error and fourth_largest.max() > 1 - error

    @property
    def is_clipping_seen(self) -> bool:
        """True if an example moves the result by nearly C, or if equal movements indicate clipping.

        The largest norm may be 1.5% too small, or 10% if examples replace a row, because only a few
        directions are tried.
        """
        least = 0.9 if self.replaces_rows else 0.985
        return self.max_norm >= least or self.clips_by_layer or self.is_clipped

    @cached_property
    def opposites(self) -> tuple[str, str]:
        """The names of the examples with the largest movement and with the movement farthest from it."""
        names = list(self.finite)
        vectors = self.collect("vector")
        distances = np.linalg.norm(vectors - vectors[0], axis=1)
        # Rounding errors must not decide between equal distances.
        return names[0], names[np.argmax(np.round(distances, 3))]

    def add(self, name: str, example: Columns, movement: Movement) -> "TriedExamples":
        """Returns a copy with one more example (a batch of one row) and its movement."""
        return replace(
            self,
            examples=self.examples | {name: example},
            movements=self.movements | {name: movement},
        )

    def run_in_place(
        self, names: Iterable[str], rows: Columns, row: int, seed: int
    ) -> list[Vector]:
        """Takes a step with each example in row `row` of `rows`, and returns the parameters (p,) after it."""
        return [
            self.probe.run(replace_rows(rows, {row: self.examples[name]}), seed) for name in names
        ]


def _compute_enclosing_radius(points: Vector) -> float:
    """Returns the radius of the smallest ball that encloses the rows of `points`.

    The algorithm of Badoiu and Clarkson (2003) moves the center towards the farthest point; after 1,000
    steps, the radius has an error of about 0.1%.
    """
    center = points.mean(axis=0)
    for i in range(2, 1000):
        distances = np.linalg.norm(points - center, axis=1)
        center += (points[distances.argmax()] - center) / i
    return distances.max()


class SeedEffect(NamedTuple):
    """How the seed changes the effect of replacing an example.

    Attributes:
      excess: the norm of the change minus its tolerance: positive if significant, NaN if unknown.
      scales_noise: True if the change is a multiple of the noise in every layer, as if an example scaled the
        noise.
    """

    excess: float
    scales_noise: bool


def try_examples(probe: StepProbe, seconds: float) -> TriedExamples:
    """Measures how far extreme examples move a step's result if they are added to its batch or replace rows.

    If the step rejects or ignores added rows, each example replaces the first row instead. Also tries copies
    of ignored rows, or mixtures if no example exceeds C. Then tries two examples in each of up to 64 rows,
    fewer for slow steps (`seconds`).
    """
    tried_examples = examples.make_extreme_examples(probe.rows)
    tried = _measure_each(probe, tried_examples)
    is_one_ignored = not tried.refusal and not tried.is_any_moved
    if tried.refusal or is_one_ignored:
        tried = replace(
            _measure_each(probe, tried_examples, replaces_row=True),
            refusal=tried.refusal or "the step ignores an additional example",
        )
    if not tried.is_any_moved or not tried.finite:
        return tried
    if is_one_ignored:
        tried = _add_until_moved(tried)
    elif not tried.replaces_rows and not tried.violations:
        tried = _search_threshold(tried)

    num_rows = len(probe.rows[0])
    order = np.random.default_rng(_SEED).permutation(num_rows).tolist()
    # The first and last rows, then 16 rows to detect a bug in every m-th row for m up to 16, then random
    # rows.
    ranked = dict.fromkeys([0, num_rows - 1, *range(min(16, num_rows)), *order])
    # Two steps per row take about six seconds in total.
    count = int(np.clip(3 / seconds, 4, 64))
    by_row = {}
    for row in list(ranked)[:count]:
        try:
            first, second = tried.run_in_place(tried.opposites, probe.rows, row, seed=0)
        except RefusedError:
            break
        by_row[row] = probe.measure([second], [first], probe.rows, factor=0.5)
    return replace(tried, by_row=by_row)


def _measure_each(
    probe: StepProbe, tried_examples: dict[str, Columns], replaces_row: bool = False
) -> TriedExamples:
    """Measures how far each example moves the result if it is added to the batch or replaces its first row.

    The result's `refusal` is the error from the last batch that the step rejects.
    """
    movements = {}
    refusal = ""
    for name, example in tried_examples.items():
        batch = examples.join(probe.rows, example)
        factor = 1.0
        if replaces_row:
            batch = replace_rows(probe.rows, {0: example})
            factor = 0.5
        try:
            after = probe.run(batch)
        except RefusedError as error:
            refusal = f"the step refused a changed batch: {error}"
            continue
        movements[name] = probe.measure([after], [probe.base], batch, factor)
    return TriedExamples(probe, tried_examples, movements, by_row={}, refusal=refusal)


def _search_threshold(tried: TriedExamples) -> TriedExamples:
    """Tries mixtures of examples with the largest and smallest movements, in case clipping starts above C.

    Gradients just below the clipping threshold are the largest that are not clipped. Ten bisections find a
    mixture with such a gradient if the threshold is well above C. Returns `tried`, including the mixture if
    it moves the result by more than C.
    """
    names = list(tried.finite)
    most = tried.examples[names[0]]
    least = tried.examples[names[-1]]
    # Bounds on the share of `most`, on a log scale, since `most` may have huge features.
    low = 1e-6
    high = 1.0
    for _ in range(10):
        share = math.sqrt(low * high)
        name = f"a mixture of {names[0]} ({share:.2g}) and {names[-1]}"
        columns = examples.mix(most, least, share)
        measured = _measure_each(tried.probe, {name: columns})
        if measured.violations:
            return tried.add(name, columns, measured.movements[name])
        if measured.max_norm < 1 - NORM_ERROR:  # below C: not clipped
            low = share
        else:
            high = share
    return tried


def _add_until_moved(tried: TriedExamples) -> TriedExamples:
    """Adds up to 64 copies of an example, in case a step drops incomplete groups of examples.

    The first copy that changes the result must move it by at most C. Returns `tried`, including the movement
    if it exceeds C.
    """
    probe = tried.probe
    name, _ = tried.opposites  # moves the result most as a replacement
    rows = probe.rows
    for count in range(1, 65):
        rows = examples.join(rows, tried.examples[name])
        try:
            after = probe.run(rows)
        except RefusedError:
            break
        if np.any(after != probe.base):
            movement = probe.measure([after], [probe.base], rows)
            if movement.excess > 1:  # more than C plus the tolerance
                change = f"{name}, added {count} times (fewer copies have no effect)"
                return tried.add(change, tried.examples[name], movement)
            break
    return tried


def measure_interactions(probe: StepProbe, tried: TriedExamples) -> Movement | str:
    """Measures the joint movement of two parts of a batch minus the sum of their separate movements.

    The noise cancels. In a correct step, the difference is 0 up to rounding. It depends on the seed only if
    an operation such as clamping follows the noise.

    Returns:
      The difference with the largest excess, for several choices of the parts. If a difference depends on the
      seed, or the step rejects all parts, the reason instead.
    """
    measured = []
    reason = tried.refusal or "the step ignores most rows: give a batch of several rows"
    for batches in _list_parts(tried, probe.rows):
        with_both, with_first, _ = batches
        try:
            both, *separately = [probe.run(batch) for batch in batches]
        except RefusedError as error:
            reason = f"the step refused a changed batch: {error}"
            continue
        together = [both, probe.base]
        movement = probe.measure(together, separately, with_first)
        if movement.excess > 0:
            # A step may use only the first rows of a large batch.
            if not tried.replaces_rows and _is_full(probe, with_both, both):
                continue
            # Subtract the same difference for another seed: both + base - first - second.
            base, both, *parts = [probe.run(batch, seed=1) for batch in (probe.rows, *batches)]
            together += parts
            separately += [base, both]
            if probe.measure(together, separately, with_first).excess > 0:
                return (
                    "noise changes the joint effect of two parts of a batch: return the noisy sum"
                )
        measured.append(movement)
    return max(measured, key=lambda movement: movement.excess, default=reason)


def _is_full(probe: StepProbe, rows: Columns, after: Vector) -> bool:
    """Returns True if a step ignores rows added to `rows`: it still returns the parameters `after`."""
    try:
        return np.array_equal(probe.run(examples.join(rows, probe.rows)), after)
    except RefusedError:
        return False


def _list_parts(tried: TriedExamples, rows: Columns) -> Iterator[list[Columns]]:
    """Yields triples of batches: with two changed parts, with only the first, and with only the second.

    In a correct step, the effects of the second and third batches add up to the effect of the first.
    """
    columns = list(tried.examples.values())
    if not tried.replaces_rows:  # parts are added to `rows`
        # The first part has an odd length, so a step that clips pairs of examples forms a pair across the
        # parts.
        half = (len(columns) // 2) | 1
        parts = columns, columns[:half], columns[half:]
        yield [examples.join(rows, *part) for part in parts]
    size = len(rows[0])
    if size == 1:
        return
    # The other parts replace rows. Changing two random halves reveals operations on all rows, such as a norm
    # of the whole batch or a mean over all tokens. Changing the first two rows reveals operations on
    # neighbours.
    order = np.random.default_rng(_SEED).permutation(size).tolist()
    half = size // 2
    for first, second in [(order[:half], order[half:]), ([0], [1])]:
        # Row i gets example i + 1, because example 0 is row 0 itself.
        filled = {row: columns[(row + 1) % len(columns)] for row in first + second}
        yield [
            replace_rows(rows, {row: filled[row] for row in part})
            for part in (first + second, first, second)
        ]


def measure_seed_effect(tried: TriedExamples, rows: Columns, seeds: int = 2) -> SeedEffect:
    """Measures how the seed changes the effect of replacing one example with another in a batch's first row.

    Noise with a fixed scale cancels, unlike dropout, augmentation, noise whose scale depends on examples, and
    operations after the noise, such as rounding or clamping. Compares seed 0 with each of the other seeds.

    Returns:
      The change with the largest excess (NaN if the step rejects these batches).
    """
    unknown = SeedEffect(np.nan, scales_noise=False)
    if not tried.by_row:  # the step rejects replaced rows or ignores examples
        return unknown
    probe = tried.probe
    names = list(tried.finite)
    effects = []
    # Clipping may hide the effect, so examples with smaller movements are also tried.
    for pair in (tried.opposites, (names[len(names) // 2], names[-1])):
        try:
            steps = [tried.run_in_place(pair, rows, row=0, seed=seed) for seed in range(seeds)]
        except RefusedError:
            return unknown
        first, second = steps[0]
        for other_first, other_second in steps[1:]:
            # The effect of the replacement for seed 0 minus its effect for the other seed.
            movement = probe.measure([second, other_first], [first, other_second], rows)
            noise = second - other_second  # one batch, two seeds
            products = abs(probe.sum_layers(movement.vector * noise))  # inner products by layer
            lengths = movement.layer_norms * np.sqrt(probe.sum_layers(noise**2))
            # Scaling the noise causes a change parallel to it. A change of length 0 counts as parallel.
            is_parallel = lengths.any() and np.all(products >= _PARALLEL * lengths)
            effects.append(SeedEffect(movement.excess, scales_noise=bool(is_parallel)))
    return max(effects)  # by the excess
