"""Verdicts on audits, which claim no more than is proven."""

import math

from audit import written
from audit.conclusions.conclusion import Conclusion, UpperBound, Verdict
from audit.methods.estimate import Bound
from audit.methods.method import GIVEN
from audit.written import show_level, show_percent, show_risk

LEAKS = "leaks"
NOTHING = "nothing"
VIOLATED = "violated"
VIOLATED_IF_GAUSSIAN = "violated, if Gaussian"
_SHOWN = 0.001  # smaller lower bounds are 0 when rounded down to three decimals
BETTER_SCORES = "more runs or scores of fresh directions"  # for readers who do not train

_IF_LEAKS = "This training leaks if its trade-off curve is Gaussian."
_NOTHING = "No leakage is proven."
_VIOLATED = "The guarantee is violated."
_IF_VIOLATED = "The guarantee is violated if the trade-off curve is Gaussian."
_WHATEVER = "for any trade-off curve"
_IF_GAUSSIAN = "if the trade-off curve is Gaussian"
_UNTESTED = " The curve was not tested: scores from one run may depend on each other."
_MAY_LEAK = "This does not prove privacy: a stronger adversary or more runs may find a leak."
_BUG = "There is a bug (in clipping, noise, randomness or the number of steps), "


def at_least(value: float) -> str:
    """Returns a lower bound rounded down to three decimals, without the last zeros."""
    return written.short(written.at_least(value))


def at_most(value: float) -> str:
    """Returns an upper bound rounded up to three decimals, without the last zeros; ∞ if it is infinite."""
    if not math.isfinite(value):
        return "∞"
    return written.short(written.at_most(value))


def judge(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on a conclusion with all other fields.

    For several runs it compares `conclusion.gaussian` and `conclusion.assumption_free` with the upper bounds,
    for a single run all lower bounds.
    """
    if conclusion.is_one_run:
        return _judge_one_run(conclusion)
    doubt = conclusion.doubt
    if doubt:  # bounds are valid only for independent runs
        explanation = (
            f"{doubt[0].upper()}{doubt[1:]}. Independent training runs with noise do not give such scores, "
            "and the bounds are valid only for independent runs, so these scores do not show whether this "
            "training leaks. Use a different seed for each run, check that each score is computed from the "
            "final model of its own run, and audit again."
        )
        headline = "These scores do not come from independent runs."
        return Verdict(NOTHING, "not independent runs", headline, explanation)

    # A violation without an assumption on the curve.
    gaussian = conclusion.gaussian
    free = conclusion.assumption_free
    broken = conclusion.exceeded(free.epsilon)  # an upper bound, or None
    if broken is not None:
        explanation = (
            f"{_claim(free, _WHATEVER)}, more than {_name_upper_bound(broken)}. {_BUG}"
            f"{_blame_others(broken, conclusion, broken.name)}"
        )
        return Verdict(VIOLATED, VIOLATED, _state_violation(free, broken), explanation)
    if conclusion.claim_test is not None and conclusion.claim_test.refuted:
        return Verdict(VIOLATED, VIOLATED, _VIOLATED, _explain_refutation(conclusion))
    if conclusion.is_reversed:
        return _judge_reversed(conclusion)

    # A violation, if the curve is Gaussian.
    broken = conclusion.exceeded(gaussian.epsilon)
    if broken is not None and not conclusion.refutes_gaussian:
        proven = "no leakage"
        if free.epsilon >= _SHOWN:
            proven = f"epsilon of at least {at_least(free.epsilon)}"
        explanation = (
            f"{_claim(gaussian, _IF_GAUSSIAN)}, more than {_name_upper_bound(broken)}. Either the curve is "
            f"not Gaussian, or there is a bug, {_blame_others(broken, conclusion, broken.name)} "
            f"Without an assumption on the curve these runs prove {proven}, which violates no guarantee."
            f"{_describe_curve_test(conclusion)} To decide, use {describe_what_decides(conclusion)}."
        )
        return Verdict(VIOLATED, VIOLATED_IF_GAUSSIAN, _IF_VIOLATED, explanation)

    return _judge_leak(conclusion)


def _judge_leak(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on several runs without a violation: no proof, or a leak."""
    gaussian = conclusion.gaussian
    free = conclusion.assumption_free
    curve = _describe_curve_test(conclusion)
    guarantee = _describe_upper_bounds(conclusion)
    is_gaussian_zero = conclusion.refutes_gaussian or gaussian.epsilon < _SHOWN
    if free.epsilon < _SHOWN and is_gaussian_zero:
        runs = f"scores ({conclusion.evidence})"
        if conclusion.has_one_canary:
            runs = f"{conclusion.runs:,} runs"
        if not conclusion.refutes_gaussian:
            curve = ""
        explanation = (
            f"At {show_percent(conclusion.confidence)} confidence these {runs} prove no leakage at delta = "
            f"{show_level(conclusion.delta)}: the lower bounds are 0. {_MAY_LEAK}{curve}{guarantee}"
        )
        return Verdict(NOTHING, "nothing proven", _NOTHING, explanation)
    if free.epsilon < _SHOWN:
        without = "without an assumption on the curve, these runs prove no leakage"
        leak = f"{_claim(gaussian, _IF_GAUSSIAN)}; {without}"
        return Verdict(LEAKS, "leaks, if Gaussian", _IF_LEAKS, f"{leak}.{curve}{guarantee}")
    leak = _claim(free, _WHATEVER)
    if free.epsilon < gaussian.epsilon and not conclusion.refutes_gaussian:
        leak = f"{leak}; {_IF_GAUSSIAN}, at least {at_least(gaussian.epsilon)}"
    return Verdict(LEAKS, "leaks", _make_headline(conclusion), f"{leak}.{curve}{guarantee}")


def _judge_reversed(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on scores that are lower with the canary."""
    how_far = ""
    if conclusion.auc is not None:  # a single run's cosines may have only the law of scores out
        how_far = f"The area under their ROC curve is {conclusion.auc.value:.2f}, far below 1/2. "
    sentence = (
        f"{how_far}Higher scores must mean that the canary was inserted: negate the scores. As they are, "
        "they are not evidence about privacy."
        f"{_describe_upper_bounds(conclusion)}"
    )
    return Verdict(NOTHING, "reversed scores", "Scores are lower with the canary.", sentence)


def _judge_one_run(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on a single run."""
    bounds = conclusion.bounds
    upper = conclusion.tightest
    exceeding = []
    if upper is not None:
        exceeding = [bound for bound in bounds if bound.epsilon > upper.epsilon]
    whatever_the_curve = [bound for bound in exceeding if not bound.assumes.gaussian]
    test = conclusion.claim_test
    # An exceeding bound for any curve quantifies the leak. Without one the refuted test of the claim decides.
    if not whatever_the_curve and test is not None and test.refuted:
        return Verdict(VIOLATED, VIOLATED, _VIOLATED, _explain_refutation(conclusion))
    if upper is not None and exceeding:
        sentence = (
            f"{_claim_each(exceeding)} This is more than {_name_upper_bound(upper)}: there is a bug, or the "
            "upper bound is for a different training."
        )
        if not whatever_the_curve:
            return Verdict(VIOLATED, VIOLATED_IF_GAUSSIAN, _IF_VIOLATED, sentence)
        largest = max(whatever_the_curve, key=lambda bound: bound.epsilon)
        return Verdict(VIOLATED, VIOLATED, _state_violation(largest, upper), sentence)

    if conclusion.is_reversed:
        return _judge_reversed(conclusion)
    proven = [bound for bound in bounds if bound.epsilon >= _SHOWN]
    guarantee = _describe_upper_bounds(conclusion)
    if proven:
        sentence = f"{_claim_each(proven)}{guarantee}"
        if all(bound.assumes.gaussian for bound in proven):
            return Verdict(LEAKS, "leaks, if Gaussian", _IF_LEAKS, sentence)
        return Verdict(LEAKS, "leaks", "This training leaks.", sentence)
    sentence = "There are only estimates, which are not bounds: save coins or use more canaries."
    if bounds:
        sentence = (
            f"At {show_percent(conclusion.confidence)} confidence this run proves no leakage at delta = "
            f"{show_level(conclusion.delta)}: the lower bounds are 0. This does not prove privacy."
        )
    return Verdict(NOTHING, "nothing proven", _NOTHING, sentence + guarantee)


def _make_headline(conclusion: Conclusion) -> str:
    """Returns the headline on a proven leak: the lower bound on epsilon next to an upper bound.

    A finite upper bound on the last model, if the tightest, is shown next to composition's, with a larger
    lower bound for an unrefuted Gaussian curve in brackets. Otherwise a finite upper bound on all models is
    shown, and whether these runs could refute a claim.
    """
    proven = at_least(conclusion.epsilon)
    upper_bound = conclusion.upper_bound
    tightest = conclusion.tightest
    if tightest is not None and tightest.hidden and math.isfinite(tightest.epsilon):
        gaussian = conclusion.gaussian
        if gaussian.holds and gaussian.epsilon > conclusion.epsilon:
            proven += f" ({at_least(gaussian.epsilon)} if its curve is Gaussian)"
        last_model = at_most(tightest.epsilon)
        if tightest.is_measured:
            last_model += " if steps stretch as measured"
        # A hidden-state bound never comes without composition's: it is not None here.
        composition = at_most(upper_bound or 0.0)
        return f"Epsilon is between {proven} and {last_model}; composition allows {composition}."
    if upper_bound is None or math.isinf(upper_bound):
        return f"Proven: epsilon is at least {proven}."
    allows = f"accounting allows {at_most(upper_bound)}"
    if conclusion.is_claimed:
        allows = f"the claim allows {at_most(upper_bound)}"
        if conclusion.is_beyond_reach:
            allows = f"no scores of so few runs could reject {at_most(upper_bound)}"
    return f"Proven: epsilon is at least {proven}; {allows}."


def _explain_refutation(conclusion: Conclusion) -> str:
    """Returns the sentences on a claim that its test refutes without a bound for any curve."""
    upper = conclusion.tightest
    test = conclusion.claim_test
    assert upper is not None and test is not None
    why_refuted = "no test could have the error rates of these scores under the claim"
    if conclusion.bets_on_curve:  # else the e-value has only two values
        why_refuted = (
            f"bets against its trade-off curve multiplied their stake by {test.e_value:.3g}"
        )
    runs = "one training run"
    if test.runs != 1:
        runs = f"{test.runs:,} training runs"
    return (
        f"With {show_percent(conclusion.confidence)} confidence the claim, {_name_upper_bound(upper)}, is "
        f"rejected after {runs}: {why_refuted}. This needs no assumption on the curve. {_BUG}"
        f"{_blame_others(upper, conclusion, 'claim')}"
    )


def _describe_curve_test(conclusion: Conclusion) -> str:
    """Returns the sentence, with a space before it, on the test of a Gaussian curve, or an empty string.

    For dependent scores of several canaries per run, it reports that the curve was not tested.
    """
    curve = conclusion.curve
    if curve is None:
        if conclusion.has_tied_scores:
            return _UNTESTED
        return ""
    result = f"({curve.show_test()})"
    if curve.is_refuted:
        return f" These scores reject a Gaussian curve {result}, so bounds that assume one are invalid."
    if not curve.is_doubted:
        return f" There is no evidence against a Gaussian curve {result}; this does not prove it."
    return f" These runs are too few to confirm a Gaussian curve {result}."


def _claim(bound: Bound, proviso: str) -> str:
    """Returns the clause that states a lower bound and its proviso."""
    return (
        f"With {show_percent(bound.confidence)} confidence and {proviso}, this training leaks at least "
        f"epsilon = {at_least(bound.epsilon)} at delta = {show_level(bound.delta)}"
    )


def _claim_each(bounds: list[Bound]) -> str:
    """Returns a sentence for each bound of a single run."""
    return " ".join(f"{_claim(bound, bound.assumes.proviso)}." for bound in bounds)


def _describe_upper_bounds(conclusion: Conclusion) -> str:
    """Returns the sentence about a conclusion's upper bounds, with a leading space."""
    tightest = conclusion.tightest
    upper = conclusion.upper_bound
    if tightest is None or upper is None:
        return " No upper bound was given to compare with."
    if tightest.hidden and math.isfinite(tightest.epsilon):
        most = at_most(tightest.epsilon)
        if tightest.is_measured:
            condition = "if steps stretch distances as measured (not proven)"
            guarantee = f"composition guarantees at most {at_most(upper)}"
            return f" The last model leaks at most {most} {condition}; {guarantee}."
        return (
            f" The hidden-state bound guarantees at most {most}, and composition {at_most(upper)}."
        )
    if conclusion.is_claimed and math.isinf(upper):
        return " The claim does not cover this delta."
    if conclusion.is_claimed:
        return f" The claim allows at most {at_most(upper)}."
    if math.isinf(upper):
        return " There is no noise, so accounting gives no guarantee."
    return f" Accounting guarantees at most {at_most(upper)}."


def _state_violation(bound: Bound, broken: UpperBound) -> str:
    """Returns the headline on a lower bound that exceeds an upper bound, with both numbers."""
    stated = f"accounting allows {at_most(broken.epsilon)}"
    if broken.hidden:
        stated = f"the hidden-state bound allows {at_most(broken.epsilon)}"
    if broken.assumes == GIVEN:  # a claim, not computed from steps
        stated = f"the claim allows {at_most(broken.epsilon)}"
    return f"The guarantee is violated: epsilon is at least {at_least(bound.epsilon)}, {stated}."


def _name_upper_bound(upper: UpperBound) -> str:
    """Returns an upper bound's value and source: "the 3.1 that accounting guarantees"."""
    source = "that accounting guarantees"
    if upper.assumes == GIVEN:
        source = "that is claimed"
    if upper.hidden:
        source = f"of the {upper.name}"
    return f"the {at_most(upper.epsilon)} {source}"


def _blame_others(broken: UpperBound, conclusion: Conclusion, name: str) -> str:
    """Returns the causes of a broken upper bound other than a bug, with the probability of chance."""
    share = show_risk(conclusion.confidence)
    chance = f"a correct implementation gets this verdict by chance in at most {share} of audits."
    other = f"or the {name} is for a different training; {chance}"
    if not broken.hidden:
        return other
    # Composition's bound is known here, and may be the smaller one: sampling lowers only this bound.
    composition = conclusion.upper_bound or 0.0
    effect = "is also violated"
    if broken.epsilon < composition:
        effect = "is not violated"
    also = f"Composition, which allows {at_most(composition)}, {effect}."
    return f"steps have larger Lipschitz constants than stated, {other} {also}"


def describe_what_decides(conclusion: Conclusion) -> str:
    """Returns the evidence that decides between a violated guarantee and a curve that is not Gaussian."""
    most = conclusion.most_provable  # for any curve; None if unknown
    upper = conclusion.tightest
    if most is None or upper is None or most >= upper.epsilon:
        return "more runs"
    # So few runs cannot prove more than the upper bound. Fewer insertions lower it, unless it is a claim.
    if conclusion.is_claimed:
        return BETTER_SCORES
    return f"more runs, or fewer insertions for an upper bound below {at_least(most)}"
