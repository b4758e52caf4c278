"""Lower bounds on epsilon from a single run with many canaries that may depend on each other.

For each of m canaries, a fair coin decides whether it is inserted. Based on the release, an adversary guesses
exactly r of the coins, v of them correctly. Errata O11 of experiments/one_shot/README.md lists the
assumptions.

To derive `gaussian_refutes`, which defines q_j and S_j, flip the coin of a random canary. This canary's guess
and at least j others are right with probability x = (j q_(j+1) + S_(j+1)) / m. Its guess is wrong, and at
least j others are right, with probability ((r - j) q_j - S_(j+1)) / m. Under mu-GDP, this probability is at
least g(x) = Phi(Phi^-1(x) - mu). Since g is convex, this also holds on average over canaries and coins.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.evidence.arrays import Array, Bits, Integers
from audit.evidence.canaries import Coins, Fresh
from audit.evidence.one_run import Cosines
from audit.laws import conversions, intervals
from audit.laws.intervals import bisect, find_largest_refuted
from audit.methods import exact_null
from audit.methods.estimate import Bound
from audit.methods.method import GAUSSIAN_CURVE, Assumption

ONE_RUN_GUESSES = "one_run_guesses"
ONE_RUN_GAUSSIAN = "one_run_gaussian"
LEAST_COINS = 40  # half of them make up the smallest pilot
_FRACTIONS = np.append(np.geomspace(0.02, 0.5, 8), np.linspace(0.6, 1.0, 5))  # of coins to guess


UNIFORM = Assumption(
    "uniform directions, drawn afresh for every run",
    "fresh directions",
    "uniform directions, drawn afresh for every run and unknown to training; canaries of a run may depend on "
    "each other",
    "uniform directions, drawn afresh for every run",
    proviso="if directions are uniform",
)
FAIR_COINS = Assumption(
    "fair coins",
    "fair coins",
    "each canary was inserted by its own fair coin, unknown to training; canaries of a run may depend on "
    "each other",
    "each canary inserted by its own coin; canaries may depend on each other",
    proviso="if coins are fair",
)
FAIR_COINS_GAUSSIAN = Assumption(
    text=f"{FAIR_COINS.text}, {GAUSSIAN_CURVE.text}",
    word=GAUSSIAN_CURVE.word,
    sentence=f"{FAIR_COINS.sentence}; and a Gaussian trade-off curve",
    note=f"{FAIR_COINS.note}; and a Gaussian trade-off curve",
    gaussian=True,
    proviso=f"{FAIR_COINS.proviso} and the trade-off curve is Gaussian",
)


def bound_uniform_canaries(cosines: Cosines, delta: float, confidence: float) -> Bound:
    """Returns the lower bound `exact_null` on epsilon for a single run with all canaries inserted.

    Reports of a single run show `counted`, the canaries above the threshold, instead of a false-positive
    rate. `path`, the bounds after each run, is empty for a single run.
    """
    bound = exact_null.bound_directions(make_design(cosines), delta, confidence)
    hits = bound.n_in - bound.false_negatives  # canaries above the threshold
    counted = f"{hits}/{bound.n_in} above {bound.threshold:.3g}"
    return dataclasses.replace(
        bound, assumes=UNIFORM, false_positive_rate=None, path=(), counted=counted
    )


def make_design(cosines: Cosines) -> Fresh:
    """Returns the observed cosines (K,) as a single-run design of fresh directions, all inserted."""
    observed = cosines.observed[None]
    # separate: no cosine is computed by leaving out other canaries
    return Fresh(observed, np.ones_like(observed, bool), cosines.dimension, separate=True)


def bound_by_guesses(coins: Coins, delta: float, confidence: float) -> list[Bound]:
    """Returns the bounds `one_run_guesses` and `one_run_gaussian` for a single run with fair coins.

    Both bounds count correct guesses among at most 20,000 coins.

    Raises:
      InputError: If there are fewer than 40 canaries.
    """
    return [compute(coins, delta, confidence) for compute in OF_COINS.values()]


def from_guesses(design: Coins, delta: float, confidence: float) -> Bound:
    """Returns `one_run_guesses`, the lower bound on epsilon by Steinke, Nasr and Jagielski (2023).

    `design` has a single run. We choose the number of guesses using a pilot: coins that we do not guess. For
    delta > 0, the bound is proven only for a number of guesses fixed in advance (Errata O11).
    """
    error = 1 - confidence
    ordered = _split_and_order(design)  # the other coins, with the most certain guess first
    coins = len(ordered.cumulative_right)
    # At delta = 0, a smaller upper limit on the fraction of wrong guesses yields a larger bound. So we choose
    # the number of guesses with the smallest limit, given the number of wrong guesses that the pilot
    # predicts.
    candidates = ordered.candidates
    wrong = np.ceil(candidates * (1 - ordered.predicted_right))  # rounded up to be conservative
    limits = intervals.clopper_pearson_upper(wrong, candidates, error)
    guesses = int(candidates[np.argmin(limits)])
    right, counts = ordered.count_guesses(guesses)
    return Bound(
        method=ONE_RUN_GUESSES,
        epsilon=epsilon_from_guesses(coins, guesses, right, delta, error),
        delta=delta,
        confidence=confidence,
        **counts,
        assumes=FAIR_COINS,
    )


def gaussian_from_guesses(design: Coins, delta: float, confidence: float) -> Bound:
    """Returns `one_run_gaussian`, the lower bound on mu by Mahloujifar, Melis and Chaudhuri (2024).

    `design` has a single run. We choose the number of guesses using a pilot: coins that we do not guess. The
    bound is proven only for a number of guesses fixed in advance (Errata O11 of
    experiments/one_shot/README.md). The epsilon is valid if the trade-off curve is Gaussian.
    """
    error = 1 - confidence
    ordered = _split_and_order(design)  # the other coins, with the most certain guess first
    coins = len(ordered.cumulative_right)
    candidates = ordered.candidates
    # We choose the candidate that refutes the largest mu if the pilot's prediction is right.
    predicted = np.floor(candidates * ordered.predicted_right)  # rounded down to be conservative
    refuted, _ = bisect(
        lambda mus: gaussian_refutes(coins, candidates, predicted, mus, error),
        low=0.0,
        high=8.0,  # a larger mu is rare
        halvings=10,  # to 1/128, precise enough to compare candidates
    )
    guesses = int(candidates[np.argmax(refuted)])
    right, counts = ordered.count_guesses(guesses)
    mu = mu_from_guesses(coins, guesses, right, error)
    return Bound(
        method=ONE_RUN_GAUSSIAN,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        **counts,
        assumes=FAIR_COINS_GAUSSIAN,
    )


# (a single run, delta, confidence) -> the bound
CoinMethod = Callable[[Coins, float, float], Bound]
OF_COINS = {ONE_RUN_GUESSES: from_guesses, ONE_RUN_GAUSSIAN: gaussian_from_guesses}


class _OrderedCoins(NamedTuple):
    """The coins outside the pilot, with the most certain guess first.

    Attributes:
      cumulative_right: (coins,) the numbers of correct guesses among the 1, 2, ... most certain guesses.
      candidates: (choices,) the numbers of guesses to choose from.
      predicted_right: (choices,) the fraction of correct guesses that the pilot predicts for each candidate.
    """

    cumulative_right: Integers
    candidates: Integers
    predicted_right: Array

    def count_guesses(self, guesses: int) -> tuple[int, dict[str, Any]]:
        """Returns (how many of the surest `guesses` are correct, the counts as fields of `Bound`).

        `Bound` has no fields for guesses, so we report guesses as in-scores, and wrong ones as false
        negatives.
        """
        right = int(self.cumulative_right[guesses - 1])
        return right, {
            "false_negatives": guesses - right,
            "n_in": guesses,
            "n_out": 0,
            "counted": f"{right}/{guesses} right of {len(self.cumulative_right)}",
        }


def _split_and_order(design: Coins) -> _OrderedCoins:
    """Draws a pilot of coins, and orders at most 20,000 of the other coins by the certainty of their guesses.

    We guess that a canary is inserted if its score is above the median. The certainty is the score's distance
    from the median.
    """
    scores = design.scores[0]  # of the single run
    require(
        len(scores) >= LEAST_COINS,
        f"there are {len(scores)} canaries with coins: give at least {LEAST_COINS}",
    )
    distances = scores - np.median(scores)
    signed = np.where(design.presence[0], distances, -distances)  # positive if the guess is right
    # The pilot and the order depend only on the certainty, not on the coins.
    certainty = np.abs(signed)
    pilot_size = max(round(0.2 * len(certainty)), LEAST_COINS // 2)
    pilot, guessable = exact_null.split_pilot(certainty, pilot_size)
    # With more coins, `mu_from_guesses` would take too long. `split_pilot` shuffles, so the subset is random.
    guessable = guessable[:20_000]
    surest_first = guessable[np.argsort(-certainty[guessable], kind="stable")]
    right = np.cumsum(signed[surest_first] > 0)
    candidates = np.maximum(np.round(_FRACTIONS * len(right)), 1)
    return _OrderedCoins(right, candidates.astype(int), _predict_right(signed[pilot]))


def _predict_right(signed: Array) -> Array:
    """Predicts the fraction of correct guesses if we guess each of _FRACTIONS of coins, most certain first.

    We fit a normal distribution to a pilot's `signed` certainties (n,), each positive if its guess is right.
    """
    mean = signed.mean()
    spread = max(signed.std(), 1e-200)  # above 0 even if all scores are equal
    # For each level, the probabilities of a right and of a wrong guess with a higher certainty.
    levels = np.linspace(0.0, abs(mean) + 6 * spread, 2001)
    rightly = special.ndtr((mean - levels) / spread)
    wrongly = special.ndtr((-mean - levels) / spread)
    guessed = rightly + wrongly
    # The index of the level where `guessed` is nearest to each of _FRACTIONS.
    nearest_level = np.abs(guessed[:, None] - _FRACTIONS).argmin(0)
    return (rightly / guessed)[nearest_level]


def epsilon_from_guesses(coins: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Returns the largest epsilon that the number of correct guesses refutes (`log_p_approximate`), or 0.

    `right` of the `guesses` are correct. `error` is the probability of refuting a true epsilon.
    """
    return find_largest_refuted(
        lambda epsilon: log_p_approximate(coins, guesses, right, epsilon, delta) <= np.log(error),
        first=1.0,
        halvings=40,  # to 1e-12
    )


def mu_from_guesses(coins: int, guesses: int, right: int, error: float) -> float:
    """Returns the largest mu such that the number of correct guesses refutes mu-GDP, or 0.

    `right` of the `guesses` are correct. `error` is the probability of refuting a true mu.
    """
    return find_largest_refuted(
        lambda mu: bool(gaussian_refutes(coins, guesses, right, mu, error)),
        first=8.0,  # doubled if refuted; a larger mu is rare
        halvings=25,  # to a precision of 1e-6
    )


def log_p_approximate(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Returns the log of an upper bound on the probability of at least `right` correct guesses.

    The bound assumes (epsilon, delta)-DP. With W ~ Binomial(r, e^eps / (1 + e^eps)), it is

        P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i.

    Source: Steinke, Nasr and Jagielski, 2023, Theorem 5.2.

    Args:
      canaries: m, the number of coins.
      guesses: r, the number of guessed coins.
      right: v, the number of correct guesses.
    """
    # W is the number of correct guesses if each is correct with the largest probability that epsilon allows.
    law = scipy.stats.binom(guesses, special.expit(epsilon))
    below = np.arange(right - 1, -1, -1)  # v - 1, ..., 0
    masses = np.cumsum(law.pmf(below))  # P(v > W >= v - i) for i = 1, ..., v
    ratios = masses / np.arange(1, right + 1)
    largest_ratio = ratios.max(initial=0.0)  # 0 without correct guesses
    with np.errstate(divide="ignore"):  # the logarithm of 0 if delta is 0
        log_delta_term = np.log(2 * canaries * delta * largest_ratio)
    log_p = np.logaddexp(law.logsf(right - 1), log_delta_term)
    return float(min(log_p, 0.0))


def gaussian_refutes(
    canaries: int, guesses: ArrayLike, right: ArrayLike, mu: ArrayLike, error: float
) -> Bits:
    """Returns, for each element, whether a number of correct guesses refutes mu-GDP at the level `error`.

    The data refute mu-GDP if, under mu-GDP, the probability of at least v correct guesses is below `error`.
    We prove this by contradiction. Let q_j be the probability of at least j correct guesses, and S_j = q_j +
    q_(j+1) + ... If q_v is at least the error, mu-GDP bounds q_j from below, for j = v - 1, ..., 0 (see the
    module's docstring):

        q_j >= (m g(x) + S_(j+1)) / (r - j),    x = (j q_(j+1) + S_(j+1)) / m,    g(x) = Phi(Phi^-1(x) - mu).

    The limits grow with q_(j+1) and S_(j+1), so we start at the smallest values, q_v = S_v = error. A limit
    above 1 is a contradiction. Source: Mahloujifar, Melis and Chaudhuri, 2024.

    Args:
      canaries: m, the number of coins.
      guesses: r, the number of guessed coins.
      right: v, the number of correct guesses, at most r.
      mu: The hypotheses; guesses, right and mu broadcast to the shape of the result.
      error: The significance level of the test.
    """
    r, v, mus = np.broadcast_arrays(guesses, right, mu)
    q = np.full(r.shape, error)  # the limit of q_(j+1) at the start of a step, of q_j at its end
    q_sum = q  # the same for S
    for j in range(int(v.max()) - 1, -1, -1):
        right_probability = (j * q + q_sum) / canaries  # x
        # A probability above 1 already refutes mu.
        quantiles = special.ndtri(np.minimum(right_probability, 1.0))
        wrong_probability = special.ndtr(quantiles - mus)  # g(x)
        # If j >= v, r - j may be 0, but we then ignore the result.
        with np.errstate(divide="ignore", invalid="ignore"):
            required_q = (canaries * wrong_probability + q_sum) / (r - j)
        least_q = np.maximum(q, required_q)  # q_j is at least q_(j+1)
        started = j < v  # an entry starts at its own v
        # Any value above 1 refutes mu. Larger values might overflow.
        q = np.where(started, np.minimum(least_q, 2.0), q)
        q_sum = np.where(started, q_sum + q, q_sum)
    return (v > 0) & (q > 1)  # v = 0 refutes no mu
