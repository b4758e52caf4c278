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

_LABEL_WEIGHT = 4.0  # a mixture's log weight at its first label, which gets 86% of ten classes
_TOKEN_WEIGHT = 12.0  # a text's log weight at the token that it begins with, as in the public code


class Sample(NamedTuple):
    """The sample that a canary's client has, as continuous numbers that a design can change.

    Attributes:
      content: An image's normalised pixels (height, width, ...), or the log weights (T, alphabet) of each of
        a text's T characters.
      label: The label's log weights (classes,).
    """

    content: Array
    label: Array


class Samples(NamedTuple):
    """What canaries of a model can be, as functions on samples.

    Attributes:
      draw: (rng) -> a random sample to begin a design with.
      from_example: (features, label) -> a sample made of an example, to begin a design with.
      loss: (theta, sample, key) -> the model's loss of the sample.
      settle: (sample, key) -> the final sample, as the canary's client has it. A text's characters are drawn.
      show: (settled sample) -> what is stored of it, pixels or a text.
    """

    draw: Callable[[np.random.Generator], Sample]
    from_example: Callable[[NDArray[Any], Any], Sample]
    loss: SampleLoss
    settle: Callable[[Sample, Array], Sample]
    show: Callable[[Sample], Canary]


class ImageForm(NamedTuple):
    """The form of images.

    Attributes:
      shape: The shape of an image's array of pixels.
      classes: The number of classes.
      mean: The mean of pixels on [0, 1], for each channel or for all.
      deviation: The standard deviation of pixels on [0, 1], for each channel or for all.
    """

    shape: tuple[int, ...]
    classes: int
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]


class TextForm(NamedTuple):
    """The form of texts.

    Attributes:
      length: The number of characters.
      alphabet: The characters, whose tokens are first, first + 1, ... in this order.
      first: The token of the alphabet's first character.
      vocabulary: The number of the model's tokens.
    """

    length: int
    alphabet: str
    first: int
    vocabulary: int


def image_samples(model: Model, form: ImageForm, soft_label: bool) -> Samples:
    """Returns the samples of a model on images.

    A sample's content is normalised pixels: (pixel - mean) / deviation of pixels on [0, 1].

    Args:
      model: The model.
      form: The form of the model's images.
      soft_label: Whether the label is a mixture of classes that is designed too, rather than one fixed class.
    """
    mixture_loss = soft.soft_label(model, form.classes)
    mean = jnp.asarray(form.mean, jnp.float32)
    deviation = jnp.asarray(form.deviation, jnp.float32)

    def make_sample(pixels: NDArray[np.floating[Any]], label: int) -> Sample:
        """Returns the sample of pixels on [0, 1] and a label, a class."""
        content = (jnp.asarray(pixels) - mean) / deviation
        return Sample(content, _label_weights(label, form.classes))

    def draw(rng: np.random.Generator) -> Sample:
        """Draws a sample of uniform pixels and a uniform label."""
        label = int(rng.integers(form.classes))
        pixels = rng.random(form.shape, np.float32)
        return make_sample(pixels, label)

    def from_example(features: NDArray[Any], label: Any) -> Sample:
        """Returns the sample of an example, whose features are bytes."""
        return make_sample(features.astype(np.float32) / 255, int(label))

    def to_features(pixels: Array) -> Array:
        """Returns normalised pixels in the form that the model's loss takes.

        A loss takes an image's bytes. Where the model has a function `inputs`, which turns bytes into
        normalised pixels, flat, its loss takes the latter too. Without it, `inputs` is the identity.
        """
        takes_bytes_alone = model.inputs is identity
        if takes_bytes_alone:
            # Pixels on [0, 255], but not rounded, since a rounded pixel would have no gradient.
            return (pixels * deviation + mean) * 255
        return pixels.reshape(-1)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a sample.

        With `soft_label` the label is a mixture of classes, by its log weights. Otherwise it is the class
        with the largest weight. The key is not used, as nothing of an image is drawn.
        """
        features = to_features(sample.content)
        if soft_label:
            return mixture_loss(theta, (features, jax.nn.softmax(sample.label)))
        # The design does not change a fixed label, so the label has no gradient.
        label = jnp.argmax(jax.lax.stop_gradient(sample.label))
        return model.loss(theta, (features, label))

    def settle(sample: Sample, key: Array) -> Sample:
        """Returns the sample as it is: nothing of an image is drawn."""
        return sample

    def show(sample: Sample) -> Canary:
        """Returns the normalised pixels, which are what is stored of an image."""
        return np.asarray(sample.content)

    return Samples(draw, from_example, loss, settle, show)


def text_samples(model: Model, form: TextForm) -> Samples:
    """Returns the samples of a model on texts.

    A design needs texts that change continuously. So each character is a mixture over the alphabet, drawn by
    Gumbel-softmax, and the model reads the mixture of its characters' embeddings (Guo et al., 2021).

    Args:
      model: The model.
      form: The form of the model's texts.
    """
    tokens = jnp.arange(len(form.alphabet)) + form.first  # the token of each character

    def draw(rng: np.random.Generator) -> Sample:
        """Draws a sample with uniform log weights."""
        content = rng.random((form.length, len(form.alphabet)), np.float32)
        return Sample(jnp.asarray(content), _label_weights(0, 0))

    def from_example(features: NDArray[Any], label: Any) -> Sample:
        """Returns a sample made of an example, whose T characters have large log weights (T, alphabet).

        Args:
          features: The tokens of the example's text.
          label: The next character at each place.
        """
        text = np.append(features, label[-1])  # the text's last character is a label alone
        weights = _label_weights(0, 0)  # texts have no label of their own
        # Each character's log weight is _TOKEN_WEIGHT, and the others' at its place are 0.
        content = _TOKEN_WEIGHT * jax.nn.one_hot(text - form.first, len(form.alphabet))
        return Sample(content, weights)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a text whose characters are mixtures, drawn by Gumbel-softmax."""
        # The model's vocabulary can have tokens beside those of the alphabet; their weight stays 0.
        mixtures = jnp.zeros((form.length, form.vocabulary))
        mixtures = mixtures.at[:, tokens].set(soft.gumbel_softmax(key, sample.content))
        return soft.soft_tokens(model)(theta, mixtures)

    def settle(sample: Sample, key: Array) -> Sample:
        """Draws the text's characters, by Gumbel-softmax.

        Each drawn character has log weight 0, and all others at its position have -inf, so that the text is
        the same with any key.
        """
        # The largest weight of a Gumbel-softmax draw is that of a character drawn by the sample's weights.
        characters = jnp.argmax(soft.gumbel_softmax(key, sample.content), axis=-1)
        is_drawn = jax.nn.one_hot(characters, len(form.alphabet), dtype=bool)
        return sample._replace(content=jnp.where(is_drawn, 0.0, -jnp.inf))

    def show(sample: Sample) -> str:
        """Returns the text of each position's likeliest character."""
        characters = np.asarray(sample.content).argmax(axis=-1)
        return "".join(form.alphabet[character] for character in characters)

    return Samples(draw, from_example, loss, settle, show)


def _label_weights(label: int, classes: int) -> Array:
    """Returns log weights (classes,) that favour a label: with ten classes, softmax gives it 86%."""
    return _LABEL_WEIGHT * jax.nn.one_hot(label, classes)
