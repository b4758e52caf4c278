"""Every command: python -m experiments audit --k=5, which is what ./run.sh audit --k=5 starts."""

import importlib.util
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from audit.commands import dispatch, streams
from audit.errors import InputError
from audit.runtime import installed, started

# Packages that examples need, and that the usual installation does not have.
_EXAMPLES_PACKAGES = ("torch", "opacus")
_ROOT = Path(__file__).resolve().parents[1]
# Commands that spread over processes, one a core: each process multiplies small matrices on one thread.
_SPREADING = ("benchmark", "landscape", "plan", "sweep", "test")


def main() -> None:
    """Runs the command that the first argument names, on the arguments after it.

    Commands in _OTHERS, such as `test`, are functions of this file. All others are modules, which `dispatch`
    finds and runs.
    """
    streams.prepare()
    command, arguments = dispatch.split_arguments(PROGRAM, sys.argv[1:])
    if command in _SPREADING:  # these start a process a core, so that each needs a single thread
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    if command in _OTHERS and _lacks_help(_OTHERS[command], arguments):
        # Help is requested, and no installed library gives any for this command.
        streams.print_whole(_OTHERS[command].summary)
        return
    if command in _OTHERS:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # silences the log of XLA's C++ code
        sys.exit(_OTHERS[command].run(arguments))
    # `help NAME` asks about a command; `dispatch` answers it for modules alone.
    if command == "help" and arguments and arguments[0] in _OTHERS:
        streams.print_whole(_OTHERS[arguments[0]].summary)
        return
    try:
        dispatch.run(PROGRAM)
    except ModuleNotFoundError:
        # A missing library is reported with how to install it. The message is empty where another module is
        # missing. ZOO: the installation with all that training this repository's models needs.
        message = installed.describe_missing_library(f"`{command}` needs", installed.ZOO)
        if not message:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def _script(arguments: Sequence[str]) -> int:
    """Runs a user's script and returns the exit status: 2 where the user made a mistake that we can name.

    Mistakes are a missing script, a missing package that our examples need, and whatever our library refuses
    by an InputError. Each ends in one line; all other errors are raised.

    The script's folder comes last in the search path, so that no models.py beside the script shadows ours.

    Args:
      arguments: the script's path, and the arguments of the script.
    """
    if not arguments:
        print("error: python runs a script: ./run.sh python mine.py", file=sys.stderr)
        return 2
    script = arguments[0]
    if not Path(script).is_file():
        print(f"error: {script} is no file: name a script of yours", file=sys.stderr)
        return 2
    sys.argv = list(arguments)
    sys.path.append(os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in _EXAMPLES_PACKAGES:
            raise
        install = installed.pip_install(str(error.name))
        print(
            f"error: {script} needs {error.name}, which is not installed: {install}",
            file=sys.stderr,
        )
        return 2
    except InputError as error:
        line = _find_line(error, script)
        print(f"error: {script} line {line}: {error}", file=sys.stderr)
        return 2
    return 0


def _find_line(error: Exception, script: str) -> int:
    """Returns the number of the line of a script that made the call which ended in the error.

    Where several frames are the script's, as in functions of its own, it is the innermost one's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno or 0 for frame in frames if frame.filename == script][-1]


def _tests(arguments: Sequence[str]) -> int:
    """Runs pytest over all cores, and returns its exit status.

    Slow tests run only with --slow, or where the environment's CI is true or 1. Other arguments go to pytest.
    """
    slow = os.environ.get("CI") in ("true", "1") or "--slow" in arguments
    marks = "not slow"
    if slow:
        marks = ""  # selects every test
    pytest_arguments = [argument for argument in arguments if argument != "--slow"]
    # A worker process for each core; a file's tests stay on a worker, and files start in their usual order.
    spread = ("-n", "auto", "--dist=loadfile", "--no-loadscope-reorder")
    # The 30 slowest tests are listed at the end.
    return _run_module("pytest", *spread, "--durations=30", "-m", marks, *pytest_arguments)


def _linters(arguments: Sequence[str]) -> int:
    """Runs ruff's check, ruff's format check and mypy, and returns the largest of their exit statuses.

    All three run, whatever they find. Arguments go to ruff's check.
    """
    statuses = (
        _run_module("ruff", "check", ".", *arguments),
        _run_module("ruff", "format", "--check", "."),
        _run_module("mypy"),
    )
    return max(statuses)


def _docs(arguments: Sequence[str]) -> int:
    """Builds the manual into docs/_build, and returns Sphinx's exit status; its warnings are errors.

    Arguments go to Sphinx.
    """
    folder = _ROOT / "docs" / "_build"
    settings = ("-c", "docs", "-b", "html", "-W", "--keep-going", "-q")
    status = _run_module("sphinx", *settings, *arguments, ".", str(folder))
    if status == 0:
        streams.print_whole(f"wrote {folder / 'index.html'}")
    return status


def _ray(arguments: Sequence[str]) -> int:
    """Replaces this process by Ray's own command on these arguments, with this project's settings.

    It returns only where Ray can't be set up, with exit status 2.
    """
    from experiments.cells import local_ray

    ray_arguments = list(arguments)
    try:
        local_ray.set_up(alone=False)  # other machines may join the cluster
        if ray_arguments[:1] == ["start"]:  # it gets this project's defaults as arguments, too
            ray_arguments[1:] = local_ray.start_arguments(ray_arguments[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # -P: Python looks for no modules in the working directory.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ray.scripts.scripts", *ray_arguments])


def _run_module(name: str, *arguments: str) -> int:
    """Runs `python -m NAME ARGUMENTS` in the repository's root, and returns its exit status."""
    return subprocess.run([sys.executable, "-P", "-m", name, *arguments], cwd=_ROOT).returncode


class _Other(NamedTuple):
    """A command that is a function of this file, and not a module with flags.

    Attributes:
      summary: its line in the help.
      run: the function that runs it on its arguments and returns the exit status.
      program: the name of the library that it starts, which answers --help; empty where there is none.
    """

    summary: str
    run: Callable[[Sequence[str]], int]
    program: str = ""


def _lacks_help(other: _Other, arguments: Sequence[str]) -> bool:
    """Returns whether the first argument asks for help, and no installed library can answer it."""
    if not arguments or arguments[0] not in dispatch.HELP_FLAGS:
        return False
    return not other.program or importlib.util.find_spec(other.program) is None


_OTHERS = {
    "python": _Other("Run a script of yours: ./run.sh python mine.py", _script),
    "test": _Other(
        "Run the quick tests, with --slow all; the rest goes to pytest.", _tests, "pytest"
    ),
    "lint": _Other("Run ruff and mypy; arguments go to ruff check.", _linters, "ruff"),
    "docs": _Other("Build the manual into docs/_build, a site to read offline.", _docs, "sphinx"),
    "ray": _Other("Ray's own commands: ./run.sh ray start --head", _ray, "ray"),
}
# The commands by their groups in the help.
_PAPERS = ("canife", "federated", "figures", "landscape", "sweep")
_MEASURING = ("benchmark", "compare", "throughput")
PROGRAM = dispatch.Program(
    call=started.RUN_SH,
    packages=("experiments.commands", "audit.commands"),
    alone="first",
    usual="audit",
    groups={
        "the papers": _PAPERS,
        "measuring this tool": _MEASURING,
        "this repository": (*_OTHERS, "help"),
    },
    others=[dispatch.Command(name, "", other.summary) for name, other in _OTHERS.items()],
)


if __name__ == "__main__":
    main()
