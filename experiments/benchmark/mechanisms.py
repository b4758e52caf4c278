"""The benchmark's mechanisms, whose exact epsilon is known, and the laws by which their scores are drawn.

Where a run has several canaries, it releases a vector, and a canary's score is the inner product of the
canary and that vector. All scores together then reveal no more about a canary than mu says, however they
depend on each other.
"""

from collections.abc import Callable
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
from experiments.benchmark import trained
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
_WORLD_SIZES = (1000, 50, 250, 5000)
_RUN_SIZES = (200, 50, 1000)
_COIN_SIZES = (1000, 100, 5000)
_DIRECTION_SIZES = (1000, 100)

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
    """Draws n scores of a mechanism that leaks nothing, but reveals everything with probability _OPEN_DELTA.

    A score is N(0, 1) in either world. With that probability it is instead _OPEN_SCORE where the canary is
    in, and -_OPEN_SCORE where it is out.

    Args:
      rng: The randomness.
      mu: Not used; it is an argument of every `Sampler`.
      inserted: Whether the canary is in.
      n: The number of scores.
    """
    is_open = rng.random(n) < _OPEN_DELTA
    noise = rng.standard_normal(n)
    open_score = _OPEN_SCORE if inserted else -_OPEN_SCORE
    return np.where(is_open, open_score, noise)


_MIXTURE = ScoreFamily("mixture", (3.0,), known_laws.NORMAL, _mixture_parts)


# Names, families of laws whose trade-off curve is not Gaussian, and their parameters.
_CURVED_FAMILIES = (
    ("Laplace 1", known_laws.LAWS["laplace"], 1.0),
    ("randomised response 1", known_laws.LAWS["randomized_response"], 1.0),
    ("heavy tails", known_laws.LAWS["t3"], 2.0),
)


def _draw_worlds(
    sample: Sampler, rng: Generator, setting: KnownMechanism, share_in: float = 0.5
) -> Coins:
    """Draws the scores of runs with a single canary each: first the runs with it, then those without.

    Args:
      sample: (generator, mu, whether the canary is in, n) -> n scores.
      rng: The randomness.
      setting: The mechanism, of which mu and the number of runs are read.
      share_in: The share of runs in which the canary is in.
    """
    runs = setting.runs
    runs_in = round(runs * share_in)
    scores_in = sample(rng, setting.mu, True, runs_in)
    scores_out = sample(rng, setting.mu, False, runs - runs_in)
    scores = np.concatenate([scores_in, scores_out])
    presence = np.arange(runs) < runs_in
    return Coins(scores[:, None], presence[:, None])  # (runs, 1), a column of the single canary


def _toss(rng: Generator, setting: KnownMechanism, probability: float = 0.5) -> NDArray[np.bool_]:
    """Draws which canaries are in, (R, K), each independently with the given probability."""
    return rng.random((setting.runs, setting.canaries)) < probability


def _draw_coins(
    sample: Sampler, rng: Generator, setting: KnownMechanism, probability: float = 0.5
) -> Coins:
    """Draws the scores of independent canaries, each of which is in with the given probability.

    Args:
      sample: (generator, mu, whether the canary is in, n) -> n scores.
      rng: The randomness.
      setting: The mechanism, of which mu and the numbers of runs and canaries are read.
      probability: The probability with which a canary is in.
    """
    presence = _toss(rng, setting, probability)
    # Every canary draws a score in both worlds, and has the score of the world that its coin chose.
    scores_in = sample(rng, setting.mu, True, presence.size).reshape(presence.shape)
    scores_out = sample(rng, setting.mu, False, presence.size).reshape(presence.shape)
    return Coins(np.where(presence, scores_in, scores_out), presence)


def _draw_failing(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of orthogonal canaries in Gaussian noise, in runs that may insert nothing.

    A run inserts none of its canaries with probability 1/2; else it inserts those that are in.
    """
    presence = _toss(rng, setting)
    works = rng.random((len(presence), 1)) < 0.5  # (R, 1): all canaries of a run share its coin
    noise = rng.standard_normal(presence.shape)
    return Coins(setting.mu * (presence & works) + noise, presence)


def _draw_tied(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of canaries any two of which have the inner product 1/2, in Gaussian noise.

    A canary is the unit vector (a direction of its own + a direction that all share) / sqrt(2), where all
    directions are orthogonal. The release is mu times the sum of the canaries that are in, plus noise. So a
    score, the release's inner product with the canary, is (own part + shared part) / sqrt(2), where the parts
    are the release's coordinates along both directions.
    """
    presence = _toss(rng, setting)  # (R, K)
    signal = setting.mu * presence
    own_noise = rng.standard_normal(presence.shape)
    shared_noise = rng.standard_normal((len(presence), 1))  # a run's canaries share a direction
    # Each canary that is in adds mu / sqrt(2) to the coordinate along either of its directions.
    own = np.sqrt(0.5) * signal + own_noise
    shared = np.sqrt(0.5) * signal.sum(1, keepdims=True) + shared_noise
    scores = np.sqrt(0.5) * (own + shared)
    return Coins(scores, presence)


def _draw_opened(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws a single run's scores: pure noise, but with a small probability many coins are revealed at once.

    A revealed coin's score is far from the noise, and its sign tells whether the canary is in. The mechanism
    is a trap for bounds that take coins for independent: a coin is rarely revealed, but never alone.
    """
    n = setting.canaries
    presence = _toss(rng, setting)  # (1, n)
    # Revealing so many coins puts the number of right guesses three standard deviations above chance. A small
    # run has fewer than that, and reveals all of them.
    revealed_at_once = min(round(_OPENED_ROOTS * np.sqrt(n)), n)
    scores = rng.standard_normal((1, n))
    # With this probability the run reveals coins, and a coin is among them with probability
    # revealed_at_once / n. So each coin is revealed with probability _OPEN_DELTA in all.
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
    """Returns the truth about the mechanism "failing runs".

    Half of the runs fail, and each run releases whether it did. A failed run leaks nothing, any other run
    leaks what a mu-GDP mechanism (Gaussian differential privacy) does. At any epsilon the mechanism's delta
    is therefore half of that of mu-GDP, and its epsilon at `delta` is that of mu-GDP at 2 `delta`.
    """
    return Truth(conversions.epsilon_from_mu(setting.mu, 2 * setting.delta))


def _make_law(draw: Callable[..., Coins], family: ScoreFamily, *breaks: str, **changes: Any) -> Law:
    """Returns the law of independent canaries whose scores are from a family of distributions.

    Args:
      draw: `_draw_worlds`, for a single canary a run, or `_draw_coins`, for many canaries.
      family: The scores' distributions with and without the canary, which depend on a parameter.
      *breaks: The assumptions that some estimators make and that do not hold for the law, such as
        GAUSSIAN_CURVE.
      **changes: Keyword arguments of `draw` that differ from their defaults, such as `share_in`.
    """
    truth = partial(laws.score_truth, family)
    draw_family = partial(draw, family.sample, **changes)  # (generator, setting) -> Coins
    return Law(family.name, draw_family, truth, breaks=frozenset(breaks))


def _choose_sizes(mu: float, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns all sizes for mu 0 and mu 1, and only the usual size, the first, for any other mu."""
    return sizes if mu in (0.0, 1.0) else sizes[:1]


def _make_one_canary_mechanisms() -> list[BenchmarkedMechanism]:
    """Returns the mechanisms whose runs have a single canary each."""
    make = partial(BenchmarkedMechanism, ONE_CANARY)
    gaussian = _make_law(_draw_worlds, known_laws.GAUSSIAN)
    few_in = _make_law(_draw_worlds, known_laws.GAUSSIAN, share_in=0.1)
    opened = Law("open", partial(_draw_worlds, _sample_open), _nothing_leaks, breaks=_CURVED)
    mechanisms = []
    for mu in (0.0, 0.5, 1.0, 2.0, 4.0):
        mechanisms.append(make(f"Gaussian {mu:g}", gaussian, mu, _choose_sizes(mu, _WORLD_SIZES)))
    mechanisms.append(make("Gaussian 1, few in", few_in, 1.0))
    subsampled = ("Poisson-subsampled", known_laws.LAWS["subsampled"], 0.5)
    mixture = ("mixture of runs", _MIXTURE, 3.0)
    for name, family, parameter in (*_CURVED_FAMILIES, subsampled, mixture):
        law = _make_law(_draw_worlds, family, GAUSSIAN_CURVE)
        mechanisms.append(make(name, law, parameter))
    return [*mechanisms, make("(0, delta)", opened, 0.0, delta=_OPEN_DELTA)]


def _make_coin_mechanisms(
    design: str, prefix: str, sizes: tuple[int, ...]
) -> list[BenchmarkedMechanism]:
    """Returns the mechanisms with many canaries, each of which is in by a coin.

    Args:
      design: SEVERAL, several canaries in each of several runs, or ONE_RUN, all canaries in a single run.
      prefix: the first words of the mechanisms' names.
      sizes: the sizes n in a full run of the benchmark, the usual size first.
    """

    def make(
        name: str, law: Law, mu: float, audited: tuple[int, ...] = sizes[:1]
    ) -> BenchmarkedMechanism:
        return BenchmarkedMechanism(design, f"{prefix}: {name}", law, mu, audited)

    # Vectors in Gaussian noise. `breaks`: the assumptions of some estimators that do not hold for a law.
    orthogonal = Law("orthogonal", laws.COINS["independent"].draw, laws.gaussian_truth)
    tied = Law("tied", _draw_tied, laws.gaussian_truth, breaks=frozenset([INDEPENDENT]))
    failing = Law("failing", _draw_failing, _failing_truth, breaks=_CURVED | {INDEPENDENT})
    mechanisms = []
    for mu in (0.0, 1.0, 2.0, 4.0):
        mechanisms.append(make(f"Gaussian {mu:g}", orthogonal, mu, _choose_sizes(mu, sizes)))
    mechanisms.append(make("tied canaries", tied, 1.0, sizes))
    mechanisms.append(make("failing runs", failing, 2.0))

    # Scores that are drawn independently.
    for name, family, parameter in _CURVED_FAMILIES:
        law = _make_law(_draw_coins, family, GAUSSIAN_CURVE)
        mechanisms.append(make(name, law, parameter))
    unfair = _make_law(_draw_coins, known_laws.GAUSSIAN, FAIR, probability=0.9)
    return [*mechanisms, make("nine tenths in", unfair, 1.0)]


def _make_direction_mechanisms() -> list[BenchmarkedMechanism]:
    """Returns the mechanisms of a single run whose canaries are uniform directions."""
    named_laws = []
    gaussian = Law("directions", _draw_cosines, laws.gaussian_truth)
    for mu in (0.0, 1.0, 4.0):
        named_laws.append((f"Gaussian {mu:g}", gaussian, mu))
    # Laws with another trade-off curve, or with canaries that are not independent.
    for name in ("equal", "failing", "laplace", "bound"):
        named_laws.append((f"{name} 2", laws.DIRECTIONS[name], 2.0))
    mechanisms = []
    for name, law, parameter in named_laws:
        full_name = f"directions: {name}"
        mechanism = BenchmarkedMechanism(DIRECTIONS, full_name, law, parameter, _DIRECTION_SIZES)
        mechanisms.append(mechanism)
    return mechanisms


_OPENED = Law("opened", _draw_opened, _nothing_leaks, breaks=_CURVED)
_RECORDS = (
    *_make_one_canary_mechanisms(),
    *_make_coin_mechanisms(SEVERAL, "runs of 16", _RUN_SIZES),
    *_make_coin_mechanisms(ONE_RUN, "coins", _COIN_SIZES),
    BenchmarkedMechanism(ONE_RUN, "coins: (0, delta)", _OPENED, 0.0, delta=_OPEN_DELTA),
    *_make_direction_mechanisms(),
    *trained.MECHANISMS,
)
MECHANISMS = {record.name: record for record in _RECORDS}
