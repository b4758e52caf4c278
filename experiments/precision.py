"""Do products in tf32 or bf16 keep clipped gradients within C?

    ./run.sh precision                           the FCNN on California Housing
    ./run.sh precision --model=convnet           the ConvNet on CIFAR-10

Clipping bounds the sensitivity by C only as exactly as it computes. For each precision this measures, at
initialisation and after some training, how far gradients are off and by how much the norm of a clipped
one exceeds C. A run whose clipped gradients reach C (1 + excess) has the guarantee of the noise
multiplier sigma / (1 + excess), not of sigma.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from numpy.typing import NDArray

from audit.errors import require
from experiments import cli

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "fcnn", "fcnn (California Housing) or convnet (CIFAR-10).")
flags.DEFINE_integer("examples", 500, "Examples whose gradients are measured.")
flags.DEFINE_integer("steps", 100, "Training steps before the second measurement.")
flags.DEFINE_float("clipping_norm", 1.0, "Clipping norm C.")
flags.DEFINE_float("noise_multiplier", 4.0, "Noise multiplier sigma of the training, and to be read anew.")
flags.DEFINE_string("clipping", None, "book_keeping, unfolded or per_example; by default the fastest.")
flags.DEFINE_integer("seed", 0, "Seed of all randomness.")
flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")

_BLOCK = 50  # examples whose float64 gradients are held at once


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a precision does to the gradients of some examples, against float64.

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


def main() -> None:
    """Measure and print."""
    cli.prepare_jax()
    from experiments.settings import build as auditing

    setting = _setting(auditing)
    auditing.validate(setting, runs=2)
    dataset = auditing.TASKS[setting.model].load(file=FLAGS.data_file, tfds_dir=FLAGS.tfds_dir)
    most = len(dataset.labels)
    require(1 <= FLAGS.examples <= most, f"--examples={FLAGS.examples}: give 1 to {most}")
    found = measure(auditing, setting, dataset, FLAGS.examples)
    if FLAGS.json:
        content = {moment: [dataclasses.asdict(e) for e in effects] for moment, effects in found.items()}
        print(json.dumps({"setting": dataclasses.asdict(setting), "examples": FLAGS.examples, **content}))
        return
    for moment, effects in found.items():
        print(_table(moment.replace("_", " "), effects, setting) + "\n")
    print(
        f"excess: the largest ||clipped|| / C - 1 of {FLAGS.examples} examples; others may exceed it.\n"
        f"sigma {setting.noise_multiplier:g} is: the noise multiplier sigma / (1 + excess) to account with."
    )


class _Engine(NamedTuple):
    """A clipping strategy in one precision, compiled: of each example alone (n, p), and of all (p,)."""

    each: Callable[..., Any]
    together: Callable[..., Any]


def measure(auditing: Any, setting: Any, dataset: Any, examples: int) -> dict[str, list[Effect]]:
    """Every precision's effect on the first examples, at theta_0 and after the setting's training."""
    import jax

    from audit import game
    from audit.mechanism import dpsgd

    table, model = auditing.build(setting, dataset), auditing.TASKS[setting.model].model(dataset)
    theta_0 = model.init(game.root(setting.seed, "theta"))
    arguments = (table.hyper, theta_0, table.data, table.schedule.batches, game.root(setting.seed, "noise"))
    theta_t = jax.jit(dpsgd.simulate, static_argnums=0)(table.mechanism, *arguments).theta
    batch = (dataset.features[:examples], dataset.labels[:examples])
    strategy = auditing.CLIPPING[setting.clipping](model)
    engines = {name: _compile(wrap(strategy)) for name, wrap in auditing.PRECISIONS.items()}
    moments = {"at_initialisation": theta_0, f"after_{setting.steps}_steps": theta_t}
    return {moment: _effects(setting, model, engines, theta, batch) for moment, theta in moments.items()}


def _compile(clipped_sum: Callable[..., Any]) -> _Engine:
    """The strategy, compiled when it is first called."""
    import jax

    def alone(theta: Any, features: Any, label: Any, clipping_norm: Any) -> Any:
        return clipped_sum(theta, (features[None], label[None]), clipping_norm)

    return _Engine(jax.jit(jax.vmap(alone, (None, 0, 0, None))), jax.jit(clipped_sum))


def _effects(setting: Any, model: Any, engines: dict[str, _Engine], theta: Any, batch: Any) -> list[Effect]:
    """Every precision's effect at one theta."""
    norms, total = _exact(model, theta, batch, setting.clipping_norm)
    share = float(np.mean(norms > setting.clipping_norm))
    effects = []
    for name, engine in engines.items():
        error = np.abs(_norms(engine, theta, batch, np.inf) - norms) / np.where(norms > 0, norms, 1.0)
        clipped = _norms(engine, theta, batch, setting.clipping_norm)
        excess = float(clipped.max() / setting.clipping_norm - 1)
        found = np.asarray(engine.together(theta, batch, np.float32(setting.clipping_norm)), np.float64)
        off = float(np.linalg.norm(found - total) / np.linalg.norm(total))
        sigma = setting.noise_multiplier / (1 + max(excess, 0.0))
        effects.append(Effect(name, float(np.median(error)), float(error.max()), off, share, excess, sigma))
    return effects


def _exact(model: Any, theta: Any, batch: Any, clipping_norm: float) -> tuple[NDArray, NDArray]:
    """Gradient norms (n,) and the clipped sum (p,) in float64."""
    import jax
    import jax.numpy as jnp

    def loss(params: Any, features: Any, label: Any) -> Any:
        return model.criterion(model.module.apply({"params": params}, features), label)

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


def _norms(engine: _Engine, theta: Any, batch: Any, clipping_norm: float) -> NDArray:
    """Norms (n,), taken in float64, of what the engine makes of each example alone."""
    rows = (np.asarray(engine.each(theta, *block, np.float32(clipping_norm))) for block in _blocks(batch))
    return np.concatenate([np.linalg.norm(block.astype(np.float64), axis=1) for block in rows])


def _blocks(batch: Any) -> list[Any]:
    """The batch in parts."""
    features, labels = batch
    starts = range(0, len(labels), _BLOCK)
    return [(features[i : i + _BLOCK], labels[i : i + _BLOCK]) for i in starts]


def _setting(auditing: Any) -> Any:
    """The training that the flags describe, with the task's learning rate and batch size."""
    known = f"choose one of {', '.join(auditing.TASKS)}"
    require(FLAGS.model in auditing.TASKS, f"--model={FLAGS.model} is unknown: {known}")
    task = auditing.TASKS[FLAGS.model]
    return auditing.Setting(
        model=FLAGS.model,
        adversary="gc_r",
        learning_rate=task.learning_rate,
        clipping_norm=FLAGS.clipping_norm,
        noise_multiplier=FLAGS.noise_multiplier,
        batch_size=task.batch_size,
        steps=FLAGS.steps,
        clipping=task.clipping[0] if FLAGS.clipping is None else FLAGS.clipping,
        seed=FLAGS.seed,
    )


def _table(moment: str, effects: list[Effect], setting: Any) -> str:
    """A row a precision."""
    share = effects[0].clipped_share
    title = f"{moment}: {share:.0%} of the gradients are clipped; errors relative to float64"
    head = f"{'precision':<10}{'norm, median':>13}{'norm, worst':>13}{'clipped sum':>13}{'excess':>11}"
    lines = [
        f"{e.precision:<10}{e.norm_error_median:>13.1e}{e.norm_error_max:>13.1e}{e.sum_error:>13.1e}"
        f"{e.excess:>11.1e}{e.effective_sigma:>13.6f}"
        for e in effects
    ]
    head += f"{f'sigma {setting.noise_multiplier:g} is':>13}"
    return "\n".join([title, head, "-" * len(head), *lines])


if __name__ == "__main__":
    cli.run(main)
