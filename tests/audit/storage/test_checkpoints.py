"""A chunk continues from its last checkpoint with the same bits, and never from a damaged one."""

import errno

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism import base
from audit.storage import store
from audit.storage.store import Checkpoints

STATES = base.State(
    jnp.arange(6.0).reshape(3, 2), (jnp.ones(3), {"a": jnp.arange(3)}), jnp.arange(3)
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def stored(folder):
    """Returns the checkpoints of a chunk after its first two segments."""
    stored = Checkpoints(folder, 0)
    stored.offer("chunk", 1, jax.tree.map(jnp.zeros_like, STATES))
    stored.offer("chunk", 2, STATES)
    return stored


def _equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)
    return jax.tree.structure(left) == jax.tree.structure(right)


def _like():
    return jax.tree.map(jnp.zeros_like, STATES)


def test_the_newest_comes_back_to_its_own_chunk_and_the_older_is_gone(stored, folder):
    done, states = Checkpoints(folder).resume("chunk", _like())
    assert done == 2 and _equal(states, STATES)
    assert [path.name for path in folder.iterdir()] == ["chunk_000002.npz"]
    done, states = stored.resume("chun", _like())
    assert done == 0 and _equal(states, _like())


@pytest.mark.parametrize("cut", [slice(200), slice(0)])
def test_a_damaged_checkpoint_is_reported_and_set_aside(stored, folder, capsys, cut):
    path = folder / "chunk_000002.npz"
    path.write_bytes(path.read_bytes()[cut])
    done, states = Checkpoints(folder).resume("chunk", _like())
    assert done == 0 and _equal(states, _like())
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "is damaged: set aside" in message
    assert stored.resume("chunk", _like())[0] == 0
    stored.clear()
    assert not folder.exists() and capsys.readouterr().err == ""


def test_a_full_disk_is_reported_once_and_the_last_checkpoint_stays(
    stored, folder, monkeypatch, capsys
):
    def refuse(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.np, "savez", refuse)
    for segment in (3, 4):
        stored.offer("chunk", segment, STATES)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "No space left on device" in message
    assert [path.name for path in folder.iterdir()] == ["chunk_000002.npz"]
    assert stored.resume("chunk", _like())[0] == 2
