"""One process at a time, and a claim does not outlive its holder for long."""

import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audit.errors import InputError
from audit.storage import claims
from audit.storage.store import Store

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from audit import claims
with claims.claim(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding(tmp_path):
    """A process that holds the folder until its stdin is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def _is_free(folder, **options):
    with claims.claim(folder, **options) as mine:
        return mine


def _grow_old(folder, seconds):
    (path,) = folder.glob("claim_*")
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def _on_another_host(folder):
    """The folder's claim as a process of another host would have left it."""
    (path,) = folder.glob("claim_*")
    owner = json.loads(path.read_text()) | {"host": "elsewhere", "sees": "elsewhere"}
    path.write_text(json.dumps(owner))


def test_a_claim_is_held_and_given_back(tmp_path):
    with claims.claim(tmp_path) as mine:
        assert mine
        assert not _is_free(tmp_path)
        assert str(os.getpid()) in claims.holder(tmp_path)
    assert _is_free(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["claim_00000002"]


def test_a_claim_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), claims.claim(tmp_path):
        raise KeyError
    assert _is_free(tmp_path)


def test_another_process_has_it_until_it_ends(tmp_path, holding):
    assert not _is_free(tmp_path)
    assert claims.holder(tmp_path).endswith(f"process {holding.pid}")
    holding.stdin.close()
    holding.wait()
    assert _is_free(tmp_path)


def test_a_process_killed_on_this_host_gives_it_back_at_once(tmp_path, holding):
    holding.kill()
    holding.wait()
    assert _is_free(tmp_path)


def test_a_process_killed_on_another_host_gives_it_back_when_stale(tmp_path, holding):
    holding.kill()
    holding.wait()
    _on_another_host(tmp_path)
    assert not _is_free(tmp_path)
    _grow_old(tmp_path, 30)
    assert not _is_free(tmp_path)
    assert claims.holder(tmp_path).startswith("elsewhere")
    _grow_old(tmp_path, 31)
    assert _is_free(tmp_path)


def test_a_process_that_lives_renews_its_claim(tmp_path):
    with claims.claim(tmp_path, stale=0.06):
        _grow_old(tmp_path, 1000)
        (path,) = tmp_path.glob("claim_*")
        old, tries = path.stat().st_mtime, 0
        while path.stat().st_mtime == old and tries < 1000:
            threading.Event().wait(0.01)
            tries += 1
        assert path.stat().st_mtime > old + 900


def test_one_that_was_suspended_says_that_it_lost_the_claim(tmp_path, capsys):
    theirs = tmp_path / "claim_00000002"
    with claims.claim(tmp_path, stale=0.06):
        theirs.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
        (tmp_path / "claim_00000001").unlink()
        for _ in range(1000):
            threading.Event().wait(0.01)
            if not any(thread.name.endswith("(_renew)") for thread in threading.enumerate()):
                break
    assert "taken over by elsewhere, process 1" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["claim_00000002"]


def test_a_stale_claim_goes_to_one_alone(tmp_path):
    """Of many that see it at once; each holds it until all have tried."""
    with claims.claim(tmp_path):
        pass
    tried = threading.Barrier(16)

    def attempt(_):
        tried.wait()
        with claims.claim(tmp_path) as mine:
            tried.wait()
            return mine

    for _ in range(5):
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(attempt, range(16))) <= 1
    assert len(list(tmp_path.glob("claim_*"))) == 1


def test_a_late_look_at_an_old_claim_wins_nothing(tmp_path, monkeypatch):
    """Between a process's look and its claim, others took the folder over twice."""
    with claims.claim(tmp_path):
        pass
    claims_now, looks = claims._claims, []

    def late(folder):
        looks.append(1)
        if len(looks) > 1:
            return claims_now(folder)
        found = claims_now(folder)
        with monkeypatch.context() as patch:
            patch.setattr(claims, "_claims", claims_now)
            held.append(claims._acquire(folder, 60))
            claims._release(held[0])
            held.append(claims._acquire(folder, 60))
        return found

    held = []
    monkeypatch.setattr(claims, "_claims", late)
    assert claims._acquire(tmp_path, 60) is None
    assert held[1] is not None
    assert claims_now(tmp_path) == [held[1]]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 99999999999999999999}'])
def test_a_claim_that_says_nothing_is_held_until_stale(tmp_path, content):
    (tmp_path / "claim_00000007").write_text(content)
    assert not _is_free(tmp_path)
    assert "process" in claims.holder(tmp_path)
    _grow_old(tmp_path, 61)
    assert _is_free(tmp_path)


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(claims.os, "link", refuse)
    with claims.claim(tmp_path) as mine:
        assert mine
        assert not _is_free(tmp_path)
    assert _is_free(tmp_path)


def test_a_folder_that_refuses_is_said_in_one_line(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(claims.Path, "write_text", refuse)
    with pytest.raises(InputError, match="Read-only file system.*--out") as caught, claims.claim(tmp_path):
        pass
    assert "\n" not in str(caught.value)


def test_a_store_grants_its_own_process_a_claim_within_a_claim(tmp_path):
    store, other = (Store(tmp_path, {"steps": 1}) for _ in range(2))
    with store.claim() as first, store.claim() as second:
        assert first and second
        with other.claim() as third:
            assert not third
    with other.claim() as third:
        assert third
    assert store.missing(2) == [(0, 2)]
