"""Measure every estimator on mechanisms whose mu is known.

./run.sh calibrate                          mu in 0, 0.25, 1, 1.77, 3.95; 2,000 audits each
./run.sh calibrate --mu=1 --audits=200      one mu, quickly
./run.sh calibrate --mechanism=laplace      where the curve is not Gaussian; with the curve test
./run.sh calibrate --canaries=32 --mu=1 --tie=equal --design=sets    many canaries a run
./run.sh calibrate --one_run=1000 --mu=0,1,4 --audits=200            one run alone
"""

import json
from typing import Any

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.machine import cores
from audit.settings.setting import require_runs
from audit.statistics import (
    calibration,
    conversions,
    many_calibration,
    one_run_bounds,
    one_run_calibration,
)
from audit.statistics.calibration import Calibration, KnownMechanism
from audit.statistics.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.statistics.known_laws import GAUSSIAN, LAWS, KnownLaw
from audit.statistics.many_calibration import TIES, ManyCalibration, ManyCanaries
from audit.statistics.one_run_calibration import LAWS as ONE_RUN_LAWS
from audit.statistics.one_run_calibration import OneRunCalibration, OneRunSetting
from audit.storage.results import with_former_names

FLAGS = flags.FLAGS
flags.DEFINE_list("mu", ["0", "0.25", "1", "1.77", "3.95"], "True mu of the Gaussian mechanisms.")
flags.DEFINE_list(
    "mechanism",
    None,
    f"Test the curve, too, of known mechanisms: {', '.join(LAWS)}; by default gaussian, untested.",
)
flags.DEFINE_list("runs", ["5000"], "Scores an audit, half of them in; with --canaries runs, some numbers.")
flags.DEFINE_integer("canaries", None, "Canaries a run; by default one, and other estimators.")
flags.DEFINE_list("tie", None, f"Of the canaries of a run: some of {', '.join(TIES)}; by default all.")
flags.DEFINE_list("design", None, "coins (by default), sets, or both.")
flags.DEFINE_integer("one_run", None, "Canaries of one run, for the bounds that need no other.")
flags.DEFINE_integer("audits", 2000, "Audits a mechanism.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("seed", 0, "Seed of the scores.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


MOST_PROCESSES = 1024


def main() -> None:
    """Parse, calibrate, print."""
    processes = cores() if FLAGS.processes is None else FLAGS.processes
    require(1 <= processes <= MOST_PROCESSES, f"--processes={processes}: give 1 to {MOST_PROCESSES:,}")
    require(1 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 1 to 10,000,000")
    runs = _runs()
    require(0 <= FLAGS.seed < 2**32, f"--seed={FLAGS.seed}: give 0 to 2^32 - 1")
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    if FLAGS.one_run is not None:
        _calibrate_one_run(_one_run_settings(), processes)
        return
    if FLAGS.canaries is not None:
        _calibrate_many(_many_settings(runs), processes)
        return
    require(FLAGS.tie is None and FLAGS.design is None, "--tie and --design go with --canaries: give it too")
    require(len(runs) == 1, f"--runs={','.join(FLAGS.runs)}: give one number, or --canaries too")
    settings = _settings(runs[0])
    rows: list[Calibration] = []
    with tqdm(total=FLAGS.audits * len(settings), unit="audits", desc="calibrating") as bar:
        for setting in settings:
            rows += calibration.calibrate(setting, processes, bar.update)
    table = _as_table if FLAGS.mechanism is None else _as_curve_table
    print(_as_json(rows) if FLAGS.json else table(rows))


def _runs() -> list[int]:
    """--runs' numbers, in range."""
    runs = cli.whole_numbers("runs")
    require(runs, "--runs is empty: give whole numbers, comma-separated")
    for number in runs:
        require_runs(number)
    return runs


def _many_settings(runs: list[int]) -> list[ManyCanaries]:
    """The audits with many canaries a run that flags name."""
    require(FLAGS.mechanism is None, "--canaries and --mechanism do not go together: drop one")
    require(1 <= FLAGS.canaries <= 10_000, f"--canaries={FLAGS.canaries}: give 1 to 10,000")
    ties, designs = FLAGS.tie or list(TIES), FLAGS.design or ["coins"]
    for flag, names, known in (("tie", ties, TIES), ("design", designs, ("coins", "sets"))):
        for name in names:
            require(name in known, f"--{flag}={name!r}: give some of {', '.join(known)}")
    levels = (FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    return [
        ManyCanaries(mu, n, FLAGS.canaries, TIES[tie], design == "coins", *levels)
        for design in designs
        for n in runs
        for tie in ties
        for mu in _mus()
    ]


def _calibrate_many(settings: list[ManyCanaries], processes: int) -> None:
    """Calibrates and prints."""
    rows: list[ManyCalibration] = []
    with tqdm(total=FLAGS.audits * len(settings), unit="audits", desc="calibrating") as bar:
        for setting in settings:
            rows += many_calibration.calibrate(setting, processes, bar.update)
    if FLAGS.json:
        print(json.dumps({"calibration": [_many_fields(row) for row in rows]}))
    else:
        print(_as_many_table(rows))


def _one_run_settings() -> list[OneRunSetting]:
    """The one-run audits that flags name."""
    for name in ("canaries", "mechanism", "tie", "design"):
        require(FLAGS[name].value is None, f"--one_run and --{name} do not go together: drop one")
    least, most = one_run_bounds.LEAST_COINS, one_run_bounds.MOST_COINS
    fits = least <= FLAGS.one_run <= most
    require(fits, f"--one_run={FLAGS.one_run}: give {least} to {most:,} canaries")
    levels = (FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    return [OneRunSetting(law, mu, FLAGS.one_run, *levels) for law in ONE_RUN_LAWS.values() for mu in _mus()]


def _calibrate_one_run(settings: list[OneRunSetting], processes: int) -> None:
    """Calibrates and prints."""
    rows: list[OneRunCalibration] = []
    with tqdm(total=FLAGS.audits * len(settings), unit="audits", desc="calibrating") as bar:
        for setting in settings:
            rows += one_run_calibration.calibrate(setting, processes, bar.update)
    if FLAGS.json:
        fields = [row._asdict() | {"setting": _one_run_fields(row.setting)} for row in rows]
        print(json.dumps({"calibration": fields}))
    else:
        print(_as_one_run_table(rows))


def _one_run_fields(setting: OneRunSetting) -> dict[str, Any]:
    """A setting's fields, its law by name."""
    return setting._asdict() | {"law": setting.law.name}


def _as_one_run_table(rows: list[OneRunCalibration]) -> str:
    """A row a setting and method."""
    error = 1 - FLAGS.confidence
    allowed = calibration.allowed_share(error, FLAGS.audits)
    lines = [
        f"{FLAGS.audits} audits of one run with {FLAGS.one_run} canaries; exceeding: share of audits with",
        f"epsilon above the truth at delta {FLAGS.delta:g} (* above {allowed:.1%}, reached once in",
        f"1,000 tables at error {error:.3g}); one_shot_jeffreys is the paper's, no bound",
        f"{'law':<11} {'mu':>5}  {'method':<17} {'exceeding':>9} "
        f"{'mean':>7} {'5%':>7} {'95%':>7} {'true':>7}",
    ]
    lines.append("-" * len(lines[-1]))
    for row in rows:
        exceeding = f"{row.exceeding:.1%}{'*' if row.exceeding > allowed else ' '}"
        lines.append(
            f"{row.setting.law.name:<11} {row.setting.mu:5.3g}  {row.method:<17} {exceeding:>9} "
            f"{row.mean_epsilon:7.3f} {row.low_epsilon:7.3f} {row.high_epsilon:7.3f} {row.true_epsilon:7.3f}"
        )
    return "\n".join(lines)


def _as_many_table(rows: list[ManyCalibration]) -> str:
    """A row a setting and method."""
    error = 1 - FLAGS.confidence
    allowed = calibration.allowed_share(error, FLAGS.audits)
    lines = [
        f"{FLAGS.audits} audits of runs with {FLAGS.canaries} canaries; exceeding: share of audits above the",
        f"truth (* above {allowed:.1%}, reached once in 1,000 tables at error {error:.3g});",
        "mean and true: of mu where the method bounds mu, else of epsilon",
        f"{'design':<6} {'runs':>5}  {'tie':<11} {'mu':>5}  {'method':<16} {'exceeding':>9}  {'mean':>7} "
        f"{'true':>7}",
    ]
    lines.append("-" * len(lines[-1]))
    for row in rows:
        setting, of_mu = row.setting, row.mean_mu is not None
        values = (row.mean_mu, row.true_mu) if of_mu else (row.mean_epsilon, row.true_epsilon)
        exceeding = f"{row.exceeding:.1%}{'*' if row.exceeding > allowed else ' '}"
        lines.append(
            f"{'coins' if setting.coins else 'sets':<6} {setting.runs:>5}  {setting.tie.name:<11} "
            f"{setting.mu:5.3g}  {row.method:<16} {exceeding:>9}  {values[0]:7.3f} {values[1]:7.3f}"
        )
    return "\n".join(lines)


def _many_fields(row: ManyCalibration) -> dict[str, Any]:
    """A row's fields."""
    setting = row.setting._asdict()
    design = "coins" if setting.pop("coins") else "sets"
    return row._asdict() | {"setting": setting | {"tie": row.setting.tie.name, "design": design}}


def _settings(runs: int) -> list[KnownMechanism]:
    """The mechanisms that --mechanism and --mu name."""
    levels = (runs, FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    mus = _mus()
    if FLAGS.mechanism is None:
        return [KnownMechanism(mu, *levels) for mu in mus]
    for name in FLAGS.mechanism:
        require(name in LAWS, f"--mechanism={name!r}: give some of {', '.join(LAWS)}")
    require(FLAGS.mechanism, f"--mechanism is empty: give some of {', '.join(LAWS)}")
    laws = [
        KnownLaw(LAWS[name], parameter)
        for name in FLAGS.mechanism
        for parameter in (mus if LAWS[name] is GAUSSIAN else LAWS[name].parameters)
    ]
    return [KnownMechanism(0.0, *levels, law) for law in laws]


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
        f"{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; a method that exceeds the truth with",
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


def _as_curve_table(rows: list[Calibration]) -> str:
    """A row a mechanism and method, with the curve test."""
    allowed = calibration.allowed_share(1 - FLAGS.confidence, FLAGS.audits)
    lines = [
        f"{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; exceeding: share of audits with",
        f"epsilon above the truth (* above {allowed:.1%}, which sampling error reaches once in",
        f"1,000 tables); fired: the curve test at {CURVE_LEVEL:g}; unsure: not fired, power below",
        f"{CURVE_POWER:g}; missed: exceeding, neither fired nor unsure; mean and true epsilon",
        f"{'mechanism':<21} {'method':<15} {'exceeding':>9} {'fired':>5} {'unsure':>6} {'missed':>6} "
        f"{'mean':>5} {'true':>5}",
    ]
    lines.append("-" * len(lines[-1]))
    for row in rows:
        mark = "*" if row.exceeding > allowed else " "
        lines.append(
            f"{row.setting.law!s:<21} {row.method:<15} {row.exceeding:8.1%}{mark} {row.fired:5.0%} "
            f"{row.unsure:6.0%} {row.missed:6.1%} {row.mean_epsilon:5.2f} {row.true_epsilon:5.2f}"
        )
    return "\n".join(lines)


def _as_json(rows: list[Calibration]) -> str:
    """One object: a list `calibration`."""
    return json.dumps({"calibration": with_former_names([_fields(row) for row in rows])})


def _fields(row: Calibration) -> dict[str, Any]:
    """A row's fields; those of a law where there is one, in place of mu."""
    setting = row.setting._asdict()
    law = setting.pop("law")
    fields = row._asdict() | {"setting": setting}
    curve = {name: fields.pop(name) for name in ("fired", "unsure", "missed")}
    if law is None:
        return fields
    del setting["mu"]
    fields["setting"] = {"mechanism": law.law.name, "parameter": law.parameter} | setting
    return fields | curve


if __name__ == "__main__":
    cli.run(main)
