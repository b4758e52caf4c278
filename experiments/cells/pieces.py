"""Pieces of trainings, as processes that have no store do them: chunks of runs, or a whole cell."""

import functools
import math
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from audit import training
from audit.mechanism.programs import Programs
from audit.settings.devices import prepare_jax
from audit.storage import files, shares
from audit.storage.scores import Scores
from audit.task import Dataset
from audit.training import ChunkTrainer
from experiments.cells.cell import Cell, GameRecipe
from experiments.cells.data import DataSets

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
