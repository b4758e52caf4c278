"""The settings of a federated audit, importable without JAX."""

import dataclasses
from typing import Any, NamedTuple

from audit.errors import require
from audit.settings.fields import MAX_SEED, deciding, described, require_fields
from audit.settings.setting import MAX_CANARIES, NOISE_LIMITS

FINAL = ("final", "weights", "fresh")  # values of `observe` that see only the final model
OBSERVED = (*FINAL, "all", "means")
MIN_CANARIES = 100
MAX_ROUNDS = 1_000_000
MAX_PLACES = 10**8  # rounds times the larger of cohort and canaries


@dataclasses.dataclass(frozen=True)
class FederatedTraining:
    """The clients and hyperparameters of DP-FedAvg, without canaries or an attack."""

    model: str = described(
        "Model, which also selects the clients.", default="two_layer", always=True
    )
    clients: int = described(
        "Number of clients that share the images (0: one per image), or maximum number to read (0: all).",
        default=600,
        least=0,
        most=10**7,
    )
    alpha: float = described(
        "Dirichlet alpha: smaller values spread classes less evenly over clients.",
        default=1.0,
        above=0,
    )
    cohort: int = described("Clients per round.", default=30, least=1, most=10**6)
    rounds: int = described("Training rounds.", default=100, least=1, most=MAX_ROUNDS)
    client_epochs: int = described("Local epochs per client.", default=1, least=1, most=10_000)
    batch_size: int = described("Local mini-batch size.", default=16, least=1, most=10**6)
    client_learning_rate: float = described(
        "Learning rate of the clients.", default=0.1, least=1e-6, most=1e6
    )
    learning_rate: float = described(
        "Learning rate of the server.", default=0.5, least=1e-6, most=1e6
    )
    clipping_norm: float = described(
        "Clipping norm C of updates; the initial value if C adapts.",
        default=1.0,
        least=1e-6,
        most=1e6,
    )
    noise_multiplier: float = described(
        "Noise multiplier sigma: the noise has standard deviation sigma * C.",
        default=0.2,
        **NOISE_LIMITS,
    )
    seed: int = described("Seed for all randomness.", default=0, least=0, most=MAX_SEED)


@dataclasses.dataclass(frozen=True)
class FederatedSetting(FederatedTraining):
    """The settings of a federated audit. Identities in the store omit fields with default values."""

    momentum: float = described("Momentum of the server.", default=0.9, least=0, below=1)
    quantile: float = described(
        "Adapt C to leave this fraction of updates unclipped; 0 keeps C fixed.",
        default=0.0,
        least=0,
        below=1,
    )
    canaries: int = described(
        "Canary clients, each inserted or left out by a coin flip.",
        default=2000,
        least=MIN_CANARIES,
        most=MAX_CANARIES,
    )
    repetitions: int = described(
        "Rounds in which each canary takes part.", default=1, least=1, most=MAX_ROUNDS
    )
    observe: str = described(
        "Score of a canary: its cosine with the final displacement (final) or final weights (weights), or "
        "its largest cosine with any round's displacement (all) or noisy mean (means). fresh: like final, "
        "but with new canaries in each run and one bound from all runs.",
        default="final",
        choices=OBSERVED,
    )


def federated_identity(setting: FederatedSetting) -> dict[str, Any]:
    """Returns the JSON fields that identify a setting in the store, without the clients' checksum."""
    return {"experiment": "federated", **deciding(setting)}


def validate_federated(setting: FederatedSetting) -> None:
    """Raises InputError for a value out of range; data-dependent limits are checked later."""
    require_fields(setting)
    rounds = setting.rounds
    repetitions = setting.repetitions
    require(
        repetitions <= rounds,
        f"`repetitions={repetitions}`: give 1 to {rounds:,}, the number of rounds",
    )

    # All rounds are drawn before training and must fit into memory.
    places = rounds * max(setting.cohort, setting.canaries)
    require(
        places <= MAX_PLACES,
        f"`rounds={rounds}` times the larger of cohort and canaries must be at most {MAX_PLACES:,}",
    )


class RoundNoise(NamedTuple):
    """The noise in a round of DP-FedAvg, and how the clipping norm C adapts.

    Attributes:
      multiplier: the standard deviation of the noise on the sum of updates, as a multiple of C.
      on_count: the standard deviation of the noise on the count of updates with norm at most C; 0 if C is
        fixed.
      quantile_rate: the adaptation rate of C; 0 if C is fixed.
    """

    multiplier: float
    on_count: float
    quantile_rate: float


def noise(setting: FederatedSetting) -> RoundNoise:
    """Returns the noise in the rounds of a setting.

    If the clipping norm C adapts (Andrew et al., 2021), a round also releases a noisy count of the updates
    with norm at most C. The sum therefore needs more noise for the same privacy.
    """
    if not setting.quantile:  # C is fixed
        return RoundNoise(setting.noise_multiplier, on_count=0.0, quantile_rate=0.0)
    from audit.claims.accounting import noise_beside_count  # loads SciPy

    # Andrew et al. recommend this noise on the count, and an adaptation rate of 0.2.
    on_count = 0.05 * setting.cohort
    if setting.noise_multiplier == 0:  # the round is not private anyway
        on_count = 0.0
    multiplier = noise_beside_count(setting.noise_multiplier, on_count)
    return RoundNoise(multiplier, on_count, quantile_rate=0.2)
