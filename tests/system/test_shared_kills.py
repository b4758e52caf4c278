"""Workers on one audit in one folder that join late and are killed, against one worker that is left alone."""

import contextlib
import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from audit.storage.store import Store

RUNS, CHUNK, WORKERS = 120, 8, 3
SECONDS = 300.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["audit.settings.build", "orbax.checkpoint"])

# Appends to the log the first run of each chunk that it begins and, after it is stored, that it ended.
WORKER = """
import os, sys, threading
import jax
import numpy as np
from tqdm import tqdm
from experiments import cli
from audit import game, training
from audit.storage.store import Store
from experiments.settings import build, stored
from audit.settings.make import setting_of
from models.data.base import Dataset

log = open(out.with_name(out.name + ".log"), "a", buffering=1)
os.dup2(log.fileno(), sys.stderr.fileno())
cli.prepare_jax()
jax.config.update("jax_compilation_cache_dir", str(out.parent / "cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
tqdm.set_lock(threading.RLock())  # its own would be left behind
features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
setting = setting_of(
    "fcnn",
    adversary="gc_r", batch_size=10, steps=3000, optimizer="adam", periodicity=25, unknown_initialisation=True
)
play, save = game.play, Store.save

def heard(table, ranges, *others):
    def each():
        for start, stop in ranges:
            log.write(f"begin {start} {os.getpid()}\\n")
            yield start, stop
    return play(table, each(), *others)

def kept(store, chunk):
    save(store, chunk)
    log.write(f"end {chunk.first} {os.getpid()}\\n")

game.play, Store.save = heard, kept
store = stored.open_store(out, setting, data)
training.train(build.build(setting, data), store, runs, chunk, checkpoint_seconds=0.2)
log.write("done\\n")
"""


@pytest.mark.slow
def test_workers_that_come_and_go_train_each_chunk_once_and_end_with_the_same_bits(tmp_path, pytestconfig):
    kills = pytestconfig.getoption("kills")
    with workers(tmp_path / "alone", 1) as (alone,):
        alone.join(SECONDS)
        assert alone.exitcode == 0, said(tmp_path / "alone")
    expected, rng = scores(tmp_path / "alone"), np.random.default_rng(1)
    struck, audits, lost = 0, 0, 0
    while struck < kills:
        out = tmp_path / f"shared{audits}"
        killed = harass(out, min(kills - struck, 20), rng)
        np.testing.assert_array_equal(scores(out), expected)
        lost += assert_trained_once(out, killed)
        assert not list(out.glob("*/runs_*.lease")) and not list(out.glob("*/checkpoints"))
        struck, audits = struck + len(killed), audits + 1
    print(f"{struck} kills in {audits} audits, {lost} of them in a chunk")
    assert lost


def harass(out: Path, kills: int, rng: np.random.Generator) -> list[int]:
    """Kills one of three workers at random moments, each replaced by one that joins late, until so many were
    killed or nearly all is done; returns the pids of the killed. Those left end by themselves."""
    killed = []
    with workers(out, WORKERS) as running:
        while len(killed) < kills and len(heard(out, "end")) < RUNS // CHUNK - WORKERS:
            time.sleep(rng.uniform(0, 0.5))
            trains = {pid for _, pid in heard(out, "begin")}
            i = int(rng.integers(WORKERS))
            if running[i].exitcode is None and (running[i].pid in trains or rng.uniform() < 0.02):
                running[i].kill()
                running[i].join()
                killed.append(running[i].pid)
                running[i] = start(out)
        for one in running:
            one.join(SECONDS)
            assert one.exitcode == 0, said(out)
    return killed


def assert_trained_once(out: Path, killed: list[int]) -> int:
    """No chunk was stored twice, and none begun again but those that a kill ended, whose number is
    returned."""
    begun, ended = heard(out, "begin"), heard(out, "end")
    assert len({run for run, _ in ended}) == len(ended)
    lost = [(run, pid) for run, pid in begun if (run, pid) not in ended]
    assert all(pid in killed for _, pid in lost) and len(begun) - len(lost) == len(ended)
    assert "damaged" not in said(out)
    return len(lost)


def heard(out: Path, word: str) -> list[tuple[int, int]]:
    """(first run, pid) of every chunk that was begun or was stored."""
    lines = [line.split() for line in said(out).splitlines() if line.startswith(word)]
    return [(int(run), int(pid)) for _, run, pid in lines]


@contextlib.contextmanager
def workers(out: Path, count: int):
    """So many workers; none is left."""
    out.parent.mkdir(parents=True, exist_ok=True)
    running = [start(out) for _ in range(count)]
    try:
        yield running
    finally:
        for one in running:
            one.kill()
            one.join()


def start(out: Path) -> multiprocessing.process.BaseProcess:
    """A worker that trains what nobody else does."""
    process = CONTEXT.Process(target=exec, args=(WORKER, {"out": out, "runs": RUNS, "chunk": CHUNK}))
    process.start()
    return process


def scores(out: Path) -> np.ndarray:
    """The scores of a finished audit."""
    (folder,) = out.iterdir()
    return Store(out, json.loads((folder / "config.json").read_text())).load(RUNS).scores


def said(out: Path) -> str:
    """All that the workers of an audit wrote."""
    log = out.with_name(f"{out.name}.log")
    return log.read_text() if log.exists() else ""
