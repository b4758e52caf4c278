"""The exact null: a lower bound on epsilon for canaries that are uniform random directions.

README.md ("The exact null") derives the bet on a threshold. Let h_i(t) be the fraction of run i's cosines
above t, and a(t) the probability that a left-out canary's cosine exceeds t. An epsilon is *true* if training
is (epsilon, delta)-DP. Then the mean of h_i(t) is at most m(t) = e^epsilon a(t) + delta.

*Ramps.* A ramp is a function f(x) = 1 + sum_t b_t 1{x > t} with b_t >= 0. Its expected mean over a run's
cosines is then at most 1 + sum_t b_t m(t). So if epsilon is true, each run multiplies the capital of a bet by
a factor with mean at most 1 (`Capital.log_factors`), and the capital is a nonnegative supermartingale.
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

EXACT_NULL = FRESH_DIRECTIONS.free
EXACT_NULL_GDP = "exact_null_gdp"
LAW_LEVEL = 1e-6  # the null distribution is refuted if left-out canaries have a smaller p-value

# Thresholds on the scale of Student's T: dense around the scores expected for common claims, and sparse
# beyond.
_NEAR_STUDENT = np.arange(0.5, 9.51, 0.25)
_FAR_STUDENT = np.arange(10.0, 41.0)
STUDENT = np.append(_NEAR_STUDENT, _FAR_STUDENT)
# c, the fraction of a component's capital that is staked on each run, and the fraction of a threshold's
# capital that starts on each c. Half of it is on the largest three, because most audits are decided by a few
# runs.
BETS = np.append(np.geomspace(3e-4, 0.9, 12), [0.97, 0.995])
_BET_FRACTIONS = np.append(np.full(11, 0.5 / 11), [0.1, 0.1, 0.3])
_NUM_THRESHOLD_BETS = STUDENT.size * BETS.size  # components that bet on a threshold
_SHIFTS = np.geomspace(0.5, 12.0, 24)  # nu of the ramps, in standard deviations of a cosine
_RAMPS_TOP = 20.0  # 20 times the stake refutes with 95% confidence

_MIN_PILOT = 20  # canaries used to choose a threshold for at least 20 others
_EPSILON_STEP = 2.0**-6  # bounds on epsilon are multiples of this step
_TINY = 1e-300  # avoids a division by 0 and the logarithm of 0
_MAX_LOG = 700.0  # avoids overflow in exp


def compute_log_rates(design: Fresh, levels: ArrayLike) -> Array:
    """Returns the log probability that a left-out canary's cosine exceeds each of the `levels` (any shape).

    If M = `design.draws` is not 0, scores are ranks among M fresh draws. Rank r is stored as the cosine that
    left-out canaries exceed with probability r / (M + 1). So we round down to such a probability.
    """
    log_rates = cosine_law.log_sf(levels, design.dimension)
    if not design.draws:  # scores are cosines
        return log_rates
    num_ranks = design.draws + 1
    ranks = np.floor(np.exp(log_rates) * num_ranks)
    return np.log(np.maximum(ranks, 1) / num_ranks)


def _limit_means(epsilon: float, log_rates: Array, delta: float) -> Array:
    """Returns e^epsilon a + delta, the largest mean fraction of inserted canaries above a threshold.

    (epsilon, delta)-DP implies this limit. `log_rates` are log a, the log probabilities that a left-out
    canary exceeds the thresholds.
    """
    exponents = np.minimum(epsilon + log_rates, _MAX_LOG)
    return np.exp(exponents) + delta


def cosine_of(student: Array, dimension: int) -> Array:
    """Returns the cosine t / sqrt(d - 1 + t^2) for a value t of Student's T with d - 1 degrees of freedom."""
    return student / np.sqrt(dimension - 1 + student * student)


def bound_directions(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound on epsilon from the method "exact_null": the largest multiple of 1/64 it refutes.

    Only inserted canaries count. If the runs are in start order, `path` holds a valid bound after each run.
    If left-out canaries refute the null distribution, bounds are 0 and `holds` is False.

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
        # The index of an epsilon counts steps from 0.
        first_unrefuted = capital.find_first_unrefuted(capital.num_runs, start=0, target=target)
        epsilon = max(first_unrefuted - 1, 0) * _EPSILON_STEP
    threshold = capital.find_richest_threshold(epsilon)
    holds = has_law(design)
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
    """Returns the bound `exact_null_gdp`: the runs refute every GDP guarantee below its mu.

    Its epsilon is a bound only if the trade-off curve is Gaussian. If left-out canaries refute the null
    distribution, mu and epsilon are 0 and `holds` is False.
    """
    counted = compute_exceedances(design)
    holds = has_law(design)
    mu = 0.0
    path = np.zeros(0)  # the mu after each run; stays empty if the order is unknown
    if holds:
        mu = claimed_curve.find_least_mu(counted, confidence)
        if counted.in_order:
            path = expand_to_runs(design, claimed_curve.trace_least_mu(counted, mu, confidence))
    index = claimed_curve.find_richest_threshold(counted, claimed_curve.gaussian_power(mu))
    threshold = float(cosine_of(claimed_curve.THRESHOLDS[index], design.dimension))
    assumes = _choose_assumption(design)
    text = _ANY_GDP.text
    if design.from_user:  # otherwise, the text of `assumes` is "nothing"
        text = f"{assumes.text}; {text}"
    return Bound(
        method=EXACT_NULL_GDP,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        **_describe_threshold(design, threshold),
        assumes=_ANY_GDP._replace(text=text, sentence=f"{assumes.sentence}; {_OF_GDP}"),
        holds=holds,
        path=tuple(conversions.epsilon_from_mu(mu_so_far, delta) for mu_so_far in path),
    )


def _describe_threshold(design: Fresh, cosine: float) -> dict[str, Any]:
    """Returns the fields of `Bound` for a threshold, given as a `cosine`.

    If scores are ranks among fresh draws, we report the rank that the cosine represents.
    """
    threshold = cosine
    rate = float(np.exp(compute_log_rates(design, cosine)))
    if design.draws:  # scores are ranks; rank r has the rate r / (draws + 1)
        threshold = np.rint(rate * (design.draws + 1))
    present = design.cosines[design.presence]
    return {
        "threshold": float(threshold),
        "false_negatives": int(np.count_nonzero(present <= cosine)),
        "n_in": present.size,
        "n_out": int((~design.presence).sum()),
        "false_positive_rate": rate,  # exact, so there is no count of false positives
    }


def has_law(design: Fresh) -> bool:
    """Returns False if left-out canaries, if any, refute their null distribution at LAW_LEVEL."""
    is_out = design.is_out()
    if not is_out.any():
        return True
    if design.draws:  # scores are ranks
        return measure_law(design.ranks(), is_out, design.draws) >= LAW_LEVEL
    return law_test(design.out(), design.dimension) >= LAW_LEVEL


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """Returns the p-value of a test of whether left-out cosines have their null distribution in R^d.

    The cosines, (n,) or (R, K), must be independent: each has a different direction, and the other vectors do
    not depend on these directions.
    """
    values = np.ravel(cosines)
    # Under the null, these deviates are N(0, 1): they have the cosines' tail probabilities and signs.
    log_tails = cosine_law.log_sf(np.abs(values), dimension)
    deviates = np.copysign(special.ndtri_exp(log_tails), values)
    return gaussians.measure_normality(deviates, values.size)


def compute_exceedances(design: Fresh) -> Exceedances:
    """Returns the fraction of each run's inserted canaries above each threshold, and the exact null rates.

    We skip runs without inserted canaries. The first run's p-values are included if rows are in start order
    and have at least 500 canaries.
    """
    levels = cosine_of(claimed_curve.THRESHOLDS, design.dimension)
    fractions = _compute_fractions(_select_present(design), levels)
    in_order = design.in_order or len(design.cosines) == 1  # a single run is always in order
    first_log_p_values = np.zeros(0)
    if in_order and has_many_canaries(design):
        first_log_p_values = _compute_log_p_values(design)
    return Exceedances(
        fractions,
        compute_log_rates(design, levels),
        in_order,
        first_log_p_values=first_log_p_values,
    )


def summarise_design(design: Fresh) -> ScoreSummary:
    """Summarises the scores of inserted canaries for simulations.

    A score is the cosine t on the scale of Student's T, t sqrt(d - 1) / sqrt(1 - t^2). A failed run's scores
    are -10, below all thresholds.
    """
    remainder = np.maximum(1 - design.cosines**2, _TINY)  # the cosines of a failed run are -1
    student = design.cosines * np.sqrt((design.dimension - 1) / remainder)
    scores = np.maximum(student, -10.0)
    runs = _select_present(design._replace(cosines=scores))
    means = np.array([run.mean() for run in runs])
    deviations = np.concatenate([run - run.mean() for run in runs])
    canaries = round(deviations.size / means.size)  # per run
    degrees = deviations.size - means.size  # degrees of freedom: we fit a mean to each run
    # With one canary per run, we cannot tell these two deviations apart, and assume the values of a null.
    within = 1.0
    between = 0.0
    if degrees > 0:
        within = np.sqrt(deviations @ deviations / degrees)
        if len(runs) > 1:
            # The observed means also vary because of the deviations within runs.
            excess = means.var(ddof=1) - within**2 / canaries
            between = np.sqrt(max(excess, 0.0))
    return ScoreSummary(
        mean=means.mean(), between=between, within=within, runs=len(runs), canaries=canaries
    )


def expand_to_runs(design: Fresh, values: Array) -> Array:
    """Returns values after each of R runs, given the values (P,) after each run with an inserted canary.

    A run without inserted canaries keeps the previous value, or 0 if it comes first.
    """
    num_present = np.cumsum(design.presence.any(axis=1))  # runs with inserted canaries so far
    return np.append(0.0, values)[num_present]


def _select_present(design: Fresh) -> list[Array]:
    """Returns the inserted canaries' cosines, (K,) for each run with any; raises InputError if none has."""
    rows = zip(design.cosines, design.presence, strict=True)
    runs = [row[bits] for row, bits in rows if bits.any()]
    require(runs, "no canary is in: train more runs")
    return runs


def _choose_assumption(design: Fresh) -> Assumption:
    """Returns the bound's assumption: for a user's data (`given`), that canaries were drawn as reported.

    With `draws`, scores are ranks among fresh draws; else, they are cosines.
    """
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


_OF_GDP = "epsilon is for a GDP guarantee"
_ANY_GDP = Assumption(
    text="a GDP guarantee",
    word="any GDP",
    sentence=f"{_OWN.sentence}; {_OF_GDP}",
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
      on_ramps: The fraction of the initial capital that bets on ramps, increasing step functions of the
        cosine; the rest bets on thresholds.
      staked: The fraction of each part of the capital that is staked on this bet.
      win: Maps epsilon to the payoff of a stake of 1; its mean is at most 1 under (epsilon, delta)-DP.
      chosen: The threshold, as a cosine, that was chosen using half of the canaries; None if there is none.
    """

    on_ramps: float
    staked: float
    win: Callable[[float], float]
    chosen: float | None = None


class Capital:
    """The capital of a mixture of bets against each epsilon, which multiply it in each run (`log_factors`).

    It has T * C components for T thresholds and C bets, grouped by threshold, followed by V components for
    ramps. The total starts at 1.
    """

    def __init__(self, design: Fresh, delta: float) -> None:
        """Splits the starting capital among the components, and counts the cosines above thresholds."""
        runs = _select_present(design)
        self.num_runs = len(runs)  # only runs with an inserted canary
        self.first_bet = _plan_first_bet(runs, design, delta)
        self._delta = delta
        self._levels = cosine_of(STUDENT, design.dimension)  # the thresholds, as cosines
        self._log_rates = compute_log_rates(design, self._levels)
        self._fractions = _compute_fractions(runs, self._levels)  # (R, T)
        # Run i has the fractions _distinct_rows[_row_indices[i]].
        self._distinct_rows, self._row_indices = np.unique(
            self._fractions, axis=0, return_inverse=True
        )

        by_threshold = claimed_curve.split_capital(_NEAR_STUDENT.size, _FAR_STUDENT.size)
        on_ramps = self.first_bet.on_ramps
        on_thresholds = (1 - on_ramps) * by_threshold[:, None] * _BET_FRACTIONS  # (T, C)
        by_ramp = np.full(_SHIFTS.size, on_ramps / _SHIFTS.size)
        self.log_start = np.log(np.append(on_thresholds, by_ramp))  # (T * C + V,)

    def log_factors(self, fractions: Array, epsilon: float) -> Array:
        """Returns the log factors (n, T * C + V) by which n runs multiply the capital of each component.

        `fractions` (n, T) are h(t), the fractions of each run's cosines above the thresholds t. If epsilon is
        true, their means are at most m(t) = e^epsilon a(t) + delta. A bet c at t has the factor

            1 + c (h(t) / m(t) - 1).

        A ramp 1 + sum_t b_t 1{x > t} has the factor (1 + sum_t b_t h(t)) / (1 + sum_t b_t min(m(t), 1)). Our
        ramps are likelihood ratios of N(nu, 1) to N(0, 1), divided by e^epsilon and clipped to [1, 20].
        The three sizes are T thresholds, C bets and V ramps.
        """
        largest_means = _limit_means(epsilon, self._log_rates, self._delta)  # m(t)
        gains = fractions / largest_means - 1
        bets = np.log1p(gains[..., None] * BETS)  # (n, T, C)
        shifts = _SHIFTS[:, None]  # nu
        log_ratios = shifts * (STUDENT - shifts / 2)  # of N(nu, 1) to N(0, 1), (V, T)
        log_heights = np.clip(log_ratios - epsilon, 0.0, np.log(_RAMPS_TOP))
        # b_t, the rise of each ramp at threshold t; ramps are 1 below all thresholds, (V, T).
        rises = np.diff(np.exp(log_heights), axis=1, prepend=1.0)
        observed = 1 + fractions @ rises.T  # (n, V)
        largest_expected = 1 + rises @ np.minimum(largest_means, 1.0)  # (V,)
        ramps = np.log(observed / largest_expected)
        return np.hstack([bets.reshape(len(fractions), _NUM_THRESHOLD_BETS), ramps])

    def compute_log(self, runs: int, epsilon: float) -> Array:
        """Returns the log capital (T * C + V,) of each component against epsilon after the first `runs` runs.

        Component j starts with a capital s_j, and stakes a fraction w of it on the first bet. Let f_j(i) be
        its factor in run i (`log_factors`). Its capital is

            s_j ((1 - w) f_j(0) + w win(epsilon)) prod_{i = 1}^{runs - 1} f_j(i).
        """
        staked = self.first_bet.staked
        first_factors = self.log_factors(self._fractions[:1], epsilon)[0]
        log_not_staked = np.log1p(-staked) + first_factors
        log_won = np.log(max(staked * self.first_bet.win(epsilon), _TINY))
        after_first = np.logaddexp(log_not_staked, log_won) + self.log_start
        # The number of later runs with each distinct row, whose factors we compute only once.
        counts = np.bincount(self._row_indices[1:runs], minlength=len(self._distinct_rows))
        occur = counts > 0
        return after_first + counts[occur] @ self.log_factors(self._distinct_rows[occur], epsilon)

    def find_richest_threshold(self, epsilon: float) -> float:
        """Returns the threshold, as a cosine, with the most capital against epsilon after all runs.

        If the only run's canaries were used to choose a threshold, we return that one.
        """
        chosen = self.first_bet.chosen
        if self.num_runs == 1 and chosen is not None:
            return chosen
        on_thresholds = self.compute_log(self.num_runs, epsilon)[:_NUM_THRESHOLD_BETS]
        by_threshold = special.logsumexp(on_thresholds.reshape(STUDENT.size, BETS.size), axis=1)
        return self._levels[by_threshold.argmax()]

    def find_first_unrefuted(self, runs: int, start: int, target: float) -> int:
        """Returns the smallest k >= `start` such that the first `runs` runs do not refute k * _EPSILON_STEP.

        They refute an epsilon if the log capital against it reaches `target`.
        """

        def need_ramps(k: int) -> bool:
            """Returns True if the capital on thresholds alone does not refute k * _EPSILON_STEP."""
            log_capital = self.compute_log(runs, k * _EPSILON_STEP)[:_NUM_THRESHOLD_BETS]
            return np.logaddexp.reduce(log_capital) < target

        # The capital on thresholds decreases as epsilon grows, so we bisect to find the first k that it does
        # not refute.
        leap = 1
        while not need_ramps(start + leap):
            leap *= 2
        k = start + bisect_left(range(start, start + leap), True, key=need_ramps)
        # With the capital on ramps, which may increase, we search step by step.
        while np.logaddexp.reduce(self.compute_log(runs, k * _EPSILON_STEP)) >= target:
            k += 1
        return k

    def find_path(self, target: float) -> Array:
        """Returns the bound on epsilon after each run, (R,); a log capital of `target` refutes an epsilon."""
        bounds = []
        first_unrefuted = 0  # the smallest k whose epsilon, k * _EPSILON_STEP, is not refuted
        # Each component's log capital against that epsilon after the current run.
        log_capital = self.compute_log(1, 0.0)
        for run in range(self.num_runs):
            if run:  # `log_capital` already includes run 0
                factors = self.log_factors(self._fractions[[run]], first_unrefuted * _EPSILON_STEP)
                log_capital = log_capital + factors[0]
            if np.logaddexp.reduce(log_capital) >= target:
                first_unrefuted = self.find_first_unrefuted(run + 1, first_unrefuted, target)
                log_capital = self.compute_log(run + 1, first_unrefuted * _EPSILON_STEP)
            bounds.append(max(first_unrefuted - 1, 0) * _EPSILON_STEP)
        return np.array(bounds)


def _compute_fractions(runs: list[Array], levels: Array) -> Array:
    """Returns the fraction of each run's K cosines above each of T levels, of shape (R, T)."""
    fractions = []
    for cosines in runs:
        not_above = np.searchsorted(np.sort(cosines), levels, side="right")
        fractions.append((cosines.size - not_above) / cosines.size)
    return np.array(fractions)


def _plan_first_bet(runs: list[Array], design: Fresh, delta: float) -> FirstBet:
    """Returns the bet on the first of the runs, and the initial split of the capital.

    `runs` are the inserted canaries' cosines, (K,) for each run with any. If several runs are in an unknown
    order, the stake is 0, because any of them may be the first.
    """
    # Any split and stake give a valid bound.
    if has_many_canaries(design):
        win = _bet_at_tested_rates(_compute_log_p_values(design), delta)
        bet = FirstBet(on_ramps=0.1, staked=claimed_curve.FIRST_STAKE, win=win)
    else:
        bet = _bet_on_few(runs[0], design, delta)
    if design.in_order or len(runs) == 1:
        return bet
    return bet._replace(staked=0.0)


def _bet_on_few(cosines: Array, design: Fresh, delta: float) -> FirstBet:
    """Returns the bet on the first run's cosines (K,), at thresholds that do not depend on epsilon."""
    levels = cosine_of(np.arange(1.5, 7.1, 0.5), design.dimension)  # likely thresholds
    log_rates = compute_log_rates(design, levels)
    fractions = _compute_fractions([cosines], levels)[0]

    def win(epsilon: float) -> float:
        """Returns the payoff of a stake of 1, evenly split among the likely thresholds."""
        return (fractions / _limit_means(epsilon, log_rates, delta)).mean()

    # A first run with more canaries proves more, so we stake more. Any stake is valid.
    if design.cosines.shape[1] < 2 * _MIN_PILOT:
        return FirstBet(on_ramps=0.5, staked=0.1, win=win)
    bet = FirstBet(on_ramps=0.1, staked=0.3, win=win)
    # Canaries can choose a threshold for others only if the others' scores do not depend on them.
    if design.separate and cosines.size >= 2 * _MIN_PILOT:
        return _bet_on_half(bet, cosines, design, delta)
    return bet


def _bet_at_tested_rates(log_p_values: Array, delta: float) -> Callable[[float], float]:
    """Returns a map from epsilon to the payoff of bets on p-values at rates that depend on epsilon.

    `log_p_values` (K,) are those of the first run's canaries, in ascending order.
    """
    powers = claimed_curve.choose_refuting_powers(log_p_values.size)

    def win(epsilon: float) -> float:
        """Returns the payoff of a stake of 1, evenly split among bets at the rates a = power / e^epsilon."""
        log_rates = np.log(powers) - epsilon
        # Epsilon allows a fraction of e^epsilon a + delta = power + delta.
        return claimed_curve.compute_payoff(log_p_values, log_rates, powers + delta)

    return win


def _bet_on_half(bet: FirstBet, cosines: Array, design: Fresh, delta: float) -> FirstBet:
    """Returns a bet that is mostly on a threshold chosen for half of the first run's cosines (n,).

    The threshold is chosen using the other half. A fifth of the stake remains on `bet`.
    """
    pilot, rest = split_pilot(cosines, cosines.size // 2)
    threshold = _choose_threshold(cosines[pilot], rest.size, design.dimension)
    log_rate = float(compute_log_rates(design, threshold))  # that a left-out canary exceeds it
    hits = (cosines[rest] > threshold).mean()

    def win(epsilon: float) -> float:
        """Returns the payoff of a stake of 1, most of it on hits: cosines above the chosen threshold t.

        Let P_in and P_out be the probabilities if a canary is inserted or left out. (epsilon, delta)-DP
        implies P_in(t chosen, hit) <= e^epsilon P_out(t chosen) a(t) + d(t), where the sum of d(t) over t is
        at most delta. We divide the fraction of hits by the larger of e^epsilon a(t) / (1 - eta) and delta /
        eta. So the first term adds at most 1 - eta to its mean, and the second eta.
        """
        eta = 0.1  # any eta and fraction between 0 and 1 are valid
        by_epsilon = np.exp(min(epsilon + log_rate, _MAX_LOG))  # e^epsilon a(t)
        largest_mean = max(by_epsilon / (1 - eta), delta / eta)
        chosen_fraction = 0.8
        return chosen_fraction * (hits / largest_mean) + (1 - chosen_fraction) * bet.win(epsilon)

    # The threshold suits these canaries, so we stake most of the capital. Any stake is valid.
    return bet._replace(staked=0.9, win=win, chosen=threshold)


def has_many_canaries(design: Fresh) -> bool:
    """Returns True if a run has enough canaries for bets at thresholds that depend on the tested claim."""
    return design.cosines.shape[1] >= claimed_curve.MIN_FIRST


def _compute_log_p_values(design: Fresh) -> Array:
    """Returns the ascending log p-values (K,) of the canaries in the first run with inserted canaries.

    A canary's p-value is the probability that a left-out canary scores at least as high.
    """
    first_run = np.argmax(design.presence.any(axis=1))
    if design.draws:  # scores are ranks among fresh draws; 1 is the highest
        log_p_values = np.log(design.ranks() / (design.draws + 1))
    else:
        log_p_values = cosine_law.log_sf(design.cosines, design.dimension)
    # Without a lower limit, a p-value of 0 would refute every epsilon.
    inserted = log_p_values[first_run][design.presence[first_run]]
    return np.sort(np.maximum(inserted, -_MAX_LOG))


def split_pilot(values: Array, size: int) -> tuple[Integers, Integers]:
    """Draws `size` of the values (n,) as a pilot; returns shuffled indices of (the pilot, the others).

    The seed is a hash of the values' ranks, so the draw does not depend on their scale.
    """
    ranks = np.unique(values, return_inverse=True)[1]
    order = np.random.default_rng(hash_ranks(ranks)).permutation(values.size)
    return order[:size], order[size:]


def _choose_threshold(pilot: Array, canaries: int, dimension: int) -> float:
    """Returns the threshold, as a cosine, that should prove the largest epsilon for the other `canaries`.

    We model their cosines as normal, with a fit to the pilot's cosines (n,), and maximize log(h / a). Here h
    is the expected fraction above the threshold minus two standard deviations, and a is the probability that
    a left-out canary exceeds it.
    """
    root = np.sqrt(dimension)
    # A grid of cosines times sqrt(d). `geomspace` needs an endpoint above 10, even if the dimension is small.
    near = np.arange(100) / 10
    far = np.geomspace(10, max(root, 11), 400)
    scaled = np.append(near, far)
    thresholds = scaled[scaled < root] / root  # cosines are below 1
    spread = max(pilot.std(), 1e-12)  # above 0 even if all cosines are equal
    expected = special.ndtr((pilot.mean() - thresholds) / spread)
    deviation = np.sqrt(expected / canaries)  # of a Poisson count, divided by `canaries`
    sure_fraction = np.maximum(expected - 2 * deviation, 0.0)
    with np.errstate(divide="ignore"):
        predicted = np.log(sure_fraction) - cosine_law.log_sf(thresholds, dimension)
    return float(thresholds[np.argmax(predicted)])
