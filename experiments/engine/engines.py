"""The table of engines. A row's library is imported when its engine is loaded, in a process of its own."""

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from experiments import cli
from experiments.engine.problem import Engine

Build = Callable[..., Engine]  # (problem file), or (problem file, models at once) where the engine `chooses`


class Kind(NamedTuple):
    """An engine before it is built.

    load() imports its libraries, of which `needs` may be missing. one_thread: it takes a process a core.
    chooses: it tries several counts of models at once, unless it is given one.
    """

    name: str
    load: Callable[[], Build]
    needs: str = "jax"
    one_thread: bool = False
    chooses: bool = False

    def is_installed(self) -> bool:
        """Whether its library can be imported; imports nothing."""
        return importlib.util.find_spec(self.needs) is not None


def _ours() -> Build:
    cli.prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.ours


def _jax_privacy() -> Build:
    cli.prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.jax_privacy


def _opacus() -> Build:
    from experiments.engine import peers_torch

    return peers_torch.opacus


def _torch_func() -> Build:
    from experiments.engine import peers_torch

    return peers_torch.torch_func


def _gemm() -> Build:  # JAX as it comes: XLA's threads on all cores
    from experiments.engine import peers_jax

    return peers_jax.gemm


OURS = Kind("ours", _ours)
GEMM = Kind("gemm", _gemm)
_KINDS = (
    OURS,
    Kind("jax_privacy", _jax_privacy, "jax_privacy", chooses=True),
    Kind("opacus", _opacus, "opacus", one_thread=True),
    Kind("torch_func", _torch_func, "torch", chooses=True),
)
ENGINES = {kind.name: kind for kind in _KINDS}


def write_problem(model: str, file: str | None, tfds_dir: str | None, path: Path) -> int:
    """Writes a model's Problem and returns its batch size; loads the data, in JAX."""
    cli.prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.write_problem(model, file, tfds_dir, path)


def missing_line(missing: Iterable[Kind]) -> str:
    """A sentence on the engines that are left out and on how to install them."""
    missing = list(missing)
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))
    return (
        f"left out: {', '.join(kind.name for kind in missing)} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
