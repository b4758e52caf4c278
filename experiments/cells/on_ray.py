"""Trainings on a Ray cluster: some chunks of runs, and cells that are not cut, as tasks; the driver has the
store.

A task asks for one GPU where the cluster has any, or else for as many cores as its smallest node has, and a
worker trains with as many devices: on nodes that are alike, scores are those of one alone, to the bit.
Ray does a task of a worker or a node that died again. A driver that is killed has kept every chunk that came
back, and its successor trains the rest.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax

from audit.errors import InputError
from audit.storage import files, shares
from audit.task import Dataset
from audit.training import Trained
from experiments.cells import jobs, work
from experiments.cells.cell import Cell, GameRecipe
from experiments.cells.cluster import Cluster
from experiments.cells.jobs import CellJob, Job, RunsJob
from experiments.cells.work import Outcome, SweepProgress, TrainingEngine, Wanted, Workplace

_POLL_SECONDS = 1.0


def engine(cluster: Cluster) -> TrainingEngine:
    """The engine of a cluster; this process leaves its own accelerators to the cluster's workers."""
    jax.config.update("jax_platforms", "cpu")
    return TrainingEngine(partial(_Trainer, cluster), partial(do_all, cluster))


class _Trainer:
    def __init__(self, cluster: Cluster, recipe: GameRecipe, data: Dataset) -> None:
        """Asks a worker whether recipe and data fit."""
        self._cluster, self._sent = cluster, (recipe, cluster.share(data))
        self._about: dict[str, Any] = cluster.call(jobs.about, *self._sent)

    def train(self, wanted: Wanted) -> Trained:
        begin, job = time.perf_counter(), RunsJob(self._cluster, self._sent, wanted)
        while wanted.store.missing(wanted.runs):
            with wanted.store.claim(), shares.all_below(wanted.store, wanted.runs) as mine:
                if mine:
                    for _, error in jobs.done(self._cluster, [job]):
                        if error is not None:
                            raise error
                    break
            time.sleep(_POLL_SECONDS)
        seconds, scores = time.perf_counter() - begin, wanted.store.load(wanted.runs)
        return Trained(scores, job.trained, seconds, job.prepared.size, job.trained * job.prepared.steps)

    def about(self) -> dict[str, Any]:
        return self._about


def do_all(cluster: Cluster, cells: list[Cell], place: Workplace) -> Outcome:
    """Does what the store lacks, as `work.do_all`; of cells that others hold it waits for the end."""
    progress, waiting = SweepProgress(cells), cells
    outcome = Outcome([], [], [])
    try:
        while waiting:
            sweep = _Sweep(cluster, place, progress, outcome)
            with sweep.held:
                for job, error in jobs.done(cluster, sweep.jobs(waiting)):
                    sweep.end(job, error)
            if sweep.left:
                time.sleep(_POLL_SECONDS)
            waiting = sweep.left
    finally:
        progress.close()
    return outcome


class _Sweep:
    """Cells that are done on a cluster; those under way by their jobs, with what is done at the end and what
    they hold; and those that others hold."""

    def __init__(self, cluster: Cluster, place: Workplace, progress: SweepProgress, outcome: Outcome) -> None:
        self._cluster, self._place, self._progress, self._outcome = cluster, place, progress, outcome
        self._under_way: dict[Job, tuple[Cell, Callable[[], object], ExitStack]] = {}
        self.held = ExitStack()
        self.left: list[Cell] = []

    def jobs(self, cells: list[Cell]) -> Iterator[Job]:
        """The cells' jobs, each opened when it is asked for."""
        for cell in cells:
            try:
                if work.is_done(cell, self._place):
                    self._outcome.elsewhere.append(cell.name)
                    self._progress.end(cell)
                elif (job := self._opened(cell)) is not None:
                    yield job
                else:
                    self.left.append(cell)
            except files.CannotWriteError:
                raise
            except InputError as error:
                self._fail(cell, error)

    def end(self, job: Job, error: InputError | None) -> None:
        """Concludes a cell whose job ended, or says why it failed, and gives it back."""
        cell, conclude, held = self._under_way.pop(job)
        with held:
            if error is not None:
                self._fail(cell, error)
                return
            conclude()
            self._outcome.here.append(cell.name)
            self._progress.end(cell)

    def _opened(self, cell: Cell) -> Job | None:
        """A cell's job, under its claim; None where another worker has one."""
        store, held = cell.open(self._place.out, self._place.data), self.held.enter_context(ExitStack())
        mine = held.enter_context(store.claim()) and held.enter_context(shares.all_below(store, cell.runs))
        if not mine:
            held.close()
            return None
        if cell.parts is None:
            whole = CellJob(self._cluster, cell, self._place)
            self._under_way[whole] = cell, lambda: None, held
            return whole
        data = cell.parts.data(self._place.data)
        sent = cell.parts.recipe(data), self._cluster.share(data)
        begin = functools.cache(lambda: self._progress.begin(cell))  # when someone first hears of it
        wanted = Wanted(store, cell.runs, cell.runs, 0, lambda runs: begin()(runs))
        job, conclude = RunsJob(self._cluster, sent, wanted), cell.parts.conclude
        self._under_way[job] = cell, lambda: conclude(store, job.prepared.about), held
        return job

    def _fail(self, cell: Cell, error: InputError) -> None:
        self._progress.say(f"failed: {cell.name}: {error}")
        self._outcome.failed.append(cell.name)
        self._progress.end(cell)
