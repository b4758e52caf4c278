"""Mock rounds of a frozen model.

A round's score is the dot product of the noisy sum with the canary's unit gradient, over the clipping norm.
Given every client's dot product, a mock round is a sum of these numbers plus a normal draw.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_ROUNDS = 8192  # mock rounds in memory at once


def mock_scores(
    rng: np.random.Generator,
    dots: Floats,
    cohort: int,
    own: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Simulates mock rounds with the canary added to the cohort, and the same number without it.

    Args:
      rng: The generator of cohorts and noise.
      dots: (clients,) the clients' dot products.
      cohort: The size of the cohort without the canary.
      own: The canary's dot product.
      sigma: The noise multiplier.
      rounds: The number of rounds per world.

    Returns:
      The scores (rounds,) with the canary, and the scores (rounds,) without it.
    """
    sums = _play(rng, dots, cohort, 2 * rounds)
    scores = sums + sigma * rng.standard_normal(2 * rounds)
    return scores[:rounds] + own, scores[rounds:]


def published_scores(
    rng: np.random.Generator,
    dots: Floats,
    cohort: int,
    own: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Simulates mock rounds as the public code: the canary replaces a client of the cohort (Errata C1).

    Takes the arguments of `mock_scores`, except that `cohort` includes the canary and `rounds` counts both
    worlds. Half of the rounds, rounded up, have the canary.
    """
    rounds_out = rounds // 2
    rounds_in = rounds - rounds_out
    sums_in = _play(rng, dots, cohort - 1, rounds_in) + own
    sums_out = _play(rng, dots, cohort, rounds_out)
    scores_in = sums_in + sigma * rng.standard_normal(rounds_in)
    scores_out = sums_out + sigma * rng.standard_normal(rounds_out)
    return scores_in, scores_out


def cohorts(rng: np.random.Generator, clients: int, size: int, rounds: int) -> NDArray[np.int64]:
    """Draws a cohort of clients for each round without replacement, as indices (rounds, size).

    All indices are drawn at once. Repeated clients in a round are then drawn again, column by column.
    """
    drawn = rng.integers(clients, size=(rounds, size))
    for column in range(1, size):
        colliding = np.arange(rounds)
        while True:
            rows = drawn[colliding]
            collides = (rows[:, :column] == rows[:, column, None]).any(axis=1)
            colliding = colliding[collides]
            if not len(colliding):
                break
            drawn[colliding, column] = rng.integers(clients, size=len(colliding))
    return drawn


def _play(rng: np.random.Generator, dots: Floats, cohort: int, rounds: int) -> Floats:
    """Returns the sum (rounds,) of a random cohort's dot products for each mock round.

    For cohorts of more than half of the clients, the absent clients are drawn instead.
    """
    clients = len(dots)
    draws_absent = 2 * cohort > clients
    size = cohort
    if draws_absent:
        size = clients - cohort
    sums = np.zeros(rounds)
    for start in range(0, rounds, _ROUNDS):
        part = sums[start : start + _ROUNDS]
        drawn = cohorts(rng, clients, size, len(part))
        part += dots[drawn].sum(axis=1)
    if draws_absent:
        sums = dots.sum() - sums
    return sums
