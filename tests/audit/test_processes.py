"""Several processes train one audit: the scores of one process, and errors that end all of them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from audit import processes
from audit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
import jax, numpy as np
from pathlib import Path
from audit import game, processes, training
from experiments.settings import build, stored
from experiments.settings.make import setting_of
from models.data.base import Dataset

port, count, index, out, runs, trouble = sys.argv[1:]
processes.join(f"127.0.0.1:{port}", int(count), int(index), 20)
rng = np.random.default_rng(0)
features = rng.normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
setting = setting_of("fcnn", adversary="gc_r", batch_size=10, steps=5, noise_multiplier=1.0)
play, played = game.play, []

def troubled(table, ranges, chunk, *others):
    if trouble == "memory" and index == "1" and chunk > 3:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")
    for part in play(table, ranges, chunk, *others):
        if trouble == "death" and index == "1" and played:
            os._exit(1)
        played.extend(range(part.first, part.first + len(part.scores)))
        yield part

game.play = troubled
with processes.failing_together():
    processes.require_same(str(setting) + (index if trouble == "setting" else ""))
    first = processes.is_first()
    store = stored.open_store(Path(out), setting, data) if first else training.Elsewhere()
    trained = training.train(build.build(setting, data), store, int(runs), 7)
scores = trained.scores.scores[:, 0].tolist()
print(json.dumps({"scores": scores, "played": played, "devices": jax.local_device_count()}))
"""


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Programs compiled once for all tests here."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**os.environ, **cache, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


@pytest.fixture
def train(port, tmp_path, environment):
    """train(processes, runs=, trouble=, devices=) -> the finished processes, on one store."""

    def run(count, runs=50, trouble="none", devices=2, out=tmp_path / "out"):
        flags = f"--xla_force_host_platform_device_count={devices}"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        pipes |= {"env": {**environment, "XLA_FLAGS": flags}}
        common = [sys.executable, "-c", PROGRAM, str(port), str(count)]
        argvs = [[*common, str(index), str(out), str(runs), trouble] for index in range(count)]
        started = [subprocess.Popen(argv, **pipes) for argv in argvs]
        try:
            return [(*one.communicate(timeout=120), one.returncode) for one in started]
        finally:
            for one in started:
                one.kill()

    return run


def results(finished):
    assert all(code == 0 for _, _, code in finished), finished
    return [json.loads(out) for out, _, _ in finished]


@pytest.mark.slow
def test_two_processes_give_the_scores_of_one_and_train_only_what_is_missing(train, tmp_path):
    (alone,) = results(train(1, runs=62, devices=1, out=tmp_path / "alone"))
    first, second = results(train(2))
    assert first["devices"] == 2 and second["scores"] == first["scores"]
    assert sorted(first["played"] + second["played"]) == list(range(50))
    assert len(second["played"]) == 22  # every other chunk of 7, of which the last holds 1
    np.testing.assert_allclose(first["scores"], alone["scores"][:50], rtol=1e-5, atol=1e-7)

    damaged = next(tmp_path.glob("out/*/scores_0000007_0000014.npz"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    again, other = results(train(2, runs=62))
    assert sorted(again["played"] + other["played"]) == [*range(7, 14), *range(50, 62)]
    assert again["played"] and other["played"]
    np.testing.assert_allclose(again["scores"], alone["scores"], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_memory_that_runs_out_in_one_process_halves_the_chunk_of_both(train):
    finished = train(2, runs=20, trouble="memory")
    first, second = results(finished)
    assert len(first["scores"]) == 20
    assert sorted(first["played"] + second["played"]) == list(range(20))
    said = [line for _, err, _ in finished for line in err.splitlines() if "out of memory" in line]
    assert [line.split()[-2] for line in said] == ["3"]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_in_one_error_and_loses_no_finished_round(train, tmp_path):
    (_, error, code), (_, _, killed) = train(2, trouble="death")
    assert (code, killed) == (1, 1)
    assert "AnotherFailed: another process has ended" in error
    assert {path.name[7:14] for path in tmp_path.glob("out/*/scores*")} == {"0000000", "0000007"}


@pytest.mark.slow
def test_another_setting_ends_both(train, tmp_path):
    finished = train(2, trouble="setting")
    assert all(code == 1 and "process 1 has other settings" in error for _, error, code in finished)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("localhost", 2, 0), "`coordinator=localhost`"),
        (("localhost:0", 2, 0), "`coordinator=localhost:0`"),
        (("localhost:99999", 2, 0), "`coordinator=localhost:99999`"),
        ((":1234", 2, 0), "`coordinator=:1234`"),
        (("localhost:1234", 0, 0), "`processes=0`"),
        (("localhost:1234", 2, 2), "`process=2`: give 0 to 1"),
        (("localhost:1234", 2, -1), "`process=-1`"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, word):
    with pytest.raises(InputError, match=word):
        processes.join(*arguments, timeout=1)


def test_an_unreachable_coordinator_and_a_process_that_does_not_come(port):
    with pytest.raises(InputError, match=f"no process 0 at localhost:{port}"):
        processes.join(f"localhost:{port}", 2, 1, timeout=0.3)
    with pytest.raises(InputError, match="process 1 of 3 has not come"):
        processes.join(f"localhost:{port}", 3, 0, timeout=0.1)
    with socket.create_server(("", port)), pytest.raises(InputError, match=f"port {port}"):
        processes.join(f"localhost:{port}", 2, 0, timeout=0.1)


def meet(port, *members):
    """What each (count, index) hears when they meet: an error's text, or None."""
    heard = [None] * len(members)

    def one(i, count, index):
        try:
            processes._meet("localhost", port, count, index, time.monotonic() + 1.0)
        except InputError as error:
            heard[i] = str(error)

    threads = [threading.Thread(target=one, args=(i, *member)) for i, member in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def test_processes_meet_whatever_a_stranger_says(port):
    def stranger():
        for _ in range(50):
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1) as peer:
                return peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            time.sleep(0.01)

    thread = threading.Thread(target=stranger)
    thread.start()
    assert meet(port, (3, 2), (3, 0), (3, 1)) == [None, None, None]
    thread.join()


def test_processes_that_disagree_do_not_meet(port):
    first, other = meet(port, (2, 0), (3, 1))
    assert "process 1 has `processes=3`, process 0 2" in first and "no process 0" in other
    first, *others = meet(port, (3, 0), (3, 1), (3, 1))
    assert first == "two processes are `process=1`" and all("no process 0" in other for other in others)


def test_a_process_alone_is_a_group_of_one():
    row = np.array([1.0, np.nan, 1e-300])
    np.testing.assert_array_equal(processes.gather(row), row[None])
    np.testing.assert_array_equal(processes.from_first(np.array([3, 4])), [3, 4])
    assert processes.from_first(np.zeros(0, np.int64)).size == 0
    processes.require_same("anything")
    assert processes.is_first()
    with pytest.raises(KeyError), processes.failing_together():
        raise KeyError
