"""Tests the measured expansion of steps against singular values, and the search for jumps."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism import expansion
from audit.mechanism.base import Hyperparameters
from audit.mechanism.clipping.base import per_example
from audit.mechanism.expansion import Line
from audit.training.build import make_clipped_sum
from models.dense import fcnn
from tests.cases import mostly_slow

tanh_fcnn = partial(fcnn, activation="tanh")
RATE = 0.1
HYPER = Hyperparameters(RATE, 1.0, 4.0)
BATCH = 100


def batch(seed=0, features=8):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(BATCH, features)), jnp.float32)
    return x, jnp.asarray(rng.integers(0, 2, BATCH), jnp.int32)


def singular_value(clipped_sum, theta, labelled):
    """The largest singular value of the step's whole Jacobian."""
    of_theta = jax.jacrev(lambda theta: clipped_sum(theta, labelled, jnp.float32(1)))
    jacobian = jax.jit(of_theta)(theta)
    whole = np.eye(theta.size) - RATE / BATCH * np.asarray(jacobian, np.float64)
    return np.linalg.svd(whole, compute_uv=False)[0]


@pytest.mark.parametrize(
    ("make", "clipping"),
    mostly_slow(itertools.product([fcnn, tanh_fcnn], ["per_example", "book_keeping", "unfolded"])),
)
@pytest.mark.parametrize("most_whole", [0, expansion.MAX_WHOLE])
def test_iterations_and_the_whole_matrix_find_the_largest_singular_value_from_below(
    make, clipping, most_whole, monkeypatch
):
    monkeypatch.setattr(expansion, "MAX_WHOLE", most_whole)
    model = make()
    clipped_sum = make_clipped_sum(clipping, model)
    step = expansion.make_step_map(clipped_sum, HYPER)
    for seed in range(3):
        theta = 2 * model.init(jax.random.key(seed))
        exact = singular_value(clipped_sum, theta, batch(seed))
        found = expansion.largest_expansion(step, theta, batch(seed))
        assert 0.95 * (exact - 1) <= found.constant - 1 <= 1.0001 * (exact - 1) + 1e-7
        assert np.linalg.norm(found.direction) == pytest.approx(1)


def test_weight_decay_and_few_parameters_are_covered():
    def clipped_sum(theta, labelled, norm):
        return -BATCH * jnp.array([0.5, 0.0, -0.2]) * theta

    step = expansion.make_step_map(clipped_sum, HYPER._replace(weight_decay=0.1))
    found = expansion.largest_expansion(step, jnp.ones(3), batch())
    assert found.constant == pytest.approx(1 + RATE * (0.5 - 0.1), rel=1e-6)
    assert abs(found.direction[0]) == pytest.approx(1)


def test_a_gradient_of_zero_has_a_derivative():
    clipped_sum = per_example(lambda theta, example: jnp.sum(theta**2) / 2)
    step = expansion.make_step_map(clipped_sum, HYPER)
    found = expansion.largest_expansion(step, jnp.zeros(3), batch())
    assert found.constant == pytest.approx(1 - RATE, rel=1e-6)


LENGTH = 0.8 * RATE / BATCH  # of displacements: how far the coupled processes are apart


@pytest.fixture(scope="module")
def folded():
    """The step of a smooth network with a fold, and what its data are: (x, (model, normal, offset)), labels.

    Across a tenth of `LENGTH` the step's push along the normal grows from 0 to `LENGTH`; elsewhere its
    derivative is that of the network alone.
    """
    inner = make_clipped_sum("book_keeping", tanh_fcnn())

    def clipped_sum(theta, labelled, norm):
        (x, (model, normal, offset)), labels = labelled
        height = (theta - model) @ normal - offset
        share = jnp.clip(height / (LENGTH / 10), 0, 1)
        return inner(theta, (x, labels), norm) - BATCH / RATE * LENGTH * share * normal

    return expansion.make_step_map(clipped_sum, HYPER)


@pytest.mark.slow
@pytest.mark.parametrize("place", [-12.3, 0.4, 1.0, 12.3])
def test_secants_on_lines_meet_a_fold_within_their_reach(folded, place):
    x, labels = batch()
    for seed in range(5):
        theta = fcnn(activation="tanh").init(jax.random.key(seed))
        normal = np.random.default_rng(seed).normal(size=theta.size)
        normal /= np.linalg.norm(normal)
        offset = jnp.float32(place * LENGTH)
        labelled = ((x, (theta, jnp.asarray(normal, jnp.float32), offset)), labels)
        constant = expansion.largest_expansion(folded, theta, labelled).constant
        line = Line(LENGTH, 16, stretch_at_models=constant, largest_stretch_at_models=constant)
        along = np.stack([np.zeros(theta.size), normal])
        stretch = expansion.worst_on_lines(folded, theta, labelled, along, line)
        assert expansion.compute_excess(*stretch) > 0.4
        across = np.eye(theta.size)[:2] - normal[:2, None] * normal
        stretch = expansion.worst_on_lines(folded, theta, labelled, across, line)
        assert (expansion.compute_excess(*stretch) > 0) == (0 <= place <= 0.1)
