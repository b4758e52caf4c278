"""Mechanisms whose epsilon is known exactly, with how an audit's scores are drawn.

Where one run has several canaries, what is released is a vector, and every canary's score is its inner
product with that canary: all scores together say no more of one canary than mu does, however they are tied.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.statistics import conversions, cosine_law, exact_null_calibration, known_laws
from audit.statistics.exact_null_calibration import DirectionSetting
from audit.statistics.known_laws import KnownLaw, Law
from experiments.benchmark import trained
from experiments.benchmark.contract import (
    CONFIDENCE,
    DELTA,
    DIRECTIONS,
    FAIR,
    GAUSSIAN,
    INDEPENDENT,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    AuditScores,
    KnownTruth,
)

Array = NDArray[np.float64]
Truth = Callable[[float], float]
_CURVED = frozenset([GAUSSIAN])
_SIZES, _RUNS, _COINS = (1000, 50, 250, 5000), (200, 50, 1000), (1000, 100, 5000)
_OPEN_DELTA = 0.01  # of the mechanism that lays bits open
_CANARIES, _DIMENSION = 16, 100_000  # of a run; of directions
_NO_LEAK = 1e6  # sigma
_WEAK, _STRONG = 0.5, 3.0  # halves of the runs


def _mixture(rng: np.random.Generator, strong: float, inserted: bool, n: int) -> Array:
    centres = np.where(rng.random(n) < 0.5, _WEAK, strong)
    return centres * inserted + rng.standard_normal(n)


def _mixture_density(x: Array, strong: float, inserted: bool) -> Array:
    return np.asarray(
        sum(np.exp(-0.5 * (x - c * inserted) ** 2) for c in (_WEAK, strong)) / np.sqrt(8 * np.pi)
    )


def _mixture_distribution(x: Array, strong: float, inserted: bool) -> Array:
    return np.asarray((special.ndtr(x - _WEAK * inserted) + special.ndtr(x - strong * inserted)) / 2)


class Sampled(NamedTuple):
    """Scores of canaries that are drawn one by one: (generator, inserted, n) -> (n,), and the truth."""

    sample: Callable[[np.random.Generator, bool, int], Array]
    truth: Truth


def _of_law(law: Law, parameter: float) -> Sampled:
    known = KnownLaw(law, parameter)
    return Sampled(lambda rng, inserted, n: law.sample(rng, parameter, inserted, n), known.epsilon)


def _open(rng: np.random.Generator, inserted: bool, n: int) -> Array:
    told = rng.random(n) < _OPEN_DELTA
    return np.where(told, 10.0 if inserted else -10.0, rng.standard_normal(n))


_MIXTURE = Law("mixture", (_STRONG,), _mixture, _mixture_density, _mixture_distribution)
LAPLACE = _of_law(known_laws.LAWS["laplace"], 1.0)
RESPONSE = _of_law(known_laws.LAWS["randomized_response"], 1.0)
HEAVY = _of_law(known_laws.LAWS["t3"], 2.0)
OPEN = Sampled(_open, lambda delta: 0.0)


def _gaussian(mu: float) -> Sampled:
    return _of_law(known_laws.GAUSSIAN, mu)


def _worlds(draw: Sampled, share_in: float = 0.5) -> Callable[[np.random.Generator, int], AuditScores]:
    """2 n runs of one canary, this share of them in."""

    def drawn(rng: np.random.Generator, n: int) -> AuditScores:
        size = round(2 * n * share_in)
        scores = np.concatenate([draw.sample(rng, True, size), draw.sample(rng, False, 2 * n - size)])
        return AuditScores(scores[:, None], (np.arange(2 * n) < size)[:, None])

    return drawn


def _coins(
    draw: Sampled, shape: Callable[[int], tuple[int, int]], probability: float = 0.5
) -> Callable[[np.random.Generator, int], AuditScores]:
    """Canaries that are independent of each other, each in by a coin."""

    def drawn(rng: np.random.Generator, n: int) -> AuditScores:
        presence = rng.random(shape(n)) < probability
        size = presence.size
        worlds = [draw.sample(rng, inserted, size).reshape(presence.shape) for inserted in (True, False)]
        return AuditScores(np.where(presence, *worlds), presence)

    return drawn


def _vector(
    mu: float, tied: bool, failing: bool, shape: Callable[[int], tuple[int, int]]
) -> Callable[[np.random.Generator, int], AuditScores]:
    """Canaries of which any two have the inner product 1/2 (tied) or 0, in Gaussian noise; or in half of the
    runs, in all canaries at once, nothing is inserted (failing)."""

    def drawn(rng: np.random.Generator, n: int) -> AuditScores:
        presence = rng.random(shape(n)) < 0.5
        works = rng.random((len(presence), 1)) < 0.5 if failing else np.ones((len(presence), 1), bool)
        own = mu * (presence & works)
        noise, common = rng.standard_normal(presence.shape), rng.standard_normal((len(presence), 1))
        if not tied:
            return AuditScores(own + noise, presence)
        shared = np.sqrt(0.5) * own.sum(1, keepdims=True) + common
        return AuditScores(np.sqrt(0.5) * (np.sqrt(0.5) * own + noise + shared), presence)

    return drawn


def _opened(rng: np.random.Generator, n: int) -> AuditScores:
    """Noise alone; but each coin is laid open with probability delta, many of them at once."""
    presence, at_once = rng.random((1, n)) < 0.5, min(round(3 * np.sqrt(n)), n)
    scores = rng.standard_normal((1, n))
    if rng.random() < _OPEN_DELTA * n / at_once:
        places = rng.permutation(n)[:at_once]
        scores[0, places] = np.where(presence[0, places], 10.0, -10.0)
    return AuditScores(scores, presence)


def _released(mu: float) -> KnownTruth:
    """Uniform directions of one run, all in, and their cosines with what is released in Gaussian noise."""

    def drawn(rng: np.random.Generator, n: int) -> AuditScores:
        cosines = cosine_law.simulate(rng, n, _DIMENSION, 1 / mu if mu else _NO_LEAK)
        return AuditScores(cosines[None], np.ones((1, n), bool), _DIMENSION)

    name, says = f"directions: Gaussian {mu:g}", f"cosines of uniform directions with a release of mu {mu:g}"
    return KnownTruth(name, DIRECTIONS, drawn, partial(conversions.epsilon_from_mu, mu), says, (1000, 100))


def _directions(law: str, mu: float, *breaks: str) -> KnownTruth:
    """Cosines by a law of the exact null's calibration."""
    found = exact_null_calibration.LAWS[law]

    def setting(n: int, delta: float) -> DirectionSetting:
        return DirectionSetting(found, mu, (1,), n, _DIMENSION, 1, delta, CONFIDENCE, 0)

    def drawn(rng: np.random.Generator, n: int) -> AuditScores:
        cosines = found.draw(rng, setting(n, DELTA))
        return AuditScores(cosines, np.ones(cosines.shape, bool), _DIMENSION)

    name, says = f"directions: {law} {mu:g}", f"cosines of the law {law!r} of calibrate, parameter {mu:g}"
    truth = lambda delta: found.truth(setting(1, delta))  # noqa: E731
    return KnownTruth(name, DIRECTIONS, drawn, truth, says, (1000, 100), frozenset(breaks))


def _one_canary() -> list[KnownTruth]:
    found = []
    for mu in (0.0, 0.5, 1.0, 2.0, 4.0):
        drawn, sizes = _gaussian(mu), _SIZES if mu in (0.0, 1.0) else _SIZES[:1]
        says = f"N({mu:g}, 1) against N(0, 1)"
        found.append(KnownTruth(f"Gaussian {mu:g}", ONE_CANARY, _worlds(drawn), drawn.truth, says, sizes))
    unequal = _gaussian(1.0)
    words = "N(1, 1) against N(0, 1), a tenth of the runs in"
    found.append(KnownTruth("Gaussian 1, few in", ONE_CANARY, _worlds(unequal, 0.1), unequal.truth, words))
    subsampled = _of_law(known_laws.LAWS["subsampled"], 0.5)
    laws = (
        ("Laplace 1", LAPLACE, "Laplace noise of scale 1, shifted by 1"),
        ("randomised response 1", RESPONSE, "a bit that is right with the odds e, in little noise"),
        ("Poisson-subsampled", subsampled, "noise 0.5, inserted with probability 0.1"),
        ("mixture of runs", _of_law(_MIXTURE, _STRONG), "half of the runs at mu 0.5, half at mu 3"),
        ("heavy tails", HEAVY, "Student's t of 3 degrees of freedom, shifted by 2"),
    )
    for name, law, says in laws:
        found.append(KnownTruth(name, ONE_CANARY, _worlds(law), law.truth, says, breaks=_CURVED))
    says = "nothing leaks, but a run in a hundred tells its bit; asked at delta 0.01"
    found.append(
        KnownTruth("(0, delta)", ONE_CANARY, _worlds(OPEN), OPEN.truth, says, (1000,), _CURVED, _OPEN_DELTA)
    )
    return found


def _of_runs(
    design: str, tag: str, shape: Callable[[int], tuple[int, int]], sizes: tuple[int, ...]
) -> list[KnownTruth]:
    """Canaries with coins, several a run or all in one."""
    found, first = [], sizes[:1]
    for mu in (0.0, 1.0, 2.0, 4.0):
        drawn, at = _vector(mu, False, False, shape), sizes if mu in (0.0, 1.0) else first
        truth, says = partial(conversions.epsilon_from_mu, mu), f"orthogonal canaries, each of mu {mu:g}"
        found.append(KnownTruth(f"{tag}: Gaussian {mu:g}", design, drawn, truth, says, at))
    drawn, says = _vector(1.0, True, False, shape), "any two canaries have the inner product 1/2; mu 1"
    truth = partial(conversions.epsilon_from_mu, 1.0)
    tie = frozenset([INDEPENDENT])
    found.append(KnownTruth(f"{tag}: tied canaries", design, drawn, truth, says, sizes, tie))
    says = "in half of the runs, which is released, nothing is inserted; else mu 2"
    both = frozenset([INDEPENDENT, GAUSSIAN])
    drawn = _vector(2.0, False, True, shape)
    found.append(KnownTruth(f"{tag}: failing runs", design, drawn, _failing_truth, says, first, both))
    for name, law in (("Laplace 1", LAPLACE), ("randomised response 1", RESPONSE), ("heavy tails", HEAVY)):
        drawn, says = _coins(law, shape), f"independent canaries, each by {name}"
        found.append(KnownTruth(f"{tag}: {name}", design, drawn, law.truth, says, first, _CURVED))
    unequal = _coins(_gaussian(1.0), shape, 0.9)
    words = "mu 1, coins that are in with probability 0.9"
    uneven = frozenset([FAIR])
    found.append(KnownTruth(f"{tag}: nine tenths in", design, unequal, truth, words, first, uneven))
    return found


def _failing_truth(delta: float) -> float:
    """Where half of the runs tell nothing and say so, the others may spend twice the delta."""
    return conversions.epsilon_from_mu(2.0, 2 * delta)


def _row(n: int) -> tuple[int, int]:
    return 1, n


def _matrix(n: int) -> tuple[int, int]:
    return n, _CANARIES


_OPENED = "nothing leaks, but with probability 0.01 each coin is laid open, many at once; asked at delta 0.01"
_RECORDS = (
    *_one_canary(),
    *_of_runs(SEVERAL, "runs of 16", _matrix, _RUNS),
    *_of_runs(ONE_RUN, "coins", _row, _COINS),
    KnownTruth("coins: (0, delta)", ONE_RUN, _opened, OPEN.truth, _OPENED, (1000,), _CURVED, _OPEN_DELTA),
    *map(_released, (0.0, 1.0, 4.0)),
    _directions("equal", 2.0, INDEPENDENT),
    _directions("failing", 2.0, GAUSSIAN, INDEPENDENT),
    *(_directions(law, 2.0, GAUSSIAN) for law in ("laplace", "bound")),
)
MECHANISMS = {record.name: record for record in (*_RECORDS, *trained.MECHANISMS)}
