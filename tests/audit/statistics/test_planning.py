"""The runs that a tightness needs: found where the law is known, and where audits are simulated."""

import math

import numpy as np
import pytest

from audit.errors import InputError
from audit.statistics import conversions, planning
from audit.statistics.calibration import KnownMechanism

KNOWN = KnownMechanism(conversions.mu_from_epsilon(4.0, 1e-5), 1000, 16, 1e-5, 0.95, 3)


@pytest.mark.parametrize("missing", [0.5, 2.0, 9.0, 60.0])
@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_the_runs_needed_are_found_where_the_law_is_known(missing, wanted):
    asked = []

    def reached(runs):
        asked.append(runs)
        return max(1 - missing / np.sqrt(runs), 0.0)

    found = planning.first_to_reach(wanted, reached)
    assert 0.999 <= found / max((missing / (1 - wanted)) ** 2, planning.LEAST_RUNS) < 1.2 and len(asked) <= 12


@pytest.mark.parametrize("law", [lambda runs: 1 - runs**-0.25, lambda runs: min(runs / 7000, 1.0)])
def test_another_law_takes_longer_but_is_found(law):
    found = planning.first_to_reach(0.8, law)
    assert law(found) >= 0.8 and law(found / 1.2) < 0.8


def test_the_runs_needed_prove_the_share_of_the_truth():
    found = planning.runs_needed(KNOWN, 0.6)
    enough, few = (planning.mean_if_gaussian(KNOWN._replace(n_scores=n)) / 4 for n in (2 * found, found // 2))
    assert few < 0.6 < enough and found == planning.runs_needed(KNOWN._replace(n_scores=9, audits=2), 0.6)
    with pytest.raises(InputError, match="`mu=0`"):
        planning.runs_needed(KNOWN._replace(mu=0.0), 0.5)
    assert planning.first_to_reach(0.9, lambda runs: 0.5) is None
    few, many = (planning.mean_if_gaussian(KNOWN._replace(n_scores=n)) for n in (200, 5000))
    assert 0.5 < few < many < 4 and many > 3.2


@pytest.mark.parametrize("tightness", [0, 1, -0.5, math.nan])
def test_a_tightness_out_of_range_is_refused(tightness):
    with pytest.raises(InputError, match="`tightness="):
        planning.runs_needed(KNOWN, tightness)
