"""Tests `plan` as a command."""

import re

import pytest

from audit.calibration import laws
from audit.calibration.calibration import Calibration, KnownMechanism
from experiments.commands import plan
from tests.forks import python

KNOWN = KnownMechanism(laws.GAUSSIAN, 1.0, 5000, audits=100, delta=1e-5, confidence=0.95, seed=0)
ROW = Calibration("assumption_free", KNOWN, 0.0, 3.0, 2.5, 3.5, 4.0)


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
def test_plan_says_bounds_and_runs(flags, method):
    process = command(*flags, "--insertions=8", "--tightness=0.5")
    assert process.returncode == 0, process.stderr
    assert "finding how many runs prove 50% of it ..." in process.stderr
    assert not re.search(r"\d<[\d?]|s/audits", process.stderr)  # times that are left
    text = process.stdout
    assert max(map(len, text.splitlines())) <= 80
    truth = float(re.search(r"if epsilon is ([\d.]+) at", text)[1])
    mean, low, high = map(float, re.search(rf"^{method} +(\S+) +(\S+) +(\S+)", text, re.M).groups())
    assert truth / 2 < mean < truth and low <= mean <= high
    needed = int(re.search(rf"{method}, on average 50% of the truth: about (\d+) runs", text)[1])
    assert 40 <= needed <= 400


def test_the_text_says_the_truth_and_the_bounds():
    lines = plan.show_bounds([ROW]).splitlines()
    assert lines[0] == "if epsilon is 4.000 at delta 1e-05, 5000 runs show"
    assert lines[5].split() == ["assumption_free", "3.000", "2.500", "3.500", "75%"]
    many = ROW._replace(setting=KNOWN._replace(canaries=4))
    assert "5000 runs of 4 canaries show" in plan.show_bounds([many])
