"""Chunks are shared: each is trained once, however workers come, go and cut."""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from audit.storage import claims, shares
from audit.storage.store import Scores, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, {"steps": 1})


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    monkeypatch.setattr(shares, "_POLL_SECONDS", 0.01)


def save(store, start, stop):
    runs = np.arange(float(start), float(stop))[:, None]
    store.save(Scores(start, runs, runs % 2 == 1))


def take(store, runs, size):
    taken = []
    for start, stop in shares.chunks(store, runs, size):
        save(store, start, stop)
        taken.append((start, stop))
    return taken


def left_by_the_dead(store, start, stop):
    """The lease of a process of this host that was killed."""
    with claims.claim(store.path, part=f"runs_{start:07d}_{stop:07d}"):
        lease = store.path / f"runs_{start:07d}_{stop:07d}.lease"
        text = lease.read_text()
    dead = f"pid={2**22 + 1}"  # beyond the largest number of a process
    lease.write_text(re.sub("pid=[0-9]+", dead, text))


def test_one_worker_takes_what_is_missing_in_order(store):
    save(store, 4, 6)
    assert take(store, 11, 3) == [(0, 3), (3, 4), (6, 9), (9, 11)]
    assert (
        take(store, 11, 3) == [] and shares.is_idle(store) and not list(store.path.glob("*.lease"))
    )


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (2, 3, 5, 7)])
def test_workers_train_each_run_once(store, sizes):
    taken = []
    all_have_begun = threading.Barrier(len(sizes))

    def work(size):
        all_have_begun.wait()
        taken.extend(take(Store.at(store.path), 60, size))

    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(work, sizes))
    assert sorted(run for start, stop in taken for run in range(start, stop)) == list(range(60))
    assert store.missing(60) == [] and shares.is_idle(store)


def test_chunks_that_nobody_holds_come_first(store):
    with contextlib.closing(shares.chunks(store, 9, 3)) as others:
        assert next(others) == (0, 3)
        with contextlib.closing(shares.chunks(store, 9, 3)) as mine:
            assert next(mine) == (3, 6)
        save(store, 0, 3)
        assert next(others) == (3, 6)


def test_a_chunk_of_another_size_is_nobodys_while_it_is_held(store):
    with contextlib.closing(shares.chunks(store, 12, 6)) as others:
        assert next(others) == (0, 6)
        with contextlib.closing(shares.chunks(store, 12, 4)) as mine:
            assert next(mine) == (8, 12)


@pytest.mark.parametrize("left", [(0, 3), (2, 5)])
def test_the_chunk_of_a_process_that_died_goes_back(store, left):
    left_by_the_dead(store, *left)
    assert {run for start, stop in take(store, 6, 3) for run in range(start, stop)} == set(range(6))
    assert shares.is_idle(store) and not list(store.path.glob("*.lease"))


def test_a_damaged_chunk_is_trained_again(store, capsys):
    save(store, 0, 3)
    save(store, 3, 6)
    path = store.path / "scores_0000000_0000003.npz"
    path.write_bytes(path.read_bytes()[:100])
    assert (
        take(store, 6, 3) == [(0, 3)]
        and "is damaged: it counts as missing" in capsys.readouterr().err
    )
    assert store.missing(6) == []


def test_a_worker_that_waits_says_for_whom_and_counts_what_others_stored(
    store, monkeypatch, capsys
):
    monkeypatch.setattr(shares, "_PATIENCE_SECONDS", 0.05)
    stored_by_others = []
    ended = threading.Event()

    def work():
        assert list(shares.chunks(Store.at(store.path), 4, 4, stored_by_others.append)) == []
        ended.set()

    with contextlib.closing(shares.chunks(store, 4, 4)) as others:
        assert next(others) == (0, 4)
        thread = threading.Thread(target=work)
        thread.start()
        assert not ended.wait(0.3)
        save(store, 0, 4)
        assert ended.wait(10)
    thread.join()
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("runs 0 to 3 are with ")
    assert stored_by_others == [4]
