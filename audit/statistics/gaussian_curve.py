"""A test of the assumption that mu-based bounds rest on: is the trade-off curve Gaussian?

Null: after some increasing map of the scores, one for both worlds, they are normal with one spread. That is
what a Gaussian trade-off curve means, so the test sees pooled ranks alone. Alternative: any other pair of
distributions. Scores are counted in cells, the null is fitted by maximum likelihood (`gaussian_fit`), and
three statistics look at the misfit:

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
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import estimate, gaussian_fit, known_laws
from audit.statistics.gaussian_fit import Fit
from audit.statistics.known_laws import KnownLaw, Law

Array = NDArray[np.float64]

CURVE_LEVEL = 0.05  # a p-value below it counts as refuting the Gaussian curve
CURVE_POWER = 0.95  # what the test must have before not firing counts for anything
_TABLES = 199  # drawn from the fit, and from each reference
_SHARES = np.array([0.2, 0.2, 0.6])  # of the level, for cells, spread and tails
_REFERENCES = tuple(known_laws.LAWS[name] for name in ("laplace", "logistic", "t3", "randomized_response"))
_MOST_PARAMETER = 30.0  # of a reference


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


class _Prepared(NamedTuple):
    """A table (2, cells), its fit, and the statistics (_TABLES, 3) of tables drawn from it."""

    table: Array
    fit: Fit
    drawn: Array


def examine(scores_in: ArrayLike, scores_out: ArrayLike) -> CurveTest:
    """Tests whether the trade-off curve between two sets of scores (n,) and (m,) is Gaussian.

    Depends on pooled ranks alone: any increasing map of the scores leaves all but rounding as it is. Equal
    scores share a cell. The drawn tables have a fixed seed. Raises InputError for scores that
    `estimate.check_scores` refuses.
    """
    return _examined(_prepared(*estimate.check_scores(scores_in, scores_out)))


def _examined(prepared: _Prepared) -> CurveTest:
    """The test of what was prepared."""
    table, fit, drawn = prepared
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
    return _power(_prepared(*estimate.check_scores(scores_in, scores_out)))


def examine_with_power(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[CurveTest, float]:
    """(`examine`, `power`) of the scores, from one fit."""
    prepared = _prepared(*estimate.check_scores(scores_in, scores_out))
    return _examined(prepared), _power(prepared)


def _power(prepared: _Prepared) -> float:
    """The power on scores like those that were prepared."""
    table, fit, drawn = prepared
    if not len(drawn):
        return 0.0
    mu, cells = abs(float(fit.mu)), table.shape[1]
    return min(_fires(law, mu, cells, table.sum(1), drawn) for law in _REFERENCES)


def _prepared(scores_in: Array, scores_out: Array) -> _Prepared:
    """The scores' table and fit; nothing is drawn where nothing can be tested."""
    table = gaussian_fit.table_of(scores_in, scores_out)
    fit = gaussian_fit.fitted(table, gaussian_fit.start(table))
    if table.shape[1] < 3 or not gaussian_fit.overlap(table):
        return _Prepared(table, fit, np.empty((0, 3)))
    drawn = gaussian_fit.draw(table.sum(1), gaussian_fit.shares_of(fit), _TABLES)
    return _Prepared(table, fit, _refitted(drawn, fit))


def _refitted(tables: Array, near: Fit) -> Array:
    """The statistics (tables, 3) of tables whose fits lie near one."""
    nears = Fit(np.full(len(tables), near.mu), np.tile(near.cuts, (len(tables), 1)))
    return _statistics(tables, gaussian_fit.fitted(tables, nears))


def _statistics(tables: Array, fits: Fit) -> Array:
    """cells, spread and tails (..., 3)."""
    spread, tails = np.moveaxis(gaussian_fit.departures(tables, fits), -1, 0)
    return np.stack([gaussian_fit.likelihood_ratio(tables, fits), spread**2, tails], -1)


def _p_values(statistics: Array, drawn: Array) -> Array:
    """Each statistic's p-value (..., 3): a smooth tail of the drawn ones' moments, at least the share of
    those above it. Cells and spread are about chi-squared (a gamma law), tails is about normal."""
    mean, variance = drawn.mean(0), np.maximum(drawn.var(0), 1e-24)
    squares = special.gammaincc(mean[:2] ** 2 / variance[:2], statistics[..., :2] * mean[:2] / variance[:2])
    spread = max(np.sqrt(variance[2]), 1.0)  # tables of few scores vary too little around their own fit
    normal = special.ndtr((mean[2] - statistics[..., 2]) / spread)
    smooth = np.concatenate([squares, normal[..., None]], -1)
    above = (drawn >= statistics[..., None, :]).sum(-2)
    p_values: Array = np.maximum(smooth, np.where(above, (above + 1) / (len(drawn) + 1), 0.0))
    return p_values


def _combined(alone: Array) -> Array:
    """The test's p-value from those of its statistics (..., 3)."""
    combined: Array = np.minimum((alone / _SHARES).min(-1), 1.0)
    return combined


def _fires(law: Law, mu: float, cells: int, sizes: Array, drawn: Array) -> float:
    """The share of tables drawn from a reference of this mu in which the test fires."""
    shares = _reference_shares(_matched(law, mu, cells), cells)
    tables = gaussian_fit.draw(sizes, shares, _TABLES)
    expected = shares * sizes[:, None]
    statistics = _refitted(tables, gaussian_fit.fitted(expected, gaussian_fit.start(expected)))
    return float((_combined(_p_values(statistics, drawn)) < CURVE_LEVEL).mean())


@functools.lru_cache(maxsize=64)
def _fitted_mus(law: Law, cells: int) -> tuple[Array, Array]:
    """(parameters, the mu that is fitted to many scores of each), both ascending."""
    parameters = np.geomspace(0.01, _MOST_PARAMETER, 48)
    tables = [_reference_shares(KnownLaw(law, float(parameter)), cells) for parameter in parameters]
    mus = np.array([float(gaussian_fit.fitted(t, gaussian_fit.start(t)).mu) for t in tables])
    return parameters, np.maximum.accumulate(mus)


def _matched(law: Law, mu: float, cells: int) -> KnownLaw:
    """The law whose fitted mu is the given one, or as near as its parameters come."""
    parameters, mus = _fitted_mus(law, cells)
    return KnownLaw(law, float(np.interp(mu, mus, parameters)))


def _reference_shares(known: KnownLaw, cells: int) -> Array:
    """A law's probability of cells (2, cells), out first, cut at the quantiles of the even mixture."""
    cuts = known.quantiles(np.arange(1, cells) / cells)
    below = [known.law.distribution(cuts, known.parameter, inserted) for inserted in (False, True)]
    return np.array([np.diff(world, prepend=0.0, append=1.0) for world in below])
