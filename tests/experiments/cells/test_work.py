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

import numpy as np
import pytest

from audit.errors import InputError
from audit.settings.setting import identity
from audit.storage import files
from audit.storage.store import Scores, Store
from experiments.cells import work
from experiments.cells.cell import Cell, DataSets
from experiments.cells.work import Workplace
from experiments.hidden_state import sweep as sweeps
from models.data.tables import HOUSING

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ("1a", "1b", "1c", "2a", "2b", "4", "5", "6a", "7", "8", "11", "12", "13")
OURS = ("proven", "bracket_k", "bracket_steps", "bracket", "bracket_rates")  # which no paper has
FCNN = ("figure_1c", "figure_4", "figure_7")

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
