"""Every command: python -m experiments audit --k=5, which is what ./run.sh audit --k=5 starts."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from audit import started
from audit.commands import dispatch
from audit.errors import InputError

PACKAGES = ("experiments", "audit.commands")
_NEEDED = ("torch", "opacus")  # by examples, and by no extra that every user has
_ROOT = Path(__file__).resolve().parents[1]
_SPREADING = (
    "benchmark",
    "calibrate",
    "landscape",
    "plan",
    "sweep",
    "test",
)  # small products over processes, one a core


def main() -> None:
    """Runs the command that the first argument names; flags alone are of audit, and nothing means first."""
    if not sys.argv[1:]:
        sys.argv.append("first")
    command, *arguments = sys.argv[1:]
    if command in _SPREADING:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if command in OTHERS:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.exit(OTHERS[command][1](arguments))
    if command == "help" and arguments and arguments[0] in OTHERS:
        print(OTHERS[arguments[0]][0])
        return
    help_lines = [f"  {name:<12} {summary}" for name, (summary, _) in OTHERS.items()]
    dispatch.run(started.RUN_SH, PACKAGES, "audit", help_lines)


def _script(arguments: Sequence[str]) -> int:
    """A script of the user's; this repository comes first, so that no models.py beside it shadows ours."""
    if not arguments or not Path(arguments[0]).is_file():
        print("error: python runs a script: ./run.sh python mine.py", file=sys.stderr)
        return 2
    sys.argv = list(arguments)
    sys.path.append(os.path.dirname(os.path.abspath(arguments[0])))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        mend = f"{sys.prefix}/bin/pip install {error.name}"
        print(f"error: {arguments[0]} needs {error.name}, which is not installed: {mend}", file=sys.stderr)
        return 2
    return 0


def _tests(arguments: Sequence[str]) -> int:
    slow = os.environ.get("CI") in ("true", "1") or "--slow" in arguments
    rest = [argument for argument in arguments if argument != "--slow"]
    spread = ("-n", "auto", "--dist=loadfile", "--no-loadscope-reorder", "--durations=30")
    return _module("pytest", *spread, "-m", "" if slow else "not slow", *rest)


def _linters(arguments: Sequence[str]) -> int:
    return max(
        _module("ruff", "check", ".", *arguments), _module("ruff", "format", "--check", "."), _module("mypy")
    )


def _ray(arguments: Sequence[str]) -> int:
    from experiments.cells import local_ray

    rest = list(arguments)
    try:
        local_ray.set_up(alone=False)
        if rest[:1] == ["start"]:
            rest[1:] = local_ray.start_arguments(rest[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ray.scripts.scripts", *rest])


def _module(name: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-P", "-m", name, *arguments], cwd=_ROOT).returncode


OTHERS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {  # that are no module of flags
    "python": ("Runs a script of yours: ./run.sh python mine.py", _script),
    "test": ("Runs the quick tests, with --slow all; the rest goes to pytest.", _tests),
    "lint": ("Runs ruff and mypy; arguments go to ruff check.", _linters),
    "ray": ("Ray's own commands: ./run.sh ray start --head", _ray),
}


if __name__ == "__main__":
    main()
