"""A frozen round of a federated training run, played again and again: mock rounds -> scores.

A round's score is the noisy sum's dot product with the canary's unit gradient, over the clipping norm. The
sum is linear, so that with every client's dot product computed, mock rounds are sums of these numbers and
a normal draw.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism.clipping.base import clip
from experiments.canife.cohort_law import Cohort

Floats = NDArray[np.float64]
# (clients (n,), v (p,)) -> (n,), their clipped updates' dot products with v.
Dots = Callable[[NDArray[np.int64], Array], Array]
_ROUNDS = 8192  # mock rounds whose cohorts are in memory at once


class Inserted(NamedTuple):
    """The canary at a frozen model: its unit gradient (p,), and the clipped update (p,) it sends."""

    direction: Array
    update: Array


def inserted(gradient: Array, learning_rate: float | None, clipping_norm: float) -> Inserted:
    """Returns the canary of a gradient: its direction, and the update that it sends.

    Args:
      gradient: of the canary's sample, (p,).
      learning_rate: a client of one example sends this times the gradient, clipped. None: it sends the
        gradient itself, as a round of DP-SGD does and the paper's code everywhere (Errata C2).
      clipping_norm: C.

    Raises:
      InputError: the gradient is 0 or not finite, and has no direction.
    """
    norm = float(jnp.linalg.norm(gradient))
    require(
        0 < norm < np.inf,
        f"the canary's gradient has norm {norm:g}: design it with another `seed`",
    )
    sent = gradient if learning_rate is None else learning_rate * gradient
    return Inserted(gradient / norm, clip(sent, jnp.asarray(clipping_norm)))


def dots(
    projected: Dots,
    clients: int,
    canary: Inserted,
    clipping_norm: float,
    block: int = 256,
) -> Floats:
    """Returns every client's dot product with the canary's direction, over the clipping norm, (clients,).

    Args:
      projected: gives the dot products of some clients' clipped updates with a vector.
      clients: how many there are.
      canary: whose direction it is.
      clipping_norm: C.
      block: how many clients are computed at once.
    """
    parts = []
    for start in range(0, clients, block):
        members = np.arange(start, min(start + block, clients))
        parts.append(np.asarray(projected(members, canary.direction), np.float64))
    return np.concatenate(parts) / clipping_norm


def own_dot(canary: Inserted, clipping_norm: float) -> float:
    """Returns the canary's own dot product: 1 where its gradient reaches the clipping norm."""
    return float(canary.update @ canary.direction) / clipping_norm


def mock_sums(rng: np.random.Generator, client_dots: Floats, cohort: Cohort, rounds: int) -> Floats:
    """Draws cohorts for mock rounds and sums their clients' dot products, (rounds,).

    Args:
      rng: of all draws.
      client_dots: every client's dot product (clients,).
      cohort: its size, and how it is drawn.
      rounds: how many.
    """
    parts = [np.zeros(0)]
    for start in range(0, rounds, _ROUNDS):
        parts.append(_draw_sums(rng, client_dots, cohort, min(_ROUNDS, rounds - start)))
    return np.concatenate(parts)


def mock_scores(
    rng: np.random.Generator,
    client_dots: Floats,
    cohort: Cohort,
    canary: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Plays mock rounds, the canary added to the cohort.

    Args:
      rng: of all draws.
      client_dots: every client's dot product (clients,).
      cohort: its size, and how it is drawn.
      canary: the canary's own dot product.
      sigma: the noise multiplier.
      rounds: how many rounds with the canary, and how many without.

    Returns:
      (in, out): the scores (rounds,) of either.
    """
    sums = mock_sums(rng, client_dots, cohort, 2 * rounds)
    scores = sums + sigma * rng.standard_normal(2 * rounds)
    return scores[:rounds] + canary, scores[rounds:]


def published_scores(
    rng: np.random.Generator,
    client_dots: Floats,
    cohort: Cohort,
    canary: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Plays mock rounds as the public code does (Errata C1).

    In half of them the canary takes the place of one of the cohort's clients.

    Args:
      rng: of all draws.
      client_dots: every client's dot product (clients,).
      cohort: its size, and how it is drawn.
      canary: the canary's own dot product.
      sigma: the noise multiplier.
      rounds: how many in all; of an odd number the round left over has the canary.

    Returns:
      (in, out): the scores of the rounds with the canary, and without.
    """
    require(
        cohort.size > 1,
        f"`cohort={cohort.size}`: a canary that replaces a client needs at least 2",
    )
    without = rounds // 2
    within = rounds - without
    sums_in = mock_sums(rng, client_dots, cohort._replace(size=cohort.size - 1), within) + canary
    sums_out = mock_sums(rng, client_dots, cohort, without)
    scores_in = sums_in + sigma * rng.standard_normal(within)
    scores_out = sums_out + sigma * rng.standard_normal(without)
    return scores_in, scores_out


def cohorts(rng: np.random.Generator, clients: int, size: int, rounds: int) -> NDArray[np.int64]:
    """Draws cohorts of clients without replacement, indices (rounds, size).

    Drawn column by column: a client that its round has already is drawn again.

    Args:
      rng: of all draws.
      clients: how many there are.
      size: of a cohort.
      rounds: how many cohorts to draw.
    """
    drawn = rng.integers(clients, size=(rounds, size))
    for column in range(1, size):
        collides = (drawn[:, :column] == drawn[:, column, None]).any(axis=1)
        colliding = np.flatnonzero(collides)
        while len(colliding):
            drawn[colliding, column] = rng.integers(clients, size=len(colliding))
            rows = drawn[colliding]
            collides = (rows[:, :column] == rows[:, column, None]).any(axis=1)
            colliding = colliding[collides]
    return drawn


def _draw_sums(
    rng: np.random.Generator, client_dots: Floats, cohort: Cohort, rounds: int
) -> Floats:
    """Draws cohorts and sums their clients' dot products, (rounds,), all rounds at once.

    A cohort of more than half of the clients is drawn by those that it leaves out, which are fewer.

    Args:
      rng: of all draws.
      client_dots: every client's dot product (clients,).
      cohort: its size, and how it is drawn.
      rounds: how many.
    """
    count = len(client_dots)
    if cohort.poisson:
        joins = rng.random((rounds, count)) < cohort.size / count
        return np.asarray(joins @ client_dots)
    if cohort.size >= count:
        return np.full(rounds, client_dots.sum())
    if 2 * cohort.size > count:
        left_out = client_dots[cohorts(rng, count, count - cohort.size, rounds)]
        return np.asarray(client_dots.sum() - left_out.sum(axis=-1))
    return np.asarray(client_dots[cohorts(rng, count, cohort.size, rounds)].sum(axis=1))
