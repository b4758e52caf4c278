"""The AUC against every pair counted, and its standard error against simulation."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.statistics import curves

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("decimals", [9, 1, 0])
def test_every_pair_counts(decimals):
    scores_in, scores_out = RNG.normal(0.7, 1, 40).round(decimals), RNG.normal(0, 1, 25).round(decimals)
    pairs = scores_in[:, None] - scores_out
    found = curves.auc(scores_in, scores_out)
    assert found.value == pytest.approx((np.sign(pairs).mean() + 1) / 2)
    assert curves.auc(scores_out, scores_in).value == pytest.approx(1 - found.value)
    assert curves.auc(-scores_in, -scores_out).deviations == pytest.approx(-found.deviations)


def test_worlds_apart_and_ties():
    assert curves.auc([2, 3], [0, 1]).value == 1
    assert curves.auc([0, 1], [2, 3]).value == 0
    found = [curves.auc(RNG.integers(0, 2, 30), RNG.integers(0, 2, 30)) for _ in range(2000)]
    assert 0.7 < np.std([one.deviations for one in found]) < 1
    with pytest.raises(InputError, match="no out scores"):
        curves.auc([1.0], [])


@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (3, 3), (20, 50)])
def test_the_standard_error_is_that_of_scores_that_tell_nothing(n_in, n_out):
    found = [curves.auc(RNG.normal(size=n_in), RNG.normal(size=n_out)) for _ in range(4000)]
    deviations = np.array([one.deviations for one in found])
    assert abs(deviations.mean()) < 0.06 and deviations.std() == pytest.approx(1, abs=0.05)
    assert deviations.min() > -4


def test_true_positive_rates_count_scores_above_the_allowed_share():
    outs, ins = np.arange(1000.0), np.array([*range(985, 1005), 2000.0])
    assert curves.true_positive_rate(ins, outs, 0.0) == 6 / 21  # above 999
    assert curves.true_positive_rate(ins, outs, 0.0009) == 6 / 21
    assert curves.true_positive_rate(ins, outs, 0.001) == 7 / 21
    assert curves.true_positive_rate(ins, outs, 0.01) == 16 / 21
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="false_positive_rate"):
            curves.true_positive_rate(ins, outs, rate)
