"""Programs compiled for accelerators, where their compilers are installed (for TPUs by ./run.sh compile)."""

import json
import os
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from audit.errors import InputError
from audit.mechanism import precision
from audit.tasks.model import flat_model
from experiments.engine import ahead
from experiments.engine.ahead import (
    DP_FEDAVG,
    DP_SGD,
    Chip,
    CompiledTraining,
    Target,
    TrainingProgram,
)
from experiments.engine.measurement import in_a_process
from models import convolutional
from models.catalogue import FEDERATED_TASKS, TASKS

COMPILERS = {"v5e:2x2": "libtpu", "h200": "jax_plugins.xla_cuda12"}


@pytest.fixture(autouse=True)
def without_cache(monkeypatch):
    """What is compiled is read: nothing comes from a cache."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)


def skip_without_compiler(name):
    """Skips a test where the compiler of a device is not installed."""
    if not ahead.is_installed(COMPILERS[name]):
        pytest.skip(f"{COMPILERS[name]} is not installed: nothing is compiled for {name}")


@pytest.mark.parametrize(
    ("name", "label", "number"), [("v5e:2x2", "TPU v5e", 4), ("h200", "NVIDIA H200", 1)]
)
def test_a_name_is_a_chip_and_how_many(name, label, number):
    target = ahead.target(name)
    assert (target.chip.label, target.number) == (label, number)


@pytest.mark.parametrize(
    ("name", "package"), [("v5e:2x2", "jax[tpu]=="), ("h200", "jax[cuda12]==")]
)
def test_the_message_on_a_missing_compiler_says_what_installs_it(monkeypatch, name, package):
    monkeypatch.setattr(ahead, "is_installed", lambda module: False)
    with pytest.raises(InputError) as caught:
        ahead.require_compiler(name)
    message = str(caught.value)
    assert f"device={name}" in message
    assert f"pip install '{package}" in message


def test_a_module_whose_package_is_missing_is_not_installed():
    assert ahead.is_installed("json.decoder")
    assert not ahead.is_installed("json.nothing")
    assert not ahead.is_installed("nothing.nothing")


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


def test_all_programs_are_compiled_and_federated_programs_in_float32_alone():
    programs = ahead.programs("float32")
    assert [program.model for program in programs if program.mechanism == DP_SGD] == list(TASKS)
    federated = [program.model for program in programs if program.mechanism == DP_FEDAVG]
    assert federated == list(FEDERATED_TASKS)
    assert {program.mechanism for program in ahead.programs("bf16")} == {DP_SGD}


@pytest.mark.parametrize("module", ["experiments.commands.compile", "experiments.engine.ahead"])
def test_what_a_compilers_process_imports_first_loads_no_jax(module):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def compile_products(name):
    """Returns the programs of a product of matrices as texts, by precision; in a process of its own."""
    ahead.prepare_for(name)
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(ahead.devices(name)[0])
    shapes = [jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=place)] * 2
    formats = {"tf32": precision.TF32, "bf16": precision.BF16}
    texts = {}
    with jax.default_matmul_precision("float32"):
        for kind, operands in formats.items():
            multiply = jax.jit(precision.with_operands(jnp.matmul, operands))
            texts[kind] = multiply.lower(*shapes).compile().as_text()
    return texts


@pytest.mark.slow
def test_a_tpu_multiplies_bfloat16():
    skip_without_compiler("v5e:2x2")
    texts = in_a_process(compile_products, "v5e:2x2")
    product = next(
        line for line in texts["bf16"].splitlines() if re.search(r" (convolution|dot)\(", line)
    )
    assert "precision" not in product
    assert re.search(r"bf16\[256,256\]\S* (convert|fusion|parameter)", texts["bf16"])
    assert "bf16" not in product.split("=")[1].split("[")[0]  # and adds up in float32
    assert "operand_precision={high,high}" in texts["tf32"]


@pytest.mark.slow
def test_an_h200_multiplies_in_its_tensor_cores():
    skip_without_compiler("h200")
    texts = in_a_process(compile_products, "h200")
    for kind, word in (("tf32", "HIGH"), ("bf16", "DEFAULT")):  # XLA's leave to use TF32
        called = next(line for line in texts[kind].splitlines() if "__cublas" in line)
        assert f'"operand_precision":["{word}","{word}"]' in called
    assert re.search(r"bf16\[256,256\]\S* (convert|fusion|parameter)", texts["bf16"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism", "model"),
    [
        *((name, DP_SGD, model) for name in COMPILERS for model in ("fcnn", "convnet")),
        *((name, DP_FEDAVG, "lenet") for name in COMPILERS),
        ("h200", DP_SGD, "resnet18"),
    ],
)
def test_a_training_compiles_and_fits(name, mechanism, model):
    skip_without_compiler(name)
    program = TrainingProgram(mechanism, model)
    assert_fits(name, mechanism, ahead.compiled_for(ahead.target(name), program))


@pytest.mark.slow
def test_the_layers_of_a_resnet_compile_for_a_tpu():
    """A block that halves the image has them all: the ResNet18 itself takes three minutes."""
    skip_without_compiler("v5e:2x2")
    assert_fits("v5e:2x2", DP_SGD, in_a_process(compile_short_resnet, "v5e:2x2"))


class ShortResNet(nn.Module):
    """A block of the ResNet18 and its last layer."""

    @nn.compact
    def __call__(self, image):
        features = convolutional.Block(64, 2)(image / 255)
        return nn.Dense(10)(jnp.mean(features, axis=(-3, -2)))


def compile_short_resnet(name):
    """Compiles a short ResNet in the ResNet18's place, in a process of its own."""
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    convolutional.resnet18 = lambda: flat_model(ShortResNet(), image, cross_entropy)
    return ahead.compiled_here(ahead.target(name), TrainingProgram(DP_SGD, "resnet18"))


def assert_fits(name, mechanism, compiled):
    """Asserts that a program compiled, into the memory of its devices."""
    devices = ahead.target(name)
    assert not compiled.failure
    assert compiled.seconds_to_compile > 0
    model_bytes = compiled.bytes_a_model * compiled.models_at_once
    assert 0 < model_bytes <= 4 * compiled.bytes_a_device <= 4 * devices.chip.memory
    assert compiled.models_at_once >= devices.number or mechanism == DP_FEDAVG


def test_the_death_of_a_compiler_is_reported():
    assert (
        ahead.compiled_for(ahead.target("h200"), Deadly()).failure
        == "the compiler ended its process"
    )


def test_what_a_compiler_raises_is_reported_in_a_line():
    compiled = ahead.compiled_for(ahead.target("h200"), TrainingProgram(DP_SGD, "nobody"))
    assert re.match(r"\w*Error: ", compiled.failure)
    assert "\n" not in compiled.failure


class Deadly:
    """A program that ends the process that receives it."""

    def __reduce__(self):
        return os._exit, (3,)


FOUR = Target("chips:2x2", Chip("a chip", 16 * 10**9), 4)
STEP = CompiledTraining(TrainingProgram(DP_SGD, "convnet"), 12.3, 500, 10**9, 7 * 10**6)


def test_the_table_has_a_row_a_program_in_80_columns():
    rows = [STEP._replace(program=program) for program in ahead.programs("float32")]
    rows[1] = CompiledTraining(rows[1].program, failure="RESOURCE_EXHAUSTED: " + 100 * "x")
    lines = ahead.as_text([(FOUR, rows)]).splitlines()
    assert max(map(len, lines)) == 80
    assert lines[0] == "chips:2x2: a chip, 4 chips, each 16 GB"
    assert sum(line.startswith("convnet") for line in lines) == 2  # of DP-SGD and of DP-FedAvg
    assert [line.split()[0] for line in lines if "compile" in line] == ["DP-SGD", "DP-FedAvg"]
    line = ahead.as_text([(FOUR, [STEP])]).splitlines()[-1]
    assert line.split() == ["convnet", "12", "s", "500", "7M"]


def test_json_has_every_number_or_why_there_is_none():
    failed = CompiledTraining(TrainingProgram(DP_FEDAVG, "lenet"), failure="no")
    both = {"device": "chips:2x2", "precision": "float32"}
    sizes = {
        "compiles": True,
        "seconds_to_compile": 12.3,
        "models_at_once": 500,
        "bytes_a_device": 10**9,
        "bytes_a_model": 7 * 10**6,
    }
    assert json.loads(ahead.as_json([(FOUR, [STEP, failed])]))["programs"] == [
        {**both, "mechanism": "dp_sgd", "model": "convnet", **sizes},
        {**both, "mechanism": "dp_fedavg", "model": "lenet", "compiles": False, "failure": "no"},
    ]
