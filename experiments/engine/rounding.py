"""How far products in lower precisions move clipped gradients, against float64."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit import game
from audit.mechanism.base import simulate
from audit.mechanism.clipping.base import ClippedSum
from audit.model import Model
from audit.report.table import Column, Table, number
from audit.settings import build
from audit.settings.setting import PRECISIONS, Setting, flat
from audit.task import Dataset

_Batch = tuple[NDArray[Any], NDArray[Any]]  # features (n, ...), labels (n,)
_Exact = tuple[NDArray[np.float64], NDArray[np.float64]]  # gradient norms (n,), the clipped sum (p,)
_Compiled = tuple[Callable[..., Array], Callable[..., Array]]  # of each example alone (n, p), of all (p,)


@dataclasses.dataclass(frozen=True)
class Effect:
    """A precision's effect on the gradients of some examples, against float64.

    Relative errors of the norms before clipping and of the clipped sum; excess is the largest
    ||clipped|| / C - 1; effective_sigma the noise multiplier that the guarantee then has.
    """

    precision: str
    norm_error_median: float
    norm_error_max: float
    sum_error: float
    clipped_share: float
    excess: float
    effective_sigma: float


def measure(setting: Setting, dataset: Dataset, examples: int) -> dict[str, list[Effect]]:
    """Every precision's effect on the first examples, at theta_0 and after the setting's training.

    The keys are "at_initialisation" and "after_<steps>_steps"; the setting's own precision is the
    training's. Raises InputError where setting and data do not fit.
    """
    model, norm = build.trainee(setting.model, dataset).model, setting.mechanism.clipping_norm
    strategy = build.CLIPPING[setting.mechanism.clipping](model)
    compiled = {name: _compiled(build.in_precision(strategy, name)) for name in PRECISIONS}
    batch = (dataset.features[:examples], dataset.labels[:examples])

    def effects(theta: Array) -> list[Effect]:
        exact = _exact(model, theta, batch, norm)
        return [_effect(name, each, setting, theta, batch, exact) for name, each in compiled.items()]

    played = build.build(setting, dataset)
    theta_0, noise = played.init(game.root(setting.seed, "theta")), game.root(setting.seed, "noise")
    run = jax.jit(partial(simulate, played.mechanism))
    theta_t = run(played.hyper, theta_0, played.data, played.schedule.batches, noise).theta
    return {"at_initialisation": effects(theta_0), f"after_{setting.schedule.steps}_steps": effects(theta_t)}


def _compiled(clipped_sum: ClippedSum) -> _Compiled:
    def alone(theta: Array, features: Array, label: Array, clipping_norm: Array) -> Array:
        return clipped_sum(theta, (features[None], label[None]), clipping_norm)

    return jax.jit(jax.vmap(alone, (None, 0, 0, None))), jax.jit(clipped_sum)


def _effect(
    name: str, compiled: _Compiled, setting: Setting, theta: Array, batch: _Batch, exact: _Exact
) -> Effect:
    norm, (norms, exact_total), (each, together) = setting.mechanism.clipping_norm, exact, compiled
    error = np.abs(_norms(each, theta, batch, np.inf) - norms) / np.where(norms > 0, norms, 1.0)
    excess = float(_norms(each, theta, batch, norm).max() / norm - 1)
    total = np.asarray(together(theta, batch, np.float32(norm)), np.float64)
    return Effect(
        precision=name,
        norm_error_median=float(np.median(error)),
        norm_error_max=float(error.max()),
        sum_error=float(np.linalg.norm(total - exact_total) / np.linalg.norm(exact_total)),
        clipped_share=float(np.mean(norms > norm)),
        excess=excess,
        effective_sigma=setting.mechanism.noise_multiplier / (1 + max(excess, 0.0)),
    )


def _exact(model: Model, theta: Array, batch: _Batch, clipping_norm: float) -> _Exact:
    """By JAX in float64, 50 examples at once."""

    def loss(params: Any, features: Array, label: Array) -> Array:
        logits: Any = model.module.apply({"params": params}, features)
        return model.criterion(logits, label)

    norms, total = [], np.zeros(model.n_parameters)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(np.float64(leaf)), model.unravel(theta))
        gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))
        for features, labels in _blocks(batch):
            leaves = jax.tree.leaves(gradients(params, features, labels))
            rows = np.concatenate([np.asarray(leaf).reshape(len(labels), -1) for leaf in leaves], axis=1)
            norms.append(np.linalg.norm(rows, axis=1))
            total += np.minimum(1, clipping_norm / np.maximum(norms[-1], 1e-300)) @ rows
    return np.concatenate(norms), total


def _norms(
    each: Callable[..., Array], theta: Array, batch: _Batch, clipping_norm: float
) -> NDArray[np.float64]:
    """Norms (n,), taken in float64, of what the strategy makes of each example alone."""
    rows = (np.asarray(each(theta, *block, np.float32(clipping_norm))) for block in _blocks(batch))
    return np.concatenate([np.linalg.norm(block.astype(np.float64), axis=1) for block in rows])


def _blocks(batch: _Batch) -> Iterator[_Batch]:
    features, labels = batch
    for i in range(0, len(labels), 50):
        yield features[i : i + 50], labels[i : i + 50]


def as_json(found: dict[str, list[Effect]], setting: Setting, examples: int) -> str:
    """One object: the setting, the number of examples, and a list of effects a moment."""
    content = {moment: [dataclasses.asdict(e) for e in effects] for moment, effects in found.items()}
    return json.dumps({"setting": flat(setting), "examples": examples, **content})


def as_text(found: dict[str, list[Effect]], setting: Setting, examples: int) -> str:
    """A table a moment, in 80 columns, and how to read the last two columns."""
    sigma = setting.mechanism.noise_multiplier
    tables = [_table(moment.replace("_", " "), effects, sigma) + "\n" for moment, effects in found.items()]
    note = (
        f"excess: the largest ||clipped|| / C - 1 of {examples} examples; others may exceed it.\n"
        f"sigma {sigma:g} is: the noise multiplier sigma / (1 + excess) to account with."
    )
    return "\n".join([*tables, note])


def _table(moment: str, effects: list[Effect], sigma: float) -> str:
    share = effects[0].clipped_share
    title = f"{moment}: {share:.0%} of the gradients are clipped; errors relative to float64"
    columns = (
        Column(None, lambda e: e.precision, "precision", width=10, left=True),
        Column(None, lambda e: e.norm_error_median, "norm, median", number(".1e"), 13),
        Column(None, lambda e: e.norm_error_max, "norm, worst", number(".1e"), 13),
        Column(None, lambda e: e.sum_error, "clipped sum", number(".1e"), 13),
        Column(None, lambda e: e.excess, "excess", number(".1e"), 11),
        Column(None, lambda e: e.effective_sigma, f"sigma {sigma:g} is", number(".6f"), 13),
    )
    return Table(columns, effects, before=[title], gap="").text()
