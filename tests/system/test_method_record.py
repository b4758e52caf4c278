"""Tests that a method with a record appears in all reports, counts and calibrations."""

import json

import numpy as np
import pytest

from audit.calibration import calibration, laws
from audit.conclusions import results
from audit.conclusions.concluded import conclude
from audit.conclusions.conclusion import method_of
from audit.conclusions.finish import finish
from audit.evidence import canaries
from audit.evidence.canaries import make_sets
from audit.methods import estimate, lifted
from audit.methods.estimate import Bound, Estimate, ScoreMethod
from audit.methods.lifted import CanaryMethod
from audit.methods.method import NO_BOUND, Assumption
from audit.report import audit_page, audit_panels, bounds_table, subjects
from audit.storage.store import Store
from audit.written import Level

LEVELS = (1e-5, 0.95)
COUNTS = {"threshold": 0.25, "false_positives": 3, "false_negatives": 4, "n_in": 30, "n_out": 30}
LUCK = Assumption("luck", "fortune", "a lucky day", "nobody has seen it fail")
GUESS = Assumption("a guess", NO_BOUND, "no bound: a guess", "guessed, not counted")


def planted(scores_in, scores_out, delta, confidence):
    level = {"delta": delta, "confidence": confidence}
    return Bound(method="planted", epsilon=1.234, **level, **COUNTS, assumes=LUCK)


TOLD = {"legend": "planted: luck"}
BOUND = ScoreMethod(name="planted", compute=planted, assumes=LUCK, **TOLD)


def guessed(scores_in, scores_out, delta, confidence):
    level = {"delta": delta, "confidence": confidence}
    return Estimate(method="guessed", epsilon=99.0, **level, **COUNTS, caveat=GUESS.text)


SHOWN = {"legend": "guessed (no bound)"}
ESTIMATE = ScoreMethod(name="guessed", compute=guessed, assumes=GUESS, **SHOWN)


def of_many(family, counted, error):
    return 1.234


NAMES = {
    "name": "planted_lifted",
    "legend": "planted for many",
}
MANY = CanaryMethod(prove=of_many, assumes=LUCK, **NAMES)


@pytest.fixture(params=[BOUND, ESTIMATE, MANY], ids=lambda record: record.name, scope="module")
def record(request):
    """A planted record; the other design's beside that of many canaries, which takes its place."""
    with pytest.MonkeyPatch.context() as patch:
        for one in (BOUND, MANY) if request.param is MANY else (request.param,):
            patch.setitem((lifted if one is MANY else estimate).METHODS, one.name, one)
        yield request.param


@pytest.fixture(scope="module")
def concluded(record):
    rng = np.random.default_rng(0)
    if record is MANY:
        return conclude(
            canaries.make_sets(rng.normal(2, 1, (30, 4)), rng.normal(0, 1, (30, 4))),
            None,
            Level(*LEVELS),
        )
    return conclude(make_sets(rng.normal(2, 1, 60), rng.normal(0, 1, 60)), None, Level(*LEVELS))


def test_it_is_in_the_printed_table(record, concluded):
    lines = bounds_table.bounds_table(concluded).splitlines()
    (line,) = [line for line in lines if line.startswith(record.name + " ")]
    assert line.endswith(record.assumes.word)
    assert f"{record.assumes.word + ':':<12}{record.assumes.note}" in lines


def test_it_is_in_json_and_audit_json(record, concluded, tmp_path):
    store = Store(tmp_path, {"a": 1})
    store.write_text("audit.json", results.result_json(concluded))
    kept = json.loads((store.path / "audit.json").read_text())
    for found in (json.loads(results.result_json(concluded)), kept):
        (row,) = [row for row in found["bounds"] if row["method"] == record.name]
        assert row["assumes"] == record.assumes.text


def test_it_is_in_the_figure(record, concluded):
    axis = audit_panels.audit_figure(concluded).axes[2]
    labels = [label.get_text() for label in (*axis.get_xticklabels(), *axis.get_yticklabels())]
    word = f" {NO_BOUND}" if record is ESTIMATE else ""
    assert record.name + word in [" ".join(label.split()[:-1]) for label in labels]


def test_it_is_on_the_page(record, concluded):
    text = audit_page.make_page(subjects.describe_arrays("scores", concluded)).decode()
    assert f">{record.name}<" in text and record.assumes.sentence in text


def test_no_verdict_rests_on_it(record, concluded):
    with_it = concluded.verdict
    without = concluded._replace(
        bounds=tuple(one for one in concluded.bounds if one.method != record.name),
        estimates=tuple(one for one in concluded.estimates if one.method != record.name),
    )
    assert (
        finish(without).verdict == with_it and method_of(concluded.finding(record.name)) is record
    )


def test_it_is_calibrated(record):
    if record is MANY:
        setting = calibration.KnownMechanism(
            laws.INDEPENDENT_COINS, 1.0, 20, 2, *LEVELS, 0, canaries=4
        )
    else:
        setting = calibration.KnownMechanism(laws.GAUSSIAN, 1.0, 40, 2, *LEVELS, 0)
    rows = calibration.calibrate(setting)
    (row,) = [row for row in rows if row.method == record.name]
    assert row.mean_epsilon == (99.0 if record is ESTIMATE else 1.234)
