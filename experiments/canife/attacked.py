"""What is measured: a federated training and how its rounds are attacked, alone or in a grid of settings.
Importing it starts no JAX."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Collection
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.settings.fields import MOST_SEED, FieldLimits, deciding, declared, described, require_fields
from models.catalogue import TASKS
from models.data.images import CIFAR10, FASHION_MNIST

Value = str | int | float | bool
IMAGES = tuple(row.name for row in TASKS.values() if row.data.name in (FASHION_MNIST.name, CIFAR10.name))
LEAF = ("celeba_cnn", "celeba_resnet18", "sent140_lstm", "shakespeare_lstm")
MODELS = (*IMAGES, "character_lstm", *LEAF)
STARTS = ("random", "sample")
_CELEBA = {
    **{"batch_size": 32, "cohort": 100, "rounds": 2550, "every": 40, "noise_multiplier": 0.4166},
    **{"client_learning_rate": 0.8991111469, "learning_rate": 0.0797379897},
}
OWN: dict[str, dict[str, int | float]] = {  # a model's own values: minutes on two cores, or the paper's
    "character_lstm": {
        **{"clients": 60, "examples": 8, "cohort": 10, "batch_size": 8, "pool": 40, "rounds": 21},
        **{"every": 20, "client_learning_rate": 3.0, "noise_multiplier": 0.4},
        **{"design_steps": 300, "design_rate": 0.1},
    },
    "celeba_cnn": _CELEBA,
    "celeba_resnet18": _CELEBA,
    "sent140_lstm": {
        **{"batch_size": 32, "cohort": 100, "rounds": 8895, "every": 100, "design_rate": 0.1},
        **{"client_learning_rate": 5.7535489395, "learning_rate": 0.2442128478},
    },
    "shakespeare_lstm": {
        **{"batch_size": 128, "cohort": 60, "rounds": 510, "every": 8},
        **{"client_learning_rate": 3.0, "learning_rate": 0.524288, "design_rate": 0.1},
    },
}
PENALTIES = ("as_run", "as_printed", "of_the_mean")
MOST_FIELDS, MOST_SETTINGS = 2, 200
SEED, ROUND = "seed", "round"
_EXAMPLE = "start=random,sample;pool=64,128;seed=0,1"
_REAL: dict[str, Any] = {"least": 1e-6, "most": 1e6}
_SOME: dict[str, Any] = {"least": 1, "most": 10**6}
_ANY: dict[str, Any] = {"default": 0, "least": 0, "most": 10**6}
_MANY: dict[str, Any] = {"default": 0, "least": 0, "most": 10**7}


@dataclasses.dataclass(frozen=True)
class Attacked:
    """All that decides a measured round."""

    model: str = described(
        "two_layer, linear, mlp (Fashion-MNIST), convnet, resnet18 (CIFAR-10), character_lstm (Shakespeare);"
        " with --leaf celeba_cnn, celeba_resnet18, sent140_lstm, shakespeare_lstm. All from character_lstm on"
        " have rounds, cohorts and rates of their own by default.",
        default="two_layer",
        always=True,
    )
    rounds: int = described("Rounds of the training.", default=469, **_SOME)
    every: int = described("Rounds 1, 1 + every, ... are measured.", default=100, **_SOME)
    cohort: int = described("Clients a round.", default=128, least=2, most=10**6)
    learning_rate: float = described(
        "Server's learning rate on the mean clipped update.", default=0.5, **_REAL
    )
    clients: int = described(
        "Clients that images are dealt to, 0: one example a client; or roles or users, 0: all.", **_MANY
    )
    examples: int = described("Examples of a client at most; 0: all.", **_ANY)
    alpha: float = described(
        "Dirichlet's alpha, by which images are dealt: small is uneven.", default=1.0, **_REAL
    )
    client_learning_rate: float = described("Learning rate of SGD at such a client.", default=0.1, **_REAL)
    client_epochs: int = described(
        "Epochs that a client of many examples trains.", default=1, least=1, most=1000
    )
    batch_size: int = described("Examples in such a client's mini-batch.", default=16, **_SOME)
    clipping_norm: float = described("Clipping norm C.", default=1.0, **_REAL)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.",
        default=0.2,
        least=0.01,
        most=1e4,
        zero_too=True,
    )
    pool: int = described("Mock clients that canaries are designed on; 0: up to 512.", **_ANY)
    population: int = described("Training clients that mock rounds draw on; 0: up to 2,048.", **_MANY)
    scores: int = described("Mock rounds of a published estimate, n.", default=100, least=4, most=10**6)
    mock_rounds: int = described(
        "Mock rounds a world of the certified bound.", default=100_000, least=100, most=10**7
    )
    design_steps: int = described("Steps of a canary's design.", default=2500, **_SOME)
    design_rate: float = described(
        "Adam's learning rate on the sample; text wants 0.1.", default=1.0, **_REAL
    )
    design_batch: int = described("Mock updates a step of the design; 0: as many as the cohort.", **_ANY)
    norm_constant: float = described("k: gradients shorter than this are lengthened.", default=5.0, **_REAL)
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
    """The setting of all values, the model's own where none was given; raises InputError out of range."""
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
    """The setting with as many clients as it says or, where it leaves them open, as there are. Raises
    InputError for the first field out of range, or beyond what there is of clients."""
    pool = attacked.pool or min(512, mock_clients)
    population = attacked.population or min(2048, train_clients)
    attacked = dataclasses.replace(attacked, pool=pool, population=population)
    require_model(attacked.model)
    require_fields(attacked)
    for name, least, most in (
        ("cohort", 2, min(population, train_clients)),
        ("population", 2, train_clients),
        ("pool", 1, mock_clients),
        ("design_batch", 0, pool),
    ):
        declared(Attacked)[name]._replace(limits=FieldLimits(least, most)).require(getattr(attacked, name))
    return attacked


def identity(attacked: Attacked, checksum: str) -> dict[str, Any]:
    """What a store is named by: the fields that are not at their defaults, and the data."""
    return {"experiment": "canife", **deciding(attacked), "data": checksum}


def folder_name(attacked: Attacked, checksum: str) -> str:
    """The store's folder."""
    text = json.dumps(identity(attacked, checksum), sort_keys=True)
    return f"{attacked.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Combination(NamedTuple):
    """A setting of a grid, and the values of the grid's fields there, in the grid's order."""

    values: tuple[Value, ...]
    attacked: Attacked


class VariedGrid(NamedTuple):
    """Settings and how they are drawn.

    fields: those that are varied, up to two, beside the seeds that are averaged. curve: the field that tells
    curves apart, or empty. x: the field on the x axis, or `round`. combinations: the seeds of one follow each
    other.
    """

    fields: tuple[str, ...]
    curve: str
    x: str
    combinations: list[Combination]

    @property
    def over_rounds(self) -> bool:
        """Whether a training's measured rounds are the x axis."""
        return self.x == ROUND


def grid(text: str, given: dict[str, Any], said: Collection[str]) -> VariedGrid:
    """The grid of "field=value,value;field=value", beside all fields as given, of which somebody said some.

    Of two fields the first tells curves apart and the second is the x axis. Otherwise the measured rounds
    are, or the one field where a training has one measured round. Raises InputError for the first thing that
    is wrong.
    """
    varied = _varied(text)
    for name in varied:
        require(name not in said, f"`{name}={given[name]}` is also in `vary`: drop one of the two")
    seeds = varied.pop(SEED, (given[SEED],))
    combinations = []
    for values, seed in itertools.product(itertools.product(*varied.values()), seeds):
        own = {**dict(zip(varied, values, strict=True)), SEED: seed}
        combinations.append(Combination(values, asked({**given, **own}, [*said, *own])))
    axes = list(varied)
    several = any(len(one.attacked.measured()) > 1 for one in combinations)
    if not axes or len(axes) == 1 and several:
        axes.append(ROUND)
    *curve, x = axes
    return VariedGrid(tuple(varied), "".join(curve), x, combinations)


def _varied(text: str) -> dict[str, tuple[Value, ...]]:
    require(text.strip(), f"`vary=`: name fields and values, as in {_EXAMPLE}")
    parts = [_field_values(part) for part in text.split(";")]
    names = [name for name, _ in parts]
    for name in names:
        require(names.count(name) == 1, f"`vary`: {name} is there twice: list its values together")
    fields = [name for name in names if name != SEED]
    few = f"vary one or two fields beside {SEED}, curves and x axis; set the others by flags"
    require(len(fields) <= MOST_FIELDS, f"`vary`: {', '.join(fields)}: {few}")
    count = math.prod(len(values) for _, values in parts)
    require(count <= MOST_SETTINGS, f"`vary`: {count:,} settings: give fewer values, {MOST_SETTINGS} at most")
    return {name: values for name, values in sorted(parts, key=lambda part: part[0] == SEED)}


def _field_values(part: str) -> tuple[str, tuple[Value, ...]]:
    """One "field=value,value"."""
    name, _, listed = (piece.strip() for piece in part.partition("="))
    kinds = {field.name: field.type for field in dataclasses.fields(Attacked)}
    require(name in kinds, f"`vary`: {name!r} is no field: choose among {', '.join(kinds)}")
    require(listed, f"`vary`: {name} has no values: write them as in {_EXAMPLE}")
    values = tuple(_value(name, kinds[name], text.strip()) for text in listed.split(","))
    for value in values:
        require(values.count(value) == 1, f"`vary`: {name}={value} is there twice: drop one")
    return name, values


def _value(name: str, kind: Any, text: str) -> Value:
    if kind is str:
        require(text, f"`vary`: {name} has an empty value: write values as in {_EXAMPLE}")
        return text
    try:
        value: Value = {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise InputError(f"`vary`: {name}={text!r}: give {wanted}") from None
    return value
