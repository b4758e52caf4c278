"""Builds the game of a setting on its data."""

import platform
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib import metadata
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.stages import Wrapped

from audit.adversaries.base import Adversary, Knowledge
from audit.errors import require
from audit.mechanism import base, cohorts, dpsgd, joining
from audit.mechanism.base import Hyperparameters, Schedule, Trajectory
from audit.mechanism.clipping import dense, layerwise
from audit.mechanism.clipping.base import ClippedSum, per_example
from audit.mechanism.ensemble import MOST_PROGRAMS
from audit.settings.adversaries import adversary_row
from audit.settings.sampler import POISSON, SHUFFLED, Sampling
from audit.settings.setting import Setting
from audit.tasks.model import Model
from audit.tasks.task import Dataset
from audit.tasks.zoo import task
from audit.training import game
from audit.version import __version__

F = TypeVar("F", bound=Callable[..., Any])

# Compiled programs are found by the functions that are compiled in (`Game`). So what makes such a function is
# cached: equal arguments give the same function.


def _momentum(learning_rate: Array) -> optax.GradientTransformation:
    """Returns SGD with momentum 0.9."""
    return optax.sgd(learning_rate, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[Array], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": _momentum,
    "adam": optax.adam,
}


class Strategy(Protocol):
    """Makes a clipping strategy's function (theta, batch, C) -> the sum of the batch's clipped gradients."""

    def __call__(self, model: Model, /) -> ClippedSum:
        """Returns the function for a model."""
        ...


def _clip_by_book_keeping(model: Model) -> ClippedSum:
    """Returns the function for narrow networks of dense layers."""
    return dense.book_keeping(model.module, model.unravel, model.criterion)


def _clip_unfolded(model: Model) -> ClippedSum:
    """Returns the function for networks of more kinds of layers, such as convolutions."""
    return layerwise.unfolded_book_keeping(model.module, model.unravel, model.criterion)


def _clip_per_example(model: Model) -> ClippedSum:
    """Returns the function that takes each example's gradient, for any model."""
    return per_example(model.loss)


CLIPPING: dict[str, Strategy] = {  # the fastest first
    "book_keeping": _clip_by_book_keeping,
    "unfolded": _clip_unfolded,
    "per_example": _clip_per_example,
}


class Trainee(NamedTuple):
    """A model to be audited.

    Attributes:
      model: the model.
      classes: the number of classes of its labels; 0 where labels are no classes.
      clipping: the clipping strategy, a key of CLIPPING.
    """

    model: Model
    classes: int
    clipping: str


class _Training(NamedTuple):
    """Everything that describes a training run of DP-SGD, without its adversary.

    Attributes:
      mechanism: DP-SGD's functions.
      hyper: learning rate, clipping norm, noise multiplier, weight decay.
      data: (features, labels), each with an example a row.
      schedule: the mini-batches (T, B), and the mask of the steps that insert canaries.
    """

    mechanism: base.Mechanism
    hyper: Hyperparameters
    data: base.Data
    schedule: Schedule


@lru_cache(MOST_PROGRAMS)
def _at_precision(function: F, precision: str) -> F:
    """Returns a function that computes its matrix products in float32 or, on a GPU, in TF32."""
    if precision == "tf32":
        platform = jax.default_backend()
        require(platform == "gpu", f"`precision=tf32` needs a GPU, but JAX runs on a {platform}")
        precision = "tensorfloat32"

    def at_precision(*arguments: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*arguments)

    return at_precision  # type: ignore


def trainee(model: str, dataset: Dataset) -> Trainee:
    """Returns one of the repository's models, by its name, for a data set whose features have this shape."""
    row = task(model)
    shape = dataset.features.shape[1:]
    return Trainee(model=row.make(shape), classes=row.classes, clipping=row.clipping)


def build(setting: Setting, dataset: Dataset) -> game.Game:
    """Builds the game of a setting whose model is one of the repository's; see `build_for`."""
    return build_for(setting, dataset, trainee(setting.model, dataset))


def build_for(
    setting: Setting, dataset: Dataset, trained: Trainee, own: Adversary | None = None
) -> game.Game:
    """Builds a game: how models are trained with DP-SGD, and how an adversary inserts and scores canaries.

    Args:
      setting: the setting of the audit.
      dataset: the training examples.
      trained: the model.
      own: the caller's own adversary; by default the setting's adversary is made.

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

    # A training step computes the canaries too, and in the same precision.
    craft = _at_precision(adversary.craft, setting.mechanism.precision)
    return game.Game(
        mechanism=training.mechanism,
        adversary=adversary._replace(craft=craft),
        init=trained.model.init,
        data=training.data,
        hyper=training.hyper,
        schedule=training.schedule,
        seed=setting.seed,
        unknown_initialisation=setting.unknown_initialisation,
        join=_make_join(setting.sampling),
        sampling_rate=setting.sampling_rate,
    )


def _make_training(setting: Setting, dataset: Dataset, trained: Trainee) -> _Training:
    """Returns the training run of a model on data that a setting describes, without its adversary."""
    fields = setting.mechanism
    hyper = Hyperparameters(
        fields.learning_rate,
        fields.clipping_norm,
        fields.noise_multiplier,
        weight_decay=fields.weight_decay or None,  # None leaves the decay out of the program
    )
    return _Training(
        mechanism=_make_mechanism(choices(setting, trained)),
        hyper=hyper,
        data=(jnp.asarray(dataset.features), jnp.asarray(dataset.labels)),
        schedule=Schedule(batches_of(setting, len(dataset.labels)), _make_insertion_mask(setting)),
    )


def _make_join(sampler: Sampling) -> base.Join | None:
    """Returns the function by which a sampler draws which canaries join a step; None where nothing is drawn.

    Poisson sampling draws by a coin for each canary and step. Samplers with epochs draw a step of each epoch
    of `sampler.batches` steps: by shuffling, which deals the canaries evenly to the steps, or for each canary
    on its own. Otherwise the schedule fixes which steps take canaries.
    """
    if sampler.name == POISSON:
        return joining.draw_by_coins
    if sampler.name == SHUFFLED:
        return joining.draw_by_shuffling(sampler.batches)
    if sampler.batches:
        return joining.draw_by_dice(sampler.batches)
    return None


def _make_knowledge(setting: Setting, trained: Trainee, training: _Training) -> Knowledge:
    """Returns what an adversary knows of a training run, with functions by which it can rehearse the run.

    Settings with the same mechanism share compiled functions. What differs between such settings is passed to
    the compiled function as an argument.
    """
    mechanism = training.mechanism

    def simulate(hyper: Hyperparameters, key: Array, theta_0: Array) -> Trajectory:
        """Simulates a training run without canaries from theta_0 (p,), with noise from the key.

        Returns the final model (p,), and the sum over all steps of the squared updates (p,).
        """
        compiled = _make_simulation(mechanism)
        batches = training.schedule.batches
        trajectory: Trajectory = compiled(_trace(hyper), theta_0, training.data, batches, key)
        return trajectory

    def expect(craft: base.Craft, state: base.Tree, theta_0: Array) -> Array:
        """Returns the final model (p,) of training without noise and with the canaries' expected insertions.

        Where a step may take a canary, it is inserted with a weight: the probability that the step takes it.

        Args:
          craft: the function that makes the canaries from the adversary's state.
          state: the adversary's state.
          theta_0: (p,) the initial model.
        """
        compiled = _make_rehearsal(mechanism, craft)
        hyper = _trace(training.hyper)
        # A fair coin decides whether a canary is in. If it is, a step takes it with the sampler's chance.
        presence = jnp.full(setting.canaries, 0.5 * setting.sampling.chance)
        theta: Array = compiled(hyper, state, theta_0, training.data, training.schedule, presence)
        return theta

    return Knowledge(
        model=trained.model,
        classes=trained.classes,
        hyper=training.hyper,
        data=training.data,
        simulate=simulate,
        canaries=setting.canaries,
        expect=expect,
        insertions=setting.insertions,
        steps=setting.schedule.steps,
    )


def _require_canaries(setting: Setting, adversary: Adversary) -> None:
    """Raises InputError unless the adversary makes as many canaries as the setting says."""
    name = setting.adversary.name
    mismatch = f"`canaries={setting.canaries}`: the adversary {name} has {adversary.canaries}"
    fix = "pass Knowledge.canaries on to Adversary, or drop `canaries`"
    require(adversary.canaries == setting.canaries, f"{mismatch}: {fix}")


def _trace(hyper: Hyperparameters) -> Hyperparameters:
    """Returns hyperparameters as float32 arrays: JAX traces these, so that other values reuse a program."""
    traced: Hyperparameters = jax.tree.map(jnp.float32, hyper)
    return traced


def batches_of(setting: Setting, n_examples: int) -> Array:
    """Returns the mini-batches (T, B) of a setting's steps, as indices of examples.

    The setting's seed decides them, so that they are the same in all runs.
    """
    key = game.root(setting.seed, "batches")
    steps = setting.schedule.steps
    return base.fixed_shuffle(key, n_examples, setting.mechanism.batch_size, steps)


def _make_insertion_mask(setting: Setting) -> Array:
    """Returns the mask of the steps that insert canaries, 1 at those steps and 0 at others.

    It is (T,) where all canaries share their steps, or (T, K) where each of K canaries has its own.
    """
    schedule = setting.schedule
    if not setting.repetitions:  # step `place` of each period inserts, for all canaries alike
        return base.insertion_mask(schedule.steps, schedule.periodicity, schedule.place)
    # Each canary has `repetitions` random steps, the same in all runs. `base.fixed_shuffle` folds epochs'
    # numbers into the same key of the batches; this number is beyond any epoch's.
    batches_key = game.root(setting.seed, "batches")
    key = jax.random.fold_in(batches_key, zlib.crc32(b"canaries"))
    mask = cohorts.repeated(key, setting.canaries, schedule.steps, setting.repetitions)
    return jnp.asarray(mask)


def choices(setting: Setting, trained: Trainee) -> dpsgd.DPSGD:
    """Returns DP-SGD's functions for a setting: the sum of clipped gradients, and the optimizer."""
    clipped_sum = _make_clipped_sum(CLIPPING[trained.clipping], trained.model)  # type: ignore[arg-type]
    return dpsgd.DPSGD(
        _at_precision(clipped_sum, setting.mechanism.precision),
        OPTIMIZERS[setting.mechanism.optimizer],
    )


@lru_cache(MOST_PROGRAMS)
def _make_clipped_sum(strategy: Strategy, model: Model) -> ClippedSum:
    return strategy(model)


@lru_cache(MOST_PROGRAMS)
def _make_mechanism(chosen: dpsgd.DPSGD) -> base.Mechanism:
    return dpsgd.mechanism(chosen)


@lru_cache(MOST_PROGRAMS)
def _make_simulation(mechanism: base.Mechanism) -> Wrapped:
    """Returns the compiled function that trains without canaries; see `base.simulate`."""
    return jax.jit(partial(base.simulate, mechanism))


@lru_cache(MOST_PROGRAMS)
def _make_rehearsal(mechanism: base.Mechanism, craft: base.Craft) -> Wrapped:
    """Returns the compiled function that trains without noise, as an adversary forecasts a run.

    Each canary is inserted times the probability with which it is present; see `base.rehearse`.

    Args:
      mechanism: DP-SGD's functions.
      craft: the adversary's function that makes the canaries from its state.
    """

    @jax.jit
    def rehearse(
        hyper: Hyperparameters,
        state: base.Tree,
        theta_0: Array,
        data: base.Data,
        schedule: Schedule,
        presence: Array,
    ) -> Array:
        """Returns the final model (p,) of training from theta_0 (p,).

        `presence` (K,) is the probability with which each canary is present; `state` is the adversary's.
        """
        canaries = base.Canaries(partial(craft, state), presence)
        return base.rehearse(mechanism, hyper, theta_0, data, schedule, canaries)

    return rehearse


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Returns the circumstances of a training run by name: data source, versions, device, time.

    They do not decide the distribution of the scores, but may explain differences in their last bits.
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
