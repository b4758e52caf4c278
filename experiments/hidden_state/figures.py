"""Draws the hidden-state paper's sweeps from stored results, without training."""

from experiments.hidden_state import bracket, correlated
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import estimates, points
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, Sweep

_BRACKETS = ("bracket_k", "bracket_steps", "bracket", "bracket_rates")
# Functions from (sweep, points with conclusions, evidence) to a figure and a custom table.
_WITH_OWN_TABLE = {
    "proven": bracket.draw_proven,
    correlated.NAME: bracket.draw_correlated,
    **dict.fromkeys(_BRACKETS, bracket.draw_bracket),
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure from its stored cells, and makes its table.

    The result also counts missing cells. It has no figure if no audit is stored.
    """
    delta = evidence.levels.delta
    all_points = points.points(sweep.audits(), evidence.audits)
    stored_points = [point for point in all_points if point.conclusions]
    missing = sum(len(point.cells) - len(point.conclusions) for point in all_points)
    for setting in bracket.list_measured(sweep):
        missing += bracket.read_expansion(evidence, setting) is None
    if not stored_points:
        return Drawn(None, missing)
    if sweep.name in _WITH_OWN_TABLE:
        figure, own_table = _WITH_OWN_TABLE[sweep.name](sweep, stored_points, evidence)
        return Drawn(figure, missing, table=own_table)
    # The headings of these figures count missing cells, so they get all points.
    match sweep.name:
        case "figure_6a":
            figure = estimates.trade_off_figure(sweep.title, all_points)
        case "figure_11":
            figure = estimates.profile_figure(sweep.title, all_points, delta)
        case _:
            figure = estimates.epsilon_figure(sweep.title, sweep.axis, all_points, delta)
    rows = list(points.make_rows(sweep, stored_points, CLAIMS, delta))
    return Drawn(figure, missing, rows)
