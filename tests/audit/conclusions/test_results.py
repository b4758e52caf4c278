"""audit.json as it was written, in numbers that JSON has."""

import json

import numpy as np
import pytest

from audit.claims.claim import DpSgd
from audit.conclusions import results
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import make_sets
from audit.storage.store import Store

KEYS = [
    *("method", "assumes", "epsilon", "mu", "delta", "confidence", "threshold"),
    *("false_positives", "false_negatives", "n_in", "n_out"),
]


def conclusion(composition=None):
    rng = np.random.default_rng(0)
    return conclude(make_sets(rng.normal(1, 1, 60), rng.normal(0, 1, 60)), composition)


def test_what_is_kept_is_what_is_returned_and_read(tmp_path):
    store = Store(tmp_path, {"model": "made up"})
    line = results.keep_result(store, conclusion(DpSgd(4.0, 250)), runs=120)
    assert "\n" not in line
    kept = json.loads((store.path / "audit.json").read_bytes())
    assert kept == json.loads(line) and kept["runs"] == store.result().runs == 120
    assert kept["upper_bound"] == pytest.approx(24, abs=0.01)
    assert kept["mu_upper_bound"] == pytest.approx(250**0.5 / 4)


def test_what_is_infinite_without_noise_is_null_in_json():
    without_noise = conclusion(DpSgd(0.0, 5, sampling_rate=0.5))
    assert without_noise.expected == np.inf

    def refuse(constant):
        raise AssertionError(f"{constant} is no number of JSON")

    fields = json.loads(results.result_json(without_noise), parse_constant=refuse)
    for name in ("upper_bound", "mu_upper_bound", "expected"):
        assert fields[name] is None, name


def test_every_row_has_the_same_keys():
    estimate, *bounds = json.loads(results.result_json(conclusion()))["bounds"]
    assert list(estimate) == KEYS
    assert estimate["assumes"] == "in-sample: not a confidence bound"
    assert [list(bound) for bound in bounds] == [[*KEYS, "holds"]] * 2
