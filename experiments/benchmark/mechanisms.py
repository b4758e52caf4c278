"""The benchmark's mechanisms, with their exact epsilons and functions that draw their scores.

A run with several canaries releases a vector, and a canary's score is its inner product with this vector. For
each canary, the release is mu-GDP. Therefore, a run's scores are jointly mu-GDP, even if they are dependent.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from audit.calibration import laws
from audit.calibration.calibration import (
    FAIR,
    GAUSSIAN_CURVE,
    INDEPENDENT,
    KnownMechanism,
    Law,
)
from audit.evidence.canaries import Coins, Fresh
from audit.laws import conversions, cosine_law, known_laws
from audit.laws.intervals import Array
from audit.laws.known_laws import MixturePart, Sampler, ScoreFamily
from experiments.benchmark.contract import (
    DIRECTIONS,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    BenchmarkedMechanism,
)

# The audit sizes at the `full` scale, with the default first.
_SIZES = {
    ONE_CANARY: (1000, 50, 250, 5000),  # runs per world
    SEVERAL: (200, 50, 1000),  # runs
    ONE_RUN: (1000, 100, 5000),  # coins of a run
    DIRECTIONS: (1000, 100),  # directions of a run
}
_MIN_MU = 1e-6  # replaces mu = 0, since the noise multiplier must be finite
# The probability that a (0, delta)-DP mechanism reveals a canary's bit; also its delta.
_REVEAL_PROBABILITY = 0.01
# The number of coins that a mechanism reveals at once, divided by sqrt(n).
_REVEALED_PER_ROOT = 3
_REVEALING_SCORE = 10.0  # far from the noise
_WEAK_MU = 0.5  # the mu of half of the runs in the mixture
_GAUSSIAN = frozenset([GAUSSIAN_CURVE])


def _mixture_parts(strong: float, inserted: bool) -> list[MixturePart]:
    """Returns the Gaussian components of a score's distribution when a coin decides how strongly a run leaks.

    `strong` is the mu of strongly leaking runs. `inserted` is True for scores with the canary.
    """
    return [
        MixturePart(weight=0.5, centre=_WEAK_MU * inserted),
        MixturePart(weight=0.5, centre=strong * inserted),
    ]


def _sample_revealing(rng: Generator, mu: float, inserted: bool, n: int) -> Array:
    """Draws n scores; each reveals the world with probability _REVEAL_PROBABILITY and is otherwise noise.

    `mu`, an argument of all samplers, has no effect.
    """
    reveals = rng.random(n) < _REVEAL_PROBABILITY
    noise = rng.standard_normal(n)
    revealing = _REVEALING_SCORE if inserted else -_REVEALING_SCORE
    return np.where(reveals, revealing, noise)


def _draw_worlds(
    sample: Sampler, rng: Generator, setting: KnownMechanism, fraction_in: float = 0.5
) -> Coins:
    """Draws the scores and presence bits, both (runs, 1), of runs with one canary each.

    The first `fraction_in` of the runs insert the canary. `sample(rng, mu, inserted, n)` draws n scores from
    a world: with the canary if `inserted` is True, else without it.
    """
    presence = np.arange(setting.runs) < round(setting.runs * fraction_in)
    scores_in = sample(rng, setting.mu, True, presence.sum())
    scores_out = sample(rng, setting.mu, False, (~presence).sum())
    scores = np.concatenate([scores_in, scores_out])
    return Coins(scores[:, None], presence[:, None])


def _draw_coins(
    sample: Sampler, rng: Generator, setting: KnownMechanism, probability: float = 0.5
) -> Coins:
    """Draws the scores (runs, canaries) of independent canaries, each inserted with the given probability.

    `_draw_worlds` describes `sample`.
    """
    presence = rng.random((setting.runs, setting.canaries)) < probability
    scores_in = sample(rng, setting.mu, True, presence.size)
    scores_out = sample(rng, setting.mu, False, presence.size)
    scores = np.where(presence.ravel(), scores_in, scores_out)
    return Coins(scores.reshape(presence.shape), presence)


def _draw_tied(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of canaries with pairwise inner products of 1/2.

    A canary is (its own unit vector + a shared unit vector) / sqrt(2). All these vectors are orthogonal. The
    release is mu times the sum of the inserted canaries, plus Gaussian noise. A score is the inner product of
    the release with a canary.
    """
    presence = laws.toss(rng, setting)  # (runs, canaries)
    signal = setting.mu * presence
    own_noise = rng.standard_normal(presence.shape)
    shared_noise = rng.standard_normal((len(presence), 1))
    # The release's coordinates. An inserted canary adds mu / sqrt(2) to two of them.
    own = np.sqrt(0.5) * signal + own_noise
    shared = np.sqrt(0.5) * signal.sum(1, keepdims=True) + shared_noise
    return Coins(np.sqrt(0.5) * (own + shared), presence)


def _draw_revealing(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws a run's scores. Usually they are noise, but with a small probability they reveal many coins.

    This invalidates bounds that assume independent coins.
    """
    n = setting.canaries
    presence = laws.toss(rng, setting)  # (1, n)
    # These 3 sqrt(n) coins add 1.5 sqrt(n) correct guesses, three standard deviations of the number of
    # lucky guesses.
    num_revealed = round(_REVEALED_PER_ROOT * np.sqrt(n))
    scores = rng.standard_normal((1, n))
    # A random set of this size contains a given coin with probability num_revealed / n, so each coin is
    # revealed with probability _REVEAL_PROBABILITY, as (0, delta)-DP allows.
    if rng.random() < _REVEAL_PROBABILITY * n / num_revealed:
        revealed = rng.permutation(n)[:num_revealed]
        signs = 2 * presence[0, revealed] - 1
        scores[0, revealed] = signs * _REVEALING_SCORE
    return Coins(scores, presence)


def _draw_cosines(rng: Generator, setting: KnownMechanism) -> Fresh:
    """Draws cosines between a run's noisy release and the uniform directions that it inserts."""
    sigma = 1 / max(setting.mu, _MIN_MU)
    cosines = cosine_law.simulate(rng, setting.canaries, setting.dimension, sigma)[None]  # one run
    return Fresh(cosines, np.ones(cosines.shape, bool), setting.dimension)


def _zero_truth(setting: KnownMechanism) -> float:
    """Returns 0, the true epsilon of a (0, delta)-DP mechanism."""
    return 0.0


def _failing_truth(setting: KnownMechanism) -> float:
    """Returns the true epsilon of a Gaussian mechanism that visibly fails in half of its runs.

    A failed run does not leak, so delta at each epsilon is half that of mu-GDP.
    """
    return conversions.epsilon_from_mu(setting.mu, 2 * setting.delta)


def _make_law(
    draw: Callable[..., Coins],
    family: ScoreFamily,
    breaks: frozenset[str] = frozenset(),
    **changes: Any,
) -> Law:
    """Returns the law of independent canaries whose scores come from a family of distributions.

    Args:
      draw: `_draw_worlds` for one canary per run, or `_draw_coins` for several.
      family: The score distributions with and without the canary, for any value of their parameter.
      breaks: The estimator assumptions that the law violates.
      **changes: Keyword arguments of `draw`.
    """
    truth = partial(laws.score_truth, family)  # (setting) -> the true epsilon
    return Law(partial(draw, family.sample, **changes), truth, breaks=breaks)


_MIXTURE = ScoreFamily(known_laws.NORMAL, _mixture_parts)
_GAUSSIAN_WORLDS = _make_law(_draw_worlds, known_laws.GAUSSIAN)
_REVEALING = Law(partial(_draw_worlds, _sample_revealing), _zero_truth, breaks=_GAUSSIAN)
_REVEALING_COINS = Law(_draw_revealing, _zero_truth, breaks=_GAUSSIAN)
_TIED = Law(_draw_tied, laws.gaussian_truth, breaks=frozenset([INDEPENDENT]))
_FAILING = laws.FAILING_COINS._replace(truth=_failing_truth, breaks=_GAUSSIAN | {INDEPENDENT})
_UNFAIR = _make_law(_draw_coins, known_laws.GAUSSIAN, frozenset([FAIR]), probability=0.9)
_COSINES = Law(_draw_cosines, laws.gaussian_truth)
# Families without a Gaussian trade-off curve: (the mechanism's name, the family, the family's parameter).
_CURVES = (
    ("Laplace 1", known_laws.LAWS["laplace"], 1.0),
    ("randomised response 1", known_laws.LAWS["randomized_response"], 1.0),
    ("heavy tails", known_laws.LAWS["t3"], 2.0),
)
# For each design: a prefix for names, the law of Gaussian scores, its values of mu, and the
# function that draws scores from other families.
_DESIGNS = {
    ONE_CANARY: ("", _GAUSSIAN_WORLDS, (0.0, 0.5, 1.0, 2.0, 4.0), _draw_worlds),
    SEVERAL: ("runs of 16: ", laws.INDEPENDENT_COINS, (0.0, 1.0, 2.0, 4.0), _draw_coins),
    ONE_RUN: ("coins: ", laws.INDEPENDENT_COINS, (0.0, 1.0, 2.0, 4.0), _draw_coins),
}
_ONLY_ONE_CANARY = {
    "Gaussian 1, few in": (_make_law(_draw_worlds, known_laws.GAUSSIAN, fraction_in=0.1), 1.0),
    "Poisson-subsampled": (
        _make_law(_draw_worlds, known_laws.LAWS["subsampled"], _GAUSSIAN),
        0.5,
    ),
    "mixture of runs": (_make_law(_draw_worlds, _MIXTURE, _GAUSSIAN), 3.0),
}


def _make_mechanisms() -> Iterator[BenchmarkedMechanism]:
    """Yields all mechanisms, grouped by design."""
    for design in _DESIGNS:
        yield from _make_with_scores(design)
    yield BenchmarkedMechanism(
        ONE_RUN, "coins: (0, delta)", _REVEALING_COINS, mu=0.0, delta=_REVEAL_PROBABILITY
    )
    make = partial(BenchmarkedMechanism, DIRECTIONS, sizes=_SIZES[DIRECTIONS])
    for mu in (0.0, 1.0, 4.0):
        yield make(f"directions: Gaussian {mu:g}", law=_COSINES, mu=mu)
    # The cosines in a run are equal, some runs fail to insert canaries, the noise is Laplace, or the cosines
    # are the largest that DP allows. `mu` is epsilon for the last two.
    for name in ("equal", "failing", "laplace", "bound"):
        yield make(f"directions: {name} 2", law=laws.DIRECTIONS[name], mu=2.0)


def _make_with_scores(design: str) -> Iterator[BenchmarkedMechanism]:
    """Yields the mechanisms of a design with scores (not cosines).

    The mechanisms "Gaussian 0", "Gaussian 1" and "tied canaries" are audited at all sizes of the design, the
    others only at the first size, the default.
    """
    prefix, gaussian_law, mus, draw = _DESIGNS[design]
    all_sizes = _SIZES[design]
    make = partial(BenchmarkedMechanism, design, sizes=all_sizes[:1])
    for mu in mus:
        mechanism = make(f"{prefix}Gaussian {mu:g}", law=gaussian_law, mu=mu)
        if mu in (0.0, 1.0):
            mechanism = mechanism._replace(sizes=all_sizes)
        yield mechanism
    for name, family, parameter in _CURVES:
        law = _make_law(draw, family, breaks=_GAUSSIAN)
        yield make(prefix + name, law=law, mu=parameter)
    if design == ONE_CANARY:
        for name, (law, mu) in _ONLY_ONE_CANARY.items():
            yield make(name, law=law, mu=mu)
        yield make("(0, delta)", law=_REVEALING, mu=0.0, delta=_REVEAL_PROBABILITY)
    else:  # these need several canaries
        # Canaries that are not orthogonal:
        yield make(f"{prefix}tied canaries", law=_TIED, mu=1.0, sizes=all_sizes)
        # Some runs insert no canary:
        yield make(f"{prefix}failing runs", law=_FAILING, mu=2.0)
        # Unfair coins insert each canary with probability 0.9:
        yield make(f"{prefix}nine tenths in", law=_UNFAIR, mu=1.0)


MECHANISMS = {record.name: record for record in _make_mechanisms()}
