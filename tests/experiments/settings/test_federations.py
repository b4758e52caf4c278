"""Federated models: rows that say what they hold, and load what they say."""

import subprocess
import sys

import numpy as np
import pytest

from audit.errors import InputError
from experiments.settings import federations
from experiments.settings.federations import FEDERATIONS, Deal, federation
from experiments.settings.tasks import Sources


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_row_says_its_model_s_size(name):
    assert f"{FEDERATIONS[name].make().n_parameters:,} parameters" in FEDERATIONS[name].description


def test_delta_is_the_paper_s_rule():
    assert federation("emnist_digits").delta(3383) == pytest.approx(1.311e-4, rel=1e-3)
    assert federation("stackoverflow").delta(341_000) == pytest.approx(8.203e-7, rel=1e-3)


def test_fashion_mnist_is_dealt(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, size in (("train", 200), ("test", 10)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (size, 28, 28), np.uint8)
        arrays[f"{split}_labels"] = rng.integers(0, 10, size, np.int32)
    np.savez(tmp_path / "f.npz", **arrays)
    found = federation("fashion_mnist").load(Sources(str(tmp_path / "f.npz")), Deal(clients=8, seed=3))
    assert found.number == 8 and found.counts.sum() == 200 and found.features.shape == (200, 28, 28)


@pytest.mark.parametrize("name", ["emnist", "emnist_digits", "stackoverflow"])
def test_without_a_file_the_published_one_is_named(name):
    with pytest.raises(InputError, match="TensorFlow Federated's .*`data_file`"):
        federation(name).load(Sources(), Deal())
    with pytest.raises(InputError, match="`tfds_dir`"):
        federation(name).load(Sources(tfds_dir="here"), Deal())


def test_what_does_not_fit_is_one_line():
    with pytest.raises(InputError, match="`federation=nobody` is unknown: choose one of fashion_mnist"):
        federation("nobody")
    with pytest.raises(InputError, match="`clients=3`: Shakespeare's roles"):
        federation("shakespeare").load(Sources(), Deal(clients=3))


def test_importing_the_table_starts_no_jax():
    code = f"import sys, {federations.__name__}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
