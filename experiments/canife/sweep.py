"""CANIFE's ablations as data, at three scales: the paper's Figures 5a, 5b, 8a and 8c.

    smoke    seconds: a few steps of a design, to see that all is in its place
    laptop   clients of a single example of Fashion-MNIST, two layers, frozen at round 101
    paper    designs of 2,500 steps, and five seeds

Each combination of fields is a training run of its own; seeds are averaged.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.canife.attacked import STARTS, Attacked
from experiments.canife.cells import attacked_cell
from experiments.sweeps.sweep import Sweep

ROUND = "round"
Value = str | int
Varied = Mapping[str, Sequence[Value]]


class FigureSize(NamedTuple):
    """The values of the figures' varied fields at a scale.

    Attributes:
      setting: The setting in which the fields are varied.
      noise_multiplier: The noise multiplier of Figure 8c; the other figures have that of `setting`.
      pools: Sizes of the pool of mock clients. Figure 5a has all but the first, Figure 8a every other size
        from the first on.
      design_steps: Numbers of a design's steps, in Figure 5b.
      cohorts: Numbers of clients in a round, in Figure 8c.
      seeds: The number of seeds; Figure 8a has two more.
    """

    setting: Attacked
    noise_multiplier: float
    pools: tuple[int, ...]
    design_steps: tuple[int, ...]
    cohorts: tuple[int, ...]
    seeds: int


_LAPTOP = Attacked(
    cohort=32,
    rounds=101,
    noise_multiplier=0.0,
    pool=256,
    population=1024,
    mock_rounds=1000,
    design_steps=300,
)
_TINY = Attacked(
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
)
_LAPTOP_SIZE = FigureSize(
    _LAPTOP, 0.4, (32, 64, 128, 256, 512), (10, 30, 100, 300, 1000), (16, 32, 64), seeds=3
)
SIZES = {
    "smoke": FigureSize(_TINY, 0.5, (6, 8), (2, 4), (4, 8), seeds=1),
    "laptop": _LAPTOP_SIZE,
    "paper": _LAPTOP_SIZE._replace(
        setting=dataclasses.replace(_LAPTOP, design_steps=2500),
        design_steps=(*_LAPTOP_SIZE.design_steps, 3000),
        seeds=5,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationSweep(Sweep):
    """A sweep of training runs under attack, which differ in one or two fields and in their seeds.

    Attributes:
      curve: The field that has a curve for each of its values.
      x: The field on the x axis, where the last measured round of each training run is shown; or `round`,
        where all measured rounds are.
    """

    curve: str
    x: str


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps of the paper's Figures 5a, 5b, 8a and 8c, by name.

    Args:
      scale: A key of SIZES.
    """
    setting, noise_multiplier, pools, design_steps, cohorts, seeds = SIZES[scale]

    # With the penalties of Figure 8a a design can end at a gradient of norm 0, which has no direction. So the
    # canary is the best sample of the design, rather than the last.
    with_best_sample = dataclasses.replace(setting, keep_best=True)
    # Figure 8c alone has noise: it shows the training's epsilon, which without noise is truly infinite. It is
    # over rounds, and measures rounds twice as often, for more points. Its curves are sizes of the cohort. By
    # default the minibatch of a design is as large as the cohort. Here it is the same for all cohorts, so
    # that it is not what makes curves differ. It is the cohort of the other figures, and at most half of the
    # largest cohort here; in all SIZES these are the same number.
    noisy = dataclasses.replace(
        setting,
        noise_multiplier=noise_multiplier,
        every=max(setting.every // 2, 1),
        design_batch=min(cohorts[-1] // 2, setting.cohort),
    )

    # Of each figure, the fields that vary, with their values. There is a curve for each value of the first;
    # the second, if there is one, is on the x axis. Which pools a figure has is a choice made here. Figure 8a
    # is about how large a pool each loss needs. So it begins with the smallest, and has every other pool from
    # there on; Figure 5a has all pools but the smallest. Figure 8a also has two more seeds, as its designs
    # differ much from seed to seed: some keep their first sample.
    penalties = ("of_the_mean", "as_printed")
    by_pool: Varied = {"start": STARTS, "pool": pools[1:]}
    by_steps: Varied = {"start": STARTS, "design_steps": design_steps}
    by_loss: Varied = {"penalty": penalties, "pool": pools[::2]}
    by_cohort: Varied = {"cohort": cohorts}
    figure_sweeps = (
        _make_sweep("5a", "Canaries by pool", setting, seeds, by_pool),
        _make_sweep("5b", "Canaries by steps of their design", setting, seeds, by_steps),
        _make_sweep("8a", "Two losses of the design", with_best_sample, seeds + 2, by_loss),
        _make_sweep("8c", "Clients a round", noisy, seeds, by_cohort),
    )
    return {sweep.name: sweep for sweep in figure_sweeps}


def _make_sweep(
    number: str, title: str, base: Attacked, seeds: int, varied: Varied
) -> AblationSweep:
    """Returns a sweep of every combination of the varied fields' values, each with seeds 0, 1, ...

    There is a curve for each value of the first varied field. The second is on the x axis; where there is no
    second, rounds are.

    Args:
      number: The number of the paper's figure.
      title: The sweep's title.
      base: The setting whose fields are varied.
      seeds: The number of seeds of each combination.
      varied: One or two fields of the setting, with the values of each.
    """
    # The first varied field is the curve. The second is x; without a second, ROUND takes its place.
    curve, x = (*varied, ROUND)[:2]
    cells = []
    combinations = itertools.product(*varied.values(), range(seeds))
    for *values, seed in combinations:  # a value of each varied field, and a seed
        changes: dict[str, Any] = dict(zip(varied, values, strict=True))
        changes["seed"] = seed
        setting = dataclasses.replace(base, **changes)
        numbers = setting.measured()
        if x != ROUND:
            # A figure over another field shows the last measured round alone.
            numbers = numbers[-1:]
        combination = ", ".join(str(value) for value in values)
        name = f"{setting.model}, {combination}, seed {seed}"
        cells.append(attacked_cell(setting, numbers, name))
    return AblationSweep(f"canife_figure_{number}", title, tuple(cells), curve=curve, x=x)
