"""Scores from files of every common make, each number in its world; anything else is one line."""

import io
import itertools
import json
import re
import sys

import numpy as np
import pytest

import audit
from audit.errors import InputError
from audit.evidence import arrays, canaries
from audit.evidence.one_run import OneRun
from audit.storage import score_files

IN, OUT = [1.5, -2.25, 3e-7], [0.125, 7.0]


def read(*files, **options):
    return score_files.read_files(files, **options).evidence


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
    scores_in, scores_out = read(tmp_path / "s.csv").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert scores_in.dtype == scores_out.dtype == np.float64


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_spreadsheets_text_with_tabs_is_read(tmp_path, monkeypatch, encoding):
    text = ("\ufeff" + lines("score\tin", "\t")).encode(encoding)
    (tmp_path / "s.tsv").write_bytes(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    for path in (tmp_path / "s.tsv", score_files.STDIN):
        scores_in, scores_out = read(path).pooled()
        assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_columns_of_other_names_count_alone(tmp_path):
    text = "in,loss,member\n" + "".join(f"9,{score},{label}\n" for score, label in LABELLED)
    path = tmp_path / "vendor.csv"
    path.write_text(text)
    names = {"score": "Loss", "presence": "member"}
    scores_in, scores_out = read(path, columns=names).pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    for wrong, message in (
        ({"scored": "loss"}, "`columns=scored:loss`: name score, in, presence, scores, out,"),
        (
            {"out": "loss", "score": "in"},
            "give `columns=out:loss,score:in,presence:member` if member is 1",
        ),
        ({"score": "los", "in": "member"}, "there is no los, check `columns`"),
        ({"score": "loss", "in": "-member"}, "`columns=in:-member`: only scores can be negated"),
    ):
        with pytest.raises(InputError, match=message):
            read(path, columns=wrong)


def test_columns_of_an_empty_standard_input_are_refused_as_without_names(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    with pytest.raises(InputError, match="standard input is empty"):
        read(score_files.STDIN, columns={"score": "loss", "in": "member"})


def test_decimal_commas_beside_points_are_refused(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("score;in\n1,5;1\n2.5;0\n")
    with pytest.raises(InputError, match="line 3: some numbers have a comma and others a point"):
        read(path)


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
    found = (
        read(tmp_path / "s.JSON"),
        read(*score_files.paths("-")),
    )
    table = audit.bounds(Frame(named)).conclusion
    for scores_in, scores_out in (
        *(one.pooled() for one in found),
        (table.scores_in, table.scores_out),
    ):
        assert scores_in.tolist() == IN and scores_out.tolist() == OUT


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_csv_comes_from_standard_input_too(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    scores_in, scores_out = read(score_files.STDIN).pooled()
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
    scores_in, scores_out = read(tmp_path / "s.npz").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert scores_in.dtype == scores_out.dtype == np.float64


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float16, np.float32, np.longdouble])
def test_every_kind_of_number_is_read(tmp_path, kind):
    np.savez(tmp_path / "s.npz", **{"in": np.array([1, 1], kind), "out": np.array([0, 1, 1], kind)})
    scores_in, scores_out = read(tmp_path / "s.npz").pooled()
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
    found = read(tmp_path / "with, a comma.npy", tmp_path / "out.npy")
    scores_in, scores_out = found.pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    (tmp_path / "s.csv").write_text("score,in\nnan,1\n0,0\n")
    found = read(tmp_path / "s.csv")
    assert found.failed == 1 and found.pooled()[0] < found.pooled()[1]


def test_more_scores_than_are_taken_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_SCORES", 100)
    for size, taken in ((50, True), (51, False), (101, False)):
        np.savez(tmp_path / "s.npz", **{"in": np.arange(size), "out": np.arange(50)})
        (tmp_path / "s.csv").write_text(
            "score,in\n" + "".join(f"{i},{i % 2}\n" for i in range(size + 50))
        )
        for name in ("s.npz", "s.csv"):
            if taken:
                assert sum(map(len, read(tmp_path / name).pooled())) == 100
            else:
                with pytest.raises(InputError, match="more than 100: keep a random part"):
                    read(tmp_path / name)


def test_cosines_of_no_run_and_a_name_that_comes_twice_end_in_a_line(tmp_path):
    empty = tmp_path / "empty.npy"
    np.save(empty, np.zeros((0, 5)))
    with pytest.raises(InputError, match=r"shape \(0, 5\): save at least one cosine"):
        score_files.read_cosines(empty, 100)
    twice = tmp_path / "twice.json"
    twice.write_text('{"observed": [0.1, 0.2], "observed": [0.1]}')
    with pytest.raises(InputError, match="has the name 'observed' twice"):
        score_files.read_cosines(twice, 100)


def write(folder, name, frame):
    """Writes a DataFrame in the format of a name's suffix; returns the path."""
    path = folder / name
    writers = {
        ".xlsx": lambda: frame.to_excel(path, index=False),
        ".parquet": lambda: frame.to_parquet(path),
        ".gz": lambda: frame.to_csv(path),
        ".tsv": lambda: frame.to_csv(path, sep="\t", index=False),
        ".json": lambda: frame.to_json(path, double_precision=15),
        ".npz": lambda: np.savez(path, **{name: frame[name].to_numpy() for name in frame}),
    }
    writers[path.suffix]()
    return path


FORMATS = ["s.xlsx", "s.parquet", "s.csv.gz", "s.tsv", "s.json", "s.npz"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_scores_under_names_of_its_own(tmp_path, name):
    import pandas

    frame = pandas.DataFrame({"loss": [-score for score in SCORES], "member": PRESENCE})
    path = write(tmp_path, name, frame)
    columns = {"score": "-loss", "presence": "member"}
    for wanted in (columns, {"score": "-Loss", "in": "Member"}):
        scores_in, scores_out = read(path, columns=wanted).pooled()
        assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    advice = "give `columns=score:loss,presence:member` if member is 1 where the canary was in"
    with pytest.raises(InputError, match=re.escape(advice)):
        read(path)
    found = score_files.read_files([path], {"score": "loss", "presence": "member"})
    assert found.negation == "score:-loss,presence:member"


@pytest.mark.parametrize("name", ["memberships", "is_member", "keep", "target"])
def test_arrays_of_other_names_are_named_in_the_advice(tmp_path, name):
    path = tmp_path / "s.npz"
    np.savez(path, scores=np.array(SCORES), **{name: np.array(PRESENCE)})
    with pytest.raises(
        InputError, match=f"has arrays scores, {name}: give `columns=presence:{name}`"
    ):
        read(path)
    assert read(path, columns={"presence": name}).pooled()[0].tolist() == IN


@pytest.mark.parametrize("shape", [(16, 200), (200, 16)])
def test_matrices_of_models_and_points_are_read_only_if_the_user_tells_their_orientation(
    tmp_path, shape
):
    rng = np.random.default_rng(0)
    keep = rng.random(shape) < 0.5
    path = tmp_path / "lira.npz"
    np.savez(path, scores=rng.normal(2.0 * keep, 1), keep=keep)
    with pytest.raises(InputError, match="if a row is a training run and a column a canary, give"):
        read(path)
    assert read(path, columns={"presence": "keep"}).scores.shape == shape


ORIENTATIONS = ["columns", "records", "split", "list"]


@pytest.mark.parametrize("orient", ORIENTATIONS)
def test_json_of_pandas_is_read_in_every_orientation_of_columns(tmp_path, orient):
    import pandas

    frame = pandas.DataFrame({"score": SCORES, "in": PRESENCE}, index=[7, 3, 5, 2, 1])
    path = tmp_path / "s.json"
    text = frame.to_json(orient=orient, double_precision=15) if orient != "list" else None
    path.write_text(text or json.dumps(frame.to_dict("list")))
    scores_in, scores_out = read(path).pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_json_with_other_rows_in_a_column_is_refused(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"score": {"0": 1.5, "1": 0.5}, "in": {"1": 1, "2": 0}}')
    with pytest.raises(InputError, match="columns with other rows"):
        read(path)
    path.write_text('{"score": {"0": 1.5, "1": 0.5}, "in": {"1": 1, "0": 0}}')
    assert read(path).pooled()[0].tolist() == [0.5]


PAIRS = list(itertools.zip_longest(IN, OUT, fillvalue=""))
ROW_NAMES = {
    "R": '"in","out"\n' + "".join(f'"{i + 1}",{a},{b}\n' for i, (a, b) in enumerate(PAIRS)),
    "R, a part": '"in" "out"\n'
    + "".join(f'"{i}" {a} {b}\n' for i, (a, b) in zip((9, 4), PAIRS, strict=False)),
    "words": "score,in\n" + "".join(f"run{i},{x},{y}\n" for i, (x, y) in enumerate(LABELLED)),
}


@pytest.mark.parametrize("text", ROW_NAMES.values(), ids=ROW_NAMES)
def test_names_of_rows_without_a_header_are_no_scores(tmp_path, text):
    (tmp_path / "s.csv").write_text(text)
    scores_in, scores_out = read(tmp_path / "s.csv").pooled()
    assert scores_in.tolist() == IN[: len(scores_in)] and scores_out.tolist() == OUT


OTHER_CELLS = {
    "a cell too many": "in,out\n1.5,0.5\n7,2.5,0.1\n",
    "a cell too few": "score,in,step\n0.5,1,0\n1,0\n",
    "scores without a name": "in,out\n1.5,0.5,7.1\n2.5,0.1,7.2\n",
    "names of rows in some": "in,out\n1,1.5,0.5\n2.5,0.1\n",
    "the same name": "in,out\n1,1.5,0.5\n1,2.5,0.1\n",
    "two cells too many": "in,out\n1,2,3,4\n",
}


@pytest.mark.parametrize("text", OTHER_CELLS.values(), ids=OTHER_CELLS)
def test_rows_of_another_number_of_cells_are_refused_with_their_line(tmp_path, text):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(InputError, match=r"s.csv line [23]: the row has \d cells?: write [23]"):
        read(tmp_path / "s.csv")


def labelled(*cells):
    return "score;in\n" + "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells))


NO_NUMBERS = {
    "an underscore": (labelled("1_000", "0"), "line 2: score '1_000' is not a number"),
    "Arabic digits": (labelled("0", "\u0661"), "line 3: score '\u0661' is not a number"),
    "full-width digits": (labelled("0", "\uff11.5"), "line 3: score"),
    "a boolean": (labelled("True", "False"), "line 2: score 'True' is not a number"),
    "thousands": (labelled("1,002", "998"), "line 2: '1,002' may have a separator of thousands"),
    "thousands of points": (labelled("998", "1.002"), "line 3: '1.002' may have a separator"),
    "thousands and decimals": (
        labelled("1.002,5", "998,1"),
        "line 2: some numbers have a comma and",
    ),
    "apostrophes": (labelled("1'002", "998"), "line 2: score"),
    "N/A": (labelled("0", "N/A"), "line 3: score 'N/A' is not a number: fix it, or write nan"),
    "an empty cell": (labelled("", "1"), "line 2: the score is empty: fill that in"),
}


@pytest.mark.parametrize("case", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_is_refused_with_its_line(tmp_path, case):
    text, message = case
    (tmp_path / "s.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path / "s.csv")


MORE_TEXTS = {
    "trailing separators": "score,in,\n" + "".join(f"{x},{y},\n" for x, y in LABELLED),
    "trailing separators below": "score,in\n" + "".join(f"{x},{y},\n" for x, y in LABELLED),
    "a title": "The scores in March\n\n" + lines("score,in"),
    "comments between": lines("score,in").replace("\n0.125", "\n# out\n0.125"),
    "empty rows": lines("score,in") + ",\n,,\n",
    "German": lines("Score;In", ";", ("nein", "ja"), lambda x: repr(x).replace(".", ",")),
    "quoted commas": lines('"score","in"', number=lambda x: f'"{x!r}"'.replace(".", ",")),
    "bars": lines("score|in", "|"),
    "an index of pandas": "Unnamed: 0,score,in\n"
    + "".join(f"{i},{x},{y}\n" for i, (x, y) in enumerate(LABELLED)),
}


@pytest.mark.parametrize("text", MORE_TEXTS.values(), ids=MORE_TEXTS)
def test_csv_of_spreadsheets_and_tools_gives_the_scores(tmp_path, text):
    (tmp_path / "s.csv").write_text(text, encoding="utf-8", newline="")
    scores_in, scores_out = read(tmp_path / "s.csv").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_a_title_above_the_columns_of_a_spreadsheet_is_no_row(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    for row in (
        ["Attack of March"],
        [],
        ["", "Score", "In"],
        *(["", x, bool(y)] for x, y in LABELLED),
    ):
        book.active.append(row)
    book.save(tmp_path / "s.xlsx")
    scores_in, scores_out = read(tmp_path / "s.xlsx").pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT


def test_booleans_are_no_scores_in_any_format(tmp_path):
    import pandas

    frame = pandas.DataFrame({"score": [True, False, True], "in": [1, 0, 1]})
    for name in FORMATS:
        with pytest.raises(InputError, match="score 'True' is not a number|score are booleans"):
            read(write(tmp_path, name, frame))
    with pytest.raises(InputError, match="score are booleans"):
        audit.bounds(frame)
    for mixed in ([True, 0.5], np.array([True, False])):
        with pytest.raises(InputError, match="are booleans"):
            audit.bounds(mixed, [0.1, 0.2])


def test_nan_that_may_only_fill_a_column_up_is_refused():
    import pandas

    frame = pandas.DataFrame({"in": [1.0, 2.0, 3.0], "out": [0.5, np.nan, np.nan]})
    with pytest.raises(InputError, match="out ends in NaN, of failed runs, or only as long as"):
        audit.bounds(frame)


def test_two_tables_of_a_world_each_are_read_by_a_named_column(tmp_path):
    for name, scores in (("in.csv", IN), ("out.csv", OUT)):
        rows = [f"17{i}.5,{i},{score}" for i, score in enumerate(scores)]
        (tmp_path / name).write_text("\n".join(["Wall time,Step,Value", *rows]) + "\n")
    files = tmp_path / "in.csv", tmp_path / "out.csv"
    scores_in, scores_out = read(*files, columns={"score": "Value"}).pooled()
    assert scores_in.tolist() == IN and scores_out.tolist() == OUT
    assert read(*files, columns={"score": "-Value"}).pooled()[1].tolist() == [-x for x in OUT]
    with pytest.raises(
        InputError, match="has columns Wall time, Step, Value: name that of the scores, as in"
    ):
        read(*files)


def test_a_flat_file_is_of_one_run_if_that_is_told(tmp_path):
    rng = np.random.default_rng(0)
    presence = rng.integers(0, 2, 400)
    scores = rng.normal(presence, 1)
    np.savez(tmp_path / "s.npz", scores=scores, presence=presence)
    assert isinstance(read(tmp_path / "s.npz", one_run=True), OneRun)
    assert read(tmp_path / "s.npz").labelled
    np.savez(tmp_path / "s.npz", scores=scores[None], presence=presence[None])
    assert isinstance(read(tmp_path / "s.npz"), OneRun)
    np.savez(tmp_path / "s.npz", **{"in": scores, "out": scores[:9]})
    with pytest.raises(InputError, match="`one_run` goes with flat scores and presence"):
        read(tmp_path / "s.npz", one_run=True)


def test_python_refuses_more_scores_than_files_may_have(monkeypatch):
    monkeypatch.setattr(arrays, "MOST_SCORES", 100)
    rng = np.random.default_rng(0)
    for evidence in (
        lambda: audit.bounds(rng.normal(size=51), rng.normal(size=50)),
        lambda: audit.coins(rng.normal(size=(1, 101)), rng.integers(0, 2, (1, 101))),
        lambda: audit.cosines(rng.normal(size=(1, 101)) / 100, 10_000),
        lambda: audit.ranks(rng.normal(size=(2, 2)), rng.normal(size=(2, 51))),
    ):
        with pytest.raises(InputError, match="more than 100: keep a random part"):
            evidence()
