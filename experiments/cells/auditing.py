"""An audit of a setting: trains what the store does not have, until enough is proven, and concludes."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.conclusions import lipschitz, rehearsals, results
from audit.conclusions.claim_tests import judge_claim
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import Level
from audit.runtime import progress
from audit.settings import stored
from audit.settings.setting import Setting, flat, summary
from audit.storage import files
from audit.storage.store import FIGURE, RESULT, Kept, Scores, Store
from audit.tasks.task import Dataset
from experiments.cells.audits import concluded_runs, recipe
from experiments.cells.work import RunsRequest, Trainer, TrainingEngine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from audit.training.training import Trained

_LOOK_SECONDS = 3.0  # between two conclusions while training, each of which takes a while


# A conclusion -> the first number of runs that proves enough; None where they do not yet.
Until = Callable[[Conclusion], int | None]


def until_epsilon(epsilon: float) -> Until:
    """Returns the request to train until so large an epsilon is proven, with nothing assumed."""

    def find_first(conclusion: Conclusion) -> int | None:
        return _find_first_above(conclusion.path, epsilon)

    return find_first


def until_multiple(multiple: float) -> Until:
    """Returns the request to train until so large a part of the claim is proven.

    For a claim of mu-GDP it is the part of mu below which no GDP guarantee can hold, else that of epsilon.
    """

    def find_first(conclusion: Conclusion) -> int | None:
        mu = conclusion.tightest_mu
        upper = conclusion.tightest
        if upper is None:
            return None
        if mu is None:
            return _find_first_above(conclusion.path, multiple * upper.epsilon)
        epsilon = conversions.epsilon_from_mu(multiple * mu, conclusion.delta)
        return _find_first_above(conclusion.bound(EXACT_NULL_GDP).path, epsilon)

    return find_first


def until_refuted(conclusion: Conclusion) -> int | None:
    """Returns after how many runs the claim was refuted; None where it is not."""
    test = judge_claim(conclusion)
    if test is None or not test.refuted:
        return None
    return test.runs


def _find_first_above(path: Sequence[float], epsilon: float) -> int | None:
    """Returns the first number of runs after which a path is at least at epsilon."""
    for runs, proven in enumerate(path, 1):
        if proven >= epsilon:
            return runs
    return None


class AuditRequest(NamedTuple):
    """What is audited.

    Attributes:
      setting: The training and its adversary.
      dataset: The data that it trains on.
      runs: Models to train, at most.
      looks: The declared numbers of runs at which to look; empty where none are declared.
      levels: Of the bounds.
      chunk_size: Models trained at once; 0: as many as fit.
      until: What has to be proven for training to stop, if anything.
      minutes: After which no further training begins, if any.
      rehearsals: Along how many runs to measure how much steps stretch distances, 0 for as many as usual;
        None: it is not measured.
    """

    setting: Setting
    dataset: Dataset
    runs: int
    looks: Sequence[int]
    levels: Level
    chunk_size: int = 0
    until: Until | None = None
    minutes: float | None = None
    rehearsals: int | None = None

    def conclude(self, store: Store, scores: Scores) -> Conclusion:
        """Draws what follows from scores."""
        runs = self.rehearsals
        if runs is not None and rehearsals.find_measured(store, runs) is None:
            from audit.conclusions import measuring  # loads JAX

            measuring.measure_zoo(store, self.setting, self.dataset, runs)
        steps = lipschitz.of_data(store, self.setting, self.dataset)
        return conclude_setting(scores, self.setting, self.levels, self.looks, steps=steps)

    def first_proven(self, conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that proves as much as `until` asks; None where none does."""
        return None if self.until is None else self.until(conclusion)


class FinishedAudit(NamedTuple):
    """An audit whose runs are all there.

    Attributes:
      request: What was audited, with as many runs as there are.
      store: Of its scores.
      scores: All of them.
      provenance: The versions and devices that trained them.
      trained: The training of those that the store had not yet, if there was any.
    """

    request: AuditRequest
    store: Store
    scores: Scores
    provenance: dict[str, Any]
    trained: "Trained | None" = None

    def conclude(self) -> Conclusion:
        """Draws what follows from the scores."""
        return self.request.conclude(self.store, self.scores)

    def circumstances(self) -> dict[str, Any]:
        """Returns what a result says beside the bounds: setting, runs, what trained them, and where."""
        return {
            "setting": flat(self.request.setting),
            "runs": self.request.runs,
            "provenance": self.provenance,
            "out": str(self.store.path),
        }


class Written(NamedTuple):
    """What was written of an audit.

    Attributes:
      result: Its JSON on one line.
      refusal: Why its files could not be written; empty where they could.
    """

    result: str
    refusal: str = ""


ShowLook = Callable[[Conclusion, int], None]


def complete(
    request: AuditRequest,
    out: Path,
    engines: "AbstractContextManager[TrainingEngine]",
    show_look: ShowLook,
) -> FinishedAudit:
    """Trains the runs that the store does not have.

    Args:
      request: What is audited.
      out: The folder of all stores.
      engines: Gives the engine that trains, where anything is to be trained.
      show_look: (conclusion, number from 1) -> anything; is called at each declared look.

    Raises:
      InputError: Where setting, data, looks and store don't fit.
    """
    store = stored.find_store(out, request.setting, request.dataset)
    if store is not None:
        request = _stop_where_proven(request, store)
        if _is_done(request, store):
            results.require_declared(store, [])
            provenance = (store.result() or Kept()).provenance
            return FinishedAudit(request, store, store.load(request.runs), provenance)

    with engines as engine:
        game_recipe = recipe(request.setting, request.runs, request.dataset)
        trainer = engine.trainer(game_recipe, request.dataset)
        store = stored.open_store(out, request.setting, request.dataset)
        results.require_declared(store, request.looks)
        if request.looks:
            trained = _train_to_looks(request, store, trainer, show_look)
        elif request.setting.adversary.any_time:
            trained = _train_until_proven(request, store, trainer)
        else:
            trained = _train(request, store, trainer, request.runs)
        request = request._replace(runs=len(trained.scores.scores))
        return FinishedAudit(request, store, trained.scores, trainer.about(), trained)


def write(finished: FinishedAudit, conclusion: Conclusion) -> Written:
    """Writes the bounds and their figure to the store.

    Files that were made from the same scores, setting, levels and version are not made again. Where they
    can't be written, the result is returned still, since the scores are there.
    """
    store = finished.store
    made_from = results.source(store, conclusion)
    names = (RESULT, FIGURE)
    if results.is_up_to_date(store, made_from, names):
        content = files.read(store.path / RESULT) or b"{}"
        return Written(json.dumps(json.loads(content)))

    from audit.report import audit_panels

    circumstances = finished.circumstances()
    request = finished.request
    try:
        figure = audit_panels.audit_figure(conclusion, summary(request.setting, request.runs))
        result, _ = results.keep(store, conclusion, figure, **circumstances)
        results.mark(store, made_from, names)
    except files.CannotWriteError as error:
        return Written(results.result_json(conclusion, **circumstances), str(error))
    return Written(result)


def _stop_where_proven(request: AuditRequest, store: Store) -> AuditRequest:
    """Returns the request with as many runs as it takes to prove `until`, if the store has so many."""
    held = min(store.runs_held(), request.runs)
    if not held or not request.setting.adversary.any_time:
        return request
    conclusion = request.conclude(store, store.load(held))
    return request._replace(runs=request.first_proven(conclusion) or request.runs)


def _is_done(request: AuditRequest, store: Store) -> bool:
    """Returns whether the store has all runs and a conclusion; a look is taken again in any case."""
    if request.looks or store.missing(request.runs):
        return False
    return concluded_runs(store) > 0


def _train(request: AuditRequest, store: Store, trainer: Trainer, most_trained: int) -> "Trained":
    """Trains the missing runs under a progress bar, in chunks of at most `most_trained` runs."""
    from audit.training import training

    with progress.bar(training.count_missing(store, request.runs)) as bar:
        return trainer.train(
            RunsRequest(store, request.runs, most_trained, request.chunk_size, bar)
        )


def _train_to_looks(
    request: AuditRequest, store: Store, trainer: Trainer, show_look: ShowLook
) -> "Trained":
    """Trains from each declared look to the next; keeps the result of each and shows it."""
    from audit.training import training

    parts = []
    before = 0
    for number, runs in enumerate(request.looks, 1):
        stage = request._replace(runs=runs)
        part = _train(stage, store, trainer, runs - before)
        parts.append(part)
        look = FinishedAudit(stage, store, part.scores, trainer.about())
        conclusion = look.conclude()
        if results.take_looks(store, request.looks, number):
            results.keep_result(store, conclusion, **look.circumstances())
        show_look(conclusion, number)
        before = runs
    return training.merge(parts)


def _train_until_proven(request: AuditRequest, store: Store, trainer: Trainer) -> "Trained":
    """Trains in stages, until `until` is proven or the minutes are up.

    The text before the bar says what is proven, up to date to a few seconds. The scores that it returns are
    those of the first runs that prove enough, whatever the stages were.
    """
    from audit.training import training

    stage = min(request.chunk_size or trainer.stage(request.runs), request.runs)
    deadline = math.inf
    if request.minutes is not None:
        deadline = time.monotonic() + 60 * request.minutes

    parts: list[Trained] = []
    runs = 0
    status = "training"
    last_look = time.monotonic()
    proven_at = None
    with progress.bar(training.count_missing(store, request.runs), lambda: status) as bar:
        while runs < request.runs and proven_at is None:
            if parts and time.monotonic() > deadline:
                break
            runs = min(max(runs, store.runs_held()) + stage, request.runs)
            runs_request = RunsRequest(store, runs, stage, request.chunk_size or stage, bar)
            parts.append(trainer.train(runs_request))
            if request.until is None and time.monotonic() < last_look + _LOOK_SECONDS:
                continue
            conclusion = request.conclude(store, parts[-1].scores)
            last_look = time.monotonic()
            upper_bound = conclusion.upper_bound or math.inf
            status = f"proven {conclusion.epsilon:.1f} of {upper_bound:.1f}"
            proven_at = request.first_proven(conclusion)

    trained = training.merge(parts)
    return trained._replace(scores=trained.scores.of_first(proven_at or runs))
