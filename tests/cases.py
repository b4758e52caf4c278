"""Cases of a parameter that differ little: some run with the quick tests, all of them with the slow ones."""

import pytest


def mostly_slow(cases, quick=1):
    """The cases, all but the first few marked slow; a tuple is the values of several parameters."""
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=[pytest.mark.slow] * (i >= quick))
        for i, case in enumerate(several)
    ]
