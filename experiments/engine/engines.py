"""The table of engines. A row's library is imported when its engine is loaded, in a process of its own."""

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from audit.settings.devices import prepare_jax
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
    prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.ours


def _jax_privacy() -> Build:
    prepare_jax()
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


def _ours_fedavg() -> Build:
    prepare_jax()
    from experiments.engine import peers_fedavg

    return peers_fedavg.ours


def _torch_loop() -> Build:
    from experiments.engine import peers_torch

    return peers_torch.torch_loop


OURS = Kind("ours", _ours)
GEMM = Kind("gemm", _gemm)
_OF_STEPS = (
    OURS,
    Kind("jax_privacy", _jax_privacy, "jax_privacy", chooses=True),
    Kind("opacus", _opacus, "opacus", one_thread=True),
    Kind("torch_func", _torch_func, "torch", chooses=True),
)
_OF_ROUNDS = (Kind("ours", _ours_fedavg), Kind("torch_loop", _torch_loop, "torch", one_thread=True))
ENGINES = tuple(dict.fromkeys(kind.name for kind in (*_OF_STEPS, *_OF_ROUNDS)))


def _write_steps(model: str, file: str | None, tfds_dir: str | None, path: Path) -> float:
    prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.write_problem(model, file, tfds_dir, path)


def _write_rounds(model: str, file: str | None, tfds_dir: str | None, path: Path) -> float:
    prepare_jax()
    from experiments.engine import peers_fedavg

    return peers_fedavg.write_problem(model, file, tfds_dir, path)


class Work(NamedTuple):
    """A mechanism that engines are timed on.

    unit: what is counted. kinds: the engines that can do it. write(model, data file, TFDS folder, path)
    writes a model's problem and returns the examples of a unit, on average; it loads the data, in JAX.
    """

    unit: str
    kinds: tuple[Kind, ...]
    write: Callable[[str, str | None, str | None, Path], float]

    def kind(self, name: str) -> Kind:
        """The engine of that name."""
        return next(kind for kind in self.kinds if kind.name == name)


DPSGD = Work("model-steps", _OF_STEPS, _write_steps)
FEDAVG = Work("client-updates", _OF_ROUNDS, _write_rounds)
WORK = {"fcnn": DPSGD, "convnet": DPSGD, "resnet18": DPSGD, "lenet": FEDAVG}


def missing_line(missing: Iterable[Kind]) -> str:
    """A sentence on the engines that are left out and on how to install them."""
    missing = list(missing)
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))
    return (
        f"left out: {', '.join(kind.name for kind in missing)} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
