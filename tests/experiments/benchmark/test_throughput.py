"""Each peer takes the same step as our engine, and our engine is timed."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from audit.mechanism import base
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build
from experiments.benchmark import throughput
from experiments.benchmark.throughput import ENGINES, MODELS
from tests.forks import python

PEERS = [name for name in ENGINES if name != throughput.OURS]
# The largest distance between the parameters after a peer's step and after ours. Engines sum float32
# values in different orders, and ResNet18 has the longest sums.
TOLERANCES = {"fcnn": 1e-5, "convnet": 1e-5, "resnet18": 1e-3}


def small_problem(model):
    """Returns a problem of 40 examples in mini-batches of 10, without noise and at learning rate 1."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    if model != "fcnn":
        features = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    fields = {"batch_size": 10, "steps": 8, "clipping_norm": 0.5, "learning_rate": 1.0}
    setting = setting_of(model, adversary="gc_r", noise_multiplier=0.0, **fields)
    return throughput.build_problem(setting, Dataset(features, labels, "made up", "0" * 64))


def take_our_step(problem):
    """Returns the parameters (p,) after our engine's first step, without a canary and without noise."""
    audited = build.build(problem.setting, problem.dataset)
    fields = problem.setting.mechanism
    hyper = base.Hyperparameters(fields.learning_rate, fields.clipping_norm, 0.0)
    first_step = base.Schedule(audited.schedule.batches[:1], mask=np.zeros(1))
    arguments = (hyper, problem.theta_0, audited.data, first_step)
    return np.asarray(base.rehearse(audited.mechanism, *arguments, canaries=base.no_canaries()))


def order_as_torch(theta, problem):
    """Returns a model's parameters theta (p,) in the order in which PyTorch has them."""
    model = build.trainee(problem.setting.model, problem.dataset).model
    # Flax creates parameters in the order of the layers' calls. PyTorch has the same order.
    created = model.module.init(jax.random.key(0), problem.dataset.features[0])
    # PyTorch's order of Flax's axes, for biases, (in, out) and (height, width, in, out).
    axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    by_path = flatten_dict(model.unravel(theta))
    ordered = []
    for path in flatten_dict(created["params"]):
        values = np.asarray(by_path[path])
        ordered.append(values.transpose(axes[values.ndim]).ravel())
    return np.concatenate(ordered)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_takes_our_step(name, model, monkeypatch):
    if model == "resnet18" and name != "opacus":
        pytest.skip("its step takes minutes")
    pytest.importorskip(ENGINES[name].package.replace("-", "_"))
    monkeypatch.setattr(throughput, "_MAX_CPU_FLOATS", 1)
    problem = small_problem(model)
    expected = take_our_step(problem)
    begin = problem.theta_0
    if name != "jax_privacy":
        begin = order_as_torch(begin, problem)
        expected = order_as_torch(expected, problem)
        make_network = throughput._make_torch_network

        def make_network_at_theta_0(problem):
            from torch import nn, tensor

            network = make_network(problem)
            nn.utils.vector_to_parameters(tensor(begin), network.parameters())
            return network

        monkeypatch.setattr(throughput, "_make_torch_network", make_network_at_theta_0)
    training = ENGINES[name].make(problem._replace(batches=problem.batches[:1]), 1)
    assert training.run() == 1
    assert np.linalg.norm(training.get_theta() - expected) < TOLERANCES[model]
    assert np.linalg.norm(expected - begin) > 0.01

    assert throughput.find_fastest(ENGINES[name], problem).run() == 8  # a single model, for 8 steps


@pytest.mark.slow
def test_ours_is_timed(housing_file, tmp_path):
    flags = ["--models=fcnn", f"--data={housing_file}", "--rounds=2"]
    command = ["-m", "experiments.commands.throughput", *flags, "--engines=ours"]
    process = python(*command, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    model, engine, rate = process.stdout.splitlines()[-1].split()
    assert (model, engine) == ("fcnn", "ours")
    assert float(rate.replace(",", "")) > 0
