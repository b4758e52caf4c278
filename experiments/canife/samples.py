"""What a canary can be: an image with a label, or a text that is its own labels.

`ImageSamples` and `TextSamples` have the same functions on samples:

    draw            (rng) -> a random sample to begin a design with
    from_example    (features, label) -> a sample made of an example, to begin a design with
    loss            (theta, sample, key) -> the model's loss of the sample
    settle          (sample, key) -> the final sample, as the canary's client has it
    show            (settled sample) -> what is stored of it, pixels or a text
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.tasks.model import Model, identity
from experiments.canife.measured import Canary
from models import soft

_LABEL_WEIGHT = 4.0  # a mixture's log weight at its first label, which gets 86% of ten classes
_TOKEN_WEIGHT = 12.0  # a text's log weight at the token that it begins with, as in the public code


class Sample(NamedTuple):
    """The sample that a canary's client has, as continuous numbers that a design can change.

    Attributes:
      content: An image's normalised pixels (height, width, ...), or the log weights (T, alphabet) of each of
        a text's T characters.
      label: The label's log weights (classes,); a text has none.
    """

    content: Array
    label: Array


class ImageSamples(NamedTuple):
    """Samples of normalised pixels, (pixel - mean) / deviation of pixels on [0, 1].

    Attributes:
      model: The model.
      soft_label: Whether the label is a mixture of classes that is designed too, rather than one fixed class.
      shape: The shape of an image's array of pixels.
      classes: The number of classes.
      mean: The mean of pixels on [0, 1], for each channel or for all.
      deviation: The standard deviation of pixels on [0, 1], for each channel or for all.
    """

    model: Model
    soft_label: bool
    shape: tuple[int, ...]
    classes: int
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]

    def _from_pixels(self, pixels: NDArray[np.floating[Any]], label: int) -> Sample:
        """Returns the sample of pixels on [0, 1] and a label, a class."""
        mean, deviation = self._find_moments()
        weights = _LABEL_WEIGHT * jax.nn.one_hot(label, self.classes)
        return Sample((jnp.asarray(pixels) - mean) / deviation, weights)

    def _find_moments(self) -> tuple[Array, Array]:
        return jnp.asarray(self.mean, jnp.float32), jnp.asarray(self.deviation, jnp.float32)

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample of uniform pixels and a uniform label."""
        label = int(rng.integers(self.classes))
        return self._from_pixels(rng.random(self.shape, np.float32), label)

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns the sample of an example, whose features are bytes."""
        return self._from_pixels(features.astype(np.float32) / 255, int(label))

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a sample; nothing of an image is drawn with the key.

        With `soft_label` the label is a mixture of classes, by its log weights. Otherwise it is the class
        with the largest weight.
        """
        features = sample.content.reshape(-1)  # what the model's `inputs` makes of an image's bytes
        if self.model.inputs is identity:  # the model takes only bytes
            mean, deviation = self._find_moments()
            # Not rounded, since a rounded pixel would have no gradient.
            features = (sample.content * deviation + mean) * 255
        if self.soft_label:
            mixture_loss = soft.soft_label(self.model, self.classes)
            return mixture_loss(theta, (features, jax.nn.softmax(sample.label)))
        # The design does not change a fixed label, so the label has no gradient.
        label = jnp.argmax(jax.lax.stop_gradient(sample.label))
        return self.model.loss(theta, (features, label))

    def settle(self, sample: Sample, key: Array) -> Sample:
        """Returns the sample as it is: nothing of an image is drawn."""
        return sample

    def show(self, sample: Sample) -> Canary:
        """Returns the normalised pixels."""
        return np.asarray(sample.content)


class TextSamples(NamedTuple):
    """Samples of texts that change continuously.

    Each character is a mixture over the alphabet, drawn by Gumbel-softmax, and the model reads the mixture of
    its characters' embeddings (Guo et al., 2021).

    Attributes:
      model: The model.
      length: The number of characters.
      alphabet: The characters, whose tokens are first, first + 1, ... in this order.
      first: The token of the alphabet's first character.
      vocabulary: The number of the model's tokens.
    """

    model: Model
    length: int
    alphabet: str
    first: int
    vocabulary: int

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample with uniform log weights."""
        content = rng.random((self.length, len(self.alphabet)), np.float32)
        return Sample(jnp.asarray(content), jnp.zeros(0))

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns a sample whose characters have large log weights.

        Args:
          features: The tokens of the example's text.
          label: The next character at each place.
        """
        text = np.append(features, label[-1])  # the text's last character is only a label
        content = _TOKEN_WEIGHT * jax.nn.one_hot(text - self.first, len(self.alphabet))
        return Sample(content, jnp.zeros(0))

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a text whose characters are mixtures, drawn by Gumbel-softmax."""
        # The model's vocabulary can have tokens beside those of the alphabet; their weight stays 0.
        tokens = jnp.arange(len(self.alphabet)) + self.first
        mixtures = jnp.zeros((self.length, self.vocabulary))
        mixtures = mixtures.at[:, tokens].set(soft.gumbel_softmax(key, sample.content))
        return soft.soft_tokens(self.model)(theta, mixtures)

    def settle(self, sample: Sample, key: Array) -> Sample:
        """Draws the text's characters, by Gumbel-softmax.

        Each drawn character has log weight 0, and all others at its position have -inf, so that the text is
        the same with any key.
        """
        # The largest weight of a Gumbel-softmax draw is that of a character drawn by the sample's weights.
        characters = jnp.argmax(soft.gumbel_softmax(key, sample.content), axis=-1)
        is_drawn = jax.nn.one_hot(characters, len(self.alphabet), dtype=bool)
        return sample._replace(content=jnp.where(is_drawn, 0.0, -jnp.inf))

    def show(self, sample: Sample) -> Canary:
        """Returns the text of each position's likeliest character."""
        characters = np.asarray(sample.content).argmax(axis=-1)
        return "".join(self.alphabet[character] for character in characters)
