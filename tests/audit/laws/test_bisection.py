"""Searches for where a condition stops to hold."""

import numpy as np
import pytest

from audit.laws.intervals import bisect_all, find_bracket, find_largest_refuted


@pytest.mark.parametrize("truth", [0.3, 1.0, 77.0])
def test_the_largest_refuted_parameter_is_below_the_truth_and_near_it(truth):
    found = find_largest_refuted(lambda parameter: parameter < truth, 0.0, 1.0, 40)
    assert truth - 1e-9 < found < truth
    assert find_largest_refuted(lambda parameter: False, 2.0, 3.0, 40) == 2.0
    bracket = find_bracket(lambda parameter: parameter < truth, 0.0, 1.0)
    assert bracket.low < truth <= bracket.high <= max(1.0, 2 * truth)


def test_each_entry_has_a_search_of_its_own():
    truths = np.array([[0.1, 0.5], [0.9, 3.0]])
    low, high = bisect_all(lambda parameters: parameters < truths, 0 * truths, 4 + 0 * truths, 40)
    assert np.all(low < truths) and np.all(truths <= high)
    assert high == pytest.approx(truths, abs=1e-9)
