"""The LiDP paper's figures in numbers: 80 columns, and CSV."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from audit.laws import conversions
from audit.report.table import Column, Table, at_least, number
from experiments.lidp import gains, gaussian_mechanism
from experiments.lidp.cells import LIFTED, MechanismAudit, MechanismFindings
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import OwnTable

HEADS = {"wilson_1": "order 1", "wilson_2": "order 2", "wilson_4": "order 4", LIFTED: "lifted"}
_X_FIELDS = {"over n": "runs", "over K": "canaries", "over d": "dimension"}
_AUDIT = (
    field("panel"),
    field("epsilon"),
    field("runs", "n", width=6),
    field("canaries", "K", width=5),
    field("dimension", "d", width=8),
)
_RULE = "-" * 80
_show_bound = partial(at_least, decimals=2)
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


def describe(panel: str, audit: MechanismAudit, findings: MechanismFindings) -> Record:
    """Returns an audit of the Gaussian mechanism as a record, for the tables and figures.

    A method's field is its mean epsilon over seeds. Its fields with _deviation and _error are their standard
    deviation, and the mean's standard error. `gain_2` and `gain_4` are the means of orders 2 and 4 less that
    of order 1. `exact` is the exact epsilon, `window` the limit of the paper's thresholds (Errata L2).
    """
    sigma = audit.mechanism().sigma
    # A canary is a unit vector: the mechanism is Gaussian-DP with mu = 1 / sigma.
    exact = conversions.epsilon_from_mu(1 / sigma, audit.delta)
    window = gaussian_mechanism.window_limit(sigma, audit.delta)
    by_rdp = f"{panel}: epsilon {audit.epsilon:g} by RDP"
    record: Record = {
        "panel": panel,
        "x": getattr(audit, _X_FIELDS[panel]),
        "heading": f"{by_rdp}, {exact:.3f} exact, {window:.3f} in the window",
        **audit._asdict(),
        "exact": exact,
        "window": window,
        "second": findings.second,
        "fourth": findings.fourth,
    }
    for method, epsilons in findings.epsilons.items():
        deviation = np.std(epsilons)
        record[method] = np.mean(epsilons)
        record[f"{method}_deviation"] = deviation
        record[f"{method}_error"] = deviation / np.sqrt(len(epsilons))
        record[f"{method}_shown"] = f"{record[method]:.3f} ({deviation:.3f})"
    for order in (2, 4):
        if f"wilson_{order}" in record:
            record[f"gain_{order}"] = record[f"wilson_{order}"] - record["wilson_1"]
    return record


def make_epsilons_table(name: str, title: str, records: Sequence[Record]) -> OwnTable:
    """Makes the table of Figure 3: each method's mean epsilon and its standard deviation over seeds."""
    columns = []
    for method, head in HEADS.items():
        columns.append(field(f"{method}_shown", head, width=15)._replace(key=None))
        columns += [field(method), field(f"{method}_deviation")]
    return _make_table(name, title, [*_AUDIT, *columns], records, [_RULE, _NOTES])


def make_correlations_table(name: str, title: str, records: Sequence[Record]) -> OwnTable:
    """Makes the table of Figure 4: gains in epsilon at orders 2 and 4, and correlations of detections."""
    columns = [
        field("gain_2", "gain, order 2", number(".3f"), 15),
        field("gain_4", "gain, order 4", number(".3f"), 14),
        field("second", "|mu_2-mu_1^2|", number(".2e"), 14),
        field("fourth", "|mu_4-mu_2^2|", number(".2e"), 14),
    ]
    return _make_table(name, title, [*_AUDIT, *columns], records, [_RULE])


def make_gains_table(name: str, title: str, records: Sequence[Record]) -> OwnTable:
    """Makes Table 1 from the records of `gains.compare_with_single`."""
    columns = [field("entry", "epsilon of", "{:.44}".format, 44, left=True)]
    for key, head in {"epsilon_1": "K = 1", "epsilon_2": "2", "epsilon_4": "4"}.items():
        columns.append(field(key, head, _show_bound, 7, none="-"))
    means = f"{'mean':<65}"
    for key in ("gain_2", "gain_4"):
        columns.append(field(key, key.replace("_", " "), number(".2f"), 7, none="-"))
        mean = gains.compute_mean(records, key)
        means += f"{'-' if mean is None else f'{mean:.2f}':>7}"
    return _make_table(name, title, columns, records, [means, _RULE, _NOTE_ON_GAINS])


def make_lifted_table(name: str, title: str, records: Sequence[Record]) -> OwnTable:
    """Makes the table of Figure 5 from its records: epsilon by attack, number of canaries and method."""
    columns = [
        field("attack", "epsilon of", width=40, left=True),
        field("canaries", "K", width=6),
    ]
    for method, head in HEADS.items():
        columns.append(field(method, head, _show_bound, 8, none="-"))
    over_canaries = [record for record in records if record["panel"] == "over K"]
    return _make_table(name, title, columns, over_canaries, [_RULE])


def _make_table(
    name: str, title: str, columns: list[Column], records: Sequence[Record], after: list[str]
) -> OwnTable:
    """Makes a table, 80 columns wide, whose sections have the records' headings."""
    heading = itemgetter("heading")
    table = Table(columns, records, heading, [f"{name}: {title}"], after, gap="", rule=80)
    return OwnTable(table.text(), table.csv())
