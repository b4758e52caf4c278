"""The audited mechanism, the budget of each method, and the settings of the methods that train models.

Importing this module does not import JAX.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from audit.claims.strategies import INDEPENDENT, read_strategy
from audit.settings.fields import MAX_SEED, described, require_fields
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from experiments.canife.attacked import Attacked
from models.catalogue import TASKS
from models.data.images import FASHION_MNIST

MODELS = tuple(name for name, row in TASKS.items() if row.data.name == FASHION_MNIST.name)
_NUM_COORDINATES = 64  # canaries along coordinates in each run
_NUM_DIRECTIONS = 32  # canaries along random directions in each run
_MEASURED_ROUNDS = 2  # rounds that CANIFE measures
ONE_SHOT = "one_shot"  # the adversary of the one-shot paper, with a single run
_ONE_SHOT_METHODS = (
    "one_shot_fitted",
    "one_shot_equal_variance",
    "one_run_guesses",
    "one_run_gaussian",
)
FINAL = "final model"
ALL = "every iterate"
# Fields of the mechanism that have the same name in all settings, including CANIFE's.
_SHARED_FIELDS = ("learning_rate", "clipping_norm", "noise_multiplier", "seed")


@dataclasses.dataclass(frozen=True)
class Compared:
    """The mechanism that all methods audit, and the budget of each method.

    The mechanism is DP-SGD on Fashion-MNIST, and every step inserts the canary. The adversary knows the
    mini-batches, and neighbours differ by one canary. So each method attacks a composition of `steps`
    Gaussian releases.
    """

    model: str = described(
        "two_layer, linear or mlp, on Fashion-MNIST.", default="two_layer", choices=MODELS
    )
    steps: int = described(
        "Training steps, each with the canary.", default=250, least=2, most=100_000
    )
    batch_size: int = described("Examples in a mini-batch.", default=128, least=2, most=10**6)
    learning_rate: float = described("Learning rate.", default=0.1, least=1e-6, most=1e6)
    clipping_norm: float = described("Clipping norm C.", default=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: the noise has standard deviation sigma * C.",
        default=4.0,
        least=0.01,
        most=1e4,
    )
    noise: str = described(
        "Noise across steps, as in `audit`. CANIFE needs independent noise.",
        default=INDEPENDENT,
    )
    single_runs: int = described("Models with one canary.", default=500, least=80, most=10**6)
    many_runs: int = described(
        "Models with several canaries: 64 along coordinate axes, or 32 along random directions.",
        default=100,
        least=8,
        most=10**6,
    )
    fresh_runs: int = described(
        "Models with fresh directions, as many per model as `audit --canaries=auto` uses.",
        default=10,
        least=1,
        most=10**6,
    )
    one_run_canaries: int = described(
        "Canaries in the single model, each included or left out by a coin flip.",
        default=2000,
        least=100,
        most=100_000,
    )
    design_steps: int = described(
        "Optimization steps for designing a CANIFE canary.", default=1000, least=1, most=10**6
    )
    delta: float = described("delta of all results.", default=1e-5, above=0, below=1)
    confidence: float = described("Confidence of the lower bounds.", default=0.95, above=0, below=1)
    seed: int = described("Seed for all randomness.", default=0, least=0, most=MAX_SEED)


def validate(compared: Compared) -> None:
    """Raises InputError if a field of `compared` or of CANIFE's setting is out of range."""
    require_fields(compared)
    read_strategy(compared.noise, compared.steps)  # raises InputError for an unknown strategy
    require_fields(make_attacked(compared))


def make_attacked(compared: Compared) -> Attacked:
    """Returns the mechanism as a CANIFE setting, in which steps are rounds and mini-batches are cohorts."""
    return Attacked(
        model=compared.model,
        rounds=compared.steps,
        # CANIFE measures rounds 1, 1 + every, ...: here, _MEASURED_ROUNDS of them.
        every=math.ceil(compared.steps / _MEASURED_ROUNDS),
        cohort=compared.batch_size,
        design_steps=compared.design_steps,
        delta=compared.delta,
        **_copy_shared_fields(compared),
    )


def _copy_shared_fields(compared: Compared) -> dict[str, Any]:
    """Returns a dict of the values of _SHARED_FIELDS."""
    return {name: getattr(compared, name) for name in _SHARED_FIELDS}


class TrainedMethod(NamedTuple):
    """A method that trains models with the mechanism.

    Attributes:
      name: The displayed name.
      runs: The number of models to train.
      shown: The names of the bounds and estimates to show, in order.
      sees: The models that the method sees: FINAL or ALL.
      setting: The setting that the method audits.
    """

    name: str
    runs: int
    shown: tuple[str, ...]
    sees: str
    setting: Setting


def list_methods(compared: Compared) -> list[TrainedMethod]:
    """Returns the methods to compare, except CANIFE, which has its own training code.

    Fresh directions are our method. The others use their papers' adversaries: hidden state uses many runs
    with one canary, or with K canaries along random coordinates; LiDP uses many runs with K canaries;
    one-shot uses a single run.
    """

    def make(name: str, runs: int, shown: tuple[str, ...], **fields: Any) -> TrainedMethod:
        """Returns a method that audits `compared` and shows the bounds and estimates in `shown`.

        `fields` sets the adversary, the canaries and `observe`: "final" if the method sees only the final
        model (the default), or "all".
        """
        setting = setting_of(
            compared.model,
            steps=compared.steps,
            batch_size=compared.batch_size,
            noise=compared.noise,
            **_copy_shared_fields(compared),
            **fields,
        )
        sees = ALL if fields.get("observe") == "all" else FINAL
        return TrainedMethod(name, runs, shown, sees, setting)

    one_run = {"adversary": ONE_SHOT, "canaries": compared.one_run_canaries}
    return [
        make(
            "fresh directions",
            compared.fresh_runs,
            ("exact_null",),
            adversary="sphere",  # new directions in every run
            canaries="auto",  # the model's default number
        ),
        make(
            "hidden state",
            compared.single_runs,  # with one canary
            ("if_gaussian", "assumption_free"),
            adversary="gc_s",  # the coordinate that moves least in simulated training
        ),
        make(
            f"hidden state, K = {_NUM_COORDINATES}",
            compared.many_runs,
            ("lifted_gaussian", "lifted"),
            adversary="gc_r",  # random coordinates
            canaries=_NUM_COORDINATES,
        ),
        make(
            f"LiDP, K = {_NUM_DIRECTIONS}",
            compared.many_runs,
            ("lidp_wilson_2", "lidp_bernstein_2"),
            adversary="cots",  # random directions that all runs share
            canaries=_NUM_DIRECTIONS,
        ),
        # Only cosines with the final model have a known distribution, which `exact_null` needs.
        make("one-shot, final", 1, (*_ONE_SHOT_METHODS, "exact_null"), observe="final", **one_run),
        make("one-shot, all", 1, _ONE_SHOT_METHODS, observe="all", **one_run),
    ]
