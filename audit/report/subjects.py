"""The facts of an audit for a report, from its folder in a store or from a file of scores.

Nothing here imports a library that trains.
"""

import hashlib
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
from audit.errors import InputError, require
from audit.report.listing import make_command
from audit.settings import make
from audit.settings.setting import POISSON, Setting, summary
from audit.storage import files, score_files
from audit.storage.store import Store
from audit.storage.tables import STDIN
from audit.tasks import task
from audit.version import __version__
from audit.written import USUAL_LEVEL, Level, show_level


class Subject(NamedTuple):
    """An audit and the facts of its section in a report.

    Attributes:
      anchor: the section's name in links of the page.
      title: the section's heading.
      facts: texts on what was audited, by their terms, such as "Model".
      threats: sentences on the threat model.
      conclusion: the conclusion of the audit.
      provenance: texts on where the conclusion comes from, by their terms, such as "Seed".
      config: the content of the setting's file; None without one.
    """

    anchor: str
    title: str
    facts: dict[str, str]
    threats: list[str]
    conclusion: Conclusion
    provenance: dict[str, str]
    config: str | None = None


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
    if STDIN not in sources:  # standard input cannot be read again for its checksum
        checksums = ", ".join(files.compute_sha256(source) for source in sources)
        provenance["SHA-256 of the scores' file"] = checksums
    return subject._replace(provenance=provenance | subject.provenance)


def describe_arrays(name: str, conclusion: Conclusion) -> Subject:
    """Returns an audit of a caller's scores, with its facts for a report.

    Of the training that made the scores only the caller's claim is known, if there is any.

    Args:
      name: the name of what was audited.
      conclusion: the conclusion from the scores.
    """
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}"
    provenance = {
        "Versions": f"audit {__version__}, python {platform.python_version()}, {libraries}",
        "Date of this page": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    # What has to be true of training and adversary for the bounds to hold.
    threat = _UNKNOWN_THREAT
    if conclusion.is_one_run:
        threat = _UNKNOWN_RUN
    elif conclusion.law_is_known:
        threat = _UNKNOWN_DIRECTIONS
        if conclusion.fresh.draws:
            threat = _UNKNOWN_DRAWS
    facts = {"Audited": name, "Runs": _describe_runs(conclusion)}
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
    digest = hashlib.sha256(scores).hexdigest()
    provenance = {"SHA-256 of the scores, in before out": digest, **provenance}
    return Subject("scores", name, facts, [threat], conclusion, provenance)


def _describe_runs(conclusion: Conclusion) -> str:
    """Returns in words how many runs and canaries there were."""
    if conclusion.is_one_run:
        return f"one; its canaries: {conclusion.evidence}"
    if conclusion.has_one_canary:
        n_in, n_out = map(len, conclusion.worlds)
        return f"{n_in:,} with the canary, {n_out:,} without"
    return str(conclusion.evidence)


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
    delta, confidence = USUAL_LEVEL
    level = levels.complete(last_result.delta or delta, last_result.confidence or confidence)
    setting = audited.setting
    is_own_model = audited.model is not None
    steps = lipschitz.find_current(store)
    conclusion = conclude_setting(store.load(runs), setting, level, is_own_model, steps)

    notes = last_result.provenance
    missing = "not kept"
    provenance = {}
    command = make_command(setting, runs, level)
    if command and not is_own_model:
        # A package that is installed alone has no tasks: its reader needs a clone for this command.
        where = "Command" if task.tasks() else "Command, in a clone of the repository"
        provenance[where] = command
    libraries = ("audit", "python", "jax", "flax", "optax", "numpy")
    versions = [f"{library} {notes[library]}" for library in libraries if library in notes]
    provenance |= {
        "Setting": folder.name,
        "Seed": str(setting.seed),
        "Data": notes.get("data", missing),
        "SHA-256 of the data": audited.data or missing,
    }
    if audited.model:
        provenance["SHA-256 of the model"] = audited.model
    provenance["Versions"] = ", ".join(versions) or missing
    provenance["Device"] = notes.get("device", missing)
    provenance["Time of the audit"] = notes.get("time", missing)
    return Subject(
        anchor=f"s{folder.name}",
        title=summary(setting, runs),
        facts=_describe_setting(setting, conclusion, is_own_model),
        threats=_describe_threats(setting, notes),
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
        "Runs": _describe_runs(conclusion),
        "Arithmetic": mechanism.precision,
    }
    if conclusion.reason:  # the mechanism gives a reason why the trade-off curve should be Gaussian
        facts["Gaussian curve"] = _REASON
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
