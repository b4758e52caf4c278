"""A Flax module and a criterion as a loss over a flat parameter vector."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree


def identity(features: Array) -> Array:
    """Returns the features as they are."""
    return features


class Model(NamedTuple):
    """A network with a flat parameter vector.

    Attributes:
      n_parameters: p.
      init: key -> theta (p,).
      unravel: theta -> the module's parameter tree.
      loss: (theta, (features, label)) -> scalar, of a single example.
      module: takes a single example, without a batch axis; None for a model that is only a loss.
      criterion: (logits, label) -> scalar; None without a module.
      inputs: features -> the first layer's input, floats, which the module takes as features too.
    """

    n_parameters: int
    init: Callable[[Array], Array]
    unravel: Callable[[Array], Any]
    loss: Callable[[Array, tuple[Array, Array]], Array]
    module: Any = None
    criterion: Callable[[Any, Array], Array] = None  # type: ignore[assignment]
    inputs: Callable[[Array], Array] = identity

    def __hash__(self) -> int:
        """Returns the hash of the loss, which is unique; a module may not be hashable."""
        return hash(self.loss)

    def tensors(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shape of each parameter tensor by its path, in the order of theta."""
        theta = jax.ShapeDtypeStruct((self.n_parameters,), np.float32)
        tree = jax.eval_shape(self.unravel, theta)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        name = partial(jax.tree_util.keystr, simple=True, separator="/")
        return {name(path): leaf for path, leaf in leaves}


def flat_model(
    module: nn.Module,
    example: Array,
    criterion: Callable[[Array, Array], Array],
    inputs: Callable[[Array], Array] = identity,
) -> Model:
    """Returns a Flax module as a Model with a flat parameter vector theta (p,).

    Args:
      module: takes a single example, without a batch axis, and returns logits.
      example: an example with the shape and dtype for the module's initialisation.
      criterion: (logits, label) -> the loss of a single example, ().
      inputs: features of an example -> the first layer's input, for adversaries that craft examples.
    """
    shapes = jax.eval_shape(module.init, jax.random.key(0), example)["params"]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    template, unravel = ravel_pytree(zeros)

    # One program, cached on disk: the ConvNet's 78 single operations take 2 s in every process.
    @jax.jit
    def init(key: Array) -> Array:
        """Draws flat initial parameters (p,)."""
        flat: Array = ravel_pytree(module.init(key, example)["params"])[0]
        return flat

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the loss, (), of a single example (features, label) at the flat parameters theta (p,)."""
        features, label = labelled
        logits: Any = module.apply({"params": unravel(theta)}, features)
        return criterion(logits, label)

    return Model(template.size, init, unravel, loss, module, criterion, inputs)


def losses_by_example(model: Model) -> Callable[[Any, tuple[Array, Array]], Array]:
    """Returns the function (parameter tree, (features (B, ...), labels (B, ...))) -> losses (B,)."""

    def losses(parameters: Any, batch: tuple[Array, Array]) -> Array:
        """Returns the loss of each of a batch's B examples, (B,)."""
        features, labels = batch
        variables = {"params": parameters}
        logits = jax.vmap(lambda example: model.module.apply(variables, example))(features)
        return jax.vmap(model.criterion)(logits, labels)

    return losses
