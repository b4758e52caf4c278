"""How a threshold is chosen, and what that leaves valid.

A bound is a confidence bound only for a threshold that does not depend on the scores it counts. The
functions here choose on one set of scores; that the counting is then done on another is up to
`estimate`. Everywhere: a score above the threshold is a guess of "in".
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.statistics import intervals

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Parameter(Protocol):
    """The privacy parameter of the trade-off curve through a pair of error rates."""

    def __call__(self, false_positive_rate: Array, false_negative_rate: Array, /) -> Array: ...


class ErrorCounts(NamedTuple):
    """Error counts, one entry a threshold."""

    false_positives: Counts  # out, guessed in
    false_negatives: Counts  # in, guessed out


def midpoints(scores_in: Array, scores_out: Array) -> Array:
    """Every midpoint between neighbouring distinct scores (hidden-state paper, Algorithm 4)."""
    distinct = np.unique(np.concatenate([scores_in, scores_out]))
    return distinct[:-1] / 2 + distinct[1:] / 2


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> ErrorCounts:
    """Counts the errors at every threshold of an array, in O((n + m) log n)."""
    alarms = len(scores_out) - np.searchsorted(np.sort(scores_out), thresholds, side="right")
    return ErrorCounts(alarms, np.searchsorted(np.sort(scores_in), thresholds, side="right"))


def best_empirical(
    scores_in: Array, scores_out: Array, parameter: Parameter, error: float
) -> tuple[float, float]:
    """The midpoint with the largest in-sample lower limit of a parameter, and that limit: each rate
    at its Clopper-Pearson upper limit, one-sided `error` each. Needs two distinct scores."""
    candidates = midpoints(scores_in, scores_out)
    counts = count_errors(scores_in, scores_out, candidates)
    fpr = intervals.upper_limits(len(scores_out), error)[counts.false_positives]
    fnr = intervals.upper_limits(len(scores_in), error)[counts.false_negatives]
    limits = parameter(fpr, fnr)
    best = int(np.argmax(limits))
    return float(candidates[best]), float(limits[best])


def choose_on_pilot(
    pilot_in: Array, pilot_out: Array, n_in: int, n_out: int, parameter: Parameter, error: float
) -> float:
    """The threshold that promises the largest lower limit on n_in and n_out further scores.

    Candidates are those of two normal distributions of one spread fitted to the pilot, by means and by
    medians: they vary far less than the pilot's own best midpoint. The latter replaces the better of
    them only where its lower limit on the pilot beats the pilot's point estimate there, as for scores
    that are nothing like normal.
    """
    if not len(pilot_in) or not len(pilot_out):
        return 0.0
    if np.ptp(np.concatenate([pilot_in, pilot_out])) == 0:
        return float(pilot_in[0])
    empirical, limit = best_empirical(pilot_in, pilot_out, parameter, error)
    low, high = midpoints(pilot_in, pilot_out)[[0, -1]]
    chosen = []
    for fit in normal_fits(pilot_in, pilot_out):
        grid = fit.grid()
        best = int(np.argmax(_limits(*fit.rates(grid), n_in, n_out, parameter, error)))
        chosen.append(float(np.clip(grid[best], low, high)))
    if not chosen:
        return empirical
    counts = count_errors(pilot_in, pilot_out, np.array(chosen))
    fpr = (counts.false_positives + 0.5) / (len(pilot_out) + 1)
    fnr = (counts.false_negatives + 0.5) / (len(pilot_in) + 1)
    best = int(np.argmax(_limits(fpr, fnr, n_in, n_out, parameter, error)))
    return empirical if limit > parameter(fpr, fnr)[best] else chosen[best]


class NormalFit(NamedTuple):
    """Two normal distributions of one spread."""

    centre_in: float
    centre_out: float
    spread: float

    def grid(self) -> Array:
        """401 thresholds, to 4 deviations beyond its centres."""
        low, high = sorted([self.centre_in, self.centre_out])
        return np.linspace(low - 4 * self.spread, high + 4 * self.spread, 401)

    def rates(self, grid: Array) -> tuple[Array, Array]:
        """(false-positive rates, false-negative rates) of thresholds."""
        z_out, z_in = (self.centre_out - grid) / self.spread, (grid - self.centre_in) / self.spread
        return special.ndtr(z_out), special.ndtr(z_in)


def normal_fits(pilot_in: Array, pilot_out: Array) -> list[NormalFit]:
    """Two normal distributions of one spread by means, and by medians; none without a spread or a world."""
    if not len(pilot_in) or not len(pilot_out):
        return []
    fits = [_fit(pilot_in, pilot_out, np.mean), _fit(pilot_in, pilot_out, np.median)]
    return [fit for fit in fits if fit.spread > 0]


def _fit(pilot_in: Array, pilot_out: Array, average: Callable[[Array], np.floating]) -> NormalFit:
    """Centres by an average, spread by the same average of distances from them."""
    centre_in, centre_out = float(average(pilot_in)), float(average(pilot_out))
    distances = np.concatenate([np.abs(pilot_in - centre_in), np.abs(pilot_out - centre_out)])
    unit = float(average(np.abs(special.ndtri((np.arange(999) + 0.5) / 999))))
    return NormalFit(centre_in, centre_out, float(average(distances)) / unit)


def _limits(fpr: Array, fnr: Array, n_in: int, n_out: int, parameter: Parameter, error: float) -> Array:
    """The lower limits that rates promise on n_in and n_out scores."""
    upper = intervals.clopper_pearson_upper
    return parameter(upper(n_out * fpr, n_out, error), upper(n_in * fnr, n_in, error))
