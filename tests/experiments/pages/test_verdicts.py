"""A verdict claims what is proven, no more, and says what it assumes."""

import json
from pathlib import Path

import numpy as np
import pytest

from audit.statistics.accounting import Composition
from audit.statistics.conclusion import Conclusion, conclude
from audit.statistics.estimate import GAUSSIAN_CURVE, NOTHING, Bound, Estimate
from experiments.pages import verdicts

GOLDEN = json.loads((Path(__file__).parents[2] / "system" / "golden" / "verdicts.json").read_text())


def conclusion(gaussian, free, upper):
    """Bounds of given epsilons; the in-sample one is absurd and must not matter."""
    rest = (1e-5, 0.95, 0.0, 1, 1, 10, 10)
    absurd = Estimate("in_sample", 99.0, 9.0, *rest, caveat="made up")
    bounds = (
        Bound("certified", gaussian, 1.0, *rest, assumes=GAUSSIAN_CURVE),
        Bound("assumption_free", free, None, *rest, assumes=NOTHING),
    )
    return Conclusion(np.zeros(10), np.ones(10), (absurd,), bounds, upper, None)


@pytest.mark.parametrize(
    ("gaussian", "free", "upper", "kind", "said"),
    [
        (2.7348, 1.2599, 3.0001, verdicts.LEAKS, ["2.734 at", "if the trade", "at least 1.259", "3.001."]),
        (2.0, 0.0, 3.0, verdicts.LEAKS, ["without any assumption on the curve, these runs prove no leakage"]),
        (1.0, 1.5, 3.0, verdicts.LEAKS, ["whatever the trade-off curve", "epsilon = 1.5 "]),
        (0.0, 0.0, 3.0, verdicts.NOTHING, ["prove no leakage", "no proof of privacy", "most 3."]),
        (0.0004, 0.0, None, verdicts.NOTHING, ["No upper bound was given"]),
        (2.0, 1.0, np.inf, verdicts.LEAKS, ["accounting guarantees nothing"]),
        (4.0, 3.5, 3.0, verdicts.VIOLATED, ["3.5 at", "more than the 3 that", "whatever", "5% of audits"]),
        (4.0, 2.0, 3.0, verdicts.VIOLATED, ["Either the curve is not Gaussian", "at least 2,"]),
    ],
)
def test_every_case_is_said(gaussian, free, upper, kind, said):
    found = verdicts.verdict(conclusion(gaussian, free, upper))
    assert found.kind == kind
    for words in said:
        assert words in found.sentence
    assert "99" not in found.sentence


def test_a_bound_that_assumes_a_curve_never_stands_without_it():
    found = verdicts.verdict(conclusion(2.0, 0.0, 3.0))
    assert "if Gaussian" in found.word and "if its trade-off curve is Gaussian" in found.headline
    unsure, sure = (verdicts.verdict(conclusion(4.0, free, 3.0)) for free in (2.0, 3.5))
    assert "or" in unsure.headline and "or" not in sure.headline.split()


@pytest.mark.parametrize("value", [0.0, 0.0009, 1 / 3, 22.7349999, 1234.56789])
def test_rounding_claims_less(value):
    assert float(verdicts.at_least(value)) <= value <= float(verdicts.at_most(value))
    assert float(verdicts.at_most(value)) - float(verdicts.at_least(value)) <= 0.001 + 1e-9


def test_a_mechanism_that_breaks_its_guarantee_is_caught_and_a_sound_one_is_not():
    rng = np.random.default_rng(0)
    worlds = rng.normal(2.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000)  # mu = 2
    sound = verdicts.verdict(conclude(worlds, Composition(1.0, 4), 1e-5, 0.95))
    broken = verdicts.verdict(conclude(worlds, Composition(4.0, 4), 1e-5, 0.95))  # accounted as mu = 0.5
    assert sound.kind == verdicts.LEAKS and broken.kind == verdicts.VIOLATED


@pytest.mark.parametrize("name", GOLDEN)
def test_the_verdicts_are_worded_as_before(name):
    kept = GOLDEN[name]
    rng = np.random.default_rng(kept["seed"])
    worlds = rng.normal(kept["mu"], 1, 2500), rng.normal(0, 1, 2500)
    composition = kept["composition"] and Composition(*kept["composition"])
    found = verdicts.verdict(conclude(worlds, composition, 1e-5, 0.95))
    words = {field: kept[field] for field in ("word", "headline", "sentence")}
    assert words == {field: getattr(found, field) for field in words}
