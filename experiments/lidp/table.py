"""The Gaussian mechanism's audits beside the paper's words: 80 columns, and CSV."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from audit.statistics import conversions
from experiments.lidp import protocol
from experiments.lidp.audits import LIFTED, MechanismAudit, MechanismFindings
from experiments.lidp.claims import CLAIMS
from experiments.sweeps.sweep import OwnTable

_METHODS = ("wilson_1", "wilson_2", "wilson_4", LIFTED)
_NOTES = """\
mean (standard deviation) over seeds of log((p_1 - delta) / p_0) with Wilson's
limits of order 1, 2 and 4 at a threshold tuned on other runs (as in the paper;
asymptotic), and of `lifted`, which holds at any number of runs and takes its
threshold from a twentieth of the runs that it is given
exact: epsilon of the Gaussian mechanism; window: what the paper's thresholds
allow with one canary and any number of runs"""


class MechanismPoint(NamedTuple):
    """An audit and what it found."""

    asked: MechanismAudit
    found: MechanismFindings


Panel = tuple[str, list[MechanismPoint]]


def epsilons(figure: str, title: str, panels: Sequence[Panel]) -> OwnTable:
    """Figure 3's epsilons, of panels that have points."""
    there = [panel for panel in panels if panel[1]]
    lines = [f"{figure}: {title}", _line("n", "K", "d", ["order 1", "order 2", "order 4", "lifted"])]
    for name, points in there:
        lines += ["-" * 80, _limits(name, points[0].asked)]
        for asked, found in points:
            lines.append(_row(asked, [_spread(found.epsilons.get(method)) for method in _METHODS]))
        lines += _claimed(figure, name)
    return OwnTable("\n".join([*lines, "-" * 80, _NOTES]), _as_csv(there))


def correlations(figure: str, title: str, panels: Sequence[Panel]) -> OwnTable:
    """Figure 4's gains of orders over order 1, and correlations, of panels that have points."""
    there = [panel for panel in panels if panel[1]]
    header = ["gain, order 2", "gain, order 4", "|mu_2-mu_1^2|", "|mu_4-mu_2^2|"]
    lines = [f"{figure}: {title}", _line("n", "K", "d", header)]
    for name, points in there:
        lines += ["-" * 80, _limits(name, points[0].asked)]
        for asked, found in points:
            first = np.mean(found.epsilons["wilson_1"])
            orders = [found.epsilons.get(name) for name in _METHODS[1:3]]
            gains = ["" if one is None else f"{np.mean(one) - first:.3f}" for one in orders]
            moments = ["" if one is None else f"{one:.2e}" for one in (found.second, found.fourth)]
            lines.append(_row(asked, [*gains, *moments]))
        lines += _claimed(figure, name)
    lines += ["-" * 80, *_claimed(figure, "gains")]
    return OwnTable("\n".join(lines), _as_csv(there))


def _limits(name: str, asked: MechanismAudit) -> str:
    """A panel's heading."""
    exact = conversions.epsilon_from_mu(1 / asked.mechanism().sigma, asked.delta)
    cap = protocol.limit(asked._replace(canaries=1).mechanism(), asked.delta)
    return f"{name}: epsilon {asked.epsilon:g} by RDP, {exact:.3f} exact, {cap:.3f} in the window"


def _claimed(figure: str, panel: str) -> list[str]:
    """The paper's words on a panel, in a line."""
    claim = CLAIMS.get((figure, panel, None))
    return [] if claim is None else [f"  the paper (Section {claim.section}): {claim.says}"]


def _row(asked: MechanismAudit, cells: Sequence[str]) -> str:
    """An audit's line."""
    return _line(f"{asked.runs}", f"{asked.canaries}", f"{asked.dimension}", cells)


def _line(runs: str, canaries: str, dimension: str, cells: Sequence[str]) -> str:
    """Cells at their columns."""
    numbers = "".join(f"{cell:>14}" for cell in cells)
    return f"{runs:>6} {canaries:>5} {dimension:>8} {numbers}".rstrip()


def _spread(values: list[float] | None) -> str:
    """Mean and standard deviation in short."""
    return "" if values is None else f"{np.mean(values):.3f} ({np.std(values):.3f})"


def _as_csv(panels: Sequence[Panel]) -> bytes:
    """A row an audit and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("runs", "canaries", "dimension", "epsilon", "seeds", "delta", "confidence")
    writer.writerow(["panel", *names, "method", "mean", "deviation", "second", "fourth"])
    for name, points in panels:
        for asked, found in points:
            for method, values in found.epsilons.items():
                numbers = (np.mean(values), np.std(values), found.second, found.fourth)
                shown = ["" if number is None else f"{number:.6g}" for number in numbers]
                writer.writerow([name, *asked, method, *shown])
    return text.getvalue().encode()
