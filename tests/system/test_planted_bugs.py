"""Tests that bounds of a correct engine are below the upper bound and near it, and that bugs are found.

The game has no genuine gradients, so the true mu is insertions / (sigma sqrt(steps)). With 4,000 runs and
confidence 0.999, `if_gaussian` proves 0.93 +- 0.02 of it, so tests do not fail by chance. The bugs are in
functions of the engine, and the accounting does not know them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.claims import accounting
from audit.conclusions import verdicts
from audit.conclusions.concluded import conclude_setting, read_coins
from audit.mechanism import base, dpsgd
from audit.methods import estimate
from audit.settings.make import setting_of
from audit.settings.setting import validate
from audit.tasks.task import Dataset
from audit.training import build, game
from tests import programs
from tests.cases import mostly_slow

RUNS, STEPS, SIGMA, NORM, BATCH = 4000, 20, 2.0, 4.0, 4
HONEST = (0.85, 1.0)


@pytest.fixture(autouse=True)
def _fresh_programs():
    """A bug is planted in functions that compiled programs already hold."""
    programs.forget()
    yield
    programs.forget()


def _bound(scores):
    return estimate.if_gaussian(*read_coins(scores).pooled(), delta=1e-5, confidence=0.999)


@pytest.fixture
def ratio(empty_game, play):
    """ratio(**changes of the game) -> the bound on mu over the claimed upper bound."""

    def run(periodicity=1, **changes):
        table = empty_game(STEPS, periodicity, SIGMA, NORM, BATCH, **changes)
        bound = _bound(play(table, [(0, RUNS)], RUNS))
        return bound.mu / accounting.mu_upper_bound(SIGMA, STEPS // periodicity)

    return run


@pytest.mark.parametrize("seed", mostly_slow(range(3)))
def test_the_honest_engine(ratio, seed):
    low, high = HONEST
    assert low < ratio(seed=seed) < high


def test_the_honest_engine_hides_what_the_theory_says_it_hides(ratio):
    """k = 5: the hidden state leaks 1/sqrt(5) of what composition allows."""
    low, high = HONEST
    assert low - 0.15 < ratio(periodicity=5) * np.sqrt(5) < high


def _step_with(monkeypatch, change):
    """Plants change(hyper, inserted, batch) -> (hyper, inserted) in front of every step."""
    honest = dpsgd.step

    def step(choices, hyper, state, batch, inserted, noise_key):
        hyper, inserted = change(hyper, inserted, batch)
        return honest(choices, hyper, state, batch, inserted, noise_key)

    monkeypatch.setattr(dpsgd, "step", step)


def _scaled_noise(factor):
    """factor(hyper, batch) multiplies the noise."""

    def change(hyper, inserted, batch):
        noise = hyper.noise_multiplier * factor(hyper, batch)
        return hyper._replace(noise_multiplier=noise), inserted

    return change


STEP_BUGS = {
    "no noise": _scaled_noise(lambda hyper, batch: 0.0),
    "noise of deviation sigma, not sigma C": _scaled_noise(
        lambda hyper, batch: 1 / hyper.clipping_norm
    ),
    "noise divided by the batch twice": _scaled_noise(lambda hyper, batch: 1 / len(batch[1])),
    "sigma taken for a variance": _scaled_noise(lambda hyper, batch: hyper.noise_multiplier**-0.5),
    "canary inserted twice": lambda hyper, inserted, batch: (hyper, 2 * inserted),
}


@pytest.mark.parametrize("bug", mostly_slow(STEP_BUGS, quick=3))
def test_a_bug_in_the_step_breaks_the_upper_bound(ratio, monkeypatch, bug):
    _step_with(monkeypatch, STEP_BUGS[bug])
    assert ratio() > 1.05


def _louder(adversary, factor):
    return adversary._replace(craft=lambda *arguments: factor * adversary.craft(*arguments))


@pytest.mark.slow
def test_an_inserted_vector_of_3_c(ratio, empty_game, monkeypatch):
    loud = _louder(empty_game().adversary, 3.0)
    low, high = HONEST
    assert low < ratio(adversary=loud) < high  # the engine clips it
    monkeypatch.setattr(base, "clip", lambda vector, clipping_norm: vector)
    programs.forget()
    assert ratio(adversary=loud) > 1.5


def test_the_same_noise_in_every_run(empty_game, play, monkeypatch):
    honest = game.Game.run_keys

    def one_key(self, name, runs):
        return honest(self, name, np.zeros_like(runs))

    monkeypatch.setattr(game.Game, "run_keys", one_key)
    scores = play(empty_game(STEPS, 1, SIGMA, NORM, BATCH), [(0, RUNS)], RUNS)
    for world in read_coins(scores).pooled():
        assert np.ptp(world) < 1e-5
    assert _bound(scores).mu > 1.5 * accounting.mu_upper_bound(SIGMA, STEPS)


def test_noise_that_repeats_in_pairs_of_runs_is_not_independent(empty_game, play, monkeypatch):
    """No bound sees it, since each world's law is right; the worlds' correlation does."""
    honest = game.Game.run_keys
    monkeypatch.setattr(
        game.Game, "run_keys", lambda self, name, runs: honest(self, name, np.asarray(runs) // 2)
    )
    scores = play(empty_game(STEPS, 1, SIGMA, NORM, BATCH), [(0, 200)], 200)
    s_in, s_out = read_coins(scores).pooled()
    assert np.corrcoef(s_in, s_out)[0, 1] > 0.99


HIDING = {
    "canary lost": lambda hyper, inserted, batch: (hyper, 0 * inserted),
    "canary halved": lambda hyper, inserted, batch: (hyper, inserted / 2),
    "twice the noise": _scaled_noise(lambda hyper, batch: 2.0),
}


@pytest.mark.parametrize("bug", mostly_slow(HIDING))
def test_a_bug_that_hides_the_leak_falls_short(ratio, monkeypatch, bug):
    _step_with(monkeypatch, HIDING[bug])
    assert ratio() < HONEST[0] - 0.2


def test_the_same_noise_at_every_step_falls_short(ratio, monkeypatch):
    honest = jax.random.fold_in

    def without_steps(key, data):
        is_step = getattr(data, "dtype", None) == jnp.int32
        return key if is_step else honest(key, data)

    monkeypatch.setattr(jax.random, "fold_in", without_steps)
    assert 0 < ratio() < HONEST[0] - 0.2


def test_worlds_in_the_wrong_order_certify_nothing(ratio, empty_game):
    adversary = empty_game().adversary
    swapped = adversary._replace(score=lambda *arguments: -adversary.score(*arguments))
    assert ratio(adversary=swapped) == 0


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["gc_s", "gc_r", "cots", "loss"])
def test_the_whole_audit_on_genuine_gradients(dataset, play, adversary):
    from audit.settings.make import setting_of
    from audit.training import build

    named = {"noise_multiplier": SIGMA, "batch_size": 50, "steps": 40, "learning_rate": 0.05}
    setting = setting_of("fcnn", adversary=adversary, **named)
    validate(setting, RUNS)
    scores = play(build.build(setting, dataset), [(0, RUNS)], 1000)
    share = _bound(scores).mu / accounting.mu_upper_bound(SIGMA, setting.insertions)
    assert share < 1
    if adversary in ("gc_s", "loss"):
        assert share > HONEST[0]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0, 1), (0.9, 8, 10)])
def test_too_little_noise_exceeds_the_hidden_state_bound_alone(factor, least, most, play):
    """Ten audits of logistic regression at k = 5 with noise of which a tenth is missing: it leaks a third of
    what composition allows."""
    features = np.zeros((60, 320), np.float32)
    features[:, :20] = np.random.default_rng(0).normal(size=(60, 20)) / 9
    data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
    setting = setting_of("logistic", k=5, insertions=250, canaries=256, batch_size=4)
    table = build.build(setting, data)
    table = table._replace(hyper=table.hyper._replace(noise_multiplier=factor * 4.0))
    found = play(table, [(0, 2000)], 200)
    violated = 0
    for first in range(0, 2000, 200):
        runs = slice(first, first + 200)
        scores = game.Scores(0, found.scores[runs], found.presence[runs])
        concluded = conclude_setting(scores, setting)
        violated += concluded.verdict.kind == verdicts.VIOLATED
        assert max(concluded.gaussian.epsilon, concluded.epsilon) < 0.5 * concluded.upper_bound
    assert least <= violated <= most
