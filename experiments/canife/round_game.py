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


def inserted(gradient: Array, learning_rate: float, clipping_norm: float) -> Inserted:
    """Returns a canary's direction, and the clipped update that its client sends.

    The direction is that of the gradient of the canary's sample.

    Args:
      gradient: (p,) the gradient of the canary's sample.
      learning_rate: the factor by which the client multiplies the gradient before clipping, as local SGD does
        with a single example; 1 in DP-SGD and always in the paper's code (Errata C2).
      clipping_norm: C, the clipping norm.

    Raises:
      InputError: the gradient is 0 or not finite, and has no direction.
    """
    norm = float(jnp.linalg.norm(gradient))
    require(
        0 < norm < np.inf,
        f"the canary's gradient has norm {norm:g}: design it with another `seed`",
    )
    return Inserted(gradient / norm, clip(learning_rate * gradient, jnp.asarray(clipping_norm)))


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
    sums = _mock_sums(rng, client_dots, cohort, 2 * rounds)
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

    The arguments are those of `mock_scores`, except that `cohort` includes the canary, and `rounds` counts
    both worlds together; half have the canary, the larger half if odd.
    """
    rounds_out = rounds // 2
    rounds_in = rounds - rounds_out
    sums_in = _mock_sums(rng, client_dots, cohort - 1, rounds_in) + canary
    sums_out = _mock_sums(rng, client_dots, cohort, rounds_out)
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


def _mock_sums(rng: np.random.Generator, client_dots: Floats, cohort: int, rounds: int) -> Floats:
    """Returns the sum of a random cohort's dot products for each mock round, (rounds,).

    A cohort has all clients if there are no more. For a cohort of more than half of the clients, those that
    it leaves out are drawn, which are fewer. Not all cohorts are in memory at once.
    """
    clients = len(client_dots)
    if cohort >= clients:
        return np.full(rounds, client_dots.sum())
    leaves_out = 2 * cohort > clients
    size = clients - cohort if leaves_out else cohort
    sums = []
    for start in range(0, rounds, _ROUNDS):
        drawn = cohorts(rng, clients, size, min(_ROUNDS, rounds - start))
        sums.append(client_dots[drawn].sum(axis=1))
    total = np.concatenate(sums)
    return np.asarray(client_dots.sum() - total if leaves_out else total)
