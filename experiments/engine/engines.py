"""The engines that `throughput` times, and the models that it times them on. An engine's library is imported
when the engine is loaded, in a process of its own."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from audit.errors import require
from audit.machine import prepare_jax
from experiments.engine.problem import Build
from models.catalogue import FEDERATED_TASKS, TASKS


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


def _in_jax(name: str) -> Build:
    prepare_jax()
    from experiments.engine import peers_jax

    return peers_jax.ENGINES[name]


def _in_torch(name: str) -> Build:
    from experiments.engine import peers_torch

    return peers_torch.ENGINES[name]


def _gemm() -> Build:  # JAX as it comes: XLA's threads on all cores
    from experiments.engine import peers_jax

    return peers_jax.gemm


class Work(NamedTuple):
    """A mechanism that engines are timed on: the unit that is counted, and the engines that can do it."""

    unit: str
    kinds: tuple[Kind, ...]

    def kind(self, name: str) -> Kind:
        """The engine of that name."""
        return next(kind for kind in self.kinds if kind.name == name)


GEMM = Kind("gemm", _gemm)
DPSGD = Work(
    "model-steps",
    (
        Kind("ours", partial(_in_jax, "ours")),
        Kind("jax_privacy", partial(_in_jax, "jax_privacy"), "jax_privacy", chooses=True),
        Kind("opacus", partial(_in_torch, "opacus"), "opacus", one_thread=True),
        Kind("torch_func", partial(_in_torch, "torch_func"), "torch", chooses=True),
    ),
)
FEDAVG = Work(
    "client-updates",
    (
        Kind("ours", partial(_in_jax, "ours_federated")),
        Kind("torch_loop", partial(_in_torch, "torch_loop"), "torch", one_thread=True),
    ),
)
ENGINES = tuple(dict.fromkeys(kind.name for kind in (*DPSGD.kinds, *FEDAVG.kinds)))


class Timed(NamedTuple):
    """A model that is timed; `peers_torch.NETWORKS` has its network in PyTorch.

    steps: of a measurement, or rounds; all engines cycle through their mini-batches or cohorts. batch_size:
    where it is not the model's own. tolerance: Euclidean distance of two engines' mean clipped gradients,
    each at most C = 1 long.
    """

    work: Work
    steps: int
    batch_size: int | None = None
    tolerance: float = 1e-5


TIMED = {
    "fcnn": Timed(DPSGD, 250),
    "convnet": Timed(DPSGD, 10),
    "resnet18": Timed(DPSGD, 8, 8, 1e-3),  # through 18 layers of normalised sums in float32
    "lenet": Timed(FEDAVG, 10),
}


def require_timed(model: str) -> None:
    """Raises InputError for a model that is not timed."""
    why = "can't be timed, its network has not been written in PyTorch, for the peers"
    why = why if model in {*TASKS, *FEDERATED_TASKS} else "is unknown"
    require(model in TIMED, f"--models: {model!r} {why}: choose of {', '.join(TIMED)}")


def missing_line(missing: Sequence[Kind]) -> str:
    """A sentence on the engines that are left out and on how to install them."""
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))
    return (
        f"left out: {', '.join(kind.name for kind in missing)} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
