"""The smaller of two readings of evidence whose rows look pasted: with all rows, and with repeated rows once.

The first is valid if the rows are independent runs, and the second if some were pasted. The smaller is valid
in either case. This goes for each method's bound, for the evidence of a test, and for a refutation.
"""

import dataclasses

from audit.conclusions.claim_tests import examine_claim
from audit.conclusions.conclusion import Conclusion, Curve, Worlds
from audit.conclusions.finish import add_deciding_runs, examine_scores, judge
from audit.methods.claimed_curve import ClaimTest
from audit.methods.estimate import Bound


def take_smaller(all_rows: Conclusion, once: Conclusion | None, remark: str) -> Conclusion:
    """Returns a conclusion that is valid whether repeated rows are independent runs or were pasted.

    Its scores, and estimates from them, are those of the reading that proves less.

    Args:
      all_rows: the conclusion from all rows.
      once: the conclusion from each repeated row once; None if these are too few for any.
      remark: how many rows repeat earlier rows, in words.
    """
    shown = all_rows
    bounds_once: tuple[Bound, ...] = ()
    if once is None:
        note = f"{remark}; counted once, there are too few for a bound"
    elif once.epsilon > all_rows.epsilon:
        note = f"{remark}; the bound counts all of them, which proves less"
        bounds_once = once.bounds
    else:
        note = f"{remark}; the bound counts them once"
        bounds_once = once.bounds
        shown = once
    bounds = _take_smaller_bounds(all_rows.bounds, bounds_once)

    def change(conclusion: Conclusion) -> Conclusion:
        """Returns a conclusion with the bounds and notes of both readings."""
        looks = conclusion.looks
        if looks is not None:  # these scores are of a single look
            looks = looks._replace(taken=(looks.taken[0]._replace(bounds=bounds),))
        notes = (*all_rows.notes, note)
        return conclusion._replace(bounds=bounds, looks=looks, notes=notes)

    if once is None:
        return judge(examine_scores(change(all_rows)), claim_test=None)
    both = (examine_scores(change(all_rows)), examine_scores(change(once)))
    merged = examine_scores(
        change(shown)._replace(curve=_take_weaker_curve(all_rows, once, shown.worlds))
    )
    return judge(merged, _take_weaker_test(*both))


def _take_smaller_bounds(all_rows: tuple[Bound, ...], once: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Returns the smaller bound of each method; 0 if repeated rows, counted once, give none.

    Bounds after each run are left out, since the two readings do not have the same runs.
    """
    by_method = {bound.method: bound for bound in once}
    smaller = []
    for bound in all_rows:
        nothing = dataclasses.replace(bound, epsilon=0.0, mu=None if bound.mu is None else 0.0)
        other = by_method.get(bound.method, nothing)
        least = min(bound, other, key=lambda each: (each.epsilon, each.mu or 0.0))
        smaller.append(dataclasses.replace(least, path=()))
    return tuple(smaller)


def _take_weaker_curve(all_rows: Conclusion, once: Conclusion, worlds: Worlds) -> Curve | None:
    """Returns the test of the Gaussian curve with the larger p-value, and the smaller power.

    The power is 0 if only one reading refutes the curve, which is then neither refuted nor confirmed.
    """
    first = all_rows.curve
    second = once.curve
    if first is None or second is None:
        return None
    power = min(first.power, second.power)
    if first.is_refuted != second.is_refuted:
        power = 0.0
    return add_deciding_runs(Curve(max(first.p_value, second.p_value), power), worlds)


def _take_weaker_test(all_rows: Conclusion, once: Conclusion) -> ClaimTest | None:
    """Returns the claim's test by the reading with less evidence: to refute a claim takes both."""
    first = examine_claim(all_rows)
    second = examine_claim(once)
    if first is None or second is None:
        return None
    return min(first, second, key=lambda test: (test.refuted, test.e_value))
