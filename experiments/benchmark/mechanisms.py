"""The benchmark's mechanisms with a known exact epsilon, and the laws that draw their scores.

A run with several canaries releases a vector, and a score is a canary's inner product with it. All scores
together then reveal at most mu about a canary, even if they depend on each other.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.calibration import laws
from audit.calibration.calibration import (
    FAIR,
    GAUSSIAN_CURVE,
    INDEPENDENT,
    KnownMechanism,
    Law,
    Truth,
)
from audit.evidence.canaries import Coins, Fresh
from audit.laws import conversions, cosine_law, known_laws
from audit.laws.known_laws import MixturePart, Sampler, ScoreFamily
from experiments.benchmark.contract import (
    DIRECTIONS,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    BenchmarkedMechanism,
)

Array = NDArray[np.float64]
Generator = np.random.Generator

# At scale full, the default size first: runs per world, runs, coins of one run, and directions of one run.
_SIZES = {
    ONE_CANARY: (1000, 50, 250, 5000),
    SEVERAL: (200, 50, 1000),
    ONE_RUN: (1000, 100, 5000),
    DIRECTIONS: (1000, 100),
}
_LEAST_MU = 1e-6  # replaces 0, which is an infinite noise multiplier
_OPEN_DELTA = 0.01  # the probability that a canary's bit is revealed
# 3 sqrt(n) of n coins are revealed at once. This adds 1.5 sqrt(n) right guesses, three standard deviations of
# the number of lucky guesses.
_OPENED_ROOTS = 3
_OPEN_SCORE = 10.0  # the score of a revealed canary, far from the noise
_WEAK_MU = 0.5  # for half of the runs of the mixture
_CURVED = frozenset([GAUSSIAN_CURVE])  # violated by any other trade-off curve


def _mixture_parts(strong: float, inserted: bool) -> list[MixturePart]:
    """Returns the parts of a world with strongly and weakly leaking runs, chosen by a fair coin."""
    return [MixturePart(0.5, _WEAK_MU * inserted), MixturePart(0.5, strong * inserted)]


def _sample_open(rng: Generator, mu: float, inserted: bool, n: int) -> Array:
    """Draws noise, or with probability _OPEN_DELTA a score that reveals the world; ignores mu."""
    is_open = rng.random(n) < _OPEN_DELTA
    noise = rng.standard_normal(n)
    sign = 2 * inserted - 1
    return np.where(is_open, sign * _OPEN_SCORE, noise)


def _draw_worlds(
    sample: Sampler, rng: Generator, setting: KnownMechanism, share_in: float = 0.5
) -> Coins:
    """Draws the scores of runs with one canary each: first those with it, then those without."""
    presence = np.arange(setting.runs) < round(setting.runs * share_in)
    scores_in = sample(rng, setting.mu, True, presence.sum())
    scores_out = sample(rng, setting.mu, False, (~presence).sum())
    scores = np.concatenate([scores_in, scores_out])
    return Coins(scores[:, None], presence[:, None])


def _toss(rng: Generator, setting: KnownMechanism, probability: float = 0.5) -> NDArray[np.bool_]:
    """Draws independent presence bits (R, K)."""
    return rng.random((setting.runs, setting.canaries)) < probability


def _draw_coins(
    sample: Sampler, rng: Generator, setting: KnownMechanism, probability: float = 0.5
) -> Coins:
    """Draws the scores of independent canaries, each inserted with the given probability."""
    presence = _toss(rng, setting, probability)
    # Each canary draws a score in both worlds; its coin selects one of them.
    scores_in = sample(rng, setting.mu, True, presence.size)
    scores_out = sample(rng, setting.mu, False, presence.size)
    scores = np.where(presence.ravel(), scores_in, scores_out)
    return Coins(scores.reshape(presence.shape), presence)


def _draw_tied(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of canaries with pairwise inner products of 1/2, in Gaussian noise.

    A canary is the unit vector (own direction + shared direction) / sqrt(2), with orthogonal directions. Its
    score is the same combination of the release's coordinates.
    """
    presence = _toss(rng, setting)  # (R, K)
    signal = setting.mu * presence
    own_noise = rng.standard_normal(presence.shape)
    shared_noise = rng.standard_normal((len(presence), 1))  # one direction per run
    # Each inserted canary adds mu / sqrt(2) to the coordinates along both of its directions.
    own = np.sqrt(0.5) * signal + own_noise
    shared = np.sqrt(0.5) * signal.sum(1, keepdims=True) + shared_noise
    return Coins(np.sqrt(0.5) * (own + shared), presence)


def _draw_opened(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws a single run's scores: noise, but with a small probability many coins are revealed at once.

    This breaks bounds that assume independent coins.
    """
    n = setting.canaries
    presence = _toss(rng, setting)  # (1, n)
    revealed_at_once = round(_OPENED_ROOTS * np.sqrt(n))
    scores = rng.standard_normal((1, n))
    # A coin is among them with probability revealed_at_once / n, so it is revealed with _OPEN_DELTA.
    if rng.random() < _OPEN_DELTA * n / revealed_at_once:
        places = rng.permutation(n)[:revealed_at_once]
        scores[0, places] = np.where(presence[0, places], _OPEN_SCORE, -_OPEN_SCORE)
    return Coins(scores, presence)


def _draw_cosines(rng: Generator, setting: KnownMechanism) -> Fresh:
    """Draws the cosines of uniform directions, all inserted, with the noisy sum that one run releases."""
    sigma = 1 / max(setting.mu, _LEAST_MU)
    cosines = cosine_law.simulate(rng, setting.canaries, setting.dimension, sigma)
    return Fresh(cosines[None], np.ones((1, setting.canaries), bool), setting.dimension)


def _nothing_leaks(setting: KnownMechanism) -> Truth:
    """Returns the true epsilon of a (0, delta)-DP mechanism, 0."""
    return Truth(0.0)


def _failing_truth(setting: KnownMechanism) -> Truth:
    """Returns the true epsilon if half of the runs fail and report this.

    Its delta at each epsilon is half of that of mu-GDP.
    """
    return Truth(conversions.epsilon_from_mu(setting.mu, 2 * setting.delta))


def _make_law(
    draw: Callable[..., Coins],
    family: ScoreFamily,
    breaks: frozenset[str] = frozenset(),
    **changes: Any,
) -> Law:
    """Returns the law of independent canaries with scores from a family of distributions.

    `draw` is `_draw_worlds` for one canary per run, or `_draw_coins` for several, with `changes` as keywords.
    `breaks` are the estimators' assumptions that the law violates.
    """
    truth = partial(laws.score_truth, family)
    return Law(family.name, partial(draw, family.sample, **changes), truth, breaks=breaks)


_MIXTURE = ScoreFamily("mixture", known_laws.NORMAL, _mixture_parts)
_GAUSSIAN_WORLDS = _make_law(_draw_worlds, known_laws.GAUSSIAN)
_FEW_IN = _make_law(_draw_worlds, known_laws.GAUSSIAN, share_in=0.1)
_SUBSAMPLED = _make_law(_draw_worlds, known_laws.LAWS["subsampled"], _CURVED)
_MIXED = _make_law(_draw_worlds, _MIXTURE, _CURVED)
_OPEN = Law("open", partial(_draw_worlds, _sample_open), _nothing_leaks, breaks=_CURVED)
_OPENED = Law("opened", _draw_opened, _nothing_leaks, breaks=_CURVED)
_ORTHOGONAL = Law("orthogonal", laws.INDEPENDENT_COINS.draw, laws.gaussian_truth)
_TIED = Law("tied", _draw_tied, laws.gaussian_truth, breaks=frozenset([INDEPENDENT]))
_FAILING = laws.FAILING_COINS._replace(truth=_failing_truth, breaks=_CURVED | {INDEPENDENT})
_UNFAIR = _make_law(_draw_coins, known_laws.GAUSSIAN, frozenset([FAIR]), probability=0.9)
_COSINES = Law("directions", _draw_cosines, laws.gaussian_truth)
_CURVES = (  # the name, the scores, their parameter
    ("Laplace 1", known_laws.LAWS["laplace"], 1.0),
    ("randomised response 1", known_laws.LAWS["randomized_response"], 1.0),
    ("heavy tails", known_laws.LAWS["t3"], 2.0),
)
# By design: the beginning of names, the law of Gaussian scores and its mus, and how other scores are drawn.
_DESIGNS = {
    ONE_CANARY: ("", _GAUSSIAN_WORLDS, (0.0, 0.5, 1.0, 2.0, 4.0), _draw_worlds),
    SEVERAL: ("runs of 16: ", _ORTHOGONAL, (0.0, 1.0, 2.0, 4.0), _draw_coins),
    ONE_RUN: ("coins: ", _ORTHOGONAL, (0.0, 1.0, 2.0, 4.0), _draw_coins),
}
_OF_ONE_CANARY = (
    BenchmarkedMechanism(ONE_CANARY, "Gaussian 1, few in", _FEW_IN, 1.0),
    BenchmarkedMechanism(ONE_CANARY, "Poisson-subsampled", _SUBSAMPLED, 0.5),
    BenchmarkedMechanism(ONE_CANARY, "mixture of runs", _MIXED, 3.0),
    BenchmarkedMechanism(ONE_CANARY, "(0, delta)", _OPEN, 0.0, delta=_OPEN_DELTA),
)
_OPENED_COINS = BenchmarkedMechanism(ONE_RUN, "coins: (0, delta)", _OPENED, 0.0, delta=_OPEN_DELTA)


def _make_mechanisms() -> Iterator[BenchmarkedMechanism]:
    """Yields all mechanisms, by design. Most have only the default size."""
    for design, (prefix, gaussian, mus, draw) in _DESIGNS.items():
        record = partial(BenchmarkedMechanism, design)
        all_sizes = _SIZES[design]
        usual = all_sizes[:1]
        for mu in mus:
            sizes = usual
            if mu in (0.0, 1.0):
                sizes = all_sizes
            yield record(f"{prefix}Gaussian {mu:g}", gaussian, mu, sizes)
        for name, family, parameter in _CURVES:
            yield record(prefix + name, _make_law(draw, family, _CURVED), parameter, usual)
        if design == ONE_CANARY:
            yield from _OF_ONE_CANARY
            continue
        yield record(f"{prefix}tied canaries", _TIED, 1.0, all_sizes)
        yield record(f"{prefix}failing runs", _FAILING, 2.0, usual)
        yield record(f"{prefix}nine tenths in", _UNFAIR, 1.0, usual)
    yield _OPENED_COINS
    of_directions = partial(BenchmarkedMechanism, DIRECTIONS, sizes=_SIZES[DIRECTIONS])
    for mu in (0.0, 1.0, 4.0):
        yield of_directions(f"directions: Gaussian {mu:g}", _COSINES, mu)
    for name in ("equal", "failing", "laplace", "bound"):
        yield of_directions(f"directions: {name} 2", laws.DIRECTIONS[name], 2.0)


MECHANISMS = {record.name: record for record in _make_mechanisms()}
