"""Federated settings: identity, participation, accounting, and the game."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.claims.accounting import (
    Composition,
    epsilon_upper_bound,
    participant_upper_bound,
)
from audit.conclusions import concluded
from audit.errors import InputError
from audit.settings import federated
from audit.settings.federated import FederatedSetting
from audit.storage.store import Store
from audit.tasks.task import Dataset
from audit.training import build_federated, game
from models.data.clients import dirichlet

SIZES = {"clients": 12, "cohort": 4, "rounds": 6, "canaries": 100, "batch_size": 8}
SMALL = FederatedSetting(model="linear", **SIZES, noise_multiplier=0.5)


def changed(**fields):
    return dataclasses.replace(SMALL, **fields)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (240, 28, 28)).astype(np.uint8)
    return dirichlet(
        Dataset(images, rng.integers(0, 10, 240).astype(np.int32), "made up", ""), 12, 1.0, 0
    )


def test_rounds_have_a_mean_number_of_participants_and_leak_by_their_number(clients):
    participation = build_federated.rounds(SMALL, clients)
    assert participation.mean == pytest.approx(4 + 0.5 * 100 / 6) and participation.most == 2
    assert (participation.canaries.sum(axis=0) == 1).all()


@pytest.mark.slow
def test_sampling_bounds_a_participant_below_certain_participation():
    sampled = Composition(1.0, 6, 1 / 3)
    loose = epsilon_upper_bound(1.0, 6, 1e-5)
    assert 0 < participant_upper_bound(sampled, 1e-5) < 0.8 * loose
    # At little noise, and below LEAST_PARTICIPANT_NOISE.
    for noise, expected in ((0.1, 352.29), (0.04, epsilon_upper_bound(0.04, 6, 1e-5))):
        quiet = participant_upper_bound(sampled._replace(noise_multiplier=noise), 1e-5)
        assert quiet == pytest.approx(expected, abs=0.05)


def test_adaptive_clipping_splits_the_noise_and_a_name_holds_what_is_not_usual():
    """The squares of mu for the sum and for the count add up to that of the whole round."""
    assert federated.noise(SMALL) == (0.5, 0.0, 0.0)
    split = federated.noise(changed(quantile=0.5, cohort=100, noise_multiplier=1.5))
    assert split.on_count == 5 and split.multiplier > 1.5
    assert 1 / split.multiplier**2 + 1 / (2 * split.on_count) ** 2 == pytest.approx(1 / 1.5**2)
    assert federated.noise(changed(quantile=0.5, noise_multiplier=0.0)) == (0.0, 0.0, 0.2)
    with pytest.raises(InputError, match="raise `cohort`"):
        federated.noise(changed(quantile=0.5, cohort=4))
    identity = federated.federated_identity(changed(quantile=0.5))
    assert identity == {
        "experiment": "federated",
        **{
            "model": "linear",
            **SIZES,
            "noise_multiplier": 0.5,
            "quantile": 0.5,
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("observe", federated.OBSERVED)
def test_canaries_that_are_in_have_larger_cosines(clients, tmp_path, observe):
    """Trains the game of each value of `observe`, and stores its scores."""
    setting = changed(observe=observe, noise_multiplier=0.05, client_learning_rate=0.01)
    participation = build_federated.rounds(setting, clients)
    looks = []
    played = build_federated.build(setting, clients, participation)._replace(segment_steps=2)
    store = Store(tmp_path, federated.federated_identity(setting))
    scores = game.train(played, store, 1, watch=looks.append).scores
    assert [look.steps for look in looks] == [2, 4, 6]
    accuracy = build_federated.accuracy(setting, clients, None)(looks[-1].thetas)
    assert accuracy.shape == (1,) and 0 <= accuracy[0] <= 1
    observed, unobserved = scores.scores[scores.presence], scores.scores[~scores.presence]
    assert observed.mean() > unobserved.mean() + (0.5 if observe == "weights" else 3) / np.sqrt(
        7850
    )
    assert game.train(played, store, 1).trained_runs == 0


@pytest.mark.slow
def test_runs_that_draw_canaries_of_their_own_prove_together(clients, tmp_path):
    setting = changed(
        observe="fresh", noise_multiplier=0.5, client_learning_rate=0.01, repetitions=6
    )
    played = build_federated.build(setting, clients, build_federated.rounds(setting, clients))
    scores = game.train(played, Store(tmp_path, {}), 4).scores
    upper, alone = (
        epsilon_upper_bound(0.5, 6, 1e-5),
        scores._replace(scores=scores.scores[:1], presence=scores.presence[:1]),
    )
    assert concluded.conclude_together(alone) is None
    together = concluded.conclude_together(scores).assumption_free
    each = concluded.conclude_each_run(scores, scores.dimension, True)
    rows = [row for run in each for row in run.bounds]
    best = max(row.epsilon for row in rows if not row.assumes.gaussian)
    assert together.holds and best < together.epsilon < upper
    again = game.train(played, Store(tmp_path / "again", {}), 1).scores
    np.testing.assert_array_equal(again.scores, alone.scores)
    first, second = (
        played.adversary.draw_for_run(
            played.adversary.init(jax.random.key(0), jnp.zeros(7850), 1.0), key
        ).keys
        for key in played.run_keys("own", np.arange(2))
    )
    assert (jax.random.key_data(first) != jax.random.key_data(second)).any()
