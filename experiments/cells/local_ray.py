"""Sets Ray up on this machine: settings, a folder of the user's own, free ports, no process left over."""

import contextlib
import os
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.errors import InputError, require

HEAD_PORT = "6379"  # Ray's own default
_ANSWER_SECONDS = 5.0  # after which an address counts as one at which nobody answers
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # that of training without Ray; Ray's default is 15
    # A task on a host that can't be reached is given up after the sum of these two; by default in 7 minutes
    "RAY_grpc_client_keepalive_time_ms": "20000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
}


def set_up(alone: bool) -> None:
    """Sets the environment variables that Ray reads when it is imported.

    Variables that the user has set stay as they are, but for RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER: it is set in
    any case where `alone` is true, since it keeps the cluster on the loopback address.

    Args:
      alone: Whether a cluster of this machine alone will be started, which no other machine may reach.

    Raises:
      InputError: Ray's folder is another user's.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if "RAY_TMPDIR" not in os.environ:
        # In /tmp the path is short, as the paths of sockets must be.
        os.environ["RAY_TMPDIR"] = str(_own_folder(Path("/tmp")))
    if alone:
        # Despite its name it has an effect on any system: at 0 the cluster's address is the loopback address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Without these Ray would write a token to ~/.ray, and the heads of later clusters would ask for it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _own_folder(temporary: Path) -> Path:
    """Makes a folder for Ray's sessions that no other user can read, and returns it.

    Ray's own folder would be open for everybody to write.

    Args:
      temporary: The folder in which it is made.

    Raises:
      InputError: The folder is another user's, or can't be made.
    """
    folder = temporary / f"ray-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()  # of the entry itself: a link, which may lead anywhere, is refused
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror}: name a folder of yours in RAY_TMPDIR"
        ) from None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    require(is_own, f"{folder} is another user's: name a folder of yours in RAY_TMPDIR")
    folder.chmod(0o700)  # it may have existed with other permissions
    return folder


def start_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of `ray start` with this project's defaults in front, after checking them.

    Of repeated flags the last wins, so that `arguments` override the defaults. The defaults are a folder, and
    no monitor of logs: nobody reads the logs, and the monitor takes a twentieth of a core.

    Raises:
      InputError: A port is taken, or nobody answers at the address to be joined.
    """
    # The ports that are named, and in any case that of a head, must be free.
    flags = _parse_flags(arguments)
    ports = {}
    for name, value in flags.items():
        if name == "--port" or name.endswith("-port"):
            ports[name] = value
    if "--head" in flags:
        ports.setdefault("--port", HEAD_PORT)
    for name, value in ports.items():
        # Between --min-worker-port and --max-worker-port Ray looks for free ports itself.
        is_range_end = "worker-port" in name
        if value.isdecimal() and not is_range_end:
            _require_free(name, int(value))

    # A node that joins a cluster must reach the cluster's head.
    if "--head" not in flags and "--address" in flags:
        address = flags["--address"]
        try:
            check_answer(address)
        except OSError as error:
            message = f"--address={address}: no Ray cluster there ({error}): first start its head"
            raise InputError(message) from None

    # Without --temp-dir a node on another host would take the folder of the head's host.
    folder = os.path.join(os.environ["RAY_TMPDIR"], "ray")
    return ["--include-log-monitor=False", f"--temp-dir={folder}", *arguments]


def _parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Returns {"--name": value} for arguments of the forms --name=value and --name value.

    A flag without a value gets the argument that follows it, which callers ignore.
    """
    flags = {}
    following = [*arguments[1:], ""]
    for argument, after in zip(arguments, following, strict=True):
        name, equals, value = argument.partition("=")
        if not equals:
            value = after
        if name.startswith("--"):
            flags[name] = value
    return flags


def _require_free(name: str, port: int) -> None:
    """Raises InputError for a port that this user can't listen on; `name` is its flag."""
    require(port < 2**16, f"{name}={port} is no port: 1 to 65535")
    with socket.socket() as listener:
        # Otherwise a port that was in use until a minute ago would count as taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except PermissionError:
            raise InputError(f"{name}={port} is not for every user: name one above 1023") from None
        except OSError:
            message = (
                "is taken: name another, or, where it is an earlier cluster's, end that by ray stop"
            )
            raise InputError(f"{name}={port} {message}") from None


def check_answer(address: str) -> None:
    """Raises OSError where nobody answers at "host:port" within _ANSWER_SECONDS; Ray would try for minutes.

    Other addresses, such as "auto", are not checked.
    """
    host, _, port = address.rpartition(":")
    # The system would take a larger number modulo 2^16, and so try another port.
    if host and port.isdecimal() and int(port) < 2**16:
        host_name = host.strip("[]")  # the brackets of an IPv6 address
        socket.create_connection((host_name, int(port)), _ANSWER_SECONDS).close()


@contextlib.contextmanager
def reap_processes() -> Iterator[None]:
    """Kills what is left of the cluster that this process started, when the block or the process ends.

    What kills them is another process, the reaper, which outlives this process, however that ends. It notes
    which processes they are when the block begins, so that the cluster must have been started by then.
    """
    if not sys.platform.startswith("linux"):
        yield  # on other systems Ray has a process of its own for this
        return
    # -I (isolated): no module of the user's, as in PYTHONPATH, can take the place of a standard module.
    command = [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))]
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end, when the block or this process ends, tells the reaper to kill
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that an interrupt of this process's group leaves the reaper alone
        ) as reaper
    ):
        assert reaper.stdout is not None
        reaper.stdout.readline()  # waits for the line that says that the reaper has found all processes
        yield
