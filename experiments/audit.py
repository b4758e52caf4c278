"""Audit DP-SGD in the hidden-state threat model (the default).

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10
    ./run.sh audit --looks=500,1000,5000         bounds while runs are added

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from audit.errors import InputError, require
from audit.statistics import conversions
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import Conclusion, conclude_design, conclude_looks
from audit.statistics.looks import require_schedule
from audit.storage import declared, results
from audit.storage.files import CannotWriteError
from audit.storage.store import RESULT, Store
from experiments import cli
from experiments.settings.adversaries import OneShotCanaries
from experiments.settings.setting import MOST_RUNS, Setting, flat, summary
from experiments.settings.tasks import task
from models.data.base import Dataset

if TYPE_CHECKING:
    from audit.game import Game
    from audit.training import Elsewhere, Trained

FIELDS = (
    *("model", "adversary", "gc_s", "simulations", "dimension", "periodicity", "insertions", "steps"),
    *("learning_rate", "clipping_norm", "noise_multiplier", "batch_size", "optimizer", "clipping"),
    *("precision", "unknown_initialisation", "seed", "canaries", "sampling_rate", "repetitions"),
    *("cots_score", "observe", "loss_score", "poison_mean"),
    *("first_direction", "end_direction", "poison_scale", "poison_label"),
)
FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_list("looks", None, "Runs at which to look, e.g. 500,1000,5000, in place of --runs.")
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


class _Audited(NamedTuple):
    """What is audited, with so many runs; `looks` is empty where none are declared."""

    setting: Setting
    dataset: Dataset
    runs: int
    looks: Sequence[int]


def main() -> None:
    """Parse, build, train, bound, store, print."""
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    setting, out = cli.setting(FIELDS), cli.folder()
    cli.prepare_jax(joins=True)
    from audit import processes, training
    from experiments.settings import build, devices, stored

    looks = _looks()
    runs = looks[-1] if looks else FLAGS.runs
    require(
        setting.canaries == 1 or not looks, "--looks goes with one canary a run: drop --looks or --canaries"
    )
    build.validate(setting, runs)
    chunk = f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk)
    _join()
    devices.require_devices()
    with processes.failing_together():
        named = cli.sources(weights=FLAGS.weights, input_size=FLAGS.input_size)
        dataset = task(setting.model).data.load(named)
        processes.require_same(f"{setting} {dataset.checksum} {looks or runs} {FLAGS.chunk_size}")
        first = processes.is_first()
        if setting.mechanism.clipping == "per_example" and first:
            print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
        played, elsewhere = build.build(setting, dataset), training.Elsewhere()
        store = stored.open_store(out, setting, dataset) if first else elsewhere
        audited = _Audited(setting, dataset, runs, looks)
        if isinstance(store, Store):
            declared.require_declared(store, looks)
        trained = _train_to_looks(audited, played, store) if looks else _train(played, store, runs)
    if isinstance(store, Store):  # process 0 goes on
        _conclude(audited, store, trained)


def _looks() -> list[int]:
    """The runs at which the flags say to look, [] where they say none."""
    if FLAGS.looks is None:
        return []
    looks, runs = cli.whole_numbers("looks"), FLAGS["runs"]
    require_schedule(looks)
    last = not runs.present or runs.value == looks[-1]
    require(last, f"--runs={runs.value} is not the last of --looks={','.join(FLAGS.looks)}: drop --runs")
    return looks


def _train(played: "Game", store: "Store | Elsewhere", runs: int, chunk: int | None = None) -> "Trained":
    """Trains what the store lacks of so many runs."""
    from audit import training
    from experiments.cells import progress

    chunk = FLAGS.chunk_size if chunk is None else chunk
    with progress.bar(training.lacking(store, runs)) as line:
        return training.train(played, store, runs, chunk, progress=line)


def _train_to_looks(audited: _Audited, played: "Game", store: "Store | Elsewhere") -> "Trained":
    """Trains to each look, and keeps and prints its bounds before it goes on."""
    from audit import training

    parts, before = [], 0
    for number, runs in enumerate(audited.looks, 1):
        chunk = training.agreed_chunk(played, runs - before, FLAGS.chunk_size)  # not wider than what is added
        parts.append(_train(played, store, runs, chunk))
        if isinstance(store, Store):
            _look(audited._replace(runs=runs), store, parts[-1], number)
        before = runs
    return training.together(parts)


def _look(audited: _Audited, store: Store, trained: "Trained", number: int) -> None:
    """Keeps that a look is taken, and its bounds; prints them in a row."""
    from experiments.plots import bounds_table

    conclusion = _concluded(audited, trained)
    if declared.take(store, audited.looks, number):
        results.keep_result(store, conclusion, **_about(audited, store))
    if not FLAGS.json:
        end = "\n\n" if number == len(audited.looks) else "\n"
        print(bounds_table.look_rows(conclusion), end=end, flush=True)


def _concluded(audited: _Audited, trained: "Trained") -> Conclusion:
    """The conclusion from all runs, or from the looks so far."""
    from experiments.plots.points import gaussian_reason

    composition = Composition(*audited.setting.composition)
    levels, scores = (composition, FLAGS.delta, FLAGS.confidence), trained.scores
    if not audited.looks:
        found = conclude_design(scores.design(), *levels)
    else:
        seen = {runs: scores.of_first(runs).worlds() for runs in audited.looks if runs <= audited.runs}
        found = conclude_looks(seen, audited.looks, *levels)
    return found.with_curve_test()._replace(reason=gaussian_reason(audited.setting))


def _about(audited: _Audited, store: Store) -> dict[str, Any]:
    """What audit.json says beside the bounds."""
    from experiments.settings import build

    return {
        "setting": flat(audited.setting),
        "runs": audited.runs,
        "provenance": build.provenance(audited.dataset),
        "out": str(store.path),
    }


def _conclude(audited: _Audited, store: Store, trained: "Trained") -> None:
    """Bounds, stores, prints."""
    from experiments.plots import audit_panels, bounds_table

    conclusion, about = _concluded(audited, trained), _about(audited, store)
    places, refused = "", ""
    try:
        drawn = audit_panels.audit_figure(conclusion, summary(audited.setting, audited.runs))
        result, figure = results.keep(store, conclusion, drawn, **about)
        places = f"\n\nfigure: {figure}\nresult: {store.path / RESULT}"
    except CannotWriteError as error:  # scores are there, so that all can be told
        result, refused = results.result_json(conclusion, **about), cli.one_line(str(error))
    if FLAGS.json:
        print(result)
    else:
        print(_summary(audited, trained), file=sys.stderr)
        print(bounds_table.bounds_table(conclusion) + _one_run_each(audited, trained) + places)
    print(refused, end="\n" if refused else "", file=sys.stderr)


def _one_run_each(audited: _Audited, trained: "Trained") -> str:
    """The one-shot estimates and bounds of each run, where canaries are one-shot's."""
    from experiments.plots import over_runs
    from experiments.settings import build

    adversary = audited.setting.adversary
    if not isinstance(adversary, OneShotCanaries):
        return ""
    dimension = build.trainee(audited.setting.model, audited.dataset).model.n_parameters
    known = adversary.observe != "all"
    found = over_runs.conclusions(trained.scores, dimension, known, FLAGS.delta, FLAGS.confidence)
    return f"\n\n{over_runs.over_runs(found)}"


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


def _summary(audited: _Audited, trained: "Trained") -> str:
    """A line on the training: how many models, how fast, in how much memory."""
    from audit.mechanism import ensemble

    steps, batch_size = audited.setting.schedule.steps, audited.setting.mechanism.batch_size
    data = f"{task(audited.setting.model).data.label} ({audited.dataset.source})"
    line = f"{audited.runs} models x {steps} steps x batch {batch_size}, data: {data}"
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
