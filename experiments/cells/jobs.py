"""Trains on a Ray cluster: workers, which have no store, do tasks, and the driver stores what they return.

A task is some chunks of runs, or a whole cell. It requests one GPU where the cluster has any, else as many
cores as the smallest node has, and its worker trains with as many devices. So on nodes that are alike the
scores are those of a single node, to the bit. Where a worker or a node dies, Ray repeats its tasks. A driver
that is killed has stored every chunk that came back, and the next driver trains the rest.
"""

import dataclasses
import functools
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax

from audit.errors import InputError, require
from audit.runtime.machine import prepare_jax
from audit.runtime.progress import Progress
from audit.storage import files, shares
from audit.storage.store import Scores, Store
from audit.tasks.task import Dataset
from audit.training import driver, training
from audit.training.driver import GameRecipe, Request, RunsRequest
from audit.training.training import ChunkTrainer, Trained
from experiments.cells import audits, work
from experiments.cells.cell import Cell, DataSets
from experiments.cells.cluster import Cluster, Node
from experiments.cells.work import Outcome, SweepProgress, TrainingEngine, Workplace

_AHEAD = 2  # tasks that each worker has been given, so that no worker waits for the driver
_POLL_SECONDS = 1.0  # between two attempts to claim what another driver holds
_STAGE = 64  # runs that a cluster trains between two looks at what they prove
_TASK_SECONDS = 2.0  # of training in a task: many times what it takes to send a task and its result
_prepare_jax = functools.cache(prepare_jax)  # which does so once a process


class Preparation(NamedTuple):
    """What a worker finds out before any runs are trained.

    Attributes:
      size: The number of runs in a chunk.
      steps: The number of training steps in a run.
      about: The worker's versions and devices, to be stored beside the scores.
    """

    size: int
    steps: int
    about: dict[str, Any]


class Piece(NamedTuple):
    """A range of runs to train.

    Attributes:
      start: The first run.
      stop: The run after the last.
      size: The number of runs in a chunk, for which the program is compiled.
    """

    start: int
    stop: int
    size: int


# The tasks are functions that workers call. The first argument is the number of devices to train on.
# Ray shows the functions' names to users.


def prepare(devices: int, recipe: GameRecipe, data: Dataset, runs: int) -> Preparation:
    """Returns a worker's size of chunks, the number of steps of a run, and the worker's versions and devices.

    It runs on the worker.

    Args:
      devices: The number of devices to train on.
      recipe: How to make the game.
      data: The game's data.
      runs: The number of runs to train; chunks are no larger.
    """
    _prepare_jax(devices)
    game = recipe.make(data)
    size = training.chunk_size(game, runs, 0)
    steps = len(game.schedule.mask)  # which has an entry for each training step
    return Preparation(size=size, steps=steps, about=recipe.about(data))


def describe(devices: int, recipe: GameRecipe, data: Dataset) -> dict[str, Any]:
    """Returns a worker's versions and devices; raises InputError where recipe and data do not fit."""
    _prepare_jax(devices)
    recipe.make(data)
    return recipe.about(data)


def train(
    devices: int, recipe: GameRecipe, data: Dataset, piece: Piece
) -> tuple[list[Scores], float] | None:
    """Trains a range of runs, chunk by chunk, and returns their scores.

    It runs on a worker.

    Args:
      devices: The number of devices to train on.
      recipe: How to make the game.
      data: The game's data.
      piece: The range of runs to train, and the number of runs in a chunk.

    Returns:
      (the chunks' scores, the seconds of the fastest chunk); None where the devices' memory is too small.

    Raises:
      InputError: A run diverged.
    """
    _prepare_jax(devices)
    trainer = _make_trainer(_Training(recipe.key, piece.size, recipe, data))
    all_scores: list[Scores] = []
    fastest = math.inf  # in seconds; the first chunk's time may include compilation
    for chunk in shares.cut([(piece.start, piece.stop)], piece.size):
        begin = time.perf_counter()
        scores = trainer.train(chunk)
        if scores is None:
            return None  # out of memory: the driver has the whole piece trained in smaller chunks
        all_scores.append(scores)
        fastest = min(fastest, time.perf_counter() - begin)
    return all_scores, fastest


@dataclasses.dataclass(frozen=True)
class _Training:
    """The training of a game in chunks of a size: equal to another by the recipe's key and the size."""

    key: str
    size: int
    recipe: GameRecipe = dataclasses.field(compare=False)
    data: Dataset = dataclasses.field(compare=False)


# A worker does many tasks of the same game: the last trainer, with its data on the devices and its programs,
# is used again.
@functools.lru_cache(1)
def _make_trainer(training: _Training) -> ChunkTrainer:
    return ChunkTrainer(training.recipe.make(training.data), training.size)


def do_cell(devices: int, cell: Cell, data: DataSets) -> dict[str, bytes]:
    """Does a cell, a piece of a sweep's work, in an empty temporary store; returns the files that it wrote.

    It runs on a worker, which need not reach the driver's store.

    Args:
      devices: The number of devices to train on.
      cell: The cell.
      data: The cell's data.

    Returns:
      The files' contents, by the files' paths below the store's root.
    """
    _prepare_jax(devices)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        store = cell.open(out, data)
        cell.do(store, data, lambda runs: None)  # no progress is shown on a worker
        contents = {}
        for path in sorted(out.rglob("*")):
            # A lease is this process's claim on its own store, which nobody else needs.
            if path.is_file() and path.suffix != ".lease":
                contents[path.relative_to(out).as_posix()] = path.read_bytes()
        return contents


class StartedTask(NamedTuple):
    """A task that has started.

    Attributes:
      task: Ray's reference to the task's result.
      keep: (result) -> anything; stores the result.
    """

    task: Any
    keep: Callable[[Any], object]


class Job(Protocol):
    """Tasks that belong together: those of a single cell, or of one request to train runs."""

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts the next task, on a node or, for None, on any; returns None where no task can start now."""

    def is_done(self) -> bool:
        """Returns whether the results of all tasks are stored."""


class RunsJob:
    """The job that trains the runs that a store lacks."""

    def __init__(
        self, cluster: Cluster, shared: tuple[GameRecipe, Any], request: RunsRequest
    ) -> None:
        """Starts nothing yet.

        Args:
          cluster: The cluster.
          shared: The recipe, and a reference to its data on the cluster.
          request: The runs that the store is to have.
        """
        self._cluster = cluster
        self._shared = shared
        self._request = request
        self._waiting: deque[Piece] = deque()
        self._has_started = False  # whether the first task, which prepares, has started
        self._is_training = False  # whether a task that trains has started
        # The number of runs that are not stored yet. 1 until they are counted: at 0 the job would be done.
        self._left = 1
        self._chunk_seconds = math.inf  # of the fastest chunk so far
        self.trained = 0
        self.preparation = Preparation(0, 0, {})  # replaced by that of a worker

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts the job's next task, on a node or, for None, on any; returns None where no piece waits.

        The first call starts the task that prepares. Once that has ended, the missing runs wait in pieces.
        From then on each task trains a piece, of about as many chunks as take _TASK_SECONDS.

        Returns:
          The task, with the function that stores its result.
        """
        # The cluster adds the number of devices, the first argument of `prepare` and `train`.
        if not self._has_started:
            self._has_started = True
            most_trained = self._request.most_trained
            task = self._cluster.start(node, prepare, *self._shared, most_trained)
            return StartedTask(task, self._cut)
        if not self._waiting:
            return None
        if not self._is_training:
            self._request.progress(0)  # starts the bar's clock, at the first task that trains
        self._is_training = True
        piece = self._take_piece()
        task = self._cluster.start(node, train, *self._shared, piece)
        return StartedTask(task, partial(self._keep, piece))

    def is_done(self) -> bool:
        """Returns whether the store has all runs."""
        return not self._left

    def _cut(self, preparation: Preparation) -> None:
        """Keeps the result of the task that prepares, and makes each range of missing runs a piece."""
        missing = self._request.store.missing(self._request.runs)
        self.preparation = preparation
        self._left = shares.count_runs(missing)
        for start, stop in missing:
            self._waiting.append(Piece(start, stop, preparation.size))

    def _take_piece(self) -> Piece:
        """Returns the piece for the next task, cut off the first piece that waits; what is left waits on.

        It has as many chunks as take _TASK_SECONDS, by the fastest chunk so far, and at least 1. Before any
        chunk is timed it has 1.
        """
        piece = self._waiting.popleft()
        chunks = max(1, int(_TASK_SECONDS / self._chunk_seconds))
        stop = min(piece.start + chunks * piece.size, piece.stop)
        if stop < piece.stop:
            self._waiting.appendleft(piece._replace(start=stop))
        return piece._replace(stop=stop)

    def _keep(self, piece: Piece, trained: tuple[list[Scores], float] | None) -> None:
        """Stores a piece's scores, as `train` returns them.

        Where memory was too small (`trained` is None), the piece waits again, in chunks of half the size.
        """
        if trained is None:
            require(piece.size > 1, "out of memory with one run at a time: lower `batch_size`")
            self._waiting.append(piece._replace(size=piece.size // 2))
            self._chunk_seconds = math.inf  # chunks of another size take another time
            return
        all_scores, seconds = trained
        self._chunk_seconds = min(self._chunk_seconds, seconds)
        for scores in all_scores:
            self._request.store.save(scores)
            runs = len(scores.scores)
            self._left -= runs
            self.trained += runs
            self._request.progress(runs)


class CellJob:
    """The job that does a whole cell in a single task."""

    def __init__(self, cluster: Cluster, cell: Cell, place: Workplace) -> None:
        """Starts nothing yet.

        Args:
          cluster: The cluster.
          cell: The cell.
          place: The root below which the cell's files are stored, and the cell's data.
        """
        self._cluster = cluster
        self._cell = cell
        self._place = place
        self._has_started = False
        self._is_done = False

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts the job's only task, which does the cell, at the first call; later returns None.

        Args:
          node: The node on which it runs; None for any.
        """
        if self._has_started:
            return None
        self._has_started = True
        handle = self._cluster.start(node, do_cell, self._cell, self._place.data)
        return StartedTask(handle, self._store_files)

    def is_done(self) -> bool:
        """Returns whether the cell's files are stored."""
        return self._is_done

    def _store_files(self, contents: dict[str, bytes]) -> None:
        """Stores the cell's files, given by their paths below the store's root."""
        for name, content in contents.items():
            files.write_whole(self._place.out / name, content)
        self._is_done = True


AnyJob = TypeVar("AnyJob", bound=Job)


def run_jobs(
    cluster: Cluster, jobs: Iterable[AnyJob]
) -> Iterator[tuple[AnyJob, InputError | None]]:
    """Runs jobs side by side, and yields each job when it ends.

    As long as further jobs wait, a job stays on its node, so that no other node compiles its program. At the
    end idle nodes help with the jobs of other nodes, and compile their programs too.

    Args:
      cluster: The cluster.
      jobs: The jobs, each of which is taken only when a node is free to begin it.

    Yields:
      (job, the error that ended it, or None) as soon as a job ends.

    Raises:
      InputError: The store can't be written.
    """
    scheduler = _Scheduler[AnyJob](cluster, iter(jobs))
    while scheduler.fill():  # gives tasks to the nodes, until no task is left
        for task in cluster.wait(list(scheduler.running)):
            job, keep, _ = scheduler.running.pop(task)
            if job not in scheduler.homes:  # `homes` has the jobs under way
                continue  # the job has failed in another task, and was yielded then: this result is dropped
            error = None
            try:
                keep(cluster.get_result(task))
            except files.CannotWriteError:
                raise  # no other job could store its results either
            except InputError as failure:
                error = failure
            if error is not None or job.is_done():
                del scheduler.homes[job]
                yield job, error


class _RunningTask(NamedTuple, Generic[AnyJob]):
    """A running task.

    Attributes:
      job: The job that it belongs to.
      keep: (result) -> anything; stores the task's result.
      node: The node that it was given to; None for any node.
    """

    job: AnyJob
    keep: Callable[[Any], object]
    node: Node | None


class _Scheduler(Generic[AnyJob]):
    """Decides which node gets a task of which job.

    Attributes:
      homes: The home of each job under way, the node that has compiled its program; None where that node is
        gone.
      running: The running tasks, by Ray's reference to their results.
    """

    def __init__(self, cluster: Cluster, more: Iterator[AnyJob]) -> None:
        """Starts nothing yet.

        Args:
          cluster: The cluster.
          more: Yields the jobs that are not under way yet.
        """
        self._cluster = cluster
        self._more = more
        # For each job under way, the node that has compiled its program; None where that node is gone.
        self.homes: dict[AnyJob, Node | None] = {}
        self.running: dict[Any, _RunningTask[AnyJob]] = {}  # by Ray's reference to a task's result

    def fill(self) -> bool:
        """Gives tasks to nodes until each has _AHEAD tasks for each of its workers, or no task is left.

        A worker that ends a task has the next at hand then, and need not wait for this process.

        A job's home is the node that has compiled its program. Where that node is gone, the job loses its
        home, so that another node may take it.

        Returns:
          Whether any task is running.
        """
        nodes: list[Node | None] = [*self._cluster.nodes()]
        if not nodes:
            nodes = [None]  # Ray then starts tasks on the first node that joins
        for job, home in self.homes.items():
            if home not in nodes:
                self.homes[job] = None
        for node in nodes:
            workers = 1  # at least, on whichever node joins first
            if node is not None:
                workers = node.workers
            given = sum(running.node == node for running in self.running.values())
            while given < _AHEAD * workers and self._give_task(node):
                given += 1
        return bool(self.running)

    def _give_task(self, node: Node | None) -> bool:
        """Starts a task of some job on a node, and returns whether there was any to start.

        A job's home is the node that has compiled its program. Jobs whose home is this node come first, since
        nothing has to be compiled for them. Then come jobs without a home, then jobs that are not yet under
        way, and last the jobs of other nodes.
        """
        for home in (node, None):
            for job in list(self.homes):
                if self.homes[job] == home and self._start_task(job, node):
                    return True
        for job in self._more:  # takes only the next: a job that has not begun has a task to start
            self.homes[job] = node
            if self._start_task(job, node):
                return True
        # All other jobs, the latest first: of the job that began last, most is likely to be left.
        return any(self._start_task(job, node) for job in reversed(self.homes))

    def _start_task(self, job: AnyJob, node: Node | None) -> bool:
        """Starts a job's next task on a node, and returns whether the job had a task to start.

        The node becomes the job's home, where its program is compiled, if the job has no home.
        """
        started = job.start(node)
        if started is None:
            return False
        if self.homes[job] is None:
            self.homes[job] = node
        self.running[started.task] = _RunningTask(job, started.keep, node)
        return True


def make_engine(cluster: Cluster) -> TrainingEngine:
    """Returns the engine that trains on a cluster.

    JAX in this process is set to the CPU, so that workers on this machine can have its accelerators.
    """
    jax.config.update("jax_platforms", "cpu")
    return TrainingEngine(partial(_ClusterTrainer, cluster), partial(do_all, cluster))


class _ClusterTrainer:
    """A trainer on a cluster; see `work.Trainer`."""

    def __init__(self, cluster: Cluster, recipe: GameRecipe, data: Dataset) -> None:
        """Raises InputError where recipe and data do not fit, which a worker checks."""
        self._cluster = cluster
        self._shared = (recipe, cluster.share(data))
        self._about: dict[str, Any] = cluster.call(describe, *self._shared)

    def train(self, request: RunsRequest) -> Trained:
        """Returns the scores of all runs, after training those that the store lacks.

        Where another process holds any of the runs, it waits until that process has stored the missing runs
        or gives them back.

        Raises:
          InputError: A run diverged, memory is too small for a single run, or the store can't be written.
        """
        store = request.store
        begin = time.perf_counter()
        job = RunsJob(self._cluster, self._shared, request)
        while store.missing(request.runs):
            # The claim on the store lets damaged files be set aside. Where another process has it, training
            # goes on without it: only the claim on the runs decides.
            with store.claim(), shares.all_below(store, request.runs) as runs_are_mine:
                if runs_are_mine:
                    for _, error in run_jobs(self._cluster, [job]):
                        if error is not None:
                            raise error
                    break
            time.sleep(_POLL_SECONDS)  # without any claim, so that other processes can go on
        seconds = time.perf_counter() - begin
        model_steps = job.trained * job.preparation.steps
        return Trained(
            store.load(request.runs), job.trained, seconds, job.preparation.size, model_steps
        )

    def stage(self, runs: int) -> int:
        """Returns how many of these runs to train between two looks at what they prove."""
        return min(runs, _STAGE)

    def about(self) -> dict[str, Any]:
        """Returns a worker's versions and devices, to be stored beside the scores."""
        return self._about


def do_all(cluster: Cluster, cells: list[Cell], place: Workplace) -> Outcome:
    """Does the cells of a sweep on a cluster, as far as the store lacks them; see `work.do_all`.

    Cells that other drivers hold are left for another pass. Passes go on until the store has each cell, or
    the cell has failed.

    Args:
      cluster: The cluster.
      cells: The cells.
      place: The store's root, and the cells' data.

    Returns:
      The names of the cells, by how they ended.
    """
    progress = SweepProgress(cells)
    outcome = Outcome(here=[], elsewhere=[], failed=[])
    waiting = cells
    try:
        while waiting:
            sweep_pass = _SweepPass(cluster, place, progress, outcome)
            with sweep_pass.claims:  # gives back the claims on cells, also after an error
                for job, error in run_jobs(cluster, sweep_pass.open_jobs(waiting)):
                    sweep_pass.end(job, error)
            if sweep_pass.left:  # cells that other drivers hold
                time.sleep(_POLL_SECONDS)
            waiting = sweep_pass.left
    finally:
        progress.close()
    return outcome


class _CellUnderWay(NamedTuple):
    """A cell whose job is under way.

    Attributes:
      cell: The cell.
      conclude: () -> anything; writes what follows from the results, once the job has ended.
      claim: This process's claim on the cell, which is given back when the context is closed.
    """

    cell: Cell
    conclude: Callable[[], object]
    claim: ExitStack


class _LateProgress:
    """The progress of a cell that is shown as the current cell only from the first call on."""

    def __init__(self, sweep_progress: SweepProgress, cell: Cell) -> None:
        """Shows nothing yet.

        Args:
          sweep_progress: Where the cell is shown.
          cell: The cell.
        """
        self._sweep_progress = sweep_progress
        self._cell = cell
        # The function that shows trained runs in the line; None until the first call makes the cell current.
        self._progress: Progress | None = None

    def __call__(self, runs: float) -> None:
        """Adds `runs` trained runs to the progress; 0 says that the first task that trains starts now."""
        if self._progress is None:
            self._progress = self._sweep_progress.begin(self._cell)
        self._progress(runs)


class _SweepPass:
    """One pass over cells, which does those that no other driver holds.

    Attributes:
      claims: The claims on the cells under way; when this context is closed, all are given back.
      left: The cells that other drivers hold.
    """

    def __init__(
        self, cluster: Cluster, place: Workplace, progress: SweepProgress, outcome: Outcome
    ) -> None:
        """Starts nothing yet.

        Args:
          cluster: The cluster.
          place: The store's root, and the cells' data.
          progress: Shows the cells' progress.
          outcome: Gets the name of each cell that ends.
        """
        self._cluster = cluster
        self._place = place
        self._progress = progress
        self._outcome = outcome
        self._under_way: dict[Job, _CellUnderWay] = {}  # the cell of each job under way
        self.claims = ExitStack()  # closing it gives back the claims on all cells under way
        self.left: list[Cell] = []  # the cells that other drivers hold

    def open_jobs(self, cells: list[Cell]) -> Iterator[Job]:
        """Yields a job for each cell that is not done and that no other driver holds.

        A cell is claimed only when its job is taken. Cells that fail here are reported, and those of other
        drivers are noted in `left`.
        """
        for cell in cells:
            try:
                if work.is_done(cell, self._place):  # by another driver, or before this command
                    self._outcome.elsewhere.append(cell.name)
                    self._progress.end(cell)
                    continue
                job = self._open_job(cell)
                if job is None:  # another driver holds the cell
                    self.left.append(cell)
                else:
                    yield job
            except files.CannotWriteError:
                raise  # no other cell could be stored either
            except InputError as error:
                self._fail(cell, error)

    def end(self, job: Job, error: InputError | None) -> None:
        """Ends a cell: concludes it, or reports why it failed, and gives the claim on it back.

        Args:
          job: The cell's job.
          error: The error that ended the job; None where it did all.

        Raises:
          InputError: The store can't be written.
        """
        cell, conclude, claim = self._under_way.pop(job)
        with claim:
            try:
                if error is not None:
                    raise error
                conclude()
            except files.CannotWriteError:
                raise  # no other cell could be stored either
            except InputError as failure:
                self._fail(cell, failure)
                return
            self._outcome.here.append(cell.name)
            self._progress.end(cell)

    def _open_job(self, cell: Cell) -> Job | None:
        """Claims a cell, and returns the job that does it; None where another driver holds the cell.

        An audit's runs are trained piece by piece, on any number of workers. Any other cell is a single task.
        """
        store = cell.open(self._place.out, self._place.data)
        claim = self._claim(cell, store)
        if claim is None:
            return None
        if cell.audited is None:  # the cell is no audit
            cell_job = CellJob(self._cluster, cell, self._place)
            # Its only task has concluded it: nothing is left to be written.
            self._under_way[cell_job] = _CellUnderWay(cell, lambda: None, claim)
            return cell_job

        setting = cell.audited.setting
        data = self._place.data.load(setting.model)
        audit = audits.make_request(cell.audited, data)
        shared = (audit.recipe, self._cluster.share(data))
        request = RunsRequest(
            store,
            runs=cell.runs,
            most_trained=cell.runs,
            progress=_LateProgress(self._progress, cell),
        )
        job = RunsJob(self._cluster, shared, request)
        conclude = partial(self._conclude, audit, store, job)
        self._under_way[job] = _CellUnderWay(cell, conclude, claim)
        return job

    def _claim(self, cell: Cell, store: Store) -> ExitStack | None:
        """Claims a cell's store and all of its runs, and returns a context that ends the claim when closed.

        Returns None where another process holds the store or any of the runs.
        """
        # It is closed at the latest when `claims` is.
        claim = self.claims.enter_context(ExitStack())
        is_mine = claim.enter_context(store.claim())
        if is_mine:
            is_mine = claim.enter_context(shares.all_below(store, cell.runs))
        if is_mine:
            return claim
        claim.close()
        return None

    def _conclude(self, audit: Request, store: Store, job: RunsJob) -> None:
        """Writes the conclusion from an audit's stored scores to its store."""
        scores = store.load(audit.runs)
        driver.keep(driver.finish(audit, store, scores, job.preparation.about))

    def _fail(self, cell: Cell, error: InputError) -> None:
        """Reports that a cell failed, and counts it as ended."""
        self._progress.say(f"failed: {cell.name}: {error}")
        self._outcome.failed.append(cell.name)
        self._progress.end(cell)
