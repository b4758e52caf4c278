import csv
import io

import pytest

from audit.errors import InputError
from audit.report import style
from audit.task import Sources
from experiments.compare import figure, methods, table
from experiments.compare.compared import Compared, validate
from experiments.compare.methods import ALL, ESTIMATE, FINAL, ComparedRow
from models.catalogue import task

ROWS = [
    ComparedRow("hidden state, K = 64", "lifted_gaussian", FINAL, 1_000, 12.3, 21.25, "Gaussian, runs"),
    ComparedRow(
        "hidden state, K = 64", "one_shot_equal_variance", FINAL, 1, None, 123.4567, "uniform canaries"
    ),
    ComparedRow("CANIFE", "as published", ALL, 1, 1234.5, 3.0, ESTIMATE),
]


def test_the_table_fits_80_columns_and_has_the_upper_bound_last():
    text = table.as_text(Compared(), ROWS, 23.995)
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert lines.index("sees the final model") < lines.index("sees every iterate")
    (upper,) = [line for line in lines if line.startswith("upper bound")]
    assert "23.995" in upper and lines.index(upper) > lines.index("sees every iterate")
    assert "kept" in text and "1234" in text


def test_the_csv_has_every_row():
    rows = list(csv.DictReader(io.StringIO(table.as_csv(ROWS, 24.0).decode())))
    assert [row["method"] for row in rows] == [row.method for row in ROWS]
    assert rows[0]["epsilon"] == "21.25" and rows[1]["seconds"] == "" and rows[2]["upper_bound"] == "24"


def test_the_figure_keeps_what_lies_far_beyond_at_its_edge():
    drawn = figure.comparison_figure(ROWS, 23.995, 1e-5)
    (axis,) = drawn.axes
    assert axis.get_xlim()[1] < 50
    assert style.png(drawn).startswith(b"\x89PNG")


@pytest.mark.parametrize("changed", [{"model": "fcnn"}, {"steps": 1}, {"single_runs": 10}, {"delta": 0.0}])
def test_a_bad_field_is_named(changed):
    with pytest.raises(InputError):
        validate(Compared(**changed))


@pytest.mark.slow
def test_every_method_audits_one_mechanism(tmp_path):
    compared = Compared(
        "linear", 30, 64, noise_multiplier=2.0, single_runs=200, many_runs=40, lidp_runs=40,
        one_run_canaries=600, design_steps=100,
    )  # fmt: skip
    dataset = task("linear").data.load(Sources())
    asked, upper = methods.Compare(compared, dataset, tmp_path), methods.upper_bound(compared)
    rows = [row for method in methods.METHODS for row in method(asked)]
    assert {row.method for row in rows} == {
        *("hidden state", "hidden state, K = 64", "LiDP, K = 32", "one-shot, final", "one-shot, all"),
        "CANIFE",
    }
    bounds = [row for row in rows if row.is_bound and row.assumes != "Gaussian, runs"]
    assert len(bounds) >= 9 and all(row.epsilon <= upper for row in bounds)
    known = {row.value: row.epsilon for row in rows}
    assert known["lifted_gaussian"] > 0.3 * upper and known["exact laws"] == pytest.approx(upper, rel=0.05)
    again = [row for method in methods.METHODS for row in method(asked)]
    assert all(row.seconds is None for row in again)
    assert [row.epsilon for row in again] == [row.epsilon for row in rows]
