"""Tables of audits of one run, for people in 80 columns, and their JSON for programs.

There are tables of one run, of several runs that are each concluded alone, and of federated runs.
"""

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
_BOUND_FIELDS = ("method", "epsilon", "mu", "delta", "confidence", "assumes", "counted")  # in JSON
_GAUSSIAN = "Gaussian: and a Gaussian trade-off curve"


_ESTIMATE_COLUMNS = (
    Column(None, lambda row: row.method, "estimate", width=24, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", number(".3f"), 9),
    Column(None, lambda row: row.standard_error, "error", number(".3f"), 9),
    Column(None, lambda row: floor_words(row.noise_floor), "  floor", "  {}".format, left=True),
)
_BOUND_COLUMNS = (
    Column(None, lambda row: row.method, "bound", width=16, left=True),
    Column(None, lambda row: row.epsilon, "epsilon", at_least, 8),
    Column(None, lambda row: row.mu, "mu", at_least, 6),
    Column(None, lambda row: row.counted, " counts", " {}".format, 30, left=True),
    Column(None, lambda row: row.assumes.word, "assumes", left=True),
)


def one_run_table(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """Returns the table of a run's estimates and bounds, and what both mean."""
    title = f"one run: epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    given = []
    if upper_bound is not None:
        given.append(f"{'upper bound':<16} {upper_bound:>8.3f} {'':<37} given")
    bounds = Table(_BOUND_COLUMNS, conclusion.bounds, after=given, gap=" ", rule=80).text()
    notes = [*_explain_words(conclusion), *remarks(conclusion)]
    if conclusion.cosines is None:
        canaries = f"{conclusion.canaries:,} canaries, each in or out by a coin of its own"
        return "\n".join([title, canaries, "", bounds, "", *notes])

    observed, unobserved, dimension = conclusion.cosines
    canaries = (
        f"{len(observed):,} observed canaries; null: the cosine's exact law in R^{dimension:,}"
    )
    if len(unobserved):
        counts = f"{len(observed):,} observed canaries, {len(unobserved):,} unobserved"
        canaries = f"{counts}; null: fitted to the unobserved"
    before = (title, canaries)
    estimates = Table(
        _ESTIMATE_COLUMNS, conclusion.estimates, before=before, gap=" ", rule=80
    ).text()
    return "\n".join([estimates, "", bounds, "", *_ESTIMATES.splitlines(), *notes])


def floor_words(floor: NoiseFloor) -> str:
    """Returns what an estimate shows where nothing leaks."""
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def one_run_json(conclusion: OneRunConclusion, upper_bound: float | None) -> str:
    """Returns a JSON object on one line: `estimates`, `bounds`, `upper_bound`, and what was given.

    Of cosines this is their numbers, their dimension and their `normality`.
    """
    given: dict[str, Any] = {"canaries": conclusion.canaries}
    if conclusion.cosines is not None and conclusion.normality is not None:
        observed, unobserved, dimension = conclusion.cosines
        given = {
            "normality": conclusion.normality._asdict(),
            "observed": len(observed),
            "unobserved": len(unobserved),
            "dimension": dimension,
        }
    fields: dict[str, Any] = {
        "estimates": [_make_estimate_fields(row) for row in conclusion.estimates],
        "bounds": [_make_bound_fields(row) for row in conclusion.bounds],
        "upper_bound": upper_bound,
        **given,
        "coins": conclusion.coins,
    }
    return json.dumps(fields)


def _make_estimate_fields(estimate: Estimate) -> dict[str, Any]:
    floor = estimate.noise_floor
    return {
        "method": estimate.method,
        "epsilon": estimate.epsilon,
        "delta": estimate.delta,
        "standard_error": estimate.standard_error,
        "noise_floor": {
            "mean": floor.mean,
            "quantile_95": floor.quantile_95,
            "audits": floor.audits,
        },
        "canaries": estimate.n_in,
        "caveat": estimate.caveat,
    }


def _make_bound_fields(bound: Bound) -> dict[str, Any]:
    values = {name: getattr(bound, name) for name in _BOUND_FIELDS}
    values["assumes"] = bound.assumes.text
    return values


def remarks(conclusion: OneRunConclusion) -> list[str]:
    """Returns a line each for cosines of the wrong sign, for no bound, and on normality."""
    lines = []
    if conclusion.deviations < -_CLEARLY:
        lines.append("cosines are lower than the null's: did you mean minus the displacement?")
    if not conclusion.bounds:
        lines.append("no bound: save coins (scores, presence), or 40 and more pairs of both kinds")
    test = conclusion.normality
    if test is not None:
        level = "not rejected"
        if test.rejected_at is not None:
            level = f"rejected at {test.rejected_at:.3g}"
        values = f"Anderson-Darling {test.statistic:.3f}, 5%: {test.critical[2]:.3f}"
        lines.append(f"normal cosines: {level} ({values})")
    return lines


def _explain_words(conclusion: OneRunConclusion) -> list[str]:
    """Returns what the words on assumptions mean, those of bounds by coins and the Gaussian curve last."""
    ranked = sorted(conclusion.bounds, key=lambda bound: bound.method in OF_COINS)
    assumptions = dict.fromkeys(bound.assumes for bound in ranked)
    notes = [
        f"{assumption.word}: {assumption.note}"
        for assumption in assumptions
        if not assumption.gaussian
    ]
    if any(assumption.gaussian for assumption in assumptions):
        notes.append(_GAUSSIAN)
    return notes


def over_runs(runs: list[OneRunConclusion]) -> str:
    """Returns the table of the mean and deviation over runs of each estimate and bound."""
    rows = []
    for place, estimate in enumerate(runs[0].estimates):
        epsilons = [run.estimates[place].epsilon for run in runs]
        rows.append((estimate.method, epsilons, floor_words(estimate.noise_floor)))
    for place, bound in enumerate(runs[0].bounds):
        epsilons = [run.bounds[place].epsilon for run in runs]
        rows.append((bound.method, epsilons, "a bound a run"))
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
    """An audit of federated runs.

    Attributes:
      runs: what each run's canaries say.
      canary: the steps that a canary takes part in.
      client: the steps that any client takes part in.
      accuracies: of the final models, where they were measured.
      together: what all runs prove together, where their directions are fresh.
    """

    runs: list[OneRunConclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]
    together: Bound | None = None


class Upper(NamedTuple):
    """An epsilon of the mechanism.

    Attributes:
      name: of the epsilon.
      epsilon: at the audit's delta.
      reason: what it rests on.
      is_bound: whether it is an upper bound.
    """

    name: str
    epsilon: float
    reason: str
    is_bound: bool = True


def upper_bounds(audit: FederatedAudit) -> list[Upper]:
    """Returns epsilon as it is accounted, of a canary and of a client, and the paper's analytical value."""
    delta = audit.runs[0].delta
    rows = []
    for name, participant in (("canary", audit.canary), ("client", audit.client)):
        rounds = counted(participant.insertions, "round")
        rate = participant.sampling_rate
        if rate != 1:
            rounds += f", each with probability {rate:g}"
        epsilon = participant_upper_bound(participant, delta)
        rows.append(Upper(f"accounted, {name}", epsilon, rounds))
    epsilon = epsilon_upper_bound(audit.canary.noise_multiplier, 1, delta)
    rows.append(Upper("analytical", epsilon, "the paper's: of one round", is_bound=False))
    return rows


def federated_table(audit: FederatedAudit) -> str:
    """Returns the tables of a run, or of means over runs, and of the mechanism's epsilon."""
    first = audit.runs[0]
    columns = (
        Column(None, lambda row: row.name, "mechanism", width=24, left=True),
        Column(None, lambda row: row.epsilon, "epsilon", at_most, 9),
        Column(
            None, lambda row: row.reason, f"  at delta {first.delta:g}", "  {}".format, left=True
        ),
    )
    table = one_run_table(first, None) if len(audit.runs) == 1 else over_runs(audit.runs)
    lines = [table, ""]
    if audit.together is not None:
        epsilon = at_least(audit.together.epsilon)
        runs = f"{len(audit.runs):,} runs together"
        lines += [f"{audit.together.method}: {runs} prove {epsilon}, whatever the curve", ""]
    lines.append(Table(columns, upper_bounds(audit), gap=" ", rule=80).text())
    if audit.accuracies:
        accuracies = np.array(audit.accuracies)
        accuracy = f"accuracy: {accuracies.mean():.4f}"
        if len(accuracies) > 1:
            accuracy += f" +- {accuracies.std():.4f}"
        lines += ["", accuracy]
    return "\n".join(lines)


def federated_json(audit: FederatedAudit, about: dict[str, Any]) -> str:
    """Returns a JSON object on one line, with what `about` says of the audit."""
    first = audit.runs[0]
    fields = {
        **about,
        "delta": first.delta,
        "confidence": first.confidence,
        "epsilon": {upper.name: upper.epsilon for upper in upper_bounds(audit)},
        "compositions": [audit.canary, audit.client],
        "accuracies": audit.accuracies,
    }
    if audit.together is not None:
        fields["together"] = finding_fields(audit.together)
    fields["runs"] = [json.loads(one_run_json(run, None)) for run in audit.runs]
    return json.dumps(fields)
