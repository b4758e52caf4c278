"""Loaders of many kinds: functions of a seed that return the batches of a pass."""

import numpy as np

SIZE = 600
RATE = 0.05
BATCHES = 20


def draw_poisson(seed, examples=SIZE, rate=RATE, batches=BATCHES):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(examples) < rate) for _ in range(batches)]


def draw_shuffled(seed, examples=SIZE, size=30):
    order = np.random.default_rng(seed).permutation(examples)
    return [order[start : start + size] for start in range(0, examples, size)]


def draw_balls_in_bins(seed, examples=SIZE, bins=BATCHES):
    places = np.random.default_rng(seed).integers(0, bins, examples)
    ends = np.cumsum(np.bincount(places, minlength=bins))
    return np.split(np.argsort(places, kind="stable"), ends[:-1])


def draw_fixed(seed, examples=SIZE, size=30, batches=BATCHES):
    rng = np.random.default_rng(seed)
    return [rng.choice(examples, size, replace=False) for _ in range(batches)]


def draw_with_replacement(seed):
    return list(np.random.default_rng(seed).integers(0, SIZE, (BATCHES, 30)))


def draw_cyclic_poisson(seed):
    """Draws from a tenth of the examples in turn, at ten times the rate."""
    rng = np.random.default_rng(seed)
    parts = np.array_split(np.arange(SIZE), 10)
    return [parts[i % 10][rng.random(60) < 10 * RATE] for i in range(BATCHES)]


def repeat_last_batch(seed):
    drawn = draw_poisson(seed)
    return [*drawn[:-1], drawn[-2]]


def cut_at_two_deviations(seed):
    return [batch[:41] for batch in draw_poisson(seed)]


def fill_up(seed):
    """Fills batches of fewer than 25 examples with others."""
    rng = np.random.default_rng([seed, 1])
    filled = []
    for batch in draw_poisson(seed):
        others = rng.permutation(np.setdiff1d(np.arange(SIZE), batch))
        filled.append(np.concatenate([batch, others[: max(25 - len(batch), 0)]]))
    return filled


def take_two_together(seed):
    """Lets example 300 come whenever example 7 does."""
    drawn = []
    for batch in draw_poisson(seed):
        others = batch[batch != 300]
        drawn.append(np.append(others, 300) if 7 in batch else others)
    return drawn


def take_neighbours(seed):
    halves = draw_poisson(seed, examples=SIZE // 2)
    return [np.concatenate([2 * half, 2 * half + 1]) for half in halves]


def never_take_a_tenth(seed):
    return [batch[batch >= SIZE // 10] for batch in draw_poisson(seed)]


def skip_empty_batches(seed):
    return [batch for batch in draw_poisson(seed, rate=0.005) if len(batch)]
