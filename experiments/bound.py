"""Bound epsilon from the score file of any framework.

    ./run.sh bound --scores=scores.npz                       arrays `in` and `out`
    ./run.sh bound --scores=scores.csv --json                columns score,in (1 or 0)
"""

import csv
import zipfile
from pathlib import Path

import numpy as np
from absl import flags
from numpy.typing import NDArray

from audit import files
from audit.errors import InputError, require
from audit.statistics import accounting, estimate
from experiments import cli, tables

FLAGS = flags.FLAGS
flags.DEFINE_string("scores", None, "The scores: .npz with arrays in and out, or .csv with score,in.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_float("noise_multiplier", None, "Noise multiplier, where the upper bound is wanted.")
flags.DEFINE_integer("insertions", None, "Steps with the canary, where the upper bound is wanted.")
flags.DEFINE_string("figure", None, "Also draw the audit into this PNG file.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")

_YES, _NO = {"1", "1.0", "true", "in"}, {"0", "0.0", "false", "out"}


def main() -> None:
    """Read, bound, print."""
    require(FLAGS.scores is not None, "--scores is missing: name a .npz or .csv file")
    scores_in, scores_out = read_scores(Path(FLAGS.scores))
    known = (FLAGS.noise_multiplier is not None, FLAGS.insertions is not None)
    require(known[0] == known[1], "--noise_multiplier and --insertions go together: give both or none")
    bounds = estimate.all_bounds(scores_in, scores_out, FLAGS.delta, FLAGS.confidence)
    upper = mu_upper = None
    if all(known):
        upper = accounting.epsilon_upper_bound(FLAGS.noise_multiplier, FLAGS.insertions, FLAGS.delta)
        mu_upper = accounting.mu_upper_bound(FLAGS.noise_multiplier, FLAGS.insertions)
    if FLAGS.figure is not None:
        from experiments import drawing

        content = drawing.audit_figure(scores_in, scores_out, bounds, upper, mu_upper)
        files.write_whole(Path(FLAGS.figure), content)
    print(tables.bounds_json(bounds, upper) if FLAGS.json else tables.bounds_table(bounds, upper))


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
    """Arrays `in` and `out`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = {"in", "out"} - set(file.files)
            require(not missing, f"{path} has no array {', '.join(sorted(missing))}: save in= and out=")
            return np.asarray(file["in"], np.float64), np.asarray(file["out"], np.float64)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{path} holds no plain numbers: save float arrays in= and out=") from None


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
