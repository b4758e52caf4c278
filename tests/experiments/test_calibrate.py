"""The calibrate command with other mechanisms than the Gaussian one, and their curve test."""

import json

import pytest


@pytest.fixture
def calibrate(run_command):
    return lambda *flags: run_command("calibrate", "--processes=1", "--audits=2", *flags)


def test_each_mechanism_has_rows_in_80_columns(calibrate):
    process = calibrate("--mechanism=gaussian,randomized_response", "--mu=1", "--runs=800")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("gaussian 1 ") for line in lines) == 4
    assert sum(line.startswith("randomized_response") for line in lines) == 12
    exceeding = [line for line in lines if line.startswith("randomized_response 3 if_gaussian")]
    assert "100.0%" in exceeding[0] and " 100% " in exceeding[0]


def test_json_names_the_mechanism_and_what_the_test_said(calibrate):
    result = json.loads(calibrate("--mechanism=t3", "--runs=800", "--json").stdout)
    [row] = [row for row in result["calibration"] if row["method"] == "if_gaussian"]
    assert row["setting"]["mechanism"] == "t3" and row["setting"]["parameter"] == 2
    assert (row["fired"], row["unsure"], row["missed"], row["exceeding"]) == (1, 0, 0, 1)


def test_without_a_mechanism_nothing_is_said_of_the_curve(calibrate):
    process = calibrate("--mu=1", "--runs=40", "--json")
    row = json.loads(process.stdout)["calibration"][0]
    assert row["setting"]["mu"] == 1 and "law" not in row["setting"] and "fired" not in row
    assert "fired" not in calibrate("--mu=1", "--runs=40").stdout


MANY = ("--canaries=4", "--runs=12,20", "--mu=1")


def test_many_canaries_have_a_row_a_setting_and_method_in_80_columns(calibrate):
    process = calibrate(*MANY, "--tie=equal,failing", "--design=coins,sets")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 5 + 2 * 2 * 2 * 9
    for start in ("coins     12  equal           1  lifted ", "sets      20  failing         1  clustered "):
        assert sum(line.startswith(start) for line in lines) == 1


def test_json_of_many_canaries_names_tie_and_design(calibrate):
    process = calibrate(*MANY, "--tie=shifted", "--json")
    rows = json.loads(process.stdout)["calibration"]
    assert len(rows) == 2 * 9 and {row["setting"]["runs"] for row in rows} == {12, 20}
    assert {(row["setting"]["tie"], row["setting"]["design"]) for row in rows} == {("shifted", "coins")}
    assert {row["method"] for row in rows if row["mean_mu"] is not None} == {"lifted_gaussian", "clustered"}


BAD_MANY = [
    ("--canaries=0", "--canaries=0"),
    ("--canaries=4 --tie=loose", "--tie='loose'"),
    ("--canaries=4 --design=dice", "--design='dice'"),
    ("--canaries=4 --mechanism=t3", "--mechanism"),
    ("--canaries=4 --runs=6 --mu=1", "6 runs of a kind"),
    ("--tie=equal", "--canaries"),
    ("--runs=20,30", "--runs=20,30"),
    ("--runs=", "--runs is empty"),
    ("--runs=1.5", "--runs=1.5"),
]


@pytest.mark.parametrize(("argv", "word"), BAD_MANY)
def test_a_mistake_about_many_canaries_is_one_line(argv, word, calibrate):
    process = calibrate(*argv.split())
    assert process.returncode == 2 and process.stdout == ""
    (line,) = (one for one in process.stderr.splitlines() if one.startswith("error: "))
    assert word in line


def test_one_run_has_a_row_a_law_and_method_in_80_columns(calibrate):
    process = calibrate("--one_run=60", "--mu=0,2")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 5 + 2 * (4 * 2 + 1 + 2)
    assert sum(line.startswith("overlapping ") for line in lines) == 4
    rows = json.loads(calibrate("--one_run=60", "--mu=2", "--json").stdout)["calibration"]
    assert {row["setting"]["law"] for row in rows} >= {"leaking", "cosines"}
    assert all(row["exceeding"] == 0 for row in rows if row["method"].startswith("one_run"))
