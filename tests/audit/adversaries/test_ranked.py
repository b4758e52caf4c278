"""Tests canaries that are ranked among fresh draws: draws, scores and bounds."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from optax import softmax_cross_entropy_with_integer_labels

from audit.adversaries import biased, directions, ranked
from audit.conclusions.concluded import conclude_setting
from audit.errors import InputError
from audit.evidence import ranks
from audit.settings.make import setting_of
from audit.tasks.model import flat_model
from audit.tasks.task import Dataset
from audit.training import build, game

K, M = 12, 700  # more than a block of fresh examples
FEATURES = ranked.RandomEntries((3,), "int32", largest=1)
GENERATOR = ranked.RandomExampleGenerator(FEATURES, ranked.RandomEntries((), "int32", largest=4))


def make(dataset, model="wide_fcnn", **fields):
    """Returns (the setting, its game) on a data set."""
    usual = {"adversary": "examples", "canaries": K, "batch_size": 50, "insertions": 5, "fresh": M}
    setting = setting_of(model, **{**usual, **fields})
    return setting, build.build(setting, dataset)


def play(table, runs, first=0):
    """Returns the scores of runs from `first` on."""
    (scores,) = game.Player(table, runs).play_all([(first, first + runs)])
    return scores


@pytest.mark.slow
def test_a_score_counts_the_fresh_draws_below_and_ties_lie_between():

    def count_ones(examples, theta_t, reference):
        return examples.features.sum(axis=1).astype(jnp.float32)

    adversary = ranked.fresh_examples(GENERATOR, count_ones, directions.initial_model, 200, M)
    state = adversary.init(jax.random.key(0), jnp.zeros(4), jnp.float32(1))
    state = adversary.draw_for_run(state, jax.random.key(1))
    scores = np.asarray(adversary.score(state, (), jnp.zeros(4), jnp.zeros(4)))
    blocks = [
        np.asarray(GENERATOR(jax.random.fold_in(state.fresh_key, start), 512).features).sum(1)
        for start in (0, 512)
    ]
    places = np.asarray(ranked._draw_places(state.fresh_key, 200, 200 + M))
    fresh = np.delete(np.concatenate(blocks)[: 200 + M], places)
    assert len(fresh) == M
    own = np.asarray(state.canaries.features).sum(1)
    below = (fresh < own[:, None]).sum(1)
    tied = (fresh == own[:, None]).sum(1)
    assert (below <= scores).all() and (scores <= below + tied).all()
    assert len(np.unique(scores - below)) > 100


@pytest.mark.slow
def test_ranks_are_uniform_even_where_an_examples_place_decides_its_score():
    """As a compiled program may round by place, which breaks ties."""

    def number_places(examples, theta_t, reference):
        return jnp.arange(len(examples.labels), dtype=jnp.float32)

    canaries, runs = 3, 400
    adversary = ranked.fresh_examples(
        GENERATOR, number_places, directions.initial_model, canaries, M
    )
    state = adversary.init(jax.random.key(0), jnp.zeros(4), jnp.float32(1))

    def score(key):
        state_of_run = adversary.draw_for_run(state, key)
        return adversary.score(state_of_run, (), jnp.zeros(4), jnp.zeros(4))

    scores = np.asarray(jax.vmap(score)(jax.random.split(jax.random.key(1), runs)))
    assert ranks.measure_law(M + 1 - scores.astype(int), np.ones(scores.shape, bool), M) > 1e-3


class TanhNetwork(nn.Module):
    """4-16-2, of whole numbers."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.tanh(nn.Dense(16)(x.astype(jnp.float32))))


@pytest.mark.slow
def test_many_ties_accuse_no_correct_training():
    """Of 32 examples that there are, canaries and fresh ones often score the same."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 2, (200, 4)).astype(np.int32)
    dataset = Dataset(features, rng.integers(0, 2, 200).astype(np.int32), "made up", "0" * 64)
    model = flat_model(TanhNetwork(), jnp.zeros(4), softmax_cross_entropy_with_integer_labels)
    setting = setting_of(
        "mlp",
        adversary="examples",
        canaries=64,
        fresh=5000,
        batch_size=50,
        insertions=10,
        noise_multiplier=50.0,
        learning_rate=0.1,
        seed=1,
    )
    table = build.build(setting, dataset, build.Trainee(model, 2, "per_example"))
    found = conclude_setting(play(table, 30), setting)
    assert found.epsilon <= found.upper_bound < 0.3
    assert not found.claim_test.refuted


@pytest.mark.slow
def test_random_examples_leak_and_have_the_law_where_noise_hides_them(dataset):
    proven = {}
    for sigma in (0.2, 1e4):
        setting, table = make(dataset, noise_multiplier=sigma, learning_rate=0.1 / sigma)
        scores = play(table, 12)
        assert scores.draws == M and scores.dimension == 0 and scores.presence.all()
        assert (scores.scores == np.rint(scores.scores)).all()
        assert scores.scores.min() >= 0 and scores.scores.max() <= M
        found = conclude_setting(scores, setting)
        proven[sigma] = found.epsilon
        assert found.assumption_free.assumes.text == "nothing"
        assert len(found.path) == 12 and max(found.path) == found.epsilon
    drawn = M + 1 - scores.scores.astype(int)
    assert ranks.measure_law(drawn, scores.presence, M) > 1e-3
    assert proven[0.2] > 0.5 and proven[1e4] < 0.5


@pytest.mark.slow
def test_coordinates_are_ranked_among_all_others(dataset):
    setting, table = make(dataset, adversary="gc_r", afresh=True, noise_multiplier=0.5)
    parameters = table.init(jax.random.key(0)).size
    scores = play(table, 20)
    assert scores.draws == parameters - K == table.adversary.null.draws
    state = table.adversary.init(game.root(0, "canary"), jnp.zeros(parameters), jnp.float32(1))
    state = table.adversary.draw_for_run(state, jax.random.key(5))
    theta = jax.random.normal(jax.random.key(6), (parameters,))
    movement = np.asarray(state.reference - theta)
    own = np.asarray(state.canaries.indices)
    others = np.delete(movement, own)
    assert len(set(own.tolist())) == K
    expected = (others < movement[own][:, None]).sum(1)
    np.testing.assert_array_equal(table.adversary.score(state, (), theta, theta), expected)
    assert conclude_setting(scores, setting).epsilon > 3


def test_more_coordinates_than_float32_counts_are_refused():
    model = SimpleNamespace(n_parameters=2**24 + 13)
    knowledge = SimpleNamespace(model=model, canaries=K, rehearsal=lambda: None, predict_final=None)
    gc_r = biased.GcR(afresh=True)
    with pytest.raises(InputError, match="at most 16,777,216 other coordinates, not 16,777,217"):
        gc_r.make(knowledge)
    model.n_parameters -= 1
    assert gc_r.make(knowledge).null.draws == 2**24


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"adversary": "gc_r", "afresh": True}])
def test_diverged_runs_have_no_ranks(dataset, fields):
    _, table = make(dataset, learning_rate=1e38, **fields)
    with pytest.raises(InputError, match="run 0 diverged"):
        play(table, 2)
