"""The verdict of an audit in a sentence or two that claim no more than is proven."""

import math
from typing import NamedTuple

import numpy as np

from audit.conclusions.conclusion import Conclusion, UpperBound
from audit.methods import curves
from audit.methods.estimate import Bound
from audit.report import table

LEAKS, NOTHING, VIOLATED = "leaks", "nothing", "violated"
_WHATEVER = "whatever the trade-off curve"
_IF_GAUSSIAN = "if the trade-off curve is Gaussian"
_FEWEST_EQUAL = 5  # scores of a world that are one value, or shifted alike, and no chance
_CLEARLY = 4  # standard errors of the AUC below 1/2: three such audits in 100,000 where nothing leaks
_UNTESTED = " Whether it is was not tested: scores of one run may depend on each other."


class Verdict(NamedTuple):
    """A verdict: kind is LEAKS, NOTHING or VIOLATED; word, headline and sentence say it ever more fully."""

    kind: str
    word: str
    headline: str
    sentence: str


SMOKE = Verdict(
    NOTHING,
    "smoke",
    "A smoke run proves nothing.",
    "A few runs of a few steps show that all works; no verdict is drawn from their bounds.",
)


def at_least(value: float) -> str:
    """A lower bound rounded down to three decimals, without the last zeros."""
    return table.short(table.at_least(value))


def at_most(value: float) -> str:
    """An upper bound rounded up to three decimals, without the last zeros; ∞ where it is infinite."""
    return table.short(table.at_most(value)) if math.isfinite(value) else "∞"


def proven(value: float) -> str:
    """A lower bound with its sign: ≥ 1.2."""
    return f"≥\N{NO-BREAK SPACE}{at_least(value)}"


def limit(value: float) -> str:
    """An upper bound with its sign: ≤ 1.3."""
    return f"≤\N{NO-BREAK SPACE}{at_most(value)}"


def percent(confidence: float) -> str:
    """0.95 -> 95%."""
    return f"{100 * confidence:.10g}%"


def verdict(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on the bounds `if_gaussian` and `assumption_free` and the upper bound, if known."""
    doubt = doubt_of(conclusion)
    if doubt:
        headline = "These scores are not those of independent runs."
        return Verdict(NOTHING, "not independent runs", headline, _doubtful(doubt))
    gaussian, free = conclusion.gaussian, conclusion.assumption_free
    broken, broken_if_gaussian = map(conclusion.exceeded, (free.epsilon, gaussian.epsilon))
    if broken is not None:
        full = (
            f"{_claim(free, _WHATEVER)}, more than {_which(broken)}. There is a bug (in clipping, noise, "
            f"randomness or how steps are counted), {_other_steps(broken)}or the upper bound is for another "
            f"training; {_by_chance(free)}{_kept(broken, conclusion)}"
        )
        return Verdict(VIOLATED, "violated", "The guarantee is violated.", full)
    if is_reversed(conclusion):
        headline = "Scores are lower with the canary."
        return Verdict(NOTHING, "reversed scores", headline, _reversed(conclusion))
    if conclusion.refutes_gaussian:
        return _without_gaussian(conclusion, free)
    if broken_if_gaussian is not None:
        headline = "The guarantee is violated, or the trade-off curve is not Gaussian."
        full = _violated_if_gaussian(gaussian, free, broken_if_gaussian) + _not_refuted(conclusion)
        full += f" To decide: {to_decide(conclusion)}.{_kept(broken_if_gaussian, conclusion)}"
        return Verdict(VIOLATED, "violated, or not Gaussian", headline, full)
    if _is_zero(gaussian) and _is_zero(free):
        full = _nothing(conclusion) + _guaranteed(conclusion)
        return Verdict(NOTHING, "nothing proven", "No leakage is proven.", full)
    full = _leaks(gaussian, free) + _not_refuted(conclusion) + _guaranteed(conclusion)
    if _is_zero(free):
        headline = "This training leaks, if its trade-off curve is Gaussian."
        return Verdict(LEAKS, "leaks, if Gaussian", headline, full)
    return Verdict(LEAKS, "leaks", _proven(conclusion), full)


def doubt_of(conclusion: Conclusion) -> str:
    """Returns why scores cannot be those of independent runs of a training with noise, in words that follow
    "scores", or an empty string.

    One world that is a single value while the other is not is what runs of one seed, or a score that was not
    filled in, look like; so is a world that is the other one shifted by a constant, run by run. A world whose
    value most runs of the other have too, as of runs that failed, is none of these.
    """
    if conclusion.fresh is not None:
        return ""
    scores_in, scores_out = conclusion.scores_in, conclusion.scores_out
    for name, scores, others in (("in", scores_in, scores_out), ("out", scores_out, scores_in)):
        constant = len(scores) >= _FEWEST_EQUAL and np.ptp(scores) == 0 and np.ptp(others) > 0
        if constant and np.mean(others == scores[0]) < 0.5:
            return f"all {len(scores):,} scores {name} equal {scores[0]:.6g} while the others vary"
    if len(scores_in) == len(scores_out) >= _FEWEST_EQUAL and np.ptp(scores_in) > 0:
        shifts = scores_in - scores_out
        rounding = 1e-9 * max(np.abs(scores_in).max(), np.abs(scores_out).max())
        if np.ptp(shifts) <= rounding and len(np.unique(scores_in)) > len(scores_in) / 2:
            return f"every score in is the score out of its row plus {shifts.mean():.6g}"
    return ""


def _doubtful(doubt: str) -> str:
    return (
        f"{doubt[0].upper()}{doubt[1:]}, which independent training runs with noise do not give. Bounds "
        "hold for independent runs alone, so that they say nothing of this training, neither that it leaks "
        "nor that it does not. Give each run a seed of its own, check that its score is computed from its "
        "own final model, and audit again."
    )


def _without_gaussian(conclusion: Conclusion, free: Bound) -> Verdict:
    p_value = conclusion.p_value()
    refuted = f" These scores refute a Gaussian curve ({p_value}): bounds that assume one do not hold."
    if _is_zero(free):
        full = (
            f"With {percent(free.confidence)} confidence, and {_WHATEVER}, these runs prove no leakage at "
            f"delta = {free.delta:g}. That is no proof of privacy: a stronger adversary or more runs may "
            f"find some.{refuted}{_guaranteed(conclusion)}"
        )
        return Verdict(NOTHING, "nothing proven", "No leakage is proven.", full)
    full = f"{_claim(free, _WHATEVER)}.{refuted}{_guaranteed(conclusion)}"
    return Verdict(LEAKS, "leaks", _proven(conclusion), full)


def _proven(conclusion: Conclusion) -> str:
    upper, tightest = conclusion.upper_bound, conclusion.tightest
    if tightest is not None and tightest.hidden and math.isfinite(tightest.epsilon):
        proven, gaussian = at_least(conclusion.epsilon), conclusion.gaussian
        if gaussian.holds and gaussian.epsilon > conclusion.epsilon:
            proven += f" ({at_least(gaussian.epsilon)} if its curve is Gaussian)"
        most, composition = at_most(tightest.epsilon), at_most(upper or 0.0)
        return f"Epsilon is between {proven} and {most}; composition says {composition}."
    source = "the given bound" if conclusion.composition is None else "accounting"
    allowed = "" if upper is None or math.isinf(upper) else f"; {source} allows {at_most(upper)}"
    return f"Proven: epsilon is at least {at_least(conclusion.epsilon)}{allowed}."


def is_reversed(conclusion: Conclusion) -> bool:
    """Whether scores are clearly lower with the canary than without, as of a score of the wrong sign."""
    canaries = (1, 1) if conclusion.design is None else conclusion.design.canaries  # all may be equal
    area = curves.auc(conclusion.scores_in, conclusion.scores_out)
    return area.deviations < -_CLEARLY * math.sqrt(max(canaries))


def _reversed(conclusion: Conclusion) -> str:
    area = curves.auc(conclusion.scores_in, conclusion.scores_out)
    return (
        f"The area under their ROC curve is {area.value:.2f}, far below 1/2: give minus the score, since "
        f"higher has to mean in. As they are they prove nothing.{_guaranteed(conclusion)}"
    )


def _not_refuted(conclusion: Conclusion) -> str:
    if conclusion.curve is None:
        return "" if conclusion.design is None or conclusion.fresh is not None else _UNTESTED
    tested = f"({conclusion.p_value()}, power {conclusion.curve_power:.0%})"
    if conclusion.doubts_gaussian:
        runs = conclusion.deciding()
        more = "" if runs is None else f"; {runs:,} would decide"
        return f" That the curve is Gaussian is not confirmed by so few runs {tested}{more}."
    return f" The scores are no evidence against a Gaussian curve {tested}, which is no proof of one."


def _is_zero(bound: Bound) -> bool:
    """Whether nothing is left of it in three decimals."""
    return at_least(bound.epsilon) == "0"


def _claim(bound: Bound, proviso: str) -> str:
    return (
        f"With {percent(bound.confidence)} confidence, and {proviso}, this training leaks at least "
        f"epsilon = {at_least(bound.epsilon)} at delta = {bound.delta:g}"
    )


def _leaks(gaussian: Bound, free: Bound) -> str:
    if free.epsilon >= gaussian.epsilon:
        return f"{_claim(free, _WHATEVER)}."
    if _is_zero(free):
        without = "without any assumption on the curve, these runs prove no leakage"
        return f"{_claim(gaussian, _IF_GAUSSIAN)}; {without}."
    return f"{_claim(free, _WHATEVER)}; {_IF_GAUSSIAN}, at least {at_least(gaussian.epsilon)}."


def _nothing(conclusion: Conclusion) -> str:
    runs = f"{len(conclusion.scores_in) + len(conclusion.scores_out):,} runs"
    if conclusion.design is not None:
        runs = str(conclusion.design)
    return (
        f"At {percent(conclusion.confidence)} confidence these {runs} prove no leakage at delta = "
        f"{conclusion.delta:g}: the lower bounds are 0. That is no proof of privacy: a stronger adversary or "
        "more runs may find some."
    )


def guaranteed(upper: float | None) -> str:
    """The sentence on the upper bound."""
    if upper is None:
        return " No upper bound was given to hold against it."
    if math.isinf(upper):
        return " There is no noise, so that accounting guarantees nothing."
    return f" Accounting guarantees at most {at_most(upper)}."


def _guaranteed(conclusion: Conclusion) -> str:
    tightest = conclusion.tightest
    if tightest is None or not tightest.hidden or math.isinf(tightest.epsilon):
        return guaranteed(conclusion.upper_bound)
    most, composition = at_most(tightest.epsilon), at_most(conclusion.upper_bound or 0.0)
    return f" The hidden-state bound guarantees at most {most}, and composition {composition}."


def _which(upper: UpperBound) -> str:
    source = "the hidden-state bound" if upper.hidden else "accounting"
    return f"the {at_most(upper.epsilon)} that {source} guarantees"


def _other_steps(broken: UpperBound) -> str:
    return "steps are less Lipschitz than was said, " if broken.hidden else ""


def _kept(broken: UpperBound, conclusion: Conclusion) -> str:
    """The sentence on composition where the hidden-state bound alone is exceeded."""
    composition = at_most(conclusion.upper_bound or 0.0)
    return f" Composition, which allows {composition}, notices nothing." if broken.hidden else ""


def _violated_if_gaussian(gaussian: Bound, free: Bound, upper: UpperBound) -> str:
    kept = "nothing" if _is_zero(free) else f"at least {at_least(free.epsilon)}"
    return (
        f"{_claim(gaussian, _IF_GAUSSIAN)}, more than {_which(upper)}. Either the curve is not Gaussian, or "
        f"there is a bug, {_other_steps(upper)}or the upper bound is for another training; "
        f"{_by_chance(gaussian)} Without any assumption on the curve these runs prove {kept}, which "
        "contradicts nothing."
    )


def to_decide(conclusion: Conclusion) -> str:
    """What decides between a violated guarantee and a curve that is not Gaussian."""
    most, upper = conclusion.most_provable, conclusion.tightest
    if most is None or upper is None or most >= upper.epsilon:
        return "more runs"
    return f"more runs, or fewer insertions until the upper bound is below {at_least(most)}"


def _by_chance(bound: Bound) -> str:
    return f"chance alone brings a sound training here in at most {percent(1 - bound.confidence)} of audits."
