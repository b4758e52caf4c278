"""Table 1 and Figures 3, 4 and 5 of the LiDP paper, from stored scores.

Figures and tables show the same records. A bound from fewer runs uses a random part of the stored runs.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.accounting import Composition, participant_upper_bound
from audit.conclusions import concluded
from audit.evidence.canaries import Design, make_sets
from audit.laws import conversions
from audit.methods import lifted
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, UPPER, VERMILION
from audit.report.table import at_least
from audit.settings.setting import identity
from audit.storage.store import Scores
from audit.written import Level, at_most
from experiments.cells.cell import find_answer
from experiments.lidp import gaussian_mechanism
from experiments.lidp.mechanism_audit import LIFTED, MechanismAudit
from experiments.sweeps.panels import draw_panels, plot_lines
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, Records, field, own_table, select, text_field
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

MIN_RUNS = 40  # on a curve, if twice as many are stored
_MAX_CURVE_POINTS = 7
_NUM_PARTS = 8  # a bound is averaged over this many random parts of the runs
_X_AXES = {  # by panel: the field of an audit, and the axis' label
    "over n": ("runs", r"runs n a world; $K = \sqrt{n}$"),
    "over K": ("canaries", "canaries K"),
    "over d": ("dimension", "dimension d"),
}
# By field: label, color, and matplotlib's format of marker and line. The order, 1, 2 or 4, is the highest
# moment of a run's detected canaries that Wilson's intervals use.
_METHODS = {
    "wilson_1": ("order 1", BLUE, "o:"),
    "wilson_2": ("order 2", VERMILION, "s-"),
    "wilson_4": ("order 4", PURPLE, "^--"),
    LIFTED: ("lifted", GREEN, "D-"),
}
_K_1 = ("K = 1, order 1", BLACK, "x-")
_SINGLE = {"wilson_1": _K_1, LIFTED: ("K = 1, lifted", ORANGE, "v--")}
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
_RULE = "-" * 80
_NOTES = """\
mean (standard deviation) over seeds
order 1, 2, 4: log((p_1 - delta) / p_0) with Wilson's limits, asymptotic; as in
      the paper, the threshold is tuned on other runs
lifted: valid for any number of runs; 5% of the runs choose its threshold
exact: epsilon of the Gaussian mechanism; window: limit of the paper's
      thresholds with one canary, for many runs"""
_NOTE_ON_GAINS = """\
K = 1: one canary with order 1; 2 and 4: orders, with several canaries
gain: runs with one canary (order 1) divided by runs with several canaries, at
      the largest bound that both reach; bounds are means over parts of the runs
mean: harmonic mean over entries with positive bounds on both sides"""


def compare_with_single(by_canaries: Mapping[int, Scores], levels: Level) -> Record:
    """Returns an entry of Table 1: the bounds with one canary and with several, and the ratios of runs.

    `by_canaries` has the scores of equally many runs by the number of canaries: 1, bounded by order 1, and at
    least 4, bounded by orders 2 and 4. An epsilon is the largest mean over numbers of runs, and a gain is
    from `compute_gain`.
    """
    runs = choose_numbers_of_runs(len(by_canaries[1].scores))
    single_curve = compute_curve("wilson_1", by_canaries[1], runs, levels)
    record: Record = {"epsilon_1": max(single_curve)}
    several = by_canaries[max(by_canaries)]
    for order in (2, 4):
        curve = compute_curve(f"wilson_{order}", several, runs, levels)
        record[f"epsilon_{order}"] = max(curve)
        record[f"gain_{order}"] = compute_gain(runs, single_curve, curve)
    return record


def compare_canaries(by_canaries: Mapping[int, Scores], levels: Level) -> list[Record]:
    """Returns an attack's lower bounds on epsilon, for the two panels of Figure 5.

    `by_canaries` has the scores of equally many runs by the number of canaries. "over K" has bounds from all
    runs. "over n" has bounds from parts of the runs: with a single canary, and with the K above 1 nearest to
    the root of the number of all runs, as in Figure 3.
    """
    all_runs = len(next(iter(by_canaries.values())).scores)

    def bound(canaries: int, runs: Sequence[int]) -> pd.DataFrame:
        """Returns bounds by number of runs, and by each method that allows this number of canaries."""
        curves = {}
        for method in _METHODS:
            if canaries >= _find_method(method).canaries:
                curves[method] = compute_curve(method, by_canaries[canaries], runs, levels)
        return pd.DataFrame(curves).assign(canaries=canaries)

    records: list[Record] = []
    for canaries in sorted(by_canaries):
        over_canaries = bound(canaries, [all_runs]).assign(panel="over K", x=canaries)
        records += over_canaries.to_dict("records")
    several = sorted(by_canaries.keys() - {1}) or [1]
    nearest = min(several, key=lambda canaries: abs(canaries - all_runs**0.5))
    runs = choose_numbers_of_runs(all_runs)
    over_runs = bound(nearest, runs).assign(panel="over n", x=runs)
    if 1 in by_canaries:
        over_runs["single"] = compute_curve("wilson_1", by_canaries[1], runs, levels)
    records += over_runs.to_dict("records")
    return records


def choose_numbers_of_runs(runs: int) -> list[int]:
    """Returns the even numbers of runs of a curve, from MIN_RUNS to half of all runs.

    Larger random parts share more runs, and their mean epsilon is less precise.
    """
    most = runs // 2
    halves = np.geomspace(min(MIN_RUNS, most), most, _MAX_CURVE_POINTS) / 2
    return sorted({2 * round(half) for half in halves})


def compute_curve(method: str, scores: Scores, runs: Sequence[int], levels: Level) -> list[float]:
    """Returns the mean epsilon of a key of _METHODS over random parts of all runs, at each number of runs."""
    rng = np.random.default_rng(0)  # a fixed seed, so a figure always shows the same numbers
    bound = _find_method(method).bound
    curve = []
    for count in runs:
        num_parts = 1 if count == len(scores.scores) else _NUM_PARTS
        epsilons = []
        for _ in range(num_parts):
            part = _draw_part(scores, count, rng)
            epsilons.append(bound(part, *levels).epsilon)
        curve.append(float(np.mean(epsilons)))
    return curve


def _find_method(name: str) -> lifted.CanaryMethod:
    """Returns the method of a key of _METHODS."""
    return lifted.METHODS[name.replace("wilson", "lidp_wilson")]


def compute_gain(
    runs: Sequence[int], single: Sequence[float], several: Sequence[float]
) -> float | None:
    """Returns the ratio of runs that one canary and several canaries need for the largest epsilon of both.

    `single` and `several` are epsilons at each number of `runs`. The ratio is above 1 if several canaries
    need fewer runs, and None if a curve is 0 everywhere.
    """
    level = min(max(single), max(several))
    if level <= 0:
        return None
    return _interpolate_runs(runs, single, level) / _interpolate_runs(runs, several, level)


def _draw_part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """Draws an even number of runs without replacement; half of the runs with one canary insert it."""
    if scores.scores.shape[1] > 1:
        # Sorting keeps all runs in order.
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        part = scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn])
        return concluded.read_coins(part)
    worlds = concluded.read_coins(scores).pooled()
    return make_sets(*(rng.choice(world, count // 2, replace=False)[:, None] for world in worlds))


def _interpolate_runs(runs: Sequence[int], epsilons: Sequence[float], level: float) -> float:
    """Returns the fewest runs at which a curve's largest epsilon so far reaches a level.

    Between points, epsilon is linear in the logarithm of the number of runs.
    """
    highest = np.maximum.accumulate(epsilons)
    reached = int(np.argmax(highest >= level))
    around = slice(max(reached - 1, 0), reached + 1)
    return math.exp(np.interp(level, highest[around], np.log(runs[around])))


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure from its stored cells, and makes its table."""
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
        panel, audit = cell.request
        audit = audit._replace(**evidence.levels._asdict())
        answer = find_answer(evidence.held, audit.setting())
        if answer is not None:
            records.append(_describe(panel, audit, answer))
    return records, len(sweep.cells) - len(records)


def _describe(panel: str, audit: MechanismAudit, answer: dict[str, Any]) -> Record:
    """Returns an audit of the Gaussian mechanism as a record.

    A method's field is its mean epsilon over seeds, with the standard deviation (`_deviation`) and the
    standard error of the mean (`_error`). `gain_2` and `gain_4` are the means of orders 2 and 4 minus that of
    order 1. `window` is the limit of the paper's thresholds (Errata L2).
    """
    # Canaries are unit vectors, so the mechanism has Gaussian DP with mu = 1 / sigma.
    sigma = audit.sigma
    exact = conversions.epsilon_from_mu(1 / sigma, audit.delta)
    window = gaussian_mechanism.window_limit(sigma, audit.delta)
    by_rdp = f"{panel}: epsilon {audit.epsilon:g} by RDP"
    by_method = answer.pop("epsilons")
    record: Record = {
        "panel": panel,
        "heading": f"{by_rdp}, {exact:.3f} exact, {window:.3f} in the window",
        **audit._asdict(),
        "exact": exact,
        "window": window,
        **answer,  # the gaps of moments
    }
    record["x"] = record[_X_AXES[panel][0]]
    for method, epsilons in by_method.items():
        deviation = np.std(epsilons)
        record[method] = np.mean(epsilons)
        record[f"{method}_deviation"] = deviation
        record[f"{method}_error"] = deviation / np.sqrt(len(epsilons))
        record[f"{method}_shown"] = f"{record[method]:.3f} ({deviation:.3f})"
        order = method.removeprefix("wilson_")
        if order in ("2", "4"):
            record[f"gain_{order}"] = record[method] - record["wilson_1"]
    return record


def _read_scores(
    sweep: Sweep, evidence: Evidence
) -> tuple[dict[tuple[str, str], dict[int, Scores]], int]:
    """Returns stored scores by (attack, panel), then by canaries, and the number of missing audits."""
    groups: dict[tuple[str, str], dict[int, Scores]] = {}
    for audit in sweep.audits():
        scores = evidence.held.scores(identity(audit.setting), audit.runs)
        if scores is not None:
            groups.setdefault((audit.series, audit.panel), {})[int(audit.x)] = scores
    return groups, len(sweep.cells) - sum(map(len, groups.values()))


def _read_gains(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records of Table 1 with both of their audits, and the number of missing audits."""
    groups, missing = _read_scores(sweep, evidence)
    records = []
    for (attack, panel), by_canaries in groups.items():
        if len(by_canaries) > 1:
            entry = {"heading": "", "entry": f"{attack}, {panel}"}
            records.append(entry | compare_with_single(by_canaries, evidence.levels))
    return records, missing


def _read_bounds(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the bounds of Figure 5's attacks, and the number of missing audits."""
    groups, missing = _read_scores(sweep, evidence)
    first = sweep.audits()[0]
    composition = Composition(*first.setting.composition)
    upper = at_most(participant_upper_bound(composition, evidence.levels.delta), 2)
    heading = f"{first.panel}, upper bound {upper}, n = {first.runs:,}"
    records = []
    for (attack, _), by_canaries in groups.items():
        for record in compare_canaries(by_canaries, evidence.levels):
            records.append({"heading": heading, "attack": attack, **record})
    return records, missing


def draw_epsilons(title: str, records: Records) -> Figure:
    """Draws Figure 3: panels of epsilon over runs n, canaries K and dimension d.

    Each panel has the exact epsilon and the limit of the paper's thresholds with a single canary.
    """

    def draw_panel(axis: Axes, panel: str, of_panel: Records) -> None:
        single = select(of_panel, panel="over n", canaries=1)
        several = [record for record in of_panel if record not in single]
        plot_lines(axis, several, _METHODS)
        plot_lines(axis, single, _SINGLE)
        plot_lines(axis, several or single, _LIMITS, xlabel=_X_AXES[panel][1], xscale="log")

    panels = {}
    for record in records:
        panel = record["panel"]
        of_panel = select(records, panel=panel)
        heading = record["heading"].replace(", ", "\n", 1)
        panels[heading] = partial(draw_panel, panel=panel, of_panel=of_panel)
    return draw_panels(title, panels, (3.7, 2.9), ylabel=_BOUND_LABEL, legend_columns=4)


def draw_correlations(title: str, records: Records) -> Figure:
    """Draws Figure 4: gains over canaries K, and the dependence of detections over K and over dimension d.

    The bias is order 1's mean epsilon with K canaries minus that with one (equation 10). A line of slope -1
    shows the paper's decay (Errata L6).
    """
    several = [record for record in records if "second" in record]
    singles = select(records, panel="over K", canaries=1)
    single = singles[0]["wilson_1"] if singles else math.nan
    gains = []
    for record in select(several, panel="over K"):
        gains.append({**record, "bias": record["wilson_1"] - single})
    xlabel = _X_AXES["over K"][1]
    draw_gains = partial(plot_lines, records=gains, looks=_GAINS, xlabel=xlabel, xscale="log")
    panels = {"change of epsilon": draw_gains}
    for panel in ("over K", "over d"):
        gaps = pd.DataFrame(select(several, panel=panel))
        if len(gaps):  # an empty logarithmic axis does not have a range
            gaps["slope"] = gaps["second"][0] * gaps["x"][0] / gaps["x"]
            panels[f"dependence of detections {panel}"] = partial(
                plot_lines,
                records=gaps,
                looks=_GAPS,
                xlabel=_X_AXES[panel][1],
                xscale="log",
                yscale="log",
            )
    return draw_panels(title, panels, (3.7, 2.9), legend_columns=3)


def draw_bounds(title: str, records: Records) -> Figure:
    """Draws Figure 5: a row for each attack, with epsilon over runs n and over canaries K."""
    looks = {"single": _K_1, **_METHODS}
    panels = {}
    for attack in dict.fromkeys(map(itemgetter("attack"), records)):
        of_attack = select(records, attack=attack)
        most = of_attack[-1]["canaries"]
        # Labels of all numbers of runs would overlap.
        for panel, name, gap in (("over n", f"runs, K = {most}", 2), ("over K", "canaries K", 1)):
            shown = select(of_attack, panel=panel)
            ticks = list(map(itemgetter("x"), shown))[::gap]
            panels[f"{attack} {panel}"] = partial(
                plot_lines,
                records=shown,
                looks=looks,
                xscale="log",
                xticks=ticks,
                xticklabels=ticks,
                xlabel=name,
                ylim=(0, None),
            )
    return draw_panels(
        records[0]["heading"],
        panels,
        (4, 2.4),
        across=2,
        ylabel=_BOUND_LABEL,
        legend_columns=5,
        sharey="row",
    )


_AUDIT = [
    field("panel"),
    field("epsilon"),
    field("runs", "n", width=6),
    field("canaries", "K", width=5),
    field("dimension", "d", width=8),
]


def make_epsilons_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 3: each method's mean and standard deviation of epsilon over seeds."""
    columns = list(_AUDIT)
    for method, (head, *_) in _METHODS.items():
        columns.append(text_field(f"{method}_shown", head, 15))
        columns += [field(method), field(f"{method}_deviation")]
    return _make_table(title, columns, records, [_RULE, _NOTES])


def make_correlations_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 4: gains in epsilon at orders 2 and 4, and correlations of detections."""
    columns = [
        *_AUDIT,
        field("gain_2", "gain, order 2", ".3f", 15),
        field("gain_4", "gain, order 4", ".3f", 14),
        field("second", "|mu_2-mu_1^2|", ".2e", 14),
        field("fourth", "|mu_4-mu_2^2|", ".2e", 14),
    ]
    return _make_table(title, columns, records, [_RULE])


def make_gains_table(title: str, records: Records) -> OwnTable:
    """Makes Table 1 from the records of `compare_with_single`, with harmonic means as in the paper."""
    columns = [field("entry", "epsilon of", "{:.44}".format, 44, left=True)]
    for order, head in ((1, "K = 1"), (2, "2"), (4, "4")):
        columns.append(field(f"epsilon_{order}", head, _show_bound, 7, none="-"))
    means = f"{'mean':<65}"
    for key in ("gain_2", "gain_4"):
        columns.append(field(key, key.replace("_", " "), ".2f", 7, none="-"))
        gains = [record[key] for record in records if record[key] is not None]
        mean = "-"
        if gains:
            mean = f"{statistics.harmonic_mean(gains):.2f}"
        means += f"{mean:>7}"
    return _make_table(title, columns, records, [means, _RULE, _NOTE_ON_GAINS])


def make_bounds_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 5: epsilon by attack, number of canaries and method."""
    columns = [field("attack", "epsilon of", width=40, left=True), field("canaries", "K", width=6)]
    for method, (head, *_) in _METHODS.items():
        columns.append(field(method, head, _show_bound, 8, none="-"))
    return _make_table(title, columns, select(records, panel="over K"), [_RULE])


_make_table = partial(own_table, section="heading")
_show_bound = partial(at_least, decimals=2)
# By sweep: read records, draw them, and make their table. Table 1 has no figure.
_DRAWINGS: dict[str, tuple[Any, Any, Any]] = {
    "lidp_figure_3": (_read_answers, draw_epsilons, make_epsilons_table),
    "lidp_figure_4": (_read_answers, draw_correlations, make_correlations_table),
    "lidp_table_1": (_read_gains, lambda title, records: None, make_gains_table),
    "lidp_figure_5": (_read_bounds, draw_bounds, make_bounds_table),
}
