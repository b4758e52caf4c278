"""Trains on a Ray cluster. Workers train chunks of runs or complete cells; this process stores the results.

All tasks use the same number of devices, so scores are bit-identical to those from one machine.
"""

import contextlib
import functools
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from audit.errors import InputError, require
from audit.runtime.machine import Progress, cores, prepare_jax
from audit.storage import files, store
from audit.storage.store import Range, Scores, Store, count_runs, cut, hold
from audit.tasks.task import Dataset
from audit.training.driver import GameRecipe
from audit.training.game import Player, Trained, chunk_size
from experiments.cells import work
from experiments.cells.cell import Cell, DataSets

Arguments = tuple[Any, ...]
# A finished task: its arguments, and a function that returns its result or raises its error.
Ended = tuple[Arguments, Callable[[], Any]]
_MAX_RETRIES = 20  # retries of a task after its worker or node dies
_STAGE = 64  # runs between two computations of the bounds
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    # Ray gives up on an unreachable host after the sum of these two times. The default is 7 minutes.
    "RAY_grpc_client_keepalive_time_ms": "20000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
}


def prepare(
    devices: int, recipe: GameRecipe, data: Dataset, runs: int
) -> tuple[int, dict[str, Any]]:
    """Prepares a worker. Returns its chunk size for `runs` runs, and its versions and devices.

    `devices` is the number of CPU devices, or 0 for GPUs.
    """
    prepare_jax(devices)
    game = recipe.make(data)  # the training to audit
    return chunk_size(game, runs), recipe.about(data)


def train(devices: int, recipe: GameRecipe, data: Dataset, chunk: Range) -> Scores:
    """Trains the runs of a chunk [first, stop) on a worker, and returns their scores.

    `devices` is the number of CPU devices, or 0 for GPUs.
    """
    prepare_jax(devices)
    first, stop = chunk
    size = stop - first
    key = (recipe.key, size)
    try:
        # A worker keeps its last player. Its programs are compiled for one chunk size.
        if key not in _PLAYER:
            _PLAYER.clear()
            _PLAYER[key] = Player(recipe.make(data), size)
        return _PLAYER[key].play(first, size)
    except RuntimeError as error:  # the type of JAX's errors
        require(
            "RESOURCE_EXHAUSTED" not in str(error),
            f"out of memory with {size} runs at a time: lower `batch_size`",
        )
        raise


def do_cell(devices: int, cell: Cell, data: DataSets) -> dict[str, bytes]:
    """Completes a cell on a worker, in a temporary folder because the store is on another machine.

    `devices` is the number of CPU devices, or 0 for GPUs. Returns the cell's files, {path: content}.
    """
    prepare_jax(devices)
    contents = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        store = cell.open(out, data)
        cell.do(store, data, lambda runs: None)
        for path in out.rglob("[!.]*"):  # without hidden files, such as locks
            if path.is_file():
                contents[path.relative_to(out).as_posix()] = path.read_bytes()
    return contents


# The worker's last player, keyed by the recipe's key and the chunk size.
_PLAYER: dict[tuple[str, int], Player] = {}


class Cluster:
    """A Ray cluster that this process has joined.

    Attributes:
      share: (value) -> a reference that tasks can use. Ray sends the value to each node only once.
    """

    def __init__(self, ray: Any) -> None:
        """Decides which resources a task gets; `ray` is the imported module.

        A task gets one GPU. On a cluster without GPUs, it gets as many cores as the smallest node has, so it
        fits on every node.
        """
        self._ray = ray
        self.share = ray.put
        total = ray.cluster_resources()
        if total.get("GPU", 0) >= 1:
            # A task sees only the GPU that Ray assigns to it. 0 devices means all visible GPUs.
            self._devices_of_task = 0
            self._resources = {"num_gpus": 1, "num_cpus": 1}
        else:
            cores_of_nodes = [
                node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]
            ]
            with_cores = filter(None, cores_of_nodes)  # skips nodes without cores
            smallest = int(min(with_cores, default=0))
            require(smallest, "the Ray cluster has neither GPUs nor cores: start nodes with some")
            self._devices_of_task = smallest
            self._resources = {"num_cpus": smallest}
        # At most one task per core can run at once, so at least half of the submitted tasks are waiting.
        self._max_submitted = 2 * int(total["CPU"])

    def run(self, function: Callable[..., Any], arguments: Iterable[Arguments]) -> Iterator[Ended]:
        """Calls function(devices, *args) on a worker for each tuple in `arguments`; yields calls as they end.

        `devices` is the task's number of CPU devices, or 0 for GPUs.
        """
        # With max_calls=0, a worker stays alive after a task and keeps its compiled programs.
        make_remote = self._ray.remote(max_retries=_MAX_RETRIES, max_calls=0, **self._resources)
        remote = make_remote(function)
        waiting = iter(arguments)
        submitted = {}  # keyed by Ray's reference to the result
        while True:
            for given in waiting:  # continues after the last submitted tuple
                reference = remote.remote(self._devices_of_task, *given)
                submitted[reference] = given
                if len(submitted) >= self._max_submitted:
                    break
            if not submitted:
                return
            with contextlib.redirect_stdout(sys.stderr):  # Ray reports dead nodes on stdout
                (ended,), _ = self._ray.wait(list(submitted), num_returns=1)
            yield submitted.pop(ended), functools.partial(self._get, ended)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of function(devices, *arguments) on a worker; see `run`."""
        ((_, get_result),) = self.run(function, [arguments])
        return get_result()

    def _get(self, result: Any) -> Any:
        """Returns the value of `result`, Ray's reference to a task's result.

        Raises the task's InputError, or an InputError if workers died too often.
        """
        try:
            return self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            raise
        except self._ray.exceptions.RayError:
            raise InputError(f"workers died {_MAX_RETRIES} times: see Ray's logs") from None


@contextlib.contextmanager
def join(address: str) -> Iterator[work.TrainingEngine]:
    """Yields the engine that trains on a Ray cluster.

    `address` is "host:port", "auto", or "local" to start a cluster on this machine. Raises InputError if Ray
    is not installed or no cluster answers.
    """
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": cores(), "include_dashboard": False}
        # The "0" makes Ray listen only on 127.0.0.1, on any system, so other machines cannot reach it. The
        # token keeps out other users of this machine.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ |= _ENVIRONMENT | os.environ  # the user's variables take precedence
    try:
        import ray

        _require_answer(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except ImportError:
        raise InputError("Ray is not installed: pip install -e '.[ray]'") from None
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"`ray_address={address}`: no Ray cluster there ({reason}): see ray start; if it asks for a "
            "token, set RAY_AUTH_MODE=token"
        ) from None
    import jax

    jax.config.update("jax_platforms", "cpu")  # leaves the accelerators to the workers
    try:
        cluster = Cluster(ray)
        yield work.TrainingEngine(
            trainer=functools.partial(RayTrainer, cluster),
            do_all=functools.partial(do_all, cluster),
        )
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises OSError if no server answers at "host:port" within 5 seconds. Ray waits much longer."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and int(port) < 2**16:  # unlike "auto"
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()


class RayTrainer:
    """A trainer on a cluster (`audit.training.driver.Trainer`)."""

    def __init__(self, cluster: Cluster, recipe: GameRecipe, data: Dataset) -> None:
        """Sends the data to the nodes; raises InputError if a worker cannot make the game."""
        self._cluster = cluster
        self._recipe_and_data = (recipe, cluster.share(data))  # arguments of `prepare` and `train`
        # The number of runs, 1, affects only the unused chunk size.
        _, self._versions_and_devices = cluster.call(prepare, *self._recipe_and_data, 1)

    def train(self, store: Store, runs: int, max_chunk: int, progress: Progress) -> Trained:
        """Trains the missing runs on workers, and stores their scores; see `Trainer`."""
        begin = time.perf_counter()
        with hold(store.path):
            size, _ = self._cluster.call(prepare, *self._recipe_and_data, max_chunk)
            missing = store.missing(runs)
            tasks = [(*self._recipe_and_data, chunk) for chunk in cut(missing, size)]
            progress(0)  # replaces the label "compiling" of the progress bar
            for _, get_scores in self._cluster.run(train, tasks):
                scores = get_scores()  # or raises the error of a failed worker
                store.save(scores)
                progress(len(scores.scores))
        seconds = time.perf_counter() - begin
        return Trained(store.load(runs), count_runs(missing), seconds)

    def stage(self, runs: int) -> int:
        """Returns how many of `runs` runs to train before the bounds are computed again."""
        return min(runs, _STAGE)

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of a worker, keyed by name."""
        return self._versions_and_devices


def do_all(cluster: Cluster, cells: list[Cell], place: work.Workplace) -> work.Outcome:
    """Completes a sweep's cells (units of work) as tasks; returns the names of completed and failed cells."""
    outcome = work.Outcome(completed=[], failed=[])
    opened = []
    with store.hold(place.out), contextlib.closing(work.SweepProgress(cells)) as progress:
        # Another process may have completed some cells since they were found missing.
        for cell in work.find_missing(cells, place):
            with work.failing(cell, progress, outcome):  # records errors
                cell.open(place.out, place.data)  # loads the data, which workers may not have
                opened.append(cell)
        data = cluster.share(place.data)  # includes the loaded data
        tasks = [(cell, data) for cell in opened]
        for (cell, _), get_contents in cluster.run(do_cell, tasks):
            with work.failing(cell, progress, outcome):
                for name, content in sorted(get_contents().items()):
                    files.write_whole(place.out / name, content)
                outcome.completed.append(cell.name)
                progress.end(cell)
    return outcome
