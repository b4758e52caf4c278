"""The sweep of correlated noise: what the last model leaks at equal accounted epsilon, over k.

DP-SGD and three matrix mechanisms train with the noise for which all models leak ACCOUNTED_EPSILON. Canaries
along coordinates measure the leak of the last model, and fresh directions prove a lower bound.
"""

import itertools
from collections.abc import Iterator

from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.sweeps.sweep import Axis, Sweep
from models.catalogue import task

NAME = "matrix"
STRATEGIES = {  # labels by strategy
    "independent": "DP-SGD",
    "lambda:0.9": "lambda-CGD, 0.9",
    "bsr:16": "BSR, 16 bands",
    "bisr:16": "BISR, 16 bands",
}
ACCOUNTED_EPSILON = 24.0
ACCOUNTED_DELTA = 1e-5
STEPS = 250
PERIODICITIES = (1, 2, 5, 10, 25, 50)
# By model: the batch size, and the training runs with canaries along coordinates and with fresh directions.
_SIZES = {"wide_fcnn": (400, 60, 12), "convnet": (128, 8, 3)}
_CANARIES = {"wide_fcnn": 64, "convnet": 256}  # along coordinates, in each run


def make_sweep(is_smoke: bool) -> Sweep:
    """Returns the sweep; the smallest has two places and a few runs of a few steps."""
    title = f"Last models at an accounted epsilon of {ACCOUNTED_EPSILON:g}"
    return Sweep(NAME, title, list(_list_cells(is_smoke)), Axis("periodicity k", "k"))


def _list_cells(is_smoke: bool) -> Iterator[Cell]:
    """Yields the audits of each model, strategy and periodicity by both adversaries."""
    from audit.claims.matrix import MatrixMechanism  # loads SciPy

    steps = STEPS
    sizes = _SIZES
    ks: tuple[int, ...] = PERIODICITIES
    if is_smoke:
        steps = 10
        sizes = {"wide_fcnn": (20, 8, 2)}
        ks = (1, 5)
    for model, strategy, k in itertools.product(sizes, STRATEGIES, ks):
        batch_size, runs, fresh_runs = sizes[model]
        claim = MatrixMechanism(strategy, 1.0, steps, k)
        sigma = claim.with_epsilon(ACCOUNTED_EPSILON, ACCOUNTED_DELTA).noise_multiplier
        canaries = {"gc_s": (_CANARIES[model], runs), "sphere": (AUTO, fresh_runs)}
        for adversary, (count, num_runs) in canaries.items():
            setting = setting_of(
                model,
                adversary=adversary,
                canaries=count,
                noise=strategy,
                noise_multiplier=sigma,
                batch_size=batch_size,
                steps=steps,
                k=k,
            )
            yield audit_cell(Audited(task(model).label, strategy, k, setting, num_runs))
