"""AlexNet (Krizhevsky, 2014, as torchvision has it) up to its last layer.

The hidden-state paper fine-tunes it (Figure 13). No package carries its 244 MB of weights, so the user names
their file.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from audit.errors import InputError
from models.data.formats import Arrays
from models.data.sources import LoadedArrays, Recipe, load_arrays
from models.pretrained.features import Body
from models.pretrained.weights import CONVERT, FILES, select


class _Convolution(NamedTuple):
    """A convolution of AlexNet, followed by ReLU.

    Attributes:
      place: the convolution's index in torchvision's `features`.
      shape: the kernel's shape (out, in, height, width).
      stride: the stride in pixels.
      padding: the number of zero pixels that are added at each side.
      is_pooled: whether max-pooling follows.
    """

    place: int
    shape: tuple[int, int, int, int]
    stride: int
    padding: int
    is_pooled: bool


N_FEATURES = 4096
CONVOLUTIONS = (
    _Convolution(0, (64, 3, 11, 11), stride=4, padding=2, is_pooled=True),
    _Convolution(3, (192, 64, 5, 5), stride=1, padding=2, is_pooled=True),
    _Convolution(6, (384, 192, 3, 3), stride=1, padding=1, is_pooled=False),
    _Convolution(8, (256, 384, 3, 3), stride=1, padding=1, is_pooled=False),
    _Convolution(10, (256, 256, 3, 3), stride=1, padding=1, is_pooled=True),
)
POOLED = 6  # the side to which the last convolution's output is averaged
DENSE = {
    "classifier.1": (N_FEATURES, 256 * POOLED**2),
    "classifier.4": (N_FEATURES, N_FEATURES),
}


def make_parameters(arrays: Arrays) -> Any:
    """Returns what `apply` takes: lists of (kernel, bias) of the convolutions and of the dense layers.

    Kernels are transposed: torchvision has the output's axis first, `apply` takes it last.

    Args:
      arrays: torchvision's tensors by name.
    """
    convolutions = []
    for convolution in CONVOLUTIONS:
        name = f"features.{convolution.place}"
        kernel = arrays[f"{name}.weight"].transpose(2, 3, 1, 0)
        convolutions.append((kernel, arrays[f"{name}.bias"]))
    dense = []
    for name in DENSE:
        kernel = arrays[f"{name}.weight"].T
        dense.append((kernel, arrays[f"{name}.bias"]))
    return convolutions, dense


def apply(parameters: Any, images: Array) -> Array:
    """Computes the last layer's inputs (B, 4096) for normalised images (B, S, S, 3).

    There is no dropout, since the network is not trained. `parameters` is what `make_parameters` returns.
    """
    convolutions, dense = parameters
    x = images
    for (kernel, bias), convolution in zip(convolutions, CONVOLUTIONS, strict=True):
        stride = convolution.stride
        padding = convolution.padding
        product = lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(stride, stride),
            padding=((padding, padding), (padding, padding)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = nn.relu(product + bias)
        if convolution.is_pooled:
            x = nn.max_pool(x, (3, 3), (2, 2))

    channels_first = _average_pool(x).transpose(0, 3, 1, 2)  # torch flattens channels first
    x = channels_first.reshape(len(x), -1)
    for kernel, bias in dense:
        x = nn.relu(x @ kernel + bias)
    return x


def _average_pool(x: Array) -> Array:
    """Computes torch's adaptive average pooling to 6 x 6, (B, H, W, C) -> (B, 6, 6, C).

    At 224 x 224, for which AlexNet was made, H and W are 6 and nothing changes.
    """
    _, height, width, _ = x.shape
    return jnp.einsum("ih,jw,bhwc->bijc", _make_averages(height), _make_averages(width), x)


def _make_averages(side: int) -> Array:
    """Returns the matrix (6, side) that averages `side` pixels to 6.

    Row i averages the pixels from floor(i side / 6) up to, not including, ceil((i + 1) side / 6).
    """
    row = np.arange(POOLED)
    first = row * side // POOLED
    stop = -(-(row + 1) * side // POOLED)  # rounded up
    pixel = np.arange(side)
    is_inside = (pixel >= first[:, None]) & (pixel < stop[:, None])
    return jnp.asarray(is_inside / is_inside.sum(1, keepdims=True), jnp.float32)


def list_shapes() -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors but the last layer's, by torchvision's names."""
    kernels: dict[str, tuple[int, ...]] = {}
    for convolution in CONVOLUTIONS:
        kernels[f"features.{convolution.place}"] = convolution.shape
    kernels |= DENSE
    # Weights come before biases: a file's checksum depends on the order of its tensors.
    shapes = {}
    for name, shape in kernels.items():
        shapes[f"{name}.weight"] = shape
    for name, shape in kernels.items():
        shapes[f"{name}.bias"] = shape[:1]  # the number of outputs
    return shapes


def load(file: str | None = None) -> LoadedArrays:
    """Loads AlexNet's weights, without the last layer's, from a file with torchvision's names.

    Raises:
      InputError: no file is given, or it cannot be used.
    """
    if file is None:
        raise InputError(
            "alexnet comes in no package: name torchvision's alexnet-owt-7be5be79.pth (its AlexNet_Weights."
            f"IMAGENET1K_V1) as `weights`, but first {CONVERT}; or choose `model=mobilenet_head`"
        )
    return load_arrays(WEIGHTS, file=file)


WEIGHTS = Recipe(
    name="alexnet",
    checksum=None,
    make_canonical=partial(select, shapes=list_shapes()),
    file_readers=FILES,
    read_prepared=None,
    packages=(),
)
ALEXNET = Body(
    name="alexnet",
    n_features=N_FEATURES,
    default_size=128,
    smallest_size=63,
    batch=64,
    load=load,
    make_parameters=make_parameters,
    apply=apply,
)
