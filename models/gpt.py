"""A small decoder-only transformer for the next character (Radford et al., 2019, without dropout)."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from audit.tasks.model import Model, flat_model
from models.data import shakespeare
from models.recurrent import next_token_loss

WIDTH = 256  # of embeddings and blocks
LAYERS = 5
HEADS = 4


class Block(nn.Module):
    """Causal attention and a dense layer, each after a layer norm and with a residual connection."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the outputs (T, WIDTH) at T positions, from inputs (T, WIDTH)."""
        causal = nn.make_causal_mask(jnp.ones(len(x)))
        attention = nn.MultiHeadDotProductAttention(num_heads=HEADS)
        x = x + attention(nn.LayerNorm()(x), mask=causal)
        hidden = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH)(hidden)


class GPT(nn.Module):
    """A model of Shakespeare's next character: numbers (T,) -> logits (T, VOCABULARY) of each next one."""

    @nn.compact
    def __call__(self, numbers: Array) -> Array:
        """Returns the logits (T, VOCABULARY) of a text of character numbers (T,)."""
        tokens = nn.Embed(shakespeare.VOCABULARY, WIDTH)(numbers.astype(jnp.int32))
        places = nn.Embed(len(numbers), WIDTH)(jnp.arange(len(numbers)))
        x = tokens + places
        for _ in range(LAYERS):
            x = Block()(x)
        return nn.Dense(shakespeare.VOCABULARY)(nn.LayerNorm()(x))


def gpt(n_features: int = shakespeare.LENGTH) -> Model:
    """Makes the model `GPT` of sequences of `n_features` characters, of 4,015,962 parameters for 80."""
    example = jnp.zeros(n_features, jnp.uint8)  # only its shape and type matter
    return flat_model(GPT(), example, next_token_loss(shakespeare.PADDING))
