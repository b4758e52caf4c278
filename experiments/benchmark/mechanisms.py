"""Mechanisms whose epsilon is known exactly, with how an audit's scores are drawn.

Where one run has several canaries, what is released is a vector, and every canary's score is its inner
product with that canary: all scores together say no more of one canary than mu does, however they are tied.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism
from audit.laws import conversions, cosine_law, known_laws
from audit.laws.known_laws import KnownLaw, MixturePart, ScoreFamily
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
Shape = Callable[[int], tuple[int, int]]  # n -> (runs, canaries of a run)

# The n of a full run, the usual one first: scores a world, runs, coins, directions.
_WORLD_SIZES = (1000, 50, 250, 5000)
_RUN_SIZES = (200, 50, 1000)
_COIN_SIZES = (1000, 100, 5000)
_DIRECTION_SIZES = (1000, 100)

_CANARIES = 16  # of a run
_DIMENSION = 100_000  # of directions
_NO_LEAK_SIGMA = 1e6  # in place of an infinite noise multiplier
_OPEN_DELTA = 0.01  # of the mechanism that lays bits open
_OPEN_SCORE = 10.0  # of a canary that is laid open, far from the noise
_WEAK_MU = 0.5  # of half of the runs of the mixture
_STRONG_MU = 3.0  # of the other half
_CURVED = frozenset([GAUSSIAN])  # broken by mechanisms with another trade-off curve


def _sample_mixture(rng: np.random.Generator, strong: float, inserted: bool, n: int) -> Array:
    """Draws scores of a world of the mixture, as `ScoreFamily.sample`."""
    centres = np.where(rng.random(n) < 0.5, _WEAK_MU, strong)
    return centres * inserted + rng.standard_normal(n)


def _mixture_parts(strong: float, inserted: bool) -> list[MixturePart]:
    """Returns the mixture of a world, as `ScoreFamily.parts`."""
    return [MixturePart(0.5, _WEAK_MU * inserted), MixturePart(0.5, strong * inserted)]


class CanaryLaw(NamedTuple):
    """The law of the scores of canaries that are drawn independently.

    Attributes:
      sample: (generator, inserted, n) -> scores (n,) of a world.
      truth: delta -> the true epsilon.
    """

    sample: Callable[[np.random.Generator, bool, int], Array]
    truth: Truth


def _make_canary_law(law: ScoreFamily, parameter: float) -> CanaryLaw:
    """Returns a law of `known_laws` at a parameter."""

    def sample(rng: np.random.Generator, inserted: bool, n: int) -> Array:
        return law.sample(rng, parameter, inserted, n)

    return CanaryLaw(sample, KnownLaw(law, parameter).epsilon)


def _sample_open(rng: np.random.Generator, inserted: bool, n: int) -> Array:
    """Draws scores that are noise alone, but for a few that lay their canary's bit open."""
    is_open = rng.random(n) < _OPEN_DELTA
    noise = rng.standard_normal(n)
    open_score = _OPEN_SCORE if inserted else -_OPEN_SCORE
    return np.where(is_open, open_score, noise)


def _nothing_leaks(delta: float) -> float:
    """Returns the true epsilon, 0, of mechanisms that spend no more than delta."""
    return 0.0


def _gaussian(mu: float) -> CanaryLaw:
    """Returns N(mu, 1) against N(0, 1)."""
    return _make_canary_law(known_laws.GAUSSIAN, mu)


_MIXTURE = ScoreFamily("mixture", (_STRONG_MU,), _sample_mixture, known_laws.NORMAL, _mixture_parts)
LAPLACE = _make_canary_law(known_laws.LAWS["laplace"], 1.0)
RESPONSE = _make_canary_law(known_laws.LAWS["randomized_response"], 1.0)
SUBSAMPLED = _make_canary_law(known_laws.LAWS["subsampled"], 0.5)
MIXTURE = _make_canary_law(_MIXTURE, _STRONG_MU)
HEAVY = _make_canary_law(known_laws.LAWS["t3"], 2.0)
OPEN = CanaryLaw(_sample_open, _nothing_leaks)


def _draw_worlds(
    law: CanaryLaw, rng: np.random.Generator, n: int, share_in: float = 0.5
) -> AuditScores:
    """Draws 2 n runs of one canary, this share of them in."""
    runs_in = round(2 * n * share_in)
    scores_in = law.sample(rng, True, runs_in)
    scores_out = law.sample(rng, False, 2 * n - runs_in)
    scores = np.concatenate([scores_in, scores_out])
    presence = np.arange(2 * n) < runs_in
    return AuditScores(scores[:, None], presence[:, None])


def _draw_coins(
    law: CanaryLaw, shape: Shape, rng: np.random.Generator, n: int, probability: float = 0.5
) -> AuditScores:
    """Draws canaries that are independent of each other, each in with this probability."""
    presence = rng.random(shape(n)) < probability
    scores_in = law.sample(rng, True, presence.size).reshape(presence.shape)
    scores_out = law.sample(rng, False, presence.size).reshape(presence.shape)
    return AuditScores(np.where(presence, scores_in, scores_out), presence)


def _draw_orthogonal(mu: float, shape: Shape, rng: np.random.Generator, n: int) -> AuditScores:
    """Draws scores of orthogonal canaries in Gaussian noise."""
    presence = rng.random(shape(n)) < 0.5
    noise = rng.standard_normal(presence.shape)
    return AuditScores(mu * presence + noise, presence)


def _draw_failing(mu: float, shape: Shape, rng: np.random.Generator, n: int) -> AuditScores:
    """Draws scores of orthogonal canaries whose insertion fails, for all at once, in half of the runs."""
    presence = rng.random(shape(n)) < 0.5
    works = rng.random((len(presence), 1)) < 0.5
    noise = rng.standard_normal(presence.shape)
    return AuditScores(mu * (presence & works) + noise, presence)


def _draw_tied(mu: float, shape: Shape, rng: np.random.Generator, n: int) -> AuditScores:
    """Draws scores of canaries any two of which have the inner product 1/2, in Gaussian noise.

    A canary is (own direction + a direction that all share) / sqrt(2): so are its signal and its noise.
    """
    presence = rng.random(shape(n)) < 0.5
    signal = mu * presence
    own_noise = rng.standard_normal(presence.shape)
    shared_noise = rng.standard_normal((len(presence), 1))
    shared = np.sqrt(0.5) * signal.sum(1, keepdims=True) + shared_noise
    scores = np.sqrt(0.5) * (np.sqrt(0.5) * signal + own_noise + shared)
    return AuditScores(scores, presence)


def _draw_opened(rng: np.random.Generator, n: int) -> AuditScores:
    """Draws noise alone; but each coin is laid open with probability delta, many of them at once."""
    presence = rng.random((1, n)) < 0.5
    opened_at_once = min(round(3 * np.sqrt(n)), n)
    scores = rng.standard_normal((1, n))
    if rng.random() < _OPEN_DELTA * n / opened_at_once:
        places = rng.permutation(n)[:opened_at_once]
        scores[0, places] = np.where(presence[0, places], _OPEN_SCORE, -_OPEN_SCORE)
    return AuditScores(scores, presence)


def _draw_cosines(mu: float, rng: np.random.Generator, n: int) -> AuditScores:
    """Draws cosines of uniform directions, all in, with what one run releases in Gaussian noise."""
    sigma = 1 / mu if mu else _NO_LEAK_SIGMA
    cosines = cosine_law.simulate(rng, n, _DIMENSION, sigma)
    return AuditScores(cosines[None], np.ones((1, n), bool), _DIMENSION)


_directions = partial(KnownTruth, design=DIRECTIONS, sizes=_DIRECTION_SIZES)


def _make_gaussian_directions(mu: float) -> KnownTruth:
    """Returns the mechanism that inserts directions and releases them in Gaussian noise."""
    return _directions(
        f"directions: Gaussian {mu:g}",
        draw=partial(_draw_cosines, mu),
        truth=partial(conversions.epsilon_from_mu, mu),
        description=f"cosines of uniform directions with a release of mu {mu:g}",
    )


def _make_calibrated_directions(law_name: str, *breaks: str) -> KnownTruth:
    """Returns the mechanism of cosines by a law of `calibrate`, at the parameter 2."""
    law = laws.DIRECTIONS[law_name]

    def simulate(n: int, delta: float) -> KnownMechanism:
        return KnownMechanism(law, 2.0, 1, 1, delta, CONFIDENCE, 0, n, _DIMENSION)

    def draw(rng: np.random.Generator, n: int) -> AuditScores:
        design = law.draw(rng, simulate(n, DELTA))
        return AuditScores(design.cosines, design.presence, design.dimension)

    def truth(delta: float) -> float:
        return law.truth(simulate(1, delta)).epsilon

    return _directions(
        f"directions: {law_name} 2",
        draw=draw,
        truth=truth,
        description=f"cosines of the law {law_name!r} of calibrate, parameter 2",
        breaks=frozenset(breaks),
    )


def _make_worlds(name: str, law: CanaryLaw, description: str, **changes: Any) -> KnownTruth:
    """Returns the mechanism of one canary a run by a law of its scores."""
    mechanism = KnownTruth(name, ONE_CANARY, partial(_draw_worlds, law), law.truth, description)
    return mechanism._replace(**changes)


def _make_one_canary_mechanisms() -> list[KnownTruth]:
    """Returns the mechanisms of one canary a run."""
    mechanisms = []
    for mu in (0.0, 0.5, 1.0, 2.0, 4.0):
        sizes = _choose_sizes(mu, _WORLD_SIZES)
        description = f"N({mu:g}, 1) against N(0, 1)"
        mechanisms.append(_make_worlds(f"Gaussian {mu:g}", _gaussian(mu), description, sizes=sizes))

    few_in = _make_worlds(
        "Gaussian 1, few in",
        _gaussian(1.0),
        "N(1, 1) against N(0, 1), a tenth of the runs in",
        draw=partial(_draw_worlds, _gaussian(1.0), share_in=0.1),
    )
    mechanisms.append(few_in)

    curved_laws = (
        ("Laplace 1", LAPLACE, "Laplace noise of scale 1, shifted by 1"),
        ("randomised response 1", RESPONSE, "a bit that is right with the odds e, in little noise"),
        ("Poisson-subsampled", SUBSAMPLED, "noise 0.5, inserted with probability 0.1"),
        ("mixture of runs", MIXTURE, "half of the runs at mu 0.5, half at mu 3"),
        ("heavy tails", HEAVY, "Student's t of 3 degrees of freedom, shifted by 2"),
    )
    for name, law, description in curved_laws:
        mechanisms.append(_make_worlds(name, law, description, breaks=_CURVED))

    open_bits = _make_worlds(
        "(0, delta)",
        OPEN,
        "nothing leaks, but a run in a hundred tells its bit; evaluated at delta 0.01",
        breaks=_CURVED,
        delta=_OPEN_DELTA,
    )
    mechanisms.append(open_bits)
    return mechanisms


def _make_coin_mechanisms(
    design: str, prefix: str, shape: Shape, sizes: tuple[int, ...]
) -> list[KnownTruth]:
    """Returns the mechanisms of canaries with coins, several a run or all in one.

    Those that release a run's vector in Gaussian noise come first, then those of canaries that are drawn
    independently.

    Args:
      design: SEVERAL or ONE_RUN.
      prefix: What their names begin with.
      shape: n -> (runs, canaries of a run).
      sizes: The n of a full run, the usual one first.
    """
    mechanisms = []

    def add(
        name: str,
        draw: Callable[[np.random.Generator, int], AuditScores],
        truth: Truth,
        description: str,
        *breaks: str,
        sizes: tuple[int, ...] = sizes[:1],
    ) -> None:
        mechanism = KnownTruth(
            f"{prefix}: {name}", design, draw, truth, description, sizes, frozenset(breaks)
        )
        mechanisms.append(mechanism)

    for mu in (0.0, 1.0, 2.0, 4.0):
        add(
            f"Gaussian {mu:g}",
            partial(_draw_orthogonal, mu, shape),
            partial(conversions.epsilon_from_mu, mu),
            f"orthogonal canaries, each of mu {mu:g}",
            sizes=_choose_sizes(mu, sizes),
        )
    add(
        "tied canaries",
        partial(_draw_tied, 1.0, shape),
        partial(conversions.epsilon_from_mu, 1.0),
        "any two canaries have the inner product 1/2; mu 1",
        INDEPENDENT,
        sizes=sizes,
    )
    add(
        "failing runs",
        partial(_draw_failing, 2.0, shape),
        partial(_compute_failing_epsilon, 2.0),
        "in half of the runs, which is released, nothing is inserted; else mu 2",
        INDEPENDENT,
        GAUSSIAN,
    )
    curved_laws = {"Laplace 1": LAPLACE, "randomised response 1": RESPONSE, "heavy tails": HEAVY}
    for name, law in curved_laws.items():
        description = f"independent canaries, each by {name}"
        add(name, partial(_draw_coins, law, shape), law.truth, description, GAUSSIAN)
    law = _gaussian(1.0)
    add(
        "nine tenths in",
        partial(_draw_coins, law, shape, probability=0.9),
        law.truth,
        "mu 1, coins that are in with probability 0.9",
        FAIR,
    )
    return mechanisms


def _choose_sizes(mu: float, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns all sizes where nothing leaks or mu is 1; the usual one alone at other mu."""
    if mu in (0.0, 1.0):
        return sizes
    return sizes[:1]


def _compute_failing_epsilon(mu: float, delta: float) -> float:
    """Returns the true epsilon at delta of the mechanism "failing runs".

    A run releases whether it failed. If it did, as half of the runs do, nothing leaks; if not, as much as at
    mu. So delta is the mean of 0 and of mu's delta at the same epsilon, which is then twice `delta`.
    """
    return conversions.epsilon_from_mu(mu, 2 * delta)


def _shape_of_one_run(n: int) -> tuple[int, int]:
    return 1, n


def _shape_of_several_runs(n: int) -> tuple[int, int]:
    return n, _CANARIES


_OPENED_COINS = KnownTruth(
    name="coins: (0, delta)",
    design=ONE_RUN,
    draw=_draw_opened,
    truth=OPEN.truth,
    description="nothing leaks, but with probability 0.01 each coin is laid open, many at once; "
    "evaluated at delta 0.01",
    breaks=_CURVED,
    delta=_OPEN_DELTA,
)
_RECORDS = (
    *_make_one_canary_mechanisms(),
    *_make_coin_mechanisms(SEVERAL, "runs of 16", _shape_of_several_runs, _RUN_SIZES),
    *_make_coin_mechanisms(ONE_RUN, "coins", _shape_of_one_run, _COIN_SIZES),
    _OPENED_COINS,
    _make_gaussian_directions(0.0),
    _make_gaussian_directions(1.0),
    _make_gaussian_directions(4.0),
    _make_calibrated_directions("equal", INDEPENDENT),
    _make_calibrated_directions("failing", GAUSSIAN, INDEPENDENT),
    _make_calibrated_directions("laplace", GAUSSIAN),
    _make_calibrated_directions("bound", GAUSSIAN),
    *trained.MECHANISMS,
)
MECHANISMS = {record.name: record for record in _RECORDS}
