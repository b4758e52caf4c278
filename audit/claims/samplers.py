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
      mu: A bound on mu of every order, so that the last model is mu-GDP too.
    """

    epsilon: float
    error: float
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

    W_t is the product of the constants of all steps after step t: a shift of the model in step t is
    multiplied by W_t, at most, until the last model. A constant of 0 erases all shifts before its step, but
    not the shift of the step itself, which comes after the map.
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

    An order is a list of steps: those in which the example takes part, its participations. Each moves the
    model by a shift s_t = 1, which counts W_t s_t in the last model, at most. The noise that hides it has the
    variance sum of W^2, over the steps from t to before the next participation. mu is that of
    `hidden_state.hidden_state_bound`, computed for many orders at once.

    `log_shifts` may be those of a made-up order that is worse than others, which exceed what a shift s_t = 1
    counts. mu is then limited to that of composition, sqrt(K) for K participations, which no order exceeds.

    Args:
      weights: How the steps count in the last model.
      orders: (N, K) the steps of participations, ascending; T or more stands for no participation.
      log_shifts: (N, K) the log of W_t s_t, in place of that for a shift s_t = 1.
    """
    steps = len(weights.log_w)
    orders = np.minimum(orders, steps)  # T now stands for no participation
    # Shifts before `weights.first` are erased by a step of Lipschitz constant 0.
    reaches_last_model = (orders < steps) & (orders >= weights.first)
    if log_shifts is None:
        # The index T is out of range. The last step's weight is read in its place, and is not used.
        log_shifts = weights.log_w[np.minimum(orders, steps - 1)]
    log_noises = _compute_log_noises(weights, orders)
    squares = _pool(log_shifts, log_noises, reaches_last_model)
    composed_squares = reaches_last_model.sum(axis=1)  # shifts of 1, over noise of deviation 1
    return np.asarray(np.sqrt(np.minimum(squares, composed_squares)))


def _pool(log_shifts: Array, log_noises: Array, takes_part: NDArray[np.bool_]) -> Array:
    """Returns mu^2 (N,) of N orders by an isotonic regression in each, pooling adjacent violators.

    Neighbouring participations are joined into blocks until the slopes of an order's blocks, sum of W s / sum
    of W^2, grow from each to the next. Each order has a stack of blocks. A participation begins a block on
    top of it, and the top absorbs the block below it as long as that block's slope is at least its own. mu^2
    is the sum over blocks of (sum of W s)^2 / sum of W^2. audit/methods/README.md derives it.

    Args:
      log_shifts: (N, K) the log of W s of each participation.
      log_noises: (N, K) the log of the sum of W^2 from it to the next participation.
      takes_part: (N, K) whether there is such a participation, and the last model shows it.
    """
    size, participations = log_shifts.shape
    # A stack for each order: `counts` blocks, with logs of their sums and noises, the top block last.
    counts = np.zeros(size, np.intp)
    log_sums = np.zeros((participations, size))
    log_block_noises = np.zeros((participations, size))
    for i in range(participations):
        merging = np.flatnonzero(takes_part[:, i])  # the orders that have participation i
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

    The sum is a difference in two ways. It is the sum before the next participation less the sum before this
    one. It is also the sum from this participation on less the sum from the next on. What is subtracted
    should be small, for precision: the way whose subtrahend is smaller is taken.

    Args:
      weights: How the steps count in the last model.
      orders: (N, K) the steps of participations, ascending; T where there is none.
    """
    steps = len(weights.log_w)
    following = np.column_stack([orders[:, 1:], np.full(len(orders), steps)])  # T after the last
    log_before = weights.log_before[orders]
    log_before_following = weights.log_before[following]
    log_from = weights.log_after[orders]
    log_from_following = weights.log_after[following]

    # The log of a difference is log(e^a - e^b) = a + log(1 - e^(b - a)), with b at most a but for rounding.
    with np.errstate(divide="ignore", invalid="ignore"):
        drop_before = np.minimum(log_before - log_before_following, 0.0)
        by_sums_before = log_before_following + np.log(-np.expm1(drop_before))
        drop_from = np.minimum(log_from_following - log_from, 0.0)
        by_sums_from = log_from + np.log(-np.expm1(drop_from))
    log_noises = np.where(log_before < log_from_following, by_sums_before, by_sums_from)

    # The sum is at least the W^2 of its first step, which replaces a smaller result of rounding, or NaN.
    # Where there is no participation, the last step's is read, and the result means nothing.
    log_least = 2 * weights.log_w[np.minimum(orders, steps - 1)]
    return np.asarray(np.fmax(log_noises, log_least))


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
    """Returns an upper bound on epsilon at delta of a mixture: a mechanism drawn at random among several.

    Each of these is mu-GDP, with a mu of its own. The mixture's delta is at most the mean of their deltas.
    The result is the epsilon at which that mean is `delta`, rounded up.

    Args:
      mus: (N,) mu of each mechanism.
      shares: (N,) their probabilities.
      delta: The delta of epsilon.
    """

    def exceeds(epsilon: float) -> bool:
        """Returns whether the mean delta at an epsilon is above the given delta."""
        return bool(np.exp(compute_log_deltas(mus, epsilon)) @ shares > delta)

    if not exceeds(0.0):
        return 0.0
    highest = conversions.epsilon_from_mu(float(mus.max()), delta)  # of the worst mechanism
    return bisect(exceeds, 0.0, highest, _HALVINGS).high


def bound_fixed_order(schedule: ShuffledSteps, delta: float) -> MixtureLimit:
    """Returns the bound on the last model's epsilon for batches in a fixed order, the same in every epoch.

    It is the bound for the worst place that an example may have in that order. Nothing is simulated, so that
    its error is 0.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
    """
    # Row i of the orders (batches, epochs) has the steps of an example in batch i of every epoch.
    places = np.arange(schedule.batches)[:, None]
    orders = places + schedule.batches * np.arange(schedule.epochs)
    return _limit_worst(schedule, compute_order_mus(weigh_steps(schedule.lipschitz), orders), delta)


def bound_any_order(schedule: ShuffledSteps, delta: float) -> MixtureLimit:
    """Returns the bound on the last model's epsilon where each epoch has the example in any one of its steps.

    It is the bound for the worst order, which the adversary may know. Nothing is simulated, so that its error
    is 0. With Lipschitz constants of at most 1 the example is worst in the last step of every epoch.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
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
    """Returns the bound on the last model's epsilon where each epoch has the example in a single random step.

    All steps of the epoch have the same probability, as for shuffled batches, balls in bins and random
    allocation. An order is the list of the example's steps, a step for each epoch. The adversary does not
    know it. The bound is that on the mixture of all orders, each of which is mu-GDP.

    If there are few orders, all of them are enumerated. Otherwise orders are simulated, by stratified
    sampling: the example's places in the last epochs matter most, so these are cut into intervals. A stratum
    is a combination of intervals, and the same number of orders is drawn in each stratum. Simulation makes
    the bound too low with a probability of at most ERROR.

    Args:
      schedule: The steps of training.
      delta: The delta of epsilon.
      seed: The seed of the simulation.
      most_enumerated: The largest number of orders that is enumerated; there are no more strata either.
      simulated: About how many orders are simulated, but at least 50 in each stratum.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    sigma = schedule.noise_multiplier
    weights = weigh_steps(schedule.lipschitz)  # for noise of deviation 1
    if epochs * math.log(batches) <= math.log(most_enumerated):  # there are batches**epochs orders
        orders = np.array(list(itertools.product(range(batches), repeat=epochs)))
        orders += batches * np.arange(epochs)  # from places in an epoch to steps of the run
        return _mix_orders(schedule, orders, np.full(len(orders), 1 / len(orders)), delta)

    # `mus` (draws, strata) has in each row the mu of an order from every stratum. Rows are filled in chunks,
    # to save memory.
    strata = _cut_last_epochs(batches, epochs, min(MOST_STRATA, most_enumerated))
    draws = max(simulated // len(strata.shares), _LEAST_DRAWS)
    rng = np.random.default_rng(seed)
    mus = np.empty((draws, len(strata.shares)))
    rows_at_once = max(_CHUNK // len(strata.shares), 1)
    for start in range(0, draws, rows_at_once):
        rows = mus[start : start + rows_at_once]  # a view of `mus`, which is filled below
        places = rng.integers(0, batches, (*rows.shape, epochs))
        # In the last epochs, places from each stratum's own intervals replace these.
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
    """Returns the bound from all orders (N, K), of which one is drawn with probabilities (N,)."""
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
    """Cuts the orders of an example's steps into strata, by its places in the last epochs.

    A place is the index of a step within its epoch, from 0 to batches - 1. An epoch's places are cut into
    intervals, which are shortest near the epoch's end. There places matter most, since fewer steps come
    after them. A stratum has an interval for each of the last epochs, and any places before these epochs.

    Args:
      batches: The number of places in an epoch.
      epochs: The number of epochs.
      most: The largest number of strata.
    """
    cells = min(batches, _POSITIONS, most)  # the number of intervals
    # The number of last epochs that are cut: the largest for which cells**last_epochs is at most `most`. 1e-9
    # makes up for rounding, and 2 avoids a division by the logarithm of a single cell, which is 0.
    last_epochs = min(int(math.log(most) / math.log(max(cells, 2)) + 1e-9), epochs)

    # Edges are distances from the epoch's end, plus 1, since a geometric grid cannot begin at 0.
    edges = np.unique(np.geomspace(1, batches + 1, cells + 1).round().astype(np.int64))
    if batches == cells:  # every place is an interval, of which rounding would merge some
        edges = np.arange(1, batches + 2)
    lows = np.sort(batches + 1 - edges[1:])
    highs = np.sort(batches + 1 - edges[:-1])  # each is the place after an interval's last

    # A stratum is a combination of an interval for each of the last epochs. The shape is given for the case
    # of no last epoch, with a single, empty combination.
    combinations = list(itertools.product(range(len(lows)), repeat=last_epochs))
    cells_of_strata = np.array(combinations, np.intp).reshape(len(combinations), last_epochs)
    shares = ((highs - lows) / batches)[cells_of_strata].prod(axis=1)
    return _Strata(lows[cells_of_strata], highs[cells_of_strata], shares)


def _compute_worst_mus(schedule: ShuffledSteps, strata: _Strata) -> Array:
    """Returns an upper bound (S,) on the mu of all orders in each stratum, for noise of deviation 1.

    W_t is the product of all Lipschitz constants after step t, and s_t the shift in step t. mu is the largest
    sum of x_t W_t s_t over increasing x_t with sum of (x_t W_t)^2 = 1. So mu rises with every W_t s_t, and
    when a participation moves to a later step at the same W_t s_t. The bound is the mu of a made-up order
    that is at least as bad as all others in the stratum. In each epoch it takes part at the last place that
    the stratum allows, with the largest W of all places that it allows.

    Args:
      schedule: The steps of training.
      strata: The strata.
    """
    batches = schedule.batches
    epochs = schedule.epochs
    weights = weigh_steps(schedule.lipschitz)

    # At first no place is ruled out: each stratum (row) has the last step of each epoch (column), with the
    # largest W of the epoch.
    rows = (len(strata.shares), 1)
    log_w = weights.log_w[: schedule.insertable].reshape(epochs, batches)
    orders = np.tile(batches * np.arange(1, epochs + 1) - 1, rows)
    log_shifts = np.tile(log_w.max(axis=1), rows)

    # In the last epochs a stratum allows only some places. Epoch -i is the i-th from the end.
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

    An order is the list of the steps that have the example. The adversary does not know it. The bound is that
    on the mixture of all orders, each of which is mu-GDP. With few steps all orders are enumerated.

    Otherwise orders are simulated. A bound on their mean delta needs an upper limit on mu. It is the mu of a
    made-up order that is worse than nearly all others (`_find_latest_steps`). The orders that may be worse
    have a probability of at most a thousandth of delta, which is set aside for them.

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
    weights = weigh_steps(schedule.lipschitz)  # for noise of deviation 1
    no_step = len(schedule.lipschitz)  # stands for no participation; greater than any step
    if 2**steps <= MOST_ENUMERATED:
        # Every combination of steps with and without the example, (orders, steps).
        taken = np.array(list(itertools.product([False, True], repeat=steps)))
        orders = np.sort(np.where(taken, np.arange(steps), no_step), axis=1)
        counts = taken.sum(axis=1)
        return _mix_orders(schedule, orders, rate**counts * (1 - rate) ** (steps - counts), delta)

    # The worst order has late participations. Other orders have earlier ones, whose W may be larger. So each
    # counts with the largest W of its step and all before it. `[None]` makes an array of a single order.
    latest = _find_latest_steps(steps, rate, _DROPPED * delta)
    largest_log_w = np.maximum.accumulate(weights.log_w[:steps])
    worst = compute_order_mus(weights, latest[None], largest_log_w[latest][None])

    rng = np.random.default_rng(seed)
    drawn: list[Array] = []
    while sum(map(len, drawn)) < simulated:
        # From each participation to the next, the number of steps is geometric. Orders are cut short after as
        # many participations as the worst order has; those with more are part of what is set aside.
        gaps = rng.geometric(rate, (_CHUNK, len(latest)))
        orders = np.cumsum(gaps, axis=1) - 1
        drawn.append(compute_order_mus(weights, np.where(orders < steps, orders, no_step)))
    # The mu of an order that is worse is cut at the limit. As a column, the orders are a single stratum.
    simulated_mus = np.minimum(np.concatenate(drawn), worst)[:, None]
    remaining_delta = (1 - _DROPPED) * delta
    epsilon = _limit_mixture(simulated_mus / sigma, worst / sigma, np.ones(1), remaining_delta)
    # No order at all leaks more than participation in every step, which bounds mu without exception.
    everywhere = compute_order_mus(weights, np.arange(steps)[None], largest_log_w[None])
    return MixtureLimit(epsilon, ERROR, float(everywhere[0]) / sigma)


def _find_latest_steps(steps: int, rate: float, dropped: float) -> Steps:
    """Returns steps of participations (K,), ascending, that come no earlier than those of nearly all orders.

    Late participations leak most. So there are limits on the number of participations among the last 1, 2, 4,
    ... and among all steps. A random order meets all limits, except with a probability of at most `dropped`.
    The result is the order with the latest and most participations that still meets them.

    Args:
      steps: The number of steps of training.
      rate: The probability with which each step has the example.
      dropped: The probability of the orders that are left out.
    """
    # The limit on participations among the last 1, 2, 4, ... steps: a quantile of their binomial law. Each
    # limit may fail with an equal share of `dropped`.
    lengths = np.unique(np.append(2 ** np.arange(int(math.log2(steps)) + 1), steps))
    limits = scipy.stats.binom.isf(dropped / len(lengths), lengths, rate).astype(np.int64)

    # From the end of training backwards: the steps within `shorter` of the end have `taken` participations
    # already. Where the next limit allows more, these take the latest steps before them.
    distances: list[int] = []  # from the last step
    taken = 0
    for shorter, limit in zip(np.append(0, lengths[:-1]), limits, strict=True):
        added = max(int(limit) - taken, 0)
        distances.extend(range(shorter, shorter + added))
        taken += added

    # In theory no range overlaps the next, or reaches back before the first step. This makes sure of it.
    unique = np.unique(np.array(distances, np.int64))
    return np.sort(steps - 1 - unique[unique < steps])


def _limit_mixture(mus: Array, worst: Array, shares: Array, delta: float) -> float:
    """Returns an upper bound on epsilon of the mixture of all orders, from orders that were simulated.

    The mixture's delta is at most the mean of all orders' deltas. At the epsilon that is returned this mean
    is at most `delta`, except with a probability of at most ERROR, over the simulation.

    A row of simulated orders has an order from every stratum. The sum of their deltas, weighted by the
    strata's probabilities, is a draw whose mean is that over all orders. `limit_mean` bounds this mean at
    each epsilon of a grid, and bisection seeks the least epsilon whose bound is low enough.

    Args:
      mus: (R, S) mu of simulated orders, a row for each draw of an order from every stratum.
      worst: (S,) bounds on mu in each stratum.
      shares: (S,) the probabilities of strata.
      delta: The delta of epsilon.
    """
    highest = conversions.epsilon_from_mu(float(worst.max()), delta)
    grid = np.linspace(0.0, highest, _EPSILONS + 1)
    # `limit_mean` uses two limits, each of which may fail at each of the epsilons: all get an equal share of
    # the error.
    log_inverse_error = math.log(2 * _EPSILONS / ERROR)

    def is_bounded(epsilon: float) -> bool:
        """Returns whether the limit of the mean delta at an epsilon is at most `delta`."""
        means = np.exp(compute_log_deltas(mus, epsilon)) @ shares
        most = float(np.exp(compute_log_deltas(worst, epsilon)) @ shares)
        return limit_mean(means, most, log_inverse_error) <= delta

    # The mean delta is low enough at the last index, since even that of the worst orders is.
    indices = range(_EPSILONS)
    first = bisect_left(indices, True, key=lambda index: is_bounded(float(grid[index])))
    return float(grid[first])


def limit_mean(values: Array, most: float, log_inverse_error: float) -> float:
    """Returns an upper limit of the mean of independent values (R,) from 0 to `most`.

    It is the lower of two limits. Each is wrong, below the mean, with a probability of at most the error. So
    the result is wrong with a probability of at most twice the error.

    The first is the empirical Bernstein inequality (Maurer and Pontil, 2009, Theorem 11). The second is the
    relative-entropy form of Hoeffding's inequality (1963, Theorem 1): the least m at which
    R * KL(mean / most || m / most) >= log_inverse_error, where KL is between two coins; bisection finds it.

    Args:
      values: (R,) the values.
      most: The largest possible value.
      log_inverse_error: log(1 / error), with the error of each limit.
    """
    if most == 0:  # all values are 0
        return 0.0
    draws = len(values)
    mean = float(values.mean())

    # The empirical Bernstein inequality.
    bernstein_log = log_inverse_error + math.log(2)  # the theorem has log(2 / error)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * bernstein_log / draws)
    bernstein = mean + spread + 7 * most * bernstein_log / (3 * (draws - 1))

    # Hoeffding's inequality, of values over `most`, by bisection from their mean up to 1.
    share = min(mean / most, 1.0)  # rounding may raise it above 1

    def is_possible(mean_share: float) -> bool:
        """Returns whether the values allow that their mean is this share of `most`."""
        entropy = special.rel_entr(share, mean_share) + special.rel_entr(1 - share, 1 - mean_share)
        return bool(draws * entropy < log_inverse_error)

    hoeffding = most * bisect(is_possible, share, 1.0, _HALVINGS).high
    return min(bernstein, hoeffding, most)
