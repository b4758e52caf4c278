"""The sum of clipped per-example gradients: one meaning, several strategies (also `dense`, `layerwise`).

A strategy is a function

    clipped_sum(theta (p,), (features (B, ...), labels (B, ...)), clipping_norm) -> (p,)

that returns sum_i g_i * min(1, C / ||g_i||) for the gradients g_i of a loss of a single example
(hidden-state paper, Equation 2). It is written for a single model; `vmap` over theta makes it an ensemble's.

    strategy                works for             materialises (B, p)   cost of one model-step
    per_example             any loss              yes                   a backward pass an example
    book_keeping            dense, narrow         no                    one backward pass, one contraction
    unfolded_book_keeping   dense, convolutions   of narrow layers      likewise

Edge cases, the same in all: a gradient of norm 0 adds 0; C = inf does not clip; a NaN gradient makes
the sum NaN. The sums agree within 1e-5 of C a coordinate in float32 (tested), for C and norms between
1e-12 and 1e12 and products at JAX's matmul precision "float32", which GPUs do not take by default.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

Batch = tuple[Array, Array]
ClippedSum = Callable[[Array, Batch, Array], Array]
Loss = Callable[[Array, tuple[Array, Array]], Array]
Criterion = Callable[[Array, Array], Array]
# In place of a squared norm of 0; its root times any C is far below float32's sums.
_TINY = 1e-30


@jax.custom_jvp
def scale_to_norm(squared_norm: Array, clipping_norm: Array) -> Array:
    """Returns min(1, C / norm) for squared norms of any shape; 1 for a norm of 0.

    This is the factor by which clipping to C multiplies a gradient.
    """
    inverse_norm = jax.lax.rsqrt(jnp.maximum(squared_norm, _TINY))  # finite for a norm of 0 too
    return jnp.minimum(1.0, clipping_norm * inverse_norm)


@scale_to_norm.defjvp
def _differentiate_scale(
    values: tuple[Array, Array], changes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Returns `scale_to_norm` and its derivative along changes of the squared norm and of C.

    The derivative is 0 where nothing is clipped, and that of C / norm elsewhere. It is written by hand, since
    JAX's derivative of `rsqrt` is infinite at 0 and would give NaN.

    Args:
      values: (squared norms, C).
      changes: (the change of the squared norms, the change of C).

    Returns:
      (the scale, its change)
    """
    squared_norm, clipping_norm = values
    squared_change, clipping_change = changes
    scale = scale_to_norm(squared_norm, clipping_norm)
    is_clipped = scale < 1
    # Where nothing is clipped the squared norm may be 0, so that 1 stands in for both divisors.
    squared_divisor = jnp.where(is_clipped, squared_norm, 1.0)
    clipping_divisor = jnp.where(is_clipped, clipping_norm, 1.0)
    # For a squared norm r the scale is C r^(-1/2), and its change C r^(-1/2) (dC / C - dr / (2 r)).
    change = scale * (clipping_change / clipping_divisor - 0.5 * squared_change / squared_divisor)
    return scale, jnp.where(is_clipped, change, 0.0)


def clip(vector: Array, clipping_norm: Array) -> Array:
    """Returns vector (p,) * min(1, C / ||vector||): what may enter the sum (hidden-state paper, Equation 2).

    The norm is computed from the vector over its largest entry, so that no square overflows or vanishes in
    float32. A vector of norm 0 stays 0.
    """
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1.0)
    norm = largest * jnp.linalg.norm(scaled)
    # C over a norm of 0 is infinite, and the factor 1.
    return vector * jnp.minimum(1.0, clipping_norm / norm)


def per_example(loss: Loss) -> ClippedSum:
    """Returns the function that sums clipped gradients by taking each example's gradient, with vmap.

    Args:
      loss: loss(theta, example) of a single example; any function.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns sum_i g_i min(1, C / ||g_i||), (p,); all gradients (B, p) are in memory."""
        # JAX could not otherwise `vmap` convolutions over models on a mesh of devices.
        separate_batch = separate(theta, batch)
        gradients = jax.vmap(jax.grad(loss), (None, 0))(theta, separate_batch)
        scales = scale_to_norm(jnp.sum(gradients**2, axis=1), clipping_norm)
        total: Array = scales @ gradients
        return total

    return clipped_sum


def separate(theta: Array, batch: Batch) -> Batch:
    """Returns the batch with the same features (B, ...), which JAX now sees as dependent on theta (p,).

    This works around a limit of JAX 0.10 to 0.12. Under `vmap` over models, theta is batched, but features
    that all models share are not; on a mesh of devices JAX then cannot take per-example gradients of
    convolution kernels. A selection by an entry of theta, with the features on both sides, makes `vmap` batch
    the features too. XLA removes the selection from the compiled program.
    """
    features, labels = batch
    # True, or False where theta is NaN; either way the selection below gives the features.
    depends_on_theta = theta[0] == theta[0]
    return jnp.where(depends_on_theta, features, features), labels
