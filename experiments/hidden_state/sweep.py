"""The hidden-state paper's experiments as data: every figure that trains something, at three scales.

    smoke    seconds a figure: a few runs of a few steps, to see that all is in its place
    laptop   at most an hour a figure on two cores: the FCNN in full, fewer runs of the image models; the
             ResNet is cut down to 10 insertions, small mini-batches and a noise multiplier at which the
             upper bound stays the paper's
    paper    5,000 runs a cell

Five seeds for the FCNN, as the paper has for Figure 1c (one at `smoke`), at both of its learning rates
(slip 2).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from audit.errors import require
from experiments.hidden_state.landscape_cells import Grid as Landscape
from experiments.settings.setting import Setting

SCALES = ("smoke", "laptop", "paper")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One audit and its place in a figure: the panel, the series in it, where it stands on the x axis."""

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


@dataclasses.dataclass(frozen=True)
class Norms:
    """The gradient norms of L's canary on a model over runs with canaries of their own (Figure 8)."""

    setting: Setting
    runs: int


AnyCell = Cell | Norms | Landscape


class Sweep(NamedTuple):
    """A figure's cells; kind says how it is drawn: by "epsilon" along x or side by side, "trade_off",
    "profile", "norms" or "landscape"."""

    name: str
    title: str
    kind: str
    xlabel: str
    cells: tuple[Cell, ...] | tuple[Norms, ...] | tuple[Landscape, ...]


class Size(NamedTuple):
    """How much is trained of a model: runs a cell at each periodicity, seeds, insertions, batch size,
    noise multiplier."""

    runs: dict[int, int]
    seeds: int
    insertions: int
    batch_size: int
    noise_multiplier: float = 4.0


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
        "convnet": Size({1: 100, 5: 40, 25: 16}, 1, 250, 128),
        "resnet18": Size({1: 20, 5: 20, 25: 6}, 1, 10, 8, 0.8),
        "mobilenet_head": Size({1: 2000}, 1, 250, 128),
    },
    "paper": {
        "fcnn": Size(_FULL, 5, 250, 400),
        "convnet": Size(_FULL, 1, 250, 128),
        "resnet18": Size(_FULL, 1, 250, 128),
        "mobilenet_head": Size(_FULL, 1, 250, 128),
    },
}
# Of a model-step on two cores of a Xeon: what it takes whatever the mini-batch, and for an example more.
_STEP_SECONDS = {
    "fcnn": (1e-6, 1.25e-8),
    "convnet": (6e-4, 5e-5),
    "resnet18": (0.12, 0.06),
    "mobilenet_head": (2e-5, 8e-7),
}
_LAW_SECONDS = 0.015  # of the landscape's cells, a step
_CLIPPING = {"fcnn": "book_keeping", "mobilenet_head": "book_keeping"}
_NAMES = {
    "convnet": "ConvNet",
    "resnet18": "ResNet18",
    "fcnn": "FCNN",
    "mobilenet_head": "MobileNetV2's head",
}
_GC_S = {
    "GC-S, noiseless per step": (False, True),
    "GC-S, noisy per step": (True, True),
    "GC-S, noiseless final model": (False, False),
    "GC-S, noisy final model": (True, False),
}


def seconds(cell: AnyCell) -> float:
    """What a cell takes on two cores, as measured, compilation apart."""
    if isinstance(cell, Landscape):
        return _LAW_SECONDS * len(cell.noise_multipliers) * len(cell.batch_sizes) * cell.steps
    setting = cell.setting
    fixed, per_example = _STEP_SECONDS[setting.model]
    return cell.runs * setting.steps * (fixed + per_example * setting.batch_size)


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    rates = (0.1, 0.01)
    fcnn_names = ("L", "GC-R", "GC-S, noiseless per step")
    found = [
        _by_clipping_norm("figure_1a", "convnet", scale),
        _by_clipping_norm("figure_1b", "resnet18", scale),
        _fcnn("figure_1c", "GC-R, GC-S and L on the FCNN", fcnn_names, rates, scale),
        _periodic("figure_2a", 5, scale),
        _periodic("figure_2b", 25, scale),
        _fcnn("figure_4", "Four ways to choose GC-S's dimension", ("L", "GC-R", *_GC_S), rates, scale),
        Sweep(
            "figure_5",
            "GC-S and GC-R on over-parameterised models",
            "epsilon",
            "periodicity k",
            tuple(
                cell
                for model in ("convnet", "resnet18")
                for name in ("GC-R", "GC-S, noiseless per step")
                for k in (1, 5)
                for cell in _cells(_NAMES[model], name, k, model, scale, periodicity=k)
            ),
        ),
        Sweep(
            "figure_6a",
            "GC-R's trade-off curve on the ConvNet, k = 5",
            "trade_off",
            "",
            tuple(_cells("ConvNet", "GC-R", 5, "convnet", scale, periodicity=5)),
        ),
        _fcnn("figure_7", "GC-R, L and CotS on the FCNN", ("L", "GC-R", "CotS"), rates, scale),
        Sweep("figure_8", "L's canary before clipping", "norms", "step", tuple(_norms(scale))),
        Sweep(
            "figure_11",
            "Privacy profiles of GC-R on the ConvNet",
            "profile",
            "",
            tuple(
                cell
                for k in (1, 5, 25)
                for cell in _cells("ConvNet", f"k = {k}", k, "convnet", scale, periodicity=k)
            ),
        ),
        Sweep(
            "figure_12",
            "GC-R on the ConvNet where the initialisation is unknown",
            "epsilon",
            "",
            tuple(
                cell
                for name, unknown in (("known", False), ("unknown", True))
                for cell in _cells("ConvNet", name, 1, "convnet", scale, unknown_initialisation=unknown)
            ),
        ),
        Sweep(
            "figure_13",
            "GC-R on a pretrained network's head and on a network trained whole",
            "epsilon",
            "",
            tuple(
                cell
                for model in ("mobilenet_head", "convnet")
                for cell in _cells("CIFAR-10", _NAMES[model], 1, model, scale)
            ),
        ),
        Sweep("landscape", "The crafted loss landscape", "landscape", "", (_landscape(scale),)),
    ]
    return {sweep.name: sweep for sweep in found}


def chosen(scale: str, names: list[str]) -> list[Sweep]:
    """The sweeps of a scale by name, or all of them; raises InputError, by the flags' names, for others."""
    require(scale in SCALES, f"--scale={scale} is unknown: choose one of {', '.join(SCALES)}")
    every = sweeps(scale)
    if names == ["all"]:
        return list(every.values())
    known = ", ".join(every)
    require(names, f"--name is missing: give all, or some of {known}")
    for name in names:
        require(name in every, f"--name={name} is unknown: give all, or some of {known}")
    return [every[name] for name in dict.fromkeys(names)]


def _cells(panel: str, series: str, x: float, model: str, scale: str, **changed: Any) -> Iterator[Cell]:
    """A point's cells, one a seed."""
    size = SIZES[scale][model]
    adversary = series if series in ("L", "CotS") or series in _GC_S else "GC-R"
    noisy, per_step = _GC_S.get(adversary, (False, True))
    code = {"L": "loss", "CotS": "cots", "GC-R": "gc_r"}.get(adversary, "gc_s")
    base = Setting(
        model=model,
        adversary=code,
        gc_s_noisy=noisy,
        gc_s_per_step=per_step,
        learning_rate=0.1 if model == "fcnn" else 0.01,
        noise_multiplier=size.noise_multiplier,
        batch_size=size.batch_size,
        clipping=_CLIPPING.get(model, "unfolded"),
    )
    named = dataclasses.replace(base, **changed)
    for seed in range(size.seeds):
        setting = dataclasses.replace(named, steps=size.insertions * named.periodicity, seed=seed)
        yield Cell(panel, series, x, setting, size.runs[named.periodicity])


def _by_clipping_norm(name: str, model: str, scale: str) -> Sweep:
    """Figures 1a and 1b."""
    cells = tuple(
        cell
        for series in ("GC-R", "L")
        for norm in (1.0, 2.0, 4.0)
        for cell in _cells(_NAMES[model], series, norm, model, scale, clipping_norm=norm)
    )
    return Sweep(name, f"GC-R and L on the {_NAMES[model]}, k = 1", "epsilon", "clipping norm C", cells)


def _fcnn(name: str, title: str, series: tuple[str, ...], rates: tuple[float, ...], scale: str) -> Sweep:
    """Figures 1c, 4 and 7."""
    cells = tuple(
        cell
        for rate in rates
        for one in series
        for cell in _cells(f"learning rate {rate:g}", one, 1, "fcnn", scale, learning_rate=rate)
    )
    return Sweep(name, title, "epsilon", "", cells)


def _periodic(name: str, k: int, scale: str) -> Sweep:
    """Figures 2a and 2b."""
    cells = tuple(
        cell
        for model in ("convnet", "resnet18")
        for series in ("GC-R", "L")
        for cell in _cells(_NAMES[model], series, k, model, scale, periodicity=k)
    )
    return Sweep(name, f"GC-R and L at k = {k}", "epsilon", "", cells)


def _norms(scale: str) -> Iterator[Norms]:
    """Figure 8: 30 runs a model, fewer at scales that cannot train them."""
    runs = {"smoke": 2, "laptop": 30, "paper": 30}[scale]
    for model in ("fcnn", "convnet", "resnet18"):
        (cell, *_) = _cells("", "L", 1, model, scale)
        yield Norms(cell.setting, min(runs, cell.runs))


def _landscape(scale: str) -> Landscape:
    """Figures 3a, 3b, 6b, 10 and 14, and Algorithm 6."""
    if scale == "smoke":
        return Landscape((1.0, 4.0), (1, 4), 5, 200)
    return Landscape(tuple(map(float, range(1, 9))), (1, 2, 4, 8, 16), 25, 5000)
