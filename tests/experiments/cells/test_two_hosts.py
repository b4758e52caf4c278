"""Tests a sweep on two hosts without shared files: any host may die, and the bits do not change."""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.experiments.cells import hosts
from tests.experiments.cells.hosts import find_descendants, wait_until
from tests.system.killed import contents

CELLS = 6
ONE_DEVICE = "--xla_force_host_platform_device_count=1"
SWEEP = ("sweep", "--name=figure_1c", "--scale=smoke")
QUICK = {  # a host counts as dead after 3 seconds of silence instead of half a minute
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "2000",
    "RAY_grpc_client_keepalive_timeout_ms": "2000",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not importlib.util.find_spec("ray"), reason="the extra `ray` is not installed"
    ),
    pytest.mark.skipif(not hosts.can_be_had(), reason="no namespaces for hosts of their own"),
]


class Alone(NamedTuple):
    """What one machine leaves."""

    scores: dict
    programs: Path


class Pair:
    """The head and a worker node of a cluster that asks for a token."""

    def __init__(self, network, data):
        self.network, (head, node, _) = network, network
        self.head, self.node = head, node
        self.data = head.folder / "data.csv"
        shutil.copy(data, self.data)
        head.experiments("ray", "get-auth-token", "--generate")
        (node.home / ".ray").mkdir()
        token = (head.home / ".ray/auth_token").read_text()
        (node.home / ".ray/auth_token").write_text(token)
        head.experiments("ray", "start", "--head", "--num-cpus=1")
        self.address = f"{head.address}:6379"
        self.join()

    def join(self):
        self.node.experiments("ray", "start", f"--address={self.address}", "--num-cpus=1")

    def sweep(self, name):
        """A sweep that the head drives, once the other host trains a cell of it and one is stored."""
        out = self.head.folder / name
        flags = (
            f"--california_housing={self.data}",
            f"--ray_address={self.address}",
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        driver = self.head.start(*hosts.EXPERIMENTS, *SWEEP, *flags, f"--out={out}", **pipes)
        return out, driver

    def trains(self, host):
        return "ray::do_cell" in host.processes().values()


def stored(out):
    return len(list(out.glob("*/scores*.npz")))


def ended(driver):
    said, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    return said


@pytest.fixture(scope="module")
def alone(housing_file, tmp_path_factory):
    """The scores of one machine alone, with one device as workers have, and the programs that it compiled."""
    out, programs = (tmp_path_factory.mktemp("alone") / name for name in ("out", "programs"))
    settings = {"XLA_FLAGS": ONE_DEVICE, "JAX_COMPILATION_CACHE_DIR": str(programs)}
    flags = (f"--california_housing={housing_file}", f"--out={out}")
    argv = [*hosts.EXPERIMENTS, *SWEEP, *flags]
    subprocess.run(argv, cwd=hosts.ROOT, env=os.environ | settings, check=True)
    return Alone(contents(out, ".npz"), programs)


@pytest.fixture(scope="module")
def pair(alone, housing_file):
    with hosts.two(RAY_AUTH_MODE="token", **QUICK) as network:
        for host in (network.one, network.two):
            shutil.copytree(alone.programs, host.home / ".cache/hidden-state-audit/jax")
        yield Pair(network, housing_file)


def test_a_sweep_over_two_hosts_has_the_bits_of_one(pair, alone):
    """A link that is cut for a second costs nothing."""
    out, driver = pair.sweep("whole")
    wait_until(lambda: pair.trains(pair.node) and pair.trains(pair.head))
    pair.network.link("down")
    time.sleep(1)
    pair.network.link("up")
    assert f"figure_1c: {CELLS} cells in" in ended(driver)
    assert contents(out, ".npz") == alone.scores and len(alone.scores) == CELLS
    assert "raylet" in pair.node.processes().values()


def test_a_host_that_dies_costs_what_it_had_in_flight(pair, alone):
    out, driver = pair.sweep("died")
    wait_until(lambda: stored(out) and pair.trains(pair.node))
    pair.node.kill()
    ended(driver)
    assert contents(out, ".npz") == alone.scores
    pair.join()


def test_a_host_that_cannot_be_reached_counts_as_dead_and_ends_itself(pair, alone):
    out, driver = pair.sweep("cut")
    wait_until(lambda: stored(out) and pair.trains(pair.node))
    pair.network.link("down")
    ended(driver)
    assert contents(out, ".npz") == alone.scores and pair.node.processes()
    pair.network.link("up")
    wait_until(lambda: not pair.node.processes())
    pair.join()


def test_a_driver_that_is_killed_leaves_no_process_and_its_successor_goes_on(pair, alone):
    before = [set(host.processes()) for host in (pair.head, pair.node)]
    out, driver = pair.sweep("driver")
    wait_until(lambda: stored(out) and pair.trains(pair.node))
    for pid in find_descendants(driver.pid):
        os.kill(pid, signal.SIGKILL)
    driver.communicate()
    wait_until(lambda: [set(host.processes()) for host in (pair.head, pair.node)] == before)
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/scores*.npz")}
    assert 0 < len(kept) < CELLS
    out, driver = pair.sweep("driver")
    ended(driver)
    assert contents(out, ".npz") == alone.scores
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
