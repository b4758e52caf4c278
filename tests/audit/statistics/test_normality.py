"""Anderson and Darling's test: the paper's critical values, SciPy's statistic, its level."""

import numpy as np
import pytest
from scipy import special, stats

from audit.errors import InputError
from audit.statistics.cosine_law import anderson_darling, critical_values


def test_values_are_the_papers_and_the_textbooks():
    assert np.round(critical_values(1000), 3) == pytest.approx([0.574, 0.653, 0.784, 0.914, 1.088])
    x = np.sort(np.random.default_rng(0).normal(3, 2, 50))
    z = stats.norm((x - x.mean()) / x.std(ddof=1)).logcdf(0)  # log Phi(-z)
    below = special.log_ndtr((x - x.mean()) / x.std(ddof=1))
    expected = -50 - sum((2 * i + 1) / 50 * (below[i] + z[49 - i]) for i in range(50))
    assert anderson_darling(x).statistic == pytest.approx(expected)


def test_it_keeps_its_level_and_sees_what_is_not_normal():
    rng = np.random.default_rng(0)
    found = [anderson_darling(rng.normal(5, 1e-3, 300)) for _ in range(1000)]
    for level, place in ((0.15, 0), (0.05, 2)):
        share = np.mean([one.statistic > one.critical[place] for one in found])
        assert share == pytest.approx(level, abs=4 * np.sqrt(level / 1000))
    assert anderson_darling(rng.exponential(size=300)).rejected_at == 0.01
    assert {one.rejected_at for one in found} > {None, 0.15}
    for bad in (np.ones(20), np.arange(7.0)):
        with pytest.raises(InputError):
            anderson_darling(bad)
