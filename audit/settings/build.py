"""From a setting and its data to the game that is played."""

import dataclasses
import platform
import zlib
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.stages import Wrapped

from audit import game
from audit.adversaries.base import Adversary
from audit.errors import require
from audit.mechanism import base, cohorts, dpsgd, precision, response
from audit.mechanism.base import Hyperparameters, Schedule, Trajectory
from audit.mechanism.clipping import dense, layerwise
from audit.mechanism.clipping.base import ClippedDots, ClippedSum, per_example, per_example_dots
from audit.mechanism.ensemble import Programs
from audit.mechanism.memory import Hardware
from audit.model import Model
from audit.settings import setting as settings
from audit.settings.adversaries import OwnAdversary, adversary_row
from audit.settings.knowledge import Knowledge
from audit.settings.setting import Setting
from audit.task import Dataset
from audit.version import __version__
from audit.zoo import task

F = TypeVar("F", bound=Callable[..., Any])
_SIMULATE: Programs[Wrapped] = Programs()
_EXPECT: Programs[Wrapped] = Programs()
_RESPOND: Programs[Wrapped] = Programs()

OPTIMIZERS: dict[str, Callable[[Array], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}


class Strategy(Protocol):
    """(model, the devices that it is trained on, by default this process's) -> a clipping strategy."""

    def __call__(self, model: Model, hardware: Hardware | None = None, /) -> ClippedSum: ...


CLIPPING: dict[str, Strategy] = {
    "book_keeping": lambda m, on=None: dense.book_keeping(m.module, m.unravel, m.criterion),
    "unfolded": lambda m, on=None: layerwise.unfolded_book_keeping(
        m.module, m.unravel, m.criterion, layerwise.block_bytes(on)
    ),
    "per_example": lambda m, on=None: per_example(m.loss),
}
DOTS: dict[str, Callable[[Model], ClippedDots]] = {
    **dict.fromkeys(CLIPPING, lambda m: per_example_dots(m.loss)),
    "unfolded": lambda m: layerwise.unfolded_dots(m.module, m.unravel, m.criterion, layerwise.block_bytes()),
}


class Trainee(NamedTuple):
    """A model to be audited; `name` is equal for models that compute the same function."""

    model: Model
    name: Hashable
    classes: int


@dataclasses.dataclass(frozen=True)
class _Program:
    """The names of all that is compiled in; equal values mean the same functions."""

    model: Hashable
    clipping: str
    optimizer: str
    precision: str
    adversary: str
    several_canaries: bool
    sampled: bool
    observes: bool = False
    variant: str = ""


def in_precision(function: F, name: str) -> F:
    """The function with its products' operands in a precision."""
    operands = {"float32": None, "tf32": precision.TF32, "bf16": precision.BF16}[name]
    return function if operands is None else precision.with_operands(function, operands)  # type: ignore


def trainee(model: str, dataset: Dataset) -> Trainee:
    """A task's model for data of that shape."""
    row, shape = task(model), dataset.features.shape[1:]
    return Trainee(row.make(shape), (model, shape), row.classes)


def validate(setting: Setting, runs: int) -> None:
    """Raises InputError for a value out of range; what needs the data is checked in `build`."""
    settings.validate(setting, runs, task(setting.model).clipping)


def build(setting: Setting, dataset: Dataset) -> game.Game:
    """The game of a task's setting on its data; raises InputError where the two don't fit."""
    return build_for(setting, dataset, trainee(setting.model, dataset))


def build_for(
    setting: Setting, dataset: Dataset, trained: Trainee, own: Adversary | None = None
) -> game.Game:
    """A model's game against the setting's adversary or one's own; raises InputError where they misfit."""
    fields, schedule, n_examples = setting.mechanism, setting.schedule, len(dataset.labels)
    many = f"`batch_size={fields.batch_size}` is more than the data's {n_examples} examples"
    require(fields.batch_size <= n_examples, f"{many}: lower it")
    shuffle, batches = game.root(setting.seed, "batches"), batches_of(setting, n_examples)
    data = (jnp.asarray(dataset.features), jnp.asarray(dataset.labels))
    rates = fields.learning_rate, fields.clipping_norm, fields.noise_multiplier
    hyper = Hyperparameters(*rates, weight_decay=fields.weight_decay or None)
    mechanism = dpsgd.mechanism(choices(setting, trained.model))
    row = adversary_row(setting.adversary.name)
    how, attack = (fields.clipping, fields.optimizer, fields.precision), setting.adversary
    functions = attack.computes if isinstance(attack, OwnAdversary) else row.functions
    program = _Program(trained.name, *how, functions, setting.canaries > 1, setting.sampling_rate < 1)
    inserted = Schedule(batches, _mask(setting, shuffle))

    def simulate(hyper: Hyperparameters, key: Array, theta_0: Array) -> Trajectory:
        traced = jax.tree.map(jnp.float32, hyper)
        run = _SIMULATE.get(program, lambda: jax.jit(partial(base.simulate, mechanism)))
        found: Trajectory = run(traced, theta_0, data, batches, key)
        return found

    def expect(craft: base.Craft, state: base.Tree, theta_0: Array) -> Array:
        traced = jax.tree.map(jnp.float32, hyper)
        share = jnp.full(setting.canaries, 0.5 * setting.sampling_rate)
        run = _EXPECT.get(program, lambda: jax.jit(_rehearser(mechanism, craft)))
        found: Array = run(traced, state, theta_0, data, inserted, share)
        return found

    def respond(theta_0: Array) -> Array:
        return _responding(program, mechanism, hyper, data, inserted, theta_0)[0]

    known = Knowledge(
        *(trained.model, trained.classes, hyper, data, simulate, setting.canaries, expect, respond),
        unresponsive(setting, trained.model.n_parameters),
        setting.insertions,
        schedule.steps,
    )
    adversary = row.make(attack, known) if own is None else own
    asked, made = setting.canaries, adversary.canaries
    mend = "pass Knowledge.canaries on to Adversary, or drop `canaries`"
    require(made == asked, f"`canaries={asked}`: the adversary {attack.name} has {made}: {mend}")
    return game.Game(
        mechanism,
        adversary._replace(craft=in_precision(adversary.craft, fields.precision)),
        trained.model.init,
        data,
        hyper,
        inserted,
        setting.seed,
        setting.unknown_initialisation,
        dataclasses.replace(program, observes=adversary.observer is not None, variant=adversary.variant),
        setting.sampling_rate,
    )


def batches_of(setting: Setting, n_examples: int) -> Array:
    """A setting's mini-batches (T, B), indices of examples."""
    shuffle = game.root(setting.seed, "batches")
    return base.fixed_shuffle(shuffle, n_examples, setting.mechanism.batch_size, setting.schedule.steps)


def unresponsive(setting: Setting, parameters: int) -> str:
    """Why linear response forecasts nothing for a setting, in a few words; empty where it does."""
    fields, most = setting.mechanism, response.MOST_PARAMETERS
    if parameters > most:
        return f"{setting.model} has {parameters:,} parameters, more than {most:,}"
    if fields.optimizer == "adam":
        return "Adam's steps are not linear in the noise"
    return "" if fields.noise_multiplier else "there is no noise"


def mu_by_coordinate(played: game.Game) -> tuple[Array, Array]:
    """The mu (p,) that linear response forecasts for a canary along each coordinate: of the score that
    projects on it, as GC-R's and GC-S's, and of the best linear score."""
    theta_0 = played.init(game.root(played.seed, "theta"))
    return _responding(played.program, played.mechanism, played.hyper, played.data, played.schedule, theta_0)


def _responding(
    program: Hashable,
    mechanism: base.Mechanism,
    hyper: Hyperparameters,
    data: base.Data,
    inserted: Schedule,
    theta_0: Array,
) -> tuple[Array, Array]:
    def along(
        hyper: Hyperparameters, theta_0: Array, data: base.Data, inserted: Schedule
    ) -> tuple[Array, Array]:
        canaries = hyper.clipping_norm * jnp.eye(theta_0.size)
        found = response.respond(mechanism, hyper, theta_0, data, inserted, canaries)
        return found.projected(canaries), found.optimal

    mask = inserted.mask if inserted.mask.ndim == 1 else jnp.mean(inserted.mask, axis=1)
    run = _RESPOND.get(program, lambda: jax.jit(along))
    found: tuple[Array, Array] = run(
        jax.tree.map(jnp.float32, hyper), theta_0, data, inserted._replace(mask=mask)
    )
    return found


def _mask(setting: Setting, shuffle: Array) -> Array:
    """The steps that insert, (T,), or each canary's own, (T, K)."""
    steps = setting.schedule.steps
    if not setting.repetitions:
        return base.insertion_mask(steps, setting.schedule.periodicity, setting.schedule.place)
    own = jax.random.fold_in(shuffle, zlib.crc32(b"canaries"))  # beyond any epoch
    return jnp.asarray(cohorts.repeated(own, setting.canaries, steps, setting.repetitions))


def choices(setting: Setting, model: Model, hardware: Hardware | None = None) -> dpsgd.DPSGD:
    """DP-SGD's choices by their names, for such devices, or for this process's."""
    strategy = CLIPPING[setting.mechanism.clipping](model, hardware)
    clipped_sum = in_precision(strategy, setting.mechanism.precision)
    return dpsgd.DPSGD(clipped_sum, OPTIMIZERS[setting.mechanism.optimizer])


def _rehearser(mechanism: base.Mechanism, craft: base.Craft) -> Callable[..., Array]:
    """`base.rehearse` of a mechanism, with a share (K,) of every canary of a craft: the mean of its coins."""

    def rehearse(
        hyper: Hyperparameters,
        state: base.Tree,
        theta_0: Array,
        data: base.Data,
        schedule: Schedule,
        share: Array,
    ) -> Array:
        canaries = base.Canaries(partial(craft, state), share)
        return base.rehearse(mechanism, hyper, theta_0, data, schedule, canaries)

    return rehearse


def provenance(dataset: Dataset) -> dict[str, Any]:
    """The circumstances that do not decide the scores' law but explain their bits."""
    return {
        "data": dataset.source,
        "audit": __version__,
        **{name: metadata.version(name) for name in ("jax", "flax", "optax", "numpy")},
        "python": platform.python_version(),
        "device": jax.local_devices()[0].device_kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
