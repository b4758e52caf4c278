"""Audit DP-SGD in the hidden-state threat model.

    ./run.sh audit                               5,000 models on California Housing
    ./run.sh audit --adversary=gc_r --k=5        a different adversary, inserting every 5 steps
    ./run.sh audit --model=convnet               the ConvNet on CIFAR-10
    ./run.sh audit --vary=k=1,5,25 --vary=noise_multiplier=1,4   a grid: a table and a figure
    ./run.sh audit --adversary=sphere --canaries=auto --until=10   fresh directions, until epsilon >= 10

Trained runs are stored under --out, so an interrupted audit can be resumed.
"""

import math
import sys
from typing import TYPE_CHECKING

from absl import flags

from audit.claims.measured import MEASURED, UNMEASURED
from audit.commands import cli
from audit.errors import require
from audit.settings.setting import Setting, validate
from experiments.commands import grid_flags
from models.catalogue import task

if TYPE_CHECKING:
    from audit.training.driver import Finished, Until

FLAGS = flags.FLAGS
flags.DEFINE_integer(
    "runs",
    None,
    "Number of models to train. Default: 5,000, half with the canary; 60 for sphere, all with canaries.",
    1,
)
cli.define_optional(
    str,
    until="sphere: stop when the bound reaches an epsilon (10) or a multiple of the claim (0.9x), or when "
    "the claim is refuted (refuted).",
)
flags.DEFINE_enum(
    "lipschitz",
    None,
    [MEASURED, UNMEASURED],
    "measured: measure the Lipschitz constants of steps in rehearsal runs, to bound the leak of the last "
    "model (default for smooth models at k > 1); none: no such bound.",
)
cli.define_setting()
cli.define_levels()
cli.define_sources()
cli.define_out("Folder for scores, results and figures.")
grid_flags.define_engine()
cli.define_json()
flags.DEFINE_multi_string(
    "vary",
    [],
    "Audit all combinations of values: --vary=k=1,5,25 --vary=noise_multiplier=1,4",
)


def main() -> None:
    """Audits the setting given by the flags, or a grid of settings with --vary."""
    if FLAGS.vary:
        grid_flags.run(FLAGS.runs)
        return
    run(cli.setting(), FLAGS.runs, _parse_until(FLAGS.until))


def run(setting: Setting, runs: int | None, until: "Until | None") -> None:
    """Audits a setting: trains the missing models, and prints and stores the conclusion.

    `runs` is the number of models, or None for the adversary's default. `until` is the condition for stopping
    early, or None to train all models. The other parameters come from flags, which are checked before loading
    the data.
    """
    level = cli.level()
    engine = grid_flags.engine()  # starts when entered
    out = cli.folder()
    adversary = setting.adversary
    num_models = runs or adversary.usual_runs
    # If scores determine when to stop, tests must be sequential, which requires fresh canaries in each run.
    require(
        until is None or adversary.has_fresh_canaries,
        "--until requires --adversary=sphere, examples or --afresh: drop it",
    )
    validate(setting, num_models, level.delta)

    from audit.conclusions import lipschitz, results
    from audit.report import bounds_table
    from audit.storage.store import FIGURE, RESULT
    from audit.training import driver

    # Rehearsals are additional runs that measure the steps' Lipschitz constants.
    num_rehearsals = lipschitz.count_rehearsals(setting, FLAGS.lipschitz)
    dataset = task(setting.model).data.load(FLAGS.data)
    request = driver.make_request(setting, dataset, num_models, level, num_rehearsals, until)
    finished = driver.audit(request, out, engine)
    if FLAGS.json:
        print(results.result_json(finished.conclusion, **finished.circumstances()))
    else:
        print(_summarise(finished), file=sys.stderr)
        print(bounds_table.bounds_table(finished.conclusion))
    driver.keep(finished, figure=True)
    if not FLAGS.json:
        folder = finished.store.path
        print(f"\nfigure: {folder / FIGURE}\nresult: {folder / RESULT}")


def _parse_until(text: str | None) -> "Until | None":
    """Returns the early-stopping condition given by --until, or None if the flag is not set.

    `text` is "refuted", an epsilon such as "10", or a multiple of the claimed epsilon such as "0.9x".
    """
    if text is None:
        return None
    from audit.training import driver

    if text == "refuted":
        return driver.until_refuted
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = math.nan  # rejected below
    require(
        0 < value < math.inf,
        f"--until={text}: give an epsilon above 0, a multiple of the claim such as 0.9x, or refuted",
    )
    if text.endswith("x"):
        return driver.until_multiple(value)
    return driver.until_epsilon(value)


def _summarise(finished: "Finished") -> str:
    """Returns a one-line summary: the audit's models, steps and data, and the training time of new runs."""
    request = finished.request
    setting = request.setting
    data = f"{task(setting.model).data.label} ({request.dataset.source})"
    training = f"{setting.schedule.steps} steps x batch {setting.mechanism.batch_size}"
    line = f"{request.runs} models x {training}, data: {data}"
    trained = finished.trained
    if trained is None or trained.trained_runs == 0:
        return f"{line}; all already stored"
    return f"{line}; trained {trained.trained_runs} in {trained.seconds:.1f} s"


if __name__ == "__main__":
    cli.run(main)
