"""`./run.sh canife`, killed wherever it leaves a file and started again, against one that is left alone."""

import json
import time

import numpy as np
import pytest
from PIL import Image

from tests.system import killed
from tests.system.killed import SECONDS, contents

CACHES = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
FLAGS = (
    *("--model=celeba_cnn", "--rounds=3", "--every=1", "--cohort=2", "--design_steps=12", "--scores=20"),
    *("--mock_rounds=200", "--noise_multiplier=0.5", "--batch_size=2", "--learning_rate=0.1"),
)
KILLED_AT = ("setting.json", "state.npz", "round_0000001.npz", "round_0000002.npz")


@pytest.fixture(scope="module")
def leaf(tmp_path_factory):
    """LEAF's folder of made-up faces: six users to train on, four to test."""
    folder, rng = tmp_path_factory.mktemp("leaf"), np.random.default_rng(0)
    for split, users in (("train", 6), ("test", 4)):
        data = {}
        for user in range(users):
            names = [f"{split}{user}{i}.png" for i in range(2)]
            for name in names:
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / name)
            data[f"{split} {user}"] = {"x": names, "y": [user % 2, 1]}
        content = {"users": [*data], "num_samples": [2] * users, "user_data": data}
        (folder / split).mkdir()
        (folder / split / "all.json").write_text(json.dumps(content))
    return folder


@pytest.mark.slow
def test_a_command_killed_at_any_point_ends_with_the_same_bits(leaf, tmp_path):
    """Of two trainings, so that it is killed within each and between them."""
    flags, alone, out = (f"--leaf={leaf}", "--vary=seed=0,1"), tmp_path / "alone", tmp_path / "killed"
    started = ("canife", *FLAGS, *flags)
    printed = killed.left_alone(*started, f"--out={alone}", **caches(tmp_path))
    for name in (*KILLED_AT, "varied.csv"):
        killed_at(flags, out, tmp_path, name)
    again = killed.left_alone(*started, f"--out={out}", **caches(tmp_path))
    assert again.replace(str(out), str(alone)) == printed
    assert contents(out) == contents(alone)
    assert sum(path.name.startswith("round_") for path in contents(out)) == 6


def caches(home):
    """A kill may leave half a file there."""
    return {"home": home, **dict.fromkeys(CACHES, str(home / "cache"))}


def killed_at(flags, out, home, name):
    with killed.command("canife", *FLAGS, *flags, f"--out={out}", **caches(home)) as process:
        end = time.monotonic() + SECONDS
        while process.poll() is None and not list(out.rglob(name)):
            assert time.monotonic() < end
            time.sleep(0.002)
        process.kill()
