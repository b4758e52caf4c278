"""Training on a Ray cluster: workers, which have no store, do tasks; the driver stores what they return.

A task is some chunks of runs, or a whole cell. It requests one GPU where the cluster has any, or else as many
cores as the smallest node has, and a worker trains with as many devices: on nodes that are alike, scores are
those of a single node, to the bit. Where a worker or a node died, Ray does its tasks again. A driver that is
killed has stored every chunk that came back, and its successor trains the rest.
"""

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
from audit.mechanism.ensemble import Programs
from audit.runtime.machine import prepare_jax
from audit.runtime.progress import Progress
from audit.storage import files, shares
from audit.storage.store import Scores, Store
from audit.tasks.task import Dataset
from audit.training import training
from audit.training.training import ChunkTrainer, Trained
from experiments.cells import audits, work
from experiments.cells.cell import Audited, Cell, DataSets, GameRecipe
from experiments.cells.cluster import Cluster, Node
from experiments.cells.work import Outcome, RunsRequest, SweepProgress, TrainingEngine, Workplace

_AHEAD = 2  # tasks a worker, so that none waits for the driver
_POLL_SECONDS = 1.0
_STAGE = 64  # runs that a cluster trains between two looks
_TASK_SECONDS = 2.0  # of chunks: many times what it takes to send a task and its result
_prepare_jax = functools.cache(prepare_jax)  # once a process
_TRAINERS: Programs[ChunkTrainer] = Programs(most=1)  # the last one, whose data are on the devices


class Preparation(NamedTuple):
    """What a worker finds out first.

    Attributes:
      size: Runs a chunk.
      steps: Steps a run.
      about: The worker's versions and devices, to be stored beside the scores.
    """

    size: int
    steps: int
    about: dict[str, Any]


class Piece(NamedTuple):
    """The runs [start, stop), in chunks of `size` for which the program is compiled."""

    start: int
    stop: int
    size: int


# The tasks: functions that workers call, first with the number of devices to train on. Ray shows their names.


def prepare(devices: int, recipe: GameRecipe, data: Dataset, runs: int, chunk: int) -> Preparation:
    """Finds the size of chunks for so many runs: `chunk`, or with 0 as many as fit into memory."""
    _prepare_jax(devices)
    game = recipe.make(data)
    size = training.chunk_size(game, runs, chunk)
    return Preparation(size, len(game.schedule.mask), recipe.about(data))


def describe(devices: int, recipe: GameRecipe, data: Dataset) -> dict[str, Any]:
    """Returns a worker's versions and devices; raises InputError where recipe and data do not fit."""
    _prepare_jax(devices)
    recipe.make(data)
    return recipe.about(data)


def train(
    devices: int, recipe: GameRecipe, data: Dataset, piece: Piece
) -> tuple[list[Scores], float] | None:
    """Trains a piece, chunk by chunk.

    Returns:
      The chunks' scores and the seconds of the fastest chunk; None where memory ran out.

    Raises:
      InputError: Where a run diverged.
    """
    _prepare_jax(devices)
    trainer = _TRAINERS.get(
        (recipe.key, piece.size), lambda: ChunkTrainer(recipe.make(data), piece.size)
    )
    all_scores: list[Scores] = []
    fastest = math.inf
    for chunk in shares.cut([(piece.start, piece.stop)], piece.size):
        begin = time.perf_counter()
        scores = trainer.train(chunk)
        if scores is None:
            return None
        all_scores.append(scores)
        fastest = min(fastest, time.perf_counter() - begin)
    return all_scores, fastest


def do(devices: int, cell: Cell, data: DataSets) -> dict[str, bytes]:
    """Does a cell in an empty store, and returns its files by their paths below the store's root."""
    _prepare_jax(devices)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        cell.do(cell.open(out, data), data, lambda runs: None)
        contents = {}
        for path in sorted(out.rglob("*")):
            # A lease is this process's claim on its own store, which nobody else needs.
            if path.is_file() and path.suffix != ".lease":
                contents[path.relative_to(out).as_posix()] = path.read_bytes()
        return contents


class StartedTask(NamedTuple):
    """A task that has started, and a function that stores its result."""

    task: Any
    keep: Callable[[Any], object]


class Job(Protocol):
    """Tasks that belong together."""

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts the next task, on a node or on any; returns None where none can start now."""

    def is_done(self) -> bool:
        """Returns whether all results are stored."""


class RunsJob:
    """A job: the runs that a store does not have."""

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
        self._is_prepared = False  # or will be: the task that prepares has started
        self._is_training = False
        self._left = 1  # runs that are not stored; more than 0 until they are counted
        self._chunk_seconds = math.inf
        self.trained = 0
        self.preparation = Preparation(0, 0, {})  # until a worker has found it out

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts the task that compiles first, and then a piece of the missing runs at each call.

        A piece has as many chunks as fill a task's seconds. None where no piece waits.
        """
        if not self._is_prepared:
            self._is_prepared = True
            sizes = (self._request.most_trained, self._request.chunk)
            return StartedTask(self._cluster.start(node, prepare, *self._shared, *sizes), self._cut)
        if not self._waiting:
            return None
        if not self._is_training:
            self._request.progress(0)  # the bar's clock begins after compilation
        self._is_training = True
        piece = self._take_piece()
        task = self._cluster.start(node, train, *self._shared, piece)
        return StartedTask(task, partial(self._keep, piece))

    def is_done(self) -> bool:
        """Returns whether the store has all runs."""
        return not self._left

    def _cut(self, preparation: Preparation) -> None:
        """Cuts the missing runs into pieces, once the preparation has told the size of chunks."""
        missing = self._request.store.missing(self._request.runs)
        self.preparation = preparation
        self._left = shares.count_runs(missing)
        for start, stop in missing:
            self._waiting.append(Piece(start, stop, preparation.size))

    def _take_piece(self) -> Piece:
        """Takes, off the first piece that waits, as many chunks as a task should have."""
        piece = self._waiting.popleft()
        chunks = max(1, int(_TASK_SECONDS / self._chunk_seconds))
        stop = min(piece.start + chunks * piece.size, piece.stop)
        if stop < piece.stop:
            self._waiting.appendleft(piece._replace(start=stop))
        return piece._replace(stop=stop)

    def _keep(self, piece: Piece, trained: tuple[list[Scores], float] | None) -> None:
        """Stores a piece's scores; where memory ran out, it waits again in chunks of half the size."""
        if trained is None:
            require(piece.size > 1, "out of memory with one run at a time: lower `batch_size`")
            self._waiting.append(piece._replace(size=piece.size // 2))
            self._chunk_seconds = math.inf
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
    """A job: a whole cell, as a single task."""

    def __init__(self, cluster: Cluster, cell: Cell, place: Workplace) -> None:
        self._cluster = cluster
        self._cell = cell
        self._place = place
        self._has_started = False
        self._is_done = False

    def start(self, node: Node | None) -> StartedTask | None:
        """Starts its only task."""
        if self._has_started:
            return None
        self._has_started = True
        return StartedTask(self._cluster.start(node, do, self._cell, self._place.data), self._keep)

    def is_done(self) -> bool:
        """Returns whether its files are stored."""
        return self._is_done

    def _keep(self, contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            files.write_whole(self._place.out / name, content)
        self._is_done = True


AnyJob = TypeVar("AnyJob", bound=Job)


def run_jobs(
    cluster: Cluster, jobs: Iterable[AnyJob]
) -> Iterator[tuple[AnyJob, InputError | None]]:
    """Runs jobs in order, each compiled on a node of its own; at the end idle nodes help.

    Yields:
      Each job as it ends, with the error that ended it, or None.

    Raises:
      InputError: Where the store can't be written.
    """
    scheduler = _Scheduler[AnyJob](cluster, iter(jobs))
    while scheduler.fill():
        for task in cluster.wait(list(scheduler.running)):
            job, keep, _ = scheduler.running.pop(task)
            if job not in scheduler.homes:
                continue  # it failed in another task
            error = None
            try:
                keep(cluster.get_result(task))
            except files.CannotWriteError:
                raise
            except InputError as failure:
                error = failure
            if error is not None or job.is_done():
                del scheduler.homes[job]
                yield job, error


class _RunningTask(NamedTuple, Generic[AnyJob]):
    """A running task's job, the function that stores its result, and the node that it was given to."""

    job: AnyJob
    keep: Callable[[Any], object]
    node: Node | None


class _Scheduler(Generic[AnyJob]):
    """Decides which node gets a task of which job.

    Attributes:
      homes: The jobs that are under way, each with the node that has compiled its program; None where that
        node is gone.
      running: The running tasks.
    """

    def __init__(self, cluster: Cluster, more: Iterator[AnyJob]) -> None:
        self._cluster = cluster
        self._more = more
        self.homes: dict[AnyJob, Node | None] = {}
        self.running: dict[Any, _RunningTask[AnyJob]] = {}

    def fill(self) -> bool:
        """Gives each node _AHEAD tasks for each of its workers, as long as there are tasks.

        A job whose node is gone has no home afterwards, so that another node may take it.

        Returns:
          Whether any task is running.
        """
        nodes: list[Node | None] = [*self._cluster.nodes()]
        if not nodes:
            nodes = [None]  # Ray then starts the task on the first node that joins
        for job, home in self.homes.items():
            if home not in nodes:
                self.homes[job] = None
        for node in nodes:
            workers = 1
            if node is not None:
                workers = node.workers
            given = sum(running.node == node for running in self.running.values())
            while given < _AHEAD * workers and self._give_task(node):
                given += 1
        return bool(self.running)

    def _give_task(self, node: Node | None) -> bool:
        """Gives a node a task, and returns whether there was a task.

        Jobs whose program the node has compiled come first, then jobs without a home, then jobs that are not
        yet open, then the jobs of other nodes.
        """
        for home in (node, None):
            for job in list(self.homes):
                if self.homes[job] == home and self._start_task(job, node):
                    return True
        for job in self._more:
            self.homes[job] = node
            if self._start_task(job, node):
                return True
        return any(self._start_task(job, node) for job in reversed(self.homes))

    def _start_task(self, job: AnyJob, node: Node | None) -> bool:
        """Starts a job's next task on a node, and returns whether a task could start."""
        started = job.start(node)
        if started is None:
            return False
        if self.homes[job] is None:
            self.homes[job] = node
        self.running[started.task] = _RunningTask(job, started.keep, node)
        return True


def make_engine(cluster: Cluster) -> TrainingEngine:
    """Returns the engine of a cluster; this process leaves its own accelerators to the cluster's workers."""
    jax.config.update("jax_platforms", "cpu")
    return TrainingEngine(partial(_ClusterTrainer, cluster), partial(do_all, cluster))


class _ClusterTrainer:
    """A trainer on a cluster; see `work.Trainer`."""

    def __init__(self, cluster: Cluster, recipe: GameRecipe, data: Dataset) -> None:
        self._cluster = cluster
        self._shared = (recipe, cluster.share(data))
        self._about: dict[str, Any] = cluster.call(describe, *self._shared)

    def train(self, request: RunsRequest) -> Trained:
        store = request.store
        begin = time.perf_counter()
        job = RunsJob(self._cluster, self._shared, request)
        while store.missing(request.runs):
            with store.claim(), shares.all_below(store, request.runs) as mine:
                if mine:
                    for _, error in run_jobs(self._cluster, [job]):
                        if error is not None:
                            raise error
                    break
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - begin
        model_steps = job.trained * job.preparation.steps
        return Trained(
            store.load(request.runs), job.trained, seconds, job.preparation.size, model_steps
        )

    def stage(self, runs: int) -> int:
        return min(runs, _STAGE)

    def about(self) -> dict[str, Any]:
        return self._about


def do_all(cluster: Cluster, cells: list[Cell], place: Workplace) -> Outcome:
    """Trains all that the store does not have of some cells, on a cluster; `work.do_all` does so without.

    Cells that other drivers hold are left for another pass, until the store has them.
    """
    progress = SweepProgress(cells)
    outcome = Outcome([], [], [])
    waiting = cells
    try:
        while waiting:
            sweep = _SweepPass(cluster, place, progress, outcome)
            with sweep.claims:
                for job, error in run_jobs(cluster, sweep.open_jobs(waiting)):
                    sweep.end(job, error)
            if sweep.left:
                time.sleep(_POLL_SECONDS)
            waiting = sweep.left
    finally:
        progress.close()
    return outcome


class _CellUnderWay(NamedTuple):
    """A cell under way, what concludes it once its job has ended, and this process's claim on it."""

    cell: Cell
    conclude: Callable[[], object]
    claim: ExitStack


class _LateProgress:
    """The progress of a cell, which is shown as the current cell at the first call and not before."""

    def __init__(self, sweep_progress: SweepProgress, cell: Cell) -> None:
        """Shows nothing yet.

        Args:
          sweep_progress: Where the cell is shown.
          cell: The cell.
        """
        self._sweep_progress = sweep_progress
        self._cell = cell
        self._progress: Progress | None = None

    def __call__(self, runs: float) -> None:
        """Takes in that so many runs were trained; 0 once all is compiled."""
        if self._progress is None:
            self._progress = self._sweep_progress.begin(self._cell)
        self._progress(runs)


class _SweepPass:
    """One pass over cells, which leaves those that other workers hold.

    Attributes:
      claims: The claims on cells under way, all given back at its end.
      left: The cells that others hold.
    """

    def __init__(
        self, cluster: Cluster, place: Workplace, progress: SweepProgress, outcome: Outcome
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._progress = progress
        self._outcome = outcome
        self._under_way: dict[Job, _CellUnderWay] = {}
        self.claims = ExitStack()
        self.left: list[Cell] = []

    def open_jobs(self, cells: list[Cell]) -> Iterator[Job]:
        """Yields a job for each cell that is not done, and claims the cell only when its job is taken."""
        for cell in cells:
            try:
                if work.is_done(cell, self._place):
                    self._outcome.elsewhere.append(cell.name)
                    self._progress.end(cell)
                    continue
                job = self._open_job(cell)
                if job is None:  # another worker holds the cell
                    self.left.append(cell)
                else:
                    yield job
            except files.CannotWriteError:
                raise
            except InputError as error:
                self._fail(cell, error)

    def end(self, job: Job, error: InputError | None) -> None:
        """Concludes a cell whose job ended, or reports why it failed, and gives the cell back."""
        cell, conclude, claim = self._under_way.pop(job)
        with claim:
            if error is not None:
                self._fail(cell, error)
                return
            conclude()
            self._outcome.here.append(cell.name)
            self._progress.end(cell)

    def _open_job(self, cell: Cell) -> Job | None:
        """Claims a cell and returns its job; None where another worker holds it."""
        store = cell.open(self._place.out, self._place.data)
        claim = self._claim(cell, store)
        if claim is None:
            return None
        if cell.audited is None:
            cell_job = CellJob(self._cluster, cell, self._place)
            self._under_way[cell_job] = _CellUnderWay(cell, lambda: None, claim)
            return cell_job

        setting = cell.audited.setting
        data = self._place.data.load(setting.model)
        recipe = audits.recipe(setting, cell.runs, data)
        shared = (recipe, self._cluster.share(data))
        request = RunsRequest(
            store,
            runs=cell.runs,
            most_trained=cell.runs,
            chunk=0,
            progress=_LateProgress(self._progress, cell),
        )
        job = RunsJob(self._cluster, shared, request)
        conclude = partial(self._conclude, cell.audited, store, job)
        self._under_way[job] = _CellUnderWay(cell, conclude, claim)
        return job

    def _claim(self, cell: Cell, store: Store) -> ExitStack | None:
        """Claims a cell's store and all of its runs; None where another worker holds any of them."""
        claim = self.claims.enter_context(ExitStack())
        is_mine = claim.enter_context(store.claim())
        if is_mine:
            is_mine = claim.enter_context(shares.all_below(store, cell.runs))
        if is_mine:
            return claim
        claim.close()
        return None

    def _conclude(self, audited: Audited, store: Store, job: RunsJob) -> None:
        audits.conclude(audited, store, job.preparation.about)

    def _fail(self, cell: Cell, error: InputError) -> None:
        self._progress.say(f"failed: {cell.name}: {error}")
        self._outcome.failed.append(cell.name)
        self._progress.end(cell)
