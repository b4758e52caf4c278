"""Fashion-MNIST: what its sources hold, made the same to the bit (see `models.data.sources`)."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from audit.errors import InputError, require
from models.data.base import ImageDataset, canonical_images, image_arrays
from models.data.formats import Arrays, deb_members, gunzip, read_idx, read_npz
from models.data.sources import Package, Recipe, load_arrays

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
FASHION_MNIST_MEAN = 0.28604060  # of a training pixel, on [0, 1]
FASHION_MNIST_STD = 0.35302424


def load_fashion_mnist(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> ImageDataset:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the order of the published files.

    Args:
      file: the folder with the four published .gz files, an .npz file with the four arrays of an
        ImageDataset under their names, or Debian's dataset-fashion-mnist as .deb.
      tfds_dir: a TFDS data_dir that holds a prepared fashion_mnist, as array_record. TFDS shuffles
        the rows; the published order comes back by the hashes that it shuffles by.
      cache_dir: where fetched arrays are kept; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      An ImageDataset of 60000 and 10000 images of 28 x 28 pixels and one channel, not normalised
      (see FASHION_MNIST_MEAN). A file or folder that the caller names may hold other rows; `source`
      then says that it differs.

    Raises:
      InputError: what the caller names cannot be used, or no source gives the data.
    """
    loaded = load_arrays(FASHION_MNIST, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def _debian(archive: bytes) -> Arrays:
    folder = "usr/share/datasets/fashion-mnist"
    members = deb_members(archive, [f"{folder}/{name}" for name in FILES])
    return _published(lambda name: members[f"{folder}/{name}"])


def _folder(folder: Path) -> Arrays:
    missing = [name for name in FILES if not (folder / name).is_file()]
    require(not missing, f"the folder holds no {', '.join(missing)}")
    return _published(lambda name: (folder / name).read_bytes())


def _published(content: Callable[[str], bytes]) -> Arrays:
    """From the bytes of the four published files, by their names."""
    return image_arrays(*(_array(name, content(name)) for name in FILES))


def _array(name: str, content: bytes) -> np.ndarray:
    try:
        return read_idx(gunzip(content))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _prepared(split: Callable[[str], Arrays]) -> Arrays:
    train, test = (_in_published_order(name, split(name)) for name in ("train", "test"))
    return image_arrays(*train, *test)


def _in_published_order(split: str, rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """TFDS sorts by the MD5 of the split's name and the row's number."""
    count = len(rows["label"])
    hashes = [hashlib.md5(f"{split}{row}".encode(), usedforsecurity=False).digest() for row in range(count)]
    place = np.argsort(sorted(range(count), key=hashes.__getitem__))
    return rows["image"][place, :, :, 0], rows["label"][place]


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
    partial(canonical_images, shape=(28, 28), classes=10),
    {".npz": read_npz, ".deb": _debian},
    _prepared,
    (DEBIAN,),
    "name a folder or file with `data_file` or a prepared TFDS folder with `tfds_dir`",
    _folder,
)
