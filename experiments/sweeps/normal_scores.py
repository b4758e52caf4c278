"""Two-sided intervals for mu, where scores are normal with the same standard deviation in both worlds.

The bounds of `estimate` count errors, so that with few runs they lie far below the truth, however clear the
scores are. The scores of crafted gradients in an over-parameterised model are normal. Then mu is the distance
between the means of both worlds in standard deviations, and its noncentral t interval is as narrow after 20
runs as an interval by counting after thousands. For scores of another shape it is no bound.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.canaries import Design
from audit.laws import conversions
from audit.laws.intervals import Interval
from audit.methods import estimate

Array = NDArray[np.float64]


def mu_interval(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> Interval:
    """Returns the interval for mu, the distance of both worlds' mean scores in standard deviations.

    It is exact where scores are normal with the same standard deviation in both worlds. Then, with n_in and
    n_out scores, n in all, the pooled t statistic follows the noncentral t distribution with n - 2 degrees of
    freedom and noncentrality mu / sqrt(1 / n_in + 1 / n_out). The interval has each mu with which the
    observed statistic is in neither tail of probability (1 - confidence) / 2. Ends below 0 are set to 0.

    The interval is [0, inf) where there is a single score in each world, or where the scores of each world
    are all equal.

    Args:
      scores_in: (n_in,) scores of runs with the canary.
      scores_out: (n_out,) scores of runs without it.
      confidence: The confidence of the interval.

    Raises:
      InputError: A bad confidence, or scores that `estimate.check_scores` refuses.
    """
    conversions.require_confidence(confidence)
    are_finite = np.isfinite(scores_in).all() and np.isfinite(scores_out).all()
    require(are_finite, "some scores are not finite: a run failed, and normal scores have no interval")
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    freedom = len(s_in) + len(s_out) - 2
    # The sum of squared deviations from each world's mean.
    squares = len(s_in) * np.var(s_in) + len(s_out) * np.var(s_out)
    if freedom == 0 or squares == 0:
        return Interval(np.array(0.0), np.array(np.inf))
    # mu is the noncentrality times this scale.
    scale = np.sqrt(1 / len(s_in) + 1 / len(s_out))
    pooled_deviation = np.sqrt(squares / freedom)
    statistic = (s_in.mean() - s_out.mean()) / pooled_deviation / scale
    error = (1 - confidence) / 2  # at each end
    # The larger the noncentrality, the less probable is a value up to the statistic. So the high level gives
    # the low end.
    low = _find_noncentrality(statistic, freedom, 1 - error)
    high = _find_noncentrality(statistic, freedom, error)
    return Interval(np.maximum(low * scale, 0.0), np.maximum(high * scale, 0.0))


def mu_interval_of_runs(design: Design, confidence: float) -> Interval:
    """Returns an interval for mu from runs with several canaries each; its ends are at least 0.

    The interval is for the distance of both worlds' mean scores in pooled standard deviations. It holds for
    many runs, and for scores of any shape. The distance is mu where scores are normal with the same standard
    deviation in both worlds.

    The interval is the distance, plus or minus its standard error times a quantile of Student's t. The
    canaries of a run need not be independent: the standard error is the jackknife's, which leaves out whole
    runs, each in turn. Student's t has R - 1 degrees of freedom, for R runs.

    Runs are a single set if each has canaries in and canaries out, else two sets: with all canaries in, and
    with all out. The jackknife then leaves out runs of each set, and R is the smaller set's: this is the
    cautious choice, since fewer degrees of freedom make the interval wider.

    Where a set has fewer than two runs, or the distance is undefined, the interval is [0, inf).

    Args:
      design: The scores and which canaries are in; one or two sets of runs.
      confidence: The confidence of the interval.
    """
    conversions.require_confidence(confidence)
    sets_of_runs = design.by_run()
    fewest_runs = min(len(runs.scores) for runs in sets_of_runs)
    # Scores are centred, which keeps digits in sums of squares and changes no distance.
    centre = np.concatenate(design.pooled()).mean()
    all_sums = [_sum_by_run(runs.scores - centre, runs.presence) for runs in sets_of_runs]
    total = np.sum([sums.sum(0) for sums in all_sums], axis=0)  # (6,), over all runs of all sets
    distance = float(_compute_distance(total))
    if fewest_runs < 2 or not np.isfinite(distance):
        return Interval(np.array(0.0), np.array(np.inf))
    # Each row of `total - sums` has the sums over all runs but a single run of the set, whose jackknife
    # variance is R - 1 times that of the distances. Sets are independent: their variances add up.
    variances = [(len(sums) - 1) * np.var(_compute_distance(total - sums)) for sums in all_sums]
    quantile = special.stdtrit(fewest_runs - 1, (1 + confidence) / 2)
    reach = quantile * np.sqrt(sum(variances))
    return Interval(np.maximum(distance - reach, 0.0), np.maximum(distance + reach, 0.0))


def _sum_by_run(scores: Array, presence: NDArray[np.bool_]) -> Array:
    """Returns (R, 6): the count, sum and sum of squares of each run's scores that are in, then of those out.

    Args:
      scores: (R, K) the scores.
      presence: (R, K) whether each canary is in.
    """
    columns = []
    for is_counted in (presence, ~presence):
        counted = np.where(is_counted, scores, 0.0)
        columns += [is_counted.sum(1), counted.sum(1), (counted**2).sum(1)]
    return np.stack(columns, axis=1)


def _compute_distance(sums: Array) -> Array:
    """Returns the distances of both worlds' mean scores in pooled standard deviations, from sums of scores.

    Args:
      sums: (..., 6) the six sums of `_sum_by_run`, over some runs.

    Returns:
      (...) the distances; not finite where undefined.
    """
    n_in, sum_in, squares_in, n_out, sum_out, squares_out = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):  # divisions by 0: no scores in a world, or all equal
        squares = squares_in - sum_in**2 / n_in + squares_out - sum_out**2 / n_out
        deviation = np.sqrt(squares / (n_in + n_out - 2))
        distance: Array = (sum_in / n_in - sum_out / n_out) / deviation
    return distance


def _find_noncentrality(statistic: float, freedom: int, level: float) -> float:
    """Finds the noncentrality with which a noncentral t is at most `statistic` with probability `level`.

    Args:
      statistic: The observed t statistic.
      freedom: The degrees of freedom.
      level: The probability.
    """

    def compute_excess(noncentrality: float) -> float:
        """Returns P(t <= statistic) minus the level, for a noncentral t; decreases in the noncentrality."""
        probability = special.nctdtr(freedom, noncentrality, statistic)
        # Far out in a tail SciPy returns NaN, and the true probability is 1 or 0: nearly all values of t are
        # below a statistic far above the noncentrality, and hardly any below a statistic far under it.
        if np.isnan(probability):
            probability = float(noncentrality < statistic)
        return float(probability - level)

    # The standard deviation of a noncentral t around the statistic is about
    # sqrt(1 + statistic^2 / (2 freedom)). The search extends at least ten of these to either side.
    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(scipy.optimize.brentq(compute_excess, statistic - width, statistic + width))
