"""A caller's own model and own adversary, with the same game, bounds and report.

A model is any Flax module, or any loss over a tree of parameters.
"""

import hashlib
import sys
from collections.abc import Callable
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

from audit.adversaries.base import Adversary, shapes
from audit.adversaries.losses import Loss
from audit.claims.measured import MEASURED
from audit.conclusions import lipschitz, measuring, rehearsals, results
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.evidence import arrays
from audit.mechanism.clipping.base import Batch, per_example
from audit.methods.level import Level
from audit.report import audit_page, audit_panels, subjects
from audit.runtime import progress
from audit.settings import build, stored
from audit.settings.adversaries import OwnAdversary
from audit.settings.build import Trainee
from audit.settings.fields import declared
from audit.settings.make import Usual, changed, make_setting
from audit.settings.setting import STRATEGIES, Setting, flat, summary, validate
from audit.storage.store import FIGURE, RESULT, Store
from audit.tasks.model import Model, flat_model
from audit.tasks.task import Dataset, checksum_of
from audit.training import training
from audit.values import number

Criterion = Callable[[Array, Array], Array]
TreeLoss = Callable[[Any, tuple[Array, Array]], Array]
_PAGE = "report.html"
_FILES = (RESULT, FIGURE, _PAGE)
_PROBE = 4  # examples on which a strategy must agree with per-example gradients
_TOLERANCE = 1e-3  # of C, a coordinate: a hundred times rounding
_REASON_CHARACTERS = 200  # of an outsider's error


class OwnModel(NamedTuple):
    """A caller's model on its data.

    Attributes:
      model: the model.
      dataset: its data.
      name: in reports.
      computes: SHA-256, in hex, of what its functions compute, which tells its scores from another model's.
      strategies: how its gradients can be clipped, the fastest first.
      draws: whether it draws initialisations of its own.
    """

    model: Model
    dataset: Dataset
    name: str
    computes: str
    strategies: tuple[str, ...]
    draws: bool


class StepsRequest(NamedTuple):
    """What a caller requests of how Lipschitz steps are.

    Attributes:
      constants: of the steps, for which the caller vouches; "measured" to measure them.
      rehearsals: how many runs to measure them along; None for as many as usual.
    """

    constants: ArrayLike | str | None = None
    rehearsals: int | None = None

    @property
    def is_measured(self) -> bool:
        """Whether steps are to be measured."""
        return isinstance(self.constants, str) and self.constants == MEASURED


class _Audit(NamedTuple):
    """A model, its caller's own adversary, if any, and the folder of the stores."""

    own: OwnModel
    adversary: Adversary | None
    out: Path


def wrap_module(
    module: nn.Module, criterion: Criterion, features: ArrayLike, labels: ArrayLike
) -> OwnModel:
    """Returns a caller's Flax Linen module with its data, checked, as a model to be audited.

    Args:
      module: takes an example, without a batch axis.
      criterion: (the module's output, a label) -> scalar loss.
      features: (N, ...).
      labels: (N, ...).

    Raises:
      InputError: they cannot be audited.
    """
    dataset = _dataset(features, labels)
    model = _model(module, criterion, dataset)
    fingerprint = _fingerprint(model, dataset)
    return OwnModel(model, dataset, type(module).__name__, fingerprint, STRATEGIES, draws=True)


def wrap_loss(loss: TreeLoss, params: Any, features: ArrayLike, labels: ArrayLike) -> OwnModel:
    """Returns a caller's loss over a tree of parameters with its data, checked, as a model to be audited.

    Its gradients can only be clipped example by example, the last and slowest of STRATEGIES.

    Args:
      loss: (params, (feature, label)) -> scalar loss of an example.
      params: the tree, of floats, at which every run begins.
      features: (N, ...).
      labels: (N, ...).

    Raises:
      InputError: they cannot be audited.
    """
    dataset = _dataset(features, labels)
    model = _model_of_loss(loss, params, dataset)
    name = getattr(loss, "__name__", "loss")
    fingerprint = _fingerprint(model, dataset)
    return OwnModel(model, dataset, name, fingerprint, STRATEGIES[-1:], draws=False)


def audited(
    own: OwnModel,
    fields: dict[str, Any],
    adversary: str | Adversary,
    runs: int,
    out: Path,
    level: Level,
    steps_request: StepsRequest,
) -> tuple[Conclusion, Path]:
    """Trains the runs that `out` misses, concludes, and writes figure and page where they are not up to date.

    Args:
      own: the model.
      fields: of the setting, by their names.
      adversary: a name, or the caller's own.
      runs: how many to have in all.
      out: the folder of the stores.
      level: of the bounds.
      steps_request: what the caller says of its steps.

    Returns:
      (the conclusion, the setting's folder).

    Raises:
      InputError: something does not fit.
    """
    own_adversary = adversary if isinstance(adversary, Adversary) else None
    fields = {**fields, "adversary": _adversary_field(adversary, own.model)}
    if own_adversary is not None:
        fields["canaries"] = own_adversary.canaries
    requested = _make_setting(own, fields)
    validate(requested, runs, own.strategies)
    can_start = own.draws or not requested.unknown_initialisation
    require(
        can_start,
        "`unknown_initialisation` needs a module that draws one: every run begins at params",
    )
    rehearsals.require_rehearsals(*steps_request)
    _require_covered(requested, steps_request, own_adversary, level.delta)

    is_chosen = fields.get("clipping") is not None or len(own.strategies) == 1
    audit = _Audit(own, own_adversary, out)
    stored_audit = _find_stored(audit, requested, is_chosen, runs)
    setting, store = stored_audit or _train(audit, requested, is_chosen, runs)
    steps = _find_steps(audit, setting, store, steps_request)
    conclusion = conclude_setting(store.load(runs), setting, level, own_model=True, steps=steps)
    _write_report(own, setting, store, conclusion, runs)
    return conclusion, store.path


def _make_setting(own: OwnModel, fields: dict[str, Any]) -> Setting:
    """Returns the setting of a caller's fields, with a usual learning rate and batch size where they miss."""
    given = {name: value for name, value in fields.items() if name != "model"}
    usual = Usual(learning_rate=0.1, batch_size=400, clipping=own.strategies[0])
    examples = len(own.dataset.labels)
    return make_setting(fields.get("model") or own.name, usual, given, examples)


def _write_report(
    own: OwnModel, setting: Setting, store: Store, conclusion: Conclusion, runs: int
) -> None:
    """Writes a conclusion's JSON, figure and page into the store, unless they are there and up to date.

    Args:
      own: the model, for the data's provenance.
      setting: of the audit.
      store: of its scores.
      conclusion: from them.
      runs: how many there are.
    """
    made_from = results.source(store, conclusion)
    if results.is_up_to_date(store, made_from, _FILES):
        return
    figure = audit_panels.audit_figure(conclusion, summary(setting, runs))
    provenance = build.provenance(own.dataset)
    results.keep(store, conclusion, figure, setting=flat(setting), runs=runs, provenance=provenance)
    subject = subjects.describe_setting(store.path, subjects.RequestedLevels())
    store.write_bytes(_PAGE, audit_page.make_audits_page([subject]))
    results.mark(store, made_from, _FILES)


def _require_covered(
    setting: Setting, request: StepsRequest, own_adversary: Adversary | None, delta: float
) -> None:
    """Raises InputError where constants that a caller requests bound nothing, or are out of range.

    Args:
      setting: of the audit.
      request: the caller's.
      own_adversary: the caller's own, if any.
      delta: of the bound that would follow.
    """
    if request.constants is None:
        return
    # Nothing is measured yet: any constant shows whether a bound would follow.
    steps = Steps(1.0, "") if request.is_measured else _vouched_steps(request)
    bound = lipschitz.hidden_state(setting, delta, steps, own_model=True)
    reason = bound if isinstance(bound, str) else ""
    if own_adversary is not None and own_adversary.observer is not None:
        reason = "this adversary sees every model"
    require(not reason, f"`lipschitz` bounds what the last model leaks, and {reason}: drop it")


def _vouched_steps(request: StepsRequest) -> Steps:
    """Returns the steps for which a caller vouches."""
    assert request.constants is not None
    return Steps(request.constants, "as its author vouches")


def _find_steps(
    audit: _Audit, setting: Setting, store: Store, request: StepsRequest
) -> Steps | None:
    """Returns the steps that a caller requests, measured or vouched for, and keeps them in the store.

    Without a request they are those that were measured before, if any; nobody vouches for others any more.
    """
    if request.is_measured:
        own = audit.own
        game = build.build_for(setting, own.dataset, _make_trainee(own, setting), audit.adversary)
        clipped_sum = build.choices(setting, own.model).clipped_sum
        runs = rehearsals.USUAL if request.rehearsals is None else request.rehearsals
        return measuring.measure(store, setting, game, clipped_sum, runs)
    steps = None
    if request.constants is not None:
        steps = _vouched_steps(request)
    else:
        stored_steps = lipschitz.find_current(store)
        if stored_steps is not None and stored_steps.runs:  # 0 where they were vouched for
            steps = stored_steps
    lipschitz.keep(store, steps)
    return steps


def _make_trainee(own: OwnModel, setting: Setting) -> Trainee:
    """Returns a caller's model with its fingerprint and its number of classes, from which a game is built.

    Classes are counted only for the adversary that flips labels; the number is 0 for all others.
    """
    classes = 0
    if setting.adversary.name == Loss.name:
        classes = _count_classes(own.dataset.labels)
    return Trainee(own.model, own.computes, classes)


def _find_stored(
    audit: _Audit, requested: Setting, is_chosen: bool, runs: int
) -> tuple[Setting, Store] | None:
    """Returns a setting and its store that has all runs already; None where there is no such store.

    Args:
      audit: the model, its adversary and the folder of the stores.
      requested: the caller's setting.
      is_chosen: whether the caller chose its clipping strategy; else runs by any strategy of the model count,
        since all of them compute the same sum.
      runs: how many runs there must be.
    """
    own = audit.own
    strategies = (requested.mechanism.clipping,) if is_chosen else own.strategies
    for name in strategies:
        setting = changed(requested, clipping=name)
        store = stored.find_store(audit.out, setting, own.dataset, model=own.computes)
        if store is not None and not store.missing(runs):
            return setting, store
    return None


def _train(audit: _Audit, requested: Setting, is_chosen: bool, runs: int) -> tuple[Setting, Store]:
    """Trains the missing runs; returns the setting, with the clipping strategy it used, and its store.

    Args:
      audit: the model, its adversary and the folder of the stores.
      requested: the caller's setting.
      is_chosen: whether the caller chose its clipping strategy; else the fastest that fits is used.
      runs: how many runs to have in all.
    """
    own = audit.own
    setting = _with_strategy(requested, is_chosen, own.model, own.dataset)
    played = build.build_for(setting, own.dataset, _make_trainee(own, setting), audit.adversary)
    store = stored.open_store(audit.out, setting, own.dataset, model=own.computes)
    with progress.bar(training.count_missing(store, runs)) as line:
        training.train(played, store, runs, progress=line)
    return setting, store


def _adversary_field(adversary: str | Adversary, model: Model) -> str | OwnAdversary:
    """Returns an adversary as a setting's field keeps it.

    For the library's adversaries that is the name. For a caller's own it is the name of its function and a
    hash of what it computes, after its functions were tried on the model's shapes.
    """
    if not isinstance(adversary, Adversary):
        return adversary
    label = getattr(adversary.init, "__qualname__", "own").split(".<locals>")[0]
    declared(Setting)["canaries"].require(number("canaries", adversary.canaries, int))
    try:
        return OwnAdversary(label, _fingerprint_adversary(adversary, model))
    except Exception as error:  # whatever an outsider's functions raise
        message = f"`adversary={label}` fails on a model of {model.n_parameters} parameters"
        raise InputError(f"{message}: {_short_reason(error)}") from error


def _fingerprint_adversary(adversary: Adversary, model: Model) -> str:
    """Returns SHA-256, in hex, of what an adversary's functions compute on a model's shapes.

    Its functions are traced for abstract arguments, nothing is computed. The key is of the type that games
    use, whatever JAX's default is.
    """
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    norm = jax.ShapeDtypeStruct((), jnp.float32)
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(adversary.init, key, theta, norm)
    step, _, seen = shapes(adversary, state, model.n_parameters)
    traced = [jax.jit(adversary.init).trace(key, theta, norm)]
    traced.append(jax.jit(adversary.craft).trace(state, step, theta))
    if adversary.observer is not None:
        traced.append(jax.jit(adversary.observer.observe).trace(state, seen, step, theta))
    traced.append(jax.jit(adversary.score).trace(state, seen, theta, theta))
    return _digest(traced)


def _fingerprint(model: Model, dataset: Dataset) -> str:
    """Returns SHA-256, in hex, of a model's initialisation, and of its loss with gradient, as traced."""
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    init = jax.jit(model.init).trace(jax.random.key(0, impl="threefry2x32"))
    loss = jax.jit(jax.value_and_grad(model.loss)).trace(theta, _first_example(dataset))
    return _digest([init, loss])


def _digest(traced: list[Any]) -> str:
    """Returns SHA-256, in hex, of functions that jax.jit traced, lowered to text for one platform."""
    texts = [function.lower(lowering_platforms=("cpu",)).as_text() for function in traced]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _first_example(dataset: Dataset) -> tuple[Array, Array]:
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
    """Returns a caller's array of real numbers in the types that training takes.

    Bytes stay bytes, other whole numbers become int32, and floats become float32.

    Args:
      name: of the array, in messages.
      values: of any shape.

    Raises:
      InputError: values that are no numbers, not finite, or do not fit these types.
    """
    array = arrays.real(name, values)
    if array.dtype == np.uint8:
        return array
    is_whole = array.dtype.kind in "biu"
    limit = 2**31 if is_whole else float(np.finfo(np.float32).max)
    fits = np.abs(array.astype(np.float64)) < limit
    require(
        fits.all(),
        f"{name} hold {np.sum(~fits)} values that are not finite or too large: fix them",
    )
    return array.astype(np.int32 if is_whole else np.float32)


def _model(module: nn.Module, criterion: Criterion, dataset: Dataset) -> Model:
    """Returns a module as a model over a flat vector of parameters, after a trial on an example's shape.

    Raises InputError where module and criterion do not fit the example: the module keeps more than
    parameters, draws randomness, fails, or the loss is no scalar.
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
    except InputError:
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
    """Raises InputError for a module whose variables are not parameters alone."""
    others = sorted(collections - {"params"})
    problem = f"the module keeps {', '.join(others) or 'nothing to train'}"
    hint = "DP-SGD trains parameters alone (GroupNorm for BatchNorm)"
    require("params" in collections and not others, f"{problem}: {hint}")


class _NoModule(nn.Module):
    """The module of a model that is a loss alone."""


def _model_of_loss(loss: TreeLoss, params: Any, dataset: Dataset) -> Model:
    """Returns a loss over a tree as a model over a flat vector, after a trial on an example's shape.

    Args:
      loss: (params, (feature, label)) -> scalar.
      params: the tree, where every run begins.
      dataset: of which the first example is tried.

    Raises:
      InputError: params hold anything but floats, or the loss fails or is no scalar.
    """
    example = _first_example(dataset)
    _require_floats(params)
    start, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params))

    def flat_loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
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
        _NoModule(),
        start.size,
        lambda key: jnp.asarray(theta_0),
        unravel,
        _no_criterion,
        flat_loss,
    )


def _short_reason(error: Exception) -> str:
    """Returns the beginning of an error that a caller's code raised, on a single line."""
    return " ".join(str(error).split())[:_REASON_CHARACTERS]


def _require_floats(params: Any) -> None:
    """Raises InputError for a tree of parameters that has no leaves, or a leaf of another type than float."""
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
    return f"params hold a leaf of type {kind}: {hint}"


def _no_criterion(logits: Array, label: Array) -> Array:
    raise TypeError("this model is a loss: it has no criterion")


def _with_strategy(setting: Setting, is_chosen: bool, model: Model, dataset: Dataset) -> Setting:
    """Returns the setting with a clipping strategy whose sums are right for a model.

    Strategies are tried on a few examples, the fastest first; the last, a gradient per example, is always
    right, and a line to stderr warns that it is slow.

    Args:
      setting: the caller's.
      is_chosen: whether the caller chose the setting's strategy, which then is the only candidate.
      model: the caller's model.
      dataset: of which the first examples are used.

    Raises:
      InputError: the chosen strategy does not take the model.
    """
    batch = (jnp.asarray(dataset.features[:_PROBE]), jnp.asarray(dataset.labels[:_PROBE]))
    if is_chosen:
        strategy = setting.mechanism.clipping
        reason = _why_unfit(strategy, model, batch)
        require(not reason, f"`clipping={strategy}` does not take this model: {reason}")
        return setting
    for strategy in STRATEGIES[:-1]:
        reason = _why_unfit(strategy, model, batch)
        if not reason:
            return changed(setting, clipping=strategy)
    print(
        f"a gradient per example, ten to a hundred times slower: {reason}",
        file=sys.stderr,
    )
    return changed(setting, clipping=STRATEGIES[-1])


def _why_unfit(name: str, model: Model, batch: Batch) -> str:
    """Returns why a clipping strategy is wrong for a model; empty where it is right.

    Its sum of clipped gradients on a batch, at clipping norm 1, must be that of per-example gradients to
    1e-3 in each coordinate, a hundred times rounding.
    """
    features, _ = batch
    if name == "book_keeping" and features.ndim != 2:
        return "book_keeping takes flat features"
    theta = model.init(jax.random.key(0))
    norm = jnp.float32(1)
    expected = jax.jit(per_example(model.loss))(theta, batch, norm)
    try:
        actual = jax.jit(build.CLIPPING[name](model))(theta, batch, norm)
    except (TypeError, ValueError, FlaxError) as error:
        return " ".join(str(error).split())
    if jnp.allclose(actual, expected, rtol=0, atol=_TOLERANCE):
        return ""
    return f"{name} differs from per-example gradients"


def _count_classes(labels: NDArray[Any]) -> int:
    """Counts the classes of labels (N,); raises InputError unless they are whole numbers from 0 to 1 or more.

    There is one class more than the largest label.
    """
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    fits = is_whole and labels.min() >= 0 and labels.max() >= 1
    hint = "give labels of whole numbers from 0, at least two classes, or another adversary"
    require(fits, f"`adversary=loss` flips labels: {hint}")
    return int(labels.max()) + 1
