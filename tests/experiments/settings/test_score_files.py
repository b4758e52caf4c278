"""Scores from files of every common make, each number in its world; anything else is one line."""

import io
import math
import os
import struct
import zipfile

import numpy as np
import pytest

from audit.errors import InputError
from experiments.settings import score_files

IN, OUT = [1.5, -2.25, 3e-7], [0.125, 7.0]
LABELLED = [(x, 1) for x in IN] + [(x, 0) for x in OUT]


def lines(header, separator=",", labels=("0", "1"), number=repr):
    rows = [f"{number(score)}{separator}{labels[label]}" for score, label in LABELLED]
    return "\n".join([header, *rows]) + "\n"


def saved_by_numpy(**choices):
    text = io.BytesIO()
    np.savetxt(text, np.array(LABELLED), **choices)
    return text.getvalue().decode()


TEXTS = {
    "plain": lines("score,in"),
    "presence": lines("score,presence"),
    "scores and presence": lines("scores,presence"),
    "floats": lines("score,in", labels=("0.0", "1.0")),
    "words": lines("score,in", labels=("false", "true")),
    "capitals": lines(" Score , In ", labels=("False", "True")),
    "worlds": lines("score,in", labels=("out", "in")),
    "semicolons": lines("score;in", ";"),
    "tabs": lines("score\tin", "\t"),
    "spaces": lines("score in", " "),
    "quoted": lines('"score","in"', labels=('"0"', '"1"')),
    "byte-order mark and CRLF": "\ufeff" + lines("score,in").replace("\n", "\r\n"),
    "blank lines": lines("score,in").replace("\n", "\n\n"),
    "index": ",score,presence\n" + "".join(f"{i},{x},{label}\n" for i, (x, label) in enumerate(LABELLED)),
    "other columns, turned": "seed,in,score\n" + "".join(f"x,{label},{x}\n" for x, label in LABELLED),
    "savetxt": saved_by_numpy(delimiter=",", header="score,in", comments=""),
    "savetxt's comment": saved_by_numpy(delimiter=",", header="score,in"),
    "savetxt's own separator": saved_by_numpy(header="score in"),
    "columns": "in,out\n1.5,0.125\n-2.25,7.0\n3e-07,\n",
    "columns of pandas": ",out,in\n0,0.125,1.5\n1,7.0,-2.25\n2,,3e-07\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_csv_gives_the_scores(tmp_path, text):
    (tmp_path / "s.csv").write_text(text, encoding="utf-8", newline="")
    scores_in, scores_out = score_files.read_scores(tmp_path / "s.csv").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert scores_in.dtype == scores_out.dtype == np.float64


def column(values):
    return np.array(values)[:, None]


MIXED, PRESENCE = np.array([score for score, _ in LABELLED]), np.array([label for _, label in LABELLED])
ARRAYS = {
    "worlds": {"in": IN, "out": OUT},
    "columns": {"in": column(IN), "out": column(OUT)},
    "presence": {"scores": MIXED, "presence": PRESENCE},
    "presence in columns": {"scores": MIXED[:, None], "presence": PRESENCE[:, None].astype(bool)},
    "big-endian": {"scores": MIXED.astype(">f8"), "presence": PRESENCE.astype(float)},
    "others beside": {"in": IN, "out": OUT, "names": np.array(["a"]), "things": np.array([{}], object)},
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("arrays", ARRAYS.values(), ids=ARRAYS)
def test_every_npz_gives_the_scores(tmp_path, arrays, save):
    save(tmp_path / "s.npz", **arrays)
    scores_in, scores_out = score_files.read_scores(tmp_path / "s.npz").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert scores_in.dtype == scores_out.dtype == np.float64


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float16, np.float32, np.longdouble, bool])
def test_every_kind_of_number_is_read(tmp_path, kind):
    np.savez(tmp_path / "s.npz", **{"in": np.array([1, 1], kind), "out": np.array([0, 1, 1], kind)})
    scores_in, scores_out = score_files.read_scores(tmp_path / "s.npz").pooled()
    assert scores_in.tolist() == [1, 1] and scores_out.tolist() == [0, 1, 1]


def test_two_npy_files_are_in_and_out(tmp_path):
    np.save(tmp_path / "with, a comma.npy", np.array(IN))
    np.save(tmp_path / "out.npy", column(OUT))
    found = score_files.read_scores(tmp_path / "with, a comma.npy", tmp_path / "out.npy")
    scores_in, scores_out = found.pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_commas_part_files_unless_one_is_named_so(tmp_path):
    names = f"{tmp_path}/a.npy,{tmp_path}/b.npy"
    assert score_files.paths(names) == (tmp_path / "a.npy", tmp_path / "b.npy")
    (tmp_path / "a,b.csv").touch()
    assert score_files.paths(f"{tmp_path}/a,b.csv") == (tmp_path / "a,b.csv",)


def test_a_score_that_says_nan_is_kept_for_the_check_of_scores(tmp_path):
    (tmp_path / "s.csv").write_text("score,in\nnan,1\n0,0\n")
    assert math.isnan(score_files.read_scores(tmp_path / "s.csv").pooled()[0][0])


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape, dtype="<f8", version=1):
    """A .npy whose header claims a shape, before 16 bytes of data."""
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(16)


def archive(content=None, name="in.npy", method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as members:
        members.writestr(name, npy(np.arange(50.0)) if content is None else content)
        members.writestr("out.npy", npy(np.arange(60.0)))
    return file.getvalue()


def patched(content, changes, mark=b"PK\x01\x02"):
    """An archive with bytes of its first local and first central header changed, by their local offsets."""
    whole = bytearray(content)
    central = whole.index(mark)
    for at, value in changes.items():
        whole[at] = value
        whole[central + at + 2] = value
    return bytes(whole)


def damaged_inside():
    whole = bytearray(archive())
    for at in range(40, 120):
        whole[at] ^= 0x5A
    return bytes(whole)


BAD_CSV = {
    "empty": (b"", "score,in"),
    "blank": (b"\n\n\n", "score,in"),
    "no header": (b"1.5,1\n0.5,0\n", "score,in"),
    "another header": (b"a,b\n1,2\n", "score,in"),
    "one column": (b"score\n1\n", "score,in"),
    "UTF-16": ("score,in\n1,1\n".encode("utf-16"), "UTF-8"),
    "UTF-16 without a mark": ("score,in\n1,1\n".encode("utf-16-le"), "score,in"),
    "Latin-1": ("score,in,who\n1,1,Zoë\n".encode("latin-1"), "UTF-8"),
    "binary": (bytes(range(256)) * 64, "UTF-8"),
    "zeros": (bytes(4096), "score,in"),
    "an npz": (archive(), "UTF-8"),
    "JSON": (b'{"in": [1], "out": [2]}', "score,in"),
    "HTML": (b"<!DOCTYPE html><p>score,in", "score,in"),
    "a large field": (b"score,in\n" + b"1" * 200_000 + b",1\n", "damaged"),
    "a large first line": (b"x" * 300_000 + b"\n1,1\n", "score,in"),
    "a quote that never ends": (b'score,in\n"1,1\n' + b"1,0\n" * 50_000, "damaged"),
    "a label of no world": (b"score,in\n1,maybe\n", "line 2: 'maybe'"),
    "a label of 2": (b"score,in\n1,1\n1,2\n", "line 3: '2'"),
    "no label": (b"score,in\n1\n", "line 2: ''"),
    "a label NaN": (b"score,in\n1,nan\n", "line 2: 'nan'"),
    "a score of words": (b"score,in\n1,0\nhigh,1\n", "line 3: score 'high'"),
    "no score": (b"score,in\n,1\n", "line 2: score ''"),
    "a decimal comma": (b"score;in\n0,5;1\n", "line 2: score '0,5'"),
    "a gap in a column": (b"in,out\n1,2\n,3\n4,5\n", "line 4"),
    "a gap in the other": (b"in,out\n1,\n2,3\n", "line 3"),
    "words in a column": (b"in,out\n1,x\n", "line 2: score 'x'"),
    "a long word": (b"score,in\n" + b"z" * 9999 + b",1\n", "..."),
}
BAD_NPZ = {
    "empty": (b"", "damaged"),
    "text": (b"not a zip", "damaged"),
    "an npy": (npy(np.arange(9.0)), "damaged"),
    "torn": (archive()[:300], "damaged"),
    "torn in its directory": (archive()[:-9], "damaged"),
    "damaged inside": (damaged_inside(), "damaged"),
    "encrypted": (patched(archive(), {6: 1}), "encrypted"),
    "an unknown method": (patched(archive(), {8: 77}), "damaged"),
    "bzip2 that is none": (patched(archive(), {8: 12}), "damaged"),
    "lzma that is none": (patched(archive(), {8: 14}), "damaged"),
    "no npy inside": (archive(b"text"), "damaged"),
    "an empty member": (archive(b""), "damaged"),
    "a header of no dict": (archive(b"\x93NUMPY\x01\x00\x05\x00((((("), "damaged"),
    "a header of code": (archive(claiming((3,), "<f8").replace(b"False", b"f(1) ")), "damaged"),
    "a header of 4 GB": (archive(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 200_000), "damaged"),
    "a version of its own": (archive(claiming((3,)).replace(b"NUMPY\x01", b"NUMPY\x09")), "damaged"),
    "400 GB claimed": (archive(claiming((50_000_000_000,))), "more than 5,000,000"),
    "more claimed than there is": (archive(claiming((3000,))), "damaged"),
    "a negative size": (archive(claiming((-3,))), "damaged"),
    "nothing times too much": (archive(claiming((0, 10**30))), "damaged"),
    "one array": (npz(**{"in": np.arange(9.0)}), "no array out"),
    "other arrays": (npz(a=np.arange(9.0)), "no array in, out"),
    "a member of another folder": (archive(name="../in.npy"), "no array in"),
    "structured": (npz(**{"in": np.zeros(9, "f8,i4"), "out": np.arange(9.0)}), "plain numbers"),
    "objects": (npz(**{"in": np.array([1.0, None]), "out": np.arange(9.0)}), "plain numbers"),
    "complex": (npz(**{"in": np.arange(9) * 1j, "out": np.arange(9.0)}), "plain numbers"),
    "dates": (npz(**{"in": np.arange(9).astype("M8[s]"), "out": np.arange(9.0)}), "plain numbers"),
    "durations": (npz(**{"in": np.arange(9.0), "out": np.arange(9).astype("m8[s]")}), "plain numbers"),
    "words": (npz(scores=np.array(["1", "2"]), presence=np.arange(2)), "plain numbers"),
    "raw bytes": (npz(**{"in": np.zeros(9, "V8"), "out": np.arange(9.0)}), "plain numbers"),
    "presence of 2": (npz(scores=np.arange(4.0), presence=np.arange(4)), "presence must be"),
    "presence of NaN": (npz(scores=np.arange(2.0), presence=[1, np.nan]), "presence must be"),
    "presence of another length": (npz(scores=np.arange(4.0), presence=[0, 1]), "must both be (runs,)"),
    "presence turned": (npz(scores=np.ones((4, 2)), presence=np.ones((2, 4))), "must both be (runs,)"),
    "a flat presence": (npz(scores=np.ones((4, 2)), presence=np.ones(4)), "must both be (runs,)"),
    "a cube": (npz(scores=np.ones((4, 2, 2)), presence=np.ones((4, 2, 2))), "must both be (runs,)"),
    "no canary": (npz(scores=np.ones((4, 0)), presence=np.ones((4, 0))), "shape (4, 0)"),
    "canaries of one world": (npz(scores=np.ones((4, 2)), presence=np.ones((4, 2))), "both are needed"),
    "a matrix of NaN": (npz(scores=np.full((4, 2), np.nan), presence=np.eye(4)[:, :2]), "8 of 8 scores"),
    "a matrix of equals": (npz(scores=np.ones((4, 2)), presence=np.eye(4)[:, :2]), "tell nothing apart"),
    "presence of halves": (npz(scores=np.eye(4), presence=np.full((4, 4), 0.5)), "presence must be"),
    "a cube of in": (npz(**{"in": np.ones((4, 2, 2)), "out": np.ones(4)}), "the in scores have shape"),
    "no out at all": (npz(**{"in": np.ones((4, 2)), "out": np.ones((0, 2))}), "the out scores have shape"),
}
BAD = [(f"s.csv: {what}", "s.csv", *case) for what, case in BAD_CSV.items()]
BAD += [(f"s.npz: {what}", "s.npz", *case) for what, case in BAD_NPZ.items()]


@pytest.mark.parametrize(
    ("name", "content", "word"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_anything_else_is_one_line(tmp_path, capsys, name, content, word):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        score_files.read_scores(tmp_path / name)
    message = str(caught.value)
    assert word in message and str(tmp_path / name) in message
    assert "\n" not in message and len(message) < len(str(tmp_path)) + 160
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["s.txt"], "give a .npz or .csv"),
        (["s"], "give a .npz or .csv"),
        (["s.npy"], "two .npy files"),
        (["a.npy", "b.npy", "c.npy"], "two .npy files"),
        (["a.npz", "b.npz"], "two .npy files"),
        (["missing.csv"], "No such file"),
        (["missing.npz"], "No such file"),
        (["missing.npy", "b.npy"], "No such file"),
        (["folder.npz"], "no file"),
        (["pipe.csv"], "no file"),
        (["loop.csv"], "symbolic links"),
        (["n" * 300 + ".csv"], "too long"),
        (["large.csv"], "1 GiB"),
        (["large.npz"], "1 GiB"),
    ],
)
def test_names_of_no_scores_are_one_line(tmp_path, names, word):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("large.csv", "large.npz"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(score_files.MOST_BYTES + 1)
    with pytest.raises(InputError, match=word) as caught:
        score_files.read_scores(*(tmp_path / name for name in names))
    assert "\n" not in str(caught.value)


def test_more_scores_than_are_taken_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(score_files, "MOST_SCORES", 100)
    for size, taken in ((50, True), (51, False), (101, False)):
        np.savez(tmp_path / "s.npz", **{"in": np.arange(size), "out": np.arange(50)})
        rows = "".join(f"{i},{i % 2}\n" for i in range(size + 50))
        (tmp_path / "s.csv").write_text("score,in\n" + rows)
        for name in ("s.npz", "s.csv"):
            if taken:
                assert sum(map(len, score_files.read_scores(tmp_path / name).pooled())) == 100
            else:
                with pytest.raises(InputError, match="more than 100: keep a random part"):
                    score_files.read_scores(tmp_path / name)


def test_a_small_file_of_many_scores_is_refused_by_its_header(tmp_path):
    header = claiming((30_000_000,))[:-16]
    (tmp_path / "s.npz").write_bytes(archive(header + bytes(1_000_000)))
    with pytest.raises(InputError, match="30,000,000 scores, more than 5,000,000"):
        score_files.read_scores(tmp_path / "s.npz")
