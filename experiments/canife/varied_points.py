"""A grid's settings averaged over seeds, as curves over an x axis: numbers alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.canife import curves
from experiments.canife.attacked import Attacked
from experiments.canife.curves import RoundValues
from experiments.canife.varied import Layout, Value
from experiments.canife.varied_training import MeasuredSetting


class Average(NamedTuple):
    """A mean over seeds, infinite where one of them is, and its deviation; nan where there is none."""

    mean: float
    deviation: float


class Averages(NamedTuple):
    """What a round shows, averaged over seeds.

    deviation: of the scores, the mean of both worlds', noise included. clients: of the cohort's sum of dot
    products alone, exactly. attack: the largest share of scores on the right side of a threshold. published:
    the estimate; law, law_then: the exact epsilon at the training's delta and at 1/n. test: the model's
    accuracy. training: epsilon up to here, composed of the estimates, and the accountant's; nan where rounds
    are no axis.
    """

    deviation: Average
    clients: Average
    attack: Average
    health: Average
    published: Average
    law_then: Average
    law: Average
    test: Average
    training: Average
    accountant: Average


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


def averaged(drawn: Layout, found: Sequence[MeasuredSetting], backward: bool) -> Curves:
    """The curves of a grid's settings; over rounds, trainings are charged backward or forward."""
    together: dict[tuple[Value, Value, int], list[Averages]] = {}
    for one in found:
        composed = _composed(one, backward) if drawn.over_rounds else [(np.nan, np.nan)] * len(one.rows)
        for row, training in zip(one.rows, composed, strict=True):
            number = row.measured.number
            place = (*one.values, number) if drawn.over_rounds else one.values
            curve, x = place if len(place) == 2 else ("", place[0])
            values = _single(one.attacked, row, *training)
            together.setdefault((curve, x, number), []).append(values)
    points = [Averaged(*key, len(several), _average(several)) for key, several in together.items()]
    return Curves(*drawn, points)


def _composed(one: MeasuredSetting, backward: bool) -> list[tuple[float, float]]:
    """A training's epsilon up to each measured round: as published, and the accountant's."""
    found = curves.composed(one.attacked, one.rows, one.clients, backward)
    return list(zip(found.published, found.accountant, strict=True))


def _single(attacked: Attacked, row: RoundValues, training: float, accountant: float) -> Averages:
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
        training,
        accountant,
    )
    return Averages(*(Average(value, np.nan) for value in values))


def _average(several: Sequence[Averages]) -> Averages:
    """The means over trainings."""
    return Averages(*(_mean([one.mean for one in column]) for column in zip(*several, strict=True)))


def _mean(values: Sequence[float]) -> Average:
    """The mean and, of several finite values, their deviation."""
    spread = len(values) > 1 and np.isfinite(values).all()
    return Average(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else np.nan)
