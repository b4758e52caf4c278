"""Verdicts on audits."""

import math
from operator import attrgetter

from audit import written
from audit.conclusions.conclusion import Conclusion, UpperBound, Verdict
from audit.methods.estimate import Bound
from audit.methods.method import GIVEN
from audit.written import show_level, show_percent, show_risk

LEAKS = "leaks"
NOTHING = "nothing"
VIOLATED = "violated"
VIOLATED_IF_GAUSSIAN = "violated, if Gaussian"
_SHOWN = 0.001  # smaller lower bounds round down to 0.000
BETTER_SCORES = "more runs or scores of fresh directions"  # advice for readers who cannot train

_NO_LEAK = "No leakage is proven."
# `_name_other_reasons` completes this sentence.
_BUG = "There is a bug (in clipping, noise, randomness or the number of steps), "


def at_least(value: float) -> str:
    """Returns a lower bound rounded down to three decimals, without trailing zeros."""
    return written.short(written.at_least(value))


def at_most(value: float) -> str:
    """Returns an upper bound rounded up to three decimals, without trailing zeros; ∞ if it is infinite."""
    return written.short(written.at_most(value))


def judge(conclusion: Conclusion) -> Verdict:
    """Derives the verdict on a conclusion from its other fields.

    If scores are not in doubt and bounds exist, we first look for violations that hold for any trade-off
    curve: an exceeded upper bound or a rejected claim. Even reversed scores can prove a violation. We then
    compare the largest lower bound, which may assume a Gaussian curve, with the upper bounds.
    """
    if conclusion.doubt:
        return _judge_doubt(conclusion.doubt)
    if not conclusion.bounds:
        return _judge_estimates(conclusion)
    bounds = conclusion.bounds
    if not conclusion.is_one_run:  # other bounds are only for comparison
        bounds = (conclusion.assumption_free, conclusion.gaussian)
    any_curve_bounds = [bound for bound in bounds if not bound.assumes.gaussian]
    any_curve = max(any_curve_bounds, key=attrgetter("epsilon"))
    largest = any_curve
    if not conclusion.refutes_gaussian:  # else bounds for a Gaussian curve are invalid
        largest = max(bounds, key=attrgetter("epsilon"))

    broken = conclusion.exceeded(any_curve.epsilon)  # an upper bound below this epsilon, or None
    if broken is not None:
        return _judge_violation(conclusion, any_curve, broken)
    if conclusion.claim_test is not None and conclusion.claim_test.refuted:
        return Verdict(
            kind=VIOLATED,
            word=VIOLATED,
            headline="The guarantee is violated.",
            sentence=_explain_refutation(conclusion),
        )
    if conclusion.is_reversed:
        return _judge_reversed(conclusion)

    broken = conclusion.exceeded(largest.epsilon)
    if broken is not None:
        return _judge_if_gaussian(conclusion, any_curve, largest, broken)
    return _judge_leak(conclusion, any_curve, largest)


def _judge_doubt(doubt: str) -> Verdict:
    """Returns the verdict on scores that cannot come from independent runs; `doubt` is the reason."""
    explanation = (
        f"{doubt[0].upper()}{doubt[1:]}. Independent noisy training runs would not produce such scores. "
        "The bounds are valid only for independent runs, so these scores do not show whether this training "
        "procedure leaks. Use a different seed for each run, check that each score is "
        "computed from the final model of its own run, and audit again."
    )
    headline = "These scores do not come from independent runs."
    return Verdict(NOTHING, "not independent runs", headline, explanation)


def _judge_estimates(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on a single run that has only estimates.

    Bounds require the canaries' coin flips or the exact distribution of scores.
    """
    if conclusion.is_reversed:
        return _judge_reversed(conclusion)
    sentence = (
        "There are only estimates, not bounds: save the coin flips or use more canaries."
        f"{_describe_upper_bounds(conclusion)}"
    )
    return Verdict(NOTHING, "nothing proven", _NO_LEAK, sentence)


def _judge_violation(conclusion: Conclusion, any_curve: Bound, broken: UpperBound) -> Verdict:
    """Returns the verdict that the upper bound `broken` is violated, regardless of the trade-off curve."""
    headline = (
        f"The guarantee is violated: epsilon is at least {at_least(any_curve.epsilon)}, "
        f"but the {broken.name} allows {at_most(broken.epsilon)}."
    )
    explanation = (
        f"{_state_bound(any_curve)}, more than {_name_upper_bound(broken)}. {_BUG}"
        f"{_name_other_reasons(broken, conclusion)}"
    )
    return Verdict(kind=VIOLATED, word=VIOLATED, headline=headline, sentence=explanation)


def _judge_if_gaussian(
    conclusion: Conclusion, any_curve: Bound, gaussian: Bound, broken: UpperBound
) -> Verdict:
    """Returns the verdict if only a bound for a Gaussian curve exceeds the upper bound `broken`.

    `any_curve` is the largest lower bound for any trade-off curve.
    """
    proven = "no leakage"
    if any_curve.epsilon >= _SHOWN:
        proven = f"an epsilon of at least {at_least(any_curve.epsilon)}"
    headline = "Not rejected, but the guarantee is violated if the trade-off curve is Gaussian."
    other = _name_other_reasons(broken, conclusion, condition=" with a Gaussian curve")
    explanation = (
        f"{_state_bound(gaussian)}, more than {_name_upper_bound(broken)}. Either the curve is not "
        f"Gaussian, or there is a bug, {other} Without an assumption about the curve, "
        f"{_these_prove(conclusion)} {proven}, which the guarantee allows."
        f"{_describe_curve_test(conclusion)} To decide, use {describe_what_decides(conclusion)}."
    )
    return Verdict(LEAKS, VIOLATED_IF_GAUSSIAN, headline, explanation)


def _judge_leak(conclusion: Conclusion, any_curve: Bound, largest: Bound) -> Verdict:
    """Returns the verdict if no guarantee is violated: a leak, or no proven leakage.

    `any_curve` is the largest lower bound for any trade-off curve. `largest` may assume a Gaussian curve.
    """
    curve_test = _describe_curve_test(conclusion)
    upper_bounds = _describe_upper_bounds(conclusion)
    if any_curve.epsilon >= _SHOWN:  # else shown as 0
        leak = _state_bound(any_curve)
        if any_curve.epsilon < largest.epsilon:
            leak += f"; {_state_condition(largest)}, at least {at_least(largest.epsilon)}"
        leak += f".{curve_test}{upper_bounds}"
        return Verdict(LEAKS, "leaks", _make_headline(conclusion), leak)
    if largest.epsilon >= _SHOWN:
        headline = "This training leaks if its trade-off curve is Gaussian."
        sentence = (
            f"{_state_bound(largest)}; without an assumption about the curve, {_these_prove(conclusion)} no "
            f"leakage.{curve_test}{upper_bounds}"
        )
        return Verdict(LEAKS, "leaks, if Gaussian", headline, sentence)
    return _judge_no_leak(conclusion)


def _judge_no_leak(conclusion: Conclusion) -> Verdict:
    """Returns the verdict that no leakage is proven: all lower bounds are 0."""
    scores = f"scores ({conclusion.evidence})"
    if conclusion.has_one_canary:
        scores = f"{conclusion.runs:,} runs"
    curve_test = ""
    if conclusion.refutes_gaussian:  # else bounds are 0 even with a Gaussian curve
        curve_test = _describe_curve_test(conclusion)
    sentence = (
        f"At {show_percent(conclusion.confidence)} confidence {_these_prove(conclusion, scores)} no leakage "
        f"at delta = {show_level(conclusion.delta)}: the lower bounds are 0. This does not prove privacy: "
        f"a stronger adversary or more runs may find a leak.{curve_test}"
        f"{_describe_upper_bounds(conclusion)}"
    )
    return Verdict(NOTHING, "nothing proven", _NO_LEAK, sentence)


def _these_prove(conclusion: Conclusion, scores: str = "runs") -> str:
    """Returns "this run proves" or, for several runs, "these {scores} prove"."""
    if conclusion.is_one_run:
        return "this run proves"
    return f"these {scores} prove"


def _judge_reversed(conclusion: Conclusion) -> Verdict:
    """Returns the verdict on scores that are lower with the canary."""
    how_far = ""
    if conclusion.auc is not None:  # None if a single run has no left-out canaries
        how_far = f"The area under their ROC curve is {conclusion.auc.value:.2f}, far below 1/2. "
    sentence = (
        f"{how_far}Higher scores must mean that the canary was inserted: negate the scores. Reversed "
        "scores are not evidence about privacy."
        f"{_describe_upper_bounds(conclusion)}"
    )
    return Verdict(NOTHING, "reversed scores", "Scores are lower with the canary.", sentence)


def _make_headline(conclusion: Conclusion) -> str:
    """Returns the headline for a proven leak. For several runs, it compares lower and upper bounds."""
    if conclusion.is_one_run:
        return "This training leaks."
    proven = at_least(conclusion.epsilon)
    all_models = conclusion.upper_bound  # from composition, or a stated claim
    tightest = conclusion.tightest
    if tightest is not None and tightest.last_model_only and math.isfinite(tightest.epsilon):
        return _make_last_model_headline(conclusion, tightest)
    if all_models is None or math.isinf(all_models):
        return f"Proven: epsilon is at least {proven}."
    allows = f"accounting allows {at_most(all_models)}"
    if conclusion.is_claimed:
        allows = f"the claim allows {at_most(all_models)}"
        if conclusion.is_beyond_reach:
            allows = f"no scores from so few runs could reject {at_most(all_models)}"
    return f"Proven: epsilon is at least {proven}; {allows}."


def _make_last_model_headline(conclusion: Conclusion, last_model: UpperBound) -> str:
    """Returns the headline for a proven leak if there is an upper bound for the last model."""
    proven = at_least(conclusion.epsilon)
    gaussian = conclusion.gaussian
    if gaussian.holds and gaussian.epsilon > conclusion.epsilon:
        proven += f" ({at_least(gaussian.epsilon)} if the curve is Gaussian)"
    most = at_most(last_model.epsilon)
    if last_model.is_measured:  # the steps' Lipschitz constants
        most += " if steps stretch as measured"
    all_models = conclusion.upper_bound
    assert all_models is not None  # the last model's bound also comes from a claim
    return f"Epsilon is between {proven} and {most}; composition allows {at_most(all_models)}."


def _explain_refutation(conclusion: Conclusion) -> str:
    """Explains why a claim is rejected although no lower bound for any curve exceeds it."""
    upper = conclusion.tightest
    test = conclusion.claim_test
    assert upper is not None and test is not None
    why_refuted = "under the claim, no test could achieve the error rates of these scores"
    # Only the e-values of bets are informative. Comparing bounds yields only 0 or 1 / (1 - confidence).
    if conclusion.bets_on_curve:
        why_refuted = (
            f"bets against its trade-off curve multiplied their stake by {test.e_value:.3g}"
        )
    runs = written.counted(test.runs, "training run")
    return (
        f"With {show_percent(conclusion.confidence)} confidence, {_name_upper_bound(upper)} is "
        f"rejected after {runs}: {why_refuted}. This needs no assumption about the curve. {_BUG}"
        f"{_name_other_reasons(upper, conclusion)}"
    )


def _describe_curve_test(conclusion: Conclusion) -> str:
    """Returns a sentence, with a leading space, about the Gaussian-curve test, or ""."""
    curve = conclusion.curve
    if curve is None:
        if conclusion.scores_may_depend:
            return " The curve was not tested: scores from one run may depend on each other."
        return ""
    result = f"({curve.show_test()})"
    if curve.is_refuted:
        return f" These scores reject a Gaussian curve {result}, so bounds that assume one are invalid."
    if not curve.is_underpowered:
        return f" There is no evidence against a Gaussian curve {result}; this does not prove it."
    return f" These runs are too few to confirm a Gaussian curve {result}."


def _state_bound(bound: Bound) -> str:
    """Returns a clause that states a lower bound and its condition."""
    return (
        f"With {show_percent(bound.confidence)} confidence and {_state_condition(bound)}, this training "
        f"leaks at least epsilon = {at_least(bound.epsilon)} at delta = {show_level(bound.delta)}"
    )


def _state_condition(bound: Bound) -> str:
    """Returns a phrase that states when a lower bound is valid."""
    if bound.assumes.proviso:
        return bound.assumes.proviso
    if bound.assumes.gaussian:
        return "if the trade-off curve is Gaussian"
    return "for any trade-off curve"


def _describe_upper_bounds(conclusion: Conclusion) -> str:
    """Returns a sentence, with a leading space, about the upper bounds."""
    tightest = conclusion.tightest
    upper = conclusion.upper_bound
    if tightest is None or upper is None:
        return " No upper bound was given to compare with."
    if tightest.last_model_only and math.isfinite(tightest.epsilon):
        most = at_most(tightest.epsilon)
        if tightest.is_measured:
            return (
                f" The last model leaks at most {most} if steps stretch distances as measured (not "
                f"proven); composition guarantees at most {at_most(upper)}."
            )
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


def _name_upper_bound(upper: UpperBound) -> str:
    """Returns an upper bound with its source, such as "the 3.1 that accounting guarantees".

    For the last model, the source is the bound's name: "the 3.1 of the hidden-state bound".
    """
    source = "that accounting guarantees"
    if upper.assumes == GIVEN:  # the user stated epsilon itself
        source = "stated in the claim"
    if upper.last_model_only:
        source = f"of the {upper.name}"
    return f"the {at_most(upper.epsilon)} {source}"


def _name_other_reasons(broken: UpperBound, conclusion: Conclusion, condition: str = "") -> str:
    """Returns the end of "There is a bug, ... or ...": other reasons why leakage may exceed `broken`.

    `condition` follows the word "implementation". For the last model, the reasons include larger Lipschitz
    constants, and a second sentence states whether composition is also violated.
    """
    other = (
        f"or the {broken.name} is for a different training run (perhaps it counts on sampling, but canaries "
        "are inserted at fixed steps)"
    )
    if not conclusion.is_one_run:  # its several bounds fail more often
        risk = show_risk(conclusion.confidence)
        other += (
            f"; a correct implementation{condition} gets this verdict by chance in at most {risk} of "
            "audits"
        )
    if not broken.last_model_only:
        return f"{other}."
    composition = conclusion.upper_bound
    assert composition is not None  # a claim provides both bounds
    effect = "is also violated"
    if broken.epsilon < composition:  # `judge` chooses the largest violated bound
        effect = "is not rejected"
    return (
        f"steps have larger Lipschitz constants than stated, {other}. Composition, which allows "
        f"{at_most(composition)}, {effect}."
    )


def describe_what_decides(conclusion: Conclusion) -> str:
    """Returns the evidence that would distinguish a violated guarantee from a non-Gaussian curve."""
    most = conclusion.most_provable  # for any curve; None if unknown
    upper = conclusion.tightest
    if most is None or upper is None or most >= upper.epsilon:
        return "more runs"
    # These runs cannot prove more than the upper bound. Fewer insertions would lower an accountant's bound,
    # but not a stated claim.
    if conclusion.is_claimed:
        return BETTER_SCORES
    return f"more runs, or fewer insertions for an upper bound below {at_least(most)}"
