"""Reads scores from all common formats; other files give an error of one line."""

import io
import json
import re
import sys

import numpy as np
import pandas
import pytest

import audit
from audit.errors import InputError
from audit.evidence.one_run import OneRun
from audit.storage import score_files, tables

IN, OUT = [1.5, -2.25, 3e-7], [0.125, 7.0]
LABELLED = [(x, 1) for x in IN] + [(x, 0) for x in OUT]
SCORES, PRESENCE = [score for score, _ in LABELLED], [label for _, label in LABELLED]


def read(*files, **options):
    return score_files.read_files(files, **options)


def assert_read(evidence):
    scores_in, scores_out = evidence.pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert scores_in.dtype == scores_out.dtype == np.float64


def lines(header, separator=",", labels=("0", "1"), number=repr):
    rows = [f"{number(score)}{separator}{labels[label]}" for score, label in LABELLED]
    return "\n".join([header, *rows]) + "\n"


def commas(score):
    return repr(score).replace(".", ",")


def saved_by_numpy(**choices):
    text = io.BytesIO()
    np.savetxt(text, np.array(LABELLED), **choices)
    return text.getvalue().decode()


TEXTS = {
    "plain": lines("score,in"),
    "capitals": lines(" Score , In ", labels=("False", "True")),
    "worlds": lines("score,in", labels=("out", "in")),
    "German": lines("Score;In", ";", ("no", "yes"), commas),
    "tabs": lines("score\tin", "\t"),
    "spaces": lines("score in", " "),
    "quoted": lines('"score","in"', ",", ('"0"', '"1"'), lambda score: f'"{commas(score)}"'),
    "byte-order mark and CRLF": "\ufeff" + lines("score,in").replace("\n", "\r\n"),
    "other columns, turned": "seed,in,score\n"
    + "".join(f"x,{label},{x}\n" for x, label in LABELLED),
    "comments above": "# attack of 3 March\n#\n" + lines("score,in"),
    "a title": "The scores in March\n\n" + lines("score,in"),
    "savetxt": saved_by_numpy(delimiter=",", header="score,in"),
    "columns": "in,out\n1.5,0.125\n-2.25,7.0\n3e-07,\n",
    "trailing separators": "score,in,\n" + "".join(f"{x},{y},\n" for x, y in LABELLED),
    "empty rows": lines("score,in") + ",\n,,\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_csv_gives_the_scores(tmp_path, monkeypatch, text):
    (tmp_path / "s.csv").write_text(text, encoding="utf-8", newline="")
    assert_read(read(tmp_path / "s.csv"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert_read(read(tables.STDIN))


def test_columns_of_other_names_count_alone(tmp_path):
    path = tmp_path / "vendor.csv"
    path.write_text("in,loss,member\n" + "".join(f"9,{x},{label}\n" for x, label in LABELLED))
    assert_read(read(path, columns={"score": "Loss", "presence": "member"}))
    for wrong, message in (
        ({"scored": "loss"}, "`columns=scored:loss`: name score, in, presence, scores, out,"),
        ({"out": "loss", "score": "in"}, "has columns in, loss, member: give score,in or"),
        ({"score": "loss", "in": "-member"}, "`columns=in:-member`: only scores can be negated"),
        ({"out": "loss"}, "the columns in,out,score can"),
    ):
        if message.startswith("the columns"):
            path.write_text("in,loss,score\n1,2,3\n")
        with pytest.raises(InputError, match=message):
            read(path, columns=wrong)


OBJECTS = [
    {"in": IN, "out": OUT},
    {"scores": SCORES, "presence": PRESENCE},
    {"score": SCORES, "in": [bool(label) for label in PRESENCE], "seed": [1] * 5},
]


class Frame:
    """The interface that data frames of pandas and Polars share."""

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
    assert_read(read(tmp_path / "s.JSON"))
    assert_read(read(*score_files.paths("-")))
    assert_read(audit.bounds(Frame(named)).conclusion.evidence)


def column(values):
    return np.array(values)[:, None]


MIXED, BITS = np.array(SCORES), np.array(PRESENCE)


def test_two_files_have_a_world_each(tmp_path):
    assert score_files.paths("a.npy,b.npy") == tuple(map(tables.Path, ("a.npy", "b.npy")))
    np.save(tmp_path / "in.npy", np.array(IN))
    np.save(tmp_path / "out.npy", column(OUT))
    assert_read(read(tmp_path / "in.npy", tmp_path / "out.npy"))
    files = tmp_path / "in.csv", tmp_path / "out.csv"
    for path, scores in zip(files, (IN, OUT), strict=True):
        rows = [f"17{i}.5,{i},{score}" for i, score in enumerate(scores)]
        path.write_text("\n".join(["Wall time,Step,Value", *rows]) + "\n")
    assert_read(read(*files, columns={"score": "Value"}))
    assert read(*files, columns={"score": "-Value"}).pooled()[1].tolist() == [-x for x in OUT]
    with pytest.raises(InputError, match="has columns Wall time, Step, Value: give score"):
        read(*files)


def write(folder, name, frame):
    """Writes a DataFrame in the format of a name's suffix; returns the path."""
    path = folder / name
    writers = {
        ".xlsx": lambda: frame.to_excel(path, index=False),
        ".parquet": lambda: frame.to_parquet(path),
        ".tsv": lambda: frame.to_csv(path, sep="\t", index=False),
        ".json": lambda: frame.to_json(path, double_precision=15),
        ".npz": lambda: np.savez(path, **{name: frame[name].to_numpy() for name in frame}),
    }
    writers[path.suffix]()
    return path


FORMATS = ["s.xlsx", "s.parquet", "s.tsv", "s.json", "s.npz"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_scores_under_names_of_its_own(tmp_path, name):
    frame = pandas.DataFrame({"loss": [-score for score in SCORES], "member": PRESENCE})
    path = write(tmp_path, name, frame)
    for wanted in ({"score": "-loss", "presence": "member"}, {"score": "-Loss", "in": "Member"}):
        assert_read(read(path, columns=wanted))
    with pytest.raises(InputError, match="has columns (, )?loss, member: give score,in or"):
        read(path)
    path = write(tmp_path, name, pandas.DataFrame({"score": [True, False], "in": [1, 0]}))
    with pytest.raises(InputError, match="score 'True' is not a number|score are booleans"):
        read(path)


REFUSED = {
    "a cell too many": ("in,out\n1.5,0.5\n7,2.5,0.1\n", "line 3: the row has 3 cells: write 2"),
    "an underscore": (lines("score,in") + "1_0,1\n", "row 6: score '1_0' is not a number"),
    "a boolean": ("score,in\nTrue,1\n", "row 1: score 'True' is not a number"),
    "N/A": ("score,in\n0,0\nN/A,1\n", "row 2: score 'N/A' is not a number: fix it, or write nan"),
    "a label": ("score,in\n1,0\n2,2\n", "'2' is neither in nor out: give 1 or 0"),
    "thousands": ("score;in\n1,002;1\n998;0\n", "'1,002' may have a thousands separator"),
    "decimals and points": ("score;in\n1,5;1\n2.5;0\n", "some numbers have a comma, others a"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_cells_that_can_be_read_in_two_ways_are_refused(tmp_path, case):
    text, message = case
    (tmp_path / "s.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(tmp_path / "s.csv")
    assert "s.csv" in str(caught.value)


def test_booleans_are_no_scores_in_python():
    with pytest.raises(InputError, match="score are booleans"):
        audit.bounds(pandas.DataFrame({"score": [True, False, True], "in": [1, 0, 1]}))
    for mixed in ([True, False], np.array([True, False])):
        with pytest.raises(InputError, match="are booleans"):
            audit.bounds(mixed, [0.1, 0.2])


def test_nan_that_may_only_fill_a_column_up_is_refused():
    frame = pandas.DataFrame({"in": [1.0, 2.0, 3.0], "out": [0.5, np.nan, np.nan]})
    with pytest.raises(InputError, match="out ends in NaN, for failed runs or as padding to"):
        audit.bounds(frame)


def test_a_flat_file_is_of_one_run_if_that_is_told(tmp_path):
    rng = np.random.default_rng(0)
    presence = rng.integers(0, 2, 400)
    scores = rng.normal(presence, 1)
    path = tmp_path / "s.npz"
    np.savez(path, scores=scores, presence=presence)
    assert isinstance(read(path, one_run=True), OneRun)
    assert read(path).labelled
    np.savez(path, scores=scores[None], presence=presence[None])
    assert isinstance(read(path), OneRun)
    np.savez(path, **{"in": scores, "out": scores[:9]})
    with pytest.raises(InputError, match="`one_run` requires flat scores and presence"):
        read(path, one_run=True)
