"""Tests how many runs refute a claim if the noise is smaller than stated."""

import pytest

from audit.calibration import planning
from audit.errors import InputError
from tests.cases import mostly_slow


@pytest.mark.parametrize(
    ("noise", "fewest", "most"), mostly_slow([(0.8, 3, 5), (0.9, 6, 11), (0.5, 1, 2)])
)
def test_a_claim_is_refuted_after_so_many_runs(noise, fewest, most):
    runs = planning.runs_until_refuted(3.953, noise, 64, 0.95)
    assert fewest <= runs.median <= most
    assert runs.median <= runs.most


def test_noise_as_stated_is_not_refuted_and_no_noise_is_an_error():
    assert planning.runs_until_refuted(3.953, 1.0, 64, 0.95).median == float("inf")
    with pytest.raises(InputError, match="must be above 0"):
        planning.runs_until_refuted(3.953, 0.0, 64, 0.95)
