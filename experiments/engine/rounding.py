"""Measures how far lower precisions of matrix products move clipped gradients away from those in float64."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.json_text import write_json
from audit.mechanism.base import simulate
from audit.mechanism.clipping.base import ClippedSum
from audit.report.table import Column, Table, number
from audit.settings import build
from audit.settings.setting import PRECISIONS, Setting, flat
from audit.tasks.model import Model
from audit.tasks.task import Dataset
from audit.training import game

_BLOCK = 50  # examples whose gradients are held at once

Batch = tuple[NDArray[Any], NDArray[Any]]  # features (n, ...), labels (n,)


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of a precision on the gradients of some examples; errors are relative to float64.

    Attributes:
      precision: The precision's name.
      norm_error_median: The median of the errors of the gradients' norms before clipping.
      norm_error_max: The largest of these errors.
      sum_error: The error of the sum of clipped gradients: the norm of the difference over the norm.
      clipped_share: The share of gradients whose norm in float64 is above C, so that they are clipped.
      excess: The largest ||clipped gradient|| / C - 1, over the examples; above 0 where clipping lets a
        gradient be longer than C.
      effective_sigma: The noise multiplier that the guarantee has in truth: sigma / (1 + excess), or sigma
        where the excess is not above 0.
    """

    precision: str
    norm_error_median: float
    norm_error_max: float
    sum_error: float
    clipped_share: float
    excess: float
    effective_sigma: float


class _Reference(NamedTuple):
    """The gradients in float64, to compare lower precisions with.

    Attributes:
      norms: (n,) the norms of the examples' gradients before clipping.
      clipped_sum: (p,) the sum of the clipped gradients.
    """

    norms: NDArray[np.float64]
    clipped_sum: NDArray[np.float64]


class _Strategy(NamedTuple):
    """A clipping strategy in a given precision, compiled.

    Attributes:
      clip_each: (theta, features, labels, C) -> the clipped gradients (n, p), each computed as if its example
        were the whole mini-batch.
      clip_sum: (theta, batch, C) -> the sum (p,) of the clipped gradients.
    """

    clip_each: Callable[..., Array]
    clip_sum: Callable[..., Array]


def measure(setting: Setting, dataset: Dataset, examples: int) -> dict[str, list[Effect]]:
    """Measures how each precision rounds gradients, compared with float64.

    Gradients are measured at the initial model, and at a model that the setting trains from there.

    Args:
      setting: The setting that trains the model, in its own precision, and that says how gradients are
        clipped.
      dataset: The setting's data.
      examples: The number of examples, the first of the data, whose gradients are measured.

    Returns:
      The effects, one for each precision, under the keys "at_initialisation" and "after_<steps>_steps".

    Raises:
      InputError: Setting and data do not fit.
    """
    trainee = build.trainee(setting.model, dataset)
    model = trainee.model
    # The model's way to sum clipped gradients, with its products in each of the precisions.
    clipped_sum = build.CLIPPING[trainee.clipping](model)
    strategies = {}
    for precision in PRECISIONS:
        strategies[precision] = _compile_strategy(build.in_precision(clipped_sum, precision))
    batch = (dataset.features[:examples], dataset.labels[:examples])

    def measure_effects(theta: Array) -> list[Effect]:
        """Returns the effect of each precision on the gradients at the parameters theta (p,)."""
        reference = _compute_reference(model, theta, batch, setting.mechanism.clipping_norm)
        effects = []
        for precision, strategy in strategies.items():
            effects.append(_measure_effect(precision, strategy, setting, theta, batch, reference))
        return effects

    # The two models: the initial model, and the model after a training run without canaries.
    played = build.build(setting, dataset)
    theta_0 = played.init(game.root(setting.seed, "theta"))
    noise_key = game.root(setting.seed, "noise")
    train = jax.jit(partial(simulate, played.mechanism))
    trained = train(played.hyper, theta_0, played.data, played.schedule.batches, noise_key)
    return {
        "at_initialisation": measure_effects(theta_0),
        f"after_{setting.schedule.steps}_steps": measure_effects(trained.theta),
    }


def _compile_strategy(clipped_sum: ClippedSum) -> _Strategy:
    """Compiles a clipping strategy twice: for each example alone, and for the sum over all examples.

    Args:
      clipped_sum: (theta, batch, C) -> the sum (p,) of the batch's clipped gradients.
    """

    def clip_alone(theta: Array, features: Array, label: Array, clipping_norm: Array) -> Array:
        """Returns the clipped gradient (p,) of an example: the sum over a mini-batch that has it alone."""
        return clipped_sum(theta, (features[None], label[None]), clipping_norm)

    clip_each = jax.vmap(clip_alone, (None, 0, 0, None))
    return _Strategy(jax.jit(clip_each), jax.jit(clipped_sum))


def _measure_effect(
    precision: str,
    strategy: _Strategy,
    setting: Setting,
    theta: Array,
    batch: Batch,
    reference: _Reference,
) -> Effect:
    """Returns a precision's effect on the gradients of a batch.

    Args:
      precision: The precision's name.
      strategy: The clipping strategy in that precision.
      setting: The setting, of which the clipping norm and the noise multiplier are used.
      theta: (p,) the model's parameters.
      batch: The examples.
      reference: The same gradients in float64.
    """
    clipping_norm = setting.mechanism.clipping_norm
    # The relative errors of the norms before clipping: at an infinite clipping norm nothing is clipped.
    unclipped_norms = _compute_norms(strategy, theta, batch, np.inf)
    divisors = np.where(reference.norms > 0, reference.norms, 1.0)  # no division by 0
    errors = np.abs(unclipped_norms - reference.norms) / divisors

    # By how much the longest clipped gradient exceeds C, as a share of C: above 0 by rounding alone.
    clipped_norms = _compute_norms(strategy, theta, batch, clipping_norm)
    excess = float(clipped_norms.max() / clipping_norm - 1)

    # The relative error of the sum of clipped gradients.
    clipped_sum = strategy.clip_sum(theta, batch, np.float32(clipping_norm))
    total = np.asarray(clipped_sum, np.float64)
    difference = np.linalg.norm(total - reference.clipped_sum)
    relative_difference = difference / np.linalg.norm(reference.clipped_sum)
    is_clipped = reference.norms > clipping_norm

    # The noise has deviation sigma C, but the longest clipped gradient may have norm (1 + excess) C. The
    # ratio of the two is the noise multiplier that the guarantee has in truth.
    effective_sigma = setting.mechanism.noise_multiplier / (1 + max(excess, 0.0))
    return Effect(
        precision=precision,
        norm_error_median=float(np.median(errors)),
        norm_error_max=float(errors.max()),
        sum_error=float(relative_difference),
        clipped_share=float(np.mean(is_clipped)),
        excess=excess,
        effective_sigma=effective_sigma,
    )


def _compute_reference(
    model: Model, theta: Array, batch: Batch, clipping_norm: float
) -> _Reference:
    """Computes in float64 the norms of a batch's gradients, and the sum of its clipped gradients.

    The gradients are JAX's own, example by example: none of this project's clipping strategies takes part.
    They are computed for _BLOCK examples at once.

    Args:
      model: The network.
      theta: (p,) the network's parameters.
      batch: The examples.
      clipping_norm: C, the largest norm of an example's gradient after clipping.
    """

    def loss(params: Any, features: Array, label: Array) -> Array:
        """Returns the loss on a single example."""
        logits: Any = model.module.apply({"params": params}, features)
        return model.criterion(logits, label)

    norms = []
    total = np.zeros(model.n_parameters)
    with jax.enable_x64(True):  # JAX would compute in float32
        params = jax.tree.map(_to_float64, model.unravel(theta))
        by_example = jax.vmap(jax.grad(loss), (None, 0, 0))
        compute_gradients = jax.jit(by_example)
        for features, labels in _split_batch(batch):
            tree = compute_gradients(params, features, labels)
            flattened = []  # for each of the network's parameters (examples, entries)
            for leaf in jax.tree.leaves(tree):
                flattened.append(np.asarray(leaf).reshape(len(labels), -1))
            gradients = np.concatenate(flattened, axis=1)  # (examples, p)
            block_norms = np.linalg.norm(gradients, axis=1)
            # 1e-300 avoids a division by 0; a gradient of norm 0 has the factor 1.
            factors = np.minimum(1, clipping_norm / np.maximum(block_norms, 1e-300))
            norms.append(block_norms)
            total += factors @ gradients
    return _Reference(np.concatenate(norms), total)


def _to_float64(leaf: Array) -> Array:
    """Converts an array to float64; only where JAX has 64-bit types enabled, else the result is float32."""
    return jnp.asarray(np.float64(leaf))


def _compute_norms(
    strategy: _Strategy, theta: Array, batch: Batch, clipping_norm: float
) -> NDArray[np.float64]:
    """Returns the norms (n,) of the examples' clipped gradients, each of which a strategy clips alone.

    The norms themselves are computed in float64, so that they add no error. An infinite `clipping_norm` gives
    the norms before clipping.
    """
    norms = []
    for features, labels in _split_batch(batch):  # a few examples at once, to save memory
        clipped = strategy.clip_each(theta, features, labels, np.float32(clipping_norm))
        gradients = np.asarray(clipped).astype(np.float64)
        norms.append(np.linalg.norm(gradients, axis=1))
    return np.concatenate(norms)


def _split_batch(batch: Batch) -> Iterator[Batch]:
    """Yields the batch in blocks of _BLOCK examples; the last block may be smaller."""
    features, labels = batch
    for i in range(0, len(labels), _BLOCK):
        yield features[i : i + _BLOCK], labels[i : i + _BLOCK]


def as_json(effects_by_moment: dict[str, list[Effect]], setting: Setting, examples: int) -> str:
    """Returns a JSON object: the setting, the number of examples, and a list of effects for each moment.

    Args:
      effects_by_moment: The effects of all precisions, by the moment of training, as `measure` returns them.
      setting: The setting of the training.
      examples: The number of examples whose gradients were measured.
    """
    content: dict[str, Any] = {"setting": flat(setting), "examples": examples}
    for moment, effects in effects_by_moment.items():
        content[moment] = [dataclasses.asdict(effect) for effect in effects]
    return write_json(content)


def as_text(effects_by_moment: dict[str, list[Effect]], setting: Setting, examples: int) -> str:
    """Returns a table for each moment of training, 80 columns wide, and a note on the last two columns.

    The last two columns are the excess of clipped norms over C, and the noise multiplier that it leaves.

    Args:
      effects_by_moment: The effects of all precisions, by the moment of training, as `measure` returns them.
      setting: The setting, of which the noise multiplier is used.
      examples: The number of examples whose gradients were measured.
    """
    sigma = setting.mechanism.noise_multiplier
    tables = []
    for moment, effects in effects_by_moment.items():
        tables.append(_make_table(moment.replace("_", " "), effects, sigma) + "\n")
    note = (
        f"excess: the largest ||clipped|| / C - 1 of {examples} examples; others may exceed it.\n"
        f"sigma {sigma:g} is: the noise multiplier sigma / (1 + excess) to account with."
    )
    return "\n".join([*tables, note])


def _make_table(moment: str, effects: list[Effect], sigma: float) -> str:
    """Returns the table of the effects at a moment of training as text, a row for each precision.

    Args:
      moment: The moment, in words.
      effects: The effects of all precisions.
      sigma: The stated noise multiplier. The last column shows what remains of it.
    """
    share = effects[0].clipped_share  # by the norms in float64, and so the same for all precisions
    title = f"{moment}: {share:.0%} of the gradients are clipped; errors relative to float64"
    # Each column's key (None: it is not in JSON), value, heading, format and width.
    columns = (
        Column(None, lambda effect: effect.precision, "precision", width=10, left=True),
        Column(None, lambda effect: effect.norm_error_median, "norm, median", number(".1e"), 13),
        Column(None, lambda effect: effect.norm_error_max, "norm, worst", number(".1e"), 13),
        Column(None, lambda effect: effect.sum_error, "clipped sum", number(".1e"), 13),
        Column(None, lambda effect: effect.excess, "excess", number(".1e"), 11),
        Column(
            None, lambda effect: effect.effective_sigma, f"sigma {sigma:g} is", number(".6f"), 13
        ),
    )
    return Table(columns, effects, before=[title], gap="").text()
