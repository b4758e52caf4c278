"""One audit over several processes: they meet, tell each other, and fail together.

Each process trains on its own devices; nothing but small arrays of bytes crosses between them, one
collective a time over one device of each. Alone, a process is a group of one: the same calls work.
"""

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from audit.errors import InputError, require

S = TypeVar("S", bound=np.generic)
_MOST_PROCESSES = 100_000
_HELLO_BYTES = 64
_HELLO_SECONDS = 5.0  # for a process that has connected to say who it is
_RETRY_SECONDS = 0.2
_GRACE_SECONDS = 1.0


class _AnotherFailed(InputError):
    """Another process failed; it need not be told of it."""


def join(coordinator: str, count: int, index: int, timeout: float) -> None:
    """Makes this process number `index` of `count`; process 0 listens at `coordinator` (host:port).

    Must run before JAX touches a device. Raises InputError where the numbers are out of range, where
    the address is none, and where not all processes come within `timeout` seconds.
    """
    host, _, port = coordinator.rpartition(":")
    valid = host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
    require(valid, f"`coordinator={coordinator}`: give host:port, of the host that runs process 0")
    require(1 <= count <= _MOST_PROCESSES, f"`processes={count}`: give 1 to {_MOST_PROCESSES:,}")
    require(0 <= index < count, f"`process={index}`: give 0 to {count - 1}, one number a process")
    if count > 1:
        _meet(host.strip("[]"), int(port), count, index, time.monotonic() + timeout)
        _initialize(
            timeout,
            coordinator_address=coordinator,
            num_processes=count,
            process_id=index,
            cluster_detection_method="deactivate",
        )


def join_cluster(timeout: float) -> None:
    """Joins the processes that SLURM, Open MPI, Kubernetes or a TPU pod started, as JAX finds them."""
    _initialize(timeout)


def is_first() -> bool:
    """Whether this process keeps the scores and prints."""
    return jax.process_index() == 0


def gather(row: NDArray[Any]) -> NDArray[Any]:
    """Every process's row, (processes, *row.shape), to the bit. All processes call it in the same order
    with one shape and type; raises InputError where another has failed since the last call."""
    failed = np.flatnonzero(_gather(np.zeros(1, np.uint8))[:, 0])
    if failed.size:
        raise _AnotherFailed(f"process {failed[0]} failed: its own line says why")
    return _gather(row)


def from_first(row: NDArray[S]) -> NDArray[S]:
    """Process 0's row (n,), whatever the others give, if it is of that type."""
    length = int(gather(np.array([len(row)]))[0, 0])
    return gather(row if is_first() else np.zeros(length, row.dtype))[0] if length else row[:0]


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """All that the processes do together: an error in here is told to the others, whose next `gather`
    raises InputError. Where it ends, all but process 0 leave."""
    try:
        yield
    except _AnotherFailed:
        _leave(_GRACE_SECONDS)
        raise
    except Exception:
        with contextlib.suppress(InputError):
            _gather(np.ones(1, np.uint8))
        _leave(_GRACE_SECONDS)
        raise
    _leave(0)


def require_same(text: str) -> None:
    """Raises InputError where a process has another text than process 0."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    rows = gather(digest)
    differing = np.flatnonzero((rows != rows[0]).any(axis=1))
    require(
        not differing.size,
        f"process {differing[0] if differing.size else 0} has other settings or data than process 0: "
        "start all with the same",
    )


def _leave(grace: float) -> None:
    """Process 0 lets the others go first: a process whose service ends is aborted."""
    if jax.process_count() == 1:
        return
    if is_first():
        time.sleep(grace)
    else:
        jax.distributed.shutdown()


def _gather(row: NDArray[Any]) -> NDArray[Any]:
    """Every process's row, as bytes over one device of each."""
    count = jax.process_count()
    if count == 1:
        return row[None]
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[index] for index in range(count)]), ("processes",))
    spread = NamedSharding(mesh, PartitionSpec("processes"))
    whole = NamedSharding(mesh, PartitionSpec())
    content = np.frombuffer(row.tobytes(), np.uint8)[None]
    try:
        local = jax.make_array_from_process_local_data(spread, content, (count, content.shape[1]))
        with _without_stdout():
            rows = np.asarray(jax.jit(_same, out_shardings=whole)(local).addressable_data(0))
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # Gloo's closed connection is either
        raise _AnotherFailed(
            f"another process has ended ({str(error).splitlines()[0][:80]}): finished rounds are kept, "
            "start all processes again"
        ) from None
    return np.frombuffer(rows.tobytes(), row.dtype).reshape(count, *row.shape)


def _same(rows: jax.Array) -> jax.Array:
    """The rows, gathered by being wanted everywhere; one function, so that it is compiled once."""
    return rows


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Gloo says on stdout that it is connected, where a JSON object may be awaited."""
    saved, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(null)


def _initialize(timeout: float, **arguments: Any) -> None:
    """JAX's distributed service, by which a process that dies does not take the others with it unheard."""
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(initialization_timeout=max(int(timeout), 1), **arguments)
    except (ValueError, RuntimeError, LookupError, ImportError, OSError) as error:
        raise InputError(
            f"the processes could not be joined ({' '.join(str(error).split())[:120]}): "
            "give `coordinator` as host:port, `processes` and `process`"
        ) from None


def _meet(host: str, port: int, count: int, index: int, deadline: float) -> None:
    """Returns when all processes are there: JAX aborts, with a stack, one that waits in vain."""
    if index:
        _announce(host, port, f"{index} {count}", deadline)
    else:
        _receive(port, count, deadline)


def _receive(port: int, count: int, deadline: float) -> None:
    """Waits until all others have said who they are, then lets them go on."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_listen(port))
        except OSError as error:
            raise InputError(f"cannot listen at port {port} ({error.strerror}): name another") from None
        waiting: dict[int, socket.socket] = {}
        while len(waiting) < count - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                peer = stack.enter_context(server.accept()[0])
            except TimeoutError:
                absent = sorted(set(range(1, count)) - set(waiting))
                raise InputError(f"process {absent[0]} of {count} has not come: start it sooner") from None
            hello = _hello(peer)
            if len(hello) != 2:
                continue  # a stranger
            index, said = hello
            require(said == count, f"process {index} has `processes={said}`, process 0 {count}: agree")
            require(0 < index < count and index not in waiting, f"two processes are `process={index}`")
            waiting[index] = peer
        for peer in waiting.values():
            peer.sendall(b"go")


def _listen(port: int) -> socket.socket:
    """A server on all addresses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _hello(peer: socket.socket) -> list[int]:
    """The two numbers that a process says; none where it says something else."""
    peer.settimeout(_HELLO_SECONDS)
    try:
        return [int(word) for word in peer.recv(_HELLO_BYTES).split()]
    except (OSError, ValueError):
        return []


def _announce(host: str, port: int, hello: str, deadline: float) -> None:
    """Tells process 0 who this is and waits until all are there."""
    reason = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as peer:
                peer.sendall(hello.encode())
                if peer.recv(_HELLO_BYTES) == b"go":
                    return
                reason = "turned away"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(_RETRY_SECONDS)
    raise InputError(f"no process 0 at {host}:{port} ({reason}): start it, or correct `coordinator`")
