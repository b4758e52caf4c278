"""The example job array under a real SLURM: one node on loopback, by the daemons of Debian's packages.

apt-get install slurmctld slurmd slurm-client munge        as root; without them these tests are skipped
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from audit.storage.store import Store

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
GPUS = ("null", "zero", "full")  # devices that stand in for as many
CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=24 RealMemory=131072 Gres=gpu:3
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE
"""
SMOKE = ("--name=figure_1c,figure_7", "--scale=smoke", "--california_housing=housing.csv")
PATIENCE = 300  # seconds until a job must have gone on


class Node(NamedTuple):
    """A running node; `call` runs a client of it in a folder and returns what it prints."""

    config: Path

    def call(self, folder, *argv):
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.config)}
        given = {
            "env": environment,
            "cwd": folder,
            "capture_output": True,
            "text": True,
            "timeout": PATIENCE,
        }
        return subprocess.run(argv, check=True, **given).stdout.strip()

    def is_idle(self, folder):
        return not self.call(folder, "squeue", "-h")


def wait_until(holds, what):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.2)


def free_ports(count):
    """Ports of loopback on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def configured(folder):
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").touch(0o600)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "gres.conf").write_text("".join(f"Name=gpu File=/dev/{name}\n" for name in GPUS))
    host = socket.gethostname().split(".")[0]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, ports=free_ports(2), folder=folder))
    return config


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node to itself, for this module; its daemons end with it."""
    lacks = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=PATH) is None]
    if lacks or os.geteuid():
        pytest.skip("no SLURM here: as root, apt-get install slurmctld slurmd slurm-client munge")
    folder = tmp_path_factory.mktemp("slurm")
    config = configured(folder)
    munged = [
        f"--{name}={folder}/munge.{name.split('-')[0]}"
        for name in ("socket", "key-file", "pid-file")
    ]
    munged += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    commands = (
        ("munged", "--foreground", "--force", *munged),
        ("slurmctld", "-D", "-f", str(config)),
        ("slurmd", "-D", "-f", str(config)),
    )
    found, daemons = Node(config), []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as out:
                environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(config)}
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            wait_until((folder / "munge.socket").exists, "munged")
        wait_until(lambda: "idle" in found.call(folder, "sinfo", "-h", "-o", "%T"), "the node")
        yield found
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(60)


@pytest.fixture
def repository(tmp_path, housing_file):
    """What a job finds where it was submitted: run.sh, here without an environment of its own, and data."""
    (tmp_path / "run.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m experiments "$@"\n')
    (tmp_path / "run.sh").chmod(0o755)
    shutil.copy(housing_file, tmp_path)
    return tmp_path


@pytest.fixture
def submit(node, repository, monkeypatch):
    """submit(*options, flags) -> the number of a job array that shares the folder `shared`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OUT", "shared")

    def call(*options, flags=SMOKE):
        script = str(ROOT / "experiments" / "slurm.sh")
        return node.call(
            repository, "sbatch", "--parsable", "--export=ALL", *options, script, *flags
        )

    return call


def logs(repository, job):
    return [
        path.read_text()
        for path in sorted((repository / "results/logs").glob(f"sweep_{job}_*.log"))
    ]


def scores(out):
    stores = {path.parent.name: Store.at(path.parent) for path in out.glob("*/config.json")}
    return {name: store.load(store.runs_held()).scores for name, store in stores.items()}


def assert_same_bits(repository):
    expected, found = scores(repository / "alone"), scores(repository / "shared")
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    return list(expected)


@pytest.mark.slow
def test_an_array_that_is_requeued_and_interrupted_ends_with_the_same_bits(
    node, repository, submit
):
    alone = [sys.executable, "-P", "-m", "experiments", "sweep", "--out=alone", *SMOKE]
    subprocess.run(alone, cwd=repository, check=True, capture_output=True)
    job = submit("--array=1-3")
    wait_until(lambda: any("0/" in text for text in logs(repository, job)), "the first cell")
    node.call(repository, "scontrol", "requeue", f"{job}_1")
    node.call(
        repository, "scancel", "--signal=INT", f"{job}_2"
    )  # as --signal does it before the limit
    wait_until(lambda: node.is_idle(repository), "the array")
    submit("--array=1")
    wait_until(lambda: node.is_idle(repository), "the array, submitted again")
    assert len(assert_same_bits(repository)) >= 5


@pytest.mark.slow
def test_tasks_of_one_step_share_the_chunks_of_an_audit(node, repository, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    audit = ("./run.sh", "audit", "--data_file=housing.csv", "--runs=240", "--insertions=4")
    audit += ("--chunk_size=20", "--batch_size=20")
    subprocess.run([*audit, "--out=alone"], cwd=repository, check=True, capture_output=True)
    assert (
        node.call(repository, "srun", "--ntasks=3", *audit, "--out=shared").count("if_gaussian")
        == 3
    )
    assert len(assert_same_bits(repository)) == 1


@pytest.mark.slow
def test_a_job_is_interrupted_a_minute_before_its_limit(node, repository, submit):
    (repository / "run.sh").write_text(
        '#!/bin/sh\ntrap "echo interrupted; exit 130" INT\necho began\nwhile :; do sleep 0.1; done\n'
    )
    job = submit("--array=1", "--time=1")
    wait_until(lambda: node.is_idle(repository), "the limit")
    (text,) = logs(repository, job)
    assert "began" in text and "interrupted" in text
