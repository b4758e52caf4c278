"""A grid's curves in 80 columns, and as CSV."""

from itertools import zip_longest

import numpy as np

from experiments.canife.varied import Value
from experiments.canife.varied_points import Average, Averaged, Averages, Curves

_SHOWN = {"deviation": 3, "attack": 2, "health": 3, "published": 2, "law_then": 2}  # and their decimals
_HEADS = {"law_then": "law"}
_NOTES = """\
deviation: of the scores over C, both worlds' mean, noise included. attack: its
accuracy. published: the estimate a round; law: exact; both at delta 1/n"""


def varied_table(curves: Curves) -> str:
    """A row a point: means, and in brackets the deviations over trainings."""
    names = [name for name in (curves.curve, curves.x) if name]
    heads = [name.split("_") for name in names] + [[_HEADS.get(name, name)] for name in _SHOWN]
    cells = [_places(curves, one) + _averages(one) for one in curves.points]
    widths = [
        max(len(cell) for cell in (*head, *column))
        for head, column in zip(heads, zip(*cells, strict=True), strict=True)
    ]
    tall = max(map(len, heads))
    above = zip_longest(*([""] * (tall - len(head)) + head for head in heads))
    lines = [_line(words, widths) for words in above]
    lines.append("-" * max(80, sum(widths) + len(widths) - 1))
    lines += [_line(row, widths) for row in cells]
    return "\n".join([_title(curves), *lines, _NOTES])


def as_csv(curves: Curves) -> str:
    """A row a point, with all digits that matter: means and deviations."""
    names = [name for name in (curves.curve, curves.x) if name and name != "round"]
    columns = [f"{name}{end}" for name in Averages._fields for end in ("", "_deviation")]
    lines = [",".join([*names, "round", "trainings", *columns])]
    for one in curves.points:
        places = _places(curves, one)[: len(names)]
        values = [f"{value:.7g}" for average in one.averages for value in average]
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
    return over if curves.x == "round" else f"{where}, {over}"


def _places(curves: Curves, one: Averaged) -> list[str]:
    """The values of the fields at a point."""
    return [text(one.curve)] * bool(curves.curve) + [text(one.x)]


def _averages(one: Averaged) -> list[str]:
    """The shown means at a point."""
    return [_shown(getattr(one.averages, name), digits) for name, digits in _SHOWN.items()]


def _shown(average: Average, digits: int) -> str:
    """0.167 (0.012)"""
    mean = f"{average.mean:.{digits}f}"
    return mean if np.isnan(average.deviation) else f"{mean} ({average.deviation:.{digits}f})"


def _line(words: tuple[str, ...] | list[str], widths: list[int]) -> str:
    """Words in columns, right-aligned."""
    return " ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True)).rstrip()
