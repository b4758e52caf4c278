"""A file of the user's, run for what it defines."""

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

from audit.errors import InputError
from audit.runtime import installed
from audit.runtime.machine import prepare_jax


def run_file(path: Path) -> dict[str, Any]:
    """Runs a user's Python file and returns what it defines, by name.

    The file's folder is appended to sys.path, so that the file can import its neighbours. If the file's text
    mentions JAX, and JAX is installed, JAX is set up before the file runs.

    Raises:
      InputError: the file fails; the message has the file's own error in a line.
    """
    sys.path.append(str(path.resolve().parent))
    mentions_jax = "jax" in path.read_text(encoding="utf-8", errors="replace")
    if mentions_jax and importlib.util.find_spec("jax") is not None:
        prepare_jax()
    try:
        # The name is not __main__, so that what the file does only as a program is left out.
        return runpy.run_path(str(path), run_name="check")
    except InputError:
        raise
    except ModuleNotFoundError as error:
        install = installed.pip_install(str(error.name))
        raise InputError(
            f"{path.name} needs {error.name}, which is not installed: {install}"
        ) from error
    except SystemExit as error:
        raise InputError(
            f"{path.name} ends the program by sys.exit before anything is checked: leave that out"
        ) from error
    except Exception as error:  # of the user's file
        message = " ".join(str(error).split())[:200]  # on one line, of bearable length
        raise InputError(f"{path.name} fails with {type(error).__name__}: {message}") from error
