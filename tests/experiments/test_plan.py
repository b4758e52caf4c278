"""`plan` as a user types it, on made-up data."""

import re

import pytest

from tests.forks import python


def command(*flags, **changes):
    return python("-m", "experiments.commands.plan", *flags, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "method"),
    [
        (("--epsilon=4", "--runs=400"), "if_gaussian"),
        (("--canaries=8", "--runs=400"), "lifted_gaussian"),
    ],
)
def test_plan_says_bounds_runs_and_time(housing_file, tmp_path, flags, method):
    small = ("--insertions=8", "--batch_size=20", "--tightness=0.5")
    process = command(f"--data={housing_file}", *flags, *small, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "looking for the runs that prove 50% of it ..." in process.stderr
    assert not re.search(r"\d<[\d?]|s/audits", process.stderr)  # times that are left
    text = process.stdout
    assert max(map(len, text.splitlines())) <= 80
    truth = float(re.search(r"if epsilon is ([\d.]+) at", text)[1])
    mean, low, high = map(float, re.search(rf"^{method} +(\S+) +(\S+) +(\S+)", text, re.M).groups())
    assert truth / 2 < mean < truth and low <= mean <= high
    needed = int(re.search(rf"{method}, on average 50% of the truth: about (\d+) runs", text)[1])
    assert 40 <= needed <= 400
    assert re.search(r"runs of 8 steps: 0:\d\d:\d\d\n", text)
