"""A grid's settings averaged over seeds, as curves over an x axis: numbers alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.canife import curves
from experiments.canife.attacked import Attacked
from experiments.canife.curves import RoundValues
from experiments.canife.varied import Value
from experiments.canife.varied_training import Found

ROUND = "round"


class Average(NamedTuple):
    """A mean over seeds, infinite where one of them is, and its deviation; nan where there is none."""

    mean: float
    deviation: float


class Averages(NamedTuple):
    """What a round shows, averaged over seeds.

    deviation: of the scores, the mean of both worlds', noise included. clients: of the cohort's sum of dot
    products alone, exactly. attack: the largest share of scores on the right side of a threshold. published:
    the estimate; law, law_then: the exact epsilon at the training's delta and at 1/n. test: the model's
    accuracy.
    """

    deviation: Average
    clients: Average
    attack: Average
    health: Average
    published: Average
    law_then: Average
    law: Average
    test: Average


class Averaged(NamedTuple):
    """A point of a curve: its curve's value (empty where there is one curve), its x, its measured round, and
    over how many trainings it is averaged."""

    curve: Value
    x: Value
    round: int
    trainings: int
    averages: Averages


class Curves(NamedTuple):
    """curve: the field that tells curves apart, or empty. x: the field on the axis, or `round`."""

    curve: str
    x: str
    points: list[Averaged]


def averaged(names: Sequence[str], over_rounds: bool, found: Sequence[Found]) -> Curves:
    """The curves of a grid's settings over its fields, by name: of two the first tells curves apart.
    over_rounds: the measured rounds are the x axis."""
    together: dict[tuple[Value, Value, int], list[Averages]] = {}
    for one in found:
        for row in one.rows:
            number = row.measured.number
            place = (*one.values, number) if over_rounds else one.values
            curve, x = place if len(place) == 2 else ("", place[0])
            together.setdefault((curve, x, number), []).append(_single(one.attacked, row))
    points = [Averaged(*key, len(several), _average(several)) for key, several in together.items()]
    *curve_field, x_field = [*names, ROUND] if over_rounds else names
    return Curves("".join(curve_field), x_field, points)


def _single(attacked: Attacked, row: RoundValues) -> Averages:
    """One training's values."""
    kept = row.measured
    values = (
        (float(np.std(kept.scores_in)) + float(np.std(kept.scores_out))) / 2,
        float(curves.cohort_deviation(kept.known, attacked.cohort)),
        row.accuracy,
        kept.health,
        row.published.estimate.epsilon,
        kept.exact_then,
        kept.exact,
        kept.accuracy,
    )
    return Averages(*(Average(value, np.nan) for value in values))


def _average(several: Sequence[Averages]) -> Averages:
    """The means over trainings."""
    return Averages(*(_mean([one.mean for one in column]) for column in zip(*several, strict=True)))


def _mean(values: Sequence[float]) -> Average:
    """The mean and, of several finite values, their deviation."""
    spread = len(values) > 1 and np.isfinite(values).all()
    return Average(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else np.nan)
