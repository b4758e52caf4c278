"""Numbers that must not change: scores of seven settings, and the table of the default audit.

They were recorded with the version of JAX and on the processor that scores.json names; there they must be
the same to the bit, elsewhere to 1e-5.
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from audit import game
from experiments.settings import build
from experiments.settings.make import Usual, make_setting
from models.data.base import Dataset

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
SCORES = json.loads((GOLDEN / "scores.json").read_text())
TOLERANCE = 1e-5


def _processor():
    """Its name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def _data(model):
    """Made-up examples: 8 numbers with a noisy linear rule, or images."""
    if model == "convnet":
        rng = np.random.default_rng(1)
        images, labels = rng.integers(0, 256, (64, 32, 32, 3)), rng.integers(0, 10, 64)
        return Dataset(images.astype(np.uint8), labels.astype(np.int32), "made up", "1" * 64)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    labels = (features @ rng.normal(size=8) + rng.normal(size=200) > 0).astype(np.int32)
    return Dataset(features, labels, "made up", "0" * 64)


def _setting(fields):
    """The setting of a flat config."""
    usual = Usual(fields["learning_rate"], fields["batch_size"], fields["clipping"])
    return make_setting(fields["model"], usual, {n: v for n, v in fields.items() if n != "model"})


@pytest.mark.parametrize("name", SCORES["settings"])
def test_scores(name):
    golden = SCORES["settings"][name]
    expected = np.array([float.fromhex(score) for score in golden["scores"]])
    setting, runs = _setting(golden["fields"]), len(expected)
    (chunk,) = game.play(build.build(setting, _data(setting.model)), [(0, runs)], runs)
    np.testing.assert_allclose(chunk.scores[:, 0], expected, rtol=0, atol=TOLERANCE)
    if (SCORES["jax"], SCORES["cpu"]) == (jax.__version__, _processor()):
        np.testing.assert_array_equal(chunk.scores[:, 0], expected)


@pytest.mark.slow
def test_the_table_of_the_default_audit(tmp_path):
    """On another processor a score may fall on the other side of its threshold, so that counts differ."""
    argv = [sys.executable, "-m", "experiments.audit", f"--out={tmp_path}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if "could not be loaded" in done.stderr:
        pytest.skip("California Housing can't be fetched here")
    assert done.returncode == 0, done.stderr
    expected = (GOLDEN / "audit.txt").read_text()
    if (SCORES["jax"], SCORES["cpu"]) == (jax.__version__, _processor()):
        assert done.stdout.startswith(expected)
    assert done.stdout.splitlines()[:2] == expected.splitlines()[:2]
