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
from audit.report.table import make_text_table
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
# A progress bar without the time left: most of it is the start of processes.
_COUNT_FORMAT = "{desc}: {n_fmt} of {total_fmt}"
_CANARIES = 64  # directions per run for --bug, unless --canaries is larger than 1
_AUDITS = 100  # simulated
_SLOW_AUDITS = 20  # simulated, with several canaries per run
_SEED = 0  # of the simulated audits
flags.DEFINE_float("epsilon", None, "The true epsilon. Default: the accountant's upper bound.")
# Bounds choose a threshold on one of the two runs in each world, and test it on the other.
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.", 4, 10**8)
flags.DEFINE_float("tightness", 0.9, "Find the runs that prove this fraction of the true epsilon.")
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
    truth = _find_true_epsilon(setting)
    if FLAGS.bug is not None:
        _print_bugs(setting)
        return
    cli.prepare_jax()
    from experiments import forecast

    validate(setting, FLAGS.runs)

    probe = forecast.probe(setting, task(setting.model).data.load(cli.sources()), FLAGS.runs)

    law = laws.GAUSSIAN
    audits = _AUDITS
    if setting.canaries > 1:
        law = laws.COINS["independent"]
        audits = _SLOW_AUDITS
    mechanism = calibration.KnownMechanism(
        law,
        mu=conversions.mu_from_epsilon(truth, FLAGS.delta),
        runs=FLAGS.runs,
        audits=audits,
        delta=FLAGS.delta,
        confidence=FLAGS.confidence,
        seed=_SEED,
        canaries=setting.canaries,
    )
    with tqdm(total=audits, desc="simulating audits", bar_format=_COUNT_FORMAT, leave=False) as bar:
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

    A factor is the real noise over the claimed noise. Scores of ideal fresh directions are simulated. A row
    has the numbers of runs after which 50% and 90% of the audits refuted the claim.
    """
    mu = make_claim(setting).gaussian_mu
    assert mu is not None  # this sampler knows its batches
    # Fresh directions need several canaries per run.
    canaries = setting.canaries if setting.canaries > 1 else _CANARIES
    records = []
    for factor in cli.numbers("bug"):
        needed = planning.runs_until_refuted(mu, factor, canaries, FLAGS.confidence, _SEED)
        record = {"noise / claimed": f"{needed.noise:g}"}
        for name, runs in (("half of audits", needed.median), ("9 of 10", needed.most)):
            record[name] = "over 1,000" if runs is None else f"{runs:,}"
        records.append(record)
    title = (
        f"training runs of {canaries} fresh directions until a claim of mu {mu:.4g} is rejected",
        "(ideal scores; leave-one-out costs a few percent of mu where canaries are many)",
    )
    print(make_text_table(records, right=("half of audits", "9 of 10"), before=title).text())


def _find_true_epsilon(setting: Setting) -> float:
    """Returns --epsilon, by default the accountant's; raises InputError for flags out of range."""
    cli.require_levels()
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
