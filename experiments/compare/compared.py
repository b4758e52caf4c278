"""What is compared: a mechanism, how much each method may spend on it, and the methods that train it.

A method is data: its setting of the mechanism, and its training as a cell. Importing this module does not
start JAX.
"""

import dataclasses
import math
from functools import partial
from typing import NamedTuple

from audit.errors import require
from audit.runtime.progress import Progress
from audit.settings.fields import MOST_SEED, described, require_fields
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.settings.setting import validate as require_setting
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.canife.attacked import Attacked, require_computable
from experiments.cells.audits import setting_cell
from experiments.cells.cell import Cell
from models.catalogue import TASKS
from models.data.images import FASHION_MNIST

MODELS = tuple(name for name, row in TASKS.items() if row.data.name == FASHION_MNIST.name)
COORDINATES = 64  # canaries along coordinates in each run
DIRECTIONS = 32  # canaries along random directions in each run
FINAL = "final model"
ALL = "every iterate"
_SHARED_FIELDS = (
    "steps",
    "batch_size",
    "learning_rate",
    "clipping_norm",
    "noise_multiplier",
    "seed",
)

_ATTACKED_FIELDS = (  # those that CANIFE's setting has too
    "model",
    "learning_rate",
    "clipping_norm",
    "noise_multiplier",
    "design_steps",
    "delta",
    "seed",
)


@dataclasses.dataclass(frozen=True)
class Compared:
    """The mechanism that all methods audit, and how much each may spend on it.

    It is DP-SGD on Fashion-MNIST with mini-batches that the adversary knows; every step takes the canary.
    Neighbours differ by one canary, which is added. So the mechanism is a composition of `steps` Gaussian
    releases, whatever the attack.
    """

    model: str = described("two_layer, linear or mlp, on Fashion-MNIST.", default="two_layer")
    steps: int = described(
        "Training steps, each of which takes the canary.", default=250, least=2, most=100_000
    )
    batch_size: int = described("Examples in a mini-batch.", default=128, least=2, most=10**6)
    learning_rate: float = described("Learning rate.", default=0.1, least=1e-6, most=1e6)
    clipping_norm: float = described("Clipping norm C.", default=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.", default=4.0, least=0.01, most=1e4
    )
    single_runs: int = described("Models with one canary each.", default=500, least=80, most=10**6)
    many_runs: int = described(
        "Models with 64 canaries along coordinates each.", default=100, least=8, most=10**6
    )
    lidp_runs: int = described(
        "Models with 32 random directions each.", default=100, least=8, most=10**6
    )
    fresh_runs: int = described(
        "Models with directions of their own, as many as `audit --canaries=auto` takes.",
        default=10,
        least=1,
        most=10**6,
    )
    one_run_canaries: int = described(
        "Canaries of the one model, each in by a coin.", default=2000, least=100, most=100_000
    )
    measured_rounds: int = described(
        "Rounds that CANIFE measures.", default=2, least=1, most=100_000
    )
    design_steps: int = described(
        "Steps of a CANIFE canary's design.", default=1000, least=1, most=10**6
    )
    delta: float = described("delta of every value.", default=1e-5, above=0, below=1)
    confidence: float = described("Confidence of the lower bounds.", default=0.95, above=0, below=1)
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MOST_SEED)


def validate(compared: Compared) -> None:
    """Raises InputError for a field out of range, or a model that does not train on all of Fashion-MNIST."""
    why = "is unknown"
    if compared.model in TASKS:
        why = "is not on all of Fashion-MNIST, as the methods are"
    choices = f"choose one of {', '.join(MODELS)}"
    require(compared.model in MODELS, f"`model={compared.model}` {why}: {choices}")
    require_fields(compared)
    rounds = compared.measured_rounds
    steps = compared.steps
    require(rounds <= steps, f"`measured_rounds={rounds}`: give 1 to {steps:,}, the steps")
    attacked = make_attacked(compared)
    require_fields(attacked)
    require_computable(attacked)


def make_attacked(compared: Compared) -> Attacked:
    """Returns CANIFE's setting of the mechanism.

    A step of the mechanism is a round for CANIFE, and a mini-batch is a round's cohort.
    """
    shared = {name: getattr(compared, name) for name in _ATTACKED_FIELDS}
    return Attacked(
        rounds=compared.steps,
        # Rounds 1, 1 + every, ... are measured: no more than `measured_rounds` of them.
        every=math.ceil(compared.steps / compared.measured_rounds),
        cohort=compared.batch_size,
        **shared,
    )


class TrainedMethod(NamedTuple):
    """A method that trains the mechanism.

    Attributes:
      method: The method's name, as tables show it.
      sees: What the method sees of the training: FINAL or ALL.
      setting: The setting that it trains.
      runs: The number of runs that it trains.
      shown: The names of the bounds that are shown, in their order; () for a single run of many canaries.
    """

    method: str
    sees: str
    setting: Setting
    runs: int
    shown: tuple[str, ...] = ()

    def cell(self) -> Cell:
        """Returns the cell of work that trains the method's runs and stores their scores.

        Workers may share the cell: each trains some of the runs that the store lacks (`game.train`).
        """

        def is_complete(store: Store) -> bool:
            """Returns whether the store has all runs."""
            return not store.missing(self.runs)

        def do(store: Store, dataset: Dataset, progress: Progress) -> None:
            """Trains the runs that the store lacks."""
            from audit.training import build, game

            # Checked as for 2 runs at least, one in each world. A single run of many canaries is valid too:
            # it has both worlds, since each canary is in or out by its own coin.
            require_setting(self.setting, max(self.runs, 2))
            game.train(build.build(self.setting, dataset), store, self.runs, progress=progress)

        cell = setting_cell(self.method, self.setting, self.runs, is_complete, do)
        return cell


def list_methods(compared: Compared) -> list[TrainedMethod]:
    """Returns the methods that train the mechanism: fresh directions, and those of three papers.

    The papers are hidden-state, LiDP and one-shot. Each method trains the same mechanism with canaries of its
    own; K is their number in a run. CANIFE is not among them, since it trains by code of its own (see
    `experiments.compare.rows`).

    Args:
      compared: The mechanism, and how much each method may spend.
    """
    from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
    from audit.methods.exact_null import EXACT_NULL
    from audit.methods.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN

    # All settings share the fields of the mechanism, and differ in their adversary and its canaries.
    shared = {name: getattr(compared, name) for name in _SHARED_FIELDS}
    setting = partial(setting_of, compared.model, **shared)
    one_run = partial(setting, adversary="one_shot", canaries=compared.one_run_canaries)
    # `shown` names the bounds that are compared. Methods of a single run name none: all theirs are compared.
    return [
        TrainedMethod(
            method="fresh directions",
            sees=FINAL,
            setting=setting(adversary="sphere", canaries="auto"),
            runs=compared.fresh_runs,
            shown=(EXACT_NULL,),
        ),
        TrainedMethod(
            method="hidden state",
            sees=FINAL,
            setting=setting(adversary="gc_s"),
            runs=compared.single_runs,
            shown=(IF_GAUSSIAN, ASSUMPTION_FREE),
        ),
        TrainedMethod(
            method=f"hidden state, K = {COORDINATES}",
            sees=FINAL,
            setting=setting(adversary="gc_r", canaries=COORDINATES),
            runs=compared.many_runs,
            shown=(LIFTED_GAUSSIAN, CLUSTERED, LIFTED),
        ),
        TrainedMethod(
            method=f"LiDP, K = {DIRECTIONS}",
            sees=FINAL,
            setting=setting(adversary="cots", canaries=DIRECTIONS),
            runs=compared.lidp_runs,
            shown=("lidp_wilson_2", "lidp_bernstein_2"),
        ),
        TrainedMethod("one-shot, final", FINAL, one_run(observe="final"), runs=1),
        TrainedMethod("one-shot, all", ALL, one_run(observe="all"), runs=1),
    ]
