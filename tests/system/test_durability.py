"""Tests that an interrupted audit gives the same bits, and trains no run twice."""

import functools
import json
import threading

import jax
import numpy as np
import pytest

from audit.errors import InputError
from audit.settings import make
from audit.settings.make import setting_of
from audit.storage import files
from audit.storage.store import Store
from audit.training import build, game
from tests import programs
from tests.forks import python

BASE = {"adversary": "gc_r", "batch_size": 10, "steps": 3, "noise_multiplier": 1.0}
SETTING = setting_of("fcnn", **BASE)
LONG = setting_of("fcnn", **{**BASE, "steps": 600})


@pytest.fixture
def train(small_dataset, tmp_path):
    """train(setting, out="out", runs=8, chunk=4) -> Trained, with a checkpoint after every segment."""

    def run(setting, out="out", runs=8, chunk=4, progress=lambda runs: None):
        store = make.open_store(tmp_path / out, setting, small_dataset)
        built = build.build(setting, small_dataset)
        return game.train(built, store, runs, chunk, checkpoint_seconds=0, progress=progress)

    return run


@pytest.fixture
def store(small_dataset, tmp_path):
    return make.open_store(tmp_path / "out", LONG, small_dataset)


def _dying(monkeypatch, segments):
    player = game.Player

    def until(table, chunk, progress, *others):
        left = [segments]

        def counted(runs):
            progress(runs)
            left[0] -= runs > 0
            if not left[0]:
                raise KeyboardInterrupt

        return player(table, chunk, counted, *others)

    monkeypatch.setattr(game, "Player", until)


@pytest.mark.slow
def test_an_interrupted_chunk_goes_on(train, store, monkeypatch):
    all_runs, further_runs = [], []
    whole = train(LONG, "whole", progress=all_runs.append)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _dying(patch, 5)
        train(LONG)
    assert store.missing(8) == [(4, 8)]
    assert [path.name for path in (store.path / "checkpoints").iterdir()] == [
        "0000004_4_3x200_000001.npz"
    ]
    resumed = train(LONG, progress=further_runs.append)
    np.testing.assert_array_equal(resumed.scores.scores, whole.scores.scores)
    assert resumed.trained_runs == 4
    assert sum(further_runs) == pytest.approx(4 * 400 / 600)  # 400 of 600 steps
    assert sum(all_runs) == pytest.approx(8) and not (store.path / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"adversary": "sphere", "canaries": 8}], ids=str)
def test_two_at_once_share_the_chunks_and_both_have_all_scores(train, fields):
    setting = setting_of("fcnn", **{**BASE, **fields})
    alone, began, found = train(setting, "alone", runs=24), threading.Barrier(2), []

    def attempt():
        began.wait()
        found.append(train(setting, runs=24))

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.trained_runs for one in found) == 24
    for one in found:
        np.testing.assert_array_equal(one.scores.scores, alone.scores.scores)


@pytest.mark.slow
def test_memory_that_runs_out_halves_the_chunk_once_said(train, monkeypatch, capsys):
    whole, play = train(SETTING, "whole", runs=16), game.Player.play

    def scarce(player, first, size):
        if player._chunk > 2 and first:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")
        return play(player, first, size)

    monkeypatch.setattr(game.Player, "play", scarce)
    halved = train(SETTING, runs=16, chunk=8)
    np.testing.assert_array_equal(halved.scores.scores, whole.scores.scores)
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if "out of memory: continuing with" in line
    ]
    assert halved.trained_runs == 16 and [line.split()[-2] for line in said] == ["4", "2"]


@pytest.mark.slow
def test_a_disk_that_is_full_when_scores_are_kept_loses_one_segment(train, store, monkeypatch):
    whole = train(LONG, "whole", runs=4)

    def full(self, chunk):
        raise files.CannotWriteError("cannot write (No space left on device)")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="No space left on device"):
        patch.setattr(Store, "save", full)
        train(LONG, runs=4)
    further_runs = []
    resumed = train(LONG, runs=4, progress=further_runs.append)
    assert sum(further_runs) == pytest.approx(4 * 200 / 600)
    np.testing.assert_array_equal(resumed.scores.scores, whole.scores.scores)


@pytest.fixture
def compilations():
    """A list that grows with every program that is traced or compiled."""
    events = []

    def listen(name, seconds, **named):
        if "trace" in name or "compile" in name:
            events.append((name, named.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


TRACED = {"learning_rate": 0.05, "clipping_norm": 2.0, "noise_multiplier": 3.0}
CHANGES = [{"seed": 1}, TRACED, {"periodicity": 3}]
OTHERS = ("gc_s", "loss", "cots")


@pytest.mark.parametrize(
    "adversary", ["gc_r", *(pytest.param(a, marks=pytest.mark.slow) for a in OTHERS)]
)
def test_cells_of_the_same_shapes_are_compiled_once(train, compilations, adversary):
    base = {**BASE, "adversary": adversary}
    first = train(setting_of("fcnn", **base), runs=4)
    train(setting_of("fcnn", **base, seed=9), runs=4)
    compilations.clear()
    for change in CHANGES:
        other = train(setting_of("fcnn", **{**base, **change}), runs=4)
        assert not np.array_equal(other.scores.scores, first.scores.scores)
    assert compilations == []
    programs.forget()
    train(setting_of("fcnn", **base, seed=10), runs=4)
    assert compilations


@pytest.fixture(scope="module")
def on(tmp_path_factory):
    """on(devices) -> the scores of a short game on so many, where a long one died and went on."""

    @functools.cache
    def run(devices):
        done = python("-c", PROGRAM, devices, tmp_path_factory.mktemp("devices"))
        assert done.returncode == 0, done.stderr
        return np.array(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("devices", [3, 8])
def test_scores_and_checkpoints_do_not_depend_on_the_number_of_devices(on, devices):
    assert len(on(1)) == 21
    np.testing.assert_allclose(on(devices), on(1), rtol=1e-5, atol=1e-7)


PROGRAM = """
import json, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import numpy as np
from audit.training import game
from audit.training import build
from audit.settings.make import setting_of
from audit.storage.store import Checkpoints
from audit.tasks.task import Dataset

features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
data = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)
table = build.build(setting_of("fcnn", adversary="gc_r", batch_size=10, steps=600), data)
kept = Checkpoints(Path(sys.argv[2]), 0)
(whole,) = game.Player(table, 5).play_all([(0, 5)])
def die(runs, heard=[]):
    heard.append(runs)
    if len(heard) == 3:  # in the second segment
        raise KeyError
try:
    list(game.Player(table, 5, die, kept).play_all([(0, 5)]))
except KeyError:
    pass
heard = []
(resumed,) = game.Player(table, 5, heard.append, kept).play_all([(0, 5)])
assert len(jax.local_devices()) == int(sys.argv[1]) and heard == [0, 5 / 3, 5 / 3], heard
np.testing.assert_array_equal(resumed.scores, whole.scores)
short = build.build(setting_of("fcnn", adversary="gc_r", batch_size=20, steps=7, periodicity=2), data)
parts = game.Player(short, 10).play_all([(0, 21)])
print(json.dumps(np.concatenate([part.scores for part in parts]).tolist()))
"""
