"""Levels as people read them: no digit is lost, and no confidence becomes certainty."""

import pytest

from audit.written import Level, show_level, show_percent, show_risk


@pytest.mark.parametrize("value", [0.95, 1e-5, 0.9999999, 1 - 2**-53, 1.234567e-7, 5e-324])
def test_a_shown_level_reads_back_as_the_same_number(value):
    assert float(show_level(value)) == value


def test_levels_are_short_where_they_can_be():
    assert str(Level()) == "delta 1e-05, confidence 0.95"
    assert str(Level(1e-6, 0.9999999)) == "delta 1e-06, confidence 0.9999999"
    assert [show_percent(value) for value in (0.95, 0.9, 0.07)] == ["95%", "90%", "7%"]
    assert show_percent(0.9999999999999) == "99.99999999999%"
    assert [show_risk(value) for value in (0.95, 0.9999999)] == ["5%", "0.00001%"]
