"""The settings of a training run that CANIFE audits. Importing this module does not start JAX."""

import dataclasses
from typing import Any

from audit.errors import require
from audit.settings.federated import FederatedTraining
from audit.settings.fields import deciding, described
from models.catalogue import FEDERATED_TASKS, TASKS

# Image models can be trained on examples or on clients.
IMAGE_MODELS = tuple(name for name in FEDERATED_TASKS if name in TASKS)
STARTS = ("random", "sample")
PENALTIES = {  # the design's objectives, with labels for figures
    "as_run": "as in the public code",
    "as_printed": "sum over updates (Equation 2)",
    "of_the_mean": "mean update (loss 1)",
}
_POSITIVE: dict[str, Any] = {"least": 1e-6, "most": 1e6}
_COUNT: dict[str, Any] = {"least": 1, "most": 10**6}
_ZERO_OR_COUNT: dict[str, Any] = {"default": 0, "least": 0, "most": 10**7}


@dataclasses.dataclass(frozen=True)
class Attacked(FederatedTraining):
    """The settings of a training run under attack.

    The attack designs canaries with mock clients and scores them in simulated (mock) rounds.
    """

    model: str = described(
        "two_layer, linear, mlp (Fashion-MNIST), convnet, resnet18 (CIFAR-10), or character_lstm "
        "(Shakespeare).",
        default="two_layer",
        always=True,
        choices=(*IMAGE_MODELS, "character_lstm"),
    )
    clients: int = described(
        "Number of clients; 0: one per image, or per role in Shakespeare's plays.",
        **_ZERO_OR_COUNT,
    )
    cohort: int = described("Clients per round.", default=128, least=2, most=10**6)
    rounds: int = described("Training rounds.", default=469, **_COUNT)
    noise_multiplier: float = described(
        "Noise multiplier sigma: the noise has standard deviation sigma * C.",
        default=0.2,
        least=0.04,  # with less noise, a round's epsilon may exceed 512, which we cannot compute
        most=1e4,
        zero_too=True,
    )
    every: int = described("Measure rounds 1, 1 + every, ...", default=100, **_COUNT)
    examples: int = described("Maximum number of examples per client; 0: all.", **_ZERO_OR_COUNT)
    pool: int = described("Mock clients for designing canaries; 0: up to 512.", **_ZERO_OR_COUNT)
    population: int = described(
        "Training clients for mock rounds; 0: up to 2,048.", **_ZERO_OR_COUNT
    )
    scores: int = described(
        "Mock rounds per published estimate, n.", default=100, least=4, most=10**6
    )
    mock_rounds: int = described(
        "Mock rounds per world for the certified bound.",
        default=100_000,
        least=100,
        most=10**7,
    )
    design_steps: int = described("Optimization steps per canary.", default=2500, **_COUNT)
    design_rate: float = described(
        "Adam's learning rate for the sample; use 0.1 for text.",
        default=1.0,
        **_POSITIVE,
    )
    design_batch: int = described(
        "Mock updates per design step; 0: the cohort size.", **_ZERO_OR_COUNT
    )
    norm_constant: float = described(
        "k: the design lengthens gradients below this norm.",
        default=5.0,
        **_POSITIVE,
    )
    penalty: str = described(
        "Design objective: as_run, as_printed or of_the_mean.",
        default="as_run",
        choices=tuple(PENALTIES),
    )
    start: str = described(
        "First sample of a design: random, or sample, an example from the pool.",
        default="random",
        choices=STARTS,
    )
    soft_label: bool = described("Also design the label, as a mixture.", default=False)
    keep_best: bool = described("Use the best sample of a design, not the last.", default=False)
    as_published: bool = described(
        "The canary replaces a client and sends its raw gradient, as in the paper's code.",
        default=False,
    )
    delta: float = described(
        "delta for the epsilon over all rounds.", default=1e-5, least=1e-14, below=1
    )

    def measured(self) -> list[int]:
        """Returns the numbers of the rounds to measure: 1, 1 + every, ..."""
        return list(range(1, self.rounds + 1, self.every))


def fit_to_clients(setting: Attacked, train_clients: int, mock_clients: int) -> Attacked:
    """Replaces a `pool` or `population` of 0, and checks all fields that count clients.

    The updates of the mock clients in the pool shape the canary. Simulated (mock) rounds draw their cohorts
    from the population, a subset of the training clients. By default (0), the pool has up to 512 clients and
    the population up to 2,048, to save time. Raises InputError if there are too few clients.
    """
    pool = setting.pool or min(512, mock_clients)
    population = setting.population or min(2048, train_clients)
    setting = dataclasses.replace(setting, pool=pool, population=population)
    limits = {
        # Training draws cohorts from the training clients, and mock rounds from the population.
        "cohort": min(population, train_clients),
        "population": train_clients,
        "pool": mock_clients,
    }
    for name, most in limits.items():
        value = getattr(setting, name)
        require(value <= most, f"`{name}={value}`: give at most {most:,}, the number of clients")
    return setting


def identity(setting: Attacked) -> dict[str, Any]:
    """Returns the fields that identify a setting in the store, except the checksum of its data."""
    return {"experiment": "canife", **deciding(setting)}
