"""The benchmark's mechanisms, whose exact epsilon is known, and the laws by which their scores are drawn.

Where a run has several canaries, it releases a vector, and a canary's score is the inner product of the
canary and that vector. All scores together then reveal no more about a canary than mu says, however they
depend on each other.
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

# The sizes n in a full run, the usual size first. n counts, in turn: runs in each world, runs, coins of one
# run, directions of a single run.
_SIZES = {
    ONE_CANARY: (1000, 50, 250, 5000),
    SEVERAL: (200, 50, 1000),
    ONE_RUN: (1000, 100, 5000),
    DIRECTIONS: (1000, 100),
}
_NO_LEAK_SIGMA = 1e6  # in place of an infinite noise multiplier
_OPEN_DELTA = 0.01  # the probability with which a canary's bit is revealed
# 3 sqrt(n) of n coins are revealed at once. Half of them would be guessed right anyway, so that revealing
# them adds 1.5 sqrt(n) right guesses. That is three standard deviations, of sqrt(n) / 2 each, of the number
# that chance guesses right.
_OPENED_ROOTS = 3
_OPEN_SCORE = 10.0  # the score of a canary whose bit is revealed, far from the noise
_WEAK_MU = 0.5  # mu of half of the runs of the mixture
_CURVED = frozenset([GAUSSIAN_CURVE])  # what a mechanism breaks that has another trade-off curve


def _mixture_parts(strong: float, inserted: bool) -> list[MixturePart]:
    """Returns the two normal laws of a world whose runs leak strongly or weakly by a fair coin."""
    return [MixturePart(0.5, _WEAK_MU * inserted), MixturePart(0.5, strong * inserted)]


def _sample_open(rng: Generator, mu: float, inserted: bool, n: int) -> Array:
    """Draws noise, but with probability _OPEN_DELTA a score that reveals the world; mu is not used."""
    is_open = rng.random(n) < _OPEN_DELTA
    noise = rng.standard_normal(n)
    return np.where(is_open, _OPEN_SCORE if inserted else -_OPEN_SCORE, noise)


def _draw_worlds(
    sample: Sampler, rng: Generator, setting: KnownMechanism, share_in: float = 0.5
) -> Coins:
    """Draws the scores of runs with a single canary each: first a share with it, then those without."""
    presence = np.arange(setting.runs) < round(setting.runs * share_in)
    scores_in = sample(rng, setting.mu, True, presence.sum())
    scores_out = sample(rng, setting.mu, False, (~presence).sum())
    return Coins(np.concatenate([scores_in, scores_out])[:, None], presence[:, None])


def _toss(rng: Generator, setting: KnownMechanism, probability: float = 0.5) -> NDArray[np.bool_]:
    """Draws which canaries are in, (R, K), each independently with the given probability."""
    return rng.random((setting.runs, setting.canaries)) < probability


def _draw_coins(
    sample: Sampler, rng: Generator, setting: KnownMechanism, probability: float = 0.5
) -> Coins:
    """Draws the scores of independent canaries, each of which is in with the given probability."""
    presence = _toss(rng, setting, probability)
    # Every canary draws a score in both worlds, and has the score of the world that its coin chose.
    scores_in = sample(rng, setting.mu, True, presence.size).reshape(presence.shape)
    scores_out = sample(rng, setting.mu, False, presence.size).reshape(presence.shape)
    return Coins(np.where(presence, scores_in, scores_out), presence)


def _draw_failing(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of orthogonal canaries in noise; half of the runs insert none of them."""
    presence = _toss(rng, setting)
    works = rng.random((len(presence), 1)) < 0.5  # (R, 1): all canaries of a run share its coin
    noise = rng.standard_normal(presence.shape)
    return Coins(setting.mu * (presence & works) + noise, presence)


def _draw_tied(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of canaries any two of which have the inner product 1/2, in Gaussian noise.

    A canary is the unit vector (a direction of its own + a direction that all share) / sqrt(2), where all
    directions are orthogonal. So a score is (own part + shared part) / sqrt(2), where the parts are the
    release's coordinates along both directions.
    """
    presence = _toss(rng, setting)  # (R, K)
    signal = setting.mu * presence
    own_noise = rng.standard_normal(presence.shape)
    shared_noise = rng.standard_normal((len(presence), 1))  # a run's canaries share a direction
    # Each canary that is in adds mu / sqrt(2) to the coordinate along either of its directions.
    own = np.sqrt(0.5) * signal + own_noise
    shared = np.sqrt(0.5) * signal.sum(1, keepdims=True) + shared_noise
    return Coins(np.sqrt(0.5) * (own + shared), presence)


def _draw_opened(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws a single run's scores: noise, but with a small probability many coins are revealed at once.

    The mechanism is a trap for bounds that take coins for independent: a coin is rarely revealed, but never
    alone.
    """
    n = setting.canaries
    presence = _toss(rng, setting)  # (1, n)
    # A small run has fewer coins than this, and reveals all of them.
    revealed_at_once = min(round(_OPENED_ROOTS * np.sqrt(n)), n)
    scores = rng.standard_normal((1, n))
    # A coin is among them with probability revealed_at_once / n, and revealed with _OPEN_DELTA in all.
    if rng.random() < _OPEN_DELTA * n / revealed_at_once:
        places = rng.permutation(n)[:revealed_at_once]
        scores[0, places] = np.where(presence[0, places], _OPEN_SCORE, -_OPEN_SCORE)
    return Coins(scores, presence)


def _draw_cosines(rng: Generator, setting: KnownMechanism) -> Fresh:
    """Draws the cosines of uniform directions, all of them in, with the noisy sum that one run releases."""
    sigma = 1 / setting.mu if setting.mu else _NO_LEAK_SIGMA
    cosines = cosine_law.simulate(rng, setting.canaries, setting.dimension, sigma)
    return Fresh(cosines[None], np.ones((1, setting.canaries), bool), setting.dimension)


def _nothing_leaks(setting: KnownMechanism) -> Truth:
    """Returns the truth about a (0, delta)-DP mechanism: epsilon is 0 at that delta."""
    return Truth(0.0)


def _failing_truth(setting: KnownMechanism) -> Truth:
    """Returns the truth about runs half of which fail, and release whether they did.

    At any epsilon the mechanism's delta is half of that of mu-GDP.
    """
    return Truth(conversions.epsilon_from_mu(setting.mu, 2 * setting.delta))


def _make_law(
    draw: Callable[..., Coins], family: ScoreFamily, breaks: frozenset[str], **changes: Any
) -> Law:
    """Returns the law of independent canaries whose scores are from a family of distributions.

    Args:
      draw: `_draw_worlds`, for a single canary a run, or `_draw_coins`, for many canaries.
      family: The scores' distributions with and without the canary, which depend on a parameter.
      breaks: The assumptions that some estimators make and that do not hold for the law.
      **changes: Keyword arguments of `draw` that differ from their defaults, such as `share_in`.
    """
    truth = partial(laws.score_truth, family)
    return Law(family.name, partial(draw, family.sample, **changes), truth, breaks=breaks)


_MIXTURE = ScoreFamily("mixture", (3.0,), known_laws.NORMAL, _mixture_parts)
_NONE: frozenset[str] = frozenset()
_GAUSSIAN_WORLDS = _make_law(_draw_worlds, known_laws.GAUSSIAN, _NONE)
_FEW_IN = _make_law(_draw_worlds, known_laws.GAUSSIAN, _NONE, share_in=0.1)
_SUBSAMPLED = _make_law(_draw_worlds, known_laws.LAWS["subsampled"], _CURVED)
_MIXED = _make_law(_draw_worlds, _MIXTURE, _CURVED)
_OPEN = Law("open", partial(_draw_worlds, _sample_open), _nothing_leaks, breaks=_CURVED)
_OPENED = Law("opened", _draw_opened, _nothing_leaks, breaks=_CURVED)
_ORTHOGONAL = Law("orthogonal", laws.COINS["independent"].draw, laws.gaussian_truth)
_TIED = Law("tied", _draw_tied, laws.gaussian_truth, breaks=frozenset([INDEPENDENT]))
_FAILING = Law("failing", _draw_failing, _failing_truth, breaks=_CURVED | {INDEPENDENT})
_UNFAIR = _make_law(_draw_coins, known_laws.GAUSSIAN, frozenset([FAIR]), probability=0.9)
_COSINES = Law("directions", _draw_cosines, laws.gaussian_truth)
_CURVES = (  # the name, the scores, their parameter
    ("Laplace 1", known_laws.LAWS["laplace"], 1.0),
    ("randomised response 1", known_laws.LAWS["randomized_response"], 1.0),
    ("heavy tails", known_laws.LAWS["t3"], 2.0),
)
# By design: the beginning of names, the law of Gaussian scores and its mus, and how other scores are drawn.
_DESIGNS: dict[str, tuple[str, Law, tuple[float, ...], Callable[..., Coins]]] = {
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
    """Yields all mechanisms, one design after the other. Most have only the usual size."""
    for design, (prefix, gaussian, mus, draw) in _DESIGNS.items():
        record = partial(BenchmarkedMechanism, design)
        all_sizes = _SIZES[design]
        usual = all_sizes[:1]
        for mu in mus:
            sizes = all_sizes if mu in (0.0, 1.0) else usual
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
    # Other trade-off curves, or canaries that are not independent.
    for name in ("equal", "failing", "laplace", "bound"):
        yield of_directions(f"directions: {name} 2", laws.DIRECTIONS[name], 2.0)


MECHANISMS = {record.name: record for record in _make_mechanisms()}
