"""Weights files as NumPy arrays, without torch: safetensors, and torch's format before 1.6.

MobileNetV2's published weights come in the older format alone: a pickle, which can run anything, and raw
buffers. Here the pickle can only name tensors: its few permitted names stand for constructors of our own, and
any other name is an error.
"""

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from audit.errors import InputError, require
from models.data.formats import Arrays, Reader

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
_LEGACY_START = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little") + b"."  # pickled
CONVERT = (
    "save it as safetensors, in Python with torch: "
    "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')"
)
_STORAGE_DTYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


class _Storage(NamedTuple):
    """A buffer that holds a tensor's elements; its bytes come later in the file.

    Attributes:
      key: the name by which the pickle refers to it.
      dtype: the elements' type, as NumPy spells it.
      size: the number of elements.
    """

    key: str
    dtype: str
    size: int


class _Tensor(NamedTuple):
    """A tensor that consists of all elements of a storage, in C order."""

    storage: _Storage
    shape: tuple[int, ...]


class _StateDict(dict[str, Any]):
    """The dict of tensors by name, which stands for torch's OrderedDict."""

    def __setstate__(self, state: object) -> None:
        """Ignores the attributes that the pickle sets: torch's version numbers, which nothing here needs."""


def read_weights(content: bytes) -> Arrays:
    """Reads the tensors of a safetensors file, or of a state dict that torch before 1.6 saved, by name.

    Raises:
      InputError: the content is in neither format, is torn, or holds something other than tensors by name.
    """
    if content.startswith(_LEGACY_START):
        return _read_as(_read_legacy, content, "a torch state dict in the older format")
    if content[8:9] == b"{":  # a JSON header, after 8 bytes with its length
        return _read_as(_read_safetensors, content, "a safetensors file")
    raise InputError(f"it is no safetensors file: {CONVERT}")


FILES: Mapping[str, Reader] = {
    ".pth": read_weights,
    ".pt": read_weights,
    ".bin": read_weights,
    ".safetensors": read_weights,
}


def select(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Selects the arrays that a network needs, as little-endian float32.

    Args:
      arrays: a file's arrays by name.
      shapes: the shapes of the needed arrays, by name; the result has their order.

    Raises:
      InputError: an array is missing, of another shape, or not finite.
    """
    chosen = {}
    for name, shape in shapes.items():
        require(name in arrays, f"tensor {name} is missing: it holds another network")
        array = arrays[name]
        require(
            array.shape == shape,
            f"tensor {name} has shape {array.shape}, not {shape}: another network",
        )
        require(np.isfinite(array).all(), f"tensor {name} has a NaN or an infinite value")
        chosen[name] = np.ascontiguousarray(array, "<f4")
    return chosen


def _read_as(read: Reader, content: bytes, format_name: str) -> Arrays:
    """Reads a file of a known format; turns whatever its reader raises into InputError.

    Args:
      read: the format's reader.
      content: the file's bytes.
      format_name: the format in words, for the message.
    """
    try:
        return read(content)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise InputError(
            f"it begins as {format_name} but is torn ({type(error).__name__})"
        ) from None


def _read_safetensors(content: bytes) -> Arrays:
    """Reads all tensors of a safetensors file, by name; raises InputError for types that NumPy lacks."""
    try:
        return safetensors.numpy.load(content)
    except KeyError as error:
        raise InputError(f"a tensor is {error.args[0]}: save it as float32") from None


def _read_legacy(content: bytes) -> Arrays:
    """Reads the tensors of a file in torch's format before 1.6, by name.

    The file holds five pickles: a magic number, the protocol's number, facts about the writing machine, the
    state dict and the keys of the storages, which are the buffers that hold the tensors' elements. Then comes
    each storage: its number of elements, in 8 bytes, and its raw bytes.

    `_Unpickler` refuses all that a pickle could run. It only makes the tensors' descriptions: shape, type and
    storage.

    Raises:
      InputError: the file is of another version or big-endian, a storage has a wrong size, or an entry of the
        state dict is no tensor. A torn file may raise any other exception.
    """
    file = io.BytesIO(content)
    magic = _Unpickler(file).load()
    protocol = _Unpickler(file).load()
    system = _Unpickler(file).load()
    is_readable = (magic, protocol) == (LEGACY_MAGIC, LEGACY_PROTOCOL)
    require(is_readable, f"its protocol is {protocol}, not 1001")
    require(system["little_endian"], "it was written on a big-endian machine")

    # While it reads the state dict, the unpickler lists the storages to which the tensors refer.
    unpickler = _Unpickler(file)
    state = unpickler.load()
    require(isinstance(state, _StateDict), f"it holds a {type(state).__name__}: {CONVERT}")

    # The raw bytes follow in the order of the keys.
    keys = _Unpickler(file).load()
    buffers = {}
    for key in keys:
        storage = unpickler.storages[key]
        size = int.from_bytes(file.read(8), "little")
        require(
            size == storage.size,
            f"storage {key} has {size} elements, not {storage.size}: it is torn",
        )
        buffers[key] = file.read(size * np.dtype(storage.dtype).itemsize)

    arrays = {}
    for name, tensor in state.items():
        is_tensor = isinstance(name, str) and isinstance(tensor, _Tensor)
        require(is_tensor, f"entry {str(name)[:80]!r} is no tensor: {CONVERT}")
        values = np.frombuffer(buffers[tensor.storage.key], tensor.storage.dtype)
        arrays[name] = values.reshape(tensor.shape)
    return arrays


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Makes a tensor in place of torch's _rebuild_tensor_v2, which a pickle calls for each tensor.

    Args:
      storage: the buffer that holds the tensor's elements.
      offset: the tensor's first element in the storage.
      shape: the tensor's shape.
      strides: for each axis, how many elements further in the storage its next entry lies.
      *_: facts for training, which are not needed.

    Raises:
      InputError: the tensor is only a part of its storage, or its elements are not in C order there, as in a
        transposed tensor.
    """
    is_whole = isinstance(storage, _Storage) and offset == 0 and np.prod(shape) == storage.size
    require(is_whole, f"a tensor is a part of its storage: {CONVERT}")
    # In C order, the stride of an axis is the product of the lengths of the axes after it.
    step = 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        # The stride of an axis of a single entry is never used.
        require(size == 1 or stride == step, f"a tensor's rows do not follow each other: {CONVERT}")
        step *= size
    return _Tensor(storage, tuple(map(int, shape)))


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _StateDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
}
for _storage_name, _dtype in _STORAGE_DTYPES.items():
    _NAMES["torch", _storage_name] = _dtype


class _Unpickler(pickle.Unpickler):
    """An unpickler that refuses every name that is not in _NAMES, so that a pickle can run no code.

    Attributes:
      storages: the storages to which the pickle refers, by key.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a name in the pickle stands for, if the name is permitted; else raises InputError.

        `pickle` calls this for every function or class that a pickle names. Calling any other than those in
        _NAMES could run any code.
        """
        require(
            (module, name) in _NAMES,
            f"it names {module}.{name}, which is not read here: {CONVERT}",
        )
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """Returns the storage to which an identifier in the pickle refers.

        `pickle` calls this for every reference to something outside the pickle. The storage, a description
        without bytes, is also put into `storages`.

        Args:
          pid: ("storage", type, key, device, number of elements). If there is a sixth entry, it has to be
            None: any other marks a part of another storage.

        Raises:
          InputError: the identifier is of another form, or the storage's type is not read here.
        """
        kind, dtype, key, _, size, *part = pid
        is_storage = kind == "storage" and dtype in _STORAGE_DTYPES.values()
        is_whole = part in ([], [None])
        require(is_storage and is_whole, "it holds a storage of a kind that is not read")
        return self.storages.setdefault(key, _Storage(str(key), dtype, int(size)))
