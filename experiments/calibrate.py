"""Measure every estimator on mechanisms whose mu is known.

./run.sh calibrate                          mu in 0, 0.25, 1, 1.77, 3.95; 2,000 audits each
./run.sh calibrate --mu=1 --audits=200      one mu, quickly
"""

import json

from absl import flags
from tqdm import tqdm

from audit.errors import require
from audit.machine import cores
from audit.statistics import calibration, conversions
from audit.statistics.calibration import Calibration, KnownMechanism
from experiments import cli
from experiments.settings.setting import require_runs

FLAGS = flags.FLAGS
flags.DEFINE_list("mu", ["0", "0.25", "1", "1.77", "3.95"], "True mu of the audited mechanisms.")
flags.DEFINE_integer("runs", 5000, "Scores an audit, half of them in.")
flags.DEFINE_integer("audits", 2000, "Audits a mechanism.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("seed", 0, "Seed of the scores.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


def main() -> None:
    """Parse, calibrate, print."""
    processes = cores() if FLAGS.processes is None else FLAGS.processes
    require(processes >= 1, f"--processes={processes}: give at least 1")
    require(1 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 1 to 10,000,000")
    require_runs(FLAGS.runs)
    require(0 <= FLAGS.seed < 2**32, f"--seed={FLAGS.seed}: give 0 to 2^32 - 1")
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    settings = [
        KnownMechanism(mu, FLAGS.runs, FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
        for mu in _mus()
    ]
    rows: list[Calibration] = []
    with tqdm(total=FLAGS.audits * len(settings), unit="audits", desc="calibrating") as bar:
        for setting in settings:
            rows += calibration.calibrate(setting, processes, bar.update)
    print(_as_json(rows) if FLAGS.json else _as_table(rows))


def _mus() -> list[float]:
    """--mu's numbers, in range."""
    mus = cli.numbers("mu")
    require(mus, "--mu is empty: give numbers, comma-separated")
    for mu in mus:
        require(0 <= mu < 100, f"--mu={mu:g}: give 0 to 100")
    return mus


def _as_table(rows: list[Calibration]) -> str:
    """A row a mechanism and method."""
    error = 1 - FLAGS.confidence
    allowed = calibration.allowed_share(error, FLAGS.audits)
    lines = [
        f"{FLAGS.audits} audits of {FLAGS.runs} scores each; a method that exceeds the truth with",
        f"probability {error:.3g} does so in at most {allowed:.1%} of them (but once in 1,000 tables)",
        f"{'true mu':>7}  {'method':<16} {'exceeding':>9} {'mean mu':>8} {'epsilon: mean':>13} {'true':>8}",
    ]
    lines.append("-" * len(lines[2]))
    for row in rows:
        mu = "" if row.mean_mu is None else f"{row.mean_mu:.3f}"
        mark = "  too often" if row.exceeding > allowed else ""
        lines.append(
            f"{row.setting.mu:7.3g}  {row.method:<16} {row.exceeding:9.1%} {mu:>8} "
            f"{row.mean_epsilon:13.3f} {row.true_epsilon:8.3f}{mark}"
        )
    return "\n".join(lines)


def _as_json(rows: list[Calibration]) -> str:
    """One object: a list `calibration`."""
    fields = [row._asdict() | {"setting": row.setting._asdict()} for row in rows]
    return json.dumps({"calibration": fields})


if __name__ == "__main__":
    cli.run(main)
