"""AlexNet (Krizhevsky, 2014, as torchvision has it) up to its last layer: the network that the hidden-state
paper fine-tunes (Figure 13). No package carries its 244 MB of weights, so the user names their file."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from audit.errors import InputError
from models.data.formats import Arrays
from models.data.sources import Loaded, Recipe, load_arrays
from models.pretrained.features import Body
from models.pretrained.weights import FILES, select

N_FEATURES = 4096
CONVOLUTIONS = (  # torchvision's index; kernel (out, in, height, width); stride; padding; is it pooled?
    (0, (64, 3, 11, 11), 4, 2, True),
    (3, (192, 64, 5, 5), 1, 2, True),
    (6, (384, 192, 3, 3), 1, 1, False),
    (8, (256, 384, 3, 3), 1, 1, False),
    (10, (256, 256, 3, 3), 1, 1, True),
)
POOLED = 6  # the side to which the last convolution's output is averaged
DENSE = {"classifier.1": (N_FEATURES, 256 * POOLED**2), "classifier.4": (N_FEATURES, N_FEATURES)}


def parameters(arrays: Arrays) -> Any:
    """Kernels and biases of the convolutions and of the dense layers, from torchvision's tensors."""
    names = [f"features.{index}" for index, *_ in CONVOLUTIONS]
    convolutions = [(arrays[f"{n}.weight"].transpose(2, 3, 1, 0), arrays[f"{n}.bias"]) for n in names]
    return convolutions, [(arrays[f"{n}.weight"].T, arrays[f"{n}.bias"]) for n in DENSE]


def apply(parameters: Any, images: Array) -> Array:
    """Normalised images (B, S, S, 3) -> features (B, 4096): what the last layer takes, without dropout."""
    convolutions, dense = parameters
    x = images
    for (kernel, bias), (_, _, stride, padding, pooled) in zip(convolutions, CONVOLUTIONS, strict=True):
        sides, layout = ((padding, padding),) * 2, ("NHWC", "HWIO", "NHWC")
        product = lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=layout)
        x = nn.relu(product + bias)
        x = nn.max_pool(x, (3, 3), (2, 2)) if pooled else x
    x = _averaged(x).transpose(0, 3, 1, 2).reshape(len(x), -1)  # torch flattens channels first
    for kernel, bias in dense:
        x = nn.relu(x @ kernel + bias)
    return x


def _averaged(x: Array) -> Array:
    """Torch's adaptive average pooling to 6 x 6, (B, H, W, C) -> (B, 6, 6, C); nothing at 224 x 224."""
    return jnp.einsum("ih,jw,bhwc->bijc", _windows(x.shape[1]), _windows(x.shape[2]), x)


def _windows(side: int) -> Array:
    """(6, side): row i averages pixels floor(i side / 6) to ceil((i + 1) side / 6)."""
    first = np.arange(POOLED) * side // POOLED
    stop = -(-(np.arange(POOLED) + 1) * side // POOLED)
    inside = (np.arange(side) >= first[:, None]) & (np.arange(side) < stop[:, None])
    return jnp.asarray(inside / inside.sum(1, keepdims=True), jnp.float32)


def shapes() -> dict[str, tuple[int, ...]]:
    """Of the tensors that are needed: all but the last layer's."""
    kernels: dict[str, tuple[int, ...]] = {f"features.{index}": shape for index, shape, *_ in CONVOLUTIONS}
    kernels |= DENSE
    biases = {f"{name}.bias": shape[:1] for name, shape in kernels.items()}
    return {f"{name}.weight": shape for name, shape in kernels.items()} | biases


def load(file: str | None = None) -> Loaded:
    """AlexNet's weights from a file under torchvision's names; the last layer's are not needed. Raises
    InputError where no file is named, or it cannot be used."""
    if file is None:
        raise InputError(
            "alexnet comes in no package: name torchvision's alexnet-owt-7be5be79.pth (its AlexNet_Weights."
            "IMAGENET1K_V1), or the same as .safetensors, as `weights`; or choose `model=mobilenet_head`"
        )
    return load_arrays(WEIGHTS, file=file)


WEIGHTS = Recipe("alexnet", None, lambda raw: select(raw, shapes()), FILES, None, ())
ALEXNET = Body("alexnet", N_FEATURES, 128, 63, 64, load, parameters, apply)
