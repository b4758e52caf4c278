"""A caller's arrays of numbers, told from what only looks like one: a mask, an imaginary part, a date or a
record would be lost without a word."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require

Array = NDArray[np.float64]
MOST = 1e100  # squares of larger scores overflow
_KINDS = {
    "O": "objects",
    "c": "complex",
    "M": "dates",
    "m": "durations",
    "U": "words",
    "T": "words",
    "S": "bytes",
    "V": "records",
}


def real(name: str, values: ArrayLike) -> NDArray[np.generic]:
    """The array of real numbers, of whatever type and shape; raises InputError for anything else, as masked
    entries, and rows of several lengths. Booleans, bfloat16 and JAX's arrays are numbers."""
    masked = f"{name} have masked entries, which would count: drop them, with .compressed()"
    require(not _has_mask(values), masked)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name} are no numbers in rows of one length: give an array") from None
    kind, is_record = array.dtype.kind, array.dtype.type is np.void
    fits = kind in "biuf" or (kind == "V" and not is_record)  # ml_dtypes' floats are of kind V too
    require(fits, f"{name} are no numbers but {_KINDS.get(kind, array.dtype)}: give an array of floats")
    return array


def floats(name: str, values: ArrayLike) -> Array:
    """`real` as float64."""
    with np.errstate(over="ignore"):  # of longer floats, which are infinite then
        return np.asarray(real(name, values), np.float64)


def require_apart(scores: Array, name: str = "scores") -> None:
    """Raises InputError for finite scores that are all equal, or so large that their squares overflow."""
    largest, first = float(np.abs(scores).max()), scores.flat[0]
    too_large = f"{name} reach {largest:.3g}: divide all by one number, so that none is beyond {MOST:g}"
    require(largest <= MOST, too_large)
    require(np.ptp(scores) > 0, f"all {scores.size} {name} equal {first:g}: they tell nothing apart")


def _has_mask(values: object) -> bool:
    """Whether an array, or one in a list of lists, has entries that are masked."""
    if isinstance(values, list | tuple):
        return any(_has_mask(part) for part in values)
    return isinstance(values, np.ma.MaskedArray) and bool(np.ma.is_masked(values))
