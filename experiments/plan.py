"""Say what an audit will show, and how long it will take.

    ./run.sh plan --epsilon=8 --runs=1000                if the truth is epsilon = 8
    ./run.sh plan --tightness=0.9                        at the accountant's epsilon; runs for 90% of it
    ./run.sh plan --model=convnet --k=5 --runs=5000      another audit's time

Bounds come from simulated audits whose scores are Gaussian, the time from a probe: steps of a chunk of the
audit itself, for about two seconds after compilation. Nothing is kept.
"""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from tqdm import tqdm

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # audits are simulated a process a core

from audit.errors import require  # noqa: E402
from audit.statistics import accounting, calibration, conversions, estimate  # noqa: E402
from audit.statistics.calibration import Calibration  # noqa: E402
from experiments import cli  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_float("epsilon", None, "The truth to be found; by default the accountant's upper bound.")
flags.DEFINE_integer("runs", 5000, "Models to train, half with the canary.")
flags.DEFINE_float("tightness", 0.9, "Also say how many runs prove this share of the truth on average.")
flags.DEFINE_string("model", "fcnn", "A model of ./run.sh audit.")
flags.DEFINE_integer("k", 1, "Periodicity: the canary is inserted every k steps.")
flags.DEFINE_integer("insertions", 250, "Insertions; training takes insertions * k steps.")
flags.DEFINE_float("noise_multiplier", 4.0, "Noise multiplier sigma.")
flags.DEFINE_integer("batch_size", None, "Examples a mini-batch; by default the model's.")
flags.DEFINE_integer("audits", 100, "Simulated audits.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("seed", 0, "Seed of the simulated audits.")
flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")

_PROBE_SECONDS = 2.0
_SEARCH_SCORES, _SEARCH_AUDITS = 200_000, (8, 40)  # of a number of runs that is tried: fewer of many runs
_LEAST_RUNS, _MOST_RUNS = 40, 1_000_000
_PRECISION = 1.05  # of the runs that are needed


class Probe(NamedTuple):
    """What the probe measured: seconds a model-step, runs a chunk, seconds until all was compiled."""

    model_step: float
    chunk: int
    compilation: float


class Plan(NamedTuple):
    """What is to be expected; runs_needed is None where a million do not suffice."""

    upper_bound: float
    bounds: list[Calibration]
    runs_needed: int | None
    probe: Probe
    steps: int


def main() -> None:
    """Parse, simulate, probe, print."""
    upper, truth = _checked()
    cli.prepare_jax()
    from experiments.settings import build as auditing

    setting = _setting(auditing)
    auditing.validate(setting, FLAGS.runs)
    dataset = auditing.TASKS[setting.model].load(file=FLAGS.data_file, tfds_dir=FLAGS.tfds_dir)
    measured = probe(setting, dataset, FLAGS.runs)
    mu = conversions.mu_from_epsilon(truth, FLAGS.delta)
    levels = (FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    known = calibration.Setting(mu, FLAGS.runs, FLAGS.audits, *levels)
    with tqdm(total=FLAGS.audits, desc="simulating audits", unit="audits", leave=False) as bar:
        bounds = calibration.calibrate(known, len(os.sched_getaffinity(0)), bar.update)

    def tightness(runs: int) -> float:
        audits = int(np.clip(_SEARCH_SCORES // runs, *_SEARCH_AUDITS))
        return _mean_certified(known._replace(n_scores=runs, audits=audits)) / truth

    needed = runs_needed(tightness, FLAGS.tightness)
    plan = Plan(upper, bounds, needed, measured, setting.steps)
    print(_as_json(plan) if FLAGS.json else _as_text(plan))


def _checked() -> tuple[float, float]:
    """The accountant's epsilon and the truth; raises InputError for flags out of range."""
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    require(4 <= FLAGS.runs <= 10**8, f"--runs={FLAGS.runs}: give 4 to 100,000,000")
    require(FLAGS.audits >= 2, f"--audits={FLAGS.audits}: give at least 2")
    require(FLAGS.seed >= 0, f"--seed={FLAGS.seed}: give at least 0")
    require(0 < FLAGS.tightness < 1, f"--tightness={FLAGS.tightness}: give more than 0, less than 1")
    require(FLAGS.insertions >= 1, f"--insertions={FLAGS.insertions}: give at least 1")
    upper = accounting.epsilon_upper_bound(FLAGS.noise_multiplier, FLAGS.insertions, FLAGS.delta)
    truth = upper if FLAGS.epsilon is None else FLAGS.epsilon
    message = f"epsilon is {truth:g}: give --epsilon, more than 0 and at most 500"
    require(0 < truth <= 500, message)
    return upper, truth


def _setting(auditing: Any) -> Any:
    """The audit that is planned."""
    known = ", ".join(auditing.TASKS)
    require(FLAGS.model in auditing.TASKS, f"--model={FLAGS.model} is unknown: choose one of {known}")
    task = auditing.TASKS[FLAGS.model]
    return auditing.Setting(
        model=FLAGS.model,
        adversary="gc_r",
        learning_rate=task.learning_rate,
        noise_multiplier=FLAGS.noise_multiplier,
        batch_size=task.batch_size if FLAGS.batch_size is None else FLAGS.batch_size,
        steps=FLAGS.insertions * max(FLAGS.k, 1),
        periodicity=FLAGS.k,
        clipping=task.clipping[0],
    )


def probe(setting: Any, dataset: Any, runs: int) -> Probe:
    """Trains chunks of the audit's own size: one step first, then as many as take about a second."""
    from experiments.settings import build as auditing

    def table_of(steps: int) -> Any:
        return auditing.build(dataclasses.replace(setting, steps=steps, periodicity=1), dataset)

    chunk = auditing.agreed_chunk(table_of(1), runs, 0)
    first = _timed(table_of(1), chunk, 0.0)
    steps = int(min(max(_PROBE_SECONDS / 2 / (first.model_step * chunk), 1), setting.steps, 250))
    measured = _timed(table_of(steps), chunk, _PROBE_SECONDS)
    return measured._replace(compilation=first.compilation)


def _timed(table: Any, chunk: int, seconds: float) -> Probe:
    """Whole chunks for at least so long."""
    from audit import game

    marks: list[float] = []
    begin = time.perf_counter()
    chunks = game.play(table, [(0, 2**31)], chunk, lambda runs, steps: marks.append(time.perf_counter()))
    runs = 0
    while not runs or marks[-1] - marks[0] < seconds:
        runs += len(next(chunks).scores)
    model_steps = runs * len(table.schedule.mask)
    return Probe((marks[-1] - marks[0]) / model_steps, chunk, marks[0] - begin)


def _mean_certified(setting: calibration.Setting) -> float:
    """The certified bound on epsilon, on average over simulated audits."""
    rng = np.random.default_rng(setting.seed)
    half = setting.n_scores // 2
    worlds = ((rng.normal(setting.mu, 1, half), rng.normal(0, 1, half)) for _ in range(setting.audits))
    levels = (setting.delta, setting.confidence)
    return float(np.mean([estimate.certified(*both, *levels).epsilon for both in worlds]))


def runs_needed(tightness: Callable[[int], float], wanted: float) -> int | None:
    """The runs at which `tightness`, which grows with them, reaches what is wanted, to two digits; None
    where a million do not suffice.

    What is lacking falls about as 1 / sqrt(runs): that says where to look next between too few and enough.
    """
    low, high, runs = _LEAST_RUNS, math.inf, 1000
    while high > _PRECISION * low and low < _MOST_RUNS:
        reached = tightness(runs)
        low, high = (low, runs) if reached >= wanted else (runs, high)
        ahead = runs * ((1 - min(reached, 0.99)) / (1 - wanted)) ** 2
        between = min(max(ahead, 1.02 * low), high / 1.02) if high < math.inf else max(ahead, 2 * low)
        runs = round(min(between, _MOST_RUNS))
    if high == math.inf:
        return None
    unit = 10 ** max(len(str(high)) - 2, 0)
    return -(-int(high) // unit) * unit


def _as_text(plan: Plan) -> str:
    """In 80 columns."""
    bounds, measured = plan.bounds, plan.probe
    truth = bounds[0].true_epsilon
    lines = [
        f"if epsilon is {truth:.3f} at delta {FLAGS.delta:g} (the accountant's is {plan.upper_bound:.3f}),",
        f"{FLAGS.runs} runs show, over {FLAGS.audits} simulated audits at confidence {FLAGS.confidence:g}:",
        "",
        f"{'method':<16} {'mean':>8} {'5%':>8} {'95%':>8} {'of truth':>9}",
        "-" * 53,
    ]
    for row in bounds:
        share = row.mean_epsilon / truth
        values = f"{row.mean_epsilon:8.3f} {row.low_epsilon:8.3f} {row.high_epsilon:8.3f}"
        lines.append(f"{row.method:<16} {values} {share:>9.0%}")
    need = f"over {_MOST_RUNS:,}" if plan.runs_needed is None else f"about {plan.runs_needed:,}"
    per_run = measured.model_step * plan.steps
    lines += [
        "",
        f"certified, on average {FLAGS.tightness:.0%} of the truth: {need} runs",
        f"here a model-step takes {_step(measured.model_step)} ({FLAGS.model}, chunks of {measured.chunk})",
        f"{FLAGS.runs} runs of {plan.steps} steps: {_clock(FLAGS.runs * per_run)} and "
        f"{measured.compilation:.0f} s to compile",
    ]
    if plan.runs_needed is not None:
        lines.append(f"{plan.runs_needed} runs: {_clock(plan.runs_needed * per_run)}")
    return "\n".join(lines)


def _as_json(plan: Plan) -> str:
    """One object."""
    per_run = plan.probe.model_step * plan.steps
    needed = plan.runs_needed
    return json.dumps(
        {
            "epsilon": plan.bounds[0].true_epsilon,
            "upper_bound": plan.upper_bound if math.isfinite(plan.upper_bound) else None,
            "runs": FLAGS.runs,
            "bounds": [
                {
                    "method": row.method,
                    "mean": row.mean_epsilon,
                    "low": row.low_epsilon,
                    "high": row.high_epsilon,
                }
                for row in plan.bounds
            ],
            "tightness": FLAGS.tightness,
            "runs_needed": needed,
            "probe": plan.probe._asdict(),
            "seconds": FLAGS.runs * per_run,
            "seconds_needed": None if needed is None else needed * per_run,
        }
    )


def _step(seconds: float) -> str:
    """A model-step's time."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _clock(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


if __name__ == "__main__":
    cli.run(main)
