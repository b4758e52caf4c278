"""Audits of one's own model: any Flax module, criterion and data, with the same game, bounds and report.

    result = own.audit_model(Net(), criterion, features, labels, runs=1000, adversary="gc_r", steps=100)
    print(result)                      the table of bounds; result.report is the page's path

`experiments/own_model.py` is a whole example.
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

from audit import training
from audit.errors import InputError, require
from audit.mechanism.clipping.base import Batch, per_example
from audit.statistics import conversions
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import Conclusion, conclude_design
from audit.storage import made, results
from audit.storage.store import FIGURE, RESULT, Store
from experiments.cells import progress
from experiments.pages import report, subjects
from experiments.plots import audit_panels, bounds_table
from experiments.settings import build, stored
from experiments.settings.adversaries import Loss
from experiments.settings.build import Trainee
from experiments.settings.fields import fields as known_fields
from experiments.settings.make import Usual, changed, make_setting
from experiments.settings.setting import Setting, flat, require_type, summary, validate
from models.base import Model, flat_model
from models.data.base import Dataset
from models.data.sources import checksum_of

Criterion = Callable[[Array, Array], Array]
TreeLoss = Callable[[Any, tuple[Array, Array]], Array]
STRATEGIES = ("book_keeping", "unfolded", "per_example")  # the fastest first
_USUAL = Usual(0.1, 400, STRATEGIES[0])
_PAGE = "report.html"
_FILES = (RESULT, FIGURE, _PAGE)
_PROBE = 4  # examples on which a strategy must agree with per-example gradients
_TOLERANCE = 1e-3  # of C, a coordinate: a hundred times rounding


class Audit(NamedTuple):
    """The result of an audit of one's own model, and where it is kept."""

    conclusion: Conclusion
    setting: Setting
    folder: Path
    report: Path

    def __str__(self) -> str:
        table = bounds_table.bounds_table(self.conclusion)
        return f"{table}\n\nreport: {self.report}"


class _Asked(NamedTuple):
    """How many runs, the levels of the bounds, and the folder of what is kept."""

    runs: int
    delta: float
    confidence: float
    out: Path


class _Own(NamedTuple):
    """A caller's model, its data, what it `computes`, and where its audits are kept."""

    trainee: Trainee
    dataset: Dataset
    computes: str
    out: Path


def audit_model(
    module: nn.Module,
    criterion: Criterion,
    features: ArrayLike,
    labels: ArrayLike,
    *,
    runs: int,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    **named: Any,
) -> Audit:
    """Trains `runs` models, half with the canary; bounds, draws and reports what their last iterates leak.

    Args:
      module: takes one example, features[i], without a batch axis; trained parameters only, no randomness.
      criterion: (the module's output, labels[i]) -> scalar loss of one example.
      features: (N, ...), kept as float32 or as whole numbers.
      labels: (N, ...); the adversary "loss" needs classes, whole numbers from 0.
      runs: how many models; those that `out` has already are not trained again.
      named: fields of `Setting`, as adversary="gc_r", steps=100; `model` names the model in the report, and
        `clipping` is by default the fastest strategy that takes it, or one by which `out` has all runs.

    Where `out` has all runs nothing is trained, and where scores, levels and version are those of the last
    call nothing is drawn.

    Raises InputError for what cannot be audited, in one line.
    """
    asked = _asked(runs, delta, confidence, out)
    dataset = _dataset(features, labels)
    setting = _setting(named, type(module).__name__)
    validate(setting, runs, STRATEGIES)
    model = _model(module, criterion, dataset)
    return _audited(asked, setting, named.get("clipping") is not None, model, dataset)


def audit_loss(
    loss: TreeLoss,
    params: Any,
    features: ArrayLike,
    labels: ArrayLike,
    *,
    runs: int,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    **named: Any,
) -> Audit:
    """`audit_model` for any JAX model: Flax NNX, Equinox and Haiku all have such a loss.

    Args:
      loss: (params, (features[i], labels[i])) -> scalar loss of one example, without a batch axis; no
        randomness.
      params: a tree of float arrays, at which every run begins.
      runs, out, named: see `audit_model`. Gradients are taken example by example, which is slower than what a
        Linen module allows.

    Raises InputError for what cannot be audited, in one line.
    """
    asked = _asked(runs, delta, confidence, out)
    dataset = _dataset(features, labels)
    setting = _setting({"clipping": STRATEGIES[-1], **named}, getattr(loss, "__name__", "loss"))
    validate(setting, runs, STRATEGIES[-1:])
    own_start = "`unknown_initialisation` needs a module that draws one: every run begins at params"
    require(not setting.unknown_initialisation, own_start)
    return _audited(asked, setting, True, _model_of_loss(loss, params, dataset), dataset)


def _asked(runs: int, delta: float, confidence: float, out: str | Path) -> _Asked:
    """What is asked for, checked."""
    require_type("runs", runs, int)
    require_type("delta", delta, float)
    require_type("confidence", confidence, float)
    conversions.require_delta(delta)
    conversions.require_confidence(confidence)
    require(str(out), "`out=`: name a folder")
    return _Asked(runs, delta, confidence, Path(out))


def _audited(wanted: _Asked, asked: Setting, chosen: bool, model: Model, dataset: Dataset) -> Audit:
    """Trains what is missing, concludes, and draws where that is not drawn."""
    runs, delta, confidence, out = wanted
    classes = _classes(dataset.labels) if asked.adversary.name == Loss.name else 0
    computes = fingerprint(model, (jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])))
    own = _Own(Trainee(model, computes, classes), dataset, computes, out)
    setting, store = _held(own, asked, chosen, runs) or _trained(own, asked, chosen, runs)
    composition = Composition(*setting.composition)
    conclusion = conclude_design(store.load(runs).design(), composition, delta, confidence).with_curve_test()
    made_from = made.source(store, conclusion)
    if not made.stands(store, made_from, _FILES):
        _make(setting, dataset, store, conclusion, runs)
        made.mark(store, made_from, _FILES)
    return Audit(conclusion, setting, store.path, store.path / _PAGE)


def _held(own: _Own, asked: Setting, chosen: bool, runs: int) -> tuple[Setting, Store] | None:
    """The setting and its store where all runs are there by the strategy that was chosen, or by any."""
    for name in (asked.mechanism.clipping,) if chosen else STRATEGIES:
        setting = changed(asked, clipping=name)
        store = stored.find_store(own.out, setting, own.dataset, model=own.computes)
        if store is not None and not store.missing(runs):
            return setting, store
    return None


def _trained(own: _Own, asked: Setting, chosen: bool, runs: int) -> tuple[Setting, Store]:
    """The setting, with its strategy, and its store, in which the missing runs are trained."""
    setting = _with_strategy(asked, chosen, own.trainee.model, own.dataset)
    played = build.build_for(setting, own.dataset, own.trainee)
    store = stored.open_store(own.out, setting, own.dataset, model=own.computes)
    with progress.bar(training.lacking(store, runs)) as line:
        training.train(played, store, runs, progress=line)
    return setting, store


def _make(setting: Setting, dataset: Dataset, store: Store, conclusion: Conclusion, runs: int) -> None:
    """Writes the conclusion, its figure and its page."""
    figure, kept = audit_panels.audit_figure(conclusion, summary(setting, runs)), build.provenance(dataset)
    results.keep(store, conclusion, figure, setting=flat(setting), runs=runs, provenance=kept)
    about = subjects.of_setting(store.path, subjects.AskedLevels())
    store.write_bytes(_PAGE, report.report(f"Audit: {about.title}", [about]))


def fingerprint(model: Model, example: tuple[Array, Array]) -> str:
    """SHA-256, in hex, of what the model computes: its initialisation and its loss with gradient, lowered for
    one platform, constants included."""
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    traced = (
        jax.jit(model.init).trace(jax.random.key(0, impl="threefry2x32")),
        jax.jit(jax.value_and_grad(model.loss)).trace(theta, example),
    )
    texts = [one.lower(lowering_platforms=("cpu",)).as_text() for one in traced]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _dataset(features: ArrayLike, labels: ArrayLike) -> Dataset:
    """The data as an audit takes them, with their checksum."""
    arrays = {"features": _canonical("features", features), "labels": _canonical("labels", labels)}
    x, y = arrays.values()
    require(x.size and y.size and x.ndim and y.ndim, "features and labels need an axis of examples each")
    require(len(x) == len(y), f"there are {len(x)} features and {len(y)} labels: give one label an example")
    return Dataset(x, y, "arrays of the caller's", checksum_of(arrays))


def _canonical(name: str, values: ArrayLike) -> NDArray[Any]:
    """Whole numbers stay bytes or become int32, others float32."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} are no array: give rows of one length") from None
    require(array.dtype.kind in "biuf", f"{name} are {array.dtype}: give numbers")
    if array.dtype == np.uint8:
        return array
    whole = array.dtype.kind in "biu"
    fits = np.abs(array.astype(np.float64)) < (2**31 if whole else float(np.finfo(np.float32).max))
    require(fits.all(), f"{name} hold {np.sum(~fits)} values that are not finite or too large: mend them")
    return array.astype(np.int32 if whole else np.float32)


def _model(module: nn.Module, criterion: Criterion, dataset: Dataset) -> Model:
    """The module as a flat model, tried on one example; raises InputError where it doesn't fit."""
    _require_linen(module)
    example = jnp.asarray(dataset.features[0]), jnp.asarray(dataset.labels[0])
    shape = example[0].shape
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), example[0])
        others = sorted(set(variables) - {"params"})
        require(
            "params" in variables and not others,
            f"the module keeps {', '.join(others) or 'nothing to train'}: DP-SGD trains parameters alone "
            "(GroupNorm for BatchNorm)",
        )
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


def _require_linen(module: object) -> None:
    """Raises InputError for what `audit_model` cannot take, with the way that there is for it."""
    given = f"one of type {type(module).__name__}"
    mend = "give any other model as loss(params, (feature, label)) to audit_loss"
    if isinstance(module, type):
        given, mend = f"the class {module.__name__}", f"give an instance, {module.__name__}()"
    require(isinstance(module, nn.Module), f"audit_model takes a Flax Linen module, not {given}: {mend}")


def _setting(named: dict[str, Any], usual_name: str) -> Setting:
    """The setting that the caller's fields describe; NumPy's numbers are plain ones."""
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in named.items()}
    fields = {name: value for name, value in given.items() if name != "model" and value is not None}
    for name, value in given.items():
        if name in known_fields() and value is not None:
            require_type(name, value, known_fields()[name].kind)
    return make_setting(named.get("model") or usual_name, _USUAL, fields)


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
    """Raises InputError where the tree's leaves are not all numbers that can be trained."""
    leaves = jax.tree.leaves(params)
    mend = "give float arrays alone (of a whole model: nnx.split, eqx.partition)"
    require(leaves, f"params hold nothing to train: {mend}")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", "") if isinstance(leaf, Array | np.ndarray | np.generic) else ""
        fits = isinstance(leaf, float) or (kind and jnp.issubdtype(kind, jnp.floating))
        require(fits, f"params hold a leaf of type {kind or type(leaf).__name__}: {mend}")


def _no_criterion(logits: Array, label: Array) -> Array:
    """A model that is a loss alone has no logits."""
    raise TypeError("this model is a loss: it has no criterion")


def _with_strategy(setting: Setting, named: bool, model: Model, dataset: Dataset) -> Setting:
    """The setting with the clipping strategy that was named, if it takes the model, else with the fastest."""
    batch = jnp.asarray(dataset.features[:_PROBE]), jnp.asarray(dataset.labels[:_PROBE])
    if named:
        strategy = setting.mechanism.clipping
        reason = _unfit(strategy, model, batch)
        require(not reason, f"`clipping={strategy}` does not take this model: {reason}")
        return setting
    return changed(setting, clipping=_fastest(model, batch))


def _fastest(model: Model, batch: Batch) -> str:
    """The first strategy that takes the model."""
    reason = ""
    for name in STRATEGIES[:-1]:
        reason = _unfit(name, model, batch)
        if not reason:
            return name
    print(f"a gradient per example, ten to a hundred times slower: {reason}", file=sys.stderr)
    return STRATEGIES[-1]


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
    """How many classes there are."""
    whole = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0
    message = "give labels of whole numbers from 0, at least two classes, or another adversary"
    require(whole and labels.max() >= 1, f"`adversary=loss` flips labels: {message}")
    return int(labels.max()) + 1
