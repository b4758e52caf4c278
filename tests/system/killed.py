"""Code for tests of kills: processes that train, their output, and their scores."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from audit.conclusions.concluded import conclude_setting
from audit.conclusions.results import result_json
from audit.settings.make import from_identity
from audit.storage.store import Store

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0  # in which a command ends, on a busy machine too
CONTEXT = multiprocessing.get_context("forkserver")  # a process begins with all imported
CONTEXT.set_forkserver_preload(["audit.training.build"])

# The fields of a setting that uses every draw: the optimizer has a state, each run its own theta_0.
EVERY_DRAW = {
    "adversary": "gc_r",
    "optimizer": "adam",
    "periodicity": 25,
    "unknown_initialisation": True,
}
# Text, since a module of tests has no name that another process could import.
BEGIN = """
import itertools, os, signal, sys, threading
import jax
import numpy as np
from tqdm import tqdm
from audit.training import game
from audit.commands import cli
from audit.training import build
from audit.settings.make import open_store, setting_of
from audit.storage.store import Store
from audit.tasks.task import Dataset

out.parent.mkdir(parents=True, exist_ok=True)
log = open(out.with_name(out.name + ".log"), "a", buffering=1)
os.dup2(log.fileno(), sys.stderr.fileno())
cli.prepare_jax()
jax.config.update("jax_compilation_cache_dir", str(out.parent / "cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
tqdm.set_lock(threading.RLock())  # its own would be left behind
features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
setting = setting_of("fcnn", batch_size=10, steps=steps, **fields)
"""
END = """
store = open_store(out, setting, data)
game.train(build.build(setting, data), store, runs, chunk, checkpoint_seconds=seconds)
"""


def start(program, out, fields=EVERY_DRAW, **names):
    """Starts a process that trains what an audit of a setting with these fields lacks."""
    variables = {"out": out, "fields": fields, **names}
    process = CONTEXT.Process(target=exec, args=(BEGIN + program + END, variables))
    process.start()
    return process


@contextlib.contextmanager
def ended(running):
    """Processes of which none is left afterwards."""
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.join()


def command(*argv, home=ROOT, **changes):
    """A command of the repository as a user starts it, in a group of its own, which hears Ctrl-C."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **changes}
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    argv = [sys.executable, "-P", "-m", "experiments", *map(str, argv)]
    hears = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    return subprocess.Popen(argv, cwd=home, env=environment, preexec_fn=hears, **pipes)


def left_alone(*argv, home=ROOT, **changes):
    """What a command prints that nobody kills."""
    with command(*argv, home=home, **changes) as process:
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and "damaged" not in errors, errors
    return printed


def contents(out, *endings):
    """The bytes of what a command leaves, by place, but for half-written files of one that was killed."""
    files = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {
        path.relative_to(out): path.read_bytes()
        for path in files
        if path.name.endswith(endings or "")
    }


def scores(out, runs):
    """The scores of a finished audit."""
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return Store(out, json.loads((folder / "config.json").read_text())).load(runs).scores


def conclusion(out, runs):
    """The JSON of what follows from the scores of a finished audit."""
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    config = json.loads((folder / "config.json").read_text())
    loaded = Store(out, config).load(runs)
    return result_json(conclude_setting(loaded, from_identity(config)))


def log(out):
    return out.with_name(f"{out.name}.log")


def said(out):
    """All that the processes of an audit wrote to stderr and to their log."""
    return log(out).read_text() if log(out).exists() else ""
