"""Commands that are interrupted at random moments, by Ctrl-C or SIGTERM, to the process or to its group, and
started again, against one that is left alone.

    ./run.sh test --slow tests/system/test_interrupts.py --kills=100 -rP

interrupts all commands that train, 100 times together, and says how it went; by default a few, once each.
"""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from audit.commands import interrupts
from tests.system import killed

FEW = 10  # interrupts, for which one of each of the first commands is enough
MOST_SECONDS = 10.0  # from an interrupt to the end; half of it is when a stuck process ends itself
IMAGES = ("--model=linear", "--data_file={images}")
COMMANDS = {  # the first few are interrupted in CI
    "audit": (
        *("--data_file={housing}", "--insertions=20", "--batch_size=50", "--noise_multiplier=1"),
        *("--runs=40", "--chunk_size=8"),
    ),
    "landscape": ("--sigmas=4", "--batch_sizes=4", "--steps=5", "--runs=100"),
    "federated": (
        *IMAGES,
        "--clients=10",
        "--cohort=4",
        "--rounds=60",
        "--canaries=100",
        "--runs=2",
    ),
    "canife": (
        *(*IMAGES, "--rounds=5", "--every=2", "--cohort=8", "--noise_multiplier=0.5", "--pool=20"),
        *("--population=40", "--scores=40", "--mock_rounds=2000", "--design_steps=60"),
    ),
    "sweep": ("--name=figure_7", "--scale=smoke", "--california_housing={housing}"),
    "compare": (
        *(
            *IMAGES,
            "--steps=20",
            "--batch_size=20",
            "--single_runs=80",
            "--many_runs=8",
            "--lidp_runs=8",
        ),
        "--fresh_runs=2",
        *("--one_run_canaries=100", "--measured_rounds=2", "--design_steps=20"),
    ),
}
IN_CI = ("audit", "landscape", "federated")
KEPT = (
    ".npz",
    "rounds.csv",
    "table_1.csv",
    "result.json",
    "answer.json",
)  # none of times


class Interrupted(NamedTuple):
    """Interrupts that struck, commands that ended before theirs, and the longest time to an end."""

    interrupts: int = 0
    ended: int = 0
    seconds: float = 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_ends_a_command_in_a_line_and_it_goes_on(
    name, image_file, housing_file, tmp_path, pytestconfig
):
    kills = pytestconfig.getoption("kills")
    if kills <= FEW and name not in IN_CI:
        pytest.skip("interrupted where --kills asks for more")
    share = 1 if kills <= FEW else len(range([*COMMANDS].index(name), kills, len(COMMANDS)))
    argv = (
        name,
        *(flag.format(images=image_file, housing=housing_file) for flag in COMMANDS[name]),
    )
    done = interrupted(argv, share, tmp_path)
    print(f"{name}: {done}")
    assert done.interrupts == share


def interrupted(argv: tuple[str, ...], number: int, folder: Path) -> Interrupted:
    """Interrupts a command so many times, at moments that are uniform over its life; what ends before is
    compared with one left alone, and so is what is there at last."""
    rng, out, alone = (
        np.random.default_rng([number, *map(ord, argv[0])]),
        folder / "out",
        folder / "alone",
    )
    if number > 1:  # the next one has nothing to compile
        killed.left_alone(*argv, f"--out={folder / 'first'}")
    begin = time.monotonic()
    killed.left_alone(*argv, f"--out={alone}")
    life, expected, found = time.monotonic() - begin, killed.contents(alone, *KEPT), Interrupted()
    while found.interrupts < number:
        how = (signal.SIGINT, signal.SIGTERM)[rng.integers(2)], bool(rng.integers(2))
        took = strike((*argv, f"--out={out}"), rng.uniform(0, life), *how)
        if took is None:
            assert killed.contents(out, *KEPT) == expected
            shutil.rmtree(out)
            found = found._replace(ended=found.ended + 1)
        else:
            found = Interrupted(found.interrupts + 1, found.ended, max(found.seconds, took))
    killed.left_alone(*argv, f"--out={out}")
    assert killed.contents(out, *KEPT) == expected
    return found


def strike(argv: tuple[str, ...], seconds: float, number: int, group: bool) -> float | None:
    """The seconds that a command took to end in one line after it was interrupted, so long after it could
    be; None where it had ended."""
    with killed.command(*argv) as process:
        while process.poll() is None and not catches(process.pid, signal.SIGTERM):
            time.sleep(0.002)
        time.sleep(seconds)
        ended, begin = process.poll() is not None, time.monotonic()
        if not ended:
            (os.killpg if group else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=killed.SECONDS)
        took = time.monotonic() - begin
    if ended or process.returncode == 0:  # it ended while it was about to be interrupted
        assert process.returncode == 0, errors
        return None
    shown = [line.rpartition("\r")[2] for line in errors.split("\n")]  # as a terminal shows them
    if process.returncode != interrupts.status_of(number):
        pytest.fail(
            f"status {process.returncode}, {seconds:.2f} s after it could be interrupted: {errors}"
        )
    assert took < MOST_SECONDS, errors
    (line,) = [line for line in shown if line.startswith("error: ")]
    # Before a command's own modules are imported, nothing says that it keeps anything.
    assert line in (f"error: {interrupts.LINE}", f"error: {interrupts.KEPT_LINE}"), errors
    noise = ("Traceback", "Exception ignored", "Fatal", "terminate", "resource_tracker", "damaged")
    assert not [word for word in noise if word in errors], errors
    return took


SCRIPT = """
import hashlib, sys, time
from audit.commands import cli

class Dropped:
    def __del__(self):
        print("begun", flush=True)
        time.sleep(100)

def main():
    {work}

cli.run(main)
"""
WORK = {  # that goes on where an interrupt is raised once
    "swallowed": "Dropped(); time.sleep(100)",
    "compiled": "print('begun', flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "importing": "print('begun', flush=True); import jax, pyarrow.csv; time.sleep(100)",
    "turned": "\n    try:\n        print('begun', flush=True); time.sleep(100)"
    "\n    except KeyboardInterrupt:\n        raise ValueError('a library says so')",
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("work", WORK)
def test_an_interrupt_is_not_lost_in_what_does_not_hear_it(work, number, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT.format(work=WORK[work]))
    with killed.command("python", tmp_path / "mine.py") as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=killed.SECONDS)
    status = interrupts.status_of(number)
    assert (process.returncode, errors) == (status, f"\nerror: {interrupts.LINE}\n")
    assert time.monotonic() - begin < MOST_SECONDS


WAITING = """
import time
from audit.commands import cli

def main():
    print("begun", flush=True)
    time.sleep(100)

cli.run(main{keeps})
"""


KEPT_LINE = "error: interrupted: what is finished is kept, the same command goes on"


@pytest.mark.parametrize(
    ("keeps", "numbers", "line", "status"),
    [
        ("", [signal.SIGINT], "error: interrupted", 130),
        ("", [signal.SIGTERM], "error: interrupted", 143),
        (", keeps=True", [signal.SIGTERM, signal.SIGINT], KEPT_LINE, 143),
    ],
)
def test_only_a_command_that_keeps_says_so_and_the_status_is_a_shells(
    keeps, numbers, line, status, tmp_path
):
    (tmp_path / "mine.py").write_text(WAITING.format(keeps=keeps))
    with killed.command("python", tmp_path / "mine.py") as process:
        assert process.stdout.readline() == "begun\n"
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.02)  # the kernel keeps no order of signals that wait together
        _, errors = process.communicate(timeout=killed.SECONDS)
    assert (process.returncode, errors) == (status, f"\n{line}\n")


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)
