"""Predict the bounds and the duration of an audit.

    ./run.sh plan --epsilon=8 --runs=1000                if the true epsilon is 8
    ./run.sh plan --tightness=0.9                        runs that prove 90% of the accountant's epsilon
    ./run.sh plan --model=convnet --k=5 --runs=5000      the duration of another audit
    ./run.sh plan --bug=0.9,0.5                          runs that reject a claim if noise is too small

Bounds come from simulated audits with Gaussian scores. The duration comes from a probe that trains for about
two seconds after compilation. Results are not stored.
"""

from absl import flags
from tqdm import tqdm

from audit.calibration import calibration, laws, planning
from audit.commands import cli
from audit.conclusions.concluded import make_claim
from audit.errors import require
from audit.laws import conversions
from audit.report.table import Column, Table
from audit.runtime.machine import cores
from audit.settings.setting import Setting, validate
from models.catalogue import task

FIELDS = (
    "model",
    "periodicity",
    "insertions",
    "noise_multiplier",
    "noise",
    "batch_size",
    "canaries",
)
FLAGS = flags.FLAGS
# Without the time left: starting processes takes most of it.
_COUNT_FORMAT = "{desc}: {n_fmt} of {total_fmt}"
_MANY = "over 1,000"  # shown if the search did not find a number of runs
_CANARIES = 64  # per run, for --bug with at most one canary in --canaries
_AUDITS = 100  # simulated
_SLOW_AUDITS = 20  # simulated, with several canaries per run
_SEED = 0  # of the simulated audits
flags.DEFINE_float("epsilon", None, "The true epsilon. Default: the accountant's upper bound.")
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_float("tightness", 0.9, "Find the runs that prove this share of the true epsilon.")
flags.DEFINE_list(
    "bug",
    None,
    "Only find the runs of fresh directions that reject the claim if the real noise is 0.9 or 0.5 of the "
    "claimed noise: 0.9,0.5.",
)
cli.define_setting(names=FIELDS)
cli.define_levels()
cli.define_sources()


def main() -> None:
    """Prints the training time and the bounds to expect, or with --bug the runs that refute a false claim."""
    # GC-R's canaries are gradients along random coordinates.
    setting = cli.setting(FIELDS, adversary="gc_r")
    truth = _checked_truth(setting)
    if FLAGS.bug is not None:
        _print_bugs(setting)
        return
    cli.prepare_jax()
    from experiments import forecast

    validate(setting, FLAGS.runs)

    probe = forecast.probe(setting, task(setting.model).data.load(cli.sources()), FLAGS.runs)

    mu = conversions.mu_from_epsilon(truth, FLAGS.delta)
    law = laws.GAUSSIAN
    audits = _AUDITS
    if setting.canaries > 1:
        law = laws.INDEPENDENT_COINS
        audits = _SLOW_AUDITS
    mechanism = calibration.KnownMechanism(
        law,
        mu,
        FLAGS.runs,
        audits,
        FLAGS.delta,
        FLAGS.confidence,
        _SEED,
        setting.canaries,
    )
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
    """Prints the number of training runs that refute the claimed mu, for each factor in --bug.

    A factor is the real noise over the claimed noise. Scores of ideal fresh directions are simulated.
    """
    mu = make_claim(setting).gaussian_mu
    assert mu is not None  # this sampler knows its batches
    # Fresh directions need several canaries per run.
    canaries = setting.canaries if setting.canaries > 1 else _CANARIES
    rows = []
    for ratio in cli.numbers("bug"):
        rows.append(planning.runs_until_refuted(mu, ratio, canaries, FLAGS.confidence, _SEED))
    title = (
        f"training runs of {canaries} fresh directions until a claim of mu {mu:.4g} is rejected",
        "(ideal scores; leave-one-out costs a few percent of mu where canaries are many)",
    )
    # The numbers of runs after which 50% and 90% of the audits refuted the claim.
    columns = (
        Column(None, lambda row: f"{row.noise:g}", "noise / stated", width=14, left=True),
        Column(None, lambda row: row.median, "half of audits", "{:,}".format, 15, none=_MANY),
        Column(None, lambda row: row.most, "9 of 10", "{:,}".format, 12, none=_MANY),
    )
    print(Table(columns, rows, before=title, gap=" ").text())


def _checked_truth(setting: Setting) -> float:
    """Returns --epsilon or the accountant's epsilon; raises InputError for flags out of range."""
    cli.require_levels()
    # 2 runs in each world, since bounds choose a threshold on one and test it on the other.
    require(4 <= FLAGS.runs <= 10**8, f"--runs={FLAGS.runs}: give 4 to 100,000,000")
    require(
        0 < FLAGS.tightness < 1, f"--tightness={FLAGS.tightness}: give more than 0, less than 1"
    )
    truth = FLAGS.epsilon
    if truth is None:
        truth = make_claim(setting).epsilon(FLAGS.delta)
    require(1e-6 <= truth <= 500, f"epsilon is {truth:g}: give --epsilon, 1e-06 to 500")
    return float(truth)


if __name__ == "__main__":
    cli.run(main)
