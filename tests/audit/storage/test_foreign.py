"""Files that were copied from one setting's folder into another's, and older files that don't say whose."""

import numpy as np
import pytest

from audit.storage.store import Scores, Store

CHUNK = Scores(0, np.arange(4.0)[:, None], np.arange(4)[:, None] % 2 == 0)
NAME = "scores_0000000_0000004.npz"


@pytest.fixture
def store(tmp_path):
    """A store whose only file of scores came from another one."""
    own, other = (Store(tmp_path, {"noise_multiplier": sigma}) for sigma in (1.0, 2.0))
    other.save(CHUNK)
    (own.path / NAME).write_bytes((other.path / NAME).read_bytes())
    return own


def test_scores_of_another_setting_count_as_missing_and_are_set_aside(store, capsys):
    assert store.missing(4) == [(0, 4)] and (store.path / NAME).exists()
    assert f"{NAME} is of another setting: it counts as missing" in capsys.readouterr().err
    with store.claim():
        assert store.missing(4) == [(0, 4)] and not (store.path / NAME).exists()
    assert (
        f"{NAME} is of another setting: set aside, its runs are trained again"
        in capsys.readouterr().err
    )


def test_scores_that_do_not_say_their_setting_are_read(store):
    with np.load(store.path / NAME) as file:
        np.savez(
            store.path / NAME, **{name: file[name] for name in file.files if name != "setting"}
        )
    np.testing.assert_array_equal(store.load(4).scores, CHUNK.scores)


def test_a_file_of_the_setting_can_be_moved_to_another_root(store, tmp_path):
    store.save(CHUNK)
    elsewhere = Store(tmp_path / "elsewhere", {"noise_multiplier": 1.0}, "words")
    (elsewhere.path / NAME).write_bytes((store.path / NAME).read_bytes())
    assert elsewhere.missing(4) == []
