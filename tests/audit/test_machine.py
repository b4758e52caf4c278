"""The number of cores, as each platform and version of Python tells it; a compiler for TPUs that is installed
where there are none is not heard of."""

import os
import subprocess
import sys

import pytest

from audit import machine

PROGRAM = """
from audit.machine import prepare_jax
prepare_jax()
import jax, os
print(len(jax.devices()), os.environ.get("TPU_WORKER_HOSTNAMES"))
"""


@pytest.fixture
def without(monkeypatch):
    """without(*names) removes functions of `os`."""
    return lambda *names: [monkeypatch.delattr(os, name, raising=False) for name in names]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_cores_that_are_taken_away_are_not_counted():
    code = (
        "import os; from audit import machine; cores = os.sched_getaffinity(0);"
        "counted = machine.cores(); os.sched_setaffinity(0, [min(cores)]);"
        "print(counted == len(cores), machine.cores())"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHON_CPU_COUNT"}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env) == "True 1\n"


def test_a_platform_without_affinities_counts_all(monkeypatch, without):
    without("process_cpu_count", "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.cores() == 6


def test_python_s_own_count_comes_first(monkeypatch):
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    assert machine.cores() == 5


def test_an_unknown_count_is_one_core(monkeypatch, without):
    without("process_cpu_count", "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_commands_start_quietly_whatever_is_installed(tmp_path):
    hidden = ("JAX_PLATFORMS", "TPU_", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"TPU_WORKER_HOSTNAMES": "mine", "XDG_CACHE_HOME": str(tmp_path)}
    environment |= {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    devices, host = done.stdout.split()
    assert int(devices) >= 1 and host == "mine"  # what a user says stays
