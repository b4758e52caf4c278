"""The hidden-state paper's experiments as data: every figure that trains something, at three scales.

    smoke    seconds a figure: a few runs of a few steps, to see that all is in its place
    laptop   at most an hour a figure on two cores: the FCNN in full, fewer runs of the image models, with
             256 canaries each where gradients are crafted; the ResNet is cut down to 4 insertions, small
             mini-batches and a noise multiplier at which the upper bound stays the paper's
    paper    5,000 runs a cell

Five seeds for the FCNN, as the paper has for Figure 1c (one at `smoke`), at both of its learning rates
(Errata H2). T is the number of insertions times k (Errata H8).
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.settings.adversaries import ADVERSARIES, GC_S_VARIANTS, CotS, GcR, GcS, Loss
from audit.settings.make import setting_of
from audit.settings.setting import AdversaryFields, Setting
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited
from experiments.hidden_state.landscape_cell import landscape_cell
from experiments.hidden_state.landscape_cells import Grid
from experiments.hidden_state.norms import norms_cell
from experiments.sweeps.sweep import Axis, Draw, Drawn, Sweep
from models.catalogue import task

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence

SMOKE = "smoke"
SCALES = (SMOKE, "laptop", "paper")  # the smallest first
NORM, PERIODICITY = Axis("clipping norm C", "C"), Axis("periodicity k", "k")


class Many(NamedTuple):
    """Several canaries a run, and runs a cell at each periodicity."""

    canaries: int
    runs: dict[int, int]


class Size(NamedTuple):
    """How much is trained of a model: runs a cell at each periodicity, seeds, insertions, batch size, noise
    multiplier; whether gradients along coordinates have several canaries a run."""

    runs: dict[int, int]
    seeds: int
    insertions: int
    batch_size: int
    noise_multiplier: float = 4.0
    many: Many | None = None

    def of(self, adversary: AdversaryFields, periodicity: int) -> tuple[int, int]:
        """(runs, canaries a run)."""
        if self.many is not None and ADVERSARIES[adversary.name].biased:
            return self.many.runs[periodicity], self.many.canaries
        return self.runs[periodicity], 1


class Series(NamedTuple):
    """A series of a figure: what it is called there, and who attacks."""

    label: str
    adversary: AdversaryFields

    def called(self, label: str) -> "Series":
        """The series' adversary by another name."""
        return self._replace(label=label)


_FULL = {1: 5000, 5: 5000, 25: 5000}
SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "fcnn": Size({1: 40}, 1, 4, 20),
        "convnet": Size({1: 4, 5: 4, 25: 4}, 1, 2, 4),
        "resnet18": Size({1: 2, 5: 2, 25: 2}, 1, 1, 2),
        "mobilenet_head": Size({1: 4}, 1, 2, 4),
    },
    "laptop": {
        "fcnn": Size(_FULL, 5, 250, 400),
        "convnet": Size({1: 40, 5: 16, 25: 4}, 1, 250, 128, 4.0, Many(256, {1: 60, 5: 24, 25: 12})),
        "resnet18": Size({1: 8, 5: 6, 25: 4}, 1, 4, 8, 0.506, Many(256, {1: 16, 5: 8, 25: 8})),
        "mobilenet_head": Size({}, 1, 250, 128, 4.0, Many(256, {1: 100})),
    },
    "paper": {
        "fcnn": Size(_FULL, 5, 250, 400),
        "convnet": Size(_FULL, 1, 250, 128),
        "resnet18": Size(_FULL, 1, 250, 128),
        "mobilenet_head": Size(_FULL, 1, 250, 128),
    },
}
NORM_RUNS = {"smoke": 2, "laptop": 30, "paper": 30}  # Figure 8's runs a model, at most

L, GC_R, COTS = Series("L", Loss()), Series("GC-R", GcR()), Series("CotS", CotS())
GC_S = tuple(Series(f"GC-S, {variant.replace('_', ' ')}", GcS(variant)) for variant in GC_S_VARIANTS)
NOISELESS_PER_STEP = GC_S[0]


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    found = [
        _by_clipping_norm("figure_1a", "convnet", scale),
        _by_clipping_norm("figure_1b", "resnet18", scale),
        _fcnn("figure_1c", "GC-R, GC-S and L on the FCNN", (L, GC_R, NOISELESS_PER_STEP), scale),
        _periodic("figure_2a", 5, scale),
        _periodic("figure_2b", 25, scale),
        _fcnn("figure_4", "Four ways to choose GC-S's dimension", (L, GC_R, *GC_S), scale),
        _figure_5(scale),
        _figure_6a(scale),
        _fcnn("figure_7", "GC-R, L and CotS on the FCNN", (L, GC_R, COTS), scale),
        _figure_8(scale),
        _figure_11(scale),
        _figure_12(scale),
        _figure_13(scale),
        _crafted_landscape(_grid(scale)),
    ]
    return {sweep.name: sweep for sweep in found}


def audits(panel: str, series: Series, x: float, model: str, scale: str, **changed: Any) -> Iterator[Audited]:
    """A point's audits, one a seed; `changed` are fields of the setting."""
    size = SIZES[scale][model]
    runs, canaries = size.of(series.adversary, changed.get("periodicity", 1))
    for seed in range(size.seeds):
        setting = setting_of(
            model,
            adversary=series.adversary.name,
            **dataclasses.asdict(series.adversary),
            insertions=size.insertions,
            seed=seed,
            canaries=canaries,
            **{"noise_multiplier": size.noise_multiplier, "batch_size": size.batch_size, **changed},
        )
        yield Audited(panel, series.label, x, setting, runs)


def _sweep(name: str, title: str, found: Iterator[Audited], draw: Draw, axis: Axis | None = None) -> Sweep:
    """The sweep of audits."""
    return Sweep(name, title, tuple(audit_cell(one) for one in found), draw, axis)


def _by_clipping_norm(name: str, model: str, scale: str) -> Sweep:
    """Figures 1a and 1b."""
    label = task(model).label
    found = (
        audited
        for series in (GC_R, L)
        for norm in (1.0, 2.0, 4.0)
        for audited in audits(label, series, norm, model, scale, clipping_norm=norm)
    )
    return _sweep(name, f"GC-R and L on the {label}, k = 1", found, _epsilon, NORM)


def _fcnn(name: str, title: str, every: tuple[Series, ...], scale: str) -> Sweep:
    """Figures 1c, 4 and 7."""
    found = (
        audited
        for rate in (0.1, 0.01)
        for series in every
        for audited in audits(f"learning rate {rate:g}", series, 1, "fcnn", scale, learning_rate=rate)
    )
    return _sweep(name, title, found, _epsilon)


def _periodic(name: str, k: int, scale: str) -> Sweep:
    """Figures 2a and 2b."""
    found = (
        audited
        for model in ("convnet", "resnet18")
        for series in (GC_R, L)
        for audited in audits(task(model).label, series, k, model, scale, periodicity=k)
    )
    return _sweep(name, f"GC-R and L at k = {k}", found, _epsilon)


def _figure_5(scale: str) -> Sweep:
    found = (
        audited
        for model in ("convnet", "resnet18")
        for series in (GC_R, NOISELESS_PER_STEP)
        for k in (1, 5)
        for audited in audits(task(model).label, series, k, model, scale, periodicity=k)
    )
    title = "GC-S and GC-R on over-parameterised models"
    return _sweep("figure_5", title, found, _epsilon, PERIODICITY)


def _figure_6a(scale: str) -> Sweep:
    found = audits("ConvNet", GC_R, 5, "convnet", scale, periodicity=5)
    return _sweep("figure_6a", "GC-R's trade-off curve on the ConvNet, k = 5", found, _trade_off)


def _figure_8(scale: str) -> Sweep:
    """30 runs a model, fewer at scales that cannot train them."""
    asked = []
    for model in ("fcnn", "convnet", "resnet18"):
        (audited, *_) = audits("", L, 1, model, scale)
        asked.append((audited.setting, min(NORM_RUNS[scale], audited.runs)))
    cells = tuple(norms_cell(*one) for one in asked)
    draw = functools.partial(_norms, asked=asked)
    return Sweep("figure_8", "L's canary before clipping", cells, draw, Axis("step", "t"))


def _figure_11(scale: str) -> Sweep:
    found = (
        audited
        for k in (1, 5, 25)
        for audited in audits("ConvNet", GC_R.called(f"k = {k}"), k, "convnet", scale, periodicity=k)
    )
    return _sweep("figure_11", "Privacy profiles of GC-R on the ConvNet", found, _profile)


def _figure_12(scale: str) -> Sweep:
    found = (
        audited
        for name, unknown in (("known", False), ("unknown", True))
        for audited in audits(
            "ConvNet", GC_R.called(name), 1, "convnet", scale, unknown_initialisation=unknown
        )
    )
    title = "GC-R on the ConvNet where the initialisation is unknown"
    return _sweep("figure_12", title, found, _epsilon)


def _figure_13(scale: str) -> Sweep:
    found = (
        audited
        for model in ("mobilenet_head", "convnet")
        for audited in audits("CIFAR-10", GC_R.called(task(model).label), 1, model, scale)
    )
    title = "GC-R on a pretrained network's head and on a network trained whole"
    return _sweep("figure_13", title, found, _epsilon)


def _crafted_landscape(grid: Grid) -> Sweep:
    """Figures 3a, 3b, 6b, 10 and 14, and Algorithm 6."""
    draw = functools.partial(_landscape, grid=grid)
    return Sweep("landscape", "The crafted loss landscape", (landscape_cell(grid),), draw)


def _grid(scale: str) -> Grid:
    """Of Figures 3a, 3b, 6b, 10 and 14."""
    if scale == "smoke":
        return Grid((1.0, 4.0), (1, 4), 5, 200)
    return Grid(tuple(map(float, range(1, 9))), (1, 2, 4, 8, 16), 25, 5000)


def _epsilon(sweep: Sweep, evidence: "Evidence") -> Drawn:
    from experiments.hidden_state import figures  # matplotlib, which work on cells does not need

    return figures.draw_epsilon(sweep, evidence)


def _trade_off(sweep: Sweep, evidence: "Evidence") -> Drawn:
    from experiments.hidden_state import figures

    return figures.draw_trade_off(sweep, evidence)


def _profile(sweep: Sweep, evidence: "Evidence") -> Drawn:
    from experiments.hidden_state import figures

    return figures.draw_profile(sweep, evidence)


def _norms(sweep: Sweep, evidence: "Evidence", asked: list[tuple[Setting, int]]) -> Drawn:
    from experiments.hidden_state import figures

    return figures.draw_norms(sweep, evidence, asked)


def _landscape(sweep: Sweep, evidence: "Evidence", grid: Grid) -> Drawn:
    from experiments.hidden_state import figures

    return figures.draw_landscape(sweep, evidence, grid)
