"""CANIFE's ablations as data, at three scales: the paper's Figures 5a, 5b, 8a and 8c.

    smoke    seconds: a few steps of a design, to test the code
    laptop   clients with one example of Fashion-MNIST, two layers, frozen at round 101
    paper    designs of 2,500 steps, and five seeds

Figures show averages over seeds.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.runtime.machine import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.canife import measured
from experiments.canife.attacked import STARTS, Attacked, identity
from experiments.cells.cell import Cell, DataSets
from experiments.sweeps.sweep import Sweep

ROUND = "round"
_STEP_SECONDS = 0.006  # per step of a design on two cores, including compilation


class FigureSize(NamedTuple):
    """The values of the figures' varied fields at a scale.

    Attributes:
      setting: The base setting, without noise.
      noise_multiplier: In Figure 8c.
      pools: Of mock clients. Figure 5a skips the first; Figure 8a uses every other size.
      design_steps: In Figure 5b.
      cohorts: In Figure 8c.
      seeds: The number of seeds; Figure 8a has two more.
    """

    setting: Attacked
    noise_multiplier: float
    pools: tuple[int, ...]
    design_steps: tuple[int, ...]
    cohorts: tuple[int, ...]
    seeds: int


_LAPTOP = FigureSize(
    setting=Attacked(
        cohort=32,
        rounds=101,
        noise_multiplier=0.0,
        pool=256,
        population=1024,
        mock_rounds=1000,
        design_steps=300,
    ),
    noise_multiplier=0.4,
    pools=(32, 64, 128, 256, 512),
    design_steps=(10, 30, 100, 300, 1000),
    cohorts=(16, 32, 64),
    seeds=3,
)
_SMOKE = FigureSize(
    setting=Attacked(
        "linear",
        cohort=4,
        rounds=3,
        every=2,
        noise_multiplier=0.0,
        pool=8,
        population=20,
        scores=20,
        mock_rounds=200,
        design_steps=4,
    ),
    noise_multiplier=0.5,
    pools=(6, 8),
    design_steps=(2, 4),
    cohorts=(4, 8),
    seeds=1,
)
_PAPER = _LAPTOP._replace(
    setting=dataclasses.replace(_LAPTOP.setting, design_steps=2500),
    design_steps=(*_LAPTOP.design_steps, 3000),
    seeds=5,
)
SIZES = {"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationSweep(Sweep):
    """A sweep of training runs under attack that differ in one or two fields and in their seeds.

    The field `curve` has a curve for each value, and `x` is on the x axis. If `x` is `round`, the figure
    shows all measured rounds; otherwise the last of each training run.
    """

    curve: str
    x: str


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps of the paper's Figures 5a, 5b, 8a and 8c at a scale, by name."""
    size = SIZES[scale]
    setting = size.setting
    # In Figure 8a a design can end at a gradient of norm 0, so the canary is its best sample.
    with_best_sample = dataclasses.replace(setting, keep_best=True)
    # By default the minibatch of a design has the size of the cohort. Here it is fixed, so the curves differ
    # only in the cohort.
    noisy = dataclasses.replace(
        setting,
        noise_multiplier=size.noise_multiplier,
        every=max(setting.every // 2, 1),
        design_batch=min(size.cohorts[-1] // 2, setting.cohort),
    )
    by_pool = {"start": STARTS, "pool": size.pools[1:]}
    by_steps = {"start": STARTS, "design_steps": size.design_steps}
    by_loss = {"penalty": ("of_the_mean", "as_printed"), "pool": size.pools[::2]}
    seeds = size.seeds
    made = (
        _make_sweep("5a", "Canaries by pool", setting, seeds, by_pool),
        _make_sweep("5b", "Canaries by steps of their design", setting, seeds, by_steps),
        _make_sweep("8a", "Two losses of the design", with_best_sample, seeds + 2, by_loss),
        _make_sweep("8c", "Clients a round", noisy, seeds, {"cohort": size.cohorts}),
    )
    return {sweep.name: sweep for sweep in made}


def _make_sweep(
    number: str, title: str, base: Attacked, seeds: int, varied: Mapping[str, Sequence[Any]]
) -> AblationSweep:
    """Returns a sweep of all combinations of the varied fields' values, each with seeds 0, 1, ...

    The first field has the curves. The second field, or otherwise the round, is on the x axis.
    """
    curve, x = (*varied, ROUND)[:2]
    cells = []
    for *values, seed in itertools.product(*varied.values(), range(seeds)):
        changes: dict[str, Any] = dict(zip(varied, values, strict=True))
        setting = dataclasses.replace(base, **changes, seed=seed)
        numbers = setting.measured()
        if x != ROUND:
            numbers = numbers[-1:]  # the figure shows only the last measured round
        combination = ", ".join(map(str, values))
        cells.append(_make_cell(setting, numbers, f"{setting.model}, {combination}, seed {seed}"))
    return AblationSweep(f"canife_figure_{number}", title, tuple(cells), curve=curve, x=x)


def _make_cell(setting: Attacked, numbers: Sequence[int], name: str) -> Cell:
    """Returns the cell that measures these rounds of a training run. Each round counts as a run."""

    def is_done(held: Holdings, data: DataSets) -> bool:
        return len(measured.read(held, setting, numbers)) == len(numbers)

    # JAX starts only when these are called, not when cells are listed.
    def open_cell(out: Path, data: DataSets) -> Store:
        from experiments.canife import training

        return training.prepare(setting, out, data)[2]

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from experiments.canife import populations, training

        split = populations.split_clients(setting, data)
        for _ in training.measure_missing(setting, split, store, numbers):
            progress(1)

    return Cell(
        name=name,
        identity=json.dumps(identity(setting)),
        runs=len(numbers),
        seconds=len(numbers) * setting.design_steps * _STEP_SECONDS,  # most of a round's time
        is_done=is_done,
        open=open_cell,
        do=do,
        request=setting,
    )
