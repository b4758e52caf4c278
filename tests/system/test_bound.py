"""./run.sh bound on strangers' flags: what it writes is what a file's name says, and where it is said."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from audit.report.verdicts import at_most
from audit.statistics import lifted
from audit.statistics.accounting import sampled_upper_bound

IN, OUT = np.random.default_rng(0).normal(1, 1, 60), np.random.default_rng(1).normal(0, 1, 70)


class Ended(NamedTuple):
    """A process that has ended, and the files that it left."""

    status: int
    stdout: str
    stderr: str
    left: list[str]


@pytest.fixture
def bound(forked, tmp_path):
    """bound(*flags) -> Ended, in tmp_path, which holds scores.npz."""
    np.savez(tmp_path / "scores.npz", **{"in": IN, "out": OUT})
    before = {*tmp_path.iterdir()}

    def call(*argv):
        ended = forked("bound", *argv, folder=tmp_path)
        return Ended(*ended, sorted(path.name for path in {*tmp_path.iterdir()} - before))

    return call


SCORES = "--scores=scores.npz"


def test_the_figure_is_what_its_ending_says(bound, tmp_path):
    first_bytes = {"a.png": b"\x89PNG", "b.PDF": b"%PDF", "c.svg": b"<?xml"}
    for name, start in first_bytes.items():
        ended = bound(SCORES, f"--figure={name}")
        assert ended.status == 0 and ended.stderr == f"figure: {name}\n"
        content = (tmp_path / name).read_bytes()
        assert content.startswith(start) and len(content) > 5000
    assert b"Type3" not in (tmp_path / "b.PDF").read_bytes()


def test_the_places_are_said_on_stderr_and_stdout_stays_one_object(bound):
    ended = bound(SCORES, "--json", "--figure=f.svg", "--report=deep/page.html")
    assert ended.status == 0 and json.loads(ended.stdout)["bounds"]
    assert ended.stderr == "figure: f.svg\nreport: deep/page.html\n"
    assert ended.left == ["deep", "f.svg"]


def test_without_files_stderr_is_silent(bound):
    ended = bound(SCORES)
    assert ended.status == 0 and ended.stderr == "" and not ended.left


def test_scores_of_the_wrong_sign_are_remarked_beside_the_bounds(bound, tmp_path):
    np.savez(tmp_path / "scores.npz", **{"in": -2 * IN, "out": OUT})
    table, only = bound(SCORES), bound(SCORES, "--json")
    assert table.status == only.status == 0 and table.stderr == ""
    assert "minus the score" in table.stdout.splitlines()[-1]
    assert only.stderr.splitlines() == table.stdout.splitlines()[-1:] and json.loads(only.stdout)["bounds"]
    assert bound(SCORES, "--figure=f.png").stderr == "figure: f.png\n"


def test_one_of_several_declared_looks_holds_at_its_share_of_the_error(bound):
    plain = bound("--scores=scores.npz", "--json", "--confidence=0.975")
    look = bound("--scores=scores.npz", "--json", "--looks=130,260", "--report=page.html")
    assert look.status == 0 and "look 1 of 2 declared; each holds at 0.975" in look.stderr
    found, alone = (json.loads(process.stdout) for process in (look, plain))
    assert [row["epsilon"] for row in found["bounds"][1:]] == [row["epsilon"] for row in alone["bounds"][1:]]
    assert found["looks"]["schedule"] == [130, 260] and found["bounds"][1]["confidence"] == 0.95


def test_two_npy_files_give_the_bounds_of_one_npz(bound, tmp_path):
    np.save(tmp_path / "in.npy", IN)
    np.save(tmp_path / "out.npy", OUT)
    pair = bound("--scores=in.npy,out.npy", "--report=page.html")
    assert pair.status == 0 and pair.stdout == bound(SCORES).stdout
    assert "in.npy, out.npy" in (tmp_path / "page.html").read_text()


def test_a_name_that_is_no_utf8_is_taken(bound, tmp_path):
    (tmp_path / "scores.npz").rename(tmp_path / "sc\udcffres.npz")
    ended = bound("--scores=sc\udcffres.npz", "--report=p\udcffge.html", "--name=a\udcffb")
    assert ended.status == 0, ended.stderr
    (page,) = tmp_path.glob("p*.html")
    assert "Audit: a?b" in page.read_bytes().decode("utf-8")


def test_a_link_stays_a_link(bound, tmp_path):
    (tmp_path / "page.html").symlink_to("target.html")
    assert bound(SCORES, "--report=page.html").left == ["page.html", "target.html"]
    assert (tmp_path / "page.html").is_symlink()


PRESENT = np.random.default_rng(2).random((60, 8)) < 0.5
MATRIX = np.random.default_rng(3).normal(size=(60, 8)) + 2 * PRESENT
MATRICES = {
    "coins": ({"scores": MATRIX, "presence": PRESENT}, "60 runs with 8 canaries each, in by a coin"),
    "sets": ({"in": MATRIX + 2, "out": MATRIX[:50, :5]}, "60 runs with 8 canaries inserted, 50 runs with 5"),
}


@pytest.mark.parametrize(("arrays", "size"), MATRICES.values(), ids=MATRICES)
def test_matrices_have_every_method_of_many_canaries(bound, tmp_path, arrays, size):
    np.savez(tmp_path / "scores.npz", **arrays)
    table = bound(SCORES, "--upper_bound=9", "--figure=f.png", "--report=page.html")
    assert table.status == 0 and table.stderr == "figure: f.png\nreport: page.html\n"
    lines = table.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and size in lines[1]
    assert {*lifted.METHODS} <= {line.split()[0] for line in lines}
    rows = json.loads(bound(SCORES, "--json").stdout)["bounds"]
    assert [row["method"] for row in rows] == [*lifted.METHODS]
    page = (tmp_path / "page.html").read_text()
    assert size in page and "not tested: scores of one run" in page and "band" not in page


def test_a_matrix_of_one_column_gives_what_a_flat_file_gives(bound, tmp_path):
    flat = bound(SCORES, "--json").stdout, bound(SCORES).stdout
    np.savez(tmp_path / "scores.npz", **{"in": IN[:, None], "out": OUT[:, None]})
    assert (bound(SCORES, "--json").stdout, bound(SCORES).stdout) == flat
    np.savez(
        tmp_path / "scores.npz", scores=np.r_[IN, OUT][:, None], presence=np.repeat([1, 0], [60, 70])[:, None]
    )
    assert (bound(SCORES, "--json").stdout, bound(SCORES).stdout) == flat


def test_methods_that_need_more_canaries_are_left_out_and_said(bound, tmp_path):
    np.savez(tmp_path / "scores.npz", **{"in": MATRIX + 2, "out": OUT})
    ended = bound(SCORES, "--json")
    assert "lidp_wilson_2" not in ended.stdout and "lidp_wilson_1" in ended.stdout
    assert ended.stderr == "methods of order 2 and 4 need so many canaries a run, here: 1\n"
    assert max(map(len, bound(SCORES).stdout.splitlines())) <= 80


BAD_MATRICES = [
    ({"scores": MATRIX, "presence": PRESENT[:5]}, "scores (60, 8) and presence (5, 8)"),
    ({"scores": MATRIX, "presence": PRESENT * 2}, "presence must be 1 (in) or 0 (out)"),
    ({"scores": MATRIX[:7], "presence": PRESENT[:7]}, "7 runs of a kind: give at least 8"),
    ({"in": MATRIX, "out": MATRIX[:7]}, "7 runs of a kind: give at least 8"),
    ({"in": MATRIX, "out": MATRIX[None]}, "the out scores have shape (1, 60, 8)"),
]


@pytest.mark.parametrize(("arrays", "word"), BAD_MATRICES)
def test_a_matrix_that_fits_no_audit_is_one_line(bound, tmp_path, arrays, word):
    np.savez(tmp_path / "scores.npz", **arrays)
    ended = bound(SCORES)
    assert ended.status == 2 and ended.stderr.count("\n") == 1 and word in ended.stderr and not ended.left


STEPS = ("--noise_multiplier=1", "--insertions=10")


@pytest.mark.parametrize(
    ("flags", "upper", "said"),
    [
        (("--upper_bound=3.25",), 3.25, "another accountant"),
        ((*STEPS, "--sampling_rate=0.1"), None, "each with probability 0.1"),
    ],
)
def test_an_upper_bound_that_is_no_plain_composition(bound, tmp_path, flags, upper, said):
    ended = bound(SCORES, *flags, "--json", "--report=page.html")
    assert ended.status == 0, ended.stderr
    found = json.loads(ended.stdout)["upper_bound"]
    page = (tmp_path / "page.html").read_text()
    assert found == (upper or pytest.approx(sampled_upper_bound(1, 10, 1e-5, 0.1)))
    last = bound(SCORES, *flags).stdout.partition("upper bound")[2].splitlines()[0]
    assert last.split()[-1] == ("given" if upper else "accounting")
    assert said in page and f"Accounting guarantees at most {at_most(found)}" in page


@pytest.mark.parametrize("extremes", [("1e-6", "1000000000000"), ("1e9", "1"), ("0", "3")])
def test_the_ends_of_the_ranges_are_drawn_and_reported_in_silence(bound, extremes):
    sigma, insertions = extremes
    ended = bound(SCORES, f"--noise_multiplier={sigma}", f"--insertions={insertions}", "--report=page.html")
    assert ended.status == 0 and "Traceback" not in ended.stderr and "upper bound" in ended.stdout
    assert ended.stderr == "report: page.html\n"
