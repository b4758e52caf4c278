"""The exact null: a lower bound on epsilon from runs with uniform directions as canaries, all inserted.

A canary's direction v is uniform on the sphere of R^d and drawn afresh for every run and canary. In the world
without v, the released model does not depend on v. So the cosine of v with any vector u that is computed from
the model exceeds t with a probability a(t) that is known exactly (`cosine_law`). DP is valid for each fixed
v. On average over v, at every threshold t,

    P_in(cosine > t) <= e^epsilon a(t) + delta,

so only runs with the canary are needed, and only true positives are counted. With K canaries, the neighbour
of canary j is the run with the other K - 1, and the inequality is valid for the mean over j: h_i(t), the
share of run i's cosines above t, has a mean of at most m(t) = e^epsilon a(t) + delta given earlier runs. The
canaries of a run may depend on each other in any way.

A gambler against epsilon bets the share c of the capital on h(t) in every run, or bets on a ramp: for f(x) =
1 + sum_t b_t 1{x > t} with b >= 0, the mean of f over a run's cosines is on average at most 1 + sum_t b_t
m(t). After n runs the capital is

    prod_i (1 + c (h_i(t) / m(t) - 1))    or    prod_i (1 + sum_t b_t h_i(t)) / (1 + sum_t b_t m(t)),

which are nonnegative supermartingales from 1 if epsilon is true. So is a mixture of such bets with fixed
shares. By Ville's inequality it ever reaches 1 / error with probability at most `error`, so the bound is
valid wherever the audit stops. The bound is the least epsilon of a grid that was never refuted, minus one
step.

"Ever" means in the order of runs. Rows of a file may come in any order, even sorted, and
the largest capital along a sorted file proves nothing. The capital after all rows is the same in every order.
If the order is unknown, only that capital counts.

Thresholds are on the scale of Student's T. Ramps are likelihood ratios of N(nu, 1) to N(0, 1) over e^epsilon,
clipped to [1, 20]. These grow fastest if canaries shift cosines by nu. In the first run, a part of the
capital is staked entirely on the mean of likely thresholds, as in Markov's inequality, and its winnings join
the mixture. If the order is unknown, this happens only for a single run.

A single run pays the logarithm of the number of thresholds. If a cosine does not use other canaries'
directions (`plain`: no leave-one-out), half of the first run's canaries choose a threshold for the other
half. Since P_in(t chosen, hit) <= e^epsilon P_out(t chosen) a(t) + d(t), where the d(t) sum to at most delta,
the share of hits over max(e^epsilon a(t) / (1 - eta), delta / eta) has a mean of at most (1 - eta) + eta = 1.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.arrays import hash_ranks
from audit.evidence.canaries import Fresh
from audit.evidence.ranks import measure_law
from audit.laws import conversions, cosine_law, gaussians
from audit.methods import claimed_curve
from audit.methods.claimed_curve import Exceedances, ScoreSummary, summarise_scores
from audit.methods.estimate import Bound
from audit.methods.method import FRESH_DIRECTIONS, Assumption, Method

Array = NDArray[np.float64]

EXACT_NULL = FRESH_DIRECTIONS.free
EXACT_NULL_GDP = "exact_null_gdp"
LAW_LEVEL = 1e-6  # a smaller p-value of left-out canaries refutes the law

# Thresholds on the scale of Student's T: dense at the scores of usual claims, sparse beyond.
_NEAR_STUDENT = np.arange(0.5, 9.51, 0.25)
_FAR_STUDENT = np.arange(10.0, 41.0)
STUDENT = np.concatenate([_NEAR_STUDENT, _FAR_STUDENT])
_FAR = 10.0  # beyond near thresholds
# c, the share of a component's capital that is staked on each run. The best c depends on the number of runs
# and on the share of cosines above the threshold, so stakes are geometric. Half of the capital is on the
# largest three because a few runs decide most audits.
_SMALL_BETS = np.geomspace(3e-4, 0.9, 12)
BETS = np.concatenate([_SMALL_BETS, [0.97, 0.995]])
_SMALL_SHARES = np.full(11, 0.5 / 11)
_BET_SHARES = np.concatenate([_SMALL_SHARES, [0.1, 0.1, 0.3]])
_NUM_BETS = STUDENT.size * BETS.size  # components that bet on a threshold
# nu of the ramps, in standard deviations of a cosine.
_SHIFTS = np.geomspace(0.5, 12.0, 24)
_RAMPS_TOP = 20.0  # 20 times the stake refutes at confidence 0.95

_LIKELY = np.arange(1.5, 7.1, 0.5)  # thresholds of the first run's bet
# Canaries that choose a threshold for the others.
_MIN_PILOT = 20
_CHOSEN_SHARE = 0.8  # of the first run's bet, on the chosen threshold
_ETA = 0.1  # the share of m for delta; see the module's docstring

_STEP = 2.0**-6  # of epsilon
_TINY = 1e-300
_MAX_LOG = 700.0  # exp of more overflows


def compute_log_rates(design: Fresh, levels: ArrayLike) -> Array:
    """Returns the log probability that the cosine of a left-out canary exceeds each level.

    For ranks among M fresh draws (`design.draws`), the probability is rounded down to a multiple of 1 / (M +
    1), but is at least 1 / (M + 1): ranks do not have other probabilities.

    Args:
      design: The design, with its dimension and number of fresh draws.
      levels: Cosines of any shape. The result has the same shape.
    """
    log_rates = cosine_law.log_sf(levels, design.dimension)
    if not design.draws:
        return log_rates
    places = design.draws + 1
    ranks = np.floor(np.exp(log_rates) * places)
    return np.asarray(np.log(np.maximum(ranks, 1) / places))


def cosine_of(student: ArrayLike, dimension: int) -> Array:
    """Returns the cosine t / sqrt(d - 1 + t^2) of a value t of Student's T with d - 1 degrees of freedom."""
    t = np.asarray(student, np.float64)
    return np.asarray(t / np.sqrt(dimension - 1 + t * t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionsMethod(Method):
    """A method for fresh directions.

    Attributes:
      compute: Maps (design, delta, confidence) to a bound.
    """

    compute: Callable[[Fresh, float, float], Bound]


def bound_directions(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound on epsilon of the method "exact_null".

    A gambler bets against each epsilon, run by run, that more cosines exceed thresholds than (epsilon,
    delta)-DP allows. A capital of 1 / (1 - confidence) refutes the epsilon, and the bound is the largest
    refuted epsilon. Only inserted canaries count. Runs without any are skipped, but at least one run must
    have one.

    If rows are in start order, the bound is valid after each run, and the last value
    is returned. Otherwise only the capital after all runs counts, and `path` is empty.

    The reported threshold has most of the capital at the end. For a single run, it is the threshold that half
    of the canaries chose, if they chose one. If left-out canaries refute the law of cosines, epsilon is 0 and
    `holds` is False.

    Args:
      design: The cosines, or ranks stored as cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    capital = Capital(design, delta)
    runs = capital.num_runs
    target = -float(np.log(1 - confidence))  # the log capital that refutes an epsilon
    if design.in_order:
        path = expand_to_runs(design, capital.find_path(target))
        epsilon = float(path[-1])
    else:
        path = np.zeros(0)
        steps = capital.find_first_unrefuted(runs, 0, target)
        epsilon = max(steps - 1, 0) * _STEP
    threshold = capital.start.level
    if runs > 1 or threshold is None:
        on_thresholds = capital.compute_log(runs, epsilon)[:_NUM_BETS]
        by_level = special.logsumexp(on_thresholds.reshape(STUDENT.size, BETS.size), axis=1)
        threshold = float(cosine_of(STUDENT[by_level.argmax()], design.dimension))
    holds = has_law(design)
    return Bound(
        EXACT_NULL,
        epsilon * holds,
        None,
        delta,
        confidence,
        **_count_hits(design, threshold),
        assumes=_choose_assumption(design),
        holds=holds,
        path=tuple((path * holds).tolist()),
    )


def bound_gdp(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound `exact_null_gdp`: the mu below which every GDP guarantee is refuted, and its epsilon.

    It makes no assumption about the law of inserted scores. Epsilon is the value that a mu-GDP guarantee
    implies at delta. It does not bound the epsilon of other trade-off curves. If left-out canaries refute the
    exact law, mu and epsilon are 0 and `holds` is False. The reported threshold has most of the capital in
    the test of this mu.

    Args:
      design: The cosines, or ranks stored as cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    counted = compute_exceedances(design)
    holds = has_law(design)
    mu = claimed_curve.find_least_mu(counted, confidence) * holds
    path = np.zeros(0)  # empty if the order is unknown
    if holds and counted.in_order:
        path = expand_to_runs(design, claimed_curve.trace_least_mu(counted, mu, confidence))
    place = claimed_curve.find_main_threshold(counted, claimed_curve.gaussian_power(mu))
    threshold = float(cosine_of(claimed_curve.THRESHOLDS[place], design.dimension))
    assumes = _choose_assumption(design)
    text = _ANY_GDP.text
    if assumes.word != "nothing":  # "nothing; a GDP guarantee" would make no sense
        text = f"{assumes.text}; {text}"
    return Bound(
        EXACT_NULL_GDP,
        conversions.epsilon_from_mu(mu, delta),
        mu,
        delta,
        confidence,
        **_count_hits(design, threshold),
        assumes=_ANY_GDP._replace(text=text, sentence=f"{assumes.sentence}; {_OF_GDP}"),
        holds=holds,
        path=tuple(conversions.epsilon_from_mu(float(value), delta) for value in path),
    )


def _count_hits(design: Fresh, threshold: float) -> dict[str, Any]:
    """Returns the fields of a bound that count canaries above a threshold, a cosine.

    For ranks among M fresh draws, the threshold is shown as the largest rank that counts as above it: its
    rate times M + 1. Low ranks correspond to high cosines.
    """
    present = design.cosines[design.presence]
    cosine = threshold
    rate = float(np.exp(compute_log_rates(design, cosine)))
    if design.draws:
        threshold = float(np.rint(rate * (design.draws + 1)))
    misses = np.count_nonzero(present <= cosine)
    return {
        "threshold": threshold,
        "false_positives": 0,  # their rate is known exactly
        "false_negatives": int(misses),
        "n_in": len(present),
        "n_out": int((~design.presence).sum()),
        "false_positive_rate": rate,
    }


def has_law(design: Fresh) -> bool:
    """Returns False if left-out canaries refute the exact law at LAW_LEVEL; True if there are none.

    The law is that of their cosines or, if there are fresh draws, of their ranks among the draws.
    """
    if not design.is_out().any():
        return True
    if design.draws:
        return measure_law(design.ranks(), design.is_out(), design.draws) >= LAW_LEVEL
    return law_test(design.out(), design.dimension) >= LAW_LEVEL


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """Returns the p-value of a test that cosines of left-out canaries have their law in R^d.

    It is the law of the cosine between a fixed and a uniform direction. The cosines, (n,) or (R, K), must be
    independent. This is the case if each has its own direction and the vectors on the other side depend on
    none of these directions. Cosines are mapped to normal deviates of the same probability
    (`gaussians.measure_normality`).

    At LAW_LEVEL the test detects a wrong `dimension` in 9 of 10 audits if it is off by a factor of 1.2 with
    2,600 cosines, of 1.5 with 520, and of 2 with 210.
    """
    values = np.ravel(cosines)
    log_tails = cosine_law.log_sf(np.abs(values), dimension)
    deviates = np.copysign(special.ndtri_exp(log_tails), values)
    return gaussians.measure_normality(deviates, values.size)


def compute_exceedances(design: Fresh) -> Exceedances:
    """Returns the share of each run's inserted canaries above each threshold of `claimed_curve`.

    The record also has the exact rates at which left-out canaries exceed the thresholds. Runs without
    inserted canaries are skipped.
    """
    levels = cosine_of(claimed_curve.THRESHOLDS, design.dimension)
    shares = np.stack([_compute_shares(run, levels) for run in _select_present(design)])
    in_order = design.in_order or len(design.cosines) == 1
    return Exceedances(shares, compute_log_rates(design, levels), in_order)


def summarise_design(design: Fresh) -> ScoreSummary:
    """Returns the summary of a design's scores for simulations, on the scale of Student's T.

    A cosine c in R^d is c sqrt(d - 1) / sqrt(1 - c^2) on that scale. Only inserted canaries count. A failed
    run has the cosine -1. Its T is raised to -10, below all thresholds, because it would dominate the mean of
    all scores.
    """
    runs = []
    for run in _select_present(design):
        remainder = np.maximum(1 - run * run, _TINY)
        student = run * np.sqrt((design.dimension - 1) / remainder)
        runs.append(np.maximum(student, -_FAR))
    return summarise_scores(runs)


def expand_to_runs(design: Fresh, values: Array) -> Array:
    """Returns values (R,) after each of a design's runs, from those after each run with an inserted canary.

    A run without inserted canaries keeps the earlier value, which is 0 at the start.

    Args:
      design: The design, with runs in start order.
      values: (P,), values after each of the P runs with an inserted canary.
    """
    num_present = np.cumsum(design.presence.any(axis=1))
    return np.append(0.0, values)[num_present]


def _select_present(design: Fresh) -> list[Array]:
    """Returns the cosines (K,) of inserted canaries of each run with any; raises InputError without any."""
    present = [row[bits] for row, bits in zip(design.cosines, design.presence, strict=True)]
    runs = [run for run in present if len(run)]
    require(runs, "no canary is in: train more runs")
    return runs


def _choose_assumption(design: Fresh) -> Assumption:
    """Returns what the bound assumes: nothing if this tool drew the canaries and trained all runs.

    For user data, the bound assumes that canaries were drawn as stated. A note of the conclusion has the
    order of runs, if it is declared.
    """
    if not design.given:
        return _OWN_RANKS if design.draws else _OWN
    return _GIVEN_RANKS if design.draws else _GIVEN


_DRAWN = "uniform directions, drawn afresh for every run, unknown to a model trained without them"
_OWN = Assumption("nothing", "nothing", f"{_DRAWN}: this tool drew them")
_GIVEN = Assumption(
    "uniform directions, drawn afresh for every run",
    "directions",
    f"{_DRAWN}, as reported with the cosines",
    "uniform, drawn afresh for every run, as reported with the cosines",
)
_DRAWN_ALIKE = "canaries and fresh draws from one generator, none selected after drawing"
_OWN_RANKS = Assumption("nothing", "nothing", f"{_DRAWN_ALIKE}: this tool drew them")
_GIVEN_RANKS = Assumption(
    "fresh draws from the canaries' generator",
    "draws",
    f"{_DRAWN_ALIKE}, as reported with the scores",
    f"{_DRAWN_ALIKE}, as reported with the scores",
)


_OF_GDP = "epsilon is that of a GDP guarantee"
_ANY_GDP = Assumption(
    text="a GDP guarantee",
    word="any GDP",
    sentence=f"{_OWN.sentence}; {_OF_GDP}",
    note="rejects any GDP guarantee below this mu; epsilon is that of this mu",
    gaussian=True,
)


METHODS = {
    EXACT_NULL: DirectionsMethod(
        name=EXACT_NULL,
        assumes=_OWN,
        label="exact null",
        legend="exact null (assumes nothing)",
        compute=bound_directions,
    ),
    EXACT_NULL_GDP: DirectionsMethod(
        name=EXACT_NULL_GDP,
        assumes=_ANY_GDP,
        label="any GDP guarantee",
        legend="any GDP guarantee (assumes nothing else)",
        compute=bound_gdp,
    ),
}


class Start(NamedTuple):
    """The initial capital, and the bet on the first run.

    Attributes:
      ramps: The share of the capital on ramps; the rest is on thresholds.
      whole: The share of each component's capital that is staked entirely on the first run.
      won: Maps epsilon to the result of a capital of 1 that is staked entirely on the first run.
      level: The cosine that half of the run's canaries chose as the threshold of that bet; None if it uses
        only likely thresholds.
    """

    ramps: float
    whole: float
    won: Callable[[float], float]
    level: float | None = None


class Capital:
    """The capital of a mixture of bets against epsilon, as a function of epsilon.

    It has a component for each pair of a threshold and one of BETS (grouped by threshold), then one for each
    ramp: T * C + V in all. Components start with shares of a capital of 1.
    """

    def __init__(self, design: Fresh, delta: float) -> None:
        runs = _select_present(design)
        self.num_runs = len(runs)  # with an inserted canary
        levels = cosine_of(STUDENT, design.dimension)  # the thresholds, as cosines
        self.start = _make_start(runs, design, delta)
        self._delta = delta
        self._log_rates = compute_log_rates(design, levels)
        self._shares = np.stack([_compute_shares(run, levels) for run in runs])  # (R, T)
        # Runs with few canaries have few distinct rows of shares. Each is computed once.
        self._rows, self._places = np.unique(self._shares, axis=0, return_inverse=True)

        threshold_shares = claimed_curve.share_capital(_NEAR_STUDENT.size, _FAR_STUDENT.size)
        ramps = self.start.ramps
        on_thresholds = (1 - ramps) * threshold_shares[:, None] * _BET_SHARES
        on_ramps = np.full(len(_SHIFTS), ramps / len(_SHIFTS))
        self.log_shares = np.log(np.append(on_thresholds, on_ramps))

    def log_factors(self, shares: Array, epsilon: float) -> Array:
        """Returns the log factors (n, T * C + V) by which runs multiply the components' capital.

        With h(t) the share of a run's cosines above threshold t, and m(t) = e^epsilon a(t) + delta, they are

            1 + c (h(t) / m(t) - 1)                                      for a threshold t and a bet c
            (1 + sum_t b_t h(t)) / (1 + sum_t b_t min(m(t), 1))          for a ramp that rises by b_t at t.

        A ramp is the likelihood ratio of N(nu, 1) to N(0, 1) over e^epsilon, clipped to [1, 20]. If the
        mechanism is (epsilon, delta)-DP, each factor has a mean of at most 1 given earlier runs.

        Args:
          shares: (n, T) h(t) of each run.
          epsilon: The epsilon that is bet against.
        """
        # The exponent is clipped to avoid an overflow.
        exponents = np.minimum(epsilon + self._log_rates, _MAX_LOG)
        largest_means = np.exp(exponents) + self._delta
        gains = shares / largest_means - 1
        bets = np.log1p(gains[..., None] * BETS)  # (n, T, C)
        shifts = _SHIFTS[:, None]
        log_ratios = shifts * (STUDENT - shifts / 2)
        log_heights = np.clip(log_ratios - epsilon, 0.0, np.log(_RAMPS_TOP))
        rises = np.diff(np.exp(log_heights), axis=1, prepend=1.0)  # b_t, (V, T)
        observed = 1 + shares @ rises.T
        expected = 1 + rises @ np.minimum(largest_means, 1.0)
        ramps = np.log(observed / expected)
        return np.hstack([bets.reshape(len(shares), _NUM_BETS), ramps])

    def compute_log(self, runs: int, epsilon: float) -> Array:
        """Returns the log capital (T * C + V,) of each component against epsilon after the first runs.

        Component j starts with a share s_j of the capital. A part w of it is staked entirely on a special bet
        on run 0, which turns a capital of 1 into won(epsilon). The rest is multiplied by f_j(0) in run 0
        (`log_factors`), and all of it by f_j(i) in each later run i:

            s_j ((1 - w) f_j(0) + w won(epsilon)) prod_{i = 1}^{n - 1} f_j(i).
        """
        start = self.start
        first_factors = self.log_factors(self._shares[:1], epsilon)[0]
        by_components = np.log1p(-start.whole) + first_factors
        won = start.whole * start.won(epsilon)
        log_won = np.log(max(won, _TINY))
        after_first = np.logaddexp(by_components, log_won) + self.log_shares
        counts = np.bincount(self._places[1:runs], minlength=len(self._rows))
        occur = counts > 0
        grown = counts[occur] @ self.log_factors(self._rows[occur], epsilon)
        return np.asarray(after_first + grown)

    def find_first_unrefuted(self, runs: int, steps: int, target: float) -> int:
        """Returns the least k >= `steps` for which the first runs do not refute the epsilon k * _STEP.

        A jump by doubling and bisection passes the epsilons that bets on thresholds refute. Further ones are
        tried one by one.

        Args:
          runs: The number of runs.
          steps: The first k to try.
          target: The log capital that refutes.
        """

        def is_refuted(step: int) -> bool:
            """Returns whether the whole capital refutes the epsilon step * _STEP."""
            return bool(special.logsumexp(self.compute_log(runs, step * _STEP)) >= target)

        def is_left(step: int) -> bool:
            """Returns whether bets on thresholds do not refute the epsilon step * _STEP."""
            on_thresholds = self.compute_log(runs, step * _STEP)[:_NUM_BETS]
            return bool(special.logsumexp(on_thresholds) < target)

        if not is_refuted(steps):
            return steps
        # The capital on thresholds falls with epsilon, so bisection works. The whole capital may not fall, so
        # the multiples after that are tried one by one.
        leap = 1
        while not is_left(steps + leap):
            leap *= 2
        steps = bisect_left(range(steps + leap), True, lo=steps + leap // 2, key=is_left)
        while is_refuted(steps):
            steps += 1
        return steps

    def find_path(self, target: float) -> Array:
        """Returns the bound after each run, (R,), in multiples of _STEP.

        Multiples of _STEP are refuted in ascending order. The bound is the last refuted multiple, or 0.

        Args:
          target: The log capital that refutes.
        """
        bounds = []
        first_unrefuted = 0  # the least multiple of _STEP that is not refuted yet
        components = self.compute_log(1, 0.0)  # against that epsilon
        for run in range(self.num_runs):
            if run:  # update `compute_log` by the new run only
                factors = self.log_factors(self._shares[run : run + 1], first_unrefuted * _STEP)
                components = components + factors[0]
            if special.logsumexp(components) >= target:
                first_unrefuted = self.find_first_unrefuted(run + 1, first_unrefuted, target)
                components = self.compute_log(run + 1, first_unrefuted * _STEP)
            bounds.append(max(first_unrefuted - 1, 0) * _STEP)
        return np.array(bounds)


def _compute_shares(run: Array, levels: Array) -> Array:
    """Returns the shares (T,) of a run's cosines (K,) above each level (T,)."""
    not_above = np.searchsorted(np.sort(run), levels, side="right")
    return np.asarray((len(run) - not_above) / len(run))


def _make_start(runs: list[Array], design: Fresh, delta: float) -> Start:
    """Returns the initial capital, with a special bet on the first run.

    Against an epsilon, the bet turns a capital of 1 into h(t) / m(t), on average over likely thresholds t.
    h(t) is the share of cosines above t, and m(t) = e^epsilon a(t) + delta, where a(t) is the rate at which a
    left-out canary exceeds t. The bet is skipped if there are several runs of unknown order.

    In a plain design with at least 40 inserted canaries, half of the canaries choose a threshold for the
    other half, and most of the bet is on that threshold. The module's docstring proves that both bets are
    fair.

    Args:
      runs: The cosines (K,) of each run's inserted canaries.
      design: The design.
      delta: The delta of the bound.
    """
    run = runs[0]
    levels = cosine_of(_LIKELY, design.dimension)
    log_rates = compute_log_rates(design, levels)
    shares = _compute_shares(run, levels)
    # Ramps gain from single large cosines, which suits few canaries. Many canaries give precise shares above
    # thresholds, and prove much in the first run.
    has_many = design.cosines.shape[1] >= 2 * _MIN_PILOT
    ramps = 0.1 if has_many else 0.5

    def win_on_likely(epsilon: float) -> float:
        """Returns the result of a capital of 1 on the likely thresholds, against epsilon."""
        most = np.exp(np.minimum(epsilon + log_rates, _MAX_LOG)) + delta
        return float(np.mean(shares / most))

    if not design.in_order and len(runs) > 1:
        return Start(ramps, 0.0, win_on_likely)
    if not design.plain or len(run) < 2 * _MIN_PILOT:
        return Start(ramps, 0.3 if has_many else 0.1, win_on_likely)

    # Half of the canaries, the pilot, choose the threshold for the others.
    pilot_places, rest_places = split_pilot(run, len(run) // 2)
    rest = run[rest_places]
    level = _choose_threshold(run[pilot_places], len(rest), design.dimension)
    log_rate = float(compute_log_rates(design, level))
    share = float(np.mean(rest > level))

    def win_on_both(epsilon: float) -> float:
        """Returns the result of a capital of 1 on the chosen and the likely thresholds, against epsilon."""
        # DP allows a share e^epsilon a(t) of hits above the chosen threshold t, plus delta over all
        # thresholds. The first is at most (1 - _ETA) * most, the second at most _ETA * most. So the share
        # of hits over `most` has a mean of at most 1, as required of a fair bet.
        by_epsilon = np.exp(min(epsilon + log_rate, _MAX_LOG))
        most = max(by_epsilon / (1 - _ETA), delta / _ETA)
        chosen = share / most
        return float(_CHOSEN_SHARE * chosen + (1 - _CHOSEN_SHARE) * win_on_likely(epsilon))

    return Start(ramps, 0.9, win_on_both, level)


def split_pilot(values: Array, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws a pilot of a given size from values (n,); returns (indices of the pilot, indices of the rest).

    The draw is random because files may be sorted. Its seed depends on the ranks of the values, so the same
    values give the same pilot.
    """
    ranks = np.unique(values, return_inverse=True)[1]
    rng = np.random.default_rng(hash_ranks(ranks))
    order = rng.permutation(len(values))
    return order[:size], order[size:]


def _choose_threshold(pilot: Array, canaries: int, dimension: int) -> float:
    """Returns the threshold that promises the largest epsilon if further cosines are normal like the pilot's.

    It is the cosine with the largest log(h / a): h is the expected share of cosines above it minus two
    standard deviations, and a the rate at which left-out canaries exceed it. Candidates are tenths of
    1/sqrt(d) up to 10/sqrt(d), then 400 cosines up to 1 in geometric steps.

    Args:
      pilot: The cosines of the pilot's canaries.
      canaries: The number of further canaries to be counted.
      dimension: d.
    """
    # `units` are cosines times sqrt(d). Values of sqrt(d) or more are dropped. `end` keeps the second part
    # ascending if sqrt(d) is below 10.
    root = np.sqrt(dimension)
    end = max(root, 11)
    near = np.arange(0, 100) / 10
    far = np.geomspace(10, end, 400)
    units = np.concatenate([near, far])
    thresholds = units[units < root] / root
    spread = max(float(pilot.std()), 1e-12)  # cosines may all be equal
    share = special.ndtr((pilot.mean() - thresholds) / spread)
    # A few lucky canaries must not decide the choice.
    deviation = np.sqrt(share / canaries)
    sure_share = np.maximum(share - 2 * deviation, 0.0)
    with np.errstate(divide="ignore"):
        promised = np.log(sure_share) - cosine_law.log_sf(thresholds, dimension)
    return float(thresholds[np.argmax(promised)])
