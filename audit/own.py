"""A caller's own model and own adversary, with the same game, bounds and report.

A model is any Flax module, or any loss over a tree of parameters.
"""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError, InvalidRngError
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike, NDArray

from audit.adversaries.base import Adversary, NullLaw, Observer, describe_view, shapes
from audit.claims.measured import MEASURED
from audit.conclusions import lipschitz, measuring, rehearsals
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.evidence import arrays
from audit.mechanism.base import Examples
from audit.mechanism.clipping.base import Batch, per_example
from audit.mechanism.ensemble import MOST_PROGRAMS
from audit.methods.level import Level
from audit.settings.adversaries import OwnAdversary
from audit.settings.fields import declared
from audit.settings.make import Usual, make_setting
from audit.settings.setting import Setting, require_accounted, validate
from audit.storage.store import FIGURE, Store
from audit.tasks.model import Model, flat_model
from audit.tasks.task import Dataset, checksum_of
from audit.training import build, driver
from audit.training.build import Trainee
from audit.training.game import Game
from audit.values import number, require_no_cycle

Criterion = Callable[[Array, Array], Array]
TreeLoss = Callable[[Any, tuple[Array, Array]], Array]
_PROBE = 4  # examples on which a strategy must agree with per-example gradients
_PER_EXAMPLE = "per_example"
_TOLERANCE = 1e-3  # of the clipped gradients' summed norms: a hundred times the rounding error
_REASON_CHARACTERS = 200  # shown of an error that a caller's code raised


class OwnModel(NamedTuple):
    """A caller's model with its data.

    Attributes:
      model: the model, over a flat vector of parameters.
      dataset: the data.
      name: the model's name in reports, where the caller gives none.
      computes: the model's fingerprint: SHA-256, in hex, of what its functions compute. It tells the model's
        stored scores from another model's.
      draws: whether its initialisation is random; if not, every run begins at the caller's parameters.
    """

    model: Model
    dataset: Dataset
    name: str
    computes: str
    draws: bool


class StepsRequest(NamedTuple):
    """A caller's request for the Lipschitz constants of the steps.

    Attributes:
      constants: the constants, for which the caller vouches, or "measured" to measure them; None without a
        request.
      rehearsals: the number of runs to measure them along; None for the usual number.
    """

    constants: ArrayLike | str | None = None
    rehearsals: int | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the constants are to be measured."""
        return isinstance(self.constants, str) and self.constants == MEASURED


@dataclasses.dataclass(frozen=True)
class _Computed:
    """Functions by a hash of what they compute: equal to all others that compute the same.

    Attributes:
      computes: the hash.
      functions: a model, or functions of an adversary.
    """

    computes: str
    functions: Any = dataclasses.field(compare=False)


@functools.lru_cache(MOST_PROGRAMS)
def _share(computed: _Computed) -> Any:
    """Returns the functions that came first of all that compute the same, so that they share programs."""
    return computed.functions


def wrap_module(
    module: nn.Module, criterion: Criterion, features: ArrayLike, labels: ArrayLike
) -> OwnModel:
    """Returns a caller's Flax Linen module and data, checked, as a model to be audited.

    The module draws its initial parameters.

    Args:
      module: a module that takes a single example, without a batch axis.
      criterion: (the module's output, a label) -> the scalar loss of a single example.
      features: (N, ...), one row an example.
      labels: (N, ...), one row an example.

    Raises:
      InputError: the module does not fit the criterion or the data, or training cannot take them.
    """
    dataset = _dataset(features, labels)
    model = _model(module, criterion, dataset)
    fingerprint = _fingerprint(model, dataset)
    model = _share(_Computed(fingerprint, model))
    return OwnModel(model, dataset, type(module).__name__, fingerprint, draws=True)


def wrap_loss(loss: TreeLoss, params: Any, features: ArrayLike, labels: ArrayLike) -> OwnModel:
    """Returns a caller's loss over a tree of parameters and its data, checked, as a model to be audited.

    Its gradients can only be clipped example by example. It draws no initial parameters: every run begins at
    `params`.

    Args:
      loss: (params, (feature, label)) -> the scalar loss of a single example.
      params: the tree of float arrays at which every run begins.
      features: (N, ...), one row an example.
      labels: (N, ...), one row an example.

    Raises:
      InputError: the loss does not fit params or data, or training cannot take them.
    """
    dataset = _dataset(features, labels)
    model = _model_of_loss(loss, params, dataset)
    name = getattr(loss, "__name__", "loss")
    fingerprint = _fingerprint(model, dataset)
    model = _share(_Computed(fingerprint, model))
    return OwnModel(model, dataset, name, fingerprint, draws=False)


def audited(
    own: OwnModel,
    fields: dict[str, Any],
    adversary: str | Adversary,
    runs: int,
    out: Path,
    level: Level,
    steps_request: StepsRequest,
) -> driver.Finished:
    """Audits a caller's model: trains the missing runs, concludes, and writes figure and page.

    If `out` already has all runs, nothing is trained.

    Args:
      own: the model with its data.
      fields: the caller's settings, by the names of the setting's fields.
      adversary: the name of an adversary of the library, or the caller's own adversary.
      runs: the number of runs to have in all.
      out: the folder of the stores.
      level: delta and confidence of the bounds.
      steps_request: the caller's request for the Lipschitz constants of the steps.

    Raises:
      InputError: the setting, the adversary or the requested constants do not fit the model or each other.
    """
    # The requested setting, checked. A caller's own adversary fixes the number of canaries.
    own_adversary = None
    fields = {**fields, "adversary": adversary}
    if isinstance(adversary, Adversary):
        own_field = _describe_adversary(adversary, own.model)
        own_adversary = _share_functions(own_field.computes, adversary)
        fields = {**fields, "adversary": own_field, "canaries": adversary.canaries}
    setting = _make_setting(own, fields)
    validate(setting, runs)
    require_accounted(setting, level.delta)
    can_start = own.draws or not setting.unknown_initialisation
    require(
        can_start,
        "`unknown_initialisation` needs a module that draws one: every run begins at params",
    )
    rehearsals.require_rehearsals(steps_request.constants, steps_request.rehearsals)
    parameters = own.model.n_parameters
    _require_covered(setting, steps_request, own_adversary, parameters, level.delta)

    def make(dataset: Dataset) -> Game:
        """Returns the game of the setting."""
        return build.build_for(setting, dataset, _make_trainee(own), own_adversary)

    request = driver.Request(
        setting,
        own.dataset,
        runs,
        driver.GameRecipe(own.computes, make, partial(_describe_training, own_adversary)),
        level,
        partial(_find_steps, own, setting, make, steps_request),
        model=own.computes,
    )
    finished = driver.audit(request, out)
    driver.keep(finished, [FIGURE, driver.PAGE])
    return finished


def _describe_training(own_adversary: Adversary | None, dataset: Dataset) -> dict[str, Any]:
    """Returns the circumstances of the training by name, with what a caller's own adversary sees."""
    described = build.provenance(dataset)
    if own_adversary is not None:
        # A store's config has only a hash of the adversary's functions, which does not tell.
        described["view"] = describe_view(own_adversary.observer is not None)
    return described


def _make_setting(own: OwnModel, fields: dict[str, Any]) -> Setting:
    """Returns the setting that a caller's fields describe, with defaults for fields that are missing.

    Args:
      own: the model with its data.
      fields: the caller's values by field. The field `model` is the name that the setting gets; without it,
        that is the model's own name.
    """
    # `make_setting` takes the name apart from the other fields.
    given = {name: value for name, value in fields.items() if name != "model"}
    usual = Usual(learning_rate=0.1, batch_size=400)
    examples = len(own.dataset.labels)
    return make_setting(fields.get("model") or own.name, usual, given, examples)


def _require_covered(
    setting: Setting,
    request: StepsRequest,
    own_adversary: Adversary | None,
    parameters: int,
    delta: float,
) -> None:
    """Raises InputError where the Lipschitz constants that a caller requests are out of range or useless.

    They are useless where no bound on what the last model leaks would follow from them.

    Args:
      setting: the audit's setting.
      request: the caller's request; without constants there is nothing to check.
      own_adversary: the caller's own adversary, if any; an observer that sees every model rules a bound out,
        and so do several canaries that depend on the model.
      parameters: the number of the model's parameters.
      delta: the delta of the bound that would follow.
    """
    if request.constants is None:
        return
    # Constants to be measured are not known yet: any constant shows whether a bound would follow.
    steps = Steps(1.0, "") if request.is_measured else _vouched_steps(request)
    bound_or_reason = lipschitz.hidden_state(setting, delta, steps, own_model=True)
    reason = bound_or_reason if isinstance(bound_or_reason, str) else ""
    if own_adversary is not None:
        reason = reason or _why_adversary_uncovered(own_adversary, parameters)
    require(not reason, f"`lipschitz` bounds what the last model leaks, and {reason}: drop it")


def _why_adversary_uncovered(adversary: Adversary, parameters: int) -> str:
    """Returns why the hidden-state bound does not hold for a caller's own adversary; empty if it may.

    Args:
      adversary: the caller's own adversary, whose functions fit the model.
      parameters: the number of the model's parameters.
    """
    if adversary.observer is not None:
        return "this adversary sees every model"
    # The map of a step then has the other canaries' gradients in it, for which no constant vouches. Canaries
    # that are examples have gradients at the model, whether or not the adversary says that it reads it.
    if adversary.canaries > 1 and (
        adversary.reads_theta or _crafts_examples(adversary, parameters)
    ):
        return lipschitz.OTHER_CANARIES
    return ""


def _crafts_examples(adversary: Adversary, parameters: int) -> bool:
    """Returns whether an adversary's canaries are examples; JAX traces its functions, with shapes alone."""
    theta = jax.ShapeDtypeStruct((parameters,), jnp.float32)
    norm = jax.ShapeDtypeStruct((), jnp.float32)
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(adversary.init, key, theta, norm)
    if adversary.draw is not None:
        state = jax.eval_shape(adversary.draw, state, key)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return isinstance(jax.eval_shape(adversary.craft, state, step, theta), Examples)


def _vouched_steps(request: StepsRequest) -> Steps:
    """Returns the constants of the steps for which a caller vouches, with that as their reason."""
    assert request.constants is not None
    return Steps(request.constants, "as its author vouches")


def _find_steps(
    own: OwnModel,
    setting: Setting,
    make: Callable[[Dataset], Game],
    request: StepsRequest,
    store: Store,
) -> Steps | None:
    """Returns the Lipschitz constants of the steps that an audit uses, and keeps them in the store.

    A request decides whether the constants are measured or are those for which the caller vouches. Without a
    request, constants that an earlier call of this version measured and stored are used again.

    Returns:
      The constants; None without a request where no measured constants are stored. Other constants in the
      store, such as those for which an earlier caller vouched, are deleted.
    """
    if request.is_measured:
        game = make(own.dataset)
        clipped_sum = build.choices(setting, _make_trainee(own)).clipped_sum
        runs = rehearsals.USUAL if request.rehearsals is None else request.rehearsals
        return measuring.measure(store, setting, game, clipped_sum, runs)
    steps = None
    if request.constants is not None:
        steps = _vouched_steps(request)
    else:
        stored_steps = lipschitz.find_current(store)
        if stored_steps is not None and stored_steps.runs:  # 0 where they were vouched for
            steps = stored_steps
    lipschitz.keep(store, steps)  # deletes what is stored where `steps` is None
    return steps


def _make_trainee(own: OwnModel) -> Trainee:
    """Returns a caller's model with its number of classes, from which a game is built."""
    clipping = _PER_EXAMPLE  # for a loss, which has no layers to see
    if own.draws:  # a module
        clipping = _find_strategy(own.model, own.dataset)
    return Trainee(own.model, _count_classes(own.dataset.labels), clipping)


def _describe_adversary(adversary: Adversary, model: Model) -> OwnAdversary:
    """Returns a caller's own adversary as a setting's field keeps it.

    It is kept by the name of its `init` and a hash of what its functions compute. Raises InputError where
    these fail on the model's shapes.
    """
    # Of a function defined inside another, the name of the outermost function.
    label = getattr(adversary.init, "__qualname__", "own").split(".<locals>")[0]
    # The number of canaries is checked as the setting's field of that name is.
    declared(Setting)["canaries"].require(number("canaries", adversary.canaries, int))
    try:
        return OwnAdversary(label, _fingerprint_adversary(adversary, model))
    except Exception as error:  # whatever an outsider's functions raise
        message = f"`adversary={label}` fails on a model of {model.n_parameters} parameters"
        raise InputError(f"{message}: {_short_reason(error)}") from error


def _fingerprint_adversary(adversary: Adversary, model: Model) -> str:
    """Returns SHA-256, in hex, of the programs that an adversary's functions become on a model's shapes.

    It names the adversary's results in the store, and finds its compiled programs.

    Its fields that are no functions are hashed too, where they are not at their defaults. JAX traces the
    functions with shapes in place of arrays; nothing is computed.
    """
    # JAX would remember what it traced of a function, which may have changed since.
    adversary = _make_anew(adversary)
    # The shapes of the arguments: parameters, clipping norm, the adversary's state, a step's number, what
    # its observer remembers of the models that it has seen, and the state of a run.
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    norm = jax.ShapeDtypeStruct((), jnp.float32)
    # The key is of the type that games use, whatever JAX's default is.
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(adversary.init, key, theta, norm)
    step, _, seen, state_of_run = shapes(adversary, state, model.n_parameters)

    traced = [jax.jit(adversary.init).trace(key, theta, norm)]
    if adversary.draw is not None:
        traced.append(jax.jit(adversary.draw).trace(state, key))
    traced.append(jax.jit(adversary.craft).trace(state_of_run, step, theta))
    if adversary.observer is not None:
        traced.append(jax.jit(adversary.observer.begin).trace(state, theta))
        traced.append(jax.jit(adversary.observer.observe).trace(state_of_run, seen, step, theta))
    # The models are the final and the initial one.
    traced.append(jax.jit(adversary.score).trace(state_of_run, seen, theta, theta))
    return _digest(traced, _list_facts(adversary))


def _share_functions(computes: str, adversary: Adversary) -> Adversary:
    """Returns an adversary whose functions, but for init, are those of the first that computes the same.

    They equal those of no other adversary, even if it has the same functions and these read something that
    has changed. The adversary's `init` may hold data, and is not kept.
    """
    anew = _make_anew(adversary)
    functions = (anew.craft, anew.score, anew.draw, anew.observer)
    craft, score, draw, observer = _share(_Computed(computes, functions))
    return adversary._replace(craft=craft, score=score, draw=draw, observer=observer)


def _make_anew(adversary: Adversary) -> Adversary:
    """Returns an adversary that computes the same, by functions that equal no others."""
    observer = adversary.observer
    if observer is not None:
        observer = Observer(partial(observer.begin), partial(observer.observe))
    return adversary._replace(
        init=partial(adversary.init),
        craft=partial(adversary.craft),
        score=partial(adversary.score),
        observer=observer,
        draw=None if adversary.draw is None else partial(adversary.draw),
    )


def _list_facts(adversary: Adversary) -> list[str]:
    """Returns what an adversary's fields say beside its functions, as "name=value", without defaults."""
    facts = []
    if adversary.crafts_constant:
        facts.append("crafts_constant=True")
    for name, value in adversary.null._asdict().items():
        if value != NullLaw._field_defaults[name]:
            facts.append(f"{name}={value}")
    return facts


def _fingerprint(model: Model, dataset: Dataset) -> str:
    """Returns SHA-256, in hex, of what a model's initialisation and its loss with gradient compute.

    It names the model's results in the store, and finds its compiled programs.
    """
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    # The key is of the type that games use, whatever JAX's default is.
    init = jax.jit(model.init).trace(jax.random.key(0, impl="threefry2x32"))
    loss = jax.jit(jax.value_and_grad(model.loss)).trace(theta, _first_example(dataset))
    return _digest([init, loss])


def _digest(traced: list[Any], facts: Sequence[str] = ()) -> str:
    """Returns SHA-256, in hex, of the programs of functions that jax.jit traced, and of facts about them.

    Hashes name results in the store: another text of a program, and so another hash, orphans what is stored.
    Functions are lowered for the CPU on every machine, so that the hash is the same on all.
    """
    texts = [function.lower(lowering_platforms=("cpu",)).as_text() for function in traced]
    return hashlib.sha256("\n".join([*texts, *facts]).encode()).hexdigest()


def _first_example(dataset: Dataset) -> tuple[Array, Array]:
    """Returns the features and the label of a data set's first example, without a batch axis."""
    return jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])


def _dataset(features: ArrayLike, labels: ArrayLike) -> Dataset:
    """Returns a caller's features (N, ...) and labels (N, ...) as a data set.

    Raises InputError for arrays that are empty or of different lengths.
    """
    x = _canonical("features", features)
    y = _canonical("labels", labels)
    require(
        x.size and y.size and x.ndim and y.ndim,
        "features and labels need an axis of examples each",
    )
    require(
        len(x) == len(y),
        f"there are {len(x)} features and {len(y)} labels: give one label an example",
    )
    checksum = checksum_of({"features": x, "labels": y})
    return Dataset(x, y, "arrays of the caller's", checksum)


def _canonical(name: str, values: ArrayLike) -> NDArray[Any]:
    """Returns a caller's array of real numbers in a type that training takes.

    Bytes (uint8) stay bytes, other whole numbers and booleans become int32, and floats become float32.

    Args:
      name: the array's name in messages.
      values: an array of any shape.

    Raises:
      InputError: the values are no numbers, are not finite, or do not fit these types.
    """
    array = arrays.real(name, values)
    if array.dtype == np.uint8:
        return array
    is_whole = array.dtype.kind in "biu"  # booleans, signed and unsigned whole numbers
    limit = 2**31 if is_whole else float(np.finfo(np.float32).max)
    # NaN and infinity are below no limit.
    fits = np.abs(array.astype(np.float64)) < limit
    require(
        fits.all(),
        f"{name} hold {np.sum(~fits)} values that are not finite or too large: fix them",
    )
    return array.astype(np.int32 if is_whole else np.float32)


def _model(module: nn.Module, criterion: Criterion, dataset: Dataset) -> Model:
    """Returns a module as a model over a flat vector of parameters, once it has taken an example's shape.

    The module and its loss are traced on shapes, not run.

    Raises InputError where the module has variables other than parameters or draws randomness, where module
    or criterion fails on the example, or where the loss is no scalar.
    """
    _require_module(module)
    example = _first_example(dataset)
    features, _ = example
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), features)
        _require_parameters_alone(set(variables))
        model = flat_model(module, features, criterion)
        theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
        loss = jax.eval_shape(model.loss, theta, example)
    except InputError:  # it has a message for the caller already
        raise
    except InvalidRngError:
        raise InputError(
            "the module draws randomness: switch dropout off (deterministic=True)"
        ) from None
    except Exception as error:  # whatever an outsider's module raises
        shape = features.shape
        message = f"the module or criterion fails on one example of shape {shape}, which has no batch axis"
        raise InputError(f"{message}: {_short_reason(error)}") from error
    hint = "flatten with x.reshape(-1): an example has no batch axis"
    require(
        loss.shape == (),
        f"the loss of one example has shape {loss.shape}, not (): {hint}",
    )
    return model


def _require_module(module: Any) -> None:
    """Raises InputError unless a caller's module is an instance of a Flax Linen module."""
    if isinstance(module, type):
        hint = f"give an instance, {module.__name__}()"
        raise InputError(
            f"audit_model takes a Flax Linen module, not the class {module.__name__}: {hint}"
        )
    if not isinstance(module, nn.Module):
        hint = "give any other model as loss(params, (feature, label)) to audit_loss"
        kind = type(module).__name__
        raise InputError(f"audit_model takes a Flax Linen module, not one of type {kind}: {hint}")


def _require_parameters_alone(collections: set[str]) -> None:
    """Raises InputError unless "params" is the only one of a module's collections of variables."""
    others = sorted(collections - {"params"})
    problem = f"the module keeps {', '.join(others) or 'nothing to train'}"
    hint = "DP-SGD trains parameters alone (GroupNorm for BatchNorm)"
    require("params" in collections and not others, f"{problem}: {hint}")


class _NoModule(nn.Module):
    """Stands for the module in a `Model` that is made from a loss, and so has none."""


def _model_of_loss(loss: TreeLoss, params: Any, dataset: Dataset) -> Model:
    """Returns a caller's loss over a tree of parameters as a model over a flat vector.

    Args:
      loss: (params, (feature, label)) -> the scalar loss of a single example.
      params: the tree at which every run begins.
      dataset: the data; the loss is traced on the shape of the first example.

    Raises:
      InputError: params hold anything but floats, or the loss fails or is no scalar.
    """
    example = _first_example(dataset)
    _require_floats(params)
    float32_params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    start, unravel = ravel_pytree(float32_params)

    def flat_loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the caller's loss at a flat vector of parameters."""
        return loss(unravel(theta), labelled)

    try:
        value = jax.eval_shape(flat_loss, start, example)
    except Exception as error:  # whatever an outsider's loss raises
        shape = example[0].shape
        problem = f"fails on one example of shape {shape}, which has no batch axis"
        raise InputError(
            f"loss(params, (feature, label)) {problem}: {_short_reason(error)}"
        ) from error
    require(
        value.shape == (),
        f"the loss of one example has shape {value.shape}, not (): give one number",
    )
    theta_0 = np.asarray(start)
    return Model(
        module=_NoModule(),  # a field of every Model, of which a loss has none
        n_parameters=start.size,
        init=lambda key: jnp.asarray(theta_0),  # every run begins at params, whatever its key
        unravel=unravel,
        criterion=_no_criterion,  # likewise
        loss=flat_loss,
    )


def _short_reason(error: Exception) -> str:
    """Returns the message of an error that a caller's code raised: on one line, cut after 200 characters."""
    return " ".join(str(error).split())[:_REASON_CHARACTERS]


def _require_floats(params: Any) -> None:
    """Raises InputError unless a tree of parameters has leaves, and all are floats or arrays of floats."""
    require_no_cycle("params", params)
    leaves = jax.tree.leaves(params)
    hint = "give float arrays alone (of a whole model: nnx.split, eqx.partition)"
    require(leaves, f"params hold nothing to train: {hint}")
    for leaf in leaves:
        if isinstance(leaf, Array | np.ndarray | np.generic):
            is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
            require(is_float, _wrong_leaf(leaf.dtype, hint))
        else:
            require(isinstance(leaf, float), _wrong_leaf(type(leaf).__name__, hint))


def _wrong_leaf(kind: object, hint: str) -> str:
    """Returns the message about a leaf of the wrong type."""
    return f"params hold a leaf of type {kind}: {hint}"


def _no_criterion(logits: Array, label: Array) -> Array:
    """Stands for the criterion of a model that is made from a loss; it must not be called."""
    raise TypeError("this model is a loss: it has no criterion")


def _find_strategy(model: Model, dataset: Dataset) -> str:
    """Returns the name of the fastest clipping strategy that computes a model's clipped sums correctly.

    Strategies are tried on a few examples. If only one gradient per example is left, which is always correct,
    a line to stderr warns that it is slow.
    """
    batch = (jnp.asarray(dataset.features[:_PROBE]), jnp.asarray(dataset.labels[:_PROBE]))
    for name in ("book_keeping", "unfolded"):
        reason = _why_unfit(name, model, batch)
        if not reason:
            return name
    print(
        f"a gradient per example, ten to a hundred times slower: {reason}",
        file=sys.stderr,
    )
    return _PER_EXAMPLE


def _why_unfit(name: str, model: Model, batch: Batch) -> str:
    """Returns why a clipping strategy is wrong for a model; empty where it is right.

    On the batch, its sum of clipped gradients must agree with the sum from per-example gradients: at
    clipping norms that clip nothing, about half of the gradients, and all. The norm of the difference may be
    a share of the sum of the clipped gradients' norms, which is 0 only if they are all 0. Small gradients are
    so held to as much as large ones.

    Args:
      name: the strategy.
      model: the model.
      batch: examples to try.
    """
    features, _ = batch
    if name == "book_keeping" and features.ndim != 2:
        return "book_keeping takes flat features"
    theta = model.init(jax.random.key(0))
    gradients = jax.jit(jax.vmap(jax.grad(model.loss), (None, 0)))(theta, batch)
    lengths = jnp.linalg.norm(gradients, axis=1)
    clipped_sum = jax.jit(per_example(model.loss))
    for norm in (jnp.inf, jnp.median(lengths), lengths.min() / 2):
        expected = clipped_sum(theta, batch, jnp.float32(norm))
        try:
            actual = jax.jit(build.CLIPPING[name](model))(theta, batch, jnp.float32(norm))
        except (TypeError, ValueError, IndexError, FlaxError) as error:  # it refuses the model
            return " ".join(str(error).split())  # on one line
        allowed = _TOLERANCE * jnp.minimum(lengths, norm).sum()
        if not jnp.linalg.norm(actual - expected) <= allowed:
            return f"{name} differs from per-example gradients"
    return ""


def _count_classes(labels: NDArray[Any]) -> int:
    """Returns the number of classes of labels (N,), the largest label plus 1; 0 if labels are not classes.

    Classes are whole numbers from 0, and at least two.
    """
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not is_whole or labels.min() < 0 or labels.max() < 1:
        return 0
    return int(labels.max()) + 1
