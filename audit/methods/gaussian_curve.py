"""Tests whether the trade-off curve is Gaussian, as required to convert bounds on mu to epsilon.

The null hypothesis states that some increasing map makes the scores of both worlds normal, with equal
variance. This is equivalent to a Gaussian trade-off curve. We count the scores in cells between pooled
quantiles (cuts), and fit two normal distributions with equal variance and common cuts by maximum likelihood.

We simulate the p-value, because chi-squared distributions are inaccurate if the worlds hardly overlap. If the
curve is Gaussian, the p-value is below 0.05 in at most 5% of audits, up to the error of a parametric
bootstrap.

A *table* holds counts (2, cells), with the world "out" (canary left out) first.
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
CURVE_POWER = 0.95  # a test with at least this power that does not reject confirms the curve
_MAX_MU = 12.0  # |mu| for worlds without overlap, which fit any larger |mu| equally well
_TINY = 1e-300  # avoids a division by 0
_TABLES = 199  # drawn from the fit, and from each alternative
_PARAMETERS = np.geomspace(0.01, 30.0, 48)  # of the other curves


class Fit(NamedTuple):
    """Fits of the null hypothesis, two normal distributions with equal variance and common cuts, to tables.

    Attributes:
      mu: (...,) the mean of world "in" minus that of "out", in standard deviations, from -12 to 12.
      cuts: (..., cells - 1) the cuts between cells, in standard deviations from the mean of world "out".
    """

    mu: Array
    cuts: Array


class _Null(NamedTuple):
    """The scores' table, the fit of the null hypothesis, and statistics simulated from that fit.

    Attributes:
      table: (2, cells) counts, the world "out" first.
      fit: The fit to the table.
      drawn: (_TABLES, 3) the three statistics of each table drawn from the fit.
    """

    table: Array
    fit: Fit
    drawn: Array


def examine(scores_in: Array, scores_out: Array) -> float:
    """Returns the p-value of a test of whether in-scores (n,) and out-scores (m,) have a Gaussian curve.

    It is 1 if no test is possible, because there are too few scores or the worlds hardly overlap.
    """
    null = _fit_null(scores_in, scores_out)
    if null is None:
        return 1.0
    statistics = _compute_statistics(null.table, null.fit)
    return float(_compute_p_values(statistics, null.drawn))


def power(scores_in: Array, scores_out: Array) -> float:
    """Returns the test's smallest power against four other curves with the same fitted mu.

    The power is the probability that `examine` returns a p-value below 5% for this many scores, (n,) in and
    (m,) out. We simulate it with a standard error of at most 0.036, and 0.015 near 95%. It is 0 if no test is
    possible.
    """
    null = _fit_null(scores_in, scores_out)
    if null is None:
        return 0.0
    alternatives = ("logistic", "laplace", "t3", "randomized_response")
    return min(_simulate_rejection_rate(known_laws.LAWS[name], null) for name in alternatives)


def _fit_null(scores_in: Array, scores_out: Array) -> _Null | None:
    """Fits the null hypothesis to in-scores (n,) and out-scores (m,), and simulates the statistics under it.

    Returns None if no test is possible: if there are fewer than three cells, or if one world's scores are all
    in higher cells than the other's (a single cell may be shared), since mu is then unbounded.
    """
    table = count_in_cells(scores_in, scores_out)
    cells_out = np.flatnonzero(table[0])  # the indices of cells with out-scores, ascending
    cells_in = np.flatnonzero(table[1])
    have_overlap = cells_out[-1] > cells_in[0] and cells_in[-1] > cells_out[0]
    if table.shape[1] < 3 or not have_overlap:
        return None
    fit = fit_tables(table)
    drawn = _draw_statistics(table.sum(1), _compute_cells(fit).probabilities, start=fit)
    return _Null(table, fit, drawn)


def _draw_statistics(sizes: Array, probabilities: Array, start: Fit) -> Array:
    """Draws multinomial tables with a fixed seed, and returns their three statistics, of shape (_TABLES, 3).

    `sizes` (2,) has the number of scores in each world, and `probabilities` (2, cells) the cells'
    probabilities. Fits start at `start`.
    """
    rng = np.random.default_rng(0)
    normalized = probabilities / probabilities.sum(1, keepdims=True)
    worlds = [
        rng.multinomial(int(size), of_cells, _TABLES)
        for size, of_cells in zip(sizes, normalized, strict=True)
    ]
    tables = np.stack(worlds, 1).astype(float)
    return _compute_statistics(tables, fit_tables(tables, start))


def _compute_statistics(tables: Array, fits: Fit) -> Array:
    """Returns three statistics (..., 3) of the misfit between tables (..., 2, cells) and their fits.

    cells     the likelihood ratio against any two multinomials
    spread    Rao's score for a quadratic term in the worlds' log-likelihood ratio, squared (two-sided)
    tails     Rao's score for a cubic term: far scores reveal less than under a Gaussian curve
    """
    cells = compute_likelihood_ratio(tables, fits)
    spread, tails = np.moveaxis(compute_rao_scores(tables, fits), -1, 0)
    return np.stack([cells, spread**2, tails], -1)


def _compute_p_values(statistics: Array, drawn: Array) -> Array:
    """Returns the test's p-values from its three statistics, of shape (..., 3): cells, spread and tails.

    A statistic's p-value is a tail probability of a distribution with the mean and variance of the statistics
    `drawn` (n, 3) under the null: gamma for cells and spread, and normal for tails. If r > 0 of the n drawn
    statistics reach the observed one, we use at least (r + 1) / (n + 1), which is valid for any distribution.
    The result is the smallest of the three p-values after a Bonferroni correction.
    """
    mean = drawn.mean(0)
    variance = np.maximum(drawn.var(0), 1e-24)  # avoids a division by 0
    rate = mean / variance
    shape = mean * rate
    # The tail probabilities of gamma distributions. We replace the third below.
    smooth = special.gammaincc(shape, np.maximum(statistics, 0) * rate)
    # In theory, the standard deviation of tails is 1. If there are few scores, it is lower, because they vary
    # too little around their fit.
    deviation = max(np.sqrt(variance[2]), 1.0)
    excess = statistics[..., 2] - mean[2]
    smooth[..., 2] = special.ndtr(-excess / deviation)

    reaching = (drawn >= statistics[..., None, :]).sum(-2)
    empirical = (reaching + 1) / (len(drawn) + 1)
    p_values = np.maximum(smooth, np.where(reaching, empirical, 0.0))
    # Most of the significance level is allotted to tails, since this misfit makes the epsilon computed from
    # mu too large.
    corrected = p_values / [0.2, 0.2, 0.6]
    return np.minimum(corrected.min(-1), 1.0)


def _simulate_rejection_rate(family: ScoreFamily, null: _Null) -> float:
    """Returns how often the test rejects simulated scores from a family of non-Gaussian curves.

    The number of scores is as observed, and the family's parameter is chosen to give the same fitted |mu|.
    """
    cells = null.table.shape[1]
    sizes = null.table.sum(1)
    mus = _tabulate_fitted_mus(family, cells)
    parameter = float(np.interp(abs(null.fit.mu), mus, _PARAMETERS))
    probabilities = _compute_cell_probabilities(family, parameter, cells)
    # The fit to the expected counts is close to the fits to all drawn tables.
    start = fit_tables(probabilities * sizes[:, None])
    statistics = _draw_statistics(sizes, probabilities, start)
    p_values = _compute_p_values(statistics, null.drawn)
    return float((p_values < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _tabulate_fitted_mus(family: ScoreFamily, cells: int) -> Array:
    """Returns the mu fitted to infinitely many scores of a family, for each of the 48 _PARAMETERS.

    The probabilities of `cells` intervals take the place of counts of scores.
    """
    tables = [_compute_cell_probabilities(family, parameter, cells) for parameter in _PARAMETERS]
    fits = fit_tables(np.array(tables))
    # Values must ascend for interpolation. If worlds hardly overlap, fitting errors of 1e-5 can change the
    # order.
    return np.maximum.accumulate(fits.mu)


def _compute_cell_probabilities(family: ScoreFamily, parameter: float, cells: int) -> Array:
    """Returns the probability (2, cells) of each cell for a family's scores, with the world "out" first.

    Cuts are quantiles of the equal mixture of both worlds.
    """
    cuts = family.quantiles(np.arange(1, cells) / cells, parameter)
    below = [family.distribution(cuts, parameter, inserted) for inserted in (False, True)]
    return np.diff(below, prepend=0.0, append=1.0)


def count_in_cells(scores_in: Array, scores_out: Array) -> Array:
    """Returns the table (2, cells) of in-scores (n,) and out-scores (m,), with the world "out" first.

    With equal weight for both worlds, each of the 2 to 16 cells contains about the same fraction of the
    scores. If both had the size of the smaller one, the cells would contain at least 8 scores on average.
    Equal scores share a cell. Empty cells are dropped.
    """
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    worlds = np.split(ranks, [len(scores_out)])
    counts = np.array([np.bincount(world, minlength=len(values)) for world in worlds], np.float64)
    sizes = counts.sum(1, keepdims=True)
    weights = (counts / sizes).mean(0)
    # The weights of the distinct scores divide [0, 1] into intervals, and cells divide it evenly. A score
    # belongs to the cell that contains the middle of its interval.
    ends = weights.cumsum()
    middles = ends - np.diff(ends, prepend=0.0) / 2
    smaller_world = min(len(scores_in), len(scores_out))
    cells = np.clip(2 * smaller_world // 8, 2, 16)
    # Each distinct score's cell, numbered without gaps.
    _, cell = np.unique(np.floor(middles * cells), return_inverse=True)
    return np.array([np.bincount(cell, weights=world) for world in counts])


def approximate_fit(table: Array) -> Fit:
    """Returns a fit to tables (..., 2, cells) near the maximum-likelihood fit, to initialise `fit_tables`.

    mu is a weighted mean, over cuts, of the distance between both worlds' normal quantiles. Each cut is where
    the mixture of N(0, 1) and N(mu, 1) has the observed fraction of scores below it.
    """
    below = table.cumsum(-1)[..., :-1]  # each cut, (..., 2, cells - 1)
    sizes = table.sum(-1, keepdims=True)
    # Adding half a score below and above each cut keeps the quantiles finite.
    quantiles = special.ndtri((below + 0.5) / (sizes + 1))
    z_out = quantiles[..., 0, :]
    z_in = quantiles[..., 1, :]
    # The variance of a normal quantile z, with probability p below it, is about p (1 - p) / (n density^2). We
    # only use the density, which varies most: 1 / density^2 is proportional to exp(z^2).
    variances = np.exp(z_out**2) + np.exp(z_in**2)
    mu = np.average(z_out - z_in, axis=-1, weights=1 / variances, keepdims=True)
    mu = np.clip(mu, -_MAX_MU, _MAX_MU)

    observed = below.sum(-2) / sizes.sum(-2)  # the fraction of all scores below each cut
    fraction_in = sizes[..., 1, :] / sizes.sum(-2)  # of all scores

    def is_too_low(cuts: Array) -> Bits:
        """Returns True for each cut below which the mixture has a smaller fraction than observed."""
        below_in = special.ndtr(cuts - mu)
        below_out = special.ndtr(cuts)
        return fraction_in * below_in + (1 - fraction_in) * below_out < observed

    # Beyond 40 deviations, probabilities are 0 in float64. We bisect to the last digit.
    low, high = bisect(is_too_low, -40.0, 40.0, halvings=60)
    return Fit(mu[..., 0], cuts=(low + high) / 2)


class _Cells(NamedTuple):
    """A fit's cells in both worlds: "out" (N(0, 1)) first, then "in" (N(mu, 1)).

    Attributes:
      probabilities: (..., 2, cells) the probability of each cell, above 0.
      density: (..., 2, cells + 1) each world's normal density at the ends of cells.
      jacobian: (..., 2, cells, cells) the derivatives of the probabilities with respect to the cells - 1 cuts
        and then mu.
    """

    probabilities: Array
    density: Array
    jacobian: Array


def _compute_cells(fit: Fit) -> _Cells:
    """Returns the cells' probabilities under a fit, the densities at their ends, and the Jacobian."""
    # The ends of cells, (..., 2, cells + 1), relative to each world's mean.
    infinity = np.full((*fit.mu.shape, 1), np.inf)
    edges_out = np.concatenate([-infinity, fit.cuts, infinity], -1)
    edges_in = edges_out - fit.mu[..., None]
    edges = np.stack([edges_out, edges_in], -2)
    probabilities = np.maximum(conversions.mass_between(edges), _TINY)
    density = np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi)
    # The derivatives of the edges with respect to the cuts and mu: a cut moves its own edge, and mu moves all
    # edges of the world "in" down.
    cells = probabilities.shape[-1]
    moves = np.zeros((2, cells + 1, cells))  # worlds, edges, parameters
    moves[:, 1:-1, :-1] = np.eye(cells - 1)  # the outer edges are infinite and do not move
    moves[1, :, -1] = -1.0
    jacobian = np.diff(density[..., None] * moves, axis=-2)
    return _Cells(probabilities, density, jacobian)


def _compute_information(jacobian: Array, weights: Array) -> Array:
    """Returns the Fisher information J' diag(weights) J, of shape (..., p, p).

    A small ridge makes it invertible.

    Args:
      jacobian: J, (..., 2, cells, p) the derivatives of cell probabilities with respect to p parameters.
      weights: (..., 2, cells) each world's number of scores, divided by the cell's probability.
    """
    of_worlds = np.swapaxes(jacobian, -1, -2) @ (weights[..., None] * jacobian)
    return of_worlds.sum(-3) + 1e-9 * np.eye(jacobian.shape[-1])


def fit_tables(table: Array, start: Fit | None = None) -> Fit:
    """Returns the maximum-likelihood fit to tables (..., 2, cells), by eight steps of Fisher scoring.

    Let J be the Jacobian of the cell probabilities P, and W = diag(sizes / P). A step solves J' W J step = J'
    (counts / P). The default start is `approximate_fit`, from which eight steps are enough to converge.
    """
    sizes = table.sum(-1, keepdims=True)
    fit = start or approximate_fit(table)
    for _ in range(8):
        cells = _compute_cells(fit)
        information = _compute_information(cells.jacobian, sizes / cells.probabilities)
        # Axes: w world, c cell, p parameter.
        gradient = np.einsum("...wcp,...wc->...p", cells.jacobian, table / cells.probabilities)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _take_step(fit, step)
    return fit


def _take_step(fit: Fit, step: Array) -> Fit:
    """Returns the fit after a step (..., cells) of Fisher scoring: changes of the cells - 1 cuts, then of mu.

    We shorten steps that close more than 70% of a gap between cuts, which keeps cuts in order, and steps that
    move a parameter by more than 1.
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


def compute_likelihood_ratio(table: Array, fit: Fit) -> Array:
    """Returns the likelihood-ratio statistic (...,) of the fit against any two multinomial distributions.

    It is 2 sum n log(n / e), for observed counts n in tables (..., 2, cells) and counts e expected under the
    fit.
    """
    expected = table.sum(-1, keepdims=True) * _compute_cells(fit).probabilities
    statistic = 2 * special.rel_entr(table, expected).sum((-1, -2))
    return np.maximum(statistic, 0.0)  # rounding may give a negative value


def compute_rao_scores(table: Array, fit: Fit) -> Array:
    """Returns Rao's score statistics (..., 2) for a quadratic and a cubic term (`_differentiate_by_terms`).

    A term f multiplies the fitted density of the world "in" by exp(c f), up to a constant; the fit has c = 0.
    The statistic is the derivative, with respect to c, of the log likelihood of tables (..., 2, cells). We
    divide it by its standard deviation, given that cuts and mu are fitted. Under the null, it is
    approximately standard normal if cells contain many scores.
    """
    cells = _compute_cells(fit)
    derivatives = _differentiate_by_terms(fit, cells)
    weights = table.sum(-1, keepdims=True) / cells.probabilities  # of the Fisher information
    # Axes: w world, c cell, q term, p parameter of the fit.
    score = np.einsum("...wcq,...wc->...q", derivatives, table / cells.probabilities)
    # The variance of the score is the information about c minus the part explained by the cuts and mu.
    information = np.einsum("...wcq,...wc->...q", derivatives**2, weights)
    shared_information = np.einsum(
        "...wcp,...wc,...wcq->...pq", cells.jacobian, weights, derivatives, optimize=True
    )
    fit_information = _compute_information(cells.jacobian, weights)
    coefficients = np.linalg.solve(fit_information, shared_information)
    explained = (shared_information * coefficients).sum(-2)
    remaining = np.maximum(information - explained, 1e-9 * information)  # above 0 despite rounding
    return score / np.sqrt(np.maximum(remaining, _TINY))


def _differentiate_by_terms(fit: Fit, cells: _Cells) -> Array:
    """Returns the derivatives (..., 2, cells, 2) of cell probabilities with respect to two coefficients at 0.

    A Gaussian curve's log-likelihood ratio is linear in the score. The coefficients multiply two added terms:
    a quadratic one, and a cubic one with a sign opposite to mu's, so it bends the ratio towards 0. Both are
    powers of a cell's mean score, measured from the midpoint between the two worlds' means.
    """
    # Integrals of the score times the density over cells, measured from the mean of "out". For N(0, 1), they
    # are minus the difference of the density. N(mu, 1) adds mu times the probability.
    moments = -np.diff(cells.density)
    moments[..., 1, :] += fit.mu[..., None] * cells.probabilities[..., 1, :]
    # Each cell's mean score, (..., cells), in both worlds together, measured from the midpoint mu / 2.
    means = moments.sum(-2) / cells.probabilities.sum(-2) - fit.mu[..., None] / 2
    direction = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    terms = np.stack([means**2, direction * means**3], -1)
    # A term changes only the world "in". The derivative of a cell's probability is the probability times (the
    # term minus its mean).
    in_cells = cells.probabilities[..., 1, :, None]
    term_means = (in_cells * terms).sum(-2, keepdims=True)
    derivatives = np.zeros((*cells.probabilities.shape, 2))
    derivatives[..., 1, :, :] = in_cells * (terms - term_means)
    return derivatives
