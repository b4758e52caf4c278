"""Lower bounds on epsilon from a single run with many canaries, which may depend on each other in any way.

    exact_null         from cosines of uniformly random canaries that are all in: `exact_null` of a single run
    one_run_guesses    from fair coins: right guesses against (epsilon, delta)-DP
    one_run_gaussian   from fair coins: right guesses against mu-GDP

Given the released model the scores of one run's canaries are not independent, so that no method here counts
them as if they were.

Guesses. m canaries of one run are each in or out by a fair coin of its own, independent of all else. From all
that is released an adversary guesses exactly r of the coins, and v guesses are right. The canaries may be
anything, and their scores depend on each other in any way: only the coins are independent. Here the sign of a
score less the median is the guess, and its size how sure the guess is; the r surest are guessed.

A pilot, some of the canaries, chooses r by its coins and its scores. The coins tell nothing of the other
coins; the scores are a part of what is released. At delta = 0 the first bound holds for any r that is chosen
from the release and the pilot's coins. For delta > 0 it is proven for a fixed r, and so is the second. With a
chosen r the term of delta could reach its largest value over all r, in place of that of the chosen r (Errata
O11 has the derivation, and what was measured).

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

Pairs. Of two canaries drawn alike, one is observed (inserted) and the other is not: which of them is a fair
coin, whose flip replaces a canary. A mechanism that is (epsilon, delta)-DP or mu-GDP for adding a canary is,
for replacing it, (2 epsilon, (1 + e^epsilon) delta)-DP or 2 mu-GDP.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.canaries import Coins, Fresh
from audit.evidence.one_run import Cosines
from audit.laws import conversions, intervals
from audit.laws.intervals import find_largest_refuted
from audit.methods import exact_null
from audit.methods.estimate import Bound
from audit.methods.method import GAUSSIAN_CURVE, Assumption

Array = NDArray[np.float64]

ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN = "one_run_guesses", "one_run_gaussian"
LEAST_COINS = 40  # the least pilot, and as many coins to guess
MOST_COINS = 20_000  # the time that mu takes grows with the number of guesses
_PILOT_SHARE = 0.2  # of the coins, on which the number of guesses is chosen
_LEAST_PILOT = 20  # coins
# Shares of the coins that may be guessed; small shares are evenly spaced in logarithms.
_GUESSED_SHARES = np.concatenate([np.geomspace(0.02, 0.5, 8), np.linspace(0.6, 1.0, 5)])
_LARGEST_LOG = 700.0  # exp of more overflows
_HALVINGS = 40  # of an interval of epsilon
_HALVINGS_OF_MU = 25  # of an interval of mu
_SECTIONS = 32  # of an interval of mu, by which numbers of guesses are compared
_FIRST_MU = 8.0  # where a search ends unless it is refuted too


UNIFORM = Assumption(
    "uniform directions, drawn afresh for every run",
    "fresh directions",
    "uniform directions, drawn afresh for every run, of which training knows nothing; nothing else, however "
    "the canaries of a run depend on each other",
    "uniform directions, drawn afresh for every run",
    proviso="if directions are uniform",
)
FAIR_COINS = Assumption(
    "fair coins",
    "fair coins",
    "that each canary was in by a fair coin of its own which training did not see; nothing else, however the "
    "canaries of a run depend on each other",
    "each canary in or out by a coin of its own, tied in any way",
    proviso="if coins are fair",
)
DRAWN_ALIKE = Assumption(
    "both drawn alike",
    "drawn alike",
    "that a fair coin said which canary of each pair was inserted; nothing else",
    "a coin for each two canaries says which one was inserted",
    proviso="if coins between two canaries are fair",
)


def with_gaussian_curve(assumed: Assumption) -> Assumption:
    """Returns an assumption on canaries joined with the assumption that the trade-off curve is Gaussian.

    In a table's column a single word stands for both, that of the Gaussian curve. All other texts name both.

    Args:
      assumed: What is assumed of the canaries, such as that fair coins decided which of them were in.
    """
    return Assumption(
        text=f"{assumed.text}, {GAUSSIAN_CURVE.text}",
        word=GAUSSIAN_CURVE.word,
        sentence=f"{assumed.sentence}; and a Gaussian trade-off curve",
        note=f"{assumed.note}; and a Gaussian trade-off curve",
        gaussian=True,
        proviso=f"{assumed.proviso} and the trade-off curve is Gaussian",
    )


class CoinEvidence(NamedTuple):
    """What the scores of a run say of its coins.

    Attributes:
      signed: (m,) a number for each coin: positive where the guess is right, and larger in size where the
        guess is surer.
      steps: The number of canaries that the flip of a coin adds or removes: 1, or 2 for pairs.
      assumes: What a bound from this evidence assumes.
    """

    signed: Array
    steps: int
    assumes: Assumption


def bounds(cosines: Cosines, delta: float, confidence: float) -> list[Bound]:
    """Returns lower bounds on epsilon from the cosines of a single run's canaries.

    A cosine is observed if its canary was inserted into training, else unobserved. If all are observed, there
    is a single bound, by the exact law of a cosine. If there are as many unobserved as observed cosines, the
    bounds come from guessing which canary of each pair was inserted. This takes at least 40 pairs: 20 to
    choose the number of guesses on, and 20 to guess. In all other cases there are no bounds.

    Args:
      cosines: The observed and unobserved cosines.
      delta: The delta of epsilon.
      confidence: The confidence of each bound.
    """
    if not len(cosines.unobserved):
        return [bound_uniform_canaries(cosines, delta, confidence)]
    are_pairs = len(cosines.observed) == len(cosines.unobserved)
    # A fair coin decided which canary of a pair was inserted, so that there are as many coins as pairs.
    if not are_pairs or len(cosines.observed) < LEAST_COINS:
        return []
    return bound_by_guesses(weigh_pairs(cosines), delta, confidence)


def bound_uniform_canaries(cosines: Cosines, delta: float, confidence: float) -> Bound:
    """Returns the lower bound on epsilon, by the method `exact_null`, of a run whose canaries are all in.

    A score is the cosine of a canary's direction with the released vector. Directions are uniform, so that
    the law of a cosine where nothing leaks is known exactly. No canaries out are needed to estimate it.

    Args:
      cosines: The run's cosines (K,), all of them observed.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    bound = exact_null.bound_directions(make_design(cosines), delta, confidence)
    hits = bound.n_in - bound.false_negatives
    return dataclasses.replace(
        bound,
        assumes=UNIFORM,
        false_positive_rate=None,
        path=(),
        counted=f"{hits}/{bound.n_in} above {bound.threshold:.3g}",
    )


def make_design(cosines: Cosines) -> Fresh:
    """Returns the observed cosines as the design of a single run of fresh directions, all in."""
    observed = cosines.observed[None]
    return Fresh(observed, np.ones(observed.shape, bool), cosines.dimension, plain=True)


def weigh_coins(design: Coins) -> CoinEvidence:
    """Returns a guess at the coin of each canary of a single run: how sure it is, and whether it is right.

    A fair coin for each canary decided whether the canary is in. A score above the median guesses that its
    canary is in, a score below it that the canary is out. The distance from the median says how sure the
    guess is.

    Args:
      design: The scores (1, K), and the presence (1, K) that the coins decided.

    Returns:
      The evidence. Its `signed` (K,) holds the distances from the median, negative where the guess is wrong.

    Raises:
      InputError: Several runs; or fewer than 40 canaries, of which 20 choose the number of guesses, and the
        others are guessed.
    """
    runs, canaries = design.scores.shape
    require(runs == 1, f"scores have {runs} runs: give one, (1, canaries)")
    require(
        canaries >= LEAST_COINS,
        f"there are {canaries} canaries with coins: give at least {LEAST_COINS}",
    )
    scores = design.scores[0]
    presence = design.presence[0]
    evidence_for_in = scores - np.median(scores)
    sign_of_coin = np.where(presence, 1.0, -1.0)
    # The flip of a coin adds or removes a single canary: 1 step.
    return CoinEvidence(evidence_for_in * sign_of_coin, steps=1, assumes=FAIR_COINS)


def weigh_pairs(cosines: Cosines) -> CoinEvidence:
    """Returns a guess at which canary of each pair was inserted: how sure it is, and whether it is right.

    A fair coin decided which canary of the pair was inserted. That canary's cosine is observed, the other
    canary's is unobserved. The guess is the canary with the larger cosine.

    Args:
      cosines: As many observed as unobserved cosines, in the order of the pairs.

    Returns:
      The evidence. Its `signed` holds the pairs' differences of cosines, negative where the guess is wrong.
    """
    signed = cosines.observed - cosines.unobserved
    # The flip of a coin removes a canary and adds the other: 2 steps.
    return CoinEvidence(signed, steps=2, assumes=DRAWN_ALIKE)


def bound_by_guesses(evidence: CoinEvidence, delta: float, confidence: float) -> list[Bound]:
    """Returns the bounds `one_run_guesses` and `one_run_gaussian`, from at most 20,000 coins."""
    return [compute(evidence, delta, confidence) for compute in OF_COINS.values()]


def from_guesses(evidence: CoinEvidence, delta: float, confidence: float) -> Bound:
    """Returns the lower bound `one_run_guesses` on epsilon, by Steinke, Nasr and Jagielski (2023).

    It follows from how many guesses at the run's coins are right. A random part of the coins, the pilot,
    chooses how many of the other coins are guessed. Those with the surest guesses are then guessed. The
    pilot's own coins are not, since their luck decides the number of guesses. For delta > 0 the bound is
    proven for a fixed number (Errata O11).

    Args:
      evidence: For each coin, how sure the guess is and whether it is right.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    conversions.require_levels(delta, confidence)
    error = 1 - confidence
    ordered = _split_and_order(evidence)
    best = _best_for_epsilon(ordered.guess_counts, ordered.expected_shares, error)
    counts = ordered.count_guesses(best)
    epsilon = epsilon_from_guesses(*counts, delta, error, evidence.steps)
    return _bound(ONE_RUN_GUESSES, counts, (epsilon, None), delta, confidence, evidence.assumes)


def gaussian_from_guesses(evidence: CoinEvidence, delta: float, confidence: float) -> Bound:
    """Returns the lower bound `one_run_gaussian` on mu, by Mahloujifar, Melis and Chaudhuri (2024).

    Coins are guessed as in `from_guesses`. The bound is proven for a fixed number of guesses (Errata O11).
    Its epsilon follows from mu and holds if the trade-off curve is Gaussian.

    Args:
      evidence: For each coin, how sure the guess is and whether it is right.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    conversions.require_levels(delta, confidence)
    error = 1 - confidence
    ordered = _split_and_order(evidence)
    best = _best_for_mu(ordered, error)
    counts = ordered.count_guesses(best)
    # Guesses bound the mu of a coin's flip: that of a pair removes a canary and adds another, 2 steps of mu.
    mu = mu_from_guesses(*counts, error) / evidence.steps
    proven = (conversions.epsilon_from_mu(mu, delta), mu)
    assumed = with_gaussian_curve(evidence.assumes)
    return _bound(ONE_RUN_GAUSSIAN, counts, proven, delta, confidence, assumed)


def _bound(
    method: str,
    counts: tuple[int, int, int],
    proven: tuple[float, float | None],
    delta: float,
    confidence: float,
    assumed: Assumption,
) -> Bound:
    """Returns the record of a bound (epsilon, mu) from the numbers of coins, guesses and right guesses.

    A record counts the errors of two worlds, but here a guess is only right or wrong. All guesses are counted
    as scores in, and wrong guesses as false negatives.
    """
    coins, number, right = counts
    return Bound(
        method,
        *proven,
        delta,
        confidence,
        threshold=None,
        false_positives=0,
        false_negatives=number - right,
        n_in=number,
        n_out=0,
        assumes=assumed,
        counted=f"{right}/{number} right of {coins}",
    )


CoinMethod = Callable[[CoinEvidence, float, float], Bound]  # evidence, delta, confidence

OF_COINS: dict[str, CoinMethod] = {
    ONE_RUN_GUESSES: from_guesses,
    ONE_RUN_GAUSSIAN: gaussian_from_guesses,
}


class _OrderedCoins(NamedTuple):
    """The coins that are not the pilot's, the surest guess first, and how many of them may be guessed.

    Attributes:
      coins: The number of these coins.
      right: (coins,) how many of the surest 1, 2, ... guesses are right.
      guess_counts: (choices,) the numbers of guesses to choose from.
      expected_shares: (choices,) the share of right guesses that the pilot predicts for each of these
        numbers.
    """

    coins: int
    right: NDArray[np.int64]
    guess_counts: NDArray[np.int64]
    expected_shares: Array

    def count_guesses(self, choice: int) -> tuple[int, int, int]:
        """Returns the numbers of coins, guesses and right guesses if guess_counts[choice] are guessed."""
        number = int(self.guess_counts[choice])
        return self.coins, number, int(self.right[number - 1])


def _split_and_order(evidence: CoinEvidence) -> _OrderedCoins:
    """Draws a pilot of coins, and orders at most 20,000 of the other coins, the surest guess first.

    The pilot is a fifth of the coins, but at least 20. For each number of guesses that may be chosen, it
    predicts the share of right guesses. The limit of 20,000 coins saves time, which grows with the guesses.

    Returns:
      The number of the other coins, how many of their surest 1, 2, ... guesses are right, and the pilot's
      predictions.
    """
    # The size of the evidence does not look at the coins, only its sign does. The draw of the pilot and the
    # order of the other coins depend on the size alone, so that neither can pick guesses that are right.
    certainty = np.abs(evidence.signed)
    pilot_size = max(round(_PILOT_SHARE * len(certainty)), _LEAST_PILOT)
    pilot, guessable = exact_null.split_pilot(certainty, pilot_size)
    guessable = guessable[:MOST_COINS]  # a random subset, since `split_pilot` shuffles
    surest_first = guessable[np.argsort(-certainty[guessable], kind="stable")]
    is_right = evidence.signed[surest_first] > 0
    right = np.cumsum(is_right, dtype=np.int64)  # among the surest 1, 2, ... guesses
    guess_counts, expected_shares = _predict_right_shares(evidence.signed[pilot], len(guessable))
    return _OrderedCoins(len(guessable), right, guess_counts, expected_shares)


def epsilon_from_guesses(
    coins: int, number: int, right: int, delta: float, error: float, steps: int = 1
) -> float:
    """Returns the largest epsilon that the number of right guesses refutes; 0 where it refutes none.

    The p-values of Steinke, Nasr and Jagielski (2023, Theorem 5.2) are inverted, by doubling from 1 and
    bisection.

    Args:
      coins: The number of coins.
      number: The number of coins that are guessed, taken as fixed.
      right: The number of right guesses.
      delta: The delta of epsilon.
      error: The probability with which a true epsilon may be refuted.
      steps: The number of canaries that the flip of a coin adds or removes, 1 or 2.
    """

    def is_refuted(epsilon: float) -> bool:
        """Returns whether, under (epsilon, delta)-DP, so many right guesses have at most probability `error`.

        A step adds or removes a canary; the flip of a coin is 1 or 2 `steps`.
        """
        # By group privacy, two steps are (2 epsilon, (1 + e^epsilon) delta)-DP.
        flip_epsilon = steps * epsilon
        flip_delta = delta
        if steps != 1:
            # The minimum keeps exp from overflowing.
            flip_delta = delta * (1 + np.exp(min(epsilon, _LARGEST_LOG)))
        log_p = log_p_approximate(coins, number, right, flip_epsilon, flip_delta)
        return bool(log_p <= np.log(error))

    if right == 0:  # 0 or more right guesses are certain, whatever epsilon
        return 0.0
    return find_largest_refuted(is_refuted, 0.0, 1.0, _HALVINGS)


def mu_from_guesses(coins: int, number: int, right: int, error: float) -> float:
    """Returns the largest mu for which so many right guesses refute mu-GDP; 0 where they refute none.

    Args:
      coins: The number of coins.
      number: The number of coins that are guessed, taken as fixed.
      right: The number of right guesses.
      error: The probability with which a true mu may be refuted.
    """

    def is_refuted(mu: float) -> bool:
        """Returns whether the right guesses refute mu-GDP."""
        return bool(gaussian_refutes(coins, number, right, mu, error))

    return find_largest_refuted(is_refuted, 0.0, _FIRST_MU, _HALVINGS_OF_MU)


def log_p_approximate(
    canaries: int, guesses: int, right: int, epsilon: ArrayLike, delta: ArrayLike
) -> Array:
    """Returns the log of an upper bound on the probability of `right` or more right guesses.

    Under (epsilon, delta)-DP, with W ~ Binomial(r, e^eps / (1 + e^eps)),
    P(v right) <= P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i
    (Steinke, Nasr and Jagielski, 2023, Theorem 5.2).

    Args:
      canaries: m, the number of coins.
      guesses: r, the number of coins that are guessed.
      right: v, the number of right guesses.
      epsilon: An array of any shape, or a number.
      delta: Broadcasts with epsilon; the result has their common shape.
    """
    epsilons, deltas = np.broadcast_arrays(
        np.asarray(epsilon, np.float64), np.asarray(delta, np.float64)
    )
    right_rate = special.expit(epsilons)  # of W ~ Binomial(guesses, right_rate)
    log_tail = scipy.stats.binom.logsf(right - 1, guesses, right_rate)  # log P(W >= v)

    # P(v > W >= v - i) for i = 1, ..., v along a last axis.
    below = np.arange(right - 1, -1, -1)  # v - 1, v - 2, ...
    probabilities = scipy.stats.binom.pmf(below, guesses, right_rate[..., None])
    masses = np.cumsum(probabilities, -1)
    # `initial` is for right = 0, where there is no i.
    largest_ratio = (masses / np.arange(1, right + 1)).max(-1, initial=0.0)
    with np.errstate(divide="ignore"):  # without delta it is the log of 0
        log_delta_term = np.log(2 * canaries * deltas * largest_ratio)
    log_p: Array = np.minimum(np.logaddexp(log_tail, log_delta_term), 0.0)
    return log_p


def gaussian_refutes(
    canaries: int, guesses: ArrayLike, right: ArrayLike, mu: ArrayLike, error: float
) -> NDArray[np.bool_]:
    """Returns whether a number of right guesses refutes mu-GDP at the level `error`.

    With q_j the probability of at least j right guesses, and S_j = q_j + q_(j+1) + ..., mu-GDP requires

        q_j >= (m g((j q_(j+1) + S_(j+1)) / m) + S_(j+1)) / (r - j),    g(x) = Phi(Phi^-1(x) - mu)

    (Mahloujifar, Melis and Chaudhuri, 2024; derived at the top of this module). The recursion starts from
    q_v = S_v = error, as if v right guesses were that likely, and takes j down to 0. Where a probability then
    exceeds 1, the hypothesis is refuted.

    Args:
      canaries: m, the number of coins.
      guesses: r, the number of coins that are guessed.
      right: v, the number of right guesses, at most r.
      mu: The hypotheses; guesses, right and mu broadcast.
      error: The level of the test.
    """
    r, v, mus = np.broadcast_arrays(
        np.asarray(guesses, np.float64), np.asarray(right, np.float64), np.asarray(mu, np.float64)
    )
    q = np.full(r.shape, error)  # q_(j+1), then q_j
    q_sum = np.full(r.shape, error)  # S_(j+1), then S_j
    most_right = int(v.max(initial=0))  # `initial` is for empty arrays
    for j in range(most_right - 1, -1, -1):
        right_probability = (j * q + q_sum) / canaries
        # It exceeds 1 only after q did, in hypotheses that are refuted already. The minimum avoids NaN.
        wrong_probability = special.ndtr(special.ndtri(np.minimum(right_probability, 1.0)) - mus)
        # q_j is also at least q_(j+1). Where j >= v, r - j may be 0, but the result is not used.
        with np.errstate(divide="ignore", invalid="ignore"):
            least_q = np.maximum(q, (canaries * wrong_probability + q_sum) / (r - j))
        started = j < v  # entries with a smaller v start later
        # Any value above 1 refutes: 2 stands for all larger values, which might overflow.
        q = np.where(started, np.minimum(least_q, 2.0), q)
        q_sum = np.where(started, q_sum + q, q_sum)
    # Without a right guess q is still the error, and nothing is refuted.
    refuted: NDArray[np.bool_] = (v > 0) & (q > 1)
    return refuted


def _predict_right_shares(pilot: Array, coins: int) -> tuple[NDArray[np.int64], Array]:
    """Returns (numbers of guesses to choose from, the share of right guesses expected of each number).

    The shares are those of a normal law that is fitted to the pilot's evidence.

    Args:
      pilot: The signed evidence on the pilot's coins (`CoinEvidence.signed`).
      coins: The number of coins that can be guessed.
    """
    guess_counts = np.maximum(np.round(_GUESSED_SHARES * coins).astype(np.int64), 1)
    centre = float(pilot.mean())
    spread = float(pilot.std())
    if not spread > 0:  # all evidence is equal, so that all guesses are right, or none is
        always_right = float(centre > 0)
        return guess_counts, np.full(len(guess_counts), always_right)

    # A coin is guessed where the size of its evidence exceeds a level: rightly if the evidence is
    # positive, wrongly if it is negative. Of 2,001 levels, up to 6 deviations beyond the mean, those
    # are taken at which the guessed shares are nearest to _GUESSED_SHARES.
    levels = np.linspace(0.0, abs(centre) + 6 * spread, 2001)
    right = special.ndtr((centre - levels) / spread)
    wrong = special.ndtr((-centre - levels) / spread)
    guessed_shares = right + wrong
    distances = np.abs(guessed_shares[:, None] - _GUESSED_SHARES)  # (levels, choices)
    nearest = np.argmin(distances, 0)
    return guess_counts, (right / guessed_shares)[nearest]


def _best_for_epsilon(guess_counts: NDArray[np.int64], expected_shares: Array, error: float) -> int:
    """Returns the index of the number of guesses that should prove the largest epsilon.

    That is the number for which the expected share of wrong guesses has the least Clopper-Pearson upper limit
    w: at delta = 0 the bound is proportional to log((1 - w) / w), which grows as w falls.

    Args:
      guess_counts: (choices,) the numbers of guesses to choose from.
      expected_shares: (choices,) the share of right guesses expected of each number.
      error: The error of the bound.
    """
    # Whole numbers, rounded so as to predict no more than is expected.
    expected_wrong = np.ceil(guess_counts * (1 - expected_shares))
    return int(np.argmin(intervals.clopper_pearson_upper(expected_wrong, guess_counts, error)))


def _best_for_mu(ordered: _OrderedCoins, error: float) -> int:
    """Returns the index of the number of guesses that should refute the largest mu.

    For each number, the largest mu that its expected right guesses refute is sought in a coarse grid, and
    then in a fine grid that starts there.

    Args:
      ordered: The coins, the numbers of guesses to choose from, and their expected shares.
      error: The error of the bound.
    """
    numbers = ordered.guess_counts[:, None]
    # Whole numbers, rounded so as to predict no more than is expected.
    expected_right = np.floor(numbers * ordered.expected_shares[:, None])

    def find_last_refuted(grids: Array) -> Array:
        """Returns the last refuted mu of each row (choices, 1) of ascending mus, or the row's first."""
        refuted = gaussian_refutes(ordered.coins, numbers, expected_right, grids, error)
        # Refuted mus come first in each row.
        last = np.maximum(refuted.sum(1, keepdims=True) - 1, 0)
        return np.take_along_axis(grids, last, 1)

    mus = np.linspace(0.0, _FIRST_MU, _SECTIONS + 1)
    coarse = find_last_refuted(np.tile(mus, (len(numbers), 1)))
    section = np.linspace(0.0, mus[1], _SECTIONS + 1)  # from a mu of the coarse grid to the next
    return int(np.argmax(find_last_refuted(coarse + section)))
