"""Tests a step against Equation 2 in NumPy, its noise, and which values are traced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from audit.mechanism import base, dpsgd
from tests.cases import mostly_slow

KEY = jax.random.key(7, impl="threefry2x32")
HYPER = base.Hyperparameters(0.3, 0.5, 2.0)
P_VALUE = 1e-4


def one_canary(crafted, presence):
    return base.Canaries(lambda step, theta: crafted[None], jnp.asarray(presence)[None])


@pytest.fixture(scope="module")
def gradient(model):
    return jax.jit(jax.grad(model.loss))


@pytest.fixture(scope="module")
def theta(model):
    return model.init(jax.random.key(1))


@pytest.fixture(scope="module")
def schedule(data):
    batches = base.fixed_shuffle(jax.random.key(5), len(data[1]), 16, 10)
    return base.Schedule(batches, base.insertion_mask(10, 3))


@pytest.fixture(scope="module")
def train(mechanism):
    """train(hyper, state, data, schedule, crafted, presence, key) -> State, for one run."""

    @jax.jit
    def run(hyper, state, data, schedule, crafted, presence, key):
        return mechanism.segment(hyper, state, data, schedule, one_canary(crafted, presence), key)

    return run


@pytest.mark.parametrize("presence", [0.0, 1.0])
def test_a_step_is_equation_2(
    data, mechanism, train, theta, schedule, gradient, slow_clipped_sum, presence
):
    """Step 5, the second insertion of k = 3, with a canary of 3 C."""
    state = mechanism.start(theta)._replace(step=jnp.int32(5))
    now = base.Schedule(schedule.batches[5:6], schedule.mask[5:6])
    after = train(HYPER, state, data, now, jnp.zeros_like(theta).at[4].set(1.5), presence, KEY)
    batch = (data[0][now.batches[0]], data[1][now.batches[0]])
    noise = 1.0 * np.asarray(jax.random.normal(jax.random.fold_in(KEY, 5), theta.shape), np.float64)
    total = slow_clipped_sum(gradient, theta, batch, 0.5) + noise
    total[4] += presence * 0.5
    np.testing.assert_allclose(after.theta, np.asarray(theta) - 0.3 * total / 16, rtol=0, atol=1e-6)
    assert after.step == 6


def _is_gaussian_with(samples, deviation):
    statistic = np.sum((samples / deviation) ** 2)
    low, high = stats.chi2.ppf([P_VALUE / 2, 1 - P_VALUE / 2], samples.size)
    return low < statistic < high


@pytest.fixture(scope="module")
def silent_step(silent):
    """theta_1 from 0 of many runs without genuine gradients: silent_step(hyper, inserted (p,), presence,
    keys (R,)) -> (R, p)."""

    def one(hyper, inserted, presence, key):
        data, schedule = (
            (jnp.zeros((4, 1)), jnp.zeros(4, int)),
            base.Schedule(jnp.arange(4)[None], jnp.ones(1)),
        )
        state = silent.start(jnp.zeros_like(inserted))
        return silent.segment(
            hyper, state, data, schedule, one_canary(inserted, presence), key
        ).theta

    return jax.jit(jax.vmap(one, (None, None, None, 0)))


@pytest.mark.parametrize("clipping_norm", [0.25, 1.0, 4.0])
def test_noise_has_deviation_sigma_c(silent_step, clipping_norm):
    hyper = base.Hyperparameters(1.0, clipping_norm, 3.0)
    keys = jax.random.split(KEY, 80)
    noise = -4 * np.asarray(silent_step(hyper, jnp.zeros(500), 1.0, keys), np.float64)  # B / lr = 4
    assert _is_gaussian_with(noise, 3.0 * clipping_norm)
    assert not _is_gaussian_with(noise, 1.05 * 3.0 * clipping_norm)
    assert not _is_gaussian_with(noise, 3.0 * clipping_norm / 1.05)
    assert stats.kstest(noise.ravel() / (3.0 * clipping_norm), "norm").pvalue > P_VALUE
    per_coordinate = np.sum((noise / (3.0 * clipping_norm)) ** 2, axis=0)
    assert stats.kstest(per_coordinate, "chi2", args=(80,)).pvalue > P_VALUE


@pytest.mark.parametrize("length", [0.0, 0.3, 2.0, 6.0, 1e6])
def test_whatever_is_inserted_is_clipped(silent_step, length):
    direction = np.random.default_rng(0).normal(size=20)
    crafted = (length * direction / np.linalg.norm(direction)).astype(np.float32)
    hyper = base.Hyperparameters(1.0, 2.0, 0.0)
    moved = -4 * silent_step(hyper, jnp.asarray(crafted), 1.0, KEY[None])[0]
    np.testing.assert_allclose(moved, crafted * min(1, 2.0 / max(length, 1e-9)), rtol=1e-5)
    assert not np.any(silent_step(hyper, jnp.asarray(crafted), 0.0, KEY[None]))


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("name", mostly_slow(["adamw", "momentum", "sgd", "adam"], quick=2))
def test_any_optimizer_sees_the_privatised_mean_and_decay(
    data, choices, theta, schedule, name, decay, gradient, slow_clipped_sum
):
    make = {
        "sgd": optax.sgd,
        "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
        "adam": optax.adam,
        "adamw": optax.adamw,
    }[name]
    other, canary = (
        dpsgd.mechanism(choices._replace(optimizer=make)),
        one_canary(jnp.ones_like(theta), 1.0),
    )
    hyper, decayed = (
        HYPER._replace(weight_decay=decay),
        optax.chain(optax.add_decayed_weights(decay), make(0.3)),
    )
    if name == "adamw":
        decayed = optax.adamw(0.3, weight_decay=decay)
    run = jax.jit(lambda state, now: other.segment(hyper, state, data, now, canary, KEY))
    state = run(other.start(theta), jax.tree.map(lambda a: a[:4], schedule))
    expected, optimizer_state = theta, decayed.init(theta)
    for t in range(4):
        batch = (data[0][schedule.batches[t]], data[1][schedule.batches[t]])
        total = slow_clipped_sum(gradient, expected, batch, 0.5)
        total += jax.random.normal(jax.random.fold_in(KEY, t), theta.shape)
        total += schedule.mask[t] * 0.5 / np.sqrt(theta.size)
        mean = jnp.asarray(total / 16, jnp.float32)
        updates, optimizer_state = decayed.update(mean, optimizer_state, expected)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(state.theta, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "k", "inserted"),
    [(10, (5,), [4, 9]), (4, (5,), []), (12, (5, 1), [0, 5, 10]), (12, (5, 5), [4, 9])],
)
def test_insertion_mask(steps, k, inserted):
    mask = base.insertion_mask(steps, *k)
    assert mask.shape == (steps,) and np.flatnonzero(mask).tolist() == inserted
    assert set(np.unique(mask)) <= {0.0, 1.0}


@pytest.mark.parametrize(("n", "size", "steps"), [(23, 5, 9), (5, 1, 11)])
def test_fixed_shuffle(n, size, steps):
    shuffle = functools.partial(base.fixed_shuffle, KEY, n, size)
    batches, per_epoch = np.asarray(shuffle(steps)), n // size
    assert batches.shape == (steps, size)
    np.testing.assert_array_equal(shuffle(3 * per_epoch)[:steps], batches[: 3 * per_epoch])
    epochs = np.asarray(shuffle(3 * per_epoch)).reshape(3, -1)
    for epoch in epochs:  # no example twice, and all of them where batches divide the data
        assert len(set(epoch)) == per_epoch * size and set(epoch) <= set(range(n))
    assert not np.array_equal(epochs[0], epochs[1])


def test_simulate_is_training_without_insertion(data, mechanism, train, theta, schedule):
    simulate = jax.jit(functools.partial(base.simulate, mechanism))
    trajectory = simulate(HYPER, theta, data, schedule.batches, KEY)
    state, squares = mechanism.start(theta), np.zeros(theta.size)
    for t in range(10):
        one = base.Schedule(schedule.batches[t : t + 1], schedule.mask[t : t + 1])
        after = train(HYPER, state, data, one, jnp.ones_like(theta), 0.0, KEY)
        squares += (np.asarray(after.theta, np.float64) - np.asarray(state.theta)) ** 2
        state = after
    np.testing.assert_allclose(trajectory.theta, state.theta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(trajectory.squared_updates, squares, rtol=1e-4)
