"""A schedule of looks that was begun stays; one that comes after a look is refused."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.settings.fields import declared
from audit.storage.store import Scores, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, {"seed": 1})


def test_looks_are_read_as_they_were_taken(store):
    assert declared.declared(store) is None
    assert declared.take(store, [10, 20, 40], 1)
    assert declared.take(store, [10, 20, 40], 2)
    assert not declared.take(store, [10, 20, 40], 1)  # as a resumed audit passes it
    assert declared.declared(store) == ((10, 20, 40), 2)
    assert declared.declared(store).looks() == (10, 20)
    declared.require_declared(store, [10, 20, 40])


@pytest.mark.parametrize("other", [[10, 20], [10, 20, 40, 80], [15, 20, 40], []])
def test_another_schedule_after_a_look_is_refused_in_a_line_that_says_why(store, other):
    declared.take(store, [10, 20, 40], 1)
    said = r"1 of the looks 10,20,40 behind it.*proves nothing.*`seed`"
    with pytest.raises(InputError, match=said) as raised:
        declared.require_declared(store, other)
    assert "\n" not in str(raised.value)


def test_a_schedule_after_a_look_without_one_is_refused(store):
    store.save(Scores(0, np.zeros((4, 1)), np.zeros((4, 1), bool)))
    declared.require_declared(store, [4, 8])  # trained, but nobody looked
    store.write_result("{}\n")
    declared.require_declared(store, [])
    with pytest.raises(InputError, match="has been looked at already"):
        declared.require_declared(store, [4, 8])


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"schedule": [4, 2], "taken": 1}', b'{"schedule": [4, 8], "taken": 3}']
    + [b'{"schedule": 4, "taken": 1}', b'{"schedule": [4, "8"], "taken": 1}', b"\xff", b"[" * 100_000],
)
def test_a_damaged_file_is_one_line(store, content):
    (store.path / "looks.json").write_bytes(content)
    with pytest.raises(InputError, match=r"looks\.json is damaged"):
        declared.declared(store)
