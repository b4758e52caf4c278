"""Runs the command in a program's first argument: ./run.sh audit, hidden-state-audit bound."""

import ast
import atexit
import contextlib
import importlib.util
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from audit.version import __version__

HELP = ("help", "-h", "--help")
USAGE_ERROR = 2


def run(
    program: str, packages: Sequence[str], arguments: Sequence[str], others: Mapping[str, str]
) -> None:
    """Runs a command with its flags; exits with status 2 if the command is unknown.

    Args:
      program: the program in help and messages, such as ./run.sh.
      packages: the packages with commands as modules.
      arguments: the command's name and its flags; [] lists the commands.
      others: {name: summary} of further commands for the help.
    """
    install()
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
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # only fatal errors
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(modules[name], run_name="__main__", alter_sys=True)
    else:
        print(f"error: no command {name[:60]!a}: `{program} help` lists them", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def find_commands(packages: Sequence[str]) -> dict[str, str]:
    """Returns {command: module}; earlier packages override later ones.

    A module is a command if it has a function `main`. Importing the modules would take seconds.
    """
    modules = {}
    for package in reversed(packages):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        for path in Path(spec.submodule_search_locations[0]).glob("*.py"):
            if "\ndef main()" in path.read_text(encoding="utf-8"):
                modules[path.stem] = f"{package}.{path.stem}"
    return dict(sorted(modules.items()))


def _format_usage(program: str, modules: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Returns the program's help: a line for each command."""
    summaries = {name: _read_summary(module) for name, module in modules.items()}
    lines = [f"  {name:<12} {summary}" for name, summary in {**summaries, **others}.items()]
    usage = f"Usage: {program} COMMAND [flags]"
    return "\n".join([usage, "", *lines, "", f"Flags of a command: {program} COMMAND --help"])


def _read_summary(module: str) -> str:
    """Returns the first line of a module's docstring, without importing the module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]


LINE = "interrupted"
KEPT_LINE = "interrupted: finished work is kept, and the same command continues"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
is_kept = threading.Event()  # set if the command keeps finished work


def install() -> None:
    """Ends this process at SIGINT and SIGTERM from now on; an ignored signal stays ignored.

    A second thread reads the signals' numbers from a pipe, because Python's handlers wait for compiled code,
    and a library may catch KeyboardInterrupt.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_signal, args=(reading,), daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)  # the thread reads it
    atexit.register(_ignore_from_now_on)


def _ignore_from_now_on() -> None:
    """Ignores signals when the work is done; otherwise Python's shutdown restores the system's handlers."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_at_signal(reading: int) -> None:
    """Waits for a signal, writes the message, and ends the process without Python's clean-up."""
    number = 0
    while number not in _SIGNALS:  # other signals too
        number = os.read(reading, 1)[0]
    line = KEPT_LINE if is_kept.is_set() else LINE
    with contextlib.suppress(OSError):
        os.write(2, f"\nerror: {line}\n".encode())  # on a line below a progress bar
    os._exit(128 + number)
