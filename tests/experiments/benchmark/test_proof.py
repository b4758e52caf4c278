"""What a clock and an engine's speed say is proven after so many minutes, and how it is shown."""

import json
import os

import numpy as np
import pytest

from audit.report import style
from audit.storage.store import Scores
from audit.tasks.task import Sources
from experiments.benchmark import proof
from experiments.engine.engines import About
from experiments.engine.measurement import Measurement, Memory
from tests.forks import python

HOW = proof.How("fcnn", 100.0, ("opacus",), 1, 1.0, 0, 1e-5, 0.95, Sources())


def measurement(engine, rate, processes):
    """Returns an engine's measurement of so many model-steps a second."""
    about = About(1, "cpu", "cpu")
    return Measurement("fcnn", engine, [rate], [1e11], 10**4, Memory(1, 1), about, processes)


# 10 models of ours a second, one of Opacus's, in two processes.
OUR_ENGINE = measurement("ours", 2500.0, 1)
OPACUS = measurement("opacus", 250.0, 2)
ENGINES = [OUR_ENGINE, OPACUS]


def clocked(runs, canaries, mu, seconds=0.1):
    """Returns simulated scores, with a reading of the clock every ten runs."""
    rng = np.random.default_rng(0)
    presence = rng.random((runs, canaries)) < 0.5
    values = (rng.normal(size=(runs, canaries)) + mu * presence) / 10
    scores = Scores(0, values, presence)
    clock = [proof.Reading(5 + seconds * number, number) for number in range(10, runs + 1, 10)]
    if not clock:
        clock = [proof.Reading(9.0, 1)]
    return proof.ClockedScores(scores, tuple(clock), 3.0, runs * seconds, 250 * runs, 68)


@pytest.mark.slow
def test_the_clock_and_the_engine_give_the_minutes():
    single = clocked(900, 1, 3.0)
    once = clocked(1, 2000, 3.0)
    ours = next(proof.make_our_curves(HOW, proof.SINGLE, single))
    assert ours.seconds[-1] == 95
    assert ours.trainings[-1] == 900
    assert ours.epsilons[0] < ours.epsilons[-1]

    curves = {curve.method: curve for curve in proof.make_peer_curves(HOW, OPACUS, single, once)}
    split = curves.get("jax-privacy: clopper_pearson, MultiSplit")
    if split is None:
        pytest.skip("jax_privacy is not installed")
    assert split.trainings[-1] == 100
    assert split.seconds[-1] == pytest.approx(100)  # two models in two seconds
    alone = curves["jax-privacy: one_run, Split"]
    assert alone.trainings == (1,)
    assert alone.seconds == (2.0,)
    assert alone.epsilons[0] > 0
    assert 0 < split.epsilons[-1] < ours.epsilons[-1]


def test_what_refuses_proves_nothing():
    few = clocked(1, 1, 3.0)
    assert not list(proof.make_our_curves(HOW, proof.SINGLE, few))
    for curve in proof.make_peer_curves(HOW, OPACUS, few, clocked(1, 2000, 0.0)):
        assert curve.epsilons[-1] < 0.5


def clocked_directions(mu, runs=60, canaries=200, dimension=10_000):
    """Returns simulated cosines with fresh directions, with a reading of the clock every ten runs."""
    rng = np.random.default_rng(0)
    presence = rng.random((runs, canaries)) < 0.5
    deviations = rng.normal(size=(runs, canaries)) + mu * presence
    scores = Scores(0, deviations / np.sqrt(dimension), presence, dimension)
    clock = [proof.Reading(float(number), number) for number in range(10, runs + 1, 10)]
    return proof.ClockedScores(scores, tuple(clock), 3.0, 6.0, 250 * runs, dimension)


def test_a_claim_of_more_noise_is_refuted_the_sooner_the_less_noise_there_is():
    true_mu = np.sqrt(250) / 4
    found = proof.find_refutations(HOW, clocked_directions(true_mu))
    assert [refutation.noise_share for refutation in found] == [0.5, 0.6, 0.7, 0.8, 0.9]
    runs = [np.inf if each.reading is None else each.reading.runs for each in found]
    assert runs == sorted(runs)
    assert runs[0] == 10
    # As much noise as claimed, or more, refutes nothing.
    for refutation in proof.find_refutations(HOW, clocked_directions(true_mu / 2)):
        assert refutation.reading is None


@pytest.mark.slow
def test_table_figure_and_parts():
    single = clocked(900, 1, 3.0)
    once = clocked(1, 2000, 3.0)
    curves = list(proof.make_our_curves(HOW, proof.SINGLE, single))
    curves.extend(proof.make_one_run_curves(HOW, once))
    refutations = [
        proof.TimedRefutation(0.5, proof.Reading(30.0, 14)),
        proof.TimedRefutation(0.9, None),
    ]
    proofs = proof.Proofs(curves, ENGINES, single, refutations)

    text = proof.proof_table(HOW, proofs).text()
    assert max(map(len, text.splitlines())) <= 80
    assert "one canary a run  if_gaussian                   900    1.58" in text
    assert "0.5 of the stated noise: after 0.50 minutes, 14 trainings" in text
    assert "0.9 of the stated noise: not in this time" in text

    content = json.loads(proof.as_json(HOW, proofs))
    assert sum(content["parts"].values()) == pytest.approx(95)
    assert [each["seconds"] for each in content["refutations"]] == [30.0, None]
    assert content["upper_bound"] > content["curves"][0]["epsilons"][-1]
    assert style.png(proof.proof_figure(HOW, proofs)).startswith(b"\x89PNG")


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
    process = python("-m", "experiments", "proof", *flags, f"--out={tmp_path}")
    assert process.returncode == 0, process.stderr
    assert "fresh directions  exact_null" in process.stdout
    assert "GEMM" in process.stdout
    assert sorted(os.listdir(tmp_path / "proof")) == ["proof.csv", "proof.json", "proof.png"]
