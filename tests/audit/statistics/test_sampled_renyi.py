"""Renyi DP of the sampled Gaussian by quadrature, against dp-accounting where its series converges."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from audit.errors import InputError
from audit.statistics import rounds


@pytest.mark.parametrize("sigma, rate", [(0.2, 0.002), (0.4166, 0.01189), (1.0, 0.05), (9.2, 0.2)])
def test_divergences_agree_with_dp_accounting(sigma, rate):
    chosen = [i for i, order in enumerate(rounds.ORDERS) if order in (2, 3, 5, 17, 63)]
    orders = [int(rounds.ORDERS[i]) for i in chosen]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    found = rounds.divergences(sigma, rate)[chosen]
    np.testing.assert_allclose(found, accountant._rdp, rtol=1e-8, atol=1e-13)


def test_divergences_rise_with_the_order_and_end_at_those_without_sampling():
    for sigma in (0.05, 0.4, 3.0):
        found = rounds.divergences(sigma, 0.01)
        assert np.all(np.diff(found) > 0) and np.all(found <= rounds.divergences(sigma, 1.0))
        almost = rounds.divergences(sigma, 1 - 1e-12)
        np.testing.assert_allclose(almost, rounds.divergences(sigma, 1.0), rtol=1e-6)
    assert np.isinf(rounds.divergences(0.0, 0.1)).all()
    for sigma, rate in ((-1.0, 0.1), (1.0, 0.0), (1.0, 1.5)):
        with pytest.raises(InputError):
            rounds.divergences(sigma, rate)
