"""Marks similar cases of a parameter: a few run with the quick tests, all with the slow tests."""

import numpy as np
import pytest
from scipy import stats

from audit.evidence import given
from audit.laws import cosine_law
from audit.storage.store import Scores

NO_LEAK = Scores(0, np.random.default_rng(1).normal(size=(40, 1)), np.arange(40)[:, None] % 2 == 1)


def allowed_share(claimed, audits):
    """Returns the largest share of audits above the truth that is compatible with a claimed level."""
    return stats.binom.ppf(1 - 1e-3, audits, claimed) / audits


def flatten(report):
    """Returns a report on a single line."""
    return " ".join(str(report).split())


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


def draw_one_run(sigma, canaries=1000, dimension=10**6, seed=0):
    """Draws the observed cosines of a run whose canaries are uniform directions."""
    found = cosine_law.simulate(np.random.default_rng(seed), canaries, dimension, sigma)
    return given.paired_cosines(found, None, dimension).cosines
