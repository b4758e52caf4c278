"""Figures and tables from small stores with random scores: they show all bounds that the scores prove."""

import collections
import csv
import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from audit.claims.claim import DpSgd
from audit.conclusions import concluded
from audit.evidence.canaries import make_sets
from audit.methods import estimate
from audit.report.style import UPPER
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage import index
from audit.storage.store import Scores, Store
from audit.written import Level
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited
from experiments.hidden_state import figures
from experiments.hidden_state import sweep as sweeps
from experiments.sweeps import estimates, points
from experiments.sweeps.sweep import Sweep
from tests.cases import mostly_slow

LEVELS = Level(1e-5, 0.95)
NOWHERE = index.Holdings(Path("nowhere"), {})


def fill(root, cells, mu=2.0):
    for i, cell in enumerate(cells):
        store = Store(root, {**identity(cell.setting), "data_sha256": "0" * 64})
        present = np.arange(cell.runs) % 2 == 1
        scores = np.random.default_rng(i).normal(size=cell.runs) + mu * present
        store.save(Scores(0, scores[:, None], present[:, None]))


@pytest.fixture(scope="module")
def conclusion():
    """Returns a conclusion that all cells share."""
    rng = np.random.default_rng(0)
    scores = make_sets(rng.normal(2, 1, 20), rng.normal(0, 1, 20))
    return concluded.conclude(scores, DpSgd(4.0, 250), LEVELS)


def points_of(cells, conclusion):
    audits = {(cell.setting, cell.runs): conclusion for cell in cells}
    return points.points(cells, audits)


def bars(axis, method):
    """Returns {position: (mean, low, high)} of a method's marks in a panel."""
    offset, look = estimates.LOOKS[method]
    drawn = {}
    for line, _, ends in axis.containers:
        if line.get_marker() == look["marker"] and line.get_color() == look["color"]:
            (x,), (y,) = line.get_data()
            low, high = ends[0].get_segments()[0][:, 1] if ends else (y, y)
            drawn[round(float(x - offset), 9)] = (y, low, high)
    return drawn


@pytest.mark.parametrize("scale", mostly_slow(sorted(sweeps.SCALES, key=len)))
def test_every_cell_is_on_one_figure_and_in_a_table_of_80_columns(scale, conclusion):
    rows = []
    for sweep in sweeps.sweeps(scale).values():
        cells = sweep.audits()
        every = points_of(cells, conclusion)
        drawn = itertools.chain.from_iterable(point.cells for point in every)
        assert collections.Counter(drawn) == collections.Counter(cells)
        for point in every:
            assert len(point.conclusions) == len(point.cells)
            seedless = {dataclasses.replace(cell.setting, seed=0) for cell in point.cells}
            seeds = {cell.setting.seed for cell in point.cells}
            assert len(seedless) == 1 and len(seeds) == len(point.cells)
        if not cells:  # norms
            missing = figures.draw(sweep, points.Evidence(NOWHERE, {}, LEVELS))
            assert missing.missing == len(sweep.cells) and not missing.figure
        rows += points.make_rows(sweep, every)
    shown = points.make_table(rows, LEVELS)
    assert max(map(len, shown.text().splitlines())) <= 80
    entries = list(csv.DictReader(shown.csv().decode().splitlines()))
    assert len(entries) == len(rows) and shown.text().count("\n") > len(rows)
    epsilon = conclusion.finding("if_gaussian").epsilon
    assert {row["if_gaussian"] for row in entries} == {f"{epsilon:.6g}"}


@pytest.mark.slow
def test_what_is_drawn_is_what_the_scores_prove(tmp_path):
    settings = []
    for adversary in ("gc_r", "loss"):
        settings += [setting_of("fcnn", adversary=adversary, seed=seed) for seed in range(3)]
    cells = [Audited("panel", one.adversary.name, 1, one, 120) for one in settings]
    fill(tmp_path, cells)
    audits = points.evidence(index.holdings(tmp_path), cells, LEVELS)
    drawn = figures.draw(Sweep("made_up", "Made up", tuple(map(audit_cell, cells))), audits)
    (axis,) = drawn.figure.axes
    for method, record in estimate.METHODS.items():
        marks = bars(axis, method)
        assert sorted(marks) == [0, 1]
        for place in (0, 1):
            seeds = range(3 * place, 3 * place + 3)
            drawn_of = [np.random.default_rng(seed).normal(size=120) for seed in seeds]
            epsilons = [
                record.compute(one[1::2] + 2, one[::2], *LEVELS).epsilon for one in drawn_of
            ]
            assert marks[place] == pytest.approx((np.mean(epsilons), min(epsilons), max(epsilons)))
    upper = [line.get_ydata()[0] for line in axis.lines if line.get_color() == UPPER]
    assert upper == pytest.approx([23.995] * 2, abs=1e-3)
    plt.close(drawn.figure)


K_5 = {"periodicity": 5, "steps": 1250}
PREDICTIONS = [
    ({}, 3.953),
    (K_5, 1.768),
    ({"adversary": "gc_s", "model": "resnet18"}, 3.953),
    ({"model": "fcnn"}, None),
    ({"adversary": "cots"}, None),
    ({"unknown_initialisation": True}, None),
    ({"optimizer": "adam"}, None),
    ({**K_5, "weight_decay": 1.0, "insert": "first"}, 0.6912),
    ({**K_5, "weight_decay": 1.0, "insert": "last"}, 0.7196),
]


@pytest.mark.parametrize(("changes", "mu"), PREDICTIONS, ids=str)
def test_the_prediction_is_made_where_it_holds(changes, mu):
    setting = setting_of(**{"model": "convnet", "adversary": "gc_r", "steps": 250, **changes})
    assert concluded.predicted_mu(setting) == (None if mu is None else pytest.approx(mu, abs=1e-3))


def torn(path):
    path.write_bytes(path.read_bytes()[:-200])


def not_finite(path):
    path.unlink()
    Store.at(path.parent).save(Scores(0, np.full((40, 1), np.nan), np.arange(40)[:, None] % 2 == 1))


@pytest.mark.parametrize(("harm", "said"), [(torn, "{} is damaged"), (not_finite, "not finite")])
def test_scores_that_prove_nothing_are_said_and_left_out(tmp_path, capsys, harm, said):
    cells = [Audited("", "gc_r", 1, setting_of("fcnn", seed=seed), 40) for seed in range(3)]
    fill(tmp_path, cells)
    path = next(tmp_path.glob("*/scores_*.npz"))
    harm(path)
    audits = points.evidence(index.holdings(tmp_path), cells, LEVELS).audits
    assert len(audits) == 2 and said.format(path) in capsys.readouterr().err
    assert len(list(path.parent.glob(f"{path.name}*"))) == 1  # nothing is thrown away
    (point,) = points.points(cells, audits)
    assert len(point.cells) == 3 and len(point.conclusions) == 2


def test_a_range_of_bounds_claims_no_more_than_they_do(conclusion):
    sweep = sweeps.sweeps("smoke")["figure_1c"]
    cells = sweep.audits()[:1]
    (row,) = points.make_rows(sweep, points_of(cells, conclusion))
    names = ("if_gaussian", "if_gaussian_min", "if_gaussian_max", "epsilon_low", "epsilon_high")
    made = points.make_table([row | dict.fromkeys(names, 7.089)], LEVELS)
    shown = "  ".join(["7.08", "7.0", "7.0", "7.0", "7.1"])
    assert shown in re.sub(" +", "  ", made.text())


@pytest.mark.slow
def test_figures_are_written_and_what_is_missing_is_said(run_command, tmp_path):
    every = sweeps.sweeps("smoke")
    fill(tmp_path, every["figure_1c"].audits()[1:])
    fill(tmp_path, every["figure_11"].audits())
    flags = (f"--out={tmp_path}", "--scale=smoke", "--name=figure_1c,figure_11,figure_8")
    process = run_command("figures", *flags)
    assert process.returncode == 0, process.stderr
    folder = tmp_path / "figures" / "smoke"
    names = {f"figure_{n}.{suffix}" for n in ("1c", "11") for suffix in ("png", "svg", "pdf")}
    assert {path.name for path in folder.iterdir()} == {*names, "figures.csv"}
    assert (folder / "figure_1c.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (folder / "figure_1c.svg").read_bytes()
    said = process.stderr.splitlines()
    sweep = f"./run.sh sweep --name=figure_1c,figure_8 --scale=smoke --out={tmp_path}"
    assert said == ["missing cells: 1 of figure_1c, 3 of figure_8", f"to train them: {sweep}"]
    assert "the values are meaningless" in process.stdout
