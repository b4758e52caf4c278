"""Mechanisms whose scores are those of this project's own training runs, as estimators meet them in practice.

The FCNN is trained on Housing. Its canaries, one or several a run, are gradients along random coordinates
(GC-R). The noise multiplier is such that composition guarantees mu = 1. No model leaks more than that, so
that an estimate above it is wrong, whatever the trade-off curve is.
"""

import functools
import math
import tempfile
from pathlib import Path

import numpy as np

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, Law
from audit.evidence.canaries import Coins
from audit.runtime.processes import as_completed
from experiments.benchmark.contract import ONE_CANARY, SEVERAL, BenchmarkedMechanism

_MU = 1.0
_STEPS = 250
_POOL_FACTOR = 10  # the trained runs over an audit's runs, which are sampled without replacement


@functools.cache
def _train_pool(canaries: int, runs: int) -> Coins:
    """Returns the scores of `runs` training runs with `canaries` canaries each, trained at the first call."""
    ((_, coins),) = as_completed(functools.partial(_train, canaries), [runs], processes=1)
    return coins


def _train(canaries: int, runs: int) -> Coins:
    """Trains the FCNN on Housing in this process, with canaries along random coordinates."""
    # Imported here, since they load JAX: only the process that trains needs it.
    from audit.runtime.machine import prepare_jax
    from audit.settings import make
    from audit.settings.make import setting_of
    from audit.tasks.task import Sources
    from audit.training import build, game
    from models.catalogue import task

    prepare_jax()
    # A canary in each of T steps with the noise multiplier sigma leaks at most mu = sqrt(T) / sigma.
    sigma = math.sqrt(_STEPS) / _MU
    setting = setting_of(
        "fcnn", adversary="gc_r", canaries=canaries, steps=_STEPS, noise_multiplier=sigma
    )
    dataset = task("fcnn").data.load(Sources())
    with tempfile.TemporaryDirectory() as folder:
        store = make.open_store(Path(folder), setting, dataset)
        scores = game.train(build.build(setting, dataset), store, runs).scores
    return Coins(scores.scores, scores.presence)


def _draw_worlds(rng: np.random.Generator, setting: KnownMechanism) -> Coins:
    """Draws an audit's runs with a single canary each from trained runs, half with it and half without."""
    pool = _train_pool(1, setting.runs * _POOL_FACTOR)
    drawn = []
    for is_in in (True, False):
        runs = np.flatnonzero(pool.presence[:, 0] == is_in)
        drawn.append(rng.choice(runs, setting.runs // 2, replace=False))
    chosen = np.concatenate(drawn)
    return Coins(pool.scores[chosen], pool.presence[chosen])


def _draw_runs(rng: np.random.Generator, setting: KnownMechanism) -> Coins:
    """Draws an audit from trained runs of several canaries."""
    pool = _train_pool(setting.canaries, setting.runs * _POOL_FACTOR)
    drawn = rng.choice(len(pool.scores), setting.runs, replace=False)
    return Coins(pool.scores[drawn], pool.presence[drawn])


_law = functools.partial(Law, "trained", truth=laws.gaussian_truth)
MECHANISMS = (
    BenchmarkedMechanism(ONE_CANARY, "trained FCNN", _law(_draw_worlds), _MU),
    BenchmarkedMechanism(SEVERAL, "runs of 16: trained FCNN", _law(_draw_runs), _MU, (200,)),
)
