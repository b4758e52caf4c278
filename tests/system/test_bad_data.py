"""Bad files of data, and what a model of one's own can get wrong."""

import numpy as np
import pytest

from models.data.tables import FEATURES, TARGET
from tests.system.bad import (
    Bad,
    assert_refused,
    firsts_of_a_kind,
    holding,
    lines,
    looping,
    named,
    odd_places,
    rows,
)
from tests.system.damaged import archive, claiming, npz

COLUMNS, TABLE = [*FEATURES, TARGET], np.random.default_rng(1).normal(size=(30, 9))


def housing(header=COLUMNS, **changes):
    """A CSV of California Housing's columns, with cells changed by (row, column)."""
    cells = [[f"{value:.4f}" for value in row] for row in TABLE]
    for place, text in changes.items():
        row, column = map(int, place[1:].split("_"))
        cells[row][column] = text
    return "\n".join(map(",".join, [header, *cells])).encode() + b"\n"


def columns(**changes):
    return npz(**dict(zip(COLUMNS, TABLE.T, strict=True)) | changes)


def images(side=32, channels=(3,), count=20, **changes):
    rng, arrays = np.random.default_rng(0), {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, side, side, *channels), np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 10, count)
    return npz(**arrays | changes)


def into(name, content):
    return lambda folder: (
        (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)
    )


def unusable(ending, contents):
    return {
        n: (f"h.{ending}", content, f"h.{ending} cannot be used") for n, content in contents.items()
    }


# fmt: off
BAD_HOUSING = {  # more in tests/models/data/test_sources.py
    **unusable("csv", {
        "empty": b"", "no rows": (",".join(COLUMNS) + "\n").encode(), "a row too long": housing(_3_2="1,2"),
        "binary": bytes(range(256)) * 9, "HTML": b"<!DOCTYPE html><p>404",
    }),
    **unusable("npz", {
        "objects": columns(MedInc=np.array([{}] * 30)), "torn npz": columns()[:99],
        "400 GB claimed": archive(claiming((50_000_000_000,)), "MedInc.npy"),
    }),
    "words": ("h.csv", housing(_3_2="high"), "column AveRooms holds something that is not a number"),
    "escapes": ("h.csv", housing(_3_2="1,\x1b[2J"), r"\x1b[2J"),
    "another ending": ("h.txt", housing(), "it ends in .txt, not .csv"),
    "none above the median": ("h.npz", columns(MedHouseVal=np.array([1.0] * 29 + [0.0])), "above the median"),
}
BAD_IMAGES = {
    **unusable("npz", {"h.npz of housing": columns(), "labels of 10": images(train_labels=np.full(20, 10))}),
    "a folder": ("h", None, "cannot be used"),
}
# fmt: on
LINEAR = "audit --model=linear --data_file"
TOO_LONG = "n" * 300 + ".csv"


def loop(folder):
    looping(folder / "loop.csv")


DATA = [
    *(
        named(Bad((*argv, f"--{flag}={name}"), says, into(name, content)), f": {what}")
        for *argv, flag, bad in (
            ("audit", "--model=fcnn", "data_file", BAD_HOUSING),
            ("audit", "--model=convnet", "data_file", BAD_IMAGES),
        )
        for what, (name, content, says) in bad.items()
    ),
    *(
        case
        for argv in (["audit"], ["plan"])
        for case in (
            *rows(
                argv, "data_file", "cannot be used", "", ".", "/dev/null", "missing.csv", TOO_LONG
            ),
            *rows(argv, "tfds_dir", "it holds no prepared california_housing", "", ".", "missing"),
        )
    ),
    *lines("device.csv: it is no file", "audit --data_file=device.csv", lay=odd_places),
    *lines("loop.csv cannot be used", "audit --data_file=loop.csv", f"{LINEAR}=loop.csv", lay=loop),
]
SCRIPT = b"""
from audit.commands import cli

def main():
    import audit
    audit.audit("fcnn", data_file="nowhere.csv", RUNS)

cli.run(main)
"""
OWN = [  # a script's mistakes, in the words of a command line
    named(
        Bad(("python", "mine.py"), says, holding(SCRIPT.replace(b"RUNS", given), "mine.py")),
        f": {says}",
    )
    for given, says in (
        (b"runs=1", "--runs=1: give at least 2"),
        (b"runs='4'", "--runs='4' is no int"),
    )
]


@pytest.mark.parametrize("case", firsts_of_a_kind([*DATA, *OWN]))
def test_bad_data_are_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)
