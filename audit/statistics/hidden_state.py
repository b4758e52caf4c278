"""Upper bounds on what the last iterate of DP-SGD leaks where every step of training is Lipschitz.

Composition counts each insertion in full, as if every iterate were seen. An adversary who sees the last one
alone sees an early insertion through the noise of all later steps too, and where these steps bring two
trajectories no further apart than they were, that hides a part of it: privacy amplification by iteration.

Source: Bok, Su and Altschuler, "Shifted Interpolation for Differential Privacy" (2024), Lemma 3.2 and Theorem
3.1. Their closed forms are for one constant and regular schedules; here schedule, step sizes and constants are
arbitrary, and the best shifts are found exactly. README.md of this folder derives it.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require
from audit.statistics import accounting, arrays, conversions
from audit.statistics.accounting import Composition
from audit.statistics.arrays import Array

FIRST, LAST = "first", "last"
MOST_STEPS = 10**7


class HiddenStateBound(NamedTuple):
    """The bound on the last of T iterates: mu of Gaussian differential privacy, epsilon at a delta, and the
    certificate, from which anyone may check mu.

    paid: (T,) a_t, how much of the distance between both worlds step t's noise pays for, in the units of the
    shifts. What is apart after step t, z_t = c_t z_(t-1) + s_t - a_t with z_0 = 0, is never negative, z_T is
    0, and mu^2 is the sum of (a_t / n_t)^2.
    """

    mu: float
    epsilon: float
    paid: Array


class Periods(NamedTuple):
    """When the canary is inserted, and how steps contract: once in every k steps, at the insert-th of them
    (1 to k), with steps (the update without canary and noise) of Lipschitz constant `lipschitz`."""

    lipschitz: float
    k: int
    insert: int


def hidden_state_bound(
    shifts: ArrayLike, lipschitz: ArrayLike, noise: ArrayLike, delta: float
) -> HiddenStateBound:
    """The bound on the last iterate of theta_t = phi_t(theta_(t-1)) + s_t g_t + n_t N(0, I), where |g_t| <= 1
    in the world with the canary, g_t = 0 in the other, and both worlds have the same maps phi_t.

    Args:
      shifts: (T,) s_t, at least 0, as eta_t at the steps of the canary and 0 at others, in units of C / batch.
      lipschitz: c_t of the maps, a number or (T,), at least 0.
      noise: n_t, a number or (T,), above 0 in the units of shifts, as eta_t sigma.
      delta: of epsilon.

    mu^2 is the least sum of (a_t / n_t)^2 over all payments that meet the conditions of `HiddenStateBound`.
    With W_t the product of all c_j after t, these are the slopes of the greatest convex minorant of the sums
    of W_t s_t over those of (W_t n_t)^2. The bound is attained by a linear process, and is never above
    composition, a_t = s_t. Raises InputError for values out of range or shapes that do not fit.
    """
    s, c, n = _schedule(shifts, lipschitz, noise)
    conversions.require_delta(delta)
    paid = np.zeros(len(s))
    counted = slice(_first_that_counts(s, c), None)
    paid[counted] = _payments(s[counted], c[counted], n[counted])
    mu = float(np.linalg.norm(paid / n))
    return HiddenStateBound(mu, conversions.epsilon_from_mu(mu, delta), paid)


def of_periods(
    composition: Composition, periods: Periods, delta: float, step_sizes: ArrayLike = 1.0
) -> HiddenStateBound:
    """`hidden_state_bound` of insertions * k steps of DP-SGD. Raises InputError for values out of range."""
    ...


def _schedule(shifts: ArrayLike, lipschitz: ArrayLike, noise: ArrayLike) -> tuple[Array, Array, Array]:
    s, c, n = arrays.floats("shifts", shifts), arrays.floats("lipschitz", lipschitz), arrays.floats("noise", noise)
    return s, np.broadcast_to(c, s.shape), np.broadcast_to(n, s.shape)


def _first_that_counts(s: Array, c: Array) -> int:
    """The first step with a shift that no later step forgets; T where there is none."""
    kept = int(np.flatnonzero(c == 0).max(initial=0))
    return kept + int(np.argmax(s[kept:] > 0)) if s[kept:].any() else len(s)


def _payments(s: Array, c: Array, n: Array) -> Array:
    """a_t by pooling adjacent violators; s starts above 0, and c is above 0 after its first entry."""
    later = np.r_[np.log(c[1:]), 0.0]
    log_w = np.cumsum(later[::-1])[::-1]
    with np.errstate(divide="ignore"):
        starts = _pooled(log_w + np.log(s), 2 * (log_w + np.log(n)))
    sizes = np.diff([*starts, len(s)])
    w = np.exp(log_w - np.repeat(np.maximum.reduceat(log_w, starts), sizes))
    slopes = np.add.reduceat(w * s, starts) / np.add.reduceat((w * n) ** 2, starts)
    return w * n**2 * np.repeat(slopes, sizes)


def _pooled(log_sums: Array, log_weights: Array) -> list[int]:
    """Where blocks of equal slope start, of an isotonic regression of sums / weights; the first sum is not 0."""
    starts: list[int] = []
    sums: list[float] = []
    weights: list[float] = []
    for start, (total, weight) in enumerate(zip(log_sums.tolist(), log_weights.tolist(), strict=True)):
        while starts and sums[-1] - weights[-1] >= total - weight:
            start, total, weight = starts.pop(), _log_add(sums.pop(), total), _log_add(weights.pop(), weight)
        starts.append(start)
        sums.append(total)
        weights.append(weight)
    return starts


def _log_add(one: float, other: float) -> float:
    high, low = (one, other) if one > other else (other, one)
    return high + math.log1p(math.exp(low - high))
