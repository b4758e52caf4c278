"""From measured rounds to one epsilon a round and one for the training: numbers alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from audit.statistics import conversions, rounds
from audit.statistics.rounds import Charge, RoundEstimate
from experiments.canife.attacked import Attacked
from experiments.canife.measured import CONFIDENCE, Floats, Measured


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


class ByCohort(NamedTuple):
    """The score's deviation and the share of right guesses, were its law normal, by the cohort's size."""

    sizes: list[int]
    deviations: list[float]
    accuracies: list[float]


def by_cohort(attacked: Attacked, one: Measured) -> ByCohort:
    """What a measured round's canary would show among fewer clients a round, or more: a cohort's sum of known
    dot products, drawn without replacement, has a known variance, so that no further rounds are played."""
    clients = len(one.known)
    sizes = np.unique(np.geomspace(2, max(clients // 2, 2), 24).astype(int))
    deviations = np.hypot(cohort_deviation(one.known, sizes), attacked.noise_multiplier)
    accuracies = stats.norm.cdf(one.own / 2 / np.maximum(deviations, 1e-12))
    return ByCohort(sizes.tolist(), deviations.tolist(), accuracies.tolist())


def cohort_deviation(known: Floats, size: Floats | int) -> Floats:
    """The deviation of the sum of so many of the known dot products (M,), drawn without replacement."""
    return np.sqrt(size * np.var(known, ddof=1) * (1 - size / len(known)))


def if_released(attacked: Attacked, rows: Sequence[RoundValues], clients: int) -> float:
    """epsilon of the training and of every mock round of a published estimate, had they been released: a
    mock round is a round on the clients' data (Errata C4)."""
    rate, played = attacked.cohort / clients, attacked.rounds + len(rows) * attacked.scores
    return rounds.composed([Charge(attacked.noise_multiplier, rate, played)], attacked.delta)
