"""Files stand as long as what they were made from does, and nobody touches them."""

import numpy as np
import pytest

from audit.concluded import conclude
from audit.statistics.canaries import single
from audit.storage import results
from audit.storage.store import Store

NAMES = ("audit.png", "report.html")


def conclusion(seed=0, **levels):
    worlds = np.random.default_rng(seed).normal(size=(2, 30)) + [[1], [0]]
    return conclude(single(worlds[0], worlds[1]), None, **{"delta": 1e-5, "confidence": 0.95, **levels})


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path, {"seed": 1})
    for name in NAMES:
        store.write_text(name, f"of {name}")
    results.mark(store, results.source(store, conclusion()), NAMES)
    return store


def test_files_stand_until_anything_changes(store, tmp_path, monkeypatch):
    assert results.stands(store, results.source(store, conclusion()), NAMES)
    one = conclusion()
    fewer, more = one.scores_in[:-1], np.append(one.scores_in[-1], one.scores_out)
    assert results.source(store, one._replace(scores_in=fewer, scores_out=more)) != results.source(store, one)
    source = results.source(store, conclusion())
    assert results.source(Store(tmp_path, {"seed": 2}), conclusion()) != source
    monkeypatch.setattr(results, "__version__", "another")
    assert results.source(store, conclusion()) != source


@pytest.mark.parametrize("other", [{"delta": 1e-6}, {"confidence": 0.9}, {"seed": 2}])
def test_other_levels_or_scores_are_another_source(store, other):
    assert not results.stands(store, results.source(store, conclusion(**other)), NAMES)


@pytest.mark.parametrize("name", [*NAMES, "made.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 100_000])
def test_a_file_that_was_changed_or_removed_does_not_stand(store, name, content):
    (store.path / name).unlink() if content is None else (store.path / name).write_bytes(content)
    assert not results.stands(store, results.source(store, conclusion()), NAMES)
