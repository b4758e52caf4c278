"""How to read a page: sentences on what it shows, each with the condition under which a page has it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from audit.methods.estimate import IN_SAMPLE
from audit.report.subjects import Subject


def _is_always(subject: Subject) -> bool:
    """Returns True: the sentence is about every audit."""
    return True


def _has_upper_bound(subject: Subject) -> bool:
    return bool(subject.conclusion.upper_bounds)


def _needs_number_of_runs(subject: Subject) -> bool:
    """Returns whether bounds hold only for a number of runs that no score has decided.

    A bound after each run, as fresh directions in order have it, holds whenever one stops. A single run
    leaves no choice.
    """
    conclusion = subject.conclusion
    return not conclusion.is_one_run and not conclusion.path


def _is_curve_tested(subject: Subject) -> bool:
    return subject.conclusion.curve is not None


def _has_in_sample(subject: Subject) -> bool:
    return any(estimate.method == IN_SAMPLE for estimate in subject.conclusion.estimates)


def _has_estimates(subject: Subject) -> bool:
    return bool(subject.conclusion.estimates)


def _has_single_run(subject: Subject) -> bool:
    return len(subject.runs) <= 1


def _is_federated(subject: Subject) -> bool:
    """Returns whether the audit is federated: only these conclude on each run alone, in `runs`."""
    return bool(subject.runs)


class _Meaning(NamedTuple):
    """A sentence on how to read a page.

    Attributes:
      sentence: the sentence, or several.
      applies: whether an audit shows what the sentence is about.
    """

    sentence: str
    applies: Callable[[Subject], bool] = _is_always


_ROUNDED = _Meaning("Lower bounds are rounded down, upper bounds up.")

_OF_SEVERAL_RUNS = (
    _Meaning(
        "A lower bound on epsilon at delta says: the training is not (epsilon', delta)-differentially "
        "private for any smaller epsilon'. It comes from an attack that was run; another may find more."
    ),
    _Meaning(
        "An upper bound says: the training is (epsilon, delta)-differentially private, if it is implemented "
        "as it is described.",
        _has_upper_bound,
    ),
    _Meaning(
        "A confidence of 95% says: the method exceeds the truth in at most 5% of audits. Each bound has its "
        "own confidence; together they have less. The method is to be chosen before the audit, not after."
    ),
    _Meaning(
        "So is the number of runs: who adds runs and keeps the best of five looks exceeds the truth in 12% "
        "of audits where 5% is said. Looks that are declared before the first one share the error out "
        "(--looks).",
        _needs_number_of_runs,
    ),
    _Meaning(
        "The test of the Gaussian curve is necessary, not sufficient: what is seen at rates above one in the "
        "number of runs says nothing of the curve at delta. A curve that passes is not proven Gaussian.",
        _is_curve_tested,
    ),
    _Meaning(
        "The in-sample row is what most audits print; it is no confidence bound and enters no verdict.",
        _has_in_sample,
    ),
    _ROUNDED,
)

_OF_ONE_RUN = (
    _Meaning(
        "A bound holds at its confidence: the method exceeds the truth in at most that share of audits. Each "
        "has its own confidence; together they have less. The method is to be chosen before the audit."
    ),
    _Meaning(
        "An estimate takes a normal law fitted to the cosines for the truth. It is no bound: it may lie "
        "above epsilon, and what it shows where nothing leaks, its floor, is not 0. Its standard error "
        "counts canaries as independent.",
        _has_estimates,
    ),
    _Meaning(
        "An estimate below its floor's 95% quantile is no evidence of a leak.",
        _has_estimates,
    ),
    _Meaning(
        "One run proves little: a bound of 0 is no proof of privacy, and many runs would show more.",
        _has_single_run,
    ),
    _Meaning(
        "The upper bound of a canary counts the rounds that a canary takes part in; a client may take part "
        "in others.",
        _is_federated,
    ),
    _ROUNDED,
)


def list_meanings(audits: Sequence[Subject]) -> list[str]:
    """Returns the sentences on how to read a page that are about one of its audits at least."""
    are_of_one_run = all(subject.conclusion.is_one_run for subject in audits)
    meanings = _OF_ONE_RUN if are_of_one_run else _OF_SEVERAL_RUNS
    return [
        meaning.sentence
        for meaning in meanings
        if any(meaning.applies(subject) for subject in audits)
    ]
