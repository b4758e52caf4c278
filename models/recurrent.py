"""Recurrent networks for Stack Overflow words and Shakespeare characters (Reddi et al., 2020)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.tasks.model import Model, flat_model
from models.data import shakespeare

WORDS = 10_004  # Stack Overflow's 10,000 words, padding (0), begin, end and unknown
SENTENCE_LENGTH = 20


class LSTM(nn.Module):
    """An LSTM layer that starts from a zero state.

    It has 4 units (d + units + 1) parameters (Hochreiter and Schmidhuber, 1997). Each gate has one bias,
    which starts at 1 for the forget gate and at 0 for the others. One product of the kernel with the inputs
    at all positions is faster than one product per position.
    """

    units: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the outputs (T, units) at T positions for inputs (T, d)."""
        width = 4 * self.units  # for the input gate, forget gate, candidate and output gate
        lecun_normal = nn.initializers.lecun_normal()
        orthogonal = nn.initializers.orthogonal()
        kernel = self.param("kernel", lecun_normal, (x.shape[-1], width))
        recurrent_kernel = self.param("recurrent_kernel", orthogonal, (self.units, width))
        first_bias = jnp.repeat(jnp.array([0.0, 1, 0, 0]), self.units)
        bias = self.param("bias", lambda key: first_bias)

        def step(state: tuple[Array, Array], product: Array) -> tuple[tuple[Array, Array], Array]:
            """Returns the next state (hidden, cell), each (units,), and the output, which is `hidden`.

            `product` (4 units,) is the input's product with the kernel, plus the bias.
            """
            hidden, cell = state
            gates = product + hidden @ recurrent_kernel
            input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4)
            cell = nn.sigmoid(forget_gate) * cell + nn.sigmoid(input_gate) * jnp.tanh(candidate)
            hidden = nn.sigmoid(output_gate) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros(self.units, x.dtype)
        products = x @ kernel + bias
        _, outputs = jax.lax.scan(step, (zero, zero), products)
        return outputs


class LanguageModel(nn.Module):
    """A next-token model: an embedding of width `embedding`, and `layers` LSTMs of width `units`.

    If `projection` is given, a dense layer of that width comes before the logits.
    """

    vocabulary: int
    embedding: int
    units: int
    layers: int
    projection: int | None = None

    @nn.compact
    def __call__(self, text: Array) -> Array:
        """Returns the logits (T, vocabulary) of the next token at each of T positions.

        `text` has token IDs (T,) or, if floating-point, weights (T, vocabulary) for mixtures of tokens.
        """
        embed = nn.Embed(self.vocabulary, self.embedding)
        if jnp.issubdtype(text.dtype, jnp.floating):
            x = text @ embed.embedding  # mixes the tokens' embeddings
        else:
            x = embed(text.astype(jnp.int32))
        for _ in range(self.layers):
            x = LSTM(self.units)(x)
        if self.projection is not None:
            x = nn.Dense(self.projection)(x)
        return nn.Dense(self.vocabulary)(x)


def next_token_loss(logits: Array, labels: Array) -> Array:
    """Returns the mean cross entropy of logits (T, vocabulary) over all labels (T,) except padding.

    The mean gives all sequences the same weight. If all labels are padding, the loss is 0.
    """
    losses = cross_entropy(logits, labels)
    is_token = labels != shakespeare.PADDING
    total = jnp.sum(jnp.where(is_token, losses, 0))
    num_tokens = is_token.sum()
    return total / jnp.maximum(num_tokens, 1)  # avoids 0 / 0


def word_lstm() -> Model:
    """Makes a next-word model for Stack Overflow, with 4,050,748 parameters."""
    module = LanguageModel(WORDS, embedding=96, units=670, layers=1, projection=96)
    example = jnp.zeros(SENTENCE_LENGTH, jnp.uint16)
    return flat_model(module, example, next_token_loss)


def character_lstm() -> Model:
    """Makes a next-character model for Shakespeare's plays, with 820,522 parameters."""
    module = LanguageModel(shakespeare.VOCABULARY, embedding=8, units=256, layers=2)
    example = jnp.zeros(shakespeare.LENGTH, jnp.uint8)
    return flat_model(module, example, next_token_loss)
