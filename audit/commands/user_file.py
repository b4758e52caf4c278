"""Runs a user's file and returns its definitions."""

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, describe_error, require
from audit.runtime import installed
from audit.runtime.machine import prepare_jax


class UserFile(NamedTuple):
    """An executed file: its path, the requested name, and all of its definitions, keyed by name."""

    path: Path
    requested_name: str
    definitions: dict[str, Any]


def run_user_file(flag: str, value: str) -> UserFile:
    """Runs the file named in a flag's value, such as mine.py:step.

    The file can import modules from its folder. If the file mentions JAX, JAX is configured first.

    Raises:
      InputError: The file does not exist, fails to run, or does not define the name.
    """
    file, _, name = value.rpartition(":")
    require(
        file and name, f"--{flag}={value}: give a file and a name in it, such as mine.py:{flag}"
    )
    path = Path(file)
    require(path.is_file(), f"--{flag}={value}: there is no file {file}")
    sys.path.append(str(path.resolve().parent))
    mentions_jax = "jax" in path.read_text(encoding="utf-8", errors="replace")
    if mentions_jax and importlib.util.find_spec("jax") is not None:
        prepare_jax()
    try:
        # Skips code below `if __name__ == "__main__"`.
        definitions = runpy.run_path(str(path), run_name="user_file")
    except ModuleNotFoundError as error:
        install = installed.pip_install(str(error.name))
        raise InputError(
            f"{path.name} needs {error.name}, which is not installed: {install}"
        ) from error
    except (Exception, SystemExit) as error:  # the user's code may raise any exception
        raise InputError(f"{path.name} fails with {describe_error(error)}") from error
    require(name in definitions, f"{path.name} has no {name}: define it, or name another")
    return UserFile(path, name, definitions)
