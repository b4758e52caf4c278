"""Scores from files of every common make, each number in its world; anything else is one line."""

import io
import json
import sys

import numpy as np
import pytest

import audit
from audit.errors import InputError
from audit.evidence import canaries
from audit.storage import score_files

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
    "decimal commas": lines("score;in", ";", number=lambda score: repr(score).replace(".", ",")),
    "members": lines("score,in", labels=("no", "yes")),
    "initials": lines("score,in", labels=("N", "Y")),
    "initials of truth": lines("score,in", labels=("f", "t")),
    "tabs": lines("score\tin", "\t"),
    "spaces": lines("score in", " "),
    "quoted": lines('"score","in"', labels=('"0"', '"1"')),
    "byte-order mark and CRLF": "\ufeff" + lines("score,in").replace("\n", "\r\n"),
    "blank lines": lines("score,in").replace("\n", "\n\n"),
    "index": ",score,presence\n"
    + "".join(f"{i},{x},{label}\n" for i, (x, label) in enumerate(LABELLED)),
    "other columns, turned": "seed,in,score\n"
    + "".join(f"x,{label},{x}\n" for x, label in LABELLED),
    "comments above": "# attack of 3 March\n#\n" + lines("score,in"),
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


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_spreadsheets_text_with_tabs_is_read(tmp_path, monkeypatch, encoding):
    text = ("\ufeff" + lines("score\tin", "\t")).encode(encoding)
    (tmp_path / "s.tsv").write_bytes(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    for path in (tmp_path / "s.tsv", score_files.STDIN):
        scores_in, scores_out = score_files.read_scores(path).pooled()
        assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_columns_of_other_names_count_alone(tmp_path):
    text = "in,loss,member\n" + "".join(f"9,{score},{label}\n" for score, label in LABELLED)
    path = tmp_path / "vendor.csv"
    path.write_text(text)
    names = {"score": "Loss", "presence": "member"}
    scores_in, scores_out = score_files.read_csv(path, names).pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    for wrong, message in (
        ({"score": "loss"}, "`columns=score`: name score,in"),
        ({"score": "los", "in": "member"}, "has not the columns los,member"),
    ):
        with pytest.raises(InputError, match=message):
            score_files.read_csv(path, wrong)


def test_columns_of_an_empty_standard_input_are_refused_as_without_names(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    with pytest.raises(InputError, match="standard input is empty"):
        score_files.read_csv(score_files.STDIN, {"score": "loss", "in": "member"})


def test_decimal_commas_beside_points_are_refused(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("score;in\n1,5;1\n2.5;0\n")
    with pytest.raises(InputError, match="line 3: some numbers have a comma and others a point"):
        score_files.read_scores(path)


SCORES, PRESENCE = [score for score, _ in LABELLED], [label for _, label in LABELLED]
OBJECTS = [
    {"in": IN, "out": OUT},
    {"scores": SCORES, "presence": PRESENCE},
    {"score": SCORES, "in": PRESENCE, "seed": [1] * 5},
    {"presence": ["in" if label else "out" for label in PRESENCE], "score": SCORES},
    {"score": SCORES, "in": [bool(label) for label in PRESENCE]},
]


class Frame:
    """What pandas and Polars have in common."""

    def __init__(self, columns):
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name):
        values = self._columns[name]
        return np.array(values, object if isinstance(values[0], str) else None)


@pytest.mark.parametrize("named", OBJECTS, ids=lambda named: ",".join(named))
def test_json_standard_input_and_tables_give_the_scores(tmp_path, monkeypatch, named):
    content = b"\xef\xbb\xbf \n" + json.dumps(named).encode()
    (tmp_path / "s.JSON").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    read = (
        score_files.read_scores(tmp_path / "s.JSON"),
        score_files.read_scores(*score_files.paths("-")),
    )
    table = audit.bounds(Frame(named)).conclusion
    for scores_in, scores_out in (
        *(one.pooled() for one in read),
        (table.scores_in, table.scores_out),
    ):
        assert scores_in.tolist() == IN and scores_out.tolist() == OUT


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_csv_comes_from_standard_input_too(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    scores_in, scores_out = score_files.read_scores(score_files.STDIN).pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_matrices_come_by_json():
    matrix = np.arange(32.0).reshape(8, 4).tolist()
    coins = (np.random.default_rng(0).random((8, 4)) < 0.5).tolist()
    named = {"scores": matrix, "presence": coins}
    design = score_files.read_columns("x", list(named), named.get)
    assert isinstance(design, canaries.Coins) and design.given and design.canaries == (4, 4)


def column(values):
    return np.array(values)[:, None]


MIXED, PRESENCE = (
    np.array([score for score, _ in LABELLED]),
    np.array([label for _, label in LABELLED]),
)
ARRAYS = {
    "worlds": {"in": IN, "out": OUT},
    "columns": {"in": column(IN), "out": column(OUT)},
    "presence": {"scores": MIXED, "presence": PRESENCE},
    "presence in columns": {"scores": MIXED[:, None], "presence": PRESENCE[:, None].astype(bool)},
    "big-endian": {"scores": MIXED.astype(">f8"), "presence": PRESENCE.astype(float)},
    "others beside": {
        "in": IN,
        "out": OUT,
        "names": np.array(["a"]),
        "things": np.array([{}], object),
    },
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


def test_two_npy_files_are_in_and_out_unless_a_comma_is_in_a_name(tmp_path):
    assert score_files.paths(f"{tmp_path}/a.npy,{tmp_path}/b.npy") == (
        tmp_path / "a.npy",
        tmp_path / "b.npy",
    )
    (tmp_path / "a,b.csv").touch()
    assert score_files.paths(f"{tmp_path}/a,b.csv") == (tmp_path / "a,b.csv",)
    np.save(tmp_path / "with, a comma.npy", np.array(IN))
    np.save(tmp_path / "out.npy", column(OUT))
    found = score_files.read_scores(tmp_path / "with, a comma.npy", tmp_path / "out.npy")
    scores_in, scores_out = found.pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    (tmp_path / "s.csv").write_text("score,in\nnan,1\n0,0\n")
    found = score_files.read_scores(tmp_path / "s.csv")
    assert found.failed == 1 and found.pooled()[0] < found.pooled()[1]


def test_more_scores_than_are_taken_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(score_files, "MOST_SCORES", 100)
    for size, taken in ((50, True), (51, False), (101, False)):
        np.savez(tmp_path / "s.npz", **{"in": np.arange(size), "out": np.arange(50)})
        (tmp_path / "s.csv").write_text(
            "score,in\n" + "".join(f"{i},{i % 2}\n" for i in range(size + 50))
        )
        for name in ("s.npz", "s.csv"):
            if taken:
                assert sum(map(len, score_files.read_scores(tmp_path / name).pooled())) == 100
            else:
                with pytest.raises(InputError, match="more than 100: keep a random part"):
                    score_files.read_scores(tmp_path / name)


def test_cosines_of_no_run_and_a_name_that_comes_twice_end_in_a_line(tmp_path):
    empty = tmp_path / "empty.npy"
    np.save(empty, np.zeros((0, 5)))
    with pytest.raises(InputError, match=r"shape \(0, 5\): save at least one cosine"):
        score_files.read_cosines(empty, 100)
    twice = tmp_path / "twice.json"
    twice.write_text('{"observed": [0.1, 0.2], "observed": [0.1]}')
    with pytest.raises(InputError, match="has a name twice"):
        score_files.read_cosines(twice, 100)
