"""What the user started: messages name its commands, or functions where a script imports the library."""

import re
import sys
from pathlib import Path

RUN_SH = "./run.sh"
INSTALLED = "hidden-state-audit"
MODULE = "python -m audit"
_PROGRAMS_OF_MODULES = {"experiments": RUN_SH, "audit": MODULE}


def program() -> str:
    """Returns what the user typed to start this program: RUN_SH, INSTALLED or MODULE.

    It is read off Python's own command line: `-m package`, or the path of a script. RUN_SH is a script that
    starts `-m experiments`. The result is "" in a script of the user's, a notebook or a test.
    """
    arguments = iter(sys.orig_argv[1:])  # without the path of Python itself
    for word in arguments:
        if re.fullmatch("-[a-zA-Z]*m", word):  # -m, perhaps after other flags, as in -Im
            module = next(arguments, "")
            package = module.partition(".")[0]
            return _PROGRAMS_OF_MODULES.get(package, "")
        if word in ("-X", "-W"):
            next(arguments, None)  # skips the option's value
        elif not word.startswith("-"):  # the path of a script
            return INSTALLED if Path(word).stem == INSTALLED else ""
    return ""


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
