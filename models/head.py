"""The last layer of a pretrained network, trained alone on the features below it (hidden-state paper,
Remark 2 and Figure 13)."""

import flax.linen as nn
import jax.numpy as jnp
import optax

from audit.model import Model, flat_model


def head(n_features: int, classes: int = 10) -> Model:
    """One dense layer, n_features x classes + classes parameters; softmax cross entropy."""
    features = jnp.zeros(n_features, jnp.float32)
    return flat_model(nn.Dense(classes), features, optax.softmax_cross_entropy_with_integer_labels)
