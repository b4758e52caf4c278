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

from audit.laws import conversions, known_laws
from audit.laws.intervals import bisect_all
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
_REFERENCES = (
    known_laws.LAWS["logistic"],
    known_laws.LAWS["laplace"],
    known_laws.LAWS["t3"],
    known_laws.LAWS["randomized_response"],
)
_FACTORS = (1.5, 2, 3, 5, 10, 20)  # times the scores, among which `count_deciding_scores` looks
_MOST_PARAMETER = 30.0  # of a reference


class Fit(NamedTuple):
    """Fits of the null hypothesis to tables: two normal laws of a common spread, cut at common points.

    Attributes:
      mu: (...,) the distance of the two normal laws in standard deviations, from -12 to 12.
      cuts: (..., cells - 1) the points between cells, in standard deviations from the mean of world "out".
    """

    mu: Array
    cuts: Array


class CurveTest(NamedTuple):
    """The result of the test.

    With fewer than three cells, or without overlap between the worlds, nothing can be tested: all p-values
    are 1.

    Attributes:
      p_value: The p-value of a Gaussian curve, from all three statistics.
      mu: The fitted mu, from -12 to 12; negative where the worlds are swapped.
      cells: The number of cells.
    """

    p_value: float
    mu: float
    cells: int


class _Null(NamedTuple):
    """Scores counted in cells, the fit of the null hypothesis, and the statistics' law under that fit.

    Attributes:
      table: (2, cells) counts, world out first.
      fit: The fit to the table.
      drawn: (_TABLES, 3) statistics of tables drawn from the fit; (0, 3) where nothing can be tested.
    """

    table: Array
    fit: Fit
    drawn: Array


def examine(scores_in: ArrayLike, scores_out: ArrayLike) -> CurveTest:
    """Tests whether the trade-off curve between two sets of scores, (n,) in and (m,) out, is Gaussian.

    Scores are counted in cells at quantiles of both sets. Two normal laws of a common spread are fitted to
    the table of counts. Three statistics of the misfit are compared with those of tables that are drawn from
    the fit by a fixed seed. The result depends on pooled ranks alone: an increasing map of the scores changes
    nothing but rounding.

    Raises:
      InputError: Scores that `estimate.check_scores` refuses.
    """
    null = _fit_null(*estimate.check_scores(scores_in, scores_out))
    p_value = 1.0  # refutes nothing
    if len(null.drawn):
        p_value = float(_compute_p_values(_compute_statistics(null.table, null.fit), null.drawn))
    return CurveTest(p_value, float(null.fit.mu), null.table.shape[1])


def power(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the least power of the test `examine` against four curves that are not Gaussian.

    They are the curves of Laplace, logistic and Student t noise and of a noisy bit, each with the parameter
    at which the mu fitted to its scores is |mu| of the scores given. Power is the probability of a p-value
    below 5% at the numbers of scores given, (n,) in and (m,) out. It is simulated, with a standard error of
    at most 0.036, and 0.015 near 95%. It is 0 where nothing can be tested.
    """
    return _compute_power(_fit_null(*estimate.check_scores(scores_in, scores_out)))


def count_deciding_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> int | None:
    """Returns how many scores in all, if they are like these, would give the test `examine` a power of 95%.

    Multiples of the numbers of scores from 1.5 to 20 are tried. None where not even 20 times as many suffice,
    or where nothing can be tested.
    """
    null = _fit_null(*estimate.check_scores(scores_in, scores_out))
    if not len(null.drawn):
        return None
    for factor in _FACTORS:
        # With the factor 1.5 a size may end in a half, which does no harm: `draw_tables` rounds it
        # down, and the result is a forecast.
        sizes = null.table.sum(1) * factor
        tables = draw_tables(sizes, compute_shares(null.fit), _TABLES)
        # A table of so many scores like these has the same fit.
        larger = _Null(null.table * factor, null.fit, _refit(tables, null.fit))
        if _compute_power(larger) >= CURVE_POWER:
            return int(sizes.sum())
    return None


def _compute_power(null: _Null) -> float:
    """Returns the least probability over the reference laws that the test fires; 0 if nothing is testable."""
    if not len(null.drawn):
        return 0.0
    return min(_simulate_firing_rate(law, null) for law in _REFERENCES)


def _fit_null(scores_in: Array, scores_out: Array) -> _Null:
    """Returns the table of scores (n,) in and (m,) out, the fit to it, and statistics drawn under the fit.

    Nothing is drawn where nothing can be tested: with fewer than three cells, or worlds without overlap.
    """
    table = count_in_cells(scores_in, scores_out)
    fit = fit_tables(table, approximate_fit(table))
    # With two cells the fit has as many parameters, a cut and mu, as the table has free shares.
    if table.shape[1] < 3 or not has_overlap(table):
        return _Null(table, fit, np.empty((0, 3)))
    tables = draw_tables(table.sum(1), compute_shares(fit), _TABLES)
    return _Null(table, fit, _refit(tables, fit))


def _refit(tables: Array, near: Fit) -> Array:
    """Returns the statistics (tables, 3) of tables (tables, 2, cells), after a fit to each table.

    Each fit starts from the fit `near`, to a single table, which is close to all of them.
    """
    n_tables = len(tables)
    start = Fit(np.full(n_tables, near.mu), np.tile(near.cuts, (n_tables, 1)))
    return _compute_statistics(tables, fit_tables(tables, start))


def _compute_statistics(tables: Array, fits: Fit) -> Array:
    """Returns the three statistics (..., 3) of the misfit between tables (..., 2, cells) and their fits.

    They are called cells, spread and tails: the likelihood ratio, and Rao's scores for a quadratic and for a
    cubic term. Spread is two-sided, so that it is squared.
    """
    spread, tails = np.moveaxis(compute_rao_scores(tables, fits), -1, 0)
    return np.stack([compute_likelihood_ratio(tables, fits), spread**2, tails], -1)


def _compute_p_values(statistics: Array, drawn: Array) -> Array:
    """Returns the test's p-values (...,) from the statistics cells, spread and tails, by Bonferroni.

    A statistic's p-value is the tail of a smooth law with the mean and variance of the drawn statistics: a
    gamma law for cells and spread, which are about chi-squared, a normal law for tails. Where r > 0 of the n
    drawn statistics reach the observed one, it is at least (r + 1) / (n + 1), which needs no smooth law.

    Args:
      statistics: (..., 3) observed statistics.
      drawn: (tables, 3) statistics of tables drawn under the null.
    """
    mean = drawn.mean(0)
    variance = np.maximum(drawn.var(0), 1e-24)  # above 0, since it divides
    # Columns 0 and 1 are cells and spread, column 2 is tails. A gamma law of mean m and variance v has shape
    # m^2 / v and rate m / v.
    smooth = special.gammaincc(mean**2 / variance, np.maximum(statistics, 0) * mean / variance)
    # At least 1: tables of few scores vary too little around their own fit.
    deviation = max(np.sqrt(variance[2]), 1.0)
    smooth[..., 2] = special.ndtr((mean[2] - statistics[..., 2]) / deviation)

    reaching = (drawn >= statistics[..., None, :]).sum(-2)
    # Where none reaches it, the smooth law decides.
    share = np.where(reaching, (reaching + 1) / (len(drawn) + 1), 0.0)
    p_values = np.maximum(smooth, share)
    return np.asarray(np.minimum((p_values / _LEVEL_SHARES).min(-1), 1.0))


def _simulate_firing_rate(law: ScoreFamily, null: _Null) -> float:
    """Returns how often the test fires, with a p-value below CURVE_LEVEL, on scores of a reference law.

    There are as many scores as in the null's table. The law's parameter is that at which |mu| of the null is
    the mu that is fitted to the law's scores.

    Args:
      law: The family of the reference law.
      null: The tested scores' table, fit and drawn statistics.
    """
    cells = null.table.shape[1]
    sizes = null.table.sum(1)
    reference = _match_mu(law, abs(float(null.fit.mu)), cells)
    shares = _compute_reference_shares(reference, cells)
    tables = draw_tables(sizes, shares, _TABLES)
    # The table of mean counts, whose fit is near those of all tables.
    expected = shares * sizes[:, None]
    statistics = _refit(tables, fit_tables(expected, approximate_fit(expected)))
    return float((_compute_p_values(statistics, null.drawn) < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _tabulate_fitted_mus(law: ScoreFamily, cells: int) -> tuple[Array, Array]:
    """Returns (48 parameters of a law, the mu fitted to infinitely many scores at each), both ascending."""
    parameters = np.geomspace(0.01, _MOST_PARAMETER, 48)
    tables = []
    for parameter in parameters:
        tables.append(_compute_reference_shares(KnownLaw(law, float(parameter)), cells))
    stacked = np.array(tables)
    mus = fit_tables(stacked, approximate_fit(stacked)).mu
    # Ascending, as `np.interp` needs them.
    return parameters, np.maximum.accumulate(mus)


def _match_mu(law: ScoreFamily, mu: float, cells: int) -> KnownLaw:
    """Returns the law at the parameter whose fitted mu is the given mu, or the nearest that there is."""
    parameters, mus = _tabulate_fitted_mus(law, cells)
    return KnownLaw(law, float(np.interp(mu, mus, parameters)))


def _compute_reference_shares(reference: KnownLaw, cells: int) -> Array:
    """Returns the probabilities (2, cells) of cells under a pair of score laws, world out first.

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
    """Counts scores in cells, and returns a table (2, cells) with world out first.

    Cells hold about equal shares of the scores, where each world weighs a half. There are 2 to 16 cells, so
    many that twice the number of the smaller world's scores is at least 8 for each cell. Equal scores share a
    cell.

    Args:
      scores_in: (n,) scores.
      scores_out: (m,) scores.
    """
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    ranks_out = ranks[: len(scores_out)]
    ranks_in = ranks[len(scores_out) :]
    counts_out = np.bincount(ranks_out, minlength=len(values))
    counts_in = np.bincount(ranks_in, minlength=len(values))
    counts = np.array([counts_out, counts_in], np.float64)  # of each distinct score

    shares = (counts / counts.sum(1, keepdims=True)).mean(0).cumsum()
    # The distinct scores divide the interval from 0 to 1 by their shares. Each lies in the cell in which the
    # middle of its part lies.
    middles = shares - np.diff(shares, prepend=0.0) / 2
    smaller_world = min(len(scores_in), len(scores_out))
    cells = int(np.clip(2 * smaller_world // _SCORES_PER_CELL, 2, _MOST_CELLS))
    _, cell = np.unique(np.floor(middles * cells), return_inverse=True)  # without empty cells
    return np.array([np.bincount(cell, world) for world in counts])


def has_overlap(table: Array) -> bool:
    """Returns whether the fitted mu of a table (2, cells) is finite.

    It is finite if each world has scores in a higher cell than some of the other world's scores.
    """
    # The cells that hold scores of each world, in ascending order.
    cells_out = np.flatnonzero(table[0])
    cells_in = np.flatnonzero(table[1])
    return bool(cells_out[-1] > cells_in[0] and cells_in[-1] > cells_out[0])


def approximate_fit(table: Array) -> Fit:
    """Returns a fit to tables (..., 2, cells) near the maximum-likelihood fit, where `fit_tables` can start.

    The fit is of two normal laws, N(0, 1) for the world out and N(mu, 1) for the world in, with cuts between
    cells that both share. At each cut mu is estimated by the distance of both worlds' normal quantiles, and
    these estimates are averaged over cuts. Each cut is then placed where the mixture of both normal laws has
    the pooled share of scores below it. World out comes first in tables.
    """
    below = table.cumsum(-1)[..., :-1]
    sizes = table.sum(-1, keepdims=True)
    # Half a score more below and above each cut keeps the quantiles finite.
    z_out, z_in = np.moveaxis(special.ndtri((below + 0.5) / (sizes + 1)), -2, 0)
    # Cuts weigh by the inverse of a rough variance. The variance of a normal quantile z is about
    # share (1 - share) / density^2, over the number of scores. Only the density is taken into account, whose
    # square is proportional to e^(-z^2): it varies far more, and a start for `fit_tables` may be rough.
    variances = 1 / np.exp(-(z_out**2)) + 1 / np.exp(-(z_in**2))
    mu = np.average(z_out - z_in, -1, 1 / variances, keepdims=True)
    # Beyond these limits the worlds do not overlap, and any larger mu would fit as well.
    mu = np.clip(mu, -_MOST_MU, _MOST_MU)

    # The cuts, by bisection of the mixture's distribution function.
    pooled_size = sizes.sum(-2)
    pooled_share = below.sum(-2) / pooled_size
    share_in = sizes[..., 1, :] / pooled_size

    def is_too_low(cuts: Array) -> NDArray[np.bool_]:
        """Returns, for each cut, whether the mixture has less than the pooled share of scores below it."""
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
    """Returns the standard normal law's mass (..., cells) between edges; kept above 0, since it divides."""
    return np.maximum(conversions.mass_between(edges), _TINY)


def _compute_density(edges: Array) -> Array:
    """Returns the standard normal density at each of the edges."""
    return np.asarray(np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi))


def _compute_jacobian(edges: Array) -> Array:
    """Returns the derivatives (..., 2, cells, cells) of both worlds' cell shares by the fit's parameters.

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
    """Returns Fisher's information J' diag(weights) J, (..., p, p).

    A small ridge, 1e-9 times the identity, keeps it invertible.

    Args:
      jacobian: J, (..., 2, cells, p) the derivatives of cell shares by p parameters.
      weights: (..., 2, cells) each world's number of scores over the cell's share.
    """
    shape = (*jacobian.shape[:-3], -1, jacobian.shape[-1])  # both worlds' cells along an axis
    flat = jacobian.reshape(shape)
    weighted = weights.reshape(shape[:-1])[..., None] * flat
    information: Array = np.swapaxes(flat, -1, -2) @ weighted
    return information + 1e-9 * np.eye(shape[-1])


def fit_tables(table: Array, near: Fit) -> Fit:
    """Returns the maximum-likelihood fit to tables (..., 2, cells), by eight steps of Fisher scoring.

    With the Jacobian J of both worlds' cell shares by the parameters and W = diag(sizes / shares), a step
    solves J' W J step = J' (counts / shares).

    Args:
      table: (..., 2, cells) counts, world out first.
      near: The fit at which scoring starts.
    """
    sizes = table.sum(-1, keepdims=True)
    fit = near
    for _ in range(_SCORING_STEPS):
        edges = _compute_edges(fit)
        shares = _compute_normal_mass(edges)
        jacobian = _compute_jacobian(edges)
        information = _compute_information(jacobian, sizes / shares)
        # w: world, c: cell, p: parameter.
        gradient = np.einsum("...wcp,...wc->...p", jacobian, table / shares)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _take_step(fit, step)
    return fit


def _take_step(fit: Fit, step: Array) -> Fit:
    """Returns the fit after a step (..., cells): the changes of the cells - 1 cuts, then that of mu.

    The step is scaled down so that it closes at most 0.7 of any gap between cuts, and moves no parameter by
    more than 1. (Cuts stay in order with any share below 1 in place of 0.7.) The size of mu is cut at 12,
    beyond which the worlds do not overlap and any larger mu would fit as well.
    """
    gaps = np.diff(fit.cuts)
    closing = -np.diff(step[..., :-1])
    ratios = np.where(closing > 0, 0.7 * gaps / np.maximum(closing, _TINY), 1.0)
    largest = np.maximum(np.abs(step).max(-1), 1)
    scale = np.minimum(ratios.min(-1, initial=1.0), 1 / largest)
    mu = np.clip(fit.mu + scale * step[..., -1], -_MOST_MU, _MOST_MU)
    return Fit(mu, fit.cuts + scale[..., None] * step[..., :-1])


def compute_shares(fit: Fit) -> Array:
    """Returns the probabilities of cells (..., 2, cells) in both worlds under a fit."""
    return _compute_normal_mass(_compute_edges(fit))


def draw_tables(sizes: Array, shares: Array, tables: int) -> Array:
    """Draws multinomial tables of counts (tables, 2, cells), by a fixed seed.

    Args:
      sizes: (2,) the number of scores of each world.
      shares: (2, cells) the probability of each cell.
      tables: The number of tables.
    """
    rng = np.random.default_rng(0)
    worlds = []
    for size, probabilities in zip(sizes, shares, strict=True):
        worlds.append(rng.multinomial(int(size), probabilities / probabilities.sum(), tables))
    return np.stack(worlds, 1).astype(np.float64)


def compute_likelihood_ratio(table: Array, fit: Fit) -> Array:
    """Returns the likelihood-ratio statistic (...,) of the fit against any two multinomial laws.

    It is 2 sum n log(n / e) over both worlds' cells, with the counts n and the counts e that the fit expects.

    Args:
      table: (..., 2, cells) counts, world out first.
      fit: The fit to these tables.
    """
    expected = table.sum(-1, keepdims=True) * compute_shares(fit)
    # Empty cells contribute 0: xlogy(0, y) is 0 for y > 0. Rounding may leave the sum below 0.
    terms = special.xlogy(table, np.maximum(table, 1) / expected)
    return np.asarray(np.maximum(2 * terms.sum((-1, -2)), 0.0))


def compute_rao_scores(table: Array, fit: Fit) -> Array:
    """Returns Rao's score statistics (..., 2) for two more terms in the log-likelihood ratio of the worlds.

    The first term is quadratic. The second is cubic, with the sign opposite to that of mu: it bends the ratio
    towards 0, so that far scores say less than under a Gaussian curve.

    A term f tilts the fitted law of world "in" by exp(c f), and leaves that of world "out" as it is; the fit
    is c = 0. Its statistic is the derivative of the log likelihood by c at c = 0, divided by the standard
    deviation that the derivative has when cuts and mu are fitted. (Rao's score test with nuisance
    parameters.) Both statistics are about standard normal where the fit holds and cells contain many scores
    of both worlds.

    Args:
      table: (..., 2, cells) counts, world out first.
      fit: The fit to these tables.
    """
    edges = _compute_edges(fit)
    shares = _compute_normal_mass(edges)
    jacobian = _compute_jacobian(edges)
    inverse_variances = table.sum(-1, keepdims=True) / shares

    # The terms f at each cell's mean score, (..., cells, 2). Scores are measured from the middle between both
    # worlds' means, where the log-likelihood ratio is 0.
    centres = _compute_cell_centres(edges) - fit.mu[..., None] / 2
    direction = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    terms = np.stack([centres**2, direction * centres**3], -1)

    # Derivatives of shares by c, (..., 2, cells, 2): a tilt changes only those of world "in", by the share
    # times f less the mean of f, so that their sum stays 1.
    shares_in = shares[..., 1, :, None]
    means = (shares_in * terms).sum(-2, keepdims=True)
    derivatives = np.zeros((*shares.shape, 2))
    derivatives[..., 1, :, :] = shares_in * (terms - means)

    # The log likelihood is sum counts * log(shares). In the products w is the world, c the cell, q a term,
    # and p, in the last of them, a parameter of the fit.
    score = np.einsum("...wcq,...wc->...q", derivatives, table / shares)
    # The variance of the score: the information of c, less what it shares with that of the cuts and mu.
    information = np.einsum("...wcq,...wc->...q", derivatives**2, inverse_variances)
    shared_information = np.einsum(
        "...wcp,...wc,...wcq->...pq", jacobian, inverse_variances, derivatives, optimize=True
    )
    fit_information = _compute_information(jacobian, inverse_variances)
    explained = (shared_information * np.linalg.solve(fit_information, shared_information)).sum(-2)
    # Rounding may leave the difference below 0.
    remaining = np.maximum(information - explained, 1e-9 * information)
    return np.asarray(score / np.sqrt(np.maximum(remaining, _TINY)))


def _compute_cell_centres(edges: Array) -> Array:
    """Returns the mean score of each cell (..., cells) under the even mixture of both fitted laws.

    Scores are in deviations from the mean of world "out".

    Args:
      edges: (..., 2, cells + 1) the ends of cells, as `_compute_edges` gives them.
    """
    shares = _compute_normal_mass(edges)
    density = _compute_density(edges)
    # A cell's moment is the integral of the score times the density over the cell. In standard units it is
    # the density at the lower end less that at the upper end.
    moments = density[..., :-1] - density[..., 1:]
    # Scores of world in are larger by mu, by which both worlds' edges differ.
    mu = (edges[..., 0, 1] - edges[..., 1, 1])[..., None]
    moments[..., 1, :] += mu * shares[..., 1, :]
    return np.asarray(moments.sum(-2) / shares.sum(-2))
