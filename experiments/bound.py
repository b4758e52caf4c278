"""Bound epsilon from the score file of any framework.

./run.sh bound --scores=scores.npz                       arrays `in` and `out`
./run.sh bound --scores=scores.npz                       or `scores` and `presence`
./run.sh bound --scores=scores.csv --json                columns score,in (1 or 0)
./run.sh bound --scores=scores.csv --report=page.html    the page that ./run.sh report writes
"""

import csv
import zipfile
from pathlib import Path

import numpy as np
from absl import flags
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.storage import files
from experiments import cli, conclusions
from experiments.plots import bounds_table

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "scores", None, "The scores: .npz with arrays in, out or scores, presence; .csv with score,in."
)
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_float("noise_multiplier", None, "Noise multiplier, where the upper bound is wanted.")
flags.DEFINE_integer("insertions", None, "Steps with the canary, where the upper bound is wanted.")
flags.DEFINE_string("figure", None, "Also draw the audit into this PNG file.")
flags.DEFINE_string("report", None, "Also write a report into this HTML file.")
flags.DEFINE_string("name", None, "What was audited, for the report; by default the scores' file.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")

_YES, _NO = {"1", "1.0", "true", "in"}, {"0", "0.0", "false", "out"}


def main() -> None:
    """Read, bound, draw, print."""
    require(FLAGS.scores is not None, "--scores is missing: name a .npz or .csv file")
    path = Path(FLAGS.scores)
    worlds = read_scores(path)
    known = (FLAGS.noise_multiplier is not None, FLAGS.insertions is not None)
    require(known[0] == known[1], "--noise_multiplier and --insertions go together: give both or none")
    noise = (FLAGS.noise_multiplier, FLAGS.insertions) if all(known) else None
    conclusion = conclusions.conclude(worlds, noise, FLAGS.delta, FLAGS.confidence)
    if FLAGS.figure is not None:
        files.write_whole(Path(FLAGS.figure), conclusion.figure())
    if FLAGS.report is not None:
        from experiments.pages import reporting, subjects

        about = subjects.of_scores(FLAGS.name or path.name, path, noise, conclusion)
        files.write_whole(Path(FLAGS.report), reporting.report(f"Audit: {about.title}", [about]))
    table = bounds_table.bounds_json if FLAGS.json else bounds_table.bounds_table
    print(table(conclusion.bounds, conclusion.upper_bound))


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
    path: Path, scores: NDArray[np.float64], presence: NDArray
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


if __name__ == "__main__":
    cli.run(main)
