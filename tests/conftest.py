"""What several rooms' tests share. JAX is imported by the fixtures that need it, since most tests don't."""

import numpy as np
import pytest
from absl import flags

from audit.mechanism.clipping import dense


def pytest_addoption(parser):
    """Options of tests/system/test_kills.py."""
    parser.addoption("--kills", type=int, default=20, help="how often test_kills kills audits")
    parser.addoption("--kills_out", help="an empty folder for its audits; by default a temporary one")


def pytest_configure():
    """Mains define flags of the same names; tests import several into one process: the last one counts."""
    define = flags.FlagValues.__setitem__

    def redefine(values, name, flag):
        if name in values:
            delattr(values, name)
        define(values, name, flag)

    flags.FlagValues.__setitem__ = redefine


@pytest.fixture(scope="session")
def image_file(tmp_path_factory):
    """An .npz file of random images in the form of Fashion-MNIST, 200 and 20 to test on."""
    path, rng = tmp_path_factory.mktemp("images") / "images.npz", np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 200), ("test", 20)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def dataset():
    """200 examples of 8 features whose labels follow a noisy linear rule."""
    from audit.task import Dataset

    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    labels = (features @ rng.normal(size=8) + rng.normal(size=200) > 0).astype(np.int32)
    return Dataset(features, labels, "synthetic", "0" * 64)


@pytest.fixture(scope="session")
def data(dataset):
    """The same on the device."""
    import jax.numpy as jnp

    return jnp.asarray(dataset.features), jnp.asarray(dataset.labels)


@pytest.fixture(scope="session")
def model():
    """The 68-parameter network."""
    from models.fcnn import fcnn

    return fcnn()


@pytest.fixture(scope="session")
def choices(model):
    """DP-SGD's choices on it."""
    from audit.mechanism import dpsgd

    return dpsgd.DPSGD(dense.book_keeping(model.module, model.unravel, model.criterion))


@pytest.fixture(scope="session")
def mechanism(choices):
    """DP-SGD on it."""
    from audit.mechanism import dpsgd

    return dpsgd.mechanism(choices)


@pytest.fixture(scope="session")
def silent_choices():
    """DP-SGD whose genuine gradients are all zero: what is left is the canary and the noise."""
    import jax.numpy as jnp

    from audit.mechanism import dpsgd

    return dpsgd.DPSGD(lambda theta, batch, clipping_norm: jnp.zeros_like(theta))


@pytest.fixture(scope="session")
def silent(silent_choices):
    """The mechanism of `silent_choices`."""
    from audit.mechanism import dpsgd

    return dpsgd.mechanism(silent_choices)


@pytest.fixture(scope="session")
def slow_clipped_sum():
    """Equation 2's sum as a Python loop: (gradient of one example, theta, batch, C) -> (p,) float64."""

    def clipped_sum(gradient, theta, batch, clipping_norm):
        total = np.zeros(theta.shape)
        for features, label in zip(*batch, strict=True):
            g = np.asarray(gradient(theta, (features, label)), np.float64)
            norm = np.linalg.norm(g)
            total += g if norm <= clipping_norm else g * (clipping_norm / norm)
        return total

    return clipped_sum


@pytest.fixture(scope="session")
def play():
    """play(game, ranges, chunk) -> all Scores as one."""
    from audit import game

    def run(table, ranges, chunk, progress=lambda runs, steps: None):
        parts = list(game.play(table, ranges, chunk, progress))
        return game.Scores(
            parts[0].first,
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.presence for part in parts]),
        )

    return run


@pytest.fixture(scope="session")
def empty_game(silent):
    """A game of 4 parameters and no genuine gradients, whose scores are Gaussian by construction."""
    import jax.numpy as jnp

    from audit import game
    from audit.adversaries import biased
    from audit.mechanism import base

    def build(steps=16, periodicity=1, sigma=2.0, clipping_norm=3.0, batch_size=4, **changes):
        table = game.Game(
            silent,
            biased.fixed_biased_dimension(2),
            lambda key: jnp.zeros(4),
            (jnp.zeros((batch_size, 1)), jnp.zeros(batch_size, int)),
            base.Hyperparameters(0.5, clipping_norm, sigma),
            base.Schedule(
                jnp.tile(jnp.arange(batch_size), (steps, 1)), base.insertion_mask(steps, periodicity)
            ),
            seed=0,
        )
        return table._replace(**changes)

    return build
