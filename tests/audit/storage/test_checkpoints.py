"""A chunk goes on from its last checkpoint to the bit, and never from one that is damaged."""

import errno
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.mechanism import base, dpsgd
from audit.storage import store
from audit.storage.store import Checkpoints
from audit.training import game
from tests.cases import mostly_slow

STATES = base.State(
    jnp.arange(6.0).reshape(3, 2), (jnp.ones(3), {"a": jnp.arange(3)}), jnp.arange(3)
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def stored(folder):
    """Checkpoints after every segment, of which a chunk has two."""
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


class Killed(Exception):
    """What ends a game in the middle."""


@pytest.mark.parametrize(("killed_in", "trained_again"), mostly_slow([(2, 5), (4, 6)]))
def test_a_game_goes_on_to_the_bit(empty_game, silent_choices, folder, killed_in, trained_again):
    """Two chunks of three segments; the checkpoint of a segment is missing where it was killed in it, and
    those of the first chunk when its scores were taken, which are nowhere stored."""
    mechanism = dpsgd.mechanism(silent_choices._replace(optimizer=optax.adam))
    init = functools.partial(jax.random.normal, shape=(4,))
    table = empty_game(600, 3, mechanism=mechanism, init=init, unknown_initialisation=True)
    whole = list(game.play(table, [(0, 6)], 3))
    segments_done = []

    def die(runs, steps):
        segments_done.append(steps)
        if len(segments_done) == killed_in + 1:
            raise Killed

    with pytest.raises(Killed):
        list(game.play(table, [(0, 6)], 3, die, Checkpoints(folder, 0)))
    segments = []
    again = Checkpoints(folder, 0)
    resumed = game.play(table, [(0, 6)], 3, lambda runs, steps: segments.append(steps), again)
    for part, expected in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(part.scores, expected.scores)
    assert len(segments) - 1 == trained_again
    assert len(np.unique(np.concatenate([part.scores for part in whole]))) == 6
