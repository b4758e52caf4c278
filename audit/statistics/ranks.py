"""Which world's scores are higher, by ranks: the area under the ROC curve, and single points of it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require
from audit.statistics import estimate


class Auc(NamedTuple):
    """P(score in > score out) + P(equal) / 2 over all pairs, and its standard error where nothing leaks."""

    value: float
    standard_error: float

    @property
    def deviations(self) -> float:
        """Standard errors above 1/2, negative below."""
        return (self.value - 0.5) / self.standard_error


def auc(scores_in: ArrayLike, scores_out: ArrayLike) -> Auc:
    """The AUC of scores (n_in,) and (n_out,); raises InputError for scores that no estimator can use.

    The standard error is that of n_in + n_out independent scores of one distribution, whatever it is, and no
    more with ties: sqrt((n_in + n_out + 1) / (12 n_in n_out)) (Mann and Whitney, 1947, Section 4). Unlike
    those of Hanley and McNeil or DeLong it does not vanish where a few scores lie apart by chance.
    """
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    ordered = np.sort(s_out)
    below = np.searchsorted(ordered, s_in, "left") + np.searchsorted(ordered, s_in, "right")
    n_in, n_out = len(s_in), len(s_out)
    return Auc(float(below.mean() / (2 * n_out)), float(np.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))))


def true_positive_rate(scores_in: ArrayLike, scores_out: ArrayLike, false_positive_rate: float) -> float:
    """The share of scores in (n_in,) above the least threshold that at most such a share of scores out
    (n_out,) exceeds; raises InputError for scores that no estimator can use.

    No bound, but a point of the ROC curve (Carlini et al., 2022): the threshold is chosen on these scores. A
    rate below 1 / n_out allows no false positive.
    """
    rate = false_positive_rate
    require(0 <= rate < 1, f"`false_positive_rate={rate}`: give 0 to below 1")
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    allowed = int(rate * len(s_out) * (1 + 1e-12))
    return float((s_in > np.sort(s_out)[len(s_out) - 1 - allowed]).mean())
