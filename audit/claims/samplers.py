"""Upper bounds on how much the last model leaks if the adversary does not know which steps use an example.

A sampler draws a participation pattern pi, the steps that use the example. Given pi, the last model is
mu(pi)-GDP (`hidden_state`). For an adversary who does not know pi,

    delta(epsilon) <= E_pi [ delta of mu(pi)-GDP at epsilon ]

(audit/methods/README.md, "The mixture over orders").
"""

import itertools
import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from audit.claims.hidden_state import spread_over_steps
from audit.evidence.arrays import Array, Bits
from audit.evidence.arrays import Integers as Steps
from audit.laws import conversions
from audit.laws.intervals import bisect

ERROR = 1e-6  # the probability that a simulated bound is too low

_MAX_STRATA = 10_000
_MAX_INTERVALS = 100  # of steps within an epoch, for strata
_NUM_SIMULATED = 500_000  # patterns
_NUM_EPSILONS = 1000  # in the grid of `_bound_simulated`
# The fraction of delta reserved for Poisson patterns beyond the assumed worst case.
_RESERVED = 1e-3
_CHUNK = 100_000  # patterns computed together
_HALVINGS = 60  # in a bisection


class MixtureBound(NamedTuple):
    """An upper bound on the last model's epsilon for an unknown participation pattern.

    Attributes:
      epsilon: The bound at the given delta.
      error: The probability that the bound is too low; 0 without simulation.
      mu: An upper bound on the mu of every pattern. The last model is also mu-GDP.
    """

    epsilon: float
    error: float
    mu: float


class StepWeights(NamedTuple):
    """The weights of T steps in the last model: W_t is the product of the Lipschitz constants after step t.

    Later steps multiply a shift or noise added at step t by at most W_t. With noise N(0, I), the sum of W_t^2
    over some steps is the variance that their noise adds to the last model.

    Attributes:
      log_w: (T + 1,) the log of W_t. The last entry, for "no participation", is 0.
      log_variance_before: (T + 1,) the log of the sum of W^2 over the steps before t.
      log_variance_from: (T + 1,) the log of the sum of W^2 over step t and all later steps.
      first: The first step with a shift that can reach the last model: the last step with a Lipschitz
        constant of 0, or 0 if there is none.
    """

    log_w: Array
    log_variance_before: Array
    log_variance_from: Array
    first: int

    @property
    def no_participation(self) -> int:
        """Returns T, the step number that represents no participation."""
        return len(self.log_w) - 1


class Schedule(NamedTuple):
    """The steps of a training run that uses a sampler.

    Attributes:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch, one per step.
      epochs: The number of epochs.
      weights: The weights of all T steps, including noise-only steps at the end.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    weights: StepWeights


def make_schedule(
    noise_multiplier: float, batches: int, epochs: int, lipschitz: ArrayLike = 1.0, tail: int = 0
) -> Schedule:
    """Returns the schedule of all epochs, followed by `tail` noise-only steps with Lipschitz constant 1.

    `lipschitz` is the Lipschitz constant of the epochs' steps: a number, or one for each step.
    """
    constants = spread_over_steps("lipschitz", lipschitz, batches * epochs)
    weights = weigh_steps(np.append(constants, np.ones(tail)))
    return Schedule(noise_multiplier, batches, epochs, weights)


def weigh_steps(lipschitz: Array) -> StepWeights:
    """Returns the weights of T steps from their Lipschitz constants (T,)."""
    # A constant of 0 erases the shifts of all earlier steps, so `first` is the first step that matters.
    first = int(np.flatnonzero(lipschitz == 0).max(initial=0))
    constants = lipschitz.copy()
    # Avoids log(0). Callers ignore earlier shifts and subtract earlier variances.
    constants[: first + 1] = 1.0
    log_next = np.append(np.log(constants)[1:], 0.0)
    log_w = np.cumsum(log_next[::-1])[::-1]
    from_start = np.logaddexp.accumulate(2 * log_w)
    to_end = np.logaddexp.accumulate(2 * log_w[::-1])[::-1]
    return StepWeights(
        log_w=np.append(log_w, 0.0),  # step T means "no participation"
        log_variance_before=np.append(-np.inf, from_start),  # the log of an empty sum is -inf
        log_variance_from=np.append(to_end, -np.inf),
        first=first,
    )


def compute_pattern_mus(
    weights: StepWeights, patterns: Steps, log_shifts: Array | None = None
) -> Array:
    """Returns the mu (N,) of N participation patterns, for noise N(0, I) in each step.

    For an adversary who knows the pattern, the last model is mu-GDP. A step t that uses the example shifts
    the model by at most 1, so it shifts the last model by at most W_t, the product of later Lipschitz
    constants (0 before step `weights.first`). Noise in the same and later steps masks parts of each shift,
    chosen to minimize mu^2, the sum of (part / standard deviation)^2.

    Args:
      weights: The weights of T steps.
      patterns: (N, K) the steps (0 to T - 1) that use the example, ascending; T means no participation.
      log_shifts: (N, K) the log of each participation's shift of the last model; by default log W_t.
    """
    reaches_last_model = (patterns >= weights.first) & (patterns < weights.no_participation)
    if log_shifts is None:
        log_shifts = weights.log_w[patterns]  # entry T is ignored
    log_variances = _compute_log_variances(weights, patterns)
    squares = _minimize_mu_squared(log_shifts, log_variances, reaches_last_model)
    composed_squares = reaches_last_model.sum(axis=1)  # mu^2 for all models; the last leaks no more
    return np.sqrt(np.minimum(squares, composed_squares))


def _minimize_mu_squared(
    log_shifts: Array, log_variances: Array, reaches_last_model: Bits
) -> Array:
    """Returns the smallest cost mu^2 (N,) of masking the shifts of N participation patterns with noise.

    As in a Gaussian mechanism, noise of variance V hides (masks) a shift S at a cost of mu^2 = S^2 / V. Noise
    can mask earlier shifts, but not later ones. For each pattern:

        for each participation, with shift S and variance V of the noise until the next one:
            push the block (S, V) onto the pattern's stack
            while the block below has at least the top's S / V, pool the two (add S and V)
        mu^2 = sum of S^2 / V over the stack

    If a block has a larger S / V than the next block, it should also use the next block's noise. Pooling is
    an isotonic regression (derived in audit/methods/README.md).

    Args:
      log_shifts: (N, K) log S. Each participation shifts the last model by S.
      log_variances: (N, K) log V (`_compute_log_variances`).
      reaches_last_model: (N, K) False for participations to ignore.
    """
    num_patterns, participations = log_shifts.shape
    heights = np.zeros(num_patterns, np.intp)  # the number of blocks on each pattern's stack
    # Log S and log V of each pattern's blocks, from the bottom up.
    stacks = np.zeros((2, participations, num_patterns))
    for i in range(participations):
        patterns = np.flatnonzero(reaches_last_model[:, i])
        stacks[:, heights[patterns], patterns] = log_shifts[patterns, i], log_variances[patterns, i]
        heights[patterns] += 1
        while len(patterns):
            patterns = patterns[heights[patterns] > 1]
            top = heights[patterns] - 1
            upper = stacks[:, top, patterns]
            lower = stacks[:, top - 1, patterns]
            is_pooled = lower[0] - lower[1] >= upper[0] - upper[1]  # log S - log V
            patterns = patterns[is_pooled]
            heights[patterns] -= 1
            pooled = np.logaddexp(lower[:, is_pooled], upper[:, is_pooled])
            stacks[:, heights[patterns] - 1, patterns] = pooled
    is_block = np.arange(participations)[:, None] < heights
    log_s, log_v = stacks
    with np.errstate(over="ignore"):  # squares may overflow to infinity
        squares = np.exp(2 * log_s - log_v)
    return np.where(is_block, squares, 0.0).sum(axis=0)


def _compute_log_variances(weights: StepWeights, patterns: Steps) -> Array:
    """Returns the log variance (N, K) of the last model due to noise from each participation until the next.

    For participations at steps t and u, the variance is the sum of W_j^2 for t <= j < u (`StepWeights`),
    computed as before(u) - before(t) or from(t) - from(u). For precision, we subtract the smaller sum.
    `patterns` (N, K) is as in `compute_pattern_mus`.
    """
    end = np.full(len(patterns), weights.no_participation)
    following = np.column_stack([patterns[:, 1:], end])  # the step of the next participation
    log_before = weights.log_variance_before[patterns]
    log_from_following = weights.log_variance_from[following]
    from_start = conversions.log_difference(weights.log_variance_before[following], log_before)
    from_end = conversions.log_difference(weights.log_variance_from[patterns], log_from_following)
    log_variances = np.where(log_before < log_from_following, from_start, from_end)
    # Rounding must not lower the result below the variance of the first step, W^2.
    return np.maximum(log_variances, 2 * weights.log_w[patterns])


def mix_epsilon(mus: Array, probabilities: Array, delta: float) -> float:
    """Returns an upper bound on epsilon at delta for a mixture of N mu-GDP mechanisms.

    The result is the smallest epsilon, rounded up, at which the mechanisms' mean delta is at most `delta`.
    `mus` and `probabilities` are (N,).
    """

    def exceeds(epsilon: float) -> bool:
        return bool(conversions.delta_from_mu(mus, epsilon) @ probabilities > delta)

    if not exceeds(0.0):
        return 0.0
    highest = conversions.epsilon_from_mu(float(mus.max()), delta)
    _, high = bisect(exceeds, 0.0, highest, _HALVINGS)
    return float(high)


def bound_any_order(schedule: Schedule, delta: float) -> MixtureBound:
    """Returns an upper bound on the last model's epsilon if each epoch uses the example once, in any step.

    We divide all participation patterns into strata by their last steps, which affect mu most. The largest of
    the strata's bounds on mu is valid for every pattern.
    """
    strata = _stratify_by_last_epochs(schedule.batches, schedule.epochs, _MAX_STRATA)
    # Noise N(0, sigma^2) divides mu by sigma.
    mu = float(_compute_worst_mus(schedule, strata).max()) / schedule.noise_multiplier
    return MixtureBound(conversions.epsilon_from_mu(mu, delta), error=0.0, mu=mu)


def bound_one_of_each_epoch(
    schedule: Schedule,
    delta: float,
    seed: int = 0,
    max_enumerated: int = 20_000,
    simulated: int = _NUM_SIMULATED,
) -> MixtureBound:
    """Returns an upper bound on the last model's epsilon if each epoch uses the example in one random step.

    The bound covers shuffled batches, balls in bins and random allocation. If there are too many
    participation patterns to enumerate, we simulate some. The bound is then too low with probability at most
    ERROR. To reduce the variance, we stratify patterns by their steps in the last epochs, which affect mu
    most.

    Args:
      max_enumerated: The maximum number of patterns to enumerate, and the maximum number of strata.
      simulated: The approximate number of patterns to simulate; at least 50 in each stratum.
    """
    # There are batches**epochs patterns.
    if schedule.epochs * math.log(schedule.batches) <= math.log(max_enumerated):
        return _mix_all_patterns(schedule, delta)

    strata = _stratify_by_last_epochs(
        schedule.batches, schedule.epochs, min(_MAX_STRATA, max_enumerated)
    )
    draws = max(simulated // len(strata.probabilities), 50)
    mus = _simulate_strata(schedule, strata, draws, seed) / schedule.noise_multiplier
    worst = _compute_worst_mus(schedule, strata) / schedule.noise_multiplier
    epsilon = _bound_simulated(mus, worst, strata.probabilities, delta)
    return MixtureBound(epsilon, ERROR, mu=float(worst.max()))


def _mix_all_patterns(schedule: Schedule, delta: float) -> MixtureBound:
    """Returns the bound if all participation patterns with one step per epoch are equally likely."""
    sigma, batches, epochs, weights = schedule
    places = np.array(list(itertools.product(range(batches), repeat=epochs)))
    first_steps = batches * np.arange(epochs)  # of each epoch
    mus = compute_pattern_mus(weights, places + first_steps) / sigma
    probabilities = np.full(len(mus), 1 / len(mus))
    return MixtureBound(mix_epsilon(mus, probabilities, delta), error=0.0, mu=float(mus.max()))


class _Strata(NamedTuple):
    """S strata: sets of patterns with a step from a given interval in each of the last L epochs.

    Attributes:
      lows, highs: (S, L) the ends of each interval, in steps from the start of its epoch; `highs` are
        excluded.
      probabilities: (S,) the probability of each stratum.
    """

    lows: Steps
    highs: Steps
    probabilities: Array


def _simulate_strata(schedule: Schedule, strata: _Strata, draws: int, seed: int) -> Array:
    """Returns the mu (draws, S) of random participation patterns from each of S strata, for noise N(0, I).

    A pattern has one step per epoch, drawn within its stratum.
    """
    _, batches, epochs, weights = schedule
    num_strata, last_epochs = strata.lows.shape
    first_steps = batches * np.arange(epochs)  # of each epoch
    rng = np.random.default_rng(seed)
    chunks = []
    rows_at_once = max(_CHUNK // num_strata, 1)  # saves memory
    for start in range(0, draws, rows_at_once):
        shape = (min(rows_at_once, draws - start), num_strata)
        places = rng.integers(0, batches, (*shape, epochs))
        restricted = rng.integers(strata.lows, strata.highs, (*shape, last_epochs))
        places[..., epochs - last_epochs :] = restricted
        patterns = (places + first_steps).reshape(-1, epochs)
        chunks.append(compute_pattern_mus(weights, patterns).reshape(shape))
    return np.concatenate(chunks)


def _stratify_by_last_epochs(batches: int, epochs: int, max_strata: int) -> _Strata:
    """Divides the patterns with one step per epoch into at most `max_strata` strata with similar mu.

    A stratum restricts the step to an interval in each of the last L epochs. The later the step, the less
    noise follows it, and the more it matters. So intervals are shortest near the end of an epoch.
    """
    intervals = min(batches, _MAX_INTERVALS, max_strata)
    last_epochs = 0  # L
    while last_epochs < epochs and intervals ** (last_epochs + 1) <= max_strata:
        last_epochs += 1

    # Distances from the epoch's end, plus 1, since a geometric grid cannot begin at 0.
    distances = np.unique(np.geomspace(1, batches + 1, intervals + 1).round().astype(np.int64))
    if batches == intervals:  # one step per interval; rounding may have merged some
        distances = np.arange(1, batches + 2)
    edges = np.sort(batches + 1 - distances)
    lows = edges[:-1]
    highs = edges[1:]

    # Each of S strata chooses an interval in each of L epochs. If L is 0, the only combination is empty.
    combinations = list(itertools.product(range(len(lows)), repeat=last_epochs))
    chosen = np.array(combinations, np.intp).reshape(len(combinations), last_epochs)  # (S, L)
    probabilities = ((highs - lows) / batches)[chosen].prod(axis=1)
    return _Strata(lows[chosen], highs[chosen], probabilities)


def _compute_worst_mus(schedule: Schedule, strata: _Strata) -> Array:
    """Returns an upper bound (S,) on the mu of each stratum's participation patterns, for noise N(0, I).

    Step t shifts the last model by at most its weight W_t. The bound is the mu of a hypothetical pattern: the
    last allowed step of each epoch, with the largest allowed W_t as its shift. This is the worst case,
    because noise that masks these shifts can also mask smaller or earlier ones.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    weights = schedule.weights
    num_strata, last_epochs = strata.lows.shape
    log_w = weights.log_w[: batches * epochs].reshape(epochs, batches)
    # Both are (S, epochs). The loop restricts the steps in the last epochs.
    patterns = np.tile(batches * np.arange(1, epochs + 1) - 1, (num_strata, 1))
    log_shifts = np.tile(log_w.max(axis=1), (num_strata, 1))
    for i in range(last_epochs):
        epoch = epochs - last_epochs + i
        patterns[:, epoch] = batches * epoch + strata.highs[:, i] - 1
        intervals = zip(strata.lows[:, i], strata.highs[:, i], strict=True)
        log_shifts[:, epoch] = [log_w[epoch, low:high].max() for low, high in intervals]
    return compute_pattern_mus(weights, patterns, log_shifts)


def bound_poisson(
    schedule: Schedule,
    delta: float,
    seed: int = 0,
    simulated: int = _NUM_SIMULATED,
    rate: float | None = None,
) -> MixtureBound:
    """Returns an upper bound on the last model's epsilon for Poisson sampling at the same rate in each step.

    We simulate some participation patterns. We cap their mu at the mu of a hypothetical pattern that is worse
    than nearly all others. We reserve `delta` / 1000 for the exceptions, which have at most this probability.
    The bound is too low with probability at most ERROR.

    Args:
      simulated: The number of patterns to simulate, rounded up to a multiple of _CHUNK.
      rate: The probability that a step uses the example; by default 1 / batches.
    """
    sigma, batches, epochs, weights = schedule
    if rate is None:
        rate = 1 / batches
    steps = batches * epochs

    # Patterns rarely have more participations than `latest`, or later ones. Step t shifts the last model by
    # at most its weight W_t. Since earlier weights may be larger, we use the largest weight up to t.
    latest = _find_latest_steps(steps, rate, _RESERVED * delta)
    largest_log_w = np.maximum.accumulate(weights.log_w[:steps])
    usual_limit = compute_pattern_mus(weights, latest[None], log_shifts=largest_log_w[latest][None])

    # Only exceptions have more participations or a larger mu, so we may drop extra participations and cap mu.
    mus = _simulate_poisson(weights, steps, rate, len(latest), simulated, seed)
    remaining_delta = (1 - _RESERVED) * delta
    # All patterns form one stratum, which has probability 1.
    mus_in_stratum = np.minimum(mus, usual_limit)[:, None] / sigma
    epsilon = _bound_simulated(mus_in_stratum, usual_limit / sigma, np.ones(1), remaining_delta)
    # The pattern that includes every step has the largest mu.
    every_step = np.arange(steps)[None]
    limit = compute_pattern_mus(weights, every_step, log_shifts=largest_log_w[None])
    return MixtureBound(epsilon, error=ERROR, mu=float(limit[0]) / sigma)


def _simulate_poisson(
    weights: StepWeights, steps: int, rate: float, participations: int, simulated: int, seed: int
) -> Array:
    """Returns the mu (N,) of random participation patterns under Poisson sampling with noise N(0, I).

    Each of the first `steps` steps uses the example with probability `rate`. We keep only the first
    `participations` steps of a pattern. N is `simulated`, rounded up to a multiple of _CHUNK.
    """
    rng = np.random.default_rng(seed)
    mus = []
    for _ in range(0, simulated, _CHUNK):
        # The gaps between participations follow a geometric distribution.
        gaps = rng.geometric(rate, (_CHUNK, participations))
        patterns = np.cumsum(gaps, axis=1) - 1  # the first step is 0
        patterns[patterns >= steps] = weights.no_participation
        mus.append(compute_pattern_mus(weights, patterns))
    return np.concatenate(mus)


def _find_latest_steps(steps: int, rate: float, dropped: float) -> Steps:
    """Returns the steps (K,), ascending, of a participation pattern that is worse than nearly all others.

    A pattern with more steps or later steps is worse. A random pattern includes each step with probability
    `rate`. We bound its number of participations in the last 1, 2, 4, ... steps and in all steps. The number
    exceeds any of these bounds with probability at most `dropped`. The result has as many participations as
    the bounds allow, as late as possible.
    """
    # The bounds are quantiles of binomial distributions, which share `dropped` equally.
    lengths = np.unique(np.append(2 ** np.arange(int(math.log2(steps)) + 1), steps))
    bounds = scipy.stats.binom.isf(dropped / len(lengths), lengths, rate).astype(np.int64)

    # We work backwards from the end of training. If a bound exceeds the previous bound, we place the extra
    # participations just before `end`, in the latest steps that the previous bounds do not cover. They fit,
    # since an additional step raises a quantile by at most 1.
    latest: list[int] = []
    end = steps
    for length, bound in zip(lengths, bounds, strict=True):
        added = int(bound) - len(latest)
        latest.extend(range(end - added, end))
        end = steps - length

    return np.sort(np.array(latest, np.int64))


def _bound_simulated(mus: Array, worst: Array, probabilities: Array, delta: float) -> float:
    """Uses simulated patterns to bound epsilon from above for an unknown participation pattern.

    Given the pattern, training is mu-GDP. At the returned epsilon, the mean delta over all patterns is at
    most `delta`, except with probability at most ERROR. The deltas of each row of `mus`, weighted by the
    strata's probabilities, sum to an unbiased estimate of this mean. `bound_mean` bounds the mean from R such
    estimates.

    Args:
      mus: (R, S) mu of simulated patterns, one from each of S strata in every row.
      worst: (S,) an upper bound on the mu of each stratum's patterns.
      probabilities: (S,) the probability of each stratum.
    """
    highest = conversions.epsilon_from_mu(float(worst.max()), delta)
    grid = np.linspace(0.0, highest, _NUM_EPSILONS + 1)
    # `bound_mean` computes two bounds at each epsilon. We divide ERROR equally among all bounds.
    log_inverse_error = math.log(2 * _NUM_EPSILONS / ERROR)

    def is_bounded(epsilon: float) -> bool:
        means = conversions.delta_from_mu(mus, epsilon) @ probabilities  # over the strata, (R,)
        largest = float(conversions.delta_from_mu(worst, epsilon) @ probabilities)
        return bound_mean(means, largest, log_inverse_error) <= delta

    # The last epsilon needs no test: even the deltas of `worst` are at most `delta` there.
    first = bisect_left(grid[:-1], True, key=is_bounded)
    return float(grid[first])


def bound_mean(values: Array, largest: float, log_inverse_error: float) -> float:
    """Returns an upper bound on the mean of a distribution on [0, largest], from R independent values.

    The result is the smaller of the empirical Bernstein bound (Maurer and Pontil, 2009, Theorem 11) and
    Hoeffding's bound. Each is below the mean with probability at most `error`, so the smaller one is below it
    with probability at most 2 `error`. `log_inverse_error` is log(1 / error).
    """
    if largest == 0:
        return 0.0
    draws = len(values)
    mean = float(values.mean())
    log_inverse = log_inverse_error + math.log(2)  # Bernstein's bound has log(2 / error)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * log_inverse / draws)
    bernstein = mean + spread + 7 * largest * log_inverse / (3 * (draws - 1))
    # Rounding errors may raise the observed fraction above 1.
    hoeffding = largest * _bound_fraction(min(mean / largest, 1.0), draws, log_inverse_error)
    return min(bernstein, hoeffding, largest)


def _bound_fraction(observed: float, draws: int, log_inverse_error: float) -> float:
    """Returns Hoeffding's upper bound on the mean of values from 0 to 1 (1963, Theorem 1).

    The bound is the largest mean m with draws * KL(observed || m) <= log_inverse_error.
    """

    def is_possible(expected: float) -> bool:
        divergence = special.rel_entr(observed, expected)
        divergence += special.rel_entr(1 - observed, 1 - expected)
        return draws * divergence < log_inverse_error

    _, bound = bisect(is_possible, observed, 1.0, _HALVINGS)
    return float(bound)
