"""Tests the list of audits: rows of 80 columns, the newest first, without JAX or data."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from audit.report import listing
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage.store import Scores, Store

ROOT = Path(__file__).resolve().parents[3]
CONCLUDED = {
    "epsilon": 1.23456,
    "bounds": [
        {"method": "assumption_free", "epsilon": 1.23456, "delta": 1e-5, "confidence": 0.95}
    ],
    "upper_bound": 23.99536,
    "runs": 40,
}


def stored(root, setting, runs=40, result=CONCLUDED, age=0.0):
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64})
    store.save(Scores(0, np.zeros((runs, 1)), np.arange(runs)[:, None] % 2 == 1))
    for path in store.path.glob("scores_*"):
        os.utime(path, (time.time() - age,) * 2)
    if result is not None:
        store.write_text("audit.json", json.dumps(result))
    return store.path


def command(*flags):
    code = "import runpy, sys; sys.argv[0] = 'list'; import audit.commands.list as m; import atexit"
    code += "; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); m.cli.run(m.main)"
    return subprocess.run(
        [sys.executable, "-c", code, *flags], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"periodicity": 5}, {"k": 5, "steps": 250}),
        ({"periodicity": 5, "insertions": 250}, {"k": 5}),
        ({"periodicity": 3, "steps": 250}, {"k": 3, "steps": 250}),
        ({"noise_multiplier": 4.0, "learning_rate": 0.2}, {"learning_rate": 0.2}),
        ({"gc_s": "noisy_per_step", "seed": 5}, {"gc_s": "noisy_per_step", "seed": 5}),
    ],
)
def test_what_differs_from_the_defaults_is_named_by_its_flag(fields, expected):
    assert listing.find_differences(setting_of("fcnn", **fields)) == expected


def test_the_command_lists_the_newest_first_and_starts_no_jax(tmp_path):
    old = stored(tmp_path, setting_of("fcnn", seed=1), age=7300)
    new = stored(tmp_path, setting_of("convnet", adversary="gc_r"), runs=6, result=None)
    damaged = stored(tmp_path, setting_of("fcnn", seed=2), result=[])
    Store(tmp_path, {"kind": "landscape_simulated"}).save(
        Scores(0, np.zeros((2, 1)), np.zeros((2, 1), bool))
    )
    before = sorted(tmp_path.rglob("*"))
    process = command(f"--out={tmp_path}", "--json")
    *messages, modules = process.stderr.splitlines()
    (message,) = messages
    assert str(damaged) in message
    assert {"jax", "flax", "matplotlib"}.isdisjoint(modules.split())
    rows = json.loads(process.stdout)
    assert [row["setting"] for row in rows] == [new.name, old.name]
    assert (rows[0]["epsilon"], rows[0]["audited_runs"], rows[0]["runs"]) == (None, None, 6)
    assert abs(time.time() - rows[1]["time"] - 7300) < 600
    assert sorted(tmp_path.rglob("*")) == before
