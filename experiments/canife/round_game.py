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

Floats = NDArray[np.float64]
# (clients (n,), v (p,)) -> (n,), their clipped updates' dot products with v.
Dots = Callable[[NDArray[np.int64], Array], Array]
_ROUNDS = 8192  # mock rounds whose cohorts are in memory at once


class Inserted(NamedTuple):
    """The canary at a frozen model.

    Attributes:
      direction: (p,) the unit vector along its gradient.
      update: (p,) the clipped update that its client sends.
    """

    direction: Array
    update: Array


def inserted(gradient: Array, learning_rate: float | None, clipping_norm: float) -> Inserted:
    """Returns a canary's direction, and the clipped update that its client sends.

    The direction is that of the gradient of the canary's sample.

    Args:
      gradient: (p,) the gradient of the canary's sample.
      learning_rate: the factor by which the client multiplies the gradient before clipping, as local SGD does
        with a single example. None: the client clips the gradient itself, as in DP-SGD and always in the
        paper's code (Errata C2).
      clipping_norm: C, the clipping norm.

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
    """Returns the dot products of all clients' clipped updates with the canary's direction, over C.

    Args:
      projected: a function (clients (n,), vector (p,)) -> the dot products (n,) of their clipped updates with
        the vector.
      clients: the number of clients.
      canary: the canary.
      clipping_norm: C, the clipping norm.
      block: the number of clients that are computed at once.

    Returns:
      (clients,) dot products.
    """
    dots_by_block = []
    for start in range(0, clients, block):
        members = np.arange(start, min(start + block, clients))
        dots_by_block.append(np.asarray(projected(members, canary.direction), np.float64))
    return np.concatenate(dots_by_block) / clipping_norm


def own_dot(canary: Inserted, clipping_norm: float) -> float:
    """Returns the dot product of the canary's update with its own direction, over the clipping norm.

    It is 1 where the update was clipped, and smaller where it was too short for that.
    """
    return float(canary.update @ canary.direction) / clipping_norm


def mock_sums(rng: np.random.Generator, client_dots: Floats, cohort: int, rounds: int) -> Floats:
    """Returns the sum of a random cohort's dot products for each mock round, (rounds,).

    Args:
      rng: the generator of the cohorts.
      client_dots: (clients,) every client's dot product.
      cohort: the cohort's size.
      rounds: the number of mock rounds.
    """
    sums = [np.zeros(0)]  # so that the result is an empty array for 0 rounds
    # At most _ROUNDS rounds at a time, since all cohorts together may not fit into memory.
    for start in range(0, rounds, _ROUNDS):
        sums.append(_draw_sums(rng, client_dots, cohort, min(_ROUNDS, rounds - start)))
    return np.concatenate(sums)


def mock_scores(
    rng: np.random.Generator,
    client_dots: Floats,
    cohort: int,
    canary: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Plays mock rounds, half of them with the canary added to the cohort.

    A score is the sum of the cohort's dot products, plus the canary's where it takes part, plus noise. All
    are in units of the clipping norm, so that the noise is N(0, sigma^2).

    Args:
      rng: the generator of cohorts and noise.
      client_dots: (clients,) every client's dot product.
      cohort: the cohort's size without the canary.
      canary: the canary's own dot product.
      sigma: the noise multiplier.
      rounds: the number of rounds with the canary, and the number without.

    Returns:
      The scores (rounds,) with the canary, and those without.
    """
    sums = mock_sums(rng, client_dots, cohort, 2 * rounds)
    scores = sums + sigma * rng.standard_normal(2 * rounds)
    return scores[:rounds] + canary, scores[rounds:]


def published_scores(
    rng: np.random.Generator,
    client_dots: Floats,
    cohort: int,
    canary: float,
    sigma: float,
    rounds: int,
) -> tuple[Floats, Floats]:
    """Plays mock rounds as the public code does: the canary replaces a client of the cohort (Errata C1).

    A score is the sum of the cohort's dot products, the canary's among them where it takes part, plus noise.
    All are in units of the clipping norm, so that the noise is N(0, sigma^2).

    Args:
      rng: the generator of cohorts and noise.
      client_dots: (clients,) every client's dot product.
      cohort: the cohort's size, canary included.
      canary: the canary's own dot product.
      sigma: the noise multiplier.
      rounds: the number of rounds in both worlds together; half have the canary, the larger half if odd.

    Returns:
      The scores of the rounds with the canary, and of those without.
    """
    rounds_out = rounds // 2
    rounds_in = rounds - rounds_out
    sums_in = mock_sums(rng, client_dots, cohort - 1, rounds_in) + canary
    sums_out = mock_sums(rng, client_dots, cohort, rounds_out)
    scores_in = sums_in + sigma * rng.standard_normal(rounds_in)
    scores_out = sums_out + sigma * rng.standard_normal(rounds_out)
    return scores_in, scores_out


def cohorts(rng: np.random.Generator, clients: int, size: int, rounds: int) -> NDArray[np.int64]:
    """Draws a cohort of clients for each round without replacement, as indices (rounds, size).

    All indices are drawn at once. Then, column by column, a client that its round already has is drawn again
    until it is another.

    Args:
      rng: the generator of the cohorts.
      clients: the number of clients.
      size: the size of a cohort.
      rounds: the number of cohorts.
    """
    drawn = rng.integers(clients, size=(rounds, size))
    for column in range(1, size):
        # (rounds,) whether a round has the client of this column in an earlier column too.
        collides = (drawn[:, :column] == drawn[:, column, None]).any(axis=1)
        colliding = np.flatnonzero(collides)
        while len(colliding):
            drawn[colliding, column] = rng.integers(clients, size=len(colliding))
            rows = drawn[colliding]
            collides = (rows[:, :column] == rows[:, column, None]).any(axis=1)
            colliding = colliding[collides]
    return drawn


def _draw_sums(rng: np.random.Generator, client_dots: Floats, cohort: int, rounds: int) -> Floats:
    """Returns the sum of a random cohort's dot products for each round, (rounds,), drawing all at once.

    A cohort has all clients if there are fewer than `cohort`. For a cohort of more
    than half of the clients, the clients that it leaves out are drawn, which are fewer.

    Args:
      rng: the generator of the cohorts.
      client_dots: (clients,) every client's dot product.
      cohort: the cohort's size.
      rounds: the number of rounds.
    """
    count = len(client_dots)
    if cohort >= count:
        return np.full(rounds, client_dots.sum())
    if 2 * cohort > count:
        # The dot products of the clients that each round leaves out.
        left_out = client_dots[cohorts(rng, count, count - cohort, rounds)]
        return np.asarray(client_dots.sum() - left_out.sum(axis=-1))
    return np.asarray(client_dots[cohorts(rng, count, cohort, rounds)].sum(axis=1))
