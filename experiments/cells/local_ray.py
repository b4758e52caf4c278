"""Ray as it runs on this machine: settings, a folder of the user's own, free ports, nothing left behind."""

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

HEAD_PORT = "6379"
_ANSWER_SECONDS = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # what training without Ray has; Ray's own is 15
    # A task on a host that can't be reached is given up after their sum; Ray's own is 7 minutes
    "RAY_grpc_client_keepalive_time_ms": "20000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
}


def set_up(alone: bool) -> None:
    """Ray's settings, which it reads as it is imported; the user's own stay. Alone, the cluster to be started
    is heard on this machine only. Raises InputError where Ray's folder is another user's."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if "RAY_TMPDIR" not in os.environ:
        os.environ["RAY_TMPDIR"] = str(_own_folder(Path("/tmp")))  # short, as the paths of sockets must be
    if alone:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on any system: the address is loopback's
        # Ray would write a token to ~/.ray, and later clusters' heads would ask for it
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _own_folder(temporary: Path) -> Path:
    """A folder that no other user can read, for sessions, which Ray would let everybody write."""
    folder = temporary / f"ray-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}: name a folder of yours in RAY_TMPDIR") from None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    require(own, f"{folder} is another user's: name a folder of yours in RAY_TMPDIR")
    folder.chmod(0o700)
    return folder


def start_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of `ray start` with this project's defaults: a folder, and no monitor of logs,
    which nobody reads and which takes a twentieth of a core.

    Raises InputError where a port is taken, or nobody answers at the address to be joined."""
    given = dict(_flags(arguments))
    ports = {name: value for name, value in given.items() if name == "--port" or name.endswith("-port")}
    if "--head" in given:
        ports.setdefault("--port", HEAD_PORT)
    for name, value in ports.items():
        if value.isdecimal() and "worker-port" not in name:  # whose two are the ends of a range
            _require_free(name, int(value))
    if "--head" not in given and "--address" in given:
        try:
            ask(given["--address"])
        except OSError as error:
            message = f"--address={given['--address']}: no Ray cluster there ({error}): first start its head"
            raise InputError(message) from None
    folder = os.path.join(os.environ["RAY_TMPDIR"], "ray")  # or other hosts would take the head's
    return ["--include-log-monitor=False", f"--temp-dir={folder}", *arguments]


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            yield name, value if equals else after


def _require_free(name: str, port: int) -> None:
    require(port < 2**16, f"{name}={port} is no port: 1 to 65535")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except PermissionError:
            raise InputError(f"{name}={port} is not for every user: name one above 1023") from None
        except OSError:
            message = "is taken: name another, or, where it is an earlier cluster's, end that by ray stop"
            raise InputError(f"{name}={port} {message}") from None


def ask(address: str) -> None:
    """Raises OSError where nobody answers at host:port, which Ray itself would ask for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and int(port) < 2**16:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """A block after which no process of the cluster that this process started is left, however it ends."""
    if not sys.platform.startswith("linux"):
        yield  # there Ray has a process of its own for this
        return
    argv = [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True) as reaper:
        assert reaper.stdout is not None
        reaper.stdout.readline()  # it has found them
        yield
