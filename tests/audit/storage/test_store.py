"""Stored scores come back, missing runs are noticed, and damaged files are never used."""

import contextlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.errors import InputError
from audit.storage.store import Store, hash_of, hold
from audit.training.game import Scores

SETTING = {"adversary": "gc_r", "steps": 250, "learning_rate": 0.1}


def _chunk(first, size, canaries=1):
    """Returns some runs of a fixed table of scores, with coins for the presence of each canary."""
    rng = np.random.default_rng(canaries)
    scores, coins = rng.normal(size=(1000, canaries)), rng.integers(2, size=(1000, canaries))
    return Scores(first, scores[first : first + size], coins[first : first + size] == 1)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results", SETTING)


@pytest.fixture
def path(store):
    """Returns the file of a store with a single chunk, runs 0 to 5."""
    store.save(_chunk(0, 6))
    return next(store.path.glob("scores_*"))


@contextlib.contextmanager
def refused(says):
    with pytest.raises(InputError, match=says) as caught:
        yield
    assert "\n" not in str(caught.value)


def _visible(store):
    return sorted(file.name for file in store.path.iterdir() if not file.name.startswith("."))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chunks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=6),
    runs=st.integers(1, 60),
    canaries=st.sampled_from([1, 3]),
)
def test_runs_are_held_as_the_chunks_that_were_saved(chunks, runs, canaries, tmp_path_factory):
    """Chunks are saved in any order and may overlap; they agree on shared runs."""
    store = Store(tmp_path_factory.mktemp("store"), SETTING)
    for first, size in chunks:
        store.save(_chunk(first, size, canaries))
    held = {run for first, size in chunks for run in range(first, first + size)}
    missing = [run for start, stop in store.missing(runs) for run in range(start, stop)]
    assert missing == [run for run in range(runs) if run not in held]
    assert store.runs_held() == min(set(range(100)) - held)
    if missing:
        with refused(f"does not have runs {missing[0]} to "):
            store.load(runs)
    else:
        loaded = store.load(runs)
        assert (loaded.first, loaded.scores.dtype, loaded.presence.dtype) == (0, np.float64, bool)
        np.testing.assert_array_equal(loaded.scores, _chunk(0, runs, canaries).scores)
        np.testing.assert_array_equal(loaded.presence, _chunk(0, runs, canaries).presence)


def test_a_folder_has_words_for_people_and_is_found_by_its_hash(tmp_path):
    plain = Store(tmp_path / "plain", SETTING)
    assert Store(tmp_path / "plain", SETTING, "fcnn-gc_r").path == plain.path  # used where it is
    assert plain.path == tmp_path / "plain" / hash_of(plain.path)
    store = Store(tmp_path, SETTING, "fcnn-gc_r")
    assert store.path.name == f"fcnn-gc_r-{plain.path.name}" == f"fcnn-gc_r-{hash_of(store.path)}"
    turned = dict(reversed(SETTING.items()))
    for again in (Store(tmp_path, turned), Store.at(store.path)):
        assert again.path == store.path and again.text == store.text
    assert len(list(tmp_path.iterdir())) == 2
    moved = store.path.rename(tmp_path / f"mine-{hash_of(store.path)}")
    assert Store(tmp_path, SETTING, "fcnn-gc_r").path == moved


def _altered(which):
    def alter(path):
        content = bytearray(path.read_bytes())
        content[content.index(getattr(_chunk(0, 6), which).tobytes()) + 1] ^= 1
        path.write_bytes(content)

    return alter


def _as_npy(path):
    with open(path, "wb") as file:
        np.save(file, np.arange(3.0))


DAMAGES = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "altered": _altered("scores"),
    "another format": _as_npy,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_set_aside_and_its_runs_are_missing(store, path, capsys, damage):
    damage(path)
    assert store.missing(6) == [(0, 6)] and store.runs_held() == 0
    message = capsys.readouterr().err
    assert (
        message.count("\n") == 1 and "is damaged: set aside, its runs are trained again" in message
    )
    assert sum("damaged-" in name for name in _visible(store)) == 1
    with pytest.raises(InputError, match="does not have runs 0 to 5"):
        store.load(6)
    store.save(_chunk(0, 6))
    np.testing.assert_array_equal(store.load(6).scores, _chunk(0, 6).scores)


def test_scores_of_another_setting_are_set_aside(store, path, tmp_path, capsys):
    other = Store(tmp_path, {"noise_multiplier": 2.0})
    copy = other.path / path.name
    copy.write_bytes(path.read_bytes())
    assert other.missing(6) == [(0, 6)] and not copy.exists()
    assert f"{path.name} belongs to another setting: set aside" in capsys.readouterr().err
    elsewhere = Store(tmp_path / "elsewhere", SETTING, "words")
    (elsewhere.path / path.name).write_bytes(path.read_bytes())
    assert elsewhere.missing(6) == []


LOCKED = """
import sys
from pathlib import Path
from audit.storage.store import hold
with hold(Path(sys.argv[1])), hold(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_waits_for_the_lock_of_one_that_dies(store, capfd):
    command = [sys.executable, "-c", LOCKED, str(store.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as holder:
        holder.stdout.readline()
        entered = threading.Event()

        def enter():
            with hold(store.path):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.3)
        holder.kill()
        thread.join()
    assert entered.is_set()
    assert capfd.readouterr().err == f"another process is using {store.path}: waiting for it\n"


@pytest.mark.parametrize("content", [None, b"\xff\xfe{"])
def test_a_changed_or_damaged_setting_under_an_old_name(store, tmp_path, content):
    config = store.path / "config.json"
    altered = config.read_bytes().replace(b"250", b"251")
    config.write_bytes(altered if content is None else content)
    with refused("is not the setting that its folder is named after"):
        Store(tmp_path / "results", SETTING)
