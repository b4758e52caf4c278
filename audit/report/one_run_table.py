"""One run's estimates and bounds for people, in 80 columns, and for programs."""

import dataclasses
import json
from typing import Any

from audit.report.table import Column, Table, lower, number
from audit.statistics.method import GAUSSIAN_CURVE
from audit.statistics.one_run_bounds import OF_COINS, OneRunBound
from audit.statistics.one_run_conclusion import OneRunConclusion
from audit.statistics.one_shot import EstimateFloor

_CLEARLY = 4  # standard errors below the null
_ESTIMATES = """\
estimates are no bounds; error: standard error if canaries are independent;
floor: mean (95% quantile) where nothing leaks"""
_BOUND = ("method", "epsilon", "mu", "delta", "confidence", "assumes", "counted")  # in JSON
_GAUSSIAN = "Gaussian: and a Gaussian trade-off curve"


_OF_ESTIMATE = (
    Column(None, lambda row: row.method, "estimate", width=24, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", number(".3f"), 9),
    Column(None, lambda row: row.standard_error, "error", number(".3f"), 9),
    Column(None, lambda row: floor_words(row.noise_floor), "  floor", "  {}".format, left=True),
)
_OF_BOUND = (
    Column(None, lambda row: row.method, "bound", width=16, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", lower(), 8),
    Column(None, lambda row: row.mu, "mu", lower(), 6),
    Column(None, lambda row: row.counted, " counts", " {}".format, 30, left=True),
    Column(None, lambda row: _assumes(row), "assumes", left=True),
)


def one_run_table(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """Estimates, bounds, and what both mean."""
    observed, unobserved, dimension = conclusion.cosines
    out = f", {len(unobserved):,} unobserved" if len(unobserved) else ""
    null = "fitted to the unobserved" if len(unobserved) else f"the cosine's exact law in R^{dimension:,}"
    title = f"one run: epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    about = f"{len(observed):,} observed canaries{out}; null: {null}"
    estimates = Table(_OF_ESTIMATE, conclusion.estimates, before=(title, about), gap=" ", rule=80)
    given = () if upper_bound is None else (f"{'upper bound':<16} {upper_bound:>8.3f} {'':<37} given",)
    bounds = Table(_OF_BOUND, conclusion.bounds, after=given, gap=" ", rule=80)
    notes = [*_ESTIMATES.splitlines(), *_notes(conclusion), *remarks(conclusion)]
    return "\n".join([estimates.text(), "", bounds.text(), "", *notes])


def floor_words(floor: EstimateFloor) -> str:
    """What an estimate shows where nothing leaks."""
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def one_run_json(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """One JSON object on one line: `estimates`, `bounds`, `normality`, `upper_bound` and what was given."""
    observed, unobserved, dimension = conclusion.cosines
    found: dict[str, Any] = {
        "estimates": [
            dataclasses.asdict(row) | {"noise_floor": row.noise_floor._asdict()}
            for row in conclusion.estimates
        ],
        "bounds": [{name: getattr(row, name) for name in _BOUND} for row in conclusion.bounds],
        "upper_bound": upper_bound,
        "normality": conclusion.normality._asdict(),
        "observed": len(observed),
        "unobserved": len(unobserved),
        "dimension": dimension,
        "coins": conclusion.coins,
    }
    return json.dumps(found)


def remarks(conclusion: OneRunConclusion) -> list[str]:
    """A line each for cosines of the wrong sign, for no bound, and on normality."""
    found = []
    if conclusion.deviations < -_CLEARLY:
        found.append("cosines are lower than the null's: did you mean minus the displacement?")
    if not conclusion.bounds:
        found.append("no bound: save coins (scores, presence), or 40 and more pairs of both kinds")
    tested = conclusion.normality
    level = "not rejected" if tested.rejected_at is None else f"rejected at {tested.rejected_at:.3g}"
    found.append(
        f"normal cosines: {level} (Anderson-Darling {tested.statistic:.3f}, 5%: {tested.critical[2]:.3f})"
    )
    return found


def _assumes(row: OneRunBound) -> str:
    """A word for what a bound assumes."""
    return GAUSSIAN_CURVE.word if row.gaussian else row.canaries.word


def _notes(conclusion: OneRunConclusion) -> list[str]:
    """What the bounds' assumptions mean."""
    assumed = dict.fromkeys(
        row.canaries for row in sorted(conclusion.bounds, key=lambda row: row.method in OF_COINS)
    )
    notes = [f"{one.word}: {one.note}" for one in assumed]
    return [*notes, _GAUSSIAN] if any(row.gaussian for row in conclusion.bounds) else notes
