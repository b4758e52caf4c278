"""What the user started: messages name its commands, or functions where a script imports the library."""

import re
import sys
from pathlib import Path

RUN_SH = "./run.sh"
INSTALLED = "hidden-state-audit"
MODULE = "python -m audit"
_PROGRAMS_OF_MODULES = {"experiments": RUN_SH, "audit": MODULE}


def program() -> str:
    """Returns how the commands are called: RUN_SH, INSTALLED or MODULE.

    Empty in a script, a notebook or a test.
    """
    arguments = iter(sys.orig_argv[1:])
    for word in arguments:
        if re.fullmatch("-[a-zA-Z]*m", word):
            package = next(arguments, "").partition(".")[0]
            return _PROGRAMS_OF_MODULES.get(package, "")
        if word in ("-X", "-W"):
            next(arguments, None)
        elif not word.startswith("-"):
            return INSTALLED if Path(word).stem == INSTALLED else ""
    return ""


def command(name: str) -> str:
    """Returns how a command that every installation has is called, "./run.sh report"."""
    return f"{program() or MODULE} {name}"


def training() -> str:
    """Returns the hint where audits are missing: how to train them."""
    if program() == RUN_SH:
        return f"run {RUN_SH} audit"
    return "call audit.audit_loss"


def in_its_words(text: str) -> str:
    """Returns a command's help, whose examples say ./run.sh, as users of the started program type them."""
    return text.replace(RUN_SH, program() or MODULE)
