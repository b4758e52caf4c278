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
Worlds = tuple[Array, Array]
_PRIOR = 5.0  # scores of normal distributions that join the pilot's
_DOUBT = 1.7  # times the root of the pilot's size: the share by which its counts' promises err
_STEADY = 8  # scores of the pilot beyond a rank that it can judge by itself
_MISFIT = 1.8  # deviations
_CLEAR = 1.5  # deviations
_LATENT = np.linspace(-12.0, 12.0, 4801)


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
    at its Clopper-Pearson upper limit (Errata H12), one-sided `error` each. Needs two distinct scores."""
    candidates = midpoints(scores_in, scores_out)
    counts = count_errors(scores_in, scores_out, candidates)
    fpr = intervals.upper_limits(len(scores_out), error)[counts.false_positives]
    fnr = intervals.upper_limits(len(scores_in), error)[counts.false_negatives]
    limits = parameter(fpr, fnr)
    best = int(np.argmax(limits))
    return float(candidates[best]), float(limits[best])


class Rank(NamedTuple):
    """A threshold for scores to come: the rank-th lowest of those in, or the rank-th highest of those out."""

    is_in: bool
    rank: int


def choose_on_pilot(
    pilot: Worlds, n_in: int, n_out: int, parameter: Parameter, error: float, any_shape: bool
) -> Rank:
    """The rank among 1, 2, 4, ... of either world that promises the largest lower limit on n_in and n_out
    further scores; looks at ranks alone. pilot: (scores in, scores out).

    It is the best one of normal distributions with the pilot's area under the ROC curve, which varies little
    between pilots. Scores of any shape may be nothing like normal: where the pilot's counts promise more
    elsewhere by the share that they may err by, or contradict such distributions, they decide.
    """
    pilot_in, pilot_out = pilot
    if not len(pilot_in) or not len(pilot_out):
        return Rank(True, 1)
    mu, places, promised, steady, misfit = _separation(pilot_in, pilot_out), [], [], [], 0.0
    worlds = (True, n_in, n_out, pilot_in, pilot_out), (False, n_out, n_in, -pilot_out, -pilot_in)
    for is_in, size, others, own, other in worlds:
        ranks = 2 ** np.arange(max(size // 2, 1).bit_length())
        levels = ranks / (size + 1)
        below = _below(levels, mu, own, other)
        near = intervals.clopper_pearson_upper(ranks - 1, size, error)
        shares = np.stack([special.ndtr(mu + special.ndtri(levels)), below.shares])
        promised.append(
            parameter(intervals.clopper_pearson_upper(others * (1 - shares), others, error), near)
        )
        steady.append(below.places >= _STEADY)
        misfit = max(misfit, float(np.abs(below.misfits[steady[-1]]).max(initial=0.0)))
        places += [Rank(is_in, int(rank)) for rank in ranks]
    normal, counted = np.round(np.concatenate(promised, axis=1), 9)
    usual, best = int(np.argmax(normal)), int(np.argmax(counted))
    if not any_shape:
        return places[usual]
    if misfit > _MISFIT:
        return places[int(np.argmax(np.where(np.concatenate(steady), counted, -np.inf)))]
    clearly = 1 + _DOUBT / np.sqrt(min(len(pilot_in), len(pilot_out)))
    return places[best if counted[best] > clearly * max(counted[usual], 0.0) else usual]


def _separation(pilot_in: Array, pilot_out: Array) -> float:
    """How many deviations apart normal distributions of the pilot's area under the ROC curve are."""
    ordered = np.sort(pilot_out)
    below = sum(np.searchsorted(ordered, pilot_in, side=side).sum() for side in ("left", "right")) / 2
    return float(np.sqrt(2) * special.ndtri((below + 0.5) / (len(pilot_in) * len(pilot_out) + 1)))


class _Below(NamedTuple):
    """The other world below quantiles of an own one: its estimated shares, at which of the pilot's own scores
    they were counted, and how far normal distributions are from the counts, in deviations."""

    shares: Array
    places: Array
    misfits: Array


def _below(levels: Array, mu: float, own: Array, other: Array) -> _Below:
    """Counted, with _PRIOR scores of normal distributions; beyond the outmost own score as theirs."""
    places, size = np.maximum(np.rint(levels * (len(own) + 1)), 1.0), len(other)
    nearest = special.ndtr(mu + special.ndtri(places / (len(own) + 1)))
    counted = np.searchsorted(np.sort(other), np.sort(own)[places.astype(int) - 1])
    shares = (counted + _PRIOR * nearest) / (size + _PRIOR)
    spread = np.sqrt(size * nearest * (1 - nearest) + (size * nearest) ** 2 / places)
    shares = np.minimum(shares * special.ndtr(mu + special.ndtri(levels)) / nearest, 1.0)
    return _Below(shares, places, (counted - size * nearest) / spread)


class Candidates(NamedTuple):
    """A pilot's distinct scores as thresholds (T,), and their rates (false-positive, false-negative), each
    (T,): of normal distributions, as counted, and these raised by what they may err by."""

    thresholds: Array
    normal: Worlds
    counted: Worlds
    raised: Worlds


def candidates(pilot_in: Array, pilot_out: Array) -> Candidates:
    """Each score of a pilot with rates that look at ranks alone: those of normal distributions with the
    pilot's area under the ROC curve, where as many of their scores lie below; and counts of the pilot's
    scores and a few of theirs."""
    sizes = len(pilot_in), len(pilot_out)
    values, counts = np.unique(np.concatenate([pilot_in, pilot_out]), return_counts=True)
    mu = _separation(pilot_in, pilot_out) if all(sizes) else 0.0
    below = (sizes[0] * special.ndtr(_LATENT - mu) + sizes[1] * special.ndtr(_LATENT)) / sum(sizes)
    z = np.interp(np.cumsum(counts) / (sum(sizes) + 1), below, _LATENT)
    normal, errors = (special.ndtr(-z), special.ndtr(z - mu)), count_errors(pilot_in, pilot_out, values)
    out, into = map(_counted, errors, normal, sizes[::-1])
    return Candidates(values, normal, (out[0], into[0]), (out[1], into[1]))


def _counted(errors: Counts, normal: Array, size: int) -> Worlds:
    """(rates, those raised) of errors among the pilot's scores and _PRIOR normal ones."""
    rates = (errors + _PRIOR * normal) / (size + _PRIOR)
    deviations = np.sqrt(rates * (1 - rates) / (size + _PRIOR))
    return rates, np.asarray(np.minimum(rates + _CLEAR * deviations, 1.0))
