"""CANIFE's ablations (the paper's Figures 5a, 5b, 8a and 8c) as sweeps, at three scales.

    smoke    a few design steps, which take seconds, to test the code
    laptop   a two-layer network on Fashion-MNIST, clients with one example, frozen at round 101
    paper    the same with 2,500 design steps and five seeds

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


class FigureSize(NamedTuple):
    """The settings for the figures at one scale.

    Attributes:
      setting: The base setting of all figures, without noise.
      noise_multiplier: The noise multiplier of Figure 8c.
      pools: The numbers of mock clients. Figure 5a uses all except the first, and 8a every second one.
      design_steps: The design step counts in Figure 5b.
      cohorts: The cohort sizes in Figure 8c.
      seeds: The number of seeds; Figure 8a has two additional seeds.
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
    """A sweep of attacked training runs that differ in one or two fields and in their seeds.

    Attributes:
      curve: The field of `Attacked` with one curve for each value.
      x: The field on the x axis, or "round". For a field, the figure shows only the last measured round.
    """

    curve: str
    x: str


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps for CANIFE's Figures 5a, 5b, 8a and 8c at a scale in SIZES, keyed by name."""
    size = SIZES[scale]
    setting = size.setting
    # With the penalties of Figure 8a, a design can end with a zero gradient, so we keep the sample with the
    # smallest penalty, not the last.
    with_best_sample = dataclasses.replace(setting, keep_best=True)
    # Figure 8c has the round on its x axis, so we measure twice as many rounds. Without noise, its epsilons
    # would be infinite. We fix the design's minibatch size, because the default, the cohort size, varies.
    noisy = dataclasses.replace(
        setting,
        noise_multiplier=size.noise_multiplier,
        every=setting.every // 2,
        design_batch=setting.cohort,
    )
    # A design starts from a random sample or an example (`start`), and uses the updates of a pool of clients.
    by_pool = {"start": STARTS, "pool": size.pools[1:]}  # the smallest is for Figure 8a
    by_steps = {"start": STARTS, "design_steps": size.design_steps}
    # "of_the_mean" penalizes the product with the mean update, and "as_printed" (Equation 2) the products
    # with each update.
    by_penalty = {"penalty": ("of_the_mean", "as_printed"), "pool": size.pools[::2]}
    seeds = size.seeds
    made = (
        _make_sweep("5a", "Canaries by pool", setting, seeds, by_pool),
        _make_sweep("5b", "Canaries by number of design steps", setting, seeds, by_steps),
        _make_sweep("8a", "Two design losses", with_best_sample, seeds + 2, by_penalty),
        _make_sweep("8c", "Clients per round", noisy, seeds, {"cohort": size.cohorts}),
    )
    return {sweep.name: sweep for sweep in made}


def _make_sweep(
    figure: str, title: str, base: Attacked, seeds: int, varied: Mapping[str, Sequence[Any]]
) -> AblationSweep:
    """Returns a sweep of all combinations of seeds and values of one or two fields.

    `varied` maps the names of one or two fields to their values, which replace those of `base`. Each
    value of the first field has a curve. The x axis shows the second field, or the round if there is only one
    field.
    """
    fields = [*varied, ROUND]
    curve, x = fields[:2]
    cells = []
    for *values, seed in itertools.product(*varied.values(), range(seeds)):
        changes: dict[str, Any] = dict(zip(varied, values, strict=True))
        setting = dataclasses.replace(base, **changes, seed=seed)
        rounds = setting.measured()
        if x != ROUND:
            rounds = rounds[-1:]
        combination = ", ".join(map(str, values))
        cells.append(_make_cell(setting, rounds, f"{setting.model}, {combination}, seed {seed}"))
    return AblationSweep(f"canife_figure_{figure}", title, tuple(cells), curve=curve, x=x)


def _make_cell(setting: Attacked, rounds: Sequence[int], name: str) -> Cell:
    """Returns the cell that measures the given rounds of a training run. Each round counts as a run."""

    # The functions import JAX only when called, so listing cells does not load it.
    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns True if all rounds are stored."""
        return len(measured.read_rounds(held.open(identity(setting)), rounds)) == len(rounds)

    def open_cell(out: Path, data: DataSets) -> Store:
        """Returns the setting's store."""
        from experiments.canife import training

        _, store = training.prepare(setting, out, data)
        return store

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Measures the missing rounds."""
        from experiments.canife import training

        for _ in training.measure_missing(setting, data, store, rounds):
            progress(1)

    return Cell(
        name=name,
        identity=json.dumps(identity(setting)),
        runs=len(rounds),
        is_done=is_done,
        open=open_cell,
        do=do,
        request=(setting, rounds),
    )
