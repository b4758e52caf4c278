"""Programs that are compiled and not run, for a TPU where its compiler is installed (by ./run.sh compile)."""

import importlib.util
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from audit.mechanism.ensemble import Placement
from audit.runtime import processes
from experiments.engine import ahead
from models.catalogue import FEDERATED_TASKS, TASKS


@pytest.mark.slow
def test_every_model_takes_the_examples_of_its_data():
    for row in TASKS.values():
        examples = row.data.examples
        assert has_scalar_loss(row.make(examples.shape), examples, ())
        assert examples.number >= row.batch_size
    for row in FEDERATED_TASKS.values():
        label_shape = () if row.padding is None else row.examples.shape
        assert has_scalar_loss(row.make(), row.examples, label_shape)


def has_scalar_loss(model, examples, label_shape):
    """Returns whether a model has a loss of an example and a label of these shapes."""
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    label = jax.ShapeDtypeStruct(label_shape, jnp.int32)
    example = jax.ShapeDtypeStruct(examples.shape, examples.dtype)
    loss = jax.eval_shape(model.loss, theta, (example, label))
    return loss.shape == ()


@pytest.mark.parametrize("module", ["experiments.commands.compile", "experiments.engine.ahead"])
def test_what_a_compilers_process_imports_first_loads_no_jax(module):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def measure_here(build, chunk):
    """Returns the memory of a training of the FCNN or LeNet on this machine's devices."""
    from audit.mechanism.memory import local_hardware
    from audit.runtime.machine import prepare_jax

    prepare_jax(1)
    name = "fcnn" if build is ahead._build_dpsgd else "lenet"
    return ahead.measure_memory(build(name, local_hardware()), chunk, jax.local_devices())


@pytest.mark.parametrize(
    ("rows", "chunk", "models"), [(1, 5, 5), (2, 4, 2), (2, 5, 3), (4, 1, 1), (4, 9, 3)]
)
def test_a_device_holds_its_share_of_a_chunk_that_is_rounded_up(rows, chunk, models):
    placement = Placement(jax.sharding.AbstractMesh((rows,), ("runs",)))
    assert ahead.count_models_a_device(placement, chunk) == models


@pytest.mark.slow
@pytest.mark.parametrize("build", [ahead._build_dpsgd, ahead._build_federated])
def test_a_device_holds_the_data_and_every_models_bytes(build):
    least = {ahead._build_dpsgd: 20_640 * 9 * 4, ahead._build_federated: 60_000 * 28 * 28}[build]
    one = processes.run_in_own_process(partial(measure_here, build, 1))
    assert one.device >= least + one.model
    if build is ahead._build_dpsgd:
        many = processes.run_in_own_process(partial(measure_here, build, 200))
        # 68 parameters in float32, beside what a step holds
        assert many.device - one.device > 199 * 68 * 4
        assert many.model >= 68 * 4


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "model"), [("DP-SGD", "convnet"), ("DP-FedAvg", "lenet")])
def test_a_training_compiles_for_a_tpu(mechanism, model):
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is not installed: nothing is compiled for a TPU")
    row = ahead.compile_for_tpu(mechanism, model)
    assert not row.failure
    assert 4 * 44_000 < row.bytes < ahead._CHIP_BYTES


@pytest.mark.slow
def test_what_a_compiler_raises_is_reported_in_a_line():
    row = ahead.compile_for_tpu("DP-SGD", "nobody")
    assert re.match(r"\w*Error: ", row.failure)
    assert "\n" not in row.failure


class Deadly(str):
    """A model's name that ends the process that receives it."""

    def __reduce__(self):
        return ahead.os._exit, (3,)


def test_the_death_of_a_compiler_is_reported():
    assert ahead.compile_for_tpu("DP-SGD", Deadly()).failure == "the compiler ended its process"
