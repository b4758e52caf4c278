"""The table of an audit's bounds for a terminal of 80 columns, and remarks on them.

Remarks say which looks bounds are the best of, and whether they may be 0 for a reason that has nothing to do
with privacy.
"""

import math
import textwrap
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from audit.claims.linear_losses import EXPECTED
from audit.conclusions.conclusion import (
    MEASURED_LABEL,
    Conclusion,
    Looks,
    assumption_of,
    find_doubt,
)
from audit.evidence.one_run import Cosines
from audit.laws import cosine_law
from audit.methods import curves, estimate, lifted
from audit.methods.estimate import Bound, Finding
from audit.methods.method import Assumption, NoiseFloor
from audit.methods.one_run_bounds import LEAST_COINS, OF_COINS
from audit.report.table import Column, Table, at_least, at_most, number
from audit.report.verdicts import describe_sampled, describe_what_decides, is_reversed, verdict

_COUNTS = ("FP/out", "FN/in")  # the heads of the columns of errors, of a single canary a run
_RATES = ("FPR", "FNR")  # of several
_UNTESTED = "            (not tested here: scores of one run may depend on each other)"
_WITHDRAWN = "withdrawn: canaries that were out have not the law of {} (p < 1e-06)"
_NO_HIDDEN_STATE = "no bound but composition"
_FEW = 100  # scores of a world, below which a remark says what they can prove at most
_WIDTH = 80  # columns
_NOTE_INDENT = 12  # columns
_SHOWN = 0.0005  # three decimals show 0 below it
_CLEARLY = 4  # standard errors below the null
_ESTIMATES = """\
estimates are no bounds; error: standard error if canaries are independent;
floor: mean (95% quantile) where nothing leaks"""
_MARGIN = 10  # times a measured excess over 1, in the row of the bound that it gives
_LARGEST_E_VALUE = 1e6  # beyond both an e-value is shown as "above" or "below"
_LEAST_E_VALUE = 0.01
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
    """Returns the table of a conclusion's bounds, and remarks below it.

    The rows are lower bounds, that on which a verdict rests first; upper bounds; and values that are no
    bounds. Lower bounds are rounded down, upper bounds up. For a single run estimates come first.
    """
    if conclusion.is_one_run:
        return _make_one_run_table(conclusion)
    has_many_canaries = not conclusion.has_one_canary
    title = f"lower bounds on epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    before = [title]
    errors = _COUNTS
    show_share = _show_counts
    if has_many_canaries:
        before.append(str(conclusion.evidence))
        errors = _RATES
        show_share = _show_rate

    rows = [_make_row(bound, show_share) for bound in conclusion.ranked()]
    margin = _describe_margin(conclusion)
    for upper in conclusion.upper_bounds:
        mu = at_most(upper.mu or 0.0) if upper.hidden else ""
        # A measured bound says so in its name: in place of what it assumes is how much room there is.
        assumes = "" if upper.hidden and margin else upper.assumes.word
        rows.append((upper.label, at_most(upper.epsilon), mu, "", "", "", assumes))
    rows += [_make_row(estimate, show_share) for estimate in conclusion.estimates]
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
    notes.append(_show_verdict(conclusion))
    header = ("method", "epsilon", "mu", "threshold", *errors, "assumes")
    columns = [
        Column(None, itemgetter(place), name, left=True) for place, name in enumerate(header)
    ]
    table = Table(columns, rows, before=before, after=notes, aside=_choose_aside(margin))
    return table.text()


def _show_verdict(conclusion: Conclusion) -> str:
    """Returns the last line below a table, the verdict's headline, as on the page."""
    headline = verdict(conclusion).headline
    indent = _NOTE_INDENT * " "
    return textwrap.fill(
        f"{'verdict:':<{_NOTE_INDENT}}{headline}", _WIDTH, subsequent_indent=indent
    )


def _describe_margin(conclusion: Conclusion) -> str:
    """Returns what a measured bound on the last model would be with a margin; empty without such a bound."""
    state = conclusion.hidden_state
    if state is None or not state.runs:
        return ""
    return f"({state.describe_margin(_MARGIN)})"


def _choose_aside(margin: str) -> Callable[[tuple[str, ...]], str]:
    """Returns the function that gives the remark beside a table's row: the margin of a measured bound."""

    def choose(row: tuple[str, ...]) -> str:
        return margin if row[0] == MEASURED_LABEL else ""

    return choose


def describe_claim(conclusion: Conclusion) -> list[str]:
    """Returns lines on the test of the claim and what it would have seen, or on why a run tests nothing.

    The list is empty where nothing is claimed, or where another line says why several runs test nothing.
    """
    indent = _NOTE_INDENT * " "
    lines: list[str] = []
    for statement in _make_statements_on_claim(conclusion):
        first = indent if lines else f"{'claim:':<{_NOTE_INDENT}}"
        lines += textwrap.wrap(statement, _WIDTH, initial_indent=first, subsequent_indent=indent)
    return lines


def describe_claim_in_sentences(conclusion: Conclusion) -> list[str]:
    """Returns a paragraph on the claim for a page, in a list; none where `describe_claim` has no lines."""
    statements = _make_statements_on_claim(conclusion)
    if not statements:
        return []
    result, *seen = statements
    sentences = [f"The claim is {result}.", *(f"{text.capitalize()}." for text in seen)]
    return [" ".join(sentences)]


def _make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns what `describe_claim` says: the result and, if known, how likely it refutes less noise."""
    test = conclusion.claim_test
    if test is None:
        return _explain_untested_claim(conclusion)
    runs = f"{test.runs:,} training run{'s' if test.runs > 1 else ''}"
    result = f"refuted by {runs}" if test.refuted else f"not refuted by {runs}"
    if conclusion.bets_on_curve:
        result += f" (e-value {show_e_value(test.e_value)})"
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100
    seen = (
        f"noise of {test.seen.noise:g} of what is stated would have been refuted "
        f"with probability {probability:g}"
    )
    return [result, seen]


def _explain_untested_claim(conclusion: Conclusion) -> list[str]:
    """Returns why a single run's scores test no claim; nothing where nothing finite is claimed."""
    upper = conclusion.tightest
    if not conclusion.is_one_run or upper is None or math.isinf(upper.epsilon):
        return []
    return [f"not tested: the null is fitted, and there are no {LEAST_COINS} pairs or coins"]


def show_e_value(e_value: float) -> str:
    """Returns an e-value rounded down to two digits, "above 1e+06" or "below 0.01" beyond these."""
    if e_value > _LARGEST_E_VALUE:
        return f"above {_LARGEST_E_VALUE:g}"
    if e_value < _LEAST_E_VALUE:
        return f"below {_LEAST_E_VALUE:g}"
    digits = 1 - math.floor(math.log10(e_value))  # decimals that show two significant digits
    scaled = math.floor(e_value * 10**digits + 1e-9)  # a whole product may be a rounding error less
    return f"{scaled / 10**digits:g}"


def _describe_attack(conclusion: Conclusion) -> list[str]:
    """Returns lines on the attack's accuracy, and its true-positive rates at 1% and 0.1% false positives."""
    accuracy, *true_positive_rates = curves.attack(conclusion.scores_in, conclusion.scores_out)
    lines = [f"{'attack:':<12}guesses right in {_show_interval(accuracy)}"]
    for rate, allowed in zip(true_positive_rates, ("1%", "0.1%"), strict=True):
        if rate is not None:
            lines.append(
                f"            finds {_show_interval(rate)} of those in at {allowed} false positives"
            )
    return lines


def _show_interval(rate: curves.Rate) -> str:
    return f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"


def _explain_words(conclusion: Conclusion) -> list[str]:
    """Returns lines on what the words in the table's last column mean.

    The Gaussian curve comes last, since its test is described below it.
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
    for assumption in sorted(
        dict.fromkeys(assumptions), key=lambda assumption: assumption.gaussian
    ):
        if assumption.note:
            notes.append(_make_note(assumption.word, assumption.note))
    if conclusion.has_tied_scores:
        notes.append(_UNTESTED)
    return notes


def _make_note(word: str, note: str) -> str:
    text = f"{word + ':':<{_NOTE_INDENT}}{note}"
    return textwrap.fill(text, _WIDTH, subsequent_indent=_NOTE_INDENT * " ")


def look_rows(conclusion: Conclusion) -> str:
    """Returns the last look's bounds as a row of text, below a header where it is the first look taken."""
    looks = conclusion.looks
    assert looks is not None
    last = looks.taken[-1]
    lines = []
    if len(looks.taken) == 1:
        title = f"epsilon at delta {conclusion.delta:g}; each look's bounds hold at confidence "
        names = "".join(f"{bound.method:>17}" for bound in last.bounds)
        header = f"{'look':<8}{'runs':>10}{names}"
        lines += [f"{title}{looks.confidence:.6g}", header, "-" * len(header)]
    place = f"{looks.number(last)} of {len(looks.schedule)}"
    values = "".join(f"{bound.epsilon:>17.3f}" for bound in last.bounds)
    lines.append(f"{place:<8}{last.runs:>10}{values}")
    return "\n".join(lines)


def _describe_curve(conclusion: Conclusion) -> list[str]:
    """Returns lines on the test of the Gaussian curve, and why the curve should be Gaussian."""
    if conclusion.curve is None:
        return []
    lines = [f"{describe_curve_test(conclusion)}: {explain_curve_test(conclusion)}"]
    if conclusion.reason:
        lines.append(conclusion.reason)
    return [" " * _NOTE_INDENT + line for line in lines]


def describe_curve_test(conclusion: Conclusion) -> str:
    """Returns the result of the test of the Gaussian curve, such as "refuted (p < 1e-06)"."""
    if conclusion.refutes_gaussian:
        return f"{conclusion.curve_status} ({conclusion.p_value()})"
    return f"{conclusion.curve_status} ({conclusion.p_value()}, power {conclusion.curve_power:.0%})"


def explain_curve_test(conclusion: Conclusion) -> str:
    """Returns what follows from the test of the Gaussian curve, and how many runs would decide."""
    if conclusion.refutes_gaussian:
        return f"ignore these rows, only {conclusion.assumption_free.method} holds"
    if not conclusion.doubts_gaussian:
        return "no evidence against it"
    runs = conclusion.deciding()
    if runs is None:
        return "20 times as many runs would not tell"
    return f"{runs:,} runs would decide"


def _compare_with_upper_bounds(conclusion: Conclusion) -> list[str]:
    """Returns lines on lower bounds beside upper bounds, for below the table.

    They say that a lower bound exceeds an upper bound, or the claim is refuted, and what that means; else, if
    so, that these runs could not prove as much as the upper bound. Mostly the list is empty.
    """
    if find_doubt(conclusion):
        return []
    free = conclusion.assumption_free
    broken = conclusion.exceeded(free.epsilon)
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

    upper = conclusion.tightest
    most = conclusion.most_provable
    if upper is None or math.isinf(upper.epsilon) or is_reversed(conclusion):
        return []
    if most is None or most >= upper.epsilon:
        return []
    runs = f"{len(conclusion.scores_in) + len(conclusion.scores_out):,} runs"
    message = (
        f"{runs} prove at most {at_most(most)} whatever the curve, so that none could contradict "
        f"the {upper.name} {at_most(upper.epsilon)}: take fewer insertions or a larger sigma to look for "
        "bugs"
    )
    return textwrap.wrap(message, _WIDTH)


def _make_row(finding: Finding, show_share: Callable[[int, int], str]) -> tuple[str, ...]:
    """Returns the cells of a lower bound or an estimate: method, epsilon, mu, threshold, errors, assumption.

    Args:
      finding: the bound or estimate.
      show_share: (errors, scores) -> text.
    """
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
        f"{finding.threshold:z.4g}",
        false_positives,
        show_share(finding.false_negatives, finding.n_in),
        assumption,
    )


def _show_counts(count: int, scores: int) -> str:
    return f"{count}/{scores}"


def _show_rate(count: int, scores: int) -> str:
    """Returns a share in percent, at most 100: an average over coins can lie above."""
    return f"{min(count / scores, 1):.2%}"


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns a sentence for each thing that a reader has to know beside the table; mostly there is none.

    For a single run they are about cosines of the wrong sign, no bound, and whether cosines are normal. For
    several runs they are about declared looks, scores that are all equal, scores of the wrong sign, too few
    scores to prove much, and methods that need more canaries a run.
    """
    if conclusion.is_one_run:
        return _remark_on_one_run(conclusion)
    lines = []
    if conclusion.looks is not None:
        lines.append(_describe_looks(conclusion.looks, conclusion.confidence))

    doubt = find_doubt(conclusion)
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
    """Returns a sentence on declared looks, conclusions at numbers of runs that were fixed beforehand.

    Args:
      looks: those declared, and those taken; each has a confidence of its own.
      confidence: at which the bounds of all looks hold at once.
    """
    count = len(looks.schedule)
    words = f"the best of {len(looks.taken)} of {count} declared looks"
    if len(looks.taken) == 1:
        words = f"look {looks.number(looks.taken[0])} of {count} declared"
    return f"{words}; each holds at {looks.confidence:.6g}, all at once at {confidence:g}"


def _explain_zeros(conclusion: Conclusion) -> list[str]:
    """Returns a sentence, or none, on why bounds may be 0 for another reason than privacy.

    Reasons are scores of the wrong sign, a law that canaries out do not have, too few scores, and too few
    canaries a run.
    """
    if is_reversed(conclusion):
        area = curves.auc(conclusion.scores_in, conclusion.scores_out)
        return [
            f"scores are lower with the canary (AUC {area.value:.2f}): did you mean minus the score?"
        ]
    if conclusion.law_is_known:
        if conclusion.assumption_free.holds:
            return []
        return [_WITHDRAWN.format("fresh draws" if conclusion.fresh.draws else "directions")]
    if not conclusion.has_one_canary:
        return _name_methods_of_more_canaries(min(conclusion.evidence.canaries))

    n_in = len(conclusion.scores_in)
    n_out = len(conclusion.scores_out)
    is_leak_shown = max(conclusion.gaussian.epsilon, conclusion.assumption_free.epsilon) >= _SHOWN
    # With an upper bound the table itself says what these runs prove at most.
    has_upper_bound = conclusion.tightest is not None
    if has_upper_bound or is_leak_shown or min(n_in, n_out) >= _FEW:
        return []
    provable = at_most(estimate.most_provable(n_in, n_out, conclusion.delta, conclusion.confidence))
    return [
        f"{n_in} and {n_out} runs prove at most epsilon = {provable} whatever the curve: run more"
    ]


def _name_methods_of_more_canaries(fewest: int) -> list[str]:
    """Returns a line on methods that need more than `fewest` canaries a run, if there are any."""
    orders = sorted(
        {method.canaries for method in lifted.METHODS.values() if method.canaries > fewest}
    )
    if not orders:
        return []
    needed = " and ".join(str(order) for order in orders)
    return [f"methods of order {needed} need so many canaries a run, here: {fewest}"]


def _make_one_run_table(conclusion: Conclusion) -> str:
    """Returns the tables of a single run: estimates, if its scores are cosines; bounds; and notes on both."""
    title = f"one run: epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    given = []
    for upper in conclusion.upper_bounds:
        # 37 columns: those of mu and counts, which are empty.
        given.append(f"{upper.name:<16} {at_most(upper.epsilon):>8} {'':<37} {upper.assumes.word}")
    bounds = Table(_BOUND_COLUMNS, conclusion.bounds, after=given, gap=" ", rule=_WIDTH).text()
    notes = [
        *describe_claim(conclusion),
        *_explain_words_of_one_run(conclusion),
        *remarks(conclusion),
        _show_verdict(conclusion),
    ]
    cosines = conclusion.one_run.cosines
    if cosines is None:
        count = sum(conclusion.evidence.canaries)
        canaries = f"{count:,} canaries, each in or out by a coin of its own"
        return "\n".join([title, canaries, "", bounds, "", *notes])

    observed, unobserved, dimension = cosines
    canaries = (
        f"{len(observed):,} observed canaries; null: the cosine's exact law in R^{dimension:,}"
    )
    if len(unobserved):
        counts = f"{len(observed):,} observed canaries, {len(unobserved):,} unobserved"
        canaries = f"{counts}; null: fitted to the unobserved"
    before = (title, canaries)
    rows = conclusion.estimates
    estimates = Table(_ESTIMATE_COLUMNS, rows, before=before, gap=" ", rule=_WIDTH).text()
    return "\n".join([estimates, "", bounds, "", *_ESTIMATES.splitlines(), *notes])


def _explain_words_of_one_run(conclusion: Conclusion) -> list[str]:
    """Returns lines on what the words in the last column of a single run's table mean.

    Those of bounds by coins come after others, and the Gaussian curve last.
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
    """Returns remarks on a single run: cosines of the wrong sign, no bound, a test of normality."""
    lines = []
    cosines = conclusion.one_run.cosines
    if cosines is not None and _count_deviations(cosines) < -_CLEARLY:
        lines.append("cosines are lower than the null's: did you mean minus the displacement?")
    if cosines is not None and not conclusion.bounds:
        lines.append(
            f"no bound: save coins (scores with presence), or at least {LEAST_COINS} observed cosines "
            f"and as many unobserved (here {len(cosines.observed)} and {len(cosines.unobserved)})"
        )
    if cosines is not None:
        test = cosine_law.anderson_darling(cosines.observed)
        level = "not rejected"
        if test.rejected_at is not None:
            level = f"rejected at {test.rejected_at:.3g}"
        values = f"Anderson-Darling {test.statistic:.3f}, 5%: {test.critical[2]:.3f}"
        lines.append(f"normal cosines: {level} ({values})")
    return lines


def _count_deviations(cosines: Cosines) -> float:
    """Returns by how many standard errors the observed cosines' mean is above the null's.

    The null's mean is 0 and a cosine's deviation 1 / sqrt(d), unless there are unobserved cosines.
    """
    observed, unobserved, dimension = cosines
    if not len(unobserved):
        return float(observed.mean() * np.sqrt(dimension * len(observed)))
    error_out = unobserved.std() / np.sqrt(len(unobserved))
    error_in = observed.std() / np.sqrt(len(observed))
    return float((observed.mean() - unobserved.mean()) / np.hypot(error_out, error_in))
