"""Audit DP-SGD in the hidden-state threat model.

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        another adversary, inserted every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10
    ./run.sh audit --looks=500,1000,5000         bounds while runs are added
    ./run.sh audit --vary=k=1,5,25 --vary=noise_multiplier=1,4   a grid: a table and a heat map
    ./run.sh audit --adversary=sphere --canaries=auto --until=10   fresh directions, till that is proven

Trained runs are kept under --out and never trained twice; an interrupted audit goes on where it was. The same
command, started again beside it or on another host that has the folder, takes a part of the work.
"""

import math
import sys
from typing import TYPE_CHECKING

from absl import flags

from audit.adversaries.cosines import OneShotCanaries
from audit.claims.measured import MEASURED, UNMEASURED
from audit.commands import cli
from audit.errors import InputError, require
from audit.methods.level import Level
from audit.settings.setting import MOST_RUNS, Setting, require_accounted, validate
from audit.values import plain_digits
from experiments.commands import engine_flags, grid_flags
from models.catalogue import task

if TYPE_CHECKING:
    from audit.conclusions.conclusion import Conclusion
    from experiments.cells.auditing import AuditRequest, FinishedAudit, Until

FLAGS = flags.FLAGS
flags.DEFINE_integer(
    "runs",
    None,
    "Models to train, by default 5,000, half with the canary; with sphere 60, all with canaries.",
    1,
)
flags.DEFINE_list("looks", None, "Runs at which to look, e.g. 500,1000,5000, in place of --runs.")
flags.DEFINE_string(
    "until",
    None,
    "sphere: stop as soon as this is proven: an epsilon (10), a multiple of the claim (0.9x), or refuted.",
)
flags.DEFINE_float("minutes", None, "sphere: begin no further training after so many minutes.")
flags.DEFINE_enum(
    "lipschitz",
    None,
    [MEASURED, UNMEASURED],
    "measured: bound the last model by how much steps expand along rehearsed runs, which is the default of "
    "smooth models at k > 1; none: do not.",
)
flags.DEFINE_integer(
    "rehearsals", None, "measured: rehearsed runs, by default 4, or 2 of a large model."
)
cli.define_setting()
cli.define_levels()
flags.DEFINE_integer("chunk_size", 0, "Models trained at once; 0: as many as fit.")
cli.define_sources()
cli.define_out("Folder for scores, results and figures.")
engine_flags.define_engine()
cli.define_json()
grid_flags.define_vary()


def main() -> None:
    """Audits the setting, or with --vary the grid of settings, that the flags describe.

    Models that the store lacks are trained; the conclusion from all models is printed.
    """
    if FLAGS.vary:
        grid_flags.run(FLAGS.runs)
        return
    require(FLAGS.heat_map is None, "--heat_map goes with --vary: give both")
    run(cli.setting(), FLAGS.runs, _parse_until(FLAGS.until))


def run(setting: Setting, runs: int | None, until: "Until | None") -> None:
    """Audits a setting: trains the models that the store lacks, and prints and files the conclusion.

    Everything else comes from flags: delta and confidence, the data, the engine, and the looks, which are
    numbers of runs after which bounds are printed, too.

    Args:
      setting: The setting.
      runs: The number of models to train; None for the number that is usual for the adversary.
      until: The condition on what is proven under which training stops early; None for no such condition.
    """
    # All flags are checked before data are loaded, which takes long.
    cli.require_levels()
    engines = engine_flags.engine()
    out = cli.folder()
    request = _make_request(setting, runs, until)
    from audit.report import bounds_table
    from audit.storage.store import FIGURE, RESULT
    from experiments.cells import auditing

    finished = auditing.complete(request, out, engines, _show_look)
    conclusion = finished.conclude()
    written = auditing.write(finished, conclusion)
    if FLAGS.json:
        print(written.result)
    else:
        print(_summarise(finished), file=sys.stderr)
        table = bounds_table.bounds_table(conclusion) + _each_run_alone(finished)
        if not written.refusal:
            folder = finished.store.path
            table += f"\n\nfigure: {folder / FIGURE}\nresult: {folder / RESULT}"
        print(table)
    # Reported last, so that it is seen, and as an error, so that programs notice it.
    require(not written.refusal, written.refusal)


def _parse_until(text: str | None) -> "Until | None":
    """Returns the condition under which training stops early, from the text of --until; None for None.

    The text is "refuted", an epsilon such as "10", or a multiple of the claimed epsilon such as "0.9x".
    Raises InputError for any other text.
    """
    if text is None:
        return None
    from experiments.cells import auditing

    if text == "refuted":
        return auditing.until_refuted
    is_multiple = text.endswith("x")
    message = (
        f"--until={text}: give an epsilon above 0, a multiple of the claim as 0.9x, or refuted"
    )
    try:
        value = float(plain_digits(text.removesuffix("x")))
    except ValueError:
        raise InputError(message) from None
    require(0 < value < math.inf, message)
    if is_multiple:
        return auditing.until_multiple(value)
    return auditing.until_epsilon(value)


def _make_request(setting: Setting, runs: int | None, until: "Until | None") -> "AuditRequest":
    """Checks all flags of an audit, loads its data, and returns both as one request.

    Args:
      setting: The setting that is audited.
      runs: The number of models to train; None for the last look, or else the adversary's usual number.
      until: The condition on what is proven under which training stops early, or None.

    Raises:
      InputError: Flags do not go together, or are out of range.
    """
    looks = _declared_looks()
    if looks:
        runs = looks[-1]
    elif runs is None:
        runs = setting.adversary.usual_runs
    any_time = setting.adversary.any_time

    # Training may stop early only where bounds hold at any number of runs: where canaries are drawn afresh.
    minutes = FLAGS.minutes
    minutes_fit = minutes is None or (any_time and 0 < minutes < math.inf)
    afresh = "with --adversary=sphere, examples or --afresh"
    require(minutes_fit, f"--minutes={minutes}: give a number above 0, {afresh}")
    require(any_time or until is None, f"--until goes {afresh}: drop it")
    require(
        not (looks and any_time),
        "bounds of canaries that are drawn afresh hold at any number of runs: drop --looks",
    )
    # Bounds at declared looks exist for a single canary a run.
    one_canary_message = "--looks goes with one canary a run: drop --looks or --canaries"
    require(setting.canaries == 1 or not looks, one_canary_message)
    validate(setting, runs)
    require_accounted(setting, FLAGS.delta)
    chunk_message = (
        f"--chunk_size={FLAGS.chunk_size}: give 1 to {MOST_RUNS:,}, or 0: as many as fit"
    )
    require(0 <= FLAGS.chunk_size <= MOST_RUNS, chunk_message)

    from audit.conclusions.rehearsals import count_rehearsals  # loads SciPy

    # A bound on what the last model leaks may need a measurement, along some training runs, of how much a
    # step expands the distance between two models. This is their number; None for no measurement.
    runs_rehearsed = count_rehearsals(setting, FLAGS.lipschitz, FLAGS.rehearsals)

    sources = cli.sources()
    dataset = task(setting.model).data.load(sources)
    from experiments.cells.auditing import AuditRequest

    levels = Level(FLAGS.delta, FLAGS.confidence)
    return AuditRequest(
        setting,
        dataset,
        runs,
        looks,
        levels,
        chunk_size=FLAGS.chunk_size,
        until=until,
        minutes=FLAGS.minutes,
        rehearsals=runs_rehearsed,
    )


def _declared_looks() -> list[int]:
    """Returns the numbers of runs that --looks declares, in increasing order; [] without the flag.

    A look is a number of runs after which bounds are computed. Raises InputError for numbers that do not
    increase or begin below 2, and for a --runs that is not the last of them.
    """
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


def _show_look(conclusion: "Conclusion", number: int) -> None:
    """Prints the bounds at a declared look, as rows of a table that grows; prints nothing with --json.

    Args:
      conclusion: The conclusion from the runs so far.
      number: The number of the look, from 1; the last is followed by an empty line.
    """
    from audit.report import bounds_table

    if FLAGS.json:
        return
    end = "\n"
    if number == len(FLAGS.looks):
        end = "\n\n"
    print(bounds_table.look_rows(conclusion), end=end, flush=True)


def _each_run_alone(finished: "FinishedAudit") -> str:
    """Returns a table of what each run shows by itself, after an empty line; "" where there is no such table.

    Only the one-shot adversary has such a table: its runs have many canaries each. Where they have too few to
    be concluded alone, a line says so in place of the table. Where this adversary puts all canaries in, there
    is a single run, which the table of bounds shows already.
    """
    from audit.conclusions.concluded import conclude_each_run, explain_too_few_canaries
    from audit.report import federated_table
    from audit.settings import build

    setting, dataset, *_ = finished.request
    adversary = setting.adversary
    if not isinstance(adversary, OneShotCanaries) or adversary.all_in:
        return ""
    sees_final_model = adversary.observe != "all"
    too_few = explain_too_few_canaries(finished.scores, sees_final_model)
    if too_few:
        return f"\n\nno table of each run alone: {too_few}"
    dimension = build.trainee(setting.model, dataset).model.n_parameters
    conclusions = conclude_each_run(
        finished.scores, dimension, sees_final_model, finished.request.levels
    )
    return f"\n\n{federated_table.over_runs(conclusions)}"


def _summarise(finished: "FinishedAudit") -> str:
    """Returns a line on the training: models, steps and data, and what training took in this process.

    That is its time and its peak memory. Where the store had all runs already, the line says so instead.
    """
    setting, dataset, runs, *_ = finished.request
    data = f"{task(setting.model).data.label} ({dataset.source})"
    training = f"{setting.schedule.steps} steps x batch {setting.mechanism.batch_size}"
    line = f"{runs} models x {training}, data: {data}"
    trained = finished.trained
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
    cli.run(main, keeps=True)
