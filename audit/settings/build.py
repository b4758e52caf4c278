"""Builds the game of a setting on its data."""

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

from audit.adversaries.base import Adversary
from audit.adversaries.knowledge import Knowledge
from audit.errors import require
from audit.mechanism import base, cohorts, dpsgd, joining, precision, response
from audit.mechanism.base import Hyperparameters, Schedule, Trajectory
from audit.mechanism.clipping import dense, layerwise
from audit.mechanism.clipping.base import ClippedDots, ClippedSum, per_example, per_example_dots
from audit.mechanism.ensemble import Programs
from audit.mechanism.memory import Hardware
from audit.settings import setting as settings
from audit.settings.adversaries import OwnAdversary, adversary_row
from audit.settings.sampler import POISSON, SHUFFLED, Sampling
from audit.settings.setting import Setting
from audit.tasks.model import Model
from audit.tasks.task import Dataset
from audit.tasks.zoo import task
from audit.training import game
from audit.version import __version__

F = TypeVar("F", bound=Callable[..., Any])

# Compiled functions, by what is compiled into them.
_SIMULATE: Programs[Wrapped] = Programs()
_EXPECT: Programs[Wrapped] = Programs()
_RESPOND: Programs[Wrapped] = Programs()


def _momentum(learning_rate: Array) -> optax.GradientTransformation:
    return optax.sgd(learning_rate, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[Array], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": _momentum,
    "adam": optax.adam,
}


class Strategy(Protocol):
    """(model, the devices that it is trained on, by default this process's) -> a clipping strategy."""

    def __call__(self, model: Model, hardware: Hardware | None = None, /) -> ClippedSum: ...


def _clip_by_book_keeping(model: Model, hardware: Hardware | None = None) -> ClippedSum:
    return dense.book_keeping(model.module, model.unravel, model.criterion)


def _clip_unfolded(model: Model, hardware: Hardware | None = None) -> ClippedSum:
    block_bytes = layerwise.block_bytes(hardware)
    return layerwise.unfolded_book_keeping(
        model.module, model.unravel, model.criterion, block_bytes
    )


def _clip_per_example(model: Model, hardware: Hardware | None = None) -> ClippedSum:
    return per_example(model.loss)


def _dots_unfolded(model: Model) -> ClippedDots:
    block_bytes = layerwise.block_bytes()
    return layerwise.unfolded_dots(model.module, model.unravel, model.criterion, block_bytes)


def _dots_per_example(model: Model) -> ClippedDots:
    return per_example_dots(model.loss)


CLIPPING: dict[str, Strategy] = {
    "book_keeping": _clip_by_book_keeping,
    "unfolded": _clip_unfolded,
    "per_example": _clip_per_example,
}
# Every clipped gradient's product with a direction; book_keeping computes none itself.
DOTS: dict[str, Callable[[Model], ClippedDots]] = {
    "book_keeping": _dots_per_example,
    "unfolded": _dots_unfolded,
    "per_example": _dots_per_example,
}


class Trainee(NamedTuple):
    """A model to be audited.

    Attributes:
      model: the model.
      name: equal for models that compute the same function.
      classes: the number of classes of its labels.
    """

    model: Model
    name: Hashable
    classes: int


@dataclasses.dataclass(frozen=True)
class _Program:
    """The key of a compiled function: names of all that it computes; equal keys mean the same function.

    Attributes:
      model: the trainee's name.
      clipping, optimizer, precision: the mechanism's, by name.
      adversary: the name of its functions, or the hash of what a caller's own compute.
      canaries: of a run: some adversaries' functions hold their number.
      sampler: its name, and the steps of its epoch.
      observes: whether the adversary has an observer of the models in between.
      variant: which functions the adversary's maker gave, where settings decide that.
    """

    model: Hashable
    clipping: str
    optimizer: str
    precision: str
    adversary: str
    canaries: int
    sampler: Hashable
    observes: bool = False
    variant: str = ""


class _Training(NamedTuple):
    """A training run of DP-SGD.

    Attributes:
      program: the key of what is compiled for it.
      mechanism: its functions.
      hyper: learning rate, clipping norm, noise multiplier, weight decay.
      data: (features, labels), an example a row.
      schedule: mini-batches, and the steps that insert.
    """

    program: Hashable
    mechanism: base.Mechanism
    hyper: Hyperparameters
    data: base.Data
    schedule: Schedule


def in_precision(function: F, precision_name: str) -> F:
    """Returns a function of float32 arrays that rounds the operands of all its products to a precision.

    Args:
      function: the function, in float32.
      precision_name: "float32", which leaves the function as it is, "tf32" or "bf16".
    """
    if precision_name == "float32":
        return function
    operands = {"tf32": precision.TF32, "bf16": precision.BF16}[precision_name]
    return precision.with_operands(function, operands)  # type: ignore


def trainee(model: str, dataset: Dataset) -> Trainee:
    """Returns a model of the repository, by its name, for data of this shape."""
    row = task(model)
    shape = dataset.features.shape[1:]
    return Trainee(model=row.make(shape), name=(model, shape), classes=row.classes)


def validate(setting: Setting, runs: int) -> None:
    """Raises InputError for a value out of range; what needs the data is checked in `build`."""
    settings.validate(setting, runs, task(setting.model).clipping)


def build(setting: Setting, dataset: Dataset) -> game.Game:
    """Builds the game of a task's setting on its data; raises InputError where the two don't fit."""
    return build_for(setting, dataset, trainee(setting.model, dataset))


def build_for(
    setting: Setting, dataset: Dataset, trained: Trainee, own: Adversary | None = None
) -> game.Game:
    """Builds the game of a model against an adversary.

    Args:
      setting: the setting of the audit.
      dataset: the training examples.
      trained: the model.
      own: an adversary of the caller's own; by default the setting's.

    Raises:
      InputError: setting, data, model and adversary don't fit.
    """
    batch_size = setting.mechanism.batch_size
    n_examples = len(dataset.labels)
    too_many = f"`batch_size={batch_size}` is more than the data's {n_examples} examples"
    require(batch_size <= n_examples, f"{too_many}: lower it")

    training = _make_training(setting, dataset, trained)
    adversary = own
    if adversary is None:
        knowledge = _make_knowledge(setting, trained, training)
        adversary = adversary_row(setting.adversary.name).make(setting.adversary, knowledge)
    _require_canaries(setting, adversary)

    program = dataclasses.replace(
        _name_program(setting, trained),
        observes=adversary.observer is not None,
        variant=adversary.variant,
    )
    craft = in_precision(adversary.craft, setting.mechanism.precision)
    return game.Game(
        mechanism=training.mechanism,
        adversary=adversary._replace(craft=craft),
        init=trained.model.init,
        data=training.data,
        hyper=training.hyper,
        schedule=training.schedule,
        seed=setting.seed,
        unknown_initialisation=setting.unknown_initialisation,
        program=program,
        join=_make_join(setting.sampling),
        sampling_rate=setting.sampling_rate,
    )


def _make_training(setting: Setting, dataset: Dataset, trained: Trainee) -> _Training:
    """Returns the training run that a setting describes, on its data and model, without an adversary."""
    fields = setting.mechanism
    hyper = Hyperparameters(
        fields.learning_rate,
        fields.clipping_norm,
        fields.noise_multiplier,
        weight_decay=fields.weight_decay or None,
    )
    return _Training(
        program=_name_program(setting, trained),
        mechanism=dpsgd.mechanism(choices(setting, trained.model)),
        hyper=hyper,
        data=(jnp.asarray(dataset.features), jnp.asarray(dataset.labels)),
        schedule=Schedule(batches_of(setting, len(dataset.labels)), _make_insertion_mask(setting)),
    )


def _name_program(setting: Setting, trained: Trainee) -> _Program:
    """Returns the key under which functions for a setting's training run and adversary are compiled.

    Settings that differ in traced values alone, as noise or learning rate, share a key.
    """
    fields = setting.mechanism
    if isinstance(setting.adversary, OwnAdversary):
        functions = setting.adversary.computes
    else:
        functions = adversary_row(setting.adversary.name).functions
    return _Program(
        model=trained.name,
        clipping=fields.clipping,
        optimizer=fields.optimizer,
        precision=fields.precision,
        adversary=functions,
        canaries=setting.canaries,
        sampler=(setting.sampling.name, setting.sampling.batches),
    )


def _make_join(sampler: Sampling) -> base.Join | None:
    """Returns how canaries join steps by chance; None where the schedule fixes which steps take them."""
    if sampler.name == POISSON:
        return joining.draw_by_coins
    if sampler.name == SHUFFLED:
        return joining.draw_by_shuffling(sampler.batches)
    if sampler.batches:
        return joining.draw_by_dice(sampler.batches)
    return None


def _make_knowledge(setting: Setting, trained: Trainee, training: _Training) -> Knowledge:
    """Returns what an adversary knows of a training run, and functions with which it may rehearse it."""
    mechanism = training.mechanism

    def simulate(hyper: Hyperparameters, key: Array, theta_0: Array) -> Trajectory:
        """Simulates a training run; all settings of the same program share what was compiled."""
        compiled = _SIMULATE.get(
            training.program, lambda: jax.jit(partial(base.simulate, mechanism))
        )
        batches = training.schedule.batches
        trajectory: Trajectory = compiled(_trace(hyper), theta_0, training.data, batches, key)
        return trajectory

    def expect(craft: base.Craft, state: base.Tree, theta_0: Array) -> Array:
        """Returns the final model (p,) without noise, each canary inserted times its mean presence."""
        compiled = _EXPECT.get(training.program, lambda: jax.jit(_make_rehearsal(mechanism, craft)))
        hyper = _trace(training.hyper)
        presence = jnp.full(setting.canaries, 0.5 * setting.sampling.chance)  # in by a fair coin
        theta: Array = compiled(hyper, state, theta_0, training.data, training.schedule, presence)
        return theta

    def respond(theta_0: Array) -> Array:
        """Returns the mus (p,) of scores that project on a coordinate, as linear response forecasts them."""
        return _forecast_by_coordinate(training, theta_0)[0]

    return Knowledge(
        model=trained.model,
        classes=trained.classes,
        hyper=training.hyper,
        data=training.data,
        simulate=simulate,
        canaries=setting.canaries,
        expect=expect,
        respond=respond,
        unresponsive=unresponsive(setting, trained.model.n_parameters),
        insertions=setting.insertions,
        steps=setting.schedule.steps,
    )


def _require_canaries(setting: Setting, adversary: Adversary) -> None:
    """Raises InputError unless an adversary has as many canaries as the setting says."""
    name = setting.adversary.name
    mismatch = f"`canaries={setting.canaries}`: the adversary {name} has {adversary.canaries}"
    fix = "pass Knowledge.canaries on to Adversary, or drop `canaries`"
    require(adversary.canaries == setting.canaries, f"{mismatch}: {fix}")


def _trace(hyper: Hyperparameters) -> Hyperparameters:
    """Returns hyperparameters as float32 arrays, so that other values need no other program."""
    traced: Hyperparameters = jax.tree.map(jnp.float32, hyper)
    return traced


def batches_of(setting: Setting, n_examples: int) -> Array:
    """Returns a setting's mini-batches (T, B), indices of examples."""
    key = game.root(setting.seed, "batches")
    steps = setting.schedule.steps
    return base.fixed_shuffle(key, n_examples, setting.mechanism.batch_size, steps)


def unresponsive(setting: Setting, parameters: int) -> str:
    """Returns why linear response forecasts nothing for a setting, in a few words; empty where it does.

    Args:
      setting: the setting.
      parameters: the number of its model's parameters.
    """
    most = response.MOST_PARAMETERS
    if parameters > most:
        return f"{setting.model} has {parameters:,} parameters, more than {most:,}"
    if setting.mechanism.optimizer == "adam":
        return "Adam's steps are not linear in the noise"
    if not setting.mechanism.noise_multiplier:
        return "there is no noise"
    return ""


def mu_by_coordinate(played: game.Game) -> tuple[Array, Array]:
    """Returns the mu (p,) that linear response forecasts for a canary along each coordinate of the model.

    Args:
      played: the game, of a model with p parameters and optimizer SGD or momentum.

    Returns:
      (the mu of the score that projects on the coordinate, as GC-R's and GC-S's; that of the best linear
      score).
    """
    theta_0 = played.init(game.root(played.seed, "theta"))
    training = _Training(
        played.program, played.mechanism, played.hyper, played.data, played.schedule
    )
    return _forecast_by_coordinate(training, theta_0)


def _forecast_by_coordinate(training: _Training, theta_0: Array) -> tuple[Array, Array]:
    """Returns the mus (p,) that linear response forecasts for a canary along each coordinate.

    The first are of the score that projects on the coordinate, the second of the best linear score.

    Where each of several canaries has steps of its own, the mean of their masks stands for each. The response
    is linear in the mask, so that it gives their mean shift, and with it the mean of the first mus; the
    second, lengths of the mean shift, are at most the mean of theirs.

    Args:
      training: the training run.
      theta_0: (p,) its initial model.
    """
    # A local name, so that the cached program does not keep the whole training run, with its data, alive.
    mechanism = training.mechanism

    def forecast(
        hyper: Hyperparameters, theta_0: Array, data: base.Data, schedule: Schedule
    ) -> tuple[Array, Array]:
        """Returns both mus (p,) of canaries that are the p coordinate axes times the clipping norm."""
        canaries = hyper.clipping_norm * jnp.eye(theta_0.size)
        forecasts = response.respond(mechanism, hyper, theta_0, data, schedule, canaries)
        return forecasts.projected(canaries), forecasts.optimal

    mask = training.schedule.mask
    if mask.ndim > 1:  # each canary has steps of its own
        mask = jnp.mean(mask, axis=1)
    schedule = training.schedule._replace(mask=mask)
    compiled = _RESPOND.get(training.program, lambda: jax.jit(forecast))
    hyper = _trace(training.hyper)
    mu: tuple[Array, Array] = compiled(hyper, theta_0, training.data, schedule)
    return mu


def _make_insertion_mask(setting: Setting) -> Array:
    """Returns which steps insert, (T,) for all canaries, or (T, K) where each has steps of its own."""
    schedule = setting.schedule
    if not setting.repetitions:
        return base.insertion_mask(schedule.steps, schedule.periodicity, schedule.place)
    shuffle = game.root(setting.seed, "batches")
    # A number beyond any epoch's, which `base.fixed_shuffle` folds into the same key.
    key = jax.random.fold_in(shuffle, zlib.crc32(b"canaries"))
    mask = cohorts.repeated(key, setting.canaries, schedule.steps, setting.repetitions)
    return jnp.asarray(mask)


def choices(setting: Setting, model: Model, hardware: Hardware | None = None) -> dpsgd.DPSGD:
    """Returns DP-SGD's functions for a setting: its sum of clipped gradients, and its optimizer.

    Args:
      setting: names clipping strategy, precision and optimizer.
      model: the model.
      hardware: the devices that it is trained on; by default this process's.
    """
    strategy = CLIPPING[setting.mechanism.clipping](model, hardware)
    clipped_sum = in_precision(strategy, setting.mechanism.precision)
    return dpsgd.DPSGD(clipped_sum, OPTIMIZERS[setting.mechanism.optimizer])


def _make_rehearsal(mechanism: base.Mechanism, craft: base.Craft) -> Callable[..., Array]:
    """Returns a function to be compiled: a training run without noise, as an adversary expects it.

    The run inserts each canary times the probability with which it is present; see `base.rehearse`.

    Args:
      mechanism: DP-SGD's functions.
      craft: the adversary's function that makes the canaries from its state.
    """

    def rehearse(
        hyper: Hyperparameters,
        state: base.Tree,
        theta_0: Array,
        data: base.Data,
        schedule: Schedule,
        presence: Array,
    ) -> Array:
        """Returns the final theta (p,) from theta_0 (p,); `presence` (K,) holds the probabilities."""
        canaries = base.Canaries(partial(craft, state), presence)
        return base.rehearse(mechanism, hyper, theta_0, data, schedule, canaries)

    return rehearse


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Returns the circumstances of training by name: data, versions, device, time.

    They do not decide the law of the scores, but explain their last bits.
    """
    versions = {name: metadata.version(name) for name in ("jax", "flax", "optax", "numpy")}
    return {
        "data": dataset.source,
        "audit": __version__,
        **versions,
        "python": platform.python_version(),
        "device": jax.local_devices()[0].device_kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
