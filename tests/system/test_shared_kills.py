"""Workers on one audit in one folder that join late and are killed, against one worker that is left alone."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.system import killed
from tests.system.killed import said, scores

RUNS, CHUNK, WORKERS = 120, 8, 3
SECONDS = 300.0

# Appends to the log the first run of each chunk that it begins and, after it is stored, that it ended.
WORKER = """
play, save = game.play, Store.save

def heard(table, ranges, *others):
    def each():
        for start, stop in ranges:
            log.write(f"begin {start} {os.getpid()}\\n")
            yield start, stop
    return play(table, each(), *others)

def kept(store, chunk):
    save(store, chunk)
    log.write(f"end {chunk.first} {os.getpid()}\\n")

game.play, Store.save = heard, kept
"""


@pytest.mark.slow
def test_workers_that_come_and_go_train_each_chunk_once_and_end_with_the_same_bits(
    tmp_path, pytestconfig
):
    kills = pytestconfig.getoption("kills")
    with killed.ended([start(tmp_path / "alone")]) as (alone,):
        alone.join(SECONDS)
        assert alone.exitcode == 0, said(tmp_path / "alone")
    expected, rng = scores(tmp_path / "alone", RUNS), np.random.default_rng(1)
    struck, audits, lost = 0, 0, 0
    while struck < kills:
        out = tmp_path / f"shared{audits}"
        dead = harass(out, min(kills - struck, 20), rng)
        np.testing.assert_array_equal(scores(out, RUNS), expected)
        lost += assert_trained_once(out, dead)
        assert not list(out.glob("*/runs_*.lease")) and not list(out.glob("*/checkpoints"))
        struck, audits = struck + len(dead), audits + 1
    print(f"{struck} kills in {audits} audits, {lost} of them in a chunk")
    assert lost


def harass(out: Path, kills: int, rng: np.random.Generator) -> list[int]:
    """Kills one of three workers at random moments, each replaced by one that joins late, until so many were
    killed or nearly all is done; returns the pids of the killed. Those left end by themselves."""
    struck = []
    with killed.ended([start(out) for _ in range(WORKERS)]) as running:
        while len(struck) < kills and len(heard(out, "end")) < RUNS // CHUNK - WORKERS:
            time.sleep(rng.uniform(0, 0.5))
            trains = {pid for _, pid in heard(out, "begin")}
            i = int(rng.integers(WORKERS))
            if running[i].exitcode is None and (running[i].pid in trains or rng.uniform() < 0.02):
                running[i].kill()
                running[i].join()
                struck.append(running[i].pid)
                running[i] = start(out)
        for one in running:
            one.join(SECONDS)
            assert one.exitcode == 0, said(out)
    return struck


def assert_trained_once(out: Path, dead: list[int]) -> int:
    begun, ended = heard(out, "begin"), heard(out, "end")
    assert len({run for run, _ in ended}) == len(ended)
    lost = [(run, pid) for run, pid in begun if (run, pid) not in ended]
    assert all(pid in dead for _, pid in lost) and len(begun) - len(lost) == len(ended)
    assert "damaged" not in said(out)
    return len(lost)


def heard(out: Path, word: str) -> list[tuple[int, int]]:
    """(first run, pid) of every chunk that was begun or was stored."""
    lines = [line.split() for line in said(out).splitlines() if line.startswith(word)]
    return [(int(run), int(pid)) for _, run, pid in lines]


def start(out):
    return killed.start(
        WORKER, out, **{"steps": 3000, "runs": RUNS, "chunk": CHUNK, "seconds": 0.2}
    )
