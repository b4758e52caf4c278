"""Tests that uniform orders of examples pass, and that findings describe other orders."""

import numpy as np
import pytest

import audit
from audit.check.order import examine_order
from tests.audit.check.samplers import draw_balls_in_bins, draw_shuffled
from tests.cases import mostly_slow

EXAMPLES = 1000
BATCHES = 50
LEVEL = 1e-3
HIDDEN = np.random.default_rng(99).permutation(
    EXAMPLES
)  # groups that the data's order does not show


def cut(order):
    return np.split(np.asarray(order), BATCHES)


def permute(seed, examples=EXAMPLES):
    return np.random.default_rng(seed).permutation(examples)


def fill_buffer(seed, size):
    rng = np.random.default_rng(seed)
    buffer = list(range(size))
    order = []
    for index in range(size, EXAMPLES):
        place = int(rng.integers(size))
        order.append(buffer[place])
        buffer[place] = index
    return cut(order + list(rng.permutation(buffer)))


def shuffle_shards(seed):
    return cut(np.concatenate([100 * i + permute([seed, i], 100) for i in range(10)]))


def shuffle_shards_in_random_order(seed):
    return cut(np.concatenate([100 * i + permute([seed, i], 100) for i in permute(seed, 10)]))


def group_by_length(seed):
    groups = HIDDEN.reshape(2, -1)
    batches = np.concatenate([group[permute([seed, i], 500)] for i, group in enumerate(groups)])
    return list(batches.reshape(BATCHES, -1)[permute([seed, 2], BATCHES)])


def fix_end(seed, count):
    return cut(np.append(permute(seed, EXAMPLES - count), np.arange(EXAMPLES - count, EXAMPLES)))


def fix_head(seed, count):
    return cut(np.append(np.arange(count), count + permute(seed, EXAMPLES - count)))


def pin_one(seed):
    order = permute(seed)
    place = int(np.flatnonzero(order == 123)[0])
    order[place] = order[-1]
    order[-1] = 123
    return cut(order)


def keep_two_together(seed):
    order = list(permute(seed))
    place = order.index(7)
    neighbour = place - 1 if place % 20 else place + 1
    other = order.index(431)
    order[other] = order[neighbour]
    order[neighbour] = 431
    return cut(order)


def step_by_a_stride(seed):
    stride = [3, 7, 129, 377, 411][seed % 5]
    return cut((stride * np.arange(EXAMPLES) + 17 * seed) % EXAMPLES)


def keep_pairs(seed):
    pairs = permute(seed, EXAMPLES // 2)
    return cut(np.stack([2 * pairs, 2 * pairs + 1], axis=1).ravel())


def keep_hidden_pairs(seed):
    return [HIDDEN[batch] for batch in keep_pairs(seed)]


def change_halves_by_parity(seed):
    halves = [permute([seed, 0], 500), 500 + permute([seed, 1], 500)]
    return cut(np.concatenate(halves[:: 1 if seed % 2 else -1]))


def swap_neighbours(seed):
    pairs = permute(0).reshape(-1, 2).copy()
    swapped = np.random.default_rng(seed).random(len(pairs)) < 0.5
    pairs[swapped] = pairs[swapped, ::-1]
    return cut(np.roll(pairs.ravel(), 1))


def reverse_every_second(seed):
    order = permute(seed // 2)
    return cut(order[::-1] if seed % 2 else order)


OTHERS = {
    "fixed end": lambda seed: fix_end(seed, 10),
    "one pinned": pin_one,
    "groups by length": group_by_length,
    "two together": keep_two_together,
    "buffer": lambda seed: fill_buffer(seed, 100),
    "seed every 7 passes": lambda seed: cut(permute(seed % 7)),
    "large buffer": lambda seed: fill_buffer(seed, 700),
    "shards": shuffle_shards,
    "shards in random order": shuffle_shards_in_random_order,
    "last example": lambda seed: fix_end(seed, 1),
    "head": lambda seed: fix_head(seed, 20),
    "shuffled once": lambda seed: cut(permute(0)),
    "reversed": reverse_every_second,
    "a seed twice": lambda seed: cut(permute(seed // 2)),
    "few permutations": lambda seed: cut(permute(int(np.random.default_rng(seed).integers(50)))),
    "pairs": keep_pairs,
    "hidden pairs": keep_hidden_pairs,
    "stride": step_by_a_stride,
    "rotation": lambda seed: cut(np.roll(permute(0), permute(seed)[0])),
    "blocks": lambda seed: cut((5 * permute(seed, 200)[:, None] + np.arange(5)).ravel()),
    "parity": change_halves_by_parity,
    "sorted every second": lambda seed: cut(permute(seed) if seed % 2 else np.arange(EXAMPLES)),
    "neighbours swapped": swap_neighbours,
    "batches in random order": lambda seed: [cut(permute(0))[i] for i in permute(seed, BATCHES)],
}


@pytest.mark.parametrize("name", mostly_slow(OTHERS, quick=6))
def test_an_order_that_is_not_uniform_is_rejected(name):
    order = examine_order(OTHERS[name], EXAMPLES, BATCHES, sizes_vary=False)
    assert order.p_value < 1e-6 and order.is_once
    assert order.repeats == (name == "shuffled once")


@pytest.mark.parametrize(
    ("name", "assumed"), [("buffer", "shuffled"), ("groups by length", "poisson")]
)
def test_what_fails_has_a_finding_below(name, assumed):
    report = audit.check_batches(OTHERS[name], EXAMPLES, 1 / BATCHES, assumed=assumed)
    failed = {check.name for check in report.checks if check.result == "failed"}
    found = {finding.check for finding in report.findings}
    assert failed & {"order", "together"} == found & {"order", "together"} != set()
    assert "an order that is not uniform" in report.verdict


def count_rejected(draw, shape, batches, seeds, sizes_vary=False):
    """Returns how many of these loaders of uniform orders are rejected; `batches` cuts their passes."""
    rejected = 0
    for first in seeds:
        order = examine_order(
            lambda seed, first=first: draw([first, seed], *shape)[:batches],
            shape[0],
            batches,
            sizes_vary,
        )
        rejected += order.p_value <= LEVEL
    return rejected


# The examples and the batch size, and the number of batches: one is dropped in the third.
SHAPES = [((600, 30), 20), ((100, 98), 2), ((100, 7), 14), ((400, 37), 11), ((60, 2), 30)]


@pytest.mark.parametrize(("shape", "batches"), SHAPES)
def test_uniform_orders_are_accepted(shape, batches):
    assert count_rejected(draw_shuffled, shape, batches, range(3)) == 0


@pytest.mark.slow
def test_of_500_loaders_of_uniform_orders_hardly_any_is_rejected():
    rejected = count_rejected(draw_balls_in_bins, (600, 20), 20, range(100), sizes_vary=True)
    for shape, batches in SHAPES[:4]:
        rejected += count_rejected(draw_shuffled, shape, batches, range(100, 200))
    assert rejected <= 3  # binomial(500, 0.001): more with a probability of 0.002


def test_sizes_of_balls_in_bins_are_looked_at():
    def draw(seed):
        return np.split(permute(seed, 600), np.cumsum([27, 33] * 10)[:-1])

    assert examine_order(draw, 600, 20, sizes_vary=True).p_value < 1e-6
    assert examine_order(draw, 600, 20, sizes_vary=False).p_value > LEVEL


@pytest.mark.parametrize("assumed", mostly_slow(["poisson", "fixed", "shuffled", "balls_in_bins"]))
@pytest.mark.parametrize("repeats", [False, True])
def test_an_example_may_not_come_twice_and_no_row_fails_without_a_finding(assumed, repeats):
    def draw(seed):
        order = permute(0 if repeats else seed, 4000)
        order[100] = order[3000]
        return np.split(order, 100)

    assert not examine_order(draw, 4000, 100, sizes_vary=False).is_once
    report = audit.check_batches(draw, 4000, 0.01, assumed=assumed)
    assert report.verdict.startswith("FAILED") and report.findings


def test_an_endless_loader_is_read_up_to_a_stated_number_of_batches():
    def draw(seed):
        rng = np.random.default_rng(seed)
        while True:
            yield np.flatnonzero(rng.random(500) < 0.05)

    report = audit.check_batches(draw, 500, 0.05)
    assert report.passed and "at most 2,000 batches are read per pass" in " ".join(
        str(report).split()
    )
