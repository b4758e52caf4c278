"""What is compared: one mechanism, and how much each method may spend on it. Importing it starts no JAX."""

import dataclasses

from audit.errors import require
from audit.settings.setting import described
from audit.statistics import conversions

MODELS = ("two_layer", "linear", "mlp")


@dataclasses.dataclass(frozen=True)
class Compared:
    """DP-SGD on Fashion-MNIST: `steps` noisy gradients of known mini-batches, each of which takes the canary.

    Neighbours differ by one canary, which is added; so the mechanism is a composition of as many Gaussian
    releases, whatever attacks it.
    """

    model: str = described("two_layer, linear or mlp, on Fashion-MNIST.", default="two_layer")
    steps: int = described("Training steps, each of which takes the canary.", default=250)
    batch_size: int = described("Examples in a mini-batch.", default=128)
    learning_rate: float = described("Learning rate.", default=0.1)
    clipping_norm: float = described("Clipping norm C.", default=1.0)
    noise_multiplier: float = described("Noise multiplier sigma: noise has deviation sigma * C.", default=4.0)
    single_runs: int = described("Models with one canary each.", default=500)
    many_runs: int = described("Models with 64 canaries along coordinates each.", default=100)
    lidp_runs: int = described("Models with 32 random directions each.", default=100)
    one_run_canaries: int = described("Canaries of the one model, each in by a coin.", default=2000)
    measured_rounds: int = described("Rounds that CANIFE measures.", default=2)
    design_steps: int = described("Steps of a CANIFE canary's design.", default=1000)
    delta: float = described("delta of every value.", default=1e-5)
    confidence: float = described("Confidence of the lower bounds.", default=0.95)
    seed: int = described("Seed of all randomness.", default=0)


def validate(compared: Compared) -> None:
    """Raises InputError for a field that no method's own check would name."""
    known = f"choose one of {', '.join(MODELS)}"
    require(compared.model in MODELS, f"`model={compared.model}` is unknown: {known}")
    conversions.require_delta(compared.delta)
    conversions.require_confidence(compared.confidence)
    for name, least, most in (
        ("steps", 2, 100_000),
        ("single_runs", 80, 1_000_000),
        ("many_runs", 8, 1_000_000),
        ("lidp_runs", 8, 1_000_000),
        ("one_run_canaries", 100, 100_000),
        ("measured_rounds", 1, compared.steps),
    ):
        value = getattr(compared, name)
        require(least <= value <= most, f"`{name}={value}`: give a whole number from {least:,} to {most:,}")
    noise = compared.noise_multiplier
    require(0.01 <= noise <= 1e4, f"`noise_multiplier={noise:g}`: give a number from 0.01 to 10,000")
