"""Table 1 and Figure 5 in numbers: 80 columns, and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.lidp import gains
from experiments.sweeps.sweep import OwnTable

SINGLE, ORDER_2, ORDER_4, LIFTED = "lidp_wilson_1", "lidp_wilson_2", "lidp_wilson_4", "lifted"
METHODS = {SINGLE: "order 1", ORDER_2: "order 2", ORDER_4: "order 4", LIFTED: "lifted"}
_NOTE = """\
K = 1: one canary with order 1; 2 and 4: orders, with several canaries
gain: how many times fewer runs with canaries reach the larger bound that both
      reach, one canary with order 1; of means over random parts of the runs
mean: harmonic, of entries in which both sides prove something"""


class Gain(NamedTuple):
    """An entry of Table 1: the mean epsilon at most runs with one canary, and by order with several, and the
    gain of each order, None where one side proves nothing."""

    label: str
    single: float
    several: Mapping[str, float]
    by_order: Mapping[str, float | None]


class Lifted(NamedTuple):
    """An attack's audits: epsilon by method at each number of canaries, from all runs, and over the runs:
    with one canary (None where that is not there) and by method with so many."""

    attack: str
    over_canaries: Mapping[int, Mapping[str, float]]
    runs: Sequence[int]
    single: Sequence[float] | None
    canaries: int | None
    several: Mapping[str, Sequence[float]]


def of_gains(name: str, title: str, found: Sequence[Gain]) -> OwnTable:
    """Table 1."""
    lines = [f"{name}: {title}", _line("epsilon of", "K = 1", "2", "4", "gain 2", "gain 4"), "-" * 80]
    rows: list[list[object]] = [["entry", "epsilon_1", "epsilon_2", "epsilon_4", "gain_2", "gain_4"]]
    for one in found:
        several = [one.several.get(order) for order in (ORDER_2, ORDER_4)]
        ratios = [one.by_order.get(order) for order in (ORDER_2, ORDER_4)]
        lines.append(_line(one.label, *map(_number, (one.single, *several, *ratios))))
        rows.append([one.label, one.single, *several, *ratios])
    means = [_number(mean(found, order)) for order in (ORDER_2, ORDER_4)]
    lines += [_line("mean", "", "", "", *means), "-" * 80, _NOTE]
    return OwnTable("\n".join(lines), _as_csv(rows))


def of_epsilons(name: str, title: str, found: Sequence[Lifted]) -> OwnTable:
    """Figure 5's panels over K."""
    lines = [f"{name}: {title}", _line("", *METHODS.values()), "-" * 80]
    rows: list[list[object]] = [["attack", "canaries", *METHODS]]
    for one in found:
        for canaries, epsilons in one.over_canaries.items():
            values = [epsilons.get(method) for method in METHODS]
            lines.append(_line(f"{one.attack}, K = {canaries}", *map(_number, values)))
            rows.append([one.attack, canaries, *values])
    return OwnTable("\n".join([*lines, "-" * 80]), _as_csv(rows))


def mean(found: Sequence[Gain], order: str) -> float | None:
    """The harmonic mean of an order's gains, where there are any."""
    known = [gain for one in found if (gain := one.by_order.get(order)) is not None]
    return gains.harmonic_mean(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _line(label: str, *cells: str) -> str:
    """A line of 80 columns."""
    return f"{label[:44]:<44}" + "".join(f"{cell:>7}" for cell in cells)


def _as_csv(rows: Sequence[Sequence[object]]) -> bytes:
    """Six digits a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows])
    return text.getvalue().encode()
