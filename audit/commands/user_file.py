"""A file of the user's, run for what it defines."""

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.runtime import installed
from audit.runtime.machine import prepare_jax


class UserFile(NamedTuple):
    """A file that was run for one of its definitions.

    Attributes:
      path: the file.
      name: the name of the definition that the user asks for.
      definitions: all that the file defines, by name; `name` is among them.
    """

    path: Path
    name: str
    definitions: dict[str, Any]


def run_user_file(flag: str, value: str) -> UserFile:
    """Runs the file that a flag's value names, such as mine.py:step.

    The file's folder is appended to sys.path: the file can import its neighbours. If the file's text mentions
    JAX, and JAX is installed, JAX is set up before the file runs.

    Args:
      flag: the flag's name, for messages.
      value: a file and the name of something that it defines.

    Raises:
      InputError: there is no such file, it fails, or it does not define the name. The message has the file's
        own error in a line.
    """
    file, _, name = value.rpartition(":")
    require(
        file and name, f"--{flag}={value}: name a file and what to take from it, mine.py:{flag}"
    )
    path = Path(file)
    require(path.is_file(), f"--{flag}={value}: there is no file {file}")
    definitions = _run(path)
    require(name in definitions, f"{path.name} has no {name}: define it, or name another")
    return UserFile(path, name, definitions)


def _run(path: Path) -> dict[str, Any]:
    """Runs a Python file and returns what it defines, by name."""
    sys.path.append(str(path.resolve().parent))
    mentions_jax = "jax" in path.read_text(encoding="utf-8", errors="replace")
    if mentions_jax and importlib.util.find_spec("jax") is not None:
        prepare_jax()
    try:
        # The name is not __main__: what the file does only as a program is left out.
        return runpy.run_path(str(path), run_name="check")
    except InputError:
        raise
    except ModuleNotFoundError as error:
        install = installed.pip_install(str(error.name))
        raise InputError(
            f"{path.name} needs {error.name}, which is not installed: {install}"
        ) from error
    except SystemExit as error:
        raise InputError(f"{path.name} calls sys.exit: leave that out") from error
    except Exception as error:  # of the user's file
        message = " ".join(str(error).split())[:200]
        raise InputError(f"{path.name} fails with {type(error).__name__}: {message}") from error
