"""Tests fresh directions against NumPy: their seeds, insertion and scores."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from audit.adversaries import directions, sphere
from audit.adversaries.base import NullLaw
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import Fresh
from audit.laws import cosine_law
from audit.mechanism import base
from audit.methods import exact_null
from audit.methods.exact_null import LAW_LEVEL
from audit.report import bounds_table
from audit.settings.make import setting_of
from audit.training import build, game
from tests.cases import mostly_slow
from tests.forks import python

P = base.BLOCK + 904  # more than a block, and no multiple
K, STEPS = 12, 6


def _adversary(canaries=K, leave_one_out=True, all_in=True):
    null = NullLaw(all_in, dimension=P)
    return sphere.fresh_directions(canaries, directions.initial_model, leave_one_out, null)


def _table(empty_game, adversary, steps=STEPS, parameters=P, **changes):
    return empty_game(steps, adversary=adversary, init=lambda key: jnp.zeros(parameters), **changes)


def _run_state(adversary, seed, run, parameters=P):
    state = adversary.init(game.root(seed, "canary"), jnp.zeros(parameters), jnp.float32(3.0))
    return adversary.draw_for_run(state, jax.random.fold_in(game.root(seed, "own"), run))


def _units(adversary, run, seed=0, parameters=P):
    """A run's directions (K, p) as they are inserted, in float64."""
    keys = _run_state(adversary, seed, run, parameters).canaries.keys
    return np.array(
        [base.draw_unit_direction(key, jnp.zeros(parameters)) for key in keys], np.float64
    )


def _left_out(units, u):
    """Each direction's cosine with u off all others, by a least squares of its own."""
    found = []
    for k, unit in enumerate(units):
        others = np.delete(units, k, axis=0).T
        rest = u - others @ np.linalg.lstsq(others, u, rcond=None)[0]
        found.append(unit @ rest / np.linalg.norm(rest))
    return np.array(found)


def _plain(units, u):
    return units @ u / np.linalg.norm(u)


@pytest.mark.slow
@pytest.mark.parametrize(("leave_one_out", "expected"), [(True, _left_out), (False, _plain)])
def test_scores_are_numpys_and_what_is_scored_was_inserted(
    empty_game, play, leave_one_out, expected
):
    """Without noise and gradients the model moves along the sum of the directions, C a step."""
    adversary = _adversary(leave_one_out=leave_one_out)
    table = _table(empty_game, adversary, sigma=0.0)
    scores = play(table, [(0, 3)], 3).scores
    for run in range(3):
        units = _units(adversary, run)
        np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, rtol=1e-6)
        moved = []
        game_of_one = table._replace(adversary=adversary._replace(score=_first(moved)))
        next(game.Player(game_of_one, 1).play_all([(run, run + 1)]))
        np.testing.assert_allclose(moved[-1], -0.5 * 3.0 * STEPS / 4 * units.sum(axis=0), atol=2e-6)
        np.testing.assert_allclose(
            scores[run], expected(units, units.sum(axis=0)), rtol=0, atol=1e-4
        )


def _first(moved):
    def score(state, seen, theta_t, theta_0):
        jax.debug.callback(lambda theta: moved.append(np.asarray(theta)), theta_t)
        return theta_t[:K]

    return score


@pytest.mark.parametrize(
    ("parameters", "canaries", "draws"),
    mostly_slow([(1200, 20, 3), (1200, 600, 3), (68, 34, 2000)]),
)
def test_the_inverse_converges_where_canaries_are_many_for_the_dimension(
    parameters, canaries, draws
):
    """Of 68 parameters the eigenvalues of 34 directions pass Marchenko and Pastur's edges at times."""

    @jax.jit
    def found(keys):
        drawn = jax.vmap(lambda key: jax.random.normal(key, (canaries, parameters)))(keys)
        units = drawn / jnp.linalg.norm(drawn, axis=2, keepdims=True)
        grams = units @ jnp.swapaxes(units, 1, 2)
        return grams, jax.vmap(lambda gram: sphere._inverse(gram, parameters))(grams)

    grams, inverses = map(np.asarray, found(jax.random.split(jax.random.key(0), draws)))
    errors = np.abs(inverses.astype(np.float64) @ grams - np.eye(canaries)).max(axis=(1, 2))
    assert errors.max() < 1e-3 and np.median(errors) < 2e-5


def test_directions_are_of_the_seed_the_run_and_the_canary_alone():
    adversary = _adversary()
    states = {(seed, run): _run_state(adversary, seed, run) for seed in (0, 1) for run in range(3)}
    keys = [
        np.asarray(jax.random.key_data(state.canaries.keys)).reshape(-1, 2)
        for state in states.values()
    ]
    blocks = -(-P // base.BLOCK)
    assert len(np.unique(np.concatenate(keys), axis=0)) == len(states) * K * blocks
    fewer = _run_state(_adversary(K), 1, 2).canaries.keys
    np.testing.assert_array_equal(jax.random.key_data(fewer), keys[-1].reshape(K, blocks, 2))
    cosines = np.concatenate([_units(adversary, run) for run in range(2)])
    apart = (cosines @ cosines.T)[np.triu_indices(2 * K, 1)]
    assert np.abs(apart).max() < 6 / np.sqrt(P)


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_devices():
    scores = []
    for devices in (1, 2):
        done = python("-c", ON_DEVICES, str(devices))
        assert done.returncode == 0, done.stderr
        scores.append(np.array(json.loads(done.stdout.splitlines()[-1])))
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=2e-6)


ON_DEVICES = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import numpy as np
from audit.training import game
from audit.training import build
from audit.settings.make import setting_of
from audit.tasks.task import Dataset

features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
setting = setting_of("wide_fcnn", adversary="sphere", canaries=64, batch_size=10, steps=5)
(scores,) = game.Player(build.build(setting, data), 4).play_all([(0, 4)])
print(json.dumps(scores.scores.tolist()))
"""


def _with_coins(empty_game, play, leave_one_out, runs=30, canaries=64):
    """Scores of runs with coins and noise, without gradients."""
    adversary = _adversary(canaries, leave_one_out, all_in=False)
    return play(_table(empty_game, adversary), [(0, runs)], runs)


@pytest.mark.slow
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_cosines_of_canaries_that_are_out_have_the_law(empty_game, play, leave_one_out):
    scores = _with_coins(empty_game, play, leave_one_out)
    out, present = scores.scores[~scores.presence], scores.scores[scores.presence]
    assert 0.4 < scores.presence.mean() < 0.6

    def below(cosines):
        return -np.expm1(cosine_law.log_sf(cosines, P))

    assert stats.kstest(out, below).pvalue > 1e-3 and stats.kstest(present, below).pvalue < 1e-6


@pytest.mark.slow
def test_coins_check_the_law_and_one_that_fails_withdraws_the_bound(empty_game, play):
    scores = _with_coins(empty_game, play, True)
    sound = Fresh(scores.scores, scores.presence, P)
    assert exact_null.law_test(sound.out(), P) > LAW_LEVEL
    proven = conclude(sound)
    assert (
        proven.epsilon > 0 and proven.assumption_free.holds and max(proven.path) == proven.epsilon
    )
    wrong = conclude(sound._replace(dimension=P // 4))
    assert wrong.epsilon == 0 and not wrong.assumption_free.holds and not any(wrong.path)
    said = "invalid: held-out canaries are not distributed like random directions"
    assert said in bounds_table.bounds_table(wrong) and said not in bounds_table.bounds_table(
        proven
    )


def _played(dataset, model="wide_fcnn", **fields):
    setting = setting_of(model, **{"adversary": "sphere", "batch_size": 50, **fields})
    return setting, build.build(setting, dataset)


def _theory(dimension, canaries, mu, leave_one_out):
    """The mean of cosine times sqrt(d) where u is mu (sum of directions) plus N(0, I): leave-one-out keeps
    the share q = 1 - (K - 1) / d of a direction and of the noise; else the others' K mu^2 lies upon it."""
    if leave_one_out:
        share = 1 - (canaries - 1) / dimension
        return mu * np.sqrt(share / (1 + mu**2 / dimension))
    return mu / np.sqrt(1 + canaries * mu**2 / dimension)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "canaries", "runs", "leave_one_out"),
    [("wide_fcnn", 256, 12, True), ("wide_fcnn", 12, 200, False), ("fcnn", 8, 600, True)],
)
def test_the_mean_cosine_is_theorys(dataset, play, model, canaries, runs, leave_one_out):
    """At a learning rate at which gradients hardly answer to canaries, and of 25 insertions at k = 1."""
    fields = {
        "canaries": canaries,
        "insertions": 25,
        "noise_multiplier": 4.0,
        "learning_rate": 1e-3,
    }
    _, table = _played(dataset, model, **fields)
    assert table.adversary.score == _adversary(leave_one_out=leave_one_out).score
    scores, dimension = play(table, [(0, runs)], runs).scores, table.init(jax.random.key(0)).size
    expected = _theory(dimension, canaries, 5 / 4.0, leave_one_out)
    error = 1 / np.sqrt(scores.size)
    assert scores.mean() * np.sqrt(dimension) == pytest.approx(
        expected, abs=0.03 * expected + 4 * error
    )
