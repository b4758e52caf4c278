"""The sweep of correlated noise: what the last model leaks at equal accounted epsilon, over k.

All models together leak ACCOUNTED_EPSILON, with DP-SGD and with three matrix mechanisms. Canaries along
coordinates measure the leak of the last model, and fresh directions prove a lower bound.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
# Noise multipliers at each periodicity, by `MatrixMechanism.with_epsilon`. Constants do not need SciPy.
NOISE_MULTIPLIERS = {
    "independent": (3.99943, 2.82802, 1.7886, 1.26473, 0.799885, 0.565604),
    "lambda:0.9": (38.8799, 19.4506, 7.83556, 4.02936, 1.875, 1.1925),
    "bsr:16": (17.6362, 8.90454, 3.78265, 2.09168, 1.08781, 0.749314),
    "bisr:16": (26.341, 13.2346, 5.41462, 2.83525, 1.30635, 0.799126),
}


class _Audit(NamedTuple):
    """The audits of a model by one adversary, over periodicities; `label` names the inserted gradients."""

    model: str
    adversary: str
    label: str
    batch_size: int
    canaries: int | str
    runs: int
    ks: tuple[int, ...] = PERIODICITIES


_AUDITS = (
    _Audit("wide_fcnn", "gc_s", "coordinates", 400, 64, runs=60),
    _Audit("wide_fcnn", "sphere", "fresh directions", 400, AUTO, runs=12),
    _Audit("convnet", "gc_s", "coordinates", 128, 256, runs=8),
    _Audit("convnet", "sphere", "fresh directions", 128, AUTO, runs=3, ks=(1, 5, 25)),
)


def make_sweep(is_smoke: bool) -> Sweep:
    """Returns the sweep; the smallest has two places and a few runs of a few steps."""
    title = f"Last models at an accounted epsilon of {ACCOUNTED_EPSILON:g}"
    return Sweep(NAME, title, list(_list_cells(is_smoke)), Axis("periodicity k", "k"))


def _list_cells(is_smoke: bool) -> Iterator[Cell]:
    """Yields the audits of each model, strategy and periodicity."""
    audits: Sequence[_Audit] = _AUDITS
    steps = STEPS
    if is_smoke:
        audits = (
            _AUDITS[0]._replace(batch_size=20, runs=8, ks=(1, 5)),
            _AUDITS[1]._replace(batch_size=20, runs=2, ks=(1, 5)),
        )
        steps = 10
    for audited, strategy in itertools.product(audits, STRATEGIES):
        sigmas = dict(zip(PERIODICITIES, NOISE_MULTIPLIERS[strategy], strict=True))
        for k in audited.ks:
            setting = setting_of(
                audited.model,
                adversary=audited.adversary,
                canaries=audited.canaries,
                noise=strategy,
                noise_multiplier=sigmas[k],
                batch_size=audited.batch_size,
                steps=steps,
                k=k,
            )
            series = f"{STRATEGIES[strategy]}, {audited.label}"
            panel = task(audited.model).label
            yield audit_cell(Audited(panel, series, k, setting, audited.runs))
