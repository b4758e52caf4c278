"""Evaluates a step as a function from a batch and a seed to a vector, and estimates rounding errors."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from audit.check import examples, trees
from audit.check.trees import Columns, Mask, Vector
from audit.errors import InputError, describe_error, number, require, shown

Step = Callable[[Any, Any, int], Any]
_RETURN = "return a tree with the same structure as the parameters"


class StepSettings(NamedTuple):
    """The stated C, sigma, eta and B of a step."""

    clipping_norm: float
    noise_multiplier: float
    learning_rate: float
    batch_size: float

    def read(self) -> "StepSettings":
        """Returns the settings as floats; raises InputError if one is out of range or not a number."""
        for name, value in self._asdict().items():
            stated = number(name, value, float)
            # In this range, squares of products and quotients of settings do not overflow in float64.
            is_in_range = 1e-30 <= stated < 1e30 or (name == "noise_multiplier" and stated == 0)
            require(is_in_range, f"`{name}={stated:g}`: give a number above 0 and below 1e30")
        return StepSettings(*map(float, self))

    @property
    def unit(self) -> float:
        """eta C / B."""
        return self.learning_rate * self.clipping_norm / self.batch_size

    @property
    def deviation(self) -> float:
        """eta sigma C / B."""
        return self.unit * self.noise_multiplier


class Movement(NamedTuple):
    """How far a change to the batch moves the step, in units of eta C / B.

    Attributes:
      norm: the Euclidean norm over all parameters, corrected for the average effect of rounding.
      tolerance: the largest plausible effect of rounding on the norm.
      layer_norms: (layers,) the norms within each layer.
      vector: (p,) the movement of each parameter.
    """

    norm: float
    tolerance: float
    layer_norms: Vector
    vector: Vector

    @property
    def excess(self) -> float:
        """The norm minus its tolerance."""
        return self.norm - self.tolerance


class RefusedError(Exception):
    """Raised if the step fails on a batch."""


class StepProbe:
    """A step as a function from a batch and a seed to the parameters after the step.

    The parameters of all layers form a float64 vector (p,). A layer is a non-empty floating-point array in
    the user's parameter tree.

    Attributes:
      step: the user's function.
      settings: the stated numbers.
      rows: the given batch, as NumPy arrays.
      layer_names: (layers,) the path of each layer in the parameter tree.
      sizes, dimensions: (layers,) each layer's number of parameters, and its number of axes.
      library: the package of the parameter arrays: "torch", "jaxlib" or "numpy".
      layer: (p,) the layer index of each parameter.
      start: (p,) the parameters before the step.
      base: (p,) the parameters after the step on `rows` with seed 0.
      spacings: (p,) the machine epsilon of each returned parameter's floating-point type.
      is_trained: (p,) True for parameters that differed from `base` after any step.
    """

    def __init__(self, step: Step, params: Any, batch: Any, settings: StepSettings) -> None:
        """Reads the parameters and the batch, and takes a step with seed 0.

        Raises:
          InputError: the parameters, the batch or the step has the wrong type, or the step does not return
            parameters.
          RefusedError: the step fails on the given batch.
        """
        require(
            callable(step),
            f"`step={shown(step)}` is not a function: give (params, batch, seed) -> params",
        )
        self.step: Callable[..., Any] = step
        self.settings = settings
        self._params = params
        self._batch = batch
        self.rows = examples.read_columns(batch)
        layers = {}
        for name, leaf in trees.collect_leaves("params", params).items():
            if "float" in str(leaf.dtype) and 0 not in leaf.shape:
                layers[name] = leaf
                self.library = type(leaf).__module__.split(".")[0]
        require(layers, f"`params={shown(params)}` has no floating-point arrays: give parameters")
        self.layer_names = list(layers)
        self.sizes = [math.prod(leaf.shape) for leaf in layers.values()]
        self.dimensions = np.array([len(leaf.shape) for leaf in layers.values()])
        self.layer = np.repeat(np.arange(len(layers)), self.sizes)
        self.start = self._read_numbers(layers)
        require(np.isfinite(self.start).all(), "`params` are not finite: give numbers")

        leaves = self._call(self.rows, seed=0)
        self.base = self._read_numbers(leaves)
        spacings = np.array([trees.get_spacing(leaves[name]) for name in self.layer_names])
        self.spacings = spacings[self.layer]
        self._largest_machine_epsilon = max(*spacings, *map(trees.get_spacing, layers.values()))
        self.is_trained = np.zeros(self.start.size, bool)  # updated by `run`

    def run(self, rows: Columns, seed: int = 0) -> Vector:
        """Takes a step on the batch `rows`, updates `is_trained`, and returns the parameters (p,) after it.

        The default seed is that of `base`.

        Raises:
          InputError: the step does not return parameters.
          RefusedError: the step raises an error or exits on this batch.
        """
        after = self._read_numbers(self._call(rows, seed))
        self.is_trained |= after != self.base
        return after

    @property
    def is_layer_trained(self) -> Mask:
        """(layers,) True for layers with a trained parameter."""
        return self.sum_layers(self.is_trained) > 0

    def sum_layers(self, values: Any) -> Any:
        """Sums an array (p,) over the parameters of each layer."""
        return np.bincount(self.layer, values)

    def _call(self, rows: Columns, seed: int) -> dict[str, Any]:
        """Takes a step on the batch `rows`, and returns its arrays by path; raises the same errors as `run`.

        The step gets copies of the parameters, because it may change them in place or donate them to JAX.
        """
        ends = np.cumsum(self.sizes)[:-1]
        values = dict(zip(self.layer_names, np.split(self.start, ends), strict=True))

        def copy_leaf(name: str, leaf: Any) -> Any:
            """Returns an array like `leaf` with the layer's values, or a copy if `leaf` is not a layer."""
            if name not in values:
                return copy.deepcopy(leaf)
            return trees.restore(values[name].reshape(leaf.shape), leaf)

        params = trees.map_tree(self._params, copy_leaf, "params")
        remaining = iter(rows)  # one array for each leaf, in the same order
        batch = trees.map_tree(
            self._batch, lambda _, leaf: trees.restore(next(remaining), leaf), "batch"
        )
        try:
            result = self.step(params, batch, seed)
        except InputError:  # already a message for the user
            raise
        except (Exception, SystemExit) as error:
            raise RefusedError(describe_error(error)) from error
        return trees.collect_leaves("step", result)

    def _read_numbers(self, leaves: Mapping[str, Any]) -> Vector:
        """Returns the layers in `leaves` as a vector (p,); raises InputError if a layer's size differs."""
        missing = [name for name in self.layer_names if name not in leaves]
        require(not missing, f"`step` returned no {', '.join(missing[:5])!r}: {_RETURN}")
        layers = [trees.to_numpy(leaves[name]).ravel() for name in self.layer_names]
        same_sizes = list(map(np.size, layers)) == self.sizes
        require(same_sizes, f"`step` returned parameters of different shapes: {_RETURN}")
        return np.concatenate(layers)

    def with_larger_norm(self) -> "StepProbe | None":
        """Returns a probe with 100 times the clipping norm, which also scales the noise.

        Returns None if the step does not accept the argument `clipping_norm`, or ignores it.
        """
        clipping_norm = 100 * self.settings.clipping_norm
        settings = self.settings._replace(clipping_norm=clipping_norm)
        step = functools.partial(self.step, clipping_norm=clipping_norm)
        try:
            changed = self.change(settings=settings, step=step)
        except RefusedError:
            return None
        return None if np.array_equal(changed.base, self.base) else changed

    def change(self, **attributes: Any) -> "StepProbe":
        """Returns a copy with some attributes (such as `start`) replaced and `base` recomputed.

        Raises:
          RefusedError: the step fails.
        """
        changed = copy.copy(self)
        # `run` updates `is_trained` in place.
        vars(changed).update(attributes, is_trained=self.is_trained.copy())
        changed.base = changed.run(self.rows)
        return changed

    def measure(
        self, added: list[Vector], subtracted: list[Vector], rows: Columns, factor: float = 1.0
    ) -> Movement:
        """Measures factor * (sum of `added` - sum of `subtracted`) / (eta C / B), corrected for rounding.

        Args:
          added: one or two vectors (p,) of parameters after steps.
          subtracted: the same number of vectors.
          rows: the batch of the first step in `subtracted`.
          factor: for example, 0.5 if one example replaces another.

        Returns:
          The movement. Its tolerance is a margin plus the change in the norm if rounding shifts the squared
          norm by six standard deviations. If the difference is not finite, the norm is infinite and the
          tolerance is 0.
        """
        steps = len(added) + len(subtracted)
        vector = factor * (np.sum(added, axis=0) - np.sum(subtracted, axis=0)) / self.settings.unit
        squares = vector**2
        layer_norms = np.sqrt(self.sum_layers(squares))
        if not np.isfinite(squares).all():
            return Movement(norm=np.inf, tolerance=0.0, layer_norms=layer_norms, vector=vector)

        # Rounding errors are uniform over a spacing h, with variance h^2 / 12, and increase the squared norm
        # by the sum of their variances.
        variance = steps * self.compute_rounding(subtracted[0], rows) ** 2 / 12
        norm = float(np.sqrt(max(squares.sum() - variance.sum(), 0)))
        # The error depends on the true norm: we assume the larger of the measured norm and C (1) for two
        # steps, and 0 for an interaction (four steps), as in a correct step.
        true_norm = max(norm, 1.0) if steps == 2 else 0.0
        # For |v| = true_norm and independent normal errors e, the variance of |v + e|^2 is largest if v is 0
        # except in the parameter with the largest error.
        deviation = np.sqrt(4 * true_norm**2 * variance.max() + 2 * np.sum(variance**2))
        tolerance = np.sqrt(true_norm**2 + 6 * deviation) - true_norm
        # The margins, 0.0005 C for two steps and 0.002 C for four, cover other rounding errors, such as
        # those of the norms used for clipping.
        tolerance += (steps / 2) ** 2 * 5e-4 + 4 * self._largest_machine_epsilon
        return Movement(norm, float(tolerance), layer_norms, vector)

    def compute_rounding(self, after: Vector, rows: Columns) -> Vector:
        """Returns the effective spacing (p,) to which a step rounds each parameter, in units of eta C / B.

        A step rounds the update several times, and then the parameters. If these roundings are independent,
        the effective spacing is the square root of the sum of squared spacings. Layers that no step moves are
        not rounded; without noise, neither are unmoved parameters. `after` (p,) are the parameters after a
        step on the batch `rows`.
        """
        update = after - self.start
        # A step may return the private gradient instead of the parameters. Layers that are closer to 0 than
        # to their start are treated as gradients.
        is_gradient = self.sum_layers(after**2) < self.sum_layers(update**2)
        update = np.where(is_gradient[self.layer], after, update)
        # Updates are assumed to be rounded to float32 or coarser: once for each example, and four more times
        # by operations on the sum, such as adding noise and dividing by B.
        update_spacings = trees.compute_ulp(update, np.maximum(self.spacings, 2.0**-23))
        result_spacings = trees.compute_ulp(after, self.spacings)
        count = 4 + len(rows[0])
        rounding = np.sqrt(result_spacings**2 + count * update_spacings**2) / self.settings.unit
        is_moved = after != self.start
        if self.settings.noise_multiplier:  # all parameters of a trained layer then move
            is_layer_moved = self.sum_layers(is_moved) > 0
            is_moved = (is_layer_moved | self.is_layer_trained)[self.layer]
        return np.where(is_moved, rounding, 0)
