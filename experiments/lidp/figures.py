"""Table 1 and Figures 3, 4 and 5 of the LiDP paper, from what the store holds.

Figures and tables show the same records. How many runs a bound needs follows from stored scores: any number
of runs is a random part of all of them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.accounting import Composition, participant_upper_bound
from audit.conclusions import concluded
from audit.evidence.canaries import Design, make_sets
from audit.laws import conversions
from audit.methods import lifted
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, UPPER, VERMILION
from audit.report.table import Column, at_least, number
from audit.settings.setting import identity
from audit.storage.store import Scores
from audit.written import Level, at_most
from experiments.cells.cell import find_answer
from experiments.lidp import gaussian_mechanism
from experiments.lidp.cells import LIFTED, MechanismAudit
from experiments.sweeps.panels import draw_panels, plot_lines
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record, field, own_table, text_field
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

MIN_RUNS = 40  # on a curve, if twice as many are stored
_CURVE_POINTS = 7  # the numbers of runs at which a curve is computed, at most
_PARTS = 8  # random parts of the runs over which a bound is averaged
Records = Sequence[Record]
_X_AXES = {  # by panel: the field of an audit, and the axis' label
    "over n": ("runs", r"runs n a world; $K = \sqrt{n}$"),
    "over K": ("canaries", "canaries K"),
    "over d": ("dimension", "dimension d"),
}
# The lines that show fields of records: label, color, and matplotlib's format of marker and line. Methods
# are those of `lifted`. Their order, 1, 2 or 4, is the highest moment of a run's detected canaries that
# Wilson's intervals use.
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
    "window": ("limit of the paper's window", FADED, "-."),
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
mean (standard deviation) over seeds of log((p_1 - delta) / p_0) with Wilson's
limits of order 1, 2 and 4 at a threshold tuned on other runs (as in the paper;
asymptotic), and of `lifted`, which holds at any number of runs and takes its
threshold from a twentieth of the runs that it is given
exact: epsilon of the Gaussian mechanism; window: what the paper's thresholds
allow with one canary and any number of runs"""
_NOTE_ON_GAINS = """\
K = 1: one canary with order 1; 2 and 4: orders, with several canaries
gain: how many times fewer runs with canaries reach the larger bound that both
      reach, one canary with order 1; of means over random parts of the runs
mean: harmonic, of entries in which both sides prove something"""


def compare_with_single(by_canaries: Mapping[int, Scores], levels: Level) -> Record:
    """Returns an entry of Table 1: the bounds with one canary and with several, and the ratios of runs.

    Args:
      by_canaries: Scores of as many runs with a single canary, bounded by order 1, and with several, bounded
        by orders 2 and 4.
      levels: Delta and confidence of the bounds.

    Returns:
      The record's `epsilon_1`, `epsilon_2` and `epsilon_4` are the largest mean epsilons over numbers of
        runs, by order. `gain_2` and `gain_4` are what `compute_gain` returns. Order 4 needs 4 canaries.
    """
    runs = choose_numbers_of_runs(len(by_canaries[1].scores))
    single_curve = compute_curve("wilson_1", by_canaries[1], runs, levels)
    record: Record = {"epsilon_1": max(single_curve)}
    canaries = max(by_canaries)
    for order in (2, 4):
        if canaries >= order:
            curve = compute_curve(f"wilson_{order}", by_canaries[canaries], runs, levels)
            record[f"epsilon_{order}"] = max(curve)
            record[f"gain_{order}"] = compute_gain(runs, single_curve, curve)
    return record


def compare_canaries(by_canaries: Mapping[int, Scores], levels: Level) -> list[Record]:
    """Returns an attack's lower bounds on epsilon, in the two panels of Figure 5.

    The panel "over K" has bounds from all runs. The panel "over n" has bounds from parts of the runs: with a
    single canary, and with the number of canaries K above 1 that is nearest to the root of the number of all
    runs, as Figure 3 has it.

    Args:
      by_canaries: Scores by the number of canaries in each run, of the same number of runs.
      levels: Delta and confidence of the bounds.
    """
    all_runs = len(next(iter(by_canaries.values())).scores)

    def compute_curves(canaries: int, numbers: Sequence[int]) -> dict[str, list[float]]:
        """Returns the curves of the methods that can be used with this number of canaries in each run."""
        usable = [name for name in _METHODS if canaries >= _find_method(name).canaries]
        scores = by_canaries[canaries]
        return {method: compute_curve(method, scores, numbers, levels) for method in usable}

    records = []
    for canaries in sorted(by_canaries):
        bounds = {
            method: curve[0] for method, curve in compute_curves(canaries, [all_runs]).items()
        }
        records.append({"panel": "over K", "x": canaries, "canaries": canaries, **bounds})

    numbers = choose_numbers_of_runs(all_runs)
    curves = {}
    if 1 in by_canaries:
        curves["single"] = compute_curve("wilson_1", by_canaries[1], numbers, levels)
    several = [canaries for canaries in by_canaries if canaries > 1]
    nearest = min(several, key=lambda canaries: abs(canaries - all_runs**0.5), default=1)
    if several:
        curves |= compute_curves(nearest, numbers)
    for place, runs in enumerate(numbers):
        bounds = {name: curve[place] for name, curve in curves.items()}
        records.append({"panel": "over n", "x": runs, "canaries": nearest, **bounds})
    return records


def choose_numbers_of_runs(runs: int) -> list[int]:
    """Returns the even numbers of runs at which a curve is computed, from MIN_RUNS to half of all runs.

    A curve's epsilon is the mean over random parts of all runs. The larger the parts, the more runs they
    share, and the less their mean evens out chance. So the curve ends at half.
    """
    most = max(runs // 2, 2)
    halves = np.geomspace(min(MIN_RUNS, most), most, _CURVE_POINTS) / 2
    return sorted({2 * round(half) for half in halves})


def compute_curve(method: str, scores: Scores, runs: Sequence[int], levels: Level) -> list[float]:
    """Returns a method's epsilon at each number of runs: its mean over random parts of all runs.

    `method` is a key of _METHODS. At the number of all runs there is a single part.
    """
    rng = np.random.default_rng(0)  # a fixed seed: a figure always shows the same numbers
    bound = _find_method(method).bound
    curve = []
    for count in runs:
        parts = 1 if count == len(scores.scores) else _PARTS
        epsilons = [bound(_draw_part(scores, count, rng), *levels).epsilon for _ in range(parts)]
        curve.append(float(np.mean(epsilons)))
    return curve


def _find_method(name: str) -> lifted.CanaryMethod:
    """Returns the method of a key of _METHODS."""
    return lifted.METHODS[name.replace("wilson", "lidp_wilson")]


def compute_gain(
    runs: Sequence[int], single: Sequence[float], several: Sequence[float]
) -> float | None:
    """Returns how many times fewer runs several canaries need than one, for the largest epsilon of both.

    Args:
      runs: The numbers of runs at which both curves are computed.
      single: Epsilon with a single canary, at each number of runs.
      several: Epsilon with several canaries, at each number of runs.

    Returns:
      The ratio of runs, above 1 if several canaries need fewer; None if a curve is 0 throughout.
    """
    level = min(max(single), max(several))
    if level <= 0:
        return None
    return _interpolate_runs(runs, single, level) / _interpolate_runs(runs, several, level)


def compute_mean(records: Sequence[Record], field: str) -> float | None:
    """Returns the harmonic mean of the gains in a field, as the paper averages them; None without any."""
    gains = [record[field] for record in records if record.get(field) is not None]
    return statistics.harmonic_mean(gains) if gains else None


def _draw_part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """Draws an even number of the runs without replacement; single canaries are in in half of them."""
    if scores.scores.shape[1] > 1:
        # In order, which makes the part of all runs the runs in their own order.
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        part = scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn])
        return concluded.read_coins(part)
    worlds = concluded.split_worlds(scores)
    return make_sets(*(rng.choice(world, count // 2, replace=False)[:, None] for world in worlds))


def _interpolate_runs(runs: Sequence[int], epsilons: Sequence[float], level: float) -> float:
    """Returns the fewest runs at which a curve of epsilons reaches a level.

    Chance may lower a point of the curve below an earlier point. So each epsilon is replaced by the largest
    up to it. Between points, epsilon is linear in the logarithm of the number of runs.
    """
    highest = np.maximum.accumulate(epsilons)
    reached = int(np.argmax(highest >= level))
    around = slice(max(reached - 1, 0), reached + 1)
    return math.exp(np.interp(level, highest[around], np.log(runs[around])))


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure from those of its cells that the store holds, and makes its table."""
    read, draw_figure, make_table = _DRAWINGS[sweep.name]
    records, missing = read(sweep, evidence)
    if not records:
        return Drawn([], missing)
    figures = []
    if draw_figure is not None:
        figures.append((sweep.name, draw_figure(sweep.title, records)))
    title = f"{sweep.name}: {sweep.title}"
    return Drawn(figures, missing, table=make_table(title, records))


def _read_answers(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records of the stored audits of the Gaussian mechanism, and how many are missing."""
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

    A method's field is its mean epsilon over seeds, with the fields _deviation and _error for the standard
    deviation and the mean's standard error. `gain_2` and `gain_4` are the means of orders 2 and 4 less that
    of order 1. `exact` is the exact epsilon, `window` the limit of the paper's thresholds (Errata L2).
    """
    # A canary is a unit vector: the mechanism is Gaussian-DP with mu = 1 / sigma.
    sigma = audit.mechanism().sigma
    exact = conversions.epsilon_from_mu(1 / sigma, audit.delta)
    window = gaussian_mechanism.window_limit(sigma, audit.delta)
    by_rdp = f"{panel}: epsilon {audit.epsilon:g} by RDP"
    record: Record = {
        "panel": panel,
        "heading": f"{by_rdp}, {exact:.3f} exact, {window:.3f} in the window",
        **audit._asdict(),
        "exact": exact,
        "window": window,
        "second": answer["second"],
        "fourth": answer["fourth"],
    }
    record["x"] = record[_X_AXES[panel][0]]
    for method, epsilons in answer["epsilons"].items():
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
    """Returns stored scores by attack and panel and by number of canaries, and how many are missing."""
    groups: dict[tuple[str, str], dict[int, Scores]] = {}
    for audit in sweep.audits():
        scores = evidence.held.scores(identity(audit.setting), audit.runs)
        if scores is not None:
            groups.setdefault((audit.series, audit.panel), {})[int(audit.x)] = scores
    return groups, len(sweep.cells) - sum(map(len, groups.values()))


def _read_gains(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns Table 1's entries, if both audits are stored, and how many audits are missing."""
    groups, missing = _read_scores(sweep, evidence)
    records = []
    for (attack, panel), by_canaries in groups.items():
        if len(by_canaries) > 1:
            entry = {"heading": "", "entry": f"{attack}, {panel}"}
            records.append(entry | compare_with_single(by_canaries, evidence.levels))
    return records, missing


def _read_bounds(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the bounds of Figure 5's attacks, and how many audits are missing."""
    groups, missing = _read_scores(sweep, evidence)
    # All audits of the figure share the model, the noise and the number of runs.
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
    """Draws Figure 3: epsilon over runs n, canaries K and dimension d, in a panel each.

    Each panel has the exact epsilon, and the largest that a single canary shows at the paper's thresholds.
    In the panel over n, audits with a single canary have separate lines.
    """

    def draw_panel(axis: Axes, panel: str, of_panel: Records) -> None:
        """Draws the methods and the limits of a panel."""
        single = [one for one in of_panel if panel == "over n" and one["canaries"] == 1]
        several = [one for one in of_panel if one not in single]
        plot_lines(axis, several, _METHODS)
        plot_lines(axis, single, _SINGLE)
        plot_lines(axis, several or single, _LIMITS, xlabel=_X_AXES[panel][1], xscale="log")

    panels = {}
    for record in records:
        panel = record["panel"]
        of_panel = _select(records, panel)
        heading = record["heading"].replace(", ", "\n", 1)
        panels[heading] = partial(draw_panel, panel=panel, of_panel=of_panel)
    return draw_panels(title, panels, (3.7, 2.9), ylabel=_BOUND_LABEL, legend_columns=4)


def draw_correlations(title: str, records: Records) -> Figure:
    """Draws Figure 4: gains over canaries K, and the dependence of detections over K and over dimension d.

    The bias is order 1's mean epsilon with K canaries less that with a single canary (equation 10). The gaps
    of moments have a line of slope -1 next to them: the paper's decay as 1/K and as 1/d (Errata L6).
    """
    over_canaries = _select(records, "over K")
    several = [record for record in over_canaries if record["canaries"] > 1]
    for single in over_canaries:
        if single["canaries"] == 1:
            several = [{**one, "bias": one["wilson_1"] - single["wilson_1"]} for one in several]
    look: dict[str, Any] = {"xlabel": _X_AXES["over K"][1], "xscale": "log"}
    panels = {"change of epsilon": partial(plot_lines, records=several, looks=_GAINS, **look)}
    for panel in ("over K", "over d"):
        known = [one for one in _select(records, panel) if one["second"] is not None]
        shown = [{**one, "slope": known[0]["second"] * known[0]["x"] / one["x"]} for one in known]
        if shown:  # an empty logarithmic axis would have no range
            look = {"xlabel": _X_AXES[panel][1], "xscale": "log", "yscale": "log"}
            name = f"dependence of detections {panel}"
            panels[name] = partial(plot_lines, records=shown, looks=_GAPS, **look)
    return draw_panels(title, panels, (3.7, 2.9), legend_columns=3)


def draw_bounds(title: str, records: Records) -> Figure:
    """Draws Figure 5: in a row for each attack, epsilon over runs next to epsilon over canaries K."""
    looks = {"single": _K_1, **_METHODS}
    panels = {}
    for attack in dict.fromkeys(record["attack"] for record in records):
        of_attack = [record for record in records if record["attack"] == attack]
        most = of_attack[-1]["canaries"]
        # With a tick at every number of runs, their labels would overlap.
        for panel, name, gap in (("over n", f"runs, K = {most}", 2), ("over K", "canaries K", 1)):
            shown = _select(of_attack, panel)
            ticks = [record["x"] for record in shown][::gap]
            look: dict[str, Any] = {"xscale": "log", "xticks": ticks, "xticklabels": ticks}
            look |= {"xlabel": name, "ylim": (0, None)}
            panels[f"{attack} {panel}"] = partial(plot_lines, records=shown, looks=looks, **look)
    layout: dict[str, Any] = {"ylabel": _BOUND_LABEL, "legend_columns": 5, "sharey": "row"}
    return draw_panels(records[0]["heading"], panels, (4, 2.4), across=2, **layout)


def _select(records: Records, panel: str) -> list[Record]:
    """Returns a panel's records."""
    return [record for record in records if record["panel"] == panel]


_AUDIT = [
    field("panel"),
    field("epsilon"),
    field("runs", "n", width=6),
    field("canaries", "K", width=5),
    field("dimension", "d", width=8),
]


def make_epsilons_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 3: each method's mean epsilon and its standard deviation over seeds."""
    columns = list(_AUDIT)
    for method, (head, *_) in _METHODS.items():
        columns.append(text_field(f"{method}_shown", head, 15))
        columns += [field(method), field(f"{method}_deviation")]
    return _make_table(title, columns, records, [_RULE, _NOTES])


def make_correlations_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 4: gains in epsilon at orders 2 and 4, and correlations of detections."""
    columns = [
        *_AUDIT,
        field("gain_2", "gain, order 2", number(".3f"), 15),
        field("gain_4", "gain, order 4", number(".3f"), 14),
        field("second", "|mu_2-mu_1^2|", number(".2e"), 14),
        field("fourth", "|mu_4-mu_2^2|", number(".2e"), 14),
    ]
    return _make_table(title, columns, records, [_RULE])


def make_gains_table(title: str, records: Records) -> OwnTable:
    """Makes Table 1 from the records of `compare_with_single`."""
    columns = [field("entry", "epsilon of", "{:.44}".format, 44, left=True)]
    for order, head in ((1, "K = 1"), (2, "2"), (4, "4")):
        columns.append(field(f"epsilon_{order}", head, _show_bound, 7, none="-"))
    means = f"{'mean':<65}"
    for key in ("gain_2", "gain_4"):
        columns.append(field(key, key.replace("_", " "), number(".2f"), 7, none="-"))
        mean = compute_mean(records, key)
        means += f"{'-' if mean is None else f'{mean:.2f}':>7}"
    return _make_table(title, columns, records, [means, _RULE, _NOTE_ON_GAINS])


def make_bounds_table(title: str, records: Records) -> OwnTable:
    """Makes the table of Figure 5: epsilon by attack, number of canaries and method."""
    columns = [field("attack", "epsilon of", width=40, left=True), field("canaries", "K", width=6)]
    for method, (head, *_) in _METHODS.items():
        columns.append(field(method, head, _show_bound, 8, none="-"))
    return _make_table(title, columns, _select(records, "over K"), [_RULE])


def _make_table(
    title: str, columns: Sequence[Column], records: Records, after: Sequence[str]
) -> OwnTable:
    """Makes a table whose sections have the records' headings."""
    layout: dict[str, Any] = {"before": [title], "after": after, "gap": ""}
    return own_table(columns, records, section=itemgetter("heading"), **layout)


_show_bound = partial(at_least, decimals=2)
# The functions that read a sweep's records, that draw them, and that make their table. Table 1 is no figure.
_DRAWINGS: dict[str, tuple[Any, Any, Any]] = {
    "lidp_figure_3": (_read_answers, draw_epsilons, make_epsilons_table),
    "lidp_figure_4": (_read_answers, draw_correlations, make_correlations_table),
    "lidp_table_1": (_read_gains, None, make_gains_table),
    "lidp_figure_5": (_read_bounds, draw_bounds, make_bounds_table),
}
