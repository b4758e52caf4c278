"""Upper bounds on the leak of the last model if the adversary does not know which steps use an example.

A sampler draws the order pi: the list of steps that use the example. Given the order, mu(pi) bounds the last
model (`hidden_state`). The last model does not show the order, and the hockey-stick divergence is jointly
convex. Hence, for any other examples,

    delta(epsilon) <= E_pi [ delta of mu(pi)-GDP at epsilon ].

Neighbouring relation: replace the example by an example of gradient zero.

A few orders are enumerated. For many orders, simulation bounds their mean from above (`limit_mean`).
"""

import itertools
import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.claims.hidden_state import spread_over_steps
from audit.laws import conversions
from audit.laws.intervals import bisect

Array = NDArray[np.float64]
Steps = NDArray[np.int64]

ERROR = 1e-6  # the probability that a simulated limit is too low
MOST_ENUMERATED = 20_000  # orders
MOST_STRATA = 10_000
SIMULATED = 500_000  # orders
_LEAST_DRAWS = 50  # of each stratum
_POSITIONS = 100
_EPSILONS = 1000  # epsilons with simultaneous bounds
_DROPPED = 1e-3  # the share of delta for orders with too many participations
_CHUNK = 100_000  # orders computed together
_HALVINGS = 60


class ShuffledSteps(NamedTuple):
    """The steps of a training run with batches drawn by a sampler.

    Attributes:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch, a step each.
      epochs: The number of epochs.
      lipschitz: (T,) the Lipschitz constants of all steps, including noise-only steps at the end.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    lipschitz: Array

    @property
    def insertable(self) -> int:
        """Returns how many steps may use the example."""
        return self.batches * self.epochs


class MixtureLimit(NamedTuple):
    """An upper bound on epsilon of the last model for unknown orders.

    Attributes:
      epsilon: The bound at the given delta.
      error: The probability that simulation made it too low; 0 if it is exact.
      mu: An upper bound on mu of every order. The last model is mu-GDP, too.
    """

    epsilon: float
    error: float
    mu: float


class StepWeights(NamedTuple):
    """How T steps, with noise of standard deviation 1, count in the last model.

    W_t is the product of all Lipschitz constants after step t, the largest factor on a shift in step t.

    Attributes:
      log_w: (T,) the log of W_t.
      log_before: (T + 1,) the log of the sum of W^2 over the steps before t.
      log_after: (T + 1,) the log of the sum of W^2 over step t and those after it.
      first: The first step after the last Lipschitz constant of 0, which erases earlier shifts.
    """

    log_w: Array
    log_before: Array
    log_after: Array
    first: int


def make_schedule(
    noise_multiplier: float, batches: int, epochs: int, lipschitz: ArrayLike = 1.0, tail: int = 0
) -> ShuffledSteps:
    """Returns the steps of all epochs, then `tail` steps that add noise and no gradient.

    The noise-only steps have Lipschitz constant 1. `lipschitz` is that of the epochs' steps, a number or one
    for each step.

    Raises:
      InputError: Constants out of range, or neither a number nor one for each step of the epochs.
    """
    constants = spread_over_steps("lipschitz", lipschitz, batches * epochs)
    return ShuffledSteps(noise_multiplier, batches, epochs, np.append(constants, np.ones(tail)))


def weigh_steps(lipschitz: Array) -> StepWeights:
    """Returns how steps of Lipschitz constants (T,) count in the last model, in logarithms.

    A constant of 0 erases all shifts before its step, but not the step's own shift.
    """
    first = int(np.flatnonzero(lipschitz == 0).max(initial=0))
    constants = lipschitz.copy()
    constants[: first + 1] = 1.0  # these multiply only shifts before `first`
    log_constants = np.log(constants)
    log_w = np.append(np.cumsum(log_constants[:0:-1])[::-1], 0.0)
    # The log of an empty sum is -inf.
    log_before = np.append(-np.inf, np.logaddexp.accumulate(2 * log_w))
    log_after = np.append(np.logaddexp.accumulate(2 * log_w[::-1])[::-1], -np.inf)
    return StepWeights(log_w, log_before, log_after, first)


def compute_order_mus(
    weights: StepWeights, orders: Steps, log_shifts: Array | None = None
) -> Array:
    """Returns mu (N,) of each order: given the order, the last model is mu-GDP, for noise of deviation 1.

    An order lists the steps that use the example, its participations. Each moves the model by a shift s_t =
    1, which counts at most W_t s_t in the last model. The noise that hides it has the variance sum of W^2,
    over the steps from t to the step before the next participation. mu is that of
    `hidden_state.hidden_state_bound`, computed for many orders at once. It is at most that of composition,
    sqrt(K) for K participations, which only limits hypothetical orders with larger shifts.

    Args:
      weights: How the steps count in the last model.
      orders: (N, K) the steps of participations, ascending; T or more means no participation.
      log_shifts: (N, K) the log of W_t s_t; by default for s_t = 1.
    """
    steps = len(weights.log_w)
    orders = np.minimum(orders, steps)  # T now means no participation
    reaches_last_model = (orders < steps) & (orders >= weights.first)
    if log_shifts is None:
        # The index T is out of range, and not used.
        log_shifts = weights.log_w[np.minimum(orders, steps - 1)]
    log_noises = _compute_log_noises(weights, orders)
    squares = _pool(log_shifts, log_noises, reaches_last_model)
    composed_squares = reaches_last_model.sum(axis=1)
    return np.asarray(np.sqrt(np.minimum(squares, composed_squares)))


def _pool(log_shifts: Array, log_noises: Array, takes_part: NDArray[np.bool_]) -> Array:
    """Returns mu^2 (N,) of N orders by an isotonic regression in each, pooling adjacent violators.

    Adjacent participations are merged into blocks until the slopes of an order's blocks, sum of W s / sum of
    W^2, increase. A participation pushes a block on the order's stack, and the top absorbs the block below it
    while that block's slope is at least as large. mu^2 is the sum over blocks of (sum of W s)^2 / sum of W^2.
    audit/methods/README.md derives it.

    Args:
      log_shifts: (N, K) the log of W s of each participation.
      log_noises: (N, K) the log of the sum of W^2 from it to the next participation.
      takes_part: (N, K) whether the last model shows such a participation.
    """
    size, participations = log_shifts.shape
    # A stack of `counts` blocks for each order, with logs of their sums and noises.
    counts = np.zeros(size, np.intp)
    log_sums = np.zeros((participations, size))
    log_block_noises = np.zeros((participations, size))
    for i in range(participations):
        merging = np.flatnonzero(takes_part[:, i])
        log_sums[counts[merging], merging] = log_shifts[merging, i]
        log_block_noises[counts[merging], merging] = log_noises[merging, i]
        counts[merging] += 1
        while True:
            merging = merging[counts[merging] > 1]
            top = counts[merging] - 1
            slopes = log_sums[[top - 1, top], merging] - log_block_noises[[top - 1, top], merging]
            merging = merging[slopes[0] >= slopes[1]]
            if not len(merging):
                break
            top = counts[merging] - 1
            for totals in (log_sums, log_block_noises):
                totals[top - 1, merging] = np.logaddexp(
                    totals[top - 1, merging], totals[top, merging]
                )
            counts[merging] -= 1
    is_block = np.arange(participations)[:, None] < counts
    with np.errstate(over="ignore"):  # a square beyond the largest float is infinite
        squares = np.where(is_block, np.exp(2 * log_sums - log_block_noises), 0.0)
    return np.asarray(squares.sum(axis=0))


def _compute_log_noises(weights: StepWeights, orders: Steps) -> Array:
    """Returns the log of the sum of W^2 from each participation's step to before the next one's, (N, K).

    It is a difference of cumulative sums, from the start or from the end: the one with the smaller subtrahend
    is more precise.
    """
    steps = len(weights.log_w)
    following = np.column_stack([orders[:, 1:], np.full(len(orders), steps)])  # T after the last
    log_before = weights.log_before[orders]
    log_before_following = weights.log_before[following]
    log_from = weights.log_after[orders]
    log_from_following = weights.log_after[following]

    log_noises = np.where(
        log_before < log_from_following,
        conversions.log_difference(log_before_following, log_before),
        conversions.log_difference(log_from, log_from_following),
    )
    # The sum is at least the W^2 of its first step, which replaces smaller results of rounding.
    log_least = 2 * weights.log_w[np.minimum(orders, steps - 1)]
    return np.maximum(log_noises, log_least)


def compute_log_deltas(mus: Array, epsilon: float) -> Array:
    """Returns log delta at epsilon of mu-GDP mechanisms, for mus of any shape; -inf for mu = 0.

    delta is Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) (Balle and Wang, 2018), with
    Phi the normal distribution function. Both terms may underflow, so only their logarithms are computed.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_first = special.log_ndtr(-epsilon / mus + mus / 2)
        log_second = epsilon + special.log_ndtr(-epsilon / mus - mus / 2)
    return np.where(mus > 0, conversions.log_difference(log_first, log_second), -np.inf)


def mix_epsilon(mus: Array, shares: Array, delta: float) -> float:
    """Returns an upper bound on epsilon at delta of a mixture of mu-GDP mechanisms.

    The mixture's delta is at most the mean of their deltas. The result is the epsilon that makes this mean
    equal to `delta`, rounded up.
    """

    def exceeds(epsilon: float) -> bool:
        """Returns whether the mean delta at an epsilon is above the given delta."""
        return bool(np.exp(compute_log_deltas(mus, epsilon)) @ shares > delta)

    if not exceeds(0.0):
        return 0.0
    highest = conversions.epsilon_from_mu(float(mus.max()), delta)
    _, high = bisect(exceeds, 0.0, highest, _HALVINGS)
    return float(high)


def bound_fixed_order(schedule: ShuffledSteps, delta: float) -> MixtureLimit:
    """Returns the bound on the last model's epsilon for batches in a fixed order, the same in every epoch.

    It is exact, for the worst place of an example in that order.
    """
    # Row i has the steps of an example in batch i of every epoch.
    places = np.arange(schedule.batches)[:, None]
    orders = places + schedule.batches * np.arange(schedule.epochs)
    return _limit_worst(schedule, compute_order_mus(weigh_steps(schedule.lipschitz), orders), delta)


def bound_any_order(schedule: ShuffledSteps, delta: float) -> MixtureLimit:
    """Returns the bound on the last model's epsilon if each epoch uses the example in any one of its steps.

    It is exact, for the worst order, which the adversary may know. With Lipschitz constants of at most 1 this
    order uses the last step of every epoch.
    """
    strata = _cut_last_epochs(schedule.batches, schedule.epochs, MOST_STRATA)
    return _limit_worst(schedule, _compute_worst_mus(schedule, strata), delta)


def _limit_worst(schedule: ShuffledSteps, mus: Array, delta: float) -> MixtureLimit:
    """Returns the bound for the worst order, from mus for noise of deviation 1."""
    mu = float(mus.max()) / schedule.noise_multiplier
    return MixtureLimit(conversions.epsilon_from_mu(mu, delta), 0.0, mu)


def bound_one_of_each_epoch(
    schedule: ShuffledSteps,
    delta: float,
    seed: int = 0,
    most_enumerated: int = MOST_ENUMERATED,
    simulated: int = SIMULATED,
) -> MixtureLimit:
    """Returns the bound on the last model's epsilon if each epoch uses the example in a single random step.

    All steps of the epoch have the same probability, as for shuffled batches, balls in bins and random
    allocation. The adversary does not know the order.

    A few orders are enumerated. Many orders are simulated by stratified sampling (`_cut_last_epochs`), with
    the same number of draws in all strata. Simulation makes the bound too low with a probability of at most
    ERROR.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
      seed: The seed of the simulation.
      most_enumerated: The largest number of orders that is enumerated, and of strata.
      simulated: About how many orders are simulated, but at least 50 in each stratum.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    sigma = schedule.noise_multiplier
    weights = weigh_steps(schedule.lipschitz)
    if epochs * math.log(batches) <= math.log(most_enumerated):
        orders = np.array(list(itertools.product(range(batches), repeat=epochs)))
        orders += batches * np.arange(epochs)  # steps of the run
        return _mix_orders(schedule, orders, np.full(len(orders), 1 / len(orders)), delta)

    # Row by row, the mu of an order from every stratum. Rows are filled in chunks, to save memory.
    strata = _cut_last_epochs(batches, epochs, min(MOST_STRATA, most_enumerated))
    draws = max(simulated // len(strata.shares), _LEAST_DRAWS)
    rng = np.random.default_rng(seed)
    mus = np.empty((draws, len(strata.shares)))
    rows_at_once = max(_CHUNK // len(strata.shares), 1)
    for start in range(0, draws, rows_at_once):
        rows = mus[start : start + rows_at_once]
        places = rng.integers(0, batches, (*rows.shape, epochs))
        last_shape = (len(rows), *strata.lows.shape)
        places[..., epochs - last_shape[2] :] = rng.integers(strata.lows, strata.highs, last_shape)
        orders = places + batches * np.arange(epochs)
        rows[:] = compute_order_mus(weights, orders.reshape(-1, epochs)).reshape(rows.shape)

    worst = _compute_worst_mus(schedule, strata)
    epsilon = _limit_mixture(mus / sigma, worst / sigma, strata.shares, delta)
    return MixtureLimit(epsilon, ERROR, float(worst.max()) / sigma)


def _mix_orders(
    schedule: ShuffledSteps, orders: Steps, shares: Array, delta: float
) -> MixtureLimit:
    """Returns the bound from all orders (N, K) and their probabilities (N,)."""
    mus = compute_order_mus(weigh_steps(schedule.lipschitz), orders) / schedule.noise_multiplier
    return MixtureLimit(mix_epsilon(mus, shares, delta), error=0.0, mu=float(mus.max()))


class _Strata(NamedTuple):
    """S strata of orders: combinations of intervals of the example's place in each of the last L epochs.

    Attributes:
      lows, highs: (S, L) each interval's first place, and the place after its last.
      shares: (S,) the probability of each stratum.
    """

    lows: Steps
    highs: Steps
    shares: Array


def _cut_last_epochs(batches: int, epochs: int, most: int) -> _Strata:
    """Cuts the orders of an example's steps into at most `most` strata, by its places in the last epochs.

    A place is the index of a step within its epoch, from 0 to batches - 1. A stratum has an interval of
    places for each of the last epochs, and any places before these epochs. Intervals are shortest near an
    epoch's end. Places there matter most, since fewer steps come after them.
    """
    cells = min(batches, _POSITIONS, most)
    # cells**last_epochs is at most `most`. 1e-9 compensates rounding, and 2 avoids a division by log(1).
    last_epochs = min(int(math.log(most) / math.log(max(cells, 2)) + 1e-9), epochs)

    # Edges are distances from the epoch's end, plus 1, since a geometric grid cannot begin at 0.
    edges = np.unique(np.geomspace(1, batches + 1, cells + 1).round().astype(np.int64))
    if batches == cells:  # rounding would merge some places
        edges = np.arange(1, batches + 2)
    lows = np.sort(batches + 1 - edges[1:])
    highs = np.sort(batches + 1 - edges[:-1])  # the place after an interval's last

    # Without last epochs there is a single, empty combination.
    combinations = list(itertools.product(range(len(lows)), repeat=last_epochs))
    cells_of_strata = np.array(combinations, np.intp).reshape(len(combinations), last_epochs)
    shares = ((highs - lows) / batches)[cells_of_strata].prod(axis=1)
    return _Strata(lows[cells_of_strata], highs[cells_of_strata], shares)


def _compute_worst_mus(schedule: ShuffledSteps, strata: _Strata) -> Array:
    """Returns an upper bound (S,) on the mu of all orders in each stratum, for noise of deviation 1.

    With shifts s_t, mu is the largest sum of x_t W_t s_t over increasing x_t with sum of (x_t W_t)^2 = 1. So
    mu rises with every W_t s_t, and when a participation moves to a later step at the same W_t s_t. The bound
    is the mu of a hypothetical order: in each epoch it uses the last place that the stratum allows, with the
    largest W of all places that the stratum allows.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    weights = weigh_steps(schedule.lipschitz)

    # First the last step and the largest W of each epoch (column), for every stratum (row).
    rows = (len(strata.shares), 1)
    log_w = weights.log_w[: schedule.insertable].reshape(epochs, batches)
    orders = np.tile(batches * np.arange(1, epochs + 1) - 1, rows)
    log_shifts = np.tile(log_w.max(axis=1), rows)

    # In the last epochs a stratum allows only some places.
    last_epochs = strata.lows.shape[1]
    for i in range(1, last_epochs + 1):
        last_places = strata.highs[:, -i] - 1
        orders[:, -i] = batches * (epochs - i) + last_places
        places = zip(strata.lows[:, -i], strata.highs[:, -i], strict=True)
        log_shifts[:, -i] = [log_w[epochs - i, low:high].max() for low, high in places]
    return compute_order_mus(weights, orders, log_shifts)


def bound_poisson(
    schedule: ShuffledSteps,
    delta: float,
    seed: int = 0,
    simulated: int = SIMULATED,
    rate: float | None = None,
) -> MixtureLimit:
    """Returns the bound on the last model's epsilon for Poisson sampling, with the same rate in each step.

    The adversary does not know the order. With few steps all orders are enumerated. Otherwise they are
    simulated. A bound on their mean delta needs an upper limit on mu. It is the mu of a hypothetical order
    that is worse than nearly all others (`_find_latest_steps`). A thousandth of delta is reserved for the
    orders that may be worse.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
      seed: The seed of the simulation.
      simulated: The number of orders that are simulated, rounded up to 100,000s.
      rate: The probability that a step uses the example, by default 1 / batches.
    """
    if rate is None:
        rate = 1 / schedule.batches
    steps = schedule.insertable
    sigma = schedule.noise_multiplier
    weights = weigh_steps(schedule.lipschitz)
    no_step = len(schedule.lipschitz)  # no participation
    if 2**steps <= MOST_ENUMERATED:
        taken = np.array(list(itertools.product([False, True], repeat=steps)))
        orders = np.sort(np.where(taken, np.arange(steps), no_step), axis=1)
        counts = taken.sum(axis=1)
        return _mix_orders(schedule, orders, rate**counts * (1 - rate) ** (steps - counts), delta)

    # Earlier participations may have a larger W, so each counts with the largest W up to its step.
    latest = _find_latest_steps(steps, rate, _DROPPED * delta)
    largest_log_w = np.maximum.accumulate(weights.log_w[:steps])
    worst = compute_order_mus(weights, latest[None], largest_log_w[latest][None])

    rng = np.random.default_rng(seed)
    drawn: list[Array] = []
    while sum(map(len, drawn)) < simulated:
        # Gaps between participations are geometric. Orders are cut after the number of participations of the
        # worst order; the reserved share of delta covers longer orders.
        gaps = rng.geometric(rate, (_CHUNK, len(latest)))
        orders = np.cumsum(gaps, axis=1) - 1
        drawn.append(compute_order_mus(weights, np.where(orders < steps, orders, no_step)))
    # Worse orders are cut at the limit. All orders are a single stratum.
    simulated_mus = np.minimum(np.concatenate(drawn), worst)[:, None]
    remaining_delta = (1 - _DROPPED) * delta
    epsilon = _limit_mixture(simulated_mus / sigma, worst / sigma, np.ones(1), remaining_delta)
    # Participation in every step bounds mu of all orders.
    everywhere = compute_order_mus(weights, np.arange(steps)[None], largest_log_w[None])
    return MixtureLimit(epsilon, ERROR, float(everywhere[0]) / sigma)


def _find_latest_steps(steps: int, rate: float, dropped: float) -> Steps:
    """Returns steps of participations (K,), ascending, that come no earlier than those of nearly all orders.

    Late participations leak most. So there are limits on the number of participations among the last 1, 2, 4,
    ... and among all steps. A random order meets all limits, except with a probability of at most `dropped`.
    The result is the order with the latest and most participations that still meets them.
    """
    # The limits are quantiles of binomial laws, which may fail with equal shares of `dropped`.
    lengths = np.unique(np.append(2 ** np.arange(int(math.log2(steps)) + 1), steps))
    limits = scipy.stats.binom.isf(dropped / len(lengths), lengths, rate).astype(np.int64)

    # Backwards from the end of training: the steps within `shorter` of the end have `taken` participations.
    # If the next limit allows more, they take the latest steps before.
    distances: list[int] = []
    taken = 0
    for shorter, limit in zip(np.append(0, lengths[:-1]), limits, strict=True):
        added = max(int(limit) - taken, 0)
        distances.extend(range(shorter, shorter + added))
        taken += added

    unique = np.unique(np.array(distances, np.int64))
    return np.sort(steps - 1 - unique[unique < steps])


def _limit_mixture(mus: Array, worst: Array, shares: Array, delta: float) -> float:
    """Returns an upper bound on epsilon of the mixture of all orders, from orders that were simulated.

    The mixture's delta is at most the mean of all orders' deltas. At the returned epsilon this mean is at
    most `delta`, except with a probability of at most ERROR over the simulation. The sum of deltas in a row
    of `mus`, weighted by `shares`, is an unbiased draw of this mean. `limit_mean` bounds the mean at each
    epsilon of a grid, and bisection finds the least epsilon with a sufficiently low bound.

    Args:
      mus: (R, S) mu of simulated orders, a row for each draw of an order from every stratum.
      worst: (S,) bounds on mu in each stratum.
      shares: (S,) the probabilities of strata.
      delta: The delta of epsilon.
    """
    highest = conversions.epsilon_from_mu(float(worst.max()), delta)
    grid = np.linspace(0.0, highest, _EPSILONS + 1)
    # Two limits may fail at each epsilon, with equal shares of the error.
    log_inverse_error = math.log(2 * _EPSILONS / ERROR)

    def is_bounded(epsilon: float) -> bool:
        """Returns whether the limit of the mean delta at an epsilon is at most `delta`."""
        means = np.exp(compute_log_deltas(mus, epsilon)) @ shares
        most = float(np.exp(compute_log_deltas(worst, epsilon)) @ shares)
        return limit_mean(means, most, log_inverse_error) <= delta

    # The mean delta is low enough at the last index.
    indices = range(_EPSILONS)
    first = bisect_left(indices, True, key=lambda index: is_bounded(float(grid[index])))
    return float(grid[first])


def limit_mean(values: Array, most: float, log_inverse_error: float) -> float:
    """Returns an upper limit of the mean of independent values (R,) from 0 to `most`.

    It is the lower of two limits. Each is below the mean with a probability of at most the error, and the
    result with at most twice the error. `log_inverse_error` is log(1 / error). The first is the empirical
    Bernstein inequality (Maurer and Pontil, 2009, Theorem 11). The second is the relative-entropy form of
    Hoeffding's inequality (1963, Theorem 1): the least m with
    R * KL(mean / most || m / most) >= log_inverse_error, with the KL divergence between two coins.
    """
    if most == 0:  # all values are 0
        return 0.0
    draws = len(values)
    mean = float(values.mean())

    # The empirical Bernstein inequality.
    bernstein_log = log_inverse_error + math.log(2)  # the theorem has log(2 / error)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * bernstein_log / draws)
    bernstein = mean + spread + 7 * most * bernstein_log / (3 * (draws - 1))

    # By bisection from the mean up to 1.
    share = min(mean / most, 1.0)

    def is_possible(mean_share: float) -> bool:
        """Returns whether the values allow that their mean is this share of `most`."""
        entropy = special.rel_entr(share, mean_share) + special.rel_entr(1 - share, 1 - mean_share)
        return bool(draws * entropy < log_inverse_error)

    _, limit = bisect(is_possible, share, 1.0, _HALVINGS)
    hoeffding = most * float(limit)
    return min(bernstein, hoeffding, most)
