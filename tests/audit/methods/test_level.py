"""Levels as people read them: no digit is lost, and no confidence becomes certainty."""

import pytest

from audit.written import round_confidence, show_level


@pytest.mark.parametrize("value", [0.95, 1e-5, 0.9999999, 1 - 2**-53, 1.234567e-7, 5e-324])
def test_a_shown_level_reads_back_as_the_same_number(value):
    assert float(show_level(value)) == value


def test_a_computed_confidence_is_rounded_down_and_never_to_1():
    assert round_confidence(1 - 0.05 / 2) == 0.975
    assert round_confidence(1 - 0.05 / 3) == 0.983333
    for confidence in (1 - 1e-7 / 3, 1 - 0.3 / 7, 0.5, 1 - 1e-15):
        rounded = round_confidence(confidence)
        assert confidence - 1e-4 * (1 - confidence) <= rounded <= confidence + 1e-16 < 1
