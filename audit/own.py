"""Audits custom adversaries and models: Flax modules, or losses over a pytree of parameters."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError, InvalidRngError
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike, NDArray

from audit.adversaries.base import Adversary, Shapes, check_shapes, describe_view
from audit.claims.measured import MEASURED
from audit.conclusions import lipschitz, measuring
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require, shown
from audit.evidence import arrays
from audit.mechanism.base import Examples
from audit.mechanism.clipping.base import per_example
from audit.mechanism.ensemble import MAX_PROGRAMS
from audit.settings.adversaries import OwnAdversary
from audit.settings.make import make_setting
from audit.settings.setting import Setting, validate
from audit.storage.store import Store
from audit.tasks.model import Model, flat_model
from audit.tasks.task import Dataset, Task, checksum_of
from audit.training import build, driver
from audit.training.build import Trainee
from audit.training.game import Game
from audit.written import Level

Criterion = Callable[[Array, Array], Array]
_NUM_PROBED = 4  # examples on which clipping strategies are compared
_DEFAULT_SETTINGS = {"learning_rate": 0.1, "batch_size": 400}
_CLIPPING_NORM = jax.ShapeDtypeStruct((), jnp.float32)


class OwnModel(NamedTuple):
    """A custom model with its data.

    Attributes:
      model: the model, over a flat vector of parameters.
      dataset: the data.
      name: the default name in reports.
      fingerprint: the hex SHA-256 of the compiled functions, which identifies the model in the store.
      defaults: the default settings, by name.
    """

    model: Model
    dataset: Dataset
    name: str
    fingerprint: str
    defaults: Mapping[str, Any] = _DEFAULT_SETTINGS


@dataclass(frozen=True)
class _Fingerprinted:
    """Functions, and the hash of their compiled programs (`_fingerprint`). `==` compares only the hash."""

    fingerprint: str
    functions: Any = field(compare=False)


@lru_cache(MAX_PROGRAMS)
def _share(computed: _Fingerprinted) -> Any:
    """Returns the functions of the first call with the same hash, so JAX does not compile them again.

    JAX looks up compiled programs by function identity, and rerunning a notebook cell defines equal but
    distinct functions.
    """
    return computed.functions


def wrap_module(
    module: nn.Module, criterion: Criterion, features: ArrayLike, labels: ArrayLike
) -> OwnModel:
    """Validates a Flax Linen module and data, and wraps them as a custom model with random initialisation.

    The arguments are those of `audit.audit_model`.

    Raises:
      InputError: the module does not fit the criterion or the data, or DP-SGD cannot train it.
    """
    dataset = _dataset(features, labels)
    if not isinstance(module, nn.Module):
        name = getattr(module, "__name__", type(module).__name__)
        raise InputError(
            f"audit_model takes a Flax Linen module, not {name}: give an instance, or any other model as "
            "loss(params, (feature, label)) to audit_loss"
        )

    def make(example: Array) -> Model:
        """Returns the model; raises InputError if the module has variables that are not parameters."""
        variables = jax.eval_shape(module.init, _key(), example)  # shapes, without values
        others = sorted(set(variables) - {"params"})
        require(
            "params" in variables and not others,
            f"the module has {', '.join(others) or 'no parameters'}: DP-SGD trains only parameters (use "
            "GroupNorm instead of BatchNorm)",
        )
        return flat_model(module, example, criterion)

    return _wrap("the module or criterion", make, dataset, name=type(module).__name__)


def wrap_loss(
    loss: Callable[[Any, tuple[Array, Array]], Array],
    params: Any,
    features: ArrayLike,
    labels: ArrayLike,
) -> OwnModel:
    """Validates a loss, its parameters and data, and wraps them as a custom model.

    The arguments are those of `audit.audit_loss`.

    Raises:
      InputError: the loss does not fit params or data, or DP-SGD cannot train params.
    """
    dataset = _dataset(features, labels)
    leaves = jax.tree.leaves(params)
    fix = "pass only float arrays (for a whole model: nnx.split, eqx.partition)"
    require(leaves, f"params have no arrays to train: {fix}")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", type(leaf))
        # Arrays from other libraries and random keys do not have NumPy dtypes.
        is_float = isinstance(kind, np.dtype) and jnp.issubdtype(kind, jnp.floating)
        require(is_float or kind is float, f"params have a leaf of type {kind}: {fix}")
    float32_params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    flat_params, unravel = ravel_pytree(float32_params)
    theta_0 = np.asarray(flat_params)

    # Renaming this function changes hashes and orphans stored runs: compiled programs contain its name.
    def flat_loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the loss at a flat vector of parameters."""
        return loss(unravel(theta), labelled)

    model = Model(
        n_parameters=theta_0.size,
        init=lambda key: jnp.asarray(theta_0),  # every run begins at `params`
        unravel=unravel,
        loss=flat_loss,
    )
    name = getattr(loss, "__name__", "loss")
    return _wrap("loss(params, (feature, label))", lambda features: model, dataset, name)


def wrap_task(task: Task, dataset: Dataset) -> OwnModel:
    """Wraps one of the repository's models as a custom model, as custom adversaries require."""
    name = task.name
    own = _wrap(name, lambda features: task.make(features.shape), dataset, name)
    return own._replace(defaults=task.usual())


def _wrap(what: str, make: Callable[[Array], Model], dataset: Dataset, name: str) -> OwnModel:
    """Returns a custom model, identified by a hash of its initialisation, loss and gradient.

    Args:
      what: a description of the user's code, for messages.
      make: a function that maps an example's features to the model.
    """
    example = (jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0]))
    try:
        model = make(example[0])
        theta = _vector(model.n_parameters)
        loss_shape = jax.eval_shape(model.loss, theta, example).shape
    except InvalidRngError:
        raise InputError(
            "the module draws randomness: disable dropout (deterministic=True)"
        ) from None
    except InputError:  # from `make`
        raise
    except Exception as error:  # from the user's code
        raise InputError(
            f"{what} fails on one example of shape {example[0].shape}, which has no batch axis: "
            f"{shown(str(error))}"
        ) from error
    require(
        loss_shape == (),
        f"the loss of one example has shape {loss_shape}, not (): return one number (an example has no batch "
        "axis: flatten with x.reshape(-1))",
    )
    gradient = jax.value_and_grad(model.loss)
    fingerprint = _fingerprint([(model.init, (_key(),)), (gradient, (theta, example))])
    shared = _share(_Fingerprinted(fingerprint, model))  # equal models share compiled programs
    return OwnModel(shared, dataset, name, fingerprint)


def make_request(own: OwnModel, fields: dict[str, Any], runs: int, level: Level) -> driver.Request:
    """Returns the request to audit a custom model.

    `fields` maps names to settings, and is modified in place. `model` is the model's name in reports.
    `adversary` is a name, or an `Adversary` that also determines `canaries`. `lipschitz` and `rehearsals` are
    passed to `_Training.plan_constants`.

    Raises:
      InputError: a setting is invalid or does not fit the model or the data.
    """
    constants = fields.pop("lipschitz", None)
    rehearsals = fields.pop("rehearsals", None)
    name = fields.pop("model", None) or own.name
    adversary = None
    if isinstance(fields["adversary"], Adversary):
        identity, adversary = _prepare_adversary(fields["adversary"], own.model.n_parameters)
        fields |= {"adversary": identity, "canaries": adversary.canaries}
    setting = make_setting(name, own.defaults, fields, examples=len(own.dataset.labels))
    validate(setting, runs, level.delta)
    is_random = own.model.module is not None  # False after `wrap_loss`: runs begin at `params`
    require(
        is_random or not setting.unknown_initialisation,
        "`unknown_initialisation` needs random initialisation, but every run begins at `params`",
    )
    training = _Training(own, setting, adversary)
    find_constants = training.plan_constants(constants, rehearsals, level.delta)
    # The model's hash identifies its compiled game and its stored runs.
    recipe = driver.GameRecipe(own.fingerprint, training.make_game, training.describe)
    return driver.Request(
        setting, own.dataset, runs, recipe, level, find_constants, model=own.fingerprint
    )


@dataclass(frozen=True)
class _Training:
    """The training of a custom model, with the setting's adversary unless `adversary` is given."""

    own: OwnModel
    setting: Setting
    adversary: Adversary | None

    @cached_property
    def trainee(self) -> Trainee:
        """Returns the model with its number of classes and its clipping strategy."""
        model = self.own.model
        labels = self.own.dataset.labels
        classes = 0  # unless labels are class numbers
        are_integers = labels.ndim == 1 and labels.dtype.kind in "iu"
        if are_integers and labels.min() >= 0 and labels.max() >= 1:
            classes = int(labels.max()) + 1
        clipping = "per_example"  # the other strategies need a module's layers
        if model.module is not None:
            clipping = _find_strategy(model, self.own.dataset)
        return Trainee(model, classes, clipping)

    def make_game(self, dataset: Dataset) -> Game:
        """Builds the setting's game for a data set."""
        return build.build(self.setting, dataset, self.trainee, self.adversary)

    def describe(self, dataset: Dataset) -> dict[str, Any]:
        """Returns the provenance of training, including which models a custom adversary sees."""
        described = build.provenance(dataset)
        if self.adversary is not None:
            described["view"] = describe_view(self.adversary.observer is not None)
        return described

    def plan_constants(
        self, constants: Any, rehearsals: Any, delta: float
    ) -> Callable[[Store], Steps | None]:
        """Returns a function that finds the training steps' Lipschitz constants, given the setting's store.

        Raises InputError if the constants do not give an upper bound for the last model.

        Args:
          constants: numbers that the user guarantees; "measured" to measure them; None for those that an
            earlier audit measured.
          rehearsals: the number of additional runs for measuring; None for the default.
          delta: the delta of the upper bound.
        """
        is_measured = isinstance(constants, str) and constants == MEASURED
        lipschitz.require_rehearsals(is_measured, rehearsals)
        if constants is None:
            return _reuse_measured_constants
        if is_measured:
            # Refuse before measuring. Any constants will do: they do not affect whether a bound exists.
            self.require_bound(delta, constants=1.0)
            return partial(self.measure, rehearsals=rehearsals or lipschitz.USUAL)
        self.require_bound(delta, constants)
        # `keep` writes and returns the constants.
        return partial(lipschitz.keep, steps=Steps(constants, reason="as its author vouches"))

    def require_bound(self, delta: float, constants: ArrayLike) -> None:
        """Raises InputError unless Lipschitz constants give an upper bound for the last model."""
        steps = Steps(constants, reason="")  # only reports show the reason
        # The user is responsible for the constants of a custom model.
        bound = lipschitz.hidden_state(self.setting, delta, steps, own_model=True)
        why_not = ""
        if isinstance(bound, str):  # why there is no bound
            why_not = bound
        elif self.adversary is not None:
            why_not = _why_adversary_uncovered(self.adversary, self.own.model.n_parameters)
        require(not why_not, f"`lipschitz` bounds the last model's leakage, but {why_not}: drop it")

    def measure(self, store: Store, rehearsals: int) -> Steps:
        """Loads the Lipschitz constants of `rehearsals` runs, or measures them in new runs."""
        return measuring.measure(
            store, self.setting, self.own.dataset, rehearsals, self.trainee, self.adversary
        )


def _reuse_measured_constants(store: Store) -> Steps | None:
    """Returns the Lipschitz constants that an earlier audit measured, or None.

    Deletes constants that a user guaranteed for an earlier audit, because they may not hold for this one.
    """
    measured = lipschitz.find_measured(store, rehearsals=0)
    if measured is None:
        lipschitz.keep(store, None)
    return measured


def _find_strategy(model: Model, dataset: Dataset) -> str:
    """Returns the name of the fastest clipping strategy that computes a model's clipped sums correctly.

    We compare each strategy's sums with those of per-example gradients, at clipping norms that clip 0%, 50%
    and 100% of a few examples.
    """
    features = jnp.asarray(dataset.features[:_NUM_PROBED])
    batch = (features, jnp.asarray(dataset.labels[:_NUM_PROBED]))
    theta = model.init(jax.random.key(0))
    per_example_gradients = jax.jit(jax.vmap(jax.grad(model.loss), (None, 0)))
    lengths = jnp.linalg.norm(per_example_gradients(theta, batch), axis=1)
    clipping_norms = (jnp.inf, jnp.median(lengths), lengths.min() / 2)
    right_sum = jax.jit(per_example(model.loss))
    names = ["unfolded"]
    if features.ndim == 2:  # one vector per example, so we try the fastest strategy first
        names = ["book_keeping", "unfolded"]

    def require_right_sums(name: str) -> None:
        """Raises an error if a strategy computes wrong sums or does not support the model's layers."""
        clipped_sum = jax.jit(build.make_clipped_sum(name, model))
        for norm in map(jnp.float32, clipping_norms):
            difference = clipped_sum(theta, batch, norm) - right_sum(theta, batch, norm)
            # About a hundred times the rounding error of these sums in float32.
            allowed = 1e-3 * jnp.minimum(lengths, norm).sum()
            require(
                jnp.linalg.norm(difference) <= allowed,
                f"{name} differs from per-example gradients",
            )

    reason = ""
    for name in names:
        try:
            require_right_sums(name)
            return name
        # The sums differ (ValueError), or the strategy does not support the model's layers.
        except (TypeError, ValueError, IndexError, FlaxError) as error:
            reason = " ".join(str(error).split())
    print(
        f"computing a gradient per example, which is 10 to 100 times slower: {reason}",
        file=sys.stderr,
    )
    return "per_example"


def _prepare_adversary(adversary: Adversary, parameters: int) -> tuple[OwnAdversary, Adversary]:
    """Returns a custom adversary as a field of the setting, and the adversary to compile.

    The field has a name and the hash of the compiled functions, which identifies stored runs. Adversaries
    with the same hash share functions, which are compiled only once.
    """
    # The label is the name of the function that encloses `init`: "constant_direction" in
    # "constant_direction.<locals>.init".
    label = getattr(adversary.init, "__qualname__", "own").split(".<locals>")[0]
    # JAX reuses a function's old trace even if outside variables have changed, so we make new objects.
    untraced: Adversary = jax.tree.map(
        lambda part: partial(part) if callable(part) else part, adversary
    )
    try:
        fingerprint = _fingerprint_adversary(untraced, parameters)
    except Exception as error:  # from the user's functions
        raise InputError(
            f"`adversary={label}` fails on a model of {parameters} parameters: {shown(str(error))}"
        ) from error
    without_init = untraced._replace(init=None)  # type: ignore[arg-type]
    shared = _share(_Fingerprinted(fingerprint, without_init))
    # Training does not compile `init`, and a shared `init` would keep its data in memory. `reads_theta` is
    # not hashed, because it affects only the upper bound.
    compiled = shared._replace(init=adversary.init, reads_theta=adversary.reads_theta)
    return OwnAdversary(label, fingerprint), compiled


def _fingerprint_adversary(adversary: Adversary, parameters: int) -> str:
    """Returns a hash that identifies an adversary's stored runs. It changes if the scores change.

    The hash covers the functions, compiled for `parameters` parameters, and the fields `crafts_constant` and
    `null`. The caller must pass new function objects.
    """
    _find_shapes(adversary, parameters)  # raises InputError for wrong shapes

    # Renaming this function or the fields of records changes the hash and orphans stored runs.
    def play(key: Array, clipping_norm: Array, step: Array, theta_0: Array, theta: Array) -> Any:
        """Calls each of the adversary's functions once; compiled, never run."""
        state = adversary.init(key, theta_0, clipping_norm)
        state_of_run = adversary.draw_for_run(state, key)
        seen: Any = ()
        if adversary.observer is not None:
            seen = adversary.observer.begin(state, theta_0)
            seen = adversary.observer.observe(state_of_run, seen, step, theta)
        crafted = adversary.craft(state_of_run, step, theta)
        return crafted, seen, adversary.score(state_of_run, seen, theta, theta_0)

    theta = _vector(parameters)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return _fingerprint(
        [(play, (_key(), _CLIPPING_NORM, step, theta, theta))],
        str((adversary.crafts_constant, adversary.null)),
    )


def _find_shapes(adversary: Adversary, parameters: int) -> Shapes:
    """Returns the shapes of a custom adversary's results; raises InputError if they violate the contract."""
    state = jax.eval_shape(adversary.init, _key(), _vector(parameters), _CLIPPING_NORM)
    return check_shapes(adversary, state, parameters)


def _fingerprint(calls: Sequence[tuple[Callable[..., Any], Any]], *facts: str) -> str:
    """Returns the hex SHA-256 of compiled functions and the strings `facts`.

    `calls` lists the functions with the shapes and types of their arguments. We lower the functions for CPUs,
    so the hash is the same on all machines.
    """
    texts = []
    for function, arguments in calls:
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cpu",))
        texts.append(lowered.as_text())
    return hashlib.sha256("\n".join([*texts, *facts]).encode()).hexdigest()


def _why_adversary_uncovered(adversary: Adversary, parameters: int) -> str:
    """Explains why the hidden-state bound does not cover a custom adversary; returns "" if it does."""
    if adversary.observer is not None:
        return "this adversary sees every model"
    # The other canaries are part of the step and change its Lipschitz constant if their gradients depend on
    # the model, as those of crafted examples do.
    crafted = _find_shapes(adversary, parameters).crafted
    reads_theta = adversary.reads_theta or isinstance(crafted, Examples)
    if adversary.canaries > 1 and reads_theta:
        return lipschitz.OTHER_CANARIES
    return ""


def _key() -> Array:
    """Returns a random key of the type that training uses."""
    return jax.random.key(0, impl="threefry2x32")


def _vector(parameters: int) -> jax.ShapeDtypeStruct:
    """Returns the shape (parameters,) and type of a vector of model parameters, without values."""
    return jax.ShapeDtypeStruct((parameters,), jnp.float32)


def _dataset(features: ArrayLike, labels: ArrayLike) -> Dataset:
    """Returns features and labels, both (N, ...), as a data set."""
    standard = {
        "features": _standardize("features", features),
        "labels": _standardize("labels", labels),
    }
    num_features, num_labels = map(len, standard.values())
    require(
        num_features == num_labels,
        f"there are {num_features} features and {num_labels} labels: give one label per example",
    )
    return Dataset(**standard, source="custom arrays", checksum=checksum_of(standard))


def _standardize(name: str, values: ArrayLike) -> NDArray[Any]:
    """Returns values as an array (N, ...) of float32, uint8 or, for other integers, int32."""
    array = arrays.real(name, values)
    kind: type = np.float32
    limit = float(np.finfo(np.float32).max)
    if array.dtype.kind in "biu":  # booleans and whole numbers
        kind = np.int32
        limit = 2**31
    is_valid = np.abs(array.astype(np.float64)) < limit  # also False for NaN
    bad = np.sum(~is_valid)
    require(not bad, f"{name} have {bad} values that are infinite, NaN or too large: fix them")
    require(
        array.size and array.ndim,
        f"{name} have shape {array.shape}: give a row for each example",
    )
    return array if array.dtype == np.uint8 else array.astype(kind)
