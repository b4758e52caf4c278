"""What the READMEs tell people to type is understood, and the commands of the first of them run."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = [path for path in sorted(ROOT.rglob("README.md")) if ".venv" not in path.parts]
FENCED = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(\./run\.sh[^`]*)`")
OF_RUN_SH = ("help", "lint", "python", "ray", "test")  # tests/system/test_run_sh.py
PARSE = """
import importlib, sys
from absl import flags
from audit.commands import dispatch
from experiments import __main__ as main

(name,) = (module for command, module, _ in dispatch.commands(main.PACKAGES) if command == sys.argv[1])
package = importlib.util.find_spec(name).submodule_search_locations
importlib.import_module(f"{name}.__main__" if package else name)
flags.FLAGS(sys.argv[1:])
"""
_IMAGES = ("--data_file=images.npz", "--noise_multiplier=1")
SMALLER = {  # what keeps a command to some seconds, on made-up data; a later flag wins
    "audit": ("--data_file=housing.csv", "--runs=40", "--insertions=4", "--batch_size=8"),
    "bound": (),
    "canife": (*_IMAGES, "--rounds=2", "--every=1", "--cohort=4", "--pool=8", "--design_steps=4"),
    "compare": (
        *("--data_file=images.npz", "--model=linear", "--steps=6", "--batch_size=8", "--single_runs=80"),
        *("--many_runs=8", "--lidp_runs=8", "--one_run_canaries=100", "--measured_rounds=1"),
        "--design_steps=4",
    ),
    "federated": (*_IMAGES, "--clients=4", "--cohort=2", "--rounds=4", "--canaries=100"),
    "figures": ("--scale=smoke", "--name=figure_1c"),
    "report": (),
    "sweep": ("--scale=smoke", "--name=figure_1c", "--california_housing=housing.csv"),
}


def fenced(path):
    blocks = "\n".join(FENCED.findall(path.read_text(encoding="utf-8")))
    lines = (line.split("  #")[0].strip() for line in blocks.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.startswith("./run.sh")]


def said():
    """Every command of every page, once."""
    lines = [line for path in READMES for line in fenced(path)]
    lines += [line for path in READMES for line in INLINE.findall(path.read_text(encoding="utf-8"))]
    return sorted({" ".join(line.split()) for line in lines})


def parsed(line):
    words = shlex.split(line)[1:]
    return ("audit", words) if not words or words[0].startswith("-") else (words[0], words[1:])


def test_there_are_pages_and_commands():
    assert len(READMES) >= 8 and len(said()) >= 40
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("line", said())
def test_a_command_of_a_page_is_understood(line, forked, tmp_path):
    command, argv = parsed(line)
    if command in OF_RUN_SH or argv == ["..."]:
        return
    script = tmp_path / "parse.py"
    script.write_text(PARSE)
    words = [word for word in argv if word != "--help"]
    ended = forked("python", str(script), command, *words, folder=tmp_path)
    assert ended.status == 0, ended.stderr


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_no_block_that_looks_like_a_sentence(path):
    text = path.read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if line.startswith("    ./run.sh")]
    assert text.count("\n```") % 2 == 0


@pytest.fixture
def folder(tmp_path, housing_file, image_file):
    """Made-up housing.csv, images.npz and scores.csv."""
    shutil.copy(housing_file, tmp_path / "housing.csv")
    shutil.copy(image_file, tmp_path / "images.npz")
    scores = np.column_stack([np.random.default_rng(0).normal(size=400), np.arange(400) % 2])
    np.savetxt(tmp_path / "scores.csv", scores, delimiter=",", header="score,in", comments="")
    return tmp_path


@pytest.mark.slow
def test_the_first_page_runs_from_top_to_bottom(folder, forked):
    for command, argv in map(parsed, fenced(ROOT / "README.md")):
        if command not in OF_RUN_SH:
            ended = forked(command, *argv, *SMALLER[command], folder=folder, seconds=300)
            assert ended.status == 0, (command, argv, ended.stderr)
            assert ended.stdout
    assert list((folder / "results").glob("fcnn-gc_s-*/report.html")) and (folder / "page.html").exists()
