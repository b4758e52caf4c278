"""Measure every estimator on mechanisms whose mu is known.

./run.sh calibrate                          mu in 0, 0.25, 1, 1.77, 3.95; 2,000 audits each
./run.sh calibrate --mu=1 --audits=200      one mu, quickly
./run.sh calibrate --mechanism=laplace      where the curve is not Gaussian; with the curve test
./run.sh calibrate --canaries=32 --mu=1 --tie=equal --design=sets    many canaries a run
./run.sh calibrate --one_run=1000 --mu=0,1,4 --audits=200            one run alone
./run.sh calibrate --directions=64 --runs=1,10,60 --audits=200       uniform directions, the exact null
"""

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from audit.calibration import (
    calibration,
    exact_null_calibration,
    many_calibration,
    one_run_calibration,
)
from audit.calibration.calibration import Calibration, KnownMechanism
from audit.calibration.exact_null_calibration import LAWS as DIRECTION_LAWS
from audit.calibration.exact_null_calibration import DirectionCalibration, DirectionSetting
from audit.calibration.many_calibration import TIES, ManyCalibration, ManyCanaries
from audit.calibration.one_run_calibration import LAWS as ONE_RUN_LAWS
from audit.calibration.one_run_calibration import OneRunCalibration, OneRunSetting
from audit.commands import cli
from audit.errors import require
from audit.laws.known_laws import GAUSSIAN, LAWS, KnownLaw
from audit.methods import one_run_bounds
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.report.table import Column, Table, number
from audit.runtime.machine import cores
from audit.settings.setting import require_runs

FLAGS = flags.FLAGS
flags.DEFINE_list("mu", ["0", "0.25", "1", "1.77", "3.95"], "True mu of the Gaussian mechanisms.")
flags.DEFINE_list(
    "mechanism",
    None,
    f"Test the curve, too, of known mechanisms: {', '.join(LAWS)}; by default gaussian, untested.",
)
flags.DEFINE_list(
    "runs", ["5000"], "Scores an audit, half of them in; otherwise runs, some numbers."
)
flags.DEFINE_integer("canaries", None, "Canaries a run; by default one, and other estimators.")
flags.DEFINE_list(
    "tie", None, f"Of the canaries of a run: some of {', '.join(TIES)}; by default all."
)
flags.DEFINE_list("design", None, "coins (by default), sets, or both.")
flags.DEFINE_integer("one_run", None, "Canaries of one run, for the bounds that need no other.")
flags.DEFINE_integer(
    "directions", None, "Canaries a run that are uniform directions, all in: exact_null."
)
flags.DEFINE_integer("dimension", 62_006, "Dimension of the directions.")
flags.DEFINE_integer("audits", 2000, "Audits a mechanism.")
cli.define_levels()
cli.define_seed("Seed of the scores.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.")
cli.define_json()

MOST_PROCESSES = 1024


# What does not go with many canaries of one run, and with uniform directions.
_FOR_SEVERAL_RUNS = ("canaries", "mechanism", "tie", "design")
_EPSILON_FORMAT = number(".3f")


class _Study(NamedTuple):
    """What is calibrated, and how it is shown.

    Attributes:
      settings: The mechanisms and the designs of their audits.
      calibrate: (setting, processes, progress) -> rows; `progress` is called with numbers of audits.
      table: rows -> a table for people.
      fields: row -> an object for JSON.
    """

    settings: Sequence[Any]
    calibrate: Callable[[Any, int, Callable[[int], object]], Sequence[Any]]
    table: Callable[[list[Any]], Table[Any]]
    fields: Callable[[Any], dict[str, Any]]


def main() -> None:
    """Parses the flags, simulates audits of the mechanisms, and prints how often each estimator exceeds."""
    processes = FLAGS.processes
    if processes is None:
        processes = cores()
    require(
        1 <= processes <= MOST_PROCESSES, f"--processes={processes}: give 1 to {MOST_PROCESSES:,}"
    )
    require(1 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 1 to 10,000,000")
    runs = cli.whole_numbers("runs")
    require(runs, "--runs is empty: give whole numbers, comma-separated")
    if FLAGS.directions is None:
        for count in runs:
            require_runs(count)
    cli.require_seed()
    cli.require_levels()

    study = _make_study(runs)
    rows: list[Any] = []
    with tqdm(total=FLAGS.audits * len(study.settings), unit="audits", desc="calibrating") as bar:
        for setting in study.settings:
            rows += study.calibrate(setting, processes, bar.update)
    if FLAGS.json:
        fields = [study.fields(row) for row in rows]
        print(json.dumps({"calibration": fields}))
    else:
        print(study.table(rows).text())


def _make_study(runs: list[int]) -> _Study:
    """Returns the study that the flags request; raises InputError for flags that do not go together."""
    if FLAGS.directions is not None:
        return _make_direction_study(runs)
    if FLAGS.one_run is not None:
        return _make_one_run_study()
    if FLAGS.canaries is not None:
        return _make_many_canary_study(runs)
    return _make_one_canary_study(runs)


def _checked_mus() -> list[float]:
    """Returns the values of --mu; raises InputError for those out of range."""
    mus = cli.numbers("mu")
    require(mus, "--mu is empty: give numbers, comma-separated")
    for mu in mus:
        require(0 <= mu < 100, f"--mu={mu:g}: give 0 to 100")
    return mus


def _make_one_run_study() -> _Study:
    """Returns the study of bounds from one run with many canaries."""
    for name in _FOR_SEVERAL_RUNS:
        require(FLAGS[name].value is None, f"--one_run and --{name} do not go together: drop one")
    least = one_run_bounds.LEAST_COINS
    most = one_run_bounds.MOST_COINS
    fits = least <= FLAGS.one_run <= most
    require(fits, f"--one_run={FLAGS.one_run}: give {least} to {most:,} canaries")

    settings = []
    for law in ONE_RUN_LAWS.values():
        for mu in _checked_mus():
            setting = OneRunSetting(
                law, mu, FLAGS.one_run, FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed
            )
            settings.append(setting)
    columns = (
        Column(None, attrgetter("setting.law.name"), "law", width=11, left=True),
        Column(None, attrgetter("setting.mu"), "mu", number(".3g"), 5),
        Column(None, attrgetter("method"), " method", " {}".format, 18, left=True),
        _exceeding_column(),
        *_epsilon_columns(7),
    )
    title = f"""\
{FLAGS.audits} audits of one run with {FLAGS.one_run} canaries; exceeding: share of audits with
epsilon above the truth at delta {FLAGS.delta:g} (* above {_allowed_share():.1%}, reached once in
1,000 tables at error {1 - FLAGS.confidence:.3g}); one_shot_jeffreys is the paper's, no bound"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Study(settings, one_run_calibration.calibrate, table, _law_fields)


def _make_direction_study(runs: list[int]) -> _Study:
    """Returns the study of the exact null of uniform directions, after each of these numbers of runs."""
    for name in (*_FOR_SEVERAL_RUNS, "one_run"):
        require(
            FLAGS[name].value is None, f"--directions and --{name} do not go together: drop one"
        )
    require(FLAGS.directions >= 1, f"--directions={FLAGS.directions}: give at least 1")
    numbers_of_runs: tuple[int, ...] = (1, 10, 60)
    if FLAGS["runs"].present:
        numbers_of_runs = tuple(sorted(set(runs)))

    shape = (FLAGS.directions, FLAGS.dimension)
    levels = (FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    settings = []
    for law in DIRECTION_LAWS.values():
        for mu in _checked_mus():
            setting = DirectionSetting(law, mu, numbers_of_runs, *shape, FLAGS.audits, *levels)
            settings.append(setting)
    exact_null_calibration.require_possible(settings[0])

    columns = (
        Column(None, attrgetter("setting.law.name"), "law", width=11, left=True),
        Column(None, attrgetter("setting.mu"), "mu", number(".3g"), 5),
        Column(None, attrgetter("runs"), "runs", width=6),
        _exceeding_column(),
        *_epsilon_columns(8),
    )
    title = f"""\
{FLAGS.audits} audits by exact_null with {FLAGS.directions} uniform directions a run in R^{FLAGS.dimension:,};
exceeding: share of audits whose epsilon was above the truth at delta {FLAGS.delta:g} after
one of so many runs (* above {_allowed_share():.1%}, reached once in 1,000 tables at
error {1 - FLAGS.confidence:.3g}); mu is epsilon for laplace and for bound, the edge of what DP allows"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Study(settings, exact_null_calibration.calibrate, table, _law_fields)


def _make_many_canary_study(runs: list[int]) -> _Study:
    """Returns the study of many canaries a run, for each number of runs, tie and design."""
    require(FLAGS.mechanism is None, "--canaries and --mechanism do not go together: drop one")
    require(1 <= FLAGS.canaries <= 10_000, f"--canaries={FLAGS.canaries}: give 1 to 10,000")
    ties = FLAGS.tie or list(TIES)
    designs = FLAGS.design or ["coins"]
    for flag, names, choices in (("tie", ties, TIES), ("design", designs, ("coins", "sets"))):
        for name in names:
            require(name in choices, f"--{flag}={name!r}: give some of {', '.join(choices)}")

    levels = (FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    settings = []
    for design, n_runs, tie in itertools.product(designs, runs, ties):
        for mu in _checked_mus():
            coins = design == "coins"
            settings.append(ManyCanaries(mu, n_runs, FLAGS.canaries, TIES[tie], coins, *levels))
    columns = (
        Column(None, _design, "design", width=6, left=True),
        Column(None, attrgetter("setting.runs"), "runs", width=5),
        Column(None, attrgetter("setting.tie.name"), " tie", " {}".format, 12, left=True),
        Column(None, attrgetter("setting.mu"), "mu", number(".3g"), 5),
        Column(None, attrgetter("method"), " method", " {}".format, 17, left=True),
        _exceeding_column(),
        Column(None, _mean_mu_or_epsilon, "mean", _EPSILON_FORMAT, 8),
        Column(None, _true_mu_or_epsilon, "true", _EPSILON_FORMAT, 7),
    )
    title = f"""\
{FLAGS.audits} audits of runs with {FLAGS.canaries} canaries; exceeding: share of audits above the
truth (* above {_allowed_share():.1%}, reached once in 1,000 tables at error {1 - FLAGS.confidence:.3g});
mean and true: of mu where the method bounds mu, else of epsilon"""
    table = partial(Table, columns, before=(title,), gap=" ")
    return _Study(settings, many_calibration.calibrate, table, _many_canary_fields)


def _make_one_canary_study(runs: list[int]) -> _Study:
    """Returns the study of one canary a run, of Gaussian mechanisms or of those that --mechanism names."""
    unused = FLAGS["tie"].value is None and FLAGS["design"].value is None
    require(unused, "--tie and --design go with --canaries: give it too")
    require(len(runs) == 1, f"--runs={','.join(FLAGS.runs)}: give one number, or --canaries too")
    levels = (runs[0], FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed)
    mus = _checked_mus()
    if FLAGS.mechanism is None:
        settings = [KnownMechanism(mu, *levels) for mu in mus]
        return _Study(settings, calibration.calibrate, _gaussian_table, _one_canary_fields)

    for name in FLAGS.mechanism:
        require(name in LAWS, f"--mechanism={name!r}: give some of {', '.join(LAWS)}")
    require(FLAGS.mechanism, f"--mechanism is empty: give some of {', '.join(LAWS)}")
    settings = []
    for name in FLAGS.mechanism:
        law = LAWS[name]
        parameters: Sequence[float] = law.parameters
        if law is GAUSSIAN:
            parameters = mus
        for parameter in parameters:
            settings.append(KnownMechanism(0.0, *levels, KnownLaw(law, parameter)))
    return _Study(settings, calibration.calibrate, _curve_table, _one_canary_fields)


def _gaussian_table(rows: list[Calibration]) -> Table[Calibration]:
    """Returns the table of Gaussian mechanisms, a row for each mechanism and method.

    A row says "too often" where the share of audits whose bound exceeds the truth is above the share that
    sampling error alone reaches once in 1,000 tables, if the method errs as rarely as it promises.
    """
    allowed = _allowed_share()

    def show_truth(row: Calibration) -> str:
        truth = f"{row.true_epsilon:8.3f}"
        if row.exceeding > allowed:
            return f"{truth}  too often"
        return truth

    columns = (
        Column(
            key=None,
            value=attrgetter("setting.mu"),
            head="true mu",
            show=number(".3g"),
            width=7,
        ),
        Column(
            key=None,
            value=attrgetter("method"),
            head=" method",
            show=" {}".format,
            width=17,
            left=True,
        ),
        Column(
            key=None,
            value=attrgetter("exceeding"),
            head="exceeding",
            show=number(".1%"),
            width=9,
        ),
        Column(
            key=None,
            value=attrgetter("mean_mu"),
            head="mean mu",
            show=_EPSILON_FORMAT,
            width=8,
        ),
        Column(
            key=None,
            value=attrgetter("mean_epsilon"),
            head="epsilon: mean",
            show=_EPSILON_FORMAT,
            width=13,
        ),
        Column(key=None, value=show_truth, head="true", width=8),
    )
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; a method that exceeds the truth with
probability {1 - FLAGS.confidence:.3g} does so in at most {allowed:.1%} of them (but once in 1,000 tables)"""
    return Table(columns, rows, before=(title,), gap=" ", rule=67)


def _curve_table(rows: list[Calibration]) -> Table[Calibration]:
    """Returns the table of mechanisms whose curves are tested, too."""
    columns = (
        Column(None, attrgetter("setting.law"), "mechanism", width=21, left=True),
        Column(None, attrgetter("method"), "method", width=15, left=True),
        _exceeding_column(),
        Column(None, attrgetter("fired"), "fired", number(".0%"), 5),
        Column(None, attrgetter("unsure"), "unsure", number(".0%"), 6),
        Column(None, attrgetter("missed"), "missed", number(".1%"), 6),
        Column(None, attrgetter("mean_epsilon"), "mean", number(".2f"), 5),
        Column(None, attrgetter("true_epsilon"), "true", number(".2f"), 5),
    )
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; exceeding: share of audits with
epsilon above the truth (* above {_allowed_share():.1%}, which sampling error reaches once in
1,000 tables); fired: the curve test at {CURVE_LEVEL:g}; unsure: not fired, power below
{CURVE_POWER:g}; missed: exceeding, neither fired nor unsure; mean and true epsilon"""
    return Table(columns, rows, before=(title,), gap=" ")


def _law_fields(row: OneRunCalibration | DirectionCalibration) -> dict[str, Any]:
    """Returns a row for JSON, its law by name."""
    setting = row.setting._asdict()
    setting["law"] = row.setting.law.name
    return row._asdict() | {"setting": setting}


def _many_canary_fields(row: ManyCalibration) -> dict[str, Any]:
    """Returns a row of many canaries for JSON, its tie and its design by name."""
    setting = row.setting._asdict()
    del setting["coins"]
    setting["tie"] = row.setting.tie.name
    setting["design"] = _design(row)
    return row._asdict() | {"setting": setting}


def _one_canary_fields(row: Calibration) -> dict[str, Any]:
    """Returns a row of one canary for JSON: the curve test's shares only where a mechanism was named."""
    setting = row.setting._asdict()
    law = setting.pop("law")
    fields = row._asdict() | {"setting": setting}
    curve_test = {name: fields.pop(name) for name in ("fired", "unsure", "missed")}
    if law is None:
        return fields
    del setting["mu"]
    fields["setting"] = {"mechanism": law.law.name, "parameter": law.parameter} | setting
    return fields | curve_test


def _design(row: ManyCalibration) -> str:
    """Returns the design's name, as --design gives it."""
    if row.setting.coins:
        return "coins"
    return "sets"


def _mean_mu_or_epsilon(row: ManyCalibration) -> float:
    """Returns the mean of mu where the method bounds mu, else of epsilon."""
    if row.mean_mu is None:
        return row.mean_epsilon
    return row.mean_mu


def _true_mu_or_epsilon(row: ManyCalibration) -> float:
    """Returns the true mu where the method bounds mu, else the true epsilon."""
    if row.mean_mu is None:
        return row.true_epsilon
    return row.true_mu


def _allowed_share() -> float:
    """Returns the share of audits that may exceed the truth, which sampling error reaches once in 1,000."""
    return calibration.allowed_share(1 - FLAGS.confidence, FLAGS.audits)


def _exceeding_column() -> Column:
    """Returns the column of shares that exceed the truth, with a star where that is too often."""
    allowed = _allowed_share()

    def show(share: float) -> str:
        if share > allowed:
            return f"{share:.1%}*"
        return f"{share:.1%} "

    return Column(None, attrgetter("exceeding"), "exceeding", show, 9)


def _epsilon_columns(width: int) -> list[Column]:
    """Returns the columns of epsilon's mean, its 5% and 95% quantiles, and its true value."""
    return [
        Column(None, attrgetter("mean_epsilon"), "mean", _EPSILON_FORMAT, width),
        Column(None, attrgetter("low_epsilon"), "5%", _EPSILON_FORMAT, width),
        Column(None, attrgetter("high_epsilon"), "95%", _EPSILON_FORMAT, width),
        Column(None, attrgetter("true_epsilon"), "true", _EPSILON_FORMAT, width),
    ]


if __name__ == "__main__":
    cli.run(main)
