"""The commands, and audits of anyone's model. Importing it makes sure that `audit` and `models` are ours."""

import importlib.util
import sys
from pathlib import Path


def _require_ours() -> None:
    """Exits with a line where a file of the user's would be imported in place of a package of ours."""
    for name in ("audit", "models"):
        found = _location(name)
        if found not in (None, Path(__file__).resolve().parents[1] / name):
            mend = "rename it, or start your script with ./run.sh python"
            print(f"error: {found} stands in the way of this project's {name}: {mend}", file=sys.stderr)
            raise SystemExit(2)  # as for wrong usage


def _location(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = [*(spec.submodule_search_locations or []), spec.origin]  # a package's folder, or else a module
    return Path(folders[0]).resolve() if folders[0] else None


_require_ours()
