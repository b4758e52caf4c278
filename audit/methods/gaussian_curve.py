"""Tests whether the trade-off curve is Gaussian, as required to convert bounds on mu to epsilon.

Under the null hypothesis, some increasing map makes both worlds' scores normal with equal variance. This is
equivalent to a Gaussian trade-off curve. We count the scores in bins between pooled quantiles (cuts), and fit
two normal distributions with equal variance and common cuts by maximum likelihood.

We simulate the p-value, because chi-squared distributions are inaccurate if the worlds hardly overlap. If the
curve is Gaussian, the p-value is below 0.05 in at most 5% of audits, up to the error of a parametric
bootstrap.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array, Bits
from audit.laws import conversions, known_laws
from audit.laws.intervals import bisect
from audit.laws.known_laws import ScoreFamily

CURVE_LEVEL = 0.05  # a smaller p-value refutes the Gaussian curve
CURVE_POWER = 0.95  # a test with at least this power confirms the curve if it does not reject
_MAX_MU = 12.0  # |mu| for worlds without overlap, which fit any larger |mu| equally well
_TINY = 1e-300  # avoids a division by 0
_SIMULATIONS = 199  # of counts under the fit, and under each alternative
_PARAMETERS = np.geomspace(0.01, 30.0, 48)  # of the other curves


class Fit(NamedTuple):
    """Gaussian fits to counts in bins: scores are N(0, 1) in the "out" world, and N(mu, 1) in the "in" world.

    Attributes:
      mu: (...,) from -12 to 12.
      cuts: (..., bins - 1) the cuts between bins, the same in both worlds.
    """

    mu: Array
    cuts: Array


class _FittedNull(NamedTuple):
    """A Gaussian curve fitted to the counts, and the misfit of counts simulated from that fit.

    Attributes:
      counts: (2, bins) the number of scores in each bin, the "out" world first.
      simulated_misfit: (_SIMULATIONS, 3) the statistics of `_measure_misfit` for the simulated counts.
    """

    counts: Array
    fit: Fit
    simulated_misfit: Array


def examine(scores_in: Array, scores_out: Array) -> float:
    """Tests whether in-scores (n,) and out-scores (m,) have a Gaussian trade-off curve; returns the p-value.

    We fit a Gaussian trade-off curve, and compare the misfit of the observed scores with that of scores
    simulated from the fit. The p-value is 1 if no test is possible, because there are too few scores or the
    worlds hardly overlap.
    """
    null = _fit_null(scores_in, scores_out)
    if null is None:
        return 1.0
    misfit = _measure_misfit(null.counts, null.fit)
    return float(_compute_p_values(misfit, null.simulated_misfit))


def power(scores_in: Array, scores_out: Array) -> float:
    """Returns the test's smallest power against four other curves with the same fitted mu.

    The power is the probability that `examine` returns a p-value below 5% for the given numbers of in-scores
    (n,) and out-scores (m,). The simulated power has a standard error of at most 0.036 (0.015 near 95%). It
    is 0 if no test is possible.
    """
    null = _fit_null(scores_in, scores_out)
    if null is None:
        return 0.0
    alternatives = ("logistic", "laplace", "t3", "randomized_response")
    return min(_simulate_rejection_rate(known_laws.LAWS[name], null) for name in alternatives)


def _fit_null(scores_in: Array, scores_out: Array) -> _FittedNull | None:
    """Fits a Gaussian trade-off curve to in-scores (n,) and out-scores (m,), and simulates misfits under it.

    Returns None if no test is possible. A Gaussian curve fits fewer than three bins exactly. If one world's
    highest bin is not above the other world's lowest bin, the fitted mu is unbounded.
    """
    counts = count_in_bins(scores_in, scores_out)
    bins_out = np.flatnonzero(counts[0])  # the indices of bins with out-scores, ascending
    bins_in = np.flatnonzero(counts[1])
    have_overlap = bins_out[-1] > bins_in[0] and bins_in[-1] > bins_out[0]
    if counts.shape[1] < 3 or not have_overlap:
        return None
    fit = fit_counts(counts)
    simulated = _simulate_misfit(counts.sum(1), _compute_bins(fit).probabilities, expected_fit=fit)
    return _FittedNull(counts, fit, simulated)


def _simulate_misfit(sizes: Array, probabilities: Array, expected_fit: Fit) -> Array:
    """Draws multinomial counts; returns the statistics of `_measure_misfit`, (_SIMULATIONS, 3).

    `sizes` (2,) contains each world's number of scores, and `probabilities` (2, bins) its bin probabilities.
    To save time, each Gaussian fit starts at `expected_fit`, the fit to the expected counts.
    """
    rng = np.random.default_rng(0)
    normalized = probabilities / probabilities.sum(1, keepdims=True)
    worlds = [
        rng.multinomial(int(size), of_bins, _SIMULATIONS)
        for size, of_bins in zip(sizes, normalized, strict=True)
    ]
    counts = np.stack(worlds, 1).astype(float)
    return _measure_misfit(counts, fit_counts(counts, expected_fit))


def _measure_misfit(counts: Array, fits: Fit) -> Array:
    """Returns three statistics (..., 3) of the misfit between Gaussian fits and counts (..., 2, bins).

    overall   the likelihood ratio of unrestricted multinomial distributions to the fit
    spread    the squared Rao score for a quadratic term in the worlds' log-likelihood ratio (two-sided)
    tails     Rao's score for a cubic term, large if extreme scores reveal less than under a Gaussian curve
    """
    overall = compute_likelihood_ratio(counts, fits)
    spread, tails = np.moveaxis(compute_rao_scores(counts, fits), -1, 0)
    return np.stack([overall, spread**2, tails], -1)


def _compute_p_values(misfit: Array, simulated: Array) -> Array:
    """Returns the p-value of a Gaussian fit: the smallest of three, after a Bonferroni correction.

    The statistics in `misfit` (..., 3) are "overall", "spread" and "tails". Each p-value compares one of them
    with n values from the null, in `simulated` (n, 3). We use fitted distributions, because p-values may be
    below 1 / n. If r > 0 values reach the statistic, the p-value is at least (r + 1) / (n + 1), in case the
    fit is inaccurate.
    """
    reaching = (simulated >= misfit[..., None, :]).sum(-2)  # r
    empirical = (reaching + 1) / (len(simulated) + 1)
    p_values = np.maximum(
        _compute_tail_probabilities(misfit, simulated), np.where(reaching, empirical, 0.0)
    )
    # Most of the significance level goes to "tails", because this misfit makes the epsilon computed from mu
    # too large.
    corrected = p_values / [0.2, 0.2, 0.6]
    return np.minimum(corrected.min(-1), 1.0)


def _compute_tail_probabilities(misfit: Array, simulated: Array) -> Array:
    """Returns the probabilities (..., 3) that statistics exceed their values in `misfit` (..., 3).

    We fit distributions to the `simulated` values (n, 3): gamma distributions for "overall" and "spread",
    which are never negative, and a normal distribution for "tails", which may have either sign.
    """
    mean = simulated.mean(0)
    variance = np.maximum(simulated.var(0), 1e-24)  # avoids a division by 0
    rate = mean / variance
    shape = mean * rate
    gamma_tails = special.gammaincc(shape[:2], misfit[..., :2] * rate[:2])
    # Rao's score has a standard deviation of 1 for large counts. A minimum of 1 is conservative.
    deviation = max(np.sqrt(variance[2]), 1.0)
    normal_tail = special.ndtr((mean[2] - misfit[..., 2:]) / deviation)
    return np.append(gamma_tails, normal_tail, axis=-1)


def _simulate_rejection_rate(family: ScoreFamily, null: _FittedNull) -> float:
    """Returns the test's power against a non-Gaussian curve: the fraction of rejected simulations.

    We simulate as many scores as were observed, with a fixed seed. The best Gaussian fit to the simulated
    curve has the same |mu| as the fit to the observed scores, so both share one simulated null.
    """
    bins = null.counts.shape[1]
    sizes = null.counts.sum(1)
    mus = _tabulate_fitted_mus(family, bins)
    parameter = float(np.interp(abs(null.fit.mu), mus, _PARAMETERS))  # with this |mu|
    probabilities = _compute_bin_probabilities(family, parameter, bins)
    expected_counts = probabilities * sizes[:, None]
    expected_fit = fit_counts(expected_counts)  # where simulated fits start
    misfit = _simulate_misfit(sizes, probabilities, expected_fit)
    p_values = _compute_p_values(misfit, null.simulated_misfit)
    return float((p_values < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _tabulate_fitted_mus(family: ScoreFamily, bins: int) -> Array:
    """Returns the mu of the Gaussian curve that best fits a family's scores, for each of the 48 _PARAMETERS.

    We fit the exact probabilities of `bins` bins, not counts.
    """
    probabilities = [
        _compute_bin_probabilities(family, parameter, bins) for parameter in _PARAMETERS
    ]
    fits = fit_counts(np.array(probabilities))
    # Interpolation needs ascending values. If the worlds hardly overlap, fitting errors of 1e-5 can change
    # the order.
    return np.maximum.accumulate(fits.mu)


def _compute_bin_probabilities(family: ScoreFamily, parameter: float, bins: int) -> Array:
    """Returns the probability (2, bins) of each bin for a family's scores, with the "out" world first.

    Cuts are quantiles of an equal mixture of both worlds.
    """
    cuts = family.quantiles(np.arange(1, bins) / bins, parameter)
    below = [family.distribution(cuts, parameter, inserted) for inserted in (False, True)]
    return np.diff(below, prepend=0.0, append=1.0)


def count_in_bins(scores_in: Array, scores_out: Array) -> Array:
    """Counts in-scores (n,) and out-scores (m,) in 2 to 16 bins; returns (2, bins), the "out" world first.

    Each bin contains about the same fraction of the scores, with equal weight for both worlds. Equal scores
    share a bin. Empty bins are dropped.
    """
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    worlds = np.split(ranks, [len(scores_out)])
    counts = np.array([np.bincount(world, minlength=len(values)) for world in worlds], np.float64)
    weights = (counts / counts.sum(1, keepdims=True)).mean(0)
    # The weights of the distinct scores divide [0, 1] into intervals, and bins are equal parts of [0, 1]. A
    # score belongs to the bin that contains the middle of its interval (always below 1).
    ends = weights.cumsum()
    middles = ends - np.diff(ends, prepend=0.0) / 2
    # A rule of thumb: one bin per 4 scores of the smaller world.
    bins = np.clip(min(len(scores_in), len(scores_out)) // 4, 2, 16)
    # Each distinct score's bin, numbered without gaps.
    _, bin_indices = np.unique(np.floor(middles * bins), return_inverse=True)
    return np.array([np.bincount(bin_indices, weights=world) for world in counts])


def approximate_fit(counts: Array) -> Fit:
    """Returns a fit to counts (..., 2, bins) near the maximum-likelihood fit, to initialise `fit_counts`.

    The first world is "out", with scores from N(0, 1), and the second is "in", with scores from N(mu, 1).
    Given an estimate of mu, each cut between two bins is the point below which the mixture of both worlds has
    the observed fraction of scores.
    """
    below = counts.cumsum(-1)[..., :-1]  # each cut, (..., 2, bins - 1)
    sizes = counts.sum(-1, keepdims=True)
    mu = _estimate_mu(below, sizes)
    observed = below.sum(-2) / sizes.sum(-2)  # the fraction of all scores below each cut
    fraction_in = sizes[..., 1, :] / sizes.sum(-2)  # of all scores

    def is_too_low(cuts: Array) -> Bits:
        """Returns whether the mixture's probability below each cut is smaller than the observed fraction."""
        mixture = fraction_in * special.ndtr(cuts - mu) + (1 - fraction_in) * special.ndtr(cuts)
        return mixture < observed

    # Beyond 40 standard deviations, probabilities are 0 in float64.
    low, high = bisect(is_too_low, -40.0, 40.0, halvings=60)
    return Fit(mu.squeeze(-1), cuts=(low + high) / 2)


def _estimate_mu(below: Array, sizes: Array) -> Array:
    """Returns the distance mu (..., 1) between the means of two normal worlds with variance 1.

    At each cut, the difference between the worlds' normal quantiles estimates mu. We return the weighted mean
    of these estimates.

    Args:
      below: (..., 2, cuts) the number of each world's scores below each cut, the "out" world first.
      sizes: (..., 2, 1) each world's number of scores.
    """
    # Adding half a score below and above each cut keeps the quantiles finite.
    quantiles = special.ndtri((below + 0.5) / (sizes + 1))
    z_out, z_in = np.moveaxis(quantiles, -2, 0)
    # The variance of a normal quantile z, with probability p below it, is about p (1 - p) / (n density^2). We
    # use only the density, which varies the most: 1 / density^2 is proportional to exp(z^2).
    variances = np.exp(z_out**2) + np.exp(z_in**2)
    mu = np.average(z_out - z_in, axis=-1, weights=1 / variances, keepdims=True)
    return np.clip(mu, -_MAX_MU, _MAX_MU)


class _Bins(NamedTuple):
    """A fit's bins in both worlds: "out" (N(0, 1)) first, then "in" (N(mu, 1)).

    Attributes:
      probabilities: (..., 2, bins) the probability of each bin, above 0.
      density: (..., 2, bins + 1) each world's normal density at the bin edges.
      jacobian: (..., 2, bins, bins) the derivatives of the probabilities with respect to the fit's
        parameters: the bins - 1 cuts and then mu.
    """

    probabilities: Array
    density: Array
    jacobian: Array


def _compute_bins(fit: Fit) -> _Bins:
    """Returns a fit's bins in both worlds."""
    # The bin edges (..., 2, bins + 1), relative to each world's mean.
    infinity = np.full_like(fit.mu[..., None], np.inf)
    edges_out = np.concatenate([-infinity, fit.cuts, infinity], -1)
    edges_in = edges_out - fit.mu[..., None]
    edges = np.stack([edges_out, edges_in], -2)
    probabilities = np.maximum(conversions.mass_between(edges), _TINY)  # we divide by them
    density = np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi)
    # A cut moves its own edge, and mu moves all edges of the "in" world down. The outer edges are infinite
    # and do not move.
    bins = probabilities.shape[-1]
    edge_derivatives = np.zeros((2, bins + 1, bins))  # worlds, edges, parameters (cuts, then mu)
    edge_derivatives[:, 1:-1, :-1] = np.eye(bins - 1)
    edge_derivatives[1, :, -1] = -1.0
    jacobian = np.diff(density[..., None] * edge_derivatives, axis=-2)
    return _Bins(probabilities, density, jacobian)


def _compute_information(jacobian: Array, weights: Array) -> Array:
    """Returns the Fisher information J' diag(weights) J, of shape (..., p, p).

    A small ridge makes the matrix invertible.

    Args:
      jacobian: J, (..., 2, bins, p) the derivatives of bin probabilities with respect to p parameters.
      weights: (..., 2, bins) each world's number of scores, divided by the bin's probability.
    """
    of_worlds = np.swapaxes(jacobian, -1, -2) @ (weights[..., None] * jacobian)
    return of_worlds.sum(-3) + 1e-9 * np.eye(jacobian.shape[-1])


def fit_counts(counts: Array, start: Fit | None = None) -> Fit:
    """Fits counts (..., 2, bins) by maximum likelihood, with eight steps of Fisher scoring.

    Let J be the Jacobian of the bin probabilities P, and W = diag(sizes / P). A step solves J' W J step = J'
    (counts / P). The default start is `approximate_fit`, from which eight steps are enough to converge.
    """
    sizes = counts.sum(-1, keepdims=True)
    fit = start or approximate_fit(counts)
    for _ in range(8):
        bins = _compute_bins(fit)
        information = _compute_information(bins.jacobian, sizes / bins.probabilities)
        # Axes: w world, b bin, p parameter.
        gradient = np.einsum("...wbp,...wb->...p", bins.jacobian, counts / bins.probabilities)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _take_step(fit, step)
    return fit


def _take_step(fit: Fit, step: Array) -> Fit:
    """Returns the fit after one step of Fisher scoring.

    `step` (..., bins) contains the changes of the bins - 1 cuts, then of mu. To keep cuts in order, we
    shorten steps that would close more than 70% of a gap between them. We also shorten steps that would move
    a parameter by more than 1.
    """
    gaps = np.diff(fit.cuts)
    closing = -np.diff(step[..., :-1])  # by how much the step shrinks each gap
    allowed = 0.7 * gaps / np.maximum(closing, _TINY)
    scales = np.where(closing > 0, allowed, 1.0)
    largest = np.maximum(np.abs(step).max(-1), 1)
    scale = np.minimum(scales.min(-1, initial=1.0), 1 / largest)
    scaled_step = scale[..., None] * step
    mu = np.clip(fit.mu + scaled_step[..., -1], -_MAX_MU, _MAX_MU)
    cuts = fit.cuts + scaled_step[..., :-1]
    return Fit(mu, cuts)


def compute_likelihood_ratio(counts: Array, fit: Fit) -> Array:
    """Returns the likelihood-ratio statistic (...,) of unrestricted multinomials against the fit.

    The statistic is 2 sum n log(n / e), for observed counts n (..., 2, bins) and counts e expected under the
    fit.
    """
    expected = counts.sum(-1, keepdims=True) * _compute_bins(fit).probabilities
    statistic = 2 * special.rel_entr(counts, expected).sum((-1, -2))
    return np.maximum(statistic, 0.0)  # rounding may give a negative value


def compute_rao_scores(counts: Array, fit: Fit) -> Array:
    """Returns Rao's score statistics (..., 2) for a quadratic and a cubic departure from a Gaussian curve.

    A departure multiplies the fitted density of the "in" world by exp(c f(score)), up to a constant. The fit
    has c = 0. A statistic is the derivative of the log likelihood of counts (..., 2, bins) with respect to c,
    divided by its standard deviation. Fitting mu and the cuts (bin edges) reduces this deviation. Under the
    null, the statistic is approximately standard normal if bins contain many scores.
    """
    bins = _compute_bins(fit)
    derivatives = _differentiate_by_departures(fit, bins)
    # n / p: a world's n scores have the Fisher information J' diag(n / p) J about bin probabilities p.
    weights = counts.sum(-1, keepdims=True) / bins.probabilities
    # Axes: w world, b bin, d departure.
    score = np.einsum("...wbd,...wb->...d", derivatives, counts / bins.probabilities)
    variance = _compute_efficient_information(derivatives, bins.jacobian, weights)
    return score / np.sqrt(np.maximum(variance, _TINY))


def _compute_efficient_information(derivatives: Array, jacobian: Array, weights: Array) -> Array:
    """Returns the efficient Fisher information (..., d) about the coefficients c of d departures.

    This is the information about c minus the part explained by p parameters fitted to the same counts.

    Args:
      derivatives: (..., 2, bins, d) the derivatives of bin probabilities with respect to each c.
      jacobian: (..., 2, bins, p) the same for the fitted parameters.
      weights: (..., 2, bins) each world's number of scores, divided by the bin's probability.
    """
    # Axes: w world, b bin, d departure, p fitted parameter.
    information = np.einsum("...wbd,...wb->...d", derivatives**2, weights)
    shared = np.einsum("...wbp,...wb,...wbd->...pd", jacobian, weights, derivatives, optimize=True)
    coefficients = np.linalg.solve(_compute_information(jacobian, weights), shared)
    explained = (shared * coefficients).sum(-2)
    return np.maximum(information - explained, 1e-9 * information)  # above 0 despite rounding


def _differentiate_by_departures(fit: Fit, bins: _Bins) -> Array:
    """Returns derivatives (..., 2, bins, 2) of bin probabilities along two departures from a Gaussian curve.

    A Gaussian curve's log-likelihood ratio is linear in the score s. A departure adds c f(s), and we
    differentiate with respect to c at c = 0:

        quadratic    f(s) = s^2
        cubic        f(s) = -s^3 for mu >= 0, else s^3; if c > 0, extreme scores reveal less

    Since we only count scores in bins, s is a bin's mean score, measured from the midpoint between the two
    worlds' means.
    """
    s = _compute_mean_scores(fit.mu, bins) - fit.mu[..., None] / 2  # (..., bins)
    sign = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    f = np.stack([s**2, sign * s**3], -1)
    # A departure changes only the "in" world. The derivative of a bin's probability is the probability times
    # (f minus the mean of f): normalizing the density subtracts the mean.
    in_bins = bins.probabilities[..., 1, :, None]
    mean_f = (in_bins * f).sum(-2, keepdims=True)
    derivatives = np.zeros((*bins.probabilities.shape, 2))
    derivatives[..., 1, :, :] = in_bins * (f - mean_f)
    return derivatives


def _compute_mean_scores(mu: Array, bins: _Bins) -> Array:
    """Returns each bin's mean score (..., bins) in both worlds together: N(0, 1) and N(mu, 1)."""
    # A bin's moment is the integral of score times density over the bin. For N(0, 1), it is the density at
    # the bin's lower edge minus the density at its upper edge. For N(mu, 1), we add mu times the bin's
    # probability.
    moments = -np.diff(bins.density)
    moments[..., 1, :] += mu[..., None] * bins.probabilities[..., 1, :]
    return moments.sum(-2) / bins.probabilities.sum(-2)
