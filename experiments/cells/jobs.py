"""Jobs on a cluster: the tasks of a training or of a cell, as workers that have no store do them, and what
becomes of their results."""

import functools
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from audit import training
from audit.errors import InputError, require
from audit.machine import prepare_jax
from audit.mechanism.ensemble import Programs
from audit.storage import files, shares
from audit.storage.store import Scores
from audit.task import Dataset
from audit.training import ChunkTrainer
from experiments.cells.cell import Cell, GameRecipe
from experiments.cells.cluster import Cluster, Node
from experiments.cells.data import DataSets
from experiments.cells.engine import Wanted
from experiments.cells.work import Workplace

_AHEAD = 2  # tasks a worker, so that none waits for the driver
_TASK_SECONDS = 2.0  # of chunks: many times what it takes to send a task and its result
_TRAINERS: Programs[ChunkTrainer] = Programs(kept=1)  # whose data are on the devices


class Prepared(NamedTuple):
    """What a worker finds out before the first chunk: runs a chunk, steps a run, and what is kept of the
    circumstances."""

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


class TrainedPiece(NamedTuple):
    """A piece's scores, chunk by chunk, and the seconds that the fastest of its chunks took."""

    chunks: list[Scores]
    chunk_seconds: float


def train(devices: int, recipe: GameRecipe, data: Dataset, piece: Piece) -> TrainedPiece | None:
    """A piece, trained; None where memory ran out. Raises InputError where a model diverged."""
    _prepare_jax(devices)
    trainer = _TRAINERS.get((recipe.key, piece.size), lambda: ChunkTrainer(recipe.make(data), piece.size))
    chunks, seconds = list[Scores](), math.inf
    for chunk in shares.cut([(piece.start, piece.stop)], piece.size):
        begin = time.perf_counter()
        if (scores := trainer.train(chunk)) is None:
            return None
        chunks.append(scores)
        seconds = min(seconds, time.perf_counter() - begin)
    return TrainedPiece(chunks, seconds)


def do(devices: int, cell: Cell, data: DataSets) -> dict[str, bytes]:
    """The files of a cell that is done from its beginning, by their places in a store's folder."""
    _prepare_jax(devices)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        cell.do(cell.open(out, data), data, lambda runs: None)
        found = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".lease"]
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}


def keep(out: Path, content: dict[str, bytes]) -> None:
    """Writes a cell's files; raises InputError where they can't be."""
    for name, text in content.items():
        files.write_whole(out / name, text)


@functools.cache
def _prepare_jax(devices: int) -> None:
    """JAX, once a process."""
    prepare_jax(devices)


class Begun(NamedTuple):
    """A task that has begun, and what keeps its result."""

    task: Any
    keep: Callable[[Any], object]


class Sent(NamedTuple):
    """A training as workers get it: `data` is a shared Dataset."""

    recipe: GameRecipe
    data: Any


class Job(Protocol):
    """Tasks that belong together."""

    def begin(self, node: Node | None) -> Begun | None:
        """The next task, for a node or for any; None where none can begin now."""

    def is_done(self) -> bool:
        """Whether all is kept."""


class RunsJob:
    """A job: the runs that a store lacks."""

    def __init__(self, cluster: Cluster, sent: Sent, wanted: Wanted) -> None:
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
        """Cuts what is missing."""
        missing = self._wanted.store.missing(self._wanted.runs)
        self.prepared, self._left = prepared, shares.count_runs(missing)
        self._waiting.extend(Piece(start, stop, prepared.size) for start, stop in missing)

    def _next(self) -> Piece:
        """As many chunks of what waits as take a task's time."""
        rest = self._waiting.popleft()
        chunks = max(1, int(_TASK_SECONDS / self._chunk_seconds))
        stop = min(rest.start + chunks * rest.size, rest.stop)
        if stop < rest.stop:
            self._waiting.appendleft(rest._replace(start=stop))
        return rest._replace(stop=stop)

    def _keep(self, piece: Piece, trained: TrainedPiece | None) -> None:
        """Keeps a piece's scores, or halves its chunks where memory ran out."""
        if trained is None:
            require(piece.size > 1, "out of memory with one run at a time: lower `batch_size`")
            self._waiting.append(piece._replace(size=piece.size // 2))
            self._chunk_seconds = math.inf
            return
        self._chunk_seconds = min(self._chunk_seconds, trained.chunk_seconds)
        for scores in trained.chunks:
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
        """Writes the files."""
        keep(self._place.out, content)
        self._done = True


J = TypeVar("J", bound=Job)


def done(cluster: Cluster, jobs: Iterable[J]) -> Iterator[tuple[J, InputError | None]]:
    """Does jobs in their order, each on a node of its own, which alone has to compile its program; when no
    more are to be opened, idle nodes help. Yields each at its end, with the error that ended it."""
    desk = _Desk[J](cluster, iter(jobs))
    while desk.fill():
        for task in cluster.ended(list(desk.flying)):
            job, begun, _ = desk.flying.pop(task)
            if job not in desk.homes:
                continue  # it failed in another task
            error = _kept(cluster, begun)
            if error is not None or job.is_done():
                del desk.homes[job]
                yield job, error


class _Flying(NamedTuple, Generic[J]):
    """A task of a job that a node was asked to do."""

    job: J
    begun: Begun
    node: Node | None


class _Desk(Generic[J]):
    """Jobs that are opened, by their homes, and their tasks that have begun."""

    def __init__(self, cluster: Cluster, more: Iterator[J]) -> None:
        self._cluster, self._more = cluster, more
        self.homes: dict[J, Node | None] = {}
        self.flying: dict[Any, _Flying[J]] = {}

    def fill(self) -> bool:
        """Gives every node as many tasks as it should have; whether any are under way."""
        nodes: list[Node | None] = [*self._cluster.nodes()] or [None]  # Ray waits for one
        for job, home in self.homes.items():
            self.homes[job] = home if home in nodes else None
        for node in nodes:
            workers = node.workers if node else 1
            given = sum(one.node == node for one in self.flying.values())
            while given < _AHEAD * workers and self._give(node):
                given += 1
        return bool(self.flying)

    def _give(self, node: Node | None) -> bool:
        """Whether there was a task for a node: of a job at home there, or of one that has none; else of the
        next job; else of another node's job, the last opened first."""
        for home in (node, None):
            if any(self._begin(job, node) for job in self.homes if self.homes[job] == home):
                return True
        for job in self._more:
            self.homes[job] = node
            if self._begin(job, node):
                return True
        return any(self._begin(job, node) for job in reversed(self.homes))

    def _begin(self, job: J, node: Node | None) -> bool:
        """Whether a job had a task for a node."""
        begun = job.begin(node)
        if begun is None:
            return False
        self.homes[job] = self.homes[job] or node
        self.flying[begun.task] = _Flying(job, begun, node)
        return True


def _kept(cluster: Cluster, task: Begun) -> InputError | None:
    """Keeps a task's result; the error where there is none. Raises InputError where the store refuses."""
    try:
        task.keep(cluster.result(task.task))
    except files.CannotWriteError:
        raise
    except InputError as error:
        return error
    return None
