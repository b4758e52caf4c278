"""Losses of relaxed examples, in which a label or tokens are mixtures: what a gradient can descend."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from audit.model import Model

SoftLoss = Callable[[Array, tuple[Array, Array]], Array]


def soft_label(model: Model, classes: int) -> SoftLoss:
    """loss(theta (p,), (features, probabilities (classes,))): the mean of the model's criterion over a label
    of these probabilities, and so its loss where one of them is 1."""

    def logits(theta: Array, features: Array) -> Any:
        return model.module.apply({"params": model.unravel(theta)}, features)

    return _mean_criterion(model, classes, logits)


def soft_text(model: Model, classes: int) -> SoftLoss:
    """loss(theta (p,), (mixtures (T, V), probabilities (classes,))) of a module that begins with one nn.Embed
    of V rows: `soft_label`'s, where the mixtures times the embedding's matrix are what the module reads."""

    return _mean_criterion(model, classes, partial(_read, model))


def soft_tokens(model: Model) -> Callable[[Array, Array], Array]:
    """loss(theta (p,), mixtures (T + 1, V)) of a module that begins with one nn.Embed of V rows and gives
    logits (T, V): the first T mixtures times the embedding's matrix are what it reads, the last T what
    follows.

    Where every mixture is one token, the mean cross entropy of the tokens that follow.
    """

    def loss(theta: Array, mixtures: Array) -> Array:
        logits = _read(model, theta, mixtures[:-1])
        return -jnp.mean(jnp.sum(mixtures[1:] * jax.nn.log_softmax(logits), axis=-1))

    return loss


def gumbel_softmax(key: Array, log_weights: Array, temperature: float = 1.0) -> Array:
    """Mixtures (..., V) of log weights with Gumbel noise (Jang, Gu and Poole, 2017)."""
    noisy = log_weights + jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.nn.softmax(noisy / temperature)


def _mean_criterion(model: Model, classes: int, logits_of: Callable[[Array, Array], Any]) -> SoftLoss:
    def loss(theta: Array, example: tuple[Array, Array]) -> Array:
        logits = logits_of(theta, example[0])
        return example[1] @ jax.vmap(lambda label: model.criterion(logits, label))(jnp.arange(classes))

    return loss


def _read(model: Model, theta: Array, mixtures: Array) -> Any:
    """The logits of a module whose embedding is given mixtures (T, V) in the place of tokens."""

    def embedded(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module = context.module
        if isinstance(module, nn.Embed) and context.method_name == "__call__":
            return mixtures @ module.embedding
        return call(*args, **kwargs)

    with nn.intercept_methods(embedded):
        tokens = jnp.zeros(len(mixtures), jnp.int32)
        return model.module.apply({"params": model.unravel(theta)}, tokens)
