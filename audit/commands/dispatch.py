"""Every command of some packages under a common name: python -m audit bound, ./run.sh audit."""

import ast
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from audit.commands import interrupts, streams
from audit.runtime import started
from audit.runtime.progress import shortened
from audit.version import __version__

_MARK = '\nif __name__ == "__main__":'  # a module whose source has this line is a command
_HELP_COMMANDS = ("help", "-h", "--help")
_VERSION = "--version"
HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
_USAGE_ERROR = 2
_FIRST_GROUP = "audit"


class Command(NamedTuple):
    """A command of a program.

    Attributes:
      name: what the user types.
      module: the full name of the module that is run; empty for a command that the program runs otherwise.
      summary: its line in the help: the first line of the module's docstring, if there is a module.
    """

    name: str
    module: str
    summary: str


class Program(NamedTuple):
    """A program whose first argument names a command.

    Attributes:
      call: how the user calls the program, such as ./run.sh.
      packages: the names of packages whose modules are commands. Of two modules of the same name, that of the
        earlier package counts.
      alone: the command that runs where there are no arguments.
      usual: the command that runs where there are only flags; empty where there is none.
      groups: the groups in the help, each with its commands' names; all other commands are in "audit".
      others: commands that are no modules of these packages, for the help.
      elsewhere: where there are further commands, in words, such as "a clone's ./run.sh has more"; empty if
        there are none.
    """

    call: str
    packages: Sequence[str]
    alone: str = "help"
    usual: str = ""
    groups: Mapping[str, Sequence[str]] = MappingProxyType({})
    others: Sequence[Command] = ()
    elsewhere: str = ""


def run(program: Program) -> None:
    """Runs the command that the first argument names, with the flags after it.

    Exits with status 2 and a line on stderr where there is no such command.
    """
    streams.prepare()
    interrupts.install()
    with interrupts.end_in_one_line():
        _run(program)


def _run(program: Program) -> None:
    """Runs the command that the first argument names, or prints the help or the version.

    Exits with status 2 where there is no such command. A command's module answers --help itself. Only where
    absl, which parses flags, is not installed yet, the module's docstring is printed instead.
    """
    command, flags = split_arguments(program, sys.argv[1:])
    modules = {name: module for name, module, _ in commands(program.packages)}  # by command
    is_help = command in _HELP_COMMANDS
    asks_for_flags = not HELP_FLAGS.isdisjoint(flags)  # such as "bound --help"
    if command == _VERSION and not flags:
        streams.print_whole(f"{started.INSTALLED} {__version__}")
        return
    if is_help and not flags:
        streams.print_whole(_format_usage(program))
    elif is_help and flags[0] in modules:  # such as "help bound"
        streams.print_whole(_read_help(modules[flags[0]]))
    elif is_help or command not in modules:  # such as "help bond", or "bond"
        unknown = flags[0] if is_help else command
        message = f"error: no command {shortened(repr(unknown), 60)}; help lists them"
        if program.elsewhere:
            message += f"; {program.elsewhere}"
        print(message, file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    elif asks_for_flags and importlib.util.find_spec("absl") is None:
        later = "Its flags are listed here once any command has set up .venv."
        streams.print_whole(f"{_read_help(modules[command])}\n\n{later}")
    else:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # in C++ log fatal errors only
        # The module runs as the main program. Its command line has no command's name.
        sys.argv = [sys.argv[0], *flags]
        runpy.run_module(modules[command], run_name="__main__", alter_sys=True)


def split_arguments(program: Program, arguments: list[str]) -> tuple[str, list[str]]:
    """Splits a program's arguments into a command's name and the arguments of that command.

    Without arguments, the command is the program's `alone`. Where the first argument is a flag, it is the
    program's `usual`, if it has one.
    """
    if not arguments:
        return program.alone, []
    first = arguments[0]
    is_flag = first.startswith("-") and first not in (*_HELP_COMMANDS, _VERSION)
    if is_flag and program.usual:
        return program.usual, arguments
    return first, arguments[1:]


def _format_usage(program: Program) -> str:
    """Returns the program's help: its commands by group, each with its summary."""
    lines = {title: [f"{title}:"] for title in (_FIRST_GROUP, *program.groups)}
    for command in (*commands(program.packages), *program.others, _HELP):
        lines[_find_group(program, command)].append(f"  {command.name:<12} {command.summary}")

    paragraphs = [f"Usage: {program.call} [command] [flags]"]
    paragraphs.extend("\n".join(group) for group in lines.values())
    closing = f"For the flags of a command: {program.call} COMMAND --help"
    if program.usual:
        without_command = (
            f"Flags without a command are those of {program.usual}; nothing at all means"
        )
        closing = f"{without_command} {program.alone}.\n{closing}"
    return "\n\n".join([*paragraphs, closing])


def _find_group(program: Program, command: Command) -> str:
    """Returns the title of a command's group in the help; "audit" for a command that is in none."""
    for title, names in program.groups.items():
        if command.name in names:
            return title
    return _FIRST_GROUP


_HELP = Command("help", "", "List the commands, or say what one does: help bound")


def commands(packages: Sequence[str]) -> Iterator[Command]:
    """Yields the modules of packages that can be run as commands, in the order of their names.

    Of two modules of the same name, that of the earlier package counts. A module is a command if its source
    has a line `if __name__ == "__main__":`. Modules are parsed, since importing them would take seconds.
    """
    module_and_path: dict[str, tuple[str, Path]] = {}
    for package in reversed(packages):  # so that an earlier package replaces a later one's modules
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
    """Returns a module's docstring, with this program's name in its examples, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return started.name_program(docstring)
