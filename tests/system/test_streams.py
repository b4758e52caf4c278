"""Standard streams that are closed: the work is done all the same, and no file takes their place."""

import os
import subprocess
import sys

import pytest

from tests.system.bad import two_worlds
from tests.system.killed import ROOT, SECONDS, contents
from tests.system.test_bad_stores import smoke_cells

ONE_SHOT = ("figures", "--name=one_shot_table_1", "--scale=smoke", "--out=out")
LANDSCAPE = ("landscape", "--sigmas=4", "--batch_sizes=4", "--steps=2", "--runs=100", "--out=out")
FIGURES = ("figures", "--name=figure_7", "--scale=smoke", "--out=r")
FEDERATED = (
    *(
        "federated",
        "--model=linear",
        "--data_file={images}",
        "--clients=10",
        "--cohort=4",
        "--rounds=4",
    ),
    *("--canaries=100", "--out=out"),
)
SLOW = pytest.mark.slow
CLOSED = [  # commands and what they leave at least
    (("bound", "--scores=scores.npz"), ()),
    (("list", "--out=r"), ()),
    (ONE_SHOT, ("out/figures/smoke/one_shot_table_1.csv",)),
    pytest.param(("sweep", "--list", "--scale=smoke", "--out=r"), (), marks=SLOW),
    pytest.param(FIGURES, ("r/figures/smoke/figures.csv",), marks=SLOW),
    pytest.param(LANDSCAPE, ("out/landscape/landscape.csv",), marks=SLOW),
    pytest.param(FEDERATED, (), marks=SLOW),
]
UNHEARD = [
    (ONE_SHOT, "2>&-"),
    pytest.param(FIGURES, "<&- 2>&-", marks=SLOW),
]
SCRIPT = """
import os
from audit.commands import streams
streams.prepare()
print(open("opened", "w").fileno() > 2, os.write(1, b"said"), os.write(2, b"said"), file=open("found", "w"))
"""


@pytest.fixture
def start(tmp_path, image_file):
    """start(argv, redirection) -> a command that has ended, started by a shell."""
    two_worlds(tmp_path)
    smoke_cells(tmp_path)

    def call(argv, redirection):
        argv = [
            sys.executable,
            "-P",
            "-m",
            "experiments",
            *(one.format(images=image_file) for one in argv),
        ]
        shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *argv]
        named = {
            "cwd": tmp_path,
            "env": {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        }
        return subprocess.run(shell, capture_output=True, text=True, timeout=SECONDS, **named)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("argv, leaves", CLOSED)
def test_a_closed_stdout_is_no_error(argv, leaves, start, tmp_path):
    ended = start(argv, ">&-")
    assert ended.returncode == 0 and ended.stdout == "", ended
    assert "Traceback" not in ended.stderr and "error" not in ended.stderr
    assert all((tmp_path / name).stat().st_size for name in leaves)


@pytest.mark.slow
@pytest.mark.parametrize("argv, redirection", UNHEARD)
def test_a_stderr_that_takes_nothing_changes_nothing(argv, redirection, start, tmp_path):
    kept = (".csv", ".npz", ".json")
    whole = start(argv, "")
    expected = contents(tmp_path, *kept)
    for path in expected:
        if path.parts[0] == "out" or path.suffix == ".csv":
            (tmp_path / path).unlink()
    ended = start(argv, redirection)
    assert whole.returncode == ended.returncode == 0 and ended.stderr == "", ended
    assert ended.stdout == whole.stdout and contents(tmp_path, *kept) == expected
    assert sum(path.suffix == ".csv" for path in expected)


def test_a_mistake_that_cannot_be_said_has_its_status(start):
    assert start(("list", "--out="), "2>&-").returncode == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("audit", "help"),
        ("audit", "--version"),
        ("audit", "help", "bound"),
        ("audit", "list", "--help"),
        ("experiments", "help", "test"),
        ("experiments", "docs", "--help"),
    ],
)
def test_help_for_a_full_disk_is_one_line(argv):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", *argv], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: cannot print (No space left on device): send the output elsewhere\n"
    )


PRINTING = r"""
import sys
from audit.commands import cli

def main():
    for file in (sys.stdout, sys.stderr):
        print("2 \u2264 e \u2265\xa01.2: mod\xe8le \udcff", file=file)

cli.run(main)
"""


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("ascii", "2 <= e >= 1.2: mod\\xe8le \\udcff\n"),
        ("latin-1", "2 <= e >=\xa01.2: mod\xe8le \\udcff\n"),
        ("utf-8", "2 \u2264 e \u2265\xa01.2: mod\xe8le \\udcff\n"),
        ("utf-8:surrogateescape", None),
    ],
)
def test_what_an_encoding_lacks_is_spelled_out(encoding, said, tmp_path):
    (tmp_path / "mine.py").write_text(PRINTING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    argv = [sys.executable, tmp_path / "mine.py"]
    ended = subprocess.run(argv, env=environment, capture_output=True)
    if said is None:  # bytes of a file's name that are no text go out as they are
        assert ended.stdout.endswith(b"\xff\n") and ended.stderr.endswith(b"\\udcff\n")
        return
    written = said.encode(encoding)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, written, written)


def test_no_file_is_opened_as_a_closed_stream(tmp_path):
    """What a library writes to file 2 would end in it."""
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", SCRIPT]
    subprocess.run(argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert (tmp_path / "found").read_text() == "True 4 4\n"
