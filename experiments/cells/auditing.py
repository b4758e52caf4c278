"""Audits a setting: trains the runs that the store lacks, until enough is proven, and concludes."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.conclusions import lipschitz, rehearsals, results
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import Level
from audit.report.table import at_least, at_most
from audit.runtime import progress
from audit.settings import stored
from audit.settings.setting import Setting, flat, summary
from audit.storage import files
from audit.storage.store import Kept, Scores, Store
from audit.tasks.task import Dataset
from experiments.cells.audits import concluded_runs, recipe
from experiments.cells.work import RunsRequest, Trainer, TrainingEngine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from audit.training.training import Trained

_LOOK_SECONDS = 3.0  # the least between two conclusions during training, since each takes a while


# (conclusion) -> the first number of runs that proves enough; None where all runs do not yet.
Until = Callable[[Conclusion], int | None]


def until_epsilon(epsilon: float) -> Until:
    """Returns the rule to train until `epsilon` is proven by the bound that assumes nothing."""

    def find_first(conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that proves `epsilon`; None where none does yet."""
        return _find_first_reaching(conclusion.path, epsilon)

    return find_first


def until_multiple(multiple: float) -> Until:
    """Returns the rule to train until a multiple of the claim is proven.

    Where the claim is an epsilon, `multiple` times this epsilon has to be proven, by the bound that assumes
    nothing. Where the claim is mu-GDP, `multiple` times mu has to be proven, by the lower bound on mu of an
    audit whose runs each draw their own canaries (exact_null_gdp).
    """

    def find_first(conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that proves `multiple` times the claim; None where none does yet.

        The claim is the smallest upper bound on mu where there is any, or else on epsilon. None where there
        is no upper bound.

        Args:
          conclusion: What the runs so far prove. A bound's path is its epsilon after 1, 2, ... runs.
        """
        mu = conclusion.tightest_mu
        upper = conclusion.tightest
        if upper is None:
            return None
        if mu is None:
            return _find_first_reaching(conclusion.path, multiple * upper.epsilon)
        # All audits that may stop early have the bound on mu. Its path is in epsilon too, so `multiple` times
        # mu is converted to epsilon.
        epsilon = conversions.epsilon_from_mu(multiple * mu, conclusion.delta)
        return _find_first_reaching(conclusion.bound(EXACT_NULL_GDP).path, epsilon)

    return find_first


def until_refuted(conclusion: Conclusion) -> int | None:
    """Returns the number of runs after which the claim was refuted; None where it is not refuted."""
    test = conclusion.claim_test
    if test is None or not test.refuted:
        return None
    return test.runs


def _find_first_reaching(path: Sequence[float], epsilon: float) -> int | None:
    """Returns the first number of runs after which a bound is at least epsilon; None where it never is.

    Args:
      path: The bound after 1, 2, ... runs.
      epsilon: The value to reach.
    """
    for runs, proven in enumerate(path, 1):
        if proven >= epsilon:
            return runs
    return None


class AuditRequest(NamedTuple):
    """What is audited, and when training stops.

    Attributes:
      setting: The training and its adversary.
      dataset: The data to train on.
      runs: The most models to train.
      looks: The declared numbers of runs at which to conclude; empty where none are declared.
      levels: The delta and the confidence of the bounds.
      chunk_size: The number of models to train at once; 0 for as many as fit into memory.
      until: The rule that says when enough is proven to stop training; None to train all runs.
      minutes: The minutes after which no further stage of training begins; None for no limit.
      rehearsals: The number of training runs along which to measure how much training steps expand distances;
        0 for the usual number, None to measure nothing.
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

    def conclude(self, store: Store, scores: Scores, is_interim: bool = False) -> Conclusion:
        """Returns the conclusion from scores.

        The upper bound on what the last model leaks needs to know how far a training step can drive two
        models apart. For some models this is measured along training runs. The measurement is made first
        where `rehearsals` is not None and the store lacks it.

        Args:
          store: The store of the setting, which holds the measurement too.
          scores: The scores of all runs.
          is_interim: Whether training goes on, as in `conclude_setting`.
        """
        rehearsal_runs = self.rehearsals
        if rehearsal_runs is not None and rehearsals.find_measured(store, rehearsal_runs) is None:
            from audit.conclusions import measuring  # loads JAX

            measuring.measure_zoo(store, self.setting, self.dataset, rehearsal_runs)
        steps = lipschitz.of_data(store, self.setting, self.dataset)
        return conclude_setting(
            scores, self.setting, self.levels, self.looks, steps=steps, is_interim=is_interim
        )

    def first_proven(self, conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that satisfies `until`; None where none does, or without it."""
        return None if self.until is None else self.until(conclusion)


class FinishedAudit(NamedTuple):
    """An audit whose training is finished.

    Attributes:
      request: What was audited; its `runs` is the number of runs that there are.
      store: The store of the scores.
      scores: The scores of all runs.
      provenance: The versions and devices that trained them.
      trained: What training took in this process; None where the store had all runs already.
    """

    request: AuditRequest
    store: Store
    scores: Scores
    provenance: dict[str, Any]
    trained: "Trained | None" = None

    def conclude(self) -> Conclusion:
        """Returns the conclusion from the scores."""
        return self.request.conclude(self.store, self.scores)

    def circumstances(self) -> dict[str, Any]:
        """Returns a result's fields beside the bounds: setting, runs, provenance and the store's folder."""
        return {
            "setting": flat(self.request.setting),
            "runs": self.request.runs,
            "provenance": self.provenance,
            "out": str(self.store.path),
        }


class Written(NamedTuple):
    """The result of an audit, after the attempt to write its files.

    Attributes:
      result: The result as JSON on a single line.
      refusal: The reason why the files could not be written; empty where they were.
    """

    result: str
    refusal: str = ""


ShowLook = Callable[[Conclusion, int], None]  # (conclusion, the look's number, from 1) -> shows it


def complete(
    request: AuditRequest,
    out: Path,
    engines: "AbstractContextManager[TrainingEngine]",
    show_look: ShowLook,
) -> FinishedAudit:
    """Trains the runs that the store lacks, and returns the finished audit.

    Training stops early where fewer runs than requested prove enough by the rule `request.until`. The
    returned audit's `request.runs` is the number of runs that there are.

    Args:
      request: What is audited.
      out: The folder of all stores.
      engines: A context that yields the engine that trains. It is entered only where there is something to
        train.
      show_look: (conclusion, the look's number, from 1) -> None; called at each declared look.

    Raises:
      InputError: Setting, data, looks and store don't fit.
    """
    store = stored.find_store(out, request.setting, request.dataset)
    if store is not None:
        request = _stop_where_proven(request, store)
        if _is_done(request, store):  # never where this request declares looks
            # Raises InputError where an earlier audit declared looks: this would be another look.
            results.require_declared(store, [])
            stored_result = store.result() or Kept()  # empty where audit.json is gone by now
            provenance = stored_result.provenance
            return FinishedAudit(request, store, store.load(request.runs), provenance)

    with engines as engine:
        game_recipe = recipe(request.setting, request.runs, request.dataset)
        trainer = engine.trainer(game_recipe, request.dataset)
        store = stored.open_store(out, request.setting, request.dataset)
        results.require_declared(store, request.looks)
        if request.looks:
            trained = _train_to_looks(request, store, trainer, show_look)
        elif request.setting.adversary.any_time:
            # The bounds hold wherever training stops, so it may stop early.
            trained = _train_until_proven(request, store, trainer)
        else:
            trained = _train(request, store, trainer, request.runs)
        # There are fewer runs than requested where training stopped early.
        request = request._replace(runs=len(trained.scores.scores))
        return FinishedAudit(request, store, trained.scores, trainer.about(), trained)


def write(finished: FinishedAudit, conclusion: Conclusion) -> Written:
    """Writes the bounds and their figure to the store, and returns the result.

    Where the files can't be written, the result is returned nevertheless, with the reason.

    Args:
      finished: The audit.
      conclusion: The conclusion from its scores.
    """
    from audit.report import audit_panels  # loads Matplotlib

    circumstances = finished.circumstances()
    request = finished.request
    try:
        figure = audit_panels.audit_figure(conclusion, summary(request.setting, request.runs))
        result, _ = results.keep(finished.store, conclusion, figure, **circumstances)
    except files.CannotWriteError as error:
        return Written(results.result_json(conclusion, **circumstances), str(error))
    return Written(result)


def _stop_where_proven(request: AuditRequest, store: Store) -> AuditRequest:
    """Returns the request with the first number of runs that satisfies `until`, if the store has so many.

    Otherwise it returns the request unchanged. So it does for an adversary whose bounds hold only at a number
    of runs that is fixed in advance: there training must not stop early.
    """
    held = min(store.runs_held(), request.runs)
    if not held or not request.setting.adversary.any_time:
        return request
    conclusion = request.conclude(store, store.load(held), is_interim=True)
    return request._replace(runs=request.first_proven(conclusion) or request.runs)


def _is_done(request: AuditRequest, store: Store) -> bool:
    """Returns whether the store has all runs and a conclusion; never where looks are declared."""
    if request.looks or store.missing(request.runs):
        return False
    return concluded_runs(store) > 0


def _train(request: AuditRequest, store: Store, trainer: Trainer, most_trained: int) -> "Trained":
    """Trains the runs that the store lacks, under a progress bar.

    Args:
      request: What is audited, with the number of runs that the store is to have.
      store: The store of the setting.
      trainer: What trains.
      most_trained: The most runs that can be left to train; a chunk of runs is no larger.
    """
    from audit.training import training

    with progress.bar(training.count_missing(store, request.runs)) as bar:
        return trainer.train(
            RunsRequest(store, request.runs, most_trained, request.chunk_size, bar)
        )


def _train_to_looks(
    request: AuditRequest, store: Store, trainer: Trainer, show_look: ShowLook
) -> "Trained":
    """Trains from each declared look to the next; stores the result of each look and shows it.

    Returns:
      The scores of all runs, with what the training of all stages took.
    """
    from audit.training import training

    stages = []
    runs_before = 0
    for number, runs in enumerate(request.looks, 1):
        stage = request._replace(runs=runs)
        trained = _train(stage, store, trainer, runs - runs_before)
        stages.append(trained)
        look = FinishedAudit(stage, store, trained.scores, trainer.about())
        conclusion = look.conclude()
        # Recorded before it is shown. The result of a look that was taken before is not stored again.
        if results.take_looks(store, request.looks, number):
            results.keep_result(store, conclusion, **look.circumstances())
        show_look(conclusion, number)
        runs_before = runs
    return training.merge(stages)


def _train_until_proven(request: AuditRequest, store: Store, trainer: Trainer) -> "Trained":
    """Trains in stages, until enough is proven, the minutes are up, or all runs are trained.

    A progress bar says what is proven; without `until` it is updated every few seconds. The returned scores
    are those of the first number of runs that proves enough, so that they do not depend on the size of
    stages.
    """
    from audit.training import training

    stage = min(request.chunk_size or trainer.stage(request.runs), request.runs)  # a number of runs
    deadline = math.inf
    if request.minutes is not None:
        deadline = time.monotonic() + 60 * request.minutes

    stages: list[Trained] = []
    runs = 0
    status = "training"
    last_look = time.monotonic()
    proven_at = None
    # The bar calls the status' lambda whenever it is redrawn, and so shows the latest status.
    with progress.bar(
        training.count_missing(store, request.runs),
        lambda: status,
        has_stopped=lambda: runs < request.runs,  # the bar is then not filled at the end
    ) as bar:
        while runs < request.runs and proven_at is None:
            if stages and time.monotonic() > deadline:  # the first stage is trained in any case
                break
            # Other workers may have stored runs meanwhile: the stage begins after them.
            runs = min(max(runs, store.runs_held()) + stage, request.runs)
            runs_request = RunsRequest(store, runs, stage, request.chunk_size or stage, bar)
            stages.append(trainer.train(runs_request))

            # With `until` each stage is concluded, as it may be the last. Without, it is only shown.
            if request.until is None and time.monotonic() < last_look + _LOOK_SECONDS:
                continue
            conclusion = request.conclude(store, stages[-1].scores, is_interim=True)
            last_look = time.monotonic()
            upper_bound = conclusion.upper_bound or math.inf
            proven = at_least(conclusion.epsilon, 1)
            status = f"proven {proven} of {at_most(upper_bound, 1)}"
            proven_at = request.first_proven(conclusion)

    trained = training.merge(stages)
    # The last stage may have runs beyond the first number that proves enough.
    return trained._replace(scores=trained.scores.of_first(proven_at or runs))
