"""Sweeps: what they hold, that workers share a store, and the commands on small made-up data."""

import collections
import functools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from audit.adversaries.biased import GcR, GcS
from audit.adversaries.directions import CotS
from audit.adversaries.examples import Loss
from audit.adversaries.sphere import SphereFields
from audit.errors import InputError
from audit.settings import make
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage import files
from audit.storage.store import Scores, Store
from audit.tasks.task import Dataset
from experiments.cells import work
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Cell, DataSets
from experiments.cells.work import Workplace
from experiments.hidden_state import measured
from experiments.hidden_state import sweep as sweeps
from models.data.tables import HOUSING

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ("1a", "1b", "1c", "2a", "2b", "4", "5", "6a", "7", "8", "11", "12", "13")
OURS = ("proven", "bracket_k", "bracket_steps", "bracket", "bracket_rates")  # which no paper has
FCNN = ("figure_1c", "figure_4", "figure_7")
IMAGES = "figure_2a,figure_12"  # every kind of image cell; a ResNet takes half a minute to compile

sweeps_of = functools.cache(sweeps.sweeps)


@pytest.fixture
def run(run_command, homes):
    """run(*flags) -> a sweep's finished process, in a terminal's width: a fork, unless more is asked for."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(homes[1]), "COLUMNS": "80"}

    def call(*flags, start=subprocess.run, options=()):
        if start is subprocess.run and not options:
            return run_command("sweep", *flags)
        argv = [sys.executable, *options, "-m", "experiments.commands.sweep", *flags]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return start(argv, cwd=ROOT, env=environment, **pipes)

    return call


@pytest.mark.parametrize("scale", sweeps.SCALES)
def test_every_figure_is_a_sweep_at_every_scale(scale):
    every = sweeps_of(scale)
    assert set(every) == {f"figure_{name}" for name in FIGURES} | set(OURS)
    assert all(sweep.cells and sweep.name == name for name, sweep in every.items())


@pytest.mark.parametrize(("scale", "most"), [("smoke", 60), ("laptop", 3600)])
def test_no_figure_takes_longer_than_its_scale_says(scale, most):
    for name, sweep in sweeps_of(scale).items():
        assert 0 < sum(cell.seconds for cell in sweep.cells) < most, name
    one = sweeps_of("paper")["figure_2b"]
    assert sum(cell.seconds for cell in one.cells) > 1e6  # the estimate can say so


def test_the_paper_trains_5000_models_a_cell_and_the_laptop_those_of_the_fcnn():
    paper, laptop = sweeps_of("paper"), sweeps_of("laptop")
    audits = [cell for sweep in paper.values() if sweep.name not in OURS for cell in sweep.audits()]
    assert {cell.runs for cell in audits} == {5000} and {
        cell.setting.insertions for cell in audits
    } == {250}
    for name in FCNN:
        assert laptop[name].audits() == paper[name].audits()
        assert {cell.setting.seed for cell in paper[name].audits()} == set(range(5))


def test_a_cell_of_several_figures_is_done_once_with_the_most_runs():
    cells = [cell for name in FCNN for cell in sweeps_of("laptop")[name].cells]
    found = work.distinct(
        [*cells, audit_cell(cells[0].audited._replace(panel="elsewhere", runs=9000))]
    )
    assert len(found) == 2 * 5 * 7 and len(cells) == 120  # two rates, five seeds, seven adversaries
    assert found[0].runs == 9000 and {cell.runs for cell in found[1:]} == {5000}


LABELS = {"coordinate": GcS, "L": Loss, "CotS": CotS, "fresh directions": SphereFields}


@pytest.mark.parametrize("scale", sweeps.SCALES)
def test_a_series_of_a_figure_is_the_adversary_that_it_names(scale):
    for sweep in sweeps_of(scale).values():
        for audited in sweep.audits():
            expected = LABELS.get(audited.series, GcS if audited.series.startswith("GC-S") else GcR)
            assert type(audited.setting.adversary) is expected, (sweep.name, audited.series)


@pytest.fixture
def counted(tmp_path):
    """counted(n, do) -> cells that leave a file behind, and a Counter of how often each was done."""
    done = collections.Counter()

    def build(count, do=lambda number: None):
        def cell(number):
            setting = {"number": number}

            def act(store, data, progress):
                do(number)
                progress(1)
                done[number] += 1
                store.write_text("done", "")

            def is_done(held, _):
                store = held.open(setting)
                return store is not None and (store.path / "done").exists()

            more = (
                is_done,
                lambda out, _: Store(out, setting),
                act,
            )
            return Cell(f"cell {number}", str(number), 1, 1.0, *more)

        return [cell(number) for number in range(count)], done

    return build


@pytest.fixture
def place(tmp_path):
    return Workplace(tmp_path, DataSets({}))


def test_workers_share_the_cells_and_do_none_twice(counted, place):
    cells, done = counted(12, lambda number: time.sleep(0.02))
    outcomes = []
    workers = [
        threading.Thread(target=lambda: outcomes.append(work.do_all(cells, place)))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert done == collections.Counter(range(12))
    assert sorted(name for one in outcomes for name in one.here) == sorted(
        cell.name for cell in cells
    )
    assert all(len(one.here) + len(one.elsewhere) == 12 for one in outcomes)


def test_a_cell_that_fails_is_said_and_the_others_go_on(counted, place, capsys):
    def fail(number):
        if number == 1:
            raise InputError("run 7 diverged")

    cells, done = counted(3, fail)
    outcome = work.do_all(cells, place)
    assert (
        outcome.failed == ["cell 1"]
        and outcome.here == ["cell 0", "cell 2"]
        and done == {0: 1, 2: 1}
    )
    assert "failed: cell 1: run 7 diverged" in capsys.readouterr().err


def test_a_store_that_refuses_ends_the_sweep(counted, place):
    def refuse(number):
        raise files.CannotWriteError("No space left on device")

    cells, done = counted(3, refuse)
    with pytest.raises(InputError, match="No space left"):
        work.do_all(cells, place)
    assert not done


@pytest.mark.slow
def test_the_fcnn_figures_are_trained_once_and_then_known_to_be_done(run, housing_file, tmp_path):
    flags = ("--scale=smoke", f"--out={tmp_path}", f"--california_housing={housing_file}")
    process = run("--name=" + ",".join(FCNN), *flags)
    assert process.returncode == 0, process.stderr
    draws = f"./run.sh figures --name={','.join(FCNN)} --scale=smoke --out={tmp_path} draws them"
    closing = rf"{', '.join(FCNN)}: 14 cells in 00:\d\d:\d\d, 0 before\n"
    assert re.fullmatch(closing + re.escape(f"{draws}\n"), process.stdout)
    assert "Traceback" not in process.stderr
    assert max(len(line) for line in re.split(r"[\r\n]", process.stderr)) <= 80
    folders = [path.parent for path in tmp_path.glob("*/config.json")]
    assert len(folders) == 14
    for folder in folders:
        result = json.loads((folder / "audit.json").read_text())
        assert result["runs"] == 40 and len(result["bounds"]) == 3
        assert Store(tmp_path, json.loads((folder / "config.json").read_text())).missing(40) == []
    listed = run("--list", *flags).stdout
    assert re.search(r"figure_1c +6 +6 ", listed) and re.search(r"figure_1a +6 +0 ", listed)
    assert max(map(len, listed.splitlines())) <= 80
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    again = run("--name=figure_4,figure_1c", *flags)
    assert again.returncode == 0 and "all 12 cells are done" in again.stdout and again.stderr == ""
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == stamps


def test_that_all_is_done_is_known_without_jax_or_data(run, tmp_path):
    for cell in sweeps_of("smoke")["figure_1c"].cells:
        store = Store(tmp_path, {**identity(cell.audited.setting), "data_sha256": HOUSING.checksum})
        store.save(_chunk(0, 40))
        store.write_text("audit.json", '{"runs": 40}')
    process = run(
        "--name=figure_1c", "--scale=smoke", f"--out={tmp_path}", options=("-X", "importtime")
    )
    assert process.returncode == 0 and "all 6 cells are done" in process.stdout
    loaded = {line.rsplit("|")[-1].strip() for line in process.stderr.splitlines()}
    assert "audit.storage.store" in loaded and not loaded & {"jax", "matplotlib", "scipy"}


def test_fewer_runs_other_data_or_no_conclusion_is_not_done(place):
    (cell, *_) = sweeps_of("smoke")["figure_1c"].cells
    config = identity(cell.audited.setting)
    assert not work.is_done(cell, place)
    store = Store(place.out, {**config, "data_sha256": HOUSING.checksum})
    store.save(_chunk(0, 20))
    store.write_text("audit.json", '{"runs": 40}')
    assert not work.is_done(cell, place)
    store.save(_chunk(20, 20))
    assert work.is_done(cell, place)
    store.write_text("audit.json", '{"runs": 20}')
    assert not work.is_done(cell, place)
    other = place._replace(out=place.out / "other")
    store = Store(other.out, {**config, "data_sha256": "0" * 64})
    store.save(_chunk(0, 40))
    store.write_text("audit.json", '{"runs": 40}')
    assert not work.is_done(cell, other)


def _chunk(first, runs):
    return Scores(first, np.arange(float(runs))[:, None], np.arange(runs)[:, None] % 2 == 1)


def test_norms_are_kept_and_damaged_ones_are_trained_again(tmp_path, monkeypatch):
    trained = []

    def train(played, runs):
        trained.append(len(runs))
        return np.arange(3.0) + runs[:, None]

    monkeypatch.setattr(measured, "canary_norms", train)
    dataset = Dataset(np.zeros((40, 8), np.float32), np.zeros(40, np.int32), "made up", "0" * 64)
    setting = setting_of("fcnn", adversary="loss", batch_size=10, steps=3)
    store = make.open_store(tmp_path, setting, dataset, measured.NORMS)
    data = SimpleNamespace(checksum=lambda model: None, load=lambda model: dataset)
    cell = measured.norms_cell(setting, 4)
    held = make.holdings(tmp_path)
    assert not cell.is_done(held, data)
    cell.do(store, data, print)
    expected = np.arange(3.0) + np.arange(3)[:, None]
    np.testing.assert_array_equal(
        measured.read_norms(make.holdings(tmp_path), setting, 3), expected
    )
    assert measured.read_norms(held, setting, 5) is None and cell.is_done(held, data)
    path = store.path / "answer.json"
    path.write_text(path.read_text()[:-9])
    assert measured.read_norms(held, setting, 3) is None and not cell.is_done(held, data)
    assert trained == [4]


@pytest.mark.slow
def test_the_image_models_are_trained(run, housing_file, tmp_path):
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8),
        np.arange(12) % 10,
    )
    arrays = {
        "train_images": images,
        "train_labels": labels,
        "test_images": images,
        "test_labels": labels,
    }
    np.savez(tmp_path / "pictures.npz", **arrays)
    data = (f"--cifar10={tmp_path / 'pictures.npz'}", f"--california_housing={housing_file}")
    flags = ("--scale=smoke", f"--out={tmp_path / 'out'}", *data)
    process = run(f"--name={IMAGES}", *flags)
    assert process.returncode == 0, process.stderr
    assert "cells are done" in run(f"--name={IMAGES}", *flags).stdout
