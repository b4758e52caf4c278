"""Draws the clients and canaries of each round before a federated training run begins."""

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require

ABSENT = -1  # marks a missing client
Indices = NDArray[np.int32]


def shuffled(key: Array, clients: int, rounds: int, cohort: int) -> Indices:
    """Draws the client indices of each round, of shape (rounds, cohort).

    We repeat a single permutation of all clients and cut it into rounds, so a client joins at most
    ceil(rounds * cohort / clients) rounds. Raises InputError if there are fewer clients than `cohort`.
    """
    require(
        cohort <= clients,
        f"`cohort` must be at most {clients}, the number of clients, got {cohort}",
    )
    order = np.asarray(jax.random.permutation(key, clients), np.int32)
    places = np.arange(rounds * cohort) % clients
    return order[places].reshape(rounds, cohort)


def repeated(key: Array, canaries: int, rounds: int, repetitions: int) -> NDArray[np.float32]:
    """Draws a mask (rounds, canaries) that is 1 for the `repetitions` rounds that each canary joins.

    We cut the run into `repetitions` equal parts, which may begin mid-round. In each part, we distribute all
    canaries evenly over the rounds in random order, so each canary joins one round. `repetitions` must be at
    most `rounds`.
    """
    mask = np.zeros((rounds, canaries), np.float32)
    for part in range(repetitions):
        part_key = jax.random.fold_in(key, part)
        order = np.asarray(jax.random.permutation(part_key, canaries))
        # The previous part may end within this part's first round. We move canaries that already join this
        # round to the end of the order, so they do not join it twice.
        first_round = part * rounds // repetitions
        is_dealt = mask[first_round] > 0
        order = order[np.argsort(is_dealt[order], kind="stable")]
        # All permutations together have n = canaries * repetitions places, spread evenly over the rounds, so
        # place j belongs to round j * rounds // n.
        places = part * canaries + np.arange(canaries)
        joined_rounds = places * rounds // (canaries * repetitions)
        mask[joined_rounds, order] = 1
    return mask


def by_size(cohorts: Indices, counts: NDArray[np.integer]) -> Indices:
    """Sorts each round's clients (rounds, W) by their example counts, counts[client], largest first.

    Clients that train together then take about the same number of steps.
    """
    order = np.argsort(-counts[cohorts], axis=1, kind="stable")
    return np.take_along_axis(cohorts, order, axis=1)
