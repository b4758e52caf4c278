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
import json
import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.check import loaders
from audit.check.report import describe_error
from audit.claims.claim import DpSgd
from audit.claims.samplers import limit_mean
from audit.errors import InputError, require
from audit.laws import conversions
from audit.methods import claimed_curve
from audit.methods.claimed_curve import BETS, NEAR, THRESHOLDS, Exceedances
from audit.values import number, shown

Array = NDArray[np.float64]
DrawNoise = Callable[[np.random.Generator], Any]  # the noise of one sum, (d,) in units of C

WORST_CASE = (
    "The records are the worst that a guarantee has to hold for; this is no leak of your data."
)
_COLUMNS = 80
_REHEARSED = 3  # passes whose batches decide the game
_SIMULATED = 20_000  # runs, before the first
_MOST_NORMALS = 3 * 10**7  # of all simulated runs
_LOG_ERROR = math.log(1e6)  # of each simulated rate
_CANDIDATES = 40  # thresholds of each statistic
_KEPT = 3  # the thresholds that most of the capital is on
_TOGETHER = 4  # runs between two looks


class WorstCase(NamedTuple):
    """The steps of a run, and how the worst case looks in them.

    Attributes:
      noise_multiplier: sigma.
      batches: of a pass.
      epochs: passes of a run.
      once: whether batches have known sizes and no example comes twice in a pass.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    once: bool


class _Tests(NamedTuple):
    """The tests that runs bet on, one for each of claimed_curve's thresholds.

    Attributes:
      largest: (T,) whether a test looks at the largest sum, or else at the ratio.
      thresholds: (T,) that the statistic has to exceed.
      log_rates: (T,) log of upper limits of the false-positive rates.
    """

    largest: NDArray[np.bool_]
    thresholds: Array
    log_rates: Array


@dataclass(frozen=True)
class Refutation:
    """Whether the batches of a loader refute a claim.

    Attributes:
      e_value: the evidence against the claim; at least 1 / error with a probability of at most error, if the
        claim is true.
      refuted: whether it has reached 1 / (1 - confidence).
      passes: runs through the loader that were needed, or made.
      epochs: passes of the loader in each.
      claimed: epsilon of the claim at delta 1e-5.
    """

    e_value: float
    refuted: bool
    passes: int
    epochs: int
    claimed: float

    @property
    def verdict(self) -> str:
        """The conclusion, in one line."""
        claim = f"Poisson sampling's epsilon {self.claimed:.3g} at delta 1e-05"
        if self.refuted:
            return f"REFUTED: these batches leak more than {claim}"
        return f"NOT REFUTED: {self.passes} runs of these batches do not contradict {claim}"

    def to_json(self) -> str:
        """Returns all of it as text."""
        fields = {
            "verdict": self.verdict,
            "refuted": self.refuted,
            "e_value": self.e_value,
            "passes": self.passes,
            "epochs": self.epochs,
            "claimed": self.claimed,
            "records": WORST_CASE,
        }
        return json.dumps(fields, indent=2)

    def __str__(self) -> str:
        """Returns the verdict and its evidence."""
        counted = f"e-value {self.e_value:.3g} after {self.passes} runs of {self.epochs} epochs"
        lines = []
        for text in (self.verdict, counted, WORST_CASE):
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

    Args:
      draw: seed -> the batches of one pass over the loader, each the indices, from 0, of its examples; or one
        batch. Passes are drawn with seeds 0, 1, ... Or a loader on `audit.Indices`, as `check_batches` takes.
      examples: how many the data set has.
      claim: `DpSgd(noise_multiplier, insertions, sampling_rate)`, insertions being all steps of training.
      passes: runs through all epochs at most; it ends where the claim is refuted.
      confidence: with which a refutation is right.
      seed: of noise and targets.
      noise: generator -> the noise (d,) of one sum, in units of C, where it is not Gaussian or nobody knows
        its law; by default Gaussian noise of the claim's noise multiplier.

    Raises:
      InputError: a number is out of range, `draw` draws no batches, or `noise` is none.

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

    # Without Lipschitz constants, which bound the last model alone: here every sum is seen.
    claim = DpSgd(*claim.composition)
    loader = _iterate_passes(draw, examples, round(1 / claim.sampling_rate))
    rehearsed = [next(loader) for _ in range(_REHEARSED)]
    game = _choose_game(rehearsed, claim)
    tests = _choose_tests(game, claim, noise is None)
    sizes = _find_sizes(rehearsed[0])
    rng = np.random.default_rng(seed)
    shares: list[Array] = []
    test = claimed_curve.ClaimTest(1.0, False, 0)
    while len(shares) < passes and not test.refuted:
        for _ in range(min(_TOGETHER, passes - len(shares))):
            target = int(rng.integers(examples))
            run = [next(loader) for _ in range(game.epochs)]
            heights = _find_heights(run, target, sizes, game)
            if heights is None:
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
    """Yields pass after pass of the loader; batches that come singly make passes of `batches`."""
    seed = 0
    while True:
        first = loaders.draw_pass(draw, seed, examples).batches
        seed += 1
        while len(first) == 1 and batches > 1:
            for i in range(batches - 1):
                first += loaders.draw_pass(draw, seed + i, examples).batches[:1]
            seed += batches - 1
        yield first


def _find_sizes(batches: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Returns the sizes of a pass's batches."""
    return np.array([len(batch) for batch in batches])


def _choose_game(rehearsed: list[list[NDArray[np.int64]]], claim: DpSgd) -> WorstCase:
    """Returns the game that the batches of a few passes admit."""
    sizes = _find_sizes(rehearsed[0])
    once = True
    for batches in rehearsed:
        indices = np.concatenate(batches)
        has_sizes = np.array_equal(_find_sizes(batches), sizes)
        once = once and has_sizes and len(np.unique(indices)) == len(indices)
    epochs = max(claim.insertions // len(sizes), 1)
    return WorstCase(claim.noise_multiplier, len(sizes), epochs, once)


def _find_heights(
    run: list[list[NDArray[np.int64]]],
    target: int,
    sizes: NDArray[np.int64],
    game: WorstCase,
) -> Array | None:
    """Returns by how much each batch's sum (epochs, batches) lies above those without the target, over C.

    None where the run is irregular, which counts as if nothing had been seen in it.
    """
    taken = np.zeros((game.epochs, game.batches))
    for epoch, batches in enumerate(run):
        if len(batches) != game.batches:
            return None
        if game.once and not np.array_equal(_find_sizes(batches), sizes):
            return None
        steps = np.repeat(np.arange(game.batches), _find_sizes(batches))
        steps_with_target = steps[np.concatenate(batches) == target]
        taken[epoch] = np.bincount(steps_with_target, minlength=game.batches)
    if taken.max() > 1 or (game.once and taken.sum(axis=1).max() > 1):
        return None
    # The target's C takes the place of another example's -C where batches have known sizes, of 0 otherwise.
    height = 2.0 if game.once else 1.0
    return height * taken


def _look(heights: Array, game: WorstCase, tests: _Tests, rng: np.random.Generator) -> Array:
    """Returns whether each test (T,) sees the target in a run's sums with Gaussian noise, as 0 or 1."""
    sums = heights + game.noise_multiplier * rng.standard_normal(heights.shape)
    statistics = np.where(tests.largest, sums.max(), _compute_ratios(sums[None], game)[0])
    return np.asarray(statistics > tests.thresholds, np.float64)


def _look_at_any_noise(
    heights: Array, game: WorstCase, tests: _Tests, noise: DrawNoise, rng: np.random.Generator
) -> Array:
    """Returns whether each test (T,) sees the target in a run's sums with a caller's noise, as 0 or 1.

    The records lie along a uniform direction v that the noise Z knows nothing of. Whatever Z is, given its
    length, <v, Z> is |Z| times a coordinate of a uniform direction, of which the largest sum's rate without
    the target follows: sqrt(d - 1) <v, Z> / |Z - <v, Z> v| is Student's t with d - 1 degrees.
    """
    drawn = [_draw_noise(noise, rng) for _ in range(heights.size)]
    dimension = len(drawn[0])
    same = all(len(vector) == dimension for vector in drawn)
    require(same, "`noise` gave vectors of several lengths: give (d,) of one d")
    vectors = np.array(drawn)
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    lengths = np.linalg.norm(vectors, axis=1).reshape(heights.shape)
    largest = float((heights + (vectors @ direction).reshape(heights.shape)).max())
    in_target = 1.0 if game.once else 0.0
    rate = _bound_rate_of_lengths(largest, lengths, dimension, in_target)
    # A test sees the target where so large a sum is no likelier without it than the test's rate allows.
    return np.asarray(rate <= np.exp(tests.log_rates), np.float64)


def _bound_rate_of_lengths(
    threshold: float, lengths: Array, dimension: int, in_target: float
) -> float:
    """Returns a bound on the rate at which the largest of sums exceeds a threshold without the target.

    Args:
      threshold: of the sums along the direction.
      lengths: (epochs, batches) of the noise.
      dimension: d.
      in_target: the sum without noise of the target's batch, which comes once an epoch.
    """
    others = _find_tail(threshold / np.maximum(lengths, 1e-300), dimension).sum()
    if in_target == 0:
        return float(others)
    longest = np.maximum(lengths.max(axis=1), 1e-300)
    return float(others + _find_tail((threshold - in_target) / longest, dimension).sum())


def _find_tail(cosines: Array, dimension: int) -> Array:
    """Returns the probability that a coordinate of a uniform direction of R^d exceeds cosines."""
    inside = np.clip(cosines, -1.0, 1.0)
    with np.errstate(divide="ignore"):
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
    """Returns the log-likelihood ratio (R,) of runs' sums (R, epochs, batches)."""
    variance = game.noise_multiplier**2
    if game.once:
        # A sum around 2, or 1, over one around 0; the target's batch may be any of an epoch's.
        inside = special.logsumexp((2 * sums - 2) / variance, axis=-1)
        outside = special.logsumexp((sums - 0.5) / variance, axis=-1)
        return np.asarray((inside - outside).sum(axis=-1))
    rate = 1 / game.batches
    taken = math.log(rate) + (sums - 0.5) / variance
    return np.asarray(np.logaddexp(math.log1p(-rate), taken).sum(axis=(-2, -1)))


def _simulate(game: WorstCase) -> tuple[Array, Array]:
    """Returns the ratio and the largest sum (R,) of runs with the target, as the game's sampler has them."""
    rng = np.random.default_rng(0)
    steps = game.batches * game.epochs
    runs = min(_SIMULATED, max(_MOST_NORMALS // steps, 1000))
    together = max(10**6 // steps, 1)
    ratios = []
    largest = []
    for start in range(0, runs, together):
        shape = (min(together, runs - start), game.epochs, game.batches)
        sums = game.noise_multiplier * rng.standard_normal(shape)
        if game.once:
            places = rng.integers(0, game.batches, shape[:2])
            sums += 2.0 * (np.arange(game.batches) == places[..., None])
        else:
            sums += rng.random(shape) < 1 / game.batches
        ratios.append(_compute_ratios(sums, game))
        largest.append(sums.max(axis=(1, 2)))
    return np.concatenate(ratios), np.concatenate(largest)


@functools.lru_cache(maxsize=16)
def _claim_epsilon(claim: DpSgd) -> float:
    """Returns epsilon of a claim at delta 1e-5."""
    return claim.epsilon(1e-5)


@functools.lru_cache(maxsize=16)
def _choose_tests(game: WorstCase, claim: DpSgd, is_gaussian: bool = True) -> _Tests:
    """Returns the tests that grow a capital fastest in simulated runs, against the claim.

    Where noise may not be Gaussian, they all look at the largest sum.
    """
    ratios, largest = _simulate(game)
    levels = np.linspace(0.02, 0.98, _CANDIDATES)
    of_ratio = np.quantile(ratios, levels)
    of_largest = np.quantile(largest, levels)
    log_rates = [_limit_log_rate(ratios, float(threshold)) for threshold in of_ratio]
    log_rates.extend(_bound_log_rate(game, float(threshold)) for threshold in of_largest)
    all_log_rates = np.array(log_rates)
    allowed = np.maximum(claim.power(np.exp(all_log_rates)), 1e-300)
    powers = 1 - np.concatenate([levels, levels])
    seen = powers * np.log1p(BETS[:, None] * (1 / allowed - 1))
    missed = (1 - powers) * np.log1p(-BETS[:, None])
    growth = (seen + missed).max(axis=0)
    best = np.argsort(-growth, kind="stable")
    if not is_gaussian:
        best = best[best >= _CANDIDATES]
    # Most of the capital is on the near thresholds: the best few tests take all of these places in turn.
    near = np.resize(best[:_KEPT], len(NEAR))
    far = np.resize(best, len(THRESHOLDS) - len(NEAR))
    chosen = np.concatenate([near, far])
    thresholds = np.concatenate([of_ratio, of_largest])[chosen]
    return _Tests(chosen >= _CANDIDATES, thresholds, all_log_rates[chosen])


def _limit_log_rate(ratios: Array, threshold: float) -> float:
    """Returns log of an upper limit of the rate at which the ratio exceeds a threshold without the target."""
    shrunk = np.exp(np.minimum(threshold - ratios, 0.0)) * (ratios > threshold)
    return min(math.log(limit_mean(shrunk, 1.0, _LOG_ERROR)) - threshold, 0.0)


def _bound_log_rate(game: WorstCase, threshold: float) -> float:
    """Returns log of a bound on the rate at which the largest sum exceeds a threshold without the target."""
    in_target = 1.0 if game.once else 0.0
    sigma = game.noise_multiplier
    log_tails = np.array(
        [
            special.log_ndtr((in_target - threshold) / sigma),
            math.log(max(game.batches - 1, 1)) + special.log_ndtr(-threshold / sigma),
        ]
    )
    return min(math.log(game.epochs) + float(special.logsumexp(log_tails)), 0.0)
