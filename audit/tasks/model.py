"""Converts a Flax module and a criterion to a loss over a flat parameter vector."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree


def identity(features: Array) -> Array:
    """Returns the features unchanged."""
    return features


class Model(NamedTuple):
    """A network with a flat parameter vector.

    Attributes:
      n_parameters: p, the number of parameters.
      init: key -> initial parameters theta (p,).
      unravel: theta -> the module's parameter tree.
      loss: (theta, (features, label)) -> the loss of a single example, ().
      module: the Flax module, for an example without a batch axis; None for a model that is only a loss.
      criterion: (logits, label) -> the loss of a single example, (); None if `module` is None.
      inputs: features -> the floats that enter the first layer. The module also accepts these floats
        instead of features.
    """

    n_parameters: int
    init: Callable[[Array], Array]
    unravel: Callable[[Array], Any]
    loss: Callable[[Array, tuple[Array, Array]], Array]
    module: Any = None
    criterion: Callable[[Any, Array], Array] = None  # type: ignore[assignment]
    inputs: Callable[[Array], Array] = identity

    def __hash__(self) -> int:
        """Hashes only the loss, because a module may not be hashable."""
        return hash(self.loss)

    def tensors(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of the parameter tensors, keyed by path, in the order of theta."""
        theta = jax.ShapeDtypeStruct((self.n_parameters,), np.float32)
        tree = jax.eval_shape(self.unravel, theta)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        name = jax.tree_util.keystr
        return {name(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def flat_model(
    module: nn.Module,
    example: Array,
    criterion: Callable[[Array, Array], Array],
    inputs: Callable[[Array], Array] = identity,
) -> Model:
    """Returns a Flax module as a Model with a flat parameter vector theta (p,).

    Args:
      module: maps the features of a single example, without a batch axis, to logits.
      example: the features of any example; only their shape and dtype are used.
      criterion, inputs: as in `Model`.
    """
    shapes = jax.eval_shape(module.init, jax.random.key(0), example)["params"]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    template, unravel = ravel_pytree(zeros)

    # JAX caches compiled functions on disk. Without `jit`, the ConvNet's 78 operations take 2 s per process.
    @jax.jit
    def init(key: Array) -> Array:
        """Draws flat initial parameters (p,)."""
        flat, _ = ravel_pytree(module.init(key, example)["params"])
        return flat

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the loss of a single example (features, label) at the flat parameters theta (p,)."""
        features, label = labelled
        logits: Any = module.apply({"params": unravel(theta)}, features)
        return criterion(logits, label)

    return Model(
        n_parameters=template.size,
        init=init,
        unravel=unravel,
        loss=loss,
        module=module,
        criterion=criterion,
        inputs=inputs,
    )


def losses_by_example(model: Model) -> Callable[[Any, tuple[Array, Array]], Array]:
    """Returns a function (parameter tree, (features (B, ...), labels (B, ...))) -> losses (B,)."""

    def losses(parameters: Any, batch: tuple[Array, Array]) -> Array:
        """Returns the loss of each example in a batch, (B,)."""
        features, labels = batch
        variables = {"params": parameters}
        logits = jax.vmap(lambda example: model.module.apply(variables, example))(features)
        return jax.vmap(model.criterion)(logits, labels)

    return losses
