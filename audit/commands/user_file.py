"""A file of the user's, run for what it defines."""

import importlib.util
import runpy
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from audit.errors import InputError
from audit.runtime import installed
from audit.runtime.machine import prepare_jax

_OF_ENVIRONMENTS = {"site-packages", "dist-packages", ".venv", "venv"}  # folders of no user's files


def find_local_files(path: Path, known: Collection[str]) -> list[Path]:
    """Returns the Python files in a file's folder, or below it, that it has imported, in order.

    Files of environments, such as those below .venv, are left out, and so are those of this package.

    Args:
      path: the user's file, itself left out.
      known: the names of the modules that were imported before the file ran.
    """
    own_file = path.resolve()
    folder = own_file.parent
    this_package = Path(__file__).resolve().parents[1]
    environments = [this_package]
    # An environment of another name below the folder. One above it, such as /usr, holds the user's files too.
    for prefix in (sys.prefix, sys.base_prefix):
        root = Path(prefix).resolve()
        if root != folder and root.is_relative_to(folder):
            environments.append(root)

    local = set()
    for name, module in list(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if name in known or not isinstance(source, str):
            continue
        file = Path(source).resolve()
        is_below = file.suffix == ".py" and file.is_relative_to(folder) and file != own_file
        if not is_below or not file.is_file():
            continue
        is_of_environment = not _OF_ENVIRONMENTS.isdisjoint(file.relative_to(folder).parts)
        if not is_of_environment and not any(file.is_relative_to(root) for root in environments):
            local.add(file)
    return sorted(local)


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
