"""Tests commands as a user types them, with few runs and small made-up data."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def audit(run_command, housing_file):
    def call(out, *flags):
        small = ("--runs=120", "--insertions=20", "--batch_size=50", "--noise_multiplier=1")
        return run_command("audit", f"--data={housing_file}", f"--out={out}", *small, *flags)

    return call


def only_folder(out):
    (folder,) = out.iterdir()
    return folder


@pytest.mark.slow
def test_audit_json_is_one_object_and_the_second_run_trains_nothing(audit, tmp_path):
    first = audit(tmp_path, "--json")
    folder = only_folder(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("scores*")}
    second = audit(tmp_path, "--json", "--confidence=0.9")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("scores*")} == stamps
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert one["upper_bound"] == pytest.approx(two["upper_bound"])
    assert (
        two["bounds"][0]["epsilon"] >= one["bounds"][0]["epsilon"] > 0
    )  # less confidence, more claimed


@pytest.mark.parametrize("command", ["audit", "sweep", "bound"])
def test_help_has_the_commands_flags_only(run_command, command):
    process = run_command(command, "--help")
    assert process.returncode == 0 and process.stderr == ""
    lines = process.stdout.splitlines()
    assert str(ROOT) not in process.stdout and any(line.startswith("  --") for line in lines)
    assert not any(line.split()[0] in ("--logtostderr", "--helpfull") for line in lines if line)
