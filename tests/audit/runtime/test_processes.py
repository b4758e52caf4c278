"""Pools of processes: their results, and their end if they or their parent are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from audit.errors import InputError
from audit.runtime import processes

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0  # for what takes moments, on a busy machine
POOL = """
import os, sys, time
from pathlib import Path
from audit.runtime import processes

def work(place):
    Path(place, str(os.getpid())).touch()
    time.sleep(120)

if __name__ == "__main__":
    list(processes.as_completed(work, [sys.argv[1]] * 4, 2))
"""


def square(number):
    return number**2


def refused(number):
    raise InputError(f"{number} is refused")


def ended(number):
    os._exit(3)


def test_each_result_comes_with_its_task():
    for count in (1, 2):
        results = dict(processes.as_completed(square, range(20), count))
        assert results == {number: number**2 for number in range(20)}


def test_what_a_process_raises_and_its_death_are_input_errors():
    with pytest.raises(InputError, match="[12] is refused"):
        list(processes.as_completed(refused, [1, 2], 2))
    with pytest.raises(InputError, match="a worker process died: free memory"):
        list(processes.as_completed(ended, [1, 2, 3], 2))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_in_silence_with_who_began_them(how, tmp_path):
    """Sends Ctrl-C to all processes, or SIGKILL only to the parent."""
    (tmp_path / "main.py").write_text(POOL)
    (tmp_path / "pids").mkdir()
    argv = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "pids")]
    named = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    hears = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, preexec_fn=hears, **named) as parent:
        waited_for(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
        (os.killpg if how == signal.SIGINT else os.kill)(parent.pid, how)
        errors = parent.communicate(timeout=SECONDS)[1]
    assert parent.returncode == -how and errors.count("Traceback") == (how == signal.SIGINT), errors
    assert "Process" not in errors
    waited_for(lambda: not any(runs(path.name) for path in (tmp_path / "pids").iterdir()))


def waited_for(holds):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(pid):
    """Returns True if a process is alive and not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
