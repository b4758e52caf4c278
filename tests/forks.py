"""Fixtures that run commands in forks of a process with all libraries, which takes milliseconds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORKS = """
import atexit, gc, importlib, json, os, pkgutil, runpy, signal, sys, traceback
import dp_accounting.pld.accountant, scipy.optimize, scipy.signal, scipy.stats  # imported late
import jax._src.api
import audit, experiments, models
from audit.commands import dispatch
from experiments import __main__ as main
commands = {**dispatch.find_commands(main.PACKAGES), "first": "experiments.first"}
mains = {*commands.values(), *dispatch.find_commands(["audit.commands"]).values()}
torch = "audit.opacus_canary", "experiments.examples."  # maybe missing
for package in (audit, models, experiments):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name not in mains and not found.name.startswith(torch):
            importlib.import_module(found.name)
atexit.unregister(jax._src.api.clean_up)  # caches that end with the fork
gc.freeze()

def run(argv):
    if argv[0] == "python":  # as ./run.sh python does
        sys.argv = argv[1:]
        runpy.run_path(argv[1], run_name="__main__")
    elif argv[0] in commands:
        sys.argv = argv
        runpy.run_module(commands[argv[0]], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["./run.sh", *argv]
        main.main()

def status_of(argv):  # as the interpreter itself ends
    try:
        run(argv)
        return 0
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    argv, folder, streams, seconds = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        status = status_of(argv)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)  # without the tenth of a second in which all modules are taken down
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str

    @property
    def returncode(self):
        return self.status


def python(*argv, cwd=ROOT, **changes):
    """A Python that has ended, of this environment with changes, which finds the tree wherever it starts."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    argv = [sys.executable, *map(str, argv)]
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """The home of those who run forked commands, and where these may keep caches."""
    return tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def forks(homes):
    """A process that forks one for each line on its stdin, and starts no thread before."""
    home, cache = map(str, homes)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8:strict",
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "HOME": home,
        "XDG_CACHE_HOME": cache,
        "MPLCONFIGDIR": os.path.join(cache, "matplotlib"),
        "COLUMNS": "80",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-P", "-c", FORKS], env=environment, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def forked(forks, tmp_path_factory):
    """forked(command, *flags, folder, seconds=120) -> Ended, in the folder; killed after so many seconds."""

    def call(*argv, folder, seconds=120):
        streams = [tmp_path_factory.mktemp("streams") / name for name in ("stdout", "stderr")]
        print(
            json.dumps([argv, str(folder), [*map(str, streams)], seconds]),
            file=forks.stdin,
            flush=True,
        )
        status = int(forks.stdout.readline())
        return Ended(status, *(path.read_text(errors="surrogateescape") for path in streams))

    return call


@pytest.fixture
def run_command(forked):
    """run_command(name, *flags, folder=ROOT) -> Ended: a command in a fork that may take five minutes."""
    return lambda *argv, folder=ROOT: forked(*argv, folder=folder, seconds=300)
