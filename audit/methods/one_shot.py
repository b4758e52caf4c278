"""Estimates of epsilon from the cosines of a single run's canaries (Andrew et al., ICLR 2024, and before).

Each canary is a uniform direction of R^d; what it adds to training shifts its cosine with the released
vector. Where nothing leaks, the cosine has the law of `cosine_law`, which is nearly N(0, 1/d).

    one_shot_fitted            exact epsilon of N(0, 1/d) against the cosines' N(mean, deviation^2)
    one_shot_equal_variance    against N(mean, 1/d): this is what Table 1 shows, not the former (Errata O1)
    one_shot_threshold         the first version's best threshold between the two laws, both directions
    one_shot_jeffreys          eps_lo: the best of all thresholds, each with its Jeffreys limit
    one_shot_clopper_pearson   the same with Clopper-Pearson limits

None is a confidence bound. The first three measure what N(mean, ...) would leak if it were the truth, and so
contain the error of the fit; the last two choose the threshold on the canaries that they count (Errata O7,
O8). Where cosines of unobserved canaries are given, as for maxima over rounds, the null's law is fitted to
them.

Cosines are handled in units of 1/sqrt(d).
"""

import functools
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, gaussians
from audit.laws.gaussians import Gaussian
from audit.methods.estimate import Estimate
from audit.methods.method import NoiseFloor

ONE_SHOT_FITTED, ONE_SHOT_EQUAL_VARIANCE = "one_shot_fitted", "one_shot_equal_variance"
ONE_SHOT_THRESHOLD = "one_shot_threshold"
ONE_SHOT_JEFFREYS, ONE_SHOT_CLOPPER_PEARSON = "one_shot_jeffreys", "one_shot_clopper_pearson"

Array = NDArray[np.float64]

_STANDARD = Gaussian(0.0, 1.0)
_GRID = 301  # thresholds that are tried
_FINE_GRID = 61  # thresholds around the best of them
_SIMULATED_FITS = 2000  # simulated fits of means and deviations
_AUDITS = 400  # simulated audits, at most,
_SIMULATED_CANARIES = 400_000  # and the canaries of all of them together
_EXACT_BELOW = (
    1000  # dimensions below which the cosine's law is not taken for normal, as in the paper's code
)
_LEVEL_OF_FITS = 0.95  # shown with fits, which use none
_FIT_CAVEAT = "a Gaussian fit taken for the truth"
_LIMIT_CAVEAT = "in-sample: the best of all thresholds"


def estimates(run: Cosines, delta: float, confidence: float) -> list[Estimate]:
    """Returns all estimates of epsilon from a run's cosines; none of them is a confidence bound.

    Args:
      run: The cosines.
      delta: The delta of epsilon.
      confidence: The confidence of each error rate's limit in the last two estimates. These estimates do not
        hold at this confidence, since they choose the best threshold on the same cosines.
    """
    conversions.require_levels(delta, confidence)
    return estimate_from_fits(run, delta) + _estimate_in_sample(run, delta, confidence)


def fit(values: Array, dimension: int) -> Gaussian:
    """Returns the means and standard deviations of cosines over the last axis, in units of 1/sqrt(d).

    The variance is the sum of squared deviations over K, not K - 1, as in the one-shot paper (Andrew et al.,
    ICLR 2024).

    Args:
      values: (..., K) cosines.
      dimension: d, the dimension of the canaries' directions.
    """
    root = np.sqrt(dimension)
    return Gaussian(values.mean(-1) * root, values.std(-1) * root)


def fitted(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Returns the exact epsilon between the normal laws of unobserved (null) and observed (seen) cosines."""
    return gaussians.epsilon(null, seen, delta)


def equal_variance(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Returns the exact epsilon between normal laws with both means and the null's standard deviation."""
    return gaussians.epsilon(null, Gaussian(seen.mean, null.deviation), delta)


def threshold(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Returns the largest epsilon that a threshold on cosines shows, between two normal laws of cosines.

    At a threshold, epsilon follows from the false-positive and the false-negative rate that the two laws have
    there. This is the estimate in the first version of the one-shot paper (Andrew et al.).

    Args:
      null: The law, or laws (...), of cosines of canaries that were out.
      seen: The law, or laws (...), of cosines of canaries that were in.
      delta: The delta of epsilon.

    Returns:
      Epsilons (...), for each pair of laws, at least 0; `_maximise_over_thresholds` has the formula.
    """

    def compute_log_rates(points: Array) -> tuple[Array, Array]:
        """Returns the log of the null's probability below thresholds (..., points), and above them."""
        # A last axis is added to the laws, for the thresholds.
        z = (points - np.asarray(null.mean)[..., None]) / np.asarray(null.deviation)[..., None]
        return special.log_ndtr(z), special.log_ndtr(-z)

    # The null's delta quantile, at which the thresholds begin.
    null_quantile = np.asarray(null.mean) + np.asarray(null.deviation) * special.ndtri(delta)
    return _maximise_over_thresholds(compute_log_rates, null_quantile, seen, delta)


def threshold_exact(dimension: int, seen: Gaussian, delta: float) -> Array:
    """Returns epsilon as `threshold` does, but with the exact law of an unobserved cosine, not a normal law.

    The code of the one-shot paper (Andrew et al.) does so for dimensions below 1,000.

    Args:
      dimension: d, the dimension of the canaries' directions.
      seen: The law of observed cosines, in units of 1/sqrt(d).
      delta: The delta of epsilon.
    """
    root = np.sqrt(dimension)

    def compute_log_rates(points: Array) -> tuple[Array, Array]:
        """Returns the log of the exact law's probability below thresholds, and above them."""
        # In units of a cosine. The thresholds reach to a quantile of a normal law, which may be above 1.
        as_cosines = np.clip(points / root, -1.0, 1.0)
        return cosine_law.log_cdf(as_cosines, dimension), cosine_law.log_sf(as_cosines, dimension)

    null_quantile = root * cosine_law.quantile(delta, dimension)
    return _maximise_over_thresholds(compute_log_rates, null_quantile, seen, delta)


FITTED: dict[str, Callable[[Gaussian, Gaussian, float], Array]] = {
    ONE_SHOT_FITTED: fitted,
    ONE_SHOT_EQUAL_VARIANCE: equal_variance,
    ONE_SHOT_THRESHOLD: threshold,
}
# The prior of the limits of each in-sample estimate: see `in_sample`.
LIMITS = {ONE_SHOT_JEFFREYS: 0.5, ONE_SHOT_CLOPPER_PEARSON: 1.0}


def estimate_from_fits(
    run: Cosines, delta: float, methods: Collection[str] = tuple(FITTED)
) -> list[Estimate]:
    """Returns the estimates that depend only on means and standard deviations of a run's cosines.

    The null is the law of a cosine where nothing leaks. It is fitted to the unobserved cosines. Without any,
    it is N(0, 1/d) or, for the estimate `one_shot_threshold` in dimensions below 1,000, the exact law of a
    cosine. Each estimate comes with its standard error, over 2,000 means and deviations drawn as they vary
    between samples of the fitted normal laws, and with its noise floor: what it shows where nothing leaks.

    Args:
      run: The observed and unobserved cosines, and the dimension d.
      delta: The delta of epsilon.
      methods: The names of the wanted estimates, keys of FITTED.
    """
    observed_count = len(run.observed)
    unobserved_count = len(run.unobserved)
    rng = np.random.default_rng(1)  # the same draws each time

    # The laws that are fitted to the cosines, and simulated fits from which the standard errors come.
    seen = fit(run.observed, run.dimension)
    redrawn_seen = _draw_fits(rng, seen, observed_count, _SIMULATED_FITS)
    null = _STANDARD  # N(0, 1/d) in units of 1/sqrt(d)
    redrawn_null = _STANDARD
    if unobserved_count:
        null = fit(run.unobserved, run.dimension)
        redrawn_null = _draw_fits(rng, null, unobserved_count, _SIMULATED_FITS)

    rows = []
    for name, compute in FITTED.items():
        if name not in methods:
            continue
        value = compute(null, seen, delta)
        if name == ONE_SHOT_THRESHOLD and not unobserved_count and run.dimension < _EXACT_BELOW:
            value = threshold_exact(run.dimension, seen, delta)
        # The error and the floor take the null for normal in every dimension.
        error = float(compute(redrawn_null, redrawn_seen, delta).std())
        floor = noise_floor(name, observed_count, unobserved_count, delta)
        # A record states a confidence, here a usual value, although these estimates use none.
        levels = (delta, _LEVEL_OF_FITS)
        rows.append(_make_estimate(name, run, levels, float(value), error, floor))
    return rows


@functools.lru_cache(maxsize=256)
def noise_floor(method: str, observed: int, unobserved: int, delta: float) -> NoiseFloor:
    """Returns what an estimate from fitted normal laws shows where nothing leaks, by 2,000 simulated fits.

    Observed and unobserved cosines then have the same law. It is taken to be normal, as it nearly is except
    in few dimensions. Without unobserved canaries the null is not fitted, but is that law itself. The draws
    are the same each time. Errata O2 of experiments/one_shot/README.md says why estimates need this.

    Args:
      method: The estimate's name, a key of FITTED.
      observed: The number of observed canaries.
      unobserved: The number of unobserved canaries.
      delta: The delta of epsilon.
    """
    rng = np.random.default_rng(0)
    null = _STANDARD
    if unobserved:
        null = _draw_fits(rng, _STANDARD, unobserved, _SIMULATED_FITS)
    seen = _draw_fits(rng, _STANDARD, observed, _SIMULATED_FITS)
    return _summarise(FITTED[method](null, seen, delta))


def in_sample(run: Cosines, delta: float, error: float, prior: float) -> float:
    """Returns the in-sample estimate of epsilon, the largest over all thresholds, which papers call eps_lo.

    Epsilon at a threshold follows from upper confidence limits of both error rates.

    Without unobserved canaries the false-positive rate is exact. With them it has a limit of its own, so that
    even at a threshold chosen beforehand both limits hold only with probability 1 - 2 error (Errata O8 of
    experiments/one_shot/README.md).

    Args:
      run: The cosines.
      delta: The delta of epsilon.
      error: The one-sided error of each rate's limit.
      prior: The prior of the beta law: 1/2 gives Jeffreys' limits, 1 those of Clopper and Pearson.
    """
    observed = run.observed[None]  # a row for each of several audits: here a single one
    unobserved = run.unobserved[None]
    return float(_find_best(observed, unobserved, run.dimension, delta, error, prior)[0])


def _make_estimate(
    name: str,
    run: Cosines,
    levels: tuple[float, float],
    epsilon: float,
    standard_error: float,
    floor: NoiseFloor,
) -> Estimate:
    """Returns the record of an estimate of a run at levels (delta, confidence).

    These estimates have no mu, no threshold and no counted errors.
    """
    return Estimate(
        name,
        epsilon,
        None,
        *levels,
        threshold=None,
        false_positives=0,
        false_negatives=0,
        n_in=len(run.observed),
        n_out=len(run.unobserved),
        caveat=_FIT_CAVEAT if name in FITTED else _LIMIT_CAVEAT,
        standard_error=standard_error,
        noise_floor=floor,
    )


def _draw_fits(rng: np.random.Generator, law: Gaussian, canaries: int, audits: int) -> Gaussian:
    """Draws the means and standard deviations (audits,) of samples of a normal law, without the samples.

    A sample's mean is normal. n times its variance (which is divided by n) over the law's variance is
    chi-squared with n - 1 degrees of freedom.

    Args:
      rng: The randomness.
      law: The normal law.
      canaries: n, the size of each sample.
      audits: The number of samples.
    """
    means = law.mean + law.deviation * rng.standard_normal(audits) / np.sqrt(canaries)
    deviations = law.deviation * np.sqrt(rng.chisquare(canaries - 1, audits) / canaries)
    return Gaussian(means, deviations)


def _maximise_over_thresholds(
    compute_log_rates: Callable[[Array], tuple[Array, Array]],
    null_quantile: ArrayLike,
    seen: Gaussian,
    delta: float,
) -> Array:
    """Returns the largest epsilon over thresholds x between two laws of cosines, at least 0.

    F0 and F1 are the distribution functions of unobserved and of observed cosines. Epsilon at x is the larger
    of log((F0 - delta) / F1) and log((1 - delta - F1) / (1 - F0)). Thresholds go from the delta quantile of
    F0 to the 1 - delta quantile of F1, since neither log is above 0 before or after these.

    Args:
      compute_log_rates: Maps thresholds x (..., points) to (log F0(x), log(1 - F0(x))).
      null_quantile: The delta quantile of F0, a single value for all laws F1 or a value for each.
      seen: The normal law F1, or laws (...): each has its own thresholds and its own result.
      delta: The delta of epsilon.
    """
    mean = np.asarray(seen.mean, np.float64)
    deviation = np.asarray(seen.deviation, np.float64)
    seen_quantile = mean - deviation * special.ndtri(delta)
    start, stop = np.broadcast_arrays(np.asarray(null_quantile), seen_quantile)
    # Where observed cosines are lower than unobserved, the quantiles may come in the other order.
    low = np.minimum(start, stop)
    high = np.maximum(start, stop)

    def compute_epsilons(points: Array) -> Array:
        """Returns epsilon at thresholds x (..., points), at least 0.

        With the distribution functions F0 of unobserved and F1 of observed cosines, it is the larger of
        log((F0 - delta) / F1) and log((1 - delta - F1) / (1 - F0)).
        """
        log_f0, log_1_minus_f0 = compute_log_rates(points)
        z = (points - mean[..., None]) / deviation[..., None]
        log_f1 = special.log_ndtr(z)
        one_minus_f1 = special.ndtr(-z)
        with np.errstate(divide="ignore", invalid="ignore"):
            below = np.log(np.maximum(np.exp(log_f0) - delta, 0)) - log_f1
            above = np.log(np.maximum(one_minus_f1 - delta, 0)) - log_1_minus_f0
        # `fmax` passes over NaN, the difference of two logs of 0.
        return np.asarray(np.fmax(np.fmax(below, above), 0.0))

    # A grid of thresholds along a last axis, then a finer grid between the neighbours of the best.
    points = np.linspace(low, high, _GRID, axis=-1)
    place = compute_epsilons(points).argmax(-1)
    best = np.take_along_axis(points, place[..., None], -1)[..., 0]
    step = (high - low) / (_GRID - 1)
    fine_low = np.maximum(best - step, low)
    fine_high = np.minimum(best + step, high)
    fine_points = np.linspace(fine_low, fine_high, _FINE_GRID, axis=-1)
    largest: Array = compute_epsilons(fine_points).max(-1)
    return largest


def _estimate_in_sample(run: Cosines, delta: float, confidence: float) -> list[Estimate]:
    """Returns the in-sample estimates, one for each kind of limits, with simulated errors and floors.

    Standard errors are simulated with cosines from the normal laws that are fitted to this run.

    Args:
      run: The cosines.
      delta: The delta of epsilon.
      confidence: The confidence of each error rate's upper limit.
    """
    error = 1 - confidence
    canaries = (len(run.observed), len(run.unobserved))
    # `fit` scales by sqrt(dimension); with dimension 1 its law is that of the cosines themselves.
    seen = fit(run.observed, 1)
    null = Gaussian(0.0, 1 / np.sqrt(run.dimension))
    if canaries[1]:
        null = fit(run.unobserved, 1)
    drawn = _draw_audits(null, seen, canaries)
    rows = []
    for name, prior in LIMITS.items():
        value = in_sample(run, delta, error, prior)
        deviation = float(_find_best(*drawn, run.dimension, delta, error, prior).std())
        floor = _compute_limit_floor(canaries, delta, error, prior)
        rows.append(_make_estimate(name, run, (delta, confidence), value, deviation, floor))
    return rows


@functools.lru_cache(maxsize=256)
def _compute_limit_floor(
    canaries: tuple[int, int], delta: float, error: float, prior: float
) -> NoiseFloor:
    """Returns what an in-sample estimate shows where nothing leaks, by simulation.

    It compares cosines with each other or with N(0, 1/d), so that any large d will do.
    """
    dimension = 10**8
    null = Gaussian(0.0, 1 / np.sqrt(dimension))
    drawn = _draw_audits(null, null, canaries)
    return _summarise(_find_best(*drawn, dimension, delta, error, prior))


def _draw_audits(null: Gaussian, seen: Gaussian, canaries: tuple[int, int]) -> tuple[Array, Array]:
    """Draws the observed and unobserved cosines (S, canaries) of S audits, the same each time."""
    rng = np.random.default_rng(2)
    # Fewer audits where each has many canaries, since their total is limited; but at least 20, of which a
    # deviation or a 95% quantile is taken.
    audits = int(np.clip(_SIMULATED_CANARIES // sum(canaries), 20, _AUDITS))
    # A normal draw may leave the range of a cosine, outside of which the exact law is not defined.
    cosines_in = np.clip(rng.normal(seen.mean, seen.deviation, (audits, canaries[0])), -1, 1)
    return cosines_in, rng.normal(null.mean, null.deviation, (audits, canaries[1]))


def _summarise(values: Array) -> NoiseFloor:
    """Returns the mean, the 95% quantile and the number of simulated estimates (S,) as a noise floor."""
    return NoiseFloor(float(values.mean()), float(np.quantile(values, 0.95)), values.size)


def _find_best(
    observed: Array, unobserved: Array, dimension: int, delta: float, error: float, prior: float
) -> Array:
    """Returns the largest epsilon (S,) over thresholds of S audits.

    Without unobserved cosines each observed one is a threshold, whose false-positive rate is exact: that of
    the law of a cosine, or from dimension 1,000 on of its normal limit. With them thresholds lie between all
    cosines, and the false-positive rate has an upper limit.

    Args:
      observed: (S, K) observed cosines.
      unobserved: (S, M) unobserved cosines; M may be 0.
      dimension: d, of the law of a cosine.
      delta: The delta of epsilon.
      error: The one-sided error of each rate's limit.
      prior: The prior of the limits' beta law, 1/2 for Jeffreys', 1 for Clopper and Pearson's.
    """
    n_in = observed.shape[-1]
    n_out = unobserved.shape[-1]
    limits_in = _compute_upper_limits(n_in, error, prior)
    if not n_out:
        # The i-th lowest cosine, from 0, as a threshold misses the i canaries with lower cosines.
        points = np.sort(observed, -1)
        log_fpr = special.log_ndtr(-points * np.sqrt(dimension))
        if dimension < _EXACT_BELOW:
            log_fpr = cosine_law.log_sf(points, dimension)
        log_fnr = np.broadcast_to(np.log(limits_in[:-1]), log_fpr.shape)
        return _find_largest_epsilon(log_fpr, log_fnr, delta)

    order = np.argsort(np.concatenate([observed, unobserved], -1), axis=-1, kind="stable")
    # Threshold i, from 0 to K + M, lies above the i lowest cosines and below all others.
    misses = np.pad(np.cumsum(order < n_in, -1), [(0, 0), (1, 0)])
    false_alarms = n_out - (np.arange(n_in + n_out + 1) - misses)
    limits_out = _compute_upper_limits(n_out, error, prior)
    return _find_largest_epsilon(np.log(limits_out[false_alarms]), np.log(limits_in[misses]), delta)


def _compute_upper_limits(trials: int, error: float, prior: float) -> Array:
    """Returns upper limits (trials + 1,) of error rates for 0, 1, ..., trials errors.

    They are the quantiles at 1 - error of Beta(count + prior, trials - count + 1 - prior); where the second
    parameter is not positive, the limit is 1. The prior is 1/2 for Jeffreys' limits, 1 for those of Clopper
    and Pearson.
    """
    count = np.arange(trials + 1)
    second_parameter = trials - count + 1 - prior
    # Where it is not positive the quantile is undefined: 1/2 avoids a NaN there. Positive ones are at least
    # 1/2, so that they stay.
    limits = special.betaincinv(count + prior, np.maximum(second_parameter, 0.5), 1 - error)
    return np.where(second_parameter > 0, limits, 1.0)


def _find_largest_epsilon(log_fpr: Array, log_fnr: Array, delta: float) -> Array:
    """Returns the largest epsilon (S,) over the thresholds of each of S audits, at least 0.

    Epsilon at a threshold is the larger of log((1 - delta - fnr) / fpr) and log((1 - delta - fpr) / fnr). The
    log of a number that is not positive proves nothing, and counts as 0.

    Args:
      log_fpr: (S, thresholds) log false-positive rates, or their limits.
      log_fnr: (S, thresholds) log limits of false-negative rates.
      delta: The delta of epsilon.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        from_fpr = np.log(np.maximum(1 - delta - np.exp(log_fnr), 0)) - log_fpr
        from_fnr = np.log(np.maximum(1 - delta - np.exp(log_fpr), 0)) - log_fnr
    # `fmax` passes over NaN, the difference of two logs of 0.
    return np.asarray(np.fmax(np.fmax(from_fpr, from_fnr), 0.0).max(-1))
