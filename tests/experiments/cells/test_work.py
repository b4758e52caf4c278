"""Tests sweeps: their cells, workers that share a store, and the commands on small made-up data."""

import collections
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

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
from tests.forks import python

FCNN = ("figure_1c", "figure_4", "figure_7")


@pytest.fixture
def counted():
    """counted(n, do) -> cells that leave a file behind, and a Counter of how often each was done."""
    done = collections.Counter()

    def make_cell(number, do):
        setting = {"number": number}

        def act(store, data, progress):
            do(number)
            progress(1)
            done[number] += 1
            store.write_text("done", "")

        def is_done(held, data):
            store = held.open(setting)
            return store is not None and (store.path / "done").exists()

        def open_store(out, data):
            return Store(out, setting)

        return Cell(f"cell {number}", str(number), 1, is_done, open_store, act)

    def build(count, do):
        return [make_cell(number, do) for number in range(count)], done

    return build


@pytest.fixture
def place(tmp_path):
    return Workplace(tmp_path, DataSets({}))


def test_workers_share_the_cells_and_do_none_twice(counted, place):
    cells, done = counted(12, lambda number: time.sleep(0.02))
    with ThreadPoolExecutor(3) as workers:
        outcomes = workers.map(lambda _: work.do_all(cells, place), range(3))
    assert done == collections.Counter(range(12))
    names = [name for outcome in outcomes for name in outcome.completed]
    assert sorted(names) == sorted(cell.name for cell in cells)


def test_a_cell_that_fails_is_said_and_the_others_go_on(counted, place, capsys):
    def fail(number):
        if number == 1:
            raise InputError("run 7 diverged")

    cells, done = counted(3, fail)
    outcome = work.do_all(cells, place)
    assert outcome == work.Outcome(completed=["cell 0", "cell 2"], failed=["cell 1"])
    assert done == {0: 1, 2: 1}
    assert "failed: cell 1: run 7 diverged" in capsys.readouterr().err


def test_progress_counts_runs_and_cells(counted, capsys):
    (cell, other), _ = counted(2, None)
    cells = [cell._replace(runs=4), other._replace(runs=2)]
    progress = work.SweepProgress(cells)
    report = progress.begin(cells[0])
    report(3)  # a run was stored before
    progress.end(cells[0])
    progress.begin(cells[1])
    assert re.search(r"1/2 cell 1: +67% 00:\d\d, 00:\d\d left", capsys.readouterr().err)
    progress.end(cells[1])
    progress.close()
    assert re.search(r"2/2 cells: 100%", capsys.readouterr().err)


def test_a_store_that_refuses_ends_the_sweep(counted, place):
    def refuse(number):
        raise files.CannotWriteError("No space left on device")

    cells, done = counted(3, refuse)
    with pytest.raises(InputError, match="No space left"):
        work.do_all(cells, place)
    assert not done


@pytest.mark.slow
def test_the_fcnn_figures_are_trained_once_and_then_known_to_be_done(
    run_command, housing_file, tmp_path
):
    flags = ("--scale=smoke", f"--out={tmp_path}", f"--california_housing={housing_file}")
    process = run_command("sweep", "--name=" + ",".join(FCNN), *flags)
    assert process.returncode == 0, process.stderr
    draws = f"./run.sh figures --name={','.join(FCNN)} --scale=smoke --out={tmp_path} draws them"
    closing = rf"{', '.join(FCNN)}: 14 cells in 0:\d\d:\d\d, 0 before\n"
    assert re.fullmatch(closing + re.escape(f"{draws}\n"), process.stdout)
    assert "Traceback" not in process.stderr
    assert max(map(len, re.split(r"[\r\n]", process.stderr))) <= 80
    results = list(tmp_path.glob("*/audit.json"))
    assert len(results) == 14
    for result in results:
        assert json.loads(result.read_text())["runs"] == 40
        assert not Store.at(result.parent).missing(40)
    listed = run_command("sweep", "--list", *flags).stdout
    assert re.search(r"figure_1c +6 +6 ", listed) and re.search(r"figure_1a +6 +0 ", listed)
    assert max(map(len, listed.splitlines())) <= 80
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    again = run_command("sweep", "--name=figure_4,figure_1c", *flags)
    assert (
        again.returncode == 0 and "12 cells are already done" in again.stdout and again.stderr == ""
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == stamps


def test_that_all_is_done_is_known_without_jax_or_data(tmp_path):
    for cell in sweeps.sweeps("smoke")["figure_1c"].cells:
        fill(tmp_path, cell, 40)
    module = ("-X", "importtime", "-m", "experiments.commands.sweep")
    process = python(*module, "--name=figure_1c", "--scale=smoke", f"--out={tmp_path}")
    assert process.returncode == 0 and "6 cells are already done" in process.stdout
    loaded = {line.rsplit("|")[-1].strip() for line in process.stderr.splitlines()}
    assert "audit.storage.store" in loaded and not loaded & {"jax", "matplotlib", "scipy"}


@pytest.mark.parametrize(
    ("runs", "concluded", "checksum", "is_done"),
    [
        (40, 40, HOUSING.checksum, True),
        (20, 40, HOUSING.checksum, False),
        (40, 20, HOUSING.checksum, False),
        (40, 40, "0" * 64, False),
    ],
)
def test_fewer_runs_other_data_or_no_conclusion_is_not_done(
    place, runs, concluded, checksum, is_done
):
    cell = sweeps.sweeps("smoke")["figure_1c"].cells[0]
    assert work.find_missing([cell], place)
    fill(place.out, cell, runs, concluded, checksum)
    assert bool(work.find_missing([cell], place)) != is_done


def fill(root, cell, runs, concluded=40, checksum=HOUSING.checksum):
    """Stores the scores of some runs of a cell, and a conclusion."""
    store = Store(root, {**identity(cell.audited.setting), "data_sha256": checksum})
    scores = np.arange(float(runs))[:, None]
    store.save(Scores(0, scores, scores % 2 == 1))
    store.write_text("audit.json", json.dumps({"runs": concluded}))
