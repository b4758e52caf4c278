"""The driver of an audit: trains the missing runs of a store, concludes, and writes the conclusion.

Python's audits, the command `audit` and the cells of sweeps all use it.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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
from audit.storage.store import FIGURE, Scores, Store, count_runs
from audit.tasks.task import Dataset
from audit.training import build, game
from audit.training.game import Game, Trained
from audit.written import USUAL_LEVEL, Level

PAGE = "report.html"

# (conclusion) -> the first number of runs that proves enough; None if more runs are needed.
Until = Callable[[Conclusion], int | None]


class GameRecipe(NamedTuple):
    """How to make a game from data, in a form that other processes can receive.

    Attributes:
      key: a text that is the same for equal games on equal data.
      make: (data) -> the game; raises InputError if it can't be made.
      about: (data) -> the versions and devices of the process.
    """

    key: str
    make: Callable[[Dataset], Game]
    about: Callable[[Dataset], dict[str, Any]]


class Trainer(Protocol):
    """An object that trains the runs of a game, here or on other machines."""

    def train(self, store: Store, runs: int, most: int, progress: Progress, /) -> Trained:
        """Trains the missing runs of a store in chunks of at most `most`, and returns the scores of all runs.

        `progress` is called with 0 after compilation, then with the number of runs trained since the last
        call.
        """

    def stage(self, runs: int) -> int:
        """Returns the best number of runs, up to `runs`, to train before the next conclusion."""

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training."""


class LocalTrainer:
    """A trainer in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        """Makes the game; raises InputError if recipe and data don't fit."""
        self._game = recipe.make(data)
        self.about = partial(recipe.about, data)
        self.stage = partial(game.chunk_size, self._game)

    def train(self, store: Store, runs: int, most: int, progress: Progress) -> Trained:
        """Trains the missing runs in chunks that fit into memory; see `Trainer`."""
        return game.train(self._game, store, runs, self.stage(most), progress=progress)


class Request(NamedTuple):
    """A request for an audit.

    Attributes:
      setting, dataset: the training with its adversary, and its data.
      runs: the largest number of models to train.
      recipe: how to make the game.
      level: the delta and the confidence of the bounds.
      find_steps: (store) -> the Lipschitz constants of the training steps, or None if unknown.
      model: the checksum of a custom model; None for the repository's models.
      until: the rule that stops training early; None to train all runs.
    """

    setting: Setting
    dataset: Dataset
    runs: int
    recipe: GameRecipe
    level: Level = USUAL_LEVEL
    find_steps: Callable[[Store], Steps | None] = lambda store: None
    model: str | None = None
    until: Until | None = None

    def conclude(self, store: Store, scores: Scores) -> Conclusion:
        """Returns the conclusion from scores, with the hidden-state bound if constants are known."""
        steps = self.find_steps(store)
        is_own = self.model is not None
        return conclude_setting(scores, self.setting, self.level, own_model=is_own, steps=steps)


class Finished(NamedTuple):
    """A finished audit.

    Attributes:
      request: the request; its `runs` is the number of runs in `scores`.
      store, scores: the store, and the scores of all runs.
      conclusion: the conclusion from them.
      provenance: the versions and devices of the training.
      trained: the cost of training in this process; None if the store had all runs already.
    """

    request: Request
    store: Store
    scores: Scores
    conclusion: Conclusion
    provenance: dict[str, Any]
    trained: Trained | None = None

    def circumstances(self) -> dict[str, Any]:
        """Returns a result's setting, runs, provenance and folder, by name."""
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
    level: Level = USUAL_LEVEL,
    rehearsed: int | None = None,
    until: Until | None = None,
) -> Request:
    """Returns the request for an audit of one of the repository's models.

    `rehearsed` is the number of runs that measure the steps' Lipschitz constants, which the hidden-state
    bound needs, if the store does not have them. None skips the measurement. The other arguments are
    attributes of `Request`.
    """

    def find_steps(store: Store) -> Steps | None:
        """Returns the Lipschitz constants of the steps, if they are known."""
        if rehearsed is not None and lipschitz.find_measured(store, rehearsed) is None:
            measuring.measure_zoo(store, setting, dataset, rehearsed)
        return lipschitz.find_current(store)

    key = json.dumps([identity(setting), dataset.checksum])
    recipe = GameRecipe(key, partial(build.build, setting), build.provenance)
    return Request(setting, dataset, runs, recipe, level, find_steps, until=until)


def audit(
    request: Request,
    out: Path,
    engines: AbstractContextManager[Any] | None = None,
    report: Progress | None = None,
) -> Finished:
    """Trains the missing runs, and concludes.

    Args:
      request: the request.
      out: the folder of all stores.
      engines: a context that yields an engine, entered only if runs are missing. The engine's `trainer` maps
        (recipe, data) to a `Trainer`; by default this process trains.
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
        scores = trained.scores
        request = request._replace(runs=len(scores.scores))
    conclusion = request.conclude(store, scores)
    return Finished(request, store, scores, conclusion, provenance, trained)


def keep(finished: Finished, pictures: Sequence[str] = (), **more: Any) -> None:
    """Writes a conclusion to its store: audit.json with `more` entries, and the files `pictures`.

    `pictures` has FIGURE, PAGE or both.

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

        subject = subjects.describe_setting(store.path)
        files.write_whole(store.path / PAGE, audit_page.make_audits_page([subject]))


def until_epsilon(epsilon: float) -> Until:
    """Returns the rule to train until the assumption-free bound proves `epsilon`."""
    return lambda conclusion: _find_first_reaching(conclusion.path, epsilon)


def until_multiple(multiple: float) -> Until:
    """Returns the rule to train until a multiple of the claim is proven.

    If the claim is an epsilon, the assumption-free bound must prove `multiple` times this epsilon. If it is
    mu-GDP, the lower bound on mu (exact_null_gdp) must prove `multiple` times mu.
    """

    def find_first(conclusion: Conclusion) -> int | None:
        """Returns the first number of runs that proves enough; None without one, or without a claim."""
        mu = conclusion.tightest_mu
        upper = conclusion.tightest
        if upper is None:
            return None
        if mu is None:
            return _find_first_reaching(conclusion.path, multiple * upper.epsilon)
        epsilon = conversions.epsilon_from_mu(multiple * mu, conclusion.delta)
        return _find_first_reaching(conclusion.bound(EXACT_NULL_GDP).path, epsilon)

    return find_first


def until_refuted(conclusion: Conclusion) -> int | None:
    """Returns the number of runs that refuted the claim; None if it is not refuted."""
    test = conclusion.claim_test
    return test.runs if test is not None and test.refuted else None


def _find_first_reaching(path: Sequence[float], epsilon: float) -> int | None:
    """Returns the first number of runs with a bound of at least epsilon; None without one."""
    return next((runs for runs, proven in enumerate(path, 1) if proven >= epsilon), None)


def _stop_where_proven(request: Request, store: Store) -> Request:
    """Returns the request for the first number of stored runs that satisfies `until`, if one does."""
    held = min(store.runs_held(), request.runs)
    if not held or request.until is None:
        return request
    conclusion = request.conclude(store, store.load(held))
    return request._replace(runs=request.until(conclusion) or request.runs)


def _train(request: Request, store: Store, trainer: Trainer, report: Progress | None) -> Trained:
    """Trains the missing runs; with `until`, in stages until enough is proven.

    The result has the first number of runs that proves enough, for any size of stages.
    """
    most = request.runs
    missing = count_runs(store.missing(most))
    if request.until is None:
        with nullcontext(report) if report else machine.bar(missing) as advance:
            return trainer.train(store, most, most, advance)

    stage = min(trainer.stage(most), most)
    trained = None
    runs = 0
    status = "training"
    # It calls the functions whenever it is redrawn, and stays where it is if training stops early.
    with machine.bar(missing, lambda: status, has_stopped=lambda: runs < most) as bar:
        while runs < most:
            # Other processes may have stored runs meanwhile.
            runs = min(max(runs, store.runs_held()) + stage, most)
            trained = trainer.train(store, runs, stage, bar).after(trained)
            conclusion = request.conclude(store, trained.scores)
            upper_bound = conclusion.upper_bound or math.inf
            status = f"proven {at_least(conclusion.epsilon, 1)} of {at_most(upper_bound, 1)}"
            if enough := request.until(conclusion):
                return trained._replace(scores=trained.scores.of_first(enough))
    assert trained is not None
    return trained
