"""A test of the assumption that mu-based bounds rest on: is the trade-off curve Gaussian?

Null hypothesis: some increasing map of the scores, the same for both worlds, makes them normal with a common
spread. That is what a Gaussian trade-off curve means, and it concerns only the ranks of the pooled scores.
Alternative: any other pair of distributions. Scores are counted in cells at pooled quantiles, and the null,
two normal laws of a common spread cut at common points, is fitted to the counts by maximum likelihood. Three
statistics measure the misfit:

    cells     the likelihood ratio against any two multinomials: all that cells can show
    spread    Rao's score for a log-likelihood ratio with a quadratic term in the fitted score
    tails     Rao's score, one-sided, for a cubic term that bends the ratio towards 0: far scores say less
              than under a Gaussian curve, so that an epsilon converted from mu exceeds the truth

Each has its p-value from tables drawn from the fit, since chi-squared laws fail where the worlds hardly
overlap. The test takes the least of the three over its share of the level (Bonferroni). Under a Gaussian
curve `p_value` lies below 0.05 in at most 5% of audits, up to the error of a parametric bootstrap.

A test that never fires proves nothing by not firing, so its power is reported with it: how often it would
fire at these numbers of scores if the curve were that of Laplace, logistic or Student t noise or of a noisy
bit, of the mu that was fitted. A bound that assumes a Gaussian curve counts only where the test does not fire
*and* has power against all four; then it exceeds the truth in few audits of such mechanisms, whatever the
number of scores. Where no test can tell, the report says so.

All this is necessary, not sufficient: nothing seen at rates above 1/n tells what happens at delta. A small
p-value refutes the assumption; a large p-value does not prove it.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws import known_laws
from audit.laws.bisection import bisect_all
from audit.laws.known_laws import KnownLaw, ScoreFamily
from audit.methods import estimate

Array = NDArray[np.float64]

CURVE_LEVEL = 0.05  # a p-value below it counts as refuting the Gaussian curve
CURVE_POWER = 0.95  # what the test must have before not firing counts for anything
_MOST_CELLS = 16
_SCORES_PER_CELL = 8  # at least, of the balanced pool
_SCORING_STEPS = 8  # of Fisher scoring, from parameters near by
_MOST_MU = 12.0  # |mu| of worlds without overlap, which fit any larger one as well
_TINY = 1e-300  # in place of 0, by which is divided
_TABLES = 199  # drawn from the fit, and from each reference
# Of the level, for cells, spread and tails: most for tails, where an epsilon from mu exceeds the truth.
_LEVEL_SHARES = np.array([0.2, 0.2, 0.6])
# The reference that is hardest to tell from a Gaussian curve comes first: often it alone decides.
_REFERENCES = tuple(
    known_laws.LAWS[name] for name in ("logistic", "laplace", "t3", "randomized_response")
)
_FACTORS = (1.5, 2, 3, 5, 10, 20)  # times the scores, among which `count_deciding_scores` looks
_MOST_PARAMETER = 30.0  # of a reference


class Fit(NamedTuple):
    """Fits of the null to tables.

    Attributes:
      mu: (...,) the distance of both normal laws, at most 12 in size.
      cuts: (..., cells - 1) the points between cells, in deviations from the mean of the world "out".
    """

    mu: Array
    cuts: Array


class CurveTest(NamedTuple):
    """The result of the test.

    With fewer than three cells, or without overlap between the worlds, nothing can be tested: all p-values
    are 1.

    Attributes:
      p_value: Against a Gaussian curve.
      p_cells: Of the statistic "cells" alone.
      p_spread: Of the statistic "spread" alone.
      p_tails: Of the statistic "tails" alone.
      mu: The fitted mu; negative for worlds that are swapped, at most 12 in size.
      cells: The number of cells.
    """

    p_value: float
    p_cells: float
    p_spread: float
    p_tails: float
    mu: float
    cells: int


class _Null(NamedTuple):
    """Scores in cells, the null fitted to them, and what the null gives.

    Attributes:
      table: (2, cells) counts, out first.
      fit: Of the table.
      drawn: (_TABLES, 3) statistics of tables drawn from the fit; (0, 3) where nothing can be tested.
    """

    table: Array
    fit: Fit
    drawn: Array

    @property
    def is_testable(self) -> bool:
        return len(self.drawn) > 0


def examine(scores_in: ArrayLike, scores_out: ArrayLike) -> CurveTest:
    """Tests whether the trade-off curve between two sets of scores (n,) and (m,) is Gaussian.

    Scores are counted in cells at quantiles of both sets; two normal laws of a common spread are fitted
    to the counts; and three statistics of the misfit are compared with those of tables drawn from the
    fit, by a fixed seed. Depends on pooled ranks alone: any increasing map of the scores changes nothing
    but rounding.

    Raises:
      InputError: Scores that `estimate.check_scores` refuses.
    """
    return _test(_fit_null(*estimate.check_scores(scores_in, scores_out)))


def power(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the least power of the test `examine` against four curves that are not Gaussian.

    These are of Laplace, logistic and Student t noise and of a noisy bit, with the mu that is fitted to the
    scores (n,) and (m,), but for its sign. Power is the probability of a p-value below 5% at these numbers of
    scores. It is simulated, with a standard error of at most 0.036, and 0.015 near 95%. It is 0 where nothing
    can be tested.
    """
    return _compute_power(_fit_null(*estimate.check_scores(scores_in, scores_out)))


def examine_with_power(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[CurveTest, float]:
    """Returns (`examine`, `power`) of the scores, from a single fit."""
    null = _fit_null(*estimate.check_scores(scores_in, scores_out))
    return _test(null), _compute_power(null)


def count_deciding_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> int | None:
    """Returns how many scores in all would give the test `examine` a power of 95%, if they are like these.

    Tries 1.5 to 20 times as many as there are; None where not even these suffice, or nothing can be tested.
    """
    null = _fit_null(*estimate.check_scores(scores_in, scores_out))
    if not null.is_testable:
        return None
    for factor in _FACTORS:
        # Of a factor 1.5 a size may end in a half. It does no harm: tables are drawn of the size rounded
        # down, and the result is a forecast.
        sizes = null.table.sum(1) * factor
        tables = draw_tables(sizes, compute_shares(null.fit), _TABLES)
        larger = _Null(null.table * factor, null.fit, _refit(tables, null.fit))
        if _has_power(larger):
            return int(sizes.sum())
    return None


def _test(null: _Null) -> CurveTest:
    """Returns the result of the test: its p-values compare the table's statistics with drawn statistics."""
    mu = float(null.fit.mu)
    cells = null.table.shape[1]
    if not null.is_testable:
        return CurveTest(1.0, 1.0, 1.0, 1.0, mu, cells)
    p_values = _compute_p_values(_compute_statistics(null.table, null.fit), null.drawn)
    p_cells, p_spread, p_tails = (float(p_value) for p_value in p_values)
    return CurveTest(float(_combine(p_values)), p_cells, p_spread, p_tails, mu, cells)


def _compute_power(null: _Null) -> float:
    """Returns the least probability, over the references, that the test fires; 0 if nothing is testable."""
    if not null.is_testable:
        return 0.0
    return min(_simulate_firing_rate(law, null) for law in _REFERENCES)


def _has_power(null: _Null) -> bool:
    """Returns whether the test has CURVE_POWER against all references; stops at the first where not."""
    return all(_simulate_firing_rate(law, null) >= CURVE_POWER for law in _REFERENCES)


def _fit_null(scores_in: Array, scores_out: Array) -> _Null:
    """Counts scores (n,) in and (m,) out in cells, fits the null, and draws the statistics under it.

    Nothing is drawn where nothing can be tested: with fewer than three cells, or worlds that do not overlap.
    """
    table = count_in_cells(scores_in, scores_out)
    fit = fit_tables(table, approximate_fit(table))
    if table.shape[1] < 3 or not has_overlap(table):
        return _Null(table, fit, np.empty((0, 3)))
    tables = draw_tables(table.sum(1), compute_shares(fit), _TABLES)
    return _Null(table, fit, _refit(tables, fit))


def _refit(tables: Array, near: Fit) -> Array:
    """Returns the statistics (tables, 3) of tables (tables, 2, cells), each after a fit of its own.

    Fisher scoring of each starts from the given fit, from which the tables were drawn.
    """
    count = len(tables)
    start = Fit(np.full(count, near.mu), np.tile(near.cuts, (count, 1)))
    return _compute_statistics(tables, fit_tables(tables, start))


def _compute_statistics(tables: Array, fits: Fit) -> Array:
    """Returns the statistics cells, spread and tails (..., 3) of tables (..., 2, cells) with their fits.

    Spread is squared, as it is two-sided.
    """
    spread, tails = np.moveaxis(compute_rao_scores(tables, fits), -1, 0)
    return np.stack([compute_likelihood_ratio(tables, fits), spread**2, tails], -1)


def _compute_p_values(statistics: Array, drawn: Array) -> Array:
    """Returns the p-value (..., 3) of each of the statistics cells, spread and tails among drawn statistics.

    It is the tail of a smooth law with the mean and variance of those drawn, at least the share of those that
    reach the statistic. Cells and spread are about chi-squared (here: a gamma law), tails is about normal.

    Args:
      statistics: (..., 3).
      drawn: (tables, 3) statistics of tables drawn under the null.
    """
    mean = drawn.mean(0)
    variance = np.maximum(drawn.var(0), 1e-24)
    # A gamma law of this mean m and variance v has shape m^2 / v and rate m / v.
    gamma_shape = mean[:2] ** 2 / variance[:2]
    gamma_tails = special.gammaincc(gamma_shape, statistics[..., :2] * mean[:2] / variance[:2])
    # At least 1: tables of few scores vary too little around their own fit.
    deviation = max(np.sqrt(variance[2]), 1.0)
    normal_tail = special.ndtr((mean[2] - statistics[..., 2]) / deviation)
    smooth = np.concatenate([gamma_tails, normal_tail[..., None]], -1)

    reaching = (drawn >= statistics[..., None, :]).sum(-2)
    share = np.where(reaching, (reaching + 1) / (len(drawn) + 1), 0.0)
    return np.asarray(np.maximum(smooth, share))


def _combine(p_values: Array) -> Array:
    """Returns the test's p-value from those of its statistics (..., 3), by Bonferroni's inequality."""
    return np.asarray(np.minimum((p_values / _LEVEL_SHARES).min(-1), 1.0))


def _simulate_firing_rate(law: ScoreFamily, null: _Null) -> float:
    """Returns how often the test fires on scores of a reference law, at the null's numbers of scores.

    The law's parameter is such that the null's mu would be fitted to its scores.

    Args:
      law: the family of the reference.
      null: the tested scores' table, fit and drawn statistics.
    """
    cells = null.table.shape[1]
    sizes = null.table.sum(1)
    reference = _match_mu(law, abs(float(null.fit.mu)), cells)
    shares = _compute_reference_shares(reference, cells)
    tables = draw_tables(sizes, shares, _TABLES)
    expected = shares * sizes[:, None]
    statistics = _refit(tables, fit_tables(expected, approximate_fit(expected)))
    p_values = _combine(_compute_p_values(statistics, null.drawn))
    return float((p_values < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _tabulate_fitted_mus(law: ScoreFamily, cells: int) -> tuple[Array, Array]:
    """Returns (48 parameters of a law, the mu fitted to infinitely many scores at each), both ascending."""
    parameters = np.geomspace(0.01, _MOST_PARAMETER, 48)
    tables = []
    for parameter in parameters:
        tables.append(_compute_reference_shares(KnownLaw(law, float(parameter)), cells))
    stacked = np.array(tables)
    mus = fit_tables(stacked, approximate_fit(stacked)).mu
    return parameters, np.maximum.accumulate(mus)


def _match_mu(law: ScoreFamily, mu: float, cells: int) -> KnownLaw:
    """Returns the law with the parameter whose fitted mu is the given mu, or as near as there is."""
    parameters, mus = _tabulate_fitted_mus(law, cells)
    return KnownLaw(law, float(np.interp(mu, mus, parameters)))


def _compute_reference_shares(reference: KnownLaw, cells: int) -> Array:
    """Returns the probabilities of cells (2, cells) under a law of scores, world out first.

    Cells are cut at the quantiles of scores of which half are in and half out.
    """
    cuts = reference.quantiles(np.arange(1, cells) / cells)
    shares = []
    for inserted in (False, True):
        below = reference.law.distribution(cuts, reference.parameter, inserted)
        shares.append(np.diff(below, prepend=0.0, append=1.0))
    return np.array(shares)


# Tables hold counts (2, cells), the world "out" first. `count_in_cells` gives a single table; the
# functions after it take batches of them (..., 2, cells).


def count_in_cells(scores_in: Array, scores_out: Array) -> Array:
    """Counts scores in cells, a table (2, cells) with world out first.

    Cells hold about equal shares of the scores, each world weighing a half. There are 2 to 16 of them, so
    many that the smaller world's scores, counted twice, are at least 8 a cell. Equal scores share a cell.

    Args:
      scores_in: (n,).
      scores_out: (m,).
    """
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    ranks_out = ranks[: len(scores_out)]
    ranks_in = ranks[len(scores_out) :]
    counts_out = np.bincount(ranks_out, minlength=len(values))
    counts_in = np.bincount(ranks_in, minlength=len(values))
    counts = np.array([counts_out, counts_in], np.float64)  # of each distinct score

    shares = (counts / counts.sum(1, keepdims=True)).mean(0).cumsum()
    middles = shares - np.diff(shares, prepend=0.0) / 2
    smaller_world = min(len(scores_in), len(scores_out))
    cells = int(np.clip(2 * smaller_world // _SCORES_PER_CELL, 2, _MOST_CELLS))
    _, cell = np.unique(np.floor(middles * cells), return_inverse=True)
    return np.array([np.bincount(cell, world) for world in counts])


def has_overlap(table: Array) -> bool:
    """Returns whether the fitted mu is finite: each world has scores beyond some of the other's."""
    cells_out = np.flatnonzero(table[0])
    cells_in = np.flatnonzero(table[1])
    return bool(cells_out[-1] > cells_in[0] and cells_in[-1] > cells_out[0])


def approximate_fit(table: Array) -> Fit:
    """Returns a fit of tables (..., 2, cells) near that of maximum likelihood, where scoring can start.

    mu is an average over cuts of the distance of both worlds' normal quantiles there, weighted by its
    inverse variance; each cut is where the mixture of both normal laws has the pooled share below it.
    """
    below = table.cumsum(-1)[..., :-1]
    sizes = table.sum(-1, keepdims=True)
    z_out, z_in = np.moveaxis(special.ndtri((below + 0.5) / (sizes + 1)), -2, 0)
    # A normal quantile's variance is about share (1 - share) / density^2, here without its
    # numerator.
    variances = 1 / np.exp(-(z_out**2)) + 1 / np.exp(-(z_in**2))
    mu = np.average(z_out - z_in, -1, 1 / variances, keepdims=True)
    mu = np.clip(mu, -_MOST_MU, _MOST_MU)

    pooled_size = sizes.sum(-2)
    pooled_share = below.sum(-2) / pooled_size
    share_in = sizes[..., 1, :] / pooled_size

    def is_too_low(cuts: Array) -> NDArray[np.bool_]:
        mixture = share_in * special.ndtr(cuts - mu) + (1 - share_in) * special.ndtr(cuts)
        return np.asarray(mixture < pooled_share)

    # Cuts beyond 40 deviations have no mass in float64; 60 halvings reach the last digit.
    everywhere = np.ones(pooled_share.shape)
    low, high = bisect_all(is_too_low, -40.0 * everywhere, 40.0 * everywhere, 60)
    return Fit(mu[..., 0], (low + high) / 2)


def _compute_edges(fit: Fit) -> Array:
    """Returns the ends of cells, in deviations from each world's own mean, (..., 2, cells + 1).

    World out, N(0, 1), comes first, then world in, N(mu, 1). The outer ends are infinite.
    """
    infinity = np.full((*fit.mu.shape, 1), np.inf)
    edges = np.concatenate([-infinity, fit.cuts, infinity], -1)
    return np.stack([edges, edges - fit.mu[..., None]], -2)


def _compute_normal_mass(edges: Array) -> Array:
    """Returns the standard normal law's mass between neighbouring edges (..., cells + 1), (..., cells).

    Intervals above 0 are mirrored to below 0, where the difference of distribution functions is precise.
    """
    low = edges[..., :-1]
    high = edges[..., 1:]
    mirrored = low > 0
    left = np.where(mirrored, -high, low)
    right = np.where(mirrored, -low, high)
    return np.asarray(np.maximum(special.ndtr(right) - special.ndtr(left), _TINY))


def _compute_density(edges: Array) -> Array:
    """Returns the standard normal density."""
    return np.asarray(np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi))


def _compute_jacobian(edges: Array) -> Array:
    """Returns the derivatives of both worlds' shares of cells by the parameters, (..., 2, cells, cells).

    The last axis is that of the parameters: the cells - 1 cuts, then mu.

    Args:
      edges: (..., 2, cells + 1) the ends of cells in deviations from each world's mean, world out first.
    """
    density = _compute_density(edges)
    cells = density.shape[-1] - 1
    at_cuts = density[..., 1:-1]
    jacobian = np.zeros((*density.shape[:-1], cells, cells))
    cut = np.arange(cells - 1)
    jacobian[..., cut, cut] = at_cuts  # the cell below a cut grows with it
    jacobian[..., cut + 1, cut] = -at_cuts
    # mu moves only the world in.
    jacobian[..., 1, :, -1] = density[..., 1, :-1] - density[..., 1, 1:]
    return jacobian


def _compute_information(jacobian: Array, weights: Array) -> Array:
    """Returns Fisher's information J' diag(weights) J (..., p, p), with a ridge that keeps it invertible.

    Args:
      jacobian: (..., 2, cells, p) derivatives of shares.
      weights: (..., 2, cells) sizes over shares.
    """
    shape = (*jacobian.shape[:-3], -1, jacobian.shape[-1])  # both worlds' cells along an axis
    flat = jacobian.reshape(shape)
    weighted = weights.reshape(shape[:-1])[..., None] * flat
    information: Array = np.swapaxes(flat, -1, -2) @ weighted
    return information + 1e-9 * np.eye(shape[-1])


def fit_tables(table: Array, near: Fit) -> Fit:
    """Returns the maximum-likelihood fit of tables (..., 2, cells), by eight steps of Fisher scoring.

    A step solves J' W J step = J' (counts / shares), with the Jacobian J of both worlds' shares by the
    parameters, and W = sizes / shares.

    Args:
      table: counts, world out first.
      near: the fit at which scoring starts.
    """
    sizes = table.sum(-1, keepdims=True)
    fit = near
    for _ in range(_SCORING_STEPS):
        edges = _compute_edges(fit)
        shares = _compute_normal_mass(edges)
        jacobian = _compute_jacobian(edges)
        information = _compute_information(jacobian, sizes / shares)
        gradient = np.einsum("...wcp,...wc->...p", jacobian, table / shares)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _take_step(fit, step)
    return fit


def _take_step(fit: Fit, step: Array) -> Fit:
    """Returns parameters after a step (..., cells) of (cuts, mu).

    The step is cut short where it would close more than 0.7 of a gap between cut points, or move a parameter
    by more than 1.
    """
    gaps = np.diff(fit.cuts)
    closing = -np.diff(step[..., :-1])
    ratios = np.where(closing > 0, 0.7 * gaps / np.maximum(closing, _TINY), 1.0)
    largest = np.maximum(np.abs(step).max(-1), 1)
    part = np.minimum(ratios.min(-1, initial=1.0), 1 / largest)
    mu = np.clip(fit.mu + part * step[..., -1], -_MOST_MU, _MOST_MU)
    return Fit(mu, fit.cuts + part[..., None] * step[..., :-1])


def compute_shares(fit: Fit) -> Array:
    """Returns the fit's probability of each cell in both worlds (..., 2, cells)."""
    return _compute_normal_mass(_compute_edges(fit))


def draw_tables(sizes: Array, shares: Array, tables: int) -> Array:
    """Returns multinomial tables (tables, 2, cells), by a fixed seed.

    Args:
      sizes: (2,) the number of scores of each world.
      shares: (2, cells) the probability of each cell.
      tables: How many.
    """
    rng = np.random.default_rng(0)
    worlds = []
    for size, probabilities in zip(sizes, shares, strict=True):
        worlds.append(rng.multinomial(int(size), probabilities / probabilities.sum(), tables))
    return np.stack(worlds, 1).astype(np.float64)


def compute_likelihood_ratio(table: Array, fit: Fit) -> Array:
    """Returns twice the log-likelihood ratio (...,) of the best two multinomials to the fit.

    Args:
      table: (..., 2, cells) counts.
      fit: of these tables.
    """
    expected = table.sum(-1, keepdims=True) * compute_shares(fit)
    terms = special.xlogy(table, np.maximum(table, 1) / expected)
    return np.asarray(np.maximum(2 * terms.sum((-1, -2)), 0.0))


def compute_rao_scores(table: Array, fit: Fit) -> Array:
    """Returns Rao's score statistics (..., 2) against two terms in the log-likelihood ratio.

    The terms are a quadratic, and a cubic of the opposite sign of mu. A term f tilts the fitted law of the
    world "in" by exp(c f) and leaves that of the world "out" as it is. Its statistic is the derivative of the
    log likelihood by c at c = 0, in units of the deviation that this derivative has once cuts and mu are
    fitted. Both are about standard normal where the fit holds and cells contain many scores of both worlds.

    Args:
      table: (..., 2, cells) counts.
      fit: The fit to these tables.
    """
    edges = _compute_edges(fit)
    shares = _compute_normal_mass(edges)
    jacobian = _compute_jacobian(edges)
    inverse_variances = table.sum(-1, keepdims=True) / shares

    # Scores about the middle between both means, where the log-likelihood ratio is 0.
    centres = _compute_cell_centres(edges) - fit.mu[..., None] / 2
    direction = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    terms = np.stack([centres**2, direction * centres**3], -1)
    shares_in = shares[..., 1, :, None]
    means = (shares_in * terms).sum(-2, keepdims=True)
    # Of shares by c: a tilt changes those of the world "in" alone, and leaves their sum 1.
    derivatives = np.zeros((*shares.shape, 2))
    derivatives[..., 1, :, :] = shares_in * (terms - means)

    score = np.einsum("...wcp,...wc->...p", derivatives, table / shares)
    # The information of c, less what cuts and mu explain of it; w: world, c: cell, p and q: parameters.
    information = np.einsum("...wcp,...wc->...p", derivatives**2, inverse_variances)
    shared_information = np.einsum(
        "...wcp,...wc,...wcq->...pq", jacobian, inverse_variances, derivatives, optimize=True
    )
    of_fitted = _compute_information(jacobian, inverse_variances)
    explained = (shared_information * np.linalg.solve(of_fitted, shared_information)).sum(-2)
    # Rounding may leave less than 0.
    remaining = np.maximum(information - explained, 1e-9 * information)
    return np.asarray(score / np.sqrt(np.maximum(remaining, _TINY)))


def _compute_cell_centres(edges: Array) -> Array:
    """Returns the mean fitted score of each cell (..., cells) over the even mixture of both worlds.

    Scores are in deviations from the mean of the world "out"; `edges` are those of `_compute_edges`.
    """
    shares = _compute_normal_mass(edges)
    density = _compute_density(edges)
    # First moments of z over a cell, in standard units of each world.
    moments = density[..., :-1] - density[..., 1:]
    mu = (edges[..., 0, 1] - edges[..., 1, 1])[..., None]
    moments[..., 1, :] += mu * shares[..., 1, :]
    return np.asarray(moments.sum(-2) / shares.sum(-2))
