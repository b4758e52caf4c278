"""Audit DP-SGD in the hidden-state threat model (the default).

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from absl import flags

from audit.errors import InputError
from audit.statistics import conversions
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import conclude
from audit.storage import results
from experiments import cli
from experiments.plots import bounds_table

FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_string(
    "model", "fcnn", "fcnn (Housing), convnet, resnet18, mobilenet_head or alexnet_head (CIFAR-10)."
)
flags.DEFINE_string("adversary", "gc_s", "gc_s, gc_r, gc_fixed, cots or loss.")
flags.DEFINE_string("gc_s", "noiseless_per_step", "GC-S: {noiseless,noisy}_{per_step,final_model}.")
flags.DEFINE_integer("simulations", 4, "GC-S: how many noisy simulations.")
flags.DEFINE_integer("dimension", 0, "gc_fixed: the biased coordinate.")
flags.DEFINE_integer("k", 1, "Periodicity: the canary is inserted every k steps.")
flags.DEFINE_integer("insertions", 250, "Insertions; training takes insertions * k steps.")
flags.DEFINE_integer("steps", None, "Training steps, instead of --insertions.")
flags.DEFINE_float("learning_rate", None, "Learning rate; by default 0.1 (fcnn), 0.01 (the others).")
flags.DEFINE_float("clipping_norm", 1.0, "Clipping norm C.")
flags.DEFINE_float("noise_multiplier", 4.0, "Noise multiplier sigma: noise has deviation sigma * C.")
flags.DEFINE_integer("batch_size", None, "Examples a mini-batch; by default 400 (fcnn), 128 (the others).")
flags.DEFINE_string("optimizer", "sgd", "sgd, momentum or adam, on the privatised mean gradient.")
flags.DEFINE_string("clipping", None, "book_keeping, unfolded or per_example; by default the fastest.")
flags.DEFINE_string("precision", "float32", "Operands of the training's products: float32, tf32 or bf16.")
flags.DEFINE_bool("unknown_initialisation", False, "Draw theta_0 afresh for each run.")
flags.DEFINE_integer("seed", 0, "Seed of all randomness.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("chunk_size", 0, "Models trained at once; 0: as many as fit.")
flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_string("weights", None, "Heads: the frozen body's .pth or .safetensors file.")
flags.DEFINE_integer("input_size", None, "Heads: side in pixels to which images are resized.")
flags.DEFINE_string("out", "results", "Folder for scores, results and figures.")
flags.DEFINE_string("coordinator", None, "Several processes: host:port where process 0 listens.")
flags.DEFINE_integer("processes", None, "Several processes: how many.")
flags.DEFINE_integer("process", None, "Several processes: this one's number, from 0.")
flags.DEFINE_bool("distributed", False, "Several processes, as SLURM, Open MPI or Kubernetes say.")
flags.DEFINE_float("join_timeout", 60, "Seconds in which all processes must have come.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")

_VARIANTS = {
    "noiseless_per_step": (False, True),
    "noisy_per_step": (True, True),
    "noiseless_final_model": (False, False),
    "noisy_final_model": (True, False),
}


def main() -> None:
    """Parse, build, train, bound, store, print."""
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    cli.prepare_jax()
    from audit import processes
    from experiments.settings import build as auditing

    setting = _setting(auditing)
    auditing.validate(setting, FLAGS.runs)
    if FLAGS.chunk_size < 0:
        raise InputError(f"--chunk_size={FLAGS.chunk_size}: give at least 1, or 0 to have it chosen")
    _join(processes)
    with processes.failing_together():
        dataset = auditing.TASKS[setting.model].load(
            file=FLAGS.data_file,
            tfds_dir=FLAGS.tfds_dir,
            weights=FLAGS.weights,
            input_size=FLAGS.input_size,
        )
        processes.require_same(f"{setting} {dataset.checksum} {FLAGS.runs} {FLAGS.chunk_size}")
        if setting.clipping == "per_example" and processes.is_first():
            print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
        table = auditing.build(setting, dataset)
        store = auditing.open_store(Path(FLAGS.out), setting, dataset) if processes.is_first() else None
        trained = auditing.train(table, store, FLAGS.runs, FLAGS.chunk_size)
    if store is None or trained is None:
        return  # process 0 has the scores and goes on

    from experiments.plots import audit_panels

    composition = Composition(setting.noise_multiplier, setting.insertions)
    conclusion = conclude(trained.scores.worlds(), composition, FLAGS.delta, FLAGS.confidence)
    result, figure = results.keep(
        store,
        conclusion,
        audit_panels.audit_figure(conclusion),
        setting=dataclasses.asdict(setting),
        runs=FLAGS.runs,
        provenance=auditing.provenance(dataset),
        out=str(store.path),
    )
    if FLAGS.json:
        print(result)
        return
    print(_summary(setting, trained, dataset.source), file=sys.stderr)
    print(bounds_table.bounds_table(conclusion))
    print(f"\nfigure: {figure}\nresult: {store.path / results.RESULT}")


def _setting(auditing: Any) -> Any:
    """The setting that the flags describe."""
    tasks = auditing.TASKS
    if FLAGS.model not in tasks:
        raise InputError(f"--model={FLAGS.model} is unknown: choose one of {', '.join(tasks)}")
    task = tasks[FLAGS.model]
    if FLAGS.gc_s not in _VARIANTS:
        raise InputError(f"--gc_s={FLAGS.gc_s} is unknown: choose one of {', '.join(_VARIANTS)}")
    if FLAGS.insertions < 1:
        raise InputError(f"--insertions={FLAGS.insertions}: give at least 1")
    noisy, per_step = _VARIANTS[FLAGS.gc_s]
    return auditing.Setting(
        model=FLAGS.model,
        adversary=FLAGS.adversary,
        gc_s_noisy=noisy,
        gc_s_per_step=per_step,
        gc_s_simulations=FLAGS.simulations,
        dimension=FLAGS.dimension,
        learning_rate=task.learning_rate if FLAGS.learning_rate is None else FLAGS.learning_rate,
        clipping_norm=FLAGS.clipping_norm,
        noise_multiplier=FLAGS.noise_multiplier,
        batch_size=task.batch_size if FLAGS.batch_size is None else FLAGS.batch_size,
        steps=FLAGS.insertions * max(FLAGS.k, 1) if FLAGS.steps is None else FLAGS.steps,
        periodicity=FLAGS.k,
        optimizer=FLAGS.optimizer,
        clipping=task.clipping[0] if FLAGS.clipping is None else FLAGS.clipping,
        precision=FLAGS.precision,
        unknown_initialisation=FLAGS.unknown_initialisation,
        seed=FLAGS.seed,
    )


def _join(processes: Any) -> None:
    """Joins the processes that the flags name; without them this one is alone."""
    timeout = FLAGS.join_timeout
    if not 0 < timeout <= 3600:
        raise InputError(f"--join_timeout={timeout}: give more than 0, at most 3600 seconds")
    named = (FLAGS.coordinator, FLAGS.processes, FLAGS.process)
    if named == (None, None, None):
        if FLAGS.distributed:
            processes.join_cluster(timeout)
        return
    if FLAGS.distributed:
        raise InputError("--distributed finds out what --coordinator, --processes and --process say: drop it")
    if None in named:
        raise InputError("--coordinator, --processes and --process go together: give all three")
    processes.join(*named, timeout)


def _summary(setting, trained, source: str) -> str:
    """What was trained, how fast and in how much memory."""
    from audit.mechanism import ensemble

    line = f"{FLAGS.runs} models x {setting.steps} steps x batch {setting.batch_size}, data: {source}"
    if not trained.trained_runs:
        return f"{line}; all in the store already"
    per_step = trained.seconds / trained.model_steps
    return (
        f"{line}; trained {trained.trained_runs} in {trained.seconds:.1f} s "
        f"({per_step * 1e6:.1f} us a model-step, chunks of {trained.chunk}, "
        f"peak memory {ensemble.peak_memory() / 1e6:,.0f} MB)"
    )


if __name__ == "__main__":
    cli.run(main)
