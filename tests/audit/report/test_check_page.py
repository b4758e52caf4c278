"""The figures of a check show what is wrong, and nothing of what is rounding alone."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from audit.report import check_page, style


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_movement_that_is_not_finite_comes_first_and_is_red(value):
    _, axes = plt.subplots()
    check_page._draw_movements(axes, {"small": 0.9, "large": 1.5, "broken": value})
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["broken (not finite)", "large", "small"]
    broken, large, small = axes.patches
    assert broken.get_width() == large.get_width() == 1.5
    red = broken.get_facecolor()
    assert large.get_facecolor() == red != small.get_facecolor()
    assert plt.matplotlib.colors.to_hex(red).lower() == style.VERMILION.lower()


def test_movements_that_differ_by_rounding_have_an_axis_of_two_decades():
    _, axes = plt.subplots()
    check_page._draw_movements(axes, {"a": 1.0, "b": 1.000001})
    left, right = axes.get_xlim()
    assert right / left >= 100


def test_batches_of_one_size_are_a_bar_beside_whole_numbers():
    figure, axes = plt.subplots()
    check_page._draw_sizes(axes, {"sizes": [32] * 10, "expected": 32})
    figure.canvas.draw()
    (bar,) = axes.patches
    assert bar.get_x() == 31.5
    assert bar.get_width() == 1
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
