"""A caller's step as a function of a batch and a seed to numbers, and how exactly it can be measured."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

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
    """How far an example moves the step, in units, and its tolerance; by layer (l,) and number (p,)."""

    units: float
    tolerance: float
    layers: Vector
    numbers: Vector


class RefusedError(Exception):
    """The step failed on a batch."""


class StepProbe:
    """A step as a function of a batch's rows and a seed to a float64 vector (p,), and what is known of it.

    names: the layers'. layer, start, spacings: (p,) whose a number is, what it is before the step, and the
    distance of such numbers from 1 to 2. base: (p,) the step on `rows` with seed 0. depends: (p,) what a
    batch or a seed has moved. Raises InputError for what is no step, RefusedError for one that fails.
    """

    def __init__(self, step: Step, params: Any, batch: Any, given: Mapping[str, Any]) -> None:
        self.stated = Stated(**{name: number(name, value, float) for name, value in given.items()})
        for name, value in self.stated._asdict().items():
            least, above = (0, "0 or more") if name == "noise_multiplier" else (1e-30, "more than 0")
            require(least <= value < 1e30, f"`{name}={value:g}`: give a finite number, {above}")
        require(callable(step), f"`step={shown(step)}` is no function: give (params, batch, seed) -> params")
        every = trees.leaves("params", params).items()
        found = {name: leaf for name, leaf in every if "float" in str(leaf.dtype)}
        require(found, f"`params={shown(params)}` holds no floating-point array: give the parameters")
        parts = [trees.numpy_of(leaf).ravel() for leaf in found.values()]
        self.names, self.sizes = list(found), [part.size for part in parts]
        self.layer = np.repeat(np.arange(len(parts)), self.sizes)
        self.start = self.base = np.concatenate(parts)
        require(self.start.size and np.all(np.isfinite(self.start)), "`params` are not finite: give numbers")
        kinds = [str(leaf.dtype).split(".")[-1] for leaf in found.values()]
        self.spacings = np.array([trees.SPACING.get(kind, 2.0**-52) for kind in kinds])[self.layer]
        self.step, self.params, self.batch, self.rows = step, params, batch, trees.columns_of("batch", batch)
        self.depends = np.zeros(self.start.size, bool)
        self.base = self(self.rows, 0)
        self.depends[:] = False

    def __call__(self, rows: Columns, seed: int) -> Vector:
        """(p,) after a step from copies of the parameters, which it may change in place or donate."""

        def copied(_: str, leaf: Any) -> Any:
            torch = hasattr(leaf, "detach")
            return leaf.detach().clone().requires_grad_(leaf.requires_grad) if torch else leaf.copy()

        own = trees.mapped(self.params, copied)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = self.step(own, trees.as_given(rows, self.batch), seed)
        except InputError:
            raise
        except Exception as error:  # of the caller's code
            raise RefusedError(one_line(error)) from error
        require(given is not None, "`step` returned nothing: return the parameters after the step")
        after = trees.leaves("step", list(given) if hasattr(given, "__next__") else given)
        missing, own = [name for name in self.names if name not in after], "return the parameters' own tree"
        require(not missing, f"`step` returned no {', '.join(missing[:5])!r}: {own}")
        parts = [trees.numpy_of(after[name]).ravel() for name in self.names]
        same = [part.size for part in parts] == self.sizes
        require(same, f"`step` returned parameters of other shapes: {own}")
        found = np.concatenate(parts)
        self.depends |= found != self.base
        return found

    def measured(self, difference: Vector, after: Vector, examples: int, steps: int = 2) -> Moved:
        """The length of a sum or difference of as many steps like `after`, in units, without what rounding
        adds to it; its tolerance is 6 deviations of that, around 1 for two steps and 0 for more."""
        squares = (difference / self.stated.unit) ** 2
        layers = np.sqrt(np.bincount(self.layer, squares))
        if not np.all(np.isfinite(squares)):
            return Moved(np.inf, 0.0, layers, squares)
        variance = steps * self.grid(after, examples) ** 2 / 12
        units = float(np.sqrt(max(np.sum(squares) - np.sum(variance), 0)))
        around = max(units, 1.0) if steps == 2 else 0.0
        deviation = np.sqrt(4 * around**2 * np.max(variance) + 2 * np.sum(variance**2))
        tolerance = np.sqrt(around**2 + 6 * deviation) - around
        tolerance += (steps / 2) ** 2 * (_FLOOR + 4 * np.max(self.spacings))
        return Moved(units, float(tolerance), layers, np.sqrt(squares))

    def grid(self, after: Vector, examples: int) -> Vector:
        """(p,) how far rounding may move each number of a step, in units."""
        update = trees.ulp(after - self.start, np.maximum(self.spacings, 2.0**-23))
        grid = np.sqrt(trees.ulp(after, self.spacings) ** 2 + (4 + examples) * update**2) / self.stated.unit
        return np.asarray(grid if self.stated.noise_multiplier else np.where(after == self.start, 0, grid))
