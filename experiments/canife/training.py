"""Trains a model with DP-FedAvg and takes measurements at regular intervals.

Each measurement designs a canary for the frozen model, simulates mock rounds, and computes their scores and
exact epsilons. A killed training run resumes with bit-identical results.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.errors import require
from audit.laws import densities
from audit.methods import estimate
from audit.storage.store import Checkpoints, Store
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import cohort_law, measured, populations
from experiments.canife.attacked import Attacked
from experiments.canife.designed import compute_penalty
from experiments.canife.measured import Floats, Measured
from experiments.canife.populations import Population
from experiments.canife.samples import Sample
from experiments.cells.cell import DataSets

_CONFIDENCE = 0.95
_CHECKPOINTS = "rounds"


def prepare(setting: Attacked, out: Path, data: DataSets) -> tuple[Attacked, Store]:
    """Returns the setting fitted by `settings.fit_to_clients`, and its store under the folder `out`.

    Raises InputError if the data cannot be loaded or do not fit the setting.
    """
    split = populations.split_clients(setting, data)
    setting = settings.fit_to_clients(setting, split.train.number, split.mock.number)
    identity = {**settings.identity(setting), "data_sha256": split.train.checksum}
    return setting, Store(out, identity, f"canife-{setting.model}")


def measure_missing(
    setting: Attacked, data: DataSets, store: Store, numbers: Sequence[int]
) -> Iterator[Measured]:
    """Trains a model and measures each given round that is not yet stored; stores and yields the results.

    Each measurement uses the model before the round. Rounds 1, 1 + every, 1 + 2 every, ... can be measured,
    so training proceeds in segments of `setting.every` rounds, which share a compiled program. Training
    continues from a checkpoint if one exists. Raises InputError if the model diverges.

    `setting` and `store` come from `prepare`. `numbers` is a subset of `setting.measured()`.
    """
    stored = {known.number for known in measured.read_rounds(store, numbers)}
    missing = sorted(set(numbers) - stored)
    if not missing:
        return
    if setting.model in settings.IMAGE_MODELS and not setting.clients:
        # Each client has one image, and takes one step at rate 1, so its update is its gradient.
        setting = dataclasses.replace(setting, client_learning_rate=1.0, client_epochs=1)
    population = populations.make_population(setting, data)
    checkpoints = Checkpoints(store.checkpoints)
    # The number of trained rounds and the state after them. If no checkpoint exists: 0, `population.start`.
    trained, state = checkpoints.resume(_CHECKPOINTS, population.start)
    if trained >= missing[0]:  # too late to measure the first missing round
        trained = 0
        state = population.start

    # `state` is the state before round `number`.
    for number in range(trained + 1, missing[-1] + 1, setting.every):
        theta = jnp.asarray(state.theta)
        require(
            jnp.isfinite(theta).all(),
            f"the model diverged before round {number}: lower `learning_rate` or `noise_multiplier`",
        )
        checkpoints.offer(_CHECKPOINTS, number - 1, state)  # saves only some states
        if number in missing:
            measured_round = _measure(setting, population, theta, number)
            measured.save_round(store, measured_round)
            yield measured_round
        if number < missing[-1]:
            state = population.train(state, first=number, rounds=setting.every)
    checkpoints.clear()


def _measure(
    setting: Attacked,
    population: Population,
    theta: Array,
    number: int,
) -> Measured:
    """Designs a canary for a round's frozen model theta (p,), and measures how well it can be detected.

    Scores are dot products of noisy sums of updates with the canary's direction. So simulated (mock) rounds
    need only the dot product of each update with this direction. All mock rounds draw their cohorts from the
    same `setting.population` training clients. `number` is the round.
    """
    canary, health = _design_canary(setting, population, theta, number)
    gradient = population.gradient(theta, canary)
    gradient_norm = float(jnp.linalg.norm(gradient))
    require(
        0 < gradient_norm < np.inf,
        f"the canary's gradient has norm {gradient_norm:g}: design it with a different `seed`",
    )

    # As published, the canary's client does not multiply its gradient by the learning rate (Errata C2). Its
    # clipped update points in the canary's direction, so the dot product of the two is the update's norm.
    rate = 1.0 if setting.as_published else setting.client_learning_rate
    canary_dot = min(
        rate * gradient_norm / setting.clipping_norm, 1.0
    )  # in units of the clipping norm
    training_clients = population.split.train
    num_clients = training_clients.number
    members = populations.draw_clients(
        setting, purpose="population", clients=num_clients, size=setting.population
    )
    direction = gradient / gradient_norm
    dots = population.updates(theta, training_clients.arrays, members, direction)
    client_dots = np.asarray(dots, np.float64) / setting.clipping_norm

    return Measured(
        number=number,
        clients=num_clients,
        accuracy=float(population.accuracy(theta[None])[0]),
        health=health,
        norm=gradient_norm,
        own=canary_dot,  # `own` and `known` are names in stored files
        known=client_dots,
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
        **_simulate_attack(setting, client_dots, canary_dot, number),
    )


def _simulate_attack(
    setting: Attacked, client_dots: Floats, canary_dot: float, number: int
) -> dict[str, Any]:
    """Simulates (mock) rounds with and without the canary, and measures how much their scores reveal.

    `client_dots` (M,) and `canary_dot` are dot products with the canary's direction, divided by the clipping
    norm. The round number determines the random draws.

    Returns:
      The scores of the published estimate, a lower bound on epsilon from many more scores (`proven`), and
      exact epsilons at `setting.delta` and at the paper's delta (`exact_then`).
    """
    sigma = setting.noise_multiplier
    # The simulations share this generator, so their order determines the draws.
    rng = populations.make_generator(setting, f"mock {number}")
    simulate = partial(cohort_law.simulate_scores, rng, client_dots, sigma=sigma)
    # The canary is added to the cohort or, as published, replaces one of its clients (Errata C1).
    others = setting.cohort
    if setting.as_published:
        others -= 1
    rounds_out = setting.scores // 2
    scores_in = simulate(cohort=others, rounds=setting.scores - rounds_out) + canary_dot
    scores_out = simulate(cohort=setting.cohort, rounds=rounds_out)
    # For the bound, the canary is always added, as in the accountant's neighboring data sets.
    many_in = simulate(cohort=setting.cohort, rounds=setting.mock_rounds) + canary_dot
    many_out = simulate(cohort=setting.cohort, rounds=setting.mock_rounds)
    proven = estimate.assumption_free(many_in, many_out, setting.delta, _CONFIDENCE)

    exact = np.inf  # without noise, a score reveals the canary
    exact_then = np.inf
    if sigma:
        pair = cohort_law.score_densities(
            client_dots, setting.cohort, sigma, canary_dot, replaces=setting.as_published
        )
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)
    return {
        "scores_in": scores_in,
        "scores_out": scores_out,
        "proven": proven.epsilon,
        "exact": exact,
        "exact_then": exact_then,
    }


def _design_canary(
    setting: Attacked,
    population: Population,
    theta: Array,
    number: int,
) -> tuple[Sample, float]:
    """Designs a round's canary for a frozen model theta (p,), using the updates of a pool of mock clients.

    The design starts from a random sample, or from the first example of a random client in the pool. This
    client then leaves the pool, because its update contains the example's gradient. A designed text is a
    mixture of characters at each position, and the canary is a draw from it. Returns the canary and its
    health (`_compute_health`).
    """
    mock = population.split.mock
    pool = populations.draw_clients(setting, "pool", mock.number, setting.pool)
    rng = populations.make_generator(setting, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if setting.start == "random":
        first = population.samples.draw(rng)
    else:
        features, labels = mock.of(int(pool[chosen]))
        first = population.samples.from_example(features[0], labels[0])
        pool = np.delete(pool, chosen)
    updates = population.updates(theta, mock.arrays, pool)
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    # One more step, because `design` never returns the sample after its last step.
    keys = jax.random.split(key, setting.design_steps + 1)
    last, penalties = population.design(theta, first, updates, keys)
    is_finite = jnp.isfinite(penalties).all()
    require(is_finite, "the canary's design diverged: lower `design_rate`")

    # An arbitrary constant separates the keys for drawing texts from the design's keys.
    text_key = jax.random.fold_in(key, zlib.crc32(b"settle"))
    first_key, last_key = jax.random.split(text_key)
    drawn_first = population.samples.draw_text(first, first_key)
    canary = population.samples.draw_text(last, last_key)
    gradient_before = population.gradient(theta, drawn_first)
    gradient_after = population.gradient(theta, canary)
    return canary, _compute_health(setting, updates, gradient_before, gradient_after)


def _compute_health(setting: Attacked, updates: Array, before: Array, after: Array) -> float:
    """Returns the fraction of the penalty on a canary's gradient that the design removed.

    `before` and `after` are the gradients (p,) before and after the design. `updates` (n, p) are those of the
    whole pool of mock clients.
    """
    penalty_before = float(compute_penalty(setting, before, updates))
    penalty_after = float(compute_penalty(setting, after, updates))
    if penalty_before == 0:
        return 0.0  # the first sample had no penalty to remove
    return (penalty_before - penalty_after) / penalty_before
