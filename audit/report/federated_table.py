"""Tables and JSON for audits of federated runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from audit.claims.accounting import Composition, epsilon_upper_bound, participant_upper_bound
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.results import result_fields
from audit.methods.estimate import Bound
from audit.report.bounds_table import bounds_table
from audit.report.table import at_least, at_most, format_table
from audit.written import Level, counted, show_level, write_json

RESULT = "federated.json"  # in a setting's folder


class FederatedAudit(NamedTuple):
    """An audit of federated runs.

    Attributes:
      runs: The conclusion from each run, with the upper bound for a canary.
      canary: The composition of a canary's rounds.
      client: The composition of a client's rounds.
      accuracies: The final models' accuracies; empty if they were not measured.
      together: The conclusion from all runs together; None for a single run, or if directions are not fresh.
    """

    runs: list[Conclusion]
    canary: Composition
    client: Composition
    accuracies: list[float]
    together: Conclusion | None = None


def _summarize_runs(runs: Sequence[Conclusion]) -> str:
    """Returns a text table with each method's epsilon: its mean and standard deviation over runs."""
    records = []
    # The bounds or estimates of one method from all runs.
    for run_findings in zip(*(run.rows() for run in runs), strict=True):
        epsilons = [finding.epsilon for finding in run_findings]
        mean = float(np.mean(epsilons))
        record = {
            "estimate or bound": run_findings[0].method,
            "mean": f"{mean:.3f}",
            "deviation": f"{np.std(epsilons):.3f}",
        }
        if isinstance(run_findings[0], Bound):
            record["mean"] = at_least(mean)
        records.append(record)
    title = f"{len(runs):,} runs: epsilon at {Level(runs[0].delta, runs[0].confidence)} per run"
    note = "each bound comes from one run; estimates are not bounds"
    return format_table(records, right=("mean", "deviation"), before=[title], after=[note])


def list_epsilons(audit: FederatedAudit) -> dict[str, tuple[float, str]]:
    """Returns {name: (epsilon, its rounds in words)}: upper bounds for a canary and for a client.

    The last entry, the analytical epsilon of the one-shot paper (Andrew et al., ICLR 2024), counts only one
    round, so it is not an upper bound.
    """
    delta = audit.runs[0].delta
    of_canary = participant_upper_bound(audit.canary, delta)
    of_client = participant_upper_bound(audit.client, delta)
    analytical = epsilon_upper_bound(audit.canary.noise_multiplier, insertions=1, delta=delta)
    return {
        "accounted, canary": (of_canary, counted(audit.canary.insertions, "round")),
        "accounted, client": (of_client, counted(audit.client.insertions, "round")),
        "analytical": (analytical, "the paper's, for one round"),
    }


def federated_table(audit: FederatedAudit) -> str:
    """Returns an audit as text: a table of estimates and bounds, and a table of the mechanism's epsilons."""
    first = audit.runs[0]
    sections = [bounds_table(first)]
    if len(audit.runs) > 1:
        sections = [_summarize_runs(audit.runs)]
    if audit.together is not None:  # from all runs
        sections.append(bounds_table(audit.together))
    # "epsilon at delta 1e-05" is one heading over two columns: a number, and a text such as "3 rounds".
    rest_of_heading = f"at delta {show_level(first.delta)}"
    records = [
        {"mechanism": name, "epsilon": at_most(epsilon), rest_of_heading: rounds}
        for name, (epsilon, rounds) in list_epsilons(audit).items()
    ]
    sections.append(format_table(records, right=["epsilon"]))
    if audit.accuracies:
        accuracy = f"accuracy: {np.mean(audit.accuracies):.4f}"
        if len(audit.accuracies) > 1:
            accuracy += f" +- {np.std(audit.accuracies):.4f}"
        sections.append(accuracy)
    return "\n\n".join(sections)


def federated_json(audit: FederatedAudit, about: dict[str, Any]) -> str:
    """Returns an audit as a JSON object on a single line; `about` supplies its first fields."""
    first = audit.runs[0]  # all runs have the same delta and confidence
    fields = {
        **about,
        "delta": first.delta,
        "confidence": first.confidence,
        "epsilon": {name: epsilon for name, (epsilon, _) in list_epsilons(audit).items()},
        "accuracies": audit.accuracies,
    }
    if audit.together is not None:
        fields["together"] = result_fields(audit.together)
    fields["runs"] = [result_fields(run) for run in audit.runs]
    return write_json(fields)
