"""The tables of audits of federated runs, and their JSON."""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from audit.claims.accounting import Composition, epsilon_upper_bound, participant_upper_bound
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.results import claim_fields, finding_fields, result_fields
from audit.methods.estimate import Bound
from audit.report.bounds_table import (
    bounds_table,
    describe_claim,
    make_note,
    show_floor,
)
from audit.report.table import Column, Table, at_least, at_most
from audit.written import Level, counted, show_level, write_json

RESULT = "federated.json"  # in a setting's folder


class FederatedAudit(NamedTuple):
    """An audit of federated runs.

    Attributes:
      runs: the conclusion from each run's canaries, with the upper bound for a canary.
      canary: the composition of a canary's rounds.
      client: the composition of a client's rounds.
      accuracies: the accuracies of the final models; empty if they were not measured.
      together: the conclusion from all runs together; None for a single run or without fresh directions.
    """

    runs: list[Conclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]
    together: Conclusion | None = None


class _Epsilon(NamedTuple):
    """An epsilon of the mechanism at the audit's delta, and the rounds that it counts."""

    name: str
    epsilon: float
    rounds: str


def over_runs(runs: Sequence[Conclusion]) -> str:
    """Returns a text table with the mean and the standard deviation of each method's epsilon over runs.

    The mean of bounds is rounded down. An estimate's floor is that of the first run.
    """
    rows = []
    for findings in zip(*(run.rows() for run in runs), strict=True):
        first = findings[0]
        epsilons = [finding.epsilon for finding in findings]
        mean = float(np.mean(epsilons))
        row = {"method": first.method, "deviation": f"{np.std(epsilons):.3f}"}
        if isinstance(first, Bound):
            row |= {"mean": at_least(mean), "floor": "one bound per run"}
        else:
            row |= {"mean": f"{mean:.3f}", "floor": show_floor(first.noise_floor)}
        rows.append(row)
    columns = (
        Column(head="estimate or bound", value=itemgetter("method"), left=True),
        Column(head="mean", value=itemgetter("mean")),
        Column(head="deviation", value=itemgetter("deviation")),
        Column(head="floor", value=itemgetter("floor"), left=True),
    )
    head = f"{len(runs):,} runs: epsilon at {Level(runs[0].delta, runs[0].confidence)} per run"
    note = "estimates are not bounds; floor: mean (95% quantile) without a leak, for run 0"
    return Table(columns, rows, before=(head,), after=(note,)).text()


def upper_bounds(audit: FederatedAudit) -> list[_Epsilon]:
    """Returns the mechanism's epsilons: the accountant's upper bounds for a canary and for a client.

    The last is the one-shot paper's analytical epsilon (Andrew et al., ICLR 2024). It counts a single round
    and is not an upper bound.
    """
    delta = audit.runs[0].delta
    rows = []
    for name, participant in (("canary", audit.canary), ("client", audit.client)):
        epsilon = participant_upper_bound(participant, delta)
        rounds = counted(participant.insertions, "round")
        rows.append(_Epsilon(f"accounted, {name}", epsilon, rounds))
    analytical = epsilon_upper_bound(audit.canary.noise_multiplier, insertions=1, delta=delta)
    return [*rows, _Epsilon("analytical", analytical, "the paper's, for one round")]


def federated_table(audit: FederatedAudit) -> str:
    """Returns an audit as text: a table of its estimates and bounds, and one of the mechanism's epsilons.

    Several runs have means in the first table. A bound from all runs together comes between the tables.
    """
    first = audit.runs[0]
    columns = (
        Column(head="mechanism", value=attrgetter("name"), left=True),
        Column(head="epsilon", value=attrgetter("epsilon"), show=at_most),
        Column(head=f"at delta {show_level(first.delta)}", value=attrgetter("rounds"), left=True),
    )
    lines = [bounds_table(first), ""]
    if len(audit.runs) > 1:
        lines = [over_runs(audit.runs), ""]
    if audit.together is not None:
        bound = audit.together.assumption_free
        runs = f"{len(audit.runs):,} runs together"
        lines.append(f"{bound.method}: {runs} prove {at_least(bound.epsilon)} for any curve")
        lines += describe_claim(audit.together)
        lines += [make_note("verdict:", audit.together.verdict.headline), ""]
    lines.append(Table(columns, upper_bounds(audit)).text())
    if audit.accuracies:
        accuracy = f"accuracy: {np.mean(audit.accuracies):.4f}"
        if len(audit.accuracies) > 1:
            accuracy += f" +- {np.std(audit.accuracies):.4f}"
        lines += ["", accuracy]
    return "\n".join(lines)


def federated_json(audit: FederatedAudit, about: dict[str, Any]) -> str:
    """Returns an audit of federated runs as a JSON object on a single line, with the fields `about` first."""
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
        bound = audit.together.assumption_free
        fields["together"] = {**finding_fields(bound), **claim_fields(audit.together)}
    fields["runs"] = [result_fields(run) for run in audit.runs]
    return write_json(fields)
