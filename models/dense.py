"""Dense networks from the LiDP paper and the hidden-state paper (Table 2, Remark 2, Figure 13).

For Errata H9, see experiments/hidden_state/README.md.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.tasks.model import Model, flat_model
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.layers import normalised

_BELOW_1 = 1 - 1e-6
# With features of at most this norm, softmax gradients have a norm of at most 1 (`softmax_head`).
SOFTMAX_NORM = 0.5**0.5


def _make(module: nn.Module, n_features: int, loss: Callable[[Array, Array], Array]) -> Model:
    """Makes a model for float32 vectors (n_features,) from a module and a loss (logits, label) -> scalar."""
    return flat_model(module, jnp.zeros(n_features), loss)


class FCNN(nn.Module):
    """A dense network with one hidden layer of 6 units."""

    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (2,) for features (n,)."""
        # In Flax, the order of these lines determines the layers' names and initial weights, and hence
        # scores.
        output_layer = nn.Dense(2)
        hidden_layer = nn.Dense(6)
        return output_layer(self.activation(hidden_layer(x)))


@jax.custom_vjp
def two_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Computes the cross entropy for logits (2,) and a label in {0, 1}: log(1 + exp(sign * margin)).

    This takes fewer operations than the general softmax cross entropy.
    """
    sign = 1 - 2 * label  # 1 for label 0, -1 for label 1
    margin = logits[1] - logits[0]
    return jax.nn.softplus(sign * margin)


def _two_logit_forward(logits: Array, label: Array) -> tuple[Array, tuple[Array, Array]]:
    """Returns the loss, and (logits, label) for `_two_logit_backward`."""
    return two_logit_cross_entropy(logits, label), (logits, label)


def _two_logit_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    """Returns the gradient with respect to the logits, times the cotangent, and None for the label.

    The gradient is (-r, r), with the residual r = sigmoid(margin) - label.
    """
    logits, label = saved
    residual = jax.nn.sigmoid(logits[1] - logits[0]) - label
    scaled = cotangent * residual
    return jnp.stack([-scaled, scaled]), None


two_logit_cross_entropy.defvjp(_two_logit_forward, _two_logit_backward)


def fcnn(n_features: int = 8, activation: str = "relu") -> Model:
    """Makes the network for California Housing: 8 -> 6 -> 2, 68 parameters, LeCun normal kernels.

    The label is binary. The paper's parameter count implies two logits (Errata H9). `activation` names a
    function in flax.linen; tanh and gelu make the network smooth.
    """
    return _make(FCNN(activation=getattr(nn, activation)), n_features, two_logit_cross_entropy)


def limit_norm(x: Array, norm: float) -> Array:
    """Scales features (n,) with a norm above `norm` down to `norm`.

    We also scale all features by _BELOW_1 = 1 - 1e-6, because rounding could otherwise yield a norm above
    `norm` and invalidate the bound on gradients in `softmax_head`.
    """
    current_norm = jnp.sqrt(jnp.sum(x**2))
    return x * (_BELOW_1 * norm / jnp.maximum(current_norm, norm))


def _one_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Computes the logistic loss of a logit (1,) for a label in {0, 1}: log(1 + exp(sign * logit))."""
    sign = 1 - 2 * label
    return jax.nn.softplus(sign * logits[0])


def wide_fcnn(n_features: int) -> Model:
    """Makes a wider network than `fcnn` for California Housing, with the logistic loss.

    With 8 features, it has 2,689 parameters.
    """
    return _make(MLP((64, 32), classes=1), n_features, _one_logit_cross_entropy)


def logistic(n_features: int) -> Model:
    """Makes a binary logistic regression model with n_features parameters and no intercept.

    With weights w, the loss of features x and label y in {0, 1} is log(1 + exp(-(2y - 1) w'x)). Its second
    derivative in w'x is at most 1/4.
    """
    return _make(nn.Dense(1, use_bias=False), n_features, _one_logit_cross_entropy)


def head(n_features: int) -> Model:
    """Makes a dense last layer, with 10 (n_features + 1) parameters, for a pretrained network's features."""
    return _make(nn.Dense(10), n_features, cross_entropy)


class SoftmaxHead(nn.Module):
    """A classifier's last layer, which limits the norm of its features and has no bias."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (10,) for features (n,)."""
        return nn.Dense(10, use_bias=False)(limit_norm(x, SOFTMAX_NORM))


def softmax_head(n_features: int) -> Model:
    """Makes a last layer without a bias, with 10 n_features parameters, for a pretrained network's features.

    The gradient of softmax cross entropy is the outer product of two vectors: the features, which the model
    scales to norm SOFTMAX_NORM = 1 / sqrt(2) or less, and the probabilities minus the one-hot label, with
    norm sqrt(2) or less. So the gradient's norm is at most 1.
    """
    return _make(SoftmaxHead(), n_features, cross_entropy)


def _flatten_pixels(x: Array) -> Array:
    """Returns the normalised pixels (784,) of a uint8 image (28, 28); returns floats (n,) unchanged."""
    if x.dtype != jnp.uint8:  # features instead of an image
        return x
    return normalised(x, FASHION_MNIST_MEAN, FASHION_MNIST_STD).reshape(-1)


class MLP(nn.Module):
    """A multilayer perceptron with ReLU. `widths` lists the widths of the hidden layers."""

    widths: tuple[int, ...]
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (classes,) for a uint8 image (28, 28) or for float features (n,)."""
        x = _flatten_pixels(x)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


def mlp(n_features: int = 784, widths: tuple[int, ...] = (256, 256), classes: int = 10) -> Model:
    """Makes a multilayer perceptron with hidden layers of the given widths and softmax cross entropy.

    The default, for Fashion-MNIST, has 269,322 parameters. With widths=(), it is a linear classifier.
    """
    example = jnp.zeros(n_features, jnp.float32)  # a flat image, which the network also accepts
    # `inputs` returns the floats that enter the first layer. Adversaries modify them to craft examples.
    return flat_model(MLP(widths, classes), example, cross_entropy, inputs=_flatten_pixels)
