"""Weights files of two formats give the same arrays; torn, foreign and hostile ones give one line."""

import collections
import io
import json
import os
import pickle
import struct
import sys
import types
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy

from audit.errors import InputError
from models.data import sources
from models.pretrained import weights

STORAGES = {"<f4": "FloatStorage", "<i8": "LongStorage"}


class Storage(NamedTuple):
    key: str
    kind: type
    values: np.ndarray


class Tensor:
    """Pickles as torch's tensors do."""

    def __init__(self, torch, storage, offset, shape, strides):
        self.reduced = (
            torch.rebuild,
            (storage, offset, shape, strides, False, collections.OrderedDict()),
        )

    def __reduce__(self):
        return self.reduced


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        return ("storage", obj.kind, obj.key, "cpu", len(obj.values), None)


@pytest.fixture
def torch(monkeypatch):
    """Makes as much of torch as a pickle of a state dict names."""
    fake = types.ModuleType("torch")
    utils = types.ModuleType("torch._utils")
    for name in (*STORAGES.values(), "BFloat16Storage"):
        setattr(fake, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*arguments):
        raise AssertionError("torch's own code may not run")

    rebuild.__module__ = "torch._utils"
    rebuild.__name__ = "_rebuild_tensor_v2"
    rebuild.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    fake.rebuild = rebuild
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return fake


def _arrays():
    rng = np.random.default_rng(0)
    return {
        "features.0.weight": rng.normal(size=(4, 3, 2, 2)).astype(np.float32),
        "features.0.bias": rng.normal(size=4).astype(np.float32),
        "features.1.num_batches_tracked": np.array(17),
    }


def _state(torch, arrays):
    storages = []
    for index, array in enumerate(arrays.values()):
        kind = getattr(torch, STORAGES[array.dtype.str])
        storages.append(Storage(str(1000 + index), kind, array.ravel()))
    state = collections.OrderedDict()
    for (name, array), storage in zip(arrays.items(), storages, strict=True):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        state[name] = Tensor(torch, storage, 0, array.shape, strides)
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state, storages


def _legacy(state, storages, little_endian=True):
    """Writes what torch.save wrote before 1.6."""
    file = io.BytesIO()
    system = {"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {"int": 4}}
    for header in (weights.LEGACY_MAGIC, weights.LEGACY_PROTOCOL, system):
        pickle.dump(header, file, protocol=2)
    _Pickler(file, protocol=2).dump(state)
    pickle.dump([storage.key for storage in storages], file, protocol=2)
    for storage in storages:
        file.write(struct.pack("<q", len(storage.values)) + storage.values.tobytes())
    return file.getvalue()


@pytest.fixture
def files(torch):
    state, storages = _state(torch, _arrays())
    return {
        "legacy": _legacy(state, storages),
        "safetensors": safetensors.numpy.save(_arrays()),
    }


@pytest.mark.parametrize("kind", ["legacy", "safetensors"])
def test_every_format_gives_the_same_arrays(files, kind):
    read = weights.read_weights(files[kind])
    assert set(read) == set(_arrays())
    for name, array in _arrays().items():
        assert read[name].dtype == array.dtype and read[name].shape == array.shape
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("kind", ["legacy", "safetensors"])
def test_a_file_torn_anywhere_is_one_line(files, kind):
    whole = files[kind]
    for length in range(0, len(whole) - 1, 7):
        with pytest.raises(InputError) as raised:
            weights.read_weights(whole[:length])
        assert "\n" not in str(raised.value)


class Hostile:
    def __init__(self, call, *arguments):
        self.call = (call, arguments)

    def __reduce__(self):
        return self.call


def test_nothing_is_executed(tmp_path):
    for call, name in ((os.mkdir, "mkdir"), (eval, "eval"), (getattr, "getattr")):
        target = str(tmp_path / "made")
        state = collections.OrderedDict(weight=Hostile(call, target))
        with pytest.raises(InputError, match=rf"it names \w+\.{name}"):
            weights.read_weights(_legacy(state, []))
        assert not os.path.exists(target)


@pytest.mark.parametrize(
    ("offset", "shape"), [(0, (21,)), (-1, (20,)), (19, (2,)), (0, (2, 2)), (0, (10**9,))]
)
def test_a_tensor_that_is_not_its_whole_storage_is_refused(torch, offset, shape):
    storage = Storage("7", torch.FloatStorage, np.arange(20, dtype=np.float32))
    state = collections.OrderedDict(w=Tensor(torch, storage, offset, shape, (1,) * len(shape)))
    with pytest.raises(InputError, match="a tensor is a part of its storage: save it as safe"):
        weights.read_weights(_legacy(state, [storage]))


def test_a_transposed_tensor_is_refused(torch):
    """Its numbers lie column after column, so that rows read from the storage would be wrong."""
    storage = Storage("7", torch.FloatStorage, np.arange(20, dtype=np.float32))
    for shape, strides in (((5, 4), (1, 5)), ((2, 10), (1, 2)), ((20, 1, 1), (2, 1, 1))):
        state = collections.OrderedDict(w=Tensor(torch, storage, 0, shape, strides))
        with pytest.raises(InputError, match="rows do not follow each other: save it as safe"):
            weights.read_weights(_legacy(state, [storage]))
    # The stride of an axis of one entry is arbitrary.
    state = collections.OrderedDict(w=Tensor(torch, storage, 0, (1, 20, 1), (7, 1, 9)))
    read = weights.read_weights(_legacy(state, [storage]))["w"]
    assert read.tolist() == np.arange(20.0).reshape(1, 20, 1).tolist()


def test_what_is_no_state_dict_of_tensors_is_named(torch, files):
    exotic = Storage("7", torch.BFloat16Storage, np.zeros(2, np.float32))
    tensor = Tensor(torch, exotic, 0, (2,), (1,))
    checkpoint = collections.OrderedDict(epoch=3)
    for content, words in (
        (_legacy([1, 2], []), "it holds a list: save it as safetensors"),
        (_legacy(checkpoint, []), "entry 'epoch' is no tensor"),
        (_legacy(collections.OrderedDict(w=tensor), [exotic]), "it names torch.BFloat16Storage"),
        (_legacy(*_state(torch, {}), little_endian=False), "big-endian"),
        (b"PK\x03\x04", r"no safetensors file: .*safetensors\.torch\.save_file"),
        (b"<html>not found</html>", "no safetensors file"),
        (b"", "no safetensors file"),
    ):
        with pytest.raises(InputError, match=words):
            weights.read_weights(content)


def test_the_wanted_tensors_are_selected_as_float32_and_in_order():
    arrays = {"b": np.ones(3), "a": np.zeros((2, 2), ">f4"), "more": np.ones(1)}
    chosen = weights.select(arrays, {"a": (2, 2), "b": (3,)})
    assert list(chosen) == ["a", "b"] and all(array.dtype == "<f4" for array in chosen.values())
    for name, value, words in (
        ("c", np.ones(3), "tensor b is missing"),
        ("b", np.ones(4), r"tensor b has shape \(4,\), not \(3,\)"),
        ("b", np.array([1, 2, np.nan]), "tensor b has a NaN"),
    ):
        with pytest.raises(InputError, match=words):
            weights.select({"a": arrays["a"], name: value}, {"a": (2, 2), "b": (3,)})


def test_a_file_that_a_user_names_is_named_in_the_error(tmp_path):
    recipe = sources.Recipe(
        name="net",
        checksum=None,
        make_canonical=partial(weights.select, shapes={"w": (2,)}),
        file_readers=weights.FILES,
        read_prepared=None,
        packages=(),
    )
    good = tmp_path / "w.safetensors"
    torn = tmp_path / "w.pth"
    good.write_bytes(safetensors.numpy.save({"w": np.ones(2, np.float32)}))
    torn.write_bytes(good.read_bytes()[:-3])
    loaded = sources.load_arrays(recipe, file=str(good))
    assert loaded.source == f"file {good}" and loaded.checksum == sources.checksum_of(loaded.arrays)
    for path in (torn, tmp_path / "absent.pth", tmp_path / "w.npz"):
        with pytest.raises(InputError) as raised:
            sources.load_arrays(recipe, file=str(path))
        message = str(raised.value)
        assert str(path) in message and "fix it or name another" in message and "\n" not in message


def _safetensors(kind, data, shape):
    header = json.dumps(
        {"w": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3"])
def test_types_that_numpy_lacks_are_named(kind):
    content = _safetensors(kind, b"\0\0", [2 if kind == "F8_E4M3" else 1])
    with pytest.raises(InputError, match=f"a tensor is {kind}: save it as float32"):
        weights.read_weights(content)
