"""The driver of an audit: trains the runs that a store lacks, until enough is proven, concludes, and keeps.

Audits from Python, the command `audit` and the cells of sweeps all go through it.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from audit.conclusions import lipschitz, rehearsals, results
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.lipschitz import Steps
from audit.laws import conversions
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import Level
from audit.report.table import at_least, at_most
from audit.runtime import progress
from audit.runtime.progress import Progress
from audit.settings import stored
from audit.settings.setting import Setting, flat, identity, summary
from audit.storage.store import FIGURE, Kept, Scores, Store
from audit.tasks.task import Dataset

if TYPE_CHECKING:
    from audit.training.game import Game
    from audit.training.training import Trained

PAGE = "report.html"

# (conclusion) -> the first number of runs that proves enough; None if all runs do not yet.
Until = Callable[[Conclusion], int | None]


class GameRecipe(NamedTuple):
    """How to make a game; it can be sent to processes that have no store.

    Attributes:
      key: a text that is the same for equal games on equal data.
      make: (data) -> the game; raises InputError if it can't be made.
      about: (data) -> the versions and devices of the process, which are stored with its scores.
    """

    key: str
    make: "Callable[[Dataset], Game]"
    about: Callable[[Dataset], dict[str, Any]]


class RunsRequest(NamedTuple):
    """A request to train the runs that a store lacks.

    Attributes:
      store: the store.
      runs: the number of runs that the store is to have afterwards.
      most_trained: the most runs that will have to be trained; chunks are no larger.
      progress: (runs) -> anything; called with 0 once all is compiled, then with the number of runs trained
        since the last call.
    """

    store: Store
    runs: int
    most_trained: int
    progress: Progress


class Trainer(Protocol):
    """What trains the runs of a game, here or elsewhere."""

    def train(self, request: RunsRequest, /) -> "Trained":
        """Trains the runs that the store lacks, and returns the scores of all runs."""

    def stage(self, runs: int) -> int:
        """Returns how many of these runs are best trained between two looks at what they prove."""

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training, to be stored with the scores."""


class HasTrainer(Protocol):
    """What trains, on this machine or elsewhere."""

    @property
    def trainer(self) -> Callable[[GameRecipe, Dataset], Trainer]:
        """(recipe, data) -> a trainer; raises InputError if recipe and data don't fit."""


class LocalTrainer:
    """A trainer in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        """Makes the game; raises InputError if recipe and data don't fit."""
        self._recipe = recipe
        self._data = data
        self._game = recipe.make(data)

    def train(self, request: RunsRequest) -> "Trained":
        """Trains the runs that the store lacks, and returns the scores of all runs."""
        from audit.training import training  # loads JAX

        chunk = 0
        # The size of chunks depends on the memory of a step, which is computed only if runs are missing.
        if training.count_missing(request.store, request.runs):
            chunk = training.chunk_size(self._game, request.most_trained, 0)
        return training.train(
            self._game, request.store, request.runs, chunk, progress=request.progress
        )

    def stage(self, runs: int) -> int:
        """Returns the size of a chunk, of these runs, that fits into memory."""
        from audit.training import training

        return training.chunk_size(self._game, runs, 0)

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training, to be stored with the scores."""
        return self._recipe.about(self._data)


class LocalEngine(NamedTuple):
    """The engine of this process."""

    trainer: Callable[[GameRecipe, Dataset], Trainer] = LocalTrainer


class Request(NamedTuple):
    """What is audited, and when training stops.

    Attributes:
      setting: the training and its adversary.
      dataset: the data to train on.
      runs: the most models to train.
      recipe: how the game is made.
      level: the delta and the confidence of the bounds.
      find_steps: (store) -> the Lipschitz constants of the training's steps; None if they are not known.
      model: the checksum of a caller's own model; None for the repository's models.
      until: the rule that decides when enough is proven to stop training; None to train all runs.
    """

    setting: Setting
    dataset: Dataset
    runs: int
    recipe: GameRecipe
    level: Level = Level()
    find_steps: Callable[[Store], Steps | None] = lambda store: None
    model: str | None = None
    until: Until | None = None

    def conclude(self, store: Store, scores: Scores) -> Conclusion:
        """Returns the conclusion from scores, with the bound on what the last model leaks."""
        steps = self.find_steps(store)
        is_own = self.model is not None
        return conclude_setting(scores, self.setting, self.level, own_model=is_own, steps=steps)


class Finished(NamedTuple):
    """An audit whose training is finished, and its conclusion.

    Attributes:
      request: what was audited; its `runs` is the number of runs that there are.
      store: the store of the scores.
      scores: the scores of all runs.
      conclusion: the conclusion from them.
      provenance: the versions and devices that trained them.
      trained: what training took in this process; None if the store had all runs already.
    """

    request: Request
    store: Store
    scores: Scores
    conclusion: Conclusion
    provenance: dict[str, Any]
    trained: "Trained | None" = None

    def circumstances(self) -> dict[str, Any]:
        """Returns a result's fields next to the bounds: setting, runs, provenance and the store's folder."""
        return {
            "setting": flat(self.request.setting),
            "runs": self.request.runs,
            "provenance": self.provenance,
            "out": str(self.store.path),
        }


def make_recipe(setting: Setting, dataset: Dataset) -> GameRecipe:
    """Returns how any process makes the game of a setting of one of the repository's models."""
    from audit.training import build  # loads JAX

    key = json.dumps([identity(setting), dataset.checksum])
    return GameRecipe(key, partial(build.build, setting), build.provenance)


def find_zoo_steps(
    setting: Setting, dataset: Dataset, rehearsed: int | None, store: Store
) -> Steps | None:
    """Returns the Lipschitz constants of the steps of one of the repository's models, if they are known.

    The upper bound on what the last model leaks needs to know how far a training step can drive two models
    apart. For some models this is measured along training runs, and kept in the store.

    Args:
      setting: the setting.
      dataset: the data.
      rehearsed: the number of runs along which to measure; None to measure nothing.
      store: the store of the setting.
    """
    if rehearsed is not None and rehearsals.find_measured(store, rehearsed) is None:
        from audit.conclusions import measuring  # loads JAX

        measuring.measure_zoo(store, setting, dataset, rehearsed)
    return lipschitz.find_current(store)


def audit(
    request: Request,
    out: Path,
    engines: AbstractContextManager[HasTrainer] | None = None,
    report: Progress | None = None,
) -> Finished:
    """Trains the runs that the store lacks, and concludes.

    Training stops early if fewer runs than requested prove enough by the rule `request.until`.

    Args:
      request: what is audited.
      out: the folder of all stores.
      engines: a context that yields the engine that trains; by default that of this process. It is entered
        only if there is something to train.
      report: called with the number of runs trained since the last call; by default a progress bar shows it.

    Raises:
      InputError: setting, data and store don't fit, or a run diverged.
    """
    setting, dataset = request.setting, request.dataset
    store = stored.find_store(out, setting, dataset, model=request.model)
    if store is not None:
        request = _stop_where_proven(request, store)
        if not store.missing(request.runs):
            kept = store.result() or Kept()  # empty if there is no audit.json
            provenance = kept.provenance or request.recipe.about(dataset)
            return finish(request, store, store.load(request.runs), provenance)

    with engines or nullcontext(LocalEngine()) as engine:
        trainer = engine.trainer(request.recipe, dataset)
        store = stored.open_store(out, setting, dataset, model=request.model)
        if request.until is None:
            trained = _train(request, store, trainer, report)
        else:
            trained = _train_until_proven(request, store, trainer, request.until)
        # There are fewer runs than requested if training stopped early.
        request = request._replace(runs=len(trained.scores.scores))
        provenance = trainer.about()
    return finish(request, store, trained.scores, provenance, trained)


def finish(
    request: Request,
    store: Store,
    scores: Scores,
    provenance: dict[str, Any],
    trained: "Trained | None" = None,
) -> Finished:
    """Returns the audit with its conclusion from all scores."""
    conclusion = request.conclude(store, scores)
    return Finished(request, store, scores, conclusion, provenance, trained)


def keep(finished: Finished, files: Sequence[str] = (), **more: Any) -> None:
    """Writes a conclusion to its store.

    Args:
      finished: the audit.
      files: what is written next to audit.json: FIGURE and PAGE, or one of them.
      **more: further entries of audit.json.

    Raises:
      CannotWriteError: the files can't be written.
    """
    store = finished.store
    circumstances = finished.circumstances() | more
    results.keep_result(store, finished.conclusion, **circumstances)
    if FIGURE in files:
        from audit.report import audit_panels  # loads Matplotlib

        request = finished.request
        title = summary(request.setting, request.runs)
        store.write_bytes(FIGURE, audit_panels.audit_figure(finished.conclusion, title))
    if PAGE in files:
        from audit.report import audit_page, subjects

        subject = subjects.describe_setting(store.path, subjects.RequestedLevels())
        store.write_bytes(PAGE, audit_page.make_audits_page([subject]))


def until_epsilon(epsilon: float) -> Until:
    """Returns the rule to train until `epsilon` is proven by the bound that assumes nothing."""
    return lambda conclusion: _find_first_reaching(conclusion.path, epsilon)


def until_multiple(multiple: float) -> Until:
    """Returns the rule to train until a multiple of the claim is proven.

    If the claim is an epsilon, `multiple` times this epsilon has to be proven, by the bound that assumes
    nothing. If the claim is mu-GDP, `multiple` times mu has to be proven, by the lower bound on mu of an
    audit whose runs each draw their own canaries (exact_null_gdp).
    """

    def find_first(conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that proves enough; None if none does, or without a claim."""
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
    """Returns the number of runs after which the claim was refuted; None if it is not refuted."""
    test = conclusion.claim_test
    if test is None or not test.refuted:
        return None
    return test.runs


def _find_first_reaching(path: Sequence[float], epsilon: float) -> int | None:
    """Returns the first number of runs after which a bound is at least epsilon; None if it never is."""
    for runs, proven in enumerate(path, 1):
        if proven >= epsilon:
            return runs
    return None


def _stop_where_proven(request: Request, store: Store) -> Request:
    """Returns the request with the first number of runs that satisfies `until`, if the store has so many."""
    held = min(store.runs_held(), request.runs)
    if not held or request.until is None:
        return request
    conclusion = request.conclude(store, store.load(held))
    return request._replace(runs=request.until(conclusion) or request.runs)


def _train(request: Request, store: Store, trainer: Trainer, report: Progress | None) -> "Trained":
    """Trains the runs that the store lacks, under a progress bar unless their number is reported."""
    from audit.training import training

    runs = request.runs
    if report is not None:
        return trainer.train(RunsRequest(store, runs, runs, report))
    with progress.bar(training.count_missing(store, runs)) as bar:
        return trainer.train(RunsRequest(store, runs, runs, bar))


def _train_until_proven(
    request: Request, store: Store, trainer: Trainer, until: Until
) -> "Trained":
    """Trains in stages, until enough is proven or all runs are trained.

    A progress bar shows what is proven. The returned scores are those of the first number of runs that proves
    enough, so that they do not depend on the size of stages.
    """
    from audit.training import training

    stage = min(trainer.stage(request.runs), request.runs)  # a number of runs
    stages: list[Trained] = []
    runs = 0
    status = "training"
    proven_at = None
    # The bar calls the status' lambda whenever it is redrawn, and so shows the latest status.
    with progress.bar(
        training.count_missing(store, request.runs),
        lambda: status,
        has_stopped=lambda: runs < request.runs,  # the bar is then not filled at the end
    ) as bar:
        while runs < request.runs and proven_at is None:
            # Other workers may have stored runs meanwhile: the stage begins after them.
            runs = min(max(runs, store.runs_held()) + stage, request.runs)
            stages.append(trainer.train(RunsRequest(store, runs, stage, bar)))
            conclusion = request.conclude(store, stages[-1].scores)
            upper_bound = conclusion.upper_bound or math.inf
            proven = at_least(conclusion.epsilon, 1)
            status = f"proven {proven} of {at_most(upper_bound, 1)}"
            proven_at = until(conclusion)

    trained = training.merge(stages)
    # The last stage may have runs beyond the first number that proves enough.
    return trained._replace(scores=trained.scores.of_first(proven_at or runs))
