"""Mock rounds of a frozen model.

A round's score is the noisy sum's dot product with the canary's unit gradient, over the clipping norm. With
every client's dot product computed, a mock round is a sum of these numbers and a normal draw.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_ROUNDS = 8192  # mock rounds whose cohorts are in memory at once


def mock_scores(
    rng: np.random.Generator, dots: Floats, cohort: int, own: float, sigma: float, rounds: int
) -> tuple[Floats, Floats]:
    """Plays mock rounds with the canary added to the cohort, and as many without it.

    Args:
      rng: The generator of cohorts and noise.
      dots: (clients,) the dot product of every client.
      cohort: The size of the cohort without the canary.
      own: The canary's own dot product.
      sigma: The noise multiplier.
      rounds: The number of rounds with the canary, and the number without.

    Returns:
      The scores (rounds,) with the canary, and those without, over the clipping norm.
    """
    sums = _play(rng, dots, cohort, 2 * rounds)
    scores = sums + sigma * rng.standard_normal(2 * rounds)
    return scores[:rounds] + own, scores[rounds:]


def published_scores(
    rng: np.random.Generator, dots: Floats, cohort: int, own: float, sigma: float, rounds: int
) -> tuple[Floats, Floats]:
    """Plays mock rounds as the public code does: the canary replaces a client of the cohort (Errata C1).

    The arguments are those of `mock_scores`, but `cohort` includes the canary, and `rounds` counts both
    worlds together; half have the canary, the larger half if odd.
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

    All indices are drawn at once. Then, column by column, a client that its round already has is drawn again
    until it is another.
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
    """Returns the sum of a random cohort's dot products for each mock round, (rounds,).

    For a cohort of more than half of the clients, the clients that it leaves out are drawn.
    """
    clients = len(dots)
    leaves_out = 2 * cohort > clients
    size = clients - cohort if leaves_out else cohort
    sums = np.zeros(rounds)
    for start in range(0, rounds, _ROUNDS):
        part = sums[start : start + _ROUNDS]
        part += dots[cohorts(rng, clients, size, len(part))].sum(axis=1)
    return np.asarray(dots.sum() - sums if leaves_out else sums)
