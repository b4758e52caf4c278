"""The driver of an audit's training: what a store lacks, chunk by chunk, beside others who train it."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from audit import game
from audit.errors import require
from audit.game import Game, Watch
from audit.progress import Progress
from audit.storage import shares
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Scores, Store


class Trained(NamedTuple):
    """The scores, and what training them took here. seconds: of training, compilation and simulation apart.
    chunk: runs a chunk. model_steps: those that the time was taken by; what a checkpoint held is not among
    them."""

    scores: Scores
    trained_runs: int = 0
    seconds: float = 0.0
    chunk: int = 0
    model_steps: int = 0


def train(
    played: Game,
    store: Store,
    runs: int,
    chunk: int = 0,
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda runs: None,
    watch: Watch | None = None,
) -> Trained:
    """Trains the runs that the store lacks, chunk by chunk (0: chosen by size), and reads all back.

    Processes that call this on one store share the chunks, may begin and end at any moment, and each return
    when all runs are there (`audit.storage.shares`). Where memory runs out the chunk is halved, which is said
    on stderr, and training goes on. A chunk's states are kept between two segments, at most every
    `checkpoint_seconds` (0: after each), and whoever trains the chunk next goes on from there.
    """
    if not store.missing(runs):
        return Trained(store.load(runs))
    with store.claim():  # whoever has it sets damaged files aside
        store.missing(runs)
    checkpoints, clock = Checkpoints(store.checkpoints, checkpoint_seconds), _Clock()
    steps = len(played.schedule.mask)

    def advance(finished: int, of_steps: int) -> None:
        clock.advance(finished * of_steps)
        progress(finished * of_steps / steps)

    def train_missing(size: int) -> int:
        """In chunks of so many runs; returns that number, or half of it where memory ran out."""
        with contextlib.closing(shares.chunks(store, runs, size, progress)) as chunks:
            try:
                for scores in game.play(played, chunks, size, advance, checkpoints, watch):
                    store.save(scores)
                    clock.runs += len(scores.scores)
            except jax.errors.JaxRuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                return size // 2
        return size

    size = chunk_size(played, runs, chunk)
    while (smaller := train_missing(size)) < size:
        require(smaller, "out of memory with one run at a time: lower `batch_size`")
        print(f"out of memory: going on with chunks of {smaller} runs", file=sys.stderr)
        size = smaller
    if shares.is_idle(store):
        checkpoints.clear()
    return Trained(store.load(runs), clock.runs, clock.seconds(), size, clock.model_steps)


def together(parts: Sequence[Trained]) -> Trained:
    """Trainings of one store, one after the other, as one: the last one's scores."""
    runs, model_steps = sum(part.trained_runs for part in parts), sum(part.model_steps for part in parts)
    seconds, chunk = sum(part.seconds for part in parts), max(part.chunk for part in parts)
    return Trained(parts[-1].scores, runs, seconds, chunk, model_steps)


def lacking(store: Store, runs: int) -> int:
    """How many runs the store lacks."""
    return shares.count_runs(store.missing(runs))


def chunk_size(played: Game, runs: int, chunk: int) -> int:
    """Runs a chunk, where none is asked for as many as this machine holds."""
    return min(chunk, runs) if chunk else game.chunk_size(played, runs)


class ChunkTrainer:
    """Trains chunks of one game as they are asked for, whose program and data stay on the devices."""

    def __init__(self, played: Game, size: int) -> None:
        """`size`: runs of the largest chunk, for which the program is compiled."""
        self._game, self._size = played, size
        self._wanted: list[shares.Range] = []
        self._trained: Iterator[Scores] | None = None

    def train(self, chunk: shares.Range) -> Scores | None:
        """Scores of runs [start, stop), None where memory ran out; raises InputError if one diverged."""
        self._wanted.append(chunk)
        try:
            self._trained = self._trained or game.play(self._game, iter(self._wanted.pop, None), self._size)
            return next(self._trained)
        except Exception as error:
            self._trained = None
            self._wanted.clear()
            if _is_out_of_memory(error):
                return None
            raise


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


class _Clock:
    """Times training from the moment when all is compiled to the end of the last segment."""

    def __init__(self) -> None:
        self._begin = self._end = 0.0
        self.model_steps = self.runs = 0

    def advance(self, model_steps: int) -> None:
        """Hears of 0 model-steps at the start, then of those that ended."""
        self._end = time.perf_counter()
        self.model_steps = self.model_steps + model_steps if model_steps else 0
        self._begin = self._begin if model_steps else self._end

    def seconds(self) -> float:
        return self._end - self._begin
