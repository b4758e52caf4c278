"""A file of the user's that has a name of ours is said in a line, before anything of ours fails on it."""

import sys
from pathlib import Path

import pytest

import experiments
from tests.forks import python

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "from experiments import engine_flags\nfrom models import dense\nprint(dense.__file__)\n"


def start(folder):
    """A script in the folder, as Python starts it where the package is installed."""
    (folder / "mine.py").write_text(SCRIPT)
    return python("mine.py", cwd=folder)


@pytest.mark.parametrize("name", ["audit.py", "models.py", "models/__init__.py", "audit/__init__.py"])
def test_a_file_that_shadows_ours_is_named_with_the_mend(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine = 1\n")
    process = start(tmp_path)
    assert process.returncode == 2 and process.stdout == ""
    shadow = path if name.endswith(("audit.py", "models.py")) else path.parent
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"error: {shadow} stands in the way") and "./run.sh python" in line


def test_other_files_are_in_nobodys_way(tmp_path):
    for name in ("model.py", "auditing.py", "data.py"):
        (tmp_path / name).write_text("mine = 1\n")
    (tmp_path / "models").mkdir()  # a folder of weights
    process = start(tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [str(ROOT / "models" / "dense.py")]


def test_a_folder_that_is_found_before_an_editable_installation_is_named(tmp_path, monkeypatch):
    """Such an installation's finder comes last, after one that takes any folder for a package."""
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    assert experiments._location("models") == tmp_path / "models"
    assert experiments._location("no_such_package") is None
