"""An audit's facts for a report, read from a setting's folder in a store or from a file of scores, without a
library that trains."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from audit import zoo
from audit.concluded import of_setting as concluded
from audit.errors import InputError, require
from audit.settings import stored
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting, summary
from audit.settings.stored import Known
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import Conclusion
from audit.storage import declared
from audit.storage.kept import Kept
from audit.storage.store import Store


class Subject(NamedTuple):
    """One audit: `anchor` names its section in a report, `config` is None where none is known; one that
    does not `prove` anything, being too small, gets no verdict."""

    anchor: str
    title: str
    facts: dict[str, str]
    threats: list[str]
    conclusion: Conclusion
    provenance: dict[str, str]
    config: str | None
    proves: bool = True


class AskedLevels(NamedTuple):
    """delta and confidence of the bounds; None: those of the kept audit, else 1e-5 and 0.95."""

    delta: float | None = None
    confidence: float | None = None


_UNKNOWN_THREAT = (
    "The scores come from elsewhere: this page knows neither the training nor the adversary. The bounds hold "
    "for the training that made the scores, if its runs are independent and a score never saw which world "
    "its run was in."
)


_REASON = (
    "has a reason here: the noise is Gaussian, the canary is one coordinate of an over-parameterised model, "
    "and genuine gradients leave that coordinate alone"
)


def of_scores(
    name: str, sources: Sequence[Path], composition: Composition | None, conclusion: Conclusion
) -> Subject:
    """The audit of scores from one file or several; the composition where the mechanism is known."""
    checksums = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    kept = {"Scores": ", ".join(source.name for source in sources)}
    kept["SHA-256 of the scores' file"] = ", ".join(checksums)
    return of_arrays(name, composition, conclusion)._replace(provenance=kept)


def of_arrays(name: str, composition: Composition | None, conclusion: Conclusion) -> Subject:
    """The audit of a caller's scores; the composition where the mechanism is known."""
    facts = {"Audited": name, "Runs": _runs(conclusion), **_looks(conclusion)}
    if composition is not None:
        sigma, insertions, rate = composition
        sampled = f", each with probability {rate:g} (Poisson sampling)" if rate < 1 else ""
        facts["Mechanism, as given"] = (
            f"{insertions:,} insertions{sampled}, noise multiplier sigma = {sigma:g}"
        )
    elif conclusion.upper_bound is not None:
        facts["Upper bound, as given"] = (
            f"epsilon = {conclusion.upper_bound:g} at delta = {conclusion.delta:g}"
        )
    scores = conclusion.scores_in.tobytes() + conclusion.scores_out.tobytes()
    kept = {"SHA-256 of the scores, in before out": hashlib.sha256(scores).hexdigest()}
    return Subject("scores", name, facts, [_UNKNOWN_THREAT], conclusion, kept, None)


def of_setting(folder: Path, levels: AskedLevels, runs: int | None = None) -> Subject:
    """The audit of so many runs, by default of the declared looks that were taken, or as many as were audited
    last, or else as are held, in a setting's folder in a store; raises InputError where it has no audit."""
    store = Store.at(folder)
    known = stored.known(store.config())
    if known is None:
        raise InputError(f"{folder} is no audit of trained models: name another `setting`")
    kept, held = store.result() or Kept(), store.runs_held()
    schedule = None if runs else declared.declared(store)
    runs = runs or (schedule.looks()[-1] if schedule else kept.runs) or held
    require(runs >= 2, f"{folder} has no finished runs: train some with ./run.sh audit")
    require(runs <= held, f"{folder} lacks runs {held} to {runs - 1}: train them")
    setting = known.setting
    looks = schedule.schedule if schedule else ()
    own = known.model is not None
    conclusion = concluded(store.load(runs), setting, *_levels(levels, kept), looks, own)
    provenance = _provenance(folder.name, known, kept.provenance)
    facts, threats = _facts(setting, conclusion, own), _threats(setting)
    title = summary(setting, runs)
    return Subject(f"s{folder.name}", title, facts, threats, conclusion, provenance, store.text)


def _levels(asked: AskedLevels, kept: Kept) -> tuple[float, float]:
    """delta and confidence: as asked, else of the kept audit, else 1e-5 and 0.95."""
    delta = kept.delta or 1e-5 if asked.delta is None else asked.delta
    return delta, kept.confidence or 0.95 if asked.confidence is None else asked.confidence


def _facts(setting: Setting, conclusion: Conclusion, own: bool) -> dict[str, str]:
    """The training, term by term."""
    mechanism, steps = setting.mechanism, setting.schedule.steps
    sigma, norm = mechanism.noise_multiplier, mechanism.clipping_norm
    known = None if own else zoo.tasks().get(setting.model)
    return {
        "Model": known.description if known else setting.model,
        "Optimiser": f"{mechanism.optimizer} on the private mean, learning rate {mechanism.learning_rate:g}",
        "DP-SGD": f"clipping norm C = {norm:g}, noise multiplier sigma = {sigma:g} (deviation sigma C)",
        "Training": f"{steps:,} steps of {mechanism.batch_size:,} examples, in a fixed order",
        "Insertions": _insertions(setting),
        "Runs": _runs(conclusion),
        **_looks(conclusion),
        "Arithmetic": f"{mechanism.precision}, clipped sums by {mechanism.clipping}",
        **({"Gaussian curve": _REASON} if conclusion.reason else {}),
    }


def _looks(conclusion: Conclusion) -> dict[str, str]:
    """The declared looks, and why the best of them is a bound; nothing where none was declared."""
    looks = conclusion.looks
    if looks is None:
        return {}
    schedule = ", ".join(f"{runs:,}" for runs in looks.schedule)
    taken = ", ".join(f"{look.runs:,}" for look in looks.taken)
    shown = f"the best of those at {taken}" if len(looks.taken) > 1 else f"that at {taken}"
    each, together = (f"{100 * level:.6g}%" for level in (looks.confidence, conclusion.confidence))
    words = (
        f"declared beforehand at {schedule} runs; shown is {shown}. Each look's bounds "
        f"hold at {each} confidence, so that all of them, and the best, hold at {together}"
    )
    return {"Looks": words}


def _runs(conclusion: Conclusion) -> str:
    """How many runs, and of what."""
    if conclusion.design is not None:
        return str(conclusion.design)
    return f"{len(conclusion.scores_in):,} with the canary, {len(conclusion.scores_out):,} without"


def _threats(setting: Setting) -> list[str]:
    """The threat model, sentence by sentence."""
    start = "It knows the initial model."
    if setting.unknown_initialisation:
        start = "It does not know the initial model: every run draws its own, and it takes one more draw."
    return [
        "Hidden state: the adversary sees the final model only, no model in between.",
        f"{start} It knows the data, the mini-batches and their order, and all hyperparameters; it does not "
        "know the noise.",
        adversary_row(setting.adversary.name).description,
        *_canaries(setting.canaries),
        "What it inserts is clipped to norm C as an example's gradient is; the worlds differ by it alone "
        "(add or remove one).",
        _counting(setting),
    ]


def _canaries(canaries: int) -> list[str]:
    """A sentence on several canaries a run."""
    if canaries == 1:
        return []
    return [
        f"Every run has {canaries} such canaries, each in or out by a coin of its own that the adversary "
        "does not know. For each canary the others are random data: neighbours differ by one of them."
    ]


def _insertions(setting: Setting) -> str:
    """How often a canary is inserted, in words."""
    k, rate = setting.schedule.periodicity, setting.sampling_rate
    often = f"{setting.insertions:,}, {f'every {k} steps' if k > 1 else 'at every step'}"
    return often if rate == 1 else f"{often}, each with probability {rate:g} (Poisson sampling)"


def _counting(setting: Setting) -> str:
    """What the upper bound counts, in a sentence."""
    if setting.sampling_rate == 1:
        return (
            "The upper bound counts the steps with an insertion, and no amplification by sampling, as the "
            "adversary knows the mini-batches."
        )
    return (
        "Each of these steps takes a canary that is in with a probability, by a coin that the adversary does "
        "not see; the upper bound counts them as Poisson sampling."
    )


def _provenance(name: str, known: Known, kept: dict[str, str]) -> dict[str, str]:
    """The scores' origin, with a word where something was not kept."""
    versions = [
        f"{key} {kept[key]}" for key in ("audit", "python", "jax", "flax", "optax", "numpy") if key in kept
    ]
    missing = "not kept"
    return {
        "Setting": name,
        "Seed": str(known.setting.seed),
        "Data": kept.get("data", missing),
        "SHA-256 of the data": known.data or missing,
        **({"SHA-256 of the model": known.model} if known.model else {}),
        "Versions": ", ".join(versions) or missing,
        "Device": kept.get("device", missing),
        "Time of the audit": kept.get("time", missing),
    }
