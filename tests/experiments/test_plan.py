"""`plan` as a user types it, on made-up data."""

import json
import re

import pytest

from tests.forks import python


def command(*flags, **changes):
    return python("-m", "experiments.commands.plan", *flags, **changes)


@pytest.mark.slow
def test_plan_says_bounds_runs_and_time(housing_file, tmp_path):
    small = ("--insertions=8", "--batch_size=20", "--audits=8")
    flags = (
        f"--data_file={housing_file}",
        "--epsilon=4",
        "--runs=400",
        "--tightness=0.5",
        *small,
        "--json",
    )
    process = command(*flags, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "looking for the runs that prove 50% of it ..." in process.stderr
    assert not re.search(r"\d<[\d?]|s/audits", process.stderr)  # times that are left
    result = json.loads(process.stdout)
    assert result["epsilon"] == pytest.approx(4)
    bounds = {row["method"]: row for row in result["bounds"]}
    assert list(bounds) == ["in_sample", "if_gaussian", "assumption_free"]
    assert all(0 <= row["low"] <= row["mean"] <= row["high"] < 8 for row in bounds.values())
    assert 2 < bounds["if_gaussian"]["mean"] < 4 and 40 <= result["runs_needed"] <= 400
    trained = 400 * 8 * result["probe"]["model_step"]
    assert result["seconds"] == pytest.approx(trained + result["probe"]["compilation"])
    assert result["seconds"] > 0 and result["probe"]["chunk"] <= 400


@pytest.mark.slow
def test_plan_prints_80_columns_at_the_accountants_epsilon(housing_file, tmp_path):
    flags = (f"--data_file={housing_file}", "--batch_size=20", "--audits=4", "--runs=200")
    process = command(*flags, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "if epsilon is 23.99" in process.stdout or "if epsilon is 24.0" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_plan_is_of_several_canaries_a_run(housing_file, tmp_path):
    flags = (f"--data_file={housing_file}", "--batch_size=20", "--audits=2", "--runs=40")
    process = command(*flags, "--canaries=8", "--tightness=0.2", XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "40 runs of 8 canaries show" in process.stdout
    assert "lifted_gaussian, on average 20% of the truth" in process.stdout
