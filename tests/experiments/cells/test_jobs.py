"""Which node does which task of which job, on a cluster that is made up."""

import itertools
from collections import Counter

import pytest

from audit.errors import InputError
from experiments.cells import jobs
from experiments.cells.cluster import Node


class MadeUpCluster:
    """Nodes that do their tasks in turn, as many at once as they have workers; `done` has (node, job) of
    each."""

    def __init__(self, *nodes):
        self.alive, self.done, self._queues, self._names = list(nodes), [], {}, itertools.count()

    def nodes(self):
        return list(self.alive)

    def begin(self, node, job):
        queue = self._queues.setdefault(node, [])
        queue.append((next(self._names), job))
        return queue[-1]

    def ended(self, tasks):
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

    def result(self, task):
        if task[1].fails:
            raise InputError("a model diverged")
        return task


class MadeUpJob:
    """First a task alone, then so many."""

    def __init__(self, cluster, tasks, fails=False):
        self._cluster, self.fails = cluster, fails
        self._waiting, self._left, self._tasks = tasks + 1, tasks + 1, tasks

    def begin(self, node):
        is_first, prepared = self._waiting > self._tasks, self._left <= self._tasks
        if not is_first and not (prepared and self._waiting):
            return None
        self._waiting -= 1
        return jobs.Begun(self._cluster.begin(node, self), self._keep)

    def is_done(self):
        return not self._left

    def _keep(self, _):
        self._left -= 1


FIRST, SECOND, LARGE = Node("first", 1), Node("second", 1), Node("large", 4)


def test_each_job_has_a_node_of_its_own_until_none_is_left():
    cluster = MadeUpCluster(FIRST, SECOND)
    opened = [MadeUpJob(cluster, 5) for _ in range(8)]
    ended = [job for job, error in jobs.done(cluster, iter(opened)) if error is None]
    assert sorted(map(id, ended)) == sorted(map(id, opened))
    assert Counter(job for _, job in cluster.done) == dict.fromkeys(opened, 6)
    assert len(set(cluster.done)) <= 8 + 1  # one is shared, at the end
    shares = Counter(node for node, _ in cluster.done)
    assert abs(shares[FIRST] - shares[SECOND]) <= 2


def test_one_job_is_shared_by_all_nodes_by_their_workers():
    cluster = MadeUpCluster(FIRST, LARGE)
    job = MadeUpJob(cluster, 100)
    assert list(jobs.done(cluster, [job])) == [(job, None)]
    shares = Counter(node for node, _ in cluster.done)
    assert shares[LARGE] == pytest.approx(4 * shares[FIRST], rel=0.2)


def test_a_lost_nodes_job_gets_another_and_a_node_that_joins_gets_work():
    cluster = MadeUpCluster(FIRST, SECOND)
    made = [MadeUpJob(cluster, 10) for _ in range(6)]
    ended = jobs.done(cluster, made)
    next(ended)
    cluster.lose(SECOND)
    next(ended)
    cluster.alive.append(LARGE)
    assert len(list(ended)) == 4
    assert Counter(job for _, job in cluster.done) == dict.fromkeys(made, 11)
    assert {node for node, _ in cluster.done} == {FIRST, SECOND, LARGE}


def test_without_a_node_a_task_waits_for_one():
    cluster = MadeUpCluster()
    job = MadeUpJob(cluster, 2)
    assert list(jobs.done(cluster, [job])) == [(job, None)] and {node for node, _ in cluster.done} == {None}


def test_a_job_that_fails_ends_alone_and_begins_no_more():
    cluster = MadeUpCluster(FIRST, SECOND)
    good, bad = MadeUpJob(cluster, 3), MadeUpJob(cluster, 3, fails=True)
    found = dict(jobs.done(cluster, [bad, good]))
    assert found[good] is None and str(found[bad]) == "a model diverged"
    assert Counter(job for _, job in cluster.done)[bad] == 1
