"""A schedule of looks that was begun stays; one that comes after a look is refused."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.storage import results
from audit.storage.store import RESULT, Scores, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, {"seed": 1})


def test_looks_are_read_as_they_were_taken(store):
    assert results.declared_looks(store) is None
    assert results.take_looks(store, [10, 20, 40], 1)
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
    + [b'{"schedule": 4, "taken": 1}', b'{"schedule": [4, "8"], "taken": 1}', b"\xff", b"[" * 100_000],
)
def test_a_damaged_file_is_one_line(store, content):
    (store.path / "looks.json").write_bytes(content)
    with pytest.raises(InputError, match=r"looks\.json is damaged"):
        results.declared_looks(store)
