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
from audit.conclusions import lipschitz, measuring
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, number, require, require_no_cycle
from audit.evidence import arrays
from audit.mechanism.base import Examples
from audit.mechanism.clipping.base import Batch, per_example
from audit.mechanism.ensemble import MOST_PROGRAMS
from audit.settings.adversaries import OwnAdversary
from audit.settings.fields import declared
from audit.settings.make import Usual, make_setting
from audit.settings.setting import Setting, validate
from audit.storage.store import FIGURE, Store
from audit.tasks.model import Model, flat_model
from audit.tasks.task import Dataset, checksum_of
from audit.training import build, driver
from audit.training.build import Trainee
from audit.training.game import Game
from audit.written import Level

Criterion = Callable[[Array, Array], Array]
TreeLoss = Callable[[Any, tuple[Array, Array]], Array]
_PROBE = 4  # examples on which a strategy must agree with per-example gradients
_PER_EXAMPLE = "per_example"
_TOLERANCE = 1e-3  # of the clipped gradients' summed norms: a hundred times the rounding error
_REASON_CHARACTERS = 200  # shown of an error that a caller's code raised
_USUAL = Usual(learning_rate=0.1, batch_size=400)


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


@dataclasses.dataclass(frozen=True)
class _Computed:
    """Functions by a hash of what they compute: equal to all others that compute the same."""

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
    return _wrap(model, dataset, type(module).__name__, draws=True)


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
    return _wrap(model, dataset, getattr(loss, "__name__", "loss"), draws=False)


def _wrap(model: Model, dataset: Dataset, name: str, draws: bool) -> OwnModel:
    """Returns a model with its fingerprint: of what its initialisation and its loss with gradient compute."""
    theta = _describe_vector(model.n_parameters)
    init = jax.jit(model.init).trace(_make_key())
    loss = jax.jit(jax.value_and_grad(model.loss)).trace(theta, _first_example(dataset))
    computes = _digest([init, loss])
    return OwnModel(_share(_Computed(computes, model)), dataset, name, computes, draws)


def audited(
    own: OwnModel, fields: dict[str, Any], runs: int, out: Path, level: Level
) -> driver.Finished:
    """Audits a caller's model: trains the missing runs, concludes, and writes figure and page.

    If `out` already has all runs, nothing is trained.

    Args:
      own: the model with its data.
      fields: the caller's settings, by the names of the setting's fields. `adversary` is a name, or the
        caller's own adversary. `lipschitz` has the constants of the steps for which the caller vouches, or
        "measured" to measure them; `rehearsals` is the number of runs to measure them along.
      runs: the number of runs to have in all.
      out: the folder of the stores.
      level: delta and confidence of the bounds.

    Raises:
      InputError: the setting, the adversary or the requested constants do not fit the model or each other.
    """
    fields = dict(fields)
    constants = fields.pop("lipschitz", None)
    rehearsed = fields.pop("rehearsals", None)
    name = fields.pop("model", None) or own.name
    adversary = None
    if isinstance(fields["adversary"], Adversary):
        adversary = fields["adversary"]
        own_field = _describe_adversary(adversary, own.model)
        adversary = _share_functions(own_field.computes, adversary)
        # A caller's own adversary fixes the number of canaries.
        fields |= {"adversary": own_field, "canaries": adversary.canaries}
    setting = make_setting(name, _USUAL, fields, len(own.dataset.labels))
    validate(setting, runs, level.delta)
    require(
        own.draws or not setting.unknown_initialisation,
        "`unknown_initialisation` needs a module that draws one: every run begins at params",
    )
    if rehearsed is not None:
        lipschitz.require_rehearsals(constants, rehearsed)
    is_measured = isinstance(constants, str) and constants == MEASURED
    vouched = None
    if constants is not None and not is_measured:
        vouched = Steps(constants, "as its author vouches")
    if constants is not None:
        # Constants to be measured are not known yet: any constant shows whether a bound would follow.
        bound = lipschitz.hidden_state(
            setting, level.delta, vouched or Steps(1.0, ""), own_model=True
        )
        reason = bound if isinstance(bound, str) else ""
        if adversary is not None:
            reason = reason or _why_adversary_uncovered(adversary, own.model.n_parameters)
        require(not reason, f"`lipschitz` bounds what the last model leaks, and {reason}: drop it")

    def make(dataset: Dataset) -> Game:
        """Returns the game of the setting."""
        return build.build(setting, dataset, _make_trainee(own), adversary)

    def describe(dataset: Dataset) -> dict[str, Any]:
        """Returns the circumstances of the training by name, with what a caller's own adversary sees.

        A store's config has only a hash of the adversary's functions, which does not tell.
        """
        described = build.provenance(dataset)
        if adversary is not None:
            described["view"] = describe_view(adversary.observer is not None)
        return described

    def find_steps(store: Store) -> Steps | None:
        """Returns the Lipschitz constants of the steps, and keeps them in the store; None without any.

        Without a request, constants that an earlier call of this version measured are used again. Others in
        the store, such as those for which an earlier caller vouched, are deleted.
        """
        if is_measured:
            return _measure_steps(own, setting, make, store, rehearsed)
        steps = vouched
        if steps is None:
            stored = lipschitz.find_current(store)
            steps = stored if stored is not None and stored.runs else None
        lipschitz.keep(store, steps)  # deletes what is stored where `steps` is None
        return steps

    recipe = driver.GameRecipe(own.computes, make, describe)
    request = driver.Request(
        setting, own.dataset, runs, recipe, level, find_steps, model=own.computes
    )
    finished = driver.audit(request, out)
    driver.keep(finished, [FIGURE, driver.PAGE])
    return finished


def _measure_steps(
    own: OwnModel,
    setting: Setting,
    make: Callable[[Dataset], Game],
    store: Store,
    rehearsed: int | None,
) -> Steps:
    """Returns the measured Lipschitz constants of the steps, from the store or from rehearsed runs."""
    clipped_sum = build.choices(setting, _make_trainee(own)).clipped_sum
    runs = lipschitz.USUAL if rehearsed is None else rehearsed
    return measuring.measure(store, setting, make(own.dataset), clipped_sum, runs)


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
    crafted = shapes(adversary, _trace_state(adversary, parameters), parameters).crafted
    reads_theta = adversary.reads_theta or isinstance(crafted, Examples)
    return lipschitz.OTHER_CANARIES if adversary.canaries > 1 and reads_theta else ""


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
        return OwnAdversary(label, _fingerprint_adversary(adversary, model.n_parameters))
    except Exception as error:  # whatever an outsider's functions raise
        message = f"`adversary={label}` fails on a model of {model.n_parameters} parameters"
        raise InputError(f"{message}: {_short_reason(error)}") from error


def _fingerprint_adversary(adversary: Adversary, parameters: int) -> str:
    """Returns SHA-256, in hex, of the programs that an adversary's functions become on a model's shapes.

    It names the adversary's results in the store, and finds its compiled programs. Its fields that are no
    functions are hashed too, where they are not at their defaults. JAX traces the functions with shapes in
    place of arrays; nothing is computed.
    """
    # JAX would remember what it traced of a function, which may have changed since.
    adversary = _make_anew(adversary)
    theta = _describe_vector(parameters)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    state = _trace_state(adversary, parameters)
    seen, state_of_run, _ = shapes(adversary, state, parameters)

    norm = jax.ShapeDtypeStruct((), jnp.float32)
    traced = [jax.jit(adversary.init).trace(_make_key(), theta, norm)]
    if adversary.draw is not None:
        traced.append(jax.jit(adversary.draw).trace(state, _make_key()))
    traced.append(jax.jit(adversary.craft).trace(state_of_run, step, theta))
    if adversary.observer is not None:
        traced.append(jax.jit(adversary.observer.begin).trace(state, theta))
        traced.append(jax.jit(adversary.observer.observe).trace(state_of_run, seen, step, theta))
    # The models are the final and the initial one.
    traced.append(jax.jit(adversary.score).trace(state_of_run, seen, theta, theta))

    facts = ["crafts_constant=True"] if adversary.crafts_constant else []
    for name, value in adversary.null._asdict().items():
        if value != NullLaw._field_defaults[name]:
            facts.append(f"{name}={value}")
    return _digest(traced, facts)


def _trace_state(adversary: Adversary, parameters: int) -> Any:
    """Returns the shapes of an adversary's state on a model with this number of parameters."""
    norm = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.eval_shape(adversary.init, _make_key(), _describe_vector(parameters), norm)


def _share_functions(computes: str, adversary: Adversary) -> Adversary:
    """Returns an adversary whose functions, but for init, are those of the first that computes the same.

    They equal those of no other adversary, even if it has the same functions and these read something that
    has changed. The adversary's `init` may hold data, and is not kept.
    """
    anew = _make_anew(adversary)
    functions = {name: getattr(anew, name) for name in ("craft", "score", "draw", "observer")}
    return adversary._replace(**_share(_Computed(computes, functions)))


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


def _digest(traced: list[Any], facts: Sequence[str] = ()) -> str:
    """Returns SHA-256, in hex, of the programs of functions that jax.jit traced, and of facts about them.

    Hashes name results in the store: another text of a program, and so another hash, orphans what is stored.
    Functions are lowered for the CPU on every machine, so that the hash is the same on all.
    """
    texts = [function.lower(lowering_platforms=("cpu",)).as_text() for function in traced]
    return hashlib.sha256("\n".join([*texts, *facts]).encode()).hexdigest()


def _make_key() -> Array:
    """Returns a key of the type that games use, whatever JAX's default is."""
    return jax.random.key(0, impl="threefry2x32")


def _describe_vector(parameters: int) -> jax.ShapeDtypeStruct:
    """Returns the shape and type of a model's parameters."""
    return jax.ShapeDtypeStruct((parameters,), jnp.float32)


def _first_example(dataset: Dataset) -> tuple[Array, Array]:
    """Returns the features and the label of a data set's first example, without a batch axis."""
    return jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])


def _dataset(features: ArrayLike, labels: ArrayLike) -> Dataset:
    """Returns a caller's features (N, ...) and labels (N, ...) as a data set.

    Raises InputError for arrays that are empty or of different lengths.
    """
    x = _canonical("features", features)
    y = _canonical("labels", labels)
    has_examples = x.size and y.size and x.ndim and y.ndim
    require(has_examples, "features and labels need an axis of examples each")
    lengths = f"there are {len(x)} features and {len(y)} labels"
    require(len(x) == len(y), f"{lengths}: give one label an example")
    checksum = checksum_of({"features": x, "labels": y})
    return Dataset(x, y, "arrays of the caller's", checksum)


def _canonical(name: str, values: ArrayLike) -> NDArray[Any]:
    """Returns a caller's array of real numbers in a type that training takes.

    Bytes (uint8) stay bytes, other whole numbers and booleans become int32, and floats become float32.
    Raises InputError for values that are no numbers, are not finite, or do not fit these types.
    """
    array = arrays.real(name, values)
    if array.dtype == np.uint8:
        return array
    is_whole = array.dtype.kind in "biu"  # booleans, signed and unsigned whole numbers
    limit = 2**31 if is_whole else float(np.finfo(np.float32).max)
    # NaN and infinity are below no limit.
    bad = np.sum(~(np.abs(array.astype(np.float64)) < limit))
    require(not bad, f"{name} hold {bad} values that are not finite or too large: fix them")
    return array.astype(np.int32 if is_whole else np.float32)


def _model(module: nn.Module, criterion: Criterion, dataset: Dataset) -> Model:
    """Returns a module as a model over a flat vector of parameters, once it has taken an example's shape.

    The module and its loss are traced on shapes, not run.

    Raises InputError where the module has variables other than parameters or draws randomness, where module
    or criterion fails on the example, or where the loss is no scalar.
    """
    if not isinstance(module, nn.Module):
        kind = module if isinstance(module, type) else type(module)
        hint = (
            "give an instance, or any other model as loss(params, (feature, label)) to audit_loss"
        )
        raise InputError(f"audit_model takes a Flax Linen module, not {kind.__name__}: {hint}")
    example = _first_example(dataset)
    what = "the module or criterion"
    variables = _trace(what, example, lambda: jax.eval_shape(module.init, _make_key(), example[0]))
    others = sorted(set(variables) - {"params"})
    problem = f"the module keeps {', '.join(others) or 'nothing to train'}"
    hint = "DP-SGD trains parameters alone (GroupNorm for BatchNorm)"
    require("params" in variables and not others, f"{problem}: {hint}")
    model: Model = _trace(what, example, lambda: flat_model(module, example[0], criterion))
    _require_scalar(what, model, example)
    return model


def _trace(what: str, example: tuple[Array, Array], function: Callable[[], Any]) -> Any:
    """Returns what a function that traces a caller's code returns; its errors become one line."""
    try:
        return function()
    except InvalidRngError:
        fix = "switch dropout off (deterministic=True)"
        raise InputError(f"the module draws randomness: {fix}") from None
    except Exception as error:  # whatever an outsider's code raises
        problem = f"fails on one example of shape {example[0].shape}, which has no batch axis"
        raise InputError(f"{what} {problem}: {_short_reason(error)}") from error


def _require_scalar(what: str, model: Model, example: tuple[Array, Array]) -> None:
    """Raises InputError unless the loss of an example is a single number."""
    theta = _describe_vector(model.n_parameters)
    loss = _trace(what, example, lambda: jax.eval_shape(model.loss, theta, example))
    hint = "give one number (an example has no batch axis: flatten with x.reshape(-1))"
    require(loss.shape == (), f"the loss of one example has shape {loss.shape}, not (): {hint}")


def _model_of_loss(loss: TreeLoss, params: Any, dataset: Dataset) -> Model:
    """Returns a caller's loss over a tree of parameters as a model over a flat vector.

    Args:
      loss: (params, (feature, label)) -> the scalar loss of a single example.
      params: the tree at which every run begins.
      dataset: the data; the loss is traced on the shape of the first example.

    Raises:
      InputError: params hold anything but floats, or the loss fails or is no scalar.
    """
    _require_floats(params)
    float32_params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    start, unravel = ravel_pytree(float32_params)
    theta_0 = np.asarray(start)

    def flat_loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the caller's loss at a flat vector of parameters."""
        return loss(unravel(theta), labelled)

    model = Model(
        module=nn.Module(),  # a field of every Model, of which a loss has none
        n_parameters=start.size,
        init=lambda key: jnp.asarray(theta_0),  # every run begins at params, whatever its key
        unravel=unravel,
        criterion=_no_criterion,  # likewise
        loss=flat_loss,
    )
    _require_scalar("loss(params, (feature, label))", model, _first_example(dataset))
    return model


def _no_criterion(logits: Array, label: Array) -> Array:
    """Stands for the criterion of a model that is made from a loss; it must not be called."""
    raise TypeError("this model is a loss: it has no criterion")


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
        kind = getattr(leaf, "dtype", type(leaf))
        is_array = isinstance(leaf, Array | np.ndarray | np.generic)
        is_float = jnp.issubdtype(kind, jnp.floating) if is_array else isinstance(leaf, float)
        name = getattr(kind, "__name__", kind)
        require(is_float, f"params hold a leaf of type {name}: {hint}")


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
    slow = "a gradient per example, ten to a hundred times slower"
    print(f"{slow}: {reason}", file=sys.stderr)
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
    if name == "book_keeping" and batch[0].ndim != 2:
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
