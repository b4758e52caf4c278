"""A Ray cluster, as what trains sees it: tasks that begin, end and are done again where a worker died."""

import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from audit.errors import InputError, require
from audit.machine import cores
from experiments.cells import local_ray

LOCAL = "local"
_RETRIES = 20  # of a task whose worker or node died
_LOOK_SECONDS = 5.0
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class Need(NamedTuple):
    """What a task asks for, and the devices that a worker then trains on: 0, all that it sees."""

    resources: dict[str, int]
    devices: int


class Node(NamedTuple):
    """A node by the name that Ray gives it, and how many tasks run there at once."""

    name: str
    workers: int


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.need = _need(list(self._alive().values()))
        self._functions: dict[Callable[..., Any], Any] = {}
        self._shared: dict[int, tuple[Any, Any]] = {}

    def nodes(self) -> list[Node]:
        """The nodes that are alive and can do tasks, by now."""
        found = []
        for name, has in self._alive().items():
            fit = (int(has.get(kind.upper(), 0)) // count for kind, count in self.need.resources.items())
            found.append(Node(name, min(fit)))
        return [node for node in found if node.workers]

    def workers(self) -> int:
        """How many tasks run at once by now."""
        return sum(node.workers for node in self.nodes())

    def share(self, value: Any) -> Any:
        """A value that is sent to each node once, as an argument of tasks."""
        if id(value) not in self._shared:
            self._shared[id(value)] = value, self._ray.put(value)  # kept: another might get its id
        return self._shared[id(value)][1]

    def begin(self, node: Node | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task that calls a function with a worker's devices, on that node while it is there."""
        if function not in self._functions:
            needed = {f"num_{name}s": count for name, count in self.need.resources.items()}
            options = {"max_retries": _RETRIES, "max_calls": 0, **needed}
            self._functions[function] = self._ray.remote(**options)(function)
        task = self._functions[function]
        if node is not None:
            strategies = self._ray.util.scheduling_strategies
            place = strategies.NodeAffinitySchedulingStrategy(node.name, soft=True)
            task = task.options(scheduling_strategy=place)
        return task.remote(self.need.devices, *arguments)

    def ended(self, tasks: list[Any]) -> list[Any]:
        """Those of some tasks that have ended, at least one unless that takes a while."""
        return list(self._ray.wait(tasks, num_returns=1, timeout=_LOOK_SECONDS)[0])

    def result(self, task: Any) -> Any:
        """An ended task's result; raises InputError where it raised that, or where it can't be done."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            raise
        except self._ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[:120]
            message = f"workers died {_RETRIES} times over one task ({why}): look into Ray's logs"
            raise InputError(message) from None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task's result."""
        return self.result(self.begin(None, function, *arguments))

    def _alive(self) -> dict[str, dict[str, float]]:
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}


@contextlib.contextmanager
def joined(address: str) -> Iterator[Cluster]:
    """The cluster at an address (host:port, or auto: the one that this machine belongs to; local: one of this
    machine alone, which ends with the block). Raises InputError where there is none, or no Ray."""
    alone = address == LOCAL
    local_ray.set_up(alone)
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: install the extra ray, pip install -e '.[ray]'") from None
    own = {"num_cpus": cores(), "include_dashboard": False} if alone else {}
    try:
        local_ray.ask(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError) as error:
        raise InputError(_no_cluster(address, " ".join(str(error).split())[:120])) from None
    with local_ray.nothing_left() if alone else contextlib.nullcontext():
        try:
            with contextlib.redirect_stdout(_Aside(sys.stdout)):
                yield Cluster(ray)
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # what it has said already, and how often
                ray.shutdown()


def _no_cluster(address: str, why: str) -> str:
    if address == LOCAL:
        return f"`engine=ray`: no cluster could be started here ({why}): name a short folder in RAY_TMPDIR"
    mend = "see ray start; if it asks for a token, set RAY_AUTH_MODE=token"
    return f"`ray_address={address}`: no Ray cluster there ({why}): {mend}"


class _Aside(io.TextIOBase):
    """Standard output in which Ray's threads tell of deaths, pages each: a line of it goes to stderr."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._own = out, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._own:
            return self._out.write(text)
        line = _COLOURS.sub("", text).strip().partition("\n")[0]
        if line:
            tqdm.write(line[:110], file=sys.stderr)
        return len(text)

    def flush(self) -> None:
        self._out.flush()


def _need(nodes: list[dict[str, float]]) -> Need:
    if any(node.get("GPU", 0) >= 1 for node in nodes):
        return Need({"gpu": 1, "cpu": 1}, 0)
    counts = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    require(counts, "the Ray cluster has neither GPUs nor cores: start nodes with some")
    return Need({"cpu": min(counts)}, min(counts))
