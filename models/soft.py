"""Losses of relaxed examples, whose label or tokens are mixtures, so that gradients can descend on them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from audit.tasks.model import Model

SoftLoss = Callable[[Array, tuple[Array, Array]], Array]


def soft_label(model: Model, classes: int) -> SoftLoss:
    """Returns the loss of an example whose label is a mixture of classes.

    Returns:
      loss(theta (p,), (features, probabilities (classes,))): the mean of the model's criterion
      over a label of these probabilities, and so its loss where one of them is 1.
    """

    def compute_logits(theta: Array, features: Array) -> Any:
        return model.module.apply({"params": model.unravel(theta)}, features)

    return _make_mean_criterion(model, classes, compute_logits)


def soft_text(model: Model, classes: int) -> SoftLoss:
    """Returns the loss of a text whose tokens and label are mixtures.

    Args:
      model: its module begins with a single nn.Embed of V rows.
      classes: how many classes the label may have.

    Returns:
      loss(theta (p,), (mixtures (T, V), probabilities (classes,))): the mean of the criterion over
      a label of these probabilities, where the module reads the mixtures times the embedding's matrix.
    """
    return _make_mean_criterion(model, classes, partial(_compute_logits_of_mixtures, model))


def soft_tokens(model: Model) -> Callable[[Array, Array], Array]:
    """Returns the next-token loss of a text whose tokens are mixtures.

    Args:
      model: its module begins with a single nn.Embed of V rows and gives logits (T, V).

    Returns:
      loss(theta (p,), mixtures (T + 1, V)): the module reads the first T mixtures times the
      embedding's matrix, and predicts the last T. Where every mixture is a single token, the loss
      is the mean cross entropy of the tokens that follow.
    """

    def loss(theta: Array, mixtures: Array) -> Array:
        logits = _compute_logits_of_mixtures(model, theta, mixtures[:-1])
        following = mixtures[1:]
        log_likelihoods = jnp.sum(following * jax.nn.log_softmax(logits), axis=-1)
        return -jnp.mean(log_likelihoods)

    return loss


def gumbel_softmax(key: Array, log_weights: Array, temperature: float = 1.0) -> Array:
    """Draws mixtures (..., V): softmax((log weights + noise) / temperature), the noise Gumbel's.

    As of Jang, Gu and Poole (2017).
    """
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.nn.softmax((log_weights + noise) / temperature)


def _make_mean_criterion(
    model: Model,
    classes: int,
    compute_logits: Callable[[Array, Array], Any],
) -> SoftLoss:
    """Returns the loss that averages the model's criterion over an uncertain label.

    Args:
      model: whose criterion it is.
      classes: how many there are.
      compute_logits: (theta (p,), features) -> logits.
    """

    def loss(theta: Array, example: tuple[Array, Array]) -> Array:
        """Returns the mean of the criterion, weighted by the label's probabilities (classes,)."""
        features, probabilities = example
        logits = compute_logits(theta, features)

        def criterion(label: Array) -> Array:
            return model.criterion(logits, label)

        return probabilities @ jax.vmap(criterion)(jnp.arange(classes))

    return loss


def _compute_logits_of_mixtures(model: Model, theta: Array, mixtures: Array) -> Any:
    """Computes a module's logits where its embedding reads mixtures (T, V) of tokens in place of tokens (T,).

    The embedding of a mixture is the mixture of the tokens' embeddings.
    """

    def embed_mixtures(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        """Replaces the call of the embedding, and leaves all other calls to Flax."""
        module = context.module
        if isinstance(module, nn.Embed) and context.method_name == "__call__":
            return mixtures @ module.embedding
        return call(*args, **kwargs)

    with nn.intercept_methods(embed_mixtures):
        tokens = jnp.zeros(len(mixtures), jnp.int32)  # only their number matters
        return model.module.apply({"params": model.unravel(theta)}, tokens)
