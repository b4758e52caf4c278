"""Audits that are killed at random moments and started again, against one that is left alone."""

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from audit.errors import InputError, require
from audit.storage.store import Store
from experiments.settings.setting import Setting
from models.data.base import Dataset

# Six segments a chunk; every draw is used: the optimizer has a state, each run its own theta_0.
_SETTING = Setting(
    adversary="gc_r", batch_size=10, steps=1500, optimizer="adam", periodicity=25, unknown_initialisation=True
)
_RUNS, _CHUNK = 24, 8
_SECONDS = 120.0  # in which an audit that is left alone ends
_CONTEXT = multiprocessing.get_context("forkserver")  # a process begins with all imported
_CONTEXT.set_forkserver_preload(["experiments.settings.build", "orbax.checkpoint"])


class Survived(NamedTuple):
    """How many kills, over how many audits; after how many a checkpoint was there to go on from, and
    after how many something lay half written."""

    kills: int
    audits: int
    checkpoints: int
    half_written: int


def survive(
    folder: Path, kills: int, seed: int, told: Callable[[int], object] = lambda kills: None
) -> Survived:
    """Kills audits in `folder` with SIGKILL, uniformly over an audit's life, until as many have struck.

    An audit that ends between two kills is compared with one left alone, and another is begun. `told`
    hears of the number of kills so far. Raises InputError where a score differs in a bit, where an audit
    fails, or where one says that something is damaged.
    """
    rng = np.random.default_rng(seed)
    _left_alone(folder / "alone")  # with nothing compiled
    life, expected = _left_alone(folder / "again"), _scores(folder / "alone")
    require(np.array_equal(_scores(folder / "again"), expected), "two audits left alone differ: see --out")
    out, counts = folder / "killed", Survived(0, 0, 0, 0)
    while counts.kills < kills:
        if _struck(out, rng.uniform(0, life)):
            checkpoint, half = _left_behind(out)
            counts = Survived(
                counts.kills + 1, counts.audits, counts.checkpoints + checkpoint, counts.half_written + half
            )
            told(counts.kills)
        else:
            counts = counts._replace(audits=counts.audits + _same(out, expected))
    _left_alone(out)
    return counts._replace(audits=counts.audits + _same(out, expected))


def _left_alone(out: Path) -> float:
    """Trains to the end; returns the seconds that it took."""
    begin = time.perf_counter()
    with _audit(out) as process:
        process.join(_SECONDS)
        _require_success(process.exitcode, out)
    return time.perf_counter() - begin


def _struck(out: Path, seconds: float) -> bool:
    """Whether an audit was killed after so many seconds; else it had ended."""
    with _audit(out) as process:
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            return process.exitcode != 0  # 0: it ended while it was about to be killed
        _require_success(process.exitcode, out)
    return False


@contextlib.contextmanager
def _audit(out: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that trains; none is left."""
    process = _CONTEXT.Process(target=_train, args=(out,))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _same(out: Path, expected: NDArray[np.float64]) -> bool:
    """True, and the folder is gone; raises InputError where a score is another or something was damaged."""
    log = _log(out).read_text()
    require("damaged" not in log, f"a kill damaged a file: see {_log(out)}")
    require(np.array_equal(_scores(out), expected), f"the scores in {out} are not those of one left alone")
    shutil.rmtree(out)
    _log(out).unlink()
    return True


def _left_behind(out: Path) -> tuple[bool, bool]:
    """Whether a kill left a checkpoint, and whether it left something half written."""
    found = list(out.rglob("*")) if out.is_dir() else []
    return any(path.name == "sha256" for path in found), any(path.name[0] == "." for path in found)


def _train(out: Path) -> None:
    """The process: trains what is missing, with a checkpoint after every segment."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(_log(out), "a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    import jax

    from experiments import cli
    from experiments.settings import build as auditing

    cli.prepare_jax()
    jax.config.update("jax_compilation_cache_dir", str(out.parent / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tqdm.set_lock(threading.RLock())  # its own would be left behind
    data = _data()
    store = auditing.open_store(out, _SETTING, data)
    auditing.train(auditing.build(_SETTING, data), store, _RUNS, _CHUNK, checkpoint_seconds=0)


def _data() -> Dataset:
    """40 examples of 8 features."""
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    return Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)


def _scores(out: Path) -> NDArray[np.float64]:
    """The scores of a finished audit."""
    (folder,) = out.iterdir()
    return Store(out, json.loads((folder / "config.json").read_text())).load(_RUNS).scores


def _log(out: Path) -> Path:
    """What the processes of an audit said."""
    return out.with_name(f"{out.name}.log")


def _require_success(status: int | None, out: Path) -> None:
    """Raises InputError where an audit failed or hangs."""
    if status != 0:
        raise InputError(f"an audit ended with status {status}, not 0: see {_log(out)}")
