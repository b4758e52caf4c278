"""What the last model leaks at most where the adversary does not know in which steps an example takes part.

A sampler decides the order: the steps pi in which the example takes part. Given the order, training with the
example and training without it have the same maps, and mu(pi) bounds the last model (`hidden_state`). The
last model does not show the order, and the hockey-stick divergence is jointly convex, so that

    delta(epsilon) <= E_pi [ delta of mu(pi)-GDP at epsilon ],

whatever the other examples are. Neighbouring relation: replace the example by an example of gradient zero.

If orders are few, all are enumerated. Otherwise simulation bounds their mean from above: the last epochs'
steps, which matter most, are enumerated, and the mean over the rest is bounded by the empirical
Bernstein inequality (Maurer and Pontil, 2009) or by Hoeffding's (1963) relative entropy, whichever is less.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.claims.hidden_state import spread_over_steps
from audit.laws import conversions
from audit.laws.bisection import bisect_all

Array = NDArray[np.float64]
Steps = NDArray[np.int64]

ERROR = 1e-6  # the probability with which a simulated limit is too low
MOST_ENUMERATED = 20_000  # orders
MOST_STRATA = 10_000
SIMULATED = 500_000  # orders
_LEAST_DRAWS = 50  # of each stratum
_POSITIONS = 100  # of an epoch that strata tell apart
_EPSILONS = 1000  # at which the simulated mean is bounded, all of them at once
_DROPPED = 1e-3  # the share of delta that orders with too many participations may cost
_CHUNK = 100_000  # orders whose mu are computed together
_HALVINGS = 60


class ShuffledSteps(NamedTuple):
    """The steps of a training run whose batches a sampler draws.

    Attributes:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch, a step each.
      epochs: The number of epochs.
      lipschitz: (T,) the Lipschitz constants of all steps, those of the tail among them.
      tail: The number of steps at the end that add noise and no gradient.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    lipschitz: Array
    tail: int

    @property
    def insertable(self) -> int:
        """Returns how many steps may take the example."""
        return self.batches * self.epochs


class MixtureLimit(NamedTuple):
    """An upper bound on epsilon of the last model, where orders are unknown.

    Attributes:
      epsilon: The bound at the delta that was given.
      error: The probability with which simulation made it too low; 0 where it is exact.
      orders: The number of orders that were enumerated or simulated.
      mu: A bound on mu of every order, so that the last model is mu-GDP too.
    """

    epsilon: float
    error: float
    orders: int
    mu: float


class StepWeights(NamedTuple):
    """How T steps count in the last model, in logarithms.

    W_t is the product of all Lipschitz constants after step t: what a shift in step t is multiplied by in the
    last model, at most. Noise has the standard deviation 1 in each step.

    Attributes:
      log_w: (T,) the log of W_t.
      log_before: (T + 1,) the log of the sum of W^2 over the steps before t.
      log_after: (T + 1,) the log of the sum of W^2 over step t and those after it.
      first: The first step whose shift no later step erases by a Lipschitz constant of 0.
    """

    log_w: Array
    log_before: Array
    log_after: Array
    first: int


def make_schedule(
    noise_multiplier: float, batches: int, epochs: int, lipschitz: ArrayLike = 1.0, tail: int = 0
) -> ShuffledSteps:
    """Returns the steps of a training run: those of all epochs, then steps that add noise and no gradient.

    The latter have the Lipschitz constant 1.

    Args:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch, a step each.
      epochs: The number of epochs.
      lipschitz: The Lipschitz constant of the epochs' steps, a number or one for each step.
      tail: The number of noise-only steps.

    Raises:
      InputError: Constants out of range, or neither a number nor one for each step of the epochs.
    """
    constants = spread_over_steps("lipschitz", lipschitz, batches * epochs)
    return ShuffledSteps(
        noise_multiplier, batches, epochs, np.append(constants, np.ones(tail)), tail
    )


def weigh_steps(lipschitz: Array) -> StepWeights:
    """Returns how steps of Lipschitz constants (T,) count in the last model, in logarithms.

    W_t is the product of the constants of all steps after step t: a shift in step t counts W_t times in the
    last model, at most. A constant of 0 erases all shifts before its step, but not the shift of the step
    itself, which comes after the map.
    """
    # The last step that erases what was before it; 0 if there is none.
    first = int(np.flatnonzero(lipschitz == 0).max(initial=0))
    constants = lipschitz.copy()
    constants[: first + 1] = 1.0  # these multiply only shifts before `first`, which do not count
    log_constants = np.log(constants)
    # log W_t is the sum of log constants over steps t + 1 to T - 1: a sum from the end, 0 for the last step.
    log_w = np.append(np.cumsum(log_constants[:0:-1])[::-1], 0.0)
    # Cumulative sums of W^2 from both ends; the log of an empty sum is -inf.
    log_before = np.append(-np.inf, np.logaddexp.accumulate(2 * log_w))
    log_after = np.append(np.logaddexp.accumulate(2 * log_w[::-1])[::-1], -np.inf)
    return StepWeights(log_w, log_before, log_after, first)


def compute_order_mus(
    weights: StepWeights, orders: Steps, log_shifts: Array | None = None
) -> Array:
    """Returns mu (N,) of each order: given the order, the last model is mu-GDP, for noise of deviation 1.

    An order is a list of steps: those in which the example takes part, its participations. W_t is the product
    of all Lipschitz constants after step t, and s_t = 1 the shift of a participation at step t. The bound is
    that of `hidden_state`. Blocks of neighbouring participations are pooled until their slopes rise from
    block to block, where a slope is the sum of W s over the sum of W^2. A step without the example has the
    slope of the step before it, so that a participation counts the noise from its step to the next
    participation.

    Args:
      weights: How the steps count in the last model.
      orders: (N, K) the steps of participations, ascending; T or more stands for no participation.
      log_shifts: (N, K) the log of W_t s_t, in place of that for a shift s_t = 1.
    """
    mus = []
    for start in range(0, len(orders), _CHUNK):  # in chunks, to save memory
        chunk = slice(start, start + _CHUNK)
        chunk_shifts = None if log_shifts is None else log_shifts[chunk]
        mus.append(_compute_chunk_mus(weights, orders[chunk], chunk_shifts))
    return np.concatenate(mus)


def _compute_chunk_mus(weights: StepWeights, orders: Steps, log_shifts: Array | None) -> Array:
    """Returns mu (N,) of a chunk of the orders of `compute_order_mus`.

    A participation at step t, with shift s_t, counts W_t s_t. Its noise is the sum of W^2 from step t to the
    next participation. Participations are pooled into blocks until the slopes of an order's blocks, sum of
    W s / sum of W^2, grow from each to the next (`_pool`). Then mu^2 is the sum over blocks of
    (sum of W s)^2 / sum of W^2.

    Args:
      weights: How the T steps count in the last model; W_t is the weight of step t.
      orders: (N, K) the steps of participations, ascending; T or more stands for no participation.
      log_shifts: (N, K) the log of W_t s_t; None for shifts s_t = 1.
    """
    steps = len(weights.log_w)
    ends = np.minimum(orders, steps)
    reaches_last_model = (ends < steps) & (ends >= weights.first)
    log_shifted = log_shifts
    if log_shifted is None:
        # An index that stands for no participation is out of range. The last step's weight is read instead,
        # which `_pool` ignores, since `reaches_last_model` is false there.
        indices = np.minimum(ends, steps - 1)
        log_shifted = weights.log_w[indices]
    blocks = _pool(log_shifted, _log_gaps(weights, ends), reaches_last_model)
    # The arrays of blocks are (K, N). Each order has `counts` blocks; the rows after these mean nothing.
    is_block = np.arange(len(blocks.log_sums))[:, None] < blocks.counts
    with np.errstate(over="ignore"):
        squares = np.where(is_block, np.exp(2 * blocks.log_sums - blocks.log_noises), 0.0)
    return np.asarray(np.sqrt(squares.sum(axis=0)))


class _Blocks(NamedTuple):
    """The blocks of N orders of at most K participations each.

    Attributes:
      counts: (N,) how many blocks an order has; what the other arrays hold beyond them is not read.
      log_sums: (K, N) log of each block's sum of W s.
      log_noises: (K, N) log of each block's sum of W^2.
    """

    counts: NDArray[np.intp]
    log_sums: Array
    log_noises: Array


def _pool(log_shifted: Array, log_noises: Array, counts_in: NDArray[np.bool_]) -> _Blocks:
    """Returns the blocks of N orders by pooling adjacent violators, in all orders at once.

    Each participation begins a block on top of its order's stack of blocks. The top absorbs the block below
    it as long as that block's slope, sum of W s / sum of W^2, is at least its own.

    Args:
      log_shifted: (N, K) the log of W s of each participation.
      log_noises: (N, K) the log of the sum of W^2 from it to the next participation.
      counts_in: (N, K) whether there is such a participation, and the last model shows it.
    """
    size, participations = log_shifted.shape
    # A stack for each order: `counts` blocks, with logs of their sums and noises, the top block last.
    counts = np.zeros(size, np.intp)
    sums = np.zeros((participations, size))
    noises = np.zeros((participations, size))
    for i in range(participations):
        # Participation i begins a block in the orders that have it.
        orders_with_i = np.flatnonzero(counts_in[:, i])
        sums[counts[orders_with_i], orders_with_i] = log_shifted[orders_with_i, i]
        noises[counts[orders_with_i], orders_with_i] = log_noises[orders_with_i, i]
        counts[orders_with_i] += 1

        # The top block absorbs the block below, again and again, in the orders where their slopes ask for it.
        merging = orders_with_i[counts[orders_with_i] > 1]
        while len(merging):
            top = counts[merging] - 1
            top_slope = sums[top, merging] - noises[top, merging]
            slope_below = sums[top - 1, merging] - noises[top - 1, merging]
            merging = merging[slope_below >= top_slope]
            top = counts[merging] - 1
            for totals in (sums, noises):
                merged = np.logaddexp(totals[top - 1, merging], totals[top, merging])
                totals[top - 1, merging] = merged
            counts[merging] -= 1
            merging = merging[counts[merging] > 1]
    return _Blocks(counts, sums, noises)


def _log_gaps(weights: StepWeights, ends: Steps) -> Array:
    """Returns the log of the sum of W^2 from each participation's step to the next participation (N, K).

    The sum is a difference of two sums over earlier steps, and also of two sums over later steps. It is
    computed from the smaller sums, which is more precise. It contains at least the W^2 of its first step.

    Args:
      weights: How the steps count in the last model.
      ends: (N, K) the steps of participations, ascending; T where there is none.
    """
    steps = len(weights.log_w)
    # The step of the next participation, T after the last.
    following = np.column_stack([ends[:, 1:], np.full(len(ends), steps)])
    before = weights.log_before[ends]
    after = weights.log_after[following]
    # The logs of both differences, log(e^a - e^b) = a + log(1 - e^(b - a)).
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = weights.log_before[following]
        forward = forward + np.log(-np.expm1(np.minimum(before - forward, 0.0)))
        backward = weights.log_after[ends]
        backward = backward + np.log(-np.expm1(np.minimum(after - backward, 0.0)))
    gaps = np.where(before < after, forward, backward)

    # The W^2 of the first step, in place of a smaller result of rounding, or of NaN. Where there is no
    # participation, the last step's is read, and the result means nothing.
    least = 2 * weights.log_w[np.minimum(ends, steps - 1)]
    return np.asarray(np.fmax(gaps, least))


def compute_log_deltas(mus: Array, epsilon: float) -> Array:
    """Returns log delta at epsilon of mu-GDP mechanisms, for mus of any shape; -inf where mu is 0.

    delta is Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) (Balle and Wang, 2018), with
    Phi the normal distribution function. Both terms may underflow, so that only their logarithms are taken.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_first = special.log_ndtr(-epsilon / mus + mus / 2)
        log_second = epsilon + special.log_ndtr(-epsilon / mus - mus / 2)
        # The difference's share of the first term; rounding may not make it negative.
        log_share = np.log(-np.expm1(np.minimum(log_second - log_first, 0.0)))
    return np.where(mus > 0, log_first + log_share, -np.inf)


def mix_epsilon(mus: Array, shares: Array, delta: float) -> float:
    """Returns an upper bound on epsilon at delta of a mechanism that is drawn among mu-GDP mechanisms.

    It is the epsilon at which the mean of their deltas is `delta`, rounded up. The mixture's own delta is at
    most that mean.

    Args:
      mus: (N,) mu of each mechanism.
      shares: (N,) their probabilities.
      delta: The delta of epsilon.
    """

    def exceeds(epsilons: Array) -> NDArray[np.bool_]:
        """Returns (1,) whether the mixture's delta at epsilons (1,) is above the given delta."""
        log_deltas = compute_log_deltas(mus, float(epsilons[0]))
        return np.array([np.exp(log_deltas) @ shares > delta])

    # That of the worst mechanism alone.
    highest = conversions.epsilon_from_mu(float(mus.max()), delta)
    if not exceeds(np.zeros(1))[0]:
        return 0.0
    # An array of one interval: `bisect_all` gives its upper end too, so that epsilon rounds up.
    _, high = bisect_all(exceeds, [0.0], [highest], _HALVINGS)
    return float(high[0])


def bound_fixed_order(schedule: ShuffledSteps, delta: float) -> MixtureLimit:
    """Returns the bound on the last model's epsilon for batches in a fixed order, the same in every epoch.

    It is the bound for the worst place that an example may have in that order. Nothing is simulated, so that
    its error is 0.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
    """
    weights = weigh_steps(schedule.lipschitz)
    # Row i of the orders (batches, epochs) has the steps of an example in batch i of every epoch.
    places = np.arange(schedule.batches)[:, None]
    orders = places + schedule.batches * np.arange(schedule.epochs)
    # `compute_order_mus` is for noise of deviation 1: mu is smaller by the noise multiplier.
    mu = float(compute_order_mus(weights, orders).max()) / schedule.noise_multiplier
    return MixtureLimit(conversions.epsilon_from_mu(mu, delta), 0.0, len(orders), mu)


def bound_one_of_each_epoch(
    schedule: ShuffledSteps,
    delta: float,
    seed: int = 0,
    most_enumerated: int = MOST_ENUMERATED,
    simulated: int = SIMULATED,
) -> MixtureLimit:
    """Returns the bound on the last model's epsilon where each epoch has the example in a single random step.

    All steps of the epoch have the same probability, as for shuffled batches, balls in bins and random
    allocation. An order is the list of the example's steps, one for each epoch. Few orders are enumerated.
    Many are simulated: the example's places in the last epochs, which matter most, are cut into strata, and
    the same number of orders is drawn in each stratum.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
      seed: The seed of the simulation.
      most_enumerated: The largest number of orders that is enumerated.
      simulated: About how many orders are simulated.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    weights = weigh_steps(schedule.lipschitz)
    if epochs * math.log(batches) <= math.log(most_enumerated):  # there are batches**epochs orders
        places = np.array(list(itertools.product(range(batches), repeat=epochs)))
        orders = places + batches * np.arange(epochs)  # from places in an epoch to steps of the run
        mus = compute_order_mus(weights, orders) / schedule.noise_multiplier
        equal = np.full(len(mus), 1 / len(mus))
        return MixtureLimit(mix_epsilon(mus, equal, delta), 0.0, len(mus), float(mus.max()))

    # A row of `mus` has an order from each stratum. Rows are drawn in chunks, to save memory.
    strata = _cut_last_epochs(batches, epochs, min(MOST_STRATA, most_enumerated))
    draws = max(simulated // len(strata.shares), _LEAST_DRAWS)
    rng = np.random.default_rng(seed)
    mus = np.empty((draws, len(strata.shares)))
    rows_at_once = max(_CHUNK // len(strata.shares), 1)
    for start in range(0, draws, rows_at_once):
        rows = mus[start : start + rows_at_once]  # a view, which is filled below
        places = rng.integers(0, batches, (*rows.shape, epochs))
        # In the last epochs, places are drawn anew, from each stratum's own intervals.
        last_epochs = strata.lows.shape[1]
        last_shape = (*rows.shape, last_epochs)
        last_places = rng.integers(strata.lows, strata.highs, last_shape)
        places[..., epochs - last_epochs :] = last_places
        orders = places + batches * np.arange(epochs)
        rows[:] = compute_order_mus(weights, orders.reshape(-1, epochs)).reshape(rows.shape)

    worst = _compute_worst_mus(schedule, weights, strata)
    sigma = schedule.noise_multiplier
    epsilon = _limit_mixture(mus / sigma, worst / sigma, strata.shares, delta)
    return MixtureLimit(epsilon, ERROR, mus.size, float(worst.max()) / sigma)


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
    """Cuts the example's places in the last epochs into strata, finest near the end of an epoch.

    Places near the end matter most: fewer steps come after them.

    Args:
      batches: The number of places in an epoch.
      epochs: The number of epochs.
      most: The largest number of strata.
    """
    cells = min(batches, _POSITIONS, most)
    # The number of last epochs that are cut into cells: the largest for which cells**last_epochs is at most
    # `most`. 1e-9 makes up for rounding, and 2 avoids the logarithm of a single cell, which is 0.
    last_epochs = min(int(math.log(most) / math.log(max(cells, 2)) + 1e-9), epochs)
    # Edges are distances from the epoch's end, plus 1, since a geometric grid cannot begin at 0.
    edges = np.unique(np.geomspace(1, batches + 1, cells + 1).round().astype(np.int64))
    if batches == cells:  # every place is a cell, of which rounding would merge some
        edges = np.arange(1, batches + 2)
    lows = np.sort(batches + 1 - edges[1:])
    highs = np.sort(batches + 1 - edges[:-1])
    # A stratum is a combination of a cell for each of the last epochs. The shape is given for the case of no
    # last epoch, with a single, empty combination.
    combinations = list(itertools.product(range(len(lows)), repeat=last_epochs))
    cells_of_strata = np.array(combinations, np.intp).reshape(len(combinations), last_epochs)
    shares = ((highs - lows) / batches)[cells_of_strata].prod(axis=1)
    return _Strata(lows[cells_of_strata], highs[cells_of_strata], shares)


def _compute_worst_mus(schedule: ShuffledSteps, weights: StepWeights, strata: _Strata) -> Array:
    """Returns a bound (S,) on mu of each stratum's orders: the mu of an order that is at least as bad.

    W_t is the product of all Lipschitz constants after step t, and s_t the shift in step t. mu is the largest
    sum of x_t W_t s_t over increasing x_t with sum of (x_t W_t)^2 = 1. So it rises with every W_t s_t, and
    when a participation moves to a later step with the same W_t s_t. The bad order therefore has, in each
    epoch, the last place that the stratum allows, with the largest W of all places up to it in the epoch.

    Args:
      schedule: The steps of training.
      weights: How they count in the last model.
      strata: The strata.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    ends = batches * np.arange(1, epochs + 1) - 1  # each epoch's last step
    log_w = weights.log_w[: schedule.insertable].reshape(epochs, batches)
    orders = np.tile(ends, (len(strata.shares), 1))
    log_shifts = np.tile(log_w.max(axis=1), (len(strata.shares), 1))

    # Strata limit the place in the last epochs alone: epoch i from the end, for i = 1, 2, ...
    last_epochs = strata.lows.shape[1]
    for i in range(1, last_epochs + 1):
        orders[:, -i] = batches * (epochs - i) + strata.highs[:, -i] - 1
        highest = np.maximum.accumulate(log_w[epochs - i])
        log_shifts[:, -i] = highest[strata.highs[:, -i] - 1]
    return compute_order_mus(weights, orders, log_shifts)


def bound_poisson(
    schedule: ShuffledSteps,
    delta: float,
    seed: int = 0,
    simulated: int = SIMULATED,
    rate: float | None = None,
) -> MixtureLimit:
    """Returns the bound on the last model's epsilon for Poisson sampling, with the same rate in each step.

    An order is the list of the steps that have the example. With few steps all orders are enumerated.
    Otherwise orders are simulated, and each mu is cut at that of a worst order. The worst order has, among
    the last 1, 2, 4, ... steps, as many participations as nearly all orders have at most. For the other
    orders, which have more, a thousandth of delta is set aside.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
      seed: The seed of the simulation.
      simulated: The number of orders that are simulated, rounded up to 100,000s.
      rate: The probability with which each step has the example, by default 1 / batches.
    """
    if rate is None:
        rate = 1 / schedule.batches
    steps = schedule.insertable
    sigma = schedule.noise_multiplier
    weights = weigh_steps(schedule.lipschitz)
    no_step = len(schedule.lipschitz)  # stands for no participation, after all participations
    if 2**steps <= MOST_ENUMERATED:
        taken = np.array(list(itertools.product([False, True], repeat=steps)))
        orders = np.sort(np.where(taken, np.arange(steps), no_step), axis=1)
        counts = taken.sum(axis=1)
        mus = compute_order_mus(weights, orders) / sigma
        shares = rate**counts * (1 - rate) ** (steps - counts)
        return MixtureLimit(mix_epsilon(mus, shares, delta), 0.0, len(orders), float(mus.max()))

    # The worst order has late participations. Each counts with the largest W of its step and all before it.
    # `[None]` makes it an array of a single order.
    latest = _find_latest_steps(steps, rate, _DROPPED * delta)
    highest = np.maximum.accumulate(weights.log_w[:steps])
    worst = compute_order_mus(weights, latest[None], highest[latest][None])
    rng = np.random.default_rng(seed)
    drawn: list[Array] = []
    while sum(map(len, drawn)) < simulated:
        # From each participation to the next, the number of steps is geometric. An order with more
        # participations than the worst order is cut short; _DROPPED * delta pays for it.
        gaps = rng.geometric(rate, (_CHUNK, len(latest)))
        orders = np.cumsum(gaps, axis=1) - 1
        drawn.append(compute_order_mus(weights, np.where(orders < steps, orders, no_step)))
    simulated_mus = np.minimum(np.concatenate(drawn), worst)[:, None]  # a column: a single stratum
    remaining_delta = (1 - _DROPPED) * delta
    epsilon = _limit_mixture(simulated_mus / sigma, worst / sigma, np.ones(1), remaining_delta)
    # No order leaks more than a participation in every step.
    everywhere = compute_order_mus(weights, np.arange(steps)[None], highest[None])
    return MixtureLimit(epsilon, ERROR, len(simulated_mus), float(everywhere[0]) / sigma)


def _find_latest_steps(steps: int, rate: float, dropped: float) -> Steps:
    """Returns steps of participations, ascending, that come no earlier than those of nearly all orders.

    There is a limit on the number of participations among the last 1, 2, 4, ... and among all steps. An order
    keeps to all limits except with probability `dropped`. The steps returned are the latest that keep to
    them.

    Args:
      steps: The number of steps of training.
      rate: The probability with which each step has the example.
      dropped: The probability of the orders that are left out.
    """
    lengths = np.unique(np.append(2 ** np.arange(int(math.log2(steps)) + 1), steps))
    # The limits on participations among so many last steps. Each may fail with an equal share of `dropped`.
    most = scipy.stats.binom.isf(dropped / len(lengths), lengths, rate).astype(np.int64)
    # Each limit allows some participations beyond those within fewer last steps. They take the latest steps
    # before these.
    distances: list[int] = []  # from the last step
    taken = 0
    for shorter, limit in zip(np.append(0, lengths[:-1]), most, strict=True):
        added = max(int(limit) - taken, 0)
        distances.extend(range(shorter, shorter + added))
        taken += added
    unique = np.unique(np.array(distances, np.int64))
    return np.sort(steps - 1 - unique[unique < steps])


def _limit_mixture(mus: Array, worst: Array, shares: Array, delta: float) -> float:
    """Returns an epsilon at which the mean over orders of their delta is at most `delta`.

    The statement is false with a probability of at most ERROR, over the simulation. A row of simulated orders
    has an order from every stratum, so that its weighted sum of deltas is a draw whose mean is that over all
    orders. `limit_mean` bounds this mean at each of a grid of epsilons. Bisection seeks the least epsilon of
    the grid whose bound is low enough.

    Args:
      mus: (R, S) mu of simulated orders, a row for each draw of an order from every stratum.
      worst: (S,) bounds on mu in each stratum.
      shares: (S,) the probabilities of strata.
      delta: The delta of epsilon.
    """
    highest = conversions.epsilon_from_mu(float(worst.max()), delta)
    grid = np.linspace(0.0, highest, _EPSILONS + 1)
    # Both limits of `limit_mean` may fail, at each of the epsilons: each gets an equal share of the error.
    log_inverse_error = math.log(2 * _EPSILONS / ERROR)

    def is_bounded(epsilon: float) -> bool:
        """Returns whether the limit of the mean delta at an epsilon is at most `delta`."""
        means = np.exp(compute_log_deltas(mus, epsilon)) @ shares
        most = float(np.exp(compute_log_deltas(worst, epsilon)) @ shares)
        return limit_mean(means, most, log_inverse_error) <= delta

    low = -1  # before the grid, so that epsilon 0 is tried too
    high = _EPSILONS  # where even the worst order leaks no more
    while high - low > 1:
        middle = (low + high) // 2
        if is_bounded(float(grid[middle])):
            high = middle
        else:
            low = middle
    return float(grid[high])


def limit_mean(values: Array, most: float, log_inverse_error: float) -> float:
    """Returns an upper limit of the mean of independent values (R,) from 0 to `most`.

    It is the lower of two limits. Each is below the mean with a probability of at most the error, so that the
    result is below it with a probability of at most twice the error.

    The first is the empirical Bernstein inequality (Maurer and Pontil, 2009, Theorem 11). The second is the
    relative-entropy form of Hoeffding's inequality (1963, Theorem 1): the least m at which
    R * KL(mean / most || m / most) >= log_inverse_error, where KL is between two coins; bisection finds it.

    Args:
      values: (R,) the values.
      most: The largest possible value.
      log_inverse_error: log(1 / error), with the error of each limit.
    """
    if most == 0:
        return 0.0
    draws = len(values)
    mean = float(values.mean())
    bernstein_log = log_inverse_error + math.log(2)  # the theorem has log(2 / error)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * bernstein_log / draws)
    bernstein = mean + spread + 7 * most * bernstein_log / (3 * (draws - 1))

    share = min(mean / most, 1.0)  # rounding may raise it above 1

    def is_excluded(mean_share: float) -> bool:
        """Returns whether the values exclude that their mean is this share of `most`."""
        entropy = special.rel_entr(share, mean_share) + special.rel_entr(1 - share, 1 - mean_share)
        return bool(draws * entropy >= log_inverse_error)

    low = share
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_excluded(middle):
            high = middle
        else:
            low = middle
    return min(bernstein, most * high, most)
