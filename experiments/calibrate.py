"""Measure every estimator on mechanisms whose mu is known.

./run.sh calibrate                          mu in 0, 0.25, 1, 1.77, 3.95; 2,000 audits each
./run.sh calibrate --mu=1 --audits=200      one mu, quickly
./run.sh calibrate --mechanism=laplace      where the curve is not Gaussian; with the curve test
./run.sh calibrate --canaries=32 --mu=1 --tie=equal --design=sets    many canaries a run
./run.sh calibrate --one_run=1000 --mu=0,1,4 --audits=200            one run alone
./run.sh calibrate --directions=64 --runs=1,10,60 --audits=200       uniform directions, the exact null
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.machine import cores
from audit.report.table import Column, Table, number
from audit.settings.setting import require_runs
from audit.statistics import (
    calibration,
    conversions,
    exact_null_calibration,
    many_calibration,
    one_run_bounds,
    one_run_calibration,
)
from audit.statistics.calibration import Calibration, KnownMechanism
from audit.statistics.exact_null_calibration import LAWS as DIRECTION_LAWS
from audit.statistics.exact_null_calibration import DirectionCalibration, DirectionSetting
from audit.statistics.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.statistics.known_laws import GAUSSIAN, LAWS, KnownLaw
from audit.statistics.many_calibration import TIES, ManyCalibration, ManyCanaries
from audit.statistics.one_run_calibration import LAWS as ONE_RUN_LAWS
from audit.statistics.one_run_calibration import OneRunCalibration, OneRunSetting

FLAGS = flags.FLAGS
flags.DEFINE_list("mu", ["0", "0.25", "1", "1.77", "3.95"], "True mu of the Gaussian mechanisms.")
flags.DEFINE_list(
    "mechanism",
    None,
    f"Test the curve, too, of known mechanisms: {', '.join(LAWS)}; by default gaussian, untested.",
)
flags.DEFINE_list("runs", ["5000"], "Scores an audit, half of them in; otherwise runs, some numbers.")
flags.DEFINE_integer("canaries", None, "Canaries a run; by default one, and other estimators.")
flags.DEFINE_list("tie", None, f"Of the canaries of a run: some of {', '.join(TIES)}; by default all.")
flags.DEFINE_list("design", None, "coins (by default), sets, or both.")
flags.DEFINE_integer("one_run", None, "Canaries of one run, for the bounds that need no other.")
flags.DEFINE_integer("directions", None, "Canaries a run that are uniform directions, all in: exact_null.")
flags.DEFINE_integer("dimension", 62_006, "Dimension of the directions.")
flags.DEFINE_integer("audits", 2000, "Audits a mechanism.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("seed", 0, "Seed of the scores.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")

MOST_PROCESSES = 1024


class _Kind(NamedTuple):
    """What is calibrated: mechanisms, how their audits are simulated, and a row for people and for JSON."""

    settings: Sequence[Any]
    calibrate: Callable[[Any, int, Callable[[int], object]], Sequence[Any]]
    table: Callable[[list[Any]], Table[Any]]
    fields: Callable[[Any], dict[str, Any]]


def main() -> None:
    """Parse, calibrate, print."""
    processes = cores() if FLAGS.processes is None else FLAGS.processes
    require(1 <= processes <= MOST_PROCESSES, f"--processes={processes}: give 1 to {MOST_PROCESSES:,}")
    require(1 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 1 to 10,000,000")
    runs = cli.whole_numbers("runs")
    require(runs, "--runs is empty: give whole numbers, comma-separated")
    for count in runs if FLAGS.directions is None else ():
        require_runs(count)
    require(0 <= FLAGS.seed < 2**32, f"--seed={FLAGS.seed}: give 0 to 2^32 - 1")
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    if FLAGS.directions is not None:
        kind = _directions(runs)
    elif FLAGS.one_run is not None:
        kind = _one_run()
    else:
        kind = _one_canary(runs) if FLAGS.canaries is None else _many_canaries(runs)
    rows: list[Any] = []
    with tqdm(total=FLAGS.audits * len(kind.settings), unit="audits", desc="calibrating") as bar:
        for setting in kind.settings:
            rows += kind.calibrate(setting, processes, bar.update)
    found = [kind.fields(row) for row in rows] if FLAGS.json else []
    print(json.dumps({"calibration": found}) if FLAGS.json else kind.table(rows).text())


def _mus() -> list[float]:
    mus = cli.numbers("mu")
    require(mus, "--mu is empty: give numbers, comma-separated")
    for mu in mus:
        require(0 <= mu < 100, f"--mu={mu:g}: give 0 to 100")
    return mus


def _one_run() -> _Kind:
    for name in ("canaries", "mechanism", "tie", "design"):
        require(FLAGS[name].value is None, f"--one_run and --{name} do not go together: drop one")
    least, most = one_run_bounds.LEAST_COINS, one_run_bounds.MOST_COINS
    fits = least <= FLAGS.one_run <= most
    require(fits, f"--one_run={FLAGS.one_run}: give {least} to {most:,} canaries")
    levels = (FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    laws, canaries = ONE_RUN_LAWS.values(), FLAGS.one_run
    settings = [OneRunSetting(law, mu, canaries, *levels) for law in laws for mu in _mus()]

    def fields(row: OneRunCalibration) -> dict[str, Any]:
        return row._asdict() | {"setting": row.setting._asdict() | {"law": row.setting.law.name}}

    columns = (
        Column(None, lambda row: row.setting.law.name, "law", width=11, left=True),
        Column(None, lambda row: row.setting.mu, "mu", number(".3g"), 5),
        Column(None, lambda row: row.method, " method", " {}".format, 18, left=True),
        _exceeding(),
        Column(None, lambda row: row.mean_epsilon, "mean", number(".3f"), 7),
        Column(None, lambda row: row.low_epsilon, "5%", number(".3f"), 7),
        Column(None, lambda row: row.high_epsilon, "95%", number(".3f"), 7),
        Column(None, lambda row: row.true_epsilon, "true", number(".3f"), 7),
    )
    title = f"""\
{FLAGS.audits} audits of one run with {FLAGS.one_run} canaries; exceeding: share of audits with
epsilon above the truth at delta {FLAGS.delta:g} (* above {_allowed():.1%}, reached once in
1,000 tables at error {1 - FLAGS.confidence:.3g}); one_shot_jeffreys is the paper's, no bound"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Kind(settings, one_run_calibration.calibrate, table, fields)


def _directions(runs: list[int]) -> _Kind:
    for name in ("canaries", "mechanism", "tie", "design", "one_run"):
        require(FLAGS[name].value is None, f"--directions and --{name} do not go together: drop one")
    require(FLAGS.directions >= 1, f"--directions={FLAGS.directions}: give at least 1")
    numbers = tuple(sorted(set(runs))) if FLAGS["runs"].present else (1, 10, 60)
    shape, levels = (FLAGS.directions, FLAGS.dimension), (FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    settings = [
        DirectionSetting(law, mu, numbers, *shape, FLAGS.audits, *levels)
        for law in DIRECTION_LAWS.values()
        for mu in _mus()
    ]
    exact_null_calibration.require_possible(settings[0])

    def fields(row: DirectionCalibration) -> dict[str, Any]:
        return row._asdict() | {"setting": row.setting._asdict() | {"law": row.setting.law.name}}

    shown = number(".3f")
    columns = (
        Column(None, lambda row: row.setting.law.name, "law", width=11, left=True),
        Column(None, lambda row: row.setting.mu, "mu", number(".3g"), 5),
        Column(None, lambda row: row.runs, "runs", width=6),
        _exceeding(),
        Column(None, lambda row: row.mean_epsilon, "mean", shown, 8),
        Column(None, lambda row: row.low_epsilon, "5%", shown, 8),
        Column(None, lambda row: row.high_epsilon, "95%", shown, 8),
        Column(None, lambda row: row.true_epsilon, "true", shown, 8),
    )
    title = f"""\
{FLAGS.audits} audits by exact_null with {FLAGS.directions} uniform directions a run in R^{FLAGS.dimension:,};
exceeding: share of audits whose epsilon was above the truth at delta {FLAGS.delta:g} after
one of so many runs (* above {_allowed():.1%}, reached once in 1,000 tables at
error {1 - FLAGS.confidence:.3g}); mu is epsilon for laplace and for bound, the edge of what DP allows"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Kind(settings, exact_null_calibration.calibrate, table, fields)


def _many_canaries(runs: list[int]) -> _Kind:
    require(FLAGS.mechanism is None, "--canaries and --mechanism do not go together: drop one")
    require(1 <= FLAGS.canaries <= 10_000, f"--canaries={FLAGS.canaries}: give 1 to 10,000")
    ties, designs = FLAGS.tie or list(TIES), FLAGS.design or ["coins"]
    for flag, names, known in (("tie", ties, TIES), ("design", designs, ("coins", "sets"))):
        for name in names:
            require(name in known, f"--{flag}={name!r}: give some of {', '.join(known)}")
    levels = (FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    settings = [
        ManyCanaries(mu, n, FLAGS.canaries, TIES[tie], design == "coins", *levels)
        for design in designs
        for n in runs
        for tie in ties
        for mu in _mus()
    ]

    def design(row: ManyCalibration) -> str:
        return "coins" if row.setting.coins else "sets"

    def fields(row: ManyCalibration) -> dict[str, Any]:
        setting = row.setting._asdict()
        del setting["coins"]
        return row._asdict() | {"setting": setting | {"tie": row.setting.tie.name, "design": design(row)}}

    shown = number(".3f")
    columns = (
        Column(None, design, "design", width=6, left=True),
        Column(None, lambda row: row.setting.runs, "runs", width=5),
        Column(None, lambda row: row.setting.tie.name, " tie", " {}".format, 12, left=True),
        Column(None, lambda row: row.setting.mu, "mu", number(".3g"), 5),
        Column(None, lambda row: row.method, " method", " {}".format, 17, left=True),
        _exceeding(),
        Column(None, lambda row: row.mean_epsilon if row.mean_mu is None else row.mean_mu, "mean", shown, 8),
        Column(None, lambda row: row.true_epsilon if row.mean_mu is None else row.true_mu, "true", shown, 7),
    )
    title = f"""\
{FLAGS.audits} audits of runs with {FLAGS.canaries} canaries; exceeding: share of audits above the
truth (* above {_allowed():.1%}, reached once in 1,000 tables at error {1 - FLAGS.confidence:.3g});
mean and true: of mu where the method bounds mu, else of epsilon"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Kind(settings, many_calibration.calibrate, table, fields)


def _one_canary(runs: list[int]) -> _Kind:
    require(FLAGS.tie is None and FLAGS.design is None, "--tie and --design go with --canaries: give it too")
    require(len(runs) == 1, f"--runs={','.join(FLAGS.runs)}: give one number, or --canaries too")
    levels, mus = (runs[0], FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed), _mus()
    if FLAGS.mechanism is None:
        settings = [KnownMechanism(mu, *levels) for mu in mus]
        return _Kind(settings, calibration.calibrate, _of_gaussians, _fields)
    for name in FLAGS.mechanism:
        require(name in LAWS, f"--mechanism={name!r}: give some of {', '.join(LAWS)}")
    require(FLAGS.mechanism, f"--mechanism is empty: give some of {', '.join(LAWS)}")
    settings = [
        KnownMechanism(0.0, *levels, KnownLaw(LAWS[name], parameter))
        for name in FLAGS.mechanism
        for parameter in (mus if LAWS[name] is GAUSSIAN else LAWS[name].parameters)
    ]
    return _Kind(settings, calibration.calibrate, _of_curves, _fields)


def _of_gaussians(rows: list[Calibration]) -> Table[Calibration]:
    allowed = _allowed()

    def true(row: Calibration) -> str:
        return f"{row.true_epsilon:8.3f}{'  too often' if row.exceeding > allowed else ''}"

    columns = (
        Column(None, lambda row: row.setting.mu, "true mu", number(".3g"), 7),
        Column(None, lambda row: row.method, " method", " {}".format, 17, left=True),
        Column(None, lambda row: row.exceeding, "exceeding", number(".1%"), 9),
        Column(None, lambda row: row.mean_mu, "mean mu", number(".3f"), 8),
        Column(None, lambda row: row.mean_epsilon, "epsilon: mean", number(".3f"), 13),
        Column(None, true, "true", width=8),
    )
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; a method that exceeds the truth with
probability {1 - FLAGS.confidence:.3g} does so in at most {allowed:.1%} of them (but once in 1,000 tables)"""
    return Table(columns, rows, before=(title,), gap=" ", rule=67)


def _of_curves(rows: list[Calibration]) -> Table[Calibration]:
    columns = (
        Column(None, lambda row: row.setting.law, "mechanism", width=21, left=True),
        Column(None, lambda row: row.method, "method", width=15, left=True),
        _exceeding(),
        Column(None, lambda row: row.fired, "fired", number(".0%"), 5),
        Column(None, lambda row: row.unsure, "unsure", number(".0%"), 6),
        Column(None, lambda row: row.missed, "missed", number(".1%"), 6),
        Column(None, lambda row: row.mean_epsilon, "mean", number(".2f"), 5),
        Column(None, lambda row: row.true_epsilon, "true", number(".2f"), 5),
    )
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; exceeding: share of audits with
epsilon above the truth (* above {_allowed():.1%}, which sampling error reaches once in
1,000 tables); fired: the curve test at {CURVE_LEVEL:g}; unsure: not fired, power below
{CURVE_POWER:g}; missed: exceeding, neither fired nor unsure; mean and true epsilon"""
    return Table(columns, rows, before=(title,), gap=" ")


def _fields(row: Calibration) -> dict[str, Any]:
    setting = row.setting._asdict()
    law = setting.pop("law")
    fields = row._asdict() | {"setting": setting}
    curve = {name: fields.pop(name) for name in ("fired", "unsure", "missed")}
    if law is None:
        return fields
    del setting["mu"]
    fields["setting"] = {"mechanism": law.law.name, "parameter": law.parameter} | setting
    return fields | curve


def _allowed() -> float:
    return calibration.allowed_share(1 - FLAGS.confidence, FLAGS.audits)


def _exceeding() -> Column:
    allowed = _allowed()

    def show(share: float) -> str:
        return f"{share:.1%}{'*' if share > allowed else ' '}"

    return Column(None, lambda row: row.exceeding, "exceeding", show, 9)


if __name__ == "__main__":
    cli.run(main)
