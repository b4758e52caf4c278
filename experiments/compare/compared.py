"""The compared mechanism, the budget of each method, and the methods that train it, as data.

Importing this module does not import JAX.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from audit.errors import require
from audit.settings.fields import MAX_SEED, described, require_fields
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from experiments.canife.attacked import Attacked, require_computable
from models.catalogue import TASKS
from models.data.images import FASHION_MNIST

MODELS = tuple(name for name, row in TASKS.items() if row.data.name == FASHION_MNIST.name)
COORDINATES = 64  # canaries along coordinates in each run
DIRECTIONS = 32  # canaries along random directions in each run
FINAL = "final model"
ALL = "every iterate"
# The mechanism's fields in all settings, including CANIFE's.
_SHARED_FIELDS = ("learning_rate", "clipping_norm", "noise_multiplier", "seed")


@dataclasses.dataclass(frozen=True)
class Compared:
    """The mechanism that all methods audit, and the budget of each method.

    It is DP-SGD on Fashion-MNIST with known mini-batches and the canary in every step. A neighbour has one
    more canary. So every attack faces a composition of `steps` Gaussian releases.
    """

    model: str = described("two_layer, linear or mlp, on Fashion-MNIST.", default="two_layer")
    steps: int = described(
        "Training steps; each step takes the canary.", default=250, least=2, most=100_000
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
        "Models with fresh directions, whose number is that of `audit --canaries=auto`.",
        default=10,
        least=1,
        most=10**6,
    )
    one_run_canaries: int = described(
        "Canaries of the single model, each inserted by a coin.",
        default=2000,
        least=100,
        most=100_000,
    )
    measured_rounds: int = described(
        "Rounds that CANIFE measures.", default=2, least=1, most=100_000
    )
    design_steps: int = described(
        "Steps of a CANIFE canary's design.", default=1000, least=1, most=10**6
    )
    delta: float = described("delta of every value.", default=1e-5, above=0, below=1)
    confidence: float = described("Confidence of the lower bounds.", default=0.95, above=0, below=1)
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MAX_SEED)


def validate(compared: Compared) -> None:
    """Raises InputError for a field out of range, or a model that does not use all of Fashion-MNIST."""
    model = compared.model
    choices = f"choose one of {', '.join(MODELS)}"
    require(model in MODELS, f"`model={model}` is not on all of Fashion-MNIST: {choices}")
    require_fields(compared)
    rounds = compared.measured_rounds
    steps = compared.steps
    require(rounds <= steps, f"`measured_rounds={rounds}`: give 1 to {steps:,}, the steps")
    attacked = make_attacked(compared)
    require_fields(attacked)
    require_computable(attacked)


def make_attacked(compared: Compared) -> Attacked:
    """Returns CANIFE's setting of the mechanism: steps are rounds, and mini-batches are cohorts."""
    return Attacked(
        model=compared.model,
        rounds=compared.steps,
        # Rounds 1, 1 + every, ... are measured, at most `measured_rounds` of them.
        every=math.ceil(compared.steps / compared.measured_rounds),
        cohort=compared.batch_size,
        design_steps=compared.design_steps,
        delta=compared.delta,
        **_take_shared(compared),
    )


def _take_shared(compared: Compared) -> dict[str, Any]:
    """Returns the fields of the mechanism that all settings have."""
    return {name: getattr(compared, name) for name in _SHARED_FIELDS}


class TrainedMethod(NamedTuple):
    """A method that trains the mechanism.

    Attributes:
      shown: The names of the shown bounds, in order; () for a single run of many canaries.
      sees: The models that the method sees: FINAL or ALL.
    """

    name: str
    runs: int
    shown: tuple[str, ...]
    sees: str
    setting: Setting


def list_methods(compared: Compared) -> list[TrainedMethod]:
    """Returns the methods that train the mechanism: fresh directions, hidden-state, LiDP and one-shot.

    Each has different canaries; K is their number in a run. CANIFE has separate training code.
    """
    from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
    from audit.methods.exact_null import EXACT_NULL
    from audit.methods.lifted import LIFTED, LIFTED_GAUSSIAN

    def make(name: str, runs: int, shown: tuple[str, ...], **fields: Any) -> TrainedMethod:
        """Returns a method; its setting has `fields` in addition to those of the mechanism."""
        setting = setting_of(
            compared.model,
            steps=compared.steps,
            batch_size=compared.batch_size,
            **_take_shared(compared),
            **fields,
        )
        sees = ALL if fields.get("observe") == "all" else FINAL
        return TrainedMethod(name, runs, shown, sees, setting)

    one_run = {"adversary": "one_shot", "canaries": compared.one_run_canaries}
    return [
        make(
            "fresh directions",
            compared.fresh_runs,
            (EXACT_NULL,),
            adversary="sphere",
            canaries="auto",
        ),
        make(
            "hidden state",
            compared.single_runs,
            (IF_GAUSSIAN, ASSUMPTION_FREE),
            adversary="gc_s",
        ),
        make(
            f"hidden state, K = {COORDINATES}",
            compared.many_runs,
            (LIFTED_GAUSSIAN, LIFTED),
            adversary="gc_r",
            canaries=COORDINATES,
        ),
        make(
            f"LiDP, K = {DIRECTIONS}",
            compared.lidp_runs,
            ("lidp_wilson_2", "lidp_bernstein_2"),
            adversary="cots",
            canaries=DIRECTIONS,
        ),
        make("one-shot, final", 1, (), observe="final", **one_run),
        make("one-shot, all", 1, (), observe="all", **one_run),
    ]
