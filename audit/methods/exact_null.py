"""The exact null: a lower bound on epsilon from runs whose canaries are uniform directions, all of them in.

A canary's direction v is uniform on the sphere of R^d, drawn afresh for every run and canary. Whatever vector
u is computed from the released model without v, in the world without v the cosine of u and v exceeds t with a
probability a(t) that is known exactly, however small (`cosine_law`). DP holds for each fixed v; averaged over
v, at every threshold t,

    P_in(cosine > t) <= e^epsilon a(t) + delta,

so that only runs with the canary are needed, and only true positives are counted. With K canaries in, the
neighbour of canary j is the training run with the other K - 1, and the inequality holds for the mean over j
too: h_i(t), the share of run i's cosines above t, has a mean of at most m(t) = e^epsilon a(t) + delta given
the runs before it, however the canaries of a run depend on each other.

A gambler against epsilon may bet the share c of his capital on h(t) in every run, or bet on a ramp: for
f(x) = 1 + sum_t b_t 1{x > t} with any b >= 0, the mean of f over a run's cosines is on average at most
1 + sum_t b_t m(t). After n runs he has

    prod_i (1 + c (h_i(t) / m(t) - 1))    or    prod_i (1 + sum_t b_t h_i(t)) / (1 + sum_t b_t m(t)),

nonnegative supermartingales from 1 if epsilon is true. So is a mixture of such bets with fixed shares, and by
Ville's inequality it ever reaches 1 / error with probability at most `error`: the bound holds at all numbers
of runs at once, wherever the audit stops. It is the least epsilon of a grid that was never refuted, less a
step.

"Ever" is along the order in which runs were begun. Rows of a file come in any order, even sorted, and the
largest capital along a sorted file proves nothing. The capital after all rows is a product, the same
in every order: where the order is not vouched for, that alone decides.

Thresholds lie on the scale of Student's T, x. Ramps are likelihood ratios of N(nu, 1) and N(0, 1) over
e^epsilon, cut at 1 and at 20, which is what grows fastest where canaries shift cosines by nu. In the first
run a part of the capital is bet whole on the mean of likely thresholds, as Markov's inequality does, and goes
on in the mixture with what it won; where the order is not vouched for, only if there is no other run.

One run alone pays the logarithm of the number of thresholds. Where a cosine uses nothing of other canaries'
directions (`plain`: no leave-one-out), half of the first run's canaries chooses a threshold for the other
half: given the former, the law of each of the latter is what it was. As P_in(t chosen, hit) <= e^epsilon
P_out(t chosen) a(t) + d(t), where the d(t) sum to delta at most, the share of hits over max(e^epsilon a(t) /
(1 - eta), delta / eta) has a mean of at most (1 - eta) + eta = 1.
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
LAW_LEVEL = 1e-6  # below it canaries that are out refute the law

# Thresholds on the scale of Student's T: a quarter apart where the usual claims put scores, 1 apart beyond,
# where only training runs that leak far more have any.
STUDENT = np.concatenate([np.arange(0.5, 9.51, 0.25), np.arange(10.0, 41.0)])
_FAR = 10.0  # thresholds from there on
_FAR_SHARE = 0.05  # of the capital, on those
# c, the shares of a component's capital that it stakes on each run. The best c falls with the number of runs
# and rises with the share of cosines that exceed the threshold, so that they spread evenly in logarithms, and
# half of the capital is on the largest three: a few runs decide most audits.
BETS = np.concatenate([np.geomspace(3e-4, 0.9, 12), [0.97, 0.995]])
_BET_SHARES = np.concatenate([np.full(11, 0.5 / 11), [0.1, 0.1, 0.3]])
# nu of the ramps, in deviations of a cosine: from a leak that hardly shows to one far beyond usual claims.
_SHIFTS = np.geomspace(0.5, 12.0, 24)
_RAMPS_TOP = 20.0  # where ramps are cut: 20 times the stake refutes at confidence 0.95

_LIKELY = np.arange(1.5, 7.1, 0.5)  # thresholds whose mean is bet whole on the first run
# Canaries that choose a threshold for others: the least that show where most of them lie.
_LEAST_PILOT = 20
_CHOSEN_SHARE = 0.8  # of what is bet whole, on the chosen threshold; the rest on the likely ones
_ETA = 0.1  # of the module's docstring: the share of m that is delta's

_STEP = 2.0**-6  # of epsilon
_TINY = 1e-300
_LARGEST_LOG = 700.0  # exp of more overflows


def compute_log_rates(design: Fresh, levels: ArrayLike) -> Array:
    """Returns the log of the probability that a canary's cosine exceeds each level if the canary is out.

    If the score is a rank among M fresh draws (`design.draws`), the probability is rounded down to a multiple
    of 1 / (M + 1), but is at least 1 / (M + 1): ranks have no other probabilities.

    Args:
      design: The design, with its dimension and number of fresh draws.
      levels: Cosines, any shape, which the result has.
    """
    log_rates = cosine_law.log_sf(levels, design.dimension)
    if not design.draws:
        return log_rates
    ranks = np.maximum(np.floor(np.exp(log_rates) * (design.draws + 1)), 1)
    return np.asarray(np.log(ranks / (design.draws + 1)))


def cosine_of(student: ArrayLike, dimension: int) -> Array:
    """Returns the cosine t / sqrt(d - 1 + t^2) of a value t of Student's T with d - 1 degrees of freedom."""
    t = np.asarray(student, np.float64)
    return np.asarray(t / np.sqrt(dimension - 1 + t * t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionsMethod(Method):
    """A method for fresh directions.

    Attributes:
      compute: Maps (design, delta, confidence) to the method's bound.
    """

    compute: Callable[[Fresh, float, float], Bound]


def bound_directions(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound on epsilon of the method "exact_null", from a design's cosines.

    A gambler bets against each epsilon, run by run, that more cosines exceed thresholds than (epsilon, delta)
    allows. Capital of 1 / (1 - confidence) refutes the epsilon, and the bound is the largest that is refuted.
    Only canaries that are in are bet on; runs without any are skipped, but some run must have one.

    Where rows are in the order in which runs were begun, the bound holds after each run, and the last is
    returned. Otherwise only the capital after all runs decides, and `path` is empty.

    The reported threshold has most of the capital at the end. Of a single run it is the threshold that half
    of the canaries chose, if they chose one. Where canaries that are out refute the law of cosines, epsilon
    is 0 and the bound is marked as not holding.

    Args:
      design: The cosines, or ranks stored as cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    conversions.require_levels(delta, confidence)
    runs = _select_present(design)
    capital = Capital(design, delta)
    target = -float(np.log(1 - confidence))  # the log capital that refutes an epsilon
    if design.in_order:
        path = expand_to_runs(design, capital.find_path(target))
        epsilon = float(path[-1])
    else:
        path = np.zeros(0)
        epsilon = max(capital.find_first_unrefuted(len(runs), 0, target) - 1, 0) * _STEP
    threshold = capital.start.level
    if len(runs) > 1 or threshold is None:
        on_thresholds = capital.compute_log(len(runs), epsilon)[: STUDENT.size * BETS.size]
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

    Nothing is assumed of the law of scores that are in. Epsilon is what a mu-GDP guarantee would state at
    delta; it does not bound the epsilon of another trade-off curve. Where canaries that are out refute the
    exact law, mu and epsilon are 0 and the bound is marked as not holding. The reported threshold is that on
    which most of the capital is, in the test of this mu.

    Args:
      design: The cosines, or ranks stored as cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    conversions.require_levels(delta, confidence)
    counted = count_exceedances(design)
    holds = has_law(design)
    mu = claimed_curve.find_least_mu(counted, confidence) if holds else 0.0
    path = np.zeros(0)  # empty where the order is not vouched for
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

    Of ranks among M fresh draws the threshold is shown as the largest rank that counts as above it: its rate
    times M + 1. Low ranks stand for high cosines.
    """
    present = design.cosines[design.presence]
    rate = float(np.exp(compute_log_rates(design, threshold)))
    shown = float(np.rint(rate * (design.draws + 1))) if design.draws else threshold
    return {
        "threshold": shown,
        "false_positives": 0,  # none are counted: their rate is known exactly
        "false_negatives": int(np.count_nonzero(present <= threshold)),
        "n_in": len(present),
        "n_out": int((~design.presence).sum()),
        "false_positive_rate": rate,
    }


def has_law(design: Fresh) -> bool:
    """Returns False where canaries that are out refute the exact law, at LAW_LEVEL; True without any.

    The law is that of their cosines or, if there are fresh draws, that of their ranks among the draws.
    """
    if not design.is_out().any():
        return True
    if design.draws:
        return measure_law(design.ranks(), design.is_out(), design.draws) >= LAW_LEVEL
    return law_test(design.out(), design.dimension) >= LAW_LEVEL


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """Returns the p-value of a test whether cosines of canaries that are out have their law in R^d.

    That is the law of the cosine between a fixed and a uniform direction. The cosines, (n,) or (R, K), must
    be independent. It is enough that each belongs to a direction of its own, and that the vectors on the
    other side depend on none of these directions. They are mapped to normal deviates of the same probability
    (`gaussians.measure_normality`).

    At LAW_LEVEL the test detects in 9 of 10 audits that `dimension` is too large or too small: by a factor of
    1.2 with 2,600 cosines, of 1.5 with 520, and of 2 with 210.
    """
    values = np.ravel(cosines)
    log_tails = cosine_law.log_sf(np.abs(values), dimension)
    deviates = np.copysign(special.ndtri_exp(log_tails), values)
    return gaussians.measure_normality(deviates, values.size)


def count_exceedances(design: Fresh) -> Exceedances:
    """Returns which share of each run's canaries exceeds each threshold of `claimed_curve`.

    Only canaries that are in count; runs without any are skipped.
    """
    levels = cosine_of(claimed_curve.THRESHOLDS, design.dimension)
    shares = np.stack([_compute_shares(run, levels) for run in _select_present(design)])
    in_order = design.in_order or len(design.cosines) == 1
    return Exceedances(shares, compute_log_rates(design, levels), in_order)


def summarise_design(design: Fresh) -> ScoreSummary:
    """Returns the summary of a design's scores for simulations, on the scale of Student's T.

    A cosine c in R^d is c sqrt(d - 1) / sqrt(1 - c^2) on that scale. Only canaries that are in count. A
    failed run has the cosine -1, whose T would drown the mean of all scores: it is raised to -10, below all
    thresholds.
    """
    runs = []
    for run in _select_present(design):
        student = run * np.sqrt((design.dimension - 1) / np.maximum(1 - run * run, _TINY))
        runs.append(np.maximum(student, -_FAR))
    return summarise_scores(runs)


def expand_to_runs(design: Fresh, values: Array) -> Array:
    """Returns values (R,) after each of a design's runs, from those after each run that has a canary in.

    A run without any canary in tells nothing, and leaves the value as it is: 0 before the first with any.

    Args:
      design: The design, whose runs are in the order in which they were begun.
      values: (P,), values after each of the P runs that have a canary in.
    """
    return np.append(0.0, values)[np.cumsum(design.presence.any(axis=1))]


def _select_present(design: Fresh) -> list[Array]:
    """Returns the cosines of each run's canaries that are in, an array (K,) for each run that has any.

    Raises InputError where no run has any, as a single run of a few canaries may.
    """
    present = [row[bits] for row, bits in zip(design.cosines, design.presence, strict=True)]
    runs = [run for run in present if len(run)]
    require(runs, "no canary is in: train more runs")
    return runs


def _choose_assumption(design: Fresh) -> Assumption:
    """Returns what the bound assumes: nothing where this tool drew the canaries and trained all runs.

    If the design was given by a user, the bound assumes that canaries were drawn as the user says. If several
    runs are declared to be in order, it assumes that order too.
    """
    if not design.given:
        return _OWN_RANKS if design.draws else _OWN
    given = _GIVEN_RANKS if design.draws else _GIVEN
    if not design.in_order or len(design.cosines) == 1:
        return given
    return given._replace(
        text=f"{given.text}, rows in the order in which runs started",
        sentence=f"{given.sentence}; rows in the order in which runs started, as reported",
        note=f"{given.note}; rows in the order in which runs started",
    )


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
    """How the capital begins, and what is bet on the first run.

    Attributes:
      ramps: The share of the capital that is on ramps; the rest is on thresholds.
      whole: The share of each component's capital that is bet whole on the first run.
      won: Maps epsilon to what a capital of 1 becomes that is bet whole on the first run.
      level: The cosine chosen as the threshold of that bet by half of the run's canaries; None where it bets
        only on likely thresholds.
    """

    ramps: float
    whole: float
    won: Callable[[float], float]
    level: float | None = None


class Capital:
    """The capital of a mixture of bets against epsilon, as a function of epsilon.

    There is a component for each pair of a threshold and one of BETS, and one for each ramp: those of the
    first threshold, those of the second, ..., then the ramps, T * C + V in all. Components begin with shares
    of the capital of 1.
    """

    def __init__(self, design: Fresh, delta: float) -> None:
        runs = _select_present(design)
        levels = cosine_of(STUDENT, design.dimension)  # the thresholds, as cosines
        self.start = _make_start(runs, design, delta)
        self._delta = delta
        self._log_rates = compute_log_rates(design, levels)
        self._shares = np.stack([_compute_shares(run, levels) for run in runs])  # (R, T)
        # Runs with few canaries have few distinct rows of shares: each is computed once.
        self._rows, self._places = np.unique(self._shares, axis=0, return_inverse=True)

        is_near = STUDENT < _FAR
        near_share = (1 - _FAR_SHARE) / is_near.sum()
        threshold_shares = np.where(is_near, near_share, _FAR_SHARE / (~is_near).sum())
        on_thresholds = (1 - self.start.ramps) * threshold_shares[:, None] * _BET_SHARES
        on_ramps = np.full(len(_SHIFTS), self.start.ramps / len(_SHIFTS))
        self.log_shares = np.log(np.append(on_thresholds, on_ramps))

    def log_factors(self, shares: Array, epsilon: float) -> Array:
        """Returns the log of the factors (n, T * C + V) by which runs multiply the components' capital.

        With h(t) the share of a run's cosines above threshold t, and m(t) = e^epsilon a(t) + delta, it is

            1 + c (h(t) / m(t) - 1)                                      of a threshold t and a bet c
            (1 + sum_t b_t h(t)) / (1 + sum_t b_t min(m(t), 1))          of a ramp that rises by b_t at t.

        A ramp is the likelihood ratio of N(nu, 1) to N(0, 1) over e^epsilon, cut at 1 from below and at 20
        from above. If the mechanism is (epsilon, delta)-DP, each factor has a mean of at most 1 given the
        runs before.

        Args:
          shares: (n, T) h(t) of each run.
          epsilon: The epsilon that is bet against.
        """
        # The exponent is cut where exp would overflow.
        largest_means = np.exp(np.minimum(epsilon + self._log_rates, _LARGEST_LOG)) + self._delta
        bets = np.log1p((shares / largest_means - 1)[..., None] * BETS)  # (n, T, C)
        exponents = _SHIFTS[:, None] * (STUDENT - _SHIFTS[:, None] / 2) - epsilon
        heights = np.exp(np.clip(exponents, 0.0, np.log(_RAMPS_TOP)))
        rises = np.diff(heights, axis=1, prepend=1.0)  # b_t, (V, T)
        expected = 1 + rises @ np.minimum(largest_means, 1.0)
        ramps = np.log((1 + shares @ rises.T) / expected)
        return np.hstack([bets.reshape(len(shares), STUDENT.size * BETS.size), ramps])

    def compute_log(self, runs: int, epsilon: float) -> Array:
        """Returns the log capital (T * C + V,) of each component against epsilon after the first runs.

        Component j starts with a share s_j of the capital. A part w of it is staked entirely on a special bet
        on run 0, which turns a capital of 1 into won(epsilon). The rest is multiplied by f_j(0) in run 0
        (`log_factors`), and all of it by f_j(i) in each later run i:

            s_j ((1 - w) f_j(0) + w won(epsilon)) prod_{i = 1}^{n - 1} f_j(i).
        """
        start = self.start
        by_components = np.log1p(-start.whole) + self.log_factors(self._shares[:1], epsilon)[0]
        log_won = np.log(max(start.whole * start.won(epsilon), _TINY))
        after_first = np.logaddexp(by_components, log_won) + self.log_shares
        counts = np.bincount(self._places[1:runs], minlength=len(self._rows))
        occur = counts > 0
        grown = counts[occur] @ self.log_factors(self._rows[occur], epsilon)
        return np.asarray(after_first + grown)

    def find_first_unrefuted(self, runs: int, steps: int, target: float) -> int:
        """Returns the least k >= `steps` whose epsilon k * _STEP the capital after the first runs allows.

        Args:
          runs: The number of runs.
          steps: The first k that is tried.
          target: The log capital that refutes.
        """

        def is_refuted(step: int, components: int | None = None) -> bool:
            """Returns whether the capital on the first components refutes the epsilon step * _STEP."""
            capital = self.compute_log(runs, step * _STEP)[:components]
            return bool(special.logsumexp(capital) >= target)

        def is_left(step: int) -> bool:
            """Returns whether bets on thresholds do not refute the epsilon step * _STEP."""
            return not is_refuted(step, STUDENT.size * BETS.size)

        if not is_refuted(steps):
            return steps
        # The capital on thresholds falls with epsilon, which need not be so of the whole capital: after the
        # epsilons that it refutes each multiple is tried.
        leap = 1
        while not is_left(steps + leap):
            leap *= 2
        steps = bisect_left(range(steps + leap), True, lo=steps + leap // 2, key=is_left)
        while is_refuted(steps):
            steps += 1
        return steps

    def find_path(self, target: float) -> Array:
        """Returns the bound after each run, (R,), in multiples of _STEP.

        The multiples 0, 1, 2, ... of _STEP are refuted in this order, each by the capital after some run so
        far. The bound is the last multiple that is refuted, or 0.

        Args:
          target: The log capital that refutes.
        """
        bounds = []
        first_unrefuted = 0  # the least multiple of _STEP that is not refuted yet
        components = self.compute_log(1, 0.0)  # against that epsilon
        for run in range(len(self._shares)):
            if run:  # what `compute_log` would give, from the new run only
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
    """Returns how the capital begins: with a special bet on the first run, which stakes a part of it.

    Against an epsilon the bet turns a capital of 1 into h(t) / m(t), on average over likely thresholds t.
    h(t) is the share of the cosines above t, and m(t) = e^epsilon a(t) + delta, where a(t) is the rate at
    which a canary that is out exceeds t. If it is unknown which of several runs was first, nothing is bet.

    In a plain design, where no score depends on other canaries' directions, with at least 40 canaries in,
    half of the canaries chooses a threshold for the other half. Most of the bet is then on that threshold.
    (The module docstring proves that both bets are fair.)

    Args:
      runs: The cosines (K,) of each run's canaries that are in.
      design: The design.
      delta: The delta of the bound.
    """
    run = runs[0]
    levels = cosine_of(_LIKELY, design.dimension)
    log_rates = compute_log_rates(design, levels)
    shares = _compute_shares(run, levels)
    # A ramp gains by single far cosines, which are what few canaries show; many show shares above thresholds,
    # and prove much by the first run.
    has_many = design.cosines.shape[1] >= 2 * _LEAST_PILOT
    ramps = 0.1 if has_many else 0.5

    def win_on_likely(epsilon: float) -> float:
        """Returns what a capital of 1 becomes on the likely thresholds, against epsilon."""
        most = np.exp(np.minimum(epsilon + log_rates, _LARGEST_LOG)) + delta
        return float(np.mean(shares / most))

    if not design.in_order and len(runs) > 1:
        return Start(ramps, 0.0, win_on_likely)
    if not design.plain or len(run) < 2 * _LEAST_PILOT:
        return Start(ramps, 0.3 if has_many else 0.1, win_on_likely)

    # Half of the canaries, the pilot, chooses the threshold above which the others are counted.
    pilot_places, rest_places = split_pilot(run, len(run) // 2)
    rest = run[rest_places]
    level = _choose_threshold(run[pilot_places], len(rest), design.dimension)
    log_rate = float(compute_log_rates(design, level))
    share = float(np.mean(rest > level))

    def win_on_both(epsilon: float) -> float:
        """Returns what a capital of 1 becomes on the chosen and the likely thresholds, against epsilon."""
        # DP allows a share e^epsilon a(t) of hits above the chosen threshold t, and delta more over all
        # thresholds that might be chosen. The first is at most (1 - _ETA) `most`, the second at most _ETA
        # `most`. So the share of hits over `most` has a mean of at most 1, as a fair bet must.
        by_epsilon = np.exp(min(epsilon + log_rate, _LARGEST_LOG))
        most = max(by_epsilon / (1 - _ETA), delta / _ETA)
        chosen = share / most
        return float(_CHOSEN_SHARE * chosen + (1 - _CHOSEN_SHARE) * win_on_likely(epsilon))

    return Start(ramps, 0.9, win_on_both, level)


def split_pilot(values: Array, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws a pilot of a given size from values (n,); returns (the pilot's places, the places of the rest).

    Files may come sorted, so that the pilot is drawn at random. The draw is seeded by the values' ranks, so
    that the same values give the same pilot.
    """
    ranks = np.unique(values, return_inverse=True)[1]
    rng = np.random.default_rng(hash_ranks(ranks))
    order = rng.permutation(len(values))
    return order[:size], order[size:]


def _choose_threshold(pilot: Array, canaries: int, dimension: int) -> float:
    """Returns the threshold that promises the largest epsilon if further cosines are normal like the pilot's.

    It is the cosine where log(h / a) is largest: h is the share of cosines expected above it, less two
    standard deviations, and a the rate at which canaries that are out exceed it. Tenths of 1/sqrt(d) up to
    10/sqrt(d) are tried, then 400 cosines up to 1, each a constant factor above the last.

    Args:
      pilot: The cosines of the pilot's canaries.
      canaries: The number of further canaries, which the threshold is for.
      dimension: d.
    """
    # `units` are cosines times sqrt(d). Those of sqrt(d) or more, which no cosine below 1 has, are dropped.
    # The last one is at least 11: they ascend from 10 even where sqrt(d) is smaller.
    root = np.sqrt(dimension)
    units = np.concatenate([np.arange(0, 100) / 10, np.geomspace(10, max(root, 11), 400)])
    thresholds = units[units < root] / root
    spread = max(float(pilot.std()), 1e-12)  # cosines may all be equal
    share = special.ndtr((pilot.mean() - thresholds) / spread)
    # A few lucky canaries do not decide. Where nothing is left, the threshold is ruled out.
    sure_share = np.maximum(share - 2 * np.sqrt(share / canaries), 0.0)
    with np.errstate(divide="ignore"):
        promised = np.log(sure_share) - cosine_law.log_sf(thresholds, dimension)
    return float(thresholds[np.argmax(promised)])
