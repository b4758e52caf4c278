"""Each engine must take the same step as ours before it is timed."""

import json

import numpy as np
import pytest

from audit.errors import InputError
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from experiments.benchmark import throughput
from experiments.benchmark.throughput import ENGINES, MODELS, TOLERANCES
from tests.forks import python

PEERS = [name for name in ENGINES if name != throughput.OURS]


def small_problem(model):
    """Returns a problem of 40 examples in mini-batches of 10."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    if model != "fcnn":
        features = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    setting = setting_of(model, adversary="gc_r", batch_size=10, steps=8, clipping_norm=0.5)
    return throughput.build_problem(setting, Dataset(features, labels, "made up", "0" * 64))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_takes_our_step_and_a_different_step_is_detected(name, model, monkeypatch):
    if model == "resnet18" and name != "opacus":
        pytest.skip("its step takes minutes")
    pytest.importorskip(ENGINES[name].package.replace("-", "_"))
    monkeypatch.setattr(throughput, "_MAX_CPU_FLOATS", 1)
    problem = small_problem(model)
    tolerance = TOLERANCES[model]
    assert throughput.measure_distance(ENGINES[name], problem) < tolerance
    training = throughput.find_fastest(ENGINES[name], problem)
    assert training.run() == 8 * training.models
    if model == "fcnn":
        moved = problem.stepped.copy()
        moved[7] += 10 * tolerance
        off = throughput.measure_distance(ENGINES[name], problem._replace(stepped=moved))
        assert abs(off - 10 * tolerance) < tolerance


@pytest.mark.parametrize("distance", [1.1e-5, float("nan")])
def test_an_engine_with_a_different_step_is_rejected(distance):
    throughput.require_agreement("peer", 9e-6, 1e-5)
    with pytest.raises(InputError, match="peer.*differs from ours.*--engines"):
        throughput.require_agreement("peer", distance, 1e-5)


@pytest.mark.slow
def test_ours_is_timed(housing_file, tmp_path):
    flags = ["--models=fcnn", f"--data={housing_file}", "--rounds=2"]
    command = ["-m", "experiments.commands.throughput", *flags, "--engines=ours", "--json"]
    process = python(*command, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    [row] = json.loads(process.stdout)["timings"]
    assert len(row["rates"]) == 2
    assert row["model_steps_per_second"] > 0
