"""Scores of this project's own training runs as a mechanism: what an estimator meets in practice.

GC-R's coordinates in the FCNN on Housing, one or several a run, at a noise multiplier by which composition
says mu 1. No model leaks more than that: an estimate above it is wrong, whatever the trade-off curve is.
"""

import functools
import math
import tempfile
from pathlib import Path

import numpy as np

from audit.laws import conversions
from audit.runtime import processes
from experiments.benchmark.contract import ONE_CANARY, SEVERAL, AuditScores, KnownTruth

_MU = 1.0
_STEPS = 250
_CANARIES = 16
_POOL_FACTOR = (
    10  # so many times an audit's runs are trained; an audit samples them without replacement
)


@functools.cache
def _train_pool(canaries: int, runs: int) -> AuditScores:
    """Returns the scores of so many runs, trained when they are first needed, by a process of its own."""
    return processes.run_in_own_process(functools.partial(_train, canaries, runs))


def _train(canaries: int, runs: int) -> AuditScores:
    """Trains runs with so many canaries each, and returns their scores."""
    from audit.runtime.machine import prepare_jax
    from audit.settings import build, stored
    from audit.settings.make import setting_of
    from audit.tasks.task import Sources
    from audit.training import training
    from models.catalogue import task

    prepare_jax()
    setting = setting_of(
        "fcnn",
        adversary="gc_r",
        canaries=canaries,
        steps=_STEPS,
        noise_multiplier=math.sqrt(_STEPS) / _MU,
    )
    dataset = task("fcnn").data.load(Sources())
    game = build.build(setting, dataset)
    with tempfile.TemporaryDirectory() as folder:
        store = stored.open_store(Path(folder), setting, dataset)
        scores = training.train(game, store, runs).scores
    return AuditScores(scores.scores, scores.presence)


def _draw_worlds(rng: np.random.Generator, n: int) -> AuditScores:
    """Draws n runs with the canary in, and n with it out."""
    pool = _train_pool(1, 2 * n * _POOL_FACTOR)
    runs_in = np.flatnonzero(pool.presence[:, 0])
    runs_out = np.flatnonzero(~pool.presence[:, 0])
    drawn_in = rng.choice(runs_in, n, replace=False)
    drawn_out = rng.choice(runs_out, n, replace=False)
    drawn = np.concatenate([drawn_in, drawn_out])
    return AuditScores(pool.scores[drawn], pool.presence[drawn])


def _draw_runs(rng: np.random.Generator, n: int) -> AuditScores:
    """Draws n runs of several canaries."""
    pool = _train_pool(_CANARIES, n * _POOL_FACTOR)
    drawn = rng.choice(len(pool.scores), n, replace=False)
    return AuditScores(pool.scores[drawn], pool.presence[drawn])


def _upper_bound(delta: float) -> float:
    """Returns what composition says that the model leaks at most."""
    return conversions.epsilon_from_mu(_MU, delta)


_DESCRIPTION = (
    f"our FCNN on Housing, audits being samples of {_POOL_FACTOR} times as many trainings; "
    "composition's mu 1"
)
MECHANISMS = (
    KnownTruth("trained FCNN", ONE_CANARY, _draw_worlds, _upper_bound, _DESCRIPTION, (1000,)),
    KnownTruth("runs of 16: trained FCNN", SEVERAL, _draw_runs, _upper_bound, _DESCRIPTION, (200,)),
)
