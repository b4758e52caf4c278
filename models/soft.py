"""Losses of relaxed examples, whose label or tokens are mixtures, so that gradients can descend on them."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from audit.tasks.model import Model

SoftLoss = Callable[[Array, tuple[Array, Array]], Array]


def soft_label(model: Model, classes: int) -> SoftLoss:
    """Makes a loss function for examples whose label is random: the expectation of the model's criterion.

    Args:
      model: the model whose criterion is averaged.
      classes: the number of classes.

    Returns:
      loss(theta (p,), (features, probabilities (classes,))): the expectation of the model's criterion over a
      label with these probabilities. Where a single probability is 1, it is the loss of that label.
    """

    def loss(theta: Array, example: tuple[Array, Array]) -> Array:
        """Returns the mean of the criterion, weighted by the label's probabilities (classes,)."""
        features, probabilities = example
        logits: Any = model.module.apply({"params": model.unravel(theta)}, features)

        def criterion(label: Array) -> Array:
            """Returns the model's criterion at a label, which `vmap` runs over all classes."""
            return model.criterion(logits, label)

        return probabilities @ jax.vmap(criterion)(jnp.arange(classes))

    return loss


def soft_tokens(model: Model) -> Callable[[Array, Array], Array]:
    """Makes the next-token loss function for texts whose tokens are mixtures.

    A mixture is a vector of weights over the V tokens of the vocabulary. The model reads it, in place of a
    single token, as the weighted sum of the tokens' embeddings.

    Args:
      model: a model whose module begins with a single nn.Embed of V rows and gives logits (T, V).

    Returns:
      loss(theta (p,), mixtures (T + 1, V)): the module reads mixtures 1 to T and predicts, at each position,
      the next mixture. The loss is the cross entropy of the prediction against the next mixture, averaged
      over the T positions. Where every mixture is a single token, this is the usual next-token loss.
    """

    def loss(theta: Array, mixtures: Array) -> Array:
        """Returns the mean cross entropy of predicting each mixture but the first from those before it.

        The mixtures are (T + 1, V), so there are T predictions.
        """
        logits = _compute_logits_of_mixtures(model, theta, mixtures[:-1])
        following = mixtures[1:]  # (T, V), the mixtures to predict
        log_likelihoods = jnp.sum(following * jax.nn.log_softmax(logits), axis=-1)
        return -jnp.mean(log_likelihoods)

    return loss


def gumbel_softmax(key: Array, log_weights: Array, temperature: float = 1.0) -> Array:
    """Draws mixtures (..., V) from the Gumbel-softmax distribution (Jang, Gu and Poole, 2017).

    A mixture is softmax((log_weights + g) / temperature), where g is independent standard Gumbel noise.

    Args:
      key: the random key.
      log_weights: (..., V), the logarithms of the tokens' weights, which need not add up to 1.
      temperature: above 0; the lower, the closer a mixture is to a single token.
    """
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.nn.softmax((log_weights + noise) / temperature)


def _compute_logits_of_mixtures(model: Model, theta: Array, mixtures: Array) -> Any:
    """Computes a module's logits for mixtures (T, V) of tokens, in place of tokens (T,).

    The module's embedding layer is intercepted: it returns mixtures times its matrix (V, width), which is
    the mixture of the tokens' embeddings. All other layers run as they are.
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
