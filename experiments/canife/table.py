"""Measured rounds, the training's epsilon, and a grid's curves: 80 columns, and CSV."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from audit.report.table import Column, Table, number
from audit.statistics import rounds
from audit.statistics.rounds import RoundEstimate
from experiments.canife.attacked import ROUND, Attacked, Value
from experiments.canife.curves import QUANTITIES, TOTALS, Averaged, Curves, Global, RoundValues
from experiments.canife.training import Measured

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
    """3.62 [1.7, 7.4]."""
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
        Column(None if over_rounds else curves.x, lambda one: text(one.x), curves.x.replace("_", "\n")),
        Column("round", lambda one: one.round),
        Column("trainings", lambda one: one.trainings),
    ]
    if curves.curve:
        head = curves.curve.replace("_", "\n")
        columns.insert(0, Column(curves.curve, lambda one: text(one.curve), head))
    for name in (*QUANTITIES, *TOTALS):
        columns += [
            Column(name, partial(_present, name, 0)),
            Column(f"{name}_deviation", partial(_present, name, 1)),
        ]
    for name in _OVER_ROUNDS if over_rounds else _SHOWN:
        columns.append(Column(None, partial(_bracketed, name), "law" if name == "law_then" else name))
    notes = [_CURVES_NOTES, _TRAINING] if over_rounds else [_DEVIATION, _CURVES_NOTES]
    table = Table(columns, curves.points, None, [title], notes, " ", _WIDTH, _DIGITS)
    wide = max(map(len, table.text().splitlines())) > _WIDTH
    return replace(table, rule=0) if wide else table


def text(value: Value) -> str:
    """A field's value as a flag has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _present(name: str, place: int, one: Averaged) -> float | None:
    """One of a point's means or deviations; None where it has none."""
    value = one.averages[name][place]
    return None if np.isnan(value) else value


def _bracketed(name: str, one: Averaged) -> str:
    """0.167 (0.012), or a mean alone."""
    mean, deviation = (f"{value:.{_DECIMALS[name]}f}" for value in one.averages[name])
    return mean if deviation == "nan" or name in _ALONE else f"{mean} ({deviation})"
