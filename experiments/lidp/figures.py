"""Draws Table 1 and Figures 3, 4 and 5 of the LiDP paper from stored scores.

n is the number of runs per world, K is the number of canaries in a run, and d is the dimension.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from audit.claims.accounting import Composition, participant_upper_bound
from audit.conclusions import concluded
from audit.evidence.canaries import Design, make_sets
from audit.laws import conversions
from audit.methods import lifted
from audit.methods.lifted import LIFTED
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, UPPER, VERMILION
from audit.report.table import at_least
from audit.settings.setting import identity
from audit.storage.store import Scores
from audit.written import Level, at_most
from experiments.cells.cell import find_answer
from experiments.lidp import gaussian_mechanism
from experiments.lidp.mechanism_audit import MechanismAudit
from experiments.sweeps.panels import draw_panels, draw_panels_of, plot_lines
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, Records, field, mean_fields, own_table, select
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

# Maps (attack, panel) to the scores, keyed by the number of canaries in a run.
ScoreGroups = dict[tuple[str, str], dict[int, Scores]]
MIN_RUNS = 40  # a curve begins at this number of runs, if at least twice as many are stored
_MAX_CURVE_POINTS = 7
_NUM_PARTS = 8  # the number of random subsets for a bound from fewer runs than are stored
# For each panel, the field of a `MechanismAudit` on the horizontal axis, and the axis label.
_X_FIELDS = {"over n": "runs", "over K": "canaries", "over d": "dimension"}
_X_LABELS = {
    "over n": r"runs n per world; $K = \sqrt{n}$",
    "over K": "canaries K",
    "over d": "dimension d",
}
# Each field's label, color, and marker and line format. See `gaussian_mechanism.wilson_epsilon` for orders.
_METHODS = {
    "wilson_1": ("order 1", BLUE, "o:"),
    "wilson_2": ("order 2", VERMILION, "s-"),
    "wilson_4": ("order 4", PURPLE, "^--"),
    LIFTED: ("lifted", GREEN, "D-"),
}
_K_1 = ("K = 1, order 1", BLACK, "x-")
_ONE_CANARY_METHODS = {"wilson_1": _K_1, LIFTED: ("K = 1, lifted", ORANGE, "v--")}
_LIMITS = {
    "exact": ("exact epsilon", UPPER, ":"),
    "window": ("limit of the paper's thresholds", FADED, "-."),
}
_GAINS = {
    "bias": ("bias", BLUE, "o:"),
    "gain_2": ("variance gain, order 2", VERMILION, "s-"),
    "gain_4": ("variance gain, order 4", PURPLE, "^--"),
}
_GAPS = {
    "second": ("|mu_2 - mu_1²|", VERMILION, "s-"),
    "fourth": ("|mu_4 - mu_2²|", PURPLE, "^--"),
    "slope": ("slope -1", BLACK, ":"),
}
_BOUND_LABEL = "lower bound on epsilon"
_SIZE = (3.7, 2.9)  # of a panel, in inches
_RULE = "-" * 80
_NOTES = """\
mean (standard deviation) over seeds
order 1, 2, 4: log((p_1 - delta) / p_0) with Wilson's asymptotic limits; as in
      the paper, the threshold is tuned on separate runs
lifted: valid for any number of runs; 5% of the runs choose its threshold
exact: epsilon of the Gaussian mechanism; window: limit of the paper's
      thresholds with one canary, for many runs"""
_NOTE_ON_GAINS = """\
K = 1: one canary with order 1; 2 and 4: orders, with several canaries
gain: runs needed with one canary (order 1) divided by runs needed with several,
      for the largest bound both reach; bounds are means over subsets of runs
mean: harmonic mean over entries in which both have positive bounds"""


def compare_over_runs(
    by_canaries: Mapping[int, Scores], canaries: int, methods: Sequence[str], levels: Level
) -> pd.DataFrame:
    """Returns an attack's lower bounds on epsilon (`compute_curve`) for several run counts n.

    The columns are `x` (the value of n) and each method's bound. If runs with one canary are stored, `single`
    is their bound of order 1.

    Args:
      by_canaries: The scores, keyed by the number of canaries in a run. All have the same number of runs.
      canaries: The key in `by_canaries` for the scores that `methods` use.
      methods: Keys of _METHODS.
    """
    runs = choose_numbers_of_runs(len(by_canaries[canaries].scores))
    bounds = pd.DataFrame({"x": runs})
    for method in methods:
        bounds[method] = compute_curve(method, by_canaries[canaries], runs, levels)
    if 1 in by_canaries:
        bounds["single"] = compute_curve("wilson_1", by_canaries[1], runs, levels)
    return bounds


def compare_canaries(by_canaries: Mapping[int, Scores], levels: Level) -> Records:
    """Returns an attack's lower bounds on epsilon for several run counts n and canary counts K.

    Bounds for different n use subsets of the runs and the same K. Since K = sqrt(n) in the LiDP paper, we use
    the stored K above 1 that is closest to the square root of the total number of runs. Bounds for different
    K use all runs.

    Returns:
      Records with the fields `over` ("n" or "K"), `x` (the value of n or K), `canaries`, and the bounds of
      the methods that accept this number of canaries.
    """
    all_runs = len(next(iter(by_canaries.values())).scores)
    several = sorted(by_canaries.keys() - {1}) or [1]  # [1] if no other number is stored
    nearest = min(several, key=lambda canaries: abs(canaries - all_runs**0.5))
    over_runs = compare_over_runs(by_canaries, nearest, _list_methods(nearest), levels)
    records: list[Record] = over_runs.assign(over="n", canaries=nearest).to_dict("records")
    for canaries, scores in sorted(by_canaries.items()):
        record: Record = {"over": "K", "canaries": canaries, "x": canaries}
        for method in _list_methods(canaries):
            [record[method]] = compute_curve(method, scores, [all_runs], levels)
        records.append(record)
    return records


def _list_methods(canaries: int) -> list[str]:
    """Returns the keys of _METHODS that accept this number of canaries in a run."""
    return [method for method in _METHODS if _find_method(method).canaries <= canaries]


def choose_numbers_of_runs(runs: int) -> list[int]:
    """Returns the run counts for a curve, from MIN_RUNS to half of all `runs`.

    Larger random subsets share more runs, which makes their mean epsilon less precise.
    """
    most = runs // 2
    spaced = np.geomspace(min(MIN_RUNS, most), most, _MAX_CURVE_POINTS)
    # Rounded to even numbers, because half of the runs insert the canary.
    return sorted({2 * round(number / 2) for number in spaced})


def compute_curve(method: str, scores: Scores, runs: Sequence[int], levels: Level) -> list[float]:
    """Returns the mean lower bound on epsilon over random subsets of the runs, for each size in `runs`.

    `scores` are from all runs, and `method` is a key of _METHODS.
    """
    rng = np.random.default_rng(0)  # makes figures reproducible
    bound = _find_method(method).bound
    curve = []
    for count in runs:
        num_parts = 1 if count == len(scores.scores) else _NUM_PARTS
        parts = [_draw_part(scores, count, rng) for _ in range(num_parts)]
        epsilons = [bound(part, *levels).epsilon for part in parts]
        curve.append(float(np.mean(epsilons)))
    return curve


def _find_method(name: str) -> lifted.CanaryMethod:
    """Returns the library's method for a key of _METHODS; the names of Wilson methods begin with "lidp_"."""
    return lifted.METHODS[name.replace("wilson", "lidp_wilson")]


def compute_gain(runs: ArrayLike, single: ArrayLike, several: ArrayLike) -> float | None:
    """Returns the number of runs needed with one canary divided by the number needed with several.

    The two numbers are compared at the largest epsilon that both curves reach. `single` and `several` are the
    epsilons for each number of `runs`. Returns None if one curve is always 0.
    """
    level = min(np.max(single), np.max(several))
    if level <= 0:
        return None
    return _interpolate_runs(runs, single, level) / _interpolate_runs(runs, several, level)


def _draw_part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """Draws `count` runs without replacement; `count` is even.

    With several canaries per run, each canary has a coin, and any subset of runs is valid. With one canary
    per run, half of the drawn runs insert the canary.
    """
    if scores.scores.shape[1] > 1:
        # Sorted, so that drawing all runs keeps the stored order.
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        part = scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn])
        return concluded.read_coins(part)
    inserted, fresh = concluded.read_coins(scores).pooled()
    drawn_inserted = rng.choice(inserted, count // 2, replace=False)
    drawn_fresh = rng.choice(fresh, count // 2, replace=False)
    return make_sets(drawn_inserted[:, None], drawn_fresh[:, None])


def _interpolate_runs(runs: ArrayLike, epsilons: ArrayLike, level: float) -> float:
    """Returns the number of runs at which the running maximum of `epsilons` reaches a level.

    Interpolation is linear in the logarithm of the number of runs. `runs` is in increasing order, and at
    least one of `epsilons` reaches `level`.
    """
    highest = np.maximum.accumulate(epsilons)
    reached = int(np.argmax(highest >= level))
    ends = [max(reached - 1, 0), reached]  # the previous index, if any, and this one
    return math.exp(np.interp(level, highest[ends], np.log(runs)[ends]))


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure, makes its table from stored cells, and counts missing cells."""
    read, draw_figure, make_table = _DRAWINGS[sweep.name]
    records, missing = read(sweep, evidence)
    if not records:
        return Drawn(None, missing)
    table = make_table(f"{sweep.name}: {sweep.title}", records)
    return Drawn(draw_figure(sweep.title, records), missing, table=table)


def _read_answers(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records of stored audits of the Gaussian mechanism, and the number of missing audits."""
    records = []
    for cell in sweep.cells:
        panel, planned = cell.request
        audit = planned._replace(**evidence.levels._asdict())
        answer = find_answer(evidence.held, audit.setting())
        if answer is not None:
            records.append(_make_record(panel, audit, answer))
    return records, len(sweep.cells) - len(records)


def _make_record(panel: str, audit: MechanismAudit, answer: dict[str, Any]) -> Record:
    """Returns the record of a Gaussian mechanism audit for a panel of Figure 3 or 4.

    `answer` is the stored result of `gaussian_mechanism.find_epsilons`.

    Returns:
      panel, heading: The panel, and a line with its epsilons.
      x: The audit's field on the horizontal axis. The record also has every field of the audit.
      exact: The mechanism's epsilon.
      window: The largest epsilon that the paper can show with thresholds between the 10% and 90% quantiles of
        scores (Errata L2).
      <method>, <method>_deviation, <method>_error: For each method, the mean epsilon over seeds, its standard
        deviation and its standard error.
      gain_2, gain_4: The mean for Wilson's interval with 2 or 4 moments, minus the mean with one moment.
      second, fourth: |mu_2 - mu_1^2| and |mu_4 - mu_2^2| from `answer`, where mu_j is the probability that j
        canaries in a run are all detected. They are 0 for independent detections.
    """
    # Canaries are unit vectors, so the mechanism satisfies Gaussian DP with mu = 1 / sigma.
    sigma = audit.sigma
    exact = conversions.epsilon_from_mu(1 / sigma, audit.delta)
    window = gaussian_mechanism.window_limit(sigma, audit.delta)
    by_rdp = f"{panel}: epsilon {audit.epsilon:g} by RDP"
    record: Record = {
        "panel": panel,
        "heading": f"{by_rdp}, {exact:.3f} exact, {window:.3f} in the window",
        **audit._asdict(),
        "x": getattr(audit, _X_FIELDS[panel]),
        "exact": exact,
        "window": window,
        **answer,
    }
    for method, epsilons in answer["epsilons"].items():
        deviation = np.std(epsilons)
        record |= {
            method: np.mean(epsilons),
            f"{method}_deviation": deviation,
            f"{method}_error": deviation / np.sqrt(len(epsilons)),
        }
    for order in (2, 4):
        if f"wilson_{order}" in record:
            record[f"gain_{order}"] = record[f"wilson_{order}"] - record["wilson_1"]
    return record


def _read_scores(sweep: Sweep, evidence: Evidence) -> tuple[ScoreGroups, int]:
    """Returns the stored scores by attack, panel and number of canaries, and the number of missing audits."""
    groups: ScoreGroups = {}
    for audit in sweep.audits():
        scores = evidence.held.scores(identity(audit.setting), audit.runs)
        if scores is not None:
            by_canaries = groups.setdefault((audit.series, audit.panel), {})
            by_canaries[int(audit.x)] = scores
    return groups, len(sweep.cells) - sum(map(len, groups.values()))


def _read_gains(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records for the LiDP paper's Table 1, and the number of missing audits.

    A record requires stored audits with both one and several canaries per run. It has the largest epsilons
    across all run counts: `single` with one canary, and `wilson_2` and `wilson_4` with several, from
    intervals that use 2 and 4 moments. `gain_2` and `gain_4` are ratios of the runs needed (`compute_gain`).
    """
    groups, missing = _read_scores(sweep, evidence)
    records = []
    for (attack, panel), by_canaries in groups.items():
        if len(by_canaries) > 1:
            several = max(by_canaries)
            curves = compare_over_runs(
                by_canaries, several, ["wilson_2", "wilson_4"], evidence.levels
            )
            record: Record = {"entry": f"{attack}, {panel}", **curves.max()}
            for order in (2, 4):
                curve = curves[f"wilson_{order}"]
                record[f"gain_{order}"] = compute_gain(curves["x"], curves["single"], curve)
            records.append(record)
    return records, missing


def _read_bounds(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records for the LiDP paper's Figure 5, and the number of missing audits.

    Each attack has two panels, with bounds against runs n and against canaries K.
    """
    groups, missing = _read_scores(sweep, evidence)
    # The training, the number of runs and the upper bound are the same for all audits.
    first = sweep.audits()[0]
    training = first.panel
    composition = Composition(*first.setting.composition)
    guaranteed = participant_upper_bound(composition, evidence.levels.delta)
    upper = at_most(guaranteed, decimals=2)
    heading = f"{training}, upper bound {upper}, n = {first.runs:,}"
    records = []
    for (attack, _training), by_canaries in groups.items():
        for record in compare_canaries(by_canaries, evidence.levels):
            title = f"{attack} over {record['over']}"
            records.append({"heading": heading, "attack": attack, "panel": title, **record})
    return records, missing


def draw_epsilons(title: str, records: Records) -> Figure:
    """Plots Figure 3 from records of `_make_record`: lower bounds against runs, canaries and dimension."""
    return draw_panels_of(
        records, title, _draw_panel_of_epsilons, _SIZE, ylabel=_BOUND_LABEL, legend_columns=4
    )


def _draw_panel_of_epsilons(axis: Axes, records: Records) -> None:
    """Draws one panel of Figure 3. The "over n" panel shows bounds with one canary as separate lines.

    The lines in _LIMITS do not depend on K.
    """
    single = select(records, panel="over n", canaries=1)
    several = [record for record in records if record not in single]
    plot_lines(axis, several, _METHODS)
    plot_lines(axis, single, _ONE_CANARY_METHODS)
    xlabel = _X_LABELS[records[0]["panel"]]
    plot_lines(axis, several or single, _LIMITS, xlabel=xlabel, xscale="log")
    title = records[0]["heading"].replace(", ", "\n", 1)  # the heading is too long for one line
    axis.set_title(title, fontsize=10)


def draw_correlations(title: str, records: Records) -> Figure:
    """Plots Figure 4 from records of `_make_record`: changes in epsilon, and dependence between detections.

    A lower bound of order 1, 2 or 4 uses that many moments of the number of detected canaries in a run. The
    bias is the epsilon of order 1 with K canaries, minus the epsilon with one canary (equation 10). Gains
    (`gain_2` and `gain_4` in the records) are the changes from order 1 to orders 2 and 4.
    """
    # Only runs with more than one canary have `second`, the gap between moments 1 and 2.
    several = [record for record in records if "second" in record]
    one_canary = select(records, panel="over K", canaries=1)  # at most one record
    single = one_canary[0]["wilson_1"] if one_canary else math.nan  # the epsilon of order 1
    changes = []
    for record in select(several, panel="over K"):
        changes.append({**record, "bias": record["wilson_1"] - single})
    xlabel = _X_LABELS["over K"]
    draw_changes = partial(plot_lines, records=changes, looks=_GAINS, xlabel=xlabel, xscale="log")
    panels = {"change of epsilon": draw_changes}
    for panel in ("over K", "over d"):
        gaps = select(several, panel=panel)
        if gaps:  # an empty logarithmic axis has no range
            panels[f"dependence of detections {panel}"] = partial(_draw_gaps, records=gaps)
    return draw_panels(title, panels, _SIZE, legend_columns=3)


def _draw_gaps(axis: Axes, records: Records) -> None:
    """Plots the gaps between moments, `second` and `fourth`, against K or d.

    A line with slope -1 through the first point of `second` shows the decay that the paper reports (Errata
    L6).
    """
    gaps = pd.DataFrame(records)
    gaps["slope"] = gaps["second"][0] * gaps["x"][0] / gaps["x"]
    plot_lines(axis, gaps, _GAPS, xlabel=_X_LABELS[gaps["panel"][0]], xscale="log", yscale="log")


def draw_bounds(title: str, records: Records) -> Figure:
    """Plots Figure 5: each attack's row shows epsilon against runs n and against canaries K.

    `title` has no effect: the records' heading is the title.
    """
    figure = draw_panels_of(
        records,
        records[0]["heading"],
        _draw_panel_of_bounds,
        size=(4, 2.4),
        across=2,
        ylabel=_BOUND_LABEL,
        legend_columns=5,
        sharey="row",
    )
    # This call must come last, because it also fixes the upper end of a row's shared axis.
    for axis in figure.axes:
        axis.set_ylim(bottom=0)
    return figure


def _draw_panel_of_bounds(axis: Axes, records: Records) -> None:
    """Plots the bounds of one attack against n or K, from records of `compare_canaries`."""
    ticks = [record["x"] for record in records]
    xlabel = _X_LABELS["over K"]
    if records[0]["over"] == "n":
        ticks = ticks[::2]  # labels at all ticks would overlap
        xlabel = f"runs, K = {records[0]['canaries']}"
    axis.set(xlabel=xlabel, xscale="log")
    looks = {"single": _K_1, **_METHODS}
    plot_lines(axis, records, looks, xticks=ticks)


_AUDIT_COLUMNS = [
    field("panel"),
    field("epsilon"),
    field("runs", "n", width=6),
    field("canaries", "K", width=5),
    field("dimension", "d", width=8),
]


def make_epsilons_table(title: str, records: Records) -> OwnTable:
    """Returns the table of Figure 3: each method's mean epsilon and standard deviation over seeds."""
    columns = list(_AUDIT_COLUMNS)
    for method, (label, *_) in _METHODS.items():
        columns += mean_fields(method, label, decimals=3, width=15)
    return _make_table(title, columns, records, [_RULE, _NOTES])


def make_correlations_table(title: str, records: Records) -> OwnTable:
    """Returns the table of Figure 4: gains in epsilon over order 1, and gaps between moments.

    `_make_record` describes the columns. Smaller gaps allow larger gains.
    """
    columns = [
        *_AUDIT_COLUMNS,
        field("gain_2", "gain, order 2", show=".3f", width=15),
        field("gain_4", "gain, order 4", show=".3f", width=14),
        field("second", "|mu_2-mu_1^2|", show=".2e", width=14),
        field("fourth", "|mu_4-mu_2^2|", show=".2e", width=14),
    ]
    return _make_table(title, columns, records, [_RULE])


def make_gains_table(title: str, records: Records) -> OwnTable:
    """Returns the LiDP paper's Table 1 from records of `_read_gains`.

    `single` is the bound with one canary. The others use several canaries, and 2 or 4 moments of the number
    detected. The harmonic mean of the gains averages their inverses: the fractions of runs that suffice.
    """
    columns = [field("entry", "epsilon of", "{:.44}".format, width=44, left=True)]
    # 2 and 4 are numbers of moments.
    for name, head in (("single", "K = 1"), ("wilson_2", "2"), ("wilson_4", "4")):
        columns.append(field(name, head, _show_bound, width=7))
    means = f"{'mean':<65}"  # 44 + 3 * 7, where the gain columns begin
    for name in ("gain_2", "gain_4"):
        columns.append(field(name, name.replace("_", " "), ".2f", width=7, none="-"))
        gains = [record[name] for record in records if record[name] is not None]
        mean = "-"
        if gains:
            mean = f"{statistics.harmonic_mean(gains):.2f}"
        means += f"{mean:>7}"
    return own_table(title, columns, records, [means, _RULE, _NOTE_ON_GAINS])


def make_bounds_table(title: str, records: Records) -> OwnTable:
    """Returns the table of Figure 5: epsilon for each attack, number of canaries and method.

    `records` are from `compare_canaries`. The table shows only those in which K varies. They use all runs.
    """
    columns = [field("attack", "epsilon of", width=40, left=True), field("canaries", "K", width=6)]
    for method, (label, *_) in _METHODS.items():
        columns.append(field(method, label, _show_bound, width=8, none="-"))
    over_canaries = select(records, over="K")
    return _make_table(title, columns, over_canaries, [_RULE])


_make_table = partial(own_table, section="heading")
_show_bound = partial(at_least, decimals=2)
# For each sweep: functions that read its records and count missing cells, draw its figure (None for Table 1),
# and make its table.
_DRAWINGS: dict[str, tuple[Any, Any, Any]] = {
    "lidp_figure_3": (_read_answers, draw_epsilons, make_epsilons_table),
    "lidp_figure_4": (_read_answers, draw_correlations, make_correlations_table),
    "lidp_table_1": (_read_gains, lambda title, records: None, make_gains_table),
    "lidp_figure_5": (_read_bounds, draw_bounds, make_bounds_table),
}
