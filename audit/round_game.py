"""A frozen round of a federated training, played again and again: mock rounds -> scores.

A round's score is the noisy sum's dot product with the canary's unit gradient, over the clipping norm. The
sum is linear, so that with every client's dot product known, mock rounds are sums of known numbers and one
normal draw.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism.clipping.base import clip
from audit.statistics.cohort_law import Cohort

Floats = NDArray[np.float64]
Dots = Callable[[NDArray[np.int64], Array], Array]  # (clients (n,), v (p,)) -> clipped updates' (n,) with v
_ROUNDS = 8192  # whose cohorts are in memory at once


class Inserted(NamedTuple):
    """The canary at a frozen model: its unit gradient (p,), and the clipped update (p,) it sends."""

    direction: Array
    update: Array


def inserted(gradient: Array, learning_rate: float | None, clipping_norm: float) -> Inserted:
    """The canary of a gradient (p,): a client of one example sends learning_rate times that, clipped. None:
    it sends the gradient itself, as a round of DP-SGD does and the paper's code everywhere (Errata C2).
    Raises InputError for a gradient that is 0 or not finite, which has no direction."""
    norm = float(jnp.linalg.norm(gradient))
    require(0 < norm < np.inf, f"the canary's gradient has norm {norm:g}: design it with another `seed`")
    sent = gradient if learning_rate is None else learning_rate * gradient
    return Inserted(gradient / norm, clip(sent, jnp.asarray(clipping_norm)))


def dots(projected: Dots, clients: int, canary: Inserted, clipping_norm: float, block: int = 256) -> Floats:
    """(clients,) every client's dot product with the canary's direction, over the clipping norm."""
    found = []
    for start in range(0, clients, block):
        members = np.arange(start, min(start + block, clients))
        found.append(np.asarray(projected(members, canary.direction), np.float64))
    return np.concatenate(found) / clipping_norm


def own_dot(canary: Inserted, clipping_norm: float) -> float:
    """The canary's own dot product: 1 where its gradient reaches the clipping norm."""
    return float(canary.update @ canary.direction) / clipping_norm


def mock_sums(rng: np.random.Generator, known: Floats, cohort: Cohort, rounds: int) -> Floats:
    """(rounds,) sums of the dot products of so many cohorts."""
    parts = [_sums(rng, known, cohort, min(_ROUNDS, rounds - start)) for start in range(0, rounds, _ROUNDS)]
    return np.concatenate(parts) if parts else np.zeros(0)


def mock_scores(
    rng: np.random.Generator, known: Floats, cohort: Cohort, canary: float, sigma: float, rounds: int
) -> tuple[Floats, Floats]:
    """(in, out): scores of so many mock rounds each, the canary added to the cohort."""
    both = mock_sums(rng, known, cohort, 2 * rounds) + sigma * rng.standard_normal(2 * rounds)
    return both[:rounds] + canary, both[rounds:]


def published_scores(
    rng: np.random.Generator, known: Floats, cohort: Cohort, canary: float, sigma: float, rounds: int
) -> tuple[Floats, Floats]:
    """(in, out): so many mock rounds in all, half with the canary in the place of one of the cohort's
    clients, as the public code has them (Errata C1)."""
    require(cohort.size > 1, f"`cohort={cohort.size}`: a canary that replaces a client needs at least 2")
    half = rounds // 2
    with_canary = mock_sums(rng, known, cohort._replace(size=cohort.size - 1), rounds - half) + canary
    without = mock_sums(rng, known, cohort, half)
    noisy = with_canary + sigma * rng.standard_normal(rounds - half)
    return noisy, without + sigma * rng.standard_normal(half)


def cohorts(rng: np.random.Generator, clients: int, size: int, rounds: int) -> NDArray[np.int64]:
    """(rounds, size) clients drawn without replacement, column by column: what collides is drawn again."""
    found = rng.integers(clients, size=(rounds, size))
    for column in range(1, size):
        again = np.flatnonzero((found[:, :column] == found[:, column, None]).any(axis=1))
        while len(again):
            found[again, column] = rng.integers(clients, size=len(again))
            again = again[(found[again, :column] == found[again, column, None]).any(axis=1)]
    return found


def _sums(rng: np.random.Generator, known: Floats, cohort: Cohort, rounds: int) -> Floats:
    """Sums of cohorts; of a large one of fixed size by those that are left out."""
    count = len(known)
    if cohort.poisson:
        joins = rng.random((rounds, count)) < cohort.size / count
        return np.asarray(joins @ known)
    if 2 * cohort.size > count:
        rest = known[cohorts(rng, count, count - cohort.size, rounds)] if cohort.size < count else 0.0
        return np.asarray(known.sum() - np.sum(rest, axis=-1) * np.ones(rounds))
    return np.asarray(known[cohorts(rng, count, cohort.size, rounds)].sum(axis=1))
