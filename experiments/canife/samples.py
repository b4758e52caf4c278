"""What a canary can be: an image with a label, a text with a label, or a text that is its own labels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.tasks.model import Model, identity
from experiments.canife.designed import SampleLoss
from experiments.canife.measured import Canary
from models import soft

_LABEL_WEIGHT = 4.0  # a mixture's log weight at its first label: 86% of ten
_TOKEN_WEIGHT = 12.0  # a text's log weight at the token that it begins with, as in the public code


class Sample(NamedTuple):
    """What is designed.

    Attributes:
      content: An image's normalised pixels (height, width, ...), or a text's log weights (T, alphabet).
      label: A label's log weights (classes,).
    """

    content: Array
    label: Array


class Samples(NamedTuple):
    """The samples of a model, as functions.

    Attributes:
      draw: (rng) -> a random sample.
      from_example: (features, label) -> a sample that begins as an example.
      loss: (theta, sample, key) -> the model's loss.
      project: (sample) -> the nearest sample that is allowed.
      settle: (sample, key) -> the sample that a client has: of a text, a draw of its characters.
      show: (settled sample) -> what is stored of it.
    """

    draw: Callable[[np.random.Generator], Sample]
    from_example: Callable[[NDArray[Any], Any], Sample]
    loss: SampleLoss
    project: Callable[[Sample], Sample]
    settle: Callable[[Sample, Array], Sample]
    show: Callable[[Sample], Canary]


class ImageForm(NamedTuple):
    """The form of images.

    Attributes:
      shape: The shape of their pixels.
      classes: The number of classes.
      mean: The mean of pixels on [0, 1], of each channel or of all.
      deviation: Their standard deviation.
    """

    shape: tuple[int, ...]
    classes: int
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]


class TextForm(NamedTuple):
    """The form of texts.

    Attributes:
      length: The number of characters.
      alphabet: The characters, which are tokens first, first + 1, ... of the vocabulary.
      first: The token of the alphabet's first character.
      vocabulary: The number of tokens.
      classes: The number of a label's classes; 0 where each character is the label of those before it.
    """

    length: int
    alphabet: str
    first: int
    vocabulary: int
    classes: int


def image_samples(model: Model, form: ImageForm, soft_label: bool, clamp: bool) -> Samples:
    """Returns the samples of a model on images.

    Some models have a function from an image's bytes to the floats of their first layer; they get pixels
    normalised and flat. Others get pixels on [0, 255].

    Args:
      model: The model.
      form: The form of its images.
      soft_label: Whether the label is a mixture, or fixed.
      clamp: Whether pixels stay within [0, 1].
    """
    mixture_loss = soft.soft_label(model, form.classes)
    mean = jnp.asarray(form.mean, jnp.float32)
    deviation = jnp.asarray(form.deviation, jnp.float32)
    low = (0 - mean) / deviation
    high = (1 - mean) / deviation

    def make_sample(pixels: NDArray[np.floating[Any]], label: int) -> Sample:
        content = (jnp.asarray(pixels) - mean) / deviation
        return Sample(content, _label_weights(label, form.classes))

    def draw(rng: np.random.Generator) -> Sample:
        label = int(rng.integers(form.classes))
        pixels = rng.random(form.shape, np.float32)
        return make_sample(pixels, label)

    def from_example(features: NDArray[Any], label: Any) -> Sample:
        return make_sample(features.astype(np.float32) / 255, int(label))

    def to_features(pixels: Array) -> Array:
        takes_bytes = model.inputs is identity
        if takes_bytes:
            return (pixels * deviation + mean) * 255
        return pixels.reshape(-1)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a sample, with its label as a mixture or at its likeliest class."""
        features = to_features(sample.content)
        if soft_label:
            return mixture_loss(theta, (features, jax.nn.softmax(sample.label)))
        label = jnp.argmax(jax.lax.stop_gradient(sample.label))
        return model.loss(theta, (features, label))

    def project(sample: Sample) -> Sample:
        if not clamp:
            return sample
        return sample._replace(content=jnp.clip(sample.content, low, high))

    def settle(sample: Sample, key: Array) -> Sample:
        return sample

    def show(sample: Sample) -> Canary:
        return np.asarray(sample.content)

    return Samples(draw, from_example, loss, project, settle, show)


def text_samples(model: Model, form: TextForm, soft_label: bool) -> Samples:
    """Returns the samples of a model on texts.

    Texts are relaxed by Gumbel-softmax over their characters into the model's embedding (Guo et al., 2021).

    Args:
      model: The model.
      form: The form of its texts.
      soft_label: Whether the label, if any, is a mixture.
    """
    tokens = jnp.arange(len(form.alphabet)) + form.first

    def draw(rng: np.random.Generator) -> Sample:
        label = int(rng.integers(form.classes or 1))
        content = rng.random((form.length, len(form.alphabet)), np.float32)
        return Sample(jnp.asarray(content), _label_weights(label, form.classes))

    def from_example(features: NDArray[Any], label: Any) -> Sample:
        """Returns a text whose weights favour the example's tokens.

        Without a label of its own, the text has a last character: the label of the last position.
        """
        if form.classes:
            text = features
            weights = _label_weights(int(label), form.classes)
        else:
            text = np.append(features, label[-1])
            weights = _label_weights(0, form.classes)
        content = _TOKEN_WEIGHT * jax.nn.one_hot(text - form.first, len(form.alphabet))
        return Sample(content, weights)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a text relaxed by a draw of Gumbel-softmax."""
        mixtures = jnp.zeros((form.length, form.vocabulary))
        mixtures = mixtures.at[:, tokens].set(soft.gumbel_softmax(key, sample.content))
        if not form.classes:
            return soft.soft_tokens(model)(theta, mixtures)
        if soft_label:
            label = jax.nn.softmax(sample.label)
        else:
            label = jax.nn.one_hot(jnp.argmax(jax.lax.stop_gradient(sample.label)), form.classes)
        return soft.soft_text(model, form.classes)(theta, (mixtures, label))

    def project(sample: Sample) -> Sample:
        return sample

    def settle(sample: Sample, key: Array) -> Sample:
        characters = jnp.argmax(soft.gumbel_softmax(key, sample.content), axis=-1)
        is_drawn = jax.nn.one_hot(characters, len(form.alphabet), dtype=bool)
        return sample._replace(content=jnp.where(is_drawn, 0.0, -jnp.inf))

    def show(sample: Sample) -> str:
        characters = np.asarray(sample.content).argmax(axis=-1)
        return "".join(form.alphabet[character] for character in characters)

    return Samples(draw, from_example, loss, project, settle, show)


def _label_weights(label: int, classes: int) -> Array:
    """Returns log weights (classes,) that favour a label: softmax gives it 86% of ten classes."""
    return _LABEL_WEIGHT * jax.nn.one_hot(label, classes)
