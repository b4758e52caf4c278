"""One process at a time, and a claim does not outlive its holder for long."""

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from audit.storage import claims, files
from audit.storage.store import Store

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from audit.storage import claims
with claims.claim(Path(sys.argv[1]), float(sys.argv[2])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """hold(stale=60.0): a process that holds the folder until its stdin is closed."""
    processes = []

    def start(stale=claims.STALE_SECONDS):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        argv = [sys.executable, "-c", HOLD, str(tmp_path), str(stale)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen(argv, env=environment, text=True, **pipes))
        assert processes[-1].stdout.readline() == "True\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.__exit__(None, None, None)


def _is_free(folder, **options):
    with claims.claim(folder, **options) as mine:
        return mine


def _grow_old(folder, seconds):
    lease = folder / "claim.lease"
    then = lease.stat().st_mtime - seconds
    os.utime(lease, (then, then))


def _left_by_another_host(folder):
    lines = ["filelock/2", "pid=1", "host=elsewhere", "mode=lease", "token=ab", "duration=60.0", ""]
    (folder / "claim.lease").write_text("\n".join(lines))


def test_a_claim_is_held_and_given_back_after_an_error_too(tmp_path):
    with claims.claim(tmp_path) as mine:
        assert (
            mine
            and not _is_free(tmp_path)
            and claims.holder(tmp_path).endswith(f"process {os.getpid()}")
        )
    assert list(tmp_path.iterdir()) == [] and _is_free(tmp_path)
    with pytest.raises(KeyError), claims.claim(tmp_path):
        raise KeyError
    assert _is_free(tmp_path)
    with claims.claim(tmp_path) as all_of_it, claims.claim(tmp_path, part="runs_1_2") as mine:
        assert all_of_it and mine
        assert not _is_free(tmp_path, part="runs_1_2") and _is_free(tmp_path, part="runs_2_3")
        assert claims.holder(tmp_path, "runs_1_2").endswith(f"process {os.getpid()}")
    assert list(tmp_path.iterdir()) == []
    with claims.claim(tmp_path, stale=90):
        assert not _is_free(tmp_path)
    (tmp_path / "claim_00000003").write_text('{"host": "elsewhere", "pid": 1, "sees": "elsewhere"}')
    assert _is_free(tmp_path) and [path.name for path in tmp_path.iterdir()] == ["claim_00000003"]


def test_turns_are_taken_one_after_the_other(tmp_path):
    events = []

    def take(number):
        with claims.turn(tmp_path, "answer"):
            events.append(number)
            threading.Event().wait(0.01)
            events.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(take, range(4)))
    assert events[::2] == events[1::2] and sorted(events[::2]) == [0, 1, 2, 3]


def test_a_process_has_it_until_it_ends_or_is_killed(tmp_path, hold):
    for end in (lambda process: process.stdin.close(), subprocess.Popen.kill):
        process = hold()
        assert not _is_free(tmp_path) and claims.holder(tmp_path).endswith(f"process {process.pid}")
        end(process)
        process.wait()
        assert _is_free(tmp_path)


def test_a_process_killed_on_this_host_is_dead_to_others_where_names_can_not_be_exchanged(
    tmp_path, hold
):
    """As on a network file system, where filelock leaves its lease in place."""
    process = hold()
    lease = claims._make_lease(tmp_path / "claim.lease", claims.STALE_SECONDS)
    assert not claims._remove_abandoned(lease, claims.STALE_SECONDS)
    process.kill()
    process.wait()
    assert claims._remove_abandoned(lease, claims.STALE_SECONDS) and list(tmp_path.iterdir()) == []


def _refuse(*arguments, **options):
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("lock", [filelock.lock_descriptor, _refuse])
def test_a_process_killed_on_another_host_gives_it_back_when_stale(tmp_path, monkeypatch, lock):
    """With and without locks in the file system."""
    monkeypatch.setattr(filelock, "lock_descriptor", lock)
    _left_by_another_host(tmp_path)
    _grow_old(tmp_path, 55)
    assert not _is_free(tmp_path) and claims.holder(tmp_path) == "elsewhere, process 1"
    _grow_old(tmp_path, 6)
    assert _is_free(tmp_path)


def test_a_process_that_lives_renews_its_claim(tmp_path):
    with claims.claim(tmp_path, stale=0.06):
        _grow_old(tmp_path, 1000)
        lease = tmp_path / "claim.lease"
        old, tries = lease.stat().st_mtime, 0
        while lease.stat().st_mtime == old and tries < 1000:
            threading.Event().wait(0.01)
            tries += 1
        assert lease.stat().st_mtime > old + 900


def test_a_process_that_was_suspended_says_that_it_lost_the_claim(tmp_path, hold):
    process = hold(stale=0.3)
    process.send_signal(signal.SIGSTOP)
    _grow_old(tmp_path, 1)
    with claims.claim(tmp_path, stale=0.3) as mine:
        assert mine
        process.send_signal(signal.SIGCONT)
        message = process.stderr.readline()
    assert f"{tmp_path} was taken over" in message and f"process {os.getpid()})" in message
    assert "both train it, to the same scores" in message
    _, more = process.communicate("")
    assert more == "" and process.returncode == 0


def test_a_holder_that_wakes_leaves_its_successor_alone(tmp_path):
    with claims.claim(tmp_path):
        _grow_old(tmp_path, 61)
        successor = claims.claim(tmp_path)
        assert successor.__enter__()
    assert not _is_free(tmp_path)
    successor.__exit__(None, None, None)
    assert _is_free(tmp_path)


def test_a_stale_claim_goes_to_a_single_process(tmp_path):
    """Of many that see it at once; each holds it until all have tried."""
    tried = threading.Barrier(16)

    def attempt(_):
        tried.wait()
        with claims.claim(tmp_path) as mine:
            tried.wait()
            return mine

    for _ in range(5):
        _left_by_another_host(tmp_path)
        _grow_old(tmp_path, 61)
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(attempt, range(16))) == 1
    assert _is_free(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "filelock/2\npid=x\n", "filelock/2\nmode=other\n"])
def test_a_lease_that_says_nothing_is_held_until_stale(tmp_path, content):
    (tmp_path / "claim.lease").write_text(content)
    assert not _is_free(tmp_path) and "process" in claims.holder(tmp_path)
    _grow_old(tmp_path, 61)
    assert _is_free(tmp_path)


def test_a_claim_of_the_future_is_named(tmp_path):
    with claims.claim(tmp_path):
        assert "dated" not in claims.holder(tmp_path)
        _grow_old(tmp_path, -86_400)
        assert f"{tmp_path / 'claim.lease'} is dated in the future: remove it if" in claims.holder(
            tmp_path
        )
        assert not _is_free(tmp_path)


@pytest.mark.parametrize(
    ("call", "reason"), [("open", "Read-only file system"), ("write", "No space left on device")]
)
def test_a_folder_that_refuses_is_one_line(tmp_path, monkeypatch, call, reason):
    def refuse(*arguments):
        raise OSError(errno.EROFS, reason)

    with (
        monkeypatch.context() as patch,
        pytest.raises(files.CannotWriteError, match=reason) as caught,
    ):
        patch.setattr(os, call, refuse)
        with claims.claim(tmp_path):
            pass
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_store_grants_its_own_process_a_claim_within_a_claim(tmp_path):
    store, other = (Store(tmp_path, {"steps": 1}) for _ in range(2))
    with store.claim() as first, store.claim() as second:
        assert first and second
        with other.claim() as third:
            assert not third
        assert claims.holder(other.path).endswith(f"process {os.getpid()}")
    with other.claim() as third:
        assert third
    assert store.missing(2) == [(0, 2)]
