"""Canary samples: an image with a label, or a text that is also its labels.

`ImageSamples` and `TextSamples` have the same functions on samples:

    draw            (rng) -> a random first sample for a design
    from_example    (features, label) -> a first sample from an example
    loss            (theta, sample, key) -> the model's loss of the sample
    settle          (sample, key) -> the final sample of the canary's client
    show            (settled sample) -> its pixels or its text
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.tasks.model import Model, identity
from experiments.canife.measured import Canary

_NUM_CLASSES = 10
_LABEL_WEIGHT = 4.0  # the log weight of a mixture's first label: 86% of ten classes
_TOKEN_WEIGHT = 12.0  # the log weight of a text's first tokens, as in the public code


class Sample(NamedTuple):
    """A canary's sample as continuous numbers for a design.

    Attributes:
      content: An image's normalized pixels (height, width, ...), or log weights (T, alphabet) of T
        characters.
      label: The label's log weights (classes,); empty for a text.
    """

    content: Array
    label: Array


class ImageSamples(NamedTuple):
    """Samples of normalized pixels, (pixel - mean) / deviation with pixels on [0, 1].

    With `soft_label` the design also changes the label, a mixture of classes. Mean and deviation are for each
    channel or for all.
    """

    model: Model
    soft_label: bool
    shape: tuple[int, ...]
    mean: Array
    deviation: Array

    def _from_pixels(self, pixels: NDArray[np.float32], label: int) -> Sample:
        """Returns the sample with pixels on [0, 1] and a class as the label."""
        weights = _LABEL_WEIGHT * jax.nn.one_hot(label, _NUM_CLASSES)
        normalized = (jnp.asarray(pixels) - self.mean) / self.deviation
        return Sample(normalized, weights)

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample of uniform pixels and a uniform label."""
        label = int(rng.integers(_NUM_CLASSES))
        return self._from_pixels(rng.random(self.shape, np.float32), label)

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns the sample of an example with bytes as features."""
        pixels = features.astype(np.float32) / np.float32(255)
        return self._from_pixels(pixels, int(label))

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the model's loss of a sample; ignores the key."""
        features = sample.content.reshape(-1)  # as the model's `inputs` converts bytes
        if self.model.inputs is identity:  # the model takes bytes
            # Rounded pixels would not have a gradient.
            features = (sample.content * self.deviation + self.mean) * 255
        if not self.soft_label:
            # The design does not change a fixed label.
            label = jnp.argmax(jax.lax.stop_gradient(sample.label))
            return self.model.loss(theta, (features, label))
        params = self.model.unravel(theta)
        logits: Any = self.model.module.apply({"params": params}, features)
        labels = jnp.arange(_NUM_CLASSES)
        losses = jax.vmap(self.model.criterion, (None, 0))(logits, labels)
        return jax.nn.softmax(sample.label) @ losses

    def settle(self, sample: Sample, key: Array) -> Sample:
        """Returns the sample unchanged."""
        return sample

    def show(self, sample: Sample) -> Canary:
        """Returns the normalized pixels."""
        return np.asarray(sample.content)


class TextSamples(NamedTuple):
    """Samples of continuous texts: each character is a mixture over the alphabet from Gumbel-softmax.

    The model reads the mixture of the characters' embeddings (Guo et al., 2021), so its module begins with a
    single nn.Embed. The tokens of the alphabet are 1, 2, ...; `vocabulary` is the number of the model's
    tokens.
    """

    model: Model
    length: int
    alphabet: str
    vocabulary: int

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draws a sample with uniform log weights."""
        content = rng.random((self.length, len(self.alphabet)), np.float32)
        return Sample(jnp.asarray(content), jnp.zeros(0))

    def from_example(self, features: NDArray[Any], label: Any) -> Sample:
        """Returns a sample with large log weights at the tokens of the example's text."""
        text = np.append(features, label[-1])  # the last character is only a label
        content = _TOKEN_WEIGHT * jax.nn.one_hot(text - 1, len(self.alphabet))
        return Sample(content, jnp.zeros(0))

    def loss(self, theta: Array, sample: Sample, key: Array) -> Array:
        """Returns the mean cross entropy of predicting each drawn mixture after the first.

        If all mixtures are single characters, this is the model's loss.
        """
        # Other tokens of the vocabulary have weight 0.
        tokens = jnp.arange(len(self.alphabet)) + 1
        drawn = _draw_mixtures(key, sample.content)
        mixtures = jnp.zeros((self.length, self.vocabulary))
        mixtures = mixtures.at[:, tokens].set(drawn)
        logits = self._compute_logits(theta, mixtures[:-1])
        log_likelihoods = mixtures[1:] * jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.sum(log_likelihoods, axis=-1))

    def _compute_logits(self, theta: Array, mixtures: Array) -> Any:
        """Returns the module's logits for mixtures (T, V) of tokens instead of tokens (T,)."""

        def embed_mixtures(
            call: Callable[..., Any],
            args: Any,
            kwargs: Any,
            context: nn.module.InterceptorContext,
        ) -> Any:
            """Returns mixtures of the tokens' embeddings; calls other layers unchanged."""
            is_embedding = isinstance(context.module, nn.Embed)
            if is_embedding and context.method_name == "__call__":
                return mixtures @ context.module.embedding
            return call(*args, **kwargs)

        tokens = jnp.zeros(len(mixtures), jnp.int32)  # only their number matters
        params = self.model.unravel(theta)
        with nn.intercept_methods(embed_mixtures):
            return self.model.module.apply({"params": params}, tokens)

    def settle(self, sample: Sample, key: Array) -> Sample:
        """Draws the text's characters: log weight 0 for the drawn one and -inf for all others."""
        mixtures = _draw_mixtures(key, sample.content)
        characters = jnp.argmax(mixtures, axis=-1)
        is_drawn = jax.nn.one_hot(characters, len(self.alphabet), dtype=bool)
        content = jnp.where(is_drawn, 0.0, -jnp.inf)
        return sample._replace(content=content)

    def show(self, sample: Sample) -> Canary:
        """Returns the text of the most likely characters."""
        characters = np.asarray(sample.content).argmax(axis=-1)
        return "".join(self.alphabet[character] for character in characters)


def _draw_mixtures(key: Array, log_weights: Array) -> Array:
    """Draws mixtures (..., V) by Gumbel-softmax at temperature 1 (Jang, Gu and Poole, 2017)."""
    noise = jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    return jax.nn.softmax(log_weights + noise)
