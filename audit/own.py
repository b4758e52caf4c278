"""One's own model and one's own adversary: any Flax module, or any loss over a tree of parameters, with the
same game, bounds and report."""

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

from audit import lipschitz, progress, training
from audit.adversaries.base import Adversary, shapes
from audit.concluded import of_setting
from audit.errors import InputError, require
from audit.lipschitz import Steps
from audit.mechanism.clipping.base import Batch, per_example
from audit.model import Model, flat_model
from audit.report import audit_page, audit_panels, subjects
from audit.settings import build, stored
from audit.settings.adversaries import Loss, OwnAdversary
from audit.settings.build import Trainee
from audit.settings.fields import declared
from audit.settings.make import Usual, changed, make_setting
from audit.settings.setting import STRATEGIES, Setting, flat, summary, validate
from audit.statistics import arrays
from audit.statistics.conclusion import Conclusion
from audit.storage import results
from audit.storage.store import FIGURE, RESULT, Store
from audit.task import Dataset, checksum_of
from audit.values import number

Criterion = Callable[[Array, Array], Array]
TreeLoss = Callable[[Any, tuple[Array, Array]], Array]
_PAGE = "report.html"
_FILES = (RESULT, FIGURE, _PAGE)
_PROBE = 4  # examples on which a strategy must agree with per-example gradients
_TOLERANCE = 1e-3  # of C, a coordinate: a hundred times rounding


class OwnModel(NamedTuple):
    """A caller's model on its data. name: in reports. computes: its fingerprint. strategies: how its
    gradients can be clipped, the fastest first. draws: whether it draws initialisations of its own."""

    model: Model
    dataset: Dataset
    name: str
    computes: str
    strategies: tuple[str, ...]
    draws: bool


class _Audit(NamedTuple):
    own: OwnModel
    adversary: Adversary | None
    out: Path


def of_module(module: nn.Module, criterion: Criterion, features: ArrayLike, labels: ArrayLike) -> OwnModel:
    """A Flax Linen module on arrays, see `audit.audit_model`; raises InputError for what can't be audited."""
    dataset = _dataset(features, labels)
    model = _model(module, criterion, dataset)
    return OwnModel(model, dataset, type(module).__name__, _fingerprint(model, dataset), STRATEGIES, True)


def of_loss(loss: TreeLoss, params: Any, features: ArrayLike, labels: ArrayLike) -> OwnModel:
    """A loss over a tree on arrays; see `audit.audit_loss`. Raises InputError for what cannot be audited."""
    dataset = _dataset(features, labels)
    model, name = _model_of_loss(loss, params, dataset), getattr(loss, "__name__", "loss")
    return OwnModel(model, dataset, name, _fingerprint(model, dataset), STRATEGIES[-1:], False)


def audited(
    own: OwnModel,
    fields: dict[str, Any],
    adversary: str | Adversary,
    runs: int,
    out: Path,
    delta: float,
    confidence: float,
    constants: ArrayLike | None = None,
) -> tuple[Conclusion, Path]:
    """Trains what `out` lacks, concludes, and writes figure and page where they do not stand: (the
    conclusion, the setting's folder). fields: of the setting, by their names; constants: `lipschitz` of its
    steps, vouched for. Raises InputError for what does not fit."""
    theirs = adversary if isinstance(adversary, Adversary) else None
    fields = {**fields, "adversary": _named(adversary, own.model)}
    if theirs is not None:
        fields["canaries"] = theirs.canaries
    given = {name: value for name, value in fields.items() if name != "model"}
    asked = make_setting(fields.get("model") or own.name, Usual(0.1, 400, own.strategies[0]), given)
    validate(asked, runs, own.strategies)
    own_start = "`unknown_initialisation` needs a module that draws one: every run begins at params"
    require(own.draws or not asked.unknown_initialisation, own_start)
    steps = _vouched(asked, constants, theirs, delta)
    chosen = fields.get("clipping") is not None or len(own.strategies) == 1
    audit = _Audit(own, theirs, out)
    setting, store = _held(audit, asked, chosen, runs) or _trained(audit, asked, chosen, runs)
    lipschitz.keep(store, steps)
    conclusion = of_setting(store.load(runs), setting, delta, confidence, own_model=True, steps=steps)
    made_from = results.source(store, conclusion)
    if not results.stands(store, made_from, _FILES):
        drawn = audit_panels.audit_figure(conclusion, summary(setting, runs))
        facts = {"setting": flat(setting), "runs": runs, "provenance": build.provenance(own.dataset)}
        results.keep(store, conclusion, drawn, **facts)
        about = subjects.of_setting(store.path, subjects.AskedLevels())
        store.write_bytes(_PAGE, audit_page.of_audits([about]))
        results.mark(store, made_from, _FILES)
    return conclusion, store.path


def _vouched(
    setting: Setting, constants: ArrayLike | None, theirs: Adversary | None, delta: float
) -> Steps | None:
    """The steps that a caller vouches for; raises InputError where they cover no bound of this audit."""
    if constants is None:
        return None
    steps, seen = (
        Steps(constants, "as its author vouches"),
        theirs is not None and theirs.observer is not None,
    )
    found = lipschitz.hidden_state(setting, delta, steps, own_model=True)
    why = "this adversary sees every model" if seen else found if isinstance(found, str) else ""
    require(not why, f"`lipschitz` bounds what the last model leaks, and {why}: drop it")
    return steps


def _held(audit: _Audit, asked: Setting, chosen: bool, runs: int) -> tuple[Setting, Store] | None:
    """The setting and its store where all runs are there by the strategy that was chosen, or by any."""
    own = audit.own
    for name in (asked.mechanism.clipping,) if chosen else own.strategies:
        setting = changed(asked, clipping=name)
        store = stored.find_store(audit.out, setting, own.dataset, model=own.computes)
        if store is not None and not store.missing(runs):
            return setting, store
    return None


def _trained(audit: _Audit, asked: Setting, chosen: bool, runs: int) -> tuple[Setting, Store]:
    """The setting, with its strategy, and its store, in which the missing runs are trained."""
    own = audit.own
    setting = _with_strategy(asked, chosen, own.model, own.dataset)
    classes = _classes(own.dataset.labels) if asked.adversary.name == Loss.name else 0
    played = build.build_for(setting, own.dataset, Trainee(own.model, own.computes, classes), audit.adversary)
    store = stored.open_store(audit.out, setting, own.dataset, model=own.computes)
    with progress.bar(training.lacking(store, runs)) as line:
        training.train(played, store, runs, progress=line)
    return setting, store


def _named(adversary: str | Adversary, model: Model) -> str | OwnAdversary:
    """A known adversary's name, or the caller's own: what it computes and what it is called."""
    if not isinstance(adversary, Adversary):
        return adversary
    label = getattr(adversary.init, "__qualname__", "own").split(".<locals>")[0]
    declared(Setting)["canaries"].require(number("canaries", adversary.canaries, int))
    try:
        return OwnAdversary(label, _computed_by(adversary, model))
    except Exception as error:  # whatever an outsider's functions raise
        reason = " ".join(str(error).split())[:200]
        message = f"`adversary={label}` fails on a model of {model.n_parameters} parameters"
        raise InputError(f"{message}: {reason}") from error


def _computed_by(adversary: Adversary, model: Model) -> str:
    """SHA-256, in hex, of what an adversary's functions compute, lowered for one platform."""
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
    """SHA-256, in hex, of a model's initialisation and loss with gradient, lowered for one platform."""
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    example = jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])
    start = jax.jit(model.init).trace(jax.random.key(0, impl="threefry2x32"))
    return _digest([start, jax.jit(jax.value_and_grad(model.loss)).trace(theta, example)])


def _digest(traced: list[Any]) -> str:
    texts = [one.lower(lowering_platforms=("cpu",)).as_text() for one in traced]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _dataset(features: ArrayLike, labels: ArrayLike) -> Dataset:
    both = {"features": _canonical("features", features), "labels": _canonical("labels", labels)}
    x, y = both.values()
    require(x.size and y.size and x.ndim and y.ndim, "features and labels need an axis of examples each")
    require(len(x) == len(y), f"there are {len(x)} features and {len(y)} labels: give one label an example")
    return Dataset(x, y, "arrays of the caller's", checksum_of(both))


def _canonical(name: str, values: ArrayLike) -> NDArray[Any]:
    """Whole numbers stay bytes or become int32, others float32."""
    array = arrays.real(name, values)
    if array.dtype == np.uint8:
        return array
    whole = array.dtype.kind in "biu"
    fits = np.abs(array.astype(np.float64)) < (2**31 if whole else float(np.finfo(np.float32).max))
    require(fits.all(), f"{name} hold {np.sum(~fits)} values that are not finite or too large: mend them")
    return array.astype(np.int32 if whole else np.float32)


def _model(module: nn.Module, criterion: Criterion, dataset: Dataset) -> Model:
    """The module as a flat model, tried on one example; raises InputError where it doesn't fit."""
    given = f"one of type {type(module).__name__}"
    mend = "give any other model as loss(params, (feature, label)) to audit_loss"
    if isinstance(module, type):
        given, mend = f"the class {module.__name__}", f"give an instance, {module.__name__}()"
    require(isinstance(module, nn.Module), f"audit_model takes a Flax Linen module, not {given}: {mend}")
    example = jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])
    shape = example[0].shape
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), example[0])
        others = sorted(set(variables) - {"params"})
        kept = f"the module keeps {', '.join(others) or 'nothing to train'}"
        alone = "DP-SGD trains parameters alone (GroupNorm for BatchNorm)"
        require("params" in variables and not others, f"{kept}: {alone}")
        model = flat_model(module, example[0], criterion)
        loss = jax.eval_shape(model.loss, jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32), example)
    except InputError:
        raise
    except InvalidRngError:
        raise InputError("the module draws randomness: switch dropout off (deterministic=True)") from None
    except Exception as error:  # whatever an outsider's module raises
        reason = " ".join(str(error).split())[:200]
        message = f"the module or criterion fails on one example of shape {shape}, which has no batch axis"
        raise InputError(f"{message}: {reason}") from error
    message = "flatten with x.reshape(-1): an example has no batch axis"
    require(loss.shape == (), f"the loss of one example has shape {loss.shape}, not (): {message}")
    return model


class _NoModule(nn.Module):
    """The module of a model that is a loss alone."""


def _model_of_loss(loss: TreeLoss, params: Any, dataset: Dataset) -> Model:
    """A loss over a tree as a flat model, tried on one example; raises InputError where it doesn't fit."""
    example = jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])
    _require_floats(params)
    start, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params))

    def flat_loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        return loss(unravel(theta), labelled)

    try:
        found = jax.eval_shape(flat_loss, start, example)
    except Exception as error:  # whatever an outsider's loss raises
        reason = " ".join(str(error).split())[:200]
        shape = f"of shape {example[0].shape}, which has no batch axis"
        message = f"loss(params, (feature, label)) fails on one example {shape}"
        raise InputError(f"{message}: {reason}") from error
    require(found.shape == (), f"the loss of one example has shape {found.shape}, not (): give one number")
    theta_0 = np.asarray(start)
    return Model(_NoModule(), start.size, lambda key: jnp.asarray(theta_0), unravel, _no_criterion, flat_loss)


def _require_floats(params: Any) -> None:
    leaves = jax.tree.leaves(params)
    mend = "give float arrays alone (of a whole model: nnx.split, eqx.partition)"
    require(leaves, f"params hold nothing to train: {mend}")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", "") if isinstance(leaf, Array | np.ndarray | np.generic) else ""
        fits = isinstance(leaf, float) or (kind and jnp.issubdtype(kind, jnp.floating))
        require(fits, f"params hold a leaf of type {kind or type(leaf).__name__}: {mend}")


def _no_criterion(logits: Array, label: Array) -> Array:
    raise TypeError("this model is a loss: it has no criterion")


def _with_strategy(setting: Setting, named: bool, model: Model, dataset: Dataset) -> Setting:
    """The setting with the clipping strategy that was named, if it takes the model, else with the fastest."""
    batch = jnp.asarray(dataset.features[:_PROBE]), jnp.asarray(dataset.labels[:_PROBE])
    if named:
        strategy = setting.mechanism.clipping
        reason = _unfit(strategy, model, batch)
        require(not reason, f"`clipping={strategy}` does not take this model: {reason}")
        return setting
    for strategy in STRATEGIES[:-1]:
        if not (reason := _unfit(strategy, model, batch)):
            return changed(setting, clipping=strategy)
    print(f"a gradient per example, ten to a hundred times slower: {reason}", file=sys.stderr)
    return changed(setting, clipping=STRATEGIES[-1])


def _unfit(name: str, model: Model, batch: Batch) -> str:
    """Why a strategy's sum is not that of per-example gradients on a few examples; empty where it is."""
    if name == "book_keeping" and batch[0].ndim != 2:
        return "book_keeping takes flat features"
    theta, norm = model.init(jax.random.key(0)), jnp.float32(1)
    wanted = jax.jit(per_example(model.loss))(theta, batch, norm)
    try:
        found = jax.jit(build.CLIPPING[name](model))(theta, batch, norm)
    except (TypeError, ValueError, FlaxError) as error:
        return " ".join(str(error).split())
    close = jnp.allclose(found, wanted, rtol=0, atol=_TOLERANCE)
    return "" if close else f"{name} differs from per-example gradients"


def _classes(labels: NDArray[Any]) -> int:
    whole = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0
    message = "give labels of whole numbers from 0, at least two classes, or another adversary"
    require(whole and labels.max() >= 1, f"`adversary=loss` flips labels: {message}")
    return int(labels.max()) + 1
