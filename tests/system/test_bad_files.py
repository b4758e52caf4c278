"""Tests that bad score files and damaged stores give an error of one line with the file's name."""

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import InputError
from audit.report import listing
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage import score_files
from audit.storage.store import Scores, Store, hash_of
from tests.system.bad import FORTY, KINDS, Bad, assert_refused, generated

RNG = np.random.default_rng(0)
IN = RNG.normal(1, 1, 40)
OUT = RNG.normal(0, 1, 40)
TABLE = "score,in\n" + "".join(f"{value:.4f},{i % 2}\n" for i, value in enumerate([*IN, *OUT]))


def make_npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


SOUND = {
    "csv": TABLE.encode(),
    "npz": make_npz(**{"in": IN, "out": OUT}),
    "json": json.dumps({"in": [*IN], "out": [*OUT]}).encode(),
}


def read(path):
    """Returns the scores of a file, or the line that refuses it."""
    try:
        return score_files.read_files([path], None, False), ""
    except InputError as error:
        return None, str(error)


@st.composite
def damages(draw, content):
    """Draws the bytes of a file that were cut, flipped or replaced."""
    start = draw(st.integers(0, len(content)))
    stop = draw(st.integers(start, len(content)))
    return content[:start] + draw(st.binary(max_size=20)) + content[stop:]


@generated(200)
@given(name=st.sampled_from(sorted(SOUND)), data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(name, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / f"s.{name}"
    path.write_bytes(data.draw(damages(SOUND[name])))
    evidence, line = read(path)
    assert (evidence is None) == bool(line)
    assert "\n" not in line and (not line or path.name in line or "scores" in line), line
    if name == "npz" and evidence is not None:  # its checksums cover every number
        assert np.array_equal(np.sort(np.ravel(evidence.inserted)), np.sort(IN))


COINS = (np.random.default_rng(0).random((60, 8)) < 0.5).astype(int)
COSINES = np.linspace(-0.1, 0.2, 50)
# The arrays of an .npz, what is said of them, and flags besides.
BAD_ARRAYS = (
    ({"in": np.array([1.0, None] * 20), "out": OUT}, "s.npz: "),
    ({"in": IN}, "has columns in: give score,in"),
    ({"scores": np.ones((9, 2)), "presence": np.ones((9, 2))}, "both are needed"),
    (
        {"scores": COINS, "presence": np.tile(COINS[:1], (60, 1))},
        "presence must be drawn with independent fair coins",
    ),
    ({"in": COINS * 1e307, "out": COINS - 1e300}, "divide all scores by the same number"),
    ({"in": IN * 0, "out": OUT * 0}, "equal"),
)
BAD_COSINES = (
    ({"a": COSINES}, "it has no array observed: save observed="),
    ({"in": COSINES, "out": COSINES}, "drop out, or save scores= and presence="),
    ({"observed": COSINES[:9]}, "there are 9 observed cosines: give at least 10"),
    ({"observed": COSINES + 1}, "divide by both lengths"),
)
FILES = (
    ("empty.csv", b"", "score,in"),
    ("binary.csv", bytes(range(256)) * 64, "UTF-8"),
    ("deep.json", b"[" * 100_000, "is not a JSON object of lists: give {"),
    ("scores.txt", b"1,1\n", "give a .npz, .csv"),
)


def yield_bad_scores():
    """Yields a case for each bad file of scores."""
    for arrays, says in BAD_ARRAYS:
        yield make_case("s.npz", make_npz(**arrays), says)
    for arrays, says in BAD_COSINES:
        yield make_case("s.npz", make_npz(**arrays), says, "--dimension=100")
    for name, content, says in FILES:
        yield make_case(name, content, says)
    for kind, make in KINDS.items():
        lay = lambda folder, make=make: make(folder / "s.csv")  # noqa: E731
        yield pytest.param(Bad(("bound", "--scores=s.csv"), "s.csv", lay), id=kind)


def make_case(name, content, says, *flags):
    lay = lambda folder: (folder / name).write_bytes(content)  # noqa: E731
    return pytest.param(Bad(("bound", f"--scores={name}", *flags), says, lay), id=f"{name}: {says}")


@pytest.mark.parametrize("case", [*yield_bad_scores()])
def test_bad_scores_are_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)


MIXED = np.arange(40)[:, None] % 2 == 1
SCORES = FORTY[:, None] + MIXED
CONCLUDED = {
    "epsilon": 1.5,
    "bounds": [{"method": "assumption_free", "epsilon": 1.5, "delta": 1e-5, "confidence": 0.95}],
    "upper_bound": 9.75,
    "runs": 40,
    "provenance": {"jax": "0"},
}


def store_audit(root, seed=0):
    """Returns a setting's folder with made-up scores and their conclusion."""
    setting = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4, seed=seed)
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64})
    store.save(Scores(0, SCORES, MIXED))
    store.write_text("audit.json", json.dumps(CONCLUDED))
    return store.path


@generated(100)
@given(data=st.data())
def test_a_damaged_file_of_a_store_is_left_out_or_named(data, tmp_path_factory):
    folder = store_audit(tmp_path_factory.mktemp("store"))
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    path.write_bytes(data.draw(damages(path.read_bytes())))
    try:
        listing.as_table([listing.make_record(folder)])
        store = Store.at(folder)
        if not store.missing(40):
            np.testing.assert_array_equal(store.load(40).scores, SCORES)
    except InputError as error:
        assert folder.name in str(error) and "\n" not in str(error)


def test_a_name_that_begins_two_hashes_is_refused(forked, tmp_path):
    for number in range(17):  # two hashes begin with the same of 16 digits
        config = identity(setting_of("fcnn", seed=number))
        Store(tmp_path / "r", config).save(Scores(0, SCORES, MIXED))
    digits = [hash_of(folder)[0] for folder in (tmp_path / "r").iterdir()]
    digit = max(digits, key=digits.count)
    ended = forked("list", "--out=r", "--report=p.html", f"--setting={digit}", folder=tmp_path)
    assert ended.status == 2 and "audits in r: give the hash of one" in ended.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("list --out=s.txt", "s.txt (Not a directory)"),
        ("list --out=loop --report=p.html", "Too many levels of symbolic links"),
        ("figures --out=s.txt", "s.txt (Not a directory)"),
        ("sweep --list --out=s.txt", "s.txt (Not a directory)"),
    ],
)
def test_a_folder_that_is_none_is_one_line(line, says, forked, homes, tmp_path):
    def lay(folder):
        (folder / "s.txt").touch()
        KINDS["a loop"](folder / "loop")

    assert_refused(Bad(tuple(line.split()), says, lay), forked, homes, tmp_path)
