"""Tests run.sh with a copy of its files and a Python that only records its arguments."""

import configparser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from experiments import __main__ as main
from tests.cases import mostly_slow
from tests.forks import python

REPOSITORY = pathlib.Path(__file__).parents[2]
USUAL = ".[train,zoo]"  # of this project, what every command asks pip for
FILES = ("run.sh", "setup.cfg", "pyproject.toml", "requirements.lock")

# Stands in for Python and for the environment's Python: answers run.sh's question about the
# version, makes an environment that holds itself, and appends every other call to a log.
STAND_IN = r"""#!{python} -IS
import json, os, pathlib, shutil, sys
arguments = sys.argv[1:]
if arguments[0] == "-ISc":
    print("3.11")
elif arguments[:2] == ["-m", "venv"]:
    folder = pathlib.Path(arguments[2], "bin")
    folder.mkdir()
    shutil.copy(__file__, folder / "python")
elif arguments[0] != "-Ic":
    call = dict(arguments=arguments, folder=os.getcwd(), path=os.environ.get("PYTHONPATH"))
    with open({log!r}, "a") as log:
        log.write(json.dumps(call) + "\n")
    if "pip" in arguments and os.path.exists({trouble!r}):
        sys.exit(open({trouble!r}).read())
"""


class House:
    def __init__(self, folder):
        self.root = folder / "a house"
        self.log = folder / "calls.jsonl"
        self.trouble = folder / "trouble"
        self.venv = self.root / ".venv"
        self.root.mkdir()
        for name in FILES:
            shutil.copy(REPOSITORY / name, self.root / name)
        self.python = folder / "stand-in"
        named = {"python": sys.executable, "log": str(self.log), "trouble": str(self.trouble)}
        self.python.write_text(STAND_IN.format(**named))
        self.python.chmod(0o755)

    def environment(self, **changes):
        names = [name for name in os.environ if name not in ("AUDIT_VENV", "CI")]
        own = {"JAX_PLATFORMS": "cpu", "PYTHON": str(self.python)}
        return {name: os.environ[name] for name in names} | own | changes

    def run(self, *arguments, cwd=None, **changes):
        argv = ["/bin/bash", str(self.root / "run.sh"), *arguments]
        given = {"cwd": cwd or self.root, "timeout": 60}
        return subprocess.run(
            argv, env=self.environment(**changes), capture_output=True, text=True, **given
        )

    def calls(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


@pytest.fixture
def ready(house):
    assert house.run("test").returncode == 0
    house.calls()
    return house


def installs(calls):
    """What each installation asks for of this project, by the call that is its last."""
    return [call["arguments"][-1] for call in calls if "-e" in call["arguments"]]


def pins(text):
    return {line.split("==")[0] for line in text.splitlines() if "==" in line and line[0] != " "}


def sections():
    parts = (REPOSITORY / "requirements.lock").read_text().split("# section: ")[1:]
    return {part.split("\n", 1)[0]: pins(part) for part in parts}


@pytest.mark.parametrize("typed", [["help"], ["--help"], ["--version"]])
def test_help_needs_no_environment(house, typed):
    assert house.run(*typed).returncode == 0
    (call,) = house.calls()
    assert call["arguments"] == ["-P", "-m", "experiments", *typed] and not house.venv.exists()


@pytest.mark.parametrize(
    "typed",
    mostly_slow(
        [["audit", "--name=a  b", "", "*"], [], ["audit"], ["--seed=3", "--x"], ["-v"]], quick=2
    ),
)
def test_a_command_reaches_python_unchanged(ready, tmp_path, typed):
    assert ready.run(*typed, cwd=tmp_path, PYTHONPATH="elsewhere").returncode == 0
    (call,) = ready.calls()
    assert call["arguments"] == ["-P", "-m", "experiments", *typed]
    assert call["folder"] == str(tmp_path) and call["path"] == str(ready.root)


def test_tests_leave_out_the_slow_ones_unless_asked(monkeypatch):
    def find_marks(*arguments):
        started = []
        monkeypatch.setattr(main, "_run_module", lambda *argv: started.append(argv) or 0)
        main._test(arguments)
        (argv,) = started
        return argv[argv.index("-m") + 1], argv[-1]

    monkeypatch.delenv("CI", raising=False)
    assert find_marks("-k", "a b") == ("not slow", "a b")
    assert find_marks("-x", "--slow", "-q") == ("", "-q")
    monkeypatch.setenv("CI", "true")
    assert find_marks()[0] == ""


def test_a_script_finds_our_modules_before_its_neighbours(tmp_path):
    (tmp_path / "models.py").write_text("raise ValueError('theirs')\n")
    (tmp_path / "helper.py").write_text("HELP = 'helped'\n")
    (tmp_path / "mine.py").write_text(
        "import sys, helper, models\nprint(__name__, helper.HELP, sys.argv[1:])\n"
    )
    told = python("-P", "-m", "experiments", "python", "mine.py", "--x", "a b", cwd=tmp_path)
    assert told.stdout == "__main__ helped ['--x', 'a b']\n", told.stderr


def test_the_first_start_installs_and_the_second_does_not(house):
    first, second = house.run(), house.run()
    assert (
        first.stderr == "setting up .venv (first run only; a few minutes)\n" and second.stderr == ""
    )
    assert installs(house.calls()) == [USUAL]


RAY = (
    ["audit", "--ray_address=local"],
    ["audit"],
    ["ray", "start", "--head"],
    ["audit", "--ray_address", "local"],
)
EXTRAS = [  # (commands, what is installed, in turn)
    ((["audit"], ["test"], ["audit"], ["lint"]), [USUAL, ".[train,zoo,test]"]),
    (
        (["audit"], ["throughput"], ["audit"], ["test"], ["throughput"]),
        [USUAL, ".[train,zoo,bench]", ".[train,zoo,bench,test]"],
    ),
    (
        (
            ["check", "--example=numpy"],
            ["check", "--example=train"],
            ["check", "--example", "lora"],
        ),
        [USUAL, ".[train,zoo,opacus]"],
    ),
    ((["audit"], *RAY, ["audit", "--ray_address=auto"]), [USUAL, ".[train,zoo,ray]"]),
]


@pytest.mark.parametrize(("commands", "installed"), mostly_slow(EXTRAS))
def test_an_extra_comes_with_the_first_command_that_wants_it_and_stays(house, commands, installed):
    for command in commands:
        assert house.run(*command).returncode == 0
    assert installs(house.calls()) == installed


def test_a_gpu_brings_the_cuda_packages(house, tmp_path):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: a card (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    for _ in range(2):
        assert house.run(PATH=path, JAX_PLATFORMS="").returncode == 0
    assert installs(house.calls()) == [".[train,zoo,cuda]"]


def test_what_is_installed_has_the_locks_hashes(house):
    assert house.run("test").returncode == 0
    build, locked, own = (call["arguments"] for call in house.calls() if "pip" in call["arguments"])
    assert (
        "--require-hashes" in build
        and "--require-hashes" in locked
        and "--no-build-isolation" in locked
    )
    assert "--no-index" in own and own[-1] == ".[train,zoo,test]"
    assert pins((house.venv / "locked.txt").read_text()) == sections()["core"] | sections()["test"]


def test_the_lock_has_all_that_is_asked_for_and_a_hash_of_each():
    configuration = configparser.ConfigParser()
    configuration.read(REPOSITORY / "setup.cfg")
    asked = dict(configuration["options.extras_require"])
    usual = (asked.pop("train"), asked.pop("zoo"))  # with every command, and so of the section core
    asked["core"] = "\n".join((configuration["options"]["install_requires"], *usual))
    locked = sections()
    assert set(locked) == {"build", *asked} and locked["build"] == {"setuptools"}
    for name, lines in asked.items():
        names = {re.match(r"[\w-]+", line)[0] for line in lines.split("\n") if line.strip()}
        canonical = {name.lower().replace("_", "-") for name in names}
        assert canonical <= locked["build"] | locked["core"] | locked[name], name
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    for line, following in zip(lines, lines[1:], strict=False):
        if "==" in line and line[0] != "#":
            assert re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", following), line


def test_a_failed_installation_is_one_line_more_and_is_done_again(house):
    house.trouble.write_text("ERROR: earlier\n  ERROR: No matching distribution\nerror: a box\n")
    failed = house.run()
    assert failed.returncode == 2
    announced, line = failed.stderr.splitlines()
    assert "pip: No matching distribution;" in line and "set-up.log" in line
    house.trouble.unlink()
    assert installs(house.calls()) == []
    assert house.run().returncode == 0 and installs(house.calls()) == [USUAL]
