"""Files of scores from any framework: .npz or .csv."""

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require

_YES, _NO = {"1", "1.0", "true", "in"}, {"0", "0.0", "false", "out"}


def read_scores(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(scores in, scores out) of a file; raises InputError for what it cannot make sense of."""
    readers = {".npz": _read_npz, ".csv": _read_csv}
    require(path.suffix in readers, f"--scores={path}: give a .npz or .csv file")
    try:
        return readers[path.suffix](path)
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise InputError(f"cannot read {path}: {reason}; check --scores") from None


def _read_npz(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Arrays `in` and `out`, or `scores` and `presence`, which is true or 1 for in."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if {"scores", "presence"} <= set(file.files):
                return _by_presence(path, np.asarray(file["scores"], np.float64), file["presence"])
            missing = {"in", "out"} - set(file.files)
            require(not missing, f"{path} has no array {', '.join(sorted(missing))}: save in= and out=")
            return np.asarray(file["in"], np.float64), np.asarray(file["out"], np.float64)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{path} holds no plain numbers: save float arrays in= and out=") from None


def _by_presence(
    path: Path, scores: NDArray[np.float64], presence: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores (n,) by world."""
    fits = scores.ndim == 1 and scores.shape == presence.shape
    require(fits, f"{path}: scores {scores.shape} and presence {presence.shape} must be flat and as long")
    require(np.isin(presence, (0, 1)).all(), f"{path}: presence must be 1 (in) or 0 (out) everywhere")
    present = presence.astype(bool)
    return scores[present], scores[~present]


def _read_csv(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns `score` and `in`."""
    worlds: dict[bool, list[float]] = {True: [], False: []}
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        require({"score", "in"} <= set(rows.fieldnames or ()), f"{path}: its first line must be score,in")
        for row in rows:
            label = str(row["in"]).strip().lower()
            require(label in _YES | _NO, f"{path} line {rows.line_num}: in is {label!r}, give 1 or 0")
            try:
                worlds[label in _YES].append(float(row["score"]))
            except (TypeError, ValueError):
                message = f"{path} line {rows.line_num}: score {row['score']!r} is no number"
                raise InputError(f"{message}: mend or drop the line") from None
    return np.array(worlds[True]), np.array(worlds[False])
