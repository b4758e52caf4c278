"""The driver of an audit: trains the runs that a store lacks, until enough is proven, concludes, and keeps.

Audits from Python, the command `audit` and the cells of sweeps all go through it.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from audit.conclusions import lipschitz, measuring, results
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.lipschitz import Steps
from audit.laws import conversions
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.report.table import at_least, at_most
from audit.runtime import machine
from audit.runtime.machine import Progress
from audit.settings import make
from audit.settings.setting import Setting, flat, identity, summary
from audit.storage import files
from audit.storage.store import FIGURE, Scores, Store
from audit.tasks.task import Dataset
from audit.training import build, game
from audit.training.game import Game, Trained
from audit.written import Level

PAGE = "report.html"
_USUAL_LEVEL = Level()

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
    make: Callable[[Dataset], Game]
    about: Callable[[Dataset], dict[str, Any]]


class Trainer(Protocol):
    """What trains the runs of a game, here or elsewhere."""

    def train(self, store: Store, runs: int, most: int, progress: Progress, /) -> Trained:
        """Trains the runs that the store lacks, and returns the scores of all runs.

        Args:
          store: the store.
          runs: the number of runs that the store is to have afterwards.
          most: the most runs that will have to be trained; chunks are no larger.
          progress: called with 0 once all is compiled, then with the number of runs trained since the last
            call.
        """

    def stage(self, runs: int) -> int:
        """Returns how many of these runs are best trained between two looks at what they prove."""

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training, to be stored with the scores."""


class LocalTrainer:
    """A trainer in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        """Makes the game; raises InputError if recipe and data don't fit."""
        self._game = recipe.make(data)
        self.about = partial(recipe.about, data)
        self.stage = partial(game.chunk_size, self._game)

    def train(self, store: Store, runs: int, most: int, progress: Progress) -> Trained:
        """Trains the runs that the store lacks, in chunks of what fits into memory; see `Trainer`."""
        return game.train(self._game, store, runs, self.stage(most), progress=progress)


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
    trained: Trained | None = None

    def circumstances(self) -> dict[str, Any]:
        """Returns a result's fields next to the bounds: setting, runs, provenance and the store's folder."""
        return {
            "setting": flat(self.request.setting),
            "runs": self.request.runs,
            "provenance": self.provenance,
            "out": str(self.store.path),
        }


def make_request(
    setting: Setting,
    dataset: Dataset,
    runs: int,
    level: Level = _USUAL_LEVEL,
    rehearsed: int | None = None,
    until: Until | None = None,
) -> Request:
    """Returns the request for an audit of one of the repository's models.

    The upper bound on what the last model leaks needs to know how far a training step can drive two models
    apart. For some models this is measured along training runs, and kept in the store.

    Args:
      setting: the training and its adversary.
      dataset: the data.
      runs: the most models to train.
      level: the delta and the confidence of the bounds.
      rehearsed: the number of runs along which the steps' Lipschitz constants are measured if the store lacks
        them; None to measure nothing.
      until: the rule that decides when enough is proven to stop training.
    """

    def find_steps(store: Store) -> Steps | None:
        """Returns the Lipschitz constants of the steps, if they are known."""
        if rehearsed is not None and lipschitz.find_measured(store, rehearsed) is None:
            measuring.measure_zoo(store, setting, dataset, rehearsed)
        return lipschitz.find_current(store)

    return Request(
        setting, dataset, runs, make_recipe(setting, dataset), level, find_steps, until=until
    )


def make_recipe(setting: Setting, dataset: Dataset) -> GameRecipe:
    """Returns how any process makes the game of a setting of one of the repository's models."""
    key = json.dumps([identity(setting), dataset.checksum])
    return GameRecipe(key, partial(build.build, setting), build.provenance)


def audit(
    request: Request,
    out: Path,
    engines: AbstractContextManager[Any] | None = None,
    report: Progress | None = None,
) -> Finished:
    """Trains the runs that the store lacks, and concludes.

    Training stops early if fewer runs than requested prove enough by the rule `request.until`.

    Args:
      request: what is audited.
      out: the folder of all stores.
      engines: a context that yields the engine that trains, whose `trainer` maps (recipe, data) to a
        `Trainer`; by default that of this process. It is entered only if there is something to train.
      report: called with the number of runs trained since the last call; by default a progress bar shows it.

    Raises:
      InputError: setting, data and store don't fit, or a run diverged.
    """
    setting, dataset = request.setting, request.dataset
    trained = None
    store = make.find_store(out, setting, dataset, model=request.model)
    if store is not None:
        request = _stop_where_proven(request, store)
    if store is not None and not store.missing(request.runs):
        kept = store.result()
        provenance = kept.provenance or request.recipe.about(dataset)
        scores = store.load(request.runs)
    else:
        with engines or nullcontext() as engine:
            make_trainer = engine.trainer if engine is not None else LocalTrainer
            trainer = make_trainer(request.recipe, dataset)
            store = make.open_store(out, setting, dataset, model=request.model)
            trained = _train(request, store, trainer, report)
            provenance = trainer.about()
        # There are fewer runs than requested if training stopped early.
        scores = trained.scores
        request = request._replace(runs=len(scores.scores))
    conclusion = request.conclude(store, scores)
    return Finished(request, store, scores, conclusion, provenance, trained)


def keep(finished: Finished, pictures: Sequence[str] = (), **more: Any) -> None:
    """Writes a conclusion to its store.

    Args:
      finished: the audit.
      pictures: what is written next to audit.json: FIGURE and PAGE, or one of them.
      **more: further entries of audit.json.

    Raises:
      CannotWriteError: the files can't be written.
    """
    store = finished.store
    results.keep_result(store, finished.conclusion, **finished.circumstances(), **more)
    if FIGURE in pictures:
        from audit.report import audit_panels, style  # loads Matplotlib

        title = summary(finished.request.setting, finished.request.runs)
        figure = audit_panels.audit_figure(finished.conclusion, title)
        files.write_whole(store.path / FIGURE, style.png(figure))
    if PAGE in pictures:
        from audit.report import audit_page, subjects

        subject = subjects.describe_setting(store.path, subjects.RequestedLevels())
        files.write_whole(store.path / PAGE, audit_page.make_audits_page([subject]))


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
        # All audits that may stop early have the bound on mu, whose path is in epsilon too.
        epsilon = conversions.epsilon_from_mu(multiple * mu, conclusion.delta)
        return _find_first_reaching(conclusion.bound(EXACT_NULL_GDP).path, epsilon)

    return find_first


def until_refuted(conclusion: Conclusion) -> int | None:
    """Returns the number of runs after which the claim was refuted; None if it is not refuted."""
    test = conclusion.claim_test
    return test.runs if test is not None and test.refuted else None


def _find_first_reaching(path: Sequence[float], epsilon: float) -> int | None:
    """Returns the first number of runs after which a bound is at least epsilon; None if it never is."""
    return next((runs for runs, proven in enumerate(path, 1) if proven >= epsilon), None)


def _stop_where_proven(request: Request, store: Store) -> Request:
    """Returns the request with the first number of runs that satisfies `until`, if the store has so many."""
    held = min(store.runs_held(), request.runs)
    if not held or request.until is None:
        return request
    conclusion = request.conclude(store, store.load(held))
    return request._replace(runs=request.until(conclusion) or request.runs)


def _train(request: Request, store: Store, trainer: Trainer, report: Progress | None) -> Trained:
    """Trains the runs that the store lacks; with `until`, in stages until enough is proven.

    A progress bar shows the runs, unless their number is reported, and what is proven. The returned scores
    are those of the first number of runs that proves enough: they do not depend on the size of stages.
    """
    most = request.runs
    missing = int(np.diff(store.missing(most)).sum())
    if request.until is None:
        with nullcontext(report) if report else machine.bar(missing) as advance:
            return trainer.train(store, most, most, advance)

    stage = min(trainer.stage(most), most)  # a number of runs
    trained = None
    runs = 0
    status = "training"
    # The bar calls the functions whenever it is redrawn. It is not filled at the end if training stops early.
    with machine.bar(missing, lambda: status, has_stopped=lambda: runs < most) as bar:
        while runs < most:
            # Other workers may have stored runs meanwhile: the stage begins after them.
            runs = min(max(runs, store.runs_held()) + stage, most)
            trained = trainer.train(store, runs, stage, bar).after(trained)
            conclusion = request.conclude(store, trained.scores)
            upper_bound = conclusion.upper_bound or math.inf
            status = f"proven {at_least(conclusion.epsilon, 1)} of {at_most(upper_bound, 1)}"
            # The last stage may have runs beyond the first number that proves enough.
            if enough := request.until(conclusion):
                return trained._replace(scores=trained.scores.of_first(enough))
    assert trained is not None  # there is at least a run
    return trained
