"""The figures of a check show what is wrong, and nothing of what is rounding alone."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from audit.report import check_page, style


def draw(values):
    _, axes = plt.subplots()
    check_page._draw_bars(axes, check_page._MOVEMENTS, values)
    return axes


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_movement_that_is_not_finite_comes_first_and_is_red(value):
    axes = draw({"small": 0.9, "large": 1.5, "broken": value})
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["broken (not finite)", "large", "small"]
    broken, large, small = axes.patches
    assert broken.get_width() == large.get_width() == 1.5
    red = broken.get_facecolor()
    assert large.get_facecolor() == red != small.get_facecolor()
    assert plt.matplotlib.colors.to_hex(red).lower() == style.VERMILION.lower()


def test_movements_that_differ_by_rounding_have_an_axis_of_two_decades():
    left, right = draw({"a": 1.0, "b": 1.000001}).get_xlim()
    assert right / left >= 100
