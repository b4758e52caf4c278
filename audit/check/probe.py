"""A caller's step as a function from a batch and a seed to numbers, and how exactly it can be measured.

Movements are in units of eta C / B, as far as a single example may move the parameters.
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from audit.check import trees
from audit.check.report import describe_error
from audit.check.trees import Columns, Vector
from audit.errors import InputError, number, require, shown

Step = Callable[[Any, Any, int], Any]
_FLOOR = 5e-4  # the least tolerance of a movement's norm
_RETURN = "return the parameters' own tree"


class StepSettings(NamedTuple):
    """What the caller states of the step: C, sigma, eta and B."""

    clipping_norm: float
    noise_multiplier: float
    learning_rate: float
    batch_size: float

    @property
    def unit(self) -> float:
        """eta C / B, the farthest that one example may move the parameters."""
        return self.learning_rate * self.clipping_norm / self.batch_size

    def rescale(self, factor: float) -> "StepSettings":
        """Returns the settings of a step that is `factor` times as large."""
        return self._replace(learning_rate=factor * self.learning_rate)


class Movement(NamedTuple):
    """How far an example moves the step, in units of eta C / B.

    Attributes:
      norm: the Euclidean norm over all parameters, without what rounding adds.
      tolerance: how far rounding may have changed the norm.
      layer_norms: (layers,) the norms within each layer.
      vector: (p,) the movement of each parameter.
    """

    norm: float
    tolerance: float
    layer_norms: Vector
    vector: Vector


class RefusedError(Exception):
    """Raised where the step fails on a batch."""


class StepProbe:
    """The caller's step as a function from a batch's columns and a seed to the parameters after the step.

    The parameters are a float64 vector (p,): those of all layers, end to end. A layer is a floating-point
    array among the parameters that holds at least one number.

    Attributes:
      settings: what the caller states of the step.
      rows: the columns of the batch as given.
      layer_names: (layers,) the layers' paths in the parameters' tree.
      layer: (p,) the index of the layer that each parameter belongs to.
      dimensions: (layers,) how many axes each layer's array has.
      start: (p,) the parameters before the step.
      base: (p,) the parameters after the step on `rows` with seed 0.
      spacings: (p,) the distance from 1 to the next larger number, in the floating-point type in which the
        step returns each parameter: how coarsely it rounds.
      is_trained: (p,) whether a parameter has differed from `base` after any step so far.
    """

    def __init__(
        self,
        step: Step,
        params: Any,
        batch: Any,
        stated: Mapping[str, Any],
    ) -> None:
        """Runs the step once, on the batch as given with seed 0.

        Args:
          step: (params, batch, seed) -> params after a single step.
          params: the tree of parameters at which the step begins.
          batch: the tree of the batch's arrays.
          stated: the fields of `StepSettings`, as the caller gives them.

        Raises:
          InputError: a number in `stated` is out of range; parameters, batch or step are of the wrong type;
            or the step returns something else than the parameters.
          RefusedError: the step fails on the batch as given.
        """
        # What the caller gives.
        self.settings = _read_settings(stated)
        require(
            callable(step),
            f"`step={shown(step)}` is no function: give (params, batch, seed) -> params",
        )
        self._step = step
        self._params = params
        self._read_parameters(params)
        self._batch = batch
        self.rows = trees.read_columns("batch", batch)

        # What the first step returns: the parameters, and the types in which it rounds them.
        leaves = self._call(self.rows, 0)
        self.spacings = self._read_spacings(leaves)
        self.base = self._read_numbers(leaves)
        self.is_trained = np.zeros(self.start.size, bool)  # until further steps differ from `base`

    def _read_parameters(self, params: Any) -> None:
        """Sets the attributes that follow from the parameters: those of the layers, and `start`.

        A layer is a floating-point array among the parameters. Other and empty arrays are left out.
        """
        layers = {}
        for name, leaf in trees.collect_leaves("params", params).items():
            if "float" in str(leaf.dtype) and 0 not in leaf.shape:
                layers[name] = leaf
        require(
            layers, f"`params={shown(params)}` holds no floating-point array: give the parameters"
        )

        parts = []
        self._layer_sizes = []
        self.dimensions = []
        self._coarsest = 0.0  # the largest spacing of the layers' types
        for leaf in layers.values():
            part = trees.to_numpy(leaf).ravel()
            parts.append(part)
            self._coarsest = max(self._coarsest, _get_spacing(leaf))
            self._layer_sizes.append(part.size)
            self.dimensions.append(len(leaf.shape))
        self.layer_names = list(layers)
        self.layer = np.repeat(np.arange(len(parts)), self._layer_sizes)
        self.start = np.concatenate(parts)
        is_finite = np.all(np.isfinite(self.start))
        require(is_finite, "`params` are not finite: give numbers")

    def run(self, rows: Columns, seed: int) -> Vector:
        """Returns the parameters (p,) after a step on a batch; updates `is_trained`.

        The step gets copies of the parameters, which it may change in place or donate.

        Raises:
          InputError: the step returns something else than the parameters.
          RefusedError: the step fails on this batch, or ends the program.
        """
        after = self._read_numbers(self._call(rows, seed))
        self.is_trained |= after != self.base
        return after

    def _call(self, rows: Columns, seed: int) -> dict[str, Any]:
        """Runs the step on a batch; returns the arrays of the tree that it returns, by their paths.

        Raises:
          InputError: the step returns something else than the parameters.
          RefusedError: the step fails on this batch, or ends the program.
        """
        params = trees.map_tree(self._params, _copy_leaf)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the caller's code, which is called many times
                result = self._step(params, trees.restore_batch(rows, self._batch), seed)
        except InputError:  # its message says already what to do
            raise
        except SystemExit as error:
            raise RefusedError("the step ends the program by sys.exit") from error
        except Exception as error:  # of the caller's code
            raise RefusedError(describe_error(error)) from error

        require(result is not None, "`step` returned nothing: return the parameters after the step")
        if hasattr(result, "__next__"):  # an iterator, such as Module.parameters()
            result = list(result)
        leaves = trees.collect_leaves("step", result)
        missing = [name for name in self.layer_names if name not in leaves]
        require(not missing, f"`step` returned no {', '.join(missing[:5])!r}: {_RETURN}")
        return leaves

    def _read_numbers(self, leaves: Mapping[str, Any]) -> Vector:
        """Returns the layers that a step returned, by their paths, as a vector (p,)."""
        parts = []
        for name, size in zip(self.layer_names, self._layer_sizes, strict=True):
            part = trees.to_numpy(leaves[name]).ravel()
            require(part.size == size, f"`step` returned parameters of other shapes: {_RETURN}")
            is_real = part.dtype.kind in "iuf"
            require(is_real, f"`step` returned {part.dtype} for {name}: {_RETURN}")
            parts.append(part)
        return np.concatenate(parts)

    def _read_spacings(self, leaves: Mapping[str, Any]) -> Vector:
        """Returns `spacings` (p,) for the types of the arrays that a step returned, by their paths."""
        spacings = []
        for name in self.layer_names:
            spacings.append(_get_spacing(leaves[name]))
        return np.array(spacings)[self.layer]

    def begin_elsewhere(self) -> "StepProbe":
        """Returns a probe of the same step that begins at other parameters.

        A normal number is added to each trained parameter. Frozen ones, such as variances that have to be
        positive, stay as they are.

        Raises:
          RefusedError: the step fails there.
        """
        rng = np.random.default_rng(0)
        layer_ends = np.cumsum(self._layer_sizes)[:-1]
        is_trained_by_layer = dict(
            zip(self.layer_names, np.split(self.is_trained, layer_ends), strict=True)
        )

        def move_leaf(name: str, leaf: Any) -> Any:
            """Returns a leaf of the parameters with a normal number added to each trained one of its own."""
            if name not in is_trained_by_layer:  # it holds no floating-point numbers
                return leaf
            moves = rng.normal(size=leaf.shape) * is_trained_by_layer[name].reshape(leaf.shape)
            moved_leaf = trees.restore_batch([trees.to_numpy(leaf) + moves], leaf)
            if hasattr(leaf, "detach"):  # a tensor of torch
                return moved_leaf.requires_grad_(leaf.requires_grad)
            return moved_leaf

        moved = copy.copy(self)
        moved._params = trees.map_tree(self._params, move_leaf)
        moved._read_parameters(moved._params)
        moved.base = moved._read_numbers(moved._call(moved.rows, 0))
        moved.is_trained = self.is_trained.copy()
        return moved

    def with_clipping_norm(self, factor: float) -> "StepProbe | None":
        """Returns a probe of the same step with a larger clipping norm, and as much larger noise.

        None if the step does not take `clipping_norm`.

        Args:
          factor: the clipping norm over the stated one.
        """
        step: Callable[..., Any] = self._step
        try:
            parameters = inspect.signature(step).parameters
        except (TypeError, ValueError):  # compiled code may hide its parameters
            return None
        if "clipping_norm" not in parameters:
            return None
        clipping_norm = factor * self.settings.clipping_norm
        changed = copy.copy(self)
        changed.settings = self.settings._replace(clipping_norm=clipping_norm)
        changed._step = functools.partial(step, clipping_norm=clipping_norm)
        try:
            changed.base = changed._read_numbers(changed._call(changed.rows, 0))
        except RefusedError:
            return None
        return changed

    def measure(
        self,
        difference: Vector,
        after: Vector,
        examples: int,
        steps: int = 2,
    ) -> Movement:
        """Measures the length of a difference of steps, in eta C / B, without what rounding adds to it.

        Args:
          difference: (p,) the difference of the parameters after two steps, or their signed sum after four.
          after: (p,) the parameters after such a step, from which its rounding is computed.
          examples: the number of examples in the batch of such a step.
          steps: the number of steps in the difference, 2 or 4.

        Returns:
          The movement. Its tolerance is the change of the norm by six standard deviations of the rounding
          error of its square, plus a margin. The error depends on the norm. For two steps it is taken at the
          measured norm, but at 1 at least. For four steps it is taken at 0, their signed sum in a correct
          step. Where the difference is not finite, the norm is infinite and the tolerance 0.
        """
        vector = difference / self.settings.unit
        squares = vector**2
        layer_norms = np.sqrt(np.bincount(self.layer, squares))
        if not np.all(np.isfinite(squares)):
            return Movement(np.inf, 0.0, layer_norms, vector)

        # The norm, without the variance of the rounding errors, which add to the square of each parameter.
        # A rounding error is uniform over a spacing h, and so has variance h^2 / 12.
        variance = steps * self.compute_rounding(after, examples) ** 2 / 12
        square = np.sum(squares) - np.sum(variance)
        norm = float(np.sqrt(max(square, 0)))

        # The tolerance.
        around = max(norm, 1.0) if steps == 2 else 0.0  # the norm at which the error is taken
        # The variance of |v + e|^2 for |v| = around and an independent normal error e in each parameter, with
        # all of v where the error is largest.
        variance_of_square = 4 * around**2 * np.max(variance) + 2 * np.sum(variance**2)
        deviation = np.sqrt(variance_of_square)
        tolerance = np.sqrt(around**2 + 6 * deviation) - around
        # A margin for what this model of rounding leaves out. For four steps it is generous: four times as
        # much, not twice. The last term is for the norms that the step itself computes, to clip by.
        margin = (steps / 2) ** 2 * _FLOOR
        tolerance += margin + self.get_least_tolerance()
        return Movement(norm, float(tolerance), layer_norms, vector)

    def get_least_tolerance(self) -> float:
        """Returns how far a norm that the step computes in its parameters' precision may be wrong."""
        return float(4 * max(np.max(self.spacings), self._coarsest))

    def compute_rounding(self, after: Vector, examples: int) -> Vector:
        """Returns the spacing (p,) to which a step effectively rounds each parameter, in eta C / B.

        A step rounds the update several times, and then the updated parameters. The effective spacing is the
        root of the sum of the squared spacings of all these roundings, as if they were independent.
        Parameters of a layer that no step moves are not rounded.

        Args:
          after: (p,) the parameters after the step.
          examples: the number of examples in its batch, each of which adds a rounding.
        """
        update = after - self.start
        # A step may return the private gradient in place of the parameters. A layer that is nearer to 0 than
        # to where it started holds such a gradient, which itself is the update.
        squares_after = np.bincount(self.layer, after**2)
        is_gradient = squares_after < np.bincount(self.layer, update**2)
        update = np.where(is_gradient[self.layer], after, update)

        # The update is rounded to float32 at best, whatever the type of the parameters. Its roundings are
        # taken as one for each example that is summed, and four more for the few operations on the sum, such
        # as adding noise and dividing by B.
        update_spacings = trees.compute_ulp(update, np.maximum(self.spacings, 2.0**-23))
        result_spacings = trees.compute_ulp(after, self.spacings)
        rounding = np.sqrt(result_spacings**2 + (4 + examples) * update_spacings**2)
        rounding = rounding / self.settings.unit

        # What is not rounded at all.
        is_frozen = np.bincount(self.layer, self.is_trained | (after != self.start)) == 0
        rounding = np.where(is_frozen[self.layer], 0, rounding)
        if not self.settings.noise_multiplier:  # without noise, what did not move was not rounded
            rounding = np.where(after == self.start, 0, rounding)
        return np.asarray(rounding)


def _read_settings(stated: Mapping[str, Any]) -> StepSettings:
    """Returns the caller's numbers as settings; raises InputError for a number out of range."""
    return StepSettings(**{name: read_setting(name, value) for name, value in stated.items()})


def read_setting(name: str, value: Any) -> float:
    """Returns a caller's number, the field `name` of `StepSettings`; raises InputError if out of range."""
    stated = number(name, value, float)
    # From 1e-30 to 1e30, so that the square of any product or quotient of all four is within float64's range.
    least = 1e-30
    limit = "more than 0"
    if name == "noise_multiplier":
        least = 0.0
        limit = "0 or more"
    require(least <= stated < 1e30, f"`{name}={stated:g}`: give a finite number, {limit}")
    return stated


def _get_spacing(leaf: Any) -> float:
    """Returns the distance from 1 to the next larger number that an array's type can hold."""
    kind = str(leaf.dtype).split(".")[-1]  # "float32" of torch.float32
    return trees.SPACING.get(kind, 2.0**-52)


def _copy_leaf(_: str, leaf: Any) -> Any:
    """Returns a copy of an array or tensor of the caller's."""
    if hasattr(leaf, "detach"):  # a tensor of torch
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return leaf.copy()
