"""Trainings on a Ray cluster: some chunks of runs, and cells that are not cut, as tasks of workers that have
no store; the driver has it.

A task asks for one GPU where the cluster has any, or else for as many cores as its smallest node has, and a
worker trains with as many devices: on nodes that are alike, scores are those of one alone, to the bit.
Ray does a task of a worker or a node that died again. A driver that is killed has kept every chunk that came
back, and its successor trains the rest.
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

from audit import training
from audit.errors import InputError, require
from audit.machine import prepare_jax
from audit.mechanism.ensemble import Programs
from audit.storage import files, shares
from audit.storage.store import Scores
from audit.task import Dataset
from audit.training import ChunkTrainer, Trained
from experiments.cells import work
from experiments.cells.cell import Cell, DataSets, GameRecipe
from experiments.cells.cluster import Cluster, Node
from experiments.cells.work import Outcome, SweepProgress, TrainingEngine, Wanted, Workplace

_AHEAD = 2  # tasks a worker, so that none waits for the driver
_POLL_SECONDS = 1.0
_STAGE = 64  # runs that a cluster trains between two looks
_TASK_SECONDS = 2.0  # of chunks: many times what it takes to send a task and its result
_prepare_jax = functools.cache(prepare_jax)  # once a process
_TRAINERS: Programs[ChunkTrainer] = Programs(kept=1)  # whose data are on the devices


class Prepared(NamedTuple):
    """What a worker finds out first: runs a chunk, steps a run, and the circumstances to be kept."""

    size: int
    steps: int
    about: dict[str, Any]


class Piece(NamedTuple):
    """The runs [start, stop), in chunks of `size` for which the program is compiled."""

    start: int
    stop: int
    size: int


def prepare(devices: int, recipe: GameRecipe, data: Dataset, runs: int, chunk: int) -> Prepared:
    """The chunks of so many runs (chunk 0: as many as fit); on CPUs over so many devices."""
    _prepare_jax(devices)
    played = recipe.make(data)
    size = training.chunk_size(played, runs, chunk)
    return Prepared(size, len(played.schedule.mask), recipe.about(data))


def about(devices: int, recipe: GameRecipe, data: Dataset) -> dict[str, Any]:
    """The circumstances of a worker; raises InputError where recipe and data do not fit."""
    _prepare_jax(devices)
    recipe.make(data)
    return recipe.about(data)


def train(devices: int, recipe: GameRecipe, data: Dataset, piece: Piece) -> tuple[list[Scores], float] | None:
    """A piece's scores, its fastest chunk's seconds; None if memory ran out. InputError if one diverged."""
    _prepare_jax(devices)
    trainer = _TRAINERS.get((recipe.key, piece.size), lambda: ChunkTrainer(recipe.make(data), piece.size))
    chunks, seconds = list[Scores](), math.inf
    for chunk in shares.cut([(piece.start, piece.stop)], piece.size):
        begin = time.perf_counter()
        if (scores := trainer.train(chunk)) is None:
            return None
        chunks.append(scores)
        seconds = min(seconds, time.perf_counter() - begin)
    return chunks, seconds


def do(devices: int, cell: Cell, data: DataSets) -> dict[str, bytes]:
    """The files of a cell that is done from its beginning, by their places in a store's folder."""
    _prepare_jax(devices)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        cell.do(cell.open(out, data), data, lambda runs: None)
        found = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".lease"]
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}


class Begun(NamedTuple):
    """A task that has begun, and what keeps its result."""

    task: Any
    keep: Callable[[Any], object]


class Job(Protocol):
    """Tasks that belong together."""

    def begin(self, node: Node | None) -> Begun | None:
        """The next task, for a node or for any; None where none can begin now."""

    def is_done(self) -> bool:
        """Whether all is kept."""


class RunsJob:
    """A job: the runs that a store lacks."""

    def __init__(self, cluster: Cluster, sent: tuple[GameRecipe, Any], wanted: Wanted) -> None:
        self._cluster, self._sent, self._wanted = cluster, sent, wanted
        self._waiting: deque[Piece] = deque()
        self._begun, self._trains, self._left = False, False, 1
        self._chunk_seconds = math.inf
        self.trained, self.prepared = 0, Prepared(0, 0, {})

    def begin(self, node: Node | None) -> Begun | None:
        """First the task that prepares, then a piece at a time, of several chunks where they are short."""
        if not self._begun:
            self._begun = True
            sizes = self._wanted.added, self._wanted.chunk
            return Begun(self._cluster.begin(node, prepare, *self._sent, *sizes), self._cut)
        if not self._waiting:
            return None
        if not self._trains:
            self._wanted.progress(0)
        self._trains, piece = True, self._next()
        return Begun(self._cluster.begin(node, train, *self._sent, piece), partial(self._keep, piece))

    def is_done(self) -> bool:
        """Whether the store has all runs."""
        return not self._left

    def _cut(self, prepared: Prepared) -> None:
        missing = self._wanted.store.missing(self._wanted.runs)
        self.prepared, self._left = prepared, shares.count_runs(missing)
        self._waiting.extend(Piece(start, stop, prepared.size) for start, stop in missing)

    def _next(self) -> Piece:
        rest = self._waiting.popleft()
        chunks = max(1, int(_TASK_SECONDS / self._chunk_seconds))
        stop = min(rest.start + chunks * rest.size, rest.stop)
        if stop < rest.stop:
            self._waiting.appendleft(rest._replace(start=stop))
        return rest._replace(stop=stop)

    def _keep(self, piece: Piece, trained: tuple[list[Scores], float] | None) -> None:
        if trained is None:
            require(piece.size > 1, "out of memory with one run at a time: lower `batch_size`")
            self._waiting.append(piece._replace(size=piece.size // 2))
            self._chunk_seconds = math.inf
            return
        chunks, seconds = trained
        self._chunk_seconds = min(self._chunk_seconds, seconds)
        for scores in chunks:
            self._wanted.store.save(scores)
            self._left -= len(scores.scores)
            self.trained += len(scores.scores)
            self._wanted.progress(len(scores.scores))


class CellJob:
    """A job: a cell that is not cut."""

    def __init__(self, cluster: Cluster, cell: Cell, place: Workplace) -> None:
        self._cluster, self._cell, self._place = cluster, cell, place
        self._begun = self._done = False

    def begin(self, node: Node | None) -> Begun | None:
        """Its one task."""
        if self._begun:
            return None
        self._begun = True
        return Begun(self._cluster.begin(node, do, self._cell, self._place.data), self._keep)

    def is_done(self) -> bool:
        """Whether its files are kept."""
        return self._done

    def _keep(self, content: dict[str, bytes]) -> None:
        for name, text in content.items():
            files.write_whole(self._place.out / name, text)
        self._done = True


J = TypeVar("J", bound=Job)


def done(cluster: Cluster, jobs: Iterable[J]) -> Iterator[tuple[J, InputError | None]]:
    """Does jobs in order, each compiled on a node of its own; at the end idle nodes help. Yields each job
    with the error that ended it. Raises InputError where the store refuses."""
    desk = _Desk[J](cluster, iter(jobs))
    while desk.fill():
        for task in cluster.ended(list(desk.flying)):
            job, begun, _ = desk.flying.pop(task)
            if job not in desk.homes:
                continue  # it failed in another task
            error = None
            try:
                begun.keep(cluster.result(task))
            except files.CannotWriteError:
                raise
            except InputError as failure:
                error = failure
            if error is not None or job.is_done():
                del desk.homes[job]
                yield job, error


class _Desk(Generic[J]):
    """Jobs that are opened, by their homes, and the tasks that nodes were asked to do."""

    def __init__(self, cluster: Cluster, more: Iterator[J]) -> None:
        self._cluster, self._more = cluster, more
        self.homes: dict[J, Node | None] = {}
        self.flying: dict[Any, tuple[J, Begun, Node | None]] = {}

    def fill(self) -> bool:
        """Gives every node as many tasks as it should have; whether any are under way."""
        nodes: list[Node | None] = [*self._cluster.nodes()] or [None]  # Ray waits for one
        for job, home in self.homes.items():
            self.homes[job] = home if home in nodes else None
        for node in nodes:
            workers = node.workers if node else 1
            given = sum(asked == node for _, _, asked in self.flying.values())
            while given < _AHEAD * workers and self._give(node):
                given += 1
        return bool(self.flying)

    def _give(self, node: Node | None) -> bool:
        """Whether there was a task: of a job at home there or without one, else the next, else another's."""
        for home in (node, None):
            if any(self._begin(job, node) for job in self.homes if self.homes[job] == home):
                return True
        for job in self._more:
            self.homes[job] = node
            if self._begin(job, node):
                return True
        return any(self._begin(job, node) for job in reversed(self.homes))

    def _begin(self, job: J, node: Node | None) -> bool:
        begun = job.begin(node)
        if begun is None:
            return False
        self.homes[job] = self.homes[job] or node
        self.flying[begun.task] = job, begun, node
        return True


def engine(cluster: Cluster) -> TrainingEngine:
    """The engine of a cluster; this process leaves its own accelerators to the cluster's workers."""
    jax.config.update("jax_platforms", "cpu")
    return TrainingEngine(partial(_Trainer, cluster), partial(do_all, cluster))


class _Trainer:
    def __init__(self, cluster: Cluster, recipe: GameRecipe, data: Dataset) -> None:
        self._cluster, self._sent = cluster, (recipe, cluster.share(data))
        self._about: dict[str, Any] = cluster.call(about, *self._sent)

    def train(self, wanted: Wanted) -> Trained:
        begin, job = time.perf_counter(), RunsJob(self._cluster, self._sent, wanted)
        while wanted.store.missing(wanted.runs):
            with wanted.store.claim(), shares.all_below(wanted.store, wanted.runs) as mine:
                if mine:
                    for _, error in done(self._cluster, [job]):
                        if error is not None:
                            raise error
                    break
            time.sleep(_POLL_SECONDS)
        seconds, scores = time.perf_counter() - begin, wanted.store.load(wanted.runs)
        return Trained(scores, job.trained, seconds, job.prepared.size, job.trained * job.prepared.steps)

    def stage(self, runs: int) -> int:
        return min(runs, _STAGE)

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
                for job, error in done(cluster, sweep.jobs(waiting)):
                    sweep.end(job, error)
            if sweep.left:
                time.sleep(_POLL_SECONDS)
            waiting = sweep.left
    finally:
        progress.close()
    return outcome


class _Sweep:
    """Done cells; cells under way, by job, with their outcomes and claims; and those that others hold."""

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
