"""Checks that the training libraries are installed; pip installs them only with the extra `train`."""

import importlib.util
import shlex
import sys

from audit.errors import require

TRAIN = "train"  # the extra for training
ZOO = "train,zoo"  # the extras for training one of the repository's models
_LIBRARIES = ("JAX", "jaxlib", "Flax", "Optax", "filelock", "tqdm")


def require_training_libraries(function: str, extras: str = TRAIN) -> None:
    """Raises InputError if a library for training is not installed.

    Args:
      function: the name of the public function that needs the libraries, used in the message.
      extras: the package's extras that install the libraries, comma-separated.
    """
    message = describe_missing_library(f"`{function}` trains with", extras)
    require(not message, message)


def describe_missing_library(need: str, extras: str) -> str:
    """Returns a message about the first missing training library; "" if all are installed.

    Args:
      need: the words before the library's name, such as "`audit_loss` trains with".
      extras: the package's extras that install the library.
    """
    for library in _LIBRARIES:
        if importlib.util.find_spec(library.lower()) is None:
            install = f"pip install 'hidden-state-audit[{extras}]'"
            return f"{need} {library}, which is not installed: {install}"
    return ""


def pip_install(package: str) -> str:
    """Returns the command that installs a package into this environment, quoted for a shell."""
    pip = f"{sys.prefix}/bin/pip"
    return f"{shlex.quote(pip)} install {package}"
