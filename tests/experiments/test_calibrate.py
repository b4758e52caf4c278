"""The calibrate command with other mechanisms than the Gaussian one, and their curve test."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def calibrate(*flags):
    argv = [sys.executable, "-m", "experiments.calibrate", "--processes=1", "--audits=2", *flags]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)


def test_each_mechanism_has_rows_in_80_columns():
    process = calibrate("--mechanism=gaussian,randomized_response", "--mu=1", "--runs=800")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("gaussian 1 ") for line in lines) == 4
    assert sum(line.startswith("randomized_response") for line in lines) == 12
    exceeding = [line for line in lines if line.startswith("randomized_response 3 if_gaussian")]
    assert "100.0%" in exceeding[0] and " 100% " in exceeding[0]


def test_json_names_the_mechanism_and_what_the_test_said():
    result = json.loads(calibrate("--mechanism=t3", "--runs=800", "--json").stdout)
    [row] = [row for row in result["calibration"] if row["method"] == "if_gaussian"]
    assert row["setting"]["mechanism"] == "t3" and row["setting"]["parameter"] == 2
    assert (row["fired"], row["unsure"], row["missed"], row["exceeding"]) == (1, 0, 0, 1)


def test_without_a_mechanism_nothing_is_said_of_the_curve():
    process = calibrate("--mu=1", "--runs=40", "--json")
    row = json.loads(process.stdout)["calibration"][0]
    assert row["setting"]["mu"] == 1 and "law" not in row["setting"] and "fired" not in row
    assert "fired" not in calibrate("--mu=1", "--runs=40").stdout
