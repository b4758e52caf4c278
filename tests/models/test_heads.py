"""The tasks that train a head on a frozen body's features: what they load, and what they refuse."""

from itertools import product

import jax
import numpy as np
import pytest

from audit.errors import InputError
from audit.settings import build
from audit.settings.make import setting_of
from audit.tasks.task import Sources
from models import catalogue
from models.catalogue import TASKS
from models.data.sources import LoadedArrays
from models.pretrained.features import Body

SETTING = setting_of("mobilenet_head", adversary="gc_r", batch_size=4, steps=2)


def _load(file):
    return LoadedArrays({"scale": np.float32([2.0])}, f"weights {file}", "a")


def _apply(scale, images):
    return images.mean((1, 2)) * scale


BODY = Body("mean", 3, 32, 32, 8, _load, lambda arrays: arrays["scale"], _apply)


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = np.arange(12) % 10
    path = tmp_path / "pictures.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return str(path)


def test_a_heads_game_plays_on_the_bodys_features(pictures):
    load = catalogue.make_feature_loader(lambda: BODY)
    dataset = load(Sources(data_file=pictures, weights="w.pth", input_size=40))
    assert dataset.features.shape == (12, 3)
    assert "mean features at 40 x 40 (weights: weights w.pth; images: file " in dataset.source
    table = build.build(SETTING, dataset)
    assert jax.eval_shape(table.init, jax.random.key(0)).shape == (40,)
    np.testing.assert_array_equal(table.data[0], dataset.features)


def test_weights_and_sizes_that_do_not_fit_are_refused(pictures):
    misplaced_sources = (Sources(weights="w.pth"), Sources(input_size=64))
    for model, sources in product(("fcnn", "convnet"), misplaced_sources):
        with pytest.raises(InputError, match="`weights` and `input_size` are for a frozen body"):
            TASKS[model].data.load(sources)
    for model, body in (("mobilenet_head", "mobilenet_v2"), ("alexnet_head", "alexnet")):
        with pytest.raises(InputError, match=f"`input_size=9`: give .* pixels for {body}"):
            TASKS[model].data.load(Sources(data_file=pictures, input_size=9))
