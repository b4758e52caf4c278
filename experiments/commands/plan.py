"""Say what an audit will show, and how long it will take.

    ./run.sh plan --epsilon=8 --runs=1000                if the truth is epsilon = 8
    ./run.sh plan --tightness=0.9                        at the accountant's epsilon; runs for 90% of it
    ./run.sh plan --model=convnet --k=5 --runs=5000      another audit's time
    ./run.sh plan --bug=0.9,0.5                          how soon a claim is refuted with less noise

Bounds come from simulated audits whose scores are Gaussian, the time from a probe: steps of a chunk of the
audit itself, for about two seconds after compilation. Nothing is kept.
"""

from absl import flags
from tqdm import tqdm

from audit.calibration import calibration, laws, planning
from audit.claims import accounting
from audit.commands import cli
from audit.errors import require
from audit.laws import conversions
from audit.report.table import Column, Table
from audit.runtime.machine import cores
from audit.settings.setting import Setting, validate
from models.catalogue import task

FIELDS = ("model", "periodicity", "insertions", "noise_multiplier", "batch_size", "canaries")
FLAGS = flags.FLAGS
# Without the time that is left: most of it goes to starting processes, which no bar foresees.
_COUNT_FORMAT = "{desc}: {n_fmt} of {total_fmt}"
_MANY = "over 1,000"  # in place of a number of runs that was not reached
_CANARIES = 64  # canaries a run for --bug, where --canaries sets none or one
_MAX_AUDITS = 20  # that are simulated with several canaries a run, which takes longer
flags.DEFINE_float(
    "epsilon", None, "The truth to be found; by default the accountant's upper bound."
)
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_float(
    "tightness", 0.9, "Also say how many runs prove this share of the truth on average."
)
flags.DEFINE_list(
    "bug",
    None,
    "Say alone how soon fresh directions refute the claim if noise is so many times the stated one: 0.9,0.5.",
)
cli.define_setting(names=FIELDS)
flags.DEFINE_integer("audits", 100, "Simulated audits.")
cli.define_levels()
cli.define_seed("Seed of the simulated audits.")
cli.define_sources()


def main() -> None:
    """Parses the flags, times the training, simulates audits, and prints what to expect of an audit.

    The forecast has the time of the training runs, the bounds on epsilon that they would show, and the number
    of runs that prove the share --tightness of the true epsilon. The truth is --epsilon, or by default the
    accountant's upper bound.

    With --bug it only prints after how many runs audits would refute the claim.
    """
    # The forecast is for GC-R, whose canaries are gradients along random coordinates.
    setting = cli.setting(FIELDS, adversary="gc_r")
    truth = _checked_truth()
    if FLAGS.bug is not None:
        _print_bugs(setting)
        return
    cli.prepare_jax()
    from experiments import forecast

    validate(setting, FLAGS.runs)
    dataset = task(setting.model).data.load(cli.sources())

    probe = forecast.probe(setting, dataset, FLAGS.runs)

    # What bounds would show, by simulated audits of a Gaussian mechanism that leaks the truth.
    mu = conversions.mu_from_epsilon(truth, FLAGS.delta)
    levels = (FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    mechanism = calibration.KnownMechanism(laws.GAUSSIAN, mu, FLAGS.runs, FLAGS.audits, *levels)
    if setting.canaries > 1:
        audits = min(FLAGS.audits, _MAX_AUDITS)
        mechanism = mechanism._replace(canaries=setting.canaries, audits=audits)
        mechanism = mechanism._replace(law=laws.COINS["independent"])
    with tqdm(
        total=mechanism.audits, desc="simulating audits", bar_format=_COUNT_FORMAT, leave=False
    ) as bar:
        bounds = calibration.calibrate(mechanism, cores(), bar.update)
    search = f"looking for the runs that prove {FLAGS.tightness:.0%} of it"
    with tqdm(desc=search, bar_format="{desc} ...", leave=False):
        runs_needed = planning.runs_needed(mechanism, FLAGS.tightness)

    steps = setting.schedule.steps
    need = f"over {planning.MAX_RUNS:,} runs"
    if runs_needed is not None:
        need = f"about {runs_needed:,} runs, {probe.show_time(runs_needed, steps)}"
    method = planning.planned_method(setting.canaries)
    print(forecast.show_bounds(bounds))
    print(f"\n{method}, on average {FLAGS.tightness:.0%} of the truth: {need}")
    print(f"{FLAGS.runs} runs of {steps} steps: {probe.show_time(FLAGS.runs, steps)}")
    step = f"a step takes {probe.model_step:.2g} s ({setting.model}, chunks of {probe.chunk})"
    print(f"{step}, compilation {probe.compilation:.0f} s")


def _print_bugs(setting: Setting) -> None:
    """Prints after how many training runs an audit refutes the claimed mu, for each factor in --bug.

    A factor is the real noise over the stated noise. The claim is the accountant's mu at the stated noise.
    The scores are simulated as those of ideal fresh directions: no model is trained.

    Args:
      setting: The setting, which has the number of canaries a run.
    """
    mu = accounting.mu_upper_bound(FLAGS.noise_multiplier, FLAGS.insertions)
    # Fresh directions are many in each run: where the setting has a single canary, _CANARIES stand in.
    canaries = setting.canaries if setting.canaries > 1 else _CANARIES
    rows = []
    for ratio in cli.numbers("bug"):
        rows.append(planning.runs_until_refuted(mu, ratio, canaries, FLAGS.confidence, FLAGS.seed))
    title = (
        f"training runs of {canaries} fresh directions until a claim of mu {mu:.4g} is refuted",
        "(ideal scores; leave-one-out costs a few percent of mu where canaries are many)",
    )
    # After how many runs half of the audits, and 9 of 10, refuted the claim; _MANY where they did not.
    columns = (
        Column(None, lambda row: f"{row.noise:g}", "noise / stated", width=14, left=True),
        Column(None, lambda row: row.median, "half of audits", "{:,}".format, 15, none=_MANY),
        Column(None, lambda row: row.most, "9 of 10", "{:,}".format, 12, none=_MANY),
    )
    print(Table(columns, rows, before=title, gap=" ").text())


def _checked_truth() -> float:
    """Returns --epsilon, or by default the accountant's; raises InputError for flags out of range."""
    cli.require_levels()
    # 2 runs in each world: the bounds choose a threshold on a part of them, and test it on the rest.
    require(4 <= FLAGS.runs <= 10**8, f"--runs={FLAGS.runs}: give 4 to 100,000,000")
    require(2 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 2 to 10,000,000")
    cli.require_seed()
    require(
        0 < FLAGS.tightness < 1, f"--tightness={FLAGS.tightness}: give more than 0, less than 1"
    )
    truth = FLAGS.epsilon
    if truth is None:
        truth = accounting.epsilon_upper_bound(
            FLAGS.noise_multiplier, FLAGS.insertions, FLAGS.delta
        )
    # Above 0, since the forecast has the number of runs that prove a share of it.
    require(1e-6 <= truth <= 500, f"epsilon is {truth:g}: give --epsilon, 1e-06 to 500")
    return float(truth)


if __name__ == "__main__":
    cli.run(main)
