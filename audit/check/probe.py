"""A caller's step as a function of a batch and a seed to numbers, and how exactly it can be measured."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import trees
from audit.check.report import one_line
from audit.check.trees import Columns, Vector
from audit.errors import InputError, require
from audit.values import number, shown

Step = Callable[[Any, Any, int], Any]
_FLOOR = 5e-4  # of a tolerance


class Stated(NamedTuple):
    """What the caller says of the step."""

    clipping_norm: float
    noise_multiplier: float
    learning_rate: float
    batch_size: float

    @property
    def unit(self) -> float:
        """eta C / B, as far as one example may move the parameters."""
        return self.learning_rate * self.clipping_norm / self.batch_size


class Moved(NamedTuple):
    """How far an example moves the step, in units, with its tolerance; by layer; each number's (p,)."""

    units: float
    tolerance: float
    layers: dict[str, float]
    difference: Vector


class RefusedError(Exception):
    """The step failed on a batch."""


@dataclass
class StepProbe:
    """A step as a function of a batch's rows and a seed to a float64 vector (p,), and what is known of it.

    start, spacings: (p,) the parameters before it, and the distance of such numbers from 1 to 2.
    base: (p,) the step on `rows` with seed 0. depends: (p,) which numbers a batch or a seed has moved.
    """

    step: Step
    params: Any
    batch: Any
    rows: Columns
    stated: Stated
    start: Vector
    spacings: Vector
    layers: dict[str, slice]
    base: Vector
    depends: NDArray[np.bool_]

    def __call__(self, rows: Columns, seed: int) -> Vector:
        """(p,) after a step from copies of the parameters."""
        own = trees.mapped(self.params, lambda _, leaf: trees.copied(leaf))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = self.step(own, trees.as_given(rows, self.batch), seed)
        except InputError:
            raise
        except Exception as error:  # of the caller's code
            raise RefusedError(one_line(error)) from error
        found = self._vector(given)
        self.depends |= found != self.base
        return found

    def _vector(self, given: Any) -> Vector:
        require(given is not None, "`step` returned nothing: return the parameters after the step")
        after = trees.leaves("step", list(given) if hasattr(given, "__next__") else given)
        missing = [name for name in self.layers if name not in after]
        own = "return the parameters' own tree"
        require(not missing, f"`step` returned no {', '.join(missing[:5])!r}: {own}")
        parts = [trees.numpy_of(after[name]).ravel() for name in self.layers]
        same = [part.size for part in parts] == [at.stop - at.start for at in self.layers.values()]
        require(same, f"`step` returned parameters of other shapes: {own}")
        return np.concatenate(parts)

    def trained(self) -> list[str]:
        """The layers that a batch or a seed has moved."""
        return [name for name, at in self.layers.items() if np.any(self.depends[at])]

    def measured(self, difference: Vector, after: Vector, examples: int, steps: int = 2) -> Moved:
        """The length of a sum or difference of as many steps like `after`, in units, without what rounding
        adds to it; its tolerance is 6 deviations of that, around 1 for two steps and 0 for more."""
        difference = difference / self.stated.unit
        if not np.all(np.isfinite(difference)):
            return Moved(np.inf, 0.0, dict.fromkeys(self.layers, np.inf), difference)
        variance = steps * self.grid(after, examples) ** 2 / 12
        units = float(np.sqrt(max(np.sum(difference**2) - np.sum(variance), 0)))
        around = max(units, 1.0) if steps == 2 else 0.0
        deviation = np.sqrt(4 * around**2 * np.max(variance) + 2 * np.sum(variance**2))
        tolerance = np.sqrt(around**2 + 6 * deviation) - around
        tolerance += (steps / 2) ** 2 * (_FLOOR + 4 * np.max(self.spacings))
        by_layer = {name: float(np.linalg.norm(difference[at])) for name, at in self.layers.items()}
        return Moved(units, float(tolerance), by_layer, difference)

    def grid(self, after: Vector, examples: int) -> Vector:
        """(p,) how far rounding may move each number of a step, in units."""
        update = trees.ulp(after - self.start, np.maximum(self.spacings, 2.0**-23))
        grid = np.sqrt(trees.ulp(after, self.spacings) ** 2 + (4 + examples) * update**2) / self.stated.unit
        return np.asarray(grid if self.stated.noise_multiplier else np.where(after == self.start, 0, grid))


def probe_of(step: Step, params: Any, batch: Any, given: Mapping[str, Any]) -> StepProbe:
    """The probe, once the step was made on the batch as given; raises InputError for what is none, and
    RefusedError for a step that fails."""
    stated = Stated(**{name: number(name, value, float) for name, value in given.items()})
    for name, value in stated._asdict().items():
        least, above = (0, "0 or more") if name == "noise_multiplier" else (1e-30, "more than 0")
        require(least <= value < 1e30, f"`{name}={value:g}`: give a finite number, {above}")
    require(callable(step), f"`step={shown(step)}` is no function: give (params, batch, seed) -> params")
    found = {name: leaf for name, leaf in trees.leaves("params", params).items() if trees.is_float(leaf)}
    require(found, f"`params={shown(params)}` holds no floating-point array: give the parameters")
    parts = [trees.numpy_of(leaf).ravel() for leaf in found.values()]
    start, ends = np.concatenate(parts), np.cumsum([part.size for part in parts])
    require(start.size and np.all(np.isfinite(start)), "`params` are not finite: give numbers")
    spacings = np.repeat([trees.spacing(leaf) for leaf in found.values()], [part.size for part in parts])
    layers = {name: slice(int(e) - p.size, int(e)) for name, p, e in zip(found, parts, ends, strict=True)}
    rows, still = trees.columns_of("batch", batch), np.zeros(start.size, bool)
    probe = StepProbe(step, params, batch, rows, stated, start, spacings, layers, start, still)
    probe.base = probe(rows, 0)
    probe.depends[:] = False
    return probe
