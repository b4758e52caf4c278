"""Runs spread over eight virtual devices give the scores of one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from audit import game
from audit.adversaries.biased import random_biased_dimension
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping import dense
from models.dense import fcnn
assert len(jax.devices()) == int(sys.argv[1])
model, rng = fcnn(), np.random.default_rng(0)
data = jnp.float32(rng.normal(size=(60, 8))), jnp.int32(rng.integers(0, 2, 60))
schedule = base.Schedule(base.fixed_shuffle(jax.random.key(1), 60, 20, 7), base.insertion_mask(7, 2))
mechanism = dpsgd.mechanism(dpsgd.DPSGD(dense.book_keeping(model.module, model.unravel, model.criterion)))
table = game.Game(mechanism, random_biased_dimension(), model.init, data,
                  base.Hyperparameters(0.1, 1.0, 1.0), schedule, 0)
scores = list(game.play(table, [(0, 21)], 10))
print(json.dumps(np.concatenate([part.scores for part in scores]).tolist()))
"""


def scores_on(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-c", PROGRAM, str(devices)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [3, 8])
def test_scores_do_not_depend_on_the_number_of_devices(devices):
    one, many = scores_on(1), scores_on(devices)
    assert len(one) == 21
    np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-7)
