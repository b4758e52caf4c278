"""How far lower precisions move clipped gradients: bounded by their formats' rounding, and found."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism.base import no_canaries
from audit.settings import build
from audit.settings.make import changed, setting_of
from audit.task import Dataset
from experiments.engine import rounding

NAMED = {"adversary": "gc_r", "batch_size": 20, "steps": 5, "clipping_norm": 0.1, "noise_multiplier": 2.0}
SETTING = setting_of("fcnn", **NAMED)
UNITS = {"float32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}


@pytest.fixture(scope="module")
def dataset():
    features = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    return Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)


@pytest.mark.slow
def test_a_clipped_gradient_exceeds_c_by_rounding_and_no_more(dataset):
    effects = rounding.measure(SETTING, dataset, 60)
    assert list(effects) == ["at_initialisation", "after_5_steps"]
    for effect in itertools.chain(*effects.values()):
        unit = UNITS[effect.precision]
        assert unit / 16 < effect.norm_error_median < 8 * unit
        assert unit / 16 < effect.sum_error < 64 * unit
        assert abs(effect.excess) < (8 if effect.precision == "float32" else 3) * unit
        assert effect.excess > unit / 8 or effect.precision == "float32"
        assert effect.clipped_share > 0.5
        assert effect.effective_sigma == pytest.approx(2 / (1 + max(effect.excess, 0)), rel=1e-12)


@pytest.mark.parametrize(("name", "bits"), [("float32", None), ("tf32", 10), ("bf16", 7)])
def test_the_setting_s_precision_is_the_training_s(dataset, name, bits):
    setting = changed(SETTING, precision=name, adversary="loss", clipping="per_example")
    build.validate(setting, 2)
    table = build.build(setting, dataset)
    theta = jnp.zeros(68)
    state, key = table.mechanism.start(theta), jax.random.key(0)
    arguments = (table.hyper, state, table.data, table.schedule)
    segment = jax.make_jaxpr(lambda *a: table.mechanism.segment(*a, no_canaries(), key))(*arguments)
    known = table.adversary.init(key, theta, 1.0)
    craft = jax.make_jaxpr(table.adversary.craft)(known, 0, theta)
    for program in (str(segment), str(craft)):
        assert ("reduce_precision" in program) == (bits is not None)
        assert f"mantissa_bits={bits}" in program or bits is None
