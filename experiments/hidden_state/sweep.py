"""The hidden-state paper's experiments as data: every figure that trains something, at three scales; and what
no paper has: `proven`, what fresh directions prove of its models, and the two `bracket` figures, audits of a
convex model below its hidden-state bound.

    smoke    seconds a figure: a few runs of a few steps, to see that all is in its place
    laptop   at most an hour a figure on two cores: the FCNN in full, fewer runs of the image models, with
             256 canaries each where gradients are crafted; the ResNet is cut down to 4 insertions, small
             mini-batches and a noise multiplier at which the upper bound stays the paper's
    paper    5,000 runs a cell

Five seeds for the FCNN, as the paper has for Figure 1c (one at `smoke`), at both of its learning rates
(Errata H2). T is the number of insertions times k (Errata H8).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from audit.settings.adversaries import ADVERSARIES, GC_S_VARIANTS, CotS, GcR, GcS, Loss, SphereFields
from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from audit.settings.setting import AdversaryFields
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell
from experiments.hidden_state.cells import landscape_cell, norms_cell
from experiments.hidden_state.landscape import Grid
from experiments.sweeps.sweep import Axis, Claim, PaperClaims, Sweep
from models.catalogue import task

SMOKE = "smoke"
SCALES = (SMOKE, "laptop", "paper")  # the smallest first
AXES = dict.fromkeys(("figure_1a", "figure_1b"), Axis("clipping norm C", "C"))
AXES |= {"figure_5": Axis("periodicity k", "k"), "figure_8": Axis("step", "t")}
AXES |= {"bracket_k": Axis("periodicity k", "k"), "bracket_steps": Axis("training steps T", "T")}


class Many(NamedTuple):
    """Several canaries a run, and runs a cell at each periodicity."""

    canaries: int
    runs: dict[int, int]


class Size(NamedTuple):
    """How much is trained of a model: runs a cell at each periodicity, seeds, insertions, batch size, noise
    multiplier; whether gradients along coordinates have several canaries a run; and runs of fresh directions,
    of which there are as many as the model takes."""

    runs: dict[int, int]
    seeds: int
    insertions: int
    batch_size: int
    noise_multiplier: float = 4.0
    many: Many | None = None
    fresh: dict[int, int] = {}  # noqa: RUF012, never written to

    def of(self, adversary: AdversaryFields, periodicity: int) -> tuple[int, int | str]:
        """(runs, canaries a run)."""
        if isinstance(adversary, SphereFields):
            return self.fresh[periodicity], AUTO
        if self.many is not None and ADVERSARIES[adversary.name].biased:
            return self.many.runs[periodicity], self.many.canaries
        return self.runs[periodicity], 1


class Series(NamedTuple):
    """A series of a figure: what it is called there, and who attacks."""

    label: str
    adversary: AdversaryFields


Cells = Callable[[str], Iterator[Cell]]  # of a scale
_FULL = {1: 5000, 5: 5000, 25: 5000}
_KS = (1, 2, 5, 10, 25, 50)
SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "fcnn": Size({1: 40}, 1, 4, 20, fresh={1: 4}),
        "wide_fcnn": Size({}, 1, 4, 20, many=Many(8, {1: 8}), fresh={1: 2}),
        "convnet": Size({1: 4, 5: 4, 25: 4}, 1, 2, 4, fresh={1: 1, 5: 1, 25: 1}),
        "resnet18": Size({1: 2, 5: 2, 25: 2}, 1, 1, 2),
        "mobilenet_head": Size({1: 4}, 1, 2, 4),
        "logistic": Size({}, 1, 2, 4, many=Many(8, dict.fromkeys(_KS, 8)), fresh=dict.fromkeys(_KS, 1)),
    },
    "laptop": {
        "fcnn": Size(_FULL, 5, 250, 400, fresh={1: 5000}),
        "wide_fcnn": Size({}, 1, 250, 400, many=Many(64, {1: 400}), fresh={1: 400}),
        "convnet": Size(
            {1: 40, 5: 16, 25: 4},
            *(1, 250, 128, 4.0),
            many=Many(256, {1: 60, 5: 24, 25: 12}),
            fresh={1: 10, 5: 10, 25: 3},
        ),
        "resnet18": Size({1: 8, 5: 6, 25: 4}, 1, 4, 8, 0.506, Many(256, {1: 16, 5: 8, 25: 8})),
        "mobilenet_head": Size({}, 1, 250, 128, 4.0, Many(256, {1: 100})),
        "logistic": Size(
            *({}, 1, 250, 16), many=Many(128, dict.fromkeys(_KS, 120)), fresh=dict.fromkeys(_KS, 40)
        ),
    },
    "paper": {
        "fcnn": Size(_FULL, 5, 250, 400, fresh=_FULL),
        "wide_fcnn": Size({}, 1, 250, 400, many=Many(64, {1: 5000}), fresh=_FULL),
        "convnet": Size(_FULL, 1, 250, 128, fresh={1: 60, 5: 60, 25: 60}),
        "resnet18": Size(_FULL, 1, 250, 128),
        "mobilenet_head": Size(_FULL, 1, 250, 128),
        "logistic": Size(
            *({}, 1, 250, 128), many=Many(128, dict.fromkeys(_KS, 5000)), fresh=dict.fromkeys(_KS, 5000)
        ),
    },
}
BRACKETED_KS = {"smoke": (1, 5), "laptop": _KS, "paper": _KS}
_LENGTHS = (25, 50, 100, 250, 500, 1000)
INSERTIONS = {"smoke": (1, 2), "laptop": _LENGTHS, "paper": _LENGTHS}  # at k = 5
NORM_RUNS = {"smoke": 2, "laptop": 30, "paper": 30}  # Figure 8's runs a model, at most
_WHOLE = Grid(tuple(map(float, range(1, 9))), (1, 2, 4, 8, 16), 25, 5000)
GRIDS = {"smoke": Grid((1.0, 4.0), (1, 4), 5, 200), "laptop": _WHOLE, "paper": _WHOLE}

L, GC_R, COTS = Series("L", Loss()), Series("GC-R", GcR()), Series("CotS", CotS())
GC_S = tuple(Series(f"GC-S, {variant.replace('_', ' ')}", GcS(variant)) for variant in GC_S_VARIANTS)
FRESH = Series("fresh directions", SphereFields())
NOISELESS_PER_STEP, _IMAGE_MODELS = GC_S[0], ("convnet", "resnet18")


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    return {
        name: Sweep(name, title, tuple(cell for one in points for cell in one(scale)), axis=AXES.get(name))
        for name, (title, points) in FIGURES.items()
    }


def audits(
    panel: str, series: Series, x: float, model: str, scale: str, changed: Mapping[str, Any]
) -> Iterator[Audited]:
    """A point's audits, one a seed; `changed` are fields of the setting."""
    size = SIZES[scale][model]
    runs, canaries = size.of(series.adversary, changed.get("periodicity", 1))
    own = {"adversary": series.adversary.name, **dataclasses.asdict(series.adversary), "canaries": canaries}
    own |= {name: getattr(size, name) for name in ("insertions", "noise_multiplier", "batch_size")}
    for seed in range(size.seeds):
        setting = setting_of(model, seed=seed, **{**own, **changed})
        yield Audited(panel, series.label, x, setting, runs)


def _at(panel: str, series: Series, x: float, model: str, **changed: Any) -> Cells:
    return lambda scale: map(audit_cell, audits(panel, series, x, model, scale, changed))


def _by_clipping_norm(model: str) -> list[Cells]:
    norms, label = (1.0, 2.0, 4.0), task(model).label
    return [_at(label, series, norm, model, clipping_norm=norm) for series in (GC_R, L) for norm in norms]


def _fcnn(*every: Series) -> list[Cells]:
    panels = {rate: f"learning rate {rate:g}" for rate in (0.1, 0.01)}
    return [_at(name, one, 1, "fcnn", learning_rate=rate) for rate, name in panels.items() for one in every]


def _periodic(every: tuple[Series, ...], *periodicities: int) -> list[Cells]:
    places = itertools.product(_IMAGE_MODELS, every, periodicities)
    return [_at(task(model).label, series, k, model, periodicity=k) for model, series, k in places]


def _gc_r(label: str, x: float = 1, panel: str = "ConvNet", model: str = "convnet", **changed: Any) -> Cells:
    return _at(panel, Series(label, GcR()), x, model, **changed)


def _norms(model: str) -> Cells:
    """Figure 8: 30 runs a model, fewer at scales that cannot train them."""

    def cells(scale: str) -> Iterator[Cell]:
        first = next(audits("", L, 1, model, scale, {}))
        yield norms_cell(first._replace(runs=min(NORM_RUNS[scale], first.runs)))

    return cells


def _proven(model: str, *periodicities: int) -> list[Cells]:
    """Fresh directions beside GC-R, of one seed, with a panel for each k."""

    def cells(k: int) -> Cells:
        panel = task(model).label + (f", k = {k}" if len(periodicities) > 1 else "")

        def of_scale(scale: str) -> Iterator[Cell]:
            for series in (FRESH, GC_R):
                yield audit_cell(next(audits(panel, series, k, model, scale, {"periodicity": k})))

        return of_scale

    return list(map(cells, periodicities))


def _bracket(scale: str, places: Mapping[float, Mapping[str, Any]]) -> Iterator[Cell]:
    """Coordinates and fresh directions of logistic regression, with a panel for each weight decay."""
    for decay, x in itertools.product((0.0, 1e-3, 1e-2), places):
        panel, changed = f"weight decay {decay:g}", {**places[x], "weight_decay": decay}
        for series in (NOISELESS_PER_STEP, FRESH):
            yield from map(audit_cell, audits(panel, series, x, "logistic", scale, changed))


def _bracket_k(scale: str) -> Iterator[Cell]:
    return _bracket(scale, {k: {"periodicity": k} for k in BRACKETED_KS[scale]})


def _bracket_steps(scale: str) -> Iterator[Cell]:
    return _bracket(scale, {5 * n: {"periodicity": 5, "insertions": n} for n in INSERTIONS[scale]})


FIGURES: dict[str, tuple[str, list[Cells]]] = {
    "figure_1a": ("GC-R and L on the ConvNet, k = 1", _by_clipping_norm("convnet")),
    "figure_1b": ("GC-R and L on the ResNet18, k = 1", _by_clipping_norm("resnet18")),
    "figure_1c": ("GC-R, GC-S and L on the FCNN", _fcnn(L, GC_R, NOISELESS_PER_STEP)),
    "figure_2a": ("GC-R and L at k = 5", _periodic((GC_R, L), 5)),
    "figure_2b": ("GC-R and L at k = 25", _periodic((GC_R, L), 25)),
    "figure_4": ("Four ways to choose GC-S's dimension", _fcnn(L, GC_R, *GC_S)),
    "figure_5": ("GC-S and GC-R on over-parameterised models", _periodic((GC_R, NOISELESS_PER_STEP), 1, 5)),
    "figure_6a": ("GC-R's trade-off curve on the ConvNet, k = 5", [_gc_r("GC-R", 5, periodicity=5)]),
    "figure_7": ("GC-R, L and CotS on the FCNN", _fcnn(L, GC_R, COTS)),
    "figure_8": ("L's canary before clipping", [_norms(model) for model in ("fcnn", *_IMAGE_MODELS)]),
    "figure_11": (
        "Privacy profiles of GC-R on the ConvNet",
        [_gc_r(f"k = {k}", k, periodicity=k) for k in (1, 5, 25)],
    ),
    "figure_12": (
        "GC-R on the ConvNet where the initialisation is unknown",
        [_gc_r("known", unknown_initialisation=False), _gc_r("unknown", unknown_initialisation=True)],
    ),
    "figure_13": (
        "GC-R on a pretrained network's head and on a network trained whole",
        [_gc_r(task(one).label, panel="CIFAR-10", model=one) for one in ("mobilenet_head", "convnet")],
    ),
    "proven": (
        "What is proven after so many trainings",
        [*_proven("wide_fcnn", 1), *_proven("fcnn", 1), *_proven("convnet", 1, 5, 25)],
    ),
    "bracket_k": ("Logistic regression: what k steps for each insertion hide", [_bracket_k]),
    "bracket_steps": ("Logistic regression: what a longer training leaks, k = 5", [_bracket_steps]),
    "landscape": ("The crafted loss landscape", [lambda scale: iter([landscape_cell(GRIDS[scale])])]),
}
CLAIMS: PaperClaims = {  # the paper's words for its figures' series
    ("figure_1a", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1a", "L", None): Claim("not tight", "5.2"),
    ("figure_1b", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1b", "L", None): Claim("not tight", "5.2"),
    ("figure_1c", "L", None): Claim("below GC-R", "5.2"),
    ("figure_1c", "GC-R", None): Claim("not tight", "5.2"),
    ("figure_1c", "GC-S, noiseless per step", None): Claim("nearly tight", "5.2"),
    ("figure_2a", "GC-R", None): Claim("not tight", "5.3"),
    ("figure_2a", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_2b", "GC-R", None): Claim("below k = 5", "5.3"),
    ("figure_2b", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_4", "GC-S, noiseless per step", None): Claim("best of the 4", "Appendix C"),
    ("figure_5", "GC-R", 1): Claim("tight", "5.2"),
    ("figure_5", "GC-R", 5): Claim("not tight", "5.3"),
    ("figure_5", "GC-S, noiseless per step", None): Claim("as GC-R", "Appendix C"),
    ("figure_6a", "GC-R", None): Claim("Gaussian curve", "Appendix E"),
    ("figure_7", "GC-R", None): Claim("above CotS", "Appendix G"),
    ("figure_7", "CotS", None): Claim("above L", "Appendix G"),
    ("figure_11", "k = 1", None): Claim("tight", "Appendix G"),
    ("figure_11", "k = 5", None): Claim("not tight", "Appendix G"),
    ("figure_11", "k = 25", None): Claim("not tight", "Appendix G"),
    ("figure_12", "unknown", None): Claim("as known", "Appendix G"),
    ("figure_13", "MobileNetV2's head", None): Claim("tight (AlexNet)", "Appendix G"),
    ("landscape", "B = 16", None): Claim("tight", "Appendix G"),
}
