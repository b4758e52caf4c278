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
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.arrays import hash_ranks
from audit.evidence.canaries import Fresh
from audit.evidence.ranks import measure_law
from audit.laws import conversions, cosine_law
from audit.methods import claimed_curve
from audit.methods.claimed_curve import Exceedances, ScoreSummary, summarise_scores
from audit.methods.estimate import Bound
from audit.methods.method import FRESH_DIRECTIONS, Assumption, Method

Array = NDArray[np.float64]
Payoff = Callable[[float], float]  # epsilon -> what a capital of 1 becomes

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


class _Split(NamedTuple):
    """How the capital is split at the start.

    Attributes:
      ramps: The share of the capital that is on ramps; the rest is on thresholds.
      whole: The share of each component's capital that is bet whole on the first run.
    """

    ramps: float
    whole: float


# A ramp gains by single far cosines, which are what few canaries show; many show shares above thresholds. And
# many prove much by the first run alone, most of all where it may choose its threshold.
_SPLIT_OF_FEW = _Split(ramps=0.5, whole=0.1)
_SPLIT_OF_MANY = _Split(ramps=0.1, whole=0.3)
_SPLIT_OF_CHOSEN = _Split(ramps=0.1, whole=0.9)


class Proof(NamedTuple):
    """What runs prove.

    Attributes:
      epsilon: The bound from all runs; 0 where nothing is proven.
      path: (R,) the bound after each run, which never falls; empty where the order is not vouched for.
      threshold: The cosine (or what a rank is placed at) on which most capital is at the end; of one plain
        run, the threshold that half of its canaries chose.
      log_rate: The log of the probability that a cosine exceeds the threshold without its canary.
    """

    epsilon: float
    path: Array
    threshold: float
    log_rate: float


def prove(design: Fresh, delta: float, confidence: float) -> Proof:
    """Returns the bound on epsilon that a design's cosines prove, and the threshold and counts behind it.

    A gambler bets against each epsilon, run by run, that more cosines exceed thresholds than (epsilon, delta)
    allows. Capital of 1 / (1 - confidence) refutes the epsilon, and the bound is the largest that is refuted.
    Only canaries that are in are bet on; runs without any are skipped, but some run must have one.

    Where rows are in the order in which runs were begun, the bound holds after each run, and the last is
    returned. Otherwise only the capital after all runs decides, so that no order of rows changes anything.

    Args:
      design: The cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.

    Returns:
      The bound, its path over the runs (empty where the order is not given), the threshold that is reported,
      the numbers of cosines above it and in all, and the log of the rate of canaries out above it.
    """
    conversions.require_levels(delta, confidence)
    runs = _select_present(design)
    levels = cosine_of(STUDENT, design.dimension)  # the thresholds, as cosines
    log_rates = compute_log_rates(design, levels)
    shares = np.stack([_compute_shares(run, levels) for run in runs])
    # Beside the bets on every run, a part of the capital may be staked entirely on the first run, again on
    # many cosines above thresholds. If it has enough canaries, half of them may choose a threshold for the
    # other half. Of several runs the order has to say which was first.
    if design.in_order or len(runs) == 1:
        first = _make_first_bet(runs[0], design, delta)
    else:
        # The order of runs is unknown: nothing is bet whole on the first.
        first = _First(_split_usually(design)._replace(whole=0.0), lambda epsilon: 0.0)

    growth = _Growth(log_rates, delta, shares, first)
    target = -float(np.log(1 - confidence))  # the log capital that refutes an epsilon
    if design.in_order:
        path = expand_to_runs(design, _find_path(growth, len(runs), target))
        epsilon = float(path[-1])
    else:
        path = np.zeros(0)
        epsilon = _bound_after_all(growth, len(runs), target)

    # The reported threshold, as a cosine. Of a single run it is the threshold that half of its canaries chose
    # in the bet above. `first.level` is None where they chose none. Then, and for several runs, it is the
    # threshold with most of the capital at the end. Bets on thresholds are the first components of the
    # capital, and bets on ramps, which have no single threshold, come last.
    level = first.level
    if len(runs) > 1 or level is None:
        components = growth.log_capital(epsilon)[: len(levels) * len(BETS)]
        by_level = components.reshape(len(levels), len(BETS))
        log_capital_of_levels = special.logsumexp(by_level, axis=1)
        level = float(levels[log_capital_of_levels.argmax()])
    return Proof(epsilon, path, level, float(compute_log_rates(design, level)))


def compute_log_rates(design: Fresh, levels: ArrayLike) -> Array:
    """Returns the log of the probability that a canary's cosine exceeds each level if the canary is out.

    If the score is a rank among M fresh draws (`design.draws`), the probability is rounded down to a multiple
    of 1 / (M + 1), since ranks have no other probabilities. But it is at least 1 / (M + 1), the probability
    of the first rank. With no draws scores are cosines themselves.

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

    The method rests on an exact law of the cosines of canaries that are out. Where the design has such
    canaries and these refute the law, epsilon is 0 and the bound is marked as not holding.

    Args:
      design: The cosines, or ranks stored as cosines.
      delta: The delta of epsilon.
      confidence: The confidence of the bound.
    """
    proof = prove(design, delta, confidence)
    holds = has_law(design)
    return Bound(
        EXACT_NULL,
        proof.epsilon if holds else 0.0,
        None,
        delta,
        confidence,
        **_count_hits(design, proof.threshold, proof.log_rate),
        assumes=_choose_assumption(design),
        holds=holds,
        path=tuple((proof.path * holds).tolist()),
    )


def _count_hits(design: Fresh, threshold: float, log_rate: float) -> dict[str, Any]:
    """Returns the fields of a bound that count canaries above a threshold of a log rate, a cosine."""
    present = design.cosines[design.presence]
    return {
        "threshold": _show_threshold(design, threshold, log_rate),
        "false_positives": 0,  # none are counted: their rate is known exactly
        "false_negatives": int(np.count_nonzero(present <= threshold)),
        "n_in": len(present),
        "n_out": int((~design.presence).sum()),
        "false_positive_rate": float(np.exp(log_rate)),
    }


def has_law(design: Fresh) -> bool:
    """Returns False where canaries that are out refute the exact law, at LAW_LEVEL; True without any."""
    return _test_out(design) >= LAW_LEVEL


def count_exceedances(design: Fresh) -> Exceedances:
    """Returns which share of each run's canaries exceeds each threshold of `claimed_curve`.

    Only canaries that are in count; runs without any are skipped.
    """
    runs = _select_present(design)
    levels = cosine_of(claimed_curve.THRESHOLDS, design.dimension)
    log_rates = compute_log_rates(design, levels)
    shares = np.stack([_compute_shares(run, levels) for run in runs])
    return Exceedances(shares, log_rates, design.in_order or len(design.cosines) == 1)


def summarise_design(design: Fresh) -> ScoreSummary:
    """Returns the summary of a design's scores for simulations, on the scale of Student's T.

    A cosine c in R^d is c sqrt(d - 1) / sqrt(1 - c^2) on that scale. Only canaries that are in count.
    """
    root = np.sqrt(design.dimension - 1)
    runs = []
    for run in _select_present(design):
        # The divisor is kept above 0, so that the cosines 1 and -1 give finite numbers too.
        student = run * root / np.sqrt(np.maximum(1 - run * run, _TINY))
        # A failed run has the cosine -1. Its T, below -1e100, would drown the mean of all scores. It is
        # raised to -10, which is below all thresholds too.
        runs.append(np.maximum(student, -_FAR))
    return summarise_scores(runs, design.in_order)


def bound_gdp(design: Fresh, delta: float, confidence: float) -> Bound:
    """Returns the bound `exact_null_gdp`: the mu below which every GDP guarantee is refuted, and its epsilon.

    Nothing is assumed of the law of scores that are in. Epsilon is what a mu-GDP guarantee would state at
    delta; it does not bound the epsilon of another trade-off curve. The law of scores that are out is exact.
    Where canaries that are out refute it, mu and epsilon are 0 and the bound is marked as not holding.

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
    epsilons = [conversions.epsilon_from_mu(float(value), delta) for value in path]

    # The reported threshold is that on which most of the capital is, in the test of this mu.
    place = claimed_curve.find_main_threshold(counted, claimed_curve.gaussian_power(mu))
    threshold = float(cosine_of(claimed_curve.THRESHOLDS[place], design.dimension))
    return Bound(
        EXACT_NULL_GDP,
        conversions.epsilon_from_mu(mu, delta),
        mu,
        delta,
        confidence,
        **_count_hits(design, threshold, float(counted.log_rates[place])),
        assumes=_assume_gdp(_choose_assumption(design)),
        holds=holds,
        path=tuple(epsilons),
    )


def expand_to_runs(design: Fresh, values: Array) -> Array:
    """Returns values (R,) after each of a design's runs, from those after each run that has a canary in.

    A run without any canary in tells nothing, and leaves the value as it is: 0 before the first with any.

    Args:
      design: The design, whose runs are in the order in which they were begun.
      values: (P,), values after each of the P runs that have a canary in.
    """
    runs_with_any = np.cumsum(design.presence.any(axis=1))  # (R,), how many there are so far
    return np.append(0.0, values)[runs_with_any]


def _select_present(design: Fresh) -> list[Array]:
    """Returns the cosines of each run's canaries that are in, an array (K,) for each run that has any.

    Raises InputError where no run has any, as a single run of a few canaries may.
    """
    present = [row[bits] for row, bits in zip(design.cosines, design.presence, strict=True)]
    runs = [run for run in present if len(run)]
    require(runs, "no canary is in: train more runs")
    return runs


def _test_out(design: Fresh) -> float:
    """Returns the p-value of a test whether canaries that are out have the exact law.

    The law is that of their cosines or, if there are fresh draws, that of their ranks among the draws. The
    p-value is 1 where no canary is out.
    """
    cosines_out = design.out()
    if not len(cosines_out):
        return 1.0
    if design.draws:
        return measure_law(design.ranks(), design.is_out(), design.draws)
    return law_test(cosines_out, design.dimension)


def _show_threshold(design: Fresh, threshold: float, log_rate: float) -> float:
    """Returns the threshold on the scale of the scores, which are cosines or ranks.

    For cosines that is the threshold itself. For ranks among M fresh draws it is the largest rank that counts
    as above the threshold: the threshold's rate times M + 1. Low ranks stand for high cosines.

    Args:
      design: The design.
      threshold: The threshold as a cosine.
      log_rate: The log of the probability that a canary that is out exceeds it.
    """
    if not design.draws:
        return threshold
    return float(np.rint(np.exp(log_rate) * (design.draws + 1)))


def _choose_assumption(design: Fresh) -> Assumption:
    """Returns what the bound assumes: nothing where this tool drew the canaries and trained all runs.

    If the design was given by a user, the bound assumes that canaries were drawn as the user says. If several
    runs are declared to be in order, it assumes that order too.
    """
    # Ranks among fresh draws have other words than cosines.
    if not design.given:
        return _OWN_RANKS if design.draws else _OWN
    given = _GIVEN_RANKS if design.draws else _GIVEN
    if not design.in_order or len(design.cosines) == 1:
        return given
    return given._replace(
        text=f"{given.text}, rows in the order in which runs were begun",
        sentence=f"{given.sentence}; and rows in the order in which runs were begun, as they say too",
        note=f"{given.note}; rows in the order in which runs were begun",
    )


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """Returns the p-value of a test whether cosines of canaries that are out have their law in R^d.

    That is the law of the cosine between a fixed and a uniform direction. The cosines, (n,) or (R, K), must
    be independent. It is enough that each belongs to a direction of its own, and that the vectors on the
    other side depend on none of these directions. Such a vector is the movement of the model, or the part of
    it outside the span of the canaries that were in.

    Cosines are mapped to normal deviates of the same probability. A Kolmogorov-Smirnov test compares these
    with the normal law, and a chi-squared test looks at the sum of their squares. The p-value is twice the
    smaller of both (Bonferroni).

    At LAW_LEVEL the test detects in 9 of 10 audits that `dimension` is too large or too small: by a factor of
    1.2 with 2,600 cosines, of 1.5 with 520, and of 2 with 210.
    """
    from scipy import stats  # here, since it takes most of SciPy's time to load

    values = np.ravel(cosines)
    log_tails = cosine_law.log_sf(np.abs(values), dimension)
    # Normal deviates with the same tail probability as each cosine, on the same side of 0.
    deviates = np.copysign(special.ndtri_exp(log_tails), values)
    squares = float(deviates @ deviates)
    # Two-sided: deviates may be too large or too small.
    tail = min(stats.chi2.cdf(squares, values.size), stats.chi2.sf(squares, values.size))
    chi_squared_p = 2 * tail
    kolmogorov_p = stats.kstest(deviates, "norm").pvalue
    return float(min(2 * min(kolmogorov_p, chi_squared_p), 1.0))


_DRAWN = "uniform directions, drawn afresh for every run, unknown to a model trained without them"
_OWN = Assumption("nothing", "nothing", f"{_DRAWN}: this tool drew them")
_GIVEN = Assumption(
    "uniform directions, drawn afresh for every run",
    "directions",
    f"{_DRAWN}, as whoever gave the cosines says",
    "uniform ones, drawn afresh for every run, as whoever gave them says",
)
_DRAWN_ALIKE = "canaries and fresh draws from one generator, none selected after it was drawn"
_OWN_RANKS = Assumption("nothing", "nothing", f"{_DRAWN_ALIKE}: this tool drew them")
_GIVEN_RANKS = Assumption(
    "fresh draws from the canaries' generator",
    "draws",
    f"{_DRAWN_ALIKE}, as whoever gave the scores says",
    f"{_DRAWN_ALIKE}, as whoever gave them says",
)


def _assume_gdp(drawn: Assumption) -> Assumption:
    """Returns the assumption of an epsilon that is converted from a limit on mu.

    Epsilon assumes that the mechanism's guarantee is Gaussian (GDP), besides what the limit on mu assumes.

    Args:
      drawn: What the limit on mu assumes of how canaries were drawn.
    """
    # "nothing; a GDP guarantee" would make no sense.
    text = "a GDP guarantee" if drawn.word == "nothing" else f"{drawn.text}; a GDP guarantee"
    return Assumption(
        text=text,
        word="any GDP",
        sentence=f"{drawn.sentence}; epsilon is that of a GDP guarantee",
        note="no GDP guarantee below this mu holds; epsilon is what it would state",
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
        assumes=_assume_gdp(_OWN),
        label="any GDP guarantee",
        legend="any GDP guarantee (assumes nothing else)",
        compute=bound_gdp,
    ),
}


class _First(NamedTuple):
    """How the capital begins, and what is bet on the first run.

    Attributes:
      split: How the capital is split at the start.
      won: Maps epsilon to what a capital of 1 becomes that is bet whole on the first run.
      level: The cosine chosen as the threshold of that bet by half of the run's canaries; None where it bets
        on likely thresholds alone.
    """

    split: _Split
    won: Payoff
    level: float | None = None

    def log_won(self, epsilon: float) -> float:
        """Returns the log of what a component's bet on the first run becomes, for each 1 of its capital."""
        return float(np.log(max(self.split.whole * self.won(epsilon), _TINY)))


class _Growth:
    """The capital of a mixture of bets against epsilon, as a function of epsilon.

    A component bets on a threshold with one of BETS, or on a ramp. Runs after the first are counted by their
    distinct shares of exceeding cosines, so that the growth over all of them is computed at once for any
    epsilon.
    """

    def __init__(self, log_rates: Array, delta: float, shares: Array, first: _First) -> None:
        """Sets up the capital after the first run; later runs are added by `add_run`.

        Args:
          log_rates: (T,) the log of a(t), the rate at which a canary that is out exceeds each threshold t.
          delta: The delta of the bound.
          shares: (R, T) the share of each run's cosines above each threshold.
          first: How the capital is split at the start, and what is bet on the first run alone.
        """
        self._log_rates = log_rates
        self._delta = delta
        self._shares = shares
        self._first = first

        # For bets on a threshold, which depend on a single share of a run: the distinct shares, the index of
        # each (R, T), and how often each threshold had each share in the added runs. So a bet's growth over
        # equal shares is computed once.
        self._distinct_shares, places = np.unique(shares, return_inverse=True)
        self._share_places = places.reshape(shares.shape)
        self._share_counts = np.zeros((shares.shape[1], len(self._distinct_shares)))

        # For ramps, which depend on all shares of a run: the distinct rows of shares, the index of each run's
        # row (R,), and how many added runs have each row.
        self._distinct_runs, self._run_places = np.unique(shares, axis=0, return_inverse=True)
        self._run_counts = np.zeros(len(self._distinct_runs))

    def add_run(self, run: int) -> None:
        """Adds a run after the first, by its index, to those over which the capital has grown."""
        self._run_counts[self._run_places[run]] += 1
        thresholds = np.arange(len(self._share_counts))
        self._share_counts[thresholds, self._share_places[run]] += 1

    def log_factors(self, run: int, epsilon: float) -> Array:
        """Returns the log of the factor by which a run multiplies each component's capital against epsilon.

        With h(t) the share of the run's cosines above threshold t, and m(t) = e^epsilon a(t) + delta, it is

            1 + c (h(t) / m(t) - 1)                                      of a threshold t and a bet c
            (1 + sum_t b_t h(t)) / (1 + sum_t b_t min(m(t), 1))          of a ramp that rises by b_t at t.

        A ramp is a step function of the cosine, which begins at 1. Its mean over the run's cosines is divided
        by the most that (epsilon, delta)-DP allows for this mean on average.

        If the mechanism is (epsilon, delta)-DP, each factor has a mean of at most 1 given the runs before.

        Args:
          run: The index of the run.
          epsilon: The epsilon that is bet against.

        Returns:
          (T * C + V,) for T thresholds, C bets and V ramps, in the order of `log_capital`.
        """
        largest_means = self._compute_most(epsilon)
        rises = self._make_ramps(epsilon)
        gains = self._shares[run] / largest_means - 1
        bets = np.log1p(BETS * gains[:, None])
        ramps = np.log1p(rises @ self._shares[run]) - self._compute_expected(rises, largest_means)
        return np.append(bets, ramps)

    def log_capital(self, epsilon: float) -> Array:
        """Returns the log capital of each component against epsilon, after all runs that were added.

        There is a component for each pair of a threshold t and a bet c, and one for each ramp. Component j
        starts with a share s_j of the capital (`_split_capital`). A part w = `first.split.whole` of it is
        staked entirely on a special bet on run 0, which turns a capital of 1 into won(epsilon). The rest is
        multiplied by f_j(0) in run 0 (`log_factors`), and all of it by f_j(i) in each later run i. After runs
        0, ..., n - 1 the component has

            s_j ((1 - w) f_j(0) + w won(epsilon)) prod_{i = 1}^{n - 1} f_j(i).

        The capital of the whole mixture is the sum over the components.

        Args:
          epsilon: The epsilon that is bet against.

        Returns:
          (T * C + V,) for T thresholds, C bets and V ramps: the bets of the first threshold, those of the
          second, ..., then the ramps.
        """
        first = self._first
        log_shares = _split_capital(first.split.ramps)
        # s_j ((1 - w) f_j(0) + w won(epsilon)), in logs.
        by_components = np.log1p(-first.split.whole) + self.log_factors(0, epsilon)
        after_first = np.logaddexp(by_components, first.log_won(epsilon)) + log_shares

        # The pairs of a threshold and a distinct share that occurred in added runs, by threshold.
        thresholds, places = np.nonzero(self._share_counts)
        if not len(thresholds):
            return np.asarray(after_first)

        # Thresholds and bets: log f_j once for each of these pairs, times the number of runs that have it.
        # Each threshold's pairs follow each other, from `starts` on, and are summed: (T, C). No threshold is
        # without pairs, since each added run has a share above every threshold.
        largest_means = self._compute_most(epsilon)
        gains = (self._distinct_shares[places] / largest_means[thresholds] - 1)[:, None]
        log_bets = np.log1p(BETS * gains) * self._share_counts[thresholds, places][:, None]
        starts = np.searchsorted(thresholds, np.arange(len(largest_means)))
        bets = np.add.reduceat(log_bets, starts)

        # Ramps: log f_j once for each distinct run, a row of shares (T,), times the number of such runs.
        rises = self._make_ramps(epsilon)
        added = self._run_counts > 0
        log_ramps = np.log1p(self._distinct_runs[added] @ rises.T) - self._compute_expected(
            rises, largest_means
        )
        ramps = self._run_counts[added] @ log_ramps
        return np.asarray(after_first + np.append(bets, ramps))

    def _compute_most(self, epsilon: float) -> Array:
        """Returns m(t) = e^epsilon a(t) + delta of each threshold t, (T,).

        It is the most that the mean share of cosines above t can be under (epsilon, delta)-DP, where a canary
        that is out exceeds t at the rate a(t). The exponent is cut where exp would overflow.
        """
        return np.asarray(np.exp(np.minimum(epsilon + self._log_rates, _LARGEST_LOG)) + self._delta)

    def _make_ramps(self, epsilon: float) -> Array:
        """Returns b_t, by how much each ramp rises at each threshold t, (V, T).

        A ramp is the likelihood ratio of N(nu, 1) to N(0, 1) over e^epsilon, cut at 1 from below and at 20
        from above; nu is one of _SHIFTS. Before the first threshold its height is 1.
        """
        exponents = _SHIFTS[:, None] * (STUDENT - _SHIFTS[:, None] / 2) - epsilon
        heights = np.exp(np.clip(exponents, 0.0, np.log(_RAMPS_TOP)))
        return np.diff(heights, axis=1, prepend=1.0)

    def _compute_expected(self, rises: Array, largest_means: Array) -> Array:
        """Returns the log of the most that each ramp's mean can be, log(1 + sum_t b_t min(m(t), 1)), (V,).

        A ramp is 1 plus the rise b_t for each threshold t below a cosine. The mean share of cosines above t
        is at most m(t) under (epsilon, delta)-DP, and no share is above 1.

        Args:
          rises: b_t, (V, T).
          largest_means: m(t), (T,).
        """
        return np.asarray(np.log1p(rises @ np.minimum(largest_means, 1.0)))


def _find_path(growth: _Growth, runs: int, target: float) -> Array:
    """Returns the bound after each run, (runs,), in multiples of _STEP.

    The multiples 0, 1, 2, ... of _STEP are refuted in this order, each by the capital after some run so far.
    The bound is the last multiple that is refuted, or 0.

    Args:
      growth: The capital, with the first run alone.
      runs: The number of runs.
      target: The log capital that refutes.
    """
    bounds = np.zeros(runs)
    first_unrefuted = 0  # the least multiple of _STEP that is not refuted yet
    capital = growth.log_capital(0.0)  # of each component, against that epsilon
    for run in range(runs):
        if run:
            growth.add_run(run)
            # This gives what `growth.log_capital` would, and needs only the new run instead of all.
            capital += growth.log_factors(run, first_unrefuted * _STEP)
        if special.logsumexp(capital) >= target:
            first_unrefuted = _find_first_unrefuted(growth, first_unrefuted, target)
            capital = growth.log_capital(first_unrefuted * _STEP)
        bounds[run] = max(first_unrefuted - 1, 0) * _STEP
    return bounds


def _bound_after_all(growth: _Growth, runs: int, target: float) -> float:
    """Returns the bound from the capital after all runs alone, a multiple of _STEP.

    It is the last multiple before the first that this capital does not refute, or 0.

    Args:
      growth: The capital, with the first run alone.
      runs: The number of runs.
      target: The log capital that refutes.
    """
    for run in range(1, runs):
        growth.add_run(run)
    return max(_find_first_unrefuted(growth, 0, target) - 1, 0) * _STEP


def _find_first_unrefuted(growth: _Growth, steps: int, target: float) -> int:
    """Returns the least k >= `steps` for which the capital does not refute the epsilon k * _STEP.

    Args:
      growth: The capital, of which `log_capital` gives the logarithm of each component.
      steps: The first k that is tried, a number of multiples of _STEP.
      target: The log capital that refutes.
    """
    if special.logsumexp(growth.log_capital(steps * _STEP)) < target:
        return steps
    # Bets on thresholds alone refute all epsilons up to the result of `_leap`. Their capital falls with
    # epsilon, which need not be so of the whole capital: from there on each multiple is tried.
    steps = _leap(growth, steps, target)
    while special.logsumexp(growth.log_capital(steps * _STEP)) >= target:
        steps += 1
    return steps


def _leap(growth: _Growth, steps: int, target: float) -> int:
    """Returns the last k >= `steps` for which bets on thresholds alone refute the epsilon k * _STEP.

    The capital of these bets falls with epsilon, so that they refute all epsilons before it too. The search
    leaps over distances that double and then halve. Where the bets do not refute the next multiple of _STEP,
    the result is `steps` itself.

    Args:
      growth: The capital.
      steps: The number of _STEPs of an epsilon that the whole capital refutes.
      target: The log capital that refutes.
    """
    on_thresholds = len(STUDENT) * len(BETS)  # their number: they come first among the components

    def is_refuted(step: int) -> bool:
        """Returns whether the bets on thresholds alone refute the epsilon step * _STEP."""
        capital = growth.log_capital(step * _STEP)[:on_thresholds]
        return bool(special.logsumexp(capital) >= target)

    leap = 1
    while is_refuted(steps + leap):
        steps += leap
        leap *= 2
    while leap > 1:
        leap //= 2
        if is_refuted(steps + leap):
            steps += leap
    return steps


def _compute_shares(run: Array, levels: Array) -> Array:
    """Returns the shares (T,) of a run's cosines (K,) above each level (T,)."""
    not_above = np.searchsorted(np.sort(run), levels, side="right")
    return np.asarray((len(run) - not_above) / max(len(run), 1))


def _split_usually(design: Fresh) -> _Split:
    """Returns the split of the capital where no threshold is chosen on the first run."""
    has_many_canaries = design.cosines.shape[1] >= 2 * _LEAST_PILOT
    return _SPLIT_OF_MANY if has_many_canaries else _SPLIT_OF_FEW


def _make_first_bet(run: Array, design: Fresh, delta: float) -> _First:
    """Returns the special bet on the first run, on which a part of the capital is staked entirely.

    Against an epsilon the bet turns a capital of 1 into h(t) / m(t), on average over likely thresholds t.
    h(t) is the share of the cosines above t, and m(t) = e^epsilon a(t) + delta, where a(t) is the rate at
    which a canary that is out exceeds t.

    In a plain design, where no score depends on other canaries' directions, with at least 40 canaries in,
    half of the canaries chooses a threshold for the other half. Most of the bet is then on that threshold.
    (The module docstring proves that both bets are fair.)

    Args:
      run: (K,) the cosines of the first run's canaries that are in.
      design: The design.
      delta: The delta of the bound.
    """
    levels = cosine_of(_LIKELY, design.dimension)
    log_rates = compute_log_rates(design, levels)
    shares = _compute_shares(run, levels)

    def win_on_likely(epsilon: float) -> float:
        """Returns what a capital of 1 becomes on the likely thresholds, against epsilon."""
        most = np.exp(np.minimum(epsilon + log_rates, _LARGEST_LOG)) + delta
        return float(np.mean(shares / most))

    # With few canaries, or where scores depend on other canaries' directions, there is no other bet.
    may_choose = design.plain and len(run) >= 2 * _LEAST_PILOT
    if not may_choose:
        return _First(_split_usually(design), win_on_likely)

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

    return _First(_SPLIT_OF_CHOSEN, win_on_both, level)


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
    # The last one is at least 11, so that they ascend from 10 even where sqrt(d) is smaller.
    root = np.sqrt(dimension)
    units = np.concatenate([np.arange(0, 100) / 10, np.geomspace(10, max(root, 11), 400)])
    thresholds = units[units < root] / root
    spread = max(float(pilot.std()), 1e-12)  # cosines may all be equal
    share = special.ndtr((pilot.mean() - thresholds) / spread)
    # The share less two standard deviations, so that a few lucky canaries do not decide. Where nothing is
    # left of it, the threshold is ruled out.
    sure_share = np.maximum(share - 2 * np.sqrt(share / canaries), 0.0)
    with np.errstate(divide="ignore"):
        log_ratio = np.log(sure_share) - cosine_law.log_sf(thresholds, dimension)
    promised = np.where(sure_share > 0, log_ratio, -np.inf)
    return float(thresholds[np.argmax(promised)])


def _split_capital(ramps: float) -> Array:
    """Returns the log of the share of the capital that each component has at the start.

    Args:
      ramps: The share of all ramps together.

    Returns:
      (T * C + V,) for T thresholds, C bets and V ramps, in the order of `_Growth.log_capital`.
    """
    is_near = STUDENT < _FAR
    near_share = (1 - _FAR_SHARE) / is_near.sum()
    far_share = _FAR_SHARE / (~is_near).sum()
    threshold_shares = np.where(is_near, near_share, far_share)
    on_thresholds = np.log((1 - ramps) * threshold_shares[:, None] * _BET_SHARES)
    on_ramps = np.full(len(_SHIFTS), np.log(ramps / len(_SHIFTS)))
    return np.append(on_thresholds, on_ramps)
