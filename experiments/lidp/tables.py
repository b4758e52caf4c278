"""The LiDP paper's figures in numbers, beside its words: 80 columns, and CSV."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np

from audit.report.table import Column, Table, number
from audit.statistics import conversions
from experiments.lidp import gains, gaussian_mechanism
from experiments.lidp.cells import LIFTED, MechanismAudit, MechanismFindings
from experiments.lidp.gains import METHODS, ORDER_2, ORDER_4, Gain, Lifted
from experiments.lidp.sweep import CLAIMS
from experiments.sweeps.sweep import OwnTable

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


class MechanismPoint(NamedTuple):
    """An audit of the Gaussian mechanism, its panel and what it found."""

    panel: str
    audit: MechanismAudit
    found: MechanismFindings

    def x(self) -> int:
        """Where it stands in its panel."""
        runs, canaries, dimension, *_ = self.audit
        return {"over n": runs, "over K": canaries, "over d": dimension}[self.panel]

    def mean(self, method: str) -> float:
        """A method's mean epsilon over the seeds."""
        return float(np.mean(self.found.epsilons[method]))

    def gain(self, method: str) -> float | None:
        """What a method's mean epsilon is above order 1's; None where it is not there."""
        return self.mean(method) - self.mean("wilson_1") if method in self.found.epsilons else None

    def limits(self) -> tuple[float, float]:
        """(epsilon of the mechanism, what the paper's window of thresholds allows)."""
        sigma, delta = self.audit.mechanism().sigma, self.audit.delta
        return conversions.epsilon_from_mu(1 / sigma, delta), gaussian_mechanism.limit(sigma, delta)


def of_epsilons(figure: str, points: Sequence[MechanismPoint]) -> OwnTable:
    """Figure 3's epsilons."""
    heads = {"wilson_1": "order 1", "wilson_2": "order 2", "wilson_4": "order 4", LIFTED: "lifted"}

    def shown(values: list[float]) -> str:
        return f"{np.mean(values):.3f} ({np.std(values):.3f})"

    def column(method: str, head: str) -> Column:
        return Column(None, lambda one: one.found.epsilons.get(method), head, shown, 14)

    columns, after = [column(*one) for one in heads.items()], [_RULE, _NOTES]
    return _of_points(figure, "audits of the Gaussian mechanism", columns, points, after)


def of_correlations(figure: str, points: Sequence[MechanismPoint]) -> OwnTable:
    """Figure 4's gains of orders over order 1, and correlations."""
    columns = [
        Column(None, lambda one: one.gain("wilson_2"), "gain, order 2", number(".3f"), 14),
        Column(None, lambda one: one.gain("wilson_4"), "gain, order 4", number(".3f"), 14),
        Column(None, lambda one: one.found.second, "|mu_2-mu_1^2|", number(".2e"), 14),
        Column(None, lambda one: one.found.fourth, "|mu_4-mu_2^2|", number(".2e"), 14),
    ]
    after = [_RULE, *_claimed(figure, "gains")]
    return _of_points(figure, "bias, variance and correlation", columns, points, after)


def of_gains(name: str, title: str, found: Sequence[Gain]) -> OwnTable:
    """Table 1."""
    columns = [
        _label("epsilon of", "entry", lambda one: one.label),
        _number("epsilon_1", "K = 1", lambda one: one.single),
        _number("epsilon_2", "2", lambda one: one.several.get(ORDER_2)),
        _number("epsilon_4", "4", lambda one: one.several.get(ORDER_4)),
        _number("gain_2", "gain 2", lambda one: one.by_order.get(ORDER_2)),
        _number("gain_4", "gain 4", lambda one: one.by_order.get(ORDER_4)),
    ]
    means = [gains.mean(found, order) for order in (ORDER_2, ORDER_4)]
    shown = "".join("      -" if mean is None else f"{mean:>7.2f}" for mean in means)
    table = _table(name, title, columns, found, [f"{'mean':<65}{shown}", _RULE, _NOTE_ON_GAINS])
    return OwnTable(table.text(), table.csv())


def of_lifted(name: str, title: str, found: Sequence[Lifted]) -> OwnTable:
    """Figure 5's panels over K."""
    columns = [
        _label("", None, lambda row: f"{row['attack']}, K = {row['canaries']}"),
        *(Column(key, itemgetter(key)) for key in ("attack", "canaries")),
        *(_number(method, head, methodcaller("get", method)) for method, head in METHODS.items()),
    ]
    rows = [
        {"attack": one.attack, "canaries": canaries, **epsilons}
        for one in found
        for canaries, epsilons in one.over_canaries.items()
    ]
    table = _table(name, title, columns, rows, [_RULE])
    return OwnTable(table.text(), table.csv())


def _of_points(
    figure: str, title: str, columns: list[Column], points: Sequence[MechanismPoint], after: list[str]
) -> OwnTable:
    def heading(point: MechanismPoint) -> str:
        by_rdp = f"{point.panel}: epsilon {point.audit.epsilon:g} by RDP"
        return "{}, {:.3f} exact, {:.3f} in the window".format(by_rdp, *point.limits())

    places = [
        Column(None, lambda one: one.audit.runs, "n", width=6),
        Column(None, lambda one: one.audit.canaries, "K", width=6),
        Column(None, lambda one: one.audit.dimension, "d", width=9),
        columns[0]._replace(width=15),
    ]
    text = _table(figure, title, [*places, *columns[1:]], points, after)
    text = replace(text, section=heading, closing=lambda one: _claimed(figure, one.panel))
    keys = ("panel", *MechanismAudit._fields, "method", "mean", "deviation", "second", "fourth")
    rows = [
        dict(zip(keys, (panel, *map(str, audit), method, np.mean(one), np.std(one), *found[1:]), strict=True))
        for panel, audit, found in points
        for method, one in found.epsilons.items()
    ]
    return OwnTable(text.text(), Table([Column(key, itemgetter(key)) for key in keys], rows).csv())


def _table(name: str, title: str, columns: list[Column], rows: Sequence[Any], after: list[str]) -> Table[Any]:
    return Table(columns, rows, before=[f"{name}: {title}"], after=after, gap="", rule=80)


def _claimed(figure: str, panel: str) -> list[str]:
    claim = CLAIMS.get((figure, panel, None))
    return [] if claim is None else [f"  the paper (Section {claim.section}): {claim.says}"]


def _label(head: str, key: str | None, value: Callable[[Any], str]) -> Column:
    return Column(key, value, head, lambda text: text[:44], 44, left=True)


def _number(key: str, head: str, value: Callable[[Any], float | None]) -> Column:
    return Column(key, value, head, number(".2f"), 7, none="-")
