"""Purchase-100: shopping histories in 100 classes, from a file that the user names; no package carries it."""

import io

import numpy as np

from audit.errors import InputError, require
from audit.task import Dataset
from models.data.formats import Arrays, tar_members
from models.data.sources import Recipe, load_arrays

FEATURES, CLASSES = 600, 100
TRAINING_ROWS = 20_000  # LiDP paper, Appendix F.1
PUBLISHED = "dataset_purchase of the GitHub project privacytrustlab/datasets, as .tgz or unpacked"


def load_purchase(*, file: str | None = None, tfds_dir: str | None = None) -> Dataset:
    """The LiDP paper's training set: 20,000 rows drawn with the seed of its code.

    Args:
      file: `dataset_purchase` in its published form: a line an example, label 1 to 100 and 600 bits,
        separated by commas; or the .tgz with it. A file with no more rows gives all of them, in order.
      tfds_dir: must be None: TFDS has no such data.

    Returns:
      A Dataset: float32 features (20000, 600) of 0 and 1, labels (20000,) from 0.

    Raises:
      InputError: no file is named, or it is not in that form.
    """
    named = file is not None and tfds_dir is None
    require(named, f"Purchase-100 comes from a file alone: name one with `data_file`, {PUBLISHED}")
    loaded = load_arrays(PURCHASE, file=file)
    bits, labels = loaded.arrays["features"], loaded.arrays["labels"]
    if len(labels) > TRAINING_ROWS:
        drawn = np.random.RandomState(0).choice(len(labels), TRAINING_ROWS, replace=False)
        bits, labels = bits[drawn], labels[drawn]
    return Dataset(bits.astype(np.float32), labels, loaded.source, loaded.checksum)


def _read(content: bytes) -> Arrays:
    """The table as one array; its columns have no names."""
    import pyarrow
    from pyarrow import csv

    names = ["label", *(f"bit {i}" for i in range(FEATURES))]
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.int8()))
    try:
        table = csv.read_csv(io.BytesIO(content), csv.ReadOptions(column_names=names), convert_options=types)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"it is no table of a label and {FEATURES} bits ({str(error)[:100]})") from None
    columns = [table[name].to_numpy() for name in names]
    return {"labels": columns[0], "features": np.stack(columns[1:], axis=1)}


def _unpacked(archive: bytes) -> Arrays:
    return _read(tar_members(archive, ["dataset_purchase"])["dataset_purchase"])


def _canonical(raw: Arrays) -> Arrays:
    bits, labels = raw["features"], raw["labels"]
    require(np.isin(bits, (0, 1)).all(), "a feature is neither 0 nor 1")
    strays = labels[~((labels >= 1) & (labels <= CLASSES))]
    require(not len(strays), f"a label is {strays[:1].tolist()}, not 1 to {CLASSES}")
    return {"features": bits.astype(np.uint8), "labels": labels.astype("<i4") - 1}


PURCHASE = Recipe(
    "purchase100",
    None,
    _canonical,
    {".tgz": _unpacked, ".gz": _unpacked, ".csv": _read, "": _read},
    None,
    (),
)
