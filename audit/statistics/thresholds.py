"""How a threshold is chosen, and what that leaves valid.

A bound is a confidence bound only for a threshold that does not depend on the scores it counts. The
functions here choose on one set of scores; that the counting is then done on another is up to
`estimate`. Everywhere: a score above the threshold is a guess of "in".
"""

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


class Errors(NamedTuple):
    """Error counts, one entry a threshold."""

    false_positives: Counts  # out, guessed in
    false_negatives: Counts  # in, guessed out


def midpoints(scores_in: Array, scores_out: Array) -> Array:
    """Every midpoint between neighbouring distinct scores (hidden-state paper, Algorithm 4)."""
    distinct = np.unique(np.concatenate([scores_in, scores_out]))
    return distinct[:-1] / 2 + distinct[1:] / 2


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> Errors:
    """Counts the errors at every threshold of an array, in O((n + m) log n)."""
    return Errors(
        len(scores_out) - np.searchsorted(np.sort(scores_out), thresholds, side="right"),
        np.searchsorted(np.sort(scores_in), thresholds, side="right"),
    )


def best_empirical(
    scores_in: Array, scores_out: Array, parameter: Parameter, error: float
) -> tuple[float, float]:
    """The midpoint with the largest in-sample lower limit of a parameter, and that limit: each rate
    at its Clopper-Pearson upper limit, one-sided `error` each. Needs two distinct scores."""
    candidates = midpoints(scores_in, scores_out)
    counts = count_errors(scores_in, scores_out, candidates)
    limits = parameter(
        intervals.upper_limits(len(scores_out), error)[counts.false_positives],
        intervals.upper_limits(len(scores_in), error)[counts.false_negatives],
    )
    best = int(np.argmax(limits))
    return float(candidates[best]), float(limits[best])


def choose_on_pilot(
    pilot_in: Array, pilot_out: Array, n_in: int, n_out: int, parameter: Parameter, error: float
) -> float:
    """The threshold that promises the largest lower limit on n_in and n_out further scores.

    It is that of two normal distributions of one spread fitted to the pilot, which varies far less
    than the pilot's own best midpoint; the latter replaces it only where its lower limit on the
    pilot beats the pilot's point estimate at the former, as for scores that are nothing like normal.
    """
    if not len(pilot_in) or not len(pilot_out):
        return 0.0
    if np.ptp(np.concatenate([pilot_in, pilot_out])) == 0:
        return float(pilot_in[0])
    empirical, limit = best_empirical(pilot_in, pilot_out, parameter, error)
    if np.ptp(pilot_in) == 0 and np.ptp(pilot_out) == 0:
        return empirical
    fitted = _choose_on_fit(pilot_in, pilot_out, n_in, n_out, parameter, error)
    counts = count_errors(pilot_in, pilot_out, np.array([fitted]))
    at_fitted = parameter(
        (counts.false_positives + 0.5) / (len(pilot_out) + 1),
        (counts.false_negatives + 0.5) / (len(pilot_in) + 1),
    )
    return empirical if limit > at_fitted[0] else fitted


def _choose_on_fit(
    pilot_in: Array, pilot_out: Array, n_in: int, n_out: int, parameter: Parameter, error: float
) -> float:
    """The best of a grid of thresholds if both sets of scores were normal with one spread."""
    centre_in, centre_out = pilot_in.mean(), pilot_out.mean()
    squares = np.sum((pilot_in - centre_in) ** 2) + np.sum((pilot_out - centre_out) ** 2)
    spread = np.sqrt(squares / max(len(pilot_in) + len(pilot_out) - 2, 1))
    low, high = sorted([centre_in, centre_out])
    grid = np.linspace(low - 4 * spread, high + 4 * spread, 401)
    false_positives = n_out * special.ndtr((centre_out - grid) / spread)
    false_negatives = n_in * special.ndtr((grid - centre_in) / spread)
    limits = parameter(
        intervals.clopper_pearson_upper(false_positives, n_out, error),
        intervals.clopper_pearson_upper(false_negatives, n_in, error),
    )
    return float(grid[int(np.argmax(limits))])
