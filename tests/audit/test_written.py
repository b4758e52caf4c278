"""Nouns agree with their numbers, and levels keep all their digits."""

import pytest

from audit.written import Level, counted, show_level, show_percent, show_risk


def test_a_noun_and_its_verb_agree_with_the_number():
    assert counted(1, "layer") == "1 layer" and counted(0, "layer") == "0 layers"
    assert counted(1, "batch holds", "batches hold") == "1 batch holds"
    assert counted(2000, "batch holds", "batches hold") == "2,000 batches hold"


@pytest.mark.parametrize("value", [0.95, 1e-5, 0.9999999, 1 - 2**-53, 1.234567e-7, 5e-324])
def test_a_shown_level_reads_back_as_the_same_number(value):
    assert float(show_level(value)) == value


def test_levels_are_short_where_they_can_be():
    assert str(Level()) == "delta 1e-05, confidence 0.95"
    assert str(Level(1e-6, 0.9999999)) == "delta 1e-06, confidence 0.9999999"
    assert [show_percent(value) for value in (0.95, 0.9, 0.07)] == ["95%", "90%", "7%"]
    assert show_percent(0.9999999999999) == "99.99999999999%"
    assert [show_risk(value) for value in (0.95, 0.9999999)] == ["5%", "0.00001%"]
