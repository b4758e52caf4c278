"""Every command under one name: python -m experiments audit --k=5, or hidden-state-audit audit --k=5."""

import ast
import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
_MARK = '\nif __name__ == "__main__":'
_HELP = ("help", "-h", "--help")
_USAGE_ERROR = 2
_COLUMNS = 80
_CLOSING = (
    "  help         Print this.",
    "",
    "No command means audit. For the flags of one: hidden-state-audit audit --help",
)


def main() -> None:
    """Runs the command that the first argument names with the flags after it; without one, audit.

    `help` lists the commands. Exits with status 2 and a line on stderr for a command that is none.
    """
    command, flags = _parsed(sys.argv[1:])
    if command in _HELP:
        with contextlib.suppress(BrokenPipeError):
            print(usage(), flush=True)
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader left
    elif command in dict(commands()):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(f"experiments.{command}", run_name="__main__", alter_sys=True)
    else:
        print(f"error: no command {command!r}; help lists them", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def usage() -> str:
    """The commands, each with the first line of its docstring."""
    lines = (f"  {name:<12} {summary}"[:_COLUMNS] for name, summary in commands())
    return "\n".join(["Usage: hidden-state-audit [command] [flags]", "", *lines, *_CLOSING])


def commands() -> Iterator[tuple[str, str]]:
    """(name, the docstring's first line) of every main in this folder, and of the folders in it that have
    one, in the order of their names."""
    named = [(path.stem, path) for path in FOLDER.glob("[!_]*.py")]
    named += [(path.parent.name, path) for path in FOLDER.glob("*/__main__.py")]
    for name, path in sorted(named):
        text = path.read_text(encoding="utf-8")
        if _MARK in text:
            summary = ast.get_docstring(ast.parse(text)) or ""
            yield name, summary.split("\n", 1)[0]


def _parsed(arguments: list[str]) -> tuple[str, list[str]]:
    """(command, flags); flags alone are audit's."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _HELP):
        return "audit", arguments
    return arguments[0], arguments[1:]


if __name__ == "__main__":
    main()
