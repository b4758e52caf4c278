"""The setting of a federated audit: all that decides its scores but for the data.

Importing it starts no JAX.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.errors import require
from audit.settings.fields import MOST_SEED, deciding, described, require_fields
from audit.settings.setting import MOST_CANARIES, NOISE_LIMITS

if TYPE_CHECKING:
    from audit.claims.accounting import Composition

FINAL = ("final", "weights", "fresh")  # values of `observe` that see the final model alone
OBSERVED = (*FINAL, "all", "means")
LEAST_CANARIES = 100
MOST_ROUNDS = 1_000_000
MOST_PLACES = 10**8  # rounds * the larger of cohort and canaries

# Adaptive clipping (Andrew et al., 2021): the noise on the count of updates within C has this share of a
# round's clients as its standard deviation, and C follows the quantile of norms at this rate eta.
_COUNT_SHARE = 0.05
_QUANTILE_RATE = 0.2


@dataclasses.dataclass(frozen=True)
class FederatedTraining:
    """Clients, and how DP-FedAvg trains a model on them; settings of audits add the canaries and attack."""

    model: str = described("A model and its clients; see below.", default="two_layer", always=True)
    clients: int = described(
        "Clients to deal images to, 0: one for each; or to read at most, 0: all.",
        default=600,
        least=0,
        most=10**7,
    )
    alpha: float = described(
        "Dirichlet's alpha, by which images are dealt: small is uneven.", default=1.0, above=0
    )
    cohort: int = described("Clients a round.", default=30, least=1, most=10**6)
    rounds: int = described("Rounds.", default=100, least=1, most=MOST_ROUNDS)
    client_epochs: int = described("Epochs that a client trains.", default=1, least=1, most=10_000)
    batch_size: int = described(
        "Examples in a client's mini-batch.", default=16, least=1, most=10**6
    )
    client_learning_rate: float = described(
        "Learning rate of the clients' SGD.", default=0.1, least=1e-6, most=1e6
    )
    learning_rate: float = described(
        "The server's learning rate.", default=0.5, least=1e-6, most=1e6
    )
    clipping_norm: float = described(
        "Clipping norm C of an update, at first where it adapts.", default=1.0, least=1e-6, most=1e6
    )
    noise_multiplier: float = described(
        "Noise multiplier: noise has deviation sigma * C.", default=0.2, **NOISE_LIMITS
    )
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MOST_SEED)


@dataclasses.dataclass(frozen=True)
class FederatedSetting(FederatedTraining):
    """The setting of one federated audit; its identity in the store leaves out fields at their defaults."""

    momentum: float = described("The server's momentum.", default=0.9, least=0, below=1)
    quantile: float = described(
        "Share of updates that an adaptive C leaves alone; 0: C is fixed.",
        default=0.0,
        least=0,
        below=1,
    )
    canaries: int = described(
        "Canary clients, each in or out by its own coin.",
        default=2000,
        least=LEAST_CANARIES,
        most=MOST_CANARIES,
    )
    repetitions: int = described(
        "Rounds in which each canary takes part.", default=1, least=1, most=MOST_ROUNDS
    )
    observe: str = described(
        "Cosines with the final displacement (final; fresh: of canaries that each run draws anew, so that "
        "runs prove together) or weights, or the largest over rounds: with moves (all) or noisy means.",
        default="final",
        choices=OBSERVED,
    )


def federated_identity(setting: FederatedSetting, data: str) -> dict[str, Any]:
    """Returns what identifies a setting in the store, as a dict for JSON.

    Args:
      setting: the setting.
      data: the checksum of its clients' data.
    """
    return {"experiment": "federated", **deciding(setting), "data_sha256": data}


def validate_federated(setting: FederatedSetting) -> None:
    """Raises InputError for a setting with a value out of range.

    Limits that depend on the clients' data are not checked here, but when rounds are drawn and the game is
    built.
    """
    require_fields(setting)
    rounds = setting.rounds
    repetitions = setting.repetitions
    require(repetitions <= rounds, f"`repetitions={repetitions}`: give 1 to {rounds:,}, the rounds")

    # Arrays have a place for each client and each canary of every round: the limit bounds their memory.
    places = rounds * max(setting.cohort, setting.canaries)
    message = "times the larger of cohort and canaries: their product is to be at most"
    require(places <= MOST_PLACES, f"`rounds={rounds}` {message} {MOST_PLACES:,}")


class RoundNoise(NamedTuple):
    """The noise that a round of DP-FedAvg adds, and how its clipping norm C adapts.

    Attributes:
      multiplier: the standard deviation of the noise on the sum of updates, as a multiple of C.
      on_count: the standard deviation of the noise on the count of updates whose norm is within C; 0 where C
        is fixed.
      quantile_rate: the rate at which an adaptive C follows its quantile; 0 where C is fixed.
    """

    multiplier: float
    on_count: float
    quantile_rate: float


def noise(setting: FederatedSetting) -> RoundNoise:
    """Returns the noise of a setting's rounds.

    Where the clipping norm C adapts (Andrew et al., 2021), a round also releases the noisy count of updates
    within C. The noise on the sum of updates is then larger, so that sum and count together cost as much
    privacy as the setting's noise multiplier says.
    """
    if not setting.quantile:  # C is fixed
        return RoundNoise(setting.noise_multiplier, on_count=0.0, quantile_rate=0.0)
    from audit.claims.accounting import noise_beside_count  # loads SciPy, which sweeps do without

    # A fixed share of the cohort. A round without noise on its sum has none on its count either.
    on_count = _COUNT_SHARE * setting.cohort * (setting.noise_multiplier > 0)
    multiplier = noise_beside_count(setting.noise_multiplier, on_count)
    return RoundNoise(multiplier, on_count, _QUANTILE_RATE)


class Leaks(NamedTuple):
    """The compositions of noisy steps that bound what a client leaks, and what a canary leaks."""

    client: "Composition"
    canary: "Composition"


def leaks(setting: FederatedSetting, most_rounds: int) -> Leaks:
    """Returns the compositions that bound what a client and what a canary leak.

    A client takes part in at most `most_rounds` rounds, and a canary in as many as its repetitions. A round
    counts with the setting's whole noise multiplier, also where `noise` divides the noise between sum and
    count.
    """
    from audit.claims.accounting import Composition

    sigma = setting.noise_multiplier
    return Leaks(Composition(sigma, most_rounds), Composition(sigma, setting.repetitions))
