"""audit.json as it was written, in numbers that JSON has."""

import json

import numpy as np

from audit.claims.claim import DpSgd
from audit.conclusions import results
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import single


def conclusion(composition=None):
    rng = np.random.default_rng(0)
    return conclude(single(rng.normal(1, 1, 60), rng.normal(0, 1, 60)), composition)


def test_what_is_infinite_without_noise_is_null_in_json():
    without_noise = conclusion(DpSgd(0.0, 5, sampling_rate=0.5))
    assert without_noise.expected == np.inf

    def refuse(constant):
        raise AssertionError(f"{constant} is no number of JSON")

    fields = json.loads(results.result_json(without_noise), parse_constant=refuse)
    for name in ("upper_bound", "mu_upper_bound", "expected"):
        assert fields[name] is None, name
