"""Every engine takes our step before it is timed, and ratios are taken within rounds."""

import json

import numpy as np
import pytest

from audit.errors import InputError
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from experiments.benchmark import throughput
from experiments.benchmark.throughput import ENGINES, MODELS, Timing
from tests.forks import python

PEERS = [name for name in ENGINES if name != "ours"]


def small_problem(model):
    """Returns a problem of 40 examples in mini-batches of 10."""
    from experiments.benchmark import engines_jax

    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    if model != "fcnn":
        features = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    setting = setting_of(model, adversary="gc_r", batch_size=10, steps=8, clipping_norm=0.5)
    return engines_jax.problem_of(setting, Dataset(features, labels, "made up", "0" * 64))


def build(name, problem, monkeypatch):
    """Builds an engine in this process, with the first number of models at once that it tries."""
    from experiments.benchmark import engines_jax

    monkeypatch.setattr(engines_jax, "prepare_jax", lambda: None)
    monkeypatch.setattr(engines_jax, "_MAX_CPU_FLOATS", 1)
    monkeypatch.setattr(engines_jax, "_TRIAL_SECONDS", 0.0)
    if ENGINES[name].module == "engines_torch":
        pytest.importorskip(ENGINES[name].package.replace("_func", ""))
        from experiments.benchmark import engines_torch

        return getattr(engines_torch, name)(problem)
    return getattr(engines_jax, name)(problem)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_takes_our_step_and_would_be_seen_not_to(name, model, monkeypatch):
    if model == "resnet18" and name != "opacus":
        pytest.skip("its step takes minutes")
    problem = small_problem(model)
    tolerance = MODELS[model].tolerance
    engine = build(name, problem, monkeypatch)
    assert engine.distance < tolerance
    assert engine.run() >= engine.models
    if model == "fcnn":
        moved = problem.stepped.copy()
        moved[7] += 10 * tolerance
        off = build(name, problem._replace(stepped=moved), monkeypatch).distance
        assert abs(off - 10 * tolerance) < tolerance


@pytest.mark.slow
def test_ours_trains_the_chunk_that_an_audit_does(monkeypatch):
    engine = build("ours", small_problem("fcnn"), monkeypatch)
    assert 2 <= engine.models <= 5000
    assert engine.run() == engine.run() == engine.models * 8


@pytest.mark.parametrize("distance", [1.1e-5, float("nan")])
def test_an_engine_of_another_step_is_refused(distance):
    throughput.require_agreement("peer", 9e-6, 1e-5)
    with pytest.raises(InputError, match="peer.*away from ours.*--engines"):
        throughput.require_agreement("peer", distance, 1e-5)


def test_the_fastest_number_of_models_is_chosen(monkeypatch):
    from experiments.benchmark import engines_jax

    rates = {2: 5, 16: 7, 128: 6}
    monkeypatch.setattr(engines_jax, "measure_rate", lambda run, seconds: rates[run()])
    monkeypatch.setattr(engines_jax, "_MAX_CPU_FLOATS", 100 * 10 * 68)
    fastest, run = engines_jax.find_fastest(
        lambda models: lambda: models, small_problem("fcnn"), devices=2, on_cpu=True
    )
    assert fastest == run() == 16


def test_ratios_are_taken_within_rounds_in_80_columns():
    from experiments.benchmark.engines_jax import Engine

    built = Engine(None, 8, "cpu", 1e-7)
    timings = [
        Timing("convnet", "ours", [1e6, 4e6, 2e6], built, 1),
        Timing("convnet", "jax_privacy", [1e3, 1e3, 4e4], built, 1),
        Timing("fcnn", "opacus", [5.0, 4.0, 3.0], built, 2),
    ]
    table = throughput.make_table(timings)
    lines = table.text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "2,000,000" in lines[2]
    assert "1,000 (50 to 4,000)" in lines[3]
    assert " to " not in lines[2] + lines[4]  # none of ours on that model
    assert table.json()[1]["ratios"] == [1e3, 4e3, 50.0]


@pytest.mark.slow
def test_ours_is_timed(housing_file, tmp_path):
    flags = ["--models=fcnn", f"--data_file={housing_file}", "--rounds=2", "--seconds=0.1"]
    command = ["-m", "experiments.commands.throughput", *flags, "--engines=ours", "--json"]
    process = python(*command, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    [row] = json.loads(process.stdout)["timings"]
    assert len(row["rates"]) == 2
    assert row["model_steps_per_second"] > 0
