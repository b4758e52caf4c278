"""The bracket of neural networks as data: audits at each k and learning rate, and how much steps expand.

What can a network's last model leak at most, and how much of that does an audit find? At each place are fresh
directions, canaries along the coordinate that a rehearsal recommends, and a measurement of steps, where
nothing is proven of them. The measurement is of the recommended coordinate's setting.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.adversaries.coordinates import GcS
from audit.adversaries.fresh import SphereFields
from audit.adversaries.row import AdversaryFields
from audit.runtime.progress import Progress
from audit.settings.fields import AUTO
from audit.settings.make import setting_of
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import audit_cell, setting_cell, step_seconds
from experiments.cells.cell import Audited, Cell
from experiments.sweeps.sweep import Axis, Sweep
from models.catalogue import task

if TYPE_CHECKING:
    from audit.conclusions.lipschitz import Steps

EXPERIMENT = "expansion"
FRESH = "fresh directions"
COORDINATE = "coordinate"
_PERIODICITIES = (1, 2, 5, 10, 25)
_RATES = (0.01, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
_SMOKE_RATES = (0.1, 1.0)
_LEAST_MOVED = GcS()
# How long a measurement takes. It compiles, trains its runs, and measures some steps of each run. To measure
# a step takes as long as 300 training steps of a large model, and never less than 0.005 seconds. Compiling
# takes longer than that of an audit, which is counted elsewhere, by these seconds.
_COMPILING_SECONDS = 15.0
_TRAINING_STEPS_PER_MEASURED_STEP = 300
_LEAST_SECONDS_PER_MEASURED_STEP = 0.005


class CoordinateAudits(NamedTuple):
    """Audits along a coordinate.

    Attributes:
      adversary: The adversary, which chooses the coordinate.
      canaries: The number of canaries in each run.
      runs: The number of runs by periodicity k.
    """

    adversary: AdversaryFields
    canaries: int
    runs: Mapping[int, int]


class Amount(NamedTuple):
    """How much of a model is audited at a scale.

    Attributes:
      coordinates: Audits along a coordinate, with their number of runs by periodicity.
      fresh_runs: The number of runs of fresh directions by periodicity k, the steps for each insertion.
      batch_size: Of mini-batches.
      insertions: How often a run inserts its canaries.
      rehearsals: Along how many runs steps are measured; half of them have the canary.
      most_measured: How many steps of each of these runs are measured at most (`usual_effort` in
        `audit.training.rehearsal`), which decides how long it takes.
    """

    coordinates: CoordinateAudits
    fresh_runs: Mapping[int, int]
    batch_size: int
    insertions: int = 250
    rehearsals: int = 4
    most_measured: int = 1250

    @property
    def periodicities(self) -> Iterable[int]:
        """The values of k."""
        return self.fresh_runs.keys()


class BracketPlace(NamedTuple):
    """A place of a figure, at which a model is audited.

    Attributes:
      panel: The panel.
      x: The value on the x axis.
      model: The model.
      fields: The fields of the setting that differ between places, `periodicity` among them.
    """

    panel: str
    x: float
    model: str
    fields: Mapping[str, Any]


def _at_each(runs: int) -> dict[int, int]:
    """Returns the same number of runs at each periodicity."""
    return dict.fromkeys(_PERIODICITIES, runs)


_SMALL = Amount(
    CoordinateAudits(_LEAST_MOVED, 1, {**_at_each(2000), 25: 1000}),
    {**_at_each(1000), 25: 500},
    batch_size=400,
)
_WIDE = Amount(
    CoordinateAudits(_LEAST_MOVED, 64, {1: 100, 2: 100, 5: 60, 10: 40, 25: 20}),
    {1: 60, 2: 60, 5: 40, 10: 30, 25: 20},
    batch_size=400,
    most_measured=223,
)
_CONVNET = Amount(
    # An audit along coordinates needs 8 runs, which take too long at k = 25.
    CoordinateAudits(_LEAST_MOVED, 256, {1: 10, 5: 8}),
    {1: 6, 5: 4, 25: 4},
    batch_size=128,
    rehearsals=2,
    most_measured=20,
)
_HEAD = Amount(
    CoordinateAudits(_LEAST_MOVED, 256, {1: 60, 2: 60, 5: 40, 10: 30, 25: 20}),
    {1: 20, 2: 20, 5: 20, 10: 20, 25: 20},
    batch_size=128,
)
_PAPER_RUNS = _at_each(5000)
_MODELS = {
    "fcnn": _SMALL,
    "tanh_fcnn": _SMALL,
    "gelu_fcnn": _SMALL,
    "wide_fcnn": _WIDE,
    "convnet": _CONVNET,
    "gelu_convnet": _CONVNET,
    "mobilenet_softmax_head": _HEAD,
}


def _shrink(amount: Amount) -> Amount:
    """Returns a small amount that takes seconds, with audits at k = 1 and 5 alone."""
    coordinates = amount.coordinates._replace(runs={1: 40, 5: 40})
    return Amount(coordinates, {1: 4, 5: 4}, batch_size=20, insertions=2)


def _grow(amount: Amount) -> Amount:
    """Returns an amount with more runs, and with audits at every periodicity k.

    Each audit along coordinates has 5,000 runs, as in the hidden-state paper. Each audit with fresh
    directions has at least 60 runs.
    """
    coordinates = amount.coordinates._replace(runs=_PAPER_RUNS)
    fresh_runs = {}
    for k in _PERIODICITIES:
        fresh_runs[k] = max(amount.fresh_runs.get(k, 0), 60)
    return amount._replace(coordinates=coordinates, fresh_runs=fresh_runs)


_AMOUNTS: dict[str, dict[str, Amount]] = {
    "smoke": {model: _shrink(_SMALL) for model in ("fcnn", "tanh_fcnn")},
    "laptop": _MODELS,
    "paper": {model: _grow(amount) for model, amount in _MODELS.items()},
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns two sweeps of neural networks by name: over the periodicity k, and over the learning rate.

    The learning rate varies for the FCNN with tanh, at k = 5 and k = 25.

    Args:
      scale: "smoke", "laptop" or "paper".
    """
    amounts = _AMOUNTS[scale]  # by model
    over_k = []
    for model, amount in amounts.items():
        for k in amount.periodicities:
            over_k.append(BracketPlace(task(model).label, k, model, {"periodicity": k}))

    over_rates = []
    rates = _SMOKE_RATES if scale == "smoke" else _RATES
    for k in (5, 25):
        if k not in amounts["tanh_fcnn"].periodicities:  # the smoke scale has no k = 25
            continue
        for rate in rates:
            fields = {"periodicity": k, "learning_rate": rate}
            over_rates.append(BracketPlace(f"tanh FCNN, k = {k}", rate, "tanh_fcnn", fields))
    return {
        "bracket": Sweep(
            "bracket",
            "Neural networks: what k steps for each insertion hide",
            tuple(_list_cells(over_k, amounts)),
            Axis("periodicity k", "k"),
        ),
        "bracket_rates": Sweep(
            "bracket_rates",
            "Where hiding models stops helping",
            tuple(_list_cells(over_rates, amounts)),
            Axis("learning rate", "eta"),
        ),
    }


def _list_cells(places: Iterable[BracketPlace], amounts: Mapping[str, Amount]) -> Iterable[Cell]:
    """Yields the cells of all places: audits, and a measurement of steps where one is needed.

    What is measured is how much steps stretch distances. That is needed where k > 1 and no bound on it is
    proven for the model.
    """
    for place in places:
        amount = amounts[place.model]
        k = place.fields["periodicity"]

        # Fresh directions, with as many canaries as suit the model (AUTO).
        fresh_setting = _make_setting(place, amount, SphereFields(), AUTO)
        fresh_runs = amount.fresh_runs[k]
        yield audit_cell(Audited(place.panel, FRESH, place.x, fresh_setting, fresh_runs))

        # Canaries along a coordinate, which are not audited at every k.
        coordinates = amount.coordinates
        setting = _make_setting(place, amount, coordinates.adversary, coordinates.canaries)
        if k in coordinates.runs:
            runs = coordinates.runs[k]
            yield audit_cell(Audited(place.panel, COORDINATE, place.x, setting, runs))

        # For a model with `curved`, a bound on the curvature of its loss is proven.
        if k > 1 and task(place.model).curved is None:
            yield expansion_cell(setting, amount)


def _make_setting(
    place: BracketPlace, amount: Amount, adversary: AdversaryFields, canaries: int | str
) -> Setting:
    """Returns the setting of an audit at a place.

    Args:
      place: The place, with its model.
      amount: How much of the model is audited; its batch size and insertions are taken.
      adversary: The adversary's fields.
      canaries: The number of canaries in each run, or AUTO.
    """
    values = {
        "adversary": adversary.name,
        **dataclasses.asdict(adversary),
        "canaries": canaries,
        "insertions": amount.insertions,
        "batch_size": amount.batch_size,
        **place.fields,
    }
    return setting_of(place.model, **values)


def expansion_cell(setting: Setting, amount: Amount) -> Cell:
    """Returns the cell of work that measures how much a setting's steps stretch distances between models.

    They are measured along rehearsed runs, which are trained for the measurement alone.

    Args:
      setting: The setting of the audit along a coordinate.
      amount: How many runs are rehearsed. How many of their steps are measured at most serves to estimate
        the time alone.
    """
    runs = amount.rehearsals

    def is_complete(store: Store) -> bool:
        """Returns whether the store has a measurement along at least `runs` runs."""
        from audit.conclusions import rehearsals  # loads SciPy

        return rehearsals.find_measured(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Measures how much steps stretch distances along the rehearsed runs, and stores it."""
        from audit.conclusions import measuring

        measuring.measure_zoo(store, setting, dataset, runs)
        progress(runs)

    name = f"expansion of {setting.model}'s steps, k = {setting.schedule.periodicity}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPERIMENT)
    seconds = _estimate_expansion_seconds(setting, amount)
    # The estimate of `setting_cell` has training alone; that above has compiling and measuring too. The
    # request is what the figure looks the measurement up by.
    return cell._replace(seconds=seconds, request=setting)


def _estimate_expansion_seconds(setting: Setting, amount: Amount) -> float:
    """Returns about how many seconds it takes to measure a setting's steps along rehearsed runs.

    A run trains all of its steps, and measures some of them. To measure a step takes as long as to train for
    many, and never less than some time.

    Args:
      setting: The setting.
      amount: The number of rehearsed runs, and how many of their steps are measured at most.
    """
    steps = setting.schedule.steps
    seconds_a_step = step_seconds(setting)  # of training
    seconds_a_measurement = max(
        _TRAINING_STEPS_PER_MEASURED_STEP * seconds_a_step, _LEAST_SECONDS_PER_MEASURED_STEP
    )
    measured_steps = min(steps, amount.most_measured)
    seconds_a_run = steps * seconds_a_step + measured_steps * seconds_a_measurement
    return _COMPILING_SECONDS + amount.rehearsals * seconds_a_run


def read_expansion(held: Holdings, setting: Setting) -> "Steps | None":
    """Returns what was measured of a setting's steps; None where that is not in the store."""
    from audit.conclusions import lipschitz  # loads SciPy

    store = held.open(identity(setting, EXPERIMENT))
    return None if store is None else lipschitz.find_current(store)
