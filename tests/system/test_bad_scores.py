"""Bad files of scores: each is one line that names the file, and nothing else happens."""

import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.errors import InputError
from audit.storage import score_files
from tests.system.bad import KINDS, Bad, assert_refused, holding, looping
from tests.system.damaged import archive, claiming, npz

RNG = np.random.default_rng(0)
IN = RNG.normal(1, 1, 40)
OUT = RNG.normal(0, 1, 40)
TABLE = "score,in\n" + "".join(f"{value:.4f},{i % 2}\n" for i, value in enumerate([*IN, *OUT]))
SOUND = {
    "csv": TABLE.encode(),
    "npz": npz(**{"in": IN, "out": OUT}),
    "json": json.dumps({"in": [*IN], "out": [*OUT]}).encode(),
}
ODD_CELLS = ("", "high", "maybe", "2", "nan", "1e999", "1,000,5", "\x1b[2J", '"', "\0", "z" * 9999)


def read(path):
    """The scores of a file, or the line that refuses it."""
    try:
        return score_files.read_files([path], None, False), ""
    except InputError as error:
        return None, str(error)


@st.composite
def damages(draw):
    """(format, the bytes of a sound file that were cut, flipped or replaced)."""
    name = draw(st.sampled_from(sorted(SOUND)))
    content = SOUND[name]
    start = draw(st.integers(0, len(content) - 1))
    stop = draw(st.integers(start, len(content)))
    between = draw(st.just(b"") | st.binary(max_size=40))
    return name, content[:start] + between + content[stop:]


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(damage=damages())
def test_a_damaged_file_is_read_or_refused_in_one_line(damage, tmp_path_factory):
    name, content = damage
    path = tmp_path_factory.mktemp("damaged") / f"s.{name}"
    path.write_bytes(content)
    evidence, line = read(path)
    assert (evidence is None) == bool(line)
    assert "\n" not in line and (not line or path.name in line or "scores" in line), line
    if name == "npz" and evidence is not None:  # its checksums cover every number
        assert np.array_equal(np.sort(np.ravel(evidence.inserted)), np.sort(IN))


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(row=st.integers(0, 79), column=st.integers(0, 1), odd=st.sampled_from(ODD_CELLS))
def test_a_cell_that_is_no_number_or_label_is_refused_by_its_line(
    row, column, odd, tmp_path_factory
):
    lines = TABLE.splitlines()
    cells = lines[row + 1].split(",")
    cells[column] = odd
    lines[row + 1] = ",".join(cells)
    path = tmp_path_factory.mktemp("odd") / "s.csv"
    path.write_text("\n".join(lines) + "\n")
    evidence, line = read(path)
    if evidence is None:
        assert "s.csv" in line and "\n" not in line and len(line) < 1500
    else:  # a failed run, or a label in another spelling
        assert odd in ("nan", "1e999", "2") and column == 0


KINDS_OF_NUMBERS = {
    "objects": np.array([1.0, None] * 20),
    "complex": IN * 1j,
    "dates": np.arange(40).astype("M8[s]"),
    "words": np.array(["1"] * 40),
    "records": np.zeros(40, "f8,i4"),
    "raw bytes": np.zeros(40, "V8"),
}
COINS = (np.random.default_rng(0).random((60, 8)) < 0.5).astype(int)
COSINES = np.linspace(-0.1, 0.2, 50)
RANKS = {"ranks": np.random.default_rng(2).integers(1, 20, (6, 4)), "fresh_draws": 50}
BAD_ARRAYS = {
    **{
        f"in: {name}": ({"in": array, "out": OUT}, "s.npz: ")
        for name, array in KINDS_OF_NUMBERS.items()
    },
    "one array": ({"in": IN}, "has columns in: give score,in"),
    "other arrays": ({"a": IN}, "has columns a: give score,in or"),
    "presence of 2": ({"scores": IN, "presence": np.arange(40) % 3}, "presence must be"),
    "presence of another length": ({"scores": IN, "presence": [0, 1]}, "must both be (runs,)"),
    "one world": ({"scores": np.ones((9, 2)), "presence": np.ones((9, 2))}, "both are needed"),
    "7 runs of canaries": ({"scores": COINS[:7], "presence": COINS[:7]}, "give at least 8"),
    "the coins of one run": ({"scores": COINS, "presence": np.tile(COINS[:1], (60, 1))},
        "60 of 60 runs have the same 8 coins, or their complement; presence has to be"),
    "sorted coins": ({"scores": COINS, "presence": np.arange(480).reshape(60, 8) < 240}, "drawn by fair"),
    "near the end of floats": ({"in": COINS * 1e307, "out": COINS - 1e300}, "divide all by one number"),
    "most are NaN": ({"in": IN * np.nan, "out": np.where(OUT > -1, np.nan, OUT)}, "are NaN"),
    "all equal": ({"in": IN * 0, "out": OUT * 0}, "equal"),
    "none in": ({"in": IN[:0], "out": OUT}, "no in scores"),
    "no axis": ({"in": 1.0, "out": OUT}, "shape"),
    "rank 0": ({**RANKS, "ranks": RANKS["ranks"] * 0}, "values are no ranks: give whole numbers from 1"),
    "half a draw": ({**RANKS, "fresh_draws": 0.5}, "fresh_draws is no whole number: save one"),
    "ranks alone": ({"ranks": RANKS["ranks"]}, "has no array fresh_draws: save ranks="),
}  # fmt: skip
BAD_COSINES = {
    "no cosines": ({"a": COSINES}, "it has no array observed: save observed="),
    "a world out": ({"in": COSINES, "out": COSINES}, "drop out, or save scores= and presence="),
    "few": ({"observed": COSINES[:9]}, "there are 9 observed cosines: give at least 10"),
    "sorted runs": ({"observed": COSINES.reshape(5, 10)}, "directions look the same in every run"),
    "beyond 1": ({"observed": COSINES + 1}, "is no cosine: divide by both lengths"),
    "another dimension": ({"observed": COSINES * 4}, "--dimension=100: cosines spread by 3.5"),
    "NaN": ({"observed": COSINES * np.nan}, "observed cosines are not finite"),
    "no coins": (
        {"scores": COSINES, "presence": np.arange(50) % 3},
        "presence must be 1 (in) or 0",
    ),
    "turns": ({"scores": COSINES, "presence": np.arange(50) % 2}, "1 canary apart differ 49 times"),
}
FILES = {
    "empty.csv": (b"", "score,in"),
    "no_header.csv": (b"1.5,1\n0.5,0\n", "score,in"),
    "ambiguous.csv": (b"score,in,out\n1,1,0\n", "columns score,in,out can be read in several ways"),
    "binary.csv": (bytes(range(256)) * 64, "UTF-8"),
    "code.npz": (archive(claiming((3,), "<f8").replace(b"False", b"f(1) ")), "damaged"),
    "claims.npz": (archive(claiming((50_000_000_000,))), "damaged"),
    "deep.json": (b"[" * 100_000, "is no JSON object of lists: give {"),
    "twice.json": (b'{"in": [1], "in": [2], "out": [3]}', "has the name 'in' twice"),
    "ragged.json": (
        b'{"in": [[1, 2], [1]], "out": [1]}',
        "in are no numbers in rows of one length",
    ),
    "scores.txt": (b"1,1\n", "give a .npz, .csv"),
}


def saved(name, arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return holding(file.getvalue(), name)


CASES = [
    *(
        pytest.param(Bad(("bound", "--scores=s.npz"), says, saved("s.npz", arrays)), id=note)
        for note, (arrays, says) in BAD_ARRAYS.items()
    ),
    *(
        pytest.param(
            Bad(("bound", "--scores=s.npz", "--dimension=100"), says, saved("s.npz", arrays)),
            id=f"cosines: {note}",
        )
        for note, (arrays, says) in BAD_COSINES.items()
    ),
    *(
        pytest.param(Bad(("bound", f"--scores={name}"), says, holding(content, name)), id=name)
        for name, (content, says) in FILES.items()
    ),
    *(
        pytest.param(
            Bad(
                ("bound", "--scores=s.csv"),
                "s.csv: ",
                lambda folder, make=make: make(folder / "s.csv"),
            ),
            id=kind,
        )
        for kind, make in {**KINDS, "a loop": looping}.items()
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_bad_scores_are_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)
