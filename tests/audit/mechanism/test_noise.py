"""Tests that correlated noise is S^-1 z in any segments, and leaks as predicted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import audit
from audit.claims.strategies import make_strategy, read_strategy
from audit.conclusions.concluded import conclude_setting
from audit.mechanism import base, dpsgd
from audit.settings.make import setting_of
from audit.settings.setting import validate
from audit.storage.store import Scores
from audit.training import build, game
from tests.cases import mostly_slow

T = 24
STRATEGIES = ("bisr:5", "bsr:5", "independent", "lambda:0.9", "sqrt", "dense")


def make(text, steps=T):
    if text == "dense":
        matrix = np.tril(np.random.default_rng(0).random((steps, steps))) + np.eye(steps)
        return make_strategy(matrix, steps)
    return read_strategy(text, steps)


def train(text, cuts=(T,)):
    """Returns the models (T, p) of a run without gradients, whose steps subtract only noise."""
    strategy = make(text)
    coefficients = dpsgd.Coefficients(*map(jnp.float32, strategy.noise_coefficients()))
    bands = len(coefficients.of_noise)
    silent = dpsgd.mechanism(dpsgd.DPSGD(lambda theta, batch, norm: 0 * theta, bands=bands))
    hyper = base.Hyperparameters(1.0, 1.0, 1.5, mechanism_specific=coefficients)
    data = jnp.zeros((2, 1)), jnp.zeros(2)

    @jax.jit
    def advance(state, schedule):
        key = jax.random.key(3)
        return silent.segment(hyper, state, data, schedule, base.no_canaries(), key)

    state = silent.start(jnp.zeros(7))
    models = []
    for start, stop in zip((0, *cuts[:-1]), cuts, strict=True):
        schedule = base.Schedule(jnp.zeros((stop - start, 1), int), jnp.zeros(stop - start))
        state = advance(state, schedule)
        models.append(np.asarray(state.theta))
    return np.array(models)


@pytest.mark.parametrize("text", mostly_slow(STRATEGIES))
def test_noise_is_the_strategys(text):
    models = train(text, tuple(range(1, T + 1)))
    added = -np.diff(models, axis=0, prepend=0)
    keys = [jax.random.fold_in(jax.random.key(3), step) for step in range(T)]
    raw = np.array([1.5 * np.asarray(jax.random.normal(key, (7,))) for key in keys], np.float64)
    np.testing.assert_allclose(added, make(text).solve(raw), atol=2e-5)


@pytest.mark.parametrize("text", mostly_slow(STRATEGIES))
def test_noise_does_not_depend_on_segments(text):
    np.testing.assert_array_equal(train(text)[-1], train(text, (5, 6, 17, T))[-1])


@pytest.mark.parametrize("strategy", mostly_slow(["bisr:4", "bsr:4"]))
def test_runs_are_equal_to_the_bit_in_any_chunks(dataset, strategy):
    setting = setting_of("fcnn", adversary="gc_r", steps=20, batch_size=50, noise=strategy)
    table = build.build(setting, dataset)
    (whole,) = game.Player(table, 8).play_all([(0, 8)])
    parts = list(game.Player(table, 2).play_all([(0, 8)]))
    np.testing.assert_array_equal(whole.scores, np.concatenate([one.scores for one in parts]))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["independent", "bisr:16"])
@pytest.mark.parametrize("k", [5, 25])
def test_trained_models_leak_as_linear_losses_do(dataset, strategy, k):
    """The shift of the cosines of fresh directions is mu standard deviations, within 3 standard errors."""
    runs, canaries, steps = 24, 64, 250
    claim = audit.MatrixMechanism(strategy, 1.0, steps, k=k).with_epsilon(24.0, 1e-5)
    setting = setting_of(
        "wide_fcnn",
        adversary="sphere",
        canaries=canaries,
        batch_size=100,
        learning_rate=0.01,
        k=k,
        steps=steps,
        noise=strategy,
        noise_multiplier=claim.noise_multiplier,
    )
    (scores,) = game.Player(build.build(setting, dataset), runs).play_all([(0, runs)])
    shares = scores.scores.mean(axis=1) * scores.dimension**0.5
    measured, error = shares.mean(), shares.std() / runs**0.5
    predicted = claim.linear_mu() / np.sqrt(1 + claim.linear_mu() ** 2 / scores.dimension)
    assert abs(measured - predicted) < 3 * error + 0.01 * predicted


@pytest.mark.slow
def test_without_insertion_at_most_5_percent_of_audits_prove_anything(dataset):
    """500 audits of eight runs each, of 4 canaries that no step inserts."""
    given = {"canaries": 32, "coins": True, "batch_size": 50, "noise": "bisr:4"}
    setting = setting_of("wide_fcnn", adversary="sphere", steps=6, **given)
    (scores,) = game.Player(build.build(setting, dataset), 4000).play_all([(0, 4000)])
    proven = 0
    for part in np.split(np.arange(4000), 500):
        rows = [scores.scores[run][~scores.presence[run]][:4] for run in part]
        evidence = audit.cosines(np.array(rows), scores.dimension, in_order=True)
        proven += audit.bounds(evidence).epsilon > 0
    assert proven <= stats.binom.ppf(0.999, 500, 0.05)


def test_correlated_noise_has_no_sampler():
    with pytest.raises(
        audit.InputError, match="`noise=bsr:4` cannot be accounted for with `sampler=poisson"
    ):
        audit.audit("fcnn", noise="bsr:4", sampler="poisson:0.1", runs=4)
    with pytest.raises(audit.InputError, match="is not a strategy"):
        audit.audit("fcnn", noise="pink", runs=4)


def test_a_file_is_known_by_its_content(tmp_path):
    """Scores of other coefficients have another name, and a file that changed is not read for them."""
    path = tmp_path / "s.txt"
    settings = []
    for coefficients in ([1.0, 0.5], [1.0, 0.25]):
        np.savetxt(path, coefficients)
        settings.append(setting_of("fcnn", noise=str(path)))
    assert settings[0] != settings[1]
    validate(settings[1])
    with pytest.raises(audit.InputError, match="has changed since the audit"):
        validate(settings[0])


def test_no_linear_losses_are_expected_with_weight_decay():
    claims = {}
    for decay in (0.0, 0.1):
        setting = setting_of("fcnn", noise="bsr:4", weight_decay=decay, steps=20, batch_size=50)
        scores = Scores(0, np.arange(8.0)[:, None], np.arange(8)[:, None] % 2 == 1)
        claims[decay] = conclude_setting(scores, setting).epsilon_if_linear
    assert claims[0.0] > 0 and claims[0.1] is None
