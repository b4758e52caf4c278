"""Tests the federated command: its output, its files, kills, and its bounds from many runs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.adversaries import directions
from audit.claims.accounting import epsilon_upper_bound
from audit.evidence import given
from audit.mechanism import base, cohorts, fedavg
from audit.methods import one_run_bounds
from audit.storage.store import Store
from audit.training import game

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--model=linear",
    "--clients=10",
    "--cohort=4",
    "--rounds=60",
    "--canaries=100",
    "--observe=all",
)
TRAIN = """
import sys
from pathlib import Path
from audit.training import game
from audit.storage.store import Store
from audit.commands import cli
from audit.training import build_federated
from audit.settings.federated import FederatedSetting
from models.catalogue import federated_task

cli.prepare_jax()
setting = FederatedSetting("linear", 10, cohort=4, rounds=60, canaries=100, observe="all", quantile=0.5,
                           noise_multiplier=0.1)
clients = federated_task("linear").load(setting, sys.argv[1]).clients
played = build_federated.build(setting, clients, build_federated.rounds(setting, clients))
game.train(played._replace(segment_steps=2), Store(Path(sys.argv[2]), {"experiment": "federated"}), 2,
               checkpoint_seconds=0)
"""


@pytest.fixture
def run(run_command, tmp_path):
    """run(*flags) -> the command's (stdout, stderr)."""

    def call(*flags):
        ended = run_command("federated", *flags, folder=tmp_path)
        assert ended.status == 0, ended.stderr
        return ended.stdout, ended.stderr

    return call


@pytest.mark.slow
def test_a_run_is_told_kept_and_not_trained_again(run, image_file, tmp_path):
    first, told = run(*FLAGS, f"--data={image_file}")
    assert "1/1 runs" in told
    second, silent = run(*FLAGS, f"--data={image_file}")
    assert second == first and "runs" not in silent
    (answer,) = (tmp_path / "results").glob("*/answer.json")
    answer.write_text(answer.read_text()[:-9])
    again, said = run(*FLAGS, f"--data={image_file}")
    assert "answer.json is damaged: set aside, it counts as missing" in said
    lines = [line for line in first.splitlines() if line and "accuracy" not in line]
    assert lines == [line for line in again.splitlines() if line]
    several, _ = run(*FLAGS, f"--data={image_file}", "--runs=3")
    assert "3 runs" in several and len(list((tmp_path / "results").glob("*/scores_*"))) == 2


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_bits(image_file, tmp_path):
    """SIGKILL as soon as there is a checkpoint beyond the last one seen, again and again."""

    def begin(out):
        argv = [sys.executable, "-c", TRAIN, str(image_file), str(out)]
        return subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def scores(out):
        return Store(out, {"experiment": "federated"}).load(2).scores

    with begin(tmp_path / "alone") as alone:
        assert alone.wait() == 0, alone.stderr.read()
    killed, seen = tmp_path / "killed", set()
    for _ in range(3):
        with begin(killed) as process:
            while process.poll() is None and not (found := _checkpoints(killed) - seen):
                time.sleep(0.02)
            process.kill()
            assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
            seen |= found
    with begin(killed) as last:
        assert last.wait() == 0 and "damaged" not in last.stderr.read()
    np.testing.assert_array_equal(scores(killed), scores(tmp_path / "alone"))
    assert len(seen) >= 3


def _checkpoints(out):
    return {path.name for path in out.glob("*/checkpoints/*.npz") if path.name[0] != "."}


CANARIES, FEATURES, CLASSES, ROUNDS = 100, 30, 4, 8


def _many_small_runs(runs, sigma, observe):
    rng, counts = np.random.default_rng(0), np.array([3, 6, 2, 9], np.int32)
    features, labels = rng.normal(size=(20, FEATURES)), rng.integers(0, CLASSES, 20)
    starts, counts = jnp.asarray(np.cumsum(counts) - counts), jnp.asarray(counts)
    data = jnp.float32(features), jnp.int32(labels), starts, counts

    def loss(weights, example):
        return optax.softmax_cross_entropy_with_integer_labels(example[0] @ weights, example[1])

    losses = jax.vmap(loss, (None, 0))
    choices = fedavg.FedAvg(losses, lambda theta: theta.reshape(FEATURES, CLASSES), 4, 1, 9)
    key = jax.random.key(0, impl="threefry2x32")
    members = cohorts.shuffled(key, 4, ROUNDS, 2)
    mask = cohorts.repeated(key, CANARIES, ROUNDS, 1)
    played = game.Game(
        fedavg.mechanism(choices),
        observe(CANARIES),
        lambda key: jnp.zeros(FEATURES * CLASSES),
        data,
        base.Hyperparameters(1.0, 1.0, sigma, fedavg.Federated(0.1, 2 + CANARIES / 2 / ROUNDS)),
        base.Schedule(jnp.asarray(members), jnp.asarray(mask)),
        seed=1,
    )
    (scores,) = game.Player(played, runs).play_all([(0, runs)])
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.5, 2.0])
@pytest.mark.parametrize("observe", [directions.final_cosines, directions.largest_cosines])
def test_bounds_of_many_small_runs_stay_below_the_accounted_epsilon(sigma, observe):
    """A canary takes part once, so that one release is accounted. The estimate is no bound and may exceed."""
    scores = _many_small_runs(200, sigma, observe)
    upper, above, most = epsilon_upper_bound(sigma, 1, 1e-5), 0, 0.0
    for values, bits in zip(scores.scores, scores.presence, strict=True):
        evidence = given.coins(values[None], bits[None]).coins
        largest = max(
            bound.epsilon for bound in one_run_bounds.bound_by_guesses(evidence, 1e-5, 0.95)
        )
        above, most = above + (largest > upper), max(most, largest)
    assert above == 0
    assert most > 0 or sigma > 1
