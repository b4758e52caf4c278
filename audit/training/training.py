"""The driver of an audit's training: the runs that a store lacks, chunk by chunk."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from audit.errors import require
from audit.runtime.progress import Progress
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Range, Scores, Store, count_runs, cut
from audit.training import game
from audit.training.game import Game, Watch


class Trained(NamedTuple):
    """The scores of an audit, and what training them took in this process.

    Attributes:
      scores: the scores of all runs, whichever process trained them.
      trained_runs: the number of runs that this process trained.
      seconds: the seconds of training, without compilation and simulation.
      chunk: the number of runs of a chunk.
      model_steps: the steps of all models in these seconds; steps that a checkpoint held do not count.
    """

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
    """Trains the runs that the store lacks, chunk by chunk, and returns the scores of all runs.

    One process at a time trains in a store; others wait. If memory runs out, chunks are halved, with a line
    on stderr, and training goes on.

    Args:
      played: the game to train.
      store: the store of scores and checkpoints.
      runs: the number of runs to have in all.
      chunk: the number of runs of a chunk; 0: as many as this machine's memory or cache holds.
      checkpoint_seconds: the least time between two checkpoints of a chunk's states; 0: one after each
        segment.
      progress: called with the number of runs that were trained since the last call, parts of runs too.
      watch: called with a chunk after each segment.

    Raises:
      InputError: memory runs out with a single run at a time, or a run diverged.
    """
    if not store.missing(runs):
        return Trained(store.load(runs))  # nothing to train

    checkpoints = Checkpoints(store.checkpoints, checkpoint_seconds)
    clock = _Clock()
    steps = len(played.schedule.mask)

    def advance(finished_runs: int, finished_steps: int) -> None:
        """Counts a segment that some runs finished, and reports it as a number of runs, maybe a fraction.

        It is first called with (0, 0), once all is compiled.
        """
        model_steps = finished_runs * finished_steps
        clock.advance(model_steps)
        progress(model_steps / steps)

    def train_missing(size: int) -> int:
        """Trains missing runs in chunks of `size` runs; returns `size`, or half of it if memory ran out.

        After it ran out, the chunks that are stored stay, and the others are still missing.
        """
        chunks = cut(store.missing(runs), size)
        try:
            for scores in game.play(played, chunks, size, advance, checkpoints, watch):
                store.save(scores)
                clock.runs += len(scores.scores)
        except jax.errors.JaxRuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return size // 2
        return size

    # Memory ran out if the returned size is smaller; a size of 0 means that it did so with a single run.
    size = chunk_size(played, runs, chunk)
    with store.lock():
        while (smaller := train_missing(size)) < size:
            require(smaller, "out of memory with one run at a time: lower `batch_size`")
            print(f"out of memory: going on with chunks of {smaller} runs", file=sys.stderr)
            size = smaller
        checkpoints.clear()
    return Trained(store.load(runs), clock.runs, clock.seconds(), size, clock.model_steps)


def merge(parts: Sequence[Trained]) -> Trained:
    """Merges the results of consecutive calls of `train` on a single store, adding up what they spent.

    The scores are the last call's, which include those of all earlier calls. The number of runs of a chunk is
    the largest of any call.
    """
    return Trained(
        parts[-1].scores,
        trained_runs=sum(part.trained_runs for part in parts),
        seconds=sum(part.seconds for part in parts),
        chunk=max(part.chunk for part in parts),
        model_steps=sum(part.model_steps for part in parts),
    )


def count_missing(store: Store, runs: int) -> int:
    """Counts the runs, of this many in all, that the store lacks."""
    return count_runs(store.missing(runs))


def chunk_size(played: Game, runs: int, chunk: int) -> int:
    """Returns the number of runs of a chunk: min(chunk, runs), or, if chunk is 0, what this machine holds."""
    if chunk:
        return min(chunk, runs)
    return game.chunk_size(played, runs)


class ChunkTrainer:
    """Trains chunks of a game on request; its programs and data stay on the devices between requests."""

    def __init__(self, played: Game, size: int) -> None:
        """Makes a trainer of a game; nothing is compiled before the first `train`.

        Args:
          played: the game to train.
          size: the number of runs of the largest chunk.
        """
        self._game = played
        self._size = size
        # The chunk that `train` was given and `game.play` has not taken yet, if any.
        self._requested: list[Range] = []
        # The running `game.play`, which yields each chunk's scores; None before the first chunk, and after
        # an error.
        self._scores: Iterator[Scores] | None = None

    def train(self, chunk: Range) -> Scores | None:
        """Trains the runs [start, stop) of a chunk; returns their scores, or None if memory ran out.

        Raises InputError if a run diverged.
        """
        self._requested.append(chunk)
        try:
            if self._scores is None:
                # An iterator that calls `pop` for each item, and would end at None, which is never appended.
                # `play` takes an item at each `next`: the chunk that was just appended.
                ranges = iter(self._requested.pop, None)
                self._scores = game.play(self._game, ranges, self._size)
            return next(self._scores)
        except Exception as error:
            # A generator that raised an error has ended: the next call begins another.
            self._scores = None
            self._requested.clear()
            if _is_out_of_memory(error):
                return None
            raise


def _is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error is JAX's for a device that ran out of memory."""
    is_from_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return is_from_jax and "RESOURCE_EXHAUSTED" in str(error)


class _Clock:
    """Times training, from the moment when all is compiled to the end of the last segment.

    Attributes:
      model_steps: the steps of all models since the last restart.
      runs: the number of runs that were trained, which the caller counts.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._end = 0.0
        self.model_steps = 0
        self.runs = 0

    def advance(self, model_steps: int) -> None:
        """Counts the model-steps of a segment that ended; 0 restarts the clock, before the first segment."""
        self._end = time.perf_counter()
        if model_steps:
            self.model_steps += model_steps
        else:
            self.model_steps = 0
            self._begin = self._end

    def seconds(self) -> float:
        """Returns the seconds between the last restart and the last call."""
        return self._end - self._begin
