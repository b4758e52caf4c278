"""A small decoder-only transformer that predicts characters (as in Radford et al., 2019, without dropout)."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from audit.tasks.model import Model, flat_model
from models.data import shakespeare
from models.recurrent import next_token_loss

HEADS = 4


class Block(nn.Module):
    """Causal attention, then a two-layer network, each with a preceding layer norm and a skip connection."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the outputs (T, width) at T positions for inputs of the same shape."""
        width = x.shape[-1]
        causal = nn.make_causal_mask(jnp.ones(len(x)))  # positions do not see later positions
        attention = nn.MultiHeadDotProductAttention(num_heads=HEADS)
        x = x + attention(nn.LayerNorm()(x), mask=causal)
        hidden = nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))
        return x + nn.Dense(width)(hidden)


class GPT(nn.Module):
    """A transformer with `layers` blocks of width `width` that predicts the next token."""

    vocabulary: int
    width: int
    layers: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Returns the logits (T, vocabulary) of the next token after each of T token IDs."""
        length = len(tokens)
        embedded_tokens = nn.Embed(self.vocabulary, self.width)(tokens.astype(jnp.int32))
        embedded_positions = nn.Embed(length, self.width)(jnp.arange(length))
        x = embedded_tokens + embedded_positions
        for _ in range(self.layers):
            x = Block()(x)
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


def gpt(n_features: int, width: int = 256, layers: int = 5) -> Model:
    """Makes a next-character transformer for Shakespeare's plays, by default with 4,015,962 parameters.

    `n_features` is the number of characters in a sequence. `width` must be a multiple of 4, the number of
    attention heads.
    """
    module = GPT(shakespeare.VOCABULARY, width, layers)
    example = jnp.zeros(n_features, jnp.uint8)
    return flat_model(module, example, next_token_loss)
