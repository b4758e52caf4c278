"""Scores counted in cells, and the Gaussian trade-off curve that fits the counts best.

A table holds counts (2, cells), world 0 out, in cells at pooled quantiles. Under a Gaussian curve the cells
are those of two normals of one spread, cut at common points: mu and the cut points are fitted by maximum
likelihood. All functions but `table_of` and `start` take batches of tables (..., 2, cells).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

_CELLS = 16  # at most
_SCORES_A_CELL = 8  # at least, of the balanced pool
_STEPS = 8  # of Fisher scoring, from parameters near by
_MOST = 12.0  # |mu| of worlds without overlap, which fit any larger one as well
_TINY = 1e-300


class Fit(NamedTuple):
    """Fits of tables (..., 2, cells): mu (...,), at most 12 in size, and cut points (..., cells - 1)."""

    mu: Array
    cuts: Array


def table_of(scores_in: Array, scores_out: Array) -> Array:
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


def overlap(table: Array) -> bool:
    """Whether the fitted mu is finite: each world has scores beyond one of the other's."""
    out, into = (np.flatnonzero(world) for world in table)
    return bool(out[-1] > into[0] and into[-1] > out[0])


def start(table: Array) -> Fit:
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
    return Fit(np.array(mu), (low + high) / 2)


def _edges(fit: Fit) -> Array:
    """Ends of the cells in standard units of each world (..., 2, cells + 1)."""
    ends = np.full((*fit.mu.shape, 1), np.inf)
    cuts = np.concatenate([-ends, fit.cuts, ends], -1)
    return np.stack([cuts, cuts - fit.mu[..., None]], -2)


def _between(edges: Array) -> Array:
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


def fitted(table: Array, near: Fit) -> Fit:
    """The maximum-likelihood fit of tables (..., 2, cells), by Fisher scoring from parameters near it."""
    size, fit = table.sum(-1, keepdims=True), near
    for _ in range(_STEPS):
        edges = _edges(fit)
        shares, jacobian = _between(edges), _jacobian(edges)
        information = _information(jacobian, size / shares)
        gradient = np.einsum("...wcp,...wc->...p", jacobian, table / shares)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        fit = _moved(fit, step)
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
    """So many tables (tables, 2, cells) of worlds of these sizes (2,) and shares (2, cells), with a fixed
    seed."""
    rng = np.random.default_rng(0)
    worlds = [rng.multinomial(int(n), row / row.sum(), tables) for n, row in zip(sizes, shares, strict=True)]
    return np.stack(worlds, 1).astype(np.float64)


def likelihood_ratio(table: Array, fit: Fit) -> Array:
    """Twice the log-likelihood ratio of any two multinomials to the fit."""
    expected = table.sum(-1, keepdims=True) * shares_of(fit)
    terms = special.xlogy(table, np.maximum(table, 1) / expected)
    ratio: Array = np.maximum(2 * terms.sum((-1, -2)), 0.0)
    return ratio


def departures(table: Array, fit: Fit) -> Array:
    """Rao's score (..., 2) for a quadratic and for a cubic term in the log-likelihood ratio, the latter
    against the sign of mu: about standard normal where cells hold many scores of both worlds."""
    edges = _edges(fit)
    shares, jacobian = _between(edges), _jacobian(edges)
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
    shares, density = _between(edges), _density(edges)
    first = density[..., :-1] - density[..., 1:]  # of z over a cell, in units of each world
    offset = edges[..., 0, 1] - edges[..., 1, 1]
    first[..., 1, :] += offset[..., None] * shares[..., 1, :]
    centres: Array = first.sum(-2) / shares.sum(-2)
    return centres
