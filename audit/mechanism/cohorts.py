"""Who takes part in which round of a federated training, decided beforehand: clients as indices (rounds, W),
padded with ABSENT, and canaries as a mask (rounds, K)."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require

ABSENT = -1
Indices = NDArray[np.int32]
Mask = NDArray[np.float32]


def shuffled(key: Array, clients: int, rounds: int, cohort: int) -> Indices:
    """Cohorts of one size, cut in turn from a repeated permutation: a client joins at most ceil(rounds *
    cohort / clients) rounds. Raises InputError for a cohort empty or larger than the population."""
    require_cohort(clients, cohort)
    order = np.asarray(jax.random.permutation(key, clients), np.int32)
    return order[np.arange(rounds * cohort) % clients].reshape(rounds, cohort)


def sampled(key: Array, clients: int, rounds: int, cohort: int) -> Indices:
    """Poisson sampling: each client joins each round with probability cohort / clients, by its own coin.
    Raises InputError for a cohort that is empty or larger than the population."""
    require_cohort(clients, cohort)
    joins = _coins(key, clients, cohort / clients)
    return listed([np.flatnonzero(joins(t)) for t in range(rounds)], clients)


def listed(rounds: Sequence[NDArray[np.integer]], clients: int) -> Indices:
    """A user's own rounds of clients from 0; raises InputError for one missing or twice in a round."""
    width = max((len(members) for members in rounds), default=0)
    found = np.full((len(rounds), max(width, 1)), ABSENT, np.int32)
    for t, members in enumerate(rounds):
        known = (members >= 0) & (members < clients)
        require(known.all(), f"round {t + 1} names client {members[~known][:1]}: there are {clients}, from 0")
        require(len(np.unique(members)) == len(members), f"round {t + 1} names a client twice")
        found[t, : len(members)] = members
    return found


def repeated(key: Array, canaries: int, rounds: int, repetitions: int) -> Mask:
    """Each canary joins exactly one round of each `repetitions`-th part of the training: permutations dealt
    evenly to the rounds. Raises InputError for more repetitions than rounds."""
    fits = 1 <= repetitions <= rounds
    require(fits, f"`repetitions={repetitions}`: give 1 to {rounds}, the number of rounds")
    mask = np.zeros((rounds, canaries), np.float32)
    for i in range(repetitions):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, i), canaries))
        shared = mask[i * rounds // repetitions] > 0  # of the round in which the permutation before it ended
        order = order[np.argsort(shared[order], kind="stable")]
        places = (i * canaries + np.arange(canaries)) * rounds // (canaries * repetitions)
        mask[places, order] = 1
    return mask


def sampled_canaries(key: Array, canaries: int, rounds: int, rate: float) -> Mask:
    """Each canary joins each round with a probability, by its own coin."""
    joins = _coins(key, canaries, rate)
    return np.stack([joins(t) for t in range(rounds)]).astype(np.float32)


def by_size(cohorts: Indices, counts: NDArray[np.integer]) -> Indices:
    """The rounds with their largest clients first, so that blocks of them take equally many steps."""
    sizes = np.where(cohorts == ABSENT, -1, counts[cohorts])
    return np.take_along_axis(cohorts, np.argsort(-sizes, axis=1, kind="stable"), axis=1)


def most_rounds(cohorts: Indices, clients: int) -> int:
    """The largest number of rounds in which a client takes part."""
    return int(np.bincount(cohorts[cohorts != ABSENT], minlength=clients).max())


def require_cohort(clients: int, cohort: int) -> None:
    """Raises InputError for a cohort that is empty or larger than the population."""
    require(cohort >= 1, f"`cohort={cohort}`: give at least 1 client a round")
    require(cohort <= clients, f"`cohort={cohort}` is more than the {clients} clients: lower it")


def _coins(key: Array, count: int, rate: float) -> Callable[[int], NDArray[np.bool_]]:
    draw = jax.jit(partial(jax.random.bernoulli, p=rate, shape=(count,), mode="high"))
    return lambda t: np.asarray(draw(jax.random.fold_in(key, t)))
