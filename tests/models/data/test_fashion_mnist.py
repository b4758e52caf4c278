"""Fashion-MNIST's own forms: the published idx files and Debian's package."""

import gzip
import hashlib
import lzma
import struct
import subprocess

import numpy as np
import pytest

from audit.errors import InputError
from models.data import formats, images, sources
from tests.models.data.made_up import FASHION, ar, client, deb, idx, idx_files, refusal, tarred

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
    """A test's name for a parameter: a file's bytes differ from run to run by gzip's time stamp."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (TRAIN_IMAGES, b"", "begins with nothing, not as an idx file"),
        (TRAIN_IMAGES, b"\0\0\x08\x03 unpacked", "no whole gzip file"),
        (TRAIN_IMAGES, gzip.compress(bytes(5000))[:-9], "no whole gzip file"),
        (TRAIN_IMAGES, gzip.compress(b""), "begins with nothing, not as an idx file"),
        (TRAIN_IMAGES, gzip.compress(b"\x89PNG\r\n"), "begins with 89 50 4e 47, not as an idx file"),
        (TRAIN_IMAGES, gzip.compress(b"\0\0\x0d\x01\0\0\0\0"), "begins with 00 00 0d 01, not as"),
        (TRAIN_IMAGES, gzip.compress(b"\0\0\x08\x03\0\0\0\x0f"), "begins with 00 00 08 03, not as"),
        (TRAIN_IMAGES, gzip.compress(idx(ARRAYS["train_images"])[:-1]), "holds 11759 values, not the 11760"),
        (TRAIN_IMAGES, gzip.compress(idx(ARRAYS["train_images"]) + b"\0"), "holds 11761 values, not the"),
        (
            TRAIN_IMAGES,
            gzip.compress(b"\0\0\x08\x03" + 12 * b"\xff"),
            "not the 79228162458924105385300197375 of",
        ),
        (TRAIN_IMAGES, gzip.compress(idx(np.zeros((15, 784), np.uint8))), "(15, 784), not uint8 (n, 28, 28)"),
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
        (ar({"data.tar.xz": lzma.compress(tarred({"./etc/motd": b"hi"}))}), "holds no ./usr/share/datasets"),
        (ar({"data.tar.zst": b"\x28\xb5\x2f\xfd"}), "unpack it with dpkg-deb -x and name the folder"),
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
    lonely = folder / TRAIN_IMAGES
    assert "ends in .gz, not .npz or .deb" in refused(lonely)


def test_a_client_without_lists_of_packages_says_how_to_get_them(monkeypatch):
    stderr = b"E: Unable to locate package dataset-fashion-mnist\nW: Download is performed unsandboxed\n"
    monkeypatch.setattr(subprocess, "run", client(returncode=100, stderr=stderr))
    words = "E: Unable to locate package dataset-fashion-mnist; apt-get update", "`data_file`"
    refusal(images.load_fashion_mnist, *words)


def _or_skip(fetch):
    """What a fetch gives; a skip where there is no such client, network or list of packages."""
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
    assert fetched.train_images.shape == (60000, 28, 28)
    assert fetched.test_images.shape == (10000, 28, 28)
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
    monkeypatch.setattr(images, "_array", lambda name, content: read.setdefault(name, content))
    _or_skip(lambda: sources._read_package(images.DEBIAN))
    for name, (seconds, md5) in PUBLISHED.items():
        content = read[f"{name}.gz"]
        header = content[:3] + b"\x08" + struct.pack("<I", seconds) + content[8:10] + name.encode() + b"\0"
        assert hashlib.md5(header + content[10:]).hexdigest() == md5
