"""The participation in a federated training run, decided beforehand.

Clients are indices (rounds, W), and canaries a mask (rounds, K).
"""

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require

ABSENT = -1  # pads a round with fewer clients
Indices = NDArray[np.int32]
Mask = NDArray[np.float32]


def shuffled(key: Array, clients: int, rounds: int, cohort: int) -> Indices:
    """Draws cohorts (rounds, cohort) of client indices: one permutation, repeated, cut into equal pieces.

    A client joins at most ceil(rounds * cohort / clients) rounds. Raises InputError if the cohort is larger
    than the population.
    """
    message = f"`cohort` must be at most {clients}, the number of clients, got {cohort}"
    require(cohort <= clients, message)
    order = np.asarray(jax.random.permutation(key, clients), np.int32)
    places = np.arange(rounds * cohort) % clients
    return order[places].reshape(rounds, cohort)


def repeated(key: Array, canaries: int, rounds: int, repetitions: int) -> Mask:
    """Draws a mask (rounds, canaries), 1 if a canary joins a round: each joins `repetitions` rounds.

    The run is cut into `repetitions` parts of equal length, which may begin in the middle of a round. For
    each part, a permutation of all canaries is dealt evenly to its rounds, so each canary joins a single
    round of it. There are at most as many repetitions as rounds.
    """
    mask = np.zeros((rounds, canaries), np.float32)
    for i in range(repetitions):
        part_key = jax.random.fold_in(key, i)
        order = np.asarray(jax.random.permutation(part_key, canaries))
        # The previous permutation may have ended within the first round of this part. The canaries that it
        # dealt to that round go last now, or the round could get them twice.
        first_round = i * rounds // repetitions
        is_dealt = mask[first_round] > 0
        order = order[np.argsort(is_dealt[order], kind="stable")]
        # The permutations form a single row of n places, dealt evenly to all rounds: place j goes to round j
        # * rounds / n.
        places = i * canaries + np.arange(canaries)
        joined_rounds = places * rounds // (canaries * repetitions)
        mask[joined_rounds, order] = 1
    return mask


def by_size(cohorts: Indices, counts: NDArray[np.integer]) -> Indices:
    """Sorts each round's clients (rounds, W) by their number of examples (M,), largest first.

    Clients that train at once then take about the same number of steps.
    """
    order = np.argsort(-counts[cohorts], axis=1, kind="stable")
    return np.take_along_axis(cohorts, order, axis=1)
