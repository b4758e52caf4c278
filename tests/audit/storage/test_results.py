"""audit.json: a row a finding under one set of keys, numbers that JSON has, and read as it was written."""

import json

import numpy as np
import pytest

from audit.concluded import conclude
from audit.statistics.accounting import Composition
from audit.statistics.canaries import single
from audit.storage import results
from audit.storage.store import Store

KEYS = [
    *("method", "assumes", "epsilon", "mu", "delta", "confidence", "threshold"),
    *("false_positives", "false_negatives", "n_in", "n_out"),
]


def conclusion(composition=None):
    rng = np.random.default_rng(0)
    return conclude(single(rng.normal(1, 1, 60), rng.normal(0, 1, 60)), composition, 1e-5, 0.95)


def test_what_is_kept_is_what_is_returned_and_read(tmp_path):
    store = Store(tmp_path, {"model": "made up"})
    line, figure = results.keep(store, conclusion(Composition(4.0, 250)), b"drawn", runs=120)
    assert "\n" not in line and figure.read_bytes() == b"drawn" and figure.name == "audit.png"
    kept = json.loads((store.path / "audit.json").read_bytes())
    assert kept == json.loads(line) and kept["runs"] == store.result().runs == 120
    assert kept["upper_bound"] == pytest.approx(24, abs=0.01)
    assert kept["mu_upper_bound"] == pytest.approx(250**0.5 / 4)


def test_every_row_has_the_same_keys_and_only_the_estimate_a_noise_floor():
    estimate, *bounds = json.loads(results.bounds_json(conclusion()))["bounds"]
    assert list(estimate) == [*KEYS, "noise_floor"]
    assert estimate["assumes"] == "in-sample: not a confidence bound"
    assert set(estimate["noise_floor"]) == {"mean", "quantile_95", "exceeding", "audits"}
    assert [list(bound) for bound in bounds] == [KEYS] * 3


@pytest.mark.parametrize("composition", [None, Composition(0.0, 3)])
def test_an_upper_bound_that_is_unknown_or_infinite_is_null(tmp_path, composition):
    line = results.keep_result(Store(tmp_path, {}), conclusion(composition))
    kept = json.loads(line, parse_constant=pytest.fail)
    assert kept["upper_bound"] is None and kept["mu_upper_bound"] is None
