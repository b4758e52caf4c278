"""What is measured: a federated training run and how its rounds are attacked, alone or in a grid of settings.

Importing this starts no JAX.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Collection
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.settings.fields import (
    MOST_SEED,
    FieldLimits,
    deciding,
    declared,
    described,
    require_fields,
)
from models.catalogue import TASKS
from models.data.images import CIFAR10, FASHION_MNIST

Value = str | int | float | bool
IMAGE_MODELS = tuple(
    row.name for row in TASKS.values() if row.data.name in (FASHION_MNIST.name, CIFAR10.name)
)
LEAF_MODELS = ("celeba_cnn", "celeba_resnet18", "sent140_lstm", "shakespeare_lstm")
MODELS = (*IMAGE_MODELS, "character_lstm", *LEAF_MODELS)
STARTS = ("random", "sample")
_CELEBA_DEFAULTS = {
    "batch_size": 32,
    "cohort": 100,
    "rounds": 2550,
    "every": 40,
    "noise_multiplier": 0.4166,
    "client_learning_rate": 0.8991111469,
    "learning_rate": 0.0797379897,
}
# a model's own defaults: minutes on two cores, or the paper's values
MODEL_DEFAULTS: dict[str, dict[str, int | float]] = {
    "character_lstm": {
        "clients": 60,
        "examples": 8,
        "cohort": 10,
        "batch_size": 8,
        "pool": 40,
        "rounds": 21,
        "every": 20,
        "client_learning_rate": 3.0,
        "noise_multiplier": 0.4,
        "design_steps": 300,
        "design_rate": 0.1,
    },
    "celeba_cnn": _CELEBA_DEFAULTS,
    "celeba_resnet18": _CELEBA_DEFAULTS,
    "sent140_lstm": {
        "batch_size": 32,
        "cohort": 100,
        "rounds": 8895,
        "every": 100,
        "design_rate": 0.1,
        "client_learning_rate": 5.7535489395,
        "learning_rate": 0.2442128478,
    },
    "shakespeare_lstm": {
        "batch_size": 128,
        "cohort": 60,
        "rounds": 510,
        "every": 8,
        "client_learning_rate": 3.0,
        "learning_rate": 0.524288,
        "design_rate": 0.1,
    },
}
PENALTIES = ("as_run", "as_printed", "of_the_mean")
MOST_FIELDS = 2  # of a grid, beside the seed
MOST_SETTINGS = 200  # of a grid
SEED = "seed"
ROUND = "round"
_EXAMPLE = "start=random,sample;pool=64,128;seed=0,1"
_POSITIVE_LIMITS: dict[str, Any] = {"least": 1e-6, "most": 1e6}
_COUNT_LIMITS: dict[str, Any] = {"least": 1, "most": 10**6}
_ZERO_OR_COUNT: dict[str, Any] = {"default": 0, "least": 0, "most": 10**6}
_ZERO_OR_CLIENTS: dict[str, Any] = {"default": 0, "least": 0, "most": 10**7}


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
    rounds: int = described("Rounds of the training.", default=469, **_COUNT_LIMITS)
    every: int = described("Rounds 1, 1 + every, ... are measured.", default=100, **_COUNT_LIMITS)
    cohort: int = described("Clients a round.", default=128, least=2, most=10**6)
    learning_rate: float = described(
        "Server's learning rate on the mean clipped update.",
        default=0.5,
        **_POSITIVE_LIMITS,
    )
    clients: int = described(
        "Clients that images are dealt to, 0: one example a client; or roles or users, 0: all.",
        **_ZERO_OR_CLIENTS,
    )
    examples: int = described("Examples of a client at most; 0: all.", **_ZERO_OR_COUNT)
    alpha: float = described(
        "Dirichlet's alpha, by which images are dealt: small is uneven.",
        default=1.0,
        **_POSITIVE_LIMITS,
    )
    client_learning_rate: float = described(
        "Learning rate of SGD at such a client.", default=0.1, **_POSITIVE_LIMITS
    )
    client_epochs: int = described(
        "Epochs that a client of many examples trains.", default=1, least=1, most=1000
    )
    batch_size: int = described(
        "Examples in such a client's mini-batch.", default=16, **_COUNT_LIMITS
    )
    clipping_norm: float = described("Clipping norm C.", default=1.0, **_POSITIVE_LIMITS)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.",
        default=0.2,
        least=0.01,
        most=1e4,
        zero_too=True,
    )
    pool: int = described(
        "Mock clients that canaries are designed on; 0: up to 512.", **_ZERO_OR_COUNT
    )
    population: int = described(
        "Training clients that mock rounds draw on; 0: up to 2,048.", **_ZERO_OR_CLIENTS
    )
    scores: int = described(
        "Mock rounds of a published estimate, n.", default=100, least=4, most=10**6
    )
    mock_rounds: int = described(
        "Mock rounds a world of the certified bound.",
        default=100_000,
        least=100,
        most=10**7,
    )
    design_steps: int = described("Steps of a canary's design.", default=2500, **_COUNT_LIMITS)
    design_rate: float = described(
        "Adam's learning rate on the sample; text wants 0.1.",
        default=1.0,
        **_POSITIVE_LIMITS,
    )
    design_batch: int = described(
        "Mock updates a step of the design; 0: as many as the cohort.", **_ZERO_OR_COUNT
    )
    norm_constant: float = described(
        "k: gradients shorter than this are lengthened.",
        default=5.0,
        **_POSITIVE_LIMITS,
    )
    penalty: str = described(
        "What a design minimises: as_run, as_printed or of_the_mean.",
        default="as_run",
        choices=PENALTIES,
    )
    start: str = described(
        "First sample: random, or a sample of the pool.",
        default="random",
        choices=STARTS,
    )
    clamp: bool = described("Keep pixels within [0, 1].", default=False)
    soft_label: bool = described("Design the label too, as a mixture.", default=False)
    keep_best: bool = described("Take the best sample of a design, not the last.", default=False)
    as_published: bool = described(
        "The canary replaces a client and sends its raw gradient, as in the paper's code.",
        default=False,
    )
    memory: int = described("Bytes for the pool's updates.", default=1 << 30, least=0)
    delta: float = described("delta of the training.", default=1e-5, above=0, below=1)
    seed: int = described("Seed of all randomness.", default=0, least=0, most=MOST_SEED)

    def measured(self) -> list[int]:
        """Returns the rounds that are measured, from 1."""
        return list(range(1, self.rounds + 1, self.every))


def resolve_setting(values: dict[str, Any], given: Collection[str]) -> Attacked:
    """Returns the setting of these values, with the model's own defaults for fields that were not given.

    Args:
      values: All fields' values.
      given: Names of the fields that a user gave.

    Raises:
      InputError: A value is out of range.
    """
    resolved = dict(values)
    for name, value in MODEL_DEFAULTS.get(values["model"], {}).items():
        if name not in given:
            resolved[name] = value
    setting = Attacked(**resolved)
    require_model(setting.model)
    require_fields(setting)
    return setting


def require_model(model: str) -> None:
    """Raises InputError for a model whose canaries can't be designed here, and says why."""
    why = "is unknown"
    if model in TASKS:
        why = "reads neither images nor texts, which canaries are"
    require(model in MODELS, f"`model={model}` {why}: choose one of {', '.join(MODELS)}")


def fit_to_clients(setting: Attacked, train_clients: int, mock_clients: int) -> Attacked:
    """Returns the setting with its numbers of clients or, where it leaves them open, as many as there are.

    Raises:
      InputError: A field is out of range, or beyond the clients that there are.
    """
    pool = setting.pool or min(512, mock_clients)
    population = setting.population or min(2048, train_clients)
    setting = dataclasses.replace(setting, pool=pool, population=population)
    require_model(setting.model)
    require_fields(setting)
    limits = {
        "cohort": FieldLimits(2, min(population, train_clients)),
        "population": FieldLimits(2, train_clients),
        "pool": FieldLimits(1, mock_clients),
        "design_batch": FieldLimits(0, pool),
    }
    fields = declared(Attacked)
    for name, field_limits in limits.items():
        fields[name]._replace(limits=field_limits).require(getattr(setting, name))
    return setting


def identity(setting: Attacked, checksum: str) -> dict[str, Any]:
    """Returns what names a store: the fields that are not at their defaults, and the data's checksum."""
    return {"experiment": "canife", **deciding(setting), "data": checksum}


def folder_name(setting: Attacked, checksum: str) -> str:
    """Returns the name of the store's folder."""
    text = json.dumps(identity(setting, checksum), sort_keys=True)
    return f"{setting.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Combination(NamedTuple):
    """A setting of a grid, and the values of the grid's fields there, in the grid's order."""

    values: tuple[Value, ...]
    setting: Attacked


class VariedGrid(NamedTuple):
    """Settings and how they are drawn.

    Attributes:
      fields: The varied fields, up to two, beside the seeds that are averaged.
      curve: The field whose values are curves, or empty.
      x: The field on the x axis, or `round`.
      combinations: The settings; the seeds of the same values follow each other.
    """

    fields: tuple[str, ...]
    curve: str
    x: str
    combinations: list[Combination]

    @property
    def over_rounds(self) -> bool:
        """Returns whether the measured rounds of a training run are the x axis."""
        return self.x == ROUND


def parse_grid(text: str, values: dict[str, Any], given: Collection[str]) -> VariedGrid:
    """Parses the grid of "field=value,value;field=value".

    Of two fields the first gives the curves and the second is the x axis. Otherwise the measured rounds are
    the x axis, or the only field where a training run has one measured round.

    Args:
      text: The varied fields and their values.
      values: The values of all fields.
      given: Names of the fields that a user gave beside the grid.

    Raises:
      InputError: The first thing that is wrong.
    """
    varied = _parse_fields(text)
    for name in varied:
        require(
            name not in given,
            f"`{name}={values[name]}` is also in `vary`: drop one of the two",
        )
    seeds = varied.pop(SEED, (values[SEED],))

    combinations = []
    for field_values in itertools.product(*varied.values()):
        for seed in seeds:
            own = dict(zip(varied, field_values, strict=True))
            own[SEED] = seed
            setting = resolve_setting({**values, **own}, [*given, *own])
            combinations.append(Combination(field_values, setting))

    axes = list(varied)
    has_several_rounds = any(len(point.setting.measured()) > 1 for point in combinations)
    if not axes or (len(axes) == 1 and has_several_rounds):
        axes.append(ROUND)
    curve = axes[0] if len(axes) == 2 else ""
    return VariedGrid(tuple(varied), curve, axes[-1], combinations)


def _parse_fields(text: str) -> dict[str, tuple[Value, ...]]:
    """Returns the values of a grid's fields, the seed's last; raises InputError for what is no grid."""
    require(text.strip(), f"`vary=`: name fields and values, as in {_EXAMPLE}")
    parts = [_parse_field(part) for part in text.split(";")]
    names = [name for name, _ in parts]
    for name in names:
        require(
            names.count(name) == 1,
            f"`vary`: {name} is there twice: list its values together",
        )
    fields = [name for name in names if name != SEED]
    few = f"vary one or two fields beside {SEED}, curves and x axis; set the others by flags"
    require(len(fields) <= MOST_FIELDS, f"`vary`: {', '.join(fields)}: {few}")
    count = math.prod(len(values) for _, values in parts)
    fewer = f"give fewer values, {MOST_SETTINGS} at most"
    require(count <= MOST_SETTINGS, f"`vary`: {count:,} settings: {fewer}")
    values_of = dict(parts)
    if SEED in values_of:
        values_of[SEED] = values_of.pop(SEED)  # moves it to the end
    return values_of


def _parse_field(part: str) -> tuple[str, tuple[Value, ...]]:
    """Returns the field and the values of "field=value,value"."""
    name, _, listed = (piece.strip() for piece in part.partition("="))
    kinds = {field.name: field.type for field in dataclasses.fields(Attacked)}
    require(name in kinds, f"`vary`: {name!r} is no field: choose among {', '.join(kinds)}")
    require(listed, f"`vary`: {name} has no values: write them as in {_EXAMPLE}")
    values = tuple(_parse_value(name, kinds[name], text.strip()) for text in listed.split(","))
    for value in values:
        require(values.count(value) == 1, f"`vary`: {name}={value} is there twice: drop one")
    return name, values


def _parse_value(name: str, kind: Any, text: str) -> Value:
    """Returns a field's value, of its kind."""
    if kind is str:
        require(text, f"`vary`: {name} has an empty value: write values as in {_EXAMPLE}")
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False}[text]
        number: int | float = kind(text)
        return number
    except (ValueError, KeyError):
        expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise InputError(f"`vary`: {name}={text!r}: give {expected}") from None
