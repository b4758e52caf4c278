"""What measured rounds show, as numbers and tables.

Epsilon of each measured round and of the training run, and averages over seeds of a sweep's settings along an
x axis. Tables have 80 columns, and are CSV too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from audit.laws import conversions
from audit.report.table import Column, Table, at_least, number
from experiments.canife import rounds
from experiments.canife.attacked import Attacked
from experiments.canife.measured import CONFIDENCE, Floats, Measured
from experiments.canife.rounds import Charge, RoundEstimate
from experiments.canife.sweep import ROUND, Value

_WIDTH = 80
_TEXT_WIDTH = 72
_CSV_DIGITS = 7
_NOTES = """\
published: best threshold of {n} scores at delta 1/n [95% Clopper-Pearson], an
estimate, at most {cap:.2f} whatever leaks. law: the exact epsilon of the score;
perfect: of a canary that nothing disturbs, which is all that the round's noise
allows. proven: a bound at 95% from {mock:,} mock rounds a world, at delta {delta:g}"""
_DECIMALS = {
    "deviation": 3,
    "attack": 2,
    "health": 3,
    "published": 2,
    "law_then": 2,
    "training": 2,
}
_SHOWN_WITHOUT_DEVIATION = ("health", "law_then")  # the CSV has their deviations
_SHOWN = ("deviation", "attack", "health", "published", "law_then")
_SHOWN_OVER_ROUNDS = ("attack", "health", "published", "law_then", "training")
_DEVIATION_NOTE = "deviation: of the scores / C, both worlds' mean, with noise"
_CURVES_NOTES = """\
attack: the attack's accuracy. published: the estimate a round; law: exact; both
at delta 1/n. inf: infinite in at least one training run"""
_TRAINING_NOTE = "training: epsilon up to there, composed of the published estimates"


class RoundValues(NamedTuple):
    """What a measured round shows.

    Attributes:
      measured: What is stored of the round.
      published: The published estimate, at the paper's delta 1/n for n scores.
      former: The public code's estimate until 2023, at the threshold of the largest accuracy, at delta 1e-5.
      accuracy: The attack's accuracy: the largest share of scores on the right side of a threshold.
      perfect: The exact epsilon of a perfect canary, at the training run's delta.
      perfect_at_paper_delta: The exact epsilon of a perfect canary, at the paper's delta 1/n.
    """

    measured: Measured
    published: RoundEstimate
    former: RoundEstimate
    accuracy: float
    perfect: float
    perfect_at_paper_delta: float


class Global(NamedTuple):
    """Epsilon of the training run up to each measured round, from several sources.

    Attributes:
      rounds: The last round that each entry of the other fields covers.
      published: From the rounds' published estimates, converted as published, by Renyi DP.
      lower: From the lower ends of the estimates' intervals, converted as published.
      upper: From the upper ends of the estimates' intervals, converted as published.
      gaussian: From the rounds' published estimates, converted by the exact Gaussian curve.
      canaries: From the exact laws of the canaries' scores.
      accountant: From the true noise multiplier.
    """

    rounds: list[int]
    published: list[float]
    lower: list[float]
    upper: list[float]
    gaussian: list[float]
    canaries: list[float]
    accountant: list[float]


def summarize_round(setting: Attacked, measured: Measured) -> RoundValues:
    """Summarizes a measured round: estimates, the attack's accuracy, and a perfect canary's epsilon.

    The published estimate is at the paper's delta, 1 / n for n = setting.scores scores. The attack's accuracy
    is the largest share of scores on the right side of a threshold.

    A perfect canary's score is N(1, sigma^2) with the canary and N(0, sigma^2) without it, where sigma is the
    noise multiplier. Its trade-off curve is Gaussian with mu = 1 / sigma. Its epsilon is given at the delta
    of the training run, and at the paper's.

    Args:
      setting: The setting of the training run.
      measured: What is stored of the round.
    """
    scores_in = measured.scores_in
    scores_out = measured.scores_out
    paper_delta = 1 / setting.scores
    mu = np.inf  # without noise
    if setting.noise_multiplier:
        mu = 1 / setting.noise_multiplier
    return RoundValues(
        measured,
        published=rounds.best_epsilon(scores_in, scores_out, CONFIDENCE, paper_delta),
        former=rounds.best_accuracy(scores_in, scores_out, CONFIDENCE, rounds.OLD_DELTA),
        accuracy=rounds.largest_accuracy(scores_in, scores_out),
        perfect=conversions.epsilon_from_mu(mu, setting.delta),
        perfect_at_paper_delta=conversions.epsilon_from_mu(mu, paper_delta),
    )


def compose(setting: Attacked, rows: Sequence[RoundValues], backward: bool) -> Global:
    """Composes the epsilons of measured rounds to those of the training run, by Renyi DP.

    Each measured round's epsilon is converted to the noise multiplier of a Gaussian round that leaks as much.
    All rounds that the measured round represents are charged as rounds with this noise multiplier. A round of
    infinite epsilon is charged its true noise multiplier.

    Args:
      setting: The setting.
      rows: The setting's measured rounds, in order.
      backward: Whether a measured round also represents the unmeasured rounds before it, as in the public
        code, instead of those after it, as in the paper.

    Returns:
      The training run's epsilon up to each measured round, from several sources.
    """
    measured_rounds = [row.measured.number for row in rows]
    # Every `setting.every`-th round is measured. So the last measured round represents the rounds up to the
    # next that would be measured, or up to the end of the training run.
    last_round = min(measured_rounds[-1] + setting.every - 1, setting.rounds)
    count_represented = rounds.backward if backward else rounds.forward
    represented = count_represented(measured_rounds, last_round)
    sampling_rate = setting.cohort / rows[0].measured.clients  # the same in all rounds
    true_noise = setting.noise_multiplier
    delta_of_round = 1 / setting.scores  # the delta of the published estimates

    def accumulate(noises: Sequence[float]) -> list[float]:
        """Returns the training run's epsilon up to each measured round, by Renyi DP.

        Args:
          noises: The noise multiplier that is charged for each measured round. It is charged once for every
            round that the measured round represents.
        """
        charges = []
        for noise, count in zip(noises, represented, strict=True):
            charges.append(Charge(noise, sampling_rate, count))
        return rounds.cumulative(charges, setting.delta)

    # The noise multiplier that each measured round is charged, in a list for each source, as in `Global`. For
    # the first three lists epsilon is converted to it through Renyi DP, as published. For the other two it is
    # converted by the exact Gaussian curve.
    published = []
    lower = []
    upper = []
    gaussian = []
    canaries = []
    for row in rows:
        estimate = row.published
        epsilon = estimate.estimate.epsilon
        lower_epsilon = rounds.lower_charged(estimate)  # at least 0.2, as in the public code
        published.append(rounds.renyi_charge(epsilon, delta_of_round, true_noise))
        lower.append(rounds.renyi_charge(lower_epsilon, delta_of_round, true_noise))
        upper.append(rounds.renyi_charge(estimate.upper, delta_of_round, true_noise))
        gaussian.append(rounds.gaussian_charge(epsilon, delta_of_round, true_noise))
        # The exact epsilon of the canary's score is at the training run's delta, unlike the estimates. It has
        # no least value either, which the public code gives to estimates alone.
        exact = row.measured.exact
        is_finite = np.isfinite(exact)
        canaries.append(rounds.gaussian_noise(exact, setting.delta) if is_finite else true_noise)
    return Global(
        rounds=[int(last) for last in np.cumsum(represented)],
        published=accumulate(published),
        lower=accumulate(lower),
        upper=accumulate(upper),
        gaussian=accumulate(gaussian),
        canaries=accumulate(canaries),
        accountant=accumulate([true_noise] * len(rows)),
    )


def compute_cohort_deviation(dots: Floats, size: Floats | int) -> Floats:
    """Returns the standard deviation of the sum of `size` of M numbers, drawn without replacement.

    The variance is size var (1 - size / M), with the numbers' sample variance var.

    Args:
      dots: (M,) the numbers: the clients' dot products.
      size: The size of a cohort, or an array of sizes.
    """
    return np.sqrt(size * np.var(dots, ddof=1) * (1 - size / len(dots)))


class Average(NamedTuple):
    """A quantity over seeds.

    Attributes:
      mean: The mean; infinite if the value of a seed is, NaN where the quantity has no value.
      deviation: The standard deviation; NaN where a value is not finite or there is a single seed.
    """

    mean: float
    deviation: float


def _score_deviation(setting: Attacked, row: RoundValues) -> float:
    """Returns the mean of the standard deviations of scores with and without the canary, noise included."""
    deviation_in = float(np.std(row.measured.scores_in))
    deviation_out = float(np.std(row.measured.scores_out))
    return (deviation_in + deviation_out) / 2


def _clients_deviation(setting: Attacked, row: RoundValues) -> float:
    """Returns the exact standard deviation of a cohort's sum of dot products, without noise."""
    return float(compute_cohort_deviation(row.measured.known, setting.cohort))


# What a round shows. attack: the largest share of scores on the right side of a threshold. health: the
# share of the first sample's penalty that the design removed. law, law_then: the exact epsilon at the
# training run's delta and at 1/n. test: the model's accuracy.
QUANTITIES: dict[str, Callable[[Attacked, RoundValues], float]] = {
    "deviation": _score_deviation,
    "clients": _clients_deviation,
    "attack": lambda setting, row: row.accuracy,
    "health": lambda setting, row: row.measured.health,
    "published": lambda setting, row: row.published.estimate.epsilon,
    "law_then": lambda setting, row: row.measured.exact_then,
    "law": lambda setting, row: row.measured.exact,
    "test": lambda setting, row: row.measured.accuracy,
}
# Epsilon of the training run up to a measured round: composed of the published estimates, and the
# accountant's. NaN unless rounds are on the x axis.
TOTALS = ("training", "accountant")


class AveragedPoint(NamedTuple):
    """A point of a curve: averages over training runs that differ in their seeds alone.

    Attributes:
      curve: The value of the curve's field.
      x: The place on the x axis.
      round: The number of the measured round.
      trainings: The number of training runs.
      averages: The averages of `QUANTITIES` and `TOTALS`, by name.
    """

    curve: Value
    x: int
    round: int
    trainings: int
    averages: dict[str, Average]


class Curves(NamedTuple):
    """Curves of a sweep.

    Attributes:
      curve: The field that has a curve for each of its values.
      x: The field on the x axis, or `round`.
      points: The points of all curves.
    """

    curve: str
    x: str
    points: list[AveragedPoint]


def average_over_seeds(
    curve: str, x: str, measured: Sequence[tuple[Attacked, Sequence[RoundValues]]]
) -> Curves:
    """Averages what measured rounds show, over settings that differ in their seeds alone.

    Args:
      curve: The field of the settings that has a curve for each of its values.
      x: The field on the x axis, or `round`.
      measured: The settings, each with its measured rounds.

    Returns:
      The curves, with averages of QUANTITIES and of TOTALS. The latter are epsilons of the training run. They
        are composed of all measured rounds, which are there only where rounds are on the x axis. Elsewhere
        they are NaN.
    """
    # By point, which is (the curve's value, x, round): a list for each seed. It has the values of QUANTITIES
    # and then those of TOTALS.
    seeds_by_point: dict[tuple[Value, int, int], list[list[float]]] = {}
    for setting, rows in measured:
        # For each row, epsilon by the published estimates and by the accountant, in the order of TOTALS.
        totals = [(np.nan, np.nan)] * len(rows)
        if x == ROUND:
            composed = compose(setting, rows, backward=False)
            totals = list(zip(composed.published, composed.accountant, strict=True))
        for row, total in zip(rows, totals, strict=True):
            round_number = row.measured.number
            # No field of a setting is named `round`: where x is `round`, the round's number is taken.
            place = getattr(setting, x, round_number)
            values = [compute(setting, row) for compute in QUANTITIES.values()]
            key = (getattr(setting, curve), place, round_number)
            seeds_by_point.setdefault(key, []).append([*values, *total])

    points = []
    for (curve_value, place, round_number), seeds in seeds_by_point.items():
        averages = {}
        over_seeds = zip(*seeds, strict=True)  # for each quantity, its values over the seeds
        for name, values_of_seeds in zip((*QUANTITIES, *TOTALS), over_seeds, strict=True):
            averages[name] = _average(values_of_seeds)
        points.append(AveragedPoint(curve_value, place, round_number, len(seeds), averages))
    return Curves(curve, x, points)


def _average(values: Sequence[float]) -> Average:
    """Returns the mean and the standard deviation of a quantity over seeds.

    The deviation is NaN for a single value, and where a value is not finite.
    """
    deviation = np.nan
    if len(values) > 1 and np.isfinite(values).all():
        deviation = float(np.std(values, ddof=1))
    return Average(float(np.mean(values)), deviation)


class _TableRow(NamedTuple):
    """A row of the table of measured rounds.

    Attributes:
      measured: What is stored of the round.
      values: What the round shows.
      total: The values of `Global`'s fields for the training run up to this round, in the fields' order.
    """

    measured: Measured
    values: RoundValues
    total: tuple[float, ...]


def make_rounds_table(
    setting: Attacked, rows: Sequence[RoundValues], composed: Global
) -> Table[_TableRow]:
    """Makes a table with a row for each measured round.

    Its text shows what each round leaks. Its CSV also has epsilon of the training run up to each round.

    Args:
      setting: The setting.
      rows: What the setting's measured rounds show.
      composed: Epsilon of the training run up to each measured round.
    """
    # A line above the columns' heads, which says at which delta their epsilons are. The first columns, of 26
    # characters, have none. Three columns at delta 1/n follow, and three at the training run's delta.
    at_delta = f"at delta {setting.delta:g}"
    headings = f"{'':>26} {'at delta 1/n':^32}{at_delta:^18}"

    # The notes below the table name the largest finite estimate that so many scores can show. It is 0 where
    # they are too few to show any.
    counted = rows[0].published.estimate
    cap = max(rounds.largest_estimate(counted.n_in, counted.n_out, 1 / setting.scores), 0.0)
    notes = _NOTES.format(n=setting.scores, cap=cap, mock=setting.mock_rounds, delta=setting.delta)

    # For each measured round, the values of all fields of `Global`.
    totals_by_round = zip(*composed, strict=True)
    lines = []
    for row, total in zip(rows, totals_by_round, strict=True):
        lines.append(_TableRow(row.measured, row, total))
    return Table(
        _ROUND_COLUMNS,
        lines,
        before=[headings.rstrip()],
        after=[notes],
        gap=" ",
        rule=_WIDTH,
        digits=_CSV_DIGITS,
    )


def _format_interval(estimate: RoundEstimate) -> str:
    """Formats an estimate of epsilon with its interval."""
    return f"{estimate.estimate.epsilon:.2f} [{estimate.lower:.1f}, {estimate.upper:.1f}]"


def _format_norm(norm: float) -> str:
    """Formats a gradient's norm in a few characters."""
    return f"{norm:.0f}" if norm >= 100 else f"{norm:.3g}"


def _total_column(key: str, field: str) -> Column:
    """Returns a column with the key `key`, for the CSV alone, of a field of `Global`."""
    place = Global._fields.index(field)
    return Column(key, lambda row: row.total[place])


_ROUND_COLUMNS = (
    Column("round", lambda row: row.measured.number, "round", width=5),
    Column("test_accuracy", lambda row: row.measured.accuracy, "test", number(".0%"), 5),
    Column("health", lambda row: row.measured.health, "health", number(".3f"), 6),
    Column("gradient_norm", lambda row: row.measured.norm, "|g|", _format_norm, 6),
    Column("own_dot", lambda row: row.measured.own),
    Column("dots_deviation", lambda row: np.std(row.measured.known)),
    Column("attack_accuracy", lambda row: row.values.accuracy),
    Column("deviation_in", lambda row: np.std(row.measured.scores_in)),
    Column("deviation_out", lambda row: np.std(row.measured.scores_out)),
    Column(None, lambda row: row.values.published, "published", _format_interval, 17),
    Column("published", lambda row: row.values.published.estimate.epsilon),
    Column("lower", lambda row: row.values.published.lower),
    Column("upper", lambda row: row.values.published.upper),
    Column("former", lambda row: row.values.former.estimate.epsilon),
    Column("law_at_1/n", lambda row: row.measured.exact_then, "law", number(".2f"), 6),
    Column(
        "perfect_at_1/n",
        lambda row: row.values.perfect_at_paper_delta,
        "perfect",
        number(".2f"),
        7,
    ),
    Column("law", lambda row: row.measured.exact, "law", number(".2f"), 6),
    Column("perfect", lambda row: row.values.perfect, "perfect", number(".2f"), 7),
    Column("proven", lambda row: row.measured.proven, "proven", partial(at_least, decimals=2), 6),
    Column("proven_if_gaussian", lambda row: row.measured.proven_if_gaussian),
    _total_column("charged_to", "rounds"),
    _total_column("global_published", "published"),
    _total_column("global_lower", "lower"),
    _total_column("global_upper", "upper"),
    _total_column("global_gaussian", "gaussian"),
    _total_column("global_canaries", "canaries"),
    _total_column("accountant", "accountant"),
)


def format_canaries(rows: Sequence[RoundValues]) -> str:
    """Returns the designed texts, round by round, as Table 1 of the CANIFE paper lists them.

    The result is empty where canaries are images.
    """
    lines = []
    for row in rows:
        canary = row.measured.canary
        if isinstance(canary, str):
            # The first line has the round's number before it; further lines are indented as far.
            first_line, *more_lines = wrap_escaped(canary, _TEXT_WIDTH)
            lines.append(f"{row.measured.number:>5} {first_line}")
            lines += [f"{'':>5} {line}" for line in more_lines]
    if not lines:
        return ""
    return "\n".join(["round canary, a designed text; a line break is shown as \\n", *lines])


def wrap_escaped(text: str, width: int) -> list[str]:
    r"""Returns a text in lines of at most `width` characters, with unprintable characters escaped.

    A line break is shown as \n, for example. An escape sequence is never split between lines.
    """
    lines = [""]
    for character in text:
        shown = character if character.isprintable() else repr(character)[1:-1]  # without quotes
        if len(lines[-1]) + len(shown) > width:
            lines.append("")
        lines[-1] += shown
    return lines


def format_totals(
    setting: Attacked, rows: Sequence[RoundValues], composed: Global, backward: bool
) -> str:
    """Formats the training run's epsilon, with a line for each way to compute it.

    The published estimates of rounds are composed through Renyi DP, and through the Gaussian curve. The exact
    laws are the distributions of the canaries' scores.

    A perfect canary leaks all that the noise allows. Its line shows what the published procedure makes of it.
    The procedure is simulated for 150 rounds, and every round is charged their median estimate (Errata C9).

    The accountant has two lines. Scores come from mock rounds, which are played with a frozen model and not
    released. The second line counts all rounds of the setting, and the mock rounds of the published estimates
    as if they were released too (Errata C4). The mock rounds of lower bounds are not counted.

    Args:
      setting: The setting.
      rows: The setting's measured rounds.
      composed: Epsilon of the training run up to each measured round.
      backward: Whether a measured round was charged for the rounds before it too, rather than those after.
    """
    sampling_rate = setting.cohort / rows[0].measured.clients  # the same in all rounds
    charge = Charge(setting.noise_multiplier, sampling_rate, composed.rounds[-1])
    rng = np.random.default_rng(setting.seed)  # so that the simulation is the same at each call
    perfect = rounds.ideal(rng, charge, setting.delta, setting.scores).composed

    # The rounds of training, and a mock round for each score of a published estimate. Mock rounds draw their
    # cohorts from fewer clients, of whom each takes part more often.
    population = len(rows[0].measured.known)
    training = charge._replace(rounds=setting.rounds)
    mock = Charge(setting.noise_multiplier, setting.cohort / population, len(rows) * setting.scores)
    released = rounds.composed([training, mock], setting.delta)

    way = "backward" if backward else "forward"
    interval = f"{composed.published[-1]:.2f} [{composed.lower[-1]:.2f}, {composed.upper[-1]:.2f}]"
    return f"""\
epsilon over {composed.rounds[-1]:,} rounds at delta {setting.delta:g}, charged {way}:
  as published, through Renyi DP             {interval:>20}
  as published, through the Gaussian curve   {composed.gaussian[-1]:>20.2f}
  as published, of a perfect canary          {perfect:>20.2f}
  of the canaries' exact laws                {composed.canaries[-1]:>20.2f}
  the accountant's                           {composed.accountant[-1]:>20.2f}
  and its value if mock rounds were released {released:>20.2f}"""


def make_curves_table(title: str, curves: Curves) -> Table[AveragedPoint]:
    """Makes a table with a row for each point of a sweep's curves.

    Its text shows means, with standard deviations over training runs in brackets. Its CSV has means and
    deviations of all quantities.

    Args:
      title: The title above the table.
      curves: The points, which are over rounds or over a field of the setting.
    """
    # A line above the table says what is averaged.
    trainings = max(point.trainings for point in curves.points)
    average = "one training run each"
    if trainings > 1:
        average = f"mean (deviation) over {trainings} training runs"

    # A column has a key, which is its name in the CSV; a function from a point to its value there; and a
    # head, which is its name in the text. With None for a key it is in the text alone, and without a head it
    # is in the CSV alone.
    #
    # First come the columns that tell which point a row is.
    over_rounds = curves.x == ROUND
    columns = [Column(curves.curve, lambda point: point.curve, curves.curve)]
    if over_rounds:
        columns.append(Column(ROUND, lambda point: point.round, ROUND))
    else:
        # Each word of the head has a line of its own, so that the column is narrow.
        head_of_x = curves.x.replace("_", "\n")
        columns.append(Column(curves.x, lambda point: point.x, head_of_x))
        columns.append(Column(ROUND, lambda point: point.round))
        # All points show the same round, the last measured.
        average = f"round {curves.points[-1].round}, {average}"
    columns.append(Column("trainings", lambda point: point.trainings))

    # Then come the columns of the CSV, and last those of the text.
    for name in (*QUANTITIES, *TOTALS):
        columns.append(Column(name, partial(_get_average, name, "mean")))
        columns.append(Column(f"{name}_deviation", partial(_get_average, name, "deviation")))
    for name in _SHOWN_OVER_ROUNDS if over_rounds else _SHOWN:
        head = name
        # The exact epsilon at delta 1/n. The text has no exact epsilon at another delta, and calls it `law`.
        if name == "law_then":
            head = "law"
        columns.append(Column(None, partial(_format_average, name), head))

    notes = [_CURVES_NOTES, _TRAINING_NOTE] if over_rounds else [_DEVIATION_NOTE, _CURVES_NOTES]
    return Table(
        columns,
        curves.points,
        before=[title, average],
        after=notes,
        gap=" ",
        rule=_WIDTH,
        digits=_CSV_DIGITS,
    )


def _get_average(name: str, field: str, point: AveragedPoint) -> float | None:
    """Returns a quantity's `mean` or `deviation` at a point; None if it is NaN."""
    value: float = getattr(point.averages[name], field)
    return None if np.isnan(value) else value


def _format_average(name: str, point: AveragedPoint) -> str:
    """Formats a quantity's mean and, in brackets, its standard deviation over training runs.

    The deviation is left out where it is NaN, and for the quantities in _SHOWN_WITHOUT_DEVIATION.

    Args:
      name: The quantity, a key of _DECIMALS.
      point: The point, with its averages.
    """
    decimals = _DECIMALS[name]
    mean, deviation = point.averages[name]
    text = f"{mean:.{decimals}f}"
    if np.isnan(deviation) or name in _SHOWN_WITHOUT_DEVIATION:
        return text
    return f"{text} ({deviation:.{decimals}f})"
