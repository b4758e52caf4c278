"""Tests audits of sampled canaries against the bound for the sampler."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.claims import accounting, samplers
from audit.conclusions.concluded import conclude_setting, make_claim
from audit.conclusions.results import result_json
from audit.settings.make import setting_of
from audit.storage.store import Store
from audit.tasks.task import Dataset
from audit.training import build, game
from tests.cases import NO_LEAK

BATCHES = 5
DELTA = 1e-5


def made_up_data(seed, examples=100, width=784):
    """Rows of length 1 at most, with labels that follow a coordinate."""
    rows = np.random.default_rng(seed).normal(size=(examples, width)).astype(np.float32)
    rows /= 1.0001 * np.linalg.norm(rows, axis=1, keepdims=True)
    return Dataset(rows, (rows[:, 0] > 0).astype(np.int32), "made up", "0" * 64)


def conclude_logistic(sampler="shuffled:5", seed=0, epochs=4, runs=60, canaries=16, **more):
    """Trains runs of logistic regression against fresh directions, and concludes."""
    setting = setting_of(
        "logistic",
        adversary="sphere",
        sampler=sampler,
        canaries=canaries,
        steps=epochs * BATCHES,
        noise_multiplier=1.0,
        batch_size=20,
        seed=seed,
        **more,
    )
    played = build.build(setting, made_up_data(seed))
    [scores] = game.Player(played, runs).play_all([(0, runs)])
    return conclude_setting(scores, setting)


@pytest.mark.slow
def test_in_40_audits_no_gdp_limit_exceeds_the_mixture_over_orders():
    shares = []
    for seed in range(40):
        concluded = conclude_logistic(seed=seed)
        mixture = concluded.hidden_state.bound.epsilon
        limit = concluded.finding("exact_null_gdp").epsilon
        assert limit <= mixture
        shares.append(limit / mixture)
    assert np.median(shares) > 0.3  # the audits see what there is to see


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["shuffled:5", "balls_in_bins:5"])
def test_linear_losses_leak_what_the_closed_form_says(sampler, tmp_path):
    """All gradients are constant; mu is sqrt(E / b) / sigma."""

    def loss(params, labelled):
        return params["w"] @ labelled[0] + 0 * labelled[1]

    epochs = 20
    features = np.random.default_rng(0).normal(size=(40, 200)).astype(np.float32)
    trained = audit.audit_loss(
        loss,
        {"w": jnp.zeros(200)},
        features,
        np.ones(40, np.float32),
        runs=800,
        adversary="gc_r",
        canaries=16,
        sampler=sampler,
        steps=epochs * BATCHES,
        noise_multiplier=1.0,
        batch_size=8,
        out=tmp_path,
    )
    scores = Store.at(trained.folder).load(800)
    present = scores.scores[scores.presence]
    absent = scores.scores[~scores.presence]
    mu = (present.mean() - absent.mean()) / absent.std()
    assert mu == pytest.approx(np.sqrt(epochs / BATCHES), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["poisson:0.2", "balls_in_bins:5", "random_allocation:5"])
def test_fresh_directions_come_as_other_samplers_say(sampler):
    concluded = conclude_logistic(sampler)
    limit = concluded.finding("exact_null_gdp").epsilon
    assert 0 < limit <= concluded.tightest.epsilon <= concluded.upper_bound


def test_shuffled_canaries_have_the_mixture_over_orders():
    setting = setting_of("logistic", sampler="shuffled:5", steps=20, noise_multiplier=1.0)
    concluded = conclude_setting(NO_LEAK, setting)
    composed = accounting.epsilon_upper_bound(1.0, 4, DELTA)
    assert concluded.upper_bound == composed
    mixture = samplers.bound_one_of_each_epoch(samplers.make_schedule(1.0, 5, 4), DELTA)
    assert concluded.hidden_state.bound.epsilon == pytest.approx(mixture.epsilon, rel=1e-9)
    assert concluded.hidden_state.bound.mu == pytest.approx(mixture.mu)
    assert concluded.epsilon_if_linear < mixture.epsilon < composed

    shown = json.loads(result_json(concluded))
    assert shown["last_model"]["epsilon"] == concluded.hidden_state.bound.epsilon


def test_balls_in_bins_are_claimed_by_their_own_accountant():
    setting = setting_of("fcnn", sampler="balls_in_bins:5", steps=20, noise_multiplier=1.0)
    claim = make_claim(setting)
    concluded = conclude_setting(NO_LEAK, setting)
    assert concluded.upper_bound == claim.epsilon(DELTA)
    assert claim.epsilon(DELTA) < accounting.epsilon_upper_bound(1.0, 4, DELTA)
    rates = np.array([0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0])
    assert (np.diff(claim.power(rates)) >= 0).all()
    assert (claim.power(rates) <= audit.Gdp(2.0).power(rates) + 1e-12).all()


@pytest.mark.slow
def test_poisson_canaries_profit_from_the_mixture_where_every_step_may_take_them():
    given = {"steps": 12, "noise_multiplier": 1.0}
    every = conclude_setting(NO_LEAK, setting_of("logistic", **given))
    sampled = conclude_setting(NO_LEAK, setting_of("logistic", sampler="poisson:0.2", **given))
    assert sampled.hidden_state.bound.epsilon < every.hidden_state.bound.epsilon
    assert sampled.hidden_state.bound.mu == pytest.approx(every.hidden_state.bound.mu)
