"""Is a claim of Poisson sampling refuted by the batches that a loader really draws? No training.

The worst-case game of Chua et al. (2024, "How private are DP-SGD implementations?") with the loader's own
batches. Of a training run, which is a run here, the adversary sees every noisy sum along one direction. All
others' gradients are -C there and the target's is C in the world with it, zero in the other, so that the sum
of its batch lies 2 or 1 above those of the rest. Two statistics, both of which ignore the order of an epoch:

    the largest sum                 for which only the noise's tail counts
    the log-likelihood ratio S      of Gaussian noise, for which a(c) = E_in[ e^-S 1{S > c} ]

Where noise may not be Gaussian, the largest sum alone is looked at, by the exact law of Student's t:
the direction is drawn afresh for every run, and the noise knows nothing of it.

Where sizes of batches vary, or examples come twice in a pass, all others' gradients are 0 instead, and S is
the ratio of Poisson sampling. The claim allows a test of false-positive rate a(c) a power of at most m(a(c)),
and runs bet against that (`audit.methods.claimed_curve`); thresholds are chosen by simulation beforehand.

These records are the worst that a guarantee has to hold for. What they show is no leak of a user's data.
"""

import functools
import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.check import loaders
from audit.check.accounting import require_least_rate
from audit.check.report import describe_error
from audit.claims.claim import DpSgd
from audit.claims.samplers import limit_mean
from audit.errors import InputError, require
from audit.json_text import write_json
from audit.laws import conversions
from audit.methods import claimed_curve
from audit.methods.claimed_curve import BETS, NEAR, THRESHOLDS, Exceedances
from audit.runtime.progress import counted
from audit.values import number, shown

Array = NDArray[np.float64]
DrawNoise = Callable[[np.random.Generator], Any]  # the noise of one sum, (d,) in units of C

WORST_CASE = (
    "The records are the worst that a guarantee has to hold for; this is no leak of your data."
)
_COLUMNS = 80
_DELTA = 1e-5  # of the epsilon that stands for the claim in sentences
_REHEARSED = 3  # passes drawn first, whose batches decide the game
_SIMULATED = 20_000  # simulated runs, from which thresholds are chosen before the first real run
_MOST_NORMALS = 3 * 10**7  # normal numbers drawn for all simulated runs
_LOG_INVERSE_ERROR = math.log(1e6)  # log(1 / error) of each limit of a simulated rate
_CANDIDATES = 40  # thresholds tried of each statistic
_KEPT = 3  # the number of tests on which most of the capital is
_TOGETHER = 4  # runs between two evaluations of the e-value


class WorstCase(NamedTuple):
    """The worst-case game that a loader's batches admit.

    Attributes:
      noise_multiplier: sigma, the noise's standard deviation over the clipping norm C.
      batches: the number of batches of a pass that are played: all, or as many as training has steps.
      epochs: the number of passes of a run.
      once: whether batches have known sizes and no example comes twice in a pass. If so, all other examples'
        gradients are -C in the game; if not, they are 0.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    once: bool

    @property
    def sampling_rate(self) -> float:
        """The rate of Poisson sampling whose likelihood ratio is a statistic, if not `once`.

        Any rate gives a valid test. Of a pass of a single batch it is 1/2, since a rate of 1 would leave no
        choice.
        """
        return 1 / max(self.batches, 2)


class _Tests(NamedTuple):
    """The tests of the target's presence that runs bet on, one for each of the T THRESHOLDS of claimed_curve.

    Attributes:
      largest: (T,) whether a test's statistic is the largest sum; if not, it is the log-likelihood ratio.
      thresholds: (T,) the thresholds that the statistic must exceed for the test to see the target.
      log_rates: (T,) the logs of upper limits of the tests' false-positive rates.
    """

    largest: NDArray[np.bool_]
    thresholds: Array
    log_rates: Array


@dataclass(frozen=True)
class Refutation:
    """Whether the batches of a loader refute a claim of Poisson sampling.

    Attributes:
      e_value: the evidence against the claim. If the claim is true, it reaches 1 / error with a probability
        of at most error.
      refuted: whether the e-value has reached 1 / (1 - confidence).
      passes: the number of runs until the refutation, or of all runs.
      epochs: the number of passes over the loader in each run.
      claimed: the claim's epsilon at delta 1e-5.
    """

    e_value: float
    refuted: bool
    passes: int
    epochs: int
    claimed: float

    @property
    def verdict(self) -> str:
        """The conclusion, in a single line."""
        claim = f"Poisson sampling's epsilon {self.claimed:.3g} at delta {_DELTA:g}"
        if self.refuted:
            return f"REFUTED: these batches leak more than {claim}"
        runs_do = counted(self.passes, "run of these batches does", "runs of these batches do")
        return f"NOT REFUTED: {runs_do} not contradict {claim}"

    def to_json(self) -> str:
        """Returns the result as JSON text, in which null stands for infinity."""
        fields = {
            "verdict": self.verdict,
            "refuted": self.refuted,
            "e_value": self.e_value,
            "passes": self.passes,
            "epochs": self.epochs,
            "claimed": self.claimed,
            "records": WORST_CASE,
        }
        return write_json(fields, indent=2)

    def __str__(self) -> str:
        """Returns the verdict and its evidence, at most 80 columns wide."""
        runs = f"{counted(self.passes, 'run')} of {counted(self.epochs, 'epoch')}"
        evidence = f"e-value {self.e_value:.3g} after {runs}"
        lines = []
        for text in (self.verdict, evidence, WORST_CASE):
            lines.extend(textwrap.wrap(text, _COLUMNS, subsequent_indent="  "))
        return "\n".join(lines)


def refute_sampler(
    draw: Any,
    examples: int,
    claim: DpSgd,
    *,
    passes: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    noise: DrawNoise | None = None,
) -> Refutation:
    """Tests whether a loader's batches refute a claim of Poisson sampling, in the worst case; trains nothing.

    Each run simulates training with the loader's own batches. It draws a target at random among the examples,
    adds noise to every batch's sum of worst-case gradients, and looks whether tests see the target in the
    sums. If they see it more often than the claim allows, the claim is refuted.

    Args:
      draw: a function from a seed to the batches of one pass over the loader, or to a single batch; a batch
        is the indices, from 0, of its examples. Passes are drawn with seeds 0, 1, ... Or a loader on
        `audit.Indices`, as `check_batches` takes it.
      examples: the number of examples of the data set.
      claim: `DpSgd(noise_multiplier, insertions, sampling_rate)`, insertions being all steps of training.
      passes: the largest number of runs, each through all epochs; the test ends once the claim is refuted.
      confidence: the confidence of a refutation: a true claim is refuted with probability 1 - confidence at
        most.
      seed: the seed of noise and targets.
      noise: a function from a NumPy generator to the noise (d,) of one sum, in units of C, where the noise is
        not Gaussian or its law is unknown; by default Gaussian noise of the claim's noise multiplier.

    Returns:
      The evidence against the claim, and whether it refutes the claim.

    Raises:
      InputError: a number is out of range, `draw` draws no batches, or `noise` gives no vectors.

    >>> import numpy as np
    >>> def shuffled(seed):
    ...     return np.random.default_rng(seed).permutation(60).reshape(20, 3)
    >>> claim = audit.DpSgd(noise_multiplier=0.5, insertions=20, sampling_rate=0.05)
    >>> audit.refute_sampler(shuffled, 60, claim).refuted
    True
    """
    require(noise is None or callable(noise), f"`noise={shown(noise)}` is no function: give one")
    draw = loaders.make_draw(draw)
    examples = number("examples", examples, int)
    passes = number("passes", passes, int)
    require(2 <= examples <= 10**9, f"`examples={examples}`: give 2 to 1,000,000,000")
    require(1 <= passes <= 10**6, f"`passes={passes}`: give 1 to 1,000,000")
    is_sampled = type(claim) is DpSgd and claim.sampling_rate < 1 and claim.noise_multiplier > 0
    require(is_sampled, f"`claim={shown(claim)}`: give audit.DpSgd with noise and a sampling_rate")
    conversions.require_confidence(confidence)

    require(
        claim.insertions >= 1,
        f"`claim={shown(claim)}`: give at least 1 insertion, the steps of training",
    )
    require_least_rate(claim.sampling_rate)

    # Without the claim's Lipschitz constants: they bound the last model alone, but here every sum is seen.
    claim = DpSgd(*claim.composition)
    loader = _iterate_passes(draw, examples, round(1 / claim.sampling_rate))

    # The game and its tests are fixed before the runs that count, so that bets on these are fair. The game is
    # which gradients the examples have and how many batches and epochs a run has.
    rehearsed = [next(loader) for _ in range(_REHEARSED)]
    game = _choose_game(rehearsed, claim)
    tests = _choose_tests(game, claim, noise is None)
    sizes = _find_sizes(rehearsed[0])[: claim.insertions]

    rng = np.random.default_rng(seed)
    shares: list[Array] = []  # of each run: 1 for each test that sees the target, else 0
    test = claimed_curve.ClaimTest(1.0, False, 0)  # no evidence yet: an e-value of 1
    while len(shares) < passes and not test.refuted:
        # A few more runs, all with the target, before the evidence is computed again.
        for _ in range(min(_TOGETHER, passes - len(shares))):
            target = int(rng.integers(examples))
            run = [next(loader)[: claim.insertions] for _ in range(game.epochs)]
            heights = _find_heights(run, target, sizes, game)
            if heights is None:  # an irregular run: no test sees the target
                shares.append(np.zeros(len(tests.thresholds)))
            elif noise is None:
                shares.append(_look(heights, game, tests, rng))
            else:
                shares.append(_look_at_any_noise(heights, game, tests, noise, rng))
        counted = Exceedances(np.array(shares), tests.log_rates, in_order=True)
        test = claimed_curve.examine_claim(counted, claim.power, confidence)
    return Refutation(test.e_value, test.refuted, test.runs, game.epochs, _claim_epsilon(claim))


def _iterate_passes(
    draw: Callable[[int], Any], examples: int, batches: int
) -> Iterator[list[NDArray[np.int64]]]:
    """Yields the batches of each pass over a loader, pass after pass, without end.

    Seeds count up from 0, a seed for each call of `draw`.

    Args:
      draw: the function from a seed to the batches of a pass, or to a single batch.
      examples: the number of examples of the data set.
      batches: the number of batches that make a pass, for a loader that yields a single batch at a time.
    """
    seed = 0
    while True:
        drawn = loaders.draw_pass(draw, seed, examples).batches
        seed += 1
        # A single batch from a call: as many calls as a pass has batches make a pass.
        if len(drawn) == 1:
            for _ in range(batches - 1):
                drawn += loaders.draw_pass(draw, seed, examples).batches[:1]
                seed += 1
        yield drawn


def _find_sizes(batches: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Returns how many examples each batch of a pass holds, (batches,)."""
    return np.array([len(batch) for batch in batches])


def _choose_game(rehearsed: list[list[NDArray[np.int64]]], claim: DpSgd) -> WorstCase:
    """Returns the worst-case game that the batches of a few passes admit.

    The game's batches have known sizes if every pass has the same sizes and no example twice. Where training
    has fewer steps than a pass has batches, the game has as many batches as steps. Then the target may be in
    none of them, and all other examples' gradients are 0.

    Args:
      rehearsed: the batches of these passes.
      claim: the claim, whose steps and noise the game has.
    """
    sizes = _find_sizes(rehearsed[0])
    once = True
    for batches in rehearsed:
        indices = np.concatenate(batches)
        has_sizes = np.array_equal(_find_sizes(batches), sizes)
        once = once and has_sizes and len(np.unique(indices)) == len(indices)
    if claim.insertions < len(sizes):
        return WorstCase(claim.noise_multiplier, claim.insertions, epochs=1, once=False)
    epochs = claim.insertions // len(sizes)  # as many passes as the claim's steps make
    return WorstCase(claim.noise_multiplier, len(sizes), epochs, once)


def _find_heights(
    run: list[list[NDArray[np.int64]]],
    target: int,
    sizes: NDArray[np.int64],
    game: WorstCase,
) -> Array | None:
    """Returns how far the target raises each batch's sum before noise, in units of C.

    Args:
      run: the batches of each epoch's pass.
      target: the index of the target.
      sizes: (batches,) the sizes of a pass's batches, which every pass has to have if `game.once`.
      game: the game.

    Returns:
      The heights (epochs, batches): 0 for batches without the target; for others 2 if `game.once`, else 1.
      None where the run does not fit the game. That is so if a pass has another number of batches, or if a
      batch holds the target twice. If `game.once`, it is so, too, if a pass has batches of other sizes, or
      holds the target twice.
    """
    taken = np.zeros((game.epochs, game.batches))
    for epoch, batches in enumerate(run):
        if len(batches) != game.batches:
            return None
        if game.once and not np.array_equal(_find_sizes(batches), sizes):
            return None
        # The index of the batch that each example of the pass is in.
        steps = np.repeat(np.arange(game.batches), _find_sizes(batches))
        steps_with_target = steps[np.concatenate(batches) == target]
        taken[epoch] = np.bincount(steps_with_target, minlength=game.batches)
    if taken.max() > 1 or (game.once and taken.sum(axis=1).max() > 1):
        return None
    # The target's C replaces another example's -C where batches have known sizes; else it is added to 0.
    height = 2.0 if game.once else 1.0
    return height * taken


def _look(heights: Array, game: WorstCase, tests: _Tests, rng: np.random.Generator) -> Array:
    """Adds Gaussian noise to a run's sums; returns whether each test sees the target, (T,) of 0 or 1.

    Args:
      heights: (epochs, batches) the sums before noise, in units of C.
      game: the game.
      tests: the tests.
      rng: the generator of the noise.
    """
    sums = heights + game.noise_multiplier * rng.standard_normal(heights.shape)
    # [None] and [0]: the ratios are computed for several runs, of which this is the only.
    statistics = np.where(tests.largest, sums.max(), _compute_ratios(sums[None], game)[0])
    return np.asarray(statistics > tests.thresholds, np.float64)


def _look_at_any_noise(
    heights: Array, game: WorstCase, tests: _Tests, noise: DrawNoise, rng: np.random.Generator
) -> Array:
    """Adds a caller's noise to a run's sums; returns whether each test sees the target, (T,) of 0 or 1.

    The noise may have any law. All records' gradients lie along a direction v, which is uniform and
    independent of the noise Z of every sum. So, given its length |Z|, the noise <v, Z> along v is distributed
    as |Z| times a coordinate of a uniform unit vector. This law is exact (see `_find_tail`). From it follows
    a bound on the probability, in the world without the target, of a largest sum as large as this run's.

    Args:
      heights: (epochs, batches) the sums along v before noise, in units of C.
      game: the game.
      tests: the tests, all of the largest sum.
      noise: the function from a generator to the noise (d,) of a single sum, in units of C.
      rng: the generator of noise and direction.
    """
    drawn = [_draw_noise(noise, rng) for _ in range(heights.size)]  # of each sum of the run
    dimension = len(drawn[0])
    have_one_length = all(len(vector) == dimension for vector in drawn)
    require(have_one_length, "`noise` gave vectors of several lengths: give (d,) of one d")
    vectors = np.array(drawn)
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)

    lengths = np.linalg.norm(vectors, axis=1).reshape(heights.shape)
    along_direction = (vectors @ direction).reshape(heights.shape)
    largest = float((heights + along_direction).max())
    # In the world without the target, its gradient is 0. Where all others' gradients are -C, the sum of its
    # batch is then larger than other sums by C.
    in_target = 1.0 if game.once else 0.0
    rate = _bound_rate_of_lengths(largest, lengths, dimension, in_target)
    # A test sees the target if so large a sum has, without it, at most the test's false-positive rate.
    return np.asarray(rate <= np.exp(tests.log_rates), np.float64)


def _bound_rate_of_lengths(
    threshold: float, lengths: Array, dimension: int, in_target: float
) -> float:
    """Returns an upper bound on the probability that any noisy sum exceeds a threshold, without the target.

    The direction along which sums are taken is random, the lengths of their noise are given. The bound is a
    union bound: the sum of each batch's probability. In every epoch a single batch has a sum that is higher
    before noise, by `in_target`. It may be any batch. So the bound adds, for every epoch, the probability of
    a higher sum with the noise that makes it most probable. That is the longest noise where the threshold is
    above `in_target`, and the shortest where it is below.

    Args:
      threshold: the threshold of the sums along the direction, in units of C.
      lengths: (epochs, batches) the lengths of the noise vectors, in units of C.
      dimension: d, the noise's number of entries.
      in_target: the sum before noise, in units of C, of the batch that holds the target in the other world, a
        single batch of each epoch. All other sums are 0 before noise; if this is 0, too, no term is added.
    """
    # Noise of length 0 has a tiny length instead: it exceeds no threshold above 0.
    all_sums = _find_tail(threshold / np.maximum(lengths, 1e-300), dimension).sum()
    if in_target == 0:
        return float(all_sums)
    # Long noise lifts the higher sum over a threshold above it; short noise leaves it over one below it.
    is_above = threshold > in_target
    likeliest = lengths.max(axis=1) if is_above else lengths.min(axis=1)  # (epochs,)
    higher = _find_tail((threshold - in_target) / np.maximum(likeliest, 1e-300), dimension)
    higher_sums = higher.sum()
    return float(all_sums + higher_sums)


def _find_tail(cosines: Array, dimension: int) -> Array:
    """Returns the probability that a coordinate of a uniform unit vector of R^d exceeds each cosine.

    For a coordinate c of the vector, sqrt((d - 1) / (1 - c^2)) c follows Student's t law with d - 1 degrees
    of freedom. Cosines above 1 are never exceeded, and those below -1 always are.
    """
    inside = np.clip(cosines, -1.0, 1.0)
    with np.errstate(divide="ignore"):  # a cosine of 1 or -1 gives an infinite t
        students = inside * np.sqrt((dimension - 1) / (1 - inside**2))
    return np.asarray(special.stdtr(dimension - 1, -students))


def _draw_noise(noise: DrawNoise, rng: np.random.Generator) -> Array:
    """Returns a draw of a caller's noise (d,); raises InputError unless it is a finite vector."""
    try:
        vector = np.asarray(noise(rng), np.float64)
    except Exception as error:  # of the caller's code
        raise InputError(f"`noise` failed: {describe_error(error)}") from error
    is_vector = vector.ndim == 1 and len(vector) >= 2 and bool(np.isfinite(vector).all())
    require(is_vector, "`noise` gave no vector of finite numbers: return (d,), d at least 2")
    return vector


def _compute_ratios(sums: Array, game: WorstCase) -> Array:
    """Returns each run's log-likelihood ratio (R,) of the world with the target to that without it.

    Args:
      sums: (R, epochs, batches) the noisy sums, in units of C.
      game: the game. If `game.once`, the target's batch is uniform over an epoch's batches; else each batch
        holds the target with probability `game.sampling_rate`, as in Poisson sampling.
    """
    variance = game.noise_multiplier**2
    # The log of the density of N(m, sigma^2) over that of N(0, sigma^2) at x is (m x - m^2 / 2) / sigma^2.
    if game.once:
        # All others' gradients are -C. The target's is C in the world with it and 0 in the other, in place of
        # another -C. So, less what as many others give, the sum of the target's batch is N(2, sigma^2) with
        # the target and N(1, sigma^2) without it. All other sums are N(0, sigma^2).
        # Each batch of an epoch may be the target's: the densities are summed over these. The factor
        # 1 / batches of their mean is the same in both worlds and cancels.
        with_target = special.logsumexp((2 * sums - 2) / variance, axis=-1)
        without_target = special.logsumexp((sums - 0.5) / variance, axis=-1)
        return np.asarray((with_target - without_target).sum(axis=-1))

    # A sum is N(1, sigma^2) if the batch takes the target, else N(0, sigma^2).
    rate = game.sampling_rate
    taken = math.log(rate) + (sums - 0.5) / variance
    return np.asarray(np.logaddexp(math.log1p(-rate), taken).sum(axis=(-2, -1)))


def _simulate(game: WorstCase) -> tuple[Array, Array]:
    """Simulates R runs with the target; returns their log-likelihood ratios and largest sums, (R,) each.

    If `game.once`, the target is in a uniform batch of each epoch; else it is in each batch with probability
    `game.sampling_rate`. The seed is fixed.
    """
    rng = np.random.default_rng(0)
    steps = game.batches * game.epochs
    runs = min(_SIMULATED, max(_MOST_NORMALS // steps, 1000))
    together = max(10**6 // steps, 1)  # runs that are in memory at once
    ratios = []
    largest = []
    for start in range(0, runs, together):
        shape = (min(together, runs - start), game.epochs, game.batches)
        sums = game.noise_multiplier * rng.standard_normal(shape)
        if game.once:
            places = rng.integers(0, game.batches, shape[:2])  # (runs, epochs)
            # The target's C in place of another example's -C adds 2 to its batch's sum.
            sums += 2.0 * (np.arange(game.batches) == places[..., None])
        else:
            sums += rng.random(shape) < game.sampling_rate
        ratios.append(_compute_ratios(sums, game))
        largest.append(sums.max(axis=(1, 2)))
    return np.concatenate(ratios), np.concatenate(largest)


@functools.lru_cache(maxsize=16)
def _claim_epsilon(claim: DpSgd) -> float:
    """Returns a claim's epsilon at _DELTA."""
    return claim.epsilon(_DELTA)


# Cached, since the simulation is slow and its result follows from the arguments alone.
@functools.lru_cache(maxsize=16)
def _choose_tests(game: WorstCase, claim: DpSgd, is_gaussian: bool = True) -> _Tests:
    """Returns the tests on which bets against the claim make capital grow fastest in simulated runs.

    A test sees the target if its statistic exceeds its threshold. Candidates are tests of both statistics,
    the log-likelihood ratio and the largest sum, with quantiles of the simulated runs as thresholds. The runs
    that count bet on each test that it sees the target more often than the claim allows.

    Args:
      game: the game.
      claim: the claim, which limits a test's power, the probability that it sees the target, by its
        false-positive rate.
      is_gaussian: whether the noise is Gaussian; if not, all tests are of the largest sum, since the ratio is
        that of Gaussian densities.
    """
    ratios, largest = _simulate(game)
    levels = np.linspace(0.02, 0.98, _CANDIDATES)
    ratio_thresholds = np.quantile(ratios, levels)
    largest_thresholds = np.quantile(largest, levels)

    # Each candidate's false-positive rate, the power that the claim allows at this rate, and the power that
    # the candidate has. The tests of the ratio come first in all arrays below, then those of the largest sum.
    log_rates = [_limit_log_rate(ratios, float(threshold)) for threshold in ratio_thresholds]
    log_rates.extend(_bound_log_rate(game, float(threshold)) for threshold in largest_thresholds)
    all_log_rates = np.array(log_rates)
    allowed = np.maximum(claim.power(np.exp(all_log_rates)), 1e-300)  # a divisor below
    powers = 1 - np.concatenate([levels, levels])  # the share of simulated runs above a quantile

    # A bet c multiplies capital by 1 + c (1 / m - 1) where the test sees the target, else by 1 - c; m is the
    # power that the claim allows. The growth is the mean log of this factor, at the best bet for each test.
    seen = powers * np.log1p(BETS[:, None] * (1 / allowed - 1))
    missed = (1 - powers) * np.log1p(-BETS[:, None])
    growth = (seen + missed).max(axis=0)  # seen, missed: (bets, candidates)
    best = np.argsort(-growth, kind="stable")
    if not is_gaussian:
        # The second half of the candidates are tests of the largest sum.
        best = best[best >= _CANDIDATES]

    # claimed_curve bets on a fixed number of tests, one for each of its THRESHOLDS, and puts most of the
    # capital on those in NEAR. So the best _KEPT tests fill the places of NEAR, repeated in turn. All
    # candidates, the best first, fill the other places, repeated if they are too few.
    near = np.resize(best[:_KEPT], len(NEAR))
    far = np.resize(best, len(THRESHOLDS) - len(NEAR))
    chosen = np.concatenate([near, far])
    thresholds = np.concatenate([ratio_thresholds, largest_thresholds])[chosen]
    return _Tests(chosen >= _CANDIDATES, thresholds, all_log_rates[chosen])


def _limit_log_rate(ratios: Array, threshold: float) -> float:
    """Returns the log of an upper limit of a test's false-positive rate, by importance sampling.

    The test sees the target if its log-likelihood ratio S exceeds a threshold c. S is the log of the density
    of a run with the target over that without it. So, without the target, S exceeds c with probability
    E[e^-S 1{S > c}] = e^-c E[e^(c - S) 1{S > c}], where E is over runs with the target. The terms of the last
    mean lie between 0 and 1.

    Args:
      ratios: (R,) S of simulated runs with the target.
      threshold: c.
    """
    # The terms of the mean. The minimum prevents an overflow where the second factor is 0.
    weights = np.exp(np.minimum(threshold - ratios, 0.0)) * (ratios > threshold)
    mean_limit = limit_mean(weights, 1.0, _LOG_INVERSE_ERROR)  # of terms up to 1
    return min(math.log(mean_limit) - threshold, 0.0)  # a rate is at most 1


def _bound_log_rate(game: WorstCase, threshold: float) -> float:
    """Returns the log of an upper bound on the false-positive rate of a test of the largest sum.

    It is a union bound, the sum of the probabilities with which each Gaussian sum of a run without the target
    exceeds the threshold.

    Args:
      game: the game.
      threshold: the threshold of the largest sum, in units of C.
    """
    # In the world without the target, its gradient is 0. Where all others' gradients are -C, the sum of its
    # batch is then larger than other sums by C.
    in_target = 1.0 if game.once else 0.0
    sigma = game.noise_multiplier
    # The target's batch of an epoch, and all others together. With a single batch there is no other: the
    # maximum avoids log 0, and the bound counts a sum too many.
    log_target_tail = special.log_ndtr((in_target - threshold) / sigma)
    log_other_tails = math.log(max(game.batches - 1, 1)) + special.log_ndtr(-threshold / sigma)
    log_epoch_rate = float(special.logsumexp(np.array([log_target_tail, log_other_tails])))
    return min(math.log(game.epochs) + log_epoch_rate, 0.0)  # a rate is at most 1
