"""The table of an audit's bounds for a terminal of 80 columns, and remarks on them.

Remarks say, for instance, how many looks the bounds are the best of, and whether bounds may be 0 for a reason
that has nothing to do with privacy.
"""

import dataclasses
import math
import textwrap
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from audit.claims.linear_losses import EXPECTED
from audit.conclusions.conclusion import (
    MEASURED_LABEL,
    Conclusion,
    Curve,
    Looks,
    assumption_of,
)
from audit.conclusions.verdicts import (
    VIOLATED,
    describe_sampled,
    describe_what_decides,
    name_better_scores,
)
from audit.methods import curves, lifted
from audit.methods.estimate import Bound, Finding
from audit.methods.level import Level, round_confidence, show_level
from audit.methods.method import Assumption, NoiseFloor
from audit.methods.one_run_bounds import LEAST_COINS, OF_COINS
from audit.report.table import Column, Table, at_least, at_most, number

_COUNTS = ("FP/out", "FN/in")  # the heads of the columns of errors, with one canary a run
_RATES = ("FPR", "FNR")  # the same heads with several canaries a run
_UNTESTED = "            (not tested here: scores of one run may depend on each other)"
_WITHDRAWN = "withdrawn: canaries that were out have not the law of {} (p < 1e-06)"
_NO_HIDDEN_STATE = "no bound but composition"
_FEW = 100  # with fewer scores in a world, a remark says what they can prove at most
_WIDTH = 80  # columns of a terminal
_NOTE_INDENT = 12  # columns before the text of a note, for its first word
_SHOWN = 0.0005  # smaller values of epsilon show as 0 with three decimals
_NOTES_ON_ESTIMATES = """\
estimates are no bounds; error: standard error if canaries are independent;
floor: mean (95% quantile) where nothing leaks"""
_MARGIN = 10  # factor on measured constants' excess over 1, to show what the bound would then be
_LARGEST_E_VALUE = 1e6  # larger e-values are shown as "above" it
_LEAST_E_VALUE = 0.01  # smaller e-values are shown as "below" it
_GAUSSIAN = "Gaussian: and a Gaussian trade-off curve"


def show_floor(floor: NoiseFloor) -> str:
    """Returns the mean and the 95% quantile of an estimate where nothing leaks: "0.100 (0.250)"."""
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


# The tables of a single run.
_ESTIMATE_COLUMNS = (
    Column(None, lambda row: row.method, "estimate", width=24, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", number(".3f"), 9),
    Column(None, lambda row: row.standard_error, "error", number(".3f"), 9),
    Column(
        None,
        lambda row: row.noise_floor,
        "  floor",
        lambda floor: f"  {show_floor(floor)}",
        left=True,
    ),
)
_BOUND_COLUMNS = (
    Column(None, lambda row: row.method, "bound", width=16, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", at_least, 8),
    Column(None, lambda row: row.mu, "mu", at_least, 6),
    Column(None, lambda row: row.counted, " counts", " {}".format, 30, left=True),
    Column(None, lambda row: row.assumes.word, "assumes", left=True),
)


def bounds_table(conclusion: Conclusion) -> str:
    """Returns the text table of a conclusion's bounds, with notes and the verdict below it.

    The rows are lower bounds, beginning with those on which the verdict rests; upper bounds; and values that
    are no bounds. Lower bounds are rounded down, upper bounds up. For a single run estimates come first.
    """
    if conclusion.is_one_run:
        return _make_one_run_table(conclusion)
    # With a single canary a run, errors are shown as counts over scores; else as rates.
    has_many_canaries = not conclusion.has_one_canary
    title = f"lower bounds on epsilon at {Level(conclusion.delta, conclusion.confidence)}"
    before = [title]  # the lines above the table
    error_names = _COUNTS
    show_share = _show_counts
    if has_many_canaries:
        before.append(str(conclusion.evidence))
        error_names = _RATES
        show_share = _show_rate

    # The rows: method, epsilon, mu, threshold, two cells of errors, and what is assumed.
    rows = [_make_row(bound, show_share) for bound in conclusion.ranked()]
    # Words on how a bound from measured Lipschitz constants depends on them; empty without such a bound.
    margin = _describe_margin(conclusion)
    for upper in conclusion.upper_bounds:
        # Only the hidden-state bound, on what the last model leaks, shows its mu.
        mu = at_most(upper.mu or 0.0) if upper.hidden else ""
        # A measured bound's name says what it assumes: the margin takes the place of that cell.
        assumes = "" if upper.hidden and margin else upper.assumes.word
        rows.append((upper.label, at_most(upper.epsilon), mu, "", "", "", assumes))
    rows += [_make_row(estimate, show_share) for estimate in conclusion.estimates]
    # No bound: what the last model would leak if losses were linear.
    if conclusion.expected is not None:
        rows.append(("linear_losses", at_most(conclusion.expected), "", "", "", "", EXPECTED.word))

    notes = [
        *describe_claim(conclusion),
        *_explain_words(conclusion),
        *_describe_curve(conclusion),
        *_describe_attack(conclusion),
    ]
    notes += _compare_with_upper_bounds(conclusion)
    notes += [textwrap.fill(remark, _WIDTH) for remark in remarks(conclusion)]
    notes.append(show_verdict(conclusion))
    header = ("method", "epsilon", "mu", "threshold", *error_names, "assumes")
    # A row is a tuple of cells: each column takes the cell at its own place.
    columns = [
        Column(None, itemgetter(place), name, left=True) for place, name in enumerate(header)
    ]
    table = Table(columns, rows, before=before, after=notes, aside=_choose_aside(margin))
    # A table that is too wide for a terminal gets narrower gaps between its columns.
    text = table.text()
    if max(len(line) for line in text.splitlines()) > _WIDTH:
        text = dataclasses.replace(table, gap=" ").text()
    return text


def show_verdict(conclusion: Conclusion) -> str:
    """Returns the last line below a table: the verdict's headline."""
    headline = conclusion.verdict.headline
    indent = _NOTE_INDENT * " "
    return textwrap.fill(
        f"{'verdict:':<{_NOTE_INDENT}}{headline}", _WIDTH, subsequent_indent=indent
    )


def _describe_margin(conclusion: Conclusion) -> str:
    """Returns what a measured bound on the last model would be if steps expanded 10 times as much.

    Empty without a measured bound.
    """
    state = conclusion.hidden_state
    if state is None or not state.runs:
        return ""
    return f"({state.describe_margin(_MARGIN)})"


def _choose_aside(margin: str) -> Callable[[tuple[str, ...]], str]:
    """Returns a function that gives the text beside a table's row: the margin for a measured bound."""

    def choose(row: tuple[str, ...]) -> str:
        """Returns the margin if a row's first cell, the method, is the measured bound's; else ""."""
        method, *_ = row
        return margin if method == MEASURED_LABEL else ""

    return choose


def describe_claim(conclusion: Conclusion) -> list[str]:
    """Returns lines for below a table: whether the claimed guarantee is refuted, and how sharp its test is.

    The list is empty where nothing is claimed. Where a claim is not tested, it is empty for several runs; for
    a single run a line says why.
    """
    indent = _NOTE_INDENT * " "
    lines: list[str] = []
    for statement in _make_statements_on_claim(conclusion):
        # The first line begins with the word "claim:", and all others are indented by as much.
        first = indent if lines else f"{'claim:':<{_NOTE_INDENT}}"
        lines += textwrap.wrap(statement, _WIDTH, initial_indent=first, subsequent_indent=indent)
    return lines


def describe_claim_in_sentences(conclusion: Conclusion) -> list[str]:
    """Returns, in a list, a paragraph on whether the claimed guarantee is refuted and how sharp its test is.

    It has the statements of `describe_claim`, as sentences. The list is empty where there are none.
    """
    statements = _make_statements_on_claim(conclusion)
    if not statements:
        return []
    result, *others = statements  # at most one other, on the test's sharpness
    sentences = [f"The claim is {result}."]
    for statement in others:
        sentences.append(f"{statement.capitalize()}.")
    return [" ".join(sentences)]


def _make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns clauses on the test of the claimed guarantee: its result, and how sharp the test is.

    The second clause says which noise, weaker than stated, such runs would have refuted, and with which
    probability. It is left out where that is unknown and where the claim is refuted.

    The list is empty where nothing is claimed. Where a claim is not tested, it is empty for several runs; for
    a single run the only clause says why.
    """
    test = conclusion.claim_test
    if test is None:
        return _explain_untested_claim(conclusion)
    runs = f"{test.runs:,} training run{'s' if test.runs > 1 else ''}"
    result = f"refuted by {runs}" if test.refuted else f"not refuted by {runs}"
    if conclusion.bets_on_curve:  # else the e-value says no more than whether the claim is refuted
        result += f" (e-value {show_e_value(test.e_value)})"
    # `test.seen` is the weaker noise of the second clause.
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100  # rounded down
    sharpness = (
        f"noise of {test.seen.noise:g} of what is stated would have been refuted "
        f"with probability {probability:g}"
    )
    return [result, sharpness]


def _explain_untested_claim(conclusion: Conclusion) -> list[str]:
    """Returns, in a list, a clause on why a claim is not tested.

    Reversed scores test none. With a single run, a test needs the exact law of a cosine where nothing leaks,
    or enough coins to guess. Here that law (the null) is fitted to unobserved cosines, and there are too few
    coins or pairs of cosines. The list is empty for other scores of several runs, and where no finite upper
    bound is claimed.
    """
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon):
        return []
    if conclusion.is_reversed:
        return ["not tested: scores are reversed"]
    if not conclusion.is_one_run:
        return []
    return [f"not tested: the null is fitted, and there are no {LEAST_COINS} pairs or coins"]


def show_e_value(e_value: float) -> str:
    """Returns an e-value rounded down to two significant digits, or "above 1e+06", or "below 0.01"."""
    if e_value > _LARGEST_E_VALUE:
        return f"above {_LARGEST_E_VALUE:g}"
    if e_value < _LEAST_E_VALUE:
        return f"below {_LEAST_E_VALUE:g}"
    decimals = 1 - math.floor(math.log10(e_value))  # that show two significant digits
    # 1e-9 is added, since float rounding may put a product just below a whole number.
    scaled = math.floor(e_value * 10**decimals + 1e-9)
    return f"{scaled / 10**decimals:g}"


def _describe_attack(conclusion: Conclusion) -> list[str]:
    """Returns lines on the accuracy and the true-positive rates of guesses by the scores.

    The rates are those at 1% and 0.1% false positives. A rate is left out where there are too few scores out
    for a false positive.
    """
    if conclusion.guesses is None:
        return []
    accuracy, *true_positive_rates = conclusion.guesses.attack
    lines = [f"{'attack:':<12}guesses right in {_show_interval(accuracy)}"]
    for rate, allowed in zip(true_positive_rates, ("1%", "0.1%"), strict=True):
        if rate is not None:
            lines.append(
                f"            finds {_show_interval(rate)} of those in at {allowed} false positives"
            )
    return lines


def _show_interval(rate: curves.Rate) -> str:
    """Returns a rate with its confidence limits in words: "61.0% (55.0% to 67.0%)"."""
    return f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"


def _explain_words(conclusion: Conclusion) -> list[str]:
    """Returns lines that explain the words in the table's last column.

    The Gaussian curve comes last, since the lines on its test follow.
    """
    assumptions: list[Assumption] = [assumption_of(row) for row in conclusion.rows()]
    assumptions += [bound.assumes for bound in conclusion.upper_bounds]
    if conclusion.expected is not None:
        assumptions.append(EXPECTED)
    notes = []
    if conclusion.sampled is not None:
        notes.append(_make_note("sampler", describe_sampled(conclusion.sampled)))
    if conclusion.uncovered:
        notes.append(_make_note("last model", f"{_NO_HIDDEN_STATE}: {conclusion.uncovered}"))
    # Each assumption once; False sorts before True, so that the Gaussian curve comes last.
    ordered = sorted(dict.fromkeys(assumptions), key=lambda assumption: assumption.gaussian)
    for assumption in ordered:
        if assumption.note:
            notes.append(_make_note(assumption.word, assumption.note))
    # For scores that may depend on each other the curve is not tested, and a line says so.
    if conclusion.has_tied_scores:
        notes.append(_UNTESTED)
    return notes


def _make_note(word: str, note: str) -> str:
    """Returns a note below the table: a word, then its explanation, indented and wrapped."""
    text = f"{word + ':':<{_NOTE_INDENT}}{note}"
    return textwrap.fill(text, _WIDTH, subsequent_indent=_NOTE_INDENT * " ")


def look_rows(conclusion: Conclusion) -> str:
    """Returns the last look's bounds as a row of text; if it is the first look, a header comes before it.

    A look is a conclusion at a number of runs that was declared beforehand, and `conclusion` has such looks.
    """
    looks = conclusion.looks
    assert looks is not None
    last = looks.taken[-1]
    lines = []
    if len(looks.taken) == 1:
        title = f"epsilon at delta {show_level(conclusion.delta)}; each look's bounds hold at confidence "
        names = "".join(f"{bound.method:>17}" for bound in last.bounds)
        header = f"{'look':<8}{'runs':>10}{names}"
        each = show_level(round_confidence(looks.confidence))
        lines += [f"{title}{each}", header, "-" * len(header)]
    place = f"{looks.number(last)} of {len(looks.schedule)}"
    values = "".join(f"{at_least(bound.epsilon):>17}" for bound in last.bounds)
    lines.append(f"{place:<8}{last.runs:>10}{values}")
    return "\n".join(lines)


def _describe_curve(conclusion: Conclusion) -> list[str]:
    """Returns lines on the Gaussian curve's test, and on why the curve should be Gaussian.

    The list is empty if the curve is not tested.
    """
    curve = conclusion.curve
    if curve is None:
        return []
    lines = [f"{describe_curve_test(curve)}: {explain_curve_test(curve, conclusion)}"]
    if conclusion.reason:
        lines.append(conclusion.reason)
    return [" " * _NOTE_INDENT + line for line in lines]


def describe_curve_test(curve: Curve) -> str:
    """Returns the result of the Gaussian curve's test in words: "refuted (p < 1e-06)"."""
    if curve.is_refuted:
        return f"{curve.status} ({curve.show_p_value()})"
    return f"{curve.status} ({curve.show_p_value()}, power {curve.power:.0%})"


def explain_curve_test(curve: Curve, conclusion: Conclusion) -> str:
    """Returns what follows from the test of whether the trade-off curve is Gaussian.

    If the test has too little power, this is how many runs would give it enough.
    """
    if curve.is_refuted:
        return f"ignore these rows, only {conclusion.assumption_free.method} holds"
    if not curve.is_doubted:
        return "no evidence against it"
    runs = curve.deciding_runs
    if runs is None:  # 20 times is the most that is tried
        return "20 times as many runs would not tell"
    return f"{runs:,} runs would decide"


def _compare_with_upper_bounds(conclusion: Conclusion) -> list[str]:
    """Returns lines, for below the table, that compare lower bounds with upper bounds.

    They say that a lower bound exceeds an upper bound, or that the claim is refuted, and what that means; or
    that no result of so many runs could have contradicted the upper bound. Mostly the list is empty.
    """
    if conclusion.doubt:  # bounds say nothing if the runs are not independent
        return []
    free = conclusion.assumption_free  # the bound that holds whatever the curve
    broken = conclusion.exceeded(free.epsilon)  # an upper bound, or None
    if broken is not None:
        return [f"{free.method} exceeds the {broken.name}: the guarantee is violated"]

    test = conclusion.claim_test
    if test is not None and test.refuted:
        return ["the claimed trade-off curve is refuted: the guarantee is violated"]
    gaussian = conclusion.gaussian
    broken_if_gaussian = conclusion.exceeded(gaussian.epsilon)
    if broken_if_gaussian is not None and not conclusion.refutes_gaussian:
        name = broken_if_gaussian.name
        message = f"{gaussian.method} exceeds the {name}: violated, or the curve is not Gaussian"
        decision = f"to decide: {describe_what_decides(conclusion)}"
        return [*textwrap.wrap(message, _WIDTH), decision]
    return textwrap.wrap(explain_too_few_runs(conclusion), _WIDTH)


def explain_too_few_runs(conclusion: Conclusion) -> str:
    """Returns a sentence on runs that are too few to refute the smallest upper bound, whatever they show.

    It says what they can prove at most, and what to do. It is empty where they are enough, where there is no
    finite upper bound, and where a guarantee is violated or the scores can prove nothing at all.
    """
    # Other remarks say what is wrong with such scores.
    if conclusion.doubt or conclusion.is_reversed:
        return ""
    if not conclusion.is_beyond_reach or conclusion.verdict.kind == VIOLATED:
        return ""
    upper = conclusion.tightest
    most = conclusion.most_provable  # the epsilon that would be proven if no guess were wrong
    assert upper is not None and most is not None  # else it would not be beyond reach
    runs = f"{len(conclusion.scores_in) + len(conclusion.scores_out):,} runs"
    if conclusion.is_claimed:
        # Only scores and a claim are given: the reader may train nothing, but can ask for other scores.
        advice = f"ask for {name_better_scores(conclusion)}"
    elif most <= 0:
        # So few runs prove nothing, and would contradict no upper bound, however small.
        advice = "train more runs"
    else:
        # Both make the upper bound smaller, until as many runs could contradict it.
        advice = "take fewer insertions or a larger sigma to look for bugs"
    return (
        f"{runs} prove at most {at_most(most)} whatever the curve, so that none could contradict "
        f"the {upper.name} {at_most(upper.epsilon)}: {advice}"
    )


def _make_row(finding: Finding, show_share: Callable[[int, int], str]) -> tuple[str, ...]:
    """Returns the cells of a lower bound or an estimate: method, epsilon, mu, threshold, errors, assumption.

    Args:
      finding: the bound or estimate.
      show_share: returns a cell's text, given a number of errors and the number of scores.
    """
    # The exact rate, where a known law of the scores gives it and nothing is counted.
    if finding.false_positive_rate is not None:
        false_positives = f"{finding.false_positive_rate:.1e}"
    else:
        false_positives = show_share(finding.false_positives, finding.n_out)
    mu = ""
    if finding.mu is not None:
        mu = at_least(finding.mu)
    assumption = assumption_of(finding).word
    if isinstance(finding, Bound) and not finding.holds:
        assumption = "REFUTED"
    return (
        finding.method,
        at_least(finding.epsilon),
        mu,
        f"{finding.threshold:z.4g}",  # z: without the minus sign of -0
        false_positives,
        show_share(finding.false_negatives, finding.n_in),
        assumption,
    )


def _show_counts(count: int, scores: int) -> str:
    """Returns a number of errors and the number of scores: "3/100"."""
    return f"{count}/{scores}"


def _show_rate(count: int, scores: int) -> str:
    """Returns errors over scores in percent, at most 100%.

    Where coins decide which canaries are in, half of all canaries count as the scores of each world. The
    errors of a world can exceed that half.
    """
    return f"{min(count / scores, 1):.2%}"


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns sentences on what a reader has to know beside the table; often there are none.

    For a single run they report cosines of the wrong sign, that there is no bound, and whether cosines are
    normal. For several runs they report declared looks, scores that are all equal, scores of the wrong sign,
    too few scores to prove much, methods that need more canaries a run, and the conclusion's own notes.
    """
    if conclusion.is_one_run:
        return _remark_on_one_run(conclusion)
    lines = []
    if conclusion.looks is not None:
        lines.append(_describe_looks(conclusion.looks, conclusion.confidence))

    doubt = conclusion.doubt
    equal = []
    for name, scores in (("in", conclusion.scores_in), ("out", conclusion.scores_out)):
        if np.ptp(scores) == 0:
            equal.append(name)
    if doubt:
        lines.append(f"these scores are not those of independent runs: {doubt}")
    elif equal:
        lines.append(
            f"all scores {' and '.join(equal)} are equal: does each run have noise of its own?"
        )
    return [*lines, *conclusion.notes, *_explain_zeros(conclusion)]


def _describe_looks(looks: Looks, confidence: float) -> str:
    """Returns a sentence on which of the declared looks were taken, and at which confidence they hold.

    A look is a conclusion at a number of runs that was declared beforehand.

    Args:
      looks: the declared looks, those that were taken, and the confidence of each.
      confidence: the confidence at which the bounds of all looks hold at once.
    """
    count = len(looks.schedule)  # of all declared looks
    words = f"the best of {len(looks.taken)} of {count} declared looks"
    if len(looks.taken) == 1:
        words = f"look {looks.number(looks.taken[0])} of {count} declared"
    each = show_level(round_confidence(looks.confidence))
    return f"{words}; each holds at {each}, all at once at {show_level(confidence)}"


def _explain_zeros(conclusion: Conclusion) -> list[str]:
    """Returns a sentence, in a list, on a reason other than privacy for bounds of 0; empty without a reason.

    Reasons are scores of the wrong sign, canaries out whose scores do not have the law that they should have,
    too few scores, and too few canaries a run for some methods.
    """
    if conclusion.is_reversed and conclusion.guesses is not None:
        area = conclusion.guesses.auc
        return [
            f"scores are lower with the canary (AUC {area.value:.2f}): did you mean minus the score?"
        ]
    if conclusion.law_is_known:
        if conclusion.assumption_free.holds:
            return []
        # The scores of canaries out refute that law, on which all bounds rest.
        return [_WITHDRAWN.format("fresh draws" if conclusion.fresh.draws else "directions")]
    if not conclusion.has_one_canary:
        fewest = min(conclusion.evidence.canaries)  # of the canaries a run of both worlds
        return _name_methods_of_more_canaries(fewest)

    # A single canary a run. The remark is for few scores whose bounds are shown as 0, with three decimals.
    n_in = len(conclusion.scores_in)
    n_out = len(conclusion.scores_out)
    is_leak_shown = max(conclusion.gaussian.epsilon, conclusion.assumption_free.epsilon) >= _SHOWN
    # With an upper bound the table itself says what these runs prove at most.
    has_upper_bound = conclusion.tightest is not None
    if has_upper_bound or is_leak_shown or min(n_in, n_out) >= _FEW:
        return []
    most = conclusion.most_provable
    assert most is not None  # as for any runs of a single canary
    provable = at_most(most)
    return [
        f"{n_in} and {n_out} runs prove at most epsilon = {provable} whatever the curve: run more"
    ]


def _name_methods_of_more_canaries(fewest: int) -> list[str]:
    """Returns, in a list, a line on methods that need more canaries a run than there are; empty without any.

    A method of order L uses the L-th moment of a run's errors, which takes L canaries a run.

    Args:
      fewest: the number of canaries a run that there are, in the world that has fewer.
    """
    orders = sorted(
        {method.canaries for method in lifted.METHODS.values() if method.canaries > fewest}
    )
    if not orders:
        return []
    needed = " and ".join(str(order) for order in orders)
    return [f"methods of order {needed} need so many canaries a run, here: {fewest}"]


def _make_one_run_table(conclusion: Conclusion) -> str:
    """Returns the text tables of a single run: estimates, if it has cosines; bounds; and notes on both."""
    title = f"one run: epsilon at {Level(conclusion.delta, conclusion.confidence)}"
    upper_lines = []
    for upper in conclusion.upper_bounds:
        # 37 blanks in place of the columns of mu (6) and counts (30) and the gap between them.
        upper_lines.append(
            f"{upper.name:<16} {at_most(upper.epsilon):>8} {'':<37} {upper.assumes.word}"
        )
    bounds = Table(
        _BOUND_COLUMNS, conclusion.bounds, after=upper_lines, gap=" ", rule=_WIDTH
    ).text()
    notes = [
        *describe_claim(conclusion),
        *_explain_words_of_one_run(conclusion),
        *remarks(conclusion),
        show_verdict(conclusion),
    ]
    cosines = conclusion.one_run.cosines
    if cosines is None:
        # There are no estimates, whose table has the head otherwise.
        count = sum(conclusion.evidence.canaries)
        counts_line = f"{count:,} canaries, each in or out by a coin of its own"
        return "\n".join([title, counts_line, "", bounds, "", *notes])

    observed, unobserved, dimension = cosines
    counts_line = (
        f"{len(observed):,} observed canaries; null: the cosine's exact law in R^{dimension:,}"
    )
    if len(unobserved):
        counts = f"{len(observed):,} observed canaries, {len(unobserved):,} unobserved"
        counts_line = f"{counts}; null: fitted to the unobserved"
    before = (title, counts_line)
    rows = conclusion.estimates
    estimates = Table(_ESTIMATE_COLUMNS, rows, before=before, gap=" ", rule=_WIDTH).text()
    return "\n".join([estimates, "", bounds, "", *_NOTES_ON_ESTIMATES.splitlines(), *notes])


def _explain_words_of_one_run(conclusion: Conclusion) -> list[str]:
    """Returns lines that explain the words in the last column of a single run's table.

    The words of bounds from cosines come first, then those of bounds from coins, then the Gaussian curve.
    """
    ranked = sorted(conclusion.bounds, key=lambda bound: bound.method in OF_COINS)
    notes = []
    for assumption in dict.fromkeys(bound.assumes for bound in ranked):
        if not assumption.gaussian:
            notes.append(f"{assumption.word}: {assumption.note}")
    if any(bound.assumes.gaussian for bound in ranked):
        notes.append(_GAUSSIAN)
    return notes


def _remark_on_one_run(conclusion: Conclusion) -> list[str]:
    """Returns remarks on a single run: the conclusion's own notes, scores of the wrong sign, no bound, a test
    of normality.
    """
    lines = list(conclusion.notes)
    cosines = conclusion.one_run.cosines
    if conclusion.is_reversed:
        if cosines is None:
            lines.append("scores are lower with the canary: did you mean minus the score?")
        else:
            lines.append("cosines are lower than the null's: did you mean minus the displacement?")
    if cosines is not None and not conclusion.bounds:
        lines.append(
            f"no bound: save coins (scores with presence), or at least {LEAST_COINS} observed cosines "
            f"and as many unobserved (here {len(cosines.observed)} and {len(cosines.unobserved)})"
        )
    test = conclusion.normality
    if test is not None:
        level = "not rejected"
        if test.rejected_at is not None:
            level = f"rejected at {test.rejected_at:.3g}"
        critical_at_5_percent = test.critical[2]  # of the levels 15%, 10%, 5%, 2.5% and 1%
        values = f"Anderson-Darling {test.statistic:.3f}, 5%: {critical_at_5_percent:.3f}"
        lines.append(f"normal cosines: {level} ({values})")
    return lines
