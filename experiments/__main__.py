"""Every command: python -m experiments audit --k=5, which is what ./run.sh audit --k=5 starts."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from audit.commands import dispatch
from audit.errors import InputError
from audit.runtime import installed, started

PACKAGES = ("experiments.commands", "audit.commands")
_EXAMPLES_PACKAGES = (
    "torch",
    "opacus",
)  # examples need them, and no extra that every user has installs them
_ROOT = Path(__file__).resolve().parents[1]
# Commands that spread over processes, one a core: each process multiplies small matrices on one thread.
_SPREADING = ("benchmark", "calibrate", "landscape", "plan", "sweep", "test")


def main() -> None:
    """Runs the command that the first argument names.

    Flags without a command are those of `audit`; no arguments at all mean `first`.
    """
    if not sys.argv[1:]:
        sys.argv.append("first")
    command = sys.argv[1]
    arguments = sys.argv[2:]
    if command in _SPREADING:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    if command in OTHERS:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        _, run = OTHERS[command]
        sys.exit(run(arguments))
    if command == "help" and arguments and arguments[0] in OTHERS:
        summary, _ = OTHERS[arguments[0]]
        print(summary)
        return
    help_lines = []
    for name, (summary, _) in OTHERS.items():
        help_lines.append(f"  {name:<12} {summary}")
    try:
        dispatch.run(started.RUN_SH, PACKAGES, "audit", help_lines)
    except ModuleNotFoundError:
        name = "audit" if command.startswith("-") else command
        message = installed.describe_missing_library(f"`{name}` needs", installed.ZOO)
        if not message:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def _script(arguments: Sequence[str]) -> int:
    """Runs a script of the user's and returns an exit status.

    This repository comes first in the search path, so that no models.py beside the script shadows ours.
    """
    if not arguments or not Path(arguments[0]).is_file():
        print("error: python runs a script: ./run.sh python mine.py", file=sys.stderr)
        return 2
    script = arguments[0]
    sys.argv = list(arguments)
    sys.path.append(os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in _EXAMPLES_PACKAGES:
            raise
        install = f"{sys.prefix}/bin/pip install {error.name}"
        print(
            f"error: {script} needs {error.name}, which is not installed: {install}",
            file=sys.stderr,
        )
        return 2
    return 0


def _tests(arguments: Sequence[str]) -> int:
    """Runs pytest over all cores and returns its exit status; the slow tests only in CI or with --slow."""
    slow = os.environ.get("CI") in ("true", "1") or "--slow" in arguments
    marks = "not slow"
    if slow:
        marks = ""
    rest = [argument for argument in arguments if argument != "--slow"]
    spread = ("-n", "auto", "--dist=loadfile", "--no-loadscope-reorder", "--durations=30")
    return _run_module("pytest", *spread, "-m", marks, *rest)


def _linters(arguments: Sequence[str]) -> int:
    """Runs ruff and mypy, each to its end, and returns the worst of their exit statuses."""
    statuses = (
        _run_module("ruff", "check", ".", *arguments),
        _run_module("ruff", "format", "--check", "."),
        _run_module("mypy"),
    )
    return max(statuses)


def _ray(arguments: Sequence[str]) -> int:
    """Becomes Ray's own program, with this project's settings; returns 2 where these can't be had."""
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


def _run_module(name: str, *arguments: str) -> int:
    """Runs `python -m name` in the repository's root and returns its exit status."""
    return subprocess.run([sys.executable, "-P", "-m", name, *arguments], cwd=_ROOT).returncode


# Commands that are no modules with flags: {name: (line of help, function of the arguments)}.
OTHERS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "python": ("Runs a script of yours: ./run.sh python mine.py", _script),
    "test": ("Runs the quick tests, with --slow all; the rest goes to pytest.", _tests),
    "lint": ("Runs ruff and mypy; arguments go to ruff check.", _linters),
    "ray": ("Ray's own commands: ./run.sh ray start --head", _ray),
}


if __name__ == "__main__":
    main()
