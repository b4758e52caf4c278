"""Builds the game for a setting: its model, mechanism, adversary, mini-batches and data."""

import platform
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.adversaries.base import Adversary, Knowledge
from audit.claims.strategies import INDEPENDENT, read_strategy
from audit.errors import require
from audit.mechanism import base, cohorts, dpsgd, joining
from audit.mechanism.base import Hyperparameters, Schedule, Trajectory
from audit.mechanism.clipping.base import ClippedSum, book_keeping, per_example
from audit.mechanism.clipping.layerwise import layerwise_book_keeping
from audit.mechanism.dpsgd import Coefficients
from audit.mechanism.ensemble import MAX_PROGRAMS
from audit.settings.setting import KNOWN, POISSON, SHUFFLED, Sampling, Setting
from audit.tasks.model import Model
from audit.tasks.task import Dataset, task
from audit.training import game
from audit.version import __version__

F = TypeVar("F", bound=Callable[..., Any])

# JAX looks up compiled programs by function object. We therefore cache function factories, to return the same
# object for the same arguments.

OPTIMIZERS: dict[str, Callable[[Array], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
    "adamw": optax.adamw,
}


class Trainee(NamedTuple):
    """A model to train.

    Attributes:
      classes: the number of classes; 0 if labels are not classes.
      clipping: the name of its clipping strategy (see `make_clipped_sum`).
    """

    model: Model
    classes: int
    clipping: str


@lru_cache(MAX_PROGRAMS)
def make_clipped_sum(clipping: str, model: Model) -> ClippedSum:
    """Returns the function that computes the sum of a model's clipped gradients.

    `clipping` names the strategy: "book_keeping" (Bu et al., 2022) for narrow dense networks, "unfolded" for
    other layers such as convolutions, or "per_example", which is slow but works for all models.
    """
    if clipping == "per_example":
        return per_example(model.loss)
    strategies = {"book_keeping": book_keeping, "unfolded": layerwise_book_keeping}
    return strategies[clipping](model.module, model.unravel, model.criterion)


@lru_cache(MAX_PROGRAMS)
def _at_precision(function: F, precision: str) -> F:
    """Returns the function, with matrix products computed in `precision`: "float32" or, on a GPU, "tf32"."""
    if precision == "tf32":
        backend = jax.default_backend()
        require(backend == "gpu", f"`precision=tf32` needs a GPU, but JAX runs on a {backend}")
        precision = "tensorfloat32"  # the JAX name

    return jax.default_matmul_precision(precision)(function)


def trainee(model: str, dataset: Dataset) -> Trainee:
    """Makes the repository's model with this name, for inputs shaped like a data set's examples."""
    entry = task(model)
    example_shape = dataset.features.shape[1:]
    return Trainee(entry.make(example_shape), entry.classes, entry.clipping)


def build(
    setting: Setting,
    dataset: Dataset,
    trained: Trainee | None = None,
    own: Adversary | None = None,
) -> game.Game:
    """Builds the game of a setting.

    Args:
      trained: a custom model; None if the setting names one of the repository's models.
      own: a custom adversary; None for the setting's adversary.

    Raises:
      InputError: the setting, data, model and adversary do not fit together.
    """
    fields = setting.mechanism
    examples = len(dataset.labels)
    require(
        fields.batch_size <= examples,
        f"`batch_size={fields.batch_size}` exceeds the number of examples, {examples}: lower it",
    )

    trained = trained or trainee(setting.model, dataset)
    data = (jnp.asarray(dataset.features), jnp.asarray(dataset.labels))
    hyper = _make_hyperparameters(setting)
    schedule = _make_schedule(setting, examples)
    mechanism = _make_mechanism(make_dpsgd(setting, trained))
    adversary = own
    if adversary is None:
        knowledge = _describe_training(setting, trained, mechanism, hyper, data, schedule)
        adversary = setting.adversary.make(knowledge)
    require(
        adversary.canaries == setting.canaries,
        f"`canaries={setting.canaries}`: the adversary {setting.adversary.name} has "
        f"{adversary.canaries}: pass Knowledge.canaries on to Adversary, or drop `canaries`",
    )

    # Canaries may be gradients, which need the same precision as training.
    craft = _at_precision(adversary.craft, fields.precision)
    return game.Game(
        mechanism=mechanism,
        adversary=adversary._replace(craft=craft),
        init=trained.model.init,
        data=data,
        hyper=hyper,
        schedule=schedule,
        seed=setting.seed,
        unknown_initialisation=setting.unknown_initialisation,
        join=_choose_join(setting.sampling),
        sampling_rate=setting.sampling.rate,
    )


def _make_hyperparameters(setting: Setting) -> Hyperparameters:
    """Returns the hyperparameters of a setting's training."""
    fields = setting.mechanism
    decay: float | None = fields.weight_decay
    # None keeps the decay term out of programs. AdamW gets 0, because the Optax default is not 0.
    if decay == 0 and fields.optimizer != "adamw":
        decay = None
    return Hyperparameters(
        fields.learning_rate,
        fields.clipping_norm,
        fields.noise_multiplier,
        mechanism_specific=_read_noise_coefficients(setting),
        weight_decay=decay,
    )


def _describe_training(
    setting: Setting,
    trained: Trainee,
    mechanism: base.Mechanism,
    hyper: Hyperparameters,
    data: base.Data,
    schedule: Schedule,
) -> Knowledge:
    """Returns the training run as an adversary knows it."""

    def simulate(simulated: Hyperparameters, key: Array, theta_0: Array) -> Trajectory:
        """Simulates training from theta_0 (p,) without canaries, with noise drawn from `key`."""
        # Python floats are weakly typed, so JAX would compile another program for them.
        arrays = jax.tree.map(jnp.float32, simulated)
        return _simulate(mechanism, arrays, theta_0, data, schedule.batches, key)

    # Each canary is inserted with probability 1/2.
    mean_presence = jnp.full(setting.canaries, 0.5 * _find_joining_probability(setting.sampling))
    arrays = jax.tree.map(jnp.float32, hyper)
    return Knowledge(
        model=trained.model,
        classes=trained.classes,
        hyper=hyper,
        data=data,
        simulate=simulate,
        canaries=setting.canaries,
        predict_final=partial(_rehearse, mechanism, arrays, data, schedule, mean_presence),
        insertions=setting.insertions,
        noise_steps=setting.noise_steps,
        is_rehearsed=setting.is_rehearsed,
    )


def _find_joining_probability(sampler: Sampling) -> float:
    """Returns the probability that an inserted canary joins a step that inserts canaries."""
    if sampler.batches:  # a canary joins one step of each epoch
        return 1 / sampler.batches
    return sampler.rate  # 1 unless sampling is Poisson


def _choose_join(sampler: Sampling) -> base.Join | None:
    """Returns the function that draws which inserted canaries join a step; None if all of them do."""
    if sampler.name == POISSON:
        return joining.draw_by_coins
    if sampler.batches:  # a canary joins one step of each epoch
        return joining.draw_by_epochs(sampler.batches, shuffles=sampler.name == SHUFFLED)
    return None


def _make_schedule(setting: Setting, examples: int) -> Schedule:
    """Returns the mini-batches (T, B) of the T steps, and the mask of steps that insert canaries.

    `examples` is the number of training examples. The mask is (T,), or (T, K) for the sampler `known`, which
    gives each of K canaries its own steps. All runs share the batches and the mask.
    """
    schedule = setting.schedule
    key = game.root(setting.seed, "batches")
    batches = base.fixed_shuffle(key, examples, setting.mechanism.batch_size, schedule.steps)
    if setting.sampling.name != KNOWN:
        # Step `place`, counted from 1, of every `periodicity` steps inserts all canaries.
        mask = base.insertion_mask(schedule.steps, schedule.periodicity, schedule.place)
        return Schedule(batches, mask)
    # We fold in a large number, because `base.fixed_shuffle` folds the epochs 0, 1, ... into the same key.
    canary_key = jax.random.fold_in(key, zlib.crc32(b"canaries"))
    drawn = cohorts.repeated(canary_key, setting.canaries, schedule.steps, setting.sampling.times)
    return Schedule(batches, jnp.asarray(drawn))


def _read_noise_coefficients(setting: Setting) -> Coefficients | tuple[()]:
    """Returns the coefficients of a setting's correlated noise; () if noise is independent across steps.

    They define polynomials B and A. For independent noise z and a shift L by one step, the noise n solves
    B(L) n = A(L) z.
    """
    noise = setting.mechanism.noise
    if noise == INDEPENDENT:
        return ()
    strategy = read_strategy(noise, setting.schedule.steps)
    return Coefficients(*map(jnp.asarray, strategy.noise_coefficients()))  # B, then A


def make_dpsgd(setting: Setting, trained: Trainee) -> dpsgd.DPSGD:
    """Returns the part of the DP-SGD configuration that is compiled into programs."""
    fields = setting.mechanism
    clipped_sum = make_clipped_sum(trained.clipping, trained.model)
    # A run remembers the noise of the last bands - 1 steps, because the coefficients B_1, B_2, ... in
    # `of_noise` multiply it.
    bands = 1  # for independent noise
    coefficients = _read_noise_coefficients(setting)
    if coefficients:
        bands = len(coefficients.of_noise)
    return dpsgd.DPSGD(
        _at_precision(clipped_sum, fields.precision), OPTIMIZERS[fields.optimizer], bands
    )


_make_mechanism = lru_cache(MAX_PROGRAMS)(dpsgd.mechanism)


_simulate = jax.jit(base.simulate, static_argnums=0)


@partial(jax.jit, static_argnames=("mechanism", "craft"))
def _rehearse(
    mechanism: base.Mechanism,
    hyper: Hyperparameters,
    data: base.Data,
    schedule: Schedule,
    weights: Array,
    craft: base.Craft,
    state: base.Tree,
    theta_0: Array,
) -> Array:
    """Trains from theta_0 without noise (`base.rehearse`) and returns the final model (p,).

    `weights` (K,) scale the canaries that `craft` makes from `state`.
    """
    canaries = base.Canaries(partial(craft, state), weights)
    return base.rehearse(mechanism, hyper, theta_0, data, schedule, canaries)


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Returns the data source, library versions, this process's device, and the time, keyed by name."""
    libraries = ("jax", "flax", "optax", "numpy")
    return {
        "data": dataset.source,
        "audit": __version__,
        **{library: metadata.version(library) for library in libraries},
        "python": platform.python_version(),
        "device": jax.local_devices()[0].device_kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
