"""Every command of some packages under one name: python -m audit bound, ./run.sh audit."""

import ast
import contextlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit import started
from audit.commands import interrupts, streams
from audit.progress import shortened

_MARK = '\nif __name__ == "__main__":'
_HELP = ("help", "-h", "--help")
_HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
_USAGE_ERROR, _COLUMNS = 2, 80


def run(program: str, packages: Sequence[str], usual: str | None = None, others: Sequence[str] = ()) -> None:
    """Runs the command that the first argument names, with the flags after it; without one `usual`, or help.

    Args:
      program: how the user calls this.
      packages: whose modules are commands; of two of one name the first package's counts.
      usual: the command that flags alone are for.
      others: lines of the help on commands that `program` has besides.

    Exits with status 2 and a line on stderr for a command that is none.
    """
    streams.mend()
    interrupts.install()
    with interrupts.ending():
        _run(program, packages, usual, others)


def _run(program: str, packages: Sequence[str], usual: str | None, others: Sequence[str]) -> None:
    arguments = sys.argv[1:]
    if usual is not None and (not arguments or (arguments[0][:1] == "-" and arguments[0] not in _HELP)):
        arguments = [usual, *arguments]
    command, *flags = arguments or ["help"]
    modules = {name: module for name, module, _ in commands(packages)}
    if command in _HELP and not flags:
        _print_whole(usage(program, packages, usual, others))
    elif command in _HELP and flags[0] in modules:
        _print_whole(_docstring(modules[flags[0]]))
    elif command in modules and _HELP_FLAGS & {*flags} and importlib.util.find_spec("absl") is None:
        later = "Its flags are listed here once any command has set up .venv."
        print(f"{_docstring(modules[command])}\n\n{later}")
    elif command in modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(modules[command], run_name="__main__", alter_sys=True)
    else:
        unknown = flags[0] if command in _HELP else command
        print(f"error: no command {shortened(repr(unknown), 60)}; help lists them", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def usage(program: str, packages: Sequence[str], usual: str | None, others: Sequence[str]) -> str:
    """The commands, each with the first line of its docstring."""
    lines = [f"  {name:<12} {summary}"[:_COLUMNS] for name, _, summary in commands(packages)]
    lines += [*others, "  help         Prints this.", ""]
    closing = "" if usual is None else f"No command means {usual}. "
    end = f"{closing}For the flags of one: {program} COMMAND --help"
    return "\n".join([f"Usage: {program} [command] [flags]", "", *lines, end])


def commands(packages: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(name, module, first line of the docstring) of every main of the packages, by name."""
    named: dict[str, tuple[str, Path]] = {}
    for package in reversed(packages):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0])
        paths = [(path.stem, path) for path in folder.glob("[!_]*.py")]
        paths += [(path.parent.name, path) for path in folder.glob("*/__main__.py")]
        named |= {name: (f"{package}.{name}", path) for name, path in paths}
    for name, (module, path) in sorted(named.items()):
        text = path.read_text(encoding="utf-8")
        if _MARK in text:
            yield name, module, (ast.get_docstring(ast.parse(text)) or "").split("\n", 1)[0]


def _docstring(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return started.in_its_words(text)


def _print_whole(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
