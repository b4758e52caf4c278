"""Federated audits beside the paper's tables: 80 columns, and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from audit.statistics.accounting import epsilon_upper_bound
from audit.statistics.one_shot import OneShotEstimate
from experiments.one_shot.claims import PRINTED
from experiments.one_shot.federated import QUANTILES, FederatedRun, Observation, SplitQuantiles
from experiments.one_shot.trainings import Trainings
from experiments.sweeps.sweep import OwnTable

_ESTIMATES = """\
estimate (its error) as the paper prints it, from fits to both worlds' cosines:
no bound. in-sample: the paper's lower value, the best of all thresholds: no
bound either. *: above the accounted epsilon by more than its error"""
_HEADS = ("estimate", "in-sample") * 2


def of_observations(
    name: str,
    asked: Trainings,
    found: Sequence[FederatedRun],
    plain: Mapping[float, float | None],
    delta: float,
) -> OwnTable:
    """A row a noise multiplier, in the shape of Tables 2, 3 and 5, and the paper's rows."""
    lines = [f"{name}: {asked.label}", _about(asked, found, delta)]
    lines.append(f"{'':<16}{'all iterates':>24}{'final model':>24}{'accuracy':>16}")
    lines.append(_line("noise", "analytical", *_HEADS, "with", "without"))
    lines.append("-" * 80)
    for one in found:
        bare = plain.get(one.noise)
        lines.append(_audit_line(one, f"{one.analytical:.4g}", _share(one.accuracy), _share(bare)))
    lines += [_floors(found[0]), "-" * 80, f"the paper, {asked.counterpart}:"]
    for row in PRINTED[asked.counterpart]:
        numbers = (f"{row.all:,g}", f"{row.lower_all:g}", f"{row.final:g}", f"{row.lower_final:g}")
        lines.append(_line(f"{row.noise:g}", f"{row.analytical:g}", *numbers))
    return OwnTable("\n".join([*lines, "-" * 80, _ESTIMATES]), _as_csv(asked, found, plain))


def of_repetitions(name: str, asked: Trainings, found: Sequence[FederatedRun], delta: float) -> OwnTable:
    """A row a noise multiplier and number of repetitions, as Figures 2 and 3 show them."""
    lines = [f"{name}: {asked.label}", _about(asked, found, delta)]
    lines.append(f"{'':<16}{'all iterates':>24}{'final model':>24}")
    lines.append(_line("noise", "accounted", *_HEADS, "times"))
    lines.append("-" * 80)
    lines += [_audit_line(one, f"{one.accounted:.4g}", f"{one.repetitions}") for one in found]
    lines += [_floors(found[0]), "-" * 80, _ESTIMATES]
    return OwnTable("\n".join(lines), _as_csv(asked, found, {}))


def of_densities(name: str, found: Sequence[tuple[Trainings, Sequence[FederatedRun]]]) -> OwnTable:
    """The final model's cosines and whether they are normal, in the shape of Table 4."""
    lines = [f"{name}: cosines with the final model, in units of 1/sqrt(d)"]
    lines.append(f"{'':<16}{'noise':>9}{'times':>7}{'mean':>9}{'deviation':>11}{'A^2':>8}  normal")
    lines.append("-" * 80)
    rows: list[list[object]] = [["clients", "noise", "repetitions", "mean", "deviation", "a_squared"]]
    for asked, audits in found:
        for one in audits:
            values, tested = one.final.cosines.observed * asked.dimension**0.5, one.final.normality
            level = tested.rejected_at
            says = "not rejected" if level is None else f"rejected at {level:g}"
            numbers = f"{values.mean():>9.2f}{values.std():>11.3f}{tested.statistic:>8.3f}"
            lines.append(f"{asked.label:<16}{one.noise:>9.3g}{one.repetitions:>7}{numbers}  {says}")
            row = [asked.label, one.noise, one.repetitions, float(values.mean()), float(values.std())]
            rows.append([*row, tested.statistic])
    note = "normal: Anderson and Darling's test (A^2) of the canaries that are in"
    return OwnTable("\n".join([*lines, "-" * 80, note]), _written(rows))


def of_splits(name: str, found: Sequence[SplitQuantiles], words: str, delta: float) -> OwnTable:
    """Quantiles of estimates, all canaries in one run or over several."""
    lines = [f"{name}: {words}, delta {delta:.3g}"]
    quantiles = "".join(f"{one:>8g}" for one in QUANTILES)
    lines += [f"{'noise':<7}{'observed':<9}{'canaries in':<13}{quantiles} analytical", "-" * 80]
    rows: list[list[object]] = [["noise", "observed", "canaries", *map(str, QUANTILES)]]
    for one in found:
        upper = epsilon_upper_bound(one.noise, 1, delta)
        for place, values in (("one run", one.one), ("several runs", one.several)):
            numbers = "".join(f"{value:>8.4g}" for value in values)
            lines.append(f"{one.noise:<7.3g}{one.observe:<9}{place:<13}{numbers} {upper:>10.4g}")
            rows.append([one.noise, one.observe, place, *map(float, values)])
    note = "columns: quantiles over experiments of the estimate, which is no bound"
    return OwnTable("\n".join([*lines, "-" * 80, note]), _written(rows))


def _about(asked: Trainings, found: Sequence[FederatedRun], delta: float) -> str:
    """How many canaries, rounds and clients."""
    observed, unobserved, _ = found[0].every.cosines
    setting = asked.setting
    who = f"{len(observed):,} + {len(unobserved):,} canaries"
    return f"{who}, {setting.rounds:,} x {setting.cohort} clients, delta {delta:.3g}"


def _audit_line(one: FederatedRun, upper: str, *rest: str) -> str:
    """An audit's row."""
    mark = "*" if one.exceeds else ""
    every = f"{mark}{_estimate(one.every.fitted)}", f"{one.every.in_sample:.3f}"
    final = _estimate(one.final.fitted), f"{one.final.in_sample:.3f}"
    return _line(f"{one.noise:.3g}", upper, *every, *final, *rest)


def _floors(one: FederatedRun) -> str:
    """What the estimates show where nothing leaks."""
    floors = (view.fitted.noise_floor for view in (one.every, one.final))
    every, final = (f"{floor.mean:.2f} ({floor.quantile_95:.2f})" for floor in floors)
    return _line("floor", "mean (95%)", every, "", final)


def _estimate(row: OneShotEstimate) -> str:
    """An estimate and its error."""
    digits = 0 if row.epsilon >= 1000 else 1 if row.epsilon >= 10 else 2
    return f"{row.epsilon:,.{digits}f} ({row.standard_error:,.{digits}f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(noise: str, upper: str, *cells: str) -> str:
    """Cells at their columns."""
    widths = (15, 10, 14, 10, 7, 8)
    numbers = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
    return f"{noise:<6}{upper:>10}{numbers}".rstrip()


def _as_csv(asked: Trainings, found: Sequence[FederatedRun], plain: Mapping[float, float | None]) -> bytes:
    """A row a training and observation."""
    head = [
        "clients",
        "noise",
        "repetitions",
        "analytical",
        "accounted",
        "observed",
        "fitted",
        "error",
        "floor",
    ]
    rows: list[list[object]] = [
        [*head, "floor_95", "equal_variance", "in_sample", "a_squared", "accuracy", "accuracy_without"]
    ]
    for one in found:
        for name, view in (("all", one.every), ("final", one.final)):
            start = [asked.label, one.noise, one.repetitions, one.analytical, one.accounted, name]
            rows.append([*start, *_numbers(view), one.accuracy, plain.get(one.noise)])
    return _written(rows)


def _numbers(view: Observation) -> list[float]:
    """An observation's numbers."""
    row = view.fitted
    floor = row.noise_floor
    values = [row.epsilon, row.standard_error, floor.mean, floor.quantile_95]
    return [*values, view.equal_variance.epsilon, view.in_sample, view.normality.statistic]


def _written(rows: Sequence[Sequence[object]]) -> bytes:
    """Six digits a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows])
    return text.getvalue().encode()
