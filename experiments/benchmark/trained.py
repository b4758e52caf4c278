"""Scores of this project's own trainings as a mechanism: what an estimator meets in practice.

GC-R's coordinates in the FCNN on Housing, one or several a run, at a noise multiplier by which composition
says mu 1. No model leaks more than that, so that whoever claims more is wrong, whatever the curve is.
"""

import functools
import math
import tempfile
from pathlib import Path

import numpy as np

from audit import processes
from audit.statistics import conversions
from experiments.benchmark.contract import ONE_CANARY, SEVERAL, AuditScores, KnownTruth

_MU, _STEPS, _CANARIES = 1.0, 250, 16
_TIMES = 10  # an audit's runs are trained, and every audit is a sample of them without replacement


@functools.cache
def _pool(canaries: int, runs: int) -> AuditScores:
    """The scores of so many runs, trained when they are first needed, by a process of its own."""
    return processes.apart(functools.partial(_trained, canaries, runs))


def _trained(canaries: int, runs: int) -> AuditScores:
    from audit import training
    from audit.machine import prepare_jax
    from audit.settings import build, stored
    from audit.settings.make import setting_of
    from audit.task import Sources
    from models.catalogue import task

    prepare_jax()
    sigma = math.sqrt(_STEPS) / _MU
    setting = setting_of("fcnn", adversary="gc_r", canaries=canaries, steps=_STEPS, noise_multiplier=sigma)
    dataset = task("fcnn").data.load(Sources())
    with tempfile.TemporaryDirectory() as folder:
        store = stored.open_store(Path(folder), setting, dataset)
        found = training.train(build.build(setting, dataset), store, runs).scores
    return AuditScores(found.scores, found.presence)


def _worlds(rng: np.random.Generator, n: int) -> AuditScores:
    scores, presence = _pool(1, 2 * n * _TIMES)[:2]
    worlds = (np.flatnonzero(presence[:, 0] == inside) for inside in (True, False))
    places = np.concatenate([rng.choice(world, n, replace=False) for world in worlds])
    return AuditScores(scores[places], presence[places])


def _runs(rng: np.random.Generator, n: int) -> AuditScores:
    scores, presence = _pool(_CANARIES, n * _TIMES)[:2]
    places = rng.choice(len(scores), n, replace=False)
    return AuditScores(scores[places], presence[places])


def _truth(delta: float) -> float:
    return conversions.epsilon_from_mu(_MU, delta)


_SAYS = f"our FCNN on Housing, audits being samples of {_TIMES} times as many trainings; composition's mu 1"
MECHANISMS = (
    KnownTruth("trained FCNN", ONE_CANARY, _worlds, _truth, _SAYS, (1000,)),
    KnownTruth("runs of 16: trained FCNN", SEVERAL, _runs, _truth, _SAYS, (200,)),
)
