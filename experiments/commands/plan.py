"""Predict the bounds of an audit.

    ./run.sh plan --epsilon=8 --runs=1000                if the true epsilon is 8
    ./run.sh plan --tightness=0.9                        runs needed to prove 90% of the upper bound
    ./run.sh plan --model=convnet --k=5 --runs=5000      a different audit

Bounds come from simulated audits with Gaussian scores.
"""

import sys
from collections.abc import Sequence

from absl import flags
from tqdm import tqdm

from audit.calibration import calibration, laws, planning
from audit.commands import cli
from audit.conclusions.concluded import make_claim
from audit.errors import require
from audit.laws import conversions
from audit.report.table import format_table
from audit.runtime.machine import cores
from audit.settings.setting import Setting, validate
from audit.written import show_level

FIELDS = ("model", "periodicity", "insertions", "noise_multiplier", "noise", "canaries")
FLAGS = flags.FLAGS
# We do not show the remaining time, because starting the processes takes longest.
_COUNT_FORMAT = "{desc}: {n_fmt} of {total_fmt}"
# Numbers of simulated audits. Audits with several canaries per run are slower.
_NUM_AUDITS = 100
_NUM_SLOW_AUDITS = 20
_SEED = 0  # for the simulated audits
flags.DEFINE_float("epsilon", None, "True epsilon. Default: the upper bound from accounting.")
# At least 4 runs: in each world, a bound needs one run to choose a threshold and another to test it.
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.", 4, 10**8)
flags.DEFINE_float("tightness", 0.9, "Find how many runs prove this fraction of the true epsilon.")
cli.define_setting(names=FIELDS)
cli.define_levels()


def main() -> None:
    """Prints the bounds that simulated audits prove if --epsilon is the true epsilon.

    It also prints how many runs the mean bound needs to reach --tightness times the true epsilon.
    """
    # Simulated scores do not depend on the adversary, and this one allows any number of canaries.
    setting = cli.setting(FIELDS, adversary="gc_r")
    level = cli.level()
    require(
        0 < FLAGS.tightness < 1, f"--tightness={FLAGS.tightness}: give a number between 0 and 1"
    )
    true_epsilon = _find_true_epsilon(setting)
    validate(setting, FLAGS.runs)

    law = laws.GAUSSIAN
    audits = _NUM_AUDITS
    if setting.canaries > 1:  # coin flips decide which are inserted
        law = laws.INDEPENDENT_COINS
        audits = _NUM_SLOW_AUDITS
    mechanism = calibration.KnownMechanism(
        law,
        mu=conversions.mu_from_epsilon(true_epsilon, level.delta),
        runs=FLAGS.runs,
        audits=audits,
        delta=level.delta,
        confidence=level.confidence,
        seed=_SEED,
        canaries=setting.canaries,
    )
    with tqdm(total=audits, desc="simulating audits", bar_format=_COUNT_FORMAT, leave=False) as bar:
        bounds = calibration.calibrate(mechanism, cores(), bar.update)
    print(f"finding how many runs prove {FLAGS.tightness:.0%} of it ...", file=sys.stderr)
    runs_needed = planning.runs_needed(mechanism, FLAGS.tightness)

    need = f"over {planning.MAX_RUNS:,} runs"
    if runs_needed is not None:  # None if MAX_RUNS runs are not enough
        need = f"about {runs_needed:,} runs"
    method = planning.planned_method(setting.canaries)
    print(show_bounds(bounds))
    print(f"\n{method}, on average {FLAGS.tightness:.0%} of the truth: {need}")


def show_bounds(bounds: Sequence[calibration.Calibration]) -> str:
    """Returns a table of an audit's simulated bounds: a row for each method, with its mean and quantiles."""
    setting = bounds[0].setting
    truth = bounds[0].true_epsilon
    records = [
        {
            "method": bound.method,
            "mean": f"{bound.mean_epsilon:.3f}",
            "5%": f"{bound.low_epsilon:.3f}",
            "95%": f"{bound.high_epsilon:.3f}",
            "of truth": f"{bound.mean_epsilon / truth:.0%}",
        }
        for bound in bounds
    ]
    canaries = ""
    if setting.canaries > 1:
        canaries = f" of {setting.canaries} canaries"
    before = (
        f"if epsilon is {truth:.3f} at delta {show_level(setting.delta)}, "
        f"{setting.runs} runs{canaries} show",
        f"over {setting.audits} simulated audits at confidence {show_level(setting.confidence)}:",
        "",
    )
    return format_table(records, right=("mean", "5%", "95%", "of truth"), before=before)


def _find_true_epsilon(setting: Setting) -> float:
    """Returns the true epsilon: --epsilon, or by default the accountant's epsilon at --delta.

    Raises InputError if the epsilon is out of range.
    """
    truth = FLAGS.epsilon
    if truth is None:
        truth = make_claim(setting).epsilon(FLAGS.delta)
    require(1e-6 <= truth <= 500, f"epsilon is {truth:g}: give --epsilon, 1e-06 to 500")
    return float(truth)


if __name__ == "__main__":
    cli.run(main)
