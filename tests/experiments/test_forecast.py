"""A forecast's text and JSON follow from its numbers; a probe trains a little of the audit's own chunk."""

import json
import math

import numpy as np
import pytest

from audit.calibration import laws
from audit.calibration.calibration import Calibration, KnownMechanism
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build
from experiments import forecast
from experiments.forecast import Forecast, Probe

SETTING = setting_of("fcnn", adversary="gc_r", batch_size=10, steps=6, periodicity=3)

KNOWN = KnownMechanism(laws.GAUSSIAN, 1.0, 5000, audits=100, delta=1e-5, confidence=0.95, seed=0)
ROW = Calibration("assumption_free", KNOWN, 0.0, None, 3.0, 2.5, 3.5, 4.0)
EXPECTED = Forecast([ROW], 24.0, 0.9, 1200, Probe(2e-6, 640, 7.4), "fcnn", 250)


def test_the_text_says_bounds_runs_and_time():
    lines = forecast.as_text(EXPECTED).splitlines()
    assert lines[0] == "if epsilon is 4.000 at delta 1e-05 (the accountant's is 24.000),"
    assert lines[5].split() == ["assumption_free", "3.000", "2.500", "3.500", "75%"]
    assert lines[-3:] == [
        "if_gaussian, on average 90% of the truth: about 1,200 runs, 0:00:08",
        "5000 runs of 250 steps: 0:00:10",
        "a step takes 2e-06 s (fcnn, chunks of 640), compilation 7 s",
    ]


def test_runs_out_of_reach_have_no_time_and_the_text_keeps_80_columns():
    bounds = [ROW._replace(setting=KNOWN._replace(runs=10**8, audits=10**6, confidence=0.999999))]
    slow = {"probe": Probe(1e3, 10**6, 1e4), "model": "mobilenet_head", "bounds": bounds}
    large = EXPECTED._replace(runs_needed=None, upper_bound=math.inf, **slow)
    text = forecast.as_text(large)
    assert max(map(len, text.splitlines())) <= 80
    assert "over 1,000,000 runs" in text
    result = json.loads(forecast.as_json(large))
    assert result["upper_bound"] is result["runs_needed"] is result["seconds_needed"] is None


def test_json_has_every_number():
    result = json.loads(forecast.as_json(EXPECTED))
    assert (result["epsilon"], result["upper_bound"], result["tightness"]) == (4.0, 24.0, 0.9)
    assert result["bounds"] == [{"method": "assumption_free", "mean": 3.0, "low": 2.5, "high": 3.5}]
    assert result["probe"] == {"model_step": 2e-6, "chunk": 640, "compilation": 7.4}
    assert (result["runs"], result["runs_needed"]) == (5000, 1200)
    assert (result["seconds"], result["seconds_needed"]) == pytest.approx((9.9, 8.0))


@pytest.mark.slow
def test_a_probe_trains_the_audits_chunk_for_no_more_steps_than_the_audit(monkeypatch):
    steps = []
    build_game = build.build

    def build_and_note(setting, data):
        steps.append(setting.schedule.steps)
        return build_game(setting, data)

    monkeypatch.setattr(build, "build", build_and_note)
    monkeypatch.setattr(forecast, "_SECONDS", 0.01)
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
    probe = forecast.probe(SETTING, data, 12)
    assert probe.chunk == 12
    assert probe.model_step > 0
    assert probe.compilation > 0
    assert len(steps) == 2
    assert steps[0] == 1
    assert 1 <= steps[1] <= 6
