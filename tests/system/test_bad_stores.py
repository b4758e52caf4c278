"""Damaged stores: commands go on without what cannot be read, or end in one line; no damaged score counts."""

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.errors import InputError
from audit.report import listing
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage.store import Scores, Store, hash_of
from tests.system.bad import FORTY, KINDS, Bad, assert_refused, looping, odd_places

MIXED = np.arange(40)[:, None] % 2 == 1
SCORES = FORTY[:, None] + MIXED
CONCLUDED = {
    "epsilon": 1.5,
    "bounds": [{"method": "assumption_free", "epsilon": 1.5, "delta": 1e-5, "confidence": 0.95}],
    "upper_bound": 9.75,
    "runs": 40,
    "provenance": {"jax": "0"},
}


def audited(root, seed=0):
    """A setting's folder with made-up scores and their conclusion."""
    setting = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4, seed=seed)
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64})
    store.save(Scores(0, SCORES, MIXED))
    store.write_text("audit.json", json.dumps(CONCLUDED))
    return store.path


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_a_damaged_file_is_left_out_or_named(data, tmp_path_factory):
    folder = audited(tmp_path_factory.mktemp("store"))
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    path.write_bytes(content[:start] + data.draw(st.binary(max_size=20)) + content[stop:])
    try:
        listing.as_table([listing.listed(folder)])
        store = Store.at(folder)
        if not store.missing(40):
            np.testing.assert_array_equal(store.load(40).scores, SCORES)
    except InputError as error:
        assert folder.name in str(error) and "\n" not in str(error)


def with_good(damage):
    """Lays a store r of two audits, and damages the first one's folder."""

    def lay(folder):
        damage(audited(folder / "r"))
        audited(folder / "r", seed=1)

    return lay


def put(name, make):
    """Puts something else in the place of a file."""

    def damage(audit):
        (path,) = audit.glob(name)
        path.unlink()
        make(path)

    return damage


NOT_FILES = {**KINDS, "a loop": looping}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_left_out_and_named(kind, forked, homes, tmp_path):
    for name in ("config.json", "audit.json"):
        lay = with_good(put(name, NOT_FILES[kind]))
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        assert_refused(Bad(("list", "--out=r"), f"{name}", lay, status=0), forked, homes, folder)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("list --out=s.txt", "s.txt (Not a directory)"),
        ("list --out=loop.npz --report=p.html", "Too many levels of symbolic links"),
        ("figures --out=s.txt", "s.txt (Not a directory)"),
        ("sweep --list --out=s.txt", "s.txt (Not a directory)"),
        ("list --out=missing --report=p.html", "--out=missing holds no audits"),
    ],
)
def test_a_folder_that_is_none_is_one_line(line, says, forked, homes, tmp_path):
    assert_refused(Bad(tuple(line.split()), says, odd_places), forked, homes, tmp_path)


def test_a_name_that_begins_two_hashes_is_refused_with_both(forked, tmp_path):
    first = audited(tmp_path / "r")
    for seed in range(1, 200):
        second = audited(tmp_path / "r", seed)
        if hash_of(second)[0] == hash_of(first)[0]:
            break
        for path in second.iterdir():
            os.unlink(path)
        second.rmdir()
    name = f"--setting={hash_of(first)[0]}"
    ended = forked("list", "--out=r", "--report=p.html", name, folder=tmp_path)
    assert ended.status == 2 and hash_of(first) in ended.stderr and hash_of(second) in ended.stderr
    assert not (tmp_path / "p.html").exists()
