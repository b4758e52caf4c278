"""Which world's scores are higher, by ranks: the area under the ROC curve."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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
