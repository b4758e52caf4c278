"""The figure of a check's movements shows what is not finite as what is wrong."""

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
