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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.settings.adversaries import OneShotCanaries
from audit.settings.setting import MOST_RUNS, Setting, flat, summary, validate
from experiments import engine_flags
from models.catalogue import task

if TYPE_CHECKING:
    from audit.conclusions.conclusion import Conclusion
    from audit.storage.store import Scores, Store
    from audit.tasks.task import Dataset
    from audit.training.training import Trained
    from experiments.cells.work import Trainer

FLAGS = flags.FLAGS
_LOOK_SECONDS = 3.0  # between two conclusions while training, each of which takes a while
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
cli.define_levels()
flags.DEFINE_integer("chunk_size", 0, "Models trained at once; 0: as many as fit.")
cli.define_sources()
flags.DEFINE_string("weights", None, "Heads: the frozen body's .pth or .safetensors file.")
flags.DEFINE_integer("input_size", None, "Heads: side in pixels to which images are resized.")
cli.define_out("Folder for scores, results and figures.")
engine_flags.define_engine()
cli.define_json()


class _AuditRequest(NamedTuple):
    """What is audited.

    Attributes:
      setting: The training and its adversary.
      dataset: The data that it trains on.
      runs: Models to train, at most.
      looks: The declared numbers of runs at which to look; empty where none are declared.
      trainer: What trains the models; None where the store has them all.
    """

    setting: Setting
    dataset: "Dataset"
    runs: int
    looks: Sequence[int]
    trainer: "Trainer | None" = None

    @property
    def any_time(self) -> bool:
        """Whether what is proven holds whenever training stops."""
        return self.setting.adversary.any_time


class _AuditScores(NamedTuple):
    """All scores, and the training of those that the store had not yet, if there was any."""

    scores: "Scores"
    training: "Trained | None" = None


def main() -> None:
    """Parses the flags, trains the models that the store does not have, and prints what follows from all."""
    from audit.conclusions import results
    from audit.settings import stored
    from experiments.cells.audits import recipe

    cli.require_levels()
    # All flags are checked before data are loaded, which takes longer.
    setting = cli.setting()
    engines = engine_flags.engine()
    out = cli.folder()
    request = _make_request(setting)

    store = stored.find_store(out, request.setting, request.dataset)
    if store is not None:
        request = _stop_where_proven(request, store)
        if _is_done(request, store):
            results.require_declared(store, [])
            _conclude(request, store, _AuditScores(store.load(request.runs)))
            return

    with engines as engine:
        game_recipe = recipe(request.setting, request.runs, request.dataset)
        request = request._replace(trainer=engine.trainer(game_recipe, request.dataset))
        store = stored.open_store(out, request.setting, request.dataset)
        results.require_declared(store, request.looks)
        if request.looks:
            training = _train_to_looks(request, store)
        elif request.any_time:
            training = _train_until_proven(request, store)
        else:
            training = _train(request, store)
    request = request._replace(runs=len(training.scores.scores))
    _conclude(request, store, _AuditScores(training.scores, training))


def _stop_where_proven(request: _AuditRequest, store: "Store") -> _AuditRequest:
    """Returns the request with as many runs as it takes to prove --until, if the store has so many."""
    if not request.any_time:
        return request
    held = min(store.runs_held(), request.runs)
    if not held:
        return request
    conclusion = _draw_conclusion(request, store, _AuditScores(store.load(held)))
    proven_at = _first_proven(conclusion)
    return request._replace(runs=proven_at or request.runs)


def _is_done(request: _AuditRequest, store: "Store") -> bool:
    """Returns whether the store has all runs and a conclusion; a look is taken again in any case."""
    from experiments.cells.audits import concluded_runs

    if request.looks or store.missing(request.runs):
        return False
    return concluded_runs(store) > 0


def _make_request(setting: Setting) -> _AuditRequest:
    """Returns what the flags request, with its data; raises InputError for flags that do not go together."""
    looks = _declared_looks()
    runs_without_looks = FLAGS.runs or setting.adversary.usual_runs
    runs = looks[-1] if looks else runs_without_looks
    any_time = setting.adversary.any_time

    for name in ("until", "minutes"):
        value = FLAGS[name].value
        fits = value is None or (any_time and 0 < value < math.inf)
        require(fits, f"--{name}={value}: give a number above 0, with --adversary=sphere")
    require(
        not (looks and any_time),
        "bounds of fresh directions hold at any number of runs: drop --looks",
    )
    one_canary_message = "--looks goes with one canary a run: drop --looks or --canaries"
    require(setting.canaries == 1 or not looks, one_canary_message)
    validate(setting, runs, task(setting.model).clipping)
    chunk_message = (
        f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    )
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk_message)

    sources = cli.sources(weights=FLAGS.weights, input_size=FLAGS.input_size)
    dataset = task(setting.model).data.load(sources)
    if setting.mechanism.clipping == "per_example":
        print("clipping by per-example gradients: any model, but slow", file=sys.stderr)
    return _AuditRequest(setting, dataset, runs, looks)


def _declared_looks() -> list[int]:
    """Returns the numbers of runs that --looks declares, in order; [] without the flag."""
    if FLAGS.looks is None:
        return []
    from audit.conclusions.conclusion import require_schedule

    looks = cli.whole_numbers("looks")
    require_schedule(looks)
    runs = FLAGS["runs"]
    agrees = not runs.present or runs.value == looks[-1]
    require(
        agrees,
        f"--runs={runs.value} is not the last of --looks={','.join(FLAGS.looks)}: drop --runs",
    )
    return looks


def _train(request: _AuditRequest, store: "Store", added: int | None = None) -> "Trained":
    """Trains the missing runs under a bar; chunks are no wider than `added` runs, by default all."""
    from audit.runtime import progress
    from audit.training import training
    from experiments.cells.work import Wanted

    assert request.trainer is not None
    added = added or request.runs
    with progress.bar(training.count_missing(store, request.runs)) as bar:
        return request.trainer.train(Wanted(store, request.runs, added, FLAGS.chunk_size, bar))


def _train_to_looks(request: _AuditRequest, store: "Store") -> "Trained":
    """Trains from one declared look to the next, and prints the bounds at each."""
    from audit.training import training

    parts = []
    before = 0
    for number, runs in enumerate(request.looks, 1):
        stage = request._replace(runs=runs)
        part = _train(stage, store, runs - before)  # chunks are no wider than what is added
        parts.append(part)
        _look(stage, store, _AuditScores(part.scores), number)
        before = runs
    return training.merge(parts)


def _train_until_proven(request: _AuditRequest, store: "Store") -> "Trained":
    """Trains in stages, until --until is proven or the --minutes are up.

    The text before the bar says what is proven, up to date to a few seconds. The scores that it returns are
    those of the first runs that prove enough, whatever the stages were.
    """
    from audit.runtime import progress
    from audit.training import training
    from experiments.cells.work import Wanted

    assert request.trainer is not None
    stage = min(FLAGS.chunk_size or request.trainer.stage(request.runs), request.runs)
    deadline = math.inf
    if FLAGS.minutes is not None:
        deadline = time.monotonic() + 60 * FLAGS.minutes

    parts: list[Trained] = []
    runs = 0
    status = "training"
    last_look = time.monotonic()
    proven_at = None
    with progress.bar(training.count_missing(store, request.runs), lambda: status) as bar:
        while runs < request.runs and proven_at is None:
            if parts and time.monotonic() > deadline:
                break
            runs = min(max(runs, store.runs_held()) + stage, request.runs)
            parts.append(
                request.trainer.train(Wanted(store, runs, stage, FLAGS.chunk_size or stage, bar))
            )
            if FLAGS.until is None and time.monotonic() < last_look + _LOOK_SECONDS:
                continue
            conclusion = _draw_conclusion(request, store, _AuditScores(parts[-1].scores))
            last_look = time.monotonic()
            upper_bound = conclusion.upper_bound or math.inf
            status = f"proven {conclusion.epsilon:.1f} of {upper_bound:.1f}"
            proven_at = _first_proven(conclusion)

    trained = training.merge(parts)
    return trained._replace(scores=trained.scores.of_first(proven_at or runs))


def _first_proven(conclusion: "Conclusion") -> int | None:
    """Returns the first number of runs that proves as much as --until; None where none does."""
    enough = FLAGS.until
    if enough is None:
        enough = math.inf
    for runs, epsilon in enumerate(conclusion.path, 1):
        if epsilon >= enough:
            return runs
    return None


def _look(request: _AuditRequest, store: "Store", scores: _AuditScores, number: int) -> None:
    """Takes the declared look of that number, from 1: keeps its result and prints its bounds."""
    from audit.conclusions import results
    from audit.report import bounds_table

    conclusion = _draw_conclusion(request, store, scores)
    if results.take_looks(store, request.looks, number):
        results.keep_result(store, conclusion, **_circumstances(request, store))
    if FLAGS.json:
        return
    is_last = number == len(request.looks)
    end = "\n"
    if is_last:
        end = "\n\n"
    print(bounds_table.look_rows(conclusion), end=end, flush=True)


def _draw_conclusion(request: _AuditRequest, store: "Store", scores: _AuditScores) -> "Conclusion":
    """Returns what follows from the scores at the flags' delta and confidence."""
    from audit.conclusions import lipschitz
    from audit.conclusions.concluded import conclude_setting

    steps = lipschitz.of_data(store, request.setting, request.dataset)
    return conclude_setting(
        scores.scores, request.setting, FLAGS.delta, FLAGS.confidence, request.looks, steps=steps
    )


def _circumstances(request: _AuditRequest, store: "Store") -> dict[str, Any]:
    """Returns what a result says beside the bounds: setting, runs, what trained them, and where."""
    return {
        "setting": flat(request.setting),
        "runs": request.runs,
        "provenance": _provenance(request, store),
        "out": str(store.path),
    }


def _provenance(request: _AuditRequest, store: "Store") -> dict[str, Any]:
    """Returns the versions and devices of this training; where nothing was trained, those in the store."""
    from audit.storage.store import Kept

    if request.trainer is not None:
        return request.trainer.about()
    result = store.result() or Kept()
    return result.provenance


def _conclude(request: _AuditRequest, store: "Store", scores: _AuditScores) -> None:
    """Computes the bounds, writes them and their figure to the store, and prints them.

    Files that were made from the same scores, setting, levels and version are not made again.
    """
    from audit.conclusions import results
    from audit.report import bounds_table
    from audit.storage import files
    from audit.storage.store import FIGURE, RESULT

    conclusion = _draw_conclusion(request, store, scores)
    made_from = results.source(store, conclusion)
    names = (RESULT, FIGURE)
    places = f"\n\nfigure: {store.path / FIGURE}\nresult: {store.path / RESULT}"
    refusal = ""

    # Read the result where the files are there already; else make the files. Where these can't be written,
    # all bounds can be printed still, since the scores are there.
    if results.is_up_to_date(store, made_from, names):
        content = files.read(store.path / RESULT) or b"{}"
        result = json.dumps(json.loads(content))
    else:
        from audit.report import audit_panels

        circumstances = _circumstances(request, store)
        try:
            figure = audit_panels.audit_figure(conclusion, summary(request.setting, request.runs))
            result, _ = results.keep(store, conclusion, figure, **circumstances)
            results.mark(store, made_from, names)
        except files.CannotWriteError as error:
            result = results.result_json(conclusion, **circumstances)
            refusal = cli.one_line(str(error))
            places = ""

    # With --json the result alone; else a summary on stderr, and the table on stdout.
    if FLAGS.json:
        print(result)
    else:
        print(_summary(request, scores.training), file=sys.stderr)
        print(bounds_table.bounds_table(conclusion) + _each_run_alone(request, scores) + places)
    # Why nothing was written comes last, so that it is seen.
    if refusal:
        print(refusal, file=sys.stderr)


def _each_run_alone(request: _AuditRequest, scores: _AuditScores) -> str:
    """Returns a table of what each run of many canaries shows by itself; "" for other adversaries."""
    from audit.conclusions.concluded import conclude_each_run
    from audit.report import one_run_table
    from audit.settings import build

    adversary = request.setting.adversary
    if not isinstance(adversary, OneShotCanaries):
        return ""
    dimension = build.trainee(request.setting.model, request.dataset).model.n_parameters
    sees_final_model = adversary.observe != "all"
    conclusions = conclude_each_run(
        scores.scores, dimension, sees_final_model, FLAGS.delta, FLAGS.confidence
    )
    return f"\n\n{one_run_table.over_runs(conclusions)}"


def _summary(request: _AuditRequest, trained: "Trained | None") -> str:
    """Returns a line on what was trained: models, steps, data, and the time and memory that it took here."""
    steps = request.setting.schedule.steps
    batch_size = request.setting.mechanism.batch_size
    data = f"{task(request.setting.model).data.label} ({request.dataset.source})"
    line = f"{request.runs} models x {steps} steps x batch {batch_size}, data: {data}"
    if trained is None or not trained.trained_runs:
        return f"{line}; all in the store already"
    from audit.mechanism import ensemble

    seconds_per_step = trained.seconds / trained.model_steps
    return (
        f"{line}; trained {trained.trained_runs} in {trained.seconds:.1f} s "
        f"({seconds_per_step * 1e6:.1f} us a model-step, chunks of {trained.chunk}, "
        f"peak memory {ensemble.peak_memory() / 1e6:,.0f} MB)"
    )


if __name__ == "__main__":
    cli.run(main)
