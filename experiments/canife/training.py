"""A training that is frozen every so many rounds and measured, a file a measured round: killed at any
moment, it goes on from the last one with the same bits."""

import io
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audit.errors import require
from audit.mechanism.base import State
from audit.storage import files
from experiments.canife import attacked as settings
from experiments.canife import measured, populations
from experiments.canife.attacked import Attacked
from experiments.canife.clients import Population
from experiments.canife.measured import Measured
from experiments.canife.populations import Split

_STATE = "state.npz"
_FETCHED = populations.Named()


def prepared(
    attacked: Attacked, out: Path, named: populations.Named = _FETCHED
) -> tuple[Attacked, Population, Path]:
    """A setting with its numbers of clients, the clients, and its folder under `out` with the setting in
    plain text; raises InputError where they do not fit."""
    require_model(attacked)
    split = populations.load(attacked, named)
    attacked, folder = placed(attacked, split, out)
    known = populations.population(attacked, split)
    describe(attacked, split, folder)
    return attacked, known, folder


def require_model(attacked: Attacked) -> None:
    """Raises InputError for a model that there is not."""
    require(
        attacked.model in settings.MODELS,
        f"`model={attacked.model}` is unknown: choose one of {', '.join(settings.MODELS)}",
    )


def placed(attacked: Attacked, split: Split, out: Path) -> tuple[Attacked, Path]:
    """A setting with its numbers of clients, and its folder under `out`; raises InputError for the first
    field out of range."""
    attacked = settings.fitted(attacked, split.train.number, split.mock.number)
    settings.validate(attacked, split.train.number, split.mock.number)
    return attacked, out / "canife" / settings.folder_name(attacked, split.checksum)


def describe(attacked: Attacked, split: Split, folder: Path) -> None:
    """Writes the setting in plain text into its folder."""
    text = json.dumps(settings.identity(attacked, split.checksum), indent=1, sort_keys=True) + "\n"
    files.write_whole(folder / "setting.json", text.encode())


def kept(attacked: Attacked, folder: Path) -> dict[int, Measured]:
    """The measured rounds that a folder holds, by number; what is damaged is set aside and missing."""
    found = {number: _read(_file(folder, number)) for number in attacked.measured()}
    return {number: one for number, one in found.items() if one is not None}


def measure_missing(
    attacked: Attacked,
    known: Population,
    folder: Path,
    progress: Callable[[int], None] = lambda number: None,
    numbers: Collection[int] | None = None,
) -> Iterator[Measured]:
    """Trains up to each round that is not kept, measures and keeps it; yields it when it is on disk. numbers:
    which of the setting's measured rounds are asked for, by default all.

    The state is kept before a round's file, so that training goes on from the last measured round.
    """
    asked = attacked.measured() if numbers is None else numbers
    missing = sorted(set(asked) - set(kept(attacked, folder)))
    if not missing:
        return
    task = measured.measuring(attacked, known)
    number, state = _state_before(known, folder, missing[0])
    for wanted in [n for n in attacked.measured() if missing[0] <= n <= missing[-1]]:
        for first in [n for n in attacked.measured() if number <= n < wanted]:  # one compiled length
            state = known.train(state, first, attacked.every)
        number = wanted
        _require_finite(state, number)
        files.write_whole(folder / _STATE, _state_bytes(number, state))
        if wanted in missing:
            one = measured.measure(task, state.theta, number)
            files.write_whole(_file(folder, number), measured.as_bytes(one))
            progress(number)
            yield one


def _state_before(known: Population, folder: Path, wanted: int) -> tuple[int, State]:
    """(next round, state): the kept one where it is not beyond the wanted round, or else the start."""
    first = known.start()
    content = files.read(folder / _STATE)
    if content is not None:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                number, leaves = int(archive["number"]), [archive[f"leaf_{i}"] for i in range(_leaves(first))]
        except files.NOT_AN_ARCHIVE:
            files.set_aside(folder / _STATE, "trained again")
        else:
            if number <= wanted:
                return number, jax.tree.unflatten(jax.tree.structure(first), map(jnp.asarray, leaves))
    return 1, first


def _leaves(state: State) -> int:
    """How many arrays a state has."""
    return len(jax.tree.leaves(state))


def _state_bytes(number: int, state: State) -> bytes:
    """The state before a round."""
    buffer = io.BytesIO()
    leaves: dict[str, Any] = {f"leaf_{i}": np.asarray(v) for i, v in enumerate(jax.tree.leaves(state))}
    np.savez(buffer, number=number, **leaves)
    return buffer.getvalue()


def _require_finite(state: State, number: int) -> None:
    """Raises InputError where the model diverged."""
    message = f"the model diverged before round {number}: lower `learning_rate` or `noise_multiplier`"
    require(bool(jnp.isfinite(state.theta).all()), message)


def _file(folder: Path, number: int) -> Path:
    """Where a measured round is kept."""
    return folder / f"round_{number:07d}.npz"


def _read(path: Path) -> Measured | None:
    """A measured round; None where there is none that can be read."""
    content = files.read(path)
    if content is None:
        return None
    try:
        return measured.from_bytes(content)
    except files.NOT_AN_ARCHIVE:
        files.set_aside(path, "measured again")
        return None
