"""The commands, and audits of anyone's model. Importing it makes sure that `audit` and `models` are ours."""

import importlib.util
import sys
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[1]


def _require_own_packages() -> None:
    """Exits with status 2 where `import audit` or `import models` would import a file of the user's.

    Such a file lies in the working directory or beside the user's script.
    """
    for name in ("audit", "models"):
        location = _location(name)
        if location is None or location == _PROJECT / name:  # absent, or this project's own
            continue
        hint = "rename it, or start your script with ./run.sh python"
        print(
            f"error: {location} stands in the way of this project's {name}: {hint}", file=sys.stderr
        )
        raise SystemExit(2)  # as for wrong usage


def _location(name: str) -> Path | None:
    """Returns what an import of a name would load: a package's folder, a module's file, or None."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if folders:
        return Path(folders[0]).resolve()
    if spec.origin:
        return Path(spec.origin).resolve()
    return None


_require_own_packages()
