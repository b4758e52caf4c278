"""CIFAR-10 and Fashion-MNIST are the same to the bit from package, published files, TFDS and cache."""

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest

from models.data import sources
from tests.models.data.made_up import (
    CIFAR,
    FASHION,
    binary_archive,
    deb,
    idx_files,
    refusal,
    refuse,
    require_equal,
)

IMAGE_SETS = (CIFAR, FASHION)
BOTH = pytest.mark.parametrize("one", IMAGE_SETS, ids=["cifar10", "fashion_mnist"])


@BOTH
def test_the_package_gives_its_pixels_and_is_then_cached(one, tmp_path, monkeypatch, capfd):
    arrays = one.arrays()
    one.publish(monkeypatch, arrays, one.archive(arrays))
    fetched = one.load()
    monkeypatch.setattr(subprocess, "run", refuse)
    for data in (fetched, one.load()):
        require_equal(data, arrays)
        assert data.source == one.source and data.checksum == sources.checksum_of(arrays)
    kept = tmp_path / "xdg" / "hidden-state-audit" / "data"
    (name,) = os.listdir(kept)
    assert name == f"{one.recipe.lower()}.npz"
    assert one.load(file=str(kept / name)).source == f"file {kept / name}"
    assert capfd.readouterr() == ("", "")


@BOTH
def test_the_published_files_and_an_npz_give_the_same_bits(one, tmp_path, monkeypatch):
    arrays = one.arrays()
    one.publish(monkeypatch, arrays)
    np.savez(tmp_path / "c.npz", **dict(reversed(arrays.items())))
    if one is CIFAR:
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(binary_archive(arrays))
    else:
        (tmp_path / "published").mkdir()
        for name, content in idx_files(arrays).items():
            (tmp_path / "published" / name).write_bytes(content)
        (tmp_path / "f.deb").write_bytes(deb(arrays))
        (tmp_path / "g.deb").write_bytes(deb(arrays, "data.tar.gz", gzip.compress))
        (tmp_path / "h.deb").write_bytes(deb(arrays, "data.tar", bytes))
    paths = [path for path in tmp_path.iterdir() if path.name != "xdg"]
    assert len(paths) == (2 if one is CIFAR else 5)
    for path in paths:
        data = one.load(file=str(path))
        require_equal(data, arrays)
        assert data.source == f"file {path}"


@BOTH
def test_another_order_is_said_to_differ(one, tmp_path, monkeypatch):
    arrays = one.arrays()
    one.publish(monkeypatch, arrays)
    swapped = arrays | {"train_images": arrays["train_images"][::-1]}
    np.savez(tmp_path / "c.npz", **swapped)
    data = one.load(file=str(tmp_path / "c.npz"))
    assert data.source.endswith(f"(differs from the published {one.recipe.lower()})")
    assert data.checksum == sources.checksum_of(swapped) != sources.checksum_of(arrays)


@BOTH
def test_tfds_rows_come_back_in_the_published_order(one, tmp_path, monkeypatch, capfd):
    """By their ids, or by TFDS's keys."""
    arrays = one.arrays() if one is CIFAR else one.arrays(150, 30)
    one.publish(monkeypatch, arrays)
    tfds = one.prepare_tfds(tmp_path / "tfds", arrays, monkeypatch, ids=one is CIFAR)
    rows = tfds.data_source(one.tfds[0], split="train", data_dir=tmp_path / "tfds", download=False)
    assert [row["label"] for row in rows] != arrays["train_labels"].tolist()  # it did shuffle
    capfd.readouterr()
    for data in (one.load(tfds_dir=str(tmp_path / "tfds")), one.load()):
        require_equal(data, arrays)
        assert data.source == f"tfds folder {tmp_path / 'tfds'}"
    assert capfd.readouterr() == ("", "")
    assert "tensorflow" not in sys.modules


def test_cifar_10_without_ids_is_said_to_differ(tmp_path, monkeypatch):
    arrays = CIFAR.arrays()
    CIFAR.publish(monkeypatch, arrays)
    CIFAR.prepare_tfds(tmp_path / "other", arrays, monkeypatch, ids=False)
    data = CIFAR.load(tfds_dir=str(tmp_path / "other"))
    assert data.source.endswith("(differs from the published cifar10)")
    assert sorted(data.train_labels) == sorted(arrays["train_labels"])


@pytest.mark.parametrize(
    ("one", "name", "value", "complaint"),
    [
        (CIFAR, "train_images", np.zeros((15, 28, 28, 3), np.uint8), "(15, 28, 28, 3), not uint8 (n, 32"),
        (CIFAR, "train_images", np.zeros((15, 3, 32, 32), np.uint8), "(15, 3, 32, 32), not"),
        (CIFAR, "test_images", np.zeros((4, 32, 32, 3), np.float32), "float32 (4, 32, 32, 3), not uint8"),
        (CIFAR, "test_images", np.zeros((0, 32, 32, 3), np.uint8), "(0, 32, 32, 3), not"),
        (CIFAR, "test_images", np.uint8(3), "uint8 (), not"),
        (CIFAR, "train_labels", np.zeros((15, 1), np.int32), "(15, 1), not integers (15,)"),
        (CIFAR, "test_labels", np.zeros(4), "float64 (4,), not integers"),
        (FASHION, "train_images", np.zeros((15, 28, 28, 1), np.uint8), "28, 1), not uint8 (n, 28, 28)"),
        (FASHION, "test_images", np.zeros((4, 28, 28), np.float32), "float32 (4, 28, 28), not uint8"),
        *((one, "train_labels", np.zeros(14, np.int32), "(14,), not integers (15,)") for one in IMAGE_SETS),
        *((one, "test_labels", np.array([0, 1, bad, 2]), f"holds [{bad}], not only 0 to 9")
          for bad in (10, -1) for one in IMAGE_SETS),
        *((one, "test_labels", np.array([{}] * 4, dtype=object), "allow_pickle") for one in IMAGE_SETS),
    ],
)  # fmt: skip
def test_an_unfit_array_is_named(tmp_path, one, name, value, complaint):
    path = tmp_path / "c.npz"
    np.savez(path, **(one.arrays() | {name: value}))
    message = refusal(one.load, complaint, str(path), file=str(path))
    assert name in message or "pickle" in message
