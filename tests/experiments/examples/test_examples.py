"""Tests that the examples run, and print the expected lines."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from tests.cases import mostly_slow
from tests.forks import python

EXAMPLES = Path(__file__).resolve().parents[3] / "experiments" / "examples"


def run_example(capsys, name):
    """Runs an example and returns the epsilons that it prints, by method."""
    runpy.run_path(str(EXAMPLES / name))["main"]()
    rows = re.findall(r"^(\w[\w ]*?) +([\d.]+) ", capsys.readouterr().out, re.M)
    return {name: float(epsilon) for name, epsilon in rows}


@pytest.mark.slow
def test_an_example_audits_a_custom_training_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("torch").manual_seed(0)
    epsilons = run_example(capsys, "ranks_text.py")
    assert 2 < epsilons["exact_null"] < epsilons.get("upper bound", 20)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("name", "status"), [("opacus", 2), ("mine", 1)])
def test_a_missing_library_ends_an_example_with_a_line_that_names_it(tmp_path, name, status):
    (tmp_path / "script.py").write_text(f"raise ModuleNotFoundError('No module', name={name!r})\n")
    ended = python("-P", "-m", "experiments", "python", "script.py", cwd=tmp_path)
    assert ended.returncode == status and ended.stdout == ""
    if status == 2:
        (line,) = ended.stderr.splitlines()
        assert line.startswith(f"error: script.py needs {name}, ") and line.endswith(
            f"pip install {name}"
        )


def notebook():
    cells = json.loads((EXAMPLES / "from_python.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs_and_stores_no_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code in notebook():
        exec(compile(code, "from_python.ipynb", "exec"), names)
    printed = capsys.readouterr().out
    assert "if_gaussian" in printed and "accounting guarantees epsilon <= 4.3" in printed
    assert "Proven: epsilon is at least" in str(names["result"])
    assert len(names["figure"].axes) == 3 and (tmp_path / "results" / "own.html").exists()
    cells = json.loads((EXAMPLES / "from_python.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("correct", "planted", "failing"),
    mostly_slow(
        [
            ("", "", None),
            ("gradients / np.maximum(1, norms / CLIPPING_NORM)", "gradients", "the_step_clips"),
            ("rng(seed).normal", "rng(0).normal", "the_step_clips"),
            ("EPSILON, DELTA = 0.86", "EPSILON, DELTA = 0.7", "the_stated_epsilon"),
        ],
        quick=2,
    ),
    ids=["correct", "no clipping", "the same noise", "a claim too low"],
)
def test_the_tested_project_passes_and_fails_with_a_planted_bug(
    tmp_path, correct, planted, failing
):
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "tested_project", project)
    source = (project / "training.py").read_text()
    assert correct in source
    (project / "training.py").write_text(source.replace(correct, planted) if correct else source)
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-k", failing or ""]
    ended = python(*argv, cwd=project)
    assert ended.returncode == (failing is not None), ended.stdout
    if failing is not None:
        assert f"FAILED test_privacy.py::test_{failing}" in ended.stdout
