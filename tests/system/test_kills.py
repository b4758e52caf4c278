"""Kills audits, starts them again, and compares them with an audit that is not killed.

Half of the kills are at random moments, and the others are just before a file is renamed. We also compare
results that are computed from the scores, such as the claim test of fresh canaries. `./run.sh canife` is
killed at each file that it writes.

    ./run.sh test --slow tests/system/test_kills.py --kills=100 --kills_out=/shared/folder -rP

kills audits of each adversary 100 times, on a shared disk, and reports the files that are left.
"""

import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.system import killed
from tests.system.killed import conclusion, contents, log, said, scores

RUNS, CHUNK = 24, 8
RENAMES = 19  # that an audit makes
FRESH = {"canaries": 8, "noise_multiplier": 2.0}
ADVERSARIES = {  # the fields of their settings
    "every draw": killed.EVERY_DRAW,
    "directions": {"adversary": "sphere", **FRESH},
    "ranked examples": {"adversary": "examples", "fresh": 700, "periodicity": 5, **FRESH},
    "ranked coordinates": {"adversary": "gc_r", "afresh": True, **FRESH},
}
SECONDS = 600.0  # in which an audit that is left alone ends, on a busy machine too

# Six segments a chunk, with a checkpoint after each. Kills itself at its rename of that number, if any.
PROGRAM = """
count, replace = itertools.count(1), os.replace

def replaced(place, path):
    if next(count) == rename:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(place, path)

os.replace = replaced
"""


class Left(NamedTuple):
    """What an audit leaves: its scores, and the JSON of what follows from them."""

    scores: np.ndarray
    conclusion: str


class Survived(NamedTuple):
    """Kills, the audits that they were spread over, and the kills that left a checkpoint to go on from,
    and something half written."""

    kills: int = 0
    audits: int = 0
    checkpoints: int = 0
    half_written: int = 0


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_audits_killed_at_random_moments_end_with_the_same_bits(tmp_path, pytestconfig, adversary):
    kills, out = pytestconfig.getoption("kills"), pytestconfig.getoption("kills_out")
    folder = Path(out) / adversary if out else tmp_path / "kills"
    assert not folder.exists() or not list(folder.iterdir()), (
        f"{folder} holds something: name an empty one"
    )
    done = survive(folder, ADVERSARIES[adversary], kills, seed=1)
    shutil.rmtree(folder)
    print(done)
    assert done.kills == kills and done.audits >= 1
    assert kills < 10 or (done.checkpoints and done.half_written)  # they struck where it matters


def survive(folder: Path, fields: dict, kills: int, seed: int) -> Survived:
    """Kills audits of a setting in `folder` with SIGKILL until as many have struck, in turn uniformly over an
    audit's life and uniformly over its renames.

    An audit that ends between two kills is compared with one left alone, and another is begun.
    """
    rng = np.random.default_rng(seed)
    leave_alone(folder / "alone", fields)  # with nothing compiled
    life = leave_alone(folder / "again", fields)
    expected = Left(scores(folder / "alone", RUNS), conclusion(folder / "alone", RUNS))
    np.testing.assert_array_equal(scores(folder / "again", RUNS), expected.scores)
    out, counts = folder / "killed", Survived()
    while counts.kills < kills:
        if counts.kills % 2 == 1:
            is_killed = strike_at(out, fields, rng.uniform(0, life))
        else:
            is_killed = strike_renaming(out, fields, rng)
        if is_killed:
            checkpoint, half = left_behind(out)
            found = counts.checkpoints + checkpoint, counts.half_written + half
            counts = Survived(counts.kills + 1, counts.audits, *found)
        else:
            assert_unharmed(out, expected)
            counts = counts._replace(audits=counts.audits + 1)
    leave_alone(out, fields)
    assert_unharmed(out, expected)
    return counts._replace(audits=counts.audits + 1)


def leave_alone(out: Path, fields: dict) -> float:
    """Trains to the end; returns the seconds that it took."""
    begin = time.perf_counter()
    with audit(out, fields) as (process,):
        process.join(SECONDS)
        assert process.exitcode == 0, said(out)
    return time.perf_counter() - begin


def strike_renaming(out: Path, fields: dict, rng: np.random.Generator) -> bool:
    """Whether an audit was killed at one of its renames; else it had ended before."""
    with audit(out, fields, int(rng.integers(1, RENAMES + 1))) as (process,):
        process.join(SECONDS)
        assert process.exitcode in (0, -signal.SIGKILL), said(out)
        return process.exitcode != 0


def strike_at(out: Path, fields: dict, seconds: float) -> bool:
    """Whether an audit was killed after so many seconds; else it had ended."""
    with audit(out, fields) as (process,):
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            return process.exitcode != 0  # 0: it ended while it was about to be killed
        assert process.exitcode == 0, said(out)
    return False


def audit(out: Path, fields: dict, rename: int = 0):
    """A process that trains what is missing, or up to its rename of that number; none is left."""
    names = {"steps": 1500, "runs": RUNS, "chunk": CHUNK, "seconds": 0, "rename": rename}
    return killed.ended([killed.start(PROGRAM, out, fields, **names)])


def assert_unharmed(out: Path, expected: Left) -> None:
    assert "damaged" not in said(out)
    np.testing.assert_array_equal(scores(out, RUNS), expected.scores)
    assert conclusion(out, RUNS) == expected.conclusion
    shutil.rmtree(out)
    log(out).unlink()


def left_behind(out: Path) -> tuple[bool, bool]:
    """Whether a kill left a checkpoint, and whether it left something half written."""
    found = list(out.rglob("*")) if out.is_dir() else []
    has_checkpoint = any(path.parent.name == "checkpoints" for path in found)
    return has_checkpoint, any(path.name[0] == "." and path.name != ".lock" for path in found)


CANIFE = (
    *(
        "canife",
        "--model=linear",
        "--rounds=3",
        "--every=1",
        "--cohort=2",
        "--design_steps=12",
        "--scores=20",
    ),
    *(
        "--mock_rounds=200",
        "--noise_multiplier=0.5",
        "--batch_size=2",
        "--pool=8",
        "--population=20",
    ),
)
KILLED_AT = ("config.json", "round_0000001.npz", "round_0000002.npz", "rounds.csv")


@pytest.mark.slow
def test_canife_killed_at_any_point_ends_with_the_same_bits(image_file, tmp_path):
    """A kill may leave half a file in a cache."""
    started, out = (*CANIFE, f"--data={image_file}"), tmp_path / "killed"
    caches = dict.fromkeys(("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"), str(tmp_path / "cache"))
    printed = killed.left_alone(*started, f"--out={tmp_path / 'alone'}", home=tmp_path, **caches)
    for name in KILLED_AT:
        with killed.command(*started, f"--out={out}", home=tmp_path, **caches) as process:
            end = time.monotonic() + SECONDS
            while process.poll() is None and not list(out.rglob(name)):
                assert time.monotonic() < end
                time.sleep(0.002)
            process.kill()
    again = killed.left_alone(*started, f"--out={out}", home=tmp_path, **caches)
    assert again.replace(str(out), str(tmp_path / "alone")) == printed
    assert contents(out) == contents(tmp_path / "alone")
    assert sum(path.name.startswith("round_") for path in contents(out)) == 3
