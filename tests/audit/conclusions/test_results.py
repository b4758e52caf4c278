"""audit.json as it was written, in numbers that JSON has; a schedule of looks that was begun stays."""

import json

import numpy as np
import pytest

from audit.claims.claim import DpSgd
from audit.conclusions import results
from audit.conclusions.concluded import conclude
from audit.errors import InputError
from audit.evidence.canaries import single
from audit.storage.store import RESULT, Scores, Store

KEYS = [
    *("method", "assumes", "epsilon", "mu", "delta", "confidence", "threshold"),
    *("false_positives", "false_negatives", "n_in", "n_out"),
]


def conclusion(composition=None):
    rng = np.random.default_rng(0)
    return conclude(single(rng.normal(1, 1, 60), rng.normal(0, 1, 60)), composition)


def test_what_is_kept_is_what_is_returned_and_read(tmp_path):
    store = Store(tmp_path, {"model": "made up"})
    line, figure = results.keep(store, conclusion(DpSgd(4.0, 250)), b"drawn", runs=120)
    assert "\n" not in line and figure.read_bytes() == b"drawn" and figure.name == "audit.png"
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


def test_every_row_has_the_same_keys_and_only_the_estimate_a_noise_floor():
    estimate, *bounds = json.loads(results.bounds_json(conclusion()))["bounds"]
    assert list(estimate) == [*KEYS, "noise_floor"]
    assert estimate["assumes"] == "in-sample: not a confidence bound"
    assert set(estimate["noise_floor"]) == {"mean", "quantile_95", "exceeding", "audits"}
    assert [list(bound) for bound in bounds] == [[*KEYS, "holds"]] * 2


@pytest.mark.parametrize("composition", [None, DpSgd(0.0, 3)])
def test_an_upper_bound_that_is_unknown_or_infinite_is_null(tmp_path, composition):
    line = results.keep_result(Store(tmp_path, {}), conclusion(composition))
    kept = json.loads(line, parse_constant=pytest.fail)
    assert kept["upper_bound"] is None and kept["mu_upper_bound"] is None


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, {"seed": 1})


def test_looks_are_read_as_they_were_taken(store):
    assert results.declared_looks(store) is None and results.take_looks(store, [10, 20, 40], 1)
    assert results.take_looks(store, [10, 20, 40], 2)
    assert not results.take_looks(store, [10, 20, 40], 1)  # as a resumed audit passes it
    assert results.declared_looks(store) == ((10, 20, 40), 2)
    assert results.declared_looks(store).looks() == (10, 20)
    results.require_declared(store, [10, 20, 40])


@pytest.mark.parametrize("other", [[10, 20], [10, 20, 40, 80], [15, 20, 40], []])
def test_another_schedule_after_a_look_is_refused_in_a_line_that_says_why(store, other):
    results.take_looks(store, [10, 20, 40], 1)
    said = r"1 of the looks 10,20,40 behind it.*proves nothing.*`seed`"
    with pytest.raises(InputError, match=said) as raised:
        results.require_declared(store, other)
    assert "\n" not in str(raised.value)


def test_looks_of_another_schedule_are_not_taken_beside_those_of_a_concurrent_audit(store):
    results.require_declared(store, [15, 30])  # nobody has looked yet
    results.take_looks(store, [10, 20, 40], 1)
    for taken in (1, 2):
        with pytest.raises(InputError, match="1 of the looks 10,20,40 behind it"):
            results.take_looks(store, [15, 30], taken)
    assert results.declared_looks(store) == ((10, 20, 40), 1)


def test_a_schedule_after_a_look_without_one_is_refused(store):
    store.save(Scores(0, np.zeros((4, 1)), np.zeros((4, 1), bool)))
    results.require_declared(store, [4, 8])  # trained, but nobody looked
    store.write_text(RESULT, "{}\n")
    results.require_declared(store, [])
    with pytest.raises(InputError, match="has been looked at already"):
        results.require_declared(store, [4, 8])


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"schedule": [4, 2], "taken": 1}', b'{"schedule": [4, 8], "taken": 3}']
    + [
        b'{"schedule": 4, "taken": 1}',
        b'{"schedule": [4, "8"], "taken": 1}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_one_line(store, content):
    (store.path / "looks.json").write_bytes(content)
    with pytest.raises(InputError, match=r"looks\.json is damaged"):
        results.declared_looks(store)
