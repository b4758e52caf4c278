"""A caller's step as a function of a batch and a seed to numbers, and how exactly it can be measured."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import trees
from audit.check.findings import Moved, Stated
from audit.check.report import CheckFinding, one_line
from audit.check.trees import Columns, Vector
from audit.errors import InputError, require
from audit.values import shown

Step = Callable[[Any, Any, int], Any]
_FLOOR = 5e-4  # of a tolerance


class RefusedError(Exception):
    """The step failed on a batch."""


@dataclass
class StepProbe:
    """A step as a function of rows and a seed to a float64 vector, in units once the start is taken off."""

    step: Step
    params: Any
    batch: trees.GivenBatch
    stated: Stated
    start: Vector
    spacings: Vector
    layers: dict[str, slice]
    depends: NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros(0, bool)
    )  # on seed or batch, a coordinate each
    base: Vector | None = None

    def __call__(self, columns: Columns, seed: int) -> Vector:
        """(p,) after a step from copies of the parameters."""
        own = trees.mapped(self.params, lambda _, leaf: trees.copied(leaf))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = self.step(own, self.batch.as_given(columns), seed)
        except InputError:
            raise
        except Exception as error:  # of the caller's code
            raise RefusedError(one_line(error)) from error
        found = self._vector(given)
        if self.base is None:
            self.base, self.depends = found, np.zeros(found.size, bool)
        self.depends |= found != self.base
        return found

    def _vector(self, given: Any) -> Vector:
        require(given is not None, "`step` returned nothing: return the parameters after the step")
        if not hasattr(given, "dtype") and hasattr(given, "__next__"):
            given = list(given)
        after = trees.leaves("step", given)
        missing = [name for name in self.layers if name not in after]
        require(
            not missing, f"`step` returned no {', '.join(missing[:5])!r}: return the parameters' own tree"
        )
        parts = [trees.numpy_of(after[name]).ravel() for name in self.layers]
        sizes = [place.stop - place.start for place in self.layers.values()]
        same = [part.size for part in parts] == sizes
        require(same, "`step` returned parameters of other shapes: return the parameters' own tree")
        return np.concatenate(parts)

    def grid(self, after: Vector, examples: int) -> Vector:
        """(p,) how far rounding may move each number of a difference of two steps, in units."""
        update = trees.ulp(after - self.start, np.maximum(self.spacings, 2.0**-23))
        grid = np.sqrt(trees.ulp(after, self.spacings) ** 2 + (4 + examples) * update**2) / self.stated.unit
        return np.asarray(
            np.where(after == self.start, 0, grid) if self.stated.noise_multiplier == 0 else grid
        )

    def moved(self, one: Vector, other: Vector, examples: int) -> Moved:
        """How far it is from one step to another, in units, without what rounding adds."""
        difference = (one - other) / self.stated.unit
        if not np.all(np.isfinite(difference)):
            return Moved(np.inf, 0.0, {name: np.inf for name in self.layers}, difference)
        grid = self.grid(other, examples)
        squares = max(float(np.sum(difference**2) - np.sum(grid**2) / 6), 0.0)
        worst = float(np.max(grid, initial=0))
        error = np.sqrt(4 * max(squares, 1) * worst**2 / 6 + 0.06 * np.sum(grid**4))
        tolerance = float(np.sqrt(1 + 6 * error) - 1) + _FLOOR + 4 * float(np.max(self.spacings))
        by_layer = {name: float(np.linalg.norm(difference[at])) for name, at in self.layers.items()}
        return Moved(float(np.sqrt(squares)), tolerance, by_layer, difference)


class PartSeen(NamedTuple):
    """A part of a report: what its rows say and whether they could be tried, findings, p-values, figures."""

    said: dict[str, tuple[str, bool]] = {}
    found: list[CheckFinding] = []
    p_values: dict[str, float] = {}
    figures: dict[str, Any] = {}


def probe_of(step: Step, params: Any, batch: Any, stated: Stated) -> StepProbe:
    """The probe; raises InputError for parameters or a batch that are none."""
    found = {name: leaf for name, leaf in trees.leaves("params", params).items() if trees.is_float(leaf)}
    require(found, f"`params={shown(params)}` holds no floating-point array: give the parameters")
    values = {name: trees.numpy_of(leaf).ravel() for name, leaf in found.items()}
    start = np.concatenate(list(values.values()))
    require(start.size and np.all(np.isfinite(start)), "`params` are not finite: give numbers")
    ends = np.cumsum([value.size for value in values.values()])
    layers = {name: slice(int(e) - v.size, int(e)) for (name, v), e in zip(values.items(), ends, strict=True)}
    spacings = np.concatenate(
        [np.full(values[name].size, trees.spacing(leaf)) for name, leaf in found.items()]
    )
    return StepProbe(step, params, trees.examples_of("batch", batch), stated, start, spacings, layers)
