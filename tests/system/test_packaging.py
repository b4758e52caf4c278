"""Tests the installed package and its commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import mostly_slow
from tests.forks import python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("module", "command"),
    mostly_slow(
        [
            *[("audit", command) for command in ("bound", "check", "claim")],
            *[("experiments", command) for command in ("benchmark", "plan")],
        ],
        quick=2,
    ),
)
def test_help_loads_nothing_that_takes_a_second(module, command, tmp_path):
    told = python("-X", "importtime", "-m", module, command, "--help", cwd=tmp_path)
    loaded = set(re.findall(r"\| +([\w.]+)$", told.stderr, re.MULTILINE))
    assert told.returncode == 0 and "absl.flags" in loaded
    assert loaded.isdisjoint({"jax", "matplotlib.pyplot", "pandas", "scipy.stats", "torch"})


def test_the_package_has_the_commands_that_need_no_repository(tmp_path):
    told = python("-m", "audit", "help", cwd=tmp_path)
    names = [line.split()[0] for line in told.stdout.splitlines() if line.startswith("  ")]
    assert told.returncode == 0 and names == ["bound", "check", "claim", "list"]


# What the extras bring but Pillow and pyarrow, which matplotlib and pandas need.
EXTRAS = (
    *("jax", "jaxlib", "flax", "optax", "orbax", "filelock", "tqdm"),
    *("importlib_resources", "ml_dtypes", "tensorflow_datasets"),
)
# They are not found, as if they were not installed. SciPy stumbles over sys.modules["jax"] = None.
BLOCK = f"""
import runpy, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *args: None if name in {EXTRAS} else find(name, *args)
"""
START = "del sys.argv[0]\nrunpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
TRAIN = """
import audit
calls = {
    audit.audit: (),
    audit.audit_loss: (None, None, [[1.0]], [0]),
    audit.audit_model: (None, None, [[1.0]], [0]),
}
for function, arguments in calls.items():
    try:
        function(*arguments, runs=4)
    except audit.InputError as error:
        print(error)
"""


def start_without_extras(*argv, cwd):
    """A module that has run with these arguments, where nothing of the extras can be imported."""
    return python("-c", BLOCK + START, *argv, cwd=cwd)


def test_what_trains_says_in_a_line_which_extra_to_install(tmp_path):
    done = python("-c", BLOCK + TRAIN, cwd=tmp_path)
    problem = "trains with JAX, which is not installed: pip install 'hidden-state-audit"
    assert done.returncode == 0 and done.stdout.splitlines() == [
        f"`audit` {problem}[train,zoo]'",
        f"`audit_loss` {problem}[train]'",
        f"`audit_model` {problem}[train]'",
    ], done.stderr


@pytest.mark.parametrize("command", ["audit", "plan"])
def test_a_command_of_a_clone_says_so_too(tmp_path, command):
    done = start_without_extras("experiments", command, cwd=tmp_path)
    needs = f"`{command}` needs JAX, which is not installed: pip install 'hidden-state-audit[train,zoo]'"
    assert done.returncode == 2 and done.stderr == f"error: {needs}\n"


@pytest.mark.slow
def test_bounds_checks_and_pages_need_no_extra(tmp_path):
    (tmp_path / "scores.csv").write_text(
        "score,in\n" + "".join(f"{i},{i % 2}\n" for i in range(60))
    )
    flags = ("--noise_multiplier=2", "--insertions=100", "--report=page.html")
    done = start_without_extras("audit", "bound", "--scores=scores.csv", *flags, cwd=tmp_path)
    assert done.returncode == 0 and "upper bound" in done.stdout, done.stderr
    assert (tmp_path / "page.html").exists()

    step = (ROOT / "experiments" / "examples" / "check_numpy.py").read_text()
    (tmp_path / "step.py").write_text("# not in jax\n" + step)
    flags = ("--step=step.py:step", "--report=check.html")
    done = start_without_extras("audit", "check", *flags, cwd=tmp_path)
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which pip installed a copy of the tree, without network, by the setuptools that is
    here."""
    folder = tmp_path_factory.mktemp("installed")
    copy = folder / "tree"
    copy.mkdir()
    for name in ("audit", "models", "experiments"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "docs").mkdir()
    files = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "docs/installed.md")
    for name in files:
        shutil.copy(ROOT / name, copy / name)
    before = sorted(copy.rglob("*"))
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    done = python(*pip, f"--target={folder / 'site'}", str(copy))
    assert done.returncode == 0, done.stderr
    assert sorted(copy.rglob("*")) == before, "pip left files in the tree"
    return folder / "site"


@pytest.mark.slow
def test_one_package_is_installed_whole(installed):
    assert sorted([path.name for path in installed.iterdir() if "." not in path.name]) == [
        "audit",
        "bin",
    ]
    for path in (ROOT / "audit").rglob("*.py"):
        assert (installed / path.relative_to(ROOT)).exists()
    for name in ("py.typed", "card.schema.json"):
        assert (installed / "audit" / name).exists()


OUTSIDE = """
import sys
import numpy as np
import audit
rng = np.random.default_rng(0)
result = audit.bounds(rng.normal(2, 1, 200), rng.normal(0, 1, 200))
assert result.bounds["assumption_free"].epsilon > 0 and "jax" not in sys.modules
import jax.numpy as jnp
features, labels = np.eye(8, dtype=np.float32), np.ones(8)
loss = lambda params, labelled: (params @ labelled[0] - labelled[1]) ** 2
audited = audit.audit_loss(loss, jnp.zeros(8), features, labels, runs=20, steps=2, batch_size=4)
assert (audited.folder / "report.html").exists()
for model in ("fcnn", "mine"):
    try:
        audit.audit(model)
    except audit.InputError as error:
        print(error)
"""


@pytest.mark.slow
def test_what_is_installed_works_beside_files_of_the_names_of_ours(installed, tmp_path):
    for name in ("models.py", "experiments/__init__.py", "tests/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ValueError('mine')\n")
    (tmp_path / "scores.csv").write_text(
        "score,in\n" + "".join(f"{i},{i % 2}\n" for i in range(60))
    )
    (tmp_path / "mine.py").write_text(OUTSIDE)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    pipes = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "mine.py"], **pipes)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and "model of the repository" in done.stdout
    done = subprocess.run([sys.executable, "-m", "audit", "bound", "--scores=scores.csv"], **pipes)
    assert done.returncode == 0 and "assumption_free" in done.stdout, done.stderr
    shutil.copy(ROOT / "experiments" / "examples" / "check_numpy.py", tmp_path / "step.py")
    done = subprocess.run([sys.executable, "-m", "audit", "check", "--step=step.py:step"], **pipes)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr
    done = subprocess.run([installed / "bin" / "hidden-state-audit", "help"], **pipes)
    assert done.returncode == 0 and "  bound " in done.stdout, done.stderr
