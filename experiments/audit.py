"""Audit DP-SGD in the hidden-state threat model (the default).

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was.
"""

import sys
from typing import TYPE_CHECKING

from absl import flags

from audit.errors import InputError, require
from audit.statistics import conversions
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import conclude
from audit.storage import results
from audit.storage.files import CannotWriteError
from audit.storage.store import RESULT, Store
from experiments import cli
from experiments.settings.setting import MOST_RUNS, Setting, flat
from experiments.settings.tasks import task
from models.data.base import Dataset

if TYPE_CHECKING:
    from audit.training import Trained

FIELDS = (
    *("model", "adversary", "gc_s", "simulations", "dimension", "periodicity", "insertions", "steps"),
    *("learning_rate", "clipping_norm", "noise_multiplier", "batch_size", "optimizer", "clipping"),
    *("precision", "unknown_initialisation", "seed"),
)
FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
cli.define_setting(FIELDS)
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("chunk_size", 0, "Models trained at once; 0: as many as fit.")
cli.define_sources()
flags.DEFINE_string("weights", None, "Heads: the frozen body's .pth or .safetensors file.")
flags.DEFINE_integer("input_size", None, "Heads: side in pixels to which images are resized.")
flags.DEFINE_string("out", "results", "Folder for scores, results and figures.")
flags.DEFINE_string("coordinator", None, "Several processes: host:port where process 0 listens.")
flags.DEFINE_integer("processes", None, "Several processes: how many.")
flags.DEFINE_integer("process", None, "Several processes: this one's number, from 0.")
flags.DEFINE_bool("distributed", False, "Several processes, as SLURM, Open MPI or Kubernetes say.")
flags.DEFINE_float("join_timeout", 60, "Seconds in which all processes must have come.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")


def main() -> None:
    """Parse, build, train, bound, store, print."""
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    setting, out = cli.setting(FIELDS), cli.folder()
    cli.prepare_jax(joins=True)
    from audit import processes, training
    from experiments.cells import progress
    from experiments.settings import build, devices, stored

    build.validate(setting, FLAGS.runs)
    chunk = f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk)
    _join()
    devices.require_devices()
    with processes.failing_together():
        named = cli.sources(weights=FLAGS.weights, input_size=FLAGS.input_size)
        dataset = task(setting.model).data.load(named)
        processes.require_same(f"{setting} {dataset.checksum} {FLAGS.runs} {FLAGS.chunk_size}")
        first = processes.is_first()
        if setting.mechanism.clipping == "per_example" and first:
            print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
        played, elsewhere = build.build(setting, dataset), training.Elsewhere()
        store = stored.open_store(out, setting, dataset) if first else elsewhere
        with progress.bar(training.lacking(store, FLAGS.runs)) as line:
            trained = training.train(played, store, FLAGS.runs, FLAGS.chunk_size, progress=line)
    if isinstance(store, Store):  # process 0 goes on
        _conclude(setting, dataset, store, trained)


def _conclude(setting: Setting, dataset: Dataset, store: Store, trained: "Trained") -> None:
    """Bounds, stores, prints."""
    from experiments.plots import audit_panels, bounds_table
    from experiments.settings import build

    composition = Composition(setting.mechanism.noise_multiplier, setting.insertions)
    found = conclude(trained.scores.worlds(), composition, FLAGS.delta, FLAGS.confidence)
    conclusion = found.with_curve_test()
    about = {
        "setting": flat(setting),
        "runs": FLAGS.runs,
        "provenance": build.provenance(dataset),
        "out": str(store.path),
    }
    places, refused = "", ""
    try:
        result, figure = results.keep(store, conclusion, audit_panels.audit_figure(conclusion), **about)
        places = f"\n\nfigure: {figure}\nresult: {store.path / RESULT}"
    except CannotWriteError as error:  # scores are there, so that all can be told
        result, refused = results.result_json(conclusion, **about), cli.one_line(str(error))
    if FLAGS.json:
        print(result)
    else:
        print(_summary(setting, trained, dataset.source), file=sys.stderr)
        print(bounds_table.bounds_table(conclusion) + places)
    print(refused, end="\n" if refused else "", file=sys.stderr)


def _join() -> None:
    """Joins the processes that the flags name; without them this one is alone."""
    from audit import processes

    timeout = FLAGS.join_timeout
    require(0 < timeout <= 3600, f"`join_timeout={timeout}`: give more than 0, at most 3600 seconds")
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


def _summary(setting: Setting, trained: "Trained", source: str) -> str:
    """A line on the training: how many models, how fast, in how much memory."""
    from audit.mechanism import ensemble

    steps, batch_size = setting.schedule.steps, setting.mechanism.batch_size
    line = f"{FLAGS.runs} models x {steps} steps x batch {batch_size}, data: {source}"
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
