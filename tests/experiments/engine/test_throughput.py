"""Every engine computes the same step; the table and the JSON follow from the timings."""

import json
import os
from functools import partial

import jax
import numpy as np
import pytest

from audit.errors import InputError, require
from audit.runtime import processes
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from experiments.engine import engines, measurement
from experiments.engine.engines import DPSGD, FEDAVG, TIMED, About, Kind
from experiments.engine.measurement import Measurement, Memory, Worker
from models.catalogue import FEDERATED_TASKS, TASKS
from models.convolutional import convnet, lenet, resnet18
from models.data.clients import dealt
from models.dense import fcnn
from tests.forks import python

PEERS = [kind.name for kind in DPSGD.kinds if kind.name != "ours"]


def small_problem(model="fcnn"):
    """Returns a problem of 40 examples in mini-batches of 10."""
    from experiments.engine import peers_jax

    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    if model != "fcnn":
        features = rng.integers(0, 256, (40, 32, 32, 3), np.uint8)
    setting = setting_of(model, adversary="gc_r", batch_size=10, steps=8, clipping_norm=0.5)
    return peers_jax.problem_of(setting, Dataset(features, labels, "made up", "0" * 64))


@pytest.fixture(scope="module")
def given():
    return small_problem()


def test_a_problem_says_where_layers_stand_and_has_our_step(given):
    shapes = []
    for layer in given.layout:
        shapes.append([indices.shape for indices in layer])
    assert shapes == [[(8, 6), (6,)], [(6, 2), (2,)]]
    assert not np.array_equal(given.stepped, given.theta_0)


@pytest.fixture
def quickly(monkeypatch):
    """Times nothing."""
    monkeypatch.setattr(engines, "rate", lambda run, seconds: 1.0)


@pytest.fixture
def load(monkeypatch):
    """Returns load(name) -> what a worker calls, for this process, whose JAX is set up."""
    monkeypatch.setattr(engines, "prepare_jax", lambda: None)

    def load_engine(name, work=DPSGD):
        return work.kind(name).load()

    return load_engine


def assert_takes_our_step(load, name, given):
    """Asserts that an engine's step is ours; returns the engine.

    Where our step is moved by 10 tolerances, the distance is that, so that without it there is none.
    """
    kind = DPSGD.kind(name)
    pytest.importorskip(kind.needs)
    tolerance = TIMED[given.setting.model].tolerance
    off = np.zeros_like(given.stepped)
    off[7] = 10 * tolerance
    models = []
    if kind.chooses:
        models = [2 * len(jax.local_devices())]
    engine = load(name)(given._replace(stepped=given.stepped + off), *models)
    assert abs(engine.about.distance - 10 * tolerance) < tolerance
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_takes_our_step_and_counts_its_model_steps(load, name, given, quickly):
    engine = assert_takes_our_step(load, name, given)
    models = 1 if name == "opacus" else 2 * len(jax.local_devices())
    steps = len(given.batches) if name == "jax_privacy" else 1
    assert engine.about.models == models
    assert engine.run() == models * steps
    assert engine.run() == models * steps


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), [("opacus", "resnet18"), ("torch_func", "convnet")])
def test_a_peer_takes_our_step_of_a_network_of_its_own(load, name, model, quickly):
    assert_takes_our_step(load, name, small_problem(model))


@pytest.mark.slow
def test_ours_trains_the_chunk_that_an_audit_does(load, given):
    engine = load("ours")(given)
    assert 2 <= engine.about.models <= 5000
    model_steps = engine.about.models * len(given.batches)
    assert engine.run() == model_steps
    assert engine.run() == model_steps
    assert engines.rate(engine.run, 0.01) > 0


@pytest.fixture(scope="module")
def federated():
    """Six clients of 2 to 12 images, in cohorts of three."""
    from experiments.engine import peers_jax

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (42, 28, 28), np.uint8)
    labels = rng.integers(0, 10, 42)
    owners = np.repeat(np.arange(6), [2, 4, 6, 8, 10, 12])
    clients = dealt(Dataset(images, labels, "", ""), owners)
    setting = FederatedSetting(
        "lenet", cohort=3, rounds=4, batch_size=4, canaries=100, clipping_norm=0.05
    )
    return peers_jax.federated_problem_of(setting, clients)


@pytest.mark.slow
def test_the_loop_over_clients_takes_our_round(load, federated):
    pytest.importorskip("torch")
    off = np.zeros_like(federated.stepped)
    off[7] = 1e-4
    engine = load("torch_loop", FEDAVG)(federated._replace(stepped=federated.stepped + off))
    assert abs(engine.about.distance - 1e-4) < 1e-5  # so few images leave nothing to rounding
    assert engine.run() == 3
    assert engine.run() == 3


@pytest.mark.slow
def test_ours_trains_the_rounds_that_federated_does(load, federated):
    engine = load("ours", FEDAVG)(federated)
    assert engine.run() == 4 * 3
    assert engine.run() == 4 * 3


def test_the_fastest_count_is_chosen(monkeypatch):
    rates = {1: 5, 8: 7, 64: 6}
    monkeypatch.setattr(engines, "rate", lambda run, seconds: rates[run()])

    def build(models):
        return lambda: models

    models, run = engines.find_fastest(build, [1, 8, 64])
    assert models == 8
    assert run() == 8


def test_an_engine_of_another_step_is_refused():
    measurement.require_agreement("peer", About(1, "cpu", "cpu", 9e-6), 1e-5)
    for distance in (1.1e-5, float("nan")):
        with pytest.raises(InputError, match="peer.*away from ours.*--engines"):
            measurement.require_agreement("peer", About(1, "cpu", "cpu", distance), 1e-5)


def test_an_engine_that_dies_is_a_line(tmp_path):
    with pytest.raises(InputError, match="peer ended with status -6"):
        Worker(Kind("peer", os.abort), tmp_path).about(1e-5)


IMAGE = np.zeros((32, 32, 3), np.uint8)
EXAMPLES = {"fcnn": (fcnn(), np.zeros(8, np.float32)), "lenet": (lenet(), IMAGE[:28, :28, 0])}
EXAMPLES |= {"convnet": (convnet(), IMAGE), "resnet18": (resnet18(), IMAGE)}
OPERATIONS = {
    "fcnn": 264,
    "convnet": 3_204_720,
    "resnet18": 3_328_997_376,
    "lenet": 1_517_040,
}  # by hand


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_operations_are_counted_in_the_model_as_by_hand(name):
    from experiments.engine import peers_jax

    model, example = EXAMPLES[name]
    layers = peers_jax.layers_of(model, example)
    assert peers_jax.flops(layers.uses, 1) == OPERATIONS[name]
    assert peers_jax.flops(layers.uses, 7.5) == 7.5 * OPERATIONS[name]
    positions = []
    for layer in layers.layout:
        positions.extend(indices.ravel() for indices in layer)
    positions = np.concatenate(positions)
    np.testing.assert_array_equal(np.sort(positions), np.arange(model.n_parameters))


def test_operations_by_hand_are_those_of_the_gradients_products():
    gradient = jax.make_jaxpr(jax.grad(fcnn().loss))(
        np.zeros(68, np.float32), (np.zeros(8), 1)
    ).jaxpr
    assert OPERATIONS["fcnn"] == count_products(gradient) == 2 * (3 * (8 * 6 + 6 * 2) - 8 * 6)
    assert OPERATIONS["convnet"] * 128 == 410_204_160


def count_products(jaxpr):
    """Returns the operations of all products of matrices in a program."""
    total = 0
    for equation in jaxpr.eqns:
        for parameter in equation.params.values():
            program = getattr(parameter, "jaxpr", parameter)
            if hasattr(program, "eqns"):
                total += count_products(program)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            contracted_size = int(np.prod([shape[axis] for axis in contracted]))
            total += 2 * equation.outvars[0].aval.size * contracted_size
    return total


def measured(engine, rates, model="convnet"):
    """Returns an engine's measurement of these rates."""
    about = About(8, "cpu", "cpu", 1e-7)
    memory = Memory(2_500_000_000, 300_000_000)
    return Measurement(model, engine, rates, [1e11, 2e11, 4e11], 10**9, memory, about, 2)


def test_json_has_medians_shares_and_every_round():
    text = measurement.as_json([measured("opacus", [10.0, 40.0, 20.0])], [DPSGD.kind("torch_func")])
    result = json.loads(text)
    (row,) = result["measurements"]
    assert "\n" not in text
    assert result["missing"] == ["torch_func"]
    assert (row["model"], row["engine"], row["model_steps_per_second"]) == (
        "convnet",
        "opacus",
        20.0,
    )
    assert row["gemm_share"] == 0.1  # of 0.1, 0.2, 0.05
    assert row["peak_memory_bytes"] == 2_500_000_000
    assert row["gemm_flops_per_second"] == 2e11
    assert row["rounds_model_steps_per_second"] == [10.0, 40.0, 20.0]


def test_ratios_are_taken_within_rounds_in_80_columns():
    rows = [
        measured("ours", [1e6, 4e6, 2e6]),
        measured("jax_privacy", [1e3, 1e3, 4e4]),
        measured("opacus", [5.0, 4.0, 3.0], "fcnn"),
    ]
    lines = measurement.as_table(rows).splitlines()
    assert max(map(len, lines)) <= 80
    assert "1,000 (50 to 4,000)" in lines[3]
    assert "2,000,000" in lines[2]
    assert "2,500" in lines[2]
    assert " to " not in lines[2]
    assert " to " not in lines[4]  # nothing of ours on that model
    assert "200 GFLOP/s" in lines[-1]


def test_units_have_blocks_of_their_own():
    convnet = measured("ours", [4.0, 4.0, 4.0])
    lenet = measured("ours", [8.0, 8.0, 8.0], "lenet")
    peer = measured("torch_loop", [2.0, 1.0, 2.0], "lenet")
    text = measurement.as_table([convnet, lenet, peer])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if "/s " in line]
    assert heads[0].split()[2] == "model-steps/s"
    assert "client-updates/s" in text
    assert "4 (4 to 8)" in text
    (row,) = json.loads(measurement.as_json([lenet], []))["measurements"]
    assert row["client_updates_per_second"] == 8.0
    assert row["flops_per_client_update"] == 10**9


def test_the_line_on_a_missing_library_says_what_installs_it():
    assert not Kind("peer", os.getcwd, "no_such_library").is_installed()
    line = engines.missing_line([DPSGD.kind("opacus"), DPSGD.kind("torch_func")])
    assert "opacus, torch not installed" in line
    assert "[bench]" in line
    assert "\n" not in line


def test_an_error_comes_out_of_a_process_of_its_own():
    assert processes.run_in_own_process(os.getpid) != os.getpid()
    with pytest.raises(InputError, match="nothing at all"):
        processes.run_in_own_process(partial(require, False, "nothing at all"))


def test_the_parent_imports_no_engine():
    loaded = python(
        "-c", "import sys, experiments.commands.throughput; print(*sys.modules)"
    ).stdout.split()
    assert "experiments.commands.throughput" in loaded
    assert {"jax", "torch", "jax_privacy", "opacus"}.isdisjoint(loaded)


FAILS_AT_THE_SECOND_MODEL = """
from audit.commands import cli
from audit.errors import InputError
from experiments.commands import throughput
from experiments.engine import measurement
from experiments.engine.engines import About

def measure(model, *others):
    if model == "convnet":
        raise InputError("its step is another")
    about, memory = About(8, "cpu", "cpu", 0.0), measurement.Memory(1, 1)
    return [measurement.Measurement(model, "ours", [4.0], [1e11], 10, memory, about, 1)]

measurement.measure = measure
cli.run(throughput.main)
"""


def test_what_was_measured_before_a_model_that_fails_is_shown():
    flags = ["--models=fcnn,convnet", "--engines=ours"]
    for more in ([], ["--json"]):
        ended = python("-c", FAILS_AT_THE_SECOND_MODEL, *flags, *more)
        assert ended.returncode == 2
        assert ended.stderr == "error: its step is another\n"
        assert "fcnn" in ended.stdout
    assert [row["model"] for row in json.loads(ended.stdout)["measurements"]] == ["fcnn"]


def run_throughput(*flags, **changes):
    """Runs the command in a process of its own."""
    return python("-m", "experiments.commands.throughput", *flags, **changes)


@pytest.mark.slow
def test_ours_and_a_peer_are_timed_and_a_missing_one_is_left_out(housing_file, tmp_path):
    flags = [
        "--models=fcnn",
        f"--data_file={housing_file}",
        "--rounds=2",
        "--seconds=0.1",
        "--engines=ours,jax_privacy,opacus",
        "--json",
    ]
    process = run_throughput(*flags, XDG_CACHE_HOME=str(tmp_path))
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert ("left out: opacus (opacus not installed" in process.stderr) == (
        result["missing"] == ["opacus"]
    )
    timed = [row["engine"] for row in result["measurements"]]
    assert sorted(timed + result["missing"]) == ["jax_privacy", "opacus", "ours"]
    for row in result["measurements"]:
        assert len(row["rounds_model_steps_per_second"]) == 2
        assert 0 < row["gemm_share"] < 1 < row["model_steps_per_second"]
        assert row["peak_memory_bytes"] > row["import_memory_bytes"] > 1e7


def test_models_that_are_timed_are_models_and_others_are_refused():
    for name, timed in TIMED.items():
        tasks = TASKS if timed.work is DPSGD else FEDERATED_TASKS
        assert timed.work in (DPSGD, FEDAVG)
        assert name in tasks
    for model in {*TASKS, *FEDERATED_TASKS} - set(TIMED):
        with pytest.raises(
            InputError, match=f"{model!r} can't be timed, .*: choose of fcnn, convnet"
        ):
            engines.require_timed(model)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_in_bytes_are_taken_for_cifar_10s_and_others_are_refused(channels):
    pytest.importorskip("torch")
    from experiments.engine import peers_torch

    problem = engines.Problem(
        setting=None,
        features=np.zeros((4, 2, 2, channels), np.uint8),
        labels=np.zeros(4, np.int32),
        batches=np.arange(4, dtype=np.int32)[None],
        theta_0=None,
        stepped=None,
        layout=None,
    )
    batches = peers_torch._cycle_batches(problem)
    if channels == 3:
        assert next(batches)[0].shape == (4, 3, 2, 2)
        return
    with pytest.raises(InputError, match="images of 1 channels: give CIFAR-10's, which have 3"):
        next(batches)


def test_timed_models_have_networks_in_pytorch():
    pytest.importorskip("torch")
    from experiments.engine import peers_torch

    assert set(peers_torch.NETWORKS) == set(TIMED)
