"""Tests DP-FedAvg against a slow reference in NumPy's float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.adversaries import directions
from audit.errors import InputError
from audit.mechanism import base, cohorts, fedavg
from audit.training import game
from tests.cases import mostly_slow

KEY = jax.random.key(7, impl="threefry2x32")
COUNTS = np.array([5, 1, 12, 3, 8, 2, 7], np.int32)
STARTS = np.concatenate([[0], np.cumsum(COUNTS)[:-1]]).astype(np.int32)
FEATURES, CLASSES, CANARIES = 4, 3, 5
SIZE = (FEATURES + 1) * CLASSES


def unravel(theta):
    return theta.reshape(FEATURES + 1, CLASSES)


def loss(weights, example):
    features, label = example
    return optax.softmax_cross_entropy_with_integer_labels(
        features @ weights[:-1] + weights[-1], label
    )


GRADIENT = jax.grad(lambda weights, batch: jnp.mean(loss(weights, batch)))


def momentum(rate):
    return optax.sgd(rate, momentum=0.9)


def make_choices(**changes):
    usual = fedavg.FedAvg(jax.vmap(loss, (None, 0)), unravel, 3, 2, int(COUNTS.max()), 2, momentum)
    return usual._replace(**changes)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(COUNTS.sum(), FEATURES)).astype(np.float32)
    labels = rng.integers(0, CLASSES, COUNTS.sum()).astype(np.int32)
    return tuple(map(jnp.asarray, (features, labels, STARTS, COUNTS)))


@pytest.fixture(scope="module")
def schedule():
    """Six rounds, one of them without any client; canaries in rounds of their own."""
    rounds = [[2, 0, 4], [1], [], [6, 5, 3, 2, 1], [0, 1, 2, 3, 4, 5, 6], [4]]
    listed = np.array([members + [cohorts.ABSENT] * (7 - len(members)) for members in rounds])
    mask = cohorts.repeated(KEY, CANARIES, 6, 2)
    return base.Schedule(jnp.asarray(cohorts.by_size(listed, COUNTS)), jnp.asarray(mask))


@pytest.fixture(scope="module")
def theta():
    return 0.3 * jax.random.normal(jax.random.key(2), (SIZE,))


def _directions():
    keys = jax.random.split(jax.random.key(5), CANARIES)
    return keys, np.array(
        [base.draw_unit_direction(key, jnp.zeros(SIZE)) for key in keys], np.float64
    )


def _slow_update(choices, rate, theta, data, client, key):
    """A client's update by Python loops, in the order that the mechanism shuffles its examples to."""
    count, weights = COUNTS[client], unravel(theta.copy())
    key = jax.random.fold_in(key, client)
    orders = np.asarray(fedavg._draw_orders(choices, key, jnp.int32(count)))
    for order in orders[:, :count]:
        assert sorted(order) == list(range(count))
        for first in range(0, count, choices.batch_size):
            rows = STARTS[client] + order[first : first + choices.batch_size]
            gradient = GRADIENT(jnp.asarray(weights, jnp.float32), (data[0][rows], data[1][rows]))
            weights = weights - rate * np.asarray(gradient, np.float64)
    return theta - weights.ravel()


def _slow(choices, hyper, theta, data, schedule, units, presence):
    """All rounds in float64: ragged clients, adaptive clipping, canaries, noise and momentum."""
    own, trace, scale, path = hyper.mechanism_specific, 0.0, 1.0, []
    theta = np.asarray(theta, np.float64)
    for t, (members, mask) in enumerate(zip(*map(np.asarray, schedule), strict=True)):
        norm, key = hyper.clipping_norm * scale, jax.random.fold_in(KEY, t)
        shuffles, total, unclipped = jax.random.fold_in(key, fedavg._SHUFFLE), np.zeros(SIZE), 0.0
        for client in members[members >= 0]:
            update = _slow_update(choices, own.client_learning_rate, theta, data, client, shuffles)
            length = np.linalg.norm(update)
            total += update * min(1, norm / length)
            unclipped += 0.5 if length <= norm else -0.5
        total += norm * (mask * presence) @ units
        unclipped -= 0.5 * np.sum(mask * presence)
        total += (
            hyper.noise_multiplier * norm * np.asarray(jax.random.normal(key, (SIZE,)), np.float64)
        )
        unclipped += own.count_noise * float(
            jax.random.normal(jax.random.fold_in(key, fedavg._COUNT))
        )
        trace = total / own.denominator + 0.9 * trace
        theta = theta - hyper.learning_rate * trace
        scale *= np.exp(
            -own.quantile_rate * (0.5 + unclipped / own.denominator - own.target_quantile)
        )
        path.append(theta)
    return np.array(path), scale


@pytest.mark.parametrize(
    "block, batch_size, adaptive", mostly_slow([(2, 3, True), (16, 16, False)])
)
def test_rounds_are_those_of_a_slow_reference(
    clients, schedule, theta, block, batch_size, adaptive
):
    own = fedavg.Federated(0.4, 3.7, 0.6, 0.5 if adaptive else 0.0, 0.3 if adaptive else 0.0)
    hyper = base.Hyperparameters(0.8, 0.5, 0.3, own)
    chosen, presence = make_choices(block=block, batch_size=batch_size), np.array([1.0, 0, 1, 1, 0])
    keys, units = _directions()
    canaries = base.Canaries(lambda step, theta: base.Directions(keys), jnp.asarray(presence))
    federated = fedavg.mechanism(chosen)

    @jax.jit
    def train(hyper, data, schedule):
        return federated.segment(hyper, federated.start(theta), data, schedule, canaries, KEY)

    path, scale = _slow(chosen, hyper, theta, clients, schedule, units, presence)
    found = train(hyper, clients, schedule)
    np.testing.assert_allclose(found.theta, path[-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.optimizer.norm_scale, scale, rtol=1e-5)
    assert found.step == 6 and (adaptive == (abs(scale - 1) > 0.1))
    third = train(hyper, clients, base.Schedule(schedule.batches[:3], schedule.mask[:3]))
    np.testing.assert_allclose(third.theta, path[2], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def whole(clients, schedule):
    (scores,) = game.Player(_game(clients, schedule), 9).play_all([(0, 9)])
    return scores


def _game(clients, schedule, **changes):
    own = fedavg.Federated(0.4, 3.7, 0.5, 0.2, 0.3)
    table = game.Game(
        fedavg.mechanism(make_choices()),
        directions.largest_cosines(CANARIES),
        lambda key: 0.3 * jax.random.normal(key, (SIZE,)),
        clients,
        base.Hyperparameters(0.8, 0.5, 0.7, own),
        schedule,
        seed=3,
    )
    return table._replace(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["usual", "in segments", "spread"])
def test_a_run_is_the_same_alone_and_in_a_chunk(clients, schedule, play, whole, how):
    """Its rounds cut into segments, or a round's clients spread over the devices that are there, too."""
    spread = fedavg.mechanism(make_choices(spreads=True))
    changes = {"usual": {}, "in segments": {"segment_steps": 2}, "spread": {"mechanism": spread}}[
        how
    ]
    alone = play(_game(clients, schedule, **changes), [(7, 8)], 1)
    np.testing.assert_allclose(whole.scores[7:8], alone.scores, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(whole.presence[7:8], alone.presence)
    assert np.abs(whole.scores[6] - whole.scores[7]).max() > 1e-2  # runs differ


def test_shuffled_cohorts_take_everybody_equally_often():
    for clients, rounds, cohort in ((12, 9, 4), (7, 10, 5), (7, 3, 7), (5, 1, 1)):
        found = cohorts.shuffled(KEY, clients, rounds, cohort)
        assert all(len(set(members)) == cohort for members in found)
        times = np.bincount(found.ravel(), minlength=clients)
        assert times.max() == -(-rounds * cohort // clients)
        assert times.min() == rounds * cohort // clients


@pytest.mark.parametrize("repetitions", [1, 2, 3, 10])
@pytest.mark.parametrize("canaries, rounds", [(7, 10), (40, 11), (3, 10)])
def test_each_canary_takes_part_so_often_in_different_rounds(canaries, rounds, repetitions):
    mask = cohorts.repeated(KEY, canaries, rounds, repetitions)
    assert set(np.unique(mask)) <= {0.0, 1.0} and (mask.sum(axis=0) == repetitions).all()
    sizes, mean = mask.sum(axis=1), canaries * repetitions / rounds
    assert sizes.min() >= np.floor(mean) and sizes.max() <= np.ceil(mean)
    if rounds % repetitions == 0:
        assert (mask.reshape(repetitions, -1, canaries).sum(axis=1) == 1).all()


def test_a_cohort_larger_than_the_population_is_refused():
    with pytest.raises(InputError, match="`cohort` must be at most 5"):
        cohorts.shuffled(KEY, 5, 2, 6)
