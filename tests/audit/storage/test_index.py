"""Stores are found by their setting, and audit.json is read as it was written."""

import math
import os

import numpy as np
import pytest

from audit.claims.claim import DpSgd
from audit.conclusions import results
from audit.conclusions.concluded import conclude
from audit.errors import InputError
from audit.evidence.canaries import make_sets
from audit.storage import index
from audit.storage.store import Scores, Store, StoredResult
from audit.written import Level

SETTING = {"adversary": "gc_r", "steps": 250}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path, {**SETTING, "data_sha256": "0"})
    store.save(Scores(0, np.arange(4.0)[:, None], np.arange(4)[:, None] % 2 == 1))
    return store


def test_scores_are_found_without_the_data(store, tmp_path):
    held = index.holdings(tmp_path)
    assert held.open(SETTING).path == store.path
    assert (
        held.scores(SETTING, 4).scores.tolist() == [[0], [1], [2], [3]]
        and held.scores(SETTING, 5) is None
    )


def test_a_folder_that_is_not_named_after_its_config_holds_nothing(tmp_path):
    texts = {"a": "torn", "b": '{"adversary": "gc_r", "steps": 250}'}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert index.holdings(tmp_path).stores == {} and len(list(tmp_path.iterdir())) == 2


def test_one_setting_on_two_data_sets_is_refused(store, tmp_path):
    Store(tmp_path, {**SETTING, "data_sha256": "1"})
    with pytest.raises(InputError, match="the same setting but different data"):
        index.holdings(tmp_path).open(SETTING)


def test_settings_that_hold_scores_come_the_newest_first(store, tmp_path):
    later = Store(tmp_path, SETTING | {"steps": 251})
    Store(tmp_path, SETTING | {"steps": 252})
    assert index.list_stores(tmp_path) == [store.path]
    later.save(store.load(2))
    for some_store, second in ((store, 1), (later, 2)):
        (path,) = some_store.path.glob("scores_*")
        os.utime(path, (second, second))
    assert (
        index.list_stores(tmp_path) == [later.path, store.path]
        and index.list_stores(tmp_path / "nowhere") == []
    )


@pytest.mark.parametrize("sigma", [4.0, 0.0])
def test_what_an_audit_writes_is_read(tmp_path, sigma):
    rng = np.random.default_rng(0)
    store = Store(tmp_path, {})
    scores = make_sets(rng.normal(size=60) + 3, rng.normal(size=60))
    conclusion = conclude(scores, DpSgd(sigma, 250), Level(1e-6, 0.9))
    assert store.result() == StoredResult()
    content = results.result_json(conclusion, runs=120, provenance={"device": "abacus"})
    store.write_text("audit.json", content)
    expected = StoredResult(
        120, 1e-6, 0.9, conclusion.epsilon, conclusion.upper_bound, {"device": "abacus"}
    )
    assert store.result() == expected and math.isinf(expected.upper_bound) == (sigma == 0)


@pytest.mark.parametrize("text", ["{", '{"bounds": 3}'])
def test_what_no_audit_wrote_is_one_line(tmp_path, text):
    store = Store(tmp_path, {})
    store.write_text("audit.json", text)
    with pytest.raises(InputError, match="audit.json cannot be read: move it away, or run"):
        store.result()
    store.write_text("audit.json", "{}")
    assert store.result() == StoredResult()
