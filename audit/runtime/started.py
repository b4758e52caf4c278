"""What the user started: messages name its commands, or functions where a script imports the library."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

RUN_SH = "./run.sh"
INSTALLED = "hidden-state-audit"
MODULE = "python -m audit"
# The environment variable in which RUN_SH says by which path it was started, such as ../run.sh.
TYPED_RUN_SH = "AUDIT_RUN_SH"
_PROGRAMS_OF_MODULES = {"experiments": RUN_SH, "audit": MODULE}


class _Call(NamedTuple):
    """A program that was started, as Python's own command line has it.

    Attributes:
      program: RUN_SH, INSTALLED or MODULE; "" in a script of the user's, a notebook or a test.
      words: the words after it, as they were typed.
    """

    program: str
    words: list[str]


def _read_call() -> _Call:
    """Returns the program that was started, and its words.

    It is read off Python's own command line: `-m package`, or the path of a script. RUN_SH is a script that
    starts `-m experiments`.
    """
    arguments = iter(sys.orig_argv[1:])  # without the path of Python itself
    for word in arguments:
        if re.fullmatch("-[a-zA-Z]*m", word):  # -m, perhaps after other flags, as in -Im
            package, _, submodule = next(arguments, "").partition(".")
            words = list(arguments)
            if submodule:  # a command's own module, as in -m audit.commands.check
                words.insert(0, submodule.rpartition(".")[2])
            return _Call(_PROGRAMS_OF_MODULES.get(package, ""), words)
        if word in ("-X", "-W"):
            next(arguments, None)  # skips the option's value
        elif not word.startswith("-"):  # the path of a script
            is_installed = Path(word).stem == INSTALLED
            return _Call(INSTALLED if is_installed else "", list(arguments))
    return _Call("", [])


def program() -> str:
    """Returns what the user typed to start this program: RUN_SH, INSTALLED or MODULE.

    The result is "" in a script of the user's, a notebook or a test.
    """
    return _read_call().program


def typed_command(name: str) -> str:
    """Returns the command line that the user typed, quoted for a shell where it needs it.

    Args:
      name: the command's name, for a command that another program runs: its line is then that of MODULE.
    """
    call = _read_call()
    if not call.program:
        return shlex.join([*MODULE.split(), name, *sys.argv[1:]])
    typed = call.program
    if typed == RUN_SH:
        typed = shlex.quote(os.environ.get(TYPED_RUN_SH, RUN_SH))
    return f"{typed} {shlex.join(call.words)}"


def command(name: str) -> str:
    """Returns how the user would call a command here, for a message: "./run.sh report"."""
    return f"{program() or MODULE} {name}"


def training_hint() -> str:
    """Returns how to train an audit here, for a message where audits are missing."""
    if program() == RUN_SH:
        return f"run {RUN_SH} audit"
    return "call audit.audit_loss"


def name_program(text: str) -> str:
    """Returns a command's help with the name of the started program in place of ./run.sh in its examples."""
    return text.replace(RUN_SH, program() or MODULE)
