"""Lower bounds on epsilon from one run with many canaries, which may hang together in any way.

    exact_null         from cosines of uniformly random canaries that are all in: `exact_null` of one run
    one_run_guesses    from fair coins: right guesses against (epsilon, delta)-DP
    one_run_gaussian   from fair coins: right guesses against mu-GDP

Given the released model the scores of one run's canaries are not independent, so that no method here counts
them as if they were.

Guesses. m canaries of one run are each in or out by a fair coin of its own, independent of all else. From all
that is released somebody guesses exactly r of the coins, and v guesses are right. The canaries may be
anything, and their scores depend on each other in any way: only the coins are independent. That r is fixed
before the scores are seen matters where delta > 0: given a number of guesses that the scores decide, neither
bound holds (Errata O11). Here scores less their median say by their sign what is guessed, and by their size
how surely; the r surest are guessed. The pilot's coins choose r: given them, the other coins are as fair as
before.

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

Pairs. Of two canaries drawn alike, one is observed (inserted) and one is not: which of them is a fair coin,
whose flip replaces a canary. A mechanism that is (epsilon, delta)-DP or mu-GDP for adding one is, for
replacing it, (2 epsilon, (1 + e^epsilon) delta)-DP or 2 mu-GDP.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.canaries import Coins
from audit.evidence.one_run import Cosines
from audit.laws import conversions, intervals
from audit.methods import exact_null
from audit.methods.estimate import Bound
from audit.methods.exact_null import EXACT_NULL
from audit.methods.method import GAUSSIAN_CURVE, Assumption

Array = NDArray[np.float64]

Seen = TypeVar("Seen")
ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN = "one_run_guesses", "one_run_gaussian"
LEAST_COINS, MOST_COINS = 40, 20_000
_PILOT_SHARE, _LEAST_PILOT = 0.2, 20
_SHARES = np.concatenate([np.geomspace(0.02, 0.5, 8), np.linspace(0.6, 1.0, 5)])  # of coins that are guessed
_SECTIONS, _PASSES, _FIRST_MU = 32, 5, 8.0
_HALVINGS = 40


UNIFORM = Assumption(
    "uniform directions, drawn afresh for every run",
    "fresh directions",
    "uniform directions, drawn afresh for every run, of which training knows nothing; nothing else, however "
    "the canaries of a run hang together",
    "uniform directions, drawn afresh for every run",
    proviso="if directions are uniform",
)
FAIR_COINS = Assumption(
    "fair coins",
    "fair coins",
    "that each canary was in by a fair coin of its own which training did not see; nothing else, however the "
    "canaries of a run hang together",
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
    """Returns an assumption on canaries together with that of a Gaussian trade-off curve."""
    return Assumption(
        f"{assumed.text}, {GAUSSIAN_CURVE.text}",
        GAUSSIAN_CURVE.word,
        f"{assumed.sentence}; and a Gaussian trade-off curve",
        f"{assumed.note}; and a Gaussian trade-off curve",
        gaussian=True,
        proviso=f"{assumed.proviso} and the trade-off curve is Gaussian",
    )


class OneRunMethod(NamedTuple, Generic[Seen]):
    """A method's name, and its bound from what is seen of a run, at (delta, confidence)."""

    name: str
    compute: Callable[[Seen, float, float], Bound]


class CoinEvidence(NamedTuple):
    """What scores say of coins, (m,): positive where the guess is right, larger where it is surer.

    steps: how many canaries the flip of a coin adds or removes, 1, or 2 for pairs.
    """

    signed: Array
    steps: int
    assumes: Assumption


def bounds(found: Cosines, delta: float, confidence: float) -> list[Bound]:
    """The bounds from cosines: `exact_null` if all canaries are observed, from pairs if as many are not."""
    if not len(found.unobserved):
        return [method.compute(found, delta, confidence) for method in OF_COSINES.values()]
    if len(found.observed) != len(found.unobserved) or len(found.observed) < LEAST_COINS:
        return []
    return guessed(of_pairs(found), delta, confidence)


def of_uniform_canaries(found: Cosines, delta: float, confidence: float) -> Bound:
    """`exact_null`, from observed cosines alone."""
    cosines = exact_null.checked(found.observed[None], found.dimension)
    proof = exact_null.prove(cosines, found.dimension, delta, confidence, plain=True)
    return Bound(
        method=EXACT_NULL,
        epsilon=proof.epsilon,
        mu=None,
        delta=delta,
        confidence=confidence,
        threshold=proof.threshold,
        false_positives=0,
        false_negatives=proof.cosines - proof.hits,
        n_in=proof.cosines,
        n_out=0,
        assumes=UNIFORM,
        counted=f"{proof.hits}/{proof.cosines} above {proof.threshold:.3g}",
    )


def of_coins(design: Coins) -> CoinEvidence:
    """What one run's scores (1, K) say of its coins; raises InputError for another number of runs."""
    runs, canaries = design.scores.shape
    require(runs == 1, f"scores have {runs} runs: give one, (1, canaries)")
    require(canaries >= LEAST_COINS, f"there are {canaries} canaries with coins: give at least {LEAST_COINS}")
    scores, presence = design.scores[0], design.presence[0]
    return CoinEvidence((scores - np.median(scores)) * np.where(presence, 1.0, -1.0), 1, FAIR_COINS)


def of_pairs(found: Cosines) -> CoinEvidence:
    """What equally many observed and unobserved cosines say of which of each two was inserted."""
    return CoinEvidence(found.observed - found.unobserved, 2, DRAWN_ALIKE)


def guessed(evidence: CoinEvidence, delta: float, confidence: float) -> list[Bound]:
    """The bounds from guesses, of at most 20,000 coins drawn at random."""
    return [method.compute(evidence, delta, confidence) for method in OF_COINS.values()]


def from_guesses(evidence: CoinEvidence, delta: float, confidence: float) -> Bound:
    """Returns `one_run_guesses`."""
    conversions.require_levels(delta, confidence)
    error = 1 - confidence
    counted = _ordered(evidence)
    number = int(counted.numbers[_best_for_epsilon(counted.numbers, counted.promised, error)])
    hits = int(counted.right[number - 1])
    epsilon = epsilon_from_guesses(counted.coins, number, hits, delta, error, evidence.steps)
    guesses = Guesses(counted.coins, number, hits)
    return _bound(ONE_RUN_GUESSES, guesses, (epsilon, None), (delta, confidence), evidence.assumes)


def gaussian_from_guesses(evidence: CoinEvidence, delta: float, confidence: float) -> Bound:
    """Returns `one_run_gaussian`."""
    conversions.require_levels(delta, confidence)
    error = 1 - confidence
    counted = _ordered(evidence)
    number = int(counted.numbers[_best_for_mu(counted.coins, counted.numbers, counted.promised, error)])
    hits = int(counted.right[number - 1])
    mu = mu_from_guesses(counted.coins, number, hits, error) / evidence.steps
    epsilon = conversions.epsilon_from_mu(mu, delta)
    guesses = Guesses(counted.coins, number, hits)
    assumed = with_gaussian_curve(evidence.assumes)
    return _bound(ONE_RUN_GAUSSIAN, guesses, (epsilon, mu), (delta, confidence), assumed)


class Guesses(NamedTuple):
    """How many coins there were, how many of them were guessed, and how many of the guesses are right."""

    coins: int
    number: int
    right: int


def _bound(
    method: str,
    guesses: Guesses,
    proven: tuple[float, float | None],
    levels: tuple[float, float],
    assumed: Assumption,
) -> Bound:
    """Returns the bound on (epsilon, mu) at (delta, confidence) that so many guesses prove."""
    return Bound(
        method=method,
        epsilon=proven[0],
        mu=proven[1],
        delta=levels[0],
        confidence=levels[1],
        threshold=None,
        false_positives=0,
        false_negatives=guesses.number - guesses.right,
        n_in=guesses.number,
        n_out=0,
        assumes=assumed,
        counted=f"{guesses.right}/{guesses.number} right of {guesses.coins}",
    )


OF_COSINES = {EXACT_NULL: OneRunMethod(EXACT_NULL, of_uniform_canaries)}
OF_COINS = {
    ONE_RUN_GUESSES: OneRunMethod(ONE_RUN_GUESSES, from_guesses),
    ONE_RUN_GAUSSIAN: OneRunMethod(ONE_RUN_GAUSSIAN, gaussian_from_guesses),
}


class _Ordered(NamedTuple):
    """So many coins that are not the pilot's; how many of the surest 1, 2, ... guesses are right; numbers of
    guesses, and the share of each that the pilot promises to be right."""

    coins: int
    right: NDArray[np.int64]
    numbers: NDArray[np.int64]
    promised: Array


def _ordered(evidence: CoinEvidence) -> _Ordered:
    """The coins that are counted, the surest guess first, and what the pilot promises."""
    certainty = np.abs(evidence.signed)  # what is seen without the coins
    pilot, rest = exact_null.parted(certainty, max(round(_PILOT_SHARE * len(certainty)), _LEAST_PILOT))
    rest = rest[:MOST_COINS]
    right = np.cumsum(evidence.signed[rest[np.argsort(-certainty[rest], kind="stable")]] > 0, dtype=np.int64)
    return _Ordered(len(rest), right, *_promises(evidence.signed[pilot], len(rest)))


def epsilon_from_guesses(
    coins: int, number: int, right: int, delta: float, error: float, steps: int = 1
) -> float:
    """The largest epsilon that so many right guesses, of a fixed number, refute; 0 where none is."""

    def refuted(epsilon: float) -> bool:
        grown = delta if steps == 1 else delta * (1 + np.exp(min(epsilon, 700.0)))
        return bool(log_p_approximate(coins, number, right, steps * epsilon, grown) <= np.log(error))

    if right == 0 or not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def mu_from_guesses(coins: int, number: int, right: int, error: float) -> float:
    """The largest mu that so many right guesses refute, likewise."""

    def refuted(mus: Array) -> NDArray[np.bool_]:
        return gaussian_refutes(coins, number, right, mus, error)

    low, high = 0.0, _FIRST_MU
    if not refuted(np.zeros(1))[0]:
        return 0.0
    while refuted(np.array([high]))[0]:
        low, high = high, 2 * high
    for _ in range(_PASSES):
        points = np.linspace(low, high, _SECTIONS + 1)
        last = int(np.flatnonzero(refuted(points))[-1])
        low, high = points[last], points[min(last + 1, _SECTIONS)]
    return float(low)


def log_p_approximate(canaries: int, guesses: int, right: int, epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """log of the largest probability of so many right guesses under (epsilon, delta)-DP, at most 0.

    epsilon and delta are of one shape (E,), which the result has.
    """
    eps, deltas = np.broadcast_arrays(np.asarray(epsilon, np.float64), np.asarray(delta, np.float64))
    share = special.expit(eps)[..., None]
    below = np.arange(right - 1, -1, -1)  # v - 1, v - 2, ...
    log_tail = scipy.stats.binom.logsf(right - 1, guesses, share[..., 0])
    masses = np.cumsum(scipy.stats.binom.pmf(below, guesses, share), -1)
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
        wrong = special.ndtr(special.ndtri(np.minimum((j * tail + total) / canaries, 1.0)) - mus)
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.maximum(tail, (canaries * wrong + total) / (r - j))
        tail = np.where(j < v, np.minimum(least, 2.0), tail)  # beyond 1 is refuted whatever follows
        total = np.where(j < v, total + tail, total)
    refuted: NDArray[np.bool_] = (v > 0) & (tail > 1)
    return refuted


def _promises(pilot: Array, coins: int) -> tuple[NDArray[np.int64], Array]:
    """(numbers of guesses, the share of them that is right) by a normal fit to the pilot's evidence."""
    numbers = np.maximum(np.round(_SHARES * coins).astype(np.int64), 1)
    centre, spread = float(pilot.mean()), float(pilot.std())
    if not spread > 0:
        return numbers, np.full(len(numbers), float(centre > 0))
    levels = np.linspace(0.0, abs(centre) + 6 * spread, 2001)
    right, wrong = special.ndtr((centre - levels) / spread), special.ndtr((-centre - levels) / spread)
    at = np.argmin(np.abs((right + wrong)[:, None] - _SHARES), 0)
    return numbers, (right / (right + wrong))[at]


def _best_for_epsilon(numbers: NDArray[np.int64], promised: Array, error: float) -> int:
    """The place of the number whose promised share has the largest lower limit."""
    pairs = zip(np.ceil(numbers * (1 - promised)), numbers, strict=True)
    return int(np.argmin([float(intervals.clopper_pearson_upper(w, int(n), error)) for w, n in pairs]))


def _best_for_mu(coins: int, numbers: NDArray[np.int64], promised: Array, error: float) -> int:
    """The place of the number that refutes the largest mu with what it promises."""
    right = np.floor(numbers * promised)
    mus = np.linspace(0.0, _FIRST_MU, _SECTIONS + 1)

    def reached(of: Callable[[int], Array]) -> Array:
        tried = np.stack([of(i) for i in range(len(numbers))])
        refuted = gaussian_refutes(coins, numbers[:, None], right[:, None], tried, error)
        last = refuted.shape[1] - 1 - refuted[:, ::-1].argmax(1)
        return np.where(refuted.any(1), last, 0)

    coarse = mus[reached(lambda i: mus)]
    fine = coarse[:, None] + np.linspace(0.0, mus[1], _SECTIONS + 1)
    return int(np.argmax(fine[np.arange(len(numbers)), reached(lambda i: fine[i])]))
