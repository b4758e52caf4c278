"""An audit's facts for a report, from its folder in a store or a file of scores, without a library that
trains."""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.claims.accounting import Composition
from audit.claims.claim import Claim
from audit.conclusions import lipschitz, results
from audit.conclusions.concluded import of_each_run, of_runs_together
from audit.conclusions.concluded import of_setting as concluded
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.one_run_conclusion import OneRunConclusion
from audit.errors import InputError, require
from audit.report.listing import differs
from audit.report.one_run_table import RESULT, FederatedAudit, Upper, upper_bounds
from audit.report.table import at_least
from audit.runtime import started
from audit.runtime.progress import counted
from audit.settings import stored
from audit.settings.adversaries import adversary_row
from audit.settings.federated import FINAL, FederatedSetting
from audit.settings.setting import Setting, summary
from audit.settings.stored import Known
from audit.storage import files, score_files
from audit.storage.score_files import STDIN
from audit.storage.store import Kept, Store
from audit.tasks import zoo
from audit.version import __version__


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


class OneRunSubject(NamedTuple):
    """An audit of one run, or of several that are each concluded alone. upper: the mechanism's epsilons, of
    which the first is what a canary's bounds are held against; none where it is not known."""

    anchor: str
    title: str
    facts: dict[str, str]
    threats: list[str]
    runs: list[OneRunConclusion]
    upper: list[Upper]
    provenance: dict[str, str]
    config: str | None = None


class AskedLevels(NamedTuple):
    """delta and confidence of the bounds; None: those of the kept audit, else 1e-5 and 0.95."""

    delta: float | None = None
    confidence: float | None = None


_UNKNOWN_THREAT = (
    "The scores come from elsewhere: this page knows neither the training nor the adversary. The bounds hold "
    "for the training that made the scores, if its runs are independent and a score never saw which world "
    "its run was in."
)
_UNKNOWN_DIRECTIONS = (
    "The cosines come from elsewhere: this page knows neither the training nor who drew the directions. The "
    "bound holds for the training that made them, with all its canaries, if directions were uniform in so "
    "many dimensions, drawn afresh for every run, and unknown to the training but for what was inserted, and "
    "no run was left out for its scores. What cosines alone can show of this was checked."
)
_REASON = (
    "has a reason here: the noise is Gaussian, the canary is one coordinate of an over-parameterised model, "
    "and genuine gradients leave that coordinate alone"
)
_UNKNOWN_RUN = (
    "The cosines come from elsewhere: this page knows neither the training nor who inserted the canaries. "
    "The bounds hold for the training that made them, where their assumptions hold of it."
)
_SEEN = {
    "final": "It sees the final model only, and takes its cosine with each canary's direction.",
    "weights": "It sees the final weights only, and takes their cosine with each canary's direction.",
    "fresh": "It sees the final model only, and takes the cosine of each canary's direction, which every run "
    "draws afresh, with how far that model is from a training without noise and canaries.",
    "all": "It sees every round's model, and takes the largest cosine of a round's move over rounds.",
    "means": "It sees every round's noisy mean, and takes the largest cosine over rounds.",
}


def of_scores(name: str, sources: Sequence[Path], conclusion: Conclusion) -> Subject:
    """Returns the audit of scores from one file or several."""
    about = of_arrays(name, conclusion)
    names = ",".join(source.name for source in sources)
    kept = {"Command": _bound_command(names, conclusion), "Scores": score_files.said(sources)}
    if STDIN in sources:
        return about._replace(provenance=kept | about.provenance)
    checksums = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    kept |= {"SHA-256 of the scores' file": ", ".join(checksums), "Versions": _versions()}
    return about._replace(provenance=kept)


def _bound_command(names: str, conclusion: Conclusion) -> str:
    composition = conclusion.composition
    flags = {"scores": names, "delta": f"{conclusion.delta:g}", "confidence": f"{conclusion.confidence:g}"}
    if conclusion.fresh is not None:
        flags["dimension"] = str(conclusion.fresh.dimension)
        flags |= {} if conclusion.fresh.plain else {"leave_one_out": "true"}
        flags |= {"in_order": "true"} if conclusion.fresh.in_order else {}
    if conclusion.looks is not None:
        flags["looks"] = ",".join(map(str, conclusion.looks.schedule))
    if composition is not None:
        flags |= {name: f"{value:.12g}" for name, value in composition._asdict().items()}
        found = conclusion.hidden_state
        if found is not None:
            flags["lipschitz"] = f"{found.range[1]:.12g}"
            flags |= {"k": str(found.periods.k), "insert": str(found.periods.insert)}
    elif conclusion.upper_bound is not None:
        flags["upper_bound"] = f"{conclusion.upper_bound:.12g}"
    return " ".join([started.command("bound"), *(f"--{name}={value}" for name, value in flags.items())])


def _versions() -> str:
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}"
    return f"audit {__version__}, python {platform.python_version()}, {libraries}"


def of_arrays(name: str, conclusion: Conclusion) -> Subject:
    """Returns the audit of a caller's scores."""
    composition = conclusion.composition
    facts = {"Audited": name, "Runs": _runs(conclusion), **_looks(conclusion)}
    if composition is not None:
        sigma, insertions, rate = composition
        sampled = f", each with probability {rate:g} (Poisson sampling)" if rate < 1 else ""
        given = f"{insertions:,} insertions{sampled}, noise multiplier sigma = {sigma:g}"
        found = conclusion.hidden_state
        contracts = "" if found is None else f"; {found.assumes.note}"
        facts["Mechanism, as given"] = f"{given}{contracts}"
    elif conclusion.upper_bound is not None:
        given = f"epsilon = {conclusion.upper_bound:g} at delta = {conclusion.delta:g}"
        facts["Upper bound, as given"] = given
    scores = conclusion.scores_in.tobytes() + conclusion.scores_out.tobytes()
    checksum = hashlib.sha256(scores).hexdigest()
    kept = {"SHA-256 of the scores, in before out": checksum, "Versions": _versions()}
    threat = _UNKNOWN_THREAT if conclusion.fresh is None else _UNKNOWN_DIRECTIONS
    return Subject("scores", name, facts, [threat], conclusion, kept, None)


def of_setting(folder: Path, levels: AskedLevels, runs: int | None = None) -> Subject:
    """The audit of so many runs, by default of the declared looks that were taken, or as many as were audited
    last, or else as are held, in a setting's folder in a store; raises InputError where it has no audit."""
    store = Store.at(folder)
    known = stored.known(store.config())
    if known is None:
        raise InputError(f"{folder} is no audit of trained models: name another `setting`")
    kept, held = store.result() or Kept(), store.runs_held()
    schedule = None if runs else results.declared_looks(store)
    runs = runs or (schedule.looks()[-1] if schedule else kept.runs) or held
    require(runs >= 1, f"{folder} has no finished runs: {started.training()}")
    require(runs <= held, f"{folder} lacks runs {held} to {runs - 1}: train them")
    setting, own = known.setting, known.model is not None
    delta = kept.delta or 1e-5 if levels.delta is None else levels.delta
    confidence = kept.confidence or 0.95 if levels.confidence is None else levels.confidence
    looks = schedule.schedule if schedule else ()
    steps = lipschitz.kept(store)
    conclusion = concluded(store.load(runs), setting, delta, confidence, looks, own, steps)
    provenance = _provenance(folder.name, known, kept.provenance)
    if not own:
        where = "Command" if zoo.tasks() else "Command, in a clone of the repository"
        provenance = {where: _audit_command(setting, runs, delta, confidence, looks), **provenance}
    facts, threats = _facts(setting, conclusion, own), _threats(setting)
    anchor, title = f"s{folder.name}", summary(setting, runs)
    return Subject(anchor, title, facts, threats, conclusion, provenance, store.text)


def _facts(setting: Setting, conclusion: Conclusion, own: bool) -> dict[str, str]:
    mechanism, steps = setting.mechanism, setting.schedule.steps
    sigma, norm, rate = mechanism.noise_multiplier, mechanism.clipping_norm, mechanism.learning_rate
    decay = f", weight decay {mechanism.weight_decay:g}" if mechanism.weight_decay else ""
    known = None if own else zoo.tasks().get(setting.model)
    return {
        "Model": known.description if known else setting.model,
        "Optimiser": f"{mechanism.optimizer} on the private mean, learning rate {rate:g}{decay}",
        "DP-SGD": f"clipping norm C = {norm:g}, noise multiplier sigma = {sigma:g} (deviation sigma C)",
        "Training": f"{steps:,} steps of {mechanism.batch_size:,} examples, in a fixed order",
        "Insertions": _insertions(setting),
        "Runs": _runs(conclusion),
        **_looks(conclusion),
        "Arithmetic": f"{mechanism.precision}, clipped sums by {mechanism.clipping}",
        **({"Gaussian curve": _REASON} if conclusion.reason else {}),
        **(
            {"Last model": f"no bound but composition: {conclusion.uncovered}"}
            if conclusion.uncovered
            else {}
        ),
    }


def _insertions(setting: Setting) -> str:
    k, rate = setting.schedule.periodicity, setting.sampling_rate
    place = "" if setting.schedule.place == k else f", at step {setting.schedule.place} of each {k}"
    often = f"{setting.insertions:,}, {f'every {k} steps' if k > 1 else 'at every step'}{place}"
    return often if rate == 1 else f"{often}, each with probability {rate:g} (Poisson sampling)"


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
    if conclusion.design is not None:
        return str(conclusion.design)
    return f"{len(conclusion.scores_in):,} with the canary, {len(conclusion.scores_out):,} without"


def _threats(setting: Setting) -> list[str]:
    start = "It knows the initial model."
    if setting.unknown_initialisation:
        start = "It does not know the initial model: every run draws its own, and it takes one more draw."
    many = (
        f"Every run has {setting.canaries} such canaries, each in or out by a coin of its own that the "
        "adversary does not know. For each canary the others are random data: neighbours differ by one of "
        "them."
    )
    counting = (
        "Each of these steps takes a canary that is in with a probability, by a coin that the adversary does "
        "not see; the upper bound counts them as Poisson sampling."
    )
    if setting.sampling_rate == 1:
        counting = (
            "The upper bound counts the steps with an insertion, and no amplification by sampling, as the "
            "adversary knows the mini-batches."
        )
    return [
        "Hidden state: the adversary sees the final model only, no model in between.",
        f"{start} It knows the data, the mini-batches and their order, and all hyperparameters; it does not "
        "know the noise.",
        adversary_row(setting.adversary.name).description,
        *([many] if setting.canaries > 1 else []),
        "What it inserts is clipped to norm C as an example's gradient is; the worlds differ by it alone "
        "(add or remove one).",
        counting,
    ]


def _audit_command(setting: Setting, runs: int, delta: float, confidence: float, looks: Sequence[int]) -> str:
    flags = {"model": setting.model, "adversary": setting.adversary.name, **differs(setting)}
    flags |= {"looks": ",".join(map(str, looks))} if looks else {"runs": runs}
    flags |= {"delta": f"{delta:g}", "confidence": f"{confidence:g}"}
    return " ".join([f"{started.RUN_SH} audit", *(f"--{name}={value}" for name, value in flags.items())])


def _provenance(name: str, known: Known, kept: dict[str, str]) -> dict[str, str]:
    missing, named = "not kept", ("audit", "python", "jax", "flax", "optax", "numpy")
    versions = [f"{key} {kept[key]}" for key in named if key in kept]
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


def of_one_run(
    name: str, conclusion: OneRunConclusion, claim: Claim | None = None, source: Path | None = None
) -> OneRunSubject:
    """Returns the audit of one run's canaries, from a caller's arrays or from a file."""
    facts = {"Audited": name, "Canaries": _null(conclusion)}
    upper = []
    if claim is not None:
        upper = [Upper("upper bound", claim.epsilon(conclusion.delta), "as given")]
    kept = {"Versions": _versions()}
    if source is not None:
        checksum = hashlib.sha256(source.read_bytes()).hexdigest()
        kept = {"Scores": source.name, "SHA-256 of the scores' file": checksum, **kept}
    return OneRunSubject("run", name, facts, [_UNKNOWN_RUN], [conclusion], upper, kept)


def of_federated(
    setting: FederatedSetting, found: FederatedAudit, data: str, folder: str, config: str
) -> OneRunSubject:
    """The audit of federated runs: from where their clients are, and the folder that keeps them."""
    row, accuracies = zoo.federated_tasks().get(setting.model), found.accuracies
    dealt = f"{setting.clients:,}" if setting.clients else "all"
    adapts = f", at first: it follows the {setting.quantile:g} quantile" if setting.quantile else ""
    facts = {
        "Model": row.description if row else setting.model,
        "Clients": f"{dealt}, {setting.cohort:,} a round ({setting.participation}), "
        f"{counted(setting.rounds, 'round')}",
        "A client's training": f"{counted(setting.client_epochs, 'epoch')} of mini-batches of "
        f"{setting.batch_size}, learning rate {setting.client_learning_rate:g}",
        "Server": f"learning rate {setting.learning_rate:g}, momentum {setting.momentum:g}",
        "DP-FedAvg": f"clipping norm C = {setting.clipping_norm:g}{adapts}; noise multiplier sigma = "
        f"{setting.noise_multiplier:g}",
        "Canaries": f"{setting.canaries:,}, each in or out by a coin, in "
        f"{counted(setting.repetitions, 'round')} each; {_null(found.runs[0])}",
        "Runs": f"{len(found.runs):,}",
    }
    if found.together is not None:
        proven = f"at least epsilon = {at_least(found.together.epsilon)}, whatever the curve"
        facts["All runs together"] = f"{proven} ({found.together.method}); fresh directions"
    if accuracies:
        mean = sum(accuracies) / len(accuracies)
        facts["Accuracy"] = f"{mean:.4f}, mean of {counted(len(accuracies), 'run')}"
    title = f"federated {setting.model}, {setting.observe}, seed {setting.seed}"
    threats = [
        "Canary clients send random directions as long as the clipping norm, and take part like others.",
        _SEEN[setting.observe],
        "It knows neither the noise nor who else took part in a round.",
        "The upper bound counts the rounds that a canary takes part in; neighbours differ by one client.",
    ]
    kept = {"Setting": folder, "Seed": str(setting.seed), "Data": data}
    return OneRunSubject(f"s{folder}", title, facts, threats, found.runs, upper_bounds(found), kept, config)


def of_federated_folder(folder: Path, levels: AskedLevels) -> OneRunSubject:
    """The audit that a federated run's folder keeps; raises InputError where none can be read."""
    store = Store.at(folder)
    content = files.read(folder / RESULT)
    mend = "start the same federated audit again"
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
    found = of_each_run(scores, dimension, setting.observe in FINAL, delta, confidence)
    together = of_runs_together(scores, delta, confidence)
    audit = FederatedAudit(found, canary, client, accuracies, together)
    return of_federated(setting, audit, data, folder.name, store.text)


def _null(conclusion: OneRunConclusion) -> str:
    if conclusion.cosines is None:
        return f"{conclusion.canaries:,}, each in or out by a fair coin of its own"
    observed, unobserved, dimension = conclusion.cosines
    if len(unobserved):
        return f"{len(observed):,} observed and {len(unobserved):,} unobserved, to which the null is fitted"
    return f"{len(observed):,} observed; the null is the cosine's exact law in {dimension:,} dimensions"
