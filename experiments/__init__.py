"""The commands, and audits of anyone's model. Importing it makes sure that `audit` and `models` are ours."""

import importlib.util
import sys
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[1]


def _require_own_packages() -> None:
    """Exits with a message where a file of the user's would be imported in place of a package of ours."""
    for name in ("audit", "models"):
        location = _location(name)
        if location is None or location == _PROJECT / name:
            continue
        hint = "rename it, or start your script with ./run.sh python"
        print(
            f"error: {location} stands in the way of this project's {name}: {hint}", file=sys.stderr
        )
        raise SystemExit(2)  # as for wrong usage


def _location(name: str) -> Path | None:
    """Returns the package's folder or the module's file that an import would take; None without any."""
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
