"""Which node does which task of which job, on a cluster that is made up."""

import itertools
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from audit.errors import InputError
from audit.runtime import progress
from audit.runtime.progress import counted, shortened
from audit.settings.make import setting_of
from audit.storage.files import CannotWriteError
from experiments.cells import jobs
from experiments.cells.audits import audit_cell, compiling_seconds
from experiments.cells.cell import Audited
from experiments.cells.cluster import Node
from experiments.cells.work import Outcome, SweepProgress
from experiments.hidden_state import sweep as sweeps


class MadeUpCluster:
    """Nodes that do their tasks in turn, as many at once as they have workers; `done` has (node, job) of
    each."""

    def __init__(self, *nodes):
        self.alive, self.done, self._queues, self._names = list(nodes), [], {}, itertools.count()

    def nodes(self):
        return list(self.alive)

    def start(self, node, job):
        queue = self._queues.setdefault(node, [])
        queue.append((next(self._names), job))
        return queue[-1]

    def wait(self, tasks):
        found = []
        for node, queue in self._queues.items():
            queue[: node.workers if node else 1], now = [], queue[: node.workers if node else 1]
            self.done += [(node, job) for _, job in now]
            found += now
        return [task for task in found if task in tasks]

    def lose(self, node):
        """The node; its tasks are another's."""
        self.alive.remove(node)
        self._queues.setdefault(self.alive[0], []).extend(self._queues.pop(node, []))

    def get_result(self, task):
        if task[1].fails:
            raise InputError("a model diverged")
        return task


class MadeUpJob:
    """First a task alone, then so many."""

    def __init__(self, cluster, tasks, fails=False):
        self._cluster, self.fails = cluster, fails
        self._waiting, self._left, self._tasks = tasks + 1, tasks + 1, tasks

    def start(self, node):
        is_first, prepared = self._waiting > self._tasks, self._left <= self._tasks
        if not is_first and not (prepared and self._waiting):
            return None
        self._waiting -= 1
        return jobs.StartedTask(self._cluster.start(node, self), self._keep)

    def is_done(self):
        return not self._left

    def _keep(self, _):
        self._left -= 1


FIRST, SECOND, LARGE = Node("first", 1), Node("second", 1), Node("large", 4)


def test_each_job_has_a_node_of_its_own_until_none_is_left():
    cluster = MadeUpCluster(FIRST, SECOND)
    opened = [MadeUpJob(cluster, 5) for _ in range(8)]
    ended = [job for job, error in jobs.run_jobs(cluster, iter(opened)) if error is None]
    assert sorted(map(id, ended)) == sorted(map(id, opened))
    assert Counter(job for _, job in cluster.done) == dict.fromkeys(opened, 6)
    assert len(set(cluster.done)) <= 8 + 1  # one is shared, at the end
    shares = Counter(node for node, _ in cluster.done)
    assert abs(shares[FIRST] - shares[SECOND]) <= 2


def test_one_job_is_shared_by_all_nodes_by_their_workers():
    cluster = MadeUpCluster(FIRST, LARGE)
    job = MadeUpJob(cluster, 100)
    assert list(jobs.run_jobs(cluster, [job])) == [(job, None)]
    shares = Counter(node for node, _ in cluster.done)
    assert shares[LARGE] == pytest.approx(4 * shares[FIRST], rel=0.2)


def test_a_lost_nodes_job_gets_another_and_a_node_that_joins_gets_work():
    cluster = MadeUpCluster(FIRST, SECOND)
    made = [MadeUpJob(cluster, 10) for _ in range(6)]
    ended = jobs.run_jobs(cluster, made)
    next(ended)
    cluster.lose(SECOND)
    next(ended)
    cluster.alive.append(LARGE)
    assert len(list(ended)) == 4 and Counter(job for _, job in cluster.done) == dict.fromkeys(
        made, 11
    )
    assert {node for node, _ in cluster.done} == {FIRST, SECOND, LARGE}


def test_without_a_node_a_task_waits_for_one():
    cluster = MadeUpCluster()
    job = MadeUpJob(cluster, 2)
    assert list(jobs.run_jobs(cluster, [job])) == [(job, None)]
    assert {node for node, _ in cluster.done} == {None}


def test_a_job_that_fails_ends_alone_and_begins_no_more():
    cluster = MadeUpCluster(FIRST, SECOND)
    good, bad = MadeUpJob(cluster, 3), MadeUpJob(cluster, 3, fails=True)
    found = dict(jobs.run_jobs(cluster, [bad, good]))
    assert found[good] is None and str(found[bad]) == "a model diverged"
    assert Counter(job for _, job in cluster.done)[bad] == 1


CELL = audit_cell(Audited("", "GC-R", 1, setting_of("fcnn"), 40))


def test_a_cell_that_cannot_be_concluded_fails_alone(capsys):
    outcome = Outcome([], [], [])
    progress = SweepProgress([CELL, CELL])
    sweep_pass = jobs._SweepPass(MadeUpCluster(FIRST), None, progress, outcome)

    def refuse():
        raise InputError("scores that were looked at")

    for job, conclude in enumerate((refuse, lambda: None)):
        sweep_pass._under_way[job] = jobs._CellUnderWay(CELL, conclude, ExitStack())
        sweep_pass.end(job, None)
    progress.close()
    assert outcome == ([CELL.name], [], [CELL.name])
    assert f"failed: {CELL.name}: scores that were looked at" in capsys.readouterr().err


def test_a_store_that_cannot_be_written_ends_the_sweep():
    sweep_pass = jobs._SweepPass(MadeUpCluster(FIRST), None, SweepProgress([CELL]), None)

    def refuse():
        raise CannotWriteError("the disk is full")

    sweep_pass._under_way[0] = jobs._CellUnderWay(CELL, refuse, ExitStack())
    with pytest.raises(CannotWriteError):
        sweep_pass.end(0, None)


def test_compiling_is_said_until_all_is_compiled(capsys):
    with progress.bar(10) as hears:
        before = capsys.readouterr().err
        hears(0.0)
        hears(4.0)
    after = capsys.readouterr().err
    assert before.strip().startswith("compiling:") and "training" not in before
    assert after.rpartition("\r")[2].startswith("training: 100%")


def test_a_bar_ends_where_training_stopped(capsys):
    status = "training"
    with progress.bar(400, lambda: status, has_stopped=lambda: True) as hears:
        hears(71.98)
        status = "proven 18.1 of 24.0"
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert last.startswith("proven 18.1 of 24.0:  18%") and "72/400 runs" in last


def test_a_sweep_says_compiling_of_each_cell(capsys):
    line = SweepProgress([CELL])
    hears = line.begin(CELL)
    line._bar.refresh()
    assert "compiling" in capsys.readouterr().err
    hears(0.0)
    hears(20.0)
    line._bar.refresh()
    assert "compiling" not in capsys.readouterr().err.rpartition("\r")[2]
    line.end(CELL)
    line.close()


def test_a_game_is_told_that_all_is_compiled_before_any_run(empty_game):
    from audit.training import game

    heard = []
    next(game.play(empty_game(), [(0, 4)], 4, lambda runs, steps: heard.append((runs, steps))))
    assert heard[0] == (0, 0) and np.all(np.array(heard[1:]) > 0)


def test_a_text_is_cut_between_words():
    for width, fits in {17: "three short words", 16: "three short ...", 9: "three ..."}.items():
        assert shortened("three short words", width) == fits and len(fits) <= width
    assert shortened("m" * 40, 10) == "mmmmmmm..."


def test_one_is_no_plural():
    assert [counted(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]


def test_cells_of_one_shape_are_compiled_once():
    every = sweeps.sweeps("laptop")
    assert compiling_seconds([CELL, CELL]) == compiling_seconds([CELL]) > 0
    one, two = every["figure_1c"].cells, every["landscape"].cells
    assert compiling_seconds(one) == 2 * compiling_seconds(
        [CELL]
    )  # a crafted gradient, and a label flipped
    # An audited landscape, and one whose threshold is searched.
    assert compiling_seconds([*one, *two]) == 4 * compiling_seconds([CELL])
