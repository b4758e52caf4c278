"""Made-up data in the formats of published data sets, and package clients that return them."""

import hashlib
import importlib.resources
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audit.errors import InputError
from models.data import sources


def refuse(*_, **__):
    raise AssertionError("no client may run here")


def client(archive=b"an archive", returncode=0, stderr=""):
    """Makes a stand-in for subprocess.run, which leaves an archive in its folder and unpacks nothing."""

    def run(command, *, cwd=None, **_):
        if cwd and returncode == 0:
            Path(cwd, "archive").write_bytes(archive)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    return run


def refusal(load, *words, data=None):
    """Checks that a loader refuses what a user gives, in one line that holds the words."""
    with pytest.raises(InputError) as raised:
        load(data)
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 600
    for word in words:
        assert word in message


def images(shape, train=15, test=4):
    """Draws so many training and test images, and their labels."""
    rng = np.random.default_rng(0)
    drawn = {}
    for split, size in (("train", train), ("test", test)):
        drawn[f"{split}_images"] = rng.integers(0, 256, (size, *shape), np.uint8)
        drawn[f"{split}_labels"] = rng.integers(0, 10, size, np.int32)
    return drawn


def publish(recipe, arrays, read, archive=b"an archive"):
    """Returns a recipe as if `arrays` had been published in an archive that `read` reads."""
    digest = hashlib.sha256(archive).hexdigest()
    package = sources.Package("npm", "made-up@1", digest, read)
    return recipe._replace(checksum=sources.checksum_of(arrays), package=package)


def prepare_tfds(monkeypatch, folder, recipe, version, make_features, splits):
    """Prepares an array_record folder of rows, with TFDS's own features and keys."""
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    import tensorflow_datasets as tfds

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)

        def _info(self):
            features = tfds.features.FeaturesDict(make_features(tfds.features))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {split: enumerate(rows) for split, rows in splits.items()}

        def _generate_examples(self):
            """The base class asks for it."""

    Builder.name = recipe.name
    builder = Builder(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
