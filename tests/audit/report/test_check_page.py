"""Tests that the page of a check has a figure for each failed check, and for no other."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from audit.report import check_page, style


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_movement_that_is_not_finite_comes_first_and_is_red(value):
    _, axes = plt.subplots()
    check_page.draw_bars(axes, {"small": 0.9, "large": 1.5, "broken": value}, limit=1.02)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["broken inf", "large 1.5", "small 0.9"]
    broken, large, small = axes.patches
    assert broken.get_width() == large.get_width() == 1.5
    red = broken.get_facecolor()
    assert large.get_facecolor() == red != small.get_facecolor()
    assert plt.matplotlib.colors.to_hex(red).lower() == style.VERMILION.lower()


@pytest.mark.parametrize("result", ["passed", "failed"])
def test_only_a_violated_row_has_a_picture(result):
    row = {"name": "sensitivity", "result": result, "seen": "something"}
    report = {"subject": "step", "checks": [row], "findings": [], "passed": result == "passed"}
    report |= {"verdict": "", "level": 0.001, "p_values": {}, "provenance": {}}
    report["figures"] = {"movements": {"a": 2.0}}
    text = check_page.check_page(report).decode()
    assert ("<img" in text) == (result == "failed")
    assert ("✗ failed" if result == "failed" else "✓ passed") in text
