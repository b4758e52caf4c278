"""Tests that a Gaussian curve is a straight line, and that refuted results look refuted."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from audit.claims.claim import DpSgd, EpsilonDelta
from audit.conclusions.concluded import conclude
from audit.conclusions.conclusion import Curve
from audit.conclusions.finish import finish
from audit.evidence import canaries
from audit.evidence.canaries import make_sets
from audit.methods.method import NOTHING
from audit.report import audit_panels, style
from audit.written import at_least
from tests.cases import mostly_slow

RNG = np.random.default_rng(0)
PANELS = ("scores", "trade_off", "bounds")
NORMAL, LAPLACE = RNG.normal(0, 1, (2, 600)), RNG.laplace(0, 1, (2, 600))


def concluded(scores_in, scores_out, composition=None):
    return conclude(make_sets(scores_in, scores_out), composition)


@pytest.fixture(scope="module")
def refuted():
    found = concluded(LAPLACE[0] + 2, LAPLACE[1], DpSgd(4.0, 250))
    assert found.refutes_gaussian
    return found


@pytest.fixture(scope="module")
def passed():
    found = concluded(NORMAL[0] + 2, NORMAL[1], DpSgd(4.0, 250))
    assert not found.refutes_gaussian
    return finish(found._replace(curve=Curve(found.curve.p_value, 0.99)))


@pytest.fixture(scope="module")
def doubtful(passed):
    return finish(passed._replace(curve=Curve(passed.curve.p_value, 0.3)))


@pytest.fixture
def panel():
    figure, axis = plt.subplots()

    def draw(name, conclusion):
        audit_panels.choose_panels(conclusion)[name](axis, conclusion)
        return axis

    yield draw
    plt.close(figure)


def labels(axis):
    return axis.get_legend_handles_labels()[1]


def words(artist):
    artist.figure.canvas.draw()  # ticks get their labels
    return " ".join(text.get_text() for text in artist.findobj(plt.Text))


def deviates(axis, line):
    """A line's points inside the panel as a reader sees them."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    points = np.array(
        [(x, y) for x, y in line.get_xydata() if left <= x <= right and low <= y <= high]
    )
    return axis.transScale.transform(points)


def test_gaussian_curves_are_straight_lines_of_slope_minus_one(panel, passed):
    axis = panel("trade_off", passed)
    lines = [line for line in axis.lines if line.get_label().startswith("Gaussian")]
    assert len(lines) == 2
    for line, mu in zip(
        lines, (passed.finding("if_gaussian").mu, passed.mu_upper_bound), strict=True
    ):
        x, y = deviates(axis, line).T
        assert len(x) > 100
        np.testing.assert_allclose(x + y, -mu, atol=1e-9)


def test_a_claim_of_epsilon_and_delta_has_its_curve(panel):
    found = finish(concluded(NORMAL[0] + 2, NORMAL[1])._replace(claim=EpsilonDelta(2.0, 1e-2)))
    axis = panel("trade_off", found)
    (line,) = (line for line in axis.lines if line.get_label() == "claim")
    alpha, beta = line.get_data()
    steep = 1 - 1e-2 - np.exp(2) * alpha
    flat = np.exp(-2) * (1 - 1e-2 - alpha)
    seen = beta > 0.5 / 600
    np.testing.assert_allclose(beta[seen], np.maximum(steep, flat)[seen], atol=1e-12)
    assert all(rate <= 0.5 / 600 for rate in beta[~seen])


@pytest.mark.parametrize("claim", [DpSgd(4.0, 250), EpsilonDelta(20.0, 1e-5)])
def test_no_claim_is_named_whose_curve_is_not_seen_or_is_drawn_already(panel, claim):
    found = conclude(make_sets(NORMAL[0] + 2, NORMAL[1]), claim)
    assert "claim" not in labels(panel("trade_off", found))


@pytest.mark.parametrize("largest", [1.0, 1e20])
def test_scores_that_differ_by_the_rounding_of_floats_are_drawn(largest):
    """Confidences in float64 saturate so, at 1 and the number before it."""
    below = np.nextafter(largest, 0)
    scores_in = np.where(np.arange(60) < 50, largest, below)
    scores_out = np.where(np.arange(60) < 10, largest, below)
    figure = audit_panels.audit_figure(conclude(make_sets(scores_in, scores_out)))
    bars = [patch for patch in figure.axes[0].patches if patch.get_height()]
    assert sum(bar.get_height() for bar in bars) == 120
    figure.canvas.draw()


def test_a_refuted_curve_is_refuted_in_every_panel(panel, refuted):
    axis = panel("trade_off", refuted)
    assert f"Gaussian curve rejected ({refuted.curve.show_test()})" in words(axis)
    marked = [line for line in axis.lines if "(rejected)" in line.get_label()]
    assert len(marked) == 1 and marked[0].get_color() == style.FADED
    assert not any("(rejected)" in label and "≤" in label for label in labels(axis))


COINS = np.random.default_rng(0).random((60, 24)) < 0.5
MATRIX = np.random.default_rng(1).normal(size=COINS.shape) + 4 * COINS


@pytest.mark.parametrize("many", [False, True])
def test_bars_have_their_values_and_say_what_they_assume(panel, many):
    design = canaries.make_coins(MATRIX, COINS) if many else make_sets(NORMAL[0] + 3, NORMAL[1])
    found = conclude(design, EpsilonDelta(7.0, 1e-5))
    axis = panel("bounds", found)
    light = [bar.get_facecolor()[3] == audit_panels._LIGHT for bar in axis.patches]
    assert light[: len(found.bounds)] == [row.assumes != NOTHING for row in found.ranked()]
    assert "light bars assume: Gaussian" + "; many runs" * many in words(axis)
    assert labels(axis) == ["claim 7.00"]
    values = [label.get_text().split()[-1] for label in axis.get_yticklabels()]
    assert values[: len(found.bounds)] == [at_least(row.epsilon, 2) for row in found.ranked()]


@pytest.mark.slow
def test_what_too_few_runs_cannot_tell_is_marked_but_not_faded(panel, passed, doubtful):
    cases = (
        (passed, ""),
        (doubtful, "(not confirmed)"),
        (doubtful._replace(why_gaussian="a law"), ""),
    )
    for found, mark in cases:
        for name in PANELS:
            axis = panel(name, found)
            said = " ".join(f"{words(axis)} {labels(axis)}".split())
            assert (mark or "(not confirmed)") in said or not mark
            assert "rejected" not in said
            assert all(line.get_color() != style.FADED for line in axis.lines)
            assert all(bar.get_hatch() != "xxx" for bar in axis.patches)
            plt.cla()
    assert "no evidence against Gaussian (p = " in words(panel("trade_off", passed))


EDGES = {
    "few": (NORMAL[0][:20] + 2, NORMAL[1][:20]),
    "one": (np.ones(1), np.zeros(1)),
    "apart": (NORMAL[0] + 30, NORMAL[1]),
    "ties": (np.arange(90) % 3 + 1, np.arange(90) % 3),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", mostly_slow(EDGES))
def test_any_scores_are_drawn_without_a_warning(name):
    found = concluded(*EDGES[name], DpSgd(1e-3, 100))
    assert all(b"</svg>" in panel for panel in audit_panels.audit_panels(found).values())
