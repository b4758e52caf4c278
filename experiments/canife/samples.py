"""What a canary can be: an image with a label, a text with a label, or a text that is its own labels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.adversaries.designed import SampleLoss
from audit.model import Model, identity
from models import soft

Canary = NDArray[np.float32] | str  # as it is kept: normalised pixels, or a text
_LABEL_WEIGHT = 4.0  # a mixture's log weight at its first label: 86% of ten
_TOKEN_WEIGHT = 12.0  # a text's log weight at the token that it begins with, as in the public code


class Sample(NamedTuple):
    """What is designed: content, an image's normalised pixels (height, width, ...) or a text's log weights
    (T, alphabet), and a label's log weights (classes,)."""

    content: Array
    label: Array


class Samples(NamedTuple):
    """The samples of a model.

    random(rng) -> a sample without an example; taken(features, label) -> one that begins as an example.
    project(sample) -> the nearest that is allowed. settled(sample, key) -> the sample that a client has: of a
    text, a draw of its characters. shown(sample) -> what is kept of a settled one.
    """

    random: Callable[[np.random.Generator], Sample]
    taken: Callable[[NDArray[Any], Any], Sample]
    loss: SampleLoss
    project: Callable[[Sample], Sample]
    settled: Callable[[Sample, Array], Sample]
    shown: Callable[[Sample], Canary]


class ImageForm(NamedTuple):
    """Images of a shape and so many classes, and the mean and deviation of their pixels on [0, 1]."""

    shape: tuple[int, ...]
    classes: int
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]


class TextForm(NamedTuple):
    """Texts of so many characters: those of an alphabet, which are tokens first, first + 1, ... of a
    vocabulary; classes: of their label, 0 where each character is the label of those before it."""

    length: int
    alphabet: str
    first: int
    vocabulary: int
    classes: int


def images(model: Model, form: ImageForm, soft_label: bool, clamp: bool) -> Samples:
    """Images; their label a mixture or fixed, their pixels within [0, 1] or anywhere. A model that takes its
    first layer's floats in place of bytes gets them normalised and flat, others get pixels up to 255."""
    mixed = soft.soft_label(model, form.classes)
    mean, deviation = jnp.asarray(form.mean, jnp.float32), jnp.asarray(form.deviation, jnp.float32)
    low, high = (0 - mean) / deviation, (1 - mean) / deviation

    def sample(pixels: NDArray[np.floating[Any]], label: int) -> Sample:
        return Sample((jnp.asarray(pixels) - mean) / deviation, _weights(label, form.classes))

    def random(rng: np.random.Generator) -> Sample:
        label = int(rng.integers(form.classes))
        return sample(rng.random(form.shape, np.float32), label)

    def dress(pixels: Array) -> Array:
        raw = model.inputs is identity
        return (pixels * deviation + mean) * 255 if raw else pixels.reshape(-1)

    def loss(theta: Array, one: Sample, key: Array) -> Array:
        if soft_label:
            return mixed(theta, (dress(one.content), jax.nn.softmax(one.label)))
        label = jnp.argmax(jax.lax.stop_gradient(one.label))
        return model.loss(theta, (dress(one.content), label))

    def project(one: Sample) -> Sample:
        return one._replace(content=jnp.clip(one.content, low, high)) if clamp else one

    return Samples(
        random,
        lambda features, label: sample(features.astype(np.float32) / 255, int(label)),
        loss,
        project,
        lambda one, key: one,
        lambda one: np.asarray(one.content),
    )


def texts(model: Model, form: TextForm, soft_label: bool) -> Samples:
    """Texts by Gumbel-softmax over their characters into the model's embedding (Guo et al., 2021)."""
    tokens = jnp.arange(len(form.alphabet)) + form.first

    def random(rng: np.random.Generator) -> Sample:
        label = int(rng.integers(form.classes or 1))
        content = rng.random((form.length, len(form.alphabet)), np.float32)
        return Sample(jnp.asarray(content), _weights(label, form.classes))

    def taken(features: NDArray[Any], label: Any) -> Sample:
        numbers = features if form.classes else np.append(features, label[-1])
        content = _TOKEN_WEIGHT * jax.nn.one_hot(numbers - form.first, len(form.alphabet))
        return Sample(content, _weights(int(label) if form.classes else 0, form.classes))

    def settled(one: Sample, key: Array) -> Sample:
        drawn = jnp.argmax(soft.gumbel_softmax(key, one.content), axis=-1)
        pure = jax.nn.one_hot(drawn, len(form.alphabet), dtype=bool)
        return one._replace(content=jnp.where(pure, 0.0, -jnp.inf))

    def shown(one: Sample) -> str:
        return "".join(form.alphabet[i] for i in np.asarray(one.content).argmax(axis=-1))

    def loss(theta: Array, one: Sample, key: Array) -> Array:
        mixtures = jnp.zeros((form.length, form.vocabulary))
        mixtures = mixtures.at[:, tokens].set(soft.gumbel_softmax(key, one.content))
        if not form.classes:
            return soft.soft_tokens(model)(theta, mixtures)
        fixed = jax.nn.one_hot(jnp.argmax(jax.lax.stop_gradient(one.label)), form.classes)
        label = jax.nn.softmax(one.label) if soft_label else fixed
        return soft.soft_text(model, form.classes)(theta, (mixtures, label))

    return Samples(random, taken, loss, lambda one: one, settled, shown)


def _weights(label: int, classes: int) -> Array:
    return _LABEL_WEIGHT * jax.nn.one_hot(label, classes)
