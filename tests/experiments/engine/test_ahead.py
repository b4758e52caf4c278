"""Trainings compiled for accelerators, where their compilers are installed (for TPUs by ./run.sh compile)."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from audit.mechanism import precision
from experiments.engine import accelerators, ahead
from experiments.engine.ahead import DP_FEDAVG, DP_SGD, TrainingProgram
from experiments.engine.workers import in_a_process
from models.catalogue import FEDERATED_TASKS, TASKS

COMPILERS = {"v5e:2x2": "libtpu", "h200": "jax_plugins.xla_cuda12"}


def needs(name):
    """Skips where the compiler of a device's kind is missing."""
    if not accelerators._is_installed(COMPILERS[name]):
        pytest.skip(f"{COMPILERS[name]} is not installed: nothing is compiled for {name}")


def test_every_model_has_data_of_a_shape_that_it_takes():
    for row in TASKS.values():
        number, shape, _ = ahead._SHAPES[row.data.name]
        assert number >= row.batch_size
        model = row.make(shape)
        kind = ahead._SHAPES[row.data.name][2]
        theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
        example = jax.ShapeDtypeStruct(shape, kind), jax.ShapeDtypeStruct((), jnp.int32)
        assert jax.eval_shape(model.loss, theta, example).shape == ()
    assert all(row.file in ahead._SHAPES for row in FEDERATED_TASKS.values())


def test_all_trainings_are_compiled_and_federated_ones_in_float32_alone():
    found = ahead.programs("float32")
    assert [p.model for p in found if p.mechanism == DP_SGD] == list(TASKS)
    assert [p.model for p in found if p.mechanism == DP_FEDAVG] == list(FEDERATED_TASKS)
    assert {p.mechanism for p in ahead.programs("bf16")} == {DP_SGD}


@pytest.mark.parametrize("module", ["experiments.compile", "experiments.plan", "experiments.engine.ahead"])
def test_what_a_compilers_process_imports_first_loads_no_jax(module):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def products(name):
    """The program, in a process of its own, of a product in each precision: texts by precision."""
    accelerators.prepare_for(name)
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(accelerators.devices(name)[0])
    shapes = [jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=place)] * 2
    formats = {"tf32": precision.TF32, "bf16": precision.BF16}
    with jax.default_matmul_precision("float32"):
        compiled = {
            kind: jax.jit(precision.with_operands(jnp.matmul, operands)).lower(*shapes).compile()
            for kind, operands in formats.items()
        }
    return {kind: one.as_text() for kind, one in compiled.items()}


def test_a_tpu_multiplies_bfloat16():
    needs("v5e:2x2")
    texts = in_a_process(products, "v5e:2x2")
    product = next(line for line in texts["bf16"].splitlines() if re.search(r" (convolution|dot)\(", line))
    assert "precision" not in product
    assert re.search(r"bf16\[256,256\]\S* (convert|fusion|parameter)", texts["bf16"])
    assert "bf16" not in product.split("=")[1].split("[")[0]  # and adds up in float32
    assert "operand_precision={high,high}" in texts["tf32"]


@pytest.mark.slow
def test_an_h200_multiplies_in_its_tensor_cores():
    needs("h200")
    texts = in_a_process(products, "h200")
    called = {
        kind: next(line for line in text.splitlines() if "__cublas" in line) for kind, text in texts.items()
    }
    assert '"operand_precision":["HIGH","HIGH"]' in called["tf32"]  # XLA's leave to use TF32
    assert '"operand_precision":["DEFAULT","DEFAULT"]' in called["bf16"]
    assert re.search(r"bf16\[256,256\]\S* (convert|fusion|parameter)", texts["bf16"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism", "model"),
    [
        *(("v5e:2x2", DP_SGD, model) for model in ("fcnn", "convnet", "resnet18")),
        *(("v5e:2x2", DP_FEDAVG, model) for model in ("lenet", "emnist_cnn")),
        *(("h200", DP_SGD, model) for model in ("fcnn", "convnet", "resnet18")),
        *(("h200", DP_FEDAVG, model) for model in ("lenet", "emnist_cnn")),
    ],
)
def test_a_training_compiles_and_fits(name, mechanism, model):
    needs(name)
    devices = accelerators.described(name)
    found = ahead.compiled_for(devices, TrainingProgram(mechanism, model))
    assert not found.failure and found.seconds > 0
    assert 0 < found.own * found.models <= 4 * found.memory <= 4 * devices.chip.memory
    assert found.models >= devices.number or mechanism == DP_FEDAVG
    assert 1e4 < found.flops < 1e12 and found.moved > 0


def test_a_compiler_that_dies_is_said():
    program = TrainingProgram(DP_SGD, "fcnn")
    found = ahead._in_a_process(accelerators.described("h200"), program, Deadly(), 1)
    assert found.failure == "the compiler ended its process"


def test_what_a_compiler_raises_is_said_in_a_line():
    program = TrainingProgram(DP_SGD, "fcnn")
    found = ahead._in_a_process(accelerators.described("h200"), program, None, 1)
    assert re.match(r"\w*Error: ", found.failure) and "\n" not in found.failure


class Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self):
        return os._exit, (3,)
