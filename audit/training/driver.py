"""Runs an audit: trains the missing runs, draws a conclusion from all scores, and writes it."""

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
from audit.storage.store import FIGURE, RESULT, Scores, Store, count_runs
from audit.tasks.task import Dataset
from audit.training import build, game
from audit.training.game import Game, Trained
from audit.written import USUAL_LEVEL, Level

PAGE = "report.html"

# (conclusion) -> the smallest number of runs that suffices; None if more are needed.
Until = Callable[[Conclusion], int | None]


class GameRecipe(NamedTuple):
    """Functions that make a game from data and can be sent to other processes.

    Attributes:
      key: a string that is the same for identical games on identical data.
      make: (data) -> the game; raises InputError if the data are unsuitable.
      about: (data) -> the versions and devices of the calling process, keyed by name.
    """

    key: str
    make: Callable[[Dataset], Game]
    about: Callable[[Dataset], dict[str, Any]]


class Trainer(Protocol):
    """Trains the runs of a game, on this machine or on others."""

    def train(self, store: Store, runs: int, max_chunk: int, progress: Progress) -> Trained:
        """Trains the missing runs among a store's first `runs`, and returns the scores of all `runs`.

        Chunks have up to `max_chunk` runs. `progress` is called with 0 after compilation, then with the
        number of runs trained since the last call.
        """

    def stage(self, runs: int) -> int:
        """Returns how many of `runs` runs to train before each check of the stopping rule."""

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training process, keyed by name."""


class LocalTrainer:
    """A `Trainer` in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        """Makes the game; raises InputError if the data do not suit the recipe."""
        self._game = recipe.make(data)
        # A stage is a chunk of runs that train simultaneously.
        self.stage = partial(game.chunk_size, self._game)
        self.about = partial(recipe.about, data)

    def train(self, store: Store, runs: int, max_chunk: int, progress: Progress) -> Trained:
        """Trains the missing runs in chunks that fit into memory; see `Trainer`."""
        chunk = game.chunk_size(self._game, max_chunk)
        return game.train(self._game, store, runs, chunk, progress=progress)


class Request(NamedTuple):
    """A request for an audit.

    Attributes:
      runs: the number of runs; with `until`, the maximum number.
      level: the delta and confidence level of the bounds.
      find_constants: (store) -> the Lipschitz constants of the training steps; None if unknown.
      model: the checksum of a custom model; None for one of the repository's models.
      until: the rule that may end training before `runs` runs; None to train all of them.
    """

    setting: Setting
    dataset: Dataset
    runs: int
    recipe: GameRecipe
    level: Level
    find_constants: Callable[[Store], Steps | None]
    model: str | None = None
    until: Until | None = None

    def conclude(self, store: Store, scores: Scores) -> Conclusion:
        """Returns the conclusion drawn from scores.

        If the steps' Lipschitz constants are known, they lower the upper bound for the last model.
        `own_model` excludes constants proven for the repository's models.
        """
        return conclude_setting(
            scores,
            self.setting,
            self.level,
            own_model=self.model is not None,
            steps=self.find_constants(store),
        )


class Finished(NamedTuple):
    """A finished audit.

    Attributes:
      request: the request, with `runs` set to the number of runs in `scores`.
      provenance: the versions and devices used for training, keyed by name.
      trained: the cost of training in this process; None if the store already had all runs.
    """

    request: Request
    store: Store
    scores: Scores
    conclusion: Conclusion
    provenance: dict[str, Any]
    trained: Trained | None

    def circumstances(self) -> dict[str, Any]:
        """Returns the setting, the number of runs, the provenance and the folder, keyed by JSON name."""
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

    The audit measures the steps' Lipschitz constants in `rehearsed` additional runs, unless `rehearsed` is
    None or the store has constants from at least that many runs. `Request` describes the other arguments.
    """

    def find_constants(store: Store) -> Steps | None:
        """Returns the steps' Lipschitz constants, measured first if necessary; None if they are unknown."""
        if rehearsed is not None:
            measuring.measure(store, setting, dataset, rehearsed)
        return lipschitz.find_current(store)

    key = json.dumps([identity(setting), dataset.checksum])
    recipe = GameRecipe(key, partial(build.build, setting), build.provenance)
    return Request(setting, dataset, runs, recipe, level, find_constants, until=until)


def audit(
    request: Request,
    out: Path,
    engines: AbstractContextManager[Any] | None = None,
    report: Progress | None = None,
) -> Finished:
    """Trains the runs that are not in the store and draws a conclusion from all runs.

    Args:
      out: the folder that contains all stores.
      engines: a context manager, entered only if runs are missing. It yields an engine whose method `trainer`
        maps (`GameRecipe`, data) to a `Trainer`. By default, training happens in this process.
      report: called with the number of runs trained since the last call, instead of a progress bar.

    Raises:
      InputError: the setting, data and store do not fit together, or a run diverged.
    """
    dataset = request.dataset
    trained = None
    store = make.open_store(out, request.setting, dataset, model=request.model)
    request = _stop_where_proven(request, store)
    if not store.missing(request.runs):
        # An interrupted audit stores scores, but no provenance.
        provenance = store.result().provenance or request.recipe.about(dataset)
        scores = store.load(request.runs)
    else:
        with engines or nullcontext() as engine:
            make_trainer = engine.trainer if engine is not None else LocalTrainer
            trainer = make_trainer(request.recipe, dataset)
            trained = _train(request, store, trainer, report)
            provenance = trainer.about()
        scores = trained.scores
        request = request._replace(runs=len(scores.scores))  # fewer if training ended early
    conclusion = request.conclude(store, scores)
    return Finished(request, store, scores, conclusion, provenance, trained)


def keep(finished: Finished, figure: bool = False, page: bool = False) -> None:
    """Writes a conclusion to its store as audit.json, and optionally as a figure and an HTML page.

    Raises:
      CannotWriteError: a file can't be written.
    """
    store = finished.store
    text = results.result_json(finished.conclusion, indent=2, **finished.circumstances())
    store.write_text(RESULT, text + "\n")
    if figure:
        from audit.report import audit_panels, style  # loads Matplotlib

        title = summary(finished.request.setting, finished.request.runs)
        drawn = audit_panels.audit_figure(finished.conclusion, title)
        files.write_whole(store.path / FIGURE, style.png(drawn))
    if page:
        from audit.report import audit_page, subjects

        subject = subjects.describe_setting(store.path)
        files.write_whole(store.path / PAGE, audit_page.make_page(subject))


def until_epsilon(epsilon: float) -> Until:
    """Returns a rule that ends training once the assumption-free bound reaches `epsilon`."""
    return lambda conclusion: _count_runs_to_prove(epsilon, conclusion.path)


def until_multiple(multiple: float) -> Until:
    """Returns a rule that ends training once a lower bound reaches `multiple` times the claimed leakage.

    For a claim of mu-GDP, the rule compares the bound exact_null_gdp with `multiple` times mu. For a claimed
    epsilon, it uses the assumption-free bound.
    """

    def count_runs(conclusion: Conclusion) -> int | None:
        """Returns how many runs a bound needs to reach `multiple` times the claim; None if it never does."""
        claim = conclusion.tightest  # the smallest upper bound on epsilon
        if claim is None:
            return None
        mu = conclusion.tightest_mu
        if mu is None:  # the claim is an epsilon
            return _count_runs_to_prove(multiple * claim.epsilon, bounds=conclusion.path)
        # EXACT_NULL_GDP is also a bound on mu.
        epsilon = conversions.epsilon_from_mu(multiple * mu, conclusion.delta)
        return _count_runs_to_prove(epsilon, bounds=conclusion.finding(EXACT_NULL_GDP).path)

    return count_runs


def until_refuted(conclusion: Conclusion) -> int | None:
    """Returns the number of runs after which the claim was refuted; None if it was not."""
    test = conclusion.claim_test
    if test is None or not test.refuted:
        return None
    return test.runs


def _count_runs_to_prove(epsilon: float, bounds: Sequence[float]) -> int | None:
    """Returns how many runs the lower bound needs to reach `epsilon`; None if it never does.

    `bounds` contains the lower bounds after 1, 2, ... runs.
    """
    for runs, bound in enumerate(bounds, 1):
        if bound >= epsilon:
            return runs
    return None


def _stop_where_proven(request: Request, store: Store) -> Request:
    """Returns the request, with fewer runs if stored ones already satisfy its stopping rule."""
    stored = min(store.runs_held(), request.runs)
    if not stored or request.until is None:
        return request
    conclusion = request.conclude(store, store.load(stored))
    sufficient = request.until(conclusion)
    return request if sufficient is None else request._replace(runs=sufficient)


def _train(request: Request, store: Store, trainer: Trainer, report: Progress | None) -> Trained:
    """Trains the missing runs, reports progress or shows a progress bar, and returns the scores.

    With a stopping rule `until`, it trains in stages and returns only the scores of the runs that the rule
    needs. Their number does not depend on the stage size, because the rule checks the bound after each run.
    """
    max_runs = request.runs
    missing = count_runs(store.missing(max_runs))
    trained_runs = 0
    seconds = 0.0
    runs = 0  # how many runs have scores after a stage
    status = "training"  # the progress bar shows the latest value
    with nullcontext(report) if report else machine.bar(missing, lambda: status) as advance:
        if request.until is None:
            return trainer.train(store, max_runs, max_chunk=max_runs, progress=advance)
        stage_size = min(trainer.stage(max_runs), max_runs)
        while True:
            # Another process may have stored more runs.
            runs = min(max(runs, store.runs_held()) + stage_size, max_runs)
            trained = trainer.train(store, runs, max_chunk=stage_size, progress=advance)
            trained_runs += trained.trained_runs
            seconds += trained.seconds
            trained = trained._replace(trained_runs=trained_runs, seconds=seconds)
            conclusion = request.conclude(store, trained.scores)
            upper_bound = conclusion.upper_bound or math.inf  # if there is none
            status = f"proven {at_least(conclusion.epsilon, 1)} of {at_most(upper_bound, 1)}"
            sufficient = request.until(conclusion)
            if sufficient is not None:
                return trained._replace(scores=store.load(sufficient))
            if runs == max_runs:
                return trained
