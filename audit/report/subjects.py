"""The facts of an audit for a report, from its folder in a store or from a file of scores.

Nothing here imports a library that trains.
"""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.claims.accounting import Composition
from audit.claims.claim import DpSgd
from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_each_run, conclude_setting, conclude_together
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.verdicts import describe_sampled
from audit.errors import InputError, require
from audit.report.bounds_table import BoundRow
from audit.report.federated_table import RESULT, FederatedAudit, upper_bounds
from audit.report.listing import make_command
from audit.report.table import at_least
from audit.settings import make
from audit.settings.federated import FINAL, FederatedSetting
from audit.settings.make import StoredConfig
from audit.settings.setting import POISSON, Setting, summary
from audit.storage import files, score_files
from audit.storage.store import Store
from audit.storage.tables import STDIN
from audit.tasks import task
from audit.version import __version__
from audit.written import USUAL_LEVEL, Level, counted, round_confidence, show_level, show_percent


class Subject(NamedTuple):
    """An audit and the facts of its section in a report.

    Attributes:
      anchor: the section's name in links of the page.
      title: the section's heading.
      facts: texts on what was audited, by their terms, such as "Model".
      threats: sentences on the threat model.
      conclusion: the conclusion of the audit.
      provenance: texts on where the conclusion comes from, by their terms, such as "Seed".
      config: the content of the setting's file; None where there is none.
      runs: each run's conclusion, where each run is concluded alone; `conclusion` is that of the first. Else
        empty.
      together: the conclusion from all `runs` together; None where they prove nothing together.
      uppers: the mechanism's epsilons, which the page of federated runs shows; else empty.
    """

    anchor: str
    title: str
    facts: dict[str, str]
    threats: list[str]
    conclusion: Conclusion
    provenance: dict[str, str]
    config: str | None = None
    runs: Sequence[Conclusion] = ()
    together: Conclusion | None = None
    uppers: Sequence[BoundRow] = ()


class RequestedLevels(NamedTuple):
    """The levels that a caller requests of the bounds.

    Attributes:
      delta: the requested delta; None for that of the last audit in the store, or 1e-5 without one.
      confidence: the requested confidence; None for that of the last audit in the store, or 0.95 without one.
    """

    delta: float | None = None
    confidence: float | None = None

    def complete(self, delta: float, confidence: float) -> Level:
        """Returns the level of the bounds: the requested values, or else those that are passed in."""
        if self.delta is not None:
            delta = self.delta
        if self.confidence is not None:
            confidence = self.confidence
        return Level(delta, confidence)


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
_UNKNOWN_DRAWS = (
    "The scores come from elsewhere: this page knows neither the training nor who drew the canaries. The "
    "bound holds for the training that made them, with all its canaries, if every run drew canaries and "
    "fresh ones from one generator, independently, none of them selected afterwards, one function scored "
    "both, and no run was left out for its scores."
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


def describe_score_files(
    name: str, sources: Sequence[Path], conclusion: Conclusion, command: str
) -> Subject:
    """Returns an audit of score files, with its facts for a report.

    Args:
      name: the name of what was audited.
      sources: the files, or STDIN.
      conclusion: the conclusion from their scores.
      command: the command line that drew the conclusion, as it was typed.
    """
    subject = describe_arrays(name, conclusion)
    provenance = {"Command": command, "Scores": score_files.describe_files(sources)}
    if STDIN in sources:
        # Standard input cannot be read again for its checksum: the facts of bare arrays take its place.
        return subject._replace(provenance=provenance | subject.provenance)
    checksums = ", ".join(files.compute_sha256(source) for source in sources)
    provenance["SHA-256 of the scores' file"] = checksums
    return subject._replace(provenance=provenance | _describe_making())


def _describe_making() -> dict[str, str]:
    """Returns the versions that make a page on a caller's scores, and today's date, by their terms."""
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}"
    versions = f"audit {__version__}, python {platform.python_version()}, {libraries}"
    return {"Versions": versions, "Date of this page": f"{datetime.now(UTC):%Y-%m-%d}"}


def describe_arrays(name: str, conclusion: Conclusion) -> Subject:
    """Returns an audit of a caller's scores, with its facts for a report.

    Of the training that made the scores only the caller's claim is known, if there is any.

    Args:
      name: the name of what was audited.
      conclusion: the conclusion from the scores.
    """
    facts = {"Audited": name}
    if conclusion.is_one_run:
        facts["Canaries"] = str(conclusion.evidence)
        return Subject("run", name, facts, [_UNKNOWN_RUN], conclusion, _describe_making())
    facts |= _describe_runs(conclusion)
    if conclusion.composition is not None:
        sigma, insertions, rate = conclusion.composition
        mechanism = f"{insertions:,} insertions"
        if rate < 1:
            mechanism += f", each with probability {rate:g} (Poisson sampling)"
        mechanism += f", noise multiplier sigma = {sigma:g}"
        if conclusion.hidden_state is not None:
            mechanism += f"; {conclusion.hidden_state.assumes.note}"
        facts["Mechanism, as given"] = mechanism
    elif conclusion.upper_bound is not None:
        level = f"at delta = {show_level(conclusion.delta)}"
        facts["Claim"] = f"epsilon = {conclusion.upper_bound:g} {level}"
    scores = b"".join(world.tobytes() for world in conclusion.worlds)
    provenance = {"SHA-256 of the scores, in before out": hashlib.sha256(scores).hexdigest()}
    # What has to be true of training and adversary for the bounds to hold.
    threat = _UNKNOWN_THREAT
    if conclusion.law_is_known:
        threat = _UNKNOWN_DIRECTIONS
        if conclusion.fresh.draws:
            threat = _UNKNOWN_DRAWS
    provenance |= _describe_making()
    return Subject("scores", name, facts, [threat], conclusion, provenance)


def _describe_runs(conclusion: Conclusion) -> dict[str, str]:
    """Returns how many runs and canaries there were, and the declared looks, by their terms."""
    runs = str(conclusion.evidence)
    if conclusion.is_one_run:
        runs = f"one; its canaries: {runs}"
    elif conclusion.has_one_canary:
        n_in, n_out = map(len, conclusion.worlds)
        runs = f"{n_in:,} with the canary, {n_out:,} without"
    looks = conclusion.looks
    if looks is None:
        return {"Runs": runs}
    schedule = ", ".join(f"{runs:,}" for runs in looks.schedule)
    taken = ", ".join(f"{look.runs:,}" for look in looks.taken)
    shown = "that at"
    if len(looks.taken) > 1:
        shown = "the best of those at"
    each = show_percent(round_confidence(looks.confidence))
    text = (
        f"declared beforehand at {schedule} runs; shown is {shown} {taken}. Each look's bounds hold at "
        f"{each} confidence, so that all of them, and the best, hold at {show_percent(conclusion.confidence)}"
    )
    return {"Runs": runs, "Looks": text}


def describe_setting(folder: Path, levels: RequestedLevels, runs: int | None = None) -> Subject:
    """Returns an audit, concluded anew from the scores in a setting's folder, with its facts for a report.

    Args:
      folder: the setting's folder in a store.
      levels: the requested levels of the bounds.
      runs: the number of runs to audit. Without it, the number that was audited last, or that of all runs
        in the store.

    Raises:
      InputError: if the folder holds no audit with so many runs.
    """
    store = Store.at(folder)
    audited = make.parse_config(store.config())
    if audited is None:
        raise InputError(f"{folder} is no audit of trained models: name another `setting`")
    last_result = store.result()

    # The number of runs: the caller's, the last audit's, or that of all runs.
    runs_held = store.runs_held()
    runs = runs or last_result.runs or runs_held
    require(runs >= 1, f"{folder} has no finished runs: train it again")
    require(runs <= runs_held, f"{folder} lacks runs {runs_held} to {runs - 1}: train them")

    # Levels that nobody requests are those of the last audit.
    level = levels.complete(
        last_result.delta or USUAL_LEVEL.delta, last_result.confidence or USUAL_LEVEL.confidence
    )
    is_own_model = audited.model is not None
    conclusion = conclude_setting(
        store.load(runs),
        audited.setting,
        level,
        own_model=is_own_model,
        steps=lipschitz.find_current(store),
    )
    provenance = {}
    command = ""
    if not is_own_model:
        command = make_command(audited.setting, runs, level)
    if command:
        # A package that is installed alone has no tasks: its reader needs a clone for this command.
        where = "Command, in a clone of the repository"
        if task.tasks():
            where = "Command"
        provenance[where] = command
    provenance |= _describe_provenance(folder.name, audited, last_result.provenance)
    return Subject(
        anchor=f"s{folder.name}",
        title=summary(audited.setting, runs),
        facts=_describe_setting(audited.setting, conclusion, is_own_model),
        threats=_describe_threats(audited.setting, last_result.provenance),
        conclusion=conclusion,
        provenance=provenance,
        config=store.text,
    )


def _describe_setting(
    setting: Setting, conclusion: Conclusion, is_own_model: bool
) -> dict[str, str]:
    """Returns facts on a setting's model, mechanism and runs, by their terms, such as "Model"."""
    mechanism = setting.mechanism
    model = setting.model
    if not is_own_model and model in task.tasks():
        model = task.tasks()[model].description
    rate = f"learning rate {mechanism.learning_rate:g}"
    decay = ""
    if mechanism.weight_decay:
        decay = f", weight decay {mechanism.weight_decay:g}"
    sigma = f"noise multiplier sigma = {mechanism.noise_multiplier:g} (deviation sigma C)"
    steps = f"{setting.schedule.steps:,} steps of {mechanism.batch_size:,} examples"
    facts = {
        "Model": model,
        "Optimiser": f"{mechanism.optimizer} on the private mean, {rate}{decay}",
        "DP-SGD": f"clipping norm C = {mechanism.clipping_norm:g}, {sigma}",
        "Training": f"{steps}, in a fixed order",
        "Insertions": _describe_insertions(setting),
        **_describe_runs(conclusion),
        "Arithmetic": mechanism.precision,
    }
    if conclusion.reason:  # the mechanism gives a reason why the trade-off curve should be Gaussian
        facts["Gaussian curve"] = _REASON
    if conclusion.sampled is not None:
        facts["Sampler"] = describe_sampled(conclusion.sampled)
    if conclusion.uncovered:  # the reason why there is no hidden-state bound
        facts["Last model"] = f"no bound but composition: {conclusion.uncovered}"
    return facts


def _describe_insertions(setting: Setting) -> str:
    """Returns in words how many steps insert canaries, and which steps these are: "50, every 5 steps"."""
    # These samplers draw the steps, so that the schedule's period does not count.
    sampling = setting.sampling
    if sampling.batches:  # the canary joins one step of each epoch
        return f"{setting.insertions:,}, at a random step of each epoch of {sampling.batches:,}"
    if sampling.times:  # so many steps, drawn beforehand
        return f"{sampling.times:,}, at random steps that the adversary knows"

    # Otherwise one step of each period of k steps inserts.
    k = setting.schedule.periodicity
    text = f"{setting.insertions:,}, at every step"
    if k > 1:
        text = f"{setting.insertions:,}, every {k} steps"
    if setting.schedule.place != k:  # the usual place is the last of each k steps
        text += f", at step {setting.schedule.place} of each {k}"
    if sampling.name == POISSON:
        text += f", each with probability {sampling.rate:g} (Poisson sampling)"
    return text


def _describe_threats(setting: Setting, notes: Mapping[str, str]) -> list[str]:
    """Returns sentences on the threat model: what the adversary sees, knows and inserts.

    Args:
      setting: the setting.
      notes: what the last audit recorded; of a caller's own adversary, which models it sees.
    """
    knows = "It knows the initial model."
    if setting.unknown_initialisation:
        knows = "It does not know the initial model: every run draws its own, and it takes one more draw."
    sentences = [
        notes.get("view", setting.adversary.view),
        f"{knows} It knows the data, the mini-batches and their order, and all hyperparameters; it does not "
        "know the noise.",
        setting.adversary.description,
    ]
    if setting.canaries > 1:
        presence = "each in or out by a coin of its own that the adversary does not know"
        if setting.adversary.inserts_all:
            presence = "all of them in"
        sentences.append(
            f"Every run has {setting.canaries} such canaries, {presence}. For each canary the others are "
            "random data: neighbours differ by one of them."
        )
    sampling = setting.sampling
    counted_steps = (
        "The upper bound counts the steps with an insertion, and no amplification by sampling, as the "
        "adversary knows the mini-batches."
    )
    if sampling.batches:  # the canary joins one step of each epoch
        counted_steps = (
            "Each epoch takes a canary that is in at a random step, which the adversary does not see; the "
            f"upper bound is that of {sampling.name}."
        )
    elif sampling.is_hidden:  # Poisson sampling
        counted_steps = (
            "Each of these steps takes a canary that is in with a probability, by a coin that the adversary "
            "does not see; the upper bound counts them as Poisson sampling."
        )
    clipped = (
        "What it inserts is clipped to norm C as an example's gradient is; the worlds differ by it alone "
        "(add or remove one)."
    )
    return [*sentences, clipped, counted_steps]


def _describe_provenance(name: str, audited: StoredConfig, notes: dict[str, str]) -> dict[str, str]:
    """Returns texts on where an audit of a setting comes from, by their terms, such as "Seed".

    Args:
      name: the name of the setting's folder.
      audited: the setting, and the hashes of its data and of a caller's model.
      notes: what the last audit recorded of its data, time, device and libraries.
    """
    missing = "not kept"
    libraries = ("audit", "python", "jax", "flax", "optax", "numpy")
    versions = [f"{library} {notes[library]}" for library in libraries if library in notes]
    provenance = {
        "Setting": name,
        "Seed": str(audited.setting.seed),
        "Data": notes.get("data", missing),
        "SHA-256 of the data": audited.data or missing,
    }
    if audited.model:
        provenance["SHA-256 of the model"] = audited.model
    provenance["Versions"] = ", ".join(versions) or missing
    provenance["Device"] = notes.get("device", missing)
    provenance["Time of the audit"] = notes.get("time", missing)
    return provenance


def describe_federated(
    setting: FederatedSetting, audit: FederatedAudit, data: str, folder: str, config: str
) -> Subject:
    """Returns an audit of federated runs, with its facts for a report.

    Args:
      setting: the setting of the runs.
      audit: the conclusions from the runs.
      data: the origin of the clients' examples, in words.
      folder: the name of the setting's folder.
      config: the content of the setting's file.
    """
    model = setting.model
    if model in task.federated_tasks():
        model = task.federated_tasks()[model].description
    # 0 stands for all
    clients = "all"
    if setting.clients:
        clients = f"{setting.clients:,}"
    rounds = counted(setting.rounds, "round")
    norm = f"clipping norm C = {setting.clipping_norm:g}"
    if setting.quantile:  # C adapts to the norms of updates
        norm += f", at first: it follows the {setting.quantile:g} quantile"
    facts = {
        "Model": model,
        "Clients": f"{clients}, {setting.cohort:,} a round (shuffled), {rounds}",
        "A client's training": f"{counted(setting.client_epochs, 'epoch')} of mini-batches of "
        f"{setting.batch_size}, learning rate {setting.client_learning_rate:g}",
        "Server": f"learning rate {setting.learning_rate:g}, momentum {setting.momentum:g}",
        "DP-FedAvg": f"{norm}; noise multiplier sigma = {setting.noise_multiplier:g}",
        "Canaries": f"{setting.canaries:,}, each in or out by a coin, in "
        f"{counted(setting.repetitions, 'round')} each; {audit.runs[0].evidence}",
        "Runs": f"{len(audit.runs):,}",
    }
    if audit.together is not None:
        bound = audit.together.assumption_free
        proven = f"at least epsilon = {at_least(bound.epsilon)}, whatever the curve"
        facts["All runs together"] = f"{proven} ({bound.method}); fresh directions"
    if audit.accuracies:
        mean = sum(audit.accuracies) / len(audit.accuracies)
        facts["Accuracy"] = f"{mean:.4f}, mean of {counted(len(audit.accuracies), 'run')}"

    threats = [
        "Canary clients send random directions as long as the clipping norm, and take part like others.",
        _SEEN[setting.observe],  # what the adversary sees, and how it scores
        "It knows neither the noise nor who else took part in a round.",
        "The upper bound counts the rounds that a canary takes part in; neighbours differ by one client.",
    ]
    return Subject(
        anchor=f"s{folder}",
        title=f"federated {setting.model}, {setting.observe}, seed {setting.seed}",
        facts=facts,
        threats=threats,
        conclusion=audit.runs[0],
        runs=audit.runs,
        together=audit.together,
        uppers=upper_bounds(audit),
        provenance={"Setting": folder, "Seed": str(setting.seed), "Data": data},
        config=config,
    )


def describe_federated_folder(folder: Path, levels: RequestedLevels) -> Subject:
    """Returns an audit, concluded anew from the scores in a federated setting's folder, with its facts.

    The setting, its compositions and accuracies are read from federated.json, which the audit wrote.

    Args:
      folder: the setting's folder.
      levels: the requested levels of the bounds; those of the audit are the default.

    Raises:
      InputError: if federated.json or the scores are missing or can't be read.
    """
    store = Store.at(folder)
    content = files.read(folder / RESULT)
    fix = "start the same federated audit again"
    require(content is not None, f"{folder} has no {RESULT}: {fix}")

    # The file has keys and types as `federated_json` writes them; any other content raises one of the errors.
    try:
        # `or` is for type checkers alone, which do not see that `require` has ruled out None.
        values: dict[str, Any] = json.loads(content or b"")
        setting = _read_federated_setting(values["setting"])
        canary = Composition(*values["compositions"][0])  # in the order of `federated_json`
        client = Composition(*values["compositions"][1])
        dimension = int(values["runs"][0]["dimension"])
        count = len(values["runs"])
        level = levels.complete(float(values["delta"]), float(values["confidence"]))
        data = str(values["data"])
        accuracies = [float(accuracy) for accuracy in values["accuracies"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise InputError(f"{folder / RESULT} cannot be read, or is an older one: {fix}") from None

    # Bounds are computed anew from the scores in the store.
    scores = store.load(count)
    law_holds = setting.observe in FINAL  # of a cosine with a final model the law is exact
    claim = DpSgd(*canary)
    runs = conclude_each_run(scores, dimension, law_holds, level, claim)
    together = conclude_together(scores, level, claim)
    audit = FederatedAudit(runs, canary, client, accuracies, together)
    return describe_federated(setting, audit, data, folder.name, store.text)


def _read_federated_setting(values: dict[str, Any]) -> FederatedSetting:
    """Returns a federated setting from the values of its fields by name; other names are ignored."""
    fields = {field.name for field in dataclasses.fields(FederatedSetting)}
    return FederatedSetting(**{name: values[name] for name in fields & set(values)})
