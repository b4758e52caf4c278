"""Audit DP-SGD in the hidden-state threat model (the default).

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10
    ./run.sh audit --looks=500,1000,5000         bounds while runs are added

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was. The same
command, started again beside it or on another host that has the folder, takes a part of the work.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from audit.commands import cli
from audit.concluded import of_each_run, of_setting
from audit.errors import require
from audit.settings.adversaries import OneShotCanaries
from audit.settings.setting import MOST_RUNS, Setting, flat, summary
from experiments import engine_flags
from models.catalogue import task

if TYPE_CHECKING:
    from audit.statistics.conclusion import Conclusion
    from audit.storage.store import Store
    from audit.task import Dataset
    from audit.training import Trained
    from experiments.cells.engine import Trainer, TrainingEngine

FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_list("looks", None, "Runs at which to look, e.g. 500,1000,5000, in place of --runs.")
cli.define_setting()
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("chunk_size", 0, "Models trained at once; 0: as many as fit.")
cli.define_sources()
flags.DEFINE_string("weights", None, "Heads: the frozen body's .pth or .safetensors file.")
flags.DEFINE_integer("input_size", None, "Heads: side in pixels to which images are resized.")
flags.DEFINE_string("out", "results", "Folder for scores, results and figures.")
engine_flags.define_engine()
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")


class _Audited(NamedTuple):
    """What is audited, with so many runs, and who trains; `looks` is empty where none are declared."""

    setting: Setting
    dataset: "Dataset"
    runs: int
    looks: Sequence[int]
    trainer: "Trainer"


def main() -> None:
    """Parse, build, train, bound, store, print."""
    from audit.statistics import conversions

    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    setting, out = cli.setting(), cli.folder()
    with engine_flags.engine() as engine:
        audited, store, trained = _trained(setting, out, engine)
    _conclude(audited, store, trained)


def _trained(setting: Setting, out: Path, engine: "TrainingEngine") -> "tuple[_Audited, Store, Trained]":
    """What is audited, its store, and the training of what that lacked."""
    from audit.settings import build, stored
    from audit.storage import declared
    from experiments.cells.audits import recipe

    looks = _looks()
    runs = looks[-1] if looks else FLAGS.runs
    require(
        setting.canaries == 1 or not looks, "--looks goes with one canary a run: drop --looks or --canaries"
    )
    build.validate(setting, runs)
    chunk = f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk)
    named = cli.sources(weights=FLAGS.weights, input_size=FLAGS.input_size)
    dataset = task(setting.model).data.load(named)
    if setting.mechanism.clipping == "per_example":
        print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
    trainer = engine.trainer(recipe(setting, runs, dataset), dataset)
    store = stored.open_store(out, setting, dataset)
    declared.require_declared(store, looks)
    audited = _Audited(setting, dataset, runs, looks, trainer)
    trained = _train_to_looks(audited, store) if looks else _train(audited, store, runs)
    return audited, store, trained


def _looks() -> list[int]:
    """The runs at which the flags say to look, [] where they say none."""
    if FLAGS.looks is None:
        return []
    from audit.statistics.looks import require_schedule

    looks, runs = cli.whole_numbers("looks"), FLAGS["runs"]
    require_schedule(looks)
    last = not runs.present or runs.value == looks[-1]
    require(last, f"--runs={runs.value} is not the last of --looks={','.join(FLAGS.looks)}: drop --runs")
    return looks


def _train(audited: _Audited, store: "Store", added: int) -> "Trained":
    """Trains what the store lacks, in chunks as of so many runs."""
    from audit import progress, training
    from experiments.cells.engine import Wanted

    with progress.bar(training.lacking(store, audited.runs)) as line:
        return audited.trainer.train(Wanted(store, audited.runs, added, FLAGS.chunk_size, line))


def _train_to_looks(audited: _Audited, store: "Store") -> "Trained":
    """Trains to each look, and keeps and prints its bounds before it goes on."""
    from audit import training

    parts, before = [], 0
    for number, runs in enumerate(audited.looks, 1):
        until = audited._replace(runs=runs)
        parts.append(_train(until, store, runs - before))  # chunks are not wider than what is added
        _look(until, store, parts[-1], number)
        before = runs
    return training.together(parts)


def _look(audited: _Audited, store: "Store", trained: "Trained", number: int) -> None:
    """Keeps that a look is taken, and its bounds; prints them in a row."""
    from audit.report import bounds_table
    from audit.storage import declared, results

    conclusion = _concluded(audited, trained)
    if declared.take(store, audited.looks, number):
        results.keep_result(store, conclusion, **_about(audited, store))
    if not FLAGS.json:
        end = "\n\n" if number == len(audited.looks) else "\n"
        print(bounds_table.look_rows(conclusion), end=end, flush=True)


def _concluded(audited: _Audited, trained: "Trained") -> "Conclusion":
    """The conclusion from all runs, or from the looks so far."""
    return of_setting(trained.scores, audited.setting, FLAGS.delta, FLAGS.confidence, audited.looks)


def _about(audited: _Audited, store: "Store") -> dict[str, Any]:
    """What audit.json says beside the bounds."""
    return {
        "setting": flat(audited.setting),
        "runs": audited.runs,
        "provenance": audited.trainer.about(),
        "out": str(store.path),
    }


def _conclude(audited: _Audited, store: "Store", trained: "Trained") -> None:
    """Bounds, stores, prints."""
    from audit.report import audit_panels, bounds_table
    from audit.storage import results
    from audit.storage.files import CannotWriteError
    from audit.storage.store import RESULT

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
    from audit.report import one_run_table
    from audit.settings import build

    adversary = audited.setting.adversary
    if not isinstance(adversary, OneShotCanaries):
        return ""
    dimension = build.trainee(audited.setting.model, audited.dataset).model.n_parameters
    known = adversary.observe != "all"
    found = of_each_run(trained.scores, dimension, known, FLAGS.delta, FLAGS.confidence)
    return f"\n\n{one_run_table.over_runs(found)}"


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
