"""A federated audit for people, in 80 columns, and for programs."""

import json
from typing import Any, NamedTuple

import numpy as np

from audit.progress import counted
from audit.report.one_run_table import one_run_json, one_run_table
from audit.report.over_runs import over_runs
from audit.report.table import Column, Table, upper
from audit.statistics.accounting import Composition, epsilon_upper_bound, participant_upper_bound
from audit.statistics.one_run_conclusion import OneRunConclusion

RESULT = "federated.json"  # in a setting's folder


class FederatedAudit(NamedTuple):
    """What each run's canaries say, the steps that count for a canary and for a client, and the runs'
    accuracies that were measured."""

    runs: list[OneRunConclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]


class Upper(NamedTuple):
    """A name, an epsilon, what it stands on, and whether it is an upper bound."""

    name: str
    epsilon: float
    reason: str
    is_bound: bool = True


def upper_bounds(found: FederatedAudit) -> list[Upper]:
    """epsilon as it is accounted, of a canary and of a client, and the paper's analytical value."""
    delta = found.runs[0].delta
    rows = [
        Upper(f"accounted, {name}", participant_upper_bound(who, delta), _participation(who))
        for name, who in (("canary", found.canary), ("client", found.client))
    ]
    once = epsilon_upper_bound(found.canary.noise_multiplier, 1, delta)
    return [*rows, Upper("analytical", once, "the paper's: of one round", is_bound=False)]


def federated_table(found: FederatedAudit) -> str:
    """Estimates and bounds of a run, or their means over runs, and the mechanism's epsilon."""
    first = found.runs[0]
    columns = (
        Column(None, lambda row: row.name, "mechanism", width=24, left=True),
        Column(None, lambda row: row.epsilon, "epsilon", upper(), 9),
        Column(None, lambda row: row.reason, f"  at delta {first.delta:g}", "  {}".format, left=True),
    )
    lines = [one_run_table(first, None) if len(found.runs) == 1 else over_runs(found.runs), ""]
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
    counted_steps = {"compositions": [found.canary, found.client]}
    values = {**about, **levels, "epsilon": accounted, **counted_steps, "accuracies": found.accuracies}
    return json.dumps({**values, "runs": runs})


def _participation(who: Composition) -> str:
    """1 round; 100 rounds, each with probability 0.05."""
    times = counted(who.insertions, "round")
    return times if who.sampling_rate == 1 else f"{times}, each with probability {who.sampling_rate:g}"
