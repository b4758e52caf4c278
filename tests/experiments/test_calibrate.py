"""The calibrate command with other mechanisms than the Gaussian one, and many canaries."""

import itertools
import json

import pytest


@pytest.fixture
def calibrate(run_command):
    return lambda *flags: run_command("calibrate", "--processes=1", "--audits=2", *flags)


@pytest.mark.slow
def test_json_names_the_mechanism_and_what_the_test_said(calibrate):
    result = json.loads(
        calibrate("--mechanism=t3,randomized_response", "--runs=800", "--json").stdout
    )
    found = [row for row in result["calibration"] if row["method"] == "if_gaussian"]
    rows = {(row["setting"]["mechanism"], row["setting"]["parameter"]): row for row in found}
    for one in (("t3", 2), ("randomized_response", 3)):
        assert [rows[one][name] for name in ("fired", "unsure", "missed", "exceeding")] == [
            1,
            0,
            0,
            1,
        ]


@pytest.mark.slow
def test_many_canaries_have_a_row_a_setting_and_method_in_80_columns(calibrate):
    flags = ("--canaries=4", "--runs=12,20", "--mu=1", "--tie=equal,failing", "--design=coins,sets")
    process = calibrate(*flags)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 5 + 2 * 2 * 2 * 9
    for start in (
        "coins     12  equal           1  lifted ",
        "sets      20  failing         1  clustered ",
    ):
        assert sum(line.startswith(start) for line in lines) == 1
    rows = json.loads(calibrate(*flags, "--json").stdout)["calibration"]
    kinds = {
        (row["setting"]["tie"], row["setting"]["design"], row["setting"]["runs"]) for row in rows
    }
    assert kinds == {*itertools.product(("equal", "failing"), ("coins", "sets"), (12, 20))}
    assert {row["method"] for row in rows if row["mean_mu"] is not None} == {
        "lifted_gaussian",
        "clustered",
    }


def test_json_of_one_run_names_the_laws(calibrate):
    rows = json.loads(calibrate("--one_run=60", "--mu=2", "--json").stdout)["calibration"]
    assert {row["setting"]["law"] for row in rows} >= {"leaking", "cosines"}
    assert all(row["exceeding"] == 0 for row in rows if row["method"] != "one_shot_jeffreys")


def test_too_few_runs_for_many_canaries_are_one_line_after_the_progress(calibrate):
    process = calibrate("--canaries=4", "--runs=6", "--mu=1")
    assert process.returncode == 2 and process.stdout == ""
    (line,) = (one for one in process.stderr.splitlines() if one.startswith("error: "))
    assert "6 runs of a kind" in line
