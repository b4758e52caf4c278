"""Tests that Ray gives the bits of one machine, even if one of two raylets is killed."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.cells import ray_engine
from tests.system.killed import scores

ROOT = Path(__file__).resolve().parents[3]
CACHES = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
RUNS, CHUNK, WORKERS = 240, 8, 2
needs_ray = pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="the extra `ray` is not installed"
)


def slow_on_ray(test):
    return needs_ray(pytest.mark.slow(test))


def alone_in(environment):
    """Of a process that trains here: one device, and the programs that all tests keep."""
    kept = {name: os.environ[name] for name in CACHES if name in os.environ}
    return environment | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"} | kept


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of nodes, workers and drivers: caches of their own, which a kill may damage."""
    folder = tmp_path_factory.mktemp("ray")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    found = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    return found | dict.fromkeys(CACHES, str(folder))


@pytest.fixture(scope="module")
def nodes(environment):
    """A cluster of two nodes with a core each, which a worker takes."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name in (*CACHES, "PYTHONPATH", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(name, environment[name])
        started = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        started.add_node(num_cpus=1)
        try:
            yield started
        finally:
            started.shutdown()


@pytest.fixture(scope="module")
def run(environment, housing_file):
    """run(command, *flags) -> a command's finished process, on made-up data; one device where it trains."""
    alone = alone_in(environment)

    def call(command, *flags):
        data = "--california_housing" if command == "sweep" else "--data"
        argv = [
            sys.executable,
            "-P",
            "-m",
            "experiments",
            command,
            f"{data}={housing_file}",
            *flags,
        ]
        given = {
            "cwd": ROOT,
            "env": environment if "--ray" in "".join(flags) else alone,
            "timeout": 550,
        }
        return subprocess.run(argv, capture_output=True, text=True, **given)

    return call


@slow_on_ray
def test_an_audit_on_two_nodes_has_the_bits_of_one_machine(nodes, run, tmp_path):
    flags = ("--runs=40", "--insertions=4", "--batch_size=8", "--json")
    alone = run("audit", *flags, f"--out={tmp_path / 'alone'}")
    on_ray = (f"--ray_address={nodes.address}", f"--out={tmp_path / 'ray'}")
    found = run("audit", *flags, *on_ray)
    assert found.returncode == alone.returncode == 0, found.stderr
    same = [{**json.loads(one.stdout), "provenance": 0, "out": 0} for one in (alone, found)]
    assert same[0] == same[1]
    np.testing.assert_array_equal(scores(tmp_path / "ray", 40), scores(tmp_path / "alone", 40))


DRIVER = """
import functools, os, sys
from pathlib import Path
import numpy as np
from experiments.cells import ray_engine
from audit.training import build, driver, game
from audit.runtime.machine import prepare_jax
from audit.settings.make import open_store, setting_of
from audit.tasks.task import Dataset

address, out, log, runs, chunk = sys.argv[1:]

def heard(devices, recipe, data, chunk, log=log, train=ray_engine.train):
    with open(log, "a", buffering=1) as file:
        file.write(f"begin {chunk[0]} {os.getpid()}\\n")
        found = train(devices, recipe, data, chunk)
        file.write(f"end {chunk[0]} {os.getpid()}\\n")
    return found

def prepared(devices, recipe, data, runs, chunk=int(chunk), prepare=ray_engine.prepare):
    return chunk, *prepare(devices, recipe, data, runs)[1:]

ray_engine.train = heard
ray_engine.prepare = prepared
features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
setting = setting_of("fcnn", adversary="gc_r", batch_size=10, steps=3000, periodicity=25)
if not address:
    prepare_jax(1)
    store = open_store(Path(out), setting, data)
    game.train(build.build(setting, data), store, int(runs), int(chunk))
    sys.exit()
with ray_engine.join(address) as engine:
    trainer = engine.trainer(driver.make_request(setting, data, int(runs)).recipe, data)
    store = open_store(Path(out), setting, data)
    trainer.train(store, int(runs), int(runs), lambda runs: None)
"""


class Struck:
    """An audit on a cluster's nodes; without one, of this process alone."""

    def __init__(self, nodes, environment, out):
        self._nodes, self._environment, self.out = nodes, environment, out
        self.log = out.with_name(f"{out.name}.log")
        self._node = nodes.worker_nodes.copy().pop() if nodes else None
        self.driver = self._start()

    def kill_a_worker(self):
        for pid in self._training()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def kill_a_node(self):
        if len(self._training()) < WORKERS:
            return False
        self._nodes.remove_node(self._node, allow_graceful=False)
        self._node = self._nodes.add_node(num_cpus=1)
        return True

    def kill_the_driver(self):
        self.driver.kill()
        self.driver.wait()
        self.driver = self._start()
        return True

    def _training(self):
        """The processes that live and train."""
        ended = self.heard("end")
        return [pid for run, pid in self.heard("begin") if (run, pid) not in ended and lives(pid)]

    def heard(self, word):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [line.split() for line in lines if line.startswith(word)]
        return [(int(run), int(pid)) for _, run, pid in found]

    def _start(self):
        argv = [
            sys.executable,
            "-P",
            "-c",
            DRIVER,
            self._nodes.address if self._nodes else "",
            str(self.out),
            str(self.log),
        ]
        argv += [str(RUNS), str(CHUNK)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, env=self._environment, text=True, **pipes)


@slow_on_ray
def test_what_is_killed_loses_no_more_than_what_was_in_flight(
    nodes, environment, tmp_path, pytestconfig
):
    """Workers, nodes and drivers in turn."""
    victims = ("kill_a_worker", "kill_a_node", "kill_the_driver") * pytestconfig.getoption(
        "ray_kills"
    )
    alone = Struck(None, alone_in(environment), tmp_path / "alone")
    assert alone.driver.wait(300) == 0, alone.driver.stderr.read()
    rng, struck, audits, more = np.random.default_rng(1), 0, 0, 0
    while struck < len(victims):
        one = Struck(nodes, environment, tmp_path / f"struck{audits}")
        kills = 0
        while one.driver.poll() is None and struck < len(victims):
            stored = len(one.heard("end"))
            time.sleep(rng.uniform(0, 0.5))
            few = len(one.heard("end")) < RUNS // CHUNK - WORKERS
            if stored and few and getattr(one, victims[struck])():
                kills, struck = kills + 1, struck + 1
                wait_for(one, len(one.heard("end")) + 1)
        assert one.driver.wait(300) == 0, one.driver.stderr.read()
        assert one.driver.stdout.read() == ""
        np.testing.assert_array_equal(scores(one.out, RUNS), scores(alone.out, RUNS))
        again = len(one.heard("begin")) - RUNS // CHUNK
        assert again <= kills * 2 * WORKERS, one.log.read_text()
        audits, more = audits + 1, more + again
    print(f"{struck} kills in {audits} audits of {RUNS // CHUNK} chunks; {more} were begun again")


def lives(pid):
    return Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def wait_for(one, ends):
    while one.driver.poll() is None and len(one.heard("end")) < ends:
        time.sleep(0.1)


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_where_nobody_answers_a_line_says_so(address):
    with pytest.raises(ValueError, match=f"`ray_address={address}`: no Ray cluster there"):
        ray_engine.join(address).__enter__()
