"""Runs the command named by the first argument: ./run.sh audit, hidden-state-audit bound."""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from audit.version import __version__

HELP = ("help", "-h", "--help")


def run(
    program: str, packages: Sequence[str], arguments: Sequence[str], others: Mapping[str, str]
) -> None:
    """Runs a command with its flags; exits with status 2 if the command is unknown.

    Args:
      program: The program's name in messages, such as ./run.sh.
      packages: The packages whose modules are commands.
      arguments: The command's name and its flags; [] lists the commands.
      others: {name: summary} for other commands that the help lists.
    """
    handle_interrupts()
    name, *flags = arguments or ["help"]
    if name in HELP and flags:  # `help bound` is `bound --help`
        name = flags[0]
        flags = ["--help"]
    modules = find_commands(packages)
    if name == "--version":
        print(f"hidden-state-audit {__version__}")
    elif name in HELP:
        print(_format_usage(program, modules, others))
    elif name in modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow logs only fatal errors
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(modules[name], run_name="__main__", alter_sys=True)
    else:
        sys.exit(report_error(f"no command {name[:60]!a}: `{program} help` lists all commands"))


def report_error(message: str) -> int:
    """Prints an error on stderr and returns the exit status for user errors."""
    print(f"error: {message}", file=sys.stderr)
    return 2


def find_commands(packages: Sequence[str]) -> dict[str, str]:
    """Returns {command: module}. If packages have modules with the same name, the first package wins.

    A module is a command if it has a `main` function. We search the source, because importing all modules
    would be slow.
    """
    modules = {}
    for package in reversed(packages):
        for path in Path(str(resources.files(package))).glob("*.py"):
            if "\ndef main()" in path.read_text(encoding="utf-8"):
                modules[path.stem] = f"{package}.{path.stem}"
    return dict(sorted(modules.items()))


def _format_usage(program: str, modules: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Returns the program's help, with a line for each command."""
    summaries = {name: _read_summary(module) for name, module in modules.items()}
    commands = [f"  {name:<12} {summary}" for name, summary in {**summaries, **others}.items()]
    return "\n".join(
        [
            f"Usage: {program} COMMAND [flags]",
            "",
            *commands,
            "",
            f"Flags of a command: {program} COMMAND --help",
        ]
    )


def _read_summary(module: str) -> str:
    """Returns the first line of a module's docstring, without importing the module."""
    package, _, name = module.rpartition(".")
    source = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return source.partition("\n")[0].strip('"')


LINE = "interrupted: rerun the same command to continue from the stored runs"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handle_interrupts() -> None:
    """Makes SIGINT and SIGTERM end this process with a one-line message; ignored signals stay ignored.

    Python's own handlers would wait for compiled code to return, and a library may catch KeyboardInterrupt.
    Instead, a second thread reads signal numbers from a pipe.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_signal, args=(reading,), daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            # Python writes to the pipe only for signals with a handler.
            signal.signal(number, lambda number, frame: None)
            # A signal during shutdown must not make a finished command fail. Shutdown restores the default
            # handlers, except for signals that are ignored.
            atexit.register(signal.signal, number, signal.SIG_IGN)


def _end_at_signal(reading: int) -> None:
    """Waits for a signal, writes the message, and ends the process without Python's clean-up.

    `reading` is the file descriptor for reading signal numbers from the pipe.
    """
    number = 0
    while number not in _SIGNALS:  # the pipe also receives the numbers of other signals
        number = os.read(reading, 1)[0]
    with contextlib.suppress(OSError):
        os.write(2, f"\nerror: {LINE}\n".encode())  # below a progress line
    os._exit(128 + number)  # as in shells
