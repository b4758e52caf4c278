"""Audit DP-SGD in the hidden-state threat model (the default).

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10
    ./run.sh audit --looks=500,1000,5000         bounds while runs are added
    ./run.sh audit --adversary=sphere --canaries=auto --until=10   fresh directions, till that is proven

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was. The same
command, started again beside it or on another host that has the folder, takes a part of the work.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.settings.adversaries import OneShotCanaries
from audit.settings.setting import MOST_RUNS, Setting, flat, summary, validate
from experiments import engine_flags
from models.catalogue import task

if TYPE_CHECKING:
    from audit.statistics.conclusion import Conclusion
    from audit.storage.store import Scores, Store
    from audit.task import Dataset
    from audit.training import Trained
    from experiments.cells.work import Trainer

FLAGS = flags.FLAGS
_LOOK_SECONDS = 3.0
flags.DEFINE_integer(
    "runs",
    None,
    "Models to train, by default 5,000, half with the canary; with sphere 60, all with canaries.",
    1,
)
flags.DEFINE_list("looks", None, "Runs at which to look, e.g. 500,1000,5000, in place of --runs.")
flags.DEFINE_float("until", None, "sphere: stop as soon as this epsilon is proven.")
flags.DEFINE_float("minutes", None, "sphere: begin no further training after so many minutes.")
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
    """What is audited; `looks` is empty where none are declared, trainer None where nothing is missing."""

    setting: Setting
    dataset: "Dataset"
    runs: int
    looks: Sequence[int]
    trainer: "Trainer | None" = None

    @property
    def any_time(self) -> bool:
        """Whether what is proven holds whenever one stops."""
        return self.setting.adversary.any_time


class _Trained(NamedTuple):
    """All scores, and the training of those that were missing, if any were."""

    scores: "Scores"
    training: "Trained | None" = None


def main() -> None:
    """Parse, build, train, bound, store, print."""
    from audit.settings import stored
    from audit.statistics import conversions
    from audit.storage import results
    from experiments.cells.audits import concluded_runs, recipe

    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    setting, engines, out = cli.setting(), engine_flags.engine(), cli.folder()  # flags before data
    audited = _asked(setting)
    found = stored.find_store(out, audited.setting, audited.dataset)
    if found is not None and audited.any_time:
        held = min(found.runs_held(), audited.runs)
        proven = _first_proven(_concluded(audited, found, _Trained(found.load(held)))) if held else None
        audited = audited._replace(runs=proven or audited.runs)
    if found is not None and not (audited.looks or found.missing(audited.runs)) and concluded_runs(found):
        results.require_declared(found, [])
        _conclude(audited, found, _Trained(found.load(audited.runs)))
        return
    with engines as engine:
        trainer = engine.trainer(recipe(audited.setting, audited.runs, audited.dataset), audited.dataset)
        audited = audited._replace(trainer=trainer)
        store = stored.open_store(out, audited.setting, audited.dataset)
        results.require_declared(store, audited.looks)
        training = _way(audited)(audited, store)
    audited = audited._replace(runs=len(training.scores.scores))
    _conclude(audited, store, _Trained(training.scores, training))


def _way(audited: _Audited) -> "Callable[[_Audited, Store], Trained]":
    if audited.looks:
        return _train_to_looks
    return _train_until_proven if audited.any_time else _train


def _asked(setting: Setting) -> _Audited:
    looks = _looks()
    runs = looks[-1] if looks else FLAGS.runs or setting.adversary.usual_runs
    for name in ("until", "minutes"):
        given = FLAGS[name].value
        fits = given is None or (setting.adversary.any_time and 0 < given < math.inf)
        require(fits, f"--{name}={given}: give a number above 0, with --adversary=sphere")
    whenever = "bounds of fresh directions hold at any number of runs: drop --looks"
    require(not (looks and setting.adversary.any_time), whenever)
    require(
        setting.canaries == 1 or not looks, "--looks goes with one canary a run: drop --looks or --canaries"
    )
    validate(setting, runs, task(setting.model).clipping)
    chunk = f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk)
    named = cli.sources(weights=FLAGS.weights, input_size=FLAGS.input_size)
    dataset = task(setting.model).data.load(named)
    if setting.mechanism.clipping == "per_example":
        print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
    return _Audited(setting, dataset, runs, looks)


def _looks() -> list[int]:
    if FLAGS.looks is None:
        return []
    from audit.statistics.conclusion import require_schedule

    looks, runs = cli.whole_numbers("looks"), FLAGS["runs"]
    require_schedule(looks)
    last = not runs.present or runs.value == looks[-1]
    require(last, f"--runs={runs.value} is not the last of --looks={','.join(FLAGS.looks)}: drop --runs")
    return looks


def _train(audited: _Audited, store: "Store", added: int | None = None) -> "Trained":
    from audit import progress, training
    from experiments.cells.work import Wanted

    assert audited.trainer is not None
    added = added or audited.runs
    with progress.bar(training.lacking(store, audited.runs)) as line:
        return audited.trainer.train(Wanted(store, audited.runs, added, FLAGS.chunk_size, line))


def _train_to_looks(audited: _Audited, store: "Store") -> "Trained":
    from audit import training

    parts, before = [], 0
    for number, runs in enumerate(audited.looks, 1):
        until = audited._replace(runs=runs)
        parts.append(_train(until, store, runs - before))  # chunks are not wider than what is added
        _look(until, store, _Trained(parts[-1].scores), number)
        before = runs
    return training.together(parts)


def _train_until_proven(audited: _Audited, store: "Store") -> "Trained":
    """In stages, until enough is proven or time is up; what is proven stands before the bar, up to date to a
    few seconds. The scores are those of the first runs that prove enough, whatever the stages were."""
    from audit import progress, training
    from experiments.cells.work import Wanted

    assert audited.trainer is not None
    stage = min(FLAGS.chunk_size or audited.trainer.stage(audited.runs), audited.runs)
    end = math.inf if FLAGS.minutes is None else time.monotonic() + 60 * FLAGS.minutes
    parts, runs, said, looked, proven = list["Trained"](), 0, "training", time.monotonic(), None
    with progress.bar(training.lacking(store, audited.runs), lambda: said) as line:
        while runs < audited.runs and not (proven or (parts and time.monotonic() > end)):
            runs = min(max(runs, store.runs_held()) + stage, audited.runs)
            parts.append(audited.trainer.train(Wanted(store, runs, stage, FLAGS.chunk_size or stage, line)))
            if FLAGS.until is None and time.monotonic() < looked + _LOOK_SECONDS:
                continue
            conclusion, looked = _concluded(audited, store, _Trained(parts[-1].scores)), time.monotonic()
            said = f"proven {conclusion.epsilon:.1f} of {conclusion.upper_bound or math.inf:.1f}"
            proven = _first_proven(conclusion)
    done = training.together(parts)
    return done._replace(scores=done.scores.of_first(proven or runs))


def _first_proven(conclusion: "Conclusion") -> int | None:
    """The first number of runs that proves as much as --until; None where none does."""
    enough = math.inf if FLAGS.until is None else FLAGS.until
    return next((runs for runs, proven in enumerate(conclusion.path, 1) if proven >= enough), None)


def _look(audited: _Audited, store: "Store", trained: _Trained, number: int) -> None:
    from audit.report import bounds_table
    from audit.storage import results

    conclusion = _concluded(audited, store, trained)
    if results.take_looks(store, audited.looks, number):
        results.keep_result(store, conclusion, **_about(audited, store))
    if not FLAGS.json:
        end = "\n\n" if number == len(audited.looks) else "\n"
        print(bounds_table.look_rows(conclusion), end=end, flush=True)


def _concluded(audited: _Audited, store: "Store", trained: _Trained) -> "Conclusion":
    from audit import lipschitz
    from audit.concluded import of_setting

    steps = lipschitz.of_data(store, audited.setting, audited.dataset)
    levels = FLAGS.delta, FLAGS.confidence
    return of_setting(trained.scores, audited.setting, *levels, audited.looks, steps=steps)


def _about(audited: _Audited, store: "Store") -> dict[str, Any]:
    return {
        "setting": flat(audited.setting),
        "runs": audited.runs,
        "provenance": _provenance(audited, store),
        "out": str(store.path),
    }


def _provenance(audited: _Audited, store: "Store") -> dict[str, Any]:
    from audit.storage.store import Kept

    if audited.trainer is not None:
        return audited.trainer.about()
    return (store.result() or Kept()).provenance


def _conclude(audited: _Audited, store: "Store", trained: _Trained) -> None:
    """Bounds; keeps them with their figure, where that does not stand already; prints."""
    from audit.report import bounds_table
    from audit.storage import files, results
    from audit.storage.store import FIGURE, RESULT

    conclusion = _concluded(audited, store, trained)
    made_from, names = results.source(store, conclusion), (RESULT, FIGURE)
    places, refused = f"\n\nfigure: {store.path / FIGURE}\nresult: {store.path / RESULT}", ""
    if results.stands(store, made_from, names):
        result = json.dumps(json.loads(files.read(store.path / RESULT) or b"{}"))
    else:
        from audit.report import audit_panels

        about = _about(audited, store)
        try:
            drawn = audit_panels.audit_figure(conclusion, summary(audited.setting, audited.runs))
            result, _ = results.keep(store, conclusion, drawn, **about)
            results.mark(store, made_from, names)
        except files.CannotWriteError as error:  # scores are there, so that all can be told
            result, refused = results.result_json(conclusion, **about), cli.one_line(str(error))
            places = ""
    if FLAGS.json:
        print(result)
    else:
        print(_summary(audited, trained), file=sys.stderr)
        print(bounds_table.bounds_table(conclusion) + _one_run_each(audited, trained) + places)
    print(refused, end="\n" if refused else "", file=sys.stderr)


def _one_run_each(audited: _Audited, trained: _Trained) -> str:
    from audit.concluded import of_each_run
    from audit.report import one_run_table
    from audit.settings import build

    adversary = audited.setting.adversary
    if not isinstance(adversary, OneShotCanaries):
        return ""
    dimension = build.trainee(audited.setting.model, audited.dataset).model.n_parameters
    known = adversary.observe != "all"
    found = of_each_run(trained.scores, dimension, known, FLAGS.delta, FLAGS.confidence)
    return f"\n\n{one_run_table.over_runs(found)}"


def _summary(audited: _Audited, trained: _Trained) -> str:
    steps, batch_size = audited.setting.schedule.steps, audited.setting.mechanism.batch_size
    data = f"{task(audited.setting.model).data.label} ({audited.dataset.source})"
    line = f"{audited.runs} models x {steps} steps x batch {batch_size}, data: {data}"
    done = trained.training
    if done is None or not done.trained_runs:
        return f"{line}; all in the store already"
    from audit.mechanism import ensemble

    per_step = done.seconds / done.model_steps
    return (
        f"{line}; trained {done.trained_runs} in {done.seconds:.1f} s "
        f"({per_step * 1e6:.1f} us a model-step, chunks of {done.chunk}, "
        f"peak memory {ensemble.peak_memory() / 1e6:,.0f} MB)"
    )


if __name__ == "__main__":
    cli.run(main)
