"""Bounds for people: a table of 80 columns, and remarks on the looks that they are the best of and on why
they may be 0 for a reason that has nothing to do with privacy."""

import math
import textwrap
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from audit.claims.linear_losses import EXPECTED
from audit.conclusions.conclusion import Conclusion, assumption_of
from audit.methods import curves, estimate, lifted
from audit.methods.estimate import Bound, Finding
from audit.methods.exact_null import ExactBound
from audit.report.table import Column, Table, at_least, at_most
from audit.report.verdicts import doubt_of, is_reversed, to_decide

_COUNTS, _RATES = ("FP/out", "FN/in"), ("FPR", "FNR")
_UNTESTED = "            (not tested here: scores of one run may depend on each other)"
_WITHDRAWN = "withdrawn: canaries that were out have not the law of directions (p < 1e-06)"
_NO_HIDDEN = "no bound but composition"
_FEW = 100  # scores of a world
_WIDTH = 80  # columns
_SHOWN = 0.0005  # three decimals show 0 below it


def bounds_table(conclusion: Conclusion) -> str:
    """A row a bound: first the one that a verdict rests on, then the others, the upper bound, and what is no
    bound; remarks below, where there are any. Lower bounds are rounded down, the upper bound up."""
    many = conclusion.design is not None
    share = _rate if many else "{}/{}".format
    header = ("method", "epsilon", "mu", "threshold", *(_RATES if many else _COUNTS), "assumes")
    rows = [_row(row, share) for row in conclusion.ranked()]
    for bound in conclusion.upper_bounds:
        mu = at_most(bound.mu or 0.0) if bound.hidden else ""
        rows.append((bound.name, at_most(bound.epsilon), mu, "", "", "", bound.assumes.word))
    rows += [_row(row, share) for row in conclusion.estimates]
    if conclusion.expected is not None:
        rows.append(("linear_losses", at_most(conclusion.expected), "", "", "", "", EXPECTED.word))
    title = f"lower bounds on epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    before = [title, str(conclusion.design)] if many else [title]
    means = [*_notes(conclusion), *_curve(conclusion), *_attack(conclusion)]
    remarked = [textwrap.fill(remark, _WIDTH) for remark in remarks(conclusion)]
    notes = [*means, *_exceeding(conclusion), *remarked]
    columns = [Column(None, itemgetter(place), head, left=True) for place, head in enumerate(header)]
    return Table(columns, rows, before=before, after=notes).text()


def _attack(conclusion: Conclusion) -> list[str]:
    right, *found = curves.attack(conclusion.scores_in, conclusion.scores_out)
    lines = [f"{'attack:':<12}guesses right in {_share(right)}"]
    for rate, allowed in zip(found, ("1%", "0.1%"), strict=True):
        if rate is not None:
            lines.append(f"            finds {_share(rate)} of those in at {allowed} false positives")
    return lines


def _share(rate: curves.Rate) -> str:
    return f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"


def _notes(conclusion: Conclusion) -> list[str]:
    """The meaning of the last column's words, that of a Gaussian curve last: its test stands below."""
    uppers = (bound.assumes for bound in conclusion.upper_bounds)
    expected = () if conclusion.expected is None else (EXPECTED,)
    assumed = dict.fromkeys([*map(assumption_of, conclusion.rows()), *uppers, *expected])
    ranked = sorted(assumed, key=lambda one: one.gaussian)
    notes = [_noted(one.word, one.note) for one in ranked if one.note]
    if conclusion.uncovered:
        notes = [_noted("last model", f"{_NO_HIDDEN}: {conclusion.uncovered}"), *notes]
    tested = conclusion.design is None or conclusion.fresh is not None
    return notes if tested else [*notes, _UNTESTED]


def _noted(word: str, note: str) -> str:
    return textwrap.fill(f"{word + ':':<12}{note}", _WIDTH, subsequent_indent=12 * " ")


def look_rows(conclusion: Conclusion) -> str:
    """The last look's bounds in a row, below a header where it is the first; its looks must be known."""
    looks = conclusion.looks
    assert looks is not None
    look = looks.taken[-1]
    names = [bound.method for bound in look.bounds]
    header = f"{'look':<8}{'runs':>10}" + "".join(f"{name:>17}" for name in names)
    title = f"epsilon at delta {conclusion.delta:g}; each look's bounds hold at confidence "
    above = [f"{title}{looks.confidence:.6g}", header, "-" * len(header)] if len(looks.taken) == 1 else []
    values = "".join(f"{bound.epsilon:>17.3f}" for bound in look.bounds)
    row = f"{f'{looks.number(look)} of {len(looks.schedule)}':<8}{look.runs:>10}{values}"
    return "\n".join([*above, row])


def _curve(conclusion: Conclusion) -> list[str]:
    if conclusion.curve is None:
        return []
    lines = [f"{curve_tested(conclusion)}: {curve_means(conclusion)}", conclusion.reason]
    return [f"            {text}" for text in lines if text]


def curve_tested(conclusion: Conclusion) -> str:
    """What the test of the Gaussian curve found, "refuted (p < 1e-06)"."""
    power = "" if conclusion.refutes_gaussian else f", power {conclusion.curve_power:.0%}"
    return f"{conclusion.curve_status} ({conclusion.p_value()}{power})"


def curve_means(conclusion: Conclusion) -> str:
    """What follows from the test of the Gaussian curve, and how many runs would decide."""
    if conclusion.refutes_gaussian:
        return f"ignore these rows, only {conclusion.assumption_free.method} holds"
    if not conclusion.doubts_gaussian:
        return "no evidence against it"
    runs = conclusion.deciding()
    return "20 times as many runs would not tell" if runs is None else f"{runs:,} runs would decide"


def _exceeding(conclusion: Conclusion) -> list[str]:
    """What a bound above the upper one means and what decides, or that these runs can't bring one there."""
    if doubt_of(conclusion):
        return []
    free, gaussian, upper = conclusion.assumption_free, conclusion.gaussian, conclusion.tightest
    broken, broken_if_gaussian = map(conclusion.exceeded, (free.epsilon, gaussian.epsilon))
    if broken is not None:
        return [f"{free.method} exceeds the {broken.name}: the guarantee is violated"]
    if broken_if_gaussian is not None and not conclusion.refutes_gaussian:
        name = broken_if_gaussian.name
        said = f"{gaussian.method} exceeds the {name}: violated, or the curve is not Gaussian"
        return [*textwrap.wrap(said, _WIDTH), f"to decide: {to_decide(conclusion)}"]
    most = conclusion.most_provable
    reachable = upper is None or math.isinf(upper.epsilon) or most is None or most >= upper.epsilon
    if upper is None or reachable or is_reversed(conclusion):
        return []
    runs = f"{len(conclusion.scores_in) + len(conclusion.scores_out):,} runs"
    return textwrap.wrap(
        f"{runs} prove at most {at_most(most or 0.0)} whatever the curve, so that none could contradict "
        f"the {upper.name} {at_most(upper.epsilon)}: take fewer insertions or a larger sigma to look for "
        "bugs",
        _WIDTH,
    )


def _row(finding: Finding, share: Callable[[int, int], str]) -> tuple[str, ...]:
    """A finding's cells, errors as shares."""
    return (
        finding.method,
        at_least(finding.epsilon),
        "" if finding.mu is None else at_least(finding.mu),
        f"{finding.threshold:.4g}",
        _false_positives(finding, share),
        share(finding.false_negatives, finding.n_in),
        assumption_of(finding).word if not isinstance(finding, Bound) or finding.holds else "REFUTED",
    )


def _false_positives(finding: Finding, share: Callable[[int, int], str]) -> str:
    if isinstance(finding, ExactBound):
        return f"{finding.false_positive_rate:.1e}"
    return share(finding.false_positives, finding.n_out)


def _rate(count: int, guesses: int) -> str:
    """A share in percent, at most 100: an average over coins can lie above."""
    return f"{min(count / guesses, 1):.2%}"


def remarks(conclusion: Conclusion) -> list[str]:
    """A line each for declared looks, for scores that are all equal, for scores of the wrong sign, for too
    few to prove much, and for methods that need more canaries a run; mostly there is none."""
    found, looks = [], conclusion.looks
    if looks is not None:
        count = len(looks.schedule)
        words = f"the best of {len(looks.taken)} of {count} declared looks"
        if len(looks.taken) == 1:
            words = f"look {looks.number(looks.taken[0])} of {count} declared"
        at_once = f"all at once at {conclusion.confidence:g}"
        found.append(f"{words}; each holds at {looks.confidence:.6g}, {at_once}")
    worlds = ("in", conclusion.scores_in), ("out", conclusion.scores_out)
    equal = [name for name, scores in worlds if np.ptp(scores) == 0]
    doubt = doubt_of(conclusion)
    if doubt:
        found.append(f"these scores are not those of independent runs: {doubt}")
    elif equal:
        found.append(f"all scores {' and '.join(equal)} are equal: does each run have noise of its own?")
    return [*found, *conclusion.notes, *_on_zeros(conclusion)]


def _on_zeros(conclusion: Conclusion) -> list[str]:
    """Why bounds are 0, where it is for no reason of privacy."""
    canaries = (1, 1) if conclusion.design is None else conclusion.design.canaries  # all may be equal
    if is_reversed(conclusion):
        area = curves.auc(conclusion.scores_in, conclusion.scores_out)
        return [f"scores are lower with the canary (AUC {area.value:.2f}): did you mean minus the score?"]
    if conclusion.fresh is not None:
        return [] if conclusion.assumption_free.holds else [_WITHDRAWN]
    if conclusion.design is not None:
        fewest = min(canaries)
        orders = sorted({method.canaries for method in lifted.METHODS.values() if method.canaries > fewest})
        needed = " and ".join(map(str, orders))
        return [f"methods of order {needed} need so many canaries a run, here: {fewest}"] if orders else []
    n_in, n_out = len(conclusion.scores_in), len(conclusion.scores_out)
    nothing = max(conclusion.gaussian.epsilon, conclusion.assumption_free.epsilon) < _SHOWN
    said = conclusion.tightest is not None  # with what so many runs prove at most
    if said or not nothing or min(n_in, n_out) >= _FEW:
        return []
    provable = at_most(estimate.most_provable(n_in, n_out, conclusion.delta, conclusion.confidence))
    return [f"{n_in} and {n_out} runs prove at most epsilon = {provable} whatever the curve: run more"]
