"""Runs all commands: ./run.sh audit --k=5 runs python -m experiments audit --k=5."""

import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from audit.commands import dispatch
from audit.errors import InputError
from audit.runtime import installed

PACKAGES = ("experiments.commands", "audit.commands")
_ROOT = Path(__file__).resolve().parents[1]
_EXAMPLES_PACKAGES = ("torch", "opacus")  # optional packages of the examples
_PARALLEL = ("benchmark", "landscape", "plan", "sweep", "test")


def main() -> None:
    """Runs the command named by the first argument.

    Without arguments, it runs `experiments.first`. Flags without a command go to `audit`, except --help and
    --version.
    """
    arguments = sys.argv[1:]
    if not arguments:
        runpy.run_module("experiments.first", run_name="__main__", alter_sys=True)
        return
    command, *rest = arguments
    is_flag = command.startswith("-")
    if is_flag and command not in (*dispatch.HELP, "--version"):
        command = "audit"
        rest = arguments
    if command in _PARALLEL:  # these start one process per core
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if command in _TOOLS:
        run_tool = _TOOLS[command]
        sys.exit(run_tool(rest))
    # The help lists these tools after the commands.
    summaries = {name: str(tool.__doc__).partition("\n")[0] for name, tool in _TOOLS.items()}
    try:
        dispatch.run("./run.sh", PACKAGES, [command, *rest], summaries)
    except ModuleNotFoundError:
        message = installed.describe_missing_library(f"`{command}` needs", installed.ZOO)
        if not message:  # not one of our optional packages
            raise
        sys.exit(dispatch.report_error(message))


# `./run.sh help` shows the first line of each tool's docstring.
def _python(arguments: Sequence[str]) -> int:
    """Run your script: ./run.sh python mine.py

    The script's folder comes last in the search path, so a models.py next to the script does not shadow our
    package. If the script raises InputError or one of the examples' packages is not installed, the command
    prints one line and returns status 2.
    """
    script = arguments[0] if arguments else "python"  # for the message
    if not Path(script).is_file():
        return dispatch.report_error(f"{script}: give a script, such as mine.py")
    sys.argv = list(arguments)
    sys.path.append(os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in _EXAMPLES_PACKAGES:
            raise
        install = installed.pip_install(str(error.name))
        return dispatch.report_error(
            f"{script} needs {error.name}, which is not installed: {install}"
        )
    except InputError as error:
        frames = traceback.extract_tb(error.__traceback__)
        # Show the innermost line of the script.
        lines = [frame.lineno for frame in frames if frame.filename == script]
        return dispatch.report_error(f"{script} line {lines[-1]}: {error}")
    return 0


def _test(arguments: Sequence[str]) -> int:
    """Run the quick tests, or all with --slow; other arguments go to pytest.

    Slow tests also run if the environment variable CI is true or 1.
    """
    marks = "not slow"
    if "--slow" in arguments or os.environ.get("CI") in ("true", "1"):
        marks = ""
    rest = [argument for argument in arguments if argument != "--slow"]
    # Each process runs whole files, so the tests in a file share fixtures.
    flags = ("-n", "auto", "--dist=loadfile", "--no-loadscope-reorder", "--durations=30")
    return _run_module("pytest", *flags, "-m", marks, *rest)


def _lint(arguments: Sequence[str]) -> int:
    """Run ruff and mypy; arguments go to ruff check."""
    # Run all three, even if one fails.
    return max(
        _run_module("ruff", "check", ".", *arguments),
        _run_module("ruff", "format", "--check", "."),
        _run_module("mypy"),
    )


def _docs(arguments: Sequence[str]) -> int:
    """Build the manual in docs/_build as a website for offline use."""
    # The configuration is in docs/. -W turns warnings into errors.
    settings = ("-c", "docs", "-b", "html", "-W", "--keep-going", "-q")
    return _run_module("sphinx", *settings, *arguments, ".", "docs/_build")


def _ray(arguments: Sequence[str]) -> int:
    """Run Ray's commands: ./run.sh ray start --head"""
    # Unless the user sets these variables, Ray sends no statistics and keeps its workers' priority.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | os.environ
    if arguments[:1] == ["start"]:
        # Ray's log monitor would keep running after a node loses contact with its cluster.
        arguments = ["start", "--include-log-monitor=False", *arguments[1:]]
    return _run_module("ray.scripts.scripts", *arguments)


def _run_module(name: str, *arguments: str) -> int:
    """Runs `python -m NAME ARGUMENTS` in the repository's root, and returns the exit status.

    With -P, Python imports no modules from the root, so a user's ray.py there does not replace Ray.
    """
    return subprocess.run([sys.executable, "-P", "-m", name, *arguments], cwd=_ROOT).returncode


_TOOLS = {"python": _python, "test": _test, "lint": _lint, "docs": _docs, "ray": _ray}


if __name__ == "__main__":
    main()
