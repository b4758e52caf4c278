"""What is kept comes back, what is missing is known, and what is damaged is never believed."""

import errno
import os

import numpy as np
import pytest

from audit.errors import InputError
from audit.game import Scores
from audit.storage import files
from audit.storage.store import Store

SETTING = {"adversary": "gc_r", "steps": 250, "learning_rate": 0.1}


def _chunk(first, size, seed=0):
    values = np.random.default_rng(seed).normal(size=10_000)[first : first + size]
    return Scores(first, values, np.arange(first, first + size) % 2 == 1)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results", SETTING)


@pytest.fixture
def path(store):
    """The file of a store's one chunk, runs 0 to 5."""
    store.save(_chunk(0, 6))
    return next(store.path.glob("scores_*"))


def _visible(store):
    return sorted(file.name for file in store.path.iterdir() if not file.name.startswith("."))


def _is_retrained(store, runs, capsys):
    """Whether the damage is said in one line, set aside, and mended by training those runs again."""
    assert store.missing(runs) == [(0, runs)]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is damaged" in said
    assert store.missing(runs) == [(0, runs)]
    assert capsys.readouterr().err == ""
    assert sum("damaged-" in name for name in _visible(store)) == 1
    with pytest.raises(InputError, match="lacks runs 0 to 5"):
        store.load(runs)
    store.save(_chunk(0, runs))
    return np.array_equal(store.load(runs).scores, _chunk(0, runs).scores)


def test_round_trip(store):
    for first, size in ((4, 3), (0, 4), (7, 1)):  # in any order
        store.save(_chunk(first, size))
    loaded = store.load(8)
    assert loaded.first == 0
    assert loaded.scores.dtype == np.float64
    np.testing.assert_array_equal(loaded.scores, _chunk(0, 8).scores)
    np.testing.assert_array_equal(loaded.presence, _chunk(0, 8).presence)


def test_a_second_process_finds_the_same_folder(store, tmp_path):
    store.save(_chunk(0, 2))
    other = Store(tmp_path / "results", dict(reversed(SETTING.items())))
    assert other.path == store.path
    assert other.missing(2) == []


@pytest.mark.parametrize("changed", [{"steps": 251}, {"learning_rate": 0.1000001}, {"new": None}])
def test_another_setting_has_another_folder(store, tmp_path, changed):
    assert Store(tmp_path / "results", SETTING | changed).path != store.path


def test_missing_ranges(store):
    assert store.missing(5) == [(0, 5)]
    store.save(_chunk(2, 2))
    store.save(_chunk(6, 1))
    store.save(_chunk(7, 1))
    assert store.missing(10) == [(0, 2), (4, 6), (8, 10)]
    assert store.missing(8) == [(0, 2), (4, 6)]
    assert store.missing(3) == [(0, 2)]
    with pytest.raises(InputError, match="lacks runs 0 to 1"):
        store.load(8)


def test_more_runs_later_and_fewer(store):
    store.save(_chunk(0, 5))
    assert store.missing(5) == []
    assert store.missing(9) == [(5, 9)]
    store.save(_chunk(5, 4))
    np.testing.assert_array_equal(store.load(9).scores, _chunk(0, 9).scores)
    np.testing.assert_array_equal(store.load(3).scores, _chunk(0, 3).scores)
    np.testing.assert_array_equal(store.load(7).presence, _chunk(0, 7).presence)


def test_chunks_that_overlap(store):
    store.save(_chunk(0, 6))
    store.save(_chunk(4, 6))
    assert store.missing(10) == []
    np.testing.assert_array_equal(store.load(10).scores, _chunk(0, 10).scores)


def test_run_numbers_of_eight_digits(store):
    store.save(_chunk(0, 2)._replace(first=12_345_678))
    assert store.missing(12_345_681) == [(0, 12_345_678), (12_345_680, 12_345_681)]


def test_a_file_torn_anywhere(store, path, capsys):
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        assert store.missing(6) == [(0, 6)], size
        assert "is damaged" in capsys.readouterr().err
    path.write_bytes(whole[: len(whole) // 2])
    for file in store.path.glob("*damaged*"):
        file.unlink()
    assert _is_retrained(store, 6, capsys)


def _payload(path, array):
    """Where an array's bytes begin in the file."""
    return path.read_bytes().index(array.tobytes())


@pytest.mark.parametrize("which", ["scores", "presence"])
def test_an_altered_byte_of_the_arrays(store, path, capsys, which):
    content = bytearray(path.read_bytes())
    content[_payload(path, getattr(_chunk(0, 6), which)) + 1] ^= 1
    path.write_bytes(content)
    assert _is_retrained(store, 6, capsys)


def test_arrays_altered_with_care(store, path, capsys):
    """A zip that is whole, its checksums too, with another score than the SHA-256 was taken of."""
    with np.load(path) as file:
        entries = dict(file)
    entries["scores"][3] += 1e-9
    np.savez(path, **entries)
    assert _is_retrained(store, 6, capsys)


def test_any_altered_byte(store, path, capsys):
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        if store.missing(6):
            assert "is damaged" in capsys.readouterr().err
        else:  # a byte that says nothing of the scores
            np.testing.assert_array_equal(store.load(6).scores, _chunk(0, 6).scores)


def test_an_altered_name(store, path, capsys):
    path.rename(path.with_name("scores_0000006_0000012.npz"))
    assert store.missing(12) == [(0, 12)]
    assert "is damaged" in capsys.readouterr().err
    assert store.missing(12) == [(0, 12)]


def test_other_files_are_nobodys_scores(store, path, capsys):
    (store.path / "scores_a_b.npz").write_bytes(b"?")
    (store.path / ".scores_0000006_0000012.npz.0123abcd").write_bytes(path.read_bytes())
    (store.path / "audit.json").write_text("{}")
    assert store.missing(12) == [(6, 12)]
    assert capsys.readouterr().err == ""


def _one_line(caught):
    return "\n" not in str(caught.value)


def test_a_changed_setting_under_an_old_name(store, tmp_path):
    config = store.path / "config.json"
    config.write_text(config.read_text().replace("250", "251"))
    with pytest.raises(InputError, match="is not the setting that its folder is named after") as caught:
        Store(tmp_path / "results", SETTING)
    assert _one_line(caught)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff\xfe{",
    ],
)
def test_a_damaged_setting(store, tmp_path, content):
    (store.path / "config.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        Store(tmp_path / "results", SETTING)
    assert _one_line(caught)


@pytest.mark.parametrize("below", [".", "deep/er"])
def test_a_root_that_is_a_file(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another folder with --out") as caught:
        Store(tmp_path / "file" / below, SETTING)
    assert _one_line(caught)


def test_a_folder_that_vanished_is_made_again(store, tmp_path):
    (store.path / "config.json").unlink()
    store.path.rmdir()
    store.save(_chunk(0, 2))
    assert store.missing(2) == []


def _failing(error):
    def replace(source, target):
        assert os.path.getsize(source) > 0
        raise error

    return replace


def test_a_kill_between_write_and_rename(store, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", _failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            store.save(_chunk(0, 6))
    assert _visible(store) == ["config.json"]
    assert store.missing(6) == [(0, 6)]
    store.save(_chunk(0, 6))
    assert store.missing(6) == []
    assert capsys.readouterr().err == ""


def test_a_full_disk(store, monkeypatch):
    monkeypatch.setattr(files.os, "replace", _failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(InputError, match="No space left on device") as caught:
        store.save(_chunk(0, 6))
    assert _one_line(caught)
    assert [file.name for file in store.path.iterdir()] == ["config.json"]


def test_a_rename_never_shows_half_a_file(store, path, monkeypatch):
    """The old file stands until the new one is whole."""
    whole = path.read_bytes()
    monkeypatch.setattr(files.os, "replace", _failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(InputError):
        files.write_whole(path, whole[:100])
    assert path.read_bytes() == whole


def test_a_file_system_that_turned_read_only(store, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "open", refuse, raising=False)
    monkeypatch.setattr(files.Path, "unlink", refuse)
    with pytest.raises(InputError, match="Read-only file system"):
        store.save(_chunk(0, 6))


def test_a_damaged_file_in_a_folder_that_refuses(store, path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    path.write_bytes(b"")
    monkeypatch.setattr(files.Path, "rename", refuse)
    monkeypatch.setattr(files.Path, "replace", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        store.missing(6)
