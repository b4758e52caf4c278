"""Estimates of epsilon from the cosines of one run's canaries (Andrew et al., ICLR 2024, and before).

Each canary is a uniform direction of R^d; what it adds to training shifts its cosine with the released
vector. Where nothing leaks the cosine has the law of `cosine_law`, nearly N(0, 1/d).

    one_shot_fitted            exact epsilon of N(0, 1/d) against the cosines' N(mean, deviation^2)
    one_shot_equal_variance    against N(mean, 1/d): what Table 1 shows, not the former (Errata O1)
    one_shot_threshold         the first version's best threshold between the two laws, both directions
    one_shot_jeffreys          eps_lo: the best of all thresholds, each with its Jeffreys limit
    one_shot_clopper_pearson   likewise with Clopper-Pearson limits

None is a confidence bound. The first three measure what N(mean, ...) would leak if it were the truth, with
the fit's own error in it; the last two choose the threshold on the canaries that they count (Errata O7, O8).
Where cosines of unobserved canaries are given, as for maxima over rounds, the null's law is fitted to them.

Cosines are handled in units of 1/sqrt(d).
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import InputError, require
from audit.statistics import conversions, cosine_law, gaussians
from audit.statistics.arrays import floats
from audit.statistics.gaussians import Gaussian

ONE_SHOT_FITTED, ONE_SHOT_EQUAL_VARIANCE = "one_shot_fitted", "one_shot_equal_variance"
ONE_SHOT_THRESHOLD = "one_shot_threshold"
ONE_SHOT_JEFFREYS, ONE_SHOT_CLOPPER_PEARSON = "one_shot_jeffreys", "one_shot_clopper_pearson"

Array = NDArray[np.float64]

LEAST_CANARIES = 10
_STANDARD = Gaussian(0.0, 1.0)
_GRID, _FINE = 301, 61  # thresholds, and around the best of them
_DRAWS, _SAMPLES, _ENTRIES = 2000, 400, 400_000  # simulated fits; simulated audits, and their canaries
_EXACT_BELOW = 1000  # dimensions, as the paper's code has it
_SLACK = 1e-9
_SPREAD_ERROR = 1e-6  # with this probability cosines of the right dimension are refused
_SPREAD_MEND = "count trained parameters alone, or save unobserved= too if canaries take part unequally often"
_FIT_CAVEAT = "a Gaussian fit taken for the truth"
_LIMIT_CAVEAT = "in-sample: the best of all thresholds"


class Cosines(NamedTuple):
    """The checked cosines of one run, in R^dimension: observed (K,) and unobserved (M,), maybe none."""

    observed: Array
    unobserved: Array
    dimension: int


class EstimateFloor(NamedTuple):
    """Values of simulated audits in which nothing leaks: their mean and 95% quantile, and how many."""

    mean: float
    quantile_95: float
    audits: int


@dataclasses.dataclass(frozen=True)
class OneShotEstimate:
    """A value that is no bound, beside its values where nothing leaks and its standard error.

    The latter comes from simulated audits of independent normal canaries with the fitted means and
    deviations.
    """

    method: str
    epsilon: float
    delta: float
    standard_error: float
    noise_floor: EstimateFloor
    canaries: int
    caveat: str


def cosines(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> Cosines:
    """A caller's checked cosines; raises InputError for shapes, values or numbers that fit no audit.

    Where the law of a uniform direction stands for the unobserved, the observed must not spread more: each is
    that law, moved by what its canary leaves, which is the same for canaries that take part alike.
    """
    found = of_own_game(observed, unobserved, dimension)
    if not len(found.unobserved):
        squares = float(np.square(found.observed - found.observed.mean()).sum())
        require_spread(squares, len(found.observed) - 1, dimension, _SPREAD_MEND)
    return found


def of_own_game(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> Cosines:
    """`cosines` of an audit whose dimension is known, and whose canaries may take part unequally often."""
    cosine_law.require_dimension(dimension)
    seen = _checked("observed", observed)
    return Cosines(seen, np.empty(0) if unobserved is None else _checked("unobserved", unobserved), dimension)


def estimates(found: Cosines, delta: float, confidence: float) -> list[OneShotEstimate]:
    """All estimates at delta; `confidence` is the level of the last two's limits, which they do not keep."""
    conversions.require_levels(delta, confidence)
    return [*fits(found, delta), *_limits(found, delta, confidence)]


def require_spread(squares: float, freedom: int, dimension: int, mend: str) -> None:
    """Raises InputError where the sum of squared deviations is beyond chi-square's limit for 1/sqrt(d).

    Less is no sign of a wrong dimension, as canaries may be tied, and in too few dimensions the bound holds.
    """
    if special.chdtrc(freedom, squares * dimension) < _SPREAD_ERROR:
        units, suggested = np.sqrt(squares * dimension / freedom), max(round(freedom / squares), 1)
        said = f"`dimension={dimension}`: cosines spread by {units:.3g} / sqrt(d), those of uniform "
        law = f"directions by 1, as these would in about {suggested:,} dimensions"
        raise InputError(f"{said}{law}: {mend}")


def fit(values: Array, dimension: int) -> Gaussian:
    """Means and deviations (division by the number) over the last axis, in units of 1/sqrt(d)."""
    root = np.sqrt(dimension)
    return Gaussian(values.mean(-1) * root, values.std(-1) * root)


def fitted(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Exact epsilon between both fits."""
    return gaussians.epsilon(null, seen, delta)


def equal_variance(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Exact epsilon between Gaussians with the null's deviation."""
    return gaussians.epsilon(null, Gaussian(seen.mean, null.deviation), delta)


def threshold(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """The first version's value, from the best of a grid of thresholds that is refined once."""

    def log_rates(points: Array) -> tuple[Array, Array]:
        z = (points - np.asarray(null.mean)[..., None]) / np.asarray(null.deviation)[..., None]
        return special.log_ndtr(z), special.log_ndtr(-z)

    ends = np.asarray(null.mean) + np.asarray(null.deviation) * special.ndtri(delta)
    return _scanned(log_rates, ends, seen, delta)


def threshold_exact(dimension: int, seen: Gaussian, delta: float) -> Array:
    """`threshold` against the exact law of the cosine, as the paper's code has it for d below 1,000."""
    root = np.sqrt(dimension)

    def log_rates(points: Array) -> tuple[Array, Array]:
        inside = np.clip(points / root, -1.0, 1.0)
        return cosine_law.log_cdf(inside, dimension), cosine_law.log_sf(inside, dimension)

    return _scanned(log_rates, root * cosine_law.quantile(delta, dimension), seen, delta)


FITTED: dict[str, Callable[[Gaussian, Gaussian, float], Array]] = {
    ONE_SHOT_FITTED: fitted,
    ONE_SHOT_EQUAL_VARIANCE: equal_variance,
    ONE_SHOT_THRESHOLD: threshold,
}
LIMITS = {ONE_SHOT_JEFFREYS: 0.5, ONE_SHOT_CLOPPER_PEARSON: 1.0}  # each with its prior: see `in_sample`


def fits(found: Cosines, delta: float, methods: Collection[str] = tuple(FITTED)) -> list[OneShotEstimate]:
    """The estimates that look at means and deviations alone, or some of them."""
    seen, counts = fit(found.observed, found.dimension), (len(found.observed), len(found.unobserved))
    null = fit(found.unobserved, found.dimension) if counts[1] else _STANDARD
    rng = np.random.default_rng(1)
    again = _drawn(rng, seen, counts[0], _DRAWS)
    null_again = _drawn(rng, null, counts[1], _DRAWS) if counts[1] else null
    rows = []
    for name in (name for name in FITTED if name in methods):
        if name == ONE_SHOT_THRESHOLD and not counts[1] and found.dimension < _EXACT_BELOW:
            value = threshold_exact(found.dimension, seen, delta)
        else:
            value = FITTED[name](null, seen, delta)
        error = float(FITTED[name](null_again, again, delta).std())
        floor = noise_floor(name, *counts, delta)
        rows.append(OneShotEstimate(name, float(value), delta, error, floor, counts[0], _FIT_CAVEAT))
    return rows


@functools.lru_cache(maxsize=256)
def noise_floor(method: str, observed: int, unobserved: int, delta: float) -> EstimateFloor:
    """A fit's values where nothing leaks, by 2,000 simulated fits to so many canaries, the same each time.

    With no unobserved canaries the null is known (Errata O2). Cosines are taken for
    normal, as they are but for few dimensions.
    """
    rng = np.random.default_rng(0)
    null = _STANDARD if unobserved == 0 else _drawn(rng, _STANDARD, unobserved, _DRAWS)
    return _summary(FITTED[method](null, _drawn(rng, _STANDARD, observed, _DRAWS), delta))


def in_sample(found: Cosines, delta: float, error: float, prior: float) -> float:
    """The papers' eps_lo at one-sided `error` a rate: `prior` 1/2 gives Jeffreys' limits, 1 the exact.

    With the null known its rate is exact; else it has a limit of its own, so that even at one threshold
    chosen beforehand both hold at 1 - 2 error only (Errata O8).
    """
    observed, unobserved, dimension = found
    if len(unobserved):
        return float(_limits_of_both(observed[None], unobserved[None], delta, error, prior)[0])
    return float(_limits_of_one(observed[None], dimension, delta, error, prior)[0])


def _checked(name: str, values: ArrayLike) -> Array:
    array = floats(f"the {name} cosines", values)
    require(array.ndim == 1, f"the {name} cosines have shape {array.shape}: give one of a canary, (K,)")
    least = LEAST_CANARIES
    require(len(array) >= least, f"there are {len(array)} {name} cosines: give at least {least}")
    bad = int(np.count_nonzero(~np.isfinite(array)))
    failed = f"{bad} of {len(array)} {name} cosines are not finite: the run failed and proves nothing"
    require(not bad, f"{failed}; a run in its place would count only beside it, so audit several together")
    largest = float(np.abs(array).max())
    require(largest <= 1 + _SLACK, f"{name}: {largest:g} is no cosine: divide by both lengths")
    require(np.ptp(array) > 0, f"all {len(array)} {name} cosines equal {array[0]:g}: they have no spread")
    return np.clip(array, -1.0, 1.0)


def _drawn(rng: np.random.Generator, law: Gaussian, canaries: int, audits: int) -> Gaussian:
    """Fits to so many independent draws of a normal law, without drawing them."""
    means = law.mean + law.deviation * rng.standard_normal(audits) / np.sqrt(canaries)
    return Gaussian(means, law.deviation * np.sqrt(rng.chisquare(canaries - 1, audits) / canaries))


def _scanned(
    log_rates: Callable[[Array], tuple[Array, Array]], ends: ArrayLike, seen: Gaussian, delta: float
) -> Array:
    """max of log((F0 - delta) / F1) and log((1 - delta - F1) / (1 - F0)) over thresholds, from the null's
    delta quantile, `ends`, to the alternative's 1 - delta quantile; at least 0."""
    mean, deviation = (np.asarray(part, np.float64) for part in seen)
    start, stop = np.broadcast_arrays(np.asarray(ends), mean - deviation * special.ndtri(delta))
    low, high = np.minimum(start, stop), np.maximum(start, stop)

    def values(points: Array) -> Array:
        log_below, log_above = log_rates(points)
        z = (points - mean[..., None]) / deviation[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            one = np.log(np.maximum(np.exp(log_below) - delta, 0)) - special.log_ndtr(z)
            other = np.log(np.maximum(special.ndtr(-z) - delta, 0)) - log_above
        return np.asarray(np.fmax(np.fmax(one, other), 0.0))

    points = np.linspace(low, high, _GRID, axis=-1)
    best = np.take_along_axis(points, values(points).argmax(-1)[..., None], -1)[..., 0]
    step = (high - low) / (_GRID - 1)
    fine = np.linspace(np.maximum(best - step, low), np.minimum(best + step, high), _FINE, axis=-1)
    largest: Array = values(fine).max(-1)
    return largest


def _limits(found: Cosines, delta: float, confidence: float) -> list[OneShotEstimate]:
    counts, error = (len(found.observed), len(found.unobserved)), 1 - confidence
    seen = fit(found.observed, 1)
    null = fit(found.unobserved, 1) if counts[1] else Gaussian(0.0, 1 / np.sqrt(found.dimension))
    rows = []
    for name, prior in LIMITS.items():
        value = in_sample(found, delta, error, prior)
        deviation = float(_simulated(null, seen, *counts, found.dimension, delta, error, prior).std())
        floor = _limit_floor(*counts, delta, error, prior)
        rows.append(OneShotEstimate(name, value, delta, deviation, floor, counts[0], _LIMIT_CAVEAT))
    return rows


@functools.lru_cache(maxsize=256)
def _limit_floor(observed: int, unobserved: int, delta: float, error: float, prior: float) -> EstimateFloor:
    """An in-sample value's floor; ranks alone decide it, so that the dimension does not matter."""
    null = Gaussian(0.0, 1e-4)
    return _summary(_simulated(null, null, observed, unobserved, 10**8, delta, error, prior))


def _simulated(
    null: Gaussian,
    seen: Gaussian,
    observed: int,
    unobserved: int,
    dimension: int,
    delta: float,
    error: float,
    prior: float,
) -> Array:
    rng = np.random.default_rng(2)
    audits = int(np.clip(_ENTRIES // (observed + unobserved), 20, _SAMPLES))
    values = np.clip(rng.normal(seen.mean, seen.deviation, (audits, observed)), -1, 1)
    if unobserved:
        out = rng.normal(null.mean, null.deviation, (audits, unobserved))
        return _limits_of_both(values, out, delta, error, prior)
    return _limits_of_one(values, dimension, delta, error, prior)


def _summary(values: Array) -> EstimateFloor:
    return EstimateFloor(float(values.mean()), float(np.quantile(values, 0.95)), values.size)


def _limits_of_one(observed: Array, dimension: int, delta: float, error: float, prior: float) -> Array:
    """(S,) best values of sorted thresholds (S, K) with the exact false-positive rate."""
    points = np.sort(observed, -1)
    misses = _upper(np.arange(points.shape[-1]), points.shape[-1], error, prior)
    if dimension < _EXACT_BELOW:
        log_out = cosine_law.log_sf(points, dimension)
    else:
        log_out = special.log_ndtr(-points * np.sqrt(dimension))
    return _best(log_out, np.broadcast_to(np.log(misses), log_out.shape), delta)


def _limits_of_both(observed: Array, unobserved: Array, delta: float, error: float, prior: float) -> Array:
    """(S,) best values of all K + M + 1 thresholds between both worlds' scores."""
    n_in, n_out = observed.shape[-1], unobserved.shape[-1]
    order = np.argsort(np.concatenate([observed, unobserved], -1), axis=-1, kind="stable")
    missed = np.pad(np.cumsum(order < n_in, -1), [(0, 0), (1, 0)])
    alarms = n_out - (np.arange(n_in + n_out + 1) - missed)
    limits_in = _upper(np.arange(n_in + 1), n_in, error, prior)
    limits_out = _upper(np.arange(n_out + 1), n_out, error, prior)
    return _best(np.log(limits_out[alarms]), np.log(limits_in[missed]), delta)


def _upper(count: NDArray[np.int64], trials: int, error: float, prior: float) -> Array:
    """Upper limits of rates, Beta(j + prior, n - j + 1 - prior)."""
    rest = trials - count + 1 - prior
    return np.where(rest > 0, special.betaincinv(count + prior, np.maximum(rest, 0.5), 1 - error), 1.0)


def _best(log_out: Array, log_in: Array, delta: float) -> Array:
    """(S,) the largest epsilon over the last axis, at least 0; void terms do not count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.log(np.maximum(1 - delta - np.exp(log_in), 0)) - log_out
        other = np.log(np.maximum(1 - delta - np.exp(log_out), 0)) - log_in
    return np.asarray(np.fmax(np.fmax(one, other), 0.0).max(-1))
