"""A home without data sets, and no client but in a slow test or one that names `real_client`."""

import subprocess

import pytest

from tests.models.data import made_up


@pytest.fixture(autouse=True)
def away_from_home(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    if "slow" not in request.keywords and "real_client" not in request.fixturenames:
        monkeypatch.setattr(subprocess, "run", made_up.refuse)


@pytest.fixture
def real_client():
    """Marks a test that runs a real client, with no network."""
