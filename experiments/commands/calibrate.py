"""Measure every estimator on mechanisms whose mu is known.

./run.sh calibrate                          mu in 0, 0.25, 1, 1.77, 3.95; 2,000 audits each
./run.sh calibrate --mu=1 --audits=200      one mu, quickly
./run.sh calibrate --mechanism=laplace      where the curve is not Gaussian; with the curve test
./run.sh calibrate --canaries=32 --mu=1 --tie=equal --design=sets    many canaries a run
./run.sh calibrate --one_run=1000 --mu=0,1,4 --audits=200            one run alone
./run.sh calibrate --directions=64 --runs=1,10,60 --audits=200       uniform directions, the exact null
"""

import itertools
from operator import attrgetter
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from audit.calibration import calibration, laws
from audit.calibration.calibration import Calibration, KnownMechanism
from audit.commands import cli
from audit.errors import require
from audit.json_text import write_json
from audit.laws import known_laws
from audit.methods import one_run_bounds
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.methods.level import show_level
from audit.report.table import Column, Show, Table, number
from audit.settings.setting import require_runs

FLAGS = flags.FLAGS
flags.DEFINE_list("mu", ["0", "0.25", "1", "1.77", "3.95"], "True mu of the Gaussian mechanisms.")
flags.DEFINE_list(
    "mechanism",
    None,
    f"Test the curve, too, of known mechanisms: {', '.join(laws.ONE_CANARY)}; by default gaussian, untested.",
)
flags.DEFINE_list(
    "runs", ["5000"], "Scores an audit, half of them in; otherwise runs, some numbers."
)
flags.DEFINE_integer("canaries", None, "Canaries a run; by default one, and other estimators.")
flags.DEFINE_list(
    "tie", None, f"Of the canaries of a run: some of {', '.join(laws.COINS)}; by default all."
)
flags.DEFINE_list("design", None, "coins (by default), sets, or both.")
flags.DEFINE_integer("one_run", None, "Canaries of one run, for the bounds that need no other.")
flags.DEFINE_integer(
    "directions", None, "Canaries a run that are uniform directions, all in: exact_null."
)
flags.DEFINE_integer("dimension", 62_006, "Dimension of the directions.", 1)
flags.DEFINE_integer("audits", 2000, "Audits a mechanism.")
cli.define_levels()
cli.define_seed("Seed of the scores.")
cli.define_processes()
cli.define_json()

# The numbers of runs after which audits of directions are looked at, unless --runs names others.
_DIRECTION_STOPS: tuple[int, ...] = (1, 10, 60)


# Flags of the other studies, which do not go with --one_run or --directions.
_FOR_SEVERAL_RUNS = ("canaries", "mechanism", "tie", "design")


class _Study(NamedTuple):
    """What is calibrated, and how it is shown.

    Attributes:
      settings: The mechanisms, with the design of their audits.
      columns: The columns of the table and of JSON. Those with a head are in the table, those with a key in
        JSON, where a key "setting.NAME" stands for NAME in an object `setting`.
      title: The text above the table.
      rule: The length of the table's rules in characters; 0 for the length of its rows.
    """

    settings: list[KnownMechanism]
    columns: tuple[Column, ...]
    title: str
    rule: int = 0


def main() -> None:
    """Parses the flags, simulates audits, and prints how often each estimator exceeds the truth.

    The truth is known, since the scores of an audit are drawn by the law of a known mechanism.
    """
    processes = cli.processes()
    require(1 <= FLAGS.audits <= 10**7, f"--audits={FLAGS.audits}: give 1 to 10,000,000")
    runs = cli.whole_numbers("runs")
    require(runs, "--runs is empty: give whole numbers, comma-separated")
    if FLAGS.directions is None:  # audits of directions may have a single run
        for count in runs:
            require_runs(count)
    cli.require_seed()
    cli.require_levels()

    study = _make_study(runs)
    rows: list[Calibration] = []
    with tqdm(total=FLAGS.audits * len(study.settings), unit="audits", desc="calibrating") as bar:
        for setting in study.settings:
            rows += calibration.calibrate(setting, processes, bar.update)
    table = Table(study.columns, rows, before=(study.title,), gap=" ", rule=study.rule)
    if FLAGS.json:
        print(write_json({"calibration": [_nest_setting(row) for row in table.json()]}))
    else:
        print(table.text())


def _nest_setting(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row for JSON with every key "setting.NAME" moved into an object `setting`, as NAME."""
    fields: dict[str, Any] = {"setting": {}}
    for key, value in row.items():
        _, prefix, name = key.rpartition("setting.")
        if prefix:
            fields["setting"][name] = value
        else:
            fields[key] = value
    return fields


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
    """Returns the values of --mu; raises InputError where there are none, or one is out of range."""
    mus = cli.numbers("mu")
    require(mus, "--mu is empty: give numbers, comma-separated")
    for mu in mus:
        # At mu = 100 and delta = 1e-5 epsilon is over 5,000: nothing is private any more.
        require(0 <= mu < 100, f"--mu={mu:g}: give 0 to 100")
    return mus


def _make_setting(law: calibration.Law, mu: float, runs: int, **shape: Any) -> KnownMechanism:
    """Returns a mechanism to be audited, with the number of audits, the levels and the seed of the flags.

    Args:
      law: The law by which scores are drawn.
      mu: The law's parameter: mu, or epsilon where its trade-off curve is not Gaussian.
      runs: The number of scores in an audit, or of runs where each has several canaries.
      **shape: Further fields of KnownMechanism: canaries, dimension, stops.
    """
    return KnownMechanism(
        law, mu, runs, FLAGS.audits, FLAGS.delta, FLAGS.confidence, FLAGS.seed, **shape
    )


def _make_one_run_study() -> _Study:
    """Returns the study of bounds from a single run with --one_run canaries, each in or out by its own coin.

    It has a setting for each law of one run at each --mu. Raises InputError for flags of the other studies.
    """
    for name in _FOR_SEVERAL_RUNS:
        require(FLAGS[name].value is None, f"--one_run and --{name} do not go together: drop one")
    # The numbers of canaries for which the bounds are computed.
    least = one_run_bounds.LEAST_COINS
    most = one_run_bounds.MOST_COINS
    fits = least <= FLAGS.one_run <= most
    require(fits, f"--one_run={FLAGS.one_run}: give {least} to {most:,} canaries")

    settings = []
    for law, mu in itertools.product(laws.ONE_RUN.values(), _checked_mus()):
        settings.append(_make_setting(law, mu, runs=1, canaries=FLAGS.one_run))

    # Widths are in characters.
    columns = (
        Column("setting.law", attrgetter("setting.law.name"), "law", width=11, left=True),
        _column("setting.mu", "mu", number(".3g"), 5),
        _method_column(18),
        *_setting_columns("canaries"),
        _exceeding_column(),
        *_epsilon_columns(),
    )
    title = f"""\
{FLAGS.audits} audits of one run with {FLAGS.one_run} canaries; exceeding: share of audits with
epsilon above the truth at delta {show_level(FLAGS.delta)} (* above {_allowed_share():.1%}, reached once in
1,000 tables at error {1 - FLAGS.confidence:.3g}); one_shot_jeffreys is the paper's, no bound"""
    return _Study(settings, columns, title)


def _make_direction_study(runs: list[int]) -> _Study:
    """Returns the study of bounds from canaries that are uniform directions, all of them in.

    Such a bound compares the canaries' cosines to their exact law where nothing leaks, and holds at any
    number of runs. So each audit is looked at after every number of runs in --runs, by default after 1, 10
    and 60. An audit has as many runs as the largest of these numbers.

    There is a setting for each law of directions at each --mu. Raises InputError for flags of the other
    studies.
    """
    for name in (*_FOR_SEVERAL_RUNS, "one_run"):
        require(
            FLAGS[name].value is None, f"--directions and --{name} do not go together: drop one"
        )
    require(FLAGS.directions >= 1, f"--directions={FLAGS.directions}: give at least 1")
    stops = _DIRECTION_STOPS
    if FLAGS["runs"].present:
        stops = tuple(sorted(set(runs)))

    settings = []
    for law, mu in itertools.product(laws.DIRECTIONS.values(), _checked_mus()):
        setting = _make_setting(
            law,
            mu,
            max(stops),
            canaries=FLAGS.directions,
            dimension=FLAGS.dimension,
            stops=stops,
        )
        settings.append(setting)
    # All settings have the same shape, so that the first stands for all. Their mus are checked already.
    calibration.require_possible(settings[0])

    # Widths are in characters.
    columns = (
        Column("setting.law", attrgetter("setting.law.name"), "law", width=11, left=True),
        _column("setting.mu", "mu", number(".3g"), 5),
        _method_column(15),
        _column("runs", "runs", width=4),  # after how many runs the row's bounds are read
        # In JSON alone: all numbers of runs after which bounds are read, the same in every row.
        Column("setting.runs", attrgetter("setting.stops")),
        *_setting_columns("canaries", "dimension"),
        _exceeding_column(),
        *_epsilon_columns(),
    )
    title = f"""\
{FLAGS.audits} audits with {FLAGS.directions} uniform directions a run in R^{FLAGS.dimension:,};
exceeding: share of audits whose epsilon was above the truth at delta {show_level(FLAGS.delta)} after
one of so many runs (* above {_allowed_share():.1%}, reached once in 1,000 tables at
error {1 - FLAGS.confidence:.3g}); mu is epsilon for laplace and for bound, the edge of what DP allows"""
    return _Study(settings, columns, title)


def _make_many_canary_study(runs: list[int]) -> _Study:
    """Returns the study of --canaries canaries a run, for each design, number of runs, tie and mu.

    A tie is how the canaries of a run depend on each other. The design "coins" puts each canary in or out by
    its own coin; "sets" has runs with all canaries in, and runs with none. Raises InputError for flags out of
    range.
    """
    require(FLAGS.mechanism is None, "--canaries and --mechanism do not go together: drop one")
    require(1 <= FLAGS.canaries <= 10_000, f"--canaries={FLAGS.canaries}: give 1 to 10,000")
    # The laws of each design by tie; both designs have the same ties.
    laws_of_design = {"coins": laws.COINS, "sets": laws.SETS}
    ties = FLAGS.tie or list(laws.COINS)
    for name in ties:
        require(name in laws.COINS, f"--tie={name!r}: give some of {', '.join(laws.COINS)}")
    designs = FLAGS.design or ["coins"]
    for name in designs:
        choices = ", ".join(laws_of_design)
        require(name in laws_of_design, f"--design={name!r}: give some of {choices}")

    settings = []  # sorted by design, number of runs, tie and mu
    for design, n_runs, tie, mu in itertools.product(designs, runs, ties, _checked_mus()):
        law = laws_of_design[design][tie]
        settings.append(_make_setting(law, mu, n_runs, canaries=FLAGS.canaries))

    def name_design(row: Calibration) -> str:
        """Returns the design of a row, "coins" or "sets": each law belongs to a single design."""
        return "coins" if row.setting.law in laws.COINS.values() else "sets"

    columns = (
        Column("setting.design", name_design, "design", width=6, left=True),
        _column("setting.runs", "runs", width=5),
        # A blank before each tie, which is aligned to the left, parts it from the number before it.
        Column("setting.tie", attrgetter("setting.law.name"), " tie", " {}".format, 12, left=True),
        _column("setting.mu", "mu", number(".3g"), 5),
        _method_column(17),
        *_setting_columns("canaries"),
        _exceeding_column(),
        Column(None, _mean_mu_or_epsilon, "mean", _EPSILON_FORMAT, 8),
        Column(None, _true_mu_or_epsilon, "true", _EPSILON_FORMAT, 7),
        # A column without a key is in the table alone. These have no heads, and so are in JSON alone.
        *map(_column, ("mean_epsilon", "low_epsilon", "high_epsilon", "true_epsilon")),
        *map(_column, ("mean_mu", "true_mu")),
    )
    title = f"""\
{FLAGS.audits} audits of runs with {FLAGS.canaries} canaries; exceeding: share of audits above the
truth (* above {_allowed_share():.1%}, reached once in 1,000 tables at error {1 - FLAGS.confidence:.3g});
mean and true: of mu where the method bounds mu, else of epsilon"""
    return _Study(settings, columns, title)


def _make_one_canary_study(runs: list[int]) -> _Study:
    """Returns the study of audits with a single canary a run, of --runs scores each.

    Without --mechanism it has a Gaussian mechanism for each --mu. With it, it has the mechanisms named there,
    each at its own parameters (the Gaussian one at each --mu); their audits also test whether the trade-off
    curve is Gaussian. Raises InputError for flags out of range, and for those of the other studies.
    """
    are_unused = FLAGS["tie"].value is None and FLAGS["design"].value is None
    require(are_unused, "--tie and --design go with --canaries: give it too")
    require(len(runs) == 1, f"--runs={','.join(FLAGS.runs)}: give one number, or --canaries too")
    n_scores = runs[0]  # a run has a single score
    mus = _checked_mus()
    if FLAGS.mechanism is None:
        return _make_gaussian_study([_make_setting(laws.GAUSSIAN, mu, n_scores) for mu in mus])

    choices = ", ".join(laws.ONE_CANARY)
    for name in FLAGS.mechanism:
        require(name in laws.ONE_CANARY, f"--mechanism={name!r}: give some of {choices}")
    require(FLAGS.mechanism, f"--mechanism is empty: give some of {choices}")
    settings: list[KnownMechanism] = []
    for name in FLAGS.mechanism:
        law = laws.ONE_CANARY[name]
        law_with_curve_test = law._replace(audit=laws.audit_scores_and_curve)
        parameters = known_laws.LAWS[name].parameters
        if name == laws.GAUSSIAN.name:
            parameters = tuple(mus)
        for parameter in parameters:
            settings.append(_make_setting(law_with_curve_test, parameter, n_scores))
    return _make_curve_study(settings)


def _make_gaussian_study(settings: list[KnownMechanism]) -> _Study:
    """Returns the study of Gaussian mechanisms with a single canary a run.

    A row says "too often" where the share of audits whose bound exceeds the truth is above `_allowed_share`.
    A column without a key is in the table alone, and a column without a head in JSON alone.

    Args:
      settings: A mechanism for each --mu; all have the same number of scores.
    """
    allowed = _allowed_share()

    def show_truth(row: Calibration) -> str:
        """Returns the true epsilon, with "too often" behind it where too many audits exceed it."""
        truth = f"{row.true_epsilon:8.3f}"
        if row.exceeding > allowed:
            return f"{truth}  too often"
        return truth

    columns = (
        _column("setting.mu", "true mu", number(".3g"), 7),
        _method_column(17),
        Column("setting.n_scores", attrgetter("setting.runs")),
        *_setting_columns(),
        _column("exceeding", "exceeding", number(".1%"), 9),
        _column("mean_mu", "mean mu", _EPSILON_FORMAT, 8),
        _column("mean_epsilon", "epsilon: mean", _EPSILON_FORMAT, 13),
        Column(None, show_truth, "true", width=8),
        *map(_column, _UNSEEN),
        _column("true_epsilon"),
    )
    columns_width = 67  # of the text, with a blank between two columns, and without "too often"
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; a method that exceeds the truth with
probability {1 - FLAGS.confidence:.3g} does so in at most {allowed:.1%} of them (but once in 1,000 tables)"""
    return _Study(settings, columns, title, rule=columns_width)


def _make_curve_study(settings: list[KnownMechanism]) -> _Study:
    """Returns the study that calibrates both bounds and the test of whether a trade-off curve is Gaussian.

    Three columns are about that test, in shares of audits: it rejects a Gaussian curve (fired); it does not,
    but its power is too low for this to count (unsure); it does not, has the power, and yet the bound exceeds
    the truth (missed). A column without a key is in the table alone, and a column without a head in JSON
    alone.

    Args:
      settings: Mechanisms with a single canary a run; all have the same number of scores.
    """

    def name_mechanism(row: Calibration) -> str:
        """Returns the name of the row's law with its parameter, which the field `mu` holds for every law."""
        return f"{row.setting.law.name} {row.setting.mu:.3g}"

    columns = (
        Column(None, name_mechanism, "mechanism", width=21, left=True),
        Column("setting.mechanism", attrgetter("setting.law.name")),
        Column("setting.parameter", attrgetter("setting.mu")),
        Column("setting.n_scores", attrgetter("setting.runs")),
        *_setting_columns(),
        _column("method", "method", width=15, left=True),
        _exceeding_column(),
        _column("fired", "fired", number(".0%"), 5),
        _column("unsure", "unsure", number(".0%"), 6),
        _column("missed", "missed", number(".1%"), 6),
        _column("mean_epsilon", "mean", number(".2f"), 5),
        _column("true_epsilon", "true", number(".2f"), 5),
        *map(_column, ("mean_mu", *_UNSEEN)),
    )
    title = f"""\
{FLAGS.audits} audits of {FLAGS.runs[0]} scores each; exceeding: share of audits with
epsilon above the truth (* above {_allowed_share():.1%}, which sampling error reaches once in
1,000 tables); fired: the curve test at {CURVE_LEVEL:g}; unsure: not fired, power below
{CURVE_POWER:g}; missed: exceeding, neither fired nor unsure; mean and true epsilon"""
    return _Study(settings, columns, title)


def _mean_mu_or_epsilon(row: Calibration) -> float:
    """Returns the bounds' mean over the audits: of mu where the method bounds mu, else of epsilon."""
    if row.mean_mu is None:
        return row.mean_epsilon
    return row.mean_mu


def _true_mu_or_epsilon(row: Calibration) -> float | None:
    """Returns the true mu where the method bounds mu, else the true epsilon."""
    if row.mean_mu is None:
        return row.true_epsilon
    return row.true_mu


def _allowed_share() -> float:
    """Returns the largest share of audits that may exceed the truth without being a sign of an error.

    A method that exceeds the truth with probability 1 - confidence shows a larger share, by sampling error
    alone, with probability at most 1 / 1,000.
    """
    return calibration.allowed_share(1 - FLAGS.confidence, FLAGS.audits)


_EPSILON_FORMAT = number(".3f")
_UNSEEN = ("std_epsilon", "low_epsilon", "high_epsilon")  # in JSON alone


def _column(
    key: str, head: str | None = None, show: Show = str, width: int = 0, left: bool = False
) -> Column:
    """Returns a column that shows an attribute of a row.

    Args:
      key: The name of the attribute, such as "setting.mu"; it is also the key in JSON.
      head: The text above the column in the table; None for a column in JSON alone.
      show: A function that formats a value for the table.
      width: The column's width in characters; 0 for that of its widest cell.
      left: Whether values are aligned to the left.
    """
    return Column(key, attrgetter(key), head, show, width, left)


def _method_column(width: int) -> Column:
    """Returns the column of the methods' names, with a blank before each; `width` is in characters."""
    return _column("method", " method", " {}".format, width, left=True)


def _setting_columns(*shape: str) -> list[Column]:
    """Returns columns, in JSON alone, of a setting's audits, levels and seed, and of fields in `shape`."""
    names = (*shape, "audits", "delta", "confidence", "seed")
    return [_column(f"setting.{name}") for name in names]


def _exceeding_column() -> Column:
    """Returns the column of the share of audits that exceed the truth; a star marks more than is allowed."""
    allowed = _allowed_share()

    def show(share: float) -> str:
        """Returns a share in percent, followed by a star where it is above the allowed share."""
        if share > allowed:
            return f"{share:.1%}*"
        return f"{share:.1%} "  # as long as with a star, so that digits are aligned

    return _column("exceeding", "exceeding", show, 9)


def _epsilon_columns() -> list[Column]:
    """Returns the columns of epsilon's mean, its 5% and 95% quantiles, and its true value."""
    heads = {"mean_epsilon": "mean", "low_epsilon": "5%", "high_epsilon": "95%"}
    heads["true_epsilon"] = "true"
    return [_column(key, head, _EPSILON_FORMAT, 7) for key, head in heads.items()]


if __name__ == "__main__":
    cli.run(main)
