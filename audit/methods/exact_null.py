"""The exact null: a lower bound on epsilon for canaries that are uniform random directions.

README.md ("The exact null") derives the bound. A gambler bets against every epsilon. If training is (epsilon,
delta)-DP, each run multiplies the capital of the bets against epsilon by a factor whose mean is at most 1
(`Capital.log_factors`). So this capital is a nonnegative supermartingale.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.evidence.arrays import Array, Integers, hash_ranks
from audit.evidence.canaries import Fresh
from audit.evidence.ranks import measure_law
from audit.laws import conversions, cosine_law, gaussians
from audit.methods import claimed_curve
from audit.methods.claimed_curve import Exceedances, ScoreSummary
from audit.methods.estimate import Bound, ScoreMethod
from audit.methods.method import FRESH_DIRECTIONS, Assumption

EXACT_NULL = FRESH_DIRECTIONS.any_curve
EXACT_NULL_GDP = "exact_null_gdp"
LAW_LEVEL = 1e-6  # the null distribution is rejected if left-out canaries have a smaller p-value

# Thresholds on the scale of Student's t: dense around the scores expected for common claims, and sparse
# beyond.
_NEAR_THRESHOLDS = np.arange(0.5, 9.51, 0.25)
_FAR_THRESHOLDS = np.arange(10.0, 41.0)
STUDENT_THRESHOLDS = np.append(_NEAR_THRESHOLDS, _FAR_THRESHOLDS)
# c, the fraction of its capital that a bet stakes on each run, and the share of a threshold's starting
# capital for each c. Half of the capital is on the three largest c, because a few runs decide most audits.
STAKES = np.append(np.geomspace(3e-4, 0.9, 12), [0.97, 0.995])
_CAPITAL_ON_STAKES = np.append(np.full(11, 0.5 / 11), [0.1, 0.1, 0.3])
_NUM_THRESHOLD_BETS = STUDENT_THRESHOLDS.size * STAKES.size
_RATIO_MEANS = np.geomspace(0.5, 12.0, 24)  # nu in the likelihood ratios, in standard deviations
_MAX_RATIO = 20.0  # 20 times the stake refutes with 95% confidence

_MIN_PILOT = 20  # canaries used to choose a threshold for at least 20 others
_EPSILON_STEP = 2.0**-6  # bounds on epsilon are multiples of this step
_TINY = 1e-300  # avoids a division by 0 and the logarithm of 0
_MAX_LOG = 700.0  # avoids overflow in exp


def compute_log_rates(design: Fresh, levels: ArrayLike) -> Array:
    """Returns the log probability that a left-out canary's cosine exceeds each of the `levels` (any shape).

    If `design.draws` is M > 0, scores are ranks among M fresh draws. Rank r is stored as the cosine whose
    tail probability is r / (M + 1). So we round probabilities down to multiples of 1 / (M + 1).
    """
    log_rates = cosine_law.log_sf(levels, design.dimension)
    if not design.draws:  # scores are cosines
        return log_rates
    num_ranks = design.draws + 1
    ranks = np.floor(np.exp(log_rates) * num_ranks)
    # A rate of 0 has no logarithm, so we replace it with an upper limit, the rate of rank 1.
    return np.log(np.maximum(ranks, 1) / num_ranks)


def _limit_means(epsilon: float, log_rates: Array, delta: float) -> Array:
    """Returns e^epsilon a + delta, the largest mean fraction of inserted canaries above a threshold.

    (epsilon, delta)-DP implies this limit. `log_rates` are log a, the log probabilities that a left-out
    canary exceeds the thresholds.
    """
    return np.exp(np.minimum(epsilon + log_rates, _MAX_LOG)) + delta


def cosine_of(student: Array, dimension: int) -> Array:
    """Returns the cosine t / sqrt(d - 1 + t^2) for a value t of Student's t with d - 1 degrees of freedom."""
    return student / np.sqrt(dimension - 1 + student * student)


def bound_directions(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound "exact_null": the largest epsilon, among multiples of 1/64, that a gambler refutes.

    For each epsilon, the gambler bets that more inserted canaries have high cosines than (epsilon, delta)-DP
    allows. At the true epsilon, the capital reaches 1 / (1 - confidence) with probability at most 1 -
    confidence. If runs are sorted by start time, the bound is valid at any time, and `path` contains the
    bound after each run. If left-out canaries refute their null distribution, all bounds are 0 and `holds` is
    False.

    Raises:
      InputError: If no canary was inserted.
    """
    capital = Capital(design, delta)
    target = -np.log(1 - confidence)  # the log capital that refutes an epsilon
    path = np.zeros(0)  # stays empty if the order is unknown
    if design.in_order:
        path = expand_to_runs(design, capital.find_path(target))
        epsilon = float(path[-1])
    else:
        first_unrefuted = capital.find_first_unrefuted(capital.num_runs, start=0, target=target)
        epsilon = max(first_unrefuted - 1, 0) * _EPSILON_STEP  # the last refuted multiple
    threshold = capital.find_strongest_threshold(epsilon)
    holds = fits_null(design)
    if not holds:
        epsilon = 0.0
        path[:] = 0.0
    return Bound(
        method=EXACT_NULL,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        **_describe_threshold(design, threshold),
        assumes=_choose_assumption(design),
        holds=holds,
        path=tuple(path.tolist()),
    )


def bound_gdp(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound "exact_null_gdp" on mu: the runs refute every GDP guarantee with a smaller mu.

    The epsilon is a bound only if the trade-off curve is Gaussian. If left-out canaries refute the null
    distribution, mu and epsilon are 0 and `holds` is False.
    """
    counted = compute_exceedances(design)
    holds = fits_null(design)
    mu = 0.0
    path = np.zeros(0)  # the mu after each run; stays empty if the order is unknown
    if holds:
        mu = claimed_curve.find_refuted_mu(counted, confidence)
        if counted.in_order:
            mus = claimed_curve.trace_refuted_mu(counted, largest=mu, confidence=confidence)
            path = expand_to_runs(design, mus)
    index = claimed_curve.find_strongest_threshold(counted, claimed_curve.gaussian_power(mu))
    threshold = float(cosine_of(claimed_curve.THRESHOLDS[index], design.dimension))
    return Bound(
        method=EXACT_NULL_GDP,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        **_describe_threshold(design, threshold),
        assumes=_describe_gdp_assumption(design),
        holds=holds,
        path=tuple(conversions.epsilon_from_mu(mu_so_far, delta) for mu_so_far in path),
    )


def _describe_gdp_assumption(design: Fresh) -> Assumption:
    """Returns the assumption of a GDP guarantee, with a description of how canaries were drawn."""
    drawing = _choose_assumption(design)
    text = _ANY_GDP.text
    if design.from_user:  # we assume that canaries were drawn as reported
        text = f"{drawing.text}; {text}"
    return _ANY_GDP._replace(text=text, sentence=f"{drawing.sentence}; {_EPSILON_NEEDS_GDP}")


def _describe_threshold(design: Fresh, cosine: float) -> dict[str, Any]:
    """Returns the fields of `Bound` for a threshold, given as a `cosine`.

    If scores are ranks among fresh draws, `design.cosines` contains cosines with the same tail probabilities.
    So we convert the threshold back to a rank.
    """
    threshold = cosine
    rate = float(np.exp(compute_log_rates(design, cosine)))
    if design.draws:  # rank r has the tail probability r / (draws + 1)
        threshold = np.rint(rate * (design.draws + 1))
    present = design.cosines[design.presence]
    return {
        "threshold": float(threshold),
        "false_negatives": int(np.count_nonzero(present <= cosine)),
        "n_in": present.size,
        "n_out": int((~design.presence).sum()),
        "false_positive_rate": rate,  # exact, so there is no count of false positives
    }


def fits_null(design: Fresh) -> bool:
    """Returns whether left-out canaries, if any, are consistent with their null distribution at LAW_LEVEL."""
    is_out = design.is_out()
    if not is_out.any():
        return True
    if design.draws:  # scores are ranks
        return measure_law(design.ranks(), is_out, design.draws) >= LAW_LEVEL
    return law_test(design.out(), design.dimension) >= LAW_LEVEL


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """Returns the p-value for the hypothesis that cosines of left-out canaries have their null distribution.

    The cosines, (n,) or (R, K), must be independent: each is the cosine between its own uniform direction in
    R^d and a change in a model that does not depend on these directions.
    """
    values = np.ravel(cosines)
    # Under the null, these deviates are N(0, 1): they have the cosines' tail probabilities and signs.
    log_tails = cosine_law.log_sf(np.abs(values), dimension)
    deviates = np.copysign(special.ndtri_exp(log_tails), values)
    return gaussians.measure_normality(deviates, values.size)


def compute_exceedances(design: Fresh) -> Exceedances:
    """Returns the fraction of each run's inserted canaries above each threshold, and the exact null rates.

    We skip runs without inserted canaries. If the first run is known and has many canaries, we add the
    p-values of its inserted canaries, because bets on them can refute a claimed curve in one run.
    """
    levels = cosine_of(claimed_curve.THRESHOLDS, design.dimension)  # Student's t to cosines
    fractions = _compute_fractions(_select_present(design), levels)
    in_order = design.in_order or len(design.cosines) == 1  # a single run is always in order
    exceedances = Exceedances(fractions, compute_log_rates(design, levels), in_order)
    if in_order and design.cosines.shape[1] >= claimed_curve.MIN_P_VALUES:
        return exceedances._replace(first_log_p_values=_compute_log_p_values(design))
    return exceedances


def summarise_design(design: Fresh) -> ScoreSummary:
    """Summarises the scores of inserted canaries, to simulate runs with less noise.

    A score is a cosine t converted to the scale of Student's t, t sqrt(d - 1) / sqrt(1 - t^2). If it is
    lower than -10, as in failed runs, we use -10, which is far below all thresholds.
    """
    runs = []
    for cosines in _select_present(design):
        remainder = np.maximum(1 - cosines**2, _TINY)  # the cosines of a failed run are -1
        student = cosines * np.sqrt((design.dimension - 1) / remainder)
        runs.append(np.maximum(student, -10.0))
    means = np.array([run.mean() for run in runs])
    deviations = np.concatenate([run - run.mean() for run in runs])
    canaries = round(deviations.size / means.size)  # per run
    degrees = deviations.size - means.size  # degrees of freedom: we fit a mean to each run
    # With one canary per run, we cannot separate the two deviations, so we assume those of left-out canaries.
    std_within_run = 1.0
    std_between_runs = 0.0
    if degrees > 0:
        std_within_run = np.sqrt(deviations @ deviations / degrees)
        if len(runs) > 1:
            # The observed means also vary because scores vary within runs.
            excess = means.var(ddof=1) - std_within_run**2 / canaries
            std_between_runs = np.sqrt(max(excess, 0.0))
    return ScoreSummary(
        means.mean(), std_between_runs, std_within_run, runs=len(runs), canaries=canaries
    )


def expand_to_runs(design: Fresh, values: Array) -> Array:
    """Returns values after each of R runs, given the values (P,) after each run with an inserted canary.

    A run without inserted canaries keeps the previous value, or 0 if it comes first.
    """
    num_present = np.cumsum(design.presence.any(axis=1))  # runs with inserted canaries so far
    return np.append(0.0, values)[num_present]


def _select_present(design: Fresh) -> list[Array]:
    """Returns the cosines (K,) of inserted canaries, for each run that has any.

    Raises InputError if no canary was inserted.
    """
    rows = zip(design.cosines, design.presence, strict=True)
    runs = [row[bits] for row, bits in rows if bits.any()]
    require(runs, "no canary is in: train more runs")
    return runs


def _choose_assumption(design: Fresh) -> Assumption:
    """Returns the assumption about how canaries were drawn: by this tool, or as reported by a user."""
    if not design.from_user:
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
_OWN_RANKS = _OWN._replace(sentence=f"{_DRAWN_ALIKE}: this tool drew them")
_GIVEN_RANKS = Assumption(
    "fresh draws from the canaries' generator",
    "draws",
    f"{_DRAWN_ALIKE}, as reported with the scores",
    f"{_DRAWN_ALIKE}, as reported with the scores",
)


_EPSILON_NEEDS_GDP = "epsilon is for a GDP guarantee"
_ANY_GDP = Assumption(
    text="a GDP guarantee",
    word="any GDP",
    sentence=f"{_OWN.sentence}; {_EPSILON_NEEDS_GDP}",
    note="rejects any GDP guarantee with a smaller mu; epsilon follows from this mu",
    gaussian=True,
)


METHODS = {
    EXACT_NULL: ScoreMethod(
        name=EXACT_NULL,
        assumes=_OWN,
        legend="exact null (assumes nothing)",
        compute=bound_directions,
    ),
    EXACT_NULL_GDP: ScoreMethod(
        name=EXACT_NULL_GDP,
        assumes=_ANY_GDP,
        legend="any GDP guarantee (assumes nothing else)",
        compute=bound_gdp,
    ),
}


class FirstBet(NamedTuple):
    """The bet on the first run, and the split of the initial capital.

    Attributes:
      capital_on_ratios: The fraction of the initial capital for bets on likelihood ratios; the rest is for
        bets on thresholds (`Capital`).
      staked: The fraction of the capital that is staked on this bet.
      compute_payoff: Maps epsilon to the payoff of a stake of 1; its mean is at most 1 under (epsilon,
        delta)-DP.
      chosen: The threshold, as a cosine, chosen using half of the canaries; None if there is no such
        threshold.
    """

    capital_on_ratios: float
    staked: float
    compute_payoff: Callable[[float], float]
    chosen: float | None = None


class Capital:
    """The capital of a gambler who bets against each epsilon; enough capital refutes the epsilon."""

    def __init__(self, design: Fresh, delta: float) -> None:
        """Counts cosines above thresholds in R runs, and splits a capital of 1 among bets (`log_start`).

        Bets on T thresholds, each with C stakes, come first; bets on V likelihood ratios follow. In the first
        run, all bets move part of their capital to `first_bet`.
        """
        runs = _select_present(design)
        self.num_runs = len(runs)  # only runs with an inserted canary
        self.first_bet = _plan_first_bet(runs, design, delta)
        self._delta = delta
        self._levels = cosine_of(STUDENT_THRESHOLDS, design.dimension)  # the thresholds, as cosines
        self._log_rates = compute_log_rates(design, self._levels)
        self._fractions = _compute_fractions(runs, self._levels)  # (R, T)
        # Runs with equal fractions have equal factors.
        self._distinct_rows, self._row_indices = np.unique(
            self._fractions, axis=0, return_inverse=True
        )

        # `split_capital` puts 95% on the near (low) thresholds, which typical scores reach.
        by_threshold = claimed_curve.split_capital(_NEAR_THRESHOLDS.size, _FAR_THRESHOLDS.size)
        on_ratios = self.first_bet.capital_on_ratios
        on_thresholds = (1 - on_ratios) * by_threshold[:, None] * _CAPITAL_ON_STAKES  # (T, C)
        by_ratio = np.full(_RATIO_MEANS.size, on_ratios / _RATIO_MEANS.size)
        self.log_start = np.log(np.append(on_thresholds, by_ratio))  # (T * C + V,)

    def log_factors(self, fractions: Array, epsilon: float) -> Array:
        """Returns the log factors (n, T * C + V) by which n runs multiply the capital of each bet.

        `fractions` (n, T) contains h(t), the fraction of each run's cosines above each threshold t. Under
        (epsilon, delta)-DP, the mean of h(t) is at most m(t) = e^epsilon a(t) + delta, where a(t) is the
        probability that a left-out canary exceeds t. So these factors have means of at most 1:

            1 + c (h(t) / m(t) - 1)    for each t and each of C stakes c
            (1 + sum_t b_t h(t)) / (1 + sum_t b_t min(m(t), 1))    for V ratios 1 + sum_t b_t 1{x > t}

        Each ratio is a step function that approximates the likelihood ratio of a cosine x.
        """
        largest_means = _limit_means(epsilon, self._log_rates, self._delta)  # m(t)
        gains = fractions / largest_means - 1
        on_thresholds = np.log1p(gains[..., None] * STAKES)  # (n, T, C)
        steps = _compute_ratio_steps(epsilon)  # b_t, (V, T)
        observed = 1 + fractions @ steps.T  # (n, V)
        largest_expected = 1 + steps @ np.minimum(largest_means, 1.0)  # (V,)
        on_ratios = np.log(observed / largest_expected)
        return np.hstack([on_thresholds.reshape(len(fractions), _NUM_THRESHOLD_BETS), on_ratios])

    def compute_log_capital(self, runs: int, epsilon: float) -> Array:
        """Returns the log capital (bets,) of each bet against epsilon after the first `runs` runs.

        A bet starts with capital s (`log_start`), and run i multiplies it by f(i) (`log_factors`). In the
        first run, a fraction w of s moves to `first_bet`, which multiplies it by payoff(epsilon). The capital
        is

            s ((1 - w) f(0) + w payoff(epsilon)) prod_{i = 1}^{runs - 1} f(i).
        """
        staked = self.first_bet.staked
        log_not_staked = np.log1p(-staked) + self.log_factors(self._fractions[:1], epsilon)[0]
        log_won = np.log(max(staked * self.first_bet.compute_payoff(epsilon), _TINY))
        after_first = np.logaddexp(log_not_staked, log_won) + self.log_start
        # With few canaries per run, many runs have the same fractions of cosines above thresholds. To save
        # time, we compute equal factors only once.
        counts = np.bincount(self._row_indices[1:runs], minlength=len(self._distinct_rows))
        occur = counts > 0
        return after_first + counts[occur] @ self.log_factors(self._distinct_rows[occur], epsilon)

    def find_strongest_threshold(self, epsilon: float) -> float:
        """Returns the threshold (a cosine) with the strongest evidence against epsilon, to show in reports.

        The bets on this threshold have the most capital after the last run. For a single run, we return
        `first_bet.chosen` unless it is None, because the first bet stakes most of the capital on it.
        """
        chosen = self.first_bet.chosen
        if self.num_runs == 1 and chosen is not None:
            return chosen
        # Bets on thresholds come first, grouped by threshold.
        log_capital = self.compute_log_capital(self.num_runs, epsilon)[:_NUM_THRESHOLD_BETS]
        by_threshold = special.logsumexp(log_capital.reshape(-1, STAKES.size), axis=1)
        return self._levels[by_threshold.argmax()]

    def find_first_unrefuted(self, runs: int, start: int, target: float) -> int:
        """Returns the smallest k >= `start` for which the first `runs` runs do not refute k * _EPSILON_STEP.

        The runs refute an epsilon if the log capital of all bets against it reaches `target`. As epsilon
        grows, the capital of bets on thresholds decreases, but that of bets on likelihood ratios may
        increase, because the ratios depend on epsilon.
        """

        def is_open(k: int) -> bool:
            """Returns True if the bets on thresholds do not suffice to refute k * _EPSILON_STEP."""
            log_capital = self.compute_log_capital(runs, k * _EPSILON_STEP)[:_NUM_THRESHOLD_BETS]
            return np.logaddexp.reduce(log_capital) < target

        leap = 1
        while not is_open(start + leap):
            leap *= 2
        k = start + bisect_left(range(start, start + leap), True, key=is_open)
        # All smaller k are refuted, so we continue from this k with all bets.
        while np.logaddexp.reduce(self.compute_log_capital(runs, k * _EPSILON_STEP)) >= target:
            k += 1
        return k

    def find_path(self, target: float) -> Array:
        """Returns the bound after each run, (R,): the largest multiple of _EPSILON_STEP refuted so far.

        Once the log capital against an epsilon reaches `target`, the epsilon stays refuted. So we only track
        the capital against the smallest epsilon that is not yet refuted.
        """
        bounds = []
        first_unrefuted = 0  # this epsilon, as a multiple of _EPSILON_STEP
        log_capital = self.compute_log_capital(1, 0.0)  # of each bet against it
        for run in range(self.num_runs):
            if run:  # `log_capital` already includes run 0
                factors = self.log_factors(self._fractions[[run]], first_unrefuted * _EPSILON_STEP)
                log_capital = log_capital + factors[0]
            if np.logaddexp.reduce(log_capital) >= target:
                first_unrefuted = self.find_first_unrefuted(run + 1, first_unrefuted, target)
                log_capital = self.compute_log_capital(run + 1, first_unrefuted * _EPSILON_STEP)
            bounds.append(max(first_unrefuted - 1, 0) * _EPSILON_STEP)
        return np.array(bounds)


def _compute_ratio_steps(epsilon: float) -> Array:
    """Returns the steps b_t (V, T) of V likelihood ratios at T thresholds t, for bets against an epsilon.

    A step function 1 + sum_t b_t 1{x > t} of a canary's score x approximates the likelihood ratio of N(nu, 1)
    (in) to N(0, 1) (out). Only ratios above e^epsilon are evidence against epsilon, so we divide ratios by
    e^epsilon. We clip the results to [1, 20], since 20 already refutes epsilon with 95% confidence.
    """
    means = _RATIO_MEANS[:, None]  # nu
    log_ratios = means * (STUDENT_THRESHOLDS - means / 2)  # (V, T)
    log_heights = np.clip(log_ratios - epsilon, 0.0, np.log(_MAX_RATIO))
    return np.diff(np.exp(log_heights), axis=1, prepend=1.0)  # 1 below all thresholds


def _compute_fractions(runs: list[Array], levels: Array) -> Array:
    """Returns the fraction of each run's K cosines above each of T levels, of shape (R, T)."""
    return np.array([(cosines[:, None] > levels).mean(axis=0) for cosines in runs])


def _plan_first_bet(runs: list[Array], design: Fresh, delta: float) -> FirstBet:
    """Returns the bet on the first run, and the split of the capital. Any split gives a valid bound.

    Bets on likelihood ratios and thresholds share this capital. In the first run, each of them moves a
    fraction (`staked`) of its capital to the returned bet. For each run with inserted canaries, `runs`
    contains their cosines (K,). If there are several runs in an unknown order, `staked` is 0, because any of
    them may be the first.
    """
    if design.cosines.shape[1] >= claimed_curve.MIN_P_VALUES:
        # With many canaries, the first run proves more, so likelihood ratios get only 10% of the capital.
        bet = FirstBet(
            capital_on_ratios=0.1,
            staked=claimed_curve.FIRST_STAKE,
            compute_payoff=_bet_on_p_values(_compute_log_p_values(design), delta),
        )
    else:
        bet = _bet_on_thresholds(runs[0], design, delta)
    if design.in_order or len(runs) == 1:
        return bet
    return bet._replace(staked=0.0)


def _bet_on_thresholds(cosines: Array, design: Fresh, delta: float) -> FirstBet:
    """Returns the bet on the first run's cosines (K,), and the split of the capital.

    We bet on fixed thresholds. If possible, we also choose a threshold using half of the canaries, and use it
    to bet on the other half.
    """
    # 1.5 to 7 standard deviations of a left-out cosine.
    levels = cosine_of(np.arange(1.5, 7.1, 0.5), design.dimension)
    log_rates = compute_log_rates(design, levels)
    fractions = _compute_fractions([cosines], levels)[0]

    def compute_payoff(epsilon: float) -> float:
        """Returns the payoff of a stake of 1 against epsilon, split evenly among fixed thresholds.

        Each bet pays the fraction of cosines above its threshold, divided by the largest mean that (epsilon,
        delta)-DP allows.
        """
        return (fractions / _limit_means(epsilon, log_rates, delta)).mean()

    bet = FirstBet(capital_on_ratios=0.5, staked=0.1, compute_payoff=compute_payoff)
    needed = 2 * _MIN_PILOT  # canaries in two halves
    # With more canaries, the first run proves more, so we stake more on it and less on likelihood ratios.
    if design.cosines.shape[1] >= needed:
        bet = bet._replace(capital_on_ratios=0.1, staked=0.3)
    # We may use some canaries to choose a threshold for others only if no score depends on other canaries.
    if design.separate and cosines.size >= needed:
        return _bet_on_half(bet, cosines, design, delta)
    return bet


def _bet_on_p_values(log_p_values: Array, delta: float) -> Callable[[float], float]:
    """Returns a function that maps epsilon to the payoff of bets on the first run's p-values.

    `log_p_values` (K,) are in ascending order. A power is the probability that an inserted canary's p-value
    is at most a given rate. We choose powers small enough for a few p-values to refute an epsilon.
    """
    powers = claimed_curve.choose_refuting_powers(log_p_values.size)

    def compute_payoff(epsilon: float) -> float:
        """Returns the payoff of a stake of 1 against epsilon, split evenly among bets on small p-values.

        A bet pays the fraction of p-values at or below a rate a, divided by e^epsilon a + delta, the largest
        mean that (epsilon, delta)-DP allows. For each of `powers`, we choose a = power / e^epsilon.
        """
        return claimed_curve.compute_payoff(
            log_p_values, log_rates=np.log(powers) - epsilon, allowed=powers + delta
        )

    return compute_payoff


def _bet_on_half(bet: FirstBet, cosines: Array, design: Fresh, delta: float) -> FirstBet:
    """Returns a bet on half of the first run's cosines (n,), at a threshold chosen using the other half.

    In case this threshold is a poor choice, a fifth of the stake remains on `bet`.

    The payoff on a threshold t is the fraction of hits (cosines above t) divided by L(t), the larger of
    e^epsilon a(t) / (1 - eta) and delta / eta. Left-out canaries exceed t with probability a(t). By (epsilon,
    delta)-DP,

        P_in(t chosen, hit) <= e^epsilon P_out(t chosen) a(t) + d(t).

    Here d(t) is the part of delta used for t; these parts sum to at most delta. Dividing by L(t) and summing
    over t shows that the mean payoff is at most (1 - eta) + eta = 1.
    """
    pilot, rest = split_pilot(cosines, cosines.size // 2)
    threshold = _choose_threshold(cosines[pilot], rest.size, design.dimension)
    log_rate = compute_log_rates(design, threshold)  # that a left-out canary exceeds it
    fraction_above = (cosines[rest] > threshold).mean()

    def compute_payoff(epsilon: float) -> float:
        """Returns the payoff of a stake of 1 against epsilon: 80% on the chosen threshold t, 20% on `bet`."""
        eta = 0.1  # any eta and split are valid
        by_epsilon = _limit_means(epsilon, log_rate, delta=0.0)  # e^epsilon a(t)
        divisor = max(by_epsilon / (1 - eta), delta / eta)  # L(t)
        payoff = fraction_above / divisor
        on_chosen = 0.8  # the fraction of the stake
        return on_chosen * payoff + (1 - on_chosen) * bet.compute_payoff(epsilon)

    # The threshold suits these canaries, so we stake most of the capital on this bet. Any fraction is valid.
    return bet._replace(staked=0.9, compute_payoff=compute_payoff, chosen=threshold)


def _compute_log_p_values(design: Fresh) -> Array:
    """Returns the ascending log p-values (K,) of the inserted canaries in the first run that has any.

    A canary's p-value is the probability that a left-out canary scores at least as high.
    """
    if design.draws:  # scores are ranks among fresh draws; 1 is the highest
        log_p_values = np.log(design.ranks() / (design.draws + 1))
    else:
        log_p_values = cosine_law.log_sf(design.cosines, design.dimension)
    first_run = _select_present(design._replace(cosines=log_p_values))[0]
    # Without a lower limit, a p-value of 0 would refute every epsilon.
    return np.sort(np.maximum(first_run, -_MAX_LOG))


def split_pilot(values: Array, size: int) -> tuple[Integers, Integers]:
    """Draws `size` of the values (n,) as a pilot; returns shuffled indices of (the pilot, the others).

    The seed is a hash of the values' ranks, so the draw does not depend on their scale.
    """
    ranks = np.unique(values, return_inverse=True)[1]
    order = np.random.default_rng(hash_ranks(ranks)).permutation(values.size)
    return order[:size], order[size:]


def _choose_threshold(pilot: Array, canaries: int, dimension: int) -> float:
    """Returns the cosine threshold that should give the largest bound on epsilon for the other `canaries`.

    We fit a normal distribution to the pilot's cosines (n,), and maximize log(h / a). Here h is the expected
    fraction of cosines above the threshold, minus two standard deviations, and a is the probability that a
    left-out canary exceeds the threshold.
    """
    root = np.sqrt(dimension)
    # A grid of cosines times sqrt(d). `geomspace` needs an endpoint above 10, even if the dimension is small.
    scaled = np.append(np.arange(100) / 10, np.geomspace(10, max(root, 11), 400))
    thresholds = scaled[scaled < root] / root  # cosines are below 1
    spread = max(pilot.std(), 1e-12)  # above 0 even if all cosines are equal
    expected = special.ndtr((pilot.mean() - thresholds) / spread)
    deviation = np.sqrt(expected / canaries)  # of a Poisson count, divided by `canaries`
    sure_fraction = np.maximum(expected - 2 * deviation, 0.0)
    with np.errstate(divide="ignore"):
        predicted = np.log(sure_fraction) - cosine_law.log_sf(thresholds, dimension)
    return float(thresholds[np.argmax(predicted)])
