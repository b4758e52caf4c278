"""The examples run as they are, and show what they say."""

import itertools
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from audit.errors import InputError
from experiments.hidden_state.bracket import BracketRow

EXAMPLES = Path(__file__).resolve().parents[3] / "experiments" / "examples"


def run_example(capsys, name, page):
    """Returns {method: epsilon}, which an example prints."""
    runpy.run_path(str(EXAMPLES / name))["main"](str(page))
    rows = re.findall(r"^(\w[\w ]*?) +([\d.]+) ", capsys.readouterr().out, re.M)
    return {name: float(epsilon) for name, epsilon in rows}


@pytest.mark.slow
def test_an_audit_of_opacus_shows_most_of_what_accounting_allows(capsys, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    monkeypatch.setattr(
        torch, "seed", itertools.count(1).__next__
    )  # the example's noise is its own else
    epsilons = run_example(capsys, "opacus_audit.py", tmp_path / "page.html")
    assert 3.0 < epsilons["if_gaussian"] < epsilons["upper bound"]
    assert "Mechanism, as given" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "needs"),
    [
        ("directions_opacus.py", 9, "opacus"),
        ("ranks_text.py", 2.5, "torch"),
        ("ranks_black_box.py", 1.5, "numpy"),
    ],
)
def test_a_training_of_ones_own_is_audited_without_a_second_world(
    capsys, tmp_path, name, least, needs
):
    pytest.importorskip(needs)
    if needs != "numpy":
        pytest.importorskip("torch").manual_seed(0)
    epsilons = run_example(capsys, name, tmp_path / "page.html")
    assert least < epsilons["exact_null"] < epsilons.get("upper bound", 20)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("name", "status"), [("torch", 2), ("opacus", 2), ("mine", 1)])
def test_an_example_without_its_library_ends_in_a_line_that_names_it(
    forked, tmp_path, name, status
):
    (tmp_path / "script.py").write_text(f"raise ModuleNotFoundError('No module', name={name!r})\n")
    program = (
        "from experiments import __main__ as main; raise SystemExit(main._script(['script.py']))"
    )
    (tmp_path / "start.py").write_text(program)
    ended = forked("python", "start.py", folder=tmp_path)
    assert ended.status == status and ended.stdout == ""
    if status == 2:
        (line,) = ended.stderr.splitlines()
        assert line.startswith(f"error: script.py needs {name}, ") and line.endswith(
            f"pip install {name}"
        )


def notebook():
    cells = json.loads((EXAMPLES / "from_python.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_holds_no_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code in notebook():
        exec(compile(code, "from_python.ipynb", "exec"), names)
    printed = capsys.readouterr().out
    assert "if_gaussian" in printed and "accounting guarantees epsilon <= 4.3" in printed
    assert "Proven: epsilon is at least" in names["result"]._repr_html_()
    assert len(names["figure"].axes) == 4 and (tmp_path / "results" / "own.html").exists()
    cells = json.loads((EXAMPLES / "from_python.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
def test_the_first_pages_picture_shows_every_bug_beyond_what_is_stated(monkeypatch, tmp_path):
    names = runpy.run_path(str(EXAMPLES / "three_questions.py"))
    _, axes = plt.subplots()
    names["draw_steps"](axes)
    right, *wrong = [bar.get_width() for bar in axes.patches]
    assert 0.95 < right < 1.03 < min(wrong) and len(wrong) == len(names["STEPS"]) - 1


def test_a_network_without_intervals_has_its_bracket_drawn():
    names = runpy.run_path(str(EXAMPLES / "three_questions.py"))
    rows = [BracketRow("net", k, 5.0, at_most=3.0, proven=1.0) for k in (1, 5)]
    _, axes = plt.subplots()
    names["draw_bracket"](axes, rows, "net")
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == [[5, 5], [3, 3], [1, 1]]


@pytest.mark.slow
def test_the_first_pages_picture_is_drawn(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / "three_questions.py"))
    try:
        figure = names["picture"](8, "smoke", "tanh FCNN")
    except InputError as error:
        pytest.skip(str(error))
    _, proof, bracket = figure.axes
    proven, no_gdp, upper, *refuted = (line.get_ydata() for line in proof.lines)
    assert len(proven) == 8 and 0 < proven[-1] < no_gdp[-1] < upper[0] < 24
    assert len(refuted) == 1  # noise of 0.5; eight runs are too few to see 0.9
    composed, possible, proven = (np.array(line.get_ydata()) for line in bracket.lines[:3])
    assert all(proven < possible)
    assert possible[1] < composed[1] == composed[0]
