"""Provides a home folder without data sets. Only slow tests may use package clients."""

import subprocess

import pytest

from tests.models.data import made_up


@pytest.fixture(autouse=True)
def away_from_home(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if "slow" not in request.keywords:
        monkeypatch.setattr(subprocess, "run", made_up.refuse)
