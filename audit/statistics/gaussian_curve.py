"""A test of the assumption that mu-based bounds rest on: is the trade-off curve Gaussian?

Null: after some increasing map of the scores, one for both worlds, they are normal with one spread. That is
what a Gaussian trade-off curve means, so the test sees pooled ranks alone. Alternative: any other pair of
distributions. Scores are counted in cells, the null is fitted by maximum likelihood (mu and the cut points
between cells are free), and three statistics look at the misfit:

    cells     the likelihood ratio against any two multinomials: all that cells can show
    spread    Rao's score for a log-likelihood ratio with a quadratic term in the fitted score
    tails     Rao's score, one-sided, for one with a cubic term that bends it towards 0: far scores say less
              than under a Gaussian curve, so that an epsilon converted from mu exceeds the truth

Each has its p-value from tables drawn from the fit, since chi-squared laws fail where the worlds hardly
overlap. The test takes the least of the three over its share of the level (Bonferroni). Under a Gaussian
curve `p_value` lies below 0.05 in at most 5% of audits, up to the error of a parametric bootstrap.

The test is necessary, not sufficient: nothing seen at rates above 1/n tells what happens at delta. A small
p-value refutes the assumption, a large one does not prove it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import estimate

Array = NDArray[np.float64]

_CELLS = 16  # at most
_SCORES_A_CELL = 8  # at least, of the balanced pool
_TABLES = 199  # drawn from the fit
_STEPS = 8  # of Fisher scoring, from parameters near by
_MOST = 12.0  # |mu| of worlds without overlap, which fit any larger one as well
_TINY = 1e-300
CURVE_LEVEL = 0.05  # a p-value below it counts as refuting the Gaussian curve


class _Levels(NamedTuple):
    """Each statistic's share of the level; they sum to 1."""

    cells: float
    spread: float
    tails: float


_LEVELS = _Levels(0.2, 0.2, 0.6)


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


class _Fit(NamedTuple):
    """Fits of tables (..., 2, cells), world 0 out: mu (...,), and cut points (..., cells - 1)."""

    mu: Array
    cuts: Array


def examine(scores_in: ArrayLike, scores_out: ArrayLike) -> CurveTest:
    """Tests whether the trade-off curve between two sets of scores (n,) and (m,) is Gaussian.

    Depends on pooled ranks alone: any increasing map of the scores leaves all but rounding as it is. Equal
    scores share a cell. The drawn tables have a fixed seed. Raises InputError for scores that
    `estimate.check_scores` refuses.
    """
    table = _table(*estimate.check_scores(scores_in, scores_out))
    cells = table.shape[1]
    fit = _fit(table, _start(table))
    if cells < 3 or not _overlap(table):
        return CurveTest(1.0, 1.0, 1.0, 1.0, float(fit.mu), cells)
    drawn = _draw(table.sum(1), fit)
    refitted = _fit(drawn, _Fit(np.full(_TABLES, fit.mu), np.tile(fit.cuts, (_TABLES, 1))))
    p_cells = _above(_likelihood_ratio(table, fit), _likelihood_ratio(drawn, refitted))
    departures, others = _departures(table, fit), _departures(drawn, refitted)
    p_spread = _above(departures[0] ** 2, others[:, 0] ** 2)
    p_tails = _above_normal(departures[1], others[:, 1])
    p_value = min(p_cells / _LEVELS.cells, p_spread / _LEVELS.spread, p_tails / _LEVELS.tails, 1.0)
    return CurveTest(p_value, p_cells, p_spread, p_tails, float(fit.mu), cells)


def _table(scores_in: Array, scores_out: Array) -> Array:
    """Counts (2, cells), out first, in cells that hold about equal shares of the two worlds' even mixture."""
    values, ranks = np.unique(np.concatenate([scores_out, scores_in]), return_inverse=True)
    worlds = [ranks[: len(scores_out)], ranks[len(scores_out) :]]
    counts = np.array([np.bincount(world, minlength=len(values)) for world in worlds], np.float64)
    share = (counts / counts.sum(1, keepdims=True)).mean(0).cumsum()
    least = min(len(scores_in), len(scores_out))
    cells = int(np.clip(2 * least // _SCORES_A_CELL, 2, _CELLS))
    middle = share - np.diff(share, prepend=0.0) / 2
    _, place = np.unique(np.floor(middle * cells), return_inverse=True)
    return np.array([np.bincount(place, world) for world in counts])


def _overlap(table: Array) -> bool:
    """Whether the fitted mu is finite: each world has scores beyond one of the other's."""
    out, into = (np.flatnonzero(world) for world in table)
    return bool(out[-1] > into[0] and into[-1] > out[0])


def _start(table: Array) -> _Fit:
    """Parameters near the fit of one table: probits of cumulative shares."""
    below = table.cumsum(1)[:, :-1]
    size = table.sum(1)
    z_out, z_in = special.ndtri((below + 0.5) / (size + 1)[:, None])
    variances = 1 / np.exp(-(z_out**2)) + 1 / np.exp(-(z_in**2))
    mu = float(np.clip(np.average(z_out - z_in, weights=1 / variances), -_MOST, _MOST))
    share = below.sum(0) / size.sum()
    low, high = np.full(len(share), -40.0), np.full(len(share), 40.0)
    weight = size[1] / size.sum()
    for _ in range(60):
        middle = (low + high) / 2
        under = weight * special.ndtr(middle - mu) + (1 - weight) * special.ndtr(middle) < share
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return _Fit(np.array(mu), (low + high) / 2)


def _edges(fit: _Fit) -> Array:
    """Ends of the cells in standard units of each world (..., 2, cells + 1)."""
    ends = np.full((*fit.mu.shape, 1), np.inf)
    cuts = np.concatenate([-ends, fit.cuts, ends], -1)
    return np.stack([cuts, cuts - fit.mu[..., None]], -2)


def _shares(edges: Array) -> Array:
    """The normal probability of each cell, exact in both tails."""
    low, high = edges[..., :-1], edges[..., 1:]
    mirror = low > 0
    low, high = np.where(mirror, -high, low), np.where(mirror, -low, high)
    shares: Array = np.maximum(special.ndtr(high) - special.ndtr(low), _TINY)
    return shares


def _density(edges: Array) -> Array:
    """The normal density."""
    density: Array = np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi)
    return density


def _jacobian(edges: Array) -> Array:
    """Derivatives of both worlds' shares (..., 2, cells) by (cuts, mu): (..., 2, cells, cells)."""
    density = _density(edges)
    cells = density.shape[-1] - 1
    inner = density[..., 1:-1]
    jacobian = np.zeros((*density.shape[:-1], cells, cells))
    rows = np.arange(cells - 1)
    jacobian[..., rows, rows] = inner
    jacobian[..., rows + 1, rows] = -inner
    jacobian[..., 1, :, -1] = density[..., 1, :-1] - density[..., 1, 1:]
    return jacobian


def _information(jacobian: Array, weights: Array) -> Array:
    """J' diag(weights) J, summed over worlds."""
    flat = (*jacobian.shape[:-3], -1, jacobian.shape[-1])
    j = jacobian.reshape(flat)
    information: Array = np.swapaxes(j, -1, -2) @ (weights.reshape(flat[:-1])[..., None] * j)
    return information + 1e-9 * np.eye(flat[-1])


def _fit(table: Array, fit: _Fit) -> _Fit:
    """The maximum-likelihood fit of tables (..., 2, cells), by Fisher scoring from parameters near it."""
    size = table.sum(-1, keepdims=True)
    for _ in range(_STEPS):
        edges = _edges(fit)
        shares, jacobian = _shares(edges), _jacobian(edges)
        information = _information(jacobian, size / shares)
        gradient = np.einsum("...wcp,...wc->...p", jacobian, table / shares)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _moved(fit, step)
    return fit


def _moved(fit: _Fit, step: Array) -> _Fit:
    """Parameters after a step, cut short where cut points would meet or mu would leap."""
    gaps, closing = np.diff(fit.cuts), -np.diff(step[..., :-1])
    ratio = np.where(closing > 0, 0.7 * gaps / np.maximum(closing, _TINY), 1.0).min(-1, initial=1.0)
    part = np.minimum(ratio, 1 / np.maximum(np.abs(step).max(-1), 1))
    mu = np.clip(fit.mu + part * step[..., -1], -_MOST, _MOST)
    return _Fit(mu, fit.cuts + part[..., None] * step[..., :-1])


def _draw(sizes: Array, fit: _Fit) -> Array:
    """Tables (_TABLES, 2, cells) from one fit, with a fixed seed."""
    rng = np.random.default_rng(0)
    shares = _shares(_edges(fit))
    worlds = [rng.multinomial(int(n), row / row.sum(), _TABLES) for n, row in zip(sizes, shares, strict=True)]
    return np.stack(worlds, 1).astype(np.float64)


def _likelihood_ratio(table: Array, fit: _Fit) -> Array:
    """Twice the log-likelihood ratio of any two multinomials to the fit."""
    expected = table.sum(-1, keepdims=True) * _shares(_edges(fit))
    terms = special.xlogy(table, np.maximum(table, 1) / expected)
    ratio: Array = np.maximum(2 * terms.sum((-1, -2)), 0.0)
    return ratio


def _departures(table: Array, fit: _Fit) -> Array:
    """Rao's score (..., 2) for a quadratic and for a cubic term in the log-likelihood ratio, the latter
    against the sign of mu: about standard normal where cells hold many scores of both worlds."""
    edges = _edges(fit)
    shares, jacobian = _shares(edges), _jacobian(edges)
    weights = table.sum(-1, keepdims=True) / shares
    centres = _centres(edges) - fit.mu[..., None] / 2
    direction = np.where(fit.mu < 0, 1.0, -1.0)[..., None]
    powers = np.stack([centres**2, direction * centres**3], -1)
    inside = shares[..., 1, :, None]
    change = np.zeros((*shares.shape, 2))
    change[..., 1, :, :] = inside * (powers - (inside * powers).sum(-2, keepdims=True))
    score = np.einsum("...wcp,...wc->...p", change, table / shares)
    cross = np.einsum("...wcp,...wc,...wcq->...pq", jacobian, weights, change, optimize=True)
    own = np.einsum("...wcp,...wc->...p", change**2, weights)
    solved = np.linalg.solve(_information(jacobian, weights), cross)
    free = np.maximum(own - (cross * solved).sum(-2), 1e-9 * own)
    scores: Array = score / np.sqrt(np.maximum(free, _TINY))
    return scores


def _centres(edges: Array) -> Array:
    """The mean fitted score of each cell over the even mixture of both worlds."""
    shares, density = _shares(edges), _density(edges)
    first = density[..., :-1] - density[..., 1:]  # of z over a cell, in units of each world
    offset = edges[..., 0, 1] - edges[..., 1, 1]
    first[..., 1, :] += offset[..., None] * shares[..., 1, :]
    centres: Array = first.sum(-2) / shares.sum(-2)
    return centres


def _above(statistic: Array, drawn: Array) -> float:
    """The p-value of a statistic that is about chi-squared: the tail of the gamma law of the drawn ones'
    moments, at least their own share above it."""
    mean, variance = float(drawn.mean()), float(drawn.var())
    if variance <= 0:
        return 1.0 if statistic <= mean else 1 / (len(drawn) + 1)
    tail = float(special.gammaincc(mean**2 / variance, float(statistic) * mean / variance))
    return max(tail, _share_above(statistic, drawn))


def _above_normal(score: Array, drawn: Array) -> float:
    """The one-sided p-value of a statistic that is about normal, found likewise."""
    spread = max(float(drawn.std()), 1e-12)
    tail = float(special.ndtr((drawn.mean() - score) / spread))
    return max(tail, _share_above(score, drawn))


def _share_above(statistic: Array, drawn: Array) -> float:
    """The Monte Carlo p-value, which counts the statistic itself; 0 beyond all drawn ones."""
    above = int(np.count_nonzero(drawn >= statistic))
    return (above + 1) / (len(drawn) + 1) if above else 0.0
