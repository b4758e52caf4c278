"""Every command of some packages under one name: python -m audit bound, ./run.sh audit."""

import ast
import contextlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from audit.commands import interrupts, streams
from audit.runtime import started
from audit.runtime.progress import shortened

_MARK = '\nif __name__ == "__main__":'
_HELP_COMMANDS = ("help", "-h", "--help")
_HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
_USAGE_ERROR = 2
_COLUMNS = 80


class Command(NamedTuple):
    """A command.

    Attributes:
      name: what the user types.
      module: the module that it runs.
      summary: the first line of the module's docstring.
    """

    name: str
    module: str
    summary: str


def run(
    program: str, packages: Sequence[str], usual: str | None = None, others: Sequence[str] = ()
) -> None:
    """Runs the command that the first argument names, with the flags after it; without one `usual`, or help.

    Args:
      program: how the user calls this.
      packages: whose modules are commands; of two of one name the first package's counts.
      usual: the command that flags alone are for.
      others: lines of the help on commands that `program` has besides.

    Exits with status 2 and a line on stderr for a command that is none.
    """
    streams.repair()
    interrupts.install()
    with interrupts.end_in_one_line():
        _run(program, packages, usual, others)


def _run(program: str, packages: Sequence[str], usual: str | None, others: Sequence[str]) -> None:
    """Does what `run` says, with repaired streams and interrupts that end in a line."""
    command, flags = _split_arguments(sys.argv[1:], usual)
    modules = {name: module for name, module, _ in commands(packages)}
    is_help = command in _HELP_COMMANDS
    asks_for_flags = not _HELP_FLAGS.isdisjoint(flags)
    if is_help and not flags:
        _print_whole(_format_usage(program, packages, usual, others))
    elif is_help and flags[0] in modules:
        _print_whole(_read_help(modules[flags[0]]))
    elif is_help or command not in modules:
        unknown = flags[0] if is_help else command
        print(f"error: no command {shortened(repr(unknown), 60)}; help lists them", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    elif asks_for_flags and importlib.util.find_spec("absl") is None:
        later = "Its flags are listed here once any command has set up .venv."
        print(f"{_read_help(modules[command])}\n\n{later}")
    else:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(modules[command], run_name="__main__", alter_sys=True)


def _split_arguments(arguments: list[str], usual: str | None) -> tuple[str, list[str]]:
    """Returns the command and its flags; without a command it is the usual one, or help."""
    if not arguments:
        return usual or "help", []
    first = arguments[0]
    is_flag = first.startswith("-") and first not in _HELP_COMMANDS
    if is_flag and usual is not None:
        return usual, arguments
    return first, arguments[1:]


def _format_usage(
    program: str, packages: Sequence[str], usual: str | None, others: Sequence[str]
) -> str:
    """Returns the commands, each with the first line of its docstring."""
    lines = [f"Usage: {program} [command] [flags]", ""]
    for command in commands(packages):
        lines.append(f"  {command.name:<12} {command.summary}"[:_COLUMNS])
    lines.extend(others)
    lines.append("  help         Prints this.")
    lines.append("")
    end = f"For the flags of one: {program} COMMAND --help"
    if usual is not None:
        end = f"No command means {usual}. {end}"
    lines.append(end)
    return "\n".join(lines)


def commands(packages: Sequence[str]) -> Iterator[Command]:
    """Yields every module of the packages that can be run, by name."""
    module_and_path: dict[str, tuple[str, Path]] = {}
    for package in reversed(packages):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0])
        for path in folder.glob("[!_]*.py"):
            module_and_path[path.stem] = (f"{package}.{path.stem}", path)

    for name, (module, path) in sorted(module_and_path.items()):
        text = path.read_text(encoding="utf-8")
        if _MARK in text:
            docstring = ast.get_docstring(ast.parse(text)) or ""
            yield Command(name, module, docstring.partition("\n")[0])


def _read_help(module: str) -> str:
    """Returns a command's docstring, as whoever started this program types its examples."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return started.in_its_words(docstring)


def _print_whole(text: str) -> None:
    """Prints a text; a reader that leaves early is no error."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
