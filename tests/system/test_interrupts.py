"""Tests that Ctrl-C and SIGTERM end a command in one line, and that it can continue."""

import shutil
import signal
import time

import numpy as np
import pytest

from audit.commands import dispatch
from tests.system import killed

MAX_SECONDS = 10.0  # from an interrupt to the end
AUDIT = (
    *("audit", "--data={housing}", "--insertions=20", "--batch_size=50"),
    *("--noise_multiplier=1", "--runs=40"),
)
FEDERATED = (
    *("federated", "--model=linear", "--data={images}", "--clients=10", "--cohort=4"),
    *("--rounds=60", "--canaries=100", "--runs=2"),
)
KEPT = (".npz", "result.json", "answer.json")  # files that hold no times


@pytest.mark.slow
@pytest.mark.parametrize("flags", [AUDIT, FEDERATED], ids=lambda flags: flags[0])
def test_an_interrupted_command_goes_on(flags, image_file, housing_file, tmp_path, pytestconfig):
    argv = [flag.format(images=image_file, housing=housing_file) for flag in flags]
    alone = tmp_path / "alone"
    begin = time.monotonic()
    killed.left_alone(*argv, f"--out={alone}")
    life = time.monotonic() - begin
    expected = killed.contents(alone, *KEPT)
    out = tmp_path / "out"
    rng = np.random.default_rng(len(argv))
    struck = 0
    while struck < max(1, pytestconfig.getoption("kills") // 5):
        number = (signal.SIGINT, signal.SIGTERM)[rng.integers(2)]
        if strike((*argv, f"--out={out}"), rng.uniform(0.5, 1) * life, number):
            struck += 1
        else:  # it ended before
            assert killed.contents(out, *KEPT) == expected
            shutil.rmtree(out)
    killed.left_alone(*argv, f"--out={out}")
    assert killed.contents(out, *KEPT) == expected


def strike(argv, seconds, number):
    """Whether a signal after so many seconds ended the command; it then ends in one line."""
    with killed.command(*argv) as process:
        time.sleep(seconds)
        process.send_signal(number)
        _, errors = process.communicate(timeout=killed.SECONDS)
    if process.returncode == 0:
        return False
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line == f"error: {dispatch.LINE}"
    return True


SCRIPT = """
import hashlib, time
from audit.commands import cli

def main():
    print("begun", flush=True)
    {work}

cli.run(main)
"""
WORK = {  # that would not hear a KeyboardInterrupt
    "sleeping": "time.sleep(100)",
    "compiled": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "swallowed": "\n    while True:\n        try:\n            time.sleep(100)\n"
    "        except BaseException:\n            pass",
}


@pytest.mark.parametrize(
    ("work", "number", "status"),
    [
        ("sleeping", signal.SIGINT, 130),
        ("compiled", signal.SIGTERM, 143),
        ("swallowed", signal.SIGINT, 130),
    ],
)
def test_an_interrupt_is_one_line_and_a_shells_status(work, number, status, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT.format(work=WORK[work]))
    with killed.command("python", tmp_path / "mine.py") as process:
        assert process.stdout.readline() == "begun\n"
        begin = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=killed.SECONDS)
    assert (process.returncode, errors) == (status, f"\nerror: {dispatch.LINE}\n")
    assert time.monotonic() - begin < MAX_SECONDS
