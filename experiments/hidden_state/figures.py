"""Draws the hidden-state paper's sweeps from stored results, without training."""

from functools import partial

from matplotlib.axes import Axes

from audit.report.style import BLUE, GREEN, UPPER, VERMILION
from audit.settings.setting import identity
from experiments.cells.cell import find_answer
from experiments.hidden_state import bracket, measured
from experiments.hidden_state.measured import Norms
from experiments.sweeps import estimates, points
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, Sweep
from models.catalogue import task

# Functions from (sweep, points with conclusions, evidence) to a figure and a custom table.
_WITH_OWN_TABLE = {
    "proven": bracket.draw_proven,
    "matrix": bracket.draw_correlated,
    "bracket_k": bracket.draw_bracket,
    "bracket_steps": bracket.draw_bracket,
    "bracket": bracket.draw_bracket,
    "bracket_rates": bracket.draw_bracket,
}
# Functions from (sweep, points with conclusions) to a figure.
_FIGURES = {"figure_6a": estimates.trade_off_figure, "figure_11": estimates.profile_figure}
_LINE_LOOKS = ((VERMILION, "-"), (BLUE, "--"), (GREEN, "-."))  # of Figure 8's models, at most three


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and table from stored results, and counts the missing cells.

    A cell is one audit or measurement. Each point in the figure shows audits that differ only in their seed.
    """
    if sweep.name == "figure_8":  # shows gradient norms, not audits
        return _draw_norms(sweep, evidence)
    all_points = points.points(sweep.audits(), evidence.audits)
    missing = sum(len(point.cells) - len(point.conclusions) for point in all_points)
    # Other cells measure how much steps expand the distance between two models.
    for setting in bracket.list_measured(sweep):
        if bracket.read_expansion(evidence, setting) is None:
            missing += 1
    stored = [point for point in all_points if point.conclusions]
    if not stored:
        return Drawn(None, missing)
    if sweep.name in _WITH_OWN_TABLE:
        figure, own_table = _WITH_OWN_TABLE[sweep.name](sweep, stored, evidence)
        return Drawn(figure, missing, table=own_table)
    draw_figure = _FIGURES.get(sweep.name, estimates.epsilon_figure)
    rows = list(points.make_rows(sweep, stored))
    return Drawn(draw_figure(sweep, stored), missing, rows)


def _draw_norms(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Figure 8: the gradient norms of the mislabelled examples that adversary L inserts."""
    stored = {}  # label -> norms of shape (runs, steps)
    for cell in sweep.cells:
        answer = find_answer(evidence.held, identity(cell.request, measured.NORMS))
        norms = measured.take_norms(answer, cell.runs)
        if norms is not None:
            stored[f"{task(cell.request.model).label} ({cell.runs} runs)"] = norms
    missing = len(sweep.cells) - len(stored)
    if not stored:
        return Drawn(None, missing)
    clipping_norm = sweep.cells[0].request.mechanism.clipping_norm  # the same for all cells
    panel = partial(_draw_norms_panel, stored=stored, clipping_norm=clipping_norm)
    title = "L's canary before clipping: mean and 2 standard deviations"
    return Drawn(draw_panels(title, {"": panel}, size=(6, 2.9)), missing)


def _draw_norms_panel(axis: Axes, stored: dict[str, Norms], clipping_norm: float) -> None:
    """Plots each model's mean norm over runs at each step, with a band of 2 standard deviations.

    `stored` maps a model's label to its norms, of shape (runs, steps).
    """
    for (label, norms), (color, dash) in zip(stored.items(), _LINE_LOOKS, strict=False):
        mean = norms.mean(axis=0)
        spread = 2 * norms.std(axis=0, ddof=1)
        axis.plot(mean, dash, color=color, label=label)
        axis.fill_between(range(len(mean)), mean - spread, mean + spread, color=color, alpha=0.2)
    axis.axhline(clipping_norm, color=UPPER, ls=":", label="$C$")
    axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
