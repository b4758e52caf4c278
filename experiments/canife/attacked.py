"""What is measured: a federated training, and how its rounds are attacked. Importing it starts no JAX."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from audit.errors import require
from audit.settings.fields import MOST_SEED, FieldLimits, deciding, declared, described, require_fields
from models.catalogue import TASKS
from models.data.images import (
    CIFAR10,
    CIFAR10_MEAN,
    CIFAR10_STD,
    FASHION_MNIST,
    FASHION_MNIST_MEAN,
    FASHION_MNIST_STD,
    ImageDataset,
    load_cifar10,
    load_fashion_mnist,
)


class ImageData(NamedTuple):
    """Images to train on and to test on; their shape, and their pixels' mean and deviation on [0, 1]."""

    load: Callable[..., ImageDataset]
    shape: tuple[int, ...]
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]


IMAGE_DATA = {  # data sets of images, by the names that tasks' rows have for them
    FASHION_MNIST.name: ImageData(load_fashion_mnist, (28, 28), FASHION_MNIST_MEAN, FASHION_MNIST_STD),
    CIFAR10.name: ImageData(load_cifar10, (32, 32, 3), CIFAR10_MEAN, CIFAR10_STD),
}
IMAGES = tuple(row.name for row in TASKS.values() if row.data.name in IMAGE_DATA)
LEAF = ("celeba_cnn", "celeba_resnet18", "sent140_lstm", "shakespeare_lstm")
MODELS = (*IMAGES, "character_lstm", *LEAF)
STARTS = ("random", "sample")
_POOL, _POPULATION = 512, 2048
_PAPERS = {"batch_size": 32, "cohort": 100}
OWN: dict[str, dict[str, int | float]] = {  # a model's own values: minutes on two cores, or the paper's
    "character_lstm": {
        **{"clients": 60, "examples": 8, "cohort": 10, "batch_size": 8, "pool": 40, "rounds": 21},
        **{"every": 20, "client_learning_rate": 3.0, "noise_multiplier": 0.4},
        **{"design_steps": 300, "design_rate": 0.1},
    },
    **{
        name: {
            **_PAPERS,
            **{"rounds": 2550, "every": 40, "client_learning_rate": 0.8991111469},
            **{"learning_rate": 0.0797379897, "noise_multiplier": 0.4166},
        }
        for name in ("celeba_cnn", "celeba_resnet18")
    },
    "sent140_lstm": {
        **_PAPERS,
        **{"rounds": 8895, "every": 100, "client_learning_rate": 5.7535489395},
        **{"learning_rate": 0.2442128478, "design_rate": 0.1},
    },
    "shakespeare_lstm": {
        **{"batch_size": 128, "cohort": 60, "rounds": 510, "every": 8},
        **{"client_learning_rate": 3.0, "learning_rate": 0.524288, "design_rate": 0.1},
    },
}
PENALTIES = ("as_run", "as_printed", "of_the_mean")


@dataclasses.dataclass(frozen=True)
class Attacked:
    """All that decides a measured round. A field at its default is left out of the stored name, so that a
    further field orphans nothing."""

    model: str = described(
        "two_layer, linear, mlp (Fashion-MNIST), convnet, resnet18 (CIFAR-10), character_lstm (Shakespeare);"
        " with --leaf celeba_cnn, celeba_resnet18, sent140_lstm, shakespeare_lstm. All from character_lstm on"
        " have rounds, cohorts and rates of their own by default.",
        default="two_layer",
        always=True,
    )
    rounds: int = described("Rounds of the training.", default=469, least=1, most=10**6)
    every: int = described("Rounds 1, 1 + every, ... are measured.", default=100, least=1, most=10**6)
    cohort: int = described("Clients a round.", default=128, least=2, most=10**6)
    learning_rate: float = described(
        "Server's learning rate on the mean clipped update.", default=0.5, least=1e-6, most=1e6
    )
    clients: int = described(
        "Clients that images are dealt to, 0: one example a client; or roles or users, 0: all.",
        default=0,
        least=0,
        most=10**7,
    )
    examples: int = described("Examples of a client at most; 0: all.", default=0, least=0, most=10**6)
    alpha: float = described(
        "Dirichlet's alpha, by which images are dealt: small is uneven.", default=1.0, least=1e-6, most=1e6
    )
    client_learning_rate: float = described(
        "Learning rate of SGD at such a client.", default=0.1, least=1e-6, most=1e6
    )
    client_epochs: int = described(
        "Epochs that a client of many examples trains.", default=1, least=1, most=1000
    )
    batch_size: int = described("Examples in such a client's mini-batch.", default=16, least=1, most=10**6)
    clipping_norm: float = described("Clipping norm C.", default=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.",
        default=0.2,
        least=0.01,
        most=1e4,
        zero_too=True,
    )
    pool: int = described(
        "Mock clients that canaries are designed on; 0: up to 512.", default=0, least=0, most=10**6
    )
    population: int = described(
        "Training clients that mock rounds draw on; 0: up to 2,048.", default=0, least=0, most=10**7
    )
    scores: int = described("Mock rounds of a published estimate, n.", default=100, least=4, most=10**6)
    mock_rounds: int = described(
        "Mock rounds a world of the certified bound.", default=100_000, least=100, most=10**7
    )
    design_steps: int = described("Steps of a canary's design.", default=2500, least=1, most=10**6)
    design_rate: float = described(
        "Adam's learning rate on the sample; text wants 0.1.", default=1.0, least=1e-6, most=1e6
    )
    design_batch: int = described(
        "Mock updates a step of the design; 0: as many as the cohort.", default=0, least=0, most=10**6
    )
    norm_constant: float = described(
        "k: gradients shorter than this are lengthened.", default=5.0, least=1e-6, most=1e6
    )
    penalty: str = described(
        "What a design minimises: as_run, as_printed or of_the_mean.", default="as_run", choices=PENALTIES
    )
    start: str = described("First sample: random, or a sample of the pool.", default="random", choices=STARTS)
    clamp: bool = described("Keep pixels within [0, 1].", default=False)
    soft_label: bool = described("Design the label too, as a mixture.", default=False)
    keep_best: bool = described("Take the best sample of a design, not the last.", default=False)
    as_published: bool = described(
        "The canary replaces a client and sends its raw gradient, as in the paper's code.", default=False
    )
    memory: int = described("Bytes for the pool's updates.", default=1 << 30, least=0)
    delta: float = described("delta of the training.", default=1e-5, above=0, below=1)
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MOST_SEED)

    def measured(self) -> list[int]:
        """The rounds that are measured, from 1."""
        return list(range(1, self.rounds + 1, self.every))


def asked(given: dict[str, Any], said: Collection[str]) -> Attacked:
    """The setting of all fields' values, where those that nobody said are the model's own; raises InputError
    for a field out of range."""
    own = OWN.get(given["model"], {})
    found = Attacked(**{**given, **{name: value for name, value in own.items() if name not in said}})
    require_model(found.model)
    require_fields(found)
    return found


def require_model(model: str) -> None:
    """Raises InputError for a model whose canaries nobody designs here, and says why."""
    why = "reads neither images nor texts, which canaries are" if model in TASKS else "is unknown"
    require(model in MODELS, f"`model={model}` {why}: choose one of {', '.join(MODELS)}")


def fitted(attacked: Attacked, train_clients: int, mock_clients: int) -> Attacked:
    """The setting with as many clients as it says or, where it leaves them open, as there are."""
    pool = attacked.pool or min(_POOL, mock_clients)
    population = attacked.population or min(_POPULATION, train_clients)
    return dataclasses.replace(attacked, pool=pool, population=population)


def identity(attacked: Attacked, checksum: str) -> dict[str, Any]:
    """What a store is named by: the fields that are not at their defaults, and the data."""
    return {"experiment": "canife", **deciding(attacked), "data": checksum}


def folder_name(attacked: Attacked, checksum: str) -> str:
    """The store's folder."""
    text = json.dumps(identity(attacked, checksum), sort_keys=True)
    return f"{attacked.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def validate(attacked: Attacked, train_clients: int, test_clients: int) -> None:
    """Raises InputError for the first field out of range, or beyond what there is of clients."""
    require_fields(attacked)
    for name, least, most in (
        ("cohort", 2, min(attacked.population, train_clients)),
        ("population", 2, train_clients),
        ("pool", 1, test_clients),
        ("design_batch", 0, attacked.pool),
    ):
        declared(Attacked)[name]._replace(limits=FieldLimits(least, most)).require(getattr(attacked, name))
