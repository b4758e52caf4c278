"""Audits of one run, of several that are each concluded alone, and of federated runs: for people, in 80
columns, and for programs."""

import json
from typing import Any, NamedTuple

import numpy as np

from audit.claims.accounting import Composition, epsilon_upper_bound, participant_upper_bound
from audit.conclusions.one_run_conclusion import OneRunConclusion
from audit.conclusions.results import finding_fields
from audit.methods.estimate import Bound, Estimate
from audit.methods.method import NoiseFloor
from audit.methods.one_run_bounds import OF_COINS
from audit.report.table import Column, Table, at_least, at_most, number
from audit.runtime.progress import counted

RESULT = "federated.json"  # in a setting's folder
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
    Column(None, lambda row: row.epsilon, "epsilon", at_least, 8),
    Column(None, lambda row: row.mu, "mu", at_least, 6),
    Column(None, lambda row: row.counted, " counts", " {}".format, 30, left=True),
    Column(None, lambda row: row.assumes.word, "assumes", left=True),
)


def one_run_table(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """Estimates, bounds, and what both mean."""
    title = f"one run: epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    given = () if upper_bound is None else (f"{'upper bound':<16} {upper_bound:>8.3f} {'':<37} given",)
    bounds = Table(_OF_BOUND, conclusion.bounds, after=given, gap=" ", rule=80)
    notes = [*_notes(conclusion), *remarks(conclusion)]
    if conclusion.cosines is None:
        about = f"{conclusion.canaries:,} canaries, each in or out by a coin of its own"
        return "\n".join([title, about, "", bounds.text(), "", *notes])
    observed, unobserved, dimension = conclusion.cosines
    about = f"{len(observed):,} observed canaries; null: the cosine's exact law in R^{dimension:,}"
    if len(unobserved):
        numbers = f"{len(observed):,} observed canaries, {len(unobserved):,} unobserved"
        about = f"{numbers}; null: fitted to the unobserved"
    estimates = Table(_OF_ESTIMATE, conclusion.estimates, before=(title, about), gap=" ", rule=80)
    return "\n".join([estimates.text(), "", bounds.text(), "", *_ESTIMATES.splitlines(), *notes])


def floor_words(floor: NoiseFloor) -> str:
    """What an estimate shows where nothing leaks."""
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def one_run_json(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """One JSON object on one line: `estimates`, `bounds`, `normality`, `upper_bound` and what was given."""
    about: dict[str, Any] = {"canaries": conclusion.canaries}
    if conclusion.cosines is not None and conclusion.normality is not None:
        observed, unobserved, dimension = conclusion.cosines
        about = {
            "normality": conclusion.normality._asdict(),
            "observed": len(observed),
            "unobserved": len(unobserved),
            "dimension": dimension,
        }
    found: dict[str, Any] = {
        "estimates": [_estimate_fields(row) for row in conclusion.estimates],
        "bounds": [_fields(row) for row in conclusion.bounds],
        "upper_bound": upper_bound,
        **about,
        "coins": conclusion.coins,
    }
    return json.dumps(found)


def _estimate_fields(estimate: Estimate) -> dict[str, Any]:
    floor = estimate.noise_floor
    return {
        "method": estimate.method,
        "epsilon": estimate.epsilon,
        "delta": estimate.delta,
        "standard_error": estimate.standard_error,
        "noise_floor": {"mean": floor.mean, "quantile_95": floor.quantile_95, "audits": floor.audits},
        "canaries": estimate.n_in,
        "caveat": estimate.caveat,
    }


def _fields(bound: Bound) -> dict[str, Any]:
    values = {name: getattr(bound, name) for name in _BOUND}
    return {**values, "assumes": bound.assumes.text}


def remarks(conclusion: OneRunConclusion) -> list[str]:
    """A line each for cosines of the wrong sign, for no bound, and on normality."""
    found = []
    if conclusion.deviations < -_CLEARLY:
        found.append("cosines are lower than the null's: did you mean minus the displacement?")
    if not conclusion.bounds:
        found.append("no bound: save coins (scores, presence), or 40 and more pairs of both kinds")
    tested = conclusion.normality
    if tested is None:
        return found
    level = "not rejected" if tested.rejected_at is None else f"rejected at {tested.rejected_at:.3g}"
    values = f"Anderson-Darling {tested.statistic:.3f}, 5%: {tested.critical[2]:.3f}"
    return [*found, f"normal cosines: {level} ({values})"]


def _notes(conclusion: OneRunConclusion) -> list[str]:
    ranked = sorted(conclusion.bounds, key=lambda row: row.method in OF_COINS)
    assumed = dict.fromkeys(row.assumes for row in ranked)
    notes = [f"{assumption.word}: {assumption.note}" for assumption in assumed if not assumption.gaussian]
    return [*notes, _GAUSSIAN] if any(assumption.gaussian for assumption in assumed) else notes


def over_runs(runs: list[OneRunConclusion]) -> str:
    """The mean and deviation over runs of each estimate and bound."""
    estimates = list(zip(*(run.estimates for run in runs), strict=True))
    bounds = list(zip(*(run.bounds for run in runs), strict=True))
    floors = [floor_words(row[0].noise_floor) for row in estimates] + ["a bound a run"] * len(bounds)
    pairs = zip([*estimates, *bounds], floors, strict=True)
    rows = [(row[0].method, [one.epsilon for one in row], floor) for row, floor in pairs]
    columns = (
        Column(None, lambda row: row[0], "estimate or bound", width=24, left=True),
        Column(None, lambda row: np.mean(row[1]), "mean", number(".3f"), 9),
        Column(None, lambda row: np.std(row[1]), "deviation", number(".3f"), 9),
        Column(None, lambda row: row[2], "  floor", "  {}".format, left=True),
    )
    head = f"{len(runs):,} runs: epsilon at delta {runs[0].delta:g}, confidence {runs[0].confidence:g} a run"
    note = "\nestimates are no bounds; floor: mean (95% quantile) where nothing leaks, of run 0"
    return Table(columns, rows, before=(head,), after=(note,), gap=" ", rule=80).text()


class FederatedAudit(NamedTuple):
    """What each run's canaries say, the steps of a canary and of a client, measured accuracies, and what all
    runs prove together, where their directions are fresh."""

    runs: list[OneRunConclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]
    together: Bound | None = None


class Upper(NamedTuple):
    """A name, an epsilon, what it stands on, and whether it is an upper bound."""

    name: str
    epsilon: float
    reason: str
    is_bound: bool = True


def upper_bounds(found: FederatedAudit) -> list[Upper]:
    """epsilon as it is accounted, of a canary and of a client, and the paper's analytical value."""
    delta, rows = found.runs[0].delta, []
    for name, who in (("canary", found.canary), ("client", found.client)):
        times, rate = counted(who.insertions, "round"), who.sampling_rate
        taken = times if rate == 1 else f"{times}, each with probability {rate:g}"
        rows.append(Upper(f"accounted, {name}", participant_upper_bound(who, delta), taken))
    once = epsilon_upper_bound(found.canary.noise_multiplier, 1, delta)
    return [*rows, Upper("analytical", once, "the paper's: of one round", is_bound=False)]


def federated_table(found: FederatedAudit) -> str:
    """Estimates and bounds of a run, or their means over runs, and the mechanism's epsilon."""
    first = found.runs[0]
    columns = (
        Column(None, lambda row: row.name, "mechanism", width=24, left=True),
        Column(None, lambda row: row.epsilon, "epsilon", at_most, 9),
        Column(None, lambda row: row.reason, f"  at delta {first.delta:g}", "  {}".format, left=True),
    )
    lines = [one_run_table(first, None) if len(found.runs) == 1 else over_runs(found.runs), ""]
    if found.together is not None:
        epsilon, count = at_least(found.together.epsilon), f"{len(found.runs):,} runs together"
        lines += [f"{found.together.method}: {count} prove {epsilon}, whatever the curve", ""]
    lines.append(Table(columns, upper_bounds(found), gap=" ", rule=80).text())
    if found.accuracies:
        measured = np.array(found.accuracies)
        spread = f" +- {measured.std():.4f}" if len(measured) > 1 else ""
        lines += ["", f"accuracy: {measured.mean():.4f}{spread}"]
    return "\n".join(lines)


def federated_json(found: FederatedAudit, about: dict[str, Any]) -> str:
    """One JSON object on one line."""
    accounted = {row.name: row.epsilon for row in upper_bounds(found)}
    runs = [json.loads(one_run_json(run, None)) for run in found.runs]
    levels = {"delta": found.runs[0].delta, "confidence": found.runs[0].confidence}
    values = {**about, **levels, "epsilon": accounted, "compositions": [found.canary, found.client]}
    values |= {"accuracies": found.accuracies}
    values |= {} if found.together is None else {"together": finding_fields(found.together)}
    return json.dumps({**values, "runs": runs})
