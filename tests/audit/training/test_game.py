"""Scores with a known distribution, and the seeds that a run's draws depend on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from audit.adversaries.base import Adversary, Observer
from audit.conclusions import concluded
from audit.errors import InputError
from audit.training import game
from tests import programs
from tests.cases import mostly_slow

RUNS = 20_000
P_VALUE = 1e-4


def _spread_is(samples, deviation):
    statistic = samples.var() * samples.size / deviation**2
    low, high = stats.chi2.ppf([P_VALUE / 2, 1 - P_VALUE / 2], samples.size - 1)
    return low < statistic < high


@pytest.mark.parametrize(
    ("steps", "k", "unknown"), mostly_slow([(22, 5, False), (16, 1, True), (16, 1, False)], quick=2)
)
def test_scores_are_the_two_gaussians_of_theory(empty_game, play, steps, k, unknown):
    """mu is insertions / (sigma sqrt(T)): all T steps add noise, and every k-th inserts the canary."""
    table = empty_game(steps, k, unknown_initialisation=unknown)
    s_in, s_out = concluded.read_coins(play(table, [(0, RUNS)], 6000)).pooled()
    assert len(s_in) == len(s_out) == RUNS // 2
    rate, norm, sigma, batch, insertions = 0.5, 3.0, 2.0, 4, steps // k
    deviation = rate * sigma * norm * np.sqrt(steps) / batch
    for scores, mean in ((s_in, rate * norm * insertions / batch), (s_out, 0.0)):
        assert abs(scores.mean() - mean) < 5 * deviation / np.sqrt(len(scores))
        assert _spread_is(scores, deviation) and not _spread_is(scores, 1.1 * deviation)
        assert not _spread_is(scores, deviation / 1.1)
        assert stats.kstest((scores - mean) / deviation, "norm").pvalue > P_VALUE
    mu = (s_in.mean() - s_out.mean()) / np.sqrt((s_in.var() + s_out.var()) / 2)
    assert abs(mu - insertions / (sigma * np.sqrt(steps))) < 0.06
    assert abs(np.corrcoef(s_in, s_out)[0, 1]) < 5 / np.sqrt(RUNS / 2)


@pytest.mark.slow
def test_presence_alternates_or_is_a_coin_of_seed_and_run_alone(empty_game, play):
    table = empty_game(3)
    scores = play(table, [(4, 9)], 3)
    assert scores.first == 4
    np.testing.assert_array_equal(scores.presence[:, 0], [False, True, False, True, False])
    several = table._replace(seed=3, adversary=table.adversary._replace(canaries=64))
    whole = several.presence(np.arange(2000))
    np.testing.assert_array_equal(several.presence(np.arange(700, 705)), whole[700:705])
    assert (several._replace(seed=4).presence(np.arange(2000)) != whole).mean() > 0.4
    assert abs(whole.mean() - 0.5) < 5 * 0.5 / np.sqrt(whole.size)
    assert np.abs(np.corrcoef(whole, rowvar=False)[np.triu_indices(64, 1)]).max() < 6 / np.sqrt(
        2000
    )


@pytest.mark.slow
def test_draws_depend_on_seed_and_run_alone(empty_game, play):
    table = empty_game(1, 2)  # one step, no insertion: a score is one draw
    whole = play(table, [(0, 16)], 16).scores
    np.testing.assert_array_equal(play(table, [(3, 14)], 5).scores, whole[3:14])
    root = game.root(0, "noise")
    runs = np.arange(40, 44)
    for key, run in zip(jax.random.key_data(table.run_keys("noise", runs)), runs, strict=True):
        np.testing.assert_array_equal(key, jax.random.key_data(jax.random.fold_in(root, run)))
    first, again, other = (play(empty_game(5, seed=seed), [(0, 4)], 4).scores for seed in (3, 3, 4))
    np.testing.assert_array_equal(again, first)
    assert np.abs(other - first).min() > 1e-6


def _recording(seen):
    """Returns an adversary along a fixed coordinate that records the theta_0 that it gets."""
    inner = programs.fixed_dimension(2)

    def init(key, theta_0, clipping_norm):
        seen.append(np.asarray(theta_0))
        return inner.init(key, theta_0, clipping_norm)

    return inner._replace(init=init, score=lambda state, seen, theta_t, theta_0: theta_t[2][None])


@pytest.mark.parametrize("unknown", [False, True])
def test_initialisation(empty_game, play, unknown):
    """Without noise, insertions and gradients, the score of `_recording` is theta_0[2]."""
    seen = []
    init = functools.partial(jax.random.normal, shape=(4,))
    changes = {"adversary": _recording(seen), "init": init, "unknown_initialisation": unknown}
    scores = play(table := empty_game(3, 4, sigma=0.0, **changes), [(0, 10)], 4).scores
    root = game.root(table.seed, "theta")
    expected = [init(jax.random.fold_in(root, run) if unknown else root)[2] for run in range(10)]
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-6)
    assert len(np.unique(scores)) == (10 if unknown else 1)
    assert (seen[0][2] in np.float32(scores)) != unknown  # the adversary guesses, or knows


def _ill(seed, run):
    bad = jax.random.key_data(jax.random.fold_in(game.root(seed, "theta"), run))
    return lambda key: jnp.where(jnp.all(jax.random.key_data(key) == bad), jnp.nan, jnp.zeros(4))


def test_a_diverged_run_is_named_and_one_that_only_pads_a_chunk_not_looked_at(empty_game, play):
    table = empty_game(3, init=_ill(0, 6), unknown_initialisation=True)
    with pytest.raises(InputError, match=r"^run 6 diverged \(1 of 4 .*`learning_rate`") as caught:
        play(table, [(0, 8)], 4)
    assert "\n" not in str(caught.value)
    heard = []
    assert len(play(table, [(0, 6)], 4, heard.append).scores) == 6
    assert heard == [0, 4, 2]


def _several(norm=9.0, observer=None):
    """Returns an adversary with canaries of this norm along coordinates 0, 1 and 3."""
    dimensions = jnp.array([0, 1, 3])
    return Adversary(
        lambda key, theta_0, clipping_norm: norm * jnp.eye(4)[dimensions],
        lambda state, step, theta: state,
        lambda state, seen, theta_t, theta_0: (theta_0 - theta_t)[dimensions],
        canaries=3,
        observer=observer,
    )


@pytest.mark.slow
def test_an_observer_sees_every_released_iterate(empty_game, play):
    """An observer sums all iterates: m (1 + 2 + ... + T) for a model that moves by m per step."""
    observer = Observer(
        lambda state, theta_0: theta_0,
        lambda state, seen, step, released: seen + released * (step + 1) / (step + 1),
    )
    score = lambda state, seen, theta_t, theta_0: -seen[jnp.array([0, 1, 3])]  # noqa: E731
    watching = _several(observer=observer)._replace(score=score)
    for steps in (5, 260):  # one segment, and two
        scores = play(empty_game(steps, sigma=0.0, adversary=watching), [(0, 8)], 8)
        expected = 0.5 * 3.0 / 4 * steps * (steps + 1) / 2 * scores.presence
        np.testing.assert_allclose(scores.scores, expected, rtol=1e-4)


def test_games_of_equal_functions_share_what_is_compiled(empty_game, play):
    traced = []

    @dataclasses.dataclass(frozen=True)
    class Craft:
        size: float

        def __call__(self, state, step, theta):
            traced.append(step)
            return jnp.full((1, 4), self.size)

    def scores(craft, seed):
        adversary = empty_game().adversary._replace(craft=craft)
        return play(empty_game(3, seed=seed, adversary=adversary), [(0, 4)], 4).scores

    first = scores(Craft(1.0), 0)
    once = len(traced)
    assert once and np.abs(scores(Craft(1.0), 1) - first).max() > 1e-6 and len(traced) == once
    assert not np.array_equal(scores(Craft(0.1), 0), first) and len(traced) == 2 * once
    for _ in range(2):  # functions that are made anew equal no others
        np.testing.assert_array_equal(scores(lambda *given: Craft(1.0)(*given), 0), first)
    assert len(traced) == 4 * once


def test_named_roots_differ():
    streams = ("theta", "noise", "canary", "batches", "guess", "presence", "own")
    names = [(seed, name) for seed in (0, 1, 2**32 - 1) for name in streams]
    assert len({tuple(np.asarray(jax.random.key_data(game.root(*name)))) for name in names}) == len(
        names
    )
    assert "fry" in str(
        jax.random.key_impl(game.root(0, "noise"))
    )  # never rbg: vmap would share draws
