"""What the user started: messages name its commands, or functions where a script imports the library."""

import re
import sys
from pathlib import Path

RUN_SH, INSTALLED, MODULE = "./run.sh", "hidden-state-audit", "python -m audit"
_OF_MODULES = {"experiments": RUN_SH, "audit": MODULE}


def program() -> str:
    """How the commands are called: RUN_SH, INSTALLED or MODULE; empty in a script, a notebook or a test."""
    arguments = iter(sys.orig_argv[1:])
    for word in arguments:
        if re.fullmatch("-[a-zA-Z]*m", word):
            return _OF_MODULES.get(next(arguments, "").partition(".")[0], "")
        if word in ("-X", "-W"):
            next(arguments, None)
        elif not word.startswith("-"):
            return INSTALLED if Path(word).stem == INSTALLED else ""
    return ""


def command(name: str) -> str:
    """How a command that every installation has is called, "./run.sh report"."""
    return f"{program() or MODULE} {name}"


def training() -> str:
    """The mend where audits are missing: how one is trained."""
    return f"run {RUN_SH} audit" if program() == RUN_SH else "call audit.audit_loss"


def in_its_words(text: str) -> str:
    """A command's own help, whose examples say ./run.sh, as whoever started another program types them."""
    return text.replace(RUN_SH, program() or MODULE)
