"""Remarks on bounds: the looks that they are the best of, and why they may be 0 for a reason that has nothing
to do with privacy."""

import numpy as np

from audit.report import rounding
from audit.statistics import curves, estimate, lifted
from audit.statistics.conclusion import Conclusion

_CLEARLY = 4  # standard errors of the AUC below 1/2: three such audits in 100,000 where nothing leaks
_FEW = 100  # scores of a world
_SHOWN = 0.0005  # three decimals show 0 below it


def remarks(conclusion: Conclusion) -> list[str]:
    """A line each for declared looks, for scores that are all equal, for scores of the wrong sign, for too
    few to prove much, and for methods that need more canaries a run; mostly there is none."""
    return [*_looks(conclusion), *_on_equal(conclusion), *_on_zeros(conclusion)]


def _looks(conclusion: Conclusion) -> list[str]:
    """What the bounds of declared looks hold at."""
    looks = conclusion.looks
    if looks is None:
        return []
    count = len(looks.schedule)
    if len(looks.taken) > 1:
        words = f"the best of {len(looks.taken)} of {count} declared looks"
    else:
        words = f"look {looks.number(looks.taken[0])} of {count} declared"
    return [f"{words}; each holds at {looks.confidence:.6g}, all at once at {conclusion.confidence:g}"]


def _on_equal(conclusion: Conclusion) -> list[str]:
    """A question where a world's runs do not differ, as where all have one seed."""
    worlds = ("in", conclusion.scores_in), ("out", conclusion.scores_out)
    equal = [name for name, scores in worlds if np.ptp(scores) == 0]
    said = f"all scores {' and '.join(equal)} are equal"
    return [f"{said}: does each run have noise of its own?"] if equal else []


def _on_zeros(conclusion: Conclusion) -> list[str]:
    """Why bounds are 0, where it is for no reason of privacy."""
    canaries = (1, 1) if conclusion.design is None else conclusion.design.canaries  # all may be equal
    area = curves.auc(conclusion.scores_in, conclusion.scores_out)
    if area.deviations < -_CLEARLY * np.sqrt(max(canaries)):
        return [f"scores are lower with the canary (AUC {area.value:.2f}): did you mean minus the score?"]
    if conclusion.design is not None:
        return _left_out(min(conclusion.design.canaries))
    n_in, n_out = len(conclusion.scores_in), len(conclusion.scores_out)
    nothing = max(conclusion.gaussian.epsilon, conclusion.assumption_free.epsilon) < _SHOWN
    if not nothing or min(n_in, n_out) >= _FEW:
        return []
    most = estimate.most_provable(n_in, n_out, conclusion.delta, conclusion.confidence)
    provable = rounding.at_most(most)
    return [f"{n_in} and {n_out} runs prove at most epsilon = {provable} whatever the curve: run more"]


def _left_out(canaries: int) -> list[str]:
    """A line on the orders that need more canaries a run than there are."""
    orders = sorted({method.canaries for method in lifted.METHODS.values() if method.canaries > canaries})
    needed = " and ".join(map(str, orders))
    return [f"methods of order {needed} need so many canaries a run, here: {canaries}"] if orders else []
