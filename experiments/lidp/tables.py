"""The LiDP paper's figures in numbers, beside its words: 80 columns, and CSV."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from audit.laws import conversions
from audit.report.table import Column, Table, at_least, number
from experiments.lidp import gains, gaussian_mechanism
from experiments.lidp.cells import LIFTED, MechanismAudit, MechanismFindings
from experiments.lidp.gains import METHODS, ORDER_2, ORDER_4, Gain, Lifted
from experiments.lidp.sweep import CLAIMS
from experiments.sweeps.records import Record, field, make_csv
from experiments.sweeps.sweep import OwnTable

_RULE = "-" * 80
_show_bound = partial(at_least, decimals=2)
# Methods' heads in the tables of the Gaussian mechanism.
_HEADS = {"wilson_1": "order 1", "wilson_2": "order 2", "wilson_4": "order 4", LIFTED: "lifted"}
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


class MechanismPoint(NamedTuple):
    """An audit of the Gaussian mechanism, its panel and its findings."""

    panel: str
    audit: MechanismAudit
    findings: MechanismFindings

    def x(self) -> int:
        """Returns the audit's place on its panel's x axis: the runs n, the canaries K, or the dimension d."""
        match self.panel:
            case "over n":
                return self.audit.runs
            case "over K":
                return self.audit.canaries
        return self.audit.dimension

    def mean(self, method: str) -> float:
        """Returns a method's mean epsilon over the seeds."""
        return float(np.mean(self.findings.epsilons[method]))

    def gain(self, method: str) -> float | None:
        """Returns a method's mean epsilon less order 1's; None where the audit lacks the method."""
        if method not in self.findings.epsilons:
            return None
        return self.mean(method) - self.mean("wilson_1")

    def limits(self) -> tuple[float, float]:
        """Returns (the mechanism's exact epsilon, the limit of the paper's window of thresholds).

        The limit is the largest epsilon that audits with a single canary show, from any number of runs. It is
        less than the exact epsilon, as the paper's thresholds lie between the scores' 10% and 90% quantiles
        (Errata L2).
        """
        sigma = self.audit.mechanism().sigma
        delta = self.audit.delta
        # Adding or removing a canary, a unit vector, moves the sum by 1. So with noise of deviation sigma the
        # mechanism is Gaussian-DP with mu = 1 / sigma.
        exact = conversions.epsilon_from_mu(1 / sigma, delta)
        return exact, gaussian_mechanism.window_limit(sigma, delta)


def make_epsilons_table(figure: str, points: Sequence[MechanismPoint]) -> OwnTable:
    """Makes the table of Figure 3: each method's mean epsilon and its standard deviation over seeds.

    Args:
      figure: The sweep's name.
      points: The rows.
    """
    columns = [field(method, head, width=14) for method, head in _HEADS.items()]
    records = []
    for point in points:
        record = _describe_point(point)
        for method, values in point.findings.epsilons.items():
            record[method] = f"{np.mean(values):.3f} ({np.std(values):.3f})"
        records.append(record)
    title = "audits of the Gaussian mechanism"
    table = _make_points_table(figure, title, columns, records, [_RULE, _NOTES])
    return OwnTable(table.text(), _make_points_csv(points))


def make_correlations_table(figure: str, points: Sequence[MechanismPoint]) -> OwnTable:
    """Makes the table of Figure 4: gains in epsilon at orders 2 and 4, and correlations of detections.

    The order of Wilson's intervals is the highest moment mu_j that they use; mu_j is the probability that j
    canaries of a run are all detected. A gain is the mean epsilon at an order less that at order 1. If
    detections were independent, mu_2 - mu_1^2 and mu_4 - mu_2^2 would be 0.

    Args:
      figure: The sweep's name.
      points: The rows.
    """
    columns = [
        field("gain_2", "gain, order 2", number(".3f"), 14),
        field("gain_4", "gain, order 4", number(".3f"), 14),
        field("second", "|mu_2-mu_1^2|", number(".2e"), 14),
        field("fourth", "|mu_4-mu_2^2|", number(".2e"), 14),
    ]
    records = []
    for point in points:
        record = _describe_point(point)
        record["gain_2"] = point.gain("wilson_2")
        record["gain_4"] = point.gain("wilson_4")
        record["second"] = point.findings.second
        record["fourth"] = point.findings.fourth
        records.append(record)
    # What the paper says of gains is about no single panel: it is below all of them.
    lines_below = [_RULE, *_quote_claim(figure, "gains")]
    title = "bias, variance and correlation"
    table = _make_points_table(figure, title, columns, records, lines_below)
    return OwnTable(table.text(), _make_points_csv(points))


def make_gains_table(name: str, title: str, entries: Sequence[Gain]) -> OwnTable:
    """Makes Table 1: epsilon with one canary and with several, and how many times fewer runs several need.

    Args:
      name: The sweep's name.
      title: The title above the table.
      entries: The rows.
    """
    records: list[Record] = []
    for entry in entries:
        record = {
            "entry": entry.label,
            "epsilon_1": entry.single,
            "epsilon_2": entry.several.get(ORDER_2),
            "epsilon_4": entry.several.get(ORDER_4),
            "gain_2": entry.by_order.get(ORDER_2),
            "gain_4": entry.by_order.get(ORDER_4),
        }
        records.append(record)
    gain = number(".2f")
    columns = [
        field("entry", "epsilon of", _shorten_label, 44, left=True),
        field("epsilon_1", "K = 1", _show_bound, 7, none="-"),
        field("epsilon_2", "2", _show_bound, 7, none="-"),
        field("epsilon_4", "4", _show_bound, 7, none="-"),
        field("gain_2", "gain 2", gain, 7, none="-"),
        field("gain_4", "gain 4", gain, 7, none="-"),
    ]
    means = ""  # of the gains, below the last two columns, which have 7 characters each
    for order in (ORDER_2, ORDER_4):
        mean = gains.compute_mean(entries, order)
        text = "-" if mean is None else f"{mean:.2f}"
        means += f"{text:>7}"
    # 65 characters: the label's 44, and three columns of epsilon.
    after = [f"{'mean':<65}{means}", _RULE, _NOTE_ON_GAINS]
    table = _make_table(name, title, columns, records, after)
    return OwnTable(table.text(), table.csv())


def make_lifted_table(name: str, title: str, attacks: Sequence[Lifted]) -> OwnTable:
    """Makes the table of Figure 5's panels over K: epsilon by attack, number of canaries and method.

    Args:
      name: The sweep's name.
      title: The title above the table.
      attacks: The attacks' bounds; each attack and number of canaries is a row.
    """
    columns = [
        field("label", "", _shorten_label, 44, left=True)._replace(key=None),
        field("attack"),
        field("canaries"),
    ]
    for method, head in METHODS.items():
        columns.append(field(method, head, _show_bound, 7, none="-"))
    records = []
    for attack in attacks:
        for canaries, epsilons in attack.over_canaries.items():
            label = f"{attack.attack}, K = {canaries}"
            records.append(
                {"label": label, "attack": attack.attack, "canaries": canaries, **epsilons}
            )
    table = _make_table(name, title, columns, records, [_RULE])
    return OwnTable(table.text(), table.csv())


def _describe_point(point: MechanismPoint) -> Record:
    """Returns the fields that the tables of Figures 3 and 4 share.

    The heading of a panel's section has the paper's epsilon (an upper bound by Renyi DP), the exact epsilon,
    and the largest epsilon that the paper's window of thresholds lets an audit with one canary show.
    """
    exact, window = point.limits()
    by_rdp = f"{point.panel}: epsilon {point.audit.epsilon:g} by RDP"
    return {
        "panel": point.panel,
        "heading": f"{by_rdp}, {exact:.3f} exact, {window:.3f} in the window",
        "runs": point.audit.runs,
        "canaries": point.audit.canaries,
        "dimension": point.audit.dimension,
    }


def _make_points_table(
    figure: str,
    title: str,
    columns: list[Column],
    records: Sequence[Record],
    after: list[str],
) -> Table[Record]:
    """Makes the table of a figure of the Gaussian mechanism.

    Args:
      figure: The sweep's name.
      title: The title above the table.
      columns: The table's columns after n, K and d.
      records: The rows; each panel is a section, with the paper's words on it below.
      after: Lines below the table.
    """
    all_columns = [
        field("runs", "n", width=6),
        field("canaries", "K", width=6),
        field("dimension", "d", width=9),
        columns[0]._replace(width=15),  # columns have no gap: one more character parts it from d
        *columns[1:],
    ]
    return replace(
        _make_table(figure, title, all_columns, records, after),
        section=itemgetter("heading"),
        closing=lambda record: _quote_claim(figure, record["panel"]),
    )


def _make_points_csv(points: Sequence[MechanismPoint]) -> bytes:
    """Makes the CSV of audits of the Gaussian mechanism, with a row for each audit and method."""
    records = []
    for point in points:
        # As text, floats keep all their digits; a table's columns would show six.
        audit = {name: str(value) for name, value in point.audit._asdict().items()}
        for method, epsilons in point.findings.epsilons.items():
            record = {
                "panel": point.panel,
                **audit,
                "method": method,
                "mean": np.mean(epsilons),
                "deviation": np.std(epsilons),
                # |mu_2 - mu_1^2| and |mu_4 - mu_2^2|, for moments mu_j of detections: the same in all rows
                # of an audit.
                "second": point.findings.second,
                "fourth": point.findings.fourth,
            }
            records.append(record)
    return make_csv(records)


def _make_table(
    name: str, title: str, columns: list[Column], records: Sequence[Record], after: list[str]
) -> Table[Record]:
    """Makes a table, 80 columns wide, with its name and title above and the lines `after` below."""
    return Table(columns, records, before=[f"{name}: {title}"], after=after, gap="", rule=80)


def _quote_claim(figure: str, panel: str) -> list[str]:
    """Returns what the paper says of a figure's panel, as a list of one line; [] if it says nothing."""
    claim = CLAIMS.get((figure, panel, None))  # None: the words hold at every x of the panel
    if claim is None:
        return []
    return [f"  the paper (Section {claim.section}): {claim.says}"]


def _shorten_label(label: str) -> str:
    """Returns the first 44 characters of a label."""
    return label[:44]
