"""A forecast's text follows from its numbers; a probe trains a little of the audit's own chunk."""

import numpy as np
import pytest

from audit.calibration import laws
from audit.calibration.calibration import Calibration, KnownMechanism
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from experiments import forecast

KNOWN = KnownMechanism(laws.GAUSSIAN, 1.0, 5000, audits=100, delta=1e-5, confidence=0.95, seed=0)
ROW = Calibration("assumption_free", KNOWN, 0.0, 3.0, 2.5, 3.5, 4.0)


def test_the_text_says_the_truth_and_the_bounds():
    lines = forecast.show_bounds([ROW]).splitlines()
    assert lines[0] == "if epsilon is 4.000 at delta 1e-05, 5000 runs show"
    assert lines[5].split() == ["assumption_free", "3.000", "2.500", "3.500", "75%"]
    many = ROW._replace(setting=KNOWN._replace(canaries=4))
    assert "5000 runs of 4 canaries show" in forecast.show_bounds([many])


def test_the_time_counts_every_step_of_every_run_and_compilation():
    assert forecast.Probe(2e-6, 640, 7.4).show_time(5000, 250) == "0:00:10"
    assert forecast.Probe(3e-3, 2, 1.0).show_time(5000, 250) == "1:02:31"


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_probe_trains_the_audits_chunk(monkeypatch, seconds):
    monkeypatch.setattr(forecast, "_MAX_SECONDS", seconds)
    setting = setting_of("fcnn", adversary="gc_r", batch_size=10, steps=30, periodicity=3)
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
    probe = forecast.probe(setting, data, 12)
    assert probe.chunk == 12
    assert probe.model_step > 0
    assert probe.compilation > 0
