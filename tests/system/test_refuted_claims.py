"""Tests that some training runs refute the claim of an engine with a bug, but not of a correct engine.

The accounting and the claim test do not know the bugs.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from audit.claims.claim import DpSgd
from audit.conclusions import concluded
from audit.mechanism import dpsgd
from audit.methods import claimed_curve, exact_null
from audit.settings.make import setting_of
from audit.training import build, game
from tests.programs import forget

CANARIES = 32  # of 2,689 parameters: leave-one-out scores cost half a percent of mu, with 128 2.4%
MOST_RUNS = 150
CHUNK = 25
CONFIDENCE = 0.95
CLIPPING_NORM = 1.5


@pytest.fixture
def examine(dataset):
    """examine(noise=1.0, seed=0) -> the test of the claim of a wide FCNN, with so much of the stated noise.

    Runs are trained until the claim is refuted, at most MOST_RUNS.
    """

    def run(noise=1.0, seed=0):
        setting = setting_of(
            "wide_fcnn",
            adversary="sphere",
            canaries=CANARIES,
            batch_size=50,
            clipping_norm=CLIPPING_NORM,
            seed=seed,
        )
        table = build.build(setting, dataset)
        sigma = table.hyper.noise_multiplier
        planted = table._replace(
            hyper=table.hyper._replace(noise_multiplier=noise * sigma),
        )
        power = DpSgd(*setting.composition).power
        scores, presence = [], []
        for part in game.Player(planted, CHUNK).play_all([(0, MOST_RUNS)]):
            scores.append(part.scores)
            presence.append(part.presence)
            whole = part._replace(
                first=0, scores=np.concatenate(scores), presence=np.concatenate(presence)
            )
            counted = exact_null.compute_exceedances(concluded.read_directions(whole))
            test = claimed_curve.examine_claim(counted, power, CONFIDENCE)
            if test.refuted:
                break
        return test

    return run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_correct_twin_is_not_refuted(examine, seed):
    test = examine(seed=seed)
    print(test)
    assert not test.refuted and test.runs == MOST_RUNS


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "most"), [(0.95, MOST_RUNS), (0.9, 40), (0.5, 3)])
def test_noise_below_the_stated_one_is_refuted(examine, noise, most):
    test = examine(noise)
    print(test)
    assert test.refuted and test.runs <= most


@pytest.mark.slow
def test_noise_of_deviation_sigma_and_not_sigma_c_is_refuted(examine):
    test = examine(noise=1 / CLIPPING_NORM)
    print(test)
    assert test.refuted and test.runs <= 4


@pytest.fixture
def find_layer(dataset):
    """find_layer(name) -> the places of a layer's parameters in the flat vector of a wide FCNN."""

    def find(name):
        model = build.trainee("wide_fcnn", dataset).model
        layers = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
        places = [np.ravel(leaf) for leaf in layers[name].values()]
        return np.concatenate(places).astype(int)

    return find


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "most"), [("Dense_0", 25), ("Dense_1", 2)])
def test_noise_that_is_missing_in_a_layer_is_refuted(examine, find_layer, monkeypatch, layer, most):
    """The first layer has a fifth of all parameters, the second three quarters."""
    honest = dpsgd.draw_noise
    places = find_layer(layer)

    def draw(key, deviation, theta):
        return honest(key, deviation, theta).at[places].set(0.0)

    monkeypatch.setattr(dpsgd, "draw_noise", draw)
    forget()  # the programs of the honest noise
    test = examine()
    forget()
    print(test)
    assert test.refuted and test.runs <= most
