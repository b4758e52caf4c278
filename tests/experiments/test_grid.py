"""Grids of audits from the command line: every combination is trained once and is in the table."""

import csv
import io
import json

import pytest

from audit.api import combine
from audit.errors import InputError

VARIED = ("--vary=k=1,5", "--vary=noise_multiplier=1,4")
SMALL = ("--insertions=2", "--runs=40", "--batch_size=20")


def test_every_combination_comes_once_and_the_last_axis_changes_fastest():
    combinations = combine({"k": [1, 5], "seed": [0, 1]})
    assert [tuple(values.values()) for values in combinations] == [(1, 0), (1, 1), (5, 0), (5, 1)]
    with pytest.raises(InputError, match="at most 1,000 audits, got 1,200"):
        combine({"k": range(40), "seed": range(30)})


@pytest.fixture
def start(run_command, housing_file, tmp_path):
    sources = (f"--data={housing_file}", f"--out={tmp_path / 'out'}")
    return lambda *flags: run_command("audit", *flags, *SMALL, *sources)


@pytest.mark.slow
def test_a_grid_is_audited_once_and_drawn(start, tmp_path):
    first = start(*VARIED, "--json")
    assert first.returncode == 0, first.stderr
    audits = json.loads(first.stdout)["audits"]
    assert [(row["k"], row["noise_multiplier"]) for row in audits] == [
        (1, 1),
        (1, 4),
        (5, 1),
        (5, 4),
    ]
    assert audits[0]["upper_bound"] > audits[1]["upper_bound"] > 0

    again = start(*VARIED)
    assert again.returncode == 0 and "runs/s" not in again.stderr
    (table,) = (tmp_path / "out" / "grids").glob("*.csv")
    (picture,) = (tmp_path / "out" / "grids").glob("*.png")
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["folder"] for row in rows] == [row["folder"] for row in audits]
    assert picture.read_bytes()[:4] == b"\x89PNG" and str(picture) in again.stdout


BAD = [
    (("--vary=kk=1",), "'kk' is not a field of an audit"),
    (("--vary=k=",), "k cannot be ''"),
    (("--vary=k=1,2", "--vary=k=3"), "k is already varied"),
    (("--vary=k=0",), "--vary, k=0: --k=0"),
    (("--vary=k=1,5", "--until=3"), "--until=3 requires a single audit"),
    (("--vary=adversary=nope",), "--adversary=nope is unknown"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=lambda value: str(value)[:30])
def test_what_is_no_grid_is_one_line(start, tmp_path, flags, message):
    ended = start(*flags)
    assert ended.returncode == 2 and ended.stdout == ""
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out").exists()
