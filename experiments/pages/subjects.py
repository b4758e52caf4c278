"""An audit's facts for a report, read from a setting's folder in a store or from a file of scores, without a
library that trains."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import Conclusion, conclude
from audit.storage import results
from audit.storage.store import Store


class Subject(NamedTuple):
    """One audit: `anchor` names its section in a report, `config` is None where none is known."""

    anchor: str
    title: str
    facts: dict[str, str]
    threats: list[str]
    conclusion: Conclusion
    provenance: dict[str, str]
    config: str | None


class Levels(NamedTuple):
    """delta and confidence of the bounds; None: those of the kept audit, else 1e-5 and 0.95."""

    delta: float | None = None
    confidence: float | None = None


_MODELS = {
    "fcnn": "FCNN, 8-6-2 with ReLU, 68 parameters, on California Housing",
    "convnet": "ConvNet, two convolutions and three dense layers, 62,006 parameters, on CIFAR-10",
    "resnet18": "ResNet18 on CIFAR-10",
    "mobilenet_head": "last layer on a frozen MobileNetV2's features of CIFAR-10",
    "alexnet_head": "last layer on a frozen AlexNet's features of CIFAR-10",
}
_ADVERSARIES = {
    "gc_s": "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
    "gradient of norm C along it. Its score is how far the final model moved along that coordinate.",
    "gc_r": "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
    "score is how far the final model moved along that coordinate.",
    "gc_fixed": "Fixed coordinate: inserts a gradient of norm C along a given coordinate of the model. Its "
    "score is how far the final model moved along it.",
    "cots": "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
    "cosine of that direction and the model's displacement.",
    "loss": "L: inserts the gradient of a training example with a wrong label. Its score is minus the final "
    "model's loss on that example.",
}
_UNKNOWN_THREAT = (
    "The scores come from elsewhere: this page knows neither the training nor the adversary. The bounds hold "
    "for the training that made the scores, if its runs are independent and a score never saw which world "
    "its run was in."
)


def of_scores(name: str, source: Path, composition: Composition | None, conclusion: Conclusion) -> Subject:
    """The audit of scores from a file; the composition where the mechanism is known."""
    n_in, n_out = len(conclusion.scores_in), len(conclusion.scores_out)
    facts = {"Audited": name, "Runs": f"{n_in:,} with the canary, {n_out:,} without"}
    if composition is not None:
        sigma, insertions = composition
        facts["Mechanism, as given"] = f"{insertions:,} insertions, noise multiplier sigma = {sigma:g}"
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    kept = {"Scores": source.name, "SHA-256 of the scores' file": checksum}
    return Subject("scores", name, facts, [_UNKNOWN_THREAT], conclusion, kept, None)


def of_setting(folder: Path, levels: Levels, runs: int | None = None) -> Subject:
    """The audit of so many runs, by default as many as were audited last, or else as are held, in a
    setting's folder in a store; raises InputError where it has no audit."""
    config, text = _config(folder)
    kept = results.kept(folder)
    store = Store(folder.parent, config)
    runs = runs or kept.get("runs") or _held(store)
    require(runs >= 2, f"{folder} has no finished runs: train some with ./run.sh audit")
    conclusion = conclude(store.load(runs).worlds(), _composition(config), *_levels(levels, kept))
    title = f"{config['model']}, {config['adversary']}, seed {config['seed']}"
    provenance = _provenance(folder.name, config, kept.get("provenance", {}))
    facts, threats = _facts(config, conclusion), _threats(config)
    return Subject(f"s{folder.name}", title, facts, threats, conclusion, provenance, text)


def settings(root: Path) -> list[Path]:
    """The folders of a store that hold scores, the one with the newest first."""
    if not root.is_dir():
        return []
    newest = {
        folder: max((path.stat().st_mtime_ns for path in folder.glob("scores_*.npz")), default=0)
        for folder in root.iterdir()
        if (folder / "config.json").is_file()
    }
    return sorted((folder for folder, time in newest.items() if time), key=lambda f: (-newest[f], f.name))


def _composition(config: dict[str, Any]) -> Composition:
    """The steps with the canary of a stored setting."""
    return Composition(config["noise_multiplier"], config["steps"] // config["periodicity"])


def _levels(asked: Levels, kept: dict[str, Any]) -> tuple[float, float]:
    """delta and confidence: as asked, else of the kept audit, else 1e-5 and 0.95."""
    first = (kept.get("bounds") or [{"delta": 1e-5, "confidence": 0.95}])[0]
    delta = first["delta"] if asked.delta is None else asked.delta
    return delta, first["confidence"] if asked.confidence is None else asked.confidence


def _facts(config: dict[str, Any], conclusion: Conclusion) -> dict[str, str]:
    """The training, term by term."""
    steps, k = config["steps"], config["periodicity"]
    sigma, norm = config["noise_multiplier"], config["clipping_norm"]
    n_in, n_out = len(conclusion.scores_in), len(conclusion.scores_out)
    return {
        "Model": _MODELS.get(config["model"], config["model"]),
        "Optimiser": f"{config['optimizer']} on the private mean, learning rate {config['learning_rate']:g}",
        "DP-SGD": f"clipping norm C = {norm:g}, noise multiplier sigma = {sigma:g} (deviation sigma C)",
        "Training": f"{steps:,} steps of {config['batch_size']:,} examples, in a fixed order",
        "Insertions": f"{steps // k:,}, every {k} steps" if k > 1 else f"{steps // k:,}, at every step",
        "Runs": f"{n_in:,} with the canary, {n_out:,} without",
        "Arithmetic": f"{config.get('precision', 'float32')}, clipped sums by {config['clipping']}",
    }


def _threats(config: dict[str, Any]) -> list[str]:
    """The threat model, sentence by sentence."""
    start = "It knows the initial model."
    if config.get("unknown_initialisation"):
        start = "It does not know the initial model: every run draws its own, and it takes one more draw."
    return [
        "Hidden state: the adversary sees the final model only, no model in between.",
        f"{start} It knows the data, the mini-batches and their order, and all hyperparameters; it does not "
        "know the noise.",
        _ADVERSARIES.get(config["adversary"], config["adversary"]),
        "What it inserts is clipped to norm C as an example's gradient is; the worlds differ by it alone "
        "(add or remove one).",
        "The upper bound counts the steps with an insertion, and no amplification by sampling, as the "
        "adversary knows the mini-batches.",
    ]


def _provenance(name: str, config: dict[str, Any], kept: dict[str, Any]) -> dict[str, str]:
    """The scores' origin, with a word where something was not kept."""
    versions = [f"{key} {kept[key]}" for key in ("python", "jax", "flax", "optax", "numpy") if key in kept]
    missing = "not kept"
    return {
        "Setting": name,
        "Seed": str(config["seed"]),
        "Data": kept.get("data", missing),
        "SHA-256 of the data": config.get("data_sha256", missing),
        **({"SHA-256 of the model": config["model_sha256"]} if "model_sha256" in config else {}),
        "Versions": ", ".join(versions) or missing,
        "Device": kept.get("device", missing),
        "Time of the audit": kept.get("time", missing),
    }


def _config(folder: Path) -> tuple[dict[str, Any], str]:
    """A folder's config and its text; raises InputError where the folder is not named after it."""
    path = folder / "config.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): name another --setting") from None
    named = hashlib.sha256(content).hexdigest().startswith(folder.name)
    require(named, f"{path} is not the setting that its folder is named after: move it away")
    return json.loads(content), content.decode()


def _held(store: Store) -> int:
    """How many runs from the first on a store holds."""
    ends = [int(path.stem.split("_")[2]) for path in store.path.glob("scores_*_*.npz")]
    if not ends:
        return 0
    missing = store.missing(max(ends))
    return missing[0][0] if missing else max(ends)
