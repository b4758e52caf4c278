"""The participation in a federated training run, decided beforehand.

Clients are indices (rounds, W), padded with ABSENT, and canaries a mask (rounds, K).
"""

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require

ABSENT = -1
Indices = NDArray[np.int32]
Mask = NDArray[np.float32]


def shuffled(key: Array, clients: int, rounds: int, cohort: int) -> Indices:
    """Draws cohorts (rounds, cohort) of client indices: one permutation, repeated, cut into equal pieces.

    A client joins at most ceil(rounds * cohort / clients) rounds. Raises InputError for a cohort that is
    larger than the population.
    """
    message = f"`cohort={cohort}` is more than the {clients} clients: lower it"
    require(cohort <= clients, message)
    order = np.asarray(jax.random.permutation(key, clients), np.int32)
    places = np.arange(rounds * cohort) % clients
    return order[places].reshape(rounds, cohort)


def repeated(key: Array, canaries: int, rounds: int, repetitions: int) -> Mask:
    """Draws a mask (rounds, canaries), 1 where a canary joins a round: each joins `repetitions` rounds.

    The run is cut into `repetitions` parts of equal length; a part may begin in the middle of a round. For
    each part, a permutation of all canaries is drawn and dealt evenly to the part's rounds, so that each
    canary joins a single round of it. Raises InputError for more repetitions than rounds.
    """
    fits = 1 <= repetitions <= rounds
    require(fits, f"`repetitions={repetitions}`: give 1 to {rounds}, the number of rounds")
    mask = np.zeros((rounds, canaries), np.float32)
    for i in range(repetitions):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, i), canaries))
        # The previous permutation may have ended within the first round of this part. The canaries that it
        # dealt to that round go last now, or the round could get them twice. The sort is stable, so that all
        # others keep their order.
        first_round = i * rounds // repetitions
        is_dealt = mask[first_round] > 0
        order = order[np.argsort(is_dealt[order], kind="stable")]
        # The round of each canary of `order`. The permutations of all parts form a single row of n places,
        # which is dealt evenly to all rounds: place j goes to round j * rounds / n, rounded down.
        places = i * canaries + np.arange(canaries)
        joined_rounds = places * rounds // (canaries * repetitions)
        mask[joined_rounds, order] = 1
    return mask


def by_size(cohorts: Indices, counts: NDArray[np.integer]) -> Indices:
    """Sorts each round's clients by their number of examples, the most first.

    Clients that are trained at once are neighbours then, and take about equally many steps.

    Args:
      cohorts: clients (rounds, W), padded with ABSENT, which goes last.
      counts: the number of examples of each client (M,).
    """
    sizes = np.where(cohorts == ABSENT, -1, counts[cohorts])
    order = np.argsort(-sizes, axis=1, kind="stable")
    return np.take_along_axis(cohorts, order, axis=1)


def most_rounds(cohorts: Indices, clients: int) -> int:
    """Returns the largest number of rounds in which any one client takes part."""
    present = cohorts[cohorts != ABSENT]
    return int(np.bincount(present, minlength=clients).max())
