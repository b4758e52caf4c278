"""The ConvNet: its size, and an audit whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import game
from audit.adversaries.biased import random_biased_dimension
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example
from models.convolutional import ConvNet, convnet


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def test_it_has_62006_parameters_and_normalises_pixels():
    model = convnet()
    assert model.n_parameters == 62_006 == model.init(jax.random.key(0)).size
    variables = ConvNet().init(jax.random.key(0), images(1)[0])
    dark, light = (jnp.full((32, 32, 3), value, jnp.uint8) for value in (0, 255))
    assert not np.allclose(ConvNet().apply(variables, dark), ConvNet().apply(variables, light))


def game_of(sigma, steps, seed):
    model = convnet()
    data = jnp.asarray(images(64)), jnp.asarray(np.random.default_rng(1).integers(0, 10, 64), jnp.int32)
    return game.Game(
        dpsgd.mechanism(dpsgd.DPSGD(per_example(model.loss))),
        random_biased_dimension(),
        model.init,
        data,
        base.Hyperparameters(0.01, 1.0, sigma),
        base.Schedule(base.fixed_shuffle(jax.random.key(3), 64, 4, steps), base.insertion_mask(steps, 1)),
        seed,
    )


@pytest.mark.slow
def test_genuine_gradients_do_not_interfere_and_mu_is_the_analytic_one():
    """In one of 62,006 coordinates the score is Gaussian with mu = sqrt(steps) / sigma."""
    steps, sigma, runs = 10, 2.0, 400
    (scores,) = game.play(game_of(sigma, steps, 0), [(0, runs)], runs)
    scores_in, scores_out = scores.worlds()
    unit = 0.01 / 4 * sigma * np.sqrt(steps)  # the noise's standard deviation in the final model
    mu = (scores_in.mean() - scores_out.mean()) / unit
    assert mu == pytest.approx(np.sqrt(steps) / sigma, abs=4 * np.sqrt(4 / runs))
    spread = np.sqrt((scores_in.var(ddof=1) + scores_out.var(ddof=1)) / 2)
    assert spread == pytest.approx(unit, rel=4 / np.sqrt(2 * runs))
    assert abs(spread / 1.25 - unit) > unit * 4 / np.sqrt(2 * runs)  # a wrong sigma would be seen
