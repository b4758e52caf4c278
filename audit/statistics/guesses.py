"""Guesses of fair coins: how many can be right if a mechanism is private?

m canaries of one run are each in or out by a fair coin of its own, independent of all else. From all that is
released somebody guesses exactly r of the coins, and v guesses are right. The canaries may be anything, and
their scores depend on each other in any way: only the coins are independent. That r is fixed before the
scores are seen matters where delta > 0: given a number of guesses that the scores decide, neither bound
holds (Errata O11).

    log_p_approximate   Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023),
                        Theorem 5.2: with W ~ Binomial(r, e^eps / (1 + e^eps)),
                        P(v right) <= P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i
    gaussian_refutes    Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (2024)

The second, for q_j = P(at least j right) and S_j = q_j + q_(j+1) + ...: flip the coin of a random canary. On
the event that at least j of the others are guessed right, it is guessed right with probability
(j q_(j+1) + S_(j+1)) / m, and wrong with probability ((r - j) q_j - S_(j+1)) / m. Under a mu-GDP mechanism
the latter is at least g(the former), g(x) = Phi(Phi^-1(x) - mu), by convexity of g on average over canaries
and coins. So

    q_j >= (m g((j q_(j+1) + S_(j+1)) / m) + S_(j+1)) / (r - j),

whose right side grows with q_(j+1) and S_(j+1). If q_v were as large as the error, q_0 would be at least what
this gives; beyond 1 that is a contradiction.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Array = NDArray[np.float64]


def log_p_approximate(canaries: int, guesses: int, right: int, epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """log of the largest probability of so many right guesses under (epsilon, delta)-DP, at most 0.

    epsilon and delta are of one shape (E,), which the result has.
    """
    eps, deltas = np.broadcast_arrays(np.asarray(epsilon, np.float64), np.asarray(delta, np.float64))
    share = special.expit(eps)[..., None]
    below = np.arange(right - 1, -1, -1)  # v - 1, v - 2, ...
    log_tail = stats.binom.logsf(right - 1, guesses, share[..., 0])
    masses = np.cumsum(stats.binom.pmf(below, guesses, share), -1)
    slope = (masses / np.arange(1, right + 1)).max(-1, initial=0.0)
    with np.errstate(divide="ignore"):
        found: Array = np.minimum(np.logaddexp(log_tail, np.log(2 * canaries * deltas * slope)), 0.0)
    return found


def gaussian_refutes(
    canaries: int, guesses: ArrayLike, right: ArrayLike, mu: ArrayLike, error: float
) -> NDArray[np.bool_]:
    """Whether so many right guesses refute mu-GDP at a level: arguments broadcast, and right <= guesses."""
    r, v, mus = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (guesses, right, mu)))
    tail, total = np.full(r.shape, error), np.full(r.shape, error)
    for j in range(int(v.max(initial=0)) - 1, -1, -1):
        hit = np.minimum((j * tail + total) / canaries, 1.0)
        wrong = special.ndtr(special.ndtri(hit) - mus)
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.maximum(tail, (canaries * wrong + total) / (r - j))
        tail = np.where(j < v, np.minimum(least, 2.0), tail)  # beyond 1 is refuted whatever follows
        total = np.where(j < v, total + tail, total)
    refuted: NDArray[np.bool_] = (v > 0) & (tail > 1)
    return refuted
