"""Dense networks of the hidden-state paper (Table 2, Remark 2, Figure 13; Errata H9) and the LiDP paper."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.tasks.model import Model, flat_model
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.layers import normalised

_BELOW_1 = 1 - 1e-6  # keeps features within the norm after rounding to float32
TWO_LAYER_WIDTH = 64
# The largest norm of features that limits softmax gradients to norm 1.
SOFTMAX_NORM = 0.5**0.5
Activation = Callable[[Array], Array]
Criterion = Callable[[Array, Array], Array]


def _make(module: nn.Module, n_features: int, criterion: Criterion) -> Model:
    """Makes a model of feature vectors (n_features,) of float32."""
    return flat_model(module, jnp.zeros(n_features), criterion)


class FCNN(nn.Module):
    """A dense network with one hidden layer of 6 units: features (n,) -> logits (2,)."""

    activation: Activation = nn.relu

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (2,) of features (n,)."""
        # The order matters: Flax numbers the layers by it, and draws initial weights by number.
        output_layer = nn.Dense(2)
        hidden_layer = nn.Dense(6)
        return output_layer(self.activation(hidden_layer(x)))


@jax.custom_vjp
def two_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Computes the cross entropy of two logits (2,) and a label in {0, 1}: softplus of the signed margin."""
    sign = 1 - 2 * label
    margin = logits[1] - logits[0]
    return jax.nn.softplus(sign * margin)


def _two_logit_forward(logits: Array, label: Array) -> tuple[Array, tuple[Array, Array]]:
    """Computes the loss and saves (logits, label) for the gradient."""
    return two_logit_cross_entropy(logits, label), (logits, label)


def _two_logit_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    """Returns the logits' gradient (-r, r) with r = sigmoid(margin) - label, and None for the label."""
    logits, label = saved
    residual = cotangent * (jax.nn.sigmoid(logits[1] - logits[0]) - label)
    return jnp.stack([-residual, residual]), None


two_logit_cross_entropy.defvjp(_two_logit_forward, _two_logit_backward)


def fcnn(n_features: int = 8, activation: str = "relu") -> Model:
    """Makes California Housing's network, 8 -> 6 -> 2: 68 parameters, LeCun normal kernels.

    The activation is a name in flax.linen: relu, or tanh or gelu for the smooth twins.
    """
    return _make(FCNN(activation=getattr(nn, activation)), n_features, two_logit_cross_entropy)


def limit_norm(x: Array, norm: float) -> Array:
    """Scales features (n,) to a norm of at most `norm`, times 1 - 1e-6 because of rounding."""
    length = jnp.sqrt(jnp.sum(x**2))
    return x * (_BELOW_1 * norm / jnp.maximum(length, norm))


class TwoLayer(nn.Module):
    """A smooth two-layer network with a fixed second layer: features (n,) -> a logit (1,).

    f(x) = h^(-1/2) sum_j a_j tanh(w_j . x), with a_j = 1 for the first half of the h units, else -1. Only the
    h n weights w_j are trained. Feature vectors with a norm above 1 are scaled to norm 1.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logit (1,) of features (n,)."""
        x = limit_norm(x, 1.0)
        hidden = nn.tanh(nn.Dense(TWO_LAYER_WIDTH, use_bias=False)(x))
        signs = jnp.repeat(jnp.array([1.0, -1.0]), TWO_LAYER_WIDTH // 2)
        return jnp.sum(signs * hidden, keepdims=True) / math.sqrt(TWO_LAYER_WIDTH)


def two_layer_tanh(n_features: int) -> Model:
    """Makes the network `TwoLayer` of 64 units, 64 n_features parameters, with the logistic loss."""
    return _make(TwoLayer(), n_features, _one_logit_cross_entropy)


def _one_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Computes the logistic loss of a logit (1,) and a label in {0, 1}."""
    return jax.nn.softplus((1 - 2 * label) * logits[0])


def wide_fcnn(n_features: int = 8) -> Model:
    """Makes a wider network than `fcnn` for California Housing, with the logistic loss.

    It has hidden layers of 64 and 32 units with ReLU, and a single logit: 2,689 parameters for 8 features.
    """
    return _make(MLP((64, 32), classes=1), n_features, _one_logit_cross_entropy)


def _half_square(output: Array, target: Array) -> Array:
    """Computes half the squared error of an output (1,) against a target ()."""
    return 0.5 * (output[0] - target) ** 2


def logistic(n_features: int) -> Model:
    """Makes a binary logistic regression without an intercept, of n_features parameters.

    With weights w, the loss of features x and label y in {0, 1} is log(1 + exp(-(2y - 1) w'x)). Its second
    derivative in w'x is at most 1/4.
    """
    return _make(nn.Dense(1, use_bias=False), n_features, _one_logit_cross_entropy)


def least_squares(n_features: int) -> Model:
    """Makes a linear regression without an intercept, of n_features parameters.

    With weights w, the loss of features x and target y is (w'x - y)^2 / 2, with second derivative 1 in w'x.
    With weight decay it is a ridge regression.
    """
    return _make(nn.Dense(1, use_bias=False), n_features, _half_square)


def head(n_features: int) -> Model:
    """Makes the dense last layer of a pretrained network, of 10 (n_features + 1) parameters."""
    return _make(nn.Dense(10), n_features, cross_entropy)


class SoftmaxHead(nn.Module):
    """The last layer of a classifier, without a bias: features (n,) -> logits (10,).

    Features with a norm above `SOFTMAX_NORM` are shortened to that norm.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (10,) of features (n,)."""
        return nn.Dense(10, use_bias=False)(limit_norm(x, SOFTMAX_NORM))


def softmax_head(n_features: int) -> Model:
    """Makes a last layer for a pretrained network's features, without a bias, of 10 n_features parameters.

    An example's gradient of softmax cross entropy is the outer product of the features and (probabilities -
    one-hot label). The norm of the latter is at most sqrt(2), and features have at most `SOFTMAX_NORM`, 1 /
    sqrt(2). So the gradient's norm is at most 1.
    """
    return _make(SoftmaxHead(), n_features, cross_entropy)


def _flatten_pixels(x: Array) -> Array:
    """Returns an image (28, 28) of uint8 as normalised pixels (784,); returns floats (n,) unchanged."""
    if x.dtype != jnp.uint8:
        return x
    return normalised(x, FASHION_MNIST_MEAN, FASHION_MNIST_STD).reshape(-1)


class MLP(nn.Module):
    """A perceptron with ReLU and hidden layers of `widths`: an image or features -> logits (classes,).

    An image is (28, 28) of uint8 and is normalised here, on the device. Features are floats (n,).
    """

    widths: tuple[int, ...]
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the logits (classes,) of an image (28, 28) of uint8 or of features (n,)."""
        x = _flatten_pixels(x)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


def mlp(n_features: int = 784, widths: tuple[int, ...] = (256, 256), classes: int = 10) -> Model:
    """Makes an `MLP` with softmax cross entropy: by default 269,322 parameters on Fashion-MNIST."""
    example = jnp.zeros(n_features, jnp.float32)  # only its shape and type matter
    # Adversaries that craft examples use `_flatten_pixels` to find the floats at the first layer.
    return flat_model(MLP(widths, classes), example, cross_entropy, _flatten_pixels)


def linear(n_features: int = 784) -> Model:
    """Makes the linear classifier, `mlp` without hidden layers: 10 (n_features + 1) parameters."""
    return mlp(n_features, ())
