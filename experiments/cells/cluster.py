"""A Ray cluster as trainers see it: tasks start and end, and are repeated where their worker died."""

import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from audit.errors import InputError, require
from audit.runtime.machine import cores
from experiments.cells import local_ray

LOCAL = "local"
_RETRIES = 20  # of a task whose worker or node died
_WAIT_SECONDS = 5.0  # the most to wait for a task that ends
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class TaskNeeds(NamedTuple):
    """What a task requests of Ray.

    Attributes:
      resources: How many of each resource ("gpu", "cpu") a task requests.
      devices: How many devices a worker makes of its CPU to train on; 0 where it trains on all GPUs it sees.
    """

    resources: dict[str, int]
    devices: int


class Node(NamedTuple):
    """A node of the cluster: its name in Ray, and the number of tasks that it runs at once."""

    name: str
    workers: int


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, ray: Any) -> None:
        """Takes the module `ray`, by which the process has joined a cluster."""
        self._ray = ray
        self.needs = _find_needs(list(self._resources_by_node().values()))
        # By function: its remote form, which Ray can start as a task. It is made once, in `start`.
        self._remote_functions: dict[Callable[..., Any], Any] = {}
        self._shared: dict[int, tuple[Any, Any]] = {}  # by id: a value, and Ray's reference to it

    def nodes(self) -> list[Node]:
        """Returns the nodes that are alive now and have the resources for at least one task."""
        nodes = []
        for name, available in self._resources_by_node().items():
            tasks_by_resource = []  # how many tasks each resource suffices for
            for kind, count in self.needs.resources.items():
                # Ray names a node's resources in capitals.
                tasks_by_resource.append(int(available.get(kind.upper(), 0)) // count)
            workers = min(tasks_by_resource)
            if workers:
                nodes.append(Node(name, workers))
        return nodes

    def count_workers(self) -> int:
        """Returns how many tasks the nodes that are alive now can run at once."""
        return sum(node.workers for node in self.nodes())

    def share(self, value: Any) -> Any:
        """Returns a reference to pass to tasks in place of a value, which is sent to each node only once."""
        if id(value) not in self._shared:
            # The value is kept here too: were it deleted, another value could get its id.
            self._shared[id(value)] = (value, self._ray.put(value))
        _, reference = self._shared[id(value)]
        return reference

    def start(self, node: Node | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Starts a task that calls function(devices, *arguments), and returns Ray's reference to its result.

        Args:
          node: The node that is to run the task. If it dies, any other may run the task. None: any node.
          function: A function whose first argument is the number of devices to train on.
          *arguments: The function's other arguments, or references to them.
        """
        if function not in self._remote_functions:
            # Ray's options are num_gpus and num_cpus.
            requested = {f"num_{name}s": count for name, count in self.needs.resources.items()}
            # max_calls=0 keeps a worker alive, and so what it has compiled. By default Ray ends a worker
            # after each task with a GPU.
            remote = self._ray.remote(max_retries=_RETRIES, max_calls=0, **requested)
            self._remote_functions[function] = remote(function)
        task = self._remote_functions[function]
        if node is not None:
            strategies = self._ray.util.scheduling_strategies
            # Soft: another node takes the task where this node is gone.
            place = strategies.NodeAffinitySchedulingStrategy(node.name, soft=True)
            task = task.options(scheduling_strategy=place)
        return task.remote(self.needs.devices, *arguments)

    def wait(self, tasks: list[Any]) -> list[Any]:
        """Waits until one of the tasks has ended, and returns it in a list.

        The list is empty where none ends within _WAIT_SECONDS.
        """
        ended, _ = self._ray.wait(tasks, num_returns=1, timeout=_WAIT_SECONDS)
        return list(ended)

    def get_result(self, task: Any) -> Any:
        """Returns the result of a task that has ended.

        Raises:
          InputError: The task raised it; or Ray gave the task up, as its workers died at each of _RETRIES
            retries.
        """
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            raise
        except self._ray.exceptions.RayError as error:
            why = _shorten(error)
            message = f"workers died {_RETRIES} times over one task ({why}): look into Ray's logs"
            raise InputError(message) from None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls function(devices, *arguments) as a task on any node, and returns its result."""
        return self.get_result(self.start(None, function, *arguments))

    def _resources_by_node(self) -> dict[str, dict[str, float]]:
        """Returns the resources of each node that is alive, by the node's name."""
        resources = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                resources[node["NodeID"]] = node["Resources"]
        return resources


@contextlib.contextmanager
def join(address: str) -> Iterator[Cluster]:
    """Joins a Ray cluster, and leaves it at the end of the block.

    Args:
      address: "host:port"; "auto" for the cluster that this machine belongs to; or "local" to start a cluster
        of this machine alone, which ends with the block.

    Raises:
      InputError: There is no cluster at the address, or Ray is not installed.
    """
    alone = address == LOCAL
    local_ray.set_up(alone)  # sets environment variables that Ray reads when it is imported
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed: install the extra ray, pip install -e '.[ray]'"
        ) from None

    # A cluster that is started here has the cores that this process may use. Another cluster has its own.
    options: dict[str, Any] = {}
    if alone:
        options = {"num_cpus": cores(), "include_dashboard": False}
    try:
        # Fails within seconds where nobody answers; Ray would try for minutes.
        local_ray.check_answer(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError) as error:
        raise InputError(_no_cluster_message(address, _shorten(error))) from None

    # Kills what is left of a cluster that was started here, however this process ends.
    with local_ray.reap_processes() if alone else contextlib.nullcontext():
        try:
            # Of what Ray's threads print, only first lines are shown.
            with contextlib.redirect_stdout(_OwnThreadStdout(sys.stdout)):
                yield Cluster(ray)
        finally:
            # At its end Ray repeats what it has printed before; that is not shown.
            with contextlib.redirect_stdout(io.StringIO()):
                ray.shutdown()


def _shorten(error: Exception) -> str:
    """Returns the first 120 characters of an error's message, on a single line."""
    return " ".join(str(error).split())[:120]


def _no_cluster_message(address: str, why: str) -> str:
    """Returns the message of the error that no cluster was joined, with a hint at what to do.

    Args:
      address: "host:port" or "auto"; "local" for a cluster of this machine alone. Such a cluster may fail
        because the paths of sockets in its folder are too long, so the hint is to name a shorter folder.
      why: What went wrong, in a few words.
    """
    if address == LOCAL:
        return f"`engine=ray`: no cluster could be started here ({why}): name a short folder in RAY_TMPDIR"
    hint = "see ray start; if it asks for a token, set RAY_AUTH_MODE=token"
    return f"`ray_address={address}`: no Ray cluster there ({why}): {hint}"


class _OwnThreadStdout(io.TextIOBase):
    """Standard output that only the thread that makes it writes to.

    Ray's threads print pages about each worker that died. Of what other threads print, only the first line is
    kept, and goes to stderr.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._own_thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Writes this thread's text to stdout, and the first line of another thread's text to stderr.

        Other threads are Ray's, which print warnings.

        Returns:
          The number of characters that were taken, as `write` of a file does.
        """
        if threading.get_ident() == self._own_thread:
            return self._out.write(text)
        first_line = _COLOURS.sub("", text).strip().partition("\n")[0]  # without codes of colors
        if first_line:
            # `tqdm.write` leaves a progress bar whole, unlike `print`.
            tqdm.write(first_line[:110], file=sys.stderr)  # cut, as a line can be long
        return len(text)

    def flush(self) -> None:
        self._out.flush()


def _find_needs(nodes: list[dict[str, float]]) -> TaskNeeds:
    """Returns what a task requests: a GPU and a core where any node has a GPU, else cores alone.

    Without GPUs a task requests as many cores as the smallest node with any core has. So every node with
    cores can run a task, and all tasks train on equally many devices, a device for each core.

    Args:
      nodes: The resources of each node, by Ray's names.

    Raises:
      InputError: No node has GPUs or cores.
    """
    if any(node.get("GPU", 0) >= 1 for node in nodes):
        return TaskNeeds({"gpu": 1, "cpu": 1}, devices=0)  # all GPUs that Ray lets a worker see
    cores_by_node = []
    for node in nodes:
        if node.get("CPU", 0) >= 1:
            cores_by_node.append(int(node["CPU"]))
    require(cores_by_node, "the Ray cluster has neither GPUs nor cores: start nodes with some")
    smallest = min(cores_by_node)
    return TaskNeeds({"cpu": smallest}, devices=smallest)
