"""The hidden-state paper's experiments as data: every figure that trains something, at three scales.

Five figures are in no paper: `proven` shows what fresh directions prove of the paper's models, `bracket_k`
and `bracket_steps` show audits of a convex model below its hidden-state bound, and `bracket` and
`bracket_rates` those of neural networks, where the expansion of steps is measured if no bound is proven.

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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.adversaries.biased import GC_S_VARIANTS, GcR, GcS
from audit.adversaries.directions import CotS
from audit.adversaries.examples import Loss
from audit.adversaries.sphere import SphereFields
from audit.methods.level import Level
from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.hidden_state import landscape_cells
from experiments.hidden_state.expansion import expansion_cell
from experiments.hidden_state.landscape import Grid, Simulation
from experiments.hidden_state.norms import norms_cell
from experiments.sweeps.sweep import Axis, PaperClaims, Statement, Sweep
from models.catalogue import task

SMOKE = "smoke"
SCALES = (SMOKE, "laptop", "paper")  # the smallest first
Runs = Mapping[int, int]  # a cell's number of runs by periodicity k, the steps for each insertion
_NO_RUNS: Runs = {}


class Size(NamedTuple):
    """How much of a model is trained at a scale. A periodicity without runs is not audited.

    Attributes:
      runs: Runs with one canary in each.
      seeds: The number of seeds of each place.
      insertions: How often a run inserts the canary.
      batch_size: The size of mini-batches.
      noise_multiplier: The noise multiplier sigma.
      canaries: The number of canaries in each run where gradients lie along coordinates.
      coordinate_runs: Runs with as many canaries; without any, such audits have `runs`.
      fresh_runs: Runs with fresh directions, as many as the model takes.
    """

    runs: Runs = _NO_RUNS
    seeds: int = 1
    insertions: int = 250
    batch_size: int = 128
    noise_multiplier: float = 4.0
    canaries: int = 1
    coordinate_runs: Runs = _NO_RUNS
    fresh_runs: Runs = _NO_RUNS

    def choose_runs(self, adversary: AdversaryFields) -> tuple[Runs, int | str]:
        """Returns an audit's numbers of runs, and its number of canaries in each run, perhaps AUTO."""
        if isinstance(adversary, SphereFields):
            return self.fresh_runs, AUTO
        if self.coordinate_runs and adversary.biased:
            return self.coordinate_runs, self.canaries
        return self.runs, 1


class Series(NamedTuple):
    """A series of a figure: its label in the legend, and its adversary's fields."""

    label: str
    adversary: AdversaryFields


class FigurePlace(NamedTuple):
    """A place of a figure, at which audits are drawn that differ only in their seeds.

    Attributes:
      panel: The panel.
      series: The series.
      x: The value on the x axis.
      model: The model.
      fields: The fields of the setting that neither the series nor the size decides.
    """

    panel: str
    series: Series
    x: float
    model: str
    fields: Mapping[str, Any]


class Figure(NamedTuple):
    """A figure: its title, its places in the order of panels, and its x axis; None where x means nothing."""

    title: str
    places: tuple[FigurePlace, ...]
    axis: Axis | None = None


def _at_each(runs: int) -> Runs:
    """Returns the same number of runs at each periodicity."""
    return dict.fromkeys(_PERIODICITIES, runs)


_PERIODICITIES = (1, 2, 5, 10, 25, 50)
_ALL_RUNS = _at_each(5000)
_FCNN = Size(_ALL_RUNS, seeds=5, batch_size=400, fresh_runs=_ALL_RUNS)
_WIDE_FCNN = Size(batch_size=400, canaries=64, coordinate_runs={1: 400}, fresh_runs={1: 400})
_TINY = Size(_at_each(4), insertions=2, batch_size=4, fresh_runs=_at_each(1))
_LOGISTIC = Size(
    batch_size=16, canaries=128, coordinate_runs=_at_each(120), fresh_runs=_at_each(40)
)
SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "fcnn": Size({1: 40}, insertions=4, batch_size=20, fresh_runs={1: 4}),
        "wide_fcnn": Size(
            insertions=4, batch_size=20, canaries=8, coordinate_runs={1: 8}, fresh_runs={1: 2}
        ),
        "convnet": _TINY,
        "resnet18": Size(_at_each(2), insertions=1, batch_size=2),
        "mobilenet_head": _TINY,
        "logistic": Size(
            insertions=2,
            batch_size=4,
            canaries=8,
            coordinate_runs=_at_each(8),
            fresh_runs=_at_each(1),
        ),
    },
    "laptop": {
        "fcnn": _FCNN,
        "wide_fcnn": _WIDE_FCNN,
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
            noise_multiplier=0.506,
            canaries=256,
            coordinate_runs={1: 16, 5: 8, 25: 8},
        ),
        "mobilenet_head": Size(canaries=256, coordinate_runs={1: 100}),
        "logistic": _LOGISTIC,
    },
    "paper": {
        "fcnn": _FCNN,
        "wide_fcnn": _WIDE_FCNN._replace(coordinate_runs=_ALL_RUNS, fresh_runs=_ALL_RUNS),
        "convnet": Size(_ALL_RUNS, fresh_runs=_at_each(60)),
        "resnet18": Size(_ALL_RUNS),
        "mobilenet_head": Size(_ALL_RUNS),
        "logistic": _LOGISTIC._replace(
            batch_size=128, coordinate_runs=_at_each(5000), fresh_runs=_at_each(5000)
        ),
    },
}

# The networks of `bracket`, at their own sizes.
_MAX_NETWORK_PERIODICITY = 25
_SMALL = Size({**_at_each(2000), 25: 1000}, batch_size=400, fresh_runs={**_at_each(1000), 25: 500})
_CONVNET = Size(canaries=256, coordinate_runs={1: 10, 5: 8}, fresh_runs={1: 6, 5: 4, 25: 4})
_BRACKETED = {
    "fcnn": _SMALL,
    "tanh_fcnn": _SMALL,
    "gelu_fcnn": _SMALL,
    "wide_fcnn": Size(
        batch_size=400,
        canaries=64,
        coordinate_runs={1: 100, 2: 100, 5: 60, 10: 40, 25: 20},
        fresh_runs={1: 60, 2: 60, 5: 40, 10: 30, 25: 20},
    ),
    "convnet": _CONVNET,  # 8 runs along coordinates, the fewest, take too long at k = 25
    "gelu_convnet": _CONVNET,
    "mobilenet_softmax_head": Size(
        canaries=256,
        coordinate_runs={1: 60, 2: 60, 5: 40, 10: 30, 25: 20},
        fresh_runs=_at_each(20),
    ),
}


def _grow(size: Size) -> Size:
    """Returns a size with 5,000 runs of each audit along coordinates, and at least 60 of fresh directions."""
    fresh = {k: max(size.fresh_runs.get(k, 0), 60) for k in _PERIODICITIES}
    return size._replace(runs=_at_each(5000), coordinate_runs=_at_each(5000), fresh_runs=fresh)


BRACKETED: dict[str, dict[str, Size]] = {
    "smoke": dict.fromkeys(
        ("fcnn", "tanh_fcnn"),
        Size({1: 40, 5: 40}, insertions=2, batch_size=20, fresh_runs={1: 4, 5: 4}),
    ),
    "laptop": _BRACKETED,
    "paper": {model: _grow(size) for model, size in _BRACKETED.items()},
}

NORM_RUNS = {"smoke": 2, "laptop": 30, "paper": 30}  # Figure 8's runs for each model, at most
_WHOLE_GRID = Grid(tuple(float(sigma) for sigma in range(1, 9)), (1, 2, 4, 8, 16), steps=25)
GRIDS = {"smoke": Grid((1.0, 4.0), (1, 4), steps=5), "laptop": _WHOLE_GRID, "paper": _WHOLE_GRID}

# The paper's adversaries: L inserts the gradient of an example with a wrong label, CotS one along a
# random direction, scored by a cosine, GC-R one along a random coordinate, and GC-S one along the
# coordinate that simulated training moves least.
L = Series("L", Loss())
GC_R = Series("GC-R", GcR())
COTS = Series("CotS", CotS())
GC_S = tuple(
    Series(f"GC-S, {variant.replace('_', ' ')}", GcS(variant)) for variant in GC_S_VARIANTS
)
FRESH = Series("fresh directions", SphereFields())
COORDINATE = Series("coordinate", GcS())
_IMAGE_MODELS = ("convnet", "resnet18")
_NORM_AXIS = Axis("clipping norm C", "C")
_K_AXIS = Axis("periodicity k", "k")
_NORMS = (1.0, 2.0, 4.0)


def _vary(
    field: str, values: Iterable[float], models: Iterable[str], *all_series: Series
) -> tuple[FigurePlace, ...]:
    """Returns the places of a figure with a field of the setting on x, and a panel for each model."""
    places = []
    for model, series, value in itertools.product(models, all_series, values):
        places.append(FigurePlace(task(model).label, series, value, model, {field: value}))
    return tuple(places)


def _on_fcnn(*all_series: Series) -> tuple[FigurePlace, ...]:
    """Returns the places of some series on the FCNN, with a panel for each of the paper's learning rates."""
    places = []
    for rate, series in itertools.product((0.1, 0.01), all_series):
        fields = {"learning_rate": rate}
        places.append(FigurePlace(f"learning rate {rate:g}", series, 1, "fcnn", fields))
    return tuple(places)


def _with_gc_r(
    label: str, x: float = 1, model: str = "convnet", panel: str = "ConvNet", **fields: Any
) -> FigurePlace:
    """Returns a place of GC-R in a figure whose series are named by what else differs between them."""
    return FigurePlace(panel, Series(label, GcR()), x, model, fields)


def _list_proven_places() -> tuple[FigurePlace, ...]:
    """Returns the places of fresh directions and of GC-R, with a panel for each model and periodicity k."""
    panels = [(task(model).label, model, 1) for model in ("wide_fcnn", "fcnn")]
    panels += [(f"{task('convnet').label}, k = {k}", "convnet", k) for k in (1, 5, 25)]
    places = []
    for (panel, model, k), series in itertools.product(panels, (FRESH, GC_R)):
        places.append(FigurePlace(panel, series, k, model, {"periodicity": k}))
    return tuple(places)


def _list_logistic_places(fields_at: Mapping[int, Mapping[str, Any]]) -> tuple[FigurePlace, ...]:
    """Returns the places of logistic regression, with a panel for each weight decay and fields by x."""
    places = []
    for decay, x, series in itertools.product((0.0, 1e-3, 1e-2), fields_at, (GC_S[0], FRESH)):
        fields = {"weight_decay": decay, **fields_at[x]}
        places.append(FigurePlace(f"weight decay {decay:g}", series, x, "logistic", fields))
    return tuple(places)


FIGURES = {
    "figure_1a": Figure(
        "GC-R and L on the ConvNet, k = 1",
        _vary("clipping_norm", _NORMS, ["convnet"], GC_R, L),
        _NORM_AXIS,
    ),
    "figure_1b": Figure(
        "GC-R and L on the ResNet18, k = 1",
        _vary("clipping_norm", _NORMS, ["resnet18"], GC_R, L),
        _NORM_AXIS,
    ),
    "figure_1c": Figure("GC-R, GC-S and L on the FCNN", _on_fcnn(L, GC_R, GC_S[0])),
    "figure_2a": Figure("GC-R and L at k = 5", _vary("periodicity", [5], _IMAGE_MODELS, GC_R, L)),
    "figure_2b": Figure("GC-R and L at k = 25", _vary("periodicity", [25], _IMAGE_MODELS, GC_R, L)),
    "figure_4": Figure("Four ways to choose GC-S's dimension", _on_fcnn(L, GC_R, *GC_S)),
    "figure_5": Figure(
        "GC-S and GC-R on over-parameterised models",
        _vary("periodicity", [1, 5], _IMAGE_MODELS, GC_R, GC_S[0]),
        _K_AXIS,
    ),
    "figure_6a": Figure(
        "GC-R's trade-off curve on the ConvNet, k = 5",
        _vary("periodicity", [5], ["convnet"], GC_R),
    ),
    "figure_7": Figure("GC-R, L and CotS on the FCNN", _on_fcnn(L, GC_R, COTS)),
    "figure_11": Figure(
        "Privacy profiles of GC-R on the ConvNet",
        tuple(_with_gc_r(f"k = {k}", k, periodicity=k) for k in (1, 5, 25)),
    ),
    "figure_12": Figure(
        "GC-R on the ConvNet where the initialisation is unknown",
        (
            _with_gc_r("known", unknown_initialisation=False),
            _with_gc_r("unknown", unknown_initialisation=True),
        ),
    ),
    "figure_13": Figure(
        "GC-R on a pretrained network's head and on a network trained whole",
        tuple(
            _with_gc_r(task(model).label, model=model, panel="CIFAR-10")
            for model in ("mobilenet_head", "convnet")
        ),
    ),
    "proven": Figure("What so many training runs prove", _list_proven_places()),
}


def _list_logistic_figures(scale: str) -> dict[str, Figure]:
    """Returns the figures of logistic regression: over k, and over the number of steps at k = 5."""
    periodicities: tuple[int, ...] = _PERIODICITIES
    insertions: tuple[int, ...] = (25, 50, 100, 250, 500, 1000)
    if scale == SMOKE:
        periodicities = (1, 5)
        insertions = (1, 2)
    at_k = {k: {"periodicity": k} for k in periodicities}
    at_steps = {5 * count: {"periodicity": 5, "insertions": count} for count in insertions}
    return {
        "bracket_k": Figure(
            "Logistic regression: what k steps for each insertion hide",
            _list_logistic_places(at_k),
            _K_AXIS,
        ),
        "bracket_steps": Figure(
            "Logistic regression: what a longer training leaks, k = 5",
            _list_logistic_places(at_steps),
            Axis("training steps T", "T"),
        ),
    }


def _list_network_figures(scale: str) -> dict[str, Figure]:
    """Returns the figures of neural networks: over k, and of the FCNN with tanh over the learning rate."""
    rates = (0.1, 1.0) if scale == SMOKE else (0.01, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
    over_k: list[FigurePlace] = []
    for model, size in BRACKETED[scale].items():
        values = [k for k in size.fresh_runs if k <= _MAX_NETWORK_PERIODICITY]
        over_k += _vary("periodicity", values, [model], FRESH, COORDINATE)
    over_rates = []
    for k, rate, series in itertools.product((5, 25), rates, (FRESH, COORDINATE)):
        fields = {"periodicity": k, "learning_rate": rate}
        over_rates.append(FigurePlace(f"tanh FCNN, k = {k}", series, rate, "tanh_fcnn", fields))
    title = "Neural networks: what k steps for each insertion hide"
    return {
        "bracket": Figure(title, tuple(over_k), _K_AXIS),
        "bracket_rates": Figure(
            "Where hiding models stops helping", tuple(over_rates), Axis("learning rate", "eta")
        ),
    }


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns every sweep at a scale, by name: the figures of audits, Figure 8, and the landscape.

    Args:
      scale: One of SCALES.
    """
    sizes = SIZES[scale]
    found = {}
    for name, figure in {**FIGURES, **_list_logistic_figures(scale)}.items():
        found[name] = _make_sweep(name, figure, sizes)
    # Its lines follow an audit over its runs, so that each place has a single seed.
    single = {model: size._replace(seeds=1) for model, size in sizes.items()}
    found["proven"] = _make_sweep("proven", FIGURES["proven"], single)
    for name, figure in _list_network_figures(scale).items():
        found[name] = _make_sweep(name, figure, BRACKETED[scale])

    # Figure 8 draws the norms of L's canaries in training, in a cell for each model.
    norms = []
    for model in ("fcnn", *_IMAGE_MODELS):
        first = next(list_audits(sizes[model], FigurePlace("", L, 1, model, {})))
        norms.append(norms_cell(first.setting, min(NORM_RUNS[scale], first.runs)))
    title = "L's canary before clipping"
    found["figure_8"] = Sweep("figure_8", title, tuple(norms), Axis("step", "t"))

    level = Level()
    simulation = Simulation(200 if scale == SMOKE else 5000, 0, level.confidence)
    cells = landscape_cells.list_cells(GRIDS[scale], simulation, level.delta)
    found["landscape"] = Sweep("landscape", "The crafted loss landscape", tuple(cells))
    return found


def _make_sweep(name: str, figure: Figure, sizes: Mapping[str, Size]) -> Sweep:
    """Returns the sweep of a figure: its audits, and for networks the measurements that their bounds need."""
    cells: list[Cell] = []
    for place in figure.places:
        size = sizes[place.model]
        cells += [audit_cell(audited) for audited in list_audits(size, place)]
        is_proven = place.series != COORDINATE or task(place.model).curved is not None
        k = place.fields.get("periodicity", 1)
        if k > 1 and k in size.fresh_runs and not is_proven:
            cells.append(expansion_cell(_make_setting(size, place, seed=0)))
    return Sweep(name, figure.title, tuple(cells), figure.axis)


def list_audits(size: Size, place: FigurePlace) -> Iterator[Audited]:
    """Yields the audits of a place, one for each seed; none where the size has no runs.

    Args:
      size: How much of the place's model is trained.
      place: The place, with its panel, series, model and fields.
    """
    all_runs, _ = size.choose_runs(place.series.adversary)
    runs = all_runs.get(place.fields.get("periodicity", 1))
    if runs is not None:
        for seed in range(size.seeds):
            setting = _make_setting(size, place, seed)
            yield Audited(place.panel, place.series.label, place.x, setting, runs)


def _make_setting(size: Size, place: FigurePlace, seed: int) -> Setting:
    """Returns the setting of an audit at a place."""
    adversary = place.series.adversary
    _, canaries = size.choose_runs(adversary)
    values = {
        "adversary": adversary.name,
        **dataclasses.asdict(adversary),
        "canaries": canaries,
        "insertions": size.insertions,
        "noise_multiplier": size.noise_multiplier,
        "batch_size": size.batch_size,
        **place.fields,
    }
    return setting_of(place.model, seed=seed, **values)


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
