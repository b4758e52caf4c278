"""Tests how many runs prove a fraction of the true epsilon."""

import numpy as np
import pytest

from audit.calibration import laws, planning
from audit.calibration.calibration import KnownMechanism
from audit.errors import InputError
from audit.laws import conversions

KNOWN = KnownMechanism(
    laws.GAUSSIAN, conversions.mu_from_epsilon(4.0, 1e-5), 1000, 16, 1e-5, 0.95, 3
)


@pytest.mark.parametrize("missing", [0.5, 2.0, 9.0, 60.0])
@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_the_runs_needed_are_found_where_the_law_is_known(missing, wanted):
    asked = []

    def reached(runs):
        asked.append(runs)
        return max(1 - missing / np.sqrt(runs), 0.0)

    found = planning.first_to_reach(wanted, reached)
    assert (
        0.999 <= found / max((missing / (1 - wanted)) ** 2, planning.MIN_RUNS) < 1.2
        and len(asked) <= 12
    )


@pytest.mark.slow
def test_the_runs_needed_prove_the_share_of_the_truth():
    found = planning.runs_needed(KNOWN, 0.6)
    enough, few = (
        planning.mean_epsilon(KNOWN._replace(runs=n)) / 4 for n in (2 * found, found // 2)
    )
    assert few < 0.6 < enough and found == planning.runs_needed(
        KNOWN._replace(runs=9, audits=2), 0.6
    )
    with pytest.raises(InputError, match="`mu=0`"):
        planning.runs_needed(KNOWN._replace(mu=0.0), 0.5)
    assert planning.first_to_reach(0.9, lambda runs: 0.5) is None
    few, many = (planning.mean_epsilon(KNOWN._replace(runs=n)) for n in (200, 5000))
    assert 0.5 < few < many < 4 and many > 3.2
