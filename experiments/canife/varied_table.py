"""A grid's curves in 80 columns, and as CSV."""

from itertools import zip_longest

import numpy as np

from experiments.canife.varied import ROUND, Value
from experiments.canife.varied_points import Average, Averaged, Averages, Curves

_DECIMALS = {"deviation": 3, "attack": 2, "health": 3, "published": 2, "law_then": 2, "training": 2}
_ALONE = ("health", "law_then")  # the CSV has their deviations
_SHOWN = ("deviation", "attack", "health", "published", "law_then")
_OVER_ROUNDS = ("attack", "health", "published", "law_then", "training")
_HEADS = {"law_then": "law"}
_DEVIATION = "deviation: of the scores / C, both worlds' mean, with noise"
_NOTES = """\
attack: the attack's accuracy. published: the estimate a round; law: exact; both
at delta 1/n. inf: infinite in at least one training"""
_TRAINING = "\ntraining: epsilon up to there, composed of the published estimates"


def varied_table(curves: Curves) -> str:
    """A row a point: means, and in brackets the deviations over trainings."""
    names = [name for name in (curves.curve, curves.x) if name]
    shown = _OVER_ROUNDS if curves.x == ROUND else _SHOWN
    heads = [name.split("_") for name in names] + [[_HEADS.get(name, name)] for name in shown]
    cells = [_places(curves, one) + [_shown(one, name) for name in shown] for one in curves.points]
    widths = [
        max(len(cell) for cell in (*head, *column))
        for head, column in zip(heads, zip(*cells, strict=True), strict=True)
    ]
    tall = max(map(len, heads))
    above = zip_longest(*([""] * (tall - len(head)) + head for head in heads))
    lines = [_line(words, widths) for words in above]
    lines.append("-" * max(80, sum(widths) + len(widths) - 1))
    lines += [_line(row, widths) for row in cells]
    notes = _NOTES + _TRAINING if curves.x == ROUND else f"{_DEVIATION}\n{_NOTES}"
    return "\n".join([_title(curves), *lines, notes])


def as_csv(curves: Curves) -> str:
    """A row a point, with all digits that matter: means and deviations."""
    names = [name for name in (curves.curve, curves.x) if name and name != ROUND]
    columns = [f"{name}{end}" for name in Averages._fields for end in ("", "_deviation")]
    lines = [",".join([*names, "round", "trainings", *columns])]
    for one in curves.points:
        places = _places(curves, one)[: len(names)]
        values = [f"{value:.7g}" if not np.isnan(value) else "" for pair in one.averages for value in pair]
        lines.append(",".join([*places, str(one.round), str(one.trainings), *values]))
    return "\n".join(lines) + "\n"


def text(value: Value) -> str:
    """A field's value as a flag has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _title(curves: Curves) -> str:
    """What the rows are averaged over."""
    trainings = max(one.trainings for one in curves.points)
    over = f"mean (deviation) over {trainings} trainings" if trainings > 1 else "one training each"
    numbers = {one.round for one in curves.points}
    where = f"round {max(numbers)}" if len(numbers) == 1 else "last measured rounds"
    return over if curves.x == ROUND else f"{where}, {over}"


def _places(curves: Curves, one: Averaged) -> list[str]:
    """The values of the fields at a point."""
    return [text(one.curve)] * bool(curves.curve) + [text(one.x)]


def _shown(one: Averaged, name: str) -> str:
    """0.167 (0.012), or a mean alone."""
    average: Average = getattr(one.averages, name)
    mean = f"{average.mean:.{_DECIMALS[name]}f}"
    alone = np.isnan(average.deviation) or name in _ALONE
    return mean if alone else f"{mean} ({average.deviation:.{_DECIMALS[name]}f})"


def _line(words: tuple[str, ...] | list[str], widths: list[int]) -> str:
    """Words in columns, right-aligned."""
    return " ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True)).rstrip()
