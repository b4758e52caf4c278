"""What is compared: one mechanism, and how much each method may spend on it. Importing it starts no JAX."""

import dataclasses

from audit.errors import require
from audit.settings.fields import MOST_SEED, described, require_fields
from models.catalogue import TASKS
from models.data.images import FASHION_MNIST

MODELS = tuple(name for name, row in TASKS.items() if row.data.name == FASHION_MNIST.name)


@dataclasses.dataclass(frozen=True)
class Compared:
    """DP-SGD on Fashion-MNIST: `steps` noisy gradients of known mini-batches, each of which takes the canary.

    Neighbours differ by one canary, which is added; so the mechanism is a composition of as many Gaussian
    releases, whatever attacks it.
    """

    model: str = described("two_layer, linear or mlp, on Fashion-MNIST.", default="two_layer")
    steps: int = described(
        "Training steps, each of which takes the canary.", default=250, least=2, most=100_000
    )
    batch_size: int = described("Examples in a mini-batch.", default=128, least=1, most=10**6)
    learning_rate: float = described("Learning rate.", default=0.1, least=1e-37, most=1e38)
    clipping_norm: float = described("Clipping norm C.", default=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.", default=4.0, least=0.01, most=1e4
    )
    single_runs: int = described("Models with one canary each.", default=500, least=80, most=10**6)
    many_runs: int = described(
        "Models with 64 canaries along coordinates each.", default=100, least=8, most=10**6
    )
    lidp_runs: int = described("Models with 32 random directions each.", default=100, least=8, most=10**6)
    one_run_canaries: int = described(
        "Canaries of the one model, each in by a coin.", default=2000, least=100, most=100_000
    )
    measured_rounds: int = described("Rounds that CANIFE measures.", default=2, least=1, most=100_000)
    design_steps: int = described("Steps of a CANIFE canary's design.", default=1000, least=1, most=10**6)
    delta: float = described("delta of every value.", default=1e-5, above=0, below=1)
    confidence: float = described("Confidence of the lower bounds.", default=0.95, above=0, below=1)
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MOST_SEED)


def validate(compared: Compared) -> None:
    """Raises InputError for a field out of range, or a model that not every method can audit."""
    why = "is not on Fashion-MNIST, as all methods are" if compared.model in TASKS else "is unknown"
    known = f"choose one of {', '.join(MODELS)}"
    require(compared.model in MODELS, f"`model={compared.model}` {why}: {known}")
    require_fields(compared)
    measured, steps = compared.measured_rounds, compared.steps
    require(measured <= steps, f"`measured_rounds={measured}`: give 1 to {steps:,}, the steps")
