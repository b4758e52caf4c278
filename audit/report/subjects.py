"""Collects the facts about an audit for a report, without loading training libraries."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.errors import require
from audit.evidence.given import hash_evidence
from audit.report.listing import make_command
from audit.settings import make
from audit.settings.setting import POISSON, Setting, summary
from audit.storage import files, score_files
from audit.storage.tables import STDIN
from audit.tasks import task
from audit.version import __version__
from audit.written import USUAL_LEVEL, Level, show_level


class Subject(NamedTuple):
    """An audit, and the facts on its page.

    Attributes:
      facts: Facts about the audited training, keyed by topic, such as "Model".
      threats: Sentences about the threat model, keyed by topic, such as "sees".
      provenance: Facts about the conclusion's origin, keyed by topic, such as "Seed".
      config: The content of the setting's file; None if the file is missing.
    """

    title: str
    facts: dict[str, str]
    threats: dict[str, str]
    conclusion: Conclusion
    provenance: dict[str, str]
    config: str | None = None


_UNKNOWN_THREAT = (
    "Only the scores were given: the training and the adversary are unknown. The bounds are valid for "
    "the training that produced the scores, with all its canaries, under three conditions: their "
    "assumptions hold, no run was left out because of its scores, and scores were computed without knowing "
    "which canaries were inserted."
)
_NOT_STORED = "not recorded"


def describe_score_files(
    name: str, sources: Sequence[Path], conclusion: Conclusion, command: str
) -> Subject:
    """Returns the facts for a report on an audit of score files.

    `name` is the audit's title, and `command` is the command line that read the files `sources`.
    """
    subject = describe_arrays(name, conclusion)
    provenance = {"Command": command, "Scores": score_files.describe_files(sources)}
    if STDIN not in sources:  # standard input cannot be read again
        checksums = map(files.compute_sha256, sources)
        provenance["SHA-256 of the scores' file"] = ", ".join(checksums)
    return subject._replace(provenance=provenance | subject.provenance)


def describe_arrays(name: str, conclusion: Conclusion) -> Subject:
    """Returns the facts for a report titled `name` on given scores."""
    facts = {"Runs": _describe_runs(conclusion)}
    steps = conclusion.composition  # the steps that may insert the canary
    if steps is not None:
        facts["Claim"] = (
            f"{steps.insertions:,} insertions, noise multiplier sigma = {steps.noise_multiplier:g}"
        )
        rate = steps.sampling_rate
        if rate < 1:
            facts["Claim"] += f", each with probability {rate:g} (Poisson sampling)"
    elif conclusion.upper_bound is not None:
        facts["Claim"] = (
            f"epsilon = {conclusion.upper_bound:g} at delta = {show_level(conclusion.delta)}"
        )
    provenance = {
        "SHA-256 of the scores": hash_evidence(conclusion.evidence),
        "Versions": f"audit {__version__}, python {platform.python_version()}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}",
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    # Scores reveal nothing about other topics, such as "sees".
    threats = {"given": _UNKNOWN_THREAT}
    return Subject(name, facts, threats, conclusion, provenance)


def _describe_runs(conclusion: Conclusion) -> str:
    """Returns the run and canary counts, such as "10 runs x 256 fresh directions, all inserted"."""
    if conclusion.is_one_run:
        return f"one; its canaries: {conclusion.evidence}"
    if conclusion.has_one_canary:
        n_in, n_out = map(len, conclusion.worlds)
        return f"{n_in:,} with the canary, {n_out:,} without"
    return str(conclusion.evidence)


def describe_setting(
    folder: Path,
    delta: float | None = None,
    confidence: float | None = None,
    runs: int | None = None,
) -> Subject:
    """Recomputes an audit from the scores in its folder, and returns the facts for a report on it.

    Delta, confidence and the number of runs default to those of the last audit in the folder, or else to
    1e-5, 0.95 and all stored runs.

    Raises:
      InputError: The folder contains no audit, or fewer than `runs` runs.
    """
    store, audited = make.open_audit(folder)
    last_result = store.result()
    runs = runs or last_result.runs or store.runs_held()
    require(runs >= 1, f"{folder} has no finished runs: train it again")
    level = Level(
        delta or last_result.delta or USUAL_LEVEL.delta,
        confidence or last_result.confidence or USUAL_LEVEL.confidence,
    )
    setting = audited.setting
    is_own_model = audited.model is not None
    constants = lipschitz.find_current(store)  # of the training steps
    conclusion = conclude_setting(store.load(runs), setting, level, is_own_model, constants)

    notes = last_result.provenance
    provenance = {"Setting": folder.name, **_describe_training(audited, notes)}
    command = make_command(setting, runs, level)  # empty if no command line can repeat the audit
    if command and not is_own_model:  # the command trains only the repository's models
        provenance = {"Command": command, **provenance}
    return Subject(
        title=summary(setting, runs),
        facts=_list_facts(setting, conclusion, is_own_model),
        threats=_describe_threats(setting, notes),
        conclusion=conclusion,
        provenance=provenance,
        config=store.text,
    )


def _describe_training(audited: make.StoredConfig, notes: Mapping[str, str]) -> dict[str, str]:
    """Returns facts about the origin of a store's scores: seed, data, model, versions, device and date.

    `notes` is the provenance that the last audit stored.
    """
    texts = {
        "Seed": str(audited.setting.seed),
        "Data": notes.get("data", _NOT_STORED),
        "SHA-256 of the data": audited.data or _NOT_STORED,
    }
    if audited.model:
        texts["SHA-256 of the model"] = audited.model
    libraries = ("audit", "python", "jax", "flax", "optax", "numpy")
    versions = [f"{library} {notes[library]}" for library in libraries if library in notes]
    texts["Versions"] = ", ".join(versions) or _NOT_STORED
    texts["Device"] = notes.get("device", _NOT_STORED)
    texts["Date"] = notes.get("time", _NOT_STORED)
    return texts


def _list_facts(setting: Setting, conclusion: Conclusion, is_own_model: bool) -> dict[str, str]:
    """Returns facts about a setting's model, mechanism and runs, keyed by topic, such as "Model".

    `is_own_model` is True for a user's model, which has no description.
    """
    mechanism = setting.mechanism
    model = setting.model
    known = task.find_task(model)
    if not is_own_model and known is not None:
        model = known.description
    optimizer = (
        f"{mechanism.optimizer} on the private mean, learning rate {mechanism.learning_rate:g}"
    )
    if mechanism.weight_decay:
        optimizer += f", weight decay {mechanism.weight_decay:g}"
    facts = {
        "Model": model,
        "Optimiser": optimizer,
        "DP-SGD": f"clipping norm C = {mechanism.clipping_norm:g}, noise multiplier sigma = "
        f"{mechanism.noise_multiplier:g} (standard deviation sigma C)",
        "Training": f"{setting.schedule.steps:,} steps of {mechanism.batch_size:,} examples, in a fixed "
        "order",
        "Insertions": _describe_insertions(setting),
        "Runs": _describe_runs(conclusion),
        "Arithmetic": mechanism.precision,
    }
    if conclusion.why_gaussian:
        facts["Gaussian curve"] = conclusion.why_gaussian
    if conclusion.uncovered:
        facts["Last model"] = f"bounded only by composition: {conclusion.uncovered}"
    return facts


def _describe_insertions(setting: Setting) -> str:
    """Returns the number and positions of the insertions, such as "50, every 5 steps"."""
    sampling = setting.sampling
    if sampling.batches:  # a sampler with one random step per epoch
        return f"{setting.insertions:,}, at a random step of each epoch of {sampling.batches:,}"
    if sampling.times:  # the sampler "known", which draws this many steps in advance
        return f"{sampling.times:,}, at random steps that the adversary knows"

    k = setting.schedule.periodicity
    where = f"every {k} steps" if k > 1 else "at every step"
    text = f"{setting.insertions:,}, {where}"
    if setting.schedule.place != k:  # not the last step of each period, the default
        text += f", at step {setting.schedule.place} of each {k}"
    if sampling.name == POISSON:
        text += f", each with probability {sampling.rate:g} (Poisson sampling)"
    return text


def _describe_threats(setting: Setting, notes: Mapping[str, str]) -> dict[str, str]:
    """Returns sentences on the threat model, keyed by topic, such as "sees".

    `notes` is the provenance that the last audit stored.
    """
    knows = "It knows the initial model."
    if setting.unknown_initialisation:
        knows = "It does not know the initial model: every run draws one, and the adversary a different one."
    accounting = (
        "The upper bound counts the steps with an insertion, without amplification by sampling, because the "
        "adversary knows the mini-batches."
    )
    if setting.sampling.is_hidden:
        accounting = (
            "The adversary does not see which steps insert the canary; the upper bound is for "
            f"{setting.sampling.name} sampling."
        )
    sentences = {
        "sees": notes.get("view", setting.adversary.view),
        "knows": f"{knows} It knows the data, the mini-batches and their order, and all hyperparameters; it "
        "does not know the noise.",
        "inserts": setting.adversary.description,
    }
    if setting.canaries > 1:
        presence = "each inserted or not by its own coin flip, unknown to the adversary"
        if setting.adversary.all_in:
            presence = "all inserted"
        sentences["canaries"] = (
            f"Every run has {setting.canaries} such canaries, {presence}. For each canary, the others are "
            "random data: neighbouring data sets differ in one canary."
        )
    sentences["neighbours"] = (
        "Its canary is clipped to norm C like an example's gradient; the worlds differ only by the canary "
        "(add or remove one)."
    )
    return {**sentences, "accounting": accounting}
