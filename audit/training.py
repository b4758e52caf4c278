"""The driver of an audit's training: what a store lacks, chunk by chunk, over one process or several."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from audit import game, processes
from audit.errors import InputError, require
from audit.game import Game, Watch
from audit.progress import Progress, SegmentProgress
from audit.storage.checkpoints import Checkpoints
from audit.storage.scores import Scores
from audit.storage.store import Store

Ranges = list[tuple[int, int]]


class Trained(NamedTuple):
    """The scores, and what training them took.

    seconds: of training, compilation and simulation apart. chunk: runs a chunk. model_steps: those that the
    time was taken by; what a checkpoint held is not among them.
    """

    scores: Scores
    trained_runs: int = 0
    seconds: float = 0.0
    chunk: int = 0
    model_steps: int = 0


class Elsewhere:
    """The store of a process that is not the first: it lacks nothing and keeps nothing, process 0 does."""

    @contextlib.contextmanager
    def claim(self) -> Iterator[bool]:
        """Nothing to claim."""
        yield True

    def missing(self, runs: int) -> Ranges:
        """No runs."""
        return []

    def save(self, chunk: Scores) -> None:
        """Leaves it to process 0, which gathers the chunk as well."""

    def load(self, runs: int) -> Scores:
        """No scores."""
        return Scores(0, np.zeros((0, 0)), np.zeros((0, 0), bool))


class _Training(NamedTuple):
    """A training under way: its game, its store, its checkpoints, and who hears of it."""

    game: Game
    store: Store | Elsewhere
    checkpoints: Checkpoints | None
    progress: SegmentProgress
    watch: Watch | None


class _Chunk(NamedTuple):
    """A chunk's scores and presence (size, K), padded with zeros; whether memory ran out instead."""

    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]
    out_of_memory: bool


def train(
    played: Game,
    store: Store | Elsewhere,
    runs: int,
    chunk: int = 0,
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda runs: None,
    watch: Watch | None = None,
) -> Trained:
    """Trains the runs that the store lacks, chunk by chunk (0: chosen by size), and reads all back.

    Of several processes each trains every n-th chunk; process 0 alone has a Store and keeps the scores, the
    others have `Elsewhere`, and all get the result. Where memory runs out anywhere the chunk is halved
    everywhere, which is said on stderr, and training goes on.

    A process that is alone keeps a chunk's states between two segments, at most every
    `checkpoint_seconds` (0: after each), and goes on from there; of several none does, since all wait
    for the slowest: a round that was cut off is trained again. Raises InputError where another process
    trains the setting.
    """
    if not _missing(store, runs):
        return Trained(_all_scores(played, store, runs))
    with _claimed(store):
        count = sum(stop - start for start, stop in _missing(store, runs))
        clock = _Clock()

        def advance(finished: int, steps: int) -> None:
            clock.advance(finished * steps)
            progress(jax.process_count() * finished * steps / len(played.schedule.mask))

        training = _Training(played, store, _checkpoints(store, checkpoint_seconds), advance, watch)
        size = _train_missing(training, runs, chunk)
    scores = _all_scores(played, store, runs)
    return Trained(scores, count, clock.seconds(), size, clock.model_steps)


def together(parts: Sequence[Trained]) -> Trained:
    """Trainings of one store, one after the other, as one: the last one's scores."""
    return Trained(
        parts[-1].scores,
        sum(part.trained_runs for part in parts),
        sum(part.seconds for part in parts),
        max(part.chunk for part in parts),
        sum(part.model_steps for part in parts),
    )


def lacking(store: Store | Elsewhere, runs: int) -> int:
    """How many runs this process's store lacks."""
    return sum(stop - start for start, stop in store.missing(runs))


def agreed_chunk(played: Game, runs: int, chunk: int) -> int:
    """Runs a chunk, where none is asked for as many as the smallest machine holds."""
    if chunk:
        return min(chunk, runs)
    own = game.chunk_size(played, -(-runs // jax.process_count()))
    return int(processes.gather(np.array([own])).min())


@contextlib.contextmanager
def _claimed(store: Store | Elsewhere) -> Iterator[None]:
    """Holds the setting for this process; raises InputError where another does."""
    with store.claim() as mine:
        if not mine and isinstance(store, Store):
            raise InputError(
                f"another process ({store.holder()}) is training this setting ({store.path}): wait, or name "
                "another `out`"
            )
        yield


def _checkpoints(store: Store | Elsewhere, seconds: float) -> Checkpoints | None:
    """Where a process that is alone keeps its states."""
    if isinstance(store, Elsewhere) or jax.process_count() > 1:
        return None
    return Checkpoints(store.checkpoints, seconds)


def _train_missing(training: _Training, runs: int, chunk: int) -> int:
    """Trains until nothing is missing; returns the runs a chunk."""
    size = agreed_chunk(training.game, runs, chunk)
    while missing := _missing(training.store, runs):
        if not _train_chunks(training, _chunks(missing, size), size):
            require(size > 1, "out of memory with one run at a time: lower `batch_size`")
            size //= 2
            if processes.is_first():
                print(f"out of memory: going on with chunks of {size} runs", file=sys.stderr)
    return size


def _missing(store: Store | Elsewhere, runs: int) -> Ranges:
    """The runs that process 0's store lacks, known to all processes."""
    flat = processes.from_first(np.array(store.missing(runs), np.int64).reshape(-1))
    return [(int(start), int(stop)) for start, stop in flat.reshape(-1, 2)]


def _all_scores(played: Game, store: Store | Elsewhere, runs: int) -> Scores:
    """The scores of all runs, known to all processes."""
    kept = store.load(runs)
    shape = (-1, played.adversary.canaries)
    scores = processes.from_first(kept.scores.reshape(-1)).reshape(shape)
    present = processes.from_first(kept.presence.reshape(-1)).reshape(shape)
    return Scores(0, scores, present)


def _chunks(missing: Ranges, size: int) -> Ranges:
    """The ranges [start, stop) cut into chunks of at most `size` runs."""
    return [(i, min(i + size, stop)) for start, stop in missing for i in range(start, stop, size)]


def _train_chunks(training: _Training, chunks: Ranges, size: int) -> bool:
    """Trains one chunk a process at a time and keeps what all give; False where one lacks memory."""
    count, index = jax.process_count(), jax.process_index()
    played = _play(training, chunks[index::count], size)
    for i in range(0, len(chunks), count):
        gathered = _gather(_next_chunk(played, size, training.game.adversary.canaries))
        for (first, stop), chunk in zip(chunks[i : i + count], gathered, strict=False):
            if not chunk.out_of_memory:
                rows = slice(stop - first)
                training.store.save(Scores(first, chunk.scores[rows], chunk.presence[rows]))
                if training.checkpoints is not None:
                    training.checkpoints.clear()
        if any(chunk.out_of_memory for chunk in gathered):
            return False
    return True


def _gather(chunk: _Chunk) -> list[_Chunk]:
    """Every process's chunk."""
    scores, presence = processes.gather(chunk.scores), processes.gather(chunk.presence)
    out_of_memory = processes.gather(np.array([chunk.out_of_memory]))[:, 0]
    return [_Chunk(*parts) for parts in zip(scores, presence, map(bool, out_of_memory), strict=True)]


def _play(training: _Training, own: Ranges, size: int) -> Iterator[Scores]:
    """`game.play`, from the first chunk on; nothing where this process has none."""
    if own:
        yield from game.play(
            training.game, own, size, training.progress, training.checkpoints, training.watch
        )


def _next_chunk(played: Iterator[Scores], size: int, canaries: int) -> _Chunk:
    """The next chunk that was played; all zeros where there is none."""
    scores, presence = np.zeros((size, canaries)), np.zeros((size, canaries), bool)
    try:
        for chunk in itertools.islice(played, 1):
            scores[: len(chunk.scores)], presence[: len(chunk.scores)] = chunk.scores, chunk.presence
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _Chunk(scores, presence, True)
    return _Chunk(scores, presence, False)


class _Clock:
    """Times training from the moment when all is compiled to the end of the last segment."""

    def __init__(self) -> None:
        self._begin = self._end = 0.0
        self.model_steps = 0

    def advance(self, model_steps: int) -> None:
        """Hears of 0 model-steps at the start, then of those that ended."""
        self._end = time.perf_counter()
        self.model_steps = self.model_steps + model_steps if model_steps else 0
        self._begin = self._begin if model_steps else self._end

    def seconds(self) -> float:
        """From start to end."""
        return self._end - self._begin
