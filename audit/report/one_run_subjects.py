"""A one-run audit's facts for a page, read from a file of cosines or from a federated run in a store, without
a library that trains."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from audit import zoo
from audit.errors import InputError, require
from audit.progress import counted
from audit.report import federated_table, over_runs
from audit.report.federated_table import RESULT, FederatedAudit, Upper
from audit.report.one_run_page import OneRunSubject, null_of
from audit.report.subjects import AskedLevels
from audit.settings.federated import FINAL, FederatedSetting
from audit.statistics.accounting import Composition
from audit.statistics.one_run_conclusion import OneRunConclusion
from audit.storage import files
from audit.storage.store import Store

_UNKNOWN_THREAT = (
    "The cosines come from elsewhere: this page knows neither the training nor who inserted the canaries. "
    "The bounds hold for the training that made them, where their assumptions hold of it."
)
_SEEN = {
    "final": "It sees the final model only, and takes its cosine with each canary's direction.",
    "weights": "It sees the final weights only, and takes their cosine with each canary's direction.",
    "all": "It sees every round's model, and takes the largest cosine of a round's move over rounds.",
    "means": "It sees every round's noisy mean, and takes the largest cosine over rounds.",
}


def of_cosines(
    name: str, source: Path, conclusion: OneRunConclusion, upper_bound: float | None
) -> OneRunSubject:
    """The audit of one run's cosines from a file; the upper bound on epsilon where it is known."""
    facts = {"Audited": name, "Canaries": null_of(conclusion)}
    upper = [] if upper_bound is None else [Upper("upper bound", upper_bound, "as given")]
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    kept = {"Scores": source.name, "SHA-256 of the scores' file": checksum}
    return OneRunSubject("run", name, facts, [_UNKNOWN_THREAT], [conclusion], upper, kept)


def of_federated(
    setting: FederatedSetting, found: FederatedAudit, data: str, folder: str, config: str
) -> OneRunSubject:
    """The audit of federated runs: from where their clients are, and the folder that keeps them."""
    row = zoo.federated_tasks().get(setting.model)
    facts = {
        "Model": row.description if row else setting.model,
        "Clients": _participation(setting),
        "A client's training": f"{counted(setting.client_epochs, 'epoch')} of mini-batches of "
        f"{setting.batch_size}, learning rate {setting.client_learning_rate:g}",
        "Server": f"learning rate {setting.learning_rate:g}, momentum {setting.momentum:g}",
        "DP-FedAvg": _noise(setting),
        "Canaries": f"{setting.canaries:,}, each in or out by a coin, in "
        f"{counted(setting.repetitions, 'round')} each; {null_of(found.runs[0])}",
        "Runs": f"{len(found.runs):,}",
        **_accuracy(found.accuracies),
    }
    title = f"federated {setting.model}, {setting.observe}, seed {setting.seed}"
    threats = [
        "Canary clients send random directions as long as the clipping norm, and take part like others.",
        _SEEN[setting.observe],
        "It knows neither the noise nor who else took part in a round.",
        "The upper bound counts the rounds that a canary takes part in; neighbours differ by one client.",
    ]
    kept = {"Setting": folder, "Seed": str(setting.seed), "Data": data}
    upper = federated_table.upper_bounds(found)
    return OneRunSubject(f"s{folder}", title, facts, threats, found.runs, upper, kept, config)


def of_folder(folder: Path, levels: AskedLevels) -> OneRunSubject:
    """The audit that a federated run's folder in a store keeps; raises InputError where it keeps none that
    can be read."""
    store = Store.at(folder)
    content = files.read(folder / RESULT)
    mend = "start the same ./run.sh federated again"
    require(content is not None, f"{folder} has no {RESULT}: {mend}")
    try:
        kept: dict[str, Any] = json.loads(content or b"")
        known = {field.name for field in dataclasses.fields(FederatedSetting)}
        setting = FederatedSetting(**{name: kept["setting"][name] for name in known & set(kept["setting"])})
        canary, client = Composition(*kept["compositions"][0]), Composition(*kept["compositions"][1])
        dimension, runs = int(kept["runs"][0]["dimension"]), len(kept["runs"])
        delta = float(kept["delta"] if levels.delta is None else levels.delta)
        confidence = float(kept["confidence"] if levels.confidence is None else levels.confidence)
        data, accuracies = str(kept["data"]), list(map(float, kept["accuracies"]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise InputError(f"{folder / RESULT} cannot be read, or is an older one: {mend}") from None
    scores = store.load(runs)
    found = over_runs.conclusions(scores, dimension, setting.observe in FINAL, delta, confidence)
    audit = FederatedAudit(found, canary, client, accuracies)
    return of_federated(setting, audit, data, folder.name, store.text)


def _participation(setting: FederatedSetting) -> str:
    """Who takes part."""
    dealt = f"{setting.clients:,}" if setting.clients else "all"
    return (
        f"{dealt}, {setting.cohort:,} a round ({setting.participation}), {counted(setting.rounds, 'round')}"
    )


def _noise(setting: FederatedSetting) -> str:
    """Clipping and noise."""
    adapts = f", at first: it follows the {setting.quantile:g} quantile" if setting.quantile else ""
    return (
        f"clipping norm C = {setting.clipping_norm:g}{adapts}; noise multiplier sigma = "
        f"{setting.noise_multiplier:g}"
    )


def _accuracy(accuracies: list[float]) -> dict[str, str]:
    """The runs' mean accuracy, where it was measured."""
    if not accuracies:
        return {}
    return {"Accuracy": f"{sum(accuracies) / len(accuracies):.4f}, mean of {counted(len(accuracies), 'run')}"}
