"""What a clock and an engine's speed say that somebody proves after so many minutes, and how it is shown."""

import json
import os

import numpy as np
import pytest

from audit.report import style
from audit.storage.store import Scores
from audit.task import Sources
from experiments.benchmark import proof
from experiments.engine.engines import About
from experiments.engine.measurement import Measurement, Memory
from tests.forks import python

HOW = proof.How("fcnn", 100.0, ("opacus",), 1, 1.0, 0, 1e-5, 0.95, Sources())
ENGINES = [  # 10 models of ours a second, one of Opacus's, in two processes
    Measurement("fcnn", name, [rate], [1e11], 10**4, Memory(1, 1), About(1, "cpu", "cpu"), processes)
    for name, rate, processes in (("ours", 2500.0, 1), ("opacus", 250.0, 2))
]


def clocked(runs, canaries, mu, seconds=0.1):
    rng = np.random.default_rng(0)
    presence = rng.random((runs, canaries)) < 0.5
    scores = Scores(0, (rng.normal(size=(runs, canaries)) + mu * presence) / 10, presence)
    clock = tuple((5 + seconds * number, number) for number in range(10, runs + 1, 10)) or ((9.0, 1),)
    return proof.Clocked(scores, clock, 3.0, runs * seconds, 250 * runs, 68)


@pytest.mark.slow
def test_the_clock_and_the_engine_give_the_minutes():
    single, once = clocked(900, 1, 3.0), clocked(1, 2000, 3.0)
    ours = next(proof._ours(HOW, proof.SINGLE, single))
    assert ours.seconds[-1] == 95 and ours.trainings[-1] == 900
    assert ours.epsilons[0] < ours.epsilons[-1]
    theirs = {curve.method: curve for curve in proof._theirs(HOW, ENGINES[1], single, once)}
    split = theirs.get("jax-privacy: clopper_pearson, MultiSplit")
    if split is None:
        pytest.skip("jax_privacy is not installed")
    assert split.trainings[-1] == 100 and split.seconds[-1] == pytest.approx(100)  # two models in two seconds
    alone = theirs["jax-privacy: one_run, Split"]
    assert alone.trainings == (1,) and alone.seconds == (2.0,)
    assert alone.epsilons[0] > 0 and 0 < split.epsilons[-1] < ours.epsilons[-1]


def test_what_refuses_proves_nothing():
    few = clocked(1, 1, 3.0)
    assert not list(proof._ours(HOW, proof.SINGLE, few))
    for curve in proof._theirs(HOW, ENGINES[1], few, clocked(1, 2000, 0.0)):
        assert curve.epsilons[-1] < 0.5


@pytest.mark.slow
def test_table_figure_and_parts():
    single, once = clocked(900, 1, 3.0), clocked(1, 2000, 3.0)
    curves = [*proof._ours(HOW, proof.SINGLE, single), *proof._of_one_run(HOW, once)]
    found = proof.Proofs(curves, ENGINES, single)
    text = proof.proof_table(HOW, found).text()
    assert max(map(len, text.splitlines())) <= 80
    assert "one canary a run  if_gaussian                   900    1.58" in text
    said = json.loads(proof.as_json(HOW, found))
    assert (
        sum(said["parts"].values()) == pytest.approx(95)
        and said["upper_bound"] > said["curves"][0]["epsilons"][-1]
    )
    assert style.png(proof.proof_figure(HOW, found)).startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_command_trains_draws_and_prints(tmp_path, housing_file):
    flags = (
        "--model=fcnn",
        "--engines=",
        "--minutes=0.01",
        "--rounds=1",
        "--seconds=0.1",
        f"--data_file={housing_file}",
    )
    done = python("-m", "experiments", "proof", *flags, f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "fresh directions  exact_null" in done.stdout and "GEMM" in done.stdout
    assert sorted(os.listdir(tmp_path / "proof")) == ["proof.csv", "proof.json", "proof.png"]
