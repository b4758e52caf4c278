"""The tables of audits of federated runs, each concluded alone, and their JSON for programs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from audit.claims.accounting import Composition, epsilon_upper_bound, participant_upper_bound
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.results import claim_fields, finding_fields, one_run_fields
from audit.methods.estimate import Bound
from audit.methods.method import Assumption
from audit.report.bounds_table import (
    BoundRow,
    bounds_table,
    describe_claim,
    show_floor,
    show_verdict,
)
from audit.report.table import at_least
from audit.written import Level, counted, show_level, write_json

RESULT = "federated.json"  # in a setting's folder
_RULE = "-" * 80


class OverRuns(NamedTuple):
    """A method's epsilons over runs that are each concluded alone.

    Attributes:
      method: the method's name.
      epsilons: the epsilon of each run.
      floor: for an estimate, the values that it shows where nothing leaks, as text, for the first run; empty
        for a bound.
    """

    method: str
    epsilons: list[float]
    floor: str

    def show_mean(self) -> str:
        """Returns the mean epsilon as text: that of bounds rounded down, that of estimates to the nearest."""
        mean = float(np.mean(self.epsilons))
        return f"{mean:.3f}" if self.floor else at_least(mean)

    def show_deviation(self) -> str:
        """Returns the standard deviation of epsilon over runs as text."""
        return f"{np.std(self.epsilons):.3f}"


def collect_over_runs(runs: Sequence[Conclusion]) -> list[OverRuns]:
    """Returns a row for each method with its epsilon in every run: estimates first, then bounds.

    All runs must have the same methods in the same order. An estimate's floor is that of the first run.
    """
    rows = []
    for findings in zip(*(run.rows() for run in runs), strict=True):
        first = findings[0]
        floor = "" if isinstance(first, Bound) else show_floor(first.noise_floor)
        rows.append(OverRuns(first.method, [finding.epsilon for finding in findings], floor))
    return rows


def over_runs(runs: Sequence[Conclusion]) -> str:
    """Returns a text table with the mean and the deviation of each method's epsilon over runs.

    An estimate's floor is the mean and the 95% quantile of the values that it has where nothing leaks, in the
    first run. Bounds have no floor: their rows tell that each run has its own bound.
    """
    lines = [
        f"{len(runs):,} runs: epsilon at {Level(runs[0].delta, runs[0].confidence)} a run",
        f"{'estimate or bound':<24} {'mean':>9} {'deviation':>9}   floor",
        _RULE,
    ]
    for row in collect_over_runs(runs):
        numbers = f"{row.show_mean():>9} {row.show_deviation():>9}"
        lines.append(f"{row.method:<24} {numbers}   {row.floor or 'a bound a run'}")
    note = "estimates are no bounds; floor: mean (95% quantile) where nothing leaks, of run 0"
    return "\n".join([*lines, "", note])


class FederatedAudit(NamedTuple):
    """An audit of federated runs.

    Attributes:
      runs: the conclusion from each run's canaries, held against what a canary leaks at most.
      canary: the composition of the rounds in which a canary takes part.
      client: the composition of the rounds in which a client takes part.
      accuracies: the accuracies of the final models; empty where they were not measured.
      together: the conclusion from all runs together; None unless there are several, and every run draws
        fresh directions.
    """

    runs: list[Conclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]
    together: Conclusion | None = None


def upper_bounds(audit: FederatedAudit) -> list[BoundRow]:
    """Returns the mechanism's epsilons at the audit's delta.

    First come the accountant's upper bounds for a canary and for a client. Last comes the one-shot paper's
    analytical epsilon (Andrew et al., ICLR 2024), which counts a single round and is no upper bound.
    """
    delta = audit.runs[0].delta  # the same for all runs
    rows = []
    for name, participant in (("canary", audit.canary), ("client", audit.client)):
        rounds = counted(participant.insertions, "round")
        epsilon = participant_upper_bound(participant, delta)
        rows.append(_make_row(f"accounted, {name}", epsilon, rounds)._replace(sign="≤"))
    analytical = epsilon_upper_bound(audit.canary.noise_multiplier, insertions=1, delta=delta)
    return [*rows, _make_row("analytical", analytical, "the paper's: of one round")]


def _make_row(name: str, epsilon: float, reason: str) -> BoundRow:
    """Returns the row of an epsilon that follows from the mechanism, with what it rests on."""
    return BoundRow(name, name, epsilon, None, Assumption(reason, reason, reason))


def federated_table(audit: FederatedAudit) -> str:
    """Returns an audit as text: a table of what its runs show, and a table of the mechanism's epsilons.

    The first table has the estimates and bounds of the only run, or their means over several runs. If all
    runs prove a bound together, it comes between the tables, with the test of the claim and the verdict. The
    models' accuracy, if measured, comes last.
    """
    lines = [bounds_table(audit.runs[0]) if len(audit.runs) == 1 else over_runs(audit.runs), ""]
    if audit.together is not None:
        bound = audit.together.assumption_free
        runs = f"{len(audit.runs):,} runs together"
        lines.append(f"{bound.method}: {runs} prove {at_least(bound.epsilon)}, whatever the curve")
        lines += [*describe_claim(audit.together), show_verdict(audit.together), ""]
    level = show_level(audit.runs[0].delta)
    lines += [f"{'mechanism':<24} {'epsilon':>9}   at delta {level}", _RULE]
    for row in upper_bounds(audit):
        lines.append(f"{row.name:<24} {row.show_epsilon():>9}   {row.assumes.word}")
    if audit.accuracies:
        accuracy = f"accuracy: {np.mean(audit.accuracies):.4f}"
        if len(audit.accuracies) > 1:
            accuracy += f" +- {np.std(audit.accuracies):.4f}"
        lines += ["", accuracy]
    return "\n".join(lines)


def federated_json(audit: FederatedAudit, about: dict[str, Any]) -> str:
    """Returns an audit of federated runs as a JSON object on a single line.

    Args:
      audit: the audit.
      about: further fields, which come first.
    """
    first = audit.runs[0]  # all runs have its delta and its confidence
    fields = {
        **about,
        "delta": first.delta,
        "confidence": first.confidence,
        "epsilon": {upper.name: upper.epsilon for upper in upper_bounds(audit)},
        # From these the accountant's upper bounds can be computed again.
        "compositions": [audit.canary, audit.client],
        "accuracies": audit.accuracies,
    }
    if audit.together is not None:
        bound = audit.together.assumption_free
        fields["together"] = {**finding_fields(bound), **claim_fields(audit.together)}
    fields["runs"] = [one_run_fields(run) for run in audit.runs]
    return write_json(fields)
