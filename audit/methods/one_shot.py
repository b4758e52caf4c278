"""Estimates of epsilon from the cosines of a single run's canaries (Andrew et al., ICLR 2024).

Each canary is a uniform random direction in R^d. Training with a canary shifts the cosine between the canary
and the released vector. Without training, the cosine has the null distribution in `cosine_law`, which is
nearly N(0, 1/d).

    one_shot_fitted            the exact epsilon of N(0, 1/d) against N(mean, deviation^2), fitted to cosines
    one_shot_equal_variance    the same against N(mean, 1/d): the estimate in Table 1 (Errata O1)
    others                     eps_lo: the best of all thresholds, using Jeffreys or Clopper-Pearson limits

These estimates are not confidence bounds. The first two ignore the error of the fit. The others choose the
threshold using the canaries that they count (Errata O7, O8 of experiments/one_shot/README.md).

We fit the null distribution only if cosines are maxima over rounds, because their null distribution is
unknown. Means and deviations are in units of 1/sqrt(d).
"""

import functools

import numpy as np
from scipy import special

from audit.evidence.arrays import Array
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, gaussians, intervals
from audit.laws.gaussians import Gaussian
from audit.methods import thresholds
from audit.methods.estimate import Estimate
from audit.methods.method import NoiseFloor

ONE_SHOT_FITTED = "one_shot_fitted"
ONE_SHOT_EQUAL_VARIANCE = "one_shot_equal_variance"
ONE_SHOT_JEFFREYS = "one_shot_jeffreys"
# The `prior` of `intervals.clopper_pearson_upper`.
PRIORS = {ONE_SHOT_JEFFREYS: 0.5, "one_shot_clopper_pearson": 1.0}

_KNOWN_NULL = Gaussian(0.0, 1.0)  # N(0, 1/d) in units of 1/sqrt(d)
_SIMULATED_FITS = 2000


def fit(values: Array, dimension: int) -> Gaussian:
    """Returns the means and standard deviations (...,) of cosines (..., K), in units of 1/sqrt(d).

    As in Andrew et al. (2024), variances use the divisor K, not K - 1.
    """
    root = np.sqrt(dimension)
    return Gaussian(values.mean(-1) * root, values.std(-1) * root)


def equal_variance(null: Gaussian, seen: Gaussian, delta: float) -> Array:
    """Returns the exact epsilon between the null and the null shifted to the mean of `seen`.

    The cosines of left-out canaries follow the null, and those of inserted canaries follow `seen`.
    """
    return gaussians.epsilon(null, Gaussian(seen.mean, null.deviation), delta)


# (null distribution, distribution of observed cosines, delta) -> epsilon
FITTED = {ONE_SHOT_FITTED: gaussians.epsilon, ONE_SHOT_EQUAL_VARIANCE: equal_variance}


def estimates(run: Cosines, delta: float, confidence: float) -> list[Estimate]:
    """Returns all estimates of epsilon from a run's cosines.

    The methods in PRIORS use one-sided limits on error rates at level `confidence`.
    """
    rows = [estimate_from_fit(name, run, delta) for name in FITTED]
    return rows + [
        Estimate(
            method=name,
            epsilon=in_sample(run, delta, 1 - confidence, prior),
            delta=delta,
            confidence=confidence,
            n_in=len(run.observed),
            n_out=len(run.unobserved),
            caveat="in-sample: the best of all thresholds",
        )
        for name, prior in PRIORS.items()
    ]


def estimate_from_fit(name: str, run: Cosines, delta: float) -> Estimate:
    """Returns an estimate that depends only on the means and standard deviations of a run's cosines.

    `name` is a key of FITTED. We fit the null distribution to the cosines of unobserved (left-out) canaries.
    Without such canaries, the null is N(0, 1/d). The standard error comes from a parametric bootstrap: 2,000
    samples from the fitted distributions.
    """
    observed = len(run.observed)
    unobserved = len(run.unobserved)
    rng = np.random.default_rng(1)  # the same draws each time
    seen = fit(run.observed, run.dimension)
    redrawn_seen = _draw_fits(rng, seen, observed)
    null = _KNOWN_NULL
    redrawn_null = null  # exact, so it adds no error
    if unobserved:
        null = fit(run.unobserved, run.dimension)
        redrawn_null = _draw_fits(rng, null, unobserved)
    compute = FITTED[name]
    return Estimate(
        method=name,
        epsilon=float(compute(null, seen, delta)),
        delta=delta,
        confidence=0.95,  # has no effect without limits
        n_in=observed,
        n_out=unobserved,
        caveat="a Gaussian fit treated as exact",
        standard_error=float(compute(redrawn_null, redrawn_seen, delta).std()),
        noise_floor=noise_floor(name, observed, unobserved, delta),  # without leakage
    )


@functools.lru_cache(maxsize=256)
def noise_floor(method: str, observed: int, unobserved: int, delta: float) -> NoiseFloor:
    """Returns the mean and the 95% quantile of an estimate's epsilon under the null (no leakage).

    We simulate 2,000 fits (means and standard deviations) to the cosines of `observed` inserted and
    `unobserved` left-out canaries. All cosines are from N(0, 1/d). If `unobserved` is 0, we use this known
    null. `method` is a key of FITTED. See Errata O2 of experiments/one_shot/README.md.
    """
    rng = np.random.default_rng(0)  # the same draws each time
    null = _KNOWN_NULL
    if unobserved:
        null = _draw_fits(rng, _KNOWN_NULL, unobserved)
    values = FITTED[method](null, _draw_fits(rng, _KNOWN_NULL, observed), delta)
    return NoiseFloor(
        mean=float(values.mean()),
        quantile_95=float(np.quantile(values, 0.95)),
        audits=_SIMULATED_FITS,
    )


def _draw_fits(rng: np.random.Generator, law: Gaussian, canaries: int) -> Gaussian:
    """Draws the means and standard deviations (2000,) of samples of n = `canaries` values from `law`.

    A sample's mean is normal. n times its variance (with divisor n), divided by the true variance, follows a
    chi-squared distribution with n - 1 degrees of freedom.
    """
    errors = rng.standard_normal(_SIMULATED_FITS)
    means = law.mean + law.deviation * errors / np.sqrt(canaries)
    squares = rng.chisquare(canaries - 1, _SIMULATED_FITS)
    deviations = law.deviation * np.sqrt(squares / canaries)
    return Gaussian(means, deviations)


def in_sample(run: Cosines, delta: float, error: float, prior: float) -> float:
    """Returns the in-sample estimate of epsilon, the largest over all thresholds, called eps_lo in papers.

    For each threshold, we compute the epsilon of the trade-off curve through the upper limits on both error
    rates (`conversions.epsilon_from_rates`). If all canaries are observed, the false-positive rate is known.
    Otherwise, even at a fixed threshold, both limits hold only with probability 1 - 2 error (Errata O8 of
    experiments/one_shot/README.md).

    `error` is the one-sided error of each rate's limit. `prior` is 1/2 for Jeffreys limits, and 1 for
    Clopper-Pearson limits.
    """
    observed = np.sort(run.observed)
    if len(run.unobserved):
        tried = np.concatenate([[-np.inf], run.observed, run.unobserved])
        false_positives, misses = thresholds.count_errors(observed, run.unobserved, tried)
        fpr = intervals.clopper_pearson_upper(false_positives, len(run.unobserved), error, prior)
    else:
        fpr = _compute_null_tails(observed, run.dimension)
        misses = np.arange(len(observed))  # observed cosines below each threshold
    fnr = intervals.clopper_pearson_upper(misses, len(observed), error, prior)
    epsilons = conversions.epsilon_from_rates(fpr, fnr, delta)
    return float(epsilons.max(initial=0.0))


def _compute_null_tails(cosines: Array, dimension: int) -> Array:
    """Returns the probability (K,), at least 1e-300, that a left-out canary's cosine exceeds each value.

    For 1,000 or more dimensions, we use the normal limit N(0, 1/d), as in the code of Andrew et al. (2024).
    """
    if dimension < 1000:
        log_tails = cosine_law.log_sf(cosines, dimension)
    else:
        log_tails = special.log_ndtr(-cosines * np.sqrt(dimension))
    return np.maximum(np.exp(log_tails), 1e-300)  # 0 would give an infinite epsilon
