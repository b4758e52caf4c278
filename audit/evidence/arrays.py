"""Checks that a user's arrays contain real numbers.

We reject masks, imaginary parts, dates and records because NumPy would silently convert or drop them.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
Integers = NDArray[np.int64]
MAX_SCORE = 1e100  # squares overflow for scores above 1e154, and sums of squares even earlier


def real(name: str, values: ArrayLike) -> NDArray[np.generic]:
    """Returns a user's values as an array of real numbers, with the same type and shape.

    Booleans, bfloat16 and JAX arrays are valid.

    Args:
      name: a plural noun that starts messages, such as "the scores".

    Raises:
      InputError: for values that are not real numbers, masked entries, or rows of unequal length.
    """
    try:
        array = np.asarray(values)
    # PyTorch raises RuntimeError for a tensor that requires gradients.
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name} must be numbers in rows of equal length: give an array") from None
    require(
        not np.ma.is_masked(values), f"{name} have masked entries: drop them with .compressed()"
    )
    # NumPy's kinds b, i, u and f are booleans, integers and floats. Kind V includes records (type void) and
    # the floats of ml_dtypes, such as bfloat16.
    kind = array.dtype.kind
    fits = kind in "biuf" or (kind == "V" and array.dtype.type is not np.void)
    require(fits, f"{name} must be real numbers, got {array.dtype}: give an array of floats")
    return array


def floats(name: str, values: ArrayLike) -> Array:
    """Returns a user's values as float64; raises InputError unless they are real numbers (`real`)."""
    with np.errstate(over="ignore"):  # numbers beyond the range of float64 become infinite
        return np.asarray(real(name, values), np.float64)


def bits(presence: ArrayLike, shape: tuple[int, ...]) -> Bits:
    """Returns a user's presence bits as bool, (runs, canaries); (runs,) becomes (runs, 1).

    Raises InputError unless the result has the given shape and all values are 0 or 1.
    """
    array = floats("the presence bits", presence)
    if array.ndim == 1:
        array = array[:, None]
    require(
        array.shape == shape, f"presence has shape {array.shape}, scores {shape}: give one bit each"
    )
    require(np.isin(array, (0, 1)).all(), "presence must be 1 (in) or 0 (out) everywhere")
    return array.astype(bool)


def scores(name: str, values: ArrayLike) -> Array:
    """Returns a user's scores as float64; raises InputError for booleans and values that `real` rejects."""
    array = real(name, values)
    require(
        array.dtype.kind != "b",
        f"{name} are booleans, like presence bits: give scores[presence] and scores[~presence], "
        "or guesses as 1 and 0",
    )
    return floats(name, array)


def matrix(name: str, values: ArrayLike) -> Array:
    """Returns a user's scores (runs, canaries) as float64; raises InputError for any other shape."""
    array = scores(name, values)
    require(
        array.ndim == 2 and array.size > 0,
        f"{name} have shape {array.shape}: give (runs, canaries)",
    )
    return array


def cosines(name: str, values: ArrayLike) -> Array:
    """Returns a user's cosines, clipped to [-1, 1], with NaN for values that are not finite.

    Raises InputError if an absolute value exceeds 1 by more than rounding error.
    """
    array = scores(name, values)
    array = np.where(np.isfinite(array), array, np.nan)
    largest = float(np.nanmax(np.abs(array), initial=0.0))
    require(
        largest <= 1 + 1e-6,  # float32 has relative errors of about 1e-7
        f"cosines must be in [-1, 1], got {largest:g}: divide by both lengths",
    )
    return np.clip(array, -1.0, 1.0)


def make_finite(*worlds: Array) -> tuple[Array, ...]:
    """Returns arrays with infinite scores and NaN replaced by finite numbers that preserve all ranks.

    Infinite scores rank beyond all finite scores. NaN, the score of a failed run, ranks below all other
    scores. We do not drop failed runs, because bounds would then assume that no run fails.

    Args:
      worlds: arrays of scores, of any shape, ranked together. `require_usable` rejects results that overflow.
    """
    scores = np.concatenate([*map(np.ravel, worlds)])
    finite = scores[np.isfinite(scores)]
    if finite.size == scores.size:
        return worlds
    lowest = float(finite.min(initial=0.0))
    highest = float(finite.max(initial=0.0))
    # We place infinite scores one gap beyond the finite ones, and NaN two gaps below them. A gap is a quarter
    # of the range, which far exceeds rounding errors.
    gap = max(highest - lowest, 1.0) / 4
    return tuple(
        np.nan_to_num(world, nan=lowest - 2 * gap, neginf=lowest - gap, posinf=highest + gap)
        for world in worlds
    )


def hash_ranks(*worlds: Integers) -> int:
    """Returns an integer hash of arrays of ranks, to seed a random split of the runs."""
    # Little-endian int64 gives the same hash on any machine.
    content = b"/".join(ranks.astype("<i8").tobytes() for ranks in worlds)
    return int.from_bytes(hashlib.sha256(content).digest(), "big")


def require_few_failed(name: str, failed: Bits) -> None:
    """Raises InputError if more than half of the scores are NaN because runs failed.

    `name` is a plural noun for the scores.
    """
    number = int(failed.sum())
    require(
        number <= failed.size / 2,
        f"{number:,} of {failed.size:,} {name} are NaN (more than 50%) because runs failed: make training "
        "stable, for instance with a smaller learning rate, and train again",
    )


def require_usable(scores: Array) -> None:
    """Raises InputError if all scores (any shape) are equal, or if one exceeds 1e100 in magnitude."""
    largest = np.abs(scores).max()
    require(
        largest <= MAX_SCORE,
        f"scores reach {largest:.3g}: divide all scores by the same number to bring them below {MAX_SCORE:g}",
    )
    require(
        np.ptp(scores) > 0,
        f"all {scores.size} scores equal {scores.flat[0]:g}: they must differ",
    )
