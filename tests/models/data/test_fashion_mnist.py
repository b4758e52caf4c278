"""Fashion-MNIST is the same to the bit from the package, the published files, TFDS and the cache."""

import gzip
import hashlib
import importlib.resources
import importlib.resources.abc
import io
import lzma
import os
import struct
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from audit.errors import InputError
from models.data import fashion_mnist, formats, sources

PUBLISHED = {  # name, gzip's time stamp and MD5 of the published files
    "train-images-idx3-ubyte": (1504176606, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (1504176606, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (1504176627, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (1504176627, "bb300cfdad3c16e7a12a480ee83cd310"),
}
FOLDER = "usr/share/datasets/fashion-mnist"
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"


def _arrays(train=15, test=4):
    rng = np.random.default_rng(0)
    return {
        f"{split}_{kind}": (
            rng.integers(0, 256, (size, 28, 28), np.uint8)
            if kind == "images"
            else rng.integers(0, 10, size, np.int32)
        )
        for split, size in {"train": train, "test": test}.items()
        for kind in ("images", "labels")
    }


def _idx(array):
    """By the published words: a magic number, the sizes of the axes, big-endian, and the bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + bytes(
        array.ravel().tolist()
    )


def _published(arrays):
    return {
        f"{name}.gz": gzip.compress(_idx(arrays[key])) for name, key in zip(PUBLISHED, arrays, strict=True)
    }


def _tar(members):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def _ar(members):
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def _deb(files, data="data.tar.xz", pack=lzma.compress):
    installed = _tar({f"./{FOLDER}/{name}": content for name, content in files.items()})
    return _ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", data: pack(installed)})


def _client(archive):
    def run(command, *, cwd, **_):
        with open(os.path.join(cwd, "archive.deb"), "wb") as handle:
            handle.write(archive)
        return subprocess.CompletedProcess(command, 0, b"", b"")

    return run


def _refuse(*_, **__):
    raise AssertionError("no client may run here")


def _fake(monkeypatch, arrays, archive=b""):
    """The recipe, as if `arrays` had been published in `archive`."""
    package = fashion_mnist.DEBIAN._replace(sha256=hashlib.sha256(archive).hexdigest())
    recipe = fashion_mnist.FASHION_MNIST._replace(checksum=sources.checksum_of(arrays), packages=(package,))
    monkeypatch.setattr(fashion_mnist, "FASHION_MNIST", recipe)
    monkeypatch.setattr(subprocess, "run", _client(archive) if archive else _refuse)


@pytest.fixture(autouse=True)
def _away_from_home(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    if "slow" not in request.keywords:
        monkeypatch.setattr(subprocess, "run", _refuse)


@pytest.fixture
def folder(tmp_path):
    """The four published files of made-up images."""
    path = tmp_path / "published"
    path.mkdir()
    for name, content in _published(_arrays()).items():
        (path / name).write_bytes(content)
    return path


def _require_equal(data, arrays):
    for name, array in arrays.items():
        got = getattr(data, name)
        assert got.dtype == array.dtype and got.flags.c_contiguous and got.flags.writeable
        np.testing.assert_array_equal(got, array)


def _refusal(path):
    """The one line in which a file or folder is refused."""
    with pytest.raises(InputError) as raised:
        fashion_mnist.load_fashion_mnist(file=str(path))
    message = str(raised.value)
    assert str(path) in message and "\n" not in message and len(message) < 500
    return message


# The sources.


def test_the_package_gives_its_pixels_and_is_then_cached(tmp_path, monkeypatch, capfd):
    arrays = _arrays()
    _fake(monkeypatch, arrays, _deb(_published(arrays)))
    fetched = fashion_mnist.load_fashion_mnist()
    monkeypatch.setattr(subprocess, "run", _refuse)
    cached = fashion_mnist.load_fashion_mnist()
    for data in (fetched, cached):
        _require_equal(data, arrays)
        assert data.source == "apt dataset-fashion-mnist=0.0~git20200523.55506a9-1"
        assert data.checksum == sources.checksum_of(arrays)
    kept = tmp_path / "xdg" / "hidden-state-audit" / "data"
    assert os.listdir(kept) == ["fashion_mnist.npz"]
    named = fashion_mnist.load_fashion_mnist(file=str(kept / "fashion_mnist.npz"))
    assert named.source == f"file {kept / 'fashion_mnist.npz'}"
    assert capfd.readouterr() == ("", "")


def test_a_folder_an_npz_and_a_deb_give_the_same_bits(tmp_path, monkeypatch, folder):
    arrays = _arrays()
    _fake(monkeypatch, arrays)
    np.savez(tmp_path / "f.npz", **dict(reversed(arrays.items())))
    (tmp_path / "f.deb").write_bytes(_deb(_published(arrays)))
    (tmp_path / "g.deb").write_bytes(_deb(_published(arrays), "data.tar.gz", gzip.compress))
    (tmp_path / "h.deb").write_bytes(_deb(_published(arrays), "data.tar", bytes))
    for path in (folder, *(tmp_path / name for name in ("f.npz", "f.deb", "g.deb", "h.deb"))):
        data = fashion_mnist.load_fashion_mnist(file=str(path))
        _require_equal(data, arrays)
        assert data.source == f"file {path}"


def test_other_rows_are_said_to_differ(monkeypatch, folder):
    arrays = _arrays()
    _fake(monkeypatch, arrays | {"test_labels": arrays["test_labels"][::-1]})
    data = fashion_mnist.load_fashion_mnist(file=str(folder))
    assert data.source.endswith("(differs from the published fashion_mnist)")
    assert data.checksum == sources.checksum_of(arrays)


def _png(pixels):
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _prepare_tfds(folder, arrays, monkeypatch):
    """TFDS's own features and keys, shuffled as it does; to encode an array it would ask for TensorFlow."""
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(28, 28, 1)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }

    class FashionMnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("3.0.1")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in ("train", "test")}

        def _generate_examples(self, split):
            pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
            for index, (image, label) in enumerate(pairs):
                yield index, {"image": _png(image), "label": label}

    builder = FashionMnist(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    return tfds.data_source("fashion_mnist", split="train", data_dir=folder, download=False)


def test_tfds_rows_come_back_in_the_published_order(tmp_path, monkeypatch, capfd):
    arrays = _arrays(train=150, test=30)
    _fake(monkeypatch, arrays)
    rows = _prepare_tfds(tmp_path / "tfds", arrays, monkeypatch)
    assert [row["label"] for row in rows] != arrays["train_labels"].tolist()  # it did shuffle
    capfd.readouterr()
    named = fashion_mnist.load_fashion_mnist(tfds_dir=str(tmp_path / "tfds"))
    found = fashion_mnist.load_fashion_mnist()
    for data in (named, found):
        _require_equal(data, arrays)
        assert data.source == f"tfds folder {tmp_path / 'tfds'}"
    assert capfd.readouterr() == ("", "")
    assert "tensorflow" not in sys.modules


# What is refused.


def _short(value):
    """A test's name for a parameter: a file's bytes differ from run to run by gzip's time stamp."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("train_images", np.zeros((15, 28, 28, 1), np.uint8), "(15, 28, 28, 1), not uint8 (n, 28, 28)"),
        ("test_images", np.zeros((4, 28, 28), np.float32), "float32 (4, 28, 28), not uint8"),
        ("train_labels", np.zeros(14, np.int32), "(14,), not integers (15,)"),
        ("test_labels", np.array([0, 1, 10, 2]), "holds [10], not only 0 to 9"),
        ("test_labels", np.array([0, 1, -1, 2]), "holds [-1], not only 0 to 9"),
        ("test_labels", np.array([{}] * 4, dtype=object), "allow_pickle=False"),
    ],
)
def test_an_unfit_array_is_named(tmp_path, name, value, complaint):
    np.savez(tmp_path / "f.npz", **(_arrays() | {name: value}))
    message = _refusal(tmp_path / "f.npz")
    assert complaint in message and (name in message or "pickle" in message)


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
        (
            TRAIN_IMAGES,
            gzip.compress(_idx(_arrays()["train_images"])[:-1]),
            "holds 11759 values, not the 11760",
        ),
        (TRAIN_IMAGES, gzip.compress(_idx(_arrays()["train_images"]) + b"\0"), "holds 11761 values, not the"),
        (
            TRAIN_IMAGES,
            gzip.compress(b"\0\0\x08\x03" + 12 * b"\xff"),
            "not the 79228162458924105385300197375 of",
        ),
        (
            TRAIN_IMAGES,
            gzip.compress(_idx(np.zeros((15, 784), np.uint8))),
            "(15, 784), not uint8 (n, 28, 28)",
        ),
        (TEST_LABELS, gzip.compress(_idx(np.zeros(3, np.uint8))), "uint8 (3,), not integers (4,)"),
        (TEST_LABELS, gzip.compress(_idx(np.full(4, 10, np.uint8))), "holds [10], not only 0 to 9"),
    ],
    ids=_short,
)
def test_a_malformed_file_is_named(folder, name, content, complaint):
    (folder / name).write_bytes(content)
    message = _refusal(folder)
    assert complaint in message and (name in message or "labels" in message or "images" in message)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked_whole(monkeypatch, folder):
    monkeypatch.setattr(formats, "LARGEST_MEMBER", 20_000)
    fashion_mnist.load_fashion_mnist(file=str(folder))
    (folder / TRAIN_IMAGES).write_bytes(gzip.compress(bytes(20_001)))
    assert f"{TRAIN_IMAGES}: it unpacks to more than 20000 bytes" in _refusal(folder)


def test_a_member_of_a_package_that_is_too_large_is_refused(tmp_path, monkeypatch):
    files = _published(_arrays())
    (tmp_path / "f.deb").write_bytes(_deb(files))
    largest = max(map(len, files.values()))
    monkeypatch.setattr(formats, "LARGEST_MEMBER", largest - 1)
    assert f"has {largest} bytes, more than {largest - 1}" in _refusal(tmp_path / "f.deb")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "does not begin with !<arch>"),
        (b"PK\x03\x04 a zip", "does not begin with !<arch>"),
        (_ar({"debian-binary": b"2.0\n"}), "holds no data.tar"),
        (_ar({"data.tar.xz": lzma.compress(_tar({"./etc/motd": b"hi"}))}), "holds no ./usr/share/datasets"),
        (_ar({"data.tar.zst": b"\x28\xb5\x2f\xfd"}), "unpack it with dpkg-deb -x and name the folder"),
        (_deb(_published(_arrays()))[:-1000], "torn at byte 136"),
        (_deb(_published(_arrays()))[:100], "torn at byte 72"),
        (_deb(_published(_arrays())).replace(b"`\n", b"''"), "torn at byte 8"),
        (_deb(_published(_arrays()), pack=lambda tar: lzma.compress(tar)[:3000]), "cannot be used: "),
    ],
    ids=_short,
)
def test_another_or_a_torn_package_is_refused(tmp_path, content, complaint):
    (tmp_path / "f.deb").write_bytes(content)
    assert complaint in _refusal(tmp_path / "f.deb")


def test_a_missing_file_and_another_kind_of_file_are_named(tmp_path, folder):
    (folder / TEST_LABELS).unlink()
    assert f"the folder holds no {TEST_LABELS}" in _refusal(folder)
    lonely = folder / TRAIN_IMAGES
    assert "ends in .gz, not .npz or .deb" in _refusal(lonely)


def test_a_client_without_lists_of_packages_says_how_to_get_them(monkeypatch):
    stderr = b"E: Unable to locate package dataset-fashion-mnist\nW: Download is performed unsandboxed\n"
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 100, b"", stderr)
    )
    with pytest.raises(InputError) as raised:
        fashion_mnist.load_fashion_mnist()
    message = str(raised.value)
    assert "E: Unable to locate package dataset-fashion-mnist; apt-get update" in message
    assert "`data_file`" in message and "\n" not in message


# The package itself.


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
    fetched = _or_skip(lambda: fashion_mnist.load_fashion_mnist(cache_dir=str(tmp_path)))
    cached = fashion_mnist.load_fashion_mnist(cache_dir=str(tmp_path))
    assert fetched.source == cached.source == "apt dataset-fashion-mnist=0.0~git20200523.55506a9-1"
    assert fetched.checksum == cached.checksum == fashion_mnist.FASHION_MNIST.checksum
    assert fetched.train_images.shape == (60000, 28, 28)
    assert fetched.test_images.shape == (10000, 28, 28)
    assert np.bincount(fetched.train_labels).tolist() == 10 * [6000]
    assert np.bincount(fetched.test_labels).tolist() == 10 * [1000]
    assert fetched.train_labels[0] == fetched.test_labels[0] == 9  # ankle boots
    pixels = fetched.train_images / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(fashion_mnist.FASHION_MNIST_MEAN, abs=1e-8)
    assert pixels.std(dtype=np.float64) == pytest.approx(fashion_mnist.FASHION_MNIST_STD, abs=1e-8)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_packages_files_are_the_published_ones_but_for_their_gzip_headers(monkeypatch):
    """Debian takes the name and the time out of the header; with them the published MD5s come back."""
    read = {}
    monkeypatch.setattr(fashion_mnist, "_array", lambda name, content: read.setdefault(name, content))
    _or_skip(lambda: sources._read_package(fashion_mnist.DEBIAN))
    for name, (seconds, md5) in PUBLISHED.items():
        content = read[f"{name}.gz"]
        header = content[:3] + b"\x08" + struct.pack("<I", seconds) + content[8:10] + name.encode() + b"\0"
        assert hashlib.md5(header + content[10:]).hexdigest() == md5
