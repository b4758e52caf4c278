"""Tests the recorded text, CSV, JSON and pages of commands, from stores of known scores.

To record them again: RECORD_GOLDEN_OUTPUTS=1 ./run.sh test --slow tests/system/test_golden_outputs.py

cases.json has the commands, and stores.json.gz has settings with the names of their stores. Seeds draw the
scores here, so training does not affect any digit. Settings are never recorded again: if a setting gets
another name, its store is not found. For commands that train, we compare the text without its digits.
"""

import gzip
import html
import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from audit.storage.store import Scores, Store

FOLDER = Path(__file__).parent / "golden" / "outputs"
CASES = json.loads((FOLDER / "cases.json").read_text())
STORES = json.loads(gzip.decompress((FOLDER / "stores.json.gz").read_bytes()))
RECORDS = bool(os.environ.get("RECORD_GOLDEN_OUTPUTS"))
COLUMNS = "MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,MedHouseVal"
COMPARE = """
import sys
from experiments import __main__ as main
from models.data import images
load = images.load_arrays
images.load_arrays = lambda recipe, given: load(recipe, "images.npz")
sys.argv = ["hidden-state-audit", "compare", *sys.argv[1:]]
main.main()
"""
CIRCUMSTANCES_OF_PAGES = (
    r"audit \d\S+, python .*|-audit \d.*|\d{4}-\d\d-\d\dT[\d:+]+|\b\d{4}-\d\d-\d\d\b"
)
CIRCUMSTANCES = {"provenance", "seconds", "time", "out", "data", "age", "folder"}  # fields of JSON


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * case["slow"]) for name, case in CASES.items()],
)
def test_outputs_are_as_recorded(forked, image_file, tmp_path, name):
    case = CASES[name]
    found = _shown(case, forked, image_file, tmp_path)
    expected = FOLDER / f"{name}.txt"
    if RECORDS:
        expected.write_text(found)
    assert _rounded(found) == _rounded(expected.read_text())


def _rounded(text):
    """Returns the lines with long numbers a digit shorter or at 12 digits, since the last are a machine's."""
    text = re.sub(r"\d+\.\d{10,}(?:e-?\d+)?", lambda one: f"{float(one[0]):.12g}", text)
    return re.sub(r"\b\d\.\d{5,6}\b", lambda one: f"{float(one[0]):.5g}", text).splitlines()


def test_the_first_outputs_of_bound_are_as_recorded(forked, image_file, tmp_path):
    """A table and its JSON: the other commands take ten seconds."""
    first, second, third, *_ = CASES["bound"]["commands"]
    two = {**CASES["bound"], "commands": [first, second]}
    found = _shown(two, forked, image_file, tmp_path)
    recorded = (FOLDER / "bound.txt").read_text()
    assert found.split("\n> ")[0].strip() == recorded.split(f"\n$ {third}")[0].strip()


def _shown(case, forked, image_file, tmp_path):
    """Returns what a case's commands print and write, as it is recorded."""
    _write_inputs(tmp_path, image_file)
    for group in case["stores"]:
        _fill(tmp_path / "results", group)
    before = {*tmp_path.rglob("*")}
    parts = []
    for command in case["commands"]:
        ended = forked(*shlex.split(command.replace(";", "\\;")), folder=tmp_path, seconds=200)
        reverses = "minus.npz" in command  # scores with the wrong sign
        assert ended.status == (2 if reverses else 0), ended.stderr
        parts.append(
            f"$ {command}\n{_told(ended.stdout)}{'' if case['trains'] else _said(ended.stderr)}"
        )
    shown = (".csv", ".html") if case["trains"] else (".csv", ".html", ".json")
    for path in sorted(path for path in {*tmp_path.rglob("*")} - before if path.is_file()):
        has_digits = path.name == "answer.json"  # whose last ones are a machine's
        content = _content(path) if path.suffix in shown and not has_digits else ""
        parts.append(f"> {path.relative_to(tmp_path)}\n{content}")
    text = re.sub(CIRCUMSTANCES_OF_PAGES, "...", "\n".join(parts).replace(str(tmp_path), "FOLDER"))
    return _once(without_digits(text) if case["trains"] else text)


def _write_inputs(folder: Path, image_file: Path) -> None:
    """Files of scores and of data that commands name."""
    rng = np.random.default_rng(0)
    np.savetxt(
        folder / "housing.csv",
        rng.normal(size=(300, 9)),
        delimiter=",",
        header=COLUMNS,
        comments="",
    )
    shutil.copy(image_file, folder / "images.npz")
    (folder / "compare.py").write_text(COMPARE)
    rows = [
        f"{x:.6f},{i % 2}" for i, x in enumerate(rng.normal(size=260) + 1.5 * (np.arange(260) % 2))
    ]
    (folder / "one.csv").write_text("\n".join(["score,in", *rows]) + "\n")
    np.savez(
        folder / "minus.npz", **{"in": -1.5 + rng.normal(size=300), "out": rng.normal(size=200)}
    )
    presence = rng.random((60, 8)) < 0.5
    matrix = rng.normal(size=(60, 8))
    np.savez(folder / "coins.npz", scores=matrix + 2 * presence, presence=presence)
    np.savez(folder / "sets.npz", **{"in": matrix + 2, "out": rng.normal(size=(50, 5))})
    inside, outside = (rng.normal(shift, 1, 200) / np.sqrt(7850) for shift in (4, 0))
    np.savez(folder / "observed.npz", observed=inside)
    np.savez(folder / "unobserved.npz", observed=inside, unobserved=outside)
    coins = rng.random(200) < 0.5
    np.savez(folder / "run_coins.npz", scores=np.where(coins, inside, outside), presence=coins)


def _fill(root: Path, group: str) -> None:
    """Stores of a group, with seeded scores; the first are the newest."""
    for i, row in enumerate(STORES[group]):
        rng = np.random.default_rng(i)
        store = Store(root / group if "/" in group else root, row["config"], row["words"])
        for number in row.get("rounds", ()):
            _write_round(store.path, rng, number, row)
        if "scores" in row and "rounds" not in row:
            runs, canaries, shift, scale = row["scores"]
            coins = rng.random((runs, canaries)) < 0.5
            present = coins if canaries > 1 else np.arange(runs)[:, None] % 2 == 1
            present, dimension = (
                present | ("dimension" in row),
                row.get("dimension", 0),
            )  # directions are in
            scores = (rng.normal(size=coins.shape) + shift * present) * scale
            store.save(Scores(0, scores, present, dimension))
            when = time.time() - (i + 1.5) * 86_400
            for path in store.path.glob("scores*"):
                os.utime(path, (when, when))
        if "accuracy" in row:
            accuracies = {str(run): 0.75 + run / 100 for run in range(row["accuracy"])}
            store.write_text("answer.json", json.dumps({"accuracies": accuracies}) + "\n")
        if "norms" in row:
            norms = rng.exponential(size=row["norms"]).tolist()
            store.write_text("answer.json", json.dumps({"norms": norms}) + "\n")
        for name, content in row.get("files", {}).items():
            store.write_text(name, content)


def _write_round(folder: Path, rng: np.random.Generator, number: int, row: dict) -> None:
    """A measured round of CANIFE."""
    known, half = rng.normal(0, 0.05, row["population"]), row["scores"] // 2
    values = {
        "accuracy": 0.5,
        "health": 0.9,
        "norm": 12.0,
        "own": 0.99,
        "exact": 4.5,
        "exact_then": 2.5,
    }
    values |= {"proven": 1.5, "proven_if_gaussian": 3.5, "known": known}
    values |= {
        name: value * (1 + rng.random() / 10) for name, value in values.items() if name != "known"
    }
    scores = {"scores_in": rng.normal(1, 0.5, half), "scores_out": rng.normal(0, 0.5, half)}
    pixels = {
        "canary": rng.normal(size=(28, 28)),
        "label": np.full(10, 0.1),
        "descent": np.arange(5.0, 0, -1),
    }
    pixels = {name: value.astype(np.float32) for name, value in pixels.items()}
    whole = {"number": number, "clients": row["clients"]}
    np.savez(folder / f"round_{number:07d}.npz", **whole, **values, **scores, **pixels)


def _told(stdout: str) -> str:
    """A command's text, or its JSON a field a line."""
    return _json(stdout) if stdout[:1] in "{[" and stdout else stdout


def _said(stderr: str) -> str:
    """Lines on stderr but for progress bars."""
    lines = [
        line
        for line in stderr.splitlines()
        if "\r" not in line and not re.search(r"%\||\d s[,: ]", line)
    ]
    return "".join(f"! {line}\n" for line in lines if line.strip())


def _content(path: Path) -> str:
    """What a file says."""
    if path.suffix == ".json":
        return _json(path.read_text())
    if path.suffix == ".html":
        return _words(path.read_text())
    return path.read_text()


def _json(text: str) -> str:
    """JSON without circumstances, floats to ten digits."""

    def plain(value):
        if isinstance(value, dict):
            return {k: "..." if k in CIRCUMSTANCES else plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return float(f"{value:.10g}") if isinstance(value, float) else value

    return json.dumps(plain(json.loads(text))).replace("}, {", "},\n{") + "\n"


def _words(page: str) -> str:
    """A page's text, without pictures and style."""
    page = re.sub(r"(?s)<(svg|style|script)\b.*?</\1>|<!--.*?-->", "", page)
    lines = (" ".join(html.unescape(part).split()) for part in re.split(r"<[^>]*>", page))
    return "".join(f"{line}\n" for line in lines if line)


def without_digits(text: str) -> str:
    """The text with N for numbers and single spaces, for what training decides; folders' hashes stay."""
    number = (
        r"(?:(?<![\w-])-?|(?<=\d-))\d[\d,.]*(e[+-]?\d+)?(?!\w)|\b[0-9a-f]{64}\b|\binf\b|\bnan\b"
    )
    return re.sub(r"[ -]{2,}", " ", re.sub(number, "N", text))


def _once(text: str) -> str:
    """The text, in which a long line that was there before is cut short."""
    lines = text.split("\n")
    first = {line: i for i, line in reversed([*enumerate(lines)])}
    return "\n".join(
        line if len(line) < 70 or first[line] == i else f"{line[:40]}..."
        for i, line in enumerate(lines)
    )
