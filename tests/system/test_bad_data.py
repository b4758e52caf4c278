"""Bad files of data and weights, and what a model of one's own can get wrong."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from models.data.tables import FEATURES, TARGET
from tests.system.bad import (
    FORTY,
    HUGE,
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
from tests.system.damaged import archive, claiming, npy, npz

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


def tarred(**members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def images(side=32, channels=(3,), count=20, **changes):
    rng, arrays = np.random.default_rng(0), {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, side, side, *channels), np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 10, count)
    return npz(**arrays | changes)


def pickled(body):
    """A torch file of the zip format whose pickle is this."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/data.pkl", body)
    return file.getvalue()


def into(name, content):
    return lambda folder: (
        (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)
    )


def unusable(ending, contents):
    return {
        n: (f"h.{ending}", content, f"h.{ending} cannot be used") for n, content in contents.items()
    }


# fmt: off
BAD_HOUSING = {
    **unusable("csv", {
        "empty": b"", "no rows": (",".join(COLUMNS) + "\n").encode(), "a row too long": housing(_3_2="1,2"),
        "binary": bytes(range(256)) * 9, "UTF-16": housing().decode().encode("utf-16"),
        "HTML": b"<!DOCTYPE html><p>404", "an archive": columns(),
    }),
    **unusable("npz", {
        "objects": columns(MedInc=np.array([{}] * 30)), "torn npz": columns()[:99],
        "400 GB claimed": archive(claiming((50_000_000_000,)), "MedInc.npy"), "an npy as npz": npy(TABLE),
    }),
    **unusable("parquet", {"text as parquet": b"PAR1 and nothing", "zeros as parquet": bytes(99)}),
    **unusable("brotli", {"brotli": bytes(99)}),
    "a missing column": ("h.csv", housing(["x", *COLUMNS[1:]]), "column MedInc is missing"),
    "words": ("h.csv", housing(_3_2="high"), "column AveRooms holds something that is not a number"),
    "a NaN": ("h.csv", housing(_3_2="nan"), "column AveRooms has a NaN"),
    "an infinity": ("h.csv", housing(_3_2="inf"), "column AveRooms has a NaN, infinite or huge"),
    "a huge number": ("h.csv", housing(_3_2="1e300"), "column AveRooms has a NaN, infinite or huge"),
    "an empty cell": ("h.csv", housing(_3_2=""), "column AveRooms has a NaN"),
    "escapes": ("h.csv", housing(_3_2="1,\x1b[2J"), r"\x1b[2J"),
    "constant": ("h.npz", columns(MedInc=np.ones(30)), "column MedInc is constant"),
    "another length": ("h.npz", columns(MedInc=np.arange(9.0)), "the columns differ in length"),
    "a table": ("h.npz", columns(MedInc=np.ones((30, 2))), "column MedInc has fewer than 2 rows"),
    "complex": ("h.npz", columns(MedInc=np.arange(30) * 1j), "column MedInc holds"),
    "dates": ("h.npz", columns(MedInc=np.arange(30).astype("M8[s]")), "column MedInc holds"),
    "structured": ("h.npz", columns(MedInc=np.zeros(30, "f8,i4")), "column MedInc holds"),
    "another ending": ("h.txt", housing(), "it ends in .txt, not .csv"),
    "none above the median": ("h.npz", columns(MedHouseVal=np.array([1.0] * 29 + [0.0])), "above the median"),
}
BAD_IMAGES = {
    **unusable("npz", {"h.npz of housing": columns(), "labels of 10": images(train_labels=np.full(20, 10))}),
    **unusable("tar.gz", {"no gzip": b"text", "torn gzip": tarred(test_batch=bytes(3073))[:40]}),
    "no batches": ("h.tar.gz", tarred(other=b"1"), "only cifar-10-binary.tar.gz is read, no pickles"),
    "torn batches": ("h.tar.gz", tarred(**{f"data_batch_{i}": bytes(3073) for i in range(1, 6)},
        test_batch=bytes(99)), "test_batch is torn"),
    "a picture": ("h.png", b"\x89PNG", "it ends in .png"),
}
ARCH = b"!<arch>\n"
BAD_FASHION = {
    "a folder of nothing": ("h", None, "the folder holds no train-images-idx3-ubyte.gz"),
    **unusable("npz", {"CIFAR-10": images()}),
    **unusable("deb", {"torn": ARCH + b"debian-binary   " * 9}),
}
SAFE = safetensors.numpy.save({"weight": np.ones(3, np.float32)})
BAD_WEIGHTS = {
    "empty": ("w.pth", b"", "it is no safetensors file"),
    "another network": ("w.safetensors", SAFE, "is missing: it holds another network"),
    "torn": ("w.safetensors", SAFE[:-4], "is torn"),
    "a header of 2**63": ("w.safetensors", b"\xff" * 7 + b"\x7f" + SAFE[8:], "is torn"),
    "a header of no JSON": ("w.safetensors", SAFE[:8] + b"{" + b"}" * (len(SAFE) - 9), "is torn"),
    "a bare zip": ("w.pth", archive(), "it is no safetensors file"),
    "a torn zip": ("w.pth", archive()[:99], "it is no safetensors file"),
    "a pickle of code": ("w.pth", pickled(b"cos\nsystem\n(S'touch owned'\ntR."), "it is no safetensors file"),
    "a torn pickle": ("w.pth", pickled(b"\x80\x02"), "it is no safetensors file"),
    "no pickle": ("w.pth", pickled(b""), "it is no safetensors file"),
    "the older format, torn": ("w.pth", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "is torn"),
    "another ending": ("w.npz", npz(a=FORTY), "it ends in .npz, not .pth"),
}
# fmt: on
HEAD, LINEAR = ("audit", "--model=mobilenet_head"), "audit --model=linear --data_file"
TOO_LONG = "n" * 300 + ".csv"


def loop(folder):
    looping(folder / "loop.csv")


DATA = [
    *(
        named(Bad((*argv, f"--{flag}={name}"), says, into(name, content)), f": {what}")
        for *argv, flag, bad in (
            ("audit", "--model=fcnn", "data_file", BAD_HOUSING),
            ("audit", "--model=convnet", "data_file", BAD_IMAGES),
            ("audit", "--model=mlp", "data_file", BAD_FASHION),
            (*HEAD, "weights", BAD_WEIGHTS),
        )
        for what, (name, content, says) in bad.items()
    ),
    *rows(
        HEAD, "weights", "cannot be used", "missing.pth", "", ".", "/dev/null", "/dev/null/w.pth"
    ),
    *rows(HEAD, "input_size", "--input_size={}: give 32 to 512 pixels", 0, -1, 31, 513, HUGE),
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
