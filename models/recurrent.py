"""Recurrent models: of Stack Overflow's words and Shakespeare's characters (Reddi et al., 2020), and of
LEAF's tweets and plays (Caldas et al., 2018)."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.model import Model, flat_model
from models.data import leaf, shakespeare, tff


class LSTM(nn.Module):
    """Inputs (T, d) -> outputs (T, units), from a zero state (Hochreiter and Schmidhuber, 1997).

    4 (d + units + 1) units parameters: one bias a gate, that of the forget gate 1 at first. The inputs'
    products are formed for all positions at once, so that a step multiplies by the recurrent kernel alone.

    two_biases: a second bias a gate, as in PyTorch: 4 units parameters more, and twice the bias's step.
    """

    units: int
    two_biases: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        gates = 4 * self.units
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], gates))
        recurrent = self.param("recurrent_kernel", nn.initializers.orthogonal(), (self.units, gates))
        bias = self.param("bias", _forgetting, (gates,))
        if self.two_biases:
            bias = bias + self.param("recurrent_bias", nn.initializers.zeros_init(), (gates,))

        def step(state: tuple[Array, Array], product: Array) -> tuple[tuple[Array, Array], Array]:
            hidden, cell = state
            entry, forget, candidate, exit_ = jnp.split(product + hidden @ recurrent, 4)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(entry) * jnp.tanh(candidate)
            hidden = nn.sigmoid(exit_) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros(self.units, x.dtype)
        return jax.lax.scan(step, (zero, zero), x @ kernel + bias)[1]


def _forgetting(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
    """Ones for the forget gate, the second of four, and zeros."""
    return jnp.zeros(shape, dtype).reshape(4, -1).at[1].set(1).reshape(shape)


class LanguageModel(nn.Module):
    """Numbers (T,) below `vocabulary` -> logits (T, vocabulary) for the number that follows each.

    projection: the width of a dense layer between the last LSTM and the logits; None for none.
    """

    vocabulary: int
    embedding: int
    units: int
    layers: int
    projection: int | None = None

    @nn.compact
    def __call__(self, numbers: Array) -> Array:
        x = nn.Embed(self.vocabulary, self.embedding)(numbers.astype(jnp.int32))
        for _ in range(self.layers):
            x = LSTM(self.units)(x)
        if self.projection is not None:
            x = nn.Dense(self.projection)(x)
        return nn.Dense(self.vocabulary)(x)


class TextClassifier(nn.Module):
    """Numbers (T,) below `vocabulary` -> logits (classes,), from the last output of two LSTMs."""

    vocabulary: int
    embedding: int
    units: int
    classes: int

    @nn.compact
    def __call__(self, numbers: Array) -> Array:
        x = nn.Embed(self.vocabulary, self.embedding)(numbers.astype(jnp.int32))
        for _ in range(2):
            x = LSTM(self.units, two_biases=True)(x)
        return nn.Dense(self.classes)(x[-1])


def next_token_loss(padding: int) -> Callable[[Array, Array], Array]:
    """(logits (T, V), labels (T,)) -> the mean cross entropy of one sequence's positions that are no padding.

    Each sequence so has the same weight, however long it is; one of padding alone has loss 0.
    """

    def criterion(logits: Array, labels: Array) -> Array:
        losses = cross_entropy(logits, labels)
        counts = labels != padding
        return jnp.sum(jnp.where(counts, losses, 0)) / jnp.maximum(counts.sum(), 1)

    return criterion


def word_lstm() -> Model:
    """Stack Overflow's next word: embedding 96, LSTM 670, dense 96 and 10,004; 4,050,748 parameters."""
    module = LanguageModel(tff.VOCABULARY, 96, 670, 1, 96)
    return flat_model(module, jnp.zeros(tff.SENTENCE_LENGTH, jnp.uint16), next_token_loss(tff.PADDING))


def character_lstm() -> Model:
    """Shakespeare's next character: embedding 8, two LSTMs of 256, dense 90; 820,522 parameters."""
    module = LanguageModel(shakespeare.VOCABULARY, 8, 256, 2)
    text = jnp.zeros(shakespeare.LENGTH, jnp.uint8)
    return flat_model(module, text, next_token_loss(shakespeare.PADDING))


def tweet_lstm() -> Model:
    """Sent140's sentiment from 25 characters: embedding 300, two LSTMs of 100 (Maddock et al., 2023)."""
    module = TextClassifier(leaf.SENT140_VOCABULARY, 300, 100, 2)
    return flat_model(module, jnp.zeros(leaf.SENT140_LENGTH, jnp.uint8), cross_entropy)


def play_lstm() -> Model:
    """The character after 80 of Shakespeare's, as LEAF has it: embedding 8, two LSTMs of 256, dense 80;
    819,920 parameters (Maddock et al., 2023)."""
    characters = len(leaf.SHAKESPEARE_CHARACTERS)
    module = TextClassifier(characters, 8, 256, characters)
    return flat_model(module, jnp.zeros(leaf.SHAKESPEARE_LENGTH, jnp.uint8), cross_entropy)
