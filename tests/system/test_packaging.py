"""The package as a user installs it, and the commands under one name."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import audit

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("audit", "models", "experiments")
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "tensorflow", "numpy", "scipy", "matplotlib", "torch")


def run(*arguments, **more):
    """A Python of this environment that finds the tree wherever it starts."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"capture_output": True, "text": True}
    return subprocess.run([sys.executable, *arguments], env=environment, **pipes, **more)


def loaded_by(statement, cwd):
    """The modules in sys.modules after a statement, in a fresh interpreter."""
    result = run("-c", f"import sys\n{statement}\nprint(*sys.modules)", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_importing_audit_loads_nothing_heavy(tmp_path):
    loaded = loaded_by("import audit", tmp_path)
    assert "audit" in loaded and loaded.isdisjoint(HEAVY)


def test_bound_needs_no_jax(tmp_path):
    loaded = loaded_by("import audit.commands.bound", tmp_path)
    assert "audit.statistics.estimate" in loaded
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "optax", "orbax", "tensorflow"})


def test_the_version_is_said_once_and_cited():
    assert re.fullmatch(r"\d+\.\d+\.\d+", audit.__version__)
    assert "version = attr: audit.__version__\n" in (ROOT / "setup.cfg").read_text()
    assert f"\nversion: {audit.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_help_lists_what_run_sh_lists(tmp_path):
    shell = subprocess.run([ROOT / "run.sh", "help"], capture_output=True, text=True)
    python = run("-m", "experiments", "help", cwd=tmp_path)
    own = re.compile(r"^  (?!test|lint|ray|help|python).*", re.MULTILINE)
    assert python.returncode == 0 and len(own.findall(shell.stdout)) >= 10
    assert own.findall(python.stdout) == own.findall(shell.stdout)


def test_help_whose_reader_leaves_ends_without_a_word(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "experiments", "help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(argv, env=environment, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.returncode == 0 and process.stderr == b""


def test_an_unknown_command_is_one_line(tmp_path):
    for name in ("adit", "cli", "__main__", "../audit"):
        result = run("-m", "experiments", name, cwd=tmp_path)
        assert result.returncode == 2 and result.stdout == ""
        assert result.stderr == f"error: no command {name!r}; help lists them\n"


def test_a_command_takes_its_flags_and_ends_with_its_status(tmp_path):
    (tmp_path / "scores.csv").write_text("score,in\n" + "".join(f"{i},{i % 2}\n" for i in range(60)))
    result = run("-m", "experiments", "bound", "--scores=scores.csv", "--json", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("{")
    result = run("-m", "experiments", "bound", "--scores=none.csv", cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1


def test_flags_alone_are_those_of_audit(tmp_path):
    result = run("-m", "experiments", "--adversary=nobody", cwd=tmp_path)
    assert result.returncode == 2 and "nobody" in result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the tree, built without network by the setuptools that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "tree"
    copy.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    built = run(*pip, "-w", str(folder), str(copy))
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_file_that_is_imported_or_cited(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for name in PACKAGES:
        assert f"{name}/py.typed" in held
        for path in (ROOT / name).rglob("*.py"):
            assert str(path.relative_to(ROOT)) in held
    assert "experiments/hidden_state/README.md" in held
    assert not [name for name in held if name.startswith("tests")]


@pytest.mark.slow
def test_what_is_installed_says_its_version_and_its_commands(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*arguments):
        pipes = {"capture_output": True, "text": True, "check": True}
        return subprocess.run(arguments, cwd=tmp_path, env=environment, **pipes).stdout

    call(binaries / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    version = call(binaries / "python", "-c", "import audit; print(audit.__version__)")
    assert version == f"{audit.__version__}\n"
    assert "  bound " in call(binaries / "hidden-state-audit", "help")
