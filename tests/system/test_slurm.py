"""The example job array, with stand-ins for SLURM's srun and for run.sh."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "slurm.sh"
SRUN = """#!/bin/sh
echo "step of $SRUN_CPUS_PER_TASK cores: $*"
exec "$@"
"""


@pytest.fixture
def submitted(tmp_path):
    """submitted(*flags, **environment) -> the finished job of task 3 of array 7, in a folder of its own."""
    for name, text in (
        ("srun", SRUN),
        ("run.sh", '#!/bin/sh\necho "ran $*"; echo no >&2; exit 5\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def call(*flags, **more):
        slurm = {
            "SUBMIT_DIR": str(tmp_path),
            "ARRAY_JOB_ID": "7",
            "ARRAY_TASK_ID": "3",
            "CPUS_PER_TASK": "8",
        }
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        environment = {
            "PATH": path,
            **{f"SLURM_{name}": value for name, value in slurm.items()},
            **more,
        }
        argv = ["bash", str(SCRIPT), *flags]
        return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True)

    return call


def test_a_job_runs_the_sweep_as_a_step_which_signals_reach(submitted, tmp_path):
    process = submitted("--name=all", "--scale=paper")
    assert (process.returncode, process.stdout, process.stderr) == (5, "", "")
    log = tmp_path / "results" / "logs" / "sweep_7_3.log"
    sweep = "sweep --out=results --name=all --scale=paper"
    assert log.read_text().splitlines() == [
        f"step of 8 cores: ./run.sh {sweep}",
        f"ran {sweep}",
        "no",
    ]
    submitted(OUT="/shared/a b")
    assert (
        "ran sweep --out=/shared/a b" in log.read_text()
    )  # a job that is started again goes on writing
    assert log.read_text().count("ran ") == 2


def test_logs_lie_where_git_does_not_look():
    assert re.findall("^#SBATCH --output=(.*)$", SCRIPT.read_text(), re.M) == ["/dev/null"]
    argv = ["git", "check-ignore", "--no-index", "results/logs/sweep_7_3.log"]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode in (0, 128), found  # 128: this is no clone


def test_outside_of_slurm_it_says_how_it_is_meant():
    environment = {"PATH": os.environ["PATH"]}
    process = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert process.returncode != 0 and "submit this with sbatch" in process.stderr
