"""From measured rounds to one epsilon a round and one for the training, and of a grid's settings to averages
over seeds along an x axis; and their tables, in 80 columns and as CSV."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from audit.report.table import Column, Table, number
from audit.statistics import conversions, rounds
from audit.statistics.rounds import Charge, RoundEstimate
from experiments.canife import training
from experiments.canife.attacked import ROUND, Attacked, Value, VariedGrid
from experiments.canife.training import CONFIDENCE, Floats, Measured, Request

_WIDTH, _TEXT_WIDTH, _DIGITS = 80, 72, 7
_NOTES = """\
published: best threshold of {n} scores at delta 1/n [95% Clopper-Pearson], an
estimate, at most {cap:.2f} whatever leaks. law: the exact epsilon of the score;
perfect: of a canary that nothing disturbs, which is all that the round's noise
allows. proven: a bound at 95% from {mock:,} mock rounds a world, at delta {delta:g}"""
_DECIMALS = {"deviation": 3, "attack": 2, "health": 3, "published": 2, "law_then": 2, "training": 2}
_ALONE = ("health", "law_then")  # the CSV has their deviations
_SHOWN = ("deviation", "attack", "health", "published", "law_then")
_OVER_ROUNDS = ("attack", "health", "published", "law_then", "training")
_DEVIATION = "deviation: of the scores / C, both worlds' mean, with noise"
_CURVES_NOTES = """\
attack: the attack's accuracy. published: the estimate a round; law: exact; both
at delta 1/n. inf: infinite in at least one training"""
_TRAINING = "training: epsilon up to there, composed of the published estimates"


class RoundValues(NamedTuple):
    """One measured round: as published, and exact at both deltas. truth: of a perfect canary."""

    measured: Measured
    published: RoundEstimate
    former: RoundEstimate
    accuracy: float
    truth: float
    truth_then: float


class Global(NamedTuple):
    """epsilon of the training up to each measured round's last charged round (`rounds`): as published with
    its interval, by the exact Gaussian curve, of the canaries' exact laws, and the accountant's."""

    rounds: list[int]
    published: list[float]
    lower: list[float]
    upper: list[float]
    gaussian: list[float]
    canaries: list[float]
    accountant: list[float]


def row(attacked: Attacked, one: Measured) -> RoundValues:
    """A measured round's values."""
    scores = one.scores_in, one.scores_out
    mu = 1 / attacked.noise_multiplier if attacked.noise_multiplier else np.inf
    return RoundValues(
        one,
        rounds.best_epsilon(*scores, CONFIDENCE, 1 / attacked.scores),
        rounds.best_accuracy(*scores, CONFIDENCE),
        rounds.largest_accuracy(*scores),
        conversions.epsilon_from_mu(mu, attacked.delta),
        conversions.epsilon_from_mu(mu, 1 / attacked.scores),
    )


def composed(attacked: Attacked, rows: Sequence[RoundValues], clients: int, backward: bool) -> Global:
    """The curves over a training of so many clients, charged backward or forward."""
    numbers = [one.measured.number for one in rows]
    total = min(numbers[-1] + attacked.every - 1, attacked.rounds)
    counts = (rounds.backward if backward else rounds.forward)(numbers, total)
    rate, sigma, then = attacked.cohort / clients, attacked.noise_multiplier, 1 / attacked.scores

    def curve(noises: Sequence[float]) -> list[float]:
        charges = [Charge(noise, rate, count) for noise, count in zip(noises, counts, strict=True)]
        return rounds.cumulative(charges, attacked.delta)

    values = [one.published.estimate.epsilon for one in rows]
    return Global(
        [int(n) for n in np.cumsum(counts)],
        curve([rounds.renyi_charge(value, then, sigma) for value in values]),
        curve([rounds.renyi_charge(rounds.lower_charged(one.published), then, sigma) for one in rows]),
        curve([rounds.renyi_charge(one.published.upper, then, sigma) for one in rows]),
        curve([rounds.gaussian_charge(value, then, sigma) for value in values]),
        curve([rounds.gaussian_charge(one.measured.exact, attacked.delta, sigma) for one in rows]),
        curve([sigma] * len(rows)),
    )


def perfect_as_published(attacked: Attacked, charged: int, clients: int) -> float:
    """epsilon that the published procedure shows of an undisturbed canary: median of 150 (Errata C9)."""
    charge = Charge(attacked.noise_multiplier, attacked.cohort / clients, charged)
    rng = np.random.default_rng(attacked.seed)
    return rounds.ideal(rng, charge, attacked.delta, attacked.scores).composed


def by_cohort(attacked: Attacked, one: Measured) -> tuple[list[int], list[float], list[float]]:
    """What a measured round's canary would show among fewer clients a round, or more: cohorts' sizes, the
    score's deviations, and the shares of right guesses, were its law normal. A cohort's sum of known dot
    products, drawn without replacement, has a known variance, so that no further rounds are played."""
    clients = len(one.known)
    sizes = np.unique(np.geomspace(2, max(clients // 2, 2), 24).astype(int))
    deviations = np.hypot(cohort_deviation(one.known, sizes), attacked.noise_multiplier)
    accuracies = scipy.stats.norm.cdf(one.own / 2 / np.maximum(deviations, 1e-12))
    return sizes.tolist(), deviations.tolist(), accuracies.tolist()


def cohort_deviation(known: Floats, size: Floats | int) -> Floats:
    """The deviation of the sum of so many of the known dot products (M,), drawn without replacement."""
    return np.sqrt(size * np.var(known, ddof=1) * (1 - size / len(known)))


def if_released(attacked: Attacked, rows: Sequence[RoundValues], clients: int) -> float:
    """epsilon of the training and its estimates' mock rounds, had they been released (Errata C4)."""
    rate, played = attacked.cohort / clients, attacked.rounds + len(rows) * attacked.scores
    return rounds.composed([Charge(attacked.noise_multiplier, rate, played)], attacked.delta)


def stored(request: Request, out: Path) -> list[RoundValues]:
    """Those of a setting's rounds that are stored under `out`."""
    store = training.store_of(request.attacked, request.checksum, out)
    kept = training.kept(request.attacked, store, request.rounds)
    return [row(request.attacked, one) for one in kept.values()]


class Average(NamedTuple):
    """A mean over seeds, infinite where one of them is, and its deviation; nan where there is none."""

    mean: float
    deviation: float


# What a round shows. deviation: the mean of both worlds', noise included. clients: the deviation of the
# cohort's sum of dot products alone, exactly. attack: the largest share of scores on the right side of a
# threshold. law, law_then: the exact epsilon at the training's delta and at 1/n. test: the model's accuracy.
QUANTITIES: dict[str, Callable[[Attacked, RoundValues], float]] = {
    "deviation": lambda attacked, one: (
        (float(np.std(one.measured.scores_in)) + float(np.std(one.measured.scores_out))) / 2
    ),
    "clients": lambda attacked, one: float(cohort_deviation(one.measured.known, attacked.cohort)),
    "attack": lambda attacked, one: one.accuracy,
    "health": lambda attacked, one: one.measured.health,
    "published": lambda attacked, one: one.published.estimate.epsilon,
    "law_then": lambda attacked, one: one.measured.exact_then,
    "law": lambda attacked, one: one.measured.exact,
    "test": lambda attacked, one: one.measured.accuracy,
}
# epsilon up to there, composed of the estimates, and the accountant's; nan where rounds are no axis
TOTALS = ("training", "accountant")


class Averaged(NamedTuple):
    """A point of a curve: its curve's value (empty where there is one curve), its x, its measured round, over
    how many trainings it is averaged, and the averages of `QUANTITIES` and `TOTALS`."""

    curve: Value
    x: Value
    round: int
    trainings: int
    averages: dict[str, Average]


class Curves(NamedTuple):
    """curve: the field that tells curves apart, or empty. x: the field on the axis, or `round`."""

    curve: str
    x: str
    points: list[Averaged]


def averaged(
    grid: VariedGrid, measured: Sequence[tuple[Request, Sequence[RoundValues]]], backward: bool
) -> Curves:
    """The curves of a grid's settings; over rounds, trainings are charged backward or forward."""
    together: dict[tuple[Value, Value, int], list[list[float]]] = {}
    for (values, attacked, clients, *_), rows in measured:
        totals = [(np.nan, np.nan)] * len(rows)
        if grid.over_rounds:
            whole = composed(attacked, rows, clients, backward)
            totals = list(zip(whole.published, whole.accountant, strict=True))
        for one, total in zip(rows, totals, strict=True):
            number = one.measured.number
            place = (*values, number) if grid.over_rounds else values
            curve, x = place if len(place) == 2 else ("", place[0])
            shown = [*(of(attacked, one) for of in QUANTITIES.values()), *total]
            together.setdefault((curve, x, number), []).append(shown)
    points = []
    for key, several in together.items():
        averages = map(_average, zip(*several, strict=True))
        named = dict(zip([*QUANTITIES, *TOTALS], averages, strict=True))
        points.append(Averaged(*key, len(several), named))
    return Curves(grid.curve, grid.x, points)


def _average(values: Sequence[float]) -> Average:
    spread = len(values) > 1 and np.isfinite(values).all()
    return Average(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else np.nan)


class _Row(NamedTuple):
    """A measured round, what it shows, and the training up to there by each of `Global`'s readings."""

    kept: Measured
    one: RoundValues
    total: tuple[float, ...]


def rounds_table(attacked: Attacked, rows: Sequence[RoundValues], composed: Global) -> Table[_Row]:
    """A row a measured round."""
    groups = f"{'':>26} {'at delta 1/n':^32}{'at delta ' + format(attacked.delta, 'g'):^18}"
    half = attacked.scores // 2
    cap = rounds.largest_estimate(half, half, 1 / attacked.scores)
    notes = _NOTES.format(n=attacked.scores, cap=cap, mock=attacked.mock_rounds, delta=attacked.delta)
    totals = zip(*composed, strict=True)
    lines = [_Row(one.measured, one, total) for one, total in zip(rows, totals, strict=True)]
    return Table(_ROUND_COLUMNS, lines, None, [groups.rstrip()], [notes], " ", _WIDTH, _DIGITS)


def _interval(one: RoundEstimate) -> str:
    return f"{one.estimate.epsilon:.2f} [{one.lower:.1f}, {one.upper:.1f}]"


def _norm(norm: float) -> str:
    return f"{norm:.0f}" if norm >= 100 else f"{norm:.3g}"


def _total(place: int, row: _Row) -> float:
    return row.total[place]


_ROUND_COLUMNS = (
    Column("round", lambda row: row.kept.number, "round", width=5),
    Column("test_accuracy", lambda row: row.kept.accuracy, "test", number(".0%"), 5),
    Column("health", lambda row: row.kept.health, "health", number(".3f"), 6),
    Column("gradient_norm", lambda row: row.kept.norm, "|g|", _norm, 6),
    Column("own_dot", lambda row: row.kept.own),
    Column("dots_deviation", lambda row: np.std(row.kept.known)),
    Column("attack_accuracy", lambda row: row.one.accuracy),
    Column("deviation_in", lambda row: np.std(row.kept.scores_in)),
    Column("deviation_out", lambda row: np.std(row.kept.scores_out)),
    Column(None, lambda row: row.one.published, "published", _interval, 17),
    Column("published", lambda row: row.one.published.estimate.epsilon),
    Column("lower", lambda row: row.one.published.lower),
    Column("upper", lambda row: row.one.published.upper),
    Column("former", lambda row: row.one.former.estimate.epsilon),
    Column("law_at_1/n", lambda row: row.kept.exact_then, "law", number(".2f"), 6),
    Column("perfect_at_1/n", lambda row: row.one.truth_then, "perfect", number(".2f"), 7),
    Column("law", lambda row: row.kept.exact, "law", number(".2f"), 6),
    Column("perfect", lambda row: row.one.truth, "perfect", number(".2f"), 7),
    Column("proven", lambda row: row.kept.proven, "proven", number(".2f"), 6),
    Column("proven_if_gaussian", lambda row: row.kept.proven_if_gaussian),
    Column("charged_to", partial(_total, 0)),
    *(Column(f"global_{name}", partial(_total, i)) for i, name in enumerate(Global._fields[1:-1], 1)),
    Column("accountant", partial(_total, -1)),
)


def canaries_table(rows: Sequence[RoundValues]) -> str:
    """The designed texts, as in the paper's Table 1; nothing where canaries are images."""
    lines = ["round canary, a designed text; a line break is shown as \\n"]
    for kept in (one.measured for one in rows):
        if isinstance(kept.canary, str):
            first, *rest = broken(kept.canary, _TEXT_WIDTH)
            lines += [f"{kept.number:>5} {first}", *(f"{'':>5} {part}" for part in rest)]
    return "\n".join(lines) if len(lines) > 1 else ""


def broken(text: str, width: int) -> list[str]:
    """A text in lines of so many characters, with line breaks and the like escaped."""
    lines = [""]
    for character in text:
        shown = character if character.isprintable() else repr(character)[1:-1]
        if len(lines[-1]) + len(shown) > width:
            lines.append("")
        lines[-1] += shown
    return lines


def global_table(
    attacked: Attacked, composed: Global, perfect: float, released: float, backward: bool
) -> str:
    """The training's epsilon by each reading. perfect: as published, of a canary that nothing disturbs."""
    way = "backward" if backward else "forward"
    interval = f"{composed.published[-1]:.2f} [{composed.lower[-1]:.2f}, {composed.upper[-1]:.2f}]"
    return f"""\
epsilon over {composed.rounds[-1]:,} rounds at delta {attacked.delta:g}, charged {way}:
  as published, through Renyi DP             {interval:>20}
  as published, through the Gaussian curve   {composed.gaussian[-1]:>20.2f}
  as published, of a perfect canary          {perfect:>20.2f}
  of the canaries' exact laws                {composed.canaries[-1]:>20.2f}
  the accountant's                           {composed.accountant[-1]:>20.2f}
  and its value if mock rounds were released {released:>20.2f}"""


def curves_table(curves: Curves) -> Table[Averaged]:
    """A row a point: means, and for people in brackets the deviations over trainings."""
    over_rounds = curves.x == ROUND
    trainings = max(one.trainings for one in curves.points)
    title = f"mean (deviation) over {trainings} trainings" if trainings > 1 else "one training each"
    if not over_rounds:
        numbers = {one.round for one in curves.points}
        title = f"{f'round {max(numbers)}' if len(numbers) == 1 else 'last measured rounds'}, {title}"
    columns = [
        Column(None if over_rounds else curves.x, lambda one: flag_text(one.x), curves.x.replace("_", "\n")),
        Column("round", lambda one: one.round),
        Column("trainings", lambda one: one.trainings),
    ]
    if curves.curve:
        head = curves.curve.replace("_", "\n")
        columns.insert(0, Column(curves.curve, lambda one: flag_text(one.curve), head))
    for name in (*QUANTITIES, *TOTALS):
        columns += [
            Column(name, partial(_present, name, 0)),
            Column(f"{name}_deviation", partial(_present, name, 1)),
        ]
    for name in _OVER_ROUNDS if over_rounds else _SHOWN:
        columns.append(Column(None, partial(_bracketed, name), "law" if name == "law_then" else name))
    notes = [_CURVES_NOTES, _TRAINING] if over_rounds else [_DEVIATION, _CURVES_NOTES]
    table = Table(columns, curves.points, None, [title], notes, " ", _WIDTH, _DIGITS)
    return replace(table, rule=0) if max(map(len, table.text().splitlines())) > _WIDTH else table


def flag_text(value: Value) -> str:
    """A field's value as a flag has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _present(name: str, place: int, one: Averaged) -> float | None:
    value = one.averages[name][place]
    return None if np.isnan(value) else value


def _bracketed(name: str, one: Averaged) -> str:
    mean, deviation = (f"{value:.{_DECIMALS[name]}f}" for value in one.averages[name])
    return mean if deviation == "nan" or name in _ALONE else f"{mean} ({deviation})"
