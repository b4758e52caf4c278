"""A test of the assumption that mu-based bounds rest on: is the trade-off curve Gaussian?

Null: after some increasing map of the scores, one for both worlds, they are normal with one spread. That is
what a Gaussian trade-off curve means, so the test sees pooled ranks alone. Alternative: any other pair of
distributions. Scores are counted in cells at pooled quantiles, and the null, two normals of one spread cut at
common points, is fitted to the counts by maximum likelihood. Three statistics look at the misfit:

    cells     the likelihood ratio against any two multinomials: all that cells can show
    spread    Rao's score for a log-likelihood ratio with a quadratic term in the fitted score
    tails     Rao's score, one-sided, for one with a cubic term that bends it towards 0: far scores say less
              than under a Gaussian curve, so that an epsilon converted from mu exceeds the truth

Each has its p-value from tables drawn from the fit, since chi-squared laws fail where the worlds hardly
overlap. The test takes the least of the three over its share of the level (Bonferroni). Under a Gaussian
curve `p_value` lies below 0.05 in at most 5% of audits, up to the error of a parametric bootstrap.

A test that never fires proves nothing by not firing, so its power comes with it: how often it would fire at
these numbers of scores if the curve were that of Laplace, logistic or Student t noise or of a noisy bit, of
the mu that was fitted. A bound that assumes a Gaussian curve stands only where the test does not fire *and*
has power against all four; then it exceeds the truth in few audits of such mechanisms, whatever the number of
scores. Where no test can tell, that is said.

All this is necessary, not sufficient: nothing seen at rates above 1/n tells what happens at delta. A small
p-value refutes the assumption, a large one does not prove it.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import estimate, known_laws
from audit.statistics.known_laws import KnownLaw, Law

Array = NDArray[np.float64]

CURVE_LEVEL = 0.05  # a p-value below it counts as refuting the Gaussian curve
CURVE_POWER = 0.95  # what the test must have before not firing counts for anything
_CELLS = 16  # at most
_SCORES_A_CELL = 8  # at least, of the balanced pool
_STEPS = 8  # of Fisher scoring, from parameters near by
_MOST = 12.0  # |mu| of worlds without overlap, which fit any larger one as well
_TINY = 1e-300
_TABLES = 199  # drawn from the fit, and from each reference
_SHARES = np.array([0.2, 0.2, 0.6])  # of the level, for cells, spread and tails
# The one that is hardest to tell comes first: often it alone decides.
_REFERENCES = tuple(known_laws.LAWS[name] for name in ("logistic", "laplace", "t3", "randomized_response"))
_MORE = (1.5, 2, 3, 5, 10, 20)  # times the scores, for what would decide
_MOST_PARAMETER = 30.0  # of a reference


class Fit(NamedTuple):
    """Fits of tables (..., 2, cells): mu (...,), at most 12 in size, and cut points (..., cells - 1)."""

    mu: Array
    cuts: Array


class CurveTest(NamedTuple):
    """The p-value against a Gaussian curve, those of its three statistics alone, the fitted mu (negative for
    worlds that are swapped, at most 12 in size) and the number of cells.

    With fewer than three cells, or without overlap between the worlds, nothing can be tested: all are 1.
    """

    p_value: float
    p_cells: float
    p_spread: float
    p_tails: float
    mu: float
    cells: int


def examine(scores_in: ArrayLike, scores_out: ArrayLike) -> CurveTest:
    """Tests whether the trade-off curve between two sets of scores (n,) and (m,) is Gaussian.

    Depends on pooled ranks alone: any increasing map of the scores leaves all but rounding as it is. Equal
    scores share a cell. The drawn tables have a fixed seed. Raises InputError for scores that
    `estimate.check_scores` refuses.
    """
    return _examined(*_prepared(*estimate.check_scores(scores_in, scores_out)))


def _examined(table: Array, fit: Fit, drawn: Array) -> CurveTest:
    mu, cells = float(fit.mu), table.shape[1]
    if not len(drawn):
        return CurveTest(1.0, 1.0, 1.0, 1.0, mu, cells)
    alone = _p_values(_statistics(table, fit), drawn)
    p_cells, p_spread, p_tails = map(float, alone)
    return CurveTest(float(_combined(alone)), p_cells, p_spread, p_tails, mu, cells)


def power(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """The least probability, over the four references, that `examine` fires at CURVE_LEVEL on so many scores
    as these if the curve were the reference's of the same fitted mu (but for its sign): by simulation, with a
    standard error of at most 0.036, and 0.015 near CURVE_POWER. 0 where nothing can be tested.
    """
    return _power(*_prepared(*estimate.check_scores(scores_in, scores_out)))


def examine_with_power(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[CurveTest, float]:
    """(`examine`, `power`) of the scores, from one fit."""
    prepared = _prepared(*estimate.check_scores(scores_in, scores_out))
    return _examined(*prepared), _power(*prepared)


def deciding_runs(scores_in: ArrayLike, scores_out: ArrayLike) -> int | None:
    """How many scores in all would give `examine` the power CURVE_POWER, if these are like them: 1.5 to 20
    times as many; None where not even these would, or nothing can be tested."""
    table, fit, drawn = _prepared(*estimate.check_scores(scores_in, scores_out))
    for factor in _MORE if len(drawn) else ():
        sizes = table.sum(1) * factor
        larger = draw(sizes, shares_of(fit), _TABLES)
        if all(one >= CURVE_POWER for one in _powers(table * factor, fit, _refitted(larger, fit))):
            return int(sizes.sum())
    return None


def _power(table: Array, fit: Fit, drawn: Array) -> float:
    return min(_powers(table, fit, drawn)) if len(drawn) else 0.0


def _powers(table: Array, fit: Fit, drawn: Array) -> Iterator[float]:
    """How often the test fires on each reference."""
    mu, cells = abs(float(fit.mu)), table.shape[1]
    return (_fires(law, mu, cells, table.sum(1), drawn) for law in _REFERENCES)


def _prepared(scores_in: Array, scores_out: Array) -> tuple[Array, Fit, Array]:
    """The scores' table (2, cells), its fit, and the statistics (_TABLES, 3) of tables drawn from it; nothing
    is drawn where nothing can be tested."""
    table = table_of(scores_in, scores_out)
    fit = fitted(table, start(table))
    if table.shape[1] < 3 or not overlap(table):
        return table, fit, np.empty((0, 3))
    return table, fit, _refitted(draw(table.sum(1), shares_of(fit), _TABLES), fit)


def _refitted(tables: Array, near: Fit) -> Array:
    """The statistics (tables, 3) of tables whose fits lie near one."""
    nears = Fit(np.full(len(tables), near.mu), np.tile(near.cuts, (len(tables), 1)))
    return _statistics(tables, fitted(tables, nears))


def _statistics(tables: Array, fits: Fit) -> Array:
    """cells, spread and tails (..., 3)."""
    spread, tails = np.moveaxis(departures(tables, fits), -1, 0)
    return np.stack([likelihood_ratio(tables, fits), spread**2, tails], -1)


def _p_values(statistics: Array, drawn: Array) -> Array:
    """Each statistic's p-value (..., 3): a smooth tail of the drawn ones' moments, at least the share of
    those above it. Cells and spread are about chi-squared (a gamma law), tails is about normal."""
    mean, variance = drawn.mean(0), np.maximum(drawn.var(0), 1e-24)
    squares = special.gammaincc(mean[:2] ** 2 / variance[:2], statistics[..., :2] * mean[:2] / variance[:2])
    spread = max(np.sqrt(variance[2]), 1.0)  # tables of few scores vary too little around their own fit
    smooth = np.concatenate([squares, special.ndtr((mean[2] - statistics[..., 2]) / spread)[..., None]], -1)
    above = (drawn >= statistics[..., None, :]).sum(-2)
    return np.asarray(np.maximum(smooth, np.where(above, (above + 1) / (len(drawn) + 1), 0.0)))


def _combined(alone: Array) -> Array:
    """The test's p-value from those of its statistics (..., 3)."""
    return np.asarray(np.minimum((alone / _SHARES).min(-1), 1.0))


def _fires(law: Law, mu: float, cells: int, sizes: Array, drawn: Array) -> float:
    shares = _reference_shares(_matched(law, mu, cells), cells)
    tables, expected = draw(sizes, shares, _TABLES), shares * sizes[:, None]
    statistics = _refitted(tables, fitted(expected, start(expected)))
    return float((_combined(_p_values(statistics, drawn)) < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _fitted_mus(law: Law, cells: int) -> tuple[Array, Array]:
    """(parameters, the mu that is fitted to many scores of each), both ascending."""
    parameters = np.geomspace(0.01, _MOST_PARAMETER, 48)
    tables = np.array([_reference_shares(KnownLaw(law, float(each)), cells) for each in parameters])
    return parameters, np.maximum.accumulate(fitted(tables, start(tables)).mu)


def _matched(law: Law, mu: float, cells: int) -> KnownLaw:
    """The law whose fitted mu is the given one, or as near as its parameters come."""
    parameters, mus = _fitted_mus(law, cells)
    return KnownLaw(law, float(np.interp(mu, mus, parameters)))


def _reference_shares(known: KnownLaw, cells: int) -> Array:
    """A law's probability of cells (2, cells), out first, cut at the quantiles of the even mixture."""
    cuts = known.quantiles(np.arange(1, cells) / cells)
    below = [known.law.distribution(cuts, known.parameter, inserted) for inserted in (False, True)]
    return np.array([np.diff(world, prepend=0.0, append=1.0) for world in below])


# Tables hold counts (2, cells), world 0 out; but for `table_of`, batches of them (..., 2, cells).


def table_of(scores_in: Array, scores_out: Array) -> Array:
    """Counts (2, cells), out first, in cells that hold about equal shares of the two worlds' even mixture."""
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    worlds = [ranks[: len(scores_out)], ranks[len(scores_out) :]]
    counts = np.array([np.bincount(world, minlength=len(values)) for world in worlds], np.float64)
    share = (counts / counts.sum(1, keepdims=True)).mean(0).cumsum()
    cells = int(np.clip(2 * min(len(scores_in), len(scores_out)) // _SCORES_A_CELL, 2, _CELLS))
    middle = share - np.diff(share, prepend=0.0) / 2
    _, place = np.unique(np.floor(middle * cells), return_inverse=True)
    return np.array([np.bincount(place, world) for world in counts])


def overlap(table: Array) -> bool:
    """Whether the fitted mu is finite: each world has scores beyond one of the other's."""
    out, into = (np.flatnonzero(world) for world in table)
    return bool(out[-1] > into[0] and into[-1] > out[0])


def start(table: Array) -> Fit:
    """Parameters near the fit of tables: probits of cumulative shares."""
    below, size = table.cumsum(-1)[..., :-1], table.sum(-1, keepdims=True)
    z_out, z_in = np.moveaxis(special.ndtri((below + 0.5) / (size + 1)), -2, 0)
    variances = 1 / np.exp(-(z_out**2)) + 1 / np.exp(-(z_in**2))
    mu = np.clip(np.average(z_out - z_in, -1, 1 / variances, keepdims=True), -_MOST, _MOST)
    share = below.sum(-2) / size.sum(-2)
    low, high = np.full(share.shape, -40.0), np.full(share.shape, 40.0)
    weight = size[..., 1, :] / size.sum(-2)
    for _ in range(60):
        middle = (low + high) / 2
        under = weight * special.ndtr(middle - mu) + (1 - weight) * special.ndtr(middle) < share
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return Fit(mu[..., 0], (low + high) / 2)


def _edges(fit: Fit) -> Array:
    """Ends of the cells in standard units of each world (..., 2, cells + 1)."""
    ends = np.full((*fit.mu.shape, 1), np.inf)
    cuts = np.concatenate([-ends, fit.cuts, ends], -1)
    return np.stack([cuts, cuts - fit.mu[..., None]], -2)


def _between(edges: Array) -> Array:
    low, high = edges[..., :-1], edges[..., 1:]
    mirror = low > 0
    low, high = np.where(mirror, -high, low), np.where(mirror, -low, high)
    return np.asarray(np.maximum(special.ndtr(high) - special.ndtr(low), _TINY))


def _density(edges: Array) -> Array:
    return np.asarray(np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi))


def _jacobian(edges: Array) -> Array:
    """Derivatives of both worlds' shares (..., 2, cells) by (cuts, mu): (..., 2, cells, cells)."""
    density = _density(edges)
    cells, inner = density.shape[-1] - 1, density[..., 1:-1]
    jacobian = np.zeros((*density.shape[:-1], cells, cells))
    rows = np.arange(cells - 1)
    jacobian[..., rows, rows] = inner
    jacobian[..., rows + 1, rows] = -inner
    jacobian[..., 1, :, -1] = density[..., 1, :-1] - density[..., 1, 1:]
    return jacobian


def _information(jacobian: Array, weights: Array) -> Array:
    flat = (*jacobian.shape[:-3], -1, jacobian.shape[-1])
    j = jacobian.reshape(flat)
    information: Array = np.swapaxes(j, -1, -2) @ (weights.reshape(flat[:-1])[..., None] * j)
    return information + 1e-9 * np.eye(flat[-1])


def fitted(table: Array, near: Fit) -> Fit:
    """The maximum-likelihood fit of tables (..., 2, cells), by Fisher scoring from parameters near it."""
    size, fit = table.sum(-1, keepdims=True), near
    for _ in range(_STEPS):
        edges = _edges(fit)
        shares, jacobian = _between(edges), _jacobian(edges)
        information = _information(jacobian, size / shares)
        gradient = np.einsum("...wcp,...wc->...p", jacobian, table / shares)
        fit = _moved(fit, np.linalg.solve(information, gradient[..., None])[..., 0])
    return fit


def _moved(fit: Fit, step: Array) -> Fit:
    """Parameters after a step, cut short where cut points would meet or mu would leap."""
    gaps, closing = np.diff(fit.cuts), -np.diff(step[..., :-1])
    ratio = np.where(closing > 0, 0.7 * gaps / np.maximum(closing, _TINY), 1.0).min(-1, initial=1.0)
    part = np.minimum(ratio, 1 / np.maximum(np.abs(step).max(-1), 1))
    mu = np.clip(fit.mu + part * step[..., -1], -_MOST, _MOST)
    return Fit(mu, fit.cuts + part[..., None] * step[..., :-1])


def shares_of(fit: Fit) -> Array:
    """The fit's probability of each cell in both worlds (..., 2, cells)."""
    return _between(_edges(fit))


def draw(sizes: Array, shares: Array, tables: int) -> Array:
    """Tables (tables, 2, cells) of worlds of these sizes (2,) and shares (2, cells), by a fixed seed."""
    rng = np.random.default_rng(0)
    worlds = [rng.multinomial(int(n), row / row.sum(), tables) for n, row in zip(sizes, shares, strict=True)]
    return np.stack(worlds, 1).astype(np.float64)


def likelihood_ratio(table: Array, fit: Fit) -> Array:
    """Twice the log-likelihood ratio of any two multinomials to the fit."""
    expected = table.sum(-1, keepdims=True) * shares_of(fit)
    terms = special.xlogy(table, np.maximum(table, 1) / expected)
    return np.asarray(np.maximum(2 * terms.sum((-1, -2)), 0.0))


def departures(table: Array, fit: Fit) -> Array:
    """Rao's score (..., 2) for a quadratic and for a cubic term in the log-likelihood ratio, the latter
    against the sign of mu: about standard normal where cells hold many scores of both worlds."""
    edges = _edges(fit)
    shares, jacobian = _between(edges), _jacobian(edges)
    weights = table.sum(-1, keepdims=True) / shares
    centres = _centres(edges) - fit.mu[..., None] / 2
    direction = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    powers, inside = np.stack([centres**2, direction * centres**3], -1), shares[..., 1, :, None]
    change = np.zeros((*shares.shape, 2))
    change[..., 1, :, :] = inside * (powers - (inside * powers).sum(-2, keepdims=True))
    score = np.einsum("...wcp,...wc->...p", change, table / shares)
    cross = np.einsum("...wcp,...wc,...wcq->...pq", jacobian, weights, change, optimize=True)
    own = np.einsum("...wcp,...wc->...p", change**2, weights)
    solved = np.linalg.solve(_information(jacobian, weights), cross)
    free = np.maximum(own - (cross * solved).sum(-2), 1e-9 * own)
    return np.asarray(score / np.sqrt(np.maximum(free, _TINY)))


def _centres(edges: Array) -> Array:
    """The mean fitted score of each cell over the even mixture of both worlds."""
    shares, density = _between(edges), _density(edges)
    first = density[..., :-1] - density[..., 1:]  # of z over a cell, in units of each world
    first[..., 1, :] += (edges[..., 0, 1] - edges[..., 1, 1])[..., None] * shares[..., 1, :]
    return np.asarray(first.sum(-2) / shares.sum(-2))
