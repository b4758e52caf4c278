"""Our DP-FedAvg as `throughput` times it, and the problem that it and its peer are given."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit import game
from audit.game import Game
from audit.mechanism import ensemble, fedavg
from audit.mechanism.base import Data, Hyperparameters, Schedule, State, no_canaries
from audit.model import losses_by_example
from audit.settings import build_federated
from audit.settings.federated import FederatedSetting
from audit.task import Clients, Sources
from experiments.engine.peers_jax import engine_of, layout_of
from experiments.engine.problem import CHECKED_STEPS, Engine, FederatedProblem
from models.catalogue import federated_task

_ROUNDS = 10


def write_problem(model: str, file: str | None, tfds_dir: str | None, path: Path) -> float:
    """Writes the FederatedProblem of `federated`'s defaults on real clients; returns an update's examples."""
    setting = FederatedSetting(model, rounds=_ROUNDS)
    clients = federated_task(model).load(setting, Sources(data_file=file, tfds_dir=tfds_dir)).clients
    problem = problem_of(setting, clients)
    problem.save(path)
    return problem.examples()


def problem_of(setting: FederatedSetting, clients: Clients) -> FederatedProblem:
    """The FederatedProblem of a setting with cohorts of a fixed size, with our round."""
    model = federated_task(setting.model).make()
    theta_0 = model.init(game.root(setting.seed, "theta"))
    cohorts = build_federated.rounds(setting, clients, None).clients
    most = int(clients.counts.max())
    choices = fedavg.FedAvg(losses_by_example(model), model.unravel, most, CHECKED_STEPS, most, block=1)
    own = fedavg.Federated(setting.client_learning_rate, setting.cohort)
    data = tuple(map(jnp.asarray, clients.arrays))

    @jax.jit
    def stepped(theta: Array) -> Array:
        norm, key = jnp.float32(setting.clipping_norm), jax.random.key(0)
        sums = fedavg.cohort_sums(choices, own, theta, norm, data, jnp.asarray(cohorts[0]), key)
        return theta - sums.updates / setting.cohort

    return FederatedProblem(
        setting.model,
        clients.features,
        clients.labels,
        clients.starts,
        clients.counts,
        cohorts,
        np.asarray(theta_0),
        np.asarray(stepped(theta_0)),
        layout_of(model, clients.features[0]),
        setting.batch_size,
        setting.client_learning_rate,
        setting.learning_rate,
        setting.momentum,
        setting.clipping_norm,
        setting.noise_multiplier,
    )


def ours(path: Path) -> Engine:
    """Trainings as `federated` does them, one after the other, with noise, on all devices, but without
    canaries, whose number is the audit's choice and which its peer has none of."""
    problem = FederatedProblem.load(path)
    rounds, cohort = map(int, problem.cohorts.shape)
    played = _game(problem)
    placement = ensemble.Placement.spread(1)

    def train(state: State, key: Array, hyper: Hyperparameters, data: Data, schedule: Schedule) -> State:
        return played.mechanism.segment(hyper, state, data, schedule, no_canaries(), key)

    trained = placement.over_runs(train, (0, 0, None, None, None))
    first = jax.tree.map(lambda leaf: leaf[None], played.mechanism.start(jnp.asarray(problem.theta_0)))
    start, keys = placement.by_run((first, jax.random.split(jax.random.key(0), 1)))
    schedule = Schedule(played.schedule.batches, jnp.zeros(rounds))
    shared = placement.everywhere((jax.tree.map(jnp.float32, played.hyper), played.data, schedule))

    def run() -> int:
        jax.block_until_ready(trained(start, keys, *shared))
        return rounds * cohort

    return engine_of(run, 1, 0.0)


def _game(problem: FederatedProblem) -> Game:
    """The problem's game, as `federated` builds it."""
    rounds, cohort = map(int, problem.cohorts.shape)
    setting = FederatedSetting(
        problem.model,
        len(problem.counts),
        cohort=cohort,
        rounds=rounds,
        batch_size=problem.batch_size,
        client_learning_rate=problem.client_learning_rate,
        learning_rate=problem.learning_rate,
        momentum=problem.momentum,
        clipping_norm=problem.clipping_norm,
        noise_multiplier=problem.noise_multiplier,
    )
    clients = Clients(problem.features, problem.labels, problem.starts, problem.counts, "", "")
    return build_federated.build(setting, clients, build_federated.rounds(setting, clients, None))
