"""One-run calibration: truths, reproducibility, and that every bound covers under every law."""

import pytest

from audit.errors import InputError
from audit.statistics.one_run_bounds import ONE_RUN, ONE_RUN_GAUSSIAN, ONE_RUN_GUESSES
from audit.statistics.one_run_calibration import LAWS, OneRunSetting, calibrate
from audit.statistics.one_shot import ONE_SHOT_JEFFREYS

SETTING = OneRunSetting(LAWS["independent"], 1.0, 100, 4, 1e-3, 0.95, 0)


@pytest.mark.parametrize("name", LAWS)
def test_each_law_has_its_methods_and_truth(name):
    heard = []
    rows = calibrate(SETTING._replace(law=LAWS[name], audits=2), done=heard.append)
    methods = {"leaking": [ONE_RUN_GUESSES], "cosines": [ONE_RUN, ONE_SHOT_JEFFREYS]}
    assert [row.method for row in rows] == methods.get(name, [ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN])
    assert rows[0].true_epsilon == pytest.approx(1.0 if name == "leaking" else 3.139, abs=1e-3)
    assert heard == [1, 1]


def test_processes_change_nothing_and_jeffreys_value_exceeds_where_nothing_leaks():
    assert calibrate(SETTING, processes=2) == calibrate(SETTING)
    assert calibrate(SETTING._replace(seed=1)) != calibrate(SETTING)
    rows = calibrate(SETTING._replace(law=LAWS["cosines"], mu=0.0, audits=60))
    assert rows[0].exceeding <= 0.05 and rows[1].exceeding > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
def test_bounds_cover_however_canaries_are_tied(name, mu, assert_covers):
    def draw(first, audits):
        rows = calibrate(SETTING._replace(law=LAWS[name], mu=mu, audits=audits, seed=first))
        return {row.method: audits * row.exceeding for row in rows if row.method != ONE_SHOT_JEFFREYS}

    assert_covers(draw, 300, error=1e-4)


@pytest.mark.parametrize("change", [{"mu": -1.0}, {"canaries": 39}, {"audits": 0}, {"delta": 0.0}])
def test_bad_settings_are_refused(change):
    with pytest.raises(InputError):
        calibrate(SETTING._replace(**change))
