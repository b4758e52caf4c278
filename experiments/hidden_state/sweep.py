"""The hidden-state paper's experiments as data: every figure that trains something, at three scales.

Five figures are in no paper: `proven` shows what fresh directions prove of the paper's models, `bracket_k`
and `bracket_steps` show audits of a convex model below its hidden-state bound, and `bracket` and
`bracket_rates` (`experiments/hidden_state/networks.py`) those of neural networks.

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
from collections.abc import Iterable, Mapping
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
from experiments.cells.cell import Audited
from experiments.hidden_state import networks
from experiments.hidden_state.cells import landscape_cell, norms_cell
from experiments.hidden_state.landscape import Grid
from experiments.sweeps.sweep import Axis, PaperClaims, Statement, Sweep
from models.catalogue import task

SMOKE = "smoke"
SCALES = (SMOKE, "laptop", "paper")  # the smallest first


class SeveralCanaries(NamedTuple):
    """Audits with several canaries in each run.

    Attributes:
      canaries: The number of canaries in each run.
      runs: A cell's number of runs by periodicity k.
    """

    canaries: int
    runs: dict[int, int]


class Size(NamedTuple):
    """How much of a model is trained at a scale.

    Attributes:
      runs: A cell's number of runs by periodicity k, the steps for each insertion, with one canary in each.
      seeds: The number of seeds of each place.
      insertions: How often a run inserts the canary.
      batch_size: The size of mini-batches.
      noise_multiplier: The noise multiplier sigma.
      several_canaries: Several canaries in each run where gradients lie along coordinates; None: one.
      fresh_runs: A cell's number of runs by periodicity where directions are fresh; each run has as many
        directions as the model takes.
    """

    runs: dict[int, int] = {}  # noqa: RUF012, never written to
    seeds: int = 1
    insertions: int = 250
    batch_size: int = 128
    noise_multiplier: float = 4.0
    several_canaries: SeveralCanaries | None = None
    fresh_runs: dict[int, int] = {}  # noqa: RUF012, never written to

    def choose_runs(self, adversary: AdversaryFields, periodicity: int) -> tuple[int, int | str]:
        """Returns an audit's number of runs, and its number of canaries in each run.

        Args:
          adversary: The fields of the adversary.
          periodicity: The number k of steps for each insertion; a key of the size's numbers of runs.

        Returns:
          (runs, canaries); AUTO canaries are as many as suit the model, which is decided later.
        """
        if isinstance(adversary, SphereFields):  # fresh directions
            return self.fresh_runs[periodicity], AUTO
        # Only adversaries that insert gradients along coordinates, the biased ones, take several canaries.
        is_biased = ADVERSARIES[adversary.name].biased
        if self.several_canaries is not None and is_biased:
            return self.several_canaries.runs[periodicity], self.several_canaries.canaries
        return self.runs[periodicity], 1


class Series(NamedTuple):
    """A series of a figure: its label in the legend, and its adversary's fields."""

    label: str
    adversary: AdversaryFields


class FigurePlace(NamedTuple):
    """A place of a figure, at which audits are drawn that differ in their seeds alone.

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


_ALL_RUNS = {1: 5000, 5: 5000, 25: 5000}
_PERIODICITIES = (1, 2, 5, 10, 25, 50)
_FCNN = Size(_ALL_RUNS, seeds=5, batch_size=400, fresh_runs=_ALL_RUNS)
_WIDE_FCNN = Size(
    batch_size=400, several_canaries=SeveralCanaries(64, {1: 400}), fresh_runs={1: 400}
)
_TINY = Size({1: 4, 5: 4, 25: 4}, insertions=2, batch_size=4, fresh_runs={1: 1, 5: 1, 25: 1})


def _logistic(batch_size: int, canaries: int, runs: int, fresh_runs: int) -> Size:
    """Returns how much of logistic regression is trained, with the same number of runs at each periodicity.

    Args:
      batch_size: The size of mini-batches.
      canaries: The number of canaries in each run of an audit along coordinates.
      runs: The number of runs of each audit along coordinates.
      fresh_runs: The number of runs of each audit with fresh directions.
    """
    return Size(
        batch_size=batch_size,
        several_canaries=SeveralCanaries(canaries, dict.fromkeys(_PERIODICITIES, runs)),
        fresh_runs=dict.fromkeys(_PERIODICITIES, fresh_runs),
    )


SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "fcnn": Size({1: 40}, insertions=4, batch_size=20, fresh_runs={1: 4}),
        "wide_fcnn": Size(
            insertions=4,
            batch_size=20,
            several_canaries=SeveralCanaries(8, {1: 8}),
            fresh_runs={1: 2},
        ),
        "convnet": _TINY,
        "resnet18": Size({1: 2, 5: 2, 25: 2}, insertions=1, batch_size=2),
        "mobilenet_head": _TINY,
        "logistic": _logistic(4, canaries=8, runs=8, fresh_runs=1)._replace(insertions=2),
    },
    "laptop": {
        "fcnn": _FCNN,
        "wide_fcnn": _WIDE_FCNN,
        "convnet": Size(
            {1: 40, 5: 16, 25: 4},
            several_canaries=SeveralCanaries(256, {1: 60, 5: 24, 25: 12}),
            fresh_runs={1: 10, 5: 10, 25: 3},
        ),
        "resnet18": Size(
            {1: 8, 5: 6, 25: 4},
            insertions=4,
            batch_size=8,
            noise_multiplier=0.506,
            several_canaries=SeveralCanaries(256, {1: 16, 5: 8, 25: 8}),
        ),
        "mobilenet_head": Size(several_canaries=SeveralCanaries(256, {1: 100})),
        "logistic": _logistic(16, canaries=128, runs=120, fresh_runs=40),
    },
    "paper": {
        "fcnn": _FCNN,
        "wide_fcnn": _WIDE_FCNN._replace(
            several_canaries=SeveralCanaries(64, _ALL_RUNS), fresh_runs=_ALL_RUNS
        ),
        "convnet": Size(_ALL_RUNS, fresh_runs={1: 60, 5: 60, 25: 60}),
        "resnet18": Size(_ALL_RUNS),
        "mobilenet_head": Size(_ALL_RUNS),
        "logistic": _logistic(128, canaries=128, runs=5000, fresh_runs=5000),
    },
}
NORM_RUNS = {"smoke": 2, "laptop": 30, "paper": 30}  # Figure 8's runs for each model, at most
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

# The paper's adversaries: L inserts the gradient of an example with a wrong label, CotS one along a
# random direction, scored by a cosine, GC-R one along a random coordinate, and GC-S one along the
# coordinate that simulated training moves least.
L = Series("L", Loss())
GC_R = Series("GC-R", GcR())
COTS = Series("CotS", CotS())
GC_S = tuple(
    Series(f"GC-S, {variant.replace('_', ' ')}", GcS(variant)) for variant in GC_S_VARIANTS
)
NOISELESS_PER_STEP = GC_S[0]
FRESH = Series("fresh directions", SphereFields())
_IMAGE_MODELS = ("convnet", "resnet18")


def _vary(
    field: str, values: Iterable[float], models: Iterable[str], *all_series: Series
) -> tuple[FigurePlace, ...]:
    """Returns the places of a figure that varies a field: a panel for each model, each with the same series.

    Args:
      field: The field of the setting that is on the x axis.
      values: The field's values.
      models: Names of models.
      *all_series: The series.
    """
    places = []
    for model, series, value in itertools.product(models, all_series, values):
        places.append(FigurePlace(task(model).label, series, value, model, {field: value}))
    return tuple(places)


def _on_fcnn(*all_series: Series) -> tuple[FigurePlace, ...]:
    """Returns the places of some series on the FCNN, with a panel for each of two learning rates.

    The learning rates are those of the hidden-state paper.

    Args:
      *all_series: The series, which are in both panels.
    """
    places = []
    for rate, series in itertools.product((0.1, 0.01), all_series):
        panel = f"learning rate {rate:g}"
        # A panel has a single x, 1: nothing varies along the axis.
        places.append(FigurePlace(panel, series, 1, "fcnn", {"learning_rate": rate}))
    return tuple(places)


def _with_gc_r(
    label: str, x: float = 1, model: str = "convnet", panel: str = "ConvNet", **fields: Any
) -> FigurePlace:
    """Returns a place of GC-R, which inserts a gradient along a random coordinate.

    All series of such a figure have this adversary. They are named by what else differs between them.

    Args:
      label: The name of the series.
      x: The place on the x axis.
      model: The model.
      panel: The panel.
      **fields: Fields of the setting.
    """
    return FigurePlace(panel, Series(label, GcR()), x, model, fields)


def _list_proven_places() -> tuple[FigurePlace, ...]:
    """Returns the places of fresh directions and of GC-R, with a panel for each model and periodicity k.

    GC-R inserts a gradient along a random coordinate.
    """
    panels = [(task(model).label, model, 1) for model in ("wide_fcnn", "fcnn")]
    for k in (1, 5, 25):
        panels.append((f"{task('convnet').label}, k = {k}", "convnet", k))
    places = []
    for (panel, model, k), series in itertools.product(panels, (FRESH, GC_R)):
        # Of the place, x = k is not drawn: lines go over the number of runs.
        places.append(FigurePlace(panel, series, k, model, {"periodicity": k}))
    return tuple(places)


def _list_bracket_places(fields_at: Mapping[int, Mapping[str, Any]]) -> tuple[FigurePlace, ...]:
    """Returns the places of audits of logistic regression, with a panel for each weight decay.

    At each x there is an audit along coordinates and one with fresh directions.

    Args:
      fields_at: The fields of the setting at each x.
    """
    places = []
    both_series = (NOISELESS_PER_STEP, FRESH)  # along coordinates, and with fresh directions
    for decay, x, series in itertools.product((0.0, 1e-3, 1e-2), fields_at, both_series):
        fields = {"weight_decay": decay, **fields_at[x]}
        places.append(FigurePlace(f"weight decay {decay:g}", series, x, "logistic", fields))
    return tuple(places)


def _make_bracket_figures(
    periodicities: Iterable[int], insertions: Iterable[int]
) -> dict[str, Figure]:
    """Returns the figures of logistic regression: over k, and over the number of steps at k = 5.

    Args:
      periodicities: The values of k.
      insertions: The numbers of insertions; each insertion takes 5 steps.
    """
    at_k = {k: {"periodicity": k} for k in periodicities}
    at_steps = {5 * count: {"periodicity": 5, "insertions": count} for count in insertions}
    return {
        "bracket_k": Figure(
            "Logistic regression: what k steps for each insertion hide",
            _list_bracket_places(at_k),
            _K_AXIS,
        ),
        "bracket_steps": Figure(
            "Logistic regression: what a longer training leaks, k = 5",
            _list_bracket_places(at_steps),
            Axis("training steps T", "T"),
        ),
    }


_NORM_AXIS = Axis("clipping norm C", "C")
_K_AXIS = Axis("periodicity k", "k")
_NORMS = (1.0, 2.0, 4.0)
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
    "figure_1c": Figure("GC-R, GC-S and L on the FCNN", _on_fcnn(L, GC_R, NOISELESS_PER_STEP)),
    "figure_2a": Figure("GC-R and L at k = 5", _vary("periodicity", [5], _IMAGE_MODELS, GC_R, L)),
    "figure_2b": Figure("GC-R and L at k = 25", _vary("periodicity", [25], _IMAGE_MODELS, GC_R, L)),
    "figure_4": Figure("Four ways to choose GC-S's dimension", _on_fcnn(L, GC_R, *GC_S)),
    "figure_5": Figure(
        "GC-S and GC-R on over-parameterised models",
        _vary("periodicity", [1, 5], _IMAGE_MODELS, GC_R, NOISELESS_PER_STEP),
        _K_AXIS,
    ),
    "figure_6a": Figure(
        "GC-R's trade-off curve on the ConvNet, k = 5",
        _vary("periodicity", [5], ["convnet"], GC_R),
    ),
    "figure_7": Figure("GC-R, L and CotS on the FCNN", _on_fcnn(L, GC_R, COTS)),
    "figure_8": Figure("L's canary before clipping", (), Axis("step", "t")),
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
_BRACKETS = _make_bracket_figures(_PERIODICITIES, (25, 50, 100, 250, 500, 1000))
BRACKETS = {
    "smoke": _make_bracket_figures((1, 5), (1, 2)),
    "laptop": _BRACKETS,
    "paper": _BRACKETS,
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns every sweep at a scale, by name: the figures of audits, Figure 8, and the landscape.

    The figure `proven` takes a single seed of each place, since its lines follow an audit over its runs.

    Args:
      scale: One of SCALES.
    """
    sizes = SIZES[scale]  # by model
    sweeps_by_name = {}
    # `figure_8` is among these figures with no places; its cells follow below.
    for name, (title, places, axis) in {**FIGURES, **BRACKETS[scale]}.items():
        cells = []
        for place in places:
            audits = list_audits(sizes[place.model], place)
            if name == "proven":
                audits = audits[:1]
            cells += [audit_cell(audited) for audited in audits]
        sweeps_by_name[name] = Sweep(name, title, tuple(cells), axis)

    # Figure 8 has no audits: it draws the norms of L's canaries in training, in a cell for each model.
    norms = []
    for model in ("fcnn", *_IMAGE_MODELS):
        # An audit of L with the first seed gives the setting, and the number of runs unless it exceeds
        # NORM_RUNS. The panel "" and the x 1 of its place are shown nowhere.
        (first, *_) = list_audits(sizes[model], FigurePlace("", L, 1, model, {}))
        norms.append(norms_cell(first.setting, min(NORM_RUNS[scale], first.runs)))
    figure_8 = dataclasses.replace(sweeps_by_name["figure_8"], cells=tuple(norms))
    sweeps_by_name["figure_8"] = figure_8

    sweeps_by_name |= networks.sweeps(scale)
    landscape = landscape_cell(GRIDS[scale])
    sweeps_by_name["landscape"] = Sweep("landscape", "The crafted loss landscape", (landscape,))
    return sweeps_by_name


def list_audits(size: Size, place: FigurePlace) -> list[Audited]:
    """Returns the audits of a place, one for each seed.

    Args:
      size: How much of the place's model is trained.
      place: The place, with its panel, series, model and fields.
    """
    adversary = place.series.adversary
    k = place.fields.get("periodicity", 1)  # 1 is the setting's default
    runs, canaries = size.choose_runs(adversary, k)
    values = {
        "adversary": adversary.name,
        **dataclasses.asdict(adversary),
        "canaries": canaries,
        "insertions": size.insertions,
        "noise_multiplier": size.noise_multiplier,
        "batch_size": size.batch_size,
        **place.fields,
    }
    audits = []
    for seed in range(size.seeds):
        setting = setting_of(place.model, seed=seed, **values)
        audits.append(Audited(place.panel, place.series.label, place.x, setting, runs))
    return audits


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
