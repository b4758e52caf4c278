"""From measured rounds to one epsilon a round and one for the training, and of a grid's settings to averages
over seeds along an x axis: numbers alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from audit.statistics import conversions, rounds
from audit.statistics.rounds import Charge, RoundEstimate
from experiments.canife import training
from experiments.canife.attacked import Attacked, Value, VariedGrid
from experiments.canife.training import CONFIDENCE, Floats, Measured, Request


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
    last = numbers[-1] + attacked.every - 1
    total = min(last, attacked.rounds)
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
    """epsilon over the charged rounds that the published procedure shows of a canary that nothing disturbs,
    from the median of 150 estimates (Errata C9)."""
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
    accuracies = stats.norm.cdf(one.own / 2 / np.maximum(deviations, 1e-12))
    return sizes.tolist(), deviations.tolist(), accuracies.tolist()


def cohort_deviation(known: Floats, size: Floats | int) -> Floats:
    """The deviation of the sum of so many of the known dot products (M,), drawn without replacement."""
    return np.sqrt(size * np.var(known, ddof=1) * (1 - size / len(known)))


def if_released(attacked: Attacked, rows: Sequence[RoundValues], clients: int) -> float:
    """epsilon of the training and of every mock round of a published estimate, had they been released: a
    mock round is a round on the clients' data (Errata C4)."""
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
    """The mean and, of several finite values, their deviation."""
    spread = len(values) > 1 and np.isfinite(values).all()
    return Average(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else np.nan)
