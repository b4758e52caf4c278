"""Marks similar cases of a parameter: a few run with the quick tests, all with the slow tests."""

import numpy as np
import pytest
from scipy import stats


def allowed_share(claimed, audits):
    """Returns the largest share of audits above the truth that is compatible with a claimed level."""
    return stats.binom.ppf(1 - 1e-3, audits, claimed) / audits


def mostly_slow(cases, quick=1):
    """The cases, all but the first few marked slow; a tuple is the values of several parameters."""
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=[pytest.mark.slow] * (i >= quick))
        for i, case in enumerate(several)
    ]


def firsts_of_each_kind(cases, find_kinds):
    """The cases (pytest's parameters), of which those that show no kind for the first time are slow.

    find_kinds: (*values) -> the kinds that a case shows. A case that is slow anyway shows none.
    """
    seen = set()
    marked = []
    for case in cases:
        kinds = set(find_kinds(*case.values))
        is_slow = any(mark.name == "slow" for mark in case.marks)
        is_repeat = kinds <= seen
        if not is_slow:
            seen |= kinds
        marks = [*case.marks, *[pytest.mark.slow] * (is_repeat and not is_slow)]
        marked.append(pytest.param(*case.values, id=case.id, marks=marks))
    return marked


def draw_null_cosines(rng, shape, dimension):
    """Draws independent cosines between a fixed direction and uniform directions in R^d."""
    along = rng.standard_normal(shape)
    return along / np.sqrt(along**2 + rng.chisquare(dimension - 1, shape))
