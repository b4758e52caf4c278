"""The libraries for training, which pip installs only with the extra `train`."""

import importlib.util
import shlex
import sys

from audit.errors import InputError

TRAIN = "train"  # the extra for training
ZOO = "train,zoo"  # the extras for training a model of the repository
_PACKAGE = "hidden-state-audit"
_LIBRARIES = ("JAX", "jaxlib", "Flax", "Optax", "filelock", "tqdm")


def require_training_libraries(function: str, extras: str = TRAIN) -> None:
    """Raises InputError if a library that `function` needs is not in the environment.

    `extras` are the package's extras that install it, comma-separated.
    """
    message = describe_missing_library(f"`{function}` trains with", extras)
    if message:
        raise InputError(message)


def describe_missing_library(need: str, extras: str) -> str:
    """Returns a message on a missing library and its installation; "" without a missing library.

    `need` has the words before the library's name, such as "`audit_loss` trains with".
    """
    for library in _LIBRARIES:
        if importlib.util.find_spec(library.lower()) is None:
            install = f"pip install '{_PACKAGE}[{extras}]'"
            return f"{need} {library}, which is not installed: {install}"
    return ""


def pip_install(package: str) -> str:
    """Returns the command that installs a package into this environment, quoted for a shell."""
    pip = f"{sys.prefix}/bin/pip"
    return f"{shlex.quote(pip)} install {package}"
