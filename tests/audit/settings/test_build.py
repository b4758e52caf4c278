"""Tests values out of range, errors of devices, and memory that is released after a game."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.errors import InputError
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build, game
from tests.cases import mostly_slow

BASE = {"adversary": "gc_r", "batch_size": 10, "steps": 3, "noise_multiplier": 1.0}
SETTING = setting_of("fcnn", **BASE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("insert", "steps", "attack"),
    [
        ("first", (1, 5, 9), {"adversary": "gc_r", "seed": 3}),
        ("2", (2, 6, 10), {"adversary": "gc_r", "canaries": 12}),
        ("3", (3, 7, 11), {"adversary": "sphere"}),
    ],
)
def test_the_canary_comes_at_its_step_and_decays_after_it(insert, steps, attack, play):
    """Without noise, along coordinates in which the data do not vary, or along a run's own direction."""
    features = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32) / 9
    features[:, 6:] = 0
    data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
    more = {
        "insertions": 3,
        "k": 4,
        "insert": insert,
        "learning_rate": 0.5,
        "weight_decay": 0.2,
        **attack,
    }
    more |= {"noise_multiplier": 0.0, "batch_size": 10, "clipping_norm": 0.7}
    game_played = build.build(setting_of("logistic", **more), data)
    assert np.flatnonzero(game_played.schedule.mask).tolist() == [step - 1 for step in steps]
    played = play(game_played, [(0, 8)], 8)
    moved = 0.5 * 0.7 / 10 * sum(0.9 ** (12 - step) for step in steps)
    if insert == "first":
        np.testing.assert_allclose(played.scores[1::2] - played.scores[::2], moved, rtol=1e-4)
    elif attack["adversary"] == "gc_r":
        still = np.argsort(np.ptp(np.abs(played.scores), axis=0))[:6]
        coins = played.presence[:, still] - 0.5
        np.testing.assert_allclose(played.scores[:, still], moved * coins, rtol=1e-3, atol=1e-6)
    else:
        assert (
            played.scores > 0.99
        ).all()  # all that moves the model off its rehearsal is the canary


@pytest.mark.slow
@pytest.mark.parametrize("adversary", mostly_slow(["gc_r", "sphere", "loss", "examples"]))
def test_compiled_programs_do_not_keep_a_games_data(adversary):
    features = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
    canaries = {"canaries": 4} if adversary in ("sphere", "examples") else {}
    setting = setting_of("fcnn", adversary=adversary, batch_size=10, insertions=3, **canaries)
    table = build.build(setting, data)
    game.chunk_size(table, 4)
    assert len(list(game.Player(table, 4).play_all([(0, 4)]))) == 1
    kept = [weakref.ref(array) for array in (*table.data, table.schedule.batches)]
    del table
    gc.collect()
    assert [array() for array in kept] == [None] * 3


def test_products_are_float32_and_on_a_gpu_tf32_if_that_is_asked_for(small_dataset, monkeypatch):
    tf32 = setting_of("fcnn", **BASE, precision="tf32")
    with pytest.raises(InputError, match="`precision=tf32` needs a GPU, but JAX runs on a cpu"):
        build.build(tf32, small_dataset)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for setting, word in ((SETTING, "HIGHEST"), (tf32, "HIGH")):
        trained = build.trainee(setting.model, small_dataset)
        clipped_sum = build.make_dpsgd(setting, trained).clipped_sum
        batch = small_dataset.features[:4], small_dataset.labels[:4]
        program = str(
            jax.make_jaxpr(clipped_sum)(jnp.zeros(trained.model.n_parameters), batch, 1.0)
        )
        assert f"Precision.{word})" in program
