"""Cells for those figures of the hidden-state paper that require training, at three scales.

Six figures are not in the paper: `proven`, `matrix`, and four named `bracket...`.

    smoke    seconds per figure: a few runs of a few steps, to test the code
    laptop   at most an hour per figure on two cores: the full FCNN, and fewer runs of the image models, with
             256 canaries in each run with crafted gradients, and only 4 insertions for the ResNet
    paper    5,000 runs for each cell of the paper's figures; other cells are the same as at `laptop`

The FCNN uses both learning rates (Errata H2). A run has T = insertions * k steps (Errata H8).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.adversaries.biased import GC_S_VARIANTS, GcR, GcS
from audit.adversaries.directions import CotS
from audit.adversaries.examples import Loss
from audit.adversaries.sphere import SphereFields
from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.hidden_state import correlated
from experiments.hidden_state.correlated import PERIODICITIES
from experiments.hidden_state.measured import expansion_cell, norms_cell
from experiments.sweeps.sweep import Axis, Sweep
from models.catalogue import task

SMOKE = "smoke"
Runs = Mapping[int, int]  # periodicity k -> number of runs


class Size(NamedTuple):
    """How a model is trained and audited at one scale.

    Run counts are keyed by the audited periodicities k.

    Attributes:
      runs: The number of runs with one canary each.
      seeds: The number of seeds for each setting.
      insertions: The number of insertions in a run.
      canaries: The number of canaries in each of the `coordinate_runs`.
      coordinate_runs: The number of runs with canaries along coordinates; if this is empty, we use `runs`.
      fresh_runs: The number of runs with fresh directions.
    """

    runs: Runs = {}
    seeds: int = 1
    insertions: int = 250
    batch_size: int = 128
    noise_multiplier: float = 4.0
    canaries: int = 1
    coordinate_runs: Runs = {}
    fresh_runs: Runs = {}

    def choose_runs(self, adversary: AdversaryFields) -> tuple[Runs, int | str]:
        """Returns the run counts for an adversary, and the number of canaries in each run.

        This number is AUTO for fresh directions: the library chooses it for the model's size. It is
        `canaries` for canaries along coordinates (`biased`) if `coordinate_runs` is not empty. Else it is 1.
        """
        if isinstance(adversary, SphereFields):  # fresh directions
            return self.fresh_runs, AUTO
        if adversary.biased and self.coordinate_runs:
            return self.coordinate_runs, self.canaries
        return self.runs, 1


Sizes = Mapping[str, Size]  # model -> size


def _at_each(runs: int) -> Runs:
    """Returns run counts that are the same for all PERIODICITIES."""
    return dict.fromkeys(PERIODICITIES, runs)


_ALL_RUNS = _at_each(5000)
_TINY = Size(_at_each(4), insertions=2, batch_size=4, fresh_runs=_at_each(1))
_LAPTOP = {
    "fcnn": Size(_ALL_RUNS, seeds=5, batch_size=400, fresh_runs=_ALL_RUNS),
    "wide_fcnn": Size(batch_size=400, canaries=64, coordinate_runs={1: 400}, fresh_runs={1: 400}),
    "convnet": Size(
        {1: 40, 5: 16, 25: 4},
        canaries=256,
        coordinate_runs={1: 60, 5: 24, 25: 12},
        fresh_runs={1: 10, 5: 10, 25: 3},
    ),
    "resnet18": Size(
        {1: 8, 5: 6, 25: 4},
        insertions=4,
        batch_size=8,
        noise_multiplier=0.506,  # same mu as 250 insertions at multiplier 4.0
        canaries=256,
        coordinate_runs={1: 16, 5: 8, 25: 8},
    ),
    "mobilenet_head": Size(canaries=256, coordinate_runs={1: 100}),
    "logistic": Size(
        batch_size=16, canaries=128, coordinate_runs=_at_each(120), fresh_runs=_at_each(40)
    ),
}
_PAPER = {
    "convnet": Size(_ALL_RUNS, fresh_runs=_at_each(60)),
    "resnet18": Size(_ALL_RUNS),
    "mobilenet_head": Size(_ALL_RUNS),
}
_SMOKE = {
    "fcnn": Size({1: 40}, insertions=4, batch_size=20, fresh_runs={1: 4}),
    "wide_fcnn": Size(
        insertions=4, batch_size=20, canaries=8, coordinate_runs={1: 8}, fresh_runs={1: 2}
    ),
    "convnet": _TINY,
    "resnet18": Size(_at_each(2), insertions=1, batch_size=2),
    "mobilenet_head": _TINY,
    "logistic": _TINY._replace(canaries=8, coordinate_runs={1: 8, 5: 8}, fresh_runs={1: 1, 5: 1}),
}
SIZES = {SMOKE: _SMOKE, "laptop": _LAPTOP, "paper": _LAPTOP | _PAPER}
SCALES = tuple(SIZES)  # the smallest first

_AUDITED = {1: 60, 2: 60, 5: 40, 10: 30, 25: 20}
_SMALL = Size({**_at_each(2000), 25: 1000}, batch_size=400, fresh_runs={**_at_each(1000), 25: 500})
# Audits along coordinates need at least 8 runs, which would take too long at k = 25.
_SLOW = Size(canaries=256, coordinate_runs={1: 10, 5: 8}, fresh_runs={1: 6, 5: 4, 25: 4})
_NETWORKS = {  # in the sweeps `bracket` and `bracket_rates`
    "fcnn": _SMALL,
    "tanh_fcnn": _SMALL,
    "gelu_fcnn": _SMALL,
    "wide_fcnn": Size(
        batch_size=400,
        canaries=64,
        coordinate_runs={1: 100, 2: 100, 5: 60, 10: 40, 25: 20},
        fresh_runs=_AUDITED,
    ),
    "convnet": _SLOW,
    "gelu_convnet": _SLOW,
    "mobilenet_softmax_head": Size(canaries=256, coordinate_runs=_AUDITED, fresh_runs=_at_each(20)),
}
_CORRELATED = {  # in the sweep `matrix`
    "wide_fcnn": Size(
        batch_size=400, canaries=64, coordinate_runs=_at_each(60), fresh_runs=_at_each(12)
    ),
    "convnet": Size(canaries=256, coordinate_runs=_at_each(8), fresh_runs={1: 3, 5: 3, 25: 3}),
}
# At scale `smoke`.
_TINY_CORRELATED = Size(
    batch_size=20, canaries=64, coordinate_runs={1: 8, 5: 8}, fresh_runs={1: 2, 5: 2}
)
_TINY_NETWORK = Size({1: 40, 5: 40}, insertions=2, batch_size=20, fresh_runs={1: 4, 5: 4})


class Series(NamedTuple):
    """A series in a figure: its label in the legend, and its adversary's fields."""

    label: str
    adversary: AdversaryFields


class Lines(NamedTuple):
    """Series in a panel: audits of one training procedure at several values of a field.

    Attributes:
      model: The trained model.
      series: The audited series.
      at: The values of `field`, on the horizontal axis.
      field: The name of the setting's field that varies.
      panel: The panel's title; "" for the model's label.
      fields: A dict with other fields of the setting.
    """

    model: str
    series: Sequence[Series]
    at: Sequence[float] = (1,)
    field: str = "periodicity"
    panel: str = ""
    fields: Mapping[str, Any] = {}


class Figure(NamedTuple):
    """A figure of audits: the lines in its panels, its x axis, if any, and any sizes that replace SIZES."""

    name: str
    title: str
    lines: Sequence[Lines]
    axis: Axis | None = None
    sizes: Sizes | None = None
    has_one_seed: bool = False  # each line shows one audit as its number of runs grows


# The paper's adversaries insert a gradient. L inserts a mislabelled example's gradient. The others
# insert one along a random direction (CotS), a random coordinate (GC-R), or the coordinate that simulated
# training moves least (GC-S).
L = Series("L", Loss())
GC_R = Series("GC-R", GcR())
COTS = Series("CotS", CotS())
GC_S = [Series(f"GC-S, {name.replace('_', ' ')}", GcS(name)) for name in GC_S_VARIANTS]
FRESH = Series("fresh directions", SphereFields())
COORDINATE = Series("coordinate", GcS())
_BRACKET_SERIES = (FRESH, COORDINATE)
_IMAGE_MODELS = ("convnet", "resnet18")
_K_AXIS = Axis("periodicity k", "k")
_C_AXIS = Axis("clipping norm C", "C")
_CLIPPING_NORMS = (1.0, 2.0, 4.0)


def _on_fcnn(*series: Series) -> list[Lines]:
    """Returns lines for the FCNN, with a panel for each of the paper's two learning rates."""
    return [
        Lines("fcnn", series, panel=f"learning rate {rate:g}", fields={"learning_rate": rate})
        for rate in (0.1, 0.01)
    ]


def _on_logistic(at: Sequence[float], field: str, **fields: Any) -> list[Lines]:
    """Returns lines for logistic regression, with a panel for each weight decay.

    We audit along the coordinates that move least in simulated training (GC-S), and along fresh directions.
    `at` are the values of `field` on the horizontal axis; `fields` are other fields.
    """
    # The first variant of GC-S simulates training without noise.
    base = Lines("logistic", [GC_S[0], FRESH], at, field)
    return [
        base._replace(panel=f"weight decay {decay:g}", fields={**fields, "weight_decay": decay})
        for decay in (0.0, 1e-3, 1e-2)
    ]


def _with_correlated_noise(models: Iterable[str], steps: int) -> list[Lines]:
    """Returns lines for each way of correlating the noise across steps, with one panel per model.

    Each periodicity k has its own sigma and `Lines`: for each k, all models together have the same epsilon.
    """
    lines = []
    for model, (strategy, label) in itertools.product(models, correlated.STRATEGIES.items()):
        series = [
            Series(f"{label}, coordinates", COORDINATE.adversary),
            Series(f"{label}, fresh directions", FRESH.adversary),
        ]
        sigmas = correlated.NOISE_MULTIPLIERS[strategy]
        for k, sigma in zip(PERIODICITIES, sigmas, strict=True):
            fields = {"noise": strategy, "noise_multiplier": sigma, "steps": steps}
            lines.append(Lines(model, series, [k], fields=fields))
    return lines


def _over_rates(rates: Sequence[float]) -> list[Lines]:
    """Returns lines for the tanh FCNN at several learning rates, in two panels.

    Canaries are inserted every 5 or 25 steps, as in the paper's Figure 2.
    """
    base = Lines("tanh_fcnn", _BRACKET_SERIES, at=rates, field="learning_rate")
    return [base._replace(panel=f"tanh FCNN, k = {k}", fields={"periodicity": k}) for k in (5, 25)]


def _on_images(*series: Series, at: Sequence[float]) -> list[Lines]:
    """Returns lines for both image models at each periodicity in `at`."""
    return [Lines(model, series, at) for model in _IMAGE_MODELS]


_CONVNETS = [Lines("convnet", [Series(f"k = {k}", GcR())], [k]) for k in (1, 5, 25)]
FIGURES = [  # the figures that are the same at every scale
    Figure(
        "figure_1a",
        "GC-R and L on the ConvNet, k = 1",
        [Lines("convnet", [GC_R, L], _CLIPPING_NORMS, "clipping_norm")],
        _C_AXIS,
    ),
    Figure(
        "figure_1b",
        "GC-R and L on the ResNet18, k = 1",
        [Lines("resnet18", [GC_R, L], _CLIPPING_NORMS, "clipping_norm")],
        _C_AXIS,
    ),
    Figure("figure_1c", "GC-R, GC-S and L on the FCNN", _on_fcnn(L, GC_R, GC_S[0])),
    Figure("figure_2a", "GC-R and L at k = 5", _on_images(GC_R, L, at=[5])),
    Figure("figure_2b", "GC-R and L at k = 25", _on_images(GC_R, L, at=[25])),
    Figure("figure_4", "Four ways to choose GC-S's dimension", _on_fcnn(L, GC_R, *GC_S)),
    Figure(
        "figure_5",
        "GC-S and GC-R on over-parameterised models",
        _on_images(GC_R, GC_S[0], at=[1, 5]),
        _K_AXIS,
    ),
    Figure(
        "figure_6a", "GC-R's trade-off curve on the ConvNet, k = 5", [Lines("convnet", [GC_R], [5])]
    ),
    Figure("figure_7", "GC-R, L and CotS on the FCNN", _on_fcnn(L, GC_R, COTS)),
    Figure("figure_11", "Privacy profiles of GC-R on the ConvNet", _CONVNETS),
    Figure(
        "figure_12",
        "GC-R on the ConvNet with an unknown initialisation",
        [
            Lines("convnet", [Series("known", GcR())]),
            Lines("convnet", [Series("unknown", GcR())], fields={"unknown_initialisation": True}),
        ],
    ),
    Figure(
        "figure_13",
        "GC-R on a pretrained network's head and on a fully trained network",
        [
            Lines("mobilenet_head", [Series("MobileNetV2's head", GcR())], panel="CIFAR-10"),
            Lines("convnet", [Series("ConvNet", GcR())], panel="CIFAR-10"),
        ],
    ),
    Figure(
        "proven",
        "Lower bounds over training runs",
        [
            Lines("wide_fcnn", [FRESH, GC_R]),
            Lines("fcnn", [FRESH, GC_R]),
            *(Lines("convnet", [FRESH, GC_R], [k], panel=f"ConvNet, k = {k}") for k in (1, 5, 25)),
        ],
        has_one_seed=True,
    ),
    Figure(
        "bracket_k",
        "Logistic regression over periodicity k",
        _on_logistic(PERIODICITIES, "periodicity"),
        _K_AXIS,
    ),
]


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps for all figures at the given scale, as a dict keyed by name."""
    all_sweeps = {}
    for figure in [*FIGURES, *_list_scaled_figures(scale)]:
        sizes = figure.sizes or SIZES[scale]
        cells: list[Cell] = []
        for lines in figure.lines:
            size = sizes[lines.model]
            if figure.has_one_seed:
                size = size._replace(seeds=1)
            cells += _list_cells(lines, size)
        all_sweeps[figure.name] = Sweep(figure.name, figure.title, cells, figure.axis)
    all_sweeps["figure_8"] = _make_norms_sweep(scale)
    return all_sweeps


def _list_scaled_figures(scale: str) -> list[Figure]:
    """Returns four figures that are not in the paper, with fewer models or values of x at scale `smoke`.

    A bracket compares upper bounds with audits that use two kinds of canaries, inserted every k steps.
    `matrix` correlates noise across steps.
    """
    networks = _NETWORKS
    correlated_sizes = _CORRELATED
    correlated_steps = correlated.STEPS
    steps = [125, 250, 500, 1250, 2500, 5000]
    rates = [0.01, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0]
    if scale == SMOKE:
        networks = {"fcnn": _TINY_NETWORK, "tanh_fcnn": _TINY_NETWORK}
        correlated_sizes = {"wide_fcnn": _TINY_CORRELATED}
        correlated_steps = 10
        steps = [5, 10]
        rates = [0.1, 1.0]
    return [
        Figure(
            "bracket_steps",
            "Logistic regression over training steps, k = 5",
            _on_logistic(steps, "steps", periodicity=5),
            Axis("training steps T", "T"),
        ),
        Figure(
            "bracket",
            "Neural networks over periodicity k",
            # Networks would take too long to train at k = 50.
            [Lines(model, _BRACKET_SERIES, PERIODICITIES[:-1]) for model in networks],
            _K_AXIS,
            sizes=networks,
        ),
        Figure(
            "bracket_rates",
            "Neural networks over the learning rate",
            _over_rates(rates),
            Axis("learning rate", "eta"),
            sizes=networks,
        ),
        Figure(
            "matrix",
            f"Last models at an accounted epsilon of {correlated.ACCOUNTED_EPSILON:g}",
            _with_correlated_noise(correlated_sizes, correlated_steps),
            _K_AXIS,
            sizes=correlated_sizes,
        ),
    ]


def _make_norms_sweep(scale: str) -> Sweep:
    """Returns the sweep of the hidden-state paper's Figure 8: gradient norms of the canaries of adversary L.

    L inserts a mislabelled example, here in every step (k = 1). For each model, the cell has the setting of
    L's audit with seed 0, and at most as many runs.
    """
    max_runs = 2 if scale == SMOKE else 30
    cells = []
    for model in ("fcnn", *_IMAGE_MODELS):
        in_every_step = Lines(model, [L], at=[1])
        first, *_ = _list_cells(in_every_step, SIZES[scale][model])
        audit = first.audited
        assert audit is not None
        cells.append(norms_cell(audit.setting, min(max_runs, audit.runs)))
    return Sweep("figure_8", "L's canary before clipping", cells)


def _list_cells(lines: Lines, size: Size) -> Iterator[Cell]:
    """Yields the cells for one panel's lines, trained and audited as `size` specifies.

    A cell audits one series (a curve) at one x and one seed. We skip periodicities without runs in `size`.

    Other cells measure the Lipschitz constants of training steps unless they are proven. For k > 1, upper
    bounds on the last model need them. The constants do not depend on the adversary, so one series is enough:
    COORDINATE. In figures with COORDINATE, `fresh_runs` contains every audited k.
    """
    model = task(lines.model)
    is_measured = model.curvature is None  # it has no proven Lipschitz constant
    panel = lines.panel or model.label
    for series, x, seed in itertools.product(lines.series, lines.at, range(size.seeds)):
        runs_by_k, canaries = size.choose_runs(series.adversary)
        values = {
            "adversary": series.adversary.name,
            **dataclasses.asdict(series.adversary),
            "canaries": canaries,
            "noise_multiplier": size.noise_multiplier,
            "batch_size": size.batch_size,
            lines.field: x,
            **lines.fields,  # may replace fields of `size`
        }
        if "steps" not in values:  # a setting has either steps or insertions
            values["insertions"] = size.insertions
        setting = setting_of(lines.model, seed=seed, **values)
        k = setting.schedule.periodicity
        if k in runs_by_k:
            yield audit_cell(Audited(panel, series.label, x, setting, runs_by_k[k]))
        if is_measured and series == COORDINATE and k > 1 and k in size.fresh_runs:
            yield expansion_cell(setting)
