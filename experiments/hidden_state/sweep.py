"""The hidden-state paper's experiments as data: every figure that trains something, at three scales.

Three figures are in no paper: `proven` shows what fresh directions prove of the paper's models, and the two
`bracket` figures show audits of a convex model below its hidden-state bound.

    smoke    seconds a figure: a few runs of a few steps, to see that all is in its place
    laptop   at most an hour a figure on two cores: the FCNN in full, fewer runs of the image models, with
             256 canaries each where gradients are crafted; the ResNet is cut down to 4 insertions, small
             mini-batches and a noise multiplier at which the upper bound stays the paper's
    paper    5,000 runs a cell

The FCNN has five seeds, as the paper has for Figure 1c (one at `smoke`), at both of its learning rates
(Errata H2). T is the number of insertions times k (Errata H8).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from audit.adversaries.coordinates import GC_S_VARIANTS, GcR, GcS
from audit.adversaries.cosines import CotS
from audit.adversaries.fresh import SphereFields
from audit.adversaries.losses import Loss
from audit.adversaries.row import AdversaryFields
from audit.settings.adversaries import ADVERSARIES
from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.hidden_state.cells import landscape_cell, norms_cell
from experiments.hidden_state.landscape import Grid
from experiments.sweeps.sweep import Axis, PaperClaims, Statement, Sweep
from models.catalogue import task

SMOKE = "smoke"
SCALES = (SMOKE, "laptop", "paper")  # the smallest first
TITLES = {
    "figure_1a": "GC-R and L on the ConvNet, k = 1",
    "figure_1b": "GC-R and L on the ResNet18, k = 1",
    "figure_1c": "GC-R, GC-S and L on the FCNN",
    "figure_2a": "GC-R and L at k = 5",
    "figure_2b": "GC-R and L at k = 25",
    "figure_4": "Four ways to choose GC-S's dimension",
    "figure_5": "GC-S and GC-R on over-parameterised models",
    "figure_6a": "GC-R's trade-off curve on the ConvNet, k = 5",
    "figure_7": "GC-R, L and CotS on the FCNN",
    "figure_8": "L's canary before clipping",
    "figure_11": "Privacy profiles of GC-R on the ConvNet",
    "figure_12": "GC-R on the ConvNet where the initialisation is unknown",
    "figure_13": "GC-R on a pretrained network's head and on a network trained whole",
    "proven": "What is proven after so many trainings",
    "bracket_k": "Logistic regression: what k steps for each insertion hide",
    "bracket_steps": "Logistic regression: what a longer training leaks, k = 5",
    "landscape": "The crafted loss landscape",
}
AXES = {
    "figure_1a": Axis("clipping norm C", "C"),
    "figure_1b": Axis("clipping norm C", "C"),
    "figure_5": Axis("periodicity k", "k"),
    "figure_8": Axis("step", "t"),
    "bracket_k": Axis("periodicity k", "k"),
    "bracket_steps": Axis("training steps T", "T"),
}


class SeveralCanaries(NamedTuple):
    """Audits with several canaries in each run: how many, and a cell's number of runs by periodicity."""

    canaries: int
    runs: dict[int, int]


class Size(NamedTuple):
    """How much of a model is trained at a scale.

    Attributes:
      runs: A cell's number of runs by periodicity, with one canary in each.
      seeds: How many seeds.
      insertions: How often a run inserts the canary.
      batch_size: The size of mini-batches.
      noise_multiplier: The noise multiplier sigma.
      several_canaries: Several canaries in each run where gradients lie along coordinates; None: one.
      fresh_runs: A cell's number of runs by periodicity where directions are fresh; each run has as many
        directions as the model takes.
    """

    runs: dict[int, int]
    seeds: int
    insertions: int
    batch_size: int
    noise_multiplier: float = 4.0
    several_canaries: SeveralCanaries | None = None
    fresh_runs: dict[int, int] = {}  # noqa: RUF012, never written to

    def choose_runs(self, adversary: AdversaryFields, periodicity: int) -> tuple[int, int | str]:
        """Returns the number of runs of a cell and of canaries in each run."""
        if isinstance(adversary, SphereFields):
            return self.fresh_runs[periodicity], AUTO
        if self.several_canaries is not None and ADVERSARIES[adversary.name].biased:
            return self.several_canaries.runs[periodicity], self.several_canaries.canaries
        return self.runs[periodicity], 1


class Series(NamedTuple):
    """A series of a figure: its label there, and the adversary."""

    label: str
    adversary: AdversaryFields


_ALL_RUNS = {1: 5000, 5: 5000, 25: 5000}
_PERIODICITIES = (1, 2, 5, 10, 25, 50)
SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "fcnn": Size({1: 40}, seeds=1, insertions=4, batch_size=20, fresh_runs={1: 4}),
        "wide_fcnn": Size(
            {},
            1,
            insertions=4,
            batch_size=20,
            several_canaries=SeveralCanaries(8, {1: 8}),
            fresh_runs={1: 2},
        ),
        "convnet": Size(
            {1: 4, 5: 4, 25: 4},
            seeds=1,
            insertions=2,
            batch_size=4,
            fresh_runs={1: 1, 5: 1, 25: 1},
        ),
        "resnet18": Size({1: 2, 5: 2, 25: 2}, seeds=1, insertions=1, batch_size=2),
        "mobilenet_head": Size({1: 4}, seeds=1, insertions=2, batch_size=4),
        "logistic": Size(
            {},
            seeds=1,
            insertions=2,
            batch_size=4,
            several_canaries=SeveralCanaries(8, dict.fromkeys(_PERIODICITIES, 8)),
            fresh_runs=dict.fromkeys(_PERIODICITIES, 1),
        ),
    },
    "laptop": {
        "fcnn": Size(_ALL_RUNS, seeds=5, insertions=250, batch_size=400, fresh_runs={1: 5000}),
        "wide_fcnn": Size(
            {},
            seeds=1,
            insertions=250,
            batch_size=400,
            several_canaries=SeveralCanaries(64, {1: 400}),
            fresh_runs={1: 400},
        ),
        "convnet": Size(
            {1: 40, 5: 16, 25: 4},
            seeds=1,
            insertions=250,
            batch_size=128,
            several_canaries=SeveralCanaries(256, {1: 60, 5: 24, 25: 12}),
            fresh_runs={1: 10, 5: 10, 25: 3},
        ),
        "resnet18": Size(
            {1: 8, 5: 6, 25: 4},
            seeds=1,
            insertions=4,
            batch_size=8,
            noise_multiplier=0.506,
            several_canaries=SeveralCanaries(256, {1: 16, 5: 8, 25: 8}),
        ),
        "mobilenet_head": Size(
            {},
            seeds=1,
            insertions=250,
            batch_size=128,
            several_canaries=SeveralCanaries(256, {1: 100}),
        ),
        "logistic": Size(
            {},
            seeds=1,
            insertions=250,
            batch_size=16,
            several_canaries=SeveralCanaries(128, dict.fromkeys(_PERIODICITIES, 120)),
            fresh_runs=dict.fromkeys(_PERIODICITIES, 40),
        ),
    },
    "paper": {
        "fcnn": Size(_ALL_RUNS, seeds=5, insertions=250, batch_size=400, fresh_runs=_ALL_RUNS),
        "wide_fcnn": Size(
            {},
            seeds=1,
            insertions=250,
            batch_size=400,
            several_canaries=SeveralCanaries(64, {1: 5000}),
            fresh_runs=_ALL_RUNS,
        ),
        "convnet": Size(
            _ALL_RUNS,
            seeds=1,
            insertions=250,
            batch_size=128,
            fresh_runs={1: 60, 5: 60, 25: 60},
        ),
        "resnet18": Size(_ALL_RUNS, seeds=1, insertions=250, batch_size=128),
        "mobilenet_head": Size(_ALL_RUNS, seeds=1, insertions=250, batch_size=128),
        "logistic": Size(
            {},
            seeds=1,
            insertions=250,
            batch_size=128,
            several_canaries=SeveralCanaries(128, dict.fromkeys(_PERIODICITIES, 5000)),
            fresh_runs=dict.fromkeys(_PERIODICITIES, 5000),
        ),
    },
}
BRACKETED_PERIODICITIES = {
    "smoke": (1, 5),
    "laptop": _PERIODICITIES,
    "paper": _PERIODICITIES,
}
_LENGTHS = (25, 50, 100, 250, 500, 1000)
INSERTIONS = {"smoke": (1, 2), "laptop": _LENGTHS, "paper": _LENGTHS}  # at k = 5
NORM_RUNS = {
    "smoke": 2,
    "laptop": 30,
    "paper": 30,
}  # Figure 8's runs for each model, at most
_WHOLE_GRID = Grid(
    noise_multipliers=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0),
    batch_sizes=(1, 2, 4, 8, 16),
    steps=25,
    runs=5000,
)
GRIDS = {
    "smoke": Grid(noise_multipliers=(1.0, 4.0), batch_sizes=(1, 4), steps=5, runs=200),
    "laptop": _WHOLE_GRID,
    "paper": _WHOLE_GRID,
}

L = Series("L", Loss())
GC_R = Series("GC-R", GcR())
COTS = Series("CotS", CotS())
GC_S = tuple(
    Series(f"GC-S, {variant.replace('_', ' ')}", GcS(variant)) for variant in GC_S_VARIANTS
)
NOISELESS_PER_STEP = GC_S[0]
FRESH = Series("fresh directions", SphereFields())
_IMAGE_MODELS = ("convnet", "resnet18")


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns every sweep of a scale, by name."""
    cells_by_name = {
        "figure_1a": _vary_clipping_norm(scale, "convnet"),
        "figure_1b": _vary_clipping_norm(scale, "resnet18"),
        "figure_1c": _audit_fcnn(scale, L, GC_R, NOISELESS_PER_STEP),
        "figure_2a": _audit_image_models(scale, (GC_R, L), 5),
        "figure_2b": _audit_image_models(scale, (GC_R, L), 25),
        "figure_4": _audit_fcnn(scale, L, GC_R, *GC_S),
        "figure_5": _audit_image_models(scale, (GC_R, NOISELESS_PER_STEP), 1, 5),
        "figure_6a": _audit_with_gc_r(scale, "GC-R", x=5, periodicity=5),
        "figure_7": _audit_fcnn(scale, L, GC_R, COTS),
        "figure_8": _norms_cells(scale),
        "figure_11": _vary_periodicity(scale),
        "figure_12": _vary_knowledge(scale),
        "figure_13": _compare_with_pretrained(scale),
        "proven": _proven_cells(scale),
        "bracket_k": _bracket_k_cells(scale),
        "bracket_steps": _bracket_steps_cells(scale),
        "landscape": [landscape_cell(GRIDS[scale])],
    }
    every = {}
    for name, cells in cells_by_name.items():
        every[name] = Sweep(name, TITLES[name], tuple(cells), axis=AXES.get(name))
    return every


def audits(
    scale: str, panel: str, series: Series, x: float, model: str, **fields: Any
) -> Iterator[Audited]:
    """Yields a point's audits, one for each seed; `fields` are those of the setting that are not a size's."""
    size = SIZES[scale][model]
    runs, canaries = size.choose_runs(series.adversary, fields.get("periodicity", 1))
    values = {
        "adversary": series.adversary.name,
        **dataclasses.asdict(series.adversary),
        "canaries": canaries,
        "insertions": size.insertions,
        "noise_multiplier": size.noise_multiplier,
        "batch_size": size.batch_size,
        **fields,
    }
    for seed in range(size.seeds):
        yield Audited(panel, series.label, x, setting_of(model, seed=seed, **values), runs)


def _audit_cells(
    scale: str, panel: str, series: Series, x: float, model: str, **fields: Any
) -> list[Cell]:
    """Returns the cells of a point's audits."""
    return [audit_cell(audited) for audited in audits(scale, panel, series, x, model, **fields)]


def _vary_clipping_norm(scale: str, model: str) -> list[Cell]:
    """Returns the cells of Figures 1a and 1b: three clipping norms."""
    cells = []
    for series in (GC_R, L):
        for norm in (1.0, 2.0, 4.0):
            cells += _audit_cells(scale, task(model).label, series, norm, model, clipping_norm=norm)
    return cells


def _audit_fcnn(scale: str, *every: Series) -> list[Cell]:
    """Returns the cells of some series on the FCNN, with a panel for each learning rate."""
    cells = []
    for rate in (0.1, 0.01):
        for series in every:
            cells += _audit_cells(
                scale, f"learning rate {rate:g}", series, 1, "fcnn", learning_rate=rate
            )
    return cells


def _audit_image_models(scale: str, every: tuple[Series, ...], *periodicities: int) -> list[Cell]:
    """Returns the cells of some series on the image models, with a panel for each model."""
    cells = []
    for model, series, k in itertools.product(_IMAGE_MODELS, every, periodicities):
        cells += _audit_cells(scale, task(model).label, series, k, model, periodicity=k)
    return cells


def _audit_with_gc_r(
    scale: str,
    label: str,
    panel: str = "ConvNet",
    model: str = "convnet",
    x: float = 1,
    **fields: Any,
) -> list[Cell]:
    """Returns the cells of a series of GC-R that the figure calls by a label of its own."""
    return _audit_cells(scale, panel, Series(label, GcR()), x, model, **fields)


def _vary_periodicity(scale: str) -> list[Cell]:
    """Returns the cells of Figure 11: a series for each periodicity."""
    cells = []
    for k in (1, 5, 25):
        cells += _audit_with_gc_r(scale, f"k = {k}", x=k, periodicity=k)
    return cells


def _vary_knowledge(scale: str) -> list[Cell]:
    """Returns the cells of Figure 12: an adversary that knows theta_0, or does not."""
    known = _audit_with_gc_r(scale, "known", unknown_initialisation=False)
    unknown = _audit_with_gc_r(scale, "unknown", unknown_initialisation=True)
    return [*known, *unknown]


def _compare_with_pretrained(scale: str) -> list[Cell]:
    """Returns the cells of Figure 13: a pretrained network's head, and a network trained whole."""
    cells = []
    for model in ("mobilenet_head", "convnet"):
        cells += _audit_with_gc_r(scale, task(model).label, "CIFAR-10", model)
    return cells


def _norms_cells(scale: str) -> list[Cell]:
    """Returns the cells of Figure 8: 30 runs for each model, fewer at scales that cannot train so many."""
    cells = []
    for model in ("fcnn", *_IMAGE_MODELS):
        first = next(audits(scale, "", L, 1, model))
        runs = min(NORM_RUNS[scale], first.runs)
        cells.append(norms_cell(first._replace(runs=runs)))
    return cells


def _proven_cells(scale: str) -> list[Cell]:
    """Returns the cells of fresh directions beside GC-R, of one seed, with a panel for each model and k."""
    panels = [
        (task("wide_fcnn").label, "wide_fcnn", 1),
        (task("fcnn").label, "fcnn", 1),
    ]
    for k in (1, 5, 25):
        panels.append((f"{task('convnet').label}, k = {k}", "convnet", k))
    cells = []
    for panel, model, k in panels:
        for series in (FRESH, GC_R):
            first_seed = next(audits(scale, panel, series, k, model, periodicity=k))
            cells.append(audit_cell(first_seed))
    return cells


def _bracket_k_cells(scale: str) -> list[Cell]:
    """Returns the cells over the periodicity."""
    fields_at = {k: {"periodicity": k} for k in BRACKETED_PERIODICITIES[scale]}
    return _bracket_cells(scale, fields_at)


def _bracket_steps_cells(scale: str) -> list[Cell]:
    """Returns the cells over the number of steps, at k = 5."""
    k = 5
    fields_at = {k * count: {"periodicity": k, "insertions": count} for count in INSERTIONS[scale]}
    return _bracket_cells(scale, fields_at)


def _bracket_cells(scale: str, fields_at: Mapping[int, Mapping[str, Any]]) -> list[Cell]:
    """Returns the cells of coordinates and fresh directions on logistic regression.

    There is a panel for each weight decay.

    Args:
      scale: The scale.
      fields_at: The fields of a setting by its place x.
    """
    cells = []
    for decay in (0.0, 1e-3, 1e-2):
        for x, fields in fields_at.items():
            for series in (NOISELESS_PER_STEP, FRESH):
                panel = f"weight decay {decay:g}"
                cells += _audit_cells(
                    scale, panel, series, x, "logistic", weight_decay=decay, **fields
                )
    return cells


CLAIMS: PaperClaims = {  # the paper's words for its figures' series
    ("figure_1a", "GC-R", None): Statement("tight", "5.2"),
    ("figure_1a", "L", None): Statement("not tight", "5.2"),
    ("figure_1b", "GC-R", None): Statement("tight", "5.2"),
    ("figure_1b", "L", None): Statement("not tight", "5.2"),
    ("figure_1c", "L", None): Statement("below GC-R", "5.2"),
    ("figure_1c", "GC-R", None): Statement("not tight", "5.2"),
    ("figure_1c", "GC-S, noiseless per step", None): Statement("nearly tight", "5.2"),
    ("figure_2a", "GC-R", None): Statement("not tight", "5.3"),
    ("figure_2a", "L", None): Statement("far below GC-R", "5.3"),
    ("figure_2b", "GC-R", None): Statement("below k = 5", "5.3"),
    ("figure_2b", "L", None): Statement("far below GC-R", "5.3"),
    ("figure_4", "GC-S, noiseless per step", None): Statement("best of the 4", "Appendix C"),
    ("figure_5", "GC-R", 1): Statement("tight", "5.2"),
    ("figure_5", "GC-R", 5): Statement("not tight", "5.3"),
    ("figure_5", "GC-S, noiseless per step", None): Statement("as GC-R", "Appendix C"),
    ("figure_6a", "GC-R", None): Statement("Gaussian curve", "Appendix E"),
    ("figure_7", "GC-R", None): Statement("above CotS", "Appendix G"),
    ("figure_7", "CotS", None): Statement("above L", "Appendix G"),
    ("figure_11", "k = 1", None): Statement("tight", "Appendix G"),
    ("figure_11", "k = 5", None): Statement("not tight", "Appendix G"),
    ("figure_11", "k = 25", None): Statement("not tight", "Appendix G"),
    ("figure_12", "unknown", None): Statement("as known", "Appendix G"),
    ("figure_13", "MobileNetV2's head", None): Statement("tight (AlexNet)", "Appendix G"),
    ("landscape", "B = 16", None): Statement("tight", "Appendix G"),
}
