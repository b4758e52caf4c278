"""Samples that can serve as canaries: images with labels, and texts, which are their own labels.

A design optimizes continuous numbers, so each character of a text is a mixture. The canary's client trains on
the sample from `draw_text`. `ImageSamples` and `TextSamples` have the same methods.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.tasks.model import Model, identity
from experiments.canife.measured import Canary

_NUM_CLASSES = 10
_LABEL_WEIGHT = 4.0  # log weight of the first label; its probability among ten classes is 86%
_TOKEN_WEIGHT = 12.0  # log weight of the first text's characters, as in the public code


class Sample(NamedTuple):
    """A canary's sample, as continuous numbers.

    Attributes:
      content: An image's normalized pixels (height, width, ...), or a text's log weights (T, alphabet), with
        one mixture for each of the T characters.
      label: (classes,) the log weights of the classes; empty for a text.
    """

    content: Array
    label: Array


class ImageSamples(NamedTuple):
    """Image samples.

    Attributes:
      soft_label: True if the label is a mixture of classes, which the design also optimizes.
      mean, deviation: Each is a single number or one per channel. A normalized pixel is (pixel - mean) /
        deviation, for pixels in [0, 1].
    """

    model: Model
    soft_label: bool
    shape: tuple[int, ...]
    mean: Array
    deviation: Array

    def _from_pixels(self, pixels: NDArray[np.float32], label: int) -> Sample:
        """Returns the sample for an image with pixels in [0, 1] and this class label."""
        weights = _LABEL_WEIGHT * jax.nn.one_hot(label, _NUM_CLASSES)
        normalized = (jnp.asarray(pixels) - self.mean) / self.deviation
        return Sample(normalized, weights)

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample with uniformly random pixels and a uniformly random label."""
        label = int(rng.integers(_NUM_CLASSES))
        return self._from_pixels(rng.random(self.shape, np.float32), label)

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns the sample for an example. The features are bytes."""
        pixels = features.astype(np.float32) / np.float32(255)
        return self._from_pixels(pixels, int(label))

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss on a sample, or its mean loss over the classes of a soft label.

        Only `TextSamples.loss` needs the key.
        """
        features = sample.content.reshape(-1)  # most models take a vector of normalized pixels
        if self.model.inputs is identity:
            # This model takes pixels from 0 to 255. We do not round pixels, since rounding has gradient 0.
            features = (sample.content * self.deviation + self.mean) * 255
        if not self.soft_label:
            # The design optimizes only the pixels, so the label needs no gradient.
            label = jnp.argmax(jax.lax.stop_gradient(sample.label))
            return self.model.loss(theta, (features, label))
        labels = jnp.arange(_NUM_CLASSES)
        losses = jax.vmap(lambda label: self.model.loss(theta, (features, label)))(labels)
        return jax.nn.softmax(sample.label) @ losses

    def draw_text(self, sample: Sample, key: Array) -> Sample:
        """Returns the sample unchanged, because an image contains no text."""
        return sample

    def show(self, sample: Sample) -> Canary:
        """Returns the normalized pixels."""
        return np.asarray(sample.content)


class TextSamples(NamedTuple):
    """Text samples: each character is a mixture over the alphabet, drawn by Gumbel-softmax.

    The model reads the corresponding mixture of the characters' embeddings (Guo et al., 2021).

    Attributes:
      model: A `LanguageModel`.
      length: The number of characters.
      alphabet: The characters; their tokens are 1, 2, ...
      vocabulary: The number of tokens in the model's vocabulary.
    """

    model: Model
    length: int
    alphabet: str
    vocabulary: int

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample with log weights that are uniform in [0, 1]."""
        content = rng.random((self.length, len(self.alphabet)), np.float32)
        return Sample(
            jnp.asarray(content), label=jnp.zeros(0)
        )  # empty, since tokens are also labels

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns a sample with large log weights for the tokens of the example's text.

        `draw_text` nearly always draws this text from the sample.
        """
        # Labels are the features shifted by one, so the last character occurs only as a label.
        text = np.append(features, label[-1])
        # The first token is 1.
        content = _TOKEN_WEIGHT * jax.nn.one_hot(text - 1, len(self.alphabet))
        return Sample(content, label=jnp.zeros(0))  # empty, since tokens are also labels

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Draws a mixture for each character, and returns the mean cross entropy of predicting the mixtures.

        A mixture is a probability vector over characters. The first one is not predicted. If each mixture is
        a single character, this is the model's loss.
        """
        # Tokens outside the alphabet, such as 0 for padding, have probability 0.
        tokens = jnp.arange(len(self.alphabet)) + 1
        drawn = _draw_mixtures(key, sample.content)
        mixtures = jnp.zeros((self.length, self.vocabulary))
        mixtures = mixtures.at[:, tokens].set(drawn)
        params = self.model.unravel(theta)
        logits = self.model.module.apply({"params": params}, mixtures[:-1])
        log_likelihoods = mixtures[1:] * jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.sum(log_likelihoods, axis=-1))

    def draw_text(self, sample: Sample, key: Array) -> Sample:
        """Draws a text. In its sample, the drawn characters have log weight 0, and all others have -inf."""
        # By the Gumbel-max trick, the argmax of each Gumbel-softmax draw is a random character.
        mixtures = _draw_mixtures(key, sample.content)
        characters = jnp.argmax(mixtures, axis=-1)
        is_drawn = jax.nn.one_hot(characters, len(self.alphabet), dtype=bool)
        content = jnp.where(is_drawn, 0.0, -jnp.inf)
        return sample._replace(content=content)

    def show(self, sample: Sample) -> Canary:
        """Returns the text with the highest-weighted character at each position."""
        characters = np.asarray(sample.content).argmax(axis=-1)
        return "".join(self.alphabet[character] for character in characters)


def _draw_mixtures(key: Array, log_weights: Array) -> Array:
    """Draws T mixtures over the alphabet by Gumbel-softmax at temperature 1 (Jang, Gu and Poole, 2017)."""
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.nn.softmax(log_weights + noise)
