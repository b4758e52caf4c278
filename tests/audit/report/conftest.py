"""Fixtures for the tests of reports."""

import pytest

from audit.methods import gaussian_curve


@pytest.fixture
def powerful(monkeypatch):
    """The test of the Gaussian curve has power: what more runs would decide takes most of a second."""
    monkeypatch.setattr(gaussian_curve, "power", lambda *worlds: 1.0)
