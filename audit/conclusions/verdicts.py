"""Verdicts on audits, in a sentence or two that claim no more than is proven."""

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
BETTER_SCORES = "more runs, or for scores of fresh directions"  # for those who train nothing

_IF_LEAKS = "This training leaks, if its trade-off curve is Gaussian."
_NOTHING = "No leakage is proven."
_VIOLATED = "The guarantee is violated."
_IF_VIOLATED = "The guarantee is violated if the trade-off curve is Gaussian."
_WHATEVER = "whatever the trade-off curve"
_IF_GAUSSIAN = "if the trade-off curve is Gaussian"
_UNTESTED = " Whether it is was not tested: scores of one run may depend on each other."
_MAY_LEAK = "That is no proof of privacy: a stronger adversary or more runs may find some."
_BUG = "There is a bug (in clipping, noise, randomness or how steps are counted), "


def at_least(value: float) -> str:
    """Returns a lower bound rounded down to three decimals, without the last zeros."""
    return written.short(written.at_least(value))


def at_most(value: float) -> str:
    """Returns an upper bound rounded up to three decimals, without the last zeros; ∞ if it is infinite."""
    if not math.isfinite(value):
        return "∞"
    return written.short(written.at_most(value))


def judge(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on a conclusion, whose other fields are complete.

    For several runs it compares two lower bounds with the upper bounds: the one that assumes a Gaussian
    trade-off curve (`conclusion.gaussian`), and the one that holds whatever the curve
    (`conclusion.assumption_free`). For a single run it compares all lower bounds.
    """
    if conclusion.is_one_run:
        return _judge_one_run(conclusion)
    doubt = conclusion.doubt
    if doubt:  # bounds hold only for independent runs
        explanation = (
            f"{doubt[0].upper()}{doubt[1:]}, which independent training runs with noise do not give. Bounds "
            "hold only for independent runs: here they show neither that this training leaks nor that it "
            "does not. Give each run a seed of its own, check that its score is computed from its own final "
            "model, and audit again."
        )
        headline = "These scores are not those of independent runs."
        return Verdict(NOTHING, "not independent runs", headline, explanation)

    # A violation that needs no assumption on the curve: by the lower bound, or by the claim's own test.
    gaussian = conclusion.gaussian
    free = conclusion.assumption_free
    broken = conclusion.exceeded(free.epsilon)  # an upper bound, or None
    if broken is not None:
        explanation = (
            f"{_claim(free, _WHATEVER)}, more than {_name_upper_bound(broken)}. {_BUG}"
            f"{_blame_others(broken, conclusion, broken.name)}"
        )
        return Verdict(VIOLATED, "violated", _state_violation(free, broken), explanation)
    if conclusion.claim_test is not None and conclusion.claim_test.refuted:
        return Verdict(VIOLATED, "violated", _VIOLATED, _explain_refutation(conclusion))
    if conclusion.is_reversed:
        return _judge_reversed(conclusion)

    # A violation, if the curve is Gaussian.
    broken = conclusion.exceeded(gaussian.epsilon)
    if broken is not None and not conclusion.refutes_gaussian:
        proven = "nothing"
        if free.epsilon >= _SHOWN:
            proven = f"at least {at_least(free.epsilon)}"
        explanation = (
            f"{_claim(gaussian, _IF_GAUSSIAN)}, more than {_name_upper_bound(broken)}. Either the curve is "
            f"not Gaussian, or there is a bug, {_blame_others(broken, conclusion, broken.name)} "
            f"Without any assumption on the curve these runs prove {proven}, which contradicts nothing."
            f"{_describe_curve_test(conclusion)} To decide: {describe_what_decides(conclusion)}."
        )
        return Verdict(VIOLATED, VIOLATED_IF_GAUSSIAN, _IF_VIOLATED, explanation)

    return _judge_leak(conclusion)


def _judge_leak(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on several runs that violate nothing: nothing is proven, or a leak.

    A refuted Gaussian curve leaves only the bound that holds whatever the curve.
    """
    gaussian = conclusion.gaussian
    free = conclusion.assumption_free
    curve = _describe_curve_test(conclusion)
    guarantee = _describe_upper_bounds(conclusion)
    is_gaussian_zero = conclusion.refutes_gaussian or gaussian.epsilon < _SHOWN
    if free.epsilon < _SHOWN and is_gaussian_zero:
        runs = str(conclusion.evidence)
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
        without = "without any assumption on the curve, these runs prove no leakage"
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
        f"{how_far}Higher has to mean in: give minus the score. As they are they say nothing about privacy."
        f"{_describe_upper_bounds(conclusion)}"
    )
    return Verdict(NOTHING, "reversed scores", "Scores are lower with the canary.", sentence)


def _judge_one_run(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on a single run, comparing each of its bounds with the smallest upper bound."""
    bounds = conclusion.bounds
    upper = conclusion.tightest
    exceeding = []
    if upper is not None:
        exceeding = [bound for bound in bounds if bound.epsilon > upper.epsilon]
    whatever_the_curve = [bound for bound in exceeding if not bound.assumes.gaussian]
    test = conclusion.claim_test
    # If some exceeding bound assumes no Gaussian curve, the verdict states that bound, since it says how much
    # leaks. Otherwise it states the refuted test of the claim, which assumes none.
    if not whatever_the_curve and test is not None and test.refuted:
        return Verdict(VIOLATED, "violated", _VIOLATED, _explain_refutation(conclusion))
    if upper is not None and exceeding:
        sentence = (
            f"{_claim_each(exceeding)} That is more than {_name_upper_bound(upper)}: there is a bug, or the "
            "upper bound is for another training."
        )
        if not whatever_the_curve:
            return Verdict(VIOLATED, VIOLATED_IF_GAUSSIAN, _IF_VIOLATED, sentence)
        largest = max(whatever_the_curve, key=lambda bound: bound.epsilon)
        return Verdict(VIOLATED, "violated", _state_violation(largest, upper), sentence)

    # No violation: reversed scores, a leak, or nothing is proven.
    if conclusion.is_reversed:
        return _judge_reversed(conclusion)
    proven = [bound for bound in bounds if bound.epsilon >= _SHOWN]
    guarantee = _describe_upper_bounds(conclusion)
    if proven:
        sentence = f"{_claim_each(proven)}{guarantee}"
        if all(bound.assumes.gaussian for bound in proven):
            return Verdict(LEAKS, "leaks, if Gaussian", _IF_LEAKS, sentence)
        return Verdict(LEAKS, "leaks", "This training leaks.", sentence)
    sentence = "There are only estimates, which are no bounds: save coins, or take more canaries."
    if bounds:
        sentence = (
            f"At {show_percent(conclusion.confidence)} confidence this run proves no leakage at delta = "
            f"{show_level(conclusion.delta)}: the lower bounds are 0. That is no proof of privacy."
        )
    return Verdict(NOTHING, "nothing proven", _NOTHING, sentence + guarantee)


def _make_headline(conclusion: Conclusion) -> str:
    """Returns the headline on a proven leak: the lower bound on epsilon next to an upper bound.

    If the upper bound on the last model is finite and the tightest, it is shown next to composition's bound.
    A larger lower bound that assumes a Gaussian curve is then added in brackets, unless the scores refute
    such a curve. Else the upper bound on all models, accounted or claimed, is shown if it is finite. The
    headline reports if these runs could not refute a claim, whatever their scores.
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
        return f"Epsilon is between {proven} and {last_model}; composition says {composition}."
    if upper_bound is None or math.isinf(upper_bound):
        return f"Proven: epsilon is at least {proven}."
    allows = f"accounting allows {at_most(upper_bound)}"
    if conclusion.is_claimed:
        allows = f"the claim allows {at_most(upper_bound)}"
        if conclusion.is_beyond_reach:
            allows = f"whatever their scores, these runs could not refute {at_most(upper_bound)}"
    return f"Proven: epsilon is at least {proven}; {allows}."


def _explain_refutation(conclusion: Conclusion) -> str:
    """Returns the sentences on a claim that its test refutes, if no bound does so whatever the curve."""
    upper = conclusion.tightest
    test = conclusion.claim_test
    assert upper is not None and test is not None
    why_refuted = "no test can have the error rates of these scores if it holds"
    if conclusion.bets_on_curve:  # only then is the e-value a gain that grows with the evidence
        why_refuted = f"bets against its trade-off curve won {test.e_value:.3g} times their stake"
    runs = "one training run"
    if test.runs != 1:
        runs = f"{test.runs:,} training runs"
    return (
        f"With {show_percent(conclusion.confidence)} confidence the claim, {_name_upper_bound(upper)}, is "
        f"refuted after {runs}: {why_refuted}, whatever the curve of this training is. {_BUG}"
        f"{_blame_others(upper, conclusion, 'claim')}"
    )


def _describe_curve_test(conclusion: Conclusion) -> str:
    """Returns the sentence, with a space before it, on the test of a Gaussian curve.

    If scores of several canaries a run have no known law, the sentence reports that nothing was tested. It is
    empty if there is no test for another reason.
    """
    curve = conclusion.curve
    if curve is None:
        if conclusion.has_tied_scores:
            return _UNTESTED
        return ""
    if curve.is_refuted:
        p_value = curve.show_p_value()
        return f" These scores refute a Gaussian curve ({p_value}): bounds that assume one do not hold."
    result = f"({curve.show_p_value()}, power {curve.power:.0%})"
    if not curve.is_doubted:
        return f" The scores are no evidence against a Gaussian curve {result}, which is no proof of one."
    return f" That the curve is Gaussian is not confirmed by so few runs {result}."


def _claim(bound: Bound, proviso: str) -> str:
    """Returns the clause that states a lower bound, with the proviso under which it holds."""
    return (
        f"With {show_percent(bound.confidence)} confidence, and {proviso}, this training leaks at least "
        f"epsilon = {at_least(bound.epsilon)} at delta = {show_level(bound.delta)}"
    )


def _claim_each(bounds: list[Bound]) -> str:
    """Returns a sentence for each of some bounds of a single run: confidence, proviso and epsilon."""
    return " ".join(f"{_claim(bound, bound.assumes.proviso)}." for bound in bounds)


def _describe_upper_bounds(conclusion: Conclusion) -> str:
    """Returns the sentence, with a space before it, on a conclusion's upper bounds."""
    tightest = conclusion.tightest
    upper = conclusion.upper_bound
    if tightest is None or upper is None:
        return " No upper bound was given to hold against it."
    # Only a finite hidden-state bound that is below the bound on all models is worth a mention next to it.
    if tightest.hidden and math.isfinite(tightest.epsilon):
        most = at_most(tightest.epsilon)
        if tightest.is_measured:
            condition = "if steps stretch distances as measured, which is not proven"
            guarantee = f"composition guarantees at most {at_most(upper)}"
            return f" The last model leaks at most {most} {condition}; {guarantee}."
        return (
            f" The hidden-state bound guarantees at most {most}, and composition {at_most(upper)}."
        )
    if conclusion.is_claimed and math.isinf(upper):
        return " The claim says nothing at this delta."
    if conclusion.is_claimed:
        return f" The claim allows at most {at_most(upper)}."
    if math.isinf(upper):
        return " There is no noise, so that accounting guarantees nothing."
    return f" Accounting guarantees at most {at_most(upper)}."


def _state_violation(bound: Bound, broken: UpperBound) -> str:
    """Returns the headline on a lower bound that exceeds an upper bound, with both numbers."""
    stated = f"accounting allows {at_most(broken.epsilon)}"
    if broken.hidden:
        stated = f"the hidden-state bound allows {at_most(broken.epsilon)}"
    if broken.assumes == GIVEN:  # the caller claims this epsilon; nothing was computed from steps
        stated = f"{at_most(broken.epsilon)} was claimed"
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
    """Returns the causes of a broken upper bound other than a bug, and how often chance accuses."""
    share = show_risk(conclusion.confidence)
    chance = f"chance alone brings a sound training here in at most {share} of audits."
    other = f"or the {name} is for another training; {chance}"
    if not broken.hidden:
        return other
    # A hidden-state bound never comes without composition's: it is not None here. Steps that are sampled
    # lower only composition's bound, which may then be the smaller.
    composition = conclusion.upper_bound or 0.0
    effect = "is exceeded too"
    if broken.epsilon < composition:
        effect = "notices nothing"
    also = f"Composition, which allows {at_most(composition)}, {effect}."
    return f"steps are less Lipschitz than was said, {other} {also}"


def describe_what_decides(conclusion: Conclusion) -> str:
    """Returns what decides between a violated guarantee and a curve that is not Gaussian.

    The lower bound that assumes a Gaussian curve exceeds an upper bound. A lower bound that holds whatever
    the curve decides if it exceeds the upper bound too.
    """
    most = conclusion.most_provable  # of as many runs, whatever the curve; None if it is unknown
    upper = conclusion.tightest
    if most is None or upper is None or most >= upper.epsilon:
        return "more runs"
    # So many runs can never prove more than the upper bound, which only a training with fewer insertions
    # lowers. If the bound is somebody's claim, somebody else trains, and can be asked.
    if conclusion.is_claimed:
        return f"ask for {BETTER_SCORES}"
    return f"more runs, or fewer insertions until the upper bound is below {at_least(most)}"
